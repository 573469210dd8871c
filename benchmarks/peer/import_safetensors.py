"""The peer of import_model.cpp: every rank reads its rows of every tensor with the safetensors package, as fp32.

One rank; started by benchmarks/compare.py. Rank 0 prints one line of JSON: seconds of the slowest rank."""

import argparse
import glob
import os
import time

import torch
import torch.distributed as dist
from safetensors import safe_open

from ranks import report


def drop_from_cache(files):
    for file in files:
        number = os.open(file, os.O_RDONLY)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)


def peak_bytes(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(key))


def rows_of(shape):
    each = -(-shape[0] // dist.get_world_size())
    first = min(shape[0], each * dist.get_rank())
    return first, min(shape[0], first + each)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    files = sorted(glob.glob(os.path.join(parser.parse_args().folder, "*.safetensors")))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = peak_bytes("VmRSS:")
    shards = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                shape = opened.get_slice(name).get_shape()
                first, end = rows_of(shape)
                shards[name] = torch.zeros((end - first, *shape[1:]))
    dist.barrier()
    if dist.get_rank() == 0:
        drop_from_cache(files)
    dist.barrier()
    begin = time.perf_counter()
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                part = opened.get_slice(name)
                first, end = rows_of(part.get_shape())
                shards[name].copy_(part[first:end])
    values = torch.tensor([time.perf_counter() - begin, 0], dtype=torch.float64)
    shard_bytes = sum(shard.nbytes for shard in shards.values())
    values[1] = peak_bytes("VmHWM:") - before - shard_bytes
    dist.all_reduce(values, dist.ReduceOp.MAX)
    total = torch.tensor([sum(shard.sum(dtype=torch.float64).item() for shard in shards.values())], dtype=torch.float64)
    dist.all_reduce(total)
    report({"seconds": [values[0].item()], "extra_bytes": values[1].item(), "sum": total.item()})


main()
