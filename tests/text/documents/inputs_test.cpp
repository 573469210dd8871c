#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/io/temporary_folder.h"
#include "text/documents/document_reader.h"

namespace fsdp::io {
namespace {

// A folder with files of one byte for each character of their name.
class Inputs : public testing::Test {
 protected:
  void make(const std::string& name) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_text(folder_ / name, name);
  }
  // What is found, below the folder.
  std::vector<std::string> find(const std::vector<std::string>& patterns,
                                const std::vector<std::string>& extensions = {".txt"}) const {
    std::vector<std::string> full;
    for (const std::string& pattern : patterns) full.push_back((folder_.path() / pattern).native());
    std::vector<std::string> names;
    for (const InputPart& part : find_inputs(full, extensions)) {
      names.push_back(part.path.lexically_relative(folder_.path()).native());
      const std::filesystem::path target = std::filesystem::canonical(part.path);
      EXPECT_EQ(part.num_bytes, std::filesystem::file_size(target));
    }
    return names;
  }
  using Names = std::vector<std::string>;

  TemporaryFolder folder_;
};

TEST_F(Inputs, FoldersAreSearchedToTheBottom) {
  for (const char* name : {"b.txt", "a/z.txt", "a/deep/er/c.txt", "B.txt", "a.txt", "a/readme.md", ".hidden.txt",
                           ".git/x.txt", "a/.cache/y.txt"}) {
    make(name);
  }
  // Byte by byte: '.' < '/' < 'B' < 'a'.
  EXPECT_EQ(find({""}), Names({"B.txt", "a.txt", "a/deep/er/c.txt", "a/z.txt", "b.txt"}));
  EXPECT_EQ(find({"a"}, {".md"}), Names({"a/readme.md"}));
  EXPECT_EQ(find({"a"}, {}), Names({"a/deep/er/c.txt", "a/readme.md", "a/z.txt"}));
}

TEST_F(Inputs, NamedFilesAreTakenWhateverTheirName) {
  make("notes");
  make(".dot");
  EXPECT_EQ(find({"notes", ".dot"}), Names({".dot", "notes"}));
}

TEST_F(Inputs, Globs) {
  for (const char* name :
       {"a1.txt", "a2.txt", "b1.txt", "x/a1.txt", "x/y/a1.txt", "x/y/z/b.md", ".a.txt", "x/.a1.txt"}) {
    make(name);
  }
  EXPECT_EQ(find({"a*.txt"}), Names({"a1.txt", "a2.txt"}));
  EXPECT_EQ(find({"?[1]*"}), Names({"a1.txt", "b1.txt"}));
  EXPECT_EQ(find({"[!a]1.txt"}), Names({"b1.txt"}));
  EXPECT_EQ(find({"*/a1.txt"}), Names({"x/a1.txt"}));
  EXPECT_EQ(find({"**/a1.txt"}), Names({"a1.txt", "x/a1.txt", "x/y/a1.txt"}));
  EXPECT_EQ(find({"**/**/**/a1.txt"}), Names({"a1.txt", "x/a1.txt", "x/y/a1.txt"}));
  EXPECT_EQ(find({"x/**"}), Names({"x/a1.txt", "x/y/a1.txt", "x/y/z/b.md"}));
  EXPECT_EQ(find({"x/**/z/*"}), Names({"x/y/z/b.md"}));
  // A folder that a glob leads to is searched as a named one.
  EXPECT_EQ(find({"*"}), Names({"a1.txt", "a2.txt", "b1.txt", "x/a1.txt", "x/y/a1.txt"}));
}

TEST_F(Inputs, ANameWithGlobCharactersIsThatFile) {
  make("a[1].txt");
  make("a1.txt");
  EXPECT_EQ(find({"a[1].txt"}), Names({"a[1].txt"}));
}

TEST_F(Inputs, EachFileOnce) {
  make("a/x.txt");
  make("a/y.txt");
  EXPECT_EQ(find({"a", "a/x.txt", "./a/*.txt", "a/../a"}).size(), 2U);
}

TEST_F(Inputs, LinksToFilesAreFollowedThoseToFoldersNot) {
  make("blobs/1234");
  make("other/far.txt");
  make("data/near.txt");
  std::filesystem::create_symlink("../blobs/1234", folder_ / "data/linked.txt");
  std::filesystem::create_symlink("../other", folder_ / "data/folder");
  std::filesystem::create_symlink("..", folder_ / "data/up");
  std::filesystem::create_symlink("nowhere", folder_ / "data/broken.txt");
  EXPECT_EQ(find({"data"}), Names({"data/linked.txt", "data/near.txt"}));
  EXPECT_EQ(find({"data/**"}), Names({"data/linked.txt", "data/near.txt"}));
  EXPECT_EQ(find({"data/folder"}), Names({"data/folder/far.txt"}));  // named: that is where to look
}

TEST_F(Inputs, NothingFoundNamesWhatWasLookedFor) {
  make("a.txt");
  make("empty/readme.md");
  const auto error = [&](const std::string& pattern) { return catch_error([&] { find({"a.txt", pattern}); }); };
  EXPECT_TRUE(error("none").says("none': got no such file or folder"));
  EXPECT_TRUE(error("*.json").says("*.json': got no file that matches"));
  EXPECT_TRUE(error("none/*").says("none/*': got no file that matches"));
  EXPECT_TRUE(error("a.txt/*").says("a.txt/*': got no file that matches"));
  EXPECT_TRUE(error("empty").says("empty': got a folder without such files, expected at least one below it that ends"));
  EXPECT_EQ(error("none").kind, ErrorKind::kData);
  EXPECT_EQ(catch_error([&] { find({}); }).kind, ErrorKind::kUsage);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(error("pipe").says("pipe': got a device, socket or pipe"));
}

TEST_F(Inputs, TheDefaultExtensionsAreThoseThatAReaderKnows) {
  for (const std::string& extension : document_extensions()) {
    const Container container = container_of("part-0" + extension);
    EXPECT_EQ(container == Container::kParquet, extension == ".parquet") << extension;
    EXPECT_EQ(container == Container::kJsonLines, extension.starts_with(".json")) << extension;
  }
  EXPECT_EQ(container_of("README"), Container::kText);
  EXPECT_EQ(container_of("a.md.gz"), Container::kText);
}

}  // namespace
}  // namespace fsdp::io
