#include "benchmarks/support/published_runs.h"

#include <cmath>

namespace fsdp::benchmarks {
namespace {

using namespace plan::time;

// ---- models

// MPT: no biases, layer norms, plain GELU of 4 times the width, learnt positions, tied embeddings.
DecoderShape mpt(int64_t hidden, int64_t heads, int64_t layers, int64_t sequence) {
  DecoderShape shape;
  shape.vocab_size = 50368;
  shape.hidden_size = hidden;
  shape.intermediate_size = 4 * hidden;
  shape.num_layers = layers;
  shape.num_heads = shape.num_key_heads = heads;
  shape.head_dim = hidden / heads;
  shape.mlp = Mlp::kPlain;
  shape.ties_embeddings = true;
  shape.num_positions = sequence;
  return shape;
}

DecoderShape mpt(const std::string& size, int64_t sequence) {
  if (size == "760m") return mpt(1536, 12, 24, sequence);
  if (size == "1b") return mpt(2048, 16, 24, sequence);
  if (size == "3b") return mpt(2560, 20, 32, sequence);
  if (size == "7b") return mpt(4096, 32, 32, sequence);
  if (size == "13b") return mpt(5120, 40, 40, sequence);
  if (size == "30b") return mpt(7168, 56, 48, sequence);
  return mpt(8192, 64, 80, sequence);
}

DecoderShape llama(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                   int64_t key_heads) {
  DecoderShape shape;
  shape.vocab_size = vocabulary;
  shape.hidden_size = hidden;
  shape.intermediate_size = intermediate;
  shape.num_layers = layers;
  shape.num_heads = heads;
  shape.num_key_heads = key_heads;
  shape.head_dim = hidden / heads;
  return shape;
}

// ---- llm-foundry: FSDP1, amp_bf16 with "DEFAULT" mixed precision (bf16 weights, fp32 reductions), eager. FSDP1
// gathers into the parameters' own memory; its flat gradient is put together by one copy in bf16.

struct Foundry {
  const char* size;
  int64_t sequence;
  int gpus;
  int64_t microbatch;
  int accumulation;
  bool checkpoints;
  double tokens_per_second;
};

constexpr Foundry kH100Full[] = {
    {"70b", 2048, 512, 8, 1, true, 1007},    {"70b", 2048, 256, 8, 1, true, 1035},
    {"70b", 2048, 128, 8, 1, true, 1058},    {"30b", 2048, 512, 8, 1, true, 2115},
    {"30b", 2048, 256, 8, 1, true, 2148},    {"30b", 2048, 128, 8, 1, true, 2199},
    {"13b", 2048, 512, 16, 1, true, 4952},   {"13b", 2048, 256, 16, 1, true, 4989},
    {"13b", 2048, 128, 16, 1, true, 5080},   {"7b", 2048, 512, 6, 1, false, 9670},
    {"7b", 2048, 256, 6, 1, false, 10119},   {"7b", 2048, 128, 6, 1, false, 10475},
    {"70b", 2048, 64, 8, 4, true, 1039},     {"70b", 2048, 32, 2, 16, true, 882},
    {"30b", 8192, 8, 1, 21, true, 1384},     {"30b", 4096, 8, 1, 21, true, 1802},
    {"30b", 2048, 32, 14, 3, true, 2308},    {"30b", 2048, 16, 10, 3, true, 2263},
    {"30b", 2048, 8, 3, 21, true, 2002},     {"30b", 1024, 8, 6, 21, true, 2084},
    {"13b", 32768, 8, 1, 3, true, 1976},     {"13b", 16384, 8, 3, 3, true, 2985},
    {"13b", 4096, 8, 10, 3, true, 4717},     {"13b", 2048, 64, 2, 1, false, 4800},
    {"13b", 2048, 32, 2, 1, false, 4811},    {"13b", 2048, 16, 2, 1, false, 4767},
    {"13b", 2048, 8, 2, 1, false, 4792},     {"13b", 1024, 8, 40, 3, true, 5502},
    {"7b", 65536, 8, 1, 2, true, 1956},      {"7b", 32768, 8, 2, 2, true, 3318},
    {"7b", 8192, 8, 8, 2, true, 6935},       {"7b", 4096, 8, 16, 2, true, 8611},
    {"7b", 2048, 8, 6, 1, false, 10643},     {"7b", 1024, 8, 64, 2, true, 10203},
    {"3b", 65536, 8, 1, 2, true, 3262},      {"3b", 32768, 8, 3, 6, true, 5873},
    {"3b", 16384, 8, 1, 6, false, 11152},    {"3b", 8192, 8, 3, 6, false, 16578},
    {"3b", 4096, 8, 5, 6, false, 20964},     {"3b", 2048, 64, 6, 3, false, 22525},
    {"3b", 2048, 32, 6, 3, false, 23021},    {"3b", 2048, 16, 10, 3, false, 24142},
    {"3b", 1024, 8, 20, 6, false, 27046},    {"3b", 512, 8, 40, 6, false, 27965},
    {"1b", 65536, 8, 1, 2, true, 5506},      {"1b", 32768, 8, 1, 4, false, 12025},
    {"1b", 16384, 8, 2, 4, false, 19649},    {"1b", 8192, 8, 3, 4, false, 29157},
    {"1b", 4096, 8, 7, 4, false, 38535},     {"1b", 2048, 64, 20, 1, false, 44402},
    {"1b", 2048, 32, 20, 1, false, 45130},   {"1b", 2048, 16, 20, 1, false, 46037},
    {"1b", 2048, 8, 14, 1, false, 45455},    {"1b", 1024, 8, 18, 4, false, 48910},
    {"1b", 512, 8, 56, 4, false, 52275},     {"760m", 32768, 8, 1, 2, false, 16291},
    {"760m", 16384, 8, 3, 2, false, 27815},  {"760m", 8192, 8, 6, 2, false, 41825},
    {"760m", 4096, 8, 12, 2, false, 55459},  {"760m", 2048, 32, 24, 1, false, 67971},
    {"760m", 2048, 16, 24, 1, false, 68551}, {"760m", 2048, 8, 24, 2, false, 63147},
    {"760m", 1024, 8, 48, 2, false, 78581},  {"760m", 512, 8, 96, 2, false, 83749},
};

// SHARD_GRAD_OP
constexpr Foundry kH100GradOp[] = {
    {"3b", 2048, 512, 8, 1, false, 21664},  {"3b", 2048, 256, 8, 1, false, 22772},
    {"3b", 2048, 128, 8, 1, false, 23422},  {"1b", 2048, 512, 12, 1, false, 39837},
    {"1b", 2048, 256, 12, 1, false, 42555}, {"1b", 2048, 128, 12, 1, false, 44123},
};

// 200 Gb/s a GPU.
constexpr Foundry kA100[] = {
    {"70b", 2048, 64, 8, 4, true, 410},  {"70b", 2048, 32, 2, 16, true, 373},  {"30b", 8192, 8, 1, 21, true, 574},
    {"30b", 4096, 8, 1, 21, true, 814},  {"30b", 2048, 8, 3, 21, true, 916},   {"30b", 1024, 8, 6, 21, true, 946},
    {"13b", 8192, 8, 5, 3, true, 1795},  {"13b", 4096, 8, 10, 3, true, 2060},  {"13b", 2048, 8, 2, 3, false, 2262},
    {"13b", 1024, 8, 40, 3, true, 2330}, {"7b", 8192, 8, 8, 2, true, 3206},    {"7b", 4096, 8, 16, 2, true, 3684},
    {"7b", 2048, 8, 6, 2, false, 4641},  {"7b", 1024, 8, 64, 2, true, 4357},   {"3b", 8192, 8, 3, 6, false, 7695},
    {"3b", 4096, 8, 5, 6, false, 9457},  {"3b", 2048, 8, 10, 2, false, 10811},
};

PublishedRun foundry(const Foundry& row, const char* hardware, Strategy strategy, const Shares& shares) {
  PublishedRun run;
  run.source = "llm-foundry";
  run.name = std::string(row.size) + ", " + std::to_string(row.sequence) + " tokens, " + std::to_string(row.gpus) +
             " " + hardware + (strategy == Strategy::kOptimGrads ? ", SHARD_GRAD_OP" : "");
  run.hardware = find_hardware(hardware, shares);
  run.role = row.gpus == 8 && run.hardware.name == "h100-sxm" ? RunRole::kFit : RunRole::kPredict;
  run.shape = mpt(row.size, row.sequence);
  run.setup.sequence_length = row.sequence;
  run.setup.sequences = row.microbatch;
  run.setup.microbatches = row.accumulation;
  run.setup.recompute = row.checkpoints ? Recompute::kBlock : Recompute::kNone;
  run.setup.fusion = Fusion::kEager;
  run.setup.reduce_copy_bytes = 18;
  run.hardware.attention_forward_efficiency /= 2;
  run.hardware.attention_backward_efficiency /= 2;
  run.setup.strategy = strategy;
  run.setup.shard_ranks = row.gpus;
  run.tokens_per_second = row.tokens_per_second;
  return run;
}

// ---- torchtitan, Llama 3.1 8B, 8192 tokens, 2 sequences, FSDP2, selective recomputation "op", fp32 reductions. Its
// H100 have HBM2e (2.4 TB/s) and a limit of 500 W where others have 700 W: the clock that power leaves follows its cube
// root. FSDP2 copies weights out of, and gradients into, the buffers that travel.
PublishedRun torchtitan(const std::string& name, int gpus, Fusion fusion, double tokens_per_second,
                        const Shares& shares) {
  PublishedRun run;
  run.source = "torchtitan";
  run.name = "Llama 3.1 8B, " + name + ", " + std::to_string(gpus) + " h100-sxm of 500 W";
  run.role = gpus == 8 ? RunRole::kFit : RunRole::kPredict;
  run.hardware = find_hardware("h100-sxm", shares);
  run.hardware.memory_bytes_per_second = 2.4e12;
  run.hardware.product_efficiency *= std::cbrt(500.0 / 700);
  run.hardware.attention_forward_efficiency *= std::cbrt(500.0 / 700);
  run.hardware.attention_backward_efficiency *= std::cbrt(500.0 / 700);
  run.shape = llama(128256, 4096, 14336, 32, 32, 8);
  run.setup.sequence_length = 8192;
  run.setup.sequences = 2;
  run.setup.recompute = Recompute::kEverySecondProduct;
  run.setup.fusion = fusion;
  run.setup.gather_copy_bytes = 4;
  run.setup.reduce_copy_bytes = 6;
  run.setup.shard_ranks = gpus;
  run.tokens_per_second = tokens_per_second;
  return run;
}

// ---- IBM fms-fsdp, Llama 2, 4096 tokens, 2 sequences, FSDP1 with torch.compile, bf16 reductions. Nodes of 8 GPUs
// share 800 Gb/s (H100) or 400 Gb/s (A100). `recomputed`: the share of blocks, from the published HFU / MFU (forward is
// a third).
PublishedRun fms(const std::string& size, const DecoderShape& shape, bool is_h100, double recomputed,
                 double tokens_per_second, const Shares& shares) {
  PublishedRun run;
  run.source = "fms-fsdp";
  run.hardware = find_hardware(is_h100 ? "h100-sxm" : "a100-80gb", shares);
  run.hardware.network.bytes_per_second = (is_h100 ? 800e9 : 400e9) / 8 / 8;
  const int gpus = is_h100 ? 96 : 128;
  run.name = "Llama 2 " + size + ", " + std::to_string(gpus) + " " + run.hardware.name;
  run.shape = shape;
  run.setup.sequence_length = 4096;
  run.setup.sequences = 2;
  run.setup.recompute = recomputed > 0 ? Recompute::kBlock : Recompute::kNone;
  run.setup.recomputed_share = recomputed;
  run.setup.reduce_bytes = 2;
  run.setup.reduce_copy_bytes = 8;
  const bool is_hybrid = size == "7b";
  run.setup.strategy = is_hybrid ? Strategy::kHybrid : Strategy::kOptimGradsParams;
  run.setup.shard_ranks = is_hybrid ? 8 : gpus;
  run.setup.replica_ranks = is_hybrid ? gpus / 8 : 1;
  run.tokens_per_second = tokens_per_second;
  return run;
}

// ---- NeMo AutoModel, Llama 3.1 70B: FSDP2 over 64 GPUs of which pairs share a sequence of 8192 tokens, all in bf16,
// recomputation of whole blocks, torch.compile and TransformerEngine, 4 microbatches.
PublishedRun automodel(const Shares& shares) {
  PublishedRun run;
  run.source = "AutoModel";
  run.name = "Llama 3.1 70B, 64 h100-sxm";
  run.hardware = find_hardware("h100-sxm", shares);
  run.shape = llama(128256, 8192, 28672, 80, 64, 8);
  run.setup.sequence_length = 8192;
  run.setup.sequence_ranks = 2;
  run.setup.microbatches = 4;
  run.setup.recompute = Recompute::kBlock;
  run.setup.reduce_bytes = 2;
  run.setup.gather_copy_bytes = 4;
  run.setup.reduce_copy_bytes = 4;
  run.setup.optimizer_bytes = 16;
  run.setup.shard_ranks = 64;
  run.tokens_per_second = 866.77;
  return run;
}

}  // namespace

std::vector<PublishedRun> published_runs(const Shares& shares) {
  std::vector<PublishedRun> runs;
  for (const Foundry& row : kH100Full) runs.push_back(foundry(row, "h100-sxm", Strategy::kOptimGradsParams, shares));
  for (const Foundry& row : kH100GradOp) runs.push_back(foundry(row, "h100-sxm", Strategy::kOptimGrads, shares));
  runs.push_back(torchtitan("eager", 8, Fusion::kEager, 5762, shares));
  runs.push_back(torchtitan("compiled", 8, Fusion::kFused, 6667, shares));
  runs.push_back(torchtitan("eager", 128, Fusion::kEager, 5605, shares));
  runs.push_back(torchtitan("compiled", 128, Fusion::kFused, 6514, shares));
  const DecoderShape llama7 = llama(32000, 4096, 11008, 32, 32, 32), llama13 = llama(32000, 5120, 13824, 40, 40, 40),
                     llama34 = llama(32000, 8192, 22016, 48, 64, 8), llama70 = llama(32000, 8192, 28672, 80, 64, 8);
  runs.push_back(fms("7b", llama7, true, 0, 9600, shares));
  runs.push_back(fms("13b", llama13, true, 1.0 / 3, 4850, shares));
  runs.push_back(fms("34b", llama34, true, 1, 1830, shares));
  runs.push_back(fms("70b", llama70, true, 1, 890, shares));
  runs.push_back(automodel(shares));
  for (const Foundry& row : kA100) runs.push_back(foundry(row, "a100-80gb", Strategy::kOptimGradsParams, shares));
  runs.push_back(fms("7b", llama7, false, 0, 4550, shares));
  runs.push_back(fms("13b", llama13, false, 1.0 / 3, 2150, shares));
  runs.push_back(fms("34b", llama34, false, 1, 820, shares));
  runs.push_back(fms("70b", llama70, false, 1, 410, shares));
  return runs;
}

}  // namespace fsdp::benchmarks
