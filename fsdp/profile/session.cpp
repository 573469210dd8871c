#include "fsdp/profile/session.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "fsdp/base/error.h"
#include "fsdp/base/json_text.h"

namespace fsdp::profile {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

struct Span {
  TimePoint begin;
  TimePoint end;
};

double ms(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) sum += ms(span.end - span.begin);
  return sum;
}

// Sorted and disjoint.
std::vector<Span> joined(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (!result.empty() && span.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

// Both sorted and disjoint.
std::vector<Span> common(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::vector<Span> result;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Span both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.begin < both.end) result.push_back(both);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return result;
}

std::vector<Span> without(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::vector<Span> result;
  for (Span span : a) {
    for (const Span& hole : b) {
      if (hole.end <= span.begin || hole.begin >= span.end) continue;
      if (span.begin < hole.begin) result.push_back({span.begin, hole.begin});
      span.begin = std::min(hole.end, span.end);
    }
    if (span.begin < span.end) result.push_back(span);
  }
  return result;
}

bool is_compute(const TraceEvent& event) { return event.name == "forward" || event.name == "backward"; }
bool is_wait(const TraceEvent& event) { return event.name.rfind("wait ", 0) == 0; }

template <class Predicate>
std::vector<Span> spans_of(const std::vector<TraceEvent>& events, Predicate predicate) {
  std::vector<Span> spans;
  for (const TraceEvent& event : events) {
    if (predicate(event)) spans.push_back({event.begin, event.end});
  }
  return joined(std::move(spans));
}

std::string row(const std::string& name, const std::vector<double>& values) {
  std::string line = name + std::string(name.size() < 28 ? 28 - name.size() : 0, ' ');
  for (const double value : values) {
    std::array<char, 32> cell{};
    std::snprintf(cell.data(), cell.size(), " %10.2f", value);
    line += cell.data();
  }
  return line + "\n";
}

}  // namespace

Session::Session(int rank)
    : rank_(rank), begin_(std::chrono::steady_clock::now()), collector_(std::make_unique<TraceCollector>()) {}

Session::~Session() = default;

void Session::stop() {
  if (!collector_) return;
  end_ = std::chrono::steady_clock::now();
  events_ = collector_->events();
  collector_.reset();
}

std::string Session::chrome_events() {
  stop();
  std::map<std::string, int> threads{{"", 0}};
  std::ostringstream text;
  text << R"({"ph": "M", "pid": )" << rank_ << R"(, "name": "process_name", "args": {"name": "rank )" << rank_
       << "\"}}";
  const auto name_thread = [&](int number, const std::string& name) {
    text << ",\n"
         << R"({"ph": "M", "pid": )" << rank_ << R"(, "tid": )" << number
         << R"(, "name": "thread_name", "args": {"name": )" << json_text(name) << "}}";
  };
  name_thread(0, "program");
  for (const TraceEvent& event : events_) {
    const auto [thread, is_new] = threads.emplace(event.thread, static_cast<int>(threads.size()));
    if (is_new) name_thread(thread->second, event.thread);
    std::array<char, 96> times{};
    std::snprintf(times.data(), times.size(), "\"ts\": %.3f, \"dur\": %.3f", 1e3 * ms(event.begin - begin_),
                  1e3 * ms(event.end - event.begin));
    const std::string name = event.unit.empty() ? event.name : event.name + " " + event.unit;
    text << ",\n{\"ph\": \"X\", \"pid\": " << rank_ << ", \"tid\": " << thread->second << ", " << times.data()
         << ", \"name\": " << json_text(name) << ", \"cat\": " << json_text(event.name)
         << ", \"args\": {\"unit\": " << json_text(event.unit) << "}}";
  }
  return text.str();
}

void Session::write(const std::string& path) {
  std::ofstream file(path);
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" << chrome_events() << "\n]}\n";
  file.flush();
  if (file.good()) return;
  throw Error(ErrorCode::kFileSystem, "[profile] cannot write '" + path + "': " + std::strerror(errno) +
                                          ". Check the folder and the space that is left.");
}

std::vector<UnitTimes> Session::units() {
  stop();
  std::vector<std::string> names;
  for (const TraceEvent& event : events_) {
    if (std::find(names.begin(), names.end(), event.unit) == names.end()) names.push_back(event.unit);
  }
  const std::vector<Span> all_waits = spans_of(events_, is_wait);
  const std::vector<Span> all_compute = without(spans_of(events_, is_compute), all_waits);
  std::vector<UnitTimes> result;
  for (const std::string& name : names) {
    const auto of_unit = [&](const auto& predicate) {
      return spans_of(events_, [&](const TraceEvent& event) { return event.unit == name && predicate(event); });
    };
    const auto on_comm_thread = [](const TraceEvent& event) { return !event.thread.empty(); };
    UnitTimes times;
    times.unit = name;
    times.compute = length(without(of_unit(is_compute), all_waits));
    times.gather = length(of_unit([&](const auto& event) { return on_comm_thread(event) && event.name == "gather"; }));
    times.reduce = length(of_unit([&](const auto& event) { return on_comm_thread(event) && event.name == "reduce"; }));
    const std::vector<Span> on_the_way = of_unit(on_comm_thread);
    const std::vector<Span> waits = of_unit(is_wait);
    times.overlapped = length(common(on_the_way, all_compute));
    times.exposed = length(waits);
    times.idle = length(without(without(on_the_way, all_compute), waits));
    result.push_back(times);
  }
  return result;
}

Totals Session::totals() {
  stop();
  const std::vector<Span> waits = spans_of(events_, is_wait);
  Totals totals;
  totals.window = ms(end_ - begin_);
  totals.compute = length(without(spans_of(events_, is_compute), waits));
  totals.exposed = length(waits);
  totals.other = totals.window - totals.compute - totals.exposed;
  return totals;
}

std::string Session::summary() {
  std::string text = "ms                             compute     gather     reduce overlapped    exposed       idle\n";
  UnitTimes sum;
  for (const UnitTimes& unit : units()) {
    text += row(unit.unit, {unit.compute, unit.gather, unit.reduce, unit.overlapped, unit.exposed, unit.idle});
    sum.gather += unit.gather;
    sum.reduce += unit.reduce;
    sum.overlapped += unit.overlapped;
    sum.idle += unit.idle;
  }
  const Totals all = totals();
  text += row("all units", {all.compute, sum.gather, sum.reduce, sum.overlapped, all.exposed, sum.idle});
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(), "window %.2f = compute %.2f + exposed %.2f + other %.2f\n", all.window,
                all.compute, all.exposed, all.other);
  return text + line.data();
}

}  // namespace fsdp::profile
