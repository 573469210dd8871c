#include "app/gguf/gguf_export.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <vector>

#include "app/gguf/decoder_gguf.h"
#include "app/gguf/vocabulary_gguf.h"
#include "fsdp/base/error.h"
#include "io/base/element_cast.h"
#include "io/base/error.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_export(const std::string& message) { throw Error(ErrorCode::kUsage, "[export] " + message); }

bool all_are(const io::CopyPlan& plan, io::DType dtype) {
  return std::all_of(plan.outputs.begin(), plan.outputs.end(), [&](const io::TensorDeclaration& output) {
    return output.dtype == dtype || !io::is_float(output.dtype);
  });
}

io::GgufTensor gguf_tensor(const io::TensorDeclaration& tensor, io::GgmlType type) {
  const auto name = gguf_name(tensor.name);
  if (!name)
    refuse_export("gguf: got tensor " + io::in_quotes(tensor.name) +
                  ", expected those of a decoder in Hugging Face's names, such as model.layers.0.mlp.up_proj.weight. "
                  "Merge adapters first (--merge).");
  io::GgufTensor result{*name, tensor.shape, type};
  if (tensor.shape.size() < 2) {
    result.type = io::GgmlType::kF32;
  } else if (tensor.shape.back() % io::block_elements(type) != 0) {
    result.type = io::GgmlType::kF16;
  }
  return result;
}

// Pieces of tensors, which arrive in order within each, as whole rows.
class Rows {
 public:
  Rows(io::GgufWriter& writer, const models::DecoderConfig& config) : writer_(writer), config_(config) {}

  // The tensor that the writer knows by `index`.
  void add_tensor(size_t index, const io::TensorDeclaration& tensor) {
    open_.emplace(index, Open{RowOrder(config_, tensor.name), tensor.shape.back(), {}, 0});
  }

  void take(size_t index, io::DType dtype, const void* elements, int64_t count) {
    Open& tensor = open_.at(index);
    const size_t held = tensor.values.size();
    tensor.values.resize(held + static_cast<size_t>(count));
    io::cast_elements(dtype, elements, io::DType::F32, tensor.values.data() + held, count);
    size_t begin = 0;
    const auto width = static_cast<size_t>(tensor.width);
    for (; tensor.values.size() - begin >= width; begin += width)
      writer_.write_row(index, tensor.order(tensor.next_row++), tensor.values.data() + begin);
    tensor.values.erase(tensor.values.begin(), tensor.values.begin() + static_cast<std::ptrdiff_t>(begin));
  }

 private:
  struct Open {
    RowOrder order;
    int64_t width;
    std::vector<float> values;  // of a row that is not whole yet
    int64_t next_row;
  };
  io::GgufWriter& writer_;
  const models::DecoderConfig& config_;
  std::map<size_t, Open> open_;
};

void check_place(const io::OutputFolder& output) {
  std::error_code ignored;
  if (fs::is_directory(output.path, ignored))
    refuse_export("--out: got the folder " + io::in_quotes(output.path.native()) +
                  ", expected a file with --format=gguf, such as model.gguf.");
  if (!output.overwrite && fs::exists(output.path, ignored))
    refuse_export("--out: " + io::in_quotes(output.path.native()) +
                  " exists. Choose another file, or pass --overwrite.");
}

std::string model_name(const fs::path& source) {
  std::error_code ignored;
  return fs::weakly_canonical(source, ignored).filename().string();
}

}  // namespace

io::GgmlType parse_gguf_type(const std::string& text, const io::CopyPlan& plan) {
  static const std::map<std::string, io::GgmlType> types = {{"fp32", io::GgmlType::kF32},
                                                            {"fp16", io::GgmlType::kF16},
                                                            {"bf16", io::GgmlType::kBF16},
                                                            {"q8_0", io::GgmlType::kQ8_0}};
  if (text == "keep") {
    if (all_are(plan, io::DType::BF16)) return io::GgmlType::kBF16;
    return all_are(plan, io::DType::F16) ? io::GgmlType::kF16 : io::GgmlType::kF32;
  }
  const auto found = types.find(text);
  if (found == types.end())
    refuse_export("--dtype: got " + io::in_quotes(text) +
                  ", expected keep, fp32, fp16, bf16 or q8_0 with --format=gguf.");
  return found->second;
}

std::string write_gguf(const io::WeightSource& source, const io::CopyPlan& plan, const io::OutputFolder& output,
                       const nlohmann::json& json, io::GgmlType type) {
  check_place(output);
  const models::DecoderConfig config = models::parse_decoder_config(json, source.path().string());
  const GgufVocabulary vocabulary = gguf_vocabulary(source, config.vocab_size);
  io::GgufMetadata metadata = gguf_metadata(config, model_name(source.path()), type);
  metadata.insert(metadata.end(), vocabulary.metadata.begin(), vocabulary.metadata.end());
  std::vector<io::GgufTensor> tensors;
  for (const io::TensorDeclaration& tensor : plan.outputs) tensors.push_back(gguf_tensor(tensor, type));
  const std::vector<float> divisors = rope_divisors(config);
  if (!divisors.empty())
    tensors.push_back({"rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, io::GgmlType::kF32});
  io::GgufWriter writer(output.path, metadata, tensors);
  if (!divisors.empty()) writer.write_row(tensors.size() - 1, 0, divisors.data());
  Rows rows(writer, config);
  std::vector<size_t> place(source.tensors().size());
  for (size_t i = 0; i < plan.wanted.size(); ++i) {
    place[plan.wanted[i]] = i;
    rows.add_tensor(i, plan.outputs[i]);
  }
  source.read(plan.wanted, [&](size_t tensor, int64_t, int64_t count, const void* elements) {
    rows.take(place[tensor], *source.tensors()[tensor].dtype, elements, count);
  });
  writer.commit();
  return vocabulary.why_none;
}

}  // namespace fsdp::app
