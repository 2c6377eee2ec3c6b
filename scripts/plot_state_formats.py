#!/usr/bin/env python3
"""Draws what scripts/compare_state_formats.sh trained, and says whether the formats differ by more than the seeds do.

    scripts/plot_state_formats.py build/state-formats             writes build/state-formats/losses.svg
    scripts/plot_state_formats.py build/state-formats -o x.png    the ending says the format: .svg or .png

Needs matplotlib (Debian: python3-matplotlib).
"""
import argparse
import glob
import os
import sys

from plot_metrics import averaged, fail, number, read

FORMATS = {"fp32": "#4477aa", "bf16": "#228833", "compact8": "#ee6677"}


def runs_in(directory):
    """{format: {seed: rows}}"""
    runs = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.jsonl"))):
        name, _, seed = os.path.basename(path)[:-len(".jsonl")].rpartition("-")
        if name in FORMATS:
            runs.setdefault(name, {})[seed] = read(path)
    if "fp32" not in runs:
        fail(f"{directory}: no metrics of the state format fp32; run scripts/compare_state_formats.sh")
    return {name: runs[name] for name in FORMATS if name in runs}


def validation(rows):
    return [(row["step"], number(row["eval_loss"])) for row in rows if "eval_loss" in row]


def report(runs):
    reference = {seed: validation(rows)[-1][1] for seed, rows in runs["fp32"].items()}
    low, high = min(reference.values()), max(reference.values())
    print(f"validation loss at the end (nats a token); fp32's seeds spread from {low:.4f} to {high:.4f}")
    for name, seeds in runs.items():
        finals = {seed: validation(rows)[-1][1] for seed, rows in seeds.items()}
        mean = sum(finals.values()) / len(finals)
        difference = [finals[seed] - reference[seed] for seed in finals if seed in reference]
        print(f"  {name:<9} " + "  ".join(f"{value:.4f}" for value in finals.values()) + f"   mean {mean:.4f}"
              f"   minus fp32's of the same seed {min(difference):+.4f} to {max(difference):+.4f}"
              f"   mean {'within' if low <= mean <= high else 'OUTSIDE'} the spread")


def draw(runs, path):
    try:
        import matplotlib
    except ImportError:
        fail("this needs matplotlib: apt install python3-matplotlib, or pip install matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (whole, end) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for name, seeds in runs.items():
        for index, rows in enumerate(seeds.values()):
            label = name if index == 0 else None
            steps = [row["step"] for row in rows]
            whole.plot(steps, averaged([number(row["loss"]) for row in rows], 20), color=FORMATS[name], lw=0.8,
                       alpha=0.8, label=label)
            measured = validation(rows)
            tail = measured[len(measured) // 2:]
            end.plot([step for step, _ in tail], [loss for _, loss in tail], color=FORMATS[name], lw=1, marker="o",
                     ms=2.5, alpha=0.8, label=label)
    whole.set_title("training loss, mean of 20 steps")
    end.set_title("validation loss, second half")
    for axes in (whole, end):
        axes.set_xlabel("step")
        axes.set_ylabel("nats a token")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    print(f"drawn: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("-o", "--output", help="DIRECTORY/losses.svg if not given")
    options = parser.parse_args()
    runs = runs_in(options.directory)
    report(runs)
    draw(runs, options.output or os.path.join(options.directory, "losses.svg"))


if __name__ == "__main__":
    sys.exit(main())
