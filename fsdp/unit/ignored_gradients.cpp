#include "fsdp/unit/ignored_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"

namespace fsdp {
namespace {

// Low precision is added up in fp32.
at::ScalarType sum_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All values, then for each tensor whether this rank has a gradient.
at::Tensor flatten(const std::vector<at::Tensor>& parameters, const at::TensorOptions& options) {
  std::vector<at::Tensor> pieces;
  std::vector<at::Tensor> flags;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    FSDP_CHECK(!gradient.defined() || gradient.layout() == at::kStrided, "[backward] gradient of an ignored parameter ",
               "of shape ", parameter.sizes(),
               ": got a sparse tensor, expected a dense one (IgnoredGradients::kMean).");
    pieces.push_back(gradient.defined() ? gradient.detach().reshape({-1}).to(options)
                                        : at::zeros({parameter.numel()}, options));
    flags.push_back(at::full({1}, gradient.defined() ? 1 : 0, options));
  }
  pieces.insert(pieces.end(), flags.begin(), flags.end());
  return at::cat(pieces);
}

// Every rank adds up one part of it, so that no rank needs memory for those of all.
void add_up(comm::Comm& comm, at::Tensor& flat) {
  const int64_t part = (flat.numel() + comm.size() - 1) / comm.size();
  at::Tensor padded = at::zeros({part * comm.size()}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  const at::Tensor mine = padded.narrow(0, comm.rank() * part, part).clone();
  const int64_t staging = comm.staging_numel(part, flat.device());
  comm.reduce_scatter(padded, mine, staging > 0 ? at::empty({staging}, flat.options()) : at::Tensor(),
                      comm::Accumulate::kOverwrite, {"reduce ignored", "", ""})
      .wait();
  comm.all_gather(padded, mine, {"gather ignored", "", ""}).wait();
  flat = padded;
}

void average(comm::Comm& comm, const std::vector<at::Tensor>& parameters, const at::TensorOptions& options) {
  at::Tensor flat = flatten(parameters, options);
  int64_t numel = 0;
  for (const at::Tensor& parameter : parameters) numel += parameter.numel();
  add_up(comm, flat);
  const at::Tensor holders = flat.narrow(0, numel, static_cast<int64_t>(parameters.size())).cpu().to(at::kDouble);
  int64_t begin = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Tensor sum = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    if (holders.const_data_ptr<double>()[i] == 0) continue;
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    parameter.mutable_grad().detach().copy_(sum / comm.size());
  }
}

}  // namespace

void average_gradients(comm::Comm& comm, const WeakTensors& weak) {
  if (comm.size() == 1 || weak.empty()) return;
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const auto& each : weak) {
    const at::Tensor parameter(each.lock());
    if (parameter.defined() && parameter.requires_grad()) by_dtype[sum_dtype(parameter)].push_back(parameter);
  }
  for (const auto& [dtype, parameters] : by_dtype) {
    average(comm, parameters, at::device(parameters.front().device()).dtype(dtype));
  }
}

}  // namespace fsdp
