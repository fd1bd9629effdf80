#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run_tests.py for tests that share a GPU as its memory allows, by `#: mem=20G`; and what a test's `mem=` could be.

    python3 qa/memory.py tests.txt        # all other options are those of run_tests.py; a script will do, too

A test with `mem=` gets as large a share of a GPU as that is of the memory of the smallest GPU. What that has,
nvidia-smi or pynvml says, or `--gpu-memory`; where nobody does, the test gets a whole GPU, and a line says so. What
needs more than the smallest GPU has does not run, and fails the run.

While tests run, nvidia-smi is asked every 2 s how much more memory than before the run each GPU holds. Afterwards a
line on stderr tells of each test that passed and had one whole GPU alone: its label, the most that was seen, and that
with 20 % added, as `mem=` takes it. In the place of `mem=` there is `-` where it would leave no room for another test
as large on the smallest GPU, or where nobody says how large that is. A test that no look has met has `-` twice: a look
takes place every 2 s. Take `mem=` off a line to measure it.

Copy it next to run_tests.py, or into a folder beside or below it. Exit codes are the runner's.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if not os.path.isfile(os.path.join(HERE, "run_tests.py")):
    sys.path.insert(1, os.path.dirname(HERE))
try:
    import run_tests
except ImportError:
    print(
        f"memory.py: run_tests.py is neither in {HERE} nor above; copy it, too",
        file=sys.stderr,
    )
    sys.exit(3)
from run_tests import SHARES, Attempt, Device, Exited, Host, Options, Reaper, Test

LOOK_S = 2.0  # between two looks: each asks nvidia-smi for all GPUs
MARGIN = 1.2  # from a peak that was seen to a `mem=`: the looks may miss the highest
# The value of `gpus` where no GPU here is as large as `mem=`. Shards and --max-gpus, which must be the same everywhere,
# take it for 1.
TOO_LARGE = 1.5


def show_memory(mib: float) -> str:
    """`20G`, `3.2G`: MiB as `mem=` takes them, never less."""
    return f"{math.ceil(mib / 102.4) / 10:g}G"


def parse_size(text: str) -> float:
    """MiB of a size above 0. Raises BadValue."""
    run_tests.parse_word(".*[1-9].*", "a size above 0, such as 80G", text)
    return run_tests.parse_memory(text)


def least_of(devices: Sequence[Device], sizes: Mapping[str, int]) -> int:
    """The smallest of these devices, by the sizes of tokens; 0 where one is not known."""
    known = [sizes.get(device.token, 0) for device in devices]
    return min(known, default=0)


def smi_least(host: Host) -> int:
    """MiB of the smallest GPU, as nvidia-smi says, which does not know MIG instances; 0 where it does not say it."""
    if len(host.health.used) < len(host.machine.devices):
        return 0
    sizes = {}
    for device, row in host.health.read([*host.health.used]).items():
        found = re.fullmatch(r".*, (\d+)", row)
        if found:
            sizes[device.token] = int(found.group(1))
    return least_of(host.machine.devices, sizes)


def nvml_least(devices: Sequence[Device]) -> int:
    """MiB of the smallest of these GPUs and MIG instances; 0 where NVML does not say it."""
    sizes = {}
    said = re.findall(r"(?m)^(?:GPU (\d+))?.*\(UUID: (.*)\) (\d+) MiB", run_tests.ask_pynvml())
    for index, uuid, mib in said:
        sizes[index] = sizes[uuid] = int(mib)
    return least_of(devices, sizes)


def by_memory(test: Test, memory: float) -> Test:
    """A test with its `mem=` as a share of a GPU with so many MiB (0: not known), unless `gpus=` is a larger one.

    Raises ListError where `gpus=` says that it is no part of one GPU.
    """
    mem = test.attributes.mem
    gpus = test.attributes.gpus
    if mem and gpus is not None and not 0 < gpus <= 1:
        raise run_tests.ListError(
            f"{test.where}: mem= is a part of one GPU, and gpus= asks for another number; take one of them out"
        )
    if not mem or not 0 < test.gpus <= 1:
        return test
    if not memory:
        run_tests.warn_once(
            "no tool says what memory each GPU has: tests with mem= get a whole one; say it by --gpu-memory"
        )
        return test._replace(gpus=1.0)
    if mem > memory:
        return test._replace(gpus=TOO_LARGE)
    shares = int(mem / memory * SHARES) or 1  # down, so that three thirds fit
    return test._replace(gpus=max(shares / SHARES, test.gpus % 1))


