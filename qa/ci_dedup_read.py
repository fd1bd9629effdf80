# SPDX-License-Identifier: MIT
"""What CI has said: folders of job statuses, journals, CSV files, JUnit files and CI services' JSON become a History.

A part of ci_dedup.py, which does not work without it: copy the five files ci_dedup*.py together.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import datetime
import fnmatch
import functools
import itertools
import json
import math
import os
import re
import statistics
import xml.etree.ElementTree
from typing import (
    Any,
    Container,
    Counter,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

SHOWN = 10  # names in one line
LARGEST = 1e9  # seconds or GPUs: more is a mistake
COMPLETE = 0.9  # of the jobs that are there have to say something, or a commit is left aside

# Taken off a job's name in turn.
SUFFIXES = (
    "_build",
    "_test",
    "-build",
    "-test",
    "_multigpu",
    "_NO_AVX_NO_AVX2",
    "_NO_AVX2",
)
COLUMNS = ("commit", "job", "ok", "seconds", "gpus")  # of a table
PART = r" \(part \d+ of \d+\)$"  # the end of a label
PASSED = frozenset("1 1.0 true yes ok success successful pass passed flaky".split())
FAILED = frozenset(
    "0 0.0 false no failure fail failed crashed timeout timed_out error broken".split()
)
VERDICTS = PASSED | FAILED
SILENT = frozenset(
    "skipped skip cancelled canceled neutral pending blocked deferred interrupted unrunnable nan none null".split()
) | {"", "not run"}


class UsageError(Exception):
    """A mistake in the command line or the input. Exit code 2."""


class Verdict(NamedTuple):
    """What one job said of one commit."""

    passed: bool
    cost: Optional[float]  # seconds times GPUs, where they are known


class Commit(NamedTuple):
    """A commit, or a run whose CI named none, and its jobs' verdicts. A job that is not there said nothing."""

    name: str
    verdicts: Mapping[str, Verdict]
    silent: FrozenSet[str] = frozenset()  # jobs that were named, and said nothing

    def failed(self) -> FrozenSet[str]:
        return frozenset(job for job, verdict in self.verdicts.items() if not verdict.passed)


class History(NamedTuple):
    """The commits, oldest first, what of them could not be read, and what else their reader should know, in lines."""

    commits: List[Commit]
    skipped: List[str]
    notes: Sequence[str] = ()
    waits: Mapping[
        str, FrozenSet[str]
    ] = {}  # by job, the jobs that it waits for: they run with it
    recent: FrozenSet[str] = (
        frozenset()
    )  # what failed in the last runs, also in those that are left aside

    def jobs(self) -> List[str]:
        return sorted(set().union(*(commit.verdicts for commit in self.commits)))

    def costs(self) -> Dict[str, float]:
        """Each job's median cost, the median of the others' where a job's is unknown; empty if none costs anything."""
        known: Dict[str, List[float]] = {}
        for commit in self.commits:
            for job, verdict in commit.verdicts.items():
                if verdict.cost is not None:
                    known.setdefault(job, []).append(verdict.cost)
        medians = {job: statistics.median(costs) for job, costs in known.items()}
        if not any(medians.values()):
            return {}
        usual = statistics.median(medians.values())
        return {job: medians.get(job, usual) for job in self.jobs()}


# By job, what is known of one commit; None: it was there, and said nothing.
Said = Dict[str, Optional[Verdict]]


class Source(NamedTuple):
    """What was read: names of commits and what is known of them, oldest first; the rest as in History."""

    commits: List[Tuple[str, Said]]
    skipped: List[str]
    notes: Sequence[str] = ()
    waits: Mapping[str, FrozenSet[str]] = {}
    is_by_file: bool = (
        False  # a file of job statuses per commit: the newest says which jobs there are
    )


def first_of(names: Sequence[str], most: int = SHOWN) -> str:
    """The first of many names, and how many more there are."""
    mark = " "
    if any(" " in name for name in names[:most]):
        mark = " | "
    shown = mark.join(names[:most])
    if len(names) > most:
        shown += f" \u2026 with {len(names) - most} more"
    return shown


def counted(number: int, what: str) -> str:
    plural = "s" * (number != 1)
    return f"{number:,} {what}{plural}"


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Make what the system says of a file a mistake of the input. Raises UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); name journals, CSV files or folders"
        ) from None


# ---------------------------------------------------------------------------------------------------
# Verdicts: what a status, a time and a number of GPUs say.
# ---------------------------------------------------------------------------------------------------


