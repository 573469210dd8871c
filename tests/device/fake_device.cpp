#include "tests/device/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/trace.h"
#include "tests/device/fake_recorder.h"

namespace fsdp::testing {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;

constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kNumDevices = 8;

thread_local DeviceIndex t_device = 0;
thread_local std::array<StreamId, kNumDevices> t_streams{};

// Ranges that are open, oldest first: one may end on another thread than it began.
std::mutex range_mutex;
std::vector<std::pair<uint64_t, std::string>> open_ranges;

std::string current_range() {
  const std::lock_guard lock(range_mutex);
  return open_ranges.empty() ? "" : open_ranges.back().second;
}

// ---- streams and events

struct FakeEvent {
  Clock recorded;
};

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : t_device; }

Stream stream_of(Device device, StreamId id) { return Stream(Stream::UNSAFE, {kFake, index_of(device)}, id); }

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kFake; }
  DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  Device getDevice() const override { return {kFake, t_device}; }
  Device exchangeDevice(Device device) const override { return {kFake, std::exchange(t_device, index_of(device))}; }
  void setDevice(Device device) const override { t_device = index_of(device); }
  void uncheckedSetDevice(Device device) const noexcept override { t_device = index_of(device); }

  Stream getStream(Device device) const override {
    return stream_of(device, t_streams.at(static_cast<size_t>(index_of(device))));
  }
  Stream getDefaultStream(Device device) const override { return stream_of(device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    static std::atomic<StreamId> next{1};
    return stream_of(device, next++);
  }
  Stream exchangeStream(Stream stream) const override {
    const auto index = static_cast<size_t>(int{stream.device_index()});
    return stream_of(stream.device(), std::exchange(t_streams.at(index), stream.id()));
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new FakeEvent;
    static_cast<FakeEvent*>(*event)->recorded = stream_clocks().now(key_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    stream_clocks().hold_back(key_of(stream), static_cast<FakeEvent*>(event)->recorded);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<FakeEvent*>(event); }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeEvent(void* event) const override {
    stream_clocks().host_waits(static_cast<FakeEvent*>(event)->recorded);
  }
  void synchronizeStream(const Stream& stream) const override {
    stream_clocks().host_waits(stream_clocks().now(key_of(stream)));
  }
  void synchronizeDevice(const DeviceIndex) const override { stream_clocks().host_waits({}); }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {
    stream_clocks().note_recorded_stream();
  }
};

StreamKey current_key(Device device) {
  return key_of(stream_of(device, t_streams.at(static_cast<size_t>(device.index()))));
}

// ---- memory

// As CUDA's caching allocator: what a stream's user returns goes to the next user of that stream, at once.
class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Device device{kFake, t_device};
    if (bytes == 0) return {nullptr, device};
    auto* block = new Block{this, nullptr, (bytes + 511) / 512 * 512, current_key(device)};
    {
      const std::lock_guard lock(mutex_);
      std::vector<void*>& idle = idle_[{block->stream, block->bytes}];
      if (!idle.empty()) {
        block->memory = idle.back();
        idle.pop_back();
      }
    }
    if (block->memory == nullptr) block->memory = std::aligned_alloc(512, block->bytes);
    std::memset(block->memory, 0xff, block->bytes);
    return {block->memory, block, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  struct Block {
    FakeAllocator* allocator;
    void* memory;
    size_t bytes;
    StreamKey stream;
  };

  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    std::memset(block->memory, 0xff, block->bytes);
    const std::lock_guard lock(block->allocator->mutex_);
    block->allocator->idle_[{block->stream, block->bytes}].push_back(block->memory);
  }

  std::mutex mutex_;
  std::map<std::pair<StreamKey, size_t>, std::vector<void*>> idle_;
};

FakeAllocator& allocator() {
  static auto* instance = new FakeAllocator;
  return *instance;
}

struct FakeHooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kNumDevices; }
  Device getDeviceFromPtr(void*) const override { return {kFake, t_device}; }
  // One for all: at::manual_seed() seeds every device's.
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static const auto* generator = new at::Generator(at::make_generator<at::CPUGeneratorImpl>());
    return *generator;
  }
};

