#include "io/dcp/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/base/shape.h"
#include "io/dcp/dcp_chunks.h"
#include "io/torch_archive/pickle_reader.h"
#include "io/torch_archive/torch_types.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kMaxMetadataBytes = uint64_t{512} << 20;
constexpr size_t kMaxValues = size_t{1} << 26;
constexpr size_t kMaxEntries = size_t{1} << 20;
constexpr size_t kMaxNameBytes = size_t{1} << 28;  // of all entries together
constexpr size_t kMaxChunks = size_t{1} << 22;     // of all tensors
constexpr size_t kMaxFields = 32;

// The names DCP's metadata may mention; those we look at have an index, then come element types.
enum : size_t { kMetadata, kTensorEntry, kObjectEntry, kProperties, kChunk, kIndex, kStorageInfo, kTorchSize };
constexpr size_t kFirstElementType = 16;

constexpr auto kMetadataNames = [] {
  std::array<PickleGlobal, kFirstElementType + std::size(kTorchTypes)> allowed{{
      {kDcpMetadataModule, "Metadata", PickleUse::kObject},
      {kDcpMetadataModule, "TensorStorageMetadata", PickleUse::kObject},
      {kDcpMetadataModule, "BytesStorageMetadata", PickleUse::kObject},
      {kDcpMetadataModule, "TensorProperties", PickleUse::kObject},
      {kDcpMetadataModule, "ChunkStorageMetadata", PickleUse::kObject},
      {kDcpMetadataModule, "MetadataIndex", PickleUse::kObject},
      {"torch.distributed.checkpoint.filesystem", "_StorageInfo", PickleUse::kObject},
      {"torch", "Size", PickleUse::kCall},
      {kDcpMetadataModule, "StorageMeta", PickleUse::kObject},
      {kDcpMetadataModule, "_MEM_FORMAT_ENCODING", PickleUse::kCall},
      {"torch.serialization", "_get_layout", PickleUse::kCall},
      {"collections", "OrderedDict", PickleUse::kDict},
      {"pathlib", "PosixPath", PickleUse::kCall},         // of the folder it was saved to
      {"pathlib._local", "PosixPath", PickleUse::kCall},  // the same, by Python 3.13
      {"pathlib", "WindowsPath", PickleUse::kCall},
      {"torch", "device", PickleUse::kCall},
  }};
  for (size_t i = 0; i < std::size(kTorchTypes); ++i) {
    allowed[kFirstElementType + i] = {"torch", kTorchTypes[i].name, PickleUse::kConstant};
  }
  return allowed;
}();

using Offsets = std::vector<int64_t>;

// Where a chunk lies: DCP looks it up by name and offsets.
struct Place {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// A number for each text of a pickle, equal for equal ones. A pickle may name one long text a million times: its bytes
// are looked at once, for as often as they stand in the file.
class TextNumbers {
 public:
  // `text` must outlive this.
  uint32_t operator()(std::string_view text) {
    const auto [known, is_new] = number_of_place_.emplace(text.data(), 0);
    if (is_new) known->second = number_of_.emplace(text, static_cast<uint32_t>(number_of_.size())).first->second;
    return known->second;
  }

 private:
  std::unordered_map<const char*, uint32_t> number_of_place_;
  std::map<std::string_view, uint32_t> number_of_;
};

class MetadataParser {
 public:
  MetadataParser(std::string bytes, std::string_view origin)
      : origin_(origin),
        tree_(std::move(bytes), origin, kMetadataNames, {.max_bytes = kMaxMetadataBytes, .max_values = kMaxValues}) {}

  DcpMetadata parse();

 private:
  [[noreturn]] void fail(std::string_view entry, const std::string& detail) const;

  // Values.
  bool is_object(PickleValue value, size_t global) const {
    return value.is(PickleKind::kObject) && value.global() == global;
  }
  PickleValue field(PickleValue object, std::string_view name, std::string_view entry) const;
  std::optional<PickleValue> find_field(PickleValue object, std::string_view name, std::string_view entry) const;
  uint64_t number(PickleValue value, std::string_view entry, const char* what) const;
  std::vector<int64_t> size(PickleValue value, std::string_view entry) const;

