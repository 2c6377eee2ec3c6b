#!/usr/bin/env python3
"""Computes decoder_reference.txt with PyTorch (made with 1.13, CPU, fp32): forward losses, every gradient and 20
AdamW steps of a tiny GPT-2, written in PyTorch's own operations and differentiated by its autograd.

Run: python3 make_decoder_reference.py > decoder_reference.txt
Weights and tokens follow from hash32 below, which decoder_rig.h repeats.
"""
import math
import sys

import torch
import torch.nn.functional as F

LAYERS, HEADS, HIDDEN, INNER, POSITIONS, VOCABULARY, EPSILON = 2, 2, 32, 96, 16, 40, 1e-5
SEQUENCES, LENGTH, MICRO_BATCHES, STEPS = 2, 12, 2, 20
LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 4e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
TOKEN_STREAM = 1000  # plus 2 * (step * micro batches + micro batch), and 1 more for the targets


def hash32(stream, element):
    """A number in [0, 2^32)."""
    x = ((element + 1) * 2654435761 + stream * 2246822519) % 2**32
    x ^= x >> 15
    x = x * 2246822519 % 2**32
    x ^= x >> 13
    x = x * 3266489917 % 2**32
    return x ^ (x >> 16)


def declared():
    """Names and shapes in the layout's order."""
    yield "wte.weight", (VOCABULARY, HIDDEN)
    yield "wpe.weight", (POSITIONS, HIDDEN)
    for i in range(LAYERS):
        p = f"h.{i}."
        yield p + "ln_1.weight", (HIDDEN,)
        yield p + "ln_1.bias", (HIDDEN,)
        yield p + "attn.c_attn.weight", (3 * HIDDEN, HIDDEN)
        yield p + "attn.c_attn.bias", (3 * HIDDEN,)
        yield p + "attn.c_proj.weight", (HIDDEN, HIDDEN)
        yield p + "attn.c_proj.bias", (HIDDEN,)
        yield p + "ln_2.weight", (HIDDEN,)
        yield p + "ln_2.bias", (HIDDEN,)
        yield p + "mlp.c_fc.weight", (INNER, HIDDEN)
        yield p + "mlp.c_fc.bias", (INNER,)
        yield p + "mlp.c_proj.weight", (HIDDEN, INNER)
        yield p + "mlp.c_proj.bias", (HIDDEN,)
    yield "ln_f.weight", (HIDDEN,)
    yield "ln_f.bias", (HIDDEN,)


def decays(name):
    return not name.endswith(".bias") and ".ln_" not in name and not name.startswith("ln_")


def fresh(index, name, shape):
    """0.4 (u - 0.5), and 1 more for the weights of the norms."""
    base = 1.0 if not decays(name) and name.endswith(".weight") else 0.0
    values = [base + 0.4 * (hash32(index, i) / 2**32 - 0.5) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape).requires_grad_()


def tokens_of(stream):
    values = [hash32(stream, i) % VOCABULARY for i in range(SEQUENCES * LENGTH)]
    return torch.tensor(values).reshape(SEQUENCES, LENGTH)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def loss_of(w, tokens, targets):
    x = w["wte.weight"][tokens] + w["wpe.weight"][:LENGTH]
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
    for i in range(LAYERS):
        def of(name):
            return w[f"h.{i}.{name}"]
        a = F.layer_norm(x, (HIDDEN,), of("ln_1.weight"), of("ln_1.bias"), EPSILON)
        qkv = F.linear(a, of("attn.c_attn.weight"), of("attn.c_attn.bias"))
        q, k, v = (t.reshape(SEQUENCES, LENGTH, HEADS, -1).transpose(1, 2) for t in qkv.split(HIDDEN, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(HIDDEN // HEADS) + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(SEQUENCES, LENGTH, HIDDEN)
        x = x + F.linear(y, of("attn.c_proj.weight"), of("attn.c_proj.bias"))
        b = F.layer_norm(x, (HIDDEN,), of("ln_2.weight"), of("ln_2.bias"), EPSILON)
        f = gelu(F.linear(b, of("mlp.c_fc.weight"), of("mlp.c_fc.bias")))
        x = x + F.linear(f, of("mlp.c_proj.weight"), of("mlp.c_proj.bias"))
    x = F.layer_norm(x, (HIDDEN,), w["ln_f.weight"], w["ln_f.bias"], EPSILON)
    return F.cross_entropy(F.linear(x, w["wte.weight"]).reshape(-1, VOCABULARY), targets.reshape(-1))


def put(key, values):
    print(key, *(f"{v:.9g}" for v in values))


def main():
    torch.set_num_threads(1)
    w = {name: fresh(i, name, shape) for i, (name, shape) in enumerate(declared())}
    groups = [
        {"params": [p for name, p in w.items() if decays(name)], "weight_decay": DECAY},
        {"params": [p for name, p in w.items() if not decays(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    losses, norms = [], []
    print(f"# Made by make_decoder_reference.py with PyTorch {torch.__version__}.")
    print("# gradient NAME: of the first step, summed over its micro-batches, each the gradient of a mean loss.")
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            stream = TOKEN_STREAM + 2 * (step * MICRO_BATCHES + micro)
            loss = loss_of(w, tokens_of(stream), tokens_of(stream + 1))
            loss.backward()
            losses.append(loss.item())
        if step == 0:
            for name, p in w.items():
                put("gradient " + name, p.grad.flatten().tolist())
        for p in w.values():
            p.grad /= MICRO_BATCHES
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), CLIP).item())
        optimizer.step()
    put("losses", losses)
    put("norms", norms)
    for name, p in w.items():
        put("weights " + name, p.detach().flatten().tolist()[:8])
    print("steps with clipping:", sum(norm > CLIP for norm in norms), "of", STEPS, "losses", losses[0], losses[-1],
          file=sys.stderr)


if __name__ == "__main__":
    main()
