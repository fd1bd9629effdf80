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

SEARCH_STEPS = 2_400_000  # looks at a job in search of the cheapest set: 3 s
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
MEND = f"To mend, red for {RED_RUNS} runs or more, and left out until they pass:"
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
    if gpus in (None, ""):
        gpus = 1
    try:
        time, count = float(seconds), float(gpus)
    except (ValueError, TypeError, OverflowError):
        time = count = math.inf
    if 0 <= time <= LARGEST and 0 <= count <= LARGEST:
        return time * count
    what = f"{seconds!r} seconds or {gpus!r} GPUs"
    raise ValueError(f"{what} are no number from 0 to {LARGEST:g}")


def sign_of(word: Optional[str], otherwise: int = SILENT) -> int:
    """What a word says that a job did. Raises AttributeError for what is none."""
    word = (word or "").strip()
    return VERDICTS.get(word.casefold(), otherwise)


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
    names = job.get("workflow_name"), job["name"]
    start = moment(job.get("started_at"))
    end = moment(job.get("completed_at") or job.get("finished_at"))
    cost = None
    if start and end:
        cost = max(0.0, end - start)
    word = job.get("conclusion", job.get("status", job.get("state")))
    time = start or moment(job.get("created_at"))
    return time, commit, " / ".join(filter(None, names)), sign_of(word), cost


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
    return [part.zfill(20 * part.isdigit()) for part in parts]


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
        last = {}  # of the runs of one commit and job the last that says something
        for _, commit, job, sign, cost in sorted(self.runs, key=operator.itemgetter(0)):
            if sign != SILENT or (commit, job) not in last:
                last[commit, job] = sign, cost
        for (commit, job), (sign, cost) in last.items():
            self.add(commit, job, sign, cost)

    def files_of(self, source: str) -> Iterator[Source]:
        """The files of a folder and below, or a file that is named. Raises OSError."""
        readers = {".json": self.read_json, ".xml": self.read_junit}
        folder, paths = os.path.dirname(source) or ".", [source]
        if os.path.isdir(source):
            readers[""] = self.read_json
            folder = source
            found = glob.glob(os.path.join(glob.escape(source), "**"), recursive=True)
            paths = [path for path in found if os.path.isfile(path)]
        elif source.endswith(".csv"):
            yield (), source, "", self.read_table
            return
        elif not source.endswith(tuple(readers)):
            yield (), source, "", self.read_journal
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
            mark = ","
            if first.count(";") > first.count(","):
                mark = ";"
            rows = csv.reader(itertools.chain([first], file), delimiter=mark)
            header = [name.strip() for name in next(rows, [])]
            lacking = ", ".join(name for name in CELLS[:3] if name not in header)
            if lacking:
                why = f"no column {lacking}; the first line names {', '.join(CELLS)} (the last two if they are known)"
                raise Mistake(f"{path}:1: {why}")
            place_of = {name: place for place, name in enumerate(header)}
            places = [place_of.get(name, -1) for name in CELLS]
            cells_of = operator.itemgetter(*places)
            blanks = [""] * len(header)
            last = max(places[:3])
            for row in filter(None, rows):
                if mistake:
                    raise Mistake(mistake)
                commit, job, ok, seconds, gpus = cells_of(row + blanks)
                if mark == ";":
                    seconds = seconds.replace(",", ".")
                try:
                    if not (commit and job and len(row) > last):
                        raise ValueError("commit, job or ok is missing")
                    sign = VERDICTS.get(ok.strip().casefold())
                    if sign is None:
                        why = "and not 1, 0, a word such as failed, or empty"
                        raise ValueError(f"ok is {ok!r} {why}")
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
            if need == "all":
                need = gpus
            cost = cost_of(event["seconds"], need)
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
                if folded(job) in broken:
                    sign = SILENT
                self.add(commit, job, sign, cost)

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
            sign = PASSED
            if tags & {"failure", "error"}:
                sign = FAILED
            elif "skipped" in tags:
                sign = SILENT
            cost = cost_of(case.get("time", "").replace(",", ""))
            cases.append((commit, name, sign, cost))
        for part in cases:
            self.add(*part)


# ---------------------------------------------------------------------------------------------------
# History: which jobs were new, failed anew and were red for long at which commits. Pure.
# ---------------------------------------------------------------------------------------------------

# Python 3.8 and 3.9 count bits in another way.
ones_in = getattr(int, "bit_count", lambda bits: bin(bits).count("1"))


