#include "train/data/mixture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "fsdp/base/error.h"
#include "train/data/shuffle.h"

namespace fsdp::train {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& detail) {
  throw Error(ErrorCode::kUsage, "[train] data.path: got \"" + text + "\", " + detail +
                                     ". Write one folder, or several with weights: \"web:0.7,books:0.3\".");
}

bool is_weight(const std::string& text, double& weight) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, weight);
  return result.ec == std::errc() && result.ptr == end;
}

MixturePart parse_part(const std::string& text, const std::string& item) {
  std::error_code ignored;
  MixturePart part{item, 1};
  const size_t colon = item.rfind(':');
  if (colon != std::string::npos && !std::filesystem::exists(item, ignored)) {
    part.path = item.substr(0, colon);
    if (!is_weight(item.substr(colon + 1), part.weight) || !std::isfinite(part.weight) || part.weight <= 0) {
      refuse(text, "where \"" + item.substr(colon + 1) + "\" is no positive number");
    }
  }
  if (part.path.empty()) refuse(text, "where a part has no folder");
  return part;
}

// Whole places that add up to kBlock, each at least 1, as near to the weights as they can be (largest remainders).
std::vector<int64_t> places_per_block(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> places;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t source = 0; source < weights.size(); ++source) {
    const double exact = weights[source] / sum * static_cast<double>(MixtureOrder::kBlock);
    places.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact)));
    remainders.emplace_back(static_cast<double>(places.back()) - exact, source);
  }
  int64_t missing = MixtureOrder::kBlock - std::accumulate(places.begin(), places.end(), int64_t{0});
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; missing > 0; ++i, --missing) ++places[remainders[i % places.size()].second];
  for (; missing < 0; ++missing) --*std::max_element(places.begin(), places.end());
  return places;
}

}  // namespace

std::vector<MixturePart> parse_mixture(const std::string& text) {
  std::error_code ignored;
  if (std::filesystem::exists(text, ignored)) return {{text, 1}};
  std::vector<MixturePart> parts;
  std::set<std::string> paths;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(parse_part(text, text.substr(begin, comma - begin)));
    if (!paths.insert(parts.back().path).second) refuse(text, "where " + parts.back().path + " occurs twice");
    begin = comma + 1;
  }
  if (static_cast<int64_t>(parts.size()) > MixtureOrder::kBlock / 2) refuse(text, "which has too many parts");
  return parts;
}

MixtureOrder::MixtureOrder(uint64_t seed, const std::vector<double>& weights) : seed_(seed), first_{0} {
  for (const int64_t places : places_per_block(weights)) first_.push_back(first_.back() + places);
}

size_t MixtureOrder::source_of(int64_t place) const {
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), place) - first_.begin()) - 1;
}

MixtureOrder::Place MixtureOrder::at(int64_t position) const {
  if (num_sources() == 1) return {0, position};
  const int64_t block = position / kBlock;
  const Shuffle shuffle(seed_, static_cast<uint64_t>(block), kBlock);
  const auto place = static_cast<int64_t>(shuffle(static_cast<uint64_t>(position % kBlock)));
  const size_t source = source_of(place);
  return {source, block * share(source) + place - first_[source]};
}

std::vector<int64_t> MixtureOrder::consumed(int64_t position) const {
  if (num_sources() == 1) return {position};
  const int64_t block = position / kBlock;
  std::vector<int64_t> counts;
  for (size_t source = 0; source < num_sources(); ++source) counts.push_back(block * share(source));
  const Shuffle shuffle(seed_, static_cast<uint64_t>(block), kBlock);
  for (int64_t i = 0; i < position % kBlock; ++i) {
    ++counts[source_of(static_cast<int64_t>(shuffle(static_cast<uint64_t>(i))))];
  }
  return counts;
}

}  // namespace fsdp::train
