#include "train/prepare/prepare.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fsdp/base/error.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "io/tokens/token_shards.h"
#include "tests/io/temporary_folder.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "train/prepare/document_encoder.h"
#include "train/prepare/document_stream.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

class Prepare : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // Lines of 60 to 100 bytes of text; documents are numbered from `first`.
  void write_json_lines(const std::string& name, int first, int count) {
    std::string lines;
    for (int i = first; i < first + count; ++i) {
      const std::string text = "document " + std::to_string(i) + " " + std::string(static_cast<size_t>(i % 40), 'x');
      lines += nlohmann::json{{"text", text}, {"id", i}}.dump() + "\n";
    }
    write(name, lines);
  }
  PrepareOptions options() {
    PrepareOptions options;
    options.inputs = {folder_ / "text"};
    options.output = folder_ / "data";
    return options;
  }
  PrepareResult run(const PrepareOptions& options) {
    Console console(Console::Sink::kSilent);
    return prepare(options, console);
  }
  std::string failure(const PrepareOptions& options, ErrorCode code) {
    try {
      run(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    } catch (const io::Error& error) {
      const std::map<io::ErrorKind, ErrorCode> codes = {{io::ErrorKind::kUsage, ErrorCode::kUsage},
                                                        {io::ErrorKind::kData, ErrorCode::kData},
                                                        {io::ErrorKind::kModel, ErrorCode::kCheckpoint},
                                                        {io::ErrorKind::kFileSystem, ErrorCode::kFileSystem}};
      EXPECT_EQ(codes.at(error.kind()), code) << error.what();
      return error.what();
    }
    return "no error";
  }
  // Every file of a data set with its content.
  static std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files[fs::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(file),
                                                   std::istreambuf_iterator<char>()};
    }
    return files;
  }
  static std::vector<int32_t> tokens_of(const io::TokenDataset& data) {
    std::vector<int32_t> tokens(static_cast<size_t>(data.num_tokens()));
    data.read(0, data.num_tokens(), tokens.data());
    return tokens;
  }
  // The documents of a split of byte tokens.
  static std::set<std::string> documents_of(const fs::path& folder, const std::string& split) {
    std::set<std::string> documents;
    std::string text;
    for (const int32_t token : tokens_of(io::TokenDataset::open(folder, split))) {
      if (token == byte_tokenizer::kBegin) text.clear();
      if (token == byte_tokenizer::kEnd) documents.insert(text);
      if (byte_tokenizer::is_byte(token)) text += static_cast<char>(token);
    }
    return documents;
  }

  io::TemporaryFolder folder_;
};

TEST_F(Prepare, OneDocumentPerFileInSortedOrder) {
  write("text/b.h", "bb");
  write("text/a/z.cpp", "a\xFF");
  write("text/empty", "");
  write("text/.git/x", "hidden");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.num_files, 2);
  EXPECT_EQ(result.num_empty_files, 1);
  EXPECT_EQ(result.train.num_tokens, 8);
  EXPECT_EQ(result.num_text_bytes, 4);
  const auto data = io::TokenDataset::open(wanted.output, "train");
  EXPECT_EQ(tokens_of(data), (std::vector<int32_t>{256, 'a', 255, 257, 256, 'b', 'b', 257}));
  EXPECT_EQ(data.document_starts(0, 8), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(data.vocab_size(), byte_tokenizer::kVocabSize);
  EXPECT_EQ(data.eos_id(), byte_tokenizer::kEnd);
  EXPECT_FALSE(data.has_mask());
  EXPECT_EQ(data.tokenizer(), "bytes");
  EXPECT_EQ(data.tokenizer_hash().size(), 16u);
  EXPECT_TRUE(fs::exists(wanted.output / "tokenizer" / byte_tokenizer::kMarkerFile));
  EXPECT_EQ(folder_.num_files(), 2u) << "something is left beside the data set";
}

TEST_F(Prepare, JsonLinesAndSeparatedText) {
  write("text/a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"two\"}\n");
  write("text/b.txt", "three\n<|end|>\nfour\n");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  wanted.documents.separator = "<|end|>";
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.train.num_documents, 4);
  EXPECT_EQ(result.num_empty_documents, 1);
  EXPECT_EQ(documents_of(wanted.output, "train"), (std::set<std::string>{"one", "two", "three", "four"}));
}

