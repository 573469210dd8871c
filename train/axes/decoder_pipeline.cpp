#include "train/axes/decoder_pipeline.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <utility>

#include "train/base/format.h"

namespace fsdp::train {
namespace {

std::vector<at::Tensor> ids_of(const std::vector<StageInput>& inputs) {
  std::vector<at::Tensor> ids;
  for (const StageInput& input : inputs) ids.push_back(input.input_ids_BT);
  return ids;
}

}  // namespace

DecoderPipeline::DecoderPipeline(const Mesh& mesh, const models::Decoder& decoder, const Unit& root,
                                 const std::vector<BlockRange>& stages, pipeline::Order order)
    : decoder_(decoder), stages_(stages), order_(order), ranks_(parallel::Ranks::along(mesh, "pp")) {
  pipeline_.emplace(mesh, std::vector<pipeline::Stage>{make_stage(root)}, order);
}

pipeline::Stage DecoderPipeline::make_stage(const Unit& root) {
  pipeline::Stage stage;
  stage.names = pipeline::name_tensors(*decoder_, pipeline::prefixed(""));
  stage.leaves = parameters(*decoder_);
  stage.unit = root;
  stage.forward = [this](const at::Tensor& given_BTE, int microbatch) {
    const StageInput& input = (*inputs_)[static_cast<size_t>(microbatch)];
    if (around_.before) around_.before(microbatch);
    at::Tensor hidden_BTE = decoder_->run_stage(given_BTE, input.input_ids_BT, input.sequence);
    if (around_.after) around_.after(microbatch);
    return finish_ && decoder_->has_last_block() ? finish_(hidden_BTE) : hidden_BTE;
  };
  return stage;
}

double DecoderPipeline::step(const std::vector<StageInput>& microbatches, const Around& around, const Loss& loss) {
  inputs_ = &microbatches;
  around_ = around;
  finish_ = nullptr;
  return pipeline_->step(ids_of(microbatches), loss, pipeline::LossesAre::kAdded);
}

at::Tensor DecoderPipeline::forward(const StageInput& input, const Finish& finish) {
  const std::vector<StageInput> inputs{input};
  inputs_ = &inputs;
  around_ = {};
  finish_ = finish;
  const std::vector<at::Tensor> outputs = pipeline_->forward(ids_of(inputs));
  return outputs.empty() ? at::Tensor() : outputs.front();
}

int64_t DecoderPipeline::from_last(int64_t number) const {
  const bool is_last = ranks_->rank() + 1 == ranks_->size();
  return ranks_->sum(at::full({1}, is_last ? number : 0, at::kDouble), "the last stage's number").item<int64_t>();
}

std::string DecoderPipeline::describe(int64_t num_microbatches) const {
  const auto waits = static_cast<double>(stages_.size() - 1);
  return train::describe(stages_) + (order_ == pipeline::Order::kGPipe ? ", gpipe, " : ", 1f1b, ") +
         std::to_string(num_microbatches) +
         format_text(" microbatches a step: a rank waits %.0f %% of the time for others",
                     100 * waits / (waits + static_cast<double>(num_microbatches)));
}

}  // namespace fsdp::train
