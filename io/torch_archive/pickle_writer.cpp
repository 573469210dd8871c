#include "io/torch_archive/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

namespace fsdp::io {

using namespace pickle_opcode;

namespace {

static_assert(std::endian::native == std::endian::little, "pickle is little endian; so are the machines we know");

template <class Number>
std::string_view raw(const Number& number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

}  // namespace

PickleWriter::PickleWriter() {
  opcode(kProto);
  bytes_ += '\x02';
}

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
    opcode(kBinInt1);
    bytes_ += static_cast<char>(value);
  } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    opcode(kBinInt);
    bytes_ += raw(static_cast<int32_t>(value));
  } else {
    opcode(kLong1);
    bytes_ += static_cast<char>(sizeof(value));
    bytes_ += raw(value);
  }
}

void PickleWriter::text(std::string_view value) {
  opcode(kBinUnicode);
  bytes_ += raw(static_cast<uint32_t>(value.size()));
  bytes_ += value;
}

void PickleWriter::integers(std::span<const int64_t> values) {
  opcode(kMark);
  for (const int64_t value : values) integer(value);
  opcode(kTuple);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  opcode(kGlobalName);
  bytes_.append(module).append("\n").append(name).append("\n");
}

std::string PickleWriter::finish() {
  opcode(kStop);
  return std::move(bytes_);
}

}  // namespace fsdp::io
