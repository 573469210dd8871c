#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/torch_archive/pickle_opcodes.h"

namespace fsdp::io {

// Writes the pickles of a DCP checkpoint, for PyTorch to read: protocol 2, no memo. The one place of this project that
// writes pickle at all; it is data with the names of PyTorch's own classes, and nothing of ours is ever read back by
// executing it. Values go onto the reader's stack in the order of the calls.
class PickleWriter {
 public:
  PickleWriter();

  void none() { opcode(pickle_opcode::kNone); }
  void boolean(bool value) { opcode(value ? pickle_opcode::kNewTrue : pickle_opcode::kNewFalse); }
  void integer(int64_t value);
  void text(std::string_view value);
  void integers(std::span<const int64_t> values);  // a tuple
  void global(std::string_view module, std::string_view name);
  // Everything else: kMark, kTuple, kReduce, ...
  void opcode(pickle_opcode::Opcode code) { bytes_ += static_cast<char>(code); }

  // The pickle. Nothing can be added afterwards.
  std::string finish();

 private:
  std::string bytes_;
};

}  // namespace fsdp::io
