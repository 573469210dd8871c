#include "io/torch_archive/pickle_reader.h"

#include <gtest/gtest.h>

#include "io/torch_archive/pickle_opcodes.h"
#include "io/torch_archive/pickle_writer.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

using namespace std::string_literals;
using namespace pickle_opcode;

constexpr PickleGlobal kNames[] = {
    {"m", "constant", PickleUse::kConstant},
    {"m", "call", PickleUse::kCall},
    {"m", "Object", PickleUse::kObject},
    {"collections", "OrderedDict", PickleUse::kDict},
};

const std::string kStart = "\x80\x04"s;  // PROTO 4

std::vector<PickleValue> items(PickleValue container) {
  std::vector<PickleValue> all;
  for (const PickleValue value : container) all.push_back(value);
  return all;
}

Caught parse_error(const std::string& bytes, const PickleLimits& limits = {}) {
  const Caught caught = catch_error([&] { PickleTree(bytes, "file", kNames, limits); });
  EXPECT_TRUE(caught.is_one_line()) << caught.text;
  if (caught.text != "no error") {
    EXPECT_EQ(caught.kind, ErrorKind::kModel) << caught.text;
    EXPECT_TRUE(caught.says("[pickle] 'file' before byte ")) << caught.text;
  }
  return caught;
}

// What Python 3.11 writes for it, by protocol:
//   [1, 300, 70000, -5, 2**40, -2**63, 2**63 - 1, 0.5, True, False, None, 'text', b'bytes', (), (1,), (1, 2), (1, 2,
//   3),
//    (1, 2, 3, 4), {'a': 1, 'b': [2]}]
const std::string kProtocol2 =
    "\x80\x02]q\x00(K\x01M,\x01J\x70\x11\x01\x00J\xfb\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x08\x00\x00\x00"
    "\x00\x00\x00\x00\x80\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fG?\xe0\x00\x00\x00\x00\x00\x00\x88\x89NX\x04\x00\x00"
    "\x00textq\x01"s;
const std::string kProtocol4 =
    "\x80\x04\x95\x75\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01M,"
    "\x01J\x70\x11\x01\x00J\xfb\xff\xff\xff\x8a\x06\x00\x00\x00"
    "\x00\x00\x01\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fG?\xe0\x00\x00\x00\x00"
    "\x00\x00\x88\x89N\x8c\x04text\x94"s;
const std::string kContainers =
    ")K\x01\x85K\x01K\x02\x86K\x01K\x02K\x03\x87(K\x01K\x02K\x03K\x04t}(X\x01\0\0\0aK\x01\x8c\x01"
    "b]K\x02"
    "auC\x05"
    "bytese."s;

