#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The last run in a journal of run_tests.py as Markdown, for the page of a job on GitHub.

    python3 qa/github_page.py logs/run_tests.jsonl >>"$GITHUB_STEP_SUMMARY"

It has what came of the run, the failed tests with the ends of their logs, what was flaky, the slowest tests, and a
chart of what ran where. GitHub drops a page of more than 1 MiB whole: what does not fit is left out, as the page says.

Exit codes: 0 done; 2 usage, or a journal that is none.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
import os
import re
import sys
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

PROGRAM = "github_page.py"
EXIT_OK = 0
EXIT_USAGE = 2
PAGE_BYTES = 1_000_000  # of a page of at most 1 MiB, in which other steps may have written
TAIL_BYTES = 8192  # of a log: the last error and its traceback
SLOWEST = 10  # tests that are named
BARS = 100  # of a chart: Mermaid refuses texts of more than 50,000 characters
REST = "\nMore does not fit: see the logs.\n"
FAILURES = frozenset("failed crashed timeout blocked unrunnable".split())
ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"

Event = Mapping[str, Any]


def read_run(path: str) -> List[Event]:
    """The events of the last run in a journal. A line that is torn costs only itself. Raises OSError."""
    runs: Dict[str, List[Event]] = collections.defaultdict(list)
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line[max(line.rfind('{"event"'), 0) :])
                runs[event["run"]].append(event)
            except (ValueError, KeyError, TypeError):
                continue
    for events in reversed(list(runs.values())):
        return events
    return []


def of_kind(run: Iterable[Event], kind: str) -> List[Event]:
    """The events of one kind."""
    return [event for event in run if event["event"] == kind]


def verdict(end: Event) -> str:
    """`failed, exit 1`, `crashed (SIGSEGV)`, `timeout`."""
    outcome: str = end["outcome"]
    if outcome == "failed" and end["status"] is not None:
        return f"{outcome}, exit {end['status']}"
    if outcome == "crashed" and end["signal"]:
        return f"{outcome} ({end['signal']})"
    return outcome


def title(run: Sequence[Event], ends: Mapping[str, Event]) -> str:
    """How many tests had which outcome, in which time, and how the run ended."""
    counts = collections.Counter(end["outcome"] for end in ends.values())
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    seconds = run[-1]["time"] - run[0]["time"]
    code = "no end in the journal"
    for end in of_kind(run, "run_end"):
        code = f"exit code {end['exit']}"
    return f"{len(ends)} tests in {seconds:.1f}s: {outcomes or 'none'} ({code})"


def fenced(text: str) -> str:
    """A text as it stands, in Markdown: its fence is longer than any in it."""
    longest = max(["``", *re.findall("`+", text)], key=len)
    return f"{longest}`text\n{text}\n{longest}`\n"


def tail_of(path: str) -> str:
    """The end of a log, without terminal escapes; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return re.sub(ESCAPES, "", file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def failed(run: Sequence[Event], ends: Mapping[str, Event], folder: str) -> Iterator[str]:
    """Each failed test, with the end of its log folded away."""
    logs = {start["label"]: start["log"] for start in of_kind(run, "test_start")}
    for label, end in ends.items():
        if end["outcome"] in FAILURES:
            why = end.get("reason") or end.get("cause") or ""
            said = html.escape(": ".join(filter(None, [label, verdict(end), why])))
            tail = ""
            if label in logs:
                tail = fenced(tail_of(os.path.join(folder, os.path.basename(logs[label]))))
            yield f"<details><summary>{said}</summary>\n\n{tail}\n</details>\n\n"


def named(ends: Mapping[str, Event]) -> Iterator[str]:
    """What was flaky, and what took longest."""
    flaky = [label for label, end in ends.items() if end["outcome"] == "flaky"]
    if flaky:
        yield f"Flaky: {html.escape(', '.join(flaky))}\n\n"
    slowest = sorted(ends, key=lambda label: -ends[label]["seconds"])[:SLOWEST]
    said = ", ".join(f"{label} {ends[label]['seconds']:.1f}s" for label in slowest)
    yield f"Slowest: {html.escape(said)}\n\n"


def chart(run: Sequence[Event]) -> str:
    """What ran where and when, in the words of Mermaid, which GitHub draws: the longest attempts."""
    starts = {(start["label"], start["attempt"]): start for start in of_kind(run, "test_start")}
    ran = [
        (starts[key], end)
        for end in of_kind(run, "test_end")
        for key in [(end["label"], end["attempt"])]
        if key in starts
    ]
    longest = sorted(ran, key=lambda pair: -pair[1]["seconds"])[:BARS]
    lanes: Dict[str, str] = collections.defaultdict(str)
    for start, end in sorted(longest, key=lambda pair: pair[0]["time"]):
        begin = int(start["time"] - run[0]["time"])
        stop = begin + max(1, round(end["seconds"]))
        name = re.sub(r"[^\w ./=-]", " ", start["label"])
        mark = "crit, " * (end["outcome"] in FAILURES)
        for place in [f"GPU {token}" for token in start["gpus"]] or ["CPU"]:
            lanes[place] += f"    {name} :{mark}{begin}, {stop}\n"
    if not lanes:
        return ""
    in_order = sorted(lanes, key=lambda place: (len(place), place))  # GPU 2 before GPU 10
    sections = "".join(f"  section {place}\n{lanes[place]}" for place in in_order)
    return f"```mermaid\ngantt\n  dateFormat X\n  axisFormat %H:%M:%S\n{sections}```\n"


def page_of(run: Sequence[Event], folder: str) -> Iterator[str]:
    """The parts of the page of a run whose logs are in a folder."""
    ends = {end["label"]: end for end in of_kind(run, "test_end")}  # the last attempt counts
    yield f"### {html.escape(title(run, ends))}\n\n"
    yield from named(ends)
    yield from failed(run, ends, folder)
    yield chart(run)


def fitting(parts: Iterable[str], limit: int = PAGE_BYTES) -> bytes:
    """The first parts that fit into so many bytes together, and a word of those that do not."""
    page = b""
    for part in parts:
        data = part.encode("utf-8", "replace")
        if len(page) + len(data) + len(REST) > limit:
            return page + REST.encode()
        page += data
    return page


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="A run as a page on GitHub.")
    parser.add_argument(
        "journal",
        nargs="?",
        default=os.path.join("logs", "run_tests.jsonl"),
        metavar="JOURNAL",
        help="of run_tests.py, beside the logs of its last run; default: logs/run_tests.jsonl",
    )
    path = parser.parse_args(argv).journal
    try:
        run = read_run(path)
    except OSError as error:
        print(f"{PROGRAM}: {path}: cannot be read ({error.strerror})", file=sys.stderr)
        return EXIT_USAGE
    if not run:
        print(f"{PROGRAM}: {path}: no line of it is a journal's", file=sys.stderr)
        return EXIT_USAGE
    sys.stdout.buffer.write(fitting(page_of(run, os.path.dirname(path))))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
