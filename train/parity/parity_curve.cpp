// Parity with some optimizer steps, run by the same Trainer that `fsdp train` uses.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "io/base/error.h"
#include "io/base/json.h"
#include "train/data/batch_source.h"
#include "train/loop/trainer.h"
#include "train/model/stored_tensor.h"
#include "train/parity/difference.h"
#include "train/parity/parity_checks.h"

namespace fsdp::train {
namespace {

// What curve.json says.
struct Curve {
  TrainConfig config;
  int64_t batch = 0;
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::vector<double> lr;
};

Curve read_curve(const std::filesystem::path& path, const std::string& name) {
  const nlohmann::json json = io::read_json_file(path);
  try {
    const auto& hyper = json.at("hyper");
    const auto& values = json.at("curves").at(name);
    Curve curve;
    curve.config.steps = hyper.at("steps");
    curve.config.lr = hyper.at("lr_max");
    curve.config.min_lr_ratio = hyper.at("lr_min_ratio");
    curve.config.warmup_steps = hyper.at("warmup");
    curve.config.beta1 = hyper.at("betas").at(0);
    curve.config.beta2 = hyper.at("betas").at(1);
    curve.config.eps = hyper.at("eps");
    curve.config.weight_decay = hyper.at("weight_decay");
    curve.config.clip = hyper.at("clip");
    curve.batch = hyper.at("batch");
    curve.loss = values.at("loss").get<std::vector<double>>();
    curve.grad_norm = values.at("grad_norm").get<std::vector<double>>();
    curve.lr = values.at("lr").get<std::vector<double>>();
    const auto steps = static_cast<size_t>(curve.config.steps);
    if (curve.loss.size() != steps || curve.grad_norm.size() != steps || curve.lr.size() != steps ||
        hyper.at("decay_min_ndim") != 2) {
      throw io::Error(io::ErrorKind::kData,
                      "[parity] " + path.string() + ": expected one loss, norm and lr per step, and decay_min_ndim 2.");
    }
    return curve;
  } catch (const nlohmann::json::exception& error) {
    throw io::Error(io::ErrorKind::kData, "[parity] " + path.string() + ": is no curve: " + error.what());
  }
}

// tokens [steps, batch, seq + 1]: step s reads tokens[s]; every sequence is its own document.
class CurveBatches : public BatchSource {
 public:
  CurveBatches(const at::Tensor& tokens, const World& world, int64_t microbatches)
      : tokens_(tokens.to(at::kLong)), world_(world), microbatches_(microbatches) {}

  int64_t num_microbatches(int64_t) const override { return microbatches_; }
  int64_t num_targets(int64_t) const override { return tokens_.size(1) * (tokens_.size(2) - 1); }

  Batch microbatch(int64_t step, int64_t micro) const override {
    const Part mine = part_of(tokens_.size(1), world_.rank, world_.size);
    const Part rows = part_of(mine.end - mine.begin, static_cast<int>(micro), static_cast<int>(microbatches_));
    const bool counts = rows.begin < rows.end;
    const int64_t first = counts ? mine.begin + rows.begin : 0;
    const at::Tensor tokens_BT = tokens_[step].narrow(0, first, std::max<int64_t>(1, rows.end - rows.begin));
    Batch batch;
    batch.input_ids_BT = tokens_BT.narrow(1, 0, tokens_.size(2) - 1).contiguous();
    batch.targets_N = tokens_BT.narrow(1, 1, tokens_.size(2) - 1).flatten().clone();
    if (!counts) {
      batch.targets_N.fill_(kNoTarget);
    }
    return batch;
  }

  int64_t position(int64_t step, int64_t micro) const override {
    const Part mine = part_of(tokens_.size(1), world_.rank, world_.size);
    const Part rows = part_of(mine.end - mine.begin, static_cast<int>(micro), static_cast<int>(microbatches_));
    return step * tokens_.size(1) + mine.begin + rows.begin;
  }

