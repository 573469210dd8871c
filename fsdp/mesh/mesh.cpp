#include "fsdp/mesh/mesh.h"

#include <set>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {

Mesh Mesh::shard(const World& world) { return Mesh(world, {{"shard", world.size}}); }

Mesh::Mesh(World world, std::vector<MeshAxis> axes) : world_(std::move(world)), axes_(std::move(axes)) {
  std::set<std::string> names;
  int product = 1;
  for (const MeshAxis& axis : axes_) {
    FSDP_CHECK(axis.size > 0, "[mesh] size of axis '", axis.name, "': got ", axis.size, ", expected at least 1.");
    FSDP_CHECK(names.insert(axis.name).second, "[mesh] axis '", axis.name,
               "' is named twice. Give each axis its own name.");
    product *= axis.size;
  }
  FSDP_CHECK(product == world_.size, "[mesh] ", describe(), " has ", product, " places, but the world has ",
             world_.size, " ranks. Make the sizes multiply to the number of ranks.");
}

bool Mesh::has(const std::string& axis) const {
  for (const MeshAxis& candidate : axes_) {
    if (candidate.name == axis) return true;
  }
  return false;
}

int Mesh::stride(size_t axis) const {
  int stride = 1;
  for (size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

int Mesh::size(const std::string& axis) const {
  for (const MeshAxis& candidate : axes_) {
    if (candidate.name == axis) return candidate.size;
  }
  return 1;
}

int Mesh::index(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return world_.rank / stride(i) % axes_[i].size;
  }
  return 0;
}

std::vector<int> Mesh::ranks(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name != axis) continue;
    const int first = world_.rank - index(axis) * stride(i);
    std::vector<int> ranks;
    for (int k = 0; k < axes_[i].size; ++k) ranks.push_back(first + k * stride(i));
    return ranks;
  }
  return {world_.rank};
}

std::string Mesh::describe() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    if (!text.empty()) text += ", ";
    text += axis.name + "=" + std::to_string(axis.size);
  }
  return text;
}

}  // namespace fsdp
