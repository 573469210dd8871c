#include "app/nf4/coded_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/base/element_cast.h"
#include "io/base/error.h"
#include "io/weights/weights_copy.h"
#include "kernels/raw/formats/nf4.h"
#include "train/model/nf4/stored_codes.h"

namespace fsdp::app {
namespace {

using train::Beside;
using train::kBeside;
using train::stored_part;
using train::suffix;

namespace raw = kernels::raw;

io::WeightTensor stored_as(std::string name, std::vector<int64_t> shape, io::DType dtype) {
  return {std::move(name), std::move(shape), dtype, std::string(io::name(dtype))};
}

bool is_map_of_a_block(const io::WeightTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.name.starts_with("model.layers.") && tensor.name.ends_with("_proj.weight");
}

// A matrix on its way: what has come, and what is known of it.
struct Encoding {
  std::vector<float> waiting;  // less than a block, until the last piece
  std::vector<float> scales;
  int64_t done = 0;  // elements
};

class CodedSource final : public io::WeightSource {
 public:
  explicit CodedSource(std::unique_ptr<io::WeightSource> base) : WeightSource(*base), base_(std::move(base)) {
    tensors_.clear();
    for (size_t i = 0; i < base_->tensors().size(); ++i) add(i);
    if (std::none_of(base_->tensors().begin(), base_->tensors().end(), is_map_of_a_block))
      throw io::Error(io::ErrorKind::kUsage,
                      "[nf4] got no linear map of a block, expected names such as "
                      "model.layers.0.mlp.up_proj.weight. Pass --dtype=bf16.");
    if (!config_) return;
    io::set_dtype(*config_, "bfloat16");
    (*config_)["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                         {"_load_in_4bit", true},
                                         {"_load_in_8bit", false},
                                         {"load_in_4bit", true},
                                         {"load_in_8bit", false},
                                         {"bnb_4bit_quant_type", "nf4"},
                                         {"bnb_4bit_use_double_quant", true},
                                         {"bnb_4bit_compute_dtype", "bfloat16"},
                                         {"bnb_4bit_quant_storage", "uint8"},
                                         {"llm_int8_skip_modules", {"lm_head"}},
                                         {"llm_int8_threshold", 6.0},
                                         {"llm_int8_has_fp16_weight", false},
                                         {"llm_int8_enable_fp32_cpu_offload", false}};
  }

  // Codes and what belongs to them are read together: whoever wants one wants all.
  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    std::vector<size_t> base_wanted;
    for (const size_t index : wanted)
      if (place_[origin_[index]] == index) base_wanted.push_back(origin_[index]);
    std::map<size_t, Encoding> encodings;
    std::vector<char> rounded;
    base_->read(base_wanted, [&](size_t origin, int64_t first, int64_t count, const void* elements) {
      const io::WeightTensor& from = base_->tensors()[origin];
      const size_t index = place_[origin];
      if (is_map_of_a_block(from)) {
        Encoding& encoding = encodings[origin];
        const size_t before = encoding.waiting.size();
        encoding.waiting.resize(before + static_cast<size_t>(count));
        io::cast_elements(*from.dtype, elements, io::DType::F32, encoding.waiting.data() + before, count);
        encode(from, index, encoding, sink);
        if (encoding.done == from.numel()) encodings.erase(origin);
        return;
      }
      const io::DType to = *tensors_[index].dtype;
      if (*from.dtype == to) return sink(index, first, count, elements);
      rounded.resize(static_cast<size_t>(count) * io::item_size(to));
      io::cast_elements(*from.dtype, elements, to, rounded.data(), count);
      sink(index, first, count, rounded.data());
    });
  }

