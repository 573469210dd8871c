#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// A State, part by part under the name it has in the checkpoint: "model", "optimizer", "optimizer.<name>", "random",
// and what registered itself.
class Sections {
 public:
  // Throws Error(kUsage), naming `operation`: no model, nothing of it sharded, a name that is taken.
  Sections(const State& state, const std::string& operation);
  Sections(const Sections&) = delete;
  Sections& operator=(const Sections&) = delete;

  struct Section {
    std::string name;
    Stateful* state;
  };
  const std::vector<Section>& list() const { return list_; }
  const World& world() const { return model_.owner->world(); }
  // As every entry into the library: throws what happened where nothing could be thrown, lets everything rest.
  void enter_library() const { model_.owner->on_library_entry(); }

 private:
  void own(const std::string& name, std::unique_ptr<Stateful> state);

  ModuleTensors model_;
  std::vector<std::unique_ptr<Stateful>> owned_;
  std::vector<Section> list_;
};

}  // namespace fsdp::checkpoint
