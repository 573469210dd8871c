#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "train/format.h"

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

}  // namespace

double HeldoutLoss::nats_per_byte() const { return nats / static_cast<double>(std::max<int64_t>(1, bytes)); }

double HeldoutLoss::bits_per_byte() const { return nats_per_byte() / std::numbers::ln2; }

std::string progress_line(const StepMetrics& m) {
  return format_text("step %lld/%lld loss %.3f gnorm %.2f lr %s | %s tok/s | mem %s | eta %s",
                     static_cast<long long>(m.step), static_cast<long long>(m.steps), m.loss, m.grad_norm,
                     short_scientific(m.lr).c_str(), with_thousands(std::llround(m.tokens_per_s)).c_str(),
                     format_bytes(m.memory.resident).c_str(), clock_text(m.eta_s).c_str());
}

std::string to_json(const StepMetrics& m) {
  nlohmann::ordered_json json;
  json["step"] = m.step;
  json["tokens"] = m.tokens;
  json["loss"] = number(m.loss);
  json["grad_norm"] = number(m.grad_norm);
  json["lr"] = m.lr;
  json["step_ms"] = m.step_ms;
  json["tokens_per_s"] = m.tokens_per_s;
  json["tokens_per_s_per_rank"] = m.tokens_per_s / m.num_ranks;
  json["mfu"] = nullptr;  // the peak of a CPU is not known
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
  return json.dump();
}

std::string to_json(int64_t step, const HeldoutLoss& loss) {
  nlohmann::ordered_json json;
  json["step"] = step;
  json["heldout"] = {{"nats_per_byte", number(loss.nats_per_byte())},
                     {"bits_per_byte", number(loss.bits_per_byte())},
                     {"bytes", loss.bytes},
                     {"targets", loss.targets}};
  return json.dump();
}

}  // namespace fsdp::train
