// The rules of a lane on a device: what waits for what, and that the host never does.
#include "fsdp/comm/stream_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/base/error.h"
#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/comm/connection.h"
#include "tests/device/fake_device.h"

namespace fsdp::comm::stream_lane_test {
namespace {

using testing::fake_device;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::stream_clocks;
using testing::StreamClocks;
using testing::StreamTask;

// A world of one, whose transports copy on the current stream.
class Lanes : public ::testing::Test {
 protected:
  void SetUp() override { stream_clocks().clear(); }

  at::Tensor zeros(int64_t numel) { return torch::zeros({numel}, at::TensorOptions(fake_device())); }

  Job copy_job(const at::Tensor& output, const at::Tensor& input) {
    return Job("gather", "a", [=, comm = world_.connection->world()] {
      return comm->all_gather(output, input, {"gather", "a", ""});
    });
  }

  // In place, operators reach a device by the form that is told where its result goes.
  static std::vector<StreamTask> named(const std::string& name) {
    std::vector<StreamTask> found;
    for (const StreamTask& task : stream_clocks().tasks()) {
      if (task.name == name) found.push_back(task);
    }
    return found;
  }

  World world_ = connect_alone();
  StreamLane lane_{fake_device(), StreamPriority::kHigh};
};

TEST_F(Lanes, AJobComesAfterWhatWasPostedAndItsEndBeforeWhatFollows) {
  const at::Tensor input = zeros(8), output = zeros(8);
  input.add_(1);
  Completion completion = lane_.post(copy_job(output, input));
  const at::Tensor other = zeros(8);
  other.mul_(2);  // overlaps
  completion.wait();
  output.exp_();
  const StreamTask add = named("aten::add.out").at(0), copy = named("copy").at(0);
  const StreamTask mul = named("aten::mul.out").at(0), exp = named("aten::exp.out").at(0);
  EXPECT_EQ(copy.stream, testing::key_of(lane_.stream()));
  EXPECT_EQ(exp.stream, add.stream);
  EXPECT_TRUE(StreamClocks::comes_after(copy, add));
  EXPECT_FALSE(StreamClocks::comes_after(copy, mul));
  EXPECT_FALSE(StreamClocks::comes_after(mul, copy));
  EXPECT_TRUE(StreamClocks::comes_after(exp, copy));
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
  EXPECT_EQ(stream_clocks().num_host_waits(), 0);
  EXPECT_EQ(stream_clocks().num_recorded_streams(), 0);
}

TEST_F(Lanes, AJobWithPointsWaitsForNothingElse) {
  const at::Tensor input = zeros(8), output = zeros(8);
  const StreamPoint ready = StreamPoint::now(fake_device());
  zeros(8).mul_(2);
  Job job = copy_job(output, input);
  job.after = {StreamPoint(), ready};
  lane_.post(std::move(job)).wait();
  EXPECT_FALSE(StreamClocks::comes_after(named("copy").at(0), named("aten::mul.out").at(0)));
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
}

// What these tests rest on: an order that is missing is found.
TEST_F(Lanes, AnOrderThatIsMissingIsFound) {
  const at::Tensor input = zeros(8), output = zeros(8);
  const StreamPoint too_early = StreamPoint::now(fake_device());
  input.add_(1);
  Job job = copy_job(output, input);
  job.after = {too_early};
  Completion completion = lane_.post(std::move(job));
  EXPECT_THAT(stream_clocks().races(), SizeIs(1));
  output.add_(1);  // before wait()
  EXPECT_THAT(stream_clocks().races(), SizeIs(2));
  completion.wait();
}

TEST_F(Lanes, StagesAndTheEndRunOnTheLanesStream) {
  const at::Tensor input = zeros(8), first = zeros(8), second = zeros(8);
  Job job = copy_job(first, input);
  job.next.push_back(copy_job(second, first).first);
  job.finish = [second] { second.mul_(3); };
  lane_.post(std::move(job)).wait();
  EXPECT_EQ(named("aten::mul.out").at(0).stream, testing::key_of(lane_.stream()));
  EXPECT_EQ(current_stream(fake_device()).id(), 0);
  first.add_(second);
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
}

// The memory of a job that nobody waited for goes back to the stream that posted it, which then waits.
TEST_F(Lanes, AnAbandonedJobKeepsItsMemoryUntilItIsOver) {
  at::Tensor output = zeros(1024);
  Completion completion = lane_.post(copy_job(output, zeros(1024)));
  completion.abandon();
  EXPECT_FALSE(completion.in_flight());
  const void* memory = output.const_data_ptr();
  output.reset();
  const at::Tensor next = zeros(1024);
  EXPECT_EQ(next.const_data_ptr(), memory);
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
}

TEST_F(Lanes, AFailureWaitsForWhatWasEnqueuedBefore) {
  const at::Tensor output = zeros(8);
  Job job = copy_job(output, zeros(8));
  job.next.emplace_back([]() -> Pending { throw Error(ErrorCode::kCommunication, "lost"); });
  EXPECT_THROW(lane_.post(std::move(job)), Error);
  EXPECT_EQ(current_stream(fake_device()).id(), 0);
  output.add_(1);
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
}

TEST(StreamPoint, IsEmptyOnTheCpu) {
  EXPECT_FALSE(StreamPoint::now(c10::kCPU).defined());
  StreamPoint().hold_back_current();
}

// Memory comes back while it is still read. Whoever takes it waits for that, and for nothing later.
TEST(DeviceMemory, IsReadyWhereItWasReleased) {
  for (const AllocatorOptions& options : {AllocatorOptions::rotary(), AllocatorOptions::storage_resize(),
                                          AllocatorOptions::fixed_pool(1 << 16), AllocatorOptions::traced()}) {
    SCOPED_TRACE(static_cast<int>(options.kind));
    const auto memory = make_buffer_allocator(options, fake_device());
    StreamLane lane(fake_device(), StreamPriority::kHigh);
    const auto use = [](const c10::DataPtr& piece, auto task) {
      const c10::TensorOptions where(fake_device());
      task(at::for_blob(piece.get(), {256}).options(where).target_device(fake_device()).make_tensor());
    };
    for (int step = 0; step < 3; ++step) {
      c10::DataPtr piece = memory->take(1024);
      use(piece, [](at::Tensor tensor) { tensor.fill_(1); });
      memory->give_back(std::move(piece), 1024);
      memory->end_of_step();
    }
    c10::DataPtr piece = memory->take(1024);
    use(piece, [](at::Tensor tensor) { tensor.add_(1); });
    memory->give_back(std::move(piece), 1024);
    stream_clocks().clear();
    const c10::DataPtr again = memory->take(1024);
    const StreamPoint ready = memory->ready();
    ASSERT_TRUE(ready.defined());
    ready.hold_back(lane.stream());
    {
      const c10::StreamGuard guard(lane.stream());
      use(again, [](at::Tensor tensor) { tensor.fill_(2); });
    }
    EXPECT_THAT(stream_clocks().races(), IsEmpty());
    EXPECT_EQ(stream_clocks().num_host_waits(), 0);
    StreamPoint::end_of(lane.stream()).hold_back_current();
  }
}

TEST(DeviceMemory, DirectIsForTheCpu) {
  EXPECT_THROW(make_buffer_allocator(AllocatorOptions::direct(), fake_device()), Error);
}

}  // namespace
}  // namespace fsdp::comm::stream_lane_test
