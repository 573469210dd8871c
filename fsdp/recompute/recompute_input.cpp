#include "fsdp/recompute/recompute_input.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/recompute_region.h"
#include "fsdp/recompute/region.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// A region whose output is emptied after the first run and filled by the second.
class RefilledRegion : public Region {
 public:
  using Region::Region;

  // Nothing where it has happened for the running backward.
  void fill(const variable_list& saved, const WeakStorage& emptied) {
    if (second_) return;
    SecondRun second = run_again(saved);
    FSDP_CHECK(second.outputs.size() == 1 && second.outputs.front().storage().nbytes() == bytes_,
               "[recompute_input] the second run of make did not return as much memory as the first, ", bytes_,
               " bytes. It must compute the same both times.");
    if (const auto storage = emptied.lock()) share(second.outputs.front(), *storage);
    second_ = std::move(second);
  }
  // Gives back the memory of the first run's output.
  void empty(c10::StorageImpl& storage) {
    bytes_ = storage.nbytes();
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.set_nbytes(0);
  }
  SecondRun take_second_run() {
    SecondRun second = std::move(*second_);
    second_.reset();
    return second;
  }

 private:
  // `storage` gets the memory of `filled`, and keeps it.
  static void share(const at::Tensor& filled, c10::StorageImpl& storage) {
    auto* owner = new c10::Storage(filled.storage());
    const auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
    storage.set_data_ptr_noswap(at::DataPtr(owner->mutable_data(), owner, release, filled.device()));
    storage.set_nbytes(filled.storage().nbytes());
  }

  size_t bytes_ = 0;
  std::optional<SecondRun> second_;
};

// inputs: with_anchor().
struct RecomputeInputFunction : torch::autograd::Function<RecomputeInputFunction> {
  static constexpr RunTwice kWhat{"recompute_input", "use(make(inputs))"};

  static at::Tensor forward(AutogradContext* context, at::TensorList inputs,
                            const c10::intrusive_ptr<RefilledRegion>& region) {
    context->save_for_backward(inputs.vec());
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    const RecomputeRegion first_run;
    variable_list made = region->run(inputs.slice(1).vec());
    FSDP_CHECK(made.size() == 1, "[recompute_input] make returned an undefined tensor.");
    return made.front();
  }

  static void fill(AutogradContext& context, const WeakStorage& emptied) {
    check_records_no_graph(kWhat);
    region_of(context)->fill(context.get_saved_variables(), emptied);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_asks_for_all(kWhat);
    fill(*context, WeakStorage(c10::intrusive_ptr<c10::StorageImpl>()));
    return run_backward(region_of(*context)->take_second_run(), gradients);
  }

 private:
  static c10::intrusive_ptr<RefilledRegion> region_of(AutogradContext& context) {
    return c10::static_intrusive_pointer_cast<RefilledRegion>(context.saved_data["region"].toCapsule());
  }
};

using RecomputeInputNode = torch::autograd::CppNode<RecomputeInputFunction>;

void check_owns_memory(const at::Tensor& made) {
  FSDP_CHECK(made.use_count() == 1 && made.storage().use_count() == 1,
             "[recompute_input] make returned memory that something else holds as well (a view, one of its inputs, or "
             "a tensor that it keeps), but that memory is given back and filled again. Return a tensor of its own, for "
             "instance with .clone().");
}

}  // namespace

std::vector<at::Tensor> recompute_input(const MakeTensor& make, const std::vector<at::Tensor>& inputs,
                                        const UseTensor& use) {
  FSDP_CHECK(make != nullptr && use != nullptr, "[recompute_input] got an empty function.");
  if (!at::GradMode::is_enabled()) return use(make(inputs));
  const variable_list all = with_anchor(inputs);
  const TensorListFunction as_list = [make](const std::vector<at::Tensor>& list) { return variable_list{make(list)}; };
  const auto region = c10::make_intrusive<RefilledRegion>(as_list, inputs);
  const at::Tensor made = RecomputeInputFunction::apply(at::TensorList(all), region);
  check_owns_memory(made);
  const variable_list outputs = use(made);
  const auto& function = made.grad_fn();  // its pointer's kind differs between versions of LibTorch
  auto* node = dynamic_cast<RecomputeInputNode*>(function.get());
  FSDP_ASSERT(node != nullptr, "another function made what recompute_input made");
  const WeakStorage emptied = made.storage().getWeakStorageImpl();
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    FSDP_CHECK(!output.is_alias_of(made),
               "[recompute_input] use returned memory of the tensor that it got, which is given back.");
    if (!output.requires_grad()) continue;
    output.register_hook(
        [function, node, emptied](const at::Tensor&) { RecomputeInputFunction::fill(node->ctx_, emptied); });
  }
  region->empty(*made.storage().unsafeGetStorageImpl());
  return outputs;
}

}  // namespace fsdp
