#!/usr/bin/env python3
"""The battery of faults: real training runs of several processes are killed, stopped, starved and lied to, and continued.
What must hold afterwards is in docs/reliability.md; exits with 1 if anything of it did not."""

import argparse
import collections
import concurrent.futures
import fnmatch
import itertools
import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import clock
import corruption
import disk
import elastic
import kills
import locks
import memory
import mismatch
import nonfinite
import optimizers
import restart
import signals
import stops
from case import SKIPPED, Scene, Skipped, Violation
from job import adopt_orphans, kill_all
from result_table import Table, Verdict, write_section
from tiny_run import Workload

ROOT = pathlib.Path(__file__).resolve().parents[3]
PARTS = (kills, signals, stops, disk, corruption, restart, locks, clock, mismatch, elastic, nonfinite, memory,
         optimizers)
# Of a sample: how many cases of a part for one of the least.
WEIGHTS = {"kills": 8, "signals": 2, "disk": 3, "corruption": 4, "elastic": 2, "mismatch": 2, "nonfinite": 2}
JOBS = 2
SAMPLE_MINUTES = 5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help=f"all cases, not those of {SAMPLE_MINUTES} minutes")
    parser.add_argument("--minutes", type=float, help=f"a sample that takes so long (default {SAMPLE_MINUTES})")
    parser.add_argument("--seed", type=int, help="of the sample and of all random choices (default: a new one)")
    parser.add_argument("--only", action="append", choices=[part.PART for part in PARTS],
                        help="all cases of this part; with --minutes a sample of them; may be given again")
    parser.add_argument("--case", action="append", metavar="PATTERN", help="cases by title, such as 'kills/chain:*'")
    parser.add_argument("--list", action="store_true", help="print the titles")
    parser.add_argument("--fsdp", type=pathlib.Path, help="the program (default bin/fsdp)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"runs at a time (default {JOBS})")
    parser.add_argument("--json", type=pathlib.Path, help="write every verdict to this file")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--folder", type=pathlib.Path, help="of the runs (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all cases, not only of violations")
    return parser.parse_args()


def find_program(given):
    places = [given] if given else [ROOT / "bin/fsdp", ROOT / "build/release/bin/fsdp"]
    for path in places:
        if path.is_file():
            return path.resolve()
    sys.exit(f"faults: no {' or '.join(map(str, places))}; run scripts/setup.sh, or name the program with --fsdp")


def all_cases(only):
    return [case for part in PARTS if not only or part.PART in only for case in part.cases()]


def sample_of(cases, seed):
    """All of them, in an order in which every beginning has something of each part."""
    rng = random.Random(seed)
    queues = {}
    for case in cases:
        queues.setdefault(case.part, []).append(case)
    for queue in queues.values():
        rng.shuffle(queue)
    order = []
    while any(queues.values()):
        turn = [queue.pop() for part, queue in queues.items() for _ in range(WEIGHTS.get(part, 1)) if queue]
        rng.shuffle(turn)
        order += turn
    return order


def choose(arguments, seed):
    """Cases in order, and the seconds there are for them."""
    cases = all_cases(arguments.only)
    twice = [title for title, count in collections.Counter(case.title for case in cases).items() if count > 1]
    if twice:
        sys.exit(f"faults: cases with one title: {twice[:5]}")
    if arguments.case:
        cases = [case for case in cases if any(fnmatch.fnmatchcase(case.title, pattern) for pattern in arguments.case)]
    if not cases:
        sys.exit("faults: no such case")
    takes_all = arguments.all or arguments.case or arguments.only
    if takes_all and arguments.minutes is None:
        # Long ones first, so that none runs alone in the end.
        return sorted(cases, key=lambda case: -case.seconds), float("inf")
    return sample_of(cases, seed), 60 * (arguments.minutes or SAMPLE_MINUTES)


class Battery:
    def __init__(self, workload, folder, seed, keep):
        self.workload = workload
        self.folder = folder
        self.seed = seed
        self.keep = keep
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, cases, seconds, jobs):
        """Starts no case that the time does not allow for. Returns the verdicts."""
        deadline = time.monotonic() + seconds
        queue = iter(cases)
        verdicts = []

        def work():
            while True:
                with self.lock:
                    case = next(queue, None)
                if case is None or self.stopped:
                    return
                if time.monotonic() + 2 * case.seconds > deadline:
                    continue
                verdict = self.judge(case)
                with self.lock:
                    verdicts.append(verdict)
                    self.tell(verdict, len(verdicts), len(cases))

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                for worker in [pool.submit(work) for _ in range(jobs)]:
                    worker.result()
            except BaseException:
                self.stopped = True
                kill_all()
                raise
        return verdicts

    def judge(self, case):
        folder = self.folder / f"case-{next(self.numbers)}"
        folder.mkdir()
        scene = Scene(self.workload, folder, f"{self.seed}/{case.title}")
        begin = time.monotonic()
        text = ""
        try:
            outcome = case.run(scene)
        except Violation as violation:
            outcome, text = violation.kind, str(violation)
        except Skipped as skipped:
            outcome, text = SKIPPED, str(skipped)
        except Exception:  # of the battery itself
            outcome, text = "WRONG", traceback.format_exc()
        finally:
            kill_all(below=folder)
        verdict = Verdict(case, outcome, text, scene, time.monotonic() - begin)
        if not self.keep and not verdict.is_violation:
            shutil.rmtree(folder, ignore_errors=True)
        return verdict

    def tell(self, verdict, done, total):
        if verdict.is_violation:
            print(f"\n{verdict.outcome}: {verdict.case.title}: {verdict.text}\n  seed {self.seed}, files in "
                  f"{verdict.scene.folder}, commands:", flush=True)
            for command in verdict.scene.commands:
                print(f"    {command}")
        elif verdict.outcome == SKIPPED:
            print(f"skipped: {verdict.case.title}: {verdict.text}", flush=True)
        elif done % 25 == 0:
            print(f"{done} of {total} cases", flush=True)


def end_of(signal_number, _):
    kill_all()
    sys.exit(128 + signal_number)


def run_battery(arguments, cases, seconds, seed, folder):
    begin = time.monotonic()
    workload = Workload(find_program(arguments.fsdp), folder)
    battery = Battery(workload, folder, seed, arguments.keep)
    return Table(battery.run(cases, seconds, arguments.jobs), seed, time.monotonic() - begin)


def main():
    arguments = parse_arguments()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    cases, seconds = choose(arguments, seed)
    if arguments.list:
        print("\n".join(case.title for case in cases))
        return 0
    adopt_orphans()
    signal.signal(signal.SIGTERM, end_of)
    print(f"faults: seed {seed}, {len(cases)} cases to choose from", flush=True)
    if arguments.folder:
        pathlib.Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-faults-", dir=arguments.folder))
    try:
        table = run_battery(arguments, cases, seconds, seed, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    print(table.text())
    if arguments.json:
        arguments.json.write_text(json.dumps(table.to_json(), indent=1) + "\n")
    if arguments.write_docs:
        write_section(ROOT / "docs" / "reliability.md", table.text())
    if not table.violations and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if table.violations else 0


if __name__ == "__main__":
    sys.exit(main())
