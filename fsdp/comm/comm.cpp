#include "fsdp/comm/comm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/liveness/wait_clock.h"
#include "fsdp/comm/transport/waits.h"

namespace fsdp::comm {
namespace {

// 12 bits of a count of these calls keep one from the next; the rest says which operation on whose data this is, so
// that ranks that disagree never take each other's data: both wait, and the deadline names them.
uint32_t make_tag(uint32_t sequence, const CallLabel& label, int64_t bytes) {
  uint32_t hash = 2166136261U;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 16777619U; };
  for (const char c : label.op) mix(static_cast<unsigned char>(c));
  mix(0);
  for (const char c : label.unit) mix(static_cast<unsigned char>(c));
  mix(static_cast<unsigned char>(label.part));
  for (int shift = 0; shift < 64; shift += 8) mix(static_cast<unsigned char>(bytes >> shift));
  return ((hash ^ (hash >> 19)) & 0x7ffffU) << 12 | (sequence & 0xfffU);
}

}  // namespace

Pending::Pending(std::shared_ptr<Comm> comm, int64_t number, CallLabel label, std::unique_ptr<Transfer> transfer)
    : comm_(std::move(comm)), number_(number), label_(std::move(label)), transfer_(std::move(transfer)) {}

void Pending::wait() {
  if (!transfer_) return;
  const Backstage backstage;
  const WaitClock clock;
  const auto transfer = std::move(transfer_);
  comm_->set_state(number_, CallState::kWaiting);
  try {
    comm_->wait(*transfer);
  } catch (const TransferFailure& failure) {
    comm_->fail(number_, label_, failure);
  }
  comm_->set_state(number_, CallState::kDone);
}

Comm::Comm(std::weak_ptr<Connection> connection, std::vector<int> ranks, int rank, Purpose purpose,
           std::shared_ptr<Transport> transport)
    : connection_(std::move(connection)),
      ranks_(std::move(ranks)),
      rank_(rank),
      purpose_(purpose),
      host_(std::move(transport)) {}

void Comm::open(c10::Device device) {
  if (device.is_cpu() || device_ == device) return;
  FSDP_CHECK(!device_, "[comm] got tensors of device ", device, ", expected ", *device_,
             ", to which these ranks are connected. A process uses one device for one group of ranks.");
  const auto connection = connection_.lock();
  FSDP_ASSERT(connection, "a group without its connection");
  on_device_ = connection->make_device_transport(*this, device);
  device_ = device;
}

Transport& Comm::transport_for(c10::Device device) {
  if (device.is_cpu()) return *host_;
  open(device);
  return *on_device_;
}

int64_t Comm::staging_numel(int64_t shard_numel, c10::Device device) {
  return transport_for(device).staging_numel(shard_numel);
}

Comm::Issued Comm::issue(const CallLabel& label, int64_t bytes) {
  fault_point("comm.call");
  int64_t number = 0;
  if (const auto connection = connection_.lock()) number = connection->calls().issue(label, bytes);
  const std::lock_guard lock(mutex_);
  return {number, make_tag(sequence_[label.op + '/' + label.unit + '/' + std::to_string(label.part)]++, label, bytes)};
}

void Comm::set_state(int64_t number, CallState state) {
  if (const auto connection = connection_.lock()) connection->calls().set_state(number, state);
}

void Comm::wait(Transfer& transfer) const {
  std::shared_ptr<Waits> waits;
  if (const auto connection = connection_.lock()) waits = connection->waits();
  const Waits::Scope scope(std::move(waits), transfer);
  transfer.wait();
}

Pending Comm::start(CallLabel label, int64_t bytes,
                    const std::function<std::unique_ptr<Transfer>(uint32_t tag)>& begin) {
  const Backstage backstage;
  const Issued issued = issue(label, bytes);
  try {
    auto transfer = begin(issued.tag);
    return Pending(shared_from_this(), issued.number, std::move(label), std::move(transfer));
  } catch (const TransferFailure& failure) {
    fail(issued.number, label, failure);
  }
}

Pending Comm::all_gather(const at::Tensor& output, const at::Tensor& shard, CallLabel label) {
  FSDP_ASSERT(output.numel() == shard.numel() * size(), output.numel(), " against ", shard.numel(), " x ", size());
  return start(std::move(label), static_cast<int64_t>(output.nbytes()),
               [&](uint32_t tag) { return transport_for(output.device()).all_gather(output, shard, tag); });
}

