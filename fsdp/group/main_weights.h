#pragma once

namespace fsdp {

// Where main weights, main grads and the states of optimizers are, of a unit whose weights are computed with on a
// device. On the CPU it is all the same.
enum class MainWeights {
  kOnDevice,  // beside the gathered weights (default)
  // In memory of the host, page-locked where the device is a GPU; there the optimizer steps. The device keeps this
  // rank's part of the weights in the dtype they are gathered in. It comes up to date at the first gather after a step,
  // gradients leave when they are reduced: the host waits for the device at each of them.
  kOnHost,
};

}  // namespace fsdp
