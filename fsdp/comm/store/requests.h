#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::comm {

// What ranks ask the store of a job, and what it answers, as bytes: fixed numbers (little end first), then lists of
// texts with their lengths. A message is at most kMostMessageBytes,
// a list has at most kMostListItems.
inline constexpr size_t kMostMessageBytes = size_t{64} << 20;
inline constexpr size_t kMostListItems = size_t{1} << 20;  // each costs more than the bytes it came in

enum class StoreOperation : uint8_t {
  kSet,         // values[i] at keys[i]
  kGet,         // the values of all keys, once they are there
  kWait,        // until all keys are there
  kCheck,       // number 1: all keys are there
  kAdd,         // number is added to the decimal number at keys[0], 0 without one; the sum
  kCompareSet,  // writes values[1] at keys[0] if values[0] stands there, "" for nothing; what stands there then
  kAppend,      // values[0] behind what stands at keys[0]
  kDelete,      // number 1: there was such a key
  kCount,       // of the keys
};

struct StoreRequest {
  StoreOperation operation = StoreOperation::kCount;
  std::chrono::milliseconds patience{0};  // of kGet and kWait
  int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;
};

enum class StoreVerdict : uint8_t {
  kDone,
  kLate,   // keys were not there within the patience
  kWrong,  // the value at the key does not suit the operation
};

struct StoreAnswer {
  StoreVerdict verdict = StoreVerdict::kDone;
  int64_t number = 0;
  std::vector<std::string> values;
};

std::string encode(const StoreRequest& request);
std::string encode(const StoreAnswer& answer);
// Nothing if `bytes` are not what encode() writes, or a request whose operation needs other keys and values.
std::optional<StoreRequest> decode_request(std::string_view bytes);
std::optional<StoreAnswer> decode_answer(std::string_view bytes);

}  // namespace fsdp::comm
