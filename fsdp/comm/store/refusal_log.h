#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <string>

namespace fsdp::comm {

// Why the store of a job did not let somebody in.
enum class RefusalReason { kSilent, kStranger, kSecretMissing, kSecretUnknown, kSecretDiffers, kCrowd, kForged };

// Tells of connections that were refused, without being talked into telling without end: for each reason the first at
// once, and then one in a minute at most, with the number of those between. Not thread-safe.
class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;
  // Gets one sentence at a time.
  using Listener = std::function<void(const std::string&)>;
  static constexpr std::chrono::seconds kPause{60};

  explicit RefusalLog(Listener listener) : listener_(std::move(listener)) {}

  // `who` was refused: "10.0.0.7:4242", "10.0.0.7:4242, which says that it is rank 3".
  void tell(RefusalReason reason, const std::string& who, Clock::time_point now);

 private:
  static constexpr size_t kNumReasons = static_cast<size_t>(RefusalReason::kForged) + 1;
  struct Quiet {
    Clock::time_point until{};
    int64_t untold = 0;
  };

  Listener listener_;
  std::array<Quiet, kNumReasons> quiet_{};
};

}  // namespace fsdp::comm
