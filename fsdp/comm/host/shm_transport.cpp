#include "fsdp/comm/host/shm_transport.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/host/processor_cache.h"
#include "kernels/flat/sum_chunks.h"
#include "kernels/raw/flat/stores.h"

namespace fsdp::comm {
namespace {

using Kind = TransferFailure::Kind;
using Clock = HostLinks::Clock;

// Between looks at whether anybody still wants the data. The C library copies pieces of this size fastest.
constexpr int64_t kCopyPiece = int64_t{64} << 10;
// Elements summed at a time. fp32 takes one pass, however many they are; the passes over 16-bit types stay in the
// second-level cache.
constexpr int64_t kSumPiece = int64_t{1} << 20;
constexpr int64_t kSumPieceOf16Bits = int64_t{1} << 17;
// How long a rank that has all its data waits for others to read its own, before it copies that and goes on. A rank
// may wait for its calls in another order, or much later.
constexpr std::chrono::milliseconds kReaderPatience{50};
// For a reader in the midst of data that is taken away; it looks up after each piece.
constexpr std::chrono::seconds kReadingEndPatience{1};

int64_t num_bytes(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }
const std::byte* data_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }
std::byte* mutable_data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

// For calls that would fill the caches of the host; `bytes`: what its ranks write and what they read only once.
kernels::raw::Stores stores_for(int64_t bytes) {
  static const int64_t limit = processor_cache_bytes() / 4 * 3;
  return bytes < limit ? kernels::raw::Stores::kCached : kernels::raw::Stores::kPastCache;
}

// One group as its transfers see it. Peers are indices of `ranks`.
class Group {
 public:
  Group(std::shared_ptr<HostLinks> links, std::vector<int> ranks, std::chrono::milliseconds deadline)
      : links_(std::move(links)), ranks_(std::move(ranks)), deadline_(deadline), id_(links_->new_group_id(ranks_)) {
    for (const int rank : ranks_) members_ |= bit_of(rank);
    const auto self = std::find(ranks_.begin(), ranks_.end(), links_->rank());
    FSDP_ASSERT(self != ranks_.end(), "rank ", links_->rank(), " is not of the group");
    rank_ = static_cast<int>(self - ranks_.begin());
  }

  HostLinks& links() const { return *links_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  std::chrono::milliseconds deadline() const { return deadline_; }
  uint64_t members() const { return members_; }
  uint64_t key(uint32_t tag) const { return static_cast<uint64_t>(id_) << 32 | tag; }
  int global(int peer) const { return ranks_[static_cast<size_t>(peer)]; }
  HostLinks::Wait waiting(const std::atomic<bool>* aborted) const { return {ranks_, aborted}; }
  uint64_t others() const { return (~uint64_t{0} >> (64 - size())) & ~bit_of(rank_); }

  // A mask of global ranks as one of peers.
  uint64_t to_peers(uint64_t global_ranks) const {
    uint64_t peers = 0;
    if (global_ranks == 0) return 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (global_ranks & bit_of(global(peer))) peers |= bit_of(peer);
    }
    return peers;
  }

  void ring_others() const {
    for (int step = 1; step < size(); ++step) links_->ring(global((rank_ + step) % size()));
  }

  std::optional<int> try_post(const Message& message) const {
    const std::optional<int> slot = links_->outbox().try_post(message);
    if (slot) ring_others();
    return slot;
  }

  // Waits for a slot, which peers free by reading.
  int post(const Message& message, const std::atomic<bool>& aborted) const {
    std::optional<int> slot;
    links_->outbox().await_any();
    const auto no_slot = [&]() -> uint64_t {
      slot = try_post(message);
      if (slot) return 0;
      const uint64_t late = to_peers(links_->outbox().unread_by_any());
      return late != 0 ? late : others();
    };
    links_->wait(no_slot, waiting(&aborted), deadline_);
    return *slot;
  }

