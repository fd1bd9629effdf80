#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run_tests.py, and behind its last lines how much memory of a GPU each test has held: what its `mem=` could be.

    python3 qa/measure.py tests.txt        # all options are those of run_tests.py; a script will do, too

While tests run, nvidia-smi is asked every 2 s how much more memory than before the run each GPU holds. Afterwards a
line on stderr tells of each test that passed and had one whole GPU alone: its label, the most that was seen, and that
with 20 % added, as `mem=` takes it. In the place of `mem=` there is `-` where it would leave no room for another test
as large on the smallest GPU, or where no tool says how large that is (`--gpu-memory` does). A test that no look has met
has `-` twice: a look takes place every 2 s. Take `mem=` off a line to measure it.

Copy it next to run_tests.py, or into a folder beside or below it. Exit codes are the runner's.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
try:
    import run_tests
except ImportError:
    print(
        f"measure.py: run_tests.py is neither in {HERE} nor above; copy it, too",
        file=sys.stderr,
    )
    sys.exit(3)
from run_tests import Attempt, Device, Exited, Host, Options, Reaper

LOOK_S = 2.0  # between two looks: each asks nvidia-smi for all GPUs
MARGIN = 1.2  # from a peak that was seen to a `mem=`: the looks may miss the highest


class MeasuringHost(Host):
    """A host as it was found, which looks at its GPUs while tests run."""

    def __init__(self, found: Host, options: Options) -> None:
        vars(self).update(vars(found))
        self.options = options
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.latest: Dict[Device, Attempt] = {}  # what has started last on each GPU
        self.peaks: Dict[Attempt, int] = {}  # MiB of one GPU, of those that a look has met
        self.passed: List[Attempt] = []  # those that had one whole GPU alone

    def open(
        self, run: str, slots: int, kept: Collection[int], post: Callable[[Any], None]
    ) -> None:
        super().open(run, slots, kept, post)
        self.watcher.start()

    def start(self, attempt: Attempt, log: str) -> None:
        self.latest.update(dict.fromkeys(attempt.lease.devices, attempt))
        super().start(attempt, log)

    def run_process(self, attempt: Attempt, log: str) -> Exited:
        """Run one attempt, and keep whether it has passed. Called in its thread. Raises OSError."""
        event = super().run_process(attempt, log)
        result = run_tests.judge(event, attempt, self.options, 0)
        if result.outcome.is_pass() and attempt.test.gpus == 1:
            self.passed.append(attempt)
        return event

    def watch(self) -> None:
        """Until the run is over, note what GPUs hold beyond what they held before it. Called in a thread."""
        while self.health.used and not self.health.over.wait(LOOK_S):
            before = dict(self.latest)
            for device, row in self.health.read([*before]).items():
                attempt = before[device]
                more = self.health.more(device, row)
                # What has started since may have been seen in its place.
                if more is not None and self.latest[device] is attempt:
                    self.peaks[attempt] = max(self.peaks.get(attempt, 0), more)

    def close(self) -> None:
        """The last look ends first: what nvidia-smi has started is none of what tests have left."""
        self.health.over.set()
        self.watcher.join()
        super().close()


def table(
    passed: Sequence[Attempt], peaks: Mapping[Attempt, int], memory: float
) -> Iterator[str]:
    """In list order, label, MiB and `mem=` of these attempts, if the smallest GPU has so many MiB (0: not known)."""
    for attempt in sorted(passed, key=lambda attempt: attempt.test.index):
        seen = mem = "-"
        if attempt in peaks:
            seen = f"{peaks[attempt]} MiB"
        if 0 < peaks.get(attempt, 0) * MARGIN <= memory / 2:
            mem = f"mem={run_tests.show_memory(peaks[attempt] * MARGIN)}"
        yield f"{attempt.test.label}\t{seen}\t{mem}"


def report(host: MeasuringHost) -> Iterator[str]:
    """What is printed behind the runner's own last lines."""
    if not host.health.used:
        yield "measure.py: nothing was seen: nvidia-smi does not say what memory these GPUs hold"
    elif not host.passed:
        yield "measure.py: nothing was seen: no test has passed that had one GPU alone"
    else:
        yield "measure.py: the most memory that each test was seen to hold, and what it could say:"
        yield from table(host.passed, host.peaks, host.options.gpu_memory or host.memory)


def measure(options: Options) -> int:
    """Run a list or a script, and report; returns the runner's exit code. Raises what its run_lists does."""
    hosts: List[MeasuringHost] = []

    def find(options: Options, reaper: Reaper) -> Host:
        hosts.append(MeasuringHost(run_tests.find_host(options, reaper), options))
        return hosts[-1]

    code = run_tests.run_lists(options, find)
    for host in hosts:  # none for `--list`
        for line in report(host):
            run_tests.tell(line)
    return code


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="measure.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="measure.py [option of run_tests.py ...] LIST [LIST ...] | SCRIPT [-- ARGUMENTS]",
        description=__doc__,
    )
    parser.parse_known_args(arguments)  # for --help: all else is the runner's
    return run_tests.exit_code_of(
        lambda: measure(run_tests.parse_command_line(arguments, os.environ))
    )


if __name__ == "__main__":
    run_tests.leave(main())
