"""What the benchmark tables have in common: start ranks, watch their memory, print and keep results."""

import glob
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, os.environ.get("FSDP_BUILD", "build/release"), "bin")
DEADLINE_S = 1200
TRANSPORTS = f"ours over {'Gloo' if os.environ.get('FSDP_TRANSPORT') == 'gloo' else 'shared memory'}, peer over Gloo"
# The C library keeps what is freed, rather than ask the system for it again and again.
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}

# What each library calls the instruction sets of FSDP_CPU_ISA, which ours and the peer's are held to alike. None has a set
# without vectors.
HELD = {"avx2": ("avx2", "AVX2", "AVX2"), "sse4": ("default", "SSE41", "SSE4_2"), "scalar": ("default", "SSE41", "SSE4_2")}


def held_to(isa, env=os.environ):
    """`env` with the variables that hold all libraries to an instruction set; "native": none is."""
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    held = dict(zip(names, HELD[isa])) if isa in HELD else {}
    if isa in ("sse4", "scalar") and "GenuineIntel" not in open("/proc/cpuinfo").read():
        held["MKL_CBWR"] = "COMPATIBLE"  # MKL heeds its other variable on processors of Intel only
    return {**env, **held, "FSDP_CPU_ISA": isa}


def chosen_isas(options):
    return options.isa or [os.environ.get("FSDP_CPU_ISA", "native")]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(command, ranks=1, meet=True, watch=None, variables=None):
    """Runs `command` once per rank, at the same time, and returns the JSON that rank 0 printed. `watch` gets the processes."""
    port, processes = str(free_port()), []
    for rank in range(ranks):
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
        env = held_to(env.get("FSDP_CPU_ISA", "native"), env)
        if meet:
            env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        processes.append(subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE))
    watcher = threading.Thread(target=watch, args=(processes,)) if watch else None
    if watcher:
        watcher.start()
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
        if watcher:
            watcher.join()
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"bench: failed: {' '.join(command)}")
    return json.loads(outputs[0].splitlines()[-1])


def proportional_bytes(pid):
    """Resident bytes of a process in which pages shared by n processes count 1/n; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def peak_proportional_bytes(command, ranks):
    """Largest sum over the ranks that was seen while `command` ran. Looking costs time, so nothing is timed meanwhile."""
    peak = 0

    def look(processes):
        nonlocal peak
        while any(process.poll() is None for process in processes):
            peak = max(peak, sum(proportional_bytes(process.pid) for process in processes))
            time.sleep(0.02)

    run(command, ranks=ranks, watch=look)
    return peak


def prepare_headers(folder):
    """Data that every machine with a compiler has: headers of its standard library, as `fsdp prepare` leaves them."""
    headers = sorted(glob.glob("/usr/include/c++/*"))[-1]
    subprocess.run(ours("fsdp", "prepare", headers + "/bits/*.h", "--output", folder, "--holdout", "5%", "--overwrite"),
                   check=True, stdout=subprocess.DEVNULL)


def ours(name, *args):
    return [os.path.join(BIN, name), *args]


def script(name, *args):
    return [sys.executable, "-W", "ignore", os.path.join(ROOT, "benchmarks", "peer", name + ".py"), *args]


def peer(name, *args):
    return script(name + "_fsdp2", *args)


def spread(values):
    return f"{median(values):.0f} [{min(values):.0f}-{max(values):.0f}]"


def pooled(runs, key):
    return [value for result in runs for value in result[key]]


def middle(runs, key):
    return median(pooled(runs, key))


def relative_difference(a, b):
    return abs(a - b) / max(abs(b), 1e-30)


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    print(flush=True)


def write_json(name, entries):
    folder = os.path.join(ROOT, "build", "bench")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    known = {}
    if os.path.exists(path):
        with open(path) as file:
            known = {entry["name"]: entry for entry in json.load(file)}
    known.update((entry["name"], entry) for entry in entries)
    with open(path, "w") as file:
        json.dump(list(known.values()), file, indent=1)


def entry(name, mine, theirs, unit, floor=None):
    """floor: the least that physics allows, in the same unit."""
    result = {"name": name, "ours": round(mine, 2), "peer": round(theirs, 2), "unit": unit, "ratio": round(theirs / mine, 3)}
    if floor is not None:
        result["floor_share"] = round(floor / mine, 3)
    return result


def stop_what_was_started():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
