#include "report/trace/trace_file.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "io/base/json.h"
#include "report/json_lines.h"

namespace fsdp::report {
namespace {

using nlohmann::json;

const json& part(const json& object, const char* key) {
  static const json nothing = json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : nothing;
}

class TraceReader {
 public:
  void add(const json& event) {
    const double rank = figure(event, "pid"), thread = figure(event, "tid");
    if (!(rank >= 0 && rank < 1e6)) return;
    const auto place = std::pair(static_cast<int>(rank), std::isfinite(thread) ? thread : 0.0);
    if (text_of(event, "ph") == "M" && text_of(event, "name") == "thread_name")
      threads_[place] = text_of(part(event, "args"), "name");
    if (text_of(event, "ph") != "X") return;
    const double begin = figure(event, "ts"), length = figure(event, "dur");
    if (!(std::isfinite(begin) && length >= 0)) return;
    ranks_[place.first].push_back({1e-3 * begin, 1e-3 * (begin + length), text_of(event, "cat"),
                                   text_of(part(event, "args"), "unit"), threads_[place]});
  }

  std::vector<RankTrace> take() {
    std::vector<RankTrace> traces;
    for (auto& [rank, spans] : ranks_) {
      std::stable_sort(spans.begin(), spans.end(),
                       [](const TraceSpan& a, const TraceSpan& b) { return a.begin_ms < b.begin_ms; });
      traces.push_back({rank, std::move(spans)});
    }
    return traces;
  }

 private:
  std::map<std::pair<int, double>, std::string> threads_;
  std::map<int, std::vector<TraceSpan>> ranks_;
};

}  // namespace

std::vector<RankTrace> read_trace(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::string place = "[trace] " + io::in_quotes(path.string());
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw Error(ErrorCode::kUsage, place +
                                       ": got no such file, expected the trace of a run. Train with "
                                       "--train.profile_steps=20-22 first.");
  }
  io::JsonLimits limits;
  limits.max_bytes = uint64_t{512} << 20;
  const json file = io::read_json_file(path, limits);
  const auto events = file.is_object() ? file.find("traceEvents") : file.end();
  TraceReader reader;
  if (file.is_object() && events != file.end() && events->is_array()) {
    for (const json& event : *events)
      if (event.is_object()) reader.add(event);
  }
  std::vector<RankTrace> traces = reader.take();
  if (traces.empty())
    throw Error(ErrorCode::kData, place + ": got no events, expected those of train.profile_steps. Record it again.");
  return traces;
}

}  // namespace fsdp::report
