// The peak of activations and loss of real steps, by LibTorch's own account, beside the plan.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "fsdp/fsdp.h"
#include "kernels/products/linear_parts.h"
#include "models/decoder.h"
#include "plan/activations.h"
#include "plan/report.h"
#include "tests/support/ranks.h"
#include "train/model/nf4/base_format.h"
#include "train/model/parallelize.h"
#include "train/model/planned_run.h"
#include "train/model/recomputation.h"

namespace fsdp::plan::activations_test {
namespace {

// Bytes of the CPU that this thread's tensors hold, now and at most.
class PeakBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }
  int64_t held() const { return held_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

struct Case {
  const char* what;
  int64_t hidden, inner, vocab, layers, heads, key_heads, rows, length;
  models::Recompute recompute;
  const char* precision;
  bool tied = false;
  const char* family = "llama";
};

models::DecoderConfig config_of(const Case& c) {
  models::DecoderConfig config = models::family_config(c.family);
  config.vocab_size = c.vocab;
  config.hidden_size = c.hidden;
  config.intermediate_size = c.inner;
  config.num_hidden_layers = c.layers;
  config.num_attention_heads = c.heads;
  config.num_key_value_heads = c.key_heads;
  config.head_dim = c.hidden / c.heads;
  config.tie_word_embeddings = c.tied;
  if (std::string(c.family) == "llama") return config;
  config.experts.count = 8;
  config.experts.per_token = 2;
  config.experts.inner_size = c.inner / 2;
  if (std::string(c.family) != "deepseek_v2") return config;
  config.latent = {.rank = 48, .query_rank = 0, .rope_dim = 16, .value_dim = c.hidden / c.heads / 2};
  config.experts.shared_inner_size = c.inner / 4;
  config.experts.dense_layers.assign(static_cast<size_t>(c.layers), false);
  config.experts.dense_layers.front() = true;
  return config;
}

int64_t measured_peak(const World& world, const Case& c) {
  models::Decoder decoder(config_of(c));
  decoder->reset_parameters(3);
  train::set_recomputation(decoder, {c.recompute, 1});
  ShardOptions options;
  if (std::string(c.precision) == "bf16") options.precision = Precision::bf16();
  train::ShardedModel model = train::parallelize(std::move(decoder), Mesh::shard(world), options);
  AdamW optimizer(parameters(*model.decoder), {});
  const at::Tensor ids = at::arange(c.rows * c.length, at::kLong).view({c.rows, c.length}) % c.vocab;
  const at::Tensor targets = models::shift_labels(ids).flatten();
  int64_t peak = 0;
  for (int step = 0; step < 3; ++step) {
    const auto account = std::make_shared<PeakBytes>();
    {
      const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
      model.decoder->loss(ids, targets).backward();
    }
    optimizer.step();
    zero_grad(*model.decoder);
    peak = account->peak();
  }
  return peak;
}

// Bytes that `product` takes beside its result.
template <class Product>
int64_t scratch_of(const Product& product) {
  const auto account = std::make_shared<PeakBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
  const at::Tensor result = product();
  return account->peak() - static_cast<int64_t>(result.nbytes());
}

// The most that a product of a case takes meanwhile, on this processor: parts of a matrix, packed by us or by oneDNN,
// whose size has a bound. Plans do not count it: it is megabytes whatever the model, and which processor will train is
// not known.
double most_scratch(const Case& c) {
  const at::TensorOptions type = std::string(c.precision) == "bf16" ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = at::zeros({c.rows * c.length, c.hidden}, type);
  int64_t most = 0;
  for (const int64_t width : {c.hidden, c.inner, c.vocab}) {
    const at::Tensor weight = at::zeros({width, c.hidden}, type), grad = at::zeros({x.size(0), width}, type);
    most = std::max({most, scratch_of([&] { return kernels::product(x, weight); }),
                     scratch_of([&] { return kernels::product(grad, weight.t()); }),
                     scratch_of([&] { return kernels::product(grad.t(), x.t()); })});
  }
  return static_cast<double>(most);
}

// Bytes that a plan counts and a step without recomputation has given back by then: what the gated product gave, which
// the gradient of `down` is done with before those of gate and up are made. What products pack hides it, or does not.
double most_excess(const Case& c) {
  if (c.recompute != models::Recompute::kNone) return 0;
  return static_cast<double>(c.rows * c.length * c.inner) * (std::string(c.precision) == "bf16" ? 2 : 4);
}

TEST(PlanActivations, PeaksOfRealSteps) {
  using models::Recompute;
  const Case cases[] = {
      {"many layers", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kNone, "fp32"},
      {"many layers", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kNone, "bf16"},
      {"elementwise", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kElementwise, "fp32"},
      {"gate and up", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kGateUp, "fp32"},
      {"whole blocks", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kBlock, "fp32"},
      {"whole blocks", 128, 384, 512, 8, 4, 2, 2, 256, Recompute::kBlock, "bf16"},
      {"a large vocabulary", 64, 160, 32000, 2, 4, 4, 2, 512, Recompute::kNone, "fp32"},
      {"a large vocabulary", 64, 160, 32000, 2, 4, 4, 2, 128, Recompute::kNone, "fp32"},
      {"a tied vocabulary", 256, 512, 16384, 4, 4, 4, 1, 128, Recompute::kGateUp, "fp32", true},
      {"a tied vocabulary", 256, 512, 16384, 4, 4, 4, 2, 256, Recompute::kNone, "bf16", true},
      {"wide heads", 128, 128, 512, 4, 4, 4, 2, 256, Recompute::kNone, "fp32"},
      {"wide heads", 128, 128, 256, 4, 4, 4, 2, 256, Recompute::kBlock, "fp32"},
      {"one layer", 128, 384, 64, 1, 4, 2, 2, 256, Recompute::kNone, "fp32"},
      {"one layer", 128, 384, 64, 1, 4, 2, 2, 256, Recompute::kElementwise, "fp32"},
      {"long rows", 128, 384, 256, 6, 4, 2, 1, 2048, Recompute::kGateUp, "bf16"},
      {"experts", 128, 384, 512, 6, 4, 2, 2, 256, Recompute::kNone, "fp32", false, "mixtral"},
      {"experts", 128, 384, 512, 6, 4, 2, 2, 256, Recompute::kGateUp, "bf16", false, "qwen3_moe"},
      {"experts", 128, 384, 512, 6, 4, 2, 2, 256, Recompute::kBlock, "fp32", false, "mixtral"},
      {"latent attention", 128, 384, 512, 6, 4, 4, 2, 256, Recompute::kNone, "fp32", false, "deepseek_v2"},
  };
  std::printf("%-20s %-12s %-6s %12s %12s %8s\n", "", "recompute", "", "measured", "planned", "error");
  for (const Case& c : cases) {
    plan::Setup setup;
    setup.precision = parse_planned_precision(c.precision);
    setup.transport = Transport::kGloo;
    setup.work.microbatch_sequences = c.rows;
    setup.work.sequence_length = c.length;
    setup.work.recompute = c.recompute;
    const Report report = make_report(decoder_model(c.what, config_of(c)), setup);
    const int64_t planned = report.memory[Part::kActivations] + report.memory[Part::kLoss];
    testing::run_ranks(1, [&](const World& world) {
      const int64_t measured = measured_peak(world, c);
      const double error = 100 * (static_cast<double>(planned) / static_cast<double>(measured) - 1);
      std::printf("%-20s %-12s %-6s %12ld %12ld %+7.2f%%  %s\n", c.what, std::string(name(c.recompute)).c_str(),
                  c.precision, measured, planned, error, report.memory.where.c_str());
      EXPECT_LE(static_cast<double>(planned), 1.05 * static_cast<double>(measured) + most_excess(c)) << c.what;
      EXPECT_GE(static_cast<double>(planned), 0.95 * static_cast<double>(measured) - most_scratch(c)) << c.what;
    });
  }
}

// A head that rests as codes is whole while the loss is computed, in what is computed with, and is gone after it.
TEST(PlanActivations, ALossOverCodesHoldsWhatRealOnesHold) {
  for (const bool tied : {false, true}) {
    for (const auto& [rows, length] : {std::pair<int64_t, int64_t>{1, 256}, {8, 256}}) {
      const Case c{"codes", 512, 256, 20000, 1, 4, 2, rows, length, models::Recompute::kNone, "bf16", tied};
      train::Config config;
      config.tune.method = "lora";
      config.tune.base = "nf4_all";
      config.shard.precision = c.precision;
      const PlannedModel model = train::planned_model(config, {config_of(c), {}, false});
      plan::Setup setup;
      setup.precision = parse_planned_precision(c.precision);
      setup.transport = Transport::kGloo;
      setup.work.microbatch_sequences = rows;
      setup.work.sequence_length = length;
      const Activations planned = plan_activations(model, setup);

      models::Decoder decoder(config_of(c), at::kBFloat16);
      train::keep_as_codes(decoder, train::BaseFormat::kNf4All);
      const at::Tensor hidden = at::zeros({rows, length, c.hidden}, at::kBFloat16).requires_grad_();
      const at::Tensor targets = at::arange(rows * length, at::kLong);
      const auto account = std::make_shared<PeakBytes>();
      {
        const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
        const at::Tensor loss = decoder->loss_of(hidden, targets);
        EXPECT_LE(account->held(), planned.loss_kept + 64);
        loss.backward();
      }
      const double measured = static_cast<double>(account->peak());
      const auto expected = static_cast<double>(planned.loss_kept + planned.loss_working);
      EXPECT_LE(expected, 1.03 * measured) << (tied ? "tied, " : "") << rows << " rows";
      EXPECT_GE(expected, 0.97 * measured - most_scratch(c)) << (tied ? "tied, " : "") << rows << " rows";
      std::printf("loss over codes: %.0f planned, %.0f measured, at most %.0f of scratch\n", expected, measured,
                  most_scratch(c));
    }
  }
}

}  // namespace
}  // namespace fsdp::plan::activations_test
