#include "train/model/nf4/load_codes.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "io/base/worker_threads.h"
#include "kernels/raw/formats/nf4.h"
#include "models/config/stored_parts.h"
#include "models/nf4_base.h"
#include "train/model/adapters/adapter_start.h"
#include "train/model/adapters/element_reader.h"
#include "train/model/nf4/stored_codes.h"

namespace fsdp::train {
namespace {

using kernels::raw::Nf4Layout;

// Elements that are read at once: whole blocks.
constexpr int64_t kCodedPiece = int64_t{1} << 20;
constexpr int kCodedReaders = 3;
constexpr std::string_view kWeight = ".weight";

// Bytes of a record that this rank has, and where they go.
struct OwnBytes {
  int64_t begin = 0, end = 0;
  uint8_t* data = nullptr;

  // Bytes [first, first + count) of the record, of which some may be ours.
  void take(int64_t first, int64_t count, const uint8_t* bytes) const {
    const int64_t from = std::max(first, begin), to = std::min(first + count, end);
    if (from < to) std::copy(bytes + (from - first), bytes + (to - first), data + (from - begin));
  }
  bool has_some_of(int64_t first, int64_t count) const { return first < end && begin < first + count; }
};

// Less what the adapters of `map` begin with, where they hold a part of it.
void encode_weight(ElementReader& reader, const Nf4Layout& layout, const OwnBytes& own, const AdapterStart* start,
                   const std::string& map) {
  std::vector<float> scales(static_cast<size_t>(layout.num_blocks()));
  std::vector<float> values(static_cast<size_t>(std::min(kCodedPiece, layout.numel)));
  std::vector<uint8_t> codes((values.size() + 1) / 2), head(static_cast<size_t>(layout.codes()));
  for (int64_t first = 0; first < layout.numel; first += kCodedPiece) {
    const int64_t count = std::min(kCodedPiece, layout.numel - first);
    const int64_t place = layout.codes() + first / 2, bytes = (count + 1) / 2;
    reader.read(first, count, values.data());
    if (start != nullptr) start->take_from(map, first, count, values.data());
    const bool is_ours = own.has_some_of(place, bytes);
    kernels::raw::nf4_encode(values.data(), count, scales.data() + first / kernels::raw::kNf4Block,
                             is_ours ? codes.data() : nullptr);
    if (is_ours) own.take(place, bytes, codes.data());
  }
  kernels::raw::nf4_encode_scales(scales.data(), layout, head.data());
  own.take(0, layout.codes(), head.data());
}

// ---- codes that files have

std::vector<char> read_all(const io::ModelFolder& folder, const std::string& name) {
  const io::TensorEntry& entry = *folder.find(name)->entry;
  std::vector<char> bytes(static_cast<size_t>(entry.numel()) * io::item_size(entry.dtype));
  folder.read(name, 0, entry.numel(), bytes.data());
  return bytes;
}

void copy_codes(const io::ModelFolder& folder, const models::CodedWeight& weight, const Nf4Layout& layout,
                const OwnBytes& own) {
  const auto part = [&](Beside which) { return read_all(folder, weight.name + suffix(which)); };
  const auto as_bytes = [](const auto& data) { return reinterpret_cast<const uint8_t*>(data); };
  WeightState state;
  try {
    const std::vector<char> text = part(Beside::kState);
    state = parse_state({text.begin(), text.end()});
    for (const Beside map : {Beside::kMap, Beside::kNestedMap}) {
      const std::vector<char> values = part(map);
      std::vector<float> numbers(values.size() / sizeof(float));
      std::copy(values.begin(), values.end(), reinterpret_cast<char*>(numbers.data()));
      check_map(map, numbers.data());
    }
    if (state.shape != std::vector<int64_t>{weight.out, weight.in}) throw std::invalid_argument("got another shape");
  } catch (const std::invalid_argument& problem) {
    throw io::Error(io::ErrorKind::kModel, "[load] " + io::in_quotes(folder.path().string()) + ": codes of " +
                                               io::in_quotes(weight.name) + ": " + problem.what() +
                                               ". Load the model in its own program and save it in bf16.");
  }
  own.take(0, layout.mean(), as_bytes(part(Beside::kNestedAbsmax).data()));
  own.take(layout.mean(), sizeof state.mean, as_bytes(&state.mean));
  own.take(layout.block_scales(), layout.num_blocks(), as_bytes(part(Beside::kAbsmax).data()));
  const int64_t from = std::max(own.begin, layout.codes());
  if (from < own.end) folder.read(weight.name, from - layout.codes(), own.end - from, own.data + (from - own.begin));
}

struct CodedLeaf {
  models::CodedWeight weight;
  at::Tensor leaf;
};

std::vector<CodedLeaf> coded_leaves(const ShardedModel& model) {
  const auto weights = models::coded_weights(model.decoder);
  std::vector<CodedLeaf> leaves;
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    if (const auto found = weights.find(name); found != weights.end()) leaves.push_back({found->second, leaf});
  }
  return leaves;
}

void load_leaf(const CodedLeaf& coded, const models::DecoderConfig& config, const io::ModelFolder& folder,
               const AdapterStart* start) {
  const auto& [weight, leaf] = coded;
  const LocalRange range = local_range(leaf);
  if (range.begin == range.end) return;
  const Nf4Layout layout{weight.out * weight.in};
  ElementReader reader(folder, models::stored_parts(config, {weight.name, {weight.out, weight.in}}));
  at::Tensor target = leaf.detach().view(-1);
  const at::Tensor host = target.is_cpu() ? target : at::empty(target.sizes(), at::kByte);
  const OwnBytes own{range.begin, range.end, host.mutable_data_ptr<uint8_t>()};
  if (has_codes_of(folder, weight.name)) {
    copy_codes(folder, weight, layout, own);
  } else {
    encode_weight(reader, layout, own, start, weight.name.substr(0, weight.name.size() - kWeight.size()));
  }
  if (!target.is_cpu()) target.copy_(host);
}

}  // namespace

