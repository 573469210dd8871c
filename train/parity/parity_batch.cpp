// Parity with the logits, loss and gradients of one batch, plain or packed.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "io/base/error.h"
#include "kernels/operators/cross_entropy.h"
#include "train/data/batch.h"
#include "train/model/stored_tensor.h"
#include "train/parity/difference.h"
#include "train/parity/parity_checks.h"

namespace fsdp::train {
namespace {

// This rank's part of the batch, with what is expected of it.
struct RankPart {
  at::Tensor input_ids_BT;
  at::Tensor labels_BT;
  models::Sequence sequence;
  at::Tensor logits_BTV;  // expected
  bool counts = true;     // false: other ranks have all the work, this one adds zero
};

// Rows of the batch are dealt out.
RankPart part_of_rows(const io::SafetensorsFile& file, const World& world) {
  const at::Tensor input_ids_BT = read_tensor(file, "input_ids");
  const Part part = part_of(input_ids_BT.size(0), world.rank, world.size);
  RankPart result;
  result.counts = part.begin < part.end;
  const int64_t begin = result.counts ? part.begin : 0;
  const int64_t count = std::max<int64_t>(1, part.end - part.begin);
  result.input_ids_BT = input_ids_BT.narrow(0, begin, count).contiguous();
  result.labels_BT = read_tensor(file, "labels").narrow(0, begin, count).contiguous();
  result.logits_BTV = read_tensor(file, "logits").narrow(0, begin, count);
  return result;
}

// Documents of the one row are dealt out; a rank's documents are consecutive and become its row.
RankPart part_of_documents(const io::SafetensorsFile& file, const World& world) {
  const at::Tensor starts = read_tensor(file, "cu_seqlens").to(at::kLong);
  const auto start = [&](int64_t document) { return starts[document].item<int64_t>(); };
  const Part part = part_of(starts.numel() - 1, world.rank, world.size);
  RankPart result;
  result.counts = part.begin < part.end;
  const int64_t first = result.counts ? part.begin : 0;
  const int64_t last = result.counts ? part.end : 1;
  const int64_t begin = start(first);
  const int64_t count = start(last) - begin;
  result.input_ids_BT = read_tensor(file, "input_ids").narrow(1, begin, count).contiguous();
  result.labels_BT = read_tensor(file, "labels").narrow(1, begin, count).contiguous();
  result.logits_BTV = read_tensor(file, "logits").narrow(1, begin, count);
  result.sequence.cu_seqlens = (starts.narrow(0, first, last - first + 1) - begin).to(at::kInt);
  return result;
}

// Number of targets of the whole batch, whoever has them.
int64_t count_targets(const io::SafetensorsFile& file) {
  return std::max<int64_t>(1, kernels::count_valid_targets(models::shift_labels(read_tensor(file, "labels"))));
}

void check_fit(const io::SafetensorsFile& file, const models::DecoderConfig& config) {
  const io::TensorEntry* logits = file.find("logits");
  if (logits == nullptr || logits->shape.size() != 3 || logits->shape[2] != config.vocab_size) {
    throw io::Error(io::ErrorKind::kModel,
                    "[parity] " + file.path().string() + ": expected logits [B, T, " +
                        std::to_string(config.vocab_size) +
                        "]. The file belongs to another model, or is no file of expected values.");
  }
}

struct Outcome {
  Difference logits;
  double loss = 0;  // summed over the ranks
};

Outcome forward_backward(const RankPart& part, int64_t num_targets, const World& world, ShardedModel& model) {
  zero_grad(*model.decoder);
  const c10::Device device = model.decoder->device();
  const at::Tensor logits_BTV = model.decoder->forward(part.input_ids_BT.to(device), part.sequence);
  at::Tensor targets_BT = models::shift_labels(part.labels_BT);
  if (!part.counts) {
    targets_BT.fill_(kernels::kIgnoreIndex);
  }
  const at::Tensor loss =
      kernels::cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten().to(device), kernels::Reduction::kSum) /
      static_cast<double>(num_targets);
  loss.backward();
  Outcome outcome;
  if (part.counts) {
    outcome.logits.add(logits_BTV, part.logits_BTV);
  }
  outcome.loss = sum_over_ranks(world, loss.detach().to(at::kCPU).to(at::kDouble).reshape({1})).item<double>();
  return outcome;
}

// Gradients the file knows, each rank its slice. Names of parameters that the model lacks are an error.
std::vector<ParityRow> compare_gradients(const io::SafetensorsFile& file, const ShardedModel& model, const World& world,
                                         const ParityTolerances& tolerances) {
  std::vector<std::string> names;
  std::vector<Difference> differences;
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    if (file.find("grad." + name) == nullptr) {
      continue;
    }
    const LocalRange range = local_range(leaf);
    Difference difference;
    if (range.begin < range.end) {
      const at::Tensor gradient = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
      difference.add(gradient, read_slice(file, "grad." + name, range.begin, range.end));
    }
    names.push_back("grad." + name);
    differences.push_back(difference);
  }
  differences = join_over_ranks(world, differences);
  std::vector<ParityRow> rows;
  for (size_t i = 0; i < names.size(); ++i) {
    if (differences[i].compared < file.find(names[i])->numel()) {
      throw Error(ErrorCode::kInternal, "[parity] " + names[i] + ": only " + std::to_string(differences[i].compared) +
                                            " elements are on any rank");
    }
    rows.push_back(
        {names[i], differences[i].max_abs, differences[i].relative(), tolerances.grad_abs, tolerances.grad_rel});
  }
  const auto expected = std::count_if(file.tensors().begin(), file.tensors().end(),
                                      [](const io::TensorEntry& entry) { return entry.name.rfind("grad.", 0) == 0; });
  if (expected != static_cast<std::ptrdiff_t>(rows.size())) {
    throw io::Error(io::ErrorKind::kModel, "[parity] " + file.path().string() + ": " + std::to_string(expected) +
                                               " gradients, of which the model has " + std::to_string(rows.size()) +
                                               ". The file belongs to another model.");
  }
  return rows;
}

ParityReport check_file(const std::filesystem::path& path,
                        RankPart (*part_of_rank)(const io::SafetensorsFile&, const World&),
                        const ParityOptions& options, const World& world, ShardedModel& model) {
  const io::SafetensorsFile file = io::SafetensorsFile::open(path);
  check_fit(file, model.decoder->config());
  const Outcome outcome = forward_backward(part_of_rank(file, world), count_targets(file), world, model);
  const ParityTolerances tolerances = parity_tolerances(options);
  const Difference logits = join_over_ranks(world, {outcome.logits}).front();
  Difference loss;
  loss.add(at::scalar_tensor(outcome.loss, at::kDouble), read_tensor(file, "loss"));

  ParityReport report{path.string(), {}};
  report.rows.push_back({"logits", logits.max_abs, logits.relative(), tolerances.logits_abs, {}});
  report.rows.push_back({"loss", loss.max_abs, loss.relative(), tolerances.loss_abs, {}});
  for (ParityRow& row : compare_gradients(file, model, world, tolerances)) {
    report.rows.push_back(std::move(row));
  }
  zero_grad(*model.decoder);
  return report;
}

}  // namespace

ParityReport check_expected(const ParityOptions& options, const World& world, ShardedModel& model) {
  return check_file(*options.expected, part_of_rows, options, world, model);
}

ParityReport check_packed(const ParityOptions& options, const World& world, ShardedModel& model) {
  return check_file(*options.packed, part_of_documents, options, world, model);
}

}  // namespace fsdp::train
