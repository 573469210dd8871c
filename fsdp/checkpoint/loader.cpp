#include "fsdp/checkpoint/loader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "fsdp/base/check.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/checkpoint/collected_state.h"
#include "io/base/error.h"

namespace fsdp::checkpoint {

// What one section sees of the checkpoint.
class SectionSource : public StateSource {
 public:
  SectionSource(Loader& loader, std::string section) : loader_(loader), section_(std::move(section)) {}

  bool has(const std::string& tensor) const override {
    const std::string name = full(tensor);
    return loader_.manifest_.find(name) != nullptr || !loader_.holders_of(name).empty();
  }
  void slice(TensorSlice slice) override {
    slice.name = full(slice.name);
    loader_.request_slice(std::move(slice));
  }
  bool replica(const std::string& name, const at::Tensor& tensor) override {
    return loader_.request_replica(full(name), tensor);
  }
  std::optional<std::string> value(const std::string& key) const override {
    const auto& values = loader_.manifest_.values;
    const auto section = values.find(section_);
    if (section == values.end() || !section->is_object()) return std::nullopt;
    const auto found = section->find(key);
    if (found == section->end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
  }
  void pass_over(const std::string& tensor) override { loader_.asked_.insert(full(tensor)); }
  void refuse(const std::string& difference) override { loader_.note(section_ + ": " + difference); }
  int saved_world_size() const override { return static_cast<int>(loader_.manifest_.world_size); }

 private:
  std::string full(const std::string& name) const { return section_ + "/" + name; }

  Loader& loader_;
  std::string section_;
};

namespace {

// Some check and copy while the disk works for the others.
constexpr int kThreads = 4;
constexpr uint64_t kBatchBytes = uint64_t{128} << 20;
constexpr size_t kMostDifferences = 12;  // told one by one

std::string shape_text(const std::vector<int64_t>& shape) { return c10::str(at::IntArrayRef(shape)); }

std::string section_of(const std::string& name) { return name.substr(0, name.find('/')); }

}  // namespace

Loader::Loader(const World& world, std::filesystem::path folder)
    : world_(world), folder_(std::move(folder)), manifest_(io::read_manifest(folder_)) {}

void Loader::note(const std::string& difference) { differences_.push_back(difference); }

void Loader::request_slice(TensorSlice slice) {
  asked_.insert(slice.name);
  const io::CheckpointTensor* stored = manifest_.find(slice.name);
  if (stored == nullptr) {
    note(slice.name + " is missing");
    return;
  }
  if (stored->shape != slice.shape) {
    note(slice.name + " has shape " + shape_text(stored->shape) + ", expected " + shape_text(slice.shape));
    return;
  }
  const at::ScalarType dtype = torch_dtype(stored->dtype);
  if (at::isFloatingType(dtype) != at::isFloatingType(slice.data.scalar_type())) {
    note(slice.name + " has dtype " + std::string(io::name(stored->dtype)) + ", expected " +
         c10::toString(slice.data.scalar_type()));
    return;
  }
  const bool direct = slice.data.device().is_cpu() && slice.data.scalar_type() == dtype && slice.data.is_contiguous();
  requests_.push_back({std::move(slice), {}});
  Request& request = requests_.back();
  if (!direct) request.staging = at::empty({request.slice.end - request.slice.begin}, dtype);
}

// Of the ranks that saved, those that had a tensor of that name for themselves.
std::vector<int64_t> Loader::holders_of(const std::string& name) const {
  std::vector<int64_t> holders;
  for (int64_t rank = 0; rank < manifest_.world_size; ++rank) {
    if (manifest_.find(name + "#" + std::to_string(rank)) != nullptr) holders.push_back(rank);
  }
  return holders;
}

bool Loader::request_replica(const std::string& name, const at::Tensor& tensor) {
  const bool common = manifest_.find(name) != nullptr;
  const std::vector<int64_t> holders = common ? std::vector<int64_t>() : holders_of(name);
  std::string stored = name;  // is missing, if nobody had it
  if (!holders.empty()) {
    const bool was_mine = std::find(holders.begin(), holders.end(), world_.rank) != holders.end();
    const int64_t holder = was_mine ? world_.rank : holders[static_cast<size_t>(world_.rank) % holders.size()];
    stored += "#" + std::to_string(holder);
  }
  // The tensor itself, not a flat view: it may have gaps.
  request_slice({stored, tensor.sizes().vec(), 0, tensor.numel(), tensor});
  return common;
}

std::set<std::string> Loader::not_asked_for(const Sections& sections) const {
  std::set<std::string> known, names;
  for (const auto& section : sections.list()) known.insert(section.name);
  for (const io::CheckpointTensor& tensor : manifest_.tensors) {
    const bool of_another_rank = tensor.name.find('#') != std::string::npos;
    const std::string section = section_of(tensor.name);
    if (known.count(section) == 0 || asked_.count(tensor.name) > 0 || of_another_rank || section == "random") continue;
    names.insert(tensor.name);
  }
  return names;
}

void Loader::request(const Sections& sections) {
  for (const auto& [name, state] : sections.list()) {
    SectionSource source(*this, name);
    state->load(source);
  }
}

void Loader::check_fit(const std::set<std::string>& surplus) {
  for (const std::string& name : surplus)
    note(name + " " + shape_text(manifest_.find(name)->shape) + " belongs to nothing here");
  if (differences_.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(differences_.size(), kMostDifferences); ++i)
    text += (i == 0 ? "" : "; ") + differences_[i];
  if (differences_.size() > kMostDifferences) text += "; ...";
  FSDP_THROW(kCheckpoint, "[checkpoint] ", io::in_quotes(folder_.string()), ": got a checkpoint of another model or ",
             "optimizer (", differences_.size(), " differences: ", text,
             "), expected one of this. Build the model and ", "optimizer that were saved, or name another checkpoint.");
}

void Loader::add_ranges(Request& request, std::vector<io::ReadRange>& ranges) const {
  const io::CheckpointTensor& stored = *manifest_.find(request.slice.name);
  const auto item = static_cast<int64_t>(io::item_size(stored.dtype));
  at::Tensor& target = request.staging.defined() ? request.staging : request.slice.data;
  // Of a leaf that needs a gradient too: the pointer is all that is wanted.
  auto* out = static_cast<char*>(target.data_ptr());
  for (const io::CheckpointPart& part : stored.parts) {
    const int64_t begin = std::max(part.begin, request.slice.begin);
    const int64_t end = std::min(part.end, request.slice.end);
    if (begin >= end) continue;
    ranges.push_back({part.file, part.offset + static_cast<uint64_t>((begin - part.begin) * item),
                      static_cast<uint64_t>((end - begin) * item), out + (begin - request.slice.begin) * item});
  }
}

// What goes to a disk goes there before the next batch comes.
void Loader::read_in_batches(const std::vector<io::ReadRange>& ranges) const {
  const bool is_streamed = std::any_of(requests_.begin(), requests_.end(),
                                       [](const Request& request) { return is_on_disk(request.slice.data); });
  for (size_t begin = 0; begin < ranges.size();) {
    size_t end = begin;
    uint64_t bytes = 0;
    while (end < ranges.size() && (!is_streamed || bytes < kBatchBytes)) bytes += ranges[end++].bytes;
    const std::vector<io::ReadRange> batch(ranges.begin() + static_cast<int64_t>(begin),
                                           ranges.begin() + static_cast<int64_t>(end));
    io::read_ranges(folder_, manifest_, batch, kThreads);
    for (const io::ReadRange& range : batch) write_behind(range.out, static_cast<int64_t>(range.bytes));
    begin = end;
  }
}

void Loader::read(const Sections& sections) {
  for (const auto& [name, state] : sections.list()) state->before_read();
  std::vector<io::ReadRange> ranges;
  for (Request& request : requests_) add_ranges(request, ranges);
  for (const io::ReadRange& range : ranges) bytes_ += static_cast<int64_t>(range.bytes);
  fault_point("resume.read");
  read_in_batches(ranges);
  for (Request& request : requests_) {
    if (!request.staging.defined()) continue;
    request.slice.data.copy_(request.staging.view(request.slice.data.sizes()));
    write_behind(request.slice.data);
    request.staging.reset();
  }
}

void Loader::finish(const Sections& sections) {
  for (const auto& [name, state] : sections.list()) state->loaded();
}

}  // namespace fsdp::checkpoint
