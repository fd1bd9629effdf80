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
would print, unless they say that they share it.

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

The main thread alone decides and prints. A pool thread waits for its one child and posts events to one
queue; so does the signal handler.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import copy
import enum
import errno
import fcntl
import functools
import heapq
import importlib
import itertools
import json
import math
import os
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    closing,
    contextmanager,
    nullcontext,
    redirect_stderr,
    suppress,
)
from itertools import chain, count
from typing import (
    AbstractSet,
    Any,
    BinaryIO,
    Callable,
    Collection,
    Container,
    ContextManager,
    Deque,
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
    TypeVar,
    Union,
    cast,
)

# ---------------------------------------------------------------------------------------------------
# 1. Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

VERSION = "0.2.0"
PROGRAM = "run_tests.py"
OLDEST_PYTHON = (3, 8)

BATCH_S = 0.05  # a script hands over the tests of one batch within milliseconds
GRACE_S = 10.0  # from SIGTERM to SIGKILL: enough for pytest to write its JUnit file
FOLLOW_S = 0.05  # between two looks at a growing log: no eye sees a shorter time
LINGER_S = 1.5  # some helpers look for their parent once a second, and then go by themselves
KILLED_S = 2.0  # a killed process is gone in milliseconds, or is stuck in the kernel
LIVE_S = 0.25  # between two looks at the keys; a clock that counts seconds needs no more
REDRAW_S = 0.1  # between two drawings of the live block: more is flicker
# After so long without a line a run says that it is alive: CI services end silent jobs.
SILENCE_S = 60.0
SLOW_S = 300.0  # between two announcements of a test that still runs: few take longer
STUCK_S = 30.0  # a shell that SIGKILL does not end by then is given up
SWEEP_POLL_S = 0.02  # between two looks at what a test has left: each look takes milliseconds
# For the stacks of all Pythons of a test: each Python takes milliseconds, unless it is frozen.
STACKS_S = 1.0
CHORES_S = 1.0  # between two looks at orphans that have ended, at deleted files, at OOM kills
REPORT_S = 10.0  # of `--deadline`, kept for sweeps and reports
MEMORY_S = 10.0  # a GPU's memory comes back within a second of its process's end
# A GPU may hold this much more than before a test: drivers keep some; a CUDA context takes 500 MiB.
MEMORY_MIB = 128
# Between two looks at what running tests hold of their GPUs: each asks nvidia-smi for all GPUs.
MEASURE_S = 2.0
MEMORY_MARGIN = 1.2  # from a peak that was seen to a `mem=`: the looks may miss the highest
# Without persistence mode nvidia-smi takes seconds; with a hung driver it never answers.
PROBE_S = 30.0
TOOL_POLL_S = 0.25  # between two looks whether its answer is still wanted
# A log dir may be held so long: by the guard of a killed run, until it has ended all tests.
HELD_S = 5.0
# Between two looks at a GPU that another runner holds: short beside any GPU test.
LOCK_POLL_S = 0.2
ENVIRONMENT_BYTES = 1 << 17  # Linux starts no program that has a longer variable
COPY_BYTES = 1 << 20  # the buffer through which a log is replayed, so that 1 GB costs no memory
TAIL_BYTES = 8192  # of a log, for a JUnit file: the last error and its traceback
CAUSE_BYTES = 1 << 16  # the end of a failed test's log, in which its cause is looked for
# A torn JUnit file above this size is kept aside: it would cost 5 times as much.
JUNIT_BYTES = 16 << 20
HISTORY_BYTES = 64 << 20  # the end of a journal: some hundred thousand tests, read in 0.5 s
LINE_CHARS = 200  # of a log's line or of a label, shown or compared
SLOWEST = 5  # tests that the summary names
SHOWN = 10  # tests that the summary names for one cause, processes for one test
STEM_BYTES = 120  # of a file name: far below the 255 that file systems allow, suffixes included
ARGUMENT_BYTES = 100_000  # Linux refuses one argument of 128 KiB or more (MAX_ARG_STRLEN)
# A command of a list has no more lines: bash reads all of it again at each.
COMMAND_LINES = 1000
SHARES = 1_000_000  # of a device: `gpus=` takes six digits after the point
PASSES = 5  # the median of a test's last passes is its expected duration: two bad days do not move it
# The longest test may take so many times its estimate before the run ends with it alone.
SLACK = 1.1
LONGEST_S = 1e9  # a pass of thirty years is a torn or foreign record
ASSUMED_S = 60.0  # the expected duration where nothing is known of any test; only ratios matter
# Below the ephemeral ports of Linux, which start at 32768.
PORT_FIRST = 20_000
PORT_LAST = 32_767
PORT_BASES = 8_000  # first ports are spread over this many, so that two runners seldom meet
# The variables in which CI services tell a job which commit it tests.
COMMIT_VARIABLES = (
    "GITHUB_SHA CI_COMMIT_SHA CIRCLE_SHA1 BUILDKITE_COMMIT SEMAPHORE_GIT_SHA "
    "BUILD_SOURCEVERSION GIT_COMMIT"
).split()

RUN = r" \(run \d+\)$"  # the end of the label of a run by --repeat
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
ALL_GPUS = math.inf  # the value of `gpus=all`
# The value of `gpus` where no GPU here is as large as `mem=`. Shards and --max-gpus, which must be the same everywhere,
# take it for 1.
TOO_LARGE = 1.5


class UsageError(Exception):
    """A mistake in the command line or its environment."""

    code = EXIT_USAGE


class ListError(Exception):
    """Mistakes in lists, one `file:line: what, what to do` in each of `args`. Exit code 2."""


class MachineError(Exception):
    """The runner cannot work here: no bash, a log dir that cannot be written."""

    code = EXIT_MACHINE


class BadValue(argparse.ArgumentTypeError, ValueError):
    """What an option's or an attribute's value should be. argparse shows it as it stands."""


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

    def is_ok(self) -> bool:
        """It does not fail the run (a flaky one does with `--flaky fail`: see `Options.accepts`)."""
        return self in PASSING or self in EXCUSED or self is Outcome.DEFERRED

    def is_pass(self) -> bool:
        """What waits for the test may start."""
        return self in PASSING

    def is_excused(self) -> bool:
        """It did not pass, and does not fail the run either."""
        return self in EXCUSED

    def is_failure(self) -> bool:
        """It is the test's own failure. `Options.fails` says what the run counts as one."""
        return self in FAILING

    def can_be_retried(self) -> bool:
        """The test ran and did not pass."""
        return self in RETRIABLE

    def is_unfinished(self) -> bool:
        """The run ended before the test did; it says nothing about the test."""
        return self in (Outcome.INTERRUPTED, Outcome.NOT_RUN)


PASSING = (Outcome.PASSED, Outcome.FLAKY)
EXCUSED = (Outcome.SKIPPED, Outcome.KNOWN)
RETRIABLE = (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT)
FAILING = (*RETRIABLE, Outcome.BLOCKED, Outcome.UNRUNNABLE)
CALM_PROGRAMS = r"(?:\S*/)?(?:rapids-logger|log|logger|banner)$"  # of scripts


class Options(NamedTuple):
    """The command line, read once. Durations in seconds, paths as given."""

    lists: Sequence[str]
    command: Sequence[str] = (PROGRAM,)  # the words of the command line, the program first
    gpus: str | None = None  # a count or ids, as written
    gpus_per_test: float = 1  # for tests that do not say it
    jobs: int | None = None  # CPU slots for `gpus=0`; None: as many as GPUs
    python: str = "python3"
    pytest_args: Words = ()
    require_gpus: int = 0
    timeout: float | None = None
    slow: float = SLOW_S  # how often a test that runs on is announced
    deadline: float | None = None
    grace: float = GRACE_S
    retries: int = 0
    retry_on: str = ""  # a pattern of causes
    flaky: str = "pass"
    skip_code: int | None = None  # the exit code of a test that cannot run here
    known_failures: Mapping[str, str] = {}  # why tests are known to fail, by label
    leaks: str = "report"
    fail_fast: bool = False
    handlers: Sequence[str] = ["test_fail"]  # of failures, in scripts
    tests: str | None = None  # in scripts, a pattern of commands
    calm: str = CALM_PROGRAMS  # in scripts, a pattern of programs
    one_by_one: bool = False
    arguments: Sequence[str] = ()  # of a script
    verbose: bool = False
    log_dir: str = "logs"
    fail_dir: str | None = None  # None: the log dir, and `failures` starts fresh
    journal: str | None = None
    junit: str | None = None  # the summary of the run
    output: str | None = None  # None: failures on a terminal, else replay; one by one all
    color: str = "auto"
    list: bool = False
    history: Sequence[str] = ()  # more journals to learn durations from
    order: str = "auto"
    keep: Callable[[Sequence[str]], bool] | None = None  # of `-k`: takes label and tags
    rerun_failed: bool = False
    repeat: int = 1
    only: LabelFile | None = None
    message: Words = ()  # the words of `[ci WORDS]` in it, case folded
    max_gpus: int | None = None
    gpu_memory: float = 0.0  # MiB of each GPU; 0: what a tool says
    shard: Shard | None = None
    gpu_locks: str | None = None  # the folder of lock files

    def fails(self, outcome: Outcome) -> bool:
        """Whether a test that ends so is named as one that failed."""
        return outcome.is_failure() or (outcome is Outcome.FLAKY and self.flaky == "fail")

    def reads(self, path: str) -> bool:
        """Whether this is the file of `--only`, over which the run does not write."""
        return self.only is not None and os.path.realpath(self.only.path) == os.path.realpath(
            path
        )

    def accepts(self, outcome: Outcome) -> bool:
        """Whether a run with a test that ends so may pass."""
        return outcome.is_ok() and not self.fails(outcome)


class LabelFile(NamedTuple):
    """The labels in a file of `--only`, which was chosen from runs of this list and others."""

    path: str
    labels: FrozenSet[str]

    def news(self, tests: Tests) -> Tests:
        """The tests that the file names neither as labels nor in comments, if its comments say what it leaves out.

        They do if one of them is the label of a test.
        """
        left_out = {label[2:] for label in self.labels if label.startswith("# ")}
        if not any(test.origin in left_out for test in tests):
            return []
        return [test for test in tests if test.origin not in self.labels | left_out]


class Shard(NamedTuple):
    """Part `number`, from 1, of `total` parts of the tests."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


class Attributes(NamedTuple):
    """What `#: key=value` says of a test. None or empty: not said."""

    gpus: float | None = None  # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: float | None = None  # seconds
    retries: int | None = None
    label: str | None = None
    time: float | None = None  # expected seconds
    lock: Words = ()
    after: Words = ()  # labels
    tags: Words = ()
    mem: float = 0.0  # MiB of one GPU
    split: str = ""  # a number of parts, or `auto`; this and the next two are for companions
    after_crash: str = ""  # `go-on`
    nodes: int = 0  # of a cluster


class Snapshot(NamedTuple):
    """The state of a shell at one place of a list or script, from which a test starts."""

    directory: str
    environment: Mapping[bytes, bytes] | None  # what is exported; None: the runner's own
    prelude: str = ""  # a file of bash that sets all else; empty: there is nothing else
    before: str = ""  # bash that runs before the command of the test, and after it
    after: str = ""
    has_stdin: bool = False  # its standard input is the runner's

    def __repr__(self) -> str:
        """Without the environment, in which there may be secrets: an internal error may name a test."""
        return f"Snapshot({self.directory!r})"


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
    preface: bytes  # what the shell state above it has printed
    attributes: Attributes
    barrier: int  # number of `wait` lines above it
    gpus: float  # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: float | None  # seconds; None or 0: no limit
    junit: str | None  # absolute path of the JUnit file that it writes
    announces: bool  # `Error: sub-test failed` is part of what its line prints
    is_pytest: bool = False  # it writes its JUnit file, or has died
    origin: str = ""  # its label without the number of its run

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """A hash of key and label: labels are unique in a list, keys are not."""
        return key_of([self.key, self.origin])

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
Seconds = Mapping[Test, float]  # that each of some tests takes


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
        return "GPU " + ",".join(self.tokens)


class Blame(enum.Enum):
    """Whose failure a cause is."""

    TEST = "test"
    DEVICE = "device"  # the GPU is broken; the test is to run on another
    MACHINE = "machine"  # if it shows on every GPU, no test can pass


class Cause(NamedTuple):
    """Why a test failed, in words that are the same for the same cause."""

    text: str = ""
    blame: Blame = Blame.TEST
    line: str = ""  # of the log, as it stands there


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
    peak: int = 0  # the most MiB of one GPU that it was seen to hold; 0: not known

    def why(self) -> str:
        """Why it has not passed: the line of its log that says it, if there is one."""
        return self.cause.line or self.reason or self.cause.text or self.verdict()

    def told(self) -> str:
        """`failed, exit 1: assert 2 == 3`: how it ended, and why."""
        verdict = self.verdict()
        why = self.why()
        if why in verdict:
            return verdict
        return f"{verdict}: {why}"

    def verdict(self) -> str:
        """`failed, exit 1`, `crashed (SIGSEGV)`, `passed`: what the markers and the summary say."""
        why = self.reason and f", {self.reason}"
        if self.outcome is Outcome.CRASHED:
            return f"crashed ({death_of(self.status)}{why})"
        if self.outcome is Outcome.FAILED or self.outcome.is_excused():
            status = f", exit {self.status}" * (self.status is not None)
            return f"{self.outcome.value}{status}{why}"
        return self.outcome.value

    @property
    def gpus(self) -> FrozenSet[int]:
        """The indices of the GPUs that it had."""
        return frozenset(device.index for device in self.lease.devices if device.token)


Results = Sequence[Result]
Attempts = Sequence[Results]  # of each test all attempts, in list order


def results_of(attempts: Attempts) -> Results:
    """How each test has ended."""
    return [ends[-1] for ends in attempts]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 test`, `2 tests`."""
    if count == 1:
        return f"1 {one}"
    return f"{count} {many or one + 's'}"


def told_leaks(leaked: Words) -> str:
    """`leaked: 2 processes`."""
    return f"leaked: {counted(len(leaked), 'process', 'processes')}"


def show_memory(mib: float) -> str:
    """`20G`, `3.2G`: MiB as `mem=` takes them, never less."""
    return f"{math.ceil(mib / 102.4) / 10:g}G"


def to_bytes(text: str) -> bytes:
    """Text of a list as the bytes that it was read from."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """Bytes as text from which `to_bytes` makes the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def death_of(status: int | None) -> str:
    """`SIGSEGV` if a status means death by it: -N from the kernel, 128+N as a shell passes it on. Else empty."""
    if not status:
        return ""
    number = -status
    if status >= 0:
        number = status - EXIT_SIGNAL
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}" * (status < 0)


@functools.lru_cache(maxsize=None)
def hash_function() -> Callable[[bytes], Any]:
    """SHA-256. hashlib loads OpenSSL, which takes 10 ms; CPython's own module does not (as `random` uses it)."""
    for name in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return importlib.import_module(name).sha256
    raise MachineError("this Python has no SHA-256; name another interpreter")


def key_of(words: Iterable[str]) -> str:
    """A test's name in journals: 12 hex digits of the hash of its command and environment prefix."""
    return hash_function()(to_bytes(" ".join(words))).hexdigest()[:12]


# ---------------------------------------------------------------------------------------------------
# 3. Parse: list files to tests. Bash says where a command ends and what its words are worth.
# ---------------------------------------------------------------------------------------------------


def names_in(words: str) -> FrozenSet[str]:
    """The words of a text, as a set."""
    return frozenset(words.split())


STATE_WORDS = names_in(
    "export unset : cd source . set shopt ulimit umask declare typeset readonly alias unalias pushd popd "
    "mapfile readarray"
)
# What may stand beside them: `[ -d build ] || exit 1; cd build || { echo no; exit 1; }` is state.
CHECKS = names_in("[ [[ (( test false true read")
ENDS = names_in("exit return")
HARMLESS = CHECKS | STATE_WORDS | {""}  # one of these that fails is no failure of a test
PRINTS = names_in("echo printf")
WISHES = (":", "true")
LOOKUP = r"(?:command\s+-[vV]|type|hash|which)\s"
# Commands that always end with status 0, so that `test || echo no` always passes.
INFALLIBLE = PRINTS | names_in(
    ": true export local declare typeset readonly unset let (( set shopt"
)
ERREXIT = "e|o errexit"  # the option of `set`
NOT_FOLDERS = names_in(". eval exec command builtin time trap type let coproc source")
# Commands in front of another one.
PREFIXES = (
    r"(?:(?:command|exec|nohup|env(?: -\S+)*(?: (?:\w+=|\$)\S*)*|timeout(?: -\S+)* \w+|nice(?: -n ?\S+)?"
    r"|(?:uv|coverage|poetry) run(?: -\S+)*) )*"
)
# What lies among tests, and prepares them or looks at what they have left.
NO_TEST = (
    r"(?!\S*(?:build|clean|creat|download|generat|install|(?<![a-z])make|prepar|server|setup|start_"
    r"|aggregat|compare|merge_|report|summar|verify_)[^/\s]*(?: |$))"
)
# A program that runs tests, or a file whose path says test, behind the interpreter that runs it.
TEST_FILE = (
    rf"(?!-)(?:\S*/)?(?:tests?/{NO_TEST}\S|test_\S|{NO_TEST}"
    r"(?:(?:run|smoke)_test|(?:\S*[_/-])?(?:py)?tests?(?:\.\w+)?(?: |$)|\S*/\S*[a-z]Tests?(?: |$)))"
)
MODULE = r"-m (?:pytest|unittest|torch\.distributed\.(?:run|launch))(?: |$)"
LOOKS_LIKE_TEST = (
    r"(?:(?:\S*/)?(?:pytest|py\.test|ctest|torchrun|mpirun|mpiexec)|\$\{?(?:PYTEST|TORCHRUN|MPIRUN)\}?)(?: |$)"
    rf"|(?:\S*/)?(?:python[\d.]*|\$\{{?(?:PY|py)\S*|bash|sh) (?:(?:.* )?{MODULE}"
    rf"|(?:-[XWO] ?\S+ |-(?!m)\S+ )*(?:(?<=c )(?:.* )?|-m (?:torch|coverage)\S* (?:.* )?)?{TEST_FILE})"
    rf"|(?:deepspeed|accelerate) (?:.* )?(?:{MODULE}|{TEST_FILE})|(?:\S+ )?{MODULE}|{TEST_FILE}"
)
# Also: what a function has been given, and programs that may be tests.
GIVEN = r"[\"']?\$(?:[@*\d]|\{(?:[@*\d]|\w+\[@))"
RUNS_TESTS = (
    r"(?:\S*/)?(?:python[\d.]*(?! -[cV]| --version| -m (?:pip|venv|build)\b)"
    r"|pytest|torchrun|mpirun|mpiexec|ctest)(?= |$)|\./|[\"']?\$"
)
# Programs that look after something, and whose own failure is none of a test.
UTILITIES = names_in(
    "awk basename cat cp cut date dirname expr head hostname kill ls mkdir mv nvidia-smi rm sed seq sleep sort "
    "sync tail tee touch tput tr wc"
)
# One that moves its JUnit file nowhere, and runs here.
PYTEST = (
    r"(?:timeout \S+ )?(?:\S*/)?(?:(?:python[\d.]*|\$\S+) (?:-\S+ )*-m )?(?:pytest|py\.test)\s"
    r"(?!.*(?:&&|;))"
)
WAITS = r"^(?:[^'\"]*[;&|{]\s*)?wait(?=[\s;&|]|$)"
PREPARES = (
    r"(pip3?|conda|mamba|apt(-get)?|yum|dnf|module|exit|trap|eval|\S*python[\d.]* -m pip|mkdir|git clone|wget|cmake)"
    r"([\s;]|$)"
)
SEVERAL_GPUS = (
    r"(?i)(?:nproc[-_]per[-_]node|\bn(?:um)?[-_]?gpus|gpus[-_]per[-_]node|accelerate\b.* --num_processes)[= ]"
    r"(?:(\d+)|gpu|auto)"
    r"|\bmpi(?:run|exec)\b.*? -n?p? ?(\d+)|(?<!not )(?:distributed|(?<![a-z])m(?:ulti)?[-_]?gpu)"
)
MASK = r"((CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK)(\[[^]]*\])?\+?="
WINDOWS = "Windows line ends; mend them with `sed -i 's/\\r$//'`"
COMPANION_KEYS = "split after-crash nodes".split()

SUBSHELL = r"[$<>]\((?!\()"
CHANGES_IN_SUM = r"\+\+|--|<<=|>>=|(?<![=!<>])=(?!=)"
ASSIGNMENT = r"(?a:([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=)"
ASSIGNING = names_in(
    "export declare typeset readonly local read let unset mapfile readarray (( getopts"
)
NAME = r"(?a:[A-Za-z_]\w*)"
# How a check asks for a variable without `$`: `-v NAME`, `NAME -eq 1`.
ASKED = rf"\s-(?:v|eq|ne|lt|le|gt|ge)\s+({NAME})|\b({NAME})\b(?=\s+-(?:eq|ne|lt|le|gt|ge)\s)"
ANY = "$"  # among variables, one whose name only bash knows
CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+"

# Words. The text is known to be whole, since bash has read it. Escaped and quoted pieces in which nothing nests:
FLAT = r"""(?s)\\.?|'[^']*'|\$'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`"""
# With the bracket of an array, A=(1 2), and that of a pattern, !(a|b).
WORD_PIECE = FLAT + r"""|[^ \t\n;&|()<>'"\\$`]+|\$\(|\$\{|[<>]\(|\$?"|\$|(?<=[=!@?*+])\("""
NESTED = (
    FLAT + r"""|[$<>]\(|\$\{|["(){}]|(?<![^\s;&|()])\#[^\n]*|\bcase\s[^\n;]*?\sin\b|\besac\b"""
)
QUOTED = r"""(?s)\\.|`(?:[^`\\]|\\.)*`|\$\(|\$\{|["}]"""
NESTS: Mapping[str, str] = {
    "$(": ")",
    "<(": ")",
    ">(": ")",
    "(": ")",
    "${": "}",
    '"': '"',
    '$"': '"',
}
NO_WORD = (
    r"(?P<blank>(?:[ \t]|\\\n)+)|(?P<comment>#[^\n]*)|(?P<operator>\|\||&&|;;&?|;&|\|&|&>>?|\([ \t]*\)"
    r"|(?:\d+|\{\w+\})?(?:<<<|<<-?|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|[;|()&\n])"
)
PIPES = ("|", "|&")
SEPARATORS = names_in("; && || & | |&") | {"\n"}
LOOPS = ("while", "until", "for", "select")
COMPOUNDS = names_in("if while until for select case { (")
# The words that end the head of a compound command.
HEADS: Mapping[str, Words] = {"for": ("do", "{"), "select": ("do", "{"), "case": ("in",)}
# What ends a compound command, and what a list of commands, where a command may begin.
CLOSERS = names_in("fi done } ) esac")
LIST_CLOSERS = CLOSERS | names_in("then elif else do ;; ;& ;;& ()")
# What no word of a simple command is.
STOPS = SEPARATORS | names_in(";; ;& ;;& ( ) ()") | {""}


class Token(NamedTuple):
    """A piece of a command. `start` and `end` are offsets in its text."""

    kind: str  # word, operator, comment, or document: all that begin behind one newline
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
            at = end_of_nest(text, at, NESTS[piece], pattern if piece == "${" else NESTED)
        elif closer in (")", "esac") and piece.startswith("case"):
            at = end_of_nest(text, at, "esac")  # a `)` ends a pattern there
        elif closer == "}" and piece.startswith("#"):
            at = found.start() + 1  # no comment but an operator: ${path/ #/}


def read_tokens(text: str) -> Tokens:
    """The words, operators, comments and here-documents of commands. `(( … ))` is a word."""
    tokens: Tokens = []
    documents = []  # patterns: the ends of those that begin behind the next newline
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
            if tokens and re.fullmatch(r"\d*<<-?", tokens[-1].text):
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

    kind = after = text = ""
    lead = ""  # `!` or `time`
    name = ""  # of a simple command, its first word; empty for assignments alone
    start = end = 0  # offsets
    left: Node | None = None  # the command that bash comes from, if it does

    def __init__(self, before: str) -> None:
        self.before = before  # the operator between the command before and this one
        self.assigned: Tokens = []  # leading assignments
        self.words: Tokens = []  # other words; of a compound command those of its head
        self.redirects: Tokens = []  # operators and their words
        self.conditions: List[Nodes] = []  # of `if`, `while`, `until`
        self.bodies: List[Nodes] = []

    def parts(self) -> List[Node]:
        """The commands right inside a compound one."""
        return list(chain(*self.conditions, *self.bodies))


Nodes = Sequence[Node]


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """Commands and all that are in them, but for the bodies of functions."""
    for node in nodes:
        yield node
        if node.kind not in ("", "function"):
            yield from walk(node.parts())


class Reader:
    """Reads the text of commands into Nodes. If bash would not read it, as may be in a script, they may be odd."""

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

    def pass_token(self) -> Token:
        """Returns the next token and moves behind it, unless it is the end."""
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def skip(self, *texts: str) -> bool:
        """Moves behind the next tokens while they are among these; returns whether there were any."""
        start = self.at
        while self.next in texts:
            self.at += 1
        return self.at > start

    def read_list(self) -> List[Node]:
        """The commands up to a word that closes their list."""
        nodes: List[Node] = []
        before = ";"
        while self.next and self.next not in LIST_CLOSERS:
            if self.next not in SEPARATORS:
                node = self.read_command(before)
                node.left = nodes[-1] if nodes else None
                nodes.append(node)
                before = ";"
                continue
            separator = self.pass_token().text
            if nodes and not nodes[-1].after:
                nodes[-1].after = separator
            if separator != "\n":  # one behind `&&` means nothing
                before = separator
        return nodes

    def read_command(self, before: str) -> Node:
        """The simple or compound command, or the function, that comes next."""
        node = Node(before)
        node.start = self.tokens[self.at].start
        while self.next in ("!", "time"):
            node.lead = self.pass_token().text
            self.skip("-p")  # of `time`
        if self.skip("function") or self.tokens[self.at + 1].text == "()":
            node.kind = "function"
            node.words = [self.pass_token()]
            self.skip("()", "\n")
            node.bodies = [[self.read_command(";")]]
        elif self.next in COMPOUNDS:
            self.read_compound(node)
        self.read_words(node)
        node.end = self.tokens[self.at - 1].end
        node.text = self.text[node.start : node.end]
        if node.words and not node.kind:
            node.name = unquoted(node.words[0].text)
            if node.name.startswith("(("):
                node.name = "(("
        return node

    def read_compound(self, node: Node) -> None:
        """A compound command, from the word that opens it to the one that closes it."""
        node.kind = self.pass_token().text
        if node.kind in HEADS:
            while self.next and self.next not in HEADS[node.kind]:
                token = self.pass_token()
                node.words += [token] * (token.kind == "word")
            self.pass_token()
        closer = ""
        while self.next and closer not in CLOSERS:
            if node.kind == "case":  # a pattern, up to its bracket
                while self.next not in (")", "esac", ""):
                    self.at += 1
                self.skip(")")
            nodes = self.read_list()
            closer = self.pass_token().text
            if closer in ("then", "do"):
                node.conditions.append(nodes)
            else:
                node.bodies.append(nodes)

    def read_words(self, node: Node) -> None:
        """The words and redirections of a simple command, or the redirections behind a compound one."""
        while self.next not in STOPS:
            token = self.tokens[self.at]
            if node.kind and token.kind != "operator":
                break
            self.at += 1
            if token.kind == "operator":
                node.redirects += [token, self.pass_token()]
            elif not node.words and re.match(ASSIGNMENT, token.text):
                node.assigned.append(token)
            else:
                node.words.append(token)
                while token.text == "[[" and self.next and node.words[-1].text != "]]":
                    node.words.append(self.pass_token())


def unquoted(word: str) -> str:
    """A bash word without its quotes and with nothing expanded; as written where it is not that simple."""
    found = re.fullmatch(r"""(['"]?)([\w@%+=:,./-]*)\1""", word)
    if found:  # as most are: shlex takes its time
        return found.group(2)
    try:
        return " ".join(shlex.split(word))
    except ValueError:
        return word


def substituted(text: str) -> Iterator[Nodes]:
    """The commands in each `$(…)`, `<(…)` and `>(…)` of some bash, and between backticks."""
    for inner in [*nested(text, SUBSHELL), *re.findall("`([^`]*)`", text)]:
        yield Reader(inner).nodes


def statements_of(
    nodes: Nodes, joints: Collection[str] = ("&&", "||", *PIPES)
) -> List[List[Node]]:
    """A list of commands, cut where neither `&&` nor `||` nor a pipe joins them, or none of some joints."""
    statements: List[List[Node]] = []
    for node in nodes:
        if node.before in joints and statements:
            statements[-1].append(node)
        else:
            statements.append([node])
    return statements


# What a command is, by its words.


def is_forked(node: Node) -> bool:
    """Whether bash runs a command in another process: a subshell, in the background, or as part of a pipeline."""
    return node.kind == "(" or node.before in PIPES or node.after in ("&", *PIPES)


def is_state(nodes: Nodes) -> bool:
    """Whether a command only changes the shell: state words, assignments, functions, and what guards them."""
    changes = False
    prints = any(node.name in PRINTS for node in nodes)
    for node in walk(nodes):
        assigns = bool(node.assigned) and not node.words
        is_change = assigns or node.kind == "function" or node.name in STATE_WORDS | {"shift"}

        is_beside = node.name in CHECKS | ENDS | PRINTS | {"mkdir", "getopts"} or re.match(
            LOOKUP, node.text
        )
        if is_forked(node) or not (node.kind or is_change or is_beside):
            return False  # also `> file` alone
        # What prints may hide a failure before it, or be meant for its output.
        is_safe = assigns or node.name in INFALLIBLE
        is_plain = is_safe and not (node.redirects or re.search(r"\$\(|`", node.text))
        if prints and (node.before != ";" or not (is_plain or node.kind == "function")):
            return False
        changes = changes or is_change
    return changes and not ends_in_check(nodes)


def ends_in_check(nodes: Nodes) -> bool:
    """Whether the last thing that a command does is to look: `export A=1; test -e F`."""
    if not nodes or nodes[-1].kind == "function":
        return False
    last = nodes[-1]
    if last.name in CHECKS - {"true"} or re.match(LOOKUP, last.text):
        return True
    return any(map(ends_in_check, last.bodies))


def said_with(node: Node, said: str) -> str:
    """What `set` has said so far, and says in a command, where no `&&` or `||` may keep it from running."""
    if node.name == "set" and node.before == ";":
        return " ".join([said, *node.text.partition(" -- ")[0].split()])
    return said


class Failure(enum.Enum):
    """What has become of the failure of a command."""

    NONE = "none"  # it has not come yet
    FRESH = "fresh"  # it is the last status
    LOST = "lost"  # another command has come behind it
    HANDLED = "handled"  # `||` or `if` has answered it

    def later(self) -> Failure:
        """What it is behind another command."""
        if self is Failure.FRESH:
            return Failure.LOST
        return self


class Way(NamedTuple):
    """How bash may come out of a command."""

    status: int = 0  # or 1
    leaves: str = ""  # exit, return, break or continue, if that comes
    failure: Failure = Failure.NONE


class Rehearsal:
    """Goes through a line in thought, as bash would if one command of it, the culprit, failed and all programs passed.

    What only looks (`[ … ]`) may say yes or no, and so may a program by which a failure is answered: there are several
    ways through. (This is an abstract interpreter, after Cousot and Cousot, 1977.)
    """

    culprit: Node | None = None
    is_once = False  # it passes if it comes again
    is_loose = False  # what looks after something may fail behind it

    def __init__(self, nodes: Nodes, said: str, functions: Mapping[str, Nodes]) -> None:
        self.nodes = nodes
        self.said = said  # by `set` above
        self.functions = functions
        self.every = list(walk(nodes))  # with the functions that are called
        called = set()
        for node in self.every:  # it grows
            if not node.kind and node.name in functions and node.name not in called:
                called.add(node.name)
                self.every += walk(functions[node.name])
        wished = wished_in(self.every, functions)
        self.calls: Dict[Any, Set[Way]] = {}  # of those under way, none is known
        suspects = [
            node
            for node in self.every
            if is_suspect(node) and node not in wished and node.name not in functions
        ]
        self.suspects = [node for node in suspects if node.name not in HARMLESS]
        if UTILITIES.isdisjoint(node.name for node in self.every):
            self.suspects = self.suspects or suspects
        self.is_plain = len(self.every) == 1 or any(node.name == "trap" for node in self.every)

    def hidden(self) -> Node | None:
        """A command that the line hides: it passes whatever fails, or only notes the failure of a test. None: no such.

        An explicit `|| true` is meant so.
        """
        passes = self.ends(None)
        if self.is_plain or (passes and all(way.status for way in passes)):
            return None
        hides_all = all(map(self.fate, self.suspects))
        is_tee = any(node.name == "tee" for node in self.every)
        for node in self.suspects:
            # A word alone may be a function.
            is_test = begins(node, rf"(?!test_\w+(?: |$))(?:{LOOKS_LIKE_TEST}|{GIVEN})")
            if not (is_test or hides_all):
                continue
            fate = self.fate(node)
            if Failure.HANDLED in fate and is_test:
                return node
            if not hides_all or Failure.NONE in fate:
                continue
            is_piped = node.after in PIPES and (is_tee or begins(node, RUNS_TESTS))
            if Failure.HANDLED in fate or is_piped or self.fate(node, is_loose=True):
                return node
        return None

    def lost(self) -> str:
        """A program that runs tests and whose failure no status tells where the others pass; empty: there is none."""
        for node in self.suspects * (not self.is_plain):
            is_test = begins(node, RUNS_TESTS)
            if is_test and self.fate(node, is_once=True) - {Failure.NONE}:
                return node.name
        return ""

    def fate(
        self, culprit: Node, is_once: bool = False, is_loose: bool = False
    ) -> Set[Failure]:
        """What becomes of a failure that no status tells in the end. Empty: one may; NONE: it comes behind another."""
        self.is_once = is_once
        self.is_loose = is_loose
        ends: Set[Way] = set()
        for others_may_fail in (False, True):
            if not ends:
                ways = self.ends(culprit, others_may_fail)
                ends = {way for way in ways if way.failure is not Failure.NONE}
        # A failure that is still fresh behind `!` is a pass.
        if any(way.status or way.failure is Failure.FRESH for way in ends):
            return set()
        return {way.failure for way in ends} or {Failure.NONE}

    def ends(self, culprit: Node | None, others_may_fail: bool = False) -> Set[Way]:
        """The ways out of the line."""
        self.culprit = culprit
        self.calls.clear()
        return self.go(self.nodes, [Way()], self.said, others_may_fail)

    def go(
        self, nodes: Nodes, ways: Iterable[Way], said: str, answers: bool = False
    ) -> Set[Way]:
        """The ways out of a list of commands. `said` is by `set`; `answers`: they answer the failure."""
        ways = set(ways)
        for pipeline in statements_of(nodes, PIPES):
            first = pipeline[0]
            said = said_with(first, said)
            guard = " +e" * (pipeline[-1].after in ("&&", "||") or first.lead == "!")
            behind = set()
            for way in ways:
                is_passed = {"&&": way.status == 1, "||": way.status == 0}.get(first.before)
                if way.leaves or is_passed:
                    behind.add(way)
                elif first.before == "||":
                    behind |= self.answer(pipeline, way, said + guard, answers)
                else:
                    behind |= self.pipeline(pipeline, way, said + guard, answers)
            ways = behind
        return ways

    def answer(self, nodes: Nodes, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of what bash does about a status: of a pipeline behind `||`, or of a branch of an `if`."""
        if way.failure is Failure.FRESH:
            way = way._replace(failure=Failure.HANDLED)
            answers = True
        if nodes and nodes[0].before == "||":
            return self.pipeline(nodes, way, said, answers)
        return self.go(nodes, [way], said, answers)

    def pipeline(self, nodes: Nodes, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of a pipeline."""
        first = nodes[0]
        ways = self.command(first, way, said, answers)
        if len(nodes) > 1:
            all_count = is_on("o pipefail", said)
            ways = {way._replace(status=0)}
            for node in nodes:
                ways = {
                    Way(max(each.status, before.status * all_count), "", each.failure)
                    for before in ways
                    for each in self.command(node, before, said, answers)
                }
        if nodes[-1].after == "&":
            return {way._replace(status=0, failure=each.failure.later()) for each in ways}
        if first.lead == "!":
            return {each._replace(status=1 - each.status) for each in ways}
        tells = len(nodes) > 1 or (first.kind in ("", "(") and first.name not in self.functions)
        if tells and is_on(ERREXIT, said):
            return {each._replace(leaves=each.leaves or "exit" * each.status) for each in ways}
        return ways

    def command(self, node: Node, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of one command."""
        if node.kind:
            return self.compound(node, way, said, answers)
        if node is self.culprit and not (self.is_once and way.failure is not Failure.NONE):
            if is_infallible(node) and node.words:  # a `$(…)` in it fails
                return {way._replace(status=0, failure=Failure.LOST)}
            return {Way(1, "", Failure.FRESH)}
        if node.name in self.functions:
            return self.call(node.name, way, said, answers)
        return self.simple(node, way, answers)

    def compound(self, node: Node, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of a compound command."""
        if node.kind == "if":
            return self.branches(node, way, said, answers)
        if node.kind in LOOPS:
            return self.turns(node, way, said, answers)
        ways: Set[Way] = set()
        if node.kind != "function":
            for body in node.bodies:  # those of a `case` are several
                ways |= self.go(body, [way], said, answers)
        if node.kind == "(":
            return {each._replace(leaves="") for each in ways}
        return ways or {way._replace(status=0)}

    def simple(self, node: Node, way: Way, answers: bool) -> Set[Way]:
        """The ways out of a simple command that is not the culprit."""
        statuses = statuses_of(node, way.status)
        looks_after = node.name in (UTILITIES | STATE_WORDS) - INFALLIBLE
        is_behind = self.is_loose and way.failure is not Failure.NONE
        may_decide = answers and decides(node)
        if may_decide or (is_behind and looks_after):
            statuses = [0, 1]
        leaves = node.name * (node.name in ENDS | {"break", "continue"})
        found = set()
        for status in statuses:
            failure = way.failure
            if node.name not in ENDS or status != way.status:
                failure = failure.later()
            if may_decide and failure is Failure.HANDLED:  # by more than a note
                failure = Failure.LOST
            found.add(Way(status, leaves, failure))
        return found

    def call(self, name: str, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of a call of a function. One that calls itself comes back by another way, or never."""
        key = (name, way, said, answers)
        if key not in self.calls:
            self.calls[key] = set()
            ways = self.go(self.functions[name], [way], said, answers)
            self.calls[key] = {
                each._replace(leaves=each.leaves * (each.leaves == "exit")) for each in ways
            }
        return self.calls[key]

    def branches(self, node: Node, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of an `if`."""
        found = set()
        ways = {way}
        for condition, body in zip(node.conditions, node.bodies):
            asked = self.go(condition, ways, said + " +e", answers)
            ways = set()
            for each in asked:
                if each.leaves:
                    found.add(each)
                elif each.status:
                    ways.add(each)
                else:
                    found |= self.answer(body, each, said, answers)
        otherwise = list(chain.from_iterable(node.bodies[len(node.conditions) :]))
        for each in ways:
            if not otherwise:
                each = each._replace(status=0)
            found |= self.answer(otherwise, each, said, answers)
        return found

    def turns(self, node: Node, way: Way, said: str, answers: bool) -> Set[Way]:
        """The ways out of a loop, of which two turns tell enough."""
        found = set()
        ways = {way._replace(status=0)}
        for turn in range(3):
            entered = set()
            for before in ways:
                asked = {before._replace(status=int(turn == 2))}
                if node.conditions:
                    asked = self.go(node.conditions[0], [before], said + " +e", answers)
                is_end = node.kind != "until"  # the status that ends it
                goes_on = {each for each in asked if not each.leaves and each.status != is_end}
                entered |= goes_on
                for each in asked - goes_on:
                    if each.leaves:
                        found.add(each)
                    elif each.failure is Failure.FRESH is not before.failure:
                        found.add(before._replace(failure=Failure.HANDLED))
                    elif turn == 2 or not goes_on:
                        found.add(before)
            ways = set()
            for each in self.go(list(chain.from_iterable(node.bodies)), entered, said, answers):
                if each.leaves in ("", "continue"):
                    ways.add(each._replace(leaves=""))
                else:
                    found.add(each._replace(leaves=each.leaves * (each.leaves != "break")))
            if self.is_once:  # what fails in the last turn is not lost
                ways = {each for each in ways if each.failure is not Failure.NONE} or ways
        return found


def statuses_of(node: Node, left: int) -> Sequence[int]:
    """The statuses that a simple command may have where all programs pass; `left` is that of the one before."""
    if node.name in ENDS:
        word = " ".join(token.text.strip('"') for token in node.words[1:])
        if word.isdigit():
            return [min(int(word), 1)]
        return [left] if word in ("", "$?") else [0, 1]
    if node.name == "false":
        return [1]
    looks = node.name in CHECKS | {"wait"} and not is_infallible(node)
    return [0, 1] if looks else [0]


def decides(node: Node) -> bool:
    """Whether the status of a simple command may be a verdict."""
    deciding: Iterable[Node] = [node]
    if not node.words:
        deciding = chain.from_iterable(substituted(" ".join(words_of(node))))
    minor = UTILITIES | STATE_WORDS | CHECKS | ENDS
    return any(each.name not in minor and not is_infallible(each) for each in deciding)


def is_infallible(node: Node) -> bool:
    """Whether a simple command always passes."""
    if node.name == "((":
        return re.search(CHANGES_IN_SUM, node.text) is not None
    if node.name in ("break", "continue"):
        return True
    if node.name == "wait":
        return len(node.words) < 2
    return not node.words or node.name in INFALLIBLE


def begins(node: Node, pattern: str) -> bool:
    """Whether a command, behind `timeout 10m` and the like, begins so."""
    return re.match(f"{PREFIXES}(?:{pattern})", head_of(node)) is not None


def is_suspect(node: Node) -> bool:
    """Whether a simple command may fail as a test does, or as something that a handler looks at."""
    if node.kind or node.name in ENDS:
        return False
    if not node.words or node.name in ASSIGNING:
        values = list(substituted(" ".join(words_of(node))))
        is_looked_at = node.after == "||" and not node.words
        inner = chain.from_iterable(values)
        return any(is_looked_at or begins(each, RUNS_TESTS) for each in inner)
    if is_infallible(node):
        return False
    return node.name not in UTILITIES and (node.after == "||" or node.name not in HARMLESS)


def wished_in(every: Iterable[Node], functions: Mapping[str, Nodes]) -> List[Node]:
    """The commands before an explicit `|| true`, and those of the functions that they call."""
    wished: List[Node] = []
    for node in every:
        if node.before == "||" and node.name in WISHES:
            while node.left and node.before != ";":
                node = node.left
                wished += walk([node])
    for node in wished:  # it grows
        wished += (each for each in walk(functions.get(node.name, ())) if each not in wished)
    return wished


def words_of(node: Node) -> List[str]:
    """The words of a simple command with its assignments, without redirections, as bash tells them."""
    tokens = (*node.assigned, *node.words)
    return [token.text.replace("\\\n", "").replace("$'", "'") for token in tokens]


def head_of(node: Node) -> str:
    """The words of a command, or of the head of a `for` or `case`."""
    return " ".join(token.text for token in node.words)


def nested(text: str, opener: str = r"\$\(\(") -> Iterator[str]:
    """What stands in each `$((…))` of some bash, or behind another bracket, up to the one that ends it."""
    for found in re.finditer(opener, text):
        yield text[found.end() : end_of_nest(text, found.end(), ")")]


def changed_by(node: Node) -> Set[str]:
    """The variables that a simple command or the head of a loop changes, and perhaps more; ANY if only bash knows."""
    words = words_of(node)
    text = " ".join(words)
    assigned = [word.partition("=")[0] for word in words]
    names = set(re.findall(rf"\$\{{({NAME})(?:\[[^]]*\])?:?=", text))
    for inner in nested(text):
        if re.search(CHANGES_IN_SUM, inner):
            names.update(re.findall(NAME, inner))
    if node.kind in ("for", "select"):
        names.add(words[0])
    elif node.name == "local":
        names.update(re.findall(rf" -\w*n\b.*?=[\"']?({NAME}|\$)", text))
    elif node.name in ASSIGNING or (node.name == "printf" and " -v" in text):
        names.update(re.findall(NAME, text.replace(" -v", " ")))
        names.discard(node.name)
        if node.name != "((" and any("$" in name for name in assigned):
            names.add(ANY)
    elif not (node.words or node.kind):
        names.update(re.findall(NAME, " ".join(assigned)))
    return names


def in_own_shell(nodes: Iterable[Node]) -> Iterator[Node]:
    """The commands that bash runs in its own shell, but for those in functions."""
    for node in nodes:
        if node.kind != "function" and not is_forked(node):
            yield node
            yield from in_own_shell(node.parts())


def is_mask(token: Token) -> bool:
    """Whether a word assigns a device mask."""
    return re.match(MASK, token.text) is not None


def masks_in(nodes: Nodes) -> Iterator[Token]:
    """The words of commands that assign a device mask, other than what it is."""
    for node in walk(nodes):
        for token in filter(is_mask, [*node.assigned, *node.words]):
            name, _, value = token.text.partition("=")
            if unquoted(value) not in (f"${name}", f"${{{name}}}"):
                yield token


def with_mask(test: TestLine, words: Iterable[Token]) -> TestLine:
    """A test with these words in its environment prefix; it asks for as many GPUs as the last mask among them names."""
    for token in words:
        if is_mask(token):
            test = test._replace(mask=token.text.partition("=")[2], has_mask=True)
        else:
            test = test._replace(assigned=(*test.assigned, token.text))
    return test


def is_on(option: str, said: str) -> bool:
    """Whether a shell option is on after what `set` has said; the option is a pattern of its letter or name."""
    return re.findall(rf" ([-+])\w*(?:{option})", said)[-1:] == ["-"]


def check_use(test: TestLine, nodes: Nodes) -> None:
    """Raises BadValue if a test, behind its environment prefix, would not do what it says."""
    if any(node.name == "test_fail" for node in walk(nodes)):
        raise BadValue(
            '`test_fail` is understood only at the end of a whole command: command || test_fail "label"; '
            "of a loop or an `if` that is behind its `done` or `fi`"
        )
    lead = nodes[0].lead
    if test.is_target and lead:
        raise BadValue(
            f"`{lead}` before a pytest target; write it before `python3 -m pytest {test.first}`"
        )
    if test.is_handled and is_state(nodes) and nodes[-1].name in STATE_WORDS:
        raise BadValue(
            f"`{nodes[-1].name}` cannot be a test, which would change nothing for those below; write "
            "`|| exit 1` in place of `|| test_fail`, or a test as `bash FILE`"
        )
    for token in masks_in(nodes):
        raise BadValue(
            f"{token.text} inside a line would pin the test; put it first on the line, or write "
            "`#: gpus=N`"
        )


def judged(
    parsed: ListFile, test: TestLine, nodes: Nodes, functions: Mapping[str, Nodes]
) -> TestLine:
    """A test with the program whose failure it loses. Raises BadValue if it hides a failure."""
    names = [node.name for node in walk(nodes)]
    if len(names) == 1 and names[0] not in functions:
        return test
    key = test.said, test.body
    if len(names) == 1:  # what it is called with makes no difference
        key = test.said, names[0]
    if key not in parsed.lost:
        rehearsal = Rehearsal(nodes, test.said, functions)
        hidden = rehearsal.hidden()
        if hidden:
            raise BadValue(hides(hidden, nodes, functions))
        parsed.lost[key] = rehearsal.lost()
    return test._replace(unheard=parsed.lost[key])


def hides(hidden: Node, nodes: Nodes, functions: Container[str]) -> str:
    """What to say of a line that hides the failure of a command."""
    every = list(walk(nodes))
    for node in every:
        if node.name in functions:
            return (
                f"this line passes even if its command fails, as the function `{node.name}` does; let that return the "
                "status, or write `|| true` behind it if that is meant"
            )
    asks = any(node.conditions for node in every)
    for node in every:
        if node.left is hidden and node.before in PIPES and not asks:
            return (
                f"the status of `| {node.name}` hides that of the test; leave it out, the log is kept anyway, or write "
                "`set -o pipefail` above"
            )
    advice = ""
    if asks and is_state(nodes[-1].parts()):
        advice = '; to set what tests below see, write `A=$(command) || true`, and `if [ "$A" ]` on the next line'
    return (
        'this line passes even if its command fails; write `command || test_fail "label"`, or `|| true` if that is '
        f"meant{advice}"
    )


def junit_word(words: Sequence[str]) -> str:
    """The word that names a command's own JUnit file, if it names one (the last wins, as for pytest)."""
    # In "--junitxml=$DIR/x.xml" the quote moves to the value.
    named = re.findall(r"(?:^|\0)([\"']?)--junit-?xml[=\0]([^\0]*)", "\0".join(words))
    return "".join(chain(*named[-1:]))


class TestLine(NamedTuple):
    """A test as it is written. Label, prefix, JUnit file, first word and mask are words that bash has yet to expand."""

    file: str
    line: int
    body: str  # bash: the command behind its environment prefix, without handler
    first: str  # the first word of the body
    key: str
    attributes: Attributes
    assigned: Words = ()  # the environment prefix, without masks
    prefix: str = ""  # the same, one a line, where it has no label of its own
    mask: str = ""  # the value of a leading CUDA_VISIBLE_DEVICES=…
    has_mask: bool = False
    label: str = ""  # the word after `test_fail`, or run_test's fourth
    junit: str = ""  # the word after `--junitxml=`, or run_test's second
    is_handled: bool = False  # it says `|| test_fail`, or is a call of run_test
    is_target: bool = False  # pytest runs it
    # The runner says the name to pytest, and one without a folder is in the log dir, as run_test has it.
    in_log_dir: bool = False
    said: str = ""  # what `set` says above it
    unheard: str = ""  # a program of it whose failure no status shows
    is_change: bool = False  # its last command changes the test's shell
    barrier: int = 0  # how many `wait` stand above it
    shell: Snapshot = Snapshot("", None)  # from which it starts
    preface: bytes = b""  # what the shell state above it has printed

    def to_expand(self) -> List[str]:
        """The bash words whose values are needed."""
        return [self.label, self.prefix, self.junit, self.first, self.mask]

    def expanded(self, shell: Snapshot, preface: bytes, values: Iterable[str]) -> TestLine:
        """The same with the values of these words."""
        label, prefix, junit, first, mask = values
        return self._replace(
            label=clean_label(label.strip() or self.body),  # `test_fail ""` says none
            prefix=prefix,
            junit=junit,
            first=first,
            mask=mask,
            shell=shell,
            preface=preface,
        )


def with_words(test: TestLine) -> TestLine:
    """A test with the bash words of its label, prefix, JUnit file and first word, where it does not have them yet."""
    label = test.label
    prefix = ""
    if test.attributes.label is not None:
        label = expandable(test.attributes.label, is_command=False)
    elif not label:
        prefix = expandable("\n".join(test.assigned), is_command=True)
        label = expandable(
            re.sub(r"(?<![ \t])[ \t]*\\\n[ \t]*", " ", test.body), is_command=True
        )
    if re.search(r"\$\(|`", test.first):
        test = test._replace(first="")
    return test._replace(label=label, prefix=prefix)


def expandable(text: str, is_command: bool) -> str:
    """Plain text as a bash word in which only `$NAME` and `${NAME}` expand.

    A variable that is not set stays as written, so that a label keeps the `$i` of an inner script; in a
    command so does all that bash would not expand: what is escaped, or in single quotes.
    """
    if "$" not in text:
        return shlex.quote(text)
    pieces = []
    quote = ""
    for found in re.finditer(r"(?as)\$(\{)?([A-Za-z_]\w*)(?(1)\})|\\.|.", text):
        piece = found.group()
        if piece == quote:
            quote = ""
        elif is_command and not quote and piece in ("'", '"'):
            quote = piece
        if found.group(2) and quote != "'":
            pieces.append("${%s-\\%s}" % (found.group(2), piece.replace("}", "\\}")))
        else:
            pieces.append(re.sub(r'(["\\$`])', r"\\\1", piece))
    return '"' + "".join(pieces) + '"'


# Attributes: `#: key=value`. Each parser takes the text and raises BadValue with what it should be.


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `5min`, `1.5h`, `1h30m`, `1d`. Raises BadValue."""
    units = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1, "sec": 1, "ms": 0.001, "": 1}
    number = r"\d{1,9}(\.\d+)?"
    written = rf"({number}d)?({number}h)?({number}m(in)?)?({number}s(ec)?)?({number}ms)?"
    what = "a duration such as 90s, 10m, 2h or 1h30m"
    parse_word(rf"\s*(?=\S)({number}|{written})\s*", what, text)
    pairs = re.findall(r"([\d.]+)([a-z]*)", text)
    return math.fsum(float(count) * units[unit] for count, unit in pairs)


def parse_word(pattern: str, what: str, text: str) -> str:
    """A value that matches a pattern, as written. Raises BadValue."""
    if not re.fullmatch(pattern, text):
        raise BadValue(f"{text!r} is not {what}")
    return text


def parse_gpus(text: str) -> float:
    """The need in `0`, `0.25`, `2`, `all` (math.inf). Raises BadValue."""
    if text == "all":
        return ALL_GPUS
    what = "0, a fraction below 1, a whole number or all"
    return float(parse_word(r"\d{1,6}|0?\.(?!0+$)\d{1,6}", what, text))


def parse_memory(text: str) -> float:
    """MiB in `512M`, `20G`, `1.5G`. Raises BadValue."""
    parse_word(r"\d{1,6}(\.\d+)?[MG]", "a size such as 20G, 1.5G or 512M", text)
    return float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]]


def parse_pattern(text: str) -> str:
    """A regular expression. Raises BadValue."""
    try:
        re.compile(text)
    except re.error as error:
        raise BadValue(f"{text!r} is no regular expression: {error}") from None
    return text


def parse_count(text: str) -> int:
    """A whole number from 0. Raises BadValue."""
    return int(parse_word(r"\d{1,6}", "a whole number", text))


def parse_names(text: str) -> Words:
    """The names in `a,b`. Raises BadValue if one is empty."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadValue(f"{text!r} is not a list of names such as a,b")
    return names


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
    "label": functools.partial(parse_word, r"(?s).*\S.*", "a label, which cannot be empty"),
    "time": parse_duration,
    "lock": parse_names,
    "after": parse_names,
    "tags": parse_names,
    "mem": parse_memory,
    "split": functools.partial(
        parse_word, r"auto|[1-9]\d{0,2}", "auto or a whole number from 1 to 999"
    ),
    "after-crash": functools.partial(parse_word, "go-on", "go-on"),
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
        key, equals, value = pair.partition("=")
        name = key.replace("-", "_")
        if key not in ATTRIBUTES:
            complain(f"unknown key {key!r} in `#:`; known are {', '.join(ATTRIBUTES)}")
        elif name in values or not equals:
            complain(f"{key} needs one value; write {key}=VALUE once")
        else:
            values[name] = getattr(base, name)
            try:
                values[name] = ATTRIBUTES[key](value)
            except BadValue as error:
                complain(f"{key}: {error}")
    said = base._replace(**values)
    if said.mem and said.gpus is not None and not 0 < said.gpus <= 1:
        complain(
            "mem= is a part of one GPU, and gpus= asks for another number; take one of them out"
        )
        return base
    return said


# Lists: text to tests and shell state.


class ListFile:
    """One list: its tests and its shell state, and the mistakes found in it."""

    said = ""  # by `set`, so far

    def __init__(self, name: str, text: str, waits: int) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.waits = waits  # number of `wait` lines so far, those of the lists before included
        self.tests: List[TestLine] = []
        self.states: List[int] = []  # the first line of each piece of shell state
        # What bash is to read for the list: its shell state with a check behind each piece, at the same lines.
        self.script = [""] * (len(self.lines) + 1)
        self.functions: Dict[str, Effects] = {}  # that it defines
        self.bodies: Dict[str, Nodes] = {}  # of these
        self.sources = False  # it reads other files, which may define some
        # By what `set` has said and a line, the program whose failure that loses.
        self.lost: Dict[Tuple[str, str], str] = {}
        # By variable, the line of the test that has set it; 0: state has.
        self.setters: Dict[str, int] = {}
        self.mistakes: List[Tuple[int, str]] = []

    def complain(self, line: int, what: str) -> None:
        """Note a mistake, reported later as `file:line: what`."""
        self.mistakes.append((line, re.sub(CONTROL, " ", what)))


# Says for each whole command of standard input its first and last line, from 0, and what is wrong with it. A command
# is whole if bash can read it both in { ( ) } and in ( { } ): text like `a; } || { b` ends one of these early, but not
# the other. A backslash at its end joins the bracket to it, which `done \` is whole with, and a word is not. $1 is the
# most lines of one.
SPLITTER = r"""
shopt -s extglob
newline=$'\n'
fits() { eval "return 0; $1"; }      # bash reads all of it, and ends before it would run what it has read
both() {
  fits "{ ( :$newline$1)$newline}" && fits "( { :$newline$1}$newline)" &&
    { [[ $1 != *\\$newline ]] || fits "{ ( :$newline${1}x)$newline}"; }
}
is_whole() {     # bash 5.2 ends where it cannot read a substitution, and dies of what is nested too deep
  if [[ ${#1} -gt 1000 || $1 == *@([\$\<\>]\(|\[\[)* ]]; then (both "$1"); else both "$1"; fi
} 2>/dev/null
why() {
  error=$(fits "{ ( :$newline$text" 2>&1 && fits "( { :$newline$text" 2>&1) || error=${error:-bash dies of it}
  error=${error%%$newline*} error=${error#*: line +([0-9]): }
}
main() {         # read as a whole, since an eval that fails confuses the parser
  local lines i text= first=0 said= error
  mapfile -t lines
  for ((i = 0; i < ${#lines[@]} && i - first < $1; i++)); do
    text+=${lines[i]}$newline error=
    if ! is_whole "$text"; then
      ((i == first)) || continue
      why
      [[ $error != *@(EOF|unexpected end|end-of-file)* ]] || continue
    fi
    said+="$first $i $error"$newline
    text= first=$((i + 1))
    ((i % 100)) || { printf %s "$said"; said=; }
  done
  if [[ $text ]]; then
    is_whole "$text$newline" && error= || why
    said+="$first $i $error"$newline
  fi
  printf '%s%s\n' "$said" "end"
}
main "$@"
"""


def no_bash(error: OSError) -> MachineError:
    """The error for a bash that cannot be started."""
    return MachineError(
        f"bash cannot be run ({error.strerror}); put it on PATH, with room in `ulimit -n` and `-u`"
    )


def split_list(parsed: ListFile) -> Iterator[Tuple[int, int, str]]:
    """The first line of each command, from 0, the line behind it, and its text. Mistakes are added to the list.

    The bash that reads them knows nothing of ours, and runs none of it. What it has read is parsed while it goes on.
    Raises MachineError.
    """
    try:
        bash: Any = subprocess.Popen(
            ["bash", "-c", SPLITTER, PROGRAM, str(COMMAND_LINES)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    except OSError as error:
        raise no_bash(error) from None
    end = 0
    said = b""
    with bash:
        with suppress(BrokenPipeError), bash.stdin:  # it reads all before it prints anything
            bash.stdin.write(to_bytes("\n".join(parsed.lines)))
        for said in bash.stdout:
            found = re.match(rb"(\d+) (\d+) (.*)\n", said)
            if not found:  # the last line
                continue
            start = int(found.group(1))
            end = int(found.group(2)) + 1
            why = to_text(found.group(3))
            if why:
                parsed.complain(start + 1, f"{why} (in the command that begins here)")
            else:
                yield start, end, "\n".join(parsed.lines[start:end]) + "\n"
    if said != b"end\n":
        parsed.complain(end + 1, "bash dies of this command, or of one of those below")


def read_list(parsed: ListFile) -> None:
    """Add the tests, the shell state and the mistakes of a list."""
    for number, raw in enumerate(parsed.lines, 1):
        if "\0" in raw:
            parsed.complain(number, "a NUL byte; a list is text")
        elif raw.endswith("\r"):
            parsed.complain(number, WINDOWS)
        if parsed.mistakes:
            return
    defaults = Attributes()
    for start, end, text in split_list(parsed):
        line = start + 1
        try:
            reader = Reader(text)
            if reader.nodes:
                line += text.count("\n", 0, reader.nodes[0].start)
            attributes = read_attributes(parsed, reader, line, defaults)
            if not reader.nodes:
                defaults = attributes
                continue
            is_test = not add_setting(parsed, reader.nodes, line, end)
            if is_test:
                add_test(parsed, reader, line, attributes)
            elif attributes is not defaults:
                raise BadValue("`#:` on a line that is no test; put it on a line of its own")
            follow_variables(parsed, reader.nodes, line * is_test)
        except BadValue as mistake:
            parsed.complain(line, str(mistake))
        except RecursionError:
            parsed.complain(line, "commands nested deeper than can be read")


def follow_variables(parsed: ListFile, nodes: Nodes, setter: int) -> None:
    """Note which variables a test has set (`setter` is its line), or state (0).

    Raises BadValue for a command that needs one which a test has set: that is gone with the test's shell.
    """
    reached = [effects_of([node for node in nodes if node.kind != "function"])]
    called: Set[str] = set()
    for effects in reached:  # it grows
        new = effects.calls & parsed.functions.keys() - called
        called |= new
        reached += map(parsed.functions.__getitem__, new)
    own = set().union(*(effects.sets for effects in reached))
    needed = set().union(*(effects.asks for effects in reached))
    needed.difference_update(*(effects.gives for effects in reached))
    if ANY in own:  # which may set what is gone
        needed.clear()
        if not setter:
            parsed.setters.clear()
    for name in sorted(needed):
        if parsed.setters.get(name):
            raise BadValue(
                f"`{name}` is set in line {parsed.setters[name]}, which is a test, and is gone with its shell; set it "
                "in a line that neither runs a program nor calls a function, put both into one `{ …; }`, or run the "
                "file as a script (`#!` in its first line), which keeps it"
            )
    parsed.setters.update(dict.fromkeys(own, setter))


class Effects(NamedTuple):
    """What some commands, or the body of a function, have to do with variables and functions: all are names."""

    sets: Set[str]  # for those behind them; ANY: only bash knows
    asks: Set[str]
    # To any command or function in them: also those of `local`, loops, subshells, `A=1 b`.
    gives: Set[str]
    calls: Set[str]  # also in subshells
    changes: bool  # they only change the shell


def effects_of(nodes: Nodes) -> Effects:
    """The effects of commands, but for the functions that they call."""
    # Without comments, and without what bash does not expand.
    dead = r"""(?s)\\.|'[^']*'|("(?:[^"\\]|\\.)*")|(?<!\S)#[^\n]*"""
    whole = "\n".join(node.text for node in nodes)
    text = re.sub(dead, r"\1", whole)
    asks = set(re.findall(rf"(?<!\\)\$\{{?[#!]?({NAME})", text))
    for inner in nested(text, r"\(\("):
        asks.update(re.findall(NAME, inner))
    every = list(walk(nodes))
    for node in every:
        if node.name in CHECKS:
            asks.update(chain(*re.findall(ASKED, node.text)))
    bare = re.sub(dead, "", whole)
    gives = set(re.findall(rf"(?<![^\s;&|(])({NAME})=", bare)).union(*variables_in(every))
    names = {node.name for node in every}
    changes = ENDS.isdisjoint(names) and is_state(nodes)
    return Effects(variables_set(in_own_shell(nodes)), asks, gives, names, changes)


def variables_set(nodes: Iterable[Node]) -> Set[str]:
    """The variables that commands set for those behind them; ANY if only bash knows."""
    own, local = variables_in(nodes)
    return own - local


def variables_in(nodes: Iterable[Node]) -> Tuple[Set[str], Set[str]]:
    """The variables that commands set (ANY if only bash knows), and those of `local` and of loops without `break`."""
    own = set()
    local = set()
    for node in nodes:
        changed = changed_by(node)
        words = [word.partition("=")[0] for word in words_of(node) if word[:1] != "-"]
        is_local = node.name == "local"
        if node.kind == "for":
            words = words[:1]
            is_local = all(each.name != "break" for each in walk([node]))
        names = set(re.findall(NAME, " ".join(words)))
        if is_local:
            local |= names
        elif node.name in ("source", ".", "eval") or ANY in changed:
            own.add(ANY)
        elif node.name != "((" or re.search(CHANGES_IN_SUM, node.text):
            own |= changed & names
    return own, local


def read_attributes(
    parsed: ListFile, reader: Reader, line: int, defaults: Attributes
) -> Attributes:
    """What `#:` comments behind a command say of it, or one on a line of its own of the tests below."""
    attributes = defaults
    complain = functools.partial(parsed.complain, line)
    odd = r"#\s+:" + r"|#.*\s#:" * bool(reader.nodes)
    for comment in reader.comments:
        if not comment.text.startswith("#:"):
            if re.match(rf"({odd})\s*({'|'.join(ATTRIBUTES)})=", comment.text):
                complain(f"`{comment.text}` is a comment; write `#:` first, without a space")
            continue
        if not reader.nodes:
            defaults = Attributes()
        elif comment.start < reader.nodes[-1].end:
            complain("`#:` inside a command; put it behind the command's end")
        attributes = parse_attributes(comment.text[2:], defaults, complain)
    return attributes


def add_setting(parsed: ListFile, nodes: Nodes, line: int, end: int) -> bool:
    """Add a command that is a barrier or shell state; returns whether it is one. Raises BadValue."""
    is_wait = nodes[0].text == "wait" and len(nodes) == 1
    if not is_wait and not is_state(nodes):
        return False
    parsed.waits += is_wait  # it is state too: `set -x` shows it
    parsed.states.append(line)
    for number in range(line - 1, end):
        parsed.script[number] += parsed.lines[number]
    parsed.script[end] += f'{{ _rt_check "$?" {line}; }} 2>/dev/null; '
    for node in nodes:
        parsed.said = said_with(node, parsed.said)
    for token in masks_in(nodes):
        raise BadValue(
            f"{token.text} would put all tests below on the same GPUs; set it outside the list, "
            "or ask for GPUs with `#: gpus=N`"
        )
    bodies = bodies_in(nodes)
    parsed.functions.update((name, effects_of(body)) for name, body in bodies.items())
    parsed.functions.pop("test_fail", None)  # that is the runner's
    if bodies:
        parsed.bodies.update(bodies)
        parsed.lost.clear()
    parsed.sources |= any(node.name in ("source", ".") for node in walk(nodes))
    return True


def inner_command(node: Node) -> Node:
    """The one command in `{ …; }` or `( … )`; else the command itself."""
    while node.kind in ("{", "(") and len(node.bodies[0]) == 1:
        node = node.bodies[0][0]
    return node


def add_test(parsed: ListFile, reader: Reader, line: int, attributes: Attributes) -> None:
    """Turn a command into a TestLine. Raises BadValue if it would not do what it says."""
    nodes = list(reader.nodes)
    label = ""
    last = nodes[-1]
    if last.after == "&":
        raise BadValue(
            "a test in the background (`&`) has no verdict; leave the `&` out, tests run in parallel anyway"
        )
    is_handled = last.name == "test_fail" and last.before == "||"
    if is_handled:
        for token in nodes.pop().words[1:2]:  # `test_fail >&2` has no label
            label = token.text
    first = nodes[0]
    end = nodes[-1].end
    prefix = []
    if first.words and reader.tokens[: len(first.assigned)] == first.assigned:
        prefix, first.assigned = first.assigned, []
    start = [first.start, *(token.end for token in prefix)][-1]
    documents = ["\n" + each.text[:-1] for each in reader.documents if each.start > end]
    word = "".join(token.text for token in first.words[:1]) * (not first.kind)
    own = [token.text for token in reader.tokens if token.end <= end]
    test = TestLine(
        parsed.name,
        line,
        reader.text[start:end].strip(" \t") + "".join(documents),
        word,
        key_of([*own, *documents]),
        attributes,
        label=label,
        junit=junit_word([token.text for token in inner_command(first).words]),
        is_handled=is_handled,
        is_target=re.search(r"\.py(::|$)", first.name) is not None,
        said=parsed.said,
        is_change=is_change(nodes[-1], parsed.functions),
        barrier=parsed.waits,
    )
    test = with_mask(test, prefix)
    if first.name == "run_test" and "run_test" not in parsed.functions:
        test = read_run_test(test, nodes)
    else:
        check_use(test, nodes)
        if not parsed.sources:  # else bash is to tell which functions there are
            test = judged(parsed, test, nodes, parsed.bodies)
    parsed.tests.append(with_words(test))


def is_change(node: Node, functions: Mapping[str, Effects]) -> bool:
    """Whether a command changes the shell that runs it, other than back: `cd ..`, `unset A`."""
    if node.kind or node.before == "||" or node.name in ("cd", "popd", "unset", ":"):
        return False
    if node.name in functions:
        return functions[node.name].changes
    moves = node.name == "shift" or (node.name == "exec" and len(node.words) == 1)
    sets = node.name in ASSIGNING | PRINTS and variables_set([node]) - {ANY}
    return moves or is_state([node]) or bool(sets)


def read_run_test(test: TestLine, nodes: Nodes) -> TestLine:
    """What `run_test "ENV" "xml" "target" "label"` means. Raises BadValue."""
    words = [token.text for token in nodes[0].words]
    if len(words) != 5 or len(nodes) > 1 or nodes[0].redirects:
        raise BadValue(
            'run_test takes 4 words, "ENV" "xml" "target" "label", and stands alone; the name is that of the '
            "script which this replaces, unless the list defines a function run_test"
        )
    _, environment, junit, target, label = words
    body = unquoted(target)
    parse_words(body)
    tokens = read_tokens(body)
    for token in tokens:
        if token.kind == "operator":
            raise BadValue(f"`{token.text}` in run_test's third word, {target}; quote it there")
    pairs = read_tokens(unquoted(environment))
    if not all(re.match(ASSIGNMENT, pair.text) for pair in pairs):
        raise BadValue(
            f"run_test's first word is VAR=value pairs, or empty; it is {environment}"
        )
    return with_mask(test, pairs)._replace(
        key=key_of([*test.assigned, *words[:4]]),
        body=body,
        first="".join(token.text for token in tokens[:1]),
        label=label,
        junit=junit,
        is_handled=True,
        is_target=True,
        in_log_dir=True,
    )


def gpus_named_in(text: str) -> float:
    """How many GPUs a command seems to ask for: ALL_GPUS where it does not say how many, 1 where it asks for none."""
    found = re.findall(SEVERAL_GPUS, text)
    said: List[float] = [int(each) for groups in found for each in groups if each]
    return max(said or [ALL_GPUS] * len(found), default=1)


def hints(parsed: ListFile, options: Options) -> List[str]:
    """What may be a mistake in a list, but need not be; each kind is told once."""
    found: Dict[str, str] = {}  # by kind, the first
    barriers = [*(test.barrier for test in parsed.tests), parsed.waits]
    for test, barrier in zip(parsed.tests, barriers[1:]):
        where = f"{test.file}:{test.line}"
        if test.unheard:
            found.setdefault(
                "lost",
                f"{where}: a failure of `{test.unheard}` here is lost, as only the last command counts; "
                "join commands by `&&`, or write `|| exit 1` behind it",
            )
        prepares = re.match(PREPARES, test.body)
        if prepares and barrier == test.barrier:
            found.setdefault(
                "prepares",
                f"{where}: `{prepares.group(1)}` is a test here and runs beside those below; put it into "
                "the script that calls the runner, or write `wait` below it; a whole script is to be "
                "a file that ends in .sh, or begins with #!",
            )
        if test.is_change:
            found.setdefault(
                "changes",
                f"{where}: `{test.body}` is a test here, and what it changes is gone with the test's shell; "
                "put it into a file, and write `source FILE`",
            )
        if re.search(WAITS, test.body) and not re.search("[^&]&[^&]", test.body):
            found.setdefault(
                "waits",
                f"{where}: `wait` is a test here, and a barrier only on a line of its own",
            )
        has_one = test.attributes.gpus is None and need_of(test, options) == 1
        if has_one and gpus_named_in(" ".join([*test.assigned, test.body])) > 1:
            found.setdefault(
                "asks",
                f"{where}: this looks like a test of several GPUs, and gets one; write `#: gpus=N` "
                "behind it, or `#: gpus=1` if that is right",
            )
    return list(found.values())


# Shell state: one bash runs it once, when the list is read, and tells what the tests below it start from.

# Prints bash that makes another shell like this one, except for its options. Left out are variables that bash or the
# runner sets itself and, where _rt_exports is empty, exported ones. Arguments: the positional parameters.
SNAPSHOT = r"""
_rt_variables=() _rt_known= _rt_outer=()
_rt_settings() {
  local _rt_name
  umask -p
  for _rt_name in c d f l m n s t u v; do
    builtin printf 'ulimit -S%s ' "$_rt_name"
    ulimit "-S$_rt_name"
  done
  shopt -p
}
_rt_snapshot() {
  local _rt_name _rt_text=
  compgen -v -X '_rt_*' >|"$_rt_folder/names"
  IFS= builtin read -r -d '' _rt_text <"$_rt_folder/names"
  [[ $_rt_exports && $_rt_text == "$_rt_known" ]] || _rt_choose
  declare -p "${_rt_variables[@]}"
  _rt_functions
  builtin printf 'set --'
  [[ $# == 0 ]] || builtin printf ' %q' "$@"
  builtin printf '\n'
}
_rt_choose() {         # sets _rt_variables to the variables that are kept
  local _rt_all _rt_line
  _rt_known=$_rt_text _rt_variables=()
  local IFS=' '
  local _rt_outer=" ${_rt_outer[*]} "
  mapfile -t _rt_all <"$_rt_folder/names"
  declare -p >|"$_rt_folder/variables"
  while builtin read -r _rt_line; do     # `compgen` leaves out what has no value yet, as behind `export NAME`
    case $_rt_line in
      *[=\"\']* | *' OLDPWD') ;;
      'declare -'[!-]*' '[A-Za-z_]*) _rt_all+=("${_rt_line##* }") ;;
    esac
  done <"$_rt_folder/variables"
  for _rt_name in "${_rt_all[@]}"; do
    [[ $_rt_outer != *" $_rt_name "* ]] || continue
    case $_rt_name in
      _|BASH_ARG[CV]|BASH_COMMAND|BASH_LINENO|BASH_MONOSECONDS|BASH_SOURCE|BASH_SUBSHELL|BASH_TRAPSIG) ;;
      BASH_VERSINFO|BASHOPTS|BASHPID|COMP_*) ;;
      DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID) ;;
      CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK) ;;
      PS4) _rt_variables+=(PS4) ;;     # for root, bash does not read it from the environment
      *) [[ ! $_rt_exports && ${!_rt_name@a} == x ]] || _rt_variables+=("$_rt_name") ;;
    esac
  done
}
_rt_functions() {      # sets _rt_late to all, those of the file $_rt_home at their lines
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
    else
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
  IFS= builtin read -r -d '' _rt_text <"$_rt_folder/late"
  builtin printf '_rt_late=%q\n' "$_rt_text"
}
"""

# Runs before the copy of a list in which each test is a call of _rt_test. What it tells is in a file of its own; a mark
# behind each answer, and in what the state prints, shows where that belongs. No variable has all of the mark, which
# `set` would print. PS4 begins with \1, since `set -x` shows a sourced file one level deeper.
STATE_READER = r"""
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "bash $BASH_VERSION is too old, 4.4 is needed"
  exit 3
fi
_rt_changed= _rt_last= _rt_exports= _rt_count=0
_rt_close() {    # behind what it has written to the file
  builtin printf %s%s "$_rt_mark" "$_rt_rest"
  builtin printf %s%s "$_rt_mark" "$_rt_rest" >>"$_rt_folder/answers"
}
_rt_check() {    # the status of a line of state, and its number
  if [[ $1 != 0 ]]; then
    case $_rt_last in
      '['* | '(('* | 'test '* | 'read '* | 'read' | 'false' | 'true') ;;
      'command -v '* | 'type '* | 'hash '* | 'which '*) ;;
      *)
        builtin printf 'failed\0%s\0%s' "$2" "$1" >>"$_rt_folder/answers"
        _rt_close ;;
    esac
  fi
  _rt_changed=1 _rt_last=
  disown -a      # a `wait` of the list is not for what its state has started
  [[ ${PS4-} == $'\1'* ]] || PS4=$'\1'${PS4-}
}
_rt_state() {    # the positional parameters; sets _rt_text to the whole state, options last
  local _rt_options
  {
    _rt_settings
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
_rt_test() {     # its line, its words as bash has them, the positional parameters
  local - _rt_line=$1 _rt_words=("${@:2:5}") _rt_text _rt_value _rt_path=
  [[ ! $_rt_changed ]] || set +o >|"$_rt_folder/options"
  set +aefnuvx
  shift 6
  if [[ $_rt_changed ]]; then
    _rt_state "$@"
    if [[ $_rt_text != "$_rt_base" ]]; then
      _rt_path=$_rt_folder/$((++_rt_count))
      builtin printf '%s' "$_rt_text" >|"$_rt_path"
      IFS= builtin read -r -d '' _rt_text <"$_rt_folder/late"
      builtin printf '%s' "$_rt_text" >|"$_rt_path.functions"
    fi
  fi
  {
    builtin printf 'test\0%s\0%s\0' "$_rt_line" "$PWD"
    for _rt_text in "${_rt_words[@]}"; do
      _rt_value=
      eval "_rt_value=$_rt_text"
      builtin printf '%s\0' "$_rt_value"
    done
    if [[ $_rt_changed ]]; then    # since the last test
      builtin printf '%s\0' "$_rt_path"
      _rt_environment
      _rt_changed=
    fi
  } >>"$_rt_folder/answers"
  _rt_close
}
_rt_end() {
  builtin trap - EXIT DEBUG
  builtin printf end >>"$_rt_folder/answers"
}
_rt_begin() {
  local -
  set +o >|"$_rt_folder/options"
  set +aefnuvx     # SHELLOPTS may have brought them
  _rt_state
  _rt_base=$_rt_text
}
PS4=$'\1'$PS4
_rt_begin
_rt_trap='{ [[ $BASH_COMMAND == _rt_* ]] || _rt_last=$BASH_COMMAND; } 2>/dev/null'
"""
# What `set -v` shows of the runner's own text in the copy of a list.
OWN_TEXT = rb'(?m)^(?:\{ _rt_check "\$\?" \d+; \} 2>/dev/null; )?(?:\{ _rt_(?:test|end) .*\n)?'


class Scratch:
    """A private folder for what bash is to read, made when it is needed. Methods raise OSError."""

    folder = ""

    def path(self) -> str:
        """A new name in the folder."""
        if not self.folder:
            import tempfile

            self.folder = tempfile.mkdtemp(prefix=f"{PROGRAM}.")
        return os.path.join(self.folder, os.urandom(8).hex())

    def write(self, text: str) -> str:
        """The path of a new file with this content."""
        path = self.path()
        with open(path, "wb") as file:
            file.write(to_bytes(text))
        return path


def unshifted(data: bytes, shift: int) -> bytes:
    """What `set -x` shows, `shift` levels higher: PS4 begins with \\1 there, which bash repeats for each level."""
    return re.sub(
        rb"(\x01+)([^\x01])",
        lambda match: match.group(2) * max(len(match.group(1)) - shift, 1),
        data,
    )


def with_source(text: str) -> str:
    """Bash that reads `_rt_source`, which has the list's name, in place of BASH_SOURCE, which nobody can set."""
    return re.sub(r"(?<!\\)(\$\{?[#!]?)BASH_SOURCE\b", r"\1_rt_source", text)


def reading_script(parsed: ListFile) -> str:
    """The list's shell state, with a call of _rt_test in place of each test."""
    lines = list(parsed.script)
    for test in parsed.tests:
        words = " ".join(map(shlex.quote, test.to_expand()))
        words = words.replace("\n", "'$'\\n''")
        lines[test.line - 1] += f'{{ _rt_test {test.line} {words} "$@"; }} 2>/dev/null'
    lines[-1] += "{ _rt_end ; } 2>/dev/null"
    # In the file itself, since one that is sourced does not inherit a DEBUG trap.
    lines[0] = f'{{ trap "$_rt_trap" DEBUG; }} 2>/dev/null; {lines[0]}'
    return with_source("\n".join(lines) + "\n")


def expand(parsed: ListFile, scratch: Scratch) -> List[TestLine]:
    """The tests with the values of their words, and the shells that they start from.

    The list's shell state runs here. A line of it that fails, or that ends the shell, is a mistake. Bash is not asked
    where nothing depends on it. Raises OSError.
    """
    plain = re.compile(r"""(?:[\w@%+=:,./-]|'[^']*'|"[^"$`\\]*")*""")
    if not parsed.states and all(
        plain.fullmatch(word) for test in parsed.tests for word in test.to_expand()
    ):
        here = Snapshot(os.getcwd(), None)
        return [
            test.expanded(here, b"", map(unquoted, test.to_expand())) for test in parsed.tests
        ]
    mark = os.urandom(16).hex()
    copy = scratch.write(reading_script(parsed))
    folder = scratch.path()
    os.mkdir(folder)
    start = (
        f"_rt_home={shlex.quote(copy)} _rt_folder={shlex.quote(folder)} _rt_source={shlex.quote(parsed.name)} "
        f"_rt_mark={mark[:16]} _rt_rest={mark[16:]}\n"
    )
    source = scratch.write(start + SNAPSHOT + STATE_READER)
    status, printed = run_bash(
        f". {shlex.quote(source)}; . {shlex.quote(copy)}", parsed.name, scratch
    )
    check_room(copy)  # else what bash has written of the state is not all of it
    printed = printed.replace(copy.encode(), to_bytes(parsed.name))
    pieces = printed.split(mark.encode())
    answers = [b""]
    with suppress(FileNotFoundError), open(os.path.join(folder, "answers"), "rb") as file:
        answers = file.read().split(mark.encode())
    tests = list(read_answers(parsed, answers, pieces))
    told = {test.line for test in tests}
    lost = [test.line for test in parsed.tests if test.line not in told]
    if lost or answers[-1] != b"end":
        parsed.complain(
            [*lost, *parsed.states[-1:], 1][0],
            f"the shell state down to here, or a word of this line, ends bash with status {status}"
            f"{said_last(pieces[-1])}; run `bash -x {parsed.name}` to see where",
        )
    return tests


def run_bash(command: str, name: str, scratch: Scratch) -> Tuple[int, bytes]:
    """Run a command in a bash that is called `name`; its status and what it has printed. Raises MachineError.

    A file takes what it prints: a background job that it leaves would hold a pipe open.
    """
    with open(scratch.path(), "ab+") as printed:
        try:
            bash = subprocess.Popen(
                ["bash", "-c", command, name],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise no_bash(error) from None
        try:
            status = bash.wait()
        except BaseException:  # Ctrl-C
            with suppress(ProcessLookupError):  # it may have ended just before
                os.killpg(bash.pid, signal.SIGKILL)
            bash.wait()
            raise
        printed.seek(0)
        return status, printed.read()


def read_answers(
    parsed: ListFile, answers: Iterable[bytes], printed: Iterable[bytes]
) -> Iterator[TestLine]:
    """The tests in what the bash of a list has told, and printed before it told that. Adds mistakes to the list."""
    shell = Snapshot("", None)
    preface = b""
    tests = {b"%d" % test.line: test for test in parsed.tests}
    for answer, piece in itertools.zip_longest(answers, printed, fillvalue=b""):
        kind, *fields = answer.split(b"\0")
        preface += unshifted(re.sub(OWN_TEXT, b"", piece), 1)
        if kind == b"failed":
            parsed.complain(
                int(fields[0]),
                f"this shell state fails with status {int(fields[1])}{said_last(preface)}; mend it, "
                "or let it end in `|| true`",
            )
        elif kind == b"test" and len(fields) > 7:  # else a word of it has ended bash
            test = tests[fields[0]]
            directory, *values = map(to_text, fields[1:7])
            if len(fields) > 8:  # the state has changed
                exports = dict(field.partition(b"=")[::2] for field in fields[8:-1])
                exports.update(unkept(has_functions=fields[7] == b""))  # a prelude has them all
                shell = Snapshot("", exports, to_text(fields[7]))
            if any(len(field) >= ENVIRONMENT_BYTES for field in fields[8:]):
                parsed.complain(
                    test.line,
                    "the environment is too large for any program; export less above this line",
                )
            shell = shell._replace(directory=directory)
            if parsed.sources:
                nodes = Reader(test.body).nodes
                try:
                    test = judged(parsed, test, nodes, functions_in(shell.prelude))
                except BadValue as mistake:
                    parsed.complain(test.line, str(mistake))
            yield test.expanded(shell, preface, values)
            preface = b""


@functools.lru_cache(maxsize=1)
def functions_in(prelude: str) -> Dict[str, Nodes]:
    """The bodies of the functions of a snapshot, by name. Raises OSError."""
    if not prelude:
        return {}
    with open(f"{prelude}.functions", "rb") as file:
        return bodies_in(Reader(to_text(file.read())).nodes)


def bodies_in(nodes: Nodes) -> Dict[str, Nodes]:
    """The bodies of the functions that these commands define, by name."""
    functions = [node for node in walk(nodes) if node.kind == "function"]
    return {node.words[0].text: node.parts() for node in functions}


def said_last(printed: bytes) -> str:
    """The last line that a command has printed, in parentheses; empty if it has printed nothing."""
    line = last_line(to_text(printed))
    return line and f" ({line})"


def unkept(has_functions: bool) -> Dict[bytes, bytes]:
    """What bash passes on as it came, as it is no variable to bash: odd names, functions if wanted; and SHLVL."""
    left_out = rb"(?as)(?!SHLVL$)[A-Za-z_]\w*"
    if not has_functions:
        left_out += rb"|.*%%"
    return {
        name: value for name, value in os.environb.items() if not re.fullmatch(left_out, name)
    }


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
    if not test.junit:
        stem = "pytest_" * test.is_target + slug(label)
    else:
        stem = os.path.splitext(os.path.basename(test.junit))[0]
        if not 0 < len(to_bytes(stem)) <= STEM_BYTES or re.search(CONTROL, stem):
            stem = slug(stem)
    return re.sub(r"\.(?=attempt\d+$)", "_", stem)  # `a.attempt1` is the first attempt of `a`


class Unique:
    """Makes each name in turn unique by a numbered suffix; names with equal `same(name)` are equal."""

    def __init__(self, pattern: str, same: Callable[[str], str]) -> None:
        self.pattern = pattern
        self.same = same
        self.counts: Dict[str, int] = {}

    def reserve(self, names: Iterable[str]) -> None:
        """Names that are somebody else's."""
        for name in names:
            self.counts.setdefault(self.same(name), 1)

    def __call__(self, name: str) -> str:
        chosen = name
        known_as = self.same(name)
        while self.same(chosen) in self.counts:
            self.counts[known_as] += 1
            chosen = self.pattern.format(name, self.counts[known_as])
        self.counts[self.same(chosen)] = 1
        return chosen


def stems_written(text: str, log_dir: str) -> Iterator[str]:
    """Names that no test's log may have, since bash writes such a log in the log dir."""
    writes = r"(?:>|\btee\s(?:\s*-\S+\s)*)\s*['\"]?([^\s'\"`<>|;&()]+)\.log\b"
    for path in re.findall(writes, text):
        folder, name = os.path.split(path)
        is_own = os.path.abspath(folder) == os.path.abspath(log_dir)
        if is_own or "$" in folder:
            yield name


def stems_beside(text: str, log_dir: str) -> Unique:
    """Gives logs their names: none that bash writes by the tests' text, or in which the runner itself prints."""
    stems = Unique("{}_{}", str.casefold)  # some file systems do not tell `A.log` from `a.log`
    stems.reserve(stems_written(text, log_dir))
    for descriptor in (1, 2):
        with suppress(OSError):
            folder, name = os.path.split(os.readlink(f"/proc/self/fd/{descriptor}"))
            if os.path.samefile(folder, log_dir):
                stems.reserve([os.path.splitext(name)[0]])
    return stems


def labels_of(tests: Sequence[TestLine]) -> List[str]:
    """The labels, unique. Tests that differ in nothing but their environment prefix get what differs."""
    shared: Dict[str, Set[str]] = {}  # of the tests with a label, the assignments that all have
    for test in tests:
        assigned = test.prefix.split("\n")
        shared.setdefault(test.label, set(assigned)).intersection_update(assigned)
    unique = Unique("{} #{}", str)
    labels = []
    for test in tests:
        label = test.label
        own = " ".join(each for each in test.prefix.split("\n") if each not in shared[label])
        if own:
            label = clean_label(f"{label} ({own})")
        labels.append(unique(label))
    return labels


def clean_label(label: str) -> str:
    """A label on one line, of a length that can be read."""
    label = re.sub(CONTROL, " ", label).strip() or "test"
    if len(label) > LINE_CHARS:
        return label[: LINE_CHARS - 1] + "\u2026"
    return label


def with_folder(test: TestLine, functions: Container[str]) -> TestLine:
    """A test for pytest, where its first word is a folder and no command or function; else the same."""
    first = test.first
    path = os.path.join(test.shell.directory, first)
    is_there = first and os.path.isdir(path)
    if not is_there or first in NOT_FOLDERS or first in functions:
        return test
    if "/" not in first and find_program(first):
        return test
    return test._replace(is_target=True)


def make_test(line: TestLine, index: int, label: str, stem: str, options: Options) -> Test:
    """The test of a line of a list or script."""
    if line.is_target and not line.junit:
        line = line._replace(junit=f"{stem}.xml", in_log_dir=True)
    junit = None
    if line.junit:
        folder = line.shell.directory
        if line.in_log_dir and "/" not in line.junit:
            folder = options.log_dir
        junit = os.path.abspath(os.path.join(folder, line.junit))
    words = list(line.assigned)
    if line.is_target:
        words += [shlex.quote(options.python), "-u", "-m", "pytest", "--tb=auto"]
        if line.in_log_dir:
            words.append(f"--junitxml={shlex.quote(str(junit))}")
        words += map(shlex.quote, options.pytest_args)
    # A device, such as /dev/null, is never replaced and tells nothing.
    if junit and os.path.exists(junit) and not os.path.isfile(junit):
        junit = None
    timeout = options.timeout
    if line.attributes.timeout is not None:
        timeout = line.attributes.timeout
    return Test(
        index,
        line.key,
        label,
        stem,
        line.file,
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
    if not line.has_mask:
        return options.gpus_per_test
    entries = map(str.strip, line.mask.split(","))
    shown = itertools.takewhile(lambda entry: entry not in ("", "-1"), entries)
    return len(list(shown))


def find_program(name: str, environment: Any = None) -> str | None:
    """The path of a program; None if it is not on PATH, or not there."""
    return shutil.which(name, path=os.pathsep.join(os.get_exec_path(environment)))


def check_files(parsed: ListFile, options: Options) -> None:
    """Tell before anything starts which test files are not there, and which interpreters for them are not."""
    for test in parsed.tests:
        if not test.is_target:
            continue
        directory = test.shell.directory
        python = options.python
        path = test.first.partition("::")[0]
        if "/" in python:
            python = os.path.join(directory, python)
        if not os.path.exists(os.path.join(directory, path)):
            parsed.complain(
                test.line,
                f"{path} is not there, in {directory}; mend the path (instead of a pattern, name the folder), or "
                "the shell state above it",
            )
        elif not find_program(python, test.shell.environment):
            parsed.complain(
                test.line, f"--python {options.python} is no program here; name one that is"
            )


def check_ties(owners: Mapping[Test, ListFile]) -> None:
    """No two tests write one JUnit file, and none waits for itself, or for a test below a `wait`."""
    leaders = leaders_of(list(owners))
    writers: Dict[Any, Test] = {}
    for test, parsed in owners.items():
        writer = writers.setdefault(test.junit or test.index, test)
        after = "after=" + ",".join(leader.label for leader in leaders[test])
        if writer is not test:
            parsed.complain(
                test.line,
                f"writes the same JUnit file as {writer.where}, {test.junit}; give each test its own",
            )
        if any(leader.barrier > test.barrier for leader in leaders[test]):
            parsed.complain(
                test.line,
                f"{after} waits for a test below a `wait`, which waits for this one; move one of them across "
                "the `wait`",
            )
        if test in reach(leaders[test], leaders):
            parsed.complain(test.line, f"{after} goes in a circle; take one of them out")


def finish_tests(lists: Sequence[ListFile], options: Options, scratch: Scratch) -> List[Test]:
    """The tests of all lists, each as often as `--repeat` says. Mistakes are added to the lists."""
    owners = []
    lines = []
    for parsed in lists:
        parsed.tests = [with_folder(test, parsed.functions) for test in expand(parsed, scratch)]
        owners += [parsed] * len(parsed.tests)
        lines += parsed.tests
        if not options.list:
            check_files(parsed, options)
    labels = labels_of(lines)
    named: Dict[Any, str] = {}  # labels, by what `after` may call them
    if any(line.attributes.after for line in lines):
        for parsed, line, label in zip(owners, lines, labels):
            named[label] = label
            named.setdefault((parsed, line.label), label)
    copies = []
    for parsed, line, label in zip(owners, lines, labels):
        line = for_runs(line, parsed, named, options.repeat)
        copies += [(line, label, run) for run in runs_of(label, options.repeat)]
    text = "\n".join(chain.from_iterable(parsed.lines for parsed in lists))
    stems = stems_beside(text, options.log_dir)
    tests = []
    # The logs that the lists name come first: none of the runner's own takes their place.
    for index, (line, origin, label) in sorted(
        enumerate(copies), key=lambda pair: not pair[1][0].junit
    ):
        test = make_test(line, index, label, stems(stem_of(line, label)), options)
        if origin != label:
            test = test._replace(origin=origin)
        tests.append(test)
    tests.sort()
    check_ties(dict(zip(tests[:: options.repeat], owners)))
    return tests


def runs_of(label: str, repeat: int) -> List[str]:
    """The labels of a test's runs."""
    return [label, *(f"{label} (run {run})" for run in range(2, repeat + 1))]


def for_runs(
    line: TestLine, parsed: ListFile, named: Mapping[Any, str], repeat: int
) -> TestLine:
    """A test that waits for all runs of those in its `after`. Its own runs take turns if they write one JUnit file."""
    if repeat == 1 and not line.attributes.after:
        return line  # as most are: no copy
    after = []
    lock = line.attributes.lock
    for name in line.attributes.after:
        label = named.get((parsed, name)) or named.get(name)
        if label:
            after += runs_of(label, repeat)
        else:
            parsed.complain(line.line, f"after={name} names no test; write the label of one")
    if line.junit and repeat > 1:
        lock += (line.junit,)
    attributes = line.attributes._replace(after=tuple(after), lock=lock)
    return line._replace(attributes=attributes)


def list_text(name: str) -> str:
    """The text of a list; bytes that are not UTF-8 survive as surrogates. Raises ListError."""
    if os.path.isdir(name) or re.search(r"\.py(::|$)", name):
        raise ListError(
            f"{name}: a directory or a Python file is no list; put it on a line of one, or run "
            f"`echo {shlex.quote(name)} | {PROGRAM} -`"
        )
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            data = file.read()
    except OSError as error:
        raise ListError(
            f"{name}: cannot read this list ({error.strerror}); check its path; a command is a line of a list"
        ) from None
    if name == "-" and data.startswith(b"#!"):
        raise ListError(
            "-:1: a script cannot come from standard input, which is its own; name its file"
        )
    return data.decode("utf-8-sig", "surrogateescape")


def parse_lists(options: Options, scratch: Scratch) -> Tuple[Tests, List[str]]:
    """The tests of all lists, in order, and what may be a mistake. Raises ListError with one message per mistake."""
    lists = []
    mistakes: List[str] = []
    waits = 0
    for name in options.lists:
        try:
            parsed = ListFile(name, list_text(name), waits)
        except ListError as error:
            mistakes += error.args
            continue
        lists.append(parsed)
        read_list(parsed)
        waits = parsed.waits
    tests = []
    if not mistakes and not any(parsed.mistakes for parsed in lists):
        tests = finish_tests(lists, options, scratch)
    for parsed in lists:
        mistakes += [f"{parsed.name}:{line}: {what}" for line, what in sorted(parsed.mistakes)]
    if mistakes:
        raise ListError(*mistakes)
    return tests, [hint for parsed in lists for hint in hints(parsed, options)]


# ---------------------------------------------------------------------------------------------------
# 4. Select: what past runs say of the tests, which of them run, and in which order they start.
# ---------------------------------------------------------------------------------------------------

Graph = TypeVar("Graph")  # a node of one
Ties = Dict[Test, List[Test]]


class History:
    """What journals say: how long each test takes when it passes, and which tests of these lists still owe a pass."""

    def __init__(self, lists: Sequence[str] = (), flaky: str = "pass") -> None:
        # Outcomes after which a test owes nothing; pytest's --lf has skips and xfails among them, too.
        self.counts = {Outcome.PASSED, Outcome.SKIPPED, Outcome.KNOWN}
        if flaky == "pass":
            self.counts.add(Outcome.FLAKY)
        self.lists = frozenset(map(os.path.normpath, lists))
        # The runs of these lists from this directory, which tell more than others.
        self.here: Set[str] = set()
        # By shard (`2/4`; empty: there was none), names of the tests that its runs selected.
        self.shards: Dict[str, Set[str]] = collections.defaultdict(set)
        # Names of the tests that were in their lists, selected or not.
        self.seen: Set[str] = set()
        # By name of a test, the last run that selected it, and how often it did not pass there; with --repeat it runs
        # often.
        self.last: Dict[str, str] = {}
        self.owed: Dict[str, int] = collections.Counter()
        # By key and label, whether a test with that label, or one with a number behind it, owes a pass.
        self.owing: Dict[Tuple[str, str], bool] = {}
        # By key, and by key and label: when it passed, and how many seconds it took.
        self.passes: Dict[Any, List[Tuple[float, float]]] = collections.defaultdict(list)

    def add(self, record: Mapping[str, Any], is_own: bool) -> None:
        """Take in one record of a journal; of one that is not this run's own, only durations.

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
            if outcome.is_pass():
                passed = record["time"] + 0.0, record["seconds"] + 0.0
                if not 0 <= passed[1] <= LONGEST_S:
                    raise ValueError("not a duration")
                for known_as in (key, (key, label)):
                    self.passes[known_as].append(passed)
            name = key_of([key, record.get("origin", label)])
            if self.last.get(name) == run and outcome in self.counts:
                self.owed[name] -= 1

    def add_run(self, record: Mapping[str, Any]) -> None:
        """Take in the start of a run, if it is one of these lists."""
        if self.lists.isdisjoint(map(os.path.normpath, record["lists"])):
            return
        selected = record["selected"]
        self.shards[record["shard"] or ""].update(selected)
        run = record["run"]
        is_here = record.get("directory") == os.getcwd()
        if is_here and not self.here:
            self.seen.clear()  # those of another directory with a list of this name
        if is_here:
            self.here.add(run)
        if is_here or not self.here:
            self.seen.update(selected, record["left_out"])
        for name, times in collections.Counter(selected).items():
            if is_here or self.last.get(name) not in self.here:
                self.last[name] = run
                self.owed[name] = times

    def owes(self, test: Test) -> bool:
        """Whether a test has not passed in its last run, or was in none: new ones owe too.

        Which of several tests with the same command it was then, nobody knows; it owes if any of them does.
        """
        label = re.sub(r" #\d+$", "", test.origin)
        alike = test.key, label
        if alike not in self.owing:
            names = [key_of(alike)]
            while names[-1] in self.seen:
                names.append(key_of([test.key, f"{label} #{len(names) + 1}"]))
            self.owing[alike] = any(self.owed[name] > 0 for name in names)
        is_new = test.name not in self.seen
        return is_new or self.owing[alike] or self.owed[test.name] > 0

    def duration(self, test: Test) -> float | None:
        """Seconds: the median of the last passes, else what the list says, else None."""
        passes = self.passes.get((test.key, test.label)) or self.passes.get(test.key)
        if passes is None:
            return test.attributes.time
        seconds = sorted(seconds for _, seconds in sorted(passes)[-PASSES:])
        middle = len(seconds) // 2
        return (seconds[middle] + seconds[-1 - middle]) / 2  # of an even number, the middle two


class Estimates(NamedTuple):
    """The expected seconds of each test."""

    seconds: Seconds
    unknown: FrozenSet[Test]  # their seconds are assumed
    unknown_first: bool = True  # as if they were the longest


def estimate(tests: Tests, history: History) -> Estimates:
    """The expected seconds of the tests.

    A test of which nothing is known counts as the mean of the others. (It starts first of its width, as if it
    were the longest: measured on the suites in qa/bench, that ends soonest. See qa/bench/README.md.) Where lines
    carry `time=`, they are the long ones, and a test without it counts as half of the shortest.
    """
    known = {}
    for test in tests:
        seconds = history.duration(test)
        if seconds is not None:
            known[test] = seconds
    said = [test.attributes.time for test in tests if test.attributes.time is not None]
    assumed = ASSUMED_S
    if said:
        assumed = min(said) / 2
    elif known:
        assumed = math.fsum(known.values()) / len(known)
    return Estimates(
        {**dict.fromkeys(tests, assumed), **known},
        frozenset(tests).difference(known),
        not said,
    )


class Selection(NamedTuple):
    """What of the lists runs: every test of them is in `tests` (each ends with an outcome) or in `left_out`."""

    tests: List[Test]  # to run or deferred, in list order
    deferred: Mapping[Test, str]  # to the option that did it
    left_out: Mapping[str, Tests]  # by the option that did it, in words
    estimates: Estimates
    owed: FrozenSet[Test] = frozenset()  # selected in their last run, and not passed

    @property
    def selected(self) -> List[Test]:
        """The tests that are to run, in list order."""
        return [test for test in self.tests if test not in self.deferred]

    def to_run(self, order: str, pool: Pool) -> Tests:
        """The tests that are to run, in the order `file`, `auto` or `failed-first`; one by one, sizes do not count."""
        tests = self.selected
        if order != "file" and not pool.sequential:
            tests = widest_first(tests, self.estimates, pool.size)
        if order == "failed-first":
            tests.sort(key=lambda test: test not in self.owed)
        return tests


def widest_first(tests: Tests, estimates: Estimates, gpus: int) -> List[Test]:
    """Starting order of the shortest run: widest first, then longest, but no test too late.

    The widest find an empty machine, and the last ones are short. But a test goes first as soon as it takes
    nearly as long as all that is left would take on all GPUs, if it can run beside the widest: else the run would
    end with it alone. A test counts for the tests that wait for it too (critical path).
    """
    chains = chains_of(tests, estimates.seconds)
    first = estimates.unknown if estimates.unknown_first else ()
    wide = sorted(
        tests, key=lambda test: (-chains[test][0], test not in first, -chains[test][1])
    )
    long = sorted(wide, key=lambda test: -chains[test][1])[::-1]  # the longest comes last
    left = sum(work_of(test, estimates.seconds, gpus) for test in tests)
    order: Dict[Test, None] = {}
    for widest in wide:
        while widest not in order:
            while long[-1] in order:
                long.pop()
            test = widest
            if (
                chains[long[-1]][1] * SLACK * gpus >= left
                and long[-1].gpus + widest.gpus <= gpus
            ):
                test = long[-1]
            left -= work_of(test, estimates.seconds, gpus)
            order[test] = None
    return list(order)


def work_of(test: Test, seconds: Seconds, gpus: int) -> float:
    """GPU-seconds of a test on a machine with `gpus` GPUs."""
    return seconds[test] * min(test.gpus, gpus)


def leaders_of(tests: Tests) -> Ties:
    """For each test those that its `after` names. Names of tests that are not here hold up nobody."""
    named = {test.label: test for test in tests}
    return {
        test: [named[label] for label in test.attributes.after if label in named]
        for test in tests
    }


def followers_of(tests: Tests) -> Ties:
    """For each test that others name in `after`, those others."""
    followers: Ties = {}
    for test, leaders in leaders_of(tests).items():
        for leader in leaders:
            followers.setdefault(leader, []).append(test)
    return followers


def chains_of(tests: Tests, seconds: Seconds) -> Dict[Test, Tuple[float, float]]:
    """The widest need in the chain of tests that starts with each test, and the chain's expected seconds."""
    followers = followers_of(tests)
    chains: Dict[Test, Tuple[float, float]] = {}
    stack = list(tests)
    while stack:
        test = stack[-1]
        after = followers.get(test, [])
        missing = [follower for follower in after if follower not in chains]
        stack += missing
        if not missing:
            stack.pop()
            widths, lengths = zip((0.0, 0.0), *(chains[follower] for follower in after))
            chains[test] = max(test.gpus, *widths), seconds[test] + max(lengths)
    return chains


def reach(start: Iterable[Graph], edges: Mapping[Graph, Sequence[Graph]]) -> FrozenSet[Graph]:
    """Some tests or other things, and all that their edges lead to."""
    found = set()
    stack = list(start)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += edges.get(node, [])
    return frozenset(found)


def has_word(test: Test, word: str) -> bool:
    """Whether a word, case folded, is a part of a test's label or tags."""
    names = (test.label, *test.attributes.tags)
    return any(word in name.casefold() for name in names)


def deferred_tests(tests: Tests, options: Options) -> Dict[Test, str]:
    """The tests that `--max-gpus` and `--only` put off, to the option: also those that would wait for one of them.

    A test that others wait for is not put off by `--only`, nor is one that is new to the file (`LabelFile.news`).
    """
    deferred = {}
    if options.max_gpus is not None:
        wide = [test for test in tests if options.max_gpus + 1 <= test.gpus < ALL_GPUS]
        deferred.update(dict.fromkeys(reach(wide, followers_of(tests)), "--max-gpus"))
    if options.only and "all" not in options.message:
        asked = [
            test
            for test in tests
            if test.origin in options.only.labels
            or any(has_word(test, word) for word in options.message)
        ]
        asked += options.only.news(tests)
        needed = reach(asked, leaders_of(tests))
        deferred.update((test, "--only") for test in tests if test not in needed)
    return deferred


def shard_of(tests: Tests, total: int, seconds: Seconds) -> Dict[Test, int]:
    """For each test the number of its shard, from 1: the same on every machine with the same list and history.

    The heaviest goes to the lightest shard (Graham's LPT rule); the weight is GPUs times expected seconds, and
    tests that `after` ties together stay together.
    """
    widest = int(max([1, *(test.gpus for test in tests if test.gpus < ALL_GPUS)]))
    weights = {test: seconds[test] * int(min(max(test.gpus, 1), widest)) for test in tests}
    ties = leaders_of(tests)
    for leader, followers in followers_of(tests).items():
        ties[leader] += followers
    # The weights are less than zero, so that the heaviest sorts first.
    groups = []
    placed = set()
    for test in tests:
        if test not in placed:
            group = sorted(reach([test], ties))
            groups.append((-sum(weights[test] for test in group), group))
            placed.update(group)
    shards = [(0.0, number) for number in range(1, total + 1)]
    numbers = {}
    for lightness, group in sorted(groups):
        weight, number = shards[0]
        heapq.heapreplace(shards, (weight - lightness, number))
        numbers.update(dict.fromkeys(group, number))
    return numbers


def select(tests: Tests, options: Options, history: History) -> Selection:
    """What runs, what is deferred and what is left out. A shard is cut before this machine's own past plays a part."""
    estimates = estimate(tests, history)
    left_out = {}
    chosen = list(tests)

    def keep(why: str, keeps: Callable[[Test], bool]) -> None:
        left_out[why] = [test for test in chosen if not keeps(test)]
        chosen[:] = [test for test in chosen if keeps(test)]

    if options.keep:
        by_name = options.keep
        keep("-k", lambda test: by_name((test.label, *test.attributes.tags)))
    deferred = deferred_tests(chosen, options)
    begun = options.rerun_failed and history.shards.get(str(options.shard))
    if options.shard and begun:
        keep(
            f"--shard {options.shard}",
            lambda test: test.name in begun or test.name not in history.seen,
        )
    elif options.shard:
        number, total = options.shard
        numbers = {}
        for put_off in (False, True):
            part = [test for test in chosen if (test in deferred) == put_off]
            numbers.update(shard_of(part, total, estimates.seconds))
        plan = key_of(f"{test.key} {numbers[test]}" for test in chosen)[:6]
        keep(f"--shard {options.shard} (plan {plan})", lambda test: numbers[test] == number)
    if options.rerun_failed:
        keep("--rerun-failed", lambda test: test in deferred or history.owes(test))
    return Selection(
        chosen,
        {test: deferred[test] for test in chosen if test in deferred},
        left_out,
        estimates,
        frozenset(test for test in chosen if history.owed[test.name] > 0),
    )


# ---------------------------------------------------------------------------------------------------
# 5. Devices: masks and vendor tools to a Machine; the Pool that leases its devices.
# ---------------------------------------------------------------------------------------------------


class MaskReader(NamedTuple):
    """How a vendor's runtime reads its mask variable, and the value that hides all devices from a test.

    `token` matches one valid entry; those that match different groups of it do not stand side by side. Where
    `stops`, an entry that is not valid hides itself and all after it; else only itself. `no_mask`: the values
    that are no mask at all. Sources: the CUDA programming guide on CUDA_VISIBLE_DEVICES; for HIP and ROCR,
    Device::init of ROCm's clr and the RvdFilter of its ROCR runtime; for Intel, parseAffinityMask of its
    compute runtime.
    """

    variable: str
    token: str
    hide: str
    stops: bool = True
    no_mask: Words = ()


CUDA = MaskReader(
    "CUDA_VISIBLE_DEVICES", r"(?a:\s*(?:(\d+)|(GPU-[\w-]+)|(MIG-[\w/-]+))\s*)", hide=""
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
MASKS_OF_NONE = ("", "-1", "NoDevFiles", "none", "void")  # they are meant to hide


class VendorTool(NamedTuple):
    """A tool that lists GPUs. `pattern` finds each GPU's number, or the UUID of a MIG instance of the one before."""

    command: Words
    pattern: str
    reader: MaskReader
    counts: bool = False  # its numbers have gaps that the vendor's runtime does not have


TOOLS = (
    VendorTool(
        ("nvidia-smi", "-L"), r"(?m)^GPU (\d+):|^[ \t]+MIG .*\(UUID: (MIG-[^)]+)\)", CUDA
    ),
    VendorTool(("amd-smi", "list", "--json"), r'"gpu": *(\d+)()\b', HIP),
    VendorTool(("rocm-smi", "--showid", "--json"), r'"card(\d+)"()', HIP, counts=True),
)


SOURCES = (
    "mask",
    "pynvml",
    *(tool.command[0] for tool in TOOLS),
)  # that are asked for GPUs, in this order


class Machine(NamedTuple):
    """The devices that tests may use, and how a test is told which are its own.

    `variables` are the mask variables to set, `hide` the value that hides every device, `extra` further
    variables that the tokens need to mean what they say.
    """

    devices: Tuple[Device, ...] = ()
    variables: Words = ()
    hide: str = ""
    extra: Environ = {}

    @property
    def tokens(self) -> List[str]:
        """All devices, as the mask names them."""
        return [device.token for device in self.devices]

    def mask(self, lease: Lease) -> Environ:
        """The environment that shows a test the devices of its lease and no others."""
        value = ",".join(lease.tokens) or self.hide
        return {**self.extra, **dict.fromkeys(self.variables, value)}


def machine_of(tokens: Sequence[str], *readers: MaskReader) -> Machine:
    """A Machine with these tokens in device order, masked through these readers' variables."""
    devices = tuple(map(Device, count(), tokens))
    return Machine(devices, tuple(reader.variable for reader in readers), readers[0].hide)


def read_mask(reader: MaskReader, value: str | None) -> List[str] | None:
    """The tokens that a mask leaves visible; None if it is no mask. Raises UsageError for duplicates."""
    if value is None or value in reader.no_mask:
        return None
    visible = []
    kinds: Set[int | None] = set()  # the groups that have matched
    for entry in value.split(","):
        found = re.fullmatch(reader.token, entry)
        if found and kinds <= {found.lastindex}:
            kinds.add(found.lastindex)
            visible.append(entry.strip())
        elif reader.stops:
            is_gap = entry.strip() == "" != value.strip(", ")  # 0,,1
            if entry.strip() not in MASKS_OF_NONE or (is_gap and not value.endswith(",")):
                warn(
                    f"{reader.variable}={value}: {entry.strip()!r} is no id, and hides itself and all after it"
                )
            break
    near = sorted(visible, key=device_name)
    for one, other in zip(near, near[1:]):
        if device_name(other).startswith(device_name(one)):
            raise UsageError(
                f"{reader.variable}={value} names {other} twice; name each GPU once"
            )
    return visible


def device_name(token: str) -> str:
    """A token as one name, with which the names of its tiles begin: `1.` for `01`, `1.0.` for a tile of it.

    The case of a UUID is nothing, and CUDA takes the beginning of one for the whole.
    """
    name = re.sub(r"(?<![^.])0+(?=\d)", "", token.casefold())
    if "-" in name and "/" not in name:
        return name
    return f"{name}."


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
        return machine_of(tokens, first)
    if masks[HIP] != tokens:  # HIP reads both variables and lets its own win
        raise UsageError(
            f"{CUDA.variable}={environ[CUDA.variable]} and {HIP.variable}={environ[HIP.variable]} "
            "disagree; unset the one that does not count"
        )
    return machine_of(tokens, HIP, CUDA)


class ToolError(Exception):
    """A vendor's tool is there and does not answer; why, in words."""


def call_tool(*command: str, over: threading.Event | None = None) -> str:
    """What a vendor's tool prints. Raises ToolError, also for one that hangs: that is killed, or left in the kernel.

    It is not waited for any longer once it is `over`.
    """
    give_up = time.monotonic() + PROBE_S
    try:
        tool: Any = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"cannot be run ({error.strerror})") from None
    with tool.stdout, tool.stderr:
        out = None
        try:
            while out is None:
                with suppress(subprocess.TimeoutExpired):
                    out, err = tool.communicate(timeout=TOOL_POLL_S)
                if out is None and over and over.is_set():
                    raise ToolError("was not waited for, since the run ends")
                if out is None and time.monotonic() >= give_up:
                    raise ToolError(f"did not answer in {PROBE_S:.0f} s")
        finally:  # Ctrl-C too
            if tool.poll() is None:
                os.killpg(tool.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    tool.wait(KILLED_S)
    if tool.returncode != 0:
        said = (err + out).strip().splitlines() or ["nothing"]
        raise ToolError(f"failed with status {tool.returncode} ({said[0]})")
    return str(out)


def ask_tool(*command: str, over: threading.Event | None = None) -> str:
    """What a vendor's tool prints; empty, with a warning on stderr, if it is there and fails."""
    if not find_program(command[0]):
        return ""
    try:
        return call_tool(*command, over=over)
    except ToolError as error:
        warn(f"{command[0]} {error}; going on without it")
        return ""


@contextmanager
def nvml() -> Iterator[Any]:
    """The module `pynvml`, ready; None without it or a driver."""
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old package of that name warns that it is old
            import pynvml  # type: ignore[import-not-found]
        pynvml.nvmlInit()
    except Exception:  # no package, no driver, a broken one: the next probe may know more
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


Said = TypeVar("Said")


def in_time(ask: Callable[[], Said], default: Said) -> Said:
    """What a library says. One that hangs, as its driver does, is left behind in its thread, with a warning."""
    answers = []

    def answer() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            warn(f"pynvml failed ({error}); going on without it")

    asking = threading.Thread(target=answer, daemon=True)
    asking.start()
    asking.join(PROBE_S)
    if asking.is_alive():
        warn(f"pynvml did not answer in {PROBE_S:.0f} s; going on without it")
    if answers:
        return answers[0]
    return default


def pynvml_tokens() -> List[str]:
    """Indices of the GPUs that NVML shows; the UUIDs of MIG instances where a GPU has them."""
    tokens = []
    with nvml() as pynvml:
        for index in range(pynvml.nvmlDeviceGetCount() if pynvml else 0):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            tokens += nvml_instances(pynvml, handle) or [str(index)]
    return tokens


def nvml_least(devices: Iterable[Device]) -> int:
    """MiB of the smallest of these GPUs and MIG instances; 0 where NVML does not say it."""
    sizes = []
    with nvml() as pynvml:
        for device in devices if pynvml else ():
            if device.token.isdigit():
                handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.token))
            else:
                handle = pynvml.nvmlDeviceGetHandleByUUID(device.token)
            sizes.append(pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20)
    return min(sizes, default=0)


def nvml_instances(pynvml: Any, handle: Any) -> List[str]:
    """The UUIDs of a GPU's MIG instances; empty where MIG is off or unknown."""
    uuids = []
    # Bindings from before MIG. Where it is off, the count is 0.
    with suppress(pynvml.NVMLError, AttributeError):
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError):  # not every place is taken
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                uuids.append(os.fsdecode(pynvml.nvmlDeviceGetUUID(instance)))
    return uuids


def tool_tokens(tool: VendorTool) -> List[str]:
    """What a vendor's tool lists: GPU indices, or the UUIDs of MIG instances in place of the GPU that has them."""
    tokens: List[str] = []
    for gpu, instance in re.findall(tool.pattern, ask_tool(*tool.command)):
        if instance and tokens and tokens[-1].isdigit():
            tokens.pop()
        tokens.append(gpu or instance)
    if tool.counts:
        return [str(number) for number in range(len(tokens))]
    return tokens


def probe(environ: Environ) -> Machine:
    """Ask the vendors' tools in turn. No answer is an empty Machine."""
    tokens: List[str] = in_time(pynvml_tokens, [])
    reader = CUDA
    for tool in TOOLS:
        if not tokens:
            tokens = tool_tokens(tool)
            reader = tool.reader
    if not tokens:
        return Machine()
    machine = machine_of(tokens, reader)
    if reader is CUDA and "CUDA_DEVICE_ORDER" not in environ:
        return machine._replace(extra={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    return machine


def find_machine(gpus: str | None, environ: Environ) -> Machine:
    """The devices of `--gpus`, of the outer mask or of the probe, the first that applies. Raises UsageError.

    Without an outer mask `--gpus` is believed as it stands, and told to tests in CUDA's variable, which HIP
    reads too.
    """
    outer = outer_machine(environ)
    if gpus is None:
        return outer or probe(environ)
    asked = gpus.strip(",").split(",")
    if gpus.isdigit():
        asked = list(map(str, range(int(gpus))))
    if outer is None:
        if read_mask(CUDA, ",".join(asked)) != asked:
            raise UsageError(
                f"--gpus {gpus}: CUDA cannot read these ids together; without an outer mask it has to"
            )
        return machine_of(asked, CUDA)
    shown = outer.tokens
    hidden = ",".join(token for token in asked if token not in shown)
    if gpus.isdigit():  # the first ones, whatever their ids are
        more = len(asked) - len(shown)
        hidden = f"{more} of them" * (more > 0)
        asked = shown[: len(asked)]
    if hidden:
        raise UsageError(
            f"--gpus {gpus}: the outer mask hides {hidden}; it shows {','.join(shown) or 'none'}, and is never "
            "widened: leave --gpus out to use what it shows"
        )
    return outer._replace(devices=tuple(map(Device, count(), asked)))


class Sick(NamedTuple):
    """A device that tests can no longer use, and why."""

    device: Device
    reason: str


Held = Union[int, str]  # MiB of a GPU, or what is said of one that is not well


class Health:
    """What nvidia-smi says of the GPUs' memory: before the run, while tests run, and after one that did not pass.

    It knows nothing of MIG instances. A GPU by an index of an outer mask is the one that nvidia-smi gives that number.
    """

    SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
    # The temperature of a GPU that is well: a number, or why there is none. A broken one `[GPU requires reset]`.
    WELL = r"\d+|\[(?:N/A|Not Supported|Insufficient Permissions)\]"
    BROKEN = r"\[GPU (?:requires reset|is lost)\]"
    least = 0  # MiB of the smallest GPU; 0: not known of each

    def __init__(self, machine: Machine) -> None:
        self.over = threading.Event()  # nobody needs an answer any more
        self.sick: List[Sick] = []  # from the start
        # MiB in use on each GPU that is watched when no test runs there.
        self.used: Dict[Device, int] = {}
        self.total: Dict[str, int] = {}  # MiB, by index and by UUID
        # By GPU, the process that has it alone now, or was the last to have it alone.
        self.alone: Dict[Device, Process] = {}
        if CUDA.variable not in machine.variables or not machine.devices:
            return
        known = self.ask(tool=ask_tool)
        for device in machine.devices:
            used = known.get(device.token, "")
            if isinstance(used, int):
                self.used[device] = used
            elif re.search(self.BROKEN, used):
                self.sick.append(Sick(device, f"nvidia-smi {used}"))
        self.least = min(self.total.get(device.token, 0) for device in machine.devices)

    def ask(self, *which: str, tool: Callable[..., str] = call_tool) -> Dict[str, Held]:
        """By index and by UUID, what GPUs hold. Raises ToolError."""
        known = {}
        query = "--query-gpu=index,uuid,memory.used,temperature.gpu,memory.total"
        for line in tool(*self.SMI, query, *which, over=self.over).splitlines():
            index, uuid, used, temperature, total, *_ = line.split(", ") + [""] * 4
            if total.isdecimal():
                self.total[index] = self.total[uuid] = int(total)
            held: Held = f"says {line}"
            if used.isdecimal() and re.fullmatch(self.WELL, temperature):
                held = int(used)
            known[index] = known[uuid] = held
        return known

    def read(self, devices: Sequence[Device]) -> Dict[Device, Held]:
        """The same for these GPUs. Where nvidia-smi fails because of one GPU, each is asked about by itself."""
        known = {}
        with suppress(ToolError):
            known = self.ask()
        for device in devices:
            if device.token not in known:
                try:
                    known.update(self.ask("-i", device.token))
                except ToolError as error:
                    known[device.token] = str(error)
        return {device: known.get(device.token, "says nothing") for device in devices}

    def watch(self) -> None:
        """Until it is over, or nvidia-smi fails, note what tests hold of their GPUs beyond what was there before."""
        with suppress(ToolError):
            while self.used and not self.over.wait(MEASURE_S):
                alone, known = dict(self.alone), self.ask()
                for device, process in alone.items():
                    used = known.get(device.token)
                    if device in self.used and isinstance(used, int):
                        process.peak = max(process.peak, used - self.used[device])

    def examine(self, lease: Lease) -> Iterator[Sick]:
        """Wait, in bounded time, until a test's GPUs have their memory back; yields those that do not answer.

        A GPU that others have a share of is not waited for.
        """
        watched = [device for device in lease.devices if device in self.used]
        if not watched or lease.shares < SHARES or self.over.is_set():
            return
        give_up = time.monotonic() + MEMORY_S
        while True:
            found = self.read(watched)
            held = {
                device: used - self.used[device]
                for device, used in found.items()
                if isinstance(used, int) and used > self.used[device] + MEMORY_MIB
            }
            if not held or time.monotonic() >= give_up or self.over.wait(FOLLOW_S):
                break
        if self.over.is_set():
            return
        for device, more in held.items():
            warn(f"GPU {device.token} does not give back {more} MiB; {self.holders(device)}")
            self.used[device] += more  # whosever it is, the next test need not wait for it
        for device, used in found.items():
            if isinstance(used, str):
                yield Sick(device, f"nvidia-smi {used}")

    def holders(self, device: Device) -> str:
        """Who holds a GPU's memory, in words."""
        said = ask_tool(*self.SMI, "--query-compute-apps=pid,process_name", "-i", device.token)
        holders = [
            f"{os.path.basename(name)} (pid {pid})"
            for pid, name in re.findall(r"(\d+), (.*)", said)
        ]
        if not holders:
            return "nvidia-smi sees no process there"
        return f"held by {', '.join(holders)}"


def by_memory(test: Test, memory: float) -> Test:
    """A test with its `mem=` as a share of a GPU with so many MiB (0: not known), unless `gpus=` is a larger one."""
    mem = test.attributes.mem
    if not mem or not 0 < test.gpus <= 1:
        return test
    if not memory:
        warn_once(
            "no tool says what memory each GPU has: tests with mem= get a whole one; say it by --gpu-memory"
        )
        memory = mem
    if mem > memory:
        return test._replace(gpus=TOO_LARGE)
    shares = int(mem / memory * SHARES) or 1  # down, so that three thirds fit
    return test._replace(gpus=max(shares / SHARES, test.gpus % 1))


class GpuLocks:
    """A lock file per GPU, so that the runners of a machine that name the same folder never share a GPU.

    A lock is the kernel's (flock): it ends with the runner that holds it, however that dies. Raises MachineError.
    """

    def __init__(self, folder: str, machine: Machine) -> None:
        self.files: Dict[Device, int] = {}
        said = ""
        if CUDA.variable in machine.variables:
            said = ask_tool("nvidia-smi", "-L")
        # By index, or empty for an instance of MIG.
        known = re.findall(r"(?m)^(?:GPU (\d+):)?.*\(UUID: ([^)]+)\)", said)
        try:
            os.makedirs(folder, exist_ok=True)
            for device in machine.devices:
                token = device.token
                # CUDA takes the beginning of a UUID, in any case.
                uuids = [
                    uuid
                    for index, uuid in known
                    if token == index or uuid.lower().startswith(token.lower())
                ]
                name = re.sub(r"[^\w.-]", "_", [*uuids, token][0])
                path = os.path.join(folder, f"gpu-{name}.lock")
                self.files[device] = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        except OSError as error:
            raise MachineError(
                f"cannot write {error.filename} ({error.strerror}); "
                "name a folder for lock files with --gpu-locks"
            ) from None

    def take(self, device: Device) -> bool:
        """Lock a GPU, unless another runner holds it."""
        try:
            fcntl.flock(self.files[device], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give(self, device: Device) -> None:
        fcntl.flock(self.files[device], fcntl.LOCK_UN)


class Pool:
    """What is free of a machine: devices, whole or in shares, CPU slots, slot numbers. A lease is taken whole or not.

    Without devices there is one place to run all the same: a device without a token. Where `sequential`,
    every lease has the machine to itself, as one for ALL_GPUS always has.
    """

    is_alone = False  # the one lease that is out has the machine to itself
    was_locked_out = False  # another runner's lock was the reason of a refusal

    def __init__(
        self,
        devices: Sequence[Device],
        cpus: int = 1,
        sequential: bool = False,
        locks: GpuLocks | None = None,
    ) -> None:
        self.devices = devices or [Device(0, "")]
        self.cpus = cpus
        self.sequential = sequential
        self.locks = locks
        # The shares that are free, by device index; so many less of a device in quarantine.
        self.room = [SHARES] * len(self.devices)
        self.slots: Set[int] = set()  # numbers of the leases that are out
        self.quarantined: Set[int] = set()  # indices of the devices in quarantine

    @property
    def size(self) -> int:
        return len(self.devices) - len(self.quarantined)

    def holds(self, need: float) -> bool:
        """Whether a test with such a need could run if nothing else did."""
        return need <= self.size or need == ALL_GPUS

    def most(self) -> str:
        """How `more GPUs than …` ends."""
        return "are left" if self.quarantined else "there are"

    def has_room(self, need: float) -> bool:
        """Whether anything is free that such a need could use, if not enough of it: a quick look before `take`."""
        if self.is_alone:
            return False
        if need == 0:
            return self.cpus > 0
        return max(self.room) > 0

    def take(self, need: float, avoid: Container[int] = ()) -> Lease | None:
        """A lease on what a test needs, without the devices whose indices are in `avoid`; None if that is not free."""
        alone = self.sequential or need == ALL_GPUS
        if not self.has_room(need) or (alone and self.slots):
            return None
        count, shares = demand(need, self.size)
        chosen = self.choose(count, shares, avoid)
        if len(chosen) < count:
            return None
        for index in chosen:
            self.room[index] -= shares
        self.cpus -= need == 0
        self.is_alone = alone
        devices = tuple(self.devices[index] for index in chosen)
        return Lease(devices, self.take_slot(), shares)

    def take_slot(self) -> int:
        """The smallest slot number that is free."""
        slot = next(slot for slot in count() if slot not in self.slots)
        self.slots.add(slot)
        return slot

    def choose(self, count: int, shares: int, avoid: Container[int]) -> Sequence[int]:
        """The devices to take shares of: fewer than `count` if there are not as many.

        A fraction goes where the least room is left for others; whole devices are neighbours where they can be,
        from the smallest gap that holds them (best fit).
        """
        free = [
            index
            for index, room in enumerate(self.room)
            if room >= shares and index not in avoid
        ]
        shared = [index for index in free if self.room[index] < SHARES]
        if shared:
            return [min(shared, key=lambda index: self.room[index])]
        if len(free) < count:
            return []
        if not self.locks or not count:
            return best_block(free, count)
        locked = [index for index in free if self.locks.take(self.devices[index])]
        chosen = best_block(locked, count)
        if len(chosen) < count:
            self.was_locked_out = True
            chosen = []
        for index in set(locked).difference(chosen):
            self.locks.give(self.devices[index])
        return chosen

    def give(self, lease: Lease) -> None:
        """Take a lease back."""
        for device in lease.devices:
            self.room[device.index] += lease.shares
            is_free = self.room[device.index] % SHARES == 0
            if self.locks and is_free and device.index not in self.quarantined:
                self.locks.give(device)
        self.cpus += not lease.devices
        self.is_alone = False
        self.slots.remove(lease.slot)

    def quarantine(self, device: Device) -> None:
        """Lease a device no more; nor does another runner, which may meet there what this one cannot end."""
        self.quarantined.add(device.index)
        self.room[device.index] -= SHARES
        if self.locks:
            self.locks.take(device)


def make_pool(
    devices: Sequence[Device],
    tests: Tests,
    options: Options,
    locks: GpuLocks | None = None,
) -> Pool:
    """The pool of a machine with these devices: sequential where there is at most one place to run tests.

    One GPU is one place, unless there are tests that say they share it.
    """
    jobs = options.jobs or max(len(devices), 1)
    only_gpu = all(test.gpus > 0 for test in tests)
    shares = sum(0 < test.gpus < 1 for test in tests) > 1
    sequential = len(devices) + shares <= 1 and (jobs <= 1 or only_gpu)
    return Pool(devices, jobs, sequential, locks)


def demand(need: float, size: int) -> Tuple[int, int]:
    """How many devices of a machine with `size` a need takes, and how many shares of each."""
    if 0 < need < 1:
        return 1, round(need * SHARES)
    if need == ALL_GPUS:
        return size, SHARES
    return int(need), SHARES


def best_block(free: Sequence[int], count: int) -> Sequence[int]:
    """`count` of the free device indices, neighbours if there are as many in a row; all if there are not as many."""
    rows = [
        [index for _, index in row]
        for _, row in itertools.groupby(enumerate(free), lambda pair: pair[1] - pair[0])
    ]
    fitting = (row for row in rows if len(row) >= count)
    return min(fitting, key=len, default=free)[:count]


# ---------------------------------------------------------------------------------------------------
# 6. Schedule: event in, actions out. No clock, no process, no output: events bring the time with them.
#    (The shape is nextest's dispatcher: one event in, one response out.)
# ---------------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """The run starts. Times are seconds of a monotonic clock."""

    at: float
    sick: Sequence[Sick] = ()  # devices that are broken already


class Submit(NamedTuple):
    """More tests have come. `order` has all that wait now, as they are to start."""

    at: float
    tests: Tests
    order: Tests


class ShellEnded(NamedTuple):
    """The shell of a test has ended; processes that it has left are being ended, or are gone."""

    at: float
    test: Test
    is_gone: bool = False  # its GPUs alone are looked at


class Exited(NamedTuple):
    """All processes of an attempt have ended. `status` as in subprocess; the rest is what they have left to find."""

    at: float
    test: Test
    status: int
    junit_fault: str = ""
    junit_failures: int = 0  # of its own JUnit file
    cause: Cause = NO_CAUSE
    leaked: Words = ()
    sick: Sequence[Sick] = ()
    ended: float | None = None  # when its shell has ended, if that was before
    memory: float = 0.0  # seconds that its GPUs took to give their memory back
    peak: int = 0  # the most MiB of one GPU that it was seen to hold
    skipped_all: bool = False  # all cases in its JUnit file


class Broken(NamedTuple):
    """The runner could not run a test, and stops: its log cannot be opened or written, a process cannot be made."""

    at: float
    test: Test
    reason: str
    details: str = ""  # the traceback, if it is the runner's own mistake


class Tick(NamedTuple):
    """Time has passed."""

    at: float


class Interrupt(NamedTuple):
    """A signal asks the runner to end."""

    at: float
    signum: int


class Lost(NamedTuple):
    """Devices are gone, with the machine that had them. What ran there posts its own end."""

    at: float
    sick: Sequence[Sick]


Event = Union[Begin, Submit, ShellEnded, Exited, Broken, Tick, Interrupt, Lost]


class Look(NamedTuple):
    """SIGUSR1: the user asks what runs. The schedule has no part in it."""


class Attempt:
    """A running attempt, from Launch until its result: the one register of what runs has these.

    `process` is for those who act, not for those who decide.
    """

    deadline = math.inf  # when the next signal is due
    slow_at = math.inf  # when it is to be announced
    due = math.inf  # the sooner of the two, as the alarms know it
    sent = 0  # the last signal sent to it
    ending: Outcome | None = None  # TIMEOUT or INTERRUPTED, once it is being ended
    is_gone = False  # none of its processes is left; its GPUs are looked at
    process: Any = None

    def __init__(self, test: Test, lease: Lease, number: int, at: float) -> None:
        self.test = test
        self.lease = lease
        self.number = number
        self.began = at

    def result(self, outcome: Outcome, **values: Any) -> Result:
        """How it has ended."""
        return Result(
            self.test,
            outcome,
            lease=self.lease,
            attempt=self.number,
            **values,
        )


class Launch(NamedTuple):
    """Start an attempt."""

    attempt: Attempt


class Retry(NamedTuple):
    """An attempt has ended without a pass, and another will follow."""

    result: Result


class Kill(NamedTuple):
    """Send a signal to a test's process group; before it, if `stacks` says why, ask for the stacks of its Pythons."""

    attempt: Attempt
    signum: int
    stacks: str = ""


class Abandon(NamedTuple):
    """Wait no longer for a test's shell, which SIGKILL does not end."""

    attempt: Attempt


class Announce(NamedTuple):
    """A test runs for long."""

    test: Test
    seconds: float


class Quarantine(NamedTuple):
    """Tests can no longer use a device."""

    sick: Sick


class Conclude(NamedTuple):
    """A test has its outcome, by an attempt that is news or by one that was to be retried."""

    result: Result
    is_news: bool = True


Action = Union[Launch, Retry, Kill, Abandon, Announce, Quarantine, Conclude]
Actions = List[Action]


class Schedule:
    """Decides which test starts when, when one is stopped, and what its end means.

    `tests` come in starting order. A test is `waiting` until it starts or is concluded; once `wait` barriers and
    `after` let it start, it also stands in the line of those that need the same. Whatever fits starts at once, the
    first in starting order first.
    """

    floor = -1  # the last barrier that has opened
    failure = ""  # why the machine cannot go on
    end_at = math.inf  # when --deadline ends the run
    is_overdue = False  # it has
    stopped = False  # no test starts any more
    poll_at = math.inf  # when to look again at GPUs that other runners hold
    now = -math.inf  # the time of the last event

    def __init__(self, tests: Tests, pool: Pool, options: Options) -> None:
        self.pool = pool
        self.options = options
        self.rank = dict(zip(tests, count()))
        self.followers = followers_of(tests)
        # By test that has not started: how many of the tests in its `after` have not passed yet.
        self.waiting = {test: len(leaders) for test, leaders in leaders_of(tests).items()}
        # Heaps of tests that room alone keeps from starting, by need and locks.
        self.lines: Dict[Tuple[float, Words], List[Tuple[int, Test]]] = {}
        self.unfinished = collections.Counter(test.barrier for test in tests)
        self.locked: Set[str] = set()  # names of `lock` that running tests hold
        self.running: Dict[Test, Attempt] = {}
        # Of each test all attempts, in order; one result also if none ran.
        self.results: Dict[Test, List[Result]] = {}
        # By test, how many of its attempts do not count, since the GPU was at fault.
        self.spared: Dict[Test, int] = collections.Counter()
        # The latest results of GPU tests, while all are failures by one cause, which is the machine's.
        self.struck: List[Result] = []
        self.interrupts: List[int] = []
        self.sick: List[Sick] = []  # devices in quarantine
        self.grace = options.grace
        # A heap. An entry whose time is not its attempt's `due` is an old one.
        self.alarms: List[Tuple[float, int, Attempt]] = []

    @property
    def done(self) -> bool:
        return not self.running and not self.waiting

    def deadline(self) -> float:
        """When the next Tick is due, on the events' clock; infinity if none is."""
        while self.alarms and self.alarms[0][0] != self.alarms[0][2].due:
            heapq.heappop(self.alarms)
        due = min(self.poll_at, self.end_at)
        if self.alarms:
            due = min(due, self.alarms[0][0])
        return due

    def watch(self, attempt: Attempt) -> None:
        """Note when something is due for an attempt."""
        attempt.due = min(attempt.deadline, attempt.slow_at)
        if attempt.due < math.inf:
            heapq.heappush(self.alarms, (attempt.due, id(attempt), attempt))

    def step(self, event: Event) -> Actions:
        """Take in one event; returns what to do now, in order."""
        if isinstance(event, (ShellEnded, Exited, Broken)) and event.test not in self.running:
            return []  # it was abandoned
        self.now = event.at
        respond = getattr(self, "on_" + type(event).__name__.lower())  # `on_exited` to Exited
        actions = respond(event)
        # Open barriers above which all tests have ended.
        while self.waiting and not self.unfinished[self.floor]:
            self.floor += 1
            for test in self.waiting:
                if test.barrier == self.floor:
                    self.line_up(test)
        return actions + self.start_waiting()

    def on_begin(self, event: Begin) -> Actions:
        actions = []
        # Where no test wants a GPU, none is missed.
        is_missed = any(test.gpus for test in self.waiting)
        has_others = len(event.sick) < self.pool.size
        if is_missed or has_others:
            actions = self.quarantine(event.sick)
        if self.options.deadline:  # half of a short one is for the tests
            reserve = min(self.options.grace + STACKS_S + REPORT_S, self.options.deadline / 2)
            self.end_at = self.now + self.options.deadline - reserve
        return actions + self.refuse_unrunnable()

    def on_submit(self, event: Submit) -> Actions:
        self.rank.update(zip(event.order, count()))
        self.waiting.update(dict.fromkeys(event.tests, 0))
        self.unfinished.update(test.barrier for test in event.tests)
        self.lines.clear()
        for test in self.waiting:
            self.line_up(test)
        if self.stopped:
            return self.stop()
        return self.refuse_unrunnable()

    def refuse_unrunnable(self) -> Actions:
        """Conclude the tests that need more GPUs than there are, or are left."""
        refused = sorted(test for test in self.waiting if not self.can_run(test))
        return self.conclude(
            *(self.unrun(test, Outcome.UNRUNNABLE, self.lack(test)) for test in refused)
        )

    def lack(self, test: Test) -> str:
        """What a test needs that is not there."""
        if test.gpus == TOO_LARGE:
            return (
                f"needs {show_memory(test.attributes.mem)} of a GPU, more than the smallest has"
            )
        return f"needs {test.gpus:g} GPUs, more than {self.pool.most()}"

    def unrun(self, test: Test, outcome: Outcome, reason: str = "") -> Result:
        """The end of a test that does not start any more: how its last attempt has ended, if it had one."""
        ended = self.results.get(test)
        if ended:
            return ended[-1]
        return Result(test, outcome, reason=reason)

    def on_shellended(self, event: ShellEnded) -> Actions:
        attempt = self.running[event.test]
        attempt.is_gone = event.is_gone
        if attempt.ending is None or event.is_gone:
            # What it has left, or its GPUs, are no reason for a timeout.
            attempt.deadline = attempt.slow_at = math.inf
            self.watch(attempt)
        return []

    def on_exited(self, event: Exited) -> Actions:
        test = event.test
        attempt = self.free(test)
        result = judge(event, attempt, self.options, self.spared[test])
        sick = [*self.accuse(result), *event.sick]
        if sick and not result.outcome.is_pass():
            self.spared.setdefault(test, 1)
        if attempt.number > self.spared[test] and not sick:
            result = as_known(result, self.options.known_failures.get(test.origin, ""))
        elif result.outcome.is_excused():  # a skip on a broken GPU says nothing
            result = result._replace(outcome=Outcome.FAILED)
        actions = self.quarantine(sick)
        if self.is_machine_wide(result):
            actions += self.fail(f"{result.cause.text}, on every GPU")
        if (
            not result.outcome.can_be_retried()
            or self.stopped
            or not self.can_run(test)
            or attempt.number > self.retries_of(result) + self.spared[test]
        ):
            return actions + self.conclude(result)
        self.results.setdefault(test, []).append(result)
        self.waiting[test] = 0
        self.line_up(test)
        return [*actions, Retry(result)]

    def retries_of(self, result: Result) -> int:
        """How often a test that has ended so may be run again in all."""
        if not re.search(self.options.retry_on, f"{result.cause.text}\n{result.why()}"):
            return 0
        if result.test.attributes.retries is not None:
            return result.test.attributes.retries
        return self.options.retries

    def accuse(self, result: Result) -> Iterator[Sick]:
        """The GPU that an attempt's log shows to be broken, if the attempt had no other.

        If a test says so a second time, on another GPU, it is the test.
        """
        if (
            result.cause.blame is Blame.DEVICE
            and len(result.gpus) == 1
            and result.test not in self.spared
        ):
            yield Sick(result.lease.devices[0], f"{result.cause.text} in {result.test.label}")

    def quarantine(self, sick: Iterable[Sick]) -> Actions:
        """Put devices in quarantine, and conclude the tests that need more than are left."""
        actions: Actions = []
        for each in sick:
            device = each.device
            if device.token and device.index not in self.pool.quarantined:
                self.pool.quarantine(device)
                self.sick.append(each)
                actions.append(Quarantine(each))
        if actions and self.pool.size:
            actions += self.refuse_unrunnable()
        elif actions:
            actions += self.fail("no usable GPU is left")
        return actions

    def on_lost(self, event: Lost) -> Actions:
        return self.quarantine(event.sick)

    def is_machine_wide(self, result: Result) -> bool:
        """Whether one cause, the machine's, has now ended two tests in a row or more, and one on every GPU."""
        if not result.gpus:
            return False
        if self.struck and self.struck[0].cause.text != result.cause.text:
            self.struck.clear()
        if result.cause.blame is not Blame.MACHINE:
            return False
        self.struck.append(result)
        on = frozenset().union(*(struck.gpus for struck in self.struck))
        return (
            len({struck.test for struck in self.struck}) > 1
            and len(on - self.pool.quarantined) == self.pool.size
        )

    def can_run(self, test: Test) -> bool:
        return test.gpus != TOO_LARGE and self.pool.holds(test.gpus)

    def on_broken(self, event: Broken) -> Actions:
        result = self.free(event.test).result(Outcome.NOT_RUN, reason=event.reason)
        return self.conclude(result) + self.fail(event.reason)

    def fail(self, why: str) -> Actions:
        """The machine cannot go on: end what runs, start nothing more."""
        self.failure = self.failure or why
        return self.end_running(signal.SIGTERM)

    def on_interrupt(self, event: Interrupt) -> Actions:
        """The first signal goes to the tests, a further one kills them."""
        self.interrupts.append(event.signum)
        signum = signal.SIGKILL if len(self.interrupts) > 1 else event.signum
        return self.end_running(signum)

    def on_tick(self, _event: Tick) -> Actions:
        if self.now >= self.end_at:
            self.grace = min(self.grace, (self.options.deadline or 0) / 4)
            self.end_at = math.inf
            self.is_overdue = True
            return self.end_running(signal.SIGTERM, "--deadline ends the run")
        actions = []
        while self.deadline() <= self.now and self.alarms and self.alarms[0][0] <= self.now:
            actions += self.on_alarm(heapq.heappop(self.alarms)[2])
        return actions

    def on_alarm(self, attempt: Attempt) -> Actions:
        """An attempt has to be announced, or has had its time."""
        test = attempt.test
        if attempt.deadline > self.now:
            attempt.slow_at = self.now + (self.options.slow or math.inf)
            self.watch(attempt)
            return [Announce(test, self.now - attempt.began)]
        if attempt.sent == signal.SIGKILL:
            return self.abandon(attempt)
        signum = signal.SIGKILL
        why = ""
        if attempt.ending is None:
            signum = signal.SIGTERM
            why = f"did not end in {test.timeout:g}s"
        elif attempt.ending is Outcome.TIMEOUT:
            why = f"did not end by SIGTERM in {self.grace:g}s"
        return [self.end(attempt, Outcome.TIMEOUT, signum, why)]

    def abandon(self, attempt: Attempt) -> Actions:
        """Go on without the GPUs of a test that cannot be killed."""
        self.free(attempt.test)
        result = attempt.result(
            attempt.ending or Outcome.TIMEOUT,
            seconds=self.now - attempt.began,
            status=-signal.SIGKILL,
            reason="cannot be killed",
            junit_fault="left open",
            cause=Cause("cannot be killed"),
        )
        sick = [
            Sick(device, f"{attempt.test.label} cannot be killed")
            for device in attempt.lease.devices
        ]
        return [Abandon(attempt), *self.quarantine(sick), *self.conclude(result)]

    def end_running(self, signum: int, stacks: str = "") -> Actions:
        """Start nothing more, and end what runs."""
        return self.stop() + [
            self.end(attempt, Outcome.INTERRUPTED, signum, stacks)
            for attempt in self.running.values()
            if not attempt.is_gone
        ]

    def end(self, attempt: Attempt, outcome: Outcome, signum: int, stacks: str = "") -> Action:
        """One signal to one test, whose first outcome counts; SIGKILL follows after the grace period."""
        attempt.ending = attempt.ending or outcome
        attempt.sent = signum
        attempt.deadline = self.now + STUCK_S
        if signum != signal.SIGKILL:
            attempt.deadline = self.now + self.grace + STACKS_S * bool(stacks)
        attempt.slow_at = math.inf
        self.watch(attempt)
        return Kill(attempt, signum, stacks)

    def stop(self) -> Actions:
        """Start nothing more: what waits is not run, or has failed if it waits for a retry."""
        self.stopped = True
        return self.conclude(
            *(self.unrun(test, Outcome.NOT_RUN) for test in sorted(self.waiting))
        )

    def conclude(self, *ends: Result) -> Actions:
        """Give outcomes to tests, and to those that now wait in vain; with --fail-fast a failure stops the run."""
        results = list(ends)
        actions: Actions = []
        for ended in ends:
            self.waiting.pop(ended.test, None)
        for ended in results:  # it grows
            test = ended.test
            is_news = ended not in self.results.setdefault(test, [])
            if is_news:
                self.results[test].append(ended)
            actions.append(Conclude(ended, is_news))
            self.unfinished[test.barrier] -= 1
            for follower in self.followers.get(test, ()):
                if follower not in self.waiting or ended.outcome.is_unfinished():
                    continue
                self.waiting[follower] -= 1
                if ended.outcome.is_pass():
                    self.line_up(follower)
                else:
                    del self.waiting[follower]
                    outcome, why = Outcome.BLOCKED, "did not pass"
                    if ended.outcome is Outcome.SKIPPED:
                        outcome, why = Outcome.SKIPPED, "was skipped"
                    reason = f"waits for {test.label}, which {why}"
                    results.append(Result(follower, outcome, reason=reason))
        if self.options.fail_fast and any(self.options.fails(ended.outcome) for ended in ends):
            actions += self.stop()
        return actions

    def free(self, test: Test) -> Attempt:
        """Take back what a running test holds."""
        attempt = self.running.pop(test)
        attempt.due = -math.inf  # so that its alarms are old ones
        self.pool.give(attempt.lease)
        self.locked.difference_update(test.attributes.lock)
        return attempt

    def line_up(self, test: Test) -> None:
        """Put a test into its line, if nothing but room keeps it from starting."""
        if self.waiting.get(test) == 0 and test.barrier <= self.floor:
            line = self.lines.setdefault((test.gpus, test.attributes.lock), [])
            heapq.heappush(line, (self.rank[test], test))

    def start_waiting(self) -> Actions:
        """Start every test that may start now, the first in starting order first."""
        actions = []
        self.pool.was_locked_out = False
        first = [(line[0][0], need) for need, line in self.lines.items() if line]
        heapq.heapify(first)
        while first:
            need = heapq.heappop(first)[1]
            line = self.lines[need]
            test = line[0][1]
            if not self.pool.has_room(need[0]) or not self.locked.isdisjoint(need[1]):
                continue
            if test in self.waiting:
                actions += self.start(test)
            if test not in self.waiting:  # it has started, or been concluded
                heapq.heappop(line)
                if line:
                    heapq.heappush(first, (line[0][0], need))
        self.poll_at = self.now + LOCK_POLL_S if self.pool.was_locked_out else math.inf
        return actions

    def start(self, test: Test) -> Actions:
        """Start a test, if there is room for it: a retry on other GPUs than before, if it can."""
        before = self.results.get(test, [])
        lease = None
        if before:
            lease = self.pool.take(test.gpus, before[-1].gpus)
        lease = lease or self.pool.take(test.gpus)
        if lease is None:
            return []
        del self.waiting[test]
        self.locked.update(test.attributes.lock)
        attempt = self.running[test] = Attempt(test, lease, len(before) + 1, self.now)
        attempt.deadline = self.now + (test.timeout or math.inf)
        attempt.slow_at = self.now + (self.options.slow or math.inf)
        self.watch(attempt)
        return [Launch(attempt)]


class Outlook:
    """What runs, and how long the rest takes by earlier runs. It reads the schedule, and changes nothing."""

    looked_at = -math.inf
    last_s = 0.0

    def __init__(self, schedule: Schedule, estimates: Estimates) -> None:
        self.schedule = schedule
        self.estimates = estimates
        self.cpus = schedule.pool.cpus  # CPU slots, all of them: nothing runs yet
        # Where most durations are guessed, a forecast would be one too.
        self.is_known = 2 * len(estimates.unknown) < len(estimates.seconds)

    def running(self) -> List[Attempt]:
        """What runs, by slot."""
        return sorted(self.schedule.running.values(), key=lambda attempt: attempt.lease.slot)

    def expected_s(self, test: Test) -> float | None:
        """How long a test takes, if that is known."""
        if test in self.estimates.unknown:
            return None
        return self.estimates.seconds.get(test)

    def left_s(self, now: float) -> float | None:
        """How long the rest takes at least, if most of it is known. It is computed once a second."""
        if not self.is_known:
            return None
        if now >= self.looked_at + 1:
            seconds = {test: self.estimates.seconds[test] for test in self.schedule.waiting}
            for attempt in self.schedule.running.values():
                expected_s = self.estimates.seconds[attempt.test]
                seconds[attempt.test] = max(expected_s - (now - attempt.began), 0.0)
            self.last_s = shortest(seconds, self.schedule.pool.size, self.cpus)
            self.looked_at = now
        return self.last_s


def shortest(seconds: Seconds, gpus: int, cpus: int) -> float:
    """Seconds that no order of tests beats, by the seconds of each and how many GPUs and CPU slots there are.

    Between two barriers all GPUs are busy all the time, or there is one chain of `after`.
    """
    parts = collections.defaultdict(list)
    for test in seconds:
        parts[test.barrier].append(test)
    total_s = 0.0
    for part in parts.values():
        gpu_s = math.fsum(work_of(test, seconds, gpus) for test in part)
        cpu_s = math.fsum(seconds[test] for test in part if not test.gpus)
        chains = chains_of(part, seconds).values()
        longest_s = max(length for _, length in chains)
        total_s += max(gpu_s / max(gpus, 1), cpu_s / max(cpus, 1), longest_s)
    return total_s


def judge(event: Exited, attempt: Attempt, options: Options, spared: int) -> Result:
    """What the end of an attempt means. Exit status 0 is a pass only if nothing that the test left speaks against it.

    `spared`: so many earlier attempts do not count; if one was its GPU's fault, a pass at attempt 2 is no flaky one.
    """
    test = event.test
    outcome = attempt.ending or outcome_of(event.status)
    cause, fault = event.cause, event.junit_fault
    reason = ""
    passed = outcome is Outcome.PASSED
    is_first = attempt.number <= 1 + spared
    has_died = test.is_pytest and fault  # or pytest's JUnit file would be whole
    is_skip = event.status == options.skip_code and not event.junit_failures and not has_died
    if outcome is Outcome.TIMEOUT:
        cause = Cause("timeout")
        reason = f"did not end in {test.timeout:g}s"
    elif cause == OOM_KILLED:
        reason = "OOM killer"
    elif passed and event.junit_failures:
        reason = f"its JUnit file shows failures: {event.junit_failures}"
    elif passed and has_died:
        reason = f"its JUnit file is {fault}"
    elif passed and event.leaked and options.leaks == "fail":
        cause = Cause("leaked processes")
        reason = told_leaks(event.leaked)
    elif passed and not is_first:
        outcome = Outcome.FLAKY
    elif outcome is Outcome.FAILED and is_skip and is_first:
        outcome = Outcome.SKIPPED
        cause = NO_CAUSE
    if passed and reason:
        outcome = Outcome.FAILED
    if not outcome.is_ok() and test.junit and not fault and not event.junit_failures:
        fault = "without a failure"  # written before it died: CI would show green
    return attempt.result(
        outcome,
        seconds=(event.ended or event.at) - attempt.began,
        status=event.status,
        reason=reason or "skipped all its cases" * event.skipped_all,
        junit_fault=fault,
        cause=cause,
        leaked=event.leaked,
        memory=event.memory,
        peak=event.peak,
    )


def as_known(result: Result, why: str) -> Result:
    """The result of a test that is known to fail if `why` says something: what pytest's xfail makes of it.

    A crash or a timeout stays one: xfail does not cover what takes the interpreter down, and it may be a new fault.
    """
    if why and result.outcome is Outcome.FAILED:
        return result._replace(outcome=Outcome.KNOWN, reason=why)
    if why and result.outcome.is_pass():
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

# Files, in whose places tests may have put links, pipes or devices.


def regular_file(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. Raises OSError for any other, at which a reader might wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return descriptor


def open_regular(path: str) -> BinaryIO:
    """A regular file, to be read, unbuffered. Raises OSError."""
    return open(regular_file(path), "rb", buffering=0)


def check_name(path: str, has_links: bool = True) -> None:
    """Raises OSError for a name that is anything but a file's (or a link's, where links may stand)."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode) and not (has_links and stat.S_ISLNK(mode)):
        raise OSError(errno.EEXIST, "is no regular file; move it away", path)


def check_kind(path: str, first: bytes, kind: str) -> None:
    """Raises OSError for a file that begins with none of `first`.

    It may be a list behind an option that somebody took for a switch (`--junit tests.txt`): it stays as it is.
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        if file.read(1) not in first:
            raise OSError(errno.EEXIST, f"is no {kind}; move it away", path)


def put_aside(path: str, name: str) -> None:
    """Rename a file. A link, a device or nothing at all stays as it is. Raises OSError."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.replace(path, name)


def clear_name(path: str) -> None:
    """Take a file or a link away, if there is one. Raises OSError if there is something else, which stays."""
    with suppress(FileNotFoundError):
        check_name(path)
        os.unlink(path)


def fresh_file(path: str, access: int = os.O_WRONLY) -> int:
    """A descriptor of a new file, in place of one that had its name. What a link pointed to stays. Raises OSError."""
    flags = access | os.O_CREAT | os.O_EXCL | os.O_APPEND
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        clear_name(path)
    except FileNotFoundError:  # a test has taken its folder away
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return os.open(path, flags, 0o666)


def file_signature(path: str) -> str:
    """What changes when a file is written anew; empty if there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
    return ""


def tail_of(path: str, size: int = TAIL_BYTES) -> str:
    """The end of a log as text; empty if it cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read(size).decode("utf-8", "replace")
    return ""


# Processes, as /proc shows them.


class ProcessInfo(NamedTuple):
    """A live process."""

    pid: int
    name: str
    parent: int
    group: int
    session: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def read_proc(path: str) -> bytes:
    """A file below /proc; empty if it is not there, or we may not see it."""
    with suppress(OSError), open(os.path.join("/proc", path), "rb") as file:
        return file.read()
    return b""


def process_info(pid: int) -> ProcessInfo | None:
    """What /proc says of a process, if it lives. Zombies live only in their threads."""
    head, _, rest = read_proc(f"{pid}/stat").rpartition(b") ")
    numbers = rest.split()[1:]  # parent, group, session; the 17th says how many threads
    if not numbers or (rest[:1] in b"ZX" and numbers[16] == b"1"):
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return ProcessInfo(pid, re.sub(CONTROL, "?", name), *map(int, numbers[:3]))


def process_table() -> Dict[int, ProcessInfo]:
    """The live processes of the machine by pid; none where there is no /proc."""
    if not os.path.isdir("/proc"):
        return {}
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    found = map(process_info, pids)
    return {info.pid: info for info in found if info}


def with_descendants(
    table: Mapping[int, ProcessInfo], pids: Iterable[int]
) -> List[ProcessInfo]:
    """These processes and all that they have started, as far as they live, sorted by pid."""
    children = collections.defaultdict(list)
    for info in table.values():
        children[info.parent].append(info.pid)
    reached = reach(table.keys() & pids, children)
    return [table[pid] for pid in sorted(reached)]


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


# The guard waits until its standard input ends, by the runner's death. Then it kills all that bears the run's mark, and
# what has come from it, until nothing is left. Arguments: the run, the mark, the scratch folder.
GUARD = r"""
main() {
  local run=$1 mark=$2 scratch=$3 calm=0 still=0 newest=0 last folder pid line variable variables found
  trap '' INT TERM HUP QUIT
  read -r
  # One that forks faster than we look shows in the newest process number, which our own `sleep` raises by 1.
  while ((still < 5 && calm < 30)); do
    last=$newest
    read -r _ _ _ _ newest </proc/loadavg
    ((newest == last + 1 ? ++still : (still = 0)))
    local -A parent=() ours=()
    for folder in /proc/[0-9]*; do
      pid=${folder#/proc/}
      read -r line <"$folder/stat" || continue
      set -- ${line##*) }
      [[ $1 != Z && $pid != 1 && $pid != $$ ]] || continue
      parent[$pid]=$2
      read -r -d '' line <"$folder/limits"
      [[ $line =~ realtime\ timeout\ +([0-9]+) ]] && ((mark && BASH_REMATCH[1] >> 20 == mark >> 20)) && ours[$pid]=1
      variables=()  # those of others cannot be read: nothing may stay here from the process before
      mapfile -d '' -t variables <"$folder/environ"
      for variable in "${variables[@]}"; do
        [[ $variable == RUN_TESTS_@(RUN|OUTER)=*"$run"* ]] && ours[$pid]=1
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

    As a child subreaper the runner becomes the parent of those whose parents have ended, wherever they went
    (setsid, a daemon). Linux gives them to its main thread, and lists them apart from what other threads have
    started: a look at that list is all that a test costs which leaves nothing. Each attempt has a mark that its
    processes do not lose by a new session or an empty environment: its number as the soft limit of RLIMIT_RTTIME,
    which is inherited by fork and kept by exec (getrlimit(2)), and so large that it limits nothing. Another
    process, the guard, waits for the runner's death; it holds the files in `kept` open, and so their locks, until it
    has done its work.
    """

    ONLY_MINE = 0x20000000  # __WNOTHREAD of waitpid: not the children of other threads
    guard: subprocess.Popen[bytes] | None = None
    own: FrozenSet[int] = frozenset()  # children that the run must not end
    shared: FrozenSet[int] = frozenset()  # what shell state has left, for all tests
    count = 0  # of attempts
    run = b"RUN_TESTS_RUN"  # its name, once it has one

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.mark = run_mark()  # that of the run; 0 where there are no marks
        self.path = f"/proc/self/task/{os.getpid()}/children"
        adopts = adopt_orphans() or os.getpid() == 1
        # Orphans come to us, and are listed.
        self.sees_orphans = adopts and os.path.isfile(self.path)
        self.own = self.orphans()  # children from before the runner was exec'ed
        self.has_inherited = bool(self.own)
        if not os.path.isdir("/proc/self"):
            warn(
                "there is no /proc: processes that leave the process group of their test are not found"
            )

    def post_guard(self, bash: str, run: str, kept: Collection[int]) -> None:
        """Start the guard, or another one for one that has been killed. Raises OSError.

        It has its text from the start: the runner may be killed in the next moment.
        """
        if not self.guard or self.guard.poll() is not None:
            self.run = run.encode()
            self.dismiss_guard()
            self.guard = subprocess.Popen(
                [
                    "sweeper",
                    "-c",
                    'eval "$RUN_TESTS_GUARD"',
                    "",
                    run,
                    str(self.mark),
                    self.scratch.folder,
                ],
                executable=bash,
                env={**os.environ, "RUN_TESTS_GUARD": GUARD},
                stdin=subprocess.PIPE,  # which ends when we do
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=kept,
                cwd="/",
            )
            self.own |= {self.guard.pid}

    def dismiss_guard(self) -> None:
        """End the guard, if there is one."""
        if self.guard:
            with self.guard:  # at whose end its pipe is closed
                self.guard.kill()
            self.guard = None

    def next_mark(self) -> int:
        """The mark of another attempt; 0 where there are none."""
        self.count += 1
        return self.mark and self.mark + self.count

    def orphans(self) -> FrozenSet[int]:
        """The pids of the orphans, some perhaps dead, as the kernel lists them. Raises OSError."""
        if not self.sees_orphans:
            return frozenset()
        with open(self.path, "rb", buffering=0) as file:
            return frozenset(map(int, file.read().split())) - self.own - self.shared

    def share(self) -> None:
        """The orphans of now are of no test: those of shell state serve all tests, until the run ends."""
        self.shared |= self.orphans()

    def collect(self) -> None:
        """Let ended orphans go. Main thread only."""
        with suppress(OSError):  # none are left, or this is no Linux
            while os.waitpid(-1, os.WNOHANG | self.ONLY_MINE)[0]:
                pass

    def has_orphans(self) -> bool:
        """Whether tests have left processes behind; also if that cannot be told."""
        return not self.sees_orphans or bool(self.orphans())

    def members(self, process: Process) -> List[ProcessInfo]:
        """The live processes of an attempt: its group, its session, its orphans, and what has come from them."""
        table = process_table()
        orphans = self.orphans()
        for info in filter(None, map(process_info, orphans - table.keys())):
            table[info.pid] = info  # it came, and its parent went, while we looked
        mine = [
            info.pid
            for info in table.values()
            if process.pid in (info.group, info.session)
            or ((info.pid in orphans or not self.sees_orphans) and process.has_marked(info.pid))
        ]
        return with_descendants(table, mine)

    def left(self) -> FrozenSet[int]:
        """The orphans that come from the run: what ran before it may have left some, too, and keeps them."""
        orphans = self.orphans()
        if self.mark and self.has_inherited:
            orphans = frozenset(filter(self.has_started, orphans))
        return orphans

    def has_started(self, pid: int) -> bool:
        """Whether a process comes from the run, by its limit, or else by its environment (in a runner inside)."""
        return limit_of(pid) >> 20 == self.mark >> 20 or self.run in read_proc(f"{pid}/environ")

    def close(self) -> List[ProcessInfo]:
        """When all tests have ended, kill what they have left, and the guard; returns what was left."""
        self.shared = frozenset()
        left = set()
        give_up = time.monotonic() + KILLED_S
        while self.left() and time.monotonic() < give_up:
            found = with_descendants(process_table(), self.left())
            left.update(found)
            send(signal.SIGKILL, found)
            self.collect()
            time.sleep(SWEEP_POLL_S)
        self.dismiss_guard()
        if self.scratch.folder:
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        return sorted(left)


def limit_of(pid: int) -> int:
    """The soft limit of a process that is its mark; 0 if it has none."""
    return proc_number(f"{pid}/limits", rb"realtime timeout +(\d+)")


def run_mark() -> int:
    """Mark this process, and so all that it starts, with a number whose last 20 bits are 0; returns it.

    Where that cannot be done, 0.
    """
    number = int.from_bytes(os.urandom(4), "big")
    mark = (1 << 62) + (number << 20)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, resource.RLIM_INFINITY))
    except (AttributeError, OSError, ValueError):  # AttributeError: no Linux
        return 0
    return mark


def adopt_orphans() -> bool:
    """Become a child subreaper; False if this is no Linux, or a Python without ctypes."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        return ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    return False


class Job(NamedTuple):
    """A shell to be started: that of one attempt, or of a script."""

    bash: str  # path: looking it up for every test would cost more than starting it
    arguments: Sequence[bytes]
    environment: Mapping[bytes, bytes] | None  # None: ours, which costs Popen least
    log: str  # path
    directory: str | None = None  # None: ours
    stdin: int | None = subprocess.DEVNULL  # None: ours


class Process:
    """One attempt's shell and its group. No signal goes to a group that is gone: others may have its number."""

    pid = 0  # of the shell, once it has started
    sent = 0  # the last signal; one that came before the process was there waits for it
    is_gone = False
    peak = 0  # MiB that it was seen to hold of a GPU
    stuck = ""  # what SIGKILL did not end, in words

    def __init__(self, reaper: Reaper, run: str = "", slot: int = 0) -> None:
        self.reaper = reaper
        self.mark = reaper.next_mark()
        # Environment that no other attempt has, and what a runner in it adds to that of its tests.
        self.variables = {f"RUN_TESTS_RUN={run}".encode(), f"RUN_TESTS_SLOT={slot}".encode()}
        self.inner = f" {run}/{slot} ".encode()
        self.lock = threading.Lock()

    def spawn(self, job: Job, output: int) -> None:
        """Start a job. What it prints goes to this descriptor, which is ours from now on. Raises OSError."""
        self.output = output
        if job.directory is not None and not os.path.isdir(job.directory):
            self.log(f"{job.directory}, where this test is to run, is gone")
            job = job._replace(arguments=[b"-c", b"exit 1"], directory=None)
        self.popen = subprocess.Popen(
            [job.bash, *job.arguments],  # its path, without which bash looks for itself in PATH
            env=job.environment,
            stdin=job.stdin,
            cwd=job.directory,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=False,  # as under bash, a test has the descriptors that we have
        )
        if self.mark:
            with suppress(OSError):  # it has ended
                limits = self.mark, resource.RLIM_INFINITY
                resource.prlimit(self.popen.pid, resource.RLIMIT_RTTIME, limits)
        self.pid = self.popen.pid
        if self.sent:
            self.signal(self.sent)

    def has_marked(self, pid: int) -> bool:
        """Whether a process comes from this attempt, by its limit, or else by its environment."""
        if self.mark and limit_of(pid) == self.mark:
            return True
        said = read_proc(f"{pid}/environ")
        return self.inner in said or self.variables.issubset(said.split(b"\0"))

    def signal(self, signum: int, stacks: str = "") -> None:
        """Send a signal to the group, if there is one still; before it, the stacks of its Pythons go into the log."""
        if stacks and self.pid and not self.is_gone:
            with suppress(OSError):
                self.dump_stacks(stacks, signum)
        with self.lock:
            if self.sent != signal.SIGKILL:
                self.sent = signum
            if self.pid and not self.is_gone:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signum)
                    os.killpg(self.pid, signal.SIGCONT)  # one that is stopped would not see it

    def dump_stacks(self, why: str, signum: int) -> None:
        """Let each Python process write the stacks of its threads, one after the other. Raises OSError.

        PYTHONFAULTHANDLER=1 makes Python write them to its standard error on SIGABRT, and end. A process that has a
        handler for the signal that follows is left to its handler, and asked only before SIGKILL. No core file is
        written.
        """
        give_up = time.monotonic() + STACKS_S
        self.log(why)
        for info in self.reaper.members(self):
            with suppress(OSError):  # it has ended, or we may not see it
                if "python" not in os.path.basename(os.readlink(f"/proc/{info.pid}/exe")):
                    continue
                if signum != signal.SIGKILL and catches(info.pid, signum):
                    continue
                if not catches(info.pid, signal.SIGABRT):
                    self.log(f"there is no faulthandler in {info}")
                    continue
                self.log(f"the stacks of {info}")
                resource.prlimit(info.pid, resource.RLIMIT_CORE, (0, 0))
                send(signal.SIGABRT, [info])
                while process_info(info.pid) and time.monotonic() < give_up:
                    time.sleep(SWEEP_POLL_S)

    def log(self, text: str) -> None:
        """Write a line of the runner's own into the test's log, if that is open still. Raises OSError."""
        with self.lock:
            if not self.is_gone:
                os.write(self.output, to_bytes(f"\n=== {PROGRAM}: {text} ===\n"))

    def wait(self) -> None:
        """Wait until the shell has ended, and do not reap it yet: its group's number stays ours.

        What it has left may run on.
        """
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.popen.wait()  # macOS before Python 3.13

    def sweep(self) -> List[ProcessInfo]:
        """End what the shell has left, after its grace period if it has one; returns what nobody had told to end."""
        if self.sent == signal.SIGINT:  # which the shell's background jobs ignore
            self.signal(signal.SIGTERM)
        linger = time.monotonic() + LINGER_S
        told: Set[int] = set()
        members = functools.partial(self.reaper.members, self)
        left = members()
        if not (left or self.mark):  # what is just being executed shows no environment
            time.sleep(SWEEP_POLL_S)
            left = members()
        while left and self.sent != signal.SIGKILL and (self.sent or time.monotonic() < linger):
            if self.sent:  # those that have left the group have not heard of it
                send(
                    signal.SIGTERM,
                    (info for info in left if info.group != self.pid and info.pid not in told),
                )
                told.update(info.pid for info in left)
            time.sleep(SWEEP_POLL_S)
            left = members()
        leaked = [] if self.sent else left
        give_up = time.monotonic() + KILLED_S
        while left and time.monotonic() < give_up:
            send(signal.SIGKILL, left)
            time.sleep(SWEEP_POLL_S)
            left = members()
        if left:
            self.stuck = f"{left[0]} cannot be killed"
        self.signal(signal.SIGKILL)  # what /proc does not show
        return leaked

    def close(self) -> int:
        """Let the shell's process number and its log go; returns its exit status."""
        with self.lock:
            self.is_gone = True
            os.close(self.output)
        return self.popen.wait()


def traceback_text() -> str:
    """Where the current exception comes from; few runs need the module for it."""
    import traceback

    return traceback.format_exc()


def bash_text(
    test: Test,
    variables: Environ,
    defaults: Environ,
    scratch: Scratch,
    mark: int = 0,
) -> str:
    """What `bash -c` is to run: what is the test's own, then its command at its own line number.

    Bash then names the same line in its messages as `bash LIST` does. Variables that are the test's own are set here,
    after what BASH_ENV and the shell state may have set; `defaults` only where these have not set them.
    """
    start = []
    if mark:  # from bash 5.1; an older one is marked by us, a moment later
        start.append(f"ulimit -SR {mark}")
    if test.shell.prelude:
        prelude = shlex.quote(test.shell.prelude)
        start += [f'. {prelude}; eval "${{_rt_late-}}"; unset _rt_late']
    exports = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    unset = " ".join(f'"${{{name}={value}}}"' for name, value in defaults.items())
    start.append(f": {unset}; export {' '.join([*exports, *defaults])}")  # one may be readonly
    if test.shell.before:
        start.append(test.shell.before)
    command = with_source(test.command)
    if command != test.command:
        start.append(f"_rt_source={shlex.quote(test.file)}")
    if len(command) > ARGUMENT_BYTES:
        command = f". {shlex.quote(scratch.write(command))}"
    lines = "\n" * min(test.line - 1, ARGUMENT_BYTES // 4)
    # With text to come, bash does not exec the command, and tells how it died.
    return (
        f"{{ {'; '.join(start)}; }} 2>/dev/null{lines or '; '}{command}\n\n{test.shell.after}"
    )


def free_port(slot: int, slots: int) -> int:
    """A TCP port on which nobody listens now, from a sequence that is this slot's alone."""
    import socket

    # Containers that share a network have process numbers of their own.
    number = os.getpid()
    with suppress(OSError):
        number += os.stat("/proc/self/ns/pid").st_ino
    first = PORT_FIRST + number * 16 % PORT_BASES + slot
    for port in range(first, PORT_LAST + 1, slots):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port
    return first


def test_environment(outer: Mapping[bytes, bytes], run: str) -> Dict[bytes, bytes]:
    """What all tests of a run have in their environment besides `outer`, whatever that says."""
    environment = {b"PYTHONUNBUFFERED": b"1", b"RUN_TESTS_RUN": run.encode()}
    if b"RUN_TESTS_RUN" in outer:  # a runner in a runner: the outer one's mark must not be lost
        place = outer[b"RUN_TESTS_RUN"] + b"/" + outer.get(b"RUN_TESTS_SLOT", b"")
        places = outer.get(b"RUN_TESTS_OUTER", b" ")
        environment[b"RUN_TESTS_OUTER"] = places + place + b" "
    return environment


def test_defaults(slots: int) -> Environ:
    """Variables that tests get unless they are set."""
    defaults = {"PYTHONFAULTHANDLER": "1"}
    if slots > 1:
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))  # those that this process may use
        defaults["OMP_NUM_THREADS"] = str(max(1, cores // slots))
    return defaults


def has_line_0(bash: str) -> bool:
    """Whether a bash counts the lines of `bash -c` from 0, as it did before 5.1."""
    with suppress(OSError):
        return subprocess.check_output([bash, "-c", "echo $LINENO"], env={}) == b"0\n"
    return False


class Host:
    """This machine, where attempts run. For each of them a thread of the pool waits.

    A run knows no more of where its tests run than this class has: a class in its place may run them elsewhere.
    """

    heeds: Container[str] = ()  # keys of lines that only companions know
    has_stuck = False  # a pool thread waits for a process that cannot be killed
    least: int | None = None  # MiB of the smallest GPU, once it has been asked for

    def __init__(self, machine: Machine, reaper: Reaper, locks: GpuLocks | None = None) -> None:
        self.machine = machine
        self.reaper = reaper
        self.locks = locks
        self.bash = find_program("bash") or "bash"
        self.health = Health(machine)
        # To look for a free port takes as long as to start a test: each slot keeps its own for the whole run.
        self.port_of = functools.lru_cache(maxsize=None)(free_port)

    def make_pool(self, tests: Tests, options: Options) -> Pool:
        """What there is to lease."""
        return make_pool(self.machine.devices, tests, options, self.locks)

    def open(
        self,
        run: str,
        slots: int,
        kept: Collection[int],
        post: Callable[[Any], None],
    ) -> None:
        """Prepare for so many attempts of a run at once, whose events go to `post`; the guard holds locks in `kept`."""
        self.run = run
        self.null = os.open(os.devnull, os.O_RDWR)  # the standard input of all tests
        self.kept = [*kept]
        if self.locks:
            self.kept += self.locks.files.values()
        self.post = post
        self.allow(slots)
        with suppress(RuntimeError):  # of threading; then nothing is measured
            self.workers.submit(self.health.watch)
        self.has_line_0 = has_line_0(self.bash)
        self.environment = test_environment(os.environb, run)
        os.environb.update(self.environment)  # Popen passes it on at no cost
        self.defaults = test_defaults(slots)

    def fitted(self, test: Test, options: Options) -> Test:
        """The test, with the share of a GPU that its `mem=` comes to on these devices."""
        if not test.attributes.mem:
            return test
        return by_memory(test, options.gpu_memory or self.memory)

    @property
    def memory(self) -> int:
        """MiB of the smallest GPU; 0 where no tool says it of each."""
        if self.least is None:
            self.least = self.health.least or in_time(
                lambda: nvml_least(self.machine.devices), 0
            )
        return self.least

    def allow(self, slots: int) -> None:
        """Let so many attempts run at once."""
        self.slots = slots
        self.workers = ThreadPoolExecutor(slots + 1)  # one measures

    def do_chores(self) -> None:
        """What is to be looked after every second, and first of all. Main thread only. Raises OSError."""
        self.reaper.collect()
        self.reaper.post_guard(self.bash, self.run, self.kept)
        self.oom_kills = oom_kills()

    def start(self, attempt: Attempt, log: str) -> None:
        """Let a pool thread run an attempt, whose output goes to the file `log`."""
        attempt.process = Process(self.reaper, self.run, attempt.lease.slot)
        if attempt.lease.shares == SHARES:
            self.health.alone.update(dict.fromkeys(attempt.lease.devices, attempt.process))
        try:
            self.workers.submit(self.run_attempt, attempt, log)
        except RuntimeError as error:  # of threading: no word of errno
            why = f"cannot run {attempt.test.label}: {error}; raise `ulimit -u`"
            self.post(Broken(time.monotonic(), attempt.test, why))

    def run_attempt(self, attempt: Attempt, log: str) -> None:
        """Run one attempt and post what happens: Exited, before it ShellEnded if that may take long; or Broken.

        Never raises. Called in its thread, as are the next two.
        """
        test = attempt.test
        try:
            self.post(self.run_process(attempt, log))
        except BaseException as error:  # a thread that dies in silence would hang the run
            attempt.process.signal(signal.SIGKILL)
            why = f"cannot run {test.label}: {error}"
            details = ""
            if not isinstance(error, OSError):
                why = f"internal error, {error!r}"
                details = traceback_text()
            self.post(Broken(time.monotonic(), test, why, details))

    def run_process(self, attempt: Attempt, log: str) -> Exited:
        """Run one attempt, from spawn to the look at what it leaves. Raises OSError."""
        test = attempt.test
        process = attempt.process
        kills = self.oom_kills
        before = test.junit and file_signature(test.junit)
        output = fresh_file(log)
        if test.preface:
            os.write(output, test.preface)
        process.spawn(self.job(attempt, log), output)
        process.wait()
        ended = time.monotonic()
        leaked = []
        if self.reaper.has_orphans():
            self.post(ShellEnded(ended, test))
            leaked = process.sweep()
        status = process.close()
        fault, failures, skipped_all = junit_fault(test.junit, before)
        cause = NO_CAUSE
        if status or failures:
            cause = find_cause(status, log, kills)
        if cause == OOM_KILLED:
            self.oom_kills = oom_kills()  # the next one is another
        asked = time.monotonic()
        sick = [
            Sick(device, process.stuck) for device in attempt.lease.devices if process.stuck
        ]
        if self.health.used and (status or failures or leaked):
            self.post(ShellEnded(ended, test, is_gone=True))
            sick += self.health.examine(attempt.lease)
        now = time.monotonic()
        return Exited(
            now,
            test,
            status,
            fault,
            failures,
            cause,
            leaked=tuple(map(str, leaked)),
            sick=sick,
            ended=ended,
            memory=now - asked,
            peak=process.peak,
            skipped_all=skipped_all,
        )

    def job(self, attempt: Attempt, log: str) -> Job:
        """The shell of one attempt. Raises OSError."""
        test = attempt.test
        slot = attempt.lease.slot
        own = {
            **self.machine.mask(attempt.lease),
            "RUN_TESTS_LABEL": test.label,
            "RUN_TESTS_SLOT": str(slot),
            "RUN_TESTS_ATTEMPT": str(attempt.number),
        }
        exported = test.shell.environment
        environment = directory = None
        if exported is not None:
            environment = {**exported, **self.environment}
            directory = test.shell.directory
            if b"BASH_ENV" in environment:  # the list's bash has read it, and this one need not
                own["BASH_ENV"] = to_text(environment.pop(b"BASH_ENV"))
        port = str(self.port_of(slot, self.slots))
        defaults = {**self.defaults, "MASTER_PORT": port, "PET_MASTER_PORT": port}
        if self.has_line_0:
            test = test._replace(line=test.line + 1)
        text = bash_text(test, own, defaults, self.reaper.scratch, attempt.process.mark)
        return Job(
            self.bash,
            [b"-c", to_bytes(text), to_bytes(test.file)],
            environment,
            log,
            directory,
            None if test.shell.has_stdin else self.null,
        )

    def abandon(self) -> None:
        """The thread of an attempt is lost, and others must not wait for it."""
        self.has_stuck = True
        self.workers.shutdown(wait=False)
        self.allow(self.slots)

    def close(self) -> None:
        """End what attempts have left, and say so."""
        self.health.over.set()
        self.workers.shutdown(wait=not self.has_stuck)
        os.close(self.null)
        left = self.reaper.close()
        if left and not self.has_stuck:
            warn(f"ended what some tests had left behind: {first_of(list(map(str, left)))}")


# What a test's JUnit file says of its end.

# Faults of a file in which nothing is this attempt's.
MISSING = "missing"
STALE = "stale, from an earlier run"


def junit_fault(path: str | None, before: str | None) -> Tuple[str, int, bool]:
    """Why a JUnit file cannot be used (`missing`, `stale`, …), how many cases failed, and whether all were skipped.

    The counts of suites are believed too, if they say more. However large the file, no more than a piece is in memory.
    """
    if path is None:
        return "", 0, False
    after = file_signature(path)
    if not after:
        return MISSING, 0, False
    if after == before:
        return STALE, 0, False
    from xml.parsers import expat

    parser = expat.ParserCreate(namespace_separator="}")
    found: Dict[str, int] = collections.Counter()  # by tag, and what a suite counts at most

    def on_start(name: str, attributes: Mapping[str, str]) -> None:
        tag = name.rpartition("}")[2]
        found[tag] += 1
        if attributes.get("type") == "pytest.xfail":  # a `skipped` that has run
            found["skipped"] -= 1
        if tag in ("testsuite", "testsuites"):
            counts = [attributes.get(key, "") for key in ("failures", "errors")]
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
    return fault, failures, 0 < found["testcase"] == found["skipped"]


# Causes: what a log's end says, as a human would sort it.

OOM_KILLED = Cause("out of memory (the kernel's OOM killer)")

# What a line of a failed test's log says for certain, as patterns; the first that is found counts: broken hardware,
# then what is wrong with the machine, then what only follows from other errors. The texts are those of CUDA, HIP,
# PyTorch, JAX, NCCL, pytest and the kernel, as public bug reports show them.
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
        "no tests collected": r"\bno tests ran in \d|^collected 0 items\s*$|^=* ?\d+ deselected in \d",
    },
}
# Lines that only quote such a text: source in a traceback, a warning, `set -x`, the result of another test case.
QUOTING_LINE = (
    r"^(?:>|\+ |[A-Z_]+=|=* ?\d+ (?:failed|passed|errors?)\b.* in [\d.]+s)"
    r"|UserWarning:|\b(?:PASSED|SKIPPED|XFAIL)\b|^\[ +(?:OK|RUN) +\]"
)
ERROR_LINES = (  # the first of these that matches a line, from the log's end, is the cause
    # pytest shows the exception so, and below it, in the same way, what it says on further lines
    r"^E +((?:\w+\.)*\w*(?:Error|Exception|Exit|Failed|Failure|Interrupt|Timeout)\b.*)$",
    r"^E +(assert .*)$",
    r"^E +(\S.*)$",
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)(?:: .*)?)$",
    r"^(.*(?i:\b(?:error|fatal|failed|failure|abort(?:ed)?|terminate[d]?|panic)\b).*)$",
)
ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"


def find_cause(status: int, log: str, kills: int) -> Cause:
    """Why an attempt has not passed, by its status, the end of its log, and the kernel's count of OOM kills before.

    Raises OSError on a full disk.
    """
    check_room(log)
    if death_of(status) == "SIGKILL" and oom_kills() > kills:
        return OOM_KILLED
    return diagnose(status, tail_of(log, CAUSE_BYTES))


def diagnose(status: int, log: str) -> Cause:
    """The cause that a log's end shows: a known one, else its last error line without what differs between runs."""
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
        return Cause(f"killed by {death}")
    for pattern in ERROR_LINES:
        for match in filter(None, map(re.compile(pattern).search, lines)):
            line = match.group(1)[:LINE_CHARS]
            return Cause(normalise(line), line=line)
    for line in filter(None, lines):
        last = line[:LINE_CHARS]
        return Cause(f"exit status {status}, last line: {normalise(last)}", line=last)
    return Cause(f"exit status {status}, without output")


def plain(text: str) -> str:
    """A line without terminal escapes and control characters."""
    return re.sub(CONTROL, " ", re.sub(ESCAPES, "", text)).strip()


def normalise(line: str) -> str:
    """An error line without what differs between runs of one failure: paths, addresses, ids, numbers."""
    line = re.sub(r"(?<![\w/])(?:\.{0,2}|~)(?:/[\w.+@~-]+)+/?", "PATH", line)
    line = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID", line)
    line = re.sub(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "ID", line)
    return re.sub(r"\d+(?:\.\d+)*(?:e[+-]?\d+)?", "N", line)


def oom_kills(path: str = "vmstat") -> int:
    """How many processes the kernel has killed for want of memory of the machine or, since Linux 4.13, of a cgroup."""
    return proc_number(path, rb"\boom_kill (\d+)")


def check_room(path: str) -> None:
    """Raises OSError if there is no room left where a file is."""
    try:
        status = os.statvfs(os.path.dirname(path) or ".")
    except FileNotFoundError:
        return
    free = status.f_bfree
    if os.geteuid():
        free = status.f_bavail
    if status.f_blocks and not free:
        raise OSError(errno.ENOSPC, "No space left on device", path)


# ---------------------------------------------------------------------------------------------------
# 8. Record: the files that outlive the run. Each line is on disk before the next event is looked at.
# ---------------------------------------------------------------------------------------------------


def read_history(options: Options) -> History:
    """What the run's own journal and those of `--history` say. Raises UsageError for one that cannot be read."""
    history = History(options.lists, options.flaky)
    own = os.path.realpath(journal_path(options))
    paths = {os.path.realpath(path): path for path in options.history}
    if os.path.isfile(own):
        paths[own] = journal_path(options)
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
    """Take in a line, and say whether it was a journal's. One that is torn, or another tool's, costs only itself."""
    start = max(line.rfind(b'{"event"'), 0)  # behind a torn line
    try:
        history.add(json.loads(line[start:]), is_own)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return False
    return True


def write_labels(path: str, labels: Collection[str]) -> None:
    """Write a file of labels anew, as `--only` reads it; without labels there is none. Raises OSError."""
    clear_name(path)
    if labels:
        with open(fresh_file(path), "wb") as file:
            file.writelines(to_bytes(f"{label}\n") for label in labels)


def failures_path(options: Options) -> str:
    """The file that names the tests which failed."""
    return f"{options.fail_dir or options.log_dir}/failures"


def journal_path(options: Options) -> str:
    """The run's own journal."""
    return options.journal or f"{options.log_dir}/run_tests.jsonl"


def deferred_path(options: Options) -> str:
    """The file in which a run names the deferred tests; empty if it defers none, or reads that very file."""
    path = f"{options.log_dir}/deferred.txt"
    may_defer = options.only or options.max_gpus is not None
    if may_defer and not options.reads(path):
        return path
    return ""


class Record:
    """All that the run writes: the log dir, the journal, `failures`, JUnit files for tests that left none.

    Raises OSError where it cannot write.
    """

    def __init__(self, options: Options, run: str) -> None:
        self.options = options
        self.run = run
        self.log_dir = options.log_dir
        self.failures = failures_path(options)
        self.journal = journal_path(options)
        self.lines: Dict[str, List[bytes]] = {}  # that this run has appended, by file
        make_log_dir(self.log_dir)
        self.lock = lock_directory(self.log_dir)
        folder = os.path.dirname(self.failures)
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "no file can be written", self.failures)
        check_kind(self.journal, b"{\n", "journal")
        self.append(self.journal, b"")
        if options.junit:
            check_kind(options.junit, b"<", "XML file")
            # Try whether it can be written, and take an older one away.
            write_xml(options.junit, xml_element("testsuites"))
            os.unlink(options.junit)
        if not options.fail_dir and not options.reads(self.failures):
            clear_name(self.failures)

    def append(self, path: str, line: bytes) -> None:
        """Append a line to a file, below one that a dying run has torn or a test has left open. Raises OSError.

        It is never a device, and in the log dir no link. If a test has deleted it, all lines of ours come back.
        """
        lines = self.lines.setdefault(path, [])
        lines.append(line)
        if not os.path.exists(path):
            line = b"".join(lines)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        real = os.path.abspath(path)
        if self.is_ours(real):
            flags |= os.O_NOFOLLOW
        os.makedirs(os.path.dirname(real), exist_ok=True)
        with open(regular_file(path, flags), "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "No space left on device", path)

    def note(self, event: str, **values: Any) -> None:
        """Append one event to the journal, one JSON object a line: the only state that there is. Raises OSError."""
        now = round(time.time(), 3)
        record = {"event": event, "run": self.run, "time": now, **values}
        self.append(self.journal, to_bytes(f"{json.dumps(record)}\n"))

    def log_path(self, test: Test, attempt: int = 0) -> str:
        """The log of a test's last attempt, or of an earlier one."""
        middle = f".attempt{attempt}" * bool(attempt)
        return f"{self.log_dir}/{test.stem}{middle}.log"

    def run_start(self, selection: Selection, machine: Machine) -> None:
        """Journal what is to run and what is not; a run that starts the tests again has to know."""
        options = self.options
        left_out = [*selection.deferred, *chain.from_iterable(selection.left_out.values())]
        self.note(
            "run_start",
            version=VERSION,
            lists=options.lists,
            tests=len(selection.tests),
            commit=next(filter(None, map(os.environ.get, COMMIT_VARIABLES)), None),
            gpus=machine.tokens,
            directory=os.getcwd(),
            shard=options.shard and str(options.shard),
            selected=[test.name for test in selection.selected],
            left_out=[test.name for test in left_out],
        )
        for test in selection.selected:
            if test.junit and self.is_ours(test.junit):
                with suppress(OSError):  # were this run killed, it would be green by one before
                    os.unlink(test.junit)
        path = deferred_path(options)
        if path:
            write_labels(path, dict.fromkeys(test.origin for test in selection.deferred))

    def is_ours(self, path: str) -> bool:
        """Whether a file lies in the log dir, where nothing is a user's."""
        return os.path.dirname(path) == os.path.abspath(self.log_dir)

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
            log=self.log_path(test),
        )

    def attempt_end(self, result: Result) -> None:
        """Journal how an attempt has ended; the last one's outcome is the test's."""
        test = result.test
        said = {
            "reason": result.reason,
            "cause": result.cause.text,
            "leaked": result.leaked,
            "origin": test.origin if test.origin != test.label else "",
            "memory": round(result.memory, 3),
            "gpu_memory": result.peak,
            "lock": test.attributes.lock,  # with the next two, what it waited for besides room
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
            **{name: value for name, value in said.items() if value},
        )

    def put_away(self, result: Result) -> None:
        """Keep the log and the JUnit file of an attempt from the next one (`x.attempt1.log`)."""
        test = result.test
        with suppress(FileNotFoundError):
            # Also a folder or a link that a test has put into the place of its log.
            os.rename(self.log_path(test), self.log_path(test, result.attempt))
        if test.junit and result.junit_fault not in (MISSING, STALE):
            # Without `.xml` at its end, since CI is to read the last attempt's alone.
            put_aside(test.junit, f"{test.junit}.attempt{result.attempt}")

    def test_end(self, result: Result) -> None:
        """Note a failure, mend the JUnit file."""
        if self.options.fails(result.outcome):
            self.append(self.failures, to_bytes(f"{result.test.label}\n"))
        path = result.test.junit
        never_ran = result.status is None and result.outcome is not Outcome.DEFERRED
        if path and (result.junit_fault or never_ran):
            try:
                self.stand_in(path, result)
            except OSError as error:  # the verdict is in the journal already
                warn(f"cannot write {path} ({error.strerror}); the test has no JUnit file")

    def stand_in(self, path: str, result: Result) -> None:
        """Write a JUnit file in place of one that is missing, stale, truncated, or without its test's failure.

        It has the complete cases of the attempt's own file, and one that says how the test ended. Raises OSError.
        """
        is_ours = self.is_ours(path)
        cases: List[Any] = []
        if result.status is not None and result.junit_fault not in (MISSING, STALE):
            cases += complete_cases(path)
        elif not is_ours:
            check_kind(path, b"<\xef", "XML file")
        cases.append(case_of([result], self))
        write_xml(path, junit_of(result.test.label, result.seconds, cases), is_ours)

    def tail(self, result: Result, attempt: int = 0) -> str:
        """The end of the log of an attempt; empty if it has not run."""
        if result.status is None:
            return ""
        return tail_of(self.log_path(result.test, attempt))

    def restore(self) -> None:
        """Put back the log dir if a test has deleted it. Raises OSError, MachineError if another run has it now."""
        make_log_dir(self.log_dir)
        if os.stat(self.log_dir).st_ino != os.fstat(self.lock).st_ino:
            os.close(self.lock)
            self.lock = lock_directory(self.log_dir)

    def note_crash(self, why: str, details: str) -> str:
        """Keep the traceback of an internal error beside the logs; returns what to say of it."""
        path = f"{self.log_dir}/run_tests.traceback"
        with suppress(OSError), open(fresh_file(path), "wb") as file:
            file.write(to_bytes(details))
        return f"{why}; details are in {path}"

    def run_end(self, results: Results, code: int, quarantined: Iterable[Sick]) -> None:
        """Journal how the run has ended, and leave only its own labels in `failures`. Raises OSError."""
        is_whole = not any(result.outcome.is_unfinished() for result in results)
        if is_whole and not self.options.fail_dir and self.options.reads(self.failures):
            failed = [each.test.label for each in results if self.options.fails(each.outcome)]
            write_labels(self.failures, failed)
        elif self.failures in self.lines:
            self.append(self.failures, b"")  # a test may have deleted it
        self.note(
            "run_end",
            exit=code,
            outcomes=collections.Counter(result.outcome.value for result in results),
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
    give_up_at = time.monotonic() + HELD_S
    while time.monotonic() < give_up_at:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(FOLLOW_S)
            continue
        except OSError:  # a file system without locks
            pass
        return descriptor
    raise MachineError(
        f"another run, or the one that has started this one, is writing to {path}; "
        "give this one a --log-dir of its own"
    )


# JUnit files.


def xml_text(text: str) -> str:
    """Text without terminal escapes and what XML cannot hold."""
    return re.sub(
        "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", re.sub(ESCAPES, "", text)
    )


def xml_element(
    tag: str,
    text: str = "",
    parts: Iterable[Any] = (),
    **attributes: str,
) -> Any:
    """An element with these parts, and with what XML can hold of these texts."""
    from xml.etree import ElementTree  # few runs write XML, and its import costs a start 6 ms

    fit = {name: xml_text(value) for name, value in attributes.items()}
    element = ElementTree.Element(tag, fit)
    element.text = xml_text(text)
    element.extend(parts)
    return element


def junit_of(name: str, seconds: float, cases: Sequence[Any]) -> Any:
    """A JUnit file with these cases in one suite, which has ended now."""
    counts = {
        kind: str(sum(case.find(tag) is not None for case in cases))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    began = time.localtime(time.time() - seconds)
    suite = xml_element(
        "testsuite",
        parts=cases,
        name=name,
        **counts,
        tests=str(len(cases)),
        time=f"{seconds:.3f}",
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%S", began),
    )
    return xml_element("testsuites", parts=[suite])


def complete_cases(path: str) -> Iterator[Any]:
    """The complete cases of a JUnit file, up to where it breaks off. One that is too large for that is kept aside."""
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

    A test that is flaky has a `flakyFailure` (or `flakyError`) for each attempt before, one that did not pass has
    its first failure, and a `rerunFailure` for each that followed. An attempt that a GPU has spoilt is none.
    """
    last = attempts[-1]
    failed = attempts
    if last.outcome is Outcome.FLAKY:
        failed = attempts[:-1]
    elif last.outcome.is_ok():
        failed = []
    parts = []
    if last.outcome.is_excused() or last.outcome is Outcome.DEFERRED:
        parts.append(xml_element("skipped", message=last.told()))
    for result in failed:
        tag = "failure" if result.outcome is Outcome.FAILED else "error"  # JUnit's words
        said = {"message": result.told(), "type": result.outcome.value}
        tail = record.tail(result, 0 if result is last else result.attempt)
        if result is failed[0] and not last.outcome.is_ok():
            parts.append(xml_element(tag, tail, **said))
        else:
            kind = "flaky" if last.outcome.is_ok() else "rerun"
            trace = xml_element("stackTrace", tail)
            parts.append(xml_element(f"{kind}{tag.capitalize()}", parts=[trace], **said))
    parts.sort(key=lambda part: "rror" in part.tag)  # Maven's schema wants failures first
    if last.status is not None:
        # The schemas of Jenkins and Maven have no properties of a case; GitLab and Jenkins link the attachment.
        text = f"""
place: {last.lease.place}
attempt: {last.attempt}
cause: {last.cause.text or "none"}
JUnit file: {last.junit_fault or "as it is"}
[[ATTACHMENT|{os.path.abspath(record.log_path(last.test))}]]
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
    """Write an XML file whole or not at all, in place of a file of that name. Raises OSError.

    A link stays, unless it stands in a folder of ours.
    """
    from xml.etree import ElementTree

    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with open(fresh_file(temporary), "wb") as file:
            ElementTree.ElementTree(root).write(file, "utf-8", xml_declaration=True)
        with suppress(FileNotFoundError):
            check_name(path, has_links=is_ours)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


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


@functools.lru_cache(maxsize=None)
def warn_once(message: str) -> None:
    """The same, however often there is reason to say it."""
    warn(message)


def tell(line: str) -> None:
    """One line on stderr, which begins with a place or with another name than the program's."""
    tell_ci(without_ci_commands(line))


def tell_ci(line: str) -> None:
    """A line on stderr that a CI service may obey, if stderr can be written."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def silence(stream: Any) -> None:
    """Let a stream that nobody can read end in the null device: else Python flushes it at exit, and complains."""
    with suppress(OSError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())


class Trace:
    """The runner's standard output. When its reader goes away (`| head`), the run goes on without it."""

    at_line_start = True
    is_lost = False  # for want of room, say; a reader that goes away does so on purpose

    def __init__(self, stream: BinaryIO, has_colour: bool = False) -> None:
        self.stream = stream
        self.has_colour = has_colour
        self.wrote_at = time.monotonic()

    def write(self, data: bytes) -> None:
        """Print bytes; they are on their way at the next flush."""
        if data:
            self.at_line_start = False  # so it stays where a signal cuts the writing short
            self.guarded(self.stream.write, data)
            self.at_line_start = data.endswith(b"\n")
            self.wrote_at = time.monotonic()

    def flush(self) -> None:
        self.guarded(self.stream.flush)

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.is_lost = True
                warn(
                    f"standard output cannot be written ({error.strerror}); going on without it"
                )
            silence(self.stream)

    def exit_code(self, code: int) -> int:
        """The exit code of what has been printed here, which not all of it may have reached."""
        self.flush()
        return code or EXIT_MACHINE * self.is_lost

    def line(self, text: str = "", colour: str = "") -> None:
        """Print a line of the runner's own, never on the end of a line that a test has left open."""
        text = without_ci_commands(text)
        if colour and self.has_colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        self.command(text)

    def command(self, text: str) -> None:
        """Print a line that a CI service may obey."""
        if not self.at_line_start:
            self.write(b"\n")
        self.write(to_bytes(f"{text}\n"))

    def copy(
        self, path: str, offset: int = 0, end: float = math.inf, is_tamed: bool = False
    ) -> int:
        """Copy a file from `offset` on, up to `end`; returns where it ended. Raises OSError if it cannot be read.

        Where it is tamed, no CI service finds a fold in it.
        """
        with open(regular_file(path), "rb") as file:
            file.seek(offset)
            while True:
                data = file.read(int(max(min(COPY_BYTES, end - offset), 0)))
                if is_tamed:  # whole lines, unless one is of no sensible length
                    data += file.readline(COPY_BYTES)
                if not data:
                    return offset
                offset += len(data)
                if is_tamed:
                    data = re.sub(FORGED, rb"\g<0> ", data)
                self.write(data)


class Screen(Trace):
    """A trace on a terminal. What is printed scrolls above a block of lines that is drawn again and again.

    While the block stands, lines are held back until the next drawing: at most 10 a second reach the terminal.
    """

    is_live = False  # the block may stand
    modes: Sequence[Any] = ()  # of the terminal before the run, if what is typed is read
    block: Sequence[str] = ()  # as it stands on the screen
    drawn_at = -math.inf

    def is_ours(self) -> bool:
        """Whether the runner has the terminal: behind `&` it neither draws nor reads keys."""
        with suppress(OSError):
            return os.tcgetpgrp(self.stream.fileno()) == os.getpgrp()
        return False

    def write(self, data: bytes | str) -> None:
        """Print bytes, or a text that was to go to stderr."""
        if isinstance(data, str):
            data = to_bytes(data)
        self.erase()
        super().write(data)

    def flush(self) -> None:
        if not self.is_live:
            super().flush()

    def erase(self) -> None:
        """Take the block away."""
        if self.block:
            self.guarded(self.stream.write, b"\r\x1b[%dA\x1b[J" % len(self.block))
        self.block = ()

    def draw(self, lines: List[str]) -> None:
        """Show these lines below all others, in place of those before; the terminal cuts off what is too long."""
        now = time.monotonic()
        if now < self.drawn_at + REDRAW_S:
            return
        self.drawn_at = now
        lines = lines[: shutil.get_terminal_size().lines - 1]
        if lines != self.block:
            self.erase()
            if self.at_line_start and self.is_ours():
                drawn = "".join(f"{line}\r\n" for line in lines)
                self.guarded(self.stream.write, to_bytes(f"{NO_WRAP}{drawn}{WRAP}"))
                self.block = lines
        super().flush()

    @contextmanager
    def live(self, has_keys: bool) -> Iterator[None]:
        """While it lasts, the block may stand, and stderr on the same terminal goes above it."""
        import termios
        import tty

        if has_keys and os.isatty(0) and self.is_ours():
            self.modes = termios.tcgetattr(0)
            tty.setcbreak(0, termios.TCSADRAIN)  # each key at once, and not shown
        errors: Any = self if os.isatty(2) else sys.stderr
        self.is_live = True
        try:
            with redirect_stderr(errors):
                yield
        finally:
            self.erase()
            self.is_live = False
            self.flush()
            if self.modes and self.is_ours():  # it may have gone, or be another job's
                with suppress(termios.error):
                    termios.tcsetattr(0, termios.TCSADRAIN, list(self.modes))

    def typed(self) -> bytes:
        """What has been typed since the last look."""
        from select import select as ready_of

        if self.modes and self.is_ours() and ready_of([0], [], [], 0)[0]:
            return os.read(0, COPY_BYTES)
        return b""


def open_trace(color: str) -> Trace:
    """Standard output; `color` is auto, always or never, and auto obeys $NO_COLOR (see no-color.org).

    A CI service that has a terminal keeps what is drawn on it as text: nobody watches there.
    """
    stream = open_stdout()
    is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    is_watched = stream.isatty() and not is_dumb and not os.environ.get("CI")
    if color == "auto" and (os.environ.get("NO_COLOR") or not is_watched):
        color = "never"
    kind = Screen if is_watched else Trace
    return kind(stream, color != "never")


class Fold(NamedTuple):
    """How a CI service folds a part of its page away: `{title}` is a line, `{name}` a word."""

    variable: str  # of the environment, set by the service alone
    begin: str
    end: str
    opens: str = ""  # begins a heading that is not folded


NO_FOLD = Fold("", f"\n{RULE}\n{{opens}}>>> {{title}}\n{RULE}", "")
FOLDS = (
    Fold("GITHUB_ACTIONS", "::group::{title}", "::endgroup::"),
    Fold(
        "GITLAB_CI",
        "\x1b[0Ksection_start:0:{name}[collapsed=true]\r\x1b[0K{title}",
        "\x1b[0Ksection_end:0:{name}\r\x1b[0K",
    ),
    # In Buildkite's pages a heading ends where the next begins; only the last kind of them stands open.
    Fold("BUILDKITE", "--- {title}", "", "+++ "),
    Fold("TF_BUILD", "##[group]{title}", "##[endgroup]"),
    Fold(
        "TEAMCITY_VERSION",
        "##teamcity[blockOpened name='{name}']",
        "##teamcity[blockClosed name='{name}']",
    ),
)
# What in a log would begin or end a fold: a space behind it breaks it. All else in it still acts.
FORGED = (
    rb"(?im):(?=:(?:end)?group\b|:stop-commands\b)"
    rb"|#(?=#\[(?:end)?(?:group|section)\b|#teamcity\[block)"
    rb"|section_(?:start|end)(?=:\d)"
    rb"|^(?=(?:---|\+\+\+|~~~|\^\^\^)[ \r\n])"
)


class Console:
    """Shows a run. The methods are called in the order in which things happen."""

    finished = 0  # tests that ran to an end, or will not run
    failed = 0  # of them
    growing: Attempt | None = None  # whose log is shown as it grows
    offset = 0  # up to which it has been shown

    def __init__(
        self,
        trace: Trace,
        record: Record,
        selection: Selection,
        outlook: Outlook,
        sums_up: bool,
    ) -> None:
        self.trace = trace
        self.record = record
        self.options = record.options
        self.total = len(selection.selected)
        self.outlook = outlook
        # Whether it names what failed, and sums up the run; a script does that itself.
        self.sums_up = sums_up
        # Lines say when tests start and end. Else logs are shown as they grow, and nothing else before the end.
        self.has_markers = not outlook.schedule.pool.sequential
        self.replays = self.has_markers and sums_up  # logs are shown apart from the markers
        default = "replay"
        if self.replays and isinstance(trace, Screen):
            default = "failures"
        self.output = self.options.output or default
        found = [fold for fold in FOLDS if os.environ.get(fold.variable)]
        self.fold = [*found, NO_FOLD][0]  # of the replayed logs
        self.began = time.monotonic()
        # Whose logs are still to be shown in list order.
        self.turns = collections.deque(selection.tests)
        self.ready: Dict[Test, Result] = {}  # of these, what has ended

    def live(self) -> ContextManager[None]:
        """While it lasts, a terminal shows what runs. A script's tests may want the keys."""
        if self.has_markers and isinstance(self.trace, Screen):
            return self.trace.live(self.sums_up)
        return nullcontext()

    def mark(self, text: str, colour: str = "") -> None:
        """A line between those of tests, where there are such lines."""
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
            warn(f"no GPU found (asked: {', '.join(SOURCES)}){how}")
        how = " [as given]" * bool(self.options.gpus)
        self.mark(f"Detected {len(tokens)} GPU(s): {' '.join(tokens)}".rstrip() + how)
        left_s = self.outlook.left_s(self.began)
        if left_s is not None:
            self.mark(f"{counted(self.total, 'test')}, {about(left_s)} by earlier runs")

    def launched(self, attempt: Attempt) -> None:
        """An attempt starts; what follows in the log of its test is this attempt's."""
        self.mark(f">>> Starting: {attempt.test.label} on {attempt.lease.place}")
        self.growing = attempt
        self.offset = 0

    def tick(self) -> float:
        """Nothing has happened for a while. Returns the seconds up to the next call, if nothing happens."""
        if not self.has_markers:
            if self.output in ("replay", "ordered"):
                self.follow()
            return FOLLOW_S
        if isinstance(self.trace, Screen):
            if b"t" in self.trace.typed():
                self.tell_running()
            self.trace.draw(self.block())
            return LIVE_S
        if time.monotonic() >= self.trace.wrote_at + SILENCE_S:
            self.tell_progress()
        return CHORES_S

    def follow(self) -> None:
        """Show what has come since the last look."""
        if not self.growing or not self.growing.process.pid:
            return  # its log is of an earlier run
        path = self.record.log_path(self.growing.test)
        with suppress(OSError):  # a test may take its log away
            if os.path.getsize(path) < self.offset:
                self.offset = 0  # `>/dev/stderr` has cut it
            self.offset = self.trace.copy(path, self.offset)

    def age(self) -> float:
        """Seconds since the run has begun."""
        return time.monotonic() - self.began

    def progress(self) -> str:
        """`31/49, 2 failed, about 6 min left`."""
        said = f"{self.finished}/{self.total}"
        if self.failed:
            said += f", {self.failed} failed"
        left_s = self.outlook.left_s(time.monotonic())
        if left_s is not None:
            said += f", {about(left_s)} left"
        return said

    def block(self) -> List[str]:
        """The live lines: the run, then each running test."""
        now = time.monotonic()
        lines = [f"[{clock(self.age())}] {self.progress()}"]
        for attempt in self.outlook.running():
            ran = clock(now - attempt.began)
            expected_s = self.outlook.expected_s(attempt.test)
            if expected_s:
                ran += f" of {clock(expected_s)}"
            lines.append(f"{attempt.lease.place}  {ran}  {attempt.test.label}")
        return lines

    def tell_running(self) -> None:
        """Say what runs, for how long, and what it has printed last: on SIGUSR1 and at the key t."""
        for attempt in self.outlook.running():
            self.announced(attempt.test, time.monotonic() - attempt.began, "Running")
        self.tell_progress()

    def tell_progress(self) -> None:
        self.remark(f"Running: {self.progress()}, at {clock(self.age())}")

    def announced(self, test: Test, seconds: float, how: str = "Slow") -> None:
        """It runs for long."""
        said = last_line(tail_of(self.record.log_path(test))) or "its log is empty"
        self.remark(f"{how}: {test.label} [{show_duration(seconds)}; {said}]")

    def ended(self, result: Result, progress: str, attempt: int = 0) -> None:
        """An attempt has run to its end. Its log will be that of `attempt`, or else the test's."""
        colour = GREEN if result.outcome.is_ok() else RED
        self.mark(
            f">>> Finished: {result.test.label} on {result.lease.place} "
            f"[{result.verdict()}, {result.seconds:.1f}s, {progress}, at {clock(self.age())}]",
            colour,
        )
        if result.outcome.is_failure():
            log = self.record.log_path(result.test, attempt)
            self.mark(f"    {result.why()} \u2192 {log}")
        if not self.has_markers and self.shows(result):
            self.follow()
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
        if result.status is not None:
            self.ended(result, progress)
        elif has_ended:
            self.mark(
                f">>> {outcome.value.capitalize()}: {result.test.label} [{result.reason}, {progress}]"
            )
        if self.replays:
            self.replay_early(result)
        elif self.sums_up and fails and (result.test.announces or result.status is None):
            self.trace.write(to_bytes(f"{error}\n"))  # as `echo` prints it
        elif result.reason and not self.has_markers and not self.sums_up:
            tell(f"{result.test.where}: {result.test.label} {result.told()}")

    def replay_early(self, result: Result) -> None:
        """Show the log of a test that has ended, if it is not to be shown at the end of the run."""
        if self.output == "ordered":
            self.ready[result.test] = result
            while self.turns and self.turns[0] in self.ready:
                self.replay(self.ready.pop(self.turns.popleft()))
        elif self.output == "immediate" and self.options.fails(result.outcome):
            self.replay(result)

    def shows(self, result: Result) -> bool:
        """Whether its log is to be shown: of a test that passed, an empty one is not."""
        if result.status is None or self.output == "none":
            return False
        if self.outlook.schedule.interrupts:
            return self.options.fails(result.outcome)
        shows_all = self.output in ("replay", "ordered") and self.record.tail(result)
        return bool(shows_all) or not self.options.accepts(result.outcome)

    def replay(self, result: Result) -> None:
        """One log, byte for byte, below a banner or in a fold; a last line without an end gets one.

        What fails is never folded away. Of a log that is shown at once, there is the end.
        """
        if not self.shows(result):
            return
        fold = self.fold if self.options.accepts(result.outcome) else NO_FOLD
        stem = result.test.stem
        title = f"{stem} [{result.test.label}: {result.verdict()}, {result.seconds:.1f}s]"
        title = without_ci_commands(title)
        self.trace.command(fold.begin.format(title=title, name=stem, opens=self.fold.opens))
        path = self.record.log_path(result.test)
        try:
            start = 0
            if self.output == "immediate":
                start = max(os.path.getsize(path) - TAIL_BYTES, 0)
            self.trace.copy(path, start, is_tamed=self.fold is not NO_FOLD)
        except OSError as error:
            self.trace.line(f"(its log cannot be read: {error.strerror})")
        if "\x1b" in self.record.tail(result):
            self.trace.write(b"\x1b\\\x1b[0m")  # ends a title or a colour that it has begun
        if fold.end:
            self.trace.command(fold.end.format(name=stem))

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
    attempts: Attempts, seconds: float, schedule: Schedule, record: Record, memory: float
) -> List[str]:
    """What did not pass, where its log is, why; what a run took, and how to run again what failed.

    `memory`: MiB of the smallest GPU, if that is known.
    """
    results = results_of(attempts)
    return [
        *troubles(attempts, record),
        *causes(results),
        *(f"quarantined: GPU {sick.device.token} ({sick.reason})" for sick in schedule.sick),
        *figures(list(schedule.results.values()), seconds, schedule.pool),
        total_line(results, seconds, schedule.pool),
        *proposals(attempts, memory),
        *again(results, schedule.options),
    ]


def troubles(attempts: Attempts, record: Record) -> Iterator[str]:
    """What did not simply pass, where its log is and what says why; what else there is to say of a test."""
    for ends in attempts:
        result = ends[-1]
        label = result.test.label
        is_flaky = result.outcome is Outcome.FLAKY
        if result.outcome not in (Outcome.PASSED, Outcome.DEFERRED, Outcome.NOT_RUN):
            line = f"{result.verdict()}, {result.seconds:.1f}s: {label}"
            if result.status is not None:
                line += f" ({record.log_path(result.test, int(is_flaky))})"
            yield line
            why = ends[0 if is_flaky else -1].why()
            if why not in line:
                yield f"    {why}"
        if result.leaked:
            yield f"{told_leaks(result.leaked)}: {label} left {first_of(result.leaked)}"
        if result.outcome.is_pass() and result.junit_fault:
            yield f"passed without its JUnit file ({result.junit_fault}): {label}"
        if result.outcome.is_pass() and result.reason:
            yield f"{result.reason}: {label}"


def causes(results: Results) -> Iterator[str]:
    """The failures by their causes, the most frequent first."""
    labels = collections.defaultdict(list)
    for result in results:
        if result.outcome.is_failure():
            labels[result.cause.text or result.reason].append(result.test.label)
    total = sum(map(len, labels.values()))
    if len(labels) < total:  # else their own lines say it
        yield f"{counted(total, 'failure')} by cause:"
        for cause, alike in sorted(labels.items(), key=lambda item: -len(item[1])):
            yield f"{len(alike):5} x {cause}: {first_of(alike)}"


def slowest(results: Iterable[Result]) -> Results:
    """What took longest."""
    ran = [result for result in results if result.status is not None]
    return sorted(ran, key=lambda result: -result.seconds)[:SLOWEST]


def figures(attempts: Attempts, seconds: float, pool: Pool) -> Iterator[str]:
    """What took longest, what had all GPUs, and how much the GPUs have gained."""
    results = results_of(attempts)
    longest = [
        f"{result.test.label} {show_duration(result.seconds)}" for result in slowest(results)
    ]
    if len(longest) < 2:
        return
    yield f"slowest: {', '.join(longest)}"
    if pool.sequential or any(result.outcome.is_unfinished() for result in results):
        return
    alone = [result.test.label for result in results if 1 < len(result.gpus) == pool.size]
    if alone:
        yield f"ran by itself, on all GPUs: {first_of(alone)}"
    if not pool.quarantined:  # those have worked too, and would be missing in the figure
        each_s = {ends[-1].test: math.fsum(end.seconds for end in ends) for ends in attempts}
        all_s = math.fsum(each_s.values())
        best_s = shortest(each_s, pool.size, pool.cpus)
        yield (
            f"{all_s / seconds:.1f} times as fast as one by one ({show_duration(all_s)}); "
            f"no order takes less than {show_duration(best_s)}"
        )


def proposals(attempts: Attempts, memory: float) -> Iterator[str]:
    """What `mem=` could be of tests that had a GPU of so many MiB alone, and would leave room for each other."""
    fit = slowest(
        result
        for *_, result in attempts
        if result.outcome.is_pass()
        and result.test.gpus == 1
        and 0 < result.peak * MEMORY_MARGIN <= memory / 2
    )
    said = [f"{each.test.label} {show_memory(each.peak * MEMORY_MARGIN)}" for each in fit]
    if len(said) > 1:
        yield f"mem= could be: {', '.join(said)}"


def total_line(results: Results, seconds: float, pool: Pool) -> str:
    """How many tests had which outcome, where, in which time."""
    gpus = sum(bool(device.token) for device in pool.devices)
    ran = [result for result in results if result.outcome is not Outcome.DEFERRED]
    outcomes = tally(ran) or "none ran beside others"
    return f"{counted(len(ran), 'test')} in {seconds:.1f}s on {gpus} GPU(s): {outcomes}"


def again(results: Results, options: Options) -> Iterator[str]:
    """The commands that run again what did not pass, and one failure alone. A list from a pipe cannot be had again."""
    owed = [result for result in results if not options.accepts(result.outcome)]
    program, *words = options.command
    if not owed or any(word == "-" or word.startswith("/dev/fd/") for word in words):
        return
    program = f"python3 {shlex.quote(program)}"
    said = shlex.join(word for word in words if word != "--rerun-failed")
    yield f"Rerun: {program} --rerun-failed {said}"
    shard = " --shard 1/1" * bool(options.shard)
    ran = [result.test.origin for result in owed if result.status is not None]
    for label in ran[:1]:
        yield f"Alone: {program} {said} --only <(echo {shlex.quote(label)}){shard}"


def github_errors(results: Results, record: Record) -> Iterator[str]:
    """GitHub's annotations of the failed tests, where it has started the run; it shows ten of a step."""
    top = os.environ.get("GITHUB_WORKSPACE")
    failed = [result for result in results if result.outcome.is_failure()]
    escapes = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})
    for result in failed[: SHOWN * bool(top)]:
        place = ""
        # As pytest ends a traceback: `tests/test_x.py:12: AssertionError`.
        places = re.findall(r"(?m)^([^\s:]+):(\d+): (?:in )?\w+$", record.tail(result))
        for name, line in places[-1:]:
            path = os.path.relpath(f"{result.test.shell.directory}/{name}", top)
            place = f"file={path},line={line},"
        title = result.test.label.translate(escapes)
        yield f"::error {place}title={title}::{result.told().replace('%', '%25')}"


def first_of(names: Sequence[str]) -> str:
    """The first ten of many names, and how many more there are."""
    shown = " ".join(names[:SHOWN])
    if len(names) > SHOWN:
        shown += f" \u2026 with {len(names) - SHOWN} more"
    return shown


def last_line(text: str) -> str:
    """The last line of a log that says anything, short and fit to be shown."""
    lines = [line for line in text.splitlines() if "warning: setlocale:" not in line]
    said = ["", *filter(None, map(plain, lines))]
    return said[-1][:LINE_CHARS]


def tally(results: Iterable[Result]) -> str:
    """`3 passed, 1 failed`: how many tests had which outcome."""
    counts = collections.Counter(result.outcome for result in results)
    return ", ".join(
        f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]
    )


def account(selection: Selection, options: Options) -> Iterator[str]:
    """What of the lists was selected and which options keep the rest from running, if there is a rest."""
    deferred = collections.Counter(selection.deferred.values())
    left_out = {why: len(tests) for why, tests in selection.left_out.items()}
    if not (deferred or left_out):
        return
    total = len(selection.tests) + sum(left_out.values())
    share = len(selection.selected) / total
    line = f"Selected {len(selection.selected)} of {counted(total, 'test')} ({share:.1%})"
    for what, counts in (("deferred", deferred), ("left out", left_out)):
        if counts:
            said = ", ".join(f"{each} by {why}" for why, each in counts.items())
            line += f"; {what} {said}"
    path = deferred_path(options)
    if deferred and path and not options.list:  # else nothing is written
        line += f"; see {path}"
    yield line


def clock(seconds: float) -> str:
    """`3:12`, `1:03:12`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def about(seconds: float) -> str:
    """`about 12 min`: as exact as a forecast can be."""
    return f"about {math.ceil(seconds / 60)} min"


def show_duration(seconds: float) -> str:
    """`4.2s`, `12:30`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    return clock(round(seconds))


Verdict = Tuple[int, List[str]]  # the exit code of a run, and the last lines of its trace


def verdict_of(results: Results, schedule: Schedule) -> Verdict:
    """The run's exit code, and the last lines of its trace.

    What the machine did comes before what the user did, and both before the tests.
    """
    options = schedule.options
    outcomes = {result.outcome for result in results}
    is_empty = outcomes <= {Outcome.SKIPPED, Outcome.DEFERRED}  # nothing was tested
    unfinished = tally(result for result in results if result.outcome.is_unfinished())
    code = EXIT_OK
    why = ""
    if not all(map(options.accepts, outcomes)):
        code = EXIT_FAILED
    elif outcomes and is_empty and not (options.shard and outcomes == {Outcome.DEFERRED}):
        code = EXIT_NOTHING  # an empty shard is fine
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
    excused = tally(result for result in results if result.outcome.is_excused())
    if failed:
        lines.append(f"Error in the following test cases: {' '.join(failed)}")
    elif not why:
        said = "No test ran" if is_empty else "All tests passed"
        lines.append(said + f"; {excused}" * bool(excused))
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


def parse_gpu_option(text: str) -> str:
    """`4`, or ids such as `0,2`, `2,`, `GPU-…`. Raises BadValue."""
    token = "|".join(reader.token for reader in READERS)
    valid = rf"\d{{1,4}}|(?!\d+$)((?:{token})(,|$))+"
    return parse_word(valid, "a count, or ids such as 0,2 (one id: 2,)", text)


def parse_expression(text: str) -> Callable[[Sequence[str]], bool]:
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
    return lambda names: bool(eval(code, {"names": "\0".join(names).casefold()}))


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
    """A file of labels, one a line; blank lines aside, `# comments` may be labels. Raises BadValue."""
    lines = list(filter(None, read_labels(path)))
    if not lines:
        raise BadValue(f"{path}: names no test; one label per line")
    tests = [re.sub(RUN, "", line) for line in lines]  # of which `failures` names runs
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


def parse_shard(text: str) -> Shard | str:
    """`2/4`, or `auto`. Raises BadValue, also for more parts than any CI has jobs."""
    if text == "auto":
        return text
    what = "K/N, K from 1 to N, such as 2/4, nor auto"
    parse_word(r"[1-9][0-9]{0,3}/[1-9][0-9]{0,3}", what, text)
    shard = Shard(*map(int, text.split("/")))
    if shard.number > shard.total:
        raise BadValue(f"{text!r} is not {what}")
    return shard


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


def find_shard(environ: Environ) -> Shard | str | None:
    """The shard that the CI's variables name; None, with a warning, if there are none. Raises UsageError."""
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
    return None


# What reads the value of an option, by the option's name or by what its value is called. All others stay text.
KINDS: Mapping[str, Callable[[str], Any]] = {
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
    "SIZE": lambda text: parse_memory(parse_word(".*[1-9].*", "a size above 0", text)),
    "TEXT": parse_message,
    "TIME": parse_duration,
}
# Further keywords of argparse.
KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "lists": {"nargs": "+"},
    "-k": {"dest": "keep"},
    "--history": {"action": "append"},
    "--fail-function": {"action": "append", "dest": "handlers", "default": ["test_fail"]},
    "--version": {"action": "version"},
}
LIST_OPTIONS = (  # which want to know all tests before the first one runs
    "--shard -k --max-gpus --only --rerun-failed --repeat --skip-code --known-failures"
).split()
SCRIPT_OPTIONS = "--fail-function --tests --one-by-one --verbose".split()
# By group, as `--help` shows them.
OPTIONS = """\
what runs
  lists LIST: bash, one test per command; `-` is standard input; or one script (.sh or #!), as it is
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
  --order {auto,file,failed-first}: auto: widest first, then longest, as earlier runs took; one by one on one GPU: file
  --history FILE: a journal of another run or machine to learn durations from; may be repeated
where tests run
  --gpus N|IDS: how many GPUs, or which (0,2; one: 2,); default: the outer mask, else all there are
  --gpus-per-test N|all: for tests that do not say gpus=; default: 1
  --jobs N: slots for `gpus=0` tests beside the GPU tests; default: as many as GPUs
  --require-gpus N: end with exit code 3 if there are fewer, rather than run on those
  --gpu-memory SIZE: of each GPU (80G), for mem=; default: what nvidia-smi or pynvml says
  --gpu-locks DIR: lock files, one per GPU, so that runners on this machine never share a GPU
  --python EXE: interpreter for pytest targets (python3)
  --pytest-args ARGS: further arguments for pytest targets, in one word: --pytest-args="-x -m 'not slow'"
when tests are stopped
  --timeout TIME: for each test (90s, 10m, 1h30m), unless its line says timeout=; default: none
  --slow TIME: announce a test each time that it has run on for so long, with the last line of its log; default: 5m
  --deadline TIME: end the whole run so early that by then all is reported; what did not run is `not run`
  --grace TIME: from SIGTERM to SIGKILL; default: 10s
  --fail-fast: start no more tests after the first failure
what counts as a failure
  --retries N: run a test that did not pass up to N times more, unless its line says retries=
  --retry-on REGEX: retry only failures whose cause, by name or in the log, matches: 'NCCL timeout|port already in use'
  --flaky {pass,fail}: whether a test that passes at a retry fails the run
  --skip-code N: a test that exits so, often 77, cannot run here: it is `skipped`, and so is what waits for it
  --known-failures FILE: lines `label # reason`: where such a test fails, the run does not; where it passes, that is \
told
  --leaks {report,fail}: whether a test fails that leaves processes behind; they are ended and named anyway
  --fail-function NAME: in a script, `command || NAME ...` is a test too, as with test_fail; may be repeated
  --tests REGEX: in a script, commands that begin so are tests; default, where it has no such NAME: pytest, ctest, \
mpirun, torchrun, files with test in their path
  --calm REGEX: in a script, programs that may run beside tests; default: rapids-logger, log, logger, banner
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
    """The command line, grouped by task. What it does not say is as Options has it."""
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
            how["type"] = KINDS.get(name, KINDS.get(value, str))
        else:
            how.setdefault("action", "store_true")
        group.add_argument(name, **how)
    group.add_argument("-h", "--help", action="help", help="print this; exit")
    return parser


def said_of(options: Options, names: Iterable[str]) -> Iterator[str]:
    """Which of these options say something else than their default."""
    for name in names:
        field = name.lstrip("-").replace("-", "_")
        field = KEYWORDS.get(name, {}).get("dest", field)
        if getattr(options, field) != Options._field_defaults[field]:
            yield name


# What other runners (pytest, its xdist, CTest, make) call an option, in groups: the last one of each is ours.
FOREIGN_OPTIONS = (
    "--lf --last-failed --rerun: --rerun-failed",
    "--ff --failed-first: --order failed-first",
    "-n -j --numprocesses --parallel --workers: --gpus N (CPU tests: --jobs N)",
    "-N --dry-run --collect-only --co --show-only: --list",
    "-x --exitfirst --maxfail --stop-on-failure: --fail-fast",
    "--junitxml --output-junit: --junit FILE",
    "--output-on-failure: --output failures",
    "-m -L -E -R --exclude --deselect --tests-regex: -k EXPR",
    "--repeat-until-fail: --repeat N --fail-fast",
    "--reruns: --retries N",
    "--count: --repeat N",
)


class Parser(argparse.ArgumentParser):
    """Its messages may quote what CI would take for orders."""

    @property
    def version(self) -> str:
        """Version and hash of this very file, since copies drift: argparse asks when it is to print them."""
        with suppress(OSError), open(os.path.abspath(__file__), "rb") as file:
            return f"{PROGRAM} {VERSION} ({hash_function()(file.read()).hexdigest()[:12]})"
        return f"{PROGRAM} {VERSION}"

    def error(self, message: str) -> NoReturn:
        for word in re.findall(r" (--[\w-]+|-[a-zA-Z])", message):
            for group in FOREIGN_OPTIONS:
                names, _, ours = group.partition(": ")
                if word in names.split():
                    message += f"; {word} is {ours} here"
        super().error(without_ci_commands(message))


def parse_command_line(argv: Sequence[str], environ: Environ) -> Options:
    """Options of $RUN_TESTS_OPTS and `argv`, in that order. Exits 2 with usage, as argparse does."""
    parser = build_parser()
    try:
        first = shlex.split(environ.get("RUN_TESTS_OPTS", ""))
    except ValueError:
        parser.error("a quote in $RUN_TESTS_OPTS is never closed")
    own = list(itertools.takewhile(lambda word: word != "--", argv))
    if not any(map(is_script, own)):
        own = list(argv)  # a list takes no arguments
    values = vars(parser.parse_args([*first, *own]))
    if values.get("shard") == "auto":
        values["shard"] = find_shard(environ)
    values["log_dir"] = values.get("log_dir") or environ.get("XML_LOG_DIR") or "logs"
    values["fail_dir"] = values.get("fail_dir") or environ.get("FAIL_DIR") or None
    arguments = argv[len(own) + 1 :]
    return Options(**values, arguments=arguments, command=[sys.argv[0], *argv])


class Inbox:
    """What pool threads and the signal handler have to tell the main thread, in order.

    No SimpleQueue: its `get` may wait for ever where its timeout passes before it begins to wait, at least in Python
    3.8 to 3.12. A lock, too, can be released by a signal handler.
    """

    def __init__(self) -> None:
        self.bell = threading.Lock()  # held while nothing has come
        self.events: Deque[Any] = collections.deque()

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

    def __init__(
        self,
        selection: Selection,
        host: Host,
        options: Options,
        trace: Trace,
    ) -> None:
        self.selection, self.tests = selection, selection.tests
        self.host = host
        self.machine = host.machine
        self.options = options
        self.trace = trace
        run = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{os.urandom(3).hex()}"
        self.record = Record(options, run)
        pool = host.make_pool(self.tests, options)
        planned = self.plan(selection, pool)
        order = planned.to_run(options.order, pool)
        self.schedule = Schedule(order, pool, options)
        outlook = Outlook(self.schedule, planned.estimates)
        self.console = Console(trace, self.record, selection, outlook, self.sums_up)
        self.inbox = Inbox()
        host.open(run, slot_count(pool, order), [self.record.lock], self.inbox.put)

    def plan(self, selection: Selection, _pool: Pool) -> Selection:
        """What the schedule is to run. A companion may put other tests in the place of some."""
        tell_unheeded(selection.tests, self.host.heeds)
        return selection

    def attempts(self) -> Attempts:
        """Of each test all attempts, in list order."""
        return [self.schedule.results[test] for test in self.tests]

    def perform(self) -> int:
        """All of the run; returns the exit code. From now on signals are its events."""
        signal.signal(signal.SIGUSR1, lambda *_: self.inbox.put(Look()))
        send_signals_to(self.inbox.put)
        with self.console.live():
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
                self.schedule.results[test] = [result]
                self.conclude(result)
            self.take(Begin(time.monotonic(), self.host.health.sick))
            while not self.is_over():
                self.take(self.next_event())
        except OSError as error:
            self.give_up(
                f"{error.filename or self.record.journal} cannot be written ({error.strerror})"
            )
        except MachineError as error:
            self.give_up(str(error))
        except Exception as error:
            self.give_up(self.record.note_crash(f"internal error, {error!r}", traceback_text()))
        finally:
            self.host.close()

    def is_over(self) -> bool:
        return self.schedule.done

    def deadline(self) -> float:
        """When a Tick is due."""
        return self.schedule.deadline()

    def next_event(self) -> Event:
        """What happened, or a Tick where nothing has for a while; shows growing logs meanwhile."""
        pause_s = self.tick()
        now = time.monotonic()
        if now >= self.chores_at:
            self.do_chores()
        if not self.inbox.events:  # under load, many lines go out in one write
            self.trace.flush()
        event = self.inbox.get(max(min(pause_s, self.deadline() - now), 0))
        if isinstance(event, Look):
            self.console.tell_running()
            event = None
        return event or Tick(time.monotonic())

    def tick(self) -> float:
        """Show what is new. Returns the seconds up to the next look, if nothing happens."""
        return self.console.tick()

    def do_chores(self) -> None:
        """What is to be looked after every second, and first of all. Raises OSError."""
        self.chores_at = time.monotonic() + CHORES_S
        self.host.do_chores()
        self.record.restore()

    def take(self, event: Event) -> None:
        """Let the schedule decide on what has happened, and do what it says."""
        schedule = self.schedule
        if isinstance(event, Broken) and event.details:
            event = event._replace(reason=self.record.note_crash(event.reason, event.details))
        elif isinstance(event, Interrupt) and schedule.running and not schedule.interrupts:
            warn(
                f"{signal.Signals(event.signum).name}: ending the running tests; once more kills them"
            )
        actions = schedule.step(event)
        if schedule.stopped:
            self.host.health.over.set()
        if schedule.poll_at < math.inf and not schedule.running:
            warn_once(
                f"waiting for GPUs that another runner holds, by its locks in {self.options.gpu_locks}"
            )
        for action in actions:  # ends come first: they are on disk before another test starts
            deed = getattr(self, type(action).__name__.lower())  # `launch` of a Launch
            deed(*action)

    def launch(self, attempt: Attempt) -> None:
        self.record.test_start(attempt)
        if attempt.number > 1:
            self.record.put_away(self.schedule.results[attempt.test][-1])
        self.host.start(attempt, self.record.log_path(attempt.test))
        self.console.launched(attempt)

    def kill(self, attempt: Attempt, signum: int, stacks: str) -> None:
        end = functools.partial(attempt.process.signal, signum, stacks)
        if stacks:  # this takes time
            threading.Thread(target=end, daemon=True).start()
        else:
            end()

    def retry(self, result: Result) -> None:
        self.record.attempt_end(result)
        self.console.ended(result, "to be retried", result.attempt)

    def announce(self, test: Test, seconds: float) -> None:
        self.console.announced(test, seconds)

    def quarantine(self, sick: Sick) -> None:
        self.console.remark(f"Quarantined: GPU {sick.device.token} [{sick.reason}]")

    def abandon(self, _attempt: Attempt) -> None:
        self.host.abandon()

    def conclude(self, result: Result, is_news: bool = True) -> None:
        if is_news:
            self.record.attempt_end(result)
        self.record.test_end(result)
        self.console.concluded(result)

    def give_up(self, why: str) -> None:
        """The last resort when the runner itself cannot go on: kill all tests, keep what is known."""
        schedule = self.schedule
        schedule.failure = schedule.failure or why
        left = {}
        for test, attempt in schedule.running.items():
            if attempt.process and not attempt.process.is_gone:
                attempt.process.signal(signal.SIGKILL)
                left[test] = attempt
        for test in self.tests:
            ends = schedule.results.setdefault(test, [])
            is_running = test in schedule.running
            if is_running or test in schedule.waiting or not ends:
                outcome = Outcome.INTERRUPTED if is_running else Outcome.NOT_RUN
                ends.append(Result(test, outcome, reason=why))
                with suppress(OSError):  # it may be the journal that cannot be written
                    self.record.attempt_end(ends[-1])
        give_up_at = time.monotonic() + STUCK_S
        while left and time.monotonic() < give_up_at:
            event = self.inbox.get(FOLLOW_S)
            if isinstance(event, (Exited, Broken)):
                left.pop(event.test, None)
        if left:
            self.host.abandon()

    def report(self) -> int:
        """Close the journal, print what there is to print; returns the exit code."""
        seconds = self.console.age()
        attempts = self.attempts()
        results = results_of(attempts)
        code, last = self.verdict(results)
        with suppress(OSError, MachineError):  # the trace still gets its last lines
            self.record.restore()
            self.record.run_end(results, code, self.schedule.sick)
        send_signals_to(stop)
        try:
            self.record.summarise(attempts, seconds)
        finally:  # where it cannot be written, the verdict is told all the same
            memory = self.options.gpu_memory or self.host.health.least
            lines = summary(attempts, seconds, self.schedule, self.record, memory)
            try:
                self.console.finish(results, lines)
            except SystemExit as cut:  # enough of the logs; not of the verdict
                code = cast(int, cut.code)
            for line in github_errors(results, self.record):
                tell_ci(line)
            for line in last:
                self.trace.line(line, RED if code else GREEN)
            self.trace.flush()
        return self.trace.exit_code(code)

    def verdict(self, results: Results) -> Verdict:
        """The exit code and the last lines of the trace."""
        code, lines = verdict_of(results, self.schedule)
        return code, [*account(self.selection, self.options), *lines]


def stop(event: Interrupt) -> None:
    """What a signal does before and after the tests. Raises SystemExit."""
    sys.exit(EXIT_SIGNAL + event.signum)


def tell_unheeded(tests: Tests, heeded: Container[str]) -> None:
    """Say on which lines something is for a companion that does not run here."""
    for key in COMPANION_KEYS:
        name = key.replace("-", "_")
        lines = dict.fromkeys(test.where for test in tests if getattr(test.attributes, name))
        if lines and key not in heeded:
            tell(
                f"{first_of(list(lines))}: {key}= is for a companion that imports the runner; here it changes nothing"
            )


def slot_count(pool: Pool, tests: Tests) -> int:
    """How many tests may run at once."""
    if pool.sequential:
        return 1
    shares = [test.gpus for test in tests if 0 < test.gpus < 1]
    on_each = int(1 / min(shares, default=1))
    on_cpu = sum(test.gpus == 0 for test in tests)
    return min(pool.size * on_each, pool.size + len(shares)) + min(on_cpu, pool.cpus)


def send_signals_to(post: Callable[[Interrupt], None]) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP are Interrupt events. `nohup` keeps its meaning."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda number, _: post(Interrupt(time.monotonic(), number)))


def open_stdout() -> BinaryIO:
    """Standard output as bytes, buffered also under PYTHONUNBUFFERED; the null device if it is closed."""
    if sys.stdout is None:
        return open(os.devnull, "wb")
    with suppress(OSError):
        # Some CIs hand down a pipe that does not block.
        os.set_blocking(sys.stdout.fileno(), True)
    return open(sys.stdout.fileno(), "wb", closefd=False)


def choose(tests: Tests, options: Options) -> Selection:
    """What runs, by the journals; warns where they are not what an option needs. Raises UsageError."""
    history = read_history(options)
    if options.rerun_failed and not history.shards:
        warn(f"--rerun-failed: {journal_path(options)} has no run of this list; all of it runs")
    if options.shard and any(history.shards):
        warn(
            f"--shard: {journal_path(options)} has runs of single shards; if each shard has a journal of its own, "
            "their parts overlap or miss tests: give all the same by --history and start with an empty log dir"
        )
    check_outputs(tests, options)
    lost = {*options.known_failures}
    if options.only:
        lost |= {label for label in options.only.labels if not re.search(f"^# |{RUN}", label)}
        new = [test.label for test in options.only.news(tests)]
        if new and "all" not in options.message:
            warn(
                f"--only: {counted(len(new), 'test')} new to the file, which run too: {first_of(new)}"
            )
    elif options.message:
        warn("--message adds to what --only names; without --only, all tests run")
    lost -= {test.origin for test in tests}
    if lost:
        warn(
            f"{counted(len(lost), 'label')} of --only or --known-failures without a test here: {first_of(sorted(lost))}"
        )
    return select(tests, options, history)


def check_outputs(tests: Tests, options: Options) -> None:
    """Raises UsageError where --junit, --journal or a list is what the run, or one of its tests, writes besides."""
    own = {test.junit for test in tests if test.junit}
    logs = [f"{options.log_dir}/{test.stem}.log" for test in tests]
    names = [*own, *logs, failures_path(options), deferred_path(options)]
    written = set(map(os.path.realpath, filter(None, names)))
    lists = set(map(os.path.realpath, options.lists))
    for path in filter(None, [journal_path(options), options.junit, *lists]):
        real = os.path.realpath(path)
        if real in written:
            raise UsageError(f"{path}: the run writes this file besides; name another one")
        written.add(real)
    folder = os.path.dirname(os.path.abspath(options.junit or ""))
    if options.junit and folder in map(os.path.dirname, own):
        warn(
            f"--junit {options.junit} is beside the tests' own JUnit files: who reads them all counts each test twice"
        )


def fill_standard_descriptors() -> None:
    """Open the null device for each that is closed (`<&-`): else the next file that is opened has its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # To read it fails, as before.
            null = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(null, True)


def drop_coerced_locale() -> None:
    """Take out of the environment what Python itself has put there where the locale was C (PEP 538)."""
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        if not re.search(rb"(^|\0)LC_CTYPE=", file.read()):
            os.environ.pop("LC_CTYPE", None)


def find_host(options: Options, reaper: Reaper) -> Host:
    """This machine and its devices. Raises UsageError, MachineError."""
    machine = find_machine(options.gpus, os.environ)
    check_gpus(machine, options)
    locks = None
    if options.gpu_locks and machine.devices:
        locks = GpuLocks(options.gpu_locks, machine)
    return Host(machine, reaper, locks)


def check_gpus(machine: Machine, options: Options) -> None:
    """Raises MachineError where there are fewer devices than demanded."""
    if len(machine.devices) < options.require_gpus:
        found = " ".join(machine.tokens) or "none"
        raise MachineError(
            f"--require-gpus {options.require_gpus}: there are {len(machine.devices)} ({found}); "
            "mend the machine or its mask"
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
    signal.signal(signal.SIGUSR1, lambda *_: None)  # a question, which has no answer yet
    with closing(Reaper()) as reaper:
        send_signals_to(stop)
        trace = open_trace(options.color)
        for name in filter(is_script, options.lists):
            check_script(name, options)
            script = read_script(name, options)
            if options.list:
                return list_script(script, trace)
            return ScriptRun(script, find_host(options, reaper), options, trace).perform()
        for option in said_of(options, SCRIPT_OPTIONS):
            warn(f"{option} is for scripts (.sh or #!); for a list it does nothing")
        tests, said = parse_lists(options, reaper.scratch)
        for hint in said:
            tell(hint)
        reaper.share()  # daemons of shell state
        if not options.list:
            host = find_host(options, reaper)
            tests = [host.fitted(test, options) for test in tests]
        selection = choose(tests, options)
        is_empty_shard = any(
            tests for why, tests in selection.left_out.items() if why.startswith("--shard")
        )
        if not selection.tests and not is_empty_shard:
            for line in account(selection, options):
                warn(line)
            warn(f"nothing to run in {', '.join(options.lists)}")
            return EXIT_NOTHING
        if options.list:
            return list_tests(selection, options, trace)
        return make_run(selection, host, options, trace).perform()


def list_tests(selection: Selection, options: Options, trace: Trace) -> int:
    """Print what would run; returns the exit code."""
    for test in selection.selected:
        trace.line(f"{test.label}\t{test.need}\t{test.stem}\t{test.where}")
    for line in account(selection, options):
        warn(line)
    return trace.exit_code(EXIT_OK)


def is_script(name: str) -> bool:
    """Whether a file is a script, which bash itself runs, and no list."""
    if os.path.isfile(name):  # a pipe could not be read again
        with suppress(OSError), open(name, "rb") as file:
            return name.endswith(".sh") or file.read(2) == b"#!"
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    if sys.version_info < OLDEST_PYTHON:
        warn(
            "error: Python {}.{} is too old, 3.8 is needed; name another interpreter".format(
                *sys.version_info
            )
        )
        return EXIT_MACHINE
    words = argv or sys.argv[1:]
    return exit_code_of(lambda: run_lists(parse_command_line(words, os.environ)))


def exit_code_of(action: Callable[[], int]) -> int:
    """The exit code of a command, or of the error that ends it, which it tells."""
    try:
        return action()
    except ListError as error:
        tell("\n".join(error.args))
        return EXIT_USAGE
    except (UsageError, MachineError) as error:
        warn(f"error: {error}")
        return error.code
    except OSError as error:
        warn(
            f"error: cannot write {error.filename or 'a file'} ({error.strerror}); "
            "name a place with --log-dir, --fail-dir, --journal or "
            "--junit; make room in TMPDIR; start from a folder that is there"
        )
        return EXIT_MACHINE
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except SystemExit as end:
        return cast(int, end.code)  # Python itself would wait for all threads, perhaps for ever
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
# 11. Scripts: bash runs one itself, and hands its tests over. The reader, the hook, the shell, the trace, the run.
# ---------------------------------------------------------------------------------------------------

# Builtins that neither look at what tests do nor start a process.
CALM = names_in(
    "echo printf : true false [ [[ (( test local export declare typeset readonly let unset"
)
# Commands of a script that run at once while tests are pending; before any other it waits for all tests (`is_calm`).
RUNS_BESIDE_TESTS = CALM | names_in(
    "alias break cd continue popd pushd read return set shift shopt ulimit umask unalias wait"
)
NEVER_FAILS = names_in("echo printf : true local exit")  # commands of a handler
# Commands of a handler that is put off until more tests have been started.
MAY_BE_PUT_OFF = CALM | names_in(
    "awk basename bc cat cut date dirname exit expr grep head hostname ls mkdir nvidia-smi return sed seq set tail tee "
    "touch tr wc"
)
# Of a script's shell: those of the hook begin at 151, where scripts have none.
MIN_DESCRIPTORS = 200
READS = names_in("awk cat cut grep head ls sed tail wc")  # files
READS_INPUT = READS - {"ls"} | {"bc", "tee", "tr"}
LEAVES = names_in(
    "return break continue exec local declare typeset set shopt shift getopts eval source . command builtin"
)
# Programs that may stand behind a test in a pipeline.
FILTERS = MAY_BE_PUT_OFF - RUNS_BESIDE_TESTS - {"exit"}
STATEFUL = STATE_WORDS | names_in("exit exec read mapfile readarray trap let getopts")
# What only the script's own shell can tell, as `$!`, or change, as `${x:=1}`.
OWN_STATE = (
    r"\$[$!?-]|\$\{[$!?#-]|\$_\b|\$\{?(?:BASHPID|PIPESTATUS|FUNCNAME|BASH_LINENO)|\bS?RANDOM\b"
    r"|\$\{\w+(?:\[[^]]*\])?:?[=?]"
    r"|\$\{[^}]*(?:\+\+|--|[-+*/%]=)|\$\{\w+(?:\[[^]}]*|:\(\w+)=(?!=)|(?<![\w/])~[-+\d]|\$\[|\bSECONDS\b|\btrap -p"
    r"|[<>]&\s*(?:[3-9]|\d\d|\$)|/fd/|(?<!<)<<(?!<)"
)
# What a function may ask for that no other shell knows. PIPESTATUS and RANDOM are looked for by read_handler.
SHELL_ALONE = r"\$\$|\$[!-]|\berrexit\b|SHELLOPTS|DIRSTACK|\b(?:dirs|wait|enable)\b|~[-+\d]"
# Variables that bash heeds where nobody names them.
HEEDED = names_in(
    "IFS CDPATH GLOBIGNORE BASH_ARGV0 LANG LC_ALL LC_CTYPE LC_COLLATE TMOUT PATH HOME"
)
OF_THE_SHELL = r"PIPESTATUS|\bS?RANDOM\b"
# How a function or trap asks where it is called from.
WHERE = r"FUNCNAME|BASH_LINENO|BASH_SOURCE|BASH_COMMAND|\bcaller\b"
FAILED_STATUS = (
    r"""(?:\[\[?|test) "?\$\?"? (?:-ne|!=|-gt) 0(?: \]\]?)?|\(\( ?\$\? (?:!=|>) 0 ?\)\)"""
)
# The status of the first command of a pipeline, which is that of a command alone.
FIRST_STATUS = r"\$(?:PIPESTATUS\b|\{PIPESTATUS(?:\[0\])?\})"
ASKS_STATUS = r"\$\{?(?:\?|_\b)|PIPESTATUS|\$\{!|@P\}"
# In a script, anything that looks at the status of some command.
MAY_ASK = rf"{ASKS_STATUS}|\b(?:exit|return)\b(?! *\d)|\bERR\b"
# An `exit` or `return` with the status before it, perhaps: an empty variable is none (`_rt_look_at_end`).
ENDS_AS_BEFORE = (
    r"^\S+$|^\S+ (?![\"']?(?:-?\d+|\$\{?[A-Za-z]\w*(?::[-=]\d+)?\}?|\$\(\(.*\)\))[\"']?$)"
)
# A name and its value, in one piece or in parentheses.
NAMED_VALUE = rf"({NAME})\+?=(\([^)]*\)|(?:\"[^\"]*\"|'[^']*'|[^\s;&|()])*)"
SUBSTITUTION = r"\$\((?!\()|`|[<>]\("
# Commands of a `$(…)` that look at nothing but their words.
WORDS_ALONE = names_in(
    "basename dirname echo expr hostname nproc printf pwd seq uname [ [[ test"
)
SEES_OUTSIDE = (
    SUBSTITUTION + r"|@P\}|\$\?|\$\{[!?]|\bSECONDS\b|\bEPOCH(?:SECONDS|REALTIME)\b|%\([^)]*\)T"
)
# A command that makes variables local, where it is in a function; not with -g.
MAKES_LOCAL = r"(?:(?:builtin|command) )*(?:local|declare|typeset) (?!(?:.* )?-\w*g)"
FILE_TEST = r"-(?:[abcdefghkprstuwxGLNOS]|nt|ot|ef)"
# What `[` may ask while tests run: its operators are there to be read.
OPERAND = r"(?!(?:\"?\$\{?[@*]|-\w\b))\S+"
QUESTION = rf"(?:! )?(?:-[nz] {OPERAND}|{OPERAND} (?:==?|!=|\\?[<>]|-(?:eq|ne|lt|le|gt|ge)) \S+|(?!\$){OPERAND})"
# Operators and their words, with a blank behind each.
HARMLESS_REDIRECTS = r"(?:\S*>& [12]?-? |\S+ /dev/null )*"
# A command that asks for a folder, or goes there.
IS_THERE = r"(?:(?:\[\[?|test) -d|cd) ([^- ][^ ]*)(?: \]\]?)?"

# A file that one test makes for another, unless it is there before.
DATA_FILE = (
    r"\.(?:bin|ckpt|csv|db|jsonl?|log|np[yz]|onnx|out|pkl|pth?|safetensors|txt|xml|ya?ml)$"
)
# What stands for a command that looks at the status of the one before it, and for the end of a function or file.
LOOKS = "$?"
LAST = "}"
COMPUTES = "(("  # an `exit` whose word may reach a status by what a variable holds, as `a[$?]`
STATUS_BY_VALUE = (
    r"(?<![{$])PIPESTATUS|\[['\"]?\$\{?\?|\b(?:declare|local|typeset)\s+-\w*n|\b_\s*\)\)"
)
LOOKS_AT_PIPE = "${PIPESTATUS}"  # stands there too; we do not set it
# What stands there too for a guarded command (`cmd || …`, `if cmd`), in which `set -e` does not count.
GUARDED = "&&"
ARGUMENTS = names_in('"$@" $@ "$*" $*')  # words that stand for all arguments


NO_TESTS = (
    "no command has `|| test_fail` or looks like a test; name tests by how they begin (--tests 'make check|\\./run'), "
    "or the function that is called where one fails (--fail-function NAME); if this script calls another one for its "
    "tests, run that one"
)
# What in a script may keep bash from handing its tests over, as far as a dry reading tells.
HOLDS_BACK = (
    r"(?m)^ *trap (?:(?![\"']?\w+=\S*[\"']? ).* ERR\b|.*\b(?:RETURN|DEBUG|PIPESTATUS)\b)|^ *set .*(?:\+\w*T|functrace)"
    r"|^ *shopt -s .*extdebug|^ *FUNCNEST="
)
# A variable as `expandable` writes it, and what that escapes.
EXPANDABLE = r"\$\{\w+-\\(\$\w+|\$\{\w+)(?:\\(\}))?\}|\\(?=[$`])"


class Tells(NamedTuple):
    """By what the tests of a script are known: their handlers or, where it has none, what commands look like."""

    handlers: Collection[str]
    looks: str | None  # a pattern; None: handlers alone
    calm: str  # a pattern of programs that may run beside tests

    def is_test(self, node: Node) -> bool:
        """Whether a command looks like a test, or may do so with the arguments of its function in their place."""
        if node.kind or self.looks is None or node.name in self.handlers:
            return False
        if node.name not in MAY_BE_PUT_OFF and not ARGUMENTS.isdisjoint(words_of(node)):
            return True
        text = " ".join(token.text.strip("\"'") for token in node.words)
        return self.looks_like_test(text)

    def runs_no_test(self, words: Sequence[str], arguments: Sequence[str]) -> bool:
        """Whether a command with the arguments of its function (`"$@"`, `eval "$*"`) is not one simple test."""
        if self.looks is None or ARGUMENTS.isdisjoint(words):
            return False
        words = list(itertools.dropwhile(re.compile(ASSIGNMENT).match, words))
        every = " ".join(arguments)
        text = " ".join(every if word in ARGUMENTS else word for word in words)
        if words[0] == "eval":
            nodes = Reader(text.partition(" ")[2]).nodes
            if len(nodes) != 1 or nodes[0].after == "&" or obstacle_of(nodes[0]):
                return True
            text = head_of(nodes[0])
        return not self.looks_like_test(text)

    def looks_like_test(self, text: str) -> bool:
        """Whether the words of a command look like a test."""
        return re.match(f"{PREFIXES}(?:{self.looks})", text) is not None


class Site(NamedTuple):
    """A test of a script: `command || test_fail "label"`, or a command that looks like one."""

    test: TestLine
    words: Sequence[str]  # with assignments: what bash says of the command
    handler: str  # bash; empty: there is none
    nodes: Nodes  # the same, read
    rest: Rest | None  # the same, where it is no handler
    path: Nodes  # simple commands behind the test that bash is to pass over
    function: str  # in which it stands
    why_wait: str  # why the script has to wait for it at once
    # Bash words, some of which name files that no other is to have at the same time.
    names: Sequence[str]
    followers: Set[str]  # what bash may come to behind it (`next_names`), or LAST
    is_in_reader: bool  # it stands in a `while read` loop, whose input is not for it
    definitions: int  # how many functions its file has defined above it

    def passed_over(self) -> str:
        """How the commands begin that bash is to pass over: the letters of each, and a blank."""
        commands = [" ".join(words_of(node)) for node in self.path]
        return "".join(re.sub(r"(?as)\W.*|$", " ", text, count=1) for text in commands)


class Call(NamedTuple):
    """A simple command of a script, which may call a function that has tests."""

    node: Node
    followers: Set[str]  # what bash may come to behind it (`next_names`), LAST or GUARDED


UNKNOWN = Call(Node(""), {LOOKS, GUARDED})  # a command that was not read


class Frame(NamedTuple):
    """A function or `source` that bash is in, and where it has been called."""

    name: str
    line: str
    source: str  # file


class Rest(NamedTuple):
    """What a script does with the status of a test, if that can be done later: `; rc=$?`, `if test; then …; fi`."""

    command: Node  # the test
    nodes: Nodes  # the commands that bash is not to run where they stand
    text: str  # bash: all of it, but for the test
    more: int  # statements behind that of the test which belong to it
    always: bool  # it does something where the test has passed, too
    path: Nodes  # the simple commands to which bash comes where nothing is to be done


class Handler(NamedTuple):
    """What the handler of a failure does."""

    changes: AbstractSet[str]  # variables
    # What it runs that cannot be put off until more tests have been started.
    urgent: AbstractSet[str]
    can_fail: bool
    leaves: bool  # it may end the script
    fails: bool  # it says so (`return 1`), or does what only the script's shell can
    is_test: bool  # as a test it would change nothing in the script's shell
    reads: AbstractSet[str]  # commands that look into files, or whether they are there
    writes: AbstractSet[str]  # names of files, without their folders


# What commands of a script mean.


def own_state(text: str) -> str:
    """What in some bash only the script's own shell can tell or change; empty: nothing."""
    found = re.findall(OWN_STATE, text)
    found += [f"$(({each})" for each in nested(text) if re.search(CHANGES_IN_SUM, each)]
    return "".join(found[:1])


def written_by(node: Node) -> List[str]:
    """Words that name the files which a command writes."""
    tokens = [
        token
        for operator, token in zip(node.redirects, node.redirects[1:])
        if re.search(r">[>|&]?$", operator.text)
    ]
    if node.name in ("tee", "touch", "mkdir"):
        tokens += node.words[1:]
    return [token.text for token in tokens if not re.match(r"[012]-?$|-|/dev/", token.text)]


def is_in(pattern: str, pieces: Iterable[Token | Node | ScriptFile]) -> bool:
    """Whether a pattern is anywhere in the text of words, commands or files."""
    return any(re.search(pattern, each.text) for each in pieces)


def reads_files(node: Node) -> bool:
    """Whether a command, but for those in it, looks into files, or whether they are there."""
    if node.name in ("[", "[[", "test") and re.search(rf"\s{FILE_TEST}\s", node.text):
        return True
    return is_in("^<$", node.redirects) or node.name in READS or has_patterns(node)


def locals_of(node: Node) -> Set[str]:
    """The variables that a command makes local to its function, and words with `$` that stand for some."""
    names = [re.sub(r"(?s)\+?=.*", "", unquoted(token.text)) for token in node.words]
    own = re.match(MAKES_LOCAL, " ".join(names))
    if not own:
        return set()
    return {*names}.difference(own.group().split())


def is_wild(node: Node) -> bool:
    """Whether a command may give names to commands that only bash knows: `alias`, and `eval` of more than `"$@"`."""
    words = set(words_of(node))
    if node.name == "eval":
        return not words <= ARGUMENTS | {"eval"}
    return node.name == "alias"


def first_commands(nodes: Iterable[Node]) -> Iterator[Node]:
    """The commands that bash begins before any of these has ended, but for those in a subshell."""
    for number, node in enumerate(nodes):
        if number and node.before not in PIPES:
            break
        if node.kind != "function":
            yield node
            parts = node.conditions[:1] or node.bodies
            if node.kind == "(":
                parts = []
            for part in parts:
                yield from first_commands(part)


def next_names(nodes: Iterable[Node], is_inside: bool = False) -> Set[str]:
    """The names of the commands with which bash may begin, and LOOKS where one may look at the status before it.

    `is_inside`: in another process than the script's shell, where nobody looks whether a word is empty.
    """
    names = set()
    for node in first_commands(nodes):
        names.add(node.name)
        if node.kind == "(":
            names |= next_names(node.bodies[0], True)
        text = node.text
        if node.kind:
            tokens = [*node.words, *node.redirects]
            text = " ".join(token.text for token in tokens)
        has_text = is_in(r"^\d*<<-?$", node.redirects)
        if has_text or re.search(ASKS_STATUS, text):
            names.add(LOOKS)
        if "PIPESTATUS" in text:
            names.add(LOOKS_AT_PIPE)
        ends_as_before = ENDS_AS_BEFORE
        if is_inside or is_forked(node):
            ends_as_before += r"|\$"
        is_end = node.name.strip("\\\"'") in ENDS
        if is_end and re.search(ends_as_before, text):
            names.add(LOOKS)
        if is_end and re.search(r"\(\(|:[-=]", text):
            names.add(COMPUTES)
        for inner in substituted(text):
            names |= next_names(inner, True)
    return names - {""}


def names_within(functions: Iterable[Node]) -> Set[str]:
    """The names of the commands with which some functions begin, and LOOKS."""
    return set().union(*(next_names(node.parts()) for node in functions))


def has_glob(tokens: Iterable[Token]) -> bool:
    """Whether words may be file names to bash."""
    quoted = rf"""(?s)'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$\?|{FIRST_STATUS}|\[[@*]\]"""
    texts = [re.sub(quoted, "", without_calm(token.text)) for token in tokens]
    return any(re.search(r"[*?[]", text) for text in texts)


def has_patterns(node: Node) -> bool:
    """Whether bash may take words of a simple command, or of an array in it, for patterns of file names."""
    tokens = (*node.assigned, *node.words)
    arrays = [token for token in tokens if "=(" in token.text]
    if has_glob(arrays) or any("$" in without_double_quotes(each.text) for each in arrays):
        return True
    return node.name not in ("[[", "((") and has_glob(node.words[1:])


def says_no(node: Node, flags: str) -> bool:
    """Whether a command of a handler fails, or changes an option, in a shell with these options (`$-`)."""
    words = words_of(node)[1:]
    if node.name == "return":
        return words not in ([], ["0"])
    if node.name == "set":
        return "x" not in flags or words not in (["-x"], ["+x"])
    return node.name in ("shopt", "false")


def reached_by(nodes: Iterable[Node], functions: Mapping[str, Nodes]) -> Nodes:
    """These commands, those in them, also in their substitutions, and in the functions that they call."""
    reached = list(nodes)
    called = set()
    for node in reached:  # it grows
        reached += node.parts()
        for inner in substituted(node.text):
            reached += inner
        if node.name not in called:
            called.add(node.name)
            reached += functions.get(node.name, ())
    return reached


def read_handler(nodes: Nodes, functions: Mapping[str, Nodes], flags: str = "") -> Handler:
    """What commands do, and the functions that they call, in a shell with these options (`$-`)."""
    reached = reached_by(nodes, functions)
    names = set()
    changes = set()
    defined = [node for node in reached if node.kind == "function"]
    for body in (nodes, *(node.parts() for node in defined)):
        commands = list(walk(body))
        changed = set().union(*map(changed_by, commands))
        changes |= changed.difference(*map(locals_of, commands))
    for node in reached:
        sets = [word[1:] for word in words_of(node)[1:]]
        if node.name != "set" or not all(word in flags for word in sets):
            names.add(node.name)  # a function that does not put an option back is found out
    if not names.issuperset(node.words[0].text for node in defined):
        names.add("function")
    words = [word for node in reached for word in written_by(node)]
    is_background = any(node.after == "&" for node in reached)
    needs_shell = is_background or is_in(WHERE, reached) or is_in(OF_THE_SHELL, defined)
    # Which of several functions counts, only bash knows.
    is_unclear = any(len(functions.get(node.name, ())) > 1 for node in reached)
    names.difference_update({"", *functions})
    return Handler(
        changes=changes,
        urgent=names - MAY_BE_PUT_OFF,
        can_fail=bool(words or names - NEVER_FAILS or any(map(may_refuse, reached))),
        leaves="exit" in names,
        fails=needs_shell or is_unclear or any(says_no(node, flags) for node in reached),
        is_test=not (names & STATEFUL or changes or needs_shell),
        reads={node.text for node in reached if reads_files(node)},
        writes={os.path.basename(word.strip("\"'")) for word in words},
    )


def may_refuse(node: Node) -> bool:
    """Whether a `printf` may fail, by its format, a number or the name behind -v."""
    return node.name == "printf" and is_in(r"^-|\$(?!')|%(?![s%b])", node.words[1:2])


def is_seen(node: Node) -> bool:
    """Whether the trap sees a simple command, or the head of a `case`, wherever bash goes in a command."""
    if node.kind in ("if", "while", "until", "{"):
        return any(map(is_seen, node.parts()[:1]))
    return node.kind in ("", "case") and node.name != "coproc"


def path_of(nodes: Iterable[Node]) -> Tuple[List[Node], int]:
    """The simple commands to which bash comes in a list of commands if it skips each of them, and the last status."""
    path = []
    status = 0
    for node in nodes:
        if node.before == ("||" if status == 0 else "&&"):
            continue
        parts = node.bodies
        if node.kind == "if":
            status = 0
            parts = node.bodies[len(node.conditions) :]  # that of `else`
            for condition, body in zip(node.conditions, node.bodies):
                inner, status = path_of(condition)
                path += inner
                if status == 0:
                    parts = [body]
                    break
        elif not node.kind:
            path.append(node)
            status = 0
        for part in parts:
            inner, status = path_of(part)
            path += inner
        status = int((node.lead == "!") != (status != 0))
    return path, status


def asks_if_failed(statement: Nodes) -> bool:
    """Whether a statement is `if [ $? -ne 0 ]; then …; fi`, which does nothing behind a test that passes."""
    if len(statement) != 1 or len(statement[0].bodies) != 1:
        return False
    text = with_plain_status(statement[0].text)
    return re.match(rf"if {FAILED_STATUS}[;\s]*then\b", text) is not None


def with_plain_status(text: str) -> str:
    """Bash with `$?` in the place of the status of a pipeline's first command, if it does not ask for both."""
    if re.search(r"\$\{?\?", text):
        return text
    return re.sub(FIRST_STATUS, "$?", text)


def obstacle_of(node: Node) -> str:
    """Why a test cannot be handed over; empty if it can."""
    if node.kind:
        return "it is more than one command"
    if node.before in PIPES:
        return "it ends a pipeline"
    if node.lead:
        return f"it follows `{node.lead}`"
    if not node.words:
        return "it is no command"
    # Bash expands nothing in single quotes.
    own = own_state(re.sub(r"""(?s)("(?:[^"\\]|\\.)*"|\\.)|'[^']*'""", r"\1", node.text))
    return f"`{own}` needs the script's own shell" * bool(own)


def without_double_quotes(text: str) -> str:
    """Bash without the words in double quotes, which bash does not take for patterns."""
    return re.sub(r'"[^"]*"', "", text)


# Reading a file: its tests, and where bash has to wait for them.


class ScriptFile:
    """What is read of a script, or of a file that it sources: its tests, and where bash has to wait for them.

    The hook's DEBUG trap sees each simple command before it runs, but not the beginning of a subshell, of a block with
    redirections and the like: there bash waits after the statement before.
    """

    function = ""  # the one that is being read
    alone_from = math.inf  # the offset of `#: one-by-one`
    definitions = 0  # of functions, so far
    rest: Rest | None = None  # of the statement that is being read
    readers = 0  # `while read` loops around
    guards = 0  # blocks around whose status is looked at
    depth = 0  # of blocks

    def __init__(self, name: str, text: str, tells: Tells, changes: AbstractSet[str]) -> None:
        self.name = name
        self.text = text
        self.tells = tells
        self.changes = changes  # variables that handlers change
        self.heads: Set[str] = set()  # names in the heads of loops
        self.line_ends = [found.start() for found in re.finditer("\n", text)]
        self.mistakes: List[str] = []
        # Tests, and what keeps bash from running ahead of them; by line, those that nothing keeps.
        self.found: List[Tuple[Site, str]] = []
        self.sites: Dict[int, List[Site]] = {}
        self.calls: Dict[int, List[Call]] = {}  # by line, of all simple commands
        self.waits: Set[int] = set()  # lines after whose commands bash waits
        self.unseen: Set[str] = set()  # functions before whose calls it does
        self.functions: Dict[str, List[Node]] = {}
        reader = Reader(text)
        # By line, what `#:` says of the tests there, and whether also of those below.
        self.attributes: Dict[int, Tuple[Attributes, bool]] = {}
        self.read_attributes(reader)
        self.visit(self.with_pipelines(reader.nodes), "", {LAST})

    def line_of(self, offset: int) -> int:
        return bisect.bisect_left(self.line_ends, offset) + 1

    def lines_of(self, node: Node) -> range:
        """The lines that a command stands on."""
        last = max(node.end - 1, node.start)
        return range(self.line_of(node.start), self.line_of(last) + 1)

    def read_attributes(self, reader: Reader) -> None:
        """Note what each `#:` says of its line, or from its own line on up to the next such line."""
        defaults = Attributes()
        for comment in reader.comments:
            marker, _, text = comment.text.partition(":")
            if marker != "#":
                continue
            if text.strip() == "one-by-one":
                self.alone_from = min(self.alone_from, comment.start)
                continue
            line = self.line_of(comment.start)
            said: List[str] = []
            is_alone = not self.text[: comment.start].rpartition("\n")[2].strip()
            if is_alone:
                defaults = Attributes()
            attributes = parse_attributes(text, defaults, said.append)
            if attributes.after:
                said.append(
                    "after= means nothing in a script, which has an order of its own; take it out"
                )
            self.mistakes += [f"{self.name}:{line}: {what}" for what in said]
            self.attributes[line] = attributes, is_alone
            if is_alone:
                defaults = attributes

    def attributes_of(self, command: Node) -> Attributes:
        """What `#:` says of a command."""
        lines = self.lines_of(command)
        said = Attributes()
        for line, (attributes, is_alone) in self.attributes.items():
            if line in lines and not is_alone:
                return attributes
            if line < lines.start and is_alone:
                said = attributes
        return said

    def with_pipelines(self, nodes: Nodes) -> Nodes:
        """The same commands. A pipeline that may be a test becomes one, with what is behind it as its body."""
        joined = []
        for pipeline in statements_of(nodes, PIPES):
            for node in pipeline:
                node.conditions = list(map(self.with_pipelines, node.conditions))
                node.bodies = list(map(self.with_pipelines, node.bodies))
            first, *behind = pipeline
            last = pipeline[-1]
            may_be_test = self.tells.is_test(first) or last.after == "||"
            are_filters = FILTERS.issuperset(node.name for node in behind)
            if behind and may_be_test and are_filters:
                first.bodies = [behind]
                first.text = self.text[first.start : last.end]
                first.end = last.end
                first.after = last.after
                pipeline = [first]
            joined += pipeline
        return joined

    def visit(self, nodes: Nodes, obstacle: str, followers: Set[str]) -> bool:
        """Note what a list of commands has. Returns whether the trap does not see how it begins.

        `followers`: what bash may come to behind the list.
        """
        if self.guards:
            followers = followers | {LOOKS}
        begins_unseen = False
        previous: Nodes = ()  # what bash has come to last, perhaps
        has_begun = False  # it has come to something
        statements = statements_of(nodes)
        self.depth += 1
        for at, statement in enumerate(statements, 1):
            why = obstacle
            if statement[-1].after == "&":
                why = "it runs in the background"
            following = statements[at:]
            rest = self.rest = self.rest_of(statement, following)
            if rest:
                following = following[rest.more :]
                self.add_call(rest.command, {LOOKS, GUARDED})
            after = followers
            if following:
                after = next_names(following[0])
            for number, node in enumerate(statement):
                is_guarded = node.after in ("&&", "||") or node.lead == "!"
                self.guards += is_guarded
                is_hidden = self.is_unseen(node, why, after) or (
                    number == 0 < len(statement) - 1 and why.endswith("background")
                )
                self.guards -= is_guarded
                if is_hidden:
                    begins_unseen |= not (has_begun or number)
                    self.wait_after(statement[:number] or previous)
            if rest:
                self.add_site(rest.command, rest.nodes, why, after, rest)
            else:
                self.find_site(statement, why, after)
            if is_seen(statement[0]):
                previous = statement
                has_begun = True
            else:  # bash may come to nothing in it
                previous = [*previous, *statement]
        self.depth -= 1
        return begins_unseen

    def add_call(self, node: Node, followers: Set[str]) -> None:
        """Note where a simple command stands."""
        if self.guards:
            followers = followers | {LOOKS, GUARDED}
        for line in self.lines_of(node):
            self.calls.setdefault(line, []).append(Call(node, followers))

    def wait_after(self, nodes: Nodes) -> None:
        """Let bash wait when it has come to these commands."""
        for node in nodes:
            if node.kind != "function":
                self.waits.update(self.lines_of(node))

    def is_unseen(self, node: Node, obstacle: str, followers: Set[str]) -> bool:
        """Whether the trap does not see how a command begins."""
        forks = is_forked(node)
        if node.name == "coproc":
            return True
        if not node.kind:
            self.add_call(node, followers)
            if forks:  # perhaps, and the trap with it
                self.wait_after([node])
            return False
        if node.kind == "function":
            name = node.words[0].text
            self.definitions += 1
            self.functions.setdefault(name, []).append(node)
            outer, self.function = self.function, name
            if self.visit(node.bodies[0], "", {LAST}):
                self.unseen.add(name)
            self.function = outer
            return name in self.tells.handlers  # the trap does not see definitions
        if forks:
            obstacle = obstacle or "it runs in a subshell"
        unseen = self.visit_parts(node, obstacle, followers)
        has_head = node.kind in ("for", "case")  # which the trap sees
        if has_head and any(unseen):
            self.waits.add(self.line_of(node.start))
        elif any(unseen[1:]) or (any(unseen) and node.kind in LOOPS):
            self.wait_after([node])  # what comes before a part of it stands in another one
        begins_unseen = unseen[:1] == [True] and not has_head
        return forks or begins_unseen or bool(node.redirects) or self.is_expanded_early(node)

    def visit_parts(self, node: Node, obstacle: str, followers: Set[str]) -> List[bool]:
        """Visit what is in a compound command; of each part, whether the trap does not see how it begins."""
        unseen = []
        self.guards += 1
        for part in node.conditions:
            why = obstacle or f"it follows `{node.kind}`"
            is_test = self.rest and self.rest.command.end == part[-1].end
            unseen.append(not is_test and self.visit(part, why, {LOOKS}))
        self.guards -= 1
        if node.kind == "case" and ";&" in node.text:
            followers = followers | {LOOKS}
        if node.kind in LOOPS:  # a turn may look at the last status of the turn before
            followers = followers.union(*map(next_names, [*node.conditions, *node.bodies]))
        is_reader = any(each.name == "read" for each in walk(chain(*node.conditions)))
        self.readers += is_reader
        unseen += [self.visit(part, obstacle, followers) for part in node.bodies]
        self.readers -= is_reader
        return unseen

    def is_expanded_early(self, node: Node) -> bool:
        """Whether bash expands words that may depend on tests before or behind the head that its trap sees."""
        if node.kind == "case":
            patterns = node.text.replace(head_of(node), "", 1)
            for each in node.parts():
                patterns = patterns.replace(each.text, "", 1)
            return re.search(r"[$`]", patterns) is not None
        if node.kind not in ("for", "select"):
            return False
        head = head_of(node)
        if re.search(r"\$[\d@*]", without_double_quotes(head)):  # a pattern, perhaps
            return True
        if has_glob(node.words) or re.search(SUBSTITUTION, without_calm(head)):
            return True
        names = set(re.findall(NAME, head))
        self.heads |= names
        return not names.isdisjoint(self.changes)

    def rest_of(self, statement: Nodes, following: Sequence[Nodes]) -> Rest | None:
        """What is done with the status of the test in a statement, also by those behind it; None: nothing, or now."""
        first = statement[0]
        command = first
        nodes = list(statement[1:])
        more = 0
        always = True
        if (
            first.kind == "if"
            and not first.redirects
            and list(map(len, first.conditions)) == [1]
        ):
            command = copy.copy(first.conditions[0][0])
            always = command.lead != "!" or len(first.bodies) > 1
            for token in [*command.assigned, *command.words][:1]:
                command.start = token.start
            command.text = self.text[command.start : command.end]
            command.lead = ""
            nodes += chain.from_iterable(first.bodies)
        elif not nodes:
            nodes = self.statements_on_status(following)
            more = len(statements_of(nodes))
            always = not asks_if_failed(nodes)
        is_handler = [node.before for node in statement[1:]] == ["||"]
        if is_handler or not nodes or not self.tells.is_test(command):
            return None
        if not all(map(self.can_be_put_off, walk(nodes))):
            return None
        start = self.text[first.start : command.start]
        end = max(node.end for node in (*statement, *nodes))
        own = set().union(*map(locals_of, walk(nodes)))
        if not own.isdisjoint(re.findall(NAME, self.around(self.text[first.start : end]))):
            return None
        text = start + RETURN + self.text[command.end : end]
        plain = with_plain_status(text)
        # The status of a pipeline, which decides what comes behind it, is not that of its first command.
        is_decided = first.kind or len(statement) > 1
        if "PIPESTATUS" in plain or (plain != text and is_decided):
            return None
        if plain != text:
            command.text += "\n{ (exit $((PIPESTATUS))); } 2>/dev/null"
        path, _ = path_of(chain(statement, *following[:more]))
        return Rest(command, nodes, plain, more, always, path[1:])

    def around(self, text: str) -> str:
        """The function that is being read, without this piece of it; the piece where there is no function."""
        for node in self.functions.get(self.function, ())[-1:]:
            return node.text.replace(text, "", 1)
        return text

    def statements_on_status(self, following: Sequence[Nodes]) -> List[Node]:
        """The statements that look at the status before them, or at what the first of them make of it."""
        tail: List[Node] = []
        seen = ASKS_STATUS
        for statement in following:
            text = "\n".join(node.text for node in statement)
            function = self.functions.get(statement[0].name, ())
            asks = LOOKS in names_within(function) and not tail
            if not (asks or re.search(seen, text)):
                break
            if statement[0].name == "exit":  # before it, bash waits for all tests
                break
            if not all(map(self.can_be_put_off, walk(statement))):
                break
            tail += statement
            for node in walk(statement):
                names = changed_by(node) | locals_of(node)
                seen += "".join(rf"|\b{re.escape(name)}\b" for name in names)
        return tail

    def can_be_put_off(self, node: Node) -> bool:
        """Whether a command, but for those in it, can run later than where it stands."""
        if is_forked(node):
            return False
        if node.kind:
            return node.kind in ("if", "{") and not node.redirects
        if node.name in LEAVES - {"local"} or self.tells.is_test(node):
            return False
        return not node.words or node.name in MAY_BE_PUT_OFF | self.functions.keys()

    def find_site(self, statement: Nodes, obstacle: str, followers: Set[str]) -> None:
        """Note the test in `command || handler`, if the statement ends so, or those that look like tests."""
        handler = statement[-1]
        is_handled = handler.before == "||" and not handler.lead and handler.kind in ("", "{")
        if is_handled and not (handler.kind and handler.redirects):
            names = {node.name for node in walk([handler])}
            if self.tells.is_test(statement[-2]) or not names.isdisjoint(self.tells.handlers):
                body = handler.bodies[0] if handler.kind else [handler]
                self.add_site(statement[-2], body, obstacle, followers)
            return
        if len(statement) > 1:
            obstacle = obstacle or "a pipe, `&&` or `||` joins other commands to it"
        if self.guards:
            obstacle = obstacle or "what follows may look at its status"
        for command in filter(self.tells.is_test, statement):
            self.add_site(command, [], obstacle, followers)

    def add_site(
        self,
        command: Node,
        handler: Nodes,
        obstacle: str,
        followers: Set[str],
        rest: Rest | None = None,
    ) -> None:
        """Note a test, and the commands that are to run where it fails."""
        text = ""
        path: Nodes = path_of([command])[0][1:]
        if rest:
            text = rest.text
            path = rest.path
        elif handler:
            text = self.text[handler[0].start : handler[-1].end]
        why, why_wait = self.examine(handler, text, rest)
        if command.start > self.alone_from:
            why_wait = "`#: one-by-one`"
        site = Site(
            self.test_line(command, handler),
            words_of(command),
            text,
            handler,
            rest,
            path,
            self.function,
            why_wait,
            self.files_of(command),
            followers,
            self.readers > 0,
            self.definitions,
        )
        obstacle = obstacle or why or obstacle_of(command)
        self.found.append((site, obstacle))
        if not obstacle:
            for line in self.lines_of(command):
                self.sites.setdefault(line, []).append(site)

    def examine(self, handler: Nodes, text: str, rest: Rest | None) -> Tuple[str, str]:
        """Why a test with this handler cannot be handed over, and why it has to be waited for at once."""
        obstacle = why_wait = ""
        # It begins with the status of the test.
        words = re.sub(r"\$\{?\?", "", without_calm(text))
        for node in walk(handler):
            if not rest and (node.name in LEAVES or re.search(r"[\\$\"']", node.name)):
                obstacle = "its handler changes the course of the script"
            if has_glob(node.words[1:]):
                why_wait = "what its handler says may change"
        if re.search("LINENO|BASH_COMMAND", words) or own_state(words):
            obstacle = obstacle or "its handler needs the script's own shell"
        if re.search(SEES_OUTSIDE, words):
            why_wait = "what its handler says may change"
        if rest and rest.always:
            written = map(written_by, reached_by(handler, self.functions))
            if any(written):
                why_wait = "what follows it writes files"
        return obstacle, why_wait

    def files_of(self, command: Node) -> List[str]:
        """Words that may name files, behind a `>` what it writes. Of functions that it calls, those without `$`."""
        own = reached_by([command], {})
        words = []
        for node in reached_by(own, self.functions):
            tokens = [*node.assigned, *node.words[1:], *node.redirects]
            if "$" in node.name:  # it may stand for all of a command
                tokens += node.words[:1]
            names = [f"\\>{word}" for word in written_by(node)]
            if node in own or node.name not in PRINTS | CHECKS | ASSIGNING:
                names += [token.text for token in tokens if token.kind != "operator"]
            if node.name == "eval":  # its words are commands
                names = [name.strip('"') for name in names]
            words += [
                name for name in names if node in own or re.match(r"[^$]+(?<!\.py)$", name)
            ]
        return [word for word in words if not re.search(SUBSTITUTION, word)]

    def test_line(self, command: Node, handler: Nodes) -> TestLine:
        """A test as a list would have it, labelled by what its handler is called with, if it is."""
        text = command.text
        words = [token.text for token in command.words]
        masks = [token for token in command.assigned if is_mask(token)]
        for token in reversed(masks):  # its own mask is what the test has been given
            start = token.start - command.start
            end_of_mask = token.end - command.start
            name, _, value = token.text.partition("=")
            # One that the runner does not allot stays what it is.
            text = f"{text[:start]}{name}=${{{name}-{value}}}{text[end_of_mask:]}"
        if self.depth == 1 and handler:  # bash names a command's line when it has read the `||`
            gap, _, _ = self.text[command.end : handler[0].start].rpartition("||")
            text += " \\\n" * gap.count("\n")
        calls = [node for node in walk(handler) if node.name in self.tells.handlers]
        label = "".join(token.text for node in calls[:1] for token in node.words[1:2])
        if not label or re.search(SUBSTITUTION, label):
            label = expandable(label.strip("\"'") or " ".join(words), is_command=True)
            label = re.sub(r'(\\")?\\\$([@*])(\\")?', "$*", label)
            label = re.sub(r"\\\$\{?(\d)\}?", r"${\1-\\$\1}", label)
        test = TestLine(
            self.name,
            self.line_of(command.start),
            text,
            "".join(words[:1]),
            key_of(words_of(command)),
            self.attributes_of(command),
            label=label,
            junit=junit_word(words),
        )
        test = with_words(with_mask(test, masks))
        command_words = [word for word in words[:2] if word != "eval"]
        if not ARGUMENTS.isdisjoint(command_words[:1]):
            test = test._replace(first='"${1%%[$IFS]*}"')
        if re.search(SUBSTITUTION, test.junit):
            return test._replace(junit="")
        return test


def without_calm(text: str) -> str:
    """Bash with the names in each `$(…)` in its place, if its commands look at nothing but their words."""
    text = re.sub(r"`([^`\\]*)`", r"$(\1)", text)
    for inner in nested(text, SUBSHELL):
        commands = walk(Reader(inner).nodes)
        if all(
            node.name in WORDS_ALONE and is_calm(node, set(), WORDS_ALONE) for node in commands
        ):
            names = re.findall(NAME, inner)
            text = text.replace(f"$({inner}", " ".join(["", *names, ""]))
    return text


def makes_names(node: Node) -> bool:
    """Whether the names that a command computes with may be put together from pieces, or be arguments."""
    found = list(nested(node.text, r"\(\("))
    is_sum = node.name == "[[" and re.search(r"\s-(?:eq|ne|lt|le|gt|ge)\s", node.text)
    if is_sum or node.name in ("let", "unset") or re.search(r"\s-v\s", node.text):
        found.append(node.text)
    return any(re.search(r"\}\w|\w\$|\$\{?[\d@*]", each) for each in found)


def asks_no_file(node: Node) -> bool:
    """Whether a `[[`, `[` or `unset` (with -f, of a function) asks for nothing that tests may change."""
    if node.name in ("[[", "unset"):
        return re.search(rf"\s[\"'\\]?{FILE_TEST}[\"']?\s", node.text) is None
    _, _, question = head_of(node).partition(" ")
    return re.fullmatch(rf"{QUESTION}(?: -[ao] {QUESTION})*(?: \])?", question) is not None


def is_calm(node: Node, changes: AbstractSet[str], functions: AbstractSet[str]) -> bool:
    """Whether a command of a script cannot tell if the tests before it have ended, so that it may run at once.

    It can by the variables that handlers change.
    """
    text = head_of(node) if node.kind else node.text
    if not changes.isdisjoint(re.findall(NAME, text)):
        return False
    seen = without_calm(text)
    if node.kind in ("for", "select"):
        # Bash has expanded it before (`is_expanded_early`).
        seen = re.sub(SUBSTITUTION, "", seen)
    if re.search(SEES_OUTSIDE, seen) or makes_names(node):
        return False
    redirects = "".join(f"{token.text} " for token in node.redirects)
    if not re.fullmatch(HARMLESS_REDIRECTS, redirects):
        return False
    if node.kind:
        return True
    if has_patterns(node):
        return False
    if node.name == "unset" and not functions.isdisjoint(words_of(node)):
        return False
    if node.name in ("[[", "[", "test", "unset"):
        return asks_no_file(node)
    if not node.words or node.name == "((":
        return True
    prints = len(node.words) < 2 or "-p" in words_of(node)
    if prints and node.name in ASSIGNING | names_in("set shopt alias"):
        return False
    return node.name in functions or node.name in RUNS_BESIDE_TESTS


# What the shell of a script does before the script, by BASH_ENV. Its DEBUG trap sees every simple command first. A trap
# that ends with a failure skips the command. Nothing in it may show under `set -x`, nor change what the script sees:
# `$?`, `$_`, its options, its standard streams. The descriptors: FD_ERR keeps the script's standard error while a trap
# runs, FD_FIN is open while its EXIT trap does. What it asks of the runner, and what is answered, in bash; an answer
# begins with the number of its question, since a signal may keep the shell from reading that of an earlier one:
#
#   question  fields                                  answer
#   scan      file, directory                         what was read of the file: the places of its lines
#   look      command                                 for a command beside tests: _rt_remember or _rt_join
#   site      file, line, command, number of calls,   for a test its words and _rt_hand; for a handler _rt_join and
#             each with line and file, arguments      _rt_tell; else nothing
#   test      snapshot, obstacle, …, its words        _rt_skip=1, or _rt_join where the test has to run as it stands;
#                                                     _rt_pass: how the commands begin that are to be passed over
#   join      level of `source`, file, line, command  when all tests have ended: _rt_react if some have failed
#   react     snapshot, status of the last reaction,  what changes back the state; what sets that of the next test that
#             what has run since the last join        failed, and _rt_handle; nothing if there is none
#   doubts    text, behind the script's name          nothing; what has gone ahead of what it should have waited for
#   failed    label, status, line                     no answer; bash itself is about to call a handler
#   ends      line, command                           nothing; it ends the script or a function with the status before
#   alone     line, command                           nothing; from here on bash runs the script by itself
HOOK = r"""
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "run_tests.py: error: bash $BASH_VERSION is too old to run a script in parallel; put bash 4.4 on PATH" >&2
  exit 3
fi
unset RUN_TESTS_LABEL RUN_TESTS_SLOT RUN_TESTS_ATTEMPT
declare -A _rt_files _rt_places _rt_calm _rt_evaluated
_rt_own=$'\n'$(compgen -bk)$'\n'       # builtins and reserved words
_rt_shell=$BASHPID _rt_exports=1 _rt_pending= _rt_trapped= _rt_over= _rt_count=0 _rt_asked=0 _rt_skipped= _rt_kept=
_rt_ran=() _rt_looked=() _rt_heard=() _rt_called= _rt_pass= _rt_error= _rt_x= _rt_from=$PWD
_rt_ours=    # `exit` is a function of ours
_rt_silent=  # the status of the last test is still what bash would have in $?

_rt_ask() {      # sends words, does what is answered
  local _rt_answer=()
  builtin printf '%s\0' "$(($# + 1))" "$((++_rt_asked))" "$@" >&"$_rt_out"
  until [[ $_rt_answer == "$_rt_asked "* ]]; do    # a signal may have come between the question before and its answer
    builtin mapfile -t -d '' -n 1 -u "$_rt_in" _rt_answer    # which heeds neither IFS nor TMOUT
    [[ $_rt_answer ]] || break
  done
  set -- "${_rt_arguments[@]}"
  eval "${_rt_answer#* }"
}
_rt_hook() {     # $?, the command, its line, its trap for ERR, the positional parameters, $_, which so stays what it is
  local - _rt_flags=$- _rt_skip= _rt_again=$_rt_skipped
  set +aeuvx
  _rt_unskip
  if [[ ! $_rt_over && ! -e /dev/fd/FD_FIN ]]; then    # else $2 is stale
    local _rt_status=$1 _rt_command=$2 _rt_line=$3 _rt_on_error=$4 _rt_arguments=("${@:5:$#-5}")
    local _rt_name=${_rt_command%%[$' \t\n']*}
    if [[ $BASHPID == "$_rt_shell" && $_rt_pass ]]; then
      _rt_pass_over
    elif [[ $BASHPID == "$_rt_shell" ]]; then
      _rt_step
    elif [[ $_rt_handlers == *" $_rt_name "* && ${FUNCNAME[1]-} != "$_rt_name" ]]; then
      _rt_tell
    fi
  fi
  [[ $_rt_skip ]] || return
  shopt -s extdebug    # in which bash does not run a command whose trap fails
  _rt_skipped=1
}
_rt_pass_over() {   # skips what belongs to the test before, whose commands follow each other as the runner says
  if [[ $_rt_again && ${_rt_command%%[!A-Za-z0-9_]*} == "${_rt_pass%% *}" ]]; then
    _rt_pass=${_rt_pass#* } _rt_skip=1
  else
    _rt_pass=
    _rt_ask doubts ":$_rt_line: \`$_rt_command\` went ahead of what follows a test"
  fi
}
_rt_unskip() {
  [[ ! $_rt_skipped ]] || shopt -u extdebug
  _rt_skipped=
}
_rt_expand() {   # the values of words behind a command, in _rt_said; what they change (`${a[i++]}`) is not kept
  _rt_said=$(
    set -- "${_rt_arguments[@]}"
    eval "set -- ${_rt_command#"$_rt_name"}" && (($#)) && builtin printf '%q ' "$@"
  )
  eval "_rt_said=($_rt_said)"
}
_rt_tell() {     # bash itself calls a handler, perhaps in a subshell, which cannot ask
  local _rt_label=${_rt_command#"$_rt_name"}
  case $_rt_label in
    *\`* | *\$[\(\[]* | *[\<\>][!\&]* | *\$\{*[=?\[]* | *\$\{*++* | *FUNCNAME* | *BASH_* | *RANDOM*) ;; # it does more
    *)
      _rt_expand
      _rt_label=${_rt_said-$_rt_name} ;;
  esac
  builtin printf '%s\0' 5 '' failed "$_rt_label" "$_rt_status" "$_rt_line" >&"$_rt_out"
}
_rt_step() {
  local _rt_source=${BASH_SOURCE[2]:-main} _rt_place
  [[ ! $_rt_again ]] || _rt_silent=1
  case ${_rt_flags//[!T]/}$_rt_command in
    [!T]* | *FUNCNEST* | *set\ *+*T* | *functrace* | *extdebug* | Tset\ -k* | *keyword* | *nocasematch* | \
      *trap*[Rr][Ee][Tt][Uu][Rr][Nn]* | *trap*DEBUG* | *trap*PIPESTATUS* | \
      *ulimit*n\ [0-9] | *ulimit*n\ [0-9][0-9] | *ulimit*n\ [12][0-9][0-9])
      _rt_join         # behind our `set -T`, functions inherit a trap for RETURN; behind ours, one has no PIPESTATUS;
                       # and our descriptors are above so few
      _rt_over=alone
      builtin trap - DEBUG
      _rt_ask alone "$_rt_line" "$_rt_command"
      return ;;
  esac
  [[ ${_rt_files[$_rt_source]-} ]] || _rt_ask scan "$_rt_source" "$_rt_from"
  _rt_place=${_rt_places[${_rt_files[$_rt_source]}:$_rt_line]-}
  [[ ! ${_rt_evaluated[$_rt_source:$_rt_line]-} ]] || _rt_place=${_rt_place/s}
  [[ ! $_rt_trapped ]] || _rt_keep_traps
  if [[ $_rt_called == "${#FUNCNAME[@]}:$_rt_command" &&
    (${FUNCNAME[2]} == "$_rt_name" || $_rt_name == *[\$\"\'\\]*) ]]; then    # a function is seen where it begins, too
    _rt_called=
    return
  fi
  _rt_called=$((${#FUNCNAME[@]} + 1)):$_rt_command
  if [[ $_rt_place == *s* || $_rt_handlers == *" $_rt_name "* ]]; then
    local _rt_site=
    _rt_ask_site
    [[ ! $_rt_site ]] || return
  fi
  if [[ ! $_rt_pending ]]; then
    case $_rt_place:$_rt_command in
      *s*:* | *trap* | *:\$* | *:*=*\ \$* | *:builtin* | *:command* | *:source* | *:.* | *:eval*) ;;
      *) _rt_remember ;;    # but for what may be a test the next time, or is to be looked at each time, as below
    esac
  elif [[ $_rt_place == *w* ]]; then
    _rt_join
  else
    _rt_ask look "$_rt_command"
  fi
  case ${_rt_name//[\"\'\\]/} in
    *trap* | *=* | *\$* | builtin | command) _rt_trapped=1 ;;
    export | declare | readonly | typeset) [[ $_rt_command == *=* ]] || _rt_known= ;;
    source | .) _rt_scan_sourced ;;
    exit | return) [[ ! $_rt_silent ]] || _rt_look_at_end ;;
    eval) _rt_expect_lines ;;
  esac
  [[ ! $_rt_silent ]] || _rt_hear
}
_rt_scan_sourced() { # a file may be another than before, and one of functions alone does not tell of itself
  _rt_files=() _rt_calm=() _rt_from=$PWD
  [[ $_rt_command != *[\`\(]* ]] || return
  _rt_expand
  [[ ! -f ${_rt_said-} ]] || _rt_ask scan "$_rt_said" "$PWD"
}
_rt_hear() {     # a command has a status of its own, but for heads of loops and the like, and calls of functions
  case $_rt_name in
    for | case | select | \(\(*) ;;
    *) declare -F -- "$_rt_name" >/dev/null || _rt_silent= ;;
  esac
}
_rt_look_at_end() {  # `exit $NAME` behind a test ends with the status before it where nothing is left of the word
  [[ $_rt_command == *\$* && $_rt_command != *[\`\(]* ]] || return
  _rt_expand
  [[ ${_rt_said+set} ]] || {
    _rt_join
    _rt_ask ends "$_rt_line" "$_rt_command"
  }
}
_rt_expect_lines() { # `eval` gives its text the lines of the file from its own on: no test of the file stands there
  local _rt_n _rt_ends
  _rt_calm=()
  [[ $_rt_command != *[\`]* && $_rt_command != *'$('* ]] || return
  _rt_expand
  _rt_ends=${_rt_said[*]}
  _rt_ends=${_rt_ends//[!$'\n']/}
  for ((_rt_n = _rt_line + ${#_rt_ends}; _rt_n > _rt_line; _rt_n--)); do _rt_evaluated[$_rt_source:$_rt_n]=1; done
}
_rt_ask_site() {
  local _rt_stack=() _rt_called_at _rt_caller _rt_n
  for ((_rt_n = 0; _rt_n < ${#FUNCNAME[@]} - 1; _rt_n++)); do
    [[ ${FUNCNAME[_rt_n]} != _rt_* ]] || continue
    _rt_called_at=${BASH_LINENO[_rt_n]}
    _rt_caller=${BASH_SOURCE[_rt_n + 1]:-main}
    [[ ! ${_rt_evaluated[$_rt_caller:$_rt_called_at]-} ]] || _rt_called_at=0    # nobody knows what `eval` has there
    _rt_stack+=("${FUNCNAME[_rt_n]} $_rt_called_at $_rt_caller")
  done
  _rt_ask site "$_rt_source" "$_rt_line" "$_rt_command" "${#_rt_stack[@]}" "${_rt_stack[@]}" "${_rt_arguments[@]}"
}
_rt_remember() { # this place and command need no question, as long as tests are pending or none are
  _rt_calm[$_rt_pending:$_rt_source:$_rt_line:$_rt_command]=1
}
_rt_scan_home() { # scans the file that defines a function, which `declare -F` names
  local _rt_home
  ! _rt_home=$(shopt -s extdebug; builtin declare -F -- "$1") || _rt_ask scan "${_rt_home#* * }" "$_rt_from"
}
_rt_hand() {     # hands over the test whose words are in _rt_label, _rt_junit, _rt_mask, _rt_first
  local _rt_why= _rt_reads= _rt_n _rt_home=$_rt_source
  [[ $_rt_own != *$'\n'"$_rt_first"$'\n'* ]] || _rt_why='bash runs it itself'
  declare -F -- "${_rt_calls[@]}" >/dev/null || _rt_why='its handler is not defined yet'
  if [[ $_rt_flags == *u* && $_rt_words ]]; then    # bash says itself of what is not set
    ( set -u -- "${_rt_arguments[@]}"; eval "builtin : $_rt_words" ) >/dev/null 2>&1 ||
      _rt_why='it names what is not set'
  fi
  [[ ! $! || ! $(builtin jobs -pr) ]] || _rt_why='the script has a job in the background'
  [[ ${SHELLOPTS@a}${BASHOPTS@a} != *x* ]] || _rt_why='it exports its options'
  if [[ /dev/fd/0 -ef /dev/fd/$_rt_stdin ]]; then
    _rt_reads=own
  elif [[ ! /dev/fd/0 -ef /dev/null ]]; then
    _rt_reads=other
  fi
  [[ /dev/fd/1 -ef /dev/fd/$_rt_stream && /dev/fd/FD_ERR -ef /dev/fd/$_rt_stream ]] ||
    _rt_why='its output is redirected'
  [[ $PWD -ef . ]] || _rt_why='its folder is another now'
  [[ ! $_rt_junit || $_rt_junit == /* ]] || _rt_junit=$PWD/$_rt_junit
  # Something else may have run since. Definitions of functions are not told.
  _rt_place="${#FUNCNAME[@]} $_rt_flags $_rt_level $_rt_definitions $_rt_source"
  if [[ ! $_rt_again || $_rt_place != "$_rt_kept" ]]; then
    _rt_keep >|"$_rt_folder/$((++_rt_count))" || _rt_why='its state cannot be kept'
    _rt_kept=$_rt_place
  fi
  _rt_place=$_rt_flags${_rt_error:+R}
  ! declare -F -- "$_rt_first" >/dev/null || _rt_place+=F
  _rt_ask test "$_rt_folder/$_rt_count" "$_rt_why" "$_rt_place" "$_rt_reads" "$_rt_error" \
    "$_rt_label" "" "$_rt_junit" "$_rt_first" "$_rt_mask" "$PWD" "${_rt_paths[@]}"
}
_rt_keep() {     # bash that makes another shell like this one; behind `return`, what is as at the start of the script
  local _rt_text _rt_same=
  builtin printf 'cd -- %q || exit\nunset OLDPWD\n' "$PWD"
  _rt_write_settings
  if [[ $_rt_text == "$_rt_first_settings" ]]; then
    _rt_same=$_rt_text
  else
    builtin printf '%s' "$_rt_text"
  fi
  _rt_write_outer
  if [[ $_rt_text == "$_rt_first_outer" ]]; then
    _rt_same+=$_rt_text
  else
    builtin printf 'unset -v %s\n' "${_rt_outer[@]}"
    builtin printf '%s' "$_rt_text"
  fi
  _rt_snapshot "${_rt_arguments[@]}"
  for ((_rt_n = 0; _rt_n < _rt_level; _rt_n++)); do builtin printf 'PS4=${PS4:0:1}$PS4\n'; done
  builtin printf 'set +vxeuaTE\n'
  [[ $_rt_flags != *[aux]* ]] || builtin printf 'set -%s\n' "${_rt_flags//[!aux]/}"
  builtin printf 'return\n%s# whole\n' "$_rt_same"
}
_rt_write_settings() {    # in _rt_text
  { set +o; _rt_settings; } >|"$_rt_folder/settings"
  IFS= builtin read -r -d '' _rt_text <"$_rt_folder/settings"
}
_rt_write_outer() {       # in _rt_text: the variables that the script has got
  _rt_text=
  ((${#_rt_outer[@]})) || return
  declare -p "${_rt_outer[@]}" >|"$_rt_folder/outer"
  IFS= builtin read -r -d '' _rt_text <"$_rt_folder/outer"
}
_rt_begin() {    # notes what a shell is like that a test starts from
  local IFS=' ' _rt_name _rt_text
  set -T
  _rt_write_settings
  set +T
  _rt_first_settings=$_rt_text
  _rt_snapshot >/dev/null
  for _rt_name in "${_rt_variables[@]}"; do
    case $_rt_name in PS4 | PWD | OLDPWD) continue ;; esac
    [[ ${!_rt_name@a} != x ]] || _rt_outer+=("$_rt_name")
  done
  _rt_known=
  _rt_write_outer
  _rt_first_outer=$_rt_text
}
_rt_join() {     # waits until all tests have ended; the answer calls handlers
  [[ $_rt_pending ]] || return
  _rt_pending= _rt_kept=
  local _rt_level=0 _rt_n
  for _rt_n in "${FUNCNAME[@]}"; do
    case $_rt_n in source|_rt_ask|_rt_hook) ((++_rt_level)) ;; esac      # each shows one level deeper
  done
  _rt_ask join "$_rt_level" "${_rt_source-}" "${_rt_line-0}" "${_rt_command-}"
  _rt_calm=() _rt_ran=()
}
_rt_look() {     # whether a folder is there already; it is to be the same when all tests have ended
  local _rt_fd=
  if [[ ! ${CDPATH-} ]] && [ -d "$1" ] && exec {_rt_fd}<"$1"; then
    [[ $1 == /* ]] || set -- "$PWD/$1"
    _rt_looked+=("$1" "$_rt_fd")
    _rt_ran+=("1:$_rt_source:$_rt_line:$_rt_command")
  fi
  [[ $_rt_fd && $_rt_fd -lt 140 ]] || _rt_join
}
_rt_look_again() {
  local _rt_n _rt_fd
  for ((_rt_n = 0; _rt_n < ${#_rt_looked[@]}; _rt_n += 2)); do
    _rt_fd=${_rt_looked[_rt_n + 1]}
    [[ ${_rt_looked[_rt_n]} -ef /dev/fd/$_rt_fd ]] ||
      _rt_ask doubts ": a look at ${_rt_looked[_rt_n]}, which is another now, went ahead of a test"
    exec {_rt_fd}<&-
  done
  _rt_looked=()
}
_rt_react() {    # to the tests that have failed, one after the other, as the runner says
  local _rt_more=1 _rt_reacted=0 _rt_level=0 _rt_home= _rt_n
  _rt_ran+=("${!_rt_calm[@]}")
  _rt_keep >|"$_rt_folder/state"
  while [[ $_rt_more ]]; do
    _rt_more=
    _rt_ask react "$_rt_folder/state" "$_rt_reacted" "${_rt_ran[@]}"
    _rt_ran=()
  done
  _rt_trapped=1
}
_rt_return() { return "$1"; }
_rt_exit() { builtin exit "$1"; }
_rt_handle() {   # the status of a test, its handler, the options and the positional parameters at its place
  local PS4=$'\1'$PS4 _rt_failed=$1 _rt_text=$2 _rt_set=${3//[!aux]/}
  _rt_text="{ ${_rt_set:+set -$_rt_set; }_rt_return $1; } 2>/dev/null"$'\n'"{ $_rt_text"$'\n'
  _rt_text+="{ _rt_reacted=\$?; set +aux; } 2>/dev/null; }"
  shift 3
  _rt_reacted=256    # it stays so where an error in an expansion ends the block
  { eval "$_rt_text"; } 2>&FD_ERR
}
_rt_end() {
  local _rt_status=$? _rt_flags=$- _rt_arguments=() _rt_n _rt_signal=
  set +aeuvx
  _rt_unskip
  if [[ /dev/fd/1 -ef /dev/fd/$_rt_out || " ${FUNCNAME[@]} " == *" _rt_"@(hand|keep)" "* ]]; then
    builtin printf %s ''        # a signal has ended it while our hook wrote a question or a file: first the rest of it
    exec >&"$_rt_stream"
  fi
  if [[ $BASHPID == "$_rt_shell" ]]; then
    for _rt_n in TERM INT HUP; do
      trap -p "$_rt_n" >|"$_rt_folder/traps"           # a signal that comes sooner ends it: no fork before
      [[ -s $_rt_folder/traps ]] || {                  # the rest of its EXIT trap is to run
        trap "_rt_signal=$_rt_n" "$_rt_n"
        _rt_heard+=("$_rt_n")
      }
    done
    [[ -o posix ]] || declare -F exit >/dev/null || _rt_ours=1
    [[ ! $_rt_ours ]] || exit() { _rt_leave "${1-$?}"; }
    _rt_exit() { _rt_leave "$1"; }
    _rt_join
    [[ ! $_rt_signal ]] || _rt_leave $((128 + $(builtin kill -l "$_rt_signal")))
    _rt_leave_as "$_rt_status"
    _rt_over=1
  fi
  set "-${_rt_flags//[!aeuvx]/}$_rt_x"
  return "$_rt_status"
}
_rt_leave() {    # ends a script that has come to its end already, which bash does without the rest of its EXIT trap
  _rt_leave_as "$1"
  case $_rt_farewell in    # the script's arguments are not here
    *\$[0-9@*#]* | *\$\{[0-9@*]*) _rt_ask doubts ': the trap for EXIT went ahead of what ends the script' ;;
  esac
  eval "{ ${_rt_x:+set -x; }_rt_return $1; } 2>/dev/null"$'\n'"$_rt_farewell"
  { exit "$1"; } 2>/dev/null
}
_rt_leave_as() { # an `exit` without a status has this one in its EXIT trap, in which bash would take that of our hook
  _rt_left=$1
  [[ ! $_rt_heard ]] || trap - "${_rt_heard[@]}"     # the EXIT trap may end the shell by a signal
  _rt_heard=()
  [[ ! $_rt_ours ]] || exit() { { builtin exit "${1-$_rt_left}"; } 2>/dev/null; }
}
_rt_read_trap() {     # the commands of a trap, from what `trap -p` says, in _rt_text; in POSIX mode it says `-` of none
  eval "set -- ${1#trap -- }"
  _rt_text=${1-}
  [[ $_rt_text != - ]] || _rt_text=
}
_rt_keep_traps() {    # the end of the script waits too, and so does what a failure runs, whatever traps there are
  local IFS=' ' _rt_text _rt_before _rt_frames
  if [[ $_rt_trapped != up ]]; then
    _rt_read_trap "$(trap -p EXIT)"
    if [[ $_rt_text != *_rt_end* ]]; then
      _rt_farewell=$_rt_text
      trap -- "{ _rt_end && :; } FD_FIN>&2 FD_ERR>&2 2>/dev/null${_rt_text:+; $_rt_text}" EXIT
    fi
  fi
  _rt_trapped=
  _rt_frames=" ${FUNCNAME[*]:3}"
  _rt_frames=${_rt_frames% main}
  _rt_read_trap "$_rt_on_error"
  if [[ ! $_rt_text && $_rt_flags != *E* && ${_rt_frames// source/} ]]; then
    _rt_trapped=up     # a function does not see the trap of its caller
  else
    _rt_before='{ _rt_wait && :; } FD_FIN>&2 FD_ERR>&2 2>/dev/null; '
    _rt_error=${_rt_text#"$_rt_before"}    # it may have been kept with ours, and set again
    [[ ! $_rt_error ]] || trap -- "$_rt_before$_rt_error" ERR
  fi
}
_rt_wait() {     # before the commands of a trap for ERR, which bash does not tell
  local _rt_status=$? - _rt_flags=$- _rt_arguments=()
  set +aeuvx
  [[ $BASHPID != "$_rt_shell" ]] || _rt_join
  return "$_rt_status"
}
_rt_begin 2>/dev/null
if [[ ${_rt_bash_env+set} ]]; then
  export BASH_ENV=$_rt_bash_env
  . "$BASH_ENV"
fi
_rt_on_error= _rt_flags=$-
_rt_keep_traps
unset _rt_on_error _rt_flags
_rt_trap='{ [[ ! $_rt_skipped && ${_rt_calm[$_rt_pending:${BASH_SOURCE:-main}:$LINENO:$BASH_COMMAND]-} ]] ||'
_rt_trap+=' if _rt_hook "$?" "$BASH_COMMAND" "$LINENO" "${_rt_trapped:+$(trap -p ERR)}" "$@" "$_"; then ! : "$_";'
_rt_trap+=' elif [[ $_rt_over == alone ]]; then _rt_last=$_; set +T; : "$_rt_last"; fi; } FD_ERR>&2 2>/dev/null'
trap 'set -T; trap "$_rt_trap" DEBUG; '"$_rt_trap" DEBUG
"""
# Says what a shell is like, before and after it calls a function. What programs and the like leave behind is left out.
STATE_KEEPER = r"""
{ set +o
  trap
  set +aeuvx
  unset BASH_REMATCH COLUMNS LINES OLDPWD; hash -r
  pwd
  _rt_folder=${_rt_to%/*} _rt_exports=1 _rt_home=
  _rt_settings
  _rt_snapshot "$@"
} >|"$_rt_to"
"""
OWN_LINES = rb"\{ (?:\[\[ ! \$_rt_skipped|_rt_end|_rt_wait).*?2>/dev/null(?:\n|; )"  # which `set -v` shows


# The shell that runs a script, and what it prints.


class Asked(NamedTuple):
    """The shell of a script asks what to do, or has ended; it had printed `offset` bytes before.

    The first word is the number of the question, empty where no answer is awaited.
    """

    offset: int
    words: Sequence[str]


class ScriptShell:
    """The bash that runs a script, the log that keeps what it prints, and the pipes by which its hook asks.

    A pipe takes what it prints, so that it can say `echo >/dev/stderr`; it waits for each answer, so that we know
    what it had printed before it asked.
    """

    # Scripts use small numbers and round ones, bash those from 255 down.
    OWN_FDS = range(151, 199)

    size = 0
    status = EXIT_MACHINE  # the exit status
    asked = ""  # the number of the question that waits for its answer
    # Why it did not start, or what it has printed or asked was not understood or kept.
    fault: Exception | None = None

    def __init__(self, job: Job, reaper: Reaper, post: Callable[[Any], None]) -> None:
        self.job = job
        self.reaper = reaper
        self.post = post
        self.process = Process(reaper)
        self.output, self.stream = os.pipe()
        self.questions, self.ask = os.pipe()
        self.answers_end, self.answers = os.pipe()
        self.over, self.end = os.pipe()
        os.set_blocking(self.output, False)

    def start(self, text: str, start: str) -> None:
        """Start it, with some bash before the hook; `text` is the script's. Raises OSError."""
        self.kept = fresh_file(self.job.log)
        found = re.findall(r"\b(\d+)[<>]|(?:[<>]&|\bflock(?: -\w+)* |/fd/|-u ?)(\d+)", text)
        used = set(chain.from_iterable(found))
        numbers = [number for number in self.OWN_FDS if str(number) not in used]
        own = {"in": self.answers_end, "out": self.ask, "stream": self.stream, "stdin": 0}
        if sys.stdin is None:
            own["stdin"] = self.stream
        own = {
            name: fcntl.fcntl(descriptor, fcntl.F_DUPFD, number)
            for number, (name, descriptor) in zip(numbers, own.items())
        }
        first = "unset BASH_ENV\n"
        if "BASH_ENV" in os.environ:
            first += f"_rt_bash_env={shlex.quote(os.environ['BASH_ENV'])}\n"
        first += "".join(f"_rt_{name}={descriptor}\n" for name, descriptor in own.items())
        hook = SNAPSHOT + HOOK
        for name in ("FD_FIN", "FD_ERR"):
            hook = hook.replace(name, str(numbers.pop()))
        path = self.reaper.scratch.write(first + start + hook)
        environment = {**(self.job.environment or {}), b"BASH_ENV": path.encode()}
        job = self.job._replace(environment=environment)
        threading.Thread(target=self.run, args=(job, own.values()), daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()

    def run(self, job: Job, own: Iterable[int]) -> None:
        """Run the script until all that it has started has ended. Children of the main thread would be orphans."""
        try:
            self.process.spawn(job, os.dup(self.stream))  # ours stays open, so that poll rests
            for descriptor in (*own, self.answers_end):
                os.close(descriptor)
            self.process.wait()
            if self.reaper.has_orphans():
                self.process.sweep()
            self.status = self.process.close()
        except OSError as error:
            self.fault = error
        finally:
            os.close(self.end)

    def signal(self, signum: int) -> None:
        """Send a signal to the script."""
        self.process.signal(signum)

    def listen(self) -> None:
        """Keep what is printed, post what is asked."""
        from select import poll as new_poll

        poll = new_poll()
        for descriptor in (self.output, self.questions, self.over):
            poll.register(descriptor)
        asked = b""
        is_over = False
        while not is_over:
            events = dict(poll.poll())
            is_over = self.over in events
            try:
                self.keep()
                if self.questions in events:
                    asked += os.read(self.questions, COPY_BYTES)
                    asked = self.post_whole(asked)
            except (OSError, ValueError) as error:  # the script has written what is no question
                self.fault = error
                self.signal(signal.SIGKILL)
        self.post(Asked(self.size, ["", "end"]))

    def post_whole(self, asked: bytes) -> bytes:
        """Post the questions that have come whole; returns the rest."""
        count, *words = asked.split(b"\0")
        while count and len(words) > int(count):
            question = list(map(to_text, words[: int(count)]))
            self.post(Asked(self.size, question))
            count, *words = words[int(count) :]
        return b"\0".join([count, *words])

    def keep(self) -> None:
        """Append to the log what has been printed since the last time. Raises OSError."""
        with suppress(BlockingIOError):
            while True:
                # This does not end by itself: we hold the pipe open.
                data = re.sub(OWN_LINES, b"", os.read(self.output, COPY_BYTES))
                while data:
                    written = os.write(self.kept, data)
                    data = data[written:]
                    self.size += written

    def answer(self, code: str) -> None:
        """Let the shell do what it has asked for."""
        data = to_bytes(f"{self.asked} {code}\0")
        with suppress(OSError):  # it has been killed
            while data:
                data = data[os.write(self.answers, data) :]


class ScriptTrace:
    """What a script prints: as it comes while none of its tests runs, else at its place among their output."""

    source = os.devnull  # the script's log, by descriptor: its name may go
    shown = 0  # offset

    def __init__(self, console: Console) -> None:
        self.console = console
        self.trace = console.trace

    def show(self, end: float = math.inf) -> None:
        """Show more of what the script has printed."""
        with suppress(OSError):
            shown = self.trace.copy(self.source, self.shown, end)
            self.shown = max(self.shown, shown)

    def show_test(self, result: Result, offset: int, start: int, end: int, shift: int) -> None:
        """Show a test at its offset in what the script prints, then what its handler has printed there.

        `set -x` shows the handler by `shift` deeper than it is.
        """
        self.show(offset)
        if self.console.shows(result) and self.console.has_markers:
            with suppress(OSError):
                self.trace.copy(self.console.record.log_path(result.test))
        with suppress(OSError), open(self.source, "rb") as file:
            file.seek(start)
            self.trace.write(unshifted(file.read(end - start), shift))


# What may run ahead, and whether it has seen what it should not.


class Place(NamedTuple):
    """Where bash has come to a test."""

    site: Site
    line: str
    command: str  # as bash has it
    frames: Sequence[Frame]  # the calls in which it stands, the innermost first
    level: int  # how many files have been sourced from one another
    callers: Sequence[Call]  # what may have called the functions in which it stands
    arguments: Sequence[str]  # of the function in which it stands
    followers: Collection[str]  # the names of what bash may come to behind it


class State(NamedTuple):
    """What bash says of itself there. A field that says yes is not empty."""

    snapshot: str  # path of bash that makes another shell like the script's
    obstacle: str  # why it cannot be handed over
    flags: str  # the shell's options
    reads: str  # its standard input: `own` if it is the script's, `other`, or nothing
    error: str  # the commands of its trap for ERR


class Handed(NamedTuple):
    """A test that the shell of a script has handed over."""

    test: Test
    offset: int  # what the script had printed before
    place: Place
    said: State
    reaction: str  # bash: what the script does where it fails
    handler: Handler  # what that is like


Settings = Mapping[str, str]  # the state of a shell: by name, bash that sets it


class Reaction(NamedTuple):
    """What the script does about a failure, while it does."""

    handed: Handed
    status: int  # of the test
    now: Settings  # the state of its shell, which has run ahead
    then: Settings  # the state in which it reacts
    borrowed: Collection[str]  # what has been changed back for it


# A variable in a snapshot, with its value in bash's quotes.
VARIABLE = (
    rf"""declare -\S+ ({NAME})((?:"(?:[^"\\]|\\[\s\S])*"|'(?:[^'\\]|\\[\s\S])*'|[^"'\n])*)\n"""
)
# The end of a script with the status of a test. `set -x` does not show it; it does what the EXIT trap does.
RETURN = '{ _rt_return "$_rt_failed"; } 2>/dev/null'  # in the place of a test
END = '{ _rt_x=${-//[!x]/}; set +x; } 2>/dev/null; _rt_exit "$_rt_failed"'
# Nobody looks at what these were: bash sets them by itself.
OWN_LIFE = names_in("LINES COLUMNS BASH_EXECUTION_STRING PWD OLDPWD") | {
    " arguments",
    " set errtrace",
    " set functrace",
    " shopt extdebug",
}
# What is not as it was in the state in which a handler runs.
NOT_KEPT = names_in("OLDPWD DIRSTACK") | {reader.variable for reader in READERS}
INDIRECT = rf"\$\{{!{NAME}\}}|(?:declare|local|typeset) -\w*n"  # names that stand in variables


def read_state(path: str) -> Settings:
    """The state of a shell, from its snapshot: by name, bash that sets it.

    Names that begin with a blank are not those of variables: ` cd`, ` umask`, ` shopt X`, ` set X`, ` functions` and
    ` arguments`. Raises OSError or ValueError.
    """
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    state = {}
    for found in re.finditer(rf"{VARIABLE}|([^\n]*)\n", text):
        variable, value, line = found.groups()
        if variable:
            if value or not found.group().startswith("declare -- "):
                state[variable] = found.group()[:-1]  # else it is as good as unset
            continue
        setting = re.match(r"(cd|umask)\b|(shopt) -[su] (\w+)|(set) [-+]o (\w+)", line)
        if setting:
            name = " ".join(["", *filter(None, setting.groups())])
            state[name] = line.replace(" || exit", "")  # a test's; the script goes on
        elif line.startswith("_rt_late="):
            state[" functions"] = line
        elif line.startswith("set --"):
            state[" arguments"] = line[len("set --") :]
        elif not re.match(r"unset\b|ulimit -|PS4=|set [-+]|return$|# whole$|$", line):
            raise ValueError(f"no snapshot: {line!r}")  # perhaps by a trap, in the midst of it
    if not text.endswith("\n# whole\n"):
        raise ValueError("no whole snapshot")
    return state


# Of a test: those that follow each other have the same one.
kept_state = functools.lru_cache(maxsize=1)(read_state)


def different(state: Settings, other: Settings) -> Set[str]:
    """The names that are not the same in two states."""
    return {name for name, _ in state.items() ^ other.items()} - OWN_LIFE


def mixed(state: Settings, other: Settings, names: Container[str]) -> Settings:
    """A state with these names as in another one."""
    kept = {name: text for name, text in state.items() if name not in names}
    taken = {name: text for name, text in other.items() if name in names}
    return {**kept, **taken}


def with_attribute(letter: str, names: Iterable[str], *states: Settings) -> Set[str]:
    """Those of these variables that have an attribute of `declare` in any of these states."""
    return {
        name
        for name in names
        for state in states
        if re.match(rf"declare -\w*{letter}", state.get(name, ""))
    }


def named_by(names: AbstractSet[str], values: Iterable[Tuple[str, str]]) -> Set[str]:
    """The variables of these, with their values, whose values name any of these names."""
    return {name for name, value in values if not names.isdisjoint(re.findall(NAME, value))}


def exported_by(site: Site, handler: Handler, said: State) -> AbstractSet[str]:
    """The variables that a handler changes, or sets where its test passes, and that programs get."""
    exports = "a" in said.flags or is_in(r"^(?:export|declare|typeset)\b", walk(site.nodes))
    if site.rest and site.rest.always and exports:
        return handler.changes
    return with_attribute("x", handler.changes, kept_state(said.snapshot))


class Script:
    """All that has been read of a script and of what it sources."""

    asks_at_end = False  # one of them may ask where the script ended, or for "$1"

    def __init__(self, tells: Tells) -> None:
        self.tells = tells
        self.files: Dict[str, ScriptFile] = {}  # by name, as bash knows them
        self.functions: Dict[str, List[Node]] = {}  # of all files
        # Names for whose files, if they are functions, bash has been asked.
        self.sought: Set[str] = set()
        self.changes: Set[str] = set()  # variables that handlers change
        self.patterns: Set[str] = set()  # variables that may stand for what files there are
        self.farewells: List[Node] = []  # commands of traps for EXIT
        self.locals: Set[str] = set()  # variables that functions have for themselves
        # Commands may have other names than the files say: by aliases, or what `eval` makes.
        # A file that bash reads before the script may define some.
        self.is_wild = self.heeds_aliases = "BASH_ENV" in os.environ

    @property
    def has_aliases(self) -> bool:
        """Whether a word that stands for a command may be another to bash."""
        return self.is_wild and self.heeds_aliases

    def read(self, source: str, text: str) -> ScriptFile:
        """Read a file of the script, and others again whose loops go through what its handlers change."""
        values = re.findall(NAMED_VALUE, text)
        globs = re.findall(NAMED_VALUE, re.sub(r"\$\{\w+[^-:=+\w][^}]*\}|\$[?*]", "", text))
        self.patterns.update(name for name, value in globs if re.search(r"[*?[]", value))
        self.patterns |= named_by(self.patterns, values)
        file = self.files[source] = ScriptFile(
            source, text, self.tells, self.changes | self.patterns
        )
        for name, definitions in file.functions.items():
            self.functions.setdefault(name, []).extend(definitions)
        commands = [call.node for calls in file.calls.values() for call in calls]
        self.locals.update(*map(locals_of, commands))
        for node in commands:
            if "$" in node.name:
                self.locals.update(re.findall(rf"({NAME})=", node.text))
            if node.name == "trap" and len(node.words) > 2:
                nodes = Reader(unquoted(node.words[1].text)).nodes
                self.changes |= read_handler(nodes, self.functions).changes
                if re.search(r"\s(?:EXIT|0)\b", node.text):
                    self.farewells += nodes
        self.is_wild |= any(map(is_wild, commands))
        self.is_wild |= is_in("(?i)(?<!expand_)alias", commands)
        self.heeds_aliases |= bool(re.search("expand_aliases|posix", text))
        reached = reached_by(self.farewells, self.functions)
        asks_itself = is_in(r"LINENO|\$\{?[1-9@*#]", self.farewells)
        self.asks_at_end = asks_itself or is_in(WHERE, reached)
        for each in self.files.values():
            for site, _ in each.found:
                self.changes |= read_handler(site.nodes, self.functions).changes
        self.changes |= named_by(self.changes, values)
        changes = self.changes | self.patterns
        for name, each in self.files.items():
            if not each.heads.isdisjoint(changes - each.changes):
                self.files[name] = ScriptFile(name, each.text, self.tells, changes)
        return self.files[source]

    def tables(self) -> str:
        """What the hook has to know of the lines of all files, as bash."""
        tables = "_rt_places=()\n"
        for number, file in enumerate(self.files.values(), 1):
            tables += f"_rt_files[{shlex.quote(file.name)}]={number}\n"
            tables += "".join(f"_rt_places[{number}:{line}]+=s\n" for line in file.sites)
            tables += "".join(f"_rt_places[{number}:{line}]+=w\n" for line in file.waits)
        return tables

    def look(self, command: str) -> str:
        """What bash does before a command while tests are pending: it waits for them, or goes on."""
        for node in Reader(command).nodes:
            if any(node.name in file.unseen for file in self.files.values()):
                break
            calm = set(self.functions)
            if re.match(self.tells.calm, node.name):
                calm.add(node.name)
            there = re.fullmatch(IS_THERE, node.text)
            if there:
                word = there.group(1)
                # `[[` does not split words.
                if node.name == "[[":
                    word = f'"{word}"'
                node = Reader(f"echo {word}").nodes[0]
            loose = re.findall(rf"{NAME}\b(?!\+?=)", without_double_quotes(command))
            if not is_calm(node, self.changes | self.patterns.intersection(loose), calm):
                break
            if node.name in self.functions:
                return f"if declare -F -- {node.name} >/dev/null; then _rt_remember; else _rt_join; fi"
            if there:
                return f"_rt_look {word}"
            if node.name in ("cd", "pushd", "popd"):
                return (
                    '( [[ ! ${CDPATH-} ]] && eval "$_rt_command" ) >/dev/null || _rt_join; '
                    '_rt_ran+=("1:$_rt_source:$_rt_line:$_rt_command")'
                )
            return "_rt_remember"
        return "_rt_join"

    def unread_function(self, place: Place) -> str:
        """What may be a function that bash comes to here, and whose file is yet to be looked for; each is only once.

        The trap does not see a file that has nothing but functions.
        """
        handlers = [node.name for node in walk(place.site.nodes)]
        for name in (place.site.test.first, *place.followers, *handlers):
            is_known = name in self.functions or name in self.sought
            if not is_known and re.fullmatch(r"[\w-]+", name):
                self.sought.add(name)
                return name
        return ""

    def reach(self, text: str, state: Settings, calls: bool = True) -> Set[str]:
        """The names in some bash, in the functions that it `calls`, and in the values of its variables."""
        waiting = [text]
        reached: Set[str] = set()
        for each in waiting:  # it grows
            # A function may be named as no variable can be.
            words = re.findall(r"[\w.:+@%!,-]+", each)
            new = {*re.findall(NAME, each), *words} - reached
            reached |= new
            for name in new:
                bodies = [node.text for node in self.functions.get(name, ())]
                waiting += bodies * calls
                waiting.append(state.get(name, "").partition("=")[2])
        return reached

    def mentions(self, pattern: str) -> bool:
        """Whether there is a pattern in any file."""
        return is_in(pattern, self.files.values())

    def only_looks(self, name: str) -> bool:
        """Whether this is a function that starts no program, so that it is no test, whatever it is called."""
        call = Reader(name).nodes
        return name in self.functions and not read_handler(call, self.functions).urgent

    def urgent(self, handler: Handler) -> str:
        """What a handler calls that cannot be put off, in words: calm programs can."""
        names = [name for name in handler.urgent if not re.match(self.tells.calm, name)]
        return " ".join(sorted(names))

    def has_tests(self, name: str) -> bool:
        """Whether a function has tests that can be handed over one by one, which is better than all at once."""
        found = chain.from_iterable(file.found for file in self.files.values())
        own = [site for site, why in found if site.function == name and not why]
        if len(own) != 1:
            return len(own) > 1
        handler = read_handler(own[0].nodes, self.functions)
        if own[0].handler and not handler.changes:  # it hides failures
            return True
        return not read_handler(self.functions[name], self.functions).is_test

    def may_be_gone(self, function: str, changes: AbstractSet[str]) -> List[str]:
        """Local variables among these that may be gone when a failure in a function is known.

        Not those that a command at its end names, before which bash waits for tests.
        """
        if not function:
            return []
        own = changes & self.locals
        if any("$" in name for name in self.locals):
            own = set(changes)
        body: Nodes = self.functions[function]
        while len(body) == 1 and body[0].kind in ("function", "{"):
            body = body[0].parts()
        asked: Set[str] = set()
        for statement in reversed(statements_of(body)):
            every = list(walk(statement))
            if any(map(self.tells.is_test, every)):
                break
            if any(node.name in LEAVES for node in every):
                asked.clear()  # bash may not come to what is behind it
            if statement[0].kind in ("", "if"):
                first = [node.text for node in first_commands(statement[:1]) if not node.kind]
                asked.update(re.findall(NAME, " ".join(first)))
        return sorted(own - asked)

    def calls_of(self, frame: Frame) -> Sequence[Call]:
        """The commands that may have called a function or sourced a file; if none is found, one that may be any."""
        file = self.files.get(frame.source)
        on_line = file.calls.get(int(frame.line), []) if file else []
        names = (frame.name, ".")  # which is `source`
        found = [call for call in on_line if call.node.name in names or "$" in call.node.name]
        if not found or any(is_wild(call.node) for call in on_line):
            return [UNKNOWN]
        return found

    def comes_behind(self, site: Site, callers: Iterable[Sequence[Call]]) -> Set[str]:
        """The names of what bash may come to behind a test, also behind its function and at the beginning of others."""
        names = set()
        ways = [{name for call in calls for name in call.followers} for calls in callers]
        for followers in (site.followers, *ways, {LOOKS}):
            names |= followers
            if LAST not in followers:
                break
        waiting = list(names)
        for name in waiting:  # it grows
            found = names_within(self.functions.get(name, ())) - names
            names |= found
            waiting += found
        return names

    def is_watched(self, followers: Iterable[str], flags: str) -> bool:
        """Whether something may look at a status in a shell with these options (`$-`), by what comes behind it."""
        for name in followers:
            if name == LAST and re.search("[eER]", flags):
                return True
            if re.match(r"(?:eval|source|command|builtin|\.)$|.*\$", name):
                return True
            if name == COMPUTES and self.mentions(STATUS_BY_VALUE):
                return True
            known = STATE_WORDS | MAY_BE_PUT_OFF | self.functions.keys() | {LAST}
            if self.is_wild and name not in known and not find_program(name):
                return True
        return False


class Certainty:
    """Looks whether anything that has gone ahead of a failure can have seen what the script did about it."""

    reaction: Reaction | None = None
    # Since the script last waited, known when it waits:
    reacted: Set[str]  # what reactions have changed
    ran: List[str]  # `file:line:command`, what the script has gone through
    seen: Set[str]  # the names that any of that may have looked at
    is_indirect: bool  # it may have looked at others too

    def __init__(self, script: Script) -> None:
        self.script = script
        self.doubts: List[str] = []  # what has gone ahead of a failure, and might have seen it
        # The same where it is less likely; it counts only where the script ends with 0.
        self.fears: List[str] = []

    def wait(self, ran: Sequence[str], handed: Sequence[Handed], state: Settings) -> None:
        """The script waits, has run these commands since it waited before, and has handed these tests over."""
        self.ran = [command[2:] for command in ran if command.startswith("1:")]
        self.reacted = set()
        bodies = [each.place.site.test.body for each in handed[1:]]
        text = "\n".join([*self.ran, *bodies])
        self.seen = self.script.reach(text, state)
        self.is_indirect = re.search(INDIRECT, text) is not None

    def begin(self, handed: Handed, now: Settings, status: int) -> str:
        """Bash that reacts to a failure in the state that the shell had when it handed the test over.

        Variables that have changed since stand behind local ones meanwhile.
        """
        base = kept_state(handed.said.snapshot)
        borrowed = different(base, now) - self.reacted - {" functions"}
        read_only = with_attribute("r", borrowed, now)
        locked = read_only & self.script.reach(handed.reaction, base)
        borrowed -= read_only - locked
        then = mixed(now, base, borrowed)
        self.reaction = Reaction(handed, status, now, then, borrowed)
        lines = []
        for name in sorted(borrowed):
            line = base.get(name, f"local {name} && unset -v {name}")
            if name in locked:  # that of a function can be hidden, a global one cannot
                doubt = f":{handed.place.line}: `readonly {name}` went ahead of a failure"
                line = f"{{ {line}; }} 2>/dev/null || _rt_ask doubts {shlex.quote(doubt)}"
            lines.append(line)
        place = f"{handed.said.flags or '-'}{base[' arguments']}"
        lines += [
            f"local _rt_what={shlex.quote(handed.place.command)}",
            f"_rt_handle {status} {shlex.quote(handed.reaction)} {place}",
            '_rt_keep >|"$_rt_folder/state"',
            *(now[name] for name in sorted(borrowed) if name.startswith(" ")),
            "_rt_more=1",
        ]
        return "\n".join(lines)

    def end(self, after: Settings, status: int, handed: Sequence[Handed]) -> Settings:
        """What a reaction has changed; returns the state of the shell without what was borrowed for it."""
        assert self.reaction
        own, failure, now, then, borrowed = self.reaction
        self.reaction = None
        later = handed[handed.index(own) + 1 :]
        changed = different(then, after)
        self.reacted |= changed
        exported = with_attribute("x", changed, then, after)
        seen = self.who_has_seen(changed, later, after, exported)
        if any(name in borrowed or name.startswith(" set ") for name in changed):
            seen.append(f"{own.test.where}:the script")
        self.doubt(own, seen, status)
        if failure and (own.handler.reads or own.handler.writes):
            ahead = [f"{each.test.where}:{each.place.command}" for each in later] + self.ran
            self.fears += [ahead_of(text, own.test) for text in ahead[:1]]
        return mixed(after, now, borrowed)

    def who_has_seen(
        self,
        changed: Set[str],
        later: Sequence[Handed],
        state: Settings,
        exported: Set[str],
    ) -> List[str]:
        """What has run ahead, `file:line:command`, and may have looked at what has changed.

        A program may look at all that is exported.
        """
        of_shell = any(name.startswith(" ") for name in changed)
        is_open = self.is_indirect or of_shell or exported
        if not changed or (self.seen.isdisjoint(changed) and not is_open):
            return []
        bodies = (f"{each.test.where}:{each.place.site.test.body}" for each in later)
        tests = dict.fromkeys(bodies)  # in their order
        seen = []
        for text in [*self.ran, *tests]:
            command = text.split(":", 2)[2]
            # If its first word is a function, what that runs is told by itself.
            called = command.split(" ")[0] * (text not in tests)
            names = self.script.reach(command, state, not called)
            is_program = not called or re.match(self.script.tells.calm, called)
            is_wide = (exported and is_program) or (
                of_shell and called not in self.script.functions
            )
            if is_wide or re.search(INDIRECT, command) or not names.isdisjoint(changed):
                seen.append(text)
        return seen

    def doubt(self, handed: Handed, seen: List[str], status: int) -> None:
        """Note the first of what has seen too much, or that something has looked at the status of a reaction."""
        site = handed.place.site
        flags = handed.said.flags
        is_watched = False
        if status and site.handler:
            ends = not site.rest and re.search("[eR]", flags) is not None
            is_watched = ends or self.script.is_watched(handed.place.followers, flags)
        if status > 255 or is_watched:
            seen.append(f"{handed.test.where}:what looks at the status of its handler")
        self.doubts += [ahead_of(text, handed.test) for text in seen[:1]]


def ahead_of(text: str, test: Test) -> str:
    """What has gone ahead of the failure of a test, from `file:line:command`."""
    file, line, command = text.split(":", 2)
    return f"{file}:{line}: `{command.strip()}` went ahead of the failure of {test.label} ({test.where})"


# The run of a script.


class ScriptRun(Run):
    """The run of a script: bash goes through it and hands tests over, and waits where it would see a difference."""

    sums_up = False  # the script does
    status: int | None = None  # its exit code, where it has come to its end
    offset = 0  # what it had printed before it last asked
    left = 0  # the status of what follows the last test: `[ $? -ne 0 ] && RET=1` ends with 1 where that has passed
    must_join = False  # one of `last_ones` has failed: the script waits before its next test
    place: Place  # of the test that bash has come to last
    batch_at = math.inf
    joined: Tuple[int, int] | None = None  # offset and level where it waits
    # A test for which alone the script has waited, and why: that is to be told if another one follows.
    lone: Tuple[TestLine, str] | None = None
    has_ended = is_ending = False
    # It ends a script that goes on without tests.
    killer: threading.Timer | None = None

    def __init__(self, script: Script, host: Host, options: Options, trace: Trace) -> None:
        super().__init__(select([], options, History()), host, options, trace)
        self.history = read_history(options)
        self.name = options.lists[0]
        self.sequential = self.schedule.pool.sequential
        host.allow(self.schedule.pool.size * 8 + self.schedule.pool.cpus)  # with fractions
        self.shown = ScriptTrace(self.console)
        self.labels = Unique("{} #{}", str)
        self.stems = stems_beside(script.files[self.name].text, options.log_dir)
        self.stem = self.stems(os.path.basename(self.name))
        self.script = script
        self.certainty = Certainty(script)
        self.last_ones: Set[Test] = set()  # tests whose failure may end the script
        self.keeper = host.reaper.scratch.write(SNAPSHOT + STATE_KEEPER)
        # A folder with a file for each slot, of the tests whose shells have come to their ends.
        self.ended = host.reaper.scratch.path()
        os.mkdir(self.ended)
        self.handed: List[Handed] = []  # since the script has last waited
        self.named: Dict[str, str] = {}  # files that these name, to the label of one
        self.batch: List[Test] = []  # of these, what the schedule does not know yet
        self.handling: List[Handed] = []  # to which bash reacts
        self.ends: List[int] = []  # offsets where these have ended
        self.ahead: List[str] = []  # labels of tests that ran ahead of the end of the script
        self.alone: Dict[str, str] = {}  # by place, why a test does not run beside others
        # What has changed since comes with the snapshot of the script's shell; functions always do.
        self.exports = {
            name: value
            for name, value in os.environb.items()
            if name != b"BASH_ENV" and name[-2:] != b"%%"
        }
        self.shell = self.make_shell()

    def make_shell(self) -> ScriptShell:
        """The shell that is to run the script."""
        environment = {
            **os.environb,
            b"RUN_TESTS_LABEL": to_bytes(self.name),
            b"RUN_TESTS_ATTEMPT": b"1",
        }
        log = os.path.join(self.record.log_dir, f"{self.stem}.log")
        arguments = list(map(to_bytes, [self.name, *self.options.arguments]))
        job = Job(self.host.bash, arguments, environment, log, stdin=None)
        return ScriptShell(job, self.host.reaper, self.inbox.put)

    def start_script(self) -> None:
        """Let bash begin, and say what there is to say of the script. Raises OSError."""
        file = self.script.files[self.name]
        self.introduce(file)
        folder = self.host.reaper.scratch.path()
        os.mkdir(folder)
        handlers = " ".join(self.options.handlers)
        start = f"_rt_folder={shlex.quote(folder)} _rt_handlers=' {handlers} '\n"
        self.shell.start(file.text, start)
        self.shown.source = f"/dev/fd/{self.shell.kept}"

    def is_over(self) -> bool:
        return self.has_ended and self.schedule.done and not self.handed

    def deadline(self) -> float:
        return min(self.schedule.deadline(), self.batch_at)

    def take(self, event: Any) -> None:
        """Note what has happened, and do what follows from it."""
        if isinstance(event, Asked):
            number, kind, *fields = event.words
            self.shell.asked = number or self.shell.asked
            self.offset = event.offset
            answer = getattr(self, f"on_{kind}")(*fields)
            if answer is not None:
                self.shell.answer(answer)
        else:
            super().take(event)
            if isinstance(event, Begin):
                self.start_script()
            if isinstance(event, Interrupt) and self.is_ending:
                self.shell.signal(signal.SIGKILL)
        self.follow_up()

    def tick(self) -> float:
        if self.handed:  # what follows their places may not be shown yet
            return super().tick()
        self.shown.show()
        return min(super().tick(), FOLLOW_S)

    def conclude(self, result: Result, is_news: bool = True) -> None:
        super().conclude(result, is_news)
        is_far_ahead = len(self.handed) > 16 * self.schedule.pool.size  # perhaps for ever
        may_end = result.test in self.last_ones
        if (may_end or is_far_ahead) and self.options.fails(result.outcome):
            self.must_join = True

    def follow_up(self) -> None:
        """What any event may have made possible or necessary."""
        schedule = self.schedule
        is_due = time.monotonic() >= self.batch_at
        if self.batch and (self.joined or self.has_ended or is_due):
            self.submit()
        if not self.is_ending and (
            schedule.interrupts or schedule.failure or schedule.is_overdue
        ):
            self.is_ending = True
            self.shell.signal([*schedule.interrupts, signal.SIGTERM][0])
        if self.batch or not schedule.done:
            return
        if self.is_ending and not self.killer:
            self.killer = threading.Timer(
                self.options.grace, self.shell.signal, [signal.SIGKILL]
            )
            self.killer.daemon = True
            self.killer.start()
        if self.joined and not self.handling:
            self.call_handlers()
        if self.has_ended and self.handed:
            self.release(self.shell.size)

    def submit(self) -> None:
        """Let the schedule know of new tests: the first ones wait a moment for others, to start the longest first."""
        selection = select([*self.schedule.waiting, *self.batch], self.options, self.history)
        order = selection.to_run(self.options.order, self.schedule.pool)
        event = Submit(time.monotonic(), self.batch, order)
        self.batch = []
        self.batch_at = math.inf
        super().take(event)

    def on_scan(self, source: str, directory: str) -> str:
        """Bash has come to a file that it had not come to before."""
        before = self.script.files.get(source)
        path = os.path.join(directory, source)
        text = before.text if before else ""
        try:
            if not os.path.isfile(path):  # a pipe, `eval`, or a name from another directory
                raise ListError
            text = list_text(path)
        except ListError:
            self.script.is_wild = True
        if not before:
            self.introduce(self.script.read(source, text))
        elif before.text != text:
            # Two files have this name, and of which one a function is, nobody knows.
            self.script.read(source, "")
        return '_rt_ran+=("${!_rt_calm[@]}") _rt_calm=()\n' + self.script.tables()

    def introduce(self, file: ScriptFile) -> None:
        """Say of a file its mistakes, why tests of it run alone, and how many commands only look like tests."""
        for message in file.mistakes:
            tell(message)
        for site, why in file.found:
            if why and not self.script.only_looks(site.test.first):
                self.explain(site.test, why)
        if file.name != self.name or self.sequential:
            return
        ahead = [site.test for site, why in file.found if not why]
        for test in ahead:
            if asks_for_several(test, self.options) > 1:
                warn(
                    f"{file.name}:{test.line}: this looks like a test of several GPUs, and gets as many as it says, or "
                    "all; `#: gpus=1` behind it says otherwise"
                )
                break
        if len(ahead) > 1 and self.script.tells.looks and not self.options.one_by_one:
            way = "no handlers"
            if re.search(r"(?m)^\s*set -\w*e", file.text) and "set +e" not in file.text:
                way = "set -e"
            warn(
                f"{file.name}: {way}: {len(ahead)} commands look like tests, and may run ahead of each other; "
                "--one-by-one stops that"
            )

    def explain(self, test: TestLine, why: str) -> None:
        """Note why a test does not run beside others; with --verbose, say it at once."""
        place = f"{test.file}:{test.line}"
        if self.options.verbose and place not in self.alone:
            tell(f"{place}: does not run beside other tests: {why}")
        self.alone.setdefault(place, why)

    def on_look(self, command: str) -> str:
        """Bash is about to run a command while tests are pending."""
        return self.script.look(command)

    def on_site(self, source: str, line: str, command: str, size: str, *fields: str) -> str:
        """Bash is about to run a command where a test stands."""
        read = Reader(command).nodes
        words = words_of(read[0]) if read else []
        file = self.script.files[source]
        on_line = file.sites.get(int(line), ())
        sites = [site for site in on_line if site.words == words]
        same = {
            call.node.start
            for call in file.calls.get(int(line), ())
            if words_of(call.node) == words or is_wild(call.node)
        }
        frames = [Frame(*each.split(" ", 2)) for each in fields[: int(size)]]
        arguments = fields[int(size) :]
        if self.script.tells.runs_no_test(words, arguments):
            sites = []
        for site in sites[:1]:
            if len(same) > 1:
                self.explain(site.test, "another command on its line has the same words")
            elif site.handler or not self.script.has_tests(words[0]):
                callers = list(map(self.script.calls_of, frames))
                followers = self.script.comes_behind(site, callers)
                level = sum(frame.name == "source" for frame in frames)
                calls = list(chain(*callers))
                return self.ask_state(
                    Place(site, line, command, frames, level, calls, arguments, followers)
                )
            elif site.path:  # a pipeline
                self.explain(site.test, "its tests run in a subshell")
        if words and words[0] in self.options.handlers:
            return "_rt_join; _rt_tell; _rt_site=1"
        return ""

    def on_doubts(self, text: str) -> str:
        """Bash has gone ahead of something, as this says behind the script's name."""
        self.certainty.doubts.append(self.name + text)
        return ""

    def ask_state(self, place: Place) -> str:
        """Bash that tells of itself where it has come to a test, or first scans what it comes to there."""
        site = place.site
        unread = self.script.unread_function(place)
        if unread:
            return f"_rt_scan_home {unread}; _rt_ask_site"
        self.place = place
        label, _, junit, first, mask = site.test.to_expand()
        if not site.test.has_mask and self.machine.variables:
            mask = f"${{{self.machine.variables[0]}-}}"
        named = self.script.reach(site.handler, {}) & self.script.functions.keys()
        called = {node.name for node in walk(site.nodes)}.intersection(self.options.handlers)
        calls = " ".join(named | called)
        said = [*site.words]
        if not site.rest:
            said += chain.from_iterable(map(words_of, site.nodes))
        words = " ".join(word for word in said if "$" in word)
        if re.search(SUBSTITUTION, words):
            words = ""
        return (
            f"local _rt_label={label} _rt_junit={junit} _rt_mask={mask} _rt_first={first}; "
            f"local _rt_level={place.level} _rt_calls=({calls}) _rt_words={shlex.quote(words)} "
            f"_rt_definitions={site.definitions} "
            f"_rt_paths=({' '.join(site.names)}); _rt_hand; _rt_site=1"
        )

    def on_failed(self, label: str, status: str, line: str) -> None:
        """Bash itself is about to call a handler: a test has failed that was no job for the slots.

        It does not wait for an answer, which a subshell could not read.
        """
        self.note_failure(clean_label(label.strip(" \"'")), int(line), int(status) or 1)

    def note_failure(self, label: str, line: int, status: int | None) -> None:
        """Record what has failed, or was interrupted, in the script's own shell: it has no log but the script's."""
        key = key_of([label])
        test = self.script_test(
            TestLine(self.name, line, "", label, key, Attributes(), label=label)
        )
        failed = test._replace(stem=self.stem)
        outcome = Outcome.INTERRUPTED if status is None else Outcome.FAILED
        result = Result(failed, outcome, status=status)
        self.tests.append(failed)
        self.schedule.results[failed] = [result]
        self.record.attempt_end(result)
        self.record.test_end(result)

    def on_ends(self, line: str, command: str) -> str:
        """Bash is about to end something with the status of a test, perhaps, which it does not know."""
        for test in self.tests[-1:]:
            if self.left or self.options.fails(self.schedule.results[test][-1].outcome):
                end = f"{self.name}:{line}:{command}"
                self.certainty.fears.append(ahead_of(end, test))
        return ""

    def on_alone(self, line: str, command: str) -> str:
        """Bash runs the rest by itself, since its trap will not see all."""
        place = TestLine(self.name, int(line), "", "", "", Attributes())
        self.explain(place, f"behind `{command}` bash runs all by itself")
        return ""

    def on_test(self, *fields: str) -> str:
        """Bash has come to a test."""
        said = State(*fields[:5])
        place = self.place
        site = place.site
        if self.is_ending:
            return "_rt_skip=1"
        shell = Snapshot(os.getcwd(), self.exports, said.snapshot)
        line = site.test.expanded(shell, b"", fields[5:10])
        paths = paths_of(*fields[10:])
        if not ARGUMENTS.isdisjoint(site.words):
            line = line._replace(junit=line.junit or junit_word(place.arguments))
        reaction, handler = self.reaction_to(place, said)
        why = self.obstacle(line, place, handler, said, reaction)
        if why:
            if not self.script.has_tests(line.first):
                self.explain(site.test, why)
            return "_rt_join"
        mentions = re.findall(r"[\w.${}-]+", line.body)  # files that a handler writes, perhaps
        # Its first word is perhaps a function whose name is put together.
        named = self.script.reach(f"{line.body}\n{line.first}", {})
        is_seen_by = bool(self.handed) and not named.isdisjoint(self.script.changes)
        if self.must_join or is_seen_by or self.shares_file(line, [*paths, *mentions]):
            return "_rt_join; _rt_ask_site"
        test = self.test_of(line, site, said, " ".join(fields[11:]))
        own = [path for path, is_own in paths.items() if is_own]
        for name in filter(None, [*own, test.junit, *handler.writes]):
            self.named[name] = test.label
        if "exit" in reaction or handler.leaves:
            self.last_ones.add(test)
        self.hand(Handed(test, self.offset, place, said, reaction, handler))
        done = "_rt_pending=1 _rt_skip=1"
        if site.path:
            done += f" _rt_pass={shlex.quote(site.passed_over())}"
        why = self.why_wait(place, handler, said)
        if why and not self.sequential:
            self.explain(site.test, f"the script waits for its end at once: {why}")
        if why or self.sequential:
            done += "; _rt_join"
        return done

    def shares_file(self, line: TestLine, names: Iterable[str]) -> bool:
        """Whether a test names a file that one names which was handed over since the script has last waited."""
        if line.junit in self.named:
            warn(
                f"{line.file}:{line.line}: writes the same JUnit file as an earlier test, {line.junit}, and "
                "waits for it"
            )
            return True
        for name in names:
            if name in self.named:
                self.explain(line, f"it names {name}, as {self.named[name]} does")
                return True
        return False

    def reaction_to(self, place: Place, said: State) -> Tuple[str, Handler]:
        """What the script does about a test, as bash, and what that is like."""
        site = place.site
        trap = re.sub(r"\$(?:LINENO\b|\{LINENO\})", place.line, said.error)
        trap = re.sub(r"\$(?:BASH_COMMAND\b|\{BASH_COMMAND\})", "${_rt_what}", trap)
        reaction = site.handler or trap
        nodes = site.nodes or Reader(reaction).nodes
        ways = [call.followers for call in place.callers]
        is_last = all(followers == {LAST} for followers in (site.followers, *ways))
        if place.frames and self.script.mentions("trap"):  # one for EXIT would see the function
            is_last = False
        if not site.handler and ("e" in said.flags or is_last):
            reaction = f"{reaction}\n{END}".strip()
        return reaction, read_handler(nodes, self.script.functions, said.flags)

    def urgent(self, handler: Handler, said: State, reached: AbstractSet[str]) -> str:
        """What a handler calls that cannot be put off, in words: what may read the input of a loop is among that."""
        if said.reads == "other":
            return " ".join(sorted(handler.urgent | reached & READS_INPUT))
        return self.script.urgent(handler)

    def why_wait(self, place: Place, handler: Handler, said: State) -> str:
        """Why bash has to wait for a test before it goes on; empty if it may run ahead."""
        if self.options.one_by_one:
            return "--one-by-one"
        site = place.site
        reached = self.script.reach(site.handler or said.error, {})
        urgent = self.urgent(handler, said, reached)
        if urgent:
            return f"its handler calls {urgent}"
        if site.why_wait:
            return site.why_wait
        for name in sorted(reached & NOT_KEPT | handler.changes & HEEDED):
            return f"its handler uses {name}"
        if UNKNOWN in place.callers:
            return "what calls it was not read"
        frames = [Frame("", place.line, site.test.file), *place.frames]
        if any(int(frame.line) in self.script.files[frame.source].waits for frame in frames):
            return "bash cannot wait behind it"
        if self.script.has_aliases:
            return "aliases may change what follows"
        own = [name[2:] for name in site.names if name.startswith("\\>")]
        if not all(any(name in text for name in own) for text in handler.reads):
            return "its handler reads files"
        if ANY in handler.changes:
            return "its handler changes what only bash knows"
        for name in self.script.may_be_gone(site.function, handler.changes):
            return f"its handler changes {name}, which may be gone when its function ends"
        for name in sorted(exported_by(site, handler, said)):
            return f"its handler changes {name}, which is exported"
        return ""

    def obstacle(
        self, line: TestLine, place: Place, handler: Handler, said: State, reaction: str
    ) -> str:
        """Why bash has to run a test itself; empty if it need not."""
        site = place.site
        may_end = handler.leaves or reaction.endswith(END)
        if may_end and self.script.asks_at_end:
            return "a trap for EXIT asks where the script has ended"
        why = self.bare_obstacle(line, place, said, reaction) * (not site.handler)
        if why:
            return why
        if "BASH_SOURCE" in line.body and line.file != self.name:
            return "BASH_SOURCE is not its own"
        if said.reads == "other" and (self.sequential or not site.is_in_reader):
            return "its standard input is redirected"
        why = self.function_obstacle(line.first, said.flags)
        if why:
            return why
        looks = "e" in said.flags or (site.handler and said.error)
        if handler.fails or (looks and handler.can_fail):
            return "its handler may fail, or needs the script's own shell"
        if site.rest and site.rest.more and looks:
            return "what follows, or the end of the script, may look at its status"
        may_fail = handler.can_fail or site.rest is not None
        asks = may_fail or site.path or LOOKS_AT_PIPE in place.followers
        if asks and self.script.is_watched(place.followers, said.flags * may_fail):
            return "what follows, or the end of the script, may look at its status"
        with suppress(ValueError):
            kept_state(said.snapshot)
            return said.obstacle
        return "its state was not kept whole"

    def function_obstacle(self, name: str, flags: str) -> str:
        """Why bash has to run a test itself that is a function; empty if it is none, or need not."""
        functions = self.script.functions
        function = functions.get(name)
        if function is None:
            return f"{name} is a function that was not read" * ("F" in flags)
        if not read_handler(function, functions, flags).is_test:
            return f"{name} changes the script's shell"
        if LOOKS in names_within(function) or is_in(
            SHELL_ALONE, reached_by(function, functions)
        ):
            return f"{name} asks for what only the script's shell knows"
        if "u" in flags and self.sequential:
            return f"{name} may end the script"
        return ""

    def bare_obstacle(self, line: TestLine, place: Place, said: State, reaction: str) -> str:
        """Why bash has to run a test without a handler itself: something looks at its status."""
        site = place.site
        is_function = line.first in self.script.functions
        is_inside = site.function or (is_function and "E" in said.flags)
        if said.error and is_inside:
            return "a trap for ERR looks at its status"
        if said.error and (site.path or "LINENO" in reaction):
            return "its trap for ERR may ask where it stands"
        if said.error and self.sequential and re.search("[uvx]", said.flags):
            return "bash says more of its trap there"
        if not reaction.endswith(END):
            is_watched = self.script.is_watched(place.followers, said.flags)
            may_look = is_watched or self.script.has_aliases
            return "what follows may look at its status" * may_look
        is_guarded = any(GUARDED in call.followers for call in place.callers)
        return "what calls it may look at its status" * is_guarded

    def hand(self, handed: Handed) -> None:
        """A test is on its way."""
        if self.lone:
            self.explain(*self.lone)
        self.lone = None
        if not self.handed:
            self.shown.show(handed.offset)
        self.handed.append(handed)
        self.left = 0
        self.tests.append(handed.test)
        self.batch.append(handed.test)
        self.batch_at = min(self.batch_at, time.monotonic() + BATCH_S)
        self.console.total += 1

    def script_test(self, line: TestLine, words: str = "") -> Test:
        """A test of the script, from its line with the values of its words, and the words that may name files."""
        mask = os.environ.get((*self.machine.variables, "")[0], "")
        own = line.has_mask or line.mask != mask
        line = line._replace(has_mask=own, attributes=line.attributes._replace(after=()))
        label = self.labels(line.label)
        self.stems.reserve(stems_written(words, self.options.log_dir))
        test = make_test(
            line, len(self.tests), label, self.stems(stem_of(line, label)), self.options
        )
        tell_unheeded([test], self.host.heeds)
        there = len(self.machine.devices)
        if line.attributes.gpus is None:  # CUDA leaves out what is not there
            gpus = max(test.gpus, asks_for_several(line, self.options, words))
            test = test._replace(gpus=min(gpus, max(there, 1)))
        # As under bash, one passes by its status alone.
        test = test._replace(announces=False, is_pytest=False)
        return self.host.fitted(test, self.options)

    def test_of(self, line: TestLine, site: Site, said: State, words: str) -> Test:
        """A test whose shell, where it calls a function, says what it is like before and after. Raises OSError.

        One by one, tests read what the script reads.
        """
        test = self.script_test(line, words)
        has_stdin = self.sequential and said.reads == "own"
        before = ""
        # A file for each test would cost a third of a short one.
        after = f'builtin echo {test.index} >>{shlex.quote(self.ended)}/"${{RUN_TESTS_SLOT-0}}"'
        if line.first in self.script.functions:
            folder = f"{self.keeper}.{test.index}"
            os.mkdir(folder)
            folder = shlex.quote(folder)
            keep = f". {shlex.quote(self.keeper)} )"
            before = f"( _rt_to={folder}/before; {keep}"
            same = f'builtin [ "$(<{folder}/before)" = "$(<{folder}/after)" ]'
            after = f"( _rt_to={folder}/after; {keep}; {same} && {after}"
            if "e" in said.flags and not site.handler:
                before = f"set -e; {before}"  # which counts in functions
        after = f"{{ _rt_status=$?; {after}; builtin exit $_rt_status; }} 2>/dev/null"
        shell = test.shell._replace(has_stdin=has_stdin, before=before, after=after)
        return test._replace(shell=shell)

    def check_shells(self) -> None:
        """Tests have run in shells of their own, which they may neither change nor end but by a last failure."""
        by_itself = (*PASSING, Outcome.FAILED, Outcome.CRASHED)
        ended = set()
        for slot in os.listdir(self.ended):
            ended.update(list_text(os.path.join(self.ended, slot)).split())
        for handed in self.handed:
            may_end = handed.test.shell.before and handed.reaction.endswith(END)
            has_ended = self.result_of(handed).outcome in by_itself
            has_told = str(handed.test.index) in ended or (may_end and self.has_failed(handed))
            if has_ended and not has_told:
                test = handed.place.site.test
                self.certainty.doubts.append(
                    f"{handed.test.where}: `{test.first}` went ahead of what it does to the script's shell"
                )

    def on_join(self, level: str, source: str, line: str, command: str) -> None:
        """Bash waits; it is answered when all tests have ended."""
        self.joined = self.offset, int(level)
        if len(self.handed) == 1 and command and not self.sequential:
            name = command.partition("\n")[0]
            self.lone = (
                self.handed[0].place.site.test,
                f"`{name}` ({source}:{line}) waits for it alone",
            )

    def on_end(self) -> None:
        """Bash has ended. Raises OSError where it could not be started, or what it printed not be kept."""
        self.has_ended = True
        if self.handed and not self.joined:
            self.certainty.doubts.append(
                f"{self.handed[0].test.where}: the end of the script went ahead of its tests"
            )
        if self.shell.fault:
            raise self.shell.fault

    def result_of(self, handed: Handed) -> Result:
        """How a test has ended."""
        return self.schedule.results[handed.test][-1]

    def is_bad(self, result: Result) -> bool:
        """Whether a run with this in it would not pass, were it one of a list."""
        return not self.options.accepts(result.outcome)

    def has_failed(self, handed: Handed) -> bool:
        """Whether a test has failed for the script."""
        return self.options.fails(self.result_of(handed).outcome)

    def has_reaction(self, handed: Handed) -> bool:
        """Whether a script does something about how a test has ended."""
        rest = handed.place.site.rest
        # To do nothing takes several times as long as to hand a test over.
        if rest and (rest.always or "x" in handed.said.flags):
            return True
        return bool(handed.reaction) and self.has_failed(handed)

    def call_handlers(self) -> None:
        """Let bash react to the tests that failed, in its order, or go on."""
        self.check_shells()
        for handed in self.handed:
            is_silent = self.has_failed(handed) and not handed.reaction and not self.sequential
            if is_silent and (handed.place.frames or self.script.mentions(MAY_ASK)):
                fear = ahead_of(f"{handed.test.where}:the script", handed.test)
                self.certainty.fears.append(fear)
        self.handling = [
            handed for handed in self.handed if not self.is_ending and self.has_reaction(handed)
        ]
        self.must_join = False
        self.ends = []
        self.shell.answer("_rt_look_again" + "; _rt_react" * bool(self.handling))
        if not self.handling and self.joined:
            self.release(self.joined[0])

    def on_react(self, snapshot: str, status: str, *ran: str) -> str:
        """Bash has reacted to a failure, or is to begin. Raises OSError, ValueError for a torn snapshot."""
        certainty = self.certainty
        state = read_state(snapshot)
        if not certainty.reaction:
            certainty.wait(ran, self.handed, state)
        else:
            self.left = int(status) * (certainty.reaction.handed is self.handed[-1])
            state = certainty.end(state, int(status), self.handed)
            self.ends.append(self.offset)
        if len(self.ends) == len(self.handling):
            self.release(self.offset)
            return ""
        handed = self.handling[len(self.ends)]
        status_of_test = 0
        if self.has_failed(handed):
            # It is 1 for one that did not run, or has passed but for the runner.
            status_of_test = shell_status(self.result_of(handed).status or 1)
        return certainty.begin(handed, state, status_of_test)

    def release(self, end: int) -> None:
        """Show the tests that the script has waited for, at their places in what it has printed up to `end`."""
        start, level = self.joined or (end, 0)
        begin = start
        ends = chain(self.ends, itertools.repeat(end))
        results = [self.result_of(handed) for handed in self.handed]
        lines = [
            *troubles([[result] for result in results], self.record),
            *causes(results),
            "\n=== What the script printed, with each test's output at its place ===",
        ]
        for line in lines * self.console.has_markers:
            self.trace.line(line)
        reaction = self.certainty.reaction
        last = reaction and reaction.handed  # behind which the script has ended
        for at, handed in enumerate(self.handed, 1):
            stop = begin
            if handed in self.handling:
                stop = next(ends)
            shift = 3 + level - handed.place.level
            self.shown.show_test(self.result_of(handed), handed.offset, begin, stop, shift)
            begin = stop
            if handed is last:
                self.shown.shown = max(self.shown.shown, start)
                self.ahead = [each.test.label for each in self.handed[at:]]
                break
        self.shown.show(start)
        self.shown.shown = end  # what their handlers have printed has been shown
        self.handed = []
        self.named = {}
        self.joined = None
        self.handling = []

    def give_up(self, why: str) -> None:
        self.shell.signal(signal.SIGKILL)
        super().give_up(why)

    def report(self) -> int:
        self.shown.show()  # the script has the last word
        self.trace.flush()
        results = results_of(self.attempts())
        if not (self.is_ending or self.schedule.failure):
            self.status = self.judge(results)
        if self.status != EXIT_OK and not any(map(self.is_bad, results)):
            # Else who reads the JUnit file, and not the exit code, takes the run for passed.
            with suppress(OSError):  # the log dir is full, perhaps
                self.note_failure(self.name, 1, self.status)
        return super().report()

    def judge(self, results: Results) -> int:
        """The exit code of a script that has come to its end, and what there is to say of it."""
        if self.sequential:
            self.alone.clear()
        elif not self.trace.at_line_start:
            tell("")
        status = shell_status(self.shell.status)
        if self.ahead:
            warn(f"a failure has ended the script; ran ahead of that: {first_of(self.ahead)}")
        if not (self.tests or self.alone or self.sequential):
            why = NO_TESTS
            if any(file.found for file in self.script.files.values()):
                why = "bash came to none of its tests, or to them in a subshell alone, as in `f | tee log`"
            warn(f"{self.name}: nothing ran in parallel: {why}")
        for place, why in list(self.alone.items())[:1]:
            warn(
                f"tests of {counted(len(self.alone), 'line')} could not run beside others; {place}: {why}"
            )
        reaction = self.certainty.reaction
        if reaction:
            test = reaction.handed.test
            if self.script.mentions("trap") or test not in self.last_ones:
                end = f"{test.where}:its end by a failure"
                self.certainty.fears.append(ahead_of(end, test))
        fears = self.certainty.fears * (status == 0)
        way = "by bash" if self.sequential else "on one GPU"
        for doubt in [*self.certainty.doubts, *fears][:1]:
            warn(
                f"{doubt}, which may have changed what it saw: this is no pass; run it {way} to be certain"
            )
            status = status or EXIT_FAILED
        unrun = [result for result in results if result.status is None]
        if not status and any(map(self.is_bad, unrun)):
            warn(f"{self.name}: not all tests have run: this is no pass")
            status = EXIT_FAILED
        return status

    def verdict(self, results: Results) -> Verdict:
        """The script has said its own; only what ended it is news."""
        code, lines = super().verdict(results)
        if self.status is None or self.schedule.failure:
            if self.sequential:  # its standard output is bash's alone
                for line in lines:
                    tell(line)
                lines = []
            return max(code, EXIT_FAILED), lines
        total = total_line(results, self.console.age(), self.schedule.pool)
        if self.status == EXIT_OK and any(map(self.is_bad, results)):
            total += f"; {self.name} ends with 0, as under bash"
        if not self.sequential:
            tell(total)
        return self.status, []


def asks_for_several(line: TestLine, options: Options, words: str = "") -> float:
    """How many GPUs a line seems to ask for, by its text or the values of its words; 0 where it says so itself."""
    if line.has_mask or line.attributes.gpus is not None or options.gpus_per_test != 1:
        return 0
    said = gpus_named_in(f"{line.first} {words}")
    if 1 < said < ALL_GPUS:  # a folder may be called `distributed`
        return said
    return gpus_named_in(line.body)


def paths_of(directory: str, *names: str) -> Dict[str, bool]:
    """The paths of files that a test names, and whether no other test is to have them at the same time.

    They are test files, as pytest knows them, and what the test writes, or may make for another. Names of files behind
    an operator begin with `>`.
    """
    paths: Dict[str, bool] = {}
    before = ""
    for name in names:
        is_output = re.match("-o=|--out.*=", name) or re.match("-o$|--out[^=]*$", before)
        file = re.sub(r"^>*(?:[\w-]+=)?|::.*", "", name, flags=re.DOTALL)
        path = os.path.normpath(os.path.join(directory, file))
        if name.startswith(">"):
            is_own = not path.startswith("/dev/")
        elif is_output and re.search(r"\.\w+$", path):
            is_own = True
        elif re.search(DATA_FILE, path):
            is_own = not os.path.exists(path)
        else:
            is_test_file = re.search(r"/(?:test_[^/]*|[^/]*_test)\.py$", path)
            is_own = bool(is_test_file) and ("$" in path or os.path.exists(path))
        paths[path] = is_own or paths.get(path, False)
        before = name
    return paths


def shell_status(status: int) -> int:
    """An exit status as `$?` has it."""
    if status < 0:
        return EXIT_SIGNAL - status
    return status


def list_script(script: Script, trace: Trace) -> int:
    """Print what a dry reading finds: each test, and why it does not run ahead; returns the exit code."""
    named: Dict[str, str] = {}  # of files, the place of the last test above that names them
    for file in script.files.values():
        for site, why in file.found:
            test = site.test
            handler = read_handler(site.nodes, script.functions)
            if handler.fails:
                why = why or "its handler may fail, or needs the script's own shell"
            urgent = script.urgent(handler)
            if urgent:
                why = why or f"its handler calls {urgent}"
            stops = HOLDS_BACK + r"|^ *set (?:-\w*u|.*nounset)" * (
                test.first in script.functions
            )
            held = re.search(stops, file.text)
            if held:
                why = why or f"`{held.group().strip()}` may keep it from running ahead"
            why = why or site.why_wait
            place = f"{file.name}:{test.line}"
            for path, is_own in paths_of(os.getcwd(), *map(unquoted, site.names)).items():
                if path in named:
                    name = os.path.relpath(path)
                    why = why or f"waits for {named[path]}, which names {name} too"
                if is_own:
                    named[path] = place
            label = clean_label(re.sub(EXPANDABLE, r"\1\2", unquoted(test.label)))
            trace.line(f"{label}\t{place}\t{why or 'runs ahead'}")
        if not file.found:
            warn(NO_TESTS)
    return trace.exit_code(EXIT_OK)


def read_script(name: str, options: Options) -> Script:
    """Read a script. What its tests are tells the most explicit way in which it treats failures. Raises ListError."""
    text = list_text(name)
    script = Script(Tells(options.handlers, options.tests, options.calm))
    if not script.read(name, text).found and options.tests is None:
        script = Script(script.tells._replace(looks=LOOKS_LIKE_TEST))
        script.read(name, text)
    mistakes = script.files[name].mistakes
    if mistakes:
        raise ListError(*mistakes)
    return script


def check_script(name: str, options: Options) -> None:
    """A script runs alone and from top to bottom. Raises UsageError, ListError or MachineError."""
    if len(options.lists) > 1:
        raise UsageError(
            f"{name} is a script; it runs alone, in a call of its own; its arguments follow `--`"
        )
    for option in said_of(options, LIST_OPTIONS):
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
    text = list_text(name)
    if re.match(r".*\r\n", text):
        raise ListError(f"{name}:1: {WINDOWS}")
    flags = re.match(r"#!.*sh\s+(-\w+)", text)
    if flags:
        warn(
            f"{name}:1: `{flags.group(1)}` does not count, as under `bash {name}`; write `set {flags.group(1)}` below"
        )
    if re.match(r"#!(?!.*sh\b)", text):
        raise ListError(
            f"{name}:1: this is a script, but none for bash; run it by a line of a list"
        )


if __name__ == "__main__":
    leave(main())
