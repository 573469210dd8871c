#include "fsdp/comm/rendezvous/roster.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <thread>

#include "fsdp/base/check.h"
#include "fsdp/base/number_text.h"
#include "fsdp/comm/rendezvous/build_id.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kMemberFieldEnd = '\x1f';
constexpr char kMemberEnd = '\x1e';
constexpr milliseconds kShortestPause{2};
constexpr milliseconds kLongestPause{100};
constexpr milliseconds kLeastPatience{1000};
constexpr milliseconds kPartPatience{3000};
constexpr const char* kHeardKey = "heard";
// How many missing ranks a message names.
constexpr size_t kMostNamed = 32;

// The first character of what came of the meeting.
enum class Outcome : char { kComplete = '+', kMissing = '?', kOdd = '-' };

std::string encode(const Member& member) {
  std::ostringstream out;
  out << member.host << kMemberFieldEnd << member.process << kMemberFieldEnd << member.world_size << kMemberFieldEnd
      << member.build << kMemberFieldEnd << member.settings << kMemberFieldEnd;
  return out.str();
}

Member decode(const std::string& text) {
  std::vector<std::string> fields;
  std::istringstream in(text);
  for (std::string field; std::getline(in, field, kMemberFieldEnd);) fields.push_back(field);
  fields.resize(5);
  return {fields[0], parse_integer<int64_t>(fields[1]).value_or(0), parse_integer<int>(fields[2]).value_or(0),
          fields[3], fields[4]};
}

std::vector<Member> decode_all(const std::string& text) {
  std::vector<Member> members;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line, kMemberEnd);) members.push_back(decode(line));
  return members;
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return text;
}

std::string key_of(int rank) { return "start/" + std::to_string(rank); }

// What most members have; among equals what rank 0 has.
std::string most_common(const std::vector<Member>& members, std::string Member::*field) {
  std::map<std::string, int> counts;
  for (const Member& member : members) ++counts[member.*field];
  std::string best = members[0].*field;
  for (const auto& [value, count] : counts) {
    if (count > counts[best]) best = value;
  }
  return best;
}

// A sentence on those whose `field` is not what most have; "" if there are none.
std::string describe_odd(const std::vector<Member>& members, std::string Member::*field, const std::string& what,
                         const std::string& fix) {
  const std::string common = most_common(members, field);
  const auto odd = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.*field != common; });
  if (odd == members.end()) return "";
  const auto count = std::count_if(members.begin(), members.end(), [&](const Member& m) { return m.*field != common; });
  const int rank = static_cast<int>(odd - members.begin());
  return c10::str(Roster(members).name(rank), count > 1 ? c10::str(" and ", count - 1, " more") : "", ": ", what,
                  ": got ", (*odd).*field, ", expected ", common, " as on the other ranks. ", fix);
}

class Meeting {
 public:
  Meeting(BoundedStore& store, int rank, const Member& self, milliseconds deadline)
      : store_(store), rank_(rank), self_(self), deadline_(deadline), until_(Clock::now() + deadline) {}

  std::vector<Member> run() {
    claim_rank();
    const std::string outcome = rank_ == 0 ? judge() : hear();
    const std::string text = outcome.substr(1);
    if (static_cast<Outcome>(outcome[0]) != Outcome::kComplete) part();
    switch (static_cast<Outcome>(outcome[0])) {
      case Outcome::kComplete:
        break;
      case Outcome::kMissing:
        FSDP_THROW(kCommunication, prefix(), "after ", std::chrono::duration<double>(deadline_).count(),
                   " s these ranks have not started: ", text, ". Start one process for each rank.");
      case Outcome::kOdd:
        FSDP_THROW(kUsage, prefix(), text);
    }
    std::vector<Member> members = decode_all(text);
    FSDP_CHECK(static_cast<int>(members.size()) == self_.world_size, prefix(), "world size: got ", self_.world_size,
               ", expected ", members.size(), " as on rank 0. Start all ranks with the same world size.");
    return members;
  }

 private:
  std::string prefix() const { return c10::str("[init] rank ", rank_, " of ", self_.world_size, ": "); }

  milliseconds patience() const {
    return std::max(kLeastPatience, std::chrono::duration_cast<milliseconds>(until_ - Clock::now()));
  }

  template <class Answer>
  Answer need(const std::optional<Answer>& answer) const {
    if (!answer) {
      FSDP_THROW(kCommunication, prefix(),
                 "the store of the job does not answer. Check the process that hosts it: ", "rank 0, or the launcher.");
    }
    return *answer;
  }

  std::string get(const std::string& key) { return need(store_.get(key, patience())); }

  // What the meeting came to; who says something first has said it for all.
  std::string decide(Outcome outcome, const std::string& text) {
    return need(store_.claim("roster", static_cast<char>(outcome) + text, patience()));
  }

