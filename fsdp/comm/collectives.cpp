#include "fsdp/comm/collectives.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "fsdp/base/backstage.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"

namespace fsdp {
namespace {

at::Tensor to_tensor(const std::string& text, int64_t padded_size) {
  at::Tensor bytes = at::zeros({padded_size}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

at::Tensor sum_over_ranks(const World& world, const at::Tensor& value) {
  const Backstage backstage;
  at::Tensor sum = value.detach().clone();
  world.connection->world()->all_reduce_small(sum, {"sum over ranks", "", ""});
  return sum;
}

std::vector<std::string> gather_strings(const World& world, const std::string& mine) {
  return world.connection->world()->gather_texts(mine, {"gather strings", "", ""});
}

std::vector<int> ranks_of_this_host(const World& world) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const std::vector<std::string> hosts = gather_strings(world, name.data());
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size; ++rank) {
    if (hosts[static_cast<size_t>(rank)] == name.data()) ranks.push_back(rank);
  }
  return ranks;
}

std::string broadcast_string(const World& world, const std::string& mine) {
  const Backstage backstage;
  const auto comm = world.connection->world();
  at::Tensor length = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  comm->broadcast(length, 0, {"broadcast (length)", "", ""});
  const int64_t size = length.item<int64_t>();
  const at::Tensor bytes = to_tensor(world.rank == 0 ? mine : std::string(), size);
  comm->broadcast(bytes, 0, {"broadcast", "", ""});
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(size)};
}

void barrier(const World& world, const std::string& what) {
  const Backstage backstage;
  world.connection->world()->barrier({"barrier", what, ""});
}

}  // namespace fsdp
