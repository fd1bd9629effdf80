"""What the tests share: the real command line in a folder of its own, and a check of all that a run leaves behind."""
from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import run_tests

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUNNER = os.path.join(ROOT, "run_tests.py")

WAIT_S = 60.0                   # for what takes milliseconds; then the runner hangs
SOON = "run_tests.LINGER_S = 0.1"      # for what is left and would never go by itself
ENDING = b"run_tests.py: SIGTERM: ending the running tests; once more kills them\n"

# Variables that change what a run does: a test sets those that it means.
SHED = re.compile(r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK|CUDA_DEVICE_ORDER|XML_LOG_DIR|FAIL_DIR"
                  r"|RUN_TESTS_.*|(PET_)?MASTER_PORT|OMP_NUM_THREADS|PYTHON(FAULTHANDLER|UNBUFFERED)|BASH_ENV|PYTEST_.*"
                  r"|GITLAB_CI|CI_NODE_.*|CIRCLE_NODE_.*|BUILDKITE_PARALLEL_.*|SEMAPHORE_JOB_.*|SYSTEM_.*INPHASE"
                  r"|SLURM_ARRAY_.*|GITHUB_.*|BUILDKITE|TF_BUILD|TEAMCITY_VERSION|NO_COLOR")
# What a run with one GPU or none says on stderr in any case: that there is none, and the lines that sum up.
ENDS = "failed|crashed|timeout|interrupted|blocked|unrunnable|skipped|flaky"
SUMMARY = re.compile(
    rf"(?m)^(?:(?:{ENDS})\b[^\n]*: [^\n]*(?:\n    .*)?|slowest: .*|without its JUnit file .*"
    r"|leaked: .* left .*|quarantined: .*|\d+ failures? by cause:(?:\n +\d+ x .*)*|\d+ tests? in [\d.]+s on .*"
    r"|Rerun: .*|Alone: .*|run_tests\.py: (?:no GPU found|\w+ or --gpus shows no GPU).*)\n")


def compiled_runner() -> str:
    """The runner as byte code: Python keeps none of a script, and compiles it for 0.1 s."""
    return str(run_tests.__spec__.cached)


def remarks(err: bytes) -> str:
    """What a run has said on stderr besides the lines that sum up."""
    return SUMMARY.sub("", err.decode("utf-8", "replace"))


