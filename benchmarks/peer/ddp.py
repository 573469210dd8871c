"""The peer of functional.cpp: the same Llama, weights, tokens and optimizer under DistributedDataParallel on Gloo.

One rank, one run for each bucket size; started by benchmarks/compare.py. Rank 0 prints one line of JSON."""

import argparse
import ctypes
import gc
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import step_time_fsdp2 as llama
from ranks import report

WATCHED_STEPS = 2


def proportional_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


class MemoryWatch:
    """The most that was seen until stop(). Looking costs time, so nothing is timed meanwhile."""

    def __init__(self):
        self.peak, self.stopping = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.stopping.wait(0.01):
            self.peak = max(self.peak, proportional_bytes())

    def stop(self):
        self.stopping.set()
        self.thread.join()
        return self.peak


def make_model(options, dtype):
    (llama.VOCABULARY, llama.HIDDEN, llama.LAYERS, llama.FFN, llama.HEADS, llama.KEY_HEADS) = options.shape
    model = llama.Llama(options.tokens)
    llama.fill_weights(model)
    model.cos, model.sin = model.cos.to(dtype), model.sin.to(dtype)
    return model.to(dtype)


def run(options, group_mib):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    model = DistributedDataParallel(make_model(options, dtype), bucket_cap_mb=group_mib, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    ids = llama.make_tokens(options.tokens, dist.get_rank())
    inputs, targets = ids[:-1].unsqueeze(0), ids[1:]

    def run_step():
        loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    times, losses = [], []
    for _ in range(options.warmup + options.steps):
        begin = time.perf_counter()
        losses.append(run_step())
        times.append(1e3 * (time.perf_counter() - begin))
    watch = MemoryWatch()
    for _ in range(WATCHED_STEPS):
        run_step()
    pss = torch.tensor(watch.stop())
    dist.all_reduce(pss)
    return {"group_mib": group_mib, "step_ms": times[options.warmup:], "losses": losses, "pss_bytes": pss.item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", type=int, nargs=6, default=(32000, 512, 8, 1536, 8, 4),
                        help="vocabulary, hidden, layers, FFN, heads, key heads")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--groups", type=int, nargs="+", default=(16,), help="bucket sizes in MiB")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = []
    for group_mib in options.groups:
        runs.append(run(options, group_mib))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # the next one starts with as little memory as this one
    report({"runs": runs})


if __name__ == "__main__":
    main()
