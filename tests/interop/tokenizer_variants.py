"""Small tokenizers with the settings that the published ones have, and some that none has, trained on the spot."""

import json

from mixed_text import Mixer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA2_DECODER = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                    decoders.Strip(" ", 1, 0)])
ADDED = [AddedToken("<|a|>", special=True, normalized=False), AddedToken("<|ab|>", special=False, normalized=False),
         AddedToken("<l>", lstrip=True, special=True, normalized=False),
         AddedToken("<r>", rstrip=True, special=False, normalized=False),
         AddedToken("whole", single_word=True, special=False, normalized=False),
         AddedToken("e\u0301", special=False, normalized=True), AddedToken("n r m", special=False, normalized=True)]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*steps, **options):
    return {"pre": pre_tokenizers.Sequence([*steps, BYTE_LEVEL]), "decoder": decoders.ByteLevel(), "bytes": True, **options}


def characters(**options):
    return {"decoder": LLAMA2_DECODER, "bytes": False, **options}


def variants():
    def metaspace(scheme, cut):
        return {"pre": pre_tokenizers.Metaspace(MARK, scheme, cut), "decoder": decoders.Metaspace(MARK, scheme, cut)}

    prefix = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return {
        "prefix-space": {"pre": pre_tokenizers.ByteLevel(add_prefix_space=True), "decoder": decoders.ByteLevel(),
                         "bytes": True},
        "llama3-ignore": byte_level(split(LLAMA3), model={"ignore_merges": True}, added=ADDED),
        "llama3-nfc": byte_level(split(LLAMA3), normalizer=normalizers.NFC(), added=ADDED),
        "o200k": byte_level(split(O200K), added=ADDED[:5]),
        "deepseek": byte_level(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(LLAMA3)),
        "scripts": byte_level(split(r"[\p{Han}\p{Hiragana}]+|\p{Greek}+|[^\S\r\n]+|\P{L}++", "merged_with_next")),
        "digits-together": byte_level(pre_tokenizers.Digits(individual_digits=False), split(GPT2)),
        "removed": byte_level(split(r"\s+", "removed")),
        "merged-next": byte_level(split(r"[ \n]", "merged_with_next")),
        "merged-previous": byte_level(pre_tokenizers.Split(" ", "merged_with_previous")),
        "contiguous": byte_level(split(r"\p{P}", "contiguous")),
        "inverted": byte_level(split(r"\p{L}+", "merged_with_previous", invert=True)),
        "no-split": byte_level(),
        "metaspace-always": characters(**metaspace("always", True), model={"byte_fallback": True, "fuse_unk": True}),
        "metaspace-first": characters(**metaspace("first", True), added=ADDED[:5], model={"byte_fallback": True}),
        "metaspace-never": characters(**metaspace("never", False), model={"fuse_unk": True}),
        "metaspace-whole": characters(**metaspace("always", False), model={"fuse_unk": False}),
        "llama2": characters(normalizer=prefix, added=ADDED, model={"byte_fallback": True, "fuse_unk": True}),
        "llama2-unknown": characters(normalizer=prefix, model={"fuse_unk": True}),
        "llama2-vanish": characters(normalizer=prefix, model={"unk_token": None}),
        "gemma": characters(normalizer=normalizers.Replace(" ", MARK), pre=pre_tokenizers.Split(" ", "merged_with_previous"),
                            decoder=decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]),
                            added=ADDED[:5], model={"byte_fallback": True, "fuse_unk": True}),
        "no-decoder": {"pre": BYTE_LEVEL, "bytes": True, "decoder": None},
    }


def train(variant, texts, vocab_size=2000):
    tokenizer = Tokenizer(models.BPE(unk_token=None if variant["bytes"] else "<unk>"))
    if variant.get("normalizer"):
        tokenizer.normalizer = variant["normalizer"]
    if variant.get("pre"):
        tokenizer.pre_tokenizer = variant["pre"]
    if variant["decoder"]:
        tokenizer.decoder = variant["decoder"]
    start = ["<unk>", "<s>"] if variant["bytes"] else ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if variant["bytes"] else []
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=start, initial_alphabet=alphabet, limit_alphabet=400,
                                  show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(variant.get("added", []))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write_variants(folder, seed):
    """Trains all variants; returns their folders."""
    texts = [text[:5000] for text in Mixer(seed).documents(1_000_000)]
    result = []
    for name, variant in variants().items():
        content = json.loads(train(variant, texts).to_str())
        # The 256 byte tokens belong to the vocabulary alone.
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
        content["model"].update(variant.get("model", {}))
        result.append(folder / name)
        result[-1].mkdir()
        (result[-1] / "tokenizer.json").write_text(json.dumps(content))
    return result
