"""The training run that is disturbed: a tiny model on a data set made here, and what such a run leaves."""

import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import threading

from case import Skipped, Violation
from job import Job

STEPS = 24
INTERVAL = 4  # steps between two checkpoints
BATCH = 12  # sequences: for 1, 2, 3 and 4 ranks
EVALUATED = [10, 20, STEPS]

CONFIG = f"""\
[model]
hidden_size = 32
layers = 2
heads = 4
kv_heads = 2
ffn_size = 48

[data]
sequence_length = 32

[train]
steps = {STEPS}
batch_sequences = {BATCH}
warmup_steps = 4
lr = 3e-3
peak_tflops = 1
log_every = 1
eval_every = 10
eval_batches = 1
final_eval_batches = 1

[checkpoint]
every_steps = {INTERVAL}
keep_last = 2
"""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What decides the bits of a run."""
    ranks: int = 2
    options: tuple = ()


class RunFolder:
    """An output folder, read as a user would."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.checkpoints = self.path / "checkpoints"

    def ledger(self):
        path = self.path / "ledger.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    def entries(self):
        return [json.loads(line) for line in self.ledger()]

    def last_step(self):
        """Of the last line that is whole; 0 if there is none."""
        for line in reversed(self.ledger()):
            try:
                return json.loads(line)["step"]
            except (ValueError, KeyError):
                continue
        return 0

    def metrics(self):
        path = self.path / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        except ValueError as error:
            raise Violation("CORRUPT", f"metrics.jsonl: {error}") from None

    def steps(self):
        """Of folders that look like checkpoints, ascending."""
        names = [path.name for path in self.checkpoints.glob("step-*")]
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-(0|[1-9]\d*)", name))

    def checkpoint(self, step):
        return self.checkpoints / f"step-{step}"

    def has_model(self):
        return (self.path / "model").exists()

    def model_hash(self):
        return hash_of(self.path / "model" / "model.safetensors")

    def state_hashes(self, step):
        """Weights and optimizer state of a checkpoint; the manifest has the time of day in it."""
        return {path.name: hash_of(path) for path in sorted(self.checkpoint(step).glob("rank-*"))}


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a run that nothing disturbed came to."""
    ledger: list
    entries: list
    metrics: dict  # step -> (loss, gradient norm, learning rate)
    model: str
    state: dict
    checkpoint_bytes: int
    seconds: float


class Workload:
    """Data, configuration and command lines; undisturbed runs are done once each."""

    def __init__(self, binary, folder):
        self.binary = str(binary)
        self.folder = pathlib.Path(folder)
        self.data = self.folder / "data"
        self.config = self.folder / "run.toml"
        self.config.write_text(CONFIG)
        self._made = {}
        self._lock = threading.Lock()
        self._prepare()

    def command(self, output, ranks=2, options=(), launch=(), config=None, data=None, resume="auto"):
        """The one command line that starts a run and goes on with it."""
        train = ["train", str(config or self.config), f"--data.path={data or self.data}", f"--output.folder={output}",
                 f"--resume={resume}", *options]
        if ranks == 1 and not launch:
            return [self.binary, *train]
        return [self.binary, "launch", "--nproc", str(ranks), *launch, "--", *train]

    def reference(self, setup):
        return self._once(("reference", setup), lambda: self._run_reference(setup))

    def stopped(self, setup, step):
        """Output folder of a run that was asked to stop and saved that step. To be copied, not changed."""
        return self._once(("stopped", setup, step), lambda: self._run_stopped(setup, step))

    def library(self, source):
        """Of one C++ source, to be preloaded."""
        return self._once(("library", source), lambda: self._build_library(source))

    def _once(self, key, make):
        with self._lock:
            entry = self._made.setdefault(key, {"lock": threading.Lock()})
        with entry["lock"]:
            if "value" not in entry:
                entry["value"] = make()
        return entry["value"]

    def _new_folder(self):
        with self._lock:
            number = len(list(self.folder.glob("undisturbed-*")))
            path = self.folder / f"undisturbed-{number}"
            path.mkdir()
        return path

    def _prepare(self):
        text = self.folder / "text"
        text.mkdir()
        for file in range(10):
            lines = [f"line {line * (file + 3) % 17} of file {file};\n" for line in range(40 + 3 * file)]
            (text / f"{file}.txt").write_text("".join(lines))
        job = Job([self.binary, "prepare", str(text), "-o", str(self.data), "--holdout", "2"], self.folder / "log")
        job.wait()
        job.must_end(0)

    def _build_library(self, source):
        compiler = shutil.which("c++")
        if compiler is None:
            raise Skipped(f"{source.name}: no c++ here to compile it")
        path = self.folder / source.with_suffix(".so").name
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
        return path

    def _run_reference(self, setup):
        folder = self._new_folder()
        job = Job(self.command(folder / "run", setup.ranks, setup.options), folder / "log")
        job.wait()
        job.must_end(0)
        run = RunFolder(folder / "run")
        entries = run.entries()
        if [entry["step"] for entry in entries] != list(range(1, STEPS + 1)):
            raise Violation("WRONG", f"an undisturbed run wrote the ledger of steps {[e['step'] for e in entries]}")
        metrics = {row["step"]: values_of(row) for row in run.metrics() if "loss" in row}
        files = [path for path in run.checkpoint(STEPS).iterdir()]
        return Reference(run.ledger(), entries, metrics, run.model_hash(), run.state_hashes(STEPS),
                         sum(path.stat().st_size for path in files), job.seconds)

    def _run_stopped(self, setup, step):
        folder = self._new_folder()
        # Signals are looked at before a step.
        job = Job(self.command(folder / "run", setup.ranks, setup.options), folder / "log",
                  {"FSDP_FAULT": f"term@step.end:hit={step - 1}"})
        job.wait()
        job.must_end(75)
        job.must_say(f"saved step {step};")
        return folder / "run"


def values_of(row):
    return row["loss"], row["grad_norm"], row["lr"]


def copy_run(source, target):
    """An output folder, without its lock."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock"))