class Job(NamedTuple):
    """What a job said and costs. Whole numbers have a bit for each commit, that of the oldest is the lowest."""

    ran: int
    passed: int
    anew: int  # where it failed such that it is to be caught
    red: int  # where it had been red for long before: it does not run for a change until it is mended
    cost: float  # seconds times GPUs a commit; where none are known, 1


class History:
    """The jobs that count, by name and in its order, and the commits in which nearly all of them ran."""

    def __init__(self, reader: Reader, options: argparse.Namespace) -> None:
        """Raises Mistake where no job counts."""
        total = len(reader.commits)
        # What else a reader should know.
        self.notes = told("skipped, not whole", reader.skipped)
        signs = {}
        for job in sorted(reader.jobs):
            if reader.jobs[job].strip(b" *"):
                signs[job] = bytes(reader.jobs[job].ljust(total))
        for job in matching("--drop", options.drop, signs):
            del signs[job]
        last = max(0, total - options.recent)
        failed = {job for job in signs if FAILED in signs[job][last:]}
        full = complete(signs.values(), options.complete)
        if not all(full):
            self.notes.append(
                f"left aside: {counted(full.count(False), 'commit')} of {total:,}, in which less than "
                f"{options.complete:g} % of the jobs ran; --complete 0 takes all"
            )
        self.commits = [*itertools.compress(reader.commits, full)]
        for job, text in signs.items():
            signs[job] = bytes(itertools.compress(text, full))
        broken = [job for job, text in signs.items() if PASSED not in text]
        if any(full):
            self.notes += told("left out, since they never passed", broken)
        for job in broken:
            del signs[job]
        if not signs:
            why = f"{', '.join(options.sources)}: no job passed in a commit that counts; {FORMS}"
            raise Mistake("; ".join([why, *self.notes]))
        costs = costs_of(reader, signs, full)
        self.is_timed = bool(costs)  # so that costs are seconds
        self.counts_red = options.count == "red"
        self.jobs: Dict[str, Job] = {}
        for job, text in signs.items():
            self.jobs[job] = job_of(text, costs.get(job, 1.0), self.counts_red)
        self.waits = reader.waits
        # What failed in the last runs, also in those that are left aside.
        self.recent = failed.intersection(self.jobs)

    def closed(self, jobs: Iterable[str]) -> Jobs:
        """The jobs and all that they wait for."""
        found: Jobs = frozenset()
        more = frozenset(jobs)
        while more != found:
            found = more
            waited = (self.waits.get(job, ()) for job in found)
            more = found.union(*waited).intersection(self.jobs)
        return found

    def cost(self, jobs: Iterable[str]) -> float:
        """What jobs cost together a commit, the same in whatever order they come."""
        return math.fsum(self.jobs[job].cost for job in jobs)

    def old(self, number: int) -> Jobs:
        """The jobs that are in others than the newest of the first so many commits; those of the first one may be."""
        return self.ran_in(0, max(1, number - NEW_RUNS))

    def ran_in(self, start: float, end: int) -> Jobs:
        """The jobs that ran in the commits from one number to before another."""
        window = bits_between(max(0, math.floor(start)), end)
        return frozenset(name for name, job in self.jobs.items() if job.ran & window)


def bits_between(start: int, end: int) -> int:
    """A bit for each commit from one number to before another."""
    return (1 << end) - (1 << start)


def union(many: Iterable[int]) -> int:
    return functools.reduce(operator.or_, many, 0)


def places_of(bits: int) -> List[int]:
    """The numbers of the commits that have a bit, the oldest first."""
    digits = bin(bits)[:1:-1]
    return [match.start() for match in re.finditer("1", digits)]


def matching(option: str, patterns: Iterable[str], jobs: Iterable[str]) -> Jobs:
    """The jobs that patterns (`*asan*`) name. Raises Mistake for a pattern that names none."""
    found: Jobs = frozenset()
    for pattern in patterns:
        named = {*fnmatch.filter(jobs, pattern), *{pattern}.intersection(jobs)}
        if not named:
            why = f"no job has such a name; there are {listed([*jobs])}"
            raise Mistake(f"{option} {pattern}: {why}")
        found |= named
    return found


def expected(signs: bytes) -> bytes:
    """A job's signs, silent where it was there: from its first verdict till its longest silence after its last."""
    spoken = signs.strip(b" *")
    start = signs.index(spoken)
    silences = re.split(b"[-+]", spoken)
    longest = max(map(len, silences))
    end = start + len(spoken) + longest
    there = signs[start:end].replace(b" ", b"*")
    return signs[:start] + there + signs[end:]


