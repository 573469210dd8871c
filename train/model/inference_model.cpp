#include "train/model/inference_model.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cstdlib>

#include "io/base/error.h"
#include "io/hub/model_folder.h"
#include "kernels/products/nf4/nf4_linear.h"
#include "models/load_weights.h"
#include "models/lora.h"
#include "train/base/agreement.h"
#include "train/model/lora_files.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
constexpr int64_t kAlignment = 64;          // bytes: of a vector register
constexpr int64_t kSharedFrom = 3'000'000;  // parameters

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Moves the parameters, whose values are lost, into one block of large pages: a forward of one token reads them all,
// and would otherwise spend a good part of its time on looking up pages. Matrices that the file has in bf16 become
// bf16: as fp32 they would have the same values and cost twice the reading.
void move_to_large_pages(torch::nn::Module& module, const io::ModelFolder& folder) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : module.parameters()) bytes += round_up(static_cast<int64_t>(parameter.nbytes()));
  const size_t size = (static_cast<size_t>(bytes) + kLargePage - 1) / kLargePage * kLargePage;
  void* memory = std::aligned_alloc(kLargePage, size);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, size, MADV_HUGEPAGE);  // where the system has none, small ones do as well
  const at::Tensor block = at::from_blob(memory, {static_cast<int64_t>(size)}, std::free, at::kByte);
  int64_t begin = 0;
  for (const auto& entry : module.named_parameters()) {
    at::Tensor parameter = entry.value();
    const auto place = folder.find(entry.key());
    const bool is_bf16 = parameter.dim() == 2 && place && place->entry->dtype == io::DType::BF16;
    const at::ScalarType type = is_bf16 ? at::kBFloat16 : parameter.scalar_type();
    const int64_t count = parameter.numel() * static_cast<int64_t>(c10::elementSize(type));
    parameter.set_data(block.narrow(0, begin, count).view(type).view(parameter.sizes()));
    begin += round_up(count);
  }
}

void encode(const std::string& name, models::LinearImpl& linear, c10::Device device) {
  const at::Tensor weight = linear.weight.cpu();
  if (!weight.isfinite().all().item<bool>())
    throw io::Error(io::ErrorKind::kModel, "[load] " + io::in_quotes(name + ".weight") +
                                               ": got a number that is not finite, expected weights that NF4 codes "
                                               "can stand for. Repair the file, or leave --base out.");
  const at::Tensor codes = kernels::encode_nf4(weight).to(device);
  linear.keep_as_nf4();
  linear.named_parameters()["weight_nf4"].set_data(codes);
}

// One matrix after the other, so that numbers and codes of no two are there.
void encode_base(models::Decoder& decoder, BaseFormat base) {
  const at::NoGradGuard no_grad;
  for (const models::NamedLinear& linear : models::linears_in_blocks(decoder))
    encode(linear.name, *linear.module, decoder->device());
  if (base != BaseFormat::kNf4All) return;
  models::Linear embedding = decoder->embed_tokens(), head = decoder->head();
  encode("model.embed_tokens", *embedding, decoder->device());
  if (!head->is_nf4()) encode("lm_head", *head, decoder->device());  // unless it is the embedding
}

models::Decoder load_whole(const models::DecoderConfig& config, const io::ModelFolder& folder, at::ScalarType dtype,
                           c10::Device device, BaseFormat base) {
  models::Decoder decoder(config, at::TensorOptions().dtype(dtype).device(device));
  for (const at::Tensor& parameter : decoder->parameters()) at::Tensor(parameter).set_requires_grad(false);
  if (device.is_cpu() && !has_codes(base)) move_to_large_pages(*decoder, folder);
  models::load_weights(*decoder, config, folder);
  if (has_codes(base)) encode_base(decoder, base);
  return decoder;
}

ShardedModel load_sharded(const models::DecoderConfig& config, const io::ModelFolder& folder,
                          const Precision& precision, const World& world, c10::Device device) {
  ShardOptions options;
  options.precision = precision;
  if (!device.is_cpu()) options.device = device;
  ShardedModel model = parallelize(deferred_zeros(config), make_mesh(world, 1), options);
  on_all_ranks(world, [&] { load_weights(model, folder); });
  return model;
}

}  // namespace

InferenceModel::InferenceModel(const std::filesystem::path& path, const std::string& precision, const World& world,
                               c10::Device device, const std::vector<NamedAdapter>& adapters, BaseFormat base)
    : world_(world) {
  const bool is_worked_in = adapters.size() == 1 && adapters[0].name.empty();
  if (precision == "fp16")
    throw Error(ErrorCode::kUsage, "[precision] got 'fp16', expected fp32 or bf16: fp16 is for training.");
  const Precision types = parse_precision(precision);
  std::optional<models::DecoderConfig> config;
  std::optional<io::ModelFolder> folder;
  const auto open = [&] {
    folder = io::ModelFolder::open(path);  // first: it knows a file from a folder
    config = models::read_decoder_config(path);
  };
  if (world.size == 1) {
    open();
    decoder_ = load_whole(*config, *folder, types.param.value_or(at::kFloat), device, base);
    if (is_worked_in) load_adapter(decoder_, adapters[0].folder);
    if (!is_worked_in && !adapters.empty())
      tokens_ = serve_adapters(decoder_, adapters, types.param.value_or(at::kFloat));
  } else {
    on_all_ranks(world, open);
    sharded_ = load_sharded(*config, *folder, types, world, device);
    if (is_worked_in) merge_adapter(*sharded_, world, adapters[0].folder);
    if (!is_worked_in && !adapters.empty())
      tokens_ = serve_adapters(*sharded_, world, adapters, types.param.value_or(at::kFloat));
    decoder_ = sharded_->decoder;
    forward_only_.emplace(sharded_->root);
  }
  decoder_->eval();
}

void InferenceModel::idle_forward() {
  const at::NoGradGuard no_grad;
  if (tokens_) tokens_->choose({models::TokenAdapters::kNone});
  decoder_->forward(at::zeros({1, 1}, at::kLong).to(decoder_->device()));
}

int useful_threads(int64_t num_parameters, int available) { return num_parameters < kSharedFrom ? 1 : available; }

}  // namespace fsdp::train
