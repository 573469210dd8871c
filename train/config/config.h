#pragma once

#include <cstdint>
#include <string>

namespace fsdp::train {

// What a training run is told. Meaning, legal values and documentation of each member are in option_table.cpp; the
// initialisers here are the defaults.

struct ModelConfig {
  std::string path;
  std::string weights = "auto";
  std::string family = "smollm3";
  int64_t vocab_size = 0;
  int64_t hidden_size = 256;
  int64_t layers = 6;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t ffn_size = 768;
  bool tie_embeddings = true;
  int64_t nope_interval = 4;
  double rope_theta = 10000;
  double norm_eps = 1e-6;
  double init_std = 0.02;
  std::string preset;
  int64_t head_dim = 0;
  int64_t sliding_window = 0;
  int64_t experts = 8;
  int64_t experts_per_token = 2;
  int64_t expert_ffn_size = 0;
  double balance_loss = 0.001;
};

struct DataConfig {
  std::string path;
  int64_t sequence_length = 512;
  std::string train_split = "train";
  std::string heldout_split = "heldout";
  bool balance = false;
  int64_t sequence_warmup_steps = 0;
  int64_t sequence_warmup_length = 0;
};

struct TrainConfig {
  int64_t steps = 1000;
  double fit_minutes = 0;
  double max_minutes = 0;
  int64_t batch_sequences = 16;
  int64_t microbatch_sequences = 0;
  std::string recompute = "none";
  int64_t recompute_every = 1;
  std::string projections = "separate";
  bool cuda_graphs = false;
  int64_t seed = 1;
  double lr = 1e-3;
  double min_lr_ratio = 0.1;
  int64_t warmup_steps = 50;
  double clip = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::string on_nonfinite = "stop";
  int64_t log_every = 10;
  int64_t eval_every = 0;
  int64_t eval_batches = 0;
  int64_t final_eval_batches = 0;
  std::string schedule = "cosine";
  std::string decay = "1-sqrt";
  int64_t decay_steps = 0;
  int64_t warmup_tokens = 0;
  int64_t max_tokens = 0;
  std::string on_spike = "warn";
  int64_t spike_window = 128;
  double spike_threshold = 10;
  bool deterministic = false;
  bool world_invariant = false;
  double peak_tflops = 0;
  std::string profile_steps = "none";
  double z_loss = 0;
  double label_smoothing = 0;
  int64_t batch_tokens = 0;
  int64_t batch_warmup_sequences = 0;
  int64_t batch_warmup_steps = 0;
  double ema = 0;
  std::string eval_weights = "trained";
};

struct OptimizerConfig {
  std::string name = "adamw";
  double momentum = 0.95;
  bool nesterov = true;
  double muon_lr_ratio = 1;
  std::string muon_scale = "match_rms_adamw";
  std::string muon_by = "newton_schulz";
  int64_t muon_iterations = 5;
  std::string muon_dtype = "bf16";
  bool muon_per_head = false;
  std::string adafactor_rate = "absolute";
  std::string moment_code = "dynamic";
  std::string weight_rounding = "nearest";

  // In blocks: each on one rank.
  bool wants_whole_matrices() const { return name == "muon" || name == "adafactor"; }
};

struct ShardConfig {
  std::string strategy = "optim_grads_params";
  int64_t replicas = 1;
  std::string precision = "fp32";
  std::string fp8_recipe = "rowwise";
  std::string fp8_keep = "first,last";
  bool fp8_gather = false;
  std::string reshard_after_forward = "auto";
  int64_t prefetch_depth = 1;
  std::string device = "cpu";
  std::string whole_weights = "in_place";
  std::string offload = "none";
  std::string offload_folder;
};

struct MeshConfig {
  int64_t pp = 1;
  std::string schedule = "1f1b";
  int64_t stages_per_rank = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  std::string cp_exchange = "auto";
  int64_t ep = 1;
};

struct CheckpointConfig {
  std::string resume = "never";
  int64_t every_steps = 0;
  double every_minutes = 0;
  int64_t keep_last = 2;
  int64_t keep_every = 0;
  bool async = true;
  int64_t threads = 0;
  std::string content = "all";
};

struct CheckConfig {
  std::string data = "auto";
  int64_t compute_twice_every = 0;
  int64_t compare_replicas_every = 0;
  int64_t stragglers_every = 10;
};

struct OutputConfig {
  std::string folder = "runs/train";
  std::string overwrite = "refuse";
  std::string hardware;
  bool tensorboard = false;
  std::string prometheus;
};

struct SampleConfig {
  int64_t every_steps = 0;
  std::string prompts;
  int64_t max_tokens = 64;
  double temperature = 0.8;
};

struct TuneConfig {
  std::string method = "full";
  std::string frozen;
  std::string trained;
  int64_t lora_rank = 16;
  double lora_alpha = 32;
  std::string lora_targets = "all-linear";
  double lora_dropout = 0;
  std::string lora_from;
  std::string lora_scale = "rank";
  std::string lora_kind = "lora";
  std::string lora_init = "random";
  std::string base = "bf16";
  std::string loss = "sft";
  double dpo_beta = 0.1;
  double dpo_label_smoothing = 0;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ShardConfig shard;
  MeshConfig mesh;
  CheckpointConfig checkpoint;
  CheckConfig check;
  OutputConfig output;
  SampleConfig sample;
  TuneConfig tune;
};

}  // namespace fsdp::train
