#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/progress/progress_line.h"
#include "io/base/weight_source.h"

namespace fsdp::app {

// Another source, unchanged, that tells `progress` of the bytes that are read from it. Both outlive it.
class WatchedSource : public io::WeightSource {
 public:
  WatchedSource(const io::WeightSource& source, ProgressLine& progress)
      : io::WeightSource(source), source_(source), progress_(progress) {}

  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override;

 private:
  const io::WeightSource& source_;
  ProgressLine& progress_;
};

// Calls `copy` with such a source, for a verb that reads these tensors of it; the progress goes to stdout.
void copy_with_progress(const std::string& verb, const io::WeightSource& source, const std::vector<size_t>& wanted,
                        const std::function<void(const io::WeightSource& watched)>& copy);

}  // namespace fsdp::app
