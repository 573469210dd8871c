#include "train/model/adapters/serve_adapters.h"

#include <ATen/ATen.h>

#include <map>

#include "fsdp/fsdp.h"
#include "io/base/error.h"
#include "io/weights/adapter.h"
#include "io/weights/open_weights.h"
#include "models/lora.h"
#include "train/base/agreement.h"

namespace fsdp::train {
namespace {

struct ReadAdapter {
  NamedAdapter named;
  io::Adapter adapter;
};

std::vector<ReadAdapter> read_and_check(const models::Decoder& decoder, const std::vector<NamedAdapter>& adapters) {
  std::map<std::string, const models::LinearImpl*> maps;
  for (const models::NamedLinear& linear : models::linears_in_blocks(decoder)) maps[linear.name] = linear.module;
  std::vector<ReadAdapter> result;
  for (const NamedAdapter& each : adapters) {
    result.push_back({each, io::read_adapter(*io::open_weight_source(each.folder))});
    for (const auto& [module, factors] : result.back().adapter.modules) {
      const auto map = maps.find(module);
      if (map != maps.end() && map->second->in_features() == factors.in && map->second->out_features() == factors.out)
        continue;
      throw io::Error(io::ErrorKind::kModel,
                      "[adapter] " + io::in_quotes(each.folder.native()) + ": " + io::in_quotes(module) +
                          ": got a map from " + std::to_string(factors.in) + " to " + std::to_string(factors.out) +
                          ", which the model does not have. Pass the model that the adapter was trained on.");
    }
  }
  return result;
}

at::Tensor tensor_of(const std::vector<float>& values, int64_t rows, int64_t columns,
                     const at::TensorOptions& options) {
  return at::tensor(at::ArrayRef<float>(values)).view({rows, columns}).to(options);
}

// What rows of the sum are multiplied with, less 1.
at::Tensor gain_of(const models::LinearImpl& map, const io::LowRank& factors, double scale) {
  at::Tensor weight = map.whole_weight().to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  float* const values = weight.mutable_data_ptr<float>();
  std::vector<double> before(static_cast<size_t>(factors.out)), after(before.size());
  io::add_row_squares(factors.in, 0, weight.numel(), values, before.data());
  io::add_low_rank(factors, scale, 0, weight.numel(), values);
  io::add_row_squares(factors.in, 0, weight.numel(), values, after.data());
  std::vector<float> gains;
  for (int64_t row = 0; row < factors.out; ++row) {
    const auto i = static_cast<size_t>(row);
    gains.push_back(static_cast<float>(io::magnitude_factor(factors, row, before[i], after[i]) - 1));
  }
  return at::tensor(gains);
}

// The weight must be at hand.
void serve_on(models::LinearImpl& map, const std::string& name, const std::vector<ReadAdapter>& adapters,
              const std::shared_ptr<models::TokenAdapters>& tokens, const at::TensorOptions& options) {
  auto served = std::make_shared<models::ServedMap>(tokens);
  bool has_any = false;
  for (size_t number = 0; number < adapters.size(); ++number) {
    const io::Adapter& adapter = adapters[number].adapter;
    const auto found = adapter.modules.find(name);
    if (found == adapter.modules.end()) continue;
    const io::LowRank& factors = found->second;
    const double scale = adapter.config.scale();
    models::ServedFactors own{tensor_of(factors.a, factors.rank, factors.in, options),
                              tensor_of(factors.b, factors.out, factors.rank, options),
                              scale,
                              {}};
    if (factors.magnitude != io::Magnitude::kNone) own.gain = gain_of(map, factors, scale).to(options.device());
    served->add(static_cast<int64_t>(number), std::move(own));
    has_any = true;
  }
  if (has_any) map.serve(std::move(served));
}

}  // namespace

std::shared_ptr<models::TokenAdapters> serve_adapters(models::Decoder& decoder,
                                                      const std::vector<NamedAdapter>& adapters, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const std::vector<ReadAdapter> read = read_and_check(decoder, adapters);
  auto tokens = std::make_shared<models::TokenAdapters>();
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(decoder->device());
  for (const models::NamedLinear& linear : models::linears_in_blocks(decoder))
    serve_on(*linear.module, linear.name, read, tokens, options);
  return tokens;
}

std::shared_ptr<models::TokenAdapters> serve_adapters(const ShardedModel& model, const World& world,
                                                      const std::vector<NamedAdapter>& adapters, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  std::vector<ReadAdapter> read;
  on_all_ranks(world, [&] { read = read_and_check(model.decoder, adapters); });
  auto tokens = std::make_shared<models::TokenAdapters>();
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(model.decoder->device());
  for (size_t unit = 0; unit + 1 < model.units.size(); ++unit) {  // the last one is the root, without blocks
    const FullParameters readable(model.units[unit]);
    for (const models::NamedLinear& linear : models::linears_in_blocks(model.decoder)) {
      if (linear.name.rfind(model.prefixes[unit], 0) == 0) serve_on(*linear.module, linear.name, read, tokens, options);
    }
  }
  return tokens;
}

}  // namespace fsdp::train
