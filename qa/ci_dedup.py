#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which CI jobs, or tests, to run for a change: correlate their past verdicts, cluster them, choose a cheaper set.

    python3 qa/ci_dedup.py statuses/ --html map.html         # a folder of one JSON file per commit
    python3 qa/ci_dedup.py logs/run_tests.jsonl --write reduced.txt --keep '*sanity*'      # journals of run_tests.py
    python3 qa/ci_dedup.py history.csv --budget 15           # columns commit, job, ok, seconds, gpus

What is to be caught are new failures: a job fails that had passed before. Those of one commit in one cluster are one
breakage. The set is the cheapest (median seconds times GPUs) that would have caught as many breakages as 20 % of the
cost can catch. What it is worth is measured by walking forward through the history: choose by what came before, score
on what comes next, choose anew. `run_tests.py tests.txt --only reduced.txt` then runs just those tests.

The idea and the numbers are those of "PyTorch CI deduplication" (Edward Z. Yang, 2019,
https://github.com/ezyang/pytorch-ci-deduplication): phi correlation of job statuses, complete-linkage clusters of the
correlation matrix's rows. What that study left to judgement, the choice and what it would have missed, is added here.

Five files belong together; who copies one copies all: ci_dedup.py (the command line and the report),
ci_dedup_read.py (what CI has said), ci_dedup_cluster.py (correlations and clusters), ci_dedup_choose.py (the choice,
and walking forward) and ci_dedup_page.py (HTML).

Exit codes: 0 done; 2 usage, or input that is not what it should be; 3 a file cannot be written; 5 nothing to choose by.

The files read as data flows: reading, clusters, the choice, then the report and the command line here.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import io
import math
import os
import re
import sys
from typing import (
    Counter,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Pattern,
    Sequence,
    Tuple,
)

try:
    import ci_dedup_page
    from ci_dedup_cluster import Clusters, bits_of, cluster
    from ci_dedup_choose import (
        NEARLY,
        NOTHING,
        RED_RUNS,
        Choice,
        Events,
        Extra,
        Jobs,
        Plan,
        Policy,
        Row,
        Step,
        Timeline,
        caught_by,
        extra_of,
        final_choice,
        needed,
        picked_for,
        picks_of,
        rows_of,
        stretches_of,
        there_at,
        timeline_of,
        total_of,
        unforeseen,
        walk,
        weight_of,
        plan_at,
    )
    from ci_dedup_read import (
        COMPLETE,
        History,
        UsageError,
        counted,
        first_of,
        matching,
        nearly_complete,
        read_history,
        without_broken,
    )
except ModuleNotFoundError as missing:
    print(
        f"ci_dedup.py: error: {missing.name}.py is not beside it; copy it, too", file=sys.stderr
    )
    sys.exit(2)

# ---------------------------------------------------------------------------------------------------
# Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

PROGRAM = "ci_dedup.py"
BUDGET_PERCENT = 20.0  # of the cost of all jobs
HOLDOUT_PERCENT = 70.0  # of the commits, the newest, through which a choice is judged
TARGETS = range(50, 101, 5)  # percent of the breakages, in the table
FEW_EVENTS = 30  # failing commits below which a share says little
AIM_PERCENT = 80.0  # of the failing commits, which a history should allow for its budget; else the report says why
LISTED = 40  # lines of one list in the report
EXIT_OK, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING = 0, 2, 3, 5


class MachineError(Exception):
    """A file cannot be written. Exit code 3."""


# ---------------------------------------------------------------------------------------------------
# Report: text, the page, the matrix, the file of labels.
# ---------------------------------------------------------------------------------------------------


class Report(NamedTuple):
    """All that was found, for all that is written."""

    history: History
    clusters: Clusters
    timeline: Timeline
    is_timed: bool  # whether costs are seconds; else each job's is 1
    plan: Plan
    kept: Jobs
    choice: Optional[Choice]
    policy: Policy  # by which the choice was made
    rows: List[Row]  # the table's; the policy's is `row`
    row: Optional[Row]
    steps: List[Step]
    extra: Tuple[Extra, Extra]
    recent: int

    def mend(self) -> Jobs:
        """The jobs that are red for long."""
        return self.timeline.red[-1]

    def new(self) -> Jobs:
        """The jobs of which too little is known."""
        return self.timeline.new[-1] - self.kept

    def gone(self) -> Jobs:
        """The jobs that no longer run."""
        return frozenset(self.timeline.costs) - there_at(
            self.timeline, len(self.timeline.commits)
        )

    def again(self) -> Jobs:
        """What failed in the last runs and is not red for long."""
        known = self.history.recent & self.timeline.costs.keys()
        return frozenset(known) - self.mend() - self.gone()

    def chosen(self) -> Jobs:
        """What is recommended for a change, but for new jobs and what failed lately."""
        if self.choice is None:
            return NOTHING
        return self.timeline.closed(self.choice.jobs) - (self.mend() - self.kept)


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def unit_for(report: Report, cost: float) -> Tuple[float, str]:
    """In what a cost of that size is told, as seconds and name: time on one GPU, or jobs where no seconds are known."""
    if not report.is_timed:
        return 1.0, "jobs"
    if cost < 120:
        return 1.0, "s"
    if cost < 7200:
        return 60.0, "min"
    return 3600.0, "h"


def show_cost(report: Report, cost: float) -> str:
    """A cost with its unit."""
    seconds, name = unit_for(report, cost)
    if not report.is_timed and cost == round(cost):
        return counted(round(cost), "job")
    digits = 1 if cost >= 1 else 3
    return f"{cost / seconds:,.{digits}f} {name}"


def listed(lines: Sequence[str], where: str = "") -> Iterator[str]:
    """The first lines of a list, and how many more there are."""
    yield from lines[:LISTED]
    if len(lines) > LISTED:
        yield f"  \u2026 with {len(lines) - LISTED:,} more{where}"


def summary_lines(report: Report) -> Iterator[str]:
    """What it comes to."""
    history = report.history
    commits = history.commits
    failing = sum(map(bool, report.timeline.failures))
    yield (
        f"{counted(len(report.clusters.jobs), 'job')}, {counted(len(commits), 'commit')} from {commits[0].name} to "
        f"{commits[-1].name}, {failing_commits(report, failing)}"
    )
    if history.skipped:
        yield f"skipped, not whole: {len(history.skipped)}: {first_of(history.skipped)}"
    yield from history.notes
    if report.choice is None:
        yield "No commit failed on which to choose; nothing is recommended."
    else:
        yield recommended_line(report, report.choice)
        yield from besides_lines(report)
    if report.row:
        yield from headline(report, report.row)
        yield from table_lines(report)


def detail_lines(report: Report) -> Iterator[str]:
    """What speaks for it."""
    yield from mend_lines(report)
    yield ""
    yield from cluster_lines(report)
    if report.choice:
        yield from choice_lines(report)
        yield from left_out_lines(report)
    if report.row and report.row.ahead.missed:
        yield "Missed, walking forward:"
        missed = [
            f"  {name}: {' | '.join(sorted(jobs))}" for name, jobs in report.row.ahead.missed
        ]
        yield from listed(missed)


def failing_commits(report: Report, number: int) -> str:
    """So many commits in which something was to be caught."""
    if report.timeline.by_cluster:
        return f"{counted(number, 'commit')} with new failures"
    return counted(number, "failing commit")


def recommended_line(report: Report, choice: Choice) -> str:
    """What is recommended, and how sure it is that nothing cheaper would do."""
    plan = report.plan
    jobs = report.chosen()
    cost = total_of(plan.costs, jobs)
    total = weight_of(plan.events)
    caught = caught_by(plan.events, choice.jobs)
    proof = "the cheapest set there is"
    if report.timeline.waits:
        proof = "a cheap set"
    elif choice.bound < choice.cost * NEARLY:
        proof = f"no more than {show_cost(report, choice.cost - choice.bound)} above the cheapest set"
    if report.kept:
        proof += " with those to keep"
    there = len(report.clusters.jobs) - len(report.gone())
    waiting = choice.jobs - jobs
    if waiting:
        proof = f"with {len(waiting)} that {'is' if len(waiting) == 1 else 'are'} red for long, {proof}"
    return (
        f"Recommended: {len(jobs)} of {counted(there, 'job')}, {show_cost(report, cost)} of "
        f"{show_cost(report, plan.total)} a commit ({share(cost, plan.total)}); {proof} that catches {caught} of "
        f"{counted(total, 'breakage')} so far ({share(caught, total)})"
    )


def besides_lines(report: Report) -> Iterator[str]:
    """What runs besides what is chosen, and what is neither."""
    total = report.plan.total
    if not report.chosen():
        yield "warning: nothing is chosen, and --only takes no empty file; ask for a larger --budget, or --keep a job"
    for jobs, why in (
        (report.new() - report.chosen(), "new, and run too until more is known of them"),
        (
            report.again() - report.chosen() - report.new(),
            "failed lately, and run too (--recent)",
        ),
    ):
        if jobs:
            cost = total_of(report.timeline.costs, jobs)
            yield f"{why}: {len(jobs)}, {share(cost, total)} of the cost: {first_of(sorted(jobs))}"
    gone = sorted(report.gone())
    if gone:
        yield f"no longer run, and not recommended: {len(gone)}: {first_of(gone)}"


def percent_of(number: float) -> str:
    return f"{100 * number:.1f} %"


def headline(report: Report, row: Row) -> Iterator[str]:
    """What would have happened, with what certainty, and why not more."""
    ahead = row.ahead
    low, high = ahead.interval()
    count = sum(step.stretch.end - step.stretch.start for step in report.steps)
    yield (
        f"Walked forward through the newest {counted(count, 'commit')}, choosing anew {len(report.steps)} times: "
        f"caught {ahead.caught} of {failing_commits(report, ahead.failing)} ({percent_of(ahead.share())}; 95 % sure: "
        f"{percent_of(low)} to {percent_of(high)}) and {ahead.events_caught} of {counted(ahead.events, 'breakage')}, "
        f"at {percent_of(ahead.price())} of the cost; in hindsight {row.behind.caught} of {ahead.failing} at "
        f"{percent_of(row.behind.price())}"
    )
    for extra, name in zip(report.extra, ("new jobs", "what failed lately")):
        if extra.cost:
            yield (
                f"{name}, which run too, would have cost {share(extra.cost, ahead.cost_of_all)} more, and caught "
                f"{extra.caught} more"
            )
    if ahead.failing < FEW_EVENTS:
        yield (
            f"warning: {failing_commits(report, ahead.failing)} to judge by: with fewer than {FEW_EVENTS} a "
            "share says little; take a longer history, or trust the interval alone"
        )
    yield from shortfall_lines(report, row)


def shortfall_lines(report: Report, row: Row) -> Iterator[str]:
    """Where what is recommended caught less than it should: which line of the table did better, or why none does."""
    ahead = row.ahead
    if 100 * ahead.share() >= AIM_PERCENT or not ahead.failing:
        return
    within = [other for other in report.rows if 100 * other.ahead.price() <= BUDGET_PERCENT]
    best = max([row, *within], key=lambda other: other.ahead.share())
    found = percent_of(best.ahead.share())
    if best is not row:
        yield (
            f"of the lines below at most {BUDGET_PERCENT:g} % of the cost, --catch {best.policy.percent:g} caught "
            f"most: {found} at {percent_of(best.ahead.price())}"
        )
    if 100 * best.ahead.share() >= AIM_PERCENT:
        return
    strange = unforeseen(report.timeline, report.steps)
    least = hindsight_price(report)
    yield (
        f"this history does not allow {AIM_PERCENT:g} % for {BUDGET_PERCENT:g} % of the cost; the best is {found}: "
        f"in {strange} of {ahead.failing} only jobs failed that had never failed before the choice, and the cheapest "
        f"set that was found in hindsight takes {percent_of(least)} of the cost"
    )


def hindsight_price(report: Report) -> float:
    """The share of the cost that a set takes which catches what a choice should of the judged commits."""
    events: Events = collections.Counter()
    for step in report.steps:
        events.update(report.timeline.failures[step.stretch.start : step.stretch.end])
    del events[NOTHING]
    costs = dict.fromkeys(report.timeline.costs, 0.0)
    total = 0.0
    for step in report.steps:
        total += step.stretch.costs(report.timeline)
        for job in step.stretch.ran:
            costs[job] += step.stretch.costs(report.timeline, [job])
    picks = picks_of(events, costs, NOTHING)
    jobs = picked_for(picks, needed(events, AIM_PERCENT), 0)
    return total_of(costs, jobs) / (total or 1.0)


def table_lines(report: Report) -> Iterator[str]:
    """What each share of the breakages costs, walking forward and in hindsight, so that an owner picks one."""
    yield ""
    yield "Cost against catch (--catch takes a line, --budget a cost):"
    yield (
        f"{'asked':>7} {'jobs':>5} {'cost now':>9} | {'walking forward: cost':>22} {'caught':>11} {'share':>8} "
        f"{'95 % sure':>16} | {'in hindsight: cost':>18} {'share':>8}"
    )
    for row in report.rows:
        low, high = row.ahead.interval()
        counts = f"{row.ahead.caught}/{row.ahead.failing}"
        yield (
            f"{row.policy.percent:5g} % {len(row.jobs):5} {percent_of(row.share):>9} | "
            f"{percent_of(row.ahead.price()):>22} {counts:>11} {percent_of(row.ahead.share()):>8} "
            f"{percent_of(low):>7}-{percent_of(high):>8} | {percent_of(row.behind.price()):>18} "
            f"{percent_of(row.behind.share()):>8}"
        )


def mend_lines(report: Report) -> Iterator[str]:
    """The jobs that are red for long: since when, and how often they failed."""
    jobs = sorted(report.mend())
    if not jobs:
        return
    since: Dict[str, str] = {}
    runs: Counter[str] = collections.Counter()
    failures: Counter[str] = collections.Counter()
    for commit in report.history.commits:
        for job in commit.verdicts.keys() & report.mend():
            runs[job] += 1
            if commit.verdicts[job].passed:
                since.pop(job, None)
            else:
                failures[job] += 1
                since.setdefault(job, commit.name)
    yield ""
    yield f"To mend: red for {RED_RUNS} runs or more, and left out until they pass: {len(jobs)}"
    jobs.sort(key=lambda job: (-failures[job], job))
    yield from listed(
        [
            f"  {job}: since {since[job]}, {failures[job]} of {counted(runs[job], 'run')}"
            for job in jobs
        ]
    )


def cluster_lines(report: Report) -> Iterator[str]:
    """What never failed, and the clusters."""
    clusters = report.clusters
    if clusters.constant:
        yield f"never failed: {len(clusters.constant)}: {first_of(clusters.constant)}"
    groups = [group for group in clusters.groups if len(group) > 1]
    chosen = report.chosen()
    legend = " (* recommended)" if chosen else ""
    yield f"{counted(len(clusters.groups), 'cluster')}, {len(groups)} of more than one job{legend}:"
    yield from listed(
        ["  " + " | ".join("*" * (job in chosen) + job for job in group) for group in groups],
        " (--csv has all)",
    )
    yield ""


def choice_lines(report: Report) -> Iterator[str]:
    """The jobs that are recommended, and what speaks for each."""
    plan = report.plan
    chosen = report.chosen()
    seconds, unit = unit_for(report, max(plan.costs.values(), default=0.0))
    catches: Counter[str] = collections.Counter()
    alone: Counter[str] = collections.Counter()
    for group, weight in plan.events.items():
        for job in group & chosen:
            catches[job] += weight
            alone[job] += weight * (len(group & chosen) == 1)
    yield f"{'cost/' + unit:>10} {'catches':>8} {'alone':>6}  job: breakages so far that it catches"
    lines = []
    for job in filter(chosen.__contains__, report.clusters.jobs):
        why = " (--keep)" if job in report.kept else ""
        if report.choice and job not in report.choice.jobs:
            why = " (another waits for it)"
        cost = plan.costs.get(job, 0.0) / seconds
        lines.append(f"{cost:10,.2f} {catches[job]:8} {alone[job]:6}  {job}{why}")
    yield from listed(lines, " (--write has all)")


def left_out_lines(report: Report) -> Iterator[str]:
    """What is not recommended: what is like it, or that nothing speaks for it."""
    plan = report.plan
    chosen = report.chosen()
    told = chosen | report.mend() | report.gone() | report.new()
    left_out = [job for job in report.clusters.jobs if job not in told]
    seconds, unit = unit_for(report, max(plan.costs.values(), default=0.0))
    count: Counter[str] = collections.Counter()
    missed: Counter[str] = collections.Counter()
    for group, weight in plan.events.items():
        for job in group:
            count[job] += weight
            missed[job] += weight * group.isdisjoint(chosen)
    silent = [job for job in left_out if not count[job]]
    if silent:
        yield f"Left out, since they never failed anew: {len(silent)}: {first_of(silent)}"
    if len(silent) < len(left_out):
        yield "Left out:"
        yield f"{'cost/' + unit:>10} {'failures':>8} {'uncaught':>8} {'phi':>5}  job | the recommended one most like it"
    rows = dict(zip(report.clusters.jobs, report.clusters.matrix))
    lines = []
    for job in filter(count.__getitem__, left_out):
        alike = most_like(report.clusters.jobs, rows[job], chosen)
        cost = plan.costs.get(job, 0.0) / seconds
        lines.append(
            f"{cost:10,.2f} {count[job]:8} {missed[job]:8} {alike[0]}  {job}{alike[1]}"
        )
    yield from listed(lines, " (--write has all)")


def most_like(jobs: Sequence[str], row: Sequence[float], chosen: Jobs) -> Tuple[str, str]:
    """Of the chosen jobs the one that a row of the matrix is most like, and how much; blank where it is like none."""
    alike = [(-phi, job) for phi, job in zip(row, jobs) if job in chosen and phi > 0]
    if not alike:
        return " " * 5, ""
    phi, job = min(alike)
    return f"{-phi:5.2f}", f" | {job}"


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


def fits_a_line(job: str) -> bool:
    """Whether a line of a file for `--only` can be this label."""
    return job == job.strip() and not job.startswith("# ") and not re.search(r"[\r\n]", job)


def labels_text(report: Report, lines: Iterable[str]) -> str:
    """The file for `run_tests.py --only`: the labels, one a line, where they come from, and what is left out.

    A label that no line can hold is named nowhere: `--only` runs it as one that the file does not know.
    """
    about = [line for line in lines if line.startswith(("Recommended:", "Walked forward"))]
    parts = [
        f"# Chosen by {PROGRAM}, for run_tests.py --only.",
        *(f"# {line}" for line in about),
    ]
    chosen = report.chosen()
    new = report.new() - chosen
    again = report.again() - chosen - new
    mend = report.mend() - chosen - new
    there = frozenset(report.clusters.jobs) - report.gone()
    rest = there - chosen - new - again - mend
    for jobs, mark, title in (
        (rest, "# ", "# Left out (what is named nowhere here is new, and runs):"),
        (mend, "# ", "# Left out until they pass, since they are red for long:"),
        (chosen, "", "# Chosen:"),
        (new, "", "# New:"),
        (again, "", "# Failed lately:"),
    ):
        if jobs:
            parts.append(title)
            parts += [mark + job for job in sorted(jobs) if fits_a_line(job)]
    return "\n".join([*parts, ""])


def page_text(report: Report, summary: Sequence[str], details: Sequence[str]) -> str:
    """The page: the report's lines, the plot of cost against catch, and the map."""
    clusters = report.clusters
    bits = bits_of(report.history.commits, clusters.jobs)
    shown = ci_dedup_page.Map(
        jobs=clusters.jobs,
        ran=[bit.ran for bit in bits],
        passed=[bit.passed for bit in bits],
        commits=len(report.history.commits),
        groups=[len(group) for group in clusters.groups],
        merges=[(merge.left, merge.right, merge.height) for merge in clusters.tree],
        chosen=report.chosen(),
    )
    points = []
    for row in [*report.rows, *filter(None, [report.row])]:
        low, high = row.ahead.interval()
        price = row.ahead.price()
        name = f"{row.policy.percent:g} %"
        points.append(
            ci_dedup_page.Point(name, price, row.ahead.share(), low, high, row is report.row)
        )
    title = f"{counted(len(clusters.jobs), 'job')} over {counted(len(report.history.commits), 'commit')}"
    return ci_dedup_page.page(title, ["\n".join(summary), "\n".join(details)], shown, points)


# ---------------------------------------------------------------------------------------------------
# Command line.
# ---------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  ci_dedup.py statuses/ --html map.html --csv map.csv       a folder of job statuses, one JSON file per commit
  ci_dedup.py statuses/ --tests                             its test jobs alone, where their builds passed
  ci_dedup.py logs/*.jsonl --write reduced.txt --recent 3   journals of run_tests.py
  ci_dedup.py history.csv --keep '*asan*' --catch 100       CSV: commit,job,ok,seconds,gpus, oldest commit first
  ci_dedup.py runs/ --budget 15                             GitHub's, GitLab's or Buildkite's jobs as JSON, or JUnit
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


def parse_count(text: str) -> int:
    """A whole number, 0 or more. Raises ArgumentTypeError."""
    if re.fullmatch(r"\d{1,6}", text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs, 0 or more")


def parse_pattern(text: str) -> Pattern[str]:
    """A regular expression. Raises ArgumentTypeError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression ({error})"
        ) from None


def add_reading(parser: argparse.ArgumentParser) -> None:
    """The options of what is read."""
    group = parser.add_argument_group("what is read")
    group.add_argument(
        "--tests",
        action="store_true",
        help="of job statuses: keep *_test jobs apart, without those whose build failed",
    )
    group.add_argument(
        "--no-verdict",
        type=lambda text: text.split(","),
        default=[],
        metavar="STATUS,...",
        help="of job statuses: those that say nothing, such as canceled,pending; default: all but success failed",
    )
    group.add_argument(
        "--order",
        choices=["time", "name"],
        help="whether files of a folder are in order of time (default: of what they tell, or of their last change) or "
        "by name",
    )
    group.add_argument(
        "--commit",
        type=parse_pattern,
        metavar="REGEX",
        help="of JUnit files: what of their path is the commit (its group, if it has one); default: the folder right "
        "below the source",
    )
    group.add_argument(
        "--cases",
        action="store_true",
        help="of JUnit files: each test case is a job, not each file",
    )
    add_leaving_out(group)


def add_leaving_out(group: argparse._ArgumentGroup) -> None:
    """The options of which jobs and commits count."""
    group.add_argument(
        "--jobs",
        choices=["newest", "all"],
        help="jobs of the newest commit alone (default for job statuses), or all that ever were",
    )
    group.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="JOB",
        help="leave out a job, or jobs by a pattern such as '*flaky*', and what failed in it alone",
    )
    group.add_argument(
        "--complete",
        type=parse_percent,
        default=100 * COMPLETE,
        metavar="PERCENT",
        help="of the jobs that have to have run in a commit, or it is left aside; default: %(default)g",
    )


def add_choosing(parser: argparse.ArgumentParser) -> None:
    """The options of what is chosen."""
    group = parser.add_argument_group("what is chosen")
    group.add_argument(
        "--budget",
        type=parse_percent,
        metavar="PERCENT",
        help=f"of the cost of all jobs that the set may cost; default: {BUDGET_PERCENT:g}, or more if that catches "
        f"less than {TARGETS[0]} %% of the breakages",
    )
    group.add_argument(
        "--catch",
        type=parse_percent,
        metavar="PERCENT",
        help="of the breakages so far that the set has to catch, whatever it costs",
    )
    group.add_argument(
        "--count",
        choices=["new", "red"],
        default="new",
        help="what is to be caught: new failures (default), or each commit with a red job",
    )
    group.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="JOB",
        help="a job, or jobs by a pattern such as '*asan*', that are in the set whatever they tell",
    )
    group.add_argument(
        "--recent",
        type=parse_count,
        default=0,
        metavar="N",
        help="add what failed in the last N runs; default: %(default)s",
    )
    group.add_argument(
        "--holdout",
        type=parse_percent,
        default=HOLDOUT_PERCENT,
        metavar="PERCENT",
        help="of the commits, the newest, through which the choice is judged, walking forward; default: %(default)g",
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Find the CI jobs, or tests, that tell nothing new, and choose a cheaper set for a change.",
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folders (of job statuses, a CI service's JSON, JUnit files), journals of run_tests.py, or CSV files; "
        "several are one history",
    )
    add_reading(parser)
    add_choosing(parser)
    group = parser.add_argument_group("what is written")
    group.add_argument(
        "--html", metavar="FILE", help="the report with a map of the correlations, in one file"
    )
    group.add_argument("--csv", metavar="FILE", help="the correlations as numbers")
    group.add_argument(
        "--write", metavar="FILE", help="the recommended labels, for run_tests.py --only"
    )
    return parser


def check_outputs(options: argparse.Namespace) -> None:
    """Make sure that nothing is written twice, or over a source. Raises UsageError."""
    taken = {os.path.realpath(path) for path in options.sources}
    for path in filter(None, (options.html, options.csv, options.write)):
        if os.path.realpath(path) in taken:
            raise UsageError(f"{path} is a source, or another output; name a file of its own")
        taken.add(os.path.realpath(path))


def analyse(options: argparse.Namespace) -> Report:
    """From the sources to all that is reported. Raises UsageError."""
    check_outputs(options)
    if options.budget is not None and options.catch is not None:
        raise UsageError("--budget and --catch: name one of them")
    policy = Policy(BUDGET_PERCENT, is_budget=True, at_least=TARGETS[0])
    if options.budget is not None:
        policy = Policy(options.budget, is_budget=True)
    elif options.catch is not None:
        policy = Policy(options.catch, is_budget=False)
    history = without_broken(nearly_complete(read_history(options), options.complete))
    known = history.costs()
    costs = known or dict.fromkeys(history.jobs(), 1.0)
    timeline = timeline_of(history, costs, options.count == "red")
    kept = matching("--keep", options.keep, history.jobs())
    stretches = stretches_of(timeline, options.holdout)
    policies = [*(Policy(float(percent), False) for percent in TARGETS), policy]
    clusters = cluster(history)
    steps = walk(timeline, stretches, policies, kept, clusters.number_of())
    plan = plan_at(timeline, stretches, clusters.number_of(), kept)
    choice = final_choice(plan, policy)
    rows = {}
    if steps and choice:
        rows = {row.policy: row for row in rows_of(timeline, steps, policies, plan)}
    return Report(
        history,
        clusters,
        timeline,
        bool(known),
        plan,
        kept,
        choice,
        policy,
        [rows[target] for target in policies[: len(TARGETS)] if rows],
        rows.get(policy),
        steps,
        extra_of(timeline, steps, policy, options.recent),
        options.recent,
    )


def write(path: str, text: str) -> None:
    """Write a file. Raises MachineError."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise MachineError(
            f"cannot write {path} ({error.strerror}); name another place"
        ) from None
    except UnicodeError:
        raise MachineError(
            f"cannot write {path} (a name is no text); leave the job out by --drop"
        ) from None


def show(text: str) -> None:
    """Print what standard output can show, if there is one. Raises MachineError."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python fails at its end again
        if not isinstance(error, BrokenPipeError):  # its reader has seen enough
            raise MachineError(f"cannot write to standard output ({error.strerror})") from None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    options = build_parser().parse_args(argv)
    try:
        report = analyse(options)
        summary = list(summary_lines(report))
        details = list(detail_lines(report))
        if options.html:
            write(options.html, page_text(report, summary, details))
        if options.csv:
            write(options.csv, matrix_text(report.clusters))
        if options.write and report.choice:
            write(options.write, labels_text(report, summary))
        show("\n".join(summary + details))
    except (UsageError, MachineError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_MACHINE
    return EXIT_OK if report.choice else EXIT_NOTHING


if __name__ == "__main__":
    sys.exit(main())
