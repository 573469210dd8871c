#!/usr/bin/env python3
"""Reads files of `fsdp export --format=gguf` with the gguf package, which llama.cpp's own converter writes with.

    python3 tests/interop/gguf_round_trip.py --fsdp build/release/bin/fsdp MODEL_FOLDER... [--tokenizer FOLDER...]

Needs gguf and numpy. Every tensor of every model must have, byte for byte, what the package makes of the Hugging Face
weight in F32, F16, BF16 and Q8_0, with the rows of q and k exchanged where llama.cpp wants it; the metadata must have
the values of config.json under the package's names; the vocabulary must be the tokenizer's.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np

TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "smollm3": "smollm3", "qwen2": "qwen2", "qwen3": "qwen3"}
failures = []


def check(what, condition):
    if not condition:
        print("FAIL  " + what)
        failures.append(what)


def read_weights(path):
    """name -> fp32 array; numpy knows no bfloat16."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        raw = data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        yield name, values.reshape(entry["shape"])


def turned(weight, heads):
    """From halves to neighbours: llama.cpp's permute."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def expected_tensors(folder, config, kind):
    architecture = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), config["num_hidden_layers"])
    for name, weight in (pair for file in sorted(folder.glob("model*.safetensors")) for pair in read_weights(file)):
        if architecture in ("llama", "smollm3"):
            if name.endswith("q_proj.weight"):
                weight = turned(weight, config["num_attention_heads"])
            if name.endswith("k_proj.weight"):
                weight = turned(weight, config["num_key_value_heads"])
        kind_here = "F32" if weight.ndim == 1 else kind
        if weight.ndim > 1 and kind == "Q8_0" and weight.shape[-1] % 32:
            kind_here = "F16"
        target = gguf.GGMLQuantizationType[kind_here]
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), target, gguf.quants.quantize(weight, target)


def rope_divisors(config):
    """Of Llama 3's longer context: what frequencies are divided by, as its authors describe it."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return None
    theta = rope.get("rope_theta") or config["rope_theta"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    before = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = (before / wavelengths - low) / (high - low)
    mixed = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelengths < before / high, 1, np.where(wavelengths > before / low, factor, mixed))


def value(reader, key):
    field = reader.get_field(key)
    return None if field is None else field.contents()


def check_metadata(reader, folder, config, kind):
    arch = ARCHITECTURES[config["model_type"]]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    expected = {
        gguf.Keys.General.ARCHITECTURE: arch,
        gguf.Keys.General.TYPE: gguf.GGUFType.MODEL,
        gguf.Keys.General.NAME: folder.name,
        gguf.Keys.General.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        gguf.Keys.General.FILE_TYPE: int(gguf.LlamaFileType["ALL_F32" if kind == "F32" else "MOSTLY_" + kind]),
        gguf.Keys.LLM.BLOCK_COUNT: config["num_hidden_layers"],
        gguf.Keys.LLM.CONTEXT_LENGTH: config["max_position_embeddings"],
        gguf.Keys.LLM.EMBEDDING_LENGTH: config["hidden_size"],
        gguf.Keys.LLM.FEED_FORWARD_LENGTH: config["intermediate_size"],
        gguf.Keys.Attention.HEAD_COUNT: config["num_attention_heads"],
        gguf.Keys.Attention.HEAD_COUNT_KV: config["num_key_value_heads"],
        gguf.Keys.Attention.LAYERNORM_RMS_EPS: np.float32(config["rms_norm_eps"]),
        gguf.Keys.Attention.KEY_LENGTH: head_dim,
        gguf.Keys.Rope.FREQ_BASE: np.float32(rope["rope_theta"]),
    }
    if arch in ("llama", "smollm3"):
        expected |= {gguf.Keys.LLM.VOCAB_SIZE: config["vocab_size"], gguf.Keys.Rope.DIMENSION_COUNT: head_dim}
    for key, wanted in expected.items():
        key = key.format(arch=arch)
        check(f"{folder.name}: {key}: {value(reader, key)}, expected {wanted}", value(reader, key) == wanted)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name != "rope_freqs.weight")
    label = gguf.size_label(parameters, 0, 0, 0)
    check(f"{folder.name}: size_label {value(reader, 'general.size_label')}, expected {label}",
          value(reader, "general.size_label") == label)


