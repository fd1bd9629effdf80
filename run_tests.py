#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a list of test commands on all the GPUs of a machine, and report as if they had run one by one.

Copy this one file next to a CI script and let it run the script, or a list of the script's test commands:

    python run_tests.py qa/test.sh                 # the script as it is; its `|| test_fail` commands on all GPUs
    python run_tests.py tests.txt                  # one test per GPU; logs, JUnit, `failures` in ./logs
    python run_tests.py --gpus 2 --timeout 30m -   # the list from standard input, on two GPUs

A list is bash, one test per logical line. Every GPU of the outer mask is a slot; a slot that becomes
free takes the next waiting test at once. With one GPU or none the tests run one after another and
print what `bash tests.txt` would print. A script is run by bash itself: see HOOK.

Exit codes: 0 all passed; 1 a test failed or did not get to run; 2 usage or a bad list; 3 the runner or
the machine failed; 5 nothing selected; 128+N ended by signal N.

The file reads in the order in which data flows:

    1  constants        numbers, and why they are what they are
    2  model            Options, Test, Device, Lease, Result, Outcome
    3  parse            list files to tests; mistakes as `file:line: what, what to do`; the tests of a script
    4  select           history; filters, shards, deferral; the order in which tests start
    5  devices          masks and vendor tools to devices; the pool that leases them
    6  schedule         event in, actions out: what starts, what is stopped, what a status means; `--plan`
    7  execute          processes: spawn, wait, signal, sweep
    8  record           journal, `failures`, stand-in JUnit files
    9  report           what is printed
   10  command line     options, wiring, exit code

The main thread alone decides and prints. A pool thread waits for its one child and posts events to one
queue; so does the signal handler.
"""
from __future__ import annotations

import argparse
import ast
import bisect
import collections
import contextlib
import enum
import errno
import fcntl
import hashlib
import heapq
import itertools
import json
import math
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from select import poll
from typing import (Any, BinaryIO, Callable, Collection, Container, Dict, FrozenSet, Iterable, Iterator, List, Mapping,
                    NamedTuple, Optional, Sequence, Set, Tuple, Type, TypeVar, Union)
from xml.etree import ElementTree

# ---------------------------------------------------------------------------------------------------
# 1. Constants: units in the names, reasons beside the numbers.
# ---------------------------------------------------------------------------------------------------

VERSION = "0.1.0"
PROGRAM = "run_tests.py"

GRACE_S = 10.0               # SIGTERM to SIGKILL: enough for pytest to write its JUnit file
BATCH_S = 0.05               # in which a script hands over the tests that follow one: they come milliseconds apart
FOLLOW_S = 0.05              # between two looks at a growing log: no eye sees it
LINGER_S = 1.5               # for what a test leaves behind: some helpers look for their parent once a second, and go
KILLED_S = 2.0               # a killed process is gone in milliseconds, or is stuck in the kernel
STUCK_S = 30.0               # a shell that SIGKILL does not end by then is given up: a driver may hold it for ever
SWEEP_POLL_S = 0.02          # between two looks at what a test has left: each takes milliseconds
STACKS_S = 1.0               # for the stacks of all Python processes of a test: each takes milliseconds, unless frozen
CHORES_S = 1.0               # between two looks at orphans that have ended, deleted files, OOM kills
REPORT_S = 10.0              # of `--deadline`, kept for sweeps and reports
MEMORY_S = 10.0              # a GPU's memory is back a second after the process that held it, or is held by another
MEMORY_MIB = 128             # that a GPU may hold more than before the run: drivers keep some, a CUDA context 500
START_S = 30.0               # an `unspecified launch failure` by then may be the GPU's fault, later it is the test's
PROBE_S = 30.0               # nvidia-smi takes seconds without persistence mode; a hung driver takes for ever
PAGE_BYTES = 4096            # what /proc tells in one piece
COPY_BYTES = 1 << 20         # a log is replayed through a buffer of this size, so that 1 GB costs no memory
TAIL_BYTES = 8192            # of a log that goes into a JUnit file: the last error and its traceback
CAUSE_BYTES = 1 << 16        # of a failed test's log, its end, in which its cause is looked for
LINE_CHARS = 200             # of a log's line that are shown or compared
SHOWN = 10                   # tests that the summary names for one cause, processes for one test
STEM_BYTES = 120             # of a file name: far below the 255 that file systems allow, suffixes included
SCRIPT_BYTES = 120_000       # Linux refuses one argument of 128 KiB or more (MAX_ARG_STRLEN)
SHARES = 1_000_000           # of a device, in which fractions are counted: `gpus=` takes six digits after the point
PASSES = 5                   # of a test's last passes the median is its expected duration: two bad days do not move it
SLACK = 1.1                  # by how much the estimate of the longest test may be short before the run ends with it
LONGEST_S = 1e9              # a pass that is said to have taken longer, thirty years, is a torn or foreign record
ASSUMED_S = 60.0             # what a test is expected to take where nothing is known of any; only ratios matter
HISTORY_BYTES = 64 << 20     # of a journal's end that are read: some hundred thousand runs of tests, in about a second
ROUNDING_S = 1e-6            # by which sums of times may be off: far below any test's duration
HELD_S = 5.0                 # for the guard of a killed run, which holds the log dir until it has ended all tests
LOCK_POLL_S = 0.2            # between two looks at a GPU that another runner holds: short beside any GPU test
COMMIT_VARIABLES = (         # in which CI services tell a job the commit that it tests
    "GITHUB_SHA", "CI_COMMIT_SHA", "CIRCLE_SHA1", "BUILDKITE_COMMIT", "SEMAPHORE_GIT_SHA", "BUILD_SOURCEVERSION",
    "GIT_COMMIT")
PLAN_GPUS = (1, 2, 4, 8, 16, 32)
PORT_FIRST, PORT_LAST = 20_000, 32_767  # below the ephemeral ports of Linux, which start at 32768
PORT_BASES = 8_000           # first ports are spread over this many, so that two runners seldom meet

RULE = "\u2500" * 56
SWEEPER = "sweeper"          # what the guard is called in `ps`
STACKS = signal.SIGFPE       # asks Python for its stacks, by faulthandler: of its signals the one that nobody sends
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_MACHINE, EXIT_NOTHING, EXIT_SIGNAL = 0, 1, 2, 3, 5, 128

# ---------------------------------------------------------------------------------------------------
# 2. Model: frozen values that the sections hand to each other.
# ---------------------------------------------------------------------------------------------------

ALL_GPUS = math.inf          # the value of `gpus=all`


class UsageError(Exception):
    """A mistake in the command line or its environment. Exit code 2."""


class ListError(Exception):
    """Mistakes in lists, one `file:line: what, what to do` each. Exit code 2."""

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class MachineError(Exception):
    """The runner cannot work here: no bash, a log dir that cannot be written. Exit code 3."""


class BadValue(argparse.ArgumentTypeError, ValueError):
    """What an option's or an attribute's value should be. argparse shows it as it stands."""


class Outcome(enum.Enum):
    """How a test ended. Every selected test ends with exactly one (predicates after meson's TestResult)."""

    PASSED = "passed"
    FLAKY = "flaky"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    UNRUNNABLE = "unrunnable"
    DEFERRED = "deferred"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"

    def is_ok(self) -> bool:
        """It does not fail the run."""
        return self in (Outcome.PASSED, Outcome.FLAKY, Outcome.DEFERRED)

    def is_failure(self) -> bool:
        """It is the test's own failure: named in `failures` and in the last line."""
        return not self.is_ok() and not self.is_unfinished()

    def can_be_retried(self) -> bool:
        """The test ran and did not pass."""
        return self in (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT)

    def is_unfinished(self) -> bool:
        """The run ended before the test did; it says nothing about the test."""
        return self in (Outcome.INTERRUPTED, Outcome.NOT_RUN)


@dataclass(frozen=True)
class Options:
    """The command line, read once. Durations in seconds, paths as given."""

    lists: Tuple[str, ...]
    gpus: Optional[str] = None           # a count or ids, as written
    jobs: Optional[int] = None           # CPU slots for `gpus=0`; None: as many as GPUs
    python: str = "python3"
    pytest_args: Tuple[str, ...] = ()
    require_gpus: int = 0
    timeout: Optional[float] = None
    slow: Optional[float] = None         # how often a test that runs on is announced
    deadline: Optional[float] = None
    grace: float = GRACE_S
    retries: int = 0
    flaky: str = "pass"
    leaks: str = "report"
    fail_fast: bool = False
    handlers: Tuple[str, ...] = ("test_fail",)       # of failures, in scripts
    arguments: Tuple[str, ...] = ()      # of a script
    verbose: bool = False
    log_dir: str = "logs"
    fail_dir: Optional[str] = None       # None: the log dir, and `failures` starts fresh
    journal: Optional[str] = None
    junit: Optional[str] = None          # the summary of the run
    output: str = "replay"
    list_only: bool = False
    plan: bool = False
    history: Tuple[str, ...] = ()        # more journals to learn durations from
    order: str = "auto"
    keep: Optional[Callable[[Sequence[str]], bool]] = None   # of `-k`: label and tags to whether a test runs
    rerun_failed: bool = False
    only: Optional["LabelFile"] = None
    wanted: Tuple[str, ...] = ()         # of `[ci WORDS]` in --message: parts of labels or tags, case folded
    max_gpus: Optional[int] = None
    shard: Optional["Shard"] = None
    gpu_locks: Optional[str] = None      # the folder of lock files

    def fails(self, outcome: Outcome) -> bool:
        """Whether a test that ends so is named as one that failed."""
        return outcome.is_failure() or (outcome is Outcome.FLAKY and self.flaky == "fail")


@dataclass(frozen=True)
class Attributes:
    """What `#: key=value` says of a test. None or empty: not said."""

    gpus: Optional[float] = None         # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: Optional[float] = None      # seconds
    retries: Optional[int] = None
    label: Optional[str] = None
    time: Optional[float] = None         # expected seconds
    lock: Tuple[str, ...] = ()
    after: Tuple[str, ...] = ()          # labels
    tags: Tuple[str, ...] = ()
    split: Optional[int] = None


class LabelFile(NamedTuple):
    """The labels in a file of `--only`, which was chosen from runs of this list and others."""

    path: str
    labels: FrozenSet[str]


class Shard(NamedTuple):
    """Part `number`, from 1, of `total` parts of the tests."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


class StateLine(NamedTuple):
    """One logical line of shell state (`export A=1`): its first line's number and its text."""

    line: int
    text: str


class Shell(NamedTuple):
    """The shell state of one test: `lines[:held]` run before it, of which an earlier test showed `lines[:shown]`.

    All tests of a list share `lines`.
    """

    lines: Sequence[StateLine]
    shown: int
    held: int


@dataclass(frozen=True, eq=False)
class Test:
    """One test of the list, ready to run. Equal only to itself."""

    index: int                           # position in the run, from 0
    key: str                             # hash of command and environment prefix: what journals know it by
    label: str                           # unique in the run
    stem: str                            # its log is `<log dir>/<stem>.log`
    file: str
    line: int
    source: str                          # its line of the list, without `#:`
    command: str                         # bash
    shell: Shell                         # the shell state above it
    attributes: Attributes
    barrier: int                         # number of `wait` lines above it
    gpus: float                          # 0, a fraction below 1, a whole number, ALL_GPUS
    timeout: Optional[float]             # seconds; None or 0: no limit
    junit: Optional[str]                 # absolute path of the JUnit file that it writes
    announces: bool                      # `Error: sub-test failed` is part of what its line prints

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """Tells tests apart that differ in nothing but label and shell state."""
        return key_of([self.key, self.label])


@dataclass(frozen=True)
class Device:
    """One GPU, or one MIG instance: its place in device order and its token in the mask."""

    index: int
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
    def is_torn(self) -> bool:
        """Its devices are no neighbours."""
        return bool(self.devices) and self.devices[-1].index - self.devices[0].index >= len(self.devices)

    def place(self) -> str:
        """`GPU 0,1` or `CPU`, as the markers say it."""
        return "GPU " + ",".join(self.tokens) if self.tokens else "CPU"


class Blame(enum.Enum):
    """Whose failure a cause is."""

    TEST = "test"
    DEVICE = "device"                    # the GPU is broken; the test is to run on another
    STARTUP = "startup"                  # so too, if it shows as soon as the test starts, and on no other GPU
    MACHINE = "machine"                  # if it shows on every GPU, no test can pass


class Cause(NamedTuple):
    """Why a test failed, in words that are the same for the same cause."""

    text: str = ""
    blame: Blame = Blame.TEST


@dataclass(frozen=True)
class Result:
    """How a test ended. `status` is the exit status, or -N for a death by signal N, as in subprocess."""

    test: Test
    outcome: Outcome
    seconds: float = 0.0
    status: Optional[int] = None
    lease: Optional[Lease] = None
    attempt: int = 1
    reason: str = ""                     # why, where the outcome alone does not say it
    junit_fault: str = ""                # why its JUnit file cannot be used as it is, if it cannot
    cause: Cause = Cause()
    leaked: Tuple[str, ...] = ()         # processes that it left, `python3 (pid 12)`

    def verdict(self) -> str:
        """`failed, exit 1`, `crashed (SIGSEGV)`, `passed`: what the markers and the summary say."""
        why = f", {self.reason}" if self.reason else ""
        if self.outcome is Outcome.CRASHED:
            return f"crashed ({death_of(self.status)}{why})"
        if self.outcome is Outcome.FAILED and self.status is not None:
            return f"failed, exit {self.status}{why}"
        return self.outcome.value

    @property
    def used(self) -> FrozenSet[int]:
        """The indices of its devices."""
        return frozenset(device.index for device in self.lease.devices if device.token) if self.lease else frozenset()

    def leaks(self) -> str:
        """`leaked: 2 processes`, if there are any."""
        count = len(self.leaked)
        return f"leaked: {count} process{'es' * (count > 1)}" if count else ""


def to_bytes(text: str) -> bytes:
    """Text of a list as the bytes that it was read from."""
    return text.encode("utf-8", "surrogateescape")


def death_of(status: Optional[int]) -> str:
    """`SIGSEGV` if a status means death by it: -N from the kernel, 128+N as a shell passes it on. Else empty."""
    number = 0 if status is None else -status if status < 0 else status - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if status is not None and status < 0 else ""


# ---------------------------------------------------------------------------------------------------
# 3. Parse: list files to tests. Lines are split here; bash itself checks syntax and expands.
# ---------------------------------------------------------------------------------------------------

STATE_WORDS = frozenset(["export", "unset", ":", "cd", "source", ".", "set", "shopt", "ulimit", "umask",
                         "declare", "typeset", "readonly", "alias", "unalias", "pushd", "popd"])
# What may stand beside them: `[ -d build ] || exit 1; cd build || { echo no; exit 1; }` is state.
STATE_FRAME = frozenset(["if", "then", "else", "elif", "fi", "{", "}", "!"])
STATE_CONDITIONS = frozenset(["[", "[[", "test", "true", "false", "exit", "return"])
BRACED_FALLBACKS = frozenset(["echo", "printf"])
SILENT = "{{ {}; }} >/dev/null 2>&1"       # state that an earlier test has shown runs in this
NOT_FOLDERS = frozenset(["eval", "exec", "command", "builtin", "time", "trap", "type", "let", "coproc", "source"])
MASK_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")

BASH_SOURCE = re.compile(r"(\$\{?)BASH_SOURCE(\[0\])?")      # `bash -c` has none, and `$0` is the file too
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?\+?=", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
WORD_RUN = re.compile(r"[^ \t\n'\"\\$`;&|()<>]+")
NOT_WORD = re.compile(r"(?P<comment>#[^\n]*)|(?P<op>\|\||&&|;;&?|;&|\|&|[;|()]|&>>?"
                      r"|\d*(?:<<<|<<-?|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|&)")
SEPARATORS = frozenset([";", "&&", "||", "|", "|&", "&", "(", ")", ";;", ";&", ";;&"])
FLAT_PIECE = re.compile(r"""\\.?|'[^']*'|\$'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`""", re.DOTALL)    # nothing nests
PIECE_OPENER = re.compile(r"""\$?['"]|`|\$\{|[$<>]\(""")
NESTED_STOP = re.compile(r"[()'\"\\$`{}]")
VARIABLE = r"(\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*))"
LABEL_PIECE = re.compile(VARIABLE + r"|\\.|'[^']*'|.", re.ASCII | re.DOTALL)
QUOTED_PIECE = re.compile(VARIABLE + r"|\\.|.", re.ASCII | re.DOTALL)
QUOTING, WORD = re.compile(r"""['"\\]"""), re.compile(r"[^ \t\r\n]+")
BARE_WORD = re.compile(r"[\w@%+=:,./-]*")
PLAIN_WORD = re.compile(r"""(?:[\w@%+=:,./-]|'[^']*'|"[^"$`\\]*")*""")   # its value does not need bash


class Token(NamedTuple):
    """A piece of a logical line: kind is `word`, `op` or `comment`; start and end are offsets in the file."""

    kind: str
    text: str
    start: int
    end: int


class Unclosed(Exception):
    """A quote or bracket without its end. `args[0]` is how it opens."""


@dataclass
class ListFile:
    """One list: its drafts and its shell state, in order, and the mistakes found in it."""

    name: str
    waits: int = 0                       # number of `wait` lines so far, those of the lists before included
    drafts: List["Draft"] = field(default_factory=list)
    states: List[StateLine] = field(default_factory=list)
    state_bytes: int = 0                 # their size in the script of a test below them
    mistakes: List[Tuple[int, str]] = field(default_factory=list)
    is_whole: bool = True                # every line could be read; False: what follows from them is not known

    def complain(self, line: int, what: str, lost: bool = False) -> None:
        """Note a mistake, reported later as `file:line: what`; `lost`: its line cannot be read at all."""
        self.mistakes.append((line, CONTROL.sub(" ", what)))
        self.is_whole = self.is_whole and not lost

    def messages(self) -> List[str]:
        """The mistakes as the user is to read them."""
        return [f"{self.name}:{line}: {what}" for line, what in sorted(self.mistakes)]


@dataclass
class Draft:
    """A test line on its way to a Test. `label`, `junit` and `mask` are bash words until `settle` has their values."""

    parent: ListFile
    line: int
    source: str                          # the whole logical line, for the syntax check
    prefix: List[str]                    # environment assignments, without masks
    body: str                            # the command after them
    words: List[str]                     # the words of the body's first simple command
    key: str
    attributes: Attributes
    barrier: int
    shell: Shell
    mask: Optional[str] = None           # the value of a leading CUDA_VISIBLE_DEVICES=…
    label: Optional[str] = None          # the word after `test_fail`, or run_test's fourth
    junit: Optional[str] = None          # the word after `--junitxml=`, or run_test's second; then an absolute path
    handled: bool = False                # the line says `|| test_fail`, or is a call of run_test
    is_target: bool = False              # pytest runs it
    in_log_dir: bool = False             # a JUnit name without a folder is in the log dir, as run_test has it


def end_of_piece(text: str, start: int, quoted: bool = False) -> int:
    """Offset after the quoted, escaped or substituted piece at `start`; `quoted`: it stands in double quotes."""
    if quoted and text.startswith(('$"', "$'"), start):
        return start + 1                 # a `$` that is only itself
    flat = FLAT_PIECE.match(text, start)
    if flat:
        return flat.end()
    opener = PIECE_OPENER.match(text, start)
    if opener is None:
        return start + 1
    closer = {"'": "'", "$'": "'", "`": "`", '"': '"', '$"': '"', "${": "}"}.get(opener.group(), ")")
    if closer in "'`":
        raise Unclosed(closer)
    return end_of_nest(text, opener.end(), closer, quoted and closer == "}" or closer == '"')


def end_of_nest(text: str, start: int, closer: str, quoted: bool) -> int:
    """Offset after `closer` (`"`, `)` or `}`); pieces inside may nest. Where `quoted`, a `'` is only a character."""
    at = start
    while True:
        stop = NESTED_STOP.search(text, at)
        if stop is None:
            raise Unclosed({")": "$(", "}": "${"}.get(closer, closer))
        at, char = stop.start(), stop.group()
        if char == closer:
            return at + 1
        if char == "(" and closer == ")":
            at = end_of_nest(text, at + 1, closer, quoted)
        elif char in '\\$`"' or (char == "'" and not quoted):
            at = end_of_piece(text, at, quoted)
        else:
            at += 1


def scan_line(text: str, start: int) -> Tuple[List[Token], int]:
    """The tokens of the logical line at `start`, and the offset of the next one.

    A backslash at the end of a line, or an open quote or substitution, continues the logical line.
    Raises Unclosed where the text ends inside one.
    """
    tokens: List[Token] = []
    at = start
    while at < len(text) and text[at] != "\n":
        if text[at] in " \t":
            at += 1
        elif text[at] == "\\" and text[at + 1:at + 2] in ("\n", ""):     # bash ignores one that ends the file
            at += 2
        else:
            known = NOT_WORD.match(text, at)
            end = known.end() if known else end_of_word(text, at)
            tokens.append(Token((known and known.lastgroup) or "word", text[at:end], at, end))
            at = end
    return tokens, at + 1


def end_of_word(text: str, start: int) -> int:
    """Offset after the bash word at `start`."""
    at = start
    while at < len(text) and text[at] not in " \t\n":
        run = WORD_RUN.match(text, at)
        if run:
            at = run.end()
        elif text[at] == "(" and ASSIGNMENT.fullmatch(text, start, at):
            at = end_of_nest(text, at + 1, ")", quoted=False)    # an array: A=(1 2)
        elif text[at] in ";&|()" or (text[at] in "<>" and text[at + 1:at + 2] != "("):
            break
        else:
            at = end_of_piece(text, at)
    return max(at, start + 1)


def split_list(name: str, text: str, waits: int = 0) -> ListFile:
    """Split one list into drafts and shell state, `waits` barriers above it; mistakes are collected, not raised."""
    parsed = ListFile(name, waits)
    text = BASH_SOURCE.sub(r"\g<1>0", text)
    for bad, what in (("\0", "a NUL byte; a list is text"),
                      ("\r\n", "Windows line ends; mend them with `sed -i 's/\\r$//'`")):
        if bad in text:
            parsed.complain(text.count("\n", 0, text.find(bad)) + 1, what, lost=True)
            return parsed
    defaults, at, line = Attributes(), 0, 1
    while at < len(text):
        try:
            tokens, after = scan_line(text, at)
        except Unclosed as unclosed:
            parsed.complain(line, f"{unclosed.args[0]} is never closed", lost=True)
            break
        except RecursionError:
            parsed.complain(line, "substitutions are nested too deeply", lost=True)
            break
        attributes = take_attributes(tokens, line, parsed, defaults)
        if not tokens:
            defaults = attributes
        else:
            first_line = line + text.count("\n", at, tokens[0].start)
            if not add_setting(parsed, text, tokens, first_line):
                add_draft(parsed, text, tokens, first_line, attributes)
            elif attributes is not defaults:
                parsed.complain(first_line, "`#:` on a line that is no test; put it on a line of its own")
        line += text.count("\n", at, after)
        at = after
    return parsed


def add_setting(parsed: ListFile, text: str, tokens: Sequence[Token], line: int) -> bool:
    """Add a line that is a barrier or shell state; returns whether it is one."""
    said = [token for token in tokens if token.text != ";"]
    if [token.text for token in said] == ["wait"]:
        parsed.waits += 1                # it is state too: `set -x` shows it
    elif not is_state(tokens):
        return False
    for token in filter(is_mask, tokens):
        parsed.complain(line, f"{token.text} would put all tests below on the same GPUs; set it outside the list, or "
                        "ask for GPUs with `#: gpus=N`")
    state = StateLine(line, text[tokens[0].start:said[-1].end])
    parsed.states.append(state)
    parsed.state_bytes += len(to_bytes(SILENT.format(state.text))) + 1
    return True


def simple_commands(tokens: Sequence[Token]) -> List[List[Token]]:
    """The words and redirections between the control operators of a line."""
    commands: List[List[Token]] = [[]]
    for token in tokens:
        if token.text in SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(token)
    return commands


def command_words(tokens: Sequence[Token]) -> Tuple[List[Token], List[Token]]:
    """A simple command's leading assignments and its other words; redirections are left out."""
    words = [token for number, token in enumerate(tokens)
             if token.kind == "word" and not (number and tokens[number - 1].kind == "op")]
    count = next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word.text)), len(words))
    return words[:count], words[count:]


def is_function(tokens: Sequence[Token]) -> bool:
    """Whether a line is the definition of a function, `f() { ...; }`, and nothing else."""
    texts = [token.text for token in tokens if token.text != ";"]
    is_said = texts[:1] == ["function"]
    body = texts[1 + is_said:]
    body = body[2:] if body[:2] == ["(", ")"] else body if is_said else []
    if body[:1] not in (["{"], ["("]):
        return False
    closer = {"{": "}", "(": ")"}[body[0]]
    depths = list(itertools.accumulate((text == body[0]) - (text == closer) for text in body))
    return 0 in depths and depths.index(0) == len(depths) - 1


def is_state(tokens: Sequence[Token]) -> bool:
    """Whether a line only changes the shell: state builtins, assignments and a function, and what guards them."""
    if is_function(tokens):
        return True
    if any(token.text in SEPARATORS - {";", "&&", "||"} for token in tokens):
        return False
    changes = in_braces = False
    for command in simple_commands(tokens):
        frame = list(itertools.takewhile(lambda token: token.text in STATE_FRAME, command))
        in_braces = in_braces or any(token.text == "{" for token in frame)
        assigned, words = command_words(command[len(frame):])
        beside = STATE_CONDITIONS | (BRACED_FALLBACKS if in_braces else frozenset())
        if words and words[0].text not in STATE_WORDS | beside:
            return False
        if len(command) > len(frame) and not assigned and not words:
            return False                 # `> file` alone
        changes = changes or (words[0].text in STATE_WORDS if words else bool(assigned))
    return changes


def add_draft(parsed: ListFile, text: str, tokens: List[Token], line: int, attributes: Attributes) -> None:
    """Turn the tokens of a test line into a Draft, or into mistakes."""
    label, handled, command = take_handler(tokens)
    assigned, words = command_words(simple_commands(command)[0])
    leading = len(assigned) if words and command[:len(assigned)] == assigned else 0
    masks = [token for token in command[:leading] if is_mask(token)]
    source = text[tokens[0].start:tokens[-1].end]
    draft = Draft(
        parsed, line, source, [token.text for token in command[:leading] if token not in masks],
        text[command[leading].start:command[-1].end], [word.text for word in words],
        key_of(token.text for token in command), attributes, parsed.waits,
        Shell(parsed.states, parsed.drafts[-1].shell.held if parsed.drafts else 0, len(parsed.states)),
        masks[-1].text.partition("=")[2] if masks else None, label, handled=handled)
    if parsed.state_bytes + len(to_bytes(source)) > SCRIPT_BYTES:
        problem = f"with its shell state longer than {SCRIPT_BYTES} bytes, too long for one command; run a file instead"
    elif draft.words[:1] == ["run_test"]:
        problem = misuse(command[leading + 2:] or command) or apply_run_test(draft, command[leading:])
    else:
        problem = misuse(command[leading:])
        draft.is_target = bool(re.search(r"\.py(::|$)", unquoted(draft.words[0]))) if draft.words else False
        draft.junit = junit_word(draft.words)
    if problem:
        parsed.complain(line, problem, lost=True)
    else:
        parsed.drafts.append(draft)


def is_mask(token: Token) -> bool:
    """Whether a word assigns a device mask."""
    name = ASSIGNMENT.match(token.text)
    return name is not None and name.group(1) in MASK_VARIABLES


def take_handler(tokens: List[Token]) -> Tuple[Optional[str], bool, List[Token]]:
    """Split `… || test_fail "label"` into the label's word, whether there was a handler, and the command."""
    last = max((n for n, token in enumerate(tokens) if token.text in SEPARATORS), default=0)
    tail = [token.text for token in tokens[last:]]
    if last > 0 and tail[:2] == ["||", "test_fail"]:
        _, words = command_words(tokens[last + 1:])      # `test_fail >&2` has no label
        return (words[1].text if len(words) > 1 else None), True, tokens[:last]
    return None, False, tokens


def misuse(command: Sequence[Token]) -> str:
    """Why a command, its leading assignments taken out, would not do what it says; empty if it would."""
    if command[-1].text == "&":
        return "a test in the background (`&`) has no verdict; leave the `&` out, tests run in parallel anyway"
    if len(command) > 1 and command[-2].text == "||" and ASSIGNMENT.match(command[-1].text):
        return f'`|| {command[-1].text}` would hide the failure: the test would always pass; write || test_fail "label"'
    fresh = True
    for token in command:
        if fresh and token.text == "test_fail":
            return "`test_fail` is understood only at the end of a line: command || test_fail \"label\""
        if is_mask(token):
            return f"{token.text} inside a line would pin the test; put it first on the line, or write `#: gpus=N`"
        fresh = token.text in SEPARATORS or token.text in ("{", "then", "else", "do", "!")
    return ""


def key_of(words: Iterable[str]) -> str:
    """A test's name in journals: 12 hex digits of the hash of its command and environment prefix."""
    return hashlib.sha256(to_bytes(" ".join(words))).hexdigest()[:12]


def unquoted(word: str) -> str:
    """A bash word without its quotes, nothing expanded; as written where it is not that simple."""
    if BARE_WORD.fullmatch(word):
        return word
    try:
        return " ".join(shlex.split(word))
    except ValueError:
        return word


