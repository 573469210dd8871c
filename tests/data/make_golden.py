#!/usr/bin/env python3
"""Small golden set of this repository: tiny models of each family with the values that Hugging Face computes for them.

    pip install torch==2.11.0 transformers==5.23.0 safetensors
    python make_golden.py [OUT [NAME ...]]   # OUT: the folder of this script unless given; NAME: some models only

Files, written below OUT (all tensors in safetensors files):
    models/<name>/  config.json, model.safetensors as save_pretrained writes them;
                    expected.safetensors: input_ids, labels, logits, loss, grad.<parameter>;
                    packed.safetensors: one row of three documents: input_ids, position_ids, labels, cu_seqlens, logits,
                    loss, grad.* of the embedding and of the key projections;
                    of models with experts balanced.safetensors: loss with the balancing loss in it, which is there by
                    itself as aux_loss, grad.* of the routers and of the first layer's query projection
    curves/<name>/  (the first two models) tokens.safetensors [steps, batch, seq + 1] int32, curve.json, final.safetensors (after curve fp32)

Labels are shifted inside the loss: the logits at t predict labels[t + 1]; -100 carries no loss. What a step of a curve
is: see train() below.
"""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.func import functional_call
from transformers import (AutoModelForCausalLM, DeepseekV2Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config,
                          Qwen3MoeConfig, SmolLM3Config)

SEED = 7007  # with it, fp64 moves no loss and no gradient norm by more than 1e-6 (other seeds: up to 2e-4)
BATCH, LENGTH, DOCUMENTS = 3, 19, (9, 1, 14)
HYPER = dict(steps=12, batch=4, seq=20, lr_max=6e-3, lr_min_ratio=0.1, warmup=3, betas=[0.9, 0.95], eps=1e-8,
             weight_decay=0.1, decay_min_ndim=2, clip=1.0)
