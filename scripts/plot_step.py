#!/usr/bin/env python3
"""Draws what the lanes did in two steps, from a trace of `spillway bench step --trace` or `spillway train --trace`.

    scripts/plot_step.py step.trace                     writes step.svg
    scripts/plot_step.py a.trace b.trace -o both.svg    one below the other, on one scale
        --label 'updates wait' --label 'they do not'    a title for each

Of all pairs of neighbouring steps it takes the shortest, which is the one that the fewest others disturbed.
"""
import argparse
import json
import os
import sys
from html import escape

LANES = ["compute", "communicate", "copy_down", "copy_up", "adam", "read", "write"]
COLOURS = {"forward": "#88bbdd", "backward": "#336699", "compute": "#99aabb", "communicate": "#aa3377",
           "copy_down": "#55bbcc", "copy_up": "#228833", "adam": "#ccaa33", "read": "#ee6677", "write": "#888888"}
LEFT, WIDTH, ROW, BAR, HEAD, GAP = 108, 860, 23, 16, 44, 26


def fail(message):
    sys.exit(f"error: {message}")


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            ours = json.load(file)["spillway"]
        return {key: ours[key] for key in ("spans", "waits", "marks")}
    except OSError as cause:
        fail(f"{path}: {cause.strerror}")
    except (ValueError, KeyError, TypeError):
        fail(f"{path}: this is no trace of spillway bench step or spillway train")


def two_steps(trace, path):
    """The begins of two neighbouring steps and the end of the second, in nanoseconds."""
    steps = sorted(mark["time_ns"] for mark in trace["marks"] if mark["name"] == "step")
    firsts = sorted(mark["time_ns"] for mark in trace["marks"] if mark["name"] == "backward")
    whole = [sum(begin <= time < end for time in firsts) == 1 for begin, end in zip(steps, steps[1:])]
    pairs = [steps[i:i + 3] for i in range(len(whole) - 1) if whole[i] and whole[i + 1]]
    if not pairs:
        fail(f"{path}: there are no two steps in a row")
    begin, middle, end = min(pairs, key=lambda pair: pair[2] - pair[0])
    return begin, middle, end, [time for time in firsts if begin <= time < end]


class Panel:
    def __init__(self, path, label):
        self.trace = read(path)
        self.label = label
        self.begin, self.middle, self.end, self.backward = two_steps(self.trace, path)
        inside = lambda what: what["end_ns"] > self.begin and what["begin_ns"] < self.end
        self.spans = [span for span in self.trace["spans"] if inside(span)]
        self.waits = [wait for wait in self.trace["waits"] if inside(wait)]
        self.lanes = [lane for lane in LANES if any(span["lane"] == lane for span in self.spans)]
        self.waiters = [who for who in ("update", "compute") if any(wait["waiter"] == who for wait in self.waits)]
        self.rows = self.lanes + [f"{who} waits" for who in self.waiters]

    def height(self):
        return HEAD + ROW * len(self.rows) + GAP

    def draw(self, top, scale):
        place = lambda time: LEFT + (min(max(time, self.begin), self.end) - self.begin) * scale
        out = [f'<text x="{LEFT}" y="{top + 16}" class="title">{escape(self.label)}</text>']
        bottom = top + HEAD + ROW * len(self.rows)

        def bar(row, begin, end, colour, shade, title, height=BAR):
            x, width = place(begin), max(place(end) - place(begin), 0.3)
            y = top + HEAD + ROW * row + (ROW - height) / 2
            out.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}" fill="{colour}" '
                       f'fill-opacity="{shade}"><title>{escape(title)}</title></rect>')

        for row, name in enumerate(self.rows):
            y = top + HEAD + ROW * row
            out.append(f'<rect x="{LEFT}" y="{y + 1}" width="{WIDTH}" height="{ROW - 2}" class="band"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y + ROW - 7}" class="lane">{name}</text>')
        for span in self.spans:
            lane = span["lane"]
            colour = COLOURS.get(span["name"] if lane == "compute" else lane, COLOURS[lane])
            milliseconds = (span["end_ns"] - span["begin_ns"]) / 1e6
            overlaps = lane in ("read", "write")  # many at a time
            bar(self.rows.index(lane), span["begin_ns"], span["end_ns"], colour,
                0.45 if overlaps else 1 if span["unit"] % 2 == 0 else 0.72,
                f'{span["name"]}, unit {span["unit"]}: {milliseconds:.2f} ms')
        for wait in self.waits:
            bar(self.rows.index(f'{wait["waiter"]} waits'), wait["begin_ns"], wait["end_ns"], COLOURS[wait["lane"]], 0.9,
                f'for {wait["lane"]}, unit {wait["unit"]}')
        for time, name in [(self.begin, "begin_step"), (self.middle, "begin_step")]:
            x = place(time)
            out.append(f'<line x1="{x:.1f}" y1="{top + HEAD - 8}" x2="{x:.1f}" y2="{bottom}" class="step"/>')
            out.append(f'<text x="{x + 3:.1f}" y="{top + HEAD - 4}" class="mark">{name}</text>')
        for time in self.backward:
            x = place(time)
            out.append(f'<line x1="{x:.1f}" y1="{top + HEAD - 8}" x2="{x:.1f}" y2="{bottom}" class="backward"/>')
            out.append(f'<text x="{x + 3:.1f}" y="{top + HEAD - 4}" class="mark">first gradient</text>')
        return out + self.axis(bottom, scale, place)

    def axis(self, y, scale, place):
        whole = (self.end - self.begin) / 1e6
        step = next(s for e in range(-3, 9) for s in (10**e, 2 * 10**e, 5 * 10**e) if whole / s <= 12)
        out = []
        for i in range(int(whole / step) + 1):
            x = LEFT + i * step * 1e6 * scale
            out.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 4}" class="tick"/>')
            out.append(f'<text x="{x:.1f}" y="{y + 15}" class="number">{i * step:g}{" ms" if i == 0 else ""}</text>')
        return out