void expect_numbers(const std::vector<PickleValue>& all) {
  const int64_t integers[] = {
      1, 300, 70000, -5, int64_t{1} << 40, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  ASSERT_GE(all.size(), 12u);
  for (size_t i = 0; i < std::size(integers); ++i) {
    ASSERT_TRUE(all[i].is(PickleKind::kInteger)) << i;
    EXPECT_EQ(all[i].integer(), integers[i]);
  }
  EXPECT_TRUE(all[7].is(PickleKind::kReal));
  EXPECT_EQ(all[7].real(), 0.5);
  EXPECT_TRUE(all[8].is(PickleKind::kBool) && all[8].boolean());
  EXPECT_TRUE(all[9].is(PickleKind::kBool) && !all[9].boolean());
  EXPECT_TRUE(all[10].is(PickleKind::kNone));
  EXPECT_TRUE(all[11].is(PickleKind::kText));
  EXPECT_EQ(all[11].text(), "text");
}

TEST(PickleReader, NumbersTextsContainers) {
  std::string framed = kProtocol4 + kContainers;
  framed[3] = static_cast<char>(framed.size() - 11);  // the length of the frame
  for (const std::string& bytes : {kProtocol2 + kContainers, framed}) {
    const PickleTree tree(bytes, "file", kNames);
    ASSERT_TRUE(tree.root().is(PickleKind::kList));
    const std::vector<PickleValue> all = items(tree.root());
    expect_numbers(all);
    ASSERT_EQ(all.size(), 19u);
    for (size_t count = 0; count <= 4; ++count) {
      const PickleValue tuple = all[12 + count];
      ASSERT_TRUE(tuple.is(PickleKind::kTuple));
      ASSERT_EQ(tuple.size(), count);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(items(tuple)[i].integer(), static_cast<int64_t>(i) + 1);
    }
    ASSERT_TRUE(all[17].is(PickleKind::kDict));
    const std::vector<PickleValue> pairs = items(all[17]);
    ASSERT_EQ(pairs.size(), 4u);
    EXPECT_EQ(pairs[0].text(), "a");
    EXPECT_EQ(pairs[1].integer(), 1);
    EXPECT_EQ(pairs[2].text(), "b");
    EXPECT_EQ(items(pairs[3])[0].integer(), 2);
    EXPECT_TRUE(all[18].is(PickleKind::kBytes));
    EXPECT_EQ(all[18].text(), "bytes");
  }
}

TEST(PickleReader, WriterIsRead) {
  const int64_t values[] = {0,
                            255,
                            256,
                            -1,
                            1 << 30,
                            int64_t{1} << 31,
                            -(int64_t{1} << 40),
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()};
  PickleWriter writer;
  writer.opcode(kMark);
  writer.integers(values);
  writer.text("a\nb");
  writer.none();
  writer.boolean(true);
  writer.global("m", "constant");
  writer.opcode(kTuple);
  const PickleTree tree(writer.finish(), "file", kNames);
  const std::vector<PickleValue> all = items(tree.root());
  ASSERT_EQ(all.size(), 5u);
  for (size_t i = 0; i < std::size(values); ++i) EXPECT_EQ(items(all[0])[i].integer(), values[i]);
  EXPECT_EQ(all[1].text(), "a\nb");
  EXPECT_TRUE(all[2].is(PickleKind::kNone));
  EXPECT_TRUE(all[3].boolean());
  EXPECT_EQ(tree.global(all[4].global()).name, "constant");
}

TEST(PickleReader, ObjectsAndCalls) {
  // (call(1), Object() with the state {'x': 2}, OrderedDict() with 'k': 3, the same object again)
  const std::string bytes = kStart +
                            "(cm\ncall\nK\x01\x85R\x8c\x01m\x8c\x06Object\x93)\x81\x94}\x8c\x01xK\x02sb"
                            "ccollections\nOrderedDict\n)R\x8c\x01kK\x03sh\x00t."s;
  const PickleTree tree(bytes, "file", kNames);
  const std::vector<PickleValue> all = items(tree.root());
  ASSERT_EQ(all.size(), 4u);
  ASSERT_TRUE(all[0].is(PickleKind::kCall));
  EXPECT_EQ(tree.global(all[0].global()).name, "call");
  EXPECT_EQ(items(all[0].arguments())[0].integer(), 1);
  for (const PickleValue object : {all[1], all[3]}) {
    ASSERT_TRUE(object.is(PickleKind::kObject));
    EXPECT_EQ(object.arguments().size(), 0u);
    EXPECT_EQ(items(object.state())[1].integer(), 2);
  }
  ASSERT_TRUE(all[2].is(PickleKind::kDict));
  EXPECT_EQ(items(all[2])[1].integer(), 3);
  const PickleTree bare(kStart + "cm\nObject\n)\x81."s, "file", kNames);
  EXPECT_TRUE(bare.root().state().is(PickleKind::kNone));
}

TEST(PickleReader, PersistentIdsOnlyWhereAllowed) {
  const std::string bytes = "\x80\x02X\x02\0\0\0idQ."s;
  EXPECT_TRUE(parse_error(bytes).says("BINPERSID"));
  const PickleTree tree(bytes, "file", kNames, {.persistent_ids = true});
  ASSERT_TRUE(tree.root().is(PickleKind::kPersistent));
  EXPECT_EQ(tree.root().item().text(), "id");
}

TEST(PickleReader, SharedAndCyclicValues) {
  const PickleTree tree(kStart +
                            "]\x94(h\x00h\x00h\x00"
                            "e."s,
                        "file", kNames);  // a list that holds itself three times
  EXPECT_EQ(tree.num_values(), 1u);
  EXPECT_EQ(tree.root().size(), 3u);
  EXPECT_EQ(items(items(tree.root())[2])[0].size(), 3u);
}

TEST(PickleReader, RefusesEveryOtherName) {
  const std::string hostile[] = {
      "cos\nsystem\n(X\x02\0\0\0lstR."s,
      "\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."s,
      "cposix\nsystem\n."s,
      "cbuiltins\neval\n."s,
      "cm\nConstant\n."s,
      "cM\nconstant\n."s,
      "cm\nconstant.x\n."s,
      "\x8c\x0bm.constant\n\x8c\x00\x93."s,
      "\x8c\x00\x8c\x00\x93."s,
  };
  for (const std::string& bytes : hostile) {
    EXPECT_TRUE(parse_error(kStart + bytes).says("Pickle can run code when read")) << parse_error(kStart + bytes).text;
  }
  EXPECT_TRUE(parse_error(kStart + hostile[0]).says("'os.system'"));
}

TEST(PickleReader, RefusesAllowedNamesInAnotherUse) {
  const std::string misused[] = {
      "cm\nconstant\n)R."s,
      "cm\nconstant\n)\x81."s,
      "cm\nObject\n)R."s,
      "cm\ncall\n)\x81."s,
      "ccollections\nOrderedDict\n)\x81."s,
      "ccollections\nOrderedDict\n]\x85R."s,
  };
  for (const std::string& bytes : misused) {
    EXPECT_TRUE(parse_error(kStart + bytes).says("only plain data is accepted")) << parse_error(kStart + bytes).text;
  }
  EXPECT_TRUE(parse_error(kStart + "cm\ncall\n)R}b."s).says("takes none"));
  EXPECT_TRUE(parse_error(kStart + "cm\nObject\n)\x81}b}b."s).says("takes none"));
  EXPECT_TRUE(parse_error(kStart + "cm\nObject\n)\x81(K\x01K\x02u."s).says("cannot hold them"));
}

TEST(PickleReader, RefusesOpcodesByName) {
  const std::pair<std::string, std::string> opcodes[] = {
      {"(ios\nsystem\n."s, "INST"}, {"(o."s, "OBJ"},   {"\x92."s, "NEWOBJ_EX"}, {"\x82\x01."s, "EXT1"},
      {"Pid\n."s, "PERSID"},        {"I1\n."s, "INT"}, {"g0\n."s, "GET"},       {"\x97."s, "NEXT_BUFFER"},
      {"\xfe."s, "unknown"},
  };
  for (const auto& [bytes, name] : opcodes) {
    EXPECT_TRUE(parse_error(kStart + bytes).says("opcode " + name)) << parse_error(kStart + bytes).text;
  }
}

TEST(PickleReader, RefusesMalformedPickles) {
  const std::pair<std::string, std::string> bad[] = {
      {""s, "truncated"},
      {"N."s, "no PROTO"},
      {"\x80\x01N."s, "protocol 1"},
      {"\x80\x06N."s, "protocol 6"},
      {kStart, "truncated"},
      {kStart + "."s, "more values than there are"},
      {kStart + "NN."s, "left over"},
      {kStart + "N(."s, "more values than there are"},
      {kStart + "(N."s, "left over"},
      {kStart + "N.N"s, "1 bytes after the end"},
      {kStart + "t."s, "without its start"},
      {kStart + "e."s, "without its start"},
      {kStart + "(e."s, "more values than there are"},
      {kStart + "](a."s, "more values than there are"},
      {kStart + "]a."s, "more values than there are"},
      {kStart + "}N(NsN."s, "more values than there are"},
      {kStart + "}(Nu."s, "cannot hold them"},
      {kStart + "](NNu."s, "cannot hold them"},
      {kStart + ")Na."s, "cannot hold them"},
      {kStart + "N\x86."s, "more values than there are"},
      {kStart + "NR."s, "more values than there are"},
      {kStart + "NNR."s, "something that is no name"},
      {kStart + "NN\x93."s, "no text"},
      {kStart + "h\x00."s, "memo entry 0"},
      {kStart + "\x94."s, "more values than there are"},
      {kStart + "cm\nconstant"s, "without an end"},
      {kStart + "c"s + std::string(1000, 'm'), "without an end"},
      {kStart + "\x8a\x09\1\1\1\1\1\1\1\1\1."s, "integer of 9 bytes"},
  };
  for (const auto& [bytes, text] : bad)
    EXPECT_TRUE(parse_error(bytes).says(text)) << text << " | " << parse_error(bytes).text;
}

TEST(PickleReader, HugeLengthsCostNothing) {
  const std::string ff4(4, '\xff');
  const std::string ff8(8, '\xff');
  for (const std::string& bytes :
       {"X"s + ff4, "B"s + ff4, "\x8d"s + ff8, "\x8e"s + ff8, "\x95"s + ff8, "\x8b"s + ff4, "\x8c\xff"s, "\x8a\xff"s}) {
    EXPECT_TRUE(parse_error(kStart + bytes + "."s).says("expected at most")) << parse_error(kStart + bytes + "."s).text;
  }
  EXPECT_TRUE(parse_error(kStart + "Nr"s + ff4 + "."s).says("memo entry 4294967295"));
  EXPECT_TRUE(parse_error(kStart + "Nq\x01."s).says("memo entry 1"));
  EXPECT_TRUE(parse_error(kStart + "j"s + ff4 + "."s).says("memo entry 4294967295"));
}

TEST(PickleReader, Limits) {
  const std::string ones = "(" + std::string(200, 'N') + "t.";
  EXPECT_EQ(parse_error(kStart + ones).text, "no error");
  EXPECT_TRUE(parse_error(kStart + ones, {.max_values = 200}).says("200 values"));
  EXPECT_TRUE(parse_error(kStart + ones, {.max_stack = 199}).says("199 values on the stack"));
  EXPECT_TRUE(parse_error(kStart + ones, {.max_bytes = 100}).says("at most 100"));
  EXPECT_TRUE(parse_error(kStart + std::string(1000, '(')).says("256 containers in each other"));
  EXPECT_TRUE(parse_error(kStart + std::string(100000, 'N')).says("65536 values on the stack"));
}

// Depth without marks is not limited, because nothing here recurses: neither reading nor freeing.
TEST(PickleReader, DeepNesting) {
  const size_t depth = 300000;
  const PickleTree tree(kStart + ")" + std::string(depth, '\x85') + ".", "file", kNames);
  EXPECT_EQ(tree.num_values(), depth + 1);
  const PickleTree lists(kStart + "]" + std::string(60000, ']') + std::string(60000, 'a') + ".", "file", kNames);
  EXPECT_EQ(lists.num_values(), 60001u);
}

// Each level holds the one before twice: 2^30 paths, 31 values.
TEST(PickleReader, SharingDoesNotMultiply) {
  std::string bytes = kStart + ")\x94"s;
  for (char level = 0; level < 30; ++level) bytes += "0h"s + level + "h" + level + "\x86\x94"s;
  const PickleTree tree(bytes + ".", "file", kNames);
  EXPECT_EQ(tree.num_values(), 31u);
}

void touch(PickleValue value, int depth) {
  EXPECT_LE(value.is(PickleKind::kText) ? value.text().size() : 0, 1000u);
  const bool holds_items = value.is(PickleKind::kTuple) || value.is(PickleKind::kList) || value.is(PickleKind::kDict);
  if (!holds_items || depth == 0) return;
  for (const PickleValue item : value) touch(item, depth - 1);
}

// Every prefix, and every byte replaced by every other: an Error or a value.
TEST(PickleReader, DamagedPicklesNeverCrash) {
  const std::string samples[] = {
      kProtocol2 + kContainers,
      kStart +
          "(cm\ncall\nK\x01\x85R\x8c\x01m\x8c\x06Object\x93)\x81\x94}\x8c\x01xK\x02sbccollections\nOrderedDict\n)R\x8c"
          "\x01kK\x03sh\x00t."s,
  };
  size_t num_values = 0;
  const auto try_one = [&](const std::string& bytes) {
    try {
      const PickleTree tree(bytes, "file", kNames);
      touch(tree.root(), 4);
      ++num_values;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
    }
  };
  for (const std::string& sample : samples) {
    try_one(sample);
    EXPECT_EQ(std::exchange(num_values, 0), 1u);
    for (size_t size = 0; size < sample.size(); ++size) try_one(sample.substr(0, size));
    EXPECT_EQ(num_values, 0u) << "a truncated pickle was accepted";
    for (size_t place = 0; place < sample.size(); ++place) {
      std::string bytes = sample;
      for (int value = 0; value < 256; ++value) {
        bytes[place] = static_cast<char>(value);
        try_one(bytes);
      }
    }
    EXPECT_GT(std::exchange(num_values, 0), sample.size());
  }
}

}  // namespace
}  // namespace fsdp::io
