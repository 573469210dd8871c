#include "fsdp/checkpoint/state/module_state.h"

#include <ATen/ATen.h>

#include "fsdp/base/check.h"

namespace fsdp::checkpoint {
namespace {

class ModuleState : public Stateful {
 public:
  explicit ModuleState(const ModuleTensors& module) : module_(module) {}

  void save(StateSink& sink) override {
    for (const ModuleTensor& tensor : module_.tensors) {
      if (tensor.member) {
        sink.slice(slice_of(tensor));
      } else {
        sink.replica(tensor.name, tensor.saved());
      }
    }
  }

  void load(StateSource& source) override {
    for (const ModuleTensor& tensor : module_.tensors) {
      if (tensor.member) {
        source.slice(slice_of(tensor));
      } else {
        source.replica(tensor.name, *tensor.tensor);
      }
    }
  }

  // The reader writes through pointers, which neither waits for other ranks that still read the old weights nor tells
  // anybody that there are new ones.
  void before_read() override {
    for (const auto& group : module_.groups) {
      group->begin_main_weight_write();
      group->note_raw_main_weight_write();
    }
  }

 private:
  static TensorSlice slice_of(const ModuleTensor& tensor) {
    const layout::Range range = tensor.member->group->main_slice(tensor.member->index);
    return {tensor.name, tensor.sizes(), range.begin, range.end,
            tensor.member->group->leaf(tensor.member->index).detach().view(-1)};
  }

  const ModuleTensors& module_;
};

}  // namespace

ModuleTensors tensors_of(const ModelRef& model, const std::string& operation) {
  FSDP_CHECK(model.module != nullptr || model.script != nullptr, "[", operation,
             "] state.model: got none, expected a sharded module.");
  return model.module != nullptr ? fsdp::tensors_of(*model.module, operation)
                                 : fsdp::tensors_of(*model.script, operation);
}

std::unique_ptr<Stateful> make_module_state(const ModuleTensors& tensors) {
  return std::make_unique<ModuleState>(tensors);
}

}  // namespace fsdp::checkpoint