def cost_of(seconds: Any, gpus: Any) -> Optional[float]:
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


# They are many, so each exists once.
UNTIMED: Mapping[bool, Verdict] = {True: Verdict(True, None), False: Verdict(False, None)}


def verdict_of(passed: bool, seconds: Any, gpus: Any) -> Verdict:
    """A verdict, with what it has cost. Raises ValueError."""
    cost = cost_of(seconds, gpus)
    if cost is None:
        return UNTIMED[passed]
    return Verdict(passed, cost)


def add_part(said: Said, job: str, part: Optional[Verdict]) -> None:
    """Take in what a part of a job said; it passed if all its parts did, and costs what they cost together."""
    before = said.get(job)
    if before is None or part is None:
        said[job] = part or before
        return
    cost = before.cost
    if part.cost is not None:
        cost = part.cost + (cost or 0.0)
    said[job] = Verdict(before.passed and part.passed, cost)


def add_later(said: Said, job: str, verdict: Optional[Verdict]) -> None:
    """Take in what a later run of a job said: it counts, unless it said nothing."""
    said[job] = verdict or said.get(job)


@functools.lru_cache(maxsize=1 << 16)  # rows are many, and often alike
def row_verdict(ok: str, seconds: Optional[str], gpus: Optional[str]) -> Optional[Verdict]:
    """What a row says; None where `ok` is empty, or a word such as `skipped`. Raises ValueError."""
    word = ok.strip().casefold()
    if word in SILENT:
        return None
    if word not in VERDICTS:
        raise ValueError(
            f"ok is {ok!r} and not 1, 0 (or the like: success, failed, timeout, skipped), or empty"
        )
    return verdict_of(word in PASSED, seconds, gpus)


# ---------------------------------------------------------------------------------------------------
# Folders: files of job statuses, of a CI service's JSON, of JUnit.
# ---------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a file says of one commit, and what puts it in order."""

    time: int  # in ns; 0 where names give the order
    name: Sequence[str]  # of the file, its numbers of one width
    path: str
    commit: str
    said: Said


class Reading(NamedTuple):
    """How folders are read, and what was found there."""

    options: argparse.Namespace
    found: List[Found]
    runs: List[Found]  # of which several may be of one commit: the later one counts
    parts: List[Found]  # of which several may be of one commit: all count
    skipped: List[str]
    seen: Counter[str]  # the statuses

    def stamp(self, path: str, time: Optional[float] = None) -> int:
        """What orders a file, in ns: the time that it tells (in s), or that of its last change, or nothing."""
        if self.options.order == "name":
            return 0
        if time is not None:
            return int(time * 1e9)
        return os.stat(path).st_mtime_ns


def natural(stem: str) -> List[str]:
    """A name in parts that sort as a reader would, `c9` before `c10`."""
    parts = re.split(r"(\d+)", stem)
    return [part.zfill(20) if part.isdigit() else part for part in parts]


@functools.lru_cache(maxsize=1 << 16)  # names are few
def folded(job: str) -> str:
    """A job's name without the suffixes of its parts: builds, tests, variants."""
    for suffix in SUFFIXES:
        if job.endswith(suffix):
            job = job[: -len(suffix)]
    return job


def read_statuses(
    path: str,
    statuses: Mapping[str, Any],
    tests_only: bool,
    silent: Container[str],
    seen: Counter[str],
) -> Said:
    """One commit's JSON file: `{job: {"status": "success", …}}`, perhaps with `seconds` and `gpus`.

    The parts of a job are one, which passed if all of them did. With `tests_only` they stay apart: tests alone, of
    which those whose build failed said nothing. A status in `silent` is no verdict; all are counted in `seen`. Raises
    UsageError for a file that is of another form.
    """
    said: Said = {}
    broken = set()
    for job, record in statuses.items():
        try:
            status = record["status"]
            part = verdict_of(status == "success", record.get("seconds"), record.get("gpus"))
            seen[status] += 1
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UsageError(
                f'{path}: job {job!r}: not {{"status": "success", …}} with numbers for seconds and gpus, '
                "if it has them; mend or remove the file"
            ) from None
        if not part.passed and job.endswith(("_build", "-build")):
            broken.add(folded(job))
        if tests_only and not job.endswith(("_test", "-test")):
            continue
        name = job if tests_only else folded(job)
        add_part(said, name, None if status in silent else part)
    if tests_only:
        said.update((job, None) for job in said if folded(job) in broken)
    return said


