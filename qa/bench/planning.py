#!/usr/bin/env python3
"""What the scheduler itself is worth, without a process: three Markdown tables, from a virtual clock.

    python3 qa/bench/planning.py [--quick] [--json FILE]

`simulate` of qa/plan.py feeds the scheduler that runs tests with events of a clock that only jumps, so a figure here is
that of a machine on which starting a test costs nothing; qa/bench/schedules.py has those of real processes. The suites
are those of `durations/`, all tests of a set on 8 GPUs. The bound is what no schedule can beat: the GPU time over 8, or
the longest test.

a. How near to the bound a suite ends, with exact durations in the history, and with durations each off by a factor
   of its own (log-normal, sigma 0.3: one in three is off by more than a third).
b. What a test without a duration should count as. `runner` is what the runner does: such a test starts first of its
   width, and counts as the mean of the known ones. In the others it counts as, and stands in the starting order as,
   a test of zero seconds, or of the median, mean, 75th percentile or longest of the known ones. Mean and 95th
   percentile of makespan over bound.
c. What a plan costs, in CPU seconds, and whether that grows as sorting does: random widths and log-normal durations
   on 512 GPUs.

Exit status 1, naming it, if a bound of a. or c. is broken.
"""
import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from overhead import SLOTS, machine
from schedules import Row, lower_bound, read_sets

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from plan import run_tests, simulate

Test = run_tests.Test

SIGMA = 0.3                              # of the logarithm of what an estimate is off by
EXACT_LIMIT, NOISY_LIMIT = 1.02, 1.05    # makespan over bound: what the runner promises on these suites
USUAL = 0.95                             # of the plans keep NOISY_LIMIT: a long test that is taken for short ends last
NOISY_SEEDS, UNKNOWN_SEEDS, QUICK_SEEDS = 100, 60, 5
UNKNOWN_SHARES = (0.05, 0.10, 0.20, 0.50, 0.90)
COST_SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000, 10_000)
COST_GPUS = 512
COST_TESTS, COST_LIMIT_S = 10_000, 5.0   # a plan of so many tests takes less CPU than a person notices
COST_WIDTHS, COST_WEIGHTS = (1, 2, 4, 8), (70, 15, 10, 5)     # GPUs, and of a hundred tests how many need them
COST_MEDIAN_S, COST_SIGMA = 60.0, 1.0    # of the log-normal durations: much like the suites


class Suite(NamedTuple):
    """A set as the runner's tests: their real seconds, and the bound in seconds."""

    name: str
    tests: List[Test]
    seconds: Dict[Test, float]
    bound: float


Durations = Mapping[Test, float]


# The scheduler on a virtual clock.

def make_test(index: int, gpus: int) -> Test:
    """A test of the runner's of which only place, need and key matter here."""
    return Test(index=index, key=f"{index:012x}", label=f"t{index}", stem=f"t{index}", file="", line=index, command="",
                shell=run_tests.Snapshot(""), preface=b"", attributes=run_tests.Attributes(), barrier=0,
                gpus=float(gpus), timeout=0, junit="", announces=False)


def make_suite(name: str, rows: Sequence[Row], gpus: int = SLOTS) -> Suite:
    """The runner's tests of these rows, in this order."""
    tests = [make_test(index, row.gpus) for index, row in enumerate(rows)]
    return Suite(name, tests, {test: row.seconds for test, row in zip(tests, rows)}, lower_bound(rows, gpus))


def learn(tests: Sequence[Test], durations: Durations) -> run_tests.Estimates:
    """What the runner expects of tests when its journal has one pass of each that is in `durations`."""
    history = run_tests.History(run_tests.Options(()))
    for test, seconds in durations.items():
        history.add({"event": "test_end", "run": "", "test": test.key, "label": test.label,
                     "outcome": run_tests.Outcome.PASSED.value, "seconds": seconds, "time": 0.0}, is_own=True)
    return run_tests.estimate(tests, history)


