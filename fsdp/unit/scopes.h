#pragma once

#include <memory>

#include "fsdp/unit/unit.h"

namespace fsdp {

// One microbatch of a gradient accumulation. ZeRO-0 and ZeRO-1 reduce in the last one only; ZeRO-2 and ZeRO-3 in each.
// Without this scope every backward counts as the last. Local.
class Microbatch {
 public:
  Microbatch(const Unit& root, bool is_last);
  ~Microbatch();
  Microbatch(const Microbatch&) = delete;
  Microbatch& operator=(const Microbatch&) = delete;

 private:
  std::shared_ptr<UnitState> root_;
};

// Gradients of backwards inside stay on this rank, whatever the strategy. Local.
class NoSync {
 public:
  explicit NoSync(const Unit& root);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<UnitState> root_;
};
[[nodiscard]] inline NoSync no_sync(const Unit& root) { return NoSync(root); }

// Forward passes without a backward: evaluation, generation. When it ends, every unit of `root` rests. Also switches
// gradients off. Local.
class ForwardOnly {
 public:
  explicit ForwardOnly(const Unit& root);
  ~ForwardOnly();
  ForwardOnly(const ForwardOnly&) = delete;
  ForwardOnly& operator=(const ForwardOnly&) = delete;

 private:
  std::shared_ptr<UnitState> root_;
  bool previous_grad_mode_;
};

// All parameters of one unit readable while it lives; used to write models out unit by unit.
// The constructor is COLLECTIVE, the destructor local; what is read in between is local too, so one rank may do it
// alone. The parameters may not be written.
class FullParameters {
 public:
  explicit FullParameters(const Unit& unit);
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

 private:
  std::shared_ptr<UnitState> unit_;
};

}  // namespace fsdp
