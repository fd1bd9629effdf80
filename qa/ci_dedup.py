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
matrix's rows. What that study left to judgement, the choice and what it would have missed, is added here.

Three files belong together: this one, ci_verdicts.py, by which it reads, and, for --html alone, the page ci_dedup.html.

exit codes:
  0 done   2 usage or bad input   3 a file cannot be written   5 no commit failed: nothing to choose by
"""

# The file reads as data flows: clusters, choice, walking forward, report, files, command line.

from __future__ import annotations

import argparse
import heapq
import html
import itertools
import json
import math
import operator
import os
import re
import sys
from collections import Counter, defaultdict
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

FOLDER = os.path.dirname(os.path.abspath(__file__))
if __name__ == "__main__":
    sys.path.insert(0, FOLDER)  # with `python -I` it is not there
try:
    from ci_verdicts import COMPLETE_PERCENT, EXIT_NOTHING, EXIT_OK, RED_RUNS
    from ci_verdicts import History, Jobs, Mistake, Reader, Verdicts, add_options
    from ci_verdicts import bits_between, counted, csv_text, file_of, leave, listed, matching, ones_in
    from ci_verdicts import parse_count, parse_percent, percent, places_of, show, told, union, write
except ModuleNotFoundError as error:
    why = f"{error.name}.py is not beside ci_dedup.py; copy it, too"
    print(f"ci_dedup.py: error: {why}", file=sys.stderr)
    sys.exit(2)

PROGRAM = "ci_dedup.py"
PAGE = os.path.join(FOLDER, "ci_dedup.html")

RED_AGAIN = 0.5  # of the time that a job was red, and cost nothing: what is counted on
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
LISTED = 40  # lines of a list that are shown

UNFIT = re.compile(r"^# |^\s|\s$|[\r\n]")  # to be a line of the file of labels
TO_FIX = f"To fix, red for {RED_RUNS} runs or more, and left out until they pass:"
LEFT_OUT = "Left out, but for those below (what is named nowhere here is new, and runs):"
Bits = Dict[str, int]  # by job, a bit for each commit


# ---------------------------------------------------------------------------------------------------
# Clusters: the matrix of correlations, the tree, the groups of jobs that tell the same. Pure.
# ---------------------------------------------------------------------------------------------------

Row = Sequence[float]
Matrix = List[List[float]]
Measure = Callable[[Any, Any], float]
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


def distance_of(one: Row, other: Row) -> float:
    """The Euclidean distance of two rows of the matrix."""
    distance = math.dist(one, other)
    return round(distance, DIGITS)


def matrix_of(values: Iterable[Any], measure: Measure) -> Matrix:
    """A measure that is the same both ways, of each pair of values; each pair of distinct ones is measured once."""
    number_of: Dict[Any, int] = {}
    numbers = []
    for value in values:
        number = number_of.setdefault(value, len(number_of))
        numbers.append(number)
    table = [[0.0] * len(number_of) for _ in number_of]
    distinct = number_of.items()
    pairs = itertools.combinations_with_replacement(distinct, 2)
    for (one, row), (other, column) in pairs:
        measured = measure(one, other)
        table[row][column] = measured
        table[column][row] = measured
    matrix = []
    for number in numbers:
        known = table[number]
        matrix.append([known[other] for other in numbers])
    return matrix


def linkage(distances: Matrix) -> List[Merge]:
    """The tree of complete linkage: the distance of two clusters is that of their farthest members. Lowest merge first.

    By the chain of nearest neighbours (F. Murtagh, "A survey of recent advances in hierarchical clustering
    algorithms", 1983), in O(n²). Where distances are equal the chain's last but one, then the first in order is the
    nearest, as in D. Müllner's fastcluster and in SciPy, whose `linkage(…, "complete")` gives the same tree.
    """
    apart = [[*row] for row in distances]
    for number, row in enumerate(apart):
        row[number] = math.inf
    count = len(apart)
    alive = [*range(count)]
    chain: List[int] = []
    joined: List[Merge] = []  # of clusters that are named by one of their leaves
    while len(alive) > 1:
        chain = chain or alive[:1]
        here = apart[chain[-1]]
        nearest = min(alive, key=here.__getitem__)
        if len(chain) < 2 or here[nearest] < here[chain[-2]]:
            chain.append(nearest)
            continue
        pair = chain.pop(), chain.pop()
        gone, stays = sorted(pair)
        height = apart[gone][stays]
        joined.append((gone, stays, height))
        alive.remove(gone)
        rows = apart[gone], apart[stays]
        farther = [*map(max, *rows)]
        apart[stays] = farther
        for other in alive:
            apart[other][stays] = farther[other]
    joined.sort(key=operator.itemgetter(2))
    node = [*range(count)]  # the tree's number of the cluster that a leaf names
    tree = []
    for number, (gone, stays, height) in enumerate(joined, count):
        below = node[gone], node[stays]
        left, right = sorted(below)
        node[stays] = number
        tree.append((left, right, height))
    return tree


def groups_at(tree: Sequence[Merge], cut: float) -> List[List[int]]:
    """The leaves of the clusters that merges of at most that height have made, in the order of the dendrogram."""
    count = len(tree) + 1
    # By node, the clusters in it.
    below = [[[leaf]] for leaf in range(count)]
    for left, right, height in tree:
        groups = below[left] + below[right]
        if height <= cut:
            one, other = groups
            groups = [one + other]
        below.append(groups)
    return below[-1]


class Clusters:
    """Jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it is in no group, and comes last. A
    correlation of two other jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """

    def __init__(self, verdicts: Mapping[str, Verdicts]) -> None:
        varied = []
        constant = []
        for job in sorted(verdicts):
            ran, passed = verdicts[job]
            if 0 < passed < ran:
                varied.append(job)
            else:
                constant.append(job)
        self.groups: List[List[str]] = []
        self.tree: List[Merge] = []  # leaves are numbered as in `jobs`
        self.number_of: Dict[str, int] = {}  # by job, its group's, from 1
        if varied:
            self.join(varied, verdicts)
        self.jobs = [*self.number_of, *constant]  # in dendrogram order

    def join(self, jobs: List[str], verdicts: Mapping[str, Verdicts]) -> None:
        """Make the groups of jobs that varied."""
        said = [verdicts[job] for job in jobs]
        rows = []
        for row in matrix_of(said, phi_of):
            # New numbers, one beside the other in memory: the distances are three times as fast.
            known = (0.0 if math.isnan(phi) else phi + 0.0 for phi in row)
            rows.append(tuple(known))
        distances = matrix_of(rows, distance_of)
        tree = linkage(distances)
        largest = max(map(max, distances))
        place_of: Dict[int, int] = {}  # of leaves in the dendrogram
        groups = groups_at(tree, CUT * largest)
        for number, leaves in enumerate(groups, 1):
            group = [jobs[leaf] for leaf in leaves]
            self.groups.append(group)
            for leaf in leaves:
                place_of[leaf] = len(place_of)
                self.number_of[jobs[leaf]] = number
        for one, other, height in tree:
            left = place_of.get(one, one)
            right = place_of.get(other, other)
            self.tree.append((left, right, height))


# ---------------------------------------------------------------------------------------------------
# Choice: the cheapest jobs that catch so many breakages. Pure.
# ---------------------------------------------------------------------------------------------------

# What an owner asks for, in percent: that share of the breakages, or what that share of the cost buys if that is more.
Policy = Tuple[float, float]


class Plan(NamedTuple):
    """What there is to choose from, and by, at one moment. A breakage is a pair of a commit and a cluster."""

    breakages: Bits  # in which commits jobs failed anew
    cluster_of: Mapping[str, Hashable]  # a job of none is one by itself
    costs: Dict[str, float]  # of a job that is there, with what it waits for
    total: float  # of all jobs that are there, a commit
    kept: Jobs

    def covered(self, jobs: Iterable[str]) -> Counter[Hashable]:
        """By cluster, the commits whose breakages there these jobs catch."""
        found: Counter[Hashable] = Counter()
        for job in jobs:
            cluster = self.cluster_of.get(job, job)
            found[cluster] |= self.breakages.get(job, 0)
        return found

    def caught(self, jobs: Iterable[str]) -> int:
        """How many breakages these jobs catch."""
        covered = self.covered(jobs)
        return sum(map(ones_in, covered.values()))

    def cost(self, jobs: Iterable[str]) -> float:
        costs = (self.costs.get(job, 0.0) for job in jobs)
        return math.fsum(costs)

    def share(self, jobs: Iterable[str]) -> str:
        """What jobs cost of all that is there."""
        return percent(self.cost(jobs), self.total)

    def needed(self, percent: float) -> int:
        """How many breakages are that share of all."""
        share = self.caught(self.breakages) * percent / 100
        return math.ceil(share - 1e-9)

    def events(self) -> Counter[Jobs]:
        """The breakages that the kept jobs do not catch: by the jobs that catch them, how many."""
        covered = self.covered(self.kept)
        found: Dict[Any, List[str]] = defaultdict(list)  # by cluster and commit
        for job, commits in self.breakages.items():
            cluster = self.cluster_of.get(job, job)
            left = commits & ~covered[cluster]
            for place in places_of(left):
                found[cluster, place].append(job)
        jobs_of = map(frozenset, found.values())
        return Counter(jobs_of)

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
        limit = self.total * budget / 100
        jobs = self.greedy(0, limit)
        if self.caught(jobs) < need:
            jobs = self.greedy(need, 0.0)
        return jobs


Costs = Mapping[str, float]
Failure = Tuple[Jobs, int]  # the jobs that catch it, and how often it came
Failures = List[Failure]
Choice = Tuple[Jobs, float]  # and what any that catches as much costs at least


def weight_of(failures: Failures) -> int:
    weights = (weight for _, weight in failures)
    return sum(weights)


def worth(left: Failures, missing: int, costs: Costs, cap: float) -> float:
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


def best_of(left: Failures, missing: int, costs: Costs) -> str:
    """The job that costs least per failure that it catches of those that are missing."""
    gains: Counter[str] = Counter()
    for jobs, weight in left:
        for job in jobs:
            gains[job] += weight
    ratios = []
    for job, gain in gains.items():
        ratio = costs[job] / min(gain, missing)
        ratios.append((ratio, job))
    _, best = min(ratios)
    return best


def cheapest(failures: Mapping[Jobs, int], costs: Costs, need: int) -> Choice:
    """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

    Branch and bound, depth first: the best job is in, or else it is out, so that greed finds the first set. It ends
    after a number of steps, not of seconds: the same input has the same answer everywhere.
    """
    kinds = sorted(failures, key=sorted)
    kinds.sort(key=len)
    left = [(jobs, failures[jobs]) for jobs in kinds]
    dearest = max(costs.values())
    caps = [dearest / 2**power for power in range(CAPS)]
    found: Jobs = frozenset()
    cost = math.inf
    steps = 0
    # A branch: what it costs at least, the jobs that are in, the failures left to those that may be, how many of
    # these have to be caught, and caps to try.
    branches = [(0.0, found, left, need, caps)]
    while branches and (cost == math.inf or steps < SEARCH_STEPS):
        _, chosen, left, missing, caps = branches.pop()
        spent = math.fsum(costs[job] for job in chosen)
        enough = cost * NEARLY
        if missing <= 0 and spent < enough:
            found, cost = chosen, spent
        total = weight_of(left)
        if not 0 < missing <= total:
            continue
        looks = sum(len(jobs) for jobs, _ in left)
        steps += len(caps) * looks
        bounds = [(worth(left, missing, costs, cap), cap) for cap in caps]
        least, cap = max(bounds)
        least += spent
        if least >= enough:
            continue
        caps = [cap * 2, cap, cap / 2]
        best = {best_of(left, missing, costs)}
        without = [(jobs - best, weight) for jobs, weight in left if jobs != best]
        others = [failure for failure in left if best.isdisjoint(failure[0])]
        branches.append((least, chosen, without, missing, caps))
        missing -= total - weight_of(others)
        branches.append((least, chosen | best, others, missing, caps))
    open_ones = [least for least, *_ in branches]
    return found, min([cost, *open_ones])


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
    failures = plan.events()
    found, bound = cheapest(failures, plan.costs, need)
    found |= plan.kept
    found = min(greedy, found, key=plan.cost)
    return found, bound + fixed


# ---------------------------------------------------------------------------------------------------
# Walking forward: what a choice by the past would have caught in what came next. Pure.
# ---------------------------------------------------------------------------------------------------


class Score:
    """What sets would have done on stretches of commits, each chosen before its own."""

    def __init__(self, judged: Iterable[Tuple[Plan, Jobs]]) -> None:
        """Of each stretch what came, as a plan, and the set."""
        self.failing = 0  # a bit for each commit, as in the next
        self.caught = 0
        self.breakages = 0  # that are caught
        cost = 0.0
        total = 0.0
        for came, jobs in judged:
            said = came.breakages
            self.failing |= union(said.values())
            self.caught |= union(said[job] for job in jobs)
            self.breakages += came.caught(jobs)
            cost += came.cost(jobs)
            total += came.total
        failing = ones_in(self.failing)
        self.price = cost / (total or 1.0)  # from 0 to 1, as the next
        self.share = ones_in(self.caught) / (failing or 1)

    def interval(self) -> Tuple[float, float]:
        """Where the share of the caught lies with a certainty of 95 %.

        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
        """
        if not self.failing:
            return 0.0, 1.0
        share = self.share
        squared = CERTAIN * CERTAIN / ones_in(self.failing)
        middle = share + squared / 2
        spread = share * (1 - share) + squared / 4
        half = math.sqrt(spread * squared)
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
    came: Plan  # their breakages and costs, by the clusters of what came before


def plan_at(
    history: History, number: int, clusters: Clusters, keep: Jobs, known: int
) -> Plan:
    """What there is to choose from when so many commits are there, by what those that are known say.

    More are known in hindsight. Jobs that are gone, or new, are not there to choose from.
    """
    past = bits_between(0, number)
    seen = bits_between(0, known)
    old = history.old(number)
    there = history.there(number)
    costs = {}
    breakages = {}
    for name in sorted(there):
        job = history.jobs[name]
        ran = job.ran & past
        red = ones_in(ran & job.red)
        counted_on = 1 - RED_AGAIN * red / max(1, ones_in(ran))
        together = history.closed([name])
        costs[name] = counted_on * history.cost(together)
        anew = job.anew & seen
        if anew and name in old:
            breakages[name] = anew
    groups = clusters.number_of
    if history.counts_red:  # all that failed in a commit is one breakage
        groups = dict.fromkeys(history.jobs, 0)
    total = history.cost(there)
    return Plan(breakages, groups, costs, total, keep & there)


def stretches_of(history: History, keep: Jobs, late: Clusters) -> Iterator[Stretch]:
    """The newest commits, in stretches; one before which nothing failed is not judged.

    Clusters are those of the past, too: computed anew for each stretch, or, where that takes long, once; `late` are
    those of the whole history, for what hindsight says.
    """
    count = len(history.commits)
    jobs = len(history.jobs)
    early = None
    for start, end in history.newest(JUDGED, STRETCHES):
        work = jobs * jobs * start
        if early is None or work <= CLUSTER_WORK:
            past = history.verdicts(start)
            early = Clusters(past)
        plan = plan_at(history, start, early, keep, known=start)
        wise = plan_at(history, start, late, keep, known=count)
        window = bits_between(start, end)
        came = came_in(history, window, plan)
        if plan.breakages:
            yield Stretch(end - start, plan, wise, came)


def came_in(history: History, window: int, plan: Plan) -> Plan:
    """The breakages and the costs of some commits, by the clusters of a plan. Who is red for long costs nothing."""
    breakages = {}
    costs = {}
    total = 0.0
    for name, job in history.jobs.items():
        ran = job.ran & window
        breakages[name] = job.anew & window
        green = ran & ~job.red
        costs[name] = job.cost * ones_in(green)
        total += job.cost * ones_in(ran)
    return plan._replace(breakages=breakages, costs=costs, total=total)


# ---------------------------------------------------------------------------------------------------
# Report: its summary, and what speaks for it, line by line.
# ---------------------------------------------------------------------------------------------------


class Report:
    """All that was found, for all that is written."""

    def __init__(self, history: History, options: argparse.Namespace) -> None:
        """Raises Mistake for a job to keep that is none."""
        count = len(history.commits)
        jobs = history.jobs
        every = frozenset(jobs)
        keep = matching("--keep", options.keep, jobs)
        asked: Policy = TARGETS[0], BUDGET_PERCENT
        if options.catch is not None:
            asked = options.catch, 0.0
        elif options.budget is not None:
            asked = 0.0, options.budget
        self.history = history
        self.verdicts = history.verdicts(count)
        self.clusters = Clusters(self.verdicts)
        plan = plan_at(history, count, self.clusters, keep, known=count)
        self.plan = plan
        stretches = stretches_of(history, keep, self.clusters)
        self.stretches = [*stretches]
        self.table = [self.line_of((target, 0.0)) for target in TARGETS]
        self.line = self.line_of(asked)  # of what is recommended
        # What catches enough, and what any such costs at least.
        self.choice, self.bound = final_choice(plan, asked)
        # What becomes of the jobs; no two sets share one, but that of those to fix and others.
        self.to_fix = {name for name in jobs if jobs[name].red >> count}
        self.gone = every - plan.costs.keys()
        self.chosen = history.closed(self.choice)
        self.chosen -= self.to_fix - keep
        if not plan.breakages:
            self.chosen = frozenset()
        self.new = every - history.old(count) - self.chosen
        lately = history.recent - self.to_fix - self.gone
        self.again = lately - self.chosen - self.new
        self.ours = self.chosen | self.new | self.again  # they run
        others = self.ours | self.to_fix | self.gone
        self.rest = every - others  # they tell nothing new

    def line_of(self, policy: Policy) -> Line:
        """What a policy chooses, with all that waits for."""
        catch, _ = policy
        ahead = []
        behind = []
        for _, plan, wise, came in self.stretches:
            ahead.append((came, self.bought(plan, policy)))
            behind.append((came, self.bought(wise, policy)))
        jobs = self.bought(self.plan, policy)
        return Line(catch, jobs, Score(ahead), Score(behind))

    def bought(self, plan: Plan, policy: Policy) -> Jobs:
        return self.history.closed(plan.bought(policy))

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
    anew = union(job.anew for job in history.jobs.values())
    failing = ones_in(anew)
    yield (
        f"{counted(len(history.jobs), 'job')}, {counted(len(commits), 'commit')} from {commits[0]} to {commits[-1]}, "
        f"{counted(failing, 'failing commit')}"
    )
    yield from history.notes
    if not report.plan.breakages:
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
    spent = plan.cost(report.choice)
    proof = "the cheapest set there is"
    if any(report.history.waits.values()):
        proof = "a cheap set"
    elif report.bound < spent * NEARLY:
        above = spent - report.bound
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
        f"{report.price(plan.total)} a commit ({plan.share(report.chosen)}); {proof} that catches {caught} of "
        f"{counted(total, 'breakage')} so far ({percent(caught, total)})"
    )


def headline(report: Report) -> Iterator[str]:
    """What would have happened, with what certainty, and why not more."""
    line = report.line
    ahead = line.ahead
    failing = ones_in(ahead.failing)
    low, high = map(percent, ahead.interval())
    commits = sum(each.commits for each in report.stretches)
    breakages = sum(each.came.needed(100) for each in report.stretches)
    yield (
        f"Walked forward through the newest {counted(commits, 'commit')}, choosing anew "
        f"{len(report.stretches)} times: caught {ones_in(ahead.caught)} of {counted(failing, 'failing commit')} "
        f"({percent(ahead.share)}; 95 % sure: {low} to {high}) and {ahead.breakages} of "
        f"{counted(breakages, 'breakage')}, at {percent(ahead.price)} of the cost; in hindsight "
        f"{ones_in(line.behind.caught)} of {failing} at {percent(line.behind.price)}"
    )
    if failing < FEW_EVENTS:
        yield (
            f"warning: with fewer than {FEW_EVENTS} failing commits to judge by a share says little; take a longer "
            "history, or trust the interval alone"
        )
    aim = AIM_PERCENT / 100
    if not failing or ahead.share >= aim:
        return
    budget = BUDGET_PERCENT / 100
    cheap = [other for other in report.table if other.ahead.price <= budget]
    best = max([line, *cheap], key=lambda other: other.ahead.share)
    if best is not line:
        yield (
            f"of the lines below at most {BUDGET_PERCENT:g} % of the cost, --catch {best.catch:g} caught "
            f"most: {percent(best.ahead.share)} at {percent(best.ahead.price)}"
        )
    if best.ahead.share >= aim:
        return
    behind = [other.behind for other in report.table]
    wise = [percent(score.price) for score in behind if score.share >= aim]
    least = [*wise, "more"][0]
    jobs = report.history.jobs.values()
    again = union(job.anew & (job.anew - 1) for job in jobs)  # not for the first time
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
    for catch, jobs, ahead, behind in report.table:
        now = report.plan.share(jobs)
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
    clusters = report.clusters
    jobs = report.history.jobs
    to_fix = sorted(report.to_fix)
    to_fix.sort(key=lambda name: -jobs[name].failures())
    alike = [group for group in clusters.groups if len(group) > 1]
    silent = report.rest - report.plan.breakages.keys()
    rest = report.rest - silent
    chosen = [job for job in clusters.jobs if job in report.chosen]
    others = [job for job in clusters.jobs if job in rest]
    ahead = report.line.ahead
    missed = places_of(ahead.failing & ~ahead.caught)
    yield from block(report, TO_FIX, to_fix, fix_line)
    title = f"{counted(len(clusters.groups), 'cluster')}, {len(alike)} of more than one job (* recommended):"
    yield from block(report, title, alike, group_line)
    yield from block(report, f"Chosen:\n{columns}", chosen, job_line)
    if silent:
        yield from ["", "Left out, since they never failed anew:"]
        yield listed(sorted(silent))
    yield from block(report, f"Left out:\n{columns}", others, job_line)
    yield from block(report, "Missed, walking forward:", missed, commit_line)


def block(
    report: Report, title: str, items: List[Any], line_of: Callable[[Report, Any], str]
) -> Iterator[str]:
    """A line for each of many, of which the first are shown; nothing where there are none."""
    if items:
        yield from ["", title]
    for item in items[:LISTED]:
        yield line_of(report, item)
    if len(items) > LISTED:
        yield f"  \u2026 with {len(items) - LISTED:,} more"


def fix_line(report: Report, name: str) -> str:
    """Since when a job is red, and how often it failed."""
    job = report.history.jobs[name]
    since = report.history.commits[job.red_since()]
    runs = counted(ones_in(job.ran), "run")
    return f"  {name}: since {since}, {job.failures()} of {runs}"


def group_line(report: Report, group: List[str]) -> str:
    """The jobs of a cluster, those recommended with a star."""
    names = ["*" * (job in report.chosen) + job for job in group]
    return f"  {' | '.join(names)}"


def job_line(report: Report, job: str) -> str:
    """What a job costs, how many breakages so far it catches, and how many that no other one of the chosen does."""
    plan = report.plan
    verdicts = report.verdicts
    others = report.chosen - {job}
    alone = plan.caught(others | {job})
    alone -= plan.caught(others)
    alike = [(0.0, "")]
    for other in others:
        phi = phi_of(verdicts[job], verdicts[other])
        if phi > 0:
            alike.append((phi, f" | {other}"))
    phi, like = max(alike)
    counts = f"{plan.share([job]):>8} {plan.caught([job]):8} {alone:6}"
    return f"{counts} {phi:5.2f}  {job}{like}"


def commit_line(report: Report, number: int) -> str:
    """The jobs that newly failed in a commit."""
    bit = 1 << number
    jobs = report.history.jobs.items()
    names = [name for name, job in jobs if job.anew & bit]
    return f"  {report.history.commits[number]}: {' | '.join(names)}"


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
    left_out = report.rest | (report.to_fix - report.ours)
    if all(map(UNFIT.search, left_out)):  # new tests run where a comment names one that is known
        left_out = report.ours
    for title, mark, jobs in (
        (LEFT_OUT, "# ", left_out),
        ("Chosen:", "", report.chosen),
        ("New:", "", report.new),
        ("Failed lately:", "", report.again),
    ):
        fit = [mark + job for job in sorted(jobs) if not UNFIT.search(job)]
        if fit:
            lines += [f"# {title}", *fit]
    return "\n".join([*lines, ""])


def matrix_rows(report: Report) -> Iterator[List[str]]:
    """The matrix as a table: job, number of its cluster, phi with each job, empty where it is unknown."""
    jobs = report.clusters.jobs
    number_of = report.clusters.number_of
    said = [report.verdicts[job] for job in jobs]
    matrix = matrix_of(said, phi_of)
    yield ["job", "cluster", *jobs]
    for job, phis in zip(jobs, matrix):
        cluster = str(number_of.get(job, ""))
        values = (repr(phi).replace("nan", "") for phi in phis)
        yield [job, cluster, *values]


def page_text(report: Report, summary: Iterable[str], details: Iterable[str]) -> str:
    """The page: the report's lines, and what its script draws. Raises OSError where its template is missing."""
    count = len(report.history.commits)
    digits = 8 * math.ceil(count / 32)  # 32 commits a word
    clusters = report.clusters
    ran = []
    passed = []
    for job in clusters.jobs:
        bits = report.verdicts[job]
        ran.append(f"{bits[0]:0{digits}x}")
        passed.append(f"{bits[1]:0{digits}x}")
    points = []
    for line in [*report.table, report.line]:
        is_choice = line is report.line
        score = line.ahead
        point = [is_choice, score.price, score.share, *score.interval()]
        if report.stretches:
            points.append(point)
    data = {
        "jobs": clusters.jobs,
        "ran": ran,
        "passed": passed,
        "groups": [*map(len, clusters.groups)],
        "merges": clusters.tree,
        "chosen": sorted(report.chosen),
        "points": points,
    }
    parts = {
        "TITLE": f"{counted(len(ran), 'job')} over {counted(count, 'commit')}",
        "SUMMARY": html.escape("\n".join(summary)),
        "DETAILS": html.escape("\n".join(details)),
        "DATA": json.dumps(data).replace("<", "\\u003c"),
    }
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    marks = "|".join(parts)
    return re.sub(marks, lambda found: parts[found.group()], page)


# ---------------------------------------------------------------------------------------------------
# Command line.
# ---------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(PROGRAM, allow_abbrev=False, formatter_class=style)
    parser.description = __doc__
    share: Dict[str, Any] = {"type": parse_percent, "metavar": "PERCENT"}
    group = add_options(parser)
    add = group.add_argument
    text = "of the jobs that have to have run in a commit, or it is left aside; default: %(default)g"
    add("--complete", **share, default=COMPLETE_PERCENT, help=text)

    group = parser.add_argument_group("what is chosen")
    either = group.add_mutually_exclusive_group()
    add = either.add_argument
    text = "of the cost of all jobs, what the set may cost; default: 20, or more if that catches less than half"
    add("--budget", **share, help=text)
    text = "of the breakages so far that the set has to catch, whatever it costs"
    add("--catch", **share, help=text)
    add = group.add_argument
    text = "what is to be caught: new failures (default), or all"
    add("--count", choices=["new", "red"], default="new", help=text)
    text = "jobs, by name or pattern ('*asan*'), that are in the set whatever they tell"
    add("--keep", action="append", default=[], metavar="JOB", help=text)
    text = "add what failed in the last N runs"
    add("--recent", type=parse_count, default=0, metavar="N", help=text)

    group = parser.add_argument_group("what is written")
    add = group.add_argument
    text = "the report with a map of the correlations, in one file"
    add("--html", metavar="FILE", help=text)
    add("--csv", metavar="FILE", help="the correlations as numbers")
    text = "the recommended labels, for run_tests.py --only"
    add("--write", metavar="FILE", help=text)
    return parser


def check_outputs(options: argparse.Namespace, read: Iterable[str]) -> None:
    """Make sure that nothing is written twice, or over a source, or a file that was read of it. Raises Mistake."""
    taken = {*map(file_of, options.sources), *map(file_of, read)}
    for path in filter(None, [options.html, options.csv, options.write]):
        file = file_of(path)
        if file in taken:
            why = "is a source, or another output; name a file of its own"
            raise Mistake(f"{path} {why}")
        taken.add(file)
    if options.html and not os.path.exists(PAGE):
        raise Mistake(f"{os.path.basename(PAGE)} is not beside {PROGRAM}; copy it, too")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        reader = Reader(options)
        reader.read()
        check_outputs(options, reader.files)
        report = Report(History(reader, options), options)
        summary = [*summary_lines(report)]
        details = [*detail_lines(report)]
        if options.html:
            page = page_text(report, summary, details)
            write(options.html, page)
        if options.csv:
            table = csv_text(matrix_rows(report))
            write(options.csv, table)
        if options.write and report.plan.breakages:
            labels = labels_text(report, summary)
            write(options.write, labels)
        show("\n".join(summary + details))
    except Mistake as mistake:
        print(f"{PROGRAM}: error: {mistake}", file=sys.stderr)
        return mistake.exit_code
    if not report.plan.breakages:
        return EXIT_NOTHING
    return EXIT_OK


if __name__ == "__main__":
    leave(main)
