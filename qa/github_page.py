#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The last run in a journal of run_tests.py as Markdown, for the page of a job on GitHub, and as its annotations.

    python3 qa/github_page.py logs/run_tests.jsonl >>"$GITHUB_STEP_SUMMARY"

The page has what came of the run, the failed tests with the ends of their logs, what was flaky, the slowest tests, and
a chart of what ran where. GitHub drops a page of more than 1 MiB whole: what does not fit is left out, as the page
says. In a job on GitHub the failed tests also go to standard error as annotations, with file and line where pytest's
traceback at the end of a log tells them.

Exit codes: 0 done; 2 usage, a journal that is none, or one whose last run was of another commit than the job's; 3 the
page cannot be written.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
import os
import re
import sys
import time
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence

PROGRAM = "github_page.py"
EXIT_OK = 0
EXIT_USAGE = 2
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130
PART = r" \(part \d+ of \d+\)$"  # the end of the label of a part of a test that was split
LARGEST = 1e12  # seconds since 1970, or of a test: more is a mistake
PAGE_BYTES = 1_000_000  # of a page of at most 1 MiB, in which other steps may have written
TAIL_BYTES = 8192  # of a log: the last error and its traceback
SLOWEST = 10  # tests that are named
ANNOTATIONS = 10  # of a step: GitHub shows no more
# What GitHub's commands cannot hold as it is, in their text and in their properties (see actions/toolkit, command.ts).
TEXT_ESCAPES: Mapping[int, str] = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
PROPERTY_ESCAPES = {**TEXT_ESCAPES, ord(":"): "%3A", ord(","): "%2C"}
BARS = 100  # of a chart: Mermaid refuses texts of more than 50,000 characters
CHART_START = 946_684_800  # 2000-01-01 00:00:00, since 1970
# Before a name in a chart, where nobody sees it: Mermaid takes `title x`, `2024-01-01` or blanks alone for no name.
UNSEEN = "\u200b"
# What Markdown would take for its own, as numbers that it shows as the characters.
MARKUP: Mapping[int, str] = {ord(letter): f"&#{ord(letter)};" for letter in "*_`[]#@~\\"}
DESCRIPTION = (
    "A run as a page on GitHub; annotations go to stderr, where $GITHUB_WORKSPACE is set."
)
REST = "\nMore does not fit: see the logs.\n"
FAILURES = frozenset("failed crashed timeout interrupted blocked unrunnable".split())
# What an event must have, by its kind, to be of use here.
NEEDED: Mapping[str, FrozenSet[str]] = {
    "run_start": frozenset(["time", "directory"]),
    "test_start": frozenset("time label attempt log gpus".split()),
    "test_end": frozenset("time label attempt outcome status signal seconds".split()),
    "run_end": frozenset(["time", "exit"]),
}
# What some values are, where they are there.
KINDS: Mapping[str, Any] = {
    **dict.fromkeys("label log outcome directory".split(), str),
    **dict.fromkeys("reason said cause".split(), (str, type(None))),
    "attempt": int,
    "gpus": list,
}
ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"

Event = Mapping[str, Any]


def check(event: Event) -> None:
    """Raises KeyError, TypeError, ValueError or OverflowError for an event that no runner has written."""
    if not NEEDED[event["event"]] <= event.keys():
        raise KeyError("it lacks something")
    if not all(isinstance(value, KINDS.get(key, object)) for key, value in event.items()):
        raise TypeError("no such value")
    if not 0 <= event["time"] + event.get("seconds", 0.0) <= LARGEST:
        raise ValueError("no time")


def read_run(path: str) -> List[Event]:
    """The events of the last run in a journal. A line that is torn or odd costs only itself. Raises OSError."""
    runs: Dict[str, List[Event]] = collections.defaultdict(list)
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line[max(line.rfind('{"event"'), 0) :])
                check(event)
                runs[event["run"]].append(event)
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                continue
    return next(reversed(runs.values()), [])


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


def told(end: Event) -> str:
    """`failed, exit 1: assert 2 == 3`: how a test ended, and why."""
    why = end.get("reason") or end.get("said") or end.get("cause") or ""
    return ": ".join(filter(None, [verdict(end), why]))


def failures(ends: Mapping[str, Event]) -> Dict[str, Event]:
    """The ends of the failed tests, by label."""
    return {label: end for label, end in ends.items() if end["outcome"] in FAILURES}


def other_commit(run: Iterable[Event]) -> str:
    """The commit of a run, if it is not the job's: the journal is from a cache, and no run has begun in this job."""
    ours = os.environ.get("GITHUB_SHA", "")
    for start in of_kind(run, "run_start"):
        commit: str = start.get("commit") or ours
        if ours and commit != ours:
            return commit
    return ""


