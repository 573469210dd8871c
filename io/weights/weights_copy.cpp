#include "io/weights/weights_copy.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "io/base/atomic_file.h"
#include "io/base/element_cast.h"
#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/base/staged_folder.h"
#include "io/dcp/dcp_writer.h"
#include "io/hub/generation_config.h"

namespace fsdp::io {

namespace {

Error copy_error(const std::filesystem::path& source, const std::string& detail) {
  return Error(ErrorKind::kUsage, "[copy] " + in_quotes(source.native()) + ": " + detail);
}

// The first parts of the names, for a prefix that matches nothing.
std::string beginnings(const WeightSource& source) {
  std::set<std::string> parts;
  for (const WeightTensor& tensor : source.tensors()) {
    const size_t dot = tensor.name.find('.');
    parts.insert(dot == std::string::npos ? tensor.name : tensor.name.substr(0, dot + 1));
    if (parts.size() == 6) break;
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + in_quotes(part);
  return text.empty() ? "no tensors at all" : text;
}

DType stored_type(const WeightSource& source, const WeightTensor& tensor, std::optional<DType> dtype) {
  if (!tensor.dtype) {
    throw copy_error(source.path(), "tensor " + in_quotes(tensor.name) + ": got " + tensor.type +
                                        ", expected a type that safetensors has. Choose other tensors with --prefix.");
  }
  const bool is_scaled = *tensor.dtype == DType::F8_E4M3 || *tensor.dtype == DType::F8_E5M2;
  if (dtype && is_scaled) {
    throw copy_error(source.path(), "tensor " + in_quotes(tensor.name) + ": got " + tensor.type +
                                        ", expected a type that converts without scales. Pass --dtype=keep.");
  }
  return dtype && is_float(*tensor.dtype) ? *dtype : *tensor.dtype;
}

// A SafetensorsWriter or a DcpWriter takes everything the plan wants, converted.
template <class Writer>
void copy_elements(const WeightSource& source, const CopyPlan& plan, Writer& writer) {
  std::vector<size_t> place(source.tensors().size());
  for (size_t i = 0; i < plan.wanted.size(); ++i) place[plan.wanted[i]] = i;
  std::vector<char> converted;
  source.read(plan.wanted, [&](size_t tensor, int64_t first, int64_t count, const void* elements) {
    const TensorDeclaration& output = plan.outputs[place[tensor]];
    const DType from = *source.tensors()[tensor].dtype;
    const void* data = elements;
    if (from != output.dtype) {
      converted.resize(static_cast<size_t>(count) * item_size(output.dtype));
      cast_elements(from, elements, output.dtype, converted.data(), count);
      data = converted.data();
    }
    writer.write(output.name, first, count, data);
  });
}

// What config.json calls the one type of all floating-point tensors; "" if they have several.
std::string dtype_name(const CopyPlan& plan) {
  std::set<DType> types;
  for (const TensorDeclaration& output : plan.outputs)
    if (is_float(output.dtype)) types.insert(output.dtype);
  if (types.size() != 1) return "";
  switch (*types.begin()) {
    case DType::BF16:
      return "bfloat16";
    case DType::F16:
      return "float16";
    case DType::F64:
      return "float64";
    default:
      return "float32";
  }
}

void write_json(const std::filesystem::path& path, const nlohmann::json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

void check_not_source(const std::filesystem::path& source, const OutputFolder& output) {
  std::error_code error;
  if (std::filesystem::equivalent(source, output.path, error) && !error) {
    throw copy_error(source, "got the same folder as source and output, expected two. Choose another output.");
  }
}

void set_dtype(nlohmann::json& config, const std::string& dtype) {
  const bool is_old = config.contains("torch_dtype");
  if (is_old) config["torch_dtype"] = dtype;
  if (!is_old || config.contains("dtype")) config["dtype"] = dtype;
}

CopyPlan plan_copy(const WeightSource& source, std::string_view prefix, std::optional<DType> dtype) {
  CopyPlan plan;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    if (!tensor.name.starts_with(prefix) || tensor.name.size() == prefix.size()) continue;
    const DType stored = stored_type(source, tensor, dtype);
    plan.wanted.push_back(i);
    plan.outputs.push_back({tensor.name.substr(prefix.size()), stored, tensor.shape});
    plan.bytes += static_cast<uint64_t>(tensor.numel()) * item_size(stored);
  }
  if (plan.wanted.empty()) {
    throw copy_error(source.path(), "got no tensor below the prefix " + in_quotes(prefix) +
                                        ", expected names that start with " + beginnings(source) +
                                        ". Pass one of these as --prefix.");
  }
  return plan;
}

void write_model_folder(const WeightSource& source, const CopyPlan& plan, const OutputFolder& output,
                        std::optional<nlohmann::json> config) {
  check_not_source(source.path(), output);
  StagedFolder staging(output.path, output.overwrite, plan.bytes);
  ModelFolderWriter writer(staging.path(), plan.outputs, output.max_shard_bytes);
  copy_elements(source, plan, writer);
  writer.commit();
  if (config) {
    if (const std::string dtype = dtype_name(plan); !dtype.empty()) set_dtype(*config, dtype);
    write_json(staging.path() / "config.json", *config);
    write_json(staging.path() / "generation_config.json", generation_config(*config));  // the source's own wins
  }
  for (const auto& [name, text] : source.companion_texts()) write_file_atomically(staging.path() / name, text);
  for (const std::filesystem::path& companion : source.companions()) {
    copy_file_atomically(companion, staging.path() / companion.filename(), ErrorKind::kModel);
  }
  staging.publish();
}

void write_dcp_folder(const WeightSource& source, const CopyPlan& plan, const OutputFolder& output,
                      const std::string& prefix) {
  check_not_source(source.path(), output);
  StagedFolder staging(output.path, output.overwrite, plan.bytes);
  DcpWriter writer(staging.path(), plan.outputs, prefix);
  copy_elements(source, plan, writer);
  writer.commit();
  staging.publish();
}

}  // namespace fsdp::io
