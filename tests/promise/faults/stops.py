"""SIGSTOP: a rank that neither works nor closes its connections is found by its silence, and named."""

import functools
import signal
import time

from case import UNREACHED, Case, Violation
from kills import SLOW
from tiny_run import STEPS, Setup
from trial import Trial

PART = "stops"
LOST_PEER = 5
SILENCE = "3"  # seconds; 15 unless told
FOUND_WITHIN = 30  # seconds, whatever the transport

POINTS = (("model.built", 1), ("step.begin", 1), ("step.forward", 7), ("step.backward", 7), ("step.optimizer", 12),
          ("comm.call", 40), ("save.begin", 2), ("save.snapshot", 2), ("save.write", 2), ("save.gathered", 3),
          ("eval.begin", 1))


def check_found(scene, trial, job, rank, seconds):
    job.must_end(LOST_PEER)
    job.must_say(f"rank {rank} (", "gave no sign of life")
    scene.count("faults")
    scene.slowest_end = max(scene.slowest_end, seconds)
    if seconds > FOUND_WITHIN:
        raise Violation("HANG", f"a stopped rank was found after {seconds:.0f} s")
    return trial.finish()


def stop_at(point, hit, rank, transport, scene):
    trial = Trial(scene)
    job = trial.start(f"stop@{point}:hit={hit}:rank={rank}",
                      environment={"FSDP_HEARTBEAT_SECONDS": SILENCE, "FSDP_TRANSPORT": transport})
    trial.take(job)
    if job.code == 0:
        return UNREACHED
    return check_found(scene, trial, job, rank, job.seconds)


def stop_any_time(silence, setup, scene):
    trial = Trial(scene, setup)
    rank = scene.random.randrange(setup.ranks)
    job = trial.start(SLOW, environment={"FSDP_HEARTBEAT_SECONDS": silence} if silence else {})
    if not job.wait_for_text(f"step {scene.random.randint(1, STEPS - 4)}/"):
        raise Violation("WRONG", f"ended before it was stopped: {job.last_words()}")
    job.let_run(scene.random.uniform(0, 0.03))
    begin = time.monotonic()
    pid = job.ranks().get(rank)
    if pid is not None:
        job.signal(signal.SIGSTOP, [pid])
    trial.take(job)
    if job.code == 0:
        return UNREACHED
    return check_found(scene, trial, job, rank, time.monotonic() - begin)


def pause(target, scene):
    """Shorter than the silence that counts: nothing happens."""
    trial = Trial(scene)
    job = trial.start(SLOW, environment={"FSDP_HEARTBEAT_SECONDS": SILENCE})
    job.wait_for_text(f"step {scene.random.randint(1, STEPS - 4)}/")
    pids = {"launcher": [job.pid], "rank": [job.ranks().get(1, job.pid)], "all": job.processes()}[target]
    job.signal(signal.SIGSTOP, pids)
    # All of them may be stopped for as long as it takes.
    time.sleep(1.2 if target != "all" else 6)
    job.signal(signal.SIGCONT, pids)
    trial.take(job)
    job.must_end(0)
    trial.check_exact()
    scene.count("faults")
    return "EXACT"


def cases():
    for number, (point, hit) in enumerate(POINTS):
        for transport in ("shm", "gloo"):
            rank = (number + (transport == "gloo")) % 2
            yield Case(PART, f"{point}:hit={hit}:rank={rank}:{transport}",
                       functools.partial(stop_at, point, hit, rank, transport), 9)
    for number in range(6):
        yield Case(PART, f"any-time:{number}", functools.partial(stop_any_time, SILENCE, Setup(ranks=2 + number % 2)), 9)
    yield Case(PART, "unless-told", functools.partial(stop_any_time, "", Setup()), 25)
    for target in ("rank", "launcher", "all"):
        yield Case(PART, f"pause:{target}", functools.partial(pause, target), 6)
