#pragma once

#include <string>
#include <vector>

#include "io/hub/model_folder.h"
#include "models/load_weights.h"
#include "train/axes/whole_parameter.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

struct AdapterStart;  // train/model/adapters/adapter_start.h

// Whether the files have codes of that weight, as bitsandbytes stores them.
bool has_codes_of(const io::ModelFolder& folder, const std::string& weight);
// Throws io::Error(kModel) where they have codes of a weight that the model keeps as numbers, naming it.
void check_codes_are_kept(const ShardedModel& model, const io::ModelFolder& folder);
// What they have to have of it then: codes and what belongs to them.
std::vector<models::ExpectedTensor> expected_codes(const io::ModelFolder& folder, const WholeTensor& weight);

// Fills the NF4 codes of a sharded model from the weights of `folder`, which fit it. Each rank reads all of them, since
// a weight's scales depend on all its blocks, and encodes its own slice: so the bytes depend on the files alone. Codes
// that the files have are taken as they are. `start`: adapters that hold a part of the weights, which is taken from
// them first; null: none. Local; counts as a write on every rank. Throws io::Error(kModel), naming the tensor, for a
// number that is not finite, or codes of another kind than NF4 with double quantisation.
void load_codes(const ShardedModel& model, const io::ModelFolder& folder, const AdapterStart* start = nullptr);

}  // namespace fsdp::train
