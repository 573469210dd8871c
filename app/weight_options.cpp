#include "app/weight_options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <system_error>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/base/json.h"
#include "train/base/terminal_text.h"

namespace fsdp::app {

namespace {

constexpr size_t kMaxNamed = 5;  // of the entries that were left out

std::string types_of(const io::CopyPlan& plan) {
  std::map<std::string_view, int64_t> counts;
  for (const io::TensorDeclaration& output : plan.outputs) {
    ++counts[io::name(output.dtype)];
  }
  std::string text;
  for (const auto& [type, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + std::string(type);
  }
  return text;
}

}  // namespace

std::optional<io::DType> parse_weight_dtype(const std::string& verb, const std::string& text,
                                            const std::string& legal) {
  if (text == "keep") {
    return std::nullopt;
  }
  if (text == "bf16") {
    return io::DType::BF16;
  }
  if (text == "fp16") {
    return io::DType::F16;
  }
  if (text == "fp32") {
    return io::DType::F32;
  }
  throw Error(ErrorCode::kUsage, "[" + verb + "] --dtype: got " + io::in_quotes(text) + ", expected " + legal + ".");
}

uint64_t parse_shard_size(const std::string& verb, const std::string& text) {
  static const std::map<std::string, double> units = {{"", 1},          {"B", 1},         {"KB", 1e3},
                                                      {"MB", 1e6},      {"GB", 1e9},      {"TB", 1e12},
                                                      {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  double number = -1;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = units.find(std::string(end.ptr, text.data() + text.size()));
  const double bytes = unit == units.end() ? -1 : number * unit->second;
  if (end.ec != std::errc() || !(bytes == 0 || (bytes >= 1 && bytes < 1e15))) {
    throw Error(ErrorCode::kUsage, "[" + verb + "] --shard-size: got " + io::in_quotes(text) +
                                       ", expected a size such as 5GB, 500MB or 2GiB, or 0 for one file.");
  }
  return static_cast<uint64_t>(bytes);
}

std::optional<nlohmann::json> find_config(const std::string& verb, const std::string& path,
                                          const io::WeightSource& source) {
  if (path.empty()) {
    return source.config();
  }
  nlohmann::json config = io::read_json_file(path, {.kind = io::ErrorKind::kModel});
  if (!config.is_object()) {
    throw Error(ErrorCode::kUsage, "[" + verb + "] --config: got JSON that is no object in " + io::in_quotes(path) +
                                       ", expected a config.json.");
  }
  return config;
}

void print_copy(const std::string& verb, const io::WeightSource& source, const io::CopyPlan& plan,
                const std::string& out) {
  std::printf("%s: %zu tensors (%s), %s, from a %s -> %s\n", verb.c_str(), plan.outputs.size(), types_of(plan).c_str(),
              format_bytes(static_cast<int64_t>(plan.bytes)).c_str(), train::for_terminal(source.description()).c_str(),
              out.c_str());
  const size_t num_other = source.tensors().size() - plan.outputs.size();
  if (num_other > 0) {
    std::printf("%s: left out %zu tensors with other names\n", verb.c_str(), num_other);
  }
  const auto& left_out = source.left_out();
  if (!left_out.empty()) {
    std::string names;
    for (size_t i = 0; i < std::min(left_out.size(), kMaxNamed); ++i) {
      names += (i == 0 ? "" : ", ") + io::in_quotes(left_out[i]);
    }
    std::printf("%s: left out %zu entries that are no weights: %s%s\n", verb.c_str(), left_out.size(), names.c_str(),
                left_out.size() > kMaxNamed ? ", ..." : "");
  }
}

}  // namespace fsdp::app
