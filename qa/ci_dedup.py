#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which CI jobs, or tests, tell nothing new: correlate their past verdicts, cluster them, choose a cheaper set.

    python3 qa/ci_dedup.py statuses/ --html map.html         # a folder of one JSON file per commit
    python3 qa/ci_dedup.py logs/run_tests.jsonl --write reduced.txt --keep '*sanity*'      # journals of run_tests.py
    python3 qa/ci_dedup.py history.csv --catch 100           # columns commit, job, ok, seconds, gpus

The set is chosen on the older part of the history: the cheapest (median seconds times GPUs) that would have caught
99 % of the commits in which a job failed. It is judged on the newer part, which it did not see: what it would have
caught, missed and saved. `run_tests.py tests.txt --only reduced.txt` then runs just those tests.

The idea and the numbers are those of "PyTorch CI deduplication" (Edward Z. Yang, 2019,
https://github.com/ezyang/pytorch-ci-deduplication): phi correlation of job statuses, complete-linkage clusters of the
correlation matrix's rows. What that study left to judgement, the choice and what it would have missed, is added here.

Exit codes: 0 done; 2 usage, or input that is not what it should be; 3 a file cannot be written; 5 nothing to choose by.

The file reads as data flows: constants, model, read, correlate and cluster, choose and judge, report, command line.
"""
from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import fnmatch
import functools
import heapq
import html
import io
import itertools
import json
import math
import os
import re
import statistics
import sys
from typing import (Any, Callable, Container, Counter, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple,
                    Optional, Sequence, Set, Tuple)

# ---------------------------------------------------------------------------------------------------
# Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

PROGRAM = "ci_dedup.py"
CUT = 0.1                    # of the largest distance, up to which jobs are one cluster: the study's
CATCH_PERCENT = 99.0         # of the failing commits that a set has to catch
HOLDOUT_PERCENT = 30.0       # of the commits, the newest, on which a choice is judged
DIGITS = 12                  # of a distance that count: what is equal stays so whatever a Python's rounding
SEARCH_STEPS = 30_000_000    # looks at a failing job in search of the cheapest set: three to six seconds
OFTEN = 0.2                  # of its commits in which a job fails that hides what others say
CAPS = 24                    # tried for a bound, each half of the one before
NEARLY = 1 - 1e-9            # what is cheaper by less is rounding
SHOWN = 10                   # names in one line
LARGEST = 1e9                # seconds or GPUs: more is a mistake

SUFFIXES = ("_build", "_test", "-build", "-test", "_multigpu", "_NO_AVX_NO_AVX2", "_NO_AVX2")    # taken off in turn
PASSED = frozenset(["1", "true", "yes", "ok", "success", "pass", "passed", "flaky"])
FAILED = frozenset(["0", "false", "no", "failure", "fail", "failed", "crashed", "timeout", "error"])
VERDICTS = PASSED | FAILED
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING = 0, 2, 3, 5

Matrix = List[List[float]]

# ---------------------------------------------------------------------------------------------------
# Model: what the sections hand to each other.
# ---------------------------------------------------------------------------------------------------


class UsageError(Exception):
    """A mistake in the command line or the input. Exit code 2."""


class MachineError(Exception):
    """A file cannot be written. Exit code 3."""


class Verdict(NamedTuple):
    """What one job said of one commit."""

    passed: bool
    cost: Optional[float]                # seconds times GPUs, where they are known


class Commit(NamedTuple):
    """A commit, or a run whose CI named none, and its jobs' verdicts. A job that is not there said nothing."""

    name: str
    verdicts: Mapping[str, Verdict]

    def failed(self) -> FrozenSet[str]:
        return frozenset(job for job, verdict in self.verdicts.items() if not verdict.passed)


class History(NamedTuple):
    """The commits, oldest first, what of them could not be read, and what else their reader should know, in lines."""

    commits: List[Commit]
    skipped: List[str]
    notes: Sequence[str] = ()

    def jobs(self) -> List[str]:
        return sorted({job for commit in self.commits for job in commit.verdicts})

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


Said = Dict[str, Optional[Verdict]]      # by job, what is known of one commit; None: it was there, and said nothing
TestEnd = Tuple[float, str, str, Optional[Verdict]]      # in a journal: time, run, label


class Source(NamedTuple):
    """What was read: names of commits and what is known of them, oldest first; the rest as in History."""

    commits: List[Tuple[str, Said]]
    skipped: List[str]
    notes: Sequence[str] = ()


class Clusters(NamedTuple):
    """Jobs by what they tell: groups in dendrogram order, then those whose verdict never changed, in one `constant`."""

    jobs: List[str]                      # of the matrix's rows and columns: those of `groups`, then of `constant`
    groups: List[List[str]]
    constant: List[str]
    matrix: Matrix                       # phi; nan where either job was constant over the commits of both


class Choice(NamedTuple):
    """A set of jobs, its cost, and a bound: no set that has the jobs to keep and catches enough costs less."""

    jobs: FrozenSet[str]
    cost: float
    bound: float


class Score(NamedTuple):
    """What a choice would have done on some commits. Costs are those of all commits together."""

    commits: int                         # those in which a job ran that was not chosen: in others nothing can be missed
    caught: List[Commit]
    missed: List[Commit]
    cost_of_all: float
    cost_of_chosen: float


# ---------------------------------------------------------------------------------------------------
# Read: folders of job statuses, journals, CSV files to a History.
# ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 16)    # names are few
def folded(job: str) -> str:
    """A job's name without the suffixes of its parts: builds, tests, variants."""
    for suffix in SUFFIXES:
        if job.endswith(suffix):
            job = job[:-len(suffix)]
    return job


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Make what the system says of a file a mistake of the input. Raises UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); name journals, CSV files or folders") from None


