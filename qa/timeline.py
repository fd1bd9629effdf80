#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What each GPU did in a run of run_tests.py, what it stood idle for, and what the tests waited for: one page.

    python3 qa/timeline.py logs/run_tests.jsonl              # its last run; writes logs/timeline.html
    python3 qa/timeline.py nightly.jsonl --list              # which runs the journal has
    python3 qa/timeline.py nightly.jsonl --run -2 --html timeline.html --trace trace.json --svg lanes.svg
    python3 qa/timeline.py shard*/run_tests.jsonl --html timeline.html    # each journal is a machine

The page needs nothing else: no network, and scripts only to sort, filter and zoom. `--trace` is for
https://ui.perfetto.dev and chrome://tracing, `--svg` a picture of the lanes for a README. All of it comes from the
journal alone; what a test waited for follows from the ends of the tests before it, and from its locks, `after` and
barrier, which its last line in the journal names.

Exit codes: 0 done; 2 usage, or a journal that is none; 3 a file cannot be written.

The file reads as data flows: constants, model, read, waits, idle time, critical path, lanes, page, picture, trace,
command line.
"""

from __future__ import annotations

import argparse
import base64
import bisect
import collections
import contextlib
import errno
import hashlib
import html
import itertools
import json
import math
import os
import re
import sys
import time
import unicodedata
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

# ---------------------------------------------------------------------------------------------------
# Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

PROGRAM = "timeline.py"
JOURNAL = "run_tests.jsonl"  # its name in a log dir
PART = r" \(part \d+ of \d+\)$"  # the end of the label of a part of a test that was split
PART_LOG = re.compile(r"\.parts/\d+\.log$")  # the log of a part
BLINK_S = 0.05  # shorter waits and sweeps are the runner's own pace, and nobody can see them
LARGEST = 1e12  # seconds since 1970, or of a test: more is a mistake
UNITS = 100_000  # of the time axis, from its start to its end
STEPS = 1_000  # of a graph: more would not be seen, and make the page slow
TICKS = 6  # on the time axis: their texts have room on a phone
SLOWEST = 10  # tests in the table
SHOWN = 5  # names in one line
TINY = 0.004  # of the axis: a bar so short has no edge, which would hide it
LABELLED = 0.03  # of the axis: a bar so long has room for some of its label
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_INTERRUPTED = 0, 2, 3, 130

OUTCOMES = (
    "passed",
    "flaky",
    "failed",
    "crashed",
    "timeout",
    "interrupted",
    "running",  # our own word: the journal has no end of it
    "blocked",
    "unrunnable",
    "not run",
    "deferred",
)
FAILURES = frozenset(["failed", "crashed", "timeout"])

# What a test can wait for.
WAITS = {
    "gpu": "a GPU",
    "wide": "several GPUs at once",
    "cpu": "a CPU slot",
    "turn": "its turn, as tests ran one by one",
    "lock": "a lock",
    "after": "the tests in its after",
    "barrier": "a barrier",
    "unknown": "what the journal does not say, as it has no end of them",
}

# Why a GPU is idle, the first that applies.
IDLE = {
    "lost": "It was in quarantine.",
    "handover": "The runner itself: its start, and the moments between two tests; or another runner had the GPU.",
    "turn": "The tests that waited ran one by one: there was one GPU, or none.",
    "wide": "The tests that waited needed more GPUs at once, or a larger share of one, than were free.",
    "lock": "The tests that waited needed a lock that a running test held.",
    "after": "The tests that waited were to run after others, which had not ended.",
    "barrier": "The tests that waited stood below a barrier; above it tests had not ended.",
    "script": "The script had not come to its next test.",
    "unknown": "Tests waited of which the journal has no end, and so does not say for what.",
    "tail": "No test was left to start: the last ones had not ended.",
}

# ---------------------------------------------------------------------------------------------------
# Model: what the sections hand to each other. Times are seconds since 1970, unless they say otherwise.
# ---------------------------------------------------------------------------------------------------


class UsageError(Exception):
    """A mistake in the command line or the input. Exit code 2."""


class MachineError(Exception):
    """A file cannot be written. Exit code 3."""


class Start(NamedTuple):
    """A `test_start` of the journal. `order` is the number of its line: ends come before the starts they allow."""

    order: int
    time: float
    label: str
    attempt: int
    gpus: Tuple[str, ...]
    log: str


class End(NamedTuple):
    """A `test_end` of the journal."""

    order: int
    time: float
    label: str
    attempt: int
    outcome: str
    verdict: str  # `failed, exit 1`
    has_run: bool
    seconds: float
    memory: float  # seconds in which its GPUs gave their memory back
    need: float  # GPUs: 0, a fraction below 1, a whole number, infinity for all
    why: str
    lock: Tuple[str, ...]
    after: Tuple[str, ...]
    barrier: int


class Attempt(NamedTuple):
    """One attempt of a test: it runs, what it left is swept, its GPUs give their memory back."""

    number: int
    began: float
    ended: float
    swept: float
    released: float
    outcome: str
    verdict: str
    why: str
    gpus: Tuple[str, ...]
    log: str
    order: int  # line of its start
    closed: float  # line of its end, infinity if it has none

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Test(NamedTuple):
    """A test with its attempts, none if it did not run. Labels are unique in a run."""

    label: str
    attempts: Tuple[Attempt, ...]
    outcome: str
    verdict: str
    why: str
    need: float
    lock: Tuple[str, ...]
    after: Tuple[str, ...]
    barrier: int  # number of barriers above it, -1 if it has no end, which would say so
    ended: float  # when it had its outcome

    @property
    def seconds(self) -> float:
        """Of its longest attempt."""
        return max((attempt.seconds for attempt in self.attempts), default=0.0)


class Run(NamedTuple):
    """One run. Without GPUs, `gpus` is empty."""

    name: str
    path: str
    lists: Tuple[str, ...]
    shard: str
    commit: str
    start: float
    end: float
    gpus: Tuple[str, ...]
    tests: List[Test]  # of one that was split its parts
    outcomes: Mapping[str, int]  # how many tests have which; one that was split is one
    unseen: int  # selected tests of which the journal says nothing
    is_script: bool
    has_ended: bool
    lost: Mapping[str, str]  # GPUs in quarantine, and why

    @property
    def attempts(self) -> List[Tuple[Test, Attempt]]:
        """In the order of their starts."""
        both = [(test, attempt) for test in self.tests for attempt in test.attempts]
        return sorted(both, key=lambda pair: pair[1].order)

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Wait(NamedTuple):
    """A test waits, for something in WAITS.

    `on` is the label of the test that ends the wait, if one does. While another test holds one of `locks`, the wait
    is one for these.
    """

    kind: str
    start: float
    end: float
    on: str = ""
    locks: Tuple[str, ...] = ()


Span = Tuple[float, float]
Spent = Dict[Tuple[str, str], float]  # seconds, by the kind of wait and what it was for


class Held(NamedTuple):
    """When any of some locks is held: spans in order, and how many seconds they have up to the start of each."""

    spans: List[Span]
    sums: List[float]

    def until(self, when: float) -> float:
        """The seconds up to a time."""
        at = bisect.bisect_left(self.spans, (when, when)) - 1
        if at < 0:
            return 0.0
        start, end = self.spans[at]
        return self.sums[at] + min(end, when) - start

    def is_just_free(self, when: float) -> bool:
        """Whether one has been held until shortly before some time."""
        soon = when - 2 * BLINK_S
        return self.until(when) - self.until(soon) >= BLINK_S / 2


class Waits(NamedTuple):
    """What the tests of a run waited for."""

    by_label: Dict[str, List[Wait]]  # in the order of time
    held: Dict[Tuple[str, ...], Held]  # by the locks of tests
    spent: Dict[str, Spent]  # by label


class Moment(NamedTuple):
    """What is so from one time to another: GPUs (or slots) by what they do, tests by what they wait for."""

    start: float
    end: float
    running: float
    sweeping: float
    idle: Mapping[str, float]  # by a reason in IDLE
    waiting: Mapping[str, float]  # by a kind in WAITS


class Link(NamedTuple):
    """One attempt of the critical path, and why it began when it did."""

    test: Test
    attempt: Attempt
    why: str


class Lane(NamedTuple):
    """A GPU, a part of one, or a CPU slot, with attempts that do not overlap."""

    name: str
    attempts: List[Tuple[Test, Attempt]]


class Story(NamedTuple):
    """A run with all that is derived from it."""

    run: Run
    waits: Waits
    moments: List[Moment]
    path: List[Link]
    lanes: List[Lane]
    shift: float  # seconds to add to its times, so that the axis starts at 0


# ---------------------------------------------------------------------------------------------------
# Read: journals to Runs.
# ---------------------------------------------------------------------------------------------------

RUN_ID = re.compile(rb'"run": ?"([^"\\]*)"')
Line = Tuple[int, bytes]
# What an event that no runner has written raises.
NO_EVENT = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class Journal(NamedTuple):
    """The lines of a file, with their numbers, by run in the order in which these began."""

    path: str
    runs: Dict[str, List[Line]]


def read_journal(path: str) -> Journal:
    """The lines of a journal, of a log dir's, or of standard input for `-`. Raises UsageError."""
    if path != "-" and os.path.isdir(path):
        path = os.path.join(path, JOURNAL)
    runs: Dict[str, List[Line]] = {}
    try:
        if path == "-" and sys.stdin is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if path == "-":
            lines = sys.stdin.buffer.readlines()
        else:
            with open(path, "rb") as file:
                lines = file.readlines()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); name a journal of run_tests.py"
        ) from None
    for number, line in enumerate(lines, 1):
        line = line[max(0, line.rfind(b'{"event"')) :]  # a torn line may stand before ours
        found = RUN_ID.search(line)
        if found:
            runs.setdefault(found.group(1).decode("utf-8", "replace"), []).append(
                (number, line)
            )
    if not runs:
        raise UsageError(
            f"{path}: no run of run_tests.py in it; name its journal, such as logs/{JOURNAL}"
        )
    return Journal(path, runs)


def file_of(path: str) -> Any:
    """What is the same for all names of a file, and for links to it; `-` is no file."""
    if path == "-":
        return path
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    with contextlib.suppress(OSError):  # the folder that it starts from may be gone
        return os.path.realpath(path)
    return path


def number_of(value: Any) -> float:
    """A number that a runner may have written. Raises ValueError or TypeError."""
    if isinstance(value, bool):
        raise TypeError("no number")
    number = float(value + 0.0)
    if not 0 <= number <= LARGEST:
        raise ValueError("no time, or none that a runner has written")
    return number


