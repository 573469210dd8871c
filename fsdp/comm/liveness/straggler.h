#pragma once

#include <deque>
#include <string>
#include <vector>

namespace fsdp {

struct StragglerOptions {
  double factor = 1.5;  // above this times the median a step counts as slow
  int window = 20;      // steps looked at
  int slow_steps = 10;  // of them, for a rank to be called a straggler; it is none any more at half as many
};

// Finds ranks that compute slower than the others, for whom the others wait. Fed on one rank, or with the same numbers
// on each: what a rank computed in a step is what the step took less what it waited in collectives
// (comm::waited_by_this_thread()). Ranks may exchange several steps at once; up to 10, and a straggler is known within
// 20 steps. Pure arithmetic: local, one thread.
class StragglerReport {
 public:
  // Throws Error(kUsage) unless 0 < slow_steps <= window, factor > 1 and size > 0.
  explicit StragglerReport(int size, StragglerOptions options = {});

  // Milliseconds that each rank computed in one step, [size]. Returns what changed with it, a sentence each:
  //   straggler: rank 3 computes 512 ms per step, the median is 100 ms
  //   straggler: rank 3 is no longer slower than the others
  // The numbers are medians over the window: of the rank, and over the ranks.
  std::vector<std::string> add_step(const std::vector<double>& compute_ms);

  // Stragglers now, ascending.
  std::vector<int> stragglers() const;

 private:
  double typical_ms(int rank) const;

  StragglerOptions options_;
  std::deque<std::vector<double>> steps_;   // [window][size]
  std::deque<std::vector<bool>> was_slow_;  // [window][size]
  std::vector<int> slow_steps_;             // [size], in the window
  std::vector<bool> is_straggler_;          // [size]
};

}  // namespace fsdp
