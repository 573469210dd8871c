"""Numbers that go wrong: once, which a second computation finds; lastingly, which the policy decides; silently, in one of
several replicas. And ranks that are slow."""

import functools
import math

from case import Case, Violation
from kills import BLOCKING, KILLED
from tiny_run import BATCH, INTERVAL, STEPS, Setup
from trial import Trial, double_of

PART = "nonfinite"
INTERNAL = 1
NONFINITE = 6
BAD_STEP = 7
VALUES = ("value.loss", "value.grad")


def lasting(value, rank=0, hit=BAD_STEP):
    """Wrong in both computations of a step."""
    return f"inject@{value}:hit={hit}:rank={rank};inject@{value}:hit={hit + 1}:rank={rank}"


def passing_error(value, rank, hit, scene):
    trial = Trial(scene)
    job = trial.run(f"inject@{value}:hit={hit}:rank={rank}")
    job.must_end(0)
    job.must_say(f"train: step {hit} was computed wrongly once and then rightly")
    scene.count("faults")
    trial.check_exact()
    return "EXACT"


def stops(value, rank, ranks, scene):
    trial = Trial(scene, Setup(ranks))
    job = trial.run(lasting(value, rank))
    job.must_end(NONFINITE)
    job.must_say(f"[train] step {BAD_STEP}: ", "not finite, computed twice")
    scene.count("faults")
    return trial.finish()


def skips(value, rank, scene):
    options = ("--train.on_nonfinite=skip",)
    trial = Trial(scene, options=options)
    job = trial.run(lasting(value, rank))
    job.must_end(0)
    job.must_say(f"train: step {BAD_STEP} skipped: ")
    scene.count("faults")
    check_skipped(trial.run_folder.entries(), scene.workload.reference(Setup()).entries)
    # The same again, killed after the bad step: it is not skipped twice, nor forgotten.
    other = Trial(scene, options=options, folder=scene.folder / "other")
    other.run(f"{lasting(value, rank)};kill@step.end:hit=14:rank={rank}").must_end(KILLED)
    other.run().must_end(0)
    scene.count("faults")
    check_equal(trial, other)
    return "DEGRADED"


def check_skipped(entries, wanted):
    if [entry["step"] for entry in entries if entry.get("skipped")] != [BAD_STEP]:
        raise Violation("WRONG", f"the ledger does not say that step {BAD_STEP} alone was skipped")
    bad = entries[BAD_STEP - 1]
    if math.isfinite(double_of(bad["loss"])) and math.isfinite(double_of(bad["grad_norm"])):
        raise Violation("WRONG", "the ledger has finite numbers for the step that was skipped")
    for got, expected in zip(entries, wanted, strict=True):
        for key in ("step", "position", "batch", "lr"):
            if got[key] != expected[key]:
                raise Violation("SILENT", f"step {got['step']}: another {key} than in the undisturbed run")
    if entries[:BAD_STEP - 1] != wanted[:BAD_STEP - 1]:
        raise Violation("SILENT", "steps before the bad one differ")
    if not all(math.isfinite(double_of(entry["loss"])) for entry in entries if entry is not bad):
        raise Violation("SILENT", "losses after the bad step are not finite")


def check_equal(trial, other):
    if trial.run_folder.ledger() != other.run_folder.ledger():
        raise Violation("SILENT", "a run that was killed in between has another ledger")
    if trial.run_folder.model_hash() != other.run_folder.model_hash():
        raise Violation("SILENT", "a run that was killed in between has other weights")


def rolls_back(value, rank, options, scene):
    options = ("--train.on_nonfinite=rollback", *options)
    trial = Trial(scene, options=options)
    job = trial.run(lasting(value, rank))
    job.must_end(0)
    back_to = (BAD_STEP - 1) // INTERVAL * INTERVAL
    job.must_say(f"train: step {BAD_STEP} was not finite (loss ", f"back to step {back_to}, without the data in between")
    scene.count("faults")
    entries = trial.run_folder.entries()
    expected = [(step, BATCH * (step - 1 if step <= back_to else step - 1 + BAD_STEP - back_to))
                for step in range(1, STEPS + 1)]
    if [(entry["step"], entry["position"]) for entry in entries] != expected:
        raise Violation("SILENT", f"the ledger has the positions {[(e['step'], e['position']) for e in entries]}")
    other = Trial(scene, options=options, folder=scene.folder / "other")
    other.run(f"{lasting(value, rank)};kill@step.end:hit=15:rank={rank}").must_end(KILLED)
    other.run().must_end(0)
    scene.count("faults")
    check_equal(trial, other)
    return "DEGRADED"


def cannot_roll_back(scene):
    """Before the first checkpoint."""
    trial = Trial(scene, options=("--train.on_nonfinite=rollback",))
    job = trial.run(lasting("value.loss", hit=2))
    job.must_end(NONFINITE)
    job.must_say("there is no checkpoint to go back to")
    scene.count("faults")
    return trial.finish()


def other_bits(rank, every, scene):
    """One bit of a weight of one replica; to each rank its own copy."""
    trial = Trial(scene, Setup(2, ("--shard.strategy=no_shard",)), (f"--check.compare_replicas_every={every}",))
    job = trial.run(f"inject@value.bitflip_weight:hit=6:rank={rank}",
                    environment={"FSDP_HOST_WEIGHTS": "per_rank", "FSDP_TRANSPORT": "gloo"})
    job.must_end(INTERNAL)
    job.must_say("got other bits on rank 1 than on rank 0", "weight [0,8288)")
    scene.count("faults")
    return "REFUSED"


def checks_find_nothing(option, scene):
    trial = Trial(scene, options=(option,))
    job = trial.run("kill@step.end:hit=13")
    job.must_end(KILLED)
    scene.count("faults")
    return trial.finish()


def straggler(rank, ranks, scene):
    trial = Trial(scene, Setup(ranks))
    job = trial.run(f"delay=60@step.forward:rank={rank}")
    job.must_end(0)
    job.must_say(f"straggler: rank {rank} computes")
    scene.count("faults")
    trial.check_exact()
    return "EXACT"


def cases():
    for value in VALUES:
        for rank in (0, 1):
            for hit in (1, BAD_STEP, STEPS):
                yield Case(PART, f"once:{value}:rank={rank}:hit={hit}", functools.partial(passing_error, value, rank, hit))
            yield Case(PART, f"stop:{value}:rank={rank}", functools.partial(stops, value, rank, 2))
            yield Case(PART, f"skip:{value}:rank={rank}", functools.partial(skips, value, rank), 6)
            for way, options in (("async", ()), ("blocking", (BLOCKING,))):
                yield Case(PART, f"rollback:{value}:rank={rank}:{way}",
                           functools.partial(rolls_back, value, rank, options), 6)
        yield Case(PART, f"stop:{value}:alone", functools.partial(stops, value, 0, 1), 3)
    yield Case(PART, "rollback:no-checkpoint", cannot_roll_back)
    for rank in (0, 1):
        for every in (1, 2, 5):
            yield Case(PART, f"bitflip:rank={rank}:every={every}", functools.partial(other_bits, rank, every), 3)
    for option in ("--check.compute_twice_every=3", "--check.compare_replicas_every=2"):
        yield Case(PART, f"quiet:{option}", functools.partial(checks_find_nothing, option))
    for rank, ranks in ((0, 2), (1, 2), (1, 3)):
        yield Case(PART, f"straggler:rank={rank}-of-{ranks}", functools.partial(straggler, rank, ranks), 6)
