"""The tables of one GPU: a training step of a model beside PyTorch's fully_shard, and the parts of a step beside what bounds
them. Called by scripts/bench_gpu.sh, which builds what is needed. Writes build/bench/gpu.json.

    python3 benchmarks/gpu.py [--rounds 1] [--try]

--try runs everything once on the CPU with a model of one block, to see that it works; its numbers mean nothing."""

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

from harness import ROOT, free_port, ours, print_table, script, stop_what_was_started

GB = 1e9
PEAK_TFLOPS = 989.0  # of dense bf16 products, by NVIDIA's data sheet of H100 SXM and H200
DEADLINE_S = 240
# Of 4 sequences of 8192 tokens.
STEP = ("--preset", "smollm3-3b", "--sequence", "8192", "--accumulation", "4")
# Where launching takes longer than computing.
SMALL_STEP = ("--preset", "smollm2-135m", "--sequence", "512", "--accumulation", "4")
TRY_STEP = ("--device", "cpu", "--preset", "smollm2-135m", "--layers", "1", "--sequence", "64", "--accumulation", "2",
            "--warmup", "1", "--steps", "1")
TRY_PARTS = ("--device", "cpu", "--matrix", "64", "--copy-mib", "1", "--parameters", "4096", "--tokens", "32", "--hidden", "32",
             "--vocabulary", "100", "--rounds", "1")
TRY_KERNELS = ("--device", "cpu", "--tokens", "32", "--sequence", "16", "--hidden", "32", "--ffn", "64", "--vocabulary", "100",
               "--parameters", "4096", "--rounds", "1")
TRY_HOOKS = ("--warmup", "1", "--iterations", "1")
PRESETS = ("none", "elementwise", "gate_up", "block")
# Rank 0 of 8: name, GB/s that a rank receives, strategy.
NETWORKS = (("50 GB/s", 50, "optim_grads_params"), ("330 GB/s", 330, "optim_grads_params"),
            ("330 GB/s, ZeRO-2", 330, "optim_grads"))


def attempt(command):
    """What it printed last, as JSON; else the last line of its errors, as text."""
    env = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(free_port()), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, text=True, capture_output=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return f"not done after {DEADLINE_S} s"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("frame #")]
    tells = errors[:1] if done.args[0] != sys.executable else errors[-1:]  # Python tells the reason last
    return tells[0] if tells else f"ended with code {done.returncode}"


def runs(options):
    """Name and command of each run of a step."""
    step = TRY_STEP if options.on_cpu else STEP
    for preset in PRESETS:
        yield f"ours, recompute {preset}", ours("gpu_step", *step, "--recompute", preset)
    best = ("--recompute", "elementwise")
    yield "ours, projections fused", ours("gpu_step", *step, *best, "--projections", "fused")
    yield "ours, weights copied", ours("gpu_step", *step, *best, "--copied")
    if options.on_cpu:
        return  # the peers need a GPU, and transfers to ranks that do not exist take their time on the CPU too
    for name, speed, strategy in NETWORKS:
        yield f"ours, rank 0 of 8 at {name}", ours("gpu_step", *step, *best, "--ranks", "8", "--gigabytes-per-second", str(speed),
                                                   "--strategy", strategy)
    yield "ours, 135M at 512 tokens", ours("gpu_step", *SMALL_STEP)
    yield "ours, 135M at 512 tokens, graphs", ours("gpu_step", *SMALL_STEP, "--graphs")
    yield "FSDP2, eager", script("gpu_step_fsdp2")
    yield "FSDP2, compiled", script("gpu_step_fsdp2", "--compile")


def lap(result, name):
    """Milliseconds of a step in that part, median over steps; microbatches add up."""
    values, steps = result["laps_ms"][name], len(result["laps_ms"]["optimizer"])
    each = len(values) // steps
    return median(sum(values[i * each:(i + 1) * each]) for i in range(steps))


def step_row(name, result, matrix_rate, work):
    if isinstance(result, str) or work is None:
        return (name, *("-" for _ in range(11)), result[:80] if isinstance(result, str) else "-")
    work = result if "flops_per_token" in result else work
    tokens_per_s = work["tokens_per_step"] / result["step_ms"] * 1e3
    tflops = tokens_per_s * work["flops_per_token"] / 1e12
    memory, formula = result.get("memory"), result.get("memory_formula")
    peak = [f"{memory[key] / GB:.1f}" for key in ("peak_allocated", "peak_reserved")] if memory else ["-", "-"]
    against = f"{memory['peak_allocated'] / formula['total']:.2f}" if memory and formula else "-"
    return (name, f"{result['step_ms']:.0f}", *(f"{lap(result, part):.0f}" for part in ("forward", "backward", "optimizer")),
            f"{tokens_per_s:.0f}", f"{100 * tflops / PEAK_TFLOPS:.1f}%", f"{100 * tflops / matrix_rate:.1f}%", *peak, against,
            str(memory["retries"]) if memory else "-", f"{result['losses'][0]:.3f} {result['losses'][1]:.3f}")


def print_steps(results, matrix_rate):
    rows = [("step", "ms", "forward", "backward", "optimizer", "tokens/s", f"MFU of {PEAK_TFLOPS:.0f}", "of matmul",
             "peak GB", "reserved", "/ formula", "retries", "first, last loss")]
    # The peers train the same model as the first on as many tokens.
    work = next((result for result in results.values() if "flops_per_token" in result), None)
    rows += [step_row(name, result, matrix_rate, work) for name, result in results.items()]
    print_table(rows)