Pending Comm::reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor& staging,
                             Accumulate accumulate, CallLabel label) {
  FSDP_ASSERT(input.numel() == output.numel() * size(), input.numel(), " against ", output.numel(), " x ", size());
  return start(std::move(label), static_cast<int64_t>(input.nbytes()), [&](uint32_t tag) {
    return transport_for(input.device()).reduce_scatter(input, output, staging, accumulate, tag);
  });
}

void Comm::all_reduce_small(const at::Tensor& values, CallLabel label) {
  if (size() == 1) return;
  const Backstage backstage;
  const at::Tensor flat = values.detach().reshape({-1}).contiguous();
  const at::Tensor all = at::empty({flat.numel() * size()}, flat.options());
  all_gather(all, flat, std::move(label)).wait();
  at::Tensor sum = all.narrow(0, 0, flat.numel()).clone();
  for (int rank = 1; rank < size(); ++rank) sum.add_(all.narrow(0, rank * flat.numel(), flat.numel()));
  values.detach().copy_(sum.view(values.sizes()));
}

void Comm::broadcast(const at::Tensor& tensor, int root, CallLabel label) {
  start(std::move(label), static_cast<int64_t>(tensor.nbytes()), [&](uint32_t tag) {
    return transport_for(tensor.device()).broadcast(tensor.view({-1}), root, tag);
  }).wait();
}

void Comm::barrier(CallLabel label) { all_reduce_small(at::zeros({1}, at::kByte), std::move(label)); }

Pending Comm::all_to_all(const at::Tensor& output, const at::Tensor& input, CallLabel label) {
  FSDP_ASSERT(output.numel() == input.numel() && input.numel() % size() == 0, output.numel(), " from ", input.numel());
  const auto ranks = static_cast<size_t>(size());
  return all_to_all(output, input, ExchangeCounts(ranks, std::vector<int64_t>(ranks, input.numel() / size())),
                    std::move(label));
}

Pending Comm::all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                         CallLabel label) {
  const auto ranks = static_cast<size_t>(size()), self = static_cast<size_t>(rank_);
  FSDP_ASSERT(counts.size() == ranks, counts.size(), " rows of counts for ", size(), " ranks");
  int64_t sent = 0, received = 0, all = 0;
  for (size_t from = 0; from < ranks; ++from) {
    FSDP_ASSERT(counts[from].size() == ranks, counts[from].size(), " counts of rank ", from, " for ", size());
    received += counts[from][self];
    for (const int64_t count : counts[from]) {
      all += count;
      if (from == self) sent += count;
    }
  }
  FSDP_ASSERT(input.numel() == sent && output.numel() == received, input.numel(), " of ", sent, ", ", output.numel(),
              " of ", received);
  return start(std::move(label), all * static_cast<int64_t>(input.element_size()),
               [&](uint32_t tag) { return transport_for(input.device()).all_to_all(output, input, counts, tag); });
}

std::vector<std::vector<int64_t>> Comm::gather_numbers(const std::vector<int64_t>& mine, CallLabel label) {
  const Backstage backstage;
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor all = at::empty({size() * count}, at::kLong);
  all_gather(all, at::tensor(mine, at::kLong), std::move(label)).wait();
  std::vector<std::vector<int64_t>> numbers;
  for (int rank = 0; rank < size(); ++rank) {
    const auto* row = all.const_data_ptr<int64_t>() + rank * count;
    numbers.emplace_back(row, row + count);
  }
  return numbers;
}

std::vector<std::string> Comm::gather_texts(const std::string& mine, const CallLabel& label) {
  const Backstage backstage;
  const auto lengths = gather_numbers({static_cast<int64_t>(mine.size())},
                                      {label.op + " (lengths)", label.unit, label.cause, label.part});
  const int64_t longest = (*std::max_element(lengths.begin(), lengths.end()))[0];
  const at::Tensor own = at::zeros({longest}, at::kByte), all = at::empty({size() * longest}, at::kByte);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<uint8_t>());
  all_gather(all, own, label).wait();
  std::vector<std::string> texts;
  const char* next = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (const std::vector<int64_t>& length : lengths) {
    texts.emplace_back(next, static_cast<size_t>(length[0]));
    next += longest;
  }
  return texts;
}

