#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace fsdp::train {

// The limits that a step has broken.
struct Spike {
  double loss_limit = 0;
  double grad_norm_limit = 0;
};

// Notices steps whose loss or gradient norm is far above those of the steps before: above
//   median + threshold * max(MAD, part * median)
// of the last `window` steps, MAD being the median of the distances from the median, and part 1/200 for the loss and
// 1/10 for the norm. Unlike mean and standard deviation neither is moved by the spikes themselves (Huber, Robust
// Statistics, 1981). The part keeps a run whose numbers hardly change from taking each flicker for a spike; that of the
// norm is larger, because single batches move it by far more than its MAD. Everything follows from the numbers that
// were added, so ranks that add the same agree without talking.
class SpikeDetector {
 public:
  // `window` 0: never finds any and keeps nothing.
  SpikeDetector(int64_t window, double threshold) : window_(static_cast<size_t>(window)), threshold_(threshold) {}

  // Nothing until `window` steps were added.
  std::optional<Spike> check(double loss, double grad_norm) const;
  // The numbers of a step that counts, spikes included; both finite.
  void add(double loss, double grad_norm);

  // The steps kept, as JSON, digit for digit. The same again at any number of ranks.
  std::string to_json() const;
  // Keeps the newest `window` of them; "" for none. Throws Error(kCheckpoint) if `json` is something else.
  void restore(const std::string& json);

 private:
  size_t window_;
  double threshold_;
  std::deque<double> losses_;
  std::deque<double> grad_norms_;
};

}  // namespace fsdp::train