TEST_F(Prepare, HoldsOutByContentWhateverElseThereIs) {
  write_json_lines("text/a.jsonl", 0, 2000);
  PrepareOptions wanted = options();
  wanted.holdout = 0.1;
  const PrepareResult result = run(wanted);
  EXPECT_NEAR(static_cast<double>(result.heldout.num_documents), 200, 60);
  const auto before = documents_of(wanted.output, "heldout");
  write_json_lines("text/0.jsonl", 2000, 1000);
  fs::rename(folder_ / "text/a.jsonl", folder_ / "text/z.jsonl");
  wanted.overwrite = true;
  run(wanted);
  const auto after = documents_of(wanted.output, "heldout");
  EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  EXPECT_GT(after.size(), before.size());
  for (const std::string& document : documents_of(wanted.output, "train")) EXPECT_EQ(after.count(document), 0u);
}

TEST_F(Prepare, HoldsOutANumberOfDocuments) {
  write_json_lines("text/a.jsonl", 0, 300);
  PrepareOptions wanted = options();
  wanted.holdout_documents = 17;
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.heldout.num_documents, 17);
  EXPECT_EQ(result.train.num_documents, 283);
  wanted.holdout_documents = 300;
  wanted.output = folder_ / "other";
  EXPECT_NE(failure(wanted, ErrorCode::kData).find("leave nothing to train on"), std::string::npos);
  EXPECT_FALSE(fs::exists(wanted.output));
}

TEST_F(Prepare, SameResultForAnyNumberOfThreads) {
  write_json_lines("text/large.jsonl", 0, 40000);  // several pieces, of several batches each
  for (int i = 0; i < 5; ++i) {
    write_json_lines("text/small" + std::to_string(i) + ".jsonl", 100000 * i, 500);
  }
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 7}) {
    PrepareOptions wanted = options();
    wanted.threads = threads;
    wanted.overwrite = true;
    wanted.shard_bytes = 1200000;
    const PrepareResult result = run(wanted);
    EXPECT_EQ(result.train.num_documents + result.heldout.num_documents, 42500);
    if (first.empty()) {
      first = contents(wanted.output);
      EXPECT_GT(first.size(), 6u);  // several shards
    } else {
      EXPECT_TRUE(contents(wanted.output) == first) << threads << " threads";
    }
  }
}

// The run that fails leaves what it has finished; the next one takes it and comes to the same result as one that never
// failed.
TEST_F(Prepare, GoesOnWhereItWasInterrupted) {
  write_json_lines("text/a.jsonl", 0, 8000);
  write_json_lines("text/b.jsonl", 20000, 100);
  PrepareOptions wanted = options();
  wanted.threads = 1;
  wanted.shard_bytes = 100000;
  wanted.output = folder_ / "reference";
  const PrepareResult reference = run(wanted);
  EXPECT_EQ(reference.num_reused_shards, 0);

  wanted.output = folder_ / "data";
  write("text/b.jsonl", "{\"text\": \"broken");
  EXPECT_NE(failure(wanted, ErrorCode::kData).find("b.jsonl"), std::string::npos);
  EXPECT_FALSE(fs::exists(wanted.output));
  const fs::path staging = folder_ / ".data.prepare";
  ASSERT_TRUE(fs::exists(staging));
  write_json_lines("text/b.jsonl", 20000, 100);
  // One of the finished shards is damaged.
  std::ofstream(staging / "train-00000-00002.bin", std::ios::binary | std::ios::app) << "x";
  wanted.threads = 3;
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.num_reused_shards, 2);  // those before the damaged one
  EXPECT_TRUE(contents(wanted.output) == contents(folder_ / "reference"));
  EXPECT_EQ(result.num_text_bytes, reference.num_text_bytes);
  EXPECT_FALSE(fs::exists(staging));
}

TEST_F(Prepare, OtherOptionsBeginAnew) {
  write_json_lines("text/a.jsonl", 0, 8000);
  write("text/b.jsonl", "{\"text\": \"broken");
  PrepareOptions wanted = options();
  wanted.shard_bytes = 100000;
  failure(wanted, ErrorCode::kData);
  wanted.documents.bad_record = io::BadRecord::kSkip;  // changes nothing of what was finished without one
  wanted.holdout = 0.2;                                // but this does
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.num_reused_shards, 0);
  EXPECT_NEAR(static_cast<double>(result.heldout.num_documents), 1600, 180);
}

