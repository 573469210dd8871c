#include "train/axes/whole_parameter.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "fsdp/fsdp.h"

namespace fsdp::train {

std::vector<int64_t> whole_sizes(const at::Tensor& leaf) {
  const auto cut = cut_of(leaf);
  return cut ? cut->sizes : logical_sizes(leaf);
}

std::vector<WholeRun> whole_runs(const at::Tensor& leaf) {
  const LocalRange range = local_range(leaf);
  const auto cut = cut_of(leaf);
  if (!cut) return {{range.begin, 0, range.end - range.begin}};
  const int64_t run = cut->run();
  std::vector<WholeRun> runs;
  for (int64_t place = range.begin; place < range.end;) {
    const int64_t row = place / run, end = std::min(range.end, (row + 1) * run);
    runs.push_back({(row * cut->parts + cut->index) * run + place % run, place - range.begin, end - place});
    place = end;
  }
  return runs;
}

int64_t WholeTensor::numel() const { return c10::multiply_integers(sizes); }

std::string slice_text(const at::Tensor& leaf) {
  const LocalRange range = local_range(leaf);
  const auto cut = cut_of(leaf);
  return "[" + std::to_string(range.begin) + "," + std::to_string(range.end) + ")" +
         (cut ? "/" + std::to_string(cut->index) : "");
}

}  // namespace fsdp::train
