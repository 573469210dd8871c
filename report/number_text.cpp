#include "report/number_text.h"

#include <array>
#include <cmath>
#include <ctime>

#include "fsdp/base/units.h"
#include "plan/picture/axis.h"
#include "report/printed.h"

namespace fsdp::report {
namespace {

std::string plain_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return printed("%.3g", value);
  if (size >= 1000) return with_commas(value);
  return printed("%.4g", value);
}

}  // namespace

std::string number_text(double value, Unit unit) {
  if (!std::isfinite(value)) return "-";
  switch (unit) {
    case Unit::kBytes:
      return std::abs(value) < 9e18 ? format_bytes(static_cast<int64_t>(value)) : "-";
    case Unit::kPercent:
      return printed("%.3g%%", 100 * value);
    case Unit::kMilliseconds:
      return value >= 1e4 ? printed("%.3g s", 1e-3 * value) : plain_text(value) + " ms";
    case Unit::kPlain:
      break;
  }
  return plain_text(value);
}

std::string with_commas(double value) {
  std::string digits = printed("%.0f", value);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t place = digits.size(); place > first + 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "-";
  const auto whole = static_cast<long>(std::llround(seconds));
  if (whole < 60) return printed("%ld s", whole);
  if (whole < 3600) return printed("%ld min %ld s", whole / 60, whole % 60);
  return printed("%ld h %ld min", whole / 3600, whole / 60 % 60);
}

std::string moment_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e11) return "-";
  const auto moment = static_cast<std::time_t>(seconds);
  std::tm parts = {};
  gmtime_r(&moment, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

std::vector<double> even_ticks(double low, double high, int count, Unit unit) {
  // Bytes are round in powers of two.
  double step = plan::round_step(high - low, count);
  if (unit == Unit::kBytes) {
    step = 1;
    while (step * count < high - low) step *= 2;
  }
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + 1e-9 * step && ticks.size() < 50; tick += step)
    ticks.push_back(std::abs(tick) < 1e-9 * step ? 0 : tick);
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const bool few = std::log10(high / low) < 3;
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high && ticks.size() < 60; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * power;
      if ((factor == 1 || few) && tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

}  // namespace fsdp::report