def title(run: Sequence[Event], ends: Mapping[str, Event]) -> str:
    """How many tests had which outcome, in which time, and how the run ended."""
    counts = collections.Counter(end["outcome"] for end in ends.values())
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    seconds = run[-1]["time"] - run[0]["time"]
    code = "no end in the journal"
    for end in of_kind(run, "run_end"):
        code = f"exit code {end['exit']}"
    tests = "1 test" if len(ends) == 1 else f"{len(ends)} tests"
    return f"{tests} in {seconds:.1f}s: {outcomes or 'none'} ({code})"


def plain(text: str) -> str:
    """A text as it stands, in Markdown or in HTML."""
    return html.escape(text, quote=False).translate(MARKUP)


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


def logs_of(run: Sequence[Event], ends: Iterable[str], folder: str) -> Dict[str, str]:
    """The logs of the tests that have run, by label; they lie in this folder now.

    A script that failed by itself has one, too, in its own name, and no start in the journal. Of a test that was split
    the parts have started, and all of it has the log beside the folder of theirs; but what failed first tells more.
    """
    logs = {label: f"{os.path.basename(label)}.log" for label in ends}
    starts = of_kind(run, "test_start")
    last = {start["label"]: start["attempt"] for start in starts}
    bad = {
        (end["label"], end["attempt"])
        for end in of_kind(run, "test_end")
        if end["outcome"] in FAILURES
    }
    first_bad: Dict[str, str] = {}
    for start in starts:
        log, is_part = re.subn(r"\.parts/[^/]*$", ".log", start["log"])
        label, attempt = start["label"], start["attempt"]
        whole = re.sub(PART, "", label) if is_part else label
        logs[whole] = os.path.basename(log)
        if is_part and (label, attempt) in bad:
            own = "/".join(start["log"].split("/")[-2:])
            if attempt != last[label]:  # it has another name since
                own = re.sub(r"\.log$", f".attempt{attempt}.log", own)
            first_bad.setdefault(whole, own)
    found = [*logs.items(), *first_bad.items()]
    paths = [(label, os.path.join(folder, name)) for label, name in found]
    return {label: path for label, path in paths if os.path.isfile(path)}


def failed(run: Sequence[Event], ends: Mapping[str, Event], folder: str) -> Iterator[str]:
    """Each failed test, with the end of its log folded away."""
    logs = logs_of(run, ends, folder)
    for label, end in failures(ends).items():
        said = plain(f"{label}: {told(end)}")
        if label in logs and end["status"] is not None:
            tail = fenced(tail_of(logs[label]))
            yield f"<details><summary>{said}</summary>\n\n{tail}\n</details>\n\n"
        else:
            yield f"{said}\n\n"


def named(ends: Mapping[str, Event]) -> Iterator[str]:
    """What was flaky, what a pass says besides, and what took longest."""
    flaky = [label for label, end in ends.items() if end["outcome"] == "flaky"]
    if flaky:
        yield f"Flaky: {plain(', '.join(flaky))}\n\n"
    for label, end in ends.items():
        if end["outcome"] == "passed" and end.get("reason"):
            yield f"{plain(told(end))}: {plain(label)}\n\n"
    ran = [label for label, end in ends.items() if end["seconds"]]
    slowest = sorted(ran, key=lambda label: -ends[label]["seconds"])[:SLOWEST]
    if slowest:
        said = ", ".join(f"{label} {ends[label]['seconds']:.1f}s" for label in slowest)
        yield f"Slowest: {plain(said)}\n\n"