def complete(signs: Iterable[bytes], percent: float) -> List[bool]:
    """For each commit, whether that share of the jobs that were there, or are named in it, said something.

    So runs of a reduced set are left aside: what they leave out has neither passed nor failed.
    """
    full = []
    for column in zip(*map(expected, signs)):
        ran = column.count(PASSED) + column.count(FAILED)
        there = len(column) - column.count(AWAY)
        full.append(ran >= max(1, there * percent / 100))
    return full


def bits_of(signs: bytes, sign: int) -> int:
    """A bit for each of these signs."""
    digits = bytes(b"01"[each == sign] for each in SIGNS)
    return int(signs[::-1].translate(bytes.maketrans(SIGNS, digits)), 2)


def heard(bits: int, silent: int) -> int:
    """For each commit of these the first, from it on, in which a job was not silent: a carry runs through silence."""
    return (bits + silent) & ~silent


def job_of(signs: bytes, cost: float, counts_red: bool) -> Job:
    """What a job said, by its signs; with `counts_red` each failure is to be caught, old or new."""
    passed = bits_of(signs, PASSED)
    failed = bits_of(signs, FAILED)
    ran = passed | failed
    if counts_red:
        return Job(ran, passed, failed, 0, cost)
    silent = bits_between(0, len(signs)) & ~ran
    anew = failed & heard(passed << 1 | 1, silent)
    long = failed
    for _ in range(RED_RUNS - 1):
        long = failed & heard(long << 1, silent)
    start = long << 1
    end = heard(start, silent)
    return Job(ran, passed, anew, (end - start) | end, cost)


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


# ---------------------------------------------------------------------------------------------------
# Clusters: the matrix of correlations, the tree, the groups of jobs that tell the same. Pure.
# ---------------------------------------------------------------------------------------------------

Matrix = List[List[float]]
Verdicts = Tuple[int, int]  # where a job ran, and passed: a bit for each commit
# Of a tree two nodes that become one, and their distance; leaves are numbered from 0, merges from their number on.
Merge = Tuple[int, int, float]


def phi_of(one: Verdicts, other: Verdicts) -> float:
    """Pearson's coefficient of two jobs' verdicts over the commits of both; nan where either was constant there.

    It is what pandas' `corr` gives of 0 and 1. Counts of bits are exact, and cost a few machine words.
    """
    ran, passed = one
    other_ran, other_passed = other
    total = ones_in(ran & other_ran)
    ones = ones_in(passed & other_ran)
    others = ones_in(other_passed & ran)
    variances = ones * (total - ones) * others * (total - others)
    if not variances:
        return math.nan
    both = ones_in(passed & other_passed)
    return (total * both - ones * others) / math.sqrt(variances)


def distance_of(one: Sequence[float], other: Sequence[float]) -> float:
    """The Euclidean distance of two rows of the matrix."""
    distance = math.dist(one, other)
    return round(distance, DIGITS)


def matrix_of(values: Iterable[Any], measure: Callable[[Any, Any], float]) -> Matrix:
    """A measure that is the same both ways, of each pair of values; each pair of distinct ones is measured once."""
    number_of: Dict[Any, int] = {}
    numbers = [number_of.setdefault(value, len(number_of)) for value in values]
    table = [[0.0] * len(number_of) for _ in number_of]
    pairs = itertools.combinations_with_replacement(number_of.items(), 2)
    for (one, row), (other, column) in pairs:
        table[row][column] = table[column][row] = measure(one, other)
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
        del chain[-2:]
        joined.append((gone, stays, apart[gone][stays]))
        alive.remove(gone)
        apart[stays] = [*map(max, apart[gone], apart[stays])]
        for other in alive:
            apart[other][stays] = apart[stays][other]
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
            groups = [groups[0] + groups[1]]
        below[node] = groups
    return below.popitem()[1]


