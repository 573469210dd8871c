"""The table of CPU kernels: ours against LibTorch's operators, both held to the same instruction set."""

from harness import chosen_isas, entry, ours, print_table, run, write_json


def spread(ms, quartiles):
    return f"{ms:.3f} [{quartiles[0]:.3f}-{quartiles[1]:.3f}]"


def kernels(options):
    args = (*(("--rounds", str(options.rounds)) if options.rounds else ()),
            *(("--only", options.only) if options.only else ()))
    entries, losers = [], []
    for isa in chosen_isas(options):
        result = run(ours("kernels", *args), meet=False, variables={"FSDP_CPU_ISA": isa})
        rows = [("kernel", "ours ms", "LibTorch ms", "ratio", "floor ms", "of floor", "peak MiB", "LibTorch's")]
        for row in result["rows"]:
            floor, (low, high) = row.get("floor_ms"), row["ratio_quartiles"]
            ratio = f"{row['ratio']:.2f} [{low:.2f}-{high:.2f}]"
            rows.append((row["name"], spread(row["ours_ms"], row["ours_quartiles"]),
                         spread(row["peer_ms"], row["peer_quartiles"]), ratio, f"{floor:.3f}" if floor else "-",
                         f"{100 * floor / row['ours_ms']:.0f}%" if floor else "-", str(row["ours_peak_mib"]),
                         str(row["peer_peak_mib"])))
            entries.append(entry(f"kernels/{isa}/{row['name']}", row["ours_ms"], row["peer_ms"], "ms", floor) |
                           {"ratio": round(row["ratio"], 3)})
            if row["ratio"] < 1:
                losers.append(f"{isa}: {row['name']} ({ratio})")
        print(f"\nCPU kernels, {result['isa']}; LibTorch: {result['aten']}. One thread, in turns; median [quartiles]; "
              "ratio: of a turn;\noperators: forward and backward; peak: of tensors made meanwhile; floor: a copy of the bytes "
              "that must move")
        print_table(rows)
    print("below 1.00: " + ("; ".join(losers) or "none"))
    write_json("kernels", entries)