def cost_of(seconds: Any, gpus: Any) -> Optional[float]:
    """Seconds times GPUs, 1 where these are not known; None where the seconds are not. Raises ValueError."""
    if seconds in (None, ""):
        return None
    try:
        time, count = float(seconds), 1.0 if gpus in (None, "") else float(gpus)
    except (ValueError, TypeError, OverflowError):
        time = count = math.inf
    if 0 <= time <= LARGEST and 0 <= count <= LARGEST:
        return time * count
    raise ValueError(f"{seconds!r} seconds or {gpus!r} GPUs are no number from 0 to {LARGEST:g}")


UNTIMED: Mapping[bool, Verdict] = {passed: Verdict(passed, None) for passed in (False, True)}     # they are many


def verdict_of(passed: bool, seconds: Any, gpus: Any) -> Verdict:
    """A verdict, with what it has cost. Raises ValueError."""
    cost = cost_of(seconds, gpus)
    return UNTIMED[passed] if cost is None else Verdict(passed, cost)


def add_part(said: Said, job: str, part: Optional[Verdict]) -> None:
    """Take in what a part of a job said; it passed if all its parts did, and costs what they cost together."""
    before = said.get(job)
    if before and part:
        costs = [cost for cost in (before.cost, part.cost) if cost is not None]
        part = Verdict(before.passed and part.passed, sum(costs) if costs else None)
    said[job] = part or before


def read_statuses(path: str, tests_only: bool, silent: Container[str], seen: Counter[str]) -> Said:
    """One commit's JSON file: `{job: {"status": "success", …}}`, perhaps with `seconds` and `gpus`.

    The parts of a job are one, which passed if all of them did. With `tests_only` they stay apart: tests alone, of
    which those whose build failed said nothing. A status in `silent` is no verdict; all are counted in `seen`. Raises
    ValueError for a file that is half written, UsageError for one that cannot be read or is of another form.
    """
    with reading(path), open(path, encoding="utf-8") as file:
        statuses = json.load(file)
    if not isinstance(statuses, dict):
        raise UsageError(f'{path}: not a JSON object {{job: {{"status": "success"}}}}; name a folder of such files')
    said: Said = {}
    broken = set()
    for job, record in statuses.items():
        try:
            status = record["status"]
            part = verdict_of(status == "success", record.get("seconds"), record.get("gpus"))
            seen[status] += 1
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UsageError(f'{path}: job {job!r}: not {{"status": "success", …}} with numbers for seconds and gpus, '
                             "if it has them; mend or remove the file") from None
        if not part.passed and job.endswith(("_build", "-build")):
            broken.add(folded(job))
        if not tests_only or job.endswith(("_test", "-test")):
            add_part(said, job if tests_only else folded(job), None if status in silent else part)
    return {job: None if tests_only and folded(job) in broken else verdict for job, verdict in said.items()}


