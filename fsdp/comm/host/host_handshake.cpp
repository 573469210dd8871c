#include "fsdp/comm/host/host_handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "fsdp/base/number_text.h"
#include "fsdp/comm/host/mailbox.h"
#include "fsdp/comm/rendezvous/store.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{2};
constexpr milliseconds kSlice{20};  // between looks at whether somebody has said no
constexpr const char* kNo = "no ";  // and why
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
        tokens_(static_cast<size_t>(size)),
        peers_(static_cast<size_t>(size)) {}

  HandshakeOutcome run() {
    const bool reached_all = publish() && find_all() && call_lower() && answer_higher() && hear_lower();
    if (!reached_all) {
      decide(kNo + obstacle_);
    } else if (store_.add("ready", 1) == size_) {
      decide(kYes);
    }
    while (!is_decided() && Clock::now() < until_) std::this_thread::sleep_for(kPause);
    // Whoever says something first has said it for all.
    const std::string decision = decide(kNo + this_rank() + " waited too long for the others to be ready");
    if (decision == kYes) return {std::move(peers_), ""};
    const bool has_reason = decision.starts_with(kNo) && decision.size() > std::strlen(kNo);
    return {std::nullopt, has_reason ? decision.substr(std::strlen(kNo)) : "no rank wrote what the store says of it"};
  }

 private:
  bool is_decided() { return store_.check({"decision"}); }
  std::string decide(const std::string& word) { return to_text(store_.compareSet("decision", {}, to_bytes(word))); }

  // Ranks are counted on the host.
  static std::string name_of(int rank) { return "rank " + std::to_string(rank) + " of the host"; }
  std::string this_rank() const { return name_of(rank_); }
  // What all are told, unless somebody has said something before.
  bool stop(std::string obstacle) {
    obstacle_ = std::move(obstacle);
    return false;
  }
  bool stop_unheard(int other) {
    return stop(this_rank() + " heard nothing in time from " + name_of(other) +
                " that proves the secret of the job and brings memory that keeps its size");
  }

  bool publish() {
    until_ = Clock::now() + options_.start_deadline;
    if (own_ == nullptr) return stop(this_rank() + " has no memory to share: " + options_.no_arena);
    names_[index(rank_)] = random_name();
    tokens_[index(rank_)] = reinterpret_cast<const ControlBlock*>(own_->base())->token;
    listener_ = listen_at(names_[index(rank_)], size_);
    if (names_[index(rank_)].empty()) return stop(this_rank() + " gets no random numbers from the system");
    if (!listener_) return stop(this_rank() + " cannot listen on a Unix socket: " + std::strerror(errno));
    store_.set("name/" + std::to_string(rank_),
               to_bytes(names_[index(rank_)] + " " + std::to_string(tokens_[index(rank_)])));
    return true;
  }

  bool find_all() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const std::string key = "name/" + std::to_string(rank);
      while (!store_.check({key})) {
        if (is_decided() || Clock::now() >= until_) return stop(name_of(rank) + " did not begin in time");
        std::this_thread::sleep_for(kPause);
      }
      const std::string text = to_text(store_.get(key));
      const size_t space = text.find(' ');
      const auto token =
          space == std::string::npos ? std::nullopt : parse_integer<uint64_t>(std::string_view(text).substr(space + 1));
      if (!token) return stop("no rank wrote what the store says of " + name_of(rank));
      names_[index(rank)] = text.substr(0, space);
      tokens_[index(rank)] = *token;
    }
    until_ = Clock::now() + options_.deadline;
    return true;
  }

  // Who is found in the store listens already; strangers may fill its queue for a while.
  bool call_lower() {
    for (int rank = 0; rank < rank_; ++rank) {
      Call call = connect_to(names_[index(rank)]);
      while (call.is_queue_full && !is_decided() && Clock::now() < until_) {
        std::this_thread::sleep_for(kPause);
        call = connect_to(names_[index(rank)]);
      }
      if (!call.connection) {
        return stop(this_rank() + " cannot reach " + name_of(rank) + " on a Unix socket" +
                    (call.is_queue_full ? ": others have filled its queue" : ""));
      }
      peers_[index(rank)].socket = std::move(call.connection);
      if (!greet(rank)) return stop(this_rank() + " cannot send its memory to " + name_of(rank));
    }
    return true;
  }

  bool answer_higher() {
    std::vector<FileDescriptor> silent;  // connections that have said nothing yet; the others are not kept waiting
    for (int missing = size_ - 1 - rank_; missing > 0;) {
      if (FileDescriptor connection = accept_at(listener_, kSlice)) silent.push_back(std::move(connection));
      const auto spoke = std::stable_partition(silent.begin(), silent.end(), [](const FileDescriptor& connection) {
        return !is_readable(connection, milliseconds(0));
      });
      std::vector<FileDescriptor> heard(std::make_move_iterator(spoke), std::make_move_iterator(silent.end()));
      silent.erase(spoke, silent.end());
      for (FileDescriptor& connection : heard) {
        const std::optional<int> rank = who_speaks(connection);
        if (!rank) continue;
        if (!greet(*rank)) return stop(this_rank() + " cannot send its memory to " + name_of(*rank));
        --missing;
      }
      if (missing > 0 && (is_decided() || Clock::now() >= until_)) return stop_unheard(first_missing());
    }
    return true;
  }

  int first_missing() const {
    int rank = rank_ + 1;
    while (rank + 1 < size_ && peers_[index(rank)].socket) ++rank;
    return rank;
  }

  // The higher rank that proves itself, whose socket and arena are kept; nothing for a stranger.
  std::optional<int> who_speaks(FileDescriptor& connection) {
    const std::optional<Introduction> other = receive_greeting(connection, milliseconds(0));
    if (!other || other->greeting.rank <= rank_ || other->greeting.rank >= size_) return std::nullopt;
    const int rank = static_cast<int>(other->greeting.rank);
    if (peers_[index(rank)].socket || !is_proven(rank, other->greeting)) return std::nullopt;
    if (!map_arena(rank, *other)) return std::nullopt;
    peers_[index(rank)].socket = std::move(connection);
    return rank;
  }

  bool hear_lower() {
    for (int rank = 0; rank < rank_; ++rank) {
      const FileDescriptor& socket = peers_[index(rank)].socket;
      while (!is_readable(socket, kSlice)) {
        if (is_decided() || Clock::now() >= until_) return stop_unheard(rank);
      }
      const std::optional<Introduction> other = receive_greeting(socket, time_left());
      if (!other || other->greeting.rank != rank || !is_proven(rank, other->greeting)) return stop_unheard(rank);
      if (!map_arena(rank, *other)) return stop(this_rank() + " cannot map the memory of " + name_of(rank));
    }
    return true;
  }

  bool greet(int rank) {
    const Greeting greeting{rank_, own_->size(), proof(rank_, rank, own_->size())};
    return send_greeting(peers_[index(rank)].socket, greeting, own_->file());
  }

  // What `from` proves to `to`. Names and tokens are random and used in this handshake only.
  Proof proof(int from, int to, int64_t arena_bytes) const {
    const auto token = [this](int rank) { return std::to_string(tokens_[index(rank)]); };
    return options_.secret.prove("link of a host",
                                 {std::to_string(from), names_[index(from)], token(from), std::to_string(to),
                                  names_[index(to)], token(to), std::to_string(arena_bytes)});
  }

  bool is_proven(int rank, const Greeting& greeting) const {
    return are_equal(greeting.proof, proof(rank, rank_, greeting.arena_bytes));
  }

  bool map_arena(int rank, const Introduction& other) {
    SharedMapping& arena = peers_[index(rank)].arena;
    arena = SharedMapping(other.file, other.greeting.arena_bytes);
    return arena.base() != nullptr &&
           reinterpret_cast<const ControlBlock*>(arena.base())->token == tokens_[index(rank)];
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
  std::vector<uint64_t> tokens_;  // each stands in the arena of its rank
  std::vector<HostPeer> peers_;
  std::string obstacle_;
  Clock::time_point until_;
};

}  // namespace

HandshakeOutcome shake_hands(c10d::Store& store, int rank, int size, const SharedArena* own,
                             const HandshakeOptions& options) {
  return Handshake(store, rank, size, own, options).run();
}

}  // namespace fsdp::comm
