#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// What a pickle may do with a name of the allow-list. Nothing is looked up, imported or called in any case.
enum class PickleUse : uint8_t {
  kConstant,  // only stand there, as torch.float32 does
  kCall,      // be called (REDUCE): becomes a kCall node with its arguments
  kObject,    // be instantiated (NEWOBJ, BUILD): becomes a kObject node with its state
  kDict,      // be called without arguments: becomes an empty dict
};

// A name that a pickle may mention.
struct PickleGlobal {
  std::string_view module;
  std::string_view name;
  PickleUse use;
};

// What reading may cost at most.
struct PickleLimits {
  uint64_t max_bytes = uint64_t{64} << 20;  // below 4 GiB
  size_t max_values = size_t{1} << 22;      // 24 bytes of memory each
  size_t max_stack = size_t{1} << 16;       // values not yet in a container
  size_t max_marks = 256;                   // containers inside each other
  size_t max_name_bytes = 256;              // of a module or a class
  bool persistent_ids = false;              // allow BINPERSID, with which torch.save names a storage
};

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInteger,
  kReal,
  kText,
  kBytes,
  kTuple,
  kList,
  kDict,
  kGlobal,      // a name of the allow-list itself
  kCall,        // global() called with arguments()
  kObject,      // an instance of global(), made from arguments() and state()
  kPersistent,  // item(): the id of something stored elsewhere
};

class PickleTree;

// One value of a tree, to be passed by value; lives as long as its tree. Accessors return nothing useful for other
// kinds than those named: check kind() first. Values can be shared and can contain themselves: never recurse blindly.
class PickleValue {
 public:
  PickleKind kind() const;
  bool is(PickleKind other) const { return kind() == other; }
  bool boolean() const { return integer() != 0; }  // kBool
  int64_t integer() const;                         // kInteger, kBool
  double real() const;                             // kReal
  std::string_view text() const;                   // kText (not checked to be UTF-8), kBytes
  // kGlobal, kCall, kObject: index in the allow-list.
  size_t global() const;
  // kTuple, kList, kDict: number of items; a dict has key, value, key, value, ...
  size_t size() const;
  PickleValue arguments() const;  // kCall, kObject: a kTuple
  PickleValue state() const;      // kObject: what BUILD gave it, or kNone
  PickleValue item() const;       // kPersistent

  // Over the items of a kTuple, kList or kDict, in their order.
  class Iterator {
   public:
    PickleValue operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return edge_ != other.edge_; }

   private:
    friend class PickleValue;
    Iterator(const PickleTree* tree, uint32_t edge) : tree_(tree), edge_(edge) {}
    const PickleTree* tree_;
    uint32_t edge_;
  };
  Iterator begin() const;
  Iterator end() const;

 private:
  friend class PickleTree;
  friend class PickleParser;
  PickleValue(const PickleTree* tree, uint32_t node) : tree_(tree), node_(node) {}
  const PickleTree* tree_;
  uint32_t node_;
};

// A pickle (protocols 2 to 5) as plain data: what torch.distributed.checkpoint and torch.save put into their files, and
// no more. Immutable; owns its bytes; not movable, because values point to it.
class PickleTree {
 public:
  // `allowed` must outlive the tree. `origin` (a file name) starts every message. Throws Error(kModel) naming the byte
  // for anything that is damaged, over a limit, or not on the list.
  PickleTree(std::string bytes, std::string_view origin, std::span<const PickleGlobal> allowed,
             const PickleLimits& limits = {});
  PickleTree(const PickleTree&) = delete;
  PickleTree& operator=(const PickleTree&) = delete;

  PickleValue root() const { return {this, root_}; }
  const PickleGlobal& global(size_t index) const { return allowed_[index]; }
  size_t num_values() const { return nodes_.size(); }

 private:
  friend class PickleValue;
  friend class PickleParser;
  static constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

  struct Pair {
    uint32_t first;
    uint32_t last;
  };
  // 16 bytes.
  struct Node {
    PickleKind kind = PickleKind::kNone;
    uint16_t global = 0;
    uint32_t count = 0;  // items of a container, bytes of a text
    union {
      int64_t integer = 0;  // also: offset of a text
      double real;
      Pair pair;  // first and last edge of a container; arguments (or item) and state of the others
    };
  };
  struct Edge {
    uint32_t node;
    uint32_t next;
  };

  std::string bytes_;
  std::span<const PickleGlobal> allowed_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  uint32_t root_ = kNowhere;
};

}  // namespace fsdp::io