  void parse_places(PickleValue storage_data);
  Place parse_place(PickleValue info, std::string_view entry);
  void parse_entries(PickleValue entries);
  DcpTensor parse_tensor(PickleValue entry, std::string_view name);
  std::optional<DcpChunk> parse_chunk(PickleValue chunk, const DcpTensor& tensor, uint32_t name_number);
  size_t type_of(PickleValue properties, std::string_view name) const;
  void check_archives() const;

  const std::string_view origin_;
  const PickleTree tree_;
  DcpMetadata metadata_;
  std::map<std::string_view, uint32_t> file_index_;
  TextNumbers number_of_name_;
  std::map<std::pair<uint32_t, Offsets>, Place> places_;
  size_t num_chunks_ = 0;
  size_t num_name_bytes_ = 0;
};

void MetadataParser::fail(std::string_view entry, const std::string& detail) const {
  const std::string what = entry.empty() ? std::string() : "entry " + in_quotes(entry) + ": ";
  throw Error(ErrorKind::kModel, "[dcp] " + in_quotes(origin_) + ": " + what + detail);
}

std::optional<PickleValue> MetadataParser::find_field(PickleValue object, std::string_view name,
                                                      std::string_view entry) const {
  const PickleValue state = object.state();
  if (!state.is(PickleKind::kDict) || state.size() > kMaxFields) {
    fail(entry, "got an object without fields, expected them. The file is damaged.");
  }
  bool is_key = true;
  bool matches = false;
  for (const PickleValue value : state) {
    if (!is_key && matches) return value;
    matches = is_key && value.is(PickleKind::kText) && value.text() == name;
    is_key = !is_key;
  }
  return std::nullopt;
}

PickleValue MetadataParser::field(PickleValue object, std::string_view name, std::string_view entry) const {
  const std::optional<PickleValue> value = find_field(object, name, entry);
  if (!value) fail(entry, "got no field " + in_quotes(name) + ", expected it. The file is damaged or of a future DCP.");
  return *value;
}

uint64_t MetadataParser::number(PickleValue value, std::string_view entry, const char* what) const {
  if (!value.is(PickleKind::kInteger) || value.integer() < 0) {
    fail(entry, "got a " + std::string(what) + " that is no number from 0 to 2^63-1, expected one.");
  }
  return static_cast<uint64_t>(value.integer());
}

std::vector<int64_t> MetadataParser::size(PickleValue value, std::string_view entry) const {
  const bool is_size = value.is(PickleKind::kCall) && value.global() == kTorchSize && value.arguments().size() == 1;
  const PickleValue numbers = is_size ? *value.arguments().begin() : value;
  if (!numbers.is(PickleKind::kTuple)) fail(entry, "got no torch.Size, expected one. The file is damaged.");
  if (numbers.size() > kMaxRank) {
    fail(entry, "got " + std::to_string(numbers.size()) + " dimensions, expected at most 8.");
  }
  std::vector<int64_t> all;
  for (const PickleValue item : numbers) all.push_back(static_cast<int64_t>(number(item, entry, "size")));
  return all;
}

// Storage //

void MetadataParser::parse_places(PickleValue storage_data) {
  if (!storage_data.is(PickleKind::kDict)) fail("", "got no dict as storage_data, expected one. The file is damaged.");
  std::optional<PickleValue> index;
  for (const PickleValue value : storage_data) {
    if (!index) {
      if (!is_object(value, kIndex)) fail("", "got a key of storage_data that is no MetadataIndex, expected one.");
      index = value;
      continue;
    }
    const PickleValue name = field(*index, "fqn", "");
    if (!name.is(PickleKind::kText)) fail("", "got a name that is no text, expected one. The file is damaged.");
    if (!is_object(value, kStorageInfo)) fail(name.text(), "got no _StorageInfo, expected one.");
    const std::optional<PickleValue> offset = find_field(*index, "offset", name.text());
    index.reset();
    if (!offset || offset->is(PickleKind::kNone)) continue;  // of an entry that is no tensor
    const Place place = parse_place(value, name.text());
    if (!places_.emplace(std::pair(number_of_name_(name.text()), size(*offset, name.text())), place).second) {
      fail(name.text(), "got two chunks at the same offsets, expected one. The file is damaged.");
    }
  }
}

Place MetadataParser::parse_place(PickleValue info, std::string_view entry) {
  const PickleValue path = field(info, "relative_path", entry);
  if (!path.is(PickleKind::kText) || !is_plain_file_name(path.text())) {
    fail(entry, "got the file " + in_quotes(path.is(PickleKind::kText) ? path.text() : "") +
                    ", expected a plain file name beside .metadata.");
  }
  const std::optional<PickleValue> transforms = find_field(info, "transform_descriptors", entry);
  if (transforms && !transforms->is(PickleKind::kNone) &&
      !((transforms->is(PickleKind::kList) || transforms->is(PickleKind::kTuple)) && transforms->size() == 0)) {
    fail(entry, "got data that an extension of DCP transformed (compressed, for one), expected none. Save it without.");
  }
  const auto [file, is_new] = file_index_.emplace(path.text(), static_cast<uint32_t>(metadata_.files.size()));
  if (is_new) metadata_.files.emplace_back(path.text());
  return {.file = file->second,
          .offset = number(field(info, "offset", entry), entry, "offset"),
          .length = number(field(info, "length", entry), entry, "length")};
}

// Entries //

void MetadataParser::parse_entries(PickleValue entries) {
  if (!entries.is(PickleKind::kDict))
    fail("", "got no dict as state_dict_metadata, expected one. The file is damaged.");
  if (entries.size() / 2 > kMaxEntries) {
    fail("", "got " + std::to_string(entries.size() / 2) + " entries, expected at most 2^20 (limit).");
  }
  std::string_view name;
  bool is_key = true;
  for (const PickleValue value : entries) {
    if (std::exchange(is_key, !is_key)) {
      if (!value.is(PickleKind::kText)) fail("", "got an entry whose name is no text, expected one.");
      name = value.text();
      // A pickle may name one long text a million times; each entry has a copy.
      num_name_bytes_ += name.size();
      if (num_name_bytes_ > kMaxNameBytes) fail("", "got names of more than 256 MiB, expected shorter ones (limit).");
    } else if (is_object(value, kObjectEntry)) {
      metadata_.objects.emplace_back(name);
    } else if (is_object(value, kTensorEntry)) {
      metadata_.tensors.push_back(parse_tensor(value, name));
    } else {
      fail(name, "got neither tensor nor bytes, expected one of them. The file is damaged or of a future DCP.");
    }
  }
}

DcpTensor MetadataParser::parse_tensor(PickleValue entry, std::string_view name) {
  const TorchType& type = kTorchTypes[type_of(field(entry, "properties", name), name)];
  DcpTensor tensor{.name = std::string(name),
                   .shape = size(field(entry, "size", name), name),
                   .type = type.name,
                   .dtype = type.dtype,
                   .chunks = {}};
  if (!checked_numel(tensor.shape)) fail(name, "got a shape whose product overflows, expected fewer elements.");
  const PickleValue chunks = field(entry, "chunks", name);
  if (!chunks.is(PickleKind::kList)) fail(name, "got no list of chunks, expected one. The file is damaged.");
  num_chunks_ += chunks.size();
  if (num_chunks_ > kMaxChunks) fail(name, "got more than 2^22 chunks so far, expected fewer (limit).");
  const uint32_t name_number = number_of_name_(name);
  for (const PickleValue chunk : chunks) {
    std::optional<DcpChunk> parsed = parse_chunk(chunk, tensor, name_number);
    if (parsed) tensor.chunks.push_back(std::move(*parsed));
  }
  return tensor;
}

size_t MetadataParser::type_of(PickleValue properties, std::string_view name) const {
  const PickleValue state = is_object(properties, kProperties) ? properties.state() : properties;
  if (!state.is(PickleKind::kTuple) || state.size() == 0) fail(name, "got no TensorProperties, expected them.");
  const PickleValue type = *state.begin();
  if (!type.is(PickleKind::kGlobal) || type.global() < kFirstElementType)
    fail(name, "got no element type, expected one.");
  return type.global() - kFirstElementType;
}

// Nothing for a chunk without elements.
std::optional<DcpChunk> MetadataParser::parse_chunk(PickleValue value, const DcpTensor& tensor, uint32_t name_number) {
  if (!is_object(value, kChunk)) fail(tensor.name, "got no ChunkStorageMetadata, expected one. The file is damaged.");
  DcpChunk chunk{.offsets = size(field(value, "offsets", tensor.name), tensor.name),
                 .sizes = size(field(value, "sizes", tensor.name), tensor.name)};
  if (std::find(chunk.sizes.begin(), chunk.sizes.end(), 0) != chunk.sizes.end()) return std::nullopt;
  const auto place = places_.find({name_number, chunk.offsets});
  if (place == places_.end()) {
    fail(tensor.name,
         "got a chunk that storage_data does not know, expected its file. The checkpoint is not complete.");
  }
  chunk.file = place->second.file;
  chunk.offset = place->second.offset;
  chunk.length = place->second.length;
  return chunk;
}

// Each chunk is an archive of its own: small files would otherwise be read, and written, a million times.
void MetadataParser::check_archives() const {
  struct Archive {
    const DcpChunk* chunk;
    const DcpTensor* tensor;
    auto place() const { return std::pair(chunk->file, chunk->offset); }
  };
  std::vector<Archive> archives;
  for (const DcpTensor& tensor : metadata_.tensors)
    for (const DcpChunk& chunk : tensor.chunks) archives.push_back({&chunk, &tensor});
  std::sort(archives.begin(), archives.end(), [](const Archive& a, const Archive& b) { return a.place() < b.place(); });
  for (size_t i = 1; i < archives.size(); ++i) {
    const DcpChunk& before = *archives[i - 1].chunk;
    const DcpChunk& chunk = *archives[i].chunk;
    if (before.file != chunk.file || chunk.offset - before.offset >= before.length) continue;
    fail(archives[i].tensor->name, "got a chunk in bytes of " + in_quotes(metadata_.files[chunk.file]) +
                                       " that are also a chunk of " + in_quotes(archives[i - 1].tensor->name) +
                                       ", expected bytes of its own. The file is damaged.");
  }
}

DcpMetadata MetadataParser::parse() {
  const PickleValue root = tree_.root();
  if (!is_object(root, kMetadata)) fail("", "got something else than Metadata, expected a checkpoint of DCP.");
  parse_places(field(root, "storage_data", ""));
  parse_entries(field(root, "state_dict_metadata", ""));
  std::sort(metadata_.objects.begin(), metadata_.objects.end());
  std::sort(metadata_.tensors.begin(), metadata_.tensors.end(),
            [](const DcpTensor& a, const DcpTensor& b) { return a.name < b.name; });
  ChunkChecker checker;
  for (size_t i = 0; i < metadata_.tensors.size(); ++i) {
    const DcpTensor& tensor = metadata_.tensors[i];
    if (i > 0 && metadata_.tensors[i - 1].name == tensor.name) fail(tensor.name, "got it twice, expected it once.");
    const std::string problem = checker.problem(tensor);
    if (!problem.empty()) fail(tensor.name, problem);
  }
  check_archives();
  return std::move(metadata_);
}

}  // namespace

int64_t DcpTensor::numel() const { return checked_numel(shape).value_or(0); }

const DcpTensor* DcpMetadata::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const DcpTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

DcpMetadata parse_dcp_metadata(std::string bytes, std::string_view origin) {
  return MetadataParser(std::move(bytes), origin).parse();
}

DcpMetadata read_dcp_metadata(const std::filesystem::path& folder) {
  const InputFile file(folder / kDcpMetadataName, ErrorKind::kModel);
  if (file.size() > kMaxMetadataBytes) {
    throw file.error("dcp", "got " + std::to_string(file.size()) + " bytes, expected at most 512 MiB (limit).");
  }
  std::string bytes(file.size(), '\0');
  file.read_at(0, bytes.data(), bytes.size());
  return parse_dcp_metadata(std::move(bytes), file.path().native());
}

}  // namespace fsdp::io
