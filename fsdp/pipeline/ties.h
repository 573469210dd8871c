#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp::pipeline {

struct Stage;

// Weights that stages of several ranks have, as their names in the whole model say (an embedding that is the head,
// too): their gradients are added up, so that the same update keeps them equal, and count once in a norm.
class Ties {
 public:
  // `comm`: the ranks along "pp". COLLECTIVE over them. Throws Error(kUsage), on all of them, if ranks hold other
  // elements of one weight, or it trains on some only.
  Ties(const Mesh& mesh, comm::Comm& comm, const std::vector<Stage>& stages);

  // Before a step: what earlier steps have added up is kept by the first owner alone. Local.
  void begin_step();
  // After it. COLLECTIVE over the owners of each weight.
  void add_up();
  // Without those that an owner before this rank counts.
  std::vector<at::Tensor> counted(const std::vector<at::Tensor>& leaves) const;

 private:
  struct Tie {
    std::string name;
    at::Tensor leaf;
    std::shared_ptr<comm::Comm> owners;

    bool is_first() const { return owners->rank() == 0; }
  };

  std::vector<Tie> ties_;  // of this rank, by name
};

}  // namespace fsdp::pipeline
