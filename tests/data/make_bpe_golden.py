#!/usr/bin/env python3
"""Writes bpe.json: vocabularies that the tokenizers package trains on a small corpus full of equally frequent pairs. Needs
tokenizers:

    python tests/data/make_bpe_golden.py             (tests/data/bpe.json)

`documents` are trained on by BpeTrainer with each of `runs`; `tokens` is the vocabulary by id, `merges` are pairs of ids.
"""

import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SEED = 99
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
RUNS = [
    {"pattern": "gpt2", "vocab_size": 420, "min_frequency": 2, "special": ["<|endoftext|>"]},
    {"pattern": "gpt2", "vocab_size": 100000, "min_frequency": 0, "special": []},
    {"pattern": "llama3", "vocab_size": 520, "min_frequency": 3, "special": ["<a>", "<b>", "th"]},
    {"pattern": "digits", "vocab_size": 400, "min_frequency": 1, "special": ["<|im_start|>", "<|im_end|>"]},
]


def pre_tokenizer(pattern):
    if pattern == "llama3":
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return byte_level if pattern == "gpt2" else pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])


def documents():
    """Prose of few words, repetitions that overlap themselves, numbers, code and other scripts."""
    choose = random.Random(SEED)
    words = "the then there this that thaw a an ana banana bananas aaaa aaaaaaa abab ababab we'll WE'LL it's".split()
    others = ["12345 678 90 1234", "x_1 = f(a, b)\n\tif x_1 >= 10:\n\t\treturn 'x'\n",
              "Stra\u00dfe \u00fcber \u00e9t\u00e9", "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\u4f60\u597d\u4e16\u754c \u4f60\u597d",
              "\U0001f600\U0001f600\U0001f603", "  two   spaces \n\n\nlines\r\n", "<|endoftext|> <a>"]
    for _ in range(40):
        yield " ".join(choose.choices(words, k=choose.randint(1, 30))) + choose.choice(["", ".", "!!", "\n"])
        yield choose.choice(others) * choose.randint(1, 4)
        yield " ".join("".join(choose.choices("abcde", k=choose.randint(1, 9))) for _ in range(8))


def train(run, corpus):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(run["pattern"])
    trainer = trainers.BpeTrainer(vocab_size=run["vocab_size"], min_frequency=run["min_frequency"],
                                  special_tokens=run["special"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids = model["vocab"]
    return {**run, "tokens": sorted(ids, key=ids.get), "merges": [[ids[a], ids[b]] for a, b in model["merges"]]}


def main():
    corpus = list(documents())
    golden = {"documents": corpus, "runs": [train(run, corpus) for run in RUNS]}
    (HERE / "bpe.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print([(run["pattern"], len(run["tokens"]), len(run["merges"])) for run in golden["runs"]])


if __name__ == "__main__":
    main()
