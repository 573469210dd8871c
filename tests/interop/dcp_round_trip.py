#!/usr/bin/env python3
"""Compares `fsdp import` and `fsdp export` with PyTorch, bit for bit, in both directions.

    python3 tests/interop/dcp_round_trip.py --fsdp build/release/bin/fsdp

Needs PyTorch with torch.distributed.checkpoint and numpy; if PyTorch cannot be imported, the one below .deps is tried
(see scripts/bench.sh). Saves with 1 and 2 processes, imports, and reads the safetensors with numpy alone; exports, and loads
with torch.distributed.checkpoint.load, also in 2 processes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def import_torch():
    """Runs this script again with the project's own PyTorch if there is no other."""
    try:
        import torch  # noqa: F401
    except ImportError:
        peer = ROOT / ".deps" / "peer"
        if os.environ.get("FSDP_INTEROP_PEER") or not (ROOT / ".deps" / "site-packages" / "torch").exists():
            sys.exit("dcp_round_trip: PyTorch cannot be imported; `scripts/bench.sh step_time` installs what it lacks")
        paths = [str(ROOT / ".deps" / "site-packages"), str(peer)]
        libraries = [str(path) for path in sorted((peer / "nvidia").glob("*/lib"))]
        environment = dict(os.environ, FSDP_INTEROP_PEER="1", PYTHONPATH=os.pathsep.join(paths),
                           LD_LIBRARY_PATH=os.pathsep.join(libraries), PYTHONWARNINGS="ignore")
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


import_torch()

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

NUMPY_TYPES = {"F32": np.float32, "F64": np.float64, "BF16": np.uint16, "F16": np.uint16, "I64": np.int64,
               "I32": np.int32, "U8": np.uint8, "BOOL": np.uint8, "F8_E4M3": np.uint8, "U16": np.uint16}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

failures = []


def check(what, condition):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def make_model():
    """Every type and shape that matters, with special values."""
    generator = torch.Generator().manual_seed(11)
    wide = torch.randn(67, 33, generator=generator)
    wide[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42])
    return {
        "embed.weight": wide,
        "layers.0.w": torch.randn(48, 64, generator=generator).to(torch.bfloat16),
        "layers.0.half": torch.randn(9, 5, generator=generator).to(torch.float16),
        "layers.0.double": torch.randn(5, 7, generator=generator, dtype=torch.float64),
        "layers.0.cube": torch.randn(4, 6, 10, generator=generator),
        "layers.1.short": torch.randn(1, 8, generator=generator),
        "norm": torch.ones(31),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "position": torch.arange(2**40, 2**40 + 10),
        "mask": torch.tensor([True, False, True]),
        "bytes": torch.arange(200).to(torch.uint8),
        "scaled": torch.randn(4, 4, generator=generator).to(torch.float8_e4m3fn),
        "unsigned": torch.tensor([1, 65535]).to(torch.uint16),
        "large": torch.randn(1200, 5000, generator=generator),  # 24 MB: more than one piece
    }


def bits(tensor):
    """The elements as integers: NaNs and signs of zero compare too."""
    return tensor.detach().contiguous().reshape(-1).view(BITS[tensor.element_size()]).reshape(tensor.shape)


