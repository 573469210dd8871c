#include "fsdp/functional/sharded_step.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"
#include "fsdp/functional/grouping.h"
#include "fsdp/group/registry.h"
#include "kernels/flat/pack.h"
#include "kernels/flat/sum_squares.h"

namespace fsdp::functional {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr size_t kAlignBytes = 16;       // of shards, in every dtype they are held in
constexpr int64_t kWorkspaceAlign = 64;  // of buffers: a cache line

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

void check_options(const Mesh& mesh, const ShardedStepOptions& options) {
  FSDP_CHECK(mesh.has("shard") || mesh.world().size == 1, "[ShardedStep] mesh ", mesh.describe(),
             ": it has no axis 'shard'. Use Mesh::shard(world), or name the axis to share the step over 'shard'.");
  FSDP_CHECK(options.group_bytes > 0, "[ShardedStep] group_bytes: got ", options.group_bytes,
             ", expected at least 1, as a rule some MiB.");
  for (const auto& [name, dtype] : {std::pair{"reduce", options.reduce}, std::pair{"main", options.main}}) {
    FSDP_CHECK(!dtype || is_supported(*dtype), "[ShardedStep] ", name, ": got dtype ", *dtype,
               ", expected Float, Double, Half or BFloat16.");
  }
}

void check_tensor(const at::Tensor& tensor, size_t position) {
  const std::string where = c10::str("[ShardedStep] tensor ", position);
  FSDP_CHECK(tensor.defined(), where, " is undefined. Initialise it first.");
  FSDP_CHECK(tensor.layout() == at::kStrided, where, ": got layout ", tensor.layout(), ", expected a dense tensor.");
  FSDP_CHECK(tensor.device().is_cpu(), where, ": got device ", tensor.device(),
             ", expected cpu. This build communicates on the CPU.");
  FSDP_CHECK(is_supported(tensor.scalar_type()), where, ": got dtype ", tensor.scalar_type(),
             ", expected Float, Double, Half or BFloat16. Leave it out of the list.");
  FSDP_CHECK(tensor.is_leaf(), where, " is computed from other tensors. List leaves only.");
  FSDP_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, where, ": got strides ", tensor.strides(),
             ", where elements share memory. Call contiguous() before listing it.");
  FSDP_CHECK(!registry::find_parameter(tensor) && !registry::find_leaf(tensor), where,
             " belongs to a module that was sharded by fully_shard(). Use one of the two.");
}

void check_tensors(const Tensors& tensors) {
  FSDP_CHECK(!tensors.empty(), "[ShardedStep] the list has no tensors, expected at least one.");
  std::map<const void*, size_t> known;  // by memory, so that views of one tensor are found too
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(tensors[i], i);
    const bool has_memory = tensors[i].numel() > 0;
    const void* identity = has_memory ? tensors[i].const_data_ptr() : tensors[i].unsafeGetTensorImpl();
    const auto [other, is_new] = known.emplace(identity, i);
    FSDP_CHECK(is_new, "[ShardedStep] tensor ", i, " has the memory of tensor ", other->second,
               ". List a shared tensor once.");
  }
}

uint64_t digest_of_shapes(const Tensors& tensors, const ShardedStepOptions& options) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += c10::str(tensor.sizes(), tensor.scalar_type(), ";");
  text += c10::str(options.group_bytes, "/", static_cast<int>(options.slicing), "/",
                   static_cast<int>(options.reduce.value_or(at::kLong)), "/",
                   static_cast<int>(options.main.value_or(at::kLong)));
  return XXH3_64bits(text.data(), text.size());
}

uint64_t digest_of_values(const Tensors& tensors) {
  uint64_t digest = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = tensor.detach().contiguous();
    digest = XXH3_64bits_withSeed(values.const_data_ptr(), values.nbytes(), digest);
  }
  return digest;
}

