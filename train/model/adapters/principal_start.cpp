#include "train/model/adapters/principal_start.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/base/agreement.h"
#include "train/model/adapters/element_reader.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

constexpr std::string_view kFirst = ".lora_A.weight";
constexpr std::string_view kSecond = ".lora_B.weight";
constexpr std::string_view kWeightOfMap = ".weight";
// Of the search for a subspace: vectors beside those that are wanted, and rounds.
constexpr int64_t kMoreVectors = 16;
constexpr int kRounds = 16;

// Sums of one thread are the same everywhere.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

struct Decomposed {
  at::Tensor u, s, vh;
};

Decomposed decompose(const at::Tensor& matrix) {
  auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  return {u, s, vh};
}

// Of the subspace of `count` vectors that powers of W W^T turn random ones into.
Decomposed decompose_subspace(const at::Tensor& weight, int64_t count, uint64_t seed, const std::string& name) {
  at::Tensor vectors = at::empty({weight.size(1), count}, at::kFloat);
  models::fill_normal(vectors, 1, seed, name);
  at::Tensor basis = std::get<0>(at::linalg_qr(weight.matmul(vectors)));
  for (int round = 0; round < kRounds; ++round) {
    vectors = std::get<0>(at::linalg_qr(weight.t().matmul(basis)));
    basis = std::get<0>(at::linalg_qr(weight.matmul(vectors)));
  }
  Decomposed small = decompose(basis.t().matmul(weight));
  return {basis.matmul(small.u), small.s, small.vh};
}

at::Tensor signs_of_columns(const at::Tensor& u) {
  const at::Tensor largest = u.gather(0, u.abs().argmax(0, /*keepdim=*/true));
  return at::where(largest < 0, -at::ones_like(largest), at::ones_like(largest)).squeeze(0);
}

// A map with an adapter.
struct PrincipalMap {
  std::string name;
  int64_t out = 0, in = 0;
};

// Of all stages, in the model's order.
std::vector<PrincipalMap> principal_maps(const ShardedModel& model) {
  std::vector<PrincipalMap> maps;
  for (const WholeTensor& tensor : whole_tensors(model)) {
    if (tensor.name.ends_with(kFirst))
      maps.push_back({tensor.name.substr(0, tensor.name.size() - kFirst.size()), 0, tensor.sizes[1]});
    if (tensor.name.ends_with(kSecond)) maps.back().out = tensor.sizes[0];  // follows its twin
  }
  return maps;
}

void check_rank(const PrincipalMap& map, int64_t rank) {
  const int64_t most = std::min(map.out, map.in);
  if (rank <= most) return;
  throw Error(ErrorCode::kUsage, "[tune] tune.lora_init: got pissa of rank " + std::to_string(rank) + " for " +
                                     map.name + ", which has " + std::to_string(most) +
                                     " singular values, expected that many or less. Set tune.lora_rank.");
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const float* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

// A and then B, flattened.
at::Tensor flat_factors(const PrincipalMap& map, const io::ModelFolder& folder, const models::DecoderConfig& config,
                        const models::LoraConfig& lora, uint64_t seed) {
  const at::Tensor weight = at::empty({map.out, map.in}, at::kFloat);
  ElementReader reader(folder, models::stored_parts(config, {map.name + std::string(kWeightOfMap), {map.out, map.in}}));
  reader.read(0, weight.numel(), weight.mutable_data_ptr<float>());
  const PrincipalFactors factors = principal_factors(weight, lora.rank, lora.scale(), seed, map.name);
  return at::cat({factors.a.view(-1), factors.b.view(-1)});
}

// This rank's part of a whole parameter.
void copy_part(const at::Tensor& leaf, const std::vector<float>& whole) {
  const at::Tensor values = at::tensor(at::ArrayRef<float>(whole));
  const at::Tensor mine = at::empty({leaf.numel()}, at::kFloat);
  for (const WholeRun& run : whole_runs(leaf))
    mine.narrow(0, run.begin, run.count).copy_(values.narrow(0, run.first, run.count));
  leaf.detach().view(-1).copy_(mine);
}

void take_part(const at::Tensor& leaf, const AdapterStart& start, const std::string& map) {
  const at::Tensor mine = leaf.detach().view(-1).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (const WholeRun& run : whole_runs(leaf))
    start.take_from(map, run.first, run.count, mine.mutable_data_ptr<float>() + run.begin);
  leaf.detach().view(-1).copy_(mine);
}

}  // namespace

PrincipalFactors principal_factors(const at::Tensor& weight, int64_t rank, double scale, uint64_t seed,
                                   const std::string& name) {
  const at::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard not_a_touch;
  const OneThread one;
  const int64_t size = std::min(weight.size(0), weight.size(1)), wanted = rank + kMoreVectors;
  const Decomposed parts =
      size <= kExactSize || wanted >= size ? decompose(weight) : decompose_subspace(weight, wanted, seed, name);
  const at::Tensor u = parts.u.narrow(1, 0, rank), vh = parts.vh.narrow(0, 0, rank);
  const at::Tensor roots = parts.s.narrow(0, 0, rank).div(scale).sqrt() * signs_of_columns(u);
  return {(vh * roots.unsqueeze(1)).contiguous(), (u * roots).contiguous()};
}

AdapterStart principal_start(const ShardedModel& model, const World& world, const io::ModelFolder& folder,
                             const models::LoraConfig& lora, uint64_t seed) {
  const at::NoGradGuard no_grad;
  AdapterStart start;
  start.scale = lora.scale();
  const std::vector<PrincipalMap> maps = principal_maps(model);
  for (const PrincipalMap& map : maps) check_rank(map, lora.rank);
  const auto num_ranks = static_cast<size_t>(world.size);
  for (size_t first = 0; first < maps.size(); first += num_ranks) {  // a rank has one of them
    const size_t mine = first + static_cast<size_t>(world.rank), end = std::min(first + num_ranks, maps.size());
    at::Tensor own;
    on_all_ranks(world, [&] {
      if (mine < end) own = flat_factors(maps[mine], folder, model.decoder->config(), lora, seed);
    });
    for (size_t i = first; i < end; ++i) {
      const auto [name, out, in] = maps[i];
      const int64_t of_a = lora.rank * in, of_b = lora.rank * out;
      const at::Tensor both = sum_over_ranks(world, i == mine ? own : at::zeros({of_a + of_b}, at::kFloat));
      start.factors[name] = {lora.rank, in, out, values_of(both.narrow(0, 0, of_a)),
                             values_of(both.narrow(0, of_a, of_b))};
    }
  }
  return start;
}

void begin_with(const ShardedModel& model, const AdapterStart& start) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    for (const std::string_view ending : {kFirst, kSecond, kWeightOfMap}) {
      if (!name.ends_with(ending)) continue;
      const std::string map = name.substr(0, name.size() - ending.size());
      const auto found = start.factors.find(map);
      if (found == start.factors.end()) continue;
      if (ending == kWeightOfMap) {
        take_part(leaf, start, map);
      } else {
        copy_part(leaf, ending == kFirst ? found->second.a : found->second.b);
      }
      break;
    }
  }
}

}  // namespace fsdp::train
