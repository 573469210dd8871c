#include "fsdp/pipeline/border.h"

#include <ATen/ATen.h>

#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"

namespace fsdp::pipeline {
namespace {

constexpr int64_t kMostDims = 8;
// Transports have room for some hundred messages that nobody has read yet. Only GPipe comes near, whose readers need
// nothing of this rank before they read.
constexpr size_t kMostUnread = 100;

}  // namespace

void Border::agree_as_sender(const at::Tensor& tensor) {
  if (dtype_) {
    FSDP_CHECK(tensor.scalar_type() == *dtype_ && tensor.sizes() == at::IntArrayRef(sizes_), "[pipeline] ", what_,
               ": got ", tensor.scalar_type(), " of sizes ", tensor.sizes(), ", expected ", *dtype_, " of sizes ",
               at::IntArrayRef(sizes_), " as at first. Give all microbatches one size, with padding if need be.");
    return;
  }
  FSDP_CHECK(tensor.dim() <= kMostDims, "[pipeline] ", what_, ": got ", tensor.dim(), " dims, expected at most ",
             kMostDims, ".");
  dtype_ = tensor.scalar_type();
  sizes_ = tensor.sizes().vec();
  std::vector<int64_t> numbers(2 + kMostDims);
  numbers[0] = static_cast<int64_t>(*dtype_);
  numbers[1] = tensor.dim();
  std::copy(sizes_.begin(), sizes_.end(), numbers.begin() + 2);
  comm_->send(at::tensor(numbers, at::kLong), peer_, label("agree over pp on")).wait();
}

void Border::agree_as_receiver() {
  const at::Tensor numbers = at::empty({2 + kMostDims}, at::kLong);
  comm_->receive(numbers, peer_, label("agree over pp on")).wait();
  const auto* values = numbers.const_data_ptr<int64_t>();
  dtype_ = static_cast<at::ScalarType>(values[0]);
  sizes_.assign(values + 2, values + 2 + values[1]);
}

void Border::send(const at::Tensor& tensor, int reader) {
  const Backstage backstage;
  const at::Tensor flat = tensor.detach().contiguous().view({-1});
  agree_as_sender(tensor);
  if (sent_.size() == kMostUnread) {
    sent_.front().pending.wait();
    sent_.pop_front();
  }
  sent_.push_back({reader, flat, comm_->send(flat, peer_, label("send over pp"))});
}

void Border::release(int turn) {
  while (!sent_.empty() && sent_.front().reader < turn) {
    sent_.front().pending.wait();
    sent_.pop_front();
  }
}

void Border::release_all() {
  for (Sent& each : sent_) each.pending.wait();
  sent_.clear();
}

void Border::expect() {
  if (expected_ || !dtype_) return;
  const Backstage backstage;
  const at::Tensor flat = at::empty({c10::multiply_integers(sizes_)}, at::TensorOptions(*dtype_).device(device_));
  expected_ = Expected{flat, comm_->receive(flat, peer_, label("send over pp"))};
}

at::Tensor Border::receive() {
  const Backstage backstage;
  if (!dtype_) agree_as_receiver();
  expect();
  Expected arrived = std::move(*std::exchange(expected_, std::nullopt));
  arrived.pending.wait();
  return arrived.tensor.view(sizes_);
}

}  // namespace fsdp::pipeline