 private:
  void add(size_t i) {
    const io::WeightTensor& tensor = base_->tensors()[i];
    const bool is_float = tensor.dtype && io::is_float(*tensor.dtype);
    place_.push_back(tensors_.size());
    if (!is_map_of_a_block(tensor)) {
      tensors_.push_back(is_float ? stored_as(tensor.name, tensor.shape, io::DType::BF16) : tensor);
      origin_.push_back(i);
      return;
    }
    if (!is_float)
      throw io::Error(io::ErrorKind::kUsage, "[nf4] tensor " + io::in_quotes(tensor.name) + ": got " + tensor.type +
                                                 ", expected BF16, F16 or F32. Convert the source with `fsdp import` "
                                                 "first.");
    const raw::Nf4Layout layout{tensor.numel()};
    tensors_.push_back(stored_as(tensor.name, {(layout.numel + 1) / 2, 1}, io::DType::U8));
    for (const Beside part : kBeside) {
      const auto [dtype, numel] = stored_part(part, layout);
      tensors_.push_back(stored_as(tensor.name + suffix(part), {numel}, dtype));
    }
    origin_.resize(tensors_.size(), i);
  }

  void encode(const io::WeightTensor& matrix, size_t index, Encoding& encoding, const io::PieceSink& sink) const {
    const raw::Nf4Layout layout{matrix.numel()};
    const auto there = static_cast<int64_t>(encoding.waiting.size());
    const bool is_last = encoding.done + there == layout.numel;
    const int64_t count = is_last ? there : there / raw::kNf4Block * raw::kNf4Block;
    if (!std::all_of(encoding.waiting.begin(), encoding.waiting.begin() + count,
                     [](float x) { return std::isfinite(x); }))
      throw io::Error(io::ErrorKind::kModel, "[nf4] " + io::in_quotes(path_.native()) + ": tensor " +
                                                 io::in_quotes(matrix.name) +
                                                 ": got a number that is not finite, which no code stands for. Export "
                                                 "it with --dtype=bf16, or an earlier checkpoint.");
    const size_t blocks = encoding.scales.size();
    encoding.scales.resize(blocks + static_cast<size_t>((count + raw::kNf4Block - 1) / raw::kNf4Block));
    std::vector<uint8_t> codes(static_cast<size_t>((count + 1) / 2));
    raw::nf4_encode(encoding.waiting.data(), count, encoding.scales.data() + blocks, codes.data());
    if (count > 0) sink(index, encoding.done / 2, static_cast<int64_t>(codes.size()), codes.data());
    encoding.waiting.erase(encoding.waiting.begin(), encoding.waiting.begin() + count);
    encoding.done += count;
    if (is_last) write_beside(matrix, index, layout, encoding.scales, sink);
  }

  void write_beside(const io::WeightTensor& matrix, size_t index, const raw::Nf4Layout& layout,
                    const std::vector<float>& scales, const io::PieceSink& sink) const {
    std::vector<uint8_t> head(static_cast<size_t>(layout.codes()));
    raw::nf4_encode_scales(scales.data(), layout, head.data());
    float mean = 0;
    std::memcpy(&mean, head.data() + layout.mean(), sizeof mean);
    const std::string state = train::state_text(matrix.shape, mean);
    for (const Beside part : kBeside) {
      const int64_t numel = stored_part(part, layout).numel;
      const void* from = part == Beside::kAbsmax         ? static_cast<const void*>(head.data() + layout.block_scales())
                         : part == Beside::kNestedAbsmax ? static_cast<const void*>(head.data())
                         : part == Beside::kNestedMap    ? static_cast<const void*>(raw::nf4_scale_values())
                         : part == Beside::kMap          ? static_cast<const void*>(raw::nf4_values())
                                                         : static_cast<const void*>(state.data());
      sink(++index, 0, numel, from);
    }
  }

  std::unique_ptr<io::WeightSource> base_;
  std::vector<size_t> place_;   // base tensor -> ours; what belongs to codes comes right behind
  std::vector<size_t> origin_;  // of tensors_
};

}  // namespace

std::unique_ptr<io::WeightSource> open_coded_source(std::unique_ptr<io::WeightSource> source) {
  return std::make_unique<CodedSource>(std::move(source));
}

}  // namespace fsdp::app
