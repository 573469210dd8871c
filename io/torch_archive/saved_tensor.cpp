#include "io/torch_archive/saved_tensor.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "io/torch_archive/pickle_reader.h"
#include "io/torch_archive/torch_types.h"
#include "io/torch_archive/zip_reader.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 10;
constexpr std::string_view kPickleName = "/data.pkl";

// The names a saved tensor may mention; the first ones have an index, then come dtypes, then their storages.
enum : size_t { kRebuild, kRebuildUntyped, kOrderedDict, kSize, kUntypedStorage, kFirstType };
constexpr size_t kNumTypes = std::size(kTorchTypes);

constexpr auto kTensorNames = [] {
  std::array<PickleGlobal, kFirstType + 2 * kNumTypes> allowed{{
      {"torch._utils", "_rebuild_tensor_v2", PickleUse::kCall},
      {"torch._utils", "_rebuild_tensor_v3", PickleUse::kCall},
      {"collections", "OrderedDict", PickleUse::kDict},
      {"torch", "Size", PickleUse::kCall},
      {"torch.storage", "UntypedStorage", PickleUse::kConstant},
  }};
  for (size_t i = 0; i < kNumTypes; ++i) {
    allowed[kFirstType + i] = {"torch", kTorchTypes[i].name, PickleUse::kConstant};
    allowed[kFirstType + kNumTypes + i] = {"torch", kTorchTypes[i].storage, PickleUse::kConstant};
  }
  return allowed;
}();

// What the pickle says of the tensor.
struct Description {
  const TorchType* type = nullptr;
  std::string storage;     // name of its member below data/
  int64_t num_stored = 0;  // elements of the storage; bytes if untyped
  bool is_untyped = false;
  int64_t offset = 0;  // elements
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

class DescriptionParser {
 public:
  explicit DescriptionParser(const ZipReader& zip) : zip_(zip) {}

  Description parse(PickleValue root) const {
    if (!root.is(PickleKind::kCall) || (root.global() != kRebuild && root.global() != kRebuildUntyped)) {
      fail("got something else than a tensor, expected one tensor");
    }
    Description tensor;
    tensor.is_untyped = root.global() == kRebuildUntyped;
    std::vector<PickleValue> arguments;
    for (const PickleValue value : root.arguments()) arguments.push_back(value);
    const size_t expected = tensor.is_untyped ? 7 : 6;
    if (arguments.size() != expected) {
      fail("got a tensor of " + std::to_string(arguments.size()) + " parts, expected " + std::to_string(expected));
    }
    parse_storage(arguments[0], tensor);
    tensor.offset = number(arguments[1], "offset");
    tensor.shape = numbers(arguments[2], "shape");
    tensor.strides = numbers(arguments[3], "strides");
    if (tensor.is_untyped) tensor.type = type(arguments[6], kFirstType);
    return tensor;
  }

  [[noreturn]] void fail(const std::string& detail) const {
    throw zip_.error(detail + ". It is no checkpoint we can read.");
  }

 private:
  // ('storage', torch.FloatStorage, '0', 'cpu', 6)
  void parse_storage(PickleValue value, Description& tensor) const {
    std::vector<PickleValue> parts;
    if (value.is(PickleKind::kPersistent) && value.item().is(PickleKind::kTuple) && value.item().size() == 5) {
      for (const PickleValue part : value.item()) parts.push_back(part);
    }
    if (parts.empty() || !parts[0].is(PickleKind::kText) || parts[0].text() != "storage" ||
        !parts[1].is(PickleKind::kGlobal) || !parts[2].is(PickleKind::kText)) {
      fail("got a tensor without a storage, expected one");
    }
    if (!tensor.is_untyped) tensor.type = type(parts[1], kFirstType + kNumTypes);
    if (tensor.is_untyped && parts[1].global() != kUntypedStorage) fail("got a typed storage, expected an untyped one");
    tensor.storage = parts[2].text();
    tensor.num_stored = number(parts[4], "storage size");
  }

  const TorchType* type(PickleValue value, size_t first) const {
    if (!value.is(PickleKind::kGlobal) || value.global() < first || value.global() >= first + kNumTypes) {
      fail("got no element type, expected one");
    }
    return &kTorchTypes[value.global() - first];
  }

