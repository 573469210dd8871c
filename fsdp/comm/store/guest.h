#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "fsdp/base/file_descriptor.h"
#include "fsdp/comm/store/greeting.h"
#include "fsdp/comm/store/refusal_log.h"
#include "fsdp/comm/store/requests.h"

namespace fsdp::comm {

// One connection of the store of a job, as the store sees it. Never blocks. Not thread-safe.
class Guest {
 public:
  explicit Guest(FileDescriptor socket);

  // Says first words. False: the connection is gone.
  bool greet(const JobSecret& secret);

  // Reads what has come. False: the connection is over; refusal() says whether that was our will.
  bool receive(const JobSecret& secret);
  // The next request, once it is whole. A guest asks one thing at a time.
  std::optional<StoreRequest> next_request();
  // Sends, now or as soon as the other side takes it. False: the connection is gone.
  bool answer(const StoreAnswer& answer);
  // What is left of it.
  bool send_rest();

  int descriptor() const { return socket_.get(); }
  bool is_proven() const { return codec_.has_value(); }
  bool has_rest() const { return !to_send_.empty(); }
  std::optional<RefusalReason> refusal() const { return refusal_; }
  // For messages.
  std::string name() const;

 private:
  bool read_application();
  bool consider(const JobSecret& secret);
  bool refuse(RefusalReason reason);

  FileDescriptor socket_;
  std::string address_;  // of the other side, which the system forgets when that is gone
  Nonce nonce_;
  std::optional<int32_t> rank_;  // as it says
  std::optional<FrameCodec> codec_;
  std::optional<RefusalReason> refusal_;
  std::string received_;
  std::string to_send_;
};

}  // namespace fsdp::comm
