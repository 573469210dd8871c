#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/base/file_descriptor.h"
#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/store/greeting.h"
#include "fsdp/comm/store/requests.h"
#include "fsdp/comm/store/store_server.h"

namespace fsdp::comm {

struct StoreAddress {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  JobSecret secret;
  int rank = 0;
  std::string who;  // asks, for messages: "rank 3 of 8 (srun)"
  // To be let in, and what c10d calls the timeout of a store: for keys to come.
  std::chrono::milliseconds deadline = std::chrono::minutes(5);
  // Lives as long as the client: where this process hosts the store itself.
  std::shared_ptr<StoreServer> hosted;
};

// A rank's connection to a StoreServer, as c10d's stores are used. Thread-safe, one call at a time; clone() is another
// connection. Calls throw Error(kCommunication): no key within the timeout, or the store does not answer; after the
// latter all further calls do.
class StoreClient : public c10d::Store {
 public:
  // Connects, again and again while nobody answers, for the deadline. Throws
  //   Error(kCommunication) that names the address: nobody answers, or something that is not the store of a job
  //   Error(kUsage) that names the rank: the store has another secret, or one of the two has none
  explicit StoreClient(StoreAddress address);

  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  bool hasExtendedApi() const override { return true; }
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Entry { kAdmitted, kTryAgain };

  Entry try_to_enter(Clock::time_point until);
  void check_admission(const Admission& admission, const Nonce& store_nonce, const Nonce& own_nonce) const;
  StoreAnswer ask(const StoreRequest& request);
  StoreAnswer exchange(const StoreRequest& request);
  std::string receive_message(Clock::time_point until);
  [[noreturn]] void throw_unreachable(const std::string& reason) const;
  [[noreturn]] void throw_not_ours() const;

  StoreAddress address_;
  std::string failure_;  // of the last attempt to enter
  std::mutex mutex_;
  FileDescriptor connection_;
  FrameCodec codec_;
  std::string received_;
};

}  // namespace fsdp::comm
