"""Two trainers on one output folder: the second one is refused and told who the first one is."""

import functools
import signal
import socket

from case import Case, Violation
from kills import KILLED
from trial import Trial

PART = "locks"
USAGE = 2
LONG = "delay=200@step.begin"


def start_first(scene):
    trial = Trial(scene)
    job = trial.start("delay=20@step.begin")
    if not job.wait_for_text("step 2/"):
        raise Violation("WRONG", f"the first trainer ended: {job.last_words()}")
    return trial, job


def second_is_refused(ranks, without_file, scene):
    trial, first = start_first(scene)
    holder = first.ranks()[0]
    pids = first.processes()
    first.signal(signal.SIGSTOP, pids)  # so that it is there when the second one comes
    if without_file:
        (trial.run_folder.path / ".lock").unlink()
    second = trial.start(ranks=ranks)
    second.wait()
    first.signal(signal.SIGCONT, pids)
    second.must_end(USAGE)
    second.must_say("[lock]")
    if not without_file:
        second.must_say(f"process '{holder}' on host '{socket.gethostname()}'")
    scene.count("faults")
    trial.take(first)
    first.must_end(0)
    trial.check_exact()
    return "REFUSED"


def free_after_kill(target, scene):
    trial, first = start_first(scene)
    pids = [first.ranks()[0]] if target == "rank 0" else [first.pid] if target == "launcher" else first.processes()
    first.signal(signal.SIGKILL, pids)
    trial.take(first)
    first.must_end(KILLED)
    scene.count("faults")
    return trial.finish()


def race(scene):
    """Several start at the same moment; exactly one trains."""
    trial = Trial(scene)
    jobs = [trial.start(LONG) for _ in range(3)]
    for job in jobs:
        job.wait()
    codes = sorted(job.code for job in jobs)
    scene.count("faults", 2)
    if codes != [0, USAGE, USAGE]:
        raise Violation("WRONG", f"three trainers that started together ended with {codes}")
    winner = next(job for job in jobs if job.code == 0)
    trial.take(winner)
    trial.check_exact()
    return "REFUSED"


def cases():
    for ranks in (1, 2):
        for without_file in (False, True):
            name = "without-file" if without_file else "with-file"
            yield Case(PART, f"second:{ranks}-ranks:{name}",
                       functools.partial(second_is_refused, ranks, without_file), 5)
    for target in ("rank 0", "launcher", "all"):
        yield Case(PART, f"free-after-kill:{target.replace(' ', '-')}", functools.partial(free_after_kill, target), 5)
    for number in range(3):
        yield Case(PART, f"race:{number}", race, 6)