def read_folders(folders: Iterable[str], tests_only: bool, silent: Sequence[str], by_name: bool) -> Source:
    """All JSON files in folders and below, by time of last change or by name. Raises UsageError."""
    found: List[Tuple[int, List[str], str, str, Said]] = []
    skipped = []
    seen: Counter[str] = collections.Counter()
    for place, below, names in itertools.chain.from_iterable(map(os.walk, folders)):
        below[:] = [name for name in below if not name.startswith(".")]
        for stem, extension in map(os.path.splitext, names):
            path = os.path.join(place, stem + extension)
            if extension not in ("", ".json") or stem.startswith("."):
                continue
            numbered = [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", stem)]
            try:
                said = read_statuses(path, tests_only, silent, seen)
                found.append((0 if by_name else os.stat(path).st_mtime_ns, numbered, path, stem, said))
            except (ValueError, RecursionError):
                skipped.append(path)
    found.sort(key=lambda entry: entry[:3])
    for status in silent:
        if status not in seen:
            raise UsageError(f"--no-verdict {status}: no job has such a status; there are {first_of(sorted(seen))}")
    failing = [f"{status} {number:,}" for status, number in seen.most_common() if status not in ("success", *silent)]
    notes = []
    if len(failing) > 1:
        notes.append(f"statuses that count as failed: {', '.join(failing)}; --no-verdict makes some say nothing")
    if not by_name and 2 * len({time for time, *_ in found}) <= len(found):
        notes.append("order: most files are as old as others, as in a copy, and stand by name; --order name is for all")
    return Source([(stem, said) for *_, stem, said in found], sorted(skipped), notes)


def read_end(record: Mapping[str, Any], gpus: int) -> TestEnd:
    """A test's end in a run on so many GPUs. Raises TypeError, KeyError or ValueError for what is none."""
    time, run, label, outcome = (record[key] for key in ("time", "run", "label", "outcome"))
    if not (isinstance(label, str) and isinstance(run, str) and isinstance(time, (int, float))):
        raise TypeError("no event of run_tests.py")
    need = gpus if record.get("need") == "all" else record.get("need")
    verdict = verdict_of(outcome in PASSED, record["seconds"], need)
    return time, run, label, verdict if outcome in VERDICTS else None


def read_journals(paths: Iterable[str]) -> Source:
    """The commits that runs of run_tests.py have tested; a run whose CI named no commit is one by itself.

    A test's last verdict for a commit counts, so that a flaky test that passed at last has passed. Tests that did not
    run (deferred, blocked, unrunnable, not run) said nothing. Raises UsageError.
    """
    commit_of: Dict[str, str] = {}       # by run
    gpus_of: Dict[str, int] = {}
    ends: List[TestEnd] = []
    torn: Counter[str] = collections.Counter()
    for path in paths:
        with reading(path), open(path, "rb") as file:
            for line in filter(bytes.strip, file):
                try:
                    record = json.loads(line[line.rfind(b'{"event"'):])      # a torn line may stand before ours
                    if record["event"] == "run_start":
                        commit_of[record["run"]] = str(record.get("commit") or record["run"])
                        gpus_of[record["run"]] = len(record["gpus"])
                    elif record["event"] == "test_end":
                        ends.append(read_end(record, gpus_of.get(record["run"], 1)))
                except (ValueError, TypeError, KeyError, RecursionError):
                    torn[path] += 1
    commits: Dict[str, Said] = {}
    for _, run, label, verdict in sorted(ends, key=lambda end: end[0]):
        said = commits.setdefault(commit_of.get(run, run), {})
        said[label] = verdict or said.get(label)
    return Source(list(commits.items()), [f"{path} ({counted(lines, 'line')})" for path, lines in torn.items()])


def read_table(path: str, commits: Dict[str, Said]) -> str:
    """Take in a CSV file with a header, oldest commit first; returns what of its last row is torn, if that is.

    Rows of one commit and job are its parts. Raises UsageError for a mistake.
    """
    mistake = ""
    with reading(path), open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        try:
            header = next(rows, [])
            lacking = [name for name in ("commit", "job", "ok") if name not in header]
            if lacking:
                raise UsageError(f"{path}:1: no column {', '.join(lacking)} in {','.join(header)[:SHOWN ** 2]!r}; the "
                                 "first line names commit, job, ok and, if known, seconds and gpus, with commas")
            for row in filter(None, rows):
                if mistake:
                    raise UsageError(mistake)
                named = dict(zip(header, row))
                try:
                    if not (named.get("commit") and named.get("job") and "ok" in named):
                        raise ValueError("commit, job or ok is missing")
                    verdict = row_verdict(named["ok"], named.get("seconds"), named.get("gpus"))
                    add_part(commits.setdefault(named["commit"], {}), named["job"], verdict)
                except ValueError as error:
                    mistake = f"{path}:{rows.line_num}: {error}; mend the row"
        except csv.Error as error:
            raise UsageError(f"{path}: not a CSV file ({error}); name journals, CSV files or folders") from None
    return mistake


@functools.lru_cache(maxsize=1 << 16)    # rows are many, and often alike
def row_verdict(ok: str, seconds: Optional[str], gpus: Optional[str]) -> Optional[Verdict]:
    """What a row says; None where `ok` is empty. Raises ValueError."""
    word = ok.strip().casefold()
    if word and word not in VERDICTS:
        raise ValueError(f"ok is {ok!r} and not 1, 0 (or the like: success, failed, timeout), or empty")
    return verdict_of(word in PASSED, seconds, gpus) if word else None


def read_tables(paths: Iterable[str]) -> Source:
    """The commits of CSV files, in the order in which they appear. Raises UsageError."""
    commits: Dict[str, Said] = {}
    skipped = [read_table(path, commits) for path in paths]
    return Source(list(commits.items()), [what for what in skipped if what])


def read_sources(options: argparse.Namespace) -> Source:
    """All that the sources say. Raises UsageError."""
    sources = [*{os.path.realpath(path): path for path in options.sources}.values()]      # each once
    kind, *others = {kind_of(path) for path in sources}
    if others:
        raise UsageError("sources are of different kinds; name folders, or journals, or CSV files")
    if kind == "folder":
        source = read_folders(sources, options.tests, options.no_verdict, options.order == "name")
    elif options.tests or options.no_verdict or options.order:
        raise UsageError("--tests, --no-verdict and --order are for folders of job statuses; leave them out")
    else:
        source = read_tables(sources) if kind == "table" else read_journals(sources)
    if not any(any(said.values()) for _, said in source.commits):
        holds = {"folder": "one JSON file per commit (of journals, name the files)",
                 "table": "a row per commit and job", "journal": "the events of run_tests.py, one a line"}
        raise UsageError(f"{', '.join(sources)}: no verdict of any job; a {kind} holds {holds[kind]}"
                         + (f"; skipped {first_of(source.skipped)}" if source.skipped else ""))
    return source


def kind_of(path: str) -> str:
    """What a source is: `folder`, `table` or `journal`. Raises UsageError."""
    with reading(path):
        os.stat(path)
    if os.path.isfile(path) and path.endswith(".json"):
        raise UsageError(f"{path}: one commit's statuses are no history; name the folder")
    return "folder" if os.path.isdir(path) else "table" if path.endswith(".csv") else "journal"


def read_history(options: argparse.Namespace) -> History:
    """The verdicts of the jobs that are still there. Raises UsageError."""
    source = read_sources(options)
    there = [(name, said) for name, said in source.commits if said]
    is_newest = (options.jobs or ("newest" if kind_of(options.sources[0]) == "folder" else "all")) == "newest"
    stay = {job for _, said in (there[-1:] if is_newest else there) for job in said}
    gone = sorted({job for _, said in there for job in said} - stay)
    stay -= matching("--drop", options.drop, sorted(stay))
    commits = [Commit(name, {job: verdict for job, verdict in said.items() if verdict and job in stay})
               for name, said in there]
    notes = [*source.notes, *([f"left out: {len(gone)} that the newest commit, {there[-1][0]}, lacks; --jobs all keeps "
                               f"them: {first_of(gone)}"] if gone else [])]
    history = History([commit for commit in commits if commit.verdicts], source.skipped, notes)
    if not history.commits:
        raise UsageError("; ".join(["no job is left that has said anything; drop fewer, or say --jobs all", *notes]))
    return history


def without_broken(history: History) -> History:
    """A history without the jobs that never passed: they would have caught whatever else failed. Raises UsageError."""
    passed = {job for commit in history.commits for job, verdict in commit.verdicts.items() if verdict.passed}
    broken = [job for job in history.jobs() if job not in passed]
    if not broken:
        return history
    if not passed:
        raise UsageError(f"no job ever passed: {first_of(broken)}; is this the whole history?")
    commits = [Commit(commit.name, {job: verdict for job, verdict in commit.verdicts.items() if job in passed})
               for commit in history.commits]
    notes = [*history.notes, f"left out, since they never passed: {len(broken)}: {first_of(broken)}"]
    return History([commit for commit in commits if commit.verdicts], history.skipped, notes)


def matching(option: str, patterns: Iterable[str], jobs: Sequence[str]) -> FrozenSet[str]:
    """The jobs that patterns (`*asan*`) name. Raises UsageError for a pattern that names none."""
    found: List[str] = []
    for pattern in patterns:
        named = [job for job in jobs if job == pattern or fnmatch.fnmatchcase(job, pattern)]
        if not named:
            raise UsageError(f"{option} {pattern}: no job has such a name; there are {first_of(jobs)}")
        found += named
    return frozenset(found)


# ---------------------------------------------------------------------------------------------------
# Correlate and cluster: from verdicts to the matrix, the tree and the groups. Pure.
# ---------------------------------------------------------------------------------------------------


def correlations(commits: Sequence[Commit], jobs: Sequence[str]) -> Matrix:
    """Phi of each pair of jobs, over the commits on which both gave a verdict; nan where either was constant there.

    It is Pearson's coefficient of 0 and 1, what pandas' `corr` gives. Commits are the bits of whole numbers, so that a
    pair costs a few machine words and the counts are exact.
    """
    count: Callable[[int], int] = getattr(int, "bit_count", None) or (lambda bits: bin(bits).count("1"))
    ran, passed = dict.fromkeys(jobs, 0), dict.fromkeys(jobs, 0)
    for number, commit in enumerate(commits):
        for job, verdict in commit.verdicts.items():
            ran[job] |= 1 << number
            passed[job] |= verdict.passed << number
    matrix = [[math.nan] * len(jobs) for _ in jobs]
    for row, one in enumerate(jobs):
        for column, other in enumerate(jobs[:row + 1]):
            total, both = count(ran[one] & ran[other]), count(passed[one] & passed[other])
            ones, others = count(passed[one] & ran[other]), count(passed[other] & ran[one])
            variances = ones * (total - ones) * others * (total - others)
            if variances:
                matrix[row][column] = matrix[column][row] = (total * both - ones * others) / math.sqrt(variances)
    return matrix


class Merge(NamedTuple):
    """Two nodes of a tree that become one; leaves are numbered from 0, merges from the number of leaves on."""

    left: int
    right: int
    height: float


def distances_of(rows: Matrix) -> Matrix:
    """Euclidean distances between rows."""
    points = [tuple(row) for row in rows]
    return [[round(math.dist(one, other), DIGITS) for other in points] for one in points]


def linkage(distances: Matrix) -> List[Merge]:
    """The tree of complete linkage: the distance of two clusters is that of their farthest members. Lowest merge first.

    By the chain of nearest neighbours (F. Murtagh, "A survey of recent advances in hierarchical clustering
    algorithms", 1983), in O(n²). Where distances are equal the chain's last but one, then the first in order is the
    nearest, as in D. Müllner's fastcluster and in SciPy, whose `linkage(…, "complete")` gives the same tree.
    """
    count = len(distances)
    apart = [[*row] for row in distances]
    for number in range(count):
        apart[number][number] = math.inf
    alive, node = [*range(count)], [*range(count)]       # node: the tree's number of the cluster of a leaf in `alive`
    chain: List[int] = []
    joined: List[Tuple[float, int, int]] = []
    while len(alive) > 1:
        chain = chain or alive[:1]
        here = apart[chain[-1]]
        nearest = min(alive, key=here.__getitem__)
        if len(chain) < 2 or here[nearest] < here[chain[-2]]:
            chain.append(nearest)
            continue
        gone, stays = sorted(chain[-2:])
        joined.append((apart[gone][stays], gone, stays))
        alive.remove(gone)
        del chain[-2:]
        for other in alive:
            if other != stays:
                apart[stays][other] = apart[other][stays] = max(apart[gone][other], apart[stays][other])
    tree: List[Merge] = []
    for height, gone, stays in sorted(joined, key=lambda join: join[0]):
        left, right = sorted((node[gone], node[stays]))
        node[stays] = count + len(tree)
        tree.append(Merge(left, right, height))
    return tree


def groups_at(tree: Sequence[Merge], cut: float) -> List[List[int]]:
    """The leaves of the clusters that merges of at most that height have made, in the order of the dendrogram."""
    below = {leaf: [[leaf]] for leaf in range(len(tree) + 1)}        # by node, the clusters in it
    for node, (left, right, height) in enumerate(tree, len(below)):
        groups = below.pop(left) + below.pop(right)
        below[node] = groups if height > cut else [[*itertools.chain.from_iterable(groups)]]
    return below.popitem()[1]


def cluster(history: History) -> Clusters:
    """Group the jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it is `constant`. A correlation of two other
    jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """
    jobs = history.jobs()
    matrix = correlations(history.commits, jobs)
    varied = [number for number in range(len(jobs)) if not math.isnan(matrix[number][number])]
    constant = [number for number in range(len(jobs)) if math.isnan(matrix[number][number])]
    distances = distances_of([[0.0 if math.isnan(matrix[one][other]) else matrix[one][other] for other in varied]
                              for one in varied])
    tree = linkage(distances)
    cut = CUT * max((max(row) for row in distances), default=0.0)
    groups = [[varied[leaf] for leaf in group] for group in groups_at(tree, cut)] if varied else []
    order = [number for group in groups for number in group] + constant
    return Clusters([jobs[number] for number in order], [[jobs[number] for number in group] for group in groups],
                    [jobs[number] for number in constant],
                    [[matrix[one][other] for other in order] for one in order])


# ---------------------------------------------------------------------------------------------------
# Choose and judge: the cheapest set of jobs that catches what has to be caught. Pure.
# ---------------------------------------------------------------------------------------------------


Failure = Tuple[FrozenSet[str], int]     # the jobs that fail together, and in how many commits


class Cover:
    """Partial weighted set cover: so many of the failing commits are to be caught, by jobs that cost.

    A node of the search is a set of jobs that are `chosen` and one of jobs that are `barred`.
    """

    def __init__(self, failures: Mapping[FrozenSet[str], int], costs: Mapping[str, float], need: int) -> None:
        self.costs = costs
        useful = self.undominated(failures)
        weights: Counter[FrozenSet[str]] = collections.Counter()
        for jobs, weight in failures.items():
            weights[jobs & useful] += weight
        self.failures = sorted(weights.items(), key=lambda failure: (len(failure[0]), sorted(failure[0])))
        self.may_miss = sum(failures.values()) - need
        self.size = sum(len(jobs) for jobs, _ in self.failures)

    def undominated(self, failures: Iterable[FrozenSet[str]]) -> FrozenSet[str]:
        """The jobs to choose from: without those of which another catches all that they do, and costs no more."""
        caught: Dict[str, Set[FrozenSet[str]]] = collections.defaultdict(set)    # by job
        for jobs in failures:
            for job in jobs:
                caught[job].add(jobs)
        useful: List[str] = []
        for job in sorted(caught, key=lambda job: (self.costs[job], -len(caught[job]), job)):
            if not any(caught[job] <= caught[better] for better in useful):
                useful.append(job)
        return frozenset(useful)

    def left(self, chosen: FrozenSet[str]) -> Tuple[List[Failure], int]:
        """The failures that no chosen job catches, and how many of their commits are to be caught still."""
        left = [failure for failure in self.failures if chosen.isdisjoint(failure[0])]
        return left, sum(weight for _, weight in left) - self.may_miss

    def best(self, left: Iterable[Failure], missing: int, barred: Container[str]) -> str:
        """The job that costs least per commit that it catches of those that are missing; there has to be one."""
        gains: Counter[str] = collections.Counter()
        for jobs, weight in left:
            for job in jobs:
                gains[job] += weight
        return min((job for job in gains if job not in barred),
                   key=lambda job: (self.costs[job] / min(gains[job], missing), self.costs[job], job))

    def greedy(self, chosen: FrozenSet[str], barred: Container[str]) -> FrozenSet[str]:
        """`chosen` and what the best job, again and again, adds to it, where enough can be caught.

        What later jobs have made superfluous is taken out again. Without barred jobs it costs at most 1 + 1/2 + … + 1/d
        times the cheapest, d being the most commits that one job catches (L. Wolsey, "An analysis of the greedy
        algorithm for the submodular set covering problem", 1982).
        """
        picked = chosen
        left, missing = self.left(picked)
        while missing > 0:
            picked |= {self.best(left, missing, barred)}
            left, missing = self.left(picked)
        for job in sorted(picked - chosen, key=lambda job: (-self.costs[job], job)):
            if self.left(picked - {job})[1] <= 0:
                picked -= {job}
        return picked

    def bound(self, chosen: FrozenSet[str], barred: FrozenSet[str], caps: Iterable[float]) -> Tuple[float, float]:
        """What a set with these jobs and without those costs at least, inf if none catches enough, and the best cap.

        Each commit that is left gets a price, such that no job catches commits of more worth than it costs (a solution
        of the linear program's dual, commits of few jobs first). So a set costs no less than the commits that it
        catches are worth, and these no less than the cheapest that could be. Prices are capped, since dear ones are
        those that a set may miss.
        """
        left, missing = self.left(chosen)
        left = [(jobs - barred, weight) for jobs, weight in left if not jobs <= barred]
        highest = (0.0 if sum(weight for _, weight in left) >= missing else math.inf, 0.0)
        for cap in caps:
            slack, prices = dict(self.costs), []
            for jobs, weight in left:
                price = min(cap, *(slack[job] / weight for job in jobs))
                prices.append((price, weight))
                for job in jobs:
                    slack[job] -= price * weight
            worth, rest = 0.0, missing
            for price, weight in sorted(prices):
                worth += price * max(0, min(weight, rest))
                rest -= weight
            highest = max(highest, (worth, cap))
        return highest[0] + self.cost(chosen), highest[1]

    def cost(self, jobs: Iterable[str]) -> float:
        return math.fsum(self.costs[job] for job in jobs)

    def cheapest(self) -> Tuple[FrozenSet[str], float]:
        """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

        Branch and bound, the lowest bound first, from the greedy set; a job is in or out. It ends after a number of
        steps, not of seconds: the same input has the same answer everywhere.
        """
        nothing: FrozenSet[str] = frozenset()
        found = self.greedy(nothing, nothing)
        lower, cap = self.bound(nothing, nothing, [max(self.costs.values()) / 2 ** power for power in range(CAPS)])
        steps = 0
        heap = [(lower, steps, nothing, nothing, cap)]
        while heap and heap[0][0] < self.cost(found) * NEARLY and steps < SEARCH_STEPS:
            _, _, chosen, barred, cap = heapq.heappop(heap)
            job = self.best(*self.left(chosen), barred)
            for node in ((chosen | {job}, barred), (chosen, barred | {job})):
                steps += self.size * (4 + len(found))
                lower, near = self.bound(*node, [cap * 2, cap, cap / 2])
                if lower < self.cost(found) * NEARLY:
                    found = min(found, self.greedy(*node), key=self.cost)
                    heapq.heappush(heap, (lower, steps, *node, near))
        return found, min(self.cost(found), heap[0][0] if heap else math.inf)


def choose(commits: Sequence[Commit], costs: Mapping[str, float], percent: float, kept: FrozenSet[str]
           ) -> Optional[Choice]:
    """The cheapest jobs that, with those that are `kept`, catch so many of the failing commits; None if none failed."""
    failures = collections.Counter(commit.failed() for commit in commits)
    del failures[frozenset()]
    if not failures:
        return None
    need = math.ceil(sum(failures.values()) * percent / 100 - 1e-9)
    for jobs in [jobs for jobs in failures if jobs & kept]:
        need -= failures.pop(jobs)
    cover = Cover(failures, costs, need)
    found, bound = cover.cheapest()
    fixed = cover.cost(kept)
    return Choice(found | kept, cover.cost(found) + fixed, bound + fixed)


def judge(commits: Sequence[Commit], costs: Mapping[str, float], jobs: FrozenSet[str]) -> Score:
    """What a set of jobs would have caught and cost on those of these commits in which others ran too."""
    commits = [commit for commit in commits if not jobs.issuperset(commit.verdicts)]
    failing = [commit for commit in commits if commit.failed()]
    ran = [job for commit in commits for job in commit.verdicts]
    return Score(len(commits), [commit for commit in failing if commit.failed() & jobs],
                 [commit for commit in failing if not commit.failed() & jobs],
                 math.fsum(costs[job] for job in ran), math.fsum(costs[job] for job in ran if job in jobs))


# ---------------------------------------------------------------------------------------------------
# Report: text, the picture, the matrix, the file of labels.
# ---------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TITLE</title>
<style>
body { font: 14px sans-serif; margin: 1em; }
#map { position: relative; display: inline-block; }
#tip { position: absolute; pointer-events: none; background: #222; color: #fff; padding: 4px 8px; white-space: pre; }
pre { font: 12px monospace; white-space: pre-wrap; }
</style>
</head>
<body>
<h1>TITLE</h1>
<p>How alike the verdicts of two jobs are: 1 (red) fail together, 0 (white) have nothing to do with each other,
-1 (blue) fail in turns, grey cannot be told. A box is a cluster; jobs in bold are in the recommended set.</p>
<div id="map"><canvas></canvas><div id="tip" hidden></div></div>
<noscript>The picture needs JavaScript; the same numbers are in what --csv writes.</noscript>
<pre>TEXT</pre>
<script>
"use strict";
const data = DATA;
const count = data.jobs.length, cell = Math.max(10, Math.min(20, Math.floor(1000 / count)));
const canvas = document.querySelector("canvas"), tip = document.getElementById("tip"), ink = canvas.getContext("2d");
const font = job => (data.chosen.includes(job) ? "bold " : "") + Math.min(12, cell) + "px sans-serif";
const title = number => number + ". " + data.jobs[number];
const short = text => text.length > 60 ? text.slice(0, 29) + "\u2026" + text.slice(-30) : text;
const margin = Math.ceil(Math.max(...data.jobs.map((job, number) => {
    ink.font = font(job);
    return ink.measureText(short(title(number))).width;
}))) + 8;
const size = margin + count * cell + 2, sharp = window.devicePixelRatio || 1;
canvas.width = canvas.height = size * sharp;
canvas.style.width = canvas.style.height = size + "px";
ink.scale(sharp, sharp);
function shade(value) {
    if (value === null) return "#bbb";
    const rest = Math.round(255 * (1 - Math.abs(value)));
    return value < 0 ? `rgb(${rest},${rest},255)` : `rgb(255,${rest},${rest})`;
}
data.values.forEach((row, y) => row.forEach((value, x) => {
    ink.fillStyle = shade(value);
    ink.fillRect(margin + x * cell, margin + y * cell, cell, cell);
}));
ink.fillStyle = "#000";
ink.textBaseline = "middle";
data.jobs.forEach((job, number) => {
    ink.font = font(job);
    ink.textAlign = "right";
    ink.fillText(short(title(number)), margin - 4, margin + (number + 0.5) * cell);
    ink.save();
    ink.translate(margin + (number + 0.5) * cell, margin - 4);
    ink.rotate(-Math.PI / 2);
    ink.textAlign = "left";
    ink.fillText(short(title(number)), 0, 0);
    ink.restore();
});
ink.lineWidth = 2;
for (const [first, length] of data.clusters)
    ink.strokeRect(margin + first * cell, margin + first * cell, length * cell, length * cell);
canvas.addEventListener("mousemove", event => {
    const x = Math.floor((event.offsetX - margin) / cell), y = Math.floor((event.offsetY - margin) / cell);
    tip.hidden = !(0 <= x && x < count && 0 <= y && y < count);
    if (tip.hidden) return;
    const value = data.values[y][x];
    tip.textContent = title(y) + "\\n" + title(x) + "\\n" + (value === null ? "cannot be told" : value.toFixed(3));
    tip.style.left = Math.min(event.offsetX + 16, Math.max(0, size - tip.offsetWidth)) + "px";
    tip.style.top = event.offsetY + 16 + "px";
});
canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
</script>
</body>
</html>
"""


class Report(NamedTuple):
    """All that was found, for all that is written."""

    history: History
    clusters: Clusters
    costs: Dict[str, float]
    is_timed: bool                       # whether costs are seconds; else each job's is 1
    older: List[Commit]                  # those on which was chosen
    newer: List[Commit]
    kept: FrozenSet[str]
    new: FrozenSet[str]                  # jobs that the older commits do not know: nothing can be said against them
    choice: Optional[Choice]
    score: Optional[Score]
    percent: float


def first_of(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    return " ".join(names[:SHOWN]) + (f" \u2026 with {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def unit_for(report: Report, cost: float) -> Tuple[float, str]:
    """In what a cost of that size is told, as seconds and name: time on one GPU, or jobs where no seconds are known."""
    if not report.is_timed:
        return 1.0, "jobs"
    return (1.0, "s") if cost < 120 else (60.0, "min") if cost < 7200 else (3600.0, "h")


def show_cost(report: Report, cost: float) -> str:
    """A cost with its unit."""
    seconds, name = unit_for(report, cost)
    return f"{cost / seconds:,.{1 if cost >= 1 else 3}f} {name}" if report.is_timed else counted(round(cost), "job")


def text_lines(report: Report) -> Iterator[str]:
    """The report for a terminal."""
    history, clusters = report.history, report.clusters
    commits, failed = history.commits, [commit.failed() for commit in history.commits]
    yield (f"{counted(len(clusters.jobs), 'job')}, {counted(len(commits), 'commit')} from {commits[0].name} to "
           f"{commits[-1].name}, {counted(sum(map(bool, failed)), 'failing commit')}")
    if history.skipped:
        yield f"skipped, not whole: {len(history.skipped)}: {first_of(history.skipped)}"
    yield from history.notes
    failures = collections.Counter(itertools.chain.from_iterable(failed))
    runs = collections.Counter(job for commit in commits for job in commit.verdicts)
    often = [f"{job} ({share(failures[job], runs[job])})" for job in clusters.jobs
             if failures[job] > max(OFTEN * runs[job], SHOWN)]
    if often:
        yield f"fail often, and so have caught whatever else was broken (--drop leaves them out): {first_of(often)}"
    if clusters.constant:
        yield f"never failed: {len(clusters.constant)}: {first_of(clusters.constant)}"
    groups = [group for group in clusters.groups if len(group) > 1]
    chosen = report.choice.jobs if report.choice else frozenset()
    yield (f"{counted(len(clusters.groups), 'cluster')}, {len(groups)} of more than one job"
           f"{' (* recommended)' if chosen else ''}:")
    yield from ("  " + " | ".join("*" * (job in chosen) + job for job in group) for group in groups)
    yield ""
    if report.choice:
        yield from choice_lines(report, report.choice)
    else:
        yield "No commit failed on which to choose; nothing is recommended."
    if report.score:
        yield from score_lines(report, report.score)


def choice_lines(report: Report, choice: Choice) -> Iterator[str]:
    """What is recommended, and why."""
    jobs, costs = report.clusters.jobs, report.costs
    total = math.fsum(costs.values())
    proof = ("the cheapest set there is" if choice.bound >= choice.cost * NEARLY else
             f"no more than {show_cost(report, choice.cost - choice.bound)} above the cheapest set")
    proof += " with those to keep" if report.kept | report.new else ""
    failures = [commit.failed() for commit in report.older if commit.failed()]
    caught = sum(1 for failed in failures if failed & choice.jobs)
    yield (f"Recommended: {len(choice.jobs)} of {counted(len(jobs), 'job')}, {show_cost(report, choice.cost)} of "
           f"{show_cost(report, total)} a commit ({share(choice.cost, total)}); {proof} that catches "
           f"{report.percent:g} % of failing commits (it catches {caught} of {len(failures)})")
    seconds, unit = unit_for(report, max(costs.values()))
    yield f"{'cost/' + unit:>10} {'catches':>8} {'alone':>6}  job, on the older {counted(len(report.older), 'commit')}"
    for job in filter(choice.jobs.__contains__, jobs):
        catches = [failed & choice.jobs for failed in failures if job in failed]
        alone = sum(1 for caught_by in catches if len(caught_by) == 1)
        why = " (--keep)" if job in report.kept else " (new)" if job in report.new else ""
        yield f"{costs[job] / seconds:10,.2f} {len(catches):8} {alone:6}  {job}{why}"
    yield from left_out_lines(report, choice, failures)


def left_out_lines(report: Report, choice: Choice, failures: Sequence[FrozenSet[str]]) -> Iterator[str]:
    """What is not recommended: what is like it, or that nothing speaks for it."""
    left_out = [job for job in report.clusters.jobs if job not in choice.jobs]
    seconds, unit = unit_for(report, max(report.costs.values()))
    count = collections.Counter(job for failed in failures for job in failed)
    silent = [job for job in left_out if not count[job]]
    if silent:
        yield f"Left out, since they never failed in these commits: {len(silent)}: {first_of(silent)}"
    if len(silent) < len(left_out):
        yield "Left out:"
        yield f"{'cost/' + unit:>10} {'failures':>8} {'uncaught':>8} {'phi':>5}  job | the recommended one most like it"
    rows = dict(zip(report.clusters.jobs, report.clusters.matrix))
    for job in filter(count.__getitem__, left_out):
        unlike, like = min(((-phi, other) for phi, other in zip(rows[job], report.clusters.jobs)
                            if other in choice.jobs and phi > 0), default=(0.0, ""))
        missed = sum(1 for failed in failures if job in failed and not failed & choice.jobs)
        said = f"{-unlike:5.2f}  {job} | {like}" if like else f"{'':5}  {job}"
        yield f"{report.costs[job] / seconds:10,.2f} {count[job]:8} {missed:8} {said}"


def score_lines(report: Report, score: Score) -> Iterator[str]:
    """What the choice is worth on commits that it did not see."""
    yield ""
    failing = len(score.caught) + len(score.missed)
    saved = score.cost_of_all - score.cost_of_chosen
    newest = f"the newest {counted(len(report.newer), 'commit')}"
    if not score.commits:
        yield f"Not judged: in {newest} nothing ran but what is recommended."
        return
    others = score.commits < len(report.newer)
    where = f"{score.commits:,} of {newest} (nothing else ran in the others)" if others else newest
    yield (f"Judged on {where}: caught {len(score.caught)} of {failing} failing "
           f"({share(len(score.caught), failing)}), missed {len(score.missed)}; saved {show_cost(report, saved)} of "
           f"{show_cost(report, score.cost_of_all)} ({share(saved, score.cost_of_all)})")
    yield from (f"  missed {commit.name}: {' | '.join(sorted(commit.failed()))}" for commit in score.missed)


def picture(report: Report, lines: Iterable[str]) -> str:
    """The heat map, and the report's lines, as one HTML page that needs nothing else."""
    clusters = report.clusters
    ends = itertools.accumulate(map(len, clusters.groups))
    values = [[None if math.isnan(value) else round(value, 4) for value in row] for row in clusters.matrix]
    data = {"jobs": clusters.jobs, "values": values, "chosen": sorted(report.choice.jobs) if report.choice else [],
            "clusters": [(end - len(group), len(group)) for end, group in zip(ends, clusters.groups) if len(group) > 1]}
    parts = {"TITLE": f"{counted(len(clusters.jobs), 'job')} over {counted(len(report.history.commits), 'commit')}",
             "TEXT": html.escape("\n".join(lines)),
             "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")}
    return re.sub("TITLE|TEXT|DATA", lambda found: parts[found.group()], PAGE)


