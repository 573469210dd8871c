"""Ranks that were started by hand and do not fit together: refused, and the odd one is named."""

import functools
import pathlib
import re
import shutil
import socket

from case import Case, Skipped, Violation
from damage import flip_bit
from job import DEADLINE, Job
from tiny_run import RunFolder, Setup
from trial import Trial

PART = "mismatch"
USAGE = 2
DATA = 3
LOST_PEER = 5


def reserved_port():
    """A socket whose port is no other's until it closes; a store may listen there beside it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def start_ranks(scene, *ranks, seconds=DEADLINE):
    """`ranks`: (variables, options, more) of each process; `more`: program, place, or arguments of Workload.command."""
    jobs = []
    with reserved_port() as held:
        port = str(held.getsockname()[1])
        for variables, options, more in ranks:
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
            places = {key: value for key, value in more.items() if key not in ("program", "place")}
            program, *words = scene.workload.command(scene.folder / "run", 1, options, **places)
            job = Job([str(more.get("program", program)), *words], scene.folder / "log",
                      {key: value for key, value in environment.items() if value is not None}, place=more.get("place"))
            scene.commands.append(job.text)
            jobs.append(job)
        for job in jobs:
            job.wait(seconds)
    return jobs


def of(rank, size=2, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), **more}


def check_refused(scene, jobs, codes, text):
    if all(job.code == 0 for job in jobs):
        raise Violation("SILENT", "ranks that do not fit together trained")
    for job in jobs:
        job.must_end(*codes)
    if not any(re.search(text, job.err) for job in jobs):
        raise Violation("WRONG", f"nobody said '{text}' but: {[job.last_words() for job in jobs]}")
    scene.count("faults")
    if RunFolder(scene.folder / "run").steps():
        raise Violation("WRONG", "ranks that do not fit together saved something")
    return "REFUSED"


def other_options(options, codes, text, scene):
    jobs = start_ranks(scene, (of(0), (), {}), (of(1), options, {}))
    return check_refused(scene, jobs, codes, text)


def other_config_file(scene):
    path = scene.folder / "other.toml"
    path.write_text(scene.workload.config.read_text().replace("warmup_steps = 4", "warmup_steps = 5"))
    jobs = start_ranks(scene, (of(0), (), {}), (of(1), (), {"config": path}))
    return check_refused(scene, jobs, (USAGE,), "rank 1 was started with another configuration")


def other_data(change, scene):
    """The same path, another content, as on hosts whose disks differ."""
    text = scene.folder / "text"
    shutil.copytree(scene.workload.folder / "text", text)
    path = text / "3.txt"
    path.write_text(change(path.read_text()))
    places = [scene.workload.folder, scene.folder]
    job = Job([scene.workload.binary, "prepare", str(text), "-o", str(scene.folder / "data"), "--holdout", "2"],
              scene.folder / "log")
    job.wait()
    job.must_end(0)
    jobs = start_ranks(scene, *((of(rank), (), {"data": "data", "place": places[rank]}) for rank in (0, 1)))
    return check_refused(scene, jobs, (USAGE, DATA), "rank 1")


def missing_rank(scene):
    """Two minutes, then it is named."""
    jobs = start_ranks(scene, (of(0), (), {}), seconds=180)
    scene.slowest_end = jobs[0].seconds
    return check_refused(scene, jobs, (LOST_PEER,), "these ranks have not started: 1")


def variables(first, second, codes, text, scene):
    jobs = start_ranks(scene, (first, (), {}), (second, (), {}))
    return check_refused(scene, jobs, codes, text)


def alone(changes, text, scene):
    return check_refused(scene, start_ranks(scene, (changes, (), {})), (USAGE,), text)


def rank_twice(rank, scene):
    """The one too many is refused. The others may have met before it came, and then train; if they have also ended by
    then, it waits for rank 0 as long as any rank does that comes first: two minutes. Rank 0 starts last, which makes
    that rare."""
    jobs = start_ranks(scene, *((of(number), (), {}) for number in (1, rank, 0)), seconds=3 * DEADLINE)
    scene.count("faults")
    codes = [job.code for job in jobs]
    if sorted(codes)[:2] == [0, 0]:
        Trial(scene, folder=scene.folder / "run").check_exact()
        return check_one_refused(jobs, rank)
    for job in jobs:
        job.must_end(USAGE, LOST_PEER)
    return check_one_refused(jobs, rank)


def check_one_refused(jobs, rank):
    wanted = rf"both claim to be rank {rank}|address already in use|port \d+|cannot reach the store"
    if not any(job.code in (USAGE, LOST_PEER) and re.search(wanted, job.err) for job in jobs):
        raise Violation("WRONG", f"nobody said '{wanted}' but: {[job.last_words() for job in jobs]}")
    return "REFUSED"


def copy_with_other_id(original, copy):
    """Where the linker notes what the contents are, one bit is another."""
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(original, copy)
    copy.chmod(0o755)
    note = b"\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\0"
    at = copy.read_bytes().find(note)
    if at < 0:
        raise Skipped(f"another build: {original.name} has no build id")
    flip_bit(copy, 8 * (at + len(note)))
    return copy


def other_build(scene):
    """A copy of the program with another build id."""
    binary = copy_with_other_id(pathlib.Path(scene.workload.binary), scene.folder / "bin" / "fsdp-other")
    installed = pathlib.Path(scene.workload.binary).parent.parent / "lib"
    if installed.is_dir():  # where an installed program looks for its libraries
        (scene.folder / "lib").symlink_to(installed)
    jobs = start_ranks(scene, (of(0), (), {}), (of(1), (), {"program": binary}))
    return check_refused(scene, jobs, (USAGE,), "rank 1 .*build of fsdp: got")


def other_verbs(scene):
    """The same program, which finds another library of verbs."""
    folder = pathlib.Path(scene.workload.binary).resolve().parent
    name = "libfsdp_verbs.so"
    original = next((path for path in (folder / name, folder.parent / "lib" / name) if path.exists()), None)
    if original is None:
        raise Skipped(f"another build: no {name} beside the program")
    other = copy_with_other_id(original, scene.folder / "verbs" / name)
    jobs = start_ranks(scene, (of(0), (), {}), (of(1, LD_LIBRARY_PATH=str(other.parent)), (), {}))
    return check_refused(scene, jobs, (USAGE,), "rank 1 .*build of fsdp: got")


def by_hand(scene):
    """The same, started rightly: the control of this part."""
    start_ranks(scene, (of(0), (), {}), (of(1), (), {}))
    trial = Trial(scene, Setup(), folder=scene.folder / "run")
    trial.check_exact()
    return "EXACT"


OPTIONS = ((("--train.lr=1e-3",), (USAGE,), "rank 1 was started with another configuration"),
           (("--train.steps=25",), (USAGE,), "rank 1 was started with another configuration"),
           (("--train.seed=9",), (USAGE,), "rank 1 was started with another configuration"),
           (("--model.hidden_size=64",), (USAGE,), "rank 1 was started with another configuration"),
           (("--shard.precision=bf16",), (USAGE,), "rank 1 was started with another configuration"),
           (("--shard.strategy=optim",), (USAGE,), "rank 1 was started with another configuration"),
           (("--checkpoint.every_steps=3",), (USAGE,), "rank 1 was started with another configuration"),
           (("--train.batch_sequences=24",), (USAGE, DATA), "rank 1"),
           (("--data.path=/nowhere",), (DATA,), "rank 1"),
           (("--train.microbatch_sequences=5",), (USAGE,), "rank 1"))

WORLDS = (("world-size:3", of(0), of(1, 3), (USAGE,), r"rank 1 .*world size: got 3, expected 2"),
          ("world-size:1000", of(0), of(1, 1000), (USAGE,), r"rank 1 .*world size: got 1000, expected 2"))

LONE = (("rank-too-high", of(2, 2, LOCAL_RANK="0"), "rank 2 of 2"), ("rank-negative", of(-1), "RANK"),
        ("rank-text", {"RANK": "one", "WORLD_SIZE": "2"}, "RANK"), ("size-zero", of(0, 0), "WORLD_SIZE|rank 0 of 0"),
        ("no-size", {"RANK": "0"}, "WORLD_SIZE"), ("no-address", of(0, MASTER_ADDR=None), "MASTER_ADDR"),
        ("no-port", of(0, MASTER_PORT=None), "MASTER_PORT"), ("port-text", of(0, MASTER_PORT="x"), "MASTER_PORT"),
        ("port-too-high", of(0, MASTER_PORT="70000"), "MASTER_PORT"),
        ("fault-unknown", of(0, 1, FSDP_FAULT="kill"), "FSDP_FAULT"))


def cases():
    yield Case(PART, "control", by_hand)
    for options, codes, text in OPTIONS:
        yield Case(PART, f"options:{options[0]}", functools.partial(other_options, options, codes, text), 2)
    yield Case(PART, "config-file", other_config_file, 2)
    for name, change in (("longer", lambda text: 9 * text), ("same-length", str.upper)):
        yield Case(PART, f"data:{name}", functools.partial(other_data, change), 2)
    yield Case(PART, "missing-rank", missing_rank, 125)
    for name, first, second, codes, text in WORLDS:
        yield Case(PART, name, functools.partial(variables, first, second, codes, text), 2)
    for name, changes, text in LONE:
        yield Case(PART, name, functools.partial(alone, changes, text), 1)
    for rank in (0, 1):
        yield Case(PART, f"rank-twice:{rank}", functools.partial(rank_twice, rank), 3)
    yield Case(PART, "build", other_build, 2)
    yield Case(PART, "build:verbs", other_verbs, 2)