class Clusters:
    """Jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it is in no group, and comes last. A
    correlation of two other jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """

    def __init__(self, verdicts: Mapping[str, Verdicts]) -> None:
        varied = sorted(
            job for job, (ran, passed) in verdicts.items() if 0 < passed < ran
        )
        self.jobs = [*varied, *sorted(verdicts.keys() - varied)]  # in dendrogram order
        self.groups: List[List[str]] = []
        self.tree: List[Merge] = []  # leaves are numbered as in `jobs`
        if varied:
            self.join(varied, matrix_of((verdicts[job] for job in varied), phi_of))
        self.number_of: Dict[str, int] = {}  # by job, its group's, from 1
        for number, group in enumerate(self.groups, 1):
            self.number_of.update(dict.fromkeys(group, number))

    def join(self, jobs: List[str], matrix: Matrix) -> None:
        rows = []
        for row in matrix:
            # New numbers, one beside the other in memory: the distances are three times as fast.
            known = (0.0 if math.isnan(phi) else phi + 0.0 for phi in row)
            rows.append(tuple(known))
        distances = matrix_of(rows, distance_of)
        tree = linkage(distances)
        groups = groups_at(tree, CUT * max(map(max, distances)))
        leaves = [*itertools.chain(*groups)]
        place_of = {leaf: place for place, leaf in enumerate(leaves)}
        for one, other, far in tree:
            merge = place_of.get(one, one), place_of.get(other, other), far
            self.tree.append(merge)
        self.groups = [[jobs[leaf] for leaf in group] for group in groups]
        self.jobs[: len(jobs)] = itertools.chain(*self.groups)


# ---------------------------------------------------------------------------------------------------
# Choice: the cheapest jobs that catch so many breakages. Pure.
# ---------------------------------------------------------------------------------------------------


# What an owner asks for, in percent: that share of the breakages, or what that share of the cost buys if that is more.
Policy = Tuple[float, float]


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
            cluster = self.cluster_of.get(job, job)
            found[cluster] |= self.breakages.get(job, 0)
        return found

    def caught(self, jobs: Iterable[str]) -> int:
        """How many breakages these jobs catch."""
        return sum(map(ones_in, self.covered(jobs).values()))

    def cost(self, jobs: Iterable[str]) -> float:
        return math.fsum(self.costs.get(job, 0.0) for job in jobs)

    def needed(self, percent: float) -> int:
        """How many breakages are that share of all."""
        share = percent / 100
        return math.ceil(self.caught(self.breakages) * share - 1e-9)

    def events(self) -> Counter[Jobs]:
        """The breakages that the kept jobs do not catch: by the jobs that catch them, how many."""
        covered = self.covered(self.kept)
        found: Dict[Tuple[Hashable, int], List[str]] = collections.defaultdict(list)
        for job, commits in self.breakages.items():
            cluster = self.cluster_of.get(job, job)
            for place in places_of(commits & ~covered[cluster]):
                found[cluster, place].append(job)
        return collections.Counter(map(frozenset, found.values()))

    def greedy(self, need: int, limit: float) -> Jobs:
        """The jobs that cost least per breakage that none before them catches: so many, and then what fits in a limit.

        A job's gain only falls, so that the best is known without asking all others again (M. Minoux, "Accelerated
        greedy algorithms for maximizing submodular set functions", 1978).
        """
        missing = need - self.caught(self.kept)
        covered = self.covered(self.kept)
        cost = self.cost(self.kept)
        chosen = {*self.kept}
        heap = [(0.0, self.costs[job], job) for job in self.breakages]
        while heap:
            ratio, price, job = heapq.heappop(heap)
            cluster = self.cluster_of.get(job, job)
            gain = ones_in(self.breakages[job] & ~covered[cluster])
            if not gain or (missing <= 0 and cost + price > limit):
                continue
            if price / gain > ratio:
                heapq.heappush(heap, (price / gain, price, job))
                continue
            chosen.add(job)
            cost += price
            missing -= gain
            covered[cluster] |= self.breakages[job]
        return frozenset(chosen)

    def bought(self, policy: Policy) -> Jobs:
        """The jobs that greed takes."""
        catch, budget = policy
        need = self.needed(catch)
        jobs = self.greedy(0, self.total * budget / 100)
        if self.caught(jobs) < need:
            jobs = self.greedy(need, 0.0)
        return jobs


Costs = Mapping[str, float]
Failure = Tuple[Jobs, int]  # the jobs that catch it, and how often it came
Choice = Tuple[Jobs, float]  # and what any that catches as much costs at least


def weight_of(failures: Iterable[Failure]) -> int:
    return sum(weight for _, weight in failures)


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


