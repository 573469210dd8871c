#include "report/trace/step_split.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>

#include "fsdp/base/error.h"
#include "report/printed.h"

namespace fsdp::report {
namespace {

// Spans lie within each other: the one that is named first here tells what a moment was spent on.
struct Kind {
  const char* kind;
  Spent spent;
};
constexpr std::array<Kind, 8> kKinds = {{{"wait gather", Spent::kGatherWait},
                                         {"wait reduce", Spent::kReduceWait},
                                         {"data", Spent::kData},
                                         {"agreement", Spent::kSums},
                                         {"gradient norm", Spent::kSums},
                                         {"optimizer", Spent::kOptimizer},
                                         {"forward", Spent::kForward},
                                         {"backward", Spent::kBackward}}};

// The lower the stronger; nothing for kinds that are no use of the program's time.
int strength(const TraceSpan& span) {
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (span.kind == kKinds[i].kind) return static_cast<int>(i);
  return static_cast<int>(kKinds.size());
}

bool is_of_program(const TraceSpan& span) { return span.thread == "program" || span.thread.empty(); }

const TraceSpan* find_step(const RankTrace& trace, int64_t step) {
  for (const TraceSpan& span : trace.spans)
    if (span.kind == "step" && span.unit == std::to_string(step)) return &span;
  return nullptr;
}

// Between two neighbouring edges nothing begins or ends: the strongest span there, and of equals the innermost.
std::vector<SpentTime> cut(const std::vector<const TraceSpan*>& spans, double begin, double end) {
  std::set<double> edges{begin, end};
  for (const TraceSpan* span : spans) {
    edges.insert(std::clamp(span->begin_ms, begin, end));
    edges.insert(std::clamp(span->end_ms, begin, end));
  }
  std::vector<SpentTime> pieces;
  std::vector<const TraceSpan*> open;
  size_t next = 0;
  for (auto edge = edges.begin(); std::next(edge) != edges.end(); ++edge) {
    while (next < spans.size() && spans[next]->begin_ms <= *edge) open.push_back(spans[next++]);
    std::erase_if(open, [&](const TraceSpan* span) { return span->end_ms <= *edge; });
    const TraceSpan* strongest = nullptr;
    for (const TraceSpan* span : open)
      if (strongest == nullptr || strength(*span) <= strength(*strongest)) strongest = span;
    const Spent spent = strongest == nullptr ? Spent::kRest : kKinds[static_cast<size_t>(strength(*strongest))].spent;
    const std::string unit = strongest == nullptr ? "" : strongest->unit;
    if (!pieces.empty() && pieces.back().spent == spent && pieces.back().unit == unit) {
      pieces.back().end_ms = *std::next(edge);
    } else {
      pieces.push_back({*edge, *std::next(edge), spent, unit});
    }
  }
  return pieces;
}

// The transfer that a wait was for: the last of its unit that ended in it or after, on a thread of its own.
std::string detail_of(const RankTrace& trace, const TraceSpan& wait) {
  const std::string kind = wait.kind.substr(5);
  const TraceSpan* transfer = nullptr;
  for (const TraceSpan& span : trace.spans) {
    if (is_of_program(span) || span.kind != kind || span.unit != wait.unit) continue;
    if (span.begin_ms < wait.end_ms && span.end_ms > wait.begin_ms - 1e-3) transfer = &span;
  }
  if (transfer == nullptr) return "";
  const double lead = wait.begin_ms - transfer->begin_ms;
  return lead >= 0
             ? printed("its transfer took %.2f ms and began %.2f ms before it was needed", transfer->length(), lead)
             : printed("its transfer took %.2f ms and began %.2f ms after it was needed", transfer->length(), -lead);
}

std::string cause_name(const TraceSpan& span) {
  if (span.kind == "data") return "next batch";
  if (span.kind == "agreement") return "sums over ranks, to agree on the step";
  if (span.kind == "gradient norm") return "sums over ranks, and of own squares, for the gradient norm";
  return span.kind.substr(5) + " of " + (span.unit.empty() ? "the model" : span.unit);
}

bool is_cause(const TraceSpan& span) { return strength(span) <= 4; }  // the waits of kKinds

std::vector<Cause> causes_of(const RankTrace& trace, const std::vector<const TraceSpan*>& spans) {
  std::map<std::string, Cause> causes;
  std::map<std::string, double> longest;
  for (const TraceSpan* span : spans) {
    if (!is_cause(*span)) continue;
    const std::string what = cause_name(*span);
    Cause& cause = causes[what];
    cause.what = what;
    cause.ms += span->length();
    ++cause.times;
    if (span->length() <= longest[what] || span->kind.rfind("wait ", 0) != 0) continue;
    longest[what] = span->length();
    cause.detail = detail_of(trace, *span);
  }
  std::vector<Cause> sorted;
  for (const auto& [what, cause] : causes) sorted.push_back(cause);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Cause& a, const Cause& b) { return a.ms > b.ms; });
  return sorted;
}

}  // namespace

