"""The peer of generation.cpp: transformers' generate() with the same model folder, prompts and number of threads."""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def prompts(options):
    return torch.tensor([[(row * 7919 + i * 104729 + 11) % 49152 for i in range(options.prompt_tokens)]
                         for row in range(options.rows)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    for name, default in (("rows", 1), ("prompt-tokens", 32), ("new-tokens", 64), ("threads", 2), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    ids = prompts(options)
    mask = torch.ones_like(ids)

    def generate(tokens):
        begin = time.perf_counter()
        result = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0)
        return (time.perf_counter() - begin) * 1e3, result

    generate(4)
    result = {"first_ms": [], "token_ms": [], "total_ms": []}
    for _ in range(options.rounds):
        first, _ = generate(1)
        total, output = generate(options.new_tokens)
        result["first_ms"].append(first)
        result["token_ms"].append((total - first) / (options.new_tokens - 1))
        result["total_ms"].append(total)
    result["ids"] = output[:, options.prompt_tokens:].tolist()
    print(json.dumps(result))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
