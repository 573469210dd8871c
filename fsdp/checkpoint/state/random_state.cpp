#include "fsdp/checkpoint/state/random_state.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <mutex>
#include <string_view>
#include <vector>

#include "io/base/hash.h"

namespace fsdp::checkpoint {
namespace {

struct NamedGenerator {
  std::string name;
  at::Generator generator;
};

std::vector<NamedGenerator> generators() {
  std::vector<NamedGenerator> list{{"cpu", at::globalContext().defaultGenerator(at::kCPU)}};
  if (at::getNumGPUs() > 0) {
    list.push_back({"cuda", at::globalContext().defaultGenerator(at::Device(at::kCUDA))});
  }
  return list;
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

class RandomState : public Stateful {
 public:
  explicit RandomState(const World& world) : world_(world) {}

  void save(StateSink& sink) override {
    for (const NamedGenerator& item : generators()) sink.replica(item.name, state_of(item.generator));
  }

  void load(StateSource& source) override {
    read_.clear();
    for (const NamedGenerator& item : generators()) {
      // One that was not there when the checkpoint was made keeps its stream.
      if (!source.has(item.name)) continue;
      at::Tensor state = state_of(item.generator);
      const bool common = source.replica(item.name, state);
      read_.push_back({item, state, common || source.saved_world_size() == world_.size});
    }
  }

  void loaded() override {
    for (Read& read : read_) {
      const std::lock_guard lock(read.item.generator.mutex());
      if (read.exact) {
        read.item.generator.set_state(read.state);
      } else {
        const std::string_view bytes(static_cast<const char*>(read.state.const_data_ptr()), read.state.nbytes());
        read.item.generator.set_current_seed(io::hash_bytes(bytes) + static_cast<uint64_t>(world_.rank));
      }
    }
    read_.clear();
  }

 private:
  struct Read {
    NamedGenerator item;
    at::Tensor state;
    bool exact;
  };
  const World& world_;
  std::vector<Read> read_;
};

}  // namespace

std::unique_ptr<Stateful> make_random_state(const World& world) { return std::make_unique<RandomState>(world); }

}  // namespace fsdp::checkpoint
