// A terminal of a test's own, and what was drawn on it.
#pragma once

#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace fsdp::testing {

// Owns both ends of a pseudo terminal. Local. Throws std::runtime_error where the system gives none.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    int writer = -1;
    if (openpty(&reader_, &writer, nullptr, nullptr, &size) != 0) throw std::runtime_error("no terminal to test with");
    stream_ = fdopen(writer, "w");
  }
  ~Terminal() {
    std::fclose(stream_);
    close(reader_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::FILE* stream() const { return stream_; }

  // Everything that was written since the last call. The kernel hands it over in pieces, so it is read up to a mark
  // that is written behind it. Throws std::runtime_error if the mark does not come within 30 s.
  std::string text() const {
    constexpr char kMark = '\x1e';
    std::fputc(kMark, stream_);
    std::fflush(stream_);
    std::string all;
    while (all.empty() || all.back() != kMark) {
      pollfd ready{.fd = reader_, .events = POLLIN, .revents = 0};
      char piece[4096];
      const ssize_t size = poll(&ready, 1, 30'000) == 1 ? read(reader_, piece, sizeof(piece)) : 0;
      if (size <= 0) throw std::runtime_error("a terminal kept what was written to it; it gave: " + all);
      all.append(piece, static_cast<size_t>(size));
    }
    all.pop_back();
    return all;
  }

 private:
  int reader_ = -1;
  std::FILE* stream_ = nullptr;
};

}  // namespace fsdp::testing
