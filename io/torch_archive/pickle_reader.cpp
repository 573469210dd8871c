#include "io/torch_archive/pickle_reader.h"

#include <bit>
#include <utility>

#include "io/base/error.h"
#include "io/torch_archive/pickle_cursor.h"
#include "io/torch_archive/pickle_opcodes.h"

namespace fsdp::io {

using namespace pickle_opcode;

namespace {

constexpr int kMinProtocol = 2;
constexpr int kMaxProtocol = 5;

}  // namespace

// The pickle machine: a stack, a memo, and the tree it fills.
class PickleParser {
 public:
  PickleParser(PickleTree& tree, std::string_view origin, const PickleLimits& limits)
      : tree_(tree), cursor_(tree.bytes_, origin), limits_(limits) {}

  void parse();

 private:
  using Node = PickleTree::Node;

  // Errors.
  [[noreturn]] void fail(const std::string& detail) const { cursor_.fail(detail); }
  [[noreturn]] void refuse_opcode(uint8_t code) const;
  [[noreturn]] void refuse_use(std::string_view use, const PickleGlobal& global) const;
  [[noreturn]] void refuse_global(std::string_view module, std::string_view name) const;

  // Stack.
  void push(uint32_t node);
  uint32_t pop();
  size_t mark();
  size_t top(size_t count) const;
  static Node pair_node(PickleKind kind, uint16_t global = 0, uint32_t first = PickleTree::kNowhere);
  uint32_t add(const Node& node);
  void push_new(const Node& node) { push(add(node)); }
  PickleKind kind(uint32_t node) const { return tree_.nodes_[node].kind; }

  // Opcodes, by group. True: it was one of this group.
  bool number_opcode(uint8_t code);
  bool text_opcode(uint8_t code);
  bool container_opcode(uint8_t code);
  bool object_opcode(uint8_t code);
  bool memo_opcode(uint8_t code);

  void push_text(PickleKind kind, uint64_t num_bytes);
  void push_tuple(size_t begin);
  void extend(size_t place, PickleKind expected);
  void link(Node& container, uint32_t item);
  void push_global(std::string_view module, std::string_view name);
  uint16_t pop_callee(uint32_t arguments);
  void reduce();
  void new_object();
  void build();
  void put(uint64_t index);
  void get(uint64_t index);

  PickleTree& tree_;
  PickleCursor cursor_;
  const PickleLimits& limits_;
  std::vector<uint32_t> stack_;  // nodes
  std::vector<uint32_t> marks_;  // sizes of the stack
  std::vector<uint32_t> memo_;   // nodes
};

// Errors //

void PickleParser::refuse_opcode(uint8_t code) const {
  std::string_view known = "unknown";
  for (const pickle_opcode::Refused& refused : kRefused) {
    if (refused.code == code) known = refused.name;
  }
  fail("got the opcode " + std::string(known) + " (" + std::to_string(code) +
       "), expected one of those that plain data needs. The file is damaged or no checkpoint of PyTorch.");
}

void PickleParser::refuse_global(std::string_view module, std::string_view name) const {
  fail("got the name " + in_quotes(std::string(module) + "." + std::string(name)) +
       ", expected only names of plain tensor data. Pickle can run code when read, so nothing else is accepted.");
}

// Stack //

void PickleParser::push(uint32_t node) {
  if (stack_.size() >= limits_.max_stack) {
    fail("got more than " + std::to_string(limits_.max_stack) + " values on the stack, expected fewer (limit).");
  }
  stack_.push_back(node);
}

// Where on the stack the `count` last values start; they must lie above the innermost mark.
size_t PickleParser::top(size_t count) const {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() - floor < count) {
    fail("got an opcode that needs more values than there are, expected a complete pickle. The file is damaged.");
  }
  return stack_.size() - count;
}

uint32_t PickleParser::pop() {
  const uint32_t node = stack_[top(1)];
  stack_.pop_back();
  return node;
}

// The size of the stack when the innermost MARK was set; the mark is gone afterwards.
size_t PickleParser::mark() {
  if (marks_.empty()) fail("got the end of a list without its start, expected a MARK. The file is damaged.");
  const size_t size = marks_.back();
  marks_.pop_back();
  return size;
}

uint32_t PickleParser::add(const Node& node) {
  if (tree_.nodes_.size() >= limits_.max_values) {
    fail("got more than " + std::to_string(limits_.max_values) + " values, expected fewer (limit).");
  }
  tree_.nodes_.push_back(node);
  return static_cast<uint32_t>(tree_.nodes_.size() - 1);
}

