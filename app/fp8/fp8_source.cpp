#include "app/fp8/fp8_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "io/base/element_cast.h"
#include "io/base/error.h"
#include "io/weights/weights_copy.h"
#include "kernels/raw/formats/fp8_bytes.h"

namespace fsdp::app {
namespace {

namespace raw = kernels::raw;

constexpr int64_t kBlock = 128;
constexpr const char* kScales = "_scale_inv";
constexpr const char* kWeight = ".weight";

std::vector<int64_t> blocks_of(const std::vector<int64_t>& shape) {
  return {(shape[0] + kBlock - 1) / kBlock, (shape[1] + kBlock - 1) / kBlock};
}

io::WeightTensor as_stored(std::string name, std::vector<int64_t> shape, io::DType dtype) {
  return {std::move(name), std::move(shape), dtype, std::string(io::name(dtype))};
}

// What both directions have in common: the tensors of another source, each under an index of ours.
class Converted : public io::WeightSource {
 protected:
  explicit Converted(std::unique_ptr<io::WeightSource> base) : WeightSource(*base), base_(std::move(base)) {
    tensors_.clear();
  }

  io::Error model_error(const std::string& tensor, const std::string& detail) const {
    return io::Error(io::ErrorKind::kModel,
                     "[fp8] " + io::in_quotes(path_.native()) + ": tensor " + io::in_quotes(tensor) + ": " + detail);
  }

  std::unique_ptr<io::WeightSource> base_;
};

class Fp8Source final : public Converted {
 public:
  explicit Fp8Source(std::unique_ptr<io::WeightSource> base) : Converted(std::move(base)) {
    bool has_matrix = false;
    std::vector<std::string> kept;  // modules with a matrix in BF16, which readers would else expect in fp8
    for (size_t i = 0; i < base_->tensors().size(); ++i) {
      const io::WeightTensor& tensor = base_->tensors()[i];
      const bool is_float = tensor.dtype && io::is_float(*tensor.dtype);
      // Every linear layer of the decoders is called so, experts' too; routers, embeddings and heads are not.
      const bool is_matrix = tensor.shape.size() == 2 && tensor.name.ends_with("_proj.weight");
      if (is_matrix && !is_float)
        throw io::Error(io::ErrorKind::kUsage,
                        "[fp8] tensor " + io::in_quotes(tensor.name) + ": got " + tensor.type +
                            ", expected BF16, F16 or F32. Convert the source with `fsdp import` first.");
      place_.push_back(tensors_.size());
      if (is_matrix) {
        tensors_.push_back(as_stored(tensor.name, tensor.shape, io::DType::F8_E4M3));
        tensors_.push_back(as_stored(tensor.name + kScales, blocks_of(tensor.shape), io::DType::F32));
        origin_.insert(origin_.end(), {i, i});
        has_matrix = true;
      } else {
        if (tensor.shape.size() == 2 && tensor.name.ends_with(kWeight))
          kept.push_back(tensor.name.substr(0, tensor.name.size() - std::string_view(kWeight).size()));
        tensors_.push_back(is_float ? as_stored(tensor.name, tensor.shape, io::DType::BF16) : tensor);
        origin_.push_back(i);
      }
    }
    if (!has_matrix)
      throw io::Error(
          io::ErrorKind::kUsage,
          "[fp8] got no weight of a linear layer, expected names that end in _proj.weight. Pass --dtype=bf16.");
    if (!config_) return;
    io::set_dtype(*config_, "bfloat16");
    (*config_)["quantization_config"] = {{"quant_method", "fp8"},
                                         {"fmt", "e4m3"},
                                         {"activation_scheme", "dynamic"},
                                         {"modules_to_not_convert", kept},
                                         {"weight_block_size", {kBlock, kBlock}}};
  }

