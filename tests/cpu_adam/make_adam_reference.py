#!/usr/bin/env python3
"""Writes adam_reference.h: what PyTorch's Adam and AdamW do in 20 steps on a small vector.

Two parameter groups with their own learning rate, betas, eps and weight decay, gradients that are multiplied by a
clipping factor of each step's own. Run as `python3 make_adam_reference.py > adam_reference.h`; made with PyTorch 1.13
(Debian 12), fp32, for loop implementation (foreach=False).
"""
import random

import torch

STEPS, SIZE, SPLIT = 20, 24, 10
GROUPS = [dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
          dict(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01)]


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
    for name, optimizer_type in (("Adam", torch.optim.Adam), ("AdamW", torch.optim.AdamW)):
        parts = [start[:SPLIT].clone().requires_grad_(), start[SPLIT:].clone().requires_grad_()]
        optimizer = optimizer_type([dict(params=[p], **group) for p, group in zip(parts, GROUPS)], foreach=False)
        trace = []
        for gradient, factor in zip(gradients, factors):
            clipped = gradient * factor
            parts[0].grad, parts[1].grad = clipped[:SPLIT].clone(), clipped[SPLIT:].clone()
            optimizer.step()
            trace.append(torch.cat([p.detach() for p in parts]).clone())
        results[name] = trace

    print("#pragma once\n// Written by make_adam_reference.py with PyTorch " + torch.__version__ + ". Do not edit.\n")
    print("// clang-format off\nnamespace spillway::adam_reference {\n")
    print(f"inline constexpr int kSteps = {STEPS}, kSize = {SIZE}, kSplit = {SPLIT};")
    print("struct Group { double learning_rate, beta1, beta2, eps, weight_decay; };")
    print("inline constexpr Group kGroups[2] = {"
          + ", ".join("{%r, %r, %r, %r, %r}" % (g["lr"], *g["betas"], g["eps"], g["weight_decay"]) for g in GROUPS)
          + "};")
    print("inline constexpr double kFactors[kSteps] = {" + ", ".join(f.hex() for f in factors) + "};")
    print("inline constexpr float kStart[kSize] = {" + floats(start) + "};")
    for name, rows in (("kGradients", gradients), ("kAdam", results["Adam"]), ("kAdamW", results["AdamW"])):
        print(f"inline constexpr float {name}[kSteps][kSize] = {{")
        for row in rows:
            print("    {" + floats(row) + "},")
        print("};")
    print("\n}  // namespace spillway::adam_reference")


if __name__ == "__main__":
    main()