class JobRun(NamedTuple):
    """A job in the JSON of a CI service."""

    commit: str
    job: str
    word: str  # how it ended
    started: Optional[float]  # seconds since 1970
    seconds: Optional[float]


def moment(text: Optional[str]) -> Optional[float]:
    """Seconds since 1970 of `2026-03-16T07:00:00Z`, None where there is none. Raises ValueError."""
    if not text:
        return None
    text = re.sub(r"\.\d+", "", text)  # Python 3.8 reads fractions of three or six digits alone
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def took(start: Optional[float], end: Optional[float]) -> Optional[float]:
    """The seconds between two moments, None where either is unknown."""
    if start is None or end is None:
        return None
    return max(0.0, end - start)


def github_run(job: Mapping[str, Any]) -> JobRun:
    """A job of GitHub's `actions/runs/ID/jobs`. Raises KeyError, TypeError or ValueError."""
    name = job["name"]
    if job.get("workflow_name"):
        name = f"{job['workflow_name']} / {name}"
    start = moment(job.get("started_at"))
    seconds = took(start, moment(job.get("completed_at")))
    return JobRun(job["head_sha"], name, job.get("conclusion") or "", start, seconds)


def gitlab_run(job: Mapping[str, Any]) -> JobRun:
    """A job of GitLab's `pipelines/ID/jobs`. Raises KeyError, TypeError or ValueError."""
    start = moment(job.get("started_at") or job.get("created_at"))
    commit = (job.get("commit") or {}).get("id") or job["pipeline"]["sha"]
    return JobRun(commit, job["name"], job["status"], start, job.get("duration"))


def buildkite_runs(build: Mapping[str, Any]) -> Iterator[JobRun]:
    """The jobs of a Buildkite build. Raises KeyError, TypeError or ValueError."""
    for job in build["jobs"]:
        if job.get("type", "script") != "script" or not job.get("name"):
            continue  # a block or wait step
        start = moment(job.get("started_at"))
        seconds = took(start, moment(job.get("finished_at")))
        begun = start or moment(build.get("created_at"))
        yield JobRun(build["commit"], job["name"], job["state"], begun, seconds)


def service_runs(page: Any) -> Optional[List[JobRun]]:
    """The jobs in a page of JSON of GitHub, GitLab or Buildkite; None in one of another form.

    Raises KeyError, TypeError or ValueError.
    """
    if isinstance(page, list) and page:
        runs: List[JobRun] = []
        for part in page:
            found = service_runs(part)
            if found is None:
                return None
            runs += found
        return runs
    if not isinstance(page, dict):
        return None
    if isinstance(page.get("jobs"), list):
        if "commit" in page:
            return [*buildkite_runs(page)]
        return [*map(github_run, page["jobs"])]
    if isinstance(page.get("pipeline"), dict) and "id" in page:
        return [gitlab_run(page)]
    return None


