"""A command under test: in a session of its own, with a deadline, and with nothing left behind."""

import contextlib
import ctypes
import os
import resource
import shlex
import signal
import subprocess
import threading
import time

from case import Violation

DEADLINE = 60  # seconds, for runs that take one or two
SETTLE = 5  # seconds for the last processes to go once the first one is gone
PAUSE = 0.005

PR_SET_CHILD_SUBREAPER = 36

# What a launcher above this script may have set.
FOREIGN_PREFIXES = ("FSDP_", "SLURM_", "OMPI_", "PMI_", "MPI_", "PET_", "TORCHELASTIC_")
FOREIGN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
# Several runs share the machine: one thread each, bound to no core.
SETTINGS = {"OMP_NUM_THREADS": "1", "FSDP_BIND": "off", "LC_ALL": "C", "NO_COLOR": "1"}

_live = set()
_closed = False  # nothing is started any more
_live_lock = threading.Lock()


def adopt_orphans():
    """Ranks whose launcher is killed become children of this process, which then can reap them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_all(below=None):
    """What logs below a folder; or everything, and nothing is started any more."""
    global _closed
    _closed = _closed or below is None
    with _live_lock:
        jobs = [job for job in _live if below is None or below in job.out_path.parents]
    for job in jobs:
        job.kill()


def exit_code(status):
    """As a shell has it."""
    return status if status >= 0 else 128 - status


def processes_of(session):
    """{pid: state} of a session; zombies included."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[3]) == session:
                found[int(name)] = fields[0].decode()
    return found


def rank_of(pid):
    """What a launcher told the process, or None."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"RANK="):
                    return int(entry[5:])
    return None


class Job:
    """`limits`: {resource.RLIMIT_...: bytes}, set before the program can have started any other. `place`: working
    directory."""

    def __init__(self, command, folder, environment=None, limits=None, place=None):
        if _closed:
            raise RuntimeError("the battery is ending")
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self.out_path = folder / f"{number:02}.out"
        self.err_path = folder / f"{number:02}.err"
        changes = dict(environment or {})
        self.text = " ".join([*(f"{key}={shlex.quote(value)}" for key, value in changes.items()), shlex.join(command)])
        inherited = {key: value for key, value in os.environ.items()
                     if key not in FOREIGN and not key.startswith(FOREIGN_PREFIXES)}
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                             env={**inherited, **SETTINGS, **changes}, cwd=place, start_new_session=True)
        for limit, value in (limits or {}).items():
            resource.prlimit(self._process.pid, limit, (value, value))
        self.pid = self._process.pid
        self.begin = time.monotonic()
        self.seconds = None
        with _live_lock:
            _live.add(self)

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def code(self):
        """Exit code, None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        if self.seconds is None:
            self.seconds = time.monotonic() - self.begin
        return exit_code(status)

    def processes(self):
        """Living ones, the first included."""
        return [pid for pid, state in processes_of(self.pid).items() if state not in "ZX"]

    def ranks(self):
        """{rank: pid} of those that live. A command that is no launcher is rank 0."""
        ranks = {}
        for pid in self.processes():
            rank = rank_of(pid)
            if rank is not None:
                ranks[rank] = pid
        return ranks or {0: self.pid}

    def signal(self, number, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self):
        """All of it, processes in groups of their own included."""
        for _ in range(100):
            living = self.processes()
            if not living:
                break
            self.signal(signal.SIGKILL, living)
            time.sleep(PAUSE)
        self._reap()

    def wait_until(self, condition, seconds=DEADLINE):
        """Until condition() or the end of the run. Raises Violation at the deadline."""
        end = time.monotonic() + seconds
        while self.code is None and not condition():
            if time.monotonic() > end:
                self.kill()
                raise Violation("HANG", f"still ran after {time.monotonic() - self.begin:.0f} s: {self.last_words()}")
            time.sleep(PAUSE)

    def wait(self, seconds=DEADLINE):
        """Until it and all that it started have ended. Returns the exit code."""
        self.wait_until(lambda: False, seconds)
        end = time.monotonic() + SETTLE
        while self.processes() and time.monotonic() < end:
            time.sleep(PAUSE)
        left = self.processes()
        self.kill()
        if left:
            raise Violation("HANG", f"left {len(left)} process(es) behind")
        return self.code

    def wait_for_text(self, text, seconds=DEADLINE):
        """Until its output has `text`; False if it ended without."""
        self.wait_until(lambda: text in self.out, seconds)
        return text in self.out

    def let_run(self, seconds):
        end = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= end)

    def last_words(self):
        return " | ".join((self.out + self.err).splitlines()[-4:])[-600:]

    def must_say(self, *texts):
        for text in texts:
            if text not in self.out + self.err:
                raise Violation("WRONG", f"did not say '{text}' but: {self.last_words()}")

    def must_end(self, *codes):
        if self.code not in codes:
            expected = " or ".join(map(str, codes))
            raise Violation("WRONG", f"ended with {self.code}, not {expected}: {self.last_words()}")

    def _reap(self):
        self._process.poll()
        for pid in processes_of(self.pid):
            if pid != self.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        with _live_lock:
            _live.discard(self)