def matrix_text(clusters: Clusters) -> str:
    """The matrix as a CSV file: job, number of its cluster, phi with each job, empty where it is unknown."""
    number_of = {job: str(number) for number, group in enumerate(clusters.groups, 1) for job in group}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["job", "cluster", *clusters.jobs])
    for job, row in zip(clusters.jobs, clusters.matrix):
        rows.writerow([job, number_of.get(job, ""), *("" if math.isnan(value) else repr(value) for value in row)])
    return text.getvalue()


def labels_text(report: Report, choice: Choice, lines: Iterable[str]) -> str:
    """The file for `run_tests.py --only`: the labels, one a line, where they come from, and what is left out."""
    about = [f"# {line}" for line in lines if line.startswith(("Recommended:", "Judged"))]
    left_out = [f"# {job}" for job in sorted(report.clusters.jobs) if job not in choice.jobs]
    return "\n".join([f"# Chosen by {PROGRAM}, for run_tests.py --only.", *about,
                      *(["# Left out (what is named nowhere here is new):"] if left_out else []), *left_out,
                      "# Chosen:", *sorted(choice.jobs), ""])


# ---------------------------------------------------------------------------------------------------
# Command line.
# ---------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  ci_dedup.py statuses/ --html map.html --csv map.csv       a folder of job statuses, one JSON file per commit
  ci_dedup.py statuses/ --tests                             its test jobs alone, where their builds passed
  ci_dedup.py logs/*.jsonl --write reduced.txt              journals of run_tests.py
  ci_dedup.py history.csv --keep '*asan*' --catch 100       CSV: commit,job,ok,seconds,gpus, oldest commit first
  run_tests.py tests.txt --only reduced.txt --message="$(git log -1 --format=%B)"

exit codes:
  0 done   2 usage or bad input   3 a file cannot be written   5 no commit failed: nothing to choose by
"""


def parse_percent(text: str) -> float:
    """A number from 0 to 100. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        percent = float(text.rstrip("% "))
        if 0 <= percent <= 100:
            return percent
    raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, allow_abbrev=False, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Find the CI jobs, or tests, that tell nothing new, and choose a cheaper set.")
    parser.add_argument("sources", nargs="+", metavar="SOURCE",
                        help="folders of job statuses, journals of run_tests.py, or CSV files; several are one history")
    group = parser.add_argument_group("what is read")
    group.add_argument("--tests", action="store_true",
                       help="of job statuses: keep *_test jobs apart, without those whose build failed")
    group.add_argument("--no-verdict", type=lambda text: text.split(","), default=[], metavar="STATUS,...",
                       help="statuses that say nothing, such as canceled,pending; default: all but success failed")
    group.add_argument("--order", choices=["time", "name"],
                       help="whether files of job statuses are in order of their last change (default) or by name")
    group.add_argument("--jobs", choices=["newest", "all"],
                       help="jobs of the newest commit alone (default for folders), or all that ever were")
    group.add_argument("--drop", action="append", default=[], metavar="JOB",
                       help="leave out a job, or jobs by a pattern such as '*flaky*', and what failed in it alone")
    group = parser.add_argument_group("what is chosen")
    group.add_argument("--catch", type=parse_percent, default=CATCH_PERCENT, metavar="PERCENT",
                       help="of the failing commits that the set has to catch; default: %(default)g")
    group.add_argument("--keep", action="append", default=[], metavar="JOB",
                       help="a job, or jobs by a pattern such as '*asan*', that are in the set whatever they tell")
    group.add_argument("--holdout", type=parse_percent, default=HOLDOUT_PERCENT, metavar="PERCENT",
                       help="of the commits, the newest, that judge the set and do not choose it; default: %(default)g")
    group = parser.add_argument_group("what is written")
    group.add_argument("--html", metavar="FILE", help="a heat map of the correlations, in one file")
    group.add_argument("--csv", metavar="FILE", help="the same as numbers")
    group.add_argument("--write", metavar="FILE", help="the recommended labels, for run_tests.py --only")
    return parser


def analyse(options: argparse.Namespace) -> Report:
    """From the sources to all that is reported. Raises UsageError."""
    outputs = [path for path in (options.html, options.csv, options.write) if path]
    for number, path in enumerate(outputs):
        if os.path.realpath(path) in map(os.path.realpath, options.sources + outputs[:number]):
            raise UsageError(f"{path} is a source, or another output; name a file of its own")
    history = without_broken(read_history(options))
    split = len(history.commits) - math.floor(len(history.commits) * options.holdout / 100)
    older, newer = history.commits[:split], history.commits[split:]
    jobs = history.jobs()
    new = frozenset(jobs).difference(*(commit.verdicts for commit in older))
    known = History(older, []).costs()
    if new or not known:
        known = {**history.costs(), **known}
    costs = known or dict.fromkeys(jobs, 1.0)
    kept = matching("--keep", options.keep, jobs)
    choice = choose(older, costs, options.catch, kept | new)
    score = judge(newer, costs, choice.jobs) if choice and newer else None
    return Report(history, cluster(history), costs, bool(known), older, newer, kept, new, choice, score, options.catch)


def write(path: str, text: str) -> None:
    """Write a file. Raises MachineError."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise MachineError(f"cannot write {path} ({error.strerror}); name another place") from None
    except UnicodeError:
        raise MachineError(f"cannot write {path} (a name is no text); leave the job out by --drop") from None


def show(text: str) -> None:
    """Print what standard output can show, if there is one. Raises MachineError."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())       # or Python fails at its end again
        if not isinstance(error, BrokenPipeError):       # its reader has seen enough
            raise MachineError(f"cannot write to standard output ({error.strerror})") from None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    options = build_parser().parse_args(argv)
    try:
        report = analyse(options)
        lines = list(text_lines(report))
        if options.html:
            write(options.html, picture(report, lines))
        if options.csv:
            write(options.csv, matrix_text(report.clusters))
        if options.write and report.choice:
            write(options.write, labels_text(report, report.choice, lines))
        show("\n".join(lines))
    except (UsageError, MachineError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_MACHINE
    return EXIT_OK if report.choice else EXIT_NOTHING


if __name__ == "__main__":
    sys.exit(main())
