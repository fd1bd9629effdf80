#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# run_tests.py. Copyright (c) 2026 The run_tests.py authors. MIT licence, whose notice goes with each copy:
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
# documentation files (the "Software"), to deal in the Software without restriction, including without limitation
# the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and
# to permit persons to whom the Software is furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all copies or substantial portions of
# the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
# THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
# CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
# DEALINGS IN THE SOFTWARE.
#
# This one file is all that runs. A copy's `--version` names it by version and hash; README.md, docs/, tests/ and the
# companions in qa/ are in the project that it was copied from.
"""Run a list of test commands on all the GPUs of a machine, and report as if they had run one by one.

Copy this one file next to a CI script and let it run the script, or a list of the script's test commands:

    python run_tests.py qa/test.sh                 # the script as it is; its `|| test_fail` commands on all GPUs
    python run_tests.py tests.txt                  # one test per GPU; logs, JUnit, `failures` in ./logs
    python run_tests.py --gpus 2 --timeout 30m -   # the list from standard input, on two GPUs

A list is bash, one test per command. Every GPU of the outer mask is a slot; a slot that becomes free takes the
next waiting test at once. With one GPU or none the tests run one after another and print what `bash tests.txt`
would print, unless tests say that they share a GPU.

Exit codes: 0 all passed; 1 a test failed or did not get to run; 2 usage or a bad list; 3 the runner or
the machine failed; 5 nothing selected, or all skipped; 128+N ended by signal N.

The file reads in the order in which data flows:

    1  constants        numbers, and why they are what they are
    2  model            Options, Test, Device, Lease, Result, Outcome
    3  parse            list files to tests; mistakes as `file:line: what, what to do`
    4  select           history; filters, shards, deferral; the order in which tests start
    5  devices          masks and vendor tools to devices; the pool that leases them
    6  schedule         event in, actions out: what starts, what is stopped, what a status means
    7  execute          processes: spawn, wait, signal, sweep; then what a test's JUnit file and log say of its end
    8  record           journal, `failures`, stand-in JUnit files
    9  report           what is printed, and the verdict
   10  command line     options, the run, main
   11  scripts          bash runs a script and hands its tests over: reader, hook, shell, run, trace

The main thread alone decides and prints, but for warnings of what nvidia-smi says. A pool thread waits for its one
child and posts events to one queue; so does the signal handler.
"""

from __future__ import annotations

import argparse
import enum
import errno
import fcntl
import heapq
import importlib
import json
import os
import queue
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from functools import lru_cache, partial
from itertools import chain, count, takewhile, zip_longest
from math import ceil, fsum, inf
from os.path import abspath, basename, dirname, exists, isdir, isfile, normpath, realpath
from shlex import quote
from signal import SIGABRT, SIGINT, SIGKILL, SIGTERM, SIGUSR1
from subprocess import DEVNULL, PIPE, Popen
from time import monotonic, sleep
from typing import (
    Any,
    BinaryIO,
    Callable,
    Collection,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Sequence,
    Set,
    Tuple,
    Union,
)

# ---------------------------------------------------------------------------------------------------
# 1. Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

VERSION = "0.2.0"
PROGRAM = "run_tests.py"
OLDEST_PYTHON = (3, 8)

# So long a new test of a script waits for others, to let the longest start first: bash comes to all that stand next to
# each other within milliseconds.
BATCH_S = 0.05
GRACE_S = 10.0  # from SIGTERM to SIGKILL: enough for pytest to write its JUnit file
FOLLOW_S = 0.05  # between two looks at a growing log: no eye sees a shorter time
# For processes that a test leaves, to end by themselves: some helpers check for their parent once a second.
LINGER_S = 1.5
KILLED_S = 2.0  # a killed process is gone in milliseconds, or is stuck in the kernel
LIVE_S = 0.25  # until the live block is drawn again without news: its clocks count seconds
REDRAW_S = 0.1  # at least, between two drawings of the live block: more is flicker
# After so long without a line a run says that it is alive: CI services end silent jobs.
SILENCE_S = 60.0
SLOW_S = 300.0  # between two announcements of a test that still runs: few take longer
STUCK_S = 30.0  # a shell that SIGKILL does not end by then is given up
SWEEP_POLL_S = 0.02  # between two looks at what a test has left: each look takes milliseconds
# For the stacks of all Pythons of a test: each Python takes milliseconds, unless it is frozen.
STACKS_S = 1.0
CHORES_S = 1.0  # between two looks at ended orphans, at a deleted log dir, at OOM kills
REPORT_S = 10.0  # the last part of `--deadline`, kept for sweeps and reports
# The longest wait for a GPU's memory after a test that has not passed: it comes back within a second.
MEMORY_S = 10.0
# A GPU may hold this much more than before a test: drivers keep some; a CUDA context takes 500 MiB.
MEMORY_MIB = 128
# Without persistence mode nvidia-smi takes seconds; with a hung driver it never answers.
PROBE_S = 30.0
TOOL_POLL_S = 0.25  # between two checks whether the run still wants nvidia-smi's answer
# The longest wait for a locked log dir: the guard of a killed run locks it until it has ended all tests, which took
# 9.5 s where ten processes wanted each core.
LOG_DIR_WAIT_S = 15.0
# If the disk has so much room left when bash has written its state, none of bash's files, all smaller, is torn.
ROOM_BYTES = 1 << 20
COPY_BYTES = 1 << 20  # the buffer through which a log is replayed, so that 1 GB costs no memory
TAIL_BYTES = 8192  # of a log, for a JUnit file: the last error and its traceback
CAUSE_BYTES = 1 << 16  # the end of a failed test's log, in which its cause is looked for
# A torn JUnit file above this size is put aside: reading its cases would take 5 times as much memory.
JUNIT_BYTES = 16 << 20
HISTORY_BYTES = 64 << 20  # the end of a journal: some hundred thousand tests, read in 0.5 s
# A label, and a line of a log that is shown or compared, is cut to this length.
LINE_CHARS = 200
SLOWEST = 5  # tests that the summary names
SHOWN = 10  # names (of tests, processes, labels) that one line of output lists; the others are counted
STEM_BYTES = 120  # of a file name: far below the 255 that file systems allow, suffixes included
ARGUMENT_BYTES = 100_000  # Linux refuses one argument of 128 KiB or more (MAX_ARG_STRLEN)
# The most lines of one command of a list: bash reads the command from its start again at each line.
COMMAND_LINES = 1000
SHARES = 1_000_000  # into which a device is divided: `gpus=` takes six digits after the point
PASSES = 5  # the median of a test's last passes is its expected duration: two bad days do not move it
# The longest test starts so early that it may take this many times its expected duration without prolonging the run.
SLACK = 1.1
LONGEST_S = 1e9  # a pass of thirty years is a torn or foreign record
ASSUMED_S = 60.0  # the expected duration where nothing is known of any test; only ratios matter
# Below the ephemeral ports of Linux, which start at 32768.
PORT_FIRST = 20_000
PORT_BASES = 8_000  # first ports are spread over this many, so that two runners seldom meet
PORT_STEP = 521  # between the first ports of successive process numbers: a prime, and more than there are slots
# The variables in which CI services tell a job which commit it tests.
COMMIT_VARIABLES = (
    "GITHUB_SHA CI_COMMIT_SHA CIRCLE_SHA1 BUILDKITE_COMMIT SEMAPHORE_GIT_SHA "
    "BUILD_SOURCEVERSION GIT_COMMIT"
).split()

RUN_SUFFIX = r" \(run \d+\)$"  # the end of the label of a run by --repeat
RULE = "\u2500" * 56
RED = "31"  # colours of a terminal, as ECMA-48 numbers them
GREEN = "32"
NO_WRAP = "\x1b[?7l"  # lines that are too long are cut off, not broken (DECAWM)
WRAP = "\x1b[?7h"
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_MACHINE = 3
EXIT_NOTHING = 5
EXIT_SIGNAL = 128

# ---------------------------------------------------------------------------------------------------
# 2. Model: frozen values that the sections hand to each other.
# ---------------------------------------------------------------------------------------------------

Words = Tuple[str, ...]
Environ = Mapping[str, str]
ALL_GPUS = inf  # the value of `gpus=all`


class UsageError(Exception):
    """A mistake in the command line or its environment."""

    code = EXIT_USAGE


class ListError(Exception):
    """Mistakes in lists, one `file:line: what, what to do` in each of `args`. Exit code 2."""


class MachineError(Exception):
    """The runner cannot work here: no bash, a log dir that cannot be written."""

    code = EXIT_MACHINE


class BadValue(argparse.ArgumentTypeError, ValueError):
    """A wrong option, attribute or line, with a text that says what is expected. argparse shows that unchanged."""


class Outcome(enum.Enum):
    """How a test ended. Every selected test ends with exactly one (predicates after meson's TestResult)."""

    PASSED = "passed"
    FLAKY = "flaky"
    SKIPPED = "skipped"
    KNOWN = "failed as known"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    UNRUNNABLE = "unrunnable"
    DEFERRED = "deferred"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"

    @property
    def is_pass(self) -> bool:
        """The test passed, so what waits for it may start."""
        return self in (Outcome.PASSED, Outcome.FLAKY)

    @property
    def is_excused(self) -> bool:
        """The test did not pass, and does not fail the run either."""
        return self in (Outcome.SKIPPED, Outcome.KNOWN)

    @property
    def is_failure(self) -> bool:
        """The test counts as failed. With `--flaky fail` a flaky test does, too: see `Options.fails`."""
        return self.can_be_retried or self in (Outcome.BLOCKED, Outcome.UNRUNNABLE)

    @property
    def can_be_retried(self) -> bool:
        """The test ran and did not pass."""
        return self in (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT)

    @property
    def is_unfinished(self) -> bool:
        """The run ended before the test did: the outcome says nothing about the test."""
        return self in (Outcome.INTERRUPTED, Outcome.NOT_RUN)


CALM_PROGRAMS = r"(?:\S*/)?(?:rapids-logger|log|logger|banner)$"  # the default of `--calm`


class Options(NamedTuple):
    """The command line, read once. Durations in seconds, paths as given."""

    lists: Sequence[str]
    command: Sequence[str] = (PROGRAM,)  # the words of the command line, the program first
    gpus: str = ""  # a count or ids, as written
    gpus_per_test: float = 1  # for tests that do not say `gpus`
    jobs: int = 0  # CPU slots for `gpus=0`; 0: as many as GPUs
    python: str = "python3"
    pytest_args: Words = ()
    require_gpus: int = 0  # with fewer GPUs nothing runs
    timeout: float = 0  # 0: no limit
    slow: float = SLOW_S  # how often a test that runs on is announced
    deadline: float = 0  # 0: none
    grace: float = GRACE_S
    retries: int = 0
    retry_on: str = ""  # a pattern: only failures whose cause or log line matches are retried
    flaky: str = "pass"  # or `fail`: what a test that passes on a retry does to the run
    skip_code: int = 0  # the exit code of a test that cannot run here; 0: none
    known_failures: Mapping[str, str] = {}  # why tests are known to fail, by label
    leaks: str = "report"  # or `fail`: whether a test that leaves processes behind fails
    fail_fast: bool = False
    # In scripts, functions whose call behind `||` marks a test.
    handlers: Sequence[str] = ["test_fail"]
    # In scripts, a pattern of commands that are tests; None: those with a handler.
    tests: str | None = None
    calm: str = CALM_PROGRAMS  # in scripts, a pattern of programs that no test waits for
    one_by_one: bool = False  # a script waits for each test
    arguments: Sequence[str] = ()  # of a script
    verbose: bool = False
    log_dir: str = "logs"
    fail_dir: str = ""  # empty: the log dir, and `failures` starts fresh
    journal: str = ""
    junit: str = ""  # the summary of the run
    # Empty: `failures` for a list on a terminal with several slots, else `replay`.
    output: str = ""
    color: str = "auto"
    list: bool = False  # print the tests, run none
    history: Sequence[str] = ()  # more journals to learn durations from
    order: str = "auto"
    keep: Callable[[Test], bool] | None = None  # of `-k`: whether it selects a test
    rerun_failed: bool = False
    repeat: int = 1
    only: LabelFile | None = None
    message: Words = ()  # of a commit: the words of all `[ci WORDS]` in it, case folded
    max_gpus: int = 0  # 0: no limit
    shard: str = ""  # `2/4`: part 2, from 1, of 4 parts of the tests

    @property
    def failures_path(self) -> str:
        """The file that names the tests which failed."""
        return f"{self.fail_dir or self.log_dir}/failures"

    @property
    def journal_path(self) -> str:
        """The run's own journal."""
        return self.journal or f"{self.log_dir}/run_tests.jsonl"

    @property
    def deferred_path(self) -> str:
        """The file in which the run names deferred tests; empty if no option defers any, or `--only` reads it."""
        path = f"{self.log_dir}/deferred.txt"
        if (self.only or self.max_gpus) and not self.reads(path):
            return path
        return ""

    def fails(self, outcome: Outcome) -> bool:
        """Whether a test with this outcome is reported as failed, and named in `failures`."""
        return outcome.is_failure or (outcome is Outcome.FLAKY and self.flaky == "fail")

    def reads(self, path: str) -> bool:
        """Whether this path is the file of `--only`, which the run must not clear when it starts."""
        only = self.only
        return only is not None and realpath(only.path) == realpath(path)

    def looks_like_test(self, text: str) -> bool:
        """Whether the words of a script's command look like a test."""
        pattern = self.tests or LOOKS_LIKE_TEST
        return re.match(f"{PREFIXES}(?:{pattern})", text) is not None

    def accepts(self, outcome: Outcome) -> bool:
        """Whether a run with a test that ends so may pass."""
        return not (outcome.is_unfinished or self.fails(outcome))


class LabelFile(NamedTuple):
    """The lines of a file of `--only`: labels, and comments `# label`, which name tests that the file leaves out."""

    path: str
    labels: FrozenSet[str]

    def new_tests(self, tests: Tests) -> Tests:
        """The tests that are new to the file: neither a label nor a comment in it names them.

        There are none if no comment is the label of a test: then the file does not say what it leaves out.
        """
        left_out = {label[2:] for label in self.labels if label.startswith("# ")}
        if not any(test.origin in left_out for test in tests):
            return []
        known = self.labels | left_out
        return [test for test in tests if test.origin not in known]


class Attributes(NamedTuple):
    """What `#: key=value` says of a test. None or empty: not said."""

    gpus: float | None = None  # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: float | None = None  # seconds
    retries: int | None = None
    label: str = ""
    time: float | None = None  # expected seconds
    lock: Words = ()
    after: Words = ()  # labels
    tags: Words = ()
    mem: float = 0.0  # MiB of one GPU; this and what follows is for companions
    split: str = ""  # a number of parts, or `auto`
    after_crash: str = ""  # `go-on`
    nodes: int = 0  # of a cluster


class Snapshot(NamedTuple):
    """The state of a shell at one place of a list or script, from which a test starts."""

    directory: str
    # What is exported; by default the runner's own.
    environment: Mapping[bytes, bytes] = os.environb
    prelude: str = ""  # a file of bash that sets all else; empty: there is nothing else

    def __repr__(self) -> str:
        """Without the environment, in which there may be secrets: an internal error may name a test."""
        return f"Snapshot({self.directory!r})"


class Job(NamedTuple):
    """A process to be started: the shell of one attempt or of a script, or a program to which a script has come."""

    bash: str  # path: looking it up for every test would cost more than starting it
    words: Sequence[str]  # of its call, the name of the program first
    environment: Mapping[bytes, bytes] | None = None  # None: ours, which costs Popen least
    directory: str | None = None  # None: ours
    stdin: str = ""  # path of its standard input; `-`: the runner's own; empty: nothing to read
    errors: str = ""  # path of a log for standard error alone; empty: standard output's
    umask: int = -1  # -1: ours


class Test(NamedTuple):
    """One test, ready to run. No two have the same index, by which they are sorted."""

    index: int  # type: ignore[assignment]  # position in the run, from 0
    key: str  # hash of command and environment prefix: what journals know it by
    label: str  # unique in the run
    stem: str  # its log is `<log dir>/<stem>.log`
    file: str
    line: int
    command: str  # bash
    shell: Snapshot
    preface: bytes  # output of the shell state between the test above and this one: its log begins with that
    attributes: Attributes
    barrier: int  # number of `wait` lines above it
    gpus: float  # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: float  # seconds; 0: no limit
    junit: str  # absolute path of the JUnit file that it writes; empty: none
    # One by one, too, a failure prints `Error: sub-test failed`, as `test_fail` would; beside others all failures do.
    announces: bool
    # It is pytest: if it leaves no good JUnit file, it has died, whatever its status.
    is_pytest: bool = False
    origin: str = ""  # its label without the ` (run 2)` of --repeat
    # Of a script's test: it starts without bash, in the environment and folder of `shell`. None: bash runs `command`.
    program: Job | None = None
    splits: bool = False  # its standard error goes to a file of its own, `<log>.err`

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """A hash of list, key and label, the same for all lines with the same command (`label`, `label #2`)."""
        return name_of(self.file, self.key, self.origin)

    @property
    def label_and_tags(self) -> str:
        """The label and the tags, case folded: `-k` and `--message` ask for parts of them."""
        return "\0".join((self.origin, *self.attributes.tags)).casefold()

    @property
    def need(self) -> int | float | str:
        """How many GPUs it takes, as JSON and lists can say it."""
        if self.gpus == ALL_GPUS:
            return "all"
        if self.gpus % 1:
            return self.gpus
        return int(self.gpus)


# A tuple's own hash goes through all its values.
Test.__hash__ = object.__hash__  # type: ignore[method-assign]

Tests = Sequence[Test]
Seconds = Mapping[Test, float]  # by test, those that it takes


class Device(NamedTuple):
    """One GPU, or one MIG instance: its place in device order and its token in the mask."""

    index: int  # type: ignore[assignment]  # the name of a method of tuples
    token: str


class Lease(NamedTuple):
    """What a running attempt holds: `shares` of each of its devices (none: it runs on the CPU) and a slot from 0."""

    devices: Tuple[Device, ...]
    slot: int
    shares: int = SHARES

    @property
    def tokens(self) -> List[str]:
        """The mask of the attempt. The one place of a machine without GPUs has no token."""
        return [device.token for device in self.devices if device.token]

    @property
    def place(self) -> str:
        """`GPU 0,1` or `CPU`, as the markers say it."""
        if not self.tokens:
            return "CPU"
        return f"GPU {','.join(self.tokens)}"


class Blame(enum.Enum):
    """Whose failure a cause is."""

    TEST = "test"
    DEVICE = "device"  # the GPU is broken; the test is to run on another
    MACHINE = "machine"  # if it shows on every GPU, no test can pass


class Cause(NamedTuple):
    """Why a test failed, in words that are the same for the same cause."""

    text: str = ""
    blame: Blame = Blame.TEST
    line: str = ""  # of the log, as it stands there, but for a PYTHON_DEATH


NO_CAUSE = Cause()


class Result(NamedTuple):
    """How an attempt ended. `status` is the exit status, or -N for a death by signal N, as in subprocess."""

    test: Test
    outcome: Outcome
    seconds: float = 0.0
    status: int | None = None  # None: it has not run
    lease: Lease = Lease((), 0)
    attempt: int = 1
    reason: str = ""  # why, where the outcome alone does not say it
    junit_fault: str = ""  # why its JUnit file cannot be used as it is, if it cannot
    cause: Cause = NO_CAUSE
    leaked: Words = ()  # processes that it left, `python3 (pid 12)`
    memory: float = 0.0  # seconds that its GPUs took to give their memory back

    @property
    def has_run(self) -> bool:
        return self.status is not None

    @property
    def why(self) -> str:
        """Why it has not passed: the line of its log that says it, if there is one."""
        return self.cause.line or self.reason or self.cause.text or self.verdict

    @property
    def told(self) -> str:
        """`failed, exit 1: assert 2 == 3`: how it ended, and why."""
        if self.why in self.verdict:
            return self.verdict
        return f"{self.verdict}: {self.why}"

    @property
    def verdict(self) -> str:
        """`failed, exit 1`, `crashed (SIGSEGV)`, `passed`: what the markers and the summary say."""
        why = self.reason and f", {self.reason}"
        if self.outcome is Outcome.CRASHED:
            return f"crashed ({death_of(self.status)}{why})"
        if self.outcome is Outcome.FAILED or self.outcome.is_excused:
            status = f", exit {self.status}" * self.has_run
            return f"{self.outcome.value}{status}{why}"
        return self.outcome.value

    @property
    def gpu_indices(self) -> FrozenSet[int]:
        """The indices of the devices that the attempt had; none if it ran on the CPU."""
        return frozenset(device.index for device in self.lease.devices if device.token)


Results = Sequence[Result]
Attempts = Collection[Results]  # the attempts of each test; tests are in list order


def results_of(attempts: Attempts) -> Results:
    """How each test has ended."""
    return [ends[-1] for ends in attempts]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 test`, `2 tests`."""
    if count == 1:
        return f"1 {one}"
    return f"{count} {many or one + 's'}"


def count_leaks(leaked: Words) -> str:
    """`leaked: 2 processes`."""
    return f"leaked: {counted(len(leaked), 'process', 'processes')}"


def to_bytes(text: str) -> bytes:
    """Text of a list as the bytes that it was read from."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """Bytes as text from which `to_bytes` makes the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def shell_status(status: int) -> int:
    """An exit status as `$?` has it: 128+N for a death by signal N."""
    if status < 0:
        return EXIT_SIGNAL - status
    return status


def death_of(status: int | None) -> str:
    """The signal that a process died of (`SIGSEGV`), else empty: its status is -N, or 128+N if a shell passes it on."""
    if not status:
        return ""
    number = shell_status(status) - EXIT_SIGNAL
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}" * (status < 0)


@lru_cache(maxsize=None)
def hash_function() -> Callable[[bytes], Any]:
    """SHA-256. hashlib loads OpenSSL, which takes 10 ms; CPython's own module does not (as `random` uses it)."""
    for name in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return importlib.import_module(name).sha256
    raise MachineError("this Python has no SHA-256; name another interpreter")


def name_of(file: str, key: str, origin: str) -> str:
    """A test's name in a journal's `run_start`: a hash of list, key and label, without the ` #2` of the label."""
    return key_of([normpath(file), key, re.sub(r" #\d+$", "", origin)])


def key_of(words: Iterable[str]) -> str:
    """12 hex digits of a hash of words. The key of a test is that of its environment prefix and command."""
    return hash_function()(to_bytes(" ".join(words))).hexdigest()[:12]


# ---------------------------------------------------------------------------------------------------
# 3. Parse: list files to tests. Bash says where a command ends and what its words are worth.
# ---------------------------------------------------------------------------------------------------


def names_in(words: str) -> FrozenSet[str]:
    """The words of a text, as a set."""
    return frozenset(words.split())


STATE_WORDS = names_in(
    "export unset : cd source . set shift shopt ulimit umask declare typeset readonly alias unalias pushd popd "
    "mapfile readarray"
)
# Checks that may guard state words: `[ -d build ] || exit 1; cd build || { echo no; exit 1; }` is state.
CHECKS = names_in("[ [[ (( test false read")
ENDS = names_in("exit return")
PRINTS = names_in("echo printf")
# Commands that may stand beside state words in a line of shell state.
BESIDE_STATE = CHECKS | ENDS | PRINTS | names_in("true mkdir getopts")
LOOKUP = r"(?:command\s+-[vV]|type|hash|which)\s"
WAIVED = r"\|\|(?:true|:)$"  # operator and command: the failure before them is waived
# Commands that always end with status 0, so that `test || echo no` always passes.
INFALLIBLE = PRINTS | names_in(
    ": true export local declare typeset readonly unset let set shopt break continue trap disown hash jobs dirs times"
)
# Programs that do small work around a test: if one of them fails, no test has failed.
UTILITIES = names_in(
    "awk basename cat cp cut date df dirname du expr free head hostname id kill ln ls mkdir mv nproc nvidia-smi ps pwd "
    "rm sed seq sleep sort sync tail tee touch tput tr uname wait wc yes"
)
# State words in a function whose effect is lost if the function's call is a test.
EXPORTING = names_in("export source .")
# Commands behind which files may lie elsewhere, and programs whose own command runs elsewhere.
ELSEWHERE = STATE_WORDS | names_in("read eval docker podman ssh apptainer singularity kubectl")
# Names of commands that are no program to be tested; the empty one is that of assignments alone.
NO_PROGRAMS = BESIDE_STATE | STATE_WORDS | INFALLIBLE | UTILITIES | {""}
# An operator and a command that are taken to pass on the failure before them, as `|| exit 1` and `; exit` do, but not
# `|| exit 256`: that is 0 to bash.
PASSES_FAILURE_ON = r"\|\|(?!(?:exit|return)\s+(?:0|256\b))|;(?:exit|return)(?!\s+(?:0|256\b))"
# A `find` that does not tell how the program ends which it runs by `-exec … ;` (by `-exec … +` it does).
FINDS_ALONE = (
    rf"(?s)(?:^|[ /])find .*-exec(?:dir)? (?!(?:chmod|{'|'.join(UTILITIES)}) )"
    r".*(?:\\;|';'|\";\")"
)
# A command that repeats the status of the one before it.
REPEATS_STATUS = r"(?:exit|return)(?: \"?\$\{?\?\}?\"?)?$"
# A command, perhaps behind an operator, whose status may depend on all commands before it, as `[ $RET = 0 ]`,
# `exit $RET`, `case $? in …`; or that always fails, so that no failure before it is hidden: `;exit 1`.
LOOKS_BACK = (
    r"[;&|]*(?:(?:! )?(?:\[|\(\(|(?:test|case)\s)|false$|\(?(?:exit|return) \"?\$(?:\{|\(\([\s!(]*)?\w)"
    r"|;(?:(?:exit|return) (?!256\b)[1-9]\d*|false)(?!\S)"
)
# Commands in front of another one.
PREFIXES = (
    r"(?:(?:command|exec|nohup|(?:nice|numactl|setsid|stdbuf|taskset|time|xvfb-run)(?: [-\d]\S*)*|env"
    r"(?: -u ?\S+| -(?!u)\S+)*(?: (?:\w+=|\$)\S*)*|timeout(?: -(?:[ks]|-signal|-kill-after)[ =]?\S+| -(?![ks])\S+)*"
    r" [^\s-]\S*|srun(?: -[ACGJNTcmnptwx] ?\S+| -(?![ACGJNTcmnptwx])\S+)*|(?:uv|(?:\S*python[\d.]* -m )?coverage"
    r"|poetry) run(?: [-$]\S+| --?(?:con|data|dir|env|extra|group|in|om|only|p|rc|so|with)[\w-]* [^\s$-]\S*)*) )*"
)
# Not the name of a program that stands among tests but prepares them or evaluates their results.
NO_TEST = (
    r"(?!\S*(?:build|clean|creat|download|generat(?!ion)|install|(?<![a-z])make|prepar|server|setup|start_"
    r"|aggregat|compare|merge_|report|summar|verify_)[^/\s]*(?: |$))"
)
# A program that runs tests, or a file whose path says test, behind the interpreter that runs it.
TEST_FILE = (
    rf"(?!-|\w+=)(?:\S*/)?(?:g?tests?/{NO_TEST}\S|test_\S|test\d+\.|{NO_TEST}"
    r"(?:(?:run|smoke)_test|\S*_pytest_|(?:\S*[_/-])?(?:py|c|nose|unit)?tests?(?:\.\w+)?(?: |$)"
    r"|(?<=/)\S*[a-z]Tests?(?: |$)))"
)
MODULE = r"-m (?:pytest|unittest|torch\.distributed\.(?:run|launch)|[\w.]*\btest_\w+)(?: |$)"
LOOKS_LIKE_TEST = (
    r"(?:(?:\S*/)?(?:pytest|py\.test|ctest|torchrun|mpirun|mpiexec)|\$\{?(?:PYTEST|TORCHRUN|MPIRUN)\}?)(?: |$)"
    rf"|(?:\S*/)?(?:python[\d.]*|\$\{{?(?:PY|py)\S*|bash|sh) (?:(?:.* )?{MODULE}"
    r"|(?:-[XWO] ?\S+ |-(?!m)\S+ )*(?:(?<=c )(?!import (?:[\w., ]|; import )+$)(?:.* )?"
    rf"|-m (?:torch|coverage)\S* (?:.* )?)?{TEST_FILE})"
    rf"|(?:deepspeed|accelerate) (?:.* )?(?:{MODULE}|{TEST_FILE})|(?:\S+ )?{MODULE}|(?!test ){TEST_FILE}"
)
# A command that most likely runs tests: if its failure is lost, the user is told.
RUNS_TESTS = (
    r"(?:\S*/)?(?:python[\d.]*(?! -[cV]| --version| -m (?:pip|venv|build)\b)|(?:ba)?sh(?! -c)"
    r"|pytest|torchrun|mpirun|mpiexec|ctest)(?= |$)|\./|[\"']?\$"
)
# One call of pytest on this machine, with no command behind it that could move its JUnit file.
PYTEST = (
    rf"(?!(?s:.*)(?:&&|;|\bsrun |--directory|--chdir|\|\|(?! *(?:exit|return|false)\b))){PREFIXES}[\"']?(?:\S*/)?"
    r"(?:(?:python[\d.]*|\$\S+)[\"']? (?:-[XW] ?\S+ |-(?![XW])\S+ )*-m )?(?:pytest|py\.test)[\"']?\s"
)
# Words by which a command seems to use several GPUs; a group has their number, if they tell it.
SEVERAL_GPUS = (
    r"(?i)(?:nproc[-_]per[-_]node|\bn(?:um)?[-_]?gpus|gpus[-_]per[-_]node|accelerate\b(?:.|\\\n)* --num_processes)[= ]"
    r"(?:(\d+)|gpu|auto)"
    r"|\bmpi(?:run|exec)\b(?:.|\\\n)*? -n?p? ?(\d+)|(?<!not[ _])(?:distributed|(?<![a-z])m(?:ulti)?[-_]?gpu)"
)
# An assignment to a device mask.
MASK = r"((CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK)(\[[^]]*\])?\+?="
# The same, but not `M=$M`.
PINS = rf'{MASK}(?!"?\$\{{?\1\}}?"?$)'
BASH_IS_IDLE = "bash runs no commands here; look at SHELLOPTS and BASH_ENV in the environment"
WINDOWS = "Windows line ends; fix them with `sed -i 's/\\r$//'`"
# Keys of `#:` on which only companions act.
COMPANION_KEYS = "mem split after-crash nodes".split()

SUBSHELL = r"(?:\$\((?!\()|[<>]\()"
RUNS_INSIDE = rf"{SUBSHELL}|`"  # words that run commands
# Operators in `((…))` that change a variable.
CHANGES_IN_SUM = r"\+\+|--|<<=|>>=|(?<![=!<>])=(?!=)"
ASSIGNMENT = r"(?a:([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=)"
# Commands that set variables by their words; the empty name is that of assignments alone.
ASSIGNING = names_in("export declare typeset readonly read let mapfile readarray") | {""}
NAME = r"(?a:[A-Za-z_]\w*)"
# How a command asks for a variable.
READS_VARIABLE = rf"(?:(?<!\\)\$\{{?[#!]?|\[ (?:! )?-v |\(\([\s!]*)({NAME})"
# How a command sets a variable (see `spelled`).
SETS_VARIABLE = (
    rf"(?:(?<![\w\"$-])(?={NAME}(?:\[[^]]*\])?(?:\+\+|--|\s?[-+*:]?=(?!=)))"
    rf"|(?m:^| )(?:for|select|read|mapfile|readarray|local)(?: -\S+)* )({NAME})"
)
# Pieces that bash does not expand, and pieces in double quotes, which it does: the latter are in a group, to be kept.
NOT_EXPANDED = r"""(?s)\\.|'[^']*'|("(?:[^"\\]|\\.)*")"""
# Variables of bash's own, which have another value each time, or none that is the list's.
CHANGING = r"(?:S?RANDOM|SECONDS|EPOCH\w+|BASH\w*|PPID|LINENO)\b"
# A part of a file's name that changes each time, or that only the test's own shell can expand.
PASSING_NAME = rf"\$\$|\$\{{?(?:{CHANGING}|RUN_TESTS_|\w+_VISIBLE_DEVICES)|[(`].*\b(?:date|mktemp|uuidgen)\b"
# A test that measures coverage: at its end it takes all that `.coverage` and `.coverage.*` in its folder have.
COVERS = (
    r"(?s)(?!.*\bCOVERAGE_FILE=)(?:.*[ /])?"
    r"(?:py\.?test .*--cov(?:-append)?(?:[= ]|$)|coverage run (?!(?:(?!-m )-\S+ (?:[^\s-]\S* )??)*-(?:p |-par)))"
)
# What prepares for other tests, rather than being one.
PREPARES = (
    r"(pip3?|(?:conda|mamba)(?! run)|apt(-get)?|yum|dnf|module|exit|trap|eval|\S*python[\d.]* -m pip|mkdir"
    r"|git clone|wget|cmake)([\s;]|$)"
)
CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+"

# Words. The text is known to be whole, since bash has read it.
# Escaped and quoted pieces, in which nothing nests.
FLAT = r"""(?s)\\.?|'[^']*'|\$'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`"""
# All pieces of a word. A bracket is one where it opens an array, A=(1 2), or a pattern, !(a|b).
WORD_PIECE = FLAT + r"""|[^ \t\n;&|()<>'"\\$`]+|\$\(|\$\{|[<>]\(|\$?"|\$|(?<=[=!@?*+])\("""
# What matters for the end of a `(`, a `{` or a `case`; QUOTED: for that of a double quote.
NESTED = (
    FLAT + r"""|[$<>]\(|\$\{|["(){}]|(?<![^\s;&|()])\#[^\n]*|\bcase\s[^\n;]*?\sin\b|\besac\b"""
)
QUOTED = r"""(?s)\\.|`(?:[^`\\]|\\.)*`|\$\(|\$\{|["}]"""
# Pieces that begin a nest; CLOSING turns the last character of such a piece into the character that ends the nest.
NESTS = names_in('$( <( >( ( ${ " $"')
CLOSING = str.maketrans("({", ")}")
# What stands between words.
NO_WORD = (
    r"(?P<blank>(?:[ \t]|\\\n)+)|(?P<comment>#[^\n]*)|(?P<operator>\|\||&&|;;&?|;&|\|&|&>>?|\([ \t]*\)"
    r"|(?:\d+|\{\w+\})?(?:<<<|<<-?|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|[;|()&\n])"
)
PIPES = ("|", "|&")
SEPARATORS = names_in("; && || & | |&") | {"\n"}
LOOPS = names_in("while until for select")
COMPOUNDS = names_in("if while until for select case { (")
# The words that end the head of a compound command.
HEADS: Mapping[str, str] = {"for": "do {", "select": "do {", "case": "in"}
# The words that end a compound command, and those that end a list of commands: only where a command may begin.
CLOSERS = names_in("fi done } ) esac")
LIST_CLOSERS = CLOSERS | names_in("then elif else do ;; ;& ;;& ()")
# What no word of a simple command is.
STOPS = SEPARATORS | names_in(";; ;& ;;& ( ) ()") | {""}


class Token(NamedTuple):
    """A piece of a command. `start` and `end` are offsets in its text."""

    # `word`, `operator`, `comment`, `end`, or `document`: all here-documents behind one newline.
    kind: str
    text: str
    start: int
    end: int


Tokens = List[Token]


def end_of_nest(text: str, at: int, closer: str, pattern: str = NESTED) -> int:
    """The offset behind the `)`, `}`, `"` or `esac` that ends what has begun just before `at`.

    An empty closer asks for the end of the word that begins at `at`.
    """
    if closer == '"':
        pattern = QUOTED
    find = re.compile(pattern).search
    if not closer:
        find = re.compile(WORD_PIECE).match
    while True:
        found = find(text, at)
        if not found:
            return len(text) if closer else at
        piece = found.group()
        at = found.end()
        if piece == closer:
            return at
        if piece in NESTS and (piece != "(" or closer in ("", ")")):
            at = end_of_nest(
                text, at, piece[-1].translate(CLOSING), pattern if piece == "${" else NESTED
            )
        elif closer in (")", "esac") and piece.startswith("case"):
            at = end_of_nest(text, at, "esac")  # a `)` ends a pattern there
        elif closer == "}" and piece.startswith("#"):
            at = found.start() + 1  # no comment but an operator: ${path/ #/}


def read_tokens(text: str) -> Tokens:
    """The words, operators, comments and here-documents of commands. `(( … ))` is a word."""
    tokens: Tokens = []
    documents = []  # patterns of the last lines of the here-documents behind the next newline
    at = 0
    while at < len(text):
        start = at
        kind = "word"
        found = re.compile(NO_WORD).match(text, at)
        close = text.startswith("((", at) and end_of_nest(text, at + 1, ")")
        if close and text[close - 2] == ")":
            at = close
        elif found:
            kind = str(found.lastgroup)
            at = found.end()
        else:
            at = max(end_of_nest(text, at, ""), at + 1)
            if tokens and re.fullmatch(r"(?:\d*|\{\w+\})<<-?", tokens[-1].text):
                indent = r"\t*" * tokens[-1].text.endswith("-")
                documents.append(indent + re.escape(unquoted(text[start:at])))
        if kind != "blank":
            tokens.append(Token(kind, text[start:at], start, at))
        if text[start] == "\n" and documents:
            for last in documents:
                at = next(re.compile(rf"(?m)^{last}$\n?|\Z").finditer(text, at)).end()
            tokens.append(Token("document", text[start + 1 : at], start + 1, at))
            documents.clear()
    return tokens


class Node:
    """A command: a simple one, or a compound one with lists of commands inside.

    `kind` is empty for a simple command, else the word that opens it: `if`, `for`, `{`, `(`, `function` and so on.
    """

    kind = text = after = ""  # `after`: the operator behind it
    lead = ""  # `!` or `time`
    check = ""  # `if`, `while` or `until`, in whose condition it stands
    name = ""  # of a simple command, its first word; empty for assignments alone
    start = end = 0  # offsets

    def __init__(self, before: str) -> None:
        self.before = before  # the operator in front of it
        self.assigned: List[str] = []  # leading assignments
        self.words: List[str] = []  # other words; of a compound command those of its head
        self.redirects: List[Tuple[str, str]] = []  # operators and their words
        self.conditions: List[Nodes] = []  # of `if`, `while`, `until`
        self.bodies: List[Nodes] = []

    @property
    def parts(self) -> List[Node]:
        """The commands right inside a compound one."""
        return list(chain(*self.conditions, *self.bodies))

    @property
    def head(self) -> str:
        """The words of a simple command, or of the head of a `for` or `case`."""
        return " ".join(self.words)

    @property
    def all_words(self) -> List[str]:
        """The words of a simple command with its assignments, without redirections, as BASH_COMMAND has them."""
        words = self.assigned + self.words
        return [word.replace("\\\n", "").replace("$'", "'") for word in words]

    @property
    def looks_up(self) -> bool:
        """Whether it only looks up whether a program exists, as `command -v` does."""
        return re.match(LOOKUP, f"{self.head} ") is not None

    def has(self, pattern: str) -> bool:
        """Whether what a pattern describes stands in its text."""
        return re.search(pattern, self.text) is not None


Nodes = Sequence[Node]
Functions = Mapping[str, Nodes]  # their bodies


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """Commands and all that are in them, but for the bodies of functions."""
    for node in nodes:
        yield node
        if node.kind != "function":
            yield from walk(node.parts)


class Reader:
    """Parses commands into Nodes. In a script, bash may be unable to read the text: then the Nodes may be wrong."""

    at = 0  # the place of the next token

    def __init__(self, text: str) -> None:
        tokens = read_tokens(text)
        self.text = text
        self.comments = [token for token in tokens if token.kind == "comment"]
        self.documents = [token for token in tokens if token.kind == "document"]
        self.tokens = [token for token in tokens if token.kind in ("word", "operator")]
        self.tokens += [Token("end", "", len(text), len(text))] * 2
        self.nodes = self.read_list()
        while self.next:  # behind a word that closes nothing
            self.at += 1
            self.nodes += self.read_list()

    @property
    def next(self) -> str:
        """The text of the next token; empty at the end."""
        return self.tokens[self.at].text

    def take(self) -> str:
        """Returns the text of the next token and moves behind it, unless it is the end."""
        text = self.next
        self.at += text != ""
        return text

    def skip(self, *texts: str) -> bool:
        """Moves behind the next tokens while they are among these; returns whether there were any."""
        start = self.at
        while self.next in texts:
            self.at += 1
        return self.at > start

    def read_list(self) -> List[Node]:
        """The commands up to a word that closes their list."""
        nodes = []
        before = ";"
        while self.next and self.next not in LIST_CLOSERS:
            if self.next not in SEPARATORS:
                nodes.append(self.read_command(before))
                before = ";"
                continue
            separator = self.take()
            if nodes and not nodes[-1].after:
                nodes[-1].after = separator
            if separator != "\n":  # a newline behind `&&` means nothing
                before = separator
        return nodes

    def read_command(self, before: str) -> Node:
        """The simple or compound command, or the function, that comes next."""
        node = Node(before)
        node.start = self.tokens[self.at].start
        while self.next in ("!", "time"):
            node.lead = self.take()
            self.skip("-p")  # of `time`
        if self.skip("function") or self.tokens[self.at + 1].text == "()":
            node.kind = "function"
            node.words = [self.take()]
            self.skip("()", "\n")
            node.bodies = [[self.read_command(";")]]
        elif self.next in COMPOUNDS:
            self.read_compound(node)
        self.read_words(node)
        node.end = self.tokens[self.at - 1].end
        node.text = self.text[node.start : node.end]
        if node.words and not node.kind:
            node.name = re.sub(r"(?s)^\(\(.*", "((", unquoted(node.words[0]))
        return node

    def read_compound(self, node: Node) -> None:
        """A compound command, from the word that opens it to the one that closes it."""
        node.kind = self.take()
        if node.kind in HEADS:
            while self.next and self.next not in HEADS[node.kind].split():
                if not self.skip(*SEPARATORS):
                    node.words.append(self.take())
            self.take()
        closer = ""
        while self.next and closer not in CLOSERS:
            if node.kind == "case":  # a pattern, up to its bracket
                while self.next not in (")", "esac", ""):
                    self.at += 1
                self.skip(")")
            nodes = self.read_list()
            closer = self.take()
            if closer in ("then", "do"):
                node.conditions.append(nodes)
                for each in walk(nodes):
                    each.check = node.kind
            else:
                node.bodies.append(nodes)

    def read_words(self, node: Node) -> None:
        """The words and redirections of a simple command, or the redirections behind a compound one."""
        while self.next not in STOPS:
            is_operator = self.tokens[self.at].kind == "operator"
            if node.kind and not is_operator:
                break
            text = self.take()
            if is_operator:
                node.redirects.append((text, self.take()))
            elif not node.words and re.match(ASSIGNMENT, text):
                node.assigned.append(text)
            else:
                node.words.append(text)
                while text == "[[" and self.next and node.words[-1] != "]]":
                    node.words.append(self.take())


def unquoted(word: str) -> str:
    """A bash word without its quotes and with nothing expanded; as written where it is not that simple."""
    if re.fullmatch(r"[\w@%+=:,./-]+", word):  # as most are: shlex takes its time
        return word
    try:
        return " ".join(shlex.split(word))
    except ValueError:
        return word


def substituted_commands(text: str) -> Iterator[Node]:
    """The commands in all `$(…)`, `<(…)` and `>(…)` of some bash, and between backticks."""
    texts = re.findall("`([^`]*)`", text)
    for found in re.finditer(SUBSHELL, text):
        texts.append(text[found.end() : end_of_nest(text, found.end(), ")")])
    for inner in texts:
        yield from Reader(inner).nodes


def statements_of(
    nodes: Nodes, joints: Collection[str] = ("&&", "||", *PIPES)
) -> List[List[Node]]:
    """Splits commands into statements: between two of them stands an operator that is not in `joints`."""
    statements: List[List[Node]] = []
    for node in nodes:
        if node.before not in joints or not statements:
            statements.append([])
        statements[-1].append(node)
    return statements


# What a command is, by its words.


def is_forked(node: Node) -> bool:
    """Whether bash runs a command in another process: a subshell, in the background, or as part of a pipeline."""
    return node.kind == "(" or node.before in PIPES or node.after in ("&", *PIPES)


def is_state(nodes: Nodes) -> bool:
    """Whether a command only changes the shell: state words, assignments, functions, and what guards them."""
    changes = False
    for node in walk(nodes):
        assigns = node.assigned and not node.words
        is_beside = node.kind or node.name in BESIDE_STATE or node.looks_up
        if assigns or node.kind == "function" or node.name in STATE_WORDS:
            changes = True
        elif not is_beside:
            return False  # a program, or `> file` alone
        if is_forked(node):
            return False
    for node in nodes:
        if node.name in PRINTS or (node.name in ENDS and node.before == ";"):
            return False
    return changes and not ends_in_check(nodes)


def ends_in_check(nodes: Nodes) -> bool:
    """Whether the last thing that a command does is to look: `export A=1; test -e F`."""
    if not nodes or nodes[-1].kind == "function":
        return False
    last = nodes[-1]
    return last.name in CHECKS or last.looks_up or any(map(ends_in_check, last.bodies))


def functions_in(nodes: Iterable[Node]) -> Dict[str, Nodes]:
    """The functions that commands define."""
    return {node.words[0]: node.parts for node in walk(nodes) if node.kind == "function"}


def reached(nodes: Iterable[Node], functions: Functions) -> List[Node]:
    """All commands in these, and in the functions that they call."""
    found = list(walk(nodes))
    uncalled = dict(functions)
    for node in found:  # `found` grows
        found += walk(uncalled.pop(node.name, ()))
    return found


def unforked(nodes: Nodes, functions: Functions) -> Set[Node]:
    """Those of some commands that the shell itself runs, not another process."""
    return set(nodes).difference(reached(filter(is_forked, nodes), functions))


# Which failures show in the exit status of a line.


def switched_by(node: Node, switches: str) -> str:
    """The switches of `set` so far and in a command. A `set` that may not run counts only if it switches off."""
    options = node.text.partition(" --")[0]
    if node.name == "set" and (node.before == ";" or "+" in options):
        return f"{switches} {options}"
    return switches


def is_on(option: str, switches: str) -> bool:
    """Whether a shell option is on behind the switches of `set`; the option is a pattern of its letter or name."""
    return re.findall(rf" ([-+])\w*(?:{option})", switches)[-1:] == ["-"]


def is_infallible(node: Node) -> bool:
    """Whether a simple command always passes."""
    if node.name == "((":
        return node.has(CHANGES_IN_SUM)
    if not node.words:
        return not node.has(RUNS_INSIDE)
    if node.has(FINDS_ALONE):
        return True
    return node.name in INFALLIBLE or node.head in ("wait", "exit 0", "return 0")


def reported_failures(
    nodes: Nodes, switches: str, functions: Functions, loop: Node | None = None
) -> Set[Node]:
    """Of a list of commands, those whose failure ends the shell or shows in the exit status of the list.

    `switches` are those of `set` so far. A check such as `[ $RET = 0 ]` is taken to show all failures before it. A
    failure that `|| true` allows is meant, so it counts as shown. If the list is the body of a `loop`, only its last
    turn shows: then the loop stands for the commands in it, unless it ends as soon as one passes.
    """
    ending = set()
    in_status: Set[Node] = set()
    for statement in statements_of(nodes):
        for pipeline in statements_of(statement, PIPES):
            first = pipeline[0]
            joint = f"{first.before}{first.text}"
            switches = switched_by(first, switches)
            of_pipeline = reported_by_pipeline(pipeline, switches, functions)
            repeats = re.match(REPEATS_STATUS, first.head)
            # Behind `&&`, it can only repeat a pass.
            if repeats and first is not nodes[0] and (first.before == "&&" or not in_status):
                of_pipeline = set()
            if re.match(WAIVED, joint):
                ending.update(reached(statement, functions))
            elif first.before == "&&" or (of_pipeline and re.match(PASSES_FAILURE_ON, joint)):
                in_status |= of_pipeline
            else:
                in_status = of_pipeline
            texts = [joint, *(node.text for node in of_pipeline)]
            if of_pipeline and any(re.match(LOOKS_BACK, text) for text in texts):
                in_status = in_status.union(reached(nodes[: nodes.index(first)], functions))
        if not ENDS.isdisjoint(node.name for node in in_status):
            ending |= in_status
        elif is_on("e|o errexit", switches) and first.lead != "!":
            ending |= of_pipeline
    is_small = UTILITIES.issuperset(node.name for node in in_status)
    if loop and not is_small and nodes[-1].name not in ENDS | {"break"}:  # no `a && break`
        in_status = {loop}
    return ending | in_status


def reported_by_pipeline(pipeline: Nodes, switches: str, functions: Functions) -> Set[Node]:
    """The commands whose failure shows in the exit status of a pipeline."""
    first = pipeline[0]
    last = pipeline[-1]
    is_answer = first is not last or first.before == "||"  # `test || cat log`, `test | tee log`
    if last.after in ("&&", "||") or first.lead == "!":
        switches += " +e"  # bash heeds no `set -e` there
    reported = set()
    for node in pipeline:
        if node is last or is_on("o pipefail", switches):
            reported |= reported_by_command(node, switches, functions)
    is_small = UTILITIES.issuperset(node.name for node in reported)
    if last.after == "&" or (is_answer and is_small):
        return set()
    return reported


def reported_by_command(node: Node, switches: str, functions: Functions) -> Set[Node]:
    """The commands whose failure shows in the exit status of one command: itself, or commands inside it."""
    bodies = node.bodies
    if node.kind == "function":
        return set()
    if node.name in functions:
        functions = dict(functions)
        bodies = [functions.pop(node.name)]
    elif not node.kind and not is_infallible(node):
        return {node}
    loop = None
    if node.kind in LOOPS:
        loop = node
    reported = set()
    for index, body in enumerate(bodies):
        if node.conditions[index:]:
            body = [Node(";"), *body]  # its condition, which has passed
        reported |= reported_failures(body, switches, functions, loop)
    if loop and any(map(is_infallible, chain(*node.conditions))):
        reported.add(loop)  # `while true` ends when something in it has passed
    # What `break` ends has failed in its condition, and passes.
    is_broken = loop and any(each.name == "break" for each in walk(node.parts))
    if not is_broken and (loop or {each.name for each in reported} - STATE_WORDS):
        for condition in node.conditions:
            reported |= reported_failures(condition, f"{switches} +e", functions)
    if node.name or node.kind == "(":  # a `return` ends this function or subshell alone
        reported = {node if each.name == "return" else each for each in reported}
    return reported


def check_status(test: TestLine, nodes: Nodes, every: Nodes, functions: Functions) -> None:
    """Raises BadValue for a test whose status tells no failure, and hints at one whose status hides some.

    `every`: all commands that the test reaches.
    """
    known = NO_PROGRAMS.union(functions)
    suspects = [node for node in every if node.name not in known]
    if all(map(is_infallible, every)):
        text = re.sub(NOT_EXPANDED, r"\1", "\n".join(node.text for node in every))
        for node in reached(substituted_commands(text), functions):
            if node.name not in known:
                test.hint(
                    "inside",
                    f'a failure of `{node.name}` here is lost; write `X=$(…) && echo "$X"`',
                )
    if not suspects:
        return
    visible = reported_failures(nodes, test.switches, functions)
    foreground = [node for node in suspects if node.after != "&"]
    silent = known - {"wait"}
    if not foreground:
        silent -= UTILITIES
    if not any(node.kind in LOOPS or node.name not in silent for node in visible):
        raise BadValue(
            f"this line passes even if `{[*foreground, *suspects][0].name}` fails; write "
            '`command || test_fail "label"`, for a pipe `set -o pipefail` above, `! command` if it is to fail, or '
            "`|| true` if that is meant; variables for the lines below can be set by a file that is sourced"
        )
    for node in foreground:
        if node not in visible and re.match(f"{PREFIXES}(?:{RUNS_TESTS})", node.head):
            test.hint(
                "lost",
                f"a failure of `{node.name}` here is lost, as only the last command counts; join commands by `&&`, "
                "or write `|| exit 1` behind it",
            )


def spelled(node: Node) -> str:
    """A command as SETS_VARIABLE wants it: each of the names that `read` sets has a `=` behind it."""
    joint = " "
    if node.name == "read":
        joint = " = "
    return joint.join([node.kind, *node.all_words, ""])


def check_masks(nodes: Iterable[Node]) -> None:
    """Raises BadValue for a command that sets a device mask."""
    for node in nodes:
        for word in node.all_words:
            if re.match(PINS, word):
                raise BadValue(
                    f"{word} here would pin tests to the same GPUs; put it first on the line of a test, set it "
                    "outside the list, or ask for GPUs with `#: gpus=N`"
                )


def with_mask(test: TestLine, words: Iterable[str]) -> TestLine:
    """A test with these assignments in its prefix, but for masks: the last mask says how many GPUs it takes."""
    assigned = list(test.assigned)
    for word in words:
        if re.match(MASK, word):
            test = test._replace(mask=word)
        else:
            assigned.append(word)
    return test._replace(assigned=tuple(assigned))


def words_in_place(nodes: Nodes) -> Iterator[str]:
    """The words of a line's commands, up to one that may change the directory or variables of those behind it."""
    for node in walk(nodes):
        if node.assigned or node.name in ELSEWHERE or node.kind not in ("", "{", "("):
            return
        yield from node.words


def junit_word(words: Iterable[str]) -> str:
    """The word that names a command's own JUnit file, if it names one (the last wins, as for pytest).

    A name that changes each time, or that only the test's own shell can expand, does not count.
    """
    # The word in "--junitxml=$DIR/x.xml" is "$DIR/x.xml", with the quote from the front.
    named = re.findall(r"(?:^|\0)([\"']?)--junit-?xml[=\0]([^\0]*)", "\0".join(words))
    word = "".join(chain(*named[-1:]))
    return word * (not re.search(PASSING_NAME, word))


# The fields of a TestLine that bash has yet to expand.
EXPANDED = "label prefix junit first mask after".split()


class TestLine(NamedTuple):
    """A test as it is written. What EXPANDED names are words that bash has yet to expand."""

    source: Any  # the ListFile, or file of a script, that it stands in
    line: int
    body: str  # bash: the command behind its environment prefix, without handler
    first: str  # the first word of the body
    key: str
    attributes: Attributes
    assigned: Words = ()  # the environment prefix, without masks
    prefix: str = ""  # the same, one a line, where the label is the command: `labels_of` tells such tests apart by it
    mask: str = ""  # a leading CUDA_VISIBLE_DEVICES=…
    after: str = ""  # the labels in `after=`, one a line
    label: str = ""  # the word after `test_fail`, or run_test's fourth
    junit: str = ""  # the word after `--junitxml=`, or run_test's second
    is_handled: bool = False  # `|| test_fail` stands behind it
    # It is a bare test file or folder, for which the runner calls pytest.
    is_target: bool = False
    switches: str = ""  # of `set`, above it
    barrier: int = 0  # how many `wait` stand above it
    shell: Snapshot = Snapshot("")  # from which it starts
    preface: bytes = b""  # what the shell state above it has printed

    def complain(self, what: str) -> None:
        """Note a mistake in its list."""
        self.source.complain(self.line, what)

    def hint(self, kind: str, what: str) -> None:
        """Note what may be a mistake, but need not be; each kind is told once in a list."""
        self.source.hints.setdefault(kind, f"{self.source.name}:{self.line}: {what}")


def with_words(test: TestLine) -> TestLine:
    """A test with the bash words of its `after`, label and prefix, where it does not have them yet."""
    after = "\n".join(test.attributes.after)
    test = test._replace(after=expandable(after, is_command=False))
    if test.attributes.label:
        return test._replace(label=expandable(test.attributes.label, is_command=False))
    if test.label:
        return test
    body = re.sub(r"(?<![ \t])[ \t]*\\\n[ \t]*", " ", test.body)
    prefix = expandable("\n".join(test.assigned))
    return test._replace(label=expandable(body), prefix=prefix)


def expandable(text: str, is_command: bool = True) -> str:
    """Plain text as a bash word in which only `$NAME` and `${NAME}` expand.

    A variable that is not set, or one of bash's own that changes, stays as written, so that a label keeps the `$i` of
    an inner script; in a command so does all that bash would not expand: what is escaped, or in single quotes.
    """
    if "$" not in text:
        return quote(text)
    word = ""
    opened = ""
    for found in re.finditer(
        rf"(?as)\$(\{{)?(?!{CHANGING})([A-Za-z_]\w*)(?(1)\}})|\\.|.", text
    ):
        piece, name = found.group(0, 2)
        if piece == opened:
            opened = ""
        elif is_command and not opened and piece in ("'", '"'):
            opened = piece
        if name and opened != "'":
            word += "${%s-\\%s}" % (name, piece.replace("}", "\\}"))
        else:
            word += re.sub(r'(["\\$`])', r"\\\1", piece)
    return f'"{word}"'


# Attributes: `#: key=value`. Each parser takes the text and raises BadValue with what it should be.


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `5min`, `1.5h`, `1h30m`, `1d`. Raises BadValue."""
    units = {"d": 86400, "h": 3600, "m": 60, "min": 60, "ms": 0.001}  # others are seconds
    number = r"\d{1,9}(\.\d+)?"
    written = rf"({number}d)?({number}h)?({number}m(in)?)?({number}s(ec)?)?({number}ms)?"
    parse_word(
        rf"\s*(?=\S)({number}|{written})\s*", "a duration such as 90s, 10m, 2h or 1h30m", text
    )
    pairs = re.findall(r"([\d.]+)([a-z]*)", text)
    return fsum(float(count) * units.get(unit, 1) for count, unit in pairs)


def parse_word(pattern: str, what: str, text: str) -> str:
    """A value that matches a pattern. Raises BadValue."""
    if not re.fullmatch(pattern, text):
        raise BadValue(f"{text!r} is not {what}")
    return text


def parse_gpus(text: str) -> float:
    """The need in `0`, `0.25`, `2`, `all` (inf). Raises BadValue."""
    parse_word(
        r"\d{1,6}|0?\.(?!0+$)\d{1,6}|all", "0, a fraction below 1, a whole number or all", text
    )
    return float(text.replace("all", "inf"))


def parse_count(text: str) -> int:
    """The number in `0`, `2`. Raises BadValue."""
    return int(parse_word(r"\d{1,6}", "a whole number", text))


def parse_memory(text: str) -> float:
    """MiB in `512M`, `20G`, `1.5G`. Raises BadValue."""
    parse_word(r"\d{1,6}(\.\d+)?[MG]", "a size such as 20G, 1.5G or 512M", text)
    return float(text[:-1]) * 1024 ** "MG".index(text[-1])


def parse_names(text: str) -> Words:
    """The names in `a,b`. Raises BadValue if one is empty."""
    parse_word(r"(?s)(,?\s*[^,\s][^,]*(?=,|$))+(?<!,)", "a list of names such as a,b", text)
    return tuple(map(str.strip, text.split(",")))


def parse_words(text: str) -> Words:
    """Arguments in one word, as a shell splits them. Raises BadValue."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise BadValue(f"a quote in {text!r} is never closed") from None


ATTRIBUTES: Mapping[str, Callable[[str], Any]] = {
    "gpus": parse_gpus,
    "timeout": parse_duration,
    "retries": parse_count,
    "label": partial(parse_word, r"(?s).*\S.*", "a label, which cannot be empty"),
    "time": parse_duration,
    "lock": parse_names,
    "after": parse_names,
    "tags": parse_names,
    "mem": parse_memory,
    "split": partial(parse_word, r"auto|[1-9]\d{0,2}", "auto or a whole number from 1 to 999"),
    "after-crash": partial(parse_word, "go-on", "go-on"),
    "nodes": parse_count,
}


def parse_attributes(
    text: str, base: Attributes, complain: Callable[[str], None]
) -> Attributes:
    """`base` with the keys in `text` set. Mistakes are told to `complain`."""
    try:
        pairs = shlex.split(text)
    except ValueError:
        complain(f"a quote in `#:{text}` is never closed")
        return base
    values = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        name = key.replace("-", "_")
        if name in values or not value:
            complain(
                f"`{pair}` in `#:` needs one value; write KEY=VALUE once, blanks in quotes"
            )
            break  # `gpus = 2` is one mistake
        if key not in ATTRIBUTES:
            complain(f"unknown key {key!r} in `#:`; known are {', '.join(ATTRIBUTES)}")
        else:
            values[name] = getattr(base, name)
            try:
                values[name] = ATTRIBUTES[key](value)
            except BadValue as error:
                complain(f"{key}: {error}")
    return base._replace(**values)


# Lists: text to tests and shell state.


def check_variables(parsed: ListFile, nodes: Nodes, setter: int) -> None:
    """Raises BadValue for a command that needs a variable which a test has set: that is gone with the test's shell.

    Notes the variables that this command sets: `setter` is the line of a test, or 0 for shell state.
    """
    # A handler `test_fail` is the runner's own, whatever function the list defines.
    functions = {**parsed.functions, "test_fail": ()}
    every = reached(nodes, functions)
    text = "\n".join(map(spelled, every))
    expanded = re.sub(NOT_EXPANDED, r"\1", text)
    needed = set(re.findall(READS_VARIABLE, expanded))
    needed.difference_update(re.findall(SETS_VARIABLE, text))
    if any(node.name in ("source", ".", "eval") for node in every):
        needed.clear()  # the file or text that is read may set them
        if not setter:
            parsed.setters.clear()
    for name in sorted(needed):
        if parsed.setters.get(name):
            raise BadValue(
                f"`{name}` is set in line {parsed.setters[name]}, which is a test, and is gone with its shell; set it "
                "by `=` or `mapfile` in a line that neither runs a program nor calls a function, put both into one "
                "`{ …; }`, or run the file as a script (`#!` in its first line), which keeps it"
            )
    for node in unforked(every, functions):
        if node.name in ASSIGNING and not node.kind:
            names = re.findall(SETS_VARIABLE, spelled(node))
            parsed.setters.update(dict.fromkeys(names, setter))


class ListFile:
    """One list: its tests and its shell state, and the mistakes found in it."""

    switches = ""  # of `set`, so far
    last_state = 1  # the first line of the last piece of shell state

    def __init__(self, name: str, text: str, waits: int) -> None:
        self.name = name
        self.text = text
        self.lines = f"{text}\n".split("\n")
        self.waits = waits  # number of `wait` lines so far, those of the lists before included
        self.tests: List[TestLine] = []
        # What bash is to read for the list: its shell state with a check behind each piece, at the same lines.
        self.script = [""] * (len(self.lines) + 1)
        self.functions: Dict[str, Nodes] = {}  # the bodies of those that it defines
        # By variable, the line of the test that has set it; 0: shell state has set it.
        self.setters: Dict[str, int] = {}
        self.mistakes: List[Tuple[int, str]] = []
        self.hints: Dict[str, str] = {}  # by kind, the first one of that kind

    def complain(self, line: int, what: str) -> None:
        """Note a mistake, reported later as `file:line: what`."""
        self.mistakes.append((line, plain(what)))


# Prints the first and last line of each command of the file $2, and what is wrong with it. $1 is the most lines of one
# command. Lines are a whole command if bash can read them both in { ( ) } and in ( { } ): text like
# `a; } || { b` ends one of these early, but not the other. A backslash at the end joins the closing bracket to the last
# line, and `done \` could be read so: such text is whole only if bash can also read it with a word in that place.
SPLITTER = r"""
shopt -s extglob
newline=$'\n'
fits() { eval "return 0; $1"; }      # bash parses all of $1, and returns before it would run any of it
both() {
  fits "{ ( :$newline$1)$newline}" && fits "( { :$newline$1}$newline)" &&
    { [[ $1 != *\\$newline ]] || fits "{ ( :$newline${1}x)$newline}"; }
}
# In a subshell where bash may end (5.2 does at a bad substitution, and nesting too deep kills it), or where an open
# quote in a pattern of `case` would confuse the parser for what comes next.
is_whole() {       # no pattern of extglob: that would take 0.4 ms a line
  if [[ ${#1} -gt 1000 || $1 == *[\$\<\>]\(* || $1 == *\[\[* || $1 == *case\ * ]]; then (both "$1"); else both "$1"; fi
} 2>/dev/null
why() {
  error=$(fits "{ ( :$newline$text" 2>&1 && fits "( { :$newline$text" 2>&1) || error=${error:-bash dies of it}
  error=${error%%$newline*} error=${error#*: line +([0-9]): } error=${error/ at line +([0-9])/}
}
main() {         # read as a whole, since an eval that fails confuses the parser
  local lines i text= first=1 spans= error
  mapfile -t -O 1 lines <"$2"
  for ((i = 1; i <= ${#lines[@]} && i - first < $1; i++)); do
    text+=${lines[i]}$newline error=
    if ! is_whole "$text"; then
      ((i == first)) || continue
      why
      [[ $error != *@(EOF|unexpected end|end-of-file)* ]] || continue
    fi
    spans+="$first $i $error"$newline
    text= first=$((i + 1))
  done
  if [[ $text ]]; then
    is_whole "$text$newline" && error= || why
    [[ ! $error ]] || ((i - first < $1)) || error+=", unless it has more than $1 lines: put it into a file"
    spans+="$first $i $error"$newline
  fi
  printf '%s%s\n' "$spans" "end"
}
main "$@"
"""


def split_list(parsed: ListFile, scratch: Scratch) -> Iterator[Tuple[int, int, str]]:
    """For each command its first and last line, and its text. Mistakes are added to the list.

    A bash with an environment of its own reads the list, and runs none of it. Raises OSError.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    words = [SPLITTER, PROGRAM, str(COMMAND_LINES), scratch.write(parsed.text)]
    spans = to_text(run_bash(words, scratch, environment)[1])
    end = 0
    for first, last, why in re.findall(r"(?m)^(\d+) (\d+) (.*)", spans):
        line = int(first)
        end = int(last)
        if why:
            parsed.complain(line, f"{why} (in the command that begins here)")
        else:
            yield line, end, "\n".join(parsed.lines[line - 1 : end]) + "\n"
    if not spans.endswith("end\n"):
        scratch.check_room()  # bash may have died of a full disk
        parsed.complain(end + 1, "bash dies of this command, or of one of those below")


def read_list(parsed: ListFile, scratch: Scratch) -> None:
    """Add the tests, the shell state and the mistakes of a list."""
    for number, raw in enumerate(parsed.lines, 1):
        if raw.endswith("\r") or "\0" in raw:
            parsed.complain(number, f"{WINDOWS}; or a NUL byte: a list is text in UTF-8")
            return
    defaults = Attributes()
    for line, end, text in split_list(parsed, scratch):
        try:
            reader = Reader(text)
            if reader.nodes:
                line += text.count("\n", 0, reader.nodes[0].start)
            attributes = read_attributes(parsed, reader, line, defaults)
            if not reader.nodes:
                defaults = attributes
                continue
            is_test = not add_setting(parsed, reader.nodes, line, end)
            check_variables(parsed, reader.nodes, line * is_test)
            if is_test:
                add_test(parsed, reader, line, attributes)
            elif attributes is not defaults:
                raise BadValue("`#:` on a line that is no test; put it on a line of its own")
        except BadValue as mistake:
            parsed.complain(line, str(mistake))
        except RecursionError:
            parsed.complain(line, "commands nested deeper than can be read")


def read_attributes(
    parsed: ListFile, reader: Reader, line: int, defaults: Attributes
) -> Attributes:
    """What `#:` comments behind a command say of it, or one on a line of its own of the tests below."""
    attributes = defaults
    complain = partial(parsed.complain, line)
    for comment in reader.comments:
        # On a line of its own, a comment may be a test that is commented out.
        is_inside = any(comment.start < node.end for node in reader.nodes)
        key = rf"(?:{'|'.join(ATTRIBUTES)})="
        mistyped = rf"#\s+:\s*{key}"
        if reader.nodes and not is_inside:
            mistyped += rf"|#(?!:).*\s#\s*:\s*{key}|#\s*(?:{key}\S+(?:\s+|$))+$"
        if re.match(mistyped, comment.text):
            complain(f"`{comment.text}` is a comment; write `#:` first, without a space in it")
        if not comment.text.startswith("#:"):
            continue
        if not reader.nodes:
            defaults = Attributes()
        elif is_inside:
            complain("`#:` inside a command; put it behind the command's end")
        attributes = parse_attributes(comment.text[2:], defaults, complain)
    return attributes


def add_setting(parsed: ListFile, nodes: Nodes, line: int, end: int) -> bool:
    """Add a command that is a barrier or shell state; returns whether it is one. Raises BadValue."""
    is_wait = [node.text for node in nodes] == ["wait"]
    if not is_wait and not is_state(nodes):
        return False
    check_masks(walk(nodes))
    parsed.waits += is_wait  # it is state too: `set -x` shows it
    parsed.last_state = line
    for number in range(line - 1, end):
        parsed.script[number] += parsed.lines[number]
    parsed.script[end] += f'{{ _rt_check "$?" {line}; }} 2>/dev/null; '
    for node in nodes:
        parsed.switches = switched_by(node, parsed.switches)
    parsed.functions.update(functions_in(nodes))
    return True


def add_test(parsed: ListFile, reader: Reader, line: int, attributes: Attributes) -> None:
    """Turn a command into a TestLine. Raises BadValue if it would not do what it says."""
    nodes = reader.nodes
    label = ""
    first, last = nodes[0], nodes[-1]
    if last.after == "&" or last.name == "coproc":
        raise BadValue(
            "a test in the background (`&`) has no verdict; leave the `&` out, tests run in parallel anyway"
        )
    is_handled = last.name == "test_fail" and last.before == "||"
    if is_handled:
        label = "".join(nodes.pop().words[1:2])  # `test_fail >&2` has none
    start = first.start
    end = nodes[-1].end
    prefix = []
    for token in reader.tokens:
        if not first.words or first.assigned[:1] != [token.text]:
            break
        prefix.append(first.assigned.pop(0))
        start = token.end
    word = ""
    if first.name not in ("", "((") and not re.search(RUNS_INSIDE, first.words[0]):
        word = first.words[0]  # bash can expand it without running anything
    words = [token.text for token in [*reader.tokens, *reader.documents] if token.end <= end]
    documents = [f"\n{token.text[:-1]}" for token in reader.documents if token.start > end]
    test = TestLine(
        parsed,
        line,
        reader.text[start:end].strip(" \t") + "".join(documents),
        word,
        key_of([*words, *documents]),
        attributes,
        label=label,
        junit=junit_word(words_in_place(nodes)),
        is_handled=is_handled,
        is_target=re.search(r"\.py(::|$)", first.name) is not None,
        switches=parsed.switches,
        barrier=parsed.waits,
    )
    test = with_mask(test, prefix)
    if first.name == "run_test" and "run_test" not in parsed.functions:
        test = read_run_test(test, nodes)
    else:
        check_use(test, nodes, parsed.functions)
    parsed.tests.append(with_words(test))


def check_use(test: TestLine, nodes: Nodes, known: Functions) -> None:
    """Raises BadValue if a test, behind its environment prefix, would not do what it says; hints where it may not."""
    functions = {**known, **functions_in(nodes)}
    every = reached(nodes, functions)
    last = nodes[-1]
    lost = [last] * (is_state([last]) or (last.name == "exec" and len(last.words) == 1))
    own = list(walk(nodes))
    exporting = {node for node in unforked(every, functions) if node.name in EXPORTING}
    lost += [node for node in every[len(own) :] if node in exporting]
    for node in lost:
        if not re.match(r"cd (\.\.|-)|popd|unset|set \+|:", node.text):
            test.hint(
                "changes",
                f"what `{node.text}` changes is gone with this line; put it on a line without programs",
            )
    calls = every
    if "test_fail" in functions:  # inside functions, a call of it reaches the list's own
        calls = own
    if any(node.name == "test_fail" for node in calls):
        raise BadValue(
            '`test_fail` is understood only at the end of a whole command: command || test_fail "label"; '
            "of an `if` that is behind its `fi`, of a function behind its call, of a loop behind its `done`, with "
            "`|| exit 1` behind the command inside it"
        )
    if test.is_target and nodes[0].lead:
        raise BadValue(
            f"`{nodes[0].lead}` before a pytest target; write it before `python3 -m pytest {test.first}`"
        )
    silent = [node for node in nodes if node.name not in PRINTS]
    settings = list(chain(*(known.get(node.name, [node]) for node in silent)))
    joints = {node.before for node in nodes[1:]}
    # `X=$(prog) || test_fail x` and `X=$(prog) && echo "$X"` are tests.
    captures = {node.name for node in silent} == {""} and (
        test.is_handled or (joints == {"&&"} and nodes[0].has(RUNS_INSIDE))
    )
    programs = {node.name for node in every} - NO_PROGRAMS.union(functions)
    only_exports = exporting and not programs and not ends_in_check(nodes)
    if not captures and (is_state(settings) or only_exports):
        raise BadValue(
            "this line would be a test, and change nothing for those below; write it without `echo`, "
            "`|| test_fail`, a function or a program, put it into a file that is sourced, or write `bash FILE`"
        )
    check_masks(every)
    check_status(test, nodes, every, functions)


def read_run_test(test: TestLine, nodes: Nodes) -> TestLine:
    """What `run_test "ENV" "xml" "target" "label"` means. Raises BadValue."""
    usage = BadValue(
        'run_test takes 4 words, "ENV" "xml" "target" "label", and stands alone; ENV is VAR=value pairs, or empty, '
        "and target has no `;`, `|` or `>` but in quotes; the name is that of the script which this replaces, "
        "unless the list defines a function run_test"
    )
    words = nodes[0].words
    if len(words) != 5 or len(nodes) > 1 or nodes[0].redirects or nodes[0].lead:
        raise usage
    _, environment, junit, target, label = words
    body = unquoted(target)
    parse_words(body)
    tokens = read_tokens(body)
    pairs = [token.text for token in read_tokens(unquoted(environment))]
    is_plain = {token.kind for token in tokens} == {"word"}
    if not is_plain or not all(re.match(ASSIGNMENT, pair) for pair in pairs):
        raise usage
    return with_mask(test, pairs)._replace(
        key=key_of([*test.assigned, *words[:4]]),
        body=body,
        first=tokens[0].text,
        label=label,
        junit=junit,
        is_target=True,
    )


def gpus_named_in(text: str) -> float:
    """How many GPUs a command seems to ask for: ALL_GPUS where it does not say how many, 1 where it asks for none."""
    # Names of files that the command does not run say nothing.
    text = re.sub(r"--(?:ignore|deselect|junit-?xml)[= ]\S+", "", text)
    found = re.findall(SEVERAL_GPUS, text)
    counts = list(map(float, filter(None, chain(*found))))
    return max(counts or [ALL_GPUS] * len(found), default=1)


# Shell state: one bash runs it once, when the list is read, and tells what the tests below it start from.

# Prints bash that makes another shell like this one, except for its options. Left out are variables that bash or the
# runner sets itself, and exported ones. Arguments: the positional parameters.
SNAPSHOT = r"""
_rt_snapshot() {
  local _rt_name
  umask -p
  for _rt_name in c d f l m n s t u v; do
    builtin printf 'ulimit -S%s ' "$_rt_name"
    ulimit "-S$_rt_name"
  done
  shopt -p
  compgen -v -X '_rt_*' >|"$_rt_folder/names"
  _rt_choose
  declare -p "${_rt_variables[@]}"
  _rt_functions
  builtin printf 'set --'
  [[ $# == 0 ]] || builtin printf ' %q' "$@"
  builtin printf '\n'
}
_rt_choose() {         # sets _rt_variables to the variables that are kept
  local _rt_all _rt_line IFS=' '
  _rt_variables=()
  mapfile -t _rt_all <"$_rt_folder/names"
  declare -p >|"$_rt_folder/variables"
  while builtin read -r _rt_line; do     # `compgen` leaves out what has no value yet, as behind `export NAME`
    case $_rt_line in
      *[=\"\']* | *' OLDPWD') ;;
      'declare -'[!-]*' '[A-Za-z_]*) _rt_all+=("${_rt_line##* }") ;;
    esac
  done <"$_rt_folder/variables"
  for _rt_name in "${_rt_all[@]}"; do
    case $_rt_name in
      _|BASH_ARG[CV]|BASH_COMMAND|BASH_LINENO|BASH_MONOSECONDS|BASH_SOURCE|BASH_SUBSHELL|BASH_TRAPSIG) ;;
      BASH_VERSINFO|BASHOPTS|BASHPID|COMP_*) ;;
      DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID) ;;
      CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK) ;;
      PS4) _rt_variables+=(PS4) ;;     # for root, bash does not read it from the environment
      *) [[ ${!_rt_name@a} == x ]] || _rt_variables+=("$_rt_name") ;;
    esac
  done
}
_rt_functions() {      # sets _rt_late, and prints that: all functions, those of the file $_rt_home at their lines
  local _rt_name _rt_line _rt_file _rt_text _rt_at=1 _rt_own=() _rt_other=() _rt_debug=-u
  compgen -A function -X '_rt_*' >|"$_rt_folder/functions"
  mapfile -t _rt_own <"$_rt_folder/functions"
  [[ $BASHOPTS != *extdebug* ]] || _rt_debug=-s
  shopt -s extdebug    # so that `declare -F` says where
  ((${#_rt_own[@]} == 0)) || declare -F "${_rt_own[@]}" >|"$_rt_folder/functions"
  shopt "$_rt_debug" extdebug
  _rt_own=()
  while IFS=' ' builtin read -r _rt_name _rt_line _rt_file; do
    if [[ $_rt_file == "$_rt_home" ]]; then
      declare -f "$_rt_name" >|"$_rt_folder/function"
      IFS= builtin read -r -d '' _rt_text <"$_rt_folder/function"
      _rt_own[_rt_line]+=${_rt_text/$'\n'/}      # `f () {` on one line, as most people write it
    elif [[ $_rt_file != "$BASH_SOURCE" ]]; then
      _rt_other+=("$_rt_name")
    fi
  done <"$_rt_folder/functions"
  for _rt_line in "${!_rt_own[@]}"; do
    while ((_rt_at < _rt_line)); do
      builtin echo
      ((_rt_at++))
    done
    builtin printf '%s' "${_rt_own[_rt_line]}"
    _rt_text=${_rt_own[_rt_line]//[!$'\n']/}
    ((_rt_at += ${#_rt_text}))
  done >|"$_rt_folder/late"
  {
    ((${#_rt_other[@]} == 0)) || declare -f "${_rt_other[@]}"
    declare -Fx
    alias -p
  } >>"$_rt_folder/late"
  IFS= builtin read -r -d '' _rt_late <"$_rt_folder/late"
  builtin printf '_rt_late=%q\n' "$_rt_late"
}
"""

# Bash to be sourced before a copy of the list in which a call of _rt_test stands in place of each test. Its functions
# write answers into the file `answers`. Behind each answer they write a mark, there and to standard output, so that the
# runner knows what the state had printed by then. The mark is $_rt_half twice: so a list's `set`, which prints all
# variables, does not print the mark. PS4 begins with \1, since `set -x` shows a sourced file one level deeper.
STATE_READER = r"""
_rt_source=$0 _rt_home=$1 _rt_folder=$2 _rt_half=$3
set --
: >"$_rt_folder/answers"
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "bash $BASH_VERSION is too old, 4.4 is needed"
  exit 3
fi
# Whether there has been state since the last test; of a line of state the last command, whether it looks at `$?`, and
# the status with which it has failed; how many states have been written.
_rt_changed= _rt_last= _rt_reads= _rt_failed= _rt_count=0
_rt_close() {    # ends an answer: writes the mark to standard output and behind the answer
  builtin printf %s%s "$_rt_half" "$_rt_half"
  builtin printf %s%s "$_rt_half" "$_rt_half" >>"$_rt_folder/answers"
}
_rt_note() {     # the status of a command, its text, and how deep it is: in a function it may be meant to fail
  case $2 in
    '['* | '(('* | 'test '* | 'read '* | 'read' | 'false' | 'true') ;;
    'command -v '* | 'type '* | 'hash '* | 'which '*) ;;
    *) [[ $1 == 0 || $3 != 1 ]] || _rt_failed=$1 ;;
  esac
}
_rt_check() {    # the status of a line of state, and its number
  [[ ! $_rt_reads ]] || _rt_failed=
  _rt_note "$1" "$_rt_last" 1
  if [[ $- == *k* ]]; then
    set +k
    builtin echo '`set -k` makes other words of `export`; take it out'
    _rt_failed=1
  fi
  if [[ $_rt_failed ]]; then
    builtin printf 'failed\0%s\0%s' "$2" "$_rt_failed" >>"$_rt_folder/answers"
    _rt_close
  fi
  _rt_changed=1 _rt_last= _rt_reads= _rt_failed=
  disown -a      # a `wait` of the list is not for what its state has started
  [[ ${PS4-} == $'\1'* ]] || PS4=$'\1'${PS4-}
}
_rt_state() {    # the positional parameters; sets _rt_text to the whole state, options last
  local _rt_options
  {
    # Unset the functions that a test's bash gets from the environment: the snapshot has those that there are now.
    builtin printf '%s' "$_rt_unset"
    _rt_snapshot "$@"
  } >|"$_rt_folder/state"
  IFS= builtin read -r -d '' _rt_text <"$_rt_folder/state"
  IFS= builtin read -r -d '' _rt_options <"$_rt_folder/options"
  _rt_text=${_rt_text/"PS4=\$'\\001"/"PS4=\$'"}
  _rt_text=${_rt_text/'PS4="'$'\1'/'PS4="'}$_rt_options      # as bash before 5.2 writes it
  [[ $_rt_text != *_rt_source* ]] || builtin printf -v _rt_text '_rt_source=%q\n%s' "$_rt_source" "$_rt_text"
}
_rt_environment() {    # what is exported; no program is asked, since it may be too large for one
  local _rt_name _rt_names _rt_mine=_:SHLVL:PS4
  compgen -e >|"$_rt_folder/names"
  mapfile -t _rt_names <"$_rt_folder/names"
  for _rt_name in "${_rt_names[@]}"; do
    [[ ! -v $_rt_name || :$_rt_mine: == *:$_rt_name:* || ${!_rt_name@a} == *[aA]* ]] ||
      builtin printf '%s=%s\0' "$_rt_name" "${!_rt_name}"
  done
  [[ ${PS4@a} != *x* ]] || builtin printf 'PS4=%s\0' "${PS4#?}"
}
_rt_test() {     # a test: its line, its words as bash has them, the positional parameters
  local - _rt_line=$1 _rt_text _rt_path= _rt_late _rt_label _rt_prefix _rt_junit _rt_first _rt_mask _rt_after
  local _rt_words="_rt_label=$2 _rt_prefix=$3 _rt_junit=$4 _rt_first=$5 _rt_mask=$6 _rt_after=$7"
  [[ ! $_rt_changed ]] || set +o >|"$_rt_folder/options"
  set +aefnuvx
  shift 7
  if [[ $_rt_changed ]]; then
    _rt_state "$@"
    if [[ $_rt_text != "$_rt_base" ]]; then     # else a new bash has this state without reading a file
      _rt_path=$_rt_folder/$((++_rt_count))
      builtin printf '%s' "$_rt_text" >|"$_rt_path"
    fi
  fi
  {
    eval "$_rt_words"
    # A first word that names a command for bash is no folder for pytest.
    [[ $_rt_first == */* || ! -d $_rt_first ]] || ! builtin type -t -- "$_rt_first" >/dev/null || _rt_first=
    builtin printf '%s\0' test "$_rt_line" "$PWD" "$_rt_label" "$_rt_prefix" "$_rt_junit" "$_rt_first" "$_rt_mask" \
      "$_rt_after"
    if [[ $_rt_changed ]]; then    # since the last test
      builtin printf '%s\0' "$_rt_path" "${_rt_path:+$_rt_late}"
      _rt_environment
      _rt_changed=
    fi
  } >>"$_rt_folder/answers"
  _rt_close
}
# A list that is sourced is state: its tests would fail unseen. The snapshot leaves out what this file defines.
declare -F test_fail >/dev/null || test_fail() {
  builtin echo '`test_fail` or `run_test` in a file that it sources; name that file as a list of its own'
  _rt_failed=1
  ((BASHPID == $$))      # in a subshell, the status alone tells
}
declare -F run_test >/dev/null || run_test() { test_fail; }
_rt_end() {
  builtin trap - EXIT DEBUG ERR
  builtin printf end >>"$_rt_folder/answers"
}
_rt_begin() {
  local - _rt_late
  set +o >|"$_rt_folder/options"
  set +aefnuvx     # SHELLOPTS may have brought them
  compgen -A function -X '_rt_*' >|"$_rt_folder/names"
  mapfile -t _rt_unset <"$_rt_folder/names"
  _rt_unset="unset -f ${_rt_unset[*]}"$'\n'
  _rt_state
  _rt_base=$_rt_text
}
PS4=$'\1'$PS4
_rt_begin
_rt_trap='{ [[ $BASH_COMMAND == _rt_* ]] || _rt_last=$BASH_COMMAND; '
_rt_trap+='[[ $_rt_last != *\$\?* ]] || _rt_reads=1; } 2>/dev/null'
_rt_on_failure='{ _rt_note "$?" "$BASH_COMMAND" "${#BASH_SOURCE[@]}"; } 2>/dev/null'
"""
# What `set -v` shows of the runner's own text in the copy of a list.
OWN_TEXT = rb'(?m)^(?:\{ _rt_check "\$\?" \d+; \} 2>/dev/null; )?(?:\{ _rt_(?:test|end) .*\n)?'


def find_hints(parsed: ListFile, options: Options) -> None:
    """Note what may be a mistake in the tests of a list."""
    barriers = [*(test.barrier for test in parsed.tests), parsed.waits]
    covering = set()
    for test, next_barrier in zip(parsed.tests, barriers[1:]):
        prepares = re.match(PREPARES, test.body)
        if prepares and next_barrier == test.barrier:
            test.hint(
                "prepares",
                f"`{prepares.group(1)}` is a test here and runs beside those below; put it into the script that calls "
                "the runner, or, if it only writes files, `wait` below it; to run a whole script, give a file that "
                "ends in .sh or begins with #!",
            )
        has_one = test.attributes.gpus is None and need_of(test, options) == 1
        text = " ".join([*test.assigned, test.body])
        if has_one and gpus_named_in(text) > 1:
            test.hint(
                "asks",
                "this looks like a test of several GPUs, and gets one; write `#: gpus=N` behind it, or `#: gpus=1` "
                "if that is right; only the first such line is named",
            )
        if re.match(COVERS, "pytest " * test.is_target + text) and not test.attributes.lock:
            if test.barrier in covering:
                test.hint(
                    "covers",
                    "tests that run at the same time spoil each other's .coverage, or pass --cov-fail-under by what "
                    "another covers; write COVERAGE_FILE=.coverage.NAME before each, or `#: lock=coverage` behind it",
                )
            covering.add(test.barrier)


class Scratch:
    """A private folder for what bash is to read, made when it is needed. Methods raise OSError."""

    folder = ""

    def path(self) -> str:
        """A new name in the folder."""
        if not self.folder:
            import tempfile

            # Before Python 3.12, mkdtemp gives a path as relative as TMPDIR is.
            self.folder = abspath(tempfile.mkdtemp(prefix=f"{PROGRAM}."))
        return f"{self.folder}/{os.urandom(8).hex()}"

    def write(self, text: str) -> str:
        """The path of a new file with this content."""
        path = self.path()
        with open(path, "wb") as file:
            file.write(to_bytes(text))
        return path

    def check_room(self) -> None:
        """Raises OSError if the disk is almost full, or has only blocks left that are kept for root."""
        try:
            os.unlink(self.write(" " * ROOM_BYTES))
        except OSError as error:
            # `ulimit -f` is smaller, and bash would have died of it.
            if error.errno != errno.EFBIG:
                raise


def content_of(path: str) -> bytes:
    """All bytes of a file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read()


def unshifted(data: bytes) -> bytes:
    """The output of `set -x`, one level less deep. PS4 begins with \\1, which bash repeats once for each level."""
    # For PS4='+ ', level 3 is `\1\1\1+ ` here, and has to become level 2, `++ `: two of the \1 go, and each further one
    # becomes the character behind them.
    data = re.sub(rb"(?<!\x01)\x01\x01?", b"", data)
    return re.sub(rb"\x01(?=\x01*([^\x01]))", rb"\1", data)


def with_source(text: str) -> str:
    """Bash that reads `_rt_source`, which has the list's name, in place of BASH_SOURCE, which nobody can set."""
    return re.sub(r"(?<!\\)(\$\{?[#!]?)BASH_SOURCE\b", r"\1_rt_source", text)


def reading_script(parsed: ListFile) -> str:
    """The list's shell state, with a call of _rt_test in place of each test."""
    lines = list(parsed.script)
    for test in parsed.tests:
        words = shlex.join(getattr(test, name) for name in EXPANDED)
        words = words.replace("\n", "'$'\\n''")
        lines[test.line - 1] += f'{{ _rt_test {test.line} {words} "$@"; }} 2>/dev/null'
    lines[-1] += "{ _rt_end ; } 2>/dev/null"
    # The traps are set in the file itself, since a sourced file does not inherit a DEBUG trap. The ERR trap hears of
    # failures that nothing guards.
    traps = 'trap "$_rt_trap" DEBUG; trap "$_rt_on_failure" ERR'
    lines[0] = f"{{ {traps}; }} 2>/dev/null; {lines[0]}"
    return with_source("\n".join(lines) + "\n")


def expand(parsed: ListFile, scratch: Scratch) -> List[TestLine]:
    """The tests with the values of their words, and the shells that they start from.

    The list's shell state runs here. A line of it that fails, or that ends the shell, is a mistake. Raises OSError.
    """
    half = os.urandom(16).hex()
    mark = to_bytes(half * 2)
    copy_path = scratch.write(reading_script(parsed))
    folder = scratch.path()
    os.mkdir(folder)
    source = scratch.write(SNAPSHOT + STATE_READER)
    code = f'. {quote(source)}; . "$_rt_home"'
    status, printed = run_bash([code, parsed.name, copy_path, folder, half], scratch)
    answers_path = f"{folder}/answers"
    if not exists(answers_path):
        raise MachineError(BASH_IS_IDLE)
    scratch.check_room()  # else what bash has written of the state may not be all of it
    printed = printed.replace(to_bytes(copy_path), to_bytes(parsed.name))
    outputs = printed.split(mark)
    *answers, end = content_of(answers_path).split(mark)
    waiting = {test.line: test for test in parsed.tests}
    tests = list(read_answers(parsed, waiting, answers, outputs))
    if waiting or end != b"end":
        parsed.complain(
            [*waiting, parsed.last_state][0],
            f"the shell state down to here, or a word of this line, ends bash with status {status}"
            f"{last_printed(outputs[-1])}; run `bash -x {parsed.name}` to see where",
        )
    return tests


def run_bash(
    words: Sequence[str], scratch: Scratch, environment: Mapping[str, str] | None = None
) -> Tuple[int, bytes]:
    """Run bash with a command and its arguments; its status and what it has printed. Raises MachineError.

    Its output goes to a file, since a background job that it leaves would hold a pipe open. If Ctrl-C ends the wait,
    bash is killed, and the Reaper ends what bash has started.
    """
    with open(scratch.path(), "ab+") as printed:
        try:
            bash = subprocess.run(
                ["bash", "-c", *words],
                env=environment,
                stdin=DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            raise MachineError(
                f"bash cannot be run ({error.strerror}); put it on PATH, with room in `ulimit -n` and `-u`"
            ) from None
        if bash.returncode == -SIGKILL:
            raise MachineError("bash was killed (SIGKILL), perhaps since memory is short")
        printed.seek(0)
        return bash.returncode, printed.read()


def read_answers(
    parsed: ListFile,
    waiting: Dict[int, TestLine],
    answers: Iterable[bytes],
    printed: Iterable[bytes],
) -> Iterator[TestLine]:
    """The waiting tests, completed from bash's answers and what it printed before each. Adds mistakes to the list."""
    shell = Snapshot("")
    functions = ""
    preface = b""
    # Tests get these from the runner unchanged: SHLVL, and what is no variable to bash, such as exported functions.
    unchanged = {
        name: value
        for name, value in os.environb.items()
        if not re.fullmatch(rb"(?as)(?!SHLVL$)[A-Za-z_]\w*", name)
    }
    for answer, output in zip_longest(answers, printed, fillvalue=b""):
        kind, *fields = answer.split(b"\0")
        preface += unshifted(re.sub(OWN_TEXT, b"", output))
        if kind == b"failed":
            parsed.complain(
                int(fields[0]),
                f"this shell state fails with status {int(fields[1])}{last_printed(preface)}; fix it, "
                "or let it end in `|| true`",
            )
        elif kind == b"test":
            test = waiting.pop(int(fields[0]))
            directory, *values = map(to_text, fields[1:8])
            if len(fields) > 9:  # the state has changed
                functions = to_text(fields[9])
                exports = dict(field.partition(b"=")[::2] for field in fields[10:-1])
                exports.update(unchanged)
                shell = Snapshot("", exports, to_text(fields[8]))
            expanded: Any = dict(zip(EXPANDED, values))
            # `test_fail ""` gives no label.
            expanded["label"] = clean_label(expanded["label"].strip() or test.body)
            if directory != shell.directory:
                shell = shell._replace(directory=directory)
            expanded["shell"] = shell
            check_calls(test, functions)
            yield test._replace(preface=preface, **expanded)
            preface = b""


def check_calls(test: TestLine, functions: str) -> None:
    """Check once more a test that begins with a function of the shell state: that may come from a sourced file."""
    if re.search(rf"(?m)^{re.escape(unquoted(test.first))} \(\)", functions):
        try:
            check_use(test, Reader(test.body).nodes, functions_of(functions))
        except BadValue as mistake:
            test.complain(str(mistake))


@lru_cache(maxsize=None)
def functions_of(text: str) -> Functions:
    """The functions that a text of bash defines."""
    return functions_in(Reader(text).nodes)


def last_printed(printed: bytes) -> str:
    """The last line that a command has printed, in parentheses; empty if it has printed nothing."""
    line = last_line(to_text(printed))
    return line and f" ({line})"


# From lines to tests.


def slug(label: str) -> str:
    """A file name that tells the label: ASCII, at most STEM_BYTES; a hash where something was lost."""
    name = re.sub(r"\.py\b", "", label)
    name = re.sub(r"[^A-Za-z0-9._+=@-]+", "_", name).strip("_.") or "test"
    if len(name) > STEM_BYTES or not label.isascii():
        name = f"{name[: STEM_BYTES - 9]}-{key_of([label])[:8]}"
    return name


def stem_of(test: TestLine, label: str) -> str:
    """The name of a test's log: that of the JUnit file it names, else a slug of its label."""
    stem = os.path.splitext(basename(test.junit))[0]
    if not test.junit:
        stem = "pytest_" * test.is_target + slug(label)
    elif not 0 < len(to_bytes(stem)) <= STEM_BYTES or re.search(CONTROL, stem):
        stem = slug(stem)
    return re.sub(r"\.(?=attempt\d+$)", "_", stem)  # `a.attempt1` is the first attempt of `a`


Rename = Callable[[str], str]


def numbered(pattern: str, same: Rename) -> Rename:
    """A function that makes each name in turn unique by a numbered suffix; those with equal `same(name)` are equal."""
    counts: Dict[str, int] = {}

    def choose(name: str) -> str:
        chosen = name
        known_as = same(name)
        while same(chosen) in counts:
            counts[known_as] += 1
            chosen = pattern.format(name, counts[known_as])
        counts[same(chosen)] = 1
        return chosen

    return choose


def stems_written(text: str, log_dir: str) -> Iterator[str]:
    """Names that no test's log may have: this bash text itself writes `NAME.log`, perhaps in the log dir."""
    writes = r"(?:>|\btee\s(?:\s*-\S+\s)*)\s*['\"]?([^\s'\"`<>|;&()]+)\.log\b"
    for path in re.findall(writes, text):
        folder, name = os.path.split(path)
        is_own = realpath(folder) == realpath(log_dir)
        if is_own or "$" in folder:
            yield name


def stems_beside(text: str, log_dir: str) -> Rename:
    """A function that makes log names unique, also among the files that the tests' text or the runner prints into."""
    # Some file systems do not tell `A.log` from `a.log`.
    stems = numbered("{}_{}", str.casefold)
    for descriptor in (1, 2):
        with suppress(OSError):
            text += f"\n>{os.path.relpath(os.readlink(f'/proc/self/fd/{descriptor}'))}"
    for name in stems_written(text, log_dir):
        stems(name)
    return stems


def labels_of(tests: Sequence[TestLine]) -> Iterator[str]:
    """The labels, unique. Tests that differ in nothing but their environment prefix get what differs."""
    # By label, the assignments that all tests with this label have.
    shared: Dict[str, Set[str]] = {}
    for test in tests:
        prefix = test.prefix.split("\n")
        shared.setdefault(test.label, set(prefix)).intersection_update(prefix)
    unique = numbered("{} #{}", str)
    for test in tests:
        label = test.label
        differing = " ".join(
            word for word in test.prefix.split("\n") if word not in shared[label]
        )
        if differing:
            label = clean_label(f"{label} ({differing})")
        yield unique(label)


def clean_label(label: str) -> str:
    """A label on one line, of a length that can be read."""
    label = plain(label) or "test"
    if len(label) > LINE_CHARS:
        return f"{label[: LINE_CHARS - 1]}\u2026"
    return label


def with_target(test: TestLine, options: Options) -> TestLine:
    """The test, made a pytest target if its first word is a folder and no command.

    A test file or an interpreter that does not exist becomes a mistake in the list, before any test starts.
    """
    first = test.first
    directory = test.shell.directory
    path = os.path.join(directory, first.partition("::")[0])
    if first and isdir(path):
        test = test._replace(is_target=True)
    if not test.is_target or options.list:
        return test
    python = options.python
    if "/" in python:
        python = os.path.join(directory, python)
    if os.access(path, os.X_OK) and re.search(r"(?:^|/)(?!test_)[^/]+(?<!_test)\.py$", first):
        test.complain(
            f"{first} is a program by its mode, and no test file by its name; write `python3 {first}`, or "
            f"`python3 -m pytest {first}`"
        )
    elif not exists(path):
        test.complain(
            f"{path} is not there; fix the path, or the shell state above it; for a pattern write a folder, or a line "
            "for each file"
        )
    elif not find_program(python, test.shell.environment):
        test.complain(f"--python {options.python} is no program here; name one that is")
    return test


def make_test(line: TestLine, index: int, label: str, stem: str, options: Options) -> Test:
    """The test of a line of a list or script."""
    # The runner adds the option to a pytest target, unless that has it, perhaps with a name that only the test knows.
    adds_junit = line.is_target and not re.search(r"[\s\"']--junit-?xml\b", line.body)
    named = line.junit or f"{stem}.xml" * adds_junit
    folder = line.shell.directory
    if adds_junit and "/" not in named:
        folder = options.log_dir
    path = abspath(os.path.join(folder, named))
    words = list(line.assigned)
    if line.is_target:
        words += [quote(options.python), "-u -m pytest --tb=auto"]
        words += [f"--junitxml={quote(path)}"] * adds_junit
        words += map(quote, options.pytest_args)
    junit = ""
    # A device, such as /dev/null, is no JUnit file: it cannot be replaced, and tells nothing.
    if named and (isfile(path) or not exists(path)):
        junit = path
    timeout = line.attributes.timeout
    if timeout is None:
        timeout = options.timeout
    return Test(
        index,
        line.key,
        label,
        stem,
        line.source.name,
        line.line,
        " ".join([*words, line.body]),
        line.shell,
        line.preface,
        line.attributes,
        line.barrier,
        need_of(line, options),
        timeout,
        junit,
        line.is_handled or line.is_target,
        line.is_target or bool(junit and re.match(PYTEST, line.body)),
        label,
    )


def need_of(line: TestLine, options: Options) -> float:
    """How many GPUs a test takes: `gpus=`, else as many as its own mask names, else the default. Ids do not matter."""
    if line.attributes.gpus is not None:
        return line.attributes.gpus
    if not line.mask:
        return options.gpus_per_test
    shown = 0
    for entry in line.mask.partition("=")[2].split(","):
        if entry.strip() in ("", "-1"):
            break
        shown += 1
    return shown


def find_program(name: str, environment: Any = None, folder: str = "") -> str | None:
    """The path of a program that starts in a folder; None if it is not on PATH, or not there."""
    folders = [os.path.join(folder, each) for each in os.get_exec_path(environment)]
    return shutil.which(name, path=os.pathsep.join(folders))


def check_ties(lines: Mapping[Test, TestLine]) -> None:
    """Complains of two tests that write one JUnit file, and of one that waits for itself or a test below a `wait`."""
    leaders = leaders_of(list(lines))
    writers: Dict[Any, Test] = {}
    for test, line in lines.items():
        writer = writers.setdefault(test.junit or test.index, test)
        if writer is not test:
            line.complain(
                f"writes the same JUnit file as {writer.where}, {test.junit}; give each test its own"
            )
        after = f"after={','.join(test.attributes.after)}"
        awaited = leaders[test]
        if any(leader.barrier > test.barrier for leader in awaited):
            line.complain(
                f"{after} waits for a test below a `wait`, which waits for this one; move one of the two across that"
            )
        if test in tied_to(awaited, leaders):
            line.complain(f"{after} goes in a circle; take one of them out")


def finish_tests(lists: Sequence[ListFile], options: Options, scratch: Scratch) -> List[Test]:
    """The tests of all lists, each as often as `--repeat` says. Mistakes are added to the lists."""
    lines = []
    for parsed in lists:
        parsed.tests = [with_target(test, options) for test in expand(parsed, scratch)]
        lines += parsed.tests
    labels = list(labels_of(lines))
    # The unique labels of the tests that an `after` may name: by list and label as written, by the label alone, or by a
    # unique label.
    named: defaultdict[Any, List[str]] = defaultdict(list)
    if any(line.after for line in lines):
        for line, label in zip(lines, labels):
            named[line.source, line.label].append(label)
            named[line.label].append(label)
        for label in labels:
            named.setdefault(label, [label])
    text = "\n".join(parsed.text for parsed in lists)
    stems = stems_beside(text, options.log_dir)
    made: List[Test] = []
    for line, origin in zip(lines, labels):
        line = with_ties(line, named, options.repeat)
        for label in runs_of(origin, options.repeat):
            stem = stems(stem_of(line, label))
            test = make_test(line, len(made), label, stem, options)
            made.append(test._replace(origin=origin))
    check_ties(dict(zip(made[:: options.repeat], lines)))
    return made


def runs_of(label: str, repeat: int) -> List[str]:
    """The labels of a test's runs."""
    return [label, *(f"{label} (run {run})" for run in range(2, repeat + 1))]


def with_ties(line: TestLine, named: defaultdict[Any, List[str]], repeat: int) -> TestLine:
    """A test that waits for all runs of those in its `after`. Its own runs take turns if they write one JUnit file."""
    after = []
    for name in line.after.splitlines():
        labels = named[line.source, name] or named[name]
        if not labels:
            line.complain(f"after={name} names no test; write the label of one")
        for label in labels:
            after += runs_of(label, repeat)
    attributes = line.attributes  # lines without `#:` share them: 140 bytes a line
    if after:
        attributes = attributes._replace(after=tuple(after))
    if line.junit and repeat > 1:
        attributes = attributes._replace(lock=(*attributes.lock, line.junit))
    return line._replace(attributes=attributes)


def list_text(name: str) -> str:
    """The text of a list; bytes that are not UTF-8 survive as surrogates. Raises ListError."""
    if isdir(name) or re.search(r"\.py(::|$)", name):
        raise ListError(
            f"{name}: a directory or a Python file is no list; put it on a line of one, or run "
            f"`echo {quote(name)} | {PROGRAM} -`"
        )
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            data = file.read()
    except OSError as error:
        raise ListError(
            f"{name}: cannot read this list ({error.strerror}); check its path; a command goes on a line of a list"
        ) from None
    if name == "-" and data.startswith(b"#!"):
        raise ListError(
            "-:1: a script cannot come from standard input, which is its own; name its file"
        )
    return data.decode("utf-8-sig", "surrogateescape")


def parse_lists(options: Options, scratch: Scratch) -> Tuple[Tests, List[str]]:
    """The tests of all lists, in order, and what may be a mistake. Raises ListError with one message per mistake."""
    lists = []
    waits = 0
    for name in options.lists:
        parsed = ListFile(name, list_text(name), waits)
        read_list(parsed, scratch)
        waits = parsed.waits
        lists.append(parsed)
    tests = []
    if not any(parsed.mistakes for parsed in lists):
        tests = finish_tests(lists, options, scratch)
    mistakes = []
    hints: List[str] = []
    for parsed in lists:
        mistakes += [f"{parsed.name}:{line}: {what}" for line, what in sorted(parsed.mistakes)]
        find_hints(parsed, options)
        hints += parsed.hints.values()
        parsed.tests.clear()  # each has its list as `source`: without this cycle, both are freed at once
    if mistakes:
        raise ListError(*mistakes)
    return tests, hints


# ---------------------------------------------------------------------------------------------------
# 4. Select: what past runs say of the tests, which of them run, and in which order they start.
# ---------------------------------------------------------------------------------------------------

Ties = Mapping[Test, Tests]  # by test, those to which its or their `after` ties it


class History:
    """What journals say: how long each test takes when it passes, and which tests of these lists still owe a pass."""

    # Once a run from this directory is known, runs from others do not count.
    knows_directory = False
    is_passed_over = False  # of these lists the last run was elsewhere, and does not count

    def __init__(self, options: Options) -> None:
        # A test owes nothing after an outcome that `options.accepts`: as with pytest's --lf, also a skip or an xfail.
        self.options = options
        self.lists = frozenset(map(normpath, options.lists))
        # By key, and by key and label: when it passed, and how many seconds it took.
        self.passes: Dict[Any, List[Tuple[float, float]]] = defaultdict(list)
        self.forget_runs()

    def forget_runs(self) -> None:
        """Know no run, only durations."""
        # By shard (`2/4`; empty: there was none), names of the tests that its runs selected.
        self.shards: Dict[str, Set[str]] = defaultdict(set)
        # By name, how many tests of this name the lists of the last run had, selected or not.
        self.seen: Dict[str, int] = {}
        # By name, the last run that selected a test of this name, and how many tests of this name still owe a pass.
        self.last: Dict[str, str] = {}
        self.owed: Counter[str] = Counter()

    def add(self, record: Mapping[str, Any], is_own: bool) -> None:
        """Take in one record of a journal. A journal that is not the run's own (--history) gives durations alone.

        Raises ValueError, TypeError, AttributeError, KeyError or OverflowError for a record that no runner has written.
        """
        event = record["event"]
        run = record["run"]
        if event == "run_start" and is_own:
            self.add_run(record)
        elif event == "test_end":
            key = record["test"]
            label = record["label"]
            outcome = Outcome(record["outcome"])
            if outcome.is_pass:
                seconds = record["seconds"] + 0.0  # a TypeError unless it is a number
                passed = record["time"] + 0.0, seconds
                if not 0 <= seconds <= LONGEST_S:
                    raise ValueError("not a duration")
                self.passes[key].append(passed)
                self.passes[key, label].append(passed)
            name = name_of(record.get("list", ""), key, record.get("origin", label))
            has_run = outcome is not Outcome.DEFERRED
            if self.last.get(name) == run and has_run and self.options.accepts(outcome):
                self.owed[name] -= 1

    def add_run(self, record: Mapping[str, Any]) -> None:
        """Take in the start of a run of one of these lists. Once this directory has had one, others do not count."""
        if self.lists.isdisjoint(map(normpath, record["lists"])):
            return
        is_here = record.get("directory") == os.getcwd()
        self.is_passed_over = self.knows_directory and not is_here
        if self.is_passed_over:
            return
        selected = Counter(record["selected"])
        in_list = selected + Counter(record["left_out"])
        if is_here and not self.knows_directory:
            self.knows_directory = True
            self.forget_runs()
        self.shards[record["shard"] or ""].update(selected)
        self.seen.update(in_list)
        for name, copies in selected.items():
            # Tests of this name that the run left out: they owe as before.
            others = in_list[name] - copies
            self.owed[name] = copies + min(self.owed[name], others)
            self.last[name] = record["run"]

    @property
    def knows_shard(self) -> bool:
        """Whether a known run may have selected the tests of this run's shard, or of the list if it has none."""
        known = set(self.shards)
        if self.options.shard:
            known &= {"", self.options.shard}
        return bool(known) and not self.is_passed_over

    def owes(self, test: Test, copies: int) -> bool:
        """Whether a test is new, or did not pass when it was last selected.

        Tests with the same command and label share a name, and no journal tells them apart: all owe if one of them
        does, or if the lists now have more `copies` than before.
        """
        return self.owed[test.name] > 0 or self.seen.get(test.name, 0) < copies

    def duration(self, test: Test) -> float | None:
        """Seconds: the median of the last passes, else what the list says, else None."""
        passes = self.passes[test.key, test.label] or self.passes[test.key]
        if not passes:
            return test.attributes.time
        seconds = sorted(seconds for _, seconds in sorted(passes)[-PASSES:])
        middle = len(seconds) // 2
        return (seconds[middle] + seconds[-1 - middle]) / 2  # of an even number, the middle two


class Estimates(Dict[Test, float]):
    """The expected seconds of the tests of which something is known. Any other test is taken for `assumed` seconds."""

    assumed = ASSUMED_S
    unknown_first = True  # tests of which nothing is known start as if they were the longest

    def __missing__(self, test: Test) -> float:
        return self.assumed


def estimate(tests: Tests, history: History) -> Estimates:
    """The expected seconds of the tests.

    A test of unknown duration counts as the mean of the others. (It starts first of its width, as if it were the
    longest: on the suites in qa/bench, this ends soonest. See qa/bench/README.md.) But if lines carry `time=`, these
    are taken for the long tests: then it counts as half of the shortest, and does not start first.
    """
    known = Estimates()
    for test in tests:
        seconds = history.duration(test)
        if seconds is not None:
            known[test] = seconds
    given = [test.attributes.time for test in tests if test.attributes.time is not None]
    if given:
        known.assumed = min(given) / 2
        known.unknown_first = False
    elif known:
        known.assumed = fsum(known.values()) / len(known)
    return known


class Selection(NamedTuple):
    """Which tests run. Each test of the lists is in `tests`, and ends with an outcome, or in `left_out`."""

    tests: List[Test]  # to run or deferred, in list order
    deferred: Mapping[Test, str]  # with the option that defers the test
    left_out: Mapping[str, Tests]  # by the option that leaves the tests out, in words
    estimates: Estimates
    owed: FrozenSet[Test] = frozenset()  # selected in their last run, and not passed
    is_part: bool = False  # other shards may have tests to run, if this one has none

    @property
    def selected(self) -> List[Test]:
        """The tests that are to run, in list order."""
        return [test for test in self.tests if test not in self.deferred]

    def starting_order(self, order: str, pool: Pool) -> Tests:
        """The tests that are to run, in the order `file`, `auto` or `failed-first`. One by one, `auto` is as `file`."""
        tests = self.selected
        if order != "file" and not pool.sequential:
            tests = widest_first(tests, self.estimates, pool.size)
        if order == "failed-first":
            tests.sort(key=lambda test: test not in self.owed)
        return tests


def widest_first(tests: Tests, estimates: Estimates, gpus: int) -> List[Test]:
    """The starting order for a short run: the widest tests first, then the longest, but no test too late.

    So wide tests find the machine empty, and the last tests are short. But the longest test is next as soon as it
    takes nearly as long as all remaining tests would take on all GPUs, if it can run beside the widest: else it would
    run on alone at the end. Width and length of a test include the tests that wait for it (critical path).
    """
    chains = chains_of(tests, estimates)
    # Of equally wide tests, those that are not in `behind` start first: those of which nothing is known, or none.
    behind = estimates if estimates.unknown_first else chains

    def by_width(test: Test) -> Tuple[float, bool, float]:
        width, length = chains[test]
        return -width, test in behind, -length

    wide = sorted(tests, key=by_width)
    long = sorted(wide, key=lambda test: -chains[test][1])
    long.reverse()  # the longest comes last
    remaining = sum(work_of(test, estimates, gpus) for test in tests)
    order: Dict[Test, None] = {}
    for widest in wide:
        while widest not in order:
            while long[-1] in order:
                long.pop()
            test = widest
            longest = long[-1]
            is_late = chains[longest][1] * SLACK * gpus >= remaining
            if is_late and longest.gpus + widest.gpus <= gpus:
                test = longest
            remaining -= work_of(test, estimates, gpus)
            order[test] = None
    return list(order)


def work_of(test: Test, seconds: Seconds, gpus: int) -> float:
    """GPU-seconds of a test on a machine with `gpus` GPUs."""
    return seconds[test] * min(test.gpus, gpus)


def leaders_of(tests: Tests) -> Ties:
    """For each test those that its `after` names. A name that none of these tests has is ignored."""
    named = {test.label: test for test in tests}
    return {
        test: tuple(named[label] for label in test.attributes.after if label in named)
        for test in tests
    }


def followers_of(tests: Tests) -> Dict[Test, List[Test]]:
    """For each test that others name in `after`, those others."""
    followers = defaultdict(list)
    for test, leaders in leaders_of(tests).items():
        for leader in leaders:
            followers[leader].append(test)
    return followers


def chains_of(tests: Tests, seconds: Seconds) -> Dict[Test, Tuple[float, float]]:
    """For each test, the widest need among it and all that wait for it, and the seconds of their longest chain."""
    followers = followers_of(tests)
    chains = {test: (test.gpus, seconds[test]) for test in tests if test not in followers}
    stack = list(followers)
    while stack:
        test = stack[-1]
        after = followers[test]
        missing = [follower for follower in after if follower not in chains]
        stack += missing
        if not missing:
            stack.pop()
            widths, lengths = zip(*(chains[follower] for follower in after))
            chains[test] = max(test.gpus, *widths), seconds[test] + max(lengths)
    return chains


def tied_to(start: Iterable[Test], ties: Ties) -> Set[Test]:
    """Some tests, and all that their ties lead to."""
    found = set()
    stack = list(start)
    while stack:
        test = stack.pop()
        if test not in found:
            found.add(test)
            stack += ties[test]
    return found


def deferred_tests(tests: Tests, options: Options) -> Dict[Test, str]:
    """The tests that `--max-gpus` and `--only` defer, each with the option that defers it.

    `--max-gpus` also defers what waits for these. `--only` keeps what its tests wait for, and `LabelFile.new_tests`.
    """
    deferred = {}
    if options.max_gpus:
        wide = [test for test in tests if options.max_gpus + 1 <= test.gpus < ALL_GPUS]
        deferred.update(dict.fromkeys(tied_to(wide, followers_of(tests)), "--max-gpus"))
    if options.only and "all" not in options.message:
        named = [
            test
            for test in tests
            if test.origin in options.only.labels
            or any(word in test.label_and_tags for word in options.message)
        ]
        named += options.only.new_tests(tests)
        needed = tied_to(named, leaders_of(tests))
        deferred.update((test, "--only") for test in tests if test not in needed)
    return deferred


def shard_of(tests: Tests, total: int, seconds: Seconds) -> Dict[Test, int]:
    """For each test the number of its shard, from 1: the same on every machine with the same list and history.

    The heaviest goes to the lightest shard (Graham's LPT rule); the weight is GPUs times expected seconds, and
    tests that `after` ties together stay together.
    """
    widest = max((test.gpus for test in tests if test.gpus < ALL_GPUS), default=1)
    ties = followers_of(tests)
    for follower, leaders in leaders_of(tests).items():
        ties[follower] += leaders
    # The weights are less than zero, so that the heaviest sorts first.
    groups = []
    placed = set()
    for test in tests:
        if test not in placed:
            group = sorted(tied_to([test], ties))
            weights = (seconds[each] * max(int(min(each.gpus, widest)), 1) for each in group)
            groups.append((-sum(weights), group))
            placed.update(group)
    loads = [0.0] * total
    numbers = {}
    for lightness, group in sorted(groups):
        lightest = loads.index(min(loads))
        loads[lightest] -= lightness
        numbers.update(dict.fromkeys(group, lightest + 1))
    return numbers


def select(tests: Tests, options: Options, history: History) -> Selection:
    """What runs, what is deferred, what is left out. Shards are cut before --rerun-failed, which differs by machine."""
    estimates = estimate(tests, history)
    left_out = {}
    chosen = list(tests)

    def keep(why: str, keeps: Callable[[Test], bool]) -> None:
        left_out[why] = [test for test in chosen if not keeps(test)]
        chosen[:] = filter(keeps, chosen)

    if options.keep:
        keep("-k", options.keep)
    deferred = deferred_tests(chosen, options)
    last_selected = options.shard and options.rerun_failed and history.shards.get(options.shard)
    to_run = [test for test in chosen if test not in deferred]
    is_part = bool(to_run) and options.shard not in ("", "1/1")
    if last_selected:  # this shard runs what it had last time, and what no shard had
        in_parts = set().union(*(names for part, names in history.shards.items() if part))
        keep(
            f"--shard {options.shard}",
            lambda test: test.name in last_selected or test.name not in in_parts,
        )
    elif options.shard:
        number, total = map(int, options.shard.split("/"))
        numbers = shard_of(to_run, total, estimates)
        plan = key_of(f"{test.key} {numbers.get(test)}" for test in chosen)[:6]
        # Deferred tests belong to the first shard, whose deferred.txt names them.
        keep(
            f"--shard {options.shard} (plan {plan})",
            lambda test: numbers.get(test, 1) == number,
        )
    if options.rerun_failed and history.knows_shard:
        copies = Counter(test.name for test in tests if test.label == test.origin)
        keep(
            "--rerun-failed",
            lambda test: test in deferred or history.owes(test, copies[test.name]),
        )
    return Selection(
        chosen,
        {test: deferred[test] for test in chosen if test in deferred},
        left_out,
        estimates,
        frozenset(test for test in chosen if history.owed[test.name] > 0),
        is_part,
    )


# ---------------------------------------------------------------------------------------------------
# 5. Devices: masks and vendor tools to a Machine; the Pool that leases its devices.
# ---------------------------------------------------------------------------------------------------


class MaskReader(NamedTuple):
    """How a vendor's runtime reads its mask variable, and the value that hides all devices from a test.

    `token` is a pattern of one valid entry. The group that matches is the id (without groups, the whole match), and ids
    of different groups cannot be mixed. If `stops`, an invalid entry hides itself and all after it; else only itself.
    `no_mask`: values that are no mask at all. Sources: for CUDA, what a driver does (tests/fixtures/devices), which
    reads a number as C's `atoi`; for HIP and ROCR, Device::init of ROCm's clr and the RvdFilter of its ROCR runtime;
    for Intel, parseAffinityMask of its compute runtime.
    """

    variable: str
    token: str
    hide: str
    stops: bool = True
    no_mask: Words = ()


CUDA = MaskReader(
    "CUDA_VISIBLE_DEVICES",
    r"(?as:\s*\+?0*(\d+)(?:\D.*)?|(GPU-[\w-]+)\s*|\s*(MIG-[\w/-]+)\s*)",
    hide="",
)
HIP = MaskReader("HIP_VISIBLE_DEVICES", r"(?a:0|[1-9]\d*|GPU-\w+)", hide="-1", no_mask=("",))
ROCR = MaskReader("ROCR_VISIBLE_DEVICES", r"(?ai:\s*(?:\d+|GPU-\w+)\s*)", hide="")
INTEL = MaskReader(
    "ZE_AFFINITY_MASK",
    r"(?a:\s*\d+(?:\.\d+){0,2}\s*)",
    "-1",
    stops=False,
    no_mask=("", "default"),
)
READERS = (CUDA, HIP, ROCR, INTEL)
# Invalid entries that hide GPUs on purpose: no warning.
MASKS_OF_NONE = ("-1", "NoDevFiles", "none", "void")


# Tools that list GPUs. The pattern finds in a tool's answer each GPU's number, or the UUID of a MIG instance of the GPU
# before it. The program NVML answers as the first tool does.
NVIDIA = r"(?m)^GPU (\d+):|^[ \t]+MIG .*\(UUID: (MIG-[^)]+)\)"
TOOLS = (
    (("nvidia-smi", "-L"), NVIDIA, CUDA),
    (("amd-smi", "list", "--json"), r'"gpu": *(\d+)()\b', HIP),
    (("rocm-smi", "--showid", "--json"), r'"card(\d+)"()', HIP),
)
# A Python program that lists what NVIDIA's library knows, as `nvidia-smi -L` does, and adds the memory of each device.
# It is a process of its own, because it hangs if the driver does.
NVML = r"""
import sys
try:
    import pynvml
    pynvml.nvmlInit()
except Exception:
    sys.exit()  # no driver, or a broken package: the next tool may know more

def text(get, handle):
    try:
        found = get(handle)
    except (pynvml.NVMLError, AttributeError):
        return 0
    return getattr(found, "decode", lambda: found)()

def show(name, handle):
    size = text(lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20, handle)
    print(f"{name}: (UUID: {text(pynvml.nvmlDeviceGetUUID, handle)}) {size} MiB")

try:
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        show(f"GPU {index}", gpu)
        # `text` returns 0 where the bindings are older than MIG, and for a place without an instance.
        for place in range(text(lambda gpu: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu), gpu)):
            instance = text(lambda gpu: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place), gpu)
            if instance:
                show(f"  MIG {place}", instance)
except pynvml.NVMLError as error:
    sys.exit(f"pynvml: {error}")
"""


class Machine(NamedTuple):
    """The devices that tests may use, by their tokens in device order, and how a test is told which are its own.

    The mask variables of all `readers` are set. `extra` are further variables, without which the tokens could mean
    other devices (CUDA_DEVICE_ORDER).
    """

    tokens: Sequence[str] = ()
    readers: Sequence[MaskReader] = ()
    extra: Environ = {}

    @property
    def devices(self) -> Tuple[Device, ...]:
        return tuple(map(Device, count(), self.tokens))

    def mask(self, lease: Lease) -> Environ:
        """The environment that shows a test the devices of its lease and no others."""
        value = ",".join(lease.tokens)
        masks = {reader.variable: value or self.readers[0].hide for reader in self.readers}
        return {**self.extra, **masks}


def read_mask(reader: MaskReader, value: str | None) -> List[str] | None:
    """The tokens that a mask leaves visible; None if it is no mask. Raises UsageError for duplicates."""
    if value is None or value in reader.no_mask:
        return None
    visible: List[str] = []
    kinds: Set[int | None] = set()  # the groups that have matched
    for entry in value.rstrip(",").split(","):
        found = re.fullmatch(reader.token, entry)
        word = entry.strip()
        if found and kinds <= {found.lastindex}:
            kinds.add(found.lastindex)
            token = found.group(found.lastindex or 0).strip()
            if token.casefold() in map(str.casefold, visible):
                raise UsageError(
                    f"{reader.variable}={value} names {token} twice; name each GPU once"
                )
            visible.append(token)
            if token != word:
                warn(
                    f"{reader.variable}={value}: {word!r} is read as {token}; put commas between ids"
                )
        elif reader.stops:
            if value.strip() and word not in MASKS_OF_NONE:
                warn(
                    f"{reader.variable}={value}: {entry!r} is no id, and hides itself and all after it; write it as 0,1"
                )
            break
    return visible


def outer_machine(environ: Environ) -> Machine | None:
    """The devices of the outer mask, or None if there is no mask. Raises UsageError if masks disagree."""
    masks = {}
    for reader in READERS:
        visible = read_mask(reader, environ.get(reader.variable))
        if visible is not None:
            masks[reader] = visible
    if not masks:
        return None
    first, tokens = next(iter(masks.items()))
    if first is not CUDA or HIP not in masks:
        return Machine(tokens, [first])
    if masks[HIP] != tokens:  # HIP reads both variables and lets its own win
        raise UsageError(
            f"{CUDA.variable}={environ[CUDA.variable]} and {HIP.variable}={environ[HIP.variable]} "
            "disagree; unset the one that does not count"
        )
    return Machine(tokens, [HIP, CUDA])


class ToolError(Exception):
    """A vendor's tool is there and does not answer; why, in words."""


def call_tool(*command: str, over: threading.Event | None = None) -> str:
    """What a vendor's tool prints. Raises ToolError, also if it hangs: it is killed, or left stuck in the kernel.

    Once the event `over` is set, the tool is killed without an answer.
    """
    give_up_at = monotonic() + PROBE_S
    try:
        tool: Any = Popen(
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"cannot be run ({error.strerror})") from None
    with tool.stdout, tool.stderr:
        try:
            while tool.returncode is None:
                if over and over.is_set():
                    raise ToolError("was not waited for, since the run ends")
                if monotonic() >= give_up_at:
                    raise ToolError(f"did not answer in {PROBE_S:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    out, err = tool.communicate(timeout=TOOL_POLL_S)
        finally:  # Ctrl-C too
            if tool.poll() is None:
                os.killpg(tool.pid, SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    tool.wait(KILLED_S)
    if tool.returncode != 0:
        lines = (err + out).strip().splitlines() or ["nothing"]
        raise ToolError(f"failed with status {tool.returncode} ({lines[0]})")
    return out


def ask_tool(*command: str, over: threading.Event | None = None) -> str:
    """What a vendor's tool prints; empty, with a warning on stderr, if it is there and fails."""
    if not find_program(command[0]):
        return ""
    try:
        return call_tool(*command, over=over)
    except ToolError as error:
        warn(f"{command[0]} {error}; going on without it")
        return ""


def ask_pynvml() -> str:
    """What the program NVML prints; empty without the module pynvml."""
    from importlib.machinery import PathFinder

    if not PathFinder.find_spec("pynvml"):
        return ""
    return ask_tool(sys.executable, "-c", NVML)


def listed_tokens(pattern: str, listing: str) -> List[str]:
    """What a tool lists: GPU indices, or the UUIDs of MIG instances in place of the GPU that has them."""
    tokens: List[str] = []
    for gpu, instance in re.findall(pattern, listing):
        if instance and tokens and tokens[-1].isdigit():
            tokens.pop()
        tokens.append(gpu or instance)
    return tokens


def probe(environ: Environ) -> Machine:
    """Ask the vendors' tools in turn. No answer is an empty Machine."""
    tokens = listed_tokens(NVIDIA, ask_pynvml())
    for command, pattern, reader in TOOLS:
        tokens = tokens or listed_tokens(pattern, ask_tool(*command))
        if not tokens:
            continue
        if reader is not CUDA:  # AMD's tools may skip numbers; HIP counts without gaps
            return Machine([str(number) for number in range(len(tokens))], [reader])
        if "CUDA_DEVICE_ORDER" in environ:
            return Machine(tokens, [reader])
        return Machine(tokens, [reader], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    return Machine()


def find_machine(gpus: str, environ: Environ) -> Machine:
    """The devices of `--gpus`, of the outer mask or of the probe, the first that applies. Raises UsageError.

    Without an outer mask `--gpus` is believed without a look at the machine, and tests get it in CUDA's variable,
    which HIP reads too.
    """
    outer = outer_machine(environ)
    if not gpus:
        return outer or probe(environ)
    wanted = gpus.strip(",").split(",")
    if outer is None:
        if gpus.isdigit():
            wanted = list(map(str, range(int(gpus))))
        if read_mask(CUDA, ",".join(wanted)) != wanted:
            raise UsageError(
                f"--gpus {gpus}: CUDA cannot read these ids together; without an outer mask it has to"
            )
        return Machine(wanted, [CUDA])
    shown = list(outer.tokens)
    is_hidden = not set(wanted) <= set(shown)
    if gpus.isdigit():  # the first ones, whatever their ids are
        wanted = shown[: int(gpus)]
        is_hidden = len(wanted) < int(gpus)
    if is_hidden:
        raise UsageError(
            f"--gpus {gpus}: the outer mask shows {','.join(shown) or 'none'} alone, and is never widened; leave "
            "--gpus out to use what it shows"
        )
    return outer._replace(tokens=wanted)


class Sick(NamedTuple):
    """A device that tests can no longer use, and why."""

    device: Device
    reason: str


class Health:
    """What nvidia-smi says of the GPUs' memory: before the run, and after a test that did not pass.

    It knows nothing of MIG instances. An index in an outer mask is taken for the number that nvidia-smi gives a GPU. If
    nvidia-smi lists GPUs but not this number, the device is sick: a test would see no GPU there, and could skip itself.
    """

    SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
    # The row of a GPU that is well: in place of the temperature it may say why there is none.
    WELL = (
        r"\d+, \S+, (\d+), (?:\d+|\[(?:N/A|Not Supported|Insufficient Permissions)\])(?:, .*)?"
    )

    def __init__(self, machine: Machine) -> None:
        self.over = threading.Event()  # nobody needs an answer any more
        self.sick: List[Sick] = []  # devices that were broken before the run
        # By watched GPU, the MiB in use there while no test runs on it.
        self.used: Counter[Device] = Counter()
        if CUDA not in machine.readers or not machine.tokens:
            return
        rows = self.ask(tool=ask_tool)
        absent = ""
        for device in machine.devices:
            row = rows.get(device.token, "")
            held = self.more(device, row)
            if rows and not row and device.token.isdigit() and not absent:
                absent = (
                    f"nvidia-smi lists no GPU {device.token}; CUDA hides it and all after it"
                )
            reason = absent
            if re.search(r"\[GPU (?:requires reset|is lost)\]", row):
                reason = f"nvidia-smi: {row}"
            if reason:
                self.sick.append(Sick(device, reason))
            elif held is not None:
                self.used[device] = held

    def ask(self, *which: str, tool: Callable[..., str] = call_tool) -> Dict[str, str]:
        """By index and by UUID, the rows of GPUs. Raises ToolError."""
        rows = {}
        query = "--query-gpu=index,uuid,memory.used,temperature.gpu,memory.total"
        answer = tool(*self.SMI, query, *which, over=self.over)
        for row, index, uuid in re.findall(r"(?m)^((\d+), ([^,\n]+).*)", answer):
            rows[index] = rows[uuid] = row
        return rows

    def read(self, devices: Sequence[Device]) -> Dict[Device, str]:
        """The rows of these GPUs. Where nvidia-smi fails because of one GPU, each is asked about by itself."""
        rows = {}
        with suppress(ToolError):
            rows = self.ask()
        for device in devices:
            if device.token not in rows:
                try:
                    rows.update(self.ask("-i", device.token))
                except ToolError as error:
                    rows[device.token] = str(error)
        return {device: rows.get(device.token, "says nothing") for device in devices}

    def more(self, device: Device, row: str) -> int | None:
        """MiB that a GPU holds beyond what it did before the run, if it was watched then; None if it is not well."""
        found = re.fullmatch(self.WELL, row)
        if not found:
            return None
        return int(found.group(1)) - self.used[device]

    def examine(self, lease: Lease) -> Iterator[Sick]:
        """Wait until a test's GPUs have their memory back, for MEMORY_S at most; yields the GPUs that are not well.

        The memory of a GPU of which the test had only a share is not waited for: other tests may hold it.
        """
        watched = [device for device in lease.devices if device in self.used]
        is_whole = lease.shares == SHARES
        give_up_at = monotonic() + MEMORY_S
        is_held = bool(watched)
        rows = {}
        while is_held and monotonic() < give_up_at and not self.over.wait(FOLLOW_S):
            rows = self.read(watched)
            is_held = is_whole and any(
                (self.more(device, row) or 0) > MEMORY_MIB for device, row in rows.items()
            )
        if self.over.is_set():
            return
        for device, row in rows.items():
            more = self.more(device, row)
            if more is None:
                yield Sick(device, f"nvidia-smi: {row}")
            elif is_whole and more > MEMORY_MIB:
                warn(
                    f"GPU {device.token} does not give back {more} MiB; {self.holders(device)}"
                )
                self.used[device] += more  # the next test is not to wait for this memory again

    def holders(self, device: Device) -> str:
        """Who holds a GPU's memory, in words."""
        listing = ask_tool(
            *self.SMI, "--query-compute-apps=pid,process_name", "-i", device.token
        )
        holders = [
            f"{basename(name)} (pid {pid})" for pid, name in re.findall(r"(\d+), (.*)", listing)
        ]
        if not holders:
            return "nvidia-smi sees no process there"
        return f"held by {', '.join(holders)}"


class Pool:
    """What is free on a machine: devices (whole or in shares), CPU slots and slot numbers.

    Without devices there is still one place to run: a device without a token. If `sequential`, every lease has the
    machine to itself, as a lease for ALL_GPUS always has.
    """

    is_alone = False  # a lease is out that has the machine to itself

    def __init__(
        self, devices: Sequence[Device], cpus: int = 1, sequential: bool = False
    ) -> None:
        self.devices = devices or [Device(0, "")]
        self.cpus = cpus
        self.sequential = sequential
        # By device index, the shares that are free; SHARES less for a device in quarantine.
        self.room = [SHARES] * len(self.devices)
        self.slots: Set[int] = set()  # numbers of the leases that are out
        # Makes equal leases only once, since Results keep them.
        self.make_lease = lru_cache(maxsize=None)(Lease)
        self.quarantined: Set[int] = set()  # indices of the devices in quarantine

    @property
    def size(self) -> int:
        return len(self.devices) - len(self.quarantined)

    def holds(self, need: float) -> bool:
        """Whether a test with such a need could run if nothing else did."""
        return need <= self.size or need == ALL_GPUS

    def lack(self, test: Test) -> str:
        """What a test needs that is never free: `needs 4 GPUs, more than there are`; empty if it can run."""
        if self.holds(test.gpus):
            return ""
        most = "are left" if self.quarantined else "there are"
        return f"needs {test.gpus:g} GPUs, more than {most}"

    def take(self, need: float, avoid: Container[int] = ()) -> Lease | None:
        """A lease on what a test needs, without the devices whose indices are in `avoid`; None if that is not free."""
        alone = self.sequential or need == ALL_GPUS
        if self.is_alone or (alone and self.slots) or (need == 0 and not self.cpus):
            return None
        count = self.size
        if need < ALL_GPUS:
            count = ceil(need)
        shares = round(min(need, 1) * SHARES)
        chosen = self.choose(count, shares, avoid)
        if len(chosen) < count:
            return None
        for index in chosen:
            self.room[index] -= shares
        self.cpus -= need == 0
        self.is_alone = alone
        devices = tuple(self.devices[index] for index in chosen)
        return self.make_lease(devices, self.take_slot(), shares)

    def take_slot(self) -> int:
        """The smallest slot number that is free."""
        slot = next(slot for slot in count() if slot not in self.slots)
        self.slots.add(slot)
        return slot

    def choose(self, count: int, shares: int, avoid: Container[int]) -> Sequence[int]:
        """The indices of `count` devices with so many free shares; none if there are too few.

        A fraction is taken from the device with the least room that is enough. Whole devices are the first ones with
        the smallest distance between the lowest and the highest index.
        """
        if not count:
            return ()
        free = [
            index
            for index, room in enumerate(self.room)
            if room >= shares and index not in avoid
        ]
        free.sort(key=lambda index: self.room[index])
        blocks = [free[start : start + count] for start in range(len(free) - count + 1)]
        return min(blocks, key=lambda block: block[-1] - block[0], default=())

    def give(self, lease: Lease) -> None:
        """Take a lease back."""
        for device in lease.devices:
            self.room[device.index] += lease.shares
        self.cpus += not lease.devices
        self.is_alone = False
        self.slots.remove(lease.slot)

    def quarantine(self, device: Device) -> None:
        """Lease a device no more."""
        self.quarantined.add(device.index)
        self.room[device.index] -= SHARES


def make_pool(devices: Sequence[Device], tests: Tests, options: Options) -> Pool:
    """The pool of a machine with these devices: sequential where there is at most one place to run tests.

    One GPU is one place, unless two tests or more ask for a fraction of a GPU.
    """
    jobs = options.jobs or max(len(devices), 1)
    only_gpu = all(test.gpus > 0 for test in tests)
    shares = sum(0 < test.gpus < 1 for test in tests) > 1
    sequential = len(devices) + shares <= 1 and (jobs <= 1 or only_gpu)
    return Pool(devices, jobs, sequential)


# ---------------------------------------------------------------------------------------------------
# 6. Schedule: event and time in, actions out. No clock, no process, no output.
#    (The shape is nextest's dispatcher: one event in, one response out.)
# ---------------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """The run starts."""

    sick: Sequence[Sick] = ()  # devices that are broken already


class Submit(NamedTuple):
    """A script has handed over more tests, all without `after`. `order` has all waiting tests, in starting order."""

    order: Tests


class Exited(NamedTuple):
    """All processes of an attempt have ended. `status` is as in subprocess; what follows was found afterwards.

    `ended` is when its shell did, by a monotonic clock; processes that it left may have taken longer.
    """

    ended: float
    test: Test
    status: int
    junit_fault: str = ""
    junit_failures: int = 0  # of its own JUnit file
    cause: Cause = NO_CAUSE
    leaked: Words = ()
    sick: Sequence[Sick] = ()
    memory: float = 0.0  # seconds that its GPUs took to give their memory back
    ran_none: bool = False  # its JUnit file is whole, and has no case that was not skipped


class Broken(NamedTuple):
    """The runner could not run a test, and ends the run: the test's log or process could not be made, for example."""

    test: Test
    reason: str


class Tick(NamedTuple):
    """Time has passed. `sick` devices are gone with their machine; each attempt there posts an Exited of its own."""

    sick: Sequence[Sick] = ()


class Interrupt(NamedTuple):
    """A signal asks the runner to end; SIGUSR1, which the schedule never sees, asks what runs."""

    signum: int


Event = Union[Begin, Submit, Exited, Broken, Tick, Interrupt]


class Attempt:
    """A running attempt, from Launch until its result. `Schedule.running` has all of them.

    The schedule itself does not look at `process`, at `log` (the path of the output) and at `slow_at`.
    """

    slow_at = inf  # when to announce next that it still runs
    sent = 0  # the last signal sent to it
    ending: Outcome | None = None  # TIMEOUT or INTERRUPTED, once it is being ended
    ending_at = inf  # when its ending began
    process: Any = None
    log = ""

    def __init__(self, test: Test, lease: Lease, number: int, at: float) -> None:
        self.test = test
        self.lease = lease
        self.number = number
        self.began = at
        self.deadline = at + (test.timeout or inf)  # when the next signal is due

    def result(self, outcome: Outcome, **values: Any) -> Result:
        """How it has ended."""
        return Result(self.test, outcome, lease=self.lease, attempt=self.number, **values)


class Launch(NamedTuple):
    """Start an attempt."""

    attempt: Attempt


class Retry(NamedTuple):
    """An attempt has ended without a pass, and another will follow."""

    result: Result


class Kill(NamedTuple):
    """Send a signal to a test's process group. If `stacks` gives a reason, its Pythons write their stacks before."""

    attempt: Attempt
    signum: int
    stacks: str


class Quarantine(NamedTuple):
    """Tests can no longer use a device."""

    sick: Sick


class Conclude(NamedTuple):
    """A test has its outcome. `is_news` is False if a Retry has already reported its last attempt."""

    result: Result
    is_news: bool


Action = Union[Launch, Retry, Kill, Quarantine, Conclude]
Actions = List[Action]


class Schedule:
    """Decides which test starts when, when one is stopped, and what its end means.

    `tests` come in starting order. A test is `waiting` until it starts or is concluded. Once its `after` lets it start,
    it also stands in a line with the tests of the same need and locks. Whatever may start and fits starts at once, the
    first in starting order first.

    A test waits although a GPU is free: here for its `after`, for tests above its barrier, for a lock, or since the run
    is to end; in Pool.take for more GPUs, shares or CPU slots than are free, and for a test that has the machine to
    itself. A test that has ended keeps its GPUs until its leftovers have ended and its memory has come back
    (Host.run_process). In a script it waits moreover for what ScriptRun.scout_at_test says.
    """

    failure = ""  # why the machine cannot go on
    end_at = inf  # when --deadline ends the run
    is_overdue = False  # --deadline has ended the run
    stopped = False  # no test starts any more
    now = -inf  # the time of the last event
    actions: Actions  # what follows from the current event, so far

    def __init__(self, tests: Tests, pool: Pool, options: Options) -> None:
        self.pool = pool
        self.options = options
        self.grace = options.grace
        self.rank = dict(zip(tests, count()))
        self.followers = followers_of(tests)
        # By test that has not started: how many of the tests in its `after` have not passed yet.
        leaders = leaders_of(tests)
        self.waiting = {test: len(leaders[test]) for test in tests}
        # By need and locks, a heap of the tests whose `after` lets them start, ordered by barrier and rank.
        self.lines: Dict[Any, List[Tuple[int, int, Test]]] = defaultdict(list)
        self.locked: Set[str] = set()  # names of `lock` that running tests hold
        self.running: Dict[Test, Attempt] = {}
        # The results of each test's attempts, in order. A test that never ran ends with one result, too.
        self.results: Dict[Test, Tuple[Result, ...]] = defaultdict(tuple)
        # By test, how many of its attempts do not count, since the GPU was at fault.
        self.spared: Counter[Test] = Counter()
        # The latest results of GPU tests, as long as the machine is to blame for all of them.
        self.machine_failures: List[Result] = []
        self.interrupts: List[int] = []
        self.sick: List[Sick] = []  # devices in quarantine

    @property
    def done(self) -> bool:
        return not self.running and not self.waiting

    def deadline(self) -> float:
        """When the next Tick is due, on the events' clock; infinity if none is."""
        return min([self.end_at, *(attempt.deadline for attempt in self.running.values())])

    def step(self, event: Event, now: float) -> Actions:
        """Take in one event, at this time of a monotonic clock; returns what to do now, in order."""
        if isinstance(event, (Exited, Broken)) and event.test not in self.running:
            return []  # the attempt was abandoned
        self.now = now
        self.actions = []
        respond = getattr(self, f"on_{type(event).__name__.lower()}")  # `on_exited` to Exited
        respond(event)
        self.start_waiting()
        return self.actions

    # Events.

    def on_begin(self, event: Begin) -> None:
        if self.options.deadline:  # the tests get at least half of it
            reserve = min(self.options.grace + STACKS_S + REPORT_S, self.options.deadline / 2)
            self.end_at = self.now + self.options.deadline - reserve
        # If no test needs a GPU, sick GPUs do not matter. A script's tests are not known yet.
        if not self.waiting or any(test.gpus for test in self.waiting):
            self.quarantine(event.sick)
        self.line_up(*self.waiting)
        self.refuse_unrunnable()

    def on_submit(self, event: Submit) -> None:
        self.rank.update(zip(event.order, count()))
        self.waiting = dict.fromkeys(event.order, 0)
        self.lines.clear()
        self.line_up(*self.waiting)
        if self.stopped:
            self.stop()
        self.refuse_unrunnable()

    def on_exited(self, event: Exited) -> None:
        test = event.test
        attempt = self.free(test)
        result = judge(event, attempt, self.options, self.spared[test])
        sick = list(event.sick)
        # The log of a test with one GPU may show that this is broken; if it does so again on a second one, the test is
        # to blame.
        is_in_log = result.cause.blame is Blame.DEVICE and len(result.gpu_indices) == 1
        if is_in_log and test not in self.spared:
            reason = f"{result.cause.text} in {test.label}"
            sick.insert(0, Sick(attempt.lease.devices[0], reason))
        # An attempt that a companion has spared does not count, so it is not `failed as known` either.
        if attempt.number > self.spared[test] and not sick:
            result = as_known(result, self.options.known_failures.get(test.origin, ""))
        else:
            self.spared.setdefault(test, 1)
            if result.outcome.is_excused:  # on a broken GPU, a skip says nothing of the test
                result = result._replace(outcome=Outcome.FAILED)
        self.quarantine(sick)
        if self.is_machine_wide(result):
            self.fail(f"{result.cause.text}, on every GPU")
        if self.stopped or self.pool.lack(test) or attempt.number >= self.tries_of(result):
            self.conclude(result)
            return
        self.results[test] += (result,)
        self.waiting[test] = 0
        self.line_up(test)
        self.actions.append(Retry(result))

    def on_broken(self, event: Broken) -> None:
        attempt = self.free(event.test)
        self.fail(event.reason)
        self.conclude(attempt.result(Outcome.NOT_RUN, reason=event.reason))

    def on_interrupt(self, event: Interrupt) -> None:
        """The first signal goes to the tests, a further one kills them."""
        signum = event.signum
        if self.interrupts:
            signum = SIGKILL
        self.interrupts.append(event.signum)
        self.end_running(signum)

    def on_tick(self, event: Tick) -> None:
        self.quarantine(event.sick)
        if self.now >= self.end_at:
            self.grace = min(self.grace, self.options.deadline / 4)
            self.end_at = inf
            self.is_overdue = True
            self.end_running(SIGTERM, "--deadline ends the run")
        for attempt in list(self.running.values()):
            if attempt.deadline <= self.now:
                self.alarm(attempt)

    # What becomes of tests that have run.

    def quarantine(self, sick: Sequence[Sick]) -> None:
        """Put devices in quarantine, and conclude the tests that need more than are left."""
        for each in sick:
            device = each.device
            if device.token and device.index not in self.pool.quarantined:
                self.pool.quarantine(device)
                self.sick.append(each)
                self.actions.append(Quarantine(each))
        if sick and self.pool.size:
            self.refuse_unrunnable()
        elif sick and not self.failure:
            self.fail("no usable GPU is left")

    def is_machine_wide(self, result: Result) -> bool:
        """Whether the machine is to blame for the latest results: of two tests or more, and of one on every GPU."""
        if not result.gpu_indices:
            return False
        self.machine_failures.append(result)
        if result.cause.blame is not Blame.MACHINE:
            self.machine_failures.clear()
        gpus = frozenset().union(*(each.gpu_indices for each in self.machine_failures))
        is_everywhere = len(gpus - self.pool.quarantined) == self.pool.size
        return is_everywhere and len({each.test for each in self.machine_failures}) > 1

    def tries_of(self, result: Result) -> int:
        """How many attempts a test may have, given the result of its last one."""
        if not result.outcome.can_be_retried:
            return 0
        retries = result.test.attributes.retries
        if retries is None:
            retries = self.options.retries
        if not re.search(self.options.retry_on, f"{result.cause.text}\n{result.why}"):
            retries = 0
        return 1 + self.spared[result.test] + retries

    def refuse_unrunnable(self) -> None:
        """Conclude the tests that need more GPUs than there are, or are left."""
        self.give_up(filter(self.pool.lack, self.waiting), Outcome.UNRUNNABLE)

    def give_up(self, tests: Iterable[Test], outcome: Outcome) -> None:
        """Conclude tests that will not start any more: with the result of the last attempt, else with `outcome`."""
        ends = []
        for test in sorted(tests):
            never = Result(test, outcome, reason=self.pool.lack(test))
            ends.append(self.results.get(test, (never,))[-1])
        self.conclude(*ends)

    def conclude(self, *ends: Result) -> None:
        """Give outcomes to tests, and to those that now wait in vain; with --fail-fast a failure stops the run."""
        results = list(ends)
        for ended in ends:
            self.waiting.pop(ended.test, None)
        for ended in results:  # `results` grows
            test = ended.test
            is_news = ended not in self.results[test]
            if is_news:
                self.results[test] += (ended,)
            self.actions.append(Conclude(ended, is_news))
            in_vain = Outcome.BLOCKED  # what becomes of tests that wait for a pass of this one
            if ended.outcome is Outcome.SKIPPED:
                in_vain = Outcome.SKIPPED
            # `followers[test]` would keep an empty list for each of 10,000 tests.
            for follower in self.followers.get(test, ()):
                if follower not in self.waiting:
                    continue
                self.waiting[follower] -= 1
                if ended.outcome.is_pass:
                    self.line_up(follower)
                else:
                    del self.waiting[follower]
                    reason = f"waits for {test.label}, which did not pass"
                    results.append(Result(follower, in_vain, reason=reason))
        if self.options.fail_fast and any(self.options.fails(end.outcome) for end in results):
            self.stop()

    # How running tests are ended.

    def fail(self, why: str) -> None:
        """The machine cannot go on: end what runs, start nothing more."""
        self.failure = self.failure or why
        self.end_running(SIGTERM)

    def stop(self) -> None:
        """Start nothing more: a waiting test is NOT_RUN, or keeps the result of its last attempt."""
        self.stopped = True
        self.give_up(self.waiting, Outcome.NOT_RUN)

    def end_running(self, signum: int, stacks: str = "") -> None:
        """Start nothing more, and end what runs."""
        self.stop()
        for attempt in self.running.values():
            self.end(attempt, Outcome.INTERRUPTED, signum, stacks)

    def end(self, attempt: Attempt, outcome: Outcome, signum: int, stacks: str) -> None:
        """End a test by one signal; SIGKILL follows after the grace period. The first `outcome` given to it counts."""
        if not attempt.ending:
            attempt.ending = outcome
            attempt.ending_at = self.now
        attempt.sent = signum
        attempt.deadline = self.now + STUCK_S
        if signum != SIGKILL:
            attempt.deadline = self.now + self.grace + STACKS_S * bool(stacks)
        self.actions.append(Kill(attempt, signum, stacks))

    def alarm(self, attempt: Attempt) -> None:
        """The deadline of an attempt has passed: send SIGTERM, the next time SIGKILL, and after that abandon it."""
        if attempt.sent == SIGKILL:
            self.abandon(attempt)
            return
        signum = SIGKILL
        why = f"did not end by a signal in {self.grace:g}s"
        if not attempt.ending:
            signum = SIGTERM
            why = f"did not end in {attempt.test.timeout:g}s"
        self.end(attempt, Outcome.TIMEOUT, signum, why)

    def abandon(self, attempt: Attempt) -> None:
        """Go on without the GPUs of a test that cannot be killed."""
        why = "cannot be killed"
        self.free(attempt.test)
        reason = f"{attempt.test.label} {why}"
        self.quarantine([Sick(device, reason) for device in attempt.lease.devices])
        result = attempt.result(
            attempt.ending or Outcome.TIMEOUT,
            seconds=self.now - attempt.began,
            status=-SIGKILL,
            reason=why,
            junit_fault="left open",
            cause=Cause(why),
        )
        self.conclude(result)

    def free(self, test: Test) -> Attempt:
        """Take back what a running test holds."""
        attempt = self.running.pop(test)
        self.pool.give(attempt.lease)
        self.locked.difference_update(test.attributes.lock)
        return attempt

    # How tests start.

    def line_up(self, *tests: Test) -> None:
        """Put those of the tests that wait for no other test into their lines."""
        for test in tests:
            if not self.waiting[test]:
                line = self.lines[test.gpus, test.attributes.lock]
                heapq.heappush(line, (test.barrier, self.rank[test], test))

    def start_waiting(self) -> None:
        """Start every test that may start now, in starting order; none while a test above its barrier has not ended.

        To look at running tests and lines is enough: no `after` names a test below a further barrier, so of the tests
        above the barrier that have not ended, one is always among them.
        """
        barriers = {test.barrier for test in self.running}
        lines = list(filter(None, self.lines.values()))
        heapq.heapify(lines)
        while lines:
            line = heapq.heappop(lines)
            barrier, _, test = line[0]
            if test in self.waiting:
                barriers.add(barrier)
                if barrier == min(barriers) and self.locked.isdisjoint(test.attributes.lock):
                    self.start(test)
            if test not in self.waiting:  # it has started, or been concluded
                heapq.heappop(line)
                if line:
                    heapq.heappush(lines, line)

    def start(self, test: Test) -> None:
        """Start a test, if there is room for it: a retry on other GPUs than before, if it can."""
        earlier = self.results.get(test, ())
        lease = None
        if earlier:
            lease = self.pool.take(test.gpus, earlier[-1].gpu_indices)
        lease = lease or self.pool.take(test.gpus)
        if lease is None:
            return
        del self.waiting[test]
        self.locked.update(test.attributes.lock)
        attempt = self.running[test] = Attempt(test, lease, len(earlier) + 1, self.now)
        self.actions.append(Launch(attempt))


def shortest(seconds: Seconds, gpus: int, cpus: int) -> float:
    """The seconds that a run takes at least, in any order, from each test's seconds and the GPUs and CPU slots.

    Between two barriers: the most of GPU work over GPUs, CPU work over CPU slots, and the longest chain of `after`.
    """
    parts = defaultdict(list)
    for test in seconds:
        parts[test.barrier].append(test)
    total_s = 0.0
    for part in parts.values():
        gpu_s = fsum(work_of(test, seconds, gpus) for test in part)
        cpu_s = fsum(seconds[test] for test in part if not test.gpus)
        longest_s = max(length for _, length in chains_of(part, seconds).values())
        bounds = gpu_s / max(gpus, 1), cpu_s / max(cpus, 1), longest_s
        total_s += max(bounds)
    return total_s


def judge(event: Exited, attempt: Attempt, options: Options, spared: int) -> Result:
    """What the end of an attempt means. Status 0 is no pass if its JUnit file or leaked processes speak against it."""
    outcome = outcome_of(event.status)
    if attempt.ending_at <= event.ended:  # else the shell had ended before the signal came
        outcome = attempt.ending or outcome
    cause = event.cause
    fault = event.junit_fault
    reason = ""
    passed = outcome is Outcome.PASSED
    is_first = attempt.number <= 1 + spared  # a spared attempt was its GPU's fault
    has_died = event.test.is_pytest and fault  # where it ends by itself, the file is whole
    is_skip = event.status == options.skip_code and not event.junit_failures and not has_died
    if outcome is Outcome.TIMEOUT:
        cause = Cause("timeout")
        reason = f"did not end in {event.test.timeout:g}s"
    elif cause == OOM_KILLED:
        reason = "OOM killer"
    elif passed and event.junit_failures:
        reason = f"its JUnit file shows failures: {event.junit_failures}"
    elif passed and has_died:
        reason = f"its JUnit file is {fault}"
    elif passed and event.leaked and options.leaks == "fail":
        reason = count_leaks(event.leaked)
        cause = Cause("leaked processes")
    if passed and reason:
        outcome = Outcome.FAILED
    elif passed and not is_first:
        outcome = Outcome.FLAKY
    elif outcome is Outcome.FAILED and is_skip and is_first:
        outcome = Outcome.SKIPPED
        cause = NO_CAUSE
    if outcome.is_pass and fault:
        reason = f"without its JUnit file ({fault})"
    elif not (options.accepts(outcome) or fault or event.junit_failures) and event.test.junit:
        fault = "without a failure"  # written before the test died: CI would show green
    return attempt.result(
        outcome,
        seconds=event.ended - attempt.began,
        status=event.status,
        reason=reason or "ran none of its cases" * event.ran_none,
        junit_fault=fault,
        cause=cause,
        leaked=event.leaked,
        memory=event.memory,
    )


def as_known(result: Result, why: str) -> Result:
    """A result as pytest's xfail would have it, if `why` gives a reason for which the test is known to fail.

    A crash or a timeout stays one: xfail does not cover what takes the interpreter down, and it may be a new fault.
    """
    if why and result.outcome is Outcome.FAILED:
        return result._replace(outcome=Outcome.KNOWN, reason=why)
    if why and result.outcome.is_pass:
        return result._replace(reason=f"passes, though known to fail ({why})")
    return result


def outcome_of(status: int) -> Outcome:
    """What an exit status says. A shell passes on the death of its command as 128+N: that is a crash too."""
    if status == 0:
        return Outcome.PASSED
    return Outcome.CRASHED if death_of(status) else Outcome.FAILED


# ---------------------------------------------------------------------------------------------------
# 7. Execute: the processes of a test, from spawn to sweep. Most of it runs in pool threads.
# ---------------------------------------------------------------------------------------------------

# Access to files, where a test may have put a link, a pipe or a device in place of the file.


def regular_file(path: str, flags: int) -> int:
    """A descriptor of a regular file. Raises OSError for any other, at which a reader might wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return descriptor


def open_regular(path: str) -> BinaryIO:
    """A regular file, to be read. Raises OSError."""
    return open(path, "rb", opener=regular_file)


def check_name(path: str, has_links: bool = True) -> None:
    """Raises OSError unless a name is free, or that of a regular file (or of a link, if `has_links`)."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not (has_links and stat.S_ISLNK(mode)):
            raise OSError(errno.EEXIST, "is no regular file; move it away", path)


def check_kind(path: str, pattern: bytes, kind: str) -> None:
    """Raises OSError for a file whose beginning does not match a pattern. An empty or missing file is fine.

    So a list is not overwritten by somebody who takes an option for a switch (`--junit tests.txt`).
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        beginning = file.read(TAIL_BYTES).strip()
        if beginning and not re.match(pattern, beginning):
            raise OSError(errno.EEXIST, f"is no {kind}; move it away", path)


def put_aside(path: str, name: str) -> None:
    """Rename a file. A link, a device or nothing at all stays as it is. Raises OSError."""
    with suppress(FileNotFoundError, FileExistsError):
        check_name(path, has_links=False)
        os.replace(path, name)


def clear_name(path: str) -> None:
    """Take a file or a link away, if there is one. Raises OSError if there is something else, which stays."""
    with suppress(FileNotFoundError):
        check_name(path)
        os.unlink(path)


def fresh_file(path: str) -> int:
    """A descriptor of a new file, in place of one that had its name. What a link pointed to stays. Raises OSError."""
    clear_name(path)
    # A test may have removed the folder.
    os.makedirs(dirname(path) or ".", exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)


def file_signature(path: str) -> str:
    """What changes when a file is written anew; empty if there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
    return ""


def tail_of(path: str, size: int = TAIL_BYTES) -> str:
    """The end of a file as text; empty if it cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read(size).decode("utf-8", "replace")
    return ""


# Processes, as /proc shows them.


class ProcessInfo(NamedTuple):
    """A live process."""

    pid: int
    name: str
    group: int
    session: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


Processes = List[ProcessInfo]


def read_proc(path: str) -> bytes:
    """A file below /proc; empty if it is not there, or we may not see it."""
    with suppress(OSError):
        return content_of(f"/proc/{path}")
    return b""


def process_info(pid: int) -> ProcessInfo | None:
    """What /proc says of a process; None if it is dead. A zombie lives as long as it has other threads."""
    head, _, rest = read_proc(f"{pid}/stat").rpartition(b") ")
    numbers = rest.split()[2:]  # group, session; the 16th says how many threads
    if not numbers or (rest[:1] in b"ZX" and numbers[15] == b"1"):
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    name = re.sub(CONTROL, "?", name)
    return ProcessInfo(pid, name, *map(int, numbers[:2]))


def process_table() -> Processes:
    """The live processes of the machine."""
    pids = filter(str.isdigit, os.listdir("/proc"))
    return list(filter(None, map(process_info, map(int, pids))))


def proc_number(path: str, pattern: bytes, base: int = 10) -> int:
    """A number in a file below /proc; 0 if it is not there, or we may not see it."""
    found = re.search(pattern, read_proc(path))
    if not found:
        return 0
    return int(found.group(1), base)


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal."""
    return bool(
        proc_number(f"{pid}/status", rb"\nSigCgt:\s*([0-9a-f]+)", 16) >> (signum - 1) & 1
    )


def send(signum: int, processes: Iterable[ProcessInfo]) -> None:
    """Send a signal to processes, as far as they are there."""
    for info in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(info.pid, signum)


def kill_all(look: Callable[[], Processes]) -> Tuple[Set[ProcessInfo], Processes]:
    """Kill processes as long as a look finds some, KILLED_S at most. Returns all that were found, and what is left."""
    give_up_at = monotonic() + KILLED_S
    left = look()
    found = set(left)
    while left and monotonic() < give_up_at:
        send(SIGKILL, left)
        sleep(SWEEP_POLL_S)
        left = look()
        found.update(left)
    return found, left


# The guard waits until its standard input ends, by the runner's death. Then it kills all processes that bear the run's
# mark, and their descendants, until none is left. Arguments: the run, the mark, the scratch folder.
GUARD = r"""
main() {
  local run=$1 mark=$2 scratch=$3 calm=0 still=0 newest=0 last folder pid line variable variables found
  trap '' INT TERM HUP QUIT
  read -r
  # Our `sleep` raises the newest process number by 1. If it rises by more, something may fork faster than we look. We
  # stop after 5 looks in a row without such a rise (`still`), or 30 in a row that find nothing to kill (`calm`).
  while ((still < 5 && calm < 30)); do
    last=$newest
    read -r _ _ _ _ newest </proc/loadavg
    ((newest == last + 1 ? ++still : (still = 0)))
    local -A parent=() ours=()
    for folder in /proc/[0-9]*; do
      pid=${folder#/proc/}
      read -r line <"$folder/stat" || continue
      set -- ${line##*) }
      # A zombie may have other threads, which the 18th word counts. Kernel threads have bit 21 of the 7th.
      [[ $1${18} != Z1 && $pid != 1 && $pid != $$ ]] && ((~$7 & 1 << 21)) || continue
      parent[$pid]=$2
      read -r -d '' line <"$folder/limits"
      [[ $line =~ realtime\ timeout\ +([0-9]+) ]] && ((mark && BASH_REMATCH[1] >> 20 == mark >> 20)) && ours[$pid]=1
      variables=()  # if `environ` cannot be read, those of the process before may not stay here
      mapfile -d '' -t variables <"$folder/environ"
      for variable in "${variables[@]}"; do
        [[ $variable == RUN_TESTS_@(RUN|PLACES)=*"$run"* ]] && ours[$pid]=1
      done
    done
    found=1
    while [[ $found ]]; do
      found=
      for pid in "${!parent[@]}"; do
        [[ ! ${ours[$pid]-} && ${ours[${parent[$pid]}]-} ]] && ours[$pid]=1 found=1
      done
    done
    ((calm++))
    ((${#ours[@]} == 0)) || { kill -KILL "${!ours[@]}"; calm=0 still=0; }
    sleep 0.02
  done
  [[ ! $scratch ]] || rm -rf -- "$scratch"
}
main "$@" 2>/dev/null
"""


class Reaper:
    """Loses no process that a test has started, and ends them all if the runner itself is killed.

    As a child subreaper the runner becomes the parent of orphans: processes whose parents have ended, wherever they
    went (setsid, a daemon). Linux gives them to its main thread, and lists them apart from the children of other
    threads: if a test leaves nothing, one look at this list is enough. Each attempt has a mark that its
    processes do not lose by a new session or an empty environment: its number as the soft limit of RLIMIT_RTTIME,
    which is inherited by fork and kept by exec (getrlimit(2)), and so large that it limits nothing. Another
    process, the guard, waits for the runner's death; it holds the files in `kept` open, and so their locks, until it
    has done its work.
    """

    ONLY_MINE = 0x20000000  # __WNOTHREAD of waitpid: not the children of other threads
    guard: Popen[bytes] | None = None
    not_tests: FrozenSet[int] = frozenset()  # children that the run must not end
    run = "RUN_TESTS_RUN"  # the run's name; before it has one, the variable that all runs set

    def __init__(self) -> None:
        if realpath("/proc/self") != f"/proc/{os.getpid()}":
            raise MachineError(
                "/proc is missing, or of another PID namespace; mount it (only Linux has one)"
            )
        self.scratch = Scratch()
        self.kept: List[int] = []  # descriptors of the files that the guard is to hold open
        self.mark = run_mark()  # the run's; 0 if marks cannot be set
        self.marks = count(self.mark + 1)  # for the attempts
        self.path = f"/proc/self/task/{os.getpid()}/children"
        # Whether orphans become our children, in a list that we can read.
        self.sees_orphans = adopt_orphans() and isfile(self.path)
        self.not_tests = self.orphans()  # children from before the runner was exec'ed
        self.has_inherited = bool(self.not_tests)

    def post_guard(self, bash: str) -> None:
        """Start the guard, or a new guard if it has been killed. Raises OSError.

        The guard gets its program in its environment: the runner may be killed before it could send anything.
        """
        if not self.guard or self.guard.poll() is not None:
            self.dismiss_guard()
            self.guard = Popen(
                [
                    "sweeper",  # what `ps` and our messages call the guard
                    "-pc",  # privileged: it heeds no SHELLOPTS, no BASH_ENV and no functions
                    'eval "$RUN_TESTS_GUARD"',
                    "",
                    self.run,
                    str(self.mark),
                    self.scratch.folder,
                ],
                executable=bash,
                env={**os.environ, "RUN_TESTS_GUARD": GUARD},
                stdin=PIPE,  # which ends when we do
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
                pass_fds=self.kept,
                cwd="/",
            )
            self.not_tests |= {self.guard.pid}

    def dismiss_guard(self) -> None:
        """End the guard, if there is one that has not ended."""
        if self.guard:
            with self.guard:  # which closes its pipe and reaps it
                self.guard.kill()

    def orphans(self) -> FrozenSet[int]:
        """The pids of the orphans, some perhaps dead, as the kernel lists them. Raises OSError."""
        if not self.sees_orphans:
            return frozenset()
        return frozenset(map(int, content_of(self.path).split())) - self.not_tests

    def collect(self) -> None:
        """Reap the orphans that have ended. Main thread only."""
        with suppress(OSError):  # none are left
            while os.waitpid(-1, os.WNOHANG | self.ONLY_MINE)[0]:
                pass

    def orphans_of_run(self) -> Processes:
        """The live orphans of the run, not those from children that the runner had before it was exec'ed."""
        return [
            info
            for info in filter(None, map(process_info, self.orphans()))
            if not self.has_inherited
            or limit_of(info.pid) >> 20 == self.mark >> 20
            or self.run.encode() in read_proc(f"{info.pid}/environ")
        ]

    def close(self) -> Processes:
        """When all tests have ended, kill the processes that they have left, and the guard; returns the killed ones."""
        found, left = kill_all(self.orphans_of_run)
        self.dismiss_guard()
        shutil.rmtree(self.scratch.folder, ignore_errors=True)  # "" if it was never made
        return sorted(found.difference(left))


def limit_of(pid: int) -> int:
    """The mark of a process, which is one of its soft limits; 0 if it has none."""
    return proc_number(f"{pid}/limits", rb"realtime timeout +(\d+)")


def run_mark() -> int:
    """Mark this process, and so all that it starts, with a number whose last 20 bits are 0; returns the number.

    Returns 0 where a process cannot be marked.
    """
    number = int.from_bytes(os.urandom(4), "big")
    mark = (1 << 62) + (number << 20)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, resource.RLIM_INFINITY))
    except (OSError, ValueError):  # the machine has set a limit of its own, or knows none
        return 0
    return mark


def adopt_orphans() -> bool:
    """Become a child subreaper; False for a Python without ctypes."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        return ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    return False


class Process:
    """One attempt's shell and its group. No signal goes to a group that is gone: others may have its number."""

    pid = 0  # of the shell, once it has started
    # The last signal asked for; `spawn` sends it if it came before there was a process.
    sent = 0
    has_ended = False
    is_gone = False
    stuck = ""  # what SIGKILL did not end, in words

    def __init__(self, reaper: Reaper) -> None:
        self.reaper = reaper
        number = next(reaper.marks)
        self.mark = reaper.mark and number
        # Stands in RUN_TESTS_PLACES of its processes; a runner among them passes it on to its own tests.
        self.place = f" {reaper.run}/{number} "
        self.lock = threading.Lock()

    def spawn(self, job: Job, output: int) -> None:
        """Start a job. What it prints goes to this descriptor, which is ours from now on. Raises OSError."""
        self.output = errors = output
        stdin: int | None = DEVNULL
        set_umask = None
        if job.umask >= 0:
            set_umask = partial(os.umask, job.umask)
        with ExitStack() as opened:
            if job.stdin == "-":
                stdin = None
            elif exists(job.stdin):  # /proc/PID/fd/0: the process may have ended
                # Without O_NONBLOCK, to open a pipe waits for a writer.
                stdin = os.open(job.stdin, os.O_RDONLY | os.O_NONBLOCK)
                opened.callback(os.close, stdin)
                os.set_blocking(stdin, True)
            if job.errors:
                errors = fresh_file(job.errors)
                opened.callback(os.close, errors)
            self.popen = Popen(
                list(map(to_bytes, job.words)),
                executable=job.bash,
                env=job.environment,
                stdin=stdin,
                cwd=job.directory,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                close_fds=False,  # as under bash, a test has the descriptors that we have
                preexec_fn=set_umask,  # noqa: PLW1509  # os.umask takes no lock
            )
        if self.mark:
            with suppress(OSError):  # it has ended
                limits = self.mark, resource.RLIM_INFINITY
                resource.prlimit(self.popen.pid, resource.RLIMIT_RTTIME, limits)
        self.pid = self.popen.pid
        if self.sent:
            self.signal(self.sent)

    def owns(self, info: ProcessInfo) -> bool:
        """Whether a process is the attempt's: by its group or session, by its mark, or else by its environment."""
        if self.pid in (info.group, info.session):
            return True
        if self.mark and limit_of(info.pid) == self.mark:
            return True
        return self.place.encode() in read_proc(f"{info.pid}/environ")

    def members(self) -> Processes:
        """The live processes of the attempt.

        If a process forks and ends while the table is read, both it and its child may be missing: a look that finds
        nothing is followed by a second one.
        """
        for pause_s in (0, SWEEP_POLL_S):  # during exec a process shows no environment
            sleep(pause_s)
            found = list(filter(self.owns, process_table()))
            if found:
                break
        return found

    def signal(self, signum: int, stacks: str = "") -> None:
        """Send a signal to the group, if it still exists. If `stacks` says why, its Pythons log their stacks before."""
        if self.has_ended and not self.sent:
            return  # `sweep` ends what the shell has left
        if stacks and self.pid and not self.is_gone:
            with suppress(OSError):
                self.dump_stacks(stacks, signum)
        with self.lock:
            if self.sent != SIGKILL:
                self.sent = signum
            if self.pid and not self.is_gone:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signum)
                    # A stopped process would not see the signal.
                    os.killpg(self.pid, signal.SIGCONT)

    def dump_stacks(self, why: str, signum: int) -> None:
        """Let each Python process write the stacks of its threads, one after the other. Raises OSError.

        PYTHONFAULTHANDLER=1 makes Python write them to its standard error on SIGABRT, and end. A process with a handler
        for `signum` is left to its handler: it is asked for its stacks only before SIGKILL. No core file is written.
        """
        give_up_at = monotonic() + STACKS_S
        self.log(why)
        for info in self.members():
            with suppress(OSError):  # it has ended, or we may not see it
                program = os.readlink(f"/proc/{info.pid}/exe")
                if "python" not in basename(program):
                    continue
                if not catches(info.pid, SIGABRT) or catches(info.pid, signum):
                    continue
                self.log(f"the stacks of {info}")
                resource.prlimit(info.pid, resource.RLIMIT_CORE, (0, 0))
                send(SIGABRT, [info])
                while process_info(info.pid) and monotonic() < give_up_at:
                    sleep(SWEEP_POLL_S)

    def log(self, text: str) -> None:
        """Write a line of the runner's own into the test's log, if that is open still. Raises OSError."""
        with self.lock:
            if not self.is_gone:
                os.write(self.output, to_bytes(f"\n=== {PROGRAM}: {text} ===\n"))

    def wait(self) -> None:
        """Wait until the shell has ended, without reaping it, so that no other group can get its number.

        Processes that it has left may still run.
        """
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.has_ended = True

    def sweep(self) -> Processes:
        """End what the shell has left. Returns what was still there after LINGER_S, though no signal had been sent."""
        if self.reaper.sees_orphans and not self.reaper.orphans():
            return []
        if self.sent == SIGINT:  # which the shell's background jobs ignore
            self.signal(SIGTERM)
        linger = monotonic() + LINGER_S
        warned = []
        left = self.members()
        while left and self.sent != SIGKILL and (self.sent or monotonic() < linger):
            if self.sent:  # processes outside the group did not get the signal
                deaf = [info for info in left if info.group != self.pid and info not in warned]
                send(SIGTERM, deaf)
                warned += deaf
            sleep(SWEEP_POLL_S)
            left = self.members()
        leaked = left * (not self.sent)
        if left:
            _, left = kill_all(self.members)
        for info in left:
            self.stuck = f"{info} cannot be killed"
        return leaked

    def close(self) -> int:
        """Close the log and reap the shell; returns its exit status."""
        with self.lock:
            self.is_gone = True
            os.close(self.output)
        return self.popen.wait()


def note_crash(error: BaseException, folder: str) -> str:
    """Keep the traceback of the internal error that is being handled beside the logs; returns what to say of it."""
    path = f"{folder}/run_tests.traceback"
    # There may be no memory for it: then the run is to end all the same.
    with suppress(Exception), open(fresh_file(path), "wb") as file:
        import traceback  # which few runs need

        file.write(to_bytes(traceback.format_exc()))
    return f"internal error, {error!r}; details are in {path}"


def bash_text(
    test: Test, variables: Environ, defaults: Environ, scratch: Scratch, mark: int
) -> str:
    """What `bash -c` is to run: the test's shell state and variables, then its command at its line number in the list.

    So bash names the same line in its messages as `bash LIST` does. `variables` are set after BASH_ENV and the shell
    state, and override theirs; `defaults` only set what these have not set.
    """
    start = []
    if mark:
        start.append(f"ulimit -SR {mark}")  # which bash knows from 5.1 on
    if test.shell.prelude:
        prelude = quote(test.shell.prelude)
        gone = f"{PROGRAM}: the shell state for this test is gone; let no test clean TMPDIR"
        start.append(f"[[ -f {prelude} ]] || {{ echo {quote(gone)}; exit 1; }}")
        start.append(f'. {prelude}; eval "${{_rt_late-}}"; unset _rt_late')
    exports = [f"{name}={quote(value)}" for name, value in variables.items()]
    unset = " ".join(f'"${{{name}={value}}}"' for name, value in defaults.items())
    # `export` goes on past a readonly variable.
    start.append(f": {unset}; export {' '.join([*exports, *defaults])}")
    command = with_source(test.command)
    if command != test.command:
        start.append(f"_rt_source={quote(test.file)}")
    if len(to_bytes(command)) > ARGUMENT_BYTES:
        command = f". {quote(scratch.write(command))}"
    lines = "\n" * min(test.line - 1, ARGUMENT_BYTES // 4)
    # The newlines behind the command keep bash from exec'ing it, so that bash can tell how it died.
    return f"{{ {'; '.join(start)}; }} 2>/dev/null{lines or '; '}{command}\n\n"


def port_of(slot: int) -> int:
    """The TCP port of a slot. Another runner's slots most likely have other ports."""
    # Containers that share a network have process numbers of their own, each with a /proc of its own.
    number = os.getpid() + os.stat("/proc").st_dev
    return PORT_FIRST + number * PORT_STEP % PORT_BASES + slot


def as_environb(variables: Environ) -> Dict[bytes, bytes]:
    """Variables in bytes, as a process gets them."""
    return {to_bytes(name): to_bytes(value) for name, value in variables.items()}


def start_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Let a thread do some work; the runner's end does not wait for it. Raises MachineError."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # Python gives no errno
        raise MachineError(f"{error}; raise `ulimit -u` or `ulimit -v`") from None
    return thread


class Host:
    """This machine, where attempts run. For each of them a thread of a pool waits.

    The pool is our own: to import that of concurrent.futures takes 8 ms of each start and 1 MB, and in Python 3.12
    and later it starts more and more threads (CPython's gh-102024).

    A run knows of machines only what this class shows: a subclass may run tests elsewhere (qa/cluster.py).
    """

    # The keys for companions (`mem`, `nodes`) that this host acts on.
    heeds: Container[str] = ()

    def __init__(self, machine: Machine, reaper: Reaper) -> None:
        self.machine = machine
        self.reaper = reaper
        self.bash = find_program("bash") or "bash"
        self.health = Health(machine)

    def make_pool(self, tests: Tests, options: Options) -> Pool:
        """What there is to lease."""
        return make_pool(self.machine.devices, tests, options)

    def open(self, run: str, slots: int, post: Callable[[Any], None]) -> None:
        """Prepare for `slots` attempts at once, whose events go to `post`. Raises MachineError, OSError."""
        self.reaper.run = run
        self.post = post
        self.attempts: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self.idle = threading.Semaphore(0)  # counts the threads that wait for an attempt
        printed = run_bash(["echo line=$LINENO"], self.reaper.scratch)[1]
        if b"line=" not in printed:
            raise MachineError(BASH_IS_IDLE)
        # Before 5.1, bash counts the lines of `bash -c` from 0.
        self.has_line_0 = b"line=0" in printed
        # What all tests have in their environment, whatever they had there before.
        self.environment = {b"PYTHONUNBUFFERED": b"1", b"RUN_TESTS_RUN": run.encode()}
        os.environb.update(self.environment)
        # Variables that tests get unless they are set.
        self.defaults = {"PYTHONFAULTHANDLER": "1"}
        if slots > 1:
            cores = len(os.sched_getaffinity(0))  # those that this process may use
            self.defaults["OMP_NUM_THREADS"] = str(max(1, cores // slots))

    def fitted(self, test: Test) -> Test:
        """A test with its `gpus` on this host. Companions work them out from `mem=` or `nodes=`."""
        return test

    def do_chores(self) -> None:
        """The work that is due before the first test, and then every second. Main thread only. Raises OSError."""
        self.reaper.collect()
        self.reaper.post_guard(self.bash)
        self.oom_kills = oom_kills()

    def start(self, attempt: Attempt) -> None:
        """Let a pool thread run an attempt."""
        attempt.process = Process(self.reaper)
        try:
            if not self.idle.acquire(blocking=False):
                start_thread(self.serve)
            self.attempts.put(attempt)
        except MachineError as error:
            self.post(Broken(attempt.test, f"cannot run {attempt.test.label}: {error}"))

    def serve(self) -> None:
        """Run attempts, one after the other, and post how each has ended. A pool thread does nothing else."""
        while True:
            end = self.run_attempt(self.attempts.get())
            self.idle.release()  # before the main thread hears of the end, and may look for an idle thread
            self.post(end)

    def run_attempt(self, attempt: Attempt) -> Exited | Broken:
        """Run one attempt; returns how it has ended. Never raises. Called in a pool thread, with all that it calls."""
        test = attempt.test
        try:
            return self.run_process(attempt)
        except BaseException as error:  # a thread that dies in silence would hang the run
            attempt.process.signal(SIGKILL)
            why = f"cannot run {test.label}: {error}"
            if not isinstance(error, OSError):
                why = note_crash(error, dirname(attempt.log))
            return Broken(test, why)

    def run_process(self, attempt: Attempt) -> Exited:
        """Run one attempt, from spawn to the look at what it leaves. Raises OSError, also on a full disk."""
        test = attempt.test
        process = attempt.process
        kills = self.oom_kills
        old_signature = file_signature(test.junit)
        self.spawn(attempt)
        process.wait()
        ended = monotonic()
        leaked = process.sweep()
        status = process.close()
        fault, failures, ran_none = junit_fault(test.junit, old_signature)
        cause = NO_CAUSE
        if death_of(status) == "SIGKILL" and oom_kills() > kills:
            cause = OOM_KILLED
            self.oom_kills = oom_kills()  # so that no other test takes this kill for its own
        elif status or failures:
            check_room(attempt.log)
            cause = diagnose(status, tail_of(attempt.log, CAUSE_BYTES))
        examined_at = monotonic()
        sick = [
            Sick(device, process.stuck) for device in attempt.lease.devices if process.stuck
        ]
        # Nothing is left to be ended at the deadline, and a hung nvidia-smi may take longer.
        attempt.deadline = inf
        if status or failures or leaked:
            sick += self.health.examine(attempt.lease)
        return Exited(
            ended,
            test,
            status,
            fault,
            failures,
            cause,
            tuple(map(str, leaked)),
            sick,
            monotonic() - examined_at,
            ran_none,
        )

    def spawn(self, attempt: Attempt) -> None:
        """Start the process of an attempt, or, if it cannot start, a bash that fails as bash would.

        Raises OSError.
        """
        test = attempt.test
        process = attempt.process
        output = fresh_file(attempt.log)
        os.write(output, test.preface)
        job = self.job(attempt)
        try:
            process.spawn(job, output)
        except OSError as error:
            is_gone = job.directory and not isdir(job.directory)
            if is_gone or error.errno == errno.E2BIG:
                process.log(f"{error.filename}: {error.strerror}; so this test cannot start")
                job = Job(self.bash, ["bash", "-c", "exit 126"])
            elif test.program:  # bash says why, or reads the file as a script without `#!`
                lines = "\n" * (test.line - 1)  # so that bash names the line
                words = [self.bash, "-c", f'{lines}"$@"', test.file, job.bash, *job.words[1:]]
                job = job._replace(bash=self.bash, words=words)
            else:
                raise
            process.spawn(job, output)

    def job(self, attempt: Attempt) -> Job:
        """The shell of one attempt. Raises OSError."""
        test = attempt.test
        slot = attempt.lease.slot
        variables = {
            **self.machine.mask(attempt.lease),
            "RUN_TESTS_LABEL": test.label,
            "RUN_TESTS_SLOT": str(slot),
            "RUN_TESTS_ATTEMPT": str(attempt.number),
            "RUN_TESTS_PLACES": os.environ.get("RUN_TESTS_PLACES", "") + attempt.process.place,
        }
        port = str(port_of(slot))
        defaults = {**self.defaults, "MASTER_PORT": port, "PET_MASTER_PORT": port}
        exported = test.shell.environment
        if test.program:
            return test.program._replace(
                environment={**as_environb(defaults), **exported, **as_environb(variables)},
                directory=test.shell.directory,
                errors=f"{attempt.log}.err" * test.splits,
            )
        environment = directory = None
        if exported is not os.environb:  # which Popen passes on at no cost
            environment = {**exported, **self.environment}
            directory = test.shell.directory or None
            # The list's bash has read that file; the test's gets the variable after its start, and does not read it.
            if b"BASH_ENV" in environment:
                variables["BASH_ENV"] = to_text(environment.pop(b"BASH_ENV"))
        if self.has_line_0:
            test = test._replace(line=test.line + 1)
        text = bash_text(test, variables, defaults, self.reaper.scratch, attempt.process.mark)
        # The first word is bash's path: else bash looks for itself in PATH.
        words = [self.bash, "-c", text, test.file]
        return Job(self.bash, words, environment, directory)

    def close(self) -> None:
        """End what attempts have left, and say so."""
        self.health.over.set()
        left = self.reaper.close()
        if left:
            warn(f"ended what still ran: {first_of(left)}")


# What a test's JUnit file says of its end.

# How a JUnit file begins, even if it breaks off early.
JUNIT = rb"(?:\xef\xbb\xbf)?\s*(?:<[?!][^>]*>?\s*)*(?:<testsuite|(?:<\w*)?$)"
# The faults of a JUnit file that this attempt has not written.
MISSING = "missing"
STALE = "stale, from an earlier run"


def junit_fault(path: str, before: str) -> Tuple[str, int, bool]:
    """Why a JUnit file cannot be used (`missing`, `stale`, …), how many cases failed, and whether none has run.

    If a suite counts more failures than its cases show, its count is believed. A large file is never all in memory.
    """
    if not path:
        return "", 0, False
    after = file_signature(path)
    if not after:
        return MISSING, 0, False
    if after == before:
        return STALE, 0, False
    from xml.parsers import expat

    parser = expat.ParserCreate(namespace_separator="}")
    # By tag; `by suites`: the most failures that one suite counts.
    found: Counter[str] = Counter()

    def on_start(name: str, attributes: Mapping[str, str]) -> None:
        tag = name.rpartition("}")[2]
        found[tag] += 1
        # pytest.exit leaves a case without a name.
        found["skipped"] += tag == "testcase" and "name" not in attributes
        found["skipped"] -= attributes.get("type") == "pytest.xfail"  # an xfail has run
        counts = [attributes.get(key, "") for key in ("failures", "errors")]  # of a suite
        failures = sum(int(count) for count in counts if count.isdigit())
        found["by suites"] = max(found["by suites"], failures)

    parser.StartElementHandler = on_start
    fault = ""
    try:
        with open_regular(path) as file:
            parser.ParseFile(file)
    except expat.ExpatError:
        fault = "truncated"
    except (OSError, ValueError, LookupError) as error:
        # The last two: an encoding that the parser does not know.
        fault = f"unreadable ({getattr(error, 'strerror', error)})"
    failures = max(found["failure"] + found["error"], found["by suites"])
    return fault, failures, not fault and found["testcase"] == found["skipped"]


# Causes: what a log's end says, as a human would sort it.

OOM_KILLED = Cause("out of memory (the kernel's OOM killer)")

# Causes that one line of a failed test's log is enough to tell, with patterns of such lines. The first that is found
# counts: broken hardware, then faults of the machine, then the test's own, last what may only follow from other errors.
# The texts are those of CUDA, HIP, PyTorch, JAX, NCCL, pytest and the kernel, as public bug reports show them.
SIGNATURES: Mapping[Blame, Mapping[str, str]] = {
    Blame.DEVICE: {
        "uncorrectable ECC error": (
            r"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE"
            r"|\bcudaErrorECCUncorrectable(?:\)|: |' in )"
        ),
        "GPU fallen off the bus": (
            r"\bGPU is lost\b|fallen off the bus|\bGPU requires reset\b"
            r"|nable to determine the device handle for [Gg][Pp][Uu]"
        ),
    },
    Blame.MACHINE: {
        "driver older than the runtime": (
            r"driver version is insufficient for CUDA runtime|NVIDIA driver on your system is too old"
            r"|\bError 80[34]: |Driver/[Ll]ibrary version mismatch"
            r"|forward compatibility was attempted on non supported HW"
            r"|unsupported display driver / cuda driver combination|\bcudaErrorInsufficientDriver(?:\)|: |' in )"
            r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        ),
        "no usable GPU": (
            r"no CUDA-capable device is detected|\bNo (?:CUDA|HIP|XPU) GPUs are available"
            r"|Found no NVIDIA driver on your|CUDA_ERROR_(?:NO_DEVICE|SYSTEM_NOT_READY)\b"
            r"|\bsystem not yet initialized\b|\bcudaError(?:NoDevice|SystemNotReady)(?:\)|: |' in )"
            r"|^No devices were found|CUDA-capable devices are busy or unavailable"
            r"|couldn't communicate with the NVIDIA driver|^Failed to initialize NVML: "
        ),
    },
    Blame.TEST: {
        "port already in use": (
            r"\[Errno 98\] Address already in use|EADDRINUSE|failed to listen on any local network address"
        ),
        "CUDA out of memory": (
            r"(?:CUDA|HIP|XPU)(?: driver)?(?: error:)? out of memory\b|\b(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY\b"
            r"|OutOfMemoryError: (?:CUDA|HIP|XPU)|cudaErrorMemoryAllocation\b.*out of memory"
            r"|Cuda failure .*out of memory|R(?:ESOURCE_EXHAUSTED|esource exhausted): .*Out of memory"
        ),
        "illegal memory access": (
            r"illegal memory access was encountered|_ERROR_ILLEGAL_ADDRESS\b|Memory access fault by GPU node"
        ),
        "device-side assert": r"device-side assert triggered|CUDA_ERROR_ASSERT\b",
        "unspecified launch failure": r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED\b",
        "no space left on device": r"No space left on device",
        "out of memory (of the machine)": (
            r"(?:^|[\s.])MemoryError(?::|$)|std::bad_alloc|Cannot allocate memory|can't allocate memory"
        ),
        "NCCL timeout": (
            r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
            r"|DistStoreError: Timed out|NCCL.*\btime(?:d )?out\b"
        ),
        "import error": r"(?:^|\] |^E +| - )(?:ImportError|ModuleNotFoundError): |^ImportError while ",
        "segmentation fault": (
            r"Fatal Python error: Segmentation fault|: +\d+ Segmentation fault|\(SIGSEGV\)|exitcode *: -11\b"
        ),
        "no such test": r"^ERROR: (?:file or directory )?not found: ",
        "pytest ended early": r"^INTERNALERROR> \w[\w.]*(?:: |$)|^!+ _pytest\.outcomes\.Exit: ",
        "no tests collected": r"\bno tests ran in \d|^collected 0 items\s*$|^=* ?\d+ deselected in \d",
    },
}
# Empty lines, and those that only quote such a text: source in a traceback, a warning, `set -x`, another case's result.
QUOTING_LINE = (
    r"^(?:$|>|\+ |[A-Z_]+=|=* ?\d+ (?:failed|passed|errors?)\b.* in [\d.]+s)"
    r"|UserWarning:|\b(?:PASSED|SKIPPED|XFAIL)\b|^\[ +(?:OK|RUN) +\]"
)
# The first of these patterns that matches any line of the log counts; the last line that it matches is the cause.
ERROR_LINES = (
    # pytest puts `E` before the exception, and before each further line of its message
    r"^E +((?:\w+\.)*\w*(?:Error|Exception|Exit|Failed|Failure|Interrupt|Timeout)\b.*)$",
    r"^E +(assert .*)$",
    r"^E +(\S.*)$",
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)(?:: .*)?)$",
    r"^(.*(?i:\b(?:error|fatal|failed|failure|abort(?:ed)?|terminate[d]?|panic)\b).*)$",
)
# What a dying Python writes, up to bash's line about it: the error, and the innermost frame that is in no library.
PYTHON_DEATH = (
    r"(Fatal Python error: (?!.*Fatal).*)(?:\n(?!.*Fatal)(?:(?:  |Python |Thread ).*)?)*\nCurrent thread .*(?:\n  .*)*?"
    r'\n  (File "(?!.*/lib/python|<frozen).*)(?:\n(?:(?:  |Thread |Extension |.*: line \d+: +\d+ ).*)?)*'
)
ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"


def diagnose(status: int, log: str) -> Cause:
    """The cause that a log's end shows: a known one, else its last error line without what differs between runs."""
    log = re.sub(PYTHON_DEATH, r"\n\1, \2\n", log)
    lines = [plain(line[: LINE_CHARS * 5]) for line in reversed(log.splitlines())]
    lines = [line for line in lines if not re.search(QUOTING_LINE, line)]
    for blame, known in SIGNATURES.items():
        for text, pattern in known.items():
            for line in filter(re.compile(pattern).search, lines):
                return Cause(text, blame, line[:LINE_CHARS])
    death = death_of(status)
    if death == "SIGSEGV":
        return Cause("segmentation fault")
    if death:
        fatal = filter(re.compile("^Fatal Python error: ").search, lines)
        return Cause(f"killed by {death}", line=next(fatal, "")[:LINE_CHARS])
    for pattern in ERROR_LINES:
        for match in filter(None, map(re.compile(pattern).search, lines)):
            line = match.group(1)[:LINE_CHARS]
            return Cause(normalise(line), line=line)
    for line in lines:
        last = line[:LINE_CHARS]
        return Cause(f"exit status {status}, last line: {normalise(last)}", line=last)
    return Cause(f"exit status {status}, without output")


def plain(text: str) -> str:
    """A line without terminal escapes and control characters."""
    text = re.sub(ESCAPES, "", text)
    return re.sub(CONTROL, " ", text).strip()


def normalise(line: str) -> str:
    """An error line without what differs between runs of one failure: paths, addresses, ids, numbers."""
    line = re.sub(r"(?<![\w/])(?:\.{0,2}|~)(?:/[\w.+@~-]+)+/?", "PATH", line)
    line = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID", line)
    line = re.sub(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "ID", line)
    return re.sub(r"\d+(?:\.\d+)*(?:e[+-]?\d+)?", "N", line)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory of the machine or, since Linux 4.13, of a cgroup."""
    return proc_number("vmstat", rb"\boom_kill (\d+)")


def check_room(path: str) -> None:
    """Raises OSError if there is no room left where a file is."""
    try:
        status = os.statvfs(dirname(path) or ".")
    except FileNotFoundError:
        return
    if status.f_blocks and not status.f_bfree:
        raise OSError(errno.ENOSPC, "No space left on device", path)


# ---------------------------------------------------------------------------------------------------
# 8. Record: the files that outlive the run. Each line is on disk before the next event is looked at.
# ---------------------------------------------------------------------------------------------------


def read_history(options: Options) -> History:
    """What the run's own journal and those of `--history` say. Raises UsageError for one that cannot be read."""
    history = History(options)
    own = realpath(options.journal_path)
    paths = {realpath(path): path for path in options.history}
    if isfile(own):
        paths[own] = options.journal_path
    for real, path in paths.items():
        try:
            with open(path, "rb") as file:
                if file.seekable():
                    file.seek(max(0, file.seek(0, os.SEEK_END) - HISTORY_BYTES))
                learnt = [
                    learn(history, line, is_own=real == own)
                    for line in file
                    if not line.startswith((b'{"event": "test_start"', b'{"event": "run_end"'))
                ]
        except OSError as error:
            raise UsageError(
                f"--history {path}: cannot be read ({error.strerror}); name a journal"
            ) from None
        if learnt and not any(learnt) and real != own:
            warn(f"--history {path}: no line of it is a journal's; name a run_tests.jsonl")
    return history


def learn(history: History, line: bytes, is_own: bool) -> bool:
    """Take in a line; returns whether it is a journal's. A torn line, or one by another tool, is passed over."""
    start = max(line.rfind(b'{"event"'), 0)  # the rest of a torn line may stand before it
    try:
        history.add(json.loads(line[start:]), is_own)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return False
    return True


class Record:
    """All that the run writes: the log dir, the journal, `failures`, JUnit files for tests that left none.

    Raises OSError where it cannot write.
    """

    def __init__(self, options: Options, run: str) -> None:
        self.options = options
        self.run = run
        self.log_dir = options.log_dir
        self.appended: Dict[str, int] = {}  # by path, the descriptors of files that get lines
        make_log_dir(self.log_dir)
        self.lock = lock_directory(self.log_dir)
        failures = options.failures_path
        folder = dirname(failures)
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "no file can be written", failures)
        check_name(failures)
        check_kind(options.journal_path, rb'\{"event"|\{(?:"[a-z]*)?(?:\n|$)', "journal")
        self.append(options.journal_path, b"")
        if options.junit:
            check_kind(options.junit, JUNIT, "JUnit file")
            # Try whether this file can be written, and take an older one away.
            write_xml(options.junit, xml_element("testsuites"))
            os.unlink(options.junit)
        if not options.fail_dir and not options.reads(failures):
            clear_name(failures)

    def append(self, path: str, line: bytes) -> None:
        """Append a line to a file at once, behind a newline if the last line in the file has none.

        The file stays open. It must be a regular file, and in the log dir no link. If a test has deleted it, a new file
        gets the old content first. Raises OSError.
        """
        old = self.appended.get(path, -1)
        is_same = False
        with suppress(OSError):  # it is not open yet, or has been deleted
            is_same = os.path.samestat(os.stat(path), os.fstat(old))
        if not is_same:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            if self.is_ours(path):
                flags |= os.O_NOFOLLOW
            if old >= 0 and not exists(path):
                line = os.pread(old, os.fstat(old).st_size, 0) + line
            os.makedirs(dirname(path) or ".", exist_ok=True)
            self.appended[path] = regular_file(path, flags)
            if old >= 0:
                os.close(old)
        descriptor = self.appended[path]
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            error.filename = path
            raise

    def note(self, event: str, **values: Any) -> None:
        """Append one event to the journal, one JSON object a line: the only state that there is. Raises OSError."""
        record = {"event": event, "run": self.run, "time": round(time.time(), 3), **values}
        self.append(self.options.journal_path, to_bytes(f"{json.dumps(record)}\n"))

    def log_path(self, test: Test, attempt: int = 0) -> str:
        """The log of a test's last attempt, or of an earlier one."""
        middle = f".attempt{attempt}" * bool(attempt)
        return f"{self.log_dir}/{test.stem}{middle}.log"

    def run_start(self, selection: Selection, machine: Machine) -> None:
        """Journal which tests are selected, for later runs; remove old JUnit files; name the deferred tests."""
        options = self.options
        left_out = chain(selection.deferred, *selection.left_out.values())
        self.note(
            "run_start",
            version=VERSION,
            lists=options.lists,
            tests=len(selection.tests),
            commit=next(filter(None, map(os.environ.get, COMMIT_VARIABLES)), None),
            gpus=machine.tokens,
            directory=os.getcwd(),
            shard=options.shard or None,
            selected=[test.name for test in selection.selected],
            left_out=[test.name for test in left_out],
        )
        for test in selection.selected:
            if test.junit and self.is_ours(test.junit):
                with suppress(OSError):  # if this run is killed, an old file would show a pass
                    os.unlink(test.junit)
        path = options.deferred_path
        if path:
            clear_name(path)
            labels = dict.fromkeys(f"{test.origin}\n" for test in selection.deferred)
            if labels:
                self.append(path, to_bytes("".join(labels)))

    def is_ours(self, path: str) -> bool:
        """Whether a file lies in the log dir, where nothing is a user's."""
        return dirname(abspath(path)) == abspath(self.log_dir)

    def test_start(self, attempt: Attempt) -> None:
        """Journal the start of an attempt."""
        test = attempt.test
        lease = attempt.lease
        self.note(
            "test_start",
            test=test.key,
            label=test.label,
            attempt=attempt.number,
            slot=lease.slot,
            gpus=lease.tokens,
            log=attempt.log,
        )

    def attempt_end(self, result: Result) -> None:
        """Journal how an attempt has ended; the last one's outcome is the test's."""
        test = result.test
        details = {
            "reason": result.reason,
            "cause": result.cause.text,
            "said": result.cause.line,
            "leaked": result.leaked,
            "list": test.file,
            "origin": test.origin * (test.origin != test.label),
            "memory": round(result.memory, 3),
            "lock": test.attributes.lock,  # this and the next two: what it may have waited for, besides GPUs
            "after": test.attributes.after,
            "barrier": test.barrier,
        }
        self.note(
            "test_end",
            test=test.key,
            label=test.label,
            attempt=result.attempt,
            outcome=result.outcome.value,
            status=result.status,
            signal=death_of(result.status) or None,
            seconds=round(result.seconds, 3),
            need=test.need,
            **{name: value for name, value in details.items() if value},
        )

    def put_away(self, result: Result) -> None:
        """Rename the log and the JUnit file of an attempt before the next one writes its own (`x.attempt1.log`)."""
        test = result.test
        with suppress(FileNotFoundError):
            # Also a folder or a link that a test has put into the place of its log.
            os.rename(self.log_path(test), self.log_path(test, result.attempt))
        if test.junit and result.junit_fault not in (MISSING, STALE):
            # Without `.xml` at its end, since CI is to read the last attempt's alone.
            put_aside(test.junit, f"{test.junit}.attempt{result.attempt}")

    def test_end(self, result: Result) -> None:
        """Name a failed test in `failures`; write its JUnit file if it has none that can be used."""
        if self.options.fails(result.outcome):
            self.append(self.options.failures_path, to_bytes(f"{result.test.label}\n"))
        path = result.test.junit
        never_ran = not result.has_run and result.outcome is not Outcome.DEFERRED
        # A test that passes and has not written this file may have read it.
        is_input = result.outcome.is_pass and result.junit_fault == STALE
        if path and not is_input and (result.junit_fault or never_ran):
            try:
                self.stand_in(path, result)
            except OSError as error:  # the verdict is in the journal already
                warn(f"cannot write {path} ({error.strerror}); the test has no JUnit file")

    def stand_in(self, path: str, result: Result) -> None:
        """Write a JUnit file in place of one that is missing, stale, truncated, or without its test's failure.

        It has the complete cases of the attempt's own file, and one that says how the test ended. Raises OSError.
        """
        is_ours = self.is_ours(path)
        cases = [case_of([result], self)]
        if result.has_run and result.junit_fault not in (MISSING, STALE):
            cases = [*complete_cases(path), *cases]
        elif not is_ours:
            check_kind(path, JUNIT, "JUnit file")
        write_xml(path, junit_of(result.test.label, result.seconds, cases), is_ours)

    def tail(self, result: Result, attempt: int = 0) -> str:
        """The end of the log of an attempt; empty if it has not run."""
        if not result.has_run:
            return ""
        return tail_of(self.log_path(result.test, attempt))

    def restore(self) -> None:
        """Put back the log dir if a test has deleted it. Raises OSError, MachineError if another run has it now."""
        make_log_dir(self.log_dir)
        if os.stat(self.log_dir).st_ino != os.fstat(self.lock).st_ino:
            lock = lock_directory(self.log_dir)
            os.dup2(lock, self.lock, False)  # the guard is given this number
            os.close(lock)

    def run_end(self, results: Results, code: int, quarantined: Iterable[Sick]) -> None:
        """Journal how the run has ended. If `--only` read `failures`, it now gets this run's alone.

        Raises OSError, MachineError.
        """
        self.restore()
        is_whole = not any(result.outcome.is_unfinished for result in results)
        options = self.options
        failures = options.failures_path
        if is_whole and not options.fail_dir and options.reads(failures):
            failed = [each.test.label for each in results if options.fails(each.outcome)]
            if failed:
                with whole_file(failures, is_ours=True) as file:
                    file.writelines(to_bytes(f"{label}\n") for label in failed)
            else:
                clear_name(failures)
        for path in self.appended:
            self.append(path, b"")  # restores it, if a test has deleted it
        self.note(
            "run_end",
            exit=code,
            outcomes=Counter(result.outcome.value for result in results),
            quarantined={sick.device.token: sick.reason for sick in quarantined},
        )

    def summarise(self, attempts: Attempts, seconds: float) -> None:
        """Write the JUnit file of the run, if one is asked for. Raises OSError."""
        path = self.options.junit
        if path:
            write_xml(
                path, junit_of(PROGRAM, seconds, [case_of(ends, self) for ends in attempts])
            )


def make_log_dir(path: str) -> None:
    """Make the folder of the logs, if there is none; git is to ignore what we have made. Raises OSError."""
    with suppress(FileExistsError):
        os.makedirs(path)
        with open(f"{path}/.gitignore", "xb") as file:
            file.write(b"*\n")


def lock_directory(path: str) -> int:
    """A descriptor that holds a directory until it is closed. Raises MachineError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    give_up_at = monotonic() + LOG_DIR_WAIT_S
    while monotonic() < give_up_at:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sleep(FOLLOW_S)
            continue
        except OSError:  # a file system without locks
            pass
        return descriptor
    raise MachineError(
        f"another run, the one that has started this one, or the sweeper of a killed one is writing to {path}; "
        "give this one a --log-dir of its own"
    )


# JUnit files.


def xml_text(text: str) -> str:
    """Text without terminal escapes, and with `?` for each character that XML cannot hold."""
    return re.sub(
        "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", re.sub(ESCAPES, "", text)
    )


def xml_element(tag: str, text: str = "", parts: Iterable[Any] = (), **attributes: str) -> Any:
    """An element with these parts, and with what XML can hold of these texts."""
    from xml.etree import ElementTree  # few runs write XML, and its import costs a start 6 ms

    fit = {name: xml_text(value) for name, value in attributes.items()}
    element = ElementTree.Element(tag, fit)
    element.text = xml_text(text)
    element.extend(parts)
    return element


def junit_of(name: str, seconds: float, cases: Sequence[Any]) -> Any:
    """A JUnit file with these cases in one suite, which has taken so many seconds and ends now."""
    counts = {
        kind: str(sum(case.find(tag) is not None for case in cases))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    suite = xml_element(
        "testsuite",
        parts=cases,
        name=name,
        **counts,
        tests=str(len(cases)),
        time=f"{seconds:.3f}",
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - seconds)),
    )
    return xml_element("testsuites", parts=[suite])


def complete_cases(path: str) -> Iterator[Any]:
    """The complete cases of a JUnit file, up to where it breaks off. A file above JUNIT_BYTES is put aside instead."""
    from xml.etree import ElementTree

    with suppress(ElementTree.ParseError, OSError, ValueError, LookupError):
        if os.path.getsize(path) > JUNIT_BYTES:
            put_aside(path, f"{path}.torn")
            return
        with open_regular(path) as file:
            for _, element in ElementTree.iterparse(file):
                element.tag = element.tag.rpartition("}")[2]
                # Pytest, when ended, leaves a case without a name.
                if element.tag == "testcase" and element.get("name"):
                    yield element


def case_of(attempts: Results, record: Record) -> Any:
    """The case of a test, with its attempts as Maven's surefire has them.

    A flaky test has a `flakyFailure` (or `flakyError`) for each attempt before the last. A test that did not pass has a
    `failure` for its first attempt, and a `rerunFailure` for each further one. Any other test shows only its last one.
    """
    last = attempts[-1]
    failed = attempts
    prefix = "rerun"
    if last.outcome is Outcome.FLAKY:
        failed = attempts[:-1] or attempts  # `stand_in` gives the last attempt alone
        if record.options.flaky == "pass":
            prefix = "flaky"
    elif record.options.accepts(last.outcome):
        failed = []
    parts = []
    if last.outcome.is_excused or last.outcome is Outcome.DEFERRED:
        parts.append(xml_element("skipped", message=last.told))
    for result in failed:
        tag = "failure" if result.outcome is Outcome.FAILED else "error"  # JUnit's words
        facts = {"message": result.told, "type": result.outcome.value}
        tail = record.tail(result, 0 if result is last else result.attempt)
        if result is failed[0] and prefix == "rerun":
            parts.append(xml_element(tag, tail, **facts))
        else:
            trace = xml_element("stackTrace", tail)
            parts.append(xml_element(f"{prefix}{tag.capitalize()}", parts=[trace], **facts))
    parts.sort(key=lambda part: "rror" in part.tag)  # Maven's schema wants failures first
    if last.has_run:
        # The schemas of Jenkins and Maven have no properties of a case; GitLab and Jenkins link the attachment.
        text = f"""
place: {last.lease.place}
attempt: {last.attempt}
cause: {last.cause.text or "none"}
JUnit file: {last.junit_fault or last.test.junit or "none"}
[[ATTACHMENT|{abspath(record.log_path(last.test))}]]
"""
        parts.append(xml_element("system-out", text))
    return xml_element(
        "testcase",
        parts=parts,
        classname=os.path.splitext(last.test.file)[0].replace(".", "_"),  # a dot makes packages
        name=last.test.label,
        time=f"{last.seconds:.3f}",
    )


def write_xml(path: str, root: Any, is_ours: bool = False) -> None:
    """Write an XML file. Raises OSError."""
    from xml.etree import ElementTree

    with whole_file(path, is_ours) as file:
        ElementTree.ElementTree(root).write(file, "utf-8", xml_declaration=True)


@contextmanager
def whole_file(path: str, is_ours: bool) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` only once it has been written whole. Raises OSError.

    A link at `path` is replaced if it `is_ours`, else it stays, and that is an OSError.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with open(fresh_file(temporary), "wb") as file:
            yield file
        check_name(path, has_links=is_ours)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):  # the file has the name `path` now
            os.unlink(temporary)


# ---------------------------------------------------------------------------------------------------
# 9. Report: what a reader of the trace sees.
# ---------------------------------------------------------------------------------------------------


def without_ci_commands(text: str) -> str:
    """A line of the runner's own in which no CI finds a command.

    Azure and TeamCity obey them anywhere in a line, GitHub at its start, behind blanks too.
    """
    return re.sub(r"(?m)(^\s*:(?=:)|#(?=#\[|#vso\[|#teamcity\[))", r"\1 ", text)


def warn(message: str) -> None:
    """One line on stderr, in the program's name."""
    tell(f"{PROGRAM}: {message}")


@lru_cache(maxsize=None)
def warn_once(message: str) -> None:
    """Like `warn`, but each message is printed once in a run."""
    warn(message)


def tell(line: str) -> None:
    """One line on stderr, without the program's name in front. Nothing happens if stderr cannot be written."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(without_ci_commands(line), file=sys.stderr, flush=True)


class Trace:
    """The runner's standard output. When its reader goes away (`| head`), the run goes on without it.

    On a terminal what is printed scrolls above a block of lines that is drawn again and again. While the block may
    stand, lines are held back until the next drawing, of which there are at most 10 a second.
    """

    at_line_start = True
    is_lost = False  # it cannot be written (a full disk); not set when only its reader has gone
    is_live = False  # the block may stand
    block: Sequence[str] = ()  # as it stands on the screen
    drawn_at = -inf

    def __init__(
        self, stream: BinaryIO, has_colour: bool = False, is_watched: bool = False
    ) -> None:
        self.stream = stream
        self.has_colour = has_colour
        self.is_watched = is_watched  # on a terminal
        self.wrote_at = monotonic()

    def write(self, data: bytes | str) -> None:
        """Print bytes or a text, which are written at the next flush at the latest."""
        if isinstance(data, str):
            data = to_bytes(data)
        if data:
            self.erase()
            self.at_line_start = False  # this holds if a signal cuts the writing short
            self.guarded(self.stream.write, data)
            self.at_line_start = data.endswith(b"\n")
            self.wrote_at = monotonic()

    def flush(self) -> None:
        if not self.is_live:
            self.guarded(self.stream.flush)

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Write or flush; where that fails, the stream ends in the null device from now on.

        Else Python would flush it once more at exit, and complain.
        """
        try:
            # Some CIs hand down a pipe that does not block; node does so to one that it shares with us.
            os.set_blocking(1, True)
            action(*arguments)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.is_lost = True
                warn(
                    f"standard output cannot be written ({error.strerror}); going on without it"
                )
            with suppress(OSError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.stream.fileno())

    def exit_code(self, code: int) -> int:
        """The given exit code, or EXIT_MACHINE instead of 0 if some output could not be written."""
        self.flush()
        return code or EXIT_MACHINE * self.is_lost

    def line(self, text: str, colour: str = "") -> None:
        """Print a line of the runner's own, never on the end of a line that a test has left open."""
        text = without_ci_commands(text)
        if colour and self.has_colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        self.command(text)

    def command(self, text: str) -> None:
        """Print a line that a CI service may obey."""
        if not self.at_line_start:
            self.write(b"\n")
        self.write(f"{text}\n")

    def copy(
        self, path: str, offset: int = 0, most: int = sys.maxsize, is_tamed: bool = False
    ) -> int:
        """Copy a file from `offset` on, or anew if it was cut; returns where it ended. Raises OSError.

        It copies not much more than `most` bytes, and nothing that is added meanwhile: a test may print faster than our
        reader reads. With `is_tamed`, markers in the file by which a CI service would fold its page lose their effect.
        """
        with open_regular(path) as file:
            end = file.seek(0, os.SEEK_END)
            if end < offset:  # `>/dev/stderr` has cut it
                offset = 0
            file.seek(offset)
            end = min(end, offset + most)
            while offset < end:
                data = file.read(COPY_BYTES)
                if not data:  # it is being cut
                    break
                if is_tamed:  # whole lines, unless one is of no sensible length
                    data += file.readline(COPY_BYTES)
                    data = re.sub(FORGED, rb"\g<0> ", data)
                self.write(data)
                offset = file.tell()
        return offset

    def has_terminal(self) -> bool:
        """Whether the terminal is the runner's: behind `&` it does not draw."""
        with suppress(OSError):
            return os.tcgetpgrp(self.stream.fileno()) == os.getpgrp()
        return False

    def erase(self) -> None:
        """Take the block away."""
        if self.block:
            self.guarded(self.stream.write, b"\r\x1b[%dA\x1b[J" % len(self.block))
        self.block = ()

    def draw(self, lines: List[str]) -> None:
        """Show these lines as the block, in place of the last one; the terminal cuts off what is too long."""
        now = monotonic()
        if now < self.drawn_at + REDRAW_S:
            return
        self.drawn_at = now
        lines = lines[: shutil.get_terminal_size().lines - 1]
        if lines != self.block:
            self.erase()
            if self.at_line_start and self.has_terminal():
                drawn = "".join(f"{line}\r\n" for line in lines)
                self.guarded(self.stream.write, to_bytes(f"{NO_WRAP}{drawn}{WRAP}"))
                self.block = lines
        self.guarded(self.stream.flush)

    @contextmanager
    def live(self, has_block: bool) -> Iterator[None]:
        """While it lasts, the block may stand on a terminal, and stderr on the same terminal goes above it."""
        errors = sys.stderr
        self.is_live = has_block and self.is_watched
        if self.is_live and os.isatty(2):
            errors = self
        try:
            with redirect_stderr(errors):
                yield
        finally:
            self.erase()
            self.is_live = False
            self.flush()


def open_trace(color: str) -> Trace:
    """Standard output; `color` is auto, always or never, and auto obeys $NO_COLOR (see no-color.org).

    A CI service that has a terminal keeps what is drawn on it as text: nobody watches there.
    """
    stream = open_stdout()
    is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    is_watched = stream.isatty() and not is_dumb and not os.environ.get("CI")
    if color == "auto" and (os.environ.get("NO_COLOR") or not is_watched):
        color = "never"
    return Trace(stream, color != "never", is_watched)


class Fold(NamedTuple):
    """How a CI service folds a part of its page away. GitLab's names are of letters, digits and `_.-` alone.

    What a service obeys is kept out of logs by FORGED, and out of the runner's own lines by `without_ci_commands`.
    """

    variable: str  # of the environment, set by the service alone
    begin: str
    end: str
    opens: str = ""  # begins a heading that is not folded


NO_FOLD = Fold("", f"\n{RULE}\n{{opens}}>>> {{title}}\n{RULE}", "")
FOLDS = (
    Fold("GITHUB_ACTIONS", "::group::{title}", "::endgroup::"),
    Fold(
        "GITLAB_CI",
        "\x1b[0Ksection_start:0:test_{test.index}[collapsed=true]\r\x1b[0K{title}",
        "\x1b[0Ksection_end:0:test_{test.index}\r\x1b[0K",
    ),
    # In Buildkite's pages a heading ends where the next begins; only one that begins with `+++` stands open.
    Fold("BUILDKITE", "--- {title}", "", "+++ "),
    Fold("TF_BUILD", "##[group]{title}", "##[endgroup]"),
    Fold(
        "TEAMCITY_VERSION",
        "##teamcity[blockOpened name='{test.stem}']",
        "##teamcity[blockClosed name='{test.stem}']",
    ),
)
# A marker in a log that would begin or end a fold; `copy` breaks it by a space. Other CI commands in logs still act.
FORGED = (
    rb"(?im):(?=:(?:end)?group\b|:stop-commands\b)"
    rb"|#(?=#\[(?:end)?(?:group|section)\b|#teamcity\[block)"
    rb"|section_(?:start|end)(?=:\d)"
    rb"|^(?=(?:---|\+\+\+|~~~|\^\^\^)[ \r\n])"
)


class Console:
    """Shows a run. The methods are called in the order in which things happen."""

    finished = 0  # tests that ran to an end, or will not run
    failed = 0  # tests among the finished ones
    growing: Attempt | None = None  # whose log is shown as it grows
    offset = 0  # in bytes, up to which that log has been shown
    forecast = ""  # `about 6 min`: how long the rest takes at least; empty: nobody knows

    def __init__(
        self,
        trace: Trace,
        record: Record,
        selection: Selection,
        schedule: Schedule,
        sums_up: bool,
    ) -> None:
        self.trace = trace
        self.record = record
        self.options = record.options
        self.total = len(selection.selected)
        self.schedule = schedule
        self.estimates = selection.estimates
        self.cpus = schedule.pool.cpus  # CPU slots, all of them: nothing runs yet
        # Whether the console names what failed, and sums up the run; a script does that itself.
        self.sums_up = sums_up
        # Marker lines say when tests start and end. One by one there are none: logs are shown as they grow.
        self.has_markers = not schedule.pool.sequential
        self.replays = self.has_markers and sums_up  # logs are shown apart from the markers
        default = "replay"
        if self.has_markers and trace.is_watched:
            default = "failures"
        self.output = self.options.output or default
        # How replayed logs are folded.
        self.fold = next((fold for fold in FOLDS if os.environ.get(fold.variable)), NO_FOLD)
        self.began = monotonic()
        # Tests whose logs are still to be shown, in list order.
        self.turns = deque(selection.tests)
        self.ready: Dict[Test, Result] = {}  # those of `turns` that have ended

    def mark(self, text: str, colour: str = "") -> None:
        """Print a marker line, if this run has them."""
        if self.has_markers:
            self.trace.line(text, colour)

    def remark(self, text: str) -> None:
        """A line about something other than a test's start or end."""
        if self.has_markers:
            self.trace.line(f">>> {text}")
        else:
            warn(text)

    def begin(self, machine: Machine) -> None:
        """The run starts."""
        tokens = machine.tokens
        if not tokens and (not self.turns or any(test.gpus for test in self.turns)):
            how = ": tests run one by one" * (not self.has_markers)
            why = "no GPU found (asked: pynvml, nvidia-smi, amd-smi, rocm-smi)"
            for reader in machine.readers[:1]:
                why = f"{reader.variable} or --gpus shows no GPU"
            warn(f"{why}{how}")
        how = " [as given]" * bool(self.options.gpus)
        self.mark(f"Detected {len(tokens)} GPU(s): {' '.join(tokens)}".rstrip() + how)
        if self.forecast and self.total:
            self.mark(f"{counted(self.total, 'test')}, {self.forecast} by earlier runs")

    def launched(self, attempt: Attempt) -> None:
        """An attempt starts; what follows in the log of its test is this attempt's."""
        self.mark(f">>> Starting: {attempt.test.label} on {attempt.lease.place}")
        attempt.slow_at = attempt.began + (self.options.slow or inf)
        self.growing = attempt
        self.offset = 0

    def tick(self) -> float:
        """Show what is new before the run waits for an event. Returns the seconds it may wait at most."""
        now = monotonic()
        for attempt in self.running:
            if now >= attempt.slow_at and not attempt.ending:
                attempt.slow_at = now + self.options.slow
                self.announced(attempt)
        if not self.has_markers:
            if self.output in ("replay", "ordered"):
                self.follow()
            return FOLLOW_S
        if self.trace.is_watched:
            self.trace.draw(self.block())
            return LIVE_S
        if now >= self.trace.wrote_at + SILENCE_S:
            self.tell_progress()
        return CHORES_S

    def follow(self, most: int = COPY_BYTES) -> None:
        """Show what is new in the log, about `most` bytes of it at most: deadlines and signals are not to wait."""
        if not self.growing or not self.growing.process.pid:
            return  # it has not started: the log there is that of an earlier run
        with suppress(OSError):  # a test may take its log away
            self.offset = self.trace.copy(self.growing.log, self.offset, most)

    @property
    def age(self) -> float:
        """Seconds since the run has begun."""
        return monotonic() - self.began

    def progress(self) -> str:
        """`31/49, 2 failed, about 6 min left`."""
        text = f"{self.finished}/{self.total}"
        if self.failed:
            text += f", {self.failed} failed"
        if self.forecast:
            text += f", {self.forecast} left"
        return text

    def look_ahead(self) -> None:
        """Work out the forecast, by earlier runs. Where most durations are guessed, it would be a guess, too."""
        expected_s = self.estimates
        schedule = self.schedule
        seconds = {test: expected_s[test] for test in schedule.waiting}
        for attempt in schedule.running.values():
            end_s = attempt.began + expected_s[attempt.test]
            seconds[attempt.test] = max(end_s - monotonic(), 0.0)
        self.forecast = ""
        if 2 * sum(test in expected_s for test in seconds) <= len(seconds):
            return
        minutes = ceil(shortest(seconds, schedule.pool.size, self.cpus) / 60)
        self.forecast = "under 1 min"
        if minutes > 1:
            self.forecast = f"about {minutes} min"

    @property
    def running(self) -> List[Attempt]:
        """What runs, by slot."""
        return sorted(self.schedule.running.values(), key=lambda attempt: attempt.lease.slot)

    def block(self) -> List[str]:
        """The live lines: the run, then each running test."""
        now = monotonic()
        lines = [f"[{clock(self.age)}] {self.progress()}"]
        for attempt in self.running:
            ran = clock(now - attempt.began)
            expected_s = self.estimates.get(attempt.test)
            if expected_s:
                ran += f" of {clock(expected_s)}"
            lines.append(f"{attempt.lease.place}  {ran}  {attempt.test.label}")
        return lines

    def tell_running(self) -> None:
        """Say what runs, for how long, and what it has printed last: on SIGUSR1."""
        for attempt in self.running:
            self.announced(attempt, "Running")
        self.tell_progress()

    def tell_progress(self) -> None:
        self.remark(f"Running: {self.progress()}, at {clock(self.age)}")

    def announced(self, attempt: Attempt, how: str = "Slow") -> None:
        """Say how long an attempt has run, and what it has printed last."""
        line = last_line(tail_of(attempt.log)) or "its log is empty"
        ran = show_duration(monotonic() - attempt.began)
        self.remark(f"{how}: {attempt.test.label} [{ran}; {line}]")

    def ended(self, result: Result, progress: str, attempt: int = 0) -> None:
        """An attempt has run to its end. Before a retry its log gets the name of `attempt` (`x.attempt1.log`)."""
        colour = GREEN if self.options.accepts(result.outcome) else RED
        self.mark(
            f">>> Finished: {result.test.label} on {result.lease.place} "
            f"[{result.verdict}, {result.seconds:.1f}s, {progress}, at {clock(self.age)}]",
            colour,
        )
        if result.outcome.is_failure:
            log = self.record.log_path(result.test, attempt)
            self.mark(f"    {result.why} \u2192 {log}")
        if not self.has_markers and self.shows(result):
            self.follow(sys.maxsize)
        self.growing = None

    def concluded(self, result: Result) -> None:
        """A test has its outcome."""
        outcome = result.outcome
        fails = self.options.fails(outcome)
        has_ended = outcome not in (Outcome.DEFERRED, Outcome.NOT_RUN)
        self.finished += has_ended
        self.failed += fails
        progress = f"{self.finished}/{self.total}"
        error = f"Error: sub-test failed: {result.test.label}"
        if fails and self.replays:
            self.mark(error, RED)
        if result.has_run:
            self.ended(result, progress)
        elif has_ended:
            self.mark(
                f">>> {outcome.value.capitalize()}: {result.test.label} [{result.reason}, {progress}]"
            )
        if self.replays:
            self.replay_early(result)
        elif self.sums_up and fails and (result.test.announces or not result.has_run):
            self.trace.write(f"{error}\n")  # as `echo` prints it
        elif self.sums_up or self.has_markers and not outcome.is_pass:
            return  # the last lines of the run say it, or the marker has said it
        elif result.reason:
            tell(f"{result.test.where}: {result.test.label} {result.told}")

    def replay_early(self, result: Result) -> None:
        """Show the log of a test that has ended, if it is not to be shown at the end of the run."""
        if self.output == "ordered":
            self.ready[result.test] = result
            while self.turns and self.turns[0] in self.ready:
                self.replay(self.ready.pop(self.turns.popleft()))
        elif self.output == "immediate":
            self.replay(result)

    def shows(self, result: Result) -> bool:
        """Whether the log of a test is to be shown. The empty log of a test that passed is not."""
        if not result.has_run or self.output == "none":
            return False
        # Without markers the log has been shown in part: then the rest is shown, too.
        if self.schedule.interrupts and self.has_markers:
            return self.options.fails(result.outcome)
        shows_all = self.output in ("replay", "ordered") and self.record.tail(result)
        return bool(shows_all) or not self.options.accepts(result.outcome)

    def replay(self, result: Result) -> None:
        """One log, byte for byte, below a banner or in a fold; a last line without an end gets one.

        A failure is never folded. With `--output immediate` only the end of the log is shown.
        """
        if not self.shows(result):
            return
        fold = self.fold if self.options.accepts(result.outcome) else NO_FOLD
        test = result.test
        title = without_ci_commands(
            f"{test.stem} [{test.label}: {result.verdict}, {result.seconds:.1f}s]"
        )
        begin = fold.begin.format(title=title, test=test, opens=self.fold.opens)
        self.trace.command(begin)
        path = self.record.log_path(test)
        try:
            start = 0
            if self.output == "immediate":
                start = max(os.path.getsize(path) - TAIL_BYTES, 0)
            self.trace.copy(path, start, is_tamed=self.fold is not NO_FOLD)
        except OSError as error:
            self.trace.line(f"(its log cannot be read: {error.strerror})")
        if "\x1b" in self.record.tail(result):
            # Ends a title or a colour that the log has begun.
            self.trace.write(b"\x1b\\\x1b[0m")
        if fold.end:
            self.trace.command(fold.end.format(test=test))

    def finish(self, results: Results, lines: Sequence[str]) -> None:
        """All tests have ended: show logs in list order, failed ones last where others are folded; sum up.

        One by one, the lines go to stderr: standard output is what the script would have printed.
        """
        shown = []
        if self.replays and self.output in ("replay", "failures"):
            shown = list(filter(self.shows, results))
        if self.fold is not NO_FOLD:
            shown.sort(key=lambda result: not self.options.accepts(result.outcome))
        if shown:
            self.trace.line("\n=== Per-test output (replayed from parallel execution) ===")
            for result in shown:
                self.replay(result)
            self.trace.line(f"\n{self.fold.opens}=== End of per-test output ===")
        self.trace.flush()
        for line in lines:
            if self.replays:
                self.trace.line(line)
            elif self.sums_up:
                tell(line)


def summary(
    attempts: Attempts, seconds: float, schedule: Schedule, record: Record
) -> List[str]:
    """What did not pass, where its log is, why; what a run took, and how to run again what failed."""
    results = results_of(attempts)
    return [
        *troubles(attempts, record),
        *causes(results),
        *(f"quarantined: GPU {sick.device.token} ({sick.reason})" for sick in schedule.sick),
        *figures(schedule.results.values(), seconds, schedule.pool),
        total_line(results, seconds, schedule.pool),
        *again(results, schedule.options),
    ]


def troubles(attempts: Attempts, record: Record) -> Iterator[str]:
    """How each test that did not simply pass ended, where its log is, and why; leaks, and passes with a flaw."""
    for ends in attempts:
        result = ends[-1]
        outcome = result.outcome
        label = result.test.label
        is_flaky = outcome is Outcome.FLAKY
        if outcome not in (Outcome.PASSED, Outcome.DEFERRED, Outcome.NOT_RUN):
            line = f"{result.verdict}: {label}"
            if result.has_run:
                log = record.log_path(result.test, int(is_flaky))
                line = f"{result.verdict}, {result.seconds:.1f}s: {label} ({log})"
            yield line
            why = ends[0 if is_flaky else -1].why
            if why not in line:
                yield f"    {why}"
        if result.leaked:
            yield f"{count_leaks(result.leaked)}: {label} left {first_of(result.leaked)}"
        if outcome.is_pass and result.reason:
            yield f"{result.reason}: {label}"


def causes(results: Results) -> Iterator[str]:
    """The failures by their causes, the most frequent first."""
    labels = defaultdict(list)
    for result in results:
        if result.outcome.is_failure:
            labels[result.cause.text or result.reason].append(result.test.label)
    total = sum(map(len, labels.values()))
    if len(labels) < total:  # else their own lines say it
        yield f"{counted(total, 'failure')} by cause:"
        for cause, alike in sorted(labels.items(), key=lambda item: -len(item[1])):
            yield f"{len(alike):5} x {cause}: {first_of(alike)}"


def figures(attempts: Attempts, seconds: float, pool: Pool) -> Iterator[str]:
    """What took longest, what had all GPUs, and how much the GPUs have gained."""
    results = results_of(attempts)
    ran = [result for result in results if result.has_run]
    longest = [
        f"{result.test.label} {show_duration(result.seconds)}"
        for result in heapq.nlargest(SLOWEST, ran, key=lambda result: result.seconds)
    ]
    if len(longest) < 2:
        return
    yield f"slowest: {', '.join(longest)}"
    # A GPU in quarantine may have done work, but `pool.size` does not count it.
    if (
        pool.sequential
        or pool.quarantined
        or any(result.outcome.is_unfinished for result in results)
    ):
        return
    alone = [
        result.test.label for result in results if 1 < len(result.gpu_indices) == pool.size
    ]
    if alone:
        yield f"had all GPUs: {first_of(alone)}"
    each_s = {ends[-1].test: fsum(end.seconds for end in ends) for ends in attempts}
    all_s = fsum(each_s.values())
    best_s = shortest(each_s, pool.size, pool.cpus)
    gain = round(all_s / seconds, 1)
    if gain >= 1 and round(best_s, 1):  # else the tests took less than the runner
        yield (
            f"{gain} times as fast as one by one ({show_duration(all_s)}); "
            f"no order takes less than {show_duration(best_s)}"
        )


def total_line(results: Results, seconds: float, pool: Pool) -> str:
    """How many tests had which outcome, where, in which time."""
    gpus = sum(bool(device.token) for device in pool.devices)
    ran = [result for result in results if result.outcome is not Outcome.DEFERRED]
    outcomes = tally(ran) or "none ran on a slot"
    return f"{counted(len(ran), 'test')} in {seconds:.1f}s on {gpus} GPU(s): {outcomes}"


def again(results: Results, options: Options) -> Iterator[str]:
    """The commands that run again what did not pass, and one failure alone. A list from a pipe cannot be had again."""
    owed = [result for result in results if not options.accepts(result.outcome)]
    program, *words = options.command
    if not owed or any(re.search(r"^-$|/fd/\d|^/dev/stdin$", word) for word in words):
        return
    # A program that pip has installed is called by its name: `python3` may be another Python, without this package.
    is_file = program.endswith((".py", ".pyc")) or not find_program(program)
    python = "python3 " * is_file
    program = f"{python}{quote(program)}"
    log_dir = os.environ.get("XML_LOG_DIR")
    if log_dir:
        program = f"XML_LOG_DIR={quote(log_dir)} {program}"
    rest = shlex.join(word for word in words if word != "--rerun-failed")
    yield f"Rerun: {program} --rerun-failed {rest}"
    shard = " --shard 1/1" * bool(options.shard)
    rest += " --message ''" * bool(options.message)  # the last of equal options counts
    ran = [result.test.origin for result in owed if result.has_run]
    for label in ran[:1]:
        yield f"Alone: {program} {rest} --only <(echo {quote(label)}){shard}"


def first_of(names: Collection[Any]) -> str:
    """The first SHOWN of many names, and how many more there are."""
    shown = ", ".join(map(str, [*names][:SHOWN]))
    if len(names) > SHOWN:
        shown += f" \u2026 with {len(names) - SHOWN} more"
    return shown


def last_line(text: str) -> str:
    """The last line of a log that says anything, short and fit to be shown."""
    lines = [line for line in text.splitlines() if "warning: setlocale:" not in line]
    shown = ["", *filter(None, map(plain, lines))]
    return shown[-1][:LINE_CHARS]


def tally(results: Iterable[Result]) -> str:
    """`3 passed, 1 failed`: how many tests had which outcome."""
    counts = Counter(result.outcome for result in results)
    return ", ".join(
        f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]
    )


def account(selection: Selection, options: Options) -> Iterator[str]:
    """What of the lists was selected and which options keep the rest from running, if there is a rest."""
    deferred = Counter(selection.deferred.values())
    left_out = {why: len(tests) for why, tests in selection.left_out.items()}
    if not (deferred or left_out):
        return
    total = len(selection.tests) + sum(left_out.values())
    selected = len(selection.selected)
    line = f"Selected {selected} of {counted(total, 'test')} ({selected / max(total, 1):.1%})"
    for what, counts in (("deferred", deferred), ("left out", left_out)):
        if counts:
            reasons = ", ".join(f"{each} by {why}" for why, each in counts.items())
            line += f"; {what} {reasons}"
    path = options.deferred_path
    if deferred and path and not options.list:  # else nothing is written
        line += f"; see {path}"
    yield line


def clock(seconds: float) -> str:
    """`3:12`, `1:03:12`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def show_duration(seconds: float) -> str:
    """`4.2s`, `12:30`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    return clock(round(seconds))


Verdict = Tuple[int, List[str]]  # the exit code of a run, and the last lines of its trace


def verdict_of(results: Results, schedule: Schedule, is_part: bool = False) -> Verdict:
    """The run's exit code, and the last lines of its trace.

    What the machine did comes before what the user did, and both before the tests. `is_part`: as of Selection.
    """
    options = schedule.options
    outcomes = {result.outcome for result in results}
    is_empty = outcomes <= {Outcome.SKIPPED, Outcome.DEFERRED}  # nothing was tested
    unfinished = tally(result for result in results if result.outcome.is_unfinished)
    code = EXIT_OK
    why = ""
    if not all(map(options.accepts, outcomes)):
        code = EXIT_FAILED
    elif outcomes and is_empty and not (is_part and outcomes == {Outcome.DEFERRED}):
        code = EXIT_NOTHING
    if schedule.failure:
        code = EXIT_MACHINE
        why = f"Stopped, the machine failed: {schedule.failure.splitlines()[0]}"
    elif schedule.interrupts:
        code = EXIT_SIGNAL + schedule.interrupts[0]
        why = f"Interrupted by {signal.Signals(schedule.interrupts[0]).name}"
    elif schedule.is_overdue:
        why = "Ended by --deadline"
    elif schedule.stopped and unfinished:
        why = "Stopped by --fail-fast"
    lines = []
    if why:
        lines.append(f"{why}: {unfinished or 'no test was running or waiting'}")
    failed = [result.test.label for result in results if options.fails(result.outcome)]
    excused = tally(result for result in results if result.outcome.is_excused)
    if failed:
        lines.append(f"Error in the following test cases: {' '.join(failed)}")
    elif not why:
        verdict = "No test ran" if is_empty else "All tests passed"
        lines.append(verdict + f"; {excused}" * bool(excused))
    return code, lines


# ---------------------------------------------------------------------------------------------------
# 10. Command line: options, the run, main.
# ---------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  run_tests.py tests.txt                          one test per GPU of the machine, or of the outer mask
  CUDA_VISIBLE_DEVICES=4,5,6,7 run_tests.py a.txt b.txt     two lists, one run, four GPUs
  run_tests.py --gpus 2 --timeout 30m tests.txt   two GPUs; a test that takes longer is ended
  run_tests.py --output failures --fail-fast -    the list from standard input; show only what failed
  run_tests.py qa/L0/test.sh                      a script, unmodified: its `|| test_fail` commands on all GPUs
  run_tests.py --rerun-failed tests.txt           what did not pass in the last run, or was not reached by it
  run_tests.py --max-gpus 2 tests.txt             put off the tests that need more, and name them in logs/deferred.txt
  run_tests.py --only logs/deferred.txt tests.txt     run those, elsewhere or later
  run_tests.py --only few.txt --message="$MESSAGE" tests.txt     the tests that few.txt names, unless [ci all]
  run_tests.py --shard auto --history j.jsonl tests.txt     this CI job's part of the list
  RUN_TESTS_OPTS="--grace 30s" qa/L0/test.sh      options for a runner inside a script

exit codes:
  0 all passed   1 a test failed or did not get to run   2 usage or a bad list   3 the runner or the machine failed
  5 nothing selected, or all skipped   128+N ended by signal N
"""


# `4`, or ids such as `0,2`, `2,`, `GPU-…`.
parse_gpu_option = partial(
    parse_word,
    r"(?a)(?!0+$)\d{1,4}|(?!\d+$)(?!(?:.*,)?([^,]+),(?:.*,)?\1(?:,|$))((\d+(\.\d+)*|(GPU|gpu|MIG)-[\w/-]+)(,|$))+",
    "a count from 1, or ids such as 0,2 (one id: 2,), each once",
)


def parse_expression(text: str) -> Callable[[Test], bool]:
    """What `-k` asks of a test's names: names, parts of which are enough, joined by and, or, not and parentheses.

    Case does not count, as for pytest's `-k`, whose source is the idea of letting Python's own parser do the work.
    Raises BadValue.
    """

    def as_python(match: re.Match[str]) -> str:
        word = match.group()
        if word == "(":
            return " not not(0 or"  # so that `a (b)` is no call, and `()` is nothing
        if word in ("and", "or", "not", ")"):
            return word
        part = word.strip("'\"").casefold()
        return f" names.count({part!r}) "

    python = re.sub(r"""'[^']+'|"[^"]+"|[()]|[^\s()'"]+""", as_python, text).strip()
    try:
        code = compile(python, "-k", "eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise BadValue(
            f"{text!r} is not names joined by and, or, not and parentheses, such as 'fp8 and not (slow or h100)'"
        ) from None
    return lambda test: bool(eval(code, {"names": test.label_and_tags}))


def read_labels(path: str) -> List[str]:
    """The lines of a file of labels, without blanks around them. Raises BadValue."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return list(map(str.strip, file))
    except OSError as error:
        raise BadValue(
            f"{path}: cannot be read ({error.strerror}); name a file with one label per line"
        ) from None


def parse_only(path: str) -> LabelFile:
    """The labels in a file of `--only`, one a line, with its comments (see LabelFile). Raises BadValue."""
    lines = list(filter(None, read_labels(path)))
    if not lines:
        raise BadValue(f"{path}: names no test; one label per line")
    # With --repeat, `failures` has `label (run 2)`.
    tests = [re.sub(RUN_SUFFIX, "", line) for line in lines]
    return LabelFile(path, frozenset([*lines, *tests]))


def parse_known(path: str) -> Mapping[str, str]:
    """Why tests are known to fail, by label, from lines `label # reason`. Raises BadValue."""
    known = {}
    for number, line in enumerate(read_labels(path), 1):
        label, _, reason = map(str.strip, line.partition(" # "))
        if line and not line.startswith("#"):
            known[label] = f"{reason}, {path}:{number}"
            if not reason:
                raise BadValue(
                    f"{path}:{number}: {label} has no reason; write `label # reason`"
                )
    return known


def parse_message(text: str) -> Words:
    """The words of all `[ci WORDS]` in a commit's message, case folded; `skip` is for the CI itself."""
    marked = re.findall(r"\[ci[\s:-]([^][]*)\]", text.casefold())
    words = " ".join(marked).replace(",", " ").split()
    return tuple(word for word in words if word != "skip")


def parse_shard(text: str) -> str:
    """`2/4`, or `auto`. Raises BadValue, also for more parts than any CI has jobs."""
    if text == "auto":
        return text
    what = "K/N, K from 1 to N, such as 2/4, nor auto"
    parse_word(r"[1-9][0-9]{0,3}/[1-9][0-9]{0,3}", what, text)
    number, total = map(int, text.split("/"))
    if number > total:
        raise BadValue(f"{text!r} is not {what}")
    return text


# How CI services tell a job its number among equal ones: the variables of number and total, the first number (or the
# variable that has it), and a variable without which they mean something else. Azure counts from 1.
SHARD_VARIABLES = (
    "CI_NODE_INDEX CI_NODE_TOTAL 1 GITLAB_CI",
    "CIRCLE_NODE_INDEX CIRCLE_NODE_TOTAL 0",
    "BUILDKITE_PARALLEL_JOB BUILDKITE_PARALLEL_JOB_COUNT 0",
    "SEMAPHORE_JOB_INDEX SEMAPHORE_JOB_COUNT 1",
    "SYSTEM_JOBPOSITIONINPHASE SYSTEM_TOTALJOBSINPHASE 1",
    "SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_MIN",
    "SLURM_PROCID SLURM_NTASKS 0 SLURM_STEP_ID",  # a batch script has them, too
    "JOB_COMPLETION_INDEX JOB_COMPLETIONS 0",  # which the manifest has to set
)


def find_shard(environ: Environ) -> str:
    """The shard that the CI's variables name; empty, with a warning, if there are none. Raises UsageError."""
    for variables in SHARD_VARIABLES:
        index, total, first, *required = variables.split()
        if environ.keys() >= {index, total, *required}:
            try:
                number = int(environ[index]) - int(environ.get(first, first)) + 1
                return parse_shard(f"{number}/{int(environ[total])}")
            except ValueError:
                raise UsageError(
                    f"--shard auto: {index}={environ[index]} is not one of {total}={environ[total]}; write --shard K/N"
                ) from None
    warn("--shard auto: no CI says which shard this is; all tests run")
    return ""


def parse_pattern(text: str) -> str:
    """A regular expression. Raises BadValue."""
    try:
        re.compile(text)
    except re.error as error:
        raise BadValue(f"{text!r} is no regular expression: {error}") from None
    return text


# The parser of an option's value, by the option's name or by what OPTIONS calls the value. Other values stay text.
OPTION_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "--known-failures": parse_known,
    "--only": parse_only,
    "--retries": parse_count,
    "--skip-code": lambda text: int(
        parse_word(
            r"[2-9]|[1-9]\d|1[01]\d|12[0-5]", "an exit status from 2 to 125, such as 77", text
        )
    ),
    "ARGS": parse_words,
    "EXPR": parse_expression,
    "K/N|auto": parse_shard,
    "N": lambda text: int(parse_word(r"[1-9]\d{0,4}", "a whole number from 1", text)),
    "N|IDS": parse_gpu_option,
    "N|all": parse_gpus,
    "REGEX": parse_pattern,
    "TEXT": parse_message,
    "TIME": parse_duration,
}
# Further keywords of argparse.
KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "lists": {"nargs": "+"},
    "-k": {"dest": "keep"},
    "--history": {"action": "append"},
    "--fail-function": {
        "action": "append",
        "dest": "handlers",
        "default": Options._field_defaults["handlers"],
    },
    "--version": {"action": "version"},
}
LIST_OPTIONS = (  # which want to know all tests before the first one runs
    "--shard -k --max-gpus --only --rerun-failed --repeat --skip-code --known-failures"
).split()
SCRIPT_OPTIONS = "--fail-function --tests --calm --one-by-one --verbose".split()
# By group, as `--help` shows them.
OPTIONS = """\
what runs
  lists LIST: bash, one test per command; `#: gpus=2` at its end asks for two GPUs; `-` is standard input; or one \
script (.sh or #!), as it is
  -k EXPR: tests whose label or tags contain these names: 'fp8 and not (slow or h100)'
  --rerun-failed: tests that did not pass in this list's last run, or were not reached by it
  --repeat N: run each test N times, as tests of their own: `label`, `label (run 2)`; with --fail-fast until one fails
  --max-gpus N: defer tests that need more: deferred.txt in the log dir names them, for --only
  --shard K/N|auto: part K of N, balanced; auto: as GitLab, CircleCI, Buildkite, Semaphore, Azure, Slurm or \
Kubernetes says
  --only FILE: run the tests whose labels FILE names, one a line, and what they wait for; defer the rest
  --message TEXT: a commit's message: `[ci WORDS]` adds to --only the tests whose label or tags contain one of the \
words, `[ci all]` runs all
in which order
  --order {auto,file,failed-first}: auto: widest first, then longest, as earlier runs took; on one GPU: as `file`
  --history FILE: a journal of another run or machine to learn durations from; may be repeated
where tests run
  --gpus N|IDS: how many GPUs, or which (0,2; `2,` is GPU 2 alone); default: the outer mask, else all there are
  --gpus-per-test N|all: for tests that do not say gpus=; default: 1
  --jobs N: slots for `gpus=0` tests beside the GPU tests; default: as many as GPUs
  --require-gpus N: end with exit code 3 if there are fewer, rather than run on those
  --python EXE: interpreter for pytest targets (python3)
  --pytest-args ARGS: further arguments for pytest targets, in one word: --pytest-args="-x -m 'not slow'"
when tests are stopped
  --timeout TIME: for each test (90s, 10m, 1h30m), unless its line says timeout=; default: none
  --slow TIME: announce a test that still runs, each time so long has passed, with its log's last line; default: 5m
  --deadline TIME: end the run early enough that all is reported by then; what did not run is `not run`
  --grace TIME: from SIGTERM to SIGKILL; default: 10s
  --fail-fast: start no more tests after the first failure
what counts as a failure
  --retries N: run a test that did not pass up to N times more, unless its line says retries=
  --retry-on REGEX: retry only failures whose cause, by name or in the log, matches: 'NCCL timeout|port already in use'
  --flaky {pass,fail}: whether a test that passes on a retry fails the run; default: pass
  --skip-code N: a test that exits with N, often 77, cannot run here: it is `skipped`, and so is what waits for it
  --known-failures FILE: lines `label # reason`: where such a test fails, the run does not; where it passes, the \
summary says so
  --leaks {report,fail}: whether a test that leaves processes behind fails; they are ended and named anyway; \
default: report
  --fail-function NAME: in a script, `command || NAME ...` is a test too, as with test_fail; may be repeated
  --tests REGEX: in a script, commands that begin so are tests; without it, and without such a NAME: pytest, ctest, \
mpirun, torchrun, files with test in their path
  --calm REGEX: in a script, programs that no test needs, so that none waits for them; instead of: rapids-logger, \
log, logger, banner
  --one-by-one: let a script wait for each test
what is written
  --log-dir DIR: logs and JUnit files; default: $XML_LOG_DIR, else logs
  --fail-dir DIR: its file `failures` gets one label per failed test; default: $FAIL_DIR, else the log dir
  --journal FILE: default: run_tests.jsonl in the log dir
  --junit FILE: a JUnit file that sums up the run, with flaky tests as surefire has them
  --output {replay,ordered,failures,immediate,none}: logs in the trace: all at the end (default), each as soon as its \
turn comes, failures only (default on a terminal), the end of a failed one at once, none
  --color {auto,always,never}: auto: on a terminal, unless $NO_COLOR is set
information
  --list: print label, GPUs, log name and place of each test, tab-separated, of a script's label, place and whether it \
runs ahead; run nothing
  --verbose: say why tests of a script do not run beside others
  --version: print version and hash of this file; exit
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line, grouped by task. Defaults are those of Options."""
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options] LIST [LIST ...] | SCRIPT [-- ARGUMENTS]",
        allow_abbrev=False,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        description="Run a list of test commands on all GPUs, and report as if they had run one by one.",
    )
    for line in OPTIONS.splitlines():
        written, _, text = line.strip().partition(": ")
        if not text:
            group = parser.add_argument_group(written)
            continue
        name, _, value = written.partition(" ")
        how = {"help": text, **KEYWORDS.get(name, {})}
        if value.startswith("{"):
            how["choices"] = value.strip("{}").split(",")
        elif value:
            how["metavar"] = value
            how["type"] = OPTION_PARSERS.get(name, OPTION_PARSERS.get(value, str))
        else:
            how.setdefault("action", "store_true")
        group.add_argument(name, **how)
    group.add_argument("-h", "--help", action="help", help="print this; exit")
    return parser


def changed_options(options: Options, names: Iterable[str]) -> Iterator[str]:
    """Which of these options say something else than their default."""
    for name in names:
        field = name.lstrip("-").replace("-", "_")
        field = KEYWORDS.get(name, {}).get("dest", field)
        if getattr(options, field) != Options._field_defaults[field]:
            yield name


# What other runners (pytest, its xdist, CTest, make) call an option, a line for each of ours, which comes last.
FOREIGN_OPTIONS = """\
--lf --last-failed --rerun: --rerun-failed
--ff --failed-first: --order failed-first
-n -j --numprocesses --parallel --workers: --gpus N (CPU tests: --jobs N)
--ngpus --num-gpus --devices: --gpus N|IDS
-v: --output replay (of a script, --verbose)
-q --quiet: --output failures
-N --dry-run --collect-only --co --show-only: --list
-x --exitfirst --maxfail --stop-on-failure: --fail-fast
--junitxml --output-junit: --junit FILE
--output-on-failure: --output failures
-m -L -E -R --exclude --deselect --filter --tests-regex: -k EXPR
--repeat-until-fail: --repeat N --fail-fast
--reruns --retry: --retries N
--count: --repeat N
"""


class Parser(argparse.ArgumentParser):
    """The argument parser. What it refuses is a UsageError, behind the usage."""

    @property
    def version(self) -> str:
        """Version and hash of this very file, since copies drift: argparse asks when it is to print them."""
        with suppress(OSError):
            return f"{PROGRAM} {VERSION} ({hash_function()(content_of(__file__)).hexdigest()[:12]})"
        return f"{PROGRAM} {VERSION}"

    def error(self, message: str) -> NoReturn:
        import difflib

        # By each foreign option, ours that does the same; by each of ours, the option itself.
        ours = dict(re.findall(r"(--?[\w-]+)(?=[^:\n]*: (.*))", FOREIGN_OPTIONS))
        ours.update(re.findall(r"(?m)^  ((--[\w-]+))", OPTIONS))
        # An option in quotes is part of a value.
        for word in re.findall(r" (--[\w-]+|-[a-zA-Z])(?=[^'\"]*$)", message):
            for near in difflib.get_close_matches(word, ours, 1, 0.8):
                if ours[near] != word:
                    message += f"; {word} is {ours[near]} here"
        message = message.replace(
            "one argument", "one argument (OPTION=-x if it begins with a dash)"
        ).replace("arguments:", "arguments (a script's own stand behind `--`):")
        self.print_usage(sys.stderr)
        raise UsageError(message)


def parse_command_line(argv: Sequence[str], environ: Environ) -> Options:
    """Options of $RUN_TESTS_OPTS and `argv`, in that order. Raises UsageError, behind the usage."""
    parser = build_parser()
    try:
        first = shlex.split(environ.get("RUN_TESTS_OPTS", ""))
    except ValueError:
        parser.error("a quote in $RUN_TESTS_OPTS is never closed")
    before_dashes = list(takewhile(lambda word: word != "--", argv))
    if not any(map(is_script, before_dashes)):
        before_dashes = list(argv)  # a list takes no arguments
    parse = parser.parse_intermixed_args
    if "--" in before_dashes:  # parse_intermixed_args would drop it
        parse = parser.parse_args
    values = vars(parse([*first, *before_dashes]))
    if values.get("shard") == "auto":
        values["shard"] = find_shard(environ)
    values["log_dir"] = values.get("log_dir") or environ.get("XML_LOG_DIR") or "logs"
    values["fail_dir"] = values.get("fail_dir") or environ.get("FAIL_DIR", "")
    arguments = argv[len(before_dashes) + 1 :]
    return Options(**values, arguments=arguments, command=[sys.argv[0], *argv])


class Inbox:
    """What pool threads and the signal handler have to tell the main thread, in order.

    No SimpleQueue: its `get` may wait for ever where its timeout passes before it begins to wait, at least in Python
    3.8 to 3.12. A lock, too, can be released by a signal handler.
    """

    def __init__(self) -> None:
        self.bell = threading.Lock()  # held while nothing has come
        self.events: deque[Any] = deque()

    def put(self, event: Any) -> None:
        self.events.append(event)
        with suppress(RuntimeError):  # it has rung before
            self.bell.release()

    def get(self, timeout: float) -> Any:
        """The next event, or None if there is none for `timeout` seconds."""
        while not self.events:
            if not self.bell.acquire(timeout=timeout):
                return None
        return self.events.popleft()


class Run:
    """One run: carries out what the schedule decides, and feeds it what happens. Main thread only."""

    sums_up = True  # at its end it says what has become of the tests
    expects_more = False  # there may be tests that the schedule does not know yet
    pause_s = CHORES_S  # how long it waits for an event at most

    def __init__(
        self, selection: Selection, host: Host, options: Options, trace: Trace
    ) -> None:
        self.selection = selection
        self.tests = selection.tests
        self.host = host
        self.machine = host.machine
        self.options = options
        self.trace = trace
        run = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{os.urandom(3).hex()}"
        self.record = Record(options, run)
        pool = host.make_pool(self.tests, options)
        order = self.plan(selection, pool).starting_order(options.order, pool)
        self.schedule = Schedule(order, pool, options)
        self.console = Console(trace, self.record, selection, self.schedule, self.sums_up)
        self.inbox = Inbox()
        host.reaper.kept.append(self.record.lock)
        host.open(run, slot_count(pool, order), self.inbox.put)

    def plan(self, selection: Selection, _pool: Pool) -> Selection:
        """What the schedule is to run. A companion may put other tests, and their estimates, in the place of some."""
        tell_unheeded(selection.tests, self.host.heeds)
        return selection

    def attempts(self) -> Attempts:
        """Of each test all attempts, in list order."""
        return [self.schedule.results[test] for test in self.tests]

    def perform(self) -> int:
        """All of the run; returns the exit code. From now on signals are its events."""
        send_signals_to(self.inbox.put)
        with self.trace.live(self.console.has_markers):
            self.execute()
        return self.report()

    def execute(self) -> None:
        """From the first start to the last end. Whatever goes wrong, no test is left running."""
        try:
            self.do_chores()
            self.record.run_start(self.selection, self.machine)
            self.console.begin(self.machine)
            for test, why in self.selection.deferred.items():
                result = Result(test, Outcome.DEFERRED, reason=why)
                self.schedule.results[test] = (result,)
                self.conclude(result)
            self.handle(Begin(self.host.health.sick))
            while self.expects_more or not self.schedule.done:
                self.handle(self.next_event())
        except OSError as error:
            self.give_up(
                f"{error.filename or 'a file, perhaps in TMPDIR,'} cannot be written ({error.strerror})"
            )
        except (MachineError, ListError) as error:
            # A ListError here: a companion has refused a test of a script.
            self.give_up(str(error))
        except Exception as error:
            self.give_up(note_crash(error, self.record.log_dir))
        finally:
            self.host.close()

    def next_event(self) -> Event:
        """What happened, or a Tick where nothing has for a while or a deadline is due; shows growing logs meanwhile."""
        tick_s = self.console.tick()
        now = monotonic()
        if now >= self.chores_at:
            self.do_chores()
        if not self.inbox.events:  # under load, many lines go out in one write
            self.trace.flush()
        pause_s = min(tick_s, self.pause_s, self.schedule.deadline() - now)
        event = None
        # What is due is due, however many events there are: short tests may fill the inbox faster than we empty it.
        if pause_s > 0:
            event = self.inbox.get(pause_s)
        if isinstance(event, Interrupt) and event.signum == SIGUSR1:
            self.console.tell_running()
            event = None
        return event or Tick()

    def do_chores(self) -> None:
        """What is to be looked after every second, and first of all. Raises OSError."""
        self.chores_at = monotonic() + CHORES_S
        self.host.do_chores()
        self.record.restore()
        self.console.look_ahead()

    def handle(self, event: Event) -> None:
        """Let the schedule decide on what has happened, and do what it says."""
        schedule = self.schedule
        if isinstance(event, Interrupt) and schedule.running and not schedule.interrupts:
            warn(
                f"{signal.Signals(event.signum).name}: ending the running tests; once more kills them"
            )
        self.carry_out(schedule.step(event, monotonic()))

    def carry_out(self, actions: Actions) -> None:
        """Do what the schedule says."""
        if self.schedule.stopped:
            self.host.health.over.set()
        for action in actions:  # ends come before starts, and are on disk when a test starts
            deed = getattr(self, type(action).__name__.lower())  # `launch` of a Launch
            deed(*action)

    def launch(self, attempt: Attempt) -> None:
        attempt.log = self.record.log_path(attempt.test)
        self.record.test_start(attempt)
        if attempt.number > 1:
            self.record.put_away(self.schedule.results[attempt.test][-1])
        self.host.start(attempt)
        self.console.launched(attempt)
        exported = attempt.test.shell.environment
        if b"MASTER_PORT" in exported and len(self.schedule.running) > 1:
            warn_once(
                "MASTER_PORT is set, so tests that run at the same time share it; unset it, and each gets its own"
            )

    def kill(self, attempt: Attempt, signum: int, stacks: str) -> None:
        if stacks:  # this takes time
            start_thread(attempt.process.signal, signum, stacks)
        else:
            attempt.process.signal(signum)

    def retry(self, result: Result) -> None:
        self.record.attempt_end(result)
        self.console.ended(result, "to be retried", result.attempt)

    def quarantine(self, sick: Sick) -> None:
        self.console.remark(f"Quarantined: GPU {sick.device.token} [{sick.reason}]")

    def conclude(self, result: Result, is_news: bool = True) -> None:
        if is_news:
            self.record.attempt_end(result)
        self.record.test_end(result)
        self.console.concluded(result)

    def give_up(self, why: str) -> None:
        """The last resort when the runner itself cannot go on: kill all tests, keep what is known."""
        schedule = self.schedule
        schedule.failure = schedule.failure or why
        still_running = set()
        for test, attempt in schedule.running.items():
            if attempt.process and not attempt.process.is_gone:
                attempt.process.signal(SIGKILL)
                still_running.add(test)
        give_up_at = monotonic() + STUCK_S
        while still_running and monotonic() < give_up_at:
            event = self.inbox.get(FOLLOW_S)
            if isinstance(event, (Exited, Broken)):
                still_running.discard(event.test)
        for test in self.tests:
            ends = schedule.results[test]
            is_running = test in schedule.running
            if is_running or test in schedule.waiting or not ends:
                outcome = Outcome.INTERRUPTED if is_running else Outcome.NOT_RUN
                end = Result(test, outcome, attempt=len(ends) + 1, reason=why)
                schedule.results[test] += (end,)
                for note in (self.record.attempt_end, self.record.test_end):
                    with suppress(Exception):  # to write may be what has failed
                        note(end)

    def report(self) -> int:
        """Close the journal, print what there is to print; returns the exit code."""
        seconds = self.console.age
        attempts = self.attempts()
        results = results_of(attempts)
        verdict, last = self.verdict(results)
        # The verdict is printed even if a record cannot be written, or a signal ends the logs.
        sick = self.schedule.sick
        code = exit_code_of(lambda: self.record.run_end(results, verdict, sick)) or verdict
        send_signals_to(exit_by_signal)
        lines = summary(attempts, seconds, self.schedule, self.record)
        code = exit_code_of(lambda: self.record.summarise(attempts, seconds)) or code
        code = exit_code_of(lambda: self.console.finish(results, lines)) or code
        if code and not verdict:
            last.append(
                f"The run's records or output are not whole: exit code {code}, see stderr"
            )
        for line in last:
            self.trace.line(line, RED if code else GREEN)
        return self.trace.exit_code(code)

    def verdict(self, results: Results) -> Verdict:
        """The exit code and the last lines of the trace."""
        code, lines = verdict_of(results, self.schedule, self.selection.is_part)
        return code, [*account(self.selection, self.options), *lines]


def exit_by_signal(event: Interrupt) -> None:
    """What a signal does before and after the tests. Raises SystemExit."""
    if event.signum != SIGUSR1:  # SIGUSR1 asks what runs: nothing does
        sys.exit(EXIT_SIGNAL + event.signum)


def tell_unheeded(tests: Tests, heeded: Container[str]) -> None:
    """Say on which lines something is for a companion that does not run here."""
    for key in COMPANION_KEYS:
        name = key.replace("-", "_")
        lines = dict.fromkeys(test.where for test in tests if getattr(test.attributes, name))
        if lines and key not in heeded:
            tell(
                f"{first_of(lines)}: {key}= is for a companion that imports the runner; here it changes nothing"
            )


def slot_count(pool: Pool, tests: Tests) -> int:
    """How many tests may run at once."""
    if pool.sequential:
        return 1
    shares = [test.gpus for test in tests if 0 < test.gpus < 1]
    on_each = int(1 / min(shares, default=1))
    on_cpu = sum(test.gpus == 0 for test in tests)
    on_gpus = min(pool.size * on_each, pool.size + len(shares))
    return on_gpus + min(on_cpu, pool.cpus)


def send_signals_to(post: Callable[[Interrupt], None]) -> None:
    """Post an Interrupt for each signal that may come (some batch systems send SIGUSR2); `nohup` still works."""
    for name in "SIGINT SIGTERM SIGHUP SIGUSR1 SIGUSR2".split():
        signum = signal.Signals[name]
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda number, _: post(Interrupt(number)))


def open_stdout() -> BinaryIO:
    """Standard output as bytes, buffered also under PYTHONUNBUFFERED. It is open: `fill_standard_descriptors`."""
    return open(1, "wb", closefd=False)


def choose(tests: Tests, options: Options) -> Selection:
    """What runs, by the journals; warns where an option has not what it needs. Raises UsageError."""
    for option in changed_options(options, SCRIPT_OPTIONS):
        warn(f"{option} is for scripts (.sh or #!); for a list it does nothing")
    history = read_history(options)
    if options.rerun_failed and not history.knows_shard:
        what = "this shard of " * bool(options.shard)
        warn(
            f"--rerun-failed: {options.journal_path} has no last run of {what}this list here; all of it runs"
        )
    if options.shard and any(test.barrier for test in tests):
        warn(
            "--shard: a test below a `wait` does not wait for those above it in other shards; what prepares for all "
            "belongs in the script that calls the runner"
        )
    if options.shard and any(history.shards):
        warn(
            f"--shard: {options.journal_path} has runs of single shards; if each shard has a journal of its own, "
            "their parts overlap or miss tests: give all the same by --history and start with an empty log dir"
        )
    check_outputs(tests, options)
    lost = {*options.known_failures}
    if options.only:
        lost |= {
            label for label in options.only.labels if not re.search(f"^# |{RUN_SUFFIX}", label)
        }
        new = [test.label for test in options.only.new_tests(tests)]
        if new and "all" not in options.message:
            warn(
                f"--only: {counted(len(new), 'test')} new to the file, which run too: {first_of(new)}"
            )
    elif options.message:
        warn("--message adds to what --only names; without --only, all tests run")
    lost -= {test.origin for test in tests}
    if lost:
        warn(
            f"{counted(len(lost), 'label')} of --only or --known-failures without a test here: "
            f"{first_of(sorted(lost))}; --list shows labels"
        )
    return select(tests, options, history)


def check_outputs(tests: Tests, options: Options) -> None:
    """Raises UsageError if --junit, --journal or a list is a file that the run or a test also writes."""
    junit_paths = {test.junit for test in tests}
    log_dir = realpath(options.log_dir)
    written = {f"{log_dir}/{test.stem}.log" for test in tests}
    names = [*junit_paths, options.failures_path, options.deferred_path]
    written.update(map(realpath, filter(None, names)))
    lists = set(map(realpath, options.lists))  # one may be given twice
    for path in filter(None, [options.journal_path, options.junit, *lists]):
        real = realpath(path)
        if real in written:
            raise UsageError(f"{path}: the run or a test writes this, too; name another file")
        written.add(real)
    folder = dirname(abspath(options.junit))
    if options.junit and folder in map(dirname, junit_paths):
        warn(
            f"--junit {options.junit} is beside the tests' JUnit files: who reads all counts tests twice; move it"
        )


def fill_standard_descriptors() -> None:
    """Open the null device for each that is closed (`<&-`): else the next file that is opened has its number."""
    null = 0
    while null < 3:
        # It gets the first number that is free. To read from it fails, as from a closed one.
        null = os.open(os.devnull, os.O_WRONLY)
        os.set_inheritable(null, null < 3)
    os.close(null)


def drop_coerced_locale() -> None:
    """Take out of the environment what Python itself has put there where the locale was C (PEP 538)."""
    variables = read_proc("self/environ")
    if variables and not re.search(rb"(^|\0)LC_CTYPE=", variables):
        os.environ.pop("LC_CTYPE", None)


def find_host(options: Options, reaper: Reaper) -> Host:
    """This machine and its devices. Raises UsageError, MachineError."""
    host = Host(find_machine(options.gpus, os.environ), reaper)
    check_gpus(host, options)
    return host


def check_gpus(host: Host, options: Options) -> None:
    """Raises MachineError where there are fewer devices that can be used than demanded."""
    sick = dict(host.health.sick)
    found = [device.token for device in host.machine.devices if device not in sick]
    if len(found) < options.require_gpus:
        facts = [" ".join(found) or "none"]
        facts += dict.fromkeys(sick.values())
        raise MachineError(
            f"--require-gpus {options.require_gpus}: there are {len(found)} ({'; '.join(facts)}); "
            "fix the machine or its mask"
        )


def run_lists(
    options: Options,
    find_host: Callable[..., Host] = find_host,
    make_run: Callable[..., Run] = Run,
) -> int:
    """From options to exit code. Raises ListError, UsageError, MachineError before any test has started.

    `find_host` says where tests run, `make_run` makes the run.
    """
    drop_coerced_locale()
    fill_standard_descriptors()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it drops exit statuses
    send_signals_to(exit_by_signal)
    reaper = Reaper()
    try:
        trace = open_trace(options.color)
        for name in filter(is_script, options.lists):
            check_script(name, options)
            script = read_script(name, options)
            if options.list:
                return list_script(script, script.files[name], trace)
            return ScriptRun(script, find_host(options, reaper), trace).perform()
        os.environ.pop("RUN_TESTS_OPTS", None)  # not for a runner that a test starts
        tests, hints = parse_lists(options, reaper.scratch)
        for hint in hints:
            tell(hint)
        if not options.list:
            host = find_host(options, reaper)
            tests = [host.fitted(test) for test in tests]
        selection = choose(tests, options)
        is_empty = not (selection.tests or selection.is_part)
        if is_empty or options.list:
            for line in account(selection, options):
                warn(line)
        if is_empty:
            warn(f"nothing to run in {', '.join(options.lists)}")
            return EXIT_NOTHING
        if options.list:
            for test in selection.selected:
                trace.line(f"{test.label}\t{test.need}\t{test.stem}\t{test.where}")
            return trace.exit_code(EXIT_OK)
        return make_run(selection, host, options, trace).perform()
    finally:
        send_signals_to(lambda _: None)  # a second one is not to keep the reaper from its work
        reaper.close()


def is_script(name: str) -> bool:
    """Whether a file is a script, which bash itself runs, and no list."""
    if isfile(name):  # a pipe could not be read again
        with suppress(OSError), open(name, "rb") as file:
            return name.endswith(".sh") or file.read(2) == b"#!"
    return False


def main() -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    if sys.version_info < OLDEST_PYTHON:
        warn(
            f"error: Python {sys.version.split()[0]} is too old, 3.8 is needed; name another interpreter"
        )
        return EXIT_MACHINE
    return exit_code_of(lambda: run_lists(parse_command_line(sys.argv[1:], os.environ)))


def exit_code_of(action: Callable[[], int | None]) -> int:
    """The exit code of an action, or of the error that ends the action: then a message tells the error."""
    variable = os.environ.get("RUN_TESTS_OPTS", "")
    try:
        return action() or EXIT_OK
    except ListError as error:
        tell("\n".join(error.args))
        return EXIT_USAGE
    except (UsageError, MachineError) as error:
        message = f"error: {error}"
        if any(option in message for option in re.findall(r"(?<!\S)-[\w-]+", variable)):
            message += f"; $RUN_TESTS_OPTS is {variable!r}"
        warn(message)
        return error.code
    except OSError as error:
        warn(
            f"error: cannot write {error.filename or 'a file'} ({error.strerror}); "
            "name a place with --log-dir, --fail-dir, --journal or "
            "--junit; make room in TMPDIR; start from a folder that is there"
        )
        return EXIT_MACHINE
    except KeyboardInterrupt:
        return EXIT_SIGNAL + SIGINT
    except SystemExit as end:
        return end.code  # type: ignore[return-value]  # Python itself would wait for all threads, perhaps for ever
    except Exception as error:
        warn(f"internal error, {error!r}; please report it with the list that shows it")
        return EXIT_MACHINE


def leave(code: int) -> None:
    """End at once: to take the interpreter down takes 18 ms, and would wait for a thread that is stuck."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def command() -> None:
    """The program that pip installs."""
    leave(main())


# ---------------------------------------------------------------------------------------------------
# 11. Scripts: bash runs one itself, test by test. A second bash, the scout, goes ahead and finds the tests to come.
# ---------------------------------------------------------------------------------------------------

# The script's shell is a bash that runs the whole script, in its order. At a test, a bash function stands in for the
# program: it waits until the runner has run the test on a slot, prints the test's output, and returns its status. What
# follows from that (a handler, a trap, `set -e`, a pipe) is bash's own doing, so the runner cannot get it wrong.
# The scout is a second bash that goes through the same script ahead of the shell. It reports the tests that it finds,
# takes each for passed, and the runner starts them. Other programs it does not run: it waits until the shell has run
# one, then takes over its status, and the variables that the command has set or, in a `$(…)`, what it has printed.
# Where the scout is wrong, a test has run too early, or for nothing: `note_ahead` and `own_status` see to that.

# Builtins that change nothing but the shell they run in, and look at nothing else.
CALM = names_in(
    "echo printf : true false [ [[ (( test local export declare typeset readonly let unset alias unalias break cd "
    "continue popd pushd return set shift shopt ulimit umask trap exit eval source . getopts builtin command"
)
# SETS: builtins whose words may name variables that they set.
SETS = names_in("local export declare typeset readonly read mapfile readarray getopts printf")
MOVES = names_in("cd pushd popd")  # builtins that change the folder
# The scout's code for a command whose changes it cannot take over.
LOST = "_rt_lost 'only bash knows what changes by'"
# OPEN: builtins that change more of the shell than variables, or of which only bash knows what they change.
OPEN = names_in(
    "set let unset shopt alias unalias pushd popd return shift ulimit umask exit eval source . builtin command"
)
# DEEDS: commands, each behind its name, whose arguments do more than to look.
DEEDS = (
    r"(?s)hostname \S+.*\s(?!-[sfidIA]\b)\S|awk .*(?:system|getline|print(?:[^;}\"]|\"[^\"]*\")*[>|]|\s-\w*[if])"
    r"|sed .*(?:\s-(?:\w*i|-in)|(?<!\\)\bw )|sort .*\s-(?:\w*o|-o)|date .*(?:\s-\w*s|--set)"
    r"|git .*\b(?:add|apply|checkout|clean|clone|fetch|init|merge|pull|reset|restore|rm|stash|submodule|switch)\b"
)
# PURE: commands that look at their words alone. BLIND: commands that see nothing that a test makes. LOOKING: commands
# that may run ahead in a `$(…)` of a test's words.
PURE = names_in("basename bc cd dirname echo expr false nproc printf pwd seq true uname") | {""}
BLIND = PURE | names_in("arch date hostname id printenv sleep wait whoami")
LOOKING = PURE | names_in("cat ls which")
# READS: builtins that set variables to what they read. NATIVE: the scout runs them itself, even if it has to wait.
READS = names_in("read mapfile readarray")
NATIVE = names_in("[[ ((")
# DOES: expansions that do more than give a value: `$((n++))`, `${a[n = 1]}`, `${x:=1}`, `${x@P}`. COUNTS: the beginning
# of one in which bash calculates.
COUNTS = r"(?:\$\(\((?:(?!\)\))[\s\S])*?|\$\[[^]]*?|\$\{\w+(?:\[[^]]*?|:(?![-+=?])[^}]*?))"
DOES = rf"{COUNTS}(?:\+\+|--|[^=!<>]=[^=]|(?:<<|>>)=)|\$\{{\w+(?:\[[^]]*\])?:?=|@P\}}"
# Words that give a variable a value if it has none.
DEFAULTS = rf"\$\{{({NAME}):?="
# How the name of a variable stands where that may be changed: `x=1`, `((++x))`, `let "x |= 1"`, `printf -v x`.
CHANGES = (
    rf"\b({NAME}) ?(?:<<|>>|[|&/%^])=|(?:\+\+|--|\s-v |-n \w+=|unset )({NAME})|{SETS_VARIABLE}"
)
# A check of a file, and not `[ $1 = -f ]`, nor the `-a` between two other checks. `[ "$@" ]`, `[ $1 x ]` may be one.
FILE_TEST = (
    r"(?:(?:\[|test) (?:! )?\"?\$(?:@|\w+\"? [^]\s<>!=-]\S*)\"?(?: \]|$)"
    r"|(?:\[\[?|test)\s[\s\S]*?(?<=\s)(?<!=\s)-(?:[b-hkprstuwxGLNOS]|nt|ot|ef|(?<=[\[!(t&|ao] -)a)\s)"
)
# A redirection to a descriptor that the scout may not have, or to none: `>&3`, `>&-`.
FROM_EXEC = r"[<>]&\s*(?:[3-9]|\d\d)|(?<![2-9])>&\s*-"
# Words that have another value in the scout than in the script's shell.
VALUES_THAT_DIFFER = (
    r"\$[$!]|\$_\b|%\(.*\)T"
    r"|\b(?:BASHPID|LINENO|PPID|S?RANDOM|SECONDS|EPOCH\w+|FUNCNAME|BASH_(?!REMATCH)\w+|mktemp)\b"
)
# Words that have another value each time. Bash expands those of a function's call before our trap sees the function.
CHANGES_EACH_TIME = r"\$\$|\$\{?(?:BASHPID|S?RANDOM)\b"
# FILTERS: programs that may stand behind a test in a pipeline. INTERPRETER: a test or not by its arguments (`sh $t`).
FILTERS = names_in("tee grep egrep sed awk tail head cat cut tr sort uniq wc ts")
INTERPRETER = r"(?:\S*/)?(?:(?:ba)?sh|python[\d.]*)$"
# A filter that makes a file (`tee -a` and `>>` write a log), or that may fail.
MAKES_FILE = r"\btee (?!-a)|(?<![2>])>(?![>&]| ?/dev/)|\bawk .*exit"
# HARMLESS: commands that change nothing outside of the `$(…)` of an `echo`.
HARMLESS = (
    CALM | BLIND | LOOKING | FILTERS | names_in("df du free git nvidia-smi ps stat")
) - names_in("builtin command eval source . tee")
# What may stand before a command whose status is turned, or looked at: `!` or `time`, in a condition or not.
CHECKED_BY = names_in("! if while !if !while !until timeif timewhile")
ARGUMENTS = names_in('"$@" $@ "$*" $*')  # words that stand for all arguments
# A data file. If it does not exist yet, one test may make it for another.
DATA_FILE = (
    r"\.(?:bin|ckpt|csv|db|jsonl?|log|np[yz]|onnx|out|pkl|pth?|safetensors|txt|xml|ya?ml)$"
)
# An argument that names a file which the test writes, as `--output=x.json`, a port where it listens, or the folder that
# pytest empties first.
OUTPUT = (
    r"(?s)(?:-o|--out[^=]*)=.*\.\w+$|--junit-?xml=(?!/dev/)"
    r"|(?:--basetemp|--master[-_]port|MASTER_PORT|--rdzv[-_]endpoint|COVERAGE_FILE)=(?!(?:.*:)?0$)"
)
# A declaration in a function that may hide an exported variable from `declare -px`: `local x`, `declare +x x=1`.
HIDES = (
    rf"\b(?:local|declare|typeset)\b(?:\s.*)?\s(?:{NAME}(?:[\s;&|)]|$)|[-+]\w*x)|export -\w*n"
)
# A command that may switch on `set -x` or `set -v`, which would show our DEBUG trap.
SHOWS_TRAPS = r"\bset\s.*[vx$]|xtrace|verbose|shopt\s.*\$"
# A label in which nothing but values of variables is to be expanded.
VALUE = r"\$(?:[\w@*#]+|\{!?\w+[^}=?`$@]*\})"
LABEL = rf"""(?:{VALUE}|[^"'\\`$]|"(?:{VALUE}|[^"\\`$])*")*"""
# The least `ulimit -n` for a script's shell: the hook's descriptors are below 200.
MIN_DESCRIPTORS = 200
NO_TESTS = (
    "no command has `|| test_fail`, or looks like a test (with --tests: begins so); name tests by how they begin "
    "(--tests '(python3 -m )?pytest|\\./run'), or the function NAME of `command || NAME` (--fail-function NAME); if "
    "this script calls another one for its tests, run that one"
)


class Site(NamedTuple):
    """A command of a script; with a label, it is a test."""

    file: ScriptFile
    line: int  # the first line of the command
    node: Node
    # Of a test, bash words for the files of its redirections, and for those that filters behind it write.
    file_words: List[str]
    number: str = ""  # in `Script.commands`, once bash has come to it
    # From here on for tests alone. The label, a bash word: of its `#:`, else its handler's first argument, else `""`.
    label: str = ""
    attributes: Attributes = Attributes()
    is_background: bool = False
    # Whether standard output and standard error go to two places; None: known only when bash has come to it.
    splits: bool | None = None
    # It cannot run ahead: its input is redirected, or its words do something or differ in the scout (`$$`).
    waits_for_shell: bool = False
    is_native: bool = False  # bash itself runs it, without a slot

    @property
    def where(self) -> str:
        return f"{self.file.name}:{self.line}"

    @property
    def described(self) -> str:
        """What it is and where, as a message has it."""
        return f"`{clean_label(self.node.text.splitlines()[0])}` ({self.where})"


def files_of(node: Node, operators: str = "[^<]*[<>](?!<)") -> List[str]:
    """The words for files that the redirections of a command open, by operators that match a pattern.

    Descriptors, /dev/null, /dev/stdout and /dev/stderr are left out.
    """
    return [
        target
        for how, target in node.redirects
        if re.match(operators, how)
        and not re.match(r"[0-9]*-?$|/dev/(?:null|stdout|stderr)$", target)
    ]


def place_of(line: int, node: Node) -> Tuple[int, str]:
    """By what a command is known: its line and words, without blanks where bash 5.2 lays out a `$(…)` anew."""
    text = " ".join(node.all_words)
    if re.search(SUBSHELL, text):
        text = re.sub(r"[\s;]", "", text)
    return line, text


def label_word(handler: Node) -> str:
    """The bash word for the label that a handler gets: variables in it expand, unless more than that could happen."""
    text = "".join(handler.words[1:2])
    if re.fullmatch(LABEL, text) and not re.search(VALUES_THAT_DIFFER, text):
        word = text.replace('"', "").replace("$@", "$*")
        return f'"{word}"'
    return quote(unquoted(text))


def splits_output(node: Node) -> bool | None:
    """Whether the output of a command and its errors go to two places; None if its redirections do not tell it.

    The last redirection counts: behind `2>&1 >log` they go to two places. So they may by a descriptor above 2.
    """
    pairs = [pair for pair in node.redirects if not re.match("[3-9]", pair[0])]
    streams = " ".join(chain(*pairs))
    joins = re.search(r"(?:&>>?|>&) \S+(?: < \S+)?$", streams) or node.after == "|&"
    if joins and not re.search(r" [3-9]\b", streams):
        return False
    return ">" in streams or node.after in PIPES or None


def inert(word: str) -> str:
    """A bash word, quoted as a whole if its expansion would run commands, set variables or end the shell.

    To ask for RANDOM sets it. `((1 < 2))`, too, is no word where another one stands before it.
    """
    if re.search(rf"{RUNS_INSIDE}|{DOES}|\bRANDOM|\$\{{\w+(?:\[[^]]*\])?:?\?|^\(\(", word):
        return quote(word)
    return word


def only_looks(text: str) -> bool:
    """Whether a test's words can be expanded more than once: they set nothing, and run only what looks."""
    return substitutes(text, LOOKING) and not re.search(rf"{DOES}|[<>]\(", text)


def substitutes(text: str, names: Container[str]) -> bool:
    """Whether all commands in the `$(…)` of some words are among `names`, without redirections."""
    return all(
        is_among(node, names) and not node.redirects
        for node in walk(substituted_commands(text))
    )


def is_among(node: Node, names: Container[str]) -> bool:
    """Whether a command only looks, and is one of these or an `awk "BEGIN…"`, which calculates."""
    if re.match(DEEDS, f"{node.name} {node.text}"):
        return False
    return node.name in names or node.has(r"^awk [\"']BEGIN\b")


class ScriptFile:
    """What is read of a script, or of a file that it sources, before it runs.

    What concerns all files of the `script` is noted there: functions, the names of tests, what a test's failure does.
    """

    obstacle = ""  # why the scout cannot go through it
    one_by_one = inf  # the line of `#: one-by-one`

    def __init__(self, name: str, text: str, script: Script) -> None:
        self.name = name
        # Bash sources no binary file, one that has this in its first line.
        self.text = text = re.sub(r"\A[^\n]{,79}\0(?s:.*)", "", text)
        self.breaks = [match.end() for match in re.finditer("\n", text)]
        self.script = script
        self.options = script.options
        self.mistakes: List[str] = []
        self.sites: List[Site] = []
        self.by_place: Dict[Any, List[Site]] = defaultdict(list)
        # Lines of commands that look like tests but have no handler, in a script that has handlers. Those in functions
        # do not count: the call of a function may have a handler.
        self.bare: List[int] = []
        self.filters: Set[Words] = set()  # the words and files of each filter behind a test
        # By name of a variable, the commands that may use it: their text has that name.
        self.commands_by_name: Dict[str, List[Node]] = defaultdict(list)
        # By line and words of each command, how it stands: the operator behind it; one of CHECKED_BY, else `plain`; `<`
        # behind a pipe, `job` in a job; `value` in a `$(…)`, `head` in that of a loop.
        self.ways: Dict[Any, Set[str]] = defaultdict(set)
        # By line, what `#:` says of it, or above it of all lines below.
        self.attributes: Dict[int, Attributes] = defaultdict(Attributes)
        reader = Reader(text)
        found = re.findall(
            r"(?<![^\s;&|(){}])([^\s;&|(){}]+)\s*\(\)|\bfunction\s+([^\s(]+)", text
        )
        # Names of functions that are no handlers. Of the two groups of the pattern one is empty.
        self.defines = set(chain(*found)).difference(self.options.handlers, [""])
        self.read_attributes(reader)
        self.nodes = reader.nodes
        script.functions.update(functions_in(self.nodes))
        self.visit(self.nodes)

    def line_of(self, offset: int) -> int:
        return bisect_right(self.breaks, offset) + 1

    def note_ways(
        self, node: Node, lines: Sequence[int], text: str, lead: str, runs_beside: bool
    ) -> None:
        """Note how a command stands, behind what `lead` of its pipeline, and those in its `$(…)`."""
        if node.kind == "function":
            return
        ways = {
            node.after,
            f"{lead}{node.check}" or "plain",
            "<" * (node.before in PIPES),
            "job" * runs_beside,
        }
        where = "value"
        if node.kind:
            where = "head"
        inside = list(walk(substituted_commands(text)))
        for line in lines:
            self.ways[place_of(line, node)] |= ways
            if node.name == "eval":  # the commands in its words have its line, too
                self.ways[line, node.name] |= ways
            for inner in inside:
                self.ways[place_of(line, inner)].add(where)

    def is_filter(self, node: Node, head: Node, before_pipeline: int) -> bool:
        """Whether the scout takes a command for a filter, which passes: below the first test, most of FILTERS.

        A `grep`, which may fail, is one only in a test's own pipeline. What makes a file is none where the `head` of
        the pipeline only prints or looks, as in `echo x=1 | tee conf`, be it by a function that has a handler.
        """
        if node.before not in PIPES or not is_among(node, FILTERS):
            return False
        if node.has(MAKES_FILE):
            functions = self.script.functions
            names = {each.name for each in reached([head], functions)}
            if names <= HARMLESS.union(functions):
                return False
        return len(self.sites) > before_pipeline * node.name.endswith("grep")

    def read_attributes(self, reader: Reader) -> None:
        """Note what each `#:` says: of its line, or, where it stands alone, of all lines up to the next such one."""
        for comment in reader.comments:
            marker, _, text = comment.text.partition(":")
            line = self.line_of(comment.start)
            if marker != "#":
                continue
            if text.strip() == "one-by-one":
                self.one_by_one = min(self.one_by_one, line)
                continue
            mistakes: List[str] = []
            end = line + 1
            defaults = self.attributes[line]
            if not self.text[: comment.start].rpartition("\n")[2].strip():
                end = len(self.breaks) + 2
                defaults = Attributes()
            attributes = parse_attributes(text, defaults, mistakes.append)
            if attributes.after:
                mistakes.append(
                    "after= means nothing in a script, which has an order of its own; take it out"
                )
            self.mistakes += [f"{self.name}:{line}: {what}" for what in mistakes]
            self.attributes.update(dict.fromkeys(range(line, end), attributes))

    def visit(self, nodes: Nodes, label: str = "", is_job: bool = False) -> None:
        """Note the tests in a list of commands. With a label, all that look like tests in it are tests.

        So are the functions that it calls: what looks like a test in them gets the label.
        """
        before_pipeline = 0
        head = Node(";")  # the first command of a pipeline
        looks_count = label or self.options.tests is not None
        for statement in statements_of(nodes):
            handled = self.handled(statement)
            before = len(self.sites)
            runs_beside = is_job or statement[-1].after == "&"
            for node in statement:
                line = self.line_of(node.start)
                if node.before not in PIPES:
                    before_pipeline = len(self.sites)  # so many tests stand before its pipeline
                    head = node
                own_label = handled.get(node, label)
                text = node.text * (not node.kind) or node.head
                for name in re.findall(NAME, text):
                    self.commands_by_name[name].append(node)
                # Bash does not always name the first line of a command as that where it stands.
                lines = range(line, line + text.count("\n") + 1)
                self.note_ways(node, lines, text, head.lead, runs_beside)
                calls = label and node.name in self.defines
                if node.kind:
                    self.visit_block(node, own_label, runs_beside)
                elif node in handled or calls or (looks_count and self.is_test(node)):
                    reads_test = len(self.sites) > before_pipeline
                    site = self.site_of(node, line, own_label, reads_test)
                    site = site._replace(is_background=runs_beside)
                    self.sites.append(site)
                    self.script.called.add(node.name)
                    for each in lines:
                        self.by_place[place_of(each, node)].append(site)
                elif node.name not in self.defines and self.is_test(node):
                    self.bare.append(line)
                elif self.is_filter(node, head, before_pipeline):
                    names = files_of(node)
                    self.filters.add((*node.all_words, *names))
                    if node.has("^tee|^sort .*-o"):
                        names += node.words[1:]
                    self.sites[-1].file_words.extend(names)
            if len(self.sites) > before:
                self.script.reactions += [node for node in statement if node.before == "||"]

    def visit_block(self, node: Node, label: str, is_job: bool) -> None:
        """Note the tests in a compound command.

        Bash opens its redirections without calling the DEBUG trap, in the scout, too. So the scout must not come to a
        block that writes a file, or that reads one which does not exist yet.
        """
        where = f"{self.name}:{self.line_of(node.start)}"
        for target in files_of(node, ".*>"):
            self.obstacle = self.obstacle or f"{where}: a block writes {target}"
        for source in files_of(node, "<$"):
            if not ("$" in source or exists(unquoted(source))):
                self.obstacle = self.obstacle or f"{where}: a block reads {source}"
        bare = len(self.bare)
        self.visit(node.parts, label, is_job)
        if node.kind == "function":
            del self.bare[bare:]

    def only_shows(self, name: str) -> bool:
        """Whether a variable is only printed, or used in values of other variables that are only printed."""
        names = [name]
        for each in names:  # `names` grows
            for node in self.commands_by_name[each]:
                if node.name in PRINTS and not node.has(" -v "):
                    continue
                if node.kind or node.name not in ("", "local", "printf"):
                    return False
                # In `local name="$1" end` no other variable gets the value of `name`.
                if node.has(rf"[$=]\{{?[#!]?{each}\b|(?:\(\(|\[)[\s\S]*\b{each}\b"):
                    names += set(variables_of(node)).difference(names)
        return True

    def handled(self, statement: Nodes) -> Dict[Node, str]:
        """The command of a statement that has a handler behind its `||`, with its label: the first argument of that."""
        pipelines = statements_of(statement, PIPES)
        for before, pipeline in zip(pipelines, pipelines[1:]):
            tested = before[0]
            is_more = tested.words or tested.kind  # than assignments
            calls = [each for each in walk(pipeline[:1]) if each.name in self.options.handlers]
            if is_more and calls and pipeline[0].before == "||":
                return {tested: label_word(calls[0])}
        return {}

    def is_test(self, node: Node) -> bool:
        """Whether a command looks like a test, and is no handler: `test_fail` does, too."""
        words = " ".join(word.strip("\"'") for word in node.words)
        return node.name not in self.options.handlers and self.options.looks_like_test(words)

    def site_of(self, node: Node, line: int, label: str = "", reads_test: bool = False) -> Site:
        """The test that begins on this line. `label` is a bash word, in whose place `#:` may give another label.

        A test that reads another test's output gets no slot: the other might wait for that slot.
        """
        attributes = self.attributes[line + node.text.count("\n")]
        if attributes.label:
            label = expandable(attributes.label, is_command=False)
        operators = " ".join(chain(*node.redirects))
        text = " ".join(node.all_words)
        reads = re.search("<(?! /dev/null)", operators) or node.before in PIPES
        has_own = re.search(rf"{VALUES_THAT_DIFFER}|\$\{{?\?|PIPESTATUS", text)
        # For a function in a program's place, `{fd}>` and `>&-` would not do what they do for the program.
        has_descriptor = re.search(r"\}[<>]|& -(?!\S)", operators)
        return Site(
            self,
            line,
            node,
            files_of(node),
            label=label or '""',
            attributes=attributes,
            splits=splits_output(node),
            waits_for_shell=bool(reads or has_own or not only_looks(text)),
            # If the script may define a function of this name, that could not be told from ours: no trap tells of it.
            is_native=bool(has_descriptor)
            or node.name in ("command", "exec", *self.defines)
            or reads_test,
        )


# The hook: bash code that both shells run before the script, by BASH_ENV. It sets a DEBUG trap, which bash calls before
# each simple command. The trap must not show under `set -x`, and must not change what the script sees: `$?`, `$_`,
# PIPESTATUS, its options, its standard streams. It has four descriptors: scripts use small numbers and round ones, bash
# those from 255 down. 191 is for questions, 192 for answers, 193 is the standard error of the command for which our
# trap or function runs, 194 that of the shell while a test runs: bash prints there how a program dies. An answer is
# bash code behind the number of its question: if a signal has cut off an earlier question, the answer to that comes
# first. Who asks what:
#
#   both   kind    file, line, command, folder, `function` if it      _rt_code: `calm`, or bash for each time it comes
#                  calls one, functions around it
#   both   each    number of a command, its words as they are now     bash for this time
#   both   test    process, program, where its output and its errors  shell: sets _rt_status, once the test has ended;
#                  go, who comes to it, number, label, files          scout: nothing, once it may go on
#   both   moved   number of a `cd`, folder                           no answer: it has ended, or begins
#                  number of a loop's head, what its globs find       no answer: a turn of it begins
#                  number of a `source`, what the file has            no answer: it begins
#   scout  reads   folder, `eval` or `source` and its words           bash: whether it may go on
#   scout  wait    number of a command, or of a test that it          bash: what that has changed in the shell, once
#                  cannot start                                       it has ended there
#   scout  lost    what it cannot go through                          no answer: it is ended
#   shell  past    number, subshell and turn; folder, variables,      no answer: a command has ended that is no test
#                  status
#   shell  passed  status                                             no answer: a filter has ended
#   shell  did     number; `past` if its end is told, too, `meets`    no answer: it begins
#                  if the scout may run it now
#   shell  printed number, file                                       no answer: a `$(…)` has printed that from it on
#   shell  trapped commands of a trap                                 no answer: it runs
#   shell  ran     number, label, status                              no answer: bash has run a test itself
#   shell  failed  line, status, label                                no answer: a handler is called
#   shell  alone   file, line, command                                no answer: bash runs the rest by itself
#
# ASK: how a shell asks, and what stands in a test's place.
ASK = r"""
_rt_send() {     # sends words to the runner, and waits for no answer
  builtin set -- "${_rt_number-}" "$_rt_reply" "$_rt_role" "${@//$'\n'/$'\1'}" $'\n'
  local _rt_text="$*" LC_ALL=C     # so that bytes count
  # A bash with a malloc of its own writes 1008 bytes at once; other processes write between two writes. What is longer
  # goes to a file.
  ((${#_rt_text} + $# < 1000)) || {
    _rt_text=$_rt_folder/$BASHPID.$((++_rt_asked))
    builtin printf '\0%s' "$@" >|"$_rt_text"
    builtin set -- "$_rt_text" $'\n'
  }
  builtin printf '\0%s' "$@" >&191
}
_rt_ask() {      # sends a question, and runs the answer
  local _rt_answer=() _rt_number=$((++_rt_asked))
  [[ $BASHPID == "$_rt_owner" ]] || _rt_open
  _rt_send "$@" 2>/dev/null || builtin return      # the script has closed our descriptors
  until [[ $_rt_answer == *$'\2'"$_rt_number "* ]]; do    # first may come the answer to one that a signal has cut off
    builtin mapfile -t -d '' -n 1 -u 192 _rt_answer    # `read` would heed IFS and TMOUT
    [[ $_rt_answer ]] || break
  done
  builtin set -- "${_rt_arguments[@]}"
  builtin eval "${_rt_answer#*$'\2'* }"
}
_rt_open() {     # gives a subshell a pipe of its own for answers
  _rt_owner=$BASHPID _rt_reply=$_rt_folder/$BASHPID
  [[ -p $_rt_reply ]] || builtin command -- "$_rt_mkfifo" "$_rt_reply"     # it is there if a subshell has become a stub
  builtin eval 'exec 192<>"$_rt_reply"'
}
_rt_program() {  # reports a test: words, umask, `$-` in the scout, folder, exported variables. With _rt_whole its
  # environment, too: if the runner asks for it, or in a function, where a local variable may hide an exported one from
  # `declare -px`.
  # It writes over its last report, up to a mark: for each test ext4 takes 0.3 ms to make a new file.
  local _rt_arguments=("$@") _rt_path=$_rt_folder/$BASHPID.test _rt_mark=$((++_rt_asked))
  {
    builtin printf '%s\0' "$#" "$@"
    builtin umask
    builtin printf '%s\n' "${_rt_flags-}"
    builtin pwd -P
    builtin printf '\0'
    builtin declare -px
    builtin export -f
    [[ ! ${_rt_whole-} ]] || {
      builtin printf '\0'
      # If `/usr/bin/cat` is a test, a function has its name. Where it cannot start, nor could the test; or the disk is
      # full. What has no mark is no report.
      builtin command -- "$_rt_cat" /proc/self/environ || _rt_status=$? _rt_whole=failed
    }
    [[ ${_rt_whole-} == failed ]] || builtin printf '\0%s\0' "$_rt_path.$_rt_mark"
  } 1<>"$_rt_path"
  _rt_ask test "$BASHPID" "$_rt_path.$_rt_mark" "${_rt_call[@]}"
}
_rt_run() {      # runs a test as bash would, by its words, and reports its status
  builtin command -- "$@" 193>&- 194>&-
  _rt_status=$?
  _rt_send ran "${_rt_call[@]:2:2}" "$_rt_status"
}
_rt_print() {    # prints a test's log, and that of its errors; if nobody reads it, the test has died by SIGPIPE (141)
  [[ ! ${2-} ]] || builtin command -- "$_rt_cat" "$2" >&2
  [[ ! -e /dev/fd/1 ]] || builtin command -- "$_rt_cat" "$1" 2>/dev/null || [[ $? != 141 ]] || _rt_status=141
}
_rt_died() {     # what bash itself would say of a program's death
  builtin printf '%s\n' "$1" >&194
}
_rt_stub() {     # in a test's place: reports its words, waits until it has ended, returns its status
  local _rt_status=1
  _rt_call[0]=apart
  if [[ /dev/fd/1 -ef /dev/fd/193 ]]; then
    _rt_call[0]=together
    [[ ! /dev/fd/1 -ef $_rt_trace ]] || _rt_call[0]=shown
  fi
  _rt_program "$@" 2>&193     # where a signal's trap may write
  builtin return "$_rt_status"
}
"""
# An executable in a test's place, where the script has traps for signals: bash runs such a trap when a program has
# ended, but would run it at once while a function of ours waits.
STUB = r"""
builtin eval "_rt_call=($_rt_called)"
builtin unset _rt_called
_rt_whole=1      # this bash imports no functions, and so does not know those that are exported
builtin trap : HUP INT TERM USR1 USR2     # these are for the shell, when the test has ended
builtin mapfile -d '' -t _rt_items </proc/$$/environ     # bash does not import IFS: we do
for _rt_item in "${_rt_items[@]}"; do
  [[ $_rt_item != IFS=* ]] || builtin export "$_rt_item"
done
builtin set -- "${_rt_call[0]}" "$@"
_rt_call=("${_rt_call[@]:1}")
{ _rt_stub "$@"; } 193>&2 2>/dev/null
"""
HOOK = r"""
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "run_tests.py: error: bash $BASH_VERSION is too old to run a script; put bash 4.4 or newer on PATH" >&2
  exit 3
fi
builtin unset RUN_TESTS_LABEL RUN_TESTS_SLOT RUN_TESTS_ATTEMPT
builtin declare -A _rt_known _rt_tests _rt_texts
_rt_builtins=$'\n'$(compgen -bk)$'\n'
_rt_shell=$BASHPID _rt_owner=$BASHPID _rt_asked=0 _rt_stand_in= _rt_after=() _rt_label= _rt_level=0
_rt_traps= _rt_tested= _rt_around=() _rt_uses_stub= _rt_hides= _rt_enters= _rt_pipes= _rt_last= _rt_skip=
# _rt_known: by file, line and text of a command, its code. _rt_tests: the same, of tests to come that call no function.
# _rt_texts: by signal, the script's traps as it has set them.
# _rt_stand_in: the name by which our function or stub stands in a program's place. _rt_after: who reports how the last
# command has ended (`any`, a process id, or `here`, which is that function), and the words of the report, for `past`
# with names of variables.
# _rt_label, _rt_around: the label of a call with a handler, and the files behind it (`| tee log`). _rt_level: the depth
# of functions above which tests get them.
# _rt_enters: the function that is about to begin, and its call. _rt_traps: the process that has just set a trap.
# _rt_uses_stub: the path of the stub, while there are traps during which none of our functions may wait.
# _rt_last: the value of `$_`. _rt_skip: 1 if bash is to skip the command.
_rt_replay=      # what the trap itself runs: declarations for the scout, which in _rt_hook would be local to it
_rt_moved=       # the number of the last command, if it was a `cd`
_rt_depth=0      # in how many functions the last command stands
_rt_turned=      # not empty if that is a `[[` or `((` behind a `!`, which turns PIPESTATUS
_rt_checks=()    # by depth, which of CHECKED_BY stands before the last command there
_rt_within=      # `job` in a job, for whose end nobody waits; `value` in a `$(…)`, `kept` if its output is kept, or
                 # `skipped` if its command is one that the scout skips
builtin eval 'exec 192<>"$_rt_reply" 191>"$_rt_folder/ask"'

# Its arguments: the status of the command before; `trap -p` if that may have set a trap; the command; its line; the
# positional parameters; and `$_`, which keeps its value by being the last argument.
_rt_hook() {
  _rt_replay=
  [[ $3 != 'builtin return' ]] || {      # a trap begins behind a test: BASH_COMMAND is still that of our function
    _rt_remove
    builtin return 1
  }
  local - _rt_flags=$-
  builtin set +aEeuvx
  _rt_skip=$_rt_skips
  builtin export -n _rt_flags _rt_replay BASH_TRAPSIG     # `set -a` has exported them
  _rt_last=${!#}
  local _rt_piped=$1 _rt_command=$3 _rt_line=$4 _rt_arguments=("${@:5:$#-5}")
  local _rt_begins=$_rt_enters     # as a function begins, bash calls the trap a second time for its call
  _rt_enters=
  [[ $_rt_begins != "${FUNCNAME[1]-}:$_rt_command" ]] || builtin return 1
  local _rt_file=${BASH_SOURCE[1]:-main} _rt_code= _rt_place _rt_joins= _rt_gets= _rt_outer=()
  [[ $_rt_traps != "$BASHPID" ]] || _rt_mend_traps "$2"
  [[ ! $_rt_stand_in ]] || _rt_remove
  _rt_tested=
  local _rt_left _rt_functions=("${FUNCNAME[@]:1}")
  [[ ! $_rt_moved || $BASHPID != "$_rt_shell" ]] || {
    _rt_send moved "$_rt_moved" "$PWD"
    _rt_moved=
  }
  case $_rt_after in
    any | "$BASHPID")
      # Behind a function's end PIPESTATUS is what the function has returned, even if its last command was a condition
      # that has failed, or stood behind a `!`. Where several functions have ended, the outer ones come first.
      for ((_rt_left = ${#_rt_functions[@]} + 1; _rt_left <= _rt_depth; _rt_left++)); do
        case ${_rt_checks[_rt_left]}:$_rt_piped in
          !:0 | !until:0) _rt_piped=1 ;;
          *!*) _rt_piped=0 ;;
          [iw]*[ef]:0 | time*:0) _rt_piped=1 ;;
        esac
      done
      [[ ! $_rt_turned || $_rt_depth -gt ${#_rt_functions[@]} ]] || _rt_piped=$((! _rt_piped))
      _rt_report_end ;;
    ?*) _rt_outer=("${_rt_after[@]}") ;;
  esac
  _rt_after=() _rt_depth=${#_rt_functions[@]} _rt_turned=
  [[ :$SHELLOPTS: != *:posix:* ]] || _rt_flags=      # by `set -o $x`
  case ${_rt_flags//[!T]/}:$_rt_command in
    *_rt_rest*) ;;    # the script sets a trap again as `trap -p` has shown it, with our part
    :* | *FUNCNEST* | T:set\ +*T* | T:set\ -[!-]*+*T* | T:set\ -k* | T:set\ -[!-]*k* | *:set\ *posix* | \
      *[:\ \\]set\ *keyword* | *:shopt\ *keyword* | *functrace* | *extdebug* | *:ulimit\ *-f* | *:shopt\ *posix* | \
      *POSIXLY_CORRECT* | *[:\ \\]trap\ *[Rr][Ee][Tt][Uu][Rr][Nn]* | \
      *[:\ \\]trap\ *DEBUG* | *[:\ \\]trap\ *[\ G]CHLD* | *[:\ \\]trap\ *continue* | *[:\ \\]trap\ *break* | \
      *ulimit*n\ [0-9] | *ulimit*n\ [0-9][0-9] | *ulimit*n\ [12][0-9][0-9])
      [[ ! $_rt_skips ]] || _rt_lost "bash runs all by itself behind"
      # Behind our `set -T`, functions inherit a trap for RETURN. A `ulimit -n` below 300 leaves our descriptors out.
      _rt_send alone "$_rt_file" "$_rt_line" "$_rt_command"
      _rt_replay='builtin trap - DEBUG; builtin set +T'
      builtin return ;;
  esac
  _rt_place=$_rt_file:$_rt_line:$_rt_command
  _rt_code=${_rt_known[$_rt_place]-}
  [[ $_rt_code ]] || {
    if builtin declare -F -- "${_rt_command%%[$' \t\n']*}" >/dev/null; then
      _rt_kind function
    else
      _rt_code=${_rt_tests[$_rt_place]-}
      [[ $_rt_code ]] || _rt_kind ''
    fi
    _rt_known[$_rt_place]=$_rt_code
  }
  _rt_do
  # Behind a pipe our function takes the place of what is skipped: else the status of the pipeline would be that of the
  # last command that is not skipped.
  [[ ! $_rt_skip || ! $_rt_gets ]] || _rt_fail 0 "$_rt_gets"
  [[ ! $_rt_skip ]] || builtin shopt -s extdebug
  [[ $_rt_skip$_rt_replay ]]
}
_rt_kind() {     # finds the runner's code for a command: `function` if it calls one
  local -A _rt_codes=()
  # What one subshell has asked, the next finds in a file: else a `$(…)` in a loop would ask each time.
  [[ $BASHPID == "$_rt_shell" ]] || builtin . "$_rt_folder/$_rt_line.told"
  _rt_code=${_rt_codes[$1:$_rt_place]-}
  [[ ! $_rt_code ]] || builtin return
  _rt_ask kind "$_rt_file" "$_rt_line" "$_rt_command" "$PWD" "$1" "${_rt_functions[@]}"
  [[ $BASHPID != "$_rt_shell" && $_rt_code ]] || builtin return
  local _rt_told LC_ALL=C
  builtin printf -v _rt_told '_rt_tell %q %q %q' "$_rt_hides" "$_rt_code" "$1:$_rt_place"
  # Lines that are written at once do not mix (see _rt_send). What is longer is asked again.
  ((${#_rt_told} >= 1000)) || builtin printf '%s\n' "$_rt_told" >>"$_rt_folder/$_rt_line.told"
}
_rt_tell() { _rt_hides=${_rt_hides:-$1} _rt_codes[$3]=$2; }
_rt_do() {       # runs the runner's code for a command
  builtin set -- "${_rt_arguments[@]}"
  if [[ $_rt_code == calm ]]; then
    _rt_skip=
  else
    builtin eval "$_rt_code"
  fi
}
_rt_function() { # a call of a function, if that is still defined
  _rt_is_function "${_rt_command%%[$' \t\n']*}" || {
    _rt_kind ''
    _rt_do
  }
}
_rt_is_function() {    # whether there is a function of this name; lets it run, and notes that it begins
  ((${#_rt_functions[@]} > _rt_level)) || _rt_label= _rt_around=()     # those of a call that has ended
  builtin declare -F -- "$1" >/dev/null && _rt_skip= _rt_enters=$1:$_rt_command
}
_rt_hide() {     # keeps our trap out of what `set -x` shows, by a redirection around all of it, which takes time
  _rt_trap=$_rt_hidden
  builtin trap "$_rt_trap" DEBUG
}
_rt_shows() {    # a command that both run, and that may switch on `set -x` or `set -v`
  _rt_hide
  _rt_skip=
}
_rt_move() {     # a `cd`: both run it; before its next command each reports where that has led
  _rt_skip=
  if [[ $BASHPID == "$_rt_shell" ]]; then
    _rt_moved=${_rt_scouted:+$1}
  elif [[ $_rt_scouted ]]; then     # a subshell may have no next command
    local _rt_site=$1
    builtin set -- "${_rt_arguments[@]}"
    _rt_send moved "$_rt_site" "$(
      builtin unset -f cd pushd popd
      builtin eval "$_rt_command" >&2
      builtin printf '%s.' "$PWD"
    )"
  fi
}
_rt_looks() {    # the head of a loop with a glob, its words: both run it, and each reports what it finds
  if [[ $BASHPID != "$_rt_shell" ]] || builtin shopt -q failglob; then
    _rt_sees "$1"
    builtin return
  fi
  _rt_skip=
  [[ $_rt_scouted ]] || builtin return
  local _rt_site=$1 _rt_words=$2
  builtin set -- "${_rt_arguments[@]}"
  builtin eval "builtin set -- $_rt_words"
  # Each turn looks at the glob anew. Over many files that would take too long.
  (($# < 100)) || _rt_known[$_rt_place]=${_rt_code/_rt_looks/_rt_sees}
  _rt_send moved "$_rt_site" "$@"
}
_rt_tells() {    # an `eval` or `source`, its words: of a file, both report what it has
  local _rt_found
  [[ $_rt_scouted && $2 != eval && ${3-} == */* && -f $3 ]] || builtin return
  builtin mapfile -d '' -t _rt_found <"$3" && _rt_send moved "$1" "${_rt_found[@]}"
}
_rt_aside() {    # a command that stands in a `$(…)` or in a job
  [[ $BASHPID != "$_rt_shell" && ! $_rt_within ]] || builtin return
  [[ $1 != either || ! $_rt_skips ]] || _rt_lost "inside or outside of a \`\$(…)\`,"
  # _rt_outer: what the command around a `$(…)` is to give. Around one in a loop's words our trap has seen no command.
  _rt_within=${1/head/value}
  [[ $1 != value || ! $_rt_outer ]] || _rt_skipped
}
_rt_each() {     # a command that is a test or not by the values of its words: its number, its words
  case " $* " in *\ set\ * | *\ shopt\ *) _rt_hide ;; esac
  _rt_is_function "${2-}" || _rt_ask each "$@"
}
_rt_names() {    # sets _rt_files to the files of a test: words as bash, whose globs find nothing under failglob
  local - _rt_words=$1
  ! builtin shopt -q failglob || builtin set -f
  builtin set -- "${_rt_arguments[@]}"
  builtin eval "_rt_files=($_rt_words)"
}
_rt_test() {     # a test with its _rt_files: number, words as bash, label, `native` or nothing, the first of the words
  if _rt_is_function "${5-}"; then      # a function is no test: the tests in it get its label and its files
    _rt_label=$3 _rt_level=${#_rt_functions[@]} _rt_around=("${_rt_files[@]}")
    builtin return
  fi
  # An exported SHELLOPTS has the hook's options here, not the script's. Without our descriptors nobody would answer.
  if [[ $4 || ${SHELLOPTS@a}${BASHOPTS@a} == *x* || ! -e /dev/fd/191 ]] || ! _rt_is_program "${5-}"; then
    _rt_itself "$1" "$3"
  else
    _rt_whole=${_rt_hides:+${_rt_functions[1]+1}}
    _rt_call=('' "${BASHPID#"$_rt_shell"}" "$1" "${_rt_label:-$3}" "${_rt_files[@]}" "${_rt_around[@]}")
    _rt_start "$@"
  fi
}
_rt_has_begun() {     # whether this stands in a function of that name, which may have been unset
  local IFS=' '
  [[ " ${FUNCNAME[*]} " == *" $1 "* ]]
}
_rt_is_program() {    # whether the first word of a command names a program that can be started
  ! _rt_has_begun "$1" || builtin return
  case $_rt_builtins in *$'\n'"$1"$'\n'*) builtin return 1 ;; esac
  [[ $PWD -ef . ]] || builtin return
  case $1 in
    '' | *[!a-zA-Z0-9_./+@%:,-]*) builtin return 1 ;;     # no name that a function can have
    */*) [[ -f $1 && -x $1 ]] ;;
    *) [[ $_rt_command == *PATH=* ]] || builtin hash -- "$1" ;;
  esac
}
_rt_peek() {     # a program that sees nothing that a test makes: where its output is read, the scout, too, runs it
  if [[ $_rt_within ]]; then
    _rt_skip=
  else
    _rt_other "$@"
  fi
}
_rt_uncover() {  # removes our function or stub from a test's place, so that bash finds the program again
  builtin unset -f -- "$_rt_stand_in"
  builtin hash -d -- "$_rt_stand_in"
  builtin unset _rt_called
}
_rt_remove() {
  _rt_uncover
  builtin eval "exec 194>&-"
  _rt_stand_in=
}
"""
# SHELL_HOOK: what the script's shell does with each kind of command. SCOUT_HOOK: what the scout does.
SHELL_HOOK = r"""
_rt_skips=       # the shell skips no command
[[ -x $_rt_stub ]] || _rt_stub=      # TMPDIR may be where no program can start (noexec)
_rt_other() {    # a command for which the scout waits: its number, variables that it may set, its first word and more
  [[ $_rt_scouted ]] || builtin return
  [[ ! $_rt_within ]] || {
    _rt_send did "$1"
    _rt_keep "$1"
    builtin return
  }
  _rt_send did "$1" past
  # The next command reports its end. A subshell behind it may do so first, but a `$(…)` inside it must not.
  builtin eval "_rt_after=(any past $1:${BASHPID#"$_rt_shell"}:$BASHPID.$((++_rt_asked)) $2)"
  [[ $BASHPID == "$_rt_shell" && $_rt_command != *[\`\(]* ]] || _rt_after=$BASHPID
  case ${3-}:${_rt_checks[_rt_depth]} in "[["*:*!* | "(("*:*!*) _rt_turned=1 ;; esac
  # In a subshell there may be no next command, and in a pipeline the next one begins earlier: there a function in place
  # of this command reports the end.
  [[ $BASHPID != "$_rt_shell" ]] || {
    [[ $_rt_joins ]] || builtin return
    [[ $_rt_joins == perhaps ]] || _rt_after=here
  }
  case ${_rt_flags//[!E]/}${3-} in
    E*) ;;      # the function itself would be a failure for an ERR trap
    '[' | echo | kill | mapfile | printf | pwd | read | readarray | test | type | wait) _rt_watch "$3" ;;
    *) ! _rt_is_program "${3-}" || _rt_watch "$3" ;;
  esac
}
_rt_keep() {     # in a `$(…)` that the scout comes to as well: what is printed from here on goes to a file, too
  # What a part of it prints may never end: `$({ yes; } | head)`.
  [[ $_rt_within$BASH_SUBSHELL == value1 && -p /dev/fd/1 && ! /dev/fd/1 -ef $_rt_trace ]] || builtin return
  [[ ! /dev/fd/1 -ef /dev/fd/193 ]] || builtin return     # errors that go there, too, would come in another order
  local _rt_path=$_rt_folder/$BASHPID.$((++_rt_asked))
  builtin command -- "$_rt_mkfifo" "$_rt_path.pipe" || builtin return
  # Neither `$!` nor `wait` may see it, as they would see a `>(…)`.
  ( _rt_copy "$1" "$_rt_path" <"$_rt_path.pipe" & ) || builtin return
  builtin eval 'exec 1>"$_rt_path.pipe"'
  _rt_within=kept
}
_rt_copy() {
  builtin set -B
  # One of these may be the end of a pipeline's pipe, whose reader would wait for us.
  builtin eval exec {3..190}">&-" {192..255}">&-"
  builtin command -- "$_rt_tee" "$2"
  _rt_send printed "$@"
}
_rt_skipped() {  # in a `$(…)` to which the scout does not come
  _rt_within=skipped
}
_rt_watch() {    # lets a function that reports its end take the place of a command
  [[ ${BASH_VERSINFO[0]}:$BASHOPTS != 4:*expand_aliases* ]] || builtin return     # see _rt_start
  _rt_after=here
  _rt_replace "$1" "builtin command -- $1 \"\$@\" 2>&193 193>&-; _rt_report \"\$?\""
}
_rt_replace() {  # lets a function, with some bash in it, take the place of a program
  _rt_stand_in=$1 _rt_tested=$_rt_command
  # A function that is called under `set +T` runs without our trap.
  local _rt_body="local -; builtin set +aEeTuvx; $2 || builtin return"
  # Defined by the trap, the function has the script's file and line, and `set -a` exports it.
  _rt_replay="function $1 () { { $_rt_body; } 193>&2 2>/dev/null; }; builtin export -fn -- $1"
}
_rt_report() {   # reports the end of a command
  local _rt_piped=$1
  _rt_report_end
  builtin return "$_rt_piped"
}
_rt_report_end() {     # reports how the command before has ended
  local _rt_text= IFS=' '
  if [[ ${_rt_after[1]} == past ]]; then
    ((${#_rt_after[@]} == 3)) || {
      _rt_text=$_rt_folder/$BASHPID.$((++_rt_asked))    # a new file: ext4 takes milliseconds to truncate an old one
      builtin declare -p "${_rt_after[@]:3}" >|"$_rt_text"
    }
    _rt_after=("${_rt_after[@]:0:3}" "$PWD" "$_rt_text")
  fi
  _rt_send "${_rt_after[@]:1}" "$_rt_piped"
  _rt_after=()
}
_rt_sees() { [[ ! $_rt_scouted ]] || _rt_send did "$1"; }    # both run it
# Both run it, the scout when the shell has come to it.
_rt_meets() { [[ ! $_rt_scouted ]] || _rt_send did "$1" meets; }
_rt_itself() {   # a test that bash itself runs: its number, its label
  _rt_sees "$1"
  _rt_after=("$BASHPID" ran "$@")
}
_rt_start() {    # a test, as _rt_test has it: a function takes the place of its program
  builtin eval "exec 194>&193"     # where bash would print how the test died
  # In bash 4.4, `local -` in a function of ours would end the expansion of aliases.
  [[ ${BASH_VERSINFO[0]}:$BASHOPTS != 4:*expand_aliases* ]] || _rt_uses_stub=$_rt_stub
  if [[ $_rt_uses_stub && $5 != */* && $_rt_command != *PATH=* ]] && builtin hash -p "$_rt_stub" "$5"; then
    builtin printf -v _rt_called '%q ' "$5" "${_rt_call[@]}"
    builtin export _rt_called
    _rt_stand_in=$5
    builtin return
  fi
  _rt_replace "$5" "_rt_stub $5 \"\$@\""
}
_rt_failed() {   # a handler is called
  _rt_is_function "${_rt_command%%[$' \t\n']*}"
  _rt_send failed "$_rt_line" "$_rt_piped" "$1" "${_rt_command%%[$' \t\n']*}"
}
_rt_pass() {     # a command that may run beside tests, unless its output is read: its number, `filter` if it is one
  if [[ $_rt_within == value ]]; then
    _rt_other "$1" ''
  elif [[ $_rt_scouted && ${2-} && $_rt_joins != 1 ]]; then      # the last one of its pipeline
    _rt_after=(any passed)
  fi
}
_rt_block() { _rt_other "$1"; }
_rt_trapped() {  # a trap is set
  _rt_traps=$BASHPID
  [[ $_rt_command != *ERR* ]] || _rt_uses_stub=$_rt_stub
}
_rt_reads() {    # an `eval` or `source`, as the scout has it
  local _rt_site=$1
  _rt_pipes=${2//BASH_SOURCE/_rt_file}     # not empty if it may have a pipe
  builtin set -- "${_rt_arguments[@]}"
  # An expansion may read the script's input, or end the shell (`${x:?}`).
  case $_rt_pipes in
    *[\`\(?]*) _rt_sees "$_rt_site" ;;
    *)
      builtin eval "builtin set -- $_rt_pipes"
      _rt_pipes=${*//'||'} _rt_pipes=${_rt_pipes//[!|]}
      _rt_tells "$_rt_site" "$@" || _rt_sees "$_rt_site" ;;
  esac
}
_rt_mend_traps() {    # adds code to the script's traps that keeps ours off in them: BASH_COMMAND is stale there
  local _rt_text=$'\n'$1
  _rt_traps= _rt_uses_stub=
  builtin eval "${_rt_text//$'\n'trap -- /$'\n'_rt_mend_trap }"
}
_rt_mend_trap() {
  local _rt_end=$'\n{ builtin trap "$_rt_trap" DEBUG; } 2>/dev/null'
  [[ $1 ]] || builtin return
  case $2 in SIG* | ERR) _rt_uses_stub=$_rt_stub ;; esac
  case $1 in *_rt_*) builtin return ;; esac
  _rt_texts[$2]=$1
  # Behind a subshell that has failed, the ERR trap may run, or have run, without our code. If a pipeline is last in the
  # subshell, and our trap sees that failure, bash 5.2 takes the next command for failed: so bash goes on without us.
  [[ $2 != ERR || $_rt_piped == 0 ]] || {
    [[ ! $_rt_scouted ]] || _rt_send trapped "$1"
    _rt_flags=
    builtin return
  }
  case $2:$1 in *:*PIPESTATUS* | DEBUG:* | RETURN:*) builtin return ;; EXIT:*) _rt_end= ;; esac
  local _rt_text=${1//'$BASH_COMMAND'/'${_rt_tested:-$BASH_COMMAND}'}
  _rt_text=${_rt_text//'${BASH_COMMAND}'/'${_rt_tested:-$BASH_COMMAND}'}
  # In bash 4.4 and 5.0 a `trap` inside a trap loses the status: a last `exit` gets it as its argument.
  [[ $2:$1 != EXIT:?(*[';&|{'$'\n'])*([[:space:]])exit ]] || _rt_text+=' "$_rt_was"'
  builtin trap -- "{ _rt_rest \$? $2 && :; } 2>/dev/null; $_rt_text$_rt_end" "$2"
}
_rt_rest() {
  _rt_was=$1
  builtin trap - DEBUG
  _rt_uncover      # the trap's programs are no tests
  [[ ! $_rt_scouted ]] || _rt_send trapped "${_rt_texts[$2]}"
  builtin return "$1"
}
"""
SCOUT_HOOK = r"""
_rt_skips=1      # the scout skips each command, unless the command's code says that the scout runs it
_rt_behind=      # not empty if the scout may have gone another way than the shell: then it waits at the next test
_rt_other() {
  case $_rt_within$BASH_SUBSHELL in
    value1 | [0-9]*) ;;
    *) _rt_lost "it cannot run, in a job or a part of a \`\$(…)\`," ;;
  esac
  # With `run() { "$@"; }` nobody has told what `run export A=1` changes.
  case ${3-}:" $_rt_command " in
    *:*" ${3-} "*) ;;
    export:* | declare:* | typeset:* | readonly:* | local:* | read:* | mapfile:* | readarray:* | getopts:* | set:* | \
      shopt:* | unset:* | eval:* | source:* | .:* | alias:* | unalias:* | let:* | pushd:* | popd:* | umask:* | ulimit:*)
      _rt_lost "only bash can run" ;;
  esac
  local _rt_name _rt_names=()
  builtin eval "_rt_names=(${2-})"
  for _rt_name in "${_rt_names[@]}"; do
    [[ ! -R $_rt_name ]] || _rt_lost "only bash can run"     # a nameref: it sets a variable of another name
  done
  _rt_ask wait "$1"
}
_rt_lost() {     # the scout can go no further: why
  while :; do _rt_ask lost "$1 \`${_rt_command%%$'\n'*}\` ($_rt_file:$_rt_line)"; done
}
_rt_gives() {    # runs `x=$(…)`, which is to end with this status and to print this
  _rt_after=("$BASHPID" "$@") _rt_skip=
}
_rt_skipped() {  # in that `$(…)`
  builtin printf %s "${_rt_outer[2]}"
  builtin exit "${_rt_outer[1]}"
}
_rt_report_end() { :; }
_rt_meets() { _rt_ask wait "$1"; }
_rt_itself() { _rt_ask wait "$1"; }
_rt_start() {    # a test, as _rt_test has it; its words as bash are empty if only the shell may expand them
  [[ $2 ]] || _rt_ask wait "$1"
  [[ /dev/fd/1 -ef /dev/fd/193 ]] || _rt_call[0]=apart
  [[ ! $_rt_behind ]] || _rt_call[0]=late
  _rt_behind=
  local _rt_words=$2
  builtin set -- "${_rt_arguments[@]}"
  builtin eval "$_rt_words"
}
_rt_block() { _rt_lost "only bash can run"; }
_rt_failed() { _rt_skip=; }
_rt_sees() { _rt_skip=; }
_rt_reads() {    # an `eval` or `source`, which the scout runs, too: its number, its words as bash
  local _rt_site=$1 _rt_text=${2//BASH_SOURCE/_rt_file}
  builtin set -- "${_rt_arguments[@]}"
  builtin eval "builtin set -- $_rt_text"
  _rt_tells "$_rt_site" "$@"
  _rt_ask reads "$PWD" "$@"
}
_rt_trapped() {  # the scout has no traps; that of a subshell runs in the middle of the script
  # In a subshell only a trap for EXIT matters: a word names EXIT, or the last word is a variable, which may.
  [[ $BASHPID == "$_rt_shell" || "$_rt_command " != *@(EXIT*|\ exit\ |\ 0\ *|\$*([!\ ])\ ) ]] || \
    _rt_lost "it does not run the trap of"
}
_rt_pass() { [[ $_rt_within != value ]] || _rt_other "$1"; }
_rt_native() {   # runs a `[[` or `((` that has ended so in the shell
  _rt_skip=
  # If it has failed in the shell, the scout evaluates it anew, perhaps too late to find what the shell has found.
  [[ $1 == 0 ]] || _rt_behind=1
}
_rt_fail() {     # lets the command fail: its status, its name. Behind a pipe it reads all: else SIGPIPE ends who writes
  ! _rt_has_begun "$2" || _rt_lost "only bash can run"
  local _rt_body="${_rt_gets:+local _rt_input; builtin mapfile -t _rt_input; }builtin return $1"
  if builtin eval "function $2 () { $_rt_body; }"; then
    _rt_stand_in=$2 _rt_skip=
  fi
}
"""
LAST_OF_HOOK = r"""
if [[ $_rt_bash_env ]]; then
  export BASH_ENV=$_rt_bash_env
  . "$BASH_ENV"
fi
# No command may run before `_rt_hook` has its arguments: it would change PIPESTATUS. The text is short, since bash
# parses it anew for each command.
_rt_trap='if _rt_hook "${PIPESTATUS[-1]}" "${_rt_traps:+$(builtin trap -p)}" "$BASH_COMMAND" "${LINENO:-0}" "$@" "$_"; '
_rt_trap+='then builtin eval "$_rt_replay"; case $_rt_skip in 1) ! : "$_rt_last" ;; *) : "$_rt_last" ;; esac; fi;'
_rt_streams='} 193>&2 2>/dev/null'
_rt_case='case ${FUNCNAME-} in _rt_* | "${_rt_stand_in:-_rt_}") ;; *) '     # a function of ours
_rt_case+='case $_rt_stand_in$_rt_enters$_rt_moved${_rt_after-}$_rt_traps'
_rt_case+='${_rt_known[${BASH_SOURCE:-main}:$LINENO:$BASH_COMMAND]-} in calm) ;; *) '
_rt_hidden="{ $_rt_case$_rt_trap esac; esac; $_rt_streams"
_rt_trap="$_rt_case{ $_rt_trap $_rt_streams; esac; esac"
case $- in *[vx]*) _rt_trap=$_rt_hidden ;; esac
builtin set -T
builtin trap "$_rt_trap" DEBUG
"""
# What `set -v` prints of our traps; `ScriptShell.keep` takes it out.
TRAP_LINES = rb"\{ (?:case \$\{FUNCNAME|_rt_rest|builtin trap \"\$_rt_).*?2>/dev/null(?:\n|; )"
# A variable as `declare -p` tells it: its attributes, its name, its value in bash's quotes.
VARIABLE = rf"""declare -(\S+) ({NAME})((?:"(?:[^"\\]|\\[\s\S])*"|'(?:[^'\\]|\\[\s\S])*'|[^"'\n])*)\n"""


# The shell of a script, the scout, and what they ask.


# What an answer needs of its question: the path of the pipe for it, and the question's number.
Question = Tuple[str, str]


class ScriptShell:
    """The bash that runs a script, the log that keeps what it prints, and the pipes by which both shells ask.

    It prints into a pipe: `echo >/dev/stderr` would truncate a file. At a test it waits for an answer, so by then we
    have all that it had printed before.

    What a shell asks or reports, and at last that the script has ended, is posted as a list of words: the number of
    the question (empty: no answer is awaited), the path of the pipe for the answer, `shell` or `scout`, the kind of
    question, and what that kind has (see the list above ASK).
    """

    kept = -1  # the descriptor of the log, once the shells start
    status = EXIT_MACHINE  # the exit status, as `$?` has it
    thread: threading.Thread | None = None  # which runs the shells

    def __init__(self, job: Job, reaper: Reaper, post: Callable[[Any], None]) -> None:
        self.job = job
        self.reaper = reaper
        self.post = post
        self.folder = reaper.scratch.path()
        os.mkdir(self.folder)
        self.process = Process(reaper)
        self.scout = Process(reaper)
        self.output, self.stream = os.pipe()  # of what the script prints
        self.over, self.end = os.pipe()  # which is closed when the shells have ended
        os.set_blocking(self.output, False)
        path = f"{self.folder}/ask"
        os.mkfifo(path)
        self.questions = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # of both shells
        self.asked = b""  # the beginning of one that has not come whole

    def start(self, log: str, known: str, has_scout: bool) -> None:
        """Start the shells; `log` is the path of the script's log, `known` is bash for both. Raises OSError."""
        self.kept = fresh_file(log)
        own = f"""
            _rt_folder={quote(self.folder)}
            _rt_trace=/proc/{os.getpid()}/fd/{self.stream}
            _rt_scouted={"1" * has_scout}
            _rt_bash_env={quote(os.environ.get("BASH_ENV", ""))}
        """
        for name in ("mkfifo", "cat", "tee"):
            own += f"_rt_{name}={quote(find_program(name) or name)}\n"
        stub = self.reaper.scratch.write(
            f"#!{self.job.bash} -p\n{own}_rt_role=shell\n{ASK}{STUB}"
        )
        os.chmod(stub, 0o755)
        own += f"_rt_stub={quote(stub)}\n"
        # We keep one end open: else poll would report the pipe's end again and again.
        stream = os.dup(self.stream)
        jobs = [(self.process, self.job_of("shell", own, SHELL_HOOK + known), stream)]
        if has_scout:
            scout = self.job_of("scout", own, SCOUT_HOOK + known)._replace(stdin="")
            # Not /dev/null: the hook must see that a script's `2>/dev/null` differs.
            nowhere = os.open("/dev/zero", os.O_RDWR)
            jobs.append((self.scout, scout, nowhere))
        self.thread = start_thread(self.run, jobs)
        start_thread(self.listen)

    def job_of(self, role: str, own: str, hook: str) -> Job:
        """The job of one of the shells, with what both have of their own, its part of the hook, a pipe for answers."""
        reply = f"{self.folder}/{role}"
        os.mkfifo(reply)
        own += f"_rt_role={role} _rt_reply={quote(reply)}\n"
        text = f"unset BASH_ENV\n{own}{ASK}{HOOK}{hook}{LAST_OF_HOOK}"
        path = self.reaper.scratch.write(text)
        environment = {**os.environb, b"BASH_ENV": to_bytes(path)}
        return self.job._replace(environment=environment)

    def run(self, jobs: Sequence[Tuple[Process, Job, int]]) -> None:
        """Run the shells, until all that they start has ended, in a thread: the main one's children are orphans."""
        try:
            for process, job, output in jobs:
                process.spawn(job, output)
            self.process.wait()
            self.scout.signal(SIGKILL)
            for process, _, _ in reversed(jobs):
                process.wait()
                process.sweep()
                status = process.close()
            self.status = shell_status(status)
        except Exception as error:
            self.post(error)
        finally:
            os.close(self.end)

    def listen(self) -> None:
        """Keep what is printed, post what is asked."""
        from select import poll as new_poll

        poll = new_poll()
        for descriptor in (self.output, self.questions, self.over):
            poll.register(descriptor, 1)  # POLLIN
        is_over = False
        try:
            while not is_over:
                events = dict(poll.poll())
                is_over = self.over in events
                self.keep()
                if self.questions in events:
                    self.post_whole()
            # What a trap has printed into a question that never ended.
            os.write(self.stream, self.asked.rpartition(b"\0")[2])
            self.keep()
            self.post(["", "", "", "end"])
        except Exception as error:  # a thread that dies in silence would hang the run
            self.post(error)

    def post_whole(self) -> None:
        """Post the questions that have come whole. Raises OSError."""
        asked = self.asked + os.read(self.questions, COPY_BYTES)
        *whole, self.asked = asked.split(b"\0\n")
        for each in whole:
            printed, _, question = each.partition(b"\0")
            # What a trap has printed while the question was written.
            os.write(self.stream, printed)
            if b"\0" not in question:  # the path of a long one
                question = content_of(to_text(question))[1:].rpartition(b"\0\n")[0]
            words = to_text(question).replace("\1", "\n").split("\0")
            self.post(words)

    def keep(self) -> None:
        """Append to the log what has been printed since the last time. Raises OSError."""
        with suppress(BlockingIOError):
            while True:
                # This does not end by itself: we hold the pipe open.
                data = re.sub(TRAP_LINES, b"", os.read(self.output, COPY_BYTES))
                while data:
                    written = os.write(self.kept, data)
                    data = data[written:]

    def answer(self, question: Question, code: str) -> None:
        """Answer a shell's question with bash code. Nothing happens if the shell has been killed meanwhile.

        Raises OSError, MachineError.
        """
        reply, number = question
        try:
            descriptor = os.open(reply, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            with open(descriptor, "wb") as pipe:
                pipe.write(to_bytes(f"\2{number} {code}\0"))
        except FileNotFoundError:
            raise MachineError(
                f"the pipes to the script's shell are gone from {self.folder}; let nothing clean TMPDIR"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EPIPE):  # else nobody reads it any more
                raise


# A test as a shell tells of it.


class Call(NamedTuple):
    """A test to which a shell has come."""

    site: Site
    # Equal for the calls of both shells: the number of the site, and the key of the program.
    key: Tuple[str, str]
    label: str
    # Where output and errors go: both to the trace (`shown`), both elsewhere (`together`), or `apart`; `late` if the
    # scout may have gone another way than the shell, and waits until that has come to the test.
    goes: str
    subshell: str  # not empty if a subshell has come to it, and not the shell itself
    pid: str  # of the process that reports it: the shell, or a subshell
    files: Sequence[str]  # absolute paths of `Site.file_words`
    program: Program
    # Paths that its words name, as `paths_of` has them; found before it starts, while what it makes does not exist yet.
    paths: Mapping[str, bool]
    # As `Job.stdin`. `loop`: tests run one by one, and this one shares its input with a loop around it: bash runs it.
    stdin: str
    question: Question


class Program(NamedTuple):
    """What a program gets from the shell that would start it."""

    words: Words
    environment: Mapping[bytes, bytes]
    directory: str
    umask: int
    flags: str  # `$-` in the scout
    key: str  # equal for the same words, environment, folder and umask

    def given(self, node: Node) -> Iterator[str]:
        """The assignments in front of the command, with their values: of `OUT=$X` this is `OUT=m.json`."""
        for name in re.findall(r"(?m)^\w+", "\n".join(node.assigned)):
            value = self.environment.get(to_bytes(name), b"")
            yield f"{name}={to_text(value)}"


def read_program(mark: str, known: Dict[bytes, Any]) -> Program:
    """The program that a shell reports. Raises OSError, or KeyError if the shell must report its environment, too.

    `mark`: the path of the report and its number, which stand behind the report.
    `known`: by what shells say of their exported variables and functions, the environment, and a key of it.
    """
    content = content_of(mark.rpartition(".")[0])
    report, end, _ = content.partition(to_bytes(f"\0{mark}\0"))
    if not end:
        raise OSError("the shell could not write all of it")
    count, *fields = report.split(b"\0")
    words = tuple(map(to_text, fields[: int(count)]))
    place, exported, *items = fields[int(count) :]
    if items:
        environment = dict(item.partition(b"=")[::2] for item in items if item)
        inherited = {**environment, b"_": b"", b"SHLVL": b"", b"OLDPWD": b""}
        known[exported] = environment, key_of([str(sorted(inherited.items()))])
    environment, state = known[exported]
    umask, flags, directory = to_text(place[:-1]).split("\n", 2)
    key = key_of([*words, umask, directory, state])
    return Program(words, environment, directory, int(umask, 8), flags, key)


def is_open(node: Node) -> bool:
    """Whether a command may change the shell in ways that the scout cannot take over (`eval`, `$((n++))`)."""
    if node.name in NATIVE:
        return False
    if node.name in OPEN or re.search(DOES, re.sub(DEFAULTS, "", node.text)):
        return True
    return node.name != "export" and has_unknown_names(node)


def acts(node: Node) -> bool:
    """Whether a command may change something outside its shell, or see what other programs have changed there."""
    is_blind = node.name in BLIND or node.head == "cat"
    is_still = is_calm(node) or is_blind and substitutes(node.text, PURE)
    opens = files_of(node) or node.has(FROM_EXEC)
    return not is_still or bool(opens) or looks_out(node)


def looks_out(node: Node) -> bool:
    """Whether what a builtin does depends on which files there are."""
    if node.name in MOVES | {"command", "builtin", "source", "."}:
        return not re.fullmatch(r"cd [-./]+|popd", node.head)  # to a folder that exists
    return node.has(f"^{FILE_TEST}") or has_glob(node)


def has_glob(node: Node) -> bool:
    """Whether a word of a command may be a glob, or what is in a file: `$(<file)`."""
    words = " ".join([*node.words[1:], *node.assigned])
    patterns = r"\$\{\w+[#%][^}(`'\"]*\}"  # `${x%.*}`
    words = re.sub(rf"{NOT_EXPANDED}|\$\(\(.*?\)\)|\$\[.*?\]|\$[*?]|{patterns}", "", words)
    looks = node.has(r"[(`]\s*<") or re.search(r"[*?]|[@!+]\(|(?<![\w(])\[", words)
    return bool(looks) and node.name not in NATIVE | {"let"}


def is_calm(node: Node) -> bool:
    """Whether a command has to do with the shell alone: unless it differs in the scout, that may run it at any time."""
    if node.name in ("builtin", "command"):  # which may stand before any other
        return node.has(r"^\w+ (?:-[vV] |set [-+]\w+$)")
    if not substitutes(node.text, PURE):
        return False
    if node.name in READS:  # the scout has the same text: `read -r a b <<<"$x"`
        return node.has("<<") and not node.has(r"\s-\w*[uC]")
    return node.name in CALM or not node.words


def tells_time(node: Node) -> bool:
    """Whether a command only sets variables to a time: `start=$(date +%s)`."""
    rest = re.sub(r"\b(?:SECONDS|EPOCH\w+)\b|[(`]\s*date\b", "", node.text)
    if rest == node.text or re.search(rf"{VALUES_THAT_DIFFER}|{DOES}|[<>]\(", rest):
        return False
    return node.name in ("", "local") and substitutes(node.text, {"date"})


def variables_of(node: Node) -> List[str]:
    """The variables that a command sets, by its words."""
    words = node.assigned * (not node.words)  # else only the command gets them
    if node.name in SETS:
        words = node.words[1:]
    # To ask for the value of RANDOM changes it.
    named = rf"(?:^|\0)[\"']*(?!S?RANDOM\b)({NAME})(?=\+?=|\[|\0|$)"
    names = re.findall(named, "\0".join(words))
    names += re.findall(DEFAULTS, node.text)
    if node.name in READS | MOVES:
        names += ["REPLY", "MAPFILE", "OLDPWD"]  # they set one of these without its name
    if has_unknown_names(node):  # of an `export`: others are open
        names.append("-x")  # all that is exported
    return names


def has_unknown_names(node: Node) -> bool:
    """Whether the names of what a builtin sets are in variables: `export $(cat .env)`."""
    words = node.words[1:]
    if node.name == "printf":
        words = words[1:2] * (words[:1] == ["-v"])
    return node.name in SETS and any(re.match("[\"']?\\$", word) for word in words)


def text_of(*names: str) -> str:
    """The text of a file; empty where it cannot be read, or is a pipe, `eval`, or a name from elsewhere."""
    path = os.path.join(*names)
    with suppress(ListError):
        if isfile(path):
            return list_text(path)
    return ""


class Script:
    """What has been read of a script's files, and what each of its commands is to the two shells."""

    hides = False  # a local variable in it may hide an exported one (HIDES)

    def __init__(self, options: Options) -> None:
        self.options = options
        self.files: Dict[str, ScriptFile] = {}
        self.commands: Dict[str, Site] = {}  # by number, those to which bash has come
        self.called: Set[str] = set()  # the first words of tests: functions, perhaps
        self.functions: Dict[str, Nodes] = {}  # their bodies
        self.reactions: List[Node] = []  # what stands behind a test's `||`
        # The variables that reactions may set; also words that only look so.
        self.changed: Set[str] = set()

    def read(self, name: str, text: str) -> ScriptFile:
        """Read one of its files."""
        file = self.files[name] = ScriptFile(name, text, self)
        self.hides |= re.search(HIDES, text) is not None
        for node in reached(self.reactions, self.functions):
            # A handler's label may look like `X=2`.
            if node.name not in self.options.handlers or node.has(DOES):
                self.changed.update(*re.findall(CHANGES, node.text))
        self.changed.discard("")
        return file

    def add(self, site: Site) -> Site:
        """Note a command to which bash has come; returns it with its number."""
        number = str(len(self.commands))
        site = self.commands[number] = site._replace(number=number)
        return site

    def changed_for(self, node: Node, program: Program) -> Set[str]:
        """The variables in a test's words or environment that may have another value where a test has failed."""
        if "a" in program.flags:  # all that is set is exported
            return self.changed
        asked = re.findall(READS_VARIABLE, node.text)
        exported = program.environment
        return {name for name in self.changed if name in asked or to_bytes(name) in exported}

    def kind(self, file: ScriptFile, line: int, text: str, functions: Words) -> str:
        """What a command is: `calm`, or bash for each time that a shell comes to it.

        `functions`: first `function` if the command calls one, else an empty string; then those in which it stands.
        """
        nodes = Reader(text).nodes
        if len(nodes) != 1:
            return "calm"
        node = nodes[0]
        node.text = text  # with its here-document
        code = self.code_of(self.add(Site(file, line, node, [])), functions)
        in_eval = file.ways[line, "eval"]  # there may be a pipe behind it
        ways = file.ways[place_of(line, node)] or in_eval or {"value"}
        inside = ways & {"value", "head"}
        if code == "calm":
            return code
        if ways.intersection(PIPES):
            code = f"_rt_joins=1; {code}"
        elif inside:
            code = f"_rt_joins=perhaps; {code}"
        elif in_eval:
            code = f"_rt_joins=$_rt_pipes; {code}"
        # Of equal commands on one line it is not known which has run.
        checks = "".join(ways & CHECKED_BY) * ("plain" not in ways)
        code = f"_rt_checks[_rt_depth]={checks}; {code}"
        if "<" in ways and can_fail(node):
            code = f"_rt_gets={node.name}; {code}"
        # Of `x &` our trap hears in the shell that starts the job.
        if "job" in ways and "&" not in ways:
            code = f"_rt_aside job; {code}"
        elif inside and len(ways) > 1:
            code = f"_rt_aside either; {code}"
        elif inside:
            code = f"_rt_aside {inside.pop()}; {code}"
        return code

    def known_tests(self, file: ScriptFile) -> str:
        """Bash that tells a shell what the tests of a file are, so that it need not ask."""
        known = f"_rt_hides={'1' * self.hides}\n"
        for site in file.sites * (not file.obstacle):
            if site.node.redirects:  # BASH_COMMAND has more than its words
                continue
            text = " ".join(site.node.all_words)
            place = quote(f"{file.name}:{site.line}:{text}")
            code = self.kind(file, site.line, text, ("",))
            known += f"_rt_tests[{place}]={quote(code)}\n"
        return known

    def code_of(self, command: Site, functions: Words) -> str:
        """What a command is, as `kind` has it."""
        file, line, node = command[:3]
        is_function = functions[0] != ""
        if node.name in self.options.handlers:
            return f"_rt_failed {label_word(node)}"
        waits = ""
        # Bash opens the redirections for all commands inside, before our trap sees the first of these.
        opens = is_function and files_of(node)
        if opens or node.has(CHANGES_EACH_TIME) and (is_function or node.kind):
            waits = f"_rt_block {command.number}; "
        elif is_function and has_glob(node):
            waits = f"_rt_meets {command.number}; "
        if node.kind:  # the head of a loop
            return waits or self.calm_code(command)
        sites = file.by_place[place_of(line, node)]
        # Of several with the same words on a line it is not known to which one bash has come.
        if len(sites) == 1 and not (self.options.tests and (is_function or node.name in CALM)):
            return waits + self.test_code(sites[0]._replace(line=line, node=node))
        if node.name == "trap":
            return "_rt_trapped"
        reads = node.name in ("source", ".", "eval")
        if reads and files_of(node):
            return f"_rt_block {command.number}"
        if reads and only_looks(node.text):
            return f"_rt_reads {command.number} {quote(node.head)}"
        if is_function:
            return f"{waits}_rt_function"
        is_known = self.options.tests is None and self.called.isdisjoint(functions)
        if is_known or node.name in CALM:
            return self.other_code(command)
        return self.likely_code(command)

    def calm_code(self, command: Site) -> str:
        """Bash for a command that both run."""
        node = command.node
        if node.has(SHOWS_TRAPS):
            return "_rt_shows"
        if has_glob(node) and not node.kind:  # bash has expanded the words of a `for` already
            return f"_rt_meets {command.number}; _rt_skip="
        if not looks_out(node):
            return "calm"
        if node.name in MOVES:
            return f"_rt_move {command.number}"
        head = node.head
        differs = node.has(rf"{VALUES_THAT_DIFFER}|\$\{{?[_?]")
        if node.kind and inert(head) == head and not differs:
            return f"_rt_looks {command.number} {quote(head)}"
        return f"_rt_sees {command.number}"

    def likely_code(self, command: Site) -> str:
        """Bash for a command that is a test if it looks like one, perhaps only with the values of its words."""
        node = command.node
        is_test = command.file.is_test(node)
        depends = not ARGUMENTS.isdisjoint(node.words) or "$" in node.name
        if re.match(INTERPRETER, node.name) and not is_test:
            depends |= "$" in node.head  # `sh $t`
        if depends:
            return f"_rt_each {command.number} " + " ".join(map(inert, node.words))
        if is_test:
            return self.test_code(command)
        return self.other_code(command)

    def test_code(self, site: Site) -> str:
        """Bash for a command that is a test. One without a label has been found only as the script runs."""
        node = site.node
        if not site.label:
            site = site.file.site_of(node, site.line)
        first = node.words[0]
        if inert(first) != first:
            first = "''"  # no name of a program: bash itself runs the test
        assigned = " ".join(node.assigned)
        words = f"{assigned} _rt_program {node.head}" * (not site.waits_for_shell)
        files = " ".join(map(inert, site.file_words))
        call = f"_rt_test {self.add(site).number} {quote(words)} {site.label}"
        native = "native" * site.is_native
        return f"_rt_names {quote(files)}; {call} '{native}' {first}"

    def shows(self, command: Site) -> bool:
        """Whether a command only prints. In the `$(…)` of its words functions are looked into, and a test is fine."""
        node = command.node
        if node.name not in PRINTS or files_of(node) or node.has(rf" -v|{DOES}|{FROM_EXEC}"):
            return False
        harmless = HARMLESS.union(self.functions)
        return all(
            command.file.is_test(each) or is_among(each, harmless) and not files_of(each, ".*>")
            for each in reached(substituted_commands(node.text), self.functions)
        )

    def other_code(self, command: Site) -> str:
        """Bash for a command that is no test."""
        node = command.node
        names = variables_of(node)
        if tells_time(node) and all(map(command.file.only_shows, names)):
            return "calm"
        # It may find other values, files or descriptors in the scout.
        differs = node.has(rf"^{FILE_TEST}|{VALUES_THAT_DIFFER}|{FROM_EXEC}") or files_of(node)
        if is_calm(node) and not differs:
            return self.calm_code(command)
        if (*node.all_words, *files_of(node)) in command.file.filters:
            return f"_rt_pass {command.number} filter"
        if self.shows(command) or re.match(self.options.calm, node.name):
            return f"_rt_pass {command.number}"
        # These do in the scout what they do in the shell, once it knows what each `$(…)` in them prints.
        is_told = node.name in CALM - {"command", "builtin"} and is_open(node)
        if (is_told or node.name in NATIVE) and not differs:
            return f"_rt_meets {command.number}; _rt_pipes=perhaps _rt_skip="
        way = "_rt_other"
        if node.words and is_among(node, BLIND - PRINTS) and not differs:
            way = "_rt_peek"
        first = "".join(map(inert, node.words[:1]))
        code = f"{way} {command.number} {quote(' '.join(names))} {first}"
        # By now a function may have this name, or the value of this word.
        return f"_rt_is_function {first} || {code}"


def can_fail(node: Node) -> bool:
    """Whether the scout can let a function take the place of a command: a function can have its name."""
    return re.fullmatch(r"[\w./+-]+|\[", node.name) is not None and not files_of(node)


def end_of(node: Node, status: int, directory: str, values: str) -> str:
    """Bash by which the scout takes over a command's end in the shell: status, folder, variables (by `declare -p`)."""
    if is_open(node):
        return LOST
    folder = quote(directory)
    code = f"[[ $PWD == {folder} ]] || cd -- {folder}\n"
    is_local = node.name in ("local", "declare", "typeset") and " -g" not in node.text
    for flags, name, value in re.findall(VARIABLE, values):
        if "r" in flags and node.name == "export":
            continue  # among all that is exported, bash's own cannot be set
        line = f"{name}{value}"
        if is_local:
            line = f"_rt_replay+={quote(f'declare -{flags} {line};')}"
        elif "x" in flags:
            line += f"\nexport {name}"
        code += f"{line}\n"
    sets = node.has(rf"\(\(|=~|{DOES}")
    gets = re.fullmatch(rf"({NAME})=(\"?)(?:\$\([\s\S]*\)|`[^`]*`)\2", node.text)
    if node.name in NATIVE and (status or sets):
        code += f"_rt_native {status}"
    elif status and gets:
        code += f'_rt_gives {status} "${gets.group(1)}"'
    elif status and can_fail(node):
        code += f"_rt_fail {status} {node.name}"
    elif status:
        return LOST
    return code  # the scout skips the command, which gives status 0


class ScriptRun(Run):
    """The run of a script: its shell gets the results of its tests, and the scout says which to start."""

    sums_up = False  # the script does
    status: int | None = None  # its exit code, where it has come to its end
    shown = 0  # how many of its bytes the trace has shown
    batch_at = inf  # when the new ones of the waiting tests may start
    expects_more = True  # up to the end of bash
    pause_s = FOLLOW_S  # what bash prints is shown then
    kill_at = inf  # when the script, which has been sent a signal, is killed if it goes on
    has_failed = False  # a test has failed, and the shell knows it
    is_split = False  # errors of tests have been seen to go elsewhere than their output
    found_since = 0  # tests that the scout has found since it last waited
    is_lost = False  # there is no scout any more

    def __init__(self, script: Script, host: Host, trace: Trace) -> None:
        options = script.options
        super().__init__(select([], options, History(options)), host, options, trace)
        self.history = read_history(options)
        self.name = options.lists[0]
        self.sequential = self.schedule.pool.sequential
        self.runs_ahead = not (self.sequential or options.one_by_one)
        self.labels = numbered("{} #{}", str)
        self.file = script.files[self.name]
        self.stems = stems_beside(self.file.text, options.log_dir)
        self.stem = self.stems(basename(self.name))
        self.script = script
        self.codes: Dict[Words, str] = {}  # by place and words, what a command is
        self.environments: Dict[bytes, Any] = {}  # as `read_program` knows them
        # By question of the scout, or of a subshell of it, without an answer yet: the command where it waits, and a
        # function that returns the answer, or None to let it wait.
        self.held: Dict[Question, Tuple[Site, Callable[[], str | None]]] = {}
        # By role of a shell and number of a command, how often that shell has come to it.
        self.turns: Dict[Any, Iterator[int]] = defaultdict(count)
        # By number and turn of a command that has ended in the shell: what the scout does then, as bash.
        self.command_ends: Dict[Any, str] = {}
        # By label, how many failures are recorded for which the script has not called a handler yet.
        self.unhandled: Dict[str, int] = Counter()
        self.shell_waits_for: Dict[Test, Call] = {}  # tests for which the shell waits
        self.scout_only: Dict[Test, Call] = {}  # those to which only the scout has come
        # By `Call.key`, the tests to which only the shell has come.
        self.shell_only: Dict[Any, List[Test]] = defaultdict(list)
        # Tests that have not ended, and their paths, as `paths_of` has them.
        self.busy: Dict[Test, Mapping[str, bool]] = {}
        # By path, the test that writes there by a redirection or a filter of the script (`>log`, `| tee log`).
        self.written: Dict[str, Test] = {}
        # Known ends of commands (`number:subshell:turn`: two processes may report one), and numbers of begun commands.
        self.past: Set[str] = set()
        # By number and turn of a `cd` or a loop's head, and what the scout has found there: how many tests were known.
        self.moves: Dict[Any, float] = {}
        self.ended: Dict[Test, int] = {}  # tests that have ended, and how many were known then
        # By key of a program, how many tests were known when it had ended for the first time.
        self.tried: Dict[str, int] = Counter()
        self.beside: Set[Test] = set()  # tests that ran while others did
        # By test that may have begun too early, and by `is_minor` (see `note_ahead`): what it went ahead of, in words.
        self.too_early: Dict[Tuple[Test, bool], str] = {}
        self.reasons: Dict[str, None] = {}  # why tests have run alone
        self.umask = proc_number("self/status", rb"\nUmask:\s*(\d+)", 8)
        job = Job(host.bash, [host.bash, self.name, *options.arguments], stdin="-")
        self.shell = ScriptShell(job, host.reaper, self.inbox.put)

    def start_script(self) -> None:
        """Let bash begin; say how many commands look like tests, with a handler or without one. Raises OSError."""
        file = self.file
        if self.runs_ahead and file.bare:
            warn(
                f"{self.name}:{file.bare[0]}: {counted(len(file.bare), 'command')} without `|| test_fail` may test "
                "something, too; --tests REGEX gives slots to what now runs in the script's own shell"
            )
        if self.runs_ahead and len(file.sites) > 1 and self.options.tests:
            way = "no handlers"
            if re.search(r"(?m)^\s*set -\w*e", file.text) and "set +e" not in file.text:
                way = "set -e"
            warn(
                f"{self.name}: {way}: {len(file.sites)} commands look like tests, and may run ahead of each other; "
                "--one-by-one stops that, and --tests REGEX says anew what is a test"
            )
        log = f"{self.record.log_dir}/{self.stem}.log"
        self.shell.start(log, self.script.known_tests(file), self.runs_ahead)

    def show(self) -> None:
        """Show what the script has printed. A shell that asks has printed all that comes before."""
        with suppress(OSError):  # the shells have not started, or the log's name is gone
            if os.fstat(self.shell.kept).st_size != self.shown:
                self.shown = self.trace.copy(f"/proc/self/fd/{self.shell.kept}", self.shown)

    def handle(self, event: Any) -> None:
        """Note what has happened, and do what follows from it. Raises the error of a thread that hears the shells."""
        if isinstance(event, Exception):
            raise event
        if isinstance(event, list):
            number, reply, self.role, kind, *fields = event  # `role`: which shell asks
            self.question = reply, number
            answer = getattr(self, f"on_{kind}")(*fields)
            if answer is not None:
                self.shell.answer(self.question, answer)
        else:
            if isinstance(event, Exited) and self.batch_at < inf:
                self.submit()  # a slot becomes free
            super().handle(event)
            if isinstance(event, Begin):
                self.start_script()
        self.follow_up()

    def conclude(self, result: Result, is_news: bool = True) -> None:
        if is_news:
            self.record.attempt_end(result)
        self.console.concluded(result)
        test = result.test
        if result.leaked:
            warn(f"{test.where}: {test.label} left {first_of(result.leaked)}")
        self.busy.pop(test, None)
        self.ended[test] = len(self.tests)
        if test in self.shell_waits_for:
            self.retire(test)

    def launch(self, attempt: Attempt) -> None:
        super().launch(attempt)
        if len(self.schedule.running) > 1:
            self.beside.update(self.schedule.running)
        call = self.shell_waits_for.get(attempt.test)
        if not call or call.goes != "shown":  # its output goes where the script says
            self.console.growing = None

    def follow_up(self) -> None:
        """What any event may have made possible or necessary."""
        now = monotonic()
        if now >= self.batch_at:
            self.submit()
        for question, (_, look) in list(self.held.items()):
            code = look()
            if code is not None:
                del self.held[question]
                self.shell.answer(question, code)
        if not self.shell_waits_for:
            self.show()
            self.signal_script()
        if now >= self.kill_at or len(self.schedule.interrupts) > 1:
            self.shell.process.signal(SIGKILL)

    def signal_script(self) -> None:
        """If the run is to end, send the script a signal. As under bash, the test where it waits has ended by then."""
        schedule = self.schedule
        ends = schedule.interrupts or schedule.failure or schedule.is_overdue
        if ends and self.kill_at == inf:
            self.kill_at = monotonic() + self.options.grace
            self.shell.process.signal([*schedule.interrupts, SIGTERM][0])

    def submit(self) -> None:
        """Let the schedule know of new tests: the first ones wait a moment for others, to start the longest first."""
        self.batch_at = inf
        selection = select(list(self.schedule.waiting), self.options, self.history)
        order = selection.starting_order(self.options.order, self.schedule.pool)
        super().handle(Submit(order))

    # What the shells ask.

    def on_kind(
        self, source: str, line: str, command: str, directory: str, *functions: str
    ) -> str:
        """A shell has come to a command for the first time; `functions` are as `Script.kind` has them."""
        files = self.script.files
        if source not in files:
            # At the first command of a sourced file, the folder is still that of the `source`.
            text = text_of(directory, source)
            for message in self.script.read(source, text).mistakes:
                tell(message)
        file = files[source]
        if file.obstacle:
            self.on_lost(file.obstacle)
        place = source, line, command, functions[0]
        if place not in self.codes:  # the other shell has not come there
            self.codes[place] = self.script.kind(file, int(line), command, functions)
        hides = f"_rt_hides={'1' * self.script.hides}"
        return f"{self.silence()}{hides} _rt_code={quote(self.codes[place])}"

    def on_each(self, number: str, *words: str) -> str:
        """A command whose text does not tell what it is, with the words that it has now."""
        place = number, *words
        if place not in self.codes:
            script = self.script
            command = script.commands[number]
            code = script.other_code(command)
            if not CALM.isdisjoint(words[:1]):  # `run export A=1`, `if $VERBOSE; then`
                node = Reader(f"{words[0]} {shlex.join(words[1:])}").nodes[0]
                node.redirects = command.node.redirects
                code = script.code_of(script.add(command._replace(node=node)), ("",))
            if self.options.looks_like_test(" ".join(words)):
                code = script.test_code(command)
            self.codes[place] = f"_rt_code={quote(code)}; _rt_do"
        return self.codes[place]

    def on_test(
        self,
        pid: str,
        mark: str,
        goes: str,
        subshell: str,
        number: str,
        label: str,
        *names: str,
    ) -> str | None:
        """A shell has come to a test. The script's shell waits until it has ended, the scout until it may go on."""
        try:
            program = read_program(mark, self.environments)
        except OSError:  # the shell has been killed, or the disk is full
            with suppress(FileNotFoundError):  # who answers says that TMPDIR has been cleaned
                self.host.reaper.scratch.check_room()
            return ""
        except KeyError:
            return 'local _rt_whole=1; _rt_program "$@"'
        if self.question[0] != f"{self.shell.folder}/{self.role}":
            clear_name(mark.rpartition(".")[0])  # a subshell seldom reports a second test
        site = self.script.commands[number]
        call = Call(
            site,
            (number, program.key),
            label,
            goes,
            subshell,
            pid,
            [normpath(os.path.join(program.directory, name)) for name in names],
            program,
            paths_of(program.directory, *program.words, *program.given(site.node)),
            self.input_of(pid),
            self.question,
        )
        if self.role == "shell":
            return self.shell_at_test(call)
        if site.line >= site.file.one_by_one:
            self.on_lost("`#: one-by-one`")
        elif not self.is_lost:  # else it had asked before its end
            turn = self.turn_at(number)
            self.held[self.question] = site, partial(self.scout_at_test, call, turn)
        return None

    def shell_at_test(self, call: Call) -> str | None:
        """The shell waits for a test, unless it is to run it itself."""
        self.show()
        # Forget the files of tests that the shell has left behind: they have ended.
        self.written = {
            path: test
            for path, test in self.written.items()
            if test in self.scout_only or test in self.shell_waits_for
        }
        # A test that reads a pipe holds the only slot. This one may write to that pipe, and must not wait for the slot.
        is_read = self.sequential and any(
            "/" in each.stdin for each in self.shell_waits_for.values()
        )
        if is_read or call.stdin == "loop":
            return '_rt_run "$@"'
        # If the scout waits for this test, it goes on as if that had passed.
        self.let_scout_on(call.site.number, LOST * call.site.node.has(DOES))
        same = [test for test, ahead in self.scout_only.items() if ahead.key == call.key]
        if same:
            test = same[0]
            del self.scout_only[test]
            self.note_ahead(  # the shell has passed by tests that the scout had found before this one
                test.label,
                lambda other, site: other > test or site.is_background,
                is_minor=True,
            )
        else:
            self.note_missed(call)
            test = self.add(call, call.goes == "apart")
            self.shell_only[call.key].append(test)
        if call.goes == "apart" and not test.splits:
            self.is_split = True
            warn_once(
                "errors of tests go elsewhere than their output; of those that ran ahead they are shown with it"
            )
        self.shell_waits_for[test] = call
        if test in self.schedule.waiting:
            self.batch_at = -inf
        if test not in self.busy:
            self.retire(test)
        return None

    def note_missed(self, call: Call) -> None:
        """The shell has come to a test that the scout has not found. If the scout waits elsewhere, they have parted."""
        site = call.site
        # Some tests might run beside this one under bash, too, if all passed. If the scout has found the same command
        # with other words or another environment, these are the tests of other commands. If this is a second try, they
        # are the tests that were known when the first try had ended.
        has_twin = any(ahead.site is site for ahead in self.scout_only.values())
        known = self.tried[call.program.key]
        is_main = not call.subshell
        self.note_ahead(
            site.described,
            lambda test, other: test.index < known or (has_twin and other is not site),
            has_parted=is_main,
            is_minor=True,
        )
        awaited = [command for command, _ in self.held.values() if not command.label]
        if awaited and is_main:
            self.on_lost(f"bash has come to {site.where}, and not to {awaited[0].described}")

    def scout_at_test(self, call: Call, turn: Any) -> str | None:
        """The scout is at a test. It goes on (an empty answer), or waits (None) and this is asked anew at each event.

        It waits where the test needs what only the shell knows, where it is far enough ahead, and where the test names
        a file that an earlier one has. `turn` is as `turn_at` has it.
        """
        program = call.program
        site = call.site
        is_far_ahead = len(self.scout_only) > 16 * self.schedule.pool.size
        behind = self.shell_only[call.key]
        changed = self.script.changed_for(site.node, program)
        if behind:
            test = behind.pop(0)
        elif changed:  # only the shell knows the value: the scout waits until the shell has come to this test
            self.reasons.setdefault(
                f"{site.where} gets {min(changed)}, which is set where a test fails"
            )
            return self.command_ends.get(turn)
        elif call.stdin or call.goes == "late" or is_far_ahead:
            return None  # only the shell has its input, or knows the way to it
        else:
            shared = set()
            for busy in [dict.fromkeys(self.written, True), *self.busy.values()]:
                shared |= shared_paths(call.paths, busy)
            junit = os.path.join(program.directory, junit_word(program.words[1:]))
            if junit in shared:
                warn_once(
                    f"{site.where}: writes the same JUnit file as an earlier test, {junit}, and waits for it"
                )
            if shared:
                self.reasons.setdefault(
                    f"{site.where} waits for a test that has {min(shared)}, too"
                )
                return None
            text = "".join(f">{file}\n" for file in call.files)
            for name in stems_written(text, self.options.log_dir):
                self.stems(name)
            splits = site.splits
            if splits is None:
                splits = call.goes == "apart" or self.is_split
            test = self.add(call, splits)
            self.scout_only[test] = call
        self.found_since += 1
        return ""

    def add(self, call: Call, splits: bool) -> Test:
        """A new test, which the schedule is to know."""
        test = self.test_of(call, splits)
        self.busy[test] = call.paths
        self.written.update(dict.fromkeys(call.files, test))
        self.tests.append(test)
        self.console.total = len(self.tests)
        self.schedule.waiting[test] = 0  # it is in no line: only a Submit lets it start
        self.batch_at = min(self.batch_at, monotonic() + BATCH_S)
        return test

    def on_wait(self, number: str) -> None:
        """The scout waits at a command until the shell has come there as often as the scout has."""
        command = self.script.commands[number]
        if command.label:
            self.reasons.setdefault(f"{command.described} starts when the script comes to it")
        elif self.found_since == 1 and not is_open(command.node):
            why = f"{command.described} waits for the test before it"
            if command.node.name:
                why += "; above all tests it costs nothing, and --calm REGEX names what no test needs"
            self.reasons.setdefault(why)
        self.found_since = 0
        self.held[self.question] = command, partial(self.command_ends.get, self.turn_at(number))

    def turn_at(self, number: str) -> Tuple[str, int]:
        """The number of a command to which a shell has come, and how often it had come there before."""
        return number, next(self.turns[self.role, number])

    def let_scout_on(self, number: str, code: str) -> None:
        """Let the scout do this as soon as it comes to a command as often as the shell has."""
        self.command_ends[self.turn_at(number)] = code

    def on_past(self, place: str, directory: str, path: str, status: str) -> None:
        """A command of the shell has ended that is no test. Behind a failure, tests below it may have begun."""
        if place in self.past:
            return
        self.past.add(place)
        number, subshell, _ = place.split(":")
        self.past.discard(number)
        command = self.script.commands[number]
        self.on_did(number, "ended" * (not subshell))
        if command.node.name == "exec":  # its redirections hold for all tests behind it
            self.is_split = bool(splits_output(command.node))
        values = text_of(path)
        clear_name(path)
        self.let_scout_on(number, end_of(command.node, int(status), directory, values))

    def note_ahead(
        self,
        what: str,
        is_beside: Callable[[Test, Site], bool] = lambda _test, _site: False,
        has_parted: bool = False,
        is_minor: bool = False,
    ) -> None:
        """The shell does something, `what`, only now. Bash would have done it before tests that have begun already.

        That matters only if a test has failed or the shells have parted: else the scout has come through it, too, and
        has waited where it had to. `is_beside` tells which tests bash might run at the same time, too. `is_minor`: it
        is a test, or a line for a log; where bash itself ends with a failure, nothing is said of that.
        """
        if not (self.has_failed or has_parted):
            return
        for test, ahead in self.scout_only.items():
            if test in self.schedule.waiting or is_beside(test, ahead.site):
                continue  # it has not begun, or might run at the same time
            if self.has_failed or not ahead.site.is_background:
                self.too_early.setdefault(
                    (test, is_minor), f"{test.label} went ahead of {what}"
                )

    def on_did(self, number: str, then: str = "") -> None:
        """The shell begins a command that is no test. A background test above it may have begun under bash, too.

        `then`: `past` if its end is told, too, or `meets` if the scout runs it now: both are to see the same files.
        At the end of one in the shell itself it is `ended`.
        """
        command = self.script.commands[number]
        node = command.node
        if then == "meets":
            self.let_scout_on(number, "")
        if then == "past":
            if number in self.past:  # perhaps in a subshell that never tells
                self.on_lost(
                    f"bash has not told the end of {command.described}; `bash -c` in place of the ( ) around it helps"
                )
            self.past.add(number)
        is_awaited = any(each is command for each, _ in self.held.values())
        if acts(node):
            self.note_ahead(
                command.described,
                lambda _test, site: is_awaited and site.is_background,
                has_parted=then == "ended" and not is_awaited,
                is_minor=node.name in PRINTS and not files_of(node, "[^>]*>(?!>)"),
            )

    def on_printed(self, number: str, path: str) -> None:
        """What a `$(…)` prints from its first command on that the scout cannot run is in this file."""
        self.let_scout_on(number, f"_rt_print {quote(path)}; builtin exit")

    def on_moved(self, number: str, *found: str) -> None:
        """A shell has come through a `cd`, or to a loop over a glob or a `source`.

        Where the scout was elsewhere behind that, or has found other files or another text, a test may have made them.
        So may one that the scout had found before, and to which the shell has not come.
        """
        place = self.turn_at(number), found
        if self.role == "scout":
            self.moves[place] = len(self.tests)
            return
        known = self.moves.get(place, inf)
        self.note_ahead(
            self.script.commands[number].described, lambda test, _site: test.index >= known
        )

    def on_trapped(self, text: str) -> None:
        """A trap runs in the shell, and not in the scout."""
        if any(map(acts, walk(Reader(text).nodes))):
            self.note_ahead(f"the trap `{text}`", has_parted=True)

    def on_passed(self, status: str) -> None:
        """A filter behind a test has ended, which the scout takes to pass."""
        self.has_failed |= status != "0"

    def on_ran(self, number: str, label: str, status: str) -> None:
        """Bash has run a test itself, which has no log but the script's."""
        site = self.script.commands[number]
        code = int(status)
        self.note_ahead(site.described, is_minor=True)
        if code:
            self.note_failure(label or site.node.head, site.line, code)
            self.unhandled[label or str(site.line)] += 1
        self.let_scout_on(number, LOST * (code != 0 or site.node.has(DOES)))

    def on_failed(self, line: str, status: str, label: str, handler: str) -> None:
        """Bash calls a handler: for a test that is known to have failed, or for what it has run itself."""
        key = label or line
        if self.unhandled[key]:
            self.unhandled[key] -= 1
        else:
            self.note_failure(label or handler, int(line), int(status) or EXIT_FAILED)

    def on_reads(self, directory: str, name: str, *words: str) -> str:
        """The scout is about to read commands: it must not come to a block that writes a file."""
        text = " ".join(words)
        if name != "eval":
            text = text_of(directory, *words[:1])
        obstacle = ScriptFile(name, text, Script(self.options)).obstacle
        if obstacle:
            return f"_rt_lost {quote(f'{obstacle}, in')}"
        return "_rt_skip="

    def on_alone(self, source: str, line: str, command: str) -> None:
        """From here on bash runs the script by itself, since its trap would not see all."""
        why = f"behind `{command}` ({source}:{line}) bash runs all by itself"
        self.note_ahead(f"what is behind `{command}` ({source}:{line})", has_parted=True)
        self.on_lost(why)
        warn(f"{self.name}: {why}")

    def on_end(self) -> None:
        """Bash has ended."""
        self.expects_more = False
        self.held.clear()
        # Jobs that the script has left.
        schedule = self.schedule
        schedule.actions = []
        schedule.give_up(self.shell_waits_for.keys() & schedule.waiting, Outcome.NOT_RUN)
        if self.shell_waits_for:
            warn(
                f"the script has ended before its jobs: {first_of([test.label for test in self.shell_waits_for])}"
            )
        # A job that was killed at once has told nothing of its test, which may have run ahead.
        killed = [test for test, call in self.scout_only.items() if call.site.is_background]
        for test in schedule.running.keys() & {*self.shell_waits_for, *killed}:
            schedule.end(schedule.running[test], Outcome.INTERRUPTED, SIGTERM, "")
        self.carry_out(schedule.actions)
        # Nobody asks for those that have not started.
        for test in self.scout_only.keys() & schedule.waiting:
            self.tests.remove(test)
            del self.scout_only[test]
            del schedule.waiting[test]
        if not self.has_failed:
            self.note_ahead(f"{self.name}, which has not come to it", has_parted=True)

    def on_lost(self, why: str) -> None:
        """Go on without the scout: it has come to what it cannot go through."""
        self.is_lost = True
        self.reasons.setdefault(why)
        self.held.clear()
        self.shell.scout.signal(SIGKILL)

    def silence(self) -> str:
        """Bash by which the shell tells no more how commands end, once nobody needs it."""
        return "_rt_scouted=; " * (self.is_lost and not self.scout_only)

    # What a test is, and what its shell is told.

    def input_of(self, pid: str) -> str:
        """The standard input of a test that this process would start, as in `Call.stdin`."""
        path = f"/proc/{pid}/fd/0"
        try:
            if os.path.samefile(path, os.devnull):
                return ""
            if os.path.samefile(path, "/proc/self/fd/0"):
                return "-" * self.sequential
        except OSError:  # it is closed
            return ""
        if proc_number(f"{pid}/fdinfo/0", rb"pos:\s*(\d+)"):
            return "loop" * self.sequential
        return path

    def retire(self, test: Test) -> None:
        """Let the shell go on: tell it what a test has printed, and how the test has ended."""
        call = self.shell_waits_for.pop(test)
        result = self.schedule.results[test][-1]
        self.record.test_end(result)
        self.show()
        log = abspath(self.record.log_path(test))
        logs = [log]
        if test.splits:
            logs.append(f"{log}.err")
        status = result.status or 0
        if test in self.shell_only[call.key] and not call.site.waits_for_shell:
            self.note_missed(call)  # while it ran, tests below it may have begun
        else:
            self.tried.setdefault(call.program.key, self.ended[test])
        self.has_failed |= result.status != 0
        if self.options.fails(result.outcome) or not result.has_run:
            self.unhandled[call.label or str(call.site.line)] += 1
            # A test ends with 1 if it did not run, or ended with 0 and fails all the same (`--leaks fail`).
            status = status or EXIT_FAILED
        code = f"{self.silence()}_rt_status={shell_status(status)}; "
        if call.goes != "shown" and result.has_run:
            code += f"_rt_print {shlex.join(logs)}; "
        elif self.console.has_markers and self.console.shows(result):
            for path in logs:
                with suppress(OSError):
                    self.trace.copy(path)
        if status < 0:
            code += self.death_notice(call, -status)
        self.signal_script()
        self.shell.answer(call.question, code)

    def death_notice(self, call: Call, signum: int) -> str:
        """Bash that says how a program has died, as its shell would."""
        if signum in (SIGINT, signal.SIGPIPE):  # of which bash says nothing
            return ""
        how = signal.strsignal(signum)
        site = call.site
        message = (
            f"{site.file.name}: line {site.line}: {call.pid:>5} {how:<23} {site.node.text}"
        )
        if signum == SIGTERM:
            message = str(how)
        return f"_rt_died {quote(message)}; "

    def job_of(self, call: Call) -> Job:
        """The process that a test starts."""
        program = call.program
        words = program.words
        path = find_program(words[0], program.environment, program.directory) or words[0]
        # As the first of its process group, `setsid` would not wait for what it runs, nor would a file that becomes it.
        if "setsid" in " ".join(words) + tail_of(path):
            path = find_program("timeout") or "timeout"
            words = ("timeout", "0", *words)
        umask = program.umask
        if umask == self.umask:
            umask = -1
        return Job(path, words, stdin=call.stdin, umask=umask)

    def test_of(self, call: Call, splits: bool) -> Test:
        """The Test for a program to which a shell has come."""
        program = call.program
        words = program.words
        site = call.site
        text = " ".join(words)
        written = site.node.all_words
        key = " ".join(written)
        if not ARGUMENTS.isdisjoint(written):
            key = text
        for word in words:
            if re.match(MASK, word):
                warn_once(
                    f"{site.where}: `{word}` in the words of a test chooses GPUs that others may use; write it in "
                    "front of the command: the test gets as many as it names"
                )
        variable = [*self.machine.readers, CUDA][0].variable
        mask = to_text(program.environment.get(to_bytes(variable), b""))
        job = self.job_of(call)
        environment = {**program.environment, b"_": to_bytes(job.bash)}
        line = TestLine(
            site.file,
            site.line,
            key,
            words[0],
            key_of([key]),
            site.attributes,
            mask=f"={mask}" * (mask != os.environ.get(variable, "")),
            junit=junit_word(words[1:]),
            shell=Snapshot(program.directory, environment),
        )
        label = self.labels(clean_label(call.label.strip() or shlex.join(words)))
        stem = self.stems(stem_of(line, label))
        test = make_test(line, len(self.tests), label, stem, self.options)
        tell_unheeded([test], self.host.heeds)
        # `is_pytest` is False: as under bash, a pytest run may pass without a whole JUnit file.
        test = test._replace(
            gpus=self.gpus_of(line, test.gpus, text),
            is_pytest=False,
            command=shlex.join(words),
            program=job,
            splits=splits,
        )
        return self.host.fitted(test)

    def gpus_of(self, line: TestLine, need: float, words: str) -> float:
        """How many GPUs a test takes: as its `#:` or its mask says, else as many as its words seem to ask for."""
        if line.attributes.gpus is not None:
            return need
        if not line.mask and self.options.gpus_per_test == 1:
            named = gpus_named_in(words)
            if not 1 < named < ALL_GPUS:  # a folder may be called `distributed`
                named = gpus_named_in(line.body)
            need = max(need, named)
        # No more than there are: CUDA, too, leaves out GPUs of a mask that are not there.
        return min(need, max(len(self.machine.tokens), 1))

    def note_failure(self, label: str, line: int, status: int | None) -> None:
        """Record what has failed, or was interrupted, in the script's own shell: it has no log but the script's."""
        self.has_failed = True
        unique = self.labels(clean_label(label))
        source = TestLine(self.file, line, "", "", key_of([label]), Attributes())
        test = make_test(source, len(self.tests), unique, self.stem, self.options)
        outcome = Outcome.INTERRUPTED if status is None else Outcome.FAILED
        result = Result(test, outcome, status=status)
        self.tests.append(test)
        self.schedule.results[test] = (result,)
        self.record.attempt_end(result)
        self.record.test_end(result)

    # The end.

    def give_up(self, why: str) -> None:
        self.shell.process.signal(SIGKILL)
        super().give_up(why)
        if self.shell.thread:  # which ends what the script has left
            self.shell.thread.join(STUCK_S)

    def report(self) -> int:
        self.show()  # the script has the last word
        self.trace.flush()
        ends = results_of(self.attempts())
        # Results with which a run of a list would not pass.
        bad = [end for end in ends if not self.options.accepts(end.outcome)]
        if self.kill_at == inf and not self.schedule.failure:
            self.status = self.own_status(ends, bad)
        if self.status != EXIT_OK and not bad:
            # No test accounts for it: if the script were no case, the JUnit file would show a pass.
            with suppress(OSError):  # the log dir is full, perhaps
                self.note_failure(self.name, 1, self.status)
        return super().report()

    def own_status(self, ends: Results, bad: Results) -> int:
        """The exit code of a script that has come to its end; says what there is to say of it, and a last line."""
        if not self.sequential and not self.trace.at_line_start:
            tell("")
        status = self.shell.status
        if self.scout_only:
            warn(
                "the script has not come to tests that ran ahead of it: "
                f"{first_of([test.label for test in self.scout_only])}"
            )
        if self.runs_ahead:
            self.say_what_ran_alone()
        failed = {end.test for end in bad if end.test not in self.scout_only}
        # Where bash itself ends with a failure, a doubt is told only of a test that has failed: it may be the reason.
        doubts = [
            why
            for (test, is_minor), why in self.too_early.items()
            if not status or (test in failed and not is_minor)
        ]
        if doubts:
            warn(
                f"{doubts[0]}, behind a failure, and one may have seen what the other did: this is no pass; run "
                "it with --one-by-one to be certain"
            )
            status = status or EXIT_FAILED
        has_left_out = not all(end.has_run for end in bad)
        if not status and has_left_out:
            warn(f"{self.name}: not all tests have run: this is no pass")
            status = EXIT_FAILED
        total = total_line(ends, self.console.age, self.schedule.pool)
        if (self.shell.status == EXIT_OK) == bool(bad):  # the script and its tests do not agree
            total += f"; {self.name} ends with {self.shell.status}, as under bash"
        if has_left_out or not self.sequential:
            tell(total)
        return status

    def say_what_ran_alone(self) -> None:
        """Say how many tests ran while no other did, and why one had to wait first."""
        if not self.tests:
            why = NO_TESTS
            if self.script.called:
                why = "the script has come to no test, or tests begin in another way (--tests REGEX)"
            warn(f"{self.name}: nothing ran in parallel: {[*self.reasons, why][0]}")
        count = sum(test not in self.beside for test in self.tests)
        if any(test.gpus > self.schedule.pool.size / 2 for test in self.tests):
            self.reasons.setdefault("tests need more than half of the GPUs")
        reasons = list(self.reasons)
        if reasons and count and len(self.tests) > 1:
            warn(
                f"{counted(count, 'test')} ran while no other did; first reason to wait: {reasons[0]}"
            )
            for why in reasons[1:] * self.options.verbose:
                tell(f"    {why}")

    def verdict(self, results: Results) -> Verdict:
        """The exit code, and the last lines: only if the run was ended, since a script prints its own verdict."""
        if self.status is not None:
            return self.status, []
        code, lines = super().verdict(results)
        if self.sequential:  # its standard output is bash's alone
            for line in lines:
                tell(line)
            lines = []
        return max(code, EXIT_FAILED), lines


def paths_of(directory: str, *words: str) -> Dict[str, bool]:
    """The paths of files that the words of a test name, and whether no other test is to have them at the same time.

    A test has to itself: test files, by pytest's names; files that it writes; data files that do not exist yet.
    The first word is its program.
    """
    paths: Dict[str, bool] = defaultdict(bool)
    before = ""
    # `bash -c "./test_a >m.json"` names that file, too.
    texts = " ".join(word for word in words if " " in word)
    words += tuple(re.findall(r"[^\s;&|<>'\"]+", texts))
    for word in words[1:]:
        named = word
        if re.match(r"(?:-o|--[\w-]*) [^-]", f"{before} {word}"):
            named = f"{before}={word}"
        before = word
        if re.match("--(?:ignore|deselect)=", named):
            continue
        file = re.sub(r"(?s)^(?:[\w-]+=)+|::.*", "", named)
        path = normpath(os.path.join(directory, file))
        owned = DATA_FILE
        if exists(path):
            owned = r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$"
        is_exclusive = re.match(OUTPUT, named) or re.search(owned, path)
        paths[path] |= bool(is_exclusive)
    if re.match(COVERS, " ".join(words)):
        paths[os.path.join(directory, ".coverage")] = True
    return paths


def shared_paths(paths: Mapping[str, bool], others: Mapping[str, bool]) -> Set[str]:
    """The paths, as `paths_of` has them, for which one test has to wait for another."""
    return {path for path in paths.keys() & others if paths[path] or others[path]}


def list_script(script: Script, file: ScriptFile, trace: Trace) -> int:
    """Print what a first reading finds: each test, and why it does not run ahead; returns the exit code."""
    named: Dict[str, bool] = {}
    steps = list(file.sites)
    for node in file.nodes:  # those that the script surely runs
        command = Site(file, file.line_of(node.start), node, [])
        calls = "function" * (node.name in script.functions)
        if node.before == ";" and "_rt_other" in script.code_of(command, (calls,)):
            steps.append(command)
    steps.sort(key=lambda step: step.node.start)
    above = ""  # a command since the last test
    for site in steps:
        if not site.label:
            above = site.described
            continue
        why = file.obstacle or "runs ahead"
        paths = paths_of("", *map(unquoted, [*site.node.words, *site.node.assigned]))
        shared = shared_paths(paths, named)
        named.update(paths)
        if site.line >= file.one_by_one:
            why = "`#: one-by-one`"
        elif site.is_native:
            why = "starts when the script comes to it; if a function, its tests may run ahead"
        elif site.waits_for_shell:
            why = "starts when the script comes to it"
        elif shared:
            why = f"waits for a test that has {min(shared)}, too"
        elif above and site is not file.sites[0]:
            why = f"waits for {above}, which waits for the test above it"
        above = ""
        label = site.attributes.label or unquoted(site.label) or site.node.head
        trace.line(f"{clean_label(label)}\t{site.where}\t{why}")
    if not file.sites:
        warn(f'{NO_TESTS}; what a function runs by "$@" shows only in a run')
    return trace.exit_code(EXIT_OK)


def read_script(name: str, options: Options) -> Script:
    """Read a script. If no command of it has a handler, all that look like tests are tests.

    Raises ListError, UsageError for what bash would not run, or not with a runner.
    """
    text = list_text(name)
    if re.search(r"\b19[1-4][<>]|[<>]&19[1-4]\b", text):
        raise UsageError(
            f"{name}: the runner needs the descriptors 191 to 194 in the script's shell; take others"
        )
    if re.match(r".*(?:\r\n|\0)", text):
        raise ListError(f"{name}:1: {WINDOWS}; or a binary file")
    flags = re.match(r"#!.*sh\s+(-\w+)", text)
    if flags:
        warn(
            f"{name}:1: `{flags.group(1)}` does not count, as under `bash {name}`; write `set {flags.group(1)}` below"
        )
    if re.match(r"#!(?!.*sh\b)", text):
        raise ListError(
            f"{name}:1: this is a script, but none for bash; run it by a line of a list"
        )
    script = Script(options)
    if not script.read(name, text).sites and options.tests is None:
        script = Script(options._replace(tests=LOOKS_LIKE_TEST))
        script.read(name, text)
    mistakes = script.files[name].mistakes
    if mistakes:
        raise ListError(*mistakes)
    return script


def check_script(name: str, options: Options) -> None:
    """Refuse what no script can run with, such as options for lists. Raises UsageError, MachineError."""
    if len(options.lists) > 1:
        raise UsageError(
            f"{name} is a script; it runs alone, in a call of its own; its arguments follow `--`"
        )
    for option in changed_options(options, LIST_OPTIONS):
        raise UsageError(
            f"{option}: {name} is a script, whose tests show only as it runs; leave {option} out, or "
            "put its test commands into a list"
        )
    if "POSIXLY_CORRECT" in os.environ or re.search(
        r"\b(posix|privileged|keyword)\b", os.environ.get("SHELLOPTS", "")
    ):
        raise UsageError(
            f"{name}: POSIXLY_CORRECT, or posix, privileged or keyword in SHELLOPTS, keeps bash from telling of its "
            "tests; unset it"
        )
    descriptors = os.sysconf("SC_OPEN_MAX")
    if descriptors < MIN_DESCRIPTORS:
        raise MachineError(
            f"{name}: `ulimit -n` is {descriptors}, too few for the shell of a script; write "
            f"`ulimit -n {MIN_DESCRIPTORS}` before the call"
        )


if __name__ == "__main__":
    leave(main())