 private:
  std::shared_ptr<HostLinks> links_;
  std::vector<int> ranks_;
  std::chrono::milliseconds deadline_;
  uint32_t id_;
  uint64_t members_ = 0;
  int rank_ = 0;
};

// A peer's slot that this rank is in; leaves it for good at the end.
class Reading {
 public:
  Reading(const Group& group, int peer, uint64_t key)
      : group_(&group),
        peer_(peer),
        entry_(enter_slot(group.links().control(group.global(peer)), key, group.members(), group.links().rank())) {}
  Reading(Reading&& other) noexcept
      : group_(other.group_), peer_(other.peer_), entry_(std::exchange(other.entry_, Entry{})) {}
  Reading& operator=(Reading&&) = delete;
  ~Reading() {
    if (entry_.slot != nullptr && leave_slot(entry_, group_->links().rank())) {
      group_->links().ring(group_->global(peer_));
    }
  }

  bool is_empty() const { return entry_.slot == nullptr; }
  bool has_poster_left() const { return entry_.state != SlotState::kPosted; }
  const std::byte* data() const {
    const auto* data = group_->links().find_in_arena(group_->global(peer_), entry_.slot->offset, entry_.slot->bytes);
    return data != nullptr ? data : throw TransferFailure(Kind::kOther, peer_, "posted bytes outside of its memory");
  }
  int64_t bytes() const { return entry_.slot->bytes; }
  void check_intact() const {
    if (!is_intact(entry_)) throw TransferFailure(Kind::kOther, peer_, "given up by this peer");
  }

 private:
  const Group* group_;
  int peer_;
  Entry entry_;
};

// A call: what this rank posted, if it did, and the peers whose data it wants.
class ShmTransfer : public Transfer {
 public:
  ShmTransfer(std::shared_ptr<const Group> group, uint32_t tag) : group_(std::move(group)), key_(group_->key(tag)) {}
  ~ShmTransfer() override { give_up(); }

  // If there is no slot now, wait() will post.
  void post(const std::byte* data, int64_t bytes, int64_t hole_begin = 0, int64_t hole_bytes = 0) {
    message_ = {key_, group_->members(), data, bytes, hole_begin, hole_bytes};
    slot_ = group_->try_post(message_).value_or(kNotYet);
  }
  void want(uint64_t peers) { missing_ = peers; }

  void wait() override {
    const auto until = Clock::now() + group_->deadline();
    if (slot_ == kNotYet) slot_ = group_->post(message_, aborted_);
    begin();
    group_->links().wait([this] { return collect(); }, group_->waiting(&aborted_), group_->deadline());
    finish();
    settle(until);
  }

  void abort() noexcept override {
    aborted_ = true;
    group_->links().ring_self();
  }

 protected:
  virtual void begin() {}
  // A peer's data is here.
  virtual void take(int peer, Reading reading) = 0;
  virtual void finish() {}

  const Group& group() const { return *group_; }
  void check_wanted() const {
    if (aborted_) throw TransferFailure(Kind::kOther, -1, "given up by this rank");
  }

 private:
  static constexpr int kNone = -1;
  static constexpr int kNotYet = -2;

  // Takes what has come; what has not is left.
  uint64_t collect() {
    for (int step = 1; missing_ != 0 && step < group_->size(); ++step) {
      const int peer = (group_->rank() + step) % group_->size();
      if ((missing_ & bit_of(peer)) == 0) continue;
      Reading reading(*group_, peer, key_);
      if (reading.is_empty()) continue;
      missing_ &= ~bit_of(peer);
      excuse_if_left(reading, peer);
      reading.check_intact();
      take(peer, std::move(reading));
    }
    return missing_;
  }

  void excuse_if_left(const Reading& reading, int peer) {
    if (slot_ >= 0 && reading.has_poster_left()) group_->links().outbox().excuse(slot_, group_->global(peer));
  }

