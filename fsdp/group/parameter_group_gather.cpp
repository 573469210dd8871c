// What a group does from the first wish for its gathered weights to their release.
#include <ATen/ATen.h>

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/buffer/disk_window.h"
#include "fsdp/group/parameter_group.h"

namespace fsdp {

int64_t ParameterGroup::start_unshard(const std::string& cause) {
  if (current() || weight_phase() == WeightPhase::kUnsharding) return 0;
  const TraceScope trace("unshard", unit_name_);
  unsharded_.allow_access();
  const int64_t revision = main_weight_revision();
  if (residence_ == Residence::kShared) {
    if (shared_memory_) unsharded_.exchange(std::exchange(shared_memory_, c10::DataPtr()));
    refresh_model_weight();
    publish_model_weight();
    weight_phase_.change_to(WeightPhase::kUnsharding);
    unsharded_revision_ = revision;
    refuse_access_unless_current();
    return 0;
  }
  const bool from_forward_group = forward_shard_.resident() && forward_revision_ == revision;
  if (!from_forward_group) {
    forget_forward_shard();
    refresh_model_weight();
  }
  const bool is_fresh = !unsharded_.resident();
  if (is_fresh) unsharded_.reallocate(*allocator_);
  weight_phase_.change_to(WeightPhase::kUnsharding);
  unsharded_revision_ = revision;
  const at::Tensor source = gather_source();
  if (!source.defined()) {
    refuse_access_unless_current();
    return 0;
  }
  int64_t bytes = 0;
  comm::Job job =
      from_forward_group ? gather_from_forward_group(cause, &bytes) : gather_from_shards(source, cause, &bytes);
  job.after = points_before_gather(is_fresh, from_forward_group, revision);
  gather_ = GroupLinks::post(links_.gather_lane, std::move(job));
  refuse_access_unless_current();  // the gather writes through a storage of its own
  return bytes;
}

// [Note: What a gather waits for] On a device: that its memory is free, which was so when it was released, and that
// what it reads is written, which was so when the forward began, or at the first gather after the write. Not for what
// was computed since: a gather that is issued behind the computation of another unit overlaps it all the same.
std::vector<StreamPoint> ParameterGroup::points_before_gather(bool is_fresh, bool from_forward_group,
                                                              int64_t revision) {
  const c10::Device device = unsharded_.local().device();
  if (device.is_cpu()) return {};
  // Weights in memory that are brought up to date may still be read by what was computed so far.
  const StreamPoint writable_from = is_fresh ? unsharded_.ready() : StreamPoint::now(device);
  if (from_forward_group) return {writable_from, forward_shard_written_};
  if (source_revision_ != revision || !source_written_.defined()) {
    source_written_ = StreamPoint::now(device);
    source_revision_ = revision;
  }
  return {writable_from, source_written_};
}

void ParameterGroup::note_written(const StreamPoint& here) {
  const int64_t revision = main_weight_revision();
  if (source_revision_ == revision) return;
  source_written_ = here;
  source_revision_ = revision;
}

comm::Job ParameterGroup::gather_from_forward_group(const std::string& cause, int64_t* bytes) {
  *bytes = received_bytes(unsharded_.bytes(), *links_.forward);
  const comm::CallLabel label = label_of("gather from the forward group", cause);
  return comm::Job("gather", unit_name_, unsharded_.all_gather_from(forward_shard_.tensor(), links_.forward, label));
}

comm::Job ParameterGroup::gather_from_shards(const at::Tensor& source, const std::string& cause, int64_t* bytes) {
  const int64_t whole_bytes = fp8_wire_ ? layout_->total_numel() : unsharded_.bytes();
  *bytes = copies_whole_ ? whole_bytes : received_bytes(whole_bytes, *links_.shard);
  const comm::CallLabel label = label_of("gather", cause);
  if (!over_replicas() || replica_revision_ == model_revision_) {
    return disk_ ? gather_from_disk(source, label) : gather_job(source, label);
  }
  // Every replica wrote its part of this shard group's weights; all of them come before the gather that they are for.
  *bytes += received_bytes(model_weight_.bytes(), *links_.replicate);
  replica_revision_ = model_revision_;
  read_ahead(source);
  const at::Tensor whole = writable(model_weight_.local());
  comm::Job job = gather_job(whole, label);
  job.next.push_back(std::exchange(
      job.first,
      [whole, own = writable(own_model_weight()), replicate = links_.replicate_gather,
       first = label_of("gather over replicas", cause)] { return replicate->all_gather(whole, own, first); }));
  return job;
}

// With no other rank to meet, the disk gets the time until the weights are waited for: a job begins on the thread that
// posts it.
comm::Job ParameterGroup::gather_from_disk(const at::Tensor& source, const comm::CallLabel& label) {
  const auto spot = find_on_disk(source);
  if (spot && spot->disk->queue() != nullptr && !fp8_wire_) {
    const at::Tensor own = writable(unsharded_.own_slice());
    const auto read = std::make_shared<DiskRead>(*spot, own.data_ptr());
    comm::Job job("gather", unit_name_, [] { return comm::Pending(); });
    job.next.emplace_back([read, gather = unsharded_.all_gather_from(own, links_.shard, label)] {
      read->wait();
      return gather();
    });
    return job;
  }
  read_ahead(source);
  comm::Job job = gather_job(source, label);
  if (links_.shard->size() == 1)
    job.next.insert(job.next.begin(), std::exchange(job.first, [] { return comm::Pending(); }));
  return job;
}

comm::Job ParameterGroup::gather_job(const at::Tensor& source, const comm::CallLabel& label) {
  if (!fp8_wire_) return {"gather", unit_name_, unsharded_.all_gather_from(source, links_.shard, label)};
  const at::Tensor arriving = arriving_.take(*allocator_, layout_->total_numel(), source.options());
  comm::Job job("gather", unit_name_, [arriving, shard = writable(source), comm = links_.shard, label] {
    return comm->all_gather(arriving, shard, label);
  });
  // Who computes finds them decoded; the buffer itself refuses access meanwhile.
  job.finish = fp8_wire_->decoder(arriving, 0, unsharded_.alias().local());
  return job;
}

void ParameterGroup::finish_unshard() {
  if (weight_phase() != WeightPhase::kUnsharding) return;
  const TraceScope trace("wait gather", unit_name_);
  weight_phase_.change_to(WeightPhase::kUnsharded);
  try {
    gather_.wait();
    if (host_weights_) host_weights_->await_owners(label_of("wait for owners", ""));
    arriving_.release(*allocator_);
  } catch (...) {
    arriving_.release(*allocator_);
    unsharded_revision_ = kNoRevision;
    replica_revision_ = kNoRevision;
    throw;
  }
  forget_forward_shard();
  refuse_access_unless_current();
  const bool is_mapped = disk_ && (disk_->queue() == nullptr || over_replicas() || fp8_wire_);
  if (is_mapped && residence_ == Residence::kReleased) write_behind(gather_source());
}

void ParameterGroup::reshard(const StreamPoint& end) {
  if (residence_ == Residence::kShared && weight_phase() != WeightPhase::kResting) {
    finish_unshard();
    weight_phase_.change_to(WeightPhase::kResting);
    refuse_access_unless_current();
  }
  if (residence_ == Residence::kPersistent) finish_unshard();  // of a gather that nobody waited for
  if (residence_ != Residence::kReleased || weight_phase() == WeightPhase::kResting) return;
  finish_unshard();
  const TraceScope trace("reshard", unit_name_);
  unsharded_.release(*allocator_, end);
  weight_phase_.change_to(WeightPhase::kResting);
  refuse_access_unless_current();
}

void ParameterGroup::reshard_to_forward_group(const StreamPoint& end) {
  StreamPoint last_read = end;
  if (residence_ == Residence::kReleased && links_.forward != nullptr && current()) {
    const int64_t numel = unsharded_.local().numel() / links_.forward->size();
    const at::Tensor& kept = forward_shard_.take(*allocator_, numel, unsharded_.local().options());
    at::Tensor(kept).copy_(writable(unsharded_.local()).narrow(0, links_.forward->rank() * numel, numel));
    forward_shard_written_ = StreamPoint::now(kept.device());
    forward_revision_ = unsharded_revision_;
    last_read = forward_shard_written_;
  }
  reshard(last_read);
}

int64_t ParameterGroup::forget_forward_shard() {
  const int64_t bytes = forward_shard_.bytes();
  forward_shard_.release(*allocator_);
  return bytes;
}

// ---- as fp8 numbers

// Where this rank has everything there is nothing to send.
void ParameterGroup::make_fp8_wire(const GroupSpec& spec, at::ScalarType param_dtype) {
  if (residence_ == Residence::kPersistent && whole_main_weight()) return;
  std::vector<Fp8Wire::Weight> weights;
  for (size_t i = 0; i < num_parameters(); ++i) {
    const auto recipe = wire_recipe_of(spec.parameters[i], names_[i], param_dtype);
    FSDP_ASSERT(recipe && sizes_[i].size() == 2, "fp8 gather of something else than a linear layer's weight");
    weights.push_back({layout_->offsets[i], sizes_[i][0], sizes_[i][1], *recipe});
    fix_recipe_of(spec.parameters[i]);
  }
  fp8_wire_ = std::make_shared<Fp8Wire>(weights, param_dtype);
  fp8_agreement_ = spec.fp8_agreement;
  model_weight_ = DBuffer(layout_, Placement::kShard, links_.shard->rank(),
                          unsharded_.local().options().dtype(at::kByte), Backing::kOwned);
  const auto agree = [this](at::Tensor codes) {
    if (fp8_revision_ == main_weight_revision()) return;
    fp8_revision_ = main_weight_revision();
    fp8_wire_->set_codes(std::move(codes));
  };
  fp8_agreement_->add(
      {this, main_weight_comms(), [this] { return fp8_wire_->codes_of(main_weight_.local(), main_begin()); }, agree});
}

void ParameterGroup::refresh_fp8_weight(int64_t revision) {
  if (fp8_revision_ != revision) fp8_agreement_->run(this);
  fp8_wire_->encode(main_weight_.local(), main_begin(), own_model_weight());
}

}  // namespace fsdp
