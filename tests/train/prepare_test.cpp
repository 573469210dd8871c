#include "train/prepare.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>

#include "fsdp/base/error.h"
#include "io/token_shards.h"
#include "tests/io/temporary_folder.h"
#include "train/byte_tokenizer.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

class Prepare : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
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
    }
    return "no error";
  }
  // Every file of a folder with its content.
  static std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }
    return files;
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
  EXPECT_EQ(result.num_tokens, 8);
  const auto data = io::TokenDataset::open(wanted.output, "train");
  std::vector<int32_t> tokens(8);
  data.read(0, 8, tokens.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{256, 'a', 255, 257, 256, 'b', 'b', 257}));
  EXPECT_EQ(data.document_starts(0, 8), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(data.vocab_size(), byte_tokenizer::kVocabSize);
  EXPECT_EQ(data.eos_id(), byte_tokenizer::kEnd);
}

TEST_F(Prepare, HoldsOutTheLastFiles) {
  for (int i = 0; i < 20; ++i) {
    write("text/f" + std::to_string(100 + i), std::string(static_cast<size_t>(i) + 1, static_cast<char>('a' + i)));
  }
  PrepareOptions wanted = options();
  wanted.holdout = 0.1;
  EXPECT_EQ(run(wanted).num_heldout_files, 2);
  const auto heldout = io::TokenDataset::open(wanted.output, "heldout");
  EXPECT_EQ(heldout.num_documents(), 2);
  EXPECT_EQ(heldout.num_tokens(), 19 + 20 + 4);
}

TEST_F(Prepare, SameResultForAnyNumberOfThreads) {
  for (int i = 0; i < 40; ++i) {
    write("text/f" + std::to_string(i), std::string(200000, static_cast<char>(i)));
  }
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 7}) {
    PrepareOptions wanted = options();
    wanted.threads = threads;
    wanted.overwrite = true;
    run(wanted);
    if (first.empty()) {
      first = contents(wanted.output);
      EXPECT_GT(first.size(), 5u);  // several shards
    } else {
      EXPECT_EQ(contents(wanted.output), first);
    }
  }
}

TEST_F(Prepare, ExtensionsAndLongFiles) {
  write("text/a.h", "0123456789");
  write("text/b.cpp", "x");
  write("text/vector", "y");
  PrepareOptions wanted = options();
  wanted.extensions = {".h", ""};
  wanted.holdout = 0;
  wanted.max_document_bytes = 4;
  EXPECT_EQ(run(wanted).num_files, 2);
  EXPECT_EQ(io::TokenDataset::open(wanted.output, "train").num_documents(), 4);
}

TEST_F(Prepare, ErrorsNameTheFixAndLeaveNothing) {
  EXPECT_NE(failure(options(), ErrorCode::kData).find("does not exist"), std::string::npos);
  write("text/empty", "");
  EXPECT_NE(failure(options(), ErrorCode::kData).find("empty corpus"), std::string::npos);
  write("text/only", "one file");
  EXPECT_NE(failure(options(), ErrorCode::kData).find("leave nothing to train on"), std::string::npos);
  write("text/second", "another");
  PrepareOptions wanted = options();
  wanted.extensions = {".zip"};
  EXPECT_NE(failure(wanted, ErrorCode::kData).find("--include"), std::string::npos);
  EXPECT_EQ(folder_.num_files(), 1u);  // the text and nothing else
  write("data/keep", "important");
  EXPECT_NE(failure(options(), ErrorCode::kUsage).find("--overwrite"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "data/keep"));
  wanted = options();
  write("file", "");
  wanted.output = folder_ / "file/below";
  EXPECT_NE(failure(wanted, ErrorCode::kFileSystem).find("cannot be created"), std::string::npos);
  EXPECT_EQ(folder_.num_files(), 3u);
}

}  // namespace
}  // namespace fsdp::train
