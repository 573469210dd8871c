"""The peer of step_time.cpp: the same Llama, weights, tokens and optimizer with PyTorch's fully_shard on Gloo, or with
--ddp under DistributedDataParallel.

One rank; started by benchmarks/compare.py. Rank 0 prints one line of JSON."""

import argparse
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranks import report

VOCABULARY, HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD_DIM, FFN = 32000, 512, 8, 8, 4, 64, 1536
EPS, THETA = 1e-5, 1e4


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD_DIM)
        self.k_proj = linear(HIDDEN, KEY_HEADS * HEAD_DIM)
        self.v_proj = linear(HIDDEN, KEY_HEADS * HEAD_DIM)
        self.o_proj = linear(HEADS * HEAD_DIM, HIDDEN)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        q, k, v = (p(x).view(rows, length, -1, HEAD_DIM).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS), nn.RMSNorm(HIDDEN, EPS)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPS)


class Llama(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.model = Body()
        self.lm_head = linear(HIDDEN, VOCABULARY)
        frequencies = THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.model.norm(x))


@torch.no_grad()
def fill_weights(model):
    for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
        torch.manual_seed(seed)
        parameter.fill_(1) if parameter.dim() == 1 else parameter.normal_(0, 0.02)


def make_tokens(count, rank):
    state, ids = rank + 1, []
    for _ in range(count + 1):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % VOCABULARY)
    return torch.tensor(ids)


def distribute(model, options):
    if options.ddp:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = {"mp_policy": bf16} if options.bf16 else {}
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def reset_peak_memory():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    model = Llama(options.tokens)
    fill_weights(model)
    if options.bf16:
        model.cos, model.sin = model.cos.bfloat16(), model.sin.bfloat16()
    model = distribute(model, options)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    ids = make_tokens(options.tokens, dist.get_rank())
    inputs, targets = ids[:-1].unsqueeze(0), ids[1:]

    names = ("forward_ms", "backward_ms", "optimizer_ms", "step_ms", "cpu_ms", "page_faults")
    result = {name: [] for name in names}
    losses = []
    reset_peak_memory()
    for _ in range(options.warmup + options.steps):
        cpu, faults, begin = time.process_time(), page_faults(), time.perf_counter()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        forward_end = time.perf_counter()
        loss.backward()
        backward_end = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        seconds = (forward_end - begin, backward_end - forward_end, end - backward_end, end - begin,
                   time.process_time() - cpu)
        for name, value in zip(names, (*(1e3 * s for s in seconds), page_faults() - faults)):
            result[name].append(value)
        losses.append(loss.item())
    for name in names:
        result[name] = result[name][options.warmup:]
    result.update(first_loss=losses[0], last_loss=losses[-1], peak_bytes=peak_bytes())
    report(result)


if __name__ == "__main__":
    main()
