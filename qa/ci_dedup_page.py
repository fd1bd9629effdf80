# SPDX-License-Identifier: MIT
"""The report as one HTML page that needs nothing else: its text, a plot of cost against catch, a map of all jobs.

A part of ci_dedup.py, which does not work without it: copy the five files ci_dedup*.py together.

The page holds each job's verdicts as bits, and computes what it shows: two jobs that both ran a thousand times are 500
bytes, whatever the number of jobs. Its map draws only what is seen, on a canvas of the window's size, so that no number
of jobs is too many for a browser. On paper it draws the whole map, as large as the paper allows.
"""

from __future__ import annotations

import html
import json
import re
from typing import AbstractSet, Iterable, List, NamedTuple, Sequence, Tuple

PLOT_WIDTH, PLOT_HEIGHT, PLOT_MARGIN = 640, 320, 50  # pixels


class Map(NamedTuple):
    """What the map shows: jobs in dendrogram order, their verdicts a bit a commit, groups' sizes, and the tree."""

    jobs: Sequence[str]
    ran: Sequence[int]
    passed: Sequence[int]
    commits: int
    groups: Sequence[int]
    merges: Sequence[Tuple[int, int, float]]
    chosen: AbstractSet[str]


class Point(NamedTuple):
    """A choice in the plot: shares from 0 to 1, the caught one with its interval."""

    name: str
    cost: float
    caught: float
    low: float
    high: float
    is_choice: bool


TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TITLE</title>
<style>
body { font: 14px sans-serif; margin: 1em; }
#map { position: relative; }
#frame { overflow: auto; width: 100%; max-height: 80vh; border: 1px solid #bbb; }
canvas { position: sticky; top: 0; left: 0; display: block; }
#tip { position: fixed; pointer-events: none; background: #222; color: #fff; padding: 4px 8px; white-space: pre;
       z-index: 2; }
