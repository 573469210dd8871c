#include "fsdp/comm/store/requests.h"

#include "fsdp/comm/store/bytes.h"

namespace fsdp::comm {
namespace {

constexpr size_t kCountBytes = sizeof(uint32_t);

void append_list(std::string& bytes, const std::vector<std::string>& list) {
  append_number(bytes, static_cast<uint32_t>(list.size()));
  for (const std::string& item : list) {
    append_number(bytes, static_cast<uint32_t>(item.size()));
    bytes += item;
  }
}

// The first bytes of `bytes`, which it takes away. Each item takes kCountBytes at least, which bounds the count.
std::optional<std::vector<std::string>> take_list(std::string_view& bytes) {
  if (bytes.size() < kCountBytes) return std::nullopt;
  const auto count = take_number<uint32_t>(bytes);
  if (count > bytes.size() / kCountBytes || count > kMostListItems) return std::nullopt;
  std::vector<std::string> list;
  list.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes.size() < kCountBytes) return std::nullopt;
    const auto size = take_number<uint32_t>(bytes);
    if (size > bytes.size()) return std::nullopt;
    list.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return list;
}

bool has_what_it_needs(const StoreRequest& request) {
  const size_t keys = request.keys.size();
  const size_t values = request.values.size();
  switch (request.operation) {
    case StoreOperation::kSet:
      return keys == values;
    case StoreOperation::kGet:
    case StoreOperation::kWait:
    case StoreOperation::kCheck:
      return values == 0;
    case StoreOperation::kAdd:
    case StoreOperation::kDelete:
      return keys == 1 && values == 0;
    case StoreOperation::kCompareSet:
      return keys == 1 && values == 2;
    case StoreOperation::kAppend:
      return keys == 1 && values == 1;
    case StoreOperation::kCount:
      return keys == 0 && values == 0;
  }
  return false;  // no operation has this number
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string bytes;
  append_number(bytes, static_cast<uint8_t>(request.operation));
  append_number(bytes, static_cast<int64_t>(request.patience.count()));
  append_number(bytes, request.number);
  append_list(bytes, request.keys);
  append_list(bytes, request.values);
  return bytes;
}

std::string encode(const StoreAnswer& answer) {
  std::string bytes;
  append_number(bytes, static_cast<uint8_t>(answer.verdict));
  append_number(bytes, answer.number);
  append_list(bytes, answer.values);
  return bytes;
}

std::optional<StoreRequest> decode_request(std::string_view bytes) {
  constexpr size_t kFixedBytes = sizeof(uint8_t) + 2 * sizeof(int64_t);
  if (bytes.size() < kFixedBytes) return std::nullopt;
  StoreRequest request;
  request.operation = static_cast<StoreOperation>(take_number<uint8_t>(bytes));
  request.patience = std::chrono::milliseconds(take_number<int64_t>(bytes));
  request.number = take_number<int64_t>(bytes);
  auto keys = take_list(bytes);
  auto values = keys ? take_list(bytes) : std::nullopt;
  if (!values || !bytes.empty()) return std::nullopt;
  request.keys = std::move(*keys);
  request.values = std::move(*values);
  if (!has_what_it_needs(request)) return std::nullopt;
  return request;
}

std::optional<StoreAnswer> decode_answer(std::string_view bytes) {
  constexpr size_t kFixedBytes = sizeof(uint8_t) + sizeof(int64_t);
  if (bytes.size() < kFixedBytes) return std::nullopt;
  StoreAnswer answer;
  const auto verdict = take_number<uint8_t>(bytes);
  if (verdict > static_cast<uint8_t>(StoreVerdict::kWrong)) return std::nullopt;
  answer.verdict = static_cast<StoreVerdict>(verdict);
  answer.number = take_number<int64_t>(bytes);
  auto values = take_list(bytes);
  if (!values || !bytes.empty()) return std::nullopt;
  answer.values = std::move(*values);
  return answer;
}

}  // namespace fsdp::comm
