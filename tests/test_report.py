"""Section 9: the exact bytes of a trace, what each `--output` shows and when, and how much memory that takes."""
from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import unittest
from typing import Any, List, Sequence
from unittest import mock

import run_tests
from run_tests import Cause, Device, Lease, Outcome, Result, Test
from tests.support import RunnerCase, a_test
from tests.test_execute import Fifo, GatedCase

LINE = "\u2500" * 56
HEAD = "\n=== Per-test output (replayed from parallel execution) ===\n"
FOOT = "\n=== End of per-test output ===\n"
LOG_BYTES = 64 << 20
MOST_BYTES = 60 << 20            # the runner may take: less than the log alone

MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
count, data = 0, b"x"
while data:
    data = os.read(process.stdout.fileno(), 1 << 20)
    count += len(data)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = status
print(count, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), os.WEXITSTATUS(status))
"""


def frame(stem: str, log: str = "") -> str:
    """A replayed log, as DESIGN 5 shows it."""
    return f"\n{LINE}\n>>> {stem}\n{LINE}\n{log}"


def lease_on(*tokens: str) -> Lease:
    return Lease(tuple(Device(index, token) for index, token in enumerate(tokens)), 0)


def without_times(text: str) -> str:
    """A trace whose durations are all 0.0s."""
    return re.sub(r"(?<![\w.])\d+\.\ds(?=[,: ])", "0.0s", text)


def frames(text: str) -> List[str]:
    """The stems of the logs in a trace."""
    return re.findall(rf"^{LINE}\n>>> (.*)\n{LINE}$", text, re.MULTILINE)


class TraceTest(RunnerCase):
    def setUp(self) -> None:
        super().setUp()
        self.out = io.BytesIO()
        self.trace = run_tests.Trace(self.out)

    def test_a_line_of_the_runner_begins_a_line(self) -> None:
        for data in (b"", b"a\n", b"b", b""):
            self.trace.write(data)
            self.trace.line(f"line {data!r}")
        self.trace.line()
        self.trace.line("ü \udcff")
        self.assertEqual(self.out.getvalue(), b"line b''\na\nline b'a\\n'\nb\nline b'b'\nline b''\n\n\xc3\xbc \xff\n")

    def test_copy_is_byte_for_byte_from_any_offset(self) -> None:
        log = os.path.join(self.folder, "x.log")
        for text in (b"", b"\0\377\r\n", b"no end", os.urandom(100), b"x" * (run_tests.COPY_BYTES + 1),
                     b"y" * (2 * run_tests.COPY_BYTES) + b"\n"):
            with open(log, "wb") as file:
                file.write(text)
            for offset in (0, 1, len(text) // 2, len(text)):
                with self.subTest(size=len(text), offset=offset):
                    self.out.seek(0)
                    self.out.truncate()
                    self.assertEqual(self.trace.copy(log, offset), max(offset, len(text)))
                    self.assertEqual(self.out.getvalue(), text[offset:])

    def test_what_a_log_has_begun_is_ended_after_it(self) -> None:
        """A colour or a title that a log leaves open would reach into the lines to come, and a fold hide them."""
        reset, end = b"\033\\\033[0m", b"\n::endgroup::\n"
        cases = {"plain": (b"text\n", "", b""), "a colour": (b"\033[31mred\n", "", reset),
                 "an open title": (b"\033]0;title", "", reset), "a fold": (b"::group::x\n", "true", b"::endgroup::\n"),
                 "a fold and a colour": (b"::group::\033[1mx\n", "true", reset + end),
                 "a fold elsewhere": (b"::group::x\n", "", b"")}
        for name, (log, is_github, calmed) in cases.items():
            with self.subTest(name), mock.patch.dict(os.environ, {"GITHUB_ACTIONS": is_github}):
                out = io.BytesIO()
                trace = run_tests.Trace(out)
                for _ in range(2):
                    trace.write(log)
                    trace.calm()
                    trace.calm()
                self.assertEqual(out.getvalue(), (log + calmed) * 2)

    def test_a_label_gives_azure_no_orders(self) -> None:
        self.trace.line("##vso[task.complete result=Failed] ##[error] ## a ##b")
        self.assertEqual(self.out.getvalue(), b"# #vso[task.complete result=Failed] # #[error] ## a ##b\n")

    def test_copy_of_no_file_raises(self) -> None:
        with self.assertRaises(OSError):
            self.trace.copy(os.path.join(self.folder, "none"))

    def test_a_reader_that_goes_away_closes_it(self) -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        with open(write_end, "wb") as stream:
            trace = run_tests.Trace(stream)
            trace.line("buffered")
            self.assertTrue(trace.is_open)
            trace.flush()
            self.assertFalse(trace.is_open)
            trace.line("into the void")
            trace.flush()
            self.assertEqual(trace.copy(self.write("x.log", "text")), 0)


class ConsoleCase(RunnerCase):
    """A console on a BytesIO and a Record in this test's folder."""

    def setUp(self) -> None:
        super().setUp()
        self.out = io.BytesIO()
        self.trace = run_tests.Trace(self.out)
        self.logs = os.path.join(self.folder, "logs")
        self.record = run_tests.Record(run_tests.Options((), log_dir=self.logs), "a run")
        self.addCleanup(self.record.journal.file.close)
        self.machine = run_tests.machine_of(["0", "1"], run_tests.CUDA)

    def told(self) -> str:
        """What has been printed since the last call."""
        text = self.out.getvalue().decode("utf-8", "surrogateescape")
        self.out.seek(0)
        self.out.truncate()
        return text

    def finish(self, console: run_tests.Console, results: Sequence[Result], seconds: float,
               quarantined: Sequence[run_tests.Sick] = ()) -> None:
        """Let a console show the logs and the summary."""
        console.finish(results, run_tests.summary(results, seconds, self.machine, self.record, quarantined))

    def append(self, test: Test, data: bytes) -> None:
        """A running test writes to its log."""
        with open(self.record.log_path(test), "ab") as file:
            file.write(data)


