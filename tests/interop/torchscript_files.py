#!/usr/bin/env python3
"""TorchScript files of torchvision and transformers models, with random weights, for tests/interop/script_parity.cpp.

    python3 tests/interop/torchscript_files.py FOLDER [NAME ...]

Needs torch, torchvision and transformers; scripts/torchscript_models.sh installs them. Each file has a module of one
input and one output, in evaluation mode (dropout and batch statistics would differ between ranks), and as extra file
"input" what its input is: {"kind": "image" or "ids", "sizes": [...], "vocab": n}.
"""

import json
import pathlib
import sys
import warnings

import torch
import torchvision
import transformers

warnings.filterwarnings("ignore")
IMAGE = 64
TOKENS = 16
VOCAB = 100


class FirstOutput(torch.nn.Module):
    """The first tensor of what a model returns."""

    def __init__(self, model, inputs):
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self, x):
        output = self.model(**{self.inputs: x}) if self.inputs else self.model(x)
        while not isinstance(output, torch.Tensor):
            output = next(iter(output.values())) if hasattr(output, "values") else output[0]
        return output


def vision(name, image=IMAGE, **options):
    model = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
    return model, {"kind": "image", "sizes": [3, image, image], "vocab": 0}


SMALL = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
             max_position_embeddings=64, use_cache=False)
GPT = dict(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=64, use_cache=False)
OTHER_NAMES = {
    "DistilBert": dict(vocab_size=VOCAB, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=64),
    "GPT2": GPT,
    "OpenAIGPT": dict(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "GPTNeoX": SMALL,
    "OPT": dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=48,
                max_position_embeddings=64, word_embed_proj_dim=32, use_cache=False),
    "Albert": dict(SMALL, embedding_size=16),
    "Electra": dict(SMALL, embedding_size=16),
}


def language(family):
    """The model without a head; attention in plain operators, which tracing can follow."""
    config = getattr(transformers, family + "Config")(**OTHER_NAMES.get(family, SMALL), attn_implementation="eager")
    config.num_key_value_heads = getattr(config, "num_key_value_heads", None) and 2
    if hasattr(config, "head_dim"):
        config.head_dim = 8
    model = getattr(transformers, family + "Model")(config)
    return model, {"kind": "ids", "sizes": [TOKENS], "vocab": VOCAB}


SCRIPTED = ["alexnet", "resnet18", "resnet50", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small",
            "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "densenet121", "efficientnet_b0", "regnet_y_400mf",
            "convnext_tiny"]
TRACED = ["googlenet", "swin_t", "vit_b_32", "regnet_x_400mf"]
FAMILIES = ["Bert", "Roberta", "DistilBert", "Albert", "Electra", "GPT2", "OpenAIGPT", "GPTNeoX", "OPT",
            "Llama", "Mistral", "Qwen2", "Qwen3"]


def example(description):
    if description["kind"] == "ids":
        return torch.randint(description["vocab"], [2] + description["sizes"])
    return torch.randn([2] + description["sizes"])


def write(folder, name, model, description, is_scripted, inputs=""):
    model.eval()
    if is_scripted:
        script = torch.jit.script(model)
    else:
        script = torch.jit.trace(FirstOutput(model, inputs), example(description), check_trace=False)
    torch.jit.save(script, folder / f"{name}.pt", _extra_files={"input": json.dumps(description)})
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2:]
    failed = []
    for name in SCRIPTED + TRACED + FAMILIES:
        if chosen and name not in chosen:
            continue
        torch.manual_seed(1)
        try:
            if name in FAMILIES:
                model, description = language(name)
                write(folder, name, model, description, False, "input_ids")
                continue
            options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
            model, description = vision(name, **(dict(options, image_size=IMAGE) if name == "vit_b_32" else options))
            if name == "vit_b_32":  # which starts with a head of zeros: no gradient would reach a layer below
                torch.nn.init.normal_(model.heads.head.weight, std=0.1)
            write(folder, name, model, description, name in SCRIPTED)
        except Exception as error:  # one model that these versions cannot script takes no other with it
            failed.append(name)
            print(f"{name}: no file: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
