#include "fsdp/strategy/strategy.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

namespace {

constexpr Placement R = Placement::kReplicate;
constexpr Placement S = Placement::kShard;
constexpr Placement P = Placement::kPartial;

// One row per strategy; a new strategy is a new row and a new enumerator.
struct Row {
  Strategy strategy;
  std::string_view name;
  std::array<std::string_view, 4> aliases;  // lower case, with '_' for '-'; empty ones are unused
  MeshPlacement placement;
  StrategyTraits traits;
};

constexpr PlacementTriple kReplicas = {R, P, R};
constexpr PlacementTriple kZero3 = {S, S, S};

constexpr std::array<Row, 7> kTable = {{
    {Strategy::kNoShard,
     "no_shard",
     {"ddp", "zero_0", "zero0", ""},
     {kReplicas, {R, P, R}},
     {false, GatherTiming::kNever, false, ReduceKind::kAllReduce, ReduceTiming::kLastMicrobatch, false,
      MeshNeed::kShardAxis}},
    {Strategy::kOptim,
     "optim",
     {"zero_1", "zero1", "", ""},
     {kReplicas, {R, P, S}},
     {true, GatherTiming::kPerStep, false, ReduceKind::kReduceScatter, ReduceTiming::kLastMicrobatch, false,
      MeshNeed::kShardAxis}},
    {Strategy::kOptimGrads,
     "optim_grads",
     {"zero_2", "zero2", "shard_grad_op", ""},
     {kReplicas, {R, S, S}},
     {true, GatherTiming::kPerForward, false, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch, false,
      MeshNeed::kShardAxis}},
    {Strategy::kOptimGradsParams,
     "optim_grads_params",
     {"zero_3", "zero3", "full_shard", ""},
     {kReplicas, kZero3},
     {true, GatherTiming::kPerForwardAndBackward, true, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch,
      false, MeshNeed::kShardAxis}},
    {Strategy::kHybrid,
     "hybrid",
     {"hsdp", "hybrid_shard", "", ""},
     {kReplicas, kZero3},
     {true, GatherTiming::kPerForwardAndBackward, true, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch,
      false, MeshNeed::kShardAndReplicateAxis}},
    {Strategy::kHybridZero2,
     "hybrid_zero2",
     {"_hybrid_shard_zero2", "hybrid_shard_zero2", "hybrid_zero_2", ""},
     {kReplicas, {R, S, S}},
     {true, GatherTiming::kPerForward, false, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch, false,
      MeshNeed::kShardAndReplicateAxis}},
    {Strategy::kHybridOptim,
     "hybrid_optim",
     {"hfsdp", "", "", ""},
     {{R, S, S}, kZero3},
     {true, GatherTiming::kPerForwardAndBackward, true, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch,
      true, MeshNeed::kShardAndReplicateAxis}},
}};

const Row& row_of(Strategy strategy) {
  const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const Row& r) { return r.strategy == strategy; });
  if (row == kTable.end()) throw std::invalid_argument("[strategy] got an unknown enumerator, expected a known one.");
  return *row;
}

std::string normalised(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Number of inserted, removed or changed letters between two words (Levenshtein).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string_view nearest(const std::string& text) {
  std::string_view best;
  size_t best_distance = std::string::npos;
  const auto consider = [&](std::string_view candidate) {
    const size_t d = candidate.empty() ? std::string::npos : distance(text, candidate);
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  };
  for (const Row& row : kTable) {
    consider(row.name);
    for (std::string_view alias : row.aliases) consider(alias);
  }
  return best;
}

std::string legal_names() {
  std::string text;
  for (const Row& row : kTable) {
    text.append(text.empty() ? "" : ", ").append(row.name).append(" (");
    for (std::string_view alias : row.aliases) {
      if (!alias.empty()) text.append(alias == row.aliases[0] ? "" : ", ").append(alias);
    }
    text += ")";
  }
  return text;
}

std::string text_of(PlacementTriple triple) {
  const auto word = [](Placement placement) {
    return placement == R ? "replicate" : placement == S ? "shard" : "partial";
  };
  return std::string("(") + word(triple.weight) + ", " + word(triple.gradient) + ", " + word(triple.optimizer) + ")";
}

std::string text_of(const MeshPlacement& placement) {
  return text_of(placement.replicate) + " x " + text_of(placement.shard);
}

}  // namespace

MeshPlacement placements(Strategy strategy) { return row_of(strategy).placement; }

StrategyTraits traits(Strategy strategy) { return row_of(strategy).traits; }

std::string_view name(Strategy strategy) { return row_of(strategy).name; }

Strategy parse_strategy(std::string_view text) {
  const std::string wanted = normalised(text.substr(0, 64));
  for (const Row& row : kTable) {
    const auto alias = std::find(row.aliases.begin(), row.aliases.end(), wanted);
    if (row.name == wanted || (!wanted.empty() && alias != row.aliases.end())) return row.strategy;
  }
  throw std::invalid_argument("[strategy] got '" + wanted + "', expected one of " + legal_names() + ". Did you mean '" +
                              std::string(nearest(wanted)) + "'?");
}

Strategy strategy_of(MeshPlacement placement) {
  std::string legal;
  for (const Row& row : kTable) {
    if (row.placement == placement) return row.strategy;
    legal.append(legal.empty() ? "" : "; ").append(row.name).append(" ").append(text_of(row.placement));
  }
  throw std::invalid_argument("[strategy] placement of (weight, gradient, optimizer) over replicate x shard: got " +
                              text_of(placement) + ", expected one of: " + legal + ".");
}

}  // namespace fsdp
