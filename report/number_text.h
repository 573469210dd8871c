#pragma once

#include <string>
#include <vector>

namespace fsdp::report {

// How the numbers of an axis or a table are written.
enum class Unit { kPlain, kBytes, kPercent, kMilliseconds };

// At most four digits that count: "0.0312", "4.689", "2,197", "1.24e+06"; "-" for what is no number.
std::string number_text(double value, Unit unit = Unit::kPlain);

// "2,197".
std::string with_commas(double value);

// "41 min 10 s".
std::string duration_text(double seconds);

// "2026-01-31 12:00:00 UTC" of seconds since 1970.
std::string moment_text(double seconds);

// Round numbers from low to high, about `count` of them, a low < high.
std::vector<double> even_ticks(double low, double high, int count, Unit unit);

// Powers of ten, and where these are few their multiples by 2 and 5; 0 < low < high.
std::vector<double> log_ticks(double low, double high);

}  // namespace fsdp::report