def apply_run_test(draft: Draft, command: Sequence[Token]) -> str:
    """Read `run_test "ENV" "xml" "target" "label"` into the draft; returns what is wrong with it, or nothing."""
    if len(draft.words) != 5:
        return f'run_test takes 4 words, "ENV" "xml" "target" "label"; here are {len(draft.words) - 1}'
    if len(command) != len(draft.words):
        return "run_test stands alone on its line; take out what follows its 4 words"
    environment, draft.junit, target, draft.label = draft.words[1:]
    draft.key = key_of([*draft.prefix, *draft.words[:4]])
    draft.body = unquoted(target)
    try:
        shlex.split(draft.body)
    except ValueError:
        return f"a quote inside run_test's third word, {target}, is never closed"
    tokens, at, environment_text = [], 0, unquoted(environment)
    try:
        while at < len(environment_text):
            more, at = scan_line(environment_text, at)
            tokens += more
    except (Unclosed, RecursionError):
        tokens = [Token("op", environment, 0, 0)]
    assigned, _ = command_words(tokens)
    if len(assigned) != len(tokens):
        return f"run_test's first word is VAR=value pairs, or empty; it is {environment}"
    for token in assigned:
        if is_mask(token):
            draft.mask = token.text.partition("=")[2]
        else:
            draft.prefix.append(token.text)
    draft.words = [target]
    draft.handled = draft.is_target = draft.in_log_dir = True
    return ""


def junit_word(words: Sequence[str]) -> Optional[str]:
    """The word that names a command's own JUnit file, if it names one (the last wins, as for pytest)."""
    found = None
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option[:1] in ("'", '"'):     # "--junitxml=$DIR/x.xml": the quote moves to the value
            option, value = option[1:], option[0] + value
        if option in ("--junitxml", "--junit-xml"):
            found = value if equals else (words[number + 1] if number + 1 < len(words) else found)
    return found


# Attributes: `#: key=value`. Each parser takes the text and raises BadValue with what it should be.

def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `1.5h`, `1d`. Raises BadValue."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(ms|s|m|h|d|)", text.strip())
    if not match:
        raise BadValue(f"{text!r} is not a duration such as 90s, 10m or 2h")
    return float(match.group(1)) * {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]


def parse_gpus(text: str) -> float:
    """The need in `0`, `0.25`, `2`, `all` (math.inf). Raises BadValue."""
    if text == "all":
        return ALL_GPUS
    number = float(text) if re.fullmatch(r"\d{1,6}|0?\.\d{1,6}", text) else -1.0
    if number < 0 or ("." in text and number == 0):
        raise BadValue(f"{text!r} is not 0, a fraction below 1, a whole number or all")
    return number


def parse_count(text: str) -> int:
    """A whole number from 0. Raises BadValue."""
    if not re.fullmatch(r"\d{1,6}", text):
        raise BadValue(f"{text!r} is not a whole number")
    return int(text)


def parse_label(text: str) -> str:
    """A label as written. Raises BadValue if there is nothing in it."""
    if not CONTROL.sub(" ", text).strip():
        raise BadValue("a label cannot be empty")
    return text


def parse_names(text: str) -> Tuple[str, ...]:
    """The names in `a,b`. Raises BadValue if one is empty."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadValue(f"{text!r} is not a list of names such as a,b")
    return names


ATTRIBUTES: Mapping[str, Callable[[str], Any]] = {
    "gpus": parse_gpus, "timeout": parse_duration, "retries": parse_count, "label": parse_label,
    "time": parse_duration, "lock": parse_names, "after": parse_names, "tags": parse_names, "split": parse_count,
}


def take_attributes(tokens: List[Token], line: int, parsed: ListFile, defaults: Attributes) -> Attributes:
    """Take the comment off a line; what holds for the line, or for those below it if there is nothing else on it."""
    comment = tokens.pop().text if tokens and tokens[-1].kind == "comment" else ""
    if not comment.startswith("#:"):
        return defaults
    return parse_attributes(comment[2:], line, parsed, defaults if tokens else Attributes())


def parse_attributes(text: str, line: int, parsed: ListFile, base: Attributes) -> Attributes:
    """`base` with the keys in `text` set; mistakes are added to `parsed`."""
    values = dict(vars(base))
    seen: Set[str] = set()
    try:
        # Where nothing is quoted, shlex would only be slow: it reads character by character.
        pairs = shlex.split(text) if QUOTING.search(text) else WORD.findall(text)
    except ValueError:
        parsed.complain(line, f"a quote in `#:{text}` is never closed")
        return base
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in ATTRIBUTES:
            known = ", ".join(key for key in ATTRIBUTES if key != "split")
            parsed.complain(line, f"unknown key {key!r} in `#:`; known are {known}")
        elif not equals or key in seen:
            what = "is given twice" if key in seen else "needs a value"
            parsed.complain(line, f"{key} {what}; write {key}=VALUE once")
        else:
            try:
                values[key] = ATTRIBUTES[key](value)
            except BadValue as error:
                parsed.complain(line, f"{key}: {error}")
        seen.add(key)
    return Attributes(**values)


# Bash: one process checks the syntax of all lines, one per list expands words under the list's state.

def run_bash(arguments: Sequence[str], script: str, **variables: str) -> "subprocess.CompletedProcess[Any]":
    """Run bash with `script` on its standard input, until it has ended and its group with it.

    Files, not pipes, take what it says, in bytes on stdout, in text on stderr: a background job that it leaves would
    hold pipes open. Raises MachineError.
    """
    try:
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            source.write(to_bytes(script))
            source.seek(0)
            bash = subprocess.Popen(["bash", *arguments], stdin=source, stdout=out, stderr=err, start_new_session=True,
                                    env={**os.environ, **variables})
            try:
                status = bash.wait()
            finally:                     # Ctrl-C too
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(bash.pid, signal.SIGKILL)
                bash.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, status, out.read(), err.read().decode("utf-8", "replace"))
    except OSError as error:
        raise MachineError(f"bash cannot be run ({error.strerror}); put it on PATH, tests run in it; it needs room for "
                           "temporary files") from None


def syntax_error(script: str) -> str:
    """The first thing that bash says against the syntax of a script; empty if it can be parsed."""
    checked = run_bash(["-n", "-O", "extglob"], script + "\n", LC_ALL="C")
    said = checked.stderr.strip().splitlines()
    if any("here-document" in line for line in said):        # only a warning to bash
        return "a here-document cannot be on one logical line; put the command into a script"
    if checked.returncode == 0:          # also after some a bad `[[`, of which bash only tells
        said = [line for line in said if re.match("bash: (?!warning: )", line)]
        if not said:
            return ""
    complaint = re.sub(r"^bash: (line \d+: )?", "", said[0] if said else "no reason given")
    return f"{complaint} (a list has one whole command per line)"


def check_syntax(lists: Sequence[ListFile]) -> None:
    """Add a mistake for each line that bash cannot parse. One bash for all; where it finds a bad one, for each half."""
    lines = [(parsed, line, text) for parsed in lists
             for line, text in [*parsed.states, *((draft.line, draft.source) for draft in parsed.drafts),
                                *((draft.line, " ".join([*draft.prefix, "pytest", draft.body]))
                                  for draft in parsed.drafts if draft.in_log_dir)]]
    waiting = [lines]
    while waiting:
        some = waiting.pop()
        # Both in braces and in parentheses: no line ends the one and the other, as `a; } || { b` ends the first.
        problem = syntax_error("".join(f"{{ {text}\n\n}}\n(\n{text}\n\n)\n" for _, _, text in some))
        if problem and len(some) > 1:
            waiting += [some[:len(some) // 2], some[len(some) // 2:]]
        elif problem:
            parsed, line, text = some[0]
            parsed.complain(line, syntax_error(text) or "each line must be a command of its own", lost=True)


def expandable(text: str, is_command: bool) -> str:
    """Plain text as a bash word in which only `$NAME` and `${NAME}` expand.

    A variable that is not set stays as written, so that a label keeps the `$i` of an inner script; in a
    command so does all that bash would not expand: what is escaped, or in single quotes.
    """
    if "$" not in text:
        return shlex.quote(text)
    out, at, in_double = [], 0, not is_command
    while at < len(text):
        piece = (QUOTED_PIECE if in_double else LABEL_PIECE).match(text, at)
        assert piece is not None         # both match any character
        at = piece.end()
        if piece.group(1):
            out.append("${%s-\\%s}" % (piece.group(1).strip("${}"), piece.group(1).replace("}", "\\}")))
        else:
            out.append(re.sub(r'(["\\$`])', r"\\\1", piece.group()))
            in_double ^= is_command and piece.group() == '"'
    return '"' + "".join(out) + '"'


def wanted_words(draft: Draft) -> List[str]:
    """The bash words of a draft whose values are needed: label, JUnit file, first word, mask."""
    label = draft.label
    if draft.attributes.label is not None:
        label = expandable(draft.attributes.label, is_command=False)
    elif label is None:
        joined = re.sub(r"(?<![ \t])[ \t]+\\\n[ \t]*|\\\n[ \t]+", " ", draft.body).replace("\\\n", "")
        label = expandable(joined, is_command=True)
    first = draft.words[0] if draft.words and not re.search(r"\$\(|`", draft.words[0]) else ""
    return [label, draft.junit or "", first, draft.mask or ""]


def expand_words(parsed: ListFile) -> List[Tuple[str, List[str]]]:
    """For each draft, the directory that it starts in and the values of its wanted words.

    The list's shell state runs here once, silently, as it will before each test. Adds a mistake where
    that ends the shell. Bash is not asked when nothing in the list depends on it.
    """
    wanted = [wanted_words(draft) for draft in parsed.drafts]
    if not parsed.states and all(PLAIN_WORD.fullmatch(word) for words in wanted for word in words):
        return [(os.getcwd(), [unquoted(word) for word in words]) for words in wanted]
    names = [f"RUN_TESTS_WORD_{n}" for n in range(4)]
    script = ["exec 3>&1 >/dev/null\n"]
    for draft, words in zip(parsed.drafts, wanted):
        for state in draft.shell.lines[draft.shell.shown:draft.shell.held]:
            script.append(f"{{ {state.text}\n}} </dev/null 3>&-\nset +euxvnf\n")
        script += [f"{name}=\n" for name in names]        # its value where bash cannot expand the word
        script += [f"{{ {name}={word}\n}} 3>&-\n" for name, word in zip(names, words)]
        script.append("printf '%s\\0' \"$PWD\" " + " ".join(f'"${name}"' for name in names) + " >&3\n")
    ran = run_bash(["-c", ". /dev/stdin", parsed.name], "".join(script))     # $0 is the list, as in the tests
    fields = ran.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    values = [(fields[at], fields[at + 1:at + 5]) for at in range(0, len(fields), 5)]
    if len(values) < len(wanted):
        draft = parsed.drafts[len(values)]
        said = re.sub(r"^.*?: line \d+: ", "", ran.stderr.strip().rpartition("\n")[2])
        what = "the shell state above this line" if draft.shell.held else "a word of this line"
        parsed.complain(draft.line, f"{what} ends bash with status {ran.returncode} "
                        f"({said or 'no reason given'}); run `bash -x {parsed.name}` to see where")
    return values


# From drafts to tests.

def slug(label: str) -> str:
    """A file name that tells the label: ASCII, at most STEM_BYTES; a hash where something was lost."""
    name = re.sub(r"\.py\b", "", label)
    name = re.sub(r"[^A-Za-z0-9._+=@-]+", "_", name).strip("_.") or "test"
    if len(name) > STEM_BYTES or not label.isascii():
        digest = hashlib.sha256(to_bytes(label)).hexdigest()[:8]
        name = f"{name[:STEM_BYTES - 9]}-{digest}"
    return name


def settle(draft: Draft, cwd: str, values: Sequence[str], options: Options) -> None:
    """Put the values of a draft's wanted words, as expanded in `cwd`, in their places."""
    label, junit, first, mask = values
    draft.mask = None if draft.mask is None else mask
    draft.label = CONTROL.sub(" ", label).strip() or CONTROL.sub(" ", draft.body).strip() or "test"
    if first and first not in NOT_FOLDERS and os.path.isdir(os.path.join(cwd, first)):
        draft.is_target = draft.is_target or "/" in first or shutil.which(first) is None     # no command of that name
    folder = options.log_dir if draft.in_log_dir and "/" not in junit else cwd
    draft.junit = os.path.abspath(os.path.join(folder, junit)) if junit else None


def command_of(draft: Draft, junit: Optional[str], options: Options) -> str:
    """The bash command of a test: the line's own, or pytest's for a target."""
    words = list(draft.prefix)
    if draft.is_target:
        words += [shlex.quote(options.python), "-u", "-m", "pytest", "--tb=auto"]
        words += [f"--junitxml={shlex.quote(junit)}"] if junit and junit_word(draft.words) is None else []
        words += [shlex.quote(argument) for argument in options.pytest_args]
    return " ".join([*words, draft.body])


def resolve_after(drafts: Sequence[Draft], labels: Sequence[str]) -> None:
    """Let each `after` name tests by their unique labels: those of its own list come before others' of that name."""
    unique: Dict[Tuple[str, str], str] = {}
    for draft, label in zip(drafts, labels):
        unique.setdefault((draft.parent.name, draft.label or draft.body), label)
    for draft in drafts:
        after = tuple(unique.get((draft.parent.name, name), name) for name in draft.attributes.after)
        draft.attributes = replace(draft.attributes, after=after) if after else draft.attributes


def check_after(drafts: Sequence[Draft], labels: Sequence[str]) -> None:
    """Each `after` must name tests of the run, and none may wait for itself."""
    waits_for = {label: draft.attributes.after for draft, label in zip(drafts, labels) if draft.attributes.after}
    barriers, circle = {label: draft.barrier for draft, label in zip(drafts, labels)}, dict(waits_for)
    while True:     # take away whoever waits for nobody that is left, or is waited for by nobody that is left
        needed = {name for names in circle.values() for name in names}
        free = [label for label, names in circle.items() if label not in needed or circle.keys().isdisjoint(names)]
        if not free:
            break
        for label in free:
            del circle[label]
    for draft, label in zip(drafts, labels):
        for name in waits_for.get(label, ()):
            if name not in barriers:
                draft.parent.complain(draft.line, f"after={name} names no test; write the label of one")
            elif barriers[name] > draft.barrier:
                draft.parent.complain(draft.line, f"after={name} waits for a test below a `wait`, which waits for this "
                                      "one; move one of them across the `wait`")
        if label in circle:
            draft.parent.complain(draft.line, f"after={','.join(circle[label])} goes in a circle; take one of them out")


def check_junits(drafts: Sequence[Draft]) -> None:
    """Two tests that name the same JUnit file would overwrite each other's verdicts."""
    owners: Dict[str, Draft] = {}
    for draft in drafts:
        owner = owners.setdefault(draft.junit, draft) if draft.junit else draft
        if owner is not draft:
            draft.parent.complain(draft.line, f"writes the same JUnit file as {owner.parent.name}:{owner.line}, "
                                  f"{draft.junit}; give each test its own")


def finish_tests(lists: Sequence[ListFile], options: Options) -> List[Test]:
    """Drafts with their words expanded to tests. Mistakes are added to the lists."""
    for parsed in lists:
        for draft, (cwd, values) in zip(parsed.drafts, expand_words(parsed)):
            settle(draft, cwd, values, options)
    drafts = [draft for parsed in lists for draft in parsed.drafts]
    labels = list(map(Unique("{} #{}", str), [draft.label or draft.body for draft in drafts]))
    resolve_after(drafts, labels)
    check_junits(drafts)
    check_after(drafts, labels)
    tests = []
    for index, (draft, label, stem) in enumerate(zip(drafts, labels, log_stems(drafts, labels))):
        own = os.path.abspath(os.path.join(options.log_dir, stem + ".xml")) if draft.is_target else None
        junit = draft.junit or own
        timeout = draft.attributes.timeout
        if draft.attributes.split is not None:   # its effect is still to come: refused, never ignored
            draft.parent.complain(draft.line, "split= is not supported yet; take it out")
        tests.append(Test(
            index, draft.key, label, stem, draft.parent.name, draft.line, draft.source,
            command_of(draft, junit, options), draft.shell, draft.attributes, draft.barrier,
            need_of(draft.attributes, draft.mask), options.timeout if timeout is None else timeout, junit,
            draft.handled or draft.is_target))
    return tests


def need_of(attributes: Attributes, mask: Optional[str]) -> float:
    """How many GPUs a test takes: `gpus=`, else as many as its own mask names, else one. The ids do not matter."""
    if attributes.gpus is not None:
        return attributes.gpus
    if mask is None:
        return 1
    entries = mask.split(",")
    return next((number for number, entry in enumerate(entries) if entry.strip() in ("", "-1")), len(entries))


class Unique:
    """Makes each name in turn unique by a numbered suffix; names with equal `same(name)` are equal."""

    def __init__(self, pattern: str, same: Callable[[str], str]) -> None:
        self.pattern, self.same = pattern, same
        self.seen: Set[str] = set()
        self.count: Dict[str, int] = {}

    def __call__(self, name: str) -> str:
        chosen = name
        while self.same(chosen) in self.seen:
            self.count[name] = self.count.get(name, 1) + 1
            chosen = self.pattern.format(name, self.count[name])
        self.seen.add(self.same(chosen))
        return chosen


def stem_of(junit: str) -> str:
    """The stem of a JUnit file's name; a slug of it where that is no name for a log."""
    stem = os.path.splitext(os.path.basename(junit))[0]
    return stem if 0 < len(to_bytes(stem)) <= STEM_BYTES and not CONTROL.search(stem) else slug(stem)


def log_stems(drafts: Sequence[Draft], labels: Sequence[str]) -> List[str]:
    """The log's stem for each test: that of the JUnit file it names, else a slug of its label.

    Names that the list gives come first, so that none of the runner's own takes their place. Some file
    systems do not tell `A.log` from `a.log`.
    """
    names = [stem_of(draft.junit) if draft.junit else ("pytest_" if draft.is_target else "") + slug(label)
             for draft, label in zip(drafts, labels)]
    given_first = sorted(range(len(names)), key=lambda index: not drafts[index].junit)
    stems = dict(zip(given_first, map(Unique("{}_{}", str.casefold), [names[index] for index in given_first])))
    return [stems[index] for index in range(len(names))]


def read_list(name: str) -> str:
    """The text of a list; bytes that are not UTF-8 survive as surrogates. Raises ListError."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            data = file.read()
    except OSError as error:
        raise ListError(f"{name}: cannot read this list ({error.strerror}); check its path") from None
    if name == "-" and data.startswith(b"#!"):
        raise ListError("-:1: a script cannot come from standard input, which is its own; name its file")
    return data.decode("utf-8-sig", "surrogateescape")


def parse_lists(options: Options) -> List[Test]:
    """The tests of all lists, in order. Raises ListError with one message per mistake."""
    lists: List[ListFile] = []
    unreadable: List[str] = []
    for name in options.lists:
        try:
            lists.append(split_list(name, read_list(name), lists[-1].waits if lists else 0))
        except ListError as error:
            unreadable += error.messages
    check_syntax(lists)
    tests = [] if unreadable or not all(parsed.is_whole for parsed in lists) else finish_tests(lists, options)
    mistakes = [message for parsed in lists for message in parsed.messages()]
    if unreadable or mistakes:
        raise ListError(*unreadable, *mistakes)
    return tests


# Scripts: bash runs them itself. Read here is which of their commands are tests, and where bash has to wait for
# them earlier than its DEBUG trap would tell: that does not see a subshell before it has begun.

BLOCKS: Mapping[str, str] = {"if": "fi", "for": "done", "select": "done", "while": "done", "until": "done",
                             "case": "esac", "{": "}", "(": ")"}
LEADS = frozenset(["then", "else", "elif", "do"])        # what follows begins a command
PIPES = ("|", "|&")
# What does not depend on tests, if what it names does not, and leaves no process.
CALM = frozenset(["echo", "printf", ":", "true", "false", "[", "[[", "((", "test", "local", "export", "declare",
                  "typeset", "readonly", "let", "unset"])
GOES_ON = CALM | {"alias", "break", "cd", "continue", "popd", "pushd", "read", "return", "set", "shift", "shopt",
                  "ulimit", "umask", "unalias", "wait"}
INFALLIBLE = frozenset(["echo", "printf", ":", "true", "export"])        # a handler's commands that cannot fail
# In a handler that is put off until more tests have been started.
HARMLESS = CALM | {"awk", "basename", "cat", "cut", "date", "dirname", "grep", "head", "hostname", "ls", "mkdir",
                   "nvidia-smi", "return", "sed", "set", "tail", "tee", "touch", "tr", "wc"}
LEAVES = frozenset(["exit", "return", "break", "continue", "exec", "local", "declare", "typeset", "set", "shopt"])
STATEFUL = STATE_WORDS | {"exit", "exec", "eval", "read", "mapfile", "readarray", "trap", "let", "shift", "getopts"}
ASSIGNING = frozenset(["export", "declare", "typeset", "readonly", "local", "read", "let", "unset", "mapfile",
                       "readarray", "((", "getopts"])
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
OWN_STATE = re.compile(r"\$[$!?-]|\$\{[$!?#-]|\$_\b|\$\{?(?:BASHPID|PIPESTATUS|FUNCNAME|BASH_LINENO)|\$\{\w+:?[=?]"
                       r"|\$\(\([^)]*(?:\+\+|--|[^=!<>]=[^=])|[<>]&\s*(?:[3-9]|\d\d)|(?<!<)<<(?!<)")
WHERE = re.compile(r"FUNCNAME|BASH_LINENO|BASH_SOURCE|\bcaller\b")
SUBSTITUTION = re.compile(r"\$\((?!\()|`|[<>]\(")
WORDS_ALONE = re.compile(r"\$\((?:basename|dirname|echo|hostname|nproc|printf|uname)\b([^()`;&|<>]*)\)")
SEES_OUTSIDE = re.compile(SUBSTITUTION.pattern + r"|\$\?|\$\{[!?]")
QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
SINGLE_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|\\.)|'[^']*'""", re.DOTALL)        # outside double quotes
FILE_TEST = re.compile(r"-(?:[abcdefghkprstuwxGLNOS]|nt|ot|ef)")
FUNCTION_HEAD = re.compile(r"(?:function[ \t]+)?([^\s\"'$`;&|()<>\\=]+)[ \t]*\([ \t]*\)|function[ \t]+([^\s;&|()<>]+)")
FUNCTION = re.compile(r"^(?:function )?(\S+) \(\) ?\n(\{ ?\n.*?^\})$", re.MULTILINE | re.DOTALL)


@dataclass
class ScriptCommand:
    """A simple command of a script, or the head of a `for` or `case`, between the operators `before` and `after` it."""

    tokens: List[Token]
    lines: range                         # those it stands on
    lead: str                            # `if`, `while`, `!` … right before it
    before: str
    after: str
    obstacle: str = ""                   # why a test cannot be handed over

    @property
    def words(self) -> List[str]:
        """Its words with its assignments, without redirections."""
        return [word.text.replace("\\\n", "") for words in command_words(self.tokens) for word in words]

    @property
    def name(self) -> str:
        """Its first word; empty for assignments alone."""
        if self.tokens[0].text == "(":
            return "(("
        words = command_words(self.tokens)[1]
        return unquoted(words[0].text) if words else ""

    @property
    def changes(self) -> Set[str]:
        """The variables that it changes, perhaps with some other names."""
        if self.name in ASSIGNING or (self.name == "printf" and "-v" in self.words):
            return {name for token in self.tokens[1:] for name in NAME.findall(token.text)}
        assigned = command_words(self.tokens)[0] if not self.name else []
        return {name for word in assigned for name in NAME.findall(word.text)[:1]}


@dataclass
class Block:
    """A compound command of a script while it is read; its own commands and those of statements by their numbers."""

    closer: str
    before: str                          # the operator before it
    start: int                           # offsets in the text of what is in it
    end: int
    first: int                           # its first command
    previous: int                        # the first command of the statement before the current one
    statement: int                       # the first command of the current statement
    function: str = ""                   # whose body it is
    is_pattern: bool = False             # of `case`: a pattern is due
    begins_unseen: bool = False          # it begins with what the DEBUG trap does not see


class Site(NamedTuple):
    """A test of a script: `command || test_fail "label"`. Label, JUnit file, mask and first word are bash words."""

    file: str                            # as bash names it
    line: int
    words: Tuple[str, ...]
    text: str                            # bash; a mask before it is what the test has been given
    handler: str                         # bash
    is_call: bool                        # the handler is one call: its words are expanded before the test runs
    label: str
    junit: str
    mask: Optional[str]
    first: str
    attributes: Attributes


class Script:
    """What is read of a script, or of a file that it sources."""

    def __init__(self, name: str, text: str, handlers: Collection[str]) -> None:
        self.text, self.handlers = text, handlers
        self.changes: Optional[Set[str]] = None  # variables that handlers set, if they stand here
        self.parsed = ListFile(name)             # for mistakes in `#:`
        self.commands: List[ScriptCommand] = []
        self.sites: Dict[int, List[Site]] = {}   # by each line of their commands
        self.waits: Set[int] = set()             # lines after whose commands bash waits
        self.unseen: Set[str] = set()            # functions before whose calls it does
        self.obstacles: Dict[int, str] = {}      # by line, why a test runs as it stands
        self.found: List[Tuple[ScriptCommand, Site]] = []
        self.blocks = [Block("", "", 0, 0, 0, 0, 0)]
        self.current: List[Token] = []
        self.lead = self.before = self.function = ""
        self.head_end = 0                        # of the function whose body follows
        self.closed: Optional[Block] = None      # a block whose redirections may follow
        self.depth = 0                           # of parentheses in `((`
        self.line, self.line_start, self.attributes = 1, 0, Attributes()
        self.read()

    def read(self) -> None:
        """Read line by line up to the end, or to what cannot be read."""
        at, defaults = 0, Attributes()
        try:
            while at < len(self.text):
                self.line_start, (tokens, after) = at, scan_line(self.text, at)
                self.attributes = take_attributes(tokens, self.line, self.parsed, defaults)
                if not tokens:
                    defaults = self.attributes
                for token in tokens:
                    self.take(token)
                if tokens and tokens[-1].text not in ("&&", "||", *PIPES):
                    self.take(Token("op", ";", after - 1, after))
                after = self.end_of_documents(tokens, after)
                self.line += self.text.count("\n", at, after)
                at = after
        except (Unclosed, RecursionError):
            self.obstacles[self.line] = "it cannot be read, nor can what follows"
        for command, site in self.found:
            for line in command.lines:
                if command.obstacle:
                    self.obstacles[line] = command.obstacle
                else:
                    self.sites.setdefault(line, []).append(site)

    def end_of_documents(self, tokens: Sequence[Token], at: int) -> int:
        """The offset after the here-documents of a line."""
        for number, token in enumerate(tokens[:-1]):
            if token.kind == "op" and re.fullmatch(r"\d*<<-?", token.text):
                end = re.escape(unquoted(tokens[number + 1].text))
                tabs = "\t*" if token.text.endswith("-") else ""
                found = re.compile(rf"^{tabs}{end}$\n?", re.MULTILINE).search(self.text, at)
                at = found.end() if found else len(self.text)
        return at

    def take(self, token: Token) -> None:
        """Take in the next token. A newline comes as `;`."""
        text = token.text
        if token.start < self.head_end:
            return                       # `()` of a function
        if self.blocks[-1].is_pattern:
            self.blocks[-1].is_pattern = text not in (")", "esac")
            if text == "esac":
                self.close(token)
        elif self.depth or (self.text.startswith("((", token.start) and not self.closed
                            and (not self.current or self.lead == "for")):       # arithmetic
            self.depth += (text == "(") - (text in (")", "]]"))
            self.current.append(token)
        elif text == "in" and self.lead == "case" and self.current:
            self.separate(";")
        elif text == ")":
            self.close(token)
        elif text in SEPARATORS and text != "(":
            self.separate(text)
        elif self.current or self.closed or not self.begin(token):
            self.current.append(token)

    def begin(self, token: Token) -> bool:
        """What the first word of a command may mean; returns whether it is a reserved word."""
        text, block = token.text, self.blocks[-1]
        head = FUNCTION_HEAD.match(self.text, token.start)
        if head:
            self.function, self.head_end = head.group(1) or head.group(2), head.end()
        elif text in BLOCKS:
            count = len(self.commands)
            if self.function in self.handlers:       # the trap does not see definitions
                self.hide(block, count)
            self.blocks.append(Block(BLOCKS[text], self.before, token.end, 0, count, count, count, self.function))
            self.lead = text if text not in "{(" else ""
            self.before = self.function = ""
        elif text in BLOCKS.values():
            self.close(token)
        elif text in LEADS:
            block.previous, block.statement = block.first, len(self.commands)
            self.lead, self.before = text if text == "elif" else "", ""
        elif text in ("!", "time"):
            self.lead = text
        elif text == "[[":
            self.depth = 1
            return False
        else:
            return False
        return True

    def close(self, token: Token) -> None:
        """A block ends; what follows it tells whether bash has forked for it."""
        self.separate(";")
        if len(self.blocks) > 1 and token.text == self.blocks[-1].closer:
            self.closed = self.blocks.pop()
            self.closed.end = token.start
            self.before = self.closed.before
            self.lead = ""

    def separate(self, operator: str) -> None:
        """An operator ends a command or a block, and perhaps a statement."""
        if self.closed:
            self.end_block(self.closed, operator)
        elif self.current:
            self.end_command(operator)
        block = self.blocks[-1]
        if operator not in ("&&", "||", *PIPES):
            commands = self.commands[block.statement:]
            if operator == "&":
                for command in commands:
                    command.obstacle = "it runs in the background"
                if len(commands) > 1:
                    self.hide(block, block.statement)
            if commands:
                block.previous, block.statement = block.statement, len(self.commands)
            block.is_pattern = block.closer == "esac" and (operator.startswith((";;", ";&")) or block.is_pattern)
        self.before = operator if operator in ("&&", "||", *PIPES) else ""

    def end_command(self, operator: str) -> None:
        """Note a simple command, and the test before it if it is a handler."""
        tokens, lead, block = self.current, self.lead, self.blocks[-1]
        first = self.line + self.text.count("\n", self.line_start, tokens[0].start)
        last = first + self.text.count("\n", tokens[0].start, tokens[-1].end)
        command = ScriptCommand(tokens, range(first, last + 1), lead, self.before, operator)
        self.commands.append(command)
        self.current, self.lead = [], ""
        if operator in (*PIPES, "&") or self.before in PIPES:
            self.waits.update(command.lines)         # bash may fork for it, and its trap with it
        if lead == "case":
            block.is_pattern = True
        elif lead == "for" and self.sees_outside(tokens):
            self.hide(self.blocks[-2], block.first)      # bash expands its words before the trap knows
        elif self.before == "||" and not lead and command.name in self.handlers and operator in (";", ";;"):
            is_plain = all(token.kind == "word" for token in tokens) and not has_glob(tokens)
            self.add_site(len(self.commands) - 2, self.source(tokens), is_plain, command)

    def sees_outside(self, head: Sequence[Token]) -> bool:
        """Whether what `for` goes through may depend on tests that are running."""
        text = self.source(head[1:] or head)
        names = re.findall(r"\$\{?(\w+)", text)
        return bool(SUBSTITUTION.search(text)) or has_glob(head) or any(
            self.changes is None or name in self.changes for name in names)

    def source(self, tokens: Sequence[Token]) -> str:
        """Tokens as they are written."""
        return self.text[tokens[0].start:tokens[-1].end]

    def end_block(self, block: Block, operator: str) -> None:
        """A block, its redirections and the operator behind it have been read."""
        redirected, self.current, self.closed = bool(self.current), [], None
        inner = self.commands[block.first:]
        if block.closer == ")" or operator in (*PIPES, "&") or block.before in PIPES:
            for command in inner:
                command.obstacle = "it runs in a subshell"
        if block.closer == ")" or operator in (*PIPES, "&") or redirected or block.begins_unseen:
            if block.begins_unseen and block.closer == "done":   # its end is followed by its beginning
                self.waits.update(line for command in inner for line in command.lines)
            if block.function:
                self.unseen.add(block.function)
            self.hide(self.blocks[-1], block.first)
        if block.function in self.handlers:
            self.changes = (self.changes or set()).union(*(command.changes for command in inner))
        handler = next((command for command in inner if command.name in self.handlers), None)
        if block.closer == "}" and block.before == "||" and handler and not redirected and operator in (";", ";;"):
            self.add_site(block.first - 1, self.text[block.start:block.end], False, handler)
            if any(command.name in LEAVES for command in inner) and self.found:
                self.found[-1][0].obstacle = "its handler changes the course of the script"

    def hide(self, parent: Block, first: int) -> None:
        """The trap does not see what begins at a command: let bash wait after the statement before it."""
        if parent.statement == parent.first == first:
            parent.begins_unseen = True
        start = parent.previous if first == parent.statement else parent.statement
        self.waits.update(line for command in self.commands[start:first] for line in command.lines)

    def add_site(self, number: int, handler: str, is_call: bool, called: ScriptCommand) -> None:
        """The command of this number has a handler: it is a test."""
        command = self.commands[number] if number >= 0 else None
        if command is None or command.after != "||":
            self.obstacles[self.line] = "it is more than one command"
            return
        assigned, words = command_words(command.tokens)
        said = [word.text for word in words]
        label = next((word.text for word in command_words(called.tokens)[1][1:]), None)
        masks = {token: token.text.partition("=") for token in assigned if is_mask(token)}
        text = self.source(command.tokens)
        for token in sorted(masks, key=lambda token: -token.start):
            start, name = token.start - command.tokens[0].start, masks[token][0]
            text = f"{text[:start]}{name}=${{{name}-}}{text[start + len(token.text):]}"
        if not command.obstacle:
            command.obstacle = obstacle_of(command, words, text)
        if self.attributes.label:
            label = expandable(self.attributes.label, is_command=False)
        elif label is None or SUBSTITUTION.search(label) or OWN_STATE.search(label):
            label = expandable(label or " ".join(said), is_command=True)
        mask = list(masks.values())[-1][2] if masks else None
        first, junit = said[0] if said else "", junit_word(said) or ""
        if len(self.blocks) == 1:        # bash names a command's line when it has read the `||`
            end = command.tokens[-1].end
            text += " \\\n" * self.text.count("\n", end, self.text.index("||", end))
        self.found.append((command, Site(
            self.parsed.name, command.lines[0], tuple(command.words), text, handler,
            is_call and not SEES_OUTSIDE.search(handler) and not OWN_STATE.search(handler), label,
            "" if SUBSTITUTION.search(junit) else junit, mask, "" if SUBSTITUTION.search(first) else first,
            self.attributes)))