ExchangeCounts Comm::exchange_counts(const std::vector<int64_t>& to_others, CallLabel label) {
  FSDP_ASSERT(to_others.size() == static_cast<size_t>(size()), to_others.size(), " counts for ", size(), " ranks");
  return gather_numbers(to_others, std::move(label));
}

Pending Comm::send(const at::Tensor& tensor, int to, CallLabel label) {
  return message(tensor, rank_, to, std::move(label));
}

Pending Comm::receive(const at::Tensor& tensor, int from, CallLabel label) {
  return message(tensor, from, rank_, std::move(label));
}

// A broadcast in the group of the two, which every transport has. The name of the call has the direction, so that two
// ranks may send each other something under one name in any order.
Pending Comm::message(const at::Tensor& tensor, int from, int to, CallLabel label) {
  FSDP_ASSERT(from != to && std::min(from, to) >= 0 && std::max(from, to) < size(), "a message from ", from, " to ", to,
              " of ", size());
  const auto connection = connection_.lock();
  FSDP_ASSERT(connection, "a group without its connection");
  const int sender = ranks_[static_cast<size_t>(from)], receiver = ranks_[static_cast<size_t>(to)];
  const auto pair = connection->group({std::min(sender, receiver), std::max(sender, receiver)}, purpose_);
  label.op += " from rank " + std::to_string(sender);
  return pair->start(std::move(label), static_cast<int64_t>(tensor.nbytes()), [&](uint32_t tag) {
    return pair->transport_for(tensor.device()).broadcast(tensor.view({-1}), sender < receiver ? 0 : 1, tag);
  });
}

void Comm::await(CallLabel label, const WaitFunction& wait) {
  class Waiting : public Transfer {
   public:
    Waiting(const WaitFunction& wait, std::chrono::milliseconds deadline) : wait_(wait), deadline_(deadline) {}
    void wait() override { wait_(deadline_, aborted_); }
    void abort() noexcept override { aborted_ = true; }

   private:
    const WaitFunction& wait_;
    std::chrono::milliseconds deadline_;
    std::atomic<bool> aborted_{false};
  };
  const auto connection = connection_.lock();
  const std::chrono::milliseconds deadline = connection ? connection->deadline() : std::chrono::minutes(5);
  start(std::move(label), 0, [&](uint32_t) { return std::make_unique<Waiting>(wait, deadline); }).wait();
}

void Comm::fail(int64_t number, const CallLabel& label, const TransferFailure& failure) {
  set_state(number, CallState::kFailed);
  const auto connection = connection_.lock();
  if (connection) {
    connection->publish_calls();
    connection->dump_calls();
  }
  const std::string unit = label.unit.empty() ? "" : c10::str(" of '", label.unit, "'");
  const std::string cause = label.cause.empty() ? "" : c10::str(" (", label.cause, ")");
  const int global = failure.peer >= 0 ? ranks_[static_cast<size_t>(failure.peer)] : -1;
  const int mine = ranks_[static_cast<size_t>(rank_)];
  const std::string call = c10::str("[comm] rank ", mine, ": ", label.op, unit, cause, ", call ", number, ": ");
  const bool is_closed = failure.kind == TransferFailure::Kind::kPeerClosed;
  if (connection) {
    // What ended this wait may be what another rank did because of a loss.
    if (const auto loss = connection->find_loss()) FSDP_THROW(kCommunication, call, *loss);
    if (is_closed) FSDP_THROW(kCommunication, call, connection->report_closed(global));
  }
  if (is_closed) FSDP_THROW(kCommunication, call, "rank ", global, " closed its connection.");
  if (failure.kind == TransferFailure::Kind::kDeadline && connection) {
    const double seconds = std::chrono::duration<double>(connection->deadline()).count();
    FSDP_THROW(kCommunication, call, "not complete after ", seconds, " s. ",
               connection->describe_missing(number, label, ranks_),
               " Every rank must use sharded parameters in the same order; see the ranks named here, or raise "
               "InitOptions::deadline if they are only slow.");
  }
  FSDP_THROW(kCommunication, call, failure.what(), global >= 0 ? c10::str(" (peer: rank ", global, ")") : "");
}

}  // namespace fsdp::comm
