#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "fsdp/comm/store/requests.h"

namespace fsdp::comm {

// Keys and their values, as c10d's stores keep them. Not thread-safe.
class KeyTable {
 public:
  // Carries out a request that decode_request() accepts. Nothing: a key that it waits for is missing.
  std::optional<StoreAnswer> answer(const StoreRequest& request);
  // The place of the first of its keys from place `first` on that is not there; their number if all are.
  size_t missing_key(const StoreRequest& request, size_t first) const;

 private:
  StoreAnswer add(const std::string& key, int64_t number);
  StoreAnswer compare_set(const std::string& key, const std::string& expected, const std::string& wanted);

  std::unordered_map<std::string, std::string> values_;
};

}  // namespace fsdp::comm
