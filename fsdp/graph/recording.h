// One recorded forward and its backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "fsdp/base/tensor_function.h"
#include "fsdp/graph/work_recorder.h"

namespace fsdp {

// Tells observers that these tensors are about to be read: what of them is sharded is gathered. An operator of its own,
// because what a replay reads no operator names.
void announce_read(const std::vector<at::Tensor>& tensors);

// Where they are; sharded ones are gathered.
std::vector<const void*> addresses_of(const std::vector<at::Tensor>& parameters);

// Where parameters are and what the inputs are like.
struct RecordingKey {
  RecordingKey(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters);
  bool operator==(const RecordingKey&) const = default;

  struct Input {
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    bool operator==(const Input&) const = default;
  };
  std::vector<Input> inputs;
  std::vector<const void*> addresses;
};

class Recording : public torch::CustomClassHolder {
 public:
  // Records function(inputs) and its backward, while the parameters are gathered.
  Recording(std::unique_ptr<WorkRecorder> recorder, const TensorListFunction& function,
            const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> parameters);

  // A replayed forward. While it lives, its activations must not be written over.
  struct Call : torch::CustomClassHolder {
    explicit Call(int64_t which) : number(which) {}
    int64_t number;
  };
  bool is_waiting_for_backward() const { return !latest_.expired(); }

  void take_inputs(const std::vector<at::Tensor>& inputs);
  // The inputs and parameters that need gradients, for the graph function.
  std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& inputs) const;
  struct Forward {
    std::vector<at::Tensor> outputs;
    c10::intrusive_ptr<Call> call;
  };
  // `leaves`: leaves_of() the inputs of this call.
  Forward replay_forward(at::TensorList leaves);
  // Of that call; from gradients of the outputs, undefined ones counting as zero, to those of leaves_of().
  std::vector<at::Tensor> replay_backward(int64_t call, const std::vector<at::Tensor>& grads);

 private:
  void record_forward(const TensorListFunction& function);
  void record_backward();
  void take_output_grads(const std::vector<at::Tensor>& grads);

  std::unique_ptr<WorkRecorder> recorder_;
  std::vector<at::Tensor> parameters_;
  std::vector<const void*> addresses_;            // of the parameters
  std::vector<int64_t> versions_;                 // of them, as the graph of the recording saved them
  std::vector<at::Tensor> inputs_, outputs_;      // the recording's own; outputs with their graph
  std::vector<at::Tensor> leaves_;                // of inputs_, then of parameters_, those that need gradients
  std::vector<at::Tensor> output_grads_, grads_;  // of outputs_ that have a graph; of leaves_
  std::vector<bool> keeps_gradient_;              // of leaves_: of the latest call
  std::unique_ptr<RecordedWork> forward_, backward_;
  int64_t calls_ = 0;
  c10::weak_intrusive_ptr<Call> latest_{c10::intrusive_ptr<Call>()};
};

}  // namespace fsdp
