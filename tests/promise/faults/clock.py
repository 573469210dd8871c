"""Clocks that jump while a run trains, and that differ between a run and its continuation."""

import functools
import pathlib
import shutil
import subprocess

from case import Case, Skipped
from kills import SLOW
from trial import Trial

PART = "clock"
JUMPS = ("+1h", "-1h", "+400d", "-2000d")
NO_LIBRARY = "a clock that jumps: no libfaketime here (Debian: faketime)"


def fake_library():
    for folder in (*pathlib.Path("/usr/lib").glob("*/faketime"), pathlib.Path("/usr/lib64/faketime")):
        path = folder / "libfaketimeMT.so.1"
        if path.exists():
            return path
    raise Skipped(NO_LIBRARY)


def jump(first, second, scene):
    """The time of day jumps twice; the monotonic clock goes on, as kernels promise."""
    times = scene.folder / "time"
    times.write_text("+0")
    environment = {"LD_PRELOAD": str(fake_library()), "FAKETIME_TIMESTAMP_FILE": str(times), "FAKETIME_NO_CACHE": "1",
                   "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    trial = Trial(scene)
    job = trial.start(SLOW, environment=environment)
    for step, offset in ((4, first), (14, second)):
        job.wait_for_text(f"step {step}/")
        new = scene.folder / "time.new"
        new.write_text(offset)
        new.rename(times)
    trial.take(job)
    job.must_end(0)
    scene.count("faults", 2)
    trial.check_exact()
    return "EXACT"


def other_monotonic_clock(seconds, scene):
    """As after a reboot, or on another machine: a namespace in which that clock shows another time."""
    prefix = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", str(seconds), "--boottime", str(seconds), "--")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        raise Skipped("another monotonic clock: this user may make no time namespace")
    trial = Trial.of_stopped(scene)
    job = trial.run(prefix=prefix)
    job.must_end(0)
    scene.count("faults")
    trial.check_exact()
    return "EXACT"


def by_the_clock(scene):
    """Saves that are due by time, in a run whose time of day goes back."""
    times = scene.folder / "time"
    times.write_text("+0")
    environment = {"LD_PRELOAD": str(fake_library()), "FAKETIME_TIMESTAMP_FILE": str(times), "FAKETIME_NO_CACHE": "1",
                   "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    trial = Trial(scene, options=("--checkpoint.every_minutes=0.002",))
    job = trial.start("delay=60@step.begin", environment=environment)
    job.wait_for_text("step 6/")
    times.write_text("-100d")
    trial.take(job)
    job.must_end(0)
    scene.count("faults")
    trial.check_exact()
    return "EXACT"


def cases():
    for first in JUMPS:
        for second in ("+0", JUMPS[(JUMPS.index(first) + 1) % len(JUMPS)]):
            yield Case(PART, f"jump:{first}:{second}", functools.partial(jump, first, second))
    for seconds in (-3, 10_000_000):
        yield Case(PART, f"monotonic:{seconds}", functools.partial(other_monotonic_clock, seconds))
    yield Case(PART, "by-the-clock", by_the_clock, 6)