  int64_t number(PickleValue value, const char* what) const {
    if (!value.is(PickleKind::kInteger) || value.integer() < 0) {
      fail("got a " + std::string(what) + " that is no number from 0 to 2^63-1, expected one");
    }
    return value.integer();
  }

  std::vector<int64_t> numbers(PickleValue value, const char* what) const {
    if (value.is(PickleKind::kCall) && value.global() == kSize && value.arguments().size() == 1) {
      value = *value.arguments().begin();
    }
    if (!value.is(PickleKind::kTuple) || value.size() > kMaxRank) {
      fail("got " + std::string(what) + " that is no tuple of at most 8 numbers, expected one");
    }
    std::vector<int64_t> all;
    for (const PickleValue item : value) all.push_back(number(item, what));
    return all;
  }

  const ZipReader& zip_;
};

std::string text_of(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

// Elements of a dense row-major tensor; fails for other strides.
int64_t checked_numel(const Description& tensor, const DescriptionParser& parser) {
  if (tensor.strides.size() != tensor.shape.size())
    parser.fail("got other numbers of sizes and strides, expected equal");
  int64_t numel = 1;
  bool dense = true;
  bool empty = false;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    dense = dense && (tensor.shape[i] == 1 || tensor.strides[i] == numel);
    empty = empty || tensor.shape[i] == 0;
    if (__builtin_mul_overflow(numel, std::max<int64_t>(tensor.shape[i], 1), &numel)) {
      parser.fail("got a shape whose product overflows, expected fewer than 2^63 elements");
    }
  }
  if (empty) return 0;
  if (!dense) {
    parser.fail("got a tensor of shape " + text_of(tensor.shape) + " with strides " + text_of(tensor.strides) +
                ", expected it row-major. Save it again with tensor.contiguous()");
  }
  return numel;
}

}  // namespace

SavedTensor find_saved_tensor(const InputFile& file, uint64_t begin, uint64_t length) {
  const ZipReader zip(file, begin, length);
  const ZipMember* pickle = nullptr;
  for (const ZipMember& member : zip.members()) {
    if (member.name.ends_with(kPickleName)) pickle = &member;
  }
  const DescriptionParser parser(zip);
  if (pickle == nullptr) parser.fail("got no data.pkl, expected an archive of torch.save");
  const std::string folder = pickle->name.substr(0, pickle->name.size() - kPickleName.size());
  const ZipMember* order = zip.find(folder + "/byteorder");
  if (order != nullptr && zip.read(*order, 16) != "little") parser.fail("got big-endian data, expected little endian");

  const PickleTree tree(zip.read(*pickle, kMaxPickleBytes), file.path().native(), kTensorNames,
                        {.max_bytes = kMaxPickleBytes, .max_values = kMaxPickleBytes, .persistent_ids = true});
  const Description tensor = parser.parse(tree.root());
  if (!tensor.type->dtype) {
    parser.fail("got elements of torch." + std::string(tensor.type->name) + ", expected a type that safetensors has");
  }
  const ZipMember* storage = zip.find(folder + "/data/" + tensor.storage);
  if (storage == nullptr)
    parser.fail("got no data of the tensor, expected the member " + in_quotes("data/" + tensor.storage));
  const DType dtype = *tensor.type->dtype;
  const int64_t item = static_cast<int64_t>(item_size(dtype));
  const int64_t numel = checked_numel(tensor, parser);
  int64_t stored_bytes = 0;
  int64_t end = 0;  // elements
  if (__builtin_mul_overflow(tensor.num_stored, tensor.is_untyped ? 1 : item, &stored_bytes) ||
      static_cast<uint64_t>(stored_bytes) != storage->bytes || __builtin_add_overflow(tensor.offset, numel, &end) ||
      end > stored_bytes / item) {
    parser.fail("got " + std::to_string(storage->bytes) + " bytes of data for elements " +
                std::to_string(tensor.offset) + " + " + std::to_string(numel) + " of " +
                std::to_string(tensor.num_stored) + ", expected them to fit");
  }
  SavedTensor found{.dtype = dtype, .shape = tensor.shape, .begin = 0, .bytes = 0, .crc32 = {}};
  found.begin = zip.data_begin(*storage) + static_cast<uint64_t>(tensor.offset * item);
  found.bytes = static_cast<uint64_t>(numel * item);
  if (found.bytes == storage->bytes && storage->crc32 != 0) found.crc32 = storage->crc32;
  return found;
}

}  // namespace fsdp::io
