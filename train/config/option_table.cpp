// 579 lines because it is one table: the options of the trainer.

#include "train/config/option_table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "fsdp/strategy/strategy.h"
#include "train/base/edit_distance.h"
#include "train/config/profiled_steps.h"

namespace fsdp::train {
namespace {

Rule any() { return {}; }
Rule at_least(double least) { return {.least = least, .most = {}, .choices = {}, .accepts = {}}; }
Rule between(double least, double most) { return {.least = least, .most = most, .choices = {}, .accepts = {}}; }
Rule one_of(std::vector<std::string> choices, std::function<bool(const std::string&)> accepts = {}) {
  return {.least = {}, .most = {}, .choices = std::move(choices), .accepts = std::move(accepts)};
}

bool is_profile(const std::string& text) { return parse_profiled_steps(text).has_value(); }

bool is_strategy(const std::string& text) {
  try {
    parse_strategy(text);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

// The shortest text that reads back as the same number.
std::string shortest(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

// As `shortest`, but always a TOML float ("1.0", not "1").
std::string toml_number(double value) {
  std::string text = shortest(value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string toml_text(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04X", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

#define FSDP_SLOT(member) [](Config& config) -> Slot { return &config.member; }

std::vector<Option> model_options() {
  return {
      {"model.path", FSDP_SLOT(model.path), any(),
       "Hugging Face folder, or a config.json, which no key below may contradict; empty: the model is model.preset or "
       "made from the keys below"},
      {"model.weights", FSDP_SLOT(model.weights), one_of({"auto", "load", "random"}),
       "load: from model.path; random: drawn from train.seed; auto: load where model.path has weights"},
      {"model.family", FSDP_SLOT(model.family),
       one_of({"smollm3", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"}),
       "architecture of a model made here"},
      {"model.vocab_size", FSDP_SLOT(model.vocab_size), at_least(0), "0: what the data set needs"},
      {"model.hidden_size", FSDP_SLOT(model.hidden_size), at_least(2), "width of the residual stream"},
      {"model.layers", FSDP_SLOT(model.layers), at_least(1), "decoder blocks"},
      {"model.heads", FSDP_SLOT(model.heads), at_least(1), "attention heads"},
      {"model.kv_heads", FSDP_SLOT(model.kv_heads), at_least(1), "heads of keys and values; divides heads"},
      {"model.ffn_size", FSDP_SLOT(model.ffn_size), at_least(1), "inner width of the gated MLP"},
      {"model.tie_embeddings", FSDP_SLOT(model.tie_embeddings), any(), "one matrix for input and output embedding"},
      {"model.nope_interval", FSDP_SLOT(model.nope_interval), at_least(0),
       "smollm3: every n-th layer has no rotary embedding; 0: all have it"},
      {"model.rope_theta", FSDP_SLOT(model.rope_theta), at_least(1), "base of the rotary frequencies"},
      {"model.norm_eps", FSDP_SLOT(model.norm_eps), at_least(0), "epsilon of the RMS norms"},
      {"model.init_std", FSDP_SLOT(model.init_std), at_least(0), "standard deviation of random initial matrices"},
      {"model.preset", FSDP_SLOT(model.preset), any(),
       "a published model by name, such as smollm3-3b, with random weights; `fsdp inspect --presets` lists them"},
      {"model.head_dim", FSDP_SLOT(model.head_dim), at_least(0),
       "width of an attention head, even; 0: hidden_size / heads"},
      {"model.sliding_window", FSDP_SLOT(model.sliding_window), at_least(0),
       "so many tokens a token sees, itself included; 0: all before it; not for llama"},
      {"model.experts", FSDP_SLOT(model.experts), at_least(1),
       "mixtral, qwen3_moe: experts of a layer, in place of its MLP; see docs/experts.md"},
      {"model.experts_per_token", FSDP_SLOT(model.experts_per_token), at_least(1),
       "mixtral, qwen3_moe: how many of them a token takes"},
      {"model.expert_ffn_size", FSDP_SLOT(model.expert_ffn_size), at_least(0),
       "qwen3_moe: inner width of an expert; 0: model.ffn_size, as mixtral has it"},
      {"model.balance_loss", FSDP_SLOT(model.balance_loss), at_least(0),
       "mixtral, qwen3_moe: factor of the loss that keeps experts equally busy, router_aux_loss_coef of config.json"},
  };
}

std::vector<Option> data_options() {
  return {
      {"data.path", FSDP_SLOT(data.path), any(),
       "data set folder, made by `fsdp prepare`; or a mixture of several with weights: `web:0.7,books:0.3`, as text or "
       "as a list"},
      {"data.sequence_length", FSDP_SLOT(data.sequence_length), at_least(2),
       "tokens per sequence; documents are packed into sequences, attention stays inside a document"},
      {"data.train_split", FSDP_SLOT(data.train_split), any(), "split that is trained on"},
      {"data.heldout_split", FSDP_SLOT(data.heldout_split), any(), "split that is evaluated on; empty: none"},
      {"data.balance", FSDP_SLOT(data.balance), any(),
       "deal the sequences of a batch so that attention, whose work grows with the length of documents, takes all "
       "ranks "
       "equally long"},
      {"data.sequence_warmup_steps", FSDP_SLOT(data.sequence_warmup_steps), between(0, 1e9),
       "in the first so many steps sequences are cut into equal pieces, each a sequence of its own, of which there are "
       "fewer and fewer; 0: never"},
      {"data.sequence_warmup_length", FSDP_SLOT(data.sequence_warmup_length), at_least(0),
       "of that: at most so many tokens has a piece in the first step; from there the limit grows by a line"},
  };
}

// NOLINTNEXTLINE(readability-function-size): a table
std::vector<Option> train_options() {
  return {
      {"train.steps", FSDP_SLOT(train.steps), at_least(0),
       "optimizer steps; the learning rate is laid out over all of them; 0: as many as train.max_tokens needs"},
      {"train.fit_minutes", FSDP_SLOT(train.fit_minutes), at_least(0),
       "once, at the end of the warm-up, lower train.steps so that training takes this long; 0: never. The steps "
       "chosen "
       "are printed and stored, and repeat the run when given as train.steps"},
      {"train.max_minutes", FSDP_SLOT(train.max_minutes), at_least(0),
       "stop after the step in which this is reached, wherever the learning rate is then; 0: no limit"},
      {"train.batch_sequences", FSDP_SLOT(train.batch_sequences), at_least(1),
       "sequences per step, over all ranks; a multiple of ranks x microbatch_sequences, where ranks along mesh.pp, "
       "mesh.tp and mesh.cp count as one"},
      {"train.microbatch_sequences", FSDP_SLOT(train.microbatch_sequences), at_least(0),
       "sequences per forward and backward of one rank; 0: all that a rank has in a step"},
      {"train.recompute", FSDP_SLOT(train.recompute), one_of({"none", "elementwise", "gate_up", "block", "offload"}),
       "what blocks compute again in the backward rather than keep: nothing; the norms' outputs and the activated "
       "product; gate and up as well; everything but the block's input; on GPUs offload: that too leaves, to the "
       "host's "
       "memory, while blocks compute"},
      {"train.recompute_every", FSDP_SLOT(train.recompute_every), at_least(1),
       "only the first of every n blocks does what train.recompute says"},
      {"train.projections", FSDP_SLOT(train.projections), one_of({"separate", "fused"}),
       "q, k and v, and gate and up: a matrix product each, or one for those of one input, over weights that stay "
       "separate in checkpoints; q, k and v with biases take a product each"},
      {"train.cuda_graphs", FSDP_SLOT(train.cuda_graphs), any(),
       "on GPUs: record the forward and the backward of each block and replay them, for models so small that launching "
       "takes longer than computing; equal bits in fp32, more memory; not for packed documents, which run as without"},
      {"train.seed", FSDP_SLOT(train.seed), at_least(0), "of random initial weights and of the order of the data"},
      {"train.lr", FSDP_SLOT(train.lr), at_least(0), "learning rate at the end of the warm-up"},
      {"train.min_lr_ratio", FSDP_SLOT(train.min_lr_ratio), between(0, 1), "the last step's learning rate / lr"},
      {"train.warmup_steps", FSDP_SLOT(train.warmup_steps), at_least(0), "steps of linear warm-up"},
      {"train.clip", FSDP_SLOT(train.clip), at_least(0), "largest 2-norm of all gradients; 0: no clipping"},
      {"train.beta1", FSDP_SLOT(train.beta1), between(0, 1), "AdamW, Lion: decay of the first moment"},
      {"train.beta2", FSDP_SLOT(train.beta2), between(0, 1),
       "AdamW: decay of the second moment; Lion: of what the next step remembers"},
      {"train.eps", FSDP_SLOT(train.eps), at_least(0), "AdamW: epsilon"},
      {"train.weight_decay", FSDP_SLOT(train.weight_decay), at_least(0),
       "decoupled (sgd: added to the gradient), on parameters with at least 2 dims"},
      {"train.on_nonfinite", FSDP_SLOT(train.on_nonfinite), one_of({"stop", "skip", "rollback"}),
       "when a loss or gradient is not finite, computed twice: stop with exit code 6; skip the update of this step; or "
       "go "
       "back to the last checkpoint and on with the data after this step"},
      {"train.log_every", FSDP_SLOT(train.log_every), at_least(1), "steps between two lines of log and metrics.jsonl"},
      {"train.eval_every", FSDP_SLOT(train.eval_every), at_least(0),
       "steps between two evaluations on the held-out split; 0: only at the end"},
      {"train.eval_batches", FSDP_SLOT(train.eval_batches), at_least(0),
       "batches of batch_sequences per evaluation during training, the first of the split: of a mixture those of its "
       "first data set; 0: the whole split"},
      {"train.final_eval_batches", FSDP_SLOT(train.final_eval_batches), at_least(0),
       "the same for the evaluation at the end; 0: the whole split"},
      {"train.schedule", FSDP_SLOT(train.schedule), one_of({"cosine", "wsd", "linear", "constant"}),
       "learning rate after the warm-up: half a cosine or a line down to min_lr_ratio in the last step; wsd: constant, "
       "then down in the last decay_steps; or constant"},
      {"train.decay", FSDP_SLOT(train.decay), one_of({"1-sqrt", "linear"}), "way down of the schedule wsd"},
      {"train.decay_steps", FSDP_SLOT(train.decay_steps), at_least(0), "of the schedule wsd; 0: a tenth of all steps"},
      {"train.warmup_tokens", FSDP_SLOT(train.warmup_tokens), at_least(0),
       "the warm-up in tokens, rounded up to whole steps; 0: train.warmup_steps counts"},
      {"train.max_tokens", FSDP_SLOT(train.max_tokens), at_least(0),
       "tokens to read, rounded up to whole steps; the lower of this and train.steps is the end; 0: no limit"},
      {"train.on_spike", FSDP_SLOT(train.on_spike), one_of({"off", "warn", "skip", "rollback"}),
       "when loss or gradient norm is far above those of the last steps: nothing; say so; skip the update of this "
       "step; or "
       "go back to the last checkpoint and on with the data after this step"},
      {"train.spike_window", FSDP_SLOT(train.spike_window), between(4, 1000),
       "so many last steps are compared with; none is a spike before there are as many"},
      {"train.spike_threshold", FSDP_SLOT(train.spike_threshold), at_least(1),
       "far above: more than the median of the window plus this many median absolute deviations"},
      {"train.deterministic", FSDP_SLOT(train.deterministic), any(),
       "the same bits again on the same machine and number of threads, whatever operators and libraries would like to "
       "do"},
      {"train.world_invariant", FSDP_SLOT(train.world_invariant), any(),
       "the same bits of losses, gradient norms and weights on 1, 2, 4, .. ranks: microbatches, of one sequence unless "
       "train.microbatch_sequences says otherwise, are the leaves of one tree of sums; see docs/precision.md"},
      {"train.peak_tflops", FSDP_SLOT(train.peak_tflops), at_least(0),
       "of one rank, in 10^12 floating point operations per second: what mfu is measured against; 0: what the fastest "
       "matrix "
       "multiplication reaches, tried for 0.3 s at the start"},
      {"train.profile_steps", FSDP_SLOT(train.profile_steps), one_of({"none", "20-22"}, is_profile),
       "records what the library does in the steps from-to (at most 20), on all ranks: trace.json in "
       "output.folder, which `fsdp trace` draws"},
      {"train.z_loss", FSDP_SLOT(train.z_loss), at_least(0),
       "adds this x log(sum(exp(logits)))^2 to each target's loss, which keeps logits small; 0: none; usual: 1e-4"},
      {"train.label_smoothing", FSDP_SLOT(train.label_smoothing), between(0, 1),
       "part of a target's weight that is spread evenly over the vocabulary; evaluations never smooth"},
      {"train.batch_tokens", FSDP_SLOT(train.batch_tokens), at_least(0),
       "tokens per step, over all ranks, in place of train.batch_sequences: a multiple of data.sequence_length; 0: "
       "train.batch_sequences counts. Either way each rank takes as many microbatches as the step needs"},
      {"train.batch_warmup_sequences", FSDP_SLOT(train.batch_warmup_sequences), at_least(0),
       "sequences of the first step, a divisor of the batch and a multiple of ranks x microbatch_sequences; the batch "
       "grows by as many at a time; 0: all steps have the whole batch"},
      {"train.batch_warmup_steps", FSDP_SLOT(train.batch_warmup_steps), between(0, 1e9),
       "of that: so many steps have less than the whole batch"},
      {"train.ema", FSDP_SLOT(train.ema), between(0, 0.9999999),
       "keep an exponential moving average of the weights with this decay, 4 bytes a parameter: in checkpoints, in "
       "model_ema/ of output.folder at the end, and by `fsdp export --ema`; 0: none"},
      {"train.eval_weights", FSDP_SLOT(train.eval_weights), one_of({"trained", "ema"}),
       "which weights are evaluated on the held-out split: those that train, or their averages (train.ema)"},
  };
}

std::vector<Option> optimizer_options() {
  return {
      {"optimizer.name", FSDP_SLOT(optimizer.name),
       one_of({"adamw", "sgd", "muon", "adafactor", "lion", "schedule_free", "adamw_8bit"}),
       "docs/optimizers.md compares them. muon, adafactor: matrices of the blocks by it, each whole on one rank; "
       "embeddings, head and vectors by AdamW. schedule_free: AdamW whose average over the steps is evaluated and "
       "given "
       "away. Learning rate and weight decay are train.lr and train.weight_decay for all"},
      {"optimizer.momentum", FSDP_SLOT(optimizer.momentum), between(0, 0.9999), "sgd, muon: of the gradients"},
      {"optimizer.nesterov", FSDP_SLOT(optimizer.nesterov), any(), "sgd, muon: Nesterov's form of momentum"},
      {"optimizer.muon_lr_ratio", FSDP_SLOT(optimizer.muon_lr_ratio), at_least(0),
       "learning rate of muon's matrices / train.lr"},
      {"optimizer.muon_scale", FSDP_SLOT(optimizer.muon_scale), one_of({"match_rms_adamw", "original"}),
       "match_rms_adamw: updates times 0.2 sqrt(max(rows, columns)), as large as AdamW's; original: times "
       "sqrt(max(1, rows / columns)), which wants a muon_lr_ratio of its own"},
      {"optimizer.muon_by", FSDP_SLOT(optimizer.muon_by), one_of({"newton_schulz", "polar_express"}),
       "how updates are made orthogonal: the same quintic in each iteration, or the best for each"},
      {"optimizer.muon_iterations", FSDP_SLOT(optimizer.muon_iterations), between(1, 99), "of that"},
      {"optimizer.muon_dtype", FSDP_SLOT(optimizer.muon_dtype), one_of({"bf16", "fp32"}),
       "in which matrices are multiplied for it; fp32 is faster on CPUs without bf16 products"},
      {"optimizer.muon_per_head", FSDP_SLOT(optimizer.muon_per_head), any(),
       "muon: updates of q_proj, k_proj and v_proj are made orthogonal and scaled head by head"},
      {"optimizer.adafactor_rate", FSDP_SLOT(optimizer.adafactor_rate), one_of({"absolute", "relative"}),
       "adafactor: updates as large as AdamW's; or times a matrix's own root mean square, which wants a train.lr of "
       "1e-2"},
      {"optimizer.moment_code", FSDP_SLOT(optimizer.moment_code), one_of({"dynamic", "linear"}),
       "adamw_8bit: the 256 fractions of a block's largest moment: spread over 7 decades, or evenly"},
      {"optimizer.weight_rounding", FSDP_SLOT(optimizer.weight_rounding), one_of({"nearest", "random"}),
       "adamw_8bit with shard.precision=o3, whose weights are 24 bits: rounded to the nearest, or up or down at "
       "random, "
       "in the mean to what they were"},
  };
}

std::vector<Option> shard_options() {
  return {
      {"shard.strategy", FSDP_SLOT(shard.strategy),
       one_of({"no_shard", "optim", "optim_grads", "optim_grads_params", "hybrid", "hybrid_zero2", "hybrid_optim"},
              is_strategy),
       "what is cut over the ranks: nothing, optimizer state, also gradients, also weights; hybrid ones with replicas, "
       "see "
       "docs/engine.md; ZeRO-0 .. ZeRO-3, DDP, SHARD_GRAD_OP, FULL_SHARD, HSDP and HFSDP are understood too"},
      {"shard.replicas", FSDP_SLOT(shard.replicas), at_least(1),
       "groups of ranks that hold the same shards; divides the number of ranks"},
      {"shard.precision", FSDP_SLOT(shard.precision), one_of({"fp32", "bf16", "fp16", "fp8", "o1", "o3"}),
       "bf16, fp16: compute and gather in it; main weights and gradient sums in fp32. fp16: losses are scaled, and "
       "steps whose gradients overflow skipped. fp8: bf16, with products of fp8 numbers in the blocks. o1: fp32, "
       "with products of bf16 numbers. o3: all in bf16, weights, gradients and AdamW's state (8 bits with adamw_8bit), "
       "which keeps what "
       "rounding "
       "takes from the weights; see docs/precision.md"},
      {"shard.fp8_recipe", FSDP_SLOT(shard.fp8_recipe),
       one_of({"tensorwise", "rowwise", "blockwise", "mxfp8", "delayed"}),
       "of fp8: what shares a scale: a tensor, a row, 128 numbers (of weights 128 x 128), or 32 numbers; delayed: a "
       "tensor, "
       "by the largest numbers of the last 16 steps"},
      {"shard.fp8_keep", FSDP_SLOT(shard.fp8_keep), any(),
       "of fp8: what stays in bf16: first, last (blocks), and linear maps by the last part of their name, such as "
       "\"first,last,down_proj\""},
      {"shard.fp8_gather", FSDP_SLOT(shard.fp8_gather), any(),
       "of fp8, tensorwise, delayed and blockwise: weights travel as fp8 numbers too, half the bytes, with the same "
       "results"},
      {"shard.reshard_after_forward", FSDP_SLOT(shard.reshard_after_forward), one_of({"auto", "true", "false"}),
       "free gathered weights between forward and backward; auto: as the strategy says"},
      {"shard.prefetch_depth", FSDP_SLOT(shard.prefetch_depth), between(0, 16),
       "units gathered ahead of the one that computes"},
      {"shard.device", FSDP_SLOT(shard.device), one_of({"cpu", "cuda"}),
       "where weights live and are computed with; cuda: one GPU a rank, by its number among the ranks of its host; "
       "with "
       "FSDP_DEVICE_TRANSPORT=host in the environment ranks may share GPUs"},
      {"shard.whole_weights", FSDP_SLOT(shard.whole_weights), one_of({"in_place", "copied"}),
       "where one rank has every shard, as alone: compute with the weights where they are, or gather and free copies "
       "as if there were other ranks, to see what sharding costs"},
      {"shard.offload", FSDP_SLOT(shard.offload), one_of({"none", "host", "disk"}),
       "host: on GPUs, main weights, gradients and optimizer state in the host's memory, where the optimizer steps; "
       "disk: "
       "main weights, gradients and optimizer state in a file of each rank, read and written unit by unit, for a "
       "model whose state is larger than memory; see docs/optimizers.md"},
      {"shard.offload_folder", FSDP_SLOT(shard.offload_folder), any(),
       "of that: a folder of a fast disk of each host, which is made; empty: output.folder"},
  };
}

std::vector<Option> mesh_options() {
  return {
      {"mesh.pp", FSDP_SLOT(mesh.pp), at_least(1),
       "pipeline parallelism: stages of consecutive layers, each on ranks of its own, through which the microbatches "
       "go; "
       "divides the ranks; wants several microbatches a step (train.microbatch_sequences); see docs/pipeline.md"},
      {"mesh.schedule", FSDP_SLOT(mesh.schedule), one_of({"1f1b", "gpipe", "interleaved", "zero_bubble"}),
       "of a pipeline: 1f1b keeps activations of as many microbatches as stages follow, gpipe those of all; "
       "interleaved: with several stages on each rank, which then wait less and send more; zero_bubble: as 1f1b, with "
       "gradients of weights computed while a rank would wait"},
      {"mesh.stages_per_rank", FSDP_SLOT(mesh.stages_per_rank), at_least(1),
       "of an interleaved schedule: at least 2; the microbatches of a step are a multiple of mesh.pp"},
      {"mesh.tp", FSDP_SLOT(mesh.tp), at_least(1),
       "tensor parallelism: ranks that have one batch and cut each layer between them, neighbours on a host; divides "
       "the ranks, and what a layer has; see docs/parallelism.md"},
      {"mesh.cp", FSDP_SLOT(mesh.cp), at_least(1),
       "context parallelism: ranks that have parts of the same sequences, and shard the weights between them, too; for "
       "sequences whose activations do not fit on one; divides the ranks, and twice it the sequence length"},
      {"mesh.cp_exchange", FSDP_SLOT(mesh.cp_exchange), one_of({"auto", "gather", "ring"}),
       "of that: gather has the keys and values of a layer of all ranks at once, with a mask; ring has those of one "
       "more rank at a time, and waits more often; auto: ring where gather would hold more than 256 MiB"},
      {"mesh.ep", FSDP_SLOT(mesh.ep), at_least(1),
       "expert parallelism: ranks that have different experts of a layer, and sequences of their own; everything else "
       "is sharded over them, too; divides the ranks and the experts; see docs/experts.md"},
  };
}

std::vector<Option> checkpoint_options() {
  return {
      {"checkpoint.resume", FSDP_SLOT(checkpoint.resume), any(),
       "never; auto: go on from the newest checkpoint of output.folder that is whole, or start if there is none; or "
       "the "
       "folder of one checkpoint (`.../step-<N>`). Also written --resume"},
      {"checkpoint.every_steps", FSDP_SLOT(checkpoint.every_steps), at_least(0),
       "steps between two checkpoints; the last step has one too; 0: only when asked to stop by a signal"},
      {"checkpoint.every_minutes", FSDP_SLOT(checkpoint.every_minutes), at_least(0),
       "the same by rank 0's clock; 0: never"},
      {"checkpoint.keep_last", FSDP_SLOT(checkpoint.keep_last), at_least(0), "newest checkpoints that stay; 0: all"},
      {"checkpoint.keep_every", FSDP_SLOT(checkpoint.keep_every), at_least(0),
       "and those whose step is a multiple of this; 0: none"},
      {"checkpoint.async", FSDP_SLOT(checkpoint.async), any(),
       "copy the state and write it while training goes on; false: wait"},
      {"checkpoint.threads", FSDP_SLOT(checkpoint.threads), between(0, 64), "that write, on each rank; 0: as needed"},
      {"checkpoint.content", FSDP_SLOT(checkpoint.content), one_of({"all", "adapter"}),
       "adapter: with tune.method = \"lora\", without the base, which model.path has: megabytes"},
  };
}

std::vector<Option> check_options() {
  return {
      {"check.data", FSDP_SLOT(check.data), one_of({"auto", "always", "never"}),
       "compare the data set with its hashes before the start; auto: where that takes seconds (1 GB)"},
      {"check.compute_twice_every", FSDP_SLOT(check.compute_twice_every), at_least(0),
       "steps after which one is computed twice, and the bits compared: finds machines that compute wrongly; 0: never"},
      {"check.compare_replicas_every", FSDP_SLOT(check.compare_replicas_every), at_least(0),
       "steps after which ranks that hold the same weights compare their hashes; 0: never"},
      {"check.stragglers_every", FSDP_SLOT(check.stragglers_every), at_least(0),
       "steps after which ranks compare their computing times, to name slow ones; 0: never"},
  };
}

std::vector<Option> output_options() {
  return {
      {"output.folder", FSDP_SLOT(output.folder), any(), "folder of config.toml, metrics.jsonl and model/"},
      {"output.overwrite", FSDP_SLOT(output.overwrite), one_of({"refuse", "replace"}),
       "what to do with the files of an earlier run in output.folder"},
      {"output.hardware", FSDP_SLOT(output.hardware), any(),
       "what a rank runs on, as in `fsdp plan --hardware`: a name, or a file of `fsdp plan calibrate`. The run then "
       "says "
       "beforehand how long a step takes, and at its end how long it took; empty: it does not"},
      {"output.tensorboard", FSDP_SLOT(output.tensorboard), any(),
       "the numbers of metrics.jsonl also as TensorBoard reads them, in tensorboard/ of output.folder"},
      {"output.prometheus", FSDP_SLOT(output.prometheus), any(),
       "a file that always holds the newest numbers as Prometheus reads them; its name ends with .prom where the node "
       "exporter collects it. Empty: none"},
  };
}

std::vector<Option> sample_options() {
  return {
      {"sample.every_steps", FSDP_SLOT(sample.every_steps), at_least(0),
       "steps between two texts that the model writes during training; 0: never"},
      {"sample.prompts", FSDP_SLOT(sample.prompts), any(),
       "texts to continue, with a vertical bar between two; an empty one is the start of a document"},
      {"sample.max_tokens", FSDP_SLOT(sample.max_tokens), between(1, 1024), "tokens written after each prompt"},
      {"sample.temperature", FSDP_SLOT(sample.temperature), between(0, 100), "0: always the most likely token"},
  };
}

std::vector<Option> tune_options() {
  return {
      {"tune.method", FSDP_SLOT(tune.method), one_of({"full", "lora"}),
       "full: the model's parameters train; lora: they stay, and low-rank adapters on its linear maps train"},
      {"tune.frozen", FSDP_SLOT(tune.frozen), any(),
       "full: parameters that stay as they are: patterns of Hugging Face's names with *, ? and [0-3], separated by "
       "commas, such as \"model.embed_tokens.*,model.layers.[0-3].*\""},
      {"tune.trained", FSDP_SLOT(tune.trained), any(),
       "full: train only these, less what tune.frozen says; empty: all"},
      {"tune.lora_rank", FSDP_SLOT(tune.lora_rank), between(1, 65536), "lora: rank r of an adapter"},
      {"tune.lora_alpha", FSDP_SLOT(tune.lora_alpha), between(0.001, 1e6),
       "lora: an adapter adds alpha / r times B A x"},
      {"tune.lora_targets", FSDP_SLOT(tune.lora_targets), any(),
       "lora: linear maps that get an adapter, by the last part of their name, such as \"q_proj,v_proj\"; all-linear: "
       "all in the blocks"},
      {"tune.lora_dropout", FSDP_SLOT(tune.lora_dropout), between(0, 0.95),
       "lora: part of an adapter's input that is zeroed in training; above 0 a run depends on how the batch is cut "
       "into "
       "microbatches"},
      {"tune.lora_from", FSDP_SLOT(tune.lora_from), any(),
       "lora: folder of an adapter to begin with, of this rank, alpha and targets; empty: a new one"},
      {"tune.lora_scale", FSDP_SLOT(tune.lora_scale), one_of({"rank", "root"}),
       "lora: B A counts alpha / r times, or alpha / sqrt(r) (rsLoRA), which keeps large ranks learning"},
      {"tune.lora_kind", FSDP_SLOT(tune.lora_kind), one_of({"lora", "dora"}),
       "lora: lora: adapters are added; dora: and each row of the sum has a length that is learned, too (DoRA)"},
      {"tune.lora_init", FSDP_SLOT(tune.lora_init), one_of({"random", "pissa"}),
       "lora: random: A begins at random and B as zero; pissa: both begin with the largest singular values of the "
       "weight, which the base then lacks (PiSSA)"},
      {"tune.base", FSDP_SLOT(tune.base), one_of({"bf16", "nf4", "nf4_all"}),
       "lora: bf16: the base rests in the type that is computed with, that of shard.precision; nf4: linear maps of the "
       "blocks rest as 4-bit codes, 0.52 bytes a weight, and are decoded for each product (QLoRA); nf4_all: embeddings "
       "and head, too"},
      {"tune.loss", FSDP_SLOT(tune.loss), one_of({"sft", "dpo"}),
       "sft: cross entropy of what documents say next; dpo: preference of the chosen answer of each pair to the "
       "rejected one (`fsdp prepare --pairs`), against the model that the run starts from"},
      {"tune.dpo_beta", FSDP_SLOT(tune.dpo_beta), between(1e-6, 1000),
       "dpo: reward of a log-probability that rose by 1: the larger, the nearer the model stays to its start"},
      {"tune.dpo_label_smoothing", FSDP_SLOT(tune.dpo_label_smoothing), between(0, 0.5),
       "dpo: with this probability a pair is taken to be the other way round"},
  };
}

#undef FSDP_SLOT

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::string Rule::describe() const {
  if (!choices.empty()) {
    std::string text = "one of: ";
    for (size_t i = 0; i < choices.size(); ++i) {
      text += (i == 0 ? "" : ", ") + choices[i];
    }
    return text;
  }
  if (least && most) {
    return "from " + shortest(*least) + " to " + shortest(*most);
  }
  return least ? "at least " + shortest(*least) : "";
}

std::string Option::section() const { return name.substr(0, name.find('.')); }

std::string Option::type_name() const {
  Config defaults;
  static constexpr const char* kNames[] = {"boolean", "integer", "number", "text"};
  return kNames[slot(defaults).index()];
}

std::string Option::value(const Config& config) const {
  Config copy = config;
  const Slot place = slot(copy);
  if (const auto* boolean = std::get_if<bool*>(&place)) {
    return **boolean ? "true" : "false";
  }
  if (const auto* integer = std::get_if<int64_t*>(&place)) {
    return std::to_string(**integer);
  }
  if (const auto* number = std::get_if<double*>(&place)) {
    return toml_number(**number);
  }
  return toml_text(*std::get<std::string*>(place));
}

std::string Option::complaint(const Config& config) const {
  Config copy = config;
  const Slot place = slot(copy);
  bool legal = true;
  if (const auto* text = std::get_if<std::string*>(&place)) {
    const auto& choices = rule.choices;
    legal = choices.empty() || std::find(choices.begin(), choices.end(), **text) != choices.end() ||
            (rule.accepts && rule.accepts(**text));
  } else if (!std::holds_alternative<bool*>(place)) {
    const double number = std::holds_alternative<double*>(place) ? *std::get<double*>(place)
                                                                 : static_cast<double>(*std::get<int64_t*>(place));
    legal = number - number == 0 && number >= rule.least.value_or(number) && number <= rule.most.value_or(number);
  }
  return legal ? "" : (rule.describe().empty() ? "a finite number" : rule.describe());
}

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (auto section :
         {model_options(), data_options(), train_options(), optimizer_options(), shard_options(), mesh_options(),
          checkpoint_options(), check_options(), output_options(), sample_options(), tune_options()}) {
      std::move(section.begin(), section.end(), std::back_inserter(all));
    }
    return all;
  }();
  return table;
}

const Option* find_option(const std::string& name) {
  for (const Option& option : option_table()) {
    if (option.name == name) {
      return &option;
    }
  }
  return nullptr;
}

std::string nearest_option(const std::string& name) {
  const Option* best = nullptr;
  size_t best_distance = 0;
  for (const Option& option : option_table()) {
    size_t distance = 2 * edit_distance(name, option.name);
    const std::string given = last_part(name);
    const std::string known = last_part(option.name);
    if (given == known) {
      distance = std::min<size_t>(distance, 1);
    } else if (given.size() > 2 && known.find(given) == 0) {
      distance = std::min<size_t>(distance, 2);
    } else if (given.size() > 2 && (known.find(given) != std::string::npos || given.find(known) == 0)) {
      distance = std::min<size_t>(distance, 3);  // "warmup" for warmup_steps
    }
    if (best == nullptr || distance < best_distance) {
      best = &option;
      best_distance = distance;
    }
  }
  return best_distance <= 3 || is_near(last_part(name), last_part(best->name)) ? best->name : "";
}

std::string option_help() {
  const Config defaults;
  std::ostringstream text;
  std::string section;
  for (const Option& option : option_table()) {
    if (option.section() != section) {
      section = option.section();
      text << "\n[" << section << "]\n";
    }
    text << "  --" << option.name << "=" << option.value(defaults) << "  (" << option.type_name();
    const std::string legal = option.rule.describe();
    text << (legal.empty() ? "" : ", ") << legal << ")\n      " << option.help << "\n";
  }
  return text.str();
}

std::string option_markdown() {
  const Config defaults;
  std::ostringstream text;
  std::string section;
  for (const Option& option : option_table()) {
    if (option.section() != section) {
      section = option.section();
      text << "\n### [" << section << "]\n\n| key | type | default | meaning |\n|---|---|---|---|\n";
    }
    const std::string legal = option.rule.describe();
    text << "| `" << option.name << "` | " << option.type_name() << (legal.empty() ? "" : ", " + legal) << " | `"
         << option.value(defaults) << "` | " << option.help << " |\n";
  }
  return text.str();
}

}  // namespace fsdp::train
