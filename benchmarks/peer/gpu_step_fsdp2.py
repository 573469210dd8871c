"""The peer of gpu_step.cpp: SmolLM3-3B of transformers under PyTorch's fully_shard on one GPU, eager or with --compile: bf16
over fp32 weights, fused AdamW, clipping, accumulated gradients. Prints one line of JSON."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import SmolLM3Config, SmolLM3ForCausalLM

SEQUENCE, ACCUMULATION = 8192, 4


def make_model(options):
    config = SmolLM3Config(attn_implementation="sdpa", use_cache=False, tie_word_embeddings=True)
    with torch.device("cuda"):
        model = SmolLM3ForCausalLM(config)
    if options.compile:
        for layer in model.model.layers:
            layer.compile()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.train()
    return model


class Laps:
    def __init__(self):
        self.marks, self.ms = [], {}

    def mark(self, name):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append((name, event))

    def collect(self):
        torch.cuda.synchronize()
        for (_, begin), (name, end) in zip(self.marks, self.marks[1:]):
            if name:
                self.ms.setdefault(name, []).append(begin.elapsed_time(end))
        laps, self.marks, self.ms = self.ms, [], {}
        return laps


def step(model, optimizer, ids, laps):
    laps.mark("")
    for micro in range(ACCUMULATION):
        model.set_requires_gradient_sync(micro + 1 == ACCUMULATION)
        loss = model(input_ids=ids, labels=ids).loss / ACCUMULATION
        laps.mark("forward")
        loss.backward()
        laps.mark("backward")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    laps.mark("optimizer")
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    model = make_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(model.config.vocab_size, (1, SEQUENCE), device="cuda")
    laps = Laps()
    first = step(model, optimizer, ids, laps)
    for _ in range(options.warmup - 1):
        step(model, optimizer, ids, laps)
    laps.collect()
    torch.cuda.reset_peak_memory_stats()
    retries, begin = torch.cuda.memory_stats()["num_alloc_retries"], time.perf_counter()
    for _ in range(options.steps):
        last = step(model, optimizer, ids, laps)
    ms = laps.collect()
    elapsed = (time.perf_counter() - begin) * 1e3
    print(json.dumps({
        "laps_ms": ms,
        "step_ms": elapsed / options.steps,
        "losses": [first.item(), last.item()],
        "memory": {"peak_allocated": torch.cuda.max_memory_allocated(),
                   "peak_reserved": torch.cuda.max_memory_reserved(),
                   "retries": torch.cuda.memory_stats()["num_alloc_retries"] - retries},
    }))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
