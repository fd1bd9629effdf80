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
from typing import (
    Any,
    Callable,
    Counter,
    Dict,
    FrozenSet,
    Hashable,
    Iterable,
    Iterator,
    List,
)
from typing import Mapping, NamedTuple, Optional, Pattern, Sequence, Tuple

# ---------------------------------------------------------------------------------------------------
# Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

PROGRAM = "ci_dedup.py"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ci_dedup.html")
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING = 0, 2, 3, 5

Verdict = Optional[
    bool
]  # whether a job passed; None where it was there, and said nothing
PASSED = "1 1.0 true yes ok success successful pass passed flaky"
FAILED = "0 0.0 false no failure fail failed crashed timeout timed_out error broken"
SILENT = "skipped skip cancelled canceled neutral pending blocked deferred interrupted unrunnable nan none null"
VERDICTS: Mapping[str, Verdict] = {
    **dict.fromkeys(PASSED.split(), True),
    **dict.fromkeys(FAILED.split(), False),
    **dict.fromkeys(["", "not run", *SILENT.split()]),
}
CELLS = (
    "commit",
    "job",
    "ok",
    "seconds",
    "gpus",
)  # of a table, which needs the first three
SUFFIXES = (
    "_build",
    "_test",
    "-build",
    "-test",
    "_multigpu",
    "_NO_AVX_NO_AVX2",
    "_NO_AVX2",
)
PART = (
    r" \(part \d+ of \d+\)$"  # the end of the label of a part of a test that was split
)
LARGEST = 1e9  # seconds or GPUs: more is a mistake

COMPLETE_PERCENT = (
    90.0  # of the jobs that are there have to run, or a commit is left aside
)
RED_RUNS = 10  # verdicts in a row: a job that failed in all is to be mended, and can catch nothing until then
RED_AGAIN = 0.5  # of the share of runs for which a job was red, and so cost nothing: the part that is counted on
NEW_RUNS = 2  # newest commits: a job that is in none before is new
GONE_SHARE, GONE_RUNS = (
    0.1,
    3,
)  # of the commits, and at least: who is in none of these is gone
CUT = 0.1  # of the largest distance, up to which jobs are one cluster: the study's
DIGITS = (
    12  # of a distance that count: what is equal stays so whatever a Python's rounding
)
CLUSTER_WORK = 30_000_000  # jobs squared times commits, up to which each stretch has clusters of its own: 0.3 s

SEARCH_STEPS = 600_000  # looks at a job in search of the cheapest set: a second
CAPS = 24  # of prices, tried for a bound at first, each half of the one before
NEARLY = 1 - 1e-9  # what is cheaper by less is rounding
JUDGED = 0.7  # of the commits, the newest, through which a choice is judged
STRETCHES = 10  # into which they are cut; the choice is made anew before each
CERTAIN = 1.96  # standard deviations: 95 %

BUDGET_PERCENT = 20.0  # of the cost of all jobs
TARGETS = range(50, 101, 5)  # percent of the breakages, in the table
FEW_EVENTS = 30  # failing commits below which a share says little
AIM_PERCENT = 80.0  # of the failing commits, which a history should allow for its budget; else the report says why
SHORT_S = 1000  # what costs less is told in seconds, else in hours
COLUMNS = "    cost  catches  alone   phi  job | the recommended one most like it"
NAMED, LISTED = 10, 40  # names of a line, and lines of a list, that are shown

FORMS = "name journals of run_tests.py, CSV files, or folders of JSON or JUnit files"  # all that is read
SIGNS = {True: ord("+"), False: ord("-"), None: ord("?")}
NEW_FAILURE = re.compile(r"(?:^|\+)\.*-")  # in a job's signs
LONG_RED = re.compile(
    rf"(?:-\.*){{{RED_RUNS - 1}}}-([-.]*)"
)  # its group, where it is so

Jobs = FrozenSet[str]
Groups = Mapping[str, Hashable]  # by job, which cluster it is of


class UsageError(Exception):
    """A mistake in the command line or the input. Exit code 2."""


class MachineError(Exception):
    """A file cannot be written. Exit code 3."""


def first_of(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = " | ".join(names[:NAMED])
    if len(names) > NAMED:
        shown += f" \u2026 with {len(names) - NAMED} more"
    return shown


def counted(number: int, what: str) -> str:
    plural = "s" * (number != 1)
    return f"{number:,} {what}{plural}"


# ---------------------------------------------------------------------------------------------------
# Reading: CSV files, journals, JSON and JUnit files, to what each job said of each commit, and cost.
# ---------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A run of a job for a commit, of which there may be later ones."""

    time: float  # seconds since 1970
    commit: str
    job: str
    passed: Verdict
    cost: Optional[float]


def cost_of(seconds: Any, gpus: Any = None) -> Optional[float]:
    """Seconds times GPUs, 1 where these are not known; None where the seconds are not. Raises ValueError."""
    if seconds in (None, ""):
        return None
    if gpus in (None, ""):
        gpus = 1
    try:
        time = float(seconds)
        count = float(gpus)
    except (ValueError, TypeError, OverflowError):
        time = count = math.inf
    if 0 <= time <= LARGEST and 0 <= count <= LARGEST:
        return time * count
    raise ValueError(
        f"{seconds!r} seconds or {gpus!r} GPUs are no number from 0 to {LARGEST:g}"
    )


def verdict_of(word: Any, otherwise: Verdict = None) -> Verdict:
    """Whether a word says that a job passed; None where it says nothing. Raises AttributeError."""
    return VERDICTS.get((word or "").strip().casefold(), otherwise)


def moment(text: Optional[str]) -> float:
    """Seconds since 1970 of `2026-03-16T07:00:00Z`, 0 where there is none. Raises ValueError."""
    if not text:
        return 0.0
    text = re.sub(
        r"\.\d+", "", text
    )  # Python 3.8 reads fractions of three or six digits alone
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


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
    return Run(
        start or moment(job.get("created_at")), commit, name, verdict_of(word), cost
    )


def json_values(text: str) -> Iterator[Any]:
    """The values of a text, one behind the other, as `gh api --paginate` prints them. Raises ValueError."""
    decoder = json.JSONDecoder()
    while text:
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:].lstrip()


def natural(name: str) -> List[str]:
    """A name in parts that sort as a reader would, `c9` before `c10`."""
    parts = re.split(r"(\d+)", name)
    return [part.zfill(20) if part.isdigit() else part for part in parts]


@functools.lru_cache(maxsize=1 << 16)  # names are few
def folded(job: str) -> str:
    """A job's name without the suffixes of its parts: builds, tests, variants."""
    for suffix in SUFFIXES:
        if job.endswith(suffix):
            job = job[: -len(suffix)]
    return job


def is_part(event: Mapping[str, Any]) -> bool:
    """Whether an event is of a part of a test that was split: the whole has an end of its own."""
    return "origin" in event and re.search(PART, str(event.get("label"))) is not None