// COLLECTIVE. Ranks that disagree would wait for each other, or mix up each other's slices.
void agree_on_list(const Tensors& tensors, const ShardedStepOptions& options, comm::Comm& comm) {
  if (comm.size() == 1) return;
  const auto shapes = static_cast<int64_t>(digest_of_shapes(tensors, options));
  const auto values = static_cast<int64_t>(digest_of_values(tensors));
  const auto digests = comm.gather_numbers({shapes, values}, {"agree on a list of tensors", "", ""});
  const int first = comm.ranks().front();
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    const int global = comm.ranks()[rank];
    FSDP_CHECK(digests[rank][0] == digests[0][0], "[ShardedStep] rank ", global,
               " has other tensors or options than rank ", first,
               ". List tensors of the same shapes and dtypes in the same order, with the same options, on every ",
               "rank.");
    FSDP_CHECK(digests[rank][1] == digests[0][1], "[ShardedStep] rank ", global, " starts from other values than rank ",
               first, ". Seed all ranks alike (torch::manual_seed), or broadcast the tensors, before making the step.");
  }
}

// Tensors whose slices travel, and are updated, together.
struct Group {
  std::string name;  // in errors and traces
  std::vector<size_t> members;
  GroupLayout layout;
  at::ScalarType dtype;   // of the tensors, and of what is gathered
  at::ScalarType reduce;  // of gradients on the wire
  at::ScalarType main;    // of the slice
};

std::vector<Group> make_groups(const Tensors& tensors, const ShardedStepOptions& options, int num_ranks) {
  std::vector<ListedTensor> listed;
  for (const at::Tensor& tensor : tensors) {
    listed.push_back(
        {tensor.numel(), static_cast<int64_t>(tensor.element_size()), static_cast<int>(tensor.scalar_type())});
  }
  std::vector<Group> groups;
  for (std::vector<size_t>& members : group_by_size(listed, options.group_bytes)) {
    Group group;
    group.name = c10::str("group ", groups.size());
    group.dtype = tensors[members.front()].scalar_type();
    group.reduce = options.reduce.value_or(group.dtype);
    group.main = options.main.value_or(group.dtype);
    const size_t smallest =
        std::min({c10::elementSize(group.dtype), c10::elementSize(group.reduce), c10::elementSize(group.main)});
    const auto align = static_cast<int64_t>(kAlignBytes / smallest);
    std::vector<int64_t> numels;
    for (const size_t i : members) numels.push_back(tensors[i].numel());
    group.layout = options.slicing == Slicing::kFlat ? lay_out_flat(numels, num_ranks, align)
                                                     : lay_out_by_tensor(numels, num_ranks, align);
    group.members = std::move(members);
    groups.push_back(std::move(group));
  }
  return groups;
}

// Memory for two neighbours in a sequence of buffers: one begins where the memory begins, the next ends where it ends.
// Kept from step to step, because first touches of fresh memory cost more than the copies into it.
class Workspace {
 public:
  // For buffers of these sizes, one after the other. REQUIRES: nothing of it is in use.
  void reserve(const std::vector<int64_t>& bytes) {
    int64_t most = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      most = std::max(most, rounded(bytes[i]) + (i + 1 < bytes.size() ? rounded(bytes[i + 1]) : 0));
    }
    if (memory_.defined() && memory_.numel() >= most) return;
    memory_.reset();
    memory_ = at::empty({most}, at::kByte);
  }

  // The memory of the buffer at this place of the sequence, until that of the one after the next is taken.
  at::Tensor take(size_t place, int64_t bytes) const {
    return memory_.narrow(0, place % 2 == 0 ? 0 : memory_.numel() - rounded(bytes), bytes);
  }

 private:
  static int64_t rounded(int64_t bytes) { return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign; }
  at::Tensor memory_;
};

// A collective under way.
struct Transfer {
  size_t group = 0;
  at::Tensor buffer;
  at::Tensor sum;  // of a reduction: what becomes the slice's .grad
  comm::Pending pending;
};

}  // namespace

struct ShardedStep::State {
  State(const Mesh& mesh, Tensors list, const ShardedStepOptions& options);

  at::Tensor make_slice(const Group& group) const;
  void check_gradients(const Tensors& gradients) const;
  std::vector<size_t> groups_with_gradient(const Tensors& gradients) const;
  void pack(const Group& group, const Tensors& gradients, const at::Tensor& buffer) const;
  at::Tensor take_sum(size_t g);
  Transfer start_reduce(size_t g, size_t place, Tensors& gradients);
  void finish_reduce(Transfer& transfer) const;
  void reduce(Tensors gradients);
  Transfer start_gather(size_t g);
  void finish_gather(Transfer& transfer) const;
  void gather();

