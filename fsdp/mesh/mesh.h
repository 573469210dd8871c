#pragma once

#include <memory>
#include <string>
#include <vector>

namespace fsdp {

namespace comm {
class Connection;
}  // namespace comm

// This process's place in the job. A cheap handle: copies share one connection, and the last copy to go (with
// everything made from it) closes the sockets. Made by fsdp::init() or comm::connect().
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  std::shared_ptr<comm::Connection> connection;
};

// A named direction of a mesh and the number of ranks along it.
struct MeshAxis {
  std::string name;
  int size;
};

// A grid of all ranks with named axes; the last axis varies fastest. Rank arithmetic only: groups of ranks that talk to
// each other are made by fsdp/comm from what this class says.
class Mesh {
 public:
  // One axis, "shard", over all ranks.
  static Mesh shard(const World& world);

  // Sizes must multiply to world.size and names differ; else throws Error(kUsage).
  Mesh(World world, std::vector<MeshAxis> axes);

  // The axes of parallel training in the order "pp", "replicate", "shard", "cp", "tp", "ep", of which `sizes` names
  // those that are wanted: ranks of the last axes, which talk most, are neighbours, so they share a host. "shard" is
  // always there; without a size it takes the ranks that the others leave. Throws Error(kUsage): another name, or a
  // number of ranks that the sizes do not divide.
  static Mesh parallel(const World& world, const std::vector<MeshAxis>& sizes);

  // The same ranks with `axes` made into one axis, `name`, at the place of the first of them: its coordinate counts
  // through theirs, the last one fastest. Sharding over two axes: flattened({"a", "b"}, "shard"); replicating over all
  // others likewise, as "replicate". Throws Error(kUsage): an axis is not there or given twice, `name` is another's.
  Mesh flattened(const std::vector<std::string>& axes, const std::string& name) const;

  const World& world() const { return world_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  bool has(const std::string& axis) const;

  // Number of ranks along `axis`; 1 for an axis the mesh does not have.
  int size(const std::string& axis) const;
  // This rank's coordinate along `axis`; 0 for an axis the mesh does not have.
  int index(const std::string& axis) const;
  // Global ranks that differ from this one along `axis` only, in the order of their coordinate.
  std::vector<int> ranks(const std::string& axis) const;

  // "shard=4" or "replicate=2, shard=4"; where that does not say which ranks, "shard=4 (2 x 4, 2 x 1)": 2 ranks that
  // are 4 apart, times 2 that are 1 apart.
  std::string describe() const;

 private:
  // Ranks at equal distances. An axis is one such row, a flattened one a row of rows.
  struct Row {
    int size;
    int stride;
  };
  using Rows = std::vector<Row>;
  Mesh(World world, std::vector<MeshAxis> axes, std::vector<Rows> rows);
  size_t find(const std::string& axis) const;  // their number: none
  std::string rows_text(size_t axis) const;

  World world_;
  std::vector<MeshAxis> axes_;
  std::vector<Rows> rows_;  // of each axis
};

}  // namespace fsdp
