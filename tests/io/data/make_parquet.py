#!/usr/bin/env python3
"""Writes the small parquet files under tests/io/data/parquet with pyarrow, and beside each the texts that it holds as
expected.json: a list for each file, null for a missing value.

Usage: make_parquet.py     (needs pyarrow)
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).resolve().parent / "parquet"
TEXTS = ["first", "", "zwei\nLinien", "\u00e9\u4e16\U0001f600", "a" * 300] + [f"document {i}" for i in range(60)]
SAMPLES = {
    "plain": (pa.array(TEXTS), {"use_dictionary": False, "compression": "none", "row_group_size": 16}),
    "snappy-dictionary": (pa.array(TEXTS * 2), {"compression": "snappy", "row_group_size": 40}),
    "large-string-zstd": (pa.array(TEXTS, pa.large_string()), {"compression": "zstd"}),
    "arrow-dictionary-gzip": (pa.array(TEXTS * 2).dictionary_encode(), {"compression": "gzip"}),
    "delta-v2-pages": (pa.array(TEXTS), {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"},
                                         "data_page_version": "2.0", "compression": "none", "data_page_size": 64}),
    "nulls": (pa.array(["a", None, "b", None]), {"compression": "none"}),
    "binary": (pa.array([text.encode() for text in TEXTS[:4]], pa.binary()), {"compression": "none"}),
    "checksums": (pa.array(TEXTS), {"compression": "none", "use_dictionary": False, "write_page_checksum": True}),
    "no-rows": (pa.array([], pa.string()), {"compression": "none"}),
}


def write(name, table, **options):
    pq.write_table(table, FOLDER / f"{name}.parquet", write_statistics=False, **options)


def main():
    FOLDER.mkdir(exist_ok=True)
    expected = {}
    for name, (column, options) in SAMPLES.items():
        write(name, pa.table({"text": column, "id": pa.array(range(len(column)))}), **options)
        expected[name] = [text.decode() if isinstance(text, bytes) else text for text in column.to_pylist()]
    struct = pa.array([{"title": "x", "text": "inner"}, None, {"title": "y", "text": None}, {"title": "z", "text": "last"}])
    write("struct", pa.table({"page": struct}), compression="none")
    expected["struct"] = ["inner", None, None, "last"]
    write("not-utf8", pa.table({"text": pa.array([b"ok", b"ab\xff", b"fine"], pa.binary())}), compression="none")
    write("not-strings", pa.table({"text": pa.array([1, 2]), "lists": pa.array([["a"], ["b", "c"]])}), compression="none")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main()
