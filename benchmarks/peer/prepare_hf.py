"""The same work with Hugging Face's tokenizers: JSON lines to one file of token ids. Prints one line of JSON."""

import argparse
import json
import os
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    import numpy
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(options.tokenizer, "tokenizer.json"))
    begin, num_bytes, num_tokens = time.perf_counter(), 0, 0
    with open(options.input, encoding="utf-8") as lines, open(os.path.join(options.folder, "peer.bin"), "wb") as out:
        batch = []

        def flush():
            nonlocal num_tokens
            for encoding in tokenizer.encode_batch_fast(batch):
                num_tokens += len(encoding.ids)
                numpy.asarray(encoding.ids, dtype=numpy.uint32).tofile(out)
            batch.clear()

        for line in lines:
            batch.append(json.loads(line)["text"])
            num_bytes += len(batch[-1].encode())
            if len(batch) == 256:
                flush()
        flush()
    seconds = time.perf_counter() - begin
    os.unlink(os.path.join(options.folder, "peer.bin"))
    print(json.dumps({"text_bytes": num_bytes, "tokens": num_tokens, "mb_per_s": num_bytes / 1e6 / seconds}))


if __name__ == "__main__":
    main()