class Ran(NamedTuple):
    """One finished run of the command line: exit code, output, remarks on stderr, and the folder that it ran in."""

    code: int
    out: bytes
    err: str
    folder: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape")

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def read(self, *names: str) -> str:
        """A file that the run left, as text."""
        with open(self.path(*names), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def journal(self, event: Optional[str] = None, path: str = "logs/run_tests.jsonl") -> List[Dict[str, Any]]:
        """The journal's events, all or those of one kind."""
        events = [json.loads(line) for line in self.read(path).splitlines()]
        return [record for record in events if event in (None, record["event"])]

    def outcomes(self) -> Dict[str, str]:
        """Label to outcome, from the journal."""
        return {record["label"]: record["outcome"] for record in self.journal("test_end")}

    def failures(self) -> List[str]:
        """The lines of `logs/failures`; none if it is absent."""
        return self.read("logs/failures").splitlines() if os.path.exists(self.path("logs/failures")) else []


def a_test(index: int = 0, label: str = "", **values: Any) -> run_tests.Test:
    """A Test with as little in it as may be; `values` are its other fields."""
    label = label or f"t{index}"
    defaults = {"key": f"{index:012x}", "stem": label, "file": "tests.txt", "line": index + 1, "command": "true",
                "shell": run_tests.Snapshot(""), "preface": b"", "attributes": run_tests.Attributes(),
                "barrier": 0, "gpus": 1.0, "timeout": 0, "junit": "", "announces": False,
                "origin": label}
    return run_tests.Test(index=index, label=label, **{**defaults, **values})


def listed(text: str, has_timeouts: bool = False) -> List[run_tests.Test]:
    """Tests from words `label[:gpus[:seconds]][+after=a,b][+lock=x]`; a `|` is a barrier.

    The seconds are what a test is expected to take; with `has_timeouts`, what it may take.
    """
    tests: List[run_tests.Test] = []
    barrier = 0
    for word in text.split():
        if word == "|":
            barrier += 1
            continue
        head, *extras = word.split("+")
        label, gpus, seconds = (head + "::").split(":")[:3]
        named = {key: run_tests.parse_names(names) for key, _, names in (extra.partition("=") for extra in extras)}
        limit = float(seconds) if seconds else None
        tests.append(a_test(len(tests), label, barrier=barrier, gpus=run_tests.parse_gpus(gpus or "1"),
                            attributes=run_tests.Attributes(time=None if has_timeouts else limit, **named),
                            timeout=(limit or 0) * has_timeouts))
    return tests


class RunnerCase(unittest.TestCase):
    """A test case with a folder of its own, removed afterwards."""

    def compare_golden(self, name: str, text: str) -> None:
        """Hold a trace, its times blurred, against a file below tests/golden. `make golden` writes these files."""
        blurred = re.sub(r"\b\d+\.\ds\b", "N.Ns", text)
        blurred = re.sub(r", at \d:\d\d\]", ", at M:SS]", blurred)
        blurred = re.sub(r"(?m)^slowest: .*", "slowest: \u2026", blurred)
        blurred = re.sub(r"(?m)^\d+\.\d times as .*\n", "", blurred)     # where there is a gain
        blurred = re.sub(r"(?m)^(Rerun|Alone): (?:python3 )?\S+", r"\1: python3 run_tests.py", blurred)
        path = os.path.join(ROOT, "tests", "golden", name)
        if os.environ.get("REFRESH_GOLDEN"):
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(blurred)
        with open(path, encoding="utf-8", newline="") as file:
            self.assertEqual(blurred, file.read(), f"{path}; is this change meant? `make golden` takes it over")

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="run_tests.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Without `site`: what is installed there may take as long to load as the runner.
        self.head: List[str] = [sys.executable, "-S", compiled_runner()]

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        """A file in the test's folder; returns its path."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        os.chmod(path, mode)
        return path

    def environment(self, gpus: Optional[str], extra: Mapping[str, str]) -> Dict[str, str]:
        """This process's environment without what would change a run, with a mask and `extra`."""
        environment = {name: value for name, value in os.environ.items() if not SHED.fullmatch(name)}
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        return {**environment, **extra}

    def command(self, *arguments: str) -> List[str]:
        return [*self.head, *arguments]

    def drive(self, *patches: str) -> None:
        """Run the command line from a script that first changes what `patches` say of `run_tests`."""
        start = f"import sys; sys.path.insert(0, {ROOT!r}); import run_tests"
        self.head = [sys.executable, "-S", self.write("driver.py", "\n".join(
            [start, *patches, "run_tests.leave(run_tests.main())\n"]))]

    def start(self, *arguments: str, gpus: Optional[str] = "0,1", env: Mapping[str, str] = {},  # noqa: B006
              **popen: Any) -> "subprocess.Popen[bytes]":
        """Start the runner in the test's folder without waiting for it."""
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, env=self.environment(gpus, env), **popen)

    def run_list(self, text: str, *arguments: str, gpus: Optional[str] = "0,1", env: Mapping[str, str] = {},  # noqa: B006
                 name: str = "tests.txt") -> Ran:
        """Write a list, run it, and wait for the end."""
        self.write(name, text)
        return self.run_command(*arguments, name, gpus=gpus, env=env)

    def run_command(self, *arguments: str, gpus: Optional[str] = "0,1", env: Mapping[str, str] = {},  # noqa: B006
                    stdin: bytes = b"") -> Ran:
        """Run the command line and wait for the end."""
        process = self.start(*arguments, gpus=gpus, env=env, stdin=subprocess.PIPE)
        out, err = process.communicate(stdin)
        return Ran(process.returncode, out, remarks(err), self.folder)

    def bash(self, text: str, prelude: str = "", name: str = "tests.txt") -> bytes:
        """What `bash LIST` prints, stdout and stderr together; `prelude` is sourced first, through BASH_ENV."""
        self.write(name, text)
        extra = {"BASH_ENV": self.write("prelude.sh", prelude)} if prelude else {}
        ran = subprocess.run(["bash", name], cwd=self.folder, env=self.environment(None, extra), check=False,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ran.stdout

    def check(self, ran: Ran, code: int, outcomes: Mapping[str, str]) -> None:
        """Hold a run's journal, `failures`, logs, last line and exit code against each other and against `outcomes`."""
        self.assertEqual(ran.code, code, ran.text + ran.err)
        self.assertEqual(ran.outcomes(), dict(outcomes))
        failed = [label for label, outcome in outcomes.items()
                  if outcome in ("failed", "crashed", "timeout", "unrunnable", "blocked")]
        self.assertEqual(sorted(ran.failures()), sorted(failed))
        last = ran.text.rstrip("\n").rpartition("\n")[2]
        if failed:
            self.assertEqual(last, "Error in the following test cases: " + " ".join(failed))
        elif code == 0:
            self.assertRegex(last, r"^All tests passed(; \d+ [a-z ]+)*$")
        self.assertEqual(ran.journal()[0]["event"], "run_start")
        end = ran.journal()[-1]
        self.assertEqual((end["event"], end["exit"], sum(end["outcomes"].values())), ("run_end", code, len(outcomes)))
        for record in ran.journal("test_start"):
            self.assertTrue(os.path.isfile(ran.path(record["log"])), record["log"])
        self.assertNotIn("Traceback", ran.err)

    def stub(self, name: str, script: str) -> str:
        """An executable of that name in a folder to put on PATH; returns the folder."""
        self.write(f"bin/{name}", script, mode=0o755)
        return os.path.join(self.folder, "bin")


class Fifo:
    """A FIFO whose end here never blocks: the process on the other side opens it when it likes."""

    def __init__(self, case: RunnerCase, name: str) -> None:
        self.path = os.path.join(case.folder, name)
        os.mkfifo(self.path)
        self.end = os.open(self.path, os.O_RDWR)
        case.addCleanup(os.close, self.end)

    def lines(self, count: int = 1) -> List[bytes]:
        """The next lines that processes write to it."""
        text = b""
        while text.count(b"\n") < count:
            ready, _, _ = select.select([self.end], [], [], WAIT_S)
            if not ready:
                raise AssertionError(f"nobody writes to {self.path} after {text!r}")
            text += os.read(self.end, 4096)
        return text.splitlines()

    def release(self) -> None:
        """One line for the process that waits for it."""
        os.write(self.end, b"go\n")


class GatedCase(RunnerCase):
    """A test case whose runners wait at FIFOs; where an assertion fails meanwhile, they are ended."""

    def start(self, *arguments: str, **changes: Any) -> "subprocess.Popen[bytes]":
        process = super().start(*arguments, **changes)
        self.addCleanup(self.stop, process)
        return process

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            process.terminate()          # it ends its tests
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()

    def read_until(self, process: "subprocess.Popen[bytes]", text: bytes) -> bytes:
        """What a runner prints, until a text has come."""
        assert process.stdout is not None
        data = b""
        while text not in data:
            ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
            more = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not more:
                self.fail(f"{text!r} never comes after {data!r}")
            data += more
        return data


class Lifeline:
    """A pipe that processes inherit; it is at its end once none of them is left."""

    def __init__(self, case: RunnerCase) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_inheritable(self.write_end, True)
        os.set_blocking(self.read_end, False)
        case.addCleanup(os.close, self.read_end)

    def let_go(self) -> None:
        """We no longer hold it: those who inherited it do."""
        os.close(self.write_end)

    def is_cut(self) -> bool:
        try:
            return os.read(self.read_end, 1) == b""
        except BlockingIOError:
            return False


def interrupted(case: RunnerCase, program: str, name: str = "never") -> Tuple[int, bytes]:
    """Exit code and standard error of a program that gets a Ctrl-C as it reads the file that it is to read."""
    path = os.path.join(case.folder, name)
    os.mkfifo(path)
    # In a job of a shell SIGINT is ignored.
    run = ("import os, runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); del sys.argv[0]\n"
           "sys.path[0] = os.path.dirname(sys.argv[0]); runpy.run_path(sys.argv[0], run_name='__main__')")
    process = subprocess.Popen([sys.executable, "-c", run, program, path], stderr=subprocess.PIPE)
    with open(path, "wb"):          # not before the program has opened it
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=WAIT_S)[1]
    return process.returncode, err


def lines_of(text: str, start: str) -> Sequence[str]:
    """The lines of a trace that begin with `start`."""
    return [line for line in text.splitlines() if line.startswith(start)]
