#include "train/base/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace fsdp::train {
namespace {

char lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

bool is_near(std::string_view name, std::string_view known) { return 2 * edit_distance(name, known) <= name.size(); }

std::string did_you_mean(const std::string& guess) { return guess.empty() ? "." : "; did you mean " + guess + "?"; }

}  // namespace fsdp::train