def text_of(value: Any) -> str:
    """Text, empty for null. Raises TypeError."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def texts_of(value: Any) -> Tuple[str, ...]:
    """A list of texts, empty for null. Raises TypeError."""
    if value is not None and not isinstance(value, list):
        raise TypeError("no list")
    return tuple(map(text_of, value or ()))


def need_of(value: Any) -> float:
    """The GPUs that a test needs. Raises ValueError or TypeError."""
    if value == "all":
        return math.inf
    return number_of(value)


def verdict_of(record: Mapping[str, Any]) -> str:
    """`failed, exit 1`, `crashed (SIGSEGV)`, `passed`."""
    outcome = text_of(record["outcome"])
    if outcome == "crashed" and record.get("signal"):
        return f"crashed ({text_of(record['signal'])})"
    if outcome == "failed" and record.get("status") is not None:
        return f"failed, exit {number_of(record['status']):.0f}"
    return outcome


def read_start(order: int, record: Mapping[str, Any]) -> Start:
    """A `test_start`. Raises KeyError, TypeError or ValueError for what is none."""
    return Start(
        order,
        number_of(record["time"]),
        text_of(record["label"]),
        int(number_of(record["attempt"])),
        texts_of(record["gpus"]),
        text_of(record.get("log")),
    )


def read_end(order: int, record: Mapping[str, Any]) -> End:
    """A `test_end`. Raises KeyError, TypeError or ValueError for what is none."""
    why = [text_of(record.get("cause")), text_of(record.get("reason"))]
    leaked = texts_of(record.get("leaked"))
    if leaked:
        why.append(f"left behind: {first_of(leaked)}")
    return End(
        order,
        number_of(record["time"]),
        text_of(record["label"]),
        int(number_of(record["attempt"])),
        text_of(record["outcome"]),
        verdict_of(record),
        record.get("status") is not None,
        number_of(record["seconds"]),
        number_of(record.get("memory", 0)),
        need_of(record.get("need", 1)),
        "; ".join(dict.fromkeys(filter(None, why))),
        texts_of(record.get("lock")),
        texts_of(record.get("after")),
        int(number_of(record.get("barrier", 0))),
    )


class Draft:
    """What is known of a run while its lines are read."""

    def __init__(self) -> None:
        self.first: Dict[str, Any] = {}  # its run_start
        self.last: Dict[str, Any] = {}  # its run_end
        self.times: List[float] = []
        self.starts: Dict[str, Dict[int, Start]] = {}  # by label and attempt
        self.ends: Dict[str, Dict[int, End]] = {}
        # By the label of a test that was split, those of its parts; the values mean nothing.
        self.parts: Dict[str, Dict[str, None]] = collections.defaultdict(dict)

    def add(self, order: int, record: Dict[str, Any]) -> None:
        """Take in an event. Raises KeyError, TypeError, ValueError, AttributeError for one that is none."""
        event = record["event"]
        now = number_of(record["time"])
        if event == "run_start":
            for name in ("gpus", "lists", "selected"):
                record[name] = texts_of(record[name])
            self.first = record
        elif event == "run_end":
            number_of(record["exit"])
            record["quarantined"].items()
            self.last = record
        elif event == "test_start":
            start = read_start(order, record)
            self.starts.setdefault(start.label, {})[start.attempt] = start
            self.note_part(start.label, PART_LOG.search(start.log))
        elif event == "test_end":
            end = read_end(order, record)
            self.ends.setdefault(end.label, {})[end.attempt] = end
            self.note_part(end.label, "origin" in record)
        self.times.append(now)

    def note_part(self, label: str, has_origin: Any) -> None:
        """Take in that a label is that of a part of a test, if it ends so and has that origin, or that it is none."""
        whole, is_part = re.subn(PART, "", label)
        if is_part and has_origin:
            self.parts[whole][label] = None
        elif is_part and self.parts.get(whole, {}).keys() == {label}:
            del self.parts[whole]

    def labels(self) -> List[str]:
        """In the order in which the tests began, or ended where they did not run."""
        first: Dict[str, int] = {}
        for known in (self.starts, self.ends):
            for label, events in known.items():
                first.setdefault(label, min(event.order for event in events.values()))
        return sorted(first, key=lambda label: first[label])

    def parts_of(self, label: str) -> List[str]:
        """The parts of a test, which have run in its place; itself if it was not split."""
        return [*self.parts.get(label, [label])]

    def test(self, label: str, run_end: float) -> Test:
        """A test from its events."""
        starts = self.starts.get(label, {})
        ends = self.ends.get(label, {})
        attempts = [
            attempt_of(start, ends.get(number), run_end)
            for number, start in sorted(starts.items())
        ]
        last = ends.get(max(ends, default=0))
        if last is None:  # it still runs, or ran when the run was killed
            word = "running"
            return Test(label, tuple(attempts), word, word, "", 1.0, (), (), -1, run_end)
        outcome, verdict, ended = last.outcome, last.verdict, last.time
        if attempts and attempts[-1].number > last.attempt:
            outcome = verdict = "running"
            ended = run_end
        return Test(
            label,
            tuple(attempts),
            outcome,
            verdict,
            last.why,
            last.need,
            last.lock,
            tuple(itertools.chain.from_iterable(map(self.parts_of, last.after))),
            last.barrier,
            ended,
        )


def attempt_of(start: Start, end: Optional[End], run_end: float) -> Attempt:
    """An attempt from its events. A clock that was set back must not make it end before it began."""
    began = start.time
    if end is None:
        over = max(began, run_end)
        times = (over, over, over)
        said = ("running", "running", "")
        closed = math.inf
    else:
        released = max(end.time, began)
        ended = min(began + end.seconds, released)
        swept = max(ended, released - end.memory)
        if released - ended < BLINK_S:
            swept = ended = released
        times = (ended, swept, released)
        said = (end.outcome, end.verdict, end.why)
        closed = end.order
    return Attempt(
        start.attempt, began, *times, *said, start.gpus, start.log, start.order, closed
    )


def make_run(journal: Journal, name: str) -> Tuple[Run, List[int]]:
    """A run of a journal, and the numbers of the lines in it that could not be read. Raises UsageError."""
    draft = Draft()
    torn = []
    for order, line in journal.runs[name]:
        try:
            draft.add(order, json.loads(line))
        except NO_EVENT:
            torn.append(order)
    if not draft.times:
        raise UsageError(
            f"{journal.path}:{torn[0]}: nothing of run {name} can be read; is the journal whole?"
        )
    first, last = draft.first, draft.last
    begun = [start for starts in draft.starts.values() for start in starts.values()]
    end = max(draft.times)
    # A test that was split has no start: its parts have run. While they do, it has no end.
    parts = {part for own in draft.parts.values() for part in own}
    every = [draft.test(label, end) for label in draft.labels()]
    running = [draft.test(whole, end) for whole in draft.parts.keys() - draft.ends.keys()]
    outcomes = tally([*(test for test in every if test.label not in parts), *running])
    gpus = dict.fromkeys(first.get("gpus", ()))
    for start in begun:
        gpus.update(dict.fromkeys(start.gpus))
    selected = len(first.get("selected", ()))
    chosen = sum(outcomes.values()) - outcomes.get("deferred", 0)
    run = Run(
        name,
        journal.path,
        tuple(first.get("lists", ())),
        str(first.get("shard") or ""),
        str(first.get("commit") or ""),
        min(draft.times),
        end,
        tuple(gpus),
        [test for test in every if test.label not in draft.parts],
        outcomes,
        max(0, selected - chosen),
        bool(first) and not selected and bool(begun),
        bool(last),
        {str(token): str(why) for token, why in last.get("quarantined", {}).items()},
    )
    return run, torn


def find_run(journal: Journal, wanted: str) -> str:
    """The id of a run: by its number from 1, or from -1 back, or the start of its id. Raises UsageError."""
    names = list(journal.runs)
    if re.fullmatch(r"-?\d{1,9}", wanted):
        number = int(wanted)
        if 1 <= number <= len(names):
            return names[number - 1]
        if -len(names) <= number <= -1:
            return names[number]
    found = [name for name in names if name.startswith(wanted)]
    if len(found) == 1 or wanted in found:
        return found[0]
    problem = "several runs begin so" if found else "no such run"
    raise UsageError(
        f"--run {wanted}: {problem} in {journal.path}, which has {len(names)}; --list shows them"
    )


# ---------------------------------------------------------------------------------------------------
# Waits: what each test waited for, and when.
# ---------------------------------------------------------------------------------------------------


def merged(spans: Iterable[Span], gap: float = BLINK_S) -> List[Span]:
    """Spans of time in order, as one where no more than so many seconds are between them."""
    whole: List[Span] = []
    for start, end in sorted(spans):
        if whole and start - whole[-1][1] <= gap:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((start, end))
    return whole


def held_by(spans: Iterable[Span]) -> Held:
    """When locks are held, from the spans of their holders."""
    whole = merged(spans)
    sums = itertools.accumulate((end - start for start, end in whole), initial=0.0)
    return Held(whole, list(sums)[:-1])


def barriers_of(tests: Iterable[Test]) -> List[Tuple[int, Test]]:
    """For each barrier that has tests above it, the test that ends last of these; barriers in order."""
    last: Dict[int, Test] = {}
    for test in tests:
        if test.barrier < 0:
            continue
        known = last.get(test.barrier)
        if known is None or known.ended < test.ended:
            last[test.barrier] = test
    found: List[Tuple[int, Test]] = []
    for barrier in sorted(last):
        latest = last[barrier]
        if found and found[-1][1].ended > latest.ended:
            latest = found[-1][1]
        found.append((barrier, latest))
    return found


class Waiting:
    """Finds what the tests of a run waited for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_label = {test.label: test for test in run.tests}
        self.barriers = barriers_of(run.tests)
        self.barrier_numbers = [number for number, _ in self.barriers]
        holders: Dict[str, List[Span]] = {}
        for test, attempt in run.attempts:
            for lock in test.lock:
                holders.setdefault(lock, []).append((attempt.began, attempt.released))
        self.held = {
            locks: held_by(
                itertools.chain.from_iterable(holders.get(lock, ()) for lock in locks)
            )
            for locks in {test.lock for test in run.tests if test.lock}
        }
        self.full = Fullness(run)
        self.is_one_by_one = is_one_by_one(run)

    def kind_of_room(self, test: Test) -> str:
        """What kind of room a test needs. Where nothing is known of its locks, `after` and barrier, it may be these."""
        if test.barrier < 0:
            return "unknown"
        if self.is_one_by_one or (test.need and not self.run.gpus):
            return "turn"
        if test.need == 0:
            return "cpu"
        if test.need > 1:
            return "wide"
        return "gpu"

    def for_others(self, test: Test, begin: float) -> Iterator[Wait]:
        """The waits before its first start for other tests' ends: above its barrier, and in its `after`."""
        above = bisect.bisect_left(self.barrier_numbers, test.barrier)
        now = self.run.start
        if above:
            opener = self.barriers[above - 1][1]
            yield Wait("barrier", now, min(opener.ended, begin), opener.label)
            now = max(now, opener.ended)
        leaders = [self.by_label[label] for label in test.after if label in self.by_label]
        if leaders:
            last = max(leaders, key=lambda leader: leader.ended)
            yield Wait("after", now, min(last.ended, begin), last.label)

    def for_room(self, test: Test, start: float, end: float) -> Wait:
        """The wait between two times for room, and the test's locks."""
        return Wait(self.kind_of_room(test), start, end, "", test.lock)

    def of(self, test: Test) -> List[Wait]:
        """All waits of a test, without those that nobody can see."""
        if test.outcome in ("deferred", "unrunnable"):
            return []
        if not test.attempts and self.run.is_script:  # bash ran it itself
            return []
        begin = test.ended
        if test.attempts:
            begin = test.attempts[0].began
        found = list(self.for_others(test, begin))
        ready = max([self.run.start, *(wait.end for wait in found)])
        if self.run.is_script and self.is_one_by_one:
            ready = begin  # it waits for each
        elif self.run.is_script:
            ready = self.full.since(test, begin)
        found.append(self.for_room(test, ready, begin))
        for before, following in zip(test.attempts, test.attempts[1:]):
            found.append(self.for_room(test, before.released, following.began))
        return [wait for wait in found if wait.end - wait.start >= BLINK_S]

    def spent(self, waits: Iterable[Wait]) -> Spent:
        """The seconds of a test's waits, by kind and what it waited for."""
        total: Dict[Tuple[str, str], float] = collections.defaultdict(float)
        for wait in waits:
            seconds = wait.end - wait.start
            if wait.locks:
                held = self.held[wait.locks]
                locked = held.until(wait.end) - held.until(wait.start)
                total["lock", ", ".join(wait.locks)] += locked
                seconds -= locked
            total[wait.kind, wait.on] += seconds
        return {what: seconds for what, seconds in total.items() if seconds >= BLINK_S}