  // Returns when the caller may reuse what it posted.
  void settle(Clock::time_point until) {
    if (slot_ < 0) return;
    Outbox& outbox = group_->links().outbox();
    if (outbox.is_borrowed(slot_)) {
      outbox.await_readers(slot_);
      const auto unread = [&] { return group_->to_peers(outbox.unread(slot_)); };
      while (!group_->links().wait_until(unread, group_->waiting(&aborted_), Clock::now() + kReaderPatience)) {
        if (outbox.detach(slot_)) {
          group_->ring_others();  // it was closed for a moment
          break;
        }
        const uint64_t left = unread();
        if (left != 0 && Clock::now() >= until) {
          throw TransferFailure(Kind::kDeadline, std::countr_zero(left),
                                c10::str("not read within ", group_->deadline().count(), " ms"));
        }
      }
    }
    outbox.retire(std::exchange(slot_, kNone));
  }

  // Peers neither wait for this rank to read theirs nor read what it takes away.
  void give_up() noexcept try {
    if (slot_ == kNotYet) slot_ = group_->try_post(message_).value_or(kNone);
    if (slot_ >= 0) group_->links().outbox().leave(slot_);
    for (int peer = 0; peer < group_->size(); ++peer) {
      if ((missing_ & bit_of(peer)) == 0) continue;
      const Reading reading(*group_, peer, key_);
      if (!reading.is_empty()) excuse_if_left(reading, peer);
    }
    if (slot_ < 0) return;
    Outbox& outbox = group_->links().outbox();
    if (outbox.is_borrowed(slot_)) {
      outbox.await_readers(slot_);
      const auto inside = [&] { return outbox.has_reader_inside(slot_) ? group_->others() : 0; };
      group_->links().wait_until(inside, group_->waiting(nullptr), Clock::now() + kReadingEndPatience);
    }
    outbox.retire(slot_);
  } catch (const std::exception&) {
    // A peer died; its slot stays.
  }

  std::shared_ptr<const Group> group_;
  uint64_t key_;
  Message message_;
  int slot_ = kNone;
  uint64_t missing_ = 0;
  std::atomic<bool> aborted_{false};
};

// Copies what each wanted peer posted to its places in the output.
class Fetch : public ShmTransfer {
 public:
  // `slots`: of how many ranks a block of the output has data; 0: what is posted is the output.
  Fetch(std::shared_ptr<const Group> group, uint32_t tag, at::Tensor source, at::Tensor output, int64_t blocks,
        int64_t slots)
      : ShmTransfer(std::move(group), tag),
        source_(std::move(source)),
        output_(std::move(output)),
        blocks_(blocks),
        slots_(slots),
        block_bytes_(num_bytes(output_) / (blocks * std::max<int64_t>(slots, 1))),
        stores_(stores_for(this->group().size() * num_bytes(output_))) {}

 protected:
  void begin() override {
    if (!source_.defined()) return;
    for (int64_t block = 0; block < blocks_; ++block) {
      const std::byte* from = data_of(source_) + block * block_bytes_;
      std::byte* own = place_of(group().rank(), block);
      if (own != from) copy(own, from, [] {});
    }
  }

  void take(int peer, Reading reading) override {
    for (int64_t block = 0; block < blocks_; ++block) {
      const std::byte* from = reading.data() + block * block_bytes_;
      copy(place_of(peer, block), from, [&] { reading.check_intact(); });
    }
  }

 private:
  // A block.
  template <class Check>
  void copy(std::byte* to, const std::byte* from, const Check& check) const {
    for (int64_t done = 0; done < block_bytes_; done += kCopyPiece) {
      check_wanted();
      kernels::raw::copy_bytes(to + done, from + done, std::min(kCopyPiece, block_bytes_ - done), stores_);
      check();
    }
  }

  std::byte* place_of(int peer, int64_t block) const {
    return mutable_data_of(output_) + (slots_ == 0 ? 0 : (block * slots_ + peer) * block_bytes_);
  }

