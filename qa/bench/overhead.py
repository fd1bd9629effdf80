#!/usr/bin/env python3
"""What the runner costs beyond the tests: a Markdown table, ratios first.

    python3 qa/bench/overhead.py [--repeats 5] [--size 1G] [--json FILE]

Every row sets the runner (A) against something that does the same without it (B), and runs them in turns, A B A B,
so that whatever else the machine does meets both. A ratio is the median of the repeats' own ratios, with the
smallest and the largest; so are seconds and MB. A peer that is not installed is named with the package that has it.

Peak memory is the kernel's `ru_maxrss` of the runner's process, from wait4. The kernel counts the largest
process among it and its children, never their sum, and never less than this tool had when it started the runner:
this tool stays smaller than the runner, and says so where it does not.
"""
import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "run_tests.py")
BASH = shutil.which("bash") or "bash"    # whole path: none of them is to search PATH a thousand times
SLOTS = 8
SHORT_LINES = 1_000                      # some seconds: long against start-up, short enough to repeat
LONG_LINES = 10_000                      # memory per line shows above that of the interpreter
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024   # unit of ru_maxrss
MB = 1_000_000
STAMP = 'echo "$EPOCHREALTIME"'          # bash 5: seconds since the epoch, in microseconds
OUTER = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "XML_LOG_DIR",
         "FAIL_DIR", "RUN_TESTS_OPTS")   # would change what the runner does


class Broken(Exception):
    """A command that is measured has failed: its time means nothing."""


class Ran(NamedTuple):
    """One process: epoch seconds at its start and its end, wall seconds, peak bytes."""

    start: float
    end: float
    seconds: float
    peak: int


class Row(NamedTuple):
    """One line of the table. Samples are those of A and of B, in pairs; none where B is missing."""

    what: str
    against: str
    unit: str
    ours: List[float]
    theirs: List[float]
    missing: str = ""


Measure = Callable[[], float]


def run(command: Sequence[str], cwd: str, stdin: Optional[str] = None, stdout: Optional[str] = None) -> Ran:
    """Run a command to its end; its output goes to a file or nowhere. Raises Broken unless it exits 0."""
    environment = {name: value for name, value in os.environ.items() if name not in OUTER}
    environment.update(LC_ALL="C", SHELL=BASH)          # a `.` in $EPOCHREALTIME; the shell of parallel
    with open(stdin or os.devnull, "rb") as source, open(stdout or os.devnull, "wb") as sink:
        start, clock = time.time(), time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=source, stdout=sink)
        _, status, usage = os.wait4(process.pid, 0)
        seconds, end = time.perf_counter() - clock, time.time()
    process.returncode = status          # wait4 has reaped it; Popen must not wait for it again
    if status:
        raise Broken(f"wait status {status} from {' '.join(command)}")
    return Ran(start, end, seconds, usage.ru_maxrss * MAXRSS_BYTES)