bool has_codes_of(const io::ModelFolder& folder, const std::string& weight) {
  return folder.find(weight + suffix(Beside::kState)).has_value();
}

void check_codes_are_kept(const ShardedModel& model, const io::ModelFolder& folder) {
  std::set<std::string> kept;
  for (const auto& [parameter, weight] : models::coded_weights(model.decoder)) kept.insert(weight.name);
  for (const WholeTensor& tensor : whole_tensors(model)) {
    if (kept.contains(tensor.name) || !has_codes_of(folder, tensor.name)) continue;
    throw io::Error(
        io::ErrorKind::kModel,
        "[load] " + io::in_quotes(folder.path().string()) + ": tensor " + io::in_quotes(tensor.name) +
            ": got NF4 codes, expected numbers. Train adapters on them with tune.base = \"nf4_all\" (\"nf4\" "
            "if they are of linear maps of the blocks alone), or turn them into numbers with `fsdp import`.");
  }
}

std::vector<models::ExpectedTensor> expected_codes(const io::ModelFolder& folder, const WholeTensor& weight) {
  const Nf4Layout layout{weight.numel()};
  std::vector<models::ExpectedTensor> tensors = {{weight.name, {(layout.numel + 1) / 2, 1}, io::DType::U8}};
  for (const Beside part : kBeside) {
    const auto [dtype, numel] = stored_part(part, layout);
    std::vector<int64_t> shape = {numel};
    if (part == Beside::kState) {  // a text, of whatever length
      const std::vector<int64_t>& stored = folder.find(weight.name + suffix(part))->entry->shape;
      if (stored.size() == 1 && stored[0] <= kMostStateBytes) shape = stored;
    }
    tensors.push_back({weight.name + suffix(part), std::move(shape), dtype});
  }
  return tensors;
}

void load_codes(const ShardedModel& model, const io::ModelFolder& folder, const AdapterStart* start) {
  const std::vector<CodedLeaf> leaves = coded_leaves(model);
  const models::DecoderConfig& config = model.decoder->config();
  io::run_workers(leaves.size(), kCodedReaders, [&](io::WorkQueue& queue) {
    const at::NoGradGuard no_grad_here;
    const at::DisableRecordFunctionGuard not_a_touch;
    while (const auto i = queue.next()) load_leaf(leaves[*i], config, folder, start);
  });
  for (const CodedLeaf& coded : leaves) coded.leaf.unsafeGetTensorImpl()->bump_version();
}

}  // namespace fsdp::train
