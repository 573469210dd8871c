#include "train/model/adapters/adapter_writer.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fsdp::train {
namespace {

constexpr std::string_view kOffset = ".lora_magnitude_offset";
constexpr std::string_view kFactor = ".lora_A.weight";  // as long as that of B

std::string file_name(const std::string& parameter) {
  return std::string(io::kAdapterPrefix) +
         (is_offset(parameter) ? map_of_offset(parameter) + ".lora_magnitude_vector" : parameter);
}

const io::LowRank* beginning(const AdapterStart* start, const std::string& parameter) {
  if (start == nullptr || is_offset(parameter)) return nullptr;
  return &start->factors.at(parameter.substr(0, parameter.size() - kFactor.size()));
}

bool is_first(const std::string& parameter) { return parameter.ends_with(kFactor); }

std::vector<io::TensorDeclaration> declare(const std::vector<WholeTensor>& adapters, const AdapterStart* start) {
  std::vector<io::TensorDeclaration> tensors;
  for (const WholeTensor& each : adapters) {
    std::vector<int64_t> sizes = each.sizes;
    if (beginning(start, each.name) != nullptr) sizes[is_first(each.name) ? 0 : 1] *= 2;
    tensors.push_back({file_name(each.name), io::DType::F32, sizes});
  }
  return tensors;
}

}  // namespace

bool is_offset(const std::string& parameter) { return parameter.ends_with(kOffset); }

std::string map_of_offset(const std::string& parameter) {
  return parameter.substr(0, parameter.size() - kOffset.size());
}

AdapterWriter::AdapterWriter(const std::filesystem::path& file, const std::vector<WholeTensor>& adapters,
                             const std::map<std::string, at::Tensor>& norms, const AdapterStart* start)
    : norms_(norms),
      start_(start),
      writer_(file, declare(adapters, start), std::map<std::string, std::string>{{"format", "pt"}}) {}

void AdapterWriter::write(const std::string& parameter, int64_t first, const at::Tensor& values) {
  const int64_t count = values.numel();
  if (is_offset(parameter)) {
    const at::Tensor lengths = values + norms_.at(map_of_offset(parameter)).narrow(0, first, count);
    writer_.write(file_name(parameter), first, count, lengths.const_data_ptr());
    return;
  }
  const io::LowRank* const began = beginning(start_, parameter);
  if (began == nullptr) {
    writer_.write(file_name(parameter), first, count, values.const_data_ptr());
    return;
  }
  std::vector<float>& all = collected_[parameter];
  const float* const data = values.const_data_ptr<float>();
  all.insert(all.end(), data, data + count);
  if (all.size() == (is_first(parameter) ? began->a : began->b).size()) write_changed(parameter, *began);
}

// [A; A0] and [B, -B0].
void AdapterWriter::write_changed(const std::string& parameter, const io::LowRank& began) {
  const std::vector<float>& now = collected_.at(parameter);
  std::vector<float> both;
  if (is_first(parameter)) {
    both = now;
    both.insert(both.end(), began.a.begin(), began.a.end());
  } else {
    for (int64_t row = 0; row < began.out; ++row) {
      const auto place = row * began.rank;
      both.insert(both.end(), now.begin() + place, now.begin() + place + began.rank);
      for (int64_t k = 0; k < began.rank; ++k) both.push_back(-began.b[static_cast<size_t>(place + k)]);
    }
  }
  writer_.write(file_name(parameter), 0, static_cast<int64_t>(both.size()), both.data());
  collected_.erase(parameter);
}

}  // namespace fsdp::train