@contextlib.contextmanager
def scratch(lines: Sequence[str] = ()) -> Iterator[str]:
    """A new directory with `tests.txt` in it, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        with open(os.path.join(folder, "tests.txt"), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        yield folder


def names_of(gpus: int) -> str:
    """Ids of so many GPUs, of which no nvidia-smi here says that they are not there."""
    return ",".join(f"GPU-{number}" for number in range(gpus))


def run_list(folder: str, gpus: int, name: str = "tests.txt") -> Ran:
    """The runner on a list or script of a directory; its logs go there too."""
    return run([sys.executable, RUNNER, "--gpus", names_of(gpus), name], folder)


def pairs(repeats: int, ours: Measure, theirs: Measure) -> Tuple[List[float], List[float]]:
    """Samples of both, taken in turns. The first turn warms caches and is not counted."""
    samples = [(ours(), theirs()) for _ in range(repeats + 1)][1:]
    return [ours for ours, _ in samples], [theirs for _, theirs in samples]


# What is measured.

def find_peers() -> List[Tuple[str, List[str]]]:
    """The other tools that run lines on slots: package and command."""
    slots = str(SLOTS)
    return [("findutils", ["xargs", "-P" + slots, "-n1", BASH, "-c"]),
            ("parallel", ["parallel", "--will-cite", "-j" + slots]),
            ("cmake", ["ctest", "-j" + slots])]


def is_installed(command: Sequence[str]) -> bool:
    """Whether a tool is there. moreutils has a `parallel` too, with other options."""
    if shutil.which(command[0]) is None:
        return False
    if command[0] != "parallel":
        return True
    said = subprocess.run(["parallel", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return said.stdout.startswith(b"GNU parallel")


def throughput_row(repeats: int, package: str, command: Sequence[str]) -> Row:
    """(a) Many empty tests: what starting, watching and recording one costs. Most of it is bash's own start."""
    what, name = f"{SHORT_LINES:,} lines `true`, {SLOTS} slots: wall", " ".join(command)
    if not is_installed(command):
        return Row(what, f"`{name}`", "s", [], [], f"not installed (package `{package}`)")
    with scratch(["true"] * SHORT_LINES) as folder:
        lines = os.path.join(folder, "tests.txt")
        with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.writelines(f'add_test(t{number} "{BASH}" "-c" "true")\n' for number in range(SHORT_LINES))
        return Row(what, f"`{name}`", "s", *pairs(
            repeats, lambda: run_list(folder, SLOTS).seconds, lambda: run(command, folder, stdin=lines).seconds))


def memory_row(repeats: int) -> Row:
    """(b) What a line costs in memory."""
    with scratch(["true"] * LONG_LINES) as long, scratch(["true"]) as short:
        return Row(f"{LONG_LINES:,} lines `true`, {SLOTS} slots: peak memory", "a list of one line", "MB", *pairs(
            repeats, lambda: run_list(long, SLOTS).peak / MB, lambda: run_list(short, SLOTS).peak / MB))


def start_row(repeats: int) -> Row:
    """(c) From the start of the process to the first line of the first test."""
    bare = f"import os; os.execv({BASH!r}, ['bash', '-c', {STAMP!r}])"

    def first_line(ran: Ran, path: str) -> float:
        with open(path, encoding="ascii") as file:
            stamp = file.read().strip()
        if not stamp:
            raise Broken("this bash has no EPOCHREALTIME; it is older than 5.0")
        return (float(stamp) - ran.start) * 1000

    what, against = "start of the process to start of the first test", "Python that becomes the same bash"
    with scratch([STAMP + "  #: label=stamp"]) as folder:
        out, log = os.path.join(folder, "out"), os.path.join(folder, "logs", "stamp.log")
        return Row(what, against, "ms", *pairs(
            repeats, lambda: first_line(run_list(folder, 1), log),
            lambda: first_line(run([sys.executable, "-c", bare], folder, stdout=out), out)))