class Reader:
    """What has been read, by job and commit. Commits are numbered as they come, the oldest first."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.commits: Dict[str, int] = {}
        self.jobs: Dict[str, Dict[int, Verdict]] = collections.defaultdict(dict)
        self.costs: Dict[str, Dict[int, float]] = collections.defaultdict(dict)
        self.runs: List[Run] = []
        self.started: Dict[
            str, Tuple[str, int]
        ] = {}  # by run of run_tests.py: commit, GPUs
        self.waits: Dict[
            str, Jobs
        ] = {}  # by job, the jobs that it waits for: they run with it
        self.skipped: List[str] = []  # what was not whole

    def add(
        self, commit: str, job: str, passed: Verdict, cost: Optional[float]
    ) -> None:
        """Take in what a part of a job said; it passed if all its parts did, and costs what they cost together."""
        number = self.commits.setdefault(commit, len(self.commits))
        verdicts = self.jobs[job]
        if passed is None:
            verdicts.setdefault(number, None)
            return
        verdicts[number] = passed and verdicts.get(number) is not False
        if cost is not None:
            costs = self.costs[job]
            costs[number] = costs.get(number, 0.0) + cost

    def read(self) -> None:
        """Take in all sources, which have to be of one kind. Raises UsageError or OSError."""
        once = {os.path.realpath(path): path for path in self.options.sources}
        files: List[Tuple[int, List[str], str, str]] = []
        kinds = set()
        for path in once.values():
            os.stat(path)
            if os.path.isdir(path) or path.endswith((".json", ".xml")):
                kinds.add("folder")
                files += self.files_of(path)
            elif path.endswith(".csv"):
                kinds.add("table")
                self.read_table(path)
            else:
                kinds.add("journal")
                self.read_journal(path)
        if len(kinds) > 1:
            raise UsageError("sources are of different kinds; " + FORMS)
        for _, _, path, below in sorted(files):
            try:
                self.read_file(path, below)
            except (ValueError, RecursionError, xml.etree.ElementTree.ParseError):
                self.skipped.append(path)
        latest: Dict[
            Tuple[str, str], Run
        ] = {}  # of runs of one commit and job the last counts
        for run in sorted(self.runs, key=lambda run: run.time):
            key = run.commit, run.job
            if run.passed is not None or key not in latest:
                latest[key] = run
        for run in latest.values():
            self.add(run.commit, run.job, run.passed, run.cost)

    def read_table(self, path: str) -> None:
        """Take in a CSV file, oldest commit first. Raises UsageError or OSError."""
        with open(
            path, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as file:
            first = file.readline()
            mark = ";" if first.count(";") > first.count(",") else ","
            rows = csv.reader(itertools.chain([first], file), delimiter=mark)
            try:
                self.read_rows(path, rows, mark)
            except csv.Error as error:
                raise UsageError(
                    f"{path}: not a CSV file ({error}); name another"
                ) from None

    def read_rows(self, path: str, rows: Any, mark: str) -> None:
        """Take in a table's rows; a last one that is torn is skipped. Raises UsageError or csv.Error."""
        header = [name.strip() for name in next(rows, [])]
        lacking = [name for name in CELLS[:3] if name not in header]
        if lacking:
            raise UsageError(
                f"{path}:1: no column {', '.join(lacking)} in {','.join(header)[:100]!r}; the first "
                "line names commit, job, ok and, if known, seconds and gpus, with commas or semicolons"
            )
        places = [header.index(name) if name in header else -1 for name in CELLS]
        cells_of = operator.itemgetter(*places)
        blanks = [""] * len(header)
        least = max(places[:3]) + 1
        mistake = ""
        for row in filter(None, rows):
            if mistake:
                raise UsageError(mistake)
            commit, job, ok, seconds, gpus = cells_of(row + blanks)
            try:
                if not (commit and job and len(row) >= least):
                    raise ValueError("commit, job or ok is missing")
                word = ok.strip().casefold()
                if word not in VERDICTS:
                    raise ValueError(
                        f"ok is {ok!r} and not 1, 0, a word such as failed, or empty"
                    )
                if mark == ";":
                    seconds = seconds.replace(",", ".")
                self.add(commit, job, VERDICTS[word], cost_of(seconds, gpus))
            except ValueError as error:
                mistake = f"{path}:{rows.line_num}: {error}; mend the row"
        self.skipped += filter(None, [mistake])

    def read_journal(self, path: str) -> None:
        """Take in a journal of run_tests.py; torn lines are counted. Raises OSError."""
        torn = 0
        with open(path, "rb") as file:
            for line in filter(bytes.strip, file):
                start = max(
                    0, line.rfind(b'{"event"')
                )  # a torn line may stand before ours
                try:
                    self.add_event(json.loads(line[start:]))
                except (
                    ValueError,
                    TypeError,
                    KeyError,
                    AttributeError,
                    RecursionError,
                ):
                    torn += 1
        if torn:
            self.skipped.append(f"{path} ({counted(torn, 'line')})")

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take in an event; a run whose CI named no commit is one by itself. Raises what json.loads may not."""
        if event["event"] == "run_start":
            run = event["run"]
            commit = str(event.get("commit") or run)
            self.started[run] = commit, len(event["gpus"])
        elif event["event"] == "test_end" and not is_part(event):
            run, label, need = event["run"], event["label"], event.get("need")
            commit, gpus = self.started.get(run, (run, 1))
            cost = cost_of(event["seconds"], gpus if need == "all" else need)
            passed = verdict_of(event["outcome"])
            if not isinstance(label, str):
                raise TypeError("a label is a text")
            self.runs.append(Run(float(event["time"]), commit, label, passed, cost))
            self.waits[label] = frozenset(event.get("after", ()))

    def files_of(self, source: str) -> Iterator[Tuple[int, List[str], str, str]]:
        """The files of a folder and below, or one file: time or 0, name, path, and path below the folder."""
        folder = os.path.dirname(source) or "."
        paths = [source]
        if os.path.isdir(source):
            folder = source
            pattern = os.path.join(glob.escape(source), "**")
            paths = glob.glob(pattern, recursive=True)
        for path in paths:
            stem, extension = os.path.splitext(path)
            if extension in ("", ".json", ".xml") and os.path.isfile(path):
                changed = os.stat(path).st_mtime_ns * (self.options.order == "time")
                yield changed, natural(path), path, os.path.relpath(stem, folder)

    def read_file(self, path: str, below: str) -> None:
        """Take in a file, whose path below its folder is given. Raises ValueError or ParseError for half of one."""
        if path.endswith(".xml"):
            self.read_junit(path, below)
            return
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
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UsageError(
                f'{path}: neither {{job: {{"status": "success", …}}}} nor jobs as GitHub, GitLab or '
                f"Buildkite print them ({error}); mend or remove the file"
            ) from None

    def add_statuses(self, commit: str, statuses: Mapping[str, Any]) -> None:
        """Take in one commit's `{job: {"status": "success", …}}`, perhaps with `seconds` and `gpus`.

        With --tests tests stay apart, and those whose build failed say nothing. Raises an error for another form.
        """
        parts = []
        broken = set()
        for job, record in statuses.items():
            try:
                passed = verdict_of(record["status"], otherwise=False)
                cost = cost_of(record.get("seconds"), record.get("gpus"))
            except (KeyError, TypeError, AttributeError, ValueError):
                raise ValueError(f"job {job!r} is {str(record)[:100]}") from None
            parts.append((job, passed, cost))
            if passed is False and job.endswith(("_build", "-build")):
                broken.add(folded(job))
        for job, passed, cost in parts:
            if not self.options.tests:
                self.add(commit, folded(job), passed, cost)
            elif job.endswith(("_test", "-test")):
                self.add(commit, job, None if folded(job) in broken else passed, cost)

    def read_junit(self, path: str, below: str) -> None:
        """Take in a JUnit file. Raises ValueError or ParseError for half of one, UsageError where no commit is told.

        The commit is what --commit finds in the path; else the folder right below the source is, and the file is the
        job; a file right in the source is a commit by itself, and its test cases are the jobs.
        """
        root = xml.etree.ElementTree.parse(path).getroot()
        commit, _, job = below.partition(os.sep)
        pattern = self.options.commit
        if pattern:
            match = pattern.search(path)
            if not match:
                raise UsageError(
                    f"{path}: --commit {pattern.pattern} finds nothing in this path; mend it"
                )
            commit = match.group(match.lastindex or 0)
            job = os.path.basename(below)
        cases = []
        for case in root.iter("testcase"):
            name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
            tags = {child.tag for child in case}
            passed: Verdict = not tags & {"failure", "error"}
            if passed and "skipped" in tags:
                passed = None
            seconds = case.get("time", "").replace(",", "")
            cases.append((name, passed, cost_of(seconds)))
        for name, passed, cost in cases:
            if job and not self.options.cases:
                name = job
            self.add(commit, name, passed, cost)


# ---------------------------------------------------------------------------------------------------
# History: which jobs were new, failed anew and were red for long at which commits. Pure.
# ---------------------------------------------------------------------------------------------------

ones_in: Callable[[int], int] = getattr(
    int, "bit_count", lambda bits: bin(bits).count("1")
)


class Job(NamedTuple):
    """What a job said and costs. Whole numbers have a bit for each commit, that of the oldest is the lowest."""

    first: int  # number of the commit of which it spoke first
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
    has_clusters: (
        bool  # whether a commit's failures in several clusters are several breakages
    )
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

    def young(self, number: int) -> Jobs:
        """The jobs that are in none but the newest of the first so many commits, or come later."""
        known = max(1, number - NEW_RUNS)  # those of the first commit may be old
        return frozenset(name for name, job in self.jobs.items() if job.first >= known)

    def there(self, number: int) -> Jobs:
        """The jobs that run still when so many commits are known: those of the newest."""
        start = min(number - GONE_RUNS, math.floor(number * (1 - GONE_SHARE)))
        newest = bits_between(max(0, start), number)
        return frozenset(name for name, job in self.jobs.items() if job.ran & newest)

    def red(self, number: int) -> Jobs:
        """The jobs that are red for long when so many commits are known."""
        return frozenset(
            name for name, job in self.jobs.items() if job.red >> number & 1
        )


def bits_between(start: int, end: int) -> int:
    """A bit for each commit from one number to before another."""
    return (1 << end) - (1 << start)


def matching(option: str, patterns: Iterable[str], jobs: Sequence[str]) -> Jobs:
    """The jobs that patterns (`*asan*`) name. Raises UsageError for a pattern that names none."""
    found: List[str] = []
    for pattern in patterns:
        named = [
            job for job in jobs if job == pattern or fnmatch.fnmatchcase(job, pattern)
        ]
        if not named:
            raise UsageError(
                f"{option} {pattern}: no job has such a name; there are {first_of(jobs)}"
            )
        found += named
    return frozenset(found)


def signs_of(verdicts: Mapping[int, Verdict], commits: int) -> str:
    """A sign for each commit: `+` passed, `-` failed, `?` was there and said nothing, `.` was not there."""
    signs = bytearray(b"." * commits)
    for number, passed in verdicts.items():
        signs[number] = SIGNS[passed]
    return signs.decode()


def complete(signs: Sequence[str], percent: float) -> List[bool]:
    """For each commit, whether that share of the jobs that were there said something.

    A job is there from its first verdict until its longest silence has passed since its last, or where it is named
    without a verdict. So runs of a reduced set are left aside: what they leave out has neither passed nor failed.
    """
    count = len(signs[0])
    change = [0] * (count + 1)
    for text in signs:
        spoken = text.strip(".?")
        start = text.index(spoken)
        silence = max(map(len, re.findall(r"[.?]+", spoken)), default=0)
        change[start] += 1
        change[min(start + len(spoken) + silence, count)] -= 1
    full = []
    for column, there in zip(zip(*signs), itertools.accumulate(change)):
        ran = column.count("+") + column.count("-")
        named = len(column) - column.count(".")
        full.append(ran > 0 and ran >= percent / 100 * max(there, named))
    return full


def bits_of(signs: str, ones: str) -> int:
    """A bit for each sign that is among these."""
    digits = {ord(sign): "01"[sign in ones] for sign in "+-."}
    return int(signs[::-1].translate(digits), 2)


def job_of(signs: str, cost: float, counts_red: bool) -> Job:
    """What a job said, by its signs; with `counts_red` each failure is to be caught, old or new."""
    first = len(signs) - len(signs.lstrip("."))
    ran = bits_of(signs, "+-")
    passed = bits_of(signs, "+")
    if counts_red:
        return Job(first, ran, passed, ran & ~passed, 0, cost)
    anew = red = 0
    for match in NEW_FAILURE.finditer(signs):
        anew |= 1 << (match.end() - 1)
    for match in LONG_RED.finditer(signs):
        red |= bits_between(match.start(1), match.end(1) + 1)
    return Job(first, ran, passed, anew, red, cost)


def costs_of(
    reader: Reader, jobs: Iterable[str], full: Sequence[bool]
) -> Dict[str, float]:
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


def read(options: argparse.Namespace) -> Reader:
    """All that the sources say. Raises UsageError."""
    reader = Reader(options)
    try:
        reader.read()
    except OSError as error:
        raise UsageError(
            f"{error.filename}: cannot be read ({error.strerror}); {FORMS}"
        ) from None
    return reader


def all_signs(reader: Reader, options: argparse.Namespace) -> Dict[str, str]:
    """By job, a sign for each commit. Jobs that never said anything, or are to be dropped, are left out."""
    total = len(reader.commits)
    signs = {job: signs_of(reader.jobs[job], total) for job in sorted(reader.jobs)}
    signs = {job: text for job, text in signs.items() if text.strip(".?")}
    for job in matching("--drop", options.drop, [*signs]):
        del signs[job]
    return signs


def history_of(reader: Reader, options: argparse.Namespace) -> History:
    """The jobs that count, and the commits in which nearly all ran. Raises UsageError where there are none."""
    total = len(reader.commits)
    notes = []
    if reader.skipped:
        listed = first_of(reader.skipped)
        notes.append(f"skipped, not whole: {len(reader.skipped)}: {listed}")
    signs = all_signs(reader, options)
    if not signs:
        why = f"{', '.join(options.sources)}: no verdict of any job; {FORMS}"
        raise UsageError("; ".join([why, *notes]))
    recent = {
        job for job, text in signs.items() if "-" in text[total - options.recent :]
    }
    full = complete([*signs.values()], options.complete)
    if not all(full):
        notes.append(
            f"left aside: {counted(full.count(False), 'commit')} of {total:,}, in which less than "
            f"{options.complete:g} % of the jobs ran; --complete 0 takes all"
        )
    if not any(full):
        raise UsageError("; ".join(notes))
    for job, text in signs.items():
        signs[job] = "".join(itertools.compress(text, full)).replace("?", ".")
    broken = [job for job, text in signs.items() if "+" not in text]
    if broken:
        listed = first_of(broken)
        notes.append(f"left out, since they never passed: {len(broken)}: {listed}")
    for job in broken:
        del signs[job]
    if not signs:
        why = "no job ever passed; is this the whole history?"
        raise UsageError("; ".join([why, *notes]))
    costs = costs_of(reader, signs, full)
    counts_red = options.count == "red"
    jobs = {job: job_of(signs[job], costs.get(job, 1.0), counts_red) for job in signs}
    return History(
        [*itertools.compress(reader.commits, full)],
        jobs,
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


class Verdicts(NamedTuple):
    """One job's verdicts as whole numbers, a bit for each commit."""

    ran: int
    passed: int