MODELS = {
    "smollm3-mini": SmolLM3Config(
        vocab_size=67, hidden_size=24, intermediate_size=26, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, no_rope_layers=[1, 0, 1], bos_token_id=1, eos_token_id=2, pad_token_id=0,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
    "llama3-mini": LlamaConfig(
        vocab_size=61, hidden_size=21, intermediate_size=25, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, head_dim=14, bos_token_id=1, eos_token_id=[2, 3], max_position_embeddings=96,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "llama3", "rope_theta": 3e4, "factor": 4.0,
                                            "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                                            "original_max_position_embeddings": 24}),
    "mistral-mini": MistralConfig(
        vocab_size=59, hidden_size=20, intermediate_size=23, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=1, head_dim=6, sliding_window=5, max_position_embeddings=64),
    "qwen2-mini": Qwen2Config(  # layers with and without a window
        vocab_size=57, hidden_size=24, intermediate_size=21, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=6, max_window_layers=1, tie_word_embeddings=True,
        max_position_embeddings=64),
    "qwen3-mini": Qwen3Config(  # norms of q and k, and biases of all four projections
        vocab_size=63, hidden_size=18, intermediate_size=27, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, attention_bias=True, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "mixtral-mini": MixtralConfig(
        vocab_size=53, hidden_size=16, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, router_aux_loss_coef=0.3,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3moe-mini": Qwen3MoeConfig(  # the second layer has an MLP
        vocab_size=55, hidden_size=20, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=10,
        mlp_only_layers=[1], norm_topk_prob=False, router_aux_loss_coef=0.2, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "deepseek2-mini": DeepseekV2Config(  # an MLP in the first layer; three groups of two; values narrower than keys
        vocab_size=51, hidden_size=20, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=10,
        n_group=3, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.7, norm_topk_prob=False,
        first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4,
        v_head_dim=8, max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "deepseek2-query-mini": DeepseekV2Config(  # queries by way of a short vector too, choice without groups
        vocab_size=49, hidden_size=16, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=8,
        topk_method="greedy", norm_topk_prob=False, first_k_dense_replace=0, q_lora_rank=10, kv_lora_rank=8,
        qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=10, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
}
WITH_CURVES = ("smollm3-mini", "llama3-mini")


def make_model(config, generator):
    plain = {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **plain).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.ndim == 1 else 0.18 * noise)
    return model


def loss_of(logits, targets, reduction="mean"):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)


def results(model, logits, loss):
    model.zero_grad()
    loss.backward()
    return {"logits": logits.detach().contiguous(), "loss": loss.detach(),
            **{f"grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()}}


def expected_values(model, generator):
    ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), generator=generator)
    ids[ids == model.config.pad_token_id] = 5  # Hugging Face gives the padding row no gradient from look-ups
    labels = ids.clone()
    labels[0, :4] = -100
    labels[2, 10:13] = -100
    logits = model(input_ids=ids, use_cache=False).logits
    return {"input_ids": ids, "labels": labels, **results(model, logits, loss_of(logits[:, :-1], labels[:, 1:]))}


def packed_values(model, generator):
    documents = [torch.randint(4, model.config.vocab_size, (1, n), generator=generator) for n in DOCUMENTS]
    logits = [model(input_ids=d, use_cache=False).logits for d in documents]
    total = sum(loss_of(l[:, :-1], d[:, 1:], "sum") for l, d in zip(logits, documents) if d.shape[1] > 1)
    values = results(model, torch.cat(logits, 1), total / (sum(DOCUMENTS) - len(DOCUMENTS)))
    kept = {k: v for k, v in values.items() if not k.startswith("grad.") or "embed_tokens" in k or "k_proj" in k}
    labels = torch.cat([torch.cat([torch.full((1, 1), -100), d[:, 1:]], 1) for d in documents], 1)
    return {"input_ids": torch.cat(documents, 1), "labels": labels,
            "position_ids": torch.cat([torch.arange(n) for n in DOCUMENTS])[None],
            "cu_seqlens": torch.tensor([0, *DOCUMENTS]).cumsum(0).int(), **kept}


def balanced_values(model, expected):
    model.zero_grad()
    output = model(input_ids=expected["input_ids"], labels=expected["labels"], output_router_logits=True,
                   use_cache=False)
    output.loss.backward()
    return {"loss": output.loss.detach(), "aux_loss": output.aux_loss.detach(),
            **{f"grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()
               if "mlp.gate.weight" in name or "layers.0.self_attn.q_proj" in name}}


def learning_rate(step):
    """Linear to lr_max at step warmup - 1, then half a cosine to lr_min at the last step."""
    n, high, low = step + 1, HYPER["lr_max"], HYPER["lr_max"] * HYPER["lr_min_ratio"]
    if n <= HYPER["warmup"]:
        return high * n / HYPER["warmup"]
    progress = (n - HYPER["warmup"]) / (HYPER["steps"] - HYPER["warmup"])
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * progress))


def train(model, tokens, parts=1, bf16=False):
    """Each step: forward and backward over `parts` equal parts of the batch, each loss divided by `parts`, gradients
    added in fp32; clipping; AdamW on fp32 weights. With bf16 the forward runs on bf16 copies of all weights."""
    parameters, ndim = list(model.parameters()), HYPER["decay_min_ndim"]
    groups = [{"params": [p for p in parameters if p.ndim >= ndim], "weight_decay": HYPER["weight_decay"]},
              {"params": [p for p in parameters if p.ndim < ndim], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=HYPER["betas"], eps=HYPER["eps"], foreach=False)
    curve = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(HYPER["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        total = 0.0
        for part in tokens[step].long().chunk(parts):
            weights = {name: p.bfloat16() if bf16 else p for name, p in model.named_parameters()}
            logits = functional_call(model, weights, kwargs={"input_ids": part[:, :-1], "use_cache": False}).logits
            loss = loss_of(logits, part[:, 1:]) / parts
            loss.backward()
            total += loss.item()
        curve["loss"].append(total)
        curve["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters, HYPER["clip"]).item())
        curve["lr"].append(learning_rate(step))
        optimizer.step()
    return curve


def predictable_tokens(vocab, generator):
    """Sequences in which each token has two possible successors."""
    successors = torch.randint(4, vocab, (vocab, 2), generator=generator)
    tokens = torch.randint(4, vocab, (HYPER["steps"], HYPER["batch"], HYPER["seq"] + 1), generator=generator)
    for t in range(HYPER["seq"]):
        choice = torch.randint(0, 2, tokens.shape[:2], generator=generator)
        tokens[..., t + 1] = successors[tokens[..., t], choice]
    return tokens.int()


def make_curves(folder, model, generator):
    start = {name: value.clone() for name, value in model.state_dict().items()}
    tokens, curves = predictable_tokens(model.config.vocab_size, generator), {}
    for name, options in {"fp32_accumulate_2x4": {"parts": 2}, "bf16_ranks_1": {"bf16": True},
                          "bf16_ranks_2": {"bf16": True, "parts": 2}, "bf16_ranks_4": {"bf16": True, "parts": 4},
                          "fp32": {}}.items():
        model.load_state_dict(start)
        curves[name] = train(model, tokens, **options)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"tokens": tokens}, folder / "tokens.safetensors")
    save_file({name: p.detach().clone() for name, p in model.named_parameters()}, folder / "final.safetensors")
    text = json.dumps({"model": folder.name, "hyper": HYPER, "curves": curves}, indent=1)
    (folder / "curve.json").write_text(text + "\n")


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    wanted = sys.argv[2:] or MODELS
    for index, (name, config) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        generator = torch.Generator().manual_seed(SEED + index)
        model, folder = make_model(config, generator), out / "models" / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        expected = expected_values(model, generator)
        save_file(expected, folder / "expected.safetensors")
        if hasattr(config, "router_aux_loss_coef"):
            save_file(balanced_values(model, expected), folder / "balanced.safetensors")
        save_file(packed_values(model, generator), folder / "packed.safetensors")
        if name in WITH_CURVES:
            make_curves(out / "curves" / name, model, generator)
        files = [f for part in ("models", "curves") for f in (out / part / name).glob("*")]
        for file in files:
            file.chmod(0o644)
        size = sum(file.stat().st_size for file in files)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
