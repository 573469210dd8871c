#include "tests/device/stream_clocks.h"

#include <algorithm>

namespace fsdp::testing {
namespace {

constexpr size_t kMostRaces = 20;

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, time] : other) clock[stream] = std::max(clock[stream], time);
}

int64_t seen_of(const Clock& clock, StreamKey stream) {
  const auto found = clock.find(stream);
  return found == clock.end() ? 0 : found->second;
}

}  // namespace

void StreamClocks::run(StreamKey stream, const std::string& name, const std::string& range,
                       const std::vector<Access>& accesses) {
  const std::lock_guard lock(mutex_);
  Clock& clock = clocks_[stream];
  join(clock, host_);
  const Touched now{++clock[stream], stream, name + " (" + range + ") on stream " + std::to_string(stream)};
  for (const Access& access : accesses) {
    if (access.begin < access.end) touch(access, now, clock);
  }
  tasks_.push_back({name, range, stream, clock});
}

Clock StreamClocks::now(StreamKey stream) {
  const std::lock_guard lock(mutex_);
  Clock& clock = clocks_[stream];
  join(clock, host_);
  return clock;
}

void StreamClocks::hold_back(StreamKey stream, const Clock& until) {
  const std::lock_guard lock(mutex_);
  join(clocks_[stream], until);
}

void StreamClocks::host_waits(const Clock& until) {
  const std::lock_guard lock(mutex_);
  ++host_waits_;
  join(host_, until);
}

void StreamClocks::note_recorded_stream() {
  const std::lock_guard lock(mutex_);
  ++recorded_streams_;
}

bool StreamClocks::comes_after(const StreamTask& later, const StreamTask& earlier) {
  return seen_of(later.seen, earlier.stream) >= seen_of(earlier.seen, earlier.stream);
}

void StreamClocks::split(uintptr_t at) {
  auto next = memory_.upper_bound(at);
  if (next == memory_.begin()) return;
  auto piece = std::prev(next);
  if (piece->first == at || piece->second.end <= at) return;
  Bytes tail = piece->second;
  piece->second.end = at;
  memory_.emplace(at, std::move(tail));
}

void StreamClocks::touch(const Access& access, const Touched& now, const Clock& seen) {
  split(access.begin);
  split(access.end);
  uintptr_t at = access.begin;
  for (auto piece = memory_.lower_bound(at); at < access.end;) {
    if (piece == memory_.end() || piece->first > at) {
      const uintptr_t end = piece == memory_.end() ? access.end : std::min(access.end, piece->first);
      piece = memory_.emplace(at, Bytes{end, {}, {}}).first;
    }
    Bytes& bytes = piece->second;
    check(bytes.write, now, seen);
    if (access.writes) {
      for (const auto& [stream, read] : bytes.reads) check(read, now, seen);
      bytes.write = now;
      bytes.reads.clear();
    } else {
      bytes.reads[now.stream] = now;
    }
    at = bytes.end;
    ++piece;
  }
}

void StreamClocks::check(const Touched& before, const Touched& now, const Clock& seen) {
  if (before.time <= seen_of(seen, before.stream) || races_.size() >= kMostRaces) return;
  races_.push_back(now.what + " meets " + before.what + " without an order");
}

std::vector<StreamTask> StreamClocks::tasks() const {
  const std::lock_guard lock(mutex_);
  return tasks_;
}

std::vector<std::string> StreamClocks::races() const {
  const std::lock_guard lock(mutex_);
  return races_;
}

int64_t StreamClocks::num_host_waits() const {
  const std::lock_guard lock(mutex_);
  return host_waits_;
}

int64_t StreamClocks::num_recorded_streams() const {
  const std::lock_guard lock(mutex_);
  return recorded_streams_;
}

void StreamClocks::clear() {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  races_.clear();
  host_waits_ = 0;
  recorded_streams_ = 0;
}

}  // namespace fsdp::testing
