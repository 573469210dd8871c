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
  // In a file of ShardOptions::offload_folder, for state that is larger than memory: unit by unit they are read ahead,
  // and written behind, by those who pass over them (gathers, reductions, norms, this library's optimizers). Beside a
  // GPU as kOnHost, in memory that is not page-locked. Ranks of a host gather weights each for itself.
  kOnDisk,
};

}  // namespace fsdp
