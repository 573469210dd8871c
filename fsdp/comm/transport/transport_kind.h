#pragma once

namespace fsdp {

// What carries collectives between ranks.
enum class TransportKind {
  kAuto,  // shared memory between ranks of one host, TCP between hosts
  kShm,   // shared memory; an error if ranks run on several hosts
  kGloo,  // TCP
};

// What carries tensors of a device (CUDA) between ranks.
enum class DeviceTransportKind {
  kAuto,    // the network library of the device (NCCL) where there is one for it, else host memory
  kNative,  // the former, or an error
  kHost,    // copies in host memory and a TransportKind: correct, not fast. For ranks that share one GPU
};

// How many copies of gathered weights a host has when its ranks share memory.
enum class HostWeightCopies {
  kOne,      // one for all ranks: nothing is gathered, nothing is freed
  kPerRank,  // each rank gathers and frees its own, as over a network
};

}  // namespace fsdp
