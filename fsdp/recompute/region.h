// A part of a model that runs a second time in the backward: what both kinds of recomputation share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "fsdp/recompute/host_inputs.h"
#include "fsdp/recompute/recompute.h"

namespace fsdp {

// Random numbers and autocast on the CPU and on the GPUs that the inputs of a region are on: the devices that it
// computes with.
struct RegionConditions {
  struct OfDevice {
    explicit OfDevice(c10::Device where);

    c10::Device device;
    at::Tensor random;
    bool autocast;
    at::ScalarType autocast_dtype;
  };

  explicit RegionConditions(const std::vector<c10::Device>& devices);
  std::vector<c10::Device> devices() const;
  void set() const;

  std::vector<OfDevice> of_devices;
  bool autocast_cache;
};

// What a second run needs besides the inputs; kept by the graph.
class Region : public torch::CustomClassHolder {
 public:
  // `rest`: where its inputs are between its runs; null: the graph keeps them as they are.
  Region(TensorListFunction function, const std::vector<at::Tensor>& inputs,
         std::shared_ptr<HostInputs> rest = nullptr);

  // Of what the graph function takes, what the graph saves, and that with what rests elsewhere.
  std::vector<at::Tensor> put(at::TensorList inputs);
  std::vector<at::Tensor> take(std::vector<at::Tensor> saved);

  // Graphs know defined tensors only: `defined` are the inputs that are, and so are the results.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& defined);
  // The outputs in the function's order, with the undefined ones of the last run.
  std::vector<at::Tensor> with_undefined(const std::vector<at::Tensor>& defined) const;

  // A run under the conditions of the first, with a graph that begins at `inputs`, which are copies without history of
  // what the graph function saved (with_anchor).
  struct SecondRun {
    std::vector<at::Tensor> inputs, outputs;
  };
  SecondRun run_again(const std::vector<at::Tensor>& saved);

 private:
  TensorListFunction function_;
  RegionConditions conditions_;
  std::vector<bool> has_input_;
  std::vector<bool> has_output_;

  struct Resting {
    size_t number;  // among what the graph function takes
    std::shared_ptr<HostInputs::Item> item;
    bool requires_grad;
  };
  std::shared_ptr<HostInputs> rest_;
  std::vector<Resting> resting_;
};

// What a graph function of a region takes: a tensor that only makes its outputs need gradients when nothing but
// captured parameters does, then the inputs that are defined.
std::vector<at::Tensor> with_anchor(const std::vector<at::Tensor>& inputs);

// What runs a second time. `name`: the user's call; `instead`: a plain call of the same.
struct RunTwice {
  const char* name;
  const char* instead;
};

// To be called before a second run. Throws Error(kUsage) in a backward that records a graph (create_graph): all
// gradients of a second run, also those that what its function captured gets, would be constants in that graph.
void check_records_no_graph(const RunTwice& what);

// To be called before run_backward(). Throws Error(kUsage) in a backward that was asked for the gradients of certain
// tensors: what the function captured, of which the graph knows nothing, would get its own all the same.
void check_asks_for_all(const RunTwice& what);

// Backward through a second run, into the gradients of what its function captured. Returns those of what the graph
// function took: with_anchor(inputs), then the region.
std::vector<at::Tensor> run_backward(const Region::SecondRun& run, const std::vector<at::Tensor>& gradients);

}  // namespace fsdp