class ParallelConsoleTest(ConsoleCase):
    def console(self, output: str = "replay", tests: Sequence[Test] = (), total: int = 30) -> run_tests.ParallelConsole:
        return run_tests.ParallelConsole(self.trace, self.record, run_tests.Options((), output=output), tests, total)

    def test_the_first_line_names_the_gpus(self) -> None:
        cases = {"0 1 2 3 4 5 6 7": "Detected 8 GPU(s): 0 1 2 3 4 5 6 7\n", "6 2": "Detected 2 GPU(s): 6 2\n",
                 "MIG-a MIG-b": "Detected 2 GPU(s): MIG-a MIG-b\n", "": "Detected 0 GPU(s):\n"}
        for tokens, expected in cases.items():
            with self.subTest(tokens=tokens):
                self.console().begin(run_tests.machine_of(tokens.split(), run_tests.CUDA))
                self.assertEqual(self.told(), expected)

    def test_markers(self) -> None:
        console, test = self.console(), a_test(label="test_sanity.py")
        cases = {("0",): "GPU 0", ("0", "1"): "GPU 0,1", (): "CPU", ("",): "CPU", ("MIG-a", "MIG-b"): "GPU MIG-a,MIG-b"}
        for tokens, place in cases.items():
            with self.subTest(tokens=tokens):
                console.launched(test, lease_on(*tokens))
                self.assertEqual(self.told(), f">>> Starting: test_sanity.py on {place}\n")

    def test_the_end_of_a_test(self) -> None:
        console = self.console()
        cases = [  # outcome, status, seconds, the lines
            (Outcome.PASSED, 0, 0.04, ">>> Finished: x.py on GPU 1 [passed, 0.0s, 1/30]\n"),
            (Outcome.CRASHED, -11, 9.96, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [crashed (SIGSEGV), 10.0s, 2/30]\n"),
            (Outcome.FAILED, 1, 12.34, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [failed, exit 1, 12.3s, 3/30]\n"),
            (Outcome.TIMEOUT, -15, 1800.0, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [timeout, 1800.0s, 4/30]\n"),
            (Outcome.INTERRUPTED, -2, 3.0, ">>> Finished: x.py on GPU 1 [interrupted, 3.0s, 5/30]\n"),
        ]
        for index, (outcome, status, seconds, expected) in enumerate(cases):
            with self.subTest(outcome=outcome):
                console.concluded(Result(a_test(index, "x.py"), outcome, seconds, status, lease_on("1")))
                self.assertEqual(self.told(), expected)
        console.concluded(Result(a_test(5, "wide.py"), Outcome.UNRUNNABLE, reason="needs 3 GPUs"))
        self.assertEqual(self.told(), "Error: sub-test failed: wide.py\n")
        console.concluded(Result(a_test(6, "waiting.py"), Outcome.NOT_RUN))
        self.assertEqual(self.told(), "")

    def test_the_replay(self) -> None:
        logs = [b"text\n", b"", b"no final newline", b"\n", b"NUL \0\0 and \377\376\r\033[31m\n", b"\n\nlast\0"]
        results = []
        for index, log in enumerate(logs):
            test = a_test(index, f"test_{index}.py", stem=f"pytest_test_{index}")
            self.append(test, log)
            results.append(Result(test, Outcome.PASSED, 1.0, 0, lease_on("0")))
        lost = a_test(6, "lost.py", stem="pytest_lost")
        results.append(Result(lost, Outcome.PASSED, 1.0, 0, lease_on("0")))
        self.finish(self.console(), results, 75.04)
        ends = ["", "", "\n", "", "\033\\\033[0m\n", "\n"]     # after escapes a terminal is as it was
        expected = HEAD + "".join(frame(f"pytest_test_{index}", log.decode("utf-8", "surrogateescape") + end)
                                  for index, (log, end) in enumerate(zip(logs, ends)))
        expected += frame("pytest_lost", "(its log cannot be read: No such file or directory)\n")
        self.assertEqual(self.told(), expected + FOOT + "7 tests in 75.0s on 2 GPU(s): 7 passed\n")

    def test_the_summary(self) -> None:
        tests = [a_test(index, f"{letter}.py", stem=letter) for index, letter in enumerate("abcdefghijkl")]
        oom = Cause("CUDA out of memory")
        results = [
            Result(tests[0], Outcome.PASSED, 1.0, 0, lease_on("0")),
            Result(tests[1], Outcome.FAILED, 12.34, 1, lease_on("0"), cause=oom),
            Result(tests[2], Outcome.CRASHED, 2.0, 139, lease_on("0"), cause=Cause("segmentation fault")),
            Result(tests[3], Outcome.TIMEOUT, 60.0, -9, lease_on("0"), cause=Cause("timeout")),
            Result(tests[4], Outcome.UNRUNNABLE, reason="needs 4 GPUs, more than there are"),
            Result(tests[5], Outcome.INTERRUPTED, 0.5, -2, lease_on("0")),
            Result(tests[6], Outcome.NOT_RUN),
            Result(tests[7], Outcome.PASSED, 1.0, 0, lease_on("0"), junit_fault="truncated"),
            Result(tests[8], Outcome.FLAKY, 1.0, 0, lease_on("0"), 2, leaked=("sleep (pid 7)",)),
            Result(tests[9], Outcome.FAILED, 1.0, 5, lease_on("0"), cause=oom, leaked=("a (pid 8)", "b (pid 9)")),
            Result(tests[10], Outcome.CRASHED, 1.0, -9, lease_on("0"), reason="OOM killer", cause=run_tests.OOM_KILLED),
            Result(tests[11], Outcome.BLOCKED, reason="waits for b.py, which did not pass"),
        ]
        sick = [run_tests.Sick(Device(1, "4"), "uncorrectable ECC error in b.py")]
        self.finish(self.console("none"), results, 61.0, sick)
        self.assertEqual(self.told(), f"""\
failed, exit 1, 12.3s: b.py ({self.logs}/b.log)
crashed (SIGSEGV), 2.0s: c.py ({self.logs}/c.log)
timeout, 60.0s: d.py ({self.logs}/d.log)
unrunnable, 0.0s: e.py (needs 4 GPUs, more than there are)
interrupted, 0.5s: f.py ({self.logs}/f.log)
flaky, passed at attempt 2: i.py ({self.logs}/i.attempt1.log)
failed, exit 5, 1.0s: j.py ({self.logs}/j.log)
crashed (SIGKILL, OOM killer), 1.0s: k.py ({self.logs}/k.log)
blocked, 0.0s: l.py (waits for b.py, which did not pass)
leaked: 1 process: i.py left sleep (pid 7)
leaked: 2 processes: j.py left a (pid 8) b (pid 9)
passed without its JUnit file (truncated): h.py
7 failures by cause:
    2 x CUDA out of memory: b.py j.py
    1 x segmentation fault: c.py
    1 x timeout: d.py
    1 x needs 4 GPUs, more than there are: e.py
    1 x out of memory (the kernel's OOM killer): k.py
    1 x waits for b.py, which did not pass: l.py
quarantined: GPU 4 (uncorrectable ECC error in b.py)
12 tests in 61.0s on 2 GPU(s): 2 passed, 1 flaky, 2 failed, 2 crashed, 1 timeout, 1 blocked, 1 unrunnable, \
1 interrupted, 1 not run
""")

    def test_failures_are_all_that_did_not_pass(self) -> None:
        results = []
        for index, (outcome, status) in enumerate([(Outcome.PASSED, 0), (Outcome.FAILED, 1), (Outcome.INTERRUPTED, -2),
                                                   (Outcome.NOT_RUN, None), (Outcome.FLAKY, 0)]):
            test = a_test(index, outcome.name)
            self.append(test, b"log\n")
            results.append(Result(test, outcome, 1.0, status, lease_on("0")))
        self.finish(self.console("failures"), results, 1.0)
        told = self.told()
        self.assertTrue(told.startswith(HEAD + frame("FAILED", "log\n") + frame("INTERRUPTED", "log\n") + FOOT), told)

    def test_ordered_shows_a_log_when_its_turn_has_come(self) -> None:
        tests = [a_test(index, letter) for index, letter in enumerate("abcd")]
        console = self.console("ordered", tests, 4)
        for test, log in zip(tests, (b"of a", b"of b\n", b"", b"of d\n")):
            self.append(test, log)

        def end(index: int, number: int) -> str:
            console.concluded(Result(tests[index], Outcome.PASSED, 1.0, 0, lease_on("0")))
            text = self.told()
            marker = f">>> Finished: {tests[index].label} on GPU 0 [passed, 1.0s, {number}/4]\n"
            self.assertTrue(text.startswith(marker), text)
            return text[len(marker):]

        self.assertEqual(end(1, 1), "")
        console.concluded(Result(tests[2], Outcome.NOT_RUN))
        self.assertEqual(end(0, 2), frame("a", "of a\n") + frame("b", "of b\n"))
        self.assertEqual(end(3, 3), frame("d", "of d\n"))
        self.finish(console, [], 1.0)
        self.assertEqual(self.told(), "0 tests in 1.0s on 2 GPU(s): \n")


class SequentialConsoleTest(ConsoleCase):
    def console(self, output: str) -> run_tests.SequentialConsole:
        return run_tests.SequentialConsole(self.trace, self.record, run_tests.Options((), output=output), [], 1)

    def test_output_comes_as_it_grows(self) -> None:
        shown = ["", "one", " two\n", "\0\udcff"]
        for output, expected in (("replay", shown), ("ordered", shown), ("failures", [""] * 4), ("none", [""] * 4)):
            with self.subTest(output):
                console = self.console(output)
                test, seen = a_test(label=output), []
                console.begin(self.machine)
                console.launched(test, lease_on("0"))
                console.tick()
                self.append(test, b"")
                console.started(test)
                for data in (b"", b"one", b" two\n"):
                    self.append(test, data)
                    console.tick()
                    seen.append(self.told())
                self.append(test, b"\0\377")
                console.concluded(Result(test, Outcome.PASSED, 1.0, 0, lease_on("0")))
                seen.append(self.told())
                self.append(test, b"from a daemon")
                console.tick()
                self.finish(console, [], 1.0)
                self.assertEqual(self.told(), "")
                self.assertEqual(seen, expected)

    def test_failures_are_shown_and_announced(self) -> None:
        for output, log in (("replay", "log\n"), ("ordered", "log\n"), ("failures", "log\n"), ("none", "")):
            for announces in (True, False):
                with self.subTest(output=output, announces=announces):
                    console = self.console(output)
                    test = a_test(label="x.py", stem=f"{output}{announces}", announces=announces)
                    self.append(test, b"log\n")
                    console.started(test)
                    console.concluded(Result(test, Outcome.FAILED, 1.0, 1, lease_on("0")))
                    self.assertEqual(self.told(), log + "Error: sub-test failed: x.py\n" * announces)


class LastLinesTest(unittest.TestCase):
    def last(self, words: Sequence[str], signals: Sequence[int] = (), failure: str = "") -> List[str]:
        results = [Result(a_test(index, f"t{index}.py"), Outcome(word)) for index, word in enumerate(words)]
        schedule = run_tests.Schedule([], {}, run_tests.Pool([]), run_tests.Options(()))
        for signum in signals:
            schedule.step(run_tests.Interrupt(0.0, signum))
        schedule.failure = failure
        return run_tests.last_lines(results, schedule)

    def test_of_a_run_that_ended(self) -> None:
        cases = {
            "passed": ["All tests passed"],
            "passed,flaky,deferred": ["All tests passed"],
            "deferred,deferred": ["No test ran"],
            "failed": ["Error in the following test cases: t0.py"],
            "failed,passed,crashed,timeout,blocked,unrunnable,passed":
                ["Error in the following test cases: t0.py t2.py t3.py t4.py t5.py"],
            "passed,failed,not run": ["Error in the following test cases: t1.py"],
        }
        for words, expected in cases.items():
            with self.subTest(words):
                self.assertEqual(self.last(words.split(",")), expected)

    def test_of_a_run_that_was_cut_short(self) -> None:
        cases: List[Any] = [
            ("interrupted,not run,not run", [2], "", ["Interrupted by SIGINT: 1 interrupted, 2 not run"]),
            ("passed,interrupted,interrupted", [15, 2], "", ["Interrupted by SIGTERM: 2 interrupted"]),
            ("passed,not run", [1], "", ["Interrupted by SIGHUP: 1 not run"]),
            ("passed", [2], "", ["Interrupted by SIGINT: nothing was left to run"]),
            ("failed,interrupted", [2], "", ["Interrupted by SIGINT: 1 interrupted",
                                             "Error in the following test cases: t0.py"]),
            ("not run,not run", [], "no log", ["Stopped, the machine failed: no log: 2 not run"]),
            ("failed,not run", [], "no log", ["Stopped, the machine failed: no log: 1 not run",
                                              "Error in the following test cases: t0.py"]),
        ]
        for words, signals, failure, expected in cases:
            with self.subTest(words, signals=signals):
                self.assertEqual(self.last(words.split(","), signals, failure), expected)


class CommandLineTest(GatedCase):
    LIST = """
        printf 'one\\n'                                      #: label=one
        printf 'two \\0\\377'; exit 3                        #: label=two
        true                                                 #: label=three
        echo four; false || test_fail "number four"
    """

    def test_a_whole_trace(self) -> None:
        ran = self.run_list(r"""
            echo one; echo err >&2           #: label=first.py
            wait
            echo two; exit 3                 #: label=second gpus=2
            wait
            printf 'a\0\377b'                #: label='third one' gpus=0
            wait
            kill -KILL $$                    #: label=fourth
            true                             #: label=fifth gpus=5
        """, gpus="4,6")
        self.check(ran, 1, {"first.py": "passed", "second": "failed", "third one": "passed", "fourth": "crashed",
                            "fifth": "unrunnable"})
        self.assertEqual(without_times(ran.text), """\
Detected 2 GPU(s): 4 6
Error: sub-test failed: fifth
>>> Starting: first.py on GPU 4
>>> Finished: first.py on GPU 4 [passed, 0.0s, 1/4]
>>> Starting: second on GPU 4,6
Error: sub-test failed: second
>>> Finished: second on GPU 4,6 [failed, exit 3, 0.0s, 2/4]
>>> Starting: third one on CPU
>>> Finished: third one on CPU [passed, 0.0s, 3/4]
>>> Starting: fourth on GPU 4
Error: sub-test failed: fourth
>>> Finished: fourth on GPU 4 [crashed (SIGKILL), 0.0s, 4/4]
""" + HEAD + frame("first", "one\nerr\n") + frame("second", "two\n") + frame("third_one", "a\0\udcffb\n")
            + frame("fourth") + FOOT + """\
failed, exit 3, 0.0s: second (logs/second.log)
crashed (SIGKILL), 0.0s: fourth (logs/fourth.log)
unrunnable, 0.0s: fifth (needs 5 GPUs, more than there are)
3 failures by cause:
    1 x exit status 3, last line: two: second
    1 x killed by SIGKILL: fourth
    1 x needs 5 GPUs, more than there are: fifth
5 tests in 0.0s on 2 GPU(s): 2 passed, 1 failed, 1 crashed, 1 unrunnable
Error in the following test cases: second fourth fifth
""")
        self.assertEqual(ran.err, "")

    def test_all_passed_is_the_last_line(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("printf 'no end'\n", gpus=gpus)
                self.assertTrue(ran.text.endswith("\nAll tests passed\n"), ran.text)

    def test_what_output_shows_in_parallel(self) -> None:
        cases = {"replay": ["one", "two", "three", "number_four"], "ordered": ["one", "two", "three", "number_four"],
                 "failures": ["two", "number_four"], "none": []}
        for output, expected in cases.items():
            with self.subTest(output):
                ran = self.run_list(self.LIST, "--output", output)
                self.check(ran, 1, {"one": "passed", "two": "failed", "three": "passed", "number four": "failed"})
                self.assertEqual(frames(ran.text), expected)
                self.assertEqual(HEAD in ran.text, output in ("replay", "failures"))
                self.assertEqual(FOOT in ran.text, output in ("replay", "failures"))
                self.assertEqual(len(re.findall("^>>> (?:Starting|Finished): ", ran.text, re.MULTILINE)), 8)
                for stem, log in (("two", "two \0\udcff\n"), ("number_four", "four\n")):
                    self.assertEqual(frame(stem, log) in ran.text, output != "none")

    def test_what_output_shows_sequentially(self) -> None:
        error, last = "Error: sub-test failed: number four\n", "Error in the following test cases: two number four\n"
        cases = {"replay": "one\ntwo \0\udcfffour\n" + error + last, "failures": "two \0\udcfffour\n" + error + last,
                 "none": error + last}
        cases["ordered"] = cases["replay"]
        for output, expected in cases.items():
            with self.subTest(output):
                ran = self.run_list(self.LIST, "--output", output, gpus="0")
                self.check(ran, 1, {"one": "passed", "two": "failed", "three": "passed", "number four": "failed"})
                self.assertEqual(ran.text, expected)

    def test_the_replay_is_in_list_order(self) -> None:
        gate = [Fifo(self, f"gate{number}") for number in range(2)]
        self.write("tests.txt", """
            read line <gate0; echo of a  #: label=a
            read line <gate1; echo of b  #: label=b
            echo of c                    #: label=c
        """)
        process = self.start("tests.txt", gpus="0,1,2")
        self.read_until(process, b">>> Finished: c ")
        gate[1].release()
        self.read_until(process, b">>> Finished: b ")
        gate[0].release()
        out, _ = process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertIn(HEAD + frame("a", "of a\n") + frame("b", "of b\n") + frame("c", "of c\n") + FOOT, out.decode())

    def test_ordered_does_not_wait_for_the_end(self) -> None:
        gate = [Fifo(self, f"gate{number}") for number in range(3)]
        self.write("tests.txt", "".join(f"read line <gate{number}; echo of {number}  #: label=t{number}\n"
                                        for number in range(3)))
        process = self.start("--output", "ordered", "tests.txt", gpus="0,1,2")
        gate[1].release()
        before = self.read_until(process, b">>> Finished: t1 ")
        self.assertNotIn(LINE.encode(), before)
        gate[0].release()
        seen = self.read_until(process, b"of 1\n")
        self.assertIn((frame("t0", "of 0\n") + frame("t1", "of 1\n")).encode(), seen)
        gate[2].release()
        out, _ = process.communicate()
        self.assertIn(frame("t2", "of 2\n").encode(), out)
        self.assertEqual(process.returncode, 0)

    def test_sequential_output_does_not_wait_for_the_end(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "printf early; read line <gate; printf ' on'; read line <gate; echo ' late'\n")
        process = self.start("tests.txt", gpus="0")
        for text in (b"early", b" on"):
            self.assertEqual(self.read_until(process, text), text)
            gate.release()
        self.assertEqual(process.communicate()[0], b" late\nAll tests passed\n")


class ReaderTest(GatedCase):
    LIST = "head -c 300000 /dev/zero #: label=a\nwait\nfalse #: label=b\nwait\ntouch done #: label=c\n"

    def test_a_closed_reader_changes_nothing_else(self) -> None:
        for gpus in ("0", "0,1"):
            for output in ("replay", "ordered", "failures", "none"):
                with self.subTest(gpus=gpus, output=output):
                    code, err = self.run_into_the_void("--output", output, gpus=gpus)
                    self.assertEqual((code, err), (1, b""))
                    os.unlink(os.path.join(self.folder, "done"))

    def run_into_the_void(self, *arguments: str, gpus: str) -> Any:
        """Exit code and stderr of a run whose stdout nobody reads."""
        self.write("tests.txt", self.LIST)
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = self.start(*arguments, "tests.txt", gpus=gpus, stdout=write_end)
        os.close(write_end)
        _, err = process.communicate()
        return process.returncode, err

    def test_a_reader_that_leaves_midway_neither(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "echo first; read line <gate\n" + self.LIST)
        for gpus, first in (("0", b"first\n"), ("0,1", b"Detected 2 GPU(s): 0 1\n")):
            with self.subTest(gpus=gpus):
                process = self.start("tests.txt", gpus=gpus)
                assert process.stdout is not None and process.stderr is not None
                self.read_until(process, first)
                process.stdout.close()
                gate.release()
                self.assertEqual((process.stderr.read(), process.wait()), (b"", 1))
                os.unlink(os.path.join(self.folder, "done"))

    def test_no_stream_at_all(self) -> None:
        self.write("tests.txt", "echo out; echo err >&2; touch done #: label=a\nfalse #: label=b\n")
        for gpus in ("0", "0,1"):
            for closed, is_printed in (("<&-", True), (">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)):
                with self.subTest(gpus=gpus, closed=closed):
                    command = ["bash", "-c", f'"$@" {closed}', "bash", *self.command("tests.txt")]
                    ran = subprocess.run(command, cwd=self.folder, env=self.environment(gpus, {}), check=False,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    self.assertEqual((ran.returncode, ran.stderr), (1, b""))
                    with open(os.path.join(self.folder, "logs/a.log"), "rb") as file:
                        self.assertEqual(file.read(), b"out\nerr\n")
                    self.assertEqual(ran.stdout.endswith(b"\nError in the following test cases: b\n"), is_printed)

    def test_a_pipe_that_does_not_block_loses_nothing(self) -> None:
        self.write("tests.txt", "head -c 3000000 /dev/zero\n")      # many times what a pipe holds
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                read_end, write_end = os.pipe()
                os.set_blocking(write_end, False)
                process = self.start("tests.txt", gpus=gpus, stdout=write_end)
                os.close(write_end)
                with open(read_end, "rb") as reader:
                    out = reader.read()
                _, err = process.communicate()
                self.assertEqual((process.returncode, err, out.count(b"\0")), (0, b"", 3000000))
                self.assertTrue(out.endswith(b"\nAll tests passed\n"))


class MemoryTest(RunnerCase):
    def test_a_large_log_takes_no_memory(self) -> None:
        self.write("tests.txt", f"head -c {LOG_BYTES} /dev/zero\n")
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                # A process of its own starts the runner: a child's peak counts from its fork, in our size.
                ran = subprocess.run([sys.executable, "-c", MEASURE, *self.command("tests.txt")], cwd=self.folder,
                                     env=self.environment(gpus, {}), check=True, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE)
                count, peak, code = map(int, ran.stdout.split())
                self.assertEqual(code, 0)
                self.assertGreater(count, LOG_BYTES)
                self.assertLess(peak, MOST_BYTES)


if __name__ == "__main__":
    unittest.main()