def check_model(fsdp, folder, scratch):
    config = json.loads((folder / "config.json").read_text())
    for dtype, kind in TYPES.items():
        out = scratch / f"{folder.name}-{dtype}.gguf"
        result = subprocess.run([fsdp, "export", str(folder), "--format=gguf", "--dtype=" + dtype, "--out", str(out)],
                                capture_output=True, text=True)
        if result.returncode != 0:
            print(f"      {folder.name}: refused: {result.stderr.strip()}")
            return
        reader = gguf.GGUFReader(out)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        for name, target, data in expected_tensors(folder, config, kind):
            tensor = tensors.pop(name, None)
            check(f"{folder.name} {dtype}: {name} is there as {target.name}",
                  tensor is not None and tensor.tensor_type == target)
            if tensor is not None:
                check(f"{folder.name} {dtype}: bytes of {name}",
                      tensor.data.view(np.uint8).tobytes() == data.view(np.uint8).tobytes())
        divisors, found = rope_divisors(config), tensors.pop("rope_freqs.weight", None)
        check(f"{folder.name}: rope_freqs", (found is None) == (divisors is None) and (
            divisors is None or np.allclose(found.data, divisors, rtol=1e-5)))
        check(f"{folder.name}: nothing else: {list(tensors)}", not tensors)
        check_metadata(reader, folder, config, kind)
    print(f"ok    {folder.name}: {', '.join(TYPES)}" if not failures else f"      {folder.name}")


def check_tokenizer(fsdp, model, tokenizer, scratch):
    """With the files of `tokenizer` in the folder of `model`."""
    folder = scratch / tokenizer.name
    shutil.copytree(model, folder)
    for file in tokenizer.glob("*token*.json"):
        shutil.copy(file, folder)
    description = json.loads((tokenizer / "tokenizer.json").read_text())
    size = max([token["id"] for token in description["added_tokens"]] + list(description["model"]["vocab"].values())) + 1
    out = scratch / (tokenizer.name + ".gguf")
    result = subprocess.run([fsdp, "export", str(folder), "--format=gguf", "--out", str(out)], capture_output=True, text=True)
    check(f"{tokenizer.name}: {result.stderr}", result.returncode == 0)
    reader = gguf.GGUFReader(out)
    if value(reader, "tokenizer.ggml.model") == "no_vocab":
        print(f"ok    {tokenizer.name}: {result.stdout.splitlines()[-1]}")
        return
    tokens, kinds = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    check(f"{tokenizer.name}: {len(tokens)} tokens and {len(kinds)} kinds for {rows} rows", len(tokens) == len(kinds) == rows)
    for text, index in description["model"]["vocab"].items():
        if index < rows:
            check(f"{tokenizer.name}: token {index}", tokens[index] == text)
    special = gguf.SpecialVocab(tokenizer, load_merges=True, n_vocab=size)
    check(f"{tokenizer.name}: merges", value(reader, "tokenizer.ggml.merges") == special.merges)
    for kind, index in special.special_token_ids.items():
        key = {"bos": gguf.Keys.Tokenizer.BOS_ID, "eos": gguf.Keys.Tokenizer.EOS_ID, "pad": gguf.Keys.Tokenizer.PAD_ID}.get(kind)
        if key:
            check(f"{tokenizer.name}: {key}", value(reader, key) == index)
    print(f"ok    {tokenizer.name}: {value(reader, 'tokenizer.ggml.pre')}, {len(special.merges)} merges")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsdp", required=True)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--tokenizer", nargs="*", default=[], type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            check_model(arguments.fsdp, model, pathlib.Path(folder))
        for tokenizer in arguments.tokenizer:
            check_tokenizer(arguments.fsdp, arguments.models[0], tokenizer, pathlib.Path(folder))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
