#pragma once

#include <cstdio>
#include <mutex>
#include <string>

namespace fsdp::train {

// As much of one line of ASCII as fits the width of the terminal behind `stream`, all of it where there is none: a line
// that wraps cannot be erased.
std::string fit_to_terminal(const std::string& line, std::FILE* stream);

// Where a person reads what happens: lines that stay, and one status line that is replaced. On a terminal the status
// line is updated in place; elsewhere every status is a plain line. Below `fsdp launch` (which sets FSDP_STATUS_LINE)
// a status line ends with '\r', and the launcher draws it. Silent on all ranks but 0. What is no text, such as
// control characters in names of others, is escaped. Thread-safe.
class Console {
 public:
  enum class Sink { kTerminal, kLauncher, kPlain, kSilent };

  // The sink for rank `rank` writing to `stream`.
  static Sink detect(std::FILE* stream, int rank);

  explicit Console(Sink sink, std::FILE* stream = stdout) : sink_(sink), stream_(stream) {}
  // Leaves the last status on the screen.
  ~Console();

  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void line(const std::string& text);
  // `drawn`: where it is updated in place; `text`: elsewhere.
  void status(const std::string& text, const std::string& drawn);
  void status(const std::string& text) { status(text, text); }
  // True where a status costs nothing to read, so that it may be updated often.
  bool updates_in_place() const { return sink_ == Sink::kTerminal || sink_ == Sink::kLauncher; }

 private:
  Sink sink_;
  std::FILE* stream_;
  std::mutex mutex_;
  std::string status_;
};

}  // namespace fsdp::train
