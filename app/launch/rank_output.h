#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::app {

// How the lines of many ranks become one text.
struct OutputStyle {
  bool prefix = true;         // "[rank] " before each line
  bool draws_status = false;  // standard output is a terminal: rank 0's status line is redrawn in place
};

// Joins what the ranks write, line by line: a line is never torn, a status line (ended by '\r') stays at the bottom,
// and an error that several ranks report in the same words appears once. Keeps the last lines of each rank, and notices
// checkpoints that are acknowledged.
class RankOutput {
 public:
  enum class Stream { kOut, kErr };

  RankOutput(int num_ranks, OutputStyle style, std::FILE* out = stdout, std::FILE* err = stderr);

  // Bytes that rank `rank` wrote.
  void feed(int rank, Stream stream, std::string_view bytes);
  // The rank writes no more: an unfinished line is printed.
  void finish(int rank);
  // A line of the launcher's own, to standard error.
  void note(const std::string& line);

  // At most 8 lines that the rank wrote last to `stream`.
  std::vector<std::string> last_lines(int rank, Stream stream) const;
  // The highest step in a line "checkpoint: committed step N ..." on standard output, of any rank.
  std::optional<int64_t> committed_step() const { return committed_step_; }

 private:
  struct Source {
    std::string partial;
    std::deque<std::string> recent;
  };
  Source& source(int rank, Stream stream) { return sources_[static_cast<size_t>(rank) * 2 + (stream == Stream::kErr)]; }
  const Source& source(int rank, Stream stream) const {
    return sources_[static_cast<size_t>(rank) * 2 + (stream == Stream::kErr)];
  }
  void print(int rank, Stream stream, const std::string& line);
  void show_status(int rank, const std::string& text);
  void write_line(std::FILE* file, const std::string& line);
  std::string prefixed(int rank, const std::string& line) const;

  OutputStyle style_;
  std::FILE* out_;
  std::FILE* err_;
  std::vector<Source> sources_;
  std::set<std::string> errors_;
  std::string status_;
  std::optional<int64_t> committed_step_;
};

}  // namespace fsdp::app