class Merge(NamedTuple):
    """Two nodes of a tree that become one; leaves are numbered from 0, merges from the number of leaves on."""

    left: int
    right: int
    height: float


class Clusters(NamedTuple):
    """Jobs by what they tell: groups in dendrogram order, then those whose verdict never changed, in one `constant`."""

    jobs: List[
        str
    ]  # of the matrix's rows and columns: those of `groups`, then of `constant`
    groups: List[List[str]]
    constant: List[str]
    matrix: Matrix  # phi; nan where either job was constant over the commits of both
    tree: Sequence[Merge] = ()  # leaves are numbered as in `jobs`

    def number_of(self) -> Dict[str, int]:
        """By job, its group's number, from 1."""
        numbered = enumerate(self.groups, 1)
        return {job: number for number, group in numbered for job in group}


def phi_of(one: Verdicts, other: Verdicts) -> float:
    """Pearson's coefficient of two jobs' verdicts over the commits of both; nan where either was constant there.

    It is what pandas' `corr` gives of 0 and 1. Counts of bits are exact, and cost a few machine words.
    """
    total = ones_in(one.ran & other.ran)
    ones = ones_in(one.passed & other.ran)
    others = ones_in(other.passed & one.ran)
    variances = ones * (total - ones) * others * (total - others)
    if not variances:
        return math.nan
    both = ones_in(one.passed & other.passed)
    return (total * both - ones * others) / math.sqrt(variances)


