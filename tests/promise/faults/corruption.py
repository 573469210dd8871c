"""Files that were cut, mixed up or changed by a bit: found before anything is taken from them, or without any effect."""

import functools
import json
import re
import shutil

from case import Case, Violation
from damage import copy_but_share, flip_a_bit, lengthen, swap, truncate
from job import Job
from tiny_run import RunFolder, Setup, copy_run
from trial import VERDICT, Trial

PART = "corruption"
DATA = 3
CHECKPOINT = 4
ALONE = Setup(ranks=1)
PASSED_OVER = "checkpoint: passed over step-"

FLIPS_PER_CHECK = 40  # checkpoints that one `fsdp verify` reads
CONTROL = 1_000_000  # step of the undamaged one among them


# Flips in a checkpoint, many at a time.

def verdicts_of(scene, root):
    job = Job([scene.workload.binary, "verify", str(root)], scene.folder / "log")
    scene.commands.append(job.text)
    job.wait()
    job.must_end(CHECKPOINT)
    return {int(step): (word, reason) for word, _, step, reason in VERDICT.findall(job.out)}


def flips_in_checkpoint(kind, scene):
    source = scene.workload.stopped(Setup(), 10) / "checkpoints" / "step-10"
    names = sorted(path.name for path in source.glob(kind))
    root = scene.folder / "checkpoints"
    copy_but_share(source, root / f"step-{CONTROL}", changed="")
    flips = {}
    for number in range(FLIPS_PER_CHECK):
        name = scene.random.choice(names)
        folder = root / f"step-{number}"
        copy_but_share(source, folder, changed=name)
        flips[number] = (name, flip_a_bit(folder / name, scene.random))
    verdicts = verdicts_of(scene, root)
    if verdicts.pop(CONTROL, ("missing",))[0] != "whole":
        raise Violation("WRONG", "fsdp verify finds a whole checkpoint damaged")
    for number, (name, bit) in flips.items():
        word, reason = verdicts.get(number, ("missing", ""))
        if word != "damaged":
            raise Violation("CORRUPT", f"bit {bit} of {name} flipped, and the checkpoint is {word}")
        if name not in reason:
            raise Violation("WRONG", f"bit {bit} of {name} flipped, and the reason does not name it: {reason}")
    scene.count("faults", len(flips))
    scene.count("flips found", len(flips))
    return "REFUSED"


# The newest checkpoint of a run is damaged: the one before it is used, which is said.

def cut(size):
    return lambda folder, name: truncate(folder / name, size)


def swap_ranks(folder, _):
    swap(folder / "rank-00000-of-00002.safetensors", folder / "rank-00001-of-00002.safetensors")


def swap_with_older(folder, name):
    swap(folder / name, folder.parent / "step-8" / name)


def mix_older_in(folder, name):
    shutil.copyfile(folder.parent / "step-8" / name, folder / name)


def flip_in(kind, random):
    def action(folder, _):
        flip_a_bit(random.choice(sorted(folder.glob(kind))), random)
    return action


def check_fallback(scene, trial, damaged_steps):
    trial.damaged |= damaged_steps
    job = trial.run()
    scene.count("faults")
    if trial.acknowledged <= trial.damaged:
        job.must_end(CHECKPOINT)
        job.must_say("got no checkpoint that is whole")
        return "REFUSED"
    job.must_end(0)
    for step in damaged_steps:
        for text in (job.out, job.err):
            if f"{PASSED_OVER}{step}: " not in text:
                raise Violation("WRONG", f"did not say that step-{step} was passed over: {job.last_words()}")
    trial.check_exact()
    return "EXACT"


def damage_newest(name, action, steps, scene):
    trial = Trial.of_stopped(scene)
    action(trial.run_folder.checkpoint(10), name)
    return check_fallback(scene, trial, steps)


def flip_newest(kind, scene):
    trial = Trial.of_stopped(scene)
    flip_in(kind, scene.random)(trial.run_folder.checkpoint(10), "")
    outcome = check_fallback(scene, trial, {10})
    scene.count("flips found")
    return outcome


def flip_all(scene):
    trial = Trial.of_stopped(scene)
    for step in trial.run_folder.steps():
        flip_in("*", scene.random)(trial.run_folder.checkpoint(step), "")
    outcome = check_fallback(scene, trial, set(trial.run_folder.steps()))
    scene.count("flips found", len(trial.damaged))
    return outcome


def branch_from(scene, trial, step):
    """A new run that starts from a checkpoint of another one, named by its path."""
    folder = scene.folder / "branch"
    job = Job(scene.workload.command(folder, 2, resume=str(trial.run_folder.checkpoint(step))), scene.folder / "log")
    scene.commands.append(job.text)
    job.wait()
    scene.count("faults")
    return job, folder


