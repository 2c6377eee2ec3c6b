#!/usr/bin/env python3
"""Writes optimizer_reference.h: what PyTorch's Adam, AdamW and SGD do in 20 steps on a small vector, and Lion as its
authors published it (PyTorch 1.13 has none).

Two parameter groups with their own settings, gradients that are multiplied by a clipping factor of each step's own. Run
as `python3 make_optimizer_reference.py > optimizer_reference.h`; made with PyTorch 1.13 (Debian 12), fp32, for loop
implementation (foreach=False).
"""
import random

import torch

STEPS, SIZE, SPLIT = 20, 24, 10
GROUPS = [dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, momentum=0.9),
          dict(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01, momentum=0.5)]


class Lion:
    """github.com/google/automl, lion/lion_pytorch.py, operation by operation."""

    def __init__(self, groups):
        self.groups = groups
        self.averages = [torch.zeros_like(g["params"][0]) for g in groups]

    @torch.no_grad()
    def step(self):
        for group, average in zip(self.groups, self.averages):
            p, (beta1, beta2) = group["params"][0], group["betas"]
            p.mul_(1 - group["lr"] * group["weight_decay"])
            update = average * beta1 + p.grad * (1 - beta1)
            p.add_(update.sign_(), alpha=-group["lr"])
            average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def with_keys(optimizer_type, keys, **others):
    def make(parts):
        groups = [dict(params=[p], **{key: group[key] for key in keys}) for p, group in zip(parts, GROUPS)]
        return optimizer_type(groups, **others)
    return make


OPTIMIZERS = {
    "kAdam": with_keys(torch.optim.Adam, ("lr", "betas", "eps", "weight_decay"), foreach=False),
    "kAdamW": with_keys(torch.optim.AdamW, ("lr", "betas", "eps", "weight_decay"), foreach=False),
    "kLion": with_keys(Lion, ("lr", "betas", "weight_decay")),
    "kSgd": with_keys(torch.optim.SGD, ("lr", "momentum", "weight_decay"), lr=1.0, foreach=False),
    "kNesterov": with_keys(torch.optim.SGD, ("lr", "momentum", "weight_decay"), lr=1.0, momentum=0.9, nesterov=True,
                           foreach=False),
    "kPlainSgd": with_keys(torch.optim.SGD, ("lr", "weight_decay"), lr=1.0, foreach=False),
}


def floats(values):
    return ", ".join(f"{float(x).hex()}f" for x in values)


def main():
    draw = random.Random(20240131)
    start = torch.tensor([draw.gauss(0, 1) for _ in range(SIZE)], dtype=torch.float32)
    # bf16 gradients of very different scales, as the engine hands them over.
    gradients = torch.tensor([[draw.gauss(0, 1) * 10.0 ** (i % 5 - 3) for i in range(SIZE)] for _ in range(STEPS)])
    gradients = gradients.to(torch.bfloat16).to(torch.float32)
    factors = [min(1.0, 5.0 / float(g.double().norm())) for g in gradients]

    results = {}
    for name, make in OPTIMIZERS.items():
        parts = [start[:SPLIT].clone().requires_grad_(), start[SPLIT:].clone().requires_grad_()]
        optimizer = make(parts)
        trace = []
        for gradient, factor in zip(gradients, factors):
            clipped = gradient * factor
            parts[0].grad, parts[1].grad = clipped[:SPLIT].clone(), clipped[SPLIT:].clone()
            optimizer.step()
            trace.append(torch.cat([p.detach() for p in parts]).clone())
        results[name] = trace

    print("#pragma once\n// Written by make_optimizer_reference.py with PyTorch " + torch.__version__ + ". Do not edit.\n")
    print("// clang-format off\nnamespace spillway::optimizer_reference {\n")
    print(f"inline constexpr int kSteps = {STEPS}, kSize = {SIZE}, kSplit = {SPLIT};")
    print("struct Group { double learning_rate, beta1, beta2, eps, weight_decay, momentum; };")
    print("inline constexpr Group kGroups[2] = {"
          + ", ".join("{%r, %r, %r, %r, %r, %r}" % (g["lr"], *g["betas"], g["eps"], g["weight_decay"], g["momentum"])
                      for g in GROUPS)
          + "};")
    print("inline constexpr double kFactors[kSteps] = {" + ", ".join(f.hex() for f in factors) + "};")
    print("inline constexpr float kStart[kSize] = {" + floats(start) + "};")
    for name, rows in (("kGradients", gradients), *results.items()):
        print(f"inline constexpr float {name}[kSteps][kSize] = {{")
        for row in rows:
            print("    {" + floats(row) + "},")
        print("};")
    print("\n}  // namespace spillway::optimizer_reference")


if __name__ == "__main__":
    main()