def obstacle_of(command: ScriptCommand, words: Sequence[Token], text: str) -> str:
    """Why a test cannot be handed over; empty if it can."""
    if command.before in PIPES:
        return "it ends a pipeline"
    if command.lead in ("!", "time", "if", "elif", "while", "until"):
        return f"it follows `{command.lead}`"
    if not words:
        return "it is no command"
    own = OWN_STATE.search(SINGLE_QUOTED.sub(r"\1", text))
    return f"`{own.group()}` needs the script's own shell" if own else ""


def needed_by(text: str) -> List[str]:
    """The variables that have to be set under `set -u` for some bash; positional ones by their numbers."""
    return [name or digit for name, digit in re.findall(r"\$(?:\{(\w+)(?!\w*:?[-+])|(\d|[A-Za-z_]\w*))", text)]


def has_glob(tokens: Iterable[Token]) -> bool:
    """Whether words may be file names to bash."""
    return any(re.search(r"[*?[]", QUOTED.sub("", token.text)) for token in tokens if token.kind == "word")


def goes_on(command: str, functions: Container[str]) -> bool:
    """Whether a command of a script cannot tell if the tests before it have ended, so that it may run at once.

    It can by the variables that handlers change, too, which are not looked for here.
    """
    try:
        tokens, end = scan_line(command, 0)
    except (Unclosed, RecursionError):
        return False
    if SEES_OUTSIDE.search(WORDS_ALONE.sub(r"\1", command)) or end <= len(command) or not tokens:
        return False
    if tokens[0].text in ("(", "for", "case"):
        return True
    assigned, words = command_words(tokens)
    name, arguments = words[0].text if words else "", [word.text for word in words[1:]]
    if name in ("[", "[[", "test"):
        is_calm = not any(map(FILE_TEST.fullmatch, arguments)) and (name == "[[" or not has_glob(words[1:]))
    elif words:
        prints = name in ASSIGNING | {"set", "shopt", "alias"} and (not arguments or "-p" in arguments)
        is_simple = not any(token.text in SEPARATORS for token in tokens)
        is_calm = (name in functions or name in GOES_ON) and is_simple and not prints and not has_glob(words)
    else:
        is_calm = bool(assigned) and not ("=(" in command and has_glob(assigned))
    return is_calm and all(
        tokens[number + 1].text == "/dev/null" for number, token in enumerate(tokens[:-1])
        if token.kind == "op" and token.text not in SEPARATORS and not token.text.endswith(">&"))


class Handler(NamedTuple):
    """What the handler of a failure does."""

    changes: FrozenSet[str]              # variables
    hasty: FrozenSet[str]                # what it runs that cannot be put off until more tests have been started
    can_fail: bool
    fails: bool                          # it says so (`return 1`), or does what only the script's shell can
    is_test: bool                        # as a test it would change nothing in the script's shell


def read_handler(text: str, functions: Mapping[str, str], flags: str = "") -> Handler:
    """What some bash does, and the functions that it calls, in a shell with these options (`$-`)."""
    changes: Set[str] = set()
    inner: Set[str] = set()
    names: FrozenSet[str] = frozenset()
    fails = False
    texts, seen = [text], set()
    while texts:
        text = texts.pop()
        fails = fails or bool(WHERE.search(text))
        for command in Script("", text, ()).commands:
            names |= {command.name}
            harmless = {"return": ([], ["0"]), "set": (["-x"], ["+x"]) if "x" in flags else (), "shopt": (),
                        "false": ()}.get(command.name)
            fails = fails or (harmless is not None and command.words[1:] not in harmless)
            (inner if command.name == "local" else changes).update(command.changes)
            if command.name in functions and command.name not in seen:
                seen.add(command.name)
                texts.append(functions[command.name])
    changes -= inner
    names -= {"", *functions}
    return Handler(frozenset(changes), names - HARMLESS, not names <= INFALLIBLE, fails,
                   not (names & STATEFUL or changes))


# ---------------------------------------------------------------------------------------------------
# 4. Select: what past runs say of the tests, which of them run, and in which order they start.
# ---------------------------------------------------------------------------------------------------

Node = TypeVar("Node")          # of a graph


class History:
    """What journals say: how long each test takes when it passes, and which tests of these lists still owe a pass."""

    def __init__(self, lists: Sequence[str] = (), flaky: str = "pass") -> None:
        self.counts = {Outcome.PASSED.value} if flaky == "fail" else {Outcome.PASSED.value, Outcome.FLAKY.value}
        self.lists = frozenset(map(os.path.normpath, lists))
        self.runs: Set[str] = set()      # the runs of these lists
        self.shards: Dict[str, Set[str]] = {}    # by shard (`2/4`), the names of tests that its runs have selected
        self.seen: Set[str] = set()      # names of the tests that were in their lists, selected or not
        self.owed: Set[str] = set()      # names of the tests that have not passed in the last run that selected them
        self.passes: Dict[str, List[Tuple[float, float]]] = {}   # by name and by key, time and seconds of the last

    def add(self, record: Mapping[str, Any], is_own: bool) -> None:
        """Take in one record of a journal; of one that is not this run's own, only durations.

        Raises ValueError, TypeError, AttributeError or KeyError for a record that no runner has written.
        """
        event, run = record["event"], record["run"]
        if event == "run_start" and is_own and not self.lists.isdisjoint(map(os.path.normpath, record["lists"])):
            self.runs.add(run)
            self.shards.setdefault(record["shard"] or "", set()).update(record["selected"])
            self.seen.update(record["selected"], record["left_out"])
            self.owed.update(record["selected"])
        elif event == "test_end" and record["outcome"] in (Outcome.PASSED.value, Outcome.FLAKY.value):
            if not (0 <= record["seconds"] <= LONGEST_S and record["time"] >= 0):
                raise ValueError("not a duration")
            name = key_of([record["test"], record["label"]])
            for known_as in (name, record["test"]):
                passes = self.passes.setdefault(known_as, [])
                bisect.insort(passes, (record["time"], record["seconds"]))
                del passes[:-PASSES]
            if run in self.runs and record["outcome"] in self.counts:
                self.owed.discard(name)

    def owes(self, test: Test) -> bool:
        """Whether a test has not passed in its last run, or was in none: new or changed tests owe a pass too."""
        return test.name in self.owed or test.name not in self.seen

    def duration(self, test: Test) -> Optional[float]:
        """Seconds: the median of the last passes, else what the list says, else None."""
        passes = self.passes.get(test.name) or self.passes.get(test.key)
        if passes is None:
            return test.attributes.time
        return statistics.median(seconds for _, seconds in passes)


class Estimates(NamedTuple):
    """The expected seconds of each test."""

    seconds: Mapping[Test, float]
    unknown: FrozenSet[Test]             # they count as the mean of the known ones


def estimate(tests: Sequence[Test], history: History) -> Estimates:
    """The expected seconds of the tests.

    A test of which nothing is known counts as the mean of the others. (It starts first of its width, as if it
    were the longest: measured on the suites in qa/bench, that ends soonest. See qa/bench/README.md.)
    """
    durations = {test: history.duration(test) for test in tests}
    known = {test: seconds for test, seconds in durations.items() if seconds is not None}
    mean = statistics.fmean(known.values()) if known else ASSUMED_S
    return Estimates({test: known.get(test, mean) for test in tests}, frozenset(durations.keys() - known.keys()))


@dataclass(frozen=True)
class Selection:
    """What of the lists runs: every test of them is in `tests` (each ends with an outcome) or in `left_out`."""

    tests: List[Test]                    # to run or deferred, in list order
    deferred: Mapping[Test, str]         # to the option that did it
    left_out: Dict[str, List[Test]]      # by the option that did it, in words
    estimates: Estimates
    failed: FrozenSet[Test] = frozenset()    # those that failed in their last run

    def to_run(self, order: str, pool: "Pool") -> List[Test]:
        """The tests that are to run, in the order `file`, `auto` or `failed-first`; one by one, sizes do not count."""
        tests = [test for test in self.tests if test not in self.deferred]
        if order != "file" and not pool.sequential:
            tests = widest_first(tests, self.estimates, pool.size)
        return sorted(tests, key=lambda test: test not in self.failed) if order == "failed-first" else tests

    def deferred_lists(self) -> List[List[Test]]:
        """The deferred tests, list by list. A list that is given twice is two."""
        deferred = [test for test in self.tests if test in self.deferred]
        return [list(tests) for _, tests in itertools.groupby(deferred, lambda test: id(test.shell.lines))]


def widest_first(tests: Sequence[Test], estimates: Estimates, gpus: int) -> List[Test]:
    """Starting order of the shortest run: widest first, then longest, but no test too late.

    The widest find an empty machine, and the last ones are short. But a test goes first as soon as it takes
    nearly as long as all that is left would take on all GPUs, if it can run beside the widest: else the run would
    end with it alone. A test counts for the tests that wait for it too (critical path).
    """
    chains = chains_of(tests, estimates.seconds)
    wide = sorted(tests, key=lambda test: (-chains[test][0], test not in estimates.unknown, -chains[test][1]))
    long = sorted(wide, key=lambda test: -chains[test][1])[::-1]         # the longest comes last
    works = {test: work_of(test, estimates.seconds, gpus) for test in tests}
    left = sum(works.values())
    order: Dict[Test, None] = {}
    for widest in wide:
        while widest not in order:
            while long[-1] in order:
                long.pop()
            is_late = chains[long[-1]][1] * SLACK * gpus >= left and long[-1].gpus + widest.gpus <= gpus
            test = long[-1] if is_late else widest
            left -= works[test]
            order[test] = None
    return list(order)


def work_of(test: Test, seconds: Mapping[Test, float], gpus: int) -> float:
    """GPU-seconds of a test on a machine with `gpus` GPUs."""
    return seconds[test] * (gpus if test.gpus == ALL_GPUS else test.gpus)


def followers_of(tests: Sequence[Test]) -> Dict[Test, List[Test]]:
    """For each test that others name in `after`, those others. Names of tests that are not here hold up nobody."""
    named = {test.label: test for test in tests}
    followers: Dict[Test, List[Test]] = {}
    for test in tests:
        for label in test.attributes.after:
            if label in named:
                followers.setdefault(named[label], []).append(test)
    return followers


def chains_of(tests: Sequence[Test], seconds: Mapping[Test, float]) -> Dict[Test, Tuple[float, float]]:
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
            chains[test] = (max([test.gpus, *(chains[follower][0] for follower in after)]),
                            seconds[test] + max((chains[follower][1] for follower in after), default=0.0))
    return chains


def reach(start: Iterable[Node], edges: Mapping[Node, Sequence[Node]]) -> FrozenSet[Node]:
    """Some tests or other things, and all that their edges lead to."""
    found: Set[Node] = set()
    stack = list(start)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += edges.get(node, [])
    return frozenset(found)


def too_wide(tests: Sequence[Test], most: float) -> FrozenSet[Test]:
    """The tests that need more than `most` GPUs, and those that would wait for one of them."""
    return reach((test for test in tests if most < test.gpus < ALL_GPUS), followers_of(tests))


def has_word(test: Test, word: str) -> bool:
    """Whether a word, case folded, is a part of a test's label or tags."""
    return any(word in name.casefold() for name in (test.label, *test.attributes.tags))


def asked_for(tests: Sequence[Test], labels: Container[str], words: Sequence[str]) -> FrozenSet[Test]:
    """The tests of these labels, those that have one of the words, and those that they wait for."""
    by_label = {test.label: test for test in tests}
    leaders = {test: [by_label[label] for label in test.attributes.after if label in by_label] for test in tests}
    named = (test for test in tests if test.label in labels or any(has_word(test, word) for word in words))
    return reach(named, leaders)


def shard_of(tests: Sequence[Test], total: int, seconds: Mapping[Test, float]) -> Dict[Test, int]:
    """For each test the number of its shard, from 1: the same on every machine with the same list and history.

    The heaviest goes to the lightest shard (Graham's LPT rule); the weight is GPUs times expected seconds, and
    tests that `after` ties together stay together.
    """
    widest = max([1, *(test.gpus for test in tests if test.gpus < ALL_GPUS)])
    weights = {test: seconds[test] * min(max(test.gpus, 1), widest) for test in tests}
    groups = {test: [test] for test in tests}
    for test, followers in followers_of(tests).items():
        for other in followers:
            if groups[other] is not groups[test]:
                groups[test] += groups[other]
                for moved in groups[other]:
                    groups[moved] = groups[test]
    heavy_first = sorted(({id(group): group for group in groups.values()}).values(),
                         key=lambda group: -sum(weights[test] for test in group))
    shards = [(0.0, number) for number in range(1, total + 1)]
    numbers: Dict[Test, int] = {}
    for group in heavy_first:
        weight, number = shards[0]
        heapq.heapreplace(shards, (weight + sum(weights[test] for test in group), number))
        numbers.update(dict.fromkeys(group, number))
    return numbers


def select(tests: Sequence[Test], options: Options, history: History) -> Selection:
    """What runs, what is deferred and what is left out. A shard is cut before this machine's own past plays a part."""
    estimates = estimate(tests, history)
    left_out: Dict[str, List[Test]] = {}

    def leave_out(why: str, keeps: Callable[[Test], bool]) -> List[Test]:
        kept = {test for test in chosen if keeps(test)}
        left_out[why] = [test for test in chosen if test not in kept]
        return [test for test in chosen if test in kept]

    chosen = list(tests)
    if options.keep:
        by_name = options.keep
        chosen = leave_out("-k", lambda test: by_name((test.label, *test.attributes.tags)))
    deferred = dict.fromkeys(too_wide(chosen, math.inf if options.max_gpus is None else options.max_gpus), "--max-gpus")
    if options.only and "all" not in options.wanted:
        asked = asked_for(chosen, options.only.labels, options.wanted)
        deferred.update((test, "--only") for test in chosen if test not in asked)
    shard, begun = options.shard, history.shards.get(str(options.shard)) if options.rerun_failed else None
    if shard and begun is not None:
        chosen = leave_out(f"--shard {shard}", lambda test: test.name in begun or test.name not in history.seen)
    elif shard:
        numbers = {}
        for part in ([test for test in chosen if test not in deferred], [test for test in chosen if test in deferred]):
            numbers.update(shard_of(part, shard.total, estimates.seconds))
        plan = hashlib.sha256(repr([(test.key, numbers[test]) for test in chosen]).encode()).hexdigest()[:6]
        chosen = leave_out(f"--shard {shard} (plan {plan})", lambda test: numbers[test] == shard.number)
    if options.rerun_failed:
        chosen = leave_out("--rerun-failed", lambda test: test in deferred or history.owes(test))
    return Selection(chosen, {test: deferred[test] for test in chosen if test in deferred}, left_out, estimates,
                     frozenset(test for test in chosen if test.name in history.owed))


# ---------------------------------------------------------------------------------------------------
# 5. Devices: masks and vendor tools to a Machine; the Pool that leases its devices.
# ---------------------------------------------------------------------------------------------------

class MaskReader(NamedTuple):
    """How a vendor's runtime reads its mask variable, and the value that hides all devices from a test.

    `token` matches one valid entry. Where `stops`, an entry that is not valid hides itself and all after
    it; else only itself. Where `mixes`, indices and UUIDs may stand side by side. `no_mask`: the values that
    are no mask at all. Sources: the CUDA programming guide on CUDA_VISIBLE_DEVICES; for HIP and ROCR,
    Device::init of ROCm's clr and the RvdFilter of its ROCR runtime; for Intel, parseAffinityMask of its
    compute runtime.
    """

    variable: str
    token: "re.Pattern[str]"
    hide: str
    strips: bool = True
    stops: bool = True
    mixes: bool = True
    no_mask: Tuple[str, ...] = ()


CUDA = MaskReader("CUDA_VISIBLE_DEVICES", re.compile(r"\d+|GPU-[\w-]+|MIG-[\w/-]+", re.ASCII), hide="", mixes=False)
HIP = MaskReader("HIP_VISIBLE_DEVICES", re.compile(r"0|[1-9]\d*|GPU-\w+", re.ASCII), hide="-1", strips=False,
                 no_mask=("",))
ROCR = MaskReader("ROCR_VISIBLE_DEVICES", re.compile(r"\d+|GPU-\w+", re.ASCII | re.IGNORECASE), hide="")
INTEL = MaskReader("ZE_AFFINITY_MASK", re.compile(r"\d+(\.\d+){0,2}", re.ASCII), hide="-1", stops=False,
                   no_mask=("", "default"))
READERS = (CUDA, HIP, ROCR, INTEL)
MASKS_OF_NONE = ("", "-1", "NoDevFiles", "none", "void")      # they are meant to hide


@dataclass(frozen=True)
class Machine:
    """The devices that tests may use, and how a test is told which are its own.

    `variables` are the mask variables to set, `hide` the value that hides every device, `extra` further
    variables that the tokens need to mean what they say.
    """

    devices: Tuple[Device, ...] = ()
    variables: Tuple[str, ...] = ()
    hide: str = ""
    extra: Tuple[Tuple[str, str], ...] = ()

    def mask(self, lease: Lease) -> Dict[str, str]:
        """The environment that shows a test the devices of its lease and no others."""
        value = ",".join(lease.tokens) or self.hide
        return {**dict(self.extra), **dict.fromkeys(self.variables, value)}


def machine_of(tokens: Sequence[str], *readers: MaskReader, extra: Tuple[Tuple[str, str], ...] = ()) -> Machine:
    """A Machine with these tokens in device order, masked through these readers' variables."""
    devices = tuple(Device(index, token) for index, token in enumerate(tokens))
    return Machine(devices, tuple(reader.variable for reader in readers), readers[0].hide, extra)


def token_kind(token: str) -> str:
    """`GPU`, `MIG` or `index`."""
    return token[:3].upper() if token[:1].isalpha() else "index"


def read_mask(reader: MaskReader, value: Optional[str]) -> Optional[List[str]]:
    """The tokens that a mask leaves visible; None if it is no mask. Raises UsageError for duplicates."""
    if value is None or value in reader.no_mask:
        return None
    visible: List[str] = []
    for entry in value.split(","):
        token = entry.strip() if reader.strips else entry
        fits = reader.mixes or not visible or token_kind(token) == token_kind(visible[0])
        if reader.token.fullmatch(token) and fits:
            visible.append(token)
        elif reader.stops:
            if token not in MASKS_OF_NONE:
                warn(f"{reader.variable}={value}: {token!r} is no id, and hides itself and all after it")
            break
    for number, token in enumerate(visible):
        if any(is_same_device(token, earlier) for earlier in visible[:number]):
            raise UsageError(f"{reader.variable}={value} names {token} twice; name each GPU once")
    return visible


def is_same_device(one: str, other: str) -> bool:
    """Whether two tokens share a device: `1` and `01`, a UUID in either case, a tile (`0.1`) and its whole (`0`)."""
    parts = [[part.lstrip("0") or "0" for part in token.casefold().split(".")] for token in (one, other)]
    return all(left == right for left, right in zip(*parts))


def outer_machine(environ: Mapping[str, str]) -> Optional[Machine]:
    """The devices of the outer mask, or None if there is no mask. Raises UsageError if masks disagree."""
    read = {reader: read_mask(reader, environ.get(reader.variable)) for reader in READERS}
    masks = {reader: tokens for reader, tokens in read.items() if tokens is not None}
    if not masks:
        return None
    first, tokens = next(iter(masks.items()))
    if first is not CUDA or HIP not in masks:
        return machine_of(tokens, first)
    if masks[HIP] != tokens:    # HIP reads both variables and lets its own win
        raise UsageError(f"{CUDA.variable}={environ[CUDA.variable]} and {HIP.variable}={environ[HIP.variable]} "
                         "disagree; unset the one that does not count")
    return machine_of(tokens, HIP, CUDA)


class ToolError(Exception):
    """A vendor's tool is there and does not answer; why, in words."""


def call_tool(*command: str) -> str:
    """What a vendor's tool prints. Raises ToolError, also for one that hangs: that is killed, or left in the kernel."""
    try:
        tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)
    except OSError as error:
        raise ToolError(f"cannot be run ({error.strerror})") from None
    try:
        out, err = tool.communicate(timeout=PROBE_S)
    except BaseException as error:       # Ctrl-C too
        os.killpg(tool.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(KILLED_S)
        if isinstance(error, subprocess.TimeoutExpired):
            raise ToolError(f"did not answer in {PROBE_S:.0f} s") from None
        raise
    if tool.returncode != 0:
        said = (err + out).decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise ToolError(f"failed with status {tool.returncode} ({said[0]})")
    return out.decode("utf-8", "replace")


def ask_tool(*command: str) -> str:
    """What a vendor's tool prints; empty, with a warning on stderr, if it is there and fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return call_tool(*command)
    except ToolError as error:
        warn(f"{command[0]} {error}; going on without it")
        return ""


def pynvml_tokens() -> List[str]:
    """Indices of the GPUs that NVML shows through `pynvml`; the UUIDs of MIG instances where a GPU has them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")      # the old package of that name warns that it is old
            import pynvml  # type: ignore[import-not-found]
        pynvml.nvmlInit()
    except Exception:  # no package, no driver, a broken one: the next probe may know more
        return []
    try:
        tokens: List[str] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            tokens += nvml_instances(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) or [str(index)]
        return tokens
    except pynvml.NVMLError as error:
        warn(f"pynvml failed ({error}); going on without it")
        return []
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def nvml_instances(pynvml: Any, handle: Any) -> List[str]:
    """The UUIDs of a GPU's MIG instances; empty where MIG is off or unknown."""
    uuids = []
    with contextlib.suppress(pynvml.NVMLError, AttributeError):      # bindings from before MIG
        is_split = pynvml.nvmlDeviceGetMigMode(handle)[0] == 1
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_split else 0):
            with contextlib.suppress(pynvml.NVMLError):      # not every place is taken
                uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
                uuids.append(uuid.decode() if isinstance(uuid, bytes) else uuid)
    return uuids


def nvidia_smi_tokens() -> List[str]:
    """What `nvidia-smi -L` lists: GPU indices, or the UUIDs of MIG instances below a GPU that has them."""
    tokens: List[str] = []
    listed = re.findall(r"^GPU (\d+):|^[ \t]+MIG .*\(UUID: (MIG-[^)]+)\)", ask_tool("nvidia-smi", "-L"), re.MULTILINE)
    for gpu, instance in listed:
        if instance and tokens and token_kind(tokens[-1]) == "index":
            tokens.pop()
        tokens.append(gpu or instance)
    return tokens


def amd_smi_tokens() -> List[str]:
    """The `gpu` numbers of `amd-smi list --json`."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        listed = json.loads(ask_tool("amd-smi", "list", "--json"))
        return [str(int(gpu["gpu"])) for gpu in (listed["gpu_data"] if isinstance(listed, dict) else listed)]
    return []


def rocm_smi_tokens() -> List[str]:
    """The numbers of the `cardN` keys of `rocm-smi --showid --json`, from 0 in the order of HIP."""
    with contextlib.suppress(ValueError, TypeError):
        cards = [key for key in json.loads(ask_tool("rocm-smi", "--showid", "--json"))
                 if re.fullmatch(r"card\d+", key)]
        return [str(number) for number in range(len(cards))]
    return []


def probe(environ: Mapping[str, str]) -> Machine:
    """Ask the vendors' tools in turn. No answer is an empty Machine."""
    for tokens_of, reader in ((pynvml_tokens, CUDA), (nvidia_smi_tokens, CUDA),
                              (amd_smi_tokens, HIP), (rocm_smi_tokens, HIP)):
        tokens = tokens_of()
        if tokens:
            ordered = reader is CUDA and "CUDA_DEVICE_ORDER" not in environ
            return machine_of(tokens, reader, extra=(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),) if ordered else ())
    return Machine()


def find_machine(gpus: Optional[str], environ: Mapping[str, str]) -> Machine:
    """The devices of `--gpus`, of the outer mask or of the probe, the first that applies. Raises UsageError.

    Without an outer mask `--gpus` is believed as it stands, and told to tests in CUDA's variable, which HIP
    reads too.
    """
    outer = outer_machine(environ)
    if gpus is None:
        return outer or probe(environ)
    count = int(gpus) if gpus.isdigit() else None
    asked = [id for id in gpus.split(",") if id] if count is None else [str(index) for index in range(count)]
    if outer is None:
        if read_mask(CUDA, ",".join(asked)) != asked:
            raise UsageError(f"--gpus {gpus}: CUDA cannot read these ids together; without an outer mask it has to")
        return machine_of(asked, CUDA)
    visible = [device.token for device in outer.devices]
    chosen = asked if count is None else visible[:count]
    hidden = ",".join(id for id in chosen if id not in visible)
    if len(chosen) < len(asked):
        hidden = f"{len(asked) - len(chosen)} of them"
    if hidden:
        raise UsageError(f"--gpus {gpus}: the outer mask hides {hidden}; it shows {','.join(visible) or 'none'}")
    return replace(outer, devices=tuple(Device(index, token) for index, token in enumerate(chosen)))


