#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What each CI job, or test, has said of each commit: read it from what CI keeps, and write it as one table.

  ci_verdicts.py runs/ > history.csv               GitHub's, GitLab's or Buildkite's jobs as JSON, or JUnit files
  ci_verdicts.py results/ --cases > history.csv    JUnit files, each test case a job
  ci_verdicts.py logs/*.jsonl > history.csv        journals of run_tests.py
  ci_dedup.py runs/                                what to choose by it: it reads the same by this file

The table has the columns commit, job, ok (1, 0, or nothing where nothing is said) and seconds (times GPUs), oldest
commit first. Files that are not whole are left out, and told on stderr.

exit codes:
  0 done   2 usage or bad input   3 the table cannot be written
"""

# The file reads as data flows: reading, history, command line. The history is for ci_dedup.py.

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import datetime
import fnmatch
import functools
import glob
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
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping
from typing import NamedTuple, Optional, Pattern, Sequence, Tuple

PROGRAM = "ci_verdicts.py"
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 2, 3, 5, 130

# What a job did in a commit: was away, silent, passed, failed. Of its parts the last of these counts.
AWAY, SILENT, PASSED, FAILED = b" *+-"
WORDS = {
    PASSED: "1 1.0 true yes ok success successful pass passed flaky",
    FAILED: "0 0.0 false no failure fail failed crashed timeout timed_out error broken",
    SILENT: "skipped skip cancelled canceled neutral pending blocked deferred interrupted "
    "unrunnable nan none null",
}
VERDICTS = {"": SILENT, "not run": SILENT}
for verdict, words in WORDS.items():
    each_one = dict.fromkeys(words.split(), verdict)
    VERDICTS.update(each_one)
OKS = {b"+": "1", b"-": "0", b"*": ""}  # as a table has them
CELLS = "commit job ok seconds gpus".split()  # of a table, which needs the first three
BUILDS = "_build", "-build"
TESTS = "_test", "-test"
SUFFIXES = "_build _test -build -test _multigpu _NO_AVX_NO_AVX2 _NO_AVX2".split()
LARGEST = 1e9  # seconds or GPUs: more is a mistake
# What half a record, or one of another form, raises where it is read.
UNREADABLE = AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError
NOT_WHOLE = ValueError, RecursionError, xml.etree.ElementTree.ParseError
FIRST = operator.itemgetter(0)
PART = r" \(part \d+ of \d+\)$"  # how the label of a part of a split test ends

COMPLETE_PERCENT = 90.0  # of the jobs have to run, or a commit is left aside
RED_RUNS = 10  # verdicts in a row: who failed in all catches nothing until fixed
# Of the commits, and at least: a job that is in none so new is gone.
GONE_SHARE, GONE_RUNS = 0.1, 3
NEW_RUNS = 2  # newest commits: a job that is in none before is new
NAMED = 10  # names of a line that are shown
FORMS = "journals of run_tests.py, CSV files, or folders of JSON or JUnit files"

Jobs = FrozenSet[str]


class Mistake(Exception):
    """What ends the command: in the command line, the input, or the machine (a full disk)."""

    def __init__(self, text: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    text = " | ".join(names[:NAMED])
    more = len(names) - NAMED
    if more > 0:
        text += f" \u2026 with {more} more"
    return text


def told(what: str, names: Sequence[str]) -> List[str]:
    """A line of how many are so, and who; none where there are none."""
    if not names:
        return []
    return [f"{what}: {len(names)}: {listed(names)}"]


def counted(number: int, what: str) -> str:
    text = f"{number:,} {what}"
    if number != 1:
        text += "s"
    return text


def percent(part: float, whole: float = 1.0) -> str:
    share = 100 * part / (whole or 1.0)
    return f"{share:.1f} %"


# ---------------------------------------------------------------------------------------------------
# Reading: CSV files, journals, JSON and JUnit files, to what each job said of each commit, and cost.
# ---------------------------------------------------------------------------------------------------


# A file: its place among others, the path, the same below the folder that was named, and what reads it.
Source = Tuple[Any, str, str, Callable[[str, str], None]]
# A run of a job for a commit: seconds since 1970, commit, job, sign, cost if it is known.
Run = Tuple[float, str, str, int, Optional[float]]
Costs = Dict[int, float]  # by commit


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
    text = word or ""
    text = text.strip().casefold()
    return VERDICTS.get(text, otherwise)


def moment(text: Optional[str]) -> float:
    """Seconds since 1970 of `2026-03-16T07:00:00Z`, 0 where there is none. Raises ValueError."""
    if not text:
        return 0.0
    # Python 3.8 reads fractions of three or six digits alone.
    text = re.sub(r"\.\d+", "", text)
    text = text.replace("Z", "+00:00")
    time = datetime.datetime.fromisoformat(text)
    return time.timestamp()


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
    said = job.get
    commit = said("head_sha") or job["commit"]
    if isinstance(commit, dict):
        commit = commit["id"]
    if not isinstance(commit, str):
        raise TypeError("a commit is a text")
    name = job["name"] or said("command")
    part = said("parallel_group_index")
    if part is not None:
        name = f"{name} ({part})"
    names = said("workflow_name"), name
    name = " / ".join(filter(None, names))
    start = moment(said("started_at"))
    end = moment(said("completed_at") or said("finished_at"))
    cost = None
    if start and end:
        cost = max(0.0, end - start)
    state = said("status", said("state"))
    word = said("conclusion", state)
    sign = sign_of(word)
    if word == "broken":  # Buildkite's: what it waits for has failed
        sign = SILENT
    time = start or moment(said("created_at"))
    return time, commit, name, sign, cost


def count_in(path: str, suite: Any, kind: str) -> int:
    """How many failures or errors a suite of a JUnit file says that it has. Raises Mistake."""
    text = suite.get(kind) or "0"
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        name = suite.get("name", "")
        why = f"{kind} of the test suite {name!r} is {text!r}, and no number"
        raise Mistake(f"{path}: {why}; fix or remove the file") from None


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
    for place in range(1, len(parts), 2):
        parts[place] = parts[place].zfill(20)
    return parts


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
        self.costs: Dict[str, Costs] = collections.defaultdict(dict)
        self.runs: List[Run] = []
        self.commit_of: Dict[str, str] = {}  # by run of a journal
        self.gpus_of: Dict[str, int] = {}
        self.waits: Dict[str, Jobs] = {}  # by job, those it waits for: they run, too
        self.files: List[str] = []  # that are read
        self.skipped: List[str] = []  # what was not whole

    def add(self, commit: str, job: str, sign: int, cost: Optional[float]) -> None:
        """Take in what a part of a job said; it passed if all its parts did, and costs what they cost together."""
        number = self.commits.setdefault(commit, len(self.commits))
        signs = self.jobs[job]
        lacking = number - len(signs)
        if lacking < 0:
            signs[number] = max(signs[number], sign)
        else:
            signs.extend(b" " * lacking)
            signs.append(sign)
        if cost is not None and sign != SILENT:
            costs = self.costs[job]
            before = costs.get(number, 0.0)
            costs[number] = before + cost

    def read(self) -> None:
        """Take in all sources, which have to be of one kind. Raises Mistake."""
        once = {}
        for path in self.options.sources:
            once[file_of(path)] = path
        files: List[Source] = []
        try:
            for path in once.values():
                files += self.files_of(path)
            kinds = {read for *_, read in files}
            if len(kinds) > 1:
                raise Mistake(f"sources are of different kinds; name {FORMS}")
            files.sort(key=FIRST)
            self.files = [path for _, path, *_ in files]
            for _, path, below, read in files:
                try:
                    read(path, below)
                except NOT_WHOLE:
                    self.skipped.append(path)
        except (OSError, csv.Error) as error:
            why = getattr(error, "strerror", error)
            raise Mistake(f"{path}: cannot be read ({why}); name {FORMS}") from None
        self.add_runs()
        jobs = sorted(self.jobs)
        for job in matching("--drop", self.options.drop, jobs):
            del self.jobs[job]

    def add_runs(self) -> None:
        """Take in, of the runs of one commit and job, the last that says something."""
        self.runs.sort(key=FIRST)
        last: Dict[Tuple[str, str], Run] = {}
        for run in self.runs:
            _, commit, job, sign, _ = run
            key = commit, job
            if sign != SILENT or key not in last:
                last[key] = run
        for _, commit, job, sign, cost in last.values():
            self.add(commit, job, sign, cost)

    def files_of(self, source: str) -> Iterator[Source]:
        """The files of a folder and below, or a file that is named. Raises OSError."""
        readers = {".json": self.read_json, ".xml": self.read_junit}
        folder = os.path.dirname(source) or "."
        paths = [source]
        if os.path.isdir(source):
            readers[""] = self.read_json
            folder = source
            pattern = os.path.join(glob.escape(source), "**")
            found = glob.glob(pattern, recursive=True)
            paths = [*filter(os.path.isfile, found)]
        elif source.endswith(".csv"):
            yield (), source, "", self.read_table
            return
        elif not source.endswith(tuple(readers)):
            yield (), source, "", self.read_journal
            return
        for path in paths:
            stem, extension = os.path.splitext(path)
            if extension in readers:
                time = 0
                if self.options.order == "time":
                    time = os.stat(path).st_mtime_ns
                place = time, natural(path)
                below = os.path.relpath(stem, folder)
                read = readers[extension]
                yield place, path, below, read

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
            lines = itertools.chain([first], file)
            rows = csv.reader(lines, delimiter=mark)
            header = [name.strip() for name in next(rows, [])]
            lacking = [name for name in CELLS[:3] if name not in header]
            if lacking:
                raise Mistake(
                    f"{path}:1: no column {', '.join(lacking)}; the first line names {', '.join(CELLS)} "
                    "(the last two if they are known)"
                )
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
                    word = ok.strip().casefold()
                    sign = VERDICTS.get(word, AWAY)
                    if sign == AWAY:
                        why = "and not 1, 0, a word such as failed, or empty"
                        raise ValueError(f"ok is {ok!r} {why}")
                    cost = cost_of(seconds, gpus)
                    self.add(commit, job, sign, cost)
                except ValueError as error:
                    mistake = f"{path}:{rows.line_num}: {error}; fix the row"
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
            self.gpus_of[run] = len(event["gpus"])
            commit = event.get("commit") or run
            self.commit_of[run] = str(commit)
        elif event["event"] == "test_end":
            run = event["run"]
            label = event["label"]
            if "origin" in event and re.search(PART, label):
                return  # of a split test, which has an end of its own as a whole
            need = event.get("need")
            if need == "all":
                need = self.gpus_of.get(run, 1)
            commit = self.commit_of.get(run, run)
            time = float(event["time"])
            cost = cost_of(event["seconds"], need)
            sign = sign_of(event["outcome"])
            if not isinstance(label, str):
                raise TypeError("a label is a text")
            after = event.get("after", ())
            self.runs.append((time, commit, label, sign, cost))
            self.waits[label] = frozenset(after)

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
                f"Buildkite print them ({error}); fix or remove the file"
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
                seconds = record.get("seconds")
                cost = cost_of(seconds, record.get("gpus"))
            except UNREADABLE:
                raise ValueError(f"job {job!r} is {str(record)[:100]}") from None
            parts.append((job, sign, cost))
            if sign == FAILED and job.endswith(BUILDS):
                broken.add(folded(job))
        for job, sign, cost in parts:
            whole = folded(job)
            if not self.options.tests:
                self.add(commit, whole, sign, cost)
            elif job.endswith(TESTS):
                if whole in broken:
                    sign = SILENT
                self.add(commit, job, sign, cost)

    def read_junit(self, path: str, below: str) -> None:
        """Take in a JUnit file. Raises ParseError for half of one, Mistake where no commit is told, or an odd encoding.

        The commit is what --commit finds in the path; else the folder right below the source is, and the file is the
        job; a file right in the source is a commit by itself, and its test cases are the jobs.
        """
        commit, _, job = below.partition(os.sep)
        pattern = self.options.commit
        if pattern:
            match = pattern.search(path)
            if not match:
                why = f"--commit {pattern.pattern} finds nothing in this path; fix it"
                raise Mistake(f"{path}: {why}")
            commit = match.group(match.lastindex or 0)
            job = os.path.basename(below)
        cases = []
        try:
            tree = xml.etree.ElementTree.parse(path)
        except (LookupError, ValueError) as error:  # of its encoding
            raise Mistake(f"{path}: cannot be read ({error}); fix or remove the file") from None
        for element in tree.iter():
            element.tag = element.tag.rpartition("}")[2]  # without its namespace
        for suite in [*tree.iter("testsuites"), *tree.iter("testsuite")]:
            said = sum(count_in(path, suite, kind) for kind in ("failures", "errors"))
            if said > len([*suite.iter("failure"), *suite.iter("error")]):
                cases.append((commit, job or suite.get("name", ""), FAILED, cost_of("")))
        for case in tree.iter("testcase"):
            names = case.get("classname"), case.get("name")
            name = ".".join(filter(None, names))
            if job and not self.options.cases:
                name = job
            tags = {child.tag for child in case}
            sign = PASSED
            if tags & {"failure", "error"}:
                sign = FAILED
            elif "skipped" in tags:
                sign = SILENT
            seconds = case.get("time", "")
            cost = None
            with contextlib.suppress(ValueError):  # what it said counts, whatever its clock did
                cost = cost_of(seconds.replace(",", ""))
            cases.append((commit, name, sign, cost))
        for part in cases:
            self.add(*part)


# ---------------------------------------------------------------------------------------------------
# History: which jobs were new, failed anew and were red for long at which commits. Pure.
# ---------------------------------------------------------------------------------------------------

# Python 3.8 and 3.9 count bits in another way.
ones_in = getattr(int, "bit_count", lambda bits: bin(bits).count("1"))


Verdicts = Tuple[int, int]  # where a job ran, and passed: a bit for each commit


class Job(NamedTuple):
    """What a job said and costs. Whole numbers have a bit for each commit, that of the oldest is the lowest."""

    ran: int
    passed: int
    anew: int  # where it failed such that it is to be caught
    red: int  # where it had been red for long before: it does not run for a change until it is fixed
    cost: float  # seconds times GPUs a commit; where none are known, 1

    def failures(self) -> int:
        """How often it failed."""
        failed = self.ran & ~self.passed
        return ones_in(failed)

    def red_since(self) -> int:
        """The first commit after the last in which it passed where it ran."""
        passed = self.passed.bit_length()
        later = places_of(self.ran >> passed)
        return passed + later[0]


class History:
    """The jobs that count, by name and in its order, and the commits in which nearly all of them ran."""

    def __init__(self, reader: Reader, options: argparse.Namespace) -> None:
        """Raises Mistake where no job counts."""
        total = len(reader.commits)
        last = max(0, total - options.recent)
        # What else a reader should know.
        self.notes = told("skipped, not whole", reader.skipped)
        signs = {}
        failed = set()  # in the last runs, also in those that are left aside
        for job in sorted(reader.jobs):
            text = bytes(reader.jobs[job].ljust(total))
            if text.strip(b" *"):
                signs[job] = text
            if FAILED in text[last:]:
                failed.add(job)
        full = complete(signs.values(), options.complete)
        aside = full.count(False)
        if aside:
            self.notes.append(
                f"left aside: {counted(aside, 'commit')} of {total:,}, in which less than "
                f"{options.complete:g} % of the jobs ran; --complete 0 takes all"
            )
        self.commits = [*itertools.compress(reader.commits, full)]
        lost: Dict[bool, List[str]] = {False: [], True: []}  # by whether they passed at all
        for job, said in [*signs.items()]:
            signs[job] = bytes(itertools.compress(said, full))
            if PASSED not in signs[job]:
                lost[PASSED in said].append(job)
                del signs[job]
        if any(full):
            self.notes += told("left out, since they never passed", lost[False])
            why = "left out, since they passed only in commits that are left aside"
            self.notes += told(why, lost[True])
        if not signs:
            why = f"{', '.join(options.sources)}: no job passed in a commit that counts; name {FORMS}"
            raise Mistake("; ".join([why, *self.notes]))
        costs = costs_of(reader, signs, full)
        self.is_timed = bool(costs)  # so that costs are seconds
        self.counts_red = options.count == "red"
        self.jobs: Dict[str, Job] = {}
        for job, text in signs.items():
            cost = costs.get(job, 1.0)
            self.jobs[job] = job_of(text, cost, self.counts_red)
        self.waits = reader.waits
        self.recent = failed.intersection(self.jobs)

    def closed(self, jobs: Iterable[str]) -> Jobs:
        """The jobs and all that they wait for."""
        found: Jobs = frozenset()
        more = frozenset(jobs)
        while more != found:
            found = more
            waited = (self.waits.get(job, ()) for job in found)
            more = frozenset(filter(self.jobs.__contains__, found.union(*waited)))
        return found

    def cost(self, jobs: Iterable[str]) -> float:
        """What jobs cost together a commit, the same in whatever order they come."""
        costs = (self.jobs[job].cost for job in jobs)
        return math.fsum(costs)

    def old(self, number: int) -> Jobs:
        """The jobs that are in others than the newest of the first so many commits; those of the first one may be."""
        end = max(1, number - NEW_RUNS)
        return self.ran_in(0, end)

    def there(self, number: int) -> Jobs:
        """The jobs that are in the newest of the first so many commits: others run no longer."""
        others = number * (1 - GONE_SHARE)
        start = min(number - GONE_RUNS, others)
        return self.ran_in(start, number)

    def verdicts(self, number: int) -> Dict[str, Verdicts]:
        """What the jobs said in the first so many commits."""
        past = bits_between(0, number)
        said = {}
        for name, job in self.jobs.items():
            ran = job.ran & past
            passed = job.passed & past
            said[name] = ran, passed
        return said

    def newest(self, share: float, parts: int) -> List[Tuple[int, int]]:
        """That share of the commits in so many parts at most: from which number to before which."""
        count = len(self.commits)
        length = math.floor(count * share)
        first = count - length
        edges = set()
        for part in range(parts + 1):
            done = length * part // parts
            edges.add(first + done)
        starts = sorted(edges)
        return [*zip(starts, starts[1:])]

    def ran_in(self, start: float, end: int) -> Jobs:
        """The jobs that ran in the commits from one number to before another."""
        first = max(0, math.floor(start))
        window = bits_between(first, end)
        found = set()
        for name, job in self.jobs.items():
            if job.ran & window:
                found.add(name)
        return frozenset(found)


def bits_between(start: int, end: int) -> int:
    """A bit for each commit from one number to before another."""
    return (1 << end) - (1 << start)


def union(many: Iterable[int]) -> int:
    return functools.reduce(operator.or_, many, 0)


def places_of(bits: int) -> List[int]:
    """The numbers of the commits that have a bit, the oldest first."""
    digits = bin(bits)[:1:-1]
    ones = re.finditer("1", digits)
    return [one.start() for one in ones]


def matching(option: str, patterns: Iterable[str], jobs: Iterable[str]) -> Jobs:
    """The jobs that patterns (`*asan*`) name. Raises Mistake for a pattern that names none."""
    found: Jobs = frozenset()
    for pattern in patterns:
        named = {*fnmatch.filter(jobs, pattern)}
        named |= {pattern}.intersection(jobs)
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
    there = signs[start:end]
    there = there.replace(b" ", b"*")
    return signs[:start] + there + signs[end:]


def complete(signs: Iterable[bytes], share: float) -> List[bool]:
    """For each commit, whether so many percent of the jobs that were there, or are named in it, said something.

    So runs of a reduced set are left aside: what they leave out has neither passed nor failed.
    """
    full = []
    for column in zip(*map(expected, signs)):
        there = len(column) - column.count(AWAY)
        ran = there - column.count(SILENT)
        needed = there * share / 100
        full.append(ran >= max(1, needed))
    return full


def bits_of(signs: bytes, sign: int) -> int:
    """A bit for each of these signs."""
    digits = bytearray(b"0" * 256)
    digits[sign] = ord("1")
    text = signs.translate(digits)
    return int(text[::-1], 2)


def heard(bits: int, silent: int) -> int:
    """For each commit of these the first, from it on, in which a job was not silent: a carry runs through silence."""
    carried = bits + silent
    return carried & ~silent


def job_of(signs: bytes, cost: float, counts_red: bool) -> Job:
    """What a job said, by its signs; with `counts_red` each failure is to be caught, old or new."""
    passed = bits_of(signs, PASSED)
    failed = bits_of(signs, FAILED)
    ran = passed | failed
    if counts_red:
        return Job(ran, passed, failed, 0, cost)
    every = bits_between(0, len(signs))
    silent = every & ~ran
    after = passed << 1 | 1
    anew = failed & heard(after, silent)
    long = failed
    for _ in range(RED_RUNS - 1):
        after = long << 1
        long = failed & heard(after, silent)
    start = long << 1
    end = heard(start, silent)
    red = (end - start) | end
    return Job(ran, passed, anew, red, cost)


def costs_of(reader: Reader, jobs: Iterable[str], full: List[bool]) -> Dict[str, float]:
    """Each job's median cost, the median of the others' where its own is unknown; empty if none costs anything."""
    medians = {}
    for job in jobs:
        parts = reader.costs[job].items()
        known = [cost for number, cost in parts if full[number]]
        if known:
            medians[job] = statistics.median(known)
    if not any(medians.values()):
        return {}
    usual = statistics.median(medians.values())
    costs = dict.fromkeys(jobs, usual)
    costs.update(medians)
    return costs


# ---------------------------------------------------------------------------------------------------
# Command line: what is read, and the table of it.
# ---------------------------------------------------------------------------------------------------


def parse_pattern(text: str) -> Pattern[str]:
    """A regular expression. Raises ArgumentTypeError."""
    try:
        return re.compile(text)
    except re.error as error:
        why = f"{text!r} is no regular expression: {error}"
        raise argparse.ArgumentTypeError(why) from None


def parse_count(text: str) -> int:
    """A whole number from 0. Raises ArgumentTypeError."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")


def parse_percent(text: str) -> float:
    """A number from 0 to 100. Raises ArgumentTypeError."""
    if re.fullmatch(r"\d{1,3}(\.\d*)? ?%?", text):
        share = float(text.rstrip("% "))
        if share <= 100:
            return share
    raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")


def add_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """What is said of sources, here and in ci_dedup.py; returns the group of these options."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=FORMS)
    group = parser.add_argument_group("what is read")
    add = group.add_argument
    text = "of job statuses: tests alone, where their builds passed"
    add("--tests", action="store_true", help=text)
    text = "of files; default: time"
    add("--order", choices=["time", "name"], default="time", help=text)
    text = "of JUnit files: what in a path is the commit; default: the folder right below the source"
    add("--commit", type=parse_pattern, metavar="REGEX", help=text)
    text = "of JUnit files: each test case is a job"
    add("--cases", action="store_true", help=text)
    text = "leave out jobs, by name or pattern ('*flaky*'), and their failures"
    add("--drop", action="append", default=[], metavar="JOB", help=text)
    return group


def table_of(reader: Reader) -> Iterator[Sequence[Any]]:
    """What was read, row by row."""
    yield CELLS[:4]
    for commit, number in reader.commits.items():
        for job, signs in reader.jobs.items():
            sign = bytes(signs[number : number + 1])
            costs = reader.costs[job]
            if sign in OKS:
                yield commit, job, OKS[sign], costs.get(number)


def file_of(path: str) -> Any:
    """What is the same for all names of a file, and for links to it."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    with contextlib.suppress(OSError):  # the folder that it starts from may be gone
        return os.path.realpath(path)
    return path


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


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


def write(path: str, text: str) -> None:
    """Write a file. Raises Mistake."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        with open(path, "wb") as file:
            file.write(data)
    except (OSError, UnicodeError) as error:
        why = f"cannot write {path} ({error}); name another place"
        raise Mistake(why, EXIT_MACHINE) from None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(PROGRAM, allow_abbrev=False, formatter_class=style)
    parser.description = __doc__
    add_options(parser)
    options = parser.parse_args(argv)
    reader = Reader(options)
    try:
        reader.read()
        if not reader.commits:
            raise Mistake(f"{', '.join(options.sources)}: no verdicts; name {FORMS}")
        table = csv_text(table_of(reader))
        show(table.rstrip("\n"))
    except Mistake as mistake:
        print(f"{PROGRAM}: error: {mistake}", file=sys.stderr)
        return mistake.exit_code
    for line in told("skipped, not whole", reader.skipped):
        print(f"{PROGRAM}: {line}", file=sys.stderr)
    return EXIT_OK


def leave(command: Callable[[], int]) -> None:
    """End with the exit code of a command; a Ctrl-C needs no traceback."""
    try:
        sys.exit(command())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    leave(main)