def distance_of(one: Sequence[float], other: Sequence[float]) -> float:
    """The Euclidean distance of two rows of the matrix."""
    return round(math.dist(one, other), DIGITS)


def matrix_of(
    values: Sequence[Hashable], measure: Callable[[Any, Any], float]
) -> Matrix:
    """A measure that is the same both ways, of each pair of values; each pair of distinct ones is measured once."""
    number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
    distinct = [*number_of]
    table = [[0.0] * len(distinct) for _ in distinct]
    for row, one in enumerate(distinct):
        for column, other in enumerate(distinct[: row + 1]):
            value = measure(one, other)
            table[row][column] = table[column][row] = value
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
        joined.append(Merge(gone, stays, apart[gone][stays]))
        alive.remove(gone)
        del chain[-2:]
        for other in alive:
            if other != stays:
                farther = max(apart[gone][other], apart[stays][other])
                apart[stays][other] = apart[other][stays] = farther
    node = [*range(len(apart))]  # the tree's number of the cluster that a leaf names
    tree: List[Merge] = []
    for gone, stays, height in sorted(joined, key=lambda merge: merge.height):
        left, right = sorted((node[gone], node[stays]))
        node[stays] = len(apart) + len(tree)
        tree.append(Merge(left, right, height))
    return tree


def groups_at(tree: Sequence[Merge], cut: float) -> List[List[int]]:
    """The leaves of the clusters that merges of at most that height have made, in the order of the dendrogram."""
    below = {
        leaf: [[leaf]] for leaf in range(len(tree) + 1)
    }  # by node, the clusters in it
    for node, (left, right, height) in enumerate(tree, len(below)):
        groups = below.pop(left) + below.pop(right)
        if height <= cut:
            groups = [[*itertools.chain(*groups)]]
        below[node] = groups
    return below.popitem()[1]


def cluster(verdicts: Mapping[str, Verdicts]) -> Clusters:
    """Group the jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it is `constant`. A correlation of two other
    jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """
    jobs = sorted(verdicts)
    matrix = matrix_of([verdicts[job] for job in jobs], phi_of)
    constant = [number for number, row in enumerate(matrix) if math.isnan(row[number])]
    varied = [
        number for number, row in enumerate(matrix) if not math.isnan(row[number])
    ]
    rows = []
    for one in varied:
        row = [matrix[one][other] for other in varied]
        # New numbers, one beside the other in memory: the distances are three times as fast.
        rows.append(tuple(0.0 if math.isnan(value) else value + 0.0 for value in row))
    distances = matrix_of(rows, distance_of)
    tree = linkage(distances)
    groups = []
    if varied:
        groups = groups_at(tree, CUT * max(map(max, distances)))
    leaves = [*itertools.chain(*groups)]
    order = [varied[leaf] for leaf in leaves] + constant
    place = {leaf: number for number, leaf in enumerate(leaves)}
    renumbered = []
    for left, right, height in tree:
        left = place.get(left, left)
        right = place.get(right, right)
        renumbered.append(Merge(left, right, height))
    return Clusters(
        [jobs[number] for number in order],
        [[jobs[varied[leaf]] for leaf in group] for group in groups],
        [jobs[number] for number in constant],
        [[matrix[one][other] for other in order] for one in order],
        renumbered,
    )


# ---------------------------------------------------------------------------------------------------
# Choice: the cheapest jobs that catch so many breakages. Pure.
# ---------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What there is to choose from, and by, at one moment. A breakage is a pair of a commit and a cluster."""

    breakages: Dict[
        str, int
    ]  # by job, in which commits it was part of its cluster's breakage
    cluster_of: Groups  # a job of none is one by itself
    costs: Dict[str, float]  # of a job that is not red for long, with what it waits for
    total: float  # of all jobs that are there, a commit
    kept: Jobs

    def caught(self, jobs: Iterable[str]) -> int:
        """How many breakages these jobs catch."""
        return sum(map(ones_in, self.covered(jobs).values()))

    def covered(self, jobs: Iterable[str]) -> Dict[Hashable, int]:
        """By cluster, the commits whose breakages there these jobs catch."""
        found: Dict[Hashable, int] = collections.defaultdict(int)
        for job in jobs:
            found[self.cluster_of.get(job, job)] |= self.breakages.get(job, 0)
        return found

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
            for place, digit in enumerate(bin(commits & ~covered[cluster])[:1:-1]):
                if digit == "1":
                    found[cluster, place].append(job)
        return collections.Counter(map(frozenset, found.values()))


