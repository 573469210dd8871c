#include "fsdp/group/host_weights.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <new>
#include <utility>

namespace fsdp {

// A cache line of its own: each is written by one rank.
struct alignas(64) HostWeights::Counters {
  std::atomic<uint64_t> finished{0};
  std::atomic<uint64_t> published{0};
  std::atomic<bool> gone{false};  // its rank has no use for the memory any more
};

namespace {

constexpr int64_t kPage = comm::SharedArena::kAlignment;

// A rank that is much later than its peers keeps its memory until the process ends, rather than wait for them.
constexpr auto kPatience = std::chrono::milliseconds(200);

int64_t round_up(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

HostWeights::HostWeights(std::shared_ptr<comm::HostLinks> links, std::vector<int> places,
                         std::shared_ptr<comm::Comm> comm, int64_t bytes)
    : links_(std::move(links)), places_(std::move(places)), comm_(std::move(comm)) {
  const int64_t head = round_up(static_cast<int64_t>(sizeof(Counters)) * comm_->size());
  slab_bytes_ = head + round_up(bytes);
  const at::Tensor place = at::zeros({1}, at::kLong);
  if (comm_->rank() == 0) {
    slab_ = static_cast<std::byte*>(links_->own_arena()->take(slab_bytes_));
    for (int rank = 0; rank < comm_->size(); ++rank)
      new (slab_ + sizeof(Counters) * static_cast<size_t>(rank)) Counters;
    place.fill_(links_->own_arena()->offset_of(slab_));
  }
  comm_->broadcast(place, 0, {"share weights", "", ""});
  if (comm_->rank() != 0) slab_ = links_->arena(places_.front()) + place.const_data_ptr<int64_t>()[0];
  data_ = slab_ + head;
}

HostWeights::~HostWeights() {
  of(comm_->rank()).gone.store(true, std::memory_order_release);
  links_->ring(places_.front());
  if (comm_->rank() != 0) return;
  const auto users = [this] {
    uint64_t missing = 0;
    for (int rank = 0; rank < comm_->size(); ++rank) {
      if (!of(rank).gone.load(std::memory_order_acquire)) missing |= uint64_t{1} << rank;
    }
    return missing;
  };
  try {
    const bool unused = links_->wait_until(users, {places_}, comm::HostLinks::Clock::now() + kPatience);
    if (unused) links_->own_arena()->give_back(slab_, slab_bytes_, comm::SharedArena::Keep::kNothing);
  } catch (const std::exception&) {
    // A rank is gone without having said so; the memory goes with the connection.
  }
}

HostWeights::Counters& HostWeights::of(int rank) const {
  return *std::launder(reinterpret_cast<Counters*>(slab_ + sizeof(Counters) * static_cast<size_t>(rank)));
}

void HostWeights::ring_all() const {
  for (const int place : places_) {
    if (place != links_->rank()) links_->ring(place);
  }
}

void HostWeights::await(const comm::CallLabel& label, const std::function<bool(const Counters&)>& is_here) const {
  const auto missing = [&] {
    uint64_t bits = 0;
    for (int rank = 0; rank < comm_->size(); ++rank) {
      if (!is_here(of(rank))) bits |= uint64_t{1} << rank;
    }
    return bits;
  };
  if (missing() == 0) return;
  comm_->await(label, [&](std::chrono::milliseconds deadline, const std::atomic<bool>& aborted) {
    links_->wait(missing, {places_, &aborted}, deadline);
  });
}

void HostWeights::finish_reading() {
  of(comm_->rank()).finished.store(version_, std::memory_order_release);
  ring_all();
}

void HostWeights::await_readers(const comm::CallLabel& label) {
  await(label, [this](const Counters& other) { return other.finished.load(std::memory_order_acquire) >= version_; });
}

void HostWeights::publish() {
  of(comm_->rank()).published.store(++version_, std::memory_order_release);
  ring_all();
}

void HostWeights::await_owners(const comm::CallLabel& label) {
  await(label, [this](const Counters& other) { return other.published.load(std::memory_order_acquire) >= version_; });
}

}  // namespace fsdp