 private:
  at::Tensor tokens_;
  World world_;
  int64_t microbatches_;
};

// Differences of numbers that every rank has.
struct SeriesDifference {
  Difference all;
  double mean_abs = 0;
  double max_rel = 0;  // each relative to its own expected value
};

SeriesDifference compare_series(const std::vector<double>& actual, const std::vector<double>& expected) {
  SeriesDifference result;
  result.all.add(at::tensor(actual, at::kDouble), at::tensor(expected, at::kDouble));
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    result.mean_abs += difference / static_cast<double>(actual.size());
    result.max_rel = std::max(result.max_rel, difference / std::abs(expected[i]));
  }
  return result;
}

Difference compare_parameters(const io::SafetensorsFile& file, const ShardedModel& model, const World& world) {
  Difference difference;
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    const LocalRange range = local_range(leaf);
    if (range.begin < range.end) {
      difference.add(leaf, read_slice(file, name, range.begin, range.end));
    }
  }
  return join_over_ranks(world, {difference}).front();
}

std::vector<ParityRow> compare_steps(const Curve& curve, const std::vector<StepResult>& results,
                                     const ParityTolerances& tolerances) {
  std::vector<double> loss;
  std::vector<double> norm;
  std::vector<double> lr;
  for (const StepResult& result : results) {
    loss.push_back(result.loss);
    norm.push_back(result.grad_norm);
    lr.push_back(result.lr);
  }
  const SeriesDifference losses = compare_series(loss, curve.loss);
  const SeriesDifference norms = compare_series(norm, curve.grad_norm);
  const SeriesDifference rates = compare_series(lr, curve.lr);
  const double first = std::abs(loss.front() - curve.loss.front());
  return {{"loss of step 0", first, first / std::abs(curve.loss.front()), tolerances.curve_first_loss_abs, {}},
          {"loss, any step", losses.all.max_abs, losses.max_rel, tolerances.curve_loss_abs, {}},
          {"loss, mean over steps", losses.mean_abs, losses.mean_abs, tolerances.curve_mean_loss_abs, {}},
          {"grad_norm, any step", norms.all.max_abs, norms.max_rel, {}, tolerances.curve_norm_rel},
          {"lr, any step", rates.all.max_abs, rates.max_rel, {}, 1e-12}};
}

}  // namespace

ParityReport check_curve(const ParityOptions& options, const World& world, ShardedModel& model) {
  const std::filesystem::path& folder = *options.curve;
  const bool fp32 = options.shard.precision == "fp32";
  const std::string name = fp32 ? "fp32" : "bf16_ranks_1";
  const Curve curve = read_curve(folder / "curve.json", name);
  const io::SafetensorsFile tokens_file = io::SafetensorsFile::open(folder / "tokens.safetensors");
  const io::SafetensorsFile final_file = io::SafetensorsFile::open(folder / "final.safetensors");
  const at::Tensor tokens = read_tensor(tokens_file, "tokens");
  if (tokens.dim() != 3 || tokens.size(0) < curve.config.steps || tokens.size(1) != curve.batch) {
    throw io::Error(io::ErrorKind::kData, "[parity] " + tokens_file.path().string() +
                                              ": tokens do not have the steps and batch of curve.json.");
  }

  const CurveBatches batches(tokens, world, options.microbatches);
  Trainer trainer(curve.config, world, batches, model);
  std::vector<StepResult> results;
  for (int64_t step = 0; step < curve.config.steps; ++step) {
    results.push_back(trainer.step());
  }
  const ParityTolerances tolerances = parity_tolerances(options);
  ParityReport report{(folder / "curve.json").string() + ", " + name, compare_steps(curve, results, tolerances)};
  if (fp32) {  // the file has the final parameters of this curve only
    const Difference parameters = compare_parameters(final_file, model, world);
    const double norm = std::sqrt(parameters.sum_squares / parameters.sum_squares_expected);
    report.rows.push_back(
        {"final parameters, any entry", parameters.max_abs, parameters.relative(), tolerances.final_abs, {}});
    report.rows.push_back(
        {"final parameters, 2-norm", std::sqrt(parameters.sum_squares), norm, {}, tolerances.final_norm_rel});
  }
  return report;
}

}  // namespace fsdp::train
