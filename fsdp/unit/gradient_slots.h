#pragma once

namespace fsdp {

// Lets operators that ask for a kernels::GradientSlot write the gradients of sharded parameters into the buffers they
// are reduced from. Process-wide.
void offer_gradient_slots();
void withdraw_gradient_slots();

}  // namespace fsdp
