// The safetensors writer: the input is a list of declarations and a list of writes. A write is refused exactly if it is
// wrong, a commit exactly if bytes are missing, and a committed file holds what was written.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

constexpr uint64_t kMaxModelledBytes = 1 << 14;  // larger declarations are made and not filled

// What a tensor must hold in the end.
struct Expected {
  int64_t numel = 0;
  size_t item_size = 1;
  std::string bytes;
  std::vector<bool> written;  // by element
};

std::vector<io::TensorDeclaration> read_declarations(ByteSource& source) {
  std::vector<io::TensorDeclaration> tensors(source.byte() % 5);
  for (io::TensorDeclaration& tensor : tensors) {
    tensor.name = source.text(12);
    tensor.dtype = io::kDTypes[source.byte() % io::kDTypes.size()].dtype;
    tensor.shape.resize(source.byte() % 10);
    for (int64_t& size : tensor.shape) {
      const uint8_t choice = source.byte();
      size = choice < 240 ? choice % 7 : source.number<int64_t>();
    }
  }
  return tensors;
}

// Empty if the tensors are too large to model.
std::map<std::string, Expected> model_of(const std::vector<io::TensorDeclaration>& tensors) {
  std::map<std::string, Expected> model;
  for (const io::TensorDeclaration& tensor : tensors) {
    uint64_t numel = 1;
    for (const int64_t size : tensor.shape) {
      if (__builtin_mul_overflow(numel, static_cast<uint64_t>(size), &numel) || numel > kMaxModelledBytes) return {};
    }
    const size_t item_size = io::item_size(tensor.dtype);
    model[tensor.name] = {static_cast<int64_t>(numel), item_size, std::string(numel * item_size, '\0'),
                          std::vector<bool>(numel)};
  }
  return model;
}

// Should this write be accepted? Then it is made in the model.
bool model_write(Expected& tensor, int64_t first, int64_t n, const std::string& bytes) {
  if (first < 0 || n < 0 || first > tensor.numel || n > tensor.numel - first) return false;
  const auto begin = tensor.written.begin() + first;
  if (std::find(begin, begin + n, true) != begin + n) return false;
  std::fill(begin, begin + n, true);
  tensor.bytes.replace(static_cast<size_t>(first) * tensor.item_size, static_cast<size_t>(n) * tensor.item_size, bytes);
  return true;
}

void play_writes(io::SafetensorsWriter& writer, std::map<std::string, Expected>& model, ByteSource& source) {
  while (!source.empty()) {
    auto tensor = model.begin();
    std::advance(tensor, source.byte() % model.size());
    const auto first = static_cast<int64_t>(source.number<int8_t>());
    const auto n = static_cast<int64_t>(source.number<int8_t>());
    const std::string bytes(static_cast<size_t>(std::max<int64_t>(n, 0)) * tensor->second.item_size, source.byte());
    const bool expected = model_write(tensor->second, first, n, bytes);
    FUZZ_REQUIRE(accepts([&] { writer.write(tensor->first, first, n, bytes.data()); }) == expected);
  }
}

void fill_the_rest(io::SafetensorsWriter& writer, std::map<std::string, Expected>& model) {
  for (auto& [name, tensor] : model) {
    for (int64_t i = 0; i < tensor.numel; ++i) {
      if (tensor.written[static_cast<size_t>(i)]) continue;
      const std::string bytes(tensor.item_size, static_cast<char>(i));
      model_write(tensor, i, 1, bytes);
      writer.write(name, i, 1, bytes.data());
    }
  }
}

void check_file(const std::filesystem::path& path, const std::vector<io::TensorDeclaration>& tensors,
                const std::map<std::string, Expected>& model) {
  const io::SafetensorsFile file = io::SafetensorsFile::open(path);
  FUZZ_REQUIRE(file.tensors().size() == tensors.size());
  for (const io::TensorDeclaration& tensor : tensors) {
    const io::TensorEntry* entry = file.find(tensor.name);
    FUZZ_REQUIRE(entry != nullptr && entry->dtype == tensor.dtype && entry->shape == tensor.shape);
    FUZZ_REQUIRE(entry->begin % io::item_size(entry->dtype) == 0);
    std::string bytes(entry->end - entry->begin, '\0');
    file.read(*entry, 0, entry->numel(), bytes.data());
    FUZZ_REQUIRE(bytes == model.at(tensor.name).bytes);
  }
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static const fuzz::ScratchFolder folder;
  fuzz::ByteSource source(data, size);
  const auto tensors = fuzz::read_declarations(source);
  const std::map<std::string, std::string> metadata = {{source.text(8), source.text(8)}};
  const bool fill = source.byte() % 2 == 0;
  std::unique_ptr<io::SafetensorsWriter> writer;
  if (!fuzz::accepts([&] { writer = std::make_unique<io::SafetensorsWriter>(folder / "x", tensors, metadata); })) {
    FUZZ_REQUIRE(folder.num_files() == 0);
    return 0;
  }
  auto model = fuzz::model_of(tensors);
  if (!model.empty()) {
    fuzz::play_writes(*writer, model, source);
    if (fill) fuzz::fill_the_rest(*writer, model);
    const bool complete = std::all_of(model.begin(), model.end(), [](const auto& item) {
      const auto& written = item.second.written;
      return std::find(written.begin(), written.end(), false) == written.end();
    });
    FUZZ_REQUIRE(fuzz::accepts([&] { writer->commit(); }) == complete);
    if (complete) fuzz::check_file(folder / "x", tensors, model);
  }
  writer.reset();
  folder.remove("x");
  FUZZ_REQUIRE(folder.num_files() == 0);
  return 0;
}
