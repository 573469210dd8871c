"""SIGKILL at every named point of a step, a save, a prune and a resume, and at any time; resumed, the end is the same."""

import functools
import signal

from case import UNREACHED, Case
from damage import flip_a_bit
from tiny_run import Setup
from trial import Trial

PART = "kills"
KILLED = 128 + signal.SIGKILL
BLOCKING = "--checkpoint.async=false"
SLOW = "delay=15@step.begin"  # rank 0, every step: time to be hit in

# Hits that a run of 24 steps with a checkpoint every 4 and 3 evaluations reaches. One more than that does no harm: the
# case then counts for nothing.
STEP_HITS = (1, 2, 5, 9, 14, 20, 24)
SAVE_HITS = (1, 2, 4, 6)
OF_ALL_RANKS = {
    "init.connected": (1,), "model.built": (1,),
    "step.begin": STEP_HITS, "step.forward": STEP_HITS, "step.backward": STEP_HITS, "step.reduced": STEP_HITS,
    "step.agreed": STEP_HITS, "step.optimizer": STEP_HITS, "step.end": STEP_HITS,
    "eval.begin": (1, 2, 3), "eval.end": (1, 2, 3),
    "comm.call": (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377),
    "save.begin": SAVE_HITS, "save.snapshot": SAVE_HITS, "save.write": SAVE_HITS, "save.written": SAVE_HITS,
    "save.gathered": SAVE_HITS, "save.committed": SAVE_HITS,
    "file.create": (1, 2, 3), "file.write": (1, 2, 4), "file.sync": (1, 2, 4),
}
OF_RANK_0 = {
    "save.manifest": SAVE_HITS, "save.pruned": SAVE_HITS,
    "file.make_folder": (1, 2, 4), "file.create": (5, 9), "file.write": (7, 11), "file.sync": (6, 10),
    "file.rename": (1, 2, 3, 4, 5, 6, 9, 12), "file.remove": (1, 2, 3, 4), "file.sync_folder": (1, 2, 3, 4, 5, 6, 8, 11, 15),
}
OF_A_RESUME = {"init.connected": (1,), "resume.begin": (1,), "resume.read": (1,), "resume.done": (1,), "model.built": (1,),
               "comm.call": (4, 9, 16), "step.begin": (1, 2), "file.remove": (1,)}
# After the newest checkpoint was found damaged and set aside, its step is saved again.
OF_A_FALLBACK = {"resume.begin": (2,), "resume.read": (2,), "resume.done": (1,), "save.committed": (1,),
                 "file.rename": (1, 2, 3), "file.sync_folder": (1, 2, 3, 4), "file.remove": (1,)}


def describe(point, hit, rank):
    return f"{point}:hit={hit}:rank={rank}"


def check_killed(scene, job, point, hit, rank, ranks):
    """False if the run ended before."""
    if job.code == 0:
        return False
    job.must_end(KILLED)
    if ranks > 1:
        job.must_say(f"launch: rank {rank} of {ranks} was killed by signal 9")
    scene.count("faults")
    scene.kill_points.add((point, hit, rank))
    return True


def kill_at(point, hit, rank, options, setup, scene):
    trial = Trial(scene, setup, options)
    job = trial.run(f"kill@{describe(point, hit, rank)}")
    if not check_killed(scene, job, point, hit, rank, setup.ranks):
        trial.check_exact()
        return UNREACHED
    return trial.finish()


def kill_resuming(point, hit, rank, scene):
    trial = Trial(scene)
    first = trial.run("kill@step.optimizer:hit=11:rank=1")
    first.must_end(KILLED)
    job = trial.run(f"kill@{describe(point, hit, rank)}")
    reached = check_killed(scene, job, "resume/" + point, hit, rank, 2)
    return trial.finish() if reached else UNREACHED


def kill_falling_back(point, hit, rank, options, scene):
    trial = Trial.of_stopped(scene, step=12, options=options)
    flip_a_bit(trial.run_folder.checkpoint(12) / f"rank-0000{scene.random.randrange(2)}-of-00002.safetensors", scene.random)
    trial.damaged.add(12)
    job = trial.run(f"kill@{describe(point, hit, rank)}")
    reached = check_killed(scene, job, "fallback/" + point, hit, rank, 2)
    return trial.finish() if reached else UNREACHED


def kill_pruning(point, hit, keep_last, keep_every, scene):
    trial = Trial(scene, keep_last=keep_last, keep_every=keep_every)
    job = trial.run(f"kill@{describe(point, hit, 0)}")
    if not check_killed(scene, job, f"prune-{keep_last}-{keep_every}/{point}", hit, 0, 2):
        return UNREACHED
    return trial.finish()


