#include "fsdp/comm/store/key_table.h"

#include <algorithm>

#include "fsdp/base/number_text.h"

namespace fsdp::comm {

size_t KeyTable::missing_key(const StoreRequest& request, size_t first) const {
  const auto missing = std::find_if(request.keys.begin() + static_cast<std::ptrdiff_t>(first), request.keys.end(),
                                    [this](const std::string& key) { return values_.count(key) == 0; });
  return static_cast<size_t>(missing - request.keys.begin());
}

std::optional<StoreAnswer> KeyTable::answer(const StoreRequest& request) {
  const bool is_complete = missing_key(request, 0) == request.keys.size();
  switch (request.operation) {
    case StoreOperation::kSet:
      for (size_t i = 0; i < request.keys.size(); ++i) values_[request.keys[i]] = request.values[i];
      return StoreAnswer{};
    case StoreOperation::kGet: {
      if (!is_complete) return std::nullopt;
      StoreAnswer answer;
      for (const std::string& key : request.keys) answer.values.push_back(values_.at(key));
      return answer;
    }
    case StoreOperation::kWait:
      return is_complete ? std::optional(StoreAnswer{}) : std::nullopt;
    case StoreOperation::kCheck:
      return StoreAnswer{StoreVerdict::kDone, is_complete ? 1 : 0, {}};
    case StoreOperation::kAdd:
      return add(request.keys[0], request.number);
    case StoreOperation::kCompareSet:
      return compare_set(request.keys[0], request.values[0], request.values[1]);
    case StoreOperation::kAppend:
      values_[request.keys[0]] += request.values[0];
      return StoreAnswer{};
    case StoreOperation::kDelete:
      return StoreAnswer{StoreVerdict::kDone, static_cast<int64_t>(values_.erase(request.keys[0])), {}};
    case StoreOperation::kCount:
      return StoreAnswer{StoreVerdict::kDone, static_cast<int64_t>(values_.size()), {}};
  }
  return StoreAnswer{StoreVerdict::kWrong, 0, {}};
}

StoreAnswer KeyTable::add(const std::string& key, int64_t number) {
  int64_t sum = 0;
  const auto found = values_.find(key);
  const auto before = found == values_.end() ? std::optional<int64_t>(0) : parse_integer<int64_t>(found->second);
  if (!before || __builtin_add_overflow(*before, number, &sum)) return {StoreVerdict::kWrong, 0, {}};
  values_[key] = std::to_string(sum);
  return {StoreVerdict::kDone, sum, {}};
}

StoreAnswer KeyTable::compare_set(const std::string& key, const std::string& expected, const std::string& wanted) {
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return {StoreVerdict::kDone, 0, {expected}};
  if (found != values_.end() && found->second != expected) return {StoreVerdict::kDone, 0, {found->second}};
  values_[key] = wanted;
  return {StoreVerdict::kDone, 0, {wanted}};
}

}  // namespace fsdp::comm