#bar { display: inline-block; width: 12em; height: 1em; vertical-align: middle; border: 1px solid #bbb;
       background: linear-gradient(to right, #00f, #fff, #f00); print-color-adjust: exact; }
pre { font: 12px monospace; white-space: pre-wrap; }
#paper { display: none; position: static; }
@media print {
    #frame, #tools { display: none; }
    #paper { display: block; max-width: 100%; }
}
</style>
</head>
<body>
<h1>TITLE</h1>
<h2>What it comes to</h2>
<pre>TEXT</pre>
<h2>Cost against catch</h2>
PLOT
<h2>Which jobs tell the same</h2>
<p>How alike the verdicts of two jobs are: <span id="scale">-1 <span id="bar"></span> 1</span>; 1 (red) fail together,
0 (white) have nothing to do with each other, -1 (blue) fail in turns, grey cannot be told. A box is a cluster, the
tree on the right shows how clusters merge; jobs in bold are in the recommended set.</p>
<p id="tools"><label><input type="checkbox" id="few"> clusters only (a row for each)</label>
<label>size <input type="range" id="zoom" min="1" max="40" value="16"></label> <button id="fit">fit</button></p>
<div id="map"><div id="frame"><div id="space"><canvas></canvas></div></div><div id="tip" hidden></div>
<canvas id="paper"></canvas></div>
<noscript>The map needs JavaScript; the same numbers are in what --csv writes.</noscript>
<h2>Details</h2>
<pre>DETAILS</pre>
<script>
"use strict";
const data = DATA;
SCRIPT
</script>
</body>
</html>
"""

SCRIPT = r"""
const MANY = 300, LABEL = 60, TREE = 120, PAPER = 4000, SMALL = 7;
const byId = name => document.getElementById(name);
const frame = byId("frame"), space = byId("space"), tip = byId("tip"), few = byId("few"), zoom = byId("zoom");
const canvas = document.querySelector("canvas"), ink = canvas.getContext("2d");
const chosen = new Set(data.chosen);

// Verdicts: 32 commits a word.
function words(text) {
    const found = new Uint32Array(Math.ceil(text.length / 8));
    for (let place = 0; place < found.length; place++)
        found[place] = parseInt(text.slice(8 * place, 8 * place + 8).padEnd(8, "0"), 16);
    return found;
}
const ran = data.ran.map(words), passed = data.passed.map(words);
function ones(word) {
    word -= word >>> 1 & 0x55555555;
    word = (word & 0x33333333) + (word >>> 2 & 0x33333333);
    return Math.imul(word + (word >>> 4) & 0x0f0f0f0f, 0x01010101) >>> 24;
}
function compare(one, other) {
    const [ranOne, ranOther, okOne, okOther] = [ran[one], ran[other], passed[one], passed[other]];
    let total = 0, both = 0, first = 0, second = 0;
    for (let place = 0; place < ranOne.length; place++) {
        total += ones(ranOne[place] & ranOther[place]);
        both += ones(okOne[place] & okOther[place]);
        first += ones(okOne[place] & ranOther[place]);
        second += ones(okOther[place] & ranOne[place]);
    }
    const variances = first * (total - first) * second * (total - second);
    const phi = variances ? (total * both - first * second) / Math.sqrt(variances) : null;
    const together = total - first - second + both;
    return {phi, together, either: total - both, total};
}
const known = new Map();
function cellOf(one, other) {
    const key = Math.min(one, other) * data.jobs.length + Math.max(one, other);
    if (!known.has(key)) {
        if (known.size > 1e6) known.clear();
        known.set(key, compare(one, other));
    }
    return known.get(key);
}
function shade(value) {
    if (value === null) return "#bbb";
    const rest = Math.round(255 * (1 - Math.abs(value)));
    return value < 0 ? `rgb(${rest},${rest},255)` : `rgb(255,${rest},${rest})`;
}

// Rows: all jobs, or the first chosen one (else the first) of each cluster.
const clusters = [];
data.groups.reduce((first, length) => { clusters.push([first, length]); return first + length; }, 0);
let rows = [], boxes = [], merges = [], names = [];
const short = text => text.length > LABEL ? text.slice(0, LABEL / 2 - 1) + "\u2026" + text.slice(-LABEL / 2) : text;
function setRows() {
    if (few.checked) {
        rows = clusters.map(([first, length]) => {
            const members = [...Array(length).keys()].map(number => first + number);
            return members.find(job => chosen.has(data.jobs[job])) ?? first;
        });
        names = rows.map((job, row) => job + ". " + data.jobs[job] +
            (clusters[row][1] > 1 ? ` (and ${clusters[row][1] - 1} more)` : ""));
        boxes = [];
    } else {
        rows = [...data.jobs.keys()];
        names = rows.map(job => job + ". " + data.jobs[job]);
        boxes = clusters.filter(([, length]) => length > 1);
    }
    setTree();
}
function setTree() {
    // Where each node stands, in rows, and how high it is. A node within one cluster has no place of its own there.
    const leaves = data.merges.length + 1, at = new Array(leaves + data.merges.length), high = at.slice().fill(0);
    merges = [];
    if (!data.merges.length) return;
    if (few.checked) clusters.forEach(([first, length], row) => { at.fill(row, first, first + length); });
    else for (let leaf = 0; leaf < leaves; leaf++) at[leaf] = leaf;
    const top = Math.max(...data.merges.map(merge => merge[2])) || 1;
    data.merges.forEach(([left, right, height], number) => {
        const node = leaves + number;
        at[node] = (at[left] + at[right]) / 2;
        high[node] = height / top;
        if (at[left] !== at[right]) merges.push([at[left], at[right], high[left], high[right], high[node]]);
    });
}

// Layout: labels and tree keep their places, what is between them scrolls.
let cell = 16, margin = 0;
function font(row, size) {
    return (chosen.has(data.jobs[rows[row]]) ? "bold " : "") + size + "px sans-serif";
}
function labelSize() { return cell >= SMALL ? Math.min(12, cell) : 0; }
function measure() {
    const size = labelSize();
    margin = 8;
    if (!size) return;
    for (let row = 0; row < rows.length; row++) {
        ink.font = font(row, size);
        margin = Math.max(margin, Math.ceil(ink.measureText(short(names[row])).width) + 8);
    }
}
function size() { return margin + rows.length * cell + TREE; }

// Draw the rows and columns of a window of so many pixels, from an offset in the map, with any context.
function draw(to, width, height, left, top, sharp) {
    to.setTransform(sharp, 0, 0, sharp, 0, 0);
    to.fillStyle = "#fff";
    to.fillRect(0, 0, width, height);
    const from = offset => Math.max(0, Math.floor(offset / cell));
    const until = end => Math.min(rows.length, Math.ceil(end / cell));
    const [x0, x1, y0, y1] = [from(left), until(left + width - margin), from(top), until(top + height - margin)];
    const place = (number, offset) => margin + number * cell - offset;
    to.save();
    to.beginPath();
    to.rect(margin, margin, width, height);
    to.clip();
    for (let y = y0; y < y1; y++)
        for (let x = x0; x < x1; x++) {
            to.fillStyle = shade(cellOf(rows[y], rows[x]).phi);
            to.fillRect(place(x, left), place(y, top), cell, cell);
        }
    to.strokeStyle = "#000";
    to.lineWidth = cell < SMALL ? 1 : 2;
    for (const [first, length] of boxes)
        to.strokeRect(place(first, left), place(first, top), length * cell, length * cell);
    drawTree(to, place(rows.length, left) + 4, row => place(row + 0.5, top));
    to.restore();
    drawLabels(to, x0, x1, y0, y1, left, top);
}
function drawTree(to, edge, y) {
    to.lineWidth = 1;
    to.strokeStyle = "#555";
    const x = height => edge + height * (TREE - 10);
    to.beginPath();
    for (const [one, other, left, right, height] of merges) {
        to.moveTo(x(left), y(one));
        to.lineTo(x(height), y(one));
        to.lineTo(x(height), y(other));
        to.lineTo(x(right), y(other));
    }
    to.stroke();
}
function drawLabels(to, x0, x1, y0, y1, left, top) {
    const size = labelSize();
    if (!size) return;
    to.fillStyle = "#000";
    to.textBaseline = "middle";
    to.save();
    to.beginPath();
    to.rect(0, margin, margin, 1e6);
    to.clip();
    to.textAlign = "right";
    for (let y = y0; y < y1; y++) {
        to.font = font(y, size);
        to.fillText(short(names[y]), margin - 4, margin + (y + 0.5) * cell - top);
    }
    to.restore();
    to.save();
    to.beginPath();
    to.rect(margin, 0, 1e6, margin);
    to.clip();
    to.textAlign = "left";
    for (let x = x0; x < x1; x++) {
        to.font = font(x, size);
        to.save();
        to.translate(margin + (x + 0.5) * cell - left, margin - 4);
        to.rotate(-Math.PI / 2);
        to.fillText(short(names[x]), 0, 0);
        to.restore();
    }
    to.restore();
}
function show() {
    const sharp = window.devicePixelRatio || 1;
    const width = Math.min(frame.clientWidth, size());
    const height = Math.min(frame.clientHeight, size() - TREE + 8);
    canvas.width = Math.max(1, Math.floor(width * sharp));
    canvas.height = Math.max(1, Math.floor(height * sharp));
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    draw(ink, width, height, frame.scrollLeft, frame.scrollTop, sharp);
}
function layout() {
    measure();
    space.style.width = size() + "px";
    space.style.height = size() - TREE + 8 + "px";
    show();
}
function fit() {
    cell = 20;
    while (cell > 1 && (measure(), size() > frame.clientWidth)) cell--;
    zoom.value = cell;
    layout();
}

// The hint.
function hint(row, column) {
    const [one, other] = [rows[row], rows[column]], found = cellOf(one, other);
    const name = job => job + ". " + data.jobs[job];
    const value = found.phi === null ? "cannot be told" : found.phi.toFixed(3);
    const counts = found.either ? `failed together ${found.together} of ${found.either}` : "neither failed";
    return name(one) + "\n" + name(other) + "\n" + value + "\n" + counts + ` (both ran ${found.total} times)`;
}
canvas.addEventListener("mousemove", event => {
    const x = Math.floor((event.offsetX - margin + frame.scrollLeft) / cell);
    const y = Math.floor((event.offsetY - margin + frame.scrollTop) / cell);
    const inside = event.offsetX >= margin && event.offsetY >= margin;
    tip.hidden = !(inside && 0 <= x && x < rows.length && 0 <= y && y < rows.length);
    if (tip.hidden) return;
    tip.textContent = hint(y, x);
    tip.style.left = Math.min(event.clientX + 16, Math.max(0, window.innerWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.min(event.clientY + 16, Math.max(0, window.innerHeight - tip.offsetHeight - 4)) + "px";
});
canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
frame.addEventListener("scroll", () => { tip.hidden = true; show(); });
window.addEventListener("resize", layout);
few.addEventListener("change", () => { setRows(); fit(); });
zoom.addEventListener("input", () => { cell = Number(zoom.value); layout(); });
byId("fit").addEventListener("click", fit);

// Paper: the whole map as a picture of at most so many pixels.
function drawPaper() {
    const before = [cell, margin];
    measure();
    while (cell > 1 && size() > PAPER) { cell--; measure(); }
    const whole = byId("paper"), edge = Math.min(size(), PAPER);
    whole.width = whole.height = edge;
    draw(whole.getContext("2d"), size(), size(), 0, 0, edge / size());
    [cell, margin] = before;
}
window.addEventListener("beforeprint", drawPaper);
few.checked = data.jobs.length > MANY && clusters.length > 0 && clusters.length < data.jobs.length;
setRows();
fit();
if (cell < SMALL) {  // names first; who wants to see all at once asks for it
    zoom.value = cell = SMALL;
    layout();
}
"""


def bits_text(bits: int, count: int) -> str:
    """So many bits as hexadecimal digits, the first in the highest bit of the first digit."""
    digits = max(1, (count + 3) // 4)
    return f"{bits << (4 * digits - count):0{digits}x}"


def plot(points: Iterable[Point]) -> str:
    """Cost against catch as SVG, in percent, with the interval of each share; empty without points."""
    points = sorted(points, key=lambda point: (point.cost, point.caught))
    if not points:
        return "<p>There was nothing to judge by.</p>"
    dearest = max(point.cost for point in points) or 1.0

    def x(cost: float) -> float:
        return PLOT_MARGIN + cost / dearest * (PLOT_WIDTH - 2 * PLOT_MARGIN)

    def y(caught: float) -> float:
        return PLOT_HEIGHT - PLOT_MARGIN - caught * (PLOT_HEIGHT - 2 * PLOT_MARGIN)

    parts = axes(dearest, x(0), x(dearest), y(0), y(1))
    line = " ".join(f"{x(point.cost):.1f},{y(point.caught):.1f}" for point in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#00f"/>')
    for point in points:
        colour = "#d00" if point.is_choice else "#00f"
        at = f"{x(point.cost):.1f}"
        parts += [
            f'<line x1="{at}" x2="{at}" y1="{y(point.low):.1f}" y2="{y(point.high):.1f}" stroke="{colour}"/>',
            f'<circle cx="{at}" cy="{y(point.caught):.1f}" r="4" fill="{colour}"><title>{html.escape(point.name)}: '
            f"{100 * point.cost:.1f} % of the cost, {100 * point.caught:.1f} % caught</title></circle>",
        ]
    return (
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" '
        f'font-size="12" font-family="sans-serif">{"".join(parts)}</svg>'
        "<p>Walking forward: each point is a share of the breakages that was asked for (50 to 100 %), its bar where "
        "the share of caught commits lies, 95 % sure; red is what is recommended.</p>"
    )


def axes(dearest: float, left: float, right: float, bottom: float, top: float) -> List[str]:
    """The plot's axes, with a number at each quarter."""
    parts = [
        f'<path d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="#000"/>',
        f'<text x="{right:.1f}" y="{bottom + 36:.1f}" text-anchor="end">cost, % of all</text>',
        f'<text x="{left:.1f}" y="{top - 12:.1f}">caught, % of the commits</text>',
    ]
    for quarter in range(5):
        share = quarter / 4
        x = left + share * (right - left)
        y = bottom + share * (top - bottom)
        parts += [
            f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{100 * share * dearest:.0f}</text>',
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f}</text>',
        ]
    return parts


def page(title: str, texts: Sequence[str], shown: Map, points: Iterable[Point]) -> str:
    """The whole page; its texts are the report's summary and its details."""
    data = {
        "jobs": shown.jobs,
        "ran": [bits_text(bits, shown.commits) for bits in shown.ran],
        "passed": [bits_text(bits, shown.commits) for bits in shown.passed],
        "groups": shown.groups,
        "merges": [(left, right, round(height, 6)) for left, right, height in shown.merges],
        "chosen": sorted(shown.chosen),
    }
    parts = {
        "TITLE": html.escape(title),
        "TEXT": html.escape(texts[0]),
        "DETAILS": html.escape(texts[1]),
        "PLOT": plot(points),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPT": SCRIPT.strip(),
    }
    return re.sub(
        "TITLE|TEXT|DETAILS|PLOT|DATA|SCRIPT", lambda found: parts[found.group()], TEMPLATE
    )
