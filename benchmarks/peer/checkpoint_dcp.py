"""The peer of checkpoint.cpp: the same state, sharded by PyTorch's fully_shard, through torch.distributed.checkpoint.

One rank; started by benchmarks/compare.py. Rank 0 prints one line of JSON: seconds of the slowest rank."""

import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import step_time_fsdp2 as llama
from ranks import report

PIECE = 16 << 20


def slowest(value):
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.item()


def seconds(action):
    dist.barrier()
    begin = time.perf_counter()
    action()
    return slowest(time.perf_counter() - begin)


def seconds_since_start():
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
        return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def clean(path=None):
    """Without `path`, and with nothing left for the disk to do."""
    dist.barrier()
    if dist.get_rank() == 0:
        if path:
            shutil.rmtree(path, ignore_errors=True)
        os.sync()
    dist.barrier()


def for_each_file(folder, action):
    for name in os.listdir(folder):
        number = os.open(os.path.join(folder, name), os.O_RDONLY)
        action(number)
        os.close(number)


def drop_from_cache(folder):
    for_each_file(folder, lambda number: os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED))


def bring_into_cache(folder):
    def read(number):
        while os.read(number, PIECE):
            pass
    for_each_file(folder, read)


class Training:
    def __init__(self, options):
        (llama.VOCABULARY, llama.HIDDEN, llama.LAYERS, llama.FFN, llama.HEADS, llama.KEY_HEADS) = options.shape
        self.options = options
        with torch.device("meta"):
            model = llama.Llama(options.tokens)
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        frequencies = llama.THETA ** (-torch.arange(0, llama.HEAD_DIM, 2).float() / llama.HEAD_DIM)
        angles = torch.outer(torch.arange(options.tokens).float(), frequencies).repeat(1, 2)
        self.model.cos, self.model.sin = angles.cos(), angles.sin()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def tensors(self):
        """This rank's part of weights and moments, once state() has made those."""
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            for tensor in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"]):
                yield tensor.to_local()

    def fill(self):
        torch.manual_seed(dist.get_rank())
        for tensor in self.tensors():
            tensor.uniform_(2**-7, 2**-6)

    def clear(self):
        for tensor in self.tensors():
            tensor.zero_()

    def sum(self):
        total = sum(tensor.sum(dtype=torch.float64) for tensor in self.tensors())
        dist.all_reduce(total)
        return total.item()

    def step(self):
        ids = llama.make_tokens(self.options.tokens, dist.get_rank())
        loss = F.cross_entropy(self.model(ids[:-1].unsqueeze(0)).flatten(0, 1), ids[1:])
        loss.backward()
        self.optimizer.step()
        assert loss.isfinite()


def measure_save(options, saved):
    """The default, which syncs its files, and with two threads for each rank. The last one stays."""
    training = Training(options)
    state = training.state()
    training.fill()
    result = {"sum": training.sum(), "save": [], "save_threads": []}
    for _ in range(options.times):
        clean(saved)
        writer = dcp.FileSystemWriter(saved, thread_count=2, sync_files=True)
        result["save_threads"].append(seconds(lambda: dcp.save(state, storage_writer=writer)))
        clean(saved)
        result["save"].append(seconds(lambda: dcp.save(state, checkpoint_id=saved)))
    result["bytes"] = sum(entry.stat().st_size for entry in os.scandir(saved))
    return result


def measure_async(options, _):
    """One save more than asked for, as ours does."""
    training = Training(options)
    state = training.state()
    training.fill()
    result = {"stall": [], "total": []}
    for i in range(options.times + 1):
        folder = os.path.join(options.folder, f"async-{i}")
        clean()
        begin = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=folder)
        stall = time.perf_counter() - begin
        future.result()  # no collective of ours meanwhile: its thread uses the same group
        total = time.perf_counter() - begin
        result["stall"].append(slowest(stall))
        result["total"].append(slowest(total))
        clean(folder)
    return result


def measure_load(options, saved):
    training = Training(options)
    state = training.state()
    result = {"first": [], "cold": [], "warm": [], "sums": []}

    def load(name):
        result[name].append(seconds(lambda: dcp.load(state, checkpoint_id=saved)))
        result["sums"].append(training.sum())

    for i in range(options.times + 1):
        training.clear()
        clean()
        drop_from_cache(saved)
        load("cold" if i > 0 else "first")
    for _ in range(options.times if options.warm else 0):
        training.clear()
        bring_into_cache(saved)
        load("warm")
    return result


def measure_restart(options, saved):
    result, begin = {"start": slowest(seconds_since_start())}, time.perf_counter()

    def lap(name):
        nonlocal begin
        result[name] = slowest(time.perf_counter() - begin)
        begin = time.perf_counter()

    training = Training(options)
    lap("build")
    state = training.state()
    dcp.load(state, checkpoint_id=saved)
    set_state_dict(training.model, training.optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    lap("load")
    training.step()
    lap("step")
    result["total"] = slowest(seconds_since_start())
    return result


def main():
    actions = {"save": measure_save, "async": measure_async, "load": measure_load, "restart": measure_restart}
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=actions)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--shape", type=int, nargs=6, default=(32000, 512, 8, 1536, 8, 4),
                        help="vocabulary, hidden, layers, FFN, heads, key heads")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report(actions[options.action](options, os.path.join(options.folder, "saved")))


if __name__ == "__main__":
    main()