// ---- operators

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kFake; }

Access access_of(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {};
  int64_t span = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) span += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<uintptr_t>(span) * tensor.element_size(), writes};
}

at::Tensor empty_fake(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, Device device) {
  const c10::DeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), keys, dtype);
}

// One operator: what it reads and writes of a fake device, and where its results go.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), first_(stack.size() - op.schema().arguments().size()) {}

  void run() {
    const auto& declared = op_.schema().arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      const auto* alias = declared[i].alias_info();
      originals_.push_back(stack_[first_ + i]);
      stack_[first_ + i] = replace(stack_[first_ + i], alias != nullptr && alias->isWrite());
    }
    TORCH_CHECK(device_, "no device in ", op_.operator_name());
    {
      const at::DisableRecordFunctionGuard silent;
      const at::AutoDispatchBelowADInplaceOrView below;
      op_.callBoxed(stack_);
    }
    const size_t num_returns = op_.schema().returns().size();
    for (size_t i = 0; i < num_returns; ++i) {
      c10::IValue& result = stack_[stack_.size() - num_returns + i];
      result = adopt(result, i);
    }
    stream_clocks().run(current_key(*device_), c10::toString(op_.operator_name()), current_range(), accesses_);
    note_work(
        *device_, [op = op_, inputs = originals_, made = made_] { run_again(op, inputs, made); }, made_);
  }

 private:
  // The same work with the same memory.
  static void run_again(const c10::OperatorHandle& op, torch::jit::Stack stack, const std::vector<at::Tensor>& made) {
    const at::DisableRecordFunctionGuard silent;
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
    auto into = made.begin();
    for (size_t i = 0; i < stack.size(); ++i) {
      if (op.schema().returns()[i].alias_info() != nullptr) continue;
      if (stack[i].isTensor() && stack[i].toTensor().defined()) (into++)->copy_(stack[i].toTensor());
      if (!stack[i].isTensorList()) continue;
      for (const at::Tensor& tensor : stack[i].toTensorVector()) (into++)->copy_(tensor);
    }
  }

  at::Tensor replace(const at::Tensor& tensor, bool writes) {
    if (!is_fake(tensor)) return tensor;
    device_ = tensor.device();
    note(access_of(tensor, writes));
    return on_cpu(tensor);
  }

  // What is both an input and the output is written.
  void note(const Access& access) {
    for (Access& known : accesses_) {
      if (known.begin != access.begin || known.end != access.end) continue;
      known.writes = known.writes || access.writes;
      return;
    }
    accesses_.push_back(access);
  }

  c10::IValue replace(const c10::IValue& value, bool writes) {
    if (value.isTensor()) return replace(value.toTensor(), writes);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor, writes));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(replace(*tensor, writes)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == kFake) {
      device_ = value.toDevice().has_index() ? value.toDevice() : Device(kFake, t_device);
      return Device(c10::kCPU);
    }
    return value;
  }

  c10::IValue adopt(const c10::IValue& result, size_t index) {
    if (result.isTensor()) return adopt(result.toTensor(), index);
    if (!result.isTensorList()) return result;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(adopt(tensor, index));
    return list;
  }

  at::Tensor adopt(const at::Tensor& result, size_t index) {
    if (!result.defined()) return result;
    const auto* alias = op_.schema().returns()[index].alias_info();
    if (alias != nullptr) return original_of(*alias);
    at::Tensor fake = empty_fake(result.sizes(), result.strides(), result.scalar_type(), *device_);
    on_cpu(fake).copy_(result);
    accesses_.push_back(access_of(fake, true));
    made_.push_back(fake);
    return fake;
  }

  // The argument that an operator in place, or with an output, returns.
  at::Tensor original_of(const c10::AliasInfo& alias) const {
    const auto& declared = op_.schema().arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      const auto* own = declared[i].alias_info();
      if (own != nullptr && own->isWrite() && own->beforeSets() == alias.beforeSets()) return originals_[i].toTensor();
    }
    TORCH_CHECK(false, "the fake device lacks the view ", op_.operator_name());
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t first_;
  std::vector<c10::IValue> originals_;
  std::vector<Access> accesses_;
  std::vector<at::Tensor> made_;
  std::optional<Device> device_;
};

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, *stack).run(); }

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  const Device place = device && device->has_index() ? *device : Device(kFake, t_device);
  return empty_fake(sizes, strides, dtype.value_or(at::kFloat), place);
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat>) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * std::max<int64_t>(sizes[dim], 1);
  return empty_strided(sizes, strides, dtype, layout, device, pinned);
}

