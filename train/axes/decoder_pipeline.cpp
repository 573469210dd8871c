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

constexpr std::pair<const char*, pipeline::Order> kOrders[] = {{"1f1b", pipeline::Order::k1F1B},
                                                               {"gpipe", pipeline::Order::kGPipe},
                                                               {"interleaved", pipeline::Order::kInterleaved},
                                                               {"zero_bubble", pipeline::Order::kZeroBubble}};

std::string name_of(pipeline::Order order) {
  for (const auto& [name, its_order] : kOrders) {
    if (its_order == order) return name;
  }
  throw Error(ErrorCode::kInternal, "[train] an order without a name");
}

}  // namespace

pipeline::Order parse_order(const std::string& schedule) {
  for (const auto& [name, order] : kOrders) {
    if (name == schedule) return order;
  }
  throw Error(ErrorCode::kInternal, "[train] mesh.schedule '" + schedule + "' is no order");
}

DecoderPipeline::DecoderPipeline(const Mesh& mesh, const models::Decoder& decoder, const Unit& root,
                                 const std::vector<models::BlockRange>& stages, pipeline::Order order)
    : decoder_(decoder), stages_(stages), order_(order), ranks_(parallel::Ranks::along(mesh, "pp")) {
  std::vector<pipeline::Stage> own;
  for (const models::BlockRange& blocks : models::stages_of_rank(stages, ranks_->rank(), ranks_->size()))
    own.push_back(make_stage(blocks, root));
  // A rank's stages are one module, whose leaves count once.
  own.front().names = pipeline::name_tensors(*decoder_, pipeline::prefixed(""));
  own.front().leaves = parameters(*decoder_);
  pipeline_.emplace(mesh, std::move(own), order);
  if (decoder_->config().experts.count > 0) balance_.emplace(mesh, decoder_, stages_);
}

pipeline::Stage DecoderPipeline::make_stage(const models::BlockRange& blocks, const Unit& root) {
  pipeline::Stage stage;
  stage.unit = root;
  stage.forward = [this, blocks](const at::Tensor& given_BTE, int microbatch) {
    const StageInput& input = (*inputs_)[static_cast<size_t>(microbatch)];
    if (around_.before) around_.before(blocks, microbatch);
    at::Tensor hidden_BTE = decoder_->run_stage(blocks, given_BTE, input.input_ids_BT, input.sequence);
    if (around_.after) around_.after();
    return finish_ && blocks == stages_.back() ? finish_(hidden_BTE) : hidden_BTE;
  };
  return stage;
}

double DecoderPipeline::step(const std::vector<StageInput>& microbatches, const Around& around, const Loss& loss,
                             const BalanceFactors& balance) {
  inputs_ = &microbatches;
  around_ = around;
  finish_ = nullptr;
  if (balance_) balance_->begin_step(balance);
  return pipeline_->step(ids_of(microbatches), loss, pipeline::LossesAre::kAdded,
                         balance_ ? balance_->notes() : pipeline::Notes{});
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
  // In microbatches through all stages of a rank, whose forward takes as long as either part of the backward.
  const double shorter = order_ == pipeline::Order::kZeroBubble
                             ? 3
                             : static_cast<double>(stages_.size()) / static_cast<double>(ranks_->size());
  const double waits = static_cast<double>(ranks_->size() - 1) / shorter;
  return models::describe(stages_) + ", " + name_of(order_) + ", " + std::to_string(num_microbatches) +
         format_text(" microbatches a step: a rank waits %.0f %% of the time for others",
                     100 * waits / (waits + static_cast<double>(num_microbatches)));
}

}  // namespace fsdp::train
