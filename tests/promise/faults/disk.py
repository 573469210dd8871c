"""Disks that are full, broken or read-only: training goes on or stops with exit code 7, and older checkpoints are whole."""

import contextlib
import functools
import pathlib
import re
import resource
import shutil
import subprocess

from case import UNREACHED, Case, Skipped, Violation
from kills import BLOCKING
from tiny_run import Setup
from trial import Trial

PART = "disk"
USAGE = 2
FILE_SYSTEM = 7
ERRORS = ("ENOSPC", "EIO", "EDQUOT")
FAILED = "checkpoint: save failed: "

HITS_OF_RANK_0 = {"file.make_folder": (1, 2, 4, 7), "file.create": (1, 2, 3, 4, 8, 16), "file.write": (1, 2, 3, 5, 9),
                  "file.sync": (1, 2, 3, 4, 8, 16), "file.rename": (1, 2, 3, 6, 9), "file.remove": (1, 2, 3),
                  "file.sync_folder": (1, 2, 3, 4, 5, 6, 8, 12)}
HITS_OF_RANK_1 = {"file.create": (1, 3, 6), "file.write": (1, 3, 6), "file.sync": (1, 3, 6)}

# Random failures of system calls from libfiu: name, probability, errno.
RANDOM_FAILURES = (("posix/io/rw/pwrite", 0.15, 28), ("posix/io/sync/fsync", 0.1, 5), ("posix/io/rw/pwrite", 0.05, 5),
                   ("posix/io/dir/rename", 0.2, 5))


def check_after_failures(trial, job):
    """Ended well with a warning, or with the exit code of disks; then the same command ends it."""
    job.must_end(0, FILE_SYSTEM)
    trial.bounds_loss = False
    if job.code == 0:
        trial.check_exact()
    else:
        trial.finish()
    return "DEGRADED"


def fail_at(error, point, hit, rank, options, scene):
    trial = Trial(scene, options=options)
    job = trial.run(f"error={error}@{point}:hit={hit}:rank={rank}")
    if job.code == 0 and FAILED not in job.out:
        trial.check_exact()
        return UNREACHED
    scene.count("faults")
    job.must_say(FAILED)
    return check_after_failures(trial, job)


