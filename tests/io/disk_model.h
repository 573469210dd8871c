#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/base/file_ops.h"

namespace fsdp::io {

// One change of the disk. Paths are relative to the recorded folder.
struct DiskOperation {
  enum class Kind { kMakeFolder, kCreate, kWrite, kSync, kRename, kExchange, kUnlink, kSyncFolder };
  Kind kind;
  std::string path;  // of kWrite and kSync: the one the file was created under
  std::string other = {};
  int file = 0;  // of kCreate, kWrite, kSync: counted from 0 in the order of creation
  uint64_t offset = 0;
  std::string data = {};
};

// Does everything in a real folder, and writes down what was done.
class RecordingFiles : public FileOps {
 public:
  explicit RecordingFiles(std::filesystem::path base) : base_(std::move(base)) {}

  const std::vector<DiskOperation>& operations() const { return operations_; }

  bool can_exchange = true;
  bool forgets_file_syncs = false;    // as a program would that does not call fsync
  bool forgets_folder_syncs = false;  // on files, on folders

  void make_folder(const std::filesystem::path& folder) override {
    system_files().make_folder(folder);
    add({DiskOperation::Kind::kMakeFolder, relative(folder)});
  }
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path, WriteMode mode) override {
    auto file = std::make_unique<File>(*this, relative(path), num_files_, system_files().create(path, mode));
    add({.kind = DiskOperation::Kind::kCreate, .path = relative(path), .file = num_files_++});
    return file;
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    system_files().rename(from, to);
    add({DiskOperation::Kind::kRename, relative(from), relative(to)});
  }
  bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    if (!can_exchange) return false;
    if (!system_files().exchange(a, b)) throw std::runtime_error("these tests need a disk that can swap names");
    add({DiskOperation::Kind::kExchange, relative(a), relative(b)});
    return true;
  }
  void remove_all(const std::filesystem::path& path) override {
    record_removal(path);
    system_files().remove_all(path);
  }
  void sync_folder(const std::filesystem::path& folder) override {
    if (!forgets_folder_syncs) add({DiskOperation::Kind::kSyncFolder, relative(folder)});
  }

 private:
  // The real files are never synced: the model knows what that would do, and the test is faster.
  struct File : OutputFile {
    File(RecordingFiles& owner, std::string path, int number, std::unique_ptr<OutputFile> file)
        : owner(owner), path(std::move(path)), number(number), file(std::move(file)) {}
    void write_at(uint64_t offset, const void* data, size_t num_bytes) override {
      file->write_at(offset, data, num_bytes);
      owner.add({.kind = DiskOperation::Kind::kWrite,
                 .path = path,
                 .file = number,
                 .offset = offset,
                 .data = std::string(static_cast<const char*>(data), num_bytes)});
    }
    void sync() override {
      if (!owner.forgets_file_syncs) owner.add({.kind = DiskOperation::Kind::kSync, .path = path, .file = number});
    }
    RecordingFiles& owner;
    std::string path;
    int number;
    std::unique_ptr<OutputFile> file;
  };

  std::string relative(const std::filesystem::path& path) const { return path.lexically_relative(base_).native(); }
  void add(DiskOperation operation) { operations_.push_back(std::move(operation)); }

  // File by file, as the system does it.
  void record_removal(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) return;
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) record_removal(entry.path());
    }
    add({DiskOperation::Kind::kUnlink, relative(path)});
  }

  std::filesystem::path base_;
  std::vector<DiskOperation> operations_;
  int num_files_ = 0;
};

// What a power failure leaves of what was not synced. Each change of a folder (a rename is one) stays or goes; of file
// data, each 512 bytes.
struct PowerLoss {
  double keep_entries = 0;  // probability that an unsynced change of a folder stays
  double keep_data = 0;     // that 512 unsynced bytes of a file do
  uint64_t seed = 0;
};

// A disk with its cache: knows of every file and folder what is durable and what is only hoped for.
class DiskModel {
 public:
  using Tree = std::map<std::string, std::string>;  // path -> content; a folder's path ends with '/'

  DiskModel() : nodes_(1) { nodes_[0].is_folder = true; }