def script_row(repeats: int) -> Row:
    """(d) What each test of a script costs: the time of many, less that of one."""
    what = f"a test `true` of a script of {SHORT_LINES:,}, 4 slots: wall"
    line = f"{shutil.which('true')} || test_fail true\n"

    def each(start: Callable[[str], Ran]) -> float:
        return (start("long.sh").seconds - start("short.sh").seconds) / (SHORT_LINES - 1) * 1000

    with scratch() as folder:
        for name, count in (("long.sh", SHORT_LINES), ("short.sh", 1)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("test_fail() { RET=1; }\n" + line * count)
        return Row(what, "the script under bash", "ms", *pairs(
            repeats, lambda: each(lambda name: run_list(folder, 4, name)),
            lambda: each(lambda name: run([BASH, name], folder))))


def replay_rows(repeats: int, size: int) -> List[Row]:
    """(e) A large log, shown at the end of the run: its wall time from `run_end` on, and the run's peak memory."""
    peaks: List[float] = []

    def replay() -> float:
        ran = run_list(folder, 2)        # with one slot nothing is replayed: output is shown as it comes
        with open(os.path.join(folder, "logs", "run_tests.jsonl"), encoding="ascii") as file:
            last = json.loads(file.readlines()[-1])
        peaks.append(ran.peak / MB)
        return ran.end - float(last["time"])

    with scratch([f"head -c {size} /dev/zero  #: label=large"]) as folder, scratch(["true"]) as small:
        log = os.path.join("logs", "large.log")
        walls = pairs(repeats, replay, lambda: run(["cat", log], folder).seconds)
        empty = [run_list(small, 2).peak / MB for _ in range(repeats)]
    told = f"replay of a log of {size / MB:,.0f} MB to /dev/null"
    return [Row(f"{told}: wall", "`cat` of the log", "s", *walls),
            Row(f"{told}: peak memory", "an empty log", "MB", peaks[1:], empty)]


# What is printed.

def median(values: Sequence[float]) -> float:
    """The middle value. (The module statistics would cost this tool memory that it must not have.)"""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(values: Sequence[float], unit: str = "") -> str:
    """`1.23 s (1.20 to 1.31)`: median, smallest, largest, to three digits."""
    def digits(value: float) -> str:
        return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"
    return f"{digits(median(values))}{unit and ' ' + unit} ({digits(min(values))} to {digits(max(values))})"


def machine() -> str:
    """What all figures depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def table_line(row: Row, measured_on: str) -> str:
    """One row in Markdown."""
    if row.missing:
        return f"| - | {row.what} | - | {row.against} | {row.missing} | 0 | {measured_on} |"
    ratio = spread([ours / theirs for ours, theirs in zip(row.ours, row.theirs)])
    return (f"| {ratio} | {row.what} | {spread(row.ours, row.unit)} | {row.against} | {spread(row.theirs, row.unit)} "
            f"| {len(row.ours)} | {measured_on} |")


def parse_size(text: str) -> int:
    """Bytes in `1000`, `100M`, `1G` (powers of 1024, as `head -c` has them). Raises ValueError."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def measure(repeats: int, size: int) -> Iterator[Row]:
    """All rows, each as soon as it is measured."""
    for package, command in find_peers():
        yield throughput_row(repeats, package, command)
    yield memory_row(repeats)
    yield start_row(repeats)
    yield script_row(repeats)
    yield from replay_rows(repeats, size)


def save(path: str, rows: Sequence[Row], measured_on: str) -> None:
    """All samples as JSON, for comparison with later ones."""
    data: Dict[str, Any] = {"machine": measured_on, "time": time.time(), "rows": [row._asdict() for row in rows]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def main() -> int:
    """The command line; returns the exit code: 1 if a measured command failed."""
    parser = argparse.ArgumentParser(description="What run_tests.py costs beyond the tests: a Markdown table.")
    parser.add_argument("--repeats", type=int, default=5, help="counted runs of each (5)")
    parser.add_argument("--size", type=parse_size, default="1G", help="of the log that is replayed (1G)")
    parser.add_argument("--json", metavar="FILE", help="all samples go there")
    options = parser.parse_args()
    if options.repeats < 1 or options.size < 1:
        parser.error("--repeats and --size are at least 1")
    measured_on, rows = machine(), []
    print("| ratio | measurement | run_tests.py | against | that | runs | measured on |", flush=True)
    print("|---" * 7 + "|", flush=True)
    try:
        for row in measure(options.repeats, options.size):
            rows.append(row)
            print(table_line(row, measured_on), flush=True)
    except Broken as problem:
        print(f"overhead.py: {problem}", file=sys.stderr)
        return 1
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES / MB
    if any(row.unit == "MB" and min(row.ours + row.theirs) <= own for row in rows):
        print(f"\nPeaks of {own:.1f} MB and below are this tool's own.")
    if options.json:
        save(options.json, rows, measured_on)
    return 0


if __name__ == "__main__":
    sys.exit(main())