const char* name(Spent spent) {
  switch (spent) {
    case Spent::kForward:
      return "forward";
    case Spent::kBackward:
      return "backward";
    case Spent::kOptimizer:
      return "optimizer";
    case Spent::kGatherWait:
      return "waited for gathers";
    case Spent::kReduceWait:
      return "waited for reductions";
    case Spent::kSums:
      return "sums over ranks";
    case Spent::kData:
      return "waited for data";
    case Spent::kRest:
      return "rest";
  }
  return "?";
}

bool is_wait(Spent spent) {
  return spent == Spent::kGatherWait || spent == Spent::kReduceWait || spent == Spent::kSums || spent == Spent::kData;
}

std::vector<int64_t> steps_of(const RankTrace& trace) {
  std::vector<int64_t> steps;
  for (const TraceSpan& span : trace.spans)
    if (span.kind == "step") steps.push_back(std::strtoll(span.unit.c_str(), nullptr, 10));
  return steps;
}

StepSplit split_step(const RankTrace& trace, int64_t step) {
  const TraceSpan* whole = find_step(trace, step);
  if (whole == nullptr) {
    std::string steps;
    for (const int64_t there : steps_of(trace)) steps += (steps.empty() ? "" : ", ") + std::to_string(there);
    throw Error(ErrorCode::kUsage, "[trace] step: got " + std::to_string(step) + ", expected one that rank " +
                                       std::to_string(trace.rank) + " recorded: " + (steps.empty() ? "none" : steps) +
                                       ". Choose one of them, or record again with train.profile_steps.");
  }
  std::vector<const TraceSpan*> spans;
  for (const TraceSpan& span : trace.spans) {
    const bool counts = is_of_program(span) && strength(span) < static_cast<int>(kKinds.size());
    if (counts && span.end_ms > whole->begin_ms && span.begin_ms < whole->end_ms) spans.push_back(&span);
  }
  StepSplit split{step, whole->begin_ms, whole->end_ms, cut(spans, whole->begin_ms, whole->end_ms), {}, {}};
  for (const SpentTime& piece : split.pieces) split.ms[static_cast<int>(piece.spent)] += piece.end_ms - piece.begin_ms;
  split.causes = causes_of(trace, spans);
  return split;
}

std::string to_text(const StepSplit& split, int rank) {
  std::string text =
      "rank " + std::to_string(rank) + ", step " + std::to_string(split.step) + printed(": %.2f ms\n", split.length());
  for (int i = 0; i < kNumSpent; ++i) {
    std::string label = name(static_cast<Spent>(i));
    label.resize(24, ' ');
    text +=
        "  " + label + printed("%9.2f ms %5.1f%%\n", split.ms[i], 100 * split.ms[i] / std::max(split.length(), 1e-9));
  }
  if (split.causes.empty()) return text + "  nothing was waited for\n";
  text += "  waits, the longest first:\n";
  for (size_t i = 0; i < std::min<size_t>(5, split.causes.size()); ++i) {
    const Cause& cause = split.causes[i];
    text += "  " + std::to_string(i + 1) + ". " +
            printed("%.2f ms (%.1f%%) ", cause.ms, 100 * cause.ms / std::max(split.length(), 1e-9)) + cause.what +
            (cause.times > 1 ? ", " + std::to_string(cause.times) + " times" : "") +
            (cause.detail.empty() ? "" : "; " + cause.detail) + "\n";
  }
  return text;
}

}  // namespace fsdp::report
