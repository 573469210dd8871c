#include "fsdp/comm/transport/link_proof.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "fsdp/base/check.h"

namespace fsdp::comm {
namespace {

constexpr int64_t kLinkPartBytes = 32;
// No call has begun yet, so these meet no other tag.
constexpr uint32_t kNonceTag = 1;
constexpr uint32_t kProofTag = 2;

// 32 bytes of each member.
std::string gather_parts(Transport& transport, int size, std::string_view own, uint32_t tag) {
  const at::Tensor shard = at::empty({kLinkPartBytes}, at::kByte);
  const at::Tensor all = at::empty({size * kLinkPartBytes}, at::kByte);
  std::copy(own.begin(), own.end(), shard.mutable_data_ptr<uint8_t>());
  transport.all_gather(all, shard, tag)->wait();
  const auto* bytes = all.const_data_ptr<uint8_t>();
  return {bytes, bytes + all.numel()};
}

Proof proof_of_member(const JobSecret& secret, const std::string& group, size_t place, const std::string& nonces) {
  return secret.prove("link of a group", {group, std::to_string(place), nonces});
}

}  // namespace

void prove_links(Transport& transport, const JobSecret& secret, const std::string& group, const std::vector<int>& ranks,
                 int place) {
  const auto size = static_cast<int>(ranks.size());
  const std::string nonces = gather_parts(transport, size, as_text(fresh_nonce()), kNonceTag);
  const Proof own = proof_of_member(secret, group, static_cast<size_t>(place), nonces);
  const std::string proofs = gather_parts(transport, size, as_text(own), kProofTag);
  for (size_t other = 0; other < ranks.size(); ++other) {
    Proof got{};
    std::copy_n(proofs.begin() + static_cast<std::ptrdiff_t>(other) * kLinkPartBytes, kLinkPartBytes, got.begin());
    if (are_equal(got, proof_of_member(secret, group, other, nonces))) continue;
    FSDP_THROW(kCommunication, "the link to rank ", ranks[other],
               " does not prove the secret of the job: something else answers in its place. Look for programs that "
               "connect to the ports of this host, and start the job again.");
  }
}

}  // namespace fsdp::comm
