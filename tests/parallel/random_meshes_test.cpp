// Meshes, models, strategies and microbatches by chance, in fp64 and fp32: ranks train as the definition of the model
// does on whole tensors in fp64. To repeat a failure: FSDP_TEST_FIRST_MESH=<number of the message> FSDP_TEST_MESHES=1;
// all that are promised: FSDP_TEST_MESHES=200. FSDP_TEST_DTYPE=fp32 or fp64 leaves out the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/parallel/mesh_decoder.h"
#include "tests/support/close.h"

namespace fsdp::random_meshes_test {
namespace {

using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)
using pipeline::Pipeline;

constexpr int kSteps = 2;
constexpr unsigned kPromised = 200;
constexpr double kRate = 0.05, kMostNorm = 0.5;

// What every step leaves, as one rank computes it.
struct Expected {
  std::vector<double> losses, norms;
  std::vector<Weights> gradients;
  Weights start, end;
};

Expected train_whole(const MeshCase& mesh_case) {
  Expected expected;
  expected.start = draw_weights(mesh_case);
  for (auto& [name, start] : expected.start) start = start.to(mesh_case.dtype).to(torch::kDouble);
  Weights weights;
  std::vector<torch::Tensor> all;
  for (const auto& [name, start] : expected.start) {
    all.push_back(weights[name] = start.clone().requires_grad_());
  }
  torch::optim::SGD sgd(all, kRate);
  for (int step = 0; step < kSteps; ++step) {
    const MeshBatch batch(mesh_case, static_cast<uint64_t>(step));
    sgd.zero_grad();
    const torch::Tensor loss = whole_loss(mesh_case, weights, batch) / batch.num_targets();
    loss.backward();
    expected.losses.push_back(loss.item<double>());
    expected.gradients.emplace_back();
    for (const auto& [name, weight] : weights) expected.gradients.back()[name] = weight.grad().clone();
    expected.norms.push_back(torch::nn::utils::clip_grad_norm_(all, kMostNorm));
    sgd.step();
  }
  for (const auto& [name, weight] : weights) expected.end[name] = weight.detach();
  return expected;
}

// A rank with its stages.
class Trainee {
 public:
  Trainee(const MeshCase& mesh_case, const World& world)
      : mesh_case_(mesh_case), mesh_(Mesh::parallel(world, mesh_case.axes)) {
    // Layers connect the ranks, which must not wait for each other while one has the generator.
    for (const char* axis : {"cp", "tp", "ep"}) connected_.push_back(parallel::Ranks::along(mesh_, axis));
    const int64_t stages = mesh_case.stages();
    for (int64_t stage = mesh_.index("pp"); stage < stages; stage += mesh_.size("pp")) {
      const int64_t first = mesh_case.layers * stage / stages, last = mesh_case.layers * (stage + 1) / stages;
      auto part = make_seeded(9, [&] { return std::make_shared<MeshPart>(mesh_case, mesh_, first, last); });
      part->to(mesh_case.dtype);
      units_.push_back(part->shard(mesh_case, mesh_));
      add_stage(part);
      module_->push_back(part);
      parts_.push_back(std::move(part));
    }
    if (mesh_.size("pp") > 1) pipeline_ = std::make_unique<Pipeline>(mesh_, stages_, mesh_case.order);
    leaves_ = parameters(*module_);
  }

  torch::nn::ModuleList module() const { return module_; }
  const std::vector<torch::Tensor>& leaves() const { return leaves_; }

  // A forward and backward of this rank's rows. Returns the mean over all targets.
  double step(const MeshBatch& batch) {
    zero_grad(*module_);
    ids_ = own_microbatches(batch.ids, /*cuts_tokens=*/true);
    targets_ = own_microbatches(batch.targets, /*cuts_tokens=*/true);
    documents_ = own_microbatches(batch.documents, /*cuts_tokens=*/false);
    int64_t count = 0;
    for (const torch::Tensor& targets : targets_) count += targets.ne(-100).sum().item<int64_t>();
    for (Unit& unit : units_) unit.set_gradient_scale(GradScale::per_token(count));
    const double loss = pipeline_ ? step_in_stages() : step_at_once();
    const int copies = mesh_.size("tp") * mesh_.size("pp");
    const torch::Tensor sum = sum_over_ranks(mesh_.world(), torch::full({1}, loss, torch::kDouble));
    return sum.item<double>() / copies / static_cast<double>(batch.num_targets());
  }

  double clip() {
    return (pipeline_ ? pipeline_->clip_grad_norm_(kMostNorm) : clip_grad_norm_(leaves_, kMostNorm)).item<double>();
  }

 private:
  void add_stage(const std::shared_ptr<MeshPart>& part) {
    const auto forward = [this, part](const at::Tensor& x, int microbatch) {
      return part->forward(x, documents_[static_cast<size_t>(microbatch)]);
    };
    const auto names = pipeline::name_tensors(*part, pipeline::numbered_from("blocks.", part->first));
    stages_.push_back({forward, parameters(*part), units_.back(), names});
  }

  std::vector<torch::Tensor> own_microbatches(const torch::Tensor& x, bool cuts_tokens) const {
    const int64_t place =
        (mesh_.index("replicate") * mesh_.size("shard") + mesh_.index("shard")) * mesh_.size("ep") + mesh_.index("ep");
    const int64_t rows = x.size(0) / mesh_case_.data_ranks();
    torch::Tensor own = x.narrow(0, place * rows, rows);
    if (cuts_tokens) own = parallel::zigzag_part(own, 1, mesh_.index("cp"), mesh_.size("cp"));
    return own.chunk(mesh_case_.microbatches);
  }

