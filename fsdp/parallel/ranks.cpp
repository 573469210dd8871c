#include "fsdp/parallel/ranks.h"

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"

namespace fsdp::parallel {

void check_divides(int64_t count, int parts, const std::string& what, const std::string& layer) {
  const int64_t below = count / parts * parts;
  FSDP_CHECK(count % parts == 0, "[parallel] '", layer, "': got ", count, " ", what, " for ", parts,
             " ranks, expected a multiple of that: ", below > 0 ? c10::str(below, " or ") : "", below + parts, ".");
}

std::shared_ptr<Ranks> Ranks::along(const Mesh& mesh, const std::string& axis) {
  static std::mutex mutex;
  static std::map<std::pair<const comm::Comm*, std::string>, std::weak_ptr<Ranks>> known;
  auto comm = mesh.world().connection->group(mesh.ranks(axis));
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<Ranks>& place = known[{comm.get(), axis}];
  auto ranks = place.lock();
  if (!ranks) place = ranks = std::make_shared<Ranks>(std::move(comm), axis);
  return ranks;
}

Ranks::Ranks(std::shared_ptr<comm::Comm> comm, std::string axis) : comm_(std::move(comm)), axis_(std::move(axis)) {}

int Ranks::rank() const { return comm_->rank(); }
int Ranks::size() const { return comm_->size(); }

void Ranks::count(int64_t bytes) {
  ++calls_;
  bytes_ += bytes / size() * (size() - 1);
}

void Ranks::reset_traffic() {
  calls_ = 0;
  bytes_ = 0;
}

at::Tensor Ranks::sum(const at::Tensor& x, const std::string& layer) {
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  const int64_t shard = (x.numel() + size() - 1) / size();
  at::Tensor whole = at::empty({shard * size()}, x.options().requires_grad(false));
  whole.narrow(0, 0, x.numel()).view(x.sizes()).copy_(x);
  whole.narrow(0, x.numel(), whole.numel() - x.numel()).zero_();
  if (size() == 1) return whole.view(x.sizes());
  const at::Tensor part = at::empty({shard}, whole.options());
  const at::Tensor staging = at::empty({comm_->staging_numel(shard, x.device())}, whole.options());
  const comm::CallLabel label{"sum over " + axis_, layer, ""};
  comm_->reduce_scatter(whole, part, staging, comm::Accumulate::kOverwrite, label).wait();
  comm_->all_gather(whole, part, {label.op + ", whole", layer, ""}).wait();
  count(2 * static_cast<int64_t>(whole.nbytes()));
  return whole.narrow(0, 0, x.numel()).view(x.sizes());
}

at::Tensor Ranks::gather(const at::Tensor& x, int64_t dim, const std::string& layer) {
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  dim = at::maybe_wrap_dim(dim, x.dim());
  const at::Tensor all = at::empty({size() * x.numel()}, x.options().requires_grad(false));
  comm_->all_gather(all, x.detach().contiguous().view(-1), {"gather over " + axis_, layer, ""}).wait();
  count(static_cast<int64_t>(all.nbytes()));
  std::vector<int64_t> parts = x.sizes().vec();
  parts.insert(parts.begin(), size());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= size();
  return all.view(parts).movedim(0, dim).reshape(sizes);
}

at::Tensor Ranks::scatter_sum(const at::Tensor& x, int64_t dim, const std::string& layer) {
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  dim = at::maybe_wrap_dim(dim, x.dim());
  check_divides(x.size(dim), size(), c10::str("along dimension ", dim), layer);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] /= size();
  std::vector<int64_t> split = sizes;
  split.insert(split.begin() + dim, size());
  const at::Tensor by_rank = x.detach().reshape(split).movedim(dim, 0).contiguous().view(-1);
  const at::Tensor part = at::empty({x.numel() / size()}, by_rank.options());
  const at::Tensor staging = at::empty({comm_->staging_numel(part.numel(), x.device())}, by_rank.options());
  comm_->reduce_scatter(by_rank, part, staging, comm::Accumulate::kOverwrite, {"scatter over " + axis_, layer, ""})
      .wait();
  count(static_cast<int64_t>(by_rank.nbytes()));
  return part.view(sizes);
}

at::Tensor Ranks::exchange(const at::Tensor& x, const std::vector<std::vector<int64_t>>& counts,
                           const std::string& layer) {
  const Backstage backstage;
  const auto self = static_cast<size_t>(rank());
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t width = c10::multiply_integers(sizes.begin() + 1, sizes.end());
  comm::ExchangeCounts numbers = counts;
  sizes[0] = 0;
  for (size_t from = 0; from < counts.size(); ++from) {
    sizes[0] += counts[from][self];
    for (int64_t& number : numbers[from]) number *= width;
  }
  const at::Tensor result = at::empty(sizes, x.options().requires_grad(false));
  comm_->all_to_all(result.view(-1), x.detach().contiguous().view(-1), numbers, {"exchange over " + axis_, layer, ""})
      .wait();
  ++calls_;
  bytes_ += (result.numel() - numbers[self][self]) * static_cast<int64_t>(result.element_size());
  return result;
}

struct Passing::Calls {
  at::Tensor sent, received;
  comm::Pending send, receive;
};

Passing Ranks::pass_on(const at::Tensor& x, const std::string& layer) {
  const Backstage backstage;
  auto calls = std::make_unique<Passing::Calls>();
  calls->sent = x.detach().contiguous();
  calls->received = at::empty_like(calls->sent);
  const comm::CallLabel label{"pass on over " + axis_, layer, ""};
  const auto send = [&] { calls->send = comm_->send(calls->sent.view(-1), (rank() + 1) % size(), label); };
  // Ranks connect at their first message, so a ring must not wait for itself.
  const bool sends_first = rank() % 2 == 0;
  if (sends_first) send();
  calls->receive = comm_->receive(calls->received.view(-1), (rank() + size() - 1) % size(), label);
  if (!sends_first) send();
  ++calls_;
  bytes_ += static_cast<int64_t>(calls->received.nbytes());
  return Passing(std::move(calls));
}

Passing::Passing(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}
Passing::Passing(Passing&&) noexcept = default;
Passing& Passing::operator=(Passing&&) noexcept = default;
Passing::~Passing() = default;

at::Tensor Passing::wait() {
  const std::unique_ptr<Calls> calls = std::move(calls_);
  calls->receive.wait();
  calls->send.wait();
  return calls->received;
}

at::Tensor Ranks::own_part(const at::Tensor& x, int64_t dim, const std::string& layer) const {
  check_divides(x.size(dim), size(), c10::str("along dimension ", dim), layer);
  const int64_t count = x.size(dim) / size();
  return x.narrow(dim, rank() * count, count);
}

}  // namespace fsdp::parallel
