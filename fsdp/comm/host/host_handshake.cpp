#include "fsdp/comm/host/host_handshake.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "fsdp/comm/host/mailbox.h"
#include "fsdp/comm/rendezvous/number_text.h"
#include "fsdp/comm/rendezvous/store.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{2};
constexpr milliseconds kSlice{20};  // between looks at whether somebody has said no
constexpr const char* kNo = "no";
constexpr const char* kYes = "yes";

class Handshake {
 public:
  Handshake(c10d::Store& store, int rank, int size, const SharedArena* own, const HandshakeOptions& options)
      : store_(store),
        rank_(rank),
        size_(size),
        own_(own),
        options_(options),
        names_(static_cast<size_t>(size)),
        proofs_(static_cast<size_t>(size)),
        peers_(static_cast<size_t>(size)) {}

  std::optional<std::vector<HostPeer>> run() {
    const bool reached_all = publish() && find_all() && call_lower() && answer_higher() && hear_lower();
    if (!reached_all) {
      decide(kNo);
    } else if (store_.add("ready", 1) == size_) {
      decide(kYes);
    }
    while (!is_decided() && Clock::now() < until_) std::this_thread::sleep_for(kPause);
    // Whoever says something first has said it for all.
    if (decide(kNo) != kYes) return std::nullopt;
    return std::move(peers_);
  }

 private:
  bool is_decided() { return store_.check({"decision"}); }
  std::string decide(const char* word) { return to_text(store_.compareSet("decision", {}, to_bytes(word))); }

  bool publish() {
    until_ = Clock::now() + options_.start_deadline;
    if (own_ == nullptr) return false;
    names_[index(rank_)] = random_name();
    proofs_[index(rank_)] = reinterpret_cast<const ControlBlock*>(own_->base())->proof;
    listener_ = listen_at(names_[index(rank_)], size_);
    if (names_[index(rank_)].empty() || !listener_) return false;
    store_.set("name/" + std::to_string(rank_),
               to_bytes(names_[index(rank_)] + " " + std::to_string(proofs_[index(rank_)])));
    return true;
  }

  bool find_all() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const std::string key = "name/" + std::to_string(rank);
      while (!store_.check({key})) {
        if (is_decided() || Clock::now() >= until_) return false;
        std::this_thread::sleep_for(kPause);
      }
      const std::string text = to_text(store_.get(key));
      const size_t space = text.find(' ');
      if (space == std::string::npos) return false;  // no rank wrote this
      const auto proof = parse_integer<uint64_t>(std::string_view(text).substr(space + 1));
      if (!proof) return false;
      names_[index(rank)] = text.substr(0, space);
      proofs_[index(rank)] = *proof;
    }
    until_ = Clock::now() + options_.deadline;
    return true;
  }

  // Who is found in the store listens already.
  bool call_lower() {
    for (int rank = 0; rank < rank_; ++rank) {
      peers_[index(rank)].socket = connect_to(names_[index(rank)]);
      if (!peers_[index(rank)].socket || !greet(rank)) return false;
    }
    return true;
  }

  bool answer_higher() {
    for (int missing = size_ - 1 - rank_; missing > 0;) {
      FileDescriptor connection = accept_at(listener_, kSlice);
      if (!connection) {
        if (is_decided() || Clock::now() >= until_) return false;
        continue;
      }
      std::optional<Introduction> other = receive_greeting(connection, time_left());
      if (!other || other->greeting.rank <= rank_ || other->greeting.rank >= size_) continue;  // a stranger
      const int rank = static_cast<int>(other->greeting.rank);
      if (peers_[index(rank)].socket || other->greeting.proof != proofs_[index(rank_)]) continue;
      peers_[index(rank)].socket = std::move(connection);
      if (!map_arena(rank, *other) || !greet(rank)) return false;
      --missing;
    }
    return true;
  }

  bool hear_lower() {
    for (int rank = 0; rank < rank_; ++rank) {
      const FileDescriptor& socket = peers_[index(rank)].socket;
      while (!is_readable(socket, kSlice)) {
        if (is_decided() || Clock::now() >= until_) return false;
      }
      const std::optional<Introduction> other = receive_greeting(socket, time_left());
      if (!other || other->greeting.rank != rank || other->greeting.proof != proofs_[index(rank_)]) return false;
      if (!map_arena(rank, *other)) return false;
    }
    return true;
  }

  bool greet(int rank) {
    return send_greeting(peers_[index(rank)].socket, {rank_, own_->size(), proofs_[index(rank)]}, own_->file());
  }

  bool map_arena(int rank, const Introduction& other) {
    SharedMapping& arena = peers_[index(rank)].arena;
    arena = SharedMapping(other.file, other.greeting.arena_bytes);
    return arena.base() != nullptr &&
           reinterpret_cast<const ControlBlock*>(arena.base())->proof == proofs_[index(rank)];
  }

  milliseconds time_left() const {
    return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(until_ - Clock::now()));
  }

  static size_t index(int rank) { return static_cast<size_t>(rank); }

  c10d::Store& store_;
  int rank_;
  int size_;
  const SharedArena* own_;
  HandshakeOptions options_;
  FileDescriptor listener_;
  std::vector<std::string> names_;
  std::vector<uint64_t> proofs_;
  std::vector<HostPeer> peers_;
  Clock::time_point until_;
};

}  // namespace

std::optional<std::vector<HostPeer>> shake_hands(c10d::Store& store, int rank, int size, const SharedArena* own,
                                                 const HandshakeOptions& options) {
  return Handshake(store, rank, size, own, options).run();
}

}  // namespace fsdp::comm
