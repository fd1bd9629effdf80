#!/usr/bin/env python3
"""How near to the bound a suite ends on 8 GPUs: the runner and its peers on real durations, a Markdown table.

    python3 qa/bench/schedules.py [--repeats 3] [--bound 6] [--sets vllm,sglang_run] [--json FILE]

The durations of three projects' suites (`durations/*.tsv`: name, seconds, GPUs; the first line says where they are
from) are run as sleeps, scaled so that no schedule can end before `--bound` seconds: the GPU time over 8 GPUs, or the
longest test. Each set is run twice: its tests of one GPU, and `mixed`, all of them. Tests stand in alphabetical order,
as a list made with `ls` has them; the file of pytorch is sorted by duration, which would flatter waves. All peers run
the same tests through `bash -c`, in turns, A B C A B C, so that whatever else the machine does meets all of them.
Figures are wall time over the bound: the median of the repeats, the smallest and the largest.

What the peers can and cannot say:

* waves.sh, xargs, GNU parallel: nothing but the list. The last two know slots, not GPUs: on 8 slots a test of
  4 GPUs is one of 8, so mixed sets cannot be expressed.
* CTest: a resource spec file of 8 `gpus` with one slot each, and `RESOURCE_GROUPS "N,gpus:1"` for a test of N GPUs.
  `-j8`: more could not start more, but makes it go through all that waits whenever a test ends, which is slower. Only
  where a set has tests without GPU it is 16: 8 beside the GPUs, as `--jobs 8` gives the runner.
  "When parallel testing is enabled, tests in the test set will be run in descending order of cost. [...] When the cost
  of a test is not defined by the project, ctest will initially use a default cost of 0. It computes a weighted average
  of the cost each time a test is run and uses that as an improved estimate of the cost for the next run."
  (cmake --help-property COST). So it is cold without `Testing/Temporary/CTestCostData.txt`, in list order, and warm
  with that of an earlier run in the same folder, the longest first; with `-j1` it does not look at it. That cost is
  seconds alone (cmCTestMultiProcessHandler.cxx: CreateParallelTestCostList, TestComparator), and nothing is kept free
  for a test that does not fit (StartNextTests goes on to the next): a wide test waits until enough GPUs happen to be
  free at once. PROCESSORS would change neither, and measured no better; it is left out.
  "Projects can explicitly define the cost of a test": so a third form has COST by hand, 1,000 for each GPU plus the
  exact seconds, which makes CTest start the widest first. Nobody has told the runner that much.
* the runner: cold with a new log dir, warm with the journal of an earlier run in its log dir.
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from overhead import BASH, RUNNER, SLOTS, Broken, Measure, is_installed, machine, names_of, run, scratch, spread

FOLDER = os.path.dirname(os.path.abspath(__file__))
DURATIONS = os.path.join(FOLDER, "durations")
WAVES = os.path.join(FOLDER, "waves.sh")
CPU_SLOTS = 8                            # for tests of no GPU, beside the GPUs
EARLY = 0.999                            # of the bound: clocks may differ by that much, schedules may not
HAND_COST = 1000                         # for each GPU, of CTest's COST by hand: above all scaled seconds


class Row(NamedTuple):
    """One test: seconds and GPUs."""

    name: str
    seconds: float
    gpus: int


class Work(NamedTuple):
    """What all peers run: scaled tests in list order, and the seconds that no schedule can beat."""

    suite: str
    kind: str                            # `1 GPU` or `mixed`
    rows: List[Row]
    bound: float


class Peer(NamedTuple):
    """One way to run a work. `prepare` writes its files into a folder, warms up, and returns the measurement."""

    name: str
    command: str                         # what has to be installed, of the Debian package `package`
    package: str
    prepare: Callable[[Work, str], Measure]
    kinds: Sequence[str] = ("1 GPU", "mixed")


class Measured(NamedTuple):
    """Wall seconds of each peer on a work, by name, one for each turn."""

    work: Work
    walls: Dict[str, List[float]]


# The durations.

def read_rows(path: str) -> List[Row]:
    """The tests of one file in alphabetical order, in seconds of the project's own machines."""
    with open(path, encoding="utf-8") as file:
        fields = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return sorted(Row(name, float(seconds), int(gpus)) for name, seconds, gpus in fields)


def read_sets(wanted: Sequence[str] = ("",)) -> Dict[str, List[Row]]:
    """The tests by set, of those sets whose name begins with one of `wanted`."""
    names = sorted(name[:-len(".tsv")] for name in os.listdir(DURATIONS) if name.endswith(".tsv"))
    return {name: read_rows(os.path.join(DURATIONS, name + ".tsv"))
            for name in names if name.startswith(tuple(wanted))}


def lower_bound(rows: Sequence[Row], gpus: int = SLOTS) -> float:
    """Seconds that no schedule can beat: GPU time over GPUs, or the longest test."""
    return max(sum(row.seconds * row.gpus for row in rows) / gpus, *(row.seconds for row in rows))