class Fullness:
    """When a run had no room for a test: how long the tests of a script have waited, the journal does not say."""

    def __init__(self, run: Run) -> None:
        changes: Dict[float, float] = collections.defaultdict(float)
        for test, attempt in run.attempts:
            changes[attempt.began] += weight_of(test, attempt, run)
            changes[attempt.released] -= weight_of(test, attempt, run)
        self.times = sorted(changes)
        self.busy = list(itertools.accumulate(changes[at] for at in self.times))
        self.size = capacity_of(run)
        # By need: for each time the last before it, or itself, from which on there was room for that need.
        self.open: Dict[float, List[int]] = {}

    def openings(self, need: float) -> List[int]:
        """For each of the times the number of the last one from which on there was room for a need; -1: none."""
        if need not in self.open:
            last = -1
            self.open[need] = []
            for number, (start, end) in enumerate(zip(self.times, self.times[1:])):
                if self.size - self.busy[number] >= need - 1e-9 and end - start >= BLINK_S:
                    last = number
                self.open[need].append(last)
        return self.open[need]

    def since(self, test: Test, begin: float) -> float:
        """Since when there had been no room for a test that began at some time: before that it was not there."""
        need = min(test.need, float(self.size))
        at = bisect.bisect_left(self.times, begin) - 1
        if at < 0 or need <= 0:
            return begin
        return self.times[self.openings(need)[at] + 1]


def weight_of(test: Test, attempt: Attempt, run: Run) -> float:
    """The GPUs that an attempt holds, or slots on a machine without GPUs."""
    if not run.gpus:
        return 1.0
    if 0 < test.need < 1:
        return test.need
    return float(len(attempt.gpus))


def capacity_of(run: Run) -> int:
    """How many GPUs a run has; without any, how many tests it ran at once."""
    if run.gpus:
        return len(run.gpus)
    return len(tracks_of(run).get("", []))


def is_one_by_one(run: Run) -> bool:
    """Whether each attempt had the machine to itself: so it is with one GPU, or none."""
    attempts = run.attempts
    both = zip(attempts, attempts[1:])
    return len(run.gpus) <= 1 and all(
        one.released <= other.began for (_, one), (_, other) in both
    )


def waits_of(run: Run) -> Waits:
    """What each test of a run waited for."""
    waiting = Waiting(run)
    by_label = {test.label: waiting.of(test) for test in run.tests}
    spent = {label: waiting.spent(waits) for label, waits in by_label.items()}
    return Waits(by_label, waiting.held, spent)


# ---------------------------------------------------------------------------------------------------
# Idle time: at each moment, what the GPUs do, what the tests wait for, and so why a GPU has nothing to do.
# ---------------------------------------------------------------------------------------------------

# Time; `count`, `wait` or `held`; what of these; by how much.
Change = Tuple[float, str, Any, float]


class Now:
    """What is so at a moment, while one goes through the changes in the order of time."""

    def __init__(self) -> None:
        self.counts: Dict[str, float] = collections.defaultdict(float)
        # Of the tests that wait for room and have locks: how many, by locks and kind of room.
        self.queues: Dict[Tuple[str, ...], Dict[str, float]] = {}
        self.held: Dict[Tuple[str, ...], float] = collections.defaultdict(float)

    def change(self, what: str, which: Any, amount: float) -> None:
        """Take in a change."""
        if what == "count":
            self.counts[which] += amount
        elif what == "held":
            self.held[which] += amount
            for kind, number in self.queues.get(which, {}).items():
                self.counts["lock"] += amount * number
                self.counts[kind] -= amount * number
        else:
            kind, locks = which
            queue = self.queues.setdefault(locks, {})
            queue[kind] = queue.get(kind, 0.0) + amount
            if self.held[locks]:
                kind = "lock"
            self.counts[kind] += amount


def changes_of(run: Run, waits: Waits) -> Iterator[Change]:
    """All changes of what is so in a run, in no order."""
    for start, end, name, amount in states_of(run):
        yield start, "count", name, amount
        yield end, "count", name, -amount
    for wait in itertools.chain.from_iterable(waits.by_label.values()):
        yield wait.start, "wait", (wait.kind, wait.locks), 1.0
        yield wait.end, "wait", (wait.kind, wait.locks), -1.0
    for locks, held in waits.held.items():
        for start, end in held.spans:
            yield start, "held", locks, 1.0
            yield end, "held", locks, -1.0


def states_of(run: Run) -> Iterator[Tuple[float, float, str, float]]:
    """What GPUs and attempts do: from when to when, what, how many."""
    for test, attempt in run.attempts:
        weight = weight_of(test, attempt, run)
        yield attempt.began, attempt.released, "attempts", 1.0
        yield attempt.began, attempt.ended, "running", weight
        yield attempt.ended, attempt.released, "sweeping", weight
    held: Dict[str, List[Span]] = {}
    for _, attempt in run.attempts:
        for token in attempt.gpus:
            held.setdefault(token, []).append((attempt.began, attempt.released))
    for spans in held.values():
        for start, end in merged(spans, 0.0):
            yield start, end, "taken", 1.0
    for token in run.lost:
        ends = [attempt.released for _, attempt in run.attempts if token in attempt.gpus]
        yield max(ends, default=run.start), run.end, "lost", 1.0
    yield run.start, run.end, "unknown", float(run.unseen)


def idle_reason(run: Run, whole: float, now: Mapping[str, float], comes_more: bool) -> str:
    """Why GPUs, or slots, have nothing to do. `whole` are wholly free; `comes_more`: a script has more tests."""
    for_one = now["gpu"]
    if not run.gpus:
        for_one = now["cpu"]
    if for_one and whole >= 1:
        return "handover"
    if now["turn"] and not now["attempts"]:
        return "handover"
    for kind in ("turn", "wide", "lock", "after", "barrier", "unknown"):
        if now[kind]:
            return kind
    if for_one:
        return "wide"  # a share of a GPU is free, and it needs more
    if comes_more:
        return "script"
    return "tail"


def moments_of(run: Run, waits: Waits) -> List[Moment]:
    """What is so in a run from each change to the next."""
    changes = sorted(changes_of(run, waits), key=lambda change: change[0])
    last_start = max((attempt.began for _, attempt in run.attempts), default=run.start)
    size = capacity_of(run)
    state = Now()
    now = state.counts
    moments: List[Moment] = []
    for (at, *change), (until, *_) in zip(changes, changes[1:]):
        state.change(*change)
        until = min(until, run.end)
        if until - at <= 0:
            continue
        waiting = {kind: round(now[kind], 6) for kind in WAITS}
        # What an attempt without an end needs is not known: it counts as whole GPUs.
        running = min(now["running"], size - now["sweeping"])
        free = size - running - now["sweeping"]
        lost = min(now["lost"], free)
        free -= lost
        idle = {"lost": lost}
        whole = size - now["lost"] - now["taken"]
        if not run.gpus:
            whole = free
        idle[idle_reason(run, whole, now, run.is_script and at < last_start)] = free
        shown = {reason: gpus for reason, gpus in idle.items() if gpus > 1e-6}
        moments.append(Moment(at, until, running, now["sweeping"], shown, waiting))
    return moments


def idle_time(moments: Iterable[Moment]) -> Dict[str, float]:
    """By reason, the GPU-seconds in which nothing was done; the longest first."""
    total: Dict[str, float] = collections.defaultdict(float)
    for moment in moments:
        for reason, gpus in moment.idle.items():
            total[reason] += gpus * (moment.end - moment.start)
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def gpu_seconds(moments: Iterable[Moment]) -> float:
    """GPU-seconds in which tests ran, or were swept."""
    return math.fsum(
        (moment.running + moment.sweeping) * (moment.end - moment.start) for moment in moments
    )


# ---------------------------------------------------------------------------------------------------
# Critical path: from the test that ended last back to the start, always to what allowed the start.
# ---------------------------------------------------------------------------------------------------


class Releases:
    """Who gave something back last before some test began: a GPU, a lock, anything."""

    def __init__(self, run: Run) -> None:
        self.by_name: Dict[str, List[Tuple[float, Test, Attempt]]] = {}
        ended = [pair for pair in run.attempts if pair[1].closed < math.inf]
        for test, attempt in sorted(ended, key=lambda pair: pair[1].closed):
            names = ["", *(f"gpu {token}" for token in attempt.gpus)]
            names += [f"lock {lock}" for lock in test.lock]
            if not attempt.gpus or math.isinf(test.need):
                names.append("cpu")
            for name in names:
                self.by_name.setdefault(name, []).append((attempt.closed, test, attempt))
        self.orders = {name: [each[0] for each in ends] for name, ends in self.by_name.items()}

    def last(self, names: Iterable[str], order: float) -> Optional[Tuple[Test, Attempt]]:
        """The last attempt that gave one of these back before a line of the journal."""
        found = []
        for name in names:
            at = bisect.bisect_left(self.orders.get(name, []), order)
            if at:
                found.append(self.by_name[name][at - 1])
        if not found:
            return None
        _, test, attempt = max(found, key=lambda each: each[0])
        return test, attempt


class PathFinder:
    """Finds why an attempt began when it did."""

    def __init__(self, run: Run, waits: Waits) -> None:
        self.run = run
        self.waits = waits
        self.by_label = {test.label: test for test in run.tests}
        self.releases = Releases(run)

    def last_wait(self, test: Test, attempt: Attempt) -> Optional[Wait]:
        """The wait that ended with the start of an attempt."""
        before = [
            wait
            for wait in self.waits.by_label[test.label]
            if wait.end <= attempt.began + BLINK_S
        ]
        if before and before[-1].end >= attempt.began - 2 * BLINK_S:
            return before[-1]
        return None

    def before(
        self, test: Test, attempt: Attempt
    ) -> Tuple[str, Optional[Tuple[Test, Attempt]]]:
        """Why an attempt began when it did, in words, and the attempt whose end allowed it, if there is one."""
        wait = self.last_wait(test, attempt)
        earlier = [each for each in test.attempts if each.number < attempt.number]
        if wait is None and earlier:
            return "the attempt before it had ended", (test, earlier[-1])
        if wait is None and self.run.is_script:
            return "the script came to it", self.releases.last([""], attempt.order)
        if wait is None:
            return "the run began", None
        if wait.kind in ("after", "barrier"):
            opener = self.by_label[wait.on]
            ended = [each for each in opener.attempts if each.closed < attempt.order]
            why = {
                "after": "it was to run after",
                "barrier": "the barrier opened at the end of",
            }
            if not ended:  # it did not run, as something else had ended
                freed = self.releases.last([""], attempt.order)
                return f"{why[wait.kind]} {wait.on}", freed
            return f"{why[wait.kind]} {wait.on}", (opener, ended[-1])
        if wait.locks and self.waits.held[wait.locks].is_just_free(attempt.began):
            names = [f"lock {lock}" for lock in wait.locks]
            why_lock = f"it got its lock, {', '.join(wait.locks)}"
            return why_lock, self.releases.last(names, attempt.order)
        names = [f"gpu {token}" for token in attempt.gpus] or ["cpu"]
        if math.isinf(test.need) or wait.kind == "turn":
            names = [""]
        freed = self.releases.last(names, attempt.order)
        if freed is None:
            return "the run began", None
        return f"{place_of(attempt)} became free", freed