// Numbers and texts //

bool PickleParser::number_opcode(uint8_t code) {
  Node node;
  node.kind = PickleKind::kInteger;
  switch (code) {
    case kNone:
      node.kind = PickleKind::kNone;
      break;
    case kNewTrue:
    case kNewFalse:
      node.kind = PickleKind::kBool;
      node.integer = code == kNewTrue ? 1 : 0;
      break;
    case kBinInt:
      node.integer = cursor_.signed_number(4);
      break;
    case kBinInt1:
      node.integer = static_cast<int64_t>(cursor_.unsigned_number(1));
      break;
    case kBinInt2:
      node.integer = static_cast<int64_t>(cursor_.unsigned_number(2));
      break;
    case kLong1:
      node.integer = cursor_.signed_number(cursor_.unsigned_number(1));
      break;
    case kLong4:
      node.integer = cursor_.signed_number(cursor_.unsigned_number(4));
      break;
    case kBinFloat:
      node.kind = PickleKind::kReal;
      node.real = std::bit_cast<double>(__builtin_bswap64(cursor_.unsigned_number(8)));  // the one big-endian number
      break;
    default:
      return false;
  }
  push_new(node);
  return true;
}

bool PickleParser::text_opcode(uint8_t code) {
  switch (code) {
    case kShortBinUnicode:
      push_text(PickleKind::kText, cursor_.unsigned_number(1));
      return true;
    case kBinUnicode:
      push_text(PickleKind::kText, cursor_.unsigned_number(4));
      return true;
    case kBinUnicode8:
      push_text(PickleKind::kText, cursor_.unsigned_number(8));
      return true;
    case kShortBinBytes:
      push_text(PickleKind::kBytes, cursor_.unsigned_number(1));
      return true;
    case kBinBytes:
      push_text(PickleKind::kBytes, cursor_.unsigned_number(4));
      return true;
    case kBinBytes8:
      push_text(PickleKind::kBytes, cursor_.unsigned_number(8));
      return true;
    default:
      return false;
  }
}

void PickleParser::push_text(PickleKind kind, uint64_t num_bytes) {
  Node node;
  node.kind = kind;
  node.integer = static_cast<int64_t>(cursor_.position());
  node.count = static_cast<uint32_t>(cursor_.take(num_bytes).size());
  push_new(node);
}

// Containers //

bool PickleParser::container_opcode(uint8_t code) {
  switch (code) {
    case kMark:
      if (marks_.size() >= limits_.max_marks) {
        fail("got more than " + std::to_string(limits_.max_marks) +
             " containers in each other, expected fewer (limit).");
      }
      marks_.push_back(static_cast<uint32_t>(stack_.size()));
      return true;
    case kEmptyTuple:
      push_tuple(stack_.size());
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple(top(code - kTuple1 + size_t{1}));
      return true;
    case kTuple:
      push_tuple(mark());
      return true;
    case kEmptyList:
    case kEmptyDict:
      push_new(pair_node(code == kEmptyList ? PickleKind::kList : PickleKind::kDict));
      return true;
    case kAppends:
    case kSetItems: {
      const size_t num_items = stack_.size() - mark();
      extend(top(num_items + 1), code == kAppends ? PickleKind::kList : PickleKind::kDict);
      return true;
    }
    case kAppend:
      extend(top(2), PickleKind::kList);
      return true;
    case kSetItem:
      extend(top(3), PickleKind::kDict);
      return true;
    default:
      return false;
  }
}

PickleParser::Node PickleParser::pair_node(PickleKind kind, uint16_t global, uint32_t first) {
  Node node;
  node.kind = kind;
  node.global = global;
  node.pair = {first, PickleTree::kNowhere};
  return node;
}

void PickleParser::push_tuple(size_t begin) {
  Node node = pair_node(PickleKind::kTuple);
  for (size_t i = begin; i < stack_.size(); ++i) link(node, stack_[i]);
  stack_.resize(begin);
  push_new(node);
}

