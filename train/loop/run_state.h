#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/config/config.h"
#include "train/data/batch_source.h"
#include "train/loop/trainer.h"

namespace fsdp::train {

// What a checkpoint knows of a run besides weights and optimizer: steps done, the data cursor, the schedule, the
// numbers that spikes are seen against, the resolved configuration, and which data it was.
class RunState : public checkpoint::Stateful {
 public:
  // What it says about itself to those who do not know this program.
  struct Identity {
    std::string data;            // identify_data()
    std::string tokenizer;       // of the data set
    std::string model_config;    // config.json of the model
    std::string adapter_config;  // adapter_config.json, if adapters train; else empty
    std::string base;            // io::identify_model(), where checkpoints hold adapters alone; else empty
  };
  // `config`, `trainer` and `batches` must outlive it.
  RunState(const Config& config, Identity identity, Trainer& trainer, PackedBatches& batches);

  void save(checkpoint::StateSink& sink) override;
  // Throws Error(kData) if the checkpoint was made with other data.
  void load(checkpoint::StateSource& source) override;
  void loaded() override;

  // Keys that had another value in the run that was resumed: "train.lr was 0.001, is 0.0005"; that the number of steps
  // stays, if train.fit_minutes is asked for, which chose it; and that the learning rate jumps, if it does. Empty for
  // none.
  const std::vector<std::string>& changed_keys() const { return changed_keys_; }

  // Did the run that was resumed choose its number of steps by train.fit_minutes, which is still asked for?
  bool has_fitted_steps() const;

 private:
  void check_base(checkpoint::StateSource& source) const;

  const Config& config_;
  Identity identity_;
  Trainer& trainer_;
  PackedBatches& batches_;
  int64_t step_ = 0;
  int64_t consumed_ = 0;
  std::string fp8_scales_;
  int64_t schedule_steps_ = 0;
  SpikeDetector spikes_;          // as the checkpoint has them
  std::string tokenizer_hashes_;  // io::identify_files(), once a checkpoint needed them
  std::vector<std::string> changed_keys_;
};

// `config` of a run that has so many steps, whatever the clock says.
TrainConfig with_fitted_steps(TrainConfig config, int64_t steps);

// The data itself, by its size and hash.
std::string describe_content(const Config& config, const PackedSplit& split);

// Which sequences training consumes, in one line that two runs have in common exactly if they consume the same.
std::string identify_data(const Config& config, const PackedSplit& split);

}  // namespace fsdp::train