def critical_path(run: Run, waits: Waits) -> List[Link]:
    """The attempts of which each began because the one before it ended, up to the one that ended last."""
    finder = PathFinder(run, waits)
    last = max(run.attempts, key=lambda pair: pair[1].released, default=None)
    path: List[Link] = []
    while last is not None:
        test, attempt = last
        why, last = finder.before(test, attempt)
        # Never in circles: lines that were sorted may have the end of an attempt before its start.
        if last is not None and max(last[1].order, last[1].closed) >= attempt.order:
            last = None
        path.append(Link(test, attempt, why))
    return path[::-1]


# ---------------------------------------------------------------------------------------------------
# Lanes: where each attempt is drawn.
# ---------------------------------------------------------------------------------------------------

Track = List[Tuple[Test, Attempt]]


def tracks_of(run: Run) -> Dict[str, List[Track]]:
    """For each GPU, and for the CPU under an empty name, as many tracks as its attempts need not to overlap."""
    tracks: Dict[str, List[Track]] = {token: [] for token in run.gpus}
    for test, attempt in sorted(run.attempts, key=lambda pair: pair[1].began):
        for token in attempt.gpus or ("",):
            known = tracks.setdefault(token, [])
            for track in known:
                if track[-1][1].released <= attempt.began:
                    track.append((test, attempt))
                    break
            else:
                known.append([(test, attempt)])
    return tracks


def lanes_of(run: Run) -> List[Lane]:
    """The lanes of a run, those of a GPU together. A GPU without tests has a lane all the same."""
    lanes = []
    for token, tracks in tracks_of(run).items():
        name = "CPU"
        if token:
            name = f"GPU {token}"
        for number, track in enumerate(tracks or [[]], 1):
            part = name
            if number > 1:
                part = f"{name} #{number}"
            lanes.append(Lane(part, track))
    return lanes


def tell(run: Run, shift: float) -> Story:
    """All that is derived from a run."""
    waits = waits_of(run)
    moments = moments_of(run, waits)
    return Story(run, waits, moments, critical_path(run, waits), lanes_of(run), shift)


def tell_all(runs: Sequence[Run]) -> Tuple[List[Story], bool]:
    """The stories of runs on one axis, and whether that is one of the clock: if they overlap. Else all begin at 0."""
    first = min(run.start for run in runs)
    is_clock = max(run.start for run in runs) <= min(run.end for run in runs)
    stories = []
    for run in runs:
        origin = run.start
        if is_clock:
            origin = first
        stories.append(tell(run, -origin))
    return stories, is_clock


# ---------------------------------------------------------------------------------------------------
# Words: numbers and names as people read them.
# ---------------------------------------------------------------------------------------------------

# Controls, marks that turn the direction of text or cannot be seen, halves of surrogate pairs, what XML cannot hold.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def clean(text: str) -> str:
    """Text in which what cannot be seen, or could mislead, is written as `\\x1b`."""
    return UNSEEN.sub(lambda found: ascii(found.group())[1:-1], text)


def escape(text: str) -> str:
    """Text for HTML, SVG and attributes of both."""
    return html.escape(clean(text))


def show_seconds(seconds: float) -> str:
    """`4.2s`, `12m30s`, `9h34m`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def show_time(seconds: float) -> str:
    """A time since 1970 as UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970"


def counted(count: float, one: str, many: str = "") -> str:
    """`1 test`, `2 tests`."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,.0f} {many or one + 's'}"


def share(part: float, whole: float) -> str:
    """A part in percent."""
    if not whole:
        return "0.0 %"
    return f"{100 * part / whole:.1f} %"


def first_of(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    text = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        text += f" \u2026 with {len(names) - SHOWN} more"
    return text


def unit_of(run: Run) -> str:
    """What a run has many of."""
    if run.gpus:
        return "GPU"
    return "slot"


def place_of(attempt: Attempt) -> str:
    """`GPU 0,1` or `CPU`."""
    if not attempt.gpus:
        return "CPU"
    return "GPU " + ",".join(attempt.gpus)


def need_text(test: Test) -> str:
    """How many GPUs a test needs."""
    if math.isinf(test.need):
        return "all"
    return f"{test.need:g}"


def tally(tests: Iterable[Test]) -> Dict[str, int]:
    """How many tests have which outcome, in the order of OUTCOMES; unknown ones last."""
    counts = collections.Counter(test.outcome for test in tests)
    known = {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}
    return {**known, **counts}


def title_of(run: Run) -> str:
    """The lists of a run, and its shard."""
    title = " ".join(run.lists) or "a run without a start"
    if title == "-":
        title = "standard input"
    if run.shard:
        title += f", shard {run.shard}"
    return title


def facts_of(story: Story) -> List[str]:
    """What there is to say of a run in short."""
    run = story.run
    size = capacity_of(run)
    unit = unit_of(run)
    work = math.fsum(attempt.seconds for _, attempt in run.attempts)
    busy = gpu_seconds(story.moments)
    facts = [
        f"{counted(sum(run.outcomes.values()), 'test')}: {outcomes_text(run)}",
        f"{show_seconds(run.seconds)} on {counted(size, unit)}, of which {share(busy, size * run.seconds)} were busy",
        f"one after another the tests would have taken {show_seconds(work)}",
    ]
    if run.unseen:
        facts.append(f"{counted(run.unseen, 'test')} of the run never started")
    if not run.has_ended:
        facts.append("the journal has no end of this run: it still runs, or was killed")
    for token, why in run.lost.items():
        facts.append(f"GPU {token} was in quarantine: {why}")
    if run.is_script:
        facts.append(
            "a script: when it came to a test is not in the journal; a wait counts only while no GPU was free"
        )
    return facts


def outcomes_text(run: Run) -> str:
    """`2 passed, 1 failed`."""
    return ", ".join(f"{count} {outcome}" for outcome, count in run.outcomes.items())


def waits_text(spent: Spent) -> str:
    """`lock db 3.0s, a GPU 1.0s`, the longest first."""
    total: Dict[str, float] = collections.defaultdict(float)
    for (kind, what), seconds in spent.items():
        name = WAITS[kind]
        if kind in ("lock", "after"):
            name = f"{kind} {what}"
        total[name] += seconds
    longest = sorted(total.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in longest)


def width_of(text: str) -> int:
    """The columns that text takes in a terminal; letters of East Asia take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def cut(text: str, columns: int) -> str:
    """Text in no more than so many columns, its middle left out: ends tell names apart."""
    if width_of(text) <= columns:
        return text
    head = tail = ""
    rest = columns - 1
    for front, back in zip(text, reversed(text)):
        if width_of(head + front + tail + back) > rest:
            break
        head += front
        tail = back + tail
    return f"{head}\u2026{tail}"


# ---------------------------------------------------------------------------------------------------
# Draw: lanes and graphs as SVG.
# ---------------------------------------------------------------------------------------------------

LANE_PX = 22  # of which the bar takes all but the gap
GAP_PX = 4
AXIS_PX = 18
GRAPH_PX = 90
NAMES_PX = 96
NAME_COLUMNS = 13


class Axis(NamedTuple):
    """The time axis: its length in seconds, and what is added to a time for its place on it."""

    length: float
    shift: float

    def at(self, when: float) -> float:
        """The place of a time, from 0 to 1."""
        return min(max((when + self.shift) / self.length, 0.0), 1.0)

    def ticks(self) -> List[Tuple[float, str]]:
        """The places of round times, and their texts."""
        step = next(
            (step for step in tick_steps() if step * TICKS >= self.length), self.length / TICKS
        )
        count = int(self.length / step + 1e-9)
        return [
            (number * step / self.length, tick_text(number * step))
            for number in range(count + 1)
        ]


def tick_steps() -> Iterator[float]:
    """Round durations in seconds, growing."""
    for power in range(-3, 1):
        for digit in (1, 2, 5):
            yield float(digit * 10**power)
    yield from (10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)
    for hours in (1, 2, 3, 6, 12, 24, 48, 168):
        yield 3600.0 * hours


def tick_text(seconds: float) -> str:
    """`0`, `0.5s`, `2m`, `1h30m`: without what is zero."""
    if seconds < 60:
        return f"{seconds:g}s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def lane_name(name: str) -> str:
    """A lane's name where there is little room: a UUID says itself what it is."""
    return cut(re.sub(r"^GPU (?=GPU-|MIG-)", "", name), NAME_COLUMNS)


def short_label(test: Test) -> str:
    """A label without the folders that it begins with: on a bar there is little room."""
    return re.sub(r"^[^\s/]*/(?:[^\s/]*/)*(?=[^\s/])", "", test.label)


def css_of(outcome: str) -> str:
    """The class of an outcome."""
    if outcome not in OUTCOMES:
        return "other"
    return outcome.replace(" ", "-")


def bar_title(story: Story, test: Test, attempt: Attempt) -> str:
    """All there is to say of an attempt, in a line."""
    label = test.label
    if len(test.attempts) > 1:
        label += f" (attempt {attempt.number})"
    at = show_seconds(attempt.began - story.run.start)
    parts = [
        label,
        attempt.verdict,
        f"{place_of(attempt)}, {show_seconds(attempt.seconds)} from {at}",
    ]
    if attempt.swept > attempt.ended:
        parts.append(f"sweep {show_seconds(attempt.swept - attempt.ended)}")
    if attempt.released > attempt.swept:
        parts.append(f"memory wait {show_seconds(attempt.released - attempt.swept)}")
    spent = story.waits.spent[test.label]
    if spent and attempt is test.attempts[0]:
        parts.append(f"had waited: {waits_text(spent)}")
    if attempt.why:
        parts.append(attempt.why)
    return "; ".join(parts)