  void apply(const DiskOperation& operation) {
    using Kind = DiskOperation::Kind;
    const std::string& path = operation.path;
    switch (operation.kind) {
      case Kind::kMakeFolder:
        return change(path, {{name_of(path), add_node(true)}});
      case Kind::kCreate:
        files_.push_back(add_node(false));
        return change(path, {{name_of(path), files_.back()}});
      case Kind::kWrite:
        return node_of(operation).writes.push_back({operation.offset, operation.data});
      case Kind::kSync:
        for (const Write& write : node_of(operation).writes) put(node_of(operation).durable, write);
        return node_of(operation).writes.clear();
      case Kind::kRename:
        return change(path, {{name_of(path), kNone}, {name_of(operation.other), find(path)}});
      case Kind::kExchange:
        return change(path, {{name_of(path), find(operation.other)}, {name_of(operation.other), find(path)}});
      case Kind::kUnlink:
        return change(path, {{name_of(path), kNone}});
      case Kind::kSyncFolder:
        nodes_[find(path)].durable_entries = nodes_[find(path)].entries;
        return nodes_[find(path)].changes.clear();
    }
  }

  // All that is left after a power failure now.
  Tree after(const PowerLoss& loss) const {
    Tree tree;
    std::mt19937_64 random(loss.seed);
    collect(0, "", loss, random, tree);
    return tree;
  }

 private:
  static constexpr int kNone = -1;
  static constexpr uint64_t kSectorBytes = 512;
  using Entries = std::map<std::string, int>;  // name -> node; kNone removes the name
  struct Write {
    uint64_t offset;
    std::string data;
  };
  struct Node {
    bool is_folder = false;
    std::string durable;               // content of a file
    std::vector<Write> writes;         // since its last sync
    Entries entries, durable_entries;  // of a folder: now, and at its last sync
    std::vector<Entries> changes;      // since its last sync
  };

  static std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().native(); }

  static void put(std::string& content, const Write& write) {
    content.resize(std::max<size_t>(content.size(), write.offset + write.data.size()));
    content.replace(write.offset, write.data.size(), write.data);
  }

  static void apply_change(Entries& entries, const Entries& change) {
    for (const auto& [name, node] : change) {
      if (node == kNone) entries.erase(name);
      if (node != kNone) entries[name] = node;
    }
  }

  int add_node(bool is_folder) {
    nodes_.emplace_back().is_folder = is_folder;
    return static_cast<int>(nodes_.size()) - 1;
  }

  Node& node_of(const DiskOperation& operation) { return nodes_[files_[operation.file]]; }

  int find(const std::string& path) const {
    int node = 0;
    for (const auto& name : std::filesystem::path(path)) {
      if (name != ".") node = nodes_[node].entries.at(name.native());
    }
    return node;
  }

  // All names of a change are in one folder.
  void change(const std::string& path, Entries change) {
    Node& folder = nodes_[find(std::filesystem::path(path).parent_path().native())];
    apply_change(folder.entries, change);
    folder.changes.push_back(std::move(change));
  }

  void collect(int number, const std::string& path, const PowerLoss& loss, std::mt19937_64& random, Tree& tree) const {
    const auto stays = [&](double probability) {
      return std::uniform_real_distribution<double>(0, 1)(random) < probability;
    };
    const Node& node = nodes_[number];
    if (node.is_folder) {
      if (!path.empty()) tree[path + "/"];
      Entries entries = node.durable_entries;
      for (const Entries& change : node.changes) {
        if (stays(loss.keep_entries)) apply_change(entries, change);
      }
      for (const auto& [name, child] : entries)
        collect(child, path.empty() ? name : path + "/" + name, loss, random, tree);
      return;
    }
    std::string content = node.durable;
    for (const Write& write : node.writes) {
      for (uint64_t at = 0; at < write.data.size(); at += kSectorBytes) {
        if (stays(loss.keep_data)) put(content, {write.offset + at, write.data.substr(at, kSectorBytes)});
      }
    }
    tree[path] = std::move(content);
  }

  std::vector<Node> nodes_;
  std::vector<int> files_;  // node of each file, in the order of creation
};

// Makes the tree in an empty folder.
inline void materialise(const DiskModel::Tree& tree, const std::filesystem::path& folder) {
  for (const auto& [path, content] : tree) {
    if (path.back() == '/') {
      std::filesystem::create_directory(folder / path.substr(0, path.size() - 1));
    } else {
      std::ofstream(folder / path, std::ios::binary) << content;
    }
  }
}

}  // namespace fsdp::io
