"""The peer of the quickstart's training: transformers' SmolLM3 of the same shape in plain PyTorch, on two threads."""

import argparse
import json
import pathlib
import time
import tomllib

import torch
from transformers import SmolLM3Config, SmolLM3ForCausalLM

RECIPE = tomllib.loads((pathlib.Path(__file__).parents[2] / "configs/quickstart.toml").read_text())
VOCABULARY, BATCH, LENGTH = 259, RECIPE["train"]["batch_sequences"], RECIPE["data"]["sequence_length"]


def make_model():
    shape = RECIPE["model"]
    config = SmolLM3Config(vocab_size=VOCABULARY, hidden_size=shape["hidden_size"], num_hidden_layers=shape["layers"],
                           num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
                           intermediate_size=shape["ffn_size"], tie_word_embeddings=True, pad_token_id=None,
                           bos_token_id=None, eos_token_id=None, max_position_embeddings=2048, use_cache=False)
    config._attn_implementation = "sdpa"
    return SmolLM3ForCausalLM(config)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    for name, default in (("warmup", 3), ("steps", 20), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    result = {"step_ms": [], "parameters": sum(p.numel() for p in model.parameters())}
    for step in range(options.warmup + options.steps):
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if step >= options.warmup:
            result["step_ms"].append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
