"""`fsdp launch --max-restarts`: a job that is killed finishes by itself; one that cannot is given up."""

import functools
import signal

from case import Case, Violation
from kills import BLOCKING, KILLED, SLOW, kill_something
from tiny_run import Setup
from trial import Trial

PART = "restart"
QUICK = ("--restart-backoff", "0.05")


def restarts(count, min_uptime=0):
    return ("--max-restarts", str(count), *QUICK, "--min-uptime", str(min_uptime))


# Each attempt counts its own hits, so that a fault at hit 9 of 24 steps strikes twice.
FAULTS = (("kill@step.end:hit=9:rank=1", 2), ("kill@step.optimizer:hit=12", 1), ("kill@save.written:hit=2:rank=1", 1),
          ("abort@step.backward:hit=13:rank=1", 1), ("throw@step.forward:hit=10", 1), ("term@step.end:hit=7:rank=1", 1),
          ("kill@save.committed:hit=3", 1), ("kill@file.rename:hit=5", 1), ("kill@eval.begin:hit=2:rank=1", 1))


def restarts_itself(fault, least, options, scene):
    trial = Trial(scene, options=options)
    job = trial.take(trial.start(fault, launch=restarts(6)), may_die=fault.startswith("abort"))
    job.must_end(0)
    number = job.err.count("; restart ")
    if number < least:
        raise Violation("WRONG", f"restarted {number} times, expected at least {least}: {job.last_words()}")
    scene.count("faults", number)
    trial.check_exact()
    return "EXACT"


def survives_random_kills(setup, scene):
    trial = Trial(scene, setup)
    job = trial.start(SLOW, launch=restarts(20))
    for _ in range(4):
        job.let_run(scene.random.uniform(0.2, 1.2))
        ranks = job.ranks()
        if job.code is not None or set(ranks.values()) == {job.pid}:
            continue
        job.signal(signal.SIGKILL, [scene.random.choice(sorted(ranks.values()))])
        scene.count("faults")
    trial.take(job)
    job.must_end(0)
    trial.check_exact()
    return "EXACT"


def crash_loop(scene):
    trial = Trial(scene)
    job = trial.run("kill@step.begin:rank=1", launch=restarts(10, min_uptime=1000))
    job.must_end(KILLED)
    job.must_say("gave up with 8 restarts left", "rank 1 of 2")
    scene.count("faults", 3)
    return trial.finish()


def restarts_run_out(scene):
    trial = Trial(scene)
    job = trial.run("kill@step.begin:hit=2", launch=restarts(2))
    job.must_end(KILLED)
    job.must_say("no restart is left (2 of 2 used)")
    scene.count("faults", 3)
    return trial.finish()


def lasting_failure(scene):
    """An exit code that says that trying again is useless."""
    trial = Trial(scene)
    job = trial.run("inject@value.loss:hit=7;inject@value.loss:hit=8", launch=restarts(5))
    job.must_end(6)
    job.must_say("not restarted, because code 6 does not go away by itself")
    scene.count("faults")
    return trial.finish()


def launcher_dies(scene):
    trial = Trial(scene)
    job = trial.start(SLOW, launch=restarts(5))
    job.wait_for_text(" loss ")
    job.let_run(scene.random.uniform(0, 0.4))
    kill_something(scene, job)
    trial.take(job)
    job.must_end(0, KILLED)
    scene.count("faults")
    return trial.finish()


def cases():
    for fault, least in FAULTS:
        for way, options in (("async", ()), ("blocking", (BLOCKING,))):
            yield Case(PART, f"{fault}:{way}", functools.partial(restarts_itself, fault, least, options), 6)
    for number in range(8):
        yield Case(PART, f"random-kills:{number}",
                   functools.partial(survives_random_kills, Setup(ranks=2 + number % 2)), 8)
    for number in range(4):
        yield Case(PART, f"launcher-dies:{number}", launcher_dies, 5)
    yield Case(PART, "crash-loop", crash_loop, 6)
    yield Case(PART, "restarts-run-out", restarts_run_out, 6)
    yield Case(PART, "lasting-failure", lasting_failure)
