#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace fsdp::train {

// What this thread has computed so far, from some moment on. With one thread its processor's time: nothing is done
// elsewhere, and waiting for a processor is not part of it; with several the clock's.
double own_seconds();

// Times several pieces of work in turns, so that each finds the caches as others left them, as in a step of training,
// and what else goes on on the machine disturbs all of them alike.
class TimedTurns {
 public:
  // Returns its number.
  size_t add(std::function<void()> run);
  // All of them over and over for about so many seconds, three times each at least; the first round, which finds memory
  // and kernels, does not count.
  void run(double seconds);
  // By own_seconds(), the mean without those of more than twice the median: a step is a sum of many such pieces.
  double seconds_of(size_t number) const;

 private:
  std::vector<std::function<void()>> runs_;
  std::vector<std::vector<double>> times_;
};

}  // namespace fsdp::train
