#include "tests/fuzz/mutators/pickle_code.h"

#include <array>
#include <vector>

namespace fsdp::fuzz {
namespace {

constexpr char kFrame = '\x95';  // says how many bytes follow: left out, as nearly every change would make it wrong

// How many bytes of argument an opcode has: a fixed number, and maybe the width of a length that stands before more.
struct Shape {
  std::string_view opcodes;
  size_t fixed;
  size_t length;
};
constexpr std::array<Shape, 8> kShapes = {{{"\x80Kqh", 1, 0},
                                           {"M", 2, 0},
                                           {"Jrj", 4, 0},
                                           {"G\x95", 8, 0},
                                           {"\x8c"
                                            "C\x8a",
                                            0, 1},
                                           {"XB\x8b", 0, 4},
                                           {"\x8d\x8e", 0, 8},
                                           {"", 0, 0}}};

uint64_t length_at(std::string_view bytes, size_t width) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), std::min(width, bytes.size()));
  return length;
}

// Bytes of the first instruction; all that is left where it is cut off.
size_t size_of_first(std::string_view code) {
  if (code[0] == 'c') {  // two lines
    const size_t line = code.find('\n');
    const size_t end = line == std::string_view::npos ? line : code.find('\n', line + 1);
    return end == std::string_view::npos ? code.size() : end + 1;
  }
  for (const Shape& shape : kShapes) {
    if (shape.opcodes.find(code[0]) == std::string_view::npos) continue;
    const size_t head = 1 + shape.fixed + shape.length;
    if (head >= code.size()) return code.size();
    const uint64_t rest = shape.length == 0 ? 0 : length_at(code.substr(1), shape.length);
    return rest > code.size() - head ? code.size() : head + static_cast<size_t>(rest);
  }
  return 1;
}

std::vector<std::string> split(std::string_view code) {
  std::vector<std::string> instructions;
  while (!code.empty()) {
    const size_t size = size_of_first(code);
    if (code[0] != kFrame) instructions.emplace_back(code.substr(0, size));
    code.remove_prefix(size);
  }
  return instructions;
}

// Another argument of the same length.
void change_argument(std::string& instruction, Random& random) {
  if (instruction.size() < 2) return;
  constexpr std::array<char, 6> kBytes = {0, 1, '\x7f', '\x80', '\xff', '\n'};
  instruction[1 + pick(random, instruction.size() - 1)] =
      pick(random, 2) == 0 ? kBytes[pick(random, kBytes.size())] : static_cast<char>(pick(random, 256));
}

void edit(std::vector<std::string>& code, Random& random) {
  constexpr std::string_view kPlain =
      "(.0N\x88\x89)t\x85\x86\x87]ae}su\x93R\x81"
      "bQ\x94";
  const size_t place = pick(random, code.size());
  const size_t count = std::min(code.size() - place, 1 + pick(random, 6));
  const auto from = code.begin() + static_cast<long>(place);
  const std::vector<std::string> piece(from, from + static_cast<long>(count));
  switch (pick(random, 6)) {
    case 0:
      code.erase(from, from + static_cast<long>(count));
      break;
    case 1:
      code.insert(code.begin() + static_cast<long>(pick(random, code.size())), piece.begin(), piece.end());
      break;
    case 2:
      std::swap(code[place], code[pick(random, code.size())]);
      break;
    case 3:
      code.insert(from, std::string(1, kPlain[pick(random, kPlain.size())]));
      break;
    default:
      change_argument(code[place], random);
  }
}

}  // namespace

std::string mutate_pickle(const std::string& pickle, size_t max_size, Random& random) {
  std::vector<std::string> code = split(pickle);
  if (code.empty() || pick(random, 4) == 0) return mutate_text(pickle, max_size);
  for (size_t i = 1 + pick(random, 4); i > 0 && !code.empty(); --i) edit(code, random);
  std::string changed;
  for (const std::string& instruction : code) changed += instruction;
  return changed;
}

}  // namespace fsdp::fuzz
