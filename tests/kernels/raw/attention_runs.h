// The tasks of causal attention, run on the inputs of a reference.
#pragma once

#include "tests/kernels/raw/attention_reference.h"

namespace fsdp::kernels::raw::attention {

enum class Way { kSingle, kPairs };  // fp32, or pairs of bf16

// Scratch that holds no number before, with guards behind.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes), lines_(static_cast<size_t>(bytes / 64 + 2)) {}
  Scratch scratch() { return Scratch(lines_.data()); }
  bool is_intact() const {
    const auto *begin = reinterpret_cast<const unsigned char*>(lines_.data()), *end = begin + lines_.size() * 64;
    return std::all_of(begin + bytes_, end, [](unsigned char byte) { return byte == 0xFF; });
  }

 private:
  struct alignas(64) Line {
    Line() { std::memset(bytes, 0xFF, sizeof(bytes)); }  // NaN in either type
    unsigned char bytes[64];
  };
  int64_t bytes_;
  std::vector<Line> lines_;
};

template <class T>
void run_task(const Task& task, const Sizes& sizes, const ForwardTensors<T>& tensors, Way way) {
  Memory memory(way == Way::kPairs ? paired_forward_bytes(sizes) : forward_bytes(sizes));
  if (way == Way::kSingle)
    forward(task, sizes, tensors, memory.scratch());
  else if constexpr (std::is_same_v<T, Bf16>)
    paired_forward(task, sizes, tensors, memory.scratch());
  ASSERT_TRUE(memory.is_intact());
}

template <class T>
void run_task(const Task& task, const Sizes& sizes, const BackwardTensors<T>& tensors, Way way) {
  Memory memory(way == Way::kPairs ? paired_backward_bytes(sizes) : backward_bytes(sizes));
  if (way == Way::kSingle)
    backward(task, sizes, tensors, memory.scratch());
  else if constexpr (std::is_same_v<T, Bf16>)
    paired_backward(task, sizes, tensors, memory.scratch());
  ASSERT_TRUE(memory.is_intact());
}

template <class T>
struct Forward {
  Forward(const Attention<T>& of, const std::vector<Task>& tasks, Way way)
      : y(of.tokens() * of.stride()), log_sum_exp(of.tokens() * of.sizes.heads) {
    const int64_t stride = of.stride(), key_stride = of.key_stride();
    for (const Task& task : tasks)
      run_task(task, of.sizes,
               ForwardTensors<T>{{of.q.data(), stride},
                                 {of.k.data(), key_stride},
                                 {of.v.data(), key_stride},
                                 {y.data(), stride},
                                 log_sum_exp.data()},
               way);
  }

  Guarded<T> y;
  Guarded<float> log_sum_exp;
};

template <class T>
struct Backward {
  Backward(const Attention<T>& of, const std::vector<Task>& tasks, Way way)
      : grad_q(of.tokens() * of.stride()),
        grad_k(of.tokens() * of.key_stride()),
        grad_v(of.tokens() * of.key_stride()) {
    const int64_t stride = of.stride(), key_stride = of.key_stride();
    for (const Task& task : tasks)
      run_task(task, of.sizes,
               BackwardTensors<T>{{of.grad_y.data(), stride},
                                  {of.q.data(), stride},
                                  {of.k.data(), key_stride},
                                  {of.v.data(), key_stride},
                                  {of.y_of_forward.data(), stride},
                                  of.log_sum_exp_of_forward.data(),
                                  {grad_q.data(), stride},
                                  {grad_k.data(), key_stride},
                                  {grad_v.data(), key_stride}},
               way);
  }

  Guarded<T> grad_q, grad_k, grad_v;
};

}  // namespace fsdp::kernels::raw::attention
