#pragma once

#include <memory>
#include <vector>

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

// Whether what was written into gathered weights reaches the main weights.
enum class WriteBack { kNo, kYes };

// All parameters of the units readable while it lives; used to write models out, or to change weights by hand.
// The constructor is COLLECTIVE, the destructor local unless it writes back; what is read in between is local too, so
// one rank may do it alone. With WriteBack::kYes parameters may be written in place (without gradients), by every rank
// alike; when the scope ends, each rank keeps its part. With mixed precision, elements that were not changed keep the
// main weight's digits.
class FullParameters {
 public:
  // Parameters of this unit, not of nested ones.
  explicit FullParameters(const Unit& unit, WriteBack write_back = WriteBack::kNo);
  // Of these units.
  explicit FullParameters(std::vector<std::shared_ptr<UnitState>> units, WriteBack write_back);
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

 private:
  void release(size_t count);  // the first of units_

  std::vector<std::shared_ptr<UnitState>> units_;
  WriteBack write_back_;
};

// Of the unit and all below it: the whole model is in memory on every rank while it lives.
[[nodiscard]] FullParameters full_parameters(const Unit& root, WriteBack write_back = WriteBack::kNo);

}  // namespace fsdp
