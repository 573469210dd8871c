"""The table of collectives: ours through shared memory against PyTorch over Gloo."""

from harness import entry, ours, print_table, run, script, write_json


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def collectives(options):
    entries = []
    for ranks in options.ranks or (2, 4):
        for dtype in options.dtype or ("fp32",):
            mine = run(ours("collectives", "--dtype", dtype), ranks=ranks)["calls"]
            theirs = run(script("collectives_gloo", "--dtype", dtype, "--largest", str(mine[-1]["bytes"])), ranks=ranks)
            peer_us = {(call["op"], call["bytes"]): call["us"] for call in theirs}
            rows = [("call", "per rank", "ours us", "PyTorch us", "ratio", "floor us", "of floor")]
            for call in mine:
                key = (call["op"], call["bytes"])
                us, floor = call["shm_us"], call["floor_us"]
                rows.append((call["op"], size_text(call["bytes"]), f"{us:.1f}", f"{peer_us[key]:.1f}",
                             f"{peer_us[key] / us:.1f}", f"{floor:.1f}", f"{100 * floor / us:.0f}%"))
                entries.append(entry(f"collectives/{ranks}_ranks/{dtype}/{call['op']}/{call['bytes']}", us, peer_us[key],
                                     "us", floor))
            print(f"\nCollectives of {ranks} ranks, {dtype}, slowest rank, median of rounds; floor: the same bytes copied, "
                  "without agreement")
            print_table(rows)
    write_json("collectives", entries)
