#include "fsdp/checkpoint/state/module_state.h"

#include <ATen/ATen.h>

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/state/whole_range.h"

namespace fsdp::checkpoint {
namespace {

class ModuleState : public Stateful {
 public:
  ModuleState(const ModuleTensors& module, std::function<bool(const std::string&)> keeps_name)
      : module_(module), keeps_(std::move(keeps_name)) {
    for (const ModuleTensor& tensor : module_.tensors) {
      FSDP_CHECK(keeps(tensor) || !tensor.tensor->requires_grad(), "[checkpoint] state.keeps: got no for '",
                 tensor.name,
                 "', which trains, expected yes: its training would be lost. Freeze it before it is "
                 "sharded, or keep it.");
    }
  }

  void save(StateSink& sink) override {
    for (const ModuleTensor& tensor : module_.tensors) {
      if (!keeps(tensor)) continue;
      if (tensor.member) {
        sink.slice(WholeRange(tensor).to_save(tensor.name, leaf_of(tensor)));
      } else {
        sink.replica(tensor.name, tensor.saved());
      }
    }
  }

  void load(StateSource& source) override {
    read_.clear();
    for (const ModuleTensor& tensor : module_.tensors) {
      if (!keeps(tensor)) {
        source.pass_over(tensor.name);
      } else if (tensor.member) {
        const WholeRange range(tensor);
        const TensorSlice slice = range.to_load(tensor.name, leaf_of(tensor));
        if (range.is_exchanged()) read_.push_back({&tensor, slice});
        source.slice(slice);
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

  void loaded() override {
    for (const auto& [tensor, slice] : read_) WholeRange(*tensor).take(slice, leaf_of(*tensor));
    read_.clear();
  }

 private:
  static at::Tensor leaf_of(const ModuleTensor& tensor) {
    return tensor.member->group->leaf(tensor.member->index).detach().view(-1);
  }

  bool keeps(const ModuleTensor& tensor) const { return !keeps_ || keeps_(tensor.name); }

  const ModuleTensors& module_;
  std::function<bool(const std::string&)> keeps_;
  std::vector<std::pair<const ModuleTensor*, TensorSlice>> read_;  // what ranks of a cut exchange then
};

}  // namespace

ModuleTensors tensors_of(const ModelRef& model, const std::string& operation) {
  FSDP_CHECK(model.module != nullptr || model.script != nullptr, "[", operation,
             "] state.model: got none, expected a sharded module.");
  return model.module != nullptr ? fsdp::tensors_of(*model.module, operation)
                                 : fsdp::tensors_of(*model.script, operation);
}

std::unique_ptr<Stateful> make_module_state(const ModuleTensors& tensors,
                                            const std::function<bool(const std::string&)>& keeps) {
  return std::make_unique<ModuleState>(tensors, keeps);
}

}  // namespace fsdp::checkpoint
