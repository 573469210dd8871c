#include <algorithm>
#include <limits>
#include <utility>

#include "io/base/json.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::io {

namespace {

constexpr size_t kHeaderAlignment = 8;  // the data section starts at a multiple of this, as the format asks of writers

std::string header_member(const TensorEntry& entry) {
  std::string shape;
  for (int64_t size : entry.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
  std::string text = json_string(entry.name);
  text.append(":{\"dtype\":\"").append(name(entry.dtype)).append("\",\"shape\":[").append(shape);
  text.append("],\"data_offsets\":[").append(std::to_string(entry.begin)).append(",");
  text.append(std::to_string(entry.end)).append("]}");
  return text;
}

std::string header_text(const std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += json_string(kHeaderMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) text += json_string(key) + ":" + json_string(value) + ",";
    text.back() = '}';
    text += ",";
  }
  for (const TensorEntry& entry : entries) text += header_member(entry) + ",";
  if (text.back() == ',') text.pop_back();
  text += "}";
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    return std::make_pair(item_size(b.dtype), std::string_view(a.name)) <
           std::make_pair(item_size(a.dtype), std::string_view(b.name));
  });
  std::vector<TensorEntry> entries;
  uint64_t position = 0;
  for (TensorDeclaration& tensor : tensors) {
    int64_t bytes = static_cast<int64_t>(item_size(tensor.dtype));
    bool valid = tensor.shape.size() <= kMaxRank && tensor.name != kHeaderMetadataKey;
    for (int64_t size : tensor.shape) valid = valid && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
    if (!valid || static_cast<uint64_t>(bytes) > std::numeric_limits<int64_t>::max() - position) {
      throw usage_error("declare", tensor.name,
                        "got a name or shape that cannot be stored, expected rank <= 8, sizes "
                        ">= 0, fewer than 2^63 bytes");
    }
    const uint64_t end = position + static_cast<uint64_t>(bytes);
    entries.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), position, end});
    position = end;
    if (!slots_.emplace(entries.back().name, Slot{entries.back(), {}}).second) {
      throw usage_error("declare", entries.back().name, "got the name twice, expected different names");
    }
  }
  const std::string header = header_text(entries, metadata);
  const uint64_t length = header.size();
  file_.write(&length, sizeof(length));
  file_.write(header);
  data_begin_ = sizeof(length) + length;
}

void SafetensorsWriter::write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) throw usage_error("write", name, "got an undeclared tensor, expected a declared one");
  Slot& slot = found->second;
  const int64_t numel = slot.entry.numel();
  if (first_element < 0 || num_elements < 0 || first_element > numel || num_elements > numel - first_element) {
    throw usage_error("write", name,
                      "got elements " + std::to_string(first_element) + " + " + std::to_string(num_elements) +
                          ", expected a range inside " + std::to_string(numel));
  }
  if (num_elements == 0) return;
  mark_written(slot, first_element, first_element + num_elements);
  const uint64_t size = item_size(slot.entry.dtype);
  file_.write_at(data_begin_ + slot.entry.begin + static_cast<uint64_t>(first_element) * size, data,
                 static_cast<uint64_t>(num_elements) * size);
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    const int64_t numel = slot.entry.numel();
    int64_t done = 0;
    for (const auto& [begin, end] : slot.written) done += end - begin;
    if (done != numel) {
      throw usage_error("commit", name,
                        "got " + std::to_string(done) + " elements written, expected " + std::to_string(numel) +
                            ". Write the rest first");
    }
  }
  file_.commit();
}

Error SafetensorsWriter::usage_error(std::string_view op, std::string_view tensor, const std::string& detail) const {
  return Error(ErrorKind::kUsage, "[" + std::string(op) + "] " + in_quotes(file_.target().native()) + ": tensor " +
                                      in_quotes(tensor) + ": " + detail + ".");
}

void SafetensorsWriter::mark_written(Slot& slot, int64_t begin, int64_t end) const {
  auto next = slot.written.lower_bound(begin);
  const bool overlaps_next = next != slot.written.end() && next->first < end;
  const bool overlaps_previous = next != slot.written.begin() && std::prev(next)->second > begin;
  if (overlaps_next || overlaps_previous) {
    throw usage_error(
        "write", slot.entry.name,
        "got elements " + std::to_string(begin) + " to " + std::to_string(end) + " a second time, expected each once");
  }
  if (next != slot.written.end() && next->first == end) {
    end = next->second;
    next = slot.written.erase(next);
  }
  if (next != slot.written.begin() && std::prev(next)->second == begin) {
    std::prev(next)->second = end;
  } else {
    slot.written.emplace(begin, end);
  }
}

}  // namespace fsdp::io
