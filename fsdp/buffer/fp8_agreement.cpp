#include "fsdp/buffer/fp8_agreement.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// The largest of all ranks, one by one.
at::Tensor largest_over(comm::Comm& comm, const at::Tensor& codes) {
  const at::Tensor all = at::empty({comm.size() * codes.numel()}, codes.options());
  comm.all_gather(all, codes, {"agree on fp8 scales", "", ""}).wait();
  return all.view({comm.size(), codes.numel()}).amax(0);
}

}  // namespace

void Fp8Agreement::forget(const void* id) {
  std::erase_if(members_, [&](const Member& member) { return member.id == id; });
}

void Fp8Agreement::run(const void* id) {
  const auto asker = std::find_if(members_.begin(), members_.end(), [&](const Member& each) { return each.id == id; });
  FSDP_ASSERT(asker != members_.end(), "scales of an unknown group");
  const auto comms = asker->comms;
  std::vector<const Member*> taking_part;
  std::vector<at::Tensor> wanted;
  for (const Member& member : members_) {
    if (member.comms != comms) continue;
    taking_part.push_back(&member);
    wanted.push_back(member.wanted());
  }
  at::Tensor codes = at::cat(wanted);
  for (const auto& comm : comms) {
    if (comm->size() > 1) codes = largest_over(*comm, codes);
  }
  ++runs_;
  int64_t begin = 0;
  for (size_t i = 0; i < taking_part.size(); ++i) {
    const int64_t count = wanted[i].numel();
    taking_part[i]->agree(codes.narrow(0, begin, count).clone());
    begin += count;
  }
}

}  // namespace fsdp
