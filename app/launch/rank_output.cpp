#include "app/launch/rank_output.h"

#include <algorithm>
#include <charconv>

#include "train/base/console.h"

namespace fsdp::app {
namespace {

constexpr size_t kRecentLines = 8;
constexpr size_t kLongestLine = 1 << 16;  // a rank that never ends its line is printed in pieces of this size
constexpr const char* kEraseLine = "\r\x1b[K";
constexpr std::string_view kAcknowledgement = "checkpoint: committed step ";

std::optional<int64_t> acknowledged_step(std::string_view line) {
  if (line.substr(0, kAcknowledgement.size()) != kAcknowledgement) return std::nullopt;
  int64_t step = 0;
  const auto result = std::from_chars(line.data() + kAcknowledgement.size(), line.data() + line.size(), step);
  return result.ec == std::errc() ? std::optional(step) : std::nullopt;
}

}  // namespace

RankOutput::RankOutput(int num_ranks, OutputStyle style, std::FILE* out, std::FILE* err)
    : style_(style), out_(out), err_(err), sources_(static_cast<size_t>(num_ranks) * 2) {}

void RankOutput::feed(int rank, Stream stream, std::string_view bytes) {
  std::string& partial = source(rank, stream).partial;
  for (const char c : bytes) {
    if (c == '\r') {
      show_status(rank, partial);
    } else if (c == '\n' || partial.size() == kLongestLine) {
      print(rank, stream, partial);
    } else {
      partial += c;
      continue;
    }
    partial.clear();
    if (c != '\r' && c != '\n') partial += c;
  }
}

void RankOutput::finish(int rank) {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    std::string& partial = source(rank, stream).partial;
    if (!partial.empty()) print(rank, stream, partial);
    partial.clear();
  }
  if (rank == 0 && !status_.empty()) {
    const bool was_cut = train::fit_to_terminal(status_, out_) != status_;
    std::fprintf(out_, "%s%s\n", was_cut ? kEraseLine : "", was_cut ? status_.c_str() : "");
    status_.clear();
    std::fflush(out_);
  }
}

void RankOutput::note(const std::string& line) { write_line(err_, line); }

std::vector<std::string> RankOutput::last_lines(int rank, Stream stream) const {
  const auto& recent = source(rank, stream).recent;
  return {recent.begin(), recent.end()};
}

void RankOutput::print(int rank, Stream stream, const std::string& line) {
  auto& recent = source(rank, stream).recent;
  recent.push_back(line);
  if (recent.size() > kRecentLines) recent.pop_front();
  if (stream == Stream::kOut) committed_step_ = std::max(committed_step_, acknowledged_step(line));
  const bool repeated = stream == Stream::kErr && line.rfind("fsdp: ", 0) == 0 && !errors_.insert(line).second;
  if (!repeated) write_line(stream == Stream::kOut ? out_ : err_, prefixed(rank, line));
}

void RankOutput::show_status(int rank, const std::string& text) {
  if (!style_.draws_status) {
    print(rank, Stream::kOut, text);
    return;
  }
  status_ = prefixed(rank, text);
  std::fprintf(out_, "%s%s", kEraseLine, train::fit_to_terminal(status_, out_).c_str());
  std::fflush(out_);
}

void RankOutput::write_line(std::FILE* file, const std::string& line) {
  if (!status_.empty()) {
    std::fputs(kEraseLine, out_);
    std::fflush(out_);
  }
  std::fprintf(file, "%s\n", line.c_str());
  std::fflush(file);
  if (!status_.empty()) {
    std::fputs(train::fit_to_terminal(status_, out_).c_str(), out_);
    std::fflush(out_);
  }
}

std::string RankOutput::prefixed(int rank, const std::string& line) const {
  return style_.prefix ? "[" + std::to_string(rank) + "] " + line : line;
}

}  // namespace fsdp::app
