#!/usr/bin/env python3
"""Writes the seeds of all fuzz targets, corpus/<target>/valid-* and refused-*; leaves regression-* alone.

Every seed is made here from nothing, so that the corpora can be read as text and hold nobody's data.
"""

import json
import pathlib
import struct

import dcp_seeds
import document_seeds
import tokenizer_seeds
from packages import require

xxhash = require("xxhash")

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "corpus"
MAX_SEED_BYTES = 4096
NEXT_FILE = b"\n--next-file--\n"
DTYPES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "F16": 2, "BF16": 2,
          "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1}


def save(target, seeds):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not old.name.startswith("regression-"):
            old.unlink()
    for name, content in seeds.items():
        content = content.encode() if isinstance(content, str) else content
        assert len(content) < MAX_SEED_BYTES, f"{target}/{name}: {len(content)} bytes"
        (folder / name).write_bytes(content)


def with_length(header, data=b""):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + data


def numel(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def safetensors(tensors, metadata=None, padding=0):
    """A valid file of `tensors`: name -> (dtype, shape)."""
    header = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = numel(shape) * DTYPES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return with_length(json.dumps(header, separators=(",", ":")) + " " * padding, bytes(i % 251 for i in range(position)))


def entry(dtype="U8", shape="[1]", offsets="[0,1]"):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def safetensors_seeds():
    one = '{"a":' + entry() + "}"
    return {
        "valid-empty": with_length("{}"),
        "valid-two": safetensors({"w": ("F32", [2, 3]), "bias": ("BF16", [3])}),
        "valid-metadata": safetensors({"w": ("F32", [1])}, {"format": "pt", "note": "a \"b\" \u00e9"}, padding=5),
        "valid-all-dtypes": safetensors({name: (name, [3]) for name in sorted(DTYPES, key=DTYPES.get, reverse=True)}),
        "valid-unaligned": safetensors({"a": ("U8", [1]), "b": ("F64", [2])}),
        "valid-sizes": safetensors({"none": ("F32", [0, 4]), "scalar": ("F32", []), "rank8": ("U8", [1] * 8)}),
        "valid-unicode-names": safetensors({"": ("U8", [1]), "\u00e9\U0001f600": ("U8", [1]), "a\nb": ("U8", [1])}),
        "refused-short": b"\x03\0\0",
        "refused-length": struct.pack("<Q", 2**63) + b"{}",
        "refused-limit": struct.pack("<Q", 100_000_001) + b"{}",
        "refused-leading-space": with_length(" {}"),
        "refused-list": with_length("[]"),
        "refused-trailing-text": with_length(one + " x", b"1"),
        "refused-duplicate": with_length('{"a":' + entry() + ',"a":' + entry() + "}", b"1"),
        "refused-hole": with_length('{"a":' + entry(offsets="[1,2]") + "}", b"12"),
        "refused-overlap": with_length('{"a":' + entry("U8", "[2]", "[0,2]") + ',"b":' + entry("U8", "[2]", "[1,3]") + "}",
                                       b"123"),
        "refused-left-over": with_length(one, b"12"),
        "refused-cut-off": with_length(one),
        "refused-rank-9": with_length('{"a":' + entry(shape="[1,1,1,1,1,1,1,1,1]") + "}", b"1"),
        "refused-overflow": with_length('{"a":' + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}"),
        "refused-negative": with_length('{"a":' + entry(shape="[-1]") + "}", b"1"),
        "refused-float-size": with_length('{"a":' + entry(shape="[1.0]") + "}", b"1"),
        "refused-dtype": with_length('{"a":' + entry("F4", "[2]") + "}", b"1"),
        "refused-extra-key": with_length('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}', b"1"),
        "refused-metadata": with_length('{"__metadata__":{"a":1}}'),
        "refused-deep": with_length('{"a":' + "[" * 20 + "]" * 20 + "}"),
        "refused-not-utf8": with_length(b'{"a\xff":1}'),
        "refused-nul": with_length(b"{}\0{}"),
    }


def bundle(*files):
    return NEXT_FILE.join(file.encode() if isinstance(file, str) else file for file in files)


def index(weight_map, **metadata):
    return json.dumps({"metadata": metadata, "weight_map": weight_map})


def safetensors_index_seeds():
    a = safetensors({"x": ("F32", [2]), "y": ("U8", [3])})
    b = safetensors({"z": ("BF16", [2, 2])})
    both = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    return {
        "valid-two-shards": bundle(index(both, total_size=19), a, b),
        "valid-partial": bundle(index({"y": "a.safetensors"}, total_size=-1), a, b""),
        "valid-single": bundle(b"", a, b""),
        "refused-parent-folder": bundle(index({"x": "../a.safetensors"}), a, b),
        "refused-absolute": bundle(index({"x": "/etc/passwd"}), a, b),
        "refused-nul": bundle('{"weight_map":{"x":"a.safetensors\\u0000"}}', a, b),
        "refused-missing-shard": bundle(index({"x": "c.safetensors"}), a, b),
        "refused-missing-tensor": bundle(index({"z": "a.safetensors"}), a, b),
        "refused-pickle": bundle(index({"x": "pytorch_model.bin"}), a, b),
        "refused-long-name": bundle(index({"x": "n" * 255}), a, b),
        "refused-no-map": bundle("{}", a, b),
        "refused-bad-shard": bundle(index(both), a, b[:-1]),
        "refused-duplicate": bundle('{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}', a, b),
    }


def safetensors_writer_seeds():
    def tensor(name, dtype, sizes):
        return bytes([len(name)]) + name + bytes([list(DTYPES).index(dtype), len(sizes)]) + bytes(sizes)

    metadata = b"\x01k\x01v"
    write = struct.pack("<BbbB", 0, 1, 2, 7)
    two = b"\x02" + tensor(b"w", "F32", [2, 3]) + tensor(b"bias", "BF16", [3]) + metadata
    return {
        "valid-filled": two + b"\0" + write,
        "valid-none": b"\0" + metadata + b"\0",
        "valid-empty-tensor": b"\x01" + tensor(b"e", "U8", [0, 4]) + metadata + b"\x01",
        "refused-incomplete": two + b"\1" + write,
        "refused-overlap": two + b"\0" + write * 2,
        "refused-range": two + b"\0" + struct.pack("<BbbB", 1, -1, 100, 0),
        "refused-twice": b"\x02" + tensor(b"w", "F32", [1]) * 2 + metadata,
        "refused-name": b"\x01" + tensor(b"\xff", "F32", [1]) + metadata,
        "refused-rank": b"\x01" + tensor(b"r", "F32", [1] * 9) + metadata,
        "refused-reserved": b"\x01" + tensor(b"__metadata__", "F32", [1]) + metadata,
        "valid-huge": b"\x01" + b"\x01h\x01\x01\xff" + struct.pack("<q", 2**40) + metadata,
        "refused-huge": b"\x01" + b"\x01h\x0c\x01\xff" + struct.pack("<q", 2**62) + metadata,
    }


def json_seeds():
    return {
        "valid-all-kinds": '{"a":[1,-2,3.5,true,false,null,"x\\u00e9\\ud83d\\ude00"],"b":{"c":{},"d":[]},"":18446744073709551615}',
        "valid-scalar": " 1e-5 \n",
        "valid-string": '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
        "valid-bom": b"\xef\xbb\xbf{}",
        "valid-numbers": "[0,-0,0.0,1E+2,9223372036854775807,9223372036854775808,-9223372036854775808,1e308,5e-324]",
        "valid-depth-16": "[" * 16 + "]" * 16,
        "refused-depth-17": "[" * 17 + "]" * 17,
        "refused-duplicate": '{"a":{"k":1,"k":2}}',
        "refused-values": "[" + "0," * 1100 + "0]",
        "refused-overflow": "[1e999]",
        "refused-surrogate": '"\\ud800"',
        "refused-not-utf8": b'"\xc3"',
        "refused-nul": b"{}\0{}",
        "refused-comma": "[1,]",
        "refused-control": '"a\nb"',
        "refused-cut-off": '{"a":[1,{"b":"c',
        "refused-nan": "[NaN,Infinity]",
        "refused-comment": "// c\n1",
    }


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 16,
         "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": [2, 3], "hidden_act": "silu", "rope_theta": 500000.0}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
