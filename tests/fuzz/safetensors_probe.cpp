// What the safetensors reader makes of many files, for tests/fuzz/differential_safetensors.py. Paths come on standard
// input, one a line; for each a JSON object goes to standard output, one a line:
//   {"accepted": true, "metadata": {..}, "tensors": {name: {"dtype": .., "shape": [..], "data": hexadecimal}}}
//   {"accepted": false, "reason": ".."}
// With a folder as argument, each accepted file is written again into it, under its own name.
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace fsdp::fuzz {
namespace {

using nlohmann::json;

std::string read_tensor(const io::SafetensorsFile& file, const io::TensorEntry& entry) {
  std::string bytes(entry.end - entry.begin, '\0');
  file.read(entry, 0, entry.numel(), bytes.data());
  return bytes;
}

std::string hexadecimal(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

void rewrite(const io::SafetensorsFile& file, const std::filesystem::path& path) {
  std::vector<io::TensorDeclaration> declarations;
  for (const io::TensorEntry& entry : file.tensors()) declarations.push_back({entry.name, entry.dtype, entry.shape});
  io::SafetensorsWriter writer(path, declarations, file.metadata());
  for (const io::TensorEntry& entry : file.tensors()) {
    writer.write(entry.name, 0, entry.numel(), read_tensor(file, entry).data());
  }
  writer.commit();
}

json describe(const std::filesystem::path& path, const std::filesystem::path& copies) {
  try {
    const io::SafetensorsFile file = io::SafetensorsFile::open(path);
    json tensors = json::object();
    for (const io::TensorEntry& entry : file.tensors()) {
      tensors[entry.name] = {
          {"dtype", io::name(entry.dtype)}, {"shape", entry.shape}, {"data", hexadecimal(read_tensor(file, entry))}};
    }
    if (!copies.empty()) rewrite(file, copies / path.filename());
    return {{"accepted", true}, {"metadata", file.metadata()}, {"tensors", tensors}};
  } catch (const io::Error& error) {
    return {{"accepted", false}, {"reason", error.what()}};
  }
}

}  // namespace
}  // namespace fsdp::fuzz

int main(int argc, char** argv) {
  const std::filesystem::path copies = argc > 1 ? argv[1] : "";
  for (std::string path; std::getline(std::cin, path);) std::cout << fsdp::fuzz::describe(path, copies) << "\n";
  return 0;
}