class Chart:
    """The chart of one run: names at the left, and what grows with the zoom at their right."""

    def __init__(self, story: Story, length: float, numbers: Mapping[str, int]) -> None:
        self.story = story
        self.run = story.run
        self.axis = Axis(length, story.shift)
        self.numbers = numbers  # of tests in the page, by label
        self.critical = {(link.test.label, link.attempt.number) for link in story.path}
        self.names: List[str] = []
        self.bars: List[str] = []
        self.texts: List[str] = []
        self.y = AXIS_PX

    def unit(self, when: float) -> int:
        """The place of a time in the units of the stretched parts."""
        return round(self.axis.at(when) * UNITS)

    def draw(self) -> str:
        """The chart as HTML."""
        for lane in self.story.lanes:
            self.add_lane(lane)
        self.y += AXIS_PX
        self.add_graph(
            f"{unit_of(self.run)}s",
            f"of {capacity_of(self.run)}",
            float(capacity_of(self.run)),
            busy_columns(self.story.moments),
        )
        waiting = wait_columns(self.story.moments)
        most = max((sum(step[2].values()) for step in waiting), default=0.0)
        self.y += AXIS_PX
        self.add_graph("waiting", f"up to {most:,.0f}", most, waiting)
        height = self.y + AXIS_PX
        grid = []
        for place, text in self.axis.ticks():
            x = f"{100 * place:.3f}%"
            anchor = ""
            if place > 0.97:
                anchor = ' text-anchor="end"'
            grid.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{AXIS_PX}" y2="{self.y}"/>')
            for y in (AXIS_PX - 5, height - 4):
                grid.append(f'<text class="tick" x="{x}" y="{y}"{anchor}>{text}</text>')
        return (
            f'<div class="chart"><svg class="names" width="{NAMES_PX}" height="{height}" aria-hidden="true">'
            f'{"".join(self.names)}</svg><div class="scroll" tabindex="0" role="img" '
            f'aria-label="lanes of GPUs over time; the table of tests has the same in words">'
            f'<svg class="wide" width="100%" height="{height}">{"".join(grid)}'
            f'<svg viewBox="0 0 {UNITS} {height}" preserveAspectRatio="none" width="100%" height="{height}">'
            f"{''.join(self.bars)}</svg>{''.join(self.texts)}</svg></div></div>\n"
        )

    def add_name(self, text: str, y: float, css: str = "soft") -> None:
        """A text in the left column; what there is no room for is told on hover."""
        title = ""
        short = lane_name(text)
        if short != text:
            title = f"<title>{escape(text)}</title>"
        where = f'class="{css}" x="{NAMES_PX - 8}" y="{y}"'
        self.names.append(f"<text {where}>{title}{escape(short)}</text>")

    def add_lane(self, lane: Lane) -> None:
        """A lane with its bars."""
        self.add_name(lane.name, self.y + 15)
        self.bars.append(
            f'<rect class="lane" y="{self.y}" width="{UNITS}" height="{LANE_PX - GAP_PX}"/>'
        )
        for test, attempt in lane.attempts:
            self.add_bar(test, attempt)
        self.y += LANE_PX

    def add_bar(self, test: Test, attempt: Attempt) -> None:
        """The bar of an attempt: its run, the sweep, the wait for memory; and its label, if there is room."""
        times = (attempt.began, attempt.ended, attempt.swept, attempt.released)
        places = [self.unit(when) for when in times]
        css = css_of(attempt.outcome)
        if (places[-1] - places[0]) < TINY * UNITS:
            css += " tiny"
        title = bar_title(self.story, test, attempt)
        parts = []
        for phase, (begin, end) in zip(
            ("", ' class="sweep"', ' class="memory"'), zip(places, places[1:])
        ):
            if end > begin or not phase:
                parts.append(
                    f'<rect{phase} x="{begin}" y="{self.y}" width="{end - begin}" height="{LANE_PX - GAP_PX}"/>'
                )
        if (test.label, attempt.number) in self.critical:
            size = f'width="{places[-1] - places[0]}" height="{GAP_PX - 1}"'
            parts.append(
                f'<rect class="critical" x="{places[0]}" y="{self.y + LANE_PX - GAP_PX}" {size}/>'
            )
        number = self.numbers[test.label]
        self.bars.append(
            f'<g class="{css}" data-t="{number}"><title>{escape(title)}</title>{"".join(parts)}</g>'
        )
        width = self.axis.at(attempt.ended) - self.axis.at(attempt.began)
        if width >= LABELLED:
            x = 100 * self.axis.at(attempt.began)
            self.texts.append(
                f'<svg data-t="{number}" x="{x:.3f}%" y="{self.y}" width="{100 * width:.3f}%" '
                f'height="{LANE_PX - GAP_PX}">'
                f'<text class="label" x="5" y="13">{escape(cut(short_label(test), 60))}</text></svg>'
            )

    def add_graph(self, name: str, about: str, most: float, steps: Sequence["Step"]) -> None:
        """A graph of what adds up at each moment, one layer on the other."""
        self.add_name(name, self.y + 12, "strong")
        self.add_name(about, self.y + 27)
        self.bars.append(
            f'<rect class="lane" y="{self.y}" width="{UNITS}" height="{GRAPH_PX}"/>'
        )
        scale = GRAPH_PX / (most or 1.0)
        paths: Dict[str, List[str]] = {}
        for start, end, values in steps:
            left = self.unit(start)
            width = self.unit(end) - left
            top = float(self.y + GRAPH_PX)
            for css, value in values.items():
                height = value * scale
                top -= height
                if width > 0 and height > 0.01:
                    paths.setdefault(css, []).append(
                        f"M{left} {top:.2f}h{width}v{height:.2f}h-{width}z"
                    )
        for css, parts in paths.items():
            self.bars.append(
                f'<path class="{css}" d="{"".join(parts)}"><title>{escape(layer_name(css))}</title></path>'
            )
        self.y += GRAPH_PX


Step = Tuple[float, float, Dict[str, float]]  # from, to, by class of the layer, its height


def layer_name(css: str) -> str:
    """What a layer of a graph shows."""
    kind, _, name = css.partition("-")
    if kind == "idle":
        return f"Idle. {IDLE[name]}"
    if kind == "wait":
        return f"Tests that wait for {WAITS[name]}"
    return {"running": "Tests run", "sweeping": "Swept after a test, or waits for its memory"}[
        kind
    ]


def busy_columns(moments: Sequence[Moment]) -> List[Step]:
    """What the GPUs do, for the first graph."""
    steps = []
    for moment in moments:
        values = {"running": moment.running, "sweeping": moment.sweeping}
        values.update((f"idle-{reason}", moment.idle.get(reason, 0.0)) for reason in IDLE)
        steps.append((moment.start, moment.end, values))
    return thinned(steps)


def wait_columns(moments: Sequence[Moment]) -> List[Step]:
    """What the tests wait for, for the second graph."""
    steps = []
    for moment in moments:
        values = {f"wait-{kind}": number for kind, number in moment.waiting.items()}
        steps.append((moment.start, moment.end, values))
    return thinned(steps)


def thinned(steps: List[Step]) -> List[Step]:
    """Steps that are alike as one; if there are too many to be seen, the means of equal parts of the time."""
    whole: List[Step] = []
    for start, end, values in steps:
        if whole and whole[-1][2] == values:
            whole[-1] = (whole[-1][0], end, values)
        else:
            whole.append((start, end, values))
    if len(whole) <= STEPS:
        return whole
    begin = whole[0][0]
    size = (whole[-1][1] - begin) / STEPS
    sums = [dict.fromkeys(whole[0][2], 0.0) for _ in range(STEPS)]
    for start, end, values in whole:
        first = min(int((start - begin) / size), STEPS - 1)
        last = min(int((end - begin) / size), STEPS - 1)
        for number in range(first, last + 1):
            left = max(start, begin + number * size)
            right = min(end, begin + (number + 1) * size)
            for name, value in values.items():
                sums[number][name] += value * max(right - left, 0.0) / size
    return [
        (begin + number * size, begin + (number + 1) * size, means)
        for number, means in enumerate(sums)
    ]