  // A weight and its scales are read together: whoever wants one wants both.
  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    std::vector<size_t> base_wanted;
    for (const size_t index : wanted)
      if (place_[origin_[index]] == index) base_wanted.push_back(origin_[index]);
    std::map<size_t, std::vector<float>> strips;  // of 128 rows, as far as they have come
    std::vector<char> rounded;
    base_->read(base_wanted, [&](size_t origin, int64_t first, int64_t count, const void* elements) {
      const io::DType from = *base_->tensors()[origin].dtype;
      const io::WeightTensor& tensor = tensors_[place_[origin]];
      if (*tensor.dtype == io::DType::F8_E4M3) {
        std::vector<float> piece(static_cast<size_t>(count));
        io::cast_elements(from, elements, io::DType::F32, piece.data(), count);
        return add_piece(place_[origin], first, piece, strips[origin], sink);
      }
      if (from == *tensor.dtype) return sink(place_[origin], first, count, elements);
      rounded.resize(static_cast<size_t>(count) * io::item_size(*tensor.dtype));
      io::cast_elements(from, elements, *tensor.dtype, rounded.data(), count);
      sink(place_[origin], first, count, rounded.data());
    });
  }

 private:
  void add_piece(size_t index, int64_t first, const std::vector<float>& piece, std::vector<float>& strip,
                 const io::PieceSink& sink) const {
    const int64_t columns = tensors_[index].shape[1], numel = tensors_[index].numel();
    for (size_t done = 0; done < piece.size();) {
      const int64_t begin = first + static_cast<int64_t>(done) - static_cast<int64_t>(strip.size());
      const int64_t length = std::min(kBlock * columns, numel - begin);
      const size_t taken = std::min(piece.size() - done, static_cast<size_t>(length) - strip.size());
      strip.insert(strip.end(), piece.begin() + static_cast<int64_t>(done),
                   piece.begin() + static_cast<int64_t>(done + taken));
      done += taken;
      if (static_cast<int64_t>(strip.size()) < length) return;
      write_strip(index, begin, strip, sink);
      strip.clear();
    }
  }

  void write_strip(size_t index, int64_t begin, const std::vector<float>& strip, const io::PieceSink& sink) const {
    if (!std::all_of(strip.begin(), strip.end(), [](float x) { return std::isfinite(x); }))
      throw model_error(tensors_[index].name,
                        "got a number that is not finite, which no scale is for. Export it with "
                        "--dtype=bf16, or an earlier checkpoint.");
    const int64_t columns = tensors_[index].shape[1], count = static_cast<int64_t>(strip.size());
    const raw::Fp8Range range{{count / columns, columns, {kBlock, kBlock}}, 0, count};
    std::vector<uint8_t> codes(static_cast<size_t>(range.matrix.num_blocks())), bytes(strip.size());
    raw::raise_fp8_codes(strip.data(), range, codes.data());
    raw::to_fp8_bytes(strip.data(), range, codes.data(), bytes.data());
    sink(index, begin, count, bytes.data());
    std::vector<float> scales;
    for (const uint8_t code : codes) scales.push_back(code == 0 ? 1.0f : std::ldexp(1.0f, code - raw::kFp8CodeBias));
    const auto num_scales = static_cast<int64_t>(scales.size());
    sink(index + 1, begin / (kBlock * columns) * num_scales, num_scales, scales.data());
  }

