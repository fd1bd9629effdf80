"""The real command line on several GPUs: options, exit codes, signals, streams, and the trace against golden files.

Refresh the golden files after a change of what is printed, and read the difference:

    REFRESH_GOLDEN=1 python3 -m unittest tests.test_command_line
"""
from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import unittest
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

import run_tests
from tests.support import ROOT, RUNNER, Ran, RunnerCase, a_test, lines_of

GOLDEN = os.path.join(ROOT, "tests", "golden")
REFRESH = bool(os.environ.get("REFRESH_GOLDEN"))
WAIT_S = 60                      # for what takes milliseconds; then something hangs
TWO, FOUR = "0,1", "0,1,2,3"

# A line waits in bash until the journal says that another test has ended: a file, not a span of time. It gives up
# when the folder is gone, so that nothing outlives a runner that has lost it.
AFTER = "until grep -qs '\"test_end\".*\"label\": \"{}\"' logs/run_tests.jsonl; do "\
        "test -d logs && sleep 0.01 || exit 9; done"


# A shell that waits for a signal: it runs its traps between two commands. In `read` or `wait` it can miss one that
# comes just before it blocks.
STAY = "while :; do sleep 0.01; done 2>/dev/null"       # bash tells there that a `sleep` was killed


class Fifo:
    """A FIFO between this process and a test. It is open at both ends here, so that nobody's `open` blocks."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, name)
        os.mkfifo(path)
        self.descriptor = os.open(path, os.O_RDWR)

    def send(self, text: str = "go") -> None:
        """A line for the test."""
        os.write(self.descriptor, text.encode() + b"\n")

    def line(self) -> str:
        """The next line from the test."""
        return read_line(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def read_line(descriptor: int) -> str:
    """The next line of a pipe, without its end. Raises AssertionError when none comes."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], WAIT_S)
        assert ready, f"no line came, only {data!r}"
        piece = os.read(descriptor, 1)
        assert piece, f"the pipe was closed after {data!r}"
        data += piece
    return data[:-1].decode()


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that is dead and that nobody has reaped yet does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class CommandLineCase(RunnerCase):
    """A RunnerCase that can talk to running tests and ends what it has started."""

    def fifo(self, name: str) -> Fifo:
        fifo = Fifo(self.folder, name)
        self.addCleanup(fifo.close)
        return fifo

    def begin(self, text: str, *arguments: str, gpus: Optional[str] = TWO, env: Mapping[str, str] = {},  # noqa: B006
              **popen: Any) -> "subprocess.Popen[bytes]":
        """Start the runner on a list."""
        self.write("tests.txt", text)
        process = self.start(*arguments, "tests.txt", gpus=gpus, env=env, **popen)
        self.addCleanup(self.abandon, process)
        return process

    def run_command(self, *arguments: str, gpus: Optional[str] = TWO, env: Mapping[str, str] = {},  # noqa: B006
                    stdin: bytes = b"") -> Ran:
        """Run the command line and wait for the end, but not for ever."""
        process = self.start(*arguments, gpus=gpus, env=env, stdin=subprocess.PIPE)
        self.addCleanup(self.abandon, process)
        out, err = process.communicate(stdin, timeout=WAIT_S)
        return Ran(process.returncode, out, err.decode("utf-8", "replace"), self.folder)

    @staticmethod
    def abandon(process: "subprocess.Popen[bytes]") -> None:
        """End a runner, whatever state a failed test has left it in."""
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def clean(self) -> None:
        """Forget the run before."""
        shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
        if os.path.exists(os.path.join(self.folder, "pids")):
            os.unlink(os.path.join(self.folder, "pids"))

    def end(self, process: "subprocess.Popen[bytes]") -> Ran:
        """Wait for the end of a run."""
        out, err = process.communicate(timeout=WAIT_S)
        return Ran(process.returncode, out or b"", (err or b"").decode("utf-8", "replace"), self.folder)

    def pids(self) -> List[int]:
        """The process numbers that tests have written to the file `pids`."""
        with open(os.path.join(self.folder, "pids"), encoding="ascii") as file:
            return [int(line) for line in file]

    def check_all_gone(self, count: int) -> None:
        """`count` processes have written their numbers, and none of them runs."""
        pids = self.pids()
        self.assertEqual(len(pids), count)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])


# Exit codes and mistakes.

class Ends(NamedTuple):
    """A list, arguments, and what must come of them: exit code and, for a mistake, a pattern in stderr."""

    text: str
    arguments: Sequence[str]
    code: int
    error: str = ""
    gpus: Optional[str] = TWO
    env: Mapping[str, str] = {}


EXIT_CODES: Mapping[str, Ends] = {
    "all passed": Ends("true\necho two\n", [], 0),
    "one failed": Ends("true\nfalse\n", [], 1),
    "one crashed": Ends("kill -KILL $$\n", [], 1),
    "a status of 137 is not the runner's": Ends("exit 137\n", [], 1),
    "a status of 2 is not the runner's": Ends("exit 2\nexit 3\nexit 5\n", [], 1),
    "one took too long": Ends("sleep 1000\n", ["--timeout", "0.1s"], 1),
    "one cannot run": Ends("true #: gpus=3\n", [], 1),
    "one cannot run and another waits for it": Ends("true #: gpus=3\nfalse #: after=true\n", [], 1),
    "bad bash": Ends("true\nfi\n", [], 2, r"^tests\.txt:2: .*fi"),
    "an open quote": Ends("true\n\necho 'a\n", [], 2, r"^tests\.txt:3: .*'"),
    "an unknown key": Ends("true #: gpu=1\n", [], 2, r"^tests\.txt:1: .*gpu"),
    "a bad value": Ends("\ntrue #: gpus=-1\n", [], 2, r"^tests\.txt:2: .*gpus.*-1"),
    "a missing list": Ends("true\n", ["missing.txt"], 2, r"^missing\.txt: .*No such file"),
    "a folder as a list": Ends("true\n", ["."], 2, r"^\.: .*directory"),
    "a mask with duplicates": Ends("true\n", [], 2, r"CUDA_VISIBLE_DEVICES=0,1,0", "0,1,0"),
    "more GPUs than the mask shows": Ends("true\n", ["--gpus", "3"], 2, r"--gpus 3"),
    "a GPU that the mask hides": Ends("true\n", ["--gpus", "0,7"], 2, r"--gpus 0,7.*7"),
    "after names nothing": Ends("true #: after=none\n", [], 2, r"^tests\.txt:1: after=none names no test"),
    "after goes in a circle": Ends("true #: after=false\nfalse #: after=true\n", [], 2, r"^tests\.txt:2: .* circle"),
    "a key of a later version": Ends("true\nfalse #: split=1\n", [], 2, r"^tests\.txt:2: split= is not supported yet"),
    "a history that is missing": Ends("true\n", ["--history", "none"], 2, r"--history none: cannot be read"),
    "log dir is a file": Ends("true\n", ["--log-dir", "tests.txt"], 3, r"tests\.txt"),
    "log dir is below a file": Ends("true\n", ["--log-dir", "tests.txt/logs"], 3, r"tests\.txt/logs"),
    "fail dir is a file": Ends("true\n", ["--fail-dir", "tests.txt"], 3, r"tests\.txt"),
    "journal is a folder": Ends("true\n", ["--journal", "."], 3, r"--journal"),
    "fewer GPUs than required": Ends("true\n", ["--require-gpus", "3"], 3, r"--require-gpus 3: there are 2 \(0 1\); "),
    "no GPU where one is required": Ends("true\n", ["--require-gpus", "1"], 3, r"there are 0 \(none\); ", ""),
    "as many GPUs as required": Ends("true\n", ["--require-gpus", "2"], 0),
    "no bash": Ends("true\n", [], 3, r"bash", env={"PATH": "/nonexistent"}),
    "an empty list": Ends("", [], 5, r"tests\.txt"),
    "only comments": Ends("# one\n\n   # two\n#: gpus=0\n", [], 5, r"tests\.txt"),
    "only state": Ends("A=1\nexport B=2\nwait\n", [], 5, r"tests\.txt"),
}

