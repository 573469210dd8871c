#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

// While it lives, tensors that are made on this thread on no explicit device have no memory: constructors of modules
// run as they are, and what they would have computed is written down. fully_shard() computes it for the module it gets,
// in the order of the constructors and with the same random numbers, so a model is built and sharded unit by unit,
// every rank has the values an ordinary constructor gives after the same seed, and no rank ever holds all of it:
//
//   auto model = fsdp::deferred([&] { return MyModel(config); });
//   for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh);   // in the order they were constructed
//   fsdp::fully_shard(*model, mesh);
//
// Whatever was constructed before a module comes to life with it and stays in memory until it is sharded too; so make
// units of large tensors of the root (embeddings), in the order of construction. Seed before the scope, not in it, and
// draw no random numbers between it and the last fully_shard(). Tensors on an explicit device are made at once.
//
// Reading a value of a tensor without memory (item(), printing) throws Error(kUsage). After the scope, changes without
// gradients (initialisation, to(dtype)) are written down too, and a forward brings to life what it uses; what a
// constructor computes from parameters carries no gradient. Not nested; one thread. After: torchdistX deferred_init
// (seed row E4).
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  struct Mode;
  std::unique_ptr<Mode> mode_;
};

// make() with construction deferred.
template <class Make>
auto deferred(Make&& make) {
  const DeferredInit scope;
  return std::forward<Make>(make)();
}

// Whether the tensor was made under DeferredInit and has no memory yet. Local.
bool is_deferred(const at::Tensor& tensor);

// Gives these tensors and their views memory and values; tensors that have memory are left alone. What was written down
// before the last operation on any of them is carried out too, in order. The tensors stay the same objects. Local; uses
// the default generator.
void materialize(const std::vector<at::Tensor>& tensors);
// Everything that was written down on this thread and is still alive.
void materialize_all();

}  // namespace fsdp