def cheapest(failures: Mapping[Jobs, int], costs: Costs, need: int) -> Choice:
    """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

    Branch and bound, depth first: the best job is in, or else it is out, so that greed finds the first set. It ends
    after a number of steps, not of seconds: the same input has the same answer everywhere.
    """
    kinds = sorted(failures.items(), key=lambda kind: (len(kind[0]), sorted(kind[0])))
    caps = [max(costs.values()) / 2**power for power in range(CAPS)]
    found: Jobs = frozenset()
    cost = math.inf
    steps = 0
    # A branch: what it costs at least, the jobs that are in, the failures left to those that may be, and how many of
    # these have to be caught.
    nodes = [(0.0, found, kinds, need, caps)]
    while nodes and (cost == math.inf or steps < SEARCH_STEPS):
        _, chosen, left, missing, caps = nodes.pop()
        spent = math.fsum(costs[job] for job in chosen)
        if missing <= 0 and spent < cost * NEARLY:
            found, cost = chosen, spent
        if not 0 < missing <= weight_of(left):
            continue
        steps += sum(len(jobs) for jobs, _ in left) * len(caps)
        least, cap = max((worth(left, missing, costs, cap), cap) for cap in caps)
        least += spent
        if least >= cost * NEARLY:
            continue
        caps = [cap * 2, cap, cap / 2]
        job = best_of(left, missing, costs)
        without = [(jobs - {job}, weight) for jobs, weight in left if jobs != {job}]
        nodes.append((least, chosen, without, missing, caps))
        others = [kind for kind in left if job not in kind[0]]
        missing += weight_of(others) - weight_of(left)
        nodes.append((least, chosen | {job}, others, missing, caps))
    return found, min([cost, *(node[0] for node in nodes)])


def final_choice(plan: Plan, policy: Policy) -> Choice:
    """The cheapest set that catches what a policy asks for, or as much as greed does for its budget."""
    catch, budget = policy
    greedy = plan.bought(policy)
    need = plan.needed(catch)
    if budget:
        need = plan.caught(greedy)
    need -= plan.caught(plan.kept)
    fixed = plan.cost(plan.kept)
    if need <= 0:
        return plan.kept, fixed
    found, bound = cheapest(plan.events(), plan.costs, need)
    return min(greedy, found | plan.kept, key=plan.cost), bound + fixed


# ---------------------------------------------------------------------------------------------------
# Walking forward: what a choice by the past would have caught in what came next. Pure.
# ---------------------------------------------------------------------------------------------------


class Score:
    """What sets would have done on stretches of commits, each chosen before its own."""

    def __init__(self, judged: Iterable[Tuple[Plan, Jobs]]) -> None:
        """Of each stretch what came, as a plan, and the set."""
        self.failing = self.caught = 0  # a bit for each commit
        self.breakages = self.breakages_caught = 0
        cost = cost_of_all = 0.0
        for came, jobs in judged:
            self.failing |= union(came.breakages.values())
            self.caught |= union(came.breakages[job] for job in jobs)
            self.breakages += came.caught(came.breakages)
            self.breakages_caught += came.caught(jobs)
            cost += came.cost(jobs)
            cost_of_all += came.total
        self.price = cost / (cost_of_all or 1.0)  # from 0 to 1, as the next
        self.share = ones_in(self.caught) / max(1, ones_in(self.failing))

    def interval(self) -> Tuple[float, float]:
        """Where the share of the caught lies with a certainty of 95 %.

        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
        """
        if not self.failing:
            return 0.0, 1.0
        share = self.share
        squared = CERTAIN * CERTAIN / ones_in(self.failing)
        middle = share + squared / 2
        half = math.sqrt(share * (1 - share) * squared + squared * squared / 4)
        low = (middle - half) / (1 + squared)
        high = (middle + half) / (1 + squared)
        return max(0.0, low), min(1.0, high)


class Line(NamedTuple):
    """What a policy chooses now, what it would have done walking forward, and with hindsight."""

    catch: float  # percent
    jobs: Jobs
    ahead: Score
    behind: Score


class Stretch(NamedTuple):
    """Some commits that follow each other."""

    commits: int
    plan: Plan  # by what came before
    wise: Plan  # by what is known in hindsight
    came: Plan  # breakages and costs of these commits, by the clusters of what came before


def clusters_at(history: History, number: int) -> Clusters:
    """The clusters of the first so many commits."""
    past = bits_between(0, number)
    jobs = history.jobs.items()
    return Clusters({name: (job.ran & past, job.passed & past) for name, job in jobs})


def plan_at(
    history: History, number: int, clusters: Clusters, keep: Jobs, known: int
) -> Plan:
    """What there is to choose from when so many commits are there, by what those that are known say.

    More are known in hindsight. Jobs that are gone, or new, are not there to choose from.
    """
    past = bits_between(0, number)
    seen = bits_between(0, known)
    old = history.old(number)
    recently = min(number - GONE_RUNS, number * (1 - GONE_SHARE))
    there = history.ran_in(recently, number)
    costs = {}
    breakages = {}
    for name in sorted(there):
        job = history.jobs[name]
        ran = job.ran & past
        was_red = ones_in(ran & job.red) / max(1, ones_in(ran))
        costs[name] = history.cost(history.closed([name])) * (1 - RED_AGAIN * was_red)
        if job.anew & seen and name in old:
            breakages[name] = job.anew & seen
    groups = clusters.number_of
    if history.counts_red:  # all that failed in a commit is one breakage
        groups = dict.fromkeys(history.jobs, 0)
    return Plan(breakages, groups, costs, history.cost(there), keep & there)


