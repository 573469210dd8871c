#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>

namespace fsdp::comm {
class Comm;
}  // namespace fsdp::comm

namespace fsdp {

struct World;

// What a group tells whoever drives it. Implemented by the Context.
class GroupOwner {
 public:
  virtual ~GroupOwner() = default;
  // A program called into the library (optimizer, clipping, zero_grad): throws what happened where nothing may be
  // thrown, checks that no parameter left its buffer, and lets everything rest.
  virtual void on_library_entry() = 0;
  // What on_library_entry() shall throw: for places that may not.
  virtual void defer(std::exception_ptr error) = 0;
  // Somebody asked for the leaves, so an optimizer has a chance to be right.
  virtual void on_leaves_requested() = 0;
  // Whether the program asked to leave this parameter alone.
  virtual bool ignores(const at::Tensor& parameter) const = 0;
  // All ranks that share the model.
  virtual const World& world() const = 0;
  virtual const std::shared_ptr<comm::Comm>& ranks_of_step() const = 0;
  // Whether they are the whole world; else the model is a stage of a pipeline.
  virtual bool spans_world() const = 0;
};

}  // namespace fsdp
