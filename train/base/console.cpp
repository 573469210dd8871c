#include "train/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "train/base/terminal_text.h"

namespace fsdp::train {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

}  // namespace

std::string fit_to_terminal(const std::string& line, std::FILE* stream) {
  winsize size = {};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return line;
  return line.substr(0, size.ws_col - 1u);
}

Console::Sink Console::detect(std::FILE* stream, int rank) {
  if (rank != 0) {
    return Sink::kSilent;
  }
  if (std::getenv("FSDP_STATUS_LINE") != nullptr) {
    return Sink::kLauncher;
  }
  return isatty(fileno(stream)) != 0 ? Sink::kTerminal : Sink::kPlain;
}

Console::~Console() {
  if (!status_.empty()) {
    line(status_);
  }
}

void Console::line(const std::string& text) {
  if (sink_ == Sink::kSilent) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const char* before = sink_ == Sink::kTerminal && !status_.empty() ? kEraseLine : "";
  std::fprintf(stream_, "%s%s\n", before, for_terminal(text).c_str());
  status_.clear();
  std::fflush(stream_);
}

void Console::status(const std::string& text, const std::string& drawn) {
  if (sink_ == Sink::kSilent) {
    return;
  }
  if (sink_ == Sink::kPlain) {
    line(text);
    return;
  }
  const std::lock_guard lock(mutex_);
  status_ = for_terminal(drawn);
  if (sink_ == Sink::kTerminal) {
    std::fprintf(stream_, "%s%s", kEraseLine, fit_to_terminal(status_, stream_).c_str());
  } else {
    std::fprintf(stream_, "%s\r", status_.c_str());
  }
  std::fflush(stream_);
}

}  // namespace fsdp::train
