#include "fsdp/pipeline/naming.h"

#include <torch/nn/module.h>

#include <charconv>
#include <map>
#include <unordered_set>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/group/registry.h"

namespace fsdp::pipeline {
namespace {

// Sees each tensor under its first name only, as checkpoints do.
class Names {
 public:
  explicit Names(const Naming& naming) : naming_(naming) {}

  // Whether the tensor is new.
  bool add(const std::string& own, const at::Tensor& tensor) {
    if (!tensor.defined() || !seen_.insert(tensor.unsafeGetTensorImpl()).second) return false;
    last = naming_(own);
    const auto [other, is_new] = owners_.try_emplace(last, own);
    FSDP_CHECK(is_new, "[pipeline] '", other->second, "' and '", own, "' of a stage: got the name '", last,
               "' for both, expected one for each. Use one tensor in both places, or give other names.");
    registry::set_whole_name(tensor, last);
    return true;
  }

  std::string last;

 private:
  const Naming& naming_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::map<std::string, std::string> owners_;
};

}  // namespace

Naming prefixed(std::string prefix) {
  return [prefix = std::move(prefix)](const std::string& own) { return prefix + own; };
}

Naming numbered_from(std::string list, int64_t first) {
  return [list = std::move(list), first](const std::string& own) {
    if (own.rfind(list, 0) != 0) return own;
    int64_t number = 0;
    const char* const end = own.data() + own.size();
    const auto [rest, error] = std::from_chars(own.data() + list.size(), end, number);
    return error == std::errc() ? list + std::to_string(first + number) + std::string(rest, end) : own;
  };
}

std::vector<std::string> name_tensors(const torch::nn::Module& module, const Naming& naming) {
  if (!naming) return {};
  Names names(naming);
  std::vector<std::string> of_parameters;
  for (const auto& item : module.named_parameters()) {
    if (names.add(item.key(), item.value())) of_parameters.push_back(names.last);
  }
  for (const auto& item : module.named_buffers()) names.add(item.key(), item.value());
  return of_parameters;
}

}  // namespace fsdp::pipeline
