#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a list of tests would take on 1 to 32 GPUs, by the runner's own scheduler on a virtual clock. Runs no test.

    python3 qa/plan.py tests.txt                            # expected durations: the journal in ./logs, and `time=`
    python3 qa/plan.py --history nightly.jsonl --gpus 6 tests.txt

It takes the runner's options, and selects tests as the runner would. `--gpus` adds a line to the table; a test with
`mem=` counts for a whole GPU, one with `split=` runs whole. Copy it next to run_tests.py, or into a folder beside or
below it.

Exit codes are the runner's: 2 for a bad list, 5 if nothing is selected.
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple, Union

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if not os.path.isfile(os.path.join(HERE, "run_tests.py")):
    sys.path.insert(1, os.path.dirname(HERE))
try:
    import run_tests
except ImportError:
    print(
        f"plan.py: run_tests.py is neither in {HERE} nor above; copy it, too", file=sys.stderr
    )
    sys.exit(3)
from run_tests import Begin, Exited, Launch, Options, Pool, Schedule, Selection, Test

PLAN_GPUS = (1, 2, 4, 8, 16, 32)


def simulate(
    tests: Sequence[Test], seconds: Mapping[Test, float], pool: Pool, options: Options
) -> List[Tuple[float, Test]]:
    """When each test ends, in that order, if each takes these seconds and passes. `tests` come in starting order."""
    schedule = Schedule(tests, pool, options)
    ended: List[Tuple[float, Test]] = []
    running: List[Tuple[float, int, Test]] = []
    event: Union[Begin, Exited] = Begin()
    at = 0.0
    while True:
        for action in schedule.step(event, at):
            if isinstance(action, Launch):
                test = action.attempt.test
                heapq.heappush(running, (at + seconds[test], test.index, test))
        if not running:
            return ended
        at, _, test = heapq.heappop(running)
        ended.append((at, test))
        event = Exited(at, test, 0)


def assumption(selection: Selection) -> str:
    """What the expected durations of a plan rest on."""
    to_run = selection.selected
    unknown = [test for test in to_run if test not in selection.estimates]
    parts = []
    if len(to_run) > len(unknown):
        parts.append(
            f"{len(to_run) - len(unknown)} known from history (the median of the last {run_tests.PASSES} "
            "passes) or time="
        )
    if unknown:
        taken_for = run_tests.show_duration(selection.estimates.assumed)
        if not selection.estimates.unknown_first:
            taken_for = f"half of the shortest time=, {taken_for},"
        elif parts:
            taken_for = f"the mean of the known, {taken_for},"
        parts.append(f"{len(unknown)} unknown, taken for {taken_for} each")
    return "Expected durations: " + "; ".join(parts)


def plan_line(gpus: int, selection: Selection, options: Options) -> str:
    """The line of the table for a machine with so many GPUs."""
    seconds = selection.estimates
    devices = [run_tests.Device(index, str(index)) for index in range(gpus)]
    pool = run_tests.make_pool(devices, selection.tests, options)
    tests = selection.starting_order(options.order, pool)
    ended = simulate(tests, seconds, pool, options)
    wall, busy, ratio, critical = 0.0, 0.0, 1.0, "none"
    if ended:
        wall, last = ended[-1]
        critical = f"{last.label} ({run_tests.show_duration(seconds[last])}, gpus={last.need})"
    work = sum(run_tests.work_of(test, seconds, gpus) for _, test in ended)
    if wall:
        busy = 100 * work / (gpus * wall)
        ratio = wall / max([work / gpus, *(seconds[test] for _, test in ended)])
    return (
        f"{gpus:5} {run_tests.show_duration(wall):>10} {gpus * wall / 3600:10.2f} {busy:6.1f}% {ratio:9.3f} "
        f"{len(tests) - len(ended):11}  {critical}"
    )


def plan_lines(selection: Selection, options: Options) -> Iterator[str]:
    """The whole table. To bound: wall time over the larger of all work shared out evenly and the longest test."""
    yield from run_tests.account(selection, options)
    yield assumption(selection)
    yield " GPUs  wall time  GPU-hours    busy  to bound  cannot run  critical test"
    sizes = set(PLAN_GPUS)
    if options.gpus.isdigit():
        sizes.add(int(options.gpus))
    elif options.gpus:
        sizes.add(len(options.gpus.strip(",").split(",")))
    for gpus in sorted(sizes - {0}):
        yield plan_line(gpus, selection, options)


def plan(options: Options) -> int:
    """Print the plan; returns the exit code. Raises ListError, UsageError, MachineError."""
    if any(map(run_tests.is_script, options.lists)):
        raise run_tests.UsageError(
            "a script cannot be planned: its tests show only as it runs; put its test commands "
            "into a list"
        )
    run_tests.fill_standard_descriptors()
    reaper = run_tests.Reaper()
    try:
        tests, _ = run_tests.parse_lists(options, reaper.scratch)
    finally:
        reaper.close()
    selection = run_tests.choose(tests, options)
    if not selection.selected:
        run_tests.warn(f"nothing to plan in {', '.join(options.lists)}")
        return run_tests.EXIT_NOTHING
    trace = run_tests.Trace(run_tests.open_stdout())
    for line in plan_lines(selection, options):
        trace.line(line)
    return trace.exit_code(run_tests.EXIT_OK)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    arguments = ["--list", *(sys.argv[1:] if argv is None else argv)]
    parser = argparse.ArgumentParser(
        prog="plan.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="plan.py [option of run_tests.py ...] LIST [LIST ...]",
        description=__doc__,
    )
    parser.parse_known_args(arguments)  # for --help: all else is the runner's
    return run_tests.exit_code_of(
        lambda: plan(run_tests.parse_command_line(arguments, os.environ))
    )


if __name__ == "__main__":
    sys.exit(main())
