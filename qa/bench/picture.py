#!/usr/bin/env python3
"""A picture of a real suite before and after: one by one on one GPU, then on several, each run for real as sleeps.

    python3 qa/bench/picture.py [--set sglang_run] [--gpus 8] [--scale 60] [--keep DIR] [--svg docs/before_after.svg]

The durations of the tests of one GPU of one set of `durations/` are run as sleeps, `--scale` times shorter, twice: by
the runner on one GPU, in list order, which is what a script does, and by the runner on `--gpus` GPUs, with the journal
of the first run as its history. Every bar of the picture is a test as the journals have it, its times multiplied by
`--scale` again: what starting and ending a test costs shows enlarged, too. The names of GPUs are names in a variable:
no GPU is needed. `--keep DIR` keeps the journals there; where it has them already, they are drawn, and nothing runs.

It takes as long as the suite over `--scale`, and that over the GPUs once more: seven minutes with the defaults.
"""
import argparse
import json
import os
import re
import shlex
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence
from xml.sax.saxutils import escape

from overhead import RUNNER, Broken, machine, run, scratch
from schedules import command_of, read_sets

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PICTURE_PX, LEFT_PX, EDGE_PX = 900, 70, 16
LANE_PX, GAP_PX, THICK_PX = 16, 3, 26    # a lane of several, the space below it, the only lane of the first run
LETTER_PX, LETTERS = 5.9, 4              # of a label: the width of a letter; fewer than so many say nothing
STYLE = """<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #57606a; }
.title { font-size: 14px; font-weight: 600; fill: #1f2328; } .name { text-anchor: end; font-size: 10px; }
.label { font-size: 10px; fill: #fff; } .big { font-size: 26px; font-weight: 600; fill: #1a7f4b; }
.page { fill: #fff; stroke: #d0d7de; } .lane { fill: #eff2f5; } .t0 { fill: #2f6fb0; } .t1 { fill: #5a93cc; }
.zoom { stroke: #8c959f; stroke-dasharray: 2 3; fill: none; } .grid { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) { text { fill: #9198a1; } .title { fill: #e6edf3; } .label { fill: #fff; }
.big { fill: #56d08b; } .page { fill: #0d1117; stroke: #3d444d; } .lane { fill: #1b222c; } .t0 { fill: #2b64a0; }
.t1 { fill: #4580ba; } .zoom { stroke: #656d76; } .grid { stroke: #3d444d; } }
</style>"""


class Bar(NamedTuple):
    """A test as it ran: GPU, and seconds from the start of the run, of the suite's own time."""

    label: str
    gpu: str
    start: float
    end: float


class Story(NamedTuple):
    """A run, in the suite's own time."""

    gpus: List[str]
    bars: List[Bar]
    seconds: float


def execute(name: str, gpus: int, scale: float, keep: str) -> None:
    """Run the set on one GPU and on `gpus`; the journals come to `keep`. Raises Broken."""
    rows = [row for row in read_sets([name])[name] if row.gpus == 1]
    lines = [f"{command_of(row._replace(seconds=row.seconds / scale))}  #: {shlex.quote('label=' + row.name)}"
             for row in rows]
    before, after = (os.path.abspath(os.path.join(keep, file)) for file in ("before.jsonl", "after.jsonl"))
    common = [sys.executable, RUNNER, "--output", "none"]
    with scratch(lines) as folder:
        run([*common, "--gpus", "0,", "--log-dir", "one", "--journal", before, "tests.txt"], folder)
        run([*common, "--gpus", str(gpus), "--log-dir", "all", "--journal", after, "--history", before, "tests.txt"],
            folder)


def read_story(path: str, scale: float) -> Story:
    """The run of a journal, times multiplied by `scale`."""
    gpus: List[str] = []
    starts: Dict[str, Bar] = {}
    bars: List[Bar] = []
    origin = end = 0.0
    with open(path, encoding="utf-8") as file:
        for event in map(json.loads, file):
            if event["event"] == "run_start":
                gpus, origin = event["gpus"], event["time"]
            elif event["event"] == "test_start":
                starts[event["label"]] = Bar(event["label"], event["gpus"][0], (event["time"] - origin) * scale, 0.0)
            elif event["event"] == "test_end":
                bar = starts[event["label"]]
                bars.append(bar._replace(end=bar.start + event["seconds"] * scale))
            elif event["event"] == "run_end":
                end = event["time"] - origin
    return Story(gpus, bars, end * scale)


