"""What came of the cases: a table by part, as Markdown, and every verdict as JSON."""

import collections
import dataclasses

from case import ALLOWED, FORBIDDEN, SKIPPED, UNREACHED, Case, Scene

BEGIN = "<!-- table of scripts/faults.sh -->"
END = "<!-- end of table -->"


@dataclasses.dataclass(frozen=True)
class Verdict:
    case: Case
    outcome: str
    text: str
    scene: Scene
    seconds: float

    @property
    def is_violation(self):
        return self.outcome in FORBIDDEN

    def to_json(self):
        scene = self.scene
        return {"case": self.case.title, "outcome": self.outcome, "text": self.text, "seconds": round(self.seconds, 2),
                "counts": dict(scene.counts), "lost_steps": scene.lost_steps,
                "slowest_end": round(scene.slowest_end, 2), "commands": scene.commands if self.is_violation else []}


class Row:
    """The sums of some verdicts."""

    def __init__(self, name, verdicts):
        self.name = name
        self.outcomes = collections.Counter(verdict.outcome for verdict in verdicts)
        self.counts = sum((verdict.scene.counts for verdict in verdicts), collections.Counter())
        self.lost_steps = max((verdict.scene.lost_steps for verdict in verdicts), default=0)
        self.slowest_end = max((verdict.scene.slowest_end for verdict in verdicts), default=0)
        self.violations = sum(self.outcomes[kind] for kind in FORBIDDEN)

    def cells(self):
        cases = sum(self.outcomes[kind] for kind in (*ALLOWED, *FORBIDDEN))
        return [self.name, cases, self.counts["faults"], *(self.outcomes[kind] for kind in ALLOWED), self.violations,
                self.counts["acknowledged"], self.counts["verified"], self.lost_steps,
                f"{self.slowest_end:.1f} s" if self.slowest_end else ""]


HEAD = ["part", "cases", "faults", *ALLOWED, "violations", "acknowledged", "verified", "lost steps", "slowest end"]


class Table:
    def __init__(self, verdicts, seed, seconds):
        self.verdicts = verdicts
        self.seed = seed
        self.seconds = seconds
        parts = collections.defaultdict(list)
        for verdict in verdicts:
            parts[verdict.case.part].append(verdict)
        self.rows = [Row(part, parts[part]) for part in sorted(parts)] + [Row("all", verdicts)]
        self.violations = [verdict for verdict in verdicts if verdict.is_violation]

    def text(self):
        lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" + "---:|" * (len(HEAD) - 1)]
        lines += ["| " + " | ".join(map(str, row.cells())) + " |" for row in self.rows]
        return "\n".join([*lines, "", *self.sentences()])

    def sentences(self):
        total = self.rows[-1]
        points = set().union(*(verdict.scene.kill_points for verdict in self.verdicts))
        kinds = ", ".join(f"{kind} {total.outcomes[kind]}" for kind in FORBIDDEN)
        yield f"Forbidden outcomes: {kinds}."
        yield (f"Kills at {len(points)} distinct (point, hit, rank). Bit flips: {total.counts['flips found']} found, "
               f"{total.counts['flips harmless']} harmless.")
        if total.counts["killed in a save"]:
            yield f"Kills at random moments that left a checkpoint half written: {total.counts['killed in a save']}."
        left_out = []
        if total.outcomes[UNREACHED]:
            left_out.append(f"{total.outcomes[UNREACHED]} cases ended before their fault and count for nothing.")
        for text in sorted({verdict.text for verdict in self.verdicts if verdict.outcome == SKIPPED}):
            left_out.append(f"Skipped: {text}.")
        yield from left_out
        yield f"Seed {self.seed}, {self.seconds / 60:.0f} minutes."

    def to_json(self):
        return {"seed": self.seed, "seconds": round(self.seconds),
                "rows": [dict(zip(HEAD, row.cells())) for row in self.rows],
                "verdicts": [verdict.to_json() for verdict in self.verdicts]}


def write_section(path, text):
    """Between the two marks of a document."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"faults: {path} lacks the marks '{BEGIN}' and '{END}'")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
