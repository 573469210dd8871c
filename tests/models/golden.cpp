#include "tests/models/golden.h"

#include <torch/torch.h>

#include <algorithm>
#include <cctype>

#include "io/safetensors/safetensors.h"
#include "models/load_weights.h"

namespace fsdp::models {
namespace {

at::ScalarType scalar_type_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::F32:
      return at::kFloat;
    case io::DType::BF16:
      return at::kBFloat16;
    case io::DType::F16:
      return at::kHalf;
    case io::DType::U8:
      return at::kByte;
    case io::DType::I32:
      return at::kInt;
    case io::DType::I64:
      return at::kLong;
    default:
      TORCH_CHECK(false, "golden file with dtype ", std::string(io::name(dtype)));
  }
}

}  // namespace

Tensors read_tensors(const std::filesystem::path& path) {
  const auto file = io::SafetensorsFile::open(path);
  Tensors tensors;
  for (const io::TensorEntry& entry : file.tensors()) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
    file.read(entry, 0, entry.numel(), tensor.data_ptr());
    tensors[entry.name] = tensor;
  }
  return tensors;
}

Decoder load_golden(const std::filesystem::path& folder, const std::filesystem::path& config) {
  Decoder model(read_decoder_config(config.empty() ? folder : config));
  load_weights(*model, model->config(), io::ModelFolder::open(folder));
  return model;
}

std::vector<std::filesystem::path> golden_roots() {
  std::vector<std::filesystem::path> roots = {FSDP_TEST_DATA_DIR};
#ifdef FSDP_FIXTURES_DIR
  roots.emplace_back(FSDP_FIXTURES_DIR);
#endif
  return roots;
}

std::vector<std::filesystem::path> golden_folders(const std::string& kind, const std::string& file) {
  std::vector<std::filesystem::path> folders;
  for (const auto& root : golden_roots())
    for (const auto& entry : std::filesystem::directory_iterator(root / kind))
      if (std::filesystem::exists(entry.path() / file)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string test_name(const std::filesystem::path& folder) {
  std::string name = folder.parent_path().parent_path().filename().string() + "_" + folder.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "shapes differ: ", a.sizes(), " and ", b.sizes());
  return a.numel() == 0 ? 0 : (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

double relative_difference(const at::Tensor& actual, const at::Tensor& expected) {
  return largest_difference(actual, expected) / expected.detach().abs().max().to(at::kDouble).item<double>();
}

}  // namespace fsdp::models
