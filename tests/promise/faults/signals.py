"""SIGTERM, SIGUSR1 and SIGINT at any time, to a rank, to all of them or to the launcher: exit code 75, no step lost."""

import functools
import signal
import time

from case import Case, Violation
from kills import BLOCKING, SLOW, wait_for_a_moment
from tiny_run import Setup
from trial import Trial

PART = "signals"
RESUMABLE = 75
GRACE = 30  # seconds, of the launcher
AT_ONCE = 5  # seconds
ONE_REQUEST = 1  # second, in which a rank hears it several times over
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
# "everything": the launcher and all ranks, to which it passes on what it gets.
TARGETS = ("rank 0", "last rank", "all ranks", "launcher", "everything")

# One at each place where a run may be; it may not be noticed before the next step.
POINTS = (("model.built", 1), ("step.begin", 1), ("step.backward", 6), ("step.agreed", 8), ("step.end", 23),
          ("step.end", 24), ("save.snapshot", 2), ("save.write", 3), ("save.committed", 2), ("eval.begin", 1),
          ("eval.end", 2), ("eval.begin", 3), ("comm.call", 60), ("resume.read", 1))


def pids_of(target, job):
    ranks = job.ranks()
    return {"rank 0": [ranks.get(0, job.pid)], "last rank": [ranks[max(ranks)]], "all ranks": sorted(ranks.values()),
            "launcher": [job.pid], "everything": job.processes()}[target]


def check_stopped(scene, trial, job, number):
    """A run that was signalled before it could listen dies of it, and one that is done ends; neither may lose a step."""
    job.must_end(0, RESUMABLE, 128 + number)
    if job.code == RESUMABLE:
        job.must_say("saved step")
    elif job.code == 128 + number and "asked to stop" in job.out:
        raise Violation("WRONG", f"was asked to stop and ended with {job.code}: {job.last_words()}")
    outcome = trial.finish()
    if trial.lost != 0:
        raise Violation("LOSS", f"{trial.lost} steps were lost by signal {number}")
    return outcome


def ask_to_stop(name, target, options, setup, scene):
    trial = Trial(scene, setup, options)
    number = getattr(signal, name)
    job = trial.start(SLOW)
    wait_for_a_moment(scene, job, scene.workload.reference(setup).seconds)
    alive = job.code is None
    job.signal(number, pids_of(target, job))
    begin = time.monotonic()
    trial.take(job, seconds=GRACE)
    if alive:
        scene.count("faults")
        scene.slowest_end = time.monotonic() - begin
    return check_stopped(scene, trial, job, number)


def stop_chain(scene):
    """Stopped again and again, never losing anything."""
    trial = Trial(scene)
    for _ in range(4):
        name = scene.random.choice(SIGNALS)
        job = trial.start(SLOW)
        wait_for_a_moment(scene, job, 2)
        alive = job.code is None
        job.signal(getattr(signal, name), pids_of(scene.random.choice(TARGETS), job))
        trial.take(job, seconds=GRACE)
        job.must_end(0, RESUMABLE, 128 + getattr(signal, name))
        scene.count("faults", alive)
        if trial.lost != 0:
            raise Violation("LOSS", f"{trial.lost} steps were lost by {name}")
    return trial.finish()


def stop_at(action, point, hit, rank, scene):
    trial = Trial.of_stopped(scene, step=5) if point.startswith("resume") else Trial(scene)
    job = trial.take(trial.start(f"{action}@{point}:hit={hit}:rank={rank}"), seconds=GRACE)
    scene.count("faults")
    return check_stopped(scene, trial, job, {"term": signal.SIGTERM, "usr1": signal.SIGUSR1}[action])


def twice(target, pause, scene):
    """A second SIGINT does not wait for a save, unless it comes so soon that it is the same request."""
    trial = Trial(scene)
    job = trial.start("delay=3000@step.optimizer:hit=10")
    if not job.wait_for_text("step 9/"):
        raise Violation("WRONG", f"ended before it was signalled: {job.last_words()}")
    job.let_run(0.3)
    pids = pids_of(target, job)
    job.signal(signal.SIGINT, pids)
    job.let_run(pause)
    begin = time.monotonic()
    job.signal(signal.SIGINT, pids)
    trial.take(job)
    scene.count("faults", 2)
    if pause < ONE_REQUEST:
        job.must_end(RESUMABLE)
        return check_stopped(scene, trial, job, signal.SIGINT)
    scene.slowest_end = time.monotonic() - begin
    if scene.slowest_end > AT_ONCE:
        raise Violation("HANG", f"a second SIGINT took {scene.slowest_end:.1f} s")
    job.must_end(128 + signal.SIGINT)
    return trial.finish()


def cases():
    for name in SIGNALS:
        for target in TARGETS:
            for number in range(4):
                setup = Setup(ranks=(2, 2, 1, 3)[number])
                options = (BLOCKING,) if number == 1 else ()
                yield Case(PART, f"{name}:{target.replace(' ', '-')}:{number}",
                           functools.partial(ask_to_stop, name, target, options, setup))
    for number, (point, hit) in enumerate(POINTS):
        for action in ("term", "usr1"):
            rank = (number + (action == "term")) % 2
            yield Case(PART, f"{action}@{point}:hit={hit}:rank={rank}",
                       functools.partial(stop_at, action, point, hit, rank))
    for target in ("launcher", "rank 0", "last rank", "all ranks"):
        yield Case(PART, f"twice:{target.replace(' ', '-')}", functools.partial(twice, target, 1.4), 6)
    for target in ("rank 0", "last rank", "all ranks"):
        yield Case(PART, f"twice-at-once:{target.replace(' ', '-')}", functools.partial(twice, target, 0.2), 6)
    for number in range(8):
        yield Case(PART, f"chain:{number}", stop_chain, 10)
