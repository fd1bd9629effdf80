# SPDX-License-Identifier: MIT
"""From clusters to the cheapest set of jobs, and to what it would have caught. Pure.

A part of ci_dedup.py, which does not work without it: copy the five files ci_dedup*.py together.
"""

from __future__ import annotations

import collections
import heapq
import math
from typing import (
    AbstractSet,
    Container,
    Counter,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from ci_dedup_cluster import cluster
from ci_dedup_read import Commit, History

STRETCHES = 10  # into which the judged commits are cut; the choice is made anew before each
CLUSTER_WORK = 30_000_000  # jobs squared times commits, up to which each stretch has clusters of its own: 0.3 s
RED_RUNS = 10  # verdicts in a row: a job that failed in all is to be mended, and can catch nothing until then
RED_AGAIN = 0.5  # of the share of runs for which a job was red, and so cost nothing: the part that is counted on
NEW_RUNS = 3  # newest commits: a job that is in none before is new
GONE_SHARE = 0.1  # of the commits, the newest: a job that is in none of them is gone
GONE_RUNS = 3  # commits that are the newest at least
CERTAIN = 1.96  # standard deviations: 95 %
SEARCH_STEPS = 5_000_000  # looks at a job in search of the cheapest set: a second
CAPS = 24  # tried for a bound, each half of the one before
NEARLY = 1 - 1e-9  # what is cheaper by less is rounding

Jobs = FrozenSet[str]
Events = Counter[Jobs]  # by the jobs that newly failed together, how often

# ---------------------------------------------------------------------------------------------------
# Model: what the sections hand to each other.
# ---------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A set of jobs, its cost, and a bound: no set that has the jobs to keep and catches enough costs less."""

    jobs: Jobs
    cost: float
    bound: float


class Score(NamedTuple):
    """What sets would have done on failing commits. Costs are those of all commits together."""

    caught: int
    failing: int
    events_caught: int
    events: int
    cost: float
    cost_of_all: float
    missed: Sequence[Tuple[str, Jobs]] = ()  # commits, and what newly failed there

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
        squared = CERTAIN * CERTAIN / self.failing
        middle = self.share() + squared / 2
        spread = self.share() * (1 - self.share()) / self.failing * CERTAIN * CERTAIN
        half = math.sqrt(spread + squared * squared / 4)
        return max(0.0, (middle - half) / (1 + squared)), min(
            1.0, (middle + half) / (1 + squared)
        )


# ---------------------------------------------------------------------------------------------------
# Choose: the cheapest set of jobs that catches what has to be caught. Pure.
# ---------------------------------------------------------------------------------------------------


Failure = Tuple[Jobs, int]  # the jobs that fail together, and how often
NOTHING: Jobs = frozenset()


class Cover:
    """Partial weighted set cover: so many of the failures are to be caught, by jobs that cost.

    A node of the search is a set of jobs that are `chosen` and one of jobs that are `barred`.
    """

    def __init__(
        self,
        failures: Mapping[Jobs, int],
        costs: Mapping[str, float],
        need: int,
    ) -> None:
        self.costs = costs
        useful = self.undominated(failures)
        weights: Events = collections.Counter()
        for jobs, weight in failures.items():
            weights[jobs & useful] += weight
        self.failures = sorted(
            weights.items(), key=lambda failure: (len(failure[0]), sorted(failure[0]))
        )
        self.may_miss = sum(failures.values()) - need
        self.size = sum(len(jobs) for jobs, _ in self.failures)

    def undominated(self, failures: Iterable[Jobs]) -> Jobs:
        """The jobs to choose from: without those of which another catches all that they do, and costs no more."""
        caught: Dict[str, Set[Jobs]] = collections.defaultdict(set)  # by job
        for jobs in failures:
            for job in jobs:
                caught[job].add(jobs)
        useful: Set[str] = set()
        for job in sorted(caught, key=lambda job: (self.costs[job], -len(caught[job]), job)):
            if not useful.intersection(
                *caught[job]
            ):  # whoever is in each of its failures catches all of them
                useful.add(job)
        return frozenset(useful)

    def left(self, chosen: Jobs) -> Tuple[List[Failure], int]:
        """The failures that no chosen job catches, and how many of their commits are to be caught still."""
        left = [failure for failure in self.failures if chosen.isdisjoint(failure[0])]
        return left, sum(weight for _, weight in left) - self.may_miss

    def best(
        self,
        left: Iterable[Failure],
        missing: int,
        barred: Container[str],
    ) -> str:
        """The job that costs least per commit that it catches of those that are missing; there has to be one."""
        gains: Counter[str] = collections.Counter()
        for jobs, weight in left:
            for job in jobs:
                gains[job] += weight
        return min(
            (job for job in gains if job not in barred),
            key=lambda job: (self.costs[job] / min(gains[job], missing), self.costs[job], job),
        )

    def greedy(
        self,
        chosen: Jobs,
        barred: Container[str],
    ) -> Jobs:
        """`chosen` and what the best job, again and again, adds to it, where enough can be caught.

        What later jobs have made superfluous is taken out again. Without barred jobs it costs at most 1 + 1/2 + … + 1/d
        times the cheapest, d being the most commits that one job catches (L. Wolsey, "An analysis of the greedy
        algorithm for the submodular set covering problem", 1982).
        """
        picked = chosen
        left, missing = self.left(picked)
        while missing > 0:
            job = self.best(left, missing, barred)
            picked |= {job}
            left = [failure for failure in left if job not in failure[0]]
            missing = sum(weight for _, weight in left) - self.may_miss
        return self.thinned(picked, picked - chosen, -missing)

    def thinned(
        self,
        picked: Jobs,
        spare: Jobs,
        slack: int,
    ) -> Jobs:
        """`picked` without those of the spare jobs that it can do without, the dearest first.

        `slack` is how many commits more than needed are caught.
        """
        times: Counter[Jobs] = collections.Counter()  # how many picked jobs catch a failure
        of_job: Dict[str, List[Failure]] = collections.defaultdict(list)
        for failure in self.failures:
            times[failure[0]] = len(failure[0] & picked)
            for job in failure[0] & spare:
                of_job[job].append(failure)
        dropped = set()
        for job in sorted(spare, key=lambda job: (-self.costs[job], job)):
            lost = sum(weight for jobs, weight in of_job[job] if times[jobs] == 1)
            if lost > slack:
                continue
            slack -= lost
            dropped.add(job)
            for jobs, _ in of_job[job]:
                times[jobs] -= 1
        return picked - dropped

    def bound(
        self,
        chosen: Jobs,
        barred: Jobs,
        caps: Iterable[float],
    ) -> Tuple[float, float]:
        """What a set with these jobs and without those costs at least, inf if none catches enough, and the best cap.

        Each commit that is left gets a price, such that no job catches commits of more worth than it costs (a solution
        of the linear program's dual, commits of few jobs first). So a set costs no less than the commits that it
        catches are worth, and these no less than the cheapest that could be. Prices are capped, since dear ones are
        those that a set may miss.
        """
        left, missing = self.left(chosen)
        left = [(jobs - barred, weight) for jobs, weight in left if not jobs <= barred]
        highest = (0.0, 0.0)
        if sum(weight for _, weight in left) < missing:
            highest = (math.inf, 0.0)
        for cap in caps:
            highest = max(highest, (self.worth(left, missing, cap), cap))
        return highest[0] + self.cost(chosen), highest[1]

    def worth(
        self,
        left: Iterable[Failure],
        missing: int,
        cap: float,
    ) -> float:
        """The least worth of so many commits of those that are left, their prices capped."""
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

    def cost(self, jobs: Iterable[str]) -> float:
        return total_of(self.costs, jobs)

    def cheapest(self) -> Tuple[Jobs, float]:
        """The cheapest set that was found, and what the cheapest costs at least: the same, unless the search was ended.

        Branch and bound, the lowest bound first, from the greedy set; a job is in or out. It ends after a number of
        steps, not of seconds: the same input has the same answer everywhere.
        """
        found = self.greedy(NOTHING, NOTHING)
        highest = max(self.costs.values())
        caps = [highest / 2**power for power in range(CAPS)]
        lower, cap = self.bound(NOTHING, NOTHING, caps)
        steps = 0
        heap = [(lower, steps, NOTHING, NOTHING, cap)]
        while heap and heap[0][0] < self.cost(found) * NEARLY and steps < SEARCH_STEPS:
            _, _, chosen, barred, cap = heapq.heappop(heap)
            job = self.best(*self.left(chosen), barred)
            for node in ((chosen | {job}, barred), (chosen, barred | {job})):
                steps += self.size * (4 + len(found))
                lower, near = self.bound(*node, [cap * 2, cap, cap / 2])
                if lower < self.cost(found) * NEARLY:
                    found = min(found, self.greedy(*node), key=self.cost)
                    heapq.heappush(heap, (lower, steps, *node, near))
        at_least = heap[0][0] if heap else math.inf
        return found, min(self.cost(found), at_least)


def weight_of(events: Mapping[Jobs, int]) -> int:
    """How many breakages there are."""
    return sum(events.values())


def caught_by(
    events: Events,
    jobs: AbstractSet[str],
) -> int:
    """How many breakages these jobs catch."""
    return weight_of(events) - weight_of(without(events, jobs))


def total_of(
    costs: Mapping[str, float],
    jobs: Iterable[str],
) -> float:
    """What jobs cost together, the same in whatever order they come; one of no known cost costs nothing."""
    return math.fsum(costs.get(job, 0.0) for job in jobs)


def needed(
    events: Events,
    percent: float,
) -> int:
    """How many breakages are that share of all."""
    return math.ceil(weight_of(events) * percent / 100 - 1e-9)


def without(
    events: Events,
    jobs: AbstractSet[str],
) -> Events:
    """The breakages that these jobs do not catch."""
    return collections.Counter(
        {group: weight for group, weight in events.items() if jobs.isdisjoint(group)}
    )


def choose(
    events: Events,
    costs: Mapping[str, float],
    percent: float,
    kept: Jobs,
) -> Optional[Choice]:
    """The cheapest jobs that, with those that are `kept`, catch that share of the breakages; None if there are none."""
    if not events:
        return None
    need = needed(events, percent) - caught_by(events, kept)
    fixed = total_of(costs, kept)
    if need <= 0:
        return Choice(kept, fixed, fixed)
    cover = Cover(without(events, kept), costs, need)
    found, bound = cover.cheapest()
    return Choice(found | kept, cover.cost(found) + fixed, bound + fixed)


class Pick(NamedTuple):
    """A job that was picked, and what it and those before it catch and cost."""

    job: str
    caught: int
    cost: float


def picks_of(
    events: Events,
    costs: Mapping[str, float],
    kept: Jobs,
    limit: float = math.inf,
) -> List[Pick]:
    """Jobs in the order of what they cost per breakage that none before them catches, as long as all cost no more.

    One pass answers what each share of the breakages costs: a job's gain only falls, so that the best is known without
    asking all others again (M. Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978).
    """
    left = without(events, kept)
    caught = caught_by(events, kept)
    cost = total_of(costs, kept)
    of_job: Dict[str, Set[Jobs]] = collections.defaultdict(set)
    gains: Counter[str] = collections.Counter()
    for group, weight in left.items():
        for job in group:
            of_job[job].add(group)
            gains[job] += weight
    heap = [(costs[job] / gains[job], costs[job], job) for job in gains]
    heapq.heapify(heap)
    picks = []
    while heap:
        ratio, price, job = heapq.heappop(heap)
        if not gains[job] or cost + price > limit:
            continue
        if costs[job] / gains[job] > ratio:
            heapq.heappush(heap, (costs[job] / gains[job], price, job))
            continue
        cost += price
        caught += gains[job]
        picks.append(Pick(job, caught, cost))
        for group in [*of_job[job]]:
            for other in group:
                gains[other] -= left[group]
                of_job[other].discard(group)
    return picks


def picked_for(
    picks: Iterable[Pick],
    need: int,
    caught: int,
) -> Jobs:
    """The first jobs that together catch so many, where so many are caught without them."""
    found = set()
    for pick in picks:
        if caught >= need:
            break
        found.add(pick.job)
        caught = pick.caught
    return frozenset(found)


# ---------------------------------------------------------------------------------------------------
# Walk forward: what a choice by the past would have caught in what came next. Pure.
# ---------------------------------------------------------------------------------------------------


class Timeline(NamedTuple):
    """What was so before each commit, and (`red` and `new`: one entry more) after the last."""

    commits: Sequence[Commit]
    failures: List[Jobs]  # of each commit, those that are to be caught
    red: List[Jobs]  # red for long: they do not run for a change until they are mended
    new: List[Jobs]
    costs: Mapping[str, float]
    waits: Mapping[str, Jobs]
    by_cluster: bool  # whether a commit's failures in several clusters are several breakages

    def closed(self, jobs: Iterable[str]) -> Jobs:
        """The jobs and all that they wait for."""
        found: Set[str] = set()
        open_ones = [*jobs]
        while open_ones:
            job = open_ones.pop()
            if job not in found:
                found.add(job)
                open_ones += self.waits.get(job, ())
        return frozenset(found)

    def price(self, job: str) -> float:
        """What a job costs with all that it waits for."""
        if job not in self.waits:
            return self.costs[job]
        return total_of(self.costs, self.closed([job]))


class Watch:
    """What is known of each job while the commits go by."""

    def __init__(self) -> None:
        self.streak: Dict[str, int] = {}  # of the jobs that failed last, how often in a row
        self.seen: Set[str] = set()
        self.firsts: List[Jobs] = []  # of each commit, the jobs that it was the first of
        self.red = NOTHING

    def young(self) -> Jobs:
        """The jobs that the newest commits alone know."""
        start = max(1, len(self.firsts) - NEW_RUNS)  # those of the first commit may be old
        return NOTHING.union(*self.firsts[start:])

    def add(self, commit: Commit) -> Jobs:
        """Take in a commit; returns what failed there for the first time since it passed."""
        fresh = commit.verdicts.keys() - self.seen
        self.firsts.append(frozenset(fresh) or NOTHING)
        self.seen |= fresh
        failed = commit.failed()
        anew = frozenset(failed - self.streak.keys())
        mended = [job for job in self.streak if job in commit.verdicts and job not in failed]
        for job in mended:
            del self.streak[job]
        for job in failed:
            self.streak[job] = self.streak.get(job, 0) + 1
        red = {job for job, runs in self.streak.items() if runs >= RED_RUNS}
        if red != self.red:
            self.red = frozenset(red)  # else it stays the same object: commits are many
        return anew or NOTHING


def timeline_of(
    history: History,
    costs: Mapping[str, float],
    counts_red: bool = False,
) -> Timeline:
    """What was new, failing anew and red for long at each commit; with `counts_red` each failure counts, old or new."""
    watch = Watch()
    waits = {
        job: others & costs.keys() for job, others in history.waits.items() if job in costs
    }
    lines = Timeline(history.commits, [], [], [], costs, waits, not counts_red)
    for commit in history.commits:
        lines.red.append(NOTHING if counts_red else watch.red)
        anew = watch.add(commit)
        lines.new.append(watch.young().intersection(commit.verdicts))
        lines.failures.append(commit.failed() if counts_red else anew)
    lines.red.append(NOTHING if counts_red else watch.red)
    lines.new.append(watch.young())
    return lines


class Stretch(NamedTuple):
    """Commits between two choices. By job, in how many it ran, and in how many of these it was red for long."""

    start: int
    end: int
    ran: Counter[str]
    red: Counter[str]

    def costs(
        self,
        timeline: Timeline,
        jobs: Optional[Iterable[str]] = None,
    ) -> float:
        """What these jobs have cost where they were not red, or all jobs together."""
        if jobs is None:
            return math.fsum(timeline.costs[job] * runs for job, runs in self.ran.items())
        return math.fsum(
            timeline.costs[job] * (self.ran[job] - self.red[job]) for job in sorted(jobs)
        )


def stretch_of(
    timeline: Timeline,
    start: int,
    end: int,
) -> Stretch:
    """The commits from one number to before another."""
    stretch = Stretch(start, end, collections.Counter(), collections.Counter())
    for number in range(start, end):
        jobs = timeline.commits[number].verdicts.keys()
        stretch.ran.update(jobs)
        if timeline.red[number]:
            stretch.red.update(timeline.red[number] & jobs)
    return stretch


def stretches_of(
    timeline: Timeline,
    percent: float,
) -> List[Stretch]:
    """The past that no choice is judged by, then the stretches of the newest commits, that share of all."""
    total = len(timeline.commits)
    judged = math.floor(total * percent / 100)
    first = total - judged
    edges = [first + judged * number // STRETCHES for number in range(STRETCHES + 1)]
    edges = sorted({0, *edges})
    return [stretch_of(timeline, start, end) for start, end in zip(edges, edges[1:])]


class Plan(NamedTuple):
    """What there is to choose by at one moment, and from."""

    events: Events
    costs: Mapping[
        str, float
    ]  # of a job a commit, while it is not red for long, with what it waits for
    total: float  # of all jobs that are there, a commit
    kept: Jobs

    def picks(self, limit: float = math.inf) -> List[Pick]:
        return picks_of(self.events, self.costs, self.kept, limit)

    def caught_anyway(self) -> int:
        """How many breakages the jobs to keep catch."""
        return caught_by(self.events, self.kept)


def groups_in(
    failed: Jobs,
    number_of: Mapping[str, int],
) -> List[Jobs]:
    """Failures of one commit by cluster; a job of none is one by itself."""
    groups: Dict[object, Set[str]] = {}
    for job in failed:
        groups.setdefault(number_of.get(job, job), set()).add(job)
    return [*map(frozenset, groups.values())]


def there_at(
    timeline: Timeline,
    end: int,
) -> Jobs:
    """The jobs that run still when so many commits are known: those of the newest tenth."""
    start = min(end - GONE_RUNS, math.floor(end * (1 - GONE_SHARE)))
    newest = timeline.commits[max(0, start) : end]
    return NOTHING.union(*(commit.verdicts for commit in newest))


def plan_at(
    timeline: Timeline,
    past: Sequence[Stretch],
    number_of: Mapping[str, int],
    keep: Jobs,
    in_hindsight: bool = False,
) -> Plan:
    """What there is to choose by after these stretches; `in_hindsight`, with what failed later, too.

    Jobs that are gone, or new, are not there to choose from.
    """
    end = past[-1].end
    there = there_at(timeline, end)
    usable = there - timeline.new[end]
    known = timeline.failures if in_hindsight else timeline.failures[:end]
    events: Events = collections.Counter()
    for failed in known:
        if failed & usable and timeline.by_cluster:
            events.update(groups_in(failed & usable, number_of))
        elif failed & usable:
            events[failed & usable] += 1
    ran = sum((stretch.ran for stretch in past), collections.Counter())
    red = sum((stretch.red for stretch in past), collections.Counter())
    costs = {}
    for job in sorted(there):
        saved = RED_AGAIN * red[job] / max(1, ran[job])
        costs[job] = timeline.price(job) * (1 - saved)
    total = total_of(timeline.costs, there)
    return Plan(events, costs, total, keep & there)


class Policy(NamedTuple):
    """What an owner asks for: that share of the breakages, or as many as that share of the cost catches."""

    percent: float
    is_budget: bool
    at_least: float = (
        0.0  # percent of the breakages that a budget catches even if it takes more
    )

    def jobs(
        self,
        plan: Plan,
        picks: Sequence[Pick],
    ) -> Jobs:
        """The jobs to run. `picks` are those of the plan without a limit."""
        before = plan.caught_anyway()
        if not self.is_budget:
            return plan.kept | picked_for(picks, needed(plan.events, self.percent), before)
        limited = plan.picks(plan.total * self.percent / 100)
        least = needed(plan.events, self.at_least)
        if max([before, *(pick.caught for pick in limited)]) < least:
            return plan.kept | picked_for(picks, least, before)
        return plan.kept.union(pick.job for pick in limited)


def final_choice(
    plan: Plan,
    policy: Policy,
) -> Optional[Choice]:
    """The cheapest set for a policy: where a budget is given, the cheapest that catches as much as the budget does."""
    if not plan.events:
        return None
    jobs = policy.jobs(plan, plan.picks())
    percent = policy.percent
    if policy.is_budget:
        percent = 100 * caught_by(plan.events, jobs) / weight_of(plan.events)
    choice = choose(plan.events, plan.costs, percent, plan.kept)
    cost = total_of(plan.costs, jobs)
    if choice and cost < choice.cost * NEARLY:
        return choice._replace(jobs=jobs, cost=cost)
    return choice


class Step(NamedTuple):
    """A stretch, the jobs that each policy chose before it, and the clusters that they were chosen by."""

    stretch: Stretch
    chosen: Mapping[Policy, Jobs]
    wise: Mapping[Policy, Jobs]  # what each had chosen, had it known all of the history
    number_of: Mapping[str, int]


def walk(
    timeline: Timeline,
    stretches: Sequence[Stretch],
    policies: Sequence[Policy],
    keep: Jobs,
    late: Mapping[str, int],
) -> List[Step]:
    """Choose by the past before each stretch; one before which nothing failed is not judged.

    Clusters are those of the past, too: computed anew for each stretch, or, where that takes long, once; `late` are
    those of the whole history, for what hindsight says.
    """
    steps: List[Step] = []
    number_of: Mapping[str, int] = {}
    for place in range(1, len(stretches)):
        start = stretches[place].start
        past = History(list(timeline.commits[:start]), [])
        if not number_of or len(past.jobs()) ** 2 * start <= CLUSTER_WORK:
            number_of = cluster(past).number_of()
        plan = plan_at(timeline, stretches[:place], number_of, keep)
        if not plan.events:
            continue
        wise = plan_at(timeline, stretches[:place], late, keep, in_hindsight=True)
        chosen = chosen_by(timeline, policies, plan)
        steps.append(
            Step(stretches[place], chosen, chosen_by(timeline, policies, wise), number_of)
        )
    return steps


def chosen_by(
    timeline: Timeline,
    policies: Iterable[Policy],
    plan: Plan,
) -> Dict[Policy, Jobs]:
    """What each policy chooses by a plan, with all that it waits for."""
    picks = plan.picks()
    return {policy: timeline.closed(policy.jobs(plan, picks)) for policy in policies}


def score(
    timeline: Timeline,
    steps: Iterable[Step],
    sets: Iterable[Jobs],
) -> Score:
    """What a set of jobs for each step would have caught and cost there."""
    caught = events_caught = events = 0
    cost = cost_of_all = 0.0
    missed = []
    failing = 0
    for step, jobs in zip(steps, sets):
        cost += step.stretch.costs(timeline, jobs)
        cost_of_all += step.stretch.costs(timeline)
        for number in range(step.stretch.start, step.stretch.end):
            failed = timeline.failures[number]
            if not failed:
                continue
            failing += 1
            groups = groups_in(failed, step.number_of) if timeline.by_cluster else [failed]
            events += len(groups)
            events_caught += sum(1 for group in groups if group & jobs)
            if failed & jobs:
                caught += 1
            else:
                missed.append((timeline.commits[number].name, failed))
    return Score(caught, failing, events_caught, events, cost, cost_of_all, missed)


class Extra(NamedTuple):
    """What runs besides the chosen jobs: how many commits more it catches, and its cost."""

    caught: int
    cost: float


def extra_of(
    timeline: Timeline,
    steps: Iterable[Step],
    policy: Policy,
    recent: int,
) -> Tuple[Extra, Extra]:
    """What new jobs, and what failed in so many runs before, would have added to a policy's jobs."""
    totals = [Extra(0, 0.0), Extra(0, 0.0)]
    for step in steps:
        for number in range(step.stretch.start, step.stretch.end):
            runs = timeline.commits[number].verdicts.keys() - step.chosen[policy]
            failed = timeline.failures[number]
            is_caught = bool(failed & step.chosen[policy])
            before = timeline.commits[max(0, number - recent) : number]
            again = (
                NOTHING.union(*(commit.failed() for commit in before)) - timeline.red[number]
            )
            for place, jobs in enumerate((timeline.new[number], again)):
                added = runs & jobs
                caught = bool(failed & added) and not is_caught
                is_caught |= caught
                cost = total_of(timeline.costs, added)
                totals[place] = Extra(totals[place].caught + caught, totals[place].cost + cost)
                runs = runs - added
    return totals[0], totals[1]


def unforeseen(
    timeline: Timeline,
    steps: Iterable[Step],
) -> int:
    """In how many judged commits only jobs failed that had never failed before the choice."""
    count = 0
    for step in steps:
        start = step.stretch.start
        known = NOTHING.union(*timeline.failures[:start])
        judged = timeline.failures[start : step.stretch.end]
        count += sum(1 for failed in judged if failed and not failed & known)
    return count


class Row(NamedTuple):
    """A policy: the jobs that it chooses now, what it would have done walking forward, and with hindsight."""

    policy: Policy
    jobs: Jobs
    share: float  # of the cost of all jobs a commit
    ahead: Score
    behind: Score


def rows_of(
    timeline: Timeline,
    steps: Sequence[Step],
    policies: Sequence[Policy],
    plan: Plan,
) -> List[Row]:
    """Each policy's row; `plan` is that of today."""
    rows = []
    for policy, jobs in chosen_by(timeline, policies, plan).items():
        cost = total_of(plan.costs, jobs)
        ahead = score(timeline, steps, [step.chosen[policy] for step in steps])
        behind = score(timeline, steps, [step.wise[policy] for step in steps])
        rows.append(Row(policy, jobs, cost / (plan.total or 1.0), ahead, behind))
    return rows
