#include "models/config/stored_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/config/stored_parts.h"

namespace fsdp::models {
namespace {

// A stored tensor is elements [first, first + numel) of a tensor of the base.
struct Origin {
  io::WeightTensor tensor;
  size_t base = 0;
  int64_t first = 0;
};

class StoredSource final : public io::WeightSource {
 public:
  StoredSource(std::unique_ptr<io::WeightSource> base, const DecoderConfig& config)
      : WeightSource(*base), base_(std::move(base)) {
    tensors_.clear();
    for (size_t i = 0; i < base_->tensors().size(); ++i) {
      const io::WeightTensor& whole = base_->tensors()[i];
      int64_t first = 0;
      for (NamedShape& part : stored_parts(config, {whole.name, whole.shape})) {
        origins_.push_back({{std::move(part.name), std::move(part.shape), whole.dtype, whole.type}, i, first});
        first += origins_.back().tensor.numel();
      }
    }
    std::sort(origins_.begin(), origins_.end(),
              [](const Origin& a, const Origin& b) { return a.tensor.name < b.tensor.name; });
    for (const Origin& origin : origins_) tensors_.push_back(origin.tensor);
  }

  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    std::vector<std::vector<size_t>> parts_of(base_->tensors().size());
    for (const size_t index : wanted) parts_of[origins_[index].base].push_back(index);
    std::vector<size_t> bases;
    for (size_t i = 0; i < parts_of.size(); ++i) {
      if (!parts_of[i].empty()) bases.push_back(i);
    }
    base_->read(bases, [&](size_t base, int64_t first, int64_t count, const void* elements) {
      const auto size = static_cast<int64_t>(io::item_size(*base_->tensors()[base].dtype));
      for (const size_t index : parts_of[base]) {
        const int64_t begin = origins_[index].first, end = begin + tensors_[index].numel();
        const int64_t from = std::max(first, begin), to = std::min(first + count, end);
        if (from < to) sink(index, from - begin, to - from, static_cast<const char*>(elements) + (from - first) * size);
      }
    });
  }

 private:
  std::unique_ptr<io::WeightSource> base_;
  std::vector<Origin> origins_;  // of each of tensors_
};

}  // namespace

std::unique_ptr<io::WeightSource> with_stored_names(std::unique_ptr<io::WeightSource> source) {
  const auto& tensors = source->tensors();
  const bool is_stacked = std::any_of(tensors.begin(), tensors.end(), [](const io::WeightTensor& tensor) {
    return tensor.name.ends_with(".mlp.experts.gate_up_proj");
  });
  if (!is_stacked || !source->config()) return source;
  const DecoderConfig config = parse_decoder_config(*source->config(), source->path().string());
  return std::make_unique<StoredSource>(std::move(source), config);
}

}  // namespace fsdp::models