  at::Tensor source_;  // of this rank; empty: its place in the output is not touched
  at::Tensor output_;
  int64_t blocks_;
  int64_t slots_;
  int64_t block_bytes_;
  kernels::raw::Stores stores_;
};

// Copies what each peer posted for this rank. Every rank posts, even nothing, so that all know who has come.
class Exchange : public ShmTransfer {
 public:
  Exchange(std::shared_ptr<const Group> group, uint32_t tag, at::Tensor output, at::Tensor input, ExchangeCounts counts)
      : ShmTransfer(std::move(group), tag),
        output_(std::move(output)),
        input_(std::move(input)),
        counts_(std::move(counts)),
        item_(static_cast<int64_t>(output_.element_size())) {}

  // Bytes of what `from` sends that come before what it sends to `to`.
  int64_t sent_before(int from, int to) const {
    int64_t count = 0;
    for (int peer = 0; peer < to; ++peer) count += count_of(from, peer);
    return count * item_;
  }
  int64_t bytes(int from, int to) const { return count_of(from, to) * item_; }

 protected:
  void begin() override {
    const int self = group().rank();
    copy(self, data_of(input_) + sent_before(self, self), [] {});
  }

  void take(int peer, Reading reading) override {
    if (reading.bytes() != sent_before(peer, group().size())) {
      throw TransferFailure(
          Kind::kOther, peer,
          c10::str("this peer sends ", reading.bytes(), " bytes, expected ", sent_before(peer, group().size())));
    }
    copy(peer, reading.data() + sent_before(peer, group().rank()), [&] { reading.check_intact(); });
  }

 private:
  int64_t count_of(int from, int to) const { return counts_[static_cast<size_t>(from)][static_cast<size_t>(to)]; }

  template <class Check>
  void copy(int peer, const std::byte* from, const Check& check) const {
    int64_t place = 0;
    for (int other = 0; other < peer; ++other) place += bytes(other, group().rank());
    std::byte* to = mutable_data_of(output_) + place;
    const int64_t count = bytes(peer, group().rank());
    for (int64_t done = 0; done < count; done += kCopyPiece) {
      check_wanted();
      kernels::raw::copy_bytes(to + done, from + done, std::min(kCopyPiece, count - done),
                               kernels::raw::Stores::kCached);
      check();
    }
  }

  at::Tensor output_;
  at::Tensor input_;
  ExchangeCounts counts_;
  int64_t item_;
};

// Adds this rank's slice of each block of everybody's input.
class Reduction : public ShmTransfer {
 public:
  Reduction(std::shared_ptr<const Group> group, uint32_t tag, at::Tensor input, at::Tensor output, int64_t blocks,
            Accumulate accumulate)
      : ShmTransfer(std::move(group), tag),
        input_(std::move(input)),
        output_(std::move(output)),
        blocks_(blocks),
        accumulate_(accumulate),
        stores_(stores_for(this->group().size() * (num_bytes(input_) + num_bytes(output_)))),
        readings_(static_cast<size_t>(this->group().size())) {}

 protected:
  void take(int peer, Reading reading) override { readings_[static_cast<size_t>(peer)].emplace(std::move(reading)); }

  void finish() override {
    const int64_t numel = output_.numel() / blocks_;
    const int64_t piece = input_.element_size() > 2 ? kSumPiece : kSumPieceOf16Bits;
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int64_t begin = 0; begin < numel; begin += piece) {
        check_wanted();
        sum(block, begin, std::min(piece, numel - begin));
        for (const auto& reading : readings_) {
          if (reading) reading->check_intact();
        }
      }
    }
    for (auto& reading : readings_) reading.reset();
  }

 private:
  void sum(int64_t block, int64_t begin, int64_t count) {
    const int64_t numel = output_.numel() / blocks_;
    const int64_t position =
        ((block * group().size() + group().rank()) * numel + begin) * static_cast<int64_t>(input_.element_size());
    std::vector<at::Tensor> chunks;
    for (const auto& reading : readings_) {
      const std::byte* data = (reading ? reading->data() : data_of(input_)) + position;
      chunks.push_back(at::from_blob(const_cast<std::byte*>(data), {count}, input_.options()));
    }
    kernels::sum_chunks(output_.narrow(0, block * numel + begin, count), chunks, accumulate_ == Accumulate::kAdd,
                        stores_);
  }

  at::Tensor input_;
  at::Tensor output_;
  int64_t blocks_;
  Accumulate accumulate_;
  kernels::raw::Stores stores_;
  std::vector<std::optional<Reading>> readings_;  // none of this rank
};

