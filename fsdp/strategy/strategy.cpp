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
  PlacementTriple triple;
  StrategyTraits traits;
};

constexpr std::array<Row, 4> kTable = {{
    {Strategy::kNoShard,
     "no_shard",
     {"ddp", "zero_0", "zero0", ""},
     {R, P, R},
     {false, GatherTiming::kNever, false, ReduceKind::kAllReduce, ReduceTiming::kLastMicrobatch}},
    {Strategy::kOptim,
     "optim",
     {"zero_1", "zero1", "", ""},
     {R, P, S},
     {true, GatherTiming::kPerStep, false, ReduceKind::kReduceScatter, ReduceTiming::kLastMicrobatch}},
    {Strategy::kOptimGrads,
     "optim_grads",
     {"zero_2", "zero2", "shard_grad_op", ""},
     {R, S, S},
     {true, GatherTiming::kPerForward, false, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch}},
    {Strategy::kOptimGradsParams,
     "optim_grads_params",
     {"zero_3", "zero3", "full_shard", ""},
     {S, S, S},
     {true, GatherTiming::kPerForwardAndBackward, true, ReduceKind::kReduceScatter, ReduceTiming::kEveryMicrobatch}},
}};

// Known to users of other libraries and to DESIGN; refused by name until they exist.
constexpr std::array<std::string_view, 7> kLater = {
    "hybrid", "hsdp", "hybrid_shard", "hybrid_zero2", "_hybrid_shard_zero2", "hybrid_optim", "hfsdp"};

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
  const auto letter = [](Placement placement) {
    return placement == R ? "replicate" : placement == S ? "shard" : "partial";
  };
  return std::string("(") + letter(triple.weight) + ", " + letter(triple.gradient) + ", " + letter(triple.optimizer) +
         ")";
}

}  // namespace

PlacementTriple placements(Strategy strategy) { return row_of(strategy).triple; }

StrategyTraits traits(Strategy strategy) { return row_of(strategy).traits; }

std::string_view name(Strategy strategy) { return row_of(strategy).name; }

Strategy parse_strategy(std::string_view text) {
  const std::string wanted = normalised(text.substr(0, 64));
  for (const Row& row : kTable) {
    const auto alias = std::find(row.aliases.begin(), row.aliases.end(), wanted);
    if (row.name == wanted || (!wanted.empty() && alias != row.aliases.end())) return row.strategy;
  }
  if (std::find(kLater.begin(), kLater.end(), wanted) != kLater.end()) {
    throw std::invalid_argument("[strategy] got '" + wanted + "', which is not in this version, expected one of " +
                                legal_names() + ".");
  }
  throw std::invalid_argument("[strategy] got '" + wanted + "', expected one of " + legal_names() + ". Did you mean '" +
                              std::string(nearest(wanted)) + "'?");
}

Strategy strategy_of(PlacementTriple triple) {
  std::string legal;
  for (const Row& row : kTable) {
    if (row.triple == triple) return row.strategy;
    legal.append(legal.empty() ? "" : "; ").append(row.name).append(" ").append(text_of(row.triple));
  }
  throw std::invalid_argument("[strategy] placement of (weight, gradient, optimizer): got " + text_of(triple) +
                              ", expected one of: " + legal + ".");
}

}  // namespace fsdp