BAD_OPTIONS: Mapping[Tuple[str, ...], str] = {
    ("--gpus", "x"): r"--gpus.*'x'", ("--gpus", "0,0"): r"--gpus.*'0,0'", ("--gpus", ""): r"--gpus.*''",
    ("--gpus", ","): r"--gpus.*','", ("--gpus", "-1"): r"--gpus", ("--gpus", "0 1"): r"--gpus.*'0 1'",
    ("--jobs", "0"): r"--jobs.*'0'", ("--jobs", "two"): r"--jobs.*'two'",
    ("--jobs", "-3"): r"--jobs", ("--timeout", "5x"): r"--timeout.*'5x'",
    ("--timeout", "-5"): r"--timeout", ("--timeout", "inf"): r"--timeout.*'inf'",
    ("--grace", "soon"): r"--grace.*'soon'", ("--grace", ""): r"--grace.*''",
    ("--slow", "often"): r"--slow.*'often' is not a duration", ("--deadline", "5x"): r"--deadline.*'5x'",
    ("--deadline", "-1"): r"--deadline", ("--flaky", "maybe"): r"--flaky.*'maybe'.*pass.*fail",
    ("--flaky", ""): r"--flaky.*''", ("--leaks", "pass"): r"--leaks.*'pass'.*report.*fail",
    ("--require-gpus", "0"): r"--require-gpus.*'0' is not a whole number from 1",
    ("--require-gpus", "two"): r"--require-gpus.*'two'",
    ("--pytest-args=it's",): r'--pytest-args.*"it\'s"', ("--output", "all"): r"--output.*'all'.*replay",
    ("--shard", "5/4"): r"--shard.*'5/4' is not K/N", ("--max-gpus", "0"): r"--max-gpus.*'0'",
    ("--max-gpus", "all"): r"--max-gpus.*'all'", ("--order", "size"): r"--order.*'size'.*failed-first",
    ("-k", "a b"): r"-k.*'a b' is not names",
    ("--bogus",): r"--bogus", ("-x",): r"-x",
    # An abbreviation would change its meaning with the next option of a similar name.
    ("--gpu", "2"): r"--gpu\b", ("--time", "3"): r"--time\b", ("--fail",): r"--fail\b", ("--log", "d"): r"--log\b",
    ("--lis",): r"--lis\b", ("--vers",): r"--vers\b", ("--rerun",): r"--rerun\b", ("--his", "x"): r"--his\b",
    ("--max", "2"): r"--max\b", ("--pla",): r"--pla\b", ("--shards", "1/2"): r"--shards\b",
}