class NothingToDo : public Transfer {
 public:
  void wait() override {}
};

class ShmTransport : public BlockTransport {
 public:
  explicit ShmTransport(std::shared_ptr<const Group> group) : group_(std::move(group)) {}

  std::string name() const override { return "shm"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) override {
    return all_gather_blocks(output, shard, 1, tag);
  }

  std::unique_ptr<Transfer> all_gather_blocks(const at::Tensor& output, const at::Tensor& shard, int64_t blocks,
                                              uint32_t tag) override {
    FSDP_ASSERT(output.is_cpu() && shard.is_cpu(), "tensors of another device");
    if (shard.numel() == 0) return std::make_unique<NothingToDo>();
    auto transfer = std::make_unique<Fetch>(group_, tag, shard, output, blocks, group_->size());
    transfer->post(data_of(shard), num_bytes(shard));
    transfer->want(group_->others());
    return transfer;
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor&,
                                           Accumulate accumulate, uint32_t tag) override {
    return reduce(input, output, 1, accumulate, tag);
  }

  std::unique_ptr<Transfer> reduce_scatter_blocks(const at::Tensor& input, const at::Tensor& output, int64_t blocks,
                                                  uint32_t tag) override {
    return reduce(input, output, blocks, Accumulate::kOverwrite, tag);
  }

  int64_t staging_numel(int64_t) const override { return 0; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) override {
    FSDP_ASSERT(tensor.is_cpu(), "a tensor of another device");
    if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
    auto transfer = std::make_unique<Fetch>(group_, tag, at::Tensor(), tensor, 1, 0);
    if (group_->rank() == root) {
      transfer->post(data_of(tensor), num_bytes(tensor));
    } else {
      transfer->want(bit_of(root));
    }
    return transfer;
  }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t tag) override {
    FSDP_ASSERT(output.is_cpu() && input.is_cpu(), "tensors of another device");
    auto transfer = std::make_unique<Exchange>(group_, tag, output, input, counts);
    const int self = group_->rank();
    static const std::byte nothing{};
    const std::byte* data = input.numel() > 0 ? data_of(input) : &nothing;
    transfer->post(data, num_bytes(input), transfer->sent_before(self, self), transfer->bytes(self, self));
    transfer->want(group_->others());
    return transfer;
  }

 private:
  std::unique_ptr<Transfer> reduce(const at::Tensor& input, const at::Tensor& output, int64_t blocks,
                                   Accumulate accumulate, uint32_t tag) {
    FSDP_ASSERT(output.is_cpu() && input.is_cpu(), "tensors of another device");
    if (output.numel() == 0) return std::make_unique<NothingToDo>();
    auto transfer = std::make_unique<Reduction>(group_, tag, input, output, blocks, accumulate);
    const int64_t own = blocks == 1 ? num_bytes(input) / group_->size() : 0;  // nobody else reads it
    transfer->post(data_of(input), num_bytes(input), group_->rank() * own, own);
    transfer->want(group_->others());
    return transfer;
  }

  std::shared_ptr<const Group> group_;
};

}  // namespace

std::unique_ptr<BlockTransport> make_shm_transport(std::shared_ptr<HostLinks> links, std::vector<int> ranks,
                                                   std::chrono::milliseconds deadline) {
  FSDP_ASSERT(links != nullptr, "ranks that share no memory");
  return std::make_unique<ShmTransport>(std::make_shared<Group>(std::move(links), std::move(ranks), deadline));
}

}  // namespace fsdp::comm