class Pick(NamedTuple):
    """A job that was picked, and how many breakages it and those before it catch."""

    job: str
    caught: int


def picks_of(plan: Plan, limit: float = math.inf) -> List[Pick]:
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
        picks.append(Pick(job, caught))
    return picks


class Policy(NamedTuple):
    """What an owner asks for: that share of the breakages, or as many as that share of the cost catches."""

    percent: float
    is_budget: bool = False
    at_least: float = (
        0.0  # percent of the breakages that are caught even if that takes more
    )

    def jobs(self, plan: Plan, picks: Iterable[Pick]) -> Jobs:
        """The jobs that greed takes, of all that it picks without a limit."""
        need = plan.needed(self.percent)
        if self.is_budget:
            limited = picks_of(plan, plan.total * self.percent / 100)
            found = plan.kept.union(pick.job for pick in limited)
            need = plan.needed(self.at_least)
            if plan.caught(found) >= need:
                return found
        found = plan.kept
        caught = plan.caught(found)
        for pick in picks:
            if caught < need:
                found |= {pick.job}
                caught = pick.caught
        return found


Failure = Tuple[Jobs, int]  # the jobs that catch it, and how often it came


class Node(NamedTuple):
    """A branch of the search: sets with the chosen jobs, without the barred ones, that cost so much at least."""

    lower: float
    chosen: Jobs
    barred: Jobs
    caps: List[float]  # of prices, to try


class Cover:
    """Partial weighted set cover: so many of the failures are to be caught, by jobs that cost."""

    def __init__(
        self, failures: Mapping[Jobs, int], costs: Mapping[str, float], need: int
    ) -> None:
        self.costs = costs
        self.may_miss = sum(failures.values()) - need
        useful = self.undominated(failures)
        weights: Counter[Jobs] = collections.Counter()
        for jobs, weight in failures.items():
            weights[jobs & useful] += weight
        self.failures = sorted(
            weights.items(), key=lambda one: (len(one[0]), sorted(one[0]))
        )

    def undominated(self, failures: Iterable[Jobs]) -> Jobs:
        """The jobs to choose from: without those of which another catches all that they do, and costs no more."""
        caught: Dict[str, List[Jobs]] = collections.defaultdict(list)
        for jobs in failures:
            for job in jobs:
                caught[job].append(jobs)
        useful: Jobs = frozenset()
        for job in sorted(
            caught, key=lambda job: (self.costs[job], -len(caught[job]), job)
        ):
            better = useful.intersection(*caught[job])  # who is in each of its failures
            if not better:
                useful |= {job}
        return useful

    def worth(self, left: Iterable[Failure], missing: int, cap: float) -> float:
        """What jobs cost at least that catch so many of these failures.

        Each failure gets a price, such that no job catches failures of more worth than it costs (a solution of the
        linear program's dual, failures of few jobs first). So a set costs no less than the failures that it catches are
        worth, and these no less than the cheapest that could be. Prices are capped, since dear ones are those that a
        set may miss.
        """
        slack = dict(self.costs)
        prices = []
        for jobs, weight in left:
            price = min(cap, *(slack[job] / weight for job in jobs))
            prices.append((price, weight))
            for job in jobs:
                slack[job] -= price * weight
        worth = 0.0
        for price, weight in sorted(prices):
            worth += price * max(0, min(weight, missing))
            missing -= weight
        return worth

    def best(self, left: Iterable[Failure], missing: int) -> str:
        """The job that costs least per failure that it catches of those that are missing."""
        gains: Counter[str] = collections.Counter()
        for jobs, weight in left:
            for job in jobs:
                gains[job] += weight
        return min(
            gains, key=lambda job: (self.costs[job] / min(gains[job], missing), job)
        )

    def cost(self, jobs: Iterable[str]) -> float:
        return math.fsum(self.costs[job] for job in jobs)

    def cheapest(self) -> Tuple[Jobs, float]:
        """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

        Branch and bound, depth first: the best job is in, or else it is out, so that greed finds the first set. It ends
        after a number of steps, not of seconds: the same input has the same answer everywhere.
        """
        found: Jobs = frozenset()
        cost = math.inf
        steps = 0
        caps = [max(self.costs.values()) / 2**power for power in range(CAPS)]
        nodes = [Node(0.0, frozenset(), frozenset(), caps)]
        while nodes and (cost == math.inf or steps < SEARCH_STEPS):
            _, chosen, barred, caps = nodes.pop()
            left = [
                failure for failure in self.failures if chosen.isdisjoint(failure[0])
            ]
            missing = sum(weight for _, weight in left) - self.may_miss
            spent = self.cost(chosen)
            if missing <= 0 and spent < cost * NEARLY:
                found, cost = chosen, spent
            left = [
                (jobs - barred, weight) for jobs, weight in left if not jobs <= barred
            ]
            if missing <= 0 or sum(weight for _, weight in left) < missing:
                continue
            steps += sum(len(jobs) for jobs, _ in left) * len(caps)
            worth, cap = max((self.worth(left, missing, cap), cap) for cap in caps)
            lower = spent + worth
            if lower < cost * NEARLY:
                job = self.best(left, missing)
                caps = [cap * 2, cap, cap / 2]
                nodes.append(Node(lower, chosen, barred | {job}, caps))
                nodes.append(Node(lower, chosen | {job}, barred, caps))
        return found, min([cost, *(node.lower for node in nodes)])


class Choice(NamedTuple):
    """A set of jobs, its cost, and a bound: no set that has the jobs to keep and catches enough costs less."""

    jobs: Jobs
    cost: float
    bound: float


def final_choice(plan: Plan, policy: Policy) -> Optional[Choice]:
    """The cheapest set that catches what a policy asks for, or as much as greed does for its budget."""
    if not plan.breakages:
        return None
    greedy = policy.jobs(plan, picks_of(plan))
    need = plan.caught(greedy) if policy.is_budget else plan.needed(policy.percent)
    need -= plan.caught(plan.kept)
    fixed = plan.cost(plan.kept)
    if need <= 0:
        return Choice(plan.kept, fixed, fixed)
    found, bound = Cover(plan.events(), plan.costs, need).cheapest()
    best = min(greedy, found | plan.kept, key=plan.cost)
    return Choice(best, plan.cost(best), bound + fixed)


# ---------------------------------------------------------------------------------------------------
# Walking forward: what a choice by the past would have caught in what came next. Pure.
# ---------------------------------------------------------------------------------------------------


def plan_at(
    history: History,
    number: int,
    cluster_of: Groups,
    keep: Jobs,
    known: Optional[int] = None,
) -> Plan:
    """What there is to choose by when so many commits are known, or, in hindsight, more.

    Jobs that are gone, or new, are not there to choose from.
    """
    past = bits_between(0, number)
    there = history.there(number)
    costs = {}
    for name in sorted(there):
        job = history.jobs[name]
        ran = job.ran & past
        was_red = ones_in(ran & job.red) / max(1, ones_in(ran))
        price = history.cost(history.closed([name]))
        costs[name] = price * (1 - RED_AGAIN * was_red)
    seen = bits_between(0, known or number)
    breakages = {}
    for name in sorted(there - history.young(number)):
        if history.jobs[name].anew & seen:
            breakages[name] = history.jobs[name].anew & seen
    return Plan(breakages, cluster_of, costs, history.cost(there), keep & there)