  void claim_rank() {
    if (need(store_.add("claims/" + std::to_string(rank_), 1, patience())) == 1) {
      need(store_.set(key_of(rank_), encode(self_), patience()) ? std::optional(true) : std::nullopt);
      return;
    }
    std::string first;
    for (auto pause = kShortestPause; first.empty() && pause < kLongestPause; pause *= 2) {
      std::this_thread::sleep_for(pause);
      first = get(key_of(rank_));
    }
    const std::string text = c10::str(
        Roster({self_}).place(0), " and ", first.empty() ? "another process" : Roster({decode(first)}).place(0),
        " both claim to be rank ", rank_, ". Start one process for each rank, each with its own number.");
    decide(Outcome::kOdd, text);
    FSDP_THROW(kUsage, prefix(), text);
  }

  // Rank 0's process may host the store, and take it along: it stays until those that came have heard the outcome.
  void part() {
    if (rank_ != 0) {
      store_.add(kHeardKey, 1, kPartPatience);
      return;
    }
    int64_t present = 0;
    for (int rank = 1; rank < self_.world_size; ++rank) present += get(key_of(rank)).empty() ? 0 : 1;
    const auto until = Clock::now() + kPartPatience;
    while (Clock::now() < until && store_.add(kHeardKey, 0, kPartPatience).value_or(present) < present) {
      std::this_thread::sleep_for(kLongestPause / 10);
    }
  }

  // Rank 0.
  std::string judge() {
    std::vector<Member> members(static_cast<size_t>(self_.world_size));
    std::vector<int> missing;
    for (int rank = 0; rank < self_.world_size; ++rank) missing.push_back(rank);
    for (auto pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause / 10)) {
      std::vector<int> still;
      for (const int rank : missing) {
        const std::string text = get(key_of(rank));
        if (text.empty()) {
          still.push_back(rank);
          continue;
        }
        members[static_cast<size_t>(rank)] = decode(text);
        const Member& member = members[static_cast<size_t>(rank)];
        if (member.world_size != self_.world_size) return refuse_world_size(rank, member);
      }
      missing = still;
      if (missing.empty()) return judge(members);
      if (const std::string outcome = get("roster"); !outcome.empty()) return outcome;
      if (Clock::now() >= until_) return decide(Outcome::kMissing, join(missing));
      std::this_thread::sleep_for(pause);
    }
  }

  std::string refuse_world_size(int rank, const Member& member) {
    return decide(Outcome::kOdd, c10::str("rank ", rank, " (", Roster({member}).place(0), "): world size: got ",
                                          member.world_size, ", expected ", self_.world_size,
                                          " as on rank 0. Start all ranks with the same world size."));
  }

  std::string judge(const std::vector<Member>& members) {
    std::string odd = describe_odd(members, &Member::build, "build of fsdp", "Install the same program on all hosts.");
    if (odd.empty()) {
      odd = describe_odd(members, &Member::settings, "settings", "Start all ranks with the same configuration.");
    }
    if (!odd.empty()) return decide(Outcome::kOdd, odd);
    std::string all;
    for (const Member& member : members) all += encode(member) + kMemberEnd;
    return decide(Outcome::kComplete, all);
  }

  // The others.
  std::string hear() {
    for (auto pause = kShortestPause; Clock::now() < until_; pause = std::min(2 * pause, kLongestPause)) {
      if (const std::string outcome = get("roster"); !outcome.empty()) return outcome;
      std::this_thread::sleep_for(pause);
    }
    std::vector<int> missing;
    for (int rank = 0; rank < self_.world_size; ++rank) {
      if (get(key_of(rank)).empty()) missing.push_back(rank);
    }
    if (!missing.empty()) return decide(Outcome::kMissing, join(missing));
    FSDP_THROW(kCommunication, prefix(), "all ranks have started, but rank 0 has not said so within ",
               std::chrono::duration<double>(deadline_).count(), " s. Look at rank 0.");
  }

  BoundedStore& store_;
  int rank_;
  const Member& self_;
  milliseconds deadline_;
  Clock::time_point until_;
};

}  // namespace

Member Member::self(int world_size) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), getpid(), world_size, build_id(), ""};
}

Roster Roster::meet(BoundedStore& store, int rank, const Member& self, milliseconds deadline) {
  return Roster(Meeting(store, rank, self, deadline).run());
}

std::string Roster::name(int rank) const {
  const std::string where = place(rank);
  return "rank " + std::to_string(rank) + (where.empty() ? "" : " (" + where + ")");
}

std::string Roster::place(int rank) const {
  if (static_cast<size_t>(rank) >= members_.size()) return "";
  const Member& member = members_[static_cast<size_t>(rank)];
  return "host '" + member.host + "', process " + std::to_string(member.process);
}

}  // namespace fsdp::comm
