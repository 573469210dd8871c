// Shards a layer in a world of one, and takes a step.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  const fsdp::World world = fsdp::init();
  torch::nn::Linear layer(4, 3);
  fsdp::fully_shard(*layer, fsdp::Mesh::shard(world));
  fsdp::AdamW optimizer(fsdp::parameters(*layer), {.lr = 0.1});
  layer->forward(torch::ones({2, 4})).sum().backward();
  const torch::Tensor before = layer->bias.clone();
  optimizer.step();
  fsdp::zero_grad(*layer);
  const double change = (layer->bias - before).abs().max().item<double>();
  std::printf("libfsdp: %d rank(s), a step moved the bias by %.3f\n", world.size, change);
  return change > 0.05 ? 0 : 1;
}