  double step_in_stages() {
    return pipeline_->step(
        ids_,
        [&](const at::Tensor& logits, int microbatch) {
          return parts_.back()->loss(logits, targets_[static_cast<size_t>(microbatch)]);
        },
        pipeline::LossesAre::kAdded);
  }

  double step_at_once() {
    double sum = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const Microbatch scope(units_[0], i + 1 == ids_.size());
      const torch::Tensor loss = parts_[0]->loss(parts_[0]->forward(ids_[i], documents_[i]), targets_[i]);
      loss.backward();
      sum += loss.item<double>();
    }
    return sum;
  }

  const MeshCase& mesh_case_;
  Mesh mesh_;
  std::vector<std::shared_ptr<parallel::Ranks>> connected_;
  std::vector<std::shared_ptr<MeshPart>> parts_;
  std::vector<Unit> units_;
  std::vector<pipeline::Stage> stages_;
  torch::nn::ModuleList module_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<torch::Tensor> leaves_;
  std::vector<torch::Tensor> ids_, targets_, documents_;  // of each microbatch
};

// How far numbers may be apart, by their size: those of all tensors together by their norm, those of one by its largest
// number, at least this part of the largest of all. For the true gradient of a bias of keys is zero, of which fp32
// leaves what its terms were rounded by.
struct Bounds {
  double loss, norm, all, tensor, least_size;
};
Bounds bounds_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? Bounds{1e-12, 1e-11, 1e-11, 1e-12, 0} : Bounds{1e-6, 1e-5, 1e-5, 3e-5, 0.1};
}

void expect_all_close(const StateDict& actual, const Weights& expected, const Bounds& bounds, const std::string& what) {
  double largest = 0, squares = 0, squared_difference = 0;
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(actual.tensors.count(name), 1U) << what << " " << name;
    if (tensor.numel() == 0) continue;
    largest = std::max(largest, tensor.abs().max().item<double>());
    squares += tensor.square().sum().item<double>();
    squared_difference += (actual.tensors.at(name).to(torch::kDouble) - tensor).square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(squared_difference / squares), bounds.all) << what << ", all together";
  for (const auto& [name, tensor] : expected) {
    const torch::Tensor own = actual.tensors.at(name).to(torch::kDouble);
    const double size = tensor.numel() > 0 ? tensor.abs().max().item<double>() : 0;
    const double share = std::max(1.0, bounds.least_size * largest / std::max(size, 1e-3));
    expect_close(own, tensor, bounds.tensor * share, what + " " + name);
  }
}

void expect_equal_training(const MeshCase& mesh_case, const World& world, const Expected& expected) {
  Trainee trainee(mesh_case, world);
  StateDict dict = full_state_dict(*trainee.module());
  for (const auto& [name, tensor] : expected.start) {
    ASSERT_EQ(dict.tensors.count(name), 1U) << name;
    dict.tensors[name] = tensor.to(mesh_case.dtype);
  }
  load_full_state_dict(*trainee.module(), dict);
  torch::optim::SGD sgd(trainee.leaves(), kRate);
  const Bounds bounds = bounds_of(mesh_case.dtype);
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = trainee.step(MeshBatch(mesh_case, step));
    EXPECT_NEAR(loss / expected.losses[step], 1, bounds.loss) << "loss of step " << step;
    expect_all_close(full_gradients(*trainee.module()), expected.gradients[step], bounds, c10::str("gradient ", step));
    EXPECT_NEAR(trainee.clip() / expected.norms[step], 1, bounds.norm) << "norm of step " << step;
    sgd.step();
  }
  expect_all_close(full_state_dict(*trainee.module()), expected.end, bounds, "weight");
}

unsigned number_from(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? static_cast<unsigned>(std::stoul(text)) : otherwise;
}

void expect_meshes_train(const std::string& dtype, unsigned usual_count) {
  const char* wanted = std::getenv("FSDP_TEST_DTYPE");
  if (wanted != nullptr && wanted != dtype) GTEST_SKIP() << "FSDP_TEST_DTYPE=" << wanted;
  const unsigned first = number_from("FSDP_TEST_FIRST_MESH", 1), count = number_from("FSDP_TEST_MESHES", usual_count);
  for (unsigned seed = first; seed < first + count; ++seed) {
    MeshCase mesh_case = random_mesh_case(seed);
    if (dtype == "fp32") mesh_case.dtype = at::kFloat;
    SCOPED_TRACE(mesh_case.text());
    const Expected expected = train_whole(mesh_case);
    ASSERT_NO_THROW(run_ranks(mesh_case.world(), [&](const World& world) {
      SCOPED_TRACE(mesh_case.text());
      expect_equal_training(mesh_case, world, expected);
    }));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomMeshes, TrainAsOneRankDoes) { expect_meshes_train("fp64", 8); }

TEST(RandomMeshes, TrainInFp32AsOneRankDoesInFp64) { expect_meshes_train("fp32", 2); }

// Nothing is left out: no two or three axes are refused together.
TEST(RandomMeshes, EveryPairAndTripleOfAxesComes) {
  std::map<std::set<std::string>, int> times;
  for (unsigned seed = 1; seed <= kPromised; ++seed) {
    const MeshCase mesh_case = random_mesh_case(seed);
    EXPECT_LE(mesh_case.world(), 8);
    ++times[mesh_case.several()];
  }
  size_t pairs = 0, triples = 0;
  for (const auto& [axes, count] : times) {
    EXPECT_GE(count, 4) << ::testing::PrintToString(axes);
    pairs += axes.size() == 2 ? 1 : 0;
    triples += axes.size() == 3 ? 1 : 0;
  }
  EXPECT_EQ(pairs, 15U);
  EXPECT_EQ(triples, 20U);
}

}  // namespace
}  // namespace fsdp::random_meshes_test
