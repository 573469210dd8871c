#include "fsdp/mesh/mesh.h"

#include <algorithm>
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
  int stride = world_.size;
  for (const MeshAxis& axis : axes_) {
    stride /= axis.size;
    rows_.push_back({{axis.size, stride}});
  }
}

Mesh Mesh::parallel(const World& world, const std::vector<MeshAxis>& sizes) {
  const std::vector<std::string> order = {"pp", "replicate", "shard", "cp", "tp", "ep"};
  std::vector<MeshAxis> axes;
  int product = 1;
  const auto is_of = [](const std::string& name) {
    return [&name](const MeshAxis& axis) { return axis.name == name; };
  };
  for (const MeshAxis& axis : sizes) {
    FSDP_CHECK(std::find(order.begin(), order.end(), axis.name) != order.end(), "[mesh] parallel(): got axis '",
               axis.name, "', expected pp, replicate, shard, cp, tp or ep.");
    FSDP_CHECK(axis.size > 0, "[mesh] size of axis '", axis.name, "': got ", axis.size, ", expected at least 1.");
    product *= axis.size;
  }
  const bool takes_the_rest = std::none_of(sizes.begin(), sizes.end(), is_of("shard"));
  FSDP_CHECK(!takes_the_rest || world.size % product == 0, "[mesh] parallel(): got axes of ", product,
             " places together and ", world.size, " ranks, expected a divisor of that. Change a size, or start ",
             world.size / product * product, " or ", (world.size / product + 1) * product, " ranks.");
  for (const std::string& name : order) {
    for (const MeshAxis& axis : sizes) {
      if (axis.name == name) axes.push_back(axis);
    }
    if (name == "shard" && takes_the_rest) axes.push_back({name, world.size / product});
  }
  return Mesh(world, std::move(axes));
}

Mesh::Mesh(World world, std::vector<MeshAxis> axes, std::vector<Rows> rows)
    : world_(std::move(world)), axes_(std::move(axes)), rows_(std::move(rows)) {}

Mesh Mesh::flattened(const std::vector<std::string>& axes, const std::string& name) const {
  FSDP_CHECK(!axes.empty(), "[mesh] flattened(): got no axis, expected at least one of ", describe(), ".");
  Rows rows;
  std::set<size_t> taken;
  size_t place = axes_.size();
  int size = 1;
  for (const std::string& each : axes) {
    const size_t axis = find(each);
    FSDP_CHECK(axis < axes_.size(), "[mesh] flattened(): got axis '", each, "', expected one of ", describe(), ".");
    FSDP_CHECK(taken.insert(axis).second, "[mesh] flattened(): got axis '", each, "' twice, expected each once.");
    place = std::min(place, axis);
    size *= axes_[axis].size;
    for (const Row& row : rows_[axis]) {
      if (row.size == 1) continue;
      const bool goes_on = !rows.empty() && rows.back().stride == row.size * row.stride;
      if (goes_on) {
        rows.back() = {rows.back().size * row.size, row.stride};
      } else {
        rows.push_back(row);
      }
    }
  }
  FSDP_CHECK(find(name) == axes_.size() || taken.count(find(name)) > 0, "[mesh] flattened(): got the name '", name,
             "', which another axis of ", describe(), " has. Give each axis its own name.");
  if (rows.empty()) rows.push_back({1, 1});
  std::vector<MeshAxis> others;
  std::vector<Rows> rows_of_all;
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    if (axis == place) {
      others.push_back({name, size});
      rows_of_all.push_back(rows);
    } else if (taken.count(axis) == 0) {
      others.push_back(axes_[axis]);
      rows_of_all.push_back(rows_[axis]);
    }
  }
  return {world_, std::move(others), std::move(rows_of_all)};
}

size_t Mesh::find(const std::string& axis) const {
  size_t i = 0;
  while (i < axes_.size() && axes_[i].name != axis) ++i;
  return i;
}

bool Mesh::has(const std::string& axis) const { return find(axis) < axes_.size(); }

int Mesh::size(const std::string& axis) const { return has(axis) ? axes_[find(axis)].size : 1; }

int Mesh::index(const std::string& axis) const {
  if (!has(axis)) return 0;
  int index = 0;
  for (const Row& row : rows_[find(axis)]) index = index * row.size + world_.rank / row.stride % row.size;
  return index;
}

std::vector<int> Mesh::ranks(const std::string& axis) const {
  if (!has(axis)) return {world_.rank};
  std::vector<int> ranks{world_.rank};
  for (const Row& row : rows_[find(axis)]) ranks.front() -= world_.rank / row.stride % row.size * row.stride;
  for (const Row& row : rows_[find(axis)]) {
    std::vector<int> finer;
    for (const int first : ranks) {
      for (int k = 0; k < row.size; ++k) finer.push_back(first + k * row.stride);
    }
    ranks = std::move(finer);
  }
  return ranks;
}

// Empty where the sizes of the axes say it.
std::string Mesh::rows_text(size_t axis) const {
  if (axis >= rows_.size()) return "";  // of a mesh that is refused
  const Rows& rows = rows_[axis];
  int below = 1;
  for (size_t i = axis + 1; i < axes_.size(); ++i) below *= axes_[i].size;
  if (rows.size() == 1 && (rows.front().size == 1 || rows.front().stride == below)) return "";
  std::string text;
  for (const Row& row : rows) {
    text += (text.empty() ? "" : ", ") + std::to_string(row.size) + " x " + std::to_string(row.stride);
  }
  return " (" + text + ")";
}

std::string Mesh::describe() const {
  std::string text;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!text.empty()) text += ", ";
    text += axes_[i].name + "=" + std::to_string(axes_[i].size) + rows_text(i);
  }
  return text;
}

}  // namespace fsdp