def show_minutes(seconds: float) -> str:
    """`5 h 35 min`."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def lanes(story: Story, top: float, px_per_s: float, height: int, named: bool) -> List[str]:
    """The lanes of a run with their bars; `named`: with names of GPUs and, where there is room, of tests."""
    parts: List[str] = []
    for row, gpu in enumerate(story.gpus):
        y = top + row * (height + GAP_PX)
        parts.append(f'<text class="name" x="{LEFT_PX - 8}" y="{y + height / 2 + 4:.1f}">GPU {escape(gpu)}</text>')
        if named:
            width = story.seconds * px_per_s
            parts.append(f'<rect class="lane" x="{LEFT_PX}" y="{y}" width="{width:.1f}" height="{height}"/>')
        own = sorted((bar for bar in story.bars if bar.gpu == gpu), key=lambda bar: bar.start)
        for number, bar in enumerate(own):
            x, width = LEFT_PX + bar.start * px_per_s, (bar.end - bar.start) * px_per_s
            parts.append(f'<rect class="t{number % 2}" x="{x:.2f}" y="{y}" width="{max(width, .3):.2f}" '
                         f'height="{height}"/>')
            label = re.sub(r"^test_|\.py$", "", os.path.basename(bar.label.partition("@")[0]))
            letters = int((width - 6) / LETTER_PX)
            if len(label) > letters:
                label = label[:max(letters - 1, 0)] + "\u2026"
            if named and letters >= LETTERS:
                parts.append(f'<text class="label" x="{x + 3:.1f}" y="{y + 11.5}">{escape(label)}</text>')
    return parts


def draw(before: Story, after: Story, what: str) -> str:
    """The picture: both runs on one scale, then the second one by itself, from edge to edge."""
    wide = PICTURE_PX - LEFT_PX - EDGE_PX
    px_per_s, closer_per_s = wide / max(before.seconds, after.seconds), wide / after.seconds
    small = 9
    parts, y = [], EDGE_PX + 14

    def title(text: str) -> None:
        parts.append(f'<text class="title" x="{EDGE_PX}" y="{y}">{escape(text)}</text>')

    gain = f"{len(after.bars)} tests: {show_minutes(before.seconds)} became {show_minutes(after.seconds)}"
    title(f"Before: one by one on one GPU, {show_minutes(before.seconds)}")
    y += 10
    parts += lanes(before, y, px_per_s, THICK_PX, named=False)
    y += THICK_PX + 28
    title(f"After: run_tests.py on {len(after.gpus)} GPUs, {show_minutes(after.seconds)}, on the same scale")
    y += 10
    parts += lanes(after, y, px_per_s, small, named=False)
    bottom = y + len(after.gpus) * (small + GAP_PX) - GAP_PX
    right = LEFT_PX + after.seconds * px_per_s
    middle = (y + bottom) / 2
    parts.append(f'<text class="big" x="{right + 48:.0f}" y="{middle:.0f}">{escape(gain)}</text>')
    parts.append(f'<text x="{right + 48:.0f}" y="{middle + 22:.0f}">{escape(what)}</text>')
    y = bottom + 40
    parts.append(f'<path class="zoom" d="M{LEFT_PX} {bottom + 3} V{y + 8} M{right:.1f} {bottom + 3} '
                 f'L{PICTURE_PX - EDGE_PX} {y + 8}"/>')
    title(f"The same {show_minutes(after.seconds)}, closer: the longest start first")
    y += 10
    parts += lanes(after, y, closer_per_s, LANE_PX, named=True)
    y += len(after.gpus) * (LANE_PX + GAP_PX)
    for minutes in range(0, int(after.seconds // 60) + 1, 5):
        x = LEFT_PX + minutes * 60 * closer_per_s
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{minutes} min</text>')
    height = y + 16 + EDGE_PX
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_PX} {height}" width="{PICTURE_PX}" '
        f'height="{height}" role="img" aria-label="{escape(gain)}">', STYLE,
        f'<rect class="page" x=".5" y=".5" width="{PICTURE_PX - 1}" height="{height - 1}" rx="8"/>',
        *parts, "</svg>", ""])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code: 1 if a run failed."""
    parser = argparse.ArgumentParser(description="A picture of a real suite before and after, from real runs.")
    parser.add_argument("--set", default="sglang_run", help="beginning of the name of a set of durations/")
    parser.add_argument("--gpus", type=int, default=8, help="of the second run (8)")
    parser.add_argument("--scale", type=float, default=60.0, help="how many times shorter the sleeps are (60)")
    parser.add_argument("--keep", metavar="DIR", help="the journals: drawn if they are there, else kept there")
    parser.add_argument("--svg", metavar="FILE", default=os.path.join(ROOT, "docs", "before_after.svg"))
    options = parser.parse_args(argv)
    names = list(read_sets([options.set]))
    if len(names) != 1 or options.gpus < 2 or options.scale <= 0:
        parser.error("--set names one set, --gpus is at least 2, --scale above 0")
    with scratch() as folder:
        keep = options.keep or folder
        os.makedirs(keep, exist_ok=True)
        try:
            if not os.path.exists(os.path.join(keep, "after.jsonl")):
                execute(names[0], options.gpus, options.scale, keep)
        except Broken as problem:
            print(f"picture.py: {problem}", file=sys.stderr)
            return 1
        before, after = (read_story(os.path.join(keep, file), options.scale)
                         for file in ("before.jsonl", "after.jsonl"))
    what = f"{names[0]}, run as sleeps, {options.scale:g} times shorter"
    with open(options.svg, "w", encoding="utf-8") as file:
        file.write(draw(before, after, what))
    print(f"{len(after.bars)} tests: {show_minutes(before.seconds)} one by one, {show_minutes(after.seconds)} on "
          f"{len(after.gpus)} GPUs, {before.seconds / after.seconds:.1f} times as fast; {os.path.relpath(options.svg)}")
    print(f"Measured on {machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