  std::vector<size_t> place_;   // base tensor -> ours; scales come right behind
  std::vector<size_t> origin_;  // of tensors_
};

// The numbers of the 256 bytes.
std::array<float, 256> numbers_of_e4m3() {
  std::array<uint8_t, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::array<float, 256> numbers;
  const uint8_t unscaled = raw::kFp8CodeBias;
  raw::from_fp8_bytes(bytes.data(), {{1, 256, {1, 256}}, 0, 256}, &unscaled, numbers.data());
  return numbers;
}

class UnscaledSource final : public Converted {
 public:
  UnscaledSource(std::unique_ptr<io::WeightSource> base, io::DType dtype) : Converted(std::move(base)) {
    description_ += " in fp8";
    const size_t num_tensors = base_->tensors().size();
    std::map<std::string, size_t> by_name;
    for (size_t i = 0; i < num_tensors; ++i) by_name[base_->tensors()[i].name] = i;
    scales_.resize(num_tensors);
    std::vector<bool> is_scale(num_tensors);
    for (const auto& [name, i] : by_name) {
      const io::WeightTensor& tensor = base_->tensors()[i];
      if (tensor.dtype != io::DType::F8_E4M3) continue;
      const auto found = by_name.find(name + kScales);
      if (found == by_name.end())
        throw model_error(
            name, "got no tensor " + io::in_quotes(name + kScales) + " beside it, expected the scales of its blocks.");
      const io::WeightTensor& scale = base_->tensors()[found->second];
      if (tensor.shape.size() != 2 || scale.dtype != io::DType::F32 || scale.shape != blocks_of(tensor.shape))
        throw model_error(scale.name, "got " + scale.type +
                                          " of a shape that is not one number for 128 x 128, "
                                          "expected F32 as DeepSeek-V3 has it.");
      scales_[i] = found->second;
      is_scale[found->second] = true;
    }
    place_.resize(num_tensors);
    for (size_t i = 0; i < num_tensors; ++i) {
      if (is_scale[i]) continue;
      const io::WeightTensor& tensor = base_->tensors()[i];
      place_[i] = tensors_.size();
      tensors_.push_back(scales_[i] ? as_stored(tensor.name, tensor.shape, dtype) : tensor);
      origin_.push_back(i);
    }
    if (config_) config_->erase("quantization_config");
  }

  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    std::vector<size_t> of_weights, of_scales;
    for (const size_t index : wanted) {
      of_weights.push_back(origin_[index]);
      if (scales_[origin_[index]]) of_scales.push_back(*scales_[origin_[index]]);
    }
    std::map<size_t, std::vector<float>> scales;
    base_->read(of_scales, [&](size_t scale, int64_t, int64_t count, const void* elements) {
      const float* numbers = static_cast<const float*>(elements);
      scales[scale].insert(scales[scale].end(), numbers, numbers + count);
    });
    base_->read(of_weights, [&](size_t origin, int64_t first, int64_t count, const void* elements) {
      const size_t index = place_[origin];
      if (!scales_[origin]) return sink(index, first, count, elements);
      const std::vector<float> numbers = multiplied(tensors_[index].shape, scales[*scales_[origin]], first, count,
                                                    static_cast<const uint8_t*>(elements));
      const io::DType to = *tensors_[index].dtype;
      if (to == io::DType::F32) return sink(index, first, count, numbers.data());
      std::vector<char> rounded(numbers.size() * io::item_size(to));
      io::cast_elements(io::DType::F32, numbers.data(), to, rounded.data(), count);
      sink(index, first, count, rounded.data());
    });
  }

 private:
  // A piece of a matrix, a run within a row of a block at a time.
  std::vector<float> multiplied(const std::vector<int64_t>& shape, const std::vector<float>& scales, int64_t first,
                                int64_t count, const uint8_t* bytes) const {
    const int64_t columns = shape[1], blocks = blocks_of(shape)[1];
    std::vector<float> numbers;
    numbers.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count;) {
      const int64_t row = (first + i) / columns, column = (first + i) % columns;
      const int64_t run = std::min({kBlock - column % kBlock, columns - column, count - i});
      const float scale = scales[static_cast<size_t>(row / kBlock * blocks + column / kBlock)];
      for (const int64_t end = i + run; i < end; ++i) numbers.push_back(numbers_[bytes[i]] * scale);
    }
    return numbers;
  }

  const std::array<float, 256> numbers_ = numbers_of_e4m3();
  std::vector<std::optional<size_t>> scales_;  // base tensor -> base tensor of its scales
  std::vector<size_t> place_;                  // base tensor -> ours, but for scales
  std::vector<size_t> origin_;                 // of tensors_
};

}  // namespace

std::unique_ptr<io::WeightSource> open_fp8_source(std::unique_ptr<io::WeightSource> source) {
  return std::make_unique<Fp8Source>(std::move(source));
}

std::unique_ptr<io::WeightSource> open_unscaled_source(std::unique_ptr<io::WeightSource> source,
                                                       std::optional<io::DType> dtype) {
  const bool has_fp8 = std::any_of(source->tensors().begin(), source->tensors().end(),
                                   [](const io::WeightTensor& t) { return t.dtype == io::DType::F8_E4M3; });
  const bool is_quantised = source->config() && source->config()->contains("quantization_config");
  if (!has_fp8 || !is_quantised) return source;
  const nlohmann::json& said = source->config()->at("quantization_config");
  if (said.value("weight_block_size", nlohmann::json()) != nlohmann::json({kBlock, kBlock}))
    throw io::Error(io::ErrorKind::kModel,
                    "[fp8] " + io::in_quotes(source->path().native()) +
                        ": config.json: got a quantization_config without weight_block_size [128, 128], "
                        "which is the layout that is read.");
  return std::make_unique<UnscaledSource>(std::move(source), dtype ? io::DType::F32 : io::DType::BF16);
}

}  // namespace fsdp::app
