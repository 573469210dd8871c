"""The peer of hook_cost.cpp: 100 tiny units under PyTorch's fully_shard, on one rank."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ranks import report

UNITS, WIDTH = 100, 8


def make_model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(UNITS + 1)))


def time_us(options, model, dtype):
    x = torch.ones(4, WIDTH, dtype=dtype)
    times = []
    for _ in range(options.warmup + options.iterations):
        begin = time.perf_counter()
        model(x).sum().backward()
        model.zero_grad()
        times.append((time.perf_counter() - begin) * 1e6)
    return times[options.warmup:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)

    result = {"units": UNITS + 1, "bare_us": time_us(options, make_model().to(dtype), dtype)}
    model = make_model()
    for layer in model[:UNITS]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    result["sharded_us"] = time_us(options, model, dtype)
    report(result)


if __name__ == "__main__":
    main()