def makespan(tests: Sequence[Test], estimates: run_tests.Estimates, actual: Durations, gpus: int = SLOTS) -> float:
    """Seconds until the last test ends, when the runner expects `estimates` and tests take `actual`."""
    pool = run_tests.Pool([run_tests.Device(index, str(index)) for index in range(gpus)], gpus)
    order = run_tests.Selection(list(tests), {}, {}, estimates).starting_order("auto", pool)
    ended = simulate(order, actual, pool, run_tests.Options(()))
    if len(ended) != len(tests):
        raise AssertionError(f"{len(tests) - len(ended)} of {len(tests)} tests were never run")
    return ended[-1][0]


# a. How near to the bound.

def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


class Nearness(NamedTuple):
    """Makespan over bound of a suite: with exact estimates, and one with estimates that are off for each seed."""

    suite: str
    tests: int
    exact: float
    noisy: List[float]


def measure_nearness(suite: Suite, seeds: int) -> Nearness:
    """Table a, one line."""
    def ratio(expected: Durations) -> float:
        return makespan(suite.tests, learn(suite.tests, expected), suite.seconds) / suite.bound

    def off(seed: int) -> Durations:
        chance = random.Random(seed)
        return {test: seconds * chance.lognormvariate(0.0, SIGMA) for test, seconds in suite.seconds.items()}

    return Nearness(suite.name, len(suite.tests), ratio(suite.seconds), [ratio(off(seed)) for seed in range(seeds)])


def nearness_lines(rows: Sequence[Nearness]) -> Iterator[str]:
    """Table a in Markdown."""
    yield (f"| suite, {SLOTS} GPUs | tests | exact | estimates off: median | 95th percentile "
           f"| and worst of {len(rows[0].noisy)} |")
    yield "|---" * 6 + "|"
    for row in rows:
        yield (f"| {row.suite} | {row.tests} | {row.exact:.4f} | {statistics.median(row.noisy):.4f} "
               f"| {nearest_rank(row.noisy, USUAL):.4f} | {max(row.noisy):.4f} |")


def broken_nearness(rows: Sequence[Nearness]) -> Iterator[str]:
    """Where table a is above what is promised."""
    for row in rows:
        if row.exact > EXACT_LIMIT:
            yield f"{row.suite}: {row.exact:.4f} of the bound with exact estimates, above {EXACT_LIMIT}"
        usual = nearest_rank(row.noisy, USUAL)
        if usual > NOISY_LIMIT:
            yield f"{row.suite}: {usual:.4f} of the bound with estimates that are off, above {NOISY_LIMIT}"


# b. What an unknown test should count as.

POLICIES: Tuple[Tuple[str, Callable[[Sequence[float]], float]], ...] = (
    ("zero", lambda _known: 0.0),
    ("median", statistics.median),
    ("mean", statistics.fmean),
    ("75th", lambda known: nearest_rank(known, 0.75)),
    ("longest", max),
)


class Unknowns(NamedTuple):
    """Makespans over bound by policy, one for each seed, where a share of a suite's tests has no duration."""

    suite: str
    share: float
    ratios: Dict[str, List[float]]


def guess(tests: Sequence[Test], known: Durations, value: float) -> run_tests.Estimates:
    """Estimates in which an unknown test is taken for one of `value` seconds, also when tests are put in order."""
    return run_tests.Estimates({test: known.get(test, value) for test in tests})


def measure_unknowns(suite: Suite, share: float, seeds: int) -> Unknowns:
    """Table b, one line. All policies meet the same unknown tests."""
    ratios: Dict[str, List[float]] = {name: [] for name, _ in (("runner", None), *POLICIES)}
    count = min(max(round(share * len(suite.tests)), 1), len(suite.tests) - 1)
    for seed in range(seeds):
        unknown = set(random.Random(seed).sample(suite.tests, count))
        known = {test: seconds for test, seconds in suite.seconds.items() if test not in unknown}
        plans = {name: guess(suite.tests, known, policy(list(known.values()))) for name, policy in POLICIES}
        plans["runner"] = learn(suite.tests, known)
        for name, estimates in plans.items():
            ratios[name].append(makespan(suite.tests, estimates, suite.seconds) / suite.bound)
    return Unknowns(suite.name, share, ratios)