// Moves the values above a container, which lies at stack_[place], into it.
void PickleParser::extend(size_t place, PickleKind expected) {
  Node& node = tree_.nodes_[stack_[place]];
  const size_t begin = place + 1;
  const size_t count = stack_.size() - begin;
  if (node.kind != expected || (expected == PickleKind::kDict && count % 2 != 0)) {
    fail("got items for something that cannot hold them, expected a list, or pairs for a dict. The file is damaged.");
  }
  for (size_t i = begin; i < stack_.size(); ++i) link(node, stack_[i]);
  stack_.resize(begin);
}

void PickleParser::link(Node& container, uint32_t item) {
  const uint32_t edge = static_cast<uint32_t>(tree_.edges_.size());  // fewer than bytes, hence than 2^32
  tree_.edges_.push_back({item, PickleTree::kNowhere});
  if (container.count == 0) {
    container.pair.first = edge;
  } else {
    tree_.edges_[container.pair.last].next = edge;
  }
  container.pair.last = edge;
  ++container.count;
}

// Names, calls, objects //

bool PickleParser::object_opcode(uint8_t code) {
  switch (code) {
    case kGlobalName: {
      const std::string_view module = cursor_.line(limits_.max_name_bytes);
      push_global(module, cursor_.line(limits_.max_name_bytes));
      return true;
    }
    case kStackGlobal: {
      const uint32_t name = pop();
      const uint32_t module = pop();
      if (kind(name) != PickleKind::kText || kind(module) != PickleKind::kText) {
        fail("got a name that is no text, expected module and name. The file is damaged.");
      }
      push_global(PickleValue(&tree_, module).text(), PickleValue(&tree_, name).text());
      return true;
    }
    case kReduce:
      reduce();
      return true;
    case kNewObj:
      new_object();
      return true;
    case kBuild:
      build();
      return true;
    case kBinPersId:
      if (!limits_.persistent_ids) refuse_opcode(code);
      push_new(pair_node(PickleKind::kPersistent, 0, pop()));
      return true;
    default:
      return false;
  }
}

void PickleParser::push_global(std::string_view module, std::string_view name) {
  for (size_t i = 0; i < tree_.allowed_.size(); ++i) {
    if (!name.empty() && tree_.allowed_[i].name == name && tree_.allowed_[i].module == module) {
      push_new(pair_node(PickleKind::kGlobal, static_cast<uint16_t>(i)));
      return;
    }
  }
  refuse_global(module, name);
}

// The name below the arguments that were popped: what is called or instantiated.
uint16_t PickleParser::pop_callee(uint32_t arguments) {
  const uint32_t callee = pop();
  if (kind(callee) != PickleKind::kGlobal || kind(arguments) != PickleKind::kTuple) {
    fail("got a call of something that is no name, or without arguments, expected both. The file is damaged.");
  }
  return tree_.nodes_[callee].global;
}

void PickleParser::refuse_use(std::string_view use, const PickleGlobal& global) const {
  fail("got " + std::string(use) + " " + in_quotes(std::string(global.module) + "." + std::string(global.name)) +
       ", expected none. Pickle can run code when read, so only plain data is accepted.");
}

void PickleParser::reduce() {
  const uint32_t arguments = pop();
  const uint16_t global = pop_callee(arguments);
  const PickleGlobal& allowed = tree_.allowed_[global];
  if (allowed.use == PickleUse::kCall) {
    push_new(pair_node(PickleKind::kCall, global, arguments));
  } else if (allowed.use == PickleUse::kDict && tree_.nodes_[arguments].count == 0) {
    push_new(pair_node(PickleKind::kDict));
  } else {
    refuse_use("a call of", allowed);
  }
}

void PickleParser::new_object() {
  const uint32_t arguments = pop();
  const uint16_t global = pop_callee(arguments);
  if (tree_.allowed_[global].use != PickleUse::kObject) refuse_use("an object of", tree_.allowed_[global]);
  push_new(pair_node(PickleKind::kObject, global, arguments));
}

void PickleParser::build() {
  const uint32_t state = pop();
  const uint32_t object = pop();
  Node& node = tree_.nodes_[object];
  if (node.kind != PickleKind::kObject || node.pair.last != PickleTree::kNowhere) {
    fail("got a state for something that takes none, expected an object without one. The file is damaged.");
  }
  node.pair.last = state;
  push(object);
}

// Memo //

