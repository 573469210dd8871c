// Attention whose keys and values come around a ring is that of whole sequences: outputs, gradients, bytes and memory.
#include "fsdp/parallel/ring_attention.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "fsdp/fsdp.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace fsdp::ring_attention_test {
namespace {

using parallel::ContextExchange;
using parallel::ContextView;
using parallel::Ranks;
using parallel::ring_attention;
using parallel::RowsHold;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kKeyHeads = 2, kGroup = 3, kDim = 5;

// Of whole sequences.
struct Sequences {
  Sequences(uint64_t seed, int64_t rows, int64_t tokens, bool has_documents, int64_t window) : window(window) {
    const at::Generator numbers = generator(seed);
    const auto draw = [&](int64_t heads) {
      return torch::randn({rows, tokens, heads, kDim}, numbers, torch::dtype(torch::kDouble));
    };
    q = draw(kKeyHeads * kGroup);
    k = draw(kKeyHeads);
    v = draw(kKeyHeads);
    aim = draw(kKeyHeads * kGroup);
    if (has_documents)
      documents = (torch::rand({rows, tokens}, numbers) < 4.0 / static_cast<double>(tokens)).to(torch::kLong).cumsum(1);
  }
  torch::Tensor q, k, v, aim, documents;
  int64_t window;
};

// By the definition, and what (output * aim).sum() makes of q, k and v.
std::vector<torch::Tensor> whole_attention(const Sequences& all) {
  const torch::Tensor q = all.q.clone().requires_grad_(), k = all.k.clone().requires_grad_(),
                      v = all.v.clone().requires_grad_();
  const int64_t tokens = q.size(1);
  torch::Tensor sees = torch::ones({1, tokens, tokens}, torch::kBool).tril();
  if (all.window > 0) sees = sees.triu(1 - all.window);
  if (all.documents.defined()) sees = sees.logical_and(all.documents.unsqueeze(2).eq(all.documents.unsqueeze(1)));
  const torch::Tensor scores =
      torch::einsum("bthd,bshd->bhts", {q, k.repeat_interleave(kGroup, 2)}) / std::sqrt(double{kDim});
  const torch::Tensor shares = scores.masked_fill(sees.unsqueeze(1).logical_not(), -INFINITY).softmax(-1);
  const torch::Tensor y = torch::einsum("bhts,bshd->bthd", {shares, v.repeat_interleave(kGroup, 2)});
  (y * all.aim).sum().backward();
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

// How many allocations of one size this thread has at a time.
class LiveBlocks : public c10::MemoryReportingInfoBase {
 public:
  explicit LiveBlocks(int64_t bytes) : bytes_(bytes) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (std::abs(bytes) != bytes_) return;
    live_ += bytes > 0 ? 1 : -1;
    most = std::max(most, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int most = 0;

 private:
  int64_t bytes_;
  int live_ = 0;
};

// A gradient of 0 is a difference of numbers of size 1, as all are here.
void expect_equal(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  const double size = std::max(expected.abs().max().item<double>(), 1.0);
  EXPECT_LE((actual - expected).abs().max().item<double>() / size, 1e-12) << what << " of size " << size;
}

void expect_equal_ring(const World& world, const Sequences& all, const std::vector<torch::Tensor>& expected) {
  const auto cp = Ranks::along(Mesh(world, {{"cp", world.size}}), "cp");
  const auto own = [&](const torch::Tensor& x) {
    return parallel::zigzag_part(x, 1, cp->rank(), cp->size()).contiguous();
  };
  const torch::Tensor q = own(all.q).requires_grad_(), k = own(all.k).requires_grad_(), v = own(all.v).requires_grad_();
  const int64_t block = 2 * static_cast<int64_t>(k.nbytes()), passes = cp->size() - 1;
  const auto in_forward = std::make_shared<LiveBlocks>(block), in_backward = std::make_shared<LiveBlocks>(block);
  cp->reset_traffic();
  torch::Tensor y;
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, in_forward);
    y = ring_attention(q, k, v, {all.documents, all.window}, cp, "layer");
  }
  EXPECT_EQ(cp->traffic().bytes, passes * block);
  expect_equal(y.detach(), own(expected[0]), "output");
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, in_backward);
    (y * own(all.aim)).sum().backward();
  }
  EXPECT_EQ(cp->traffic().bytes, 3 * passes * block);
  expect_equal(q.grad(), own(expected[1]), "gradient of q");
  expect_equal(k.grad(), own(expected[2]), "gradient of k");
  expect_equal(v.grad(), own(expected[3]), "gradient of v");
  // Its own or the last one's, and the next; their gradients: its own, those that leave, come and are computed.
  EXPECT_LE(in_forward->most, 2);
  EXPECT_LE(in_backward->most, 3 + 4);
}