def unknown_lines(rows: Sequence[Unknowns]) -> Iterator[str]:
    """Table b in Markdown: mean and 95th percentile, the best means in bold."""
    names = list(rows[0].ratios)
    yield f"| suite, {SLOTS} GPUs | unknown | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for row in rows:
        means = {name: f"{statistics.fmean(row.ratios[name]):.3f}" for name in names}
        marks = {name: "**" if mean == min(means.values()) else "" for name, mean in means.items()}
        cells = [f"{marks[name]}{means[name]}{marks[name]} ({nearest_rank(row.ratios[name], 0.95):.3f})"
                 for name in names]
        yield f"| {row.suite} | {row.share:.0%} | " + " | ".join(cells) + " |"


# c. What a plan costs.

class Cost(NamedTuple):
    """CPU seconds of putting tests in order and scheduling them on COST_GPUS GPUs; makespan over bound."""

    tests: int
    seconds: float
    ratio: float


def measure_cost(tests: int) -> Cost:
    """Table c, one line."""
    chance = random.Random(tests)
    rows = [Row(f"t{index}", COST_MEDIAN_S * chance.lognormvariate(0.0, COST_SIGMA),
                chance.choices(COST_WIDTHS, COST_WEIGHTS)[0]) for index in range(tests)]
    suite = make_suite("random", rows, COST_GPUS)
    estimates = learn(suite.tests, suite.seconds)
    start = time.process_time()
    took = makespan(suite.tests, estimates, suite.seconds, COST_GPUS)
    return Cost(tests, time.process_time() - start, took / suite.bound)


def growth(cost: Cost) -> float:
    """CPU seconds per n log2 n: the same for all sizes where a plan costs what sorting does."""
    return cost.seconds / (cost.tests * math.log2(cost.tests))


def cost_lines(rows: Sequence[Cost]) -> Iterator[str]:
    """Table c in Markdown."""
    yield (f"| tests, {COST_GPUS} GPUs | CPU s | µs per test | per n log n, {rows[0].tests:,} tests being 1 "
           "| makespan / bound |")
    yield "|---" * 5 + "|"
    for row in rows:
        yield (f"| {row.tests:,} | {row.seconds:.3f} | {row.seconds / row.tests * 1e6:.1f} "
               f"| {growth(row) / growth(rows[0]):.2f} | {row.ratio:.4f} |")


def broken_cost(rows: Sequence[Cost]) -> Iterator[str]:
    """Where table c is above what is promised."""
    for row in rows:
        if row.tests == COST_TESTS and row.seconds >= COST_LIMIT_S:
            yield f"planning {row.tests:,} tests took {row.seconds:.2f} s of CPU, not below {COST_LIMIT_S:g}"


# What is printed.

def save(path: str, **tables: Sequence[Any]) -> None:
    """All figures as JSON, for comparison with later ones; CPU time in seconds, all else over the bound."""
    data: Dict[str, Any] = {"machine": machine(), "time": time.time()}
    data.update({name: [row._asdict() for row in rows] for name, rows in tables.items()})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def show(title: str, lines: Iterator[str]) -> None:
    """One table below its title."""
    print(f"{title}\n")
    for line in lines:
        print(line)
    print(flush=True)


def parse_options(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="How good and how costly the scheduler is, on a virtual clock.")
    parser.add_argument("--quick", action="store_true", help="fewer seeds for b, and no plan of 100,000 tests")
    parser.add_argument("--json", metavar="FILE", help="all figures go there")
    return parser.parse_args(argv)


def main() -> int:
    """The command line; returns the exit code: 1 if the scheduler is worse than promised."""
    options = parse_options()
    suites = [make_suite(name, rows) for name, rows in read_sets().items()]
    nearness = [measure_nearness(suite, NOISY_SEEDS) for suite in suites]
    show("a. Makespan over the bound", nearness_lines(nearness))
    unknowns = [measure_unknowns(suite, share, QUICK_SEEDS if options.quick else UNKNOWN_SEEDS)
                for suite in suites for share in UNKNOWN_SHARES]
    show("b. Makespan over the bound where durations are unknown, by what such a test counts as",
         unknown_lines(unknowns))
    costs = [measure_cost(size) for size in (QUICK_SIZES if options.quick else COST_SIZES)]
    show("c. What a plan costs", cost_lines(costs))
    print(f"Measured on {machine()}.")
    if options.json:
        save(options.json, nearness=nearness, unknowns=unknowns, costs=costs)
    broken = [*broken_nearness(nearness), *broken_cost(costs)]
    for line in broken:
        print(f"planning.py: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
