#include "fsdp/base/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "fsdp/base/check.h"

namespace fsdp::faults {

std::atomic<bool> armed{false};

namespace {

constexpr const char* kSyntax =
    "expected `<action>@<point>[:rank=R][:hit=N]`, several separated by ';'. See docs/reliability.md.";

struct Fault {
  std::string action;
  std::string argument;  // after '='
  std::string point;
  int rank = 0;
  int64_t hit = 1;
};

struct Armed {
  std::mutex mutex;
  std::vector<Fault> faults;            // of this rank
  std::map<std::string, int64_t> hits;  // by point
};

Armed& state() {
  static Armed instance;
  return instance;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

int64_t number_after(const std::string& word, const std::string& key, const std::string& whole) {
  char* end = nullptr;
  const std::string digits = word.substr(key.size());
  const int64_t number = std::strtoll(digits.c_str(), &end, 10);
  FSDP_CHECK(!digits.empty() && *end == '\0' && number >= 0, "[faults] FSDP_FAULT: got '", whole, "', ", kSyntax);
  return number;
}

Fault parse(const std::string& text) {
  const std::vector<std::string> words = split(text, ':');
  const size_t at = words.empty() ? std::string::npos : words[0].find('@');
  FSDP_CHECK(at != std::string::npos, "[faults] FSDP_FAULT: got '", text, "', ", kSyntax);
  Fault fault;
  fault.action = words[0].substr(0, at);
  fault.point = words[0].substr(at + 1);
  const size_t equals = fault.action.find('=');
  if (equals != std::string::npos) {
    fault.argument = fault.action.substr(equals + 1);
    fault.action.resize(equals);
  }
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].rfind("rank=", 0) == 0) {
      fault.rank = static_cast<int>(number_after(words[i], "rank=", text));
    } else if (words[i].rfind("hit=", 0) == 0) {
      fault.hit = number_after(words[i], "hit=", text);
    } else {
      FSDP_THROW(kUsage, "[faults] FSDP_FAULT: got '", text, "', ", kSyntax);
    }
  }
  return fault;
}

int error_number_of(const std::string& name) {
  static const std::map<std::string, int> numbers = {
      {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}, {"EROFS", EROFS}};
  const auto found = numbers.find(name);
  FSDP_CHECK(found != numbers.end(), "[faults] FSDP_FAULT: got error '", name,
             "', expected one of: ENOSPC, EIO, EDQUOT, EACCES, EROFS.");
  return found->second;
}

Order carry_out(const Fault& fault) {
  static const std::map<std::string, int> signals = {
      {"kill", SIGKILL}, {"stop", SIGSTOP}, {"abort", SIGABRT}, {"term", SIGTERM}, {"usr1", SIGUSR1}};
  const auto signal_number = signals.find(fault.action);
  if (signal_number != signals.end()) {
    ::kill(getpid(), signal_number->second);
    return {};
  }
  if (fault.action == "throw") FSDP_THROW(kInternal, "[faults] thrown at ", fault.point);
  if (fault.action == "delay") {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::strtoll(fault.argument.c_str(), nullptr, 10)));
    return {};
  }
  if (fault.action == "error") return {.inject = false, .error_number = error_number_of(fault.argument)};
  FSDP_CHECK(fault.action == "inject", "[faults] FSDP_FAULT: got action '", fault.action,
             "', expected one of: kill, stop, abort, term, usr1, throw, delay=MS, error=NAME, inject.");
  return {.inject = true, .error_number = 0};
}

}  // namespace

void arm(int rank) {
  const char* text = std::getenv("FSDP_FAULT");
  const std::lock_guard lock(state().mutex);
  state().faults.clear();
  state().hits.clear();
  for (const std::string& part : split(text == nullptr ? "" : text, ';')) {
    const Fault fault = parse(part);
    if (fault.rank == rank) state().faults.push_back(fault);
  }
  armed = !state().faults.empty();
}

Order reach(const char* point) {
  Fault due;
  {
    const std::lock_guard lock(state().mutex);
    const int64_t hit = ++state().hits[point];
    // A delay is what makes a straggler: from its hit on, every time.
    for (const Fault& fault : state().faults) {
      const bool now = fault.action == "delay" ? hit >= fault.hit : hit == fault.hit;
      if (fault.point == point && now) due = fault;
    }
  }
  return due.point.empty() ? Order{} : carry_out(due);
}

}  // namespace fsdp::faults
