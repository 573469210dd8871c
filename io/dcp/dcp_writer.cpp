#include "io/dcp/dcp_writer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "io/base/crc32.h"
#include "io/base/error.h"
#include "io/base/shape.h"
#include "io/dcp/dcp_chunks.h"
#include "io/dcp/dcp_metadata.h"
#include "io/torch_archive/pickle_writer.h"
#include "io/torch_archive/torch_types.h"
#include "io/torch_archive/zip_writer.h"

namespace fsdp::io {

using namespace pickle_opcode;

namespace {

constexpr const char* kFileName = "__0_0.distcp";
constexpr const char* kDcpVersion = "1.0.0";  // of DCP's format
constexpr uint64_t kAlignment = 64;           // bytes, as torch.save

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

// What torch.save puts into data.pkl for a dense tensor on the CPU.
std::string tensor_pickle(const TensorDeclaration& tensor, int64_t numel) {
  const TorchType& type = torch_type(tensor.dtype);
  const bool is_untyped = type.storage.empty();
  PickleWriter pickle;
  pickle.global("torch._utils", is_untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  pickle.opcode(kMark);
  pickle.opcode(kMark);
  pickle.text("storage");
  pickle.global(is_untyped ? "torch.storage" : "torch", is_untyped ? "UntypedStorage" : type.storage);
  pickle.text("0");
  pickle.text("cpu");
  pickle.integer(numel * (is_untyped ? static_cast<int64_t>(item_size(tensor.dtype)) : 1));
  pickle.opcode(kTuple);
  pickle.opcode(kBinPersId);
  pickle.integer(0);  // offset
  pickle.integers(tensor.shape);
  pickle.integers(row_major_strides(tensor.shape));
  pickle.boolean(false);  // requires_grad
  pickle.global("collections", "OrderedDict");
  pickle.opcode(kEmptyTuple);
  pickle.opcode(kReduce);
  if (is_untyped) pickle.global("torch", type.name);
  pickle.opcode(kTuple);
  pickle.opcode(kReduce);
  return pickle.finish();
}

ZipComposer compose(const TensorDeclaration& tensor, int64_t numel, uint32_t crc) {
  ZipComposer zip;
  zip.add("archive/data.pkl", tensor_pickle(tensor, numel));
  zip.add("archive/byteorder", "little");
  zip.add("archive/version", "3\n");
  zip.add_large("archive/data/0", static_cast<uint64_t>(numel) * item_size(tensor.dtype), crc, kAlignment);
  return zip;
}

// A dataclass instance whose fields follow, up to end_object().
void begin_object(PickleWriter& pickle, std::string_view module, std::string_view name) {
  pickle.global(module, name);
  pickle.opcode(kEmptyTuple);
  pickle.opcode(kNewObj);
  pickle.opcode(kEmptyDict);
  pickle.opcode(kMark);
}

void end_object(PickleWriter& pickle) {
  pickle.opcode(kSetItems);
  pickle.opcode(kBuild);
}

void put_size(PickleWriter& pickle, const std::vector<int64_t>& shape) {
  pickle.global("torch", "Size");
  pickle.integers(shape);
  pickle.opcode(kTuple1);
  pickle.opcode(kReduce);
}

void put_properties(PickleWriter& pickle, DType dtype) {
  pickle.global(kDcpMetadataModule, "TensorProperties");
  pickle.opcode(kEmptyTuple);
  pickle.opcode(kNewObj);
  pickle.opcode(kMark);
  pickle.global("torch", torch_type(dtype).name);
  pickle.global("torch.serialization", "_get_layout");
  pickle.text("torch.strided");
  pickle.opcode(kTuple1);
  pickle.opcode(kReduce);
  pickle.boolean(false);  // requires_grad
  pickle.global(kDcpMetadataModule, "_MEM_FORMAT_ENCODING");
  pickle.integer(0);  // contiguous
  pickle.opcode(kTuple1);
  pickle.opcode(kReduce);
  pickle.boolean(false);  // pin_memory
  pickle.opcode(kTuple);
  pickle.opcode(kBuild);
}

void put_tensor(PickleWriter& pickle, const TensorDeclaration& tensor) {
  begin_object(pickle, kDcpMetadataModule, "TensorStorageMetadata");
  pickle.text("properties");
  put_properties(pickle, tensor.dtype);
  pickle.text("size");
  put_size(pickle, tensor.shape);
  pickle.text("chunks");
  pickle.opcode(kEmptyList);
  begin_object(pickle, kDcpMetadataModule, "ChunkStorageMetadata");
  pickle.text("offsets");
  put_size(pickle, std::vector<int64_t>(tensor.shape.size(), 0));
  pickle.text("sizes");
  put_size(pickle, tensor.shape);
  end_object(pickle);
  pickle.opcode(kAppend);
  end_object(pickle);
}

void put_place(PickleWriter& pickle, const std::string& name, size_t rank, uint64_t begin, uint64_t bytes) {
  begin_object(pickle, kDcpMetadataModule, "MetadataIndex");
  pickle.text("fqn");
  pickle.text(name);
  pickle.text("index");
  pickle.integer(0);
  pickle.text("offset");
  put_size(pickle, std::vector<int64_t>(rank, 0));
  end_object(pickle);
  begin_object(pickle, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
  pickle.text("relative_path");
  pickle.text(kFileName);
  pickle.text("offset");
  pickle.integer(static_cast<int64_t>(begin));
  pickle.text("length");
  pickle.integer(static_cast<int64_t>(bytes));
  end_object(pickle);
}

// ("model", name): the path through nested dicts that leads to the entry.
void put_path(PickleWriter& pickle, std::string_view prefix, const std::string& name) {
  pickle.opcode(kMark);
  for (size_t dot = prefix.find('.'); dot != std::string_view::npos; dot = prefix.find('.')) {
    pickle.text(prefix.substr(0, dot));
    prefix.remove_prefix(dot + 1);
  }
  pickle.text(std::string(prefix) + name);
  pickle.opcode(kTuple);
}

}  // namespace

DcpWriter::DcpWriter(const std::filesystem::path& folder, const std::vector<TensorDeclaration>& tensors,
                     std::string prefix)
    : folder_(folder), prefix_(std::move(prefix)), file_(folder / kFileName) {
  uint64_t position = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const std::optional<int64_t> numel = checked_numel(tensor.shape);
    const int64_t item = static_cast<int64_t>(item_size(tensor.dtype));
    if (!numel || tensor.shape.size() > kMaxRank || *numel > std::numeric_limits<int64_t>::max() / 16 / item) {
      throw usage_error("declare", tensor.name,
                        "got a shape that cannot be stored, expected rank <= 8 and a size in it");
    }
    const ZipComposer zip = compose(tensor, *numel, 0);
    Archive archive{.tensor = tensor, .numel = *numel};
    archive.begin = position;
    archive.data_begin = zip.head().size();
    archive.bytes = zip.head().size() + static_cast<uint64_t>(*numel * item) + zip.tail().size();
    position = (archive.begin + archive.bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (position > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 2)) {
      throw usage_error("declare", tensor.name, "got more bytes than a file can have, expected fewer");
    }
    if (!index_.emplace(tensor.name, archives_.size()).second) {
      throw usage_error("declare", tensor.name, "got the name twice, expected different names");
    }
    archives_.push_back(std::move(archive));
  }
}

void DcpWriter::write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data) {
  const auto found = index_.find(name);
  if (found == index_.end()) throw usage_error("write", name, "got an undeclared tensor, expected a declared one");
  Archive& archive = archives_[found->second];
  if (first_element != archive.num_written || num_elements < 0 || num_elements > archive.numel - first_element) {
    throw usage_error("write", name,
                      "got elements " + std::to_string(first_element) + " + " + std::to_string(num_elements) +
                          ", expected those from " + std::to_string(archive.num_written) + " to at most " +
                          std::to_string(archive.numel));
  }
  const uint64_t item = item_size(archive.tensor.dtype);
  const uint64_t num_bytes = static_cast<uint64_t>(num_elements) * item;
  file_.write_at(archive.begin + archive.data_begin + static_cast<uint64_t>(first_element) * item, data, num_bytes);
  archive.crc32 = crc32(archive.crc32, data, num_bytes);
  archive.num_written += num_elements;
}

void DcpWriter::finish(const Archive& archive) {
  if (archive.num_written != archive.numel) {
    throw usage_error("commit", archive.tensor.name,
                      "got " + std::to_string(archive.num_written) + " elements written, expected " +
                          std::to_string(archive.numel) + ". Write the rest first");
  }
  const ZipComposer zip = compose(archive.tensor, archive.numel, archive.crc32);
  const std::string tail = zip.tail();
  file_.write_at(archive.begin, zip.head().data(), zip.head().size());
  file_.write_at(archive.begin + archive.bytes - tail.size(), tail.data(), tail.size());
}

void DcpWriter::commit() {
  for (const Archive& archive : archives_) finish(archive);
  file_.commit();
  write_file_atomically(folder_ / kDcpMetadataName, metadata());
}

std::string DcpWriter::metadata() const {
  PickleWriter pickle;
  begin_object(pickle, kDcpMetadataModule, "Metadata");
  pickle.text("state_dict_metadata");
  pickle.opcode(kEmptyDict);
  for (const Archive& archive : archives_) {
    pickle.text(prefix_ + archive.tensor.name);
    put_tensor(pickle, archive.tensor);
    pickle.opcode(kSetItem);
  }
  pickle.text("planner_data");
  pickle.opcode(kEmptyDict);
  for (const Archive& archive : archives_) {
    pickle.text(prefix_ + archive.tensor.name);
    put_path(pickle, prefix_, archive.tensor.name);
    pickle.opcode(kSetItem);
  }
  pickle.text("storage_data");
  pickle.opcode(kEmptyDict);
  for (const Archive& archive : archives_) {
    put_place(pickle, prefix_ + archive.tensor.name, archive.tensor.shape.size(), archive.begin, archive.bytes);
    pickle.opcode(kSetItem);
  }
  pickle.text("storage_meta");
  pickle.none();
  pickle.text("version");
  pickle.text(kDcpVersion);
  end_object(pickle);
  return pickle.finish();
}

Error DcpWriter::usage_error(std::string_view op, std::string_view tensor, const std::string& detail) const {
  return Error(ErrorKind::kUsage, "[" + std::string(op) + "] " + in_quotes(folder_.native()) + ": tensor " +
                                      in_quotes(tensor) + ": " + detail + ".");
}

}  // namespace fsdp::io
