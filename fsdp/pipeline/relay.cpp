#include "fsdp/pipeline/relay.h"

#include <algorithm>
#include <string>

namespace fsdp::pipeline {

Relay::Relay(std::shared_ptr<comm::Comm> comm, const Shape& shape, std::vector<std::vector<Turn>> turns,
             c10::Device device, WithNotes notes)
    : comm_(std::move(comm)), shape_(shape), device_(device), notes_(notes), turns_(std::move(turns)) {}

void Relay::run(const Compute& compute) {
  const std::vector<Turn>& turns = turns_[static_cast<size_t>(comm_->rank())];
  for (size_t i = 0; i < turns.size(); ++i) {
    Parcel given = take(turns[i]);
    if (i + 1 < turns.size() && shape_.ranks > 1) {
      if (const auto giver = giver_of(turns[i + 1])) expect(*giver);
    }
    hand_on(turns[i], compute(turns[i], std::move(given)));
  }
  for (auto& [key, border] : borders_) border.release_all();
}

std::optional<Turn> Relay::beside(const Turn& turn, int steps) const {
  if (turn.pass == Pass::kWeights) return std::nullopt;
  const int stage = turn.stage + (turn.pass == Pass::kForward ? steps : -steps);
  if (stage < 0 || stage == shape_.stages()) return std::nullopt;
  return Turn{turn.pass, stage, turn.microbatch};
}

// Among the turns of the rank that takes it.
int Relay::index_of(const Turn& turn) const {
  const std::vector<Turn>& turns = turns_[static_cast<size_t>(shape_.rank_of(turn.stage))];
  return static_cast<int>(std::find(turns.begin(), turns.end(), turn) - turns.begin());
}

Border& Relay::border(const Turn& giver, Part part) {
  const auto key = std::tuple(giver.pass, giver.stage, part);
  const auto found = borders_.find(key);
  if (found != borders_.end()) return found->second;
  const int from = shape_.rank_of(giver.stage), to = shape_.rank_of(reader_of(giver)->stage);
  const bool is_forward = giver.pass == Pass::kForward;
  // A gradient is one of what the stage before returned.
  const std::string what = is_forward ? "output of stage " + std::to_string(giver.stage)
                                      : "gradient of stage " + std::to_string(giver.stage - 1);
  const bool is_note = part == Part::kNote;
  return borders_
      .try_emplace(key, comm_, from == comm_->rank() ? to : from, is_note ? "note beside the " + what : what,
                   is_note ? c10::Device(c10::kCPU) : device_)
      .first->second;
}

void Relay::expect(const Turn& giver) {
  border(giver).expect();
  if (notes_ == WithNotes::kYes) border(giver, Part::kNote).expect();
}

Parcel Relay::take(const Turn& turn) {
  const auto giver = giver_of(turn);
  if (!giver) return {};
  if (shape_.ranks == 1) return std::exchange(at_home_[{giver->pass, giver->stage}], {});
  Parcel given{border(*giver).receive(), {}};
  if (notes_ == WithNotes::kYes) given.note = border(*giver, Part::kNote).receive();
  const int peer = shape_.rank_of(giver->stage), index = index_of(*giver);
  for (auto& [key, border] : borders_) {
    if (border.peer() == peer) border.release(index);
  }
  return given;
}

void Relay::hand_on(const Turn& turn, const Parcel& result) {
  const auto reader = reader_of(turn);
  if (!reader) return;
  if (shape_.ranks > 1) {
    const int index = index_of(*reader);
    border(turn).send(result.tensor, index);
    if (notes_ == WithNotes::kYes) border(turn, Part::kNote).send(result.note, index);
  } else {
    at_home_[{turn.pass, turn.stage}] = {result.tensor.detach(), result.note};
  }
}

}  // namespace fsdp::pipeline
