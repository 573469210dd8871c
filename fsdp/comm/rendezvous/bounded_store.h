#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace fsdp::comm {

// A key-value store behind a thread of its own, so that nobody waits for it longer than they want to: a store whose
// host hangs neither answers nor fails. Each method returns nothing if no answer came within `patience` or the store is
// gone; what was to be written may still be written later. After the first failure the store is not asked again. Values
// are not empty. Thread-safe.
class BoundedStore {
 public:
  using Patience = std::chrono::milliseconds;

  explicit BoundedStore(c10::intrusive_ptr<c10d::Store> store);
  // Leaves the thread behind, with the store, if that holds it up.
  ~BoundedStore();
  BoundedStore(const BoundedStore&) = delete;
  BoundedStore& operator=(const BoundedStore&) = delete;

  // Whether it was written in time.
  bool set(const std::string& key, const std::string& value, Patience patience);
  // "": no such key, yet.
  std::optional<std::string> get(const std::string& key, Patience patience);
  // Writes unless the key has a value. What the key has now.
  std::optional<std::string> claim(const std::string& key, const std::string& value, Patience patience);
  // The sum, this one included.
  std::optional<int64_t> add(const std::string& key, int64_t value, Patience patience);

 private:
  struct State;
  using Question = std::function<std::string(c10d::Store&)>;
  std::optional<std::string> ask(Question question, Patience patience);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace fsdp::comm
