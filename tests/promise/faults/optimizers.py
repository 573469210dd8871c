"""SIGKILL at random moments, also while a checkpoint is being written, of runs with other optimizers than AdamW in memory,
with averages of weights, and with batches that grow: resumed, they end with the bits of the run that nobody killed."""

import functools

from case import Case
from kills import BLOCKING, KILLED, kill_at_random, kill_something
from tiny_run import Setup
from trial import Trial

PART = "optimizers"

# By name, with what decides the bits of the run.
RUNS = {
    "muon": ("--optimizer.name=muon",),
    "adamw_8bit": ("--optimizer.name=adamw_8bit",),
    "lion": ("--optimizer.name=lion",),
    "adafactor": ("--optimizer.name=adafactor",),
    "schedule_free": ("--optimizer.name=schedule_free", "--train.schedule=constant"),
    "24-bit": ("--optimizer.name=adamw_8bit", "--shard.precision=o3"),
    "24-bit-random-disk": ("--optimizer.name=adamw_8bit", "--shard.precision=o3", "--optimizer.weight_rounding=random",
                           "--shard.offload=disk"),
    "disk": ("--shard.offload=disk",),
    "muon-disk": ("--optimizer.name=muon", "--shard.offload=disk"),
    "adamw_8bit-disk": ("--optimizer.name=adamw_8bit", "--shard.offload=disk"),
    "lion-disk": ("--optimizer.name=lion", "--shard.offload=disk"),
    "ema": ("--train.ema=0.9", "--train.eval_weights=ema"),
    "warm-ups": ("--train.batch_warmup_sequences=6", "--train.batch_warmup_steps=9", "--data.sequence_warmup_steps=12",
                 "--data.sequence_warmup_length=10"),
}
CHAINS = 6  # of each
RANKS = (2, 2, 3)
SLOW_SAVE = "delay=5@step.begin;delay=8@file.write"  # rank 0: a save takes long enough to be hit in


def half_written(trial):
    """Folders of saves that were begun and are no checkpoints."""
    return list(trial.run_folder.checkpoints.glob(".step-*.tmp-*"))


def kill_while_saving(scene, trial):
    """One start, with something of it killed in one of its saves."""
    left = set(half_written(trial))  # by a kill before; gone once the run is started
    job = trial.start(SLOW_SAVE)
    for _ in range(scene.random.randint(1, 3)):  # which save it is
        job.wait_until(lambda: set(half_written(trial)) - left)
        left |= set(half_written(trial))
    job.let_run(scene.random.uniform(0, 0.04))
    alive = job.code is None
    kill_something(scene, job)
    trial.take(job)
    if alive and job.code != 0:
        job.must_end(KILLED)
        scene.count("faults")
        scene.count("killed in a save", bool(half_written(trial)))


def chain(setup, options, scene):
    trial = Trial(scene, setup, options)
    seconds = scene.workload.reference(setup).seconds
    for _ in range(scene.random.randint(3, 5)):
        if scene.random.random() < 0.5:
            kill_while_saving(scene, trial)
        else:
            kill_at_random(scene, trial, seconds)
    return trial.finish()


def cases():
    for name, options in RUNS.items():
        for number in range(CHAINS):
            setup = Setup(ranks=RANKS[number % len(RANKS)], options=options)
            way = (BLOCKING,) if number % 2 == 0 else ()
            yield Case(PART, f"{name}:{number}", functools.partial(chain, setup, way), 12)