def pages_of(text: str) -> Iterator[Any]:
    """The JSON values of a text, one behind the other, as `gh api --paginate` prints them. Raises ValueError."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        page, at = decoder.raw_decode(text, at)
        yield page
        at += len(text[at:]) - len(text[at:].lstrip())


def add_service_runs(into: Reading, path: str, runs: Iterable[JobRun]) -> None:
    """Take in what a file of a CI service says. Raises ValueError for a word or a time that is none."""
    for run in runs:
        verdict = None
        if run.word.casefold() in VERDICTS:
            verdict = verdict_of(run.word.casefold() in PASSED, run.seconds, None)
        into.runs.append(
            Found(
                into.stamp(path, run.started),
                natural(path),
                path,
                run.commit,
                {run.job: verdict},
            )
        )


def read_json(into: Reading, path: str) -> None:
    """Take in a JSON file. Raises UsageError for one that is of no known form, ValueError for half of one."""
    with open(path, encoding="utf-8") as file:
        pages = [*pages_of(file.read().lstrip())]
    if not pages:
        raise ValueError("empty")
    try:
        runs = service_runs(pages)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{path}: a job has no {error} as GitHub, GitLab or Buildkite write it; mend or remove the file"
        ) from None
    if runs is not None:
        add_service_runs(into, path, runs)
        return
    if len(pages) > 1:
        raise ValueError("more than one value")
    if not isinstance(pages[0], dict):
        raise UsageError(
            f'{path}: not a JSON object {{job: {{"status": "success"}}}}; name a folder of such files'
        )
    options = into.options
    said = read_statuses(path, pages[0], options.tests, options.no_verdict, into.seen)
    stem = os.path.splitext(os.path.basename(path))[0]
    into.found.append(Found(into.stamp(path), natural(stem), path, stem, said))


def case_verdicts(root: Any) -> Iterator[Tuple[str, Optional[Verdict]]]:
    """The test cases of a JUnit file: name, and verdict, None if it was skipped. Raises ValueError."""
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        tags = {child.tag for child in case}
        seconds = (case.get("time") or "").replace(",", "")
        verdict = None
        if tags & {"failure", "error"} or "skipped" not in tags:
            verdict = verdict_of(not tags & {"failure", "error"}, seconds, None)
        yield name, verdict


def read_junit(into: Reading, folder: str, path: str) -> None:
    """Take in a JUnit file. Raises ValueError for what is none, UsageError where no commit can be told.

    The commit is what `--commit` finds in the path; else the folder right below the source is, and the file is the
    job; a file right in the source is a commit by itself, and its test cases are the jobs.
    """
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except xml.etree.ElementTree.ParseError as error:
        raise ValueError(str(error)) from None
    below = os.path.relpath(os.path.splitext(path)[0], folder)
    commit, _, job = below.partition(os.sep)
    pattern = into.options.commit
    if pattern:
        match = pattern.search(path)
        if not match:
            raise UsageError(
                f"{path}: --commit {pattern.pattern} finds nothing in this path; mend it"
            )
        commit = match.group(match.lastindex or 0)
        job = os.path.basename(below)
    said: Said = {}
    for case, verdict in case_verdicts(root):
        add_part(said, case if into.options.cases or not job else job, verdict)
    into.parts.append(Found(into.stamp(path), natural(commit), path, commit, said))


def add_file(into: Reading, folder: str, path: str) -> None:
    """Take in a file of a folder, if it is one of ours. Raises UsageError."""
    stem, extension = os.path.splitext(os.path.basename(path))
    if extension not in ("", ".json", ".xml") or stem.startswith("."):
        return
    try:
        with reading(path):
            if extension == ".xml":
                read_junit(into, folder, path)
            else:
                read_json(into, path)
    except (ValueError, RecursionError):
        into.skipped.append(path)


def joined(found: Iterable[Found], add: Any) -> Iterator[Found]:
    """What files say of the same commit as one, which stands where its first one does."""
    commits: Dict[str, Found] = {}
    for one in sorted(found, key=lambda one: one[:3]):
        first = commits.setdefault(one.commit, one._replace(said={}))
        for job, verdict in one.said.items():
            add(first.said, job, verdict)
    return iter(commits.values())


def read_folders(sources: Iterable[str], options: argparse.Namespace) -> Source:
    """All files of folders and below, and JSON files, by time or by name. Raises UsageError."""
    into = Reading(options, [], [], [], [], collections.Counter())
    for source in sources:
        if not os.path.isdir(source):
            add_file(into, os.path.dirname(source), source)
        for place, below, names in os.walk(source):
            below[:] = sorted(name for name in below if not name.startswith("."))
            for name in names:
                add_file(into, source, os.path.join(place, name))
    found = [*into.found, *joined(into.runs, add_later), *joined(into.parts, add_part)]
    found.sort(key=lambda one: one[:3])
    commits = [(one.commit, one.said) for one in found]
    notes = folder_notes(into, options)
    return Source(commits, sorted(into.skipped), notes, is_by_file=bool(into.found))


def folder_notes(into: Reading, options: argparse.Namespace) -> List[str]:
    """What should be known of the statuses and of the order of files. Raises UsageError."""
    seen, silent = into.seen, options.no_verdict
    for status in silent:
        if status not in seen:
            raise UsageError(
                f"--no-verdict {status}: no job has such a status; there are {first_of(sorted(seen))}"
            )
    failing = [
        f"{status} {number:,}"
        for status, number in seen.most_common()
        if status not in ("success", *silent)
    ]
    notes = []
    if len(failing) > 1:
        notes.append(
            f"statuses that count as failed: {', '.join(failing)}; --no-verdict makes some say nothing"
        )
    times = {one.time for one in into.found}
    if options.order != "name" and into.found and 2 * len(times) <= len(into.found):
        notes.append(
            "order: most files are as old as others, as in a copy, and stand by name; --order name is for all"
        )
    return notes


# ---------------------------------------------------------------------------------------------------
# Journals of run_tests.py.
# ---------------------------------------------------------------------------------------------------


class TestEnd(NamedTuple):
    """A test's end in a journal."""

    time: float
    run: str
    label: str
    verdict: Optional[Verdict]


