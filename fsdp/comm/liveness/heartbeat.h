// How a rank is found that neither works nor closes its connections: its process is stopped or swaps without end, its
// host hangs or lost power.
//
// Every rank publishes a note about once a second (ProgressMonitor); what counts here is that it is another one each
// time. Each rank looks at the note of one other only, the next one round, and at one key `lost` that is the same for
// all. So a second costs the store a handful of small requests per rank, whatever the world size, and as long as one
// rank runs, one of those that do not is watched by a rank that runs. Who finds its neighbour silent for too long
// writes down who that is; a rank reads it within a second, ends everything it waits for, and reports those words.
//
// A rank that runs but makes no call, because its program hangs or is slow, goes on publishing: the deadline of a wait
// ends that.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "fsdp/comm/rendezvous/bounded_store.h"
#include "fsdp/comm/rendezvous/roster.h"
#include "fsdp/comm/transport/waits.h"

namespace fsdp::comm {

// For how long something that is looked at now and then has given no sign of life. Only time in which this process ran
// counts: a look that comes late, because the process was stopped or a slow store held it up, counts as one in time.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Silence(std::chrono::milliseconds most_per_look) : most_per_look_(most_per_look) {}

  void look(bool sign_of_life, Clock::time_point now);
  std::chrono::milliseconds length() const { return std::chrono::duration_cast<std::chrono::milliseconds>(length_); }

 private:
  Clock::duration most_per_look_;
  Clock::duration length_{0};
  std::optional<Clock::time_point> last_look_;
};

struct HeartbeatOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};  // silence after which a rank is lost; 0: nobody ever is
  std::string store_host;                // for messages: "rank 0 (...)", "the launcher"
};

// Between two notes of a rank, and between two looks.
std::chrono::milliseconds heartbeat_period(std::chrono::milliseconds timeout);

// This rank's share of the watch. For one thread.
class Heartbeat {
 public:
  // All three outlive it.
  Heartbeat(BoundedStore& store, const Roster& roster, const Waits& waits, HeartbeatOptions options);

  // A look, once in a period. Returns the reason once this rank has to give up: who is lost, where, for how long, and
  // what it did last. A store that is silent for the timeout is a reason only if this rank waits as long already: ranks
  // need it for nothing else.
  std::optional<std::string> look();

  // Why ranks have to give up, if one of them said so. Thread-safe.
  static std::optional<std::string> first_loss(BoundedStore& store, BoundedStore::Patience patience);
  // Says so, unless one did already. What all are to say: `reason`, or what was said first. Thread-safe.
  static std::string publish_loss(BoundedStore& store, const std::string& reason, BoundedStore::Patience patience);

 private:
  std::optional<std::string> look_at_neighbour();
  std::optional<std::string> judge_store() const;
  void watch_next();

  BoundedStore& store_;
  const Roster& roster_;
  const Waits& waits_;
  HeartbeatOptions options_;
  std::chrono::milliseconds period_;
  Silence store_silence_;
  int watched_;           // this rank itself: nobody is left
  Silence peer_silence_;  // of the watched
  std::string last_note_;
};

// Where a rank publishes its notes.
std::string note_key(int rank);

}  // namespace fsdp::comm