def read_safetensors(path):
    """name -> (type, shape, bytes), without any library for it."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(raw[8 + length + begin:8 + length + end], NUMPY_TYPES[entry["dtype"]])
            tensors[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return tensors


def as_numpy(tensor):
    return bits(tensor).numpy()


def same_bits(stored, tensor):
    return stored.shape == tuple(tensor.shape) and np.array_equal(
        stored.view(f"i{stored.itemsize}"), as_numpy(tensor).view(f"i{tensor.element_size()}"))


# Saving and loading with PyTorch #


def shard(model, mesh, grid):
    """The model as DTensors: by rows, by columns, in two dimensions, replicated."""
    placements = [([Shard(0)], mesh), ([Shard(1)], mesh), ([Replicate()], mesh)]
    if grid is not None:
        placements += [([Shard(0), Shard(1)], grid), ([Shard(1), Shard(0)], grid)]
    state = {}
    for i, (name, tensor) in enumerate(model.items()):
        placement, where = placements[i % len(placements)]
        if tensor.dim() < 2 and any(isinstance(p, Shard) for p in placement):
            placement, where = ([Shard(0)], mesh) if tensor.dim() == 1 else ([Replicate()], mesh)
        if tensor.dtype in (torch.float8_e4m3fn, torch.uint16):  # not supported by the collectives of distribute_tensor
            state[name] = tensor
        else:
            state[name] = distribute_tensor(tensor.clone(), where, placement)
    return state


def in_group(rank, world, folder, job, *arguments):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("a", "b")) if world % 2 == 0 else None
    job(mesh, grid, *arguments)
    dist.destroy_process_group()


def run_group(world, job, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(in_group, args=(world, folder, job, *arguments), nprocs=world)


def save_job(mesh, grid, path):
    dcp.save({"model": shard(make_model(), mesh, grid), "step": 7, "name": "run"}, checkpoint_id=path)


def load_job(mesh, grid, path, verdict):
    model = make_model()
    state = shard({name: torch.zeros_like(tensor) for name, tensor in model.items()}, mesh, grid)
    dcp.load({"model": state}, checkpoint_id=path)
    good = all(torch.equal(bits(value.full_tensor() if hasattr(value, "full_tensor") else value), bits(model[name]))
               for name, value in state.items() if value.dtype != torch.bool)
    if not good:
        pathlib.Path(verdict).write_text("different")


def load_plain(path, prefix):
    state = {name: torch.zeros_like(tensor) for name, tensor in make_model().items()}
    dcp.load({"model": state} if prefix else state, checkpoint_id=path, no_dist=True)
    return state


# The directions #


class Fsdp:
    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments):
        result = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(result.stdout + result.stderr, end="")
        return result

    def good(self, *arguments):
        return self.run(*arguments).returncode == 0


def check_import(fsdp, work, world):
    model = make_model()
    source = work / f"dcp{world}"
    if world == 0:
        dcp.save({"model": dict(model), "step": 7, "name": "run"}, checkpoint_id=source, no_dist=True)
    else:
        run_group(world, save_job, str(source))
    label = f"import, {world or 'no'} process group"
    out = work / f"model{world}"
    (work / "config.json").write_text('{"model_type": "llama", "torch_dtype": "float32"}')
    config = work / "config.json"
    check(f"{label}: runs", fsdp.good("import", source, "--prefix=model.", "--config", config, "--out", out))
    stored = read_safetensors(out / "model.safetensors")
    check(f"{label}: names", set(stored) == set(model))
    for name, tensor in model.items():
        check(f"{label}: {name} {tuple(tensor.shape)}", same_bits(stored[name][1], tensor))
    check(f"{label}: config", json.loads((out / "config.json").read_text())["torch_dtype"] == "float32")
    return source, out


def check_dtypes(fsdp, work, source):
    """--dtype=bf16 and fp32 against tensor.to()."""
    model = make_model()
    del model["scaled"]
    plain = work / "without_fp8"
    dcp.save(model, checkpoint_id=plain, no_dist=True)
    for dtype, target in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        out = work / f"as_{dtype}"
        check(f"--dtype={dtype}: runs", fsdp.good("import", plain, "--dtype", dtype, "-o", out))
        stored = read_safetensors(out / "model.safetensors")
        for name, tensor in model.items():
            expected = tensor.to(target) if tensor.is_floating_point() else tensor
            numbers = stored[name][1].view(f"i{expected.element_size()}")
            wanted = as_numpy(expected).view(f"i{expected.element_size()}")
            nan = torch.isnan(expected).numpy() if expected.is_floating_point() else np.zeros(wanted.shape, bool)
            check(f"--dtype={dtype}: {name}", np.array_equal(np.where(nan, 0, numbers), np.where(nan, 0, wanted)))
    refused = fsdp.run("import", source, "--prefix=model.", "--dtype=bf16", "-o", work / "fp8")
    check("--dtype=bf16 refuses FP8", refused.returncode == 2 and "--dtype=keep" in refused.stderr)


def check_export(fsdp, work, folder):
    model = make_model()
    for prefix in ("", "model."):
        out = work / f"export{len(prefix)}"
        label = f"export, prefix '{prefix}'"
        option = [f"--prefix={prefix}"] if prefix else []
        check(f"{label}: runs", fsdp.good("export", folder, "--format=dcp", *option, "--to", out))
        state = load_plain(out, prefix)
        for name, tensor in model.items():
            check(f"{label}: {name}", torch.equal(bits(state[name]), bits(tensor)))
    verdict = work / "verdict"
    run_group(2, load_job, str(work / "export6"), str(verdict))
    check("export: loaded by 2 processes into DTensors", not verdict.exists())
    # What format_utils does: no state dict is known beforehand.
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(work / "export6", work / "plain.pt")
    loaded = torch.load(work / "plain.pt", weights_only=True)
    check("export: dcp_to_torch_save", all(torch.equal(bits(loaded["model"][n]), bits(t)) for n, t in model.items()))
    back = work / "back"
    check("export and import: runs", fsdp.good("import", work / "export6", "--prefix=model.", "-o", back))
    check("export and import: the same file",
          (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes())


def check_errors(fsdp, work, source, folder):
    def refuses(what, code, text, *arguments):
        result = subprocess.run([fsdp.binary, *map(str, arguments)], capture_output=True, text=True, check=False)
        good = result.returncode == code and text in result.stderr and result.stderr.count("\n") == 1
        check(f"refuses {what}", good)
        if not good:
            print(f"      exit {result.returncode}: {result.stderr}")

    refuses("an existing folder", 2, "--overwrite", "import", source, "-o", folder)
    refuses("an unknown prefix", 2, "'model.'", "import", source, "--prefix=weights.", "-o", work / "x")
    refuses("a missing source", 4, "got nothing there", "import", work / "none", "-o", work / "x")
    refuses("an unknown dtype", 2, "keep, bf16 or fp32", "import", source, "--dtype=fp8", "-o", work / "x")
    refuses("an unknown format", 2, "hf or dcp", "export", folder, "--format=onnx", "-o", work / "x")
    transposed = work / "transposed"
    dcp.save({"t": torch.randn(3, 5).t()}, checkpoint_id=transposed, no_dist=True)
    refuses("a transposed tensor", 4, "row-major", "import", transposed, "-o", work / "x")
    check("refusals leave nothing", not (work / "x").exists() and not list(work.glob(".x*")))
    check("--overwrite replaces", fsdp.good("import", source, "--prefix=model.", "-o", folder, "--overwrite"))


def check_large(fsdp, work):
    """An archive over 4 GiB, and one behind it: 64-bit numbers in every place."""
    torch.manual_seed(5)
    model = {"a": torch.empty(2**32 + 2**20, dtype=torch.uint8).random_(), "b": torch.randn(7)}
    dcp.save(model, checkpoint_id=work / "large", no_dist=True)
    check("large: import", fsdp.good("import", work / "large", "-o", work / "large_model"))
    check("large: export", fsdp.good("export", work / "large_model", "--format=dcp", "-o", work / "large_back"))
    state = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    dcp.load(state, checkpoint_id=work / "large_back", no_dist=True)
    check("large: the same bits", all(torch.equal(state[name], tensor) for name, tensor in model.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", required=True, help="the binary")
    parser.add_argument("--large", action="store_true", help="a tensor over 4 GiB too: 13 GiB of memory and of disk")
    options = parser.parse_args()
    fsdp = Fsdp(os.path.abspath(options.fsdp))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for world in (0, 1, 2):
            source, folder = check_import(fsdp, work, world)
        check_dtypes(fsdp, work, source)
        check_export(fsdp, work, folder)
        check_errors(fsdp, work, source, folder)
        if options.large:
            check_large(fsdp, work)
    print(f"dcp_round_trip: {len(failures)} failures with PyTorch {torch.__version__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
