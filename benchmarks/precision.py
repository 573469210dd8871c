"""What each precision does to the loss: one small model trained for 500 steps in each of them, on the same batches, from
the same weights, on two ranks. `python3 benchmarks/precision.py` prints the table of docs/precision.md and draws its
picture; nothing here is about time."""

import argparse
import glob
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FSDP = os.path.join(ROOT, "bin", "fsdp")
FOLDER = os.path.join(ROOT, "build", "bench", "precision")
MODEL = {"model.hidden_size": 128, "model.layers": 6, "model.heads": 4, "model.kv_heads": 4, "model.ffn_size": 384,
         "model.init_std": 0.05, "data.sequence_length": 128, "train.batch_sequences": 16, "train.lr": 3e-3,
         "train.log_every": 1}
LAST = 50  # steps whose mean is the final loss: one step's depends on its batch

# Name, settings, and how far the final loss may be above bf16's.
RUNS = [
    ("fp32", {"shard.precision": "fp32"}, 0.003),
    ("bf16", {"shard.precision": "bf16"}, 0.0),
    ("fp16", {"shard.precision": "fp16"}, 0.003),
    ("O1", {"shard.precision": "o1"}, 0.003),
    ("O3", {"shard.precision": "o3"}, 0.01),
    *((f"fp8 {recipe}", {"shard.precision": "fp8", "shard.fp8_recipe": recipe}, 0.01)
      for recipe in ("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8")),
    ("fp8 rowwise, all blocks", {"shard.precision": "fp8", "shard.fp8_keep": ""}, 0.01),
]
# Scales a million times too large: the same check has to fail.
BROKEN = "fp8 rowwise, broken scales"
DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2", "12 3 3 3", "3 1", "7 2 1 2", "5 5"]


def prepare():
    headers = sorted(glob.glob("/usr/include/c++/*"))[-1]
    subprocess.run([FSDP, "prepare", headers + "/bits/*.h", "--output", os.path.join(FOLDER, "data"), "--holdout", "5%",
                    "--overwrite"], check=True, stdout=subprocess.DEVNULL)


def train(name, settings, steps, reuse, fault=None):
    """The loss of each step, and that of held-out text at the end."""
    output = os.path.join(FOLDER, name.replace(" ", "_").replace(",", ""))
    options = {**MODEL, **settings, "train.steps": steps, "data.path": os.path.join(FOLDER, "data"),
               "output.folder": output, "output.overwrite": "replace"}
    if not reuse:
        subprocess.run([FSDP, "launch", "--nproc", "2", "--", "train", *(f"--{key}={value}" for key, value in options.items())],
                       check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "OMP_NUM_THREADS": "1", **({"FSDP_FAULT": fault} if fault else {})})
    with open(os.path.join(output, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    heldout = [line["heldout"]["loss"] for line in lines if "heldout" in line][-1]
    return [line["loss"] for line in lines if "loss" in line], heldout


def smoothed(losses, width=20):
    return [sum(losses[max(0, i - width + 1):i + 1]) / len(losses[max(0, i - width + 1):i + 1]) for i in range(len(losses))]


def draw(curves, path):
    """Relative distance of each curve from bf16's, smoothed, in percent."""
    width, height, left, top = 760, 360, 60, 30
    base = smoothed(curves["bf16"])
    lines = {name: [100 * (a / b - 1) for a, b in zip(smoothed(losses), base)] for name, losses in curves.items()}
    steps = len(base)
    limit = max(1.2, max(abs(value) for line in lines.values() for value in line[steps // 10:]))
    x = lambda step: left + (width - left - 190) * step / (steps - 1)
    y = lambda percent: top + (height - top - 40) * (limit - max(-limit, min(limit, percent))) / (2 * limit)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="18">Training loss against bf16, percent (mean of 20 steps); the band is 1 %</text>',
             f'<rect x="{left}" y="{y(1):.1f}" width="{x(steps - 1) - left:.1f}" height="{y(-1) - y(1):.1f}" fill="#eee"/>']
    for percent in (-1, 0, 1):
        parts.append(f'<text x="{left - 8}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}</text>')
    for step in (0, steps // 2, steps - 1):
        parts.append(f'<text x="{x(step):.1f}" y="{height - 14}" text-anchor="middle">step {step + 1}</text>')
    ends = []
    for (name, line), dash in zip(lines.items(), DASHES):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="black" stroke-width="1.2" stroke-dasharray="{dash}"/>')
        ends.append((y(line[-1]), name, dash))
    last = 0
    for place, name, dash in sorted(ends):  # labels below each other, in the order of the lines' ends
        last = max(place, last + 16, top + 8)
        parts.append(f'<line x1="{width - 184}" x2="{width - 154}" y1="{last:.1f}" y2="{last:.1f}" stroke="black" '
                     f'stroke-dasharray="{dash}"/><text x="{width - 148}" y="{last + 4:.1f}">{name}</text>')
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--svg", default=os.path.join(ROOT, "docs", "images", "precision.svg"))
    parser.add_argument("--reuse", action="store_true", help="the runs that are there, to draw them again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="train these anew and reuse the other runs that are there")
    options = parser.parse_args()
    if not options.reuse and not options.only:
        prepare()
    reuses = lambda name: options.reuse or (options.only is not None and name not in options.only)
    results = {name: train(name, settings, options.steps, reuses(name)) for name, settings, _ in RUNS}
    broken, broken_heldout = train(BROKEN, {"shard.precision": "fp8"}, options.steps, reuses(BROKEN), "inject@value.fp8_scale")
    curves = {name: losses for name, (losses, _) in results.items()}
    final = {name: sum(losses[-LAST:]) / LAST for name, losses in curves.items()}
    failed = False
    print(f"| precision | loss of the last {LAST} of {options.steps} steps | against bf16 | allowed | held-out loss | against bf16 |\n"
          "|---|---|---|---|---|---|")
    for name, _, allowed in RUNS:
        distance = final[name] / final["bf16"] - 1
        heldout = results[name][1]
        failed |= distance > allowed
        print(f"| {name} | {final[name]:.4f} | {100 * distance:+.2f} % | {100 * allowed:.1f} % | {heldout:.4f} | "
              f"{100 * (heldout / results['bf16'][1] - 1):+.2f} % |")
    distance = sum(broken[-LAST:]) / LAST / final["bf16"] - 1
    failed |= distance <= 0.01
    print(f"| {BROKEN} | {sum(broken[-LAST:]) / LAST:.4f} | {100 * distance:+.2f} % | has to be above 1.0 % | {broken_heldout:.4f} | "
          f"{100 * (broken_heldout / results['bf16'][1] - 1):+.2f} % |")
    draw(curves, options.svg)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