at::Tensor make_view(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                     std::optional<int64_t> offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                         self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset.value_or(self.storage_offset()));
  return result;
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  const auto inferred = at::infer_size_dv(sizes, self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(strides, "view of a tensor whose strides do not allow it");
  return make_view(self, inferred, *strides, self.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return make_view(self, sizes, strides, self.storage_offset());
}

// A copy to the host waits for the stream, and so does one from it, whose memory is not pinned.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  const Device device = is_fake(self) ? self.device() : to.device();
  if (!is_fake(self) || !is_fake(to)) refuse_in_recording(device, "a copy between host and device");
  std::vector<Access> accesses;
  if (is_fake(self)) accesses.push_back(access_of(self, false));
  if (is_fake(to)) accesses.push_back(access_of(to, true));
  {
    const at::DisableRecordFunctionGuard silent;
    const at::AutoDispatchBelowADInplaceOrView below;
    on_cpu(to).copy_(on_cpu(self));
  }
  const StreamKey stream = current_key(device);
  stream_clocks().run(stream, "copy", current_range(), accesses);
  note_work(device, [self, to] { copy_from(self, to, false); }, {});
  if (!is_fake(self) || !is_fake(to)) stream_clocks().host_waits(stream_clocks().now(stream));
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  refuse_in_recording(self.device(), "item()");
  const StreamKey stream = current_key(self.device());
  stream_clocks().run(stream, "item", current_range(), {access_of(self, false)});
  stream_clocks().host_waits(stream_clocks().now(stream));
  return on_cpu(self).item();
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const size_t bytes = static_cast<size_t>(self.storage_offset() + numel) * self.element_size();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    storage->set_data_ptr_noswap(allocator().allocate(bytes));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

void record_stream(at::Tensor&, Stream) { stream_clocks().note_recorded_stream(); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &make_view);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize);
  m.impl("record_stream", &record_stream);
}

// Before the first backward, which starts a thread for each device that is known.
struct Registration {
  Registration() {
    c10::register_privateuse1_backend("fake");
    c10::impl::registerDeviceGuard(kFake, new FakeGuard);
    c10::SetAllocator(kFake, &allocator());
    at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  }
};
const Registration kRegistration;

}  // namespace

Device fake_device(int index) { return {kFake, static_cast<DeviceIndex>(index)}; }

StreamClocks& stream_clocks() {
  static auto* clocks = new StreamClocks;
  return *clocks;
}

StreamKey key_of(const Stream& stream) { return 1000 * stream.device_index() + stream.id(); }

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!is_fake(tensor)) return tensor;
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions().dtype(tensor.dtype()))
      .target_device(c10::kCPU)
      .make_tensor();
}

namespace {

uint64_t begin_range(const char* name, const std::string& unit) {
  static uint64_t last = 0;
  const std::lock_guard lock(range_mutex);
  open_ranges.emplace_back(++last, name + (" " + unit));
  return last;
}
void end_range(uint64_t range) {
  const std::lock_guard lock(range_mutex);
  std::erase_if(open_ranges, [&](const auto& item) { return item.first == range; });
}
constexpr RangeViewer kViewer{&begin_range, &end_range};

}  // namespace

ShownRanges::ShownRanges() { set_range_viewer(&kViewer); }
ShownRanges::~ShownRanges() { set_range_viewer(nullptr); }

}  // namespace fsdp::testing
