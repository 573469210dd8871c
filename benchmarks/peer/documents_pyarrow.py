"""The peer of benchmarks/programs/documents.cpp, one thread. `arrow` is what Hugging Face's datasets reads with: whole columns, no
string of Python is made; `json` is Python's own, line by line."""

import argparse
import gzip
import json
import time

import pyarrow.compute
import pyarrow.json
import pyarrow.parquet


def batches(path):
    if path.endswith(".parquet"):
        yield from pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=["text"], use_threads=False)
        return
    # Whole records fit into a block; only `text` is converted.
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=8 << 20)
    schema = pyarrow.schema([("text", pyarrow.string())])
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with pyarrow.input_stream(path, compression="detect") as stream:
        yield from pyarrow.json.open_json(stream, read_options=read, parse_options=parse)


def arrow(path):
    count = size = 0
    for batch in batches(path):
        texts = batch.column(0)
        count += len(texts)
        size += pyarrow.compute.sum(pyarrow.compute.binary_length(texts)).as_py()
    return count, size


def by_line(path):
    count = size = 0
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        for line in file:
            count += 1
            size += len(json.loads(line)["text"].encode())
    return count, size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=("arrow", "json"))
    parser.add_argument("path")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    ms = []
    for _ in range(options.times):
        start = time.process_time()
        count, size = (arrow if options.reader == "arrow" else by_line)(options.path)
        ms.append((time.process_time() - start) * 1e3)
    print(json.dumps({"cpu_ms": ms, "documents": count, "text_bytes": size}))


if __name__ == "__main__":
    main()
