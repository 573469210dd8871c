#include "text/tokenizer/json/text_file.h"

#include "io/base/input_file.h"

namespace fsdp::tokenizer {

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const io::InputFile file(path, io::ErrorKind::kModel);
  if (file.size() > max_bytes) {
    throw file.error("tokenizer", "got " + std::to_string(file.size()) + " bytes, expected at most " +
                                      std::to_string(max_bytes) + ". This is not such a file.");
  }
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

}  // namespace fsdp::tokenizer