def read_end(record: Mapping[str, Any], gpus: int) -> TestEnd:
    """A test's end in a run on so many GPUs. Raises TypeError, KeyError or ValueError for what is none."""
    time, run, label = record["time"], record["run"], record["label"]
    is_text = isinstance(label, str) and isinstance(run, str)
    if not (is_text and isinstance(time, (int, float))):
        raise TypeError("no event of run_tests.py")
    need = record.get("need")
    if need == "all":
        need = gpus
    verdict = verdict_of(record["outcome"] in PASSED, record["seconds"], need)
    if record["outcome"] not in VERDICTS:
        return TestEnd(time, run, label, None)
    return TestEnd(time, run, label, verdict)


def is_part(record: Mapping[str, Any]) -> bool:
    """Whether an event is of a part of a test that was split: the whole has an end of its own."""
    return "origin" in record and re.search(PART, str(record.get("label"))) is not None


class Journals:
    """What journals say, as it is read line by line."""

    def __init__(self) -> None:
        self.commit_of: Dict[str, str] = {}  # by run
        self.gpus_of: Dict[str, int] = {}
        self.ends: List[TestEnd] = []
        self.waits: Dict[str, FrozenSet[str]] = {}
        self.torn: Counter[str] = collections.Counter()

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one event. Raises TypeError, KeyError or ValueError for what is none."""
        if record["event"] == "run_start":
            run = record["run"]
            self.commit_of[run] = str(record.get("commit") or run)
            self.gpus_of[run] = len(record["gpus"])
        elif record["event"] == "test_end" and not is_part(record):
            end = read_end(record, self.gpus_of.get(record["run"], 1))
            self.ends.append(end)
            self.waits[end.label] = frozenset(record.get("after", ()))

    def read(self, path: str) -> None:
        """Take in a journal; a line that is torn is counted. Raises UsageError."""
        with reading(path), open(path, "rb") as file:
            for line in filter(bytes.strip, file):
                start = max(0, line.rfind(b'{"event"'))  # a torn line may stand before ours
                try:
                    self.add(json.loads(line[start:]))
                except (ValueError, TypeError, KeyError, RecursionError):
                    self.torn[path] += 1

    def source(self) -> Source:
        """The commits, in the order of their first events."""
        commits: Dict[str, Said] = {}
        for end in sorted(self.ends, key=lambda end: end.time):
            commit = self.commit_of.get(end.run, end.run)
            add_later(commits.setdefault(commit, {}), end.label, end.verdict)
        skipped = [f"{path} ({counted(lines, 'line')})" for path, lines in self.torn.items()]
        waits = {label: others for label, others in self.waits.items() if others}
        return Source([*commits.items()], skipped, waits=waits)


def read_journals(paths: Iterable[str]) -> Source:
    """The commits that runs of run_tests.py have tested; a run whose CI named no commit is one by itself.

    A test's last verdict for a commit counts, so that a flaky test that passed at last has passed. Tests that did not
    run (deferred, blocked, unrunnable, not run) said nothing. Raises UsageError.
    """
    journals = Journals()
    for path in paths:
        journals.read(path)
    return journals.source()


# ---------------------------------------------------------------------------------------------------
# CSV files.
# ---------------------------------------------------------------------------------------------------


def places_in(path: str, header: Sequence[str]) -> List[int]:
    """Where the columns commit, job, ok, seconds and gpus are; -1 for one that is not there. Raises UsageError."""
    names = [name.strip() for name in header]
    lacking = [name for name in ("commit", "job", "ok") if name not in names]
    if lacking:
        shown = ",".join(header)[:100]
        raise UsageError(
            f"{path}:1: no column {', '.join(lacking)} in {shown!r}; the first line names commit, job, ok and, if "
            "known, seconds and gpus, with commas or semicolons"
        )
    return [names.index(name) if name in names else -1 for name in COLUMNS]


def cells_of(row: Sequence[str], places: Sequence[int]) -> List[str]:
    """A row's cells in the order of COLUMNS, empty where they are missing. Raises ValueError."""
    cells = [row[place] if 0 <= place < len(row) else "" for place in places]
    if not cells[0] or not cells[1] or places[2] >= len(row):
        raise ValueError("commit, job or ok is missing")
    return cells