def legend(y, lanes):
    names = [("forward", "forward"), ("backward", "backward")] + [(lane, lane) for lane in lanes if lane != "compute"]
    out, x = [], LEFT
    for name, colour in names:
        out.append(f'<rect x="{x}" y="{y - 9}" width="11" height="11" fill="{COLOURS[colour]}"/>')
        out.append(f'<text x="{x + 15}" y="{y}" class="legend">{name}</text>')
        x += 30 + 7 * len(name)
    out.append(f'<text x="{x + 4}" y="{y}" class="legend">units alternate in shade</text>')
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("-o", "--output", metavar="FILE.svg", help="(the first trace's name, .svg)")
    parser.add_argument("--label", action="append", default=[], metavar="TEXT", help="a title for each trace, in order")
    arguments = parser.parse_args()
    output = arguments.output or os.path.splitext(arguments.traces[0])[0] + ".svg"
    if not output.endswith(".svg"):
        fail(f"{output}: the picture's name must end in .svg")
    labels = arguments.label + [os.path.basename(path) for path in arguments.traces[len(arguments.label):]]
    panels = [Panel(path, label) for path, label in zip(arguments.traces, labels)]
    scale = WIDTH / max(panel.end - panel.begin for panel in panels)
    lanes = [lane for lane in LANES if any(lane in panel.lanes for panel in panels)]
    height = sum(panel.height() for panel in panels) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 40}" height="{height}" '
           f'viewBox="0 0 {LEFT + WIDTH + 40} {height}">',
           "<style>text{font-family:sans-serif;fill:#222}.title{font-size:14px;font-weight:bold}.lane{font-size:12px;"
           "text-anchor:end}.mark{font-size:10px;fill:#555}.number{font-size:10px;fill:#555;text-anchor:middle}"
           ".legend{font-size:11px}.band{fill:#f4f4f4}.step{stroke:#222;stroke-width:1.2}"
           ".backward{stroke:#222;stroke-width:0.8;stroke-dasharray:4 3}.tick{stroke:#888}</style>",
           '<rect width="100%" height="100%" fill="white"/>']
    top = 6
    for panel in panels:
        out += panel.draw(top, scale)
        top += panel.height()
    out += legend(top + 12, lanes) + ["</svg>"]
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write("\n".join(out) + "\n")
    except OSError as cause:
        fail(f"{output}: {cause.strerror}")


if __name__ == "__main__":
    main()
