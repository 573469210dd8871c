"""What a case of the battery is, what it is given, and how it may end."""

import collections
import dataclasses
import pathlib
import random
import typing

# EXACT: bit for bit the run that nothing disturbed, the records included. RESUMED: the same data and, to rounding, the same
# losses, with another number of ranks. REFUSED: an exit code and a message, nothing touched. DEGRADED: the run went on and
# said what it could not do.
ALLOWED = ("EXACT", "RESUMED", "REFUSED", "DEGRADED")

# HANG: a deadline passed, or a process was left behind. SILENT: success with other bits. CORRUPT: damage that was not
# noticed. LOSS: an acknowledged checkpoint, or more steps than promised, are gone. CRASH: a death nobody ordered. WRONG:
# another exit code or message than promised.
FORBIDDEN = ("HANG", "SILENT", "CORRUPT", "LOSS", "CRASH", "WRONG")

# The fault did not come about, because the run ended before it got there; counts for nothing.
UNREACHED = "UNREACHED"
SKIPPED = "SKIPPED"


class Violation(Exception):
    """A broken promise. `kind` is one of FORBIDDEN."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Skipped(Exception):
    """What the case needs is not here; the text says what."""


class Scene:
    """What the function of one case gets."""

    def __init__(self, workload, folder: pathlib.Path, seed):
        self.workload = workload
        self.folder = folder
        self.random = random.Random(seed)
        self.commands = []  # that were started, as a shell would take them
        self.counts = collections.Counter()
        self.kill_points = set()  # (point, hit, rank)
        self.lost_steps = 0  # most by one fault
        self.slowest_end = 0.0  # seconds from the fault to the end of the last process

    def count(self, what, number=1):
        self.counts[what] += number


@dataclasses.dataclass(frozen=True)
class Case:
    part: str
    name: str
    run: typing.Callable[[Scene], str]  # returns one of ALLOWED, or UNREACHED; raises Violation or Skipped
    seconds: float = 4  # that it takes, about

    @property
    def title(self):
        return f"{self.part}/{self.name}"