class Score(NamedTuple):
    """What sets would have done on stretches of commits. Costs are those of all commits together."""

    stretches: int
    commits: int
    caught: int
    failing: int
    strange: (
        int  # failing commits in which only jobs failed that had never failed before
    )
    events_caught: int
    events: int
    cost: float
    cost_of_all: float
    missed: int  # a bit for each commit

    def share(self) -> float:
        """Of the failing commits, those caught, from 0 to 1; 0 where none failed."""
        return self.caught / max(1, self.failing)

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
        squared = CERTAIN * CERTAIN / self.failing
        half = math.sqrt(share * (1 - share) * squared + squared * squared / 4)
        low = (share + squared / 2 - half) / (1 + squared)
        high = (share + squared / 2 + half) / (1 + squared)
        return max(0.0, low), min(1.0, high)


class Line(NamedTuple):
    """A policy: the jobs that it chooses now, what it would have done walking forward, and with hindsight."""

    policy: Policy
    jobs: Jobs
    share: float  # of the cost of all jobs a commit
    ahead: Score
    behind: Score


def clusters_at(history: History, number: int) -> Clusters:
    """The clusters of the first so many commits."""
    past = bits_between(0, number)
    verdicts = {}
    for name, job in history.jobs.items():
        if job.ran & past:
            verdicts[name] = Verdicts(job.ran & past, job.passed & past)
    return cluster(verdicts)


def groups_of(history: History, clusters: Clusters) -> Groups:
    """By job, its cluster; one for all where each commit is one to catch."""
    if history.has_clusters:
        return clusters.number_of()
    return dict.fromkeys(history.jobs, 0)


def chosen_by(
    history: History, policies: Sequence[Policy], plan: Plan
) -> Dict[Policy, Jobs]:
    """What each policy chooses by a plan, with all that it waits for."""
    picks = picks_of(plan)
    return {policy: history.closed(policy.jobs(plan, picks)) for policy in policies}


Scores = Dict[Policy, Tuple[Score, Score]]  # walking forward, and with hindsight