def make_works(suites: Dict[str, List[Row]], bound: float) -> Iterator[Work]:
    """Each set as tests of one GPU and, where it has others, mixed; scaled to `bound` seconds."""
    for suite, rows in suites.items():
        narrow = [row for row in rows if row.gpus == 1]
        for kind, chosen in (("1 GPU", narrow), ("mixed", rows if len(rows) > len(narrow) else [])):
            if chosen:
                scale = bound / lower_bound(chosen)
                yield Work(suite, kind, [row._replace(seconds=row.seconds * scale) for row in chosen], bound)


def command_of(row: Row) -> str:
    """Its line of bash: to a tenth of a millisecond, which is less than a process takes to start."""
    return f"sleep {row.seconds:.4f}"


# The peers: each writes what it reads, and returns the measurement of one run in wall seconds.

def write(folder: str, name: str, lines: Sequence[str]) -> str:
    """A file of these lines; returns its path."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return path


def cold_or_warm(is_warm: bool, command: Sequence[str], folder: str, past: str) -> Measure:
    """The measurement of a command after a first run of it, or of one that finds nothing of it in `past`."""
    def measure() -> float:
        if not is_warm:
            shutil.rmtree(os.path.join(folder, past), ignore_errors=True)
        return run(command, folder).seconds

    if is_warm:
        measure()
    return measure


def prepare_waves(work: Work, folder: str) -> Measure:
    """The loop that the runner replaces."""
    lines = write(folder, "tests.tsv", [f"{row.gpus}\t{command_of(row)}" for row in work.rows])
    return lambda: run([BASH, WAVES, str(SLOTS), lines], folder).seconds


def prepare_slots(command: Sequence[str]) -> Callable[[Work, str], Measure]:
    """A tool that reads one command per line and knows slots only."""
    def prepare(work: Work, folder: str) -> Measure:
        lines = write(folder, "tests.txt", [command_of(row) for row in work.rows])
        return lambda: run(command, folder, stdin=lines).seconds
    return prepare


def prepare_runner(is_warm: bool) -> Callable[[Work, str], Measure]:
    """The runner, without or with the journal of an earlier run."""
    def prepare(work: Work, folder: str) -> Measure:
        lines = write(folder, "tests.txt", [
            f"{command_of(row)}  #: {shlex.quote('label=' + row.name)} gpus={row.gpus}" for row in work.rows])
        command = [sys.executable, RUNNER, "--gpus", names_of(SLOTS), "--jobs", str(CPU_SLOTS), "--output", "none",
                   lines]
        return cold_or_warm(is_warm, command, folder, "logs")
    return prepare


def ctest_lines(work: Work, has_cost: bool) -> Iterator[str]:
    """A CTestTestfile.cmake: `add_test(t0 …)` and its properties for each test. (Names are only names to it.)"""
    for number, row in enumerate(work.rows):
        yield f'add_test(t{number} "{BASH}" "-c" "{command_of(row)}")'
        properties = f' RESOURCE_GROUPS "{row.gpus},gpus:1"' if row.gpus else ""
        if has_cost:
            properties += f" COST {row.gpus * HAND_COST + row.seconds:.4f}"
        if properties:
            yield f"set_tests_properties(t{number} PROPERTIES{properties})"


def prepare_ctest(is_warm: bool, has_cost: bool = False) -> Callable[[Work, str], Measure]:
    """CTest, without or with the cost data of an earlier run, or with costs that somebody has written."""
    def prepare(work: Work, folder: str) -> Measure:
        write(folder, "CTestTestfile.cmake", list(ctest_lines(work, has_cost)))
        gpus = [{"id": str(number), "slots": 1} for number in range(SLOTS)]
        spec = {"version": {"major": 1, "minor": 0}, "local": [{"gpus": gpus}]}
        path = write(folder, "gpus.json", [json.dumps(spec)])
        slots = SLOTS + CPU_SLOTS * any(row.gpus == 0 for row in work.rows)
        command = ["ctest", f"-j{slots}", "--resource-spec-file", path]
        return cold_or_warm(is_warm, command, folder, "Testing")
    return prepare


OURS, CTEST, LOOP = "run_tests.py warm", "CTest warm", "waves"
PEERS = (
    Peer(OURS, BASH, "bash", prepare_runner(is_warm=True)),
    Peer("run_tests.py cold", BASH, "bash", prepare_runner(is_warm=False)),
    Peer(CTEST, "ctest", "cmake", prepare_ctest(is_warm=True)),
    Peer("CTest cold", "ctest", "cmake", prepare_ctest(is_warm=False)),
    Peer("CTest, COST by hand", "ctest", "cmake", prepare_ctest(is_warm=False, has_cost=True)),
    Peer("xargs -P8", "xargs", "findutils", prepare_slots(["xargs", f"-P{SLOTS}", "-d", "\\n", "-n1", BASH, "-c"]),
         kinds=["1 GPU"]),
    Peer("parallel -j8", "parallel", "parallel", prepare_slots(["parallel", "--will-cite", f"-j{SLOTS}"]),
         kinds=["1 GPU"]),
    Peer(LOOP, BASH, "bash", prepare_waves),
)


def measure_work(work: Work, peers: Sequence[Peer], repeats: int) -> Measured:
    """Run a work with all peers that can, in turns. Raises Broken if one fails, or is faster than can be."""
    with scratch() as folder:
        measures: Dict[str, Measure] = {}
        for peer in peers:
            if work.kind in peer.kinds:
                own = os.path.join(folder, str(len(measures)))
                os.mkdir(own)
                measures[peer.name] = peer.prepare(work, own)
        walls: Dict[str, List[float]] = {name: [] for name in measures}
        for _ in range(repeats):
            for name, measure in measures.items():
                walls[name].append(measure())
    for name, seconds in walls.items():
        if min(seconds) < EARLY * work.bound:
            raise Broken(f"{name} ends {work.suite} ({work.kind}) in {min(seconds):.3f} s, before the bound of "
                         f"{work.bound:.3f} s: it has not kept to {SLOTS} GPUs, or not run all")
    return Measured(work, walls)


# What is printed.

def ratio(measured: Measured, above: str, below: str) -> str:
    """The walls of one peer over those of another, turn by turn."""
    pairs = zip(measured.walls.get(above, ()), measured.walls.get(below, ()))
    ratios = [one / other for one, other in pairs]
    return spread(ratios) if ratios else "missing"


def cell(measured: Measured, peer: Peer) -> str:
    """The walls of a peer over the bound."""
    if measured.work.kind not in peer.kinds:
        return "n/a"
    walls = measured.walls.get(peer.name)
    return spread([wall / measured.work.bound for wall in walls]) if walls else "missing"


def table_line(measured: Measured) -> str:
    """One work in Markdown."""
    work = measured.work
    return "| " + " | ".join([
        ratio(measured, LOOP, OURS), ratio(measured, OURS, CTEST), f"{work.suite}, {work.kind}",
        f"{len(work.rows)}", *(cell(measured, peer) for peer in PEERS)]) + " |"


def notes(measured: Sequence[Measured], missing: Sequence[Peer], repeats: int) -> Iterator[str]:
    """What the table does not say by itself."""
    yield (f"Wall / bound on {SLOTS} slots: median (smallest to largest) of {repeats} runs in turns. The bound, "
           f"{measured[0].work.bound:g} s, is the GPU time over {SLOTS}, or the longest test.")
    if any(each.work.kind == "mixed" for each in measured):
        yield "n/a: xargs and parallel know slots, not GPUs; a test of several GPUs cannot be expressed."
    for package in sorted({peer.package for peer in missing}):
        names = ", ".join(peer.name for peer in missing if peer.package == package)
        yield f"missing: {names}: not installed (Debian package `{package}`)."
    yield f"Measured on {machine()}; {', '.join(tool_versions(missing))}."


def tool_versions(missing: Sequence[Peer]) -> List[str]:
    """The first line of what each tool says of its version."""
    commands = sorted({peer.command for peer in PEERS} - {peer.command for peer in missing})
    said = [subprocess.run([command, "--version"], stdout=subprocess.PIPE, universal_newlines=True, check=False)
            for command in commands]
    return [tool.stdout.splitlines()[0] if tool.stdout else "?" for tool in said]


def save(path: str, measured: Sequence[Measured]) -> None:
    """All samples as JSON, walls in seconds, for comparison with later ones."""
    works = [{"set": each.work.suite, "kind": each.work.kind, "tests": len(each.work.rows),
              "bound": each.work.bound, "walls": each.walls} for each in measured]
    data: Dict[str, Any] = {"machine": machine(), "time": time.time(), "slots": SLOTS, "works": works}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def parse_options(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line. Exits 2 for values that cannot be."""
    parser = argparse.ArgumentParser(description="Wall time over the lower bound, on suites of real durations.")
    parser.add_argument("--repeats", type=int, default=3, help="counted runs of each peer (3)")
    parser.add_argument("--bound", type=float, default=6.0, help="seconds that durations are scaled to (6)")
    parser.add_argument("--sets", default="", help="beginnings of the names of sets, comma-separated (all)")
    parser.add_argument("--json", metavar="FILE", help="all samples go there")
    options = parser.parse_args(argv)
    if options.repeats < 1 or options.bound <= 0:
        parser.error("--repeats is at least 1, and --bound above 0")
    options.suites = read_sets(options.sets.split(","))
    if not options.suites:
        parser.error(f"--sets {options.sets} names none of {', '.join(read_sets())}")
    return options


def main() -> int:
    """The command line; returns the exit code: 1 if a measured command failed."""
    options = parse_options()
    missing = [peer for peer in PEERS if not is_installed([peer.command])]
    peers = [peer for peer in PEERS if peer not in missing]
    columns = [f"{LOOP} / {OURS}", f"{OURS} / {CTEST}", "suite", "tests", *(peer.name for peer in PEERS)]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    measured: List[Measured] = []
    try:
        for work in make_works(options.suites, options.bound):
            measured.append(measure_work(work, peers, options.repeats))
            print(table_line(measured[-1]), flush=True)
    except Broken as problem:
        print(f"schedules.py: {problem}", file=sys.stderr)
        return 1
    for note in notes(measured, missing, options.repeats):
        print(f"\n{note}")
    if options.json:
        save(options.json, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
