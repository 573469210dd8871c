#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "fsdp/fsdp.h"
#include "text/tokenizer/tokenizer.h"
#include "train/base/threads.h"
#include "train/config/config.h"
#include "train/data/data_splits.h"
#include "train/model/model_choice.h"
#include "train/model/tuning.h"

namespace fsdp::train {

// What a run is given before its model is built.
struct Preparation {
  ThreadPlan threads;
  c10::Device device;
  Splits splits;
  ModelChoice choice;
  std::optional<tokenizer::Tokenizer> tokenizer;  // of the data
  Tuning tuning;
};

// COLLECTIVE. Opens the data, chooses the model and checks that a run of this world can begin: what is wrong with the
// input is found here, before anything is built or written. Throws an AgreedError on all ranks.
Preparation prepare(const Config& config, const World& world, ThreadPlan threads);

}  // namespace fsdp::train
