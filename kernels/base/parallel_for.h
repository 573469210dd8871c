// Parts of a loop on LibTorch's threads.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels {

// Calls body(first, last) for ranges that cover begin .. end - 1, each of at least `grain` numbers but for the last, on
// up to at::get_num_threads() threads: what at::parallel_for does, which is inline code and runs serially in a program
// that is compiled without -fopenmp, as ours has to be (a second OpenMP runtime would fight LibTorch's for the cores).
// Serial inside of another parallel region. The first exception of a body is thrown again. `body` calls no operators.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

// A grain for rows of `width` numbers: below it a second thread costs more than it saves.
inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

}  // namespace fsdp::kernels