class Sick(NamedTuple):
    """A device that tests can no longer use, and why."""

    device: Device
    reason: str


class Health:
    """What nvidia-smi says of the GPUs' memory: before the run, and after each test. It knows nothing of MIG instances.

    A GPU by an index of an outer mask is the one that nvidia-smi gives that number.
    """

    QUERY = ("nvidia-smi", "--format=csv,noheader,nounits")
    ROW = r"(\d+), (?:\d+|\[(?:N/A|Not Supported|Insufficient Permissions)\])"     # of a GPU that is well

    def __init__(self, machine: Machine) -> None:
        self.used: Dict[Device, int] = {}        # MiB in use without a test, of the GPUs that are watched
        if CUDA.variable not in machine.variables or not machine.devices:
            return
        said = ask_tool(*self.QUERY, "--query-gpu=index,uuid,memory.used")
        known = {name: int(used) for index, uuid, used in re.findall(r"^(\d+), (\S+), (\d+)$", said, re.MULTILINE)
                 for name in (index, uuid)}
        self.used = {device: known[device.token] for device in machine.devices if device.token in known}

    def examine(self, lease: Lease) -> Iterator[Sick]:
        """Wait, in bounded time, until a test's GPUs have their memory back; yields those that do not answer.

        A GPU that others have a share of is not waited for.
        """
        watched = [device for device in lease.devices if device in self.used and lease.shares == SHARES]
        for device in watched:
            give_up = time.monotonic() + MEMORY_S
            try:
                while self.excess(device) > 0 and time.monotonic() < give_up:
                    time.sleep(FOLLOW_S)
                excess = self.excess(device) if time.monotonic() >= give_up else 0
            except ToolError as error:
                yield Sick(device, f"nvidia-smi {error}")
                continue
            if excess > 0:
                warn(f"GPU {device.token} does not give back {excess + MEMORY_MIB} MiB; {self.holders(device)}")
                self.used[device] += excess      # whose ever they are, the next test need not wait for them

    def excess(self, device: Device) -> int:
        """MiB that a GPU holds beyond what it may. Raises ToolError if it does not answer."""
        said = call_tool(*self.QUERY, "--query-gpu=memory.used,temperature.gpu", "-i", device.token).strip()
        used = re.fullmatch(self.ROW, said)      # else `[Unknown Error]`, `[GPU requires reset]`
        if used is None:                 # the memory alone may look well
            raise ToolError(f"says {said or 'nothing'}")
        return int(used.group(1)) - self.used[device] - MEMORY_MIB

    def holders(self, device: Device) -> str:
        """Who holds a GPU's memory, in words."""
        said = ask_tool(*self.QUERY, "--query-compute-apps=pid,process_name", "-i", device.token)
        holders = [f"{os.path.basename(name)} (pid {pid})" for pid, name in re.findall(r"(\d+), (.*)", said)]
        return f"held by {', '.join(holders)}" if holders else "nvidia-smi sees no process there"


class GpuLocks:
    """A lock file per GPU, so that the runners of a machine that name the same folder never share a GPU.

    A lock is the kernel's (flock): it ends with the runner that holds it, however that dies. Raises MachineError.
    """

    def __init__(self, folder: str, machine: Machine) -> None:
        self.files: Dict[Device, int] = {}
        uuids = dict(re.findall(r"^GPU (\d+):.*\(UUID: (GPU-[^)]+)\)", ask_tool("nvidia-smi", "-L"), re.MULTILINE)
                     if CUDA.variable in machine.variables else ())
        try:
            os.makedirs(folder, exist_ok=True)
            for device in machine.devices:
                name = re.sub(r"[^\w.-]", "_", uuids.get(device.token, device.token))
                path = os.path.join(folder, f"gpu-{name}.lock")
                self.files[device] = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise MachineError(f"cannot write {error.filename} ({error.strerror}); "
                               "name a folder for lock files with --gpu-locks") from None

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

    def __init__(self, devices: Sequence[Device], cpus: int = 1, sequential: bool = False,
                 locks: Optional[GpuLocks] = None) -> None:
        self.devices = tuple(devices) or (Device(0, ""),)
        self.cpus, self.sequential, self.locks = cpus, sequential, locks
        self.room = [SHARES] * len(self.devices)         # by device index
        self.whole = list(range(len(self.devices)))      # indices of the devices that nobody has a share of
        self.shared: Set[int] = set()    # of those that somebody has a share of, and others may
        self.slots = [0]                 # a heap of free slot numbers; its largest is the next never used
        self.leases = 0
        self.lost: Set[int] = set()      # indices of the devices in quarantine
        self.is_alone = False            # the one lease that is out has the machine to itself
        self.held_by_others: Set[int] = set()    # free devices whose locks were the reason of a refusal

    @property
    def size(self) -> int:
        return len(self.devices) - len(self.lost)

    def has_room(self) -> bool:
        """Whether any lease could be taken at all."""
        return not self.is_alone and bool(self.whole or self.shared or self.cpus)

    def take(self, need: float, avoid: Container[int] = ()) -> Optional[Lease]:
        """A lease on what a test needs, on none of the device indices in `avoid`; None if that is not free."""
        alone = self.sequential or need == ALL_GPUS
        if self.is_alone or (alone and self.leases) or (need == 0 and not self.cpus):
            return None
        count, shares = demand(need, self.size)
        chosen = self.choose(count, shares, avoid)
        if len(chosen) < count:
            return None
        for index in chosen:
            if self.room[index] == SHARES:
                self.whole.remove(index)
            self.room[index] -= shares
            (self.shared.add if self.room[index] else self.shared.discard)(index)
        self.cpus -= need == 0
        self.leases += 1
        self.is_alone = alone
        slot = heapq.heappop(self.slots)
        if not self.slots:
            heapq.heappush(self.slots, slot + 1)
        return Lease(tuple(self.devices[index] for index in chosen), slot, shares)

    def choose(self, count: int, shares: int, avoid: Container[int]) -> Sequence[int]:
        """The devices to take shares of: fewer than `count` if there are not as many.

        A fraction goes where the least room is left for others; whole devices are neighbours where they can be,
        from the smallest gap that holds them (best fit).
        """
        part = [(self.room[index], index) for index in self.shared if self.room[index] >= shares and index not in avoid]
        if part:                         # of a fraction: a device that others share has no room for a whole one
            return [min(part)[1]]
        free = [index for index in self.whole if index not in avoid] if avoid else self.whole
        if self.locks is None or len(free) < count or not count:
            return best_block(free, count)
        locked = [index for index in free if self.locks.take(self.devices[index])]
        chosen = best_block(locked, count)
        if len(chosen) < count:
            self.held_by_others.update(set(free).difference(locked))
            chosen = []
        for index in set(locked).difference(chosen):
            self.locks.give(self.devices[index])
        return chosen

    def give(self, lease: Lease) -> None:
        """Take a lease back."""
        for device in lease.devices:
            index = device.index
            self.room[index] += lease.shares
            if self.room[index] == SHARES and index not in self.lost:
                bisect.insort(self.whole, index)
            if self.room[index] == SHARES and self.locks is not None:
                self.locks.give(device)
            is_shared = self.room[index] < SHARES and index not in self.lost
            (self.shared.add if is_shared else self.shared.discard)(index)
        self.cpus += not lease.devices
        self.leases -= 1
        self.is_alone = False
        heapq.heappush(self.slots, lease.slot)

    def quarantine(self, device: Device) -> None:
        """Lease a device no more."""
        self.lost.add(device.index)
        self.shared.discard(device.index)
        if device.index in self.whole:
            self.whole.remove(device.index)


def demand(need: float, size: int) -> Tuple[int, int]:
    """How many devices of a machine with `size` a need takes, and how many shares of each."""
    if 0 < need < 1:
        return 1, round(need * SHARES)
    return size if need == ALL_GPUS else int(need), SHARES


def best_block(free: Sequence[int], count: int) -> Sequence[int]:
    """`count` of the free device indices, neighbours if there are as many in a row; all if there are not as many."""
    rows = [[index for _, index in row]
            for _, row in itertools.groupby(enumerate(free), lambda pair: pair[1] - pair[0])]
    return min((row for row in rows if len(row) >= count), key=len, default=free)[:count]


# ---------------------------------------------------------------------------------------------------
# 6. Schedule: event in, actions out. No clock, no process, no output: events bring the time with them.
#    (The shape is nextest's dispatcher: one event in, one response out.)
# ---------------------------------------------------------------------------------------------------

class Begin(NamedTuple):
    """The run starts. Times are seconds of a monotonic clock."""

    at: float


class Started(NamedTuple):
    """The process of a test is there; `process` is for who acts, not for who decides."""

    at: float
    test: Test
    process: Any


class Exited(NamedTuple):
    """All processes of an attempt have ended. `status` as in subprocess; the rest is what they have left to find."""

    at: float
    test: Test
    status: int
    junit_fault: str = ""
    junit_failures: int = 0              # of its own JUnit file
    cause: Cause = Cause()
    leaked: Tuple[str, ...] = ()
    sick: Tuple[Sick, ...] = ()


class Broken(NamedTuple):
    """The runner could not run a test: its log cannot be written, a process cannot be made."""

    at: float
    test: Test
    reason: str
    details: str = ""                    # the traceback, if it is the runner's own mistake


class Submit(NamedTuple):
    """More tests have come. All that wait are in `order` from now on; `seconds` is what each is expected to take."""

    at: float
    tests: Sequence[Test]
    order: Sequence[Test]
    seconds: Mapping[Test, float]


class Tick(NamedTuple):
    """Time has passed."""

    at: float


class Interrupt(NamedTuple):
    """A signal asks the runner to end."""

    at: float
    signum: int


Event = Union[Begin, Submit, Started, Exited, Broken, Tick, Interrupt]


class Launch(NamedTuple):
    """Start an attempt of a test on a lease."""

    test: Test
    lease: Lease
    attempt: int


class Retry(NamedTuple):
    """An attempt has ended without a pass, and another will follow."""

    result: Result


class Kill(NamedTuple):
    """Send a signal to a test's process group; before it, if `stacks` says why, ask for the stacks of its Pythons."""

    test: Test
    signum: int
    stacks: str = ""


class Abandon(NamedTuple):
    """Wait no longer for a test's shell, which SIGKILL does not end."""

    test: Test


class Announce(NamedTuple):
    """A test runs for long."""

    test: Test
    seconds: float


class Quarantine(NamedTuple):
    """Tests can no longer use a device."""

    sick: Sick


class Conclude(NamedTuple):
    """A test has its outcome."""

    result: Result


Action = Union[Launch, Retry, Kill, Abandon, Announce, Quarantine, Conclude]


@dataclass
class Running:
    """What the schedule knows of a test between Launch and Conclude."""

    lease: Lease
    attempt: int
    expected_end: float
    started: float = math.inf            # when its process was there
    deadline: float = math.inf           # when the next signal is due
    slow_at: float = math.inf            # when it is to be announced
    sent: int = 0                        # the last signal sent to it
    cause: Optional[Outcome] = None      # TIMEOUT or INTERRUPTED, once it is being ended


class Reservation(NamedTuple):
    """What the first test that finds no room is promised: these devices (by index) and locks, `at` the latest."""

    at: float
    devices: FrozenSet[int]
    lock: FrozenSet[str]
    is_alone: bool                       # and the CPU slots too


class Line:
    """Waiting tests that need the same: the first in starting order, or the longest that ends in time, is the next."""

    def __init__(self, need: float, lock: Tuple[str, ...]) -> None:
        self.need, self.lock = need, lock
        self.ranked: List[Tuple[int, Test]] = []         # ranks are negative: the first of two stands behind the second
        self.timed: List[Tuple[float, int, Test]] = []   # by expected seconds first

    def add(self, rank: int, seconds: float, test: Test) -> None:
        """Let a test stand in line."""
        bisect.insort(self.ranked, (-rank, test))
        bisect.insort(self.timed, (seconds, -rank, test))

    def remove(self, rank: int, seconds: float, test: Test) -> None:
        """Take a test out of the line."""
        del self.ranked[bisect.bisect_left(self.ranked, (-rank, test))]
        del self.timed[bisect.bisect_left(self.timed, (seconds, -rank, test))]

    def within(self, seconds: float) -> Optional[Test]:
        """The longest test that is expected to take at most so long."""
        number = bisect.bisect_right(self.timed, (seconds, math.inf)) - 1
        return self.timed[number][2] if number >= 0 else None


class Schedule:
    """Decides which test starts when, when one is stopped, and what its end means.

    `tests` come in starting order. A test is `waiting` until it starts or is concluded; once `wait` barriers and
    `after` let it start, it also stands in the line of those that need the same. What fits starts at once. The
    first test that finds no room is promised the devices that it can have soonest: tests behind it start on
    these only if they are expected to end before, so that no wide test starves (EASY backfill, Lifka 1995).
    """

    def __init__(self, tests: Sequence[Test], seconds: Mapping[Test, float], pool: Pool, options: Options) -> None:
        self.seconds, self.pool, self.options = seconds, pool, options
        self.rank = {test: rank for rank, test in enumerate(tests)}
        self.followers = followers_of(tests)
        ahead = collections.Counter(itertools.chain.from_iterable(self.followers.values()))
        self.waiting = {test: ahead[test] for test in tests}     # for how many tests named in its `after`
        self.lines: Dict[Tuple[float, Tuple[str, ...]], Line] = {}       # by need and locks
        self.held = sorted(tests, key=lambda test: -test.barrier)    # those below barriers that have not opened
        self.unfinished = collections.Counter(test.barrier for test in tests)
        self.floor = -1                  # the last barrier that has opened
        self.locked: Set[str] = set()    # names of `lock` that running tests hold
        self.running: Dict[Test, Running] = {}
        self.failed: Dict[Test, Result] = {}     # the last attempt of each test that is to be retried
        self.spared: Set[Test] = set()   # those of which one attempt does not count: it was the GPU's fault
        self.suspects: Dict[Test, Sick] = {}     # the GPUs of those attempts, if what they do elsewhere is to tell
        self.struck: List[Result] = []   # the last ends of GPU tests, if all had the same cause and it is the machine's
        self.ends: List[Tuple[float, int, Test]] = []    # when they are expected to end, in that order
        self.interrupts: List[int] = []
        self.failure = ""                # why the machine cannot go on
        self.grace = options.grace
        self.end_at = math.inf           # when --deadline ends the run
        self.is_overdue = False          # it has
        self.stopped = False             # no test starts any more
        self.poll_at = math.inf          # when to look again at GPUs that other runners hold

    @property
    def done(self) -> bool:
        return not self.running and not self.waiting

    def deadline(self) -> float:
        """When the next Tick is due, on the events' clock; infinity if none is."""
        return min([self.poll_at, self.end_at, *(min(running.deadline, running.slow_at)
                                                 for running in self.running.values())])

    def step(self, event: Event) -> List[Action]:
        """Take in one event; returns what to do now, in order."""
        if isinstance(event, (Started, Exited, Broken)) and event.test not in self.running:
            return []                    # it was abandoned
        responses: Mapping[type, Callable[[Any], List[Action]]] = {
            Begin: self.on_begin, Submit: self.on_submit, Started: self.on_started, Exited: self.on_exited,
            Broken: self.on_broken, Tick: self.on_tick, Interrupt: self.on_interrupt}
        actions = responses[type(event)](event)
        if isinstance(event, Started):   # nothing has become free
            return actions
        self.open_barriers()
        return actions + self.start_waiting(event.at)

    def on_begin(self, event: Begin) -> List[Action]:
        if self.options.deadline:        # half of a short one is for the tests
            reserve = min(self.options.grace + STACKS_S + REPORT_S, self.options.deadline / 2)
            self.end_at = event.at + self.options.deadline - reserve
        return self.refuse_unrunnable()

    def on_submit(self, event: Submit) -> List[Action]:
        self.seconds = event.seconds
        self.floor = 0                   # a script has no barriers: it waits itself
        first = 1 + max(self.rank.values(), default=-1)      # no rank is given twice
        self.rank.update((test, first + rank) for rank, test in enumerate(event.order))
        self.waiting.update(dict.fromkeys(event.tests, 0))
        self.unfinished.update(test.barrier for test in event.tests)
        self.lines.clear()
        for test in self.waiting:
            self.line_up(test)
        return self.stop() if self.stopped else self.refuse_unrunnable()

    def refuse_unrunnable(self) -> List[Action]:
        """Conclude the tests that need more GPUs than there are, or are left."""
        what = "more than are left" if self.pool.lost else "more than there are"
        refused = sorted((test for test in self.waiting if not self.can_run(test)), key=lambda test: test.index)
        self.lines = {key: line for key, line in self.lines.items() if line.ranked and self.can_run(line.ranked[0][1])}
        return self.conclude(*(self.failed.get(test) or Result(
            test, Outcome.UNRUNNABLE, reason=f"needs {test.gpus:g} GPUs, {what}") for test in refused))

    def on_started(self, event: Started) -> List[Action]:
        running = self.running[event.test]
        running.started = event.at
        running.slow_at = event.at + (self.options.slow or math.inf)
        if running.cause is not None:    # the order to end came before the process did
            return [Kill(event.test, running.sent)]
        running.deadline = event.at + event.test.timeout if event.test.timeout else math.inf
        return []

    def on_exited(self, event: Exited) -> List[Action]:
        test, running = event.test, self.free(event.test)
        result = judge(event, running, self.options, is_spared=test in self.spared)
        sick = [*event.sick, *self.accuse(result)]
        if result.outcome.can_be_retried() and (sick or test in self.suspects):
            self.spared.add(test)
        actions = self.isolate(sick, event.at)
        if self.is_machine_wide(result):
            actions += self.fail(f"{result.cause.text}, on every GPU", event.at)
        retries = self.options.retries if test.attributes.retries is None else test.attributes.retries
        attempts = 1 + retries + (test in self.spared)
        if self.stopped or running.attempt >= attempts or not (result.outcome.can_be_retried() and self.can_run(test)):
            return actions + self.conclude(result)
        self.failed[test] = result
        self.waiting[test] = 0
        self.line_up(test)
        return [*actions, Retry(result)]

    def accuse(self, result: Result) -> List[Sick]:
        """The GPU that an attempt's log shows to be broken, if the attempt had no other.

        An error that a test may cause too counts once the test has ended otherwise on another GPU.
        """
        before, blame = self.suspects.pop(result.test, None), result.cause.blame
        if result.lease is None or len(result.used) != 1 or (before is None and blame in (Blame.TEST, Blame.MACHINE)):
            return []
        sick = Sick(result.lease.devices[0], f"{result.cause.text} in {result.test.label}")
        if result.test not in self.spared:
            if blame is Blame.STARTUP and result.seconds <= START_S:
                self.suspects[result.test] = sick
            return [sick] if blame is Blame.DEVICE else []       # where it says so everywhere, it is the test
        return [before] if before and before.device != sick.device and before.reason != sick.reason else []

    def isolate(self, sick: Iterable[Sick], at: float) -> List[Action]:
        """Put devices in quarantine, and conclude the tests that need more than are left."""
        new = {each.device: each for each in sick if each.device.token and each.device.index not in self.pool.lost}
        if not new:
            return []
        for device in new:
            self.pool.quarantine(device)
        rest = self.refuse_unrunnable() if self.pool.size else self.fail("no usable GPU is left", at)
        return [*map(Quarantine, new.values()), *rest]

    def is_machine_wide(self, result: Result) -> bool:
        """Whether one cause, the machine's, has now ended two tests in a row or more, and one on every GPU."""
        if result.used and self.struck and self.struck[0].cause != result.cause:
            self.struck.clear()
        if not result.used or result.cause.blame is not Blame.MACHINE:
            return False
        self.struck.append(result)
        on = frozenset().union(*(struck.used for struck in self.struck))
        return len({struck.test for struck in self.struck}) > 1 and len(on - self.pool.lost) == self.pool.size

    def can_run(self, test: Test) -> bool:
        return test.gpus <= self.pool.size or test.gpus == ALL_GPUS

    def on_broken(self, event: Broken) -> List[Action]:
        running = self.free(event.test)
        return (self.conclude(Result(event.test, Outcome.NOT_RUN, lease=running.lease, attempt=running.attempt,
                                     reason=event.reason))
                + self.fail(event.reason, event.at))

    def fail(self, why: str, at: float) -> List[Action]:
        """The machine cannot go on: end what runs, start nothing more."""
        self.failure = self.failure or why
        return self.stop() + self.end_running(signal.SIGTERM, at)

    def on_interrupt(self, event: Interrupt) -> List[Action]:
        self.interrupts.append(event.signum)
        again = len(self.interrupts) > 1
        return self.stop() + self.end_running(signal.SIGKILL if again else event.signum, event.at)

    def on_tick(self, event: Tick) -> List[Action]:
        at = event.at
        if at >= self.end_at:
            self.grace = min(self.grace, (self.options.deadline or 0) / 4)
            self.end_at, self.is_overdue = math.inf, True
            return self.stop() + self.end_running(signal.SIGTERM, at, "--deadline ends the run")
        actions: List[Action] = []
        for test, running in list(self.running.items()):
            if running.slow_at <= at:
                running.slow_at = at + (self.options.slow or math.inf)
                actions.append(Announce(test, at - running.started))
            if running.deadline <= at and running.sent == signal.SIGKILL:
                actions += self.abandon(test, at)
            elif running.deadline <= at:
                actions += (self.end(test, Outcome.TIMEOUT, signal.SIGKILL, at) if running.cause else
                            self.end(test, Outcome.TIMEOUT, signal.SIGTERM, at, f"did not end in {test.timeout:g}s"))
        return actions

    def abandon(self, test: Test, at: float) -> List[Action]:
        """Go on without the GPUs of a test that cannot be killed."""
        running = self.free(test)
        seconds = max(at - running.started, 0.0)
        result = Result(test, running.cause or Outcome.TIMEOUT, seconds, -signal.SIGKILL, running.lease,
                        running.attempt, "cannot be killed", "left open", Cause("cannot be killed"))
        sick = [Sick(device, f"{test.label} cannot be killed") for device in running.lease.devices]
        return [Abandon(test), *self.isolate(sick, at), *self.conclude(result)]

    def end_running(self, signum: int, at: float, stacks: str = "") -> List[Action]:
        return [action for test in self.running for action in self.end(test, Outcome.INTERRUPTED, signum, at, stacks)]

    def end(self, test: Test, cause: Outcome, signum: int, at: float, stacks: str = "") -> List[Action]:
        """One signal to one test, whose first cause counts; SIGKILL follows after the grace period."""
        running = self.running[test]
        running.cause, running.sent = running.cause or cause, signum
        running.deadline = at + (STUCK_S if signum == signal.SIGKILL else self.grace + STACKS_S * bool(stacks))
        running.slow_at = math.inf
        return [Kill(test, signum, stacks)] if running.started < math.inf else []

    def stop(self) -> List[Action]:
        """Start nothing more: what waits is not run, or has failed if it waits for a retry."""
        self.stopped = True
        waiting = sorted(self.waiting, key=lambda test: test.index)
        self.waiting.clear()
        self.lines.clear()
        return [Conclude(self.failed.get(test) or Result(test, Outcome.NOT_RUN)) for test in waiting]

    def conclude(self, *ends: Result) -> List[Action]:
        """Give tests their outcomes, and those that wait for them in vain; with --fail-fast a failure stops the run."""
        results = list(ends)
        for ended in ends:
            self.waiting.pop(ended.test, None)
        for ended in results:            # it grows
            self.unfinished[ended.test.barrier] -= 1
            for follower in self.followers.get(ended.test, ()):
                if follower not in self.waiting or ended.outcome.is_unfinished():
                    continue
                if ended.outcome.is_ok():
                    self.waiting[follower] -= 1
                    self.line_up(follower)
                else:
                    del self.waiting[follower]
                    reason = f"waits for {ended.test.label}, which did not pass"
                    results.append(Result(follower, Outcome.BLOCKED, reason=reason))
        stop = self.options.fail_fast and not self.stopped and any(ended.outcome.is_failure() for ended in ends)
        return [*(Conclude(ended) for ended in results), *(self.stop() if stop else [])]

    def free(self, test: Test) -> Running:
        """Take back what a running test holds."""
        running = self.running.pop(test)
        del self.ends[bisect.bisect_left(self.ends, (running.expected_end, self.rank[test], test))]
        self.pool.give(running.lease)
        self.locked.difference_update(test.attributes.lock)
        return running

    def open_barriers(self) -> None:
        """Line up what stands below a barrier above which all tests have ended."""
        while self.held and not self.unfinished[self.floor]:
            self.floor += 1
            while self.held and self.held[-1].barrier == self.floor:
                self.line_up(self.held.pop())

    def line_up(self, test: Test) -> None:
        """Put a test into its line, if nothing but room keeps it from starting."""
        if self.waiting.get(test) == 0 and test.barrier <= self.floor:
            need = test.gpus, test.attributes.lock
            self.lines.setdefault(need, Line(*need)).add(self.rank[test], self.seconds[test], test)

    def start_waiting(self, at: float) -> List[Action]:
        """Start every test that may start now, the first in starting order first."""
        actions: List[Action] = []
        reservation: Optional[Reservation] = None
        self.pool.held_by_others.clear()
        lines = [(-line.ranked[-1][0], line) for line in self.lines.values() if line.ranked]
        heapq.heapify(lines)
        while lines and self.pool.has_room():
            _, line = heapq.heappop(lines)
            if not self.locked.isdisjoint(line.lock):
                continue
            launch = self.launch_from(line, at, reservation)
            if launch is not None:
                actions.append(launch)
                if line.ranked:
                    heapq.heappush(lines, (-line.ranked[-1][0], line))
            elif reservation is None and line.need > 0 and lines:    # without others nobody could take it away
                reservation = self.reserve(line, at)
        self.poll_at = at + LOCK_POLL_S if self.pool.held_by_others else math.inf
        return actions

    def launch_from(self, line: Line, at: float, promised: Optional[Reservation]) -> Optional[Launch]:
        """Start the first test of a line on what is not promised, else one that will have ended by then."""
        test, lease = line.ranked[-1][1], None
        avoid = promised.devices if promised else frozenset()
        if promised is None or not promised.is_alone and promised.lock.isdisjoint(line.lock):
            if test in self.failed:      # elsewhere, if it can, but not on GPUs far apart
                lease = self.pool.take(line.need, avoid.union(self.failed[test].used))
                if lease and lease.is_torn:
                    self.pool.give(lease)
                    lease = None
            lease = lease or self.pool.take(line.need, avoid)
        if lease is None and promised is not None:
            short = line.within(promised.at - at + ROUNDING_S)
            test, lease = short or test, self.pool.take(line.need) if short else None
        if lease is None:
            return None
        rank, seconds = self.rank[test], self.seconds[test]
        line.remove(rank, seconds, test)
        del self.waiting[test]
        self.locked.update(line.lock)
        attempt = self.failed[test].attempt + 1 if test in self.failed else 1
        self.running[test] = Running(lease, attempt, at + seconds)
        bisect.insort(self.ends, (at + seconds, rank, test))
        return Launch(test, lease, attempt)

    def reserve(self, line: Line, at: float) -> Optional[Reservation]:
        """The devices that a line for which there is no room can have soonest; None if others hold too many."""
        count, shares = demand(line.need, self.pool.size)
        room = list(self.pool.room)
        # When each device has room, the soonest first.
        ready = dict.fromkeys((index for index in self.pool.whole if index not in self.pool.held_by_others), at)
        for end, _, test in self.ends:
            for device in self.running[test].lease.devices if len(ready) < count else ():
                room[device.index] += self.running[test].lease.shares
                if room[device.index] >= shares and device.index not in self.pool.lost:
                    ready.setdefault(device.index, max(end, at))     # what is overdue may end now
        if len(ready) < count:
            return None
        promised, is_alone = list(ready)[-count:], line.need == ALL_GPUS
        start = max(self.ends[-1][0], at) if is_alone else ready[promised[-1]]
        return Reservation(start, frozenset(promised), frozenset(line.lock), is_alone)


def judge(event: Exited, running: Running, options: Options, is_spared: bool) -> Result:
    """What the end of an attempt means. Exit status 0 is a pass only if nothing that the test left speaks against it.

    `is_spared`: an earlier attempt does not count.
    """
    test, outcome, fault = event.test, running.cause or outcome_of(event.status), event.junit_fault
    cause, reason = event.cause, ""
    if outcome is Outcome.TIMEOUT:
        cause, reason = Cause("timeout"), f"did not end in {test.timeout:g}s"
    elif cause == OOM_KILLED:
        reason = "OOM killer"
    elif outcome is Outcome.PASSED and event.junit_failures:
        outcome, reason = Outcome.FAILED, f"its JUnit file shows failures: {event.junit_failures}"
    elif outcome is Outcome.PASSED and running.attempt > 1 + is_spared:
        outcome = Outcome.FLAKY
    result = Result(test, outcome, event.at - running.started, event.status, running.lease, running.attempt, reason,
                    fault, cause, event.leaked)
    if outcome.is_ok() and event.leaked and options.leaks == "fail":
        result = replace(result, outcome=Outcome.FAILED, reason=result.leaks(), cause=Cause("leaked processes"))
    if not result.outcome.is_ok() and test.junit and not fault and not event.junit_failures:
        result = replace(result, junit_fault="without a failure")    # written before it died: CI would show green
    return result


def outcome_of(status: int) -> Outcome:
    """What an exit status says. A shell passes on the death of its command as 128+N: that is a crash too."""
    if status == 0:
        return Outcome.PASSED
    return Outcome.CRASHED if death_of(status) else Outcome.FAILED


