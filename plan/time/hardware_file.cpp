#include "plan/time/hardware_file.h"

#include <set>
#include <stdexcept>
#include <utility>

#include "io/base/error.h"
#include "io/base/json.h"

namespace fsdp::plan::time {
namespace {

using nlohmann::json;

template <class Enum>
using Names = std::vector<std::pair<const char*, Enum>>;

const Names<Execution> kExecutions = {{"program_computes", Execution::kProgramComputes},
                                      {"host_runs_ahead", Execution::kHostRunsAhead}};
const Names<Sharing> kSharings = {{"even", Sharing::kEven}, {"queue", Sharing::kQueue}};
const Names<Hops> kHops = {{"ring", Hops::kRing}, {"tree", Hops::kTree}, {"none", Hops::kNone}};
const Names<Dtype> kDtypes = {{"fp32", Dtype::kFp32}, {"bf16", Dtype::kBf16}, {"fp8", Dtype::kFp8}};

template <class Enum>
std::string name_of(Enum value, const Names<Enum>& names) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) return name;
  }
  return "";
}

template <class Enum>
std::string listed(const Names<Enum>& names) {
  std::string text;
  for (const auto& [name, value] : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

// An object whose keys are taken one after the other; those that nobody took are unknown.
class Fields {
 public:
  Fields(const json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {
    if (!object.is_object()) refuse(prefix_.empty() ? "hardware" : prefix_, object.dump(), "an object");
  }

  [[noreturn]] void refuse(const std::string& field, const std::string& got, const std::string& expected) const {
    throw io::Error(io::ErrorKind::kUsage, "[hardware] " + io::in_quotes(origin_) + ", " + field + ": got " +
                                               io::in_quotes(got) + ", expected " + expected + ".");
  }

  const json* find(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const json& get(const char* key, const char* expected) {
    const json* value = find(key);
    if (value == nullptr) refuse(path(key), "nothing", expected);
    return *value;
  }

  void read(const char* key, double& value) {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number()) refuse(path(key), found->dump(), "a number");
    value = found->get<double>();
  }

  void read(const char* key, int& value) {
    const json* found = find(key);
    if (found == nullptr) return;
    const bool fits = found->is_number_integer() && *found >= 0 && *found <= 1'000'000;
    if (!fits) refuse(path(key), found->dump(), "a whole number from 0 to 1000000");
    value = found->get<int>();
  }

  void read(const char* key, std::string& value) {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_string()) refuse(path(key), found->dump(), "a text");
    value = found->get<std::string>();
  }

  template <class Enum>
  void read(const char* key, Enum& value, const Names<Enum>& names) {
    std::string text = name_of(value, names);
    read(key, text);
    for (const auto& [name, candidate] : names) {
      if (text != name) continue;
      value = candidate;
      return;
    }
    refuse(path(key), text, "one of " + listed(names));
  }

  void read(const char* key, Link& link) {
    Fields fields(get(key, "an object with bytes_per_second"), origin_, path(key));
    if (fields.find("bytes_per_second") == nullptr)
      refuse(fields.path("bytes_per_second"), "nothing", "bytes that one rank receives in a second");
    fields.read("bytes_per_second", link.bytes_per_second);
    fields.read("hop_us", link.hop_us);
    fields.finish();
  }

  // Refuses what nobody asked for.
  void finish() const {
    std::string known;
    for (const std::string& key : known_) known.append(known.empty() ? "" : ", ").append(key);
    for (const auto& item : object_.items()) {
      if (known_.count(item.key()) == 0) refuse(prefix_.empty() ? "field" : prefix_, item.key(), "one of " + known);
    }
  }

  std::string path(const char* key) const { return prefix_.empty() ? key : prefix_ + "." + key; }

 private:
  const json& object_;
  std::string origin_;
  std::string prefix_;
  std::set<std::string> known_;
};

void read_peaks(Fields& fields, const std::string& origin, Hardware& hardware) {
  Fields peaks(fields.get("peak_flops", "an object, such as {\"bf16\": 9.89e14}"), origin, "peak_flops");
  for (const auto& [name, dtype] : kDtypes) {
    if (peaks.find(name) != nullptr) peaks.read(name, hardware.peak_flops[dtype]);
  }
  peaks.finish();
}

}  // namespace

Hardware parse_hardware(const json& json, const std::string& origin) {
  Fields fields(json, origin);
  Hardware hardware;
  hardware.name = origin;
  fields.read("name", hardware.name);
  fields.read("execution", hardware.execution, kExecutions);
  read_peaks(fields, origin, hardware);
  fields.read("product_efficiency", hardware.product_efficiency);
  fields.read("tile_rows", hardware.tile_rows);
  fields.read("tile_columns", hardware.tile_columns);
  fields.read("processors", hardware.processors);
  fields.read("attention_forward_efficiency", hardware.attention_forward_efficiency);
  fields.read("attention_backward_efficiency", hardware.attention_backward_efficiency);
  fields.read("attention_forward_row_us", hardware.attention_forward_row_us);
  fields.read("attention_backward_row_us", hardware.attention_backward_row_us);
  fields.read("masked_attention_forward_efficiency", hardware.masked_attention_forward_efficiency);
  fields.read("masked_attention_backward_efficiency", hardware.masked_attention_backward_efficiency);
  fields.get("memory_bytes_per_second", "bytes that are read or written in a second");
  fields.read("memory_bytes_per_second", hardware.memory_bytes_per_second);
  fields.read("memory_efficiency", hardware.memory_efficiency);
  fields.read("launch_us", hardware.launch_us);
  fields.read("operator_us", hardware.operator_us);
  fields.read("node", hardware.node);
  fields.read("network", hardware.network);
  fields.read("network_efficiency", hardware.network_efficiency);
  fields.read("hops", hardware.hops, kHops);
  fields.read("start_us", hardware.start_us);
  fields.read("sharing", hardware.sharing, kSharings);
  fields.read("slowdown_by_transfers", hardware.slowdown_by_transfers);
  fields.finish();
  try {
    check(hardware);
  } catch (const std::invalid_argument& error) {
    throw io::Error(io::ErrorKind::kUsage, std::string(error.what()) + " In " + io::in_quotes(origin) + ".");
  }
  return hardware;
}

Hardware read_hardware_file(const std::filesystem::path& path) {
  const io::JsonLimits limits{.max_bytes = 1 << 20, .max_depth = 4, .kind = io::ErrorKind::kUsage};
  return parse_hardware(io::read_json_file(path, limits), path.string());
}

json to_json(const Hardware& hardware) {
  json peaks = json::object();
  for (const auto& [dtype, flops] : hardware.peak_flops) peaks[name_of(dtype, kDtypes)] = flops;
  const auto link = [](const Link& of) {
    return json{{"bytes_per_second", of.bytes_per_second}, {"hop_us", of.hop_us}};
  };
  return {{"name", hardware.name},
          {"execution", name_of(hardware.execution, kExecutions)},
          {"peak_flops", peaks},
          {"product_efficiency", hardware.product_efficiency},
          {"tile_rows", hardware.tile_rows},
          {"tile_columns", hardware.tile_columns},
          {"processors", hardware.processors},
          {"attention_forward_efficiency", hardware.attention_forward_efficiency},
          {"attention_backward_efficiency", hardware.attention_backward_efficiency},
          {"attention_forward_row_us", hardware.attention_forward_row_us},
          {"attention_backward_row_us", hardware.attention_backward_row_us},
          {"masked_attention_forward_efficiency", hardware.masked_attention_forward_efficiency},
          {"masked_attention_backward_efficiency", hardware.masked_attention_backward_efficiency},
          {"memory_bytes_per_second", hardware.memory_bytes_per_second},
          {"memory_efficiency", hardware.memory_efficiency},
          {"launch_us", hardware.launch_us},
          {"operator_us", hardware.operator_us},
          {"node", link(hardware.node)},
          {"network", link(hardware.network)},
          {"network_efficiency", hardware.network_efficiency},
          {"hops", name_of(hardware.hops, kHops)},
          {"start_us", hardware.start_us},
          {"sharing", name_of(hardware.sharing, kSharings)},
          {"slowdown_by_transfers", hardware.slowdown_by_transfers}};
}

Hardware choose_hardware(const std::string& name_or_path) {
  std::string names;
  for (const std::string& name : hardware_names()) {
    if (name == name_or_path) return find_hardware(name);
    names += name + ", ";
  }
  if (std::filesystem::exists(name_or_path)) return read_hardware_file(name_or_path);
  throw io::Error(io::ErrorKind::kUsage, "[hardware] got " + io::in_quotes(name_or_path) + ", expected one of " +
                                             names + "or the path of a hardware file (docs/plan_time.md).");
}

}  // namespace fsdp::plan::time