  int64_t numel(const Group& group) const { return group.layout.shard_numel * comm->size(); }
  int64_t staging_numel(const Group& group) const { return comm->staging_numel(group.layout.shard_numel); }
  int64_t reduce_bytes(const Group& group) const {
    return (numel(group) + staging_numel(group)) * static_cast<int64_t>(c10::elementSize(group.reduce));
  }
  int64_t gather_bytes(const Group& group) const {
    return numel(group) * static_cast<int64_t>(c10::elementSize(group.dtype));
  }

  World world;  // keeps the connection
  std::shared_ptr<comm::Comm> comm;
  Tensors tensors;
  std::vector<Group> groups;
  Tensors slices;  // one for each group
  Tensors sums;    // memory of the slices' gradients
  Workspace workspace;
};

ShardedStep::State::State(const Mesh& mesh, Tensors list, const ShardedStepOptions& options)
    : world(mesh.world()), tensors(std::move(list)) {
  const Backstage backstage;
  check_options(mesh, options);
  check_tensors(tensors);
  comm = world.connection->group(mesh.ranks("shard"));
  agree_on_list(tensors, options, *comm);
  groups = make_groups(tensors, options, comm->size());
  for (const Group& group : groups) slices.push_back(make_slice(group));
  sums.resize(groups.size());
}

// All ranks have the tensors, so each cuts its slice out of its own.
at::Tensor ShardedStep::State::make_slice(const Group& group) const {
  const int64_t numel = group.layout.shard_numel;
  const int64_t begin = comm->rank() * numel;
  at::Tensor slice = at::zeros({numel}, tensors.front().options().dtype(group.main));
  for (const Piece& piece : group.layout.pieces) {
    const int64_t from = std::max(piece.buffer_begin, begin);
    const int64_t to = std::min(piece.buffer_begin + piece.numel, begin + numel);
    if (from >= to) continue;
    const at::Tensor flat = tensors[group.members[piece.member]].detach().reshape({-1});
    slice.narrow(0, from - begin, to - from)
        .copy_(flat.narrow(0, piece.tensor_begin + from - piece.buffer_begin, to - from));
  }
  return slice.requires_grad_();
}

void ShardedStep::State::check_gradients(const Tensors& gradients) const {
  FSDP_CHECK(gradients.size() == tensors.size(), "[reduce_gradients] got ", gradients.size(), " gradients, expected ",
             tensors.size(), ": one for each tensor, undefined where there is none.");
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    if (!gradient.defined()) continue;
    const std::string where = c10::str("[reduce_gradients] tensor ", i);
    FSDP_CHECK(gradient.layout() == at::kStrided, where, ": got a gradient of layout ", gradient.layout(),
               ", expected a dense one. Call to_dense(), or make the embedding with sparse = false.");
    FSDP_CHECK(gradient.device().is_cpu(), where, ": got a gradient on ", gradient.device(), ", expected cpu.");
    FSDP_CHECK(is_supported(gradient.scalar_type()), where, ": got a gradient of dtype ", gradient.scalar_type(),
               ", expected Float, Double, Half or BFloat16.");
    FSDP_CHECK(gradient.sizes() == tensors[i].sizes(), where, ": got a gradient of sizes ", gradient.sizes(),
               ", expected ", tensors[i].sizes(), ".");
  }
  for (size_t g = 0; g < slices.size(); ++g) {
    const at::Tensor& sum = slices[g].grad();
    FSDP_CHECK(!sum.defined() || (sum.sizes() == slices[g].sizes() && sum.scalar_type() == slices[g].scalar_type() &&
                                  sum.is_contiguous()),
               "[reduce_gradients] slice ", g, ": its .grad has sizes ", sum.sizes(), " and dtype ", sum.scalar_type(),
               ", expected ", slices[g].sizes(), " and ", slices[g].scalar_type(),
               ". Leave it as it was made, or reset ", "it.");
  }
}