def clock(seconds: int) -> str:
    """Seconds since a run began as a time that Mermaid shows alike everywhere: `X`, since 1970, is by a local clock."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(CHART_START + seconds))


def chart(run: Sequence[Event]) -> str:
    """What ran where and when, in the words of Mermaid, which GitHub draws: the longest attempts."""
    starts = {(start["label"], start["attempt"]): start for start in of_kind(run, "test_start")}
    ran = [
        (starts[key], end)
        for end in of_kind(run, "test_end")
        for key in [(end["label"], end["attempt"])]
        if key in starts
    ]
    bars = [
        (place, start, end)
        for start, end in sorted(ran, key=lambda pair: -pair[1]["seconds"])
        for place in [f"GPU {token}" for token in start["gpus"]] or ["CPU"]
    ]
    lanes: Dict[str, str] = collections.defaultdict(str)
    for place, start, end in sorted(bars[:BARS], key=lambda bar: bar[1]["time"]):
        begin = int(start["time"] - run[0]["time"])
        stop = begin + max(1, round(end["seconds"]))
        name = UNSEEN + re.sub(r"[^\w ./=-]", " ", start["label"])
        mark = "crit, " * (end["outcome"] in FAILURES)
        lanes[place] += f"    {name} :{mark}{clock(begin)}, {clock(stop)}\n"
    if not lanes:
        return ""
    in_order = sorted(lanes, key=lambda place: (len(place), place))  # GPU 2 before GPU 10
    sections = "".join(f"  section {place}\n{lanes[place]}" for place in in_order)
    head = "dateFormat YYYY-MM-DDTHH:mm:ss\n  axisFormat %H:%M:%S\n"
    return f"```mermaid\ngantt\n  {head}{sections}```\n"


def ends_of(run: Iterable[Event]) -> Dict[str, Event]:
    """How each test has ended, by label: the last attempt counts, and all of a test that was split.

    Where that has no end, as the run was killed, its parts that failed tell of it.
    """
    ends = {end["label"]: end for end in of_kind(run, "test_end")}
    for label, end in list(ends.items()):
        whole, is_part = re.subn(PART, "", label)
        is_told = whole in ends or end["outcome"] not in FAILURES
        if is_part and is_told and "origin" in end:
            del ends[label]
    return ends


def page_of(run: Sequence[Event], folder: str) -> Iterator[str]:
    """The parts of the page of a run whose logs are in a folder."""
    ends = ends_of(run)
    yield f"### {plain(title(run, ends))}\n\n"
    yield from named(ends)
    yield from failed(run, ends, folder)
    yield chart(run)


def place_of(tail: str, directory: str, top: str) -> str:
    """`file=tests/test_x.py,line=12,`, from the end of the log of a test that ran in this directory.

    Pytest ends a traceback with `tests/test_x.py:12: AssertionError`. It is empty where there is no such file: a list
    may have changed its directory, which the journal does not tell.
    """
    places = re.findall(r"(?m)^([^\s:]+):(\d+): (?:in )?\w+$", tail)
    for name, line in places[-1:]:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            shown = os.path.relpath(path, os.path.realpath(top)).translate(PROPERTY_ESCAPES)
            return f"file={shown},line={line},"
    return ""


def annotated(run: Sequence[Event], folder: str, top: str) -> Iterator[str]:
    """GitHub's commands that annotate the first failed tests, with places below the folder of the checkout."""
    ends = ends_of(run)
    logs = logs_of(run, ends, folder)
    directory = ""
    for start in of_kind(run, "run_start"):
        directory = start["directory"]
    for label, end in list(failures(ends).items())[:ANNOTATIONS]:
        place = ""
        if label in logs:
            place = place_of(tail_of(logs[label]), directory, top)
        name = label.translate(PROPERTY_ESCAPES)
        yield f"::error {place}title={name}::{told(end).translate(TEXT_ESCAPES)}"


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
    parser = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION)
    parser.add_argument(
        "journal",
        nargs="?",
        default=os.path.join("logs", "run_tests.jsonl"),
        metavar="JOURNAL",
        help="of run_tests.py, beside the logs of its last run, or its folder; default: logs/run_tests.jsonl",
    )
    path = parser.parse_args(argv).journal
    if os.path.isdir(path):
        path = os.path.join(path, "run_tests.jsonl")
    try:
        run = read_run(path)
    except OSError as error:
        print(f"{PROGRAM}: {path}: cannot be read ({error.strerror})", file=sys.stderr)
        return EXIT_USAGE
    if not run:
        print(f"{PROGRAM}: {path}: no line of it is a journal's", file=sys.stderr)
        return EXIT_USAGE
    commit = other_commit(run)
    if commit:
        how = f"its last run was of commit {commit}; to show that, set GITHUB_SHA to it for this command"
        print(f"{PROGRAM}: {path}: {how}", file=sys.stderr)
        return EXIT_USAGE
    folder = os.path.dirname(path)
    try:
        with open(1, "wb", closefd=False) as file:
            file.write(fitting(page_of(run, folder)))
    except BrokenPipeError:
        pass  # its reader has seen enough
    except OSError as error:
        print(f"{PROGRAM}: the page cannot be written ({error.strerror})", file=sys.stderr)
        return EXIT_MACHINE
    top = os.environ.get("GITHUB_WORKSPACE")
    if top:
        for line in annotated(run, folder, top):
            print(line, file=sys.stderr)
    return EXIT_OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