TEST_F(Prepare, BadRecordsStopOrAreSkippedWithReasons) {
  write("text/a.jsonl", "{\"text\": \"one\"}\nnonsense\n{\"txt\": 1}\n{\"text\": \"two\"}\n");
  write("text/b.jsonl", "");
  write("text/c.jsonl", "{\"text\": \"three\"}\n{\"text\": 7}\n[\n");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  const std::string message = failure(wanted, ErrorCode::kData);
  EXPECT_NE(message.find("a.jsonl':2"), std::string::npos) << message;
  EXPECT_EQ(folder_.num_files(), 1u);
  wanted.documents.bad_record = io::BadRecord::kSkip;
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.num_skipped, 4);
  ASSERT_EQ(result.skipped_because.size(), Skipped::kMostReasons);
  EXPECT_NE(result.skipped_because[0].find("a.jsonl':2"), std::string::npos) << result.skipped_because[0];
  EXPECT_NE(result.skipped_because[2].find("c.jsonl':2"), std::string::npos) << result.skipped_because[2];
  EXPECT_EQ(documents_of(wanted.output, "train"), (std::set<std::string>{"one", "two", "three"}));
}

TEST_F(Prepare, ConversationsHaveAMaskOfTheirAnswers) {
  const std::vector<std::string> lines = {
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]})",
      R"({"prompt": "2+2=", "completion": "4"})"};
  write("text/a.jsonl", lines[0] + "\n" + lines[1] + "\n");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  wanted.chat = "plain";
  const PrepareResult result = run(wanted);
  // Against the renderer itself.
  const auto bytes = tokenizer::Tokenizer::bytes();
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (const std::string& line : lines) {
    const auto rendered = chat::render(bytes, chat::Format::kPlain, chat::parse_conversation(line));
    ids.insert(ids.end(), rendered.ids.begin(), rendered.ids.end());
    mask.insert(mask.end(), rendered.is_answer.begin(), rendered.is_answer.end());
  }
  const auto data = io::TokenDataset::open(wanted.output, "train");
  ASSERT_TRUE(data.has_mask());
  EXPECT_EQ(tokens_of(data), ids);
  std::vector<uint8_t> stored(ids.size());
  data.read_mask(0, data.num_tokens(), stored.data());
  EXPECT_EQ(stored, mask);
  EXPECT_EQ(result.train.num_answers, 3 + 1 + 1 + 1);  // "yes", "4", and the ends
  EXPECT_EQ(data.num_answers(), result.train.num_answers);
}

TEST_F(Prepare, WhatIsNoConversationIsABadRecord) {
  write("text/a.jsonl",
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"no chat\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"alone\"}]}\n");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  wanted.chat = "plain";
  const std::string message = failure(wanted, ErrorCode::kData);
  EXPECT_NE(message.find("a.jsonl': record 2"), std::string::npos) << message;
  wanted.documents.bad_record = io::BadRecord::kSkip;
  const PrepareResult result = run(wanted);
  EXPECT_EQ(result.train.num_documents, 1);
  EXPECT_EQ(result.num_skipped, 2);
  wanted.chat = "klingon";
  EXPECT_NE(failure(wanted, ErrorCode::kUsage).find("--chat: got klingon"), std::string::npos);
}

TEST_F(Prepare, ExtensionsAndLongFiles) {
  write("text/a.h", "0123456789");
  write("text/b.cpp", "x");
  write("text/vector", "y");
  PrepareOptions wanted = options();
  wanted.extensions = {".h", ".cpp"};
  wanted.holdout = 0;
  wanted.documents.max_document_bytes = 4;
  EXPECT_EQ(run(wanted).num_files, 2);
  EXPECT_EQ(io::TokenDataset::open(wanted.output, "train").num_documents(), 4);
}