// COLLECTIVE. The groups of which some rank has a gradient.
std::vector<size_t> ShardedStep::State::groups_with_gradient(const Tensors& gradients) const {
  const at::Tensor counts = at::zeros({static_cast<int64_t>(groups.size())}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const size_t i : groups[g].members) count[g] += gradients[i].defined() ? 1 : 0;
  }
  comm->all_reduce_small(counts, {"agree on gradients", "", ""});
  std::vector<size_t> present;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (count[g] > 0) present.push_back(g);
  }
  return present;
}

// This rank's share of the mean, in the order of the group's buffer; zeros where there is no gradient.
void ShardedStep::State::pack(const Group& group, const Tensors& gradients, const at::Tensor& buffer) const {
  Tensors flat;
  for (const size_t i : group.members) {
    flat.push_back(gradients[i].defined() ? gradients[i].detach().reshape({-1}) : at::Tensor());
  }
  const auto clear = [&buffer](int64_t from, int64_t to) {
    if (to > from) buffer.narrow(0, from, to - from).zero_();
  };
  int64_t end = 0;
  for (const Piece& piece : group.layout.pieces) {
    clear(end, piece.buffer_begin);
    end = piece.buffer_begin + piece.numel;
    if (!flat[piece.member].defined()) {
      clear(piece.buffer_begin, end);
      continue;
    }
    kernels::pack_gradient(buffer.narrow(0, piece.buffer_begin, piece.numel),
                           flat[piece.member].narrow(0, piece.tensor_begin, piece.numel), 1.0 / comm->size(),
                           /*add=*/false);
  }
  clear(end, buffer.numel());
}

// Used again after a reset, unless the program kept it.
at::Tensor ShardedStep::State::take_sum(size_t g) {
  at::Tensor& sum = sums[g];
  if (!sum.defined() || sum.use_count() > 1 || sum.storage().use_count() > 1) sum = at::empty_like(slices[g]);
  return sum;
}

// Drops the gradients that it packed.
Transfer ShardedStep::State::start_reduce(size_t g, size_t place, Tensors& gradients) {
  const Group& group = groups[g];
  const TraceScope trace("start reduce", group.name);
  const at::Tensor memory = workspace.take(place, reduce_bytes(group)).view(group.reduce);
  Transfer transfer;
  transfer.group = g;
  transfer.buffer = memory.narrow(0, 0, numel(group));
  pack(group, gradients, transfer.buffer);
  for (const size_t i : group.members) gradients[i].reset();
  transfer.sum = slices[g].grad();
  const auto accumulate = transfer.sum.defined() ? comm::Accumulate::kAdd : comm::Accumulate::kOverwrite;
  if (!transfer.sum.defined()) transfer.sum = take_sum(g);
  transfer.pending =
      comm->reduce_scatter(transfer.buffer, transfer.sum, memory.narrow(0, numel(group), staging_numel(group)),
                           accumulate, {"reduce gradients", group.name, ""});
  return transfer;
}

void ShardedStep::State::finish_reduce(Transfer& transfer) const {
  const TraceScope trace("wait reduce", groups[transfer.group].name);
  transfer.pending.wait();
  slices[transfer.group].mutable_grad() = transfer.sum;
}

// One group travels while the next is packed.
void ShardedStep::State::reduce(Tensors gradients) {
  const std::vector<size_t> present = groups_with_gradient(gradients);
  std::vector<int64_t> bytes;
  for (const size_t g : present) bytes.push_back(reduce_bytes(groups[g]));
  workspace.reserve(bytes);
  Transfer in_flight;
  for (size_t place = 0; place < present.size(); ++place) {
    Transfer next = start_reduce(present[place], place, gradients);
    if (place > 0) finish_reduce(in_flight);
    in_flight = std::move(next);
  }
  if (!present.empty()) finish_reduce(in_flight);
}

Transfer ShardedStep::State::start_gather(size_t g) {
  const Group& group = groups[g];
  const TraceScope trace("start gather", group.name);
  Transfer transfer;
  transfer.group = g;
  transfer.buffer = workspace.take(g, gather_bytes(group)).view(group.dtype);
  const int64_t shard_numel = group.layout.shard_numel;
  const at::Tensor own = transfer.buffer.narrow(0, comm->rank() * shard_numel, shard_numel);
  own.copy_(slices[g].detach());
  transfer.pending = comm->all_gather(transfer.buffer, own, {"gather updates", group.name, ""});
  return transfer;
}

