#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::io::pickle_opcode {

// The opcodes of the pickle machine that are understood here.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kProto = 0x80,
  kFrame = 0x95,
  // numbers
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  // texts
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  // containers
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  // names, calls, objects
  kGlobalName = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kBuild = 'b',
  kBinPersId = 'Q',
  // memo
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
};

struct Refused {
  uint8_t code;
  std::string_view name;
};

// Those that exist, but that no file we read needs: for a message that says more than a number.
inline constexpr Refused kRefused[] = {
    {'i', "INST"},
    {'o', "OBJ"},
    {0x92, "NEWOBJ_EX"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {'P', "PERSID"},
    {'Q', "BINPERSID"},
    {'2', "DUP"},
    {'1', "POP_MARK"},
    {'I', "INT"},
    {'L', "LONG"},
    {'F', "FLOAT"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'g', "GET"},
    {'p', "PUT"},
    {'l', "LIST"},
    {'d', "DICT"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

}  // namespace fsdp::io::pickle_opcode
