#include "train/model/narrow_products.h"

#include "kernels/products/narrow_linear.h"
#include "models/linear.h"

namespace fsdp::train {

void use_narrow_products(const models::Decoder& decoder, const ShardConfig& config) {
  if (config.precision != "o1") return;
  // Among them are adapters, the head, and the embedding, which is a head too where they are tied.
  for (const auto& module : decoder->modules()) {
    if (const auto* map = module->as<models::LinearImpl>()) kernels::set_narrow(map->weight);
  }
}

}  // namespace fsdp::train
