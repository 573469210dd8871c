// A mesh, a small decoder and a way to train it, by chance: each axis may have several ranks, and every set of up to
// three of them comes with others' sizes, models, strategies and microbatches again and again.
#pragma once

#include <random>
#include <set>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::testing {

inline const std::vector<std::string> kMeshAxes = {"pp", "replicate", "shard", "cp", "tp", "ep"};

struct MeshCase {
  unsigned seed = 0;
  std::vector<MeshAxis> axes;  // all six, some of one rank
  int64_t layers, kv_heads, heads, head_dim, inner, vocab;
  int64_t experts = 0, experts_per_token = 0;  // 0: a dense model
  int64_t tokens, rows_of_microbatch, window;
  bool has_documents, in_ring;
  parallel::Tokens tokens_between;
  int microbatches = 1, stages_per_rank = 1;
  pipeline::Order order = pipeline::Order::k1F1B;
  bool shards_blocks;
  ShardOptions options;
  at::ScalarType dtype = at::kDouble;  // of weights and whatever is made of them, where ranks train

  int size(const std::string& axis) const {
    for (const MeshAxis& each : axes) {
      if (each.name == axis) return each.size;
    }
    return 1;
  }
  int world() const {
    int ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    return ranks;
  }
  // Axes of several ranks.
  std::set<std::string> several() const {
    std::set<std::string> names;
    for (const MeshAxis& axis : axes) {
      if (axis.size > 1) names.insert(axis.name);
    }
    return names;
  }
  int64_t width() const { return heads * head_dim; }
  int data_ranks() const { return size("replicate") * size("shard") * size("ep"); }
  int64_t rows() const { return data_ranks() * microbatches * rows_of_microbatch; }
  int stages() const { return size("pp") * stages_per_rank; }

  std::string text() const {
    std::string mesh;
    for (const MeshAxis& axis : axes) mesh += axis.size > 1 ? c10::str(axis.name, "=", axis.size, " ") : "";
    return c10::str("mesh ", seed, ": ", mesh, "| ", layers, " layers of ", heads, "/", kv_heads, " heads of ",
                    head_dim, ", inner ", inner, ", vocabulary ", vocab, ", ", experts, " experts, ", experts_per_token,
                    " of a token | ", rows(), " rows of ", tokens, " tokens, window ", window,
                    has_documents ? ", documents" : "", in_ring ? ", in a ring" : "",
                    tokens_between == parallel::Tokens::kOwn ? ", own tokens | " : " | ", name(options.strategy), ", ",
                    schedule::describe(options.schedule), shards_blocks ? ", block by block" : "", ", ", microbatches,
                    " microbatches, order ", static_cast<int>(order), ", ", stages_per_rank, " stages, ",
                    c10::toString(dtype));
  }
};

// Which axes have several ranks: none, one, two or three of the six; all 42 sets come in 42 seeds that follow.
inline std::vector<std::string> axes_of_case(unsigned seed) {
  std::vector<std::vector<std::string>> sets;
  for (unsigned bits = 0; bits < 64; ++bits) {
    std::vector<std::string> names;
    for (size_t i = 0; i < kMeshAxes.size(); ++i) {
      if ((bits >> i & 1U) != 0) names.push_back(kMeshAxes[i]);
    }
    if (names.size() <= 3) sets.push_back(names);
  }
  return sets[seed * 19 % sets.size()];  // few seeds have sets of many kinds
}

inline ShardOptions random_options(std::mt19937& random, bool has_replicas) {
  ShardOptions options;
  options.strategy = static_cast<Strategy>(random() % (has_replicas ? 7 : 4));
  switch (random() % 3) {
    case 0:
      options.schedule = schedule::Schedule::static_order(static_cast<int>(random() % 3));
      break;
    case 1:
      options.schedule = schedule::Schedule::delayed_release(1 + static_cast<int>(random() % 2));
      break;
    default:
      options.schedule = schedule::Schedule::on_demand();
  }
  if (random() % 4 == 0) options.schedule.threads = schedule::CommThreads::kUnified;
  return options;
}

// At most 8 ranks.
inline MeshCase random_mesh_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned count) { return static_cast<int64_t>(random() % count); };
  MeshCase mesh_case;
  mesh_case.seed = seed;
  const std::vector<std::string> several = axes_of_case(seed);
  int left = 8;
  for (const std::string& name : kMeshAxes) {
    const auto at = std::find(several.begin(), several.end(), name);
    if (at == several.end()) {
      mesh_case.axes.push_back({name, 1});
      continue;
    }
    const int others = 1 << (several.end() - at - 1);  // two ranks for each that follows
    const int size = 2 + static_cast<int>(below(static_cast<unsigned>(left / others - 1)));
    mesh_case.axes.push_back({name, size});
    left /= size;
  }
  const int64_t pp = mesh_case.size("pp"), cp = mesh_case.size("cp"), tp = mesh_case.size("tp"),
                ep = mesh_case.size("ep");
  mesh_case.kv_heads = tp * (1 + below(2));
  mesh_case.heads = mesh_case.kv_heads * (1 + below(2));
  mesh_case.head_dim = 2 + 4 / mesh_case.heads + below(3);  // norms of two numbers make much of rounding
  mesh_case.inner = tp * (2 + below(4));
  mesh_case.vocab = tp * (5 + below(6));
  if (ep > 1 || below(3) == 0) {
    mesh_case.experts = ep * (1 + below(3)) + (ep == 1 ? 2 : 0);
    mesh_case.experts_per_token = 1 + below(2);
  }
  mesh_case.tokens = 2 * cp * tp * (1 + below(2));
  mesh_case.rows_of_microbatch = 1 + below(2);
  mesh_case.window = below(2) * (1 + below(6));
  mesh_case.has_documents = below(2) == 0;
  mesh_case.tokens_between = below(2) == 0 ? parallel::Tokens::kAll : parallel::Tokens::kOwn;
  mesh_case.microbatches = 1 + static_cast<int>(below(4));
  if (pp > 1) {
    mesh_case.order = static_cast<pipeline::Order>(below(3));
    if (mesh_case.order == pipeline::Order::kInterleaved) {
      mesh_case.stages_per_rank = 1 + static_cast<int>(below(2));
      mesh_case.microbatches = static_cast<int>(pp * (1 + below(2)));
    }
  }
  mesh_case.layers = mesh_case.stages() + below(2);
  mesh_case.shards_blocks = below(2) == 0;
  mesh_case.options = random_options(random, mesh_case.size("replicate") > 1);
  mesh_case.in_ring = below(2) == 0;
  return mesh_case;
}

}  // namespace fsdp::testing
