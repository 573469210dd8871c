#include "train/base/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

// "3.0e-4": without the leading zeros that printf puts into exponents.
std::string short_scientific(double value) {
  std::string text = format_text("%.1e", value);
  const size_t digit = text.find('e') + 2;
  while (digit + 1 < text.size() && text[digit] == '0') {
    text.erase(digit, 1);
  }
  return text;
}

// JSON has no NaN; what is not a number is null.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

// Part of a step that waited for batches.
double data_percent(const StepMetrics& m) { return m.step_ms > 0 ? 100 * m.data_ms / m.step_ms : 0; }

std::string preference_text(const std::optional<PreferenceFigures>& preference) {
  if (!preference) return "";
  return format_text(" margin %.3f acc %.1f%%", preference->margin, 100 * preference->accuracy);
}

nlohmann::ordered_json to_json(const PreferenceFigures& preference) {
  return {{"reward_margin", number(preference.margin)}, {"reward_accuracy", preference.accuracy}};
}

std::string scaling_text(const StepMetrics& m) {
  if (!m.scaling) return "";
  const auto overflows = static_cast<long long>(m.scaling->overflows);
  return format_text(" scale %g", m.scaling->scale) + (overflows > 0 ? format_text(" (%lld skipped)", overflows) : "");
}

}  // namespace

double HeldoutLoss::loss() const { return nats / static_cast<double>(std::max<int64_t>(1, targets)); }

double HeldoutLoss::perplexity() const { return std::exp(loss()); }

double HeldoutLoss::nats_per_byte() const {
  return bytes > 0 ? nats / static_cast<double>(bytes) : std::numeric_limits<double>::quiet_NaN();
}

double HeldoutLoss::bits_per_byte() const { return nats_per_byte() / std::numbers::ln2; }

std::string progress_line(const StepMetrics& m) {
  return format_text(
      "step %lld/%lld loss %.3f gnorm %.2f lr %s%s | %s tok/s %.1f%% mfu | eta %s | mem %s | data %.1f%%",
      static_cast<long long>(m.step), static_cast<long long>(m.steps), m.loss, m.grad_norm,
      short_scientific(m.lr).c_str(), (scaling_text(m) + preference_text(m.preference)).c_str(),
      with_thousands(std::llround(m.tokens_per_s)).c_str(), 100 * m.mfu, clock_text(m.eta_s).c_str(),
      format_bytes(m.device ? m.device->reserved : m.memory.resident).c_str(), data_percent(m));
}

std::string live_line(const StepMetrics& m) {
  constexpr int kCells = 8;
  const auto filled = static_cast<int>(m.steps > 0 ? kCells * m.step / m.steps : 0);
  const std::string bar = std::string(static_cast<size_t>(filled), '=') + (filled < kCells ? ">" : "");
  const std::string slowest =
      m.slowest ? format_text(" rank %d %+.0f%%", m.slowest->rank, 100 * m.slowest->excess) : "";
  return format_text("step %lld/%lld [%-*s] loss %.3f %s tok/s eta %s%s", static_cast<long long>(m.step),
                     static_cast<long long>(m.steps), kCells, bar.c_str(), m.loss,
                     with_thousands(std::llround(m.tokens_per_s)).c_str(), clock_text(m.eta_s).c_str(),
                     slowest.c_str()) +
         format_text(" | gnorm %.2f lr %s%s | %.1f%% mfu | mem %s | data %.1f%%", m.grad_norm,
                     short_scientific(m.lr).c_str(), scaling_text(m).c_str(), 100 * m.mfu,
                     format_bytes(m.device ? m.device->reserved : m.memory.resident).c_str(), data_percent(m));
}

std::string describe(const HeldoutLoss& loss) {
  if (loss.preference) return format_text("loss %.4f", loss.loss()) + preference_text(loss.preference);
  const std::string text = format_text("loss %.4f, perplexity %.5g", loss.loss(), loss.perplexity());
  if (loss.bytes == 0) return text;
  return text +
         format_text(", %.4f bits per byte (%s bytes)", loss.bits_per_byte(), with_thousands(loss.bytes).c_str());
}

std::string to_json(const StepMetrics& m) {
  nlohmann::ordered_json json;
  json["schema"] = kLogSchema;
  json["step"] = m.step;
  json["steps"] = m.steps;
  json["tokens"] = m.tokens;
  json["loss"] = number(m.loss);
  json["grad_norm"] = number(m.grad_norm);
  json["lr"] = m.lr;
  if (m.scaling) json["loss_scale"] = {{"scale", m.scaling->scale}, {"overflows", m.scaling->overflows}};
  if (m.preference) json["preference"] = to_json(*m.preference);
  if (m.experts) json["fullest_expert"] = m.experts->fullest, json["busiest_experts"] = m.experts->busiest;
  json["step_ms"] = m.step_ms;
  json["data_ms"] = m.data_ms;
  json["tokens_per_s"] = m.tokens_per_s;
  json["tokens_per_s_per_rank"] = m.tokens_per_s / m.num_ranks;
  json["mfu"] = number(m.mfu);
  json["memory"] = {{"resident_bytes", m.memory.resident},
                    {"peak_bytes", m.memory.peak},
                    {"params", m.memory.params},
                    {"grads", m.memory.grads},
                    {"optimizer", m.memory.optimizer},
                    {"activations", nullptr},
                    {"comm", m.memory.comm}};
  json["comm"] = {{"gathers", m.comm.gathers},
                  {"reduces", m.comm.reduces},
                  {"bytes", m.comm.bytes},
                  {"exposed_ms", m.comm.exposed_ms}};
  if (m.slowest) json["slowest_rank"] = {{"rank", m.slowest->rank}, {"excess", m.slowest->excess}};
  if (m.device) {
    json["device"] = {{"allocated_bytes", m.device->allocated},
                      {"peak_allocated_bytes", m.device->peak_allocated},
                      {"reserved_bytes", m.device->reserved},
                      {"peak_reserved_bytes", m.device->peak_reserved},
                      {"allocator_retries", m.device->retries}};
  }
  return json.dump();
}

std::string to_json(int64_t step, const HeldoutLoss& loss, const std::string& weights) {
  nlohmann::ordered_json json;
  json["schema"] = kLogSchema;
  json["step"] = step;
  if (loss.preference) {
    json["heldout"] = to_json(*loss.preference);
    json["heldout"]["loss"] = number(loss.loss());
    json["heldout"]["pairs"] = loss.targets;
    if (weights != "trained") json["heldout"]["weights"] = weights;
    return json.dump();
  }
  json["heldout"] = {{"loss", number(loss.loss())},
                     {"perplexity", number(loss.perplexity())},
                     {"nats_per_byte", number(loss.nats_per_byte())},
                     {"bits_per_byte", number(loss.bits_per_byte())},
                     {"bytes", loss.bytes},
                     {"targets", loss.targets}};
  if (weights != "trained") json["heldout"]["weights"] = weights;
  return json.dump();
}

}  // namespace fsdp::train
