#!/usr/bin/env python3
"""Draws what `spillway train --metrics FILE.jsonl` wrote: the loss, and for how long each lane was busy in a step.

    scripts/plot_metrics.py run.jsonl                   writes run.svg
    scripts/plot_metrics.py run.jsonl -o run.png        the ending says the format: .svg or .png
    scripts/plot_metrics.py a.jsonl b.jsonl -o ab.svg   compares the losses of several runs; lanes are the first one's

Needs matplotlib (Debian: python3-matplotlib).
"""
import argparse
import json
import math
import os
import sys

LANES = ["compute", "communicate", "copy_down", "copy_up", "adam", "read", "write"]
COLOURS = {"compute": "#4477aa", "communicate": "#aa3377", "copy_down": "#66ccee", "copy_up": "#228833",
           "adam": "#ccbb44", "read": "#ee6677", "write": "#bbbbbb"}


def fail(message):
    sys.exit(f"error: {message}")


def read(path):
    rows = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    row["step"], row["loss"], row["step_s"], row["lane_s"]
                except (ValueError, KeyError, TypeError):
                    if not line.endswith("\n"):
                        break  # the run is writing this line just now
                    fail(f"{path}, line {number}: this is no line of spillway train --metrics")
                rows.append(row)
    except (OSError, UnicodeDecodeError) as cause:
        fail(f"{path}: {getattr(cause, 'strerror', None) or 'not a text file'}")
    if not rows:
        fail(f"{path}: no step has been written yet")
    return rows


def number(value):
    """A value that was not finite is null."""
    return math.nan if value is None else value


def averaged(values, window):
    """The mean over the last `window` values that are there."""
    means = []
    for end in range(1, len(values) + 1):
        part = [x for x in values[max(0, end - window):end] if not math.isnan(x)]
        means.append(sum(part) / len(part) if part else math.nan)
    return means


def draw_losses(axes, runs):
    for name, rows in runs:
        steps = [row["step"] for row in rows]
        losses = [number(row["loss"]) for row in rows]
        window = max(1, len(rows) // 50)
        line, = axes.plot(steps, averaged(losses, window), linewidth=1.6,
                          label=name + (f", mean of {window} steps" if window > 1 else ""))
        axes.plot(steps, losses, color=line.get_color(), alpha=0.25, linewidth=0.8)
        measured = [(row["step"], number(row["eval_loss"])) for row in rows if "eval_loss" in row]
        if measured:
            axes.plot(*zip(*measured), "o--", color=line.get_color(), markersize=4, linewidth=0.8,
                      label=f"{name}, validation")
        skipped = [row["step"] for row in rows if row.get("skipped")]
        if skipped:
            axes.plot(skipped, [axes.get_ylim()[0]] * len(skipped), "x", color="black", markersize=5,
                      label=f"{name}, skipped")
    axes.set_ylabel("loss, nats a token")
    axes.legend(frameon=False, fontsize=8)


def draw_lanes(axes, rows):
    # At most 30 groups of bars, each the mean of its steps.
    group = -(-len(rows) // 30)
    groups = [rows[i:i + group] for i in range(0, len(rows), group)]
    used = [lane for lane in LANES if any(row["lane_s"].get(lane, 0) > 0 for row in rows)]
    width = 0.8 / max(len(used), 1)
    mean = lambda part, value: sum(value(row) for row in part) / len(part)
    centre = [mean(part, lambda row: row["step"]) for part in groups]
    for i, lane in enumerate(used):
        places = [x + group * (width * (i + 0.5) - 0.4) for x in centre]
        axes.bar(places, [mean(part, lambda row: row["lane_s"].get(lane, 0)) for part in groups],
                 width=width * group, color=COLOURS[lane], label=lane)
    axes.plot(centre, [mean(part, lambda row: row["step_s"]) for part in groups], color="black", linewidth=1.2,
              drawstyle="steps-mid" if len(groups) > 1 else "default", marker="." if len(groups) == 1 else None,
              label="whole step")
    axes.set_ylabel("seconds a step")
    axes.set_xlabel("step" + (f" (bars: means of {group})" if group > 1 else ""))
    axes.legend(frameon=False, fontsize=8, ncols=4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE", help="ends in .svg or .png (the first file's name, .svg)")
    arguments = parser.parse_args()
    output = arguments.output or os.path.splitext(arguments.files[0])[0] + ".svg"
    if os.path.splitext(output)[1] not in (".svg", ".png"):
        fail(f"{output}: a picture's name must end in .svg or .png")
    if any(os.path.realpath(output) == os.path.realpath(file) for file in arguments.files):
        fail(f"{output}: this is one of the inputs, and would be lost")
    runs = [(os.path.basename(path), read(path)) for path in arguments.files]

    try:
        import matplotlib
    except ImportError:
        fail(f"{sys.executable} has no matplotlib: apt-get install python3-matplotlib gives it to /usr/bin/python3")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    figure, (upper, lower) = plot.subplots(2, 1, sharex=True, figsize=(10, 7), layout="constrained")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    draw_losses(upper, runs)
    draw_lanes(lower, runs[0][1])
    last = runs[0][1][-1]
    upper.set_title(f"{runs[0][0]}: {last['step']} steps, loss {number(last['loss']):.4f}, "
                    f"{last['tokens_per_s']:,.0f} tokens/s in the last", fontsize=10, loc="left")
    try:
        figure.savefig(output, dpi=150)
    except OSError as cause:
        fail(f"{output}: {cause.strerror}")
    print(output)


if __name__ == "__main__":
    main()
