#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/pipeline/border.h"
#include "fsdp/pipeline/order.h"

namespace fsdp::pipeline {

// What one turn gives the next.
struct Parcel {
  at::Tensor tensor;  // undefined: nothing
  at::Tensor note;    // beside it, on the host; undefined where there are no notes
};

enum class WithNotes { kNo, kYes };

// Takes a rank's turns for one batch, and moves what one turn's result is for the next, on whichever rank. A result is
// received while the turn before is computed, and kept by its sender until the reader's own messages show that it came.
class Relay {
 public:
  // `turns`: of each rank.
  Relay(std::shared_ptr<comm::Comm> comm, const Shape& shape, std::vector<std::vector<Turn>> turns, c10::Device device,
        WithNotes notes = WithNotes::kNo);

  // `given`: what the turn starts from, new; undefined for the first stage's forward and the last stage's backward.
  // Returns the result; nobody wants that of the last stage's forward, of the first stage's backward and of weights.
  using Compute = std::function<Parcel(const Turn& turn, Parcel given)>;
  // COLLECTIVE.
  void run(const Compute& compute);

 private:
  // Whose result `turn` starts from, and who starts from its own.
  std::optional<Turn> giver_of(const Turn& turn) const { return beside(turn, -1); }
  std::optional<Turn> reader_of(const Turn& turn) const { return beside(turn, 1); }
  // So many stages on in the turn's direction.
  std::optional<Turn> beside(const Turn& turn, int steps) const;
  int index_of(const Turn& turn) const;
  enum class Part { kTensor, kNote };
  Border& border(const Turn& giver, Part part = Part::kTensor);
  void expect(const Turn& giver);
  Parcel take(const Turn& turn);
  void hand_on(const Turn& turn, const Parcel& result);

  std::shared_ptr<comm::Comm> comm_;
  Shape shape_;
  c10::Device device_;
  WithNotes notes_;
  std::vector<std::vector<Turn>> turns_;
  std::map<std::tuple<Pass, int, Part>, Border> borders_;  // by who gives
  std::map<std::pair<Pass, int>, Parcel> at_home_;         // of stages on one rank, which takes their turns one by one
};

}  // namespace fsdp::pipeline