SMOLLM3 = dict(LLAMA, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", no_rope_layers=[1, 0],
               use_sliding_window=False, sliding_window=None, layer_types=["full_attention", "full_attention"])


def config_json_seeds():
    changed = {
        "valid-llama3": {"rope_scaling": LLAMA3_ROPE},
        "valid-rope-parameters": {"rope_parameters": dict(LLAMA3_ROPE, rope_theta=1e5)},
        "valid-unknown-key": {"my\u001b[31mkey": 1, "head_dim": 6, "eos_token_id": -1, "pad_token_id": None},
        "valid-largest": {"vocab_size": 2**24, "hidden_size": 2**22, "intermediate_size": 2**22,
                          "num_hidden_layers": 4096, "num_attention_heads": 4096, "num_key_value_heads": 4096,
                          "head_dim": 4096, "max_position_embeddings": 2**31 - 1},
        "refused-many": {"vocab_size": "many", "hidden_size": -1, "num_hidden_layers": 10**18, "rms_norm_eps": 1e300,
                         "hidden_act": "gelu", "attention_bias": True, "quantization_config": {"bits": 4}},
        "refused-heads": {"num_attention_heads": 3, "num_key_value_heads": 2},
        "refused-number": {"num_hidden_layers": 18446744073709551615, "head_dim": 3.0, "eos_token_id": [2, "x"]},
        "refused-rope": {"rope_scaling": {"rope_type": "yarn", "factor": 2, "partial_rotary_factor": 0.5}},
        "refused-rope-kinds": {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        "refused-type": {"model_type": "gpt2", "architectures": "\u0007"},
    }
    seeds = {name: json.dumps(dict(LLAMA, **change)) for name, change in changed.items()}
    seeds["valid-llama"] = json.dumps(LLAMA)
    seeds["valid-smollm3"] = json.dumps(SMOLLM3)
    seeds["valid-mistral"] = json.dumps(dict(LLAMA, model_type="mistral", architectures=[], sliding_window=9))
    seeds["valid-qwen2"] = json.dumps(dict(LLAMA, model_type="qwen2", architectures=[], use_sliding_window=True,
                                           sliding_window=9, max_window_layers=1))
    seeds["valid-qwen3"] = json.dumps(dict(LLAMA, model_type="qwen3", architectures=[], attention_bias=True,
                                           num_key_value_heads=None))
    seeds["refused-window"] = json.dumps(dict(LLAMA, model_type="mistral", architectures=[], sliding_window=-3,
                                              use_sliding_window=0, layer_types=["sliding_attention", 7]))
    seeds["refused-layers"] = json.dumps(dict(SMOLLM3, no_rope_layers=[1, 2, 0], layer_types=["sliding_attention"]))
    seeds["refused-list"] = "[]"
    return seeds


def toml_seeds():
    return {
        "valid-empty": "",
        "valid-sections": bundle('[model]\nlayers = 3\ntie_embeddings = false\nrope_theta = 5e5\n[data]\npath = "a \\"b\\" \\u00e9"\n'
                                 "[train]\nsteps = 100\nlr = 2e-3\n[shard]\nstrategy = 'zero2'\nreshard_after_forward = true\n",
                                 "--train.steps=77\n--output.folder=some where\n--train.lr=0.5"),
        "valid-dotted": "train.steps = 60\ntrain . 'lr' = 0.1\nmodel = { heads = 2, kv_heads = 1 }\n",
        "valid-numbers": "[train]\nsteps = 0x7fff_ffff\nseed = 9223372036854775807\nlr = 1e-300\nwarmup_steps = 0b101\nclip = 0\n",
        "valid-strings": '[output]\nfolder = """a\nb\\\n   c"""\n[data]\npath = \'\'\'raw \\ text\'\'\'\n',
        "refused-unknown": "[train]\nlr = 1e-3\nwarmup = 3\n",
        "refused-section": "[trian]\nlr = 1\n[nothing]\n",
        "refused-type": '[train]\nsteps = "ten"\n',
        "refused-range": "[train]\nlr = nan\n",
        "refused-syntax": "[train]\nlr = = 2\n",
        "refused-twice": "[train]\nlr = 1\nlr = 2\n",
        "refused-dates": "[train]\nlr = 1979-05-27T07:32:00.999999-07:00\nsteps = 07:32:00\n",
        "refused-arrays": "[[train]]\nlr = [[1, 2], [3, {a = 1}]]\n",
        "refused-control": b'"\\u001b[31m\\u0007" = 1\n',
        "refused-not-utf8": b"[train]\nlr = 1 # \xff\n",
        "refused-combination": bundle("", "--model.heads=3\n--train.steps=10"),
        "refused-override": bundle("", "--train.stepz=4"),
        "refused-no-value": bundle("", "--train.lr"),
    }


def token_files(name, bytes_per_token, documents, magic=b"FSDPTOKS"):
    """(line of the manifest, .bin, .idx) of a shard."""
    tokens = [token for document in documents for token in document]
    starts = [sum(map(len, documents[:i])) for i in range(len(documents))]
    counts = struct.pack("<QQ", len(tokens), len(documents)) + bytes(32)
    binary = magic + struct.pack("<II", 1, bytes_per_token) + counts
    binary += b"".join(token.to_bytes(bytes_per_token, "little") for token in tokens)
    idx = b"FSDPTIDX" + struct.pack("<II", 1, 8) + counts + struct.pack(f"<{len(starts)}Q", *starts)
    line = {"name": name, "num_tokens": len(tokens), "num_documents": len(documents),
            "bin_xxh3": xxhash.xxh3_64_hexdigest(binary), "idx_xxh3": xxhash.xxh3_64_hexdigest(idx)}
    return line, binary, idx


def dataset(shards, **changes):
    manifest = {"version": 1, "tokenizer": "test", "vocab_size": 256, "eos_id": 0,
                "splits": {"train": [line for line, _, _ in shards]}}
    return bundle(json.dumps(dict(manifest, **changes)), *(file for _, binary, idx in shards for file in (binary, idx)))


def masked_dataset(mask, **changes):
    """One shard of two documents; `mask` has a byte for each of its five tokens."""
    line, binary, idx = token_files("s0", 2, [[1, 2, 3], [4, 5]])
    mask = b"FSDPTMSK" + struct.pack("<II", 1, 1) + struct.pack("<QQ", 5, 2) + bytes(32) + bytes(mask)
    line.update({"mask_xxh3": xxhash.xxh3_64_hexdigest(mask), "num_answers": sum(mask[64:])}, **changes)
    return bundle(dataset([(line, binary, idx)], version=2, tokenizer_xxh3="0" * 16), "", "", mask)


def token_shards_seeds():
    documents = [[1, 2, 3], [4], [5, 255]]
    one = token_files("s0", 2, documents)
    line, binary, idx = one
    seeds = {f"valid-{size}-bytes": dataset([token_files("s0", size, documents)]) for size in (1, 2, 4)}
    seeds.update({
        "valid-two-shards": dataset([one, token_files("s1", 1, [[7, 8]])]),
        "valid-empty-shard": dataset([token_files("s0", 4, []), token_files("s1", 1, [[9]])], eos_id=-1),
        "valid-no-shard": dataset([]),
        "valid-same-shard-twice": dataset([one, one]),
        "valid-mask": masked_dataset([0, 1, 1, 0, 1]),
        "refused-mask": masked_dataset([0, 1, 2, 0, 1]),
        "refused-mask-cut-off": masked_dataset([0, 1, 1, 0]),
        "refused-answers": masked_dataset([0, 1, 1, 0, 1], num_answers=6),
        "refused-large-token": dataset([token_files("s0", 4, [[1, 2**31 + 5, 2**32 - 1]])], vocab_size=2**40),
        "refused-starts": dataset([(line, binary, idx[:72] + idx[80:88] + idx[72:80])]),
        "refused-first-start": dataset([(line, binary, idx[:64] + b"\1" + idx[65:])]),
        "refused-magic": dataset([token_files("s0", 2, documents, b"FSDPTIDX")]),
        "refused-cut-off": dataset([(line, binary[:-1], idx)]),
        "refused-counts": dataset([(dict(line, num_tokens=2**63 - 1, num_documents=2**61), binary, idx)]),
        "refused-item-bytes": dataset([(line, binary[:12] + b"\3" + binary[13:], idx)]),
        "refused-parent-folder": dataset([(dict(line, name="../s0"), binary, idx)]),
        "refused-long-name": dataset([(dict(line, name="n" * 255), binary, idx)]),
        "refused-negative": dataset([(dict(line, num_tokens=-1), binary, idx)]),
        "refused-version": dataset([one], version=3),
        "refused-eos": dataset([one], eos_id=256),
        "refused-vocabulary": dataset([one], vocab_size=5),
        "refused-hash": dataset([(dict(line, bin_xxh3="0" * 16), binary, idx)]),
        "refused-splits": dataset([one], splits=[]),
        "refused-split-names": dataset([one], splits={"\u001b[31m": []}),
    })
    return seeds


def with_digest(text):
    body = text.rstrip()[:-1] + ',\n"digest":"'
    return body + xxhash.xxh3_128_hexdigest(body.encode()) + '"}\n'


def manifest_text(contents, described, **changes):
    """`contents`: file -> bytes; `described`: tensor -> (dtype, shape, parts); `changes`: members as they are written."""
    manifest = {
        "format": "fsdp-checkpoint", "version": 1, "step": 20, "world_size": 2, "created": "2026-01-31T12:00:00Z",
        "writer": "fsdp 0.1.0", "chunk_bytes": 16 << 20, "values": {"data": {"position": 320}},
        "files": [{"name": name, "bytes": len(content), "chunks": [xxhash.xxh3_128_hexdigest(content)] if content else []}
                  for name, content in contents.items()],
        "tensors": [{"name": name, "dtype": dtype, "shape": shape, "parts": parts}
                    for name, (dtype, shape, parts) in sorted(described.items())],
    }
    return with_digest(json.dumps(dict(manifest, **changes), separators=(",", ":")))


FILES = {"rank-00000-of-00002.safetensors": safetensors({"model/w[0:4]": ("F32", [4])}),
         "rank-00001-of-00002.safetensors": safetensors({"model/w[4:6]": ("F32", [2]), "model/b[0:3]": ("BF16", [3])})}
STARTS = [8 + struct.unpack("<Q", content[:8])[0] for content in FILES.values()]
TENSORS = {"model/w": ("F32", [2, 3], [[0, STARTS[0], 0, 4], [1, STARTS[1], 4, 6]]),
           "model/b": ("BF16", [3], [[1, STARTS[1] + 8, 0, 3]])}


def manifest_seeds():
    good = manifest_text(FILES, TENSORS)
    deep = 1
    for _ in range(40):
        deep = [deep]

    def changed(name, dtype, shape, parts):
        return manifest_text(FILES, dict(TENSORS, **{name: (dtype, shape, parts)}))

    return {
        "valid-two-files": good,
        "valid-nothing": manifest_text({}, {}, values={}),
        "valid-empty-tensor": changed("model/e", "F32", [0, 3], []),
        "valid-deep-values": manifest_text({}, {}, values={"a": deep}),
        "valid-long-file": manifest_text({}, {"t": ("U8", [2**24 + 5], [[0, 0, 0, 2**24 + 5]])},
                                         files=[{"name": "f", "bytes": 2**24 + 5, "chunks": ["0" * 32, "f" * 32]}]),
        "refused-digest": good.replace('"step":20', '"step":21'),
        "refused-cut-off": good[:-40],
        "refused-no-digest": "{}",
        "refused-hole": changed("model/w", "F32", [2, 3], [[0, STARTS[0], 0, 2], [1, STARTS[1], 4, 6]]),
        "refused-overlap": changed("model/w", "F32", [2, 3], [[0, STARTS[0], 0, 4], [1, STARTS[1], 3, 6]]),
        "refused-outside": changed("model/w", "F32", [2, 3], [[0, 2**62, 0, 6]]),
        "refused-file-number": changed("model/w", "F32", [2, 3], [[2, 0, 0, 6]]),
        "refused-shape": changed("model/w", "F32", [2**32, 2**32], [[0, 0, 0, 6]]),
        "refused-file-name": manifest_text({"../f": b"1"}, {}),
        "refused-chunks": manifest_text({}, {}, files=[{"name": "f", "bytes": 2**63 - 1, "chunks": ["0" * 32]}]),
        "refused-unsorted": manifest_text({}, {}, tensors=[{"name": n, "dtype": "U8", "shape": [0], "parts": []} for n in "ba"]),
        "refused-types": manifest_text({}, {}, step="20", files={}, tensors=None, values=[]),
        "refused-version": manifest_text({}, {}, version=2),
    }


def checkpoint_folder_seeds():
    good = manifest_text(FILES, TENSORS)
    first, second = FILES.values()
    return {
        "valid-two-files": bundle(good, first, second),
        "valid-empty-file": bundle(manifest_text({"f": b""}, {}), b"", b""),
        "refused-flipped": bundle(good, first[:-1] + b"x", second),
        "refused-cut-off": bundle(good, first[:-1], second),
        "refused-longer": bundle(good, first, second + b"x"),
        "refused-swapped": bundle(good, second, first),
        "refused-missing": bundle(manifest_text(dict(FILES, third=b"3"), TENSORS), first, second),
        "refused-claimed-size": bundle(manifest_text({}, {"t": ("U8", [2**20], [[0, 0, 0, 2**20]])},
                                                     files=[{"name": "f", "bytes": 2**20, "chunks": ["0" * 32]}]), first, b""),
    }


def conversation_seeds():
    turns = [{"role": "system", "content": ""}, {"role": "user", "content": "a\u0000\n"},
             {"role": "assistant", "content": "\u00e9"}]
    sharegpt = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    parts = [{"type": "text", "text": "a"}, {"text": "b"}]

    def messages(*list_of_messages, **more):
        return json.dumps(dict({"messages": list_of_messages}, **more))

    return {
        "valid-messages": messages(*turns),
        "valid-parts": messages({"role": "user", "content": parts}, {"role": "tool", "content": []}, prompt="x"),
        "valid-no-calls": messages({"role": "assistant", "content": "a", "tool_calls": []}),
        "valid-sharegpt": json.dumps({"system": "s", "conversations": sharegpt}),
        "valid-completion": '{"prompt":"q","completion":[{"role":"assistant","content":"a"}]}',
        "valid-alpaca": '{"instruction":"q","input":"i","output":"a"}',
        "valid-alpaca-null": '{"instruction":"q","input":null,"output":"a","system":1}',
        "refused-role": messages({"role": "\u001b[31mwizard", "content": "x"}),
        "refused-no-content": messages({"role": "user"}),
        "refused-image": messages({"role": "user", "content": [{"type": "image"}]}),
        "refused-part": messages({"role": "user", "content": [1]}),
        "refused-calls": messages({"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}),
        "refused-empty": messages(),
        "refused-text": messages("hello"),
        "refused-layout": '{"text":"hello"}',
        "refused-list": "[]",
        "refused-types": '{"prompt":1,"completion":{}}',
        "refused-twice": '{"messages":[],"messages":[]}',
        "refused-cut-off": '{"messages":[{"role":"user","con',
    }


PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "lora_dropout": 0.1, "bias": "none", "target_modules": ["q_proj"],
        "base_model_name_or_path": "base", "use_rslora": False, "use_dora": False, "init_lora_weights": True,
        "modules_to_save": None, "rank_pattern": {}}


def adapter_seeds():
    def factors(a=("F32", [2, 3]), b=("BF16", [4, 2]), module="x.q_proj", **others):
        prefix = "base_model.model." + module + "."
        return safetensors({prefix + "lora_A.weight": a, prefix + "lora_B.weight": b, **others})

    def config(**changes):
        return json.dumps(dict(PEFT, **changes))

    base = safetensors({"x.q_proj.weight": ("F16", [4, 3]), "norm.weight": ("F32", [3])})
    return {
        "valid-adapter": bundle(config(), factors(), base),
        "valid-rslora": bundle(config(use_rslora=True, target_modules=".*proj"), factors(), base),
        "valid-empty": bundle(config(), factors(("F32", [2, 0]), ("F32", [0, 2])),
                              safetensors({"x.q_proj.weight": ("F32", [0, 0])})),
        "refused-dora": bundle(config(use_dora=True, bias="all", my_key=[1]), factors(), base),
        "refused-rank": bundle(config(r=2**63), factors(), base),
        "refused-other-rank": bundle(config(r=3), factors(), base),
        "refused-twin": bundle(config(), safetensors({"base_model.model.x.lora_A.weight": ("F32", [2, 3])}), base),
        "refused-twice": bundle(config(), factors(**{"x.q_proj.lora_A.weight": ("F32", [2, 3])}), base),
        "refused-shape": bundle(config(), factors(b=("F32", [5, 2])), base),
        "refused-module": bundle(config(), factors(module="y.q_proj"), base),
        "refused-integers": bundle(config(), factors(), safetensors({"x.q_proj.weight": ("I32", [4, 3])})),
        "refused-surplus": bundle(config(), factors(**{"base_model.model.lm_head.weight": ("F32", [1])}), base),
        "refused-list": bundle("[]", factors(), base),
    }


def store_messages_seeds():
    def list_of(*texts):
        return struct.pack("<I", len(texts)) + b"".join(struct.pack("<I", len(text)) + text for text in texts)

    def request(operation, keys=(), values=(), patience=1000, number=0):
        return struct.pack("<Bqq", operation, patience, number) + list_of(*keys) + list_of(*values)

    def answer(verdict, number=0, values=()):
        return struct.pack("<Bq", verdict, number) + list_of(*values)

    return {
        "valid-set": request(0, [b"a", b"b"], [b"1", b""]),
        "valid-get": request(1, [b"a", b"", b"a"]),
        "valid-wait": request(2, [b"a"], patience=-1),
        "valid-check": request(3, []),
        "valid-add": request(4, [b"a"], number=-(2**63)),
        "valid-compare-set": request(5, [b"a"], [b"", b"1"]),
        "valid-append": request(6, [b"a"], [b"1"]),
        "valid-delete": request(7, [b"a"]),
        "valid-count": request(8),
        "valid-answer": answer(0, 7, [b"value"]),
        "valid-late": answer(1),
        "refused-operation": request(9),
        "refused-keys": request(4, []),
        "refused-values": request(5, [b"a"], [b"1"]),
        "refused-rest": request(8) + b"x",
        "refused-cut-off": request(0, [b"a"], [b"1"])[:-1],
        "refused-count": request(0)[:17] + struct.pack("<I", 2**32 - 1),
        "refused-size": request(0)[:17] + struct.pack("<II", 1, 2**32 - 1),
        "refused-verdict": answer(3),
    }


def main():
    save("safetensors", safetensors_seeds())
    save("safetensors_index", safetensors_index_seeds())
    save("safetensors_writer", safetensors_writer_seeds())
    save("json", json_seeds())
    save("config_json", config_json_seeds())
    save("toml", toml_seeds())
    save("token_shards", token_shards_seeds())
    save("manifest", manifest_seeds())
    save("checkpoint_folder", checkpoint_folder_seeds())
    save("dcp_metadata", dcp_seeds.metadata_seeds())
    save("dcp_tensor", dcp_seeds.tensor_seeds())
    save("json_lines", document_seeds.json_lines_seeds())
    save("text_documents", document_seeds.text_seeds())
    save("gzip", document_seeds.gzip_seeds())
    save("zstd", document_seeds.zstd_seeds())
    save("parquet", document_seeds.parquet_seeds())
    save("conversation", conversation_seeds())
    save("tokenizer_json", tokenizer_seeds.seeds())
    save("adapter", adapter_seeds())
    save("store_messages", store_messages_seeds())
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    print(f"{len(files)} seeds, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    main()
