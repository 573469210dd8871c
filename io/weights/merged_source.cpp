#include "io/weights/merged_source.h"

#include <map>
#include <set>
#include <utility>

#include "io/base/element_cast.h"
#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr std::string_view kWeight = ".weight";

class MergedSource final : public WeightSource {
 public:
  MergedSource(std::unique_ptr<WeightSource> base, Adapter adapter, std::optional<DType> dtype)
      : WeightSource(*base), base_(std::move(base)), adapter_(std::move(adapter)) {
    description_ += " and an adapter of rank " + std::to_string(adapter_.config.rank);
    tensors_.clear();
    adapter_config_.reset();
    size_t num_merged = 0;
    for (size_t i = 0; i < base_->tensors().size(); ++i) {
      WeightTensor tensor = base_->tensors()[i];
      if (is_adapter_name(tensor.name)) continue;
      const LowRank* factors = factors_of(tensor.name);
      if (factors != nullptr) {
        check_weight(tensor, *factors);
        tensor.dtype = merged_type(tensor, dtype);
        tensor.type = name(*tensor.dtype);
        ++num_merged;
      }
      tensors_.push_back(std::move(tensor));
      factors_.push_back(factors);
      base_index_.push_back(i);
    }
    if (num_merged < adapter_.modules.size()) throw_missing();
  }

  void read(const std::vector<size_t>& wanted, const PieceSink& sink) const override {
    std::vector<size_t> place(base_->tensors().size());
    std::vector<size_t> base_wanted;
    for (const size_t index : wanted) {
      place[base_index_[index]] = index;
      base_wanted.push_back(base_index_[index]);
    }
    std::map<size_t, std::vector<float>> parts;  // of rows that the next piece goes on with, by tensor
    std::vector<char> rounded;
    base_->read(base_wanted, [&](size_t base_index, int64_t first, int64_t count, const void* elements) {
      const size_t index = place[base_index];
      const LowRank* factors = factors_[index];
      if (factors == nullptr) return sink(index, first, count, elements);
      std::vector<float>& sum = parts[index];
      const size_t kept = sum.size();
      sum.resize(kept + static_cast<size_t>(count));
      cast_elements(*base_->tensors()[base_index].dtype, elements, DType::F32, sum.data() + kept, count);
      first -= static_cast<int64_t>(kept);
      const int64_t done = merge(*factors, first, sum);
      const DType to = *tensors_[index].dtype;
      rounded.resize(static_cast<size_t>(done) * item_size(to));
      cast_elements(DType::F32, sum.data(), to, rounded.data(), done);
      sum.erase(sum.begin(), sum.begin() + done);
      if (sum.empty()) parts.erase(index);
      if (done > 0) sink(index, first, done, rounded.data());
    });
  }

 private:
  Error model_error(const std::string& detail) const {
    return Error(
        ErrorKind::kModel,
        "[merge] " + in_quotes(path_.native()) + ": " + detail + " Pass the model that the adapter was trained on" +
            (adapter_.config.base_model.empty() ? "." : ", which was " + in_quotes(adapter_.config.base_model) + "."));
  }

  // Of elements from `first` on: as many as can be told without those that follow, which with magnitudes are whole
  // rows.
  int64_t merge(const LowRank& factors, int64_t first, std::vector<float>& values) const {
    const auto count = static_cast<int64_t>(values.size());
    if (factors.magnitude == Magnitude::kNone) {
      add_low_rank(factors, adapter_.config.scale(), first, count, values.data());
      return count;
    }
    const int64_t rows = factors.in > 0 ? count / factors.in : 0;
    work_in(factors, adapter_.config.scale(), first / factors.in, rows, values.data());
    return rows * factors.in;
  }

  const LowRank* factors_of(const std::string& tensor) const {
    if (!tensor.ends_with(kWeight)) return nullptr;
    const auto found = adapter_.modules.find(tensor.substr(0, tensor.size() - kWeight.size()));
    return found == adapter_.modules.end() ? nullptr : &found->second;
  }

  void check_weight(const WeightTensor& tensor, const LowRank& factors) const {
    if (tensor.shape == std::vector<int64_t>{factors.out, factors.in}) return;
    std::string shape;
    for (const int64_t size : tensor.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    throw model_error(in_quotes(tensor.name) + ": got shape [" + shape + "], the adapter is for [" +
                      std::to_string(factors.out) + ", " + std::to_string(factors.in) + "].");
  }

  DType merged_type(const WeightTensor& tensor, std::optional<DType> dtype) const {
    const DType to = dtype ? *dtype : tensor.dtype.value_or(DType::I64);
    if (tensor.dtype && is_float(*tensor.dtype) && (to == DType::F32 || to == DType::BF16)) return to;
    throw Error(ErrorKind::kUsage, "[merge] " + in_quotes(tensor.name) + ": got " + tensor.type +
                                       ", expected BF16 or F32 for the result. Pass --dtype=bf16 or --dtype=fp32.");
  }

  [[noreturn]] void throw_missing() const {
    const std::set<const LowRank*> used(factors_.begin(), factors_.end());
    for (const auto& [module, factors] : adapter_.modules) {
      if (!used.contains(&factors))
        throw model_error("got no tensor " + in_quotes(module + std::string(kWeight)) + " for the adapter.");
    }
    throw model_error("got fewer tensors than the adapter is for.");
  }

  std::unique_ptr<WeightSource> base_;
  Adapter adapter_;
  std::vector<const LowRank*> factors_;  // of tensors_; null: taken as it is
  std::vector<size_t> base_index_;       // likewise
};

}  // namespace

std::unique_ptr<WeightSource> open_merged_source(std::unique_ptr<WeightSource> base, Adapter adapter,
                                                 std::optional<DType> dtype) {
  return std::make_unique<MergedSource>(std::move(base), std::move(adapter), dtype);
}

}  // namespace fsdp::io
