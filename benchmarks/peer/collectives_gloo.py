"""The peer of collectives.cpp: all_gather_into_tensor and reduce_scatter_tensor of torch.distributed over Gloo.

One rank; started by benchmarks/compare.py. Rank 0 prints one line of JSON."""

import argparse
import time
from statistics import median

import torch
import torch.distributed as dist

from ranks import report

ROUNDS, ROUND_S, MOST_CALLS = 5, 0.02, 500


def slowest(value):
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.item()


def time_calls(call, count):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return slowest((time.perf_counter() - begin) / count)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--largest", type=int, default=256 << 20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    largest = options.largest // dtype.itemsize
    every, own = torch.ones(largest * dist.get_world_size(), dtype=dtype), torch.ones(largest, dtype=dtype)
    calls = {"all_gather": lambda n: dist.all_gather_into_tensor(every[:n * dist.get_world_size()], own[:n]),
             "reduce_scatter": lambda n: dist.reduce_scatter_tensor(own[:n], every[:n * dist.get_world_size()])}
    result = []
    for op, call in calls.items():
        size = 4096
        while size <= options.largest:
            def once(numel=size // dtype.itemsize):
                call(numel)
            time_calls(once, 2)
            count = max(1, min(MOST_CALLS, int(ROUND_S / time_calls(once, 1))))
            seconds = median(time_calls(once, count) for _ in range(ROUNDS))
            result.append({"op": op, "bytes": size, "us": 1e6 * seconds})
            size *= 4
    report(result)


if __name__ == "__main__":
    main()
