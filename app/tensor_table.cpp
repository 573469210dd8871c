#include "app/tensor_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <tuple>

#include "fsdp/base/units.h"
#include "io/base/error.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

// "model.layers.12.mlp.up_proj.weight": before and after the number, and the number.
struct SplitName {
  std::string before;
  std::optional<int64_t> layer;
  std::string after;
};

SplitName split_name(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  constexpr size_t kMostDigits = 9;
  const size_t place = name.find(kLayers);
  if (place == std::string::npos) return {name, std::nullopt, ""};
  const size_t begin = place + kLayers.size();
  size_t end = begin;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
  if (end == begin || end - begin > kMostDigits) return {name, std::nullopt, ""};
  return {name.substr(0, begin), std::stoll(name.substr(begin, end - begin)), name.substr(end)};
}

// Tensors alike but for their layer.
struct Group {
  SplitName name;
  std::vector<int64_t> shape;
  std::string type;
  uint64_t bytes = 0;  // of one
  std::vector<int64_t> layers;
  size_t count = 0;
};

std::vector<Group> group_tensors(const std::vector<TensorLine>& tensors, LayerLines layers) {
  std::vector<Group> groups;
  std::map<std::tuple<std::string, std::string, std::vector<int64_t>, std::string>, size_t> places;
  for (const TensorLine& tensor : tensors) {
    const SplitName name = split_name(tensor.name);
    const bool joins = layers == LayerLines::kTogether && name.layer;
    const auto place =
        joins ? places.try_emplace({name.before, name.after, tensor.shape, tensor.type}, groups.size()).first->second
              : groups.size();
    if (place == groups.size()) groups.push_back({name, tensor.shape, tensor.type, tensor.bytes, {}, 0});
    ++groups[place].count;
    if (name.layer) groups[place].layers.push_back(*name.layer);
  }
  const auto order = [](const Group& g) { return std::tuple(g.name.before, g.name.layer.value_or(-1), g.name.after); };
  const auto kinds = [](const Group& g) { return std::tuple(g.name.before, g.name.after, g.name.layer.value_or(-1)); };
  std::sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
    return layers == LayerLines::kEach ? order(a) < order(b) : kinds(a) < kinds(b);
  });
  return groups;
}

// "0-35", "0-2,4".
std::string ranges(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string name_text(const Group& group) {
  std::string name = group.name.before;
  if (group.name.layer) name += ranges(group.layers);
  const std::string quoted = io::in_quotes(name + group.name.after);
  return quoted.substr(1, quoted.size() - 2);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string bytes_text(const Group& group) {
  const std::string each = format_bytes(static_cast<int64_t>(group.bytes));
  return group.count == 1 ? each : std::to_string(group.count) + " x " + each;
}

}  // namespace

std::string tensor_table(const std::vector<TensorLine>& tensors, LayerLines layers) {
  std::vector<std::array<std::string, 4>> rows = {{"tensor", "shape", "type", "bytes"}};
  uint64_t total = 0;
  for (const Group& group : group_tensors(tensors, layers)) {
    rows.push_back({name_text(group), shape_text(group.shape), group.type, bytes_text(group)});
    total += group.bytes * group.count;
  }
  rows.push_back({std::to_string(tensors.size()) + " tensors", "", "", format_bytes(static_cast<int64_t>(total))});
  std::array<int, 3> widths{};
  for (const auto& row : rows)
    for (size_t column = 0; column < widths.size(); ++column)
      widths[column] = std::max(widths[column], static_cast<int>(row[column].size()));
  std::string text;
  for (const auto& row : rows)
    text += train::format_text("  %-*s  %-*s  %-*s  %s\n", widths[0], row[0].c_str(), widths[1], row[1].c_str(),
                               widths[2], row[2].c_str(), row[3].c_str());
  return text;
}

}  // namespace fsdp::app