def flip_the_named_one(scene):
    """It is refused, and nothing else is used instead."""
    trial = Trial.of_stopped(scene)
    path = scene.random.choice(sorted(trial.run_folder.checkpoint(10).iterdir()))
    flip_a_bit(path, scene.random)
    job, _ = branch_from(scene, trial, 10)
    job.must_end(CHECKPOINT)
    job.must_say(path.name)
    scene.count("flips found")
    return "REFUSED"


def name_a_whole_one(scene):
    trial = Trial.of_stopped(scene)
    job, folder = branch_from(scene, trial, 8)
    job.must_end(0)
    Trial(scene, folder=folder).check_weights()
    trial.finish()
    return "EXACT"


def name_one_of_what_is_replaced(scene):
    """A run that is to replace the folder of the very checkpoint that it starts from."""
    trial = Trial.of_stopped(scene)
    job = trial.start(resume=str(trial.run_folder.checkpoint(10)), options=("--output.overwrite=replace",))
    job.wait()
    scene.count("faults")
    if job.code == 0:
        trial.check_weights()
        return "EXACT"
    job.must_end(2)
    trial.finish()
    return "REFUSED"


def strangers(scene):
    """Folders that others left: none of them is taken for a checkpoint, and those of interrupted saves go."""
    trial = Trial.of_stopped(scene)
    root = trial.run_folder.checkpoints
    (root / "step-99").mkdir()
    trial.damaged.add(99)
    left = [root / ".step-12.tmp-0123", root / ".step-4.old-0", root / ".step-10.old-0"]
    for path in left:
        shutil.copytree(root / "step-8", path)
    (left[0] / "manifest.json").unlink()
    for name in ("step-011", "step-", "step--3", "step-7x", "other"):
        (root / name).mkdir()
    (root / "latest").write_text("step-77\n")
    job = trial.run()
    job.must_end(0)
    job.must_say(PASSED_OVER + "99")
    trial.check_exact()
    scene.count("faults", 10)
    for path in left:
        if path.exists():
            raise Violation("WRONG", f"{path.name} is still there")
    return "EXACT"


# Files that say nothing about the state: any damage is harmless to it.

def check_records(scene, folder, expected, most_changed):
    """The weights are exact, and all lines but those near the damage are there."""
    run = RunFolder(folder)
    trial = Trial(scene, ALONE, folder=folder)
    trial.check_weights()
    missing = [line for line in expected if line not in run.ledger()]
    if len(missing) > most_changed:
        raise Violation("SILENT", f"ledger.jsonl lacks {len(missing)} lines of the undisturbed run")


def flips_in_records(name, scene):
    reference = scene.workload.reference(ALONE)
    for number in range(5):
        folder = scene.folder / f"run{number}"
        copy_run(scene.workload.stopped(ALONE, 10), folder)
        flip_a_bit(folder / name, scene.random)
        job = run_alone(scene, folder)
        job.must_end(0)
        check_records(scene, folder, reference.ledger, most_changed=2)
        scene.count("faults")
        scene.count("flips harmless")
    return "EXACT"


def records_are_gone(name, size, scene):
    folder = scene.folder / "run"
    copy_run(scene.workload.stopped(ALONE, 10), folder)
    if size is None:
        (folder / name).unlink()
    else:
        truncate(folder / name, min(size, (folder / name).stat().st_size))
    job = run_alone(scene, folder)
    job.must_end(0)
    lines = scene.workload.reference(ALONE).ledger
    check_records(scene, folder, lines, most_changed=10 if name == "ledger.jsonl" else 0)
    scene.count("faults")
    return "EXACT"


# What the user gives: configuration and data.

def run_alone(scene, folder, **places):
    job = Job(scene.workload.command(folder, 1, **places), scene.folder / "log")
    scene.commands.append(job.text)
    job.wait()
    return job


def flips_in_config(scene):
    """A changed value is a changed run, which may be what the user wants; so it is refused or told."""
    path = scene.folder / "run.toml"
    for number in range(5):
        shutil.copyfile(scene.workload.config, path)
        bit = flip_a_bit(path, scene.random)
        folder = scene.folder / f"run{number}"
        copy_run(scene.workload.stopped(ALONE, 10), folder)
        job = run_alone(scene, folder, config=path)
        scene.count("faults")
        job.must_end(0, 2, DATA, CHECKPOINT)
        told = re.search(r"checkpoint: \S+ was .*, is ", job.out)
        if job.code != 0 or told:
            scene.count("flips found")
        elif RunFolder(folder).model_hash() == scene.workload.reference(ALONE).model:
            scene.count("flips harmless")
        else:
            raise Violation("SILENT", f"bit {bit} of the configuration flipped: other weights, and no word about it")
    return "DEGRADED"


def spoiled_data(scene, spoil, number=0):
    """A copy of the data set, spoiled."""
    data = scene.folder / f"data{number}"
    shutil.copytree(scene.workload.data, data)
    spoil(data)
    return data