def simulate(tests: Sequence[Test], expected: Mapping[Test, float], pool: Pool, options: Options,
             actual: Optional[Mapping[Test, float]] = None) -> List[Tuple[float, Test]]:
    """When each test ends, in that order, on a virtual clock: all pass, in the `actual` else the expected seconds."""
    schedule = Schedule(tests, expected, pool, options)
    seconds = actual or expected
    ended: List[Tuple[float, Test]] = []
    running: List[Tuple[float, int, Test]] = []
    event: Union[Begin, Exited] = Begin(0.0)
    while True:
        for action in schedule.step(event):
            if isinstance(action, Launch):
                heapq.heappush(running, (event.at + seconds[action.test], action.test.index, action.test))
        if not running:
            return ended
        at, _, test = heapq.heappop(running)
        ended.append((at, test))
        event = Exited(at, test, 0)


# ---------------------------------------------------------------------------------------------------
# 7. Execute: the processes of a test, from spawn to sweep. Runs in pool threads.
# ---------------------------------------------------------------------------------------------------

class Job(NamedTuple):
    """A shell to be started: that of one attempt, or of a script."""

    bash: str                            # path: looking it up for every test would cost more than starting it
    arguments: Sequence[str]
    environment: Mapping[str, Any]
    log: str                             # path
    oom_kills: int = 0                   # of the machine, before
    stdin: Optional[int] = subprocess.DEVNULL        # None: ours

    @property
    def mark(self) -> FrozenSet[bytes]:
        """What the processes of this attempt, and no others, have in their environment."""
        names = ("RUN_TESTS_RUN", "RUN_TESTS_LABEL", "RUN_TESTS_ATTEMPT")
        return frozenset(os.fsencode(name) + b"=" + os.fsencode(self.environment[name]) for name in names)


class ProcessInfo(NamedTuple):
    """A live process, as /proc shows it. `began` is in seconds since boot."""

    pid: int
    name: str
    parent: int
    group: int
    session: int
    began: float

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def process_table() -> Dict[int, ProcessInfo]:
    """The live processes of the machine by pid; none where there is no /proc."""
    found = map(process_info, map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())))
    return {info.pid: info for info in found if info is not None}


def process_info(pid: int) -> Optional[ProcessInfo]:
    """What /proc says of a process, if it lives. Zombies live only in their threads."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        head, _, rest = file.read().rpartition(b") ")
        state, parent, group, session, *more = rest.split()
        if state not in (b"Z", b"X") or more[13] != b"1":
            name = CONTROL.sub("?", head.partition(b"(")[2].decode("utf-8", "replace"))
            return ProcessInfo(pid, name, int(parent), int(group), int(session),
                               int(more[15]) / os.sysconf("SC_CLK_TCK"))
    return None


def with_descendants(table: Mapping[int, ProcessInfo], pids: Iterable[int]) -> List[ProcessInfo]:
    """These processes and all that have come from them, the live ones, by pid."""
    children = collections.defaultdict(list)
    for info in table.values():
        children[info.parent].append(info.pid)
    return [table[pid] for pid in sorted(reach(table.keys() & pids, children))]


def environment_of(pid: int) -> FrozenSet[bytes]:
    """What a process was started with, as `NAME=value`; empty if we may not see it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return frozenset(file.read().split(b"\0"))
    return frozenset()


def send(signum: int, processes: Iterable[ProcessInfo]) -> None:
    """Send a signal to processes, as far as they are there."""
    for info in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(info.pid, signum)


class Reaper:
    """Loses no process that a test has started, and ends them all if the runner itself is killed.

    As a child subreaper the runner becomes the parent of those whose parents have ended, wherever they went
    (setsid, a daemon). Linux gives them to its main thread, and lists them apart from what other threads have
    started: a look at that list is all that a test costs which leaves nothing. Another process, the guard, waits
    for the runner's death; it holds the files in `kept` open, and so their locks, until it has done its work.
    """

    RENAME, ADOPT = 15, 36       # PR_SET_NAME and PR_SET_CHILD_SUBREAPER of prctl
    ONLY_MINE = 0x20000000       # __WNOTHREAD of waitpid: not the children of other threads

    def __init__(self) -> None:
        self.attempts: Dict[int, "Process"] = {}         # by pid of the shell
        self.unclaimed: Set[int] = set()         # orphans that may be of several attempts
        self.nameless: List[ProcessInfo] = []    # those of them that had to be killed
        self.scratch = ""                # a folder that is taken away in the end
        self.adopts = prctl(self.ADOPT, 1) or os.getpid() == 1
        self.path, self.list = "/proc/{0}/task/{0}/children".format(os.getpid()), -1
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            self.list = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)      # not the number of a closed standard stream
        self.own: FrozenSet[int] = frozenset()
        self.own = self.orphans()        # children from before the runner was exec'ed, and the guard
        self.guard = 0
        if not os.path.isdir("/proc/self"):
            warn("there is no /proc: processes that leave the process group of their test are not found")

    def post_guard(self, run: str, kept: Iterable[int] = ()) -> None:
        """Start the guard. Raises MachineError."""
        alive, self.line = os.pipe()     # its other end tells the guard of our death
        try:
            self.guard = os.fork()
        except OSError as error:
            raise MachineError(f"no process can be started ({error.strerror}); raise `ulimit -u`") from None
        if self.guard == 0:
            self.stand_guard(run, alive, {alive, self.list, *kept})
        os.close(alive)
        self.own |= {self.guard}

    def orphans(self) -> FrozenSet[int]:
        """The pids of the orphans, some perhaps dead, as the kernel lists them."""
        listed = os.pread(self.list, PAGE_BYTES, 0) if self.list >= 0 else b""
        if len(listed) > PAGE_BYTES / 2:         # there may be more
            with open(self.path, "rb") as file:
                listed = file.read()
        return frozenset(map(int, listed.split())) - self.own

    def collect(self) -> None:
        """Let ended orphans go. Main thread only."""
        with contextlib.suppress(ChildProcessError):     # none are left
            while self.adopts:
                pid, _ = os.waitpid(-1, os.WNOHANG | self.ONLY_MINE)
                if pid == 0:
                    break
                self.guard = 0 if pid == self.guard else self.guard

    def has_orphans(self) -> bool:
        """Whether tests have left processes behind; also if that cannot be told."""
        return not self.adopts or self.list < 0 or bool(self.orphans())

    def members(self, attempt: "Process") -> List[ProcessInfo]:
        """The live processes of an attempt: its group, its session, its orphans, and what has come from them."""
        table = process_table()
        orphans = self.orphans() if self.adopts and self.list >= 0 else table.keys() - self.attempts.keys()
        for info in filter(None, map(process_info, orphans - table.keys())):
            table[info.pid] = info       # it came, and its parent went, while we looked
        mine = [info.pid for info in table.values() if attempt.pid in (info.group, info.session)
                or (info.pid in orphans and self.owner(info) is attempt)]
        return with_descendants(table, mine)

    def owner(self, orphan: ProcessInfo) -> Optional["Process"]:
        """The attempt whose group, session or mark an orphan has; else the last of those that ran when it began."""
        attempts, environment = list(self.attempts.values()), environment_of(orphan.pid)
        known = [attempt for attempt in attempts
                 if attempt.pid in (orphan.group, orphan.session) or attempt.job.mark <= environment]
        if known or orphan.parent != os.getpid():
            return known[0] if known else None
        early = [attempt for attempt in attempts if attempt.began <= orphan.began + 1 / os.sysconf("SC_CLK_TCK")]
        if len(early) != 1:
            self.unclaimed.add(orphan.pid)
            return None
        return early[0]

    def close(self) -> List[ProcessInfo]:
        """End what is left when all tests have ended, and the guard; returns what was left by no test in particular."""
        self.end_orphans()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.guard:
            os.kill(self.guard, signal.SIGKILL)
            os.waitpid(self.guard, 0)
        for descriptor in (self.line, self.list):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        return self.nameless

    def end_orphans(self) -> None:
        """End all orphans, and what has come from them."""
        give_up = time.monotonic() + KILLED_S
        while self.orphans() and time.monotonic() < give_up:
            found = with_descendants(process_table(), self.orphans())
            self.nameless += [info for info in found if info not in self.nameless]
            send(signal.SIGKILL, found)
            self.collect()
            time.sleep(SWEEP_POLL_S)

    def stand_guard(self, run: str, alive: int, kept: Container[int]) -> None:
        """In the guard: wait until the runner has died, then kill all that bears its run's mark. Never returns.

        Orphans may have lost their mark: the guard knows them from its last two looks at the runner.
        """
        try:
            os.setsid()
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2 and descriptor not in kept:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            rename_process(SWEEPER.encode())
            before = orphans = self.orphans()
            end = poll()
            end.register(alive)
            while not end.poll(FOLLOW_S * 1000):         # milliseconds
                before, orphans = orphans, self.orphans()
            mark, calm = os.fsencode(run), 0
            while calm < 5:              # a test that was about to start bears its mark a moment later
                table = process_table()
                marked = {pid for pid in table for variable in environment_of(pid)
                          if mark in variable and variable.startswith((b"RUN_TESTS_RUN=", b"RUN_TESTS_OUTER="))}
                roots = marked | before | orphans
                found = with_descendants(table, roots - {os.getpid()})
                send(signal.SIGKILL, found)
                calm = 0 if found else calm + 1
                time.sleep(SWEEP_POLL_S)
            shutil.rmtree(self.scratch, ignore_errors=True)
        finally:
            os._exit(0)


def prctl(option: int, argument: Union[int, bytes]) -> bool:
    """The system call of that name; False if it fails, or if this is no Linux or a Python without ctypes."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes
        return bool(ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0)
    return False


def rename_process(name: bytes) -> None:
    """Give this process another name and command line: `pkill -9 -f run_tests` must not find the guard too."""
    with open("/proc/self/stat", "rb") as file:
        start, end = (int(number) for number in file.read().rpartition(b") ")[2].split()[45:47])
    if prctl(Reaper.RENAME, name) and start:     # else we may not know
        import ctypes
        ctypes.memmove(start, name.ljust(end - start, b"\0"), end - start)


class Process:
    """One attempt's shell and its group. No signal goes to a group that is gone: others may have its number."""

    def __init__(self, job: Job, reaper: Reaper, output: int) -> None:
        self.job, self.reaper = job, reaper
        self.began = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        self.popen = subprocess.Popen(
            [b"bash", *map(to_bytes, job.arguments)], executable=job.bash, env=job.environment, stdin=job.stdin,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            close_fds=False)             # as under bash, a test has the descriptors that we have
        self.pid = self.popen.pid
        reaper.attempts[self.pid] = self
        self.lock = threading.Lock()
        self.sent = 0                    # the last signal
        self.reaped = False
        self.stuck: List[ProcessInfo] = []       # what SIGKILL did not end

    def signal(self, signum: int, stacks: str = "") -> None:
        """Send a signal to the group, if there is one still; before it, the stacks of its Pythons go into the log."""
        self.sent = self.sent if self.sent == signal.SIGKILL else signum
        if stacks:
            with contextlib.suppress(OSError):   # its log may be gone
                self.dump_stacks(stacks)
        with self.lock:
            if not self.reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signum)
                    if signum != signal.SIGKILL:         # one that is stopped would not see it
                        os.killpg(self.pid, signal.SIGCONT)

    def dump_stacks(self, why: str) -> None:
        """Ask each Python process for the stacks of its threads, one after the other. Raises OSError.

        PYTHONFAULTHANDLER=1 makes Python write them to its standard error on STACKS, and then do what that signal
        did before. The runner has it ignored, and so have its children: a test's first Python goes on. Those that
        a Python has started end by it.
        """
        give_up = time.monotonic() + STACKS_S
        with open(self.job.log, "ab", buffering=0) as log:
            log.write(to_bytes(f"\n=== {PROGRAM}: {why} ===\n"))
            for info in self.reaper.members(self):
                with contextlib.suppress(OSError):       # it has ended, or we may not see it
                    program = os.path.basename(os.readlink(f"/proc/{info.pid}/exe"))
                    if "python" not in program or info.name == SWEEPER:
                        continue
                    answers = catches(info.pid, STACKS)
                    about = f"asked by {STACKS.name} for the stacks of" if answers else "there is no faulthandler in"
                    log.write(to_bytes(f"\n=== {PROGRAM}: {about} {info} ===\n"))
                    if answers:
                        send(STACKS, [info])
                        wait_for_quiet(log.fileno(), give_up)

    def wait(self) -> Tuple[int, List[ProcessInfo]]:
        """The exit status, once all processes of the attempt have ended, and those that it left to be killed."""
        # Waiting without reaping keeps the number of the group ours until the group has been killed.
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:                            # macOS before Python 3.13
            self.popen.wait()
        leaked = []
        if self.reaper.has_orphans():
            leaked = self.sweep()
            self.signal(signal.SIGKILL)      # what /proc does not show
        with self.lock:
            status = self.popen.wait()
            self.reaped = True
        del self.reaper.attempts[self.pid]
        return status, leaked

    def sweep(self) -> List[ProcessInfo]:
        """End what the shell has left, after its grace period if it has one; returns what nobody had told to end."""
        if self.sent == signal.SIGINT:   # which the shell's background jobs ignore
            self.signal(signal.SIGTERM)
        linger = time.monotonic() + LINGER_S
        told: Set[int] = set()
        left = self.reaper.members(self)
        while left and self.sent != signal.SIGKILL and (self.sent or time.monotonic() < linger):
            if self.sent:                # those that have left the group have not heard of it
                send(signal.SIGTERM, (info for info in left if info.group != self.pid and info.pid not in told))
                told.update(info.pid for info in left)
            time.sleep(FOLLOW_S if self.sent else SWEEP_POLL_S)
            left = self.reaper.members(self)
        leaked = [] if self.sent else [info for info in left if info.pid not in self.reaper.unclaimed]
        self.reaper.nameless += [info for info in left if info.pid in self.reaper.unclaimed]
        give_up = time.monotonic() + KILLED_S
        while left and time.monotonic() < give_up:
            send(signal.SIGKILL, left)
            time.sleep(SWEEP_POLL_S)
            left = self.reaper.members(self)
        self.stuck = left
        return leaked


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal. Raises OSError."""
    with open(f"/proc/{pid}/status", "rb") as file:
        caught = re.search(rb"^SigCgt:\s*([0-9a-f]+)", file.read(), re.MULTILINE)
    return caught is not None and bool(int(caught.group(1), 16) >> (signum - 1) & 1)


def wait_for_quiet(descriptor: int, give_up: float) -> None:
    """Wait until a file that is to grow has stopped growing, on the monotonic clock until `give_up` at most."""
    first = before = os.fstat(descriptor).st_size
    looks = 0
    while looks < (3 if before > first else 20) and time.monotonic() < give_up:
        time.sleep(SWEEP_POLL_S)
        size = os.fstat(descriptor).st_size
        looks = looks + 1 if size == before else 0
        before = size


def open_log(path: str) -> int:
    """A descriptor of an empty log. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags, 0o666)
    os.makedirs(os.path.dirname(path), exist_ok=True)    # a test has taken its folder away
    return os.open(path, flags, 0o666)


def run_job(launch: Launch, job: Job, reaper: Reaper, health: Health, post: Callable[[Event], None]) -> None:
    """Run one attempt and post what happens: Started and Exited, or Broken. Never raises."""
    test, lease, process = launch.test, launch.lease, None
    try:
        before = file_signature(test.junit)
        log = open_log(job.log)
        try:
            process = Process(job, reaper, log)
        finally:
            os.close(log)
        post(Started(time.monotonic(), test, process))
        status, leaked = process.wait()
        at = time.monotonic()
        fault, failures = junit_fault(test.junit, before)
        if (status or failures) and is_full(job.log):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), job.log)
        cause = find_cause(status, job) if status or failures else Cause()
        sick = [Sick(device, f"{process.stuck[0]} cannot be killed") for device in lease.devices if process.stuck]
        sick += health.examine(lease)
        post(Exited(at, test, status, fault, failures, cause, tuple(map(str, leaked)), tuple(sick)))
    except BaseException as error:  # a thread that dies in silence would hang the run
        if process is not None:
            process.signal(signal.SIGKILL)
        if isinstance(error, OSError):
            post(Broken(time.monotonic(), test, f"cannot run {test.label}: {error}"))
        else:
            post(Broken(time.monotonic(), test, f"internal error, {error!r}", traceback.format_exc()))


def build_script(test: Test, mask: Mapping[str, str]) -> str:
    """The bash text of a test: its shell state, its mask, its command, each at its own line number.

    Bash then names the same line in its messages as `bash LIST` does. State that an earlier test has shown
    runs silently. The mask is set again after the state (and what BASH_ENV names), which may have changed it.
    """
    shell = test.shell
    pieces = [StateLine(at, SILENT.format(text)) for at, text in shell.lines[:shell.shown]]
    pieces += shell.lines[shell.shown:shell.held]
    values = " ".join(f"{name}={shlex.quote(value)}" for name, value in mask.items())
    changed = shell.held or os.environ.get("BASH_ENV")
    again = f"{{ export {values}; }} 2>/dev/null; " if values and changed else ""
    pieces.append(StateLine(test.line, again + test.command))
    fits = sum(len(to_bytes(text)) for _, text in pieces) + test.line < SCRIPT_BYTES
    parts: List[str] = []
    line = 1
    for at, text in pieces:
        parts.append(("\n" * (at - line if fits else 1) or ("; " if parts else "")) + text)
        line = at + text.count("\n")
    return "".join(parts) + "\n\n"       # with text to come, bash does not exec the command, and tells how it died


# What the shell of a script does before the script, by BASH_ENV. Its DEBUG trap sees every simple command first; while
# tests are running, and for each that is a test itself, it asks the runner, which answers in bash.
# A trap that ends with a failure skips the command. Nothing in it may show under `set -x`, nor change what
# the script sees: `$?`, `$_`, its options, its standard streams.
HOOK = r"""
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "run_tests.py: error: bash $BASH_VERSION is too old to run a script in parallel; put bash 4.4 on PATH" >&2
  exit 3
fi
unset RUN_TESTS_LABEL RUN_TESTS_SLOT RUN_TESTS_ATTEMPT
declare -A _rt_files _rt_lines
_rt_own=$'\n'$(compgen -bk)$'\n'       # builtins and reserved words
_rt_shell=$BASHPID _rt_pending= _rt_trapped= _rt_careful= _rt_over= _rt_count=0

_rt_ask() {      # sends words, does what is answered
  local _rt_answer=
  builtin printf '%s\0' "$#" "$@" >&"$_rt_out"
  IFS= TMOUT=0 builtin read -r -d '' -u "$_rt_in" _rt_answer
  set -- "${_rt_arguments[@]}"
  eval "$_rt_answer"
}
_rt_hook() {     # $?, the command, its line, the positional parameters, $_, which so stays what it is
  local - _rt_flags=$- _rt_skip=
  set +aeuvx
  if [[ $BASHPID == "$_rt_shell" && ! $_rt_over && ! -e /dev/fd/197 ]]; then    # else $2 is stale
    local _rt_status=$1 _rt_command=$2 _rt_line=$3 _rt_arguments=("${@:4:$#-4}")
    _rt_step
  fi
  [[ $_rt_skip ]]
}
_rt_step() {
  local _rt_source=${BASH_SOURCE[2]:-main} _rt_place
  [[ ${_rt_files[$_rt_source]-} ]] || _rt_ask scan "$_rt_source" "$PWD"
  _rt_place=${_rt_lines[${_rt_files[$_rt_source]}:$_rt_line]-}
  [[ ! $_rt_trapped ]] || _rt_keep_end
  local _rt_name=${_rt_command%%[$' \t\n']*}
  [[ ${FUNCNAME[2]-} != "$_rt_name" ]] || return         # a function is seen where it is called and where it begins
  [[ ! $_rt_careful || $_rt_place == *s* ]] || _rt_join  # the commands of a trap for ERR are not told
  if [[ $_rt_place == *s* || $_rt_pending || $_rt_handlers == *" $_rt_name "* ]]; then
    _rt_ask command "$_rt_source" "$_rt_line" "$_rt_command" "$_rt_place"
  fi
  [[ $_rt_command != trap* ]] || _rt_trapped=1
}
_rt_hand() {     # hands over the test whose words are in _rt_label, _rt_junit, _rt_mask, _rt_first, _rt_handler
  local _rt_why= _rt_marked= _rt_level=0 _rt_reads= _rt_n _rt_called
  [[ $_rt_own != *$'\n'"$_rt_first"$'\n'* ]] || _rt_why='bash runs it itself'
  if [[ $_rt_flags == *u* ]]; then
    for _rt_n in "${_rt_names[@]}"; do
      if [[ $_rt_n == [1-9]* && $_rt_n -gt ${#_rt_arguments[@]} || $_rt_n != [1-9]* && ! -v $_rt_n ]]; then
        _rt_why="$_rt_n is not set"
      fi
    done
  fi
  [[ ! $(builtin jobs -pr) ]] || _rt_why='the script has a job in the background'
  [[ ! /dev/fd/0 -ef /dev/fd/$_rt_stdin ]] || _rt_reads=1
  [[ /dev/fd/1 -ef /dev/fd/$_rt_stream && /dev/fd/198 -ef /dev/fd/$_rt_stream ]] || _rt_why='its output is redirected'
  for ((_rt_n = 0; _rt_n < ${#FUNCNAME[@]} - 1; _rt_n++)); do
    [[ ${_rt_lines[${_rt_files[${BASH_SOURCE[_rt_n + 1]:-main}]-}:${BASH_LINENO[_rt_n]}]-} != *w* ]] || _rt_marked=1
    [[ ${FUNCNAME[_rt_n]} != source ]] || ((++_rt_level))
  done
  builtin printf -v _rt_called '%q ' "${_rt_handler[@]}"
  [[ ! $_rt_junit || $_rt_junit == /* ]] || _rt_junit=$PWD/$_rt_junit
  _rt_snapshot >|"$_rt_folder/$((++_rt_count))" || _rt_why='its state cannot be kept'
  _rt_ask test "$_rt_folder/$_rt_count" "$_rt_why" "$_rt_marked" "$_rt_level" "$_rt_flags" "$_rt_reads" \
    "$_rt_label" "$_rt_junit" "$_rt_mask" "$_rt_first" "$_rt_called"
}
_rt_snapshot() { # bash that makes another shell like this one
  builtin printf 'cd -- %q\nunset OLDPWD\n' "$PWD"
  umask -p
  for _rt_n in c d f l m n s t u v; do
    builtin printf 'ulimit -S%s ' "$_rt_n"
    ulimit "-S$_rt_n"
  done
  shopt -p
  set +o
  declare -p
  declare -f
  declare -Fx
  alias -p
  builtin printf 'set --'
  [[ ${#_rt_arguments[@]} == 0 ]] || builtin printf ' %q' "${_rt_arguments[@]}"
  for ((_rt_n = 0; _rt_n < _rt_level; _rt_n++)); do builtin printf '\nPS4=${PS4:0:1}$PS4'; done
  builtin printf '\nunset "${!_rt_@}"\nunset -f _rt_{ask,hook,step,hand,snapshot,join,return,handle,end,keep_end}\n'
  builtin printf 'shopt -u extdebug\nset +vxeuaTE\n'
  [[ $_rt_flags != *[aux]* ]] || builtin printf 'set -%s\n' "${_rt_flags//[!aux]/}"
}
_rt_join() {     # waits until all tests have ended; the answer calls handlers
  [[ $_rt_pending ]] || return
  _rt_pending=
  local _rt_level=0 _rt_n
  for _rt_n in "${FUNCNAME[@]}"; do
    case $_rt_n in source|_rt_ask|_rt_hook) ((++_rt_level)) ;; esac      # each shows one level deeper
  done
  _rt_ask join "$_rt_level"
}
_rt_return() { return "$1"; }
_rt_handle() {   # the status of a test, its handler and the options at its place
  local PS4=$'\1'$PS4 _rt_text=$2 _rt_set=${3//[!aux]/}
  _rt_text="{ ${_rt_set:+set -$_rt_set; }_rt_return $1; } 2>/dev/null"$'\n'"$_rt_text"$'\n'"{ set +aux; } 2>/dev/null"
  set -- "${_rt_arguments[@]}"
  { eval "$_rt_text"; } 2>&198
  _rt_ask handled
}
_rt_end() {
  local _rt_status=$? - _rt_flags=$- _rt_arguments=()
  set +aeuvx
  if [[ $BASHPID == "$_rt_shell" ]]; then
    [[ $(trap -p HUP INT TERM) ]] || trap : HUP INT TERM # the rest of its EXIT trap is to run
    _rt_join
    _rt_over=1
  fi
  return "$_rt_status"
}
_rt_keep_end() { # the end of the script waits too, whatever trap it has set for it
  local _rt_text=$(trap -p EXIT)
  _rt_trapped= _rt_careful=
  trap -p ERR RETURN >|"$_rt_folder/trap"
  [[ ! -s $_rt_folder/trap ]] || _rt_careful=1
  [[ $_rt_text != *_rt_end* ]] || return
  eval "set -- ${_rt_text#trap -- }"
  trap -- "{ _rt_end && :; } 197>&2 198>&2 2>/dev/null${1:+$'\n'$1}" EXIT
}
_rt_keep_end
_rt_trap='{ if _rt_hook "$?" "$BASH_COMMAND" "$LINENO" "$@" "$_"; then ! : "$_"; fi; } 198>&2 2>/dev/null'
trap 'shopt -s extdebug; set +E -T; trap "$_rt_trap" DEBUG; '"$_rt_trap" DEBUG
"""


OWN_LINES = re.compile(rb"\{ (?:if _rt_hook|_rt_end) .*2>/dev/null\n")       # which `set -v` shows


class Asked(NamedTuple):
    """The shell of a script asks what to do, or has ended; it had printed `offset` bytes before."""

    offset: int
    words: Sequence[str]