# ---------------------------------------------------------------------------------------------------
# Page: tables, and all in one HTML file.
# ---------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-@HASH@'">
<link rel="icon" href="data:,">
<title>@TITLE@</title>
<style>
:root { color-scheme: light;
  --page: #fff; --text: #1b2330; --soft: #5b6675; --line: #d5dbe3; --lane: #f1f4f8; --label: #fff; --mark: #fff3c4;
  --critical: #000; --passed: #2f855a; --flaky: #976a00; --failed: #c53030; --crashed: #97266d; --timeout: #b7500b;
  --interrupted: #64707f; --running: #2b6cb0; --sweep: #a8b4c4; --memory: #d9bd7a;
  --gpu: #4a86c8; --wide: #6b4fb3; --cpu: #8593a5; --lock: #b7791f; --after: #b83280; --barrier: #d96c2c;
  --unknown: #9aa5b4; --busy: #2c8a80; --lost: #4a5568; --handover: #c3ccd8; --script: #a9c98f;
  --turn: #b9a7d6; --tail: #dfe5ec; }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark;
  --page: #0f141b; --text: #dfe6ee; --soft: #97a3b3; --line: #2d3743; --lane: #19212b; --mark: #4a3f12;
  --critical: #fff; --passed: #2d8a5c; --flaky: #a47a10; --failed: #d64545; --crashed: #b83a86; --timeout: #c9651b;
  --interrupted: #6d7988; --running: #3a7fc7; --sweep: #55637a; --memory: #8a7134;
  --handover: #46525f; --tail: #2b3541; --script: #56743f; --turn: #5c4d7d; --lost: #8a94a3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 1600px; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; overflow-wrap: anywhere; }
p, ul { margin: .3rem 0; } .soft { color: var(--soft); } ul.facts { padding-left: 1.2rem; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: 13px; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.chart { display: flex; border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0; overflow: hidden; }
.names { flex: none; } .names text { font-size: 12px; fill: var(--soft); text-anchor: end; }
.names .strong { fill: var(--text); font-weight: 600; }
.scroll { flex: 1; min-width: 0; overflow-x: auto; } .wide { display: block; }
.tick { font-size: 11px; fill: var(--soft); } .grid { stroke: var(--line); }
.lane { fill: var(--lane); } .label { font-size: 11px; fill: var(--label); } [data-t] { cursor: pointer; }
svg[data-t] { pointer-events: none; } path { shape-rendering: crispEdges; }
g rect { stroke: var(--page); stroke-width: .7; vector-effect: non-scaling-stroke; }
@OUTCOMES@
g.tiny rect { stroke: inherit; } .sweep { fill: var(--sweep); } .memory { fill: var(--memory); }
g .critical { fill: var(--critical); stroke: none; }
.running { fill: var(--busy); } .sweeping { fill: var(--sweep); }
@KINDS@
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; vertical-align: top; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { white-space: nowrap; } td.w { white-space: normal; min-width: 14rem; max-width: 40rem; overflow-wrap: anywhere; }
tr:target, tr.picked { background: var(--mark); }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
#tests { content-visibility: auto; contain-intrinsic-size: auto 3000px; }
.controls { display: none; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: center; margin: .6rem 0; }
.js .controls { display: flex; } .controls input, .controls select { font: inherit; max-width: 11rem; }
.off { opacity: .12; } [hidden] { display: none !important; } #tip a { color: inherit; }
#tip { position: fixed; left: 0; right: 0; bottom: 0; padding: .6rem 1rem; background: var(--text); color: var(--page);
  overflow-wrap: anywhere; z-index: 2; }
@media (min-width: 900px) { #tests td:first-child { min-width: 20rem; } }
@media (max-width: 600px) { body { padding: .6rem; } h1 { font-size: 1.2rem; } g rect { stroke: none; } }
@media print { body { max-width: none; padding: 0; font-size: 11px; } .controls, #tip { display: none !important; }
  .scroll { overflow: visible; } .wide { width: 100% !important; } .table { overflow: visible; }
  tr, .chart { break-inside: avoid; }
  th, td, td.n { white-space: normal; } td.w, #tests td:first-child { min-width: 0; max-width: 14rem; }
  h2 { break-after: avoid; } thead { display: table-header-group; } #tests { content-visibility: visible; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } @page { size: A4 landscape; margin: 12mm; } }
</style>
</head>
<body>
<h1>@TITLE@</h1>
@BODY@
<div id="tip" role="status" hidden></div>
<script>@SCRIPT@</script>
</body>
</html>
"""

SCRIPT = """
"use strict";
document.documentElement.classList.add("js");
const all = selector => [...document.querySelectorAll(selector)], by = id => document.getElementById(id);
const rows = all("#tests tbody tr"), bars = all("[data-t]"), tip = by("tip");
const texts = rows.map(row => row.cells[0].textContent.toLowerCase());
function seconds(text) {
    const parts = text.trim().match(/^(?:([\\d.]+)h)?(?:([\\d.]+)m)?(?:([\\d.]+)s?)?$/);
    return parts ? 3600 * (parts[1] || 0) + 60 * (parts[2] || 0) + +(parts[3] || 0) : NaN;
}
function filter() {
    const least = seconds(by("least").value), outcome = by("outcome").value, word = by("word").value.toLowerCase();
    by("least").setAttribute("aria-invalid", isNaN(least));
    const off = {};
    let shown = 0;
    rows.forEach((row, number) => {
        const hide = row.dataset.s < least || (outcome && row.dataset.o !== outcome) || !texts[number].includes(word);
        row.hidden = hide;
        off[row.id.slice(1)] = hide;
        shown += !hide;
    });
    bars.forEach(bar => bar.classList.toggle("off", off[bar.dataset.t]));
    by("shown").textContent = shown + " of " + rows.length + " tests";
}
for (const id of ["least", "outcome", "word"]) by(id).addEventListener("input", filter);
by("zoom").addEventListener("input", event => all(".scroll").forEach(box => {
    const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    box.firstElementChild.style.width = 100 * 2 ** event.target.value + "%";
    box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
}));
const order = new Intl.Collator(undefined, {numeric: true}).compare;
all("th").forEach(head => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
        const body = head.closest("table").tBodies[0], at = head.cellIndex;
        const isNumber = head.className === "n", first = isNumber ? "descending" : "ascending";
        const isDown = (head.getAttribute("aria-sort") === first) === !isNumber, back = isDown ? -1 : 1;
        const keyed = [...body.rows].map(row => [isNumber ? +row.cells[at].dataset.v : row.cells[at].textContent, row]);
        keyed.sort((one, other) => back * (isNumber ? one[0] - other[0] : order(one[0], other[0])));
        [...head.parentNode.cells].forEach(cell => cell.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", back > 0 ? "ascending" : "descending");
        body.append(...keyed.map(pair => pair[1]));
    });
});
function pick(number, text) {
    all(".picked").forEach(row => row.classList.remove("picked"));
    const row = by("t" + number), link = document.createElement("a");
    row.classList.add("picked");
    link.href = "#t" + number;
    link.textContent = "its row";
    tip.replaceChildren(text + " \\u2014 ", link);
    tip.hidden = false;
}
document.addEventListener("click", event => {
    const bar = event.target.closest("g[data-t]");
    if (bar) pick(bar.dataset.t, bar.querySelector("title").textContent);
    else if (!event.target.closest("#tip")) tip.hidden = true;
});
document.addEventListener("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
filter();
"""


class Cell(NamedTuple):
    """A cell of a table: text, or HTML if there is some; in a column of numbers, that by which it is sorted."""

    text: str
    value: Optional[float] = None
    markup: str = ""
    wraps: bool = False

    def html(self) -> str:
        content = self.markup or escape(self.text)
        if self.value is not None:
            return f'<td class="n" data-v="{self.value:.6g}">{content}</td>'
        if self.wraps:
            return f'<td class="w">{content}</td>'
        return f"<td>{content}</td>"


def duration_cell(seconds: float, hides_zero: bool = False) -> Cell:
    text = show_seconds(seconds)
    if hides_zero and not seconds:
        text = ""
    return Cell(text, seconds)


def count_cell(number: float) -> Cell:
    return Cell(f"{number:,.0f}", number)


class Row(NamedTuple):
    """A row of a table, with the attributes of its element."""

    cells: Sequence[Cell]
    attributes: str = ""

    def html(self) -> str:
        return f"<tr{self.attributes}>{''.join(cell.html() for cell in self.cells)}</tr>\n"


def table(title: str, about: str, heads: str, rows: Sequence[Row], name: str = "") -> str:
    """A table with its heading; heads are apart by `|`. Nothing, if it has no rows."""
    if not rows:
        return ""
    columns = []
    for head, cell in zip(heads.split("|"), rows[0].cells):
        css = ""
        if cell.value is not None:
            css = ' class="n"'
        columns.append(f"<th{css}>{head}</th>")
    mark = ""
    if name:
        mark = f' id="{name}"'
    return (
        f'<section{mark}><h2>{escape(title)}</h2>\n<p class="soft">{escape(about)}</p>\n'
        f'<div class="table"><table><thead><tr>{"".join(columns)}</tr></thead><tbody>\n'
        f"{''.join(row.html() for row in rows)}</tbody></table></div></section>\n"
    )


def swatch(css: str) -> str:
    """A patch of a colour of the page."""
    return f'<span class="swatch" style="background:var(--{css})"></span>'


class Page:
    """The page of some stories."""

    def __init__(self, stories: Sequence[Story], notes: Sequence[str]) -> None:
        self.stories = stories
        self.notes = notes
        self.tests = [(story, test) for story in stories for test in story.run.tests]
        self.numbers: List[Dict[str, int]] = []  # by story, of its tests by label
        count = itertools.count(1)
        for story in stories:
            self.numbers.append({test.label: next(count) for test in story.run.tests})
        self.length = max(story.run.end + story.shift for story in stories) or 1.0

    def html(self) -> str:
        """All of it."""
        title = " + ".join(dict.fromkeys(title_of(story.run) for story in self.stories))
        digest = hashlib.sha256(SCRIPT.encode()).digest()
        layers = [(f"idle-{reason}", reason) for reason in IDLE]
        layers += [(f"wait-{kind}", kind) for kind in WAITS]
        parts = {
            "TITLE": escape(f"Timeline of {cut(title, 120)}"),
            "BODY": "".join(self.body()),
            "SCRIPT": SCRIPT,
            "HASH": base64.b64encode(digest).decode(),
            "OUTCOMES": "\n".join(map(outcome_css, [*OUTCOMES, "other"])),
            "KINDS": "\n".join(f".{css} {{ fill: var(--{name}); }}" for css, name in layers),
        }
        return re.sub("@([A-Z]+)@", lambda found: parts[found.group(1)], PAGE)

    def body(self) -> Iterator[str]:
        """What is between the heading and the end."""
        yield self.controls()
        yield self.legend()
        for story, numbers in zip(self.stories, self.numbers):
            run = story.run
            yield "<section>"
            if len(self.stories) > 1:
                yield f"<h2>{escape(title_of(run))}</h2>\n"
            facts = "".join(f"<li>{escape(fact)}</li>" for fact in facts_of(story))
            about = f"run {run.name}, began {show_time(run.start)}"
            if run.commit:
                about += f", commit {run.commit}"
            yield f'<p class="soft">{escape(about)}</p>\n<ul class="facts">{facts}</ul>\n'
            yield Chart(story, self.length, numbers).draw()
            yield "</section>\n"
        yield self.idle_table()
        yield self.wait_table()
        yield self.path_table()
        yield self.cause_table()
        yield self.flaky_table()
        yield self.slowest_table()
        yield self.test_table()
        for note in self.notes:
            yield f'<p class="soft">{escape(note)}</p>\n'

    def controls(self) -> str:
        """What scripts can do."""
        outcomes = tally(test for _, test in self.tests)
        options = "".join(
            f'<option value="{escape(outcome)}">{escape(outcome)} ({count})</option>'
            for outcome, count in outcomes.items()
        )
        return (
            '<div class="controls"><label>ran at least <input id="least" size="6" placeholder="1m30s"></label>'
            f'<label>outcome <select id="outcome"><option value="">all</option>{options}</select></label>'
            '<label>name has <input id="word" type="search"></label>'
            '<label>zoom <input id="zoom" type="range" min="0" max="6" step="0.25" value="0"></label>'
            '<span class="soft" id="shown" role="status"></span></div>\n'
        )

    def legend(self) -> str:
        """What the colours mean: those that are there."""
        seen = tally(test for _, test in self.tests)
        both = [each for story in self.stories for _, each in story.run.attempts]
        attempts = {each.outcome for each in both}
        items = [
            f"<li>{swatch(css_of(outcome))}{escape(outcome)}</li>"
            for outcome in [*OUTCOMES, *(attempts - set(OUTCOMES))]
            if outcome in attempts or (outcome in seen and outcome in OUTCOMES[:7])
        ]
        if any(each.swept > each.ended for each in both):
            items.append(f"<li>{swatch('sweep')}swept: what a test left is ended</li>")
        if any(each.released > each.swept for each in both):
            items.append(f"<li>{swatch('memory')}its GPU gives memory back</li>")
        items.append(f"<li>{swatch('critical')}a line below: on the critical path</li>")
        items.append(f"<li>{swatch('busy')}busy</li>")
        waits = {
            kind
            for story in self.stories
            for spent in story.waits.spent.values()
            for kind, _ in spent
        }
        items += [
            f"<li>{swatch(kind)}waits for {escape(name)}</li>"
            for kind, name in WAITS.items()
            if kind in waits
        ]
        return f'<ul class="legend">{"".join(items)}</ul>\n'

    def idle_table(self) -> str:
        """Why GPUs were idle."""
        moments = [moment for story in self.stories for moment in story.moments]
        idle = idle_time(moments)
        total = math.fsum(idle.values())
        whole = total + gpu_seconds(moments)
        rows = [
            Row(
                [
                    Cell("", markup=swatch(reason) + escape(IDLE[reason]), wraps=True),
                    duration_cell(seconds),
                    Cell(share(seconds, total), seconds),
                    Cell(share(seconds, whole), seconds),
                ]
            )
            for reason, seconds in idle.items()
            if seconds >= BLINK_S
        ]
        unit = unit_of(self.stories[0].run)
        about = f"{show_seconds(total)} of {unit} time, {share(total, whole)} of all, by the first reason that applies."
        heads = f"Reason|{unit} time|of idle|of all"
        return table(f"Why {unit}s were idle", about, heads, rows, "idle")

    def wait_table(self) -> str:
        """What tests waited for."""
        groups: Dict[Tuple[str, str], List[Tuple[float, str]]] = {}
        for story in self.stories:
            for label, spent in story.waits.spent.items():
                for what, seconds in spent.items():
                    groups.setdefault(what, []).append((seconds, label))
        longest = sorted(
            groups.items(), key=lambda group: -math.fsum(each[0] for each in group[1])
        )
        rows = [wait_row(*group, spent) for group, spent in longest[: 2 * SLOWEST]]
        about = "Of a barrier and an after, the test that ended last is named. Times of tests waiting at once add up."
        heads = "Waited for|Tests|Together|Longest|by"
        return table("What tests waited for", about, heads, rows, "waits")

    def path_table(self) -> str:
        """The critical path of the run that ended last."""
        story = max(self.stories, key=lambda each: each.run.end + each.shift)
        numbers = self.numbers[self.stories.index(story)]
        rows = []
        for link in story.path:
            rows.append(
                Row(
                    [
                        duration_cell(link.attempt.began - story.run.start),
                        test_cell(link.test, numbers, link.attempt),
                        duration_cell(link.attempt.seconds),
                        duration_cell(
                            link.attempt.released - link.attempt.ended, hides_zero=True
                        ),
                        Cell(place_of(link.attempt)),
                        Cell(link.why, wraps=True),
                    ]
                )
            )
        work = math.fsum(link.attempt.seconds for link in story.path)
        about = (
            f"{counted(len(rows), 'start')}, of which each followed from the end before it; tests ran in "
            f"{show_seconds(work)} of {show_seconds(story.run.seconds)}. Only what makes this chain shorter can end "
            f"the run sooner."
        )
        heads = "Began at|Test|Ran|Sweep, memory|On|It began when"
        return table("Critical path", about, heads, rows, "path")

    def cause_table(self) -> str:
        """Failures by their cause."""
        groups: Dict[str, List[Tuple[Test, Attempt]]] = {}
        for story in self.stories:
            for test, attempt in story.run.attempts:
                if attempt.outcome in FAILURES:
                    groups.setdefault(attempt.why or attempt.verdict, []).append(
                        (test, attempt)
                    )
        rows = [
            Row(
                [
                    Cell(why, wraps=True),
                    count_cell(len(pairs)),
                    duration_cell(math.fsum(attempt.seconds for _, attempt in pairs)),
                    Cell(
                        first_of([*dict.fromkeys(test.label for test, _ in pairs)]), wraps=True
                    ),
                ]
            )
            for why, pairs in sorted(groups.items(), key=lambda group: -len(group[1]))
        ]
        about = "Attempts that failed, those that were retried too."
        return table("Causes of failures", about, "Cause|Attempts|Ran|Tests", rows, "causes")

    def flaky_table(self) -> str:
        """Tests that needed more than one attempt."""
        rows = []
        for number, (_, test) in enumerate(self.tests, 1):
            if len(test.attempts) > 1:
                said = [
                    " ".join([each.verdict, f"({each.why})" * bool(each.why)]).strip()
                    for each in test.attempts
                ]
                rows.append(
                    Row(
                        [
                            Cell("", markup=link_to(number, test.label), wraps=True),
                            Cell(test.outcome),
                            count_cell(len(test.attempts)),
                            duration_cell(math.fsum(each.seconds for each in test.attempts)),
                            Cell("; then ".join(said), wraps=True),
                        ]
                    )
                )
        about = "They cost the time of all their attempts."
        heads = "Test|Outcome|Attempts|Ran|Attempts said"
        return table("Flaky and retried tests", about, heads, rows, "flaky")

    def slowest_table(self) -> str:
        """The slowest tests."""
        numbered = zip(self.tests, itertools.count(1))
        longest = sorted(numbered, key=lambda each: -each[0][1].seconds)[:SLOWEST]
        whole = math.fsum(test.seconds for _, test in self.tests)
        rows = [
            Row(
                [
                    Cell("", markup=link_to(number, test.label), wraps=True),
                    duration_cell(test.seconds),
                    Cell(share(test.seconds, whole), test.seconds),
                    Cell(need_text(test)),
                    Cell(test.verdict),
                ]
            )
            for (_, test), number in longest
            if test.attempts
        ]
        about = "No run can be shorter than the first of them."
        heads = "Test|Ran|of all tests' time|GPUs|Outcome"
        return table("Slowest tests", about, heads, rows, "slowest")

    def test_table(self) -> str:
        """All tests, in the order of their starts."""
        rows = [
            test_row(story, test, number) for number, (story, test) in enumerate(self.tests, 1)
        ]
        about = "In the order of their starts. Began: since the start of the run."
        heads = "Test|Outcome|GPUs|On|Began|Waited|Ran|Sweep, memory|Attempts|Waited for|Why"
        return table("Tests", about, heads, rows, "tests")


def outcome_css(outcome: str) -> str:
    """How bars of an outcome look. Those without a colour of their own are grey."""
    name = css_of(outcome)
    colour = name
    if outcome not in OUTCOMES[:7]:
        colour = "interrupted"
    return f"g.{name} {{ fill: var(--{colour}); stroke: var(--{colour}); }}"


def wait_row(kind: str, what: str, spent: Sequence[Tuple[float, str]]) -> Row:
    """What tests (seconds, label) have spent with one wait."""
    name = WAITS[kind]
    if what:
        name += f": {what}"
    most, label = max(spent)
    return Row(
        [
            Cell("", markup=swatch(kind) + escape(name), wraps=True),
            count_cell(len({label for _, label in spent})),
            duration_cell(math.fsum(seconds for seconds, _ in spent)),
            duration_cell(most),
            Cell(label, wraps=True),
        ]
    )


def link_to(number: int, label: str) -> str:
    """A link to the row of a test."""
    return f'<a href="#t{number}">{escape(label)}</a>'


def test_cell(test: Test, numbers: Mapping[str, int], attempt: Attempt) -> Cell:
    """A cell that names a test, and which attempt."""
    text = link_to(numbers[test.label], test.label)
    if len(test.attempts) > 1:
        text += f", attempt {attempt.number}"
    return Cell("", markup=text, wraps=True)


def test_row(story: Story, test: Test, number: int) -> Row:
    """The row of a test."""
    spent = story.waits.spent[test.label]
    began = Cell("", test.ended - story.run.start)
    place = ""
    after = 0.0
    if test.attempts:
        began = duration_cell(test.attempts[0].began - story.run.start)
        place = place_of(test.attempts[-1])
        after = math.fsum(each.released - each.ended for each in test.attempts)
    cells = [
        Cell(test.label, wraps=True),
        Cell(test.verdict),
        Cell(need_text(test)),
        Cell(place),
        began,
        duration_cell(math.fsum(spent.values()), hides_zero=True),
        duration_cell(test.seconds, hides_zero=not test.attempts),
        duration_cell(after, hides_zero=True),
        count_cell(len(test.attempts)),
        Cell(waits_text(spent), wraps=bool(spent)),
        Cell(test.why, wraps=bool(test.why)),
    ]
    attributes = f' id="t{number}" data-s="{test.seconds:.3f}" data-o="{escape(test.outcome)}"'
    return Row(cells, attributes)


# ---------------------------------------------------------------------------------------------------
# Picture: the lanes as a small SVG file that stands by itself, in a README for example.
# ---------------------------------------------------------------------------------------------------

PICTURE_PX = 900
LEFT_PX = 100  # for the names of the lanes
EDGE_PX = 14
LETTER_PX = 6.2  # of the labels, on average
LETTERS = 6  # of a label, at least: fewer say nothing
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 @WIDTH@ @HEIGHT@" width="@WIDTH@" height="@HEIGHT@"
 role="img" aria-label="@TITLE@">
<style>
text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #57606a; }
.title { font-size: 14px; font-weight: 600; fill: #1f2328; } .name { text-anchor: end; } .label { fill: #fff; }
.page { fill: #fff; stroke: #d0d7de; } .lane { fill: #eff2f5; } .grid { stroke: #d8dee4; }
.passed { fill: #2f855a; } .flaky { fill: #976a00; } .failed { fill: #c53030; } .crashed { fill: #97266d; }
.timeout { fill: #b7500b; } .running { fill: #2b6cb0; } .other { fill: #64707f; } .sweep { fill: #a8b4c4; }
.memory { fill: #d9bd7a; }
@media (prefers-color-scheme: dark) { text { fill: #9198a1; } .title { fill: #e6edf3; } .label { fill: #fff; }
.page { fill: #0d1117; stroke: #3d444d; } .lane { fill: #1b222c; } .grid { stroke: #2b333d; }
.sweep { fill: #55637a; } .memory { fill: #8a7134; } }
</style>
@BODY@</svg>
"""


class Picture:
    """The picture of one story. It has a ground of its own: the page around it may be light or dark."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.axis = Axis(story.run.seconds or 1.0, -story.run.start)
        self.top = EDGE_PX + 24 + AXIS_PX
        lanes = len(story.lanes) * LANE_PX
        self.bottom = self.top + lanes
        self.height = self.bottom + 24 + EDGE_PX

    def x(self, when: float) -> float:
        """The place of a time, in pixels."""
        return LEFT_PX + self.axis.at(when) * (PICTURE_PX - LEFT_PX - EDGE_PX)

    def svg(self) -> str:
        """The file."""
        parts = {
            "WIDTH": str(PICTURE_PX),
            "HEIGHT": str(self.height),
            "TITLE": escape(self.title()),
            "BODY": "\n".join([*self.ground(), *self.lanes(), *self.legend()]) + "\n",
        }
        return re.sub("@([A-Z]+)@", lambda found: parts[found.group(1)], PICTURE)

    def title(self) -> str:
        """The run in a line."""
        run = self.story.run
        work = math.fsum(attempt.seconds for _, attempt in run.attempts)
        where = counted(capacity_of(run), unit_of(run))
        return (
            f"{counted(sum(run.outcomes.values()), 'test')} on {where} in {show_seconds(run.seconds)}; "
            f"one after another {show_seconds(work)}"
        )

    def ground(self) -> Iterator[str]:
        """All behind the bars."""
        yield (
            f'<rect class="page" x=".5" y=".5" width="{PICTURE_PX - 1}" height="{self.height - 1}" rx="8"/>'
        )
        yield f'<text class="title" x="{EDGE_PX}" y="{EDGE_PX + 14}">{escape(self.title())}</text>'
        for place, text in self.axis.ticks():
            x = self.x(self.story.run.start + place * self.axis.length)
            anchor = "start"
            if place > 0.97:
                anchor = "end"
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top - 4}" y2="{self.bottom}"/>'
            yield f'<text x="{x:.1f}" y="{self.top - 8}" text-anchor="{anchor}">{text}</text>'

    def lanes(self) -> Iterator[str]:
        """The lanes with their bars."""
        y = self.top
        for lane in self.story.lanes:
            name = escape(lane_name(lane.name))
            yield f'<text class="name" x="{LEFT_PX - 8}" y="{y + 13}">{name}</text>'
            width = PICTURE_PX - LEFT_PX - EDGE_PX
            yield f'<rect class="lane" x="{LEFT_PX}" y="{y}" width="{width}" height="{LANE_PX - GAP_PX}" rx="2"/>'
            for test, attempt in lane.attempts:
                yield from self.bar(test, attempt, y)
            y += LANE_PX

    def bar(self, test: Test, attempt: Attempt, y: int) -> Iterator[str]:
        """An attempt: its phases, and as much of its label as there is room for."""
        times = (attempt.began, attempt.ended, attempt.swept, attempt.released)
        places = [self.x(when) for when in times]
        css = css_of(attempt.outcome)
        if attempt.outcome not in (*OUTCOMES[:5], "running"):
            css = "other"
        gap = min(1.0, (places[-1] - places[0]) / 3)
        places = [min(place, places[-1] - gap) for place in places]
        for name, begin, end in zip((css, "sweep", "memory"), places, places[1:]):
            if end > begin:
                size = f'width="{end - begin:.2f}" height="{LANE_PX - GAP_PX}"'
                yield f'<rect class="{name}" x="{begin:.2f}" y="{y}" {size}/>'
        columns = int((places[1] - places[0] - 8) / LETTER_PX)
        if columns >= LETTERS:
            text = escape(cut(short_label(test), columns))
            yield f'<text class="label" x="{places[0] + 4:.1f}" y="{y + 13}">{text}</text>'

    def legend(self) -> Iterator[str]:
        """The colours that are there."""
        attempts = [attempt for _, attempt in self.story.run.attempts]
        names = [name for name in OUTCOMES if name in {each.outcome for each in attempts}]
        if any(attempt.released > attempt.ended for attempt in attempts):
            names.append("sweep")
        if any(attempt.released > attempt.swept for attempt in attempts):
            names.append("memory")
        x = float(LEFT_PX)
        y = self.bottom + 18
        for name in names:
            css = name
            if name in ("interrupted", "blocked", "unrunnable", "not run", "deferred"):
                css = "other"
            text = {"memory": "waits for its memory", "sweep": "swept"}.get(name, name)
            yield f'<rect class="{css}" x="{x:.0f}" y="{y - 9}" width="10" height="10" rx="2"/>'
            yield f'<text x="{x + 15:.0f}" y="{y}">{text}</text>'
            x += 15 + 6.5 * len(text) + 18


# ---------------------------------------------------------------------------------------------------
# Trace: what Perfetto and chrome://tracing read.
# ---------------------------------------------------------------------------------------------------


def micros(seconds: float) -> int:
    """The unit of traces."""
    return round(seconds * 1e6)


def trace_of(stories: Sequence[Story]) -> str:
    """The trace: a process per machine, a thread per lane, the phases of attempts one behind the other, counters."""
    events = [
        event
        for machine, story in enumerate(stories, 1)
        for event in [
            *trace_names(story, machine),
            *trace_slices(story, machine),
            *trace_counters(story, machine),
        ]
    ]
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def trace_event(kind: str, machine: int, lane: int, name: str, **fields: Any) -> Dict[str, Any]:
    """An event of the trace, of a kind that the format names by a letter (`ph`)."""
    return {"ph": kind, "pid": machine, "tid": lane, "name": name, **fields}


def trace_names(story: Story, machine: int) -> Iterator[Dict[str, Any]]:
    """What the machine and its lanes are called."""
    run = story.run
    name = clean(f"{title_of(run)} ({run.name})")
    yield trace_event("M", machine, 0, "process_name", args={"name": name})
    for number, lane in enumerate(story.lanes, 1):
        args = {"name": clean(lane.name)}
        yield trace_event("M", machine, number, "thread_name", args=args)
        order = {"sort_index": number}
        yield trace_event("M", machine, number, "thread_sort_index", args=order)


def trace_slices(story: Story, machine: int) -> Iterator[Dict[str, Any]]:
    """The phases of all attempts."""
    critical = {(link.test.label, link.attempt.number) for link in story.path}
    for number, lane in enumerate(story.lanes, 1):
        for test, attempt in lane.attempts:
            args = {
                "outcome": clean(attempt.verdict),
                "attempt": attempt.number,
                "gpus": clean(place_of(attempt)),
                "why": clean(attempt.why),
                "waited for": clean(waits_text(story.waits.spent[test.label])),
                "log": clean(attempt.log),
                "on critical path": (test.label, attempt.number) in critical,
            }
            phases = (
                (clean(test.label), attempt.outcome, attempt.began, attempt.ended),
                ("sweep", "sweep", attempt.ended, attempt.swept),
                ("memory wait", "memory", attempt.swept, attempt.released),
            )
            for name, category, begin, end in phases:
                start = micros(begin + story.shift)
                if end <= begin and category in ("sweep", "memory"):
                    continue
                yield trace_event(
                    "X",
                    machine,
                    number,
                    name,
                    ts=start,
                    dur=micros(end + story.shift) - start,
                    cat=clean(category),
                    args={key: value for key, value in args.items() if value},
                )


def trace_counters(story: Story, machine: int) -> Iterator[Dict[str, Any]]:
    """What GPUs do and tests wait for, whenever that changes."""
    unit = unit_of(story.run)
    before: Dict[str, Dict[str, float]] = {}
    kinds = [
        kind for kind in WAITS if any(moment.waiting.get(kind) for moment in story.moments)
    ]
    nothing = Moment(story.run.end, story.run.end, 0.0, 0.0, {}, {})
    for moment in [*story.moments, nothing]:
        counters = {
            f"{unit}s": {
                "run": round(moment.running, 6),
                "sweep": round(moment.sweeping, 6),
                "idle": round(math.fsum(moment.idle.values()), 6),
            },
            "tests waiting for": {kind: moment.waiting.get(kind, 0.0) for kind in kinds},
        }
        for name, values in counters.items():
            if values and before.get(name) != values:
                at = micros(moment.start + story.shift)
                yield trace_event("C", machine, 0, name, ts=at, args=values)
        before = counters


# ---------------------------------------------------------------------------------------------------
# Command line.
# ---------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  timeline.py                                       the last run in logs/run_tests.jsonl, as logs/timeline.html
  timeline.py nightly.jsonl --list                  the runs of a journal
  timeline.py nightly.jsonl --run 3 --html a.html   the third; --run -2: the last but one; or a run's id
  timeline.py shard*.jsonl --html all.html          the last run of each journal: several machines, one page
  ssh ci cat logs/run_tests.jsonl | timeline.py - --html - >a.html
  timeline.py --trace trace.json                    for https://ui.perfetto.dev
  timeline.py --svg lanes.svg                       a picture for a README

exit codes:
  0 done   2 usage or bad input   3 a file cannot be written
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show what each GPU did in a run of run_tests.py, and why it was idle.",
    )
    add = parser.add_argument
    add(
        "journals",
        nargs="*",
        metavar="JOURNAL",
        default=[os.path.join("logs", JOURNAL)],
        help="journals of run_tests.py, log dirs, or - for standard input; default: logs/run_tests.jsonl; several "
        "are the machines of one page",
    )
    add(
        "--run",
        action="append",
        default=[],
        metavar="N|ID",
        help="a run by its number from 1 (-1: the last, the default), or by the start of its id; may be repeated",
    )
    add("--list", action="store_true", help="print the runs of the journals, and end")
    add(
        "--html",
        metavar="FILE",
        help="the page; default: timeline.html beside the first journal",
    )
    add("--trace", metavar="FILE", help="Chrome's and Perfetto's JSON; without --html, no page")
    add("--svg", metavar="FILE", help="a picture of the lanes; without --html, no page")
    return parser


def read_runs(
    journals: Sequence[Journal], wanted: Sequence[str]
) -> Tuple[List[Run], List[str]]:
    """The runs to show, and notes on what could not be read. Raises UsageError."""
    runs: Dict[str, Run] = {}
    notes = []
    for name, journal in choose(journals, wanted):
        run, torn = make_run(journal, name)
        if name in runs:
            raise UsageError(
                f"{journal.path}: run {name} is in {runs[name].path} too; name one"
            )
        runs[name] = run
        if torn:
            places = first_of([f"{journal.path}:{order}" for order in torn])
            notes.append(f"skipped, not whole: {counted(len(torn), 'line')}: {places}")
    return list(runs.values()), notes


def choose(journals: Sequence[Journal], wanted: Sequence[str]) -> Iterator[Tuple[str, Journal]]:
    """The runs that are asked for: of each journal the last, or a number; an id of the one that has it."""
    for want in wanted or ["-1"]:
        places = journals
        if not re.fullmatch(r"-?\d{1,9}", want):
            with_it = [
                journal
                for journal in journals
                if any(name.startswith(want) for name in journal.runs)
            ]
            places = with_it or journals[:1]
        for journal in places:
            yield find_run(journal, want), journal


def runs_text(journal: Journal) -> Iterator[str]:
    """A line for each run of a journal."""
    yield f"{journal.path}:"
    for number, name in enumerate(journal.runs, 1):
        try:
            run, _ = make_run(journal, name)
        except UsageError as error:
            yield f"{number:4}  {clean(name)}  {error}"
            continue
        end = show_seconds(run.seconds)
        if not run.has_ended:
            end += ", no end"
        yield clean(
            f"{number:4}  {name}  {show_time(run.start)}  {end}  {title_of(run)}: {outcomes_text(run)}"
        )


def summary(stories: Sequence[Story]) -> Iterator[str]:
    """What a terminal is told."""
    for story in stories:
        yield clean(f"{title_of(story.run)}: {'; '.join(facts_of(story)[:2])}")
        idle = idle_time(story.moments)
        total = math.fsum(idle.values())
        for reason, seconds in idle.items():
            if seconds >= max(BLINK_S, total / 100):
                part = f"{show_seconds(seconds):>8} ({share(seconds, total)} of it)"
                yield f"  idle {unit_of(story.run)} time {part}: {IDLE[reason]}"


def write(path: str, text: str) -> None:
    """Write a file, or standard output for `-`. Raises MachineError."""
    data = text.encode("utf-8", "backslashreplace")
    if path == "-" and sys.stdout is None:  # nobody wants to know
        return
    try:
        if path == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        else:
            with open(path, "wb") as file:
                file.write(data)
    except OSError as error:
        if path == "-":  # or Python fails at its end again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # its reader has seen enough
                return
        raise MachineError(
            f"cannot write {path} ({error.strerror}); name another place"
        ) from None


def outputs_of(options: argparse.Namespace, journals: Sequence[Journal]) -> Dict[str, str]:
    """The files to write, by the name of the option. Raises UsageError."""
    wanted = {"html": options.html, "trace": options.trace, "svg": options.svg}
    outputs = {name: path for name, path in wanted.items() if path}
    if not outputs:
        folder = ""
        if journals[0].path != "-":
            folder = os.path.dirname(journals[0].path)
        outputs["html"] = os.path.join(folder, "timeline.html")
    taken = [file_of(journal.path) for journal in journals if journal.path != "-"]
    for name, path in outputs.items():
        file = file_of(path)
        if file in taken:
            raise UsageError(
                f"--{name} {path}: that is a journal, or another output; name a file of its own"
            )
        taken.append(file)
    return outputs


def show(options: argparse.Namespace) -> None:
    """Read, derive, write. Raises UsageError, MachineError."""
    unique = {file_of(path): path for path in options.journals}
    journals = [read_journal(path) for path in unique.values()]
    if options.list:
        for journal in journals:
            write("-", "".join(f"{line}\n" for line in runs_text(journal)))
        return
    outputs = outputs_of(options, journals)
    runs, notes = read_runs(journals, options.run)
    if len(runs) > 1 and "svg" in outputs:
        raise UsageError("--svg is a picture of one run; name one journal, and one --run")
    stories, is_clock = tell_all(runs)
    if not is_clock:
        notes.append("These runs do not overlap in time: each begins at 0.")
    makers: Mapping[str, Callable[[], str]] = {
        "html": lambda: Page(stories, notes).html(),
        "trace": lambda: trace_of(stories),
        "svg": lambda: Picture(stories[0]).svg(),
    }
    for name, path in outputs.items():
        write(path, makers[name]())
    if "-" not in outputs.values():
        lines = [*summary(stories), *notes, *(f"wrote {path}" for path in outputs.values())]
        write("-", "".join(f"{line}\n" for line in lines))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    options = build_parser().parse_args(argv)
    try:
        show(options)
    except (UsageError, MachineError) as error:
        print(clean(f"{PROGRAM}: error: {error}"), file=sys.stderr)
        if isinstance(error, UsageError):
            return EXIT_USAGE
        return EXIT_MACHINE
    return EXIT_OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
