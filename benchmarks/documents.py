"""The table of document readers: ours against pyarrow, which Hugging Face's datasets reads with, and Python's json."""

import gzip
import json
import os
import random
import shutil
import sys
from statistics import median

from harness import ROOT, entry, ours, print_table, run, script, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "documents")
LETTERS = "etaoinshrdlucmfw"
OTHERS = ("Gr\u00f6\u00dfe", "\u0434\u0430\u043d\u043d\u044b\u0435", "\u4e16\u754c", "na\u00efve", "\u65e5\u672c\u8a9e")


def texts(count, longest):
    """The same ones every time: words, a few of them not ASCII, quotes and line feeds."""
    source = random.Random(1)
    words = ["".join(source.choices(LETTERS, k=source.randint(2, 9))) for _ in range(3000)]
    for _ in range(count):
        chosen = [source.choice(OTHERS if source.random() < 0.01 else words) for _ in range(source.randint(10, longest))]
        yield " ".join(chosen).replace(" et ", '.\n\n"so" ')


def write_jsonl(name, count, longest):
    path = os.path.join(FOLDER, name)
    with open(path, "w", encoding="utf-8") as file:
        for i, text in enumerate(texts(count, longest)):
            record = {"text": text, "id": f"<urn:uuid:{i}>", "meta": {"url": f"http://example.com/{i}", "score": i / 7}}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


def make_files():
    import pyarrow
    import pyarrow.parquet
    os.makedirs(FOLDER, exist_ok=True)
    long = write_jsonl("long.jsonl", 40000, 1200)
    short = write_jsonl("short.jsonl", 400000, 20)
    with open(long, "rb") as source, gzip.open(long + ".gz", "wb", 1) as target:
        shutil.copyfileobj(source, target)
    parquet = os.path.join(FOLDER, "long.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": list(texts(40000, 1200))}), parquet, row_group_size=10000)
    return long, short, long + ".gz", parquet


def documents(options):
    sys.path.insert(0, os.path.join(ROOT, ".deps", "pyarrow"))
    variables = {"PYTHONPATH": os.pathsep.join([os.path.join(ROOT, ".deps", "pyarrow"), os.environ.get("PYTHONPATH", "")])}
    rows, entries = [("file", "MB", "documents", "ours MB/s", "pyarrow", "ratio", "Python json", "ratio")], []
    for path in make_files():
        readers = {"arrow": script("documents_pyarrow", "arrow", path)}
        if not path.endswith(".parquet"):
            readers["json"] = script("documents_pyarrow", "json", path)
        commands = {"ours": ours("documents", path, "--times", "3"), **readers}
        ms = {who: [] for who in commands}
        found = set()
        for _ in range(options.rounds or 3):
            for who, command in commands.items():
                result = run(command, meet=False, variables=variables)
                ms[who] += result["cpu_ms"]
                found.add((result["documents"], result["text_bytes"]))
        if len(found) != 1:
            sys.exit(f"bench: {path}: readers do not agree on documents and bytes of text: {found}")
        size = os.path.getsize(path) / 1e3
        speed = {who: size / median(values) for who, values in ms.items()}
        cells = [(f"{speed[who]:.0f}", f"{speed['ours'] / speed[who]:.1f}") if who in speed else ("-", "-")
                 for who in ("arrow", "json")]
        name = os.path.basename(path)
        rows.append((name, f"{size / 1e3:.0f}", str(found.pop()[0]), f"{speed['ours']:.0f}", *cells[0], *cells[1]))
        entries.append(entry(f"documents/{name}", median(ms["ours"]), median(ms["arrow"]), "ms"))
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("\nReaders of documents, one thread, MB of file per second of CPU time, median; the file is in the page cache")
    print_table(rows)
    write_json("documents", entries)