def print_networks(results):
    """Communication that computation does not hide: what a step takes longer than the same schedule in a world of one."""
    alone = results["ours, weights copied"]
    for name, result in results.items():
        if "rank 0 of" not in name or isinstance(result, str) or isinstance(alone, str):
            continue
        share = (result["step_ms"] - alone["step_ms"]) / result["step_ms"]
        waited = result["exposed_gather_ms"] + result["exposed_reduce_ms"]
        print(f"{name}: {100 * share:.1f}% of the step is exposed communication (against weights copied in a world of one); "
              f"{result['gathers']:.0f} gathers of {result['gather_bytes'] / GB:.1f} GB and reductions of "
              f"{result['reduce_bytes'] / GB:.1f} GB a step; the host waited {waited:.1f} ms")


def print_parts(parts, hooks):
    matrix, copy = median(parts["matmul_tflops"]), median(parts["copy_gb_per_s"])
    adamw, entropy = median(parts["adamw_gb_per_s"]), parts["cross_entropy"]
    entropy_ms, floor_ms = median(entropy["ms"]), 1e3 * entropy["tflop"] / matrix
    hook = "-" if isinstance(hooks, str) else f"{(median(hooks['sharded_us']) - median(hooks['bare_us'])) / hooks['units']:.1f} us"
    extra = f"{entropy['extra_bytes'] / GB:.2f} GB" if "extra_bytes" in entropy else "-"
    print_table([("part", "measured", "bound", "share"),
                 ("bf16 product", f"{matrix:.0f} TFLOP/s", f"{PEAK_TFLOPS:.0f} TFLOP/s", f"{100 * matrix / PEAK_TFLOPS:.0f}%"),
                 ("copy", f"{copy:.0f} GB/s", "-", "-"),
                 ("AdamW", f"{adamw:.0f} GB/s", f"{copy:.0f} GB/s (copy)", f"{100 * adamw / copy:.0f}%"),
                 ("linear + cross entropy", f"{entropy_ms:.1f} ms", f"{floor_ms:.1f} ms (three products)",
                  f"{100 * floor_ms / entropy_ms:.0f}%"),
                 ("its memory beside gradients", extra, "-", "-"),
                 ("hooks of a unit, host", hook, "-", "-")])


def print_kernels(result):
    rows = [("kernel", "", "ours, ms", "LibTorch", "ratio", "bytes at the speed of a copy", "share")]
    for kernel in result["kernels"]:
        ours_ms, rival_ms, floor_ms = min(kernel["ours_ms"]), min(kernel["rival_ms"]), kernel["floor_ms"]
        bound = (f"{floor_ms:.3f}", f"{100 * floor_ms / ours_ms:.0f}%") if floor_ms else ("-", "-")
        rows.append((kernel["kernel"], kernel["dtype"], f"{ours_ms:.3f}", f"{rival_ms:.3f}", f"{rival_ms / ours_ms:.2f}", *bound))
    print_table(rows)


def device_name():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        return "no GPU"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1, help="times each step is measured; the fastest is shown")
    parser.add_argument("--try", dest="on_cpu", action="store_true", help="everything once, tiny, on the CPU")
    options = parser.parse_args()
    stop_what_was_started()
    begin, parts = time.monotonic(), attempt(ours("gpu_parts", *(TRY_PARTS if options.on_cpu else ())))
    hooks = attempt(ours("hook_cost", "--copied", *(TRY_HOOKS if options.on_cpu else ("--device", "cuda"))))
    kernels = attempt(ours("gpu_kernels", *(TRY_KERNELS if options.on_cpu else ())))
    for name, result in (("gpu_parts", parts), ("hook_cost", hooks), ("gpu_kernels", kernels)):
        if isinstance(result, str):
            print(f"bench_gpu: {name}: {result}", file=sys.stderr, flush=True)
    if isinstance(parts, str):
        sys.exit("bench_gpu: without the speed of products there is nothing to compare steps with")
    results = {}
    for _ in range(options.rounds):
        for name, command in runs(options):
            result = attempt(command)
            told = result if isinstance(result, str) else f"{result['step_ms']:.0f} ms a step"
            print(f"{time.monotonic() - begin:4.0f} s  {name}: {told}", file=sys.stderr, flush=True)
            known = results.get(name)
            if known is None or isinstance(known, str) or (not isinstance(result, str) and result["step_ms"] < known["step_ms"]):
                results[name] = result
    print(f"\n{device_name()}; {'' if options.on_cpu else 'SmolLM3-3B, '}bf16 over fp32 weights and moments, AdamW, clipping; ms of a "
          "step; the fastest of the rounds;\nformula: peak of allocated memory over what the parts add up to")
    print_steps(results, median(parts["matmul_tflops"]))
    print_networks(results)
    print_parts(parts, hooks)
    if not isinstance(kernels, str):
        print_kernels(kernels)
    folder = os.path.join(ROOT, "build", "bench")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "gpu.json"), "w") as file:
        json.dump({"device": device_name(), "parts": parts, "hooks": hooks, "kernels": kernels, "steps": results}, file, indent=1)
    print(f"{time.monotonic() - begin:.0f} s in all; build/bench/gpu.json")
    own = [result for name, result in results.items() if name.startswith("ours")]
    if any(isinstance(result, str) for result in [hooks, kernels, *own]):
        sys.exit("bench_gpu: one of our own runs failed; its error is in the table")


if __name__ == "__main__":
    main()