def walk(
    history: History, policies: Sequence[Policy], keep: Jobs, late: Clusters
) -> Scores:
    """Choose by the past before each stretch of the newest commits; one before which nothing failed is not judged.

    Clusters are those of the past, too: computed anew for each stretch, or, where that takes long, once; `late` are
    those of the whole history, for what hindsight says.
    """
    count = len(history.commits)
    judged = math.floor(count * JUDGED)
    places = range(STRETCHES + 1)
    edges = sorted({count - judged + judged * place // STRETCHES for place in places})
    scores: Scores = {}
    early = None
    for start, end in zip(edges, edges[1:]):
        if early is None or len(history.jobs) ** 2 * start <= CLUSTER_WORK:
            early = clusters_at(history, start)
        plan = plan_at(history, start, groups_of(history, early), keep)
        if not plan.breakages:
            continue
        chosen = chosen_by(history, policies, plan)
        wise_plan = plan_at(history, start, groups_of(history, late), keep, known=count)
        wise = chosen_by(history, policies, wise_plan)
        for policy in policies:
            ahead = score(history, start, end, plan.cluster_of, chosen[policy])
            behind = score(history, start, end, plan.cluster_of, wise[policy])
            if policy in scores:
                ahead = Score(*map(operator.add, ahead, scores[policy][0]))
                behind = Score(*map(operator.add, behind, scores[policy][1]))
            scores[policy] = ahead, behind
    return scores


def score(
    history: History, start: int, end: int, cluster_of: Groups, jobs: Jobs
) -> Score:
    """What jobs that were chosen before a stretch would have caught and cost there."""
    window = bits_between(start, end)
    anew = {}
    known = failing = caught = 0
    cost = cost_of_all = 0.0
    for name, job in history.jobs.items():
        anew[name] = job.anew & window
        failing |= anew[name]
        cost_of_all += job.cost * ones_in(job.ran & window)
        if job.anew & bits_between(0, start):
            known |= anew[name]
        if name in jobs:
            caught |= anew[name]
            cost += job.cost * ones_in(job.ran & ~job.red & window)
    events = Plan(anew, cluster_of, {}, 0.0, frozenset())
    return Score(
        stretches=1,
        commits=end - start,
        caught=ones_in(caught),
        failing=ones_in(failing),
        strange=ones_in(failing & ~known),
        events_caught=events.caught(jobs),
        events=events.caught(anew),
        cost=cost,
        cost_of_all=cost_of_all,
        missed=failing & ~caught,
    )


# ---------------------------------------------------------------------------------------------------
# Report: its summary, and what speaks for it, line by line.
# ---------------------------------------------------------------------------------------------------


class Report(NamedTuple):
    """All that was found, for all that is written."""

    history: History
    clusters: Clusters
    plan: Plan
    keep: Jobs
    choice: Optional[Choice]
    lines: List[Line]  # of the table
    line: Optional[Line]  # of the policy by which the choice was made
    # What becomes of the jobs; no two sets share one, but that of `mend` and `gone`.
    chosen: Jobs
    new: Jobs
    again: Jobs  # failed in the last runs
    mend: Jobs  # red for long
    gone: Jobs

    def rest(self) -> Jobs:
        """The jobs that are left out since they tell nothing new."""
        told = self.chosen | self.new | self.again | self.mend | self.gone
        return frozenset(self.history.jobs) - told

    def price(self, cost: float) -> str:
        """A cost with its unit: of time on one GPU, or jobs where no times are known."""
        if not self.history.is_timed:
            return f"{cost:,.4g} job" + "s" * (cost != 1)
        if cost < SHORT_S:
            return f"{cost:,.1f} s"
        return f"{cost / 3600:,.1f} h"


def percent(part: float, whole: float = 1.0) -> str:
    return f"{100 * part / (whole or 1.0):.1f} %"


def summary_lines(report: Report) -> Iterator[str]:
    """What it comes to."""
    commits = report.history.commits
    jobs = report.history.jobs
    failing = functools.reduce(operator.or_, (job.anew for job in jobs.values()))
    yield (
        f"{counted(len(jobs), 'job')}, {counted(len(commits), 'commit')} from {commits[0]} to {commits[-1]}, "
        f"{counted(ones_in(failing), 'failing commit')}"
    )
    yield from report.history.notes
    if not report.choice:
        yield "No commit failed on which to choose; nothing is recommended."
        return
    yield recommended_line(report, report.choice)
    if not report.chosen:
        yield "warning: nothing is chosen, and --only takes no empty file; ask for a larger --budget, or --keep a job"
    for named, why in (
        (report.new, "new, and run too until more is known of them"),
        (report.again, "failed lately, and run too (--recent)"),
    ):
        if named:
            share = percent(report.history.cost(named), report.plan.total)
            yield f"{why}: {len(named)}, {share} of the cost: {first_of(sorted(named))}"
    if report.gone:
        gone = first_of(sorted(report.gone))
        yield f"no longer run, and not recommended: {len(report.gone)}: {gone}"
    if report.line:
        yield from headline(report, report.line)
        yield from table_lines(report)


def recommended_line(report: Report, choice: Choice) -> str:
    """What is recommended, and how sure it is that nothing cheaper would do."""
    plan = report.plan
    cost = plan.cost(report.chosen)
    total = plan.caught(plan.breakages)
    caught = plan.caught(choice.jobs)
    proof = "the cheapest set there is"
    if any(report.history.waits.values()):
        proof = "a cheap set"
    elif choice.bound < choice.cost * NEARLY:
        proof = f"no more than {percent(choice.cost - choice.bound, plan.total)} above the cheapest set"
    if report.keep:
        proof += " with those to keep"
    waiting = len(choice.jobs - report.chosen)
    if waiting:
        proof = f"with {waiting} red for long, {proof}"
    return (
        f"Recommended: {len(report.chosen)} of {counted(len(plan.costs), 'job')}, {report.price(cost)} of "
        f"{report.price(plan.total)} a commit ({percent(cost, plan.total)}); {proof} that catches {caught} of "
        f"{counted(total, 'breakage')} so far ({percent(caught, total)})"
    )


def headline(report: Report, line: Line) -> Iterator[str]:
    """What would have happened, with what certainty, and why not more."""
    ahead = line.ahead
    low, high = map(percent, ahead.interval())
    yield (
        f"Walked forward through the newest {counted(ahead.commits, 'commit')}, choosing anew {ahead.stretches} times: "
        f"caught {ahead.caught} of {counted(ahead.failing, 'failing commit')} ({percent(ahead.share())}; 95 % sure: "
        f"{low} to {high}) and {ahead.events_caught} of {counted(ahead.events, 'breakage')}, at "
        f"{percent(ahead.price())} of the cost; in hindsight {line.behind.caught} of {ahead.failing} at "
        f"{percent(line.behind.price())}"
    )
    if ahead.failing < FEW_EVENTS:
        yield (
            f"warning: with fewer than {FEW_EVENTS} failing commits to judge by a share says little; take a longer "
            "history, or trust the interval alone"
        )
    within = [
        other for other in report.lines if 100 * other.ahead.price() <= BUDGET_PERCENT
    ]
    best = max([line, *within], key=lambda other: other.ahead.share())
    if not ahead.failing or 100 * ahead.share() >= AIM_PERCENT:
        return
    if best is not line:
        yield (
            f"of the lines below at most {BUDGET_PERCENT:g} % of the cost, --catch {best.policy.percent:g} caught "
            f"most: {percent(best.ahead.share())} at {percent(best.ahead.price())}"
        )
    if 100 * best.ahead.share() < AIM_PERCENT:
        behind = [
            line.behind
            for line in report.lines
            if 100 * line.behind.share() >= AIM_PERCENT
        ]
        least = percent(behind[0].price()) if behind else "more"
        yield (
            f"this history does not allow {AIM_PERCENT:g} % for {BUDGET_PERCENT:g} % of the cost: in {ahead.strange} "
            f"of {ahead.failing} only jobs failed that had never failed before, and in hindsight it takes {least}"
        )


def table_lines(report: Report) -> Iterator[str]:
    """What each share of the breakages costs, walking forward and in hindsight, so that an owner picks one."""
    yield ""
    yield "Cost against catch (--catch takes a line, --budget a cost):"
    yield (
        "  asked  jobs  cost now |  walking forward: cost      caught    share        95 % sure | "
        "in hindsight: cost    share"
    )
    for policy, jobs, share, ahead, behind in report.lines:
        low, high = map(percent, ahead.interval())
        counts = f"{ahead.caught}/{ahead.failing}"
        yield (
            f"{policy.percent:5g} % {len(jobs):5} {percent(share):>9} | {percent(ahead.price()):>22} {counts:>11} "
            f"{percent(ahead.share()):>8} {low:>7}-{high:>8} | {percent(behind.price()):>18} "
            f"{percent(behind.share()):>8}"
        )


def detail_lines(report: Report) -> Iterator[str]:
    """What speaks for it, list by list."""
    clusters = report.clusters
    marked = []
    for group in clusters.groups:
        if len(group) > 1:
            names = ["*" * (job in report.chosen) + job for job in group]
            marked.append("  " + " | ".join(names))
    count = counted(len(clusters.groups), "cluster")
    silent = report.rest() - report.plan.breakages.keys()
    missed = report.line.ahead.missed if report.line else 0
    for title, lines in (
        (
            f"To mend, red for {RED_RUNS} runs or more, and left out until they pass:",
            mend_lines(report),
        ),
        (f"{count}, {len(marked)} of more than one job (* recommended):", marked),
        (f"Chosen:\n{COLUMNS}", job_lines(report, report.chosen)),
        (
            "Left out, since they never failed anew:",
            [first_of(sorted(silent))][: len(silent)],
        ),
        (f"Left out:\n{COLUMNS}", job_lines(report, report.rest() - silent)),
        ("Missed, walking forward:", missed_lines(report, missed)),
    ):
        if lines:
            yield ""
            yield title
            yield from lines[:LISTED]
        if len(lines) > LISTED:
            yield f"  \u2026 with {len(lines) - LISTED:,} more"


def mend_lines(report: Report) -> List[str]:
    """The jobs that are red for long: since when, and how often they failed, most often first."""
    lines = []
    for name in report.mend:
        job = report.history.jobs[name]
        runs = ones_in(job.ran)
        failures = runs - ones_in(job.passed)
        mended = job.passed.bit_length()
        later = job.ran >> mended
        first = mended + (later & -later).bit_length() - 1  # the lowest of its bits
        since = report.history.commits[first]
        lines.append(
            (
                -failures,
                f"  {name}: since {since}, {failures} of {counted(runs, 'run')}",
            )
        )
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
            lines.append(
                f"{share:>8} {plan.caught([job]):8} {alone:6} {phi:5.2f}  {job}{like}"
            )
    return lines


def missed_lines(report: Report, missed: int) -> List[str]:
    """Of each missed commit the jobs that newly failed."""
    lines = []
    for number, commit in enumerate(report.history.commits):
        if missed >> number & 1:
            jobs = report.history.jobs.items()
            lines.append(
                f"  {commit}: {' | '.join(name for name, job in jobs if job.anew >> number & 1)}"
            )
    return lines


# ---------------------------------------------------------------------------------------------------
# Files: the labels, the matrix, the page.
# ---------------------------------------------------------------------------------------------------


def labels_text(report: Report, summary: Iterable[str]) -> str:
    """The file for `run_tests.py --only`: the labels, one a line, where they come from, and what is left out.

    A label that no line can hold is named nowhere: `--only` runs it as one that the file does not know.
    """
    parts = [f"# Chosen by {PROGRAM}, for run_tests.py --only."]
    parts += [
        f"# {line}" for line in summary if line.startswith(("Recommended:", "Walked"))
    ]
    mend = report.mend - report.chosen - report.new
    for jobs, mark, title in (
        (
            report.rest(),
            "# ",
            "Left out (what is named nowhere here is new, and runs):",
        ),
        (mend, "# ", "Left out until they pass, since they are red for long:"),
        (report.chosen, "", "Chosen:"),
        (report.new, "", "New:"),
        (report.again, "", "Failed lately:"),
    ):
        fit = [
            job
            for job in sorted(jobs)
            if job == job.strip() and not re.search("^# |[\r\n]", job)
        ]
        if fit:
            parts += [f"# {title}", *(mark + job for job in fit)]
    return "\n".join([*parts, ""])


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
    digits = 8 * math.ceil(len(report.history.commits) / 32)  # 32 commits a word
    jobs = [report.history.jobs[name] for name in report.clusters.jobs]
    points = []
    for line in [*report.lines, *filter(None, [report.line])]:
        score = line.ahead
        figures = [score.price(), score.share(), *score.interval()]
        points.append([line is report.line, *figures])
    data = {
        "jobs": report.clusters.jobs,
        "ran": [f"{job.ran:0{digits}x}" for job in jobs],
        "passed": [f"{job.passed:0{digits}x}" for job in jobs],
        "groups": [len(group) for group in report.clusters.groups],
        "merges": report.clusters.tree,
        "chosen": sorted(report.chosen),
        "points": points,
    }
    commits = counted(len(report.history.commits), "commit")
    parts = {
        "TITLE": f"{counted(len(jobs), 'job')} over {commits}",
        "SUMMARY": html.escape("\n".join(summary)),
        "DETAILS": html.escape("\n".join(details)),
        "DATA": json.dumps(data).replace("<", "\\u003c"),
    }
    with open(PAGE, encoding="utf-8") as file:
        template = file.read()
    return re.sub(
        "TITLE|SUMMARY|DETAILS|DATA", lambda found: parts[found.group()], template
    )


def write(path: str, text: str) -> None:
    """Write a file. Raises MachineError."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        with open(path, "wb") as file:
            file.write(data)
    except (OSError, UnicodeError) as error:
        raise MachineError(
            f"cannot write {path} ({error}); name another place"
        ) from None


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
        raise argparse.ArgumentTypeError(
            f"{text!r} is no regular expression: {error}"
        ) from None


PERCENT: Dict[str, Any] = {"type": parse_percent, "metavar": "PERCENT"}
NAMES: Dict[str, Any] = {"action": "append", "default": [], "metavar": "JOB"}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(PROGRAM, allow_abbrev=False, formatter_class=style)
    parser.description = __doc__
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=FORMS)
    add_reading(parser.add_argument_group("what is read"))
    add_choosing(parser.add_argument_group("what is chosen"))
    add = parser.add_argument_group("what is written").add_argument
    add(
        "--html",
        metavar="FILE",
        help="the report with a map of the correlations, in one file",
    )
    add("--csv", metavar="FILE", help="the correlations as numbers")
    add(
        "--write",
        metavar="FILE",
        help="the recommended labels, for run_tests.py --only",
    )
    return parser


def add_reading(group: Any) -> None:
    """The options of what is read."""
    add = group.add_argument
    tests = "of job statuses: tests alone, where their builds passed"
    commit = "of JUnit files: what in a path is the commit; default: the folder right below the source"
    drop = (
        "leave out jobs, by name or pattern ('*flaky*'), and what failed in them alone"
    )
    full = "of the jobs that have to have run in a commit, or it is left aside; default: %(default)g"
    add("--tests", action="store_true", help=tests)
    add(
        "--order",
        choices=["time", "name"],
        default="time",
        help="of files; default: time",
    )
    add("--commit", type=parse_pattern, metavar="REGEX", help=commit)
    add("--cases", action="store_true", help="of JUnit files: each test case is a job")
    add("--drop", **NAMES, help=drop)
    add("--complete", **PERCENT, default=COMPLETE_PERCENT, help=full)


def add_choosing(group: Any) -> None:
    """The options of what is chosen."""
    add = group.add_argument
    budget = (
        f"of the cost of all jobs that the set may cost; default: {BUDGET_PERCENT:g}, or more if "
        f"that catches less than {TARGETS[0]} %% of the breakages"
    )
    catch = "of the breakages so far that the set has to catch, whatever it costs"
    keep = "jobs, by name or pattern ('*asan*'), that are in the set whatever they tell"
    count = "what is to be caught: new failures (default), or all"
    either = group.add_mutually_exclusive_group()
    either.add_argument("--budget", **PERCENT, help=budget)
    either.add_argument("--catch", **PERCENT, help=catch)
    add("--count", choices=["new", "red"], default="new", help=count)
    add("--keep", **NAMES, help=keep)
    add(
        "--recent",
        type=int,
        default=0,
        metavar="N",
        help="add what failed in the last N runs",
    )


def check_outputs(options: argparse.Namespace) -> None:
    """Make sure that nothing is written twice, or over a source. Raises UsageError."""
    taken = {os.path.realpath(path) for path in options.sources}
    for path in filter(None, (options.html, options.csv, options.write)):
        if os.path.realpath(path) in taken:
            raise UsageError(
                f"{path} is a source, or another output; name a file of its own"
            )
        taken.add(os.path.realpath(path))
    if options.html and not os.path.exists(PAGE):
        raise UsageError(
            f"{os.path.basename(PAGE)} is not beside {PROGRAM}; copy it, too"
        )


def analyse(options: argparse.Namespace) -> Report:
    """From the sources to all that is reported. Raises UsageError or OSError."""
    check_outputs(options)
    history = history_of(read(options), options)
    policy = Policy(BUDGET_PERCENT, is_budget=True, at_least=TARGETS[0])
    if options.budget is not None:
        policy = Policy(options.budget, is_budget=True)
    elif options.catch is not None:
        policy = Policy(options.catch)
    table = [Policy(float(target)) for target in TARGETS]
    keep = matching("--keep", options.keep, [*history.jobs])
    count = len(history.commits)
    clusters = clusters_at(history, count)
    policies = [*dict.fromkeys([*table, policy])]
    scores = walk(history, policies, keep, clusters)
    plan = plan_at(history, count, groups_of(history, clusters), keep)
    choice = final_choice(plan, policy)
    lines = {}
    for asked, jobs in chosen_by(history, policies, plan).items():
        if asked in scores:
            share = plan.cost(jobs) / (plan.total or 1.0)
            lines[asked] = Line(asked, jobs, share, *scores[asked])
    mend = history.red(count)
    gone = frozenset(history.jobs) - history.there(count)
    chosen = history.closed(choice.jobs if choice else ()) - (mend - keep)
    new = history.young(count) - keep - chosen
    return Report(
        history=history,
        clusters=clusters,
        plan=plan,
        keep=keep,
        choice=choice,
        lines=[lines[target] for target in table if lines],
        line=lines.get(policy),
        chosen=chosen,
        new=new,
        again=history.recent - mend - gone - chosen - new,
        mend=mend,
        gone=gone,
    )


def show(text: str) -> None:
    """Print what standard output can show, if there is one. Raises MachineError."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python fails at its end again
        if not isinstance(error, BrokenPipeError):  # its reader has seen enough
            raise MachineError(f"cannot write to standard output ({error})") from None


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
    except MachineError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_MACHINE
    except UsageError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK if report.choice else EXIT_NOTHING


if __name__ == "__main__":
    sys.exit(main())
