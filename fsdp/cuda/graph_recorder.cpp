#include "fsdp/cuda/graph_recorder.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace fsdp::cuda {
namespace {

class Graph : public RecordedWork {
 public:
  void record(c10::MempoolId_t pool, const std::function<void()>& work) {
    // Other threads go on talking to the driver: communication, watchdogs.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      end_quietly();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  // A capture that went wrong cannot be ended without another error, which says less than the first.
  void end_quietly() noexcept {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
    }
  }

  at::cuda::CUDAGraph graph_;
};

class GraphRecorder : public WorkRecorder {
 public:
  explicit GraphRecorder(c10::Device device)
      : pool_(at::cuda::graph_pool_handle()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard device(stream_.device());
    at::cuda::CUDAEvent before;
    before.record(c10::cuda::getCurrentCUDAStream());
    before.block(stream_);
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    auto graph = std::make_unique<Graph>();
    graph->record(pool_, work);
    return graph;
  }

 private:
  c10::MempoolId_t pool_;
  c10::cuda::CUDAStream stream_;  // autograd runs a backward on the stream of its forward
};

}  // namespace

std::unique_ptr<WorkRecorder> make_graph_recorder(c10::Device device) {
  return std::make_unique<GraphRecorder>(device);
}

}  // namespace fsdp::cuda