bool PickleParser::memo_opcode(uint8_t code) {
  switch (code) {
    case kMemoize:
      put(memo_.size());
      return true;
    case kBinPut:
      put(cursor_.unsigned_number(1));
      return true;
    case kLongBinPut:
      put(cursor_.unsigned_number(4));
      return true;
    case kBinGet:
      get(cursor_.unsigned_number(1));
      return true;
    case kLongBinGet:
      get(cursor_.unsigned_number(4));
      return true;
    case kPop:
      pop();
      return true;
    case kFrame:
      cursor_.require(cursor_.unsigned_number(8));
      return true;
    default:
      return false;
  }
}

// Only picklers that count upwards exist; an index far beyond the end would only ask for memory.
void PickleParser::put(uint64_t index) {
  if (index > memo_.size()) {
    fail("got memo entry " + std::to_string(index) + ", expected at most " + std::to_string(memo_.size()) +
         ". The file is damaged.");
  }
  const uint32_t node = pop();
  push(node);
  if (index == memo_.size()) {
    memo_.push_back(node);
  } else {
    memo_[index] = node;
  }
}

void PickleParser::get(uint64_t index) {
  if (index >= memo_.size()) {
    fail("got a reference to memo entry " + std::to_string(index) + ", expected fewer than " +
         std::to_string(memo_.size()) + ". The file is damaged.");
  }
  push(memo_[index]);
}

void PickleParser::parse() {
  const size_t num_bytes = cursor_.num_left();
  if (num_bytes > limits_.max_bytes || num_bytes >= PickleTree::kNowhere) {
    fail("got " + std::to_string(num_bytes) + " bytes, expected at most " + std::to_string(limits_.max_bytes) +
         " (limit).");
  }
  if (cursor_.unsigned_number(1) != kProto) {
    fail("got no PROTO at the start, expected a pickle of protocol 2 to 5. The file is damaged or no pickle.");
  }
  const uint64_t protocol = cursor_.unsigned_number(1);
  if (protocol < kMinProtocol || protocol > kMaxProtocol) {
    fail("got pickle protocol " + std::to_string(protocol) + ", expected 2 to 5.");
  }
  for (;;) {
    const uint8_t code = static_cast<uint8_t>(cursor_.unsigned_number(1));
    if (code == kStop) break;
    if (!memo_opcode(code) && !number_opcode(code) && !container_opcode(code) && !text_opcode(code) &&
        !object_opcode(code)) {
      refuse_opcode(code);
    }
  }
  tree_.root_ = pop();
  if (!stack_.empty() || !marks_.empty()) {
    fail("got the end with values left over, expected exactly one. The file is damaged.");
  }
  if (cursor_.num_left() != 0) {
    fail("got " + std::to_string(cursor_.num_left()) + " bytes after the end, expected none. The file is damaged.");
  }
}

PickleTree::PickleTree(std::string bytes, std::string_view origin, std::span<const PickleGlobal> allowed,
                       const PickleLimits& limits)
    : bytes_(std::move(bytes)), allowed_(allowed) {
  static_assert(sizeof(Node) == 16);
  PickleParser(*this, origin, limits).parse();
}

// Values //

PickleKind PickleValue::kind() const {
  return node_ == PickleTree::kNowhere ? PickleKind::kNone : tree_->nodes_[node_].kind;
}
int64_t PickleValue::integer() const { return tree_->nodes_[node_].integer; }
double PickleValue::real() const { return tree_->nodes_[node_].real; }
std::string_view PickleValue::text() const {
  const PickleTree::Node& node = tree_->nodes_[node_];
  return std::string_view(tree_->bytes_).substr(static_cast<size_t>(node.integer), node.count);
}
size_t PickleValue::global() const { return tree_->nodes_[node_].global; }
size_t PickleValue::size() const { return tree_->nodes_[node_].count; }
PickleValue PickleValue::arguments() const { return {tree_, tree_->nodes_[node_].pair.first}; }
PickleValue PickleValue::state() const { return {tree_, tree_->nodes_[node_].pair.last}; }
PickleValue PickleValue::item() const { return {tree_, tree_->nodes_[node_].pair.first}; }

PickleValue PickleValue::Iterator::operator*() const { return {tree_, tree_->edges_[edge_].node}; }
PickleValue::Iterator& PickleValue::Iterator::operator++() {
  edge_ = tree_->edges_[edge_].next;
  return *this;
}
PickleValue::Iterator PickleValue::begin() const { return {tree_, tree_->nodes_[node_].pair.first}; }
PickleValue::Iterator PickleValue::end() const { return {tree_, PickleTree::kNowhere}; }

}  // namespace fsdp::io