void ShardedStep::State::finish_gather(Transfer& transfer) const {
  const Group& group = groups[transfer.group];
  const TraceScope trace("wait gather", group.name);
  transfer.pending.wait();
  Tensors flat;
  for (const size_t i : group.members) {
    const at::Tensor tensor = tensors[i].detach();  // shares the version, which moves
    flat.push_back(tensor.is_contiguous() ? tensor.view({-1}) : at::empty({tensor.numel()}, tensor.options()));
  }
  for (const Piece& piece : group.layout.pieces) {
    flat[piece.member]
        .narrow(0, piece.tensor_begin, piece.numel)
        .copy_(transfer.buffer.narrow(0, piece.buffer_begin, piece.numel));
  }
  for (size_t k = 0; k < group.members.size(); ++k) {
    const at::Tensor tensor = tensors[group.members[k]].detach();
    if (!tensor.is_contiguous()) at::Tensor(tensor).copy_(flat[k].view(tensor.sizes()));
  }
}

// One group travels while the one before is unpacked.
void ShardedStep::State::gather() {
  std::vector<int64_t> bytes;
  for (const Group& group : groups) bytes.push_back(gather_bytes(group));
  workspace.reserve(bytes);
  Transfer in_flight = start_gather(0);
  for (size_t g = 0; g < groups.size(); ++g) {
    Transfer current = std::move(in_flight);
    in_flight = g + 1 < groups.size() ? start_gather(g + 1) : Transfer();
    finish_gather(current);
  }
}

ShardedStep::ShardedStep(const Mesh& mesh, std::vector<at::Tensor> tensors, ShardedStepOptions options)
    : state_(std::make_unique<State>(mesh, std::move(tensors), options)) {}
ShardedStep::~ShardedStep() = default;
ShardedStep::ShardedStep(ShardedStep&&) noexcept = default;
ShardedStep& ShardedStep::operator=(ShardedStep&&) noexcept = default;

const std::vector<at::Tensor>& ShardedStep::slices() const { return state_->slices; }
int64_t ShardedStep::num_groups() const { return static_cast<int64_t>(state_->groups.size()); }

void ShardedStep::reduce_gradients() {
  const Backstage backstage;
  Tensors gradients;
  for (const at::Tensor& tensor : state_->tensors) gradients.push_back(tensor.grad());
  state_->check_gradients(gradients);
  for (const at::Tensor& tensor : state_->tensors) {
    if (tensor.grad().defined()) tensor.mutable_grad().reset();
  }
  state_->reduce(std::move(gradients));
}

void ShardedStep::reduce_gradients(const std::vector<at::Tensor>& gradients) {
  const Backstage backstage;
  state_->check_gradients(gradients);
  state_->reduce(gradients);
}

at::Tensor ShardedStep::clip_grad_norm(double max_norm) {
  FSDP_CHECK(max_norm > 0, "[clip_grad_norm] max_norm: got ", max_norm, ", expected a number above 0.");
  const Backstage backstage;
  const at::Tensor sum = at::zeros({1}, at::kDouble);
  double* total = sum.mutable_data_ptr<double>();
  for (const at::Tensor& slice : state_->slices) {
    if (slice.grad().defined()) *total += kernels::sum_squares(slice.grad());
  }
  state_->comm->all_reduce_small(sum, {"gradient norm", "", ""});
  const auto norm = static_cast<float>(std::sqrt(*total));
  const float factor = std::min(1.0F, static_cast<float>(max_norm) / (norm + 1e-6F));
  if (factor < 1.0F || std::isnan(factor)) {
    for (const at::Tensor& slice : state_->slices) {
      if (slice.grad().defined()) slice.mutable_grad().mul_(factor);
    }
  }
  return at::scalar_tensor(norm, at::kFloat);
}

void ShardedStep::gather_updates() {
  const Backstage backstage;
  state_->gather();
}

int64_t ShardedStep::slice_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& slice : state_->slices) bytes += static_cast<int64_t>(slice.nbytes());
  for (const at::Tensor& sum : state_->sums) bytes += sum.defined() ? static_cast<int64_t>(sum.nbytes()) : 0;
  return bytes;
}

}  // namespace fsdp::functional
