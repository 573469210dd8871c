#pragma once

#include <functional>
#include <string>

#include "fsdp/base/error.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp::train {

// An error that every rank has. One of them prints it.
class AgreedError : public Error {
 public:
  AgreedError(ErrorCode code, const std::string& message, bool told_elsewhere)
      : Error(code, message), told_elsewhere_(told_elsewhere) {}
  bool told_elsewhere() const { return told_elsewhere_; }

 private:
  bool told_elsewhere_;
};

// COLLECTIVE over the world. Runs `action` on rank 0 only; if it throws there, every rank throws an AgreedError with
// the same code and text, so that nobody waits for a rank that has given up.
void on_rank0(const World& world, const std::function<void()>& action);

// COLLECTIVE over the world. Runs `action` on every rank; if it throws on one, every rank throws the error of the
// lowest rank that failed, which is named where not all failed alike.
void on_all_ranks(const World& world, const std::function<void()>& action);

// COLLECTIVE over the world. Of the numbers that ranks give, that of the lowest rank whose is not 0; else 0.
int lowest_ranks_signal(const World& world, int own);

}  // namespace fsdp::train
