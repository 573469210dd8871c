"""Stopped or killed and continued: with the same ranks bit for bit, with other ones with every sequence at its place."""

import functools

from case import Case, Violation
from kills import BLOCKING, KILLED
from tiny_run import STEPS, Setup
from trial import Trial

PART = "elastic"
RESUMABLE = 75
STAGES = (1, 2, 4, 3, 1)
HITS = {"term": 4, "kill": 7}

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
HYBRID = ("hybrid", "hybrid_zero2", "hybrid_optim")
PRECISIONS = ("fp32", "bf16")


def of_strategy(strategy, precision="fp32"):
    replicas = ("--shard.replicas=2",) if strategy in HYBRID else ()
    return (f"--shard.strategy={strategy}", f"--shard.precision={precision}", *replicas)


def world_sizes(action, options, strategies, scene):
    """`strategies`: one for each stage, or none."""
    trial = Trial(scene, options=options)
    code = {"term": RESUMABLE, "kill": KILLED}[action]
    for stage, ranks in enumerate(STAGES):
        is_last = stage + 1 == len(STAGES)
        fault = "" if is_last else f"{action}@step.end:hit={HITS[action]}:rank={ranks - 1}"
        more = (f"--shard.strategy={strategies[stage]}",) if strategies else ()
        job = trial.run(fault, ranks=ranks, options=more)
        job.must_end(0 if is_last else code)
        if action == "term" and trial.lost != 0:
            raise Violation("LOSS", f"{trial.lost} steps were lost at stage {stage}")
    if trial.done != STEPS:
        raise Violation("WRONG", f"ended after step {trial.done}")
    scene.count("faults", len(STAGES) - 1)
    trial.check_same_data(scene.workload.reference(Setup(ranks=1, options=options)))
    return "RESUMED"


def same_world(action, ranks, options, scene):
    trial = Trial(scene, Setup(ranks, options))
    hit = scene.random.randint(5, STEPS - 2)
    job = trial.run(f"{action}@step.end:hit={hit}:rank={scene.random.randrange(ranks)}")
    job.must_end({"term": RESUMABLE, "kill": KILLED}[action])
    scene.count("faults")
    return trial.finish()


def pair(before, after, scene):
    """One stop between two numbers of ranks."""
    trial = Trial.of_stopped(scene, setup=Setup(before))
    job = trial.run(ranks=after)
    job.must_end(0)
    scene.count("faults")
    trial.check_same_data(scene.workload.reference(Setup(before)))
    if before == after:
        trial.check_exact()
        return "EXACT"
    return "RESUMED"


def cases():
    for action in ("term", "kill"):
        for strategy in STRATEGIES:
            options = of_strategy(strategy)
            yield Case(PART, f"1-2-4-3-1:{action}:{strategy}", functools.partial(world_sizes, action, options, ()), 10)
        yield Case(PART, f"1-2-4-3-1:{action}:blocking",
                   functools.partial(world_sizes, action, (BLOCKING,), ()), 10)
        yield Case(PART, f"1-2-4-3-1:{action}:strategies-change",
                   functools.partial(world_sizes, action, (), ("no_shard", "optim", "optim_grads_params", "optim_grads",
                                                                "no_shard")), 10)
    for before in (1, 2, 3, 4):
        for after in (1, 2, 3, 4):
            yield Case(PART, f"from-{before}-to-{after}", functools.partial(pair, before, after), 5)
    for precision in PRECISIONS:
        for strategy in (*STRATEGIES, *HYBRID):
            ranks = 4 if strategy in HYBRID else 2
            for action in ("term", "kill"):
                yield Case(PART, f"same-ranks:{action}:{strategy}:{precision}",
                           functools.partial(same_world, action, ranks, of_strategy(strategy, precision)), 8)
