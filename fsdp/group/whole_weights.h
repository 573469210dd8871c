#pragma once

namespace fsdp {

// What becomes of sharded weights where one rank has every shard of them, as in a world of one.
enum class WholeWeights {
  kInPlace,  // computed with where they are: nothing is gathered, nothing freed (default)
  kCopied,   // gathered into buffers and freed as if there were other ranks: shows on one device what sharding costs
};

}  // namespace fsdp
