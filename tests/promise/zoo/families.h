// Small models of the families that public collections have: a classifier, a GAN, a VAE, a normalizing flow, a
// detector, a segmenter and a diffusion model. Their losses are means over rows, so that shares of a batch average to
// the whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/promise/zoo/zoo.h"

namespace fsdp::testing {

struct Family {
  std::string name;
  std::function<ZooModel()> make;  // roots with their units, and the loss
  int64_t features = 0;            // of a row, normal numbers: the data, and the noise that the model wants
};

const std::vector<Family>& families();

}  // namespace fsdp::testing