TEST(RingAttention, IsThatOfWholeSequences) {
  uint64_t seed = 50;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t chunk : {1, 5, 300}) {  // more than what is computed at a time
      for (const bool has_documents : {false, true}) {
        for (const int64_t window : {int64_t{0}, chunk + 2}) {
          if (chunk > 100 && (ranks != 2 || has_documents != (window > 0))) continue;
          SCOPED_TRACE(c10::str(ranks, " ranks, chunks of ", chunk, has_documents ? ", documents" : "", ", window ",
                                window, ", seed ", ++seed));
          const Sequences all(seed, chunk > 100 ? 1 : 2, 2 * ranks * chunk, has_documents, window);
          const std::vector<torch::Tensor> expected = whole_attention(all);
          run_ranks(ranks, [&](const World& world) { expect_equal_ring(world, all, expected); });
        }
      }
    }
  }
}

// Numbers of 16 bits travel as they are, and are added up in fp32, as their gradients travel.
TEST(RingAttention, AddsUpInFp32) {
  const Sequences all(7, 2, 24, true, 9);
  const std::vector<torch::Tensor> expected = whole_attention(all);
  run_ranks(3, [&](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 3}}), "cp");
    const auto own = [&](const torch::Tensor& x) { return parallel::zigzag_part(x, 1, cp->rank(), 3); };
    const auto rounded = [&](const torch::Tensor& x) { return own(x).to(torch::kBFloat16).requires_grad_(); };
    const torch::Tensor q = rounded(all.q), k = rounded(all.k), v = rounded(all.v);
    cp->reset_traffic();
    const torch::Tensor y = ring_attention(q, k, v, {all.documents, 9}, cp, "layer");
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    (y * own(all.aim)).sum().backward();
    EXPECT_EQ(cp->traffic().bytes, 2 * (1 + 1 + 2) * 2 * static_cast<int64_t>(k.nbytes()));
    expect_close(y.detach().to(torch::kDouble), own(expected[0]), 2e-2, "output");
    expect_close(k.grad().to(torch::kDouble), own(expected[2]), 3e-2, "gradient of k");
  });
}

TEST(RingAttention, HasFirstDerivativesOnly) {
  const Sequences all(8, 1, 8, false, 0);
  run_ranks(2, [&](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 2}}), "cp");
    const auto own = [&](const torch::Tensor& x) {
      return parallel::zigzag_part(x, 1, cp->rank(), 2).contiguous().requires_grad_();
    };
    const torch::Tensor q = own(all.q), k = own(all.k), v = own(all.v);
    const torch::Tensor loss = ring_attention(q, k, v, {}, cp, "layer").square().sum();
    const auto gradients = [&](bool create_graph) {
      return torch::autograd::grad({loss}, {q, k, v}, {}, /*retain_graph=*/true, create_graph);
    };
    const auto recorded = gradients(true), plain = gradients(false);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(torch::equal(recorded[i].detach(), plain[i])) << "gradient " << i;
      const torch::Tensor penalty = recorded[i].square().sum();
      EXPECT_THAT([&] { torch::autograd::grad({penalty}, {q}, {}, /*retain_graph=*/true); },
                  ThrowsMessage<std::exception>(HasSubstr("[ring_attention] got a gradient of a gradient")));
    }
  });
}

TEST(RingAttention, IsChosenWhereWhatIsGatheredIsLarge) {
  run_ranks(2, [](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 2}}), "cp");
    const auto keys = [](int64_t rows, int64_t tokens) { return torch::empty({rows, tokens, 2, 4}, torch::kMeta); };
    EXPECT_EQ(parallel::gathered_bytes({3, 100, 3 * 100 * 8, 4, 2}, RowsHold::kOneDocument),
              2 * (2 * 3 * 100 * 8 + 100 * 100) * 4);
    EXPECT_EQ(parallel::gathered_bytes({3, 100, 3 * 100 * 8, 4, 2}, RowsHold::kDocuments),
              2 * (2 * 3 * 100 * 8 + 3 * 100 * 100) * 4);
    const auto chosen = [&](ContextExchange wanted, int64_t tokens) {
      return parallel::choose_exchange(wanted, keys(1, tokens), true, *cp);
    };
    EXPECT_EQ(chosen(ContextExchange::kAuto, 100), ContextExchange::kGather);
    EXPECT_EQ(chosen(ContextExchange::kAuto, 20000), ContextExchange::kRing);
    EXPECT_EQ(chosen(ContextExchange::kRing, 100), ContextExchange::kRing);
    EXPECT_EQ(chosen(ContextExchange::kGather, 20000), ContextExchange::kGather);
  });
}

TEST(RingAttention, RefusesWhatDoesNotFit) {
  run_ranks(2, [](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 2}}), "cp");
    const auto attend = [&](int64_t tokens, int64_t heads, const torch::Tensor& documents) {
      return [=] {
        const torch::Tensor k = torch::ones({1, tokens, 2, 2});
        ring_attention(torch::ones({1, tokens, heads, 2}), k, k, {documents}, cp, "layer");
      };
    };
    EXPECT_THAT(attend(4, 3, {}), ThrowsMessage<Error>(HasSubstr("of which K divides H")));
    EXPECT_THAT(attend(3, 2, {}), ThrowsMessage<Error>(HasSubstr("expected a multiple of 4")));
    EXPECT_THAT(attend(4, 2, torch::zeros({1, 4}, torch::kLong)),
                ThrowsMessage<Error>(HasSubstr("layer: got documents [1, 4], expected [B, 8]")));
  });
}

}  // namespace
}  // namespace fsdp::ring_attention_test