def add_row(commits: Dict[str, Said], cells: Sequence[str]) -> None:
    """Take in one row. Raises ValueError."""
    commit, job, *what = cells
    verdict = row_verdict(*what)
    said = commits.get(commit)
    if said is None:
        said = commits[commit] = {}
    if job in said:
        add_part(said, job, verdict)
    else:
        said[job] = verdict


def read_rows(path: str, file: Any, commits: Dict[str, Said]) -> str:
    """Take in a table's rows; returns what of the last one is torn, if that is. Raises UsageError, csv.Error."""
    first = file.readline()
    mark = ";" if first.count(";") > first.count(",") else ","
    rows = csv.reader(itertools.chain([first], file), delimiter=mark)
    places = places_in(path, next(rows, []))
    is_plain = places == [*range(len(places))] and mark == ","  # rows are many
    mistake = ""
    for row in rows:
        if not row:
            continue
        if mistake:
            raise UsageError(mistake)
        try:
            if is_plain and len(row) == len(places) and row[0] and row[1]:
                add_row(commits, row)
                continue
            cells = cells_of(row, places)
            if mark == ";":
                cells[3] = cells[3].replace(",", ".")
            add_row(commits, cells)
        except ValueError as error:
            mistake = f"{path}:{rows.line_num}: {error}; mend the row"
    return mistake