class ExitCodes(CommandLineCase):
    """One number tells a script what happened."""

    def test_table(self) -> None:
        for name, case in EXIT_CODES.items():
            with self.subTest(name):
                self.clean()
                ran = self.run_list(case.text, *case.arguments, gpus=case.gpus, env=case.env)
                self.assertEqual(ran.code, case.code, ran.text + ran.err)
                if case.error:
                    self.assertRegex(ran.err, re.compile(case.error, re.M))
                    self.assertEqual(ran.out, b"")
                    self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".log")], [])
                    self.assertFalse(case.code == 2 and os.path.exists(ran.path("logs")))
                else:
                    self.assertEqual(ran.err, "")
                    outcomes = sorted(ran.outcomes().items(), key=lambda item: case.text.index(item[0]))
                    self.check(ran, case.code, dict(outcomes))
                self.assertNotIn("Traceback", ran.err)

    def test_bad_options_name_the_mistake(self) -> None:
        for arguments, pattern in BAD_OPTIONS.items():
            with self.subTest(arguments):
                ran = self.run_list("touch started\n", *arguments)
                self.assertEqual((ran.code, ran.out), (2, b""))
                self.assertRegex(ran.err, r"^usage: ")
                self.assertRegex(ran.err.splitlines()[-1], r"^run_tests\.py: error: .*" + pattern)
                self.assertEqual(sorted(os.listdir(self.folder)), ["tests.txt"])

    def test_no_list(self) -> None:
        ran = self.run_command()
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"error: .*LIST")

    def test_all_mistakes_of_all_lists_at_once(self) -> None:
        self.write("a.txt", "touch started\necho 'open\n")
        self.write("b.txt", "true #: gpus=x\nfalse #: nokey=1\n")
        ran = self.run_command("a.txt", "missing.txt", "b.txt")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertEqual(sorted(line.split(": ")[0] for line in ran.err.splitlines()),
                         ["a.txt:2", "b.txt:1", "b.txt:2", "missing.txt"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.txt", "b.txt"])

    def test_log_dir_that_is_missing_is_made(self) -> None:
        ran = self.run_list("false\n", "--log-dir", "a/b c/logs", "--fail-dir", "d/e")
        self.assertEqual(ran.code, 1)
        self.assertEqual(sorted(os.listdir(ran.path("a/b c/logs"))), ["false.log", "run_tests.jsonl"])
        self.assertEqual(ran.read("d/e/failures"), "false\n")
        self.assertEqual([record["event"] for record in ran.journal(path="a/b c/logs/run_tests.jsonl")],
                         ["run_start", "test_start", "test_end", "run_end"])

    def test_folders_from_the_environment(self) -> None:
        """$XML_LOG_DIR and $FAIL_DIR, of which an empty one is none; a given FAIL_DIR's file is appended to."""
        self.write("fail/failures", "from before\n")
        env = {"XML_LOG_DIR": "xml", "FAIL_DIR": os.path.join(self.folder, "fail")}
        ran = self.run_list("false\n", env=env)
        self.assertEqual((ran.code, sorted(os.listdir(ran.path("xml")))), (1, ["false.log", "run_tests.jsonl"]))
        self.assertEqual(ran.read("fail/failures"), "from before\nfalse\n")
        ran = self.run_list("false\n", "--log-dir", "option", "--fail-dir", "other", env=env)
        self.assertEqual((os.path.isdir(ran.path("option")), ran.read("other/failures")), (True, "false\n"))
        ran = self.run_list("false\n", env={"XML_LOG_DIR": "", "FAIL_DIR": ""})
        self.check(ran, 1, {"false": "failed"})

    def test_failures_of_the_log_dir_start_fresh(self) -> None:
        self.check(self.run_list("false\n"), 1, {"false": "failed"})
        os.unlink(os.path.join(self.folder, "logs", "run_tests.jsonl"))
        ran = self.run_list("true\n")
        self.check(ran, 0, {"true": "passed"})
        self.assertFalse(os.path.exists(ran.path("logs/failures")))


# What the options do.

class Information(CommandLineCase):
    """Options that run nothing."""

    def test_version_has_the_hash_of_the_file(self) -> None:
        with open(RUNNER, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()[:12]
        ran = subprocess.run([sys.executable, RUNNER, "--version"], stdout=subprocess.PIPE, check=True)
        self.assertRegex(ran.stdout.decode(), rf"^run_tests\.py \d+\.\d+\.\d+ \({digest}\)\n$")

    def test_a_copy_elsewhere_tells_its_own_hash(self) -> None:
        shutil.copy(RUNNER, self.folder)
        with open(os.path.join(self.folder, "run_tests.py"), "ab") as file:
            file.write(b"# changed\n")
        with open(os.path.join(self.folder, "run_tests.py"), "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()[:12]
        out = subprocess.run([sys.executable, "run_tests.py", "--version"], cwd=self.folder, check=True,
                             stdout=subprocess.PIPE).stdout
        self.assertIn(digest.encode(), out)
        self.assertNotIn(digest, self.run_command("--version").text)

    def test_help_has_examples_and_exit_codes(self) -> None:
        ran = self.run_command("--help")
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertTrue(ran.text.startswith("usage: run_tests.py [options] LIST [LIST ...] | SCRIPT [-- ARGUMENTS]\n"))
        examples = ran.text[ran.text.index("examples:"):ran.text.index("exit codes:")]
        self.assertGreaterEqual(examples.count("run_tests.py"), 4)
        for code in ("0 ", "1 ", "2 ", "3 ", "5 ", "128+N "):
            self.assertRegex(ran.text[ran.text.index("exit codes:"):], rf"(?m)(^|\s){re.escape(code)}[a-z]")

    def test_list_prints_and_runs_nothing(self) -> None:
        text = ("#: gpus=0\ntouch ran\n#:\n\ntouch ran || test_fail 'my label'\n"
                "A=1\ntouch ran #: gpus=all label=\"b $A\"\nCUDA_VISIBLE_DEVICES=0,1,2 touch ran\n"
                "pkg/test_x.py::test_y -k z\ntouch ran #: gpus=9\n")
        for gpus in (TWO, "", None):
            with self.subTest(gpus=gpus):
                ran = self.run_list(text, "--list", gpus=gpus)
                self.assertEqual((ran.code, ran.err), (0, ""))
                self.assertEqual([line.split("\t") for line in ran.text.splitlines()], [
                    ["touch ran", "0", "touch_ran", "tests.txt:2"],
                    ["my label", "1", "my_label", "tests.txt:5"],
                    ["b 1", "all", "b_1", "tests.txt:7"],
                    ["touch ran #2", "3", "touch_ran_2", "tests.txt:8"],
                    ["pkg/test_x.py::test_y -k z", "1", "pytest_pkg_test_x_test_y_-k_z", "tests.txt:9"],
                    ["touch ran #3", "9", "touch_ran_3", "tests.txt:10"]])
                self.assertEqual(os.listdir(self.folder), ["tests.txt"])

    def test_list_of_a_bad_list(self) -> None:
        ran = self.run_list("echo 'a\n", "--list")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"^tests\.txt:1: ")


class Parsing(unittest.TestCase):
    """Options as values."""

    def test_durations_choices_and_names(self) -> None:
        cases: Mapping[Tuple[str, ...], Mapping[str, Any]] = {
            (): {"slow": None, "deadline": None, "flaky": "pass", "leaks": "report", "junit": None, "require_gpus": 0},
            ("--slow", "5m"): {"slow": 300.0}, ("--deadline", "1.5h"): {"deadline": 5400.0},
            ("--deadline=90",): {"deadline": 90.0}, ("--flaky", "fail"): {"flaky": "fail"},
            ("--flaky", "fail", "--flaky", "pass"): {"flaky": "pass"}, ("--leaks", "fail"): {"leaks": "fail"},
            ("--junit", "a/b.xml"): {"junit": "a/b.xml"}, ("--require-gpus", "8"): {"require_gpus": 8},
        }
        for arguments, values in cases.items():
            with self.subTest(arguments):
                options = run_tests.parse_command_line([*arguments, "tests.txt"], {})
                self.assertEqual({name: getattr(options, name) for name in values}, values)

    def test_a_flaky_test_fails_the_run_where_that_is_asked_for(self) -> None:
        flaky, passed = run_tests.Outcome.FLAKY, run_tests.Outcome.PASSED
        for arguments, fails in (([], False), (["--flaky", "pass"], False), (["--flaky", "fail"], True)):
            options = run_tests.parse_command_line([*arguments, "tests.txt"], {})
            self.assertEqual((options.fails(flaky), options.fails(passed)), (fails, False))
            schedule = run_tests.Schedule([], {}, run_tests.Pool([]), options)
            results = [run_tests.Result(a_test(0, "a"), passed), run_tests.Result(a_test(1, "b"), flaky)]
            self.assertEqual(run_tests.exit_code(results, schedule), int(fails))
            self.assertEqual(run_tests.last_lines(results, schedule),
                             ["Error in the following test cases: b"] if fails else ["All tests passed"])


class Variable(CommandLineCase):
    """$RUN_TESTS_OPTS comes before the command line."""

    def test_it_is_read(self) -> None:
        ran = self.run_list("echo $CUDA_VISIBLE_DEVICES\n", gpus=FOUR,
                            env={"RUN_TESTS_OPTS": "--gpus 1 --log-dir 'my logs'"})
        self.assertEqual((ran.code, ran.text), (0, "0\nAll tests passed\n"))
        self.assertTrue(os.path.isfile(ran.path("my logs/run_tests.jsonl")))

    def test_the_command_line_wins(self) -> None:
        ran = self.run_list("true\n", "--gpus", "3", gpus=FOUR, env={"RUN_TESTS_OPTS": "--gpus 2"})
        self.check(ran, 0, {"true": "passed"})
        self.assertEqual(ran.text.splitlines()[0], "Detected 3 GPU(s): 0 1 2")

    def test_a_quote_that_is_never_closed(self) -> None:
        ran = self.run_list("touch started\n", env={"RUN_TESTS_OPTS": "--log-dir 'x"})
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"error: .*quote.*RUN_TESTS_OPTS")
        self.assertEqual(os.listdir(self.folder), ["tests.txt"])

    def test_a_bad_option_in_it(self) -> None:
        ran = self.run_list("touch started\n", env={"RUN_TESTS_OPTS": "--jobs none"})
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"error: .*--jobs.*'none'")


class Lists(CommandLineCase):
    """Where tests come from."""

    def test_standard_input(self) -> None:
        ran = self.run_command("-", stdin=b"echo one\nfalse\n")
        self.check(ran, 1, {"echo one": "passed", "false": "failed"})

    def test_several_lists_are_one_run(self) -> None:
        """Each with its own state; labels are unique in the run."""
        self.write("a.txt", "export WHO=a\ntest $WHO = a #: label=same\n")
        self.write("b.txt", "test -z \"$WHO\" #: label=same\n")
        ran = self.run_command("a.txt", "b.txt", "-", stdin=b"test -z \"$WHO\" #: label=third")
        self.check(ran, 0, {"same": "passed", "same #2": "passed", "third": "passed"})
        self.assertEqual(ran.journal("run_start")[0]["lists"], ["a.txt", "b.txt", "-"])

    def test_dollar_zero_is_the_list(self) -> None:
        """`cd "$(dirname "$0")"` goes to the list's folder: in the test, and where its JUnit file is looked for."""
        self.write("qa/l.txt", 'cd "$(dirname "$0")"\ntrue --junitxml=out.xml\n')
        ran = self.run_command("qa/l.txt")
        self.check(ran, 0, {"true --junitxml=out.xml": "passed"})
        self.assertEqual([os.path.relpath(os.path.join(folder, name), self.folder)
                          for folder, _, names in os.walk(self.folder) for name in names if name.endswith(".xml")],
                         ["qa/out.xml"])

    def test_runs_share_a_journal(self) -> None:
        """Another list's run is appended; a test is known by its command, not by its place."""
        self.run_list("true\necho two\n")
        self.run_list("echo two\n", name="other.txt")
        with open(os.path.join(self.folder, "logs", "run_tests.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        self.assertEqual([record["event"] for record in records].count("run_start"), 2)
        keys = {record["test"] for record in records if record.get("label") == "echo two"}
        self.assertEqual(len(keys), 1)
        self.assertEqual(len({record["run"] for record in records}), 2)


# Golden output.

GOLDEN_LIST = """\
# The list behind tests/golden: one test of each kind, in an order that nothing can change.
echo first; echo to stderr >&2
{after_first}; echo second on another GPU; false || test_fail "the second"
wait
printf 'no end of line' #: gpus=2 label='on two GPUs'
wait
export WHO=state
echo "said by $WHO" #: gpus=0
wait
kill -KILL $$ #: label=killed
wait
sleep 1000 #: timeout=0.1s label='too slow'
wait
exit 3 #: gpus=all
true #: gpus=9 label='too wide'
wait
true
""".format(after_first=AFTER.format("echo first; echo to stderr >&2"))

GOLDEN_OUTCOMES = {
    "echo first; echo to stderr >&2": "passed", "the second": "failed", "on two GPUs": "passed",
    'echo "said by state"': "passed", "killed": "crashed", "too slow": "timeout", "exit 3": "failed",
    "too wide": "unrunnable", "true": "passed"}


class Golden(CommandLineCase):
    """The whole trace of one list, for each value of --output. Seconds are blurred."""

    maxDiff = None

    def compare(self, name: str, text: str) -> None:
        path = os.path.join(GOLDEN, name)
        blurred = re.sub(r"\b\d+\.\ds\b", "N.Ns", text)
        if REFRESH:
            os.makedirs(GOLDEN, exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(blurred)
        with open(path, encoding="utf-8", newline="") as file:
            self.assertEqual(blurred, file.read(), f"{path}; is this change meant? See REFRESH_GOLDEN above")

    def test_traces(self) -> None:
        for output in ("replay", "ordered", "failures", "none"):
            with self.subTest(output):
                self.clean()
                ran = self.run_list(GOLDEN_LIST, "--output", output, gpus=FOUR)
                self.assertEqual(ran.err, "")
                self.check(ran, 1, GOLDEN_OUTCOMES)
                self.compare(f"parallel_{output}.txt", ran.text)

    def test_nothing_else_is_in_the_folder(self) -> None:
        self.assertEqual(sorted(os.listdir(GOLDEN)),
                         [f"parallel_{output}.txt" for output in ("failures", "none", "ordered", "replay")])


# Who runs when.

class Scheduling(CommandLineCase):
    """What runs beside what, seen from inside the tests."""

    def test_two_tests_run_at_the_same_time(self) -> None:
        """Each opens the other's FIFO: neither could end alone."""
        for attributes in ("", " #: gpus=0"):
            with self.subTest(attributes):
                for name in "ab":
                    os.mkfifo(os.path.join(self.folder, name))
                text = f"echo one >a; read x <b{attributes}\nread x <a; echo two >b{attributes}\n"
                ran = self.run_list(text, "--timeout", f"{WAIT_S}s")
                self.check(ran, 0, {"echo one >a; read x <b": "passed", "read x <a; echo two >b": "passed"})
                places = {record["slot"] for record in ran.journal("test_start")}
                self.assertEqual(places, {0, 1})
                for name in ("a", "b"):
                    os.unlink(os.path.join(self.folder, name))
                self.clean()

    def test_a_freed_gpu_is_taken_at_once(self) -> None:
        """Three tests on two GPUs, the first of which waits for the third: waves would never end."""
        os.mkfifo(os.path.join(self.folder, "hold"))
        ran = self.run_list("read x <hold\ntrue\necho go >hold\n", "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, {"read x <hold": "passed", "true": "passed", "echo go >hold": "passed"})
        gpus = {record["label"]: record["gpus"] for record in ran.journal("test_start")}
        self.assertEqual(gpus, {"read x <hold": ["0"], "true": ["1"], "echo go >hold": ["1"]})

    def test_each_has_the_gpus_it_asks_for(self) -> None:
        text = ("test $CUDA_VISIBLE_DEVICES = 5,2 #: gpus=2\nwait\ntest $CUDA_VISIBLE_DEVICES = 5\nwait\n"
                "test \"${CUDA_VISIBLE_DEVICES-unset}\" = '' #: gpus=0\nwait\n"
                "CUDA_VISIBLE_DEVICES=0,1,2 test $CUDA_VISIBLE_DEVICES = 5,2,7\nwait\n"
                "test $CUDA_VISIBLE_DEVICES = 5,2,7 #: gpus=all\n")
        ran = self.run_list(text, gpus="5,2,7")
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual([record["gpus"] for record in ran.journal("test_start")],
                         [["5", "2"], ["5"], [], ["5", "2", "7"], ["5", "2", "7"]])

    def test_jobs_limits_the_tests_without_gpu(self) -> None:
        """Whoever has no slot waits for one, while the GPUs are free."""
        hold = self.fifo("hold")
        text = "#: gpus=0\nread x <hold\nread x <hold\ntrue\n"
        for jobs, concurrent in (("1", 1), ("2", 2), ("3", 3)):
            with self.subTest(jobs=jobs):
                self.clean()
                hold.send()
                hold.send()
                ran = self.run_list(text, "--jobs", jobs, gpus=FOUR)
                self.check(ran, 0, {"read x <hold": "passed", "read x <hold #2": "passed", "true": "passed"})
                at_once, most = 0, 0
                for record in ran.journal():
                    at_once += {"test_start": 1, "test_end": -1}.get(record["event"], 0)
                    most = max(most, at_once)
                self.assertLessEqual(most, concurrent)
                self.assertEqual({record["slot"] < concurrent for record in ran.journal("test_start")}, {True})

    def test_jobs_lets_them_meet(self) -> None:
        """`--jobs 2` gives two slots even beside a GPU test on each of two GPUs."""
        for name in ("a", "b", "gpu0", "gpu1"):
            os.mkfifo(os.path.join(self.folder, name))
        text = ("read x <gpu0\nread x <gpu1\necho 1 >a; read x <b; echo 1 >gpu0 #: gpus=0\n"
                "read x <a; echo 1 >b; echo 1 >gpu1 #: gpus=0\n")
        ran = self.run_list(text, "--jobs", "2", "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual(len(ran.outcomes()), 4)

    def test_wait_is_a_barrier(self) -> None:
        ran = self.run_list("touch a\ntouch b #: gpus=0\nwait\ntest -e a -a -e b -a ! -e c\nwait\ntouch c\n", gpus=FOUR)
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual(len(ran.outcomes()), 4)

    def test_fail_fast(self) -> None:
        """What runs goes on, nothing more starts."""
        text = f"false\n{AFTER.format('false')} #: label=running\ntouch third\nfalse #: label=fourth\n"
        ran = self.run_list(text, "--fail-fast")
        self.check(ran, 1, {"false": "failed", "running": "passed", "touch third": "not run", "fourth": "not run"})
        self.assertFalse(os.path.exists(ran.path("third")))

    def test_without_fail_fast_all_run(self) -> None:
        ran = self.run_list("false\ntrue\nfalse\n")
        self.check(ran, 1, {"false": "failed", "true": "passed", "false #2": "failed"})

    def test_too_wide_a_test_fails_the_run(self) -> None:
        ran = self.run_list("true\nfalse #: gpus=3 label='three GPUs'\necho last\n")
        self.check(ran, 1, {"true": "passed", "three GPUs": "unrunnable", "echo last": "passed"})
        self.assertEqual(ran.failures(), ["three GPUs"])
        self.assertEqual({record["label"] for record in ran.journal("test_start")}, {"true", "echo last"})

    def test_markers_and_replay(self) -> None:
        """Starts and ends as they come, logs in list order."""
        text = f"{AFTER.format('echo two')}; echo one #: label=one\necho two\n"
        ran = self.run_list(text)
        self.check(ran, 0, {"one": "passed", "echo two": "passed"})
        self.assertEqual(lines_of(ran.text, ">>> Starting"), [">>> Starting: one on GPU 0",
                                                              ">>> Starting: echo two on GPU 1"])
        self.assertEqual([re.sub(r"\d+\.\ds", "N.Ns", line) for line in lines_of(ran.text, ">>> Finished")],
                         [">>> Finished: echo two on GPU 1 [passed, N.Ns, 1/2]",
                          ">>> Finished: one on GPU 0 [passed, N.Ns, 2/2]"])
        self.assertLess(ran.text.index("\none\n"), ran.text.index("\ntwo\n"))

    def test_logs_are_replayed_byte_for_byte(self) -> None:
        ran = self.run_list("printf 'a\\0\\377\\n\\r\\033[0m\\n'\nhead -c 3000000 /dev/zero | tr '\\0' x; echo\n")
        self.assertEqual(ran.code, 0)
        self.assertIn(b"a\0\xff\n\r\033[0m\n", ran.out)
        self.assertIn(b"\n" + b"x" * 3000000 + b"\n", ran.out)


class Timeouts(CommandLineCase):
    """A test that takes too long is asked to end, then made to."""

    def test_a_test_that_ignores_the_request_is_killed(self) -> None:
        self.fifo("hold")
        text = "trap '' TERM; touch ready; read x <hold #: label=deaf\nread x <hold #: label=hearing\n"
        ran = self.run_list(text, "--timeout", "0.5s", "--grace", "0.1s")
        self.check(ran, 1, {"deaf": "timeout", "hearing": "timeout"})
        signals = {record["label"]: record["signal"] for record in ran.journal("test_end")}
        # Where bash was too slow to set its trap in time, TERM has ended it.
        self.assertEqual(signals["deaf"], "SIGKILL" if os.path.exists(ran.path("ready")) else "SIGTERM")
        self.assertEqual(signals["hearing"], "SIGTERM")
        self.assertIn("[timeout, ", ran.text)

    def test_a_test_that_ends_itself_in_time_is_a_timeout_all_the_same(self) -> None:
        self.fifo("hold")
        ran = self.run_list(f"trap 'echo cleaned up; exit 0' TERM; echo ready; {STAY} #: label=tidy\n",
                            "--timeout", "0.5s", "--grace", f"{WAIT_S}s")
        self.check(ran, 1, {"tidy": "timeout"})
        if "ready" in ran.read("logs/tidy.log"):
            self.assertEqual(ran.read("logs/tidy.log"),
                                 "ready\n\n=== run_tests.py: did not end in 0.5s ===\ncleaned up\n")

    def test_the_grace_is_for_the_whole_group(self) -> None:
        """In `command; more` bash dies of SIGTERM at once; the command, which cleans up, still has its grace."""
        got, hold = self.fifo("got"), self.fifo("hold")
        self.write("tidy.sh", "trap 'echo term >got; read x <hold; echo cleaned >cleaned; exit 0' TERM\n"
                              f"echo ready >got\n{STAY}\n")
        process = self.begin("bash tidy.sh; true #: label=tidy\n", "--grace", f"{WAIT_S}s")
        self.assertEqual(got.line(), "ready")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(got.line(), "term")
        hold.send()
        ran = self.end(process)
        self.check(ran, 143, {"tidy": "interrupted"})
        self.assertTrue(os.path.exists(ran.path("cleaned")), "killed before its grace was over")

    def test_the_line_wins_over_the_option(self) -> None:
        """`timeout=1h` outlives what `--timeout` ends, and the other way round."""
        self.fifo("hold")
        text = f"read x <hold #: label=short\n{AFTER.format('short')} #: label=long timeout=1h\n"
        self.check(self.run_list(text, "--timeout", "0.3s"), 1, {"short": "timeout", "long": "passed"})
        self.clean()
        text = f"read x <hold #: label=short timeout=0.1s\n{AFTER.format('short')} #: label=long\n"
        self.check(self.run_list(text, "--timeout", "1h"), 1, {"short": "timeout", "long": "passed"})

    def test_zero_is_none(self) -> None:
        """On the line against the option, and on the command line against $RUN_TESTS_OPTS."""
        self.fifo("hold")
        text = f"read x <hold #: label=short\n{AFTER.format('short')} #: label=endless timeout=0\n"
        self.check(self.run_list(text, "--timeout", "0.2s"), 1, {"short": "timeout", "endless": "passed"})
        self.clean()
        text = f"read x <hold #: label=short timeout=0.2s\n{AFTER.format('short')} #: label=endless\n"
        ran = self.run_list(text, "--timeout", "0", env={"RUN_TESTS_OPTS": "--timeout 0.1s"})
        self.check(ran, 1, {"short": "timeout", "endless": "passed"})

    def test_no_process_survives(self) -> None:
        text = "trap '' TERM; sleep 1000 & echo $! >>pids; (trap '' HUP; sleep 1001) & echo $! >>pids; wait\n"
        ran = self.run_list(text, "--timeout", "0.5s", "--grace", "0.1s")
        self.assertEqual((ran.code, list(ran.outcomes().values())), (1, ["timeout"]))
        self.check_all_gone(2)


# Pytest targets.

STUB = """#!{python}
import json, os, sys
with open(os.path.join({folder!r}, "calls.jsonl"), "a") as file:
    file.write(json.dumps(dict(argv=sys.argv[1:], A=os.environ.get("A"), cwd=os.getcwd())) + "\\n")
for argument in sys.argv:
    if argument.startswith("--junitxml="):
        with open(argument.partition("=")[2], "w") as file:
            file.write("<testsuites/>")
"""

TARGETS = """\
test_a.py
A='1 2' sub/test_b.py::TestX::test_y[1-a] -k 'a b'
sub/
test_c.py --junitxml=own.xml
run_test "A=3" "mine.xml" "test_d.py -v" "my label"
CUDA_VISIBLE_DEVICES=0,1 test_e.py #: label='two GPUs'
"""


class PytestTargets(CommandLineCase):
    """A path to a test file or a folder is run by pytest; here by a stub that writes down how it was called."""

    def setUp(self) -> None:
        super().setUp()
        os.mkdir(os.path.join(self.folder, "sub"))
        self.script = STUB.format(python=sys.executable, folder=self.folder)
        self.bin = self.stub("some python", self.script)

    def calls(self, ran: Ran) -> Dict[str, Dict[str, Any]]:
        """The stub's calls by the file name of their JUnit file."""
        calls = {}
        for call in map(json.loads, ran.read("calls.jsonl").splitlines()):
            option = next(word for word in call["argv"] if word.startswith("--junitxml="))
            calls[os.path.basename(option.partition("=")[2])] = call
        return calls

    def test_the_calls(self) -> None:
        ran = self.run_list(TARGETS, "--python", os.path.join(self.bin, "some python"),
                            "--pytest-args=-x -m 'not slow'")
        self.check(ran, 0, dict.fromkeys(("test_a.py", "sub/test_b.py::TestX::test_y[1-a] -k 'a b'", "sub/",
                                          "test_c.py --junitxml=own.xml", "my label", "two GPUs"), "passed"))
        logs = os.path.join(os.path.realpath(self.folder), "logs")

        def argv(xml: str, *target: str) -> List[str]:
            return ["-u", "-m", "pytest", "--tb=auto", f"--junitxml={logs}/{xml}", "-x", "-m", "not slow", *target]
        calls = self.calls(ran)
        self.assertEqual({name: call["argv"] for name, call in calls.items()}, {
            "pytest_test_a.xml": argv("pytest_test_a.xml", "test_a.py"),
            "pytest_sub_test_b_TestX_test_y_1-a_-k_a_b.xml": argv(
                "pytest_sub_test_b_TestX_test_y_1-a_-k_a_b.xml", "sub/test_b.py::TestX::test_y[1-a]", "-k", "a b"),
            "pytest_sub.xml": argv("pytest_sub.xml", "sub/"),
            "own.xml": ["-u", "-m", "pytest", "--tb=auto", "-x", "-m", "not slow", "test_c.py", "--junitxml=own.xml"],
            "mine.xml": argv("mine.xml", "test_d.py", "-v"),
            "pytest_two_GPUs.xml": argv("pytest_two_GPUs.xml", "test_e.py")})
        self.assertEqual({name: call["A"] for name, call in calls.items() if call["A"]},
                         {"pytest_sub_test_b_TestX_test_y_1-a_-k_a_b.xml": "1 2", "mine.xml": "3"})
        for name in calls:
            log = "own.log" if name == "own.xml" else name.replace(".xml", ".log")
            self.assertTrue(os.path.isfile(os.path.join(logs, log)), log)
        self.assertNotIn("passed without its JUnit file", ran.text)

    def test_python3_of_path_is_the_default(self) -> None:
        self.stub("python3", self.script)
        ran = self.run_list("test_a.py\n", env={"PATH": self.bin + os.pathsep + os.environ["PATH"]})
        self.check(ran, 0, {"test_a.py": "passed"})
        junit = os.path.join(os.path.realpath(self.folder), "logs", "pytest_test_a.xml")
        self.assertEqual(self.calls(ran)["pytest_test_a.xml"]["argv"],
                         ["-u", "-m", "pytest", "--tb=auto", f"--junitxml={junit}", "test_a.py"])

    def test_state_and_folder_hold(self) -> None:
        """After `cd` the target is of that folder; its JUnit file is where it would be."""
        ran = self.run_list("cd sub\nexport A=held\ntest_a.py\n", "--python", os.path.join(self.bin, "some python"))
        self.check(ran, 0, {"test_a.py": "passed"})
        call = self.calls(ran)["pytest_test_a.xml"]
        self.assertEqual((call["A"], call["cwd"]), ("held", os.path.join(os.path.realpath(self.folder), "sub")))
        self.assertTrue(os.path.isfile(ran.path("logs/pytest_test_a.xml")))

    def test_an_interpreter_that_is_not_there(self) -> None:
        """The test fails as a missing command does, and a JUnit file says so."""
        ran = self.run_list("test_a.py\n", "--python", "no_such_python")
        self.check(ran, 1, {"test_a.py": "failed"})
        self.assertIn("no_such_python: command not found", ran.text)
        suite = ElementTree.parse(ran.path("logs/pytest_test_a.xml")).getroot().find("testsuite")
        assert suite is not None
        self.assertEqual((suite.get("tests"), suite.get("errors")), ("1", "1"))
        self.assertIn("command not found", "".join(suite.itertext()))


# Signals.

class Signal(NamedTuple):
    """A signal and the exit code that it makes."""

    number: signal.Signals
    code: int


SIGNALS = (Signal(signal.SIGINT, 130), Signal(signal.SIGTERM, 143), Signal(signal.SIGHUP, 129))
TRAP = "trap 'echo INT >trapped; exit 0' INT; trap 'echo TERM >trapped; exit 0' TERM; " \
       "trap 'echo HUP >trapped; exit 0' HUP; "


FULL = "run_tests.py: standard output cannot be written (No space left on device); going on without it\n"
ENDING = "run_tests.py: {}: ending the running tests; once more kills them\n"


class Signals(CommandLineCase):
    """A signal ends the run: the tests get it, nothing more starts, all files are whole."""

    def test_table(self) -> None:
        text = (f"{TRAP}echo $$ >>pids; echo ready >up; {STAY} #: label=traps\n"
                f"echo $$ >>pids; {AFTER.format('false')}; echo ready >up; sleep 1001; : #: label='does not'\n"
                "false #: gpus=0\nwait\ntouch started\ntouch started #: gpus=0\n")
        up = self.fifo("up")
        self.fifo("hold")
        for number, code in SIGNALS:
            with self.subTest(number):
                self.clean()
                process = self.begin(text, "--grace", f"{WAIT_S}s")
                self.assertEqual([up.line(), up.line()], ["ready", "ready"])
                process.send_signal(number)
                ran = self.end(process)
                self.check(ran, code, {"traps": "interrupted", "does not": "interrupted", "false": "failed",
                                       "touch started": "not run", "touch started #2": "not run"})
                self.assertEqual(ran.read("trapped"), number.name[3:] + "\n")
                self.assertEqual(ran.err, ENDING.format(number.name))
                self.assertIn(f"Interrupted by {number.name}: 2 interrupted, 2 not run\n", ran.text)
                self.assertFalse(os.path.exists(ran.path("started")))
                self.check_all_gone(2)

    def test_one_gpu_too(self) -> None:
        up = self.fifo("up")
        self.fifo("hold")
        text = f"echo one\n{TRAP}echo two; echo ready >up; {STAY} #: label=traps\necho three\n"
        for number, code in SIGNALS:
            with self.subTest(number):
                self.clean()
                process = self.begin(text, gpus="0")
                self.assertEqual(up.line(), "ready")
                process.send_signal(number)
                ran = self.end(process)
                self.check(ran, code, {"echo one": "passed", "traps": "interrupted", "echo three": "not run"})
                self.assertEqual((ran.text, ran.err),
                                 (f"one\ntwo\nInterrupted by {number.name}: 1 interrupted, 1 not run\n",
                                  ENDING.format(number.name)))

    def test_a_second_signal_kills(self) -> None:
        """The first is trapped and told; the grace of an hour ends with the second."""
        up = self.fifo("up")
        self.fifo("hold")
        for second in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(second):
                self.clean()
                process = self.begin(f"trap 'echo told >up' INT TERM; echo ready >up; {STAY} "
                                     "#: label=stays\nwait\ntouch started\n", "--grace", "1h")
                self.assertEqual(up.line(), "ready")
                process.send_signal(signal.SIGINT)
                self.assertEqual(up.line(), "told")
                process.send_signal(second)
                ran = self.end(process)
                self.check(ran, 130, {"stays": "interrupted", "touch started": "not run"})
                self.assertEqual(ran.journal("test_end")[-1]["signal"], "SIGKILL")

    def test_a_test_that_ignores_it_is_killed_after_the_grace(self) -> None:
        up = self.fifo("up")
        self.fifo("hold")
        for number, code in SIGNALS:
            with self.subTest(number):
                self.clean()
                process = self.begin("trap '' INT TERM HUP; echo $$ >>pids; sleep 1000 & echo $! >>pids; "
                                     "echo ready >up; read x <hold #: label=deaf\n", "--grace", "50ms")
                self.assertEqual(up.line(), "ready")
                process.send_signal(number)
                ran = self.end(process)
                self.check(ran, code, {"deaf": "interrupted"})
                self.assertEqual(ran.journal("test_end")[0]["signal"], "SIGKILL")
                self.check_all_gone(2)

    def test_hangup_that_is_ignored_stays_ignored(self) -> None:
        """As under nohup: for the runner and for its tests."""
        up, hold = self.fifo("up"), self.fifo("hold")
        process = self.begin("echo ready >up; read x <hold; kill -HUP $$; true #: label=survives\n",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual(up.line(), "ready")
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            ignored = int(re.findall(r"^SigIgn:\s*(\w+)$", file.read(), re.M)[0], 16)
        self.assertTrue(ignored & 1 << (signal.SIGHUP - 1))
        process.send_signal(signal.SIGHUP)
        hold.send()
        self.check(self.end(process), 0, {"survives": "passed"})

    def test_children_that_the_caller_ignores(self) -> None:
        """Where SIGCHLD is ignored the kernel drops exit statuses, unless the runner takes care."""
        process = self.begin("true\nfalse\nexit 7\n", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        ran = self.end(process)
        self.check(ran, 1, {"true": "passed", "false": "failed", "exit 7": "failed"})
        self.assertEqual({record["label"]: record["status"] for record in ran.journal("test_end")},
                         {"true": 0, "false": 1, "exit 7": 7})

    def test_while_the_list_is_read(self) -> None:
        """No test has started: exit code 130, no traceback, nothing written."""
        up = self.fifo("up")
        self.fifo("hold")
        process = self.begin(": $(echo ready >up; read -t 60 x <hold)\ntouch started\n",    # a `&` above us ignores it
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.assertEqual(up.line(), "ready")
        process.send_signal(signal.SIGINT)
        ran = self.end(process)
        self.assertEqual((ran.code, ran.out, ran.err), (130, b"", ""))
        self.assertEqual(sorted(os.listdir(self.folder)), ["hold", "tests.txt", "up"])

    def test_the_default_actions_are_back_in_tests(self) -> None:
        """A test that signals itself dies of it, as it would under bash."""
        ran = self.run_list("kill -INT $$; echo never\nkill -PIPE $$; echo never\nkill -HUP $$; echo never\n")
        self.assertEqual({record["label"]: (record["outcome"], record["signal"]) for record in ran.journal("test_end")},
                         {f"kill -{name} $$; echo never": ("crashed", "SIG" + name) for name in ("INT", "PIPE", "HUP")})


# Streams.

class Streams(CommandLineCase):
    """Standard input, output and error, or what is left of them."""

    def closed(self, redirection: str, *arguments: str, gpus: Optional[str] = TWO) -> Ran:
        """Run the command line below a shell's `redirection`."""
        ran = subprocess.run(["bash", "-c", f'exec "$@" {redirection}', "bash", *self.command(*arguments)],
                             cwd=self.folder, env=self.environment(gpus, {}), check=False, timeout=WAIT_S,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return Ran(ran.returncode, ran.stdout, ran.stderr.decode("utf-8", "replace"), self.folder)

    def test_a_reader_that_goes_away(self) -> None:
        """`| head -1`: the run goes on, and ends as it would have."""
        hold = self.fifo("hold")
        for gpus in (TWO, "0"):
            with self.subTest(gpus=gpus):
                self.clean()
                process = self.begin("echo one; read x <hold; echo two\necho three; false\ntouch ran\n",
                                     gpus=gpus, bufsize=0)
                assert process.stdout is not None and process.stderr is not None
                self.assertEqual(read_line(process.stdout.fileno()),
                                 "one" if gpus == "0" else "Detected 2 GPU(s): 0 1")
                process.stdout.close()
                hold.send()
                err = process.stderr.read()
                self.assertEqual((process.wait(WAIT_S), err), (1, b""))
                ran = Ran(1, b"Error in the following test cases: echo three; false", "", self.folder)
                self.check(ran, 1, {"echo one; read x <hold; echo two": "passed", "echo three; false": "failed",
                                    "touch ran": "passed"})
                self.assertTrue(os.path.exists(ran.path("ran")))
                self.assertEqual(ran.read("logs", "echo_one_read_x_hold_echo_two.log"), "one\ntwo\n")

    def test_streams_that_are_closed_or_full_from_the_start(self) -> None:
        self.write("tests.txt", "echo one; echo err >&2\ncat; false #: label=two\n")
        last = "Error in the following test cases: two"
        for gpus in (TWO, "0"):
            for redirection, is_shown in ((">&-", False), ("<&-", True), ("2>&-", True), ("<&- >&-", False),
                                          ("<&- >&- 2>&-", False), (">/dev/full", False), (">/dev/full 2>&1", False)):
                with self.subTest(redirection, gpus=gpus):
                    self.clean()
                    ran = self.closed(redirection, "tests.txt", gpus=gpus)
                    self.assertEqual(ran.text.splitlines()[-1:], [last] if is_shown else [])
                    self.check(ran._replace(out=last.encode()), 1,
                               {"echo one; echo err >&2": "passed", "two": "failed"})
                    full = "standard output cannot be written (No space left on device); going on without it"
                    self.assertEqual(ran.err, f"run_tests.py: {full}\n" if redirection == ">/dev/full" else "")
                    logs = {record["label"]: ran.read(record["log"]) for record in ran.journal("test_start")}
                    self.assertEqual(logs, {"echo one; echo err >&2": "one\nerr\n", "two": ""})

    def test_mistakes_when_stderr_is_closed(self) -> None:
        """They have no place to go; they must not land among the results."""
        ran = self.closed("2>&-", "missing.txt")
        self.assertEqual((ran.code, ran.out), (2, b""))

    def test_a_list_from_a_closed_standard_input(self) -> None:
        """A list that cannot be read, like any other."""
        ran = self.closed("<&-", "-")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"^-: ")
        self.assertNotIn("internal error", ran.err)

    def test_tests_read_nothing(self) -> None:
        """The runner's own standard input is not theirs."""
        self.write("tests.txt", "test -z \"$(cat)\"\n! read x\n")
        for gpus in (TWO, "0"):
            with self.subTest(gpus=gpus):
                self.clean()
                ran = self.run_command("tests.txt", gpus=gpus, stdin=b"not\nfor\nthem\n")
                self.check(ran, 0, {'test -z "$(cat)"': "passed", "! read x": "passed"})

    def test_the_trace_is_there_before_the_end(self) -> None:
        """Each marker when it happens, not when a buffer is full."""
        hold = self.fifo("hold")
        process = self.begin("read x <hold\nread x <hold #: label=second\nwait\ntrue\n", bufsize=0)
        assert process.stdout is not None
        shown = [read_line(process.stdout.fileno()) for _ in range(3)]
        self.assertEqual(shown, ["Detected 2 GPU(s): 0 1", ">>> Starting: read x <hold on GPU 0",
                                 ">>> Starting: second on GPU 1"])
        hold.send()
        self.assertRegex(read_line(process.stdout.fileno()), r"^>>> Finished: .* \[passed, \d+\.\ds, 1/3\]$")
        hold.send()
        self.check(self.end(process), 0, {"read x <hold": "passed", "second": "passed", "true": "passed"})


# Tests of all kinds.

LABELS = ('a "quoted" label', "it's", "with  two spaces", "a/b/../c d", "/absolute", "naïve tëst – ☃ 日本", "x" * 300,
          "ü" * 300, "-dash --help", "$NOT_SET ${NOR_THIS} $(date) `date`", "*?[a-z]", "100% {} \\n", ".hidden",
          "a|b&c;d", "tab\tand more", "CON", "con", "=== End of per-test output ===", "<xml> & co",
          "\udcff\udc80")


class Everything(CommandLineCase):
    """Labels, folders and processes that are not plain."""

    def test_labels_end_to_end(self) -> None:
        """In the journal, in `failures`, in the markers, in the last line; each has a log of its own."""
        text = "".join(f"echo number {number}; false #: label={shlex.quote(label)}\n"
                       for number, label in enumerate(LABELS))
        ran = self.run_list(text, gpus=FOUR)
        labels = [re.sub(r"[\t\n]", " ", label) for label in LABELS]
        self.check(ran, 1, dict.fromkeys(labels, "failed"))
        stems = {}
        for record in ran.journal("test_start"):
            self.assertIn(f">>> Starting: {record['label']} on GPU {record['gpus'][0]}\n", ran.text)
            self.assertEqual(ran.read(record["log"]), f"number {labels.index(record['label'])}\n")
            self.assertEqual(os.path.dirname(record["log"]), "logs")
            stems[os.path.basename(record["log"]).casefold()] = record["label"]
        self.assertEqual(len(stems), len(LABELS))
        for stem in stems:
            self.assertRegex(stem, r"^(?!\.)[a-z0-9._+=@-]{1,200}\.log$")

    def test_labels_of_test_fail(self) -> None:
        text = "".join(f"false || test_fail {shlex.quote(label)}\n" for label in LABELS)
        ran = self.run_list(text, gpus=FOUR)
        self.check(ran, 1, dict.fromkeys((re.sub(r"[\t\n]", " ", label) for label in LABELS), "failed"))

    def test_a_test_that_changes_its_folder(self) -> None:
        here = shlex.quote(os.path.realpath(self.folder))
        ran = self.run_list(f"cd / && pwd\ntest \"$PWD\" = {here} #: label=here\n")
        self.check(ran, 0, {"cd / && pwd": "passed", "here": "passed"})

    def test_a_test_that_leaves_a_process(self) -> None:
        """It does not hold the run, and it does not survive it."""
        for gpus in (TWO, "0"):
            with self.subTest(gpus=gpus):
                self.clean()
                ran = self.run_list("sleep 1000 & echo $! >>pids\n"
                                    "trap '' TERM HUP; sleep 1001 & echo $! >>pids\ntrue\n", gpus=gpus)
                self.assertEqual((ran.code, set(ran.outcomes().values())), (0, {"passed"}))
                self.check_all_gone(2)

    def test_a_gpu_is_free_only_when_its_processes_are_gone(self) -> None:
        """What a test has left behind is dead before the next one has its GPU."""
        self.write("pids", "")
        text = "#: gpus=2\nsleep 1000 & echo $! >>pids; :\n" \
               "! grep -qs '^State:.[RSDT]' /proc/$(cat pids)/status #: label=next\n"
        ran = self.run_list(text)
        self.check(ran, 0, {"sleep 1000 & echo $! >>pids; :": "passed", "next": "passed"})

    def test_verdicts(self) -> None:
        text = "exit 1\nexit 255\nkill -SEGV $$\nbash -c 'kill -TERM $$'; exit $?\nno_such_command\nexit 0\n"
        ran = self.run_list("ulimit -c 0\n" + text)
        labels = text.splitlines()
        self.check(ran, 1, dict(zip(labels, ("failed", "failed", "crashed", "crashed", "failed", "passed"))))
        for said in ("exit 1 on GPU \\d \\[failed, exit 1,", "exit 255 on GPU \\d \\[failed, exit 255,",
                     "kill -SEGV \\$\\$ on GPU \\d \\[crashed \\(SIGSEGV\\),",
                     "no_such_command .*\\[failed, exit 127,"):
            self.assertRegex(ran.text, said)

    def test_an_array_is_shell_state(self) -> None:
        """`VAR=value` of all kinds holds for the tests below."""
        ran = self.run_list("ARGS=(-n 'two words')\ntest \"${ARGS[1]}\" = 'two words'\n")
        self.check(ran, 0, {'test "${ARGS[1]}" = \'two words\'': "passed"})


# When the runner itself fails.

DRIVER = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {root!r})
import run_tests
def broken(*arguments, **named):
    raise {error}
run_tests.{target} = broken
sys.exit(run_tests.main(sys.argv[1:]))
"""


class Breakdown(CommandLineCase):
    """An internal error or a machine that fails: exit code 3, tests ended, files whole, never a traceback on stderr."""

    def drive(self, target: str, error: str = "ValueError('boom')", gpus: str = TWO) -> "subprocess.Popen[bytes]":
        """Start a runner in which calling `target` raises."""
        driver = self.write("driver.py", DRIVER.format(root=ROOT, error=error, target=target))
        process = subprocess.Popen([sys.executable, driver, "tests.txt"], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(gpus, {}))
        self.addCleanup(self.abandon, process)
        return process

    def test_an_error_while_tests_run(self) -> None:
        self.write("tests.txt", "echo $$ >>pids; sleep 1000 & echo $! >>pids; echo ready >up; wait #: label=runs\n"
                                "read x <go; false #: label=ends\nwait\ntouch started\n")
        up, go = self.fifo("up"), self.fifo("go")
        for target in ("Record.test_end", "Schedule.on_exited", "ParallelConsole.concluded", "junit_fault"):
            with self.subTest(target):
                self.clean()
                process = self.drive(target)
                self.assertEqual(up.line(), "ready")
                go.send()
                ran = self.end(process)
                self.assertEqual((ran.code, ran.err), (3, ""))
                self.assertIn("internal error", ran.text)
                self.assertNotIn("Traceback", ran.text)
                records = ran.journal()
                self.assertEqual((records[0]["event"], records[-1]["event"]), ("run_start", "run_end"))
                self.assertEqual((records[-1]["exit"], sum(records[-1]["outcomes"].values())), (3, 3))
                self.check_all_gone(2)
                self.assertFalse(os.path.exists(ran.path("started")))

    def test_the_traceback_is_kept_beside_the_logs(self) -> None:
        self.write("tests.txt", "true\n")
        ran = self.end(self.drive("Record.test_end"))
        self.assertEqual(ran.code, 3)
        named = [os.path.join("logs", name) for name in os.listdir(ran.path("logs")) if name in ran.text]
        self.assertEqual(len(named), 1, ran.text)
        self.assertRegex(ran.read(named[0]), r"(?s)^Traceback .*ValueError: boom")

    def test_an_error_before_any_test(self) -> None:
        self.write("tests.txt", "touch started\n")
        for target in ("parse_lists", "find_machine", "Run", "Record.run_start"):
            with self.subTest(target):
                ran = self.end(self.drive(target))
                self.assertEqual(ran.code, 3)
                self.assertIn("internal error", ran.text + ran.err)
                self.assertIn("boom", ran.text + ran.err)
                self.assertNotIn("Traceback", ran.text + ran.err)
                self.assertFalse(os.path.exists(ran.path("started")))

    def test_a_full_disk(self) -> None:
        """The journal cannot be written: the machine's fault, and the test that ran is ended."""
        self.write("tests.txt", "true\nwait\ntouch started\n")
        for target in ("Record.test_start", "Record.test_end"):
            with self.subTest(target):
                self.clean()
                ran = self.end(self.drive(target, "OSError(28, 'No space left on device', 'the journal')"))
                self.assertEqual((ran.code, ran.err), (3, ""))
                self.assertIn("the journal", ran.text)
                self.assertIn("No space left on device", ran.text)
                self.assertFalse(os.path.exists(ran.path("started")))

    def test_the_log_dir_goes_away(self) -> None:
        """It comes back, and what the runner wrote there: only the logs so far are lost."""
        cases = {"rm -r logs\n": {"rm -r logs": "passed"}, "rm -r logs; false\n": {"rm -r logs; false": "failed"},
                 "rm -r logs\nwait\ntrue\n": {"rm -r logs": "passed", "true": "passed"},
                 "false\nwait\nrm -r logs\nwait\ntrue\n": {"false": "failed", "rm -r logs": "passed", "true": "passed"}}
        for text, outcomes in cases.items():
            for gpus in (TWO, "0"):
                with self.subTest(text, gpus=gpus):
                    ran = self.run_list(text, gpus=gpus)
                    code = int("failed" in outcomes.values())
                    self.assertEqual((ran.code, ran.outcomes()), (code, outcomes))
                    self.assertEqual([record["event"] for record in ran.journal()],
                                     ["run_start", *["test_start", "test_end"] * len(outcomes), "run_end"])
                    self.assertEqual(ran.failures(), [label for label in outcomes if outcomes[label] == "failed"])
                    self.assertEqual(ran.err, "")
                    self.clean()

    def test_a_torn_journal_is_continued(self) -> None:
        """A runner that was killed in the middle of a line costs that line only."""
        self.write("logs/run_tests.jsonl", '{"event": "run_start", "run": "a"}\n{"event": "test_st')
        ran = self.run_list("true\n")
        self.assertEqual(ran.code, 0)
        lines = ran.read("logs/run_tests.jsonl").splitlines()
        self.assertEqual(lines[:2], ['{"event": "run_start", "run": "a"}', '{"event": "test_st'])
        self.assertEqual([json.loads(line)["event"] for line in lines[2:]],
                         ["run_start", "test_start", "test_end", "run_end"])


if __name__ == "__main__":
    unittest.main()