def limit_file_size(share, scene):
    """RLIMIT_FSIZE below what a rank writes, whose signal must not kill."""
    trial = Trial(scene)
    size = int(share * scene.workload.reference(Setup()).checkpoint_bytes)
    job = trial.run(limits={resource.RLIMIT_FSIZE: size})
    scene.count("faults")
    job.must_end(FILE_SYSTEM)
    trial.bounds_loss = False
    if not trial.run_folder.steps() and trial.run_folder.has_model():
        # No save ever fitted, but the run is complete: its model is kept.
        trial.check_model()
        refused = trial.run()
        refused.must_end(USAGE)
        if "holds a finished run (model)" not in refused.err:
            raise Violation("WRONG", f"does not say why it is refused: {refused.last_words()}")
        trial.check_model()
    else:
        trial.finish()
    return "DEGRADED"


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of that many bytes; yields a function that changes its size, or makes it read-only."""
    folder.mkdir(parents=True)

    def mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode

    try:
        failed = mount(f"size={size}") != 0
    except FileNotFoundError:
        failed = True
    if failed:
        raise Skipped("a small disk: this user may not mount one")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def disk_too_small(scene):
    one = scene.workload.reference(Setup()).checkpoint_bytes
    with small_disk(scene.folder / "disk", int(1.5 * one)):
        trial = Trial(scene, folder=scene.folder / "disk" / "run")
        job = trial.run()
        job.must_end(FILE_SYSTEM)
        job.must_say("of free space, expected")
        scene.count("faults")
    return "REFUSED"


def disk_fills_up(scene):
    """Room for the two checkpoints that stay, but not for the next one beside them."""
    one = scene.workload.reference(Setup()).checkpoint_bytes
    with small_disk(scene.folder / "disk", int(2.7 * one)) as resize:
        trial = Trial(scene, folder=scene.folder / "disk" / "run")
        job = trial.run()
        job.must_say(FAILED)
        scene.count("faults")
        if not trial.acknowledged:
            raise Violation("WRONG", f"nothing was saved: {job.last_words()}")
        resize(f"size={20 * one}")
        return check_after_failures(trial, job)


def disk_gets_room_again(scene):
    one = scene.workload.reference(Setup()).checkpoint_bytes
    with small_disk(scene.folder / "disk", 20 * one):
        ballast = scene.folder / "disk" / "ballast"
        ballast.write_bytes(bytes(int(17.3 * one)))
        trial = Trial(scene, folder=scene.folder / "disk" / "run")
        job = trial.start("delay=60@step.begin")
        if not job.wait_for_text(FAILED):
            raise Violation("WRONG", f"ended without a failed save: {job.last_words()}")
        ballast.unlink()
        trial.take(job)
        scene.count("faults")
        job.must_end(0)
        trial.check_exact()
    return "DEGRADED"


def disk_is_read_only(has_run, scene):
    with small_disk(scene.folder / "disk", 64 << 20) as remount:
        folder = scene.folder / "disk" / "run"
        trial = Trial.of_stopped(scene, folder=folder) if has_run else Trial(scene, folder=folder)
        remount("ro")
        job = trial.run()
        job.must_end(FILE_SYSTEM)
        scene.count("faults")
        remount("rw")
        trial.finish()
    return "REFUSED"


def folder_cannot_be(path, scene):
    place = scene.folder / "file"
    place.write_text("in the way")
    trial = Trial(scene, folder=pathlib.Path(path) if path else place / "run")
    job = trial.start()
    job.wait()
    job.must_end(FILE_SYSTEM)
    job.must_say("output.folder", "Choose a folder you may write to")
    scene.count("faults")
    return "REFUSED"


def failing_libraries():
    """To be loaded before others. Without its own start script, whose remote control is a thread that takes signals."""
    if shutil.which("fiu-run") is None:
        raise Skipped("random failures of system calls: no fiu-run here (Debian: fiu-utils)")
    shown = subprocess.run(["fiu-run", "-n", "-x", "true"], capture_output=True, text=True).stdout
    return re.search(r'LD_PRELOAD="([^"]+)"', shown)[1]


def fail_at_random(name, probability, number, scene):
    """System calls of the real binary fail; as often as not several saves of one run."""
    environment = {"LD_PRELOAD": failing_libraries(),
                   "FIU_ENABLE": f"enable_random name={name},probability={probability},failinfo={number}"}
    trial = Trial(scene)
    trial.bounds_loss = False
    for _ in range(3):
        job = trial.run(environment=environment)
        job.must_end(0, FILE_SYSTEM)
        scene.count("faults", job.out.count(FAILED) + (job.code != 0))
        if job.code == 0:
            break
    trial.finish()
    return "DEGRADED"


def error_cases():
    number = 0
    for rank, table in ((0, HITS_OF_RANK_0), (1, HITS_OF_RANK_1)):
        for point, hits in table.items():
            for hit in hits:
                for error in ERRORS:
                    number += 1
                    way, options = (("async", ()), ("blocking", (BLOCKING,)))[number % 2]
                    yield Case(PART, f"{error}@{point}:hit={hit}:rank={rank}:{way}",
                               functools.partial(fail_at, error, point, hit, rank, options))


def cases():
    yield from error_cases()
    for share in (0.08, 0.2, 0.3):
        yield Case(PART, f"file-size-limit:{share}", functools.partial(limit_file_size, share))
    yield Case(PART, "full:at-the-start", disk_too_small)
    yield Case(PART, "full:after-two-saves", disk_fills_up)
    yield Case(PART, "full:for-a-while", disk_gets_room_again, 6)
    yield Case(PART, "read-only:new-run", functools.partial(disk_is_read_only, False))
    yield Case(PART, "read-only:resume", functools.partial(disk_is_read_only, True))
    yield Case(PART, "no-folder:file-in-the-way", functools.partial(folder_cannot_be, None))
    yield Case(PART, "no-folder:proc", functools.partial(folder_cannot_be, "/proc/fsdp/run"))
    for name, probability, number in RANDOM_FAILURES:
        for repeat in range(3):
            yield Case(PART, f"random:{name.split('/')[-1]}:{number}:{repeat}",
                       functools.partial(fail_at_random, name, probability, number), 8)