def read_table(path: str, commits: Dict[str, Said]) -> str:
    """Take in a CSV file with a header, oldest commit first; returns what of its last row is torn, if that is.

    Rows of one commit and job are its parts. Raises UsageError for a mistake.
    """
    with reading(path), open(
        path, encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        try:
            return read_rows(path, file, commits)
        except csv.Error as error:
            raise UsageError(
                f"{path}: not a CSV file ({error}); name journals, CSV files or folders"
            ) from None


def read_tables(paths: Iterable[str]) -> Source:
    """The commits of CSV files, in the order in which they appear. Raises UsageError."""
    commits: Dict[str, Said] = {}
    skipped = [read_table(path, commits) for path in paths]
    return Source(list(commits.items()), [what for what in skipped if what])


# ---------------------------------------------------------------------------------------------------
# Sources to a History.
# ---------------------------------------------------------------------------------------------------

HOLDS = {
    "folder": "one JSON file per commit (of journals, name the files), JUnit files, or a CI service's JSON",
    "table": "a row per commit and job",
    "journal": "the events of run_tests.py, one a line",
}


def kind_of(path: str) -> str:
    """What a source is: `folder`, `table` or `journal`. Raises UsageError."""
    with reading(path):
        os.stat(path)
    if os.path.isdir(path) or path.endswith(".json"):
        return "folder"
    return "table" if path.endswith(".csv") else "journal"


def read_sources(options: argparse.Namespace) -> Source:
    """All that the sources say. Raises UsageError."""
    once = {os.path.realpath(path): path for path in options.sources}
    sources = [*once.values()]
    kind, *others = {kind_of(path) for path in sources}
    if others:
        raise UsageError(
            "sources are of different kinds; name folders, or journals, or CSV files"
        )
    if kind == "folder":
        source = read_folders(sources, options)
    elif options.tests or options.no_verdict or options.order:
        raise UsageError(
            "--tests, --no-verdict and --order are for folders of job statuses; leave them out"
        )
    else:
        source = read_tables(sources) if kind == "table" else read_journals(sources)
    if not any(any(said.values()) for _, said in source.commits):
        skipped = ""
        if source.skipped:
            skipped = f"; skipped {first_of(source.skipped)}"
        raise UsageError(
            f"{', '.join(sources)}: no verdict of any job; a {kind} holds {HOLDS[kind]}{skipped}"
        )
    return source


def read_history(options: argparse.Namespace) -> History:
    """The verdicts of the jobs that are to count. Raises UsageError."""
    source = read_sources(options)
    there = [(name, said) for name, said in source.commits if said]
    notes = [*source.notes]
    jobs = {job for _, said in there for job in said}
    stay = jobs
    if options.jobs == "newest" or (options.jobs is None and source.is_by_file):
        stay = set(there[-1][1])
    gone = sorted(jobs - stay)
    if gone:
        notes.append(
            f"left out: {len(gone)} that the newest commit, {there[-1][0]}, lacks; --jobs all keeps them: "
            f"{first_of(gone)}"
        )
    stay = stay - matching("--drop", options.drop, sorted(stay))
    commits = [commit_of(name, said, stay) for name, said in there]
    last = [commit.failed() for commit in commits[len(commits) - options.recent :]]
    history = History(
        [commit for commit in commits if commit.verdicts],
        source.skipped,
        notes,
        source.waits,
        frozenset().union(*last),
    )
    if not history.commits:
        raise UsageError(
            "; ".join(
                ["no job is left that has said anything; drop fewer, or say --jobs all", *notes]
            )
        )
    return history


def commit_of(name: str, said: Said, stay: Container[str]) -> Commit:
    """A commit of what is known of it, and of the jobs that stay."""
    verdicts = {job: verdict for job, verdict in said.items() if verdict and job in stay}
    if len(verdicts) == len(said):
        return Commit(name, verdicts)
    silent = [job for job, verdict in said.items() if not verdict and job in stay]
    return Commit(name, verdicts, frozenset(silent))


class Span:
    """When jobs spoke, as numbers of commits, and their longest silences: 1 of one that spoke of each commit."""

    def __init__(self) -> None:
        self.first: Dict[str, int] = {}
        self.last: Dict[str, int] = {}
        self.silence: Dict[str, int] = {}

    def add(self, number: int, jobs: Iterable[str]) -> None:
        """Take in the jobs that spoke of a commit."""
        last = self.last
        for job in jobs:
            before = last.get(job, -1)
            last[job] = number
            if before < 0:
                self.first[job] = number
            elif number - before > 1:
                self.silence[job] = max(number - before, self.silence.get(job, 1))

    def there(self, commits: int) -> List[int]:
        """How many jobs were there in each commit: from their first verdict until their longest silence has passed."""
        change = [0] * (commits + 1)
        for job, first in self.first.items():
            change[first] += 1
            change[min(self.last[job] + self.silence.get(job, 1), commits)] -= 1
        return [*itertools.accumulate(change)]


def nearly_complete(history: History, percent: float) -> History:
    """The commits in which that share of the jobs that were there said something. Raises UsageError if there are none.

    A job is there from its first verdict until its longest silence has passed since its last, or where it is named
    without a verdict. So runs of a reduced set are left aside: what they leave out has neither passed nor failed.
    """
    commits = history.commits
    spans = Span()
    for number, commit in enumerate(commits):
        spans.add(number, commit.verdicts)
    full = []
    for commit, there in zip(commits, spans.there(len(commits))):
        named = len(commit.verdicts) + len(commit.silent & spans.first.keys())
        if len(commit.verdicts) >= percent / 100 * max(there, named):
            full.append(commit)
    left = len(commits) - len(full)
    if not left:
        return history
    note = (
        f"left aside: {counted(left, 'commit')} of {len(commits):,}, in which less than {percent:g} % of the jobs ran; "
        "--complete 0 takes all"
    )
    if not full:
        raise UsageError(note)
    return history._replace(commits=full, notes=[*history.notes, note])


def without_broken(history: History) -> History:
    """A history without the jobs that never passed: they would have caught whatever else failed. Raises UsageError."""
    passed = {
        job
        for commit in history.commits
        for job, verdict in commit.verdicts.items()
        if verdict.passed
    }
    broken = [job for job in history.jobs() if job not in passed]
    if not broken:
        return history
    if not passed:
        raise UsageError(f"no job ever passed: {first_of(broken)}; is this the whole history?")
    commits = [
        Commit(
            commit.name,
            {job: verdict for job, verdict in commit.verdicts.items() if job in passed},
        )
        for commit in history.commits
    ]
    note = f"left out, since they never passed: {len(broken)}: {first_of(broken)}"
    return history._replace(
        commits=[commit for commit in commits if commit.verdicts], notes=[*history.notes, note]
    )


def matching(option: str, patterns: Iterable[str], jobs: Sequence[str]) -> FrozenSet[str]:
    """The jobs that patterns (`*asan*`) name. Raises UsageError for a pattern that names none."""
    found: List[str] = []
    for pattern in patterns:
        named = [job for job in jobs if job == pattern or fnmatch.fnmatchcase(job, pattern)]
        if not named:
            raise UsageError(
                f"{option} {pattern}: no job has such a name; there are {first_of(jobs)}"
            )
        found += named
    return frozenset(found)
