"""AdamW of this library against DeepSpeed's CPUAdam and LibTorch's fused kernel, on the same number of fp32 elements, in turns.
`pip download deepspeed --no-deps --no-binary :all:`, unpack it, and then, in a Python that has PyTorch and ninja:

    python benchmarks/deepspeed_adam.py --deepspeed deepspeed-0.19.8 --threads 1

CPUAdam is compiled as DeepSpeed's builder does it (-O3 -march=native -fopenmp, its vectors for this processor)."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = os.path.join(ROOT, os.environ.get("FSDP_BUILD", "build/release"), "bin", "optimizers")
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}  # of LibTorch's own allocator: ours has them, so the peers do
WIDTH = 1024  # of square matrices, as bin/optimizers has them


def vectors():
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    return "-D__AVX512__" if "avx512f" in flags else "-D__AVX256__" if "avx2" in flags else "-D__SCALAR__"


def load_cpu_adam(folder):
    from torch.utils.cpp_extension import load
    source = os.path.join(folder, "csrc", "adam")
    flags = ["-O3", "-march=native", "-fopenmp", "-D__DISABLE_CUDA__", vectors()]
    return load("deepspeed_cpu_adam", [os.path.join(source, name) for name in ("cpu_adam.cpp", "cpu_adam_impl.cpp")],
                extra_include_paths=[os.path.join(folder, "csrc", "includes")], extra_cflags=flags,
                extra_ldflags=["-fopenmp"])


def lower_quartile(times):
    return statistics.quantiles(times, n=4)[0]


def time_peers(options):
    """Milliseconds of a step of each peer, in turns, on matrices of their own."""
    import torch
    torch.set_num_threads(options.threads)
    cpu_adam = load_cpu_adam(options.deepspeed)
    cpu_adam.create_adam(0, 1e-3, 0.9, 0.95, 1e-8, 0.1, True, False)

    def tensors():
        return [[torch.randn(WIDTH, WIDTH) for _ in range(options.matrices)] for _ in range(2)] + \
               [[torch.zeros(WIDTH, WIDTH) for _ in range(options.matrices)] for _ in range(2)]
    of_deepspeed, of_torch = tensors(), tensors()
    counts = [torch.zeros(()) for _ in range(options.matrices)]
    step = 0

    def deepspeed():
        for weight, gradient, first, second in zip(*of_deepspeed):
            cpu_adam.adam_update(0, step, 1e-3, 0.9, 0.95, 1e-8, 0.1, True, weight, gradient, first, second)

    def fused():
        for count in counts:  # as torch.optim.AdamW does; at 0 the corrections of its means would be 0, too
            count += 1
        torch._fused_adamw_(*of_torch, [], counts, lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
                            amsgrad=False, maximize=False)
    times = {"deepspeed": [], "torch": []}
    for round_number in range(options.rounds + 2):
        step += 1
        for name, work in (("deepspeed", deepspeed), ("torch", fused)):
            begin = time.perf_counter()
            work()
            if round_number >= 2:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: [lower_quartile(each), statistics.median(each)] for name, each in times.items()}


def time_ours(options):
    command = [OURS, "--only", "adamw", "--matrices", str(options.matrices), "--width", str(WIDTH), "--rounds",
               str(options.rounds), "--threads", str(options.threads)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return next(row for row in json.loads(printed.splitlines()[-1])["rows"] if row["name"] == "adamw")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed", required=True, help="DeepSpeed's source folder, which has csrc/adam")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matrices", type=int, default=8, help="of 1024 x 1024 numbers")
    parser.add_argument("--rounds", type=int, default=31, help="steps of each turn")
    parser.add_argument("--turns", type=int, default=5, help="of ours and the peers, one after the other")
    parser.add_argument("--peers-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peers_only:
        print(json.dumps(time_peers(options)))
        return
    again = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--peers-only"]
    print(f"{options.matrices << 20} elements, {options.threads} threads; lower quartile and median of {options.rounds} steps, ms")
    print("| turn | ours | DeepSpeed's CPUAdam | `torch._fused_adamw_` | DeepSpeed / ours | torch / ours |\n|---|---|---|---|---|---|")
    ratios = []
    for turn in range(options.turns):
        ours = time_ours(options)
        peers = json.loads(subprocess.run(again, check=True, env={**os.environ, **HUGE_PAGES}, stdout=subprocess.PIPE,
                                          text=True).stdout.splitlines()[-1])
        own = [ours["ours_quartiles"][0], ours["ours_ms"]]
        ratios.append([peers[name][1] / own[1] for name in ("deepspeed", "torch")])
        cells = [f"{low:.2f}, {middle:.2f}" for low, middle in (own, peers["deepspeed"], peers["torch"])]
        print(f"| {turn + 1} | {' | '.join(cells)} | {ratios[-1][0]:.2f}x | {ratios[-1][1]:.2f}x |", flush=True)
    print("medians of the ratios: " + ", ".join(f"{statistics.median(each):.2f}x" for each in zip(*ratios)))


if __name__ == "__main__":
    main()
