#include "plan/model.h"

#include <algorithm>
#include <utility>

#include "models/config/parameter_list.h"

namespace fsdp::plan {
namespace {

PlannedUnit unit_of(std::string name, const std::vector<models::NamedShape>& shapes) {
  PlannedUnit unit;
  unit.name = std::move(name);
  for (const models::NamedShape& each : shapes) unit.parameters.push_back({each.name, each.shape});
  return unit;
}

}  // namespace

int64_t PlannedParameter::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t PlannedUnit::num_parameters() const {
  int64_t sum = 0;
  for (const PlannedParameter& parameter : parameters) sum += parameter.coded > 0 ? parameter.coded : parameter.numel();
  return sum;
}

bool PlannedUnit::trains() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter.trains; });
}

int64_t PlannedModel::num_parameters() const {
  int64_t sum = root.num_parameters();
  for (const PlannedUnit& block : blocks) sum += block.num_parameters();
  return sum;
}

PlannedModel decoder_model(std::string name, const models::DecoderConfig& config) {
  PlannedModel model;
  model.name = std::move(name);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    model.blocks.push_back(unit_of("model.layers." + std::to_string(layer), models::block_parameters(config, layer)));
  }
  model.root = unit_of("root", models::outer_parameters(config));
  if (config.tie_word_embeddings) model.head = TiedHead::kYes;
  model.decoder = config;
  return model;
}

}  // namespace fsdp::plan