class RoomyPool(run_tests.Pool):
    """A pool in which no test runs that is too large for a GPU."""

    def lack(self, test: Test) -> str:
        if test.gpus != TOO_LARGE:
            return super().lack(test)
        return f"needs {show_memory(test.attributes.mem)} of a GPU, more than the smallest has"


class MemoryHost(Host):
    """A host as it was found, whose tests share GPUs by `mem=`, and which looks at its GPUs while tests run.

    `said`: MiB of each GPU, as the user has it; 0: what a tool says counts.
    """

    heeds = ("mem",)

    def __init__(self, found: Host, options: Options, said: float) -> None:
        vars(self).update(vars(found))
        self.options = options
        # MiB of the smallest GPU; 0 where nobody says it of each.
        self.memory = said or smi_least(self) or nvml_least(self.machine.devices)
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.latest: Dict[Device, Attempt] = {}  # what has started last on each GPU
        self.peaks: Dict[Attempt, int] = {}  # MiB of one GPU, of those that a look has met
        self.passed: List[Attempt] = []  # those that had one whole GPU alone

    def fitted(self, test: Test) -> Test:
        return by_memory(test, self.memory)

    def make_pool(self, tests: Sequence[Test], options: Options) -> run_tests.Pool:
        pool = super().make_pool(tests, options)
        return RoomyPool(self.machine.devices, pool.cpus, pool.sequential)

    def open(self, run: str, slots: int, post: Callable[[Any], None]) -> None:
        super().open(run, slots, post)
        self.watcher.start()

    def start(self, attempt: Attempt) -> None:
        self.latest.update(dict.fromkeys(attempt.lease.devices, attempt))
        super().start(attempt)

    def run_process(self, attempt: Attempt) -> Exited:
        """Run one attempt, and keep whether it has passed. Called in its thread. Raises OSError."""
        event = super().run_process(attempt)
        result = run_tests.judge(event, attempt, self.options, 0)
        if result.outcome.is_pass and attempt.test.gpus == 1:
            self.passed.append(attempt)
        return event

    def watch(self) -> None:
        """Until the run is over, note what GPUs hold beyond what they held before it. Called in a thread."""
        while self.health.used and not self.health.over.wait(LOOK_S):
            before = dict(self.latest)
            watched = [device for device in before if device in self.health.used]
            for device, row in self.health.read(watched).items():
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
            mem = f"mem={show_memory(peaks[attempt] * MARGIN)}"
        yield f"{attempt.test.label}\t{seen}\t{mem}"


def report(host: MemoryHost) -> Iterator[str]:
    """What is printed behind the runner's own last lines."""
    if not host.health.used:
        yield "memory.py: nothing was seen: nvidia-smi does not say what memory these GPUs hold"
    elif not host.passed:
        yield "memory.py: nothing was seen: no test has passed that had one GPU alone"
    else:
        yield "memory.py: the most memory that each test was seen to hold, and what it could say:"
        yield from table(host.passed, host.peaks, host.memory)


def run(options: Options, said: float) -> int:
    """Run a list or a script, and report; returns the runner's exit code. Raises what its run_lists does."""
    hosts: List[MemoryHost] = []

    def find(options: Options, reaper: Reaper) -> Host:
        hosts.append(MemoryHost(run_tests.find_host(options, reaper), options, said))
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
        prog="memory.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="memory.py [--gpu-memory SIZE] [option of run_tests.py ...] LIST [LIST ...] | SCRIPT [-- ARGUMENTS]",
        description=__doc__,
    )
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        type=parse_size,
        default=0.0,
        help="of each GPU (80G); default: what nvidia-smi or pynvml says. Give less to leave room for others",
    )
    said, rest = parser.parse_known_args(arguments)

    def start() -> int:
        options = run_tests.parse_command_line(rest, os.environ)
        options = options._replace(command=(sys.argv[0], *arguments))
        return run(options, said.gpu_memory)

    return run_tests.exit_code_of(start)


if __name__ == "__main__":
    run_tests.leave(main())
