#!/usr/bin/env python3
"""Makes the checkpoints of PyTorch in tests/io/data/dcp/ that tests/io/dcp_test.cpp reads (see README.md there).

Needs PyTorch. Element i of a tensor is i / 4 - 3, or i * 1000003 - 5 for integers, so the test knows every value.
"""

import os
import pathlib
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

RANKS = 4


def values(shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    if dtype.is_floating_point:
        flat = torch.arange(count, dtype=torch.float64) / 4 - 3
    else:
        flat = torch.arange(count, dtype=torch.int64) * 1000003 - 5
    return flat.to(dtype).reshape(shape)


def save_one(folder):
    """One writer, plain tensors in a nested state dict, and two things that are no tensors."""
    model = {
        "layer": {"weight": values([5, 3]), "bias": values([7], torch.bfloat16)},
        "position": values([4], torch.int64),
        "scale": values([]),
        "empty": values([0, 3]),
        "transposed": values([3, 5]).t(),
        "part": values([40], torch.bfloat16)[8:20],
        "wave": torch.zeros(2, dtype=torch.complex64),
    }
    dcp.save({"model": model, "step": 3, "optimizer": {"lr": 0.1}}, checkpoint_id=folder, no_dist=True)


def save_four(rank, folder):
    """Four writers: chunks in two dimensions, uneven and missing ones, replicas."""
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=rank, world_size=RANKS)
    line = init_device_mesh("cpu", (RANKS,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    state = {
        "grid": distribute_tensor(values([6, 5]), grid, [Shard(0), Shard(1)]),
        "rows": distribute_tensor(values([5, 3], torch.bfloat16), line, [Shard(0)]),
        "columns": distribute_tensor(values([3, 4], torch.int64), line, [Shard(1)]),
        "hybrid": distribute_tensor(values([4, 2, 3]), grid, [Replicate(), Shard(1)]),
        "short": distribute_tensor(values([2, 2]), line, [Shard(0)]),
        "scale": values([]),
    }
    assert all(isinstance(value, DTensor) for name, value in state.items() if name != "scale")
    dcp.save({"model": state}, checkpoint_id=folder)
    dist.destroy_process_group()


def main():
    os.chdir(pathlib.Path(__file__).resolve().parent)  # the folder's name is stored in the checkpoint
    for folder in ("dcp/one", "dcp/four"):
        shutil.rmtree(folder, ignore_errors=True)
    save_one("dcp/one")
    mp.spawn(save_four, args=("dcp/four",), nprocs=RANKS)
    pathlib.Path("rendezvous").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
