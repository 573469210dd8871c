"""Models and machines that do not fit: exit code 8 with advice, and what was saved stays."""

import functools
import resource

from case import UNREACHED, Case, Violation
from tiny_run import Setup
from trial import Trial

PART = "memory"
CODE = 8
HUGE = ("--model.hidden_size=16384", "--model.ffn_size=65536", "--model.layers=200", "--model.heads=64",
        "--model.kv_heads=64")
# 70 MB of weights, and three times that to save.
MIDDLE = ("--model.hidden_size=384", "--model.ffn_size=1536", "--model.layers=8", "--train.steps=3",
          "--train.warmup_steps=1", "--checkpoint.every_steps=1", "--train.final_eval_batches=1")
# MiB, from what is just enough to load the libraries and to connect.
LIMITS = {1: range(500, 1500, 75), 2: range(725, 1700, 75)}


def check_advice(scene, job):
    job.must_end(CODE)
    if not any(word in job.err for word in ("microbatch", "more ranks", "fewer ranks", "smaller")):
        raise Violation("WRONG", f"gave no advice: {job.last_words()}")
    scene.count("faults")


def huge_model(ranks, scene):
    trial = Trial(scene)
    job = trial.run(ranks=ranks, options=HUGE, limits={resource.RLIMIT_AS: 6 << 30})
    check_advice(scene, job)
    return trial.finish()


def too_little(mebibytes, ranks, scene):
    """Of address space: allocations fail where the model is built, in a step, in a save, or nowhere."""
    trial = Trial(scene, Setup(ranks), MIDDLE)
    job = trial.run(limits={resource.RLIMIT_AS: mebibytes << 20})
    if job.code == 0:
        return UNREACHED
    check_advice(scene, job)
    trial.run().must_end(0)
    return "REFUSED"


def cases():
    for ranks in (1, 2):
        yield Case(PART, f"huge-model:{ranks}-ranks", functools.partial(huge_model, ranks), 6)
        for mebibytes in LIMITS[ranks]:
            yield Case(PART, f"too-little:{mebibytes}M:{ranks}-ranks", functools.partial(too_little, mebibytes, ranks), 8)