def check_data_refused(scene, data, text):
    folder = scene.folder / "run"
    if not folder.exists():
        copy_run(scene.workload.stopped(ALONE, 10), folder)
    job = run_alone(scene, folder, data=data)
    scene.count("faults")
    if job.code == 0:
        raise Violation("SILENT", f"{text}: trained nevertheless")
    job.must_end(DATA)


def flips_in_data(kind, scene):
    for number in range(10):
        name = scene.random.choice(sorted(path.name for path in scene.workload.data.glob(kind)))
        flipped = []
        data = spoiled_data(scene, lambda data: flipped.append(flip_a_bit(data / name, scene.random)), number)
        check_data_refused(scene, data, f"bit {flipped[0]} of {name} flipped")
        scene.count("flips found")
    return "REFUSED"


def data_is_not_whole(name, spoil, scene):
    check_data_refused(scene, spoiled_data(scene, lambda data: spoil(data, name)), f"{name} spoiled")
    return "REFUSED"


def other_data(scene):
    """Of the same size: the run that goes on notices."""
    def spoil(data):
        swap(data / "train-00000-00000.bin", data / "heldout-00000-00000.bin")
        swap(data / "train-00000-00000.idx", data / "heldout-00000-00000.idx")
        path = data / "dataset.json"
        manifest = json.loads(path.read_text())
        splits = manifest["splits"]
        splits["train"], splits["heldout"] = splits["heldout"], splits["train"]
        splits["train"][0]["name"], splits["heldout"][0]["name"] = "train-00000-00000", "heldout-00000-00000"
        path.write_text(json.dumps(manifest))
    check_data_refused(scene, spoiled_data(scene, spoil), "another data set")
    return "REFUSED"


def structural_cases():
    files = ("manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors")
    for name in files:
        for size in (0, 1, 8, 4096, 20_000):
            yield f"{name}:cut-to-{size}", name, cut(size), {10}
        yield f"{name}:cut-by-1", name, lambda folder, n: truncate(folder / n, (folder / n).stat().st_size - 1), {10}
        yield f"{name}:longer", name, lambda folder, n: lengthen(folder / n), {10}
        yield f"{name}:deleted", name, lambda folder, n: (folder / n).unlink(), {10}
        yield f"{name}:swapped-with-older", name, swap_with_older, {8, 10}
        yield f"{name}:of-an-older-one", name, mix_older_in, {10}
    yield "ranks-swapped", "", swap_ranks, {10}


def checkpoint_cases():
    for number in range(10):
        yield Case(PART, f"flips:manifest:{number}", functools.partial(flips_in_checkpoint, "manifest.json"))
    for number in range(18):
        yield Case(PART, f"flips:tensors:{number}", functools.partial(flips_in_checkpoint, "rank-*"))
    for name, file, action, steps in structural_cases():
        yield Case(PART, f"checkpoint:{name}", functools.partial(damage_newest, file, action, steps))
    for number in range(10):
        for kind in ("manifest.json", "rank-*"):
            yield Case(PART, f"flip-newest:{kind}:{number}", functools.partial(flip_newest, kind))
    for number in range(4):
        yield Case(PART, f"flip-all:{number}", flip_all)
        yield Case(PART, f"flip-named:{number}", flip_the_named_one)
    yield Case(PART, "named:whole", name_a_whole_one)
    yield Case(PART, "named:replaced", name_one_of_what_is_replaced)
    yield Case(PART, "strangers", strangers)


def record_cases():
    for name in ("metrics.jsonl", "ledger.jsonl", "config.toml", "checkpoints/latest"):
        for number in range(2):
            yield Case(PART, f"flips:{name}:{number}", functools.partial(flips_in_records, name), 6)
        for size in (None, 0, 100):
            yield Case(PART, f"record:{name}:{'deleted' if size is None else f'cut-to-{size}'}",
                       functools.partial(records_are_gone, name, size))


def data_cases():
    for kind in ("*.bin", "*.idx", "dataset.json"):
        for number in range(4):
            yield Case(PART, f"flips:data:{kind}:{number}", functools.partial(flips_in_data, kind), 5)
    for name in ("train-00000-00000.bin", "train-00000-00000.idx", "heldout-00000-00000.bin", "dataset.json"):
        for size in (0, 1, 64, 100):
            yield Case(PART, f"data:{name}:cut-to-{size}",
                       functools.partial(data_is_not_whole, name, lambda data, n, size=size: truncate(data / n, size)), 2)
        yield Case(PART, f"data:{name}:longer", functools.partial(data_is_not_whole, name, lambda d, n: lengthen(d / n)), 2)
        yield Case(PART, f"data:{name}:deleted",
                   functools.partial(data_is_not_whole, name, lambda data, n: (data / n).unlink()), 2)
    yield Case(PART, "data:other", other_data, 2)
    for number in range(8):
        yield Case(PART, f"flips:configuration:{number}", flips_in_config, 5)


def cases():
    yield from checkpoint_cases()
    yield from record_cases()
    yield from data_cases()
