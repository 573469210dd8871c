"""One output folder that is taken through faults, and the promises that are checked after each of them."""

import re
import struct

from case import Violation
from job import Job
from tiny_run import EVALUATED, INTERVAL, STEPS, RunFolder, Setup, copy_run, values_of

EVENT = re.compile(r"^(?:\[\d+\] )?(?:checkpoint: (?P<kind>committed) step (?P<committed>\d+) "
                   r"|checkpoint: resumed from \S+ at step (?P<resumed>\d+) "
                   r"|step (?P<step>\d+)/\d+ loss )", re.M)
VERDICT = re.compile(r"^(whole|damaged) +(.*?/step-(\d+)): ?(.*)$", re.M)
DEATH = re.compile(r"terminate called|Segmentation fault|Bus error|AddressSanitizer|runtime error:|Assertion .* failed")
DEATHS = {128 + number for number in (4, 6, 7, 8, 11)}  # ILL ABRT BUS FPE SEGV

LOSS_TOLERANCE = 1e-4  # relative, between numbers of ranks
NORM_TOLERANCE = 1e-3


def is_async(options):
    return "--checkpoint.async=false" not in options


def double_of(bits):
    return struct.unpack(">d", bytes.fromhex(bits))[0]


def close(a, b, tolerance):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


class Trial:
    """`options` are those that change no bit of the result. `damaged`: steps of checkpoints that the case itself
    spoiled; they may be found damaged, and need not be used."""

    def __init__(self, scene, setup=Setup(), options=(), folder=None, keep_last=2, keep_every=0):
        self.scene = scene
        self.setup = setup
        self.options = (*options, f"--checkpoint.keep_last={keep_last}", f"--checkpoint.keep_every={keep_every}")
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.run_folder = RunFolder(folder or scene.folder / "run")
        self.acknowledged = set()
        self.damaged = set()
        self.done = 0  # steps, when the last run ended
        self.bounds_loss = True  # of steps: off where saves fail on purpose
        self.lost = 0  # steps, at the last resume

    @classmethod
    def of_stopped(cls, scene, step=10, **arguments):
        """One that goes on from a run that was asked to stop after `step`."""
        trial = cls(scene, **arguments)
        copy_run(scene.workload.stopped(trial.setup, step), trial.run_folder.path)
        trial.acknowledged = set(trial.run_folder.steps())
        trial.done = step
        return trial

    # The same command again and again.

    def start(self, fault="", ranks=None, options=(), launch=(), environment=None, limits=None, prefix=(), **places):
        self.done = max(self.done, self.run_folder.last_step())
        words = self.scene.workload.command(self.run_folder.path, ranks or self.setup.ranks,
                                            (*self.setup.options, *self.options, *options), launch, **places)
        variables = dict(environment or {})
        if fault:
            variables["FSDP_FAULT"] = fault
        job = Job([*prefix, *words], self.scene.folder / "log", variables, limits)
        self.scene.commands.append(job.text)
        return job

    def run(self, fault="", **arguments):
        return self.take(self.start(fault, **arguments))

    def take(self, job, may_die=False, seconds=None):
        """Waits for the end and checks what must hold after any end."""
        job.wait(*([seconds] if seconds else []))
        if not may_die and (job.code in DEATHS or DEATH.search(job.err)):
            raise Violation("CRASH", f"ended with {job.code}: {job.last_words()}")
        self._follow(job.out)
        self.check_durable()
        return job

    def finish(self, **arguments):
        """Goes on without a fault to the end, which must be that of the undisturbed run."""
        job = self.run(**arguments)
        job.must_end(0)
        self.check_exact()
        return "EXACT"

    # What the run said.

    def _follow(self, out):
        for event in EVENT.finditer(out):
            if event["resumed"]:
                self._note_resume(int(event["resumed"]))
            elif event["step"]:
                self._note_step(int(event["step"]))
            else:
                step = int(event["committed"])
                self.acknowledged.add(step)
                self.damaged.discard(step)
                self.scene.count("acknowledged")

    def _note_resume(self, step):
        newest = max(self.acknowledged - self.damaged, default=0)
        if step < newest and not self.damaged:
            raise Violation("LOSS", f"resumed at step {step}, though step {newest} was acknowledged")
        self._note_lost(self.done - step)
        self.done = step

    def _note_step(self, step):
        if step == 1 and self.done > 0:
            if self.acknowledged:
                raise Violation("LOSS", f"started anew, though steps {sorted(self.acknowledged)} were acknowledged")
            self._note_lost(self.done)
            self.done = 0
        # What a killed launcher did not print is missing here.
        if step <= self.done:
            raise Violation("SILENT", f"did step {step} again after step {self.done}")
        self.done = step

    # A save that is in flight is waited for when the next one starts.
    def _note_lost(self, steps):
        bound = INTERVAL + 1 + (INTERVAL if is_async(self.options) else 0)
        self.lost = steps
        if self.damaged or not self.bounds_loss:
            return
        self.scene.lost_steps = max(self.scene.lost_steps, steps)
        if steps > bound:
            raise Violation("LOSS", f"{steps} steps had to be done again, more than {bound}")

    # NL1: what was acknowledged is there, and whole.

    def check_durable(self):
        present = self.run_folder.steps()
        whole = self.verified() if present else set()
        for step in sorted(set(present) - whole - self.damaged):
            raise Violation("CORRUPT", f"step-{step} has its name, but is not whole")
        for step in sorted(self.acknowledged - self.damaged - whole):
            newer = sum(other > step for other in whole)
            pruned = 0 < self.keep_last <= newer and (self.keep_every == 0 or step % self.keep_every != 0)
            if not pruned:
                raise Violation("LOSS", f"step {step} was acknowledged; there are {sorted(whole)}")
        self.scene.count("verified", len(whole))

    def verified(self):
        """Steps of the checkpoints that `fsdp verify` finds whole."""
        job = Job([self.scene.workload.binary, "verify", str(self.run_folder.path)], self.scene.folder / "verify")
        job.wait()
        verdicts = {int(step): word for word, _, step, _ in VERDICT.findall(job.out)}
        if sorted(verdicts) != self.run_folder.steps():
            raise Violation("WRONG", f"fsdp verify speaks of {sorted(verdicts)}, there are {self.run_folder.steps()}: "
                                     f"{job.last_words()}")
        job.must_end(4 if "damaged" in verdicts.values() else 0)
        return {step for step, word in verdicts.items() if word == "whole"}

    # NL2, NL3, NL5: the end is that of the undisturbed run.

    def check_exact(self):
        reference = self.scene.workload.reference(self.setup)
        ledger = self.run_folder.ledger()
        if ledger != reference.ledger:
            pairs = list(zip(ledger, reference.ledger))
            at = next((i for i, (got, wanted) in enumerate(pairs) if got != wanted), len(pairs))
            raise Violation("SILENT", f"ledger: {len(ledger)} lines, line {at + 1} differs: {ledger[at:at + 1]}, "
                                      f"expected {reference.ledger[at:at + 1]}")
        self.check_weights()
        self.check_metrics()

    def check_model(self):
        if self.run_folder.model_hash() != self.scene.workload.reference(self.setup).model:
            raise Violation("SILENT", "the final weights differ from those of the undisturbed run")

    def check_weights(self):
        self.check_model()
        reference = self.scene.workload.reference(self.setup)
        if self.run_folder.state_hashes(STEPS) != reference.state:
            raise Violation("SILENT", "the last checkpoint differs from that of the undisturbed run")

    def check_metrics(self):
        reference = self.scene.workload.reference(self.setup)
        rows = self.run_folder.metrics()
        steps = [row["step"] for row in rows if "loss" in row]
        if steps != list(range(1, STEPS + 1)):
            raise Violation("WRONG", f"metrics.jsonl has the steps {steps}")
        if {row["step"]: values_of(row) for row in rows if "loss" in row} != reference.metrics:
            raise Violation("WRONG", "metrics.jsonl has other values than that of the undisturbed run")
        evaluated = [row["step"] for row in rows if "heldout" in row]
        if evaluated != EVALUATED:
            raise Violation("WRONG", f"metrics.jsonl has evaluations after the steps {evaluated}, not {EVALUATED}")

    def check_same_data(self, reference):
        """For other numbers of ranks: every sequence at its place, and the losses agree."""
        entries = self.run_folder.entries()
        for key in ("step", "position", "sequences", "batch", "lr"):
            if [entry[key] for entry in entries] != [entry[key] for entry in reference.entries]:
                raise Violation("SILENT", f"ledger: other values of '{key}' than in the undisturbed run")
        for got, wanted in zip(entries, reference.entries):
            for key, tolerance in (("loss", LOSS_TOLERANCE), ("grad_norm", NORM_TOLERANCE)):
                a, b = double_of(got[key]), double_of(wanted[key])
                if not close(a, b, tolerance):
                    raise Violation("SILENT", f"step {got['step']}: {key} {a}, expected {b} within {tolerance}")
