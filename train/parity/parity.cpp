#include "train/parity/parity.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/hub/model_folder.h"
#include "models/decoder.h"
#include "train/base/agreement.h"
#include "train/base/format.h"
#include "train/model/fp8_layers.h"
#include "train/model/narrow_products.h"
#include "train/model/weights.h"
#include "train/parity/parity_checks.h"

namespace fsdp::train {
namespace {

ShardedModel load_model(const ParityOptions& options, const World& world) {
  std::optional<models::DecoderConfig> config;
  std::optional<io::ModelFolder> folder;
  on_all_ranks(world, [&] {
    config = models::read_decoder_config(options.model);
    folder = io::ModelFolder::open(options.model);
  });
  models::Decoder decoder = deferred_zeros(*config);
  use_fp8(decoder, options.shard);
  use_narrow_products(decoder, options.shard);
  ShardedModel model = parallelize(std::move(decoder), make_mesh(world, options.shard.replicas),
                                   shard_options(options.shard, options.device));
  on_all_ranks(world, [&] { load_weights(model, *folder); });
  return model;
}

nlohmann::ordered_json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

std::string tolerance_text(const std::optional<double>& tolerance) {
  return tolerance ? format_text("%.1e", *tolerance) : "-";
}

}  // namespace

void check_parity_options(const ParityOptions& options) {
  const std::string& precision = options.shard.precision;
  const auto refuse = [&](const std::string& option, const std::string& expected) {
    throw Error(ErrorCode::kUsage,
                "[parity] " + option + ": got precision " + precision + ", expected " + expected + ".");
  };
  if (precision != "fp32" && precision != "bf16" && precision != "fp16" && precision != "o1" && precision != "fp8")
    refuse("--precision", "fp32, bf16, fp16, o1 or fp8");
  if (options.curve && precision != "fp32" && precision != "bf16")
    refuse("--curve", "fp32 or bf16, whose curves the folder has. Compare a batch by --expected or --packed");
}

ParityTolerances parity_tolerances(const ParityOptions& options) {
  const std::string& precision = options.shard.precision;
  ParityTolerances t{3e-1, 1e-2, {}, 8e-2, 3e-3, 3e-2, 6e-3, 5e-2, 5e-2, 5e-2};  // bf16, o1
  if (precision == "fp32") t = {5e-5, 1e-5, 1e-5, 2e-5, 5e-5, 5e-5, 5e-5, 5e-5, 1e-3, 5e-5};
  if (precision == "fp16") t = {4e-2, 2e-3, {}, 3e-2, 0, 0, 0, 0, 0, 0};
  if (precision == "fp8") t = {2, 5e-2, {}, 5e-1, 0, 0, 0, 0, 0, 0};
  for (double* value : {&t.logits_abs, &t.loss_abs, &t.grad_rel, &t.curve_first_loss_abs, &t.curve_loss_abs,
                        &t.curve_mean_loss_abs, &t.curve_norm_rel, &t.final_abs, &t.final_norm_rel}) {
    *value *= options.tolerance_factor;
  }
  if (t.grad_abs) {
    *t.grad_abs *= options.tolerance_factor;
  }
  return t;
}

bool ParityRow::passed() const {
  return std::isfinite(abs) && !(abs_tolerance && abs > *abs_tolerance) && !(rel_tolerance && rel > *rel_tolerance);
}

bool ParityReport::passed() const {
  return std::all_of(rows.begin(), rows.end(), [](const ParityRow& row) { return row.passed(); });
}

std::vector<ParityReport> check_parity(const ParityOptions& options, const World& world) {
  check_parity_options(options);
  ShardedModel model = load_model(options, world);
  std::vector<ParityReport> reports;
  if (options.expected) {
    reports.push_back(check_expected(options, world, model));
  }
  if (options.packed) {
    reports.push_back(check_packed(options, world, model));
  }
  if (options.curve) {  // last: it changes the weights
    reports.push_back(check_curve(options, world, model));
  }
  return reports;
}

std::string to_table(const std::vector<ParityReport>& reports) {
  std::string text;
  for (const ParityReport& report : reports) {
    size_t width = 8;
    for (const ParityRow& row : report.rows) {
      width = std::max(width, row.quantity.size());
    }
    text += report.source + "\n";
    text += format_text("  %-*s  %9s  %9s  %9s  %9s\n", static_cast<int>(width), "quantity", "max abs", "max rel",
                        "tol abs", "tol rel");
    for (const ParityRow& row : report.rows) {
      text += format_text("  %-*s  %9.1e  %9.1e  %9s  %9s  %s\n", static_cast<int>(width), row.quantity.c_str(),
                          row.abs, row.rel, tolerance_text(row.abs_tolerance).c_str(),
                          tolerance_text(row.rel_tolerance).c_str(), row.passed() ? "ok" : "ABOVE");
    }
    text += report.passed() ? "  all within tolerance\n" : "  NOT within tolerance\n";
  }
  return text;
}

std::string to_json(const std::vector<ParityReport>& reports) {
  nlohmann::ordered_json json;
  json["passed"] = std::all_of(reports.begin(), reports.end(), [](const auto& report) { return report.passed(); });
  json["reports"] = nlohmann::ordered_json::array();
  for (const ParityReport& report : reports) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const ParityRow& row : report.rows) {
      rows.push_back({{"quantity", row.quantity},
                      {"max_abs", number(row.abs)},
                      {"max_rel", number(row.rel)},
                      {"tolerance_abs", number(row.abs_tolerance)},
                      {"tolerance_rel", number(row.rel_tolerance)},
                      {"passed", row.passed()}});
    }
    json["reports"].push_back({{"source", report.source}, {"passed", report.passed()}, {"rows", rows}});
  }
  return json.dump(2) + "\n";
}

}  // namespace fsdp::train