TEST_F(Prepare, ErrorsNameTheFixAndLeaveNothing) {
  EXPECT_NE(failure(options(), ErrorCode::kData).find("text"), std::string::npos);
  write("text/empty", "");
  EXPECT_NE(failure(options(), ErrorCode::kData).find("empty corpus"), std::string::npos);
  write("text/only", "one file");
  PrepareOptions wanted = options();
  wanted.holdout = 0.999999999;
  EXPECT_NE(failure(wanted, ErrorCode::kData).find("leave nothing to train on"), std::string::npos);
  wanted = options();
  wanted.tokenizer = folder_ / "nothing";
  EXPECT_NE(failure(wanted, ErrorCode::kCheckpoint).find("nothing"), std::string::npos);
  wanted = options();
  wanted.extensions = {".zip"};
  EXPECT_NE(failure(wanted, ErrorCode::kData).find(".zip"), std::string::npos);
  EXPECT_EQ(folder_.num_files(), 1u);  // the text and nothing else
  write("data/keep", "important");
  EXPECT_NE(failure(options(), ErrorCode::kUsage).find("--overwrite"), std::string::npos);
  wanted = options();
  wanted.overwrite = true;
  EXPECT_NE(failure(wanted, ErrorCode::kUsage).find("something else than a data set"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "data/keep"));
  wanted = options();
  write("file", "");
  wanted.output = folder_ / "file/below";
  EXPECT_NE(failure(wanted, ErrorCode::kFileSystem).find("cannot be created"), std::string::npos);
  EXPECT_EQ(folder_.num_files(), 3u);
}

// A run that was told to write into its data set is not removed with that.
TEST_F(Prepare, OverwriteRemovesADataSetAndNothingElse) {
  write("text/a.txt", "first");
  PrepareOptions wanted = options();
  wanted.holdout = 0;
  wanted.overwrite = true;
  run(wanted);
  for (const char* name : {"run/config.toml", "notes.txt", "tokenizer.bin/x"}) {
    write(std::string("data/") + name, "mine");
    const std::string message = failure(wanted, ErrorCode::kUsage);
    const std::string first = fs::path(name).begin()->string();
    EXPECT_NE(message.find("got '" + first + "' beside the data set"), std::string::npos) << message;
    EXPECT_TRUE(fs::exists(folder_ / "data" / name));
    EXPECT_TRUE(fs::exists(folder_ / "data/dataset.json"));
    EXPECT_EQ(folder_.num_files(), 2u) << "something is left beside the data set";
    fs::remove_all(folder_ / "data" / first);
  }
  write("data/references-train-0123456789abcdef.bin", "of preferences");
  write("data/.references-train-0123456789abcdef.bin.tmp-1-0", "of a run that was killed");
  write("text/a.txt", "other");
  run(wanted);
  EXPECT_EQ(documents_of(wanted.output, "train"), (std::set<std::string>{"other"}));
  EXPECT_FALSE(fs::exists(folder_ / "data/references-train-0123456789abcdef.bin"));
}

// Whoever may write beside the output could have made it.
TEST_F(Prepare, AFolderThatSomebodyElsePutInItsPlaceIsRefused) {
  write("text/a", "a");
  const fs::path staging = folder_ / ".data.prepare";
  write("private/precious", "mine");
  fs::create_directory_symlink(folder_ / "private", staging);
  EXPECT_NE(failure(options(), ErrorCode::kUsage).find("no folder"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "private/precious"));
  fs::remove(staging);
  write(".data.prepare", "a file");
  EXPECT_NE(failure(options(), ErrorCode::kUsage).find("no folder"), std::string::npos);
  fs::remove(staging);
  fs::create_directory(staging);
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(staging, fs::perms::owner_all | others);
    EXPECT_NE(failure(options(), ErrorCode::kUsage).find("other users may write"), std::string::npos);
  }
  fs::permissions(staging, fs::perms::owner_all);
  run(options());
  EXPECT_TRUE(fs::exists(folder_ / "data/dataset.json"));
}

TEST_F(Prepare, WhatItMakesIsNotForOthersToChange) {
  write("text/a", "a");
  const mode_t before = umask(0);
  run(options());
  umask(before);
  EXPECT_EQ(fs::status(folder_ / "data").permissions(), static_cast<fs::perms>(0755));
}

TEST_F(Prepare, OneProcessAtATime) {
  write("text/a", "a");
  fs::create_directory(folder_ / ".data.prepare");
  fs::permissions(folder_ / ".data.prepare", fs::perms::owner_all);
  const io::FolderLock other(folder_ / ".data.prepare");
  EXPECT_NE(failure(options(), ErrorCode::kUsage).find("uses, expected a free one"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::train
