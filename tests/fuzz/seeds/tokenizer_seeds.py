"""Seeds of the target tokenizer_json: small files of every kind that is supported, and some that are not."""

import json

MARK = "\u2581"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TEXT = "\n--next-file--\nab ab  12'S \u00e4<s>\u00e9e\u0301\U0001f600 \n b"


def model(tokens, merges=(), **options):
    vocab = {token: number for number, token in enumerate(tokens)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    return {"type": "BPE", "vocab": vocab, "merges": [list(merge) for merge in merges], **options}


def added(number, content, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def file(**parts):
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                       "post_processor": None, "decoder": None, **parts}) + TEXT


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def valid():
    letters = model("ab12\u0120\u010a\u00c3\u00a4's<>", [("a", "b"), ("\u0120", "ab"), ("\u00c3", "\u00a4")])
    marked = model(["<unk>", "<s>", MARK, "a", "b", *(f"<0x{byte:02X}>" for byte in range(0x80, 0x90))],
                   [(MARK, "a"), (MARK + "a", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": True}
    llama2 = {"normalizer": sequence("normalizers", {"type": "Prepend", "prepend": MARK},
                                     {"type": "Replace", "pattern": {"String": " "}, "content": MARK}),
              "decoder": sequence("decoders", {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                                  {"type": "ByteFallback"}, {"type": "Fuse"},
                                  {"type": "Strip", "content": " ", "start": 1, "stop": 1})}
    tokens = [added(1, "<s>"), added(len(marked["vocab"]), "e\u0301", normalized=True, special=False, single_word=True),
              added(len(marked["vocab"]) + 1, "<r>", lstrip=True, rstrip=True)]
    level = {"decoder": BYTE_LEVEL, "model": letters}
    return {
        "valid-gpt2": file(pre_tokenizer=BYTE_LEVEL, **level),
        "valid-llama3": file(pre_tokenizer=sequence("pretokenizers", split(LLAMA3), dict(BYTE_LEVEL, use_regex=False)),
                             **dict(level, model=dict(letters, ignore_merges=True))),
        "valid-nfc": file(normalizer={"type": "NFC"}, pre_tokenizer=dict(BYTE_LEVEL, add_prefix_space=True), **level),
        "valid-digits": file(pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                                    {"type": "Digits", "individual_digits": False}, BYTE_LEVEL), **level),
        "valid-patterns": file(pre_tokenizer=sequence(
            "pretokenizers", split(r"[a-b]+|\p{Lu}(?=x)|\S\d", "MergedWithNext"), split(r"\s", "Removed", True),
            split("b", "MergedWithPrevious", kind="String"), split(r"(?>\p{P}+)", "Contiguous")), model=letters),
        "valid-llama2": file(added_tokens=tokens, post_processor=template, model=marked, **llama2),
        "valid-metaspace": file(pre_tokenizer=metaspace, decoder=metaspace, model=dict(marked, byte_fallback=False)),
        "valid-unknown": file(model=dict(marked, byte_fallback=False, fuse_unk=False)),
        "valid-old-merges": file(model=dict(letters, merges=["#version: 0.2", "a b"], unk_token=None)),
    }


def refused():
    letters = model("ab")
    return {
        "refused-type": file(model={"type": "WordPiece", "vocab": {}}),
        "refused-stage": file(model=letters, normalizer={"type": "Lowercase"}),
        "valid-slow": file(model=letters, pre_tokenizer=split(r"(?:(?:a|b|ab)+)+c")),
        "refused-pattern": file(model=letters, pre_tokenizer=split(r"(?R)\K\Gx")),
        "refused-empty-match": file(model=letters, pre_tokenizer=split("a*")),
        "refused-growth": file(model=letters, normalizer=sequence("normalizers", *[
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}] * 9)),
        "refused-huge-id": file(model=dict(letters, vocab={"a": 2147483647})),
        "refused-same-id": file(model=dict(letters, vocab={"a": 0, "b": 0})),
        "refused-merge": file(model=dict(letters, merges=[["a", "b"]])),
        "refused-template": file(model=letters, post_processor={"type": "TemplateProcessing", "single": [],
                                                                "special_tokens": {}}),
        "refused-added-id": file(model=letters, added_tokens=[added(7, "<s>")]),
        "refused-not-json": "{" + TEXT,
    }


def seeds():
    return {**valid(), **refused()}