class ScriptShell:
    """The bash that runs a script, the log that keeps what it prints, and the pipes by which its hook asks.

    A pipe takes what it prints, so that it can say `echo >/dev/stderr`; it waits for each answer, so that we know
    what it had printed before it asked.
    """

    FIRST_FD = 200                       # scripts use small numbers, bash its own from 255 down

    def __init__(self, job: Job, folder: str, handlers: Iterable[str], post: Callable[[Any], None]) -> None:
        self.job, self.folder, self.handlers, self.post, self.size = job, folder, handlers, post, 0
        self.process: Optional[Process] = None
        self.sent, self.status = 0, EXIT_MACHINE         # the last signal; the exit status
        self.fault: Optional[OSError] = None     # why it could not be started, or what it printed not be kept
        self.output, self.stream = os.pipe()
        self.questions, self.ask = os.pipe()
        self.answers_end, self.answers = os.pipe()
        self.over, self.end = os.pipe()
        os.set_blocking(self.output, False)

    def start(self, reaper: Reaper) -> None:
        """Start it. Raises OSError."""
        self.log = open_log(self.job.log)
        threading.Thread(target=self.run, args=(reaper,), daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()

    def run(self, reaper: Reaper) -> None:
        """Run the script until all that it has started has ended. Children of the main thread would be orphans."""
        try:
            self.process = self.spawn(reaper)
            if self.sent:                # meanwhile
                self.process.signal(self.sent)
            self.status, _ = self.process.wait()
        except OSError as error:
            self.fault = error
        finally:
            os.close(self.end)

    def spawn(self, reaper: Reaper) -> Process:
        """The process of the script, with the hook. Raises OSError."""
        own = {name: fcntl.fcntl(descriptor, fcntl.F_DUPFD, self.FIRST_FD)
               for name, descriptor in (("in", self.answers_end), ("out", self.ask), ("stream", self.stream),
                                        ("stdin", self.stream if sys.stdin is None else 0))}
        hook, outer = os.path.join(self.folder, "hook"), os.environ.get("BASH_ENV")
        with open(hook, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("unset BASH_ENV\n" if outer is None else
                       f"export BASH_ENV={shlex.quote(outer)}\n. \"$BASH_ENV\"\n")
            file.writelines(f"_rt_{name}={descriptor}\n" for name, descriptor in own.items())
            file.write(f"_rt_folder={shlex.quote(self.folder)} _rt_handlers=' {' '.join(self.handlers)} '\n{HOOK}")
        try:
            job = self.job._replace(environment={**self.job.environment, "BASH_ENV": hook})
            return Process(job, reaper, self.stream)
        finally:                         # our own ends of what it writes to stay open: poll would not rest without
            for descriptor in (*own.values(), self.answers_end):
                os.close(descriptor)

    def signal(self, signum: int) -> None:
        """Send a signal to the script."""
        self.sent = signum
        if self.process is not None:
            self.process.signal(signum)

    def listen(self) -> None:
        """Keep what is printed, post what is asked."""
        ready, asked = poll(), b""
        for descriptor in (self.output, self.questions, self.over):
            ready.register(descriptor)
        is_over = False
        while not is_over:
            events = dict(ready.poll())
            is_over = self.over in events
            try:
                self.keep()
            except OSError as error:
                self.fault = error
                self.signal(signal.SIGKILL)
            if self.questions in events and not is_over:
                asked += os.read(self.questions, COPY_BYTES)
                count, _, rest = asked.partition(b"\0")
                words = rest.split(b"\0")
                if count.isdigit() and len(words) > int(count):
                    asked = b""
                    self.post(Asked(self.size, [word.decode("utf-8", "surrogateescape")
                                                for word in words[:int(count)]]))
        self.post(Asked(self.size, ["end"]))

    def keep(self) -> None:
        """Append to the log what has been printed since the last time. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = OWN_LINES.sub(b"", os.read(self.output, COPY_BYTES))      # it does not end: we hold it open
                while data:
                    written = os.write(self.log, data)
                    data, self.size = data[written:], self.size + written

    def answer(self, code: str) -> None:
        """Let the shell do what it has asked for."""
        data = to_bytes(code) + b"\0"
        with contextlib.suppress(OSError):       # it has been killed
            while data:
                data = data[os.write(self.answers, data):]


def free_port(slot: int, slots: int) -> int:
    """A TCP port for a slot that nobody listens on now, from a sequence that no other slot draws from."""
    first = PORT_FIRST + os.getpid() * 16 % PORT_BASES + slot
    for port in range(first, PORT_LAST + 1, slots):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind(("", port))
                return port
    return first


def file_signature(path: Optional[str]) -> Optional[Tuple[int, int, int]]:
    """What changes when a file is written anew; None if there is none."""
    with contextlib.suppress(OSError):
        status = os.stat(path or "")
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


MISSING, STALE = "missing", "stale, from an earlier run"         # of a JUnit file: nothing in it is this attempt's


def junit_cases(path: str) -> Iterator[ElementTree.Element]:
    """The complete cases of a JUnit file, one after the other. Raises ParseError where it breaks off."""
    return (element for _, element in ElementTree.iterparse(path) if element.tag == "testcase")


def junit_fault(path: Optional[str], before: Optional[Tuple[int, int, int]]) -> Tuple[str, int]:
    """Why a JUnit file cannot be used (`missing`, `stale`, `truncated`), if so, and how many cases have failed."""
    if path is None:
        return "", 0
    after = file_signature(path)
    if after is None or after == before:
        return (MISSING if after is None else STALE), 0
    failures = 0
    try:
        for case in junit_cases(path):
            failures += case.find("failure") is not None or case.find("error") is not None
            case.clear()
    except ElementTree.ParseError:
        return "truncated", failures
    except (OSError, ValueError, LookupError) as error:      # an encoding that the parser does not know
        return f"unreadable ({getattr(error, 'strerror', error)})", failures
    return "", failures


# Causes: what a log's end says, as a human would sort it.

OOM_KILLED = Cause("out of memory (the kernel's OOM killer)")

# What a line of a failed test's log says for certain; the first that is found counts: broken hardware, then what
# is wrong with the machine, then what only follows from other errors. The texts are those of CUDA, HIP, PyTorch,
# JAX, NCCL, pytest and the kernel, as public bug reports show them.
SIGNATURES: Sequence[Tuple[str, str, Blame]] = (
    (r"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE|\bcudaErrorECCUncorrectable(?:\)|: |' in )",
     "uncorrectable ECC error", Blame.DEVICE),
    (r"\bGPU is lost\b|fallen off the bus|\bGPU requires reset\b|nable to determine the device handle for [Gg][Pp][Uu]",
     "GPU fallen off the bus", Blame.DEVICE),
    (r"driver version is insufficient for CUDA runtime|NVIDIA driver on your system is too old|\bError 80[34]: "
     r"|Driver/[Ll]ibrary version mismatch|forward compatibility was attempted on non supported HW"
     r"|unsupported display driver / cuda driver combination"
     r"|\bcudaErrorInsufficientDriver(?:\)|: |' in )|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "driver older than the runtime", Blame.MACHINE),
    (r"no CUDA-capable device is detected|\bNo (?:CUDA|HIP|XPU) GPUs are available|Found no NVIDIA driver on your"
     r"|CUDA_ERROR_(?:NO_DEVICE|SYSTEM_NOT_READY)\b|\bsystem not yet initialized\b"
     r"|\bcudaError(?:NoDevice|SystemNotReady)(?:\)|: |' in )|^No devices were found"
     r"|CUDA-capable devices are busy or unavailable"
     r"|couldn't communicate with the NVIDIA driver|^Failed to initialize NVML: ", "no usable GPU", Blame.MACHINE),
    (r"\[Errno 98\] Address already in use|EADDRINUSE|failed to listen on any local network address",
     "port already in use", Blame.TEST),
    (r"(?:CUDA|HIP|XPU)(?: driver)?(?: error:)? out of memory\b|\b(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY\b"
     r"|OutOfMemoryError: (?:CUDA|HIP|XPU)|cudaErrorMemoryAllocation\b.*out of memory|Cuda failure .*out of memory"
     r"|R(?:ESOURCE_EXHAUSTED|esource exhausted): .*Out of memory", "CUDA out of memory", Blame.TEST),
    (r"illegal memory access was encountered|_ERROR_ILLEGAL_ADDRESS\b|Memory access fault by GPU node",
     "illegal memory access", Blame.TEST),
    (r"device-side assert triggered|CUDA_ERROR_ASSERT\b", "device-side assert", Blame.TEST),
    (r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED\b", "unspecified launch failure", Blame.STARTUP),
    (r"No space left on device", "no space left on device", Blame.TEST),
    (r"(?:^|[\s.])MemoryError(?::|$)|std::bad_alloc|Cannot allocate memory|can't allocate memory",
     "out of memory (of the machine)", Blame.TEST),
    (r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
     r"|DistStoreError: Timed out|NCCL.*\btime(?:d )?out\b", "NCCL timeout", Blame.TEST),
    (r"(?:^|\] |^E +| - )(?:ImportError|ModuleNotFoundError): |^ImportError while ", "import error", Blame.TEST),
    (r"Fatal Python error: Segmentation fault|: +\d+ Segmentation fault|\(SIGSEGV\)|exitcode *: -11\b",
     "segmentation fault", Blame.TEST),
    (r"\bno tests ran in \d|^collected 0 items\s*$|^=* ?\d+ deselected in \d", "no tests collected", Blame.TEST),
)
# Lines that only quote such a text: source in a traceback, a warning, `set -x`, the result of another test case.
QUOTING_LINE = (r"^(?:>|\+ |[A-Z_]+=|=* ?\d+ (?:failed|passed|errors?)\b.* in [\d.]+s)"
                r"|UserWarning:|\b(?:PASSED|SKIPPED|XFAIL)\b|^\[ +(?:OK|RUN) +\]")
ERROR_LINES = (                          # the first of these that matches a line, from the log's end, is the cause
    # pytest shows the exception so, and below it, in the same way, what it says on further lines
    r"^E +((?:\w+\.)*\w*(?:Error|Exception|Exit|Failed|Failure|Interrupt|Timeout)\b.*)$", r"^E +(assert .*)$",
    r"^E +(\S.*)$",
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)(?:: .*)?)$",
    r"^(.*(?i:\b(?:error|fatal|failed|failure|abort(?:ed)?|terminate[d]?|panic)\b).*)$",
)
ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"


def find_cause(status: int, job: Job) -> Cause:
    """Why a job that has not passed has not, by its status and the end of its log."""
    if death_of(status) == "SIGKILL" and oom_kills() > job.oom_kills:
        return OOM_KILLED
    return diagnose(status, tail_of(job.log, CAUSE_BYTES))


def diagnose(status: int, log: str) -> Cause:
    """The cause that a log's end shows: a known one, else its last error line without what differs between runs."""
    lines = [plain(line[:LINE_CHARS * 5]) for line in log.splitlines()]
    lines = [line for line in lines if not re.search(QUOTING_LINE, line)]
    for pattern, text, blame in SIGNATURES:
        if any(re.search(pattern, line) for line in lines):
            return Cause(text, blame)
    death = death_of(status)
    if death:
        return Cause("segmentation fault" if death == "SIGSEGV" else f"killed by {death}")
    for pattern in ERROR_LINES:
        for line in reversed(lines):
            match = re.search(pattern, line)
            if match:
                return Cause(normalise(match.group(1)[:LINE_CHARS]))
    last = normalise(next(filter(None, reversed(lines)), "")[:LINE_CHARS])
    return Cause(f"exit status {status}, {f'last line: {last}' if last else 'without output'}")


def plain(text: str) -> str:
    """A line without terminal escapes and control characters."""
    return CONTROL.sub(" ", re.sub(ESCAPES, "", text)).strip()


def normalise(line: str) -> str:
    """An error line without what differs between runs of one failure: paths, addresses, ids, numbers."""
    line = re.sub(r"(?<![\w/])(?:\.{0,2}|~)(?:/[\w.+@~-]+)+/?", "PATH", line)
    line = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID", line)
    line = re.sub(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "ID", line)
    return re.sub(r"\d+(?:\.\d+)*(?:e[+-]?\d+)?", "N", line)


def oom_kills(files: Iterable[str] = ()) -> int:
    """How many processes the kernel has killed for want of memory: on this machine and in this cgroup."""
    counts = 0
    for path in files or ("/proc/vmstat", *own_cgroup_files()):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            counts += sum(map(int, re.findall(rb"^oom_kill (\d+)", file.read(), re.MULTILINE)))
    return counts


def own_cgroup_files() -> List[str]:
    """Where the cgroup of this process counts its OOM kills, in both versions of cgroups."""
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        return [f"/sys/fs/cgroup/memory{path}/memory.oom_control" if kind else f"/sys/fs/cgroup{path}/memory.events"
                for kind, path in re.findall(r"^\d+:(|memory):(.*)$", file.read(), re.MULTILINE)]
    return []


def is_full(path: str) -> bool:
    """Whether there is no room left where a file is."""
    with contextlib.suppress(OSError):
        status = os.statvfs(os.path.dirname(path) or ".")
        return status.f_blocks > 0 and (status.f_bavail if os.geteuid() else status.f_bfree) == 0
    return False


# ---------------------------------------------------------------------------------------------------
# 8. Record: the files that outlive the run. Each line is on disk before the next event is looked at.
# ---------------------------------------------------------------------------------------------------

XML_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Appender:
    """A file that grows line by line and can be restored if a test deletes it. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open(path, "ab+", buffering=0)
        self.end_line()

    def end_line(self) -> None:
        """End a line that a dying run has torn, or a test has left open: it must not swallow ours."""
        size = self.file.seek(0, os.SEEK_END)
        if size and os.pread(self.file.fileno(), 1, size - 1) != b"\n":
            self.write(b"\n")

    def write(self, line: bytes) -> None:
        try:
            written = self.file.write(line)
        except OSError as error:         # it does not say which file
            raise OSError(error.errno, error.strerror, self.path) from None
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def restore(self) -> None:
        """Put the file back, whole, if it has been deleted: we hold it open still."""
        if os.fstat(self.file.fileno()).st_nlink == 0:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            if os.path.islink(self.path):        # a test's
                os.unlink(self.path)
            with self.file as lost:
                self.file = open(self.path, "ab+", buffering=0)
                lost.seek(0)
                shutil.copyfileobj(lost, self.file)


def read_history(options: Options) -> History:
    """What the run's own journal and those of `--history` say. Raises UsageError for one that cannot be read."""
    history = History(options.lists, options.flaky)
    own = journal_path(options)
    paths = [own, *options.history] if os.path.isfile(own) else options.history
    for real, path in {os.path.realpath(path): path for path in paths}.items():      # each file once
        try:
            is_own = real == os.path.realpath(own)
            with open(path, "rb") as file:
                if file.seekable():
                    file.seek(max(0, file.seek(0, os.SEEK_END) - HISTORY_BYTES))
                for line in file:
                    # Torn lines, lines of other tools and of older runners: each costs itself alone, before ours too.
                    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                        history.add(json.loads(line[line.rfind(b'{"event"'):]), is_own)
        except OSError as error:
            raise UsageError(f"--history {path}: cannot be read ({error.strerror}); name a journal") from None
    return history


def journal_path(options: Options) -> str:
    """The run's own journal."""
    return options.journal or os.path.join(options.log_dir, "run_tests.jsonl")


class Record:
    """All that the run writes: logs' directory, journal, `failures`, JUnit files for tests that left none."""

    def __init__(self, options: Options, run: str) -> None:
        self.options, self.run, self.log_dir = options, run, options.log_dir
        self.failed: Optional[Appender] = None   # `failures`, once there is one
        self.failures = os.path.join(options.fail_dir or options.log_dir, "failures")
        try:
            os.makedirs(options.log_dir, exist_ok=True)
            self.lock = lock_directory(options.log_dir)
            os.makedirs(os.path.dirname(self.failures), exist_ok=True)
            if options.junit:
                folder = os.path.dirname(options.junit) or "."
                os.makedirs(folder, exist_ok=True)
                if os.path.isdir(options.junit) or not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, "cannot be written", options.junit)
            for stale in filter(None, [options.junit, None if options.fail_dir else self.failures]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(stale)
            if options.fail_dir is not None and (os.path.isdir(self.failures) or not os.access(
                    self.failures if os.path.exists(self.failures) else options.fail_dir, os.W_OK)):
                raise PermissionError(errno.EACCES, "not a file that can be written", self.failures)
            self.journal = Appender(journal_path(options))
        except OSError as error:
            raise MachineError(f"cannot write {error.filename} ({error.strerror}); "
                               "name a place with --log-dir, --fail-dir, --journal or --junit") from None

    def note(self, event: str, **values: Any) -> None:
        """Append one event to the journal, one JSON object a line: the only state that there is. Raises OSError."""
        record = {"event": event, "run": self.run, "time": round(time.time(), 3), **values}
        self.journal.write(json.dumps(record).encode("ascii") + b"\n")

    def log_path(self, test: Test, attempt: int = 0) -> str:
        """The log of a test's last attempt, or of an earlier one."""
        return os.path.join(self.log_dir, f"{test.stem}.attempt{attempt}.log" if attempt else f"{test.stem}.log")

    def run_start(self, selection: Selection, machine: Machine) -> None:
        """Journal what is to run and what is not; a run that starts the tests again has to know."""
        options = self.options
        left_out = [*selection.deferred, *itertools.chain.from_iterable(selection.left_out.values())]
        self.note("run_start", version=VERSION, lists=options.lists, tests=len(selection.tests),
                  commit=next(filter(None, map(os.environ.get, COMMIT_VARIABLES)), None),
                  gpus=[device.token for device in machine.devices], directory=os.getcwd(),
                  shard=options.shard and str(options.shard),
                  selected=[test.name for test in selection.tests if test not in selection.deferred],
                  left_out=[test.name for test in left_out])
        if options.max_gpus is not None or options.only:
            write_deferred(selection, options)

    def test_start(self, test: Test, running: Running, pid: int) -> None:
        lease = running.lease
        self.note("test_start", test=test.key, label=test.label, attempt=running.attempt, pid=pid,
                  slot=lease.slot, gpus=lease.tokens, log=self.log_path(test))

    def put_away(self, result: Result) -> None:
        """Keep the log and the JUnit file of an attempt from the next one (`x.attempt1.log`)."""
        junit, suffix = result.test.junit, f".attempt{result.attempt}"
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.log_path(result.test), self.log_path(result.test, result.attempt))
        if junit and result.junit_fault not in (MISSING, STALE):
            with contextlib.suppress(FileNotFoundError):
                os.replace(junit, junit + suffix)    # no `.xml` at its end: CI is to read the last attempt's alone

    def test_end(self, result: Result) -> None:
        """Note a failure, mend the JUnit file."""
        test = result.test
        if self.options.fails(result.outcome):
            if self.failed is None:
                os.makedirs(os.path.dirname(self.failures) or ".", exist_ok=True)
                self.failed = Appender(self.failures)
            self.failed.end_line()
            self.failed.write(to_bytes(test.label) + b"\n")
        never_ran = result.status is None and not result.outcome.is_ok()     # its file is of an earlier run, if any
        if test.junit and (result.junit_fault or never_ran):
            keeps = not never_ran and result.junit_fault not in (MISSING, STALE)
            try:
                write_xml(test.junit, mended_junit(result, "" if never_ran else tail_of(self.log_path(test)), keeps))
            except OSError as error:     # the verdict is in the journal already
                warn(f"cannot write {test.junit} ({error.strerror}); the test has no JUnit file")

    def attempt_end(self, result: Result) -> None:
        """Journal how an attempt has ended; the last one's outcome is the test's."""
        test = result.test
        said = {"reason": result.reason, "cause": result.cause.text, "leaked": result.leaked}
        self.note("test_end", test=test.key, label=test.label, attempt=result.attempt,
                  outcome=result.outcome.value, status=result.status, signal=death_of(result.status) or None,
                  seconds=round(result.seconds, 3), need=test_need(test),
                  **{name: value for name, value in said.items() if value})

    def restore(self) -> None:
        """Put back what a test has deleted. Raises OSError."""
        for file in filter(None, (self.journal, self.failed)):
            file.restore()

    def note_crash(self, details: str) -> str:
        """Keep the traceback of an internal error beside the logs; returns its path."""
        path = os.path.join(self.log_dir, "run_tests.traceback")
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(details)
        return path

    def run_end(self, results: Iterable[Result], code: int, quarantined: Iterable[Sick]) -> None:
        counts = collections.Counter(result.outcome.value for result in results)
        self.note("run_end", exit=code, outcomes=dict(counts),
                  quarantined={sick.device.token: sick.reason for sick in quarantined})


def write_deferred(selection: Selection, options: Options) -> None:
    """Write the deferred tests as lists that run just them: `deferred.txt`, a second list's `deferred_2.txt`.

    A list's shell state stands above its tests as it did, and `$0` is the list's name still (where bash is 5.0
    or newer). Each line says its attributes itself. `after` names only tests that are deferred too: the others
    have had their run. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        for path in deferred_paths(options):
            os.unlink(path)
    labels = {test.label for test in selection.deferred}
    for path, tests in zip(deferred_paths(options), selection.deferred_lists()):
        name, held = tests[0].file, 0
        lines = [f"# Deferred tests of {CONTROL.sub('?', name)}", f"BASH_ARGV0={shlex.quote(name)}"]
        for test in tests:
            lines += [state.text for state in test.shell.lines[held:test.shell.held]]
            said = spell_attributes(test, labels)
            lines.append(f"{test.source}  #: {said}" if said else test.source)
            held = test.shell.held
        with open(path, "wb") as file:
            file.write(to_bytes("\n".join(lines) + "\n"))


def deferred_paths(options: Options) -> Iterator[str]:
    """The files for deferred tests: of the first list that has any, of the second, and so on. None is a list in use."""
    in_use = {os.path.realpath(name) for name in options.lists}
    names = itertools.chain(["deferred.txt"], map("deferred_{}.txt".format, itertools.count(2)))
    paths = (os.path.join(options.log_dir, name) for name in names)
    return (path for path in paths if os.path.realpath(path) not in in_use)


def spell_attributes(test: Test, labels: Container[str]) -> str:
    """A test's attributes as `key=value` words; `labels` are those that `after` may name."""
    said = dict(vars(test.attributes), after=tuple(label for label in test.attributes.after if label in labels))
    if re.search(r" #\d+$", test.label):        # its twin may not be there
        said["label"] = test.label
    return " ".join(shlex.quote(f"{key}={spell(value)}") for key, value in said.items() if value not in (None, ()))


def spell(value: Any) -> str:
    """An attribute's value as a list has it."""
    if isinstance(value, (int, float)):
        return "all" if value == ALL_GPUS else f"{value:f}".rstrip("0").rstrip(".")
    return value if isinstance(value, str) else ",".join(value)


def lock_directory(path: str) -> int:
    """A descriptor that holds a directory until it is closed. Raises MachineError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    give_up, has_told = time.monotonic() + HELD_S, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            is_nested = "RUN_TESTS_RUN" in os.environ        # to wait for one's own parent is in vain
            if is_nested or time.monotonic() >= give_up:
                who = "the run that has started this one, or another," if is_nested else "another run"
                raise MachineError(f"{who} is writing to {path}; give this one a --log-dir of its own") from None
            if not has_told:
                has_told = True
                warn(f"another run is writing to {path}; waiting {HELD_S:.0f} s for its end")
            time.sleep(FOLLOW_S)
        except OSError:                  # a file system without locks
            return descriptor


def test_need(test: Test) -> Union[int, float, str]:
    """A test's need as JSON and lists can say it."""
    return "all" if test.gpus == ALL_GPUS else test.gpus if test.gpus % 1 else int(test.gpus)


def tail_of(path: str, size: int = TAIL_BYTES) -> str:
    """The end of a log as text."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read().decode("utf-8", "replace")
    return ""


def xml_text(text: str) -> str:
    """Text without what XML cannot hold."""
    return XML_INVALID.sub("?", text)


def junit_of(name: str, seconds: float, cases: Sequence[ElementTree.Element]) -> ElementTree.Element:
    """A JUnit file with these cases in one suite."""
    counts = {tag: str(sum(case.find(tag) is not None for case in cases)) for tag in ("failure", "error", "skipped")}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites, "testsuite", name=xml_text(name), tests=str(len(cases)), failures=counts["failure"],
        errors=counts["error"], skipped=counts["skipped"], time=f"{seconds:.3f}")
    suite.extend(cases)
    return suites


def mended_junit(result: Result, tail: str, keeps: bool) -> ElementTree.Element:
    """In place of a JUnit file that cannot be used: its complete cases, if it `keeps` them, and how the test ended."""
    why = f"its JUnit file is {result.junit_fault}" if result.junit_fault else result.reason or "it was not started"
    message = f"{result.verdict()}; {why}"
    cases: List[ElementTree.Element] = []
    if keeps:
        with contextlib.suppress(ElementTree.ParseError, OSError, ValueError, LookupError):
            cases.extend(junit_cases(result.test.junit or ""))       # those before the fault stay
    cases = [case for case in cases if case.get("name")]     # pytest leaves one without, if it is ended in a test
    case = ElementTree.Element("testcase", classname=PROGRAM, name=xml_text(result.test.label),
                               time=f"{result.seconds:.3f}")
    if not result.outcome.is_ok():
        ElementTree.SubElement(case, "error", message=xml_text(message), type=result.outcome.value)
    ElementTree.SubElement(case, "system-out").text = xml_text(f"{message}\n{tail}")
    return junit_of(result.test.label, result.seconds, [*cases, case])


def summary_case(attempts: Sequence[Result], record: Record) -> ElementTree.Element:
    """One test's case in the summary of the run, its attempts as Maven's surefire has them.

    A test that is flaky has a `flakyFailure` (or `flakyError`) for each attempt before, one that did not pass has
    its first failure, and a `rerunFailure` for each that followed. An attempt that a GPU has spoilt is none.
    """
    last, test = attempts[-1], attempts[-1].test
    case = ElementTree.Element("testcase", classname=xml_text(test.file), name=xml_text(test.label),
                               time=f"{last.seconds:.3f}")
    if last.outcome is Outcome.DEFERRED:
        ElementTree.SubElement(case, "skipped", message=f"deferred by {last.reason}")
    is_ok = last.outcome.is_ok()
    told = attempts[:-1] if last.outcome is Outcome.FLAKY else [] if is_ok else attempts
    for result in told:
        log = record.log_path(test, 0 if result is last else result.attempt)
        tail = tail_of(log) if result.status is not None else ""
        message = xml_text(": ".join(dict.fromkeys(filter(None, [result.verdict(), result.cause.text, result.reason]))))
        is_first = result is attempts[0] and not is_ok
        problem = "failure" if result.outcome is Outcome.FAILED else "error"     # JUnit's words
        tag = problem if is_first else ("flaky" if is_ok else "rerun") + problem.capitalize()
        element = ElementTree.SubElement(case, tag, message=message, type=result.outcome.value)
        if is_first:
            element.text = xml_text(tail)
        else:
            ElementTree.SubElement(element, "stackTrace").text = message
            ElementTree.SubElement(element, "system-out").text = xml_text(tail)
    return case


def write_xml(path: str, root: ElementTree.Element) -> None:
    """Write an XML file whole or not at all. Raises OSError."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="utf-8"))
        os.replace(path + ".tmp", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        raise


# ---------------------------------------------------------------------------------------------------
# 9. Report: what a reader of the trace sees.
# ---------------------------------------------------------------------------------------------------

def warn(message: str, name: str = PROGRAM + ": ") -> None:
    """One line on stderr, in the program's name unless the message begins with a place of its own."""
    if sys.stderr is not None:
        try:
            print(f"{name}{message}", file=sys.stderr, flush=True)
        except OSError:
            silence(sys.stderr)


def silence(stream: Any) -> None:
    """Let a stream that nobody can read end in the null device: else Python flushes it at exit, and complains."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Trace:
    """The runner's standard output. When its reader goes away (`| head`), the run goes on without it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.is_open = True
        self.at_line_start = True
        self.is_github = os.environ.get("GITHUB_ACTIONS") == "true"
        self.has_escapes = self.has_folds = False        # since the last calm

    def write(self, data: bytes) -> None:
        """Print bytes; they are on their way at the next flush."""
        self.guarded(self.stream.write, data)
        self.at_line_start = data.endswith(b"\n") if data else self.at_line_start
        self.has_escapes = self.has_escapes or b"\x1b" in data
        self.has_folds = self.has_folds or (self.is_github and b"::group::" in data)

    def calm(self) -> None:
        """After a log, end what it has begun (a title, a colour, a fold of GitHub's), for the lines to come."""
        if self.has_escapes:
            self.write(b"\x1b\\\x1b[0m")
        if self.has_folds:
            self.line("::endgroup::")
        self.has_escapes = self.has_folds = False

    def flush(self) -> None:
        self.guarded(self.stream.flush)

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> None:
        if self.is_open:
            try:
                action(*arguments)
            except OSError as error:
                self.is_open = False
                if not isinstance(error, BrokenPipeError):
                    warn(f"standard output cannot be written ({error.strerror}); going on without it")
                silence(self.stream)

    def line(self, text: str = "") -> None:
        """Print a line of the runner's own, never on the end of a line that a test has left open."""
        text = re.sub(r"##(?=\[|vso\[)", "# #", text)    # Azure obeys these anywhere in a line, in a label too
        self.write((b"" if self.at_line_start else b"\n") + to_bytes(text) + b"\n")

    def copy(self, path: str, offset: int = 0, end: float = math.inf) -> int:
        """Copy a file from `offset` on, up to `end`; returns where it ended. Raises OSError if it cannot be read."""
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while self.is_open:
                data = file.read(int(min(COPY_BYTES, end - offset)))
                if not data:
                    break
                self.write(data)
                offset += len(data)
        return offset


@dataclass
class Console:
    """What of a run is shown, and when. The methods are called in the order in which things happen."""

    trace: Trace
    record: Record
    options: Options
    tests: Sequence[Test]                # all that get an outcome, in list order
    total: int                           # those that are to run
    follow_s = CHORES_S                  # how long the main thread may sleep between two calls of tick

    def begin(self, machine: Machine) -> None:
        """The run starts."""

    def launched(self, test: Test, lease: Lease) -> None:
        """A test has been given its devices."""

    def started(self, test: Test) -> None:
        """Its process is there, and its log is its own."""

    def tick(self) -> None:
        """Nothing has happened for a while."""

    def announced(self, test: Test, seconds: float) -> None:
        """It runs for long."""
        said = last_line(tail_of(self.record.log_path(test)))
        self.remark(f"Slow: {test.label} [{show_duration(seconds)}; {said or 'its log is empty'}]")

    def remark(self, text: str) -> None:
        """Something that is no test's end is worth a line."""
        warn(text)

    def retried(self, result: Result) -> None:
        """An attempt has ended; another follows."""

    def concluded(self, result: Result) -> None:
        """It has its outcome."""

    def announce(self, test: Test) -> None:
        """It has failed."""
        self.trace.line(f"Error: sub-test failed: {test.label}")

    def shows(self, result: Result) -> bool:
        """Whether its log is to be shown."""
        hidden = self.options.output == "none" or (self.options.output == "failures" and result.outcome.is_ok())
        return result.status is not None and not hidden

    def finish(self, results: Sequence[Result], lines: Sequence[str]) -> None:
        """All tests have; these lines sum up, the last ones follow."""


@dataclass
class ParallelConsole(Console):
    """Markers as tests start and end; their logs after that, whole and in list order."""

    finished: int = 0                    # tests that ran to an end, or will not run
    ended: Dict[Test, Result] = field(default_factory=dict)
    replayed: int = 0                    # logs, in list order

    def begin(self, machine: Machine) -> None:
        tokens = [device.token for device in machine.devices]
        self.trace.line(f"Detected {len(tokens)} GPU(s): {' '.join(tokens)}".rstrip())

    def launched(self, test: Test, lease: Lease) -> None:
        self.trace.line(f">>> Starting: {test.label} on {lease.place()}")

    def remark(self, text: str) -> None:
        self.trace.line(f">>> {text}")

    def mark_end(self, result: Result, progress: str) -> None:
        """The marker for the end of an attempt."""
        place = result.lease.place() if result.lease else "CPU"
        self.trace.line(f">>> Finished: {result.test.label} on {place} "
                        f"[{result.verdict()}, {result.seconds:.1f}s, {progress}]")

    def retried(self, result: Result) -> None:
        self.mark_end(result, "to be retried")

    def concluded(self, result: Result) -> None:
        if self.options.fails(result.outcome):
            self.announce(result.test)
        self.finished += result.status is not None or result.outcome is Outcome.BLOCKED
        if result.status is not None:
            self.mark_end(result, f"{self.finished}/{self.total}")
        elif result.outcome is Outcome.BLOCKED:
            self.trace.line(f">>> Blocked: {result.test.label} [{result.reason}, {self.finished}/{self.total}]")
        self.ended[result.test] = result
        ordered = self.options.output == "ordered"
        while ordered and self.replayed < len(self.tests) and self.tests[self.replayed] in self.ended:
            self.replay(self.ended[self.tests[self.replayed]])
            self.replayed += 1

    def replay(self, result: Result) -> None:
        """One log in its frame, byte for byte; a last line without an end gets one, for the frame's sake."""
        if not self.shows(result):
            return
        self.trace.line(f"\n{RULE}\n>>> {result.test.stem}\n{RULE}")
        try:
            self.trace.copy(self.record.log_path(result.test))
        except OSError as error:
            self.trace.line(f"(its log cannot be read: {error.strerror})")
        self.trace.calm()

    def finish(self, results: Sequence[Result], lines: Sequence[str]) -> None:
        if self.options.output in ("replay", "failures"):
            self.trace.line("\n=== Per-test output (replayed from parallel execution) ===")
            for result in results:
                self.replay(result)
            self.trace.line("\n=== End of per-test output ===")
        for line in lines:
            self.trace.line(line)


@dataclass
class SequentialConsole(Console):
    """The trace of `bash LIST`: each test's output as it comes, and nothing of the runner's own before the end."""

    follow_s = FOLLOW_S
    path: str = ""                       # of the log that is growing
    offset: int = 0                      # up to which it has been shown

    def started(self, test: Test) -> None:
        self.path, self.offset = self.record.log_path(test), 0

    def tick(self) -> None:
        if self.path and self.options.output in ("replay", "ordered"):
            self.follow()

    def follow(self) -> None:
        """Show what has come since the last look."""
        with contextlib.suppress(OSError):       # a test may take its log away
            if os.path.getsize(self.path) < self.offset:
                self.offset = 0                  # `>/dev/stderr` has cut it
            self.offset = self.trace.copy(self.path, self.offset)

    def retried(self, result: Result) -> None:
        if self.shows(result):
            self.follow()
        self.path = ""

    def concluded(self, result: Result) -> None:
        if result.status is not None:
            self.retried(result)
        is_known = result.outcome is Outcome.DEFERRED or (result.leaked and result.reason == result.leaks())
        reason = "" if is_known else result.reason
        for what in (reason, result.leaked and f"{result.leaks()}: {first_of(result.leaked)}"):
            if what and not result.outcome.is_unfinished():
                warn(f"{result.test.where}: {result.test.label} {what}")
        if self.options.fails(result.outcome) and (result.test.announces or result.status is None):
            self.announce(result.test)

    def announce(self, test: Test) -> None:
        self.trace.write(to_bytes(f"Error: sub-test failed: {test.label}\n"))       # as `echo` prints it


class ScriptTrace(Console):
    """What a script prints, as it comes while none of its tests runs; else each test's output at its place."""

    follow_s = FOLLOW_S
    is_live = False                      # tests are shown as they run, and nothing more is said of them
    source = os.devnull                  # the script's log, by its descriptor: the script may take its name away
    shown = 0                            # offset
    is_held = False

    def tick(self) -> None:
        super().tick()
        if not self.is_held:
            self.show()

    def show(self, end: float = math.inf) -> None:
        """Show more of what the script has printed."""
        with contextlib.suppress(OSError):
            self.shown = max(self.shown, self.trace.copy(self.source, self.shown, end))

    def handed(self, offset: int) -> None:
        """A test has been handed over: what follows may not be shown yet."""
        if not self.is_held:
            self.show(offset)
        self.is_held = True
        self.total += 1

    def announce(self, _test: Test) -> None:
        """Its handler does."""

    def replay(self, _result: Result) -> None:
        """A log has its place in what the script prints."""

    def show_test(self, result: Result, offset: int, start: int, end: int, shift: int) -> None:
        """Show a test at its offset in what the script prints, then what its handler has printed there.

        `set -x` shows the handler by `shift` deeper than it is.
        """
        self.show(offset)
        if self.shows(result) and not self.is_live:
            with contextlib.suppress(OSError):
                self.trace.copy(self.record.log_path(result.test))
        with contextlib.suppress(OSError), open(self.source, "rb") as file:
            file.seek(start)
            self.trace.write(unshifted(file.read(end - start), shift))

    def release(self, start: int, end: int) -> None:
        """All have been shown; their handlers have printed what is between `start` and `end`."""
        self.show(start)
        self.shown, self.is_held = end, False

    def sum_up(self, lines: Sequence[str]) -> None:
        """These lines say how its tests have ended."""
        end = "\n=== What the script printed, with each test's output at its place ==="
        for line in () if self.is_live else (*lines, end):
            self.trace.line(line)

    def finish(self, _results: Sequence[Result], _lines: Sequence[str]) -> None:
        self.show()                      # the script has the last word


@dataclass
class ScriptConsole(ScriptTrace, ParallelConsole):
    """Markers as a script's tests start and end."""


@dataclass
class SequentialScriptConsole(ScriptTrace, SequentialConsole):
    """The trace of `bash SCRIPT`."""

    is_live = True


def unshifted(data: bytes, shift: int) -> bytes:
    """What `set -x` shows of a handler, at the depth that it has without us: the hook's PS4 begins with \\1."""
    return re.sub(rb"(?m)^(\x01+)([^\x01])", lambda match: match.group(2) * max(len(match.group(1)) - shift, 1), data)


def summary(results: Sequence[Result], seconds: float, machine: Machine, record: Record, quarantined: Iterable[Sick]
            ) -> List[str]:
    """What did not pass, where its log is, why, and the counts."""
    lines = []
    for result in results:
        if not result.outcome.is_ok() and result.outcome is not Outcome.NOT_RUN:
            about = record.log_path(result.test) if result.status is not None else result.reason
            lines.append(f"{result.verdict()}, {result.seconds:.1f}s: {result.test.label} ({about})")
        elif result.outcome is Outcome.FLAKY:
            first = record.log_path(result.test, 1)
            lines.append(f"flaky, passed at attempt {result.attempt}: {result.test.label} ({first})")
    lines += [f"{result.leaks()}: {result.test.label} left {first_of(result.leaked)}"
              for result in results if result.leaked]
    lines += [f"passed without its JUnit file ({result.junit_fault}): {result.test.label}"
              for result in results if result.junit_fault and result.outcome.is_ok()]
    lines += causes(results)
    lines += [f"quarantined: GPU {sick.device.token} ({sick.reason})" for sick in quarantined]
    total = f"{len(results)} test{'' if len(results) == 1 else 's'}"
    lines.append(f"{total} in {seconds:.1f}s on {len(machine.devices)} GPU(s): {tally(results)}")
    return lines


def causes(results: Iterable[Result]) -> Iterator[str]:
    """The failures by their causes, the most frequent first."""
    labels: Dict[str, List[str]] = {}
    for result in results:
        if result.outcome.is_failure():
            labels.setdefault(result.cause.text or result.reason, []).append(result.test.label)
    if labels:
        count = sum(map(len, labels.values()))
        yield f"{count} failure{'s' * (count > 1)} by cause:"
    for cause, named in sorted(labels.items(), key=lambda item: -len(item[1])):
        yield f"{len(named):5} x {cause}: {first_of(named)}"


def first_of(names: Sequence[str]) -> str:
    """The first ten of many names, and how many more there are."""
    more = [f"\u2026 with {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return " ".join([*names[:SHOWN], *more])


def last_line(text: str) -> str:
    """The last line of a log that says anything, short and fit to be shown."""
    said = [plain(line[-LINE_CHARS * 4:]) for line in text.splitlines()]
    return next((line[:LINE_CHARS] for line in reversed(said) if line), "")


def tally(results: Iterable[Result]) -> str:
    """`3 passed, 1 failed`: how many tests had which outcome."""
    counts = collections.Counter(result.outcome for result in results)
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])


def account(selection: Selection, options: Options) -> List[str]:
    """What of the lists was selected and where the rest is, if there is a rest."""
    left_out = {why: len(tests) for why, tests in selection.left_out.items()}
    selected = len(selection.tests) - len(selection.deferred)
    total = len(selection.tests) + sum(left_out.values())
    if not left_out and options.max_gpus is None and not options.only:
        return []
    parts = [f"Selected {selected} of {total} tests ({100 * selected / total:.1f} %)"]
    if selection.deferred:
        paths = " ".join(path for path, _ in zip(deferred_paths(options), selection.deferred_lists()))
        where = "" if options.plan or options.list_only else f": {paths}"    # those write nothing
        counts = collections.Counter(selection.deferred.values())
        others = any(test.gpus <= (options.max_gpus or 0) for test, why in selection.deferred.items()
                     if why == "--max-gpus")
        whys = {"--only": f"that {options.only.path if options.only else ''} does not name",
                "--max-gpus": f"that need more than {options.max_gpus} GPUs{' or wait for one that does' * others}"}
        parts.append("deferred " + ", ".join(f"{counts[why]} {said}" for why, said in whys.items() if counts[why])
                     + where)
    if left_out:
        parts.append("left out " + ", ".join(f"{count} by {why}" for why, count in left_out.items()))
    return ["; ".join(parts)]


def assumption(selection: Selection) -> str:
    """What the expected durations of a plan rest on."""
    unknown = selection.estimates.unknown.intersection(selection.tests).difference(selection.deferred)
    known = len(selection.tests) - len(selection.deferred) - len(unknown)
    parts = [f"{known} known from history (the median of the last {PASSES} passes) or time="] if known else []
    if unknown:
        seconds = show_duration(selection.estimates.seconds[next(iter(unknown))])
        counts_as = f"the mean of the known, {seconds}," if known else seconds
        parts.append(f"{len(unknown)} unknown, taken for {counts_as} each")
    return "Expected durations: " + "; ".join(parts)


def show_duration(seconds: float) -> str:
    """`4.2s`, `12m30s`, `9h34m`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def plan_lines(selection: Selection, options: Options) -> Iterator[str]:
    """The table of `--plan`: what a run on so many GPUs would come to, by the schedule that would run it."""
    seconds = selection.estimates.seconds
    yield from account(selection, options)
    yield assumption(selection)
    yield " GPUs  wall time  GPU-hours    busy  to bound  cannot run  critical test"
    sizes = set(PLAN_GPUS)
    if options.gpus is not None:
        sizes.add(int(options.gpus) if options.gpus.isdigit() else len(options.gpus.strip(",").split(",")))
    for gpus in sorted(sizes - {0}):
        pool = make_pool([Device(index, str(index)) for index in range(gpus)], selection.tests, options)
        tests = selection.to_run(options.order, pool)
        ended = simulate(tests, seconds, pool, options)
        wall, last = ended[-1] if ended else (0.0, None)
        work = sum(work_of(test, seconds, gpus) for _, test in ended)
        bound = max([work / gpus, *(seconds[test] for _, test in ended)])
        busy, ratio = (100 * work / (gpus * wall), wall / bound) if wall else (0.0, 1.0)
        critical = f"{last.label} ({show_duration(seconds[last])}, gpus={test_need(last)})" if last else "none"
        yield (f"{gpus:5} {show_duration(wall):>10} {gpus * wall / 3600:10.2f} {busy:6.1f}% {ratio:9.3f} "
               f"{len(tests) - len(ended):11}  {critical}")


def last_lines(results: Sequence[Result], schedule: Schedule) -> List[str]:
    """The verdict of the run, as the last lines of the trace."""
    lines = []
    unfinished = tally(result for result in results if result.outcome.is_unfinished())
    if schedule.interrupts:
        name = signal.Signals(schedule.interrupts[0]).name
        lines.append(f"Interrupted by {name}: {unfinished or 'nothing was left to run'}")
    elif schedule.failure:
        why = ": ".join(filter(None, [schedule.failure.splitlines()[0], unfinished]))
        lines.append(f"Stopped, the machine failed: {why}")
    elif schedule.is_overdue:
        lines.append(f"Ended by --deadline: {unfinished or 'nothing was left to run'}")
    failed = [result.test.label for result in results if schedule.options.fails(result.outcome)]
    if failed:
        lines.append("Error in the following test cases: " + " ".join(failed))
    elif not lines:
        has_run = any(result.outcome is not Outcome.DEFERRED for result in results)
        lines.append("All tests passed" if has_run else "No test ran")
    return lines


# ---------------------------------------------------------------------------------------------------
# 10. Command line and main.
# ---------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  run_tests.py tests.txt                          one test per GPU of the machine, or of the outer mask
  CUDA_VISIBLE_DEVICES=4,5,6,7 run_tests.py a.txt b.txt     two lists, one run, four GPUs
  run_tests.py --gpus 2 --timeout 30m tests.txt   two GPUs; a test that takes longer is ended
  run_tests.py --output failures --fail-fast -    the list from standard input; show only what failed
  run_tests.py qa/L0/test.sh                      a script, unmodified: its `|| test_fail` commands on all GPUs
  run_tests.py --rerun-failed tests.txt           what did not pass in the last run, or was not reached by it
  run_tests.py --max-gpus 2 tests.txt             the tests that need more are put off, into logs/deferred.txt
  run_tests.py --only few.txt --message="$MESSAGE" tests.txt     the tests that few.txt names, unless [ci all]
  run_tests.py --shard auto --history j.jsonl tests.txt     this CI job's part of the list
  run_tests.py --plan tests.txt                   what the list would take on 1 to 32 GPUs
  RUN_TESTS_OPTS="--grace 30s" qa/L0/test.sh      options for a runner inside a script

exit codes:
  0 all passed   1 a test failed or did not get to run   2 usage or a bad list   3 the runner or the machine failed
  5 nothing selected   128+N ended by signal N
"""


def parse_gpu_option(text: str) -> str:
    """`4`, or ids such as `0,2`, `2,`, `GPU-…`. Raises BadValue."""
    if re.fullmatch(r"\d{1,4}", text):
        return text
    ids = text.split(",")[:-1] if text.endswith(",") else text.split(",")
    if text.isdigit() or not all(any(reader.token.fullmatch(token) for reader in READERS) for token in ids):
        raise BadValue(f"{text!r} is neither a count nor ids such as 0,2 (one id: 2,)")
    if len(set(ids)) < len(ids):
        raise BadValue(f"{text!r} names a GPU twice")
    return text


def parse_positive(text: str) -> int:
    """A whole number from 1. Raises BadValue."""
    if not re.fullmatch(r"[1-9]\d{0,4}", text):
        raise BadValue(f"{text!r} is not a whole number from 1")
    return int(text)


def parse_expression(text: str) -> Callable[[Sequence[str]], bool]:
    """What `-k` asks of a test's names: names, parts of which are enough, joined by and, or, not and parentheses.

    Case does not count, as for pytest's `-k`, whose source is the idea of letting Python's own parser do the work.
    Raises BadValue.
    """
    wanted: List[str] = []

    def as_python(match: "re.Match[str]") -> str:
        if match.group() in ("and", "or", "not", "(", ")"):
            return match.group()
        wanted.append(match.group().strip("'\"").casefold())
        return f" name{len(wanted) - 1} "

    python = re.sub(r"""'[^']+'|"[^"]+"|[()]|[^\s()'"]+""", as_python, text)
    known = (ast.Expression, ast.BoolOp, ast.UnaryOp, ast.boolop, ast.Not, ast.Name, ast.Load)
    try:
        tree = ast.parse(python.strip(), mode="eval")
        if not all(isinstance(node, known) for node in ast.walk(tree)):
            raise SyntaxError        # `a (b)` is a call
        code = compile(tree, "-k", "eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise BadValue(f"{text!r} is not names joined by and, or, not and parentheses, "
                       "such as 'fp8 and not (slow or h100)'") from None

    def is_match(names: Sequence[str]) -> bool:
        folded = [name.casefold() for name in names]
        return bool(eval(code, {f"name{number}": any(part in name for name in folded)
                                for number, part in enumerate(wanted)}))
    return is_match


def parse_only(path: str) -> LabelFile:
    """A file of labels, one a line; blank lines and `# comments` aside. Raises BadValue."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise BadValue(f"{path}: cannot be read ({error.strerror}); name a file with one label per line") from None
    labels = frozenset(filter(None, lines))      # comments too: no test has such a label, or it is meant
    if all(label.startswith("# ") for label in labels):
        raise BadValue(f"{path}: names no test; one label per line")
    return LabelFile(path, labels)


def parse_message(text: str) -> Tuple[str, ...]:
    """The words of all `[ci WORDS]` in a commit's message, case folded; `skip` is for the CI itself."""
    marked = re.findall(r"\[ci[\s:-]([^][]*)\]", text, re.IGNORECASE)
    words = dict.fromkeys(" ".join(marked).casefold().replace(",", " ").split())
    return tuple(word for word in words if word != "skip")


def parse_shard(text: str) -> Union[Shard, str]:
    """`2/4`, or `auto`. Raises BadValue."""
    match = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", text)
    if text != "auto" and (not match or int(match.group(1)) > int(match.group(2))):
        raise BadValue(f"{text!r} is not K/N, K from 1 to N, such as 2/4, nor auto")
    return Shard(int(match.group(1)), int(match.group(2))) if match else text


# How CI services tell a job its number among equal ones: the variables of number and total, the first number, and
# a variable without which they mean something else. Azure counts from 1.
SHARD_VARIABLES = (
    ("CI_NODE_INDEX", "CI_NODE_TOTAL", "1", "GITLAB_CI"),
    ("CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL", "0", ""),
    ("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", "0", ""),
    ("SEMAPHORE_JOB_INDEX", "SEMAPHORE_JOB_COUNT", "1", ""),
    ("SYSTEM_JOBPOSITIONINPHASE", "SYSTEM_TOTALJOBSINPHASE", "1", ""),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", ""),
)


def find_shard(environ: Mapping[str, str]) -> Optional[Shard]:
    """The shard that the CI's variables name; None, with a warning, if there are none. Raises UsageError."""
    for index, total, first, required in SHARD_VARIABLES:
        if index in environ and total in environ and (not required or required in environ):
            number = environ[index]
            try:
                base = int(environ.get(first, "0") if first.isupper() else first)
                step = int(environ.get("SLURM_ARRAY_TASK_STEP", "1")) if first.isupper() else 1
                shard = Shard((int(number) - base) // step + 1, int(environ[total]))
            except (ValueError, ZeroDivisionError):
                shard = Shard(0, 0)
            if not 1 <= shard.number <= shard.total:
                raise UsageError(f"--shard auto: {index}={number} is not one of {total}={environ[total]}; "
                                 "write --shard K/N")
            return shard
    warn("--shard auto: no CI says which shard this is; all tests run")
    return None


def parse_arguments_option(text: str) -> Tuple[str, ...]:
    """Arguments in one word, as a shell splits them. Raises BadValue."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise BadValue(f"a quote in {text!r} is never closed") from None


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which tests run, and which first."""
    group = parser.add_argument_group("what runs")
    group.add_argument("lists", nargs="+", metavar="LIST",
                       help="bash, one test per line; `-` is standard input; or one script (.sh or #!), as it is")
    group.add_argument("-k", type=parse_expression, dest="keep", metavar="EXPR",
                       help="tests whose label or tags contain these names: 'fp8 and not (slow or h100)'")
    group.add_argument("--rerun-failed", action="store_true",
                       help="tests that did not pass in this list's last run, or were not reached by it")
    group.add_argument("--only", type=parse_only, metavar="FILE",
                       help="run the tests whose labels FILE names, one a line, and what they wait for; defer the rest")
    group.add_argument("--message", type=parse_message, dest="wanted", metavar="TEXT",
                       help="a commit's message: `[ci WORDS]` adds to --only the tests whose label or tags contain one "
                            "of the words, `[ci all]` runs all")
    group.add_argument("--max-gpus", type=parse_positive, metavar="N",
                       help="defer tests that need more: a list of them is written to deferred.txt in the log dir")
    group.add_argument("--shard", type=parse_shard, metavar="K/N|auto",
                       help="part K of N, balanced; auto: as GitLab, CircleCI, Buildkite, Semaphore, Azure or a Slurm "
                            "array says")
    group = parser.add_argument_group("in which order")
    group.add_argument("--order", choices=["auto", "file", "failed-first"],
                       help="auto: widest first, then longest, as earlier runs took; one by one on one GPU: file")
    group.add_argument("--history", action="append", metavar="FILE",
                       help="a journal of another run or machine to learn durations from; may be repeated")


def add_stop_options(parser: argparse.ArgumentParser) -> None:
    """The options that say when a test or the run ends, and what then counts as a failure."""
    group = parser.add_argument_group("when tests are stopped")
    group.add_argument("--timeout", type=parse_duration, metavar="TIME",
                       help="for each test (90s, 10m, 2h), unless its line says timeout=; default: none")
    group.add_argument("--slow", type=parse_duration, metavar="TIME",
                       help="announce a test each time that it has run on for so long, with the last line of its log")
    group.add_argument("--deadline", type=parse_duration, metavar="TIME",
                       help="end the whole run so early that by then all is reported; what did not run is `not run`")
    group.add_argument("--grace", type=parse_duration, metavar="TIME",
                       help=f"from SIGTERM to SIGKILL; default: {GRACE_S:.0f}s")
    group.add_argument("--retries", type=parse_count, metavar="N",
                       help="run a test that did not pass up to N times more, unless its line says retries=")
    group.add_argument("--flaky", choices=["pass", "fail"], help="whether a test that passes at a retry fails the run")
    group.add_argument("--leaks", choices=["report", "fail"],
                       help="whether a test fails that leaves processes behind; they are ended and named anyway")
    group.add_argument("--fail-fast", action="store_true", help="start no more tests after the first failure")
    group.add_argument("--fail-function", action="append", dest="handlers", metavar="NAME",
                       help="in a script, `command || NAME ...` is a test too, as with test_fail; may be repeated")


def build_parser() -> argparse.ArgumentParser:
    """The command line, grouped by task. What it does not say is as Options has it."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, usage=f"{PROGRAM} [options] LIST [LIST ...] | SCRIPT [-- ARGUMENTS]",
        allow_abbrev=False, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False, argument_default=argparse.SUPPRESS,
        description="Run a list of test commands on all GPUs, and report as if they had run one by one.")
    add_selection_options(parser)
    group = parser.add_argument_group("where tests run")
    group.add_argument("--gpus", type=parse_gpu_option, metavar="N|IDS",
                       help="how many GPUs, or which (0,2; one: 2,); default: the outer mask, else all there are")
    group.add_argument("--jobs", type=parse_positive, metavar="N",
                       help="slots for `gpus=0` tests beside the GPU tests; default: as many as GPUs")
    group.add_argument("--require-gpus", type=parse_positive, metavar="N",
                       help="end with exit code 3 if there are fewer, rather than run on those")
    group.add_argument("--gpu-locks", metavar="DIR",
                       help="lock files, one per GPU, so that runners on this machine never share a GPU")
    group.add_argument("--python", metavar="EXE", help="interpreter for pytest targets (python3)")
    group.add_argument("--pytest-args", type=parse_arguments_option, metavar="ARGS",
                       help='further arguments for pytest targets, in one word: --pytest-args="-x -m \'not slow\'"')
    add_stop_options(parser)
    group = parser.add_argument_group("what is written")
    group.add_argument("--log-dir", metavar="DIR", help="logs and JUnit files; default: $XML_LOG_DIR, else logs")
    group.add_argument("--fail-dir", metavar="DIR",
                       help="its file `failures` gets one label per failed test; default: $FAIL_DIR, else the log dir")
    group.add_argument("--journal", metavar="FILE", help="default: run_tests.jsonl in the log dir")
    group.add_argument("--junit", metavar="FILE",
                       help="a JUnit file that sums up the run, with flaky tests as surefire has them")
    group.add_argument("--output", choices=["replay", "ordered", "failures", "none"],
                       help="logs in the trace: all at the end, each as soon as its turn comes, failures only, none")
    group = parser.add_argument_group("information")
    group.add_argument("--list", action="store_true", dest="list_only",
                       help="print label, GPUs, log name and place of each test, tab-separated; run nothing")
    group.add_argument("--plan", action="store_true",
                       help="print what a run on 1 to 32 GPUs (and --gpus) would take, by earlier runs; run nothing")
    group.add_argument("--verbose", action="store_true", help="say why tests of a script do not run beside others")
    group.add_argument("--version", action="version", version=version_text(),
                       help="print version and hash of this file; exit")
    group.add_argument("-h", "--help", action="help", help="print this; exit")
    return parser


def version_text() -> str:
    """Version and hash of this very file: copies drift."""
    with contextlib.suppress(OSError), open(os.path.abspath(__file__), "rb") as file:
        return f"{PROGRAM} {VERSION} ({hashlib.sha256(file.read()).hexdigest()[:12]})"
    return f"{PROGRAM} {VERSION}"


def parse_command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Options of $RUN_TESTS_OPTS and `argv`, in that order. Exits 2 with usage, as argparse does."""
    parser = build_parser()
    try:
        first = shlex.split(environ.get("RUN_TESTS_OPTS", ""))
    except ValueError:
        parser.error("a quote in $RUN_TESTS_OPTS is never closed")
    own, arguments = argv, argv[:0]
    if "--" in argv and any(map(is_script, argv[:argv.index("--")])):
        own, arguments = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    values = vars(parser.parse_args([*first, *own]))
    values["arguments"] = tuple(arguments)
    values["lists"], values["history"] = tuple(values["lists"]), tuple(values.get("history", ()))
    values["handlers"] = ("test_fail", *values.get("handlers", ()))
    if values.get("shard") == "auto":
        values["shard"] = find_shard(environ)
    values["log_dir"] = values.get("log_dir") or environ.get("XML_LOG_DIR") or "logs"
    values["fail_dir"] = values.get("fail_dir") or environ.get("FAIL_DIR") or None
    return Options(**values)


class Run:
    """One run: carries out what the schedule decides, and feeds it what happens. Main thread only."""

    CONSOLES: Tuple[Type[Console], Type[Console]] = (ParallelConsole, SequentialConsole)

    def __init__(self, selection: Selection, machine: Machine, options: Options, trace: Trace, reaper: Reaper) -> None:
        self.selection, self.machine, self.options, self.trace = selection, machine, options, trace
        self.tests = selection.tests
        locks = GpuLocks(options.gpu_locks, machine) if options.gpu_locks and machine.devices else None
        self.record = record = Record(
            options, f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{os.urandom(3).hex()}")
        pool = make_pool(machine.devices, self.tests, options, locks)
        tests = selection.to_run(options.order, pool)
        self.schedule = Schedule(tests, selection.estimates.seconds, pool, options)
        self.slots = slot_count(pool, tests)
        total = sum(map(self.schedule.can_run, tests))
        self.console = self.CONSOLES[pool.sequential](trace, record, options, self.tests, total)
        self.bash = shutil.which("bash") or "bash"
        self.inbox: "queue.SimpleQueue[Any]" = queue.SimpleQueue()       # of Events
        self.workers = ThreadPoolExecutor(self.slots)
        self.pending: Dict[Test, "Future[None]"] = {}
        self.processes: Dict[Test, Process] = {}
        self.results: Dict[Test, Result] = {}
        self.attempts: Dict[Test, List[Result]] = {}     # those before the last, of tests that had several
        self.quarantined: List[Sick] = []
        self.health = Health(machine)
        self.oom_kills, self.chores_at = oom_kills(), -math.inf
        self.has_stuck = False           # a pool thread waits for a process that cannot be killed
        self.ports: Dict[int, int] = {}  # by slot
        self.has_waited = False          # for another runner's GPUs
        self.environment = test_environment(os.environ, self.slots, record.run)
        self.reaper = reaper
        reaper.post_guard(record.run, [record.lock, *(locks.files.values() if locks else ())])

    def execute(self) -> None:
        """From the first start to the last end. Whatever goes wrong, no test is left running."""
        try:
            self.record.run_start(self.selection, self.machine)
            self.console.begin(self.machine)
            for test, why in self.selection.deferred.items():
                self.conclude(Result(test, Outcome.DEFERRED, reason=why))
            self.take(Begin(time.monotonic()))
            while not self.is_over():
                self.take(self.next_event())
        except OSError as error:
            self.give_up(f"{error.filename or 'a file'} cannot be written ({error.strerror})")
        except Exception as error:
            self.give_up(f"internal error, {error!r}; details are in {self.record.note_crash(traceback.format_exc())}")
        finally:
            self.workers.shutdown(wait=not self.has_stuck)
            left = self.reaper.close()
            if left and not self.has_stuck:
                warn(f"ended what some tests had left behind: {first_of(list(map(str, left)))}")

    def is_over(self) -> bool:
        return self.schedule.done

    def take(self, event: Event) -> None:
        """Note what has happened, and do what follows from it."""
        if isinstance(event, Started) and event.test not in self.schedule.running:
            event.process.signal(signal.SIGKILL)         # it was abandoned before it was there
        elif isinstance(event, Started):
            self.processes[event.test] = event.process
            self.record.test_start(event.test, self.schedule.running[event.test], event.process.pid)
            self.console.started(event.test)
        elif isinstance(event, Exited) and event.cause == OOM_KILLED:
            self.oom_kills = oom_kills()         # the next one is another
        elif isinstance(event, Broken) and event.details:
            self.record.note_crash(event.details)
        elif isinstance(event, Interrupt) and self.pending and not self.schedule.interrupts:
            warn(f"{signal.Signals(event.signum).name}: ending the running tests; once more kills them")
        self.act(event)

    def deadline(self) -> float:
        """When a Tick is due."""
        return self.schedule.deadline()

    def next_event(self) -> Event:
        """What happened, or a Tick when a deadline comes; shows growing logs meanwhile."""
        while True:
            self.console.tick()
            if time.monotonic() >= self.chores_at:
                self.do_chores()
            if self.inbox.empty():       # under load, many lines go out in one write
                self.trace.flush()
            wait = min(self.deadline() - time.monotonic(), self.console.follow_s)
            try:
                return self.inbox.get(timeout=max(wait, 0))
            except queue.Empty:
                if time.monotonic() >= self.deadline():
                    return Tick(time.monotonic())

    def do_chores(self) -> None:
        """What is to be looked after every second. Raises OSError."""
        self.chores_at = time.monotonic() + CHORES_S
        self.reaper.collect()
        self.record.restore()
        self.oom_kills = oom_kills()

    def act(self, event: Event) -> None:
        """Let the schedule decide on one event, and do what it says."""
        actions = self.schedule.step(event)
        if self.schedule.poll_at < math.inf and not self.schedule.running and not self.has_waited:
            self.has_waited = True
            warn(f"waiting for GPUs that another runner holds, by its locks in {self.options.gpu_locks}")
        for action in actions:
            if isinstance(action, Launch):
                if action.attempt > 1:
                    self.record.put_away(self.schedule.failed[action.test])
                self.console.launched(action.test, action.lease)
                self.pending[action.test] = self.workers.submit(
                    run_job, action, self.job(action), self.reaper, self.health, self.inbox.put)
            elif isinstance(action, Kill):
                send_signal = self.processes[action.test].signal
                if action.stacks:        # this takes time
                    threading.Thread(target=send_signal, args=(action.signum, action.stacks), daemon=True).start()
                else:
                    send_signal(action.signum)
            elif isinstance(action, Retry):
                self.forget(action.result.test)
                self.attempts.setdefault(action.result.test, []).append(action.result)
                self.record.attempt_end(action.result)
                self.console.retried(action.result)
            elif isinstance(action, Announce):
                self.console.announced(action.test, action.seconds)
            elif isinstance(action, Quarantine):
                self.quarantined.append(action.sick)
                self.console.remark(f"Quarantined: GPU {action.sick.device.token} [{action.sick.reason}]")
            elif isinstance(action, Abandon):
                self.has_stuck = True    # its thread is lost, and others must not wait for it
                self.workers.shutdown(wait=False)
                self.workers = ThreadPoolExecutor(self.slots)
            else:
                self.conclude(action.result)

    def forget(self, test: Test) -> None:
        """Its process is gone."""
        self.processes.pop(test, None)
        self.pending.pop(test, None)

    def conclude(self, result: Result) -> None:
        self.forget(result.test)
        self.results[result.test] = result
        earlier = self.attempts.get(result.test, [])
        if result in earlier:            # it has waited for a retry that does not come
            earlier.remove(result)
        else:
            self.record.attempt_end(result)
        self.record.test_end(result)
        self.console.concluded(result)

    def job(self, launch: Launch) -> Job:
        """The script and the environment of one attempt."""
        test, slot, mask = launch.test, launch.lease.slot, self.machine.mask(launch.lease)
        if slot not in self.ports:       # once a slot: a look at a port costs as much as all else that a start takes
            self.ports[slot] = free_port(slot, self.slots)
        environment = {"MASTER_PORT": str(self.ports[slot]), **self.environment, **mask,
                       "RUN_TESTS_LABEL": to_bytes(test.label), "RUN_TESTS_SLOT": str(slot),
                       "RUN_TESTS_ATTEMPT": str(launch.attempt)}
        environment.setdefault("PET_MASTER_PORT", environment["MASTER_PORT"])
        return Job(self.bash, ["-c", build_script(test, mask), test.file], environment, self.record.log_path(test),
                   self.oom_kills)

    def give_up(self, why: str) -> None:
        """The last resort when the runner itself cannot go on: kill all tests, keep what is known."""
        self.schedule.failure = self.schedule.failure or why
        while not all(future.done() for future in self.pending.values()):
            for process in self.processes.values():
                process.signal(signal.SIGKILL)
            with contextlib.suppress(queue.Empty):
                event = self.inbox.get(timeout=FOLLOW_S)
                if isinstance(event, Started):
                    self.processes[event.test] = event.process
        for test in self.tests:
            if test not in self.results:
                outcome = Outcome.INTERRUPTED if test in self.pending else Outcome.NOT_RUN
                self.results[test] = Result(test, outcome, reason=why)

    def report(self, seconds: float) -> int:
        """Close the journal, print what there is to print; returns the exit code."""
        results = [self.results[test] for test in self.tests]
        if self.options.junit:
            cases = [summary_case([*self.attempts.get(test, []), self.results[test]], self.record)
                     for test in self.tests]
            try:
                write_xml(self.options.junit, junit_of(PROGRAM, seconds, cases))
            except OSError as error:
                self.schedule.failure = self.schedule.failure or f"--junit {self.options.junit}: {error.strerror}"
        code, last = self.verdict(results)
        with contextlib.suppress(OSError):       # where the disk is full, the trace still gets its last lines
            self.record.restore()
            self.record.run_end(results, code, self.quarantined)
        try:
            self.console.finish(results, summary(results, seconds, self.machine, self.record, self.quarantined))
        except KeyboardInterrupt:        # enough of the logs; not of the verdict
            code = EXIT_SIGNAL + signal.SIGINT
        for line in last:
            self.trace.line(line)
        self.trace.flush()
        if self.has_stuck:               # Python would wait for the thread
            os._exit(code)
        return code

    def verdict(self, results: Sequence[Result]) -> Tuple[int, List[str]]:
        """The exit code and the last lines of the trace."""
        lines = [*account(self.selection, self.options), *last_lines(results, self.schedule)]
        return exit_code(results, self.schedule), lines


class Handed(NamedTuple):
    """A test that the shell of a script has handed over."""

    test: Test
    offset: int                          # what the script had printed before
    handler: str                         # bash
    flags: str                           # the shell's options
    level: int                           # of `source`


class ScriptRun(Run):
    """The run of a script: bash goes through it and hands tests over, and waits where it would see a difference."""

    CONSOLES = (ScriptConsole, SequentialScriptConsole)
    console: Union[ScriptConsole, SequentialScriptConsole]

    def __init__(self, machine: Machine, options: Options, trace: Trace, reaper: Reaper) -> None:
        name = f"{PROGRAM}.{os.getpid()}.{os.urandom(6).hex()}"          # made if the run is not refused
        self.folder = reaper.scratch = os.path.join(tempfile.gettempdir(), name)
        super().__init__(select([], options, History()), machine, options, trace, reaper)
        os.mkdir(self.folder, 0o700)
        self.history, self.name = read_history(options), options.lists[0]
        self.slots = self.schedule.pool.size * 8 + self.schedule.pool.cpus       # with fractions
        self.workers = ThreadPoolExecutor(self.slots)
        # Its variables come with the snapshot of the script's shell, but for those whose names no shell knows.
        self.environment = test_environment(
            {name: value for name, value in os.environ.items() if not NAME.fullmatch(name) and "%%" not in name},
            self.schedule.pool.size, self.record.run)
        self.labels, self.stems = Unique("{} #{}", str), Unique("{}_{}", str.casefold)
        self.stems(os.path.basename(self.name))          # its own log
        self.scripts: Dict[str, Script] = {}     # by name, as bash knows them
        self.changes: Set[str] = set()   # variables that handlers change
        self.functions: Dict[str, str] = {}      # of the script, at its last test
        self.readers: Set[Test] = set()  # tests whose standard input would be ours
        self.site: Optional[Site] = None         # whose words bash is asked for
        self.next: Optional[Handed] = None       # waits for those before it
        self.handed: List[Handed] = []   # since the script has last waited
        self.batch: List[Test] = []      # of these, what the schedule does not know yet
        self.batch_at = math.inf
        self.joined: Optional[Tuple[int, int]] = None    # offset and level of `source` where the script waits
        self.handling: List[Handed] = []         # whose handlers are called
        self.ends: List[int] = []        # offsets where these have ended
        self.has_ended = self.is_ending = False
        self.killer: Optional[threading.Timer] = None    # of a script that goes on when all its tests have been ended
        self.began = time.monotonic()    # the first of `handed`
        environment = {**test_environment(os.environ, 1, self.record.run), "RUN_TESTS_LABEL": self.name,
                       "RUN_TESTS_ATTEMPT": "1"}
        log = os.path.join(self.record.log_dir, os.path.basename(self.name) + ".log")
        job = Job(self.bash, [self.name, *options.arguments], environment, log, stdin=None)
        self.shell = ScriptShell(job, self.folder, options.handlers, self.inbox.put)

    def is_over(self) -> bool:
        return self.has_ended and self.schedule.done and not self.handed

    def deadline(self) -> float:
        return min(self.schedule.deadline(), self.batch_at)

    def take(self, event: Any) -> None:
        """Note what has happened, and do what follows from it."""
        if isinstance(event, Asked):
            answers: Mapping[str, Callable[[int, Sequence[str]], Optional[str]]] = {
                "scan": self.on_scan, "command": self.on_command, "test": self.on_test, "join": self.on_join,
                "handled": self.on_handled, "failed": self.on_failed, "end": self.on_end}
            answer = answers[event.words[0]](event.offset, event.words[1:])
            if answer is not None:
                self.shell.answer(answer)
        else:
            super().take(event)
            if isinstance(event, Begin):
                self.shell.start(self.reaper)
                self.console.source = f"/dev/fd/{self.shell.log}"
            if isinstance(event, Interrupt) and self.is_ending:
                self.shell.signal(signal.SIGKILL)
        self.follow_up()

    def follow_up(self) -> None:
        """What any event may have made possible or necessary."""
        schedule = self.schedule
        if self.batch and (self.joined or self.has_ended or time.monotonic() >= self.batch_at):
            self.submit()
        if not self.is_ending and (schedule.interrupts or schedule.failure or schedule.is_overdue):
            self.is_ending = True
            self.shell.signal(schedule.interrupts[0] if schedule.interrupts else signal.SIGTERM)
        have_ended = all(handed.test in self.results for handed in self.handed)
        if self.is_ending and have_ended and self.killer is None:
            self.killer = threading.Timer(self.options.grace, self.shell.signal, [signal.SIGKILL])
            self.killer.daemon = True
            self.killer.start()
        if self.joined and have_ended and not self.handling:
            self.call_handlers()
        if self.has_ended and have_ended and self.handed:
            self.release(self.shell.size)

    def submit(self) -> None:
        """Let the schedule know of new tests: the first ones wait a moment for others, to start the longest first."""
        known = select(self.tests, self.options, self.history)
        waiting = replace(known, tests=[*self.schedule.waiting, *self.batch])
        order = waiting.to_run(self.options.order, self.schedule.pool)
        event = Submit(time.monotonic(), tuple(self.batch), order, known.estimates.seconds)
        self.batch, self.batch_at = [], math.inf
        self.act(event)

    def on_scan(self, _: int, words: Sequence[str]) -> str:
        """Bash has come to a file that it had not come to before."""
        source, directory = words
        try:
            text = read_list(os.path.join(directory, source))
        except ListError:
            text = ""                    # `eval`, standard input
        script = self.scripts[source] = Script(source, text, self.options.handlers)
        for message in script.parsed.messages():
            warn(message, name="")
        has_none = not (script.found or script.obstacles or any(command.name in ("source", ".")
                                                                for command in script.commands))
        if source == self.name and has_none and not self.schedule.pool.sequential:
            warn(f"{source}: nothing runs in parallel: no command has `|| {'` or `|| '.join(self.options.handlers)}`; "
                 "name another handler with --fail-function")
        for line, why in sorted(script.obstacles.items()):
            self.explain(f"{source}:{line}", f"runs as it stands: {why}")
        number, places = len(self.scripts), dict.fromkeys(script.sites, "s")
        for line in script.waits:
            places[line] = places.get(line, "") + "w"
        table = " ".join(f"[{number}:{line}]={place}" for line, place in places.items())
        return f"_rt_files[{shlex.quote(source)}]={number} _rt_lines+=({table})"

    def explain(self, where: str, what: str) -> None:
        """With --verbose, say why a test does not run beside others."""
        if self.options.verbose:
            warn(f"{where}: {what}", name="")

    def on_command(self, _: int, said: Sequence[str]) -> str:
        """Bash is about to run a command: a test, or one before which it may have to wait."""
        source, line, command, place = said
        words = words_of(command)
        name = next((word for word in words if not ASSIGNMENT.match(word)), "")
        for site in self.scripts[source].sites.get(int(line), ()):
            if list(site.words) == words:
                self.site, mask = site, site.mask
                if mask is None and self.machine.variables:
                    mask = f"${{{self.machine.variables[0]}-}}"
                join = "_rt_join; " if self.is_changed(command + site.handler) else ""
                return (f"{join}local _rt_label={site.label} _rt_junit={site.junit} _rt_mask={mask or ''} "
                        f"_rt_first={site.first}; local _rt_handler=({site.handler if site.is_call else ''}) "
                        f"_rt_names=({' '.join(needed_by(site.text + site.handler))}); _rt_hand")
        if name in self.options.handlers:
            label = words[1] if len(words) > 1 and not SEES_OUTSIDE.search(words[1]) else shlex.quote(command)
            return f'_rt_join; local _rt_label={label}; _rt_ask failed "$_rt_label" "$_rt_status" {line}'
        is_unseen = any(name in script.unseen for script in self.scripts.values())
        if "w" in place or self.is_changed(command) or is_unseen or not goes_on(command, self.functions):
            if self.handed:
                self.explain(f"{source}:{line}", f"waits for {len(self.handed)} tests: {command}")
            return "_rt_join"
        return '( eval "$_rt_command" ) >/dev/null || _rt_join' if name in ("cd", "pushd", "popd") else ""

    def is_changed(self, text: str) -> bool:
        """Whether some bash names a variable that handlers change."""
        return any(word in self.changes for word in NAME.findall(text))

    def on_failed(self, _: int, said: Sequence[str]) -> str:
        """Bash itself is about to call a handler: a test has failed that was no job for the slots."""
        label, status, line = said
        site = Site(self.name, int(line), (label,), "", "", True, "", "", None, "", Attributes())
        test = self.make_test(site, "", label, "", "")
        result = Result(test, Outcome.FAILED, status=int(status) or 1)
        self.tests.append(test)
        self.results[test] = result
        self.record.attempt_end(result)
        self.record.test_end(result)
        return ""

    def on_test(self, offset: int, said: Sequence[str]) -> str:
        """Bash has come to a test.

        `snapshot` is the path of bash that makes another shell like the script's; `why` says what is in the way.
        Where `must_wait`, bash will not be able to wait later; where `reads`, standard input is the runner's.
        """
        snapshot, why, must_wait, level, flags, reads, label, junit, mask, first, called = said
        site = self.site
        assert site is not None
        functions = self.functions
        with contextlib.suppress(OSError), open(snapshot, encoding="utf-8", errors="surrogateescape") as file:
            functions = self.functions = dict(FUNCTION.findall(file.read()))
        handler = read_handler(site.handler, functions, flags)
        self.changes |= handler.changes
        if site.is_call and words_of(site.handler)[0] not in functions:
            why = "its handler is no function"
        elif "BASH_SOURCE" in site.text and site.file != self.name:
            why = "BASH_SOURCE is not its own"
        elif first in functions and not read_handler(first, functions).is_test:
            why = f"{first} changes the script's shell"
        elif handler.fails or (re.search("[eE]", flags) and handler.can_fail):
            why = "its handler may fail, or needs the script's own shell"
        if why or self.is_ending:
            self.explain(f"{site.file}:{site.line}", f"runs as it stands: {why}")
            return "_rt_skip=1" if self.is_ending else "_rt_join"
        own = site.mask is not None or mask != os.environ.get((self.machine.variables or ("",))[0], "")
        test = self.make_test(site, snapshot, label, junit, mask if own else None)
        handed = Handed(test, offset, called if site.is_call else site.handler, flags, int(level))
        self.readers.update([test] if reads else [])
        done = "_rt_pending=1 _rt_skip=1"
        if handler.hasty:
            self.explain(test.where, f"is waited for at once: its handler calls {' '.join(sorted(handler.hasty))}")
        is_bare = "u" in flags and " " not in site.handler         # its handler has no label, and may say $1
        if must_wait or not site.is_call or handler.hasty or is_bare or self.schedule.pool.sequential:
            done += "; _rt_join"
        if any(test.junit and earlier.test.junit == test.junit for earlier in self.handed):
            warn(f"{test.where}: writes the same JUnit file as an earlier test, {test.junit}, and waits for it")
            self.next = handed
            return f"_rt_join; {done}"
        self.hand(handed)
        return done

    def hand(self, handed: Handed) -> None:
        """A test is on its way."""
        if not self.handed:
            self.began = time.monotonic()
        self.handed.append(handed)
        self.tests.append(handed.test)
        self.batch.append(handed.test)
        self.batch_at = min(self.batch_at, time.monotonic() + BATCH_S)
        self.console.handed(handed.offset)

    def make_test(self, site: Site, snapshot: str, label: str, junit: str, mask: Optional[str]) -> Test:
        """A test of the script, with the values of its words."""
        said = replace(site.attributes, after=())
        label = self.labels(CONTROL.sub(" ", label).strip() or "test")
        stem = self.stems(stem_of(junit) if junit else slug(label))
        shell = Shell([StateLine(1, f". {shlex.quote(snapshot)}")], 1, 1)
        timeout = self.options.timeout if said.timeout is None else said.timeout
        need = need_of(said, mask)
        if said.gpus is None:            # CUDA leaves out what is not there
            need = min(need, max(len(self.machine.devices), 1))
        return Test(len(self.tests), key_of(site.words), label, stem, site.file, site.line, " ".join(site.words),
                    BASH_SOURCE.sub(r"\g<1>0", site.text), shell, said, 0, need, timeout,
                    os.path.abspath(junit) if junit else None, False)

    def job(self, launch: Launch) -> Job:
        """The script and the environment of one attempt. One by one, tests read what the script reads."""
        shares = self.schedule.pool.sequential and launch.test in self.readers
        return super().job(launch)._replace(stdin=None if shares else subprocess.DEVNULL)

    def on_join(self, offset: int, said: Sequence[str]) -> Optional[str]:
        """Bash waits; it is answered when all tests have ended."""
        self.joined = offset, int(said[0])
        return None

    def on_end(self, *_: Any) -> None:
        """Bash has ended. Raises OSError where it could not be started, or what it printed not be kept."""
        self.has_ended = True
        if self.shell.fault:
            raise self.shell.fault

    def call_handlers(self) -> None:
        """Let bash call the handlers of the tests that failed, in its order, or go on."""
        self.handling = [handed for handed in self.handed if self.options.fails(self.results[handed.test].outcome)
                         and not self.is_ending]
        self.ends = []
        # The status is 1 for one that did not run, or has passed but for the runner.
        self.shell.answer("".join(
            f"_rt_handle {shell_status(self.results[handed.test].status or 1)} {shlex.quote(handed.handler)} "
            f"{handed.flags or '-'}\n" for handed in self.handling))
        if not self.handling and self.joined:
            self.release(self.joined[0])

    def on_handled(self, offset: int, _: Sequence[str]) -> str:
        """A handler has returned."""
        self.ends.append(offset)
        if len(self.ends) == len(self.handling):
            self.release(offset)
        return ""

    def release(self, end: int) -> None:
        """Show the tests that the script has waited for, at their places in what it has printed up to `end`."""
        start, level = self.joined or (end, 0)
        begin, ends = start, iter([*self.ends, *[end] * len(self.handed)])
        results = [self.results[handed.test] for handed in self.handed]
        self.console.sum_up(summary(
            results, time.monotonic() - self.began, self.machine, self.record, self.quarantined))
        for handed, result in zip(self.handed, results):
            stop = next(ends) if handed in self.handling else begin
            self.console.show_test(result, handed.offset, begin, stop, 2 + level - handed.level)
            begin = stop
        self.console.release(start, end)
        self.handed, self.joined, self.handling, self.ends = [], None, [], []
        if self.next and not self.has_ended:
            self.hand(self.next._replace(offset=end))
        self.next = None

    def give_up(self, why: str) -> None:
        self.shell.signal(signal.SIGKILL)
        super().give_up(why)

    def verdict(self, results: Sequence[Result]) -> Tuple[int, List[str]]:
        """The script has said its own; only what ended it is news."""
        code, lines = super().verdict(results)
        if self.is_ending or self.schedule.failure:
            return max(code, EXIT_FAILED), lines
        return shell_status(self.shell.status), []


def words_of(command: str) -> List[str]:
    """The words of a simple command without its redirections; empty where it is none."""
    try:
        tokens, _ = scan_line(command, 0)
    except (Unclosed, RecursionError):
        return []
    return ScriptCommand(tokens, range(0), "", "", "").words if tokens else []


def shell_status(status: int) -> int:
    """An exit status as `$?` has it."""
    return status if status >= 0 else EXIT_SIGNAL - status


def make_pool(devices: Sequence[Device], tests: Iterable[Test], options: Options, locks: Optional[GpuLocks] = None
              ) -> Pool:
    """The pool of a machine with these devices: sequential where there is at most one place to run tests."""
    jobs = options.jobs or max(len(devices), 1)
    only_gpu = all(test.gpus > 0 for test in tests)
    return Pool(devices, jobs, sequential=len(devices) <= 1 and (jobs <= 1 or only_gpu), locks=locks)


def slot_count(pool: Pool, tests: Sequence[Test]) -> int:
    """How many tests may run at once."""
    if pool.sequential:
        return 1
    shares = [demand(test.gpus, pool.size)[1] for test in tests if 0 < test.gpus < 1]
    fractions = min(len(shares), pool.size * (SHARES // min(shares) - 1)) if shares else 0
    return pool.size + fractions + min(pool.cpus, sum(test.gpus == 0 for test in tests))


def exit_code(results: Iterable[Result], schedule: Schedule) -> int:
    """The run's exit code; what the machine did comes before what the user did, and both before the tests."""
    if schedule.failure:
        return EXIT_MACHINE
    if schedule.interrupts:
        return EXIT_SIGNAL + schedule.interrupts[0]
    outcomes = {result.outcome for result in results}
    if outcomes == {Outcome.DEFERRED}:   # an empty shard is no mistake, an empty run may be one
        return EXIT_OK if schedule.options.shard else EXIT_NOTHING
    is_ok = all(outcome.is_ok() and not schedule.options.fails(outcome) for outcome in outcomes)
    return EXIT_OK if is_ok else EXIT_FAILED


def test_environment(outer: Mapping[str, str], slots: int, run: str) -> Dict[str, Any]:
    """What all tests of a run have in their environment; what the user has set stays, but for buffering."""
    environment = {"PYTHONFAULTHANDLER": "1", **outer, "PYTHONUNBUFFERED": "1", "RUN_TESTS_RUN": run}
    if "RUN_TESTS_RUN" in outer:         # a runner in a runner: the outer one's mark must not be lost
        environment["RUN_TESTS_OUTER"] = " ".join(filter(None, [outer.get("RUN_TESTS_OUTER"), outer["RUN_TESTS_RUN"]]))
    if slots > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, core_count() // slots)))
    return environment


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def signals_to(post: Callable[[Interrupt], None]) -> Iterator[None]:
    """While it lasts, SIGINT, SIGTERM and SIGHUP become Interrupt events. `nohup` keeps its meaning."""
    def handle(signum: int, _frame: Any) -> None:
        post(Interrupt(time.monotonic(), signum))

    caught = [signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
              if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, handle) for signum in caught}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def report_nothing(selection: Selection, options: Options, trace: Trace) -> int:
    """Say why no test runs; returns the exit code."""
    why = "; ".join(account(selection, options))
    if not any(tests for why, tests in selection.left_out.items() if why.startswith("--shard")):
        warn(f"nothing to run: {why}")
        return EXIT_NOTHING
    trace.line(f"Shard {options.shard} is empty: {why}")
    trace.flush()
    return EXIT_OK


def open_stdout() -> BinaryIO:
    """Standard output as bytes, buffered also under PYTHONUNBUFFERED; the null device if it is closed."""
    if sys.stdout is None:
        return open(os.devnull, "wb")
    with contextlib.suppress(OSError):
        os.set_blocking(sys.stdout.fileno(), True)       # some CIs hand down a pipe that does not block
    return open(sys.stdout.fileno(), "wb", closefd=False)


def choose(tests: Sequence[Test], options: Options) -> Selection:
    """What runs, by the journals; warns where they are not what an option needs. Raises UsageError."""
    history = read_history(options)
    if options.rerun_failed and not history.runs:
        warn(f"--rerun-failed: {journal_path(options)} has no run of this list; all of it runs")
    if options.shard and any(history.shards):
        warn(f"--shard: {journal_path(options)} has runs of single shards; if each shard has a journal of its own, "
             "their parts overlap or miss tests: give all the same by --history and start with an empty log dir")
    if options.only:
        warn_of_strangers(tests, options.only, options.wanted)
    return select(tests, options, history)


def warn_of_strangers(tests: Sequence[Test], only: LabelFile, words: Iterable[str]) -> None:
    """Say which names of `--only` and of `--message` mean no test here, and which tests such a file does not know.

    A file that ci_dedup.py wrote names in comments what it left out: a test that it names nowhere is new.
    """
    here = {test.label for test in tests}
    strange = sorted(label for label in only.labels - here if not label.startswith("# "))
    if strange:
        warn(f"--only {only.path}: {len(strange)} of its labels name no test here: {first_of(strange)}")
    left_out = {label[2:] for label in only.labels if label.startswith("# ")}
    new = [test.label for test in tests if test.label not in only.labels | left_out]
    if new and here & left_out and "all" not in words:
        warn(f"--only {only.path}: {len(new)} tests are new to it, and deferred unless it or the message names them: "
             f"{first_of(new)}")
    for word in words:
        if word != "all" and not any(has_word(test, word) for test in tests):
            warn(f"--message: `[ci {word}]` names no test; its words are parts of labels or tags")


def drop_coerced_locale() -> None:
    """Take out of the environment what Python itself has put there where the locale was C (PEP 538)."""
    if "LC_CTYPE" in os.environ:
        with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
            if not re.search(rb"(^|\0)LC_CTYPE=", file.read()):
                del os.environ["LC_CTYPE"]


def run_lists(options: Options, environ: Mapping[str, str]) -> int:
    """From options to exit code. Raises ListError, UsageError, MachineError before any test has started."""
    drop_coerced_locale()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)    # where it is ignored, the kernel drops exit statuses
    signal.signal(STACKS, signal.SIG_IGN)            # tests inherit it: see dump_stacks
    with signals_to(lambda event: sys.exit(EXIT_SIGNAL + event.signum)):
        run = prepare(options, environ, Trace(open_stdout()), Reaper())
    if isinstance(run, int):
        return run
    start = time.monotonic()
    with signals_to(run.inbox.put):
        run.execute()
    return run.report(time.monotonic() - start)


def prepare(options: Options, environ: Mapping[str, str], trace: Trace, reaper: Reaper) -> Union["Run", int]:
    """All that comes before the first test: the run, or the exit code where there is none."""
    script = next(filter(is_script, options.lists), None)
    if script is not None:
        check_script(script, options)
        return ScriptRun(find_gpus(options, environ), options, trace, reaper)
    try:
        tests = parse_lists(options)
    finally:
        reaper.end_orphans()             # daemons of shell state: each test starts its own
        reaper.nameless.clear()
    if not tests:
        warn(f"no tests in {', '.join(options.lists)}")
        return EXIT_NOTHING
    selection = choose(tests, options)
    if not selection.tests:
        return report_nothing(selection, options, trace)
    if options.list_only or options.plan:
        listed = (f"{test.label}\t{test_need(test)}\t{test.stem}\t{test.where}" for test in selection.tests
                  if test not in selection.deferred)
        for line in plan_lines(selection, options) if options.plan else listed:
            trace.line(line)
        for line in account(selection, options) if options.list_only else ():
            warn(line)
        trace.flush()
        return EXIT_OK
    return Run(selection, find_gpus(options, environ), options, trace, reaper)


def find_gpus(options: Options, environ: Mapping[str, str]) -> Machine:
    """The devices of this run. Raises UsageError, and MachineError where they are fewer than demanded."""
    machine = find_machine(options.gpus, environ)
    if len(machine.devices) < options.require_gpus:
        found = " ".join(device.token for device in machine.devices) or "none"
        raise MachineError(f"--require-gpus {options.require_gpus}: there are {len(machine.devices)} ({found}); "
                           "mend the machine or its mask")
    return machine


def is_script(name: str) -> bool:
    """Whether a file is a script, which bash itself runs, and no list."""
    if os.path.isfile(name):             # a pipe could not be read again
        with contextlib.suppress(OSError), open(name, "rb") as file:
            return name.endswith(".sh") or file.read(2) == b"#!"
    return False


def check_script(name: str, options: Options) -> None:
    """A script runs alone and from top to bottom. Raises UsageError or ListError."""
    if len(options.lists) > 1:
        raise UsageError(f"{name} is a script; it runs alone, in a call of its own; its arguments follow `--`")
    unknown = {"--list": options.list_only, "--plan": options.plan, "--shard": options.shard, "-k": options.keep,
               "--max-gpus": options.max_gpus, "--only": options.only, "--rerun-failed": options.rerun_failed}
    for option, value in unknown.items():
        if value:
            raise UsageError(f"{option}: {name} is a script, whose tests show only as it runs; leave {option} out, or "
                             "put its test commands into a list")
    text = read_list(name)
    if re.match(r"#!(?!.*sh\b)", text):
        raise ListError(f"{name}:1: this is a script, but none for bash; run it by a line of a list")
    script = Script(name, text, options.handlers)
    for line, sites in sorted(script.sites.items()):
        if sites[0].attributes.after:
            script.parsed.complain(line, "after= means nothing in a script, which has an order of its own; take it out")
    if script.parsed.mistakes:
        raise ListError(*script.parsed.messages())


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line: returns the exit code, prints mistakes on stderr, never a traceback."""
    try:
        return run_lists(parse_command_line(sys.argv[1:] if argv is None else argv, os.environ), os.environ)
    except ListError as error:
        warn(str(error), name="")
        return EXIT_USAGE
    except (UsageError, MachineError) as error:
        warn(f"error: {error}")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_MACHINE
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except Exception as error:
        warn(f"internal error, {error!r}; please report it with the list that shows it")
        return EXIT_MACHINE


if __name__ == "__main__":
    sys.exit(main())
