#include "fsdp/comm/liveness/heartbeat.h"

#include <algorithm>
#include <utility>

#include "fsdp/comm/liveness/progress_note.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPeriod{1000};
constexpr milliseconds kShortestPeriod{50};
constexpr const char* kLossKey = "lost";

}  // namespace

void Silence::look(bool sign_of_life, Clock::time_point now) {
  if (sign_of_life) {
    length_ = Clock::duration{0};
  } else if (last_look_) {
    length_ += std::min(now - *last_look_, most_per_look_);
  }
  last_look_ = now;
}

milliseconds heartbeat_period(milliseconds timeout) {
  if (timeout.count() == 0) return kLongestPeriod;
  return std::clamp(timeout / 4, kShortestPeriod, kLongestPeriod);
}

std::string note_key(int rank) { return "progress/" + std::to_string(rank); }

Heartbeat::Heartbeat(BoundedStore& store, const Roster& roster, const Waits& waits, HeartbeatOptions options)
    : store_(store),
      roster_(roster),
      waits_(waits),
      options_(std::move(options)),
      period_(heartbeat_period(options_.timeout)),
      store_silence_(2 * period_),
      watched_((options_.rank + 1) % options_.size),
      peer_silence_(2 * period_) {}

std::optional<std::string> Heartbeat::look() {
  const auto lost = store_.get(kLossKey, period_);
  store_silence_.look(lost.has_value(), Silence::Clock::now());
  if (!lost) return judge_store();
  if (!lost->empty()) return lost;
  if (options_.timeout.count() == 0) return std::nullopt;
  return look_at_neighbour();
}

std::optional<std::string> Heartbeat::look_at_neighbour() {
  if (watched_ == options_.rank) return std::nullopt;
  const auto text = store_.get(note_key(watched_), period_);
  if (!text) return std::nullopt;  // the next look asks the store again
  peer_silence_.look(*text != last_note_, Silence::Clock::now());
  last_note_ = *text;
  const ProgressNote note = ProgressNote::decode(*text);
  if (note.has_left) {
    watch_next();
    return std::nullopt;
  }
  if (peer_silence_.length() < options_.timeout) return std::nullopt;
  const std::string last_call = note.last_call();
  const std::string reason = roster_.name(watched_) + " gave no sign of life for " +
                             format_seconds(peer_silence_.length()) + "; " +
                             (last_call.empty() ? "it made no call yet" : "its last known call was " + last_call) +
                             ". It was stopped, or its host hangs or is gone.";
  return publish_loss(store_, reason, period_);
}

// Ranks that have closed their connection need no watching.
void Heartbeat::watch_next() {
  watched_ = (watched_ + 1) % options_.size;
  peer_silence_ = Silence(2 * period_);
  last_note_.clear();
}

std::optional<std::string> Heartbeat::judge_store() const {
  const milliseconds silence = store_silence_.length();
  if (options_.timeout.count() == 0 || silence < options_.timeout) return std::nullopt;
  const milliseconds wait = waits_.longest();
  if (wait < options_.timeout) return std::nullopt;
  return options_.store_host + ", which hosts the store of the job, has not answered for " + format_seconds(silence) +
         ", and this call waits for " + format_seconds(wait) +
         ". It died or was stopped, or its host hangs or is gone.";
}

std::optional<std::string> Heartbeat::first_loss(BoundedStore& store, BoundedStore::Patience patience) {
  const auto reason = store.get(kLossKey, patience);
  return reason && !reason->empty() ? reason : std::nullopt;
}

std::string Heartbeat::publish_loss(BoundedStore& store, const std::string& reason, BoundedStore::Patience patience) {
  return store.claim(kLossKey, reason, patience).value_or(reason);
}

}  // namespace fsdp::comm
