"""Models and machines that do not fit: exit code 8 with advice, and what was saved stays."""

import functools
import pathlib
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

# Of calls of `operator new`: about 60,000 take a rank's verb to its end, and more are made while the launcher loads
# LibTorch for all ranks.
REFUSED = range(0, 60000)
REFUSED_CASES = 40
LOADING = range(0, 100000)
LOADING_CASES = 4


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


def refused_new(calls, counted_from, scene):
    """One small allocation or several, wherever it is: also where C++ lets no exception out."""
    trial = Trial(scene)
    first, number, rank = scene.random.choice(calls), scene.random.choice((1, 4)), scene.random.randrange(2)
    library = scene.workload.library(pathlib.Path(__file__).with_name("refused_new.cpp"))
    job = trial.run(environment={"LD_PRELOAD": str(library), "REFUSED_NEW": f"{first}:{number}:{rank}",
                                 "REFUSED_NEW_FROM": str(counted_from)})
    if job.code == 0:
        trial.check_exact()
        return UNREACHED
    check_advice(scene, job)
    return trial.finish()


def cases():
    for number in range(REFUSED_CASES):
        yield Case(PART, f"refused-new:{number}", functools.partial(refused_new, REFUSED, 2), 4)
    for number in range(LOADING_CASES):
        yield Case(PART, f"refused-loading:{number}", functools.partial(refused_new, LOADING, 1), 4)
    for ranks in (1, 2):
        yield Case(PART, f"huge-model:{ranks}-ranks", functools.partial(huge_model, ranks), 6)
        for mebibytes in LIMITS[ranks]:
            yield Case(PART, f"too-little:{mebibytes}M:{ranks}-ranks", functools.partial(too_little, mebibytes, ranks), 8)
