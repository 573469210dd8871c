#include "train/data/packed_split.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

std::vector<PackedSplit::Source> one_source(io::TokenDataset dataset) {
  std::vector<PackedSplit::Source> sources;
  sources.push_back({std::move(dataset), 1});
  return sources;
}

}  // namespace

PackedSplit::PackedSplit(io::TokenDataset dataset, int64_t sequence_length)
    : PackedSplit(one_source(std::move(dataset)), sequence_length) {}

PackedSplit::PackedSplit(std::vector<Source> sources, int64_t sequence_length)
    : sources_(std::move(sources)), sequence_length_(sequence_length), first_sequence_{0} {
  for (const Source& source : sources_) {
    if (is_of_pairs()) {
      find_pairs(source.dataset);
      continue;
    }
    const int64_t inputs = std::max<int64_t>(0, source.dataset.num_tokens() - 1);
    first_sequence_.push_back(first_sequence_.back() + inputs / sequence_length +
                              (inputs % sequence_length != 0 ? 1 : 0));
  }
}

void PackedSplit::find_pairs(const io::TokenDataset& dataset) {
  std::vector<int64_t>& starts = document_starts_.emplace_back(dataset.document_starts(0, dataset.num_tokens()));
  starts.push_back(dataset.num_tokens());
  const auto num_pairs = static_cast<int64_t>(starts.size()) / 2;
  int64_t longest = 0, num_long = 0;
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const auto first = static_cast<size_t>(2 * pair);
    const int64_t inputs = starts[first + 2] - starts[first] - 1;  // the last token is predicted only
    longest = std::max(longest, inputs);
    if (inputs > sequence_length_) ++num_long;
  }
  if (num_long > 0) {
    throw Error(ErrorCode::kData, "[train] " + dataset.folder().string() + ": got " + std::to_string(num_long) +
                                      " of " + std::to_string(num_pairs) + " pairs that are longer than " +
                                      "data.sequence_length = " + std::to_string(sequence_length_) +
                                      ", expected none: a sequence holds both answers with their prompts. Set it to " +
                                      std::to_string(longest) + ", or prepare the data without them.");
  }
  first_sequence_.push_back(first_sequence_.back() + num_pairs);
}

int64_t PackedSplit::num_tokens() const {
  return std::accumulate(sources_.begin(), sources_.end(), int64_t{0},
                         [](int64_t sum, const Source& source) { return sum + source.dataset.num_tokens(); });
}

double PackedSplit::fill_rate() const {
  double inputs = 0;
  for (const Source& source : sources_) {
    inputs += static_cast<double>(std::max<int64_t>(0, source.dataset.num_tokens() - 1));
  }
  return inputs / std::max(1.0, static_cast<double>(num_sequences()) * static_cast<double>(sequence_length_));
}

double PackedSplit::target_rate() const {
  double targets = 0;
  for (const Source& source : sources_) {
    const io::TokenDataset& data = source.dataset;
    targets += static_cast<double>(
        std::max<int64_t>(0, std::min(data.num_answers(), data.num_tokens() - data.num_documents())));
  }
  return targets / std::max(1.0, static_cast<double>(num_sequences()) * static_cast<double>(sequence_length_));
}

PackedSplit::Window PackedSplit::window(int64_t sequence) const {
  const auto after = std::upper_bound(first_sequence_.begin(), first_sequence_.end(), sequence);
  const auto source = static_cast<size_t>(after - first_sequence_.begin()) - 1;
  const io::TokenDataset& dataset = sources_[source].dataset;
  if (is_of_pairs()) {
    const std::vector<int64_t>& starts = document_starts_[source];
    const auto pair = static_cast<size_t>(2 * (sequence - first_sequence_[source]));
    return {&dataset, starts[pair], starts[pair + 2] - starts[pair] - 1, starts[pair + 1] - starts[pair]};
  }
  const int64_t first = (sequence - first_sequence_[source]) * sequence_length_;
  return {&dataset, first, std::min(sequence_length_, dataset.num_tokens() - 1 - first)};
}

int64_t PackedSplit::num_targets(int64_t sequence) const {
  const Window place = window(sequence);
  const auto starts = place.dataset->document_starts(place.first_token + 1, place.num_inputs);
  if (!place.dataset->has_mask()) return place.num_inputs - static_cast<int64_t>(starts.size());
  std::vector<uint8_t> mask(static_cast<size_t>(place.num_inputs));
  place.dataset->read_mask(place.first_token + 1, place.num_inputs, mask.data());
  for (const int64_t start : starts) mask[static_cast<size_t>(start)] = 0;
  return std::count(mask.begin(), mask.end(), 1);
}

int64_t PackedSplit::num_targets(const std::vector<int64_t>& sequences) const {
  int64_t sum = 0;
  for (const int64_t sequence : sequences) {
    sum += num_targets(sequence);
  }
  return sum;
}

double PackedSplit::attention_work(int64_t sequence) const {
  const auto [dataset, first, inputs, chosen_end] = window(sequence);
  double work = 0;
  int64_t begin = 0;
  const auto end_at = [&](int64_t end) {
    const auto length = static_cast<double>(end - begin);
    work += length * (length + 1) / 2;
    begin = end;
  };
  for (const int64_t start : dataset->document_starts(first + 1, inputs)) end_at(start + 1);
  end_at(inputs);
  end_at(sequence_length_);  // padding, if any
  return work;
}

Example PackedSplit::read(int64_t sequence) const {
  const auto [dataset, first, inputs, chosen_end] = window(sequence);
  std::vector<int32_t> tokens(static_cast<size_t>(inputs) + 1);
  dataset->read(first, inputs + 1, tokens.data());

  Example example;
  example.chosen_end = chosen_end;
  example.pair_end = is_of_pairs() ? inputs : 0;
  example.inputs.assign(tokens.begin(), tokens.end() - 1);
  example.targets.assign(tokens.begin() + 1, tokens.end());
  example.segment_starts = {0};
  for (const int64_t start : dataset->document_starts(first + 1, inputs)) {
    example.targets[static_cast<size_t>(start)] = kNoTarget;
    if (start + 1 < inputs) {
      example.segment_starts.push_back(start + 1);
    }
  }
  if (dataset->has_mask()) {
    std::vector<uint8_t> mask(static_cast<size_t>(inputs));
    dataset->read_mask(first + 1, inputs, mask.data());
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) example.targets[i] = kNoTarget;
    }
  }
  if (inputs < sequence_length_) {
    example.segment_starts.push_back(inputs);
    example.inputs.resize(static_cast<size_t>(sequence_length_), 0);
    example.targets.resize(static_cast<size_t>(sequence_length_), kNoTarget);
  }
  return example;
}

}  // namespace fsdp::train
