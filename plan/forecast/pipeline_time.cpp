#include "plan/forecast/pipeline_time.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace fsdp::plan {
namespace {

using pipeline::Pass;
using pipeline::Turn;

// When turns end that have been taken.
class Ends {
 public:
  explicit Ends(const pipeline::Shape& shape)
      : shape_(shape), ends_(static_cast<size_t>(2 * shape.stages()) * static_cast<size_t>(shape.microbatches)) {}

  std::optional<double>& of(Pass pass, int stage, int microbatch) {
    const int row = (pass == Pass::kForward ? 0 : shape_.stages()) + stage;
    return ends_[static_cast<size_t>(row) * static_cast<size_t>(shape_.microbatches) + static_cast<size_t>(microbatch)];
  }
  // What a turn reads of a neighbour is there; unset: not taken yet.
  std::optional<double> ready(const Turn& turn, double message) {
    if (turn.pass == Pass::kWeights) return 0;  // of the rank's own
    const bool is_forward = turn.pass == Pass::kForward;
    if (is_forward && turn.stage == 0) return 0;
    if (!is_forward && turn.stage + 1 == shape_.stages()) return of(Pass::kForward, turn.stage, turn.microbatch);
    const auto sent = of(turn.pass, turn.stage + (is_forward ? -1 : 1), turn.microbatch);
    return sent ? std::optional(*sent + message) : std::nullopt;
  }

 private:
  pipeline::Shape shape_;
  std::vector<std::optional<double>> ends_;
};

double turn_ms(pipeline::Order order, const Turn& turn, const StageTime& time) {
  switch (turn.pass) {
    case Pass::kForward:
      return time.forward;
    case Pass::kBackward:
      return time.backward - (is_split(order, turn.stage) ? time.weights : 0);
    case Pass::kWeights:
      return time.weights;
  }
  return 0;
}

}  // namespace

double pipeline_ms(pipeline::Order order, const pipeline::Shape& shape, const std::vector<StageTime>& stages,
                   double message) {
  Ends ends(shape);
  std::vector<std::vector<Turn>> turns;
  for (int rank = 0; rank < shape.ranks; ++rank) turns.push_back(turns_of(order, shape, rank));
  std::vector<size_t> next(turns.size(), 0);
  std::vector<double> now(turns.size(), 0);
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < turns.size(); ++rank) {
      for (; next[rank] < turns[rank].size(); ++next[rank]) {
        const Turn& turn = turns[rank][next[rank]];
        const auto ready = ends.ready(turn, message);
        if (!ready) break;
        now[rank] = std::max(now[rank], *ready) + turn_ms(order, turn, stages[static_cast<size_t>(turn.stage)]);
        if (turn.pass != Pass::kWeights) ends.of(turn.pass, turn.stage, turn.microbatch) = now[rank];
        moves = true;
      }
    }
  }
  return *std::max_element(now.begin(), now.end());
}

}  // namespace fsdp::plan