def stretches_of(history: History, keep: Jobs, late: Clusters) -> Iterator[Stretch]:
    """The newest commits, in stretches; one before which nothing failed is not judged.

    Clusters are those of the past, too: computed anew for each stretch, or, where that takes long, once; `late` are
    those of the whole history, for what hindsight says.
    """
    count = len(history.commits)
    judged = math.floor(count * JUDGED)
    places = range(STRETCHES + 1)
    edges = sorted({count - judged + judged * place // STRETCHES for place in places})
    early = None
    for start, end in zip(edges, edges[1:]):
        if early is None or len(history.jobs) ** 2 * start <= CLUSTER_WORK:
            early = clusters_at(history, start)
        plan = plan_at(history, start, early, keep, known=start)
        wise = plan_at(history, start, late, keep, known=count)
        came = came_in(history, bits_between(start, end), plan)
        if plan.breakages:
            yield Stretch(end - start, plan, wise, came)


def came_in(history: History, window: int, plan: Plan) -> Plan:
    """The breakages and the costs of some commits, by the clusters of a plan. Who is red for long costs nothing."""
    breakages = {}
    costs = {}
    total = 0.0
    for name, job in history.jobs.items():
        breakages[name] = job.anew & window
        costs[name] = job.cost * ones_in(job.ran & ~job.red & window)
        total += job.cost * ones_in(job.ran & window)
    return Plan(breakages, plan.cluster_of, costs, total, plan.kept)


# ---------------------------------------------------------------------------------------------------
# Report: its summary, and what speaks for it, line by line.
# ---------------------------------------------------------------------------------------------------


class Report:
    """All that was found, for all that is written."""

    def __init__(self, history: History, options: argparse.Namespace) -> None:
        """Raises Mistake for a job to keep that is none."""
        count = len(history.commits)
        every = frozenset(history.jobs)
        keep = matching("--keep", options.keep, history.jobs)
        asked: Policy = TARGETS[0], BUDGET_PERCENT
        if options.catch is not None:
            asked = options.catch, 0.0
        elif options.budget is not None:
            asked = 0.0, options.budget
        self.history = history
        self.clusters = clusters_at(history, count)
        plan = plan_at(history, count, self.clusters, keep, known=count)
        self.plan = plan
        self.stretches = [*stretches_of(history, keep, self.clusters)]
        # Of the table, and last of what is recommended.
        policies = [*((target, 0.0) for target in TARGETS), asked]
        self.lines = [self.line(policy) for policy in policies]
        # What catches enough, and what any such costs at least.
        self.choice, self.bound = final_choice(plan, asked)
        self.has_choice = bool(plan.breakages)
        # What becomes of the jobs; no two sets share one, but that of those to mend and others.
        self.mend = {name for name in every if history.jobs[name].red >> count}
        self.gone = every - plan.costs.keys()
        self.chosen = history.closed(self.choice) - (self.mend - keep)
        if not self.has_choice:
            self.chosen = frozenset()
        self.new = every - history.old(count) - self.chosen
        lately = history.recent - self.mend - self.gone
        self.again = lately - self.chosen - self.new
        ours = self.chosen | self.new | self.again
        self.rest = every - ours - self.mend - self.gone  # they tell nothing new

    def line(self, policy: Policy) -> Line:
        """What a policy chooses, with all that waits for."""
        chosen = self.history.closed
        ahead = []
        behind = []
        for each in self.stretches:
            ahead.append((each.came, chosen(each.plan.bought(policy))))
            behind.append((each.came, chosen(each.wise.bought(policy))))
        jobs = chosen(self.plan.bought(policy))
        return Line(policy[0], jobs, Score(ahead), Score(behind))

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
    commits = history.commits
    failing = ones_in(union(job.anew for job in history.jobs.values()))
    yield (
        f"{counted(len(history.jobs), 'job')}, {counted(len(commits), 'commit')} from {commits[0]} to {commits[-1]}, "
        f"{counted(failing, 'failing commit')}"
    )
    yield from history.notes
    if not report.has_choice:
        yield "No commit failed on which to choose; nothing is recommended."
        return
    yield recommended_line(report)
    if not report.chosen:
        yield "warning: nothing is chosen, and --only takes no empty file; ask for a larger --budget, or --keep a job"
    for jobs, why in (
        (report.new, "new, and run too until more is known of them"),
        (report.again, "failed lately, and run too (--recent)"),
    ):
        share = percent(history.cost(jobs), report.plan.total)
        yield from told(f"{why}, {share} of the cost", sorted(jobs))
    yield from told("no longer run, and not recommended", sorted(report.gone))
    if report.stretches:
        yield from headline(report)
        yield from table_lines(report)


def recommended_line(report: Report) -> str:
    """What is recommended, and how sure it is that nothing cheaper would do."""
    plan = report.plan
    cost = plan.cost(report.chosen)
    above = plan.cost(report.choice) - report.bound
    proof = "the cheapest set there is"
    if any(report.history.waits.values()):
        proof = "a cheap set"
    elif above > plan.cost(report.choice) * (1 - NEARLY):
        proof = f"no more than {percent(above, plan.total)} above the cheapest set"
    if plan.kept:
        proof += " with those to keep"
    red = len(report.choice - report.chosen)
    if red:
        proof = f"with {red} red for long, {proof}"
    total = plan.caught(plan.breakages)
    caught = plan.caught(report.choice)
    return (
        f"Recommended: {len(report.chosen)} of {counted(len(plan.costs), 'job')}, {report.price(cost)} of "
        f"{report.price(plan.total)} a commit ({percent(cost, plan.total)}); {proof} that catches {caught} of "
        f"{counted(total, 'breakage')} so far ({percent(caught, total)})"
    )


def headline(report: Report) -> Iterator[str]:
    """What would have happened, with what certainty, and why not more."""
    *table, line = report.lines
    ahead = line.ahead
    failing = ones_in(ahead.failing)
    low, high = map(percent, ahead.interval())
    commits = sum(each.commits for each in report.stretches)
    yield (
        f"Walked forward through the newest {counted(commits, 'commit')}, choosing anew "
        f"{len(report.stretches)} times: caught {ones_in(ahead.caught)} of {counted(failing, 'failing commit')} "
        f"({percent(ahead.share)}; 95 % sure: {low} to {high}) and {ahead.breakages_caught} of "
        f"{counted(ahead.breakages, 'breakage')}, at {percent(ahead.price)} of the cost; in hindsight "
        f"{ones_in(line.behind.caught)} of {failing} at {percent(line.behind.price)}"
    )
    if failing < FEW_EVENTS:
        yield (
            f"warning: with fewer than {FEW_EVENTS} failing commits to judge by a share says little; take a longer "
            "history, or trust the interval alone"
        )
    cheap = [other for other in table if other.ahead.price <= BUDGET_PERCENT / 100]
    best = max([line, *cheap], key=lambda other: other.ahead.share)
    aim = AIM_PERCENT / 100
    if not failing or ahead.share >= aim:
        return
    if best is not line:
        yield (
            f"of the lines below at most {BUDGET_PERCENT:g} % of the cost, --catch {best.catch:g} caught "
            f"most: {percent(best.ahead.share)} at {percent(best.ahead.price)}"
        )
    if best.ahead.share >= aim:
        return
    wise = [other.behind.price for other in table if other.behind.share >= aim]
    least = [*map(percent, wise), "more"][0]
    again = union(job.anew & (job.anew - 1) for job in report.history.jobs.values())
    yield (
        f"this history does not allow {AIM_PERCENT:g} % for {BUDGET_PERCENT:g} % of the cost: in "
        f"{ones_in(ahead.failing & ~again)} of {failing} only jobs failed that had never failed before, and in "
        f"hindsight it takes {least}"
    )


def table_lines(report: Report) -> Iterator[str]:
    """What each share of the breakages costs, walking forward and in hindsight, so that an owner picks one."""
    yield ""
    yield "Cost against catch (--catch takes a line, --budget a cost):"
    yield (
        "  asked  jobs  cost now |  walking forward: cost      caught    share        95 % sure | "
        "in hindsight: cost    share"
    )
    for catch, jobs, ahead, behind in report.lines[:-1]:
        now = percent(report.plan.cost(jobs), report.plan.total)
        low, high = map(percent, ahead.interval())
        caught = f"{ones_in(ahead.caught)}/{ones_in(ahead.failing)}"
        yield (
            f"{catch:5g} % {len(jobs):5} {now:>9} | {percent(ahead.price):>22} {caught:>11} "
            f"{percent(ahead.share):>8} {low:>7}-{high:>8} | {percent(behind.price):>18} "
            f"{percent(behind.share):>8}"
        )


def detail_lines(report: Report) -> Iterator[str]:
    """What speaks for it, list by list."""
    columns = "    cost  catches  alone   phi  job | the recommended one most like it"
    groups = report.clusters.groups
    alike = []
    for group in groups:
        names = ["*" * (job in report.chosen) + job for job in group]
        alike += ["  " + " | ".join(names)] * (len(group) > 1)
    silent = report.rest - report.plan.breakages.keys()
    ahead = report.lines[-1].ahead
    yield from block(MEND, mend_lines(report))
    title = f"{counted(len(groups), 'cluster')}, {len(alike)} of more than one job (* recommended):"
    yield from block(title, alike)
    yield from block(f"Chosen:\n{columns}", job_lines(report, report.chosen))
    if silent:
        yield from block(
            "Left out, since they never failed anew:", [listed(sorted(silent))]
        )
    yield from block(f"Left out:\n{columns}", job_lines(report, report.rest - silent))
    missed = commit_lines(report.history, ahead.failing & ~ahead.caught)
    yield from block("Missed, walking forward:", missed)


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A list that is cut off where it is long; nothing of an empty one."""
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
        since = report.history.commits[first]
        said = f"  {name}: since {since}, {failures} of {counted(runs, 'run')}"
        lines.append((-failures, said))
    return [line for _, line in sorted(lines)]


def job_lines(report: Report, jobs: Jobs) -> List[str]:
    """What jobs cost, how many breakages so far they catch, and how many that no other one of the chosen does."""
    plan = report.plan
    verdicts = {name: job[:2] for name, job in report.history.jobs.items()}
    lines = []
    for job in filter(jobs.__contains__, report.clusters.jobs):
        others = report.chosen - {job}
        alone = plan.caught(others | {job}) - plan.caught(others)
        alike = [(0.0, "")]
        for other in others:
            phi = phi_of(verdicts[job], verdicts[other])
            if phi > 0:
                alike.append((phi, f" | {other}"))
        phi, like = max(alike)
        share = percent(plan.costs.get(job, 0.0), plan.total)
        counts = f"{share:>8} {plan.caught([job]):8} {alone:6}"
        lines.append(f"{counts} {phi:5.2f}  {job}{like}")
    return lines


def commit_lines(history: History, commits: int) -> List[str]:
    """Of each of these commits the jobs that newly failed."""
    lines = []
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
        (LEFT_OUT, "# ", report.rest | report.mend - ours),
        ("Chosen:", "", report.chosen),
        ("New:", "", report.new),
        ("Failed lately:", "", report.again),
    ):
        fit = [job for job in sorted(jobs) if not UNFIT.search(job)]
        if fit:
            lines += [f"# {title}", *(mark + job for job in fit)]
    return "\n".join([*lines, ""])


def matrix_text(report: Report) -> str:
    """The matrix as a CSV file: job, number of its cluster, phi with each job, empty where it is unknown."""
    jobs = report.clusters.jobs
    number_of = report.clusters.number_of
    matrix = matrix_of((report.history.jobs[job][:2] for job in jobs), phi_of)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["job", "cluster", *jobs])
    for job, row in zip(jobs, matrix):
        values = (repr(phi).replace("nan", "") for phi in row)
        rows.writerow([job, number_of.get(job, ""), *values])
    return text.getvalue()


def page_text(report: Report, summary: Iterable[str], details: Iterable[str]) -> str:
    """The page: the report's lines, and what its script draws. Raises OSError where its template is missing."""
    commits = counted(len(report.history.commits), "commit")
    digits = 8 * math.ceil(len(report.history.commits) / 32)  # 32 commits a word
    jobs = [report.history.jobs[name] for name in report.clusters.jobs]
    points = []
    for line in report.lines:
        score = line.ahead
        figures = score.price, score.share, *score.interval()
        points += [[line is report.lines[-1], *figures]] * bool(report.stretches)
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
        check_outputs(options)
        reader = Reader(options)
        reader.read()
        report = Report(History(reader, options), options)
        summary = [*summary_lines(report)]
        details = [*detail_lines(report)]
        if options.html:
            write(options.html, page_text(report, summary, details))
        if options.csv:
            write(options.csv, matrix_text(report))
        if options.write and report.has_choice:
            write(options.write, labels_text(report, summary))
        show("\n".join(summary + details))
    except Mistake as mistake:
        print(f"{PROGRAM}: error: {mistake}", file=sys.stderr)
        return mistake.exit_code
    if not report.has_choice:
        return EXIT_NOTHING
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
