#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which CI jobs, or tests, to run for a change: correlate their past verdicts, cluster them, choose a cheaper set.

  ci_dedup.py statuses/ --html map.html --csv map.csv       a folder of job statuses, one JSON file per commit
  ci_dedup.py statuses/ --tests                             its test jobs alone, where their builds passed
  ci_dedup.py logs/*.jsonl --write reduced.txt --recent 3   journals of run_tests.py
  ci_dedup.py history.csv --keep '*asan*' --catch 100       CSV: commit,job,ok,seconds,gpus, oldest commit first
  ci_dedup.py runs/ --budget 15                             GitHub's, GitLab's or Buildkite's jobs as JSON, or JUnit
  run_tests.py tests.txt --only reduced.txt --message="$(git log -1 --format=%B)"

What is to be caught are new failures: a job fails that had passed before. Those of one commit in one cluster are one
breakage. The set is the cheapest (median seconds times GPUs) that would have caught as many breakages as 20 % of the
cost can catch. What it is worth is measured by walking forward through the history: choose by what came before, score
on what comes next, choose anew.

The idea and the numbers are those of "PyTorch CI deduplication" (Edward Z. Yang, 2019,
https://github.com/ezyang/pytorch-ci-deduplication): phi correlation of job statuses, complete-linkage clusters of the
correlation matrix's rows. What that study left to judgement, the choice and what it would have missed, is added here.

Two files belong together: this one and, for --html alone, the page ci_dedup.html.

exit codes:
  0 done   2 usage or bad input   3 a file cannot be written   5 no commit failed: nothing to choose by
"""

# The file reads as data flows: reading, history, clusters, choice, walking forward, report, files, command line.

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import datetime
import fnmatch
import functools
import glob
import heapq
import html
import io
import itertools
import json
import math
import operator
import os
import re
import statistics
import sys
import xml.etree.ElementTree
from typing import Any, Callable, Counter, Dict, FrozenSet, Hashable, Iterable, Iterator
from typing import List, Mapping, NamedTuple, Optional, Pattern, Sequence, Tuple

PROGRAM = "ci_dedup.py"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ci_dedup.html")
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING = 0, 2, 3, 5

# What a job did in a commit: was away, silent, passed, failed. Of its parts the last of these counts.
AWAY, SILENT, PASSED, FAILED = SIGNS = b" *+-"
WORDS = {
    PASSED: "1 1.0 true yes ok success successful pass passed flaky",
    FAILED: "0 0.0 false no failure fail failed crashed timeout timed_out error broken",
    SILENT: "skipped skip cancelled canceled neutral pending blocked deferred interrupted "
    "unrunnable nan none null",
}
VERDICTS = {word: sign for sign, words in WORDS.items() for word in words.split()}
VERDICTS.update({"": SILENT, "not run": SILENT})
CELLS = "commit job ok seconds gpus".split()  # of a table, which needs the first three
HEADER = (
    "names commit, job, ok and, if known, seconds and gpus, with commas or semicolons"
)
SUFFIXES = "_build _test -build -test _multigpu _NO_AVX_NO_AVX2 _NO_AVX2".split()
LARGEST = 1e9  # seconds or GPUs: more is a mistake
# What half a record, or one of another form, raises where it is read.
UNREADABLE = AttributeError, KeyError, RecursionError, TypeError, ValueError
PART = r" \(part \d+ of \d+\)$"  # how the label of a part of a split test ends

COMPLETE_PERCENT = 90.0  # of the jobs have to run, or a commit is left aside
RED_RUNS = 10  # verdicts in a row: who failed in all catches nothing until mended
RED_AGAIN = 0.5  # of the time that a job was red, and cost nothing: what is counted on
NEW_RUNS = 2  # newest commits: a job that is in none before is new
# Of the commits, and at least: a job that is in none so new is gone.
GONE_SHARE, GONE_RUNS = 0.1, 3
CUT = 0.1  # of the largest distance, up to which jobs are one cluster: the study's
DIGITS = 12  # of a distance: what is equal stays so whatever a Python's rounding
# Jobs squared times commits, 0.3 s: up to it each stretch has clusters of its own.
CLUSTER_WORK = 30_000_000

SEARCH_STEPS = 600_000  # looks at a job in search of the cheapest set: a second
CAPS = 24  # of prices, tried for a bound at first, each half of the one before
NEARLY = 1 - 1e-9  # what is cheaper by less is rounding
JUDGED = 0.7  # of the commits, the newest, through which a choice is judged
STRETCHES = 10  # into which they are cut; the choice is made anew before each
CERTAIN = 1.96  # standard deviations: 95 %

BUDGET_PERCENT = 20.0  # of the cost of all jobs
TARGETS = range(50, 101, 5)  # percent of the breakages, in the table
FEW_EVENTS = 30  # failing commits below which a share says little
AIM_PERCENT = 80.0  # of the failing commits; if a history allows less, it is said why
SHORT_S = 1000  # what costs less is told in seconds, else in hours
NAMED, LISTED = 10, 40  # names of a line, and lines of a list, that are shown

UNFIT = re.compile(r"^# |^\s|\s$|[\r\n]")  # to be a line of the file of labels
LEFT_OUT = "Left out (what is named nowhere here is new, and runs):"
FORMS = "name journals of run_tests.py, CSV files, or folders of JSON or JUnit files"

Jobs = FrozenSet[str]
Groups = Mapping[str, Hashable]  # by job, which cluster it is of


class Mistake(Exception):
    """What ends the command: in the command line, the input, or the machine (a full disk)."""

    def __init__(self, text: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - NAMED
    return " | ".join(names[:NAMED]) + f" \u2026 with {more} more" * (more > 0)


def told(what: str, names: Sequence[str]) -> List[str]:
    """A line of how many are so, and who; none where there are none."""
    return [f"{what}: {len(names)}: {listed(names)}"] * bool(names)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def percent(part: float, whole: float = 1.0) -> str:
    return f"{100 * part / (whole or 1.0):.1f} %"


# ---------------------------------------------------------------------------------------------------
# Reading: CSV files, journals, JSON and JUnit files, to what each job said of each commit, and cost.
# ---------------------------------------------------------------------------------------------------


# A file: its place among others, the path, the same below the folder that was named, and what reads it.
Source = Tuple[Any, str, str, Callable[[str, str], None]]
# A run of a job for a commit: seconds since 1970, commit, job, sign, cost if it is known.
Run = Tuple[float, str, str, int, Optional[float]]


def cost_of(seconds: Any, gpus: Any = None) -> Optional[float]:
    """Seconds times GPUs, 1 where these are not known; None where the seconds are not. Raises ValueError."""
    if seconds in (None, ""):
        return None
    try:
        time = float(seconds)
        count = 1.0 if gpus in (None, "") else float(gpus)
    except (ValueError, TypeError, OverflowError):
        time = count = math.inf
    if 0 <= time <= LARGEST and 0 <= count <= LARGEST:
        return time * count
    what = f"{seconds!r} seconds or {gpus!r} GPUs"
    raise ValueError(f"{what} are no number from 0 to {LARGEST:g}")


def sign_of(word: Any, otherwise: int = SILENT) -> int:
    """What a word says that a job did. Raises AttributeError."""
    return VERDICTS.get((word or "").strip().casefold(), otherwise)


def moment(text: Optional[str]) -> float:
    """Seconds since 1970 of `2026-03-16T07:00:00Z`, 0 where there is none. Raises ValueError."""
    if not text:
        return 0.0
    # Python 3.8 reads fractions of three or six digits alone.
    text = re.sub(r"\.\d+", "", text).replace("Z", "+00:00")
    return datetime.datetime.fromisoformat(text).timestamp()


def service_jobs(page: Any) -> Iterator[Dict[str, Any]]:
    """The jobs in JSON of GitHub, GitLab or Buildkite, with what their build says. Raises TypeError, AttributeError."""
    if isinstance(page, list):
        for part in page:
            yield from service_jobs(part)
    elif isinstance(page.get("jobs"), list):
        for job in page["jobs"]:
            if job.get("type", "script") == "script":  # else Buildkite waits there
                yield {**page, **job}
    else:
        yield page


def service_run(job: Mapping[str, Any]) -> Run:
    """A job of GitHub, GitLab or Buildkite. Raises KeyError, TypeError, AttributeError or ValueError."""
    commit = job.get("head_sha") or job["commit"]
    if isinstance(commit, dict):
        commit = commit["id"]
    name = " / ".join(filter(None, (job.get("workflow_name"), job["name"])))
    start = moment(job.get("started_at"))
    end = moment(job.get("completed_at") or job.get("finished_at"))
    cost = max(0.0, end - start) if start and end else None
    word = job.get("conclusion", job.get("status", job.get("state")))
    time = start or moment(job.get("created_at"))
    return time, commit, name, sign_of(word), cost


def json_values(text: str) -> Iterator[Any]:
    """The values of a text, one behind the other, as `gh api --paginate` prints them. Raises ValueError."""
    decoder = json.JSONDecoder()
    while text:
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:].lstrip()


def natural(name: str) -> List[str]:
    """A name in parts that sort as a reader would, `c9` before `c10`."""
    return [part.zfill(20 * part.isdigit()) for part in re.split(r"(\d+)", name)]


@functools.lru_cache(maxsize=1 << 16)  # names are few
def folded(job: str) -> str:
    """A job's name without the suffixes of its parts: builds, tests, variants."""
    for suffix in SUFFIXES:
        if job.endswith(suffix):
            job = job[: -len(suffix)]
    return job


class Reader:
    """What has been read, by job and commit. Commits are numbered as they come, the oldest first."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.commits: Dict[str, int] = {}
        self.jobs: Dict[str, bytearray] = collections.defaultdict(bytearray)  # signs
        self.costs: Dict[str, Dict[int, float]] = collections.defaultdict(dict)
        self.runs: List[Run] = []
        self.started: Dict[str, Tuple[str, int]] = {}  # by run: its commit, and GPUs
        self.waits: Dict[str, Jobs] = {}  # by job, those it waits for: they run, too
        self.skipped: List[str] = []  # what was not whole

    def add(self, commit: str, job: str, sign: int, cost: Optional[float]) -> None:
        """Take in what a part of a job said; it passed if all its parts did, and costs what they cost together."""
        number = self.commits.setdefault(commit, len(self.commits))
        signs = self.jobs[job]
        if number >= len(signs):
            signs.extend(b" " * (number + 1 - len(signs)))
        signs[number] = max(signs[number], sign)
        if cost is not None and sign != SILENT:
            costs = self.costs[job]
            costs[number] = costs.get(number, 0.0) + cost

    def read(self) -> None:
        """Take in all sources, which have to be of one kind. Raises Mistake."""
        once = {os.path.realpath(path): path for path in self.options.sources}
        path = ""
        try:
            files: List[Source] = []
            for path in once.values():
                files += self.files_of(path)
            if len({read for *_, read in files}) > 1:
                raise Mistake("sources are of different kinds; " + FORMS)
            for _, path, below, read in sorted(files, key=operator.itemgetter(0)):
                try:
                    read(path, below)
                except (ValueError, RecursionError, xml.etree.ElementTree.ParseError):
                    self.skipped.append(path)
        except (OSError, csv.Error) as error:
            why = getattr(error, "strerror", error)
            raise Mistake(f"{path}: cannot be read ({why}); {FORMS}") from None
        self.runs.sort(key=operator.itemgetter(0))
        for run in self.runs:
            self.commits.setdefault(run[1], len(self.commits))
        # Of the runs of one commit and job the last that says something counts.
        self.runs.sort(key=lambda run: run[3] != SILENT)
        for run in {run[1:3]: run for run in self.runs}.values():
            self.add(*run[1:])

    def files_of(self, source: str) -> Iterator[Source]:
        """The files of a folder and below, or a file that is named. Raises OSError."""
        readers = {".json": self.read_json, ".xml": self.read_junit}
        folder, paths = os.path.dirname(source) or ".", [source]
        if os.path.isdir(source):
            readers[""] = self.read_json
            folder = source
            found = glob.glob(os.path.join(glob.escape(source), "**"), recursive=True)
            paths = [path for path in found if os.path.isfile(path)]
        elif not source.endswith(tuple(readers)):
            is_table = source.endswith(".csv")
            yield (), source, "", self.read_table if is_table else self.read_journal
            return
        for path in paths:
            stem, extension = os.path.splitext(path)
            if extension in readers:
                changed = os.stat(path).st_mtime_ns * (self.options.order == "time")
                below = os.path.relpath(stem, folder)
                yield (changed, natural(path)), path, below, readers[extension]

    def read_table(self, path: str, _: str) -> None:
        """Take in a CSV file, oldest commit first; a last row that is torn is skipped. Raises Mistake or OSError."""
        mistake = ""
        with open(
            path, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as file:
            first = file.readline()
            mark = ";" if first.count(";") > first.count(",") else ","
            rows = csv.reader(itertools.chain([first], file), delimiter=mark)
            header = [name.strip() for name in next(rows, [])]
            lacking = ", ".join(name for name in CELLS[:3] if name not in header)
            if lacking:
                raise Mistake(f"{path}:1: no column {lacking}; the first line {HEADER}")
            places = [header.index(name) if name in header else -1 for name in CELLS]
            cells_of = operator.itemgetter(*places)
            blanks = [""] * len(header)
            last = max(places[:3])
            for row in filter(None, rows):
                if mistake:
                    raise Mistake(mistake)
                commit, job, ok, seconds, gpus = cells_of(row + blanks)
                try:
                    if not (commit and job and len(row) > last):
                        raise ValueError("commit, job or ok is missing")
                    sign = VERDICTS.get(ok.strip().casefold())
                    if sign is None:
                        why = "and not 1, 0, a word such as failed, or empty"
                        raise ValueError(f"ok is {ok!r} {why}")
                    if mark == ";":
                        seconds = seconds.replace(",", ".")
                    self.add(commit, job, sign, cost_of(seconds, gpus))
                except ValueError as error:
                    mistake = f"{path}:{rows.line_num}: {error}; mend the row"
        self.skipped += filter(None, [mistake])

    def read_journal(self, path: str, _: str) -> None:
        """Take in a journal of run_tests.py; torn lines are counted. Raises OSError."""
        torn = 0
        with open(path, "rb") as file:
            for line in filter(bytes.strip, file):
                start = max(0, line.rfind(b'{"event"'))  # behind a torn line, perhaps
                try:
                    self.add_event(json.loads(line[start:]))
                except UNREADABLE:
                    torn += 1
        if torn:
            self.skipped.append(f"{path} ({counted(torn, 'line')})")

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take in an event; a run whose CI named no commit is one by itself. Raises what json.loads may not."""
        if event["event"] == "run_start":
            run = event["run"]
            commit = str(event.get("commit") or run)
            self.started[run] = commit, len(event["gpus"])
        elif event["event"] == "test_end":
            run, label, need = event["run"], event["label"], event.get("need")
            if "origin" in event and re.search(PART, label):
                return  # of a split test, which has an end of its own as a whole
            commit, gpus = self.started.get(run, (run, 1))
            cost = cost_of(event["seconds"], gpus if need == "all" else need)
            sign = sign_of(event["outcome"])
            if not isinstance(label, str):
                raise TypeError("a label is a text")
            self.runs.append((float(event["time"]), commit, label, sign, cost))
            self.waits[label] = frozenset(event.get("after", ()))

    def read_json(self, path: str, below: str) -> None:
        """Take in statuses, or a service's jobs. Raises ValueError for half a file, Mistake for one of another form."""
        with open(path, encoding="utf-8") as file:
            values = [*json_values(file.read().lstrip())]
        if not values:
            raise ValueError("empty")
        try:
            first = values[0]
            if isinstance(first, dict) and not isinstance(first.get("jobs"), list):
                self.add_statuses(os.path.basename(below), *values)
            else:
                self.runs += map(service_run, service_jobs(values))
        except UNREADABLE as error:
            raise Mistake(
                f'{path}: neither {{job: {{"status": "success", …}}}} nor jobs as GitHub, GitLab or '
                f"Buildkite print them ({error}); mend or remove the file"
            ) from None

    def add_statuses(self, commit: str, statuses: Mapping[str, Any]) -> None:
        """Take in one commit's `{job: {"status": "success", …}}`, perhaps with `seconds` and `gpus`.

        With --tests tests stay apart, and those whose build failed say nothing. Raises ValueError for another form.
        """
        parts = []
        broken = set()
        for job, record in statuses.items():
            try:
                sign = sign_of(record["status"], otherwise=FAILED)
                cost = cost_of(record.get("seconds"), record.get("gpus"))
            except UNREADABLE:
                raise ValueError(f"job {job!r} is {str(record)[:100]}") from None
            parts.append((job, sign, cost))
            if sign == FAILED and job.endswith(("_build", "-build")):
                broken.add(folded(job))
        for job, sign, cost in parts:
            if not self.options.tests:
                self.add(commit, folded(job), sign, cost)
            elif job.endswith(("_test", "-test")):
                self.add(commit, job, SILENT if folded(job) in broken else sign, cost)

    def read_junit(self, path: str, below: str) -> None:
        """Take in a JUnit file. Raises ValueError or ParseError for half of one, Mistake where no commit is told.

        The commit is what --commit finds in the path; else the folder right below the source is, and the file is the
        job; a file right in the source is a commit by itself, and its test cases are the jobs.
        """
        commit, _, job = below.partition(os.sep)
        pattern = self.options.commit
        if pattern:
            match = pattern.search(path)
            if not match:
                why = f"--commit {pattern.pattern} finds nothing in this path; mend it"
                raise Mistake(f"{path}: {why}")
            commit = match.group(match.lastindex or 0)
            job = os.path.basename(below)
        cases = []
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
            if job and not self.options.cases:
                name = job
            tags = {child.tag for child in case}
            sign = SILENT if "skipped" in tags else PASSED
            if tags & {"failure", "error"}:
                sign = FAILED
            cases.append((name, sign, cost_of(case.get("time", "").replace(",", ""))))
        for name, sign, cost in cases:
            self.add(commit, name, sign, cost)


# ---------------------------------------------------------------------------------------------------
# History: which jobs were new, failed anew and were red for long at which commits. Pure.
# ---------------------------------------------------------------------------------------------------

# Python 3.8 and 3.9 count bits in another way.
ones_in = getattr(int, "bit_count", lambda bits: bin(bits).count("1"))
NEW_FAILURE = re.compile(rb"(?:^|\+) *-")  # in a job's signs
LONG_RED = re.compile(rb"(?:- *){%d}-([- ]*)" % (RED_RUNS - 1))  # its group: since then


class Job(NamedTuple):
    """What a job said and costs. Whole numbers have a bit for each commit, that of the oldest is the lowest."""

    ran: int
    passed: int
    anew: int  # where it failed such that it is to be caught
    red: int  # where it had been red for long before: it does not run for a change until it is mended
    cost: float  # seconds times GPUs a commit; where none are known, 1


class History(NamedTuple):
    """The jobs that count, by name and in its order, and the commits in which nearly all of them ran."""

    commits: List[str]
    jobs: Dict[str, Job]
    waits: Dict[str, Jobs]
    is_timed: bool  # whether costs are seconds
    has_clusters: bool  # or else all failures of a commit are one breakage
    recent: Jobs  # what failed in the last runs, also in those that are left aside
    notes: List[str]  # what else a reader should know

    def closed(self, jobs: Iterable[str]) -> Jobs:
        """The jobs and all that they wait for."""
        found = set()
        left = [*jobs]
        while left:
            job = left.pop()
            if job in self.jobs and job not in found:
                found.add(job)
                left += self.waits.get(job, ())
        return frozenset(found)

    def cost(self, jobs: Iterable[str]) -> float:
        """What jobs cost together a commit, the same in whatever order they come."""
        return math.fsum(self.jobs[job].cost for job in jobs)

    def where(self, is_so: Callable[[Job], Any]) -> Jobs:
        return frozenset(name for name, job in self.jobs.items() if is_so(job))

    def young(self, number: int) -> Jobs:
        """The jobs that are in none but the newest of the first so many commits, or come later."""
        # Those of the first commit may be old.
        known = bits_between(0, max(1, number - NEW_RUNS))
        return self.where(lambda job: not job.ran & known)

    def there(self, number: int) -> Jobs:
        """The jobs that run still when so many commits are known: those of the newest."""
        start = min(number - GONE_RUNS, math.floor(number * (1 - GONE_SHARE)))
        newest = bits_between(max(0, start), number)
        return self.where(lambda job: job.ran & newest)


def bits_between(start: int, end: int) -> int:
    """A bit for each commit from one number to before another."""
    return (1 << end) - (1 << start)


def union(many: Iterable[int]) -> int:
    return functools.reduce(operator.or_, many, 0)


def places_of(bits: int) -> List[int]:
    """The numbers of the commits that have a bit, the oldest first."""
    return [match.start() for match in re.finditer("1", bin(bits)[:1:-1])]


def matching(option: str, patterns: Iterable[str], jobs: Sequence[str]) -> Jobs:
    """The jobs that patterns (`*asan*`) name. Raises Mistake for a pattern that names none."""
    found: Jobs = frozenset()
    for pattern in patterns:
        named = {*fnmatch.filter(jobs, pattern), *{pattern}.intersection(jobs)}
        if not named:
            why = f"no job has such a name; there are {listed(jobs)}"
            raise Mistake(f"{option} {pattern}: {why}")
        found |= named
    return found


def complete(signs: Sequence[bytes], percent: float) -> List[bool]:
    """For each commit, whether that share of the jobs that were there said something.

    A job is there from its first verdict until its longest silence has passed since its last, or where it is named
    without a verdict. So runs of a reduced set are left aside: what they leave out has neither passed nor failed.
    """
    change: Counter[int] = collections.Counter()  # by commit, how many jobs come or go
    for text in signs:
        spoken = text.strip(b" *")
        start = text.index(spoken)
        silence = max(map(len, re.split(b"[-+]", spoken)))
        change[start] += 1
        change[start + len(spoken) + silence] -= 1
    full = []
    there = 0
    for number, column in enumerate(zip(*signs)):
        there += change[number]
        ran = column.count(PASSED) + column.count(FAILED)
        named = len(column) - column.count(AWAY)
        full.append(ran > 0 and ran >= percent / 100 * max(there, named))
    return full


def bits_of(signs: bytes, *ones: int) -> int:
    """A bit for each sign that is one of these."""
    digits = bytes(b"01"[sign in ones] for sign in SIGNS)
    return int(signs[::-1].translate(bytes.maketrans(SIGNS, digits)), 2)


def job_of(signs: bytes, cost: float, counts_red: bool) -> Job:
    """What a job said, by its signs; with `counts_red` each failure is to be caught, old or new."""
    ran = bits_of(signs, PASSED, FAILED)
    passed = bits_of(signs, PASSED)
    if counts_red:
        return Job(ran, passed, ran & ~passed, 0, cost)
    anew = red = 0
    for match in NEW_FAILURE.finditer(signs):
        anew |= 1 << (match.end() - 1)
    for match in LONG_RED.finditer(signs):
        red |= bits_between(match.start(1), match.end(1) + 1)
    return Job(ran, passed, anew, red, cost)


def costs_of(reader: Reader, jobs: Iterable[str], full: List[bool]) -> Dict[str, float]:
    """Each job's median cost, the median of the others' where its own is unknown; empty if none costs anything."""
    medians = {}
    for job in jobs:
        known = [cost for number, cost in reader.costs[job].items() if full[number]]
        if known:
            medians[job] = statistics.median(known)
    if not any(medians.values()):
        return {}
    usual = statistics.median(medians.values())
    return {job: medians.get(job, usual) for job in jobs}


def history_of(reader: Reader, options: argparse.Namespace) -> History:
    """The jobs that count, and the commits in which nearly all ran. Raises Mistake where there are none."""
    total = len(reader.commits)
    notes = told("skipped, not whole", reader.skipped)
    signs = {job: bytes(reader.jobs[job].ljust(total)) for job in sorted(reader.jobs)}
    signs = {job: text for job, text in signs.items() if text.strip(b" *")}
    for job in matching("--drop", options.drop, [*signs]):
        del signs[job]
    last = max(0, total - options.recent)
    recent = {job for job in signs if FAILED in signs[job][last:]}
    full = complete([*signs.values()], options.complete)
    if not all(full):
        notes.append(
            f"left aside: {counted(full.count(False), 'commit')} of {total:,}, in which less than "
            f"{options.complete:g} % of the jobs ran; --complete 0 takes all"
        )
    for job, text in signs.items():
        signs[job] = bytes(itertools.compress(text, full)).replace(b"*", b" ")
    broken = [job for job, text in signs.items() if PASSED not in text]
    if any(full):
        notes += told("left out, since they never passed", broken)
    for job in broken:
        del signs[job]
    if not signs:
        why = f"{', '.join(options.sources)}: no job passed in a commit that counts; {FORMS}"
        raise Mistake("; ".join([why, *notes]))
    costs = costs_of(reader, signs, full)
    counts_red = options.count == "red"
    jobs = {job: job_of(signs[job], costs.get(job, 1.0), counts_red) for job in signs}
    return History(
        commits=[*itertools.compress(reader.commits, full)],
        jobs=jobs,
        waits=reader.waits,
        is_timed=bool(costs),
        has_clusters=not counts_red,
        recent=frozenset(recent & jobs.keys()),
        notes=notes,
    )


# ---------------------------------------------------------------------------------------------------
# Clusters: the matrix of correlations, the tree, the groups of jobs that tell the same. Pure.
# ---------------------------------------------------------------------------------------------------

Matrix = List[List[float]]
Verdicts = Tuple[int, int]  # where a job ran, and passed: a bit for each commit
# Of a tree two nodes that become one, and their distance; leaves are numbered from 0, merges from their number on.
Merge = Tuple[int, int, float]


class Clusters(NamedTuple):
    """Jobs by what they tell: in dendrogram order, then those whose verdict never changed, which are in no group."""

    jobs: List[str]  # of the matrix's rows and columns
    groups: List[List[str]]
    matrix: Matrix  # phi; nan where either job was constant over the commits of both
    tree: List[Merge]  # leaves are numbered as in `jobs`

    def number_of(self) -> Dict[str, int]:
        """By job, its group's number, from 1."""
        numbered = enumerate(self.groups, 1)
        return {job: number for number, group in numbered for job in group}


def phi_of(one: Verdicts, other: Verdicts) -> float:
    """Pearson's coefficient of two jobs' verdicts over the commits of both; nan where either was constant there.

    It is what pandas' `corr` gives of 0 and 1. Counts of bits are exact, and cost a few machine words.
    """
    total = ones_in(one[0] & other[0])
    ones = ones_in(one[1] & other[0])
    others = ones_in(other[1] & one[0])
    variances = ones * (total - ones) * others * (total - others)
    if not variances:
        return math.nan
    both = ones_in(one[1] & other[1])
    return (total * both - ones * others) / math.sqrt(variances)


def distance_of(one: Sequence[float], other: Sequence[float]) -> float:
    """The Euclidean distance of two rows of the matrix."""
    return round(math.dist(one, other), DIGITS)


def matrix_of(values: Sequence[Any], measure: Callable[[Any, Any], float]) -> Matrix:
    """A measure that is the same both ways, of each pair of values; each pair of distinct ones is measured once."""
    number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
    distinct = [*number_of]
    table = [[0.0] * len(distinct) for _ in distinct]
    for row, one in enumerate(distinct):
        for column, other in enumerate(distinct[: row + 1]):
            table[row][column] = table[column][row] = measure(one, other)
    numbers = [number_of[value] for value in values]
    return [[table[row][column] for column in numbers] for row in numbers]


def linkage(distances: Matrix) -> List[Merge]:
    """The tree of complete linkage: the distance of two clusters is that of their farthest members. Lowest merge first.

    By the chain of nearest neighbours (F. Murtagh, "A survey of recent advances in hierarchical clustering
    algorithms", 1983), in O(n²). Where distances are equal the chain's last but one, then the first in order is the
    nearest, as in D. Müllner's fastcluster and in SciPy, whose `linkage(…, "complete")` gives the same tree.
    """
    apart = [[*row] for row in distances]
    for number, row in enumerate(apart):
        row[number] = math.inf
    alive = [*range(len(apart))]
    chain: List[int] = []
    joined: List[Merge] = []  # of clusters that are named by one of their leaves
    while len(alive) > 1:
        chain = chain or alive[:1]
        here = apart[chain[-1]]
        nearest = min(alive, key=here.__getitem__)
        if len(chain) < 2 or here[nearest] < here[chain[-2]]:
            chain.append(nearest)
            continue
        gone, stays = sorted(chain[-2:])
        joined.append((gone, stays, apart[gone][stays]))
        alive.remove(gone)
        del chain[-2:]
        for other in alive:
            if other != stays:
                farther = max(apart[gone][other], apart[stays][other])
                apart[stays][other] = apart[other][stays] = farther
    node = [*range(len(apart))]  # the tree's number of the cluster that a leaf names
    tree: List[Merge] = []
    for gone, stays, height in sorted(joined, key=operator.itemgetter(2)):
        left, right = sorted((node[gone], node[stays]))
        node[stays] = len(apart) + len(tree)
        tree.append((left, right, height))
    return tree


def groups_at(tree: Sequence[Merge], cut: float) -> List[List[int]]:
    """The leaves of the clusters that merges of at most that height have made, in the order of the dendrogram."""
    # By node, the clusters in it.
    below = {leaf: [[leaf]] for leaf in range(len(tree) + 1)}
    for node, (left, right, height) in enumerate(tree, len(below)):
        groups = below.pop(left) + below.pop(right)
        if height <= cut:
            groups = [[*itertools.chain(*groups)]]
        below[node] = groups
    return below.popitem()[1]


def cluster(verdicts: Mapping[str, Verdicts]) -> Clusters:
    """Group the jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it comes last. A correlation of two other
    jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """
    varied = sorted(job for job, (ran, passed) in verdicts.items() if 0 < passed < ran)
    jobs = [*varied, *sorted(verdicts.keys() - varied)]
    matrix = matrix_of([verdicts[job] for job in jobs], phi_of)
    if not varied:
        return Clusters(jobs, [], matrix, [])
    rows = []
    for row in matrix[: len(varied)]:
        # New numbers, one beside the other in memory: the distances are three times as fast.
        known = (0.0 if math.isnan(phi) else phi + 0.0 for phi in row[: len(varied)])
        rows.append(tuple(known))
    distances = matrix_of(rows, distance_of)
    tree = linkage(distances)
    groups = groups_at(tree, CUT * max(map(max, distances)))
    leaves = [*itertools.chain(*groups)]
    order = leaves + [*range(len(varied), len(jobs))]
    nodes = {leaf: number for number, leaf in enumerate(leaves)}
    return Clusters(
        [jobs[number] for number in order],
        [[jobs[leaf] for leaf in group] for group in groups],
        [[matrix[one][other] for other in order] for one in order],
        [
            (nodes.get(one, one), nodes.get(other, other), far)
            for one, other, far in tree
        ],
    )


# ---------------------------------------------------------------------------------------------------
# Choice: the cheapest jobs that catch so many breakages. Pure.
# ---------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What there is to choose from, and by, at one moment. A breakage is a pair of a commit and a cluster."""

    breakages: Dict[str, int]  # by job, in which commits it failed anew: bits
    cluster_of: Groups  # a job of none is one by itself
    costs: Dict[str, float]  # of a job that is there, with what it waits for
    total: float  # of all jobs that are there, a commit
    kept: Jobs

    def covered(self, jobs: Iterable[str]) -> Dict[Hashable, int]:
        """By cluster, the commits whose breakages there these jobs catch."""
        found: Dict[Hashable, int] = collections.defaultdict(int)
        for job in jobs:
            found[self.cluster_of.get(job, job)] |= self.breakages.get(job, 0)
        return found

    def caught(self, jobs: Iterable[str]) -> int:
        """How many breakages these jobs catch."""
        return sum(map(ones_in, self.covered(jobs).values()))

    def cost(self, jobs: Iterable[str]) -> float:
        return math.fsum(self.costs.get(job, 0.0) for job in jobs)

    def needed(self, percent: float) -> int:
        """How many breakages are that share of all."""
        return math.ceil(self.caught(self.breakages) * percent / 100 - 1e-9)

    def events(self) -> Counter[Jobs]:
        """The breakages that the kept jobs do not catch: by the jobs that catch them, how many."""
        covered = self.covered(self.kept)
        found: Dict[Tuple[Hashable, int], List[str]] = collections.defaultdict(list)
        for job, commits in self.breakages.items():
            cluster = self.cluster_of.get(job, job)
            for place in places_of(commits & ~covered[cluster]):
                found[cluster, place].append(job)
        return collections.Counter(map(frozenset, found.values()))


Picks = List[Tuple[str, int]]  # jobs, and what each catches with those before it


def picks_of(plan: Plan, limit: float = math.inf) -> Picks:
    """Jobs in the order of what they cost per breakage that none before them catches, as long as all cost no more.

    One pass answers what each share of the breakages costs: a job's gain only falls, so that the best is known without
    asking all others again (M. Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978).
    """
    covered = plan.covered(plan.kept)
    caught = plan.caught(plan.kept)
    cost = plan.cost(plan.kept)
    heap = [(0.0, plan.costs[job], job) for job in plan.breakages]
    picks = []
    while heap:
        ratio, price, job = heapq.heappop(heap)
        cluster = plan.cluster_of.get(job, job)
        gain = ones_in(plan.breakages[job] & ~covered[cluster])
        if not gain or cost + price > limit:
            continue
        if price / gain > ratio:
            heapq.heappush(heap, (price / gain, price, job))
            continue
        cost += price
        caught += gain
        covered[cluster] |= plan.breakages[job]
        picks.append((job, caught))
    return picks


class Policy(NamedTuple):
    """What an owner asks for: what that share of the cost buys, or that share of the breakages if that takes more."""

    catch: float  # percent
    budget: float = 0.0  # percent

    def jobs(self, plan: Plan, picks: Picks) -> Jobs:
        """The jobs that greed takes, of all that it picks without a limit."""
        need = plan.needed(self.catch)
        bought = picks_of(plan, plan.total * self.budget / 100)
        found = plan.kept.union(job for job, _ in bought)
        if plan.caught(found) >= need:
            return found
        caught = [plan.caught(plan.kept), *(caught for _, caught in picks)]
        taken = sum(number < need for number in caught)
        return plan.kept.union(job for job, _ in picks[:taken])


Costs = Mapping[str, float]
Failure = Tuple[Jobs, int]  # the jobs that catch it, and how often it came
Choice = Tuple[Jobs, float]  # and what any that catches as much costs at least


def worth(left: Iterable[Failure], missing: int, costs: Costs, cap: float) -> float:
    """What jobs cost at least that catch so many of these failures.

    Each failure gets a price, such that no job catches failures of more worth than it costs (a solution of the
    linear program's dual, failures of few jobs first). So a set costs no less than the failures that it catches are
    worth, and these no less than the cheapest that could be. Prices are capped, since dear ones are those that a
    set may miss.
    """
    slack = dict(costs)
    prices = []
    for jobs, weight in left:
        price = min(cap, *(slack[job] / weight for job in jobs))
        prices.append((price, weight))
        for job in jobs:
            slack[job] -= price * weight
    total = 0.0
    for price, weight in sorted(prices):
        total += price * max(0, min(weight, missing))
        missing -= weight
    return total


def best_of(left: Iterable[Failure], missing: int, costs: Costs) -> str:
    """The job that costs least per failure that it catches of those that are missing."""
    gains: Counter[str] = collections.Counter()
    for jobs, weight in left:
        for job in jobs:
            gains[job] += weight
    return min(gains, key=lambda job: (costs[job] / min(gains[job], missing), job))


def undominated(failures: Iterable[Jobs], costs: Costs) -> Jobs:
    """The jobs to choose from: without those of which another catches all that they do, and costs no more."""
    caught: Dict[str, List[Jobs]] = collections.defaultdict(list)
    for jobs in failures:
        for job in jobs:
            caught[job].append(jobs)
    useful: Jobs = frozenset()
    for job in sorted(caught, key=lambda job: (costs[job], -len(caught[job]), job)):
        if not useful.intersection(*caught[job]):  # nobody is in each of its failures
            useful |= {job}
    return useful


def cheapest(failures: Mapping[Jobs, int], costs: Costs, need: int) -> Choice:
    """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

    Branch and bound, depth first: the best job is in, or else it is out, so that greed finds the first set. It ends
    after a number of steps, not of seconds: the same input has the same answer everywhere.
    """
    may_miss = sum(failures.values()) - need
    useful = undominated(failures, costs)
    kinds = [(jobs & useful, weight) for jobs, weight in failures.items()]
    kinds.sort(key=lambda kind: (len(kind[0]), sorted(kind[0]), kind[1]))
    found: Jobs = frozenset()
    cost = math.inf
    steps = 0
    caps = [max(costs.values()) / 2**power for power in range(CAPS)]
    # A branch of the search: sets with the chosen jobs, without the barred ones, that cost so much at least.
    nodes = [(0.0, found, found, caps)]
    while nodes and (cost == math.inf or steps < SEARCH_STEPS):
        _, chosen, barred, caps = nodes.pop()
        left = [kind for kind in kinds if chosen.isdisjoint(kind[0])]
        missing = sum(weight for _, weight in left) - may_miss
        spent = math.fsum(costs[job] for job in chosen)
        if missing <= 0 and spent < cost * NEARLY:
            found, cost = chosen, spent
        left = [(jobs - barred, weight) for jobs, weight in left if not jobs <= barred]
        if missing <= 0 or sum(weight for _, weight in left) < missing:
            continue
        steps += sum(len(jobs) for jobs, _ in left) * len(caps)
        least, cap = max((worth(left, missing, costs, cap), cap) for cap in caps)
        if spent + least < cost * NEARLY:
            job = best_of(left, missing, costs)
            caps = [cap * 2, cap, cap / 2]
            nodes.append((spent + least, chosen, barred | {job}, caps))
            nodes.append((spent + least, chosen | {job}, barred, caps))
    return found, min([cost, *(node[0] for node in nodes)])


def final_choice(plan: Plan, policy: Policy) -> Choice:
    """The cheapest set that catches what a policy asks for, or as much as greed does for its budget."""
    greedy = policy.jobs(plan, picks_of(plan))
    need = plan.caught(greedy) if policy.budget else plan.needed(policy.catch)
    need -= plan.caught(plan.kept)
    fixed = plan.cost(plan.kept)
    if need <= 0:
        return plan.kept, fixed
    found, bound = cheapest(plan.events(), plan.costs, need)
    return min(greedy, found | plan.kept, key=plan.cost), bound + fixed


# ---------------------------------------------------------------------------------------------------
# Walking forward: what a choice by the past would have caught in what came next. Pure.
# ---------------------------------------------------------------------------------------------------


def clusters_at(history: History, number: int) -> Clusters:
    """The clusters of the first so many commits."""
    past = bits_between(0, number)
    jobs = history.jobs.items()
    verdicts = {name: (job.ran & past, job.passed & past) for name, job in jobs}
    return cluster({name: said for name, said in verdicts.items() if said[0]})


def plan_at(
    history: History, number: int, clusters: Clusters, keep: Jobs, known: int
) -> Plan:
    """What there is to choose from when so many commits are there, by what those that are known say.

    More are known in hindsight. Jobs that are gone, or new, are not there to choose from.
    """
    past = bits_between(0, number)
    seen = bits_between(0, known)
    there = history.there(number)
    young = history.young(number)
    costs = {}
    breakages = {}
    for name in sorted(there):
        job = history.jobs[name]
        ran = job.ran & past
        was_red = ones_in(ran & job.red) / max(1, ones_in(ran))
        costs[name] = history.cost(history.closed([name])) * (1 - RED_AGAIN * was_red)
        if job.anew & seen and name not in young:
            breakages[name] = job.anew & seen
    groups = clusters.number_of()
    if not history.has_clusters:
        groups = dict.fromkeys(history.jobs, 0)
    return Plan(breakages, groups, costs, history.cost(there), keep & there)


@dataclasses.dataclass
class Score:
    """What sets would have done on stretches of commits."""

    stretches: int = 0
    commits: int = 0
    failing: int = 0  # a bit for each commit, as in the next two
    caught: int = 0
    strange: int = 0  # where only jobs failed that had never failed before
    events: int = 0
    events_caught: int = 0
    cost: float = 0.0  # of all commits together, as the next
    cost_of_all: float = 0.0

    def add(
        self, history: History, start: int, end: int, groups: Groups, jobs: Jobs
    ) -> None:
        """What jobs that were chosen before a stretch would have caught and cost there."""
        window = bits_between(start, end)
        anew = {name: job.anew & window for name, job in history.jobs.items()}
        failing = union(anew.values())
        known = 0
        for name, job in history.jobs.items():
            self.cost_of_all += job.cost * ones_in(job.ran & window)
            if job.anew & bits_between(0, start):
                known |= anew[name]
            if name in jobs:
                self.cost += job.cost * ones_in(job.ran & ~job.red & window)
        self.stretches += 1
        self.commits += end - start
        self.failing |= failing
        self.caught |= union(anew[name] for name in jobs)
        self.strange |= failing & ~known
        events = Plan(anew, groups, {}, 0.0, frozenset())
        self.events += events.caught(anew)
        self.events_caught += events.caught(jobs)

    def share(self) -> float:
        """Of the failing commits, those caught, from 0 to 1; 0 where none failed."""
        return ones_in(self.caught) / max(1, ones_in(self.failing))

    def price(self) -> float:
        """Of the cost of all, what the sets cost, from 0 to 1."""
        return self.cost / (self.cost_of_all or 1.0)

    def interval(self) -> Tuple[float, float]:
        """Where the share of the caught lies with a certainty of 95 %.

        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
        """
        if not self.failing:
            return 0.0, 1.0
        share = self.share()
        squared = CERTAIN * CERTAIN / ones_in(self.failing)
        half = math.sqrt(share * (1 - share) * squared + squared * squared / 4)
        low = (share + squared / 2 - half) / (1 + squared)
        high = (share + squared / 2 + half) / (1 + squared)
        return max(0.0, low), min(1.0, high)


class Line(NamedTuple):
    """A policy: the jobs that it chooses now, what it would have done walking forward, and with hindsight."""

    policy: Policy
    jobs: Jobs
    ahead: Score
    behind: Score


def chosen_by(history: History, policies: Sequence[Policy], plan: Plan) -> List[Jobs]:
    """What each policy chooses by a plan, with all that it waits for."""
    picks = picks_of(plan)
    return [history.closed(policy.jobs(plan, picks)) for policy in policies]


def walk(history: History, lines: Sequence[Line], keep: Jobs, late: Clusters) -> None:
    """Choose by the past before each stretch of the newest commits, and add up the scores of the lines.

    A stretch before which nothing failed is not judged. Clusters are those of the past, too: computed anew for each
    stretch, or, where that takes long, once; `late` are those of the whole history, for what hindsight says.
    """
    count = len(history.commits)
    judged = math.floor(count * JUDGED)
    places = range(STRETCHES + 1)
    edges = sorted({count - judged + judged * place // STRETCHES for place in places})
    policies = [line.policy for line in lines]
    early = None
    for start, end in zip(edges, edges[1:]):
        if early is None or len(history.jobs) ** 2 * start <= CLUSTER_WORK:
            early = clusters_at(history, start)
        plan = plan_at(history, start, early, keep, known=start)
        wise = plan_at(history, start, late, keep, known=count)
        if plan.breakages:
            ahead = chosen_by(history, policies, plan)
            behind = chosen_by(history, policies, wise)
            for line, jobs, wise_jobs in zip(lines, ahead, behind):
                line.ahead.add(history, start, end, plan.cluster_of, jobs)
                line.behind.add(history, start, end, plan.cluster_of, wise_jobs)


# ---------------------------------------------------------------------------------------------------
# Report: its summary, and what speaks for it, line by line.
# ---------------------------------------------------------------------------------------------------


class Report(NamedTuple):
    """All that was found, for all that is written."""

    history: History
    clusters: Clusters
    plan: Plan
    choice: Optional[Choice]
    lines: List[Line]  # of the table, and last of what is recommended
    # What becomes of the jobs; no two sets share one, but that of `mend` and others.
    chosen: Jobs
    new: Jobs
    again: Jobs  # failed in the last runs
    mend: Jobs  # red for long
    gone: Jobs

    def rest(self) -> Jobs:
        """The jobs that are left out since they tell nothing new."""
        ours = self.chosen | self.new | self.again | self.mend | self.gone
        return frozenset(self.history.jobs) - ours

    def price(self, cost: float) -> str:
        """A cost with its unit: of time on one GPU, or jobs where no times are known."""
        if not self.history.is_timed:
            return f"{cost:,.4g} job" + "s" * (cost != 1)
        if cost < SHORT_S:
            return f"{cost:,.1f} s"
        return f"{cost / 3600:,.1f} h"


def summary_lines(report: Report) -> Iterator[str]:
    """What it comes to."""
    history = report.history
    failing = ones_in(union(job.anew for job in history.jobs.values()))
    yield (
        f"{counted(len(history.jobs), 'job')}, {counted(len(history.commits), 'commit')} from {history.commits[0]} to "
        f"{history.commits[-1]}, {counted(failing, 'failing commit')}"
    )
    yield from history.notes
    if not report.choice:
        yield "No commit failed on which to choose; nothing is recommended."
        return
    yield recommended_line(report, *report.choice)
    if not report.chosen:
        yield "warning: nothing is chosen, and --only takes no empty file; ask for a larger --budget, or --keep a job"
    for jobs, why in (
        (report.new, "new, and run too until more is known of them"),
        (report.again, "failed lately, and run too (--recent)"),
    ):
        share = percent(history.cost(jobs), report.plan.total)
        yield from told(f"{why}, {share} of the cost", sorted(jobs))
    yield from told("no longer run, and not recommended", sorted(report.gone))
    if report.lines[-1].ahead.stretches:
        yield from headline(report.lines)
        yield from table_lines(report)


def recommended_line(report: Report, jobs: Jobs, bound: float) -> str:
    """What is recommended, and how sure it is that nothing cheaper would do."""
    plan = report.plan
    cost = plan.cost(report.chosen)
    above = plan.cost(jobs) - bound
    proof = "the cheapest set there is"
    if any(report.history.waits.values()):
        proof = "a cheap set"
    elif bound < plan.cost(jobs) * NEARLY:
        proof = f"no more than {percent(above, plan.total)} above the cheapest set"
    if plan.kept:
        proof += " with those to keep"
    if jobs - report.chosen:
        proof = f"with {len(jobs - report.chosen)} red for long, {proof}"
    total = plan.caught(plan.breakages)
    caught = plan.caught(jobs)
    return (
        f"Recommended: {len(report.chosen)} of {counted(len(plan.costs), 'job')}, {report.price(cost)} of "
        f"{report.price(plan.total)} a commit ({percent(cost, plan.total)}); {proof} that catches {caught} of "
        f"{counted(total, 'breakage')} so far ({percent(caught, total)})"
    )


def headline(lines: Sequence[Line]) -> Iterator[str]:
    """What would have happened, with what certainty, and why not more."""
    *table, line = lines
    ahead = line.ahead
    failing = ones_in(ahead.failing)
    low, high = map(percent, ahead.interval())
    yield (
        f"Walked forward through the newest {counted(ahead.commits, 'commit')}, choosing anew {ahead.stretches} times: "
        f"caught {ones_in(ahead.caught)} of {counted(failing, 'failing commit')} ({percent(ahead.share())}; 95 % sure: "
        f"{low} to {high}) and {ahead.events_caught} of {counted(ahead.events, 'breakage')}, at "
        f"{percent(ahead.price())} of the cost; in hindsight {ones_in(line.behind.caught)} of {failing} at "
        f"{percent(line.behind.price())}"
    )
    if failing < FEW_EVENTS:
        yield (
            f"warning: with fewer than {FEW_EVENTS} failing commits to judge by a share says little; take a longer "
            "history, or trust the interval alone"
        )
    if not failing or ahead.share() >= AIM_PERCENT / 100:
        return
    bound = BUDGET_PERCENT / 100
    cheap = [other for other in table if other.ahead.price() <= bound]
    best = max([line, *cheap], key=lambda other: other.ahead.share())
    if best is not line:
        yield (
            f"of the lines below at most {BUDGET_PERCENT:g} % of the cost, --catch {best.policy.catch:g} caught "
            f"most: {percent(best.ahead.share())} at {percent(best.ahead.price())}"
        )
    if best.ahead.share() < AIM_PERCENT / 100:
        behind = [each.behind for each in table]
        wise = [each.price() for each in behind if each.share() >= AIM_PERCENT / 100]
        least = percent(wise[0]) if wise else "more"
        yield (
            f"this history does not allow {AIM_PERCENT:g} % for {BUDGET_PERCENT:g} % of the cost: in "
            f"{ones_in(ahead.strange)} of {failing} only jobs failed that had never failed before, and in hindsight "
            f"it takes {least}"
        )


def table_lines(report: Report) -> Iterator[str]:
    """What each share of the breakages costs, walking forward and in hindsight, so that an owner picks one."""
    yield ""
    yield "Cost against catch (--catch takes a line, --budget a cost):"
    yield (
        "  asked  jobs  cost now |  walking forward: cost      caught    share        95 % sure | "
        "in hindsight: cost    share"
    )
    for policy, jobs, ahead, behind in report.lines[:-1]:
        share = percent(report.plan.cost(jobs), report.plan.total)
        low, high = map(percent, ahead.interval())
        counts = f"{ones_in(ahead.caught)}/{ones_in(ahead.failing)}"
        yield (
            f"{policy.catch:5g} % {len(jobs):5} {share:>9} | {percent(ahead.price()):>22} {counts:>11} "
            f"{percent(ahead.share()):>8} {low:>7}-{high:>8} | {percent(behind.price()):>18} "
            f"{percent(behind.share()):>8}"
        )


def detail_lines(report: Report) -> Iterator[str]:
    """What speaks for it, list by list."""
    columns = "    cost  catches  alone   phi  job | the recommended one most like it"
    groups = report.clusters.groups
    marked = []
    for group in groups:
        names = ["*" * (job in report.chosen) + job for job in group]
        marked += ["  " + " | ".join(names)] * (len(group) > 1)
    silent = report.rest() - report.plan.breakages.keys()
    score = report.lines[-1].ahead
    missed = score.failing & ~score.caught
    blocks = {
        f"To mend, red for {RED_RUNS} runs or more, and left out until they pass:": mend_lines(
            report
        ),
        f"{counted(len(groups), 'cluster')}, {len(marked)} of more than one job (* recommended):": marked,
        f"Chosen:\n{columns}": job_lines(report, report.chosen),
        "Left out, since they never failed anew:": [listed(sorted(silent))]
        * bool(silent),
        f"Left out:\n{columns}": job_lines(report, report.rest() - silent),
        "Missed, walking forward:": commit_lines(report, missed),
    }
    for title, lines in blocks.items():
        if lines:
            yield from ["", title, *lines[:LISTED]]
        if len(lines) > LISTED:
            yield f"  \u2026 with {len(lines) - LISTED:,} more"


def mend_lines(report: Report) -> List[str]:
    """The jobs that are red for long: since when, and how often they failed, most often first."""
    lines = []
    for name in report.mend:
        job = report.history.jobs[name]
        runs = ones_in(job.ran)
        failures = runs - ones_in(job.passed)
        passed = job.passed.bit_length()
        first = places_of(job.ran >> passed)[0] + passed
        since = f"since {report.history.commits[first]}"
        said = f"  {name}: {since}, {failures} of {counted(runs, 'run')}"
        lines.append((-failures, said))
    return [line for _, line in sorted(lines)]


def job_lines(report: Report, jobs: Jobs) -> List[str]:
    """What jobs cost, how many breakages so far they catch, and how many that no other one of the chosen does."""
    plan = report.plan
    names = report.clusters.jobs
    lines = []
    for job, row in zip(names, report.clusters.matrix):
        if job in jobs:
            others = report.chosen - {job}
            alone = plan.caught(others | {job}) - plan.caught(others)
            alike = [(0.0, "")]
            for phi, name in zip(row, names):
                if name in others and phi > 0:
                    alike.append((phi, f" | {name}"))
            phi, like = max(alike)
            share = percent(plan.costs.get(job, 0.0), plan.total)
            counts = f"{share:>8} {plan.caught([job]):8} {alone:6}"
            lines.append(f"{counts} {phi:5.2f}  {job}{like}")
    return lines


def commit_lines(report: Report, commits: int) -> List[str]:
    """Of each of these commits the jobs that newly failed."""
    lines = []
    history = report.history
    for number in places_of(commits):
        names = [name for name, job in history.jobs.items() if job.anew >> number & 1]
        lines.append(f"  {history.commits[number]}: {' | '.join(names)}")
    return lines


# ---------------------------------------------------------------------------------------------------
# Files: the labels, the matrix, the page.
# ---------------------------------------------------------------------------------------------------


def labels_text(report: Report, summary: Iterable[str]) -> str:
    """The file for `run_tests.py --only`: the labels, one a line, where they come from, and what is left out.

    A label that no line can hold is named nowhere: `--only` runs it as one that the file does not know.
    """
    lines = [f"# Chosen by {PROGRAM}, for run_tests.py --only."]
    for line in summary:
        if line.startswith(("Recommended:", "Walked")):
            lines.append(f"# {line}")
    ours = report.chosen | report.new | report.again
    for title, mark, jobs in (
        (LEFT_OUT, "# ", report.rest() | report.mend - ours),
        ("Chosen:", "", report.chosen),
        ("New:", "", report.new),
        ("Failed lately:", "", report.again),
    ):
        fit = [job for job in sorted(jobs) if not UNFIT.search(job)]
        if fit:
            lines += [f"# {title}", *(mark + job for job in fit)]
    return "\n".join([*lines, ""])


def matrix_text(clusters: Clusters) -> str:
    """The matrix as a CSV file: job, number of its cluster, phi with each job, empty where it is unknown."""
    number_of = clusters.number_of()
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["job", "cluster", *clusters.jobs])
    for job, row in zip(clusters.jobs, clusters.matrix):
        values = ["" if math.isnan(value) else repr(value) for value in row]
        rows.writerow([job, number_of.get(job, ""), *values])
    return text.getvalue()


def page_text(report: Report, summary: Iterable[str], details: Iterable[str]) -> str:
    """The page: the report's lines, and what its script draws. Raises OSError where its template is missing."""
    commits = counted(len(report.history.commits), "commit")
    digits = 8 * math.ceil(len(report.history.commits) / 32)  # 32 commits a word
    jobs = [report.history.jobs[name] for name in report.clusters.jobs]
    points = []
    judged = [line for line in report.lines if line.ahead.stretches]
    for line in judged:
        score = line.ahead
        figures = score.price(), score.share(), *score.interval()
        points.append([line is judged[-1], *figures])
    data = {
        "jobs": report.clusters.jobs,
        "ran": [f"{job.ran:0{digits}x}" for job in jobs],
        "passed": [f"{job.passed:0{digits}x}" for job in jobs],
        "groups": [len(group) for group in report.clusters.groups],
        "merges": report.clusters.tree,
        "chosen": sorted(report.chosen),
        "points": points,
    }
    parts = {
        "TITLE": f"{counted(len(jobs), 'job')} over {commits}",
        "SUMMARY": html.escape("\n".join(summary)),
        "DETAILS": html.escape("\n".join(details)),
        "DATA": json.dumps(data).replace("<", "\\u003c"),
    }
    with open(PAGE, encoding="utf-8") as file:
        return re.sub("|".join(parts), lambda found: parts[found.group()], file.read())


def write(path: str, text: str) -> None:
    """Write a file. Raises Mistake."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        with open(path, "wb") as file:
            file.write(data)
    except (OSError, UnicodeError) as error:
        why = f"cannot write {path} ({error}); name another place"
        raise Mistake(why, EXIT_MACHINE) from None


# ---------------------------------------------------------------------------------------------------
# Command line.
# ---------------------------------------------------------------------------------------------------


def parse_percent(text: str) -> float:
    """A number from 0 to 100. Raises ArgumentTypeError."""
    if re.fullmatch(r"\d{1,3}(\.\d*)? ?%?", text) and float(text.rstrip("% ")) <= 100:
        return float(text.rstrip("% "))
    raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")


def parse_pattern(text: str) -> Pattern[str]:
    """A regular expression. Raises ArgumentTypeError."""
    try:
        return re.compile(text)
    except re.error as error:
        why = f"{text!r} is no regular expression: {error}"
        raise argparse.ArgumentTypeError(why) from None


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(PROGRAM, allow_abbrev=False, formatter_class=style)
    parser.description = __doc__
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=FORMS)
    share: Dict[str, Any] = {"type": parse_percent, "metavar": "PERCENT"}
    names: Dict[str, Any] = {"action": "append", "default": [], "metavar": "JOB"}
    add = parser.add_argument_group("what is read").add_argument
    text = "of job statuses: tests alone, where their builds passed"
    add("--tests", action="store_true", help=text)
    text = "of files; default: time"
    add("--order", choices=["time", "name"], default="time", help=text)
    text = "of JUnit files: what in a path is the commit; default: the folder right below the source"
    add("--commit", type=parse_pattern, metavar="REGEX", help=text)
    add("--cases", action="store_true", help="of JUnit files: each test case is a job")
    text = "leave out jobs, by name or pattern ('*flaky*'), and their failures"
    add("--drop", **names, help=text)
    text = "of the jobs that have to have run in a commit, or it is left aside; default: %(default)g"
    add("--complete", **share, default=COMPLETE_PERCENT, help=text)

    group = parser.add_argument_group("what is chosen")
    add = group.add_mutually_exclusive_group().add_argument
    text = "of the cost of all jobs, what the set may cost; default: 20, or more if that catches less than half"
    add("--budget", **share, help=text)
    text = "of the breakages so far that the set has to catch, whatever it costs"
    add("--catch", **share, help=text)
    add = group.add_argument
    text = "what is to be caught: new failures (default), or all"
    add("--count", choices=["new", "red"], default="new", help=text)
    text = "jobs, by name or pattern ('*asan*'), that are in the set whatever they tell"
    add("--keep", **names, help=text)
    text = "add what failed in the last N runs"
    add("--recent", type=int, default=0, metavar="N", help=text)

    add = parser.add_argument_group("what is written").add_argument
    text = "the report with a map of the correlations, in one file"
    add("--html", metavar="FILE", help=text)
    add("--csv", metavar="FILE", help="the correlations as numbers")
    text = "the recommended labels, for run_tests.py --only"
    add("--write", metavar="FILE", help=text)
    return parser


def check_outputs(options: argparse.Namespace) -> None:
    """Make sure that nothing is written twice, or over a source. Raises Mistake."""
    taken = {os.path.realpath(path) for path in options.sources}
    for path in filter(None, (options.html, options.csv, options.write)):
        if os.path.realpath(path) in taken:
            why = "is a source, or another output; name a file of its own"
            raise Mistake(f"{path} {why}")
        taken.add(os.path.realpath(path))
    if options.html and not os.path.exists(PAGE):
        raise Mistake(f"{os.path.basename(PAGE)} is not beside {PROGRAM}; copy it, too")


def analyse(options: argparse.Namespace) -> Report:
    """From the sources to all that is reported. Raises Mistake."""
    check_outputs(options)
    reader = Reader(options)
    reader.read()
    history = history_of(reader, options)
    keep = matching("--keep", options.keep, [*history.jobs])
    count = len(history.commits)
    clusters = clusters_at(history, count)
    plan = plan_at(history, count, clusters, keep, known=count)
    policy = Policy(TARGETS[0], BUDGET_PERCENT)
    if options.catch is not None:
        policy = Policy(options.catch)
    elif options.budget is not None:
        policy = Policy(0.0, options.budget)
    policies = [*(Policy(float(target)) for target in TARGETS), policy]
    now = zip(policies, chosen_by(history, policies, plan))
    lines = [Line(each, jobs, Score(), Score()) for each, jobs in now]
    walk(history, lines, keep, clusters)
    choice = final_choice(plan, policy) if plan.breakages else None
    mend = history.where(lambda job: job.red >> count & 1)
    gone = frozenset(history.jobs) - history.there(count)
    chosen = history.closed(choice[0] if choice else ()) - (mend - keep)
    new = history.young(count) - chosen
    again = history.recent - mend - gone - chosen - new
    sets = chosen, new, again, mend, gone
    return Report(history, clusters, plan, choice, lines, *sets)


def show(text: str) -> None:
    """Print what standard output can show, if there is one. Raises Mistake."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python fails at its end again
        if not isinstance(error, BrokenPipeError):  # its reader has seen enough
            why = f"cannot write to standard output ({error})"
            raise Mistake(why, EXIT_MACHINE) from None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    options = build_parser().parse_args(argv)
    try:
        report = analyse(options)
        summary = [*summary_lines(report)]
        details = [*detail_lines(report)]
        if options.html:
            write(options.html, page_text(report, summary, details))
        if options.csv:
            write(options.csv, matrix_text(report.clusters))
        if options.write and report.choice:
            write(options.write, labels_text(report, summary))
        show("\n".join(summary + details))
    except Mistake as mistake:
        print(f"{PROGRAM}: error: {mistake}", file=sys.stderr)
        return mistake.exit_code
    return EXIT_OK if report.choice else EXIT_NOTHING


if __name__ == "__main__":
    sys.exit(main())