def die_at(action, codes, point, hit, rank, scene):
    """Other ways to end that nobody asked for."""
    trial = Trial(scene)
    job = trial.start(f"{action}@{describe(point, hit, rank)}")
    trial.take(job, may_die=action == "abort")
    if job.code == 0:
        return UNREACHED
    job.must_end(*codes)
    scene.count("faults")
    return trial.finish()


def wait_for_a_moment(scene, job, seconds):
    """Any time of a run that takes so long, more often one in which it trains."""
    if scene.random.random() < 0.3:
        job.let_run(scene.random.uniform(0, seconds))
    elif job.wait_for_text(" loss "):
        job.let_run(scene.random.uniform(0, 0.6))


def kill_something(scene, job):
    target = scene.random.choice(("rank", "rank", "launcher", "all"))
    if target == "rank":
        job.signal(signal.SIGKILL, [scene.random.choice(sorted(job.ranks().values()))])
    elif target == "launcher":
        job.signal(signal.SIGKILL, [job.pid])
    else:
        job.signal(signal.SIGKILL, job.processes())


def kill_at_random(scene, trial, seconds):
    """One start of the same command, with something of it killed at any time."""
    job = trial.start(SLOW)
    wait_for_a_moment(scene, job, seconds)
    alive = job.code is None
    kill_something(scene, job)
    trial.take(job)
    if alive and job.code != 0:
        job.must_end(KILLED)
        scene.count("faults")


def chain(setup, options, scene):
    trial = Trial(scene, setup, options)
    seconds = scene.workload.reference(setup).seconds
    for _ in range(scene.random.randint(3, 5)):
        kill_at_random(scene, trial, seconds)
    return trial.finish()


def start_finished_run_again(scene):
    trial = Trial(scene)
    trial.finish()
    job = trial.run()
    job.must_end(0)
    trial.check_exact()
    scene.count("faults")
    return "EXACT"


def point_cases(table, ranks, make):
    for point, hits in table.items():
        for hit in hits:
            for rank in ranks:
                yield from make(point, hit, rank)


def both_ways(point, hit, rank):
    for way, options in (("async", ()), ("blocking", (BLOCKING,))):
        yield Case(PART, f"{describe(point, hit, rank)}:{way}",
                   functools.partial(kill_at, point, hit, rank, options, Setup()))


def of_a_resume(point, hit, rank):
    yield Case(PART, f"resume:{describe(point, hit, rank)}", functools.partial(kill_resuming, point, hit, rank), 6)


def of_a_fallback(point, hit, rank):
    options = () if hit % 2 else (BLOCKING,)
    yield Case(PART, f"fallback:{describe(point, hit, rank)}",
               functools.partial(kill_falling_back, point, hit, rank, options), 6)


def prune_cases():
    for keep_last, keep_every in ((1, 0), (1, 8), (3, 12)):
        for point, hits in (("file.remove", (1, 2, 3)), ("file.rename", (1, 2, 3, 4)), ("save.committed", (3,)),
                            ("save.pruned", (3,)), ("file.sync_folder", (7, 8, 9))):
            for hit in hits:
                yield Case(PART, f"prune:keep_last={keep_last}:keep_every={keep_every}:{point}:hit={hit}",
                           functools.partial(kill_pruning, point, hit, keep_last, keep_every))


def death_cases():
    points = [(point, hits[len(hits) // 2]) for point, hits in OF_ALL_RANKS.items()]
    for number, (point, hit) in enumerate(points):
        for action, codes in (("abort", (134,)), ("throw", (1,))):
            rank = number % 2
            yield Case(PART, f"{action}:{describe(point, hit, rank)}",
                       functools.partial(die_at, action, codes, point, hit, rank))


def cases():
    yield from point_cases(OF_ALL_RANKS, (0, 1), both_ways)
    yield from point_cases(OF_RANK_0, (0,), both_ways)
    yield from point_cases(OF_A_RESUME, (0, 1), of_a_resume)
    yield from point_cases(OF_A_FALLBACK, (0,), of_a_fallback)
    yield from prune_cases()
    yield from death_cases()
    for number in range(60):
        setup = Setup(ranks=(2, 2, 2, 3)[number % 4])
        options = (BLOCKING,) if number % 3 == 0 else ()
        yield Case(PART, f"chain:{number}", functools.partial(chain, setup, options), 10)
    yield Case(PART, "finished-run-again", start_finished_run_again)
