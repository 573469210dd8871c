#!/usr/bin/env python3
"""The loss of direct preference optimisation of a tiny model, by PyTorch and transformers in fp64: dpo.json beside this.

    pip install torch==2.15.0 transformers==5.23.0
    python make_dpo_golden.py

Of each pair: the ids of both documents, from where on they are answers, the log-probabilities of the starting model (made
up), those of llama3-mini, margin and loss; of all together gradients, of two parameters number by number.
"""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
MODEL = "llama3-mini"
BETA, SMOOTHING = 0.3, 0.1
LENGTHS = ((7, 9, 4), (5, 5, 2), (11, 6, 3))  # tokens of both documents, and of their prompt


def answer_log(model, ids, start):
    """Sum of the log-probabilities of ids[start:], each after all before it."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    logs = F.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return logs[start - 1:].sum()


def main():
    random = torch.Generator().manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(HERE / "models" / MODEL, dtype=torch.float64)
    pairs, total = [], 0
    for chosen_length, rejected_length, start in LENGTHS:
        prompt = torch.randint(3, model.config.vocab_size, (start,), generator=random).tolist()
        documents = [prompt + torch.randint(3, model.config.vocab_size, (length - start,), generator=random).tolist()
                     for length in (chosen_length, rejected_length)]
        reference = (-4 * torch.rand(2, generator=random, dtype=torch.float64) * (chosen_length - start)).tolist()
        logs = [answer_log(model, ids, start) for ids in documents]
        margin = BETA * ((logs[0] - reference[0]) - (logs[1] - reference[1]))
        loss = -(1 - SMOOTHING) * F.logsigmoid(margin) - SMOOTHING * F.logsigmoid(-margin)
        total = total + loss
        pairs.append({"chosen": documents[0], "rejected": documents[1], "start": start, "reference": reference,
                      "logs": [log.item() for log in logs], "margin": margin.item(), "loss": loss.item()})
    total.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    shown = ("model.norm.weight", "model.layers.0.input_layernorm.weight")
    golden = {"model": MODEL, "beta": BETA, "label_smoothing": SMOOTHING, "pairs": pairs,
              "gradient_norms": {name: grad.norm().item() for name, grad in gradients.items()},
              "gradients": {name: gradients[name].tolist() for name in shown}}
    (HERE / "dpo.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
