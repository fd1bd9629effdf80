"""Why tests failed, as section 7 reads it from logs and section 9 sums it up: real lines, real tails, hostile ones."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, Iterator, List, Tuple
from unittest import mock

import run_tests
from run_tests import SIGNATURES, Blame, Cause, Outcome, Result, diagnose, normalise
from tests.support import ROOT, RunnerCase, a_test

LINES = os.path.join(ROOT, "tests", "fixtures", "causes.tsv")
TAILS = os.path.join(ROOT, "tests", "fixtures", "tails.txt")
LOG_BYTES, CPU_S = 1 << 14, 2     # a part of what is read of a log, and hundreds of times what that takes


def recorded() -> Iterator[Tuple[str, str, str]]:
    """Cause, line and source of each line of the fixture."""
    with open(LINES, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("# "):
                cause, said, source = line.rstrip("\n").split("\t")
                yield cause, said, source


class SignatureTest(unittest.TestCase):
    def test_what_was_recorded(self) -> None:
        """Each cause is found in its lines, with its blame; of `none` no known one is."""
        known = {text: blame for blame, patterns in SIGNATURES.items() for text in patterns}
        self.assertEqual({text: blame for text, blame in known.items() if blame is not Blame.TEST}, {
            "uncorrectable ECC error": Blame.DEVICE, "GPU fallen off the bus": Blame.DEVICE,
            "driver older than the runtime": Blame.MACHINE, "no usable GPU": Blame.MACHINE})
        self.assertEqual({cause for cause, _, _ in recorded()}, {*known, "none"})
        for cause, said, source in recorded():
            with self.subTest(said, source=source):
                found = diagnose(1, f"some\nlines\n{said}\nand more\n")
                if cause == "none":
                    self.assertNotIn(found.text, known)
                else:
                    self.assertEqual(found[:2], (cause, known[cause]))
                    self.assertIn(found.line, said)

    def test_the_cause_comes_before_what_follows_from_it(self) -> None:
        """Each of two lines alone is a cause; of both, in either order, the first one here is."""
        cases = [
            ("CUDA error: uncorrectable ECC error encountered", "RuntimeError: No CUDA GPUs are available"),
            ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "CUDA error: unspecified launch failure"),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
             "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"),
            ("RuntimeError: CUDA error: device-side assert triggered", "Fatal Python error: Segmentation fault"),
            ("OSError: [Errno 98] Address already in use", "DistStoreError: Timed out after 1801 seconds"),
            ("std::bad_alloc: out_of_memory: CUDA error at: /x.hpp:60: cudaErrorMemoryAllocation out of memory",
             "E   MemoryError"),
            ("E   ModuleNotFoundError: No module named 'flash_attn'", "===== no tests ran in 0.10s ====="),
            ("ERROR: file or directory not found: tests/nope.py", "===== no tests ran in 0.10s ====="),
            ("INTERNALERROR> ValueError: bad plugin", "===== no tests ran in 0.10s ====="),
            ("!!!!! _pytest.outcomes.Exit: no GPU here !!!!!", "===== no tests ran in 0.10s ====="),
        ]
        for cause, consequence in cases:
            with self.subTest(cause):
                first, second = diagnose(1, cause), diagnose(1, consequence)
                self.assertNotEqual(first, second)
                for log in (f"{cause}\n{consequence}\n", f"{consequence}\n{cause}\n"):
                    self.assertEqual(diagnose(1, log), first)

    def test_lines_that_quote_are_passed_over(self) -> None:
        said = "CUDA out of memory"
        quotes = (f"test_x.py::test_{said} PASSED [ 3%]", f">       raise RuntimeError('{said}')", f"+ echo {said}",
                  f"MESSAGE='{said}'", f"x.py:3: UserWarning: {said}", f"[       OK ] {said}", f"[ RUN      ] {said}",
                  f"t.py::test_{said} SKIPPED", f"t.py::test_{said} XFAIL")
        for quote in quotes:
            with self.subTest(quote):
                self.assertEqual(diagnose(3, quote).text, "exit status 3, without output")
                self.assertEqual(diagnose(3, f"{quote}\nAssertionError: told\n").text, "AssertionError: told")
        for error in (f"E   {said}", f"E       RuntimeError: {said}", f"FAILED t.py::a - {said}", f"\x1b[1mE {said}"):
            self.assertEqual(diagnose(3, error).text, said)


class TailTest(unittest.TestCase):
    """The ends of real logs, and the line of each that a human would call the cause."""

    def test_what_a_human_would_say(self) -> None:
        with open(TAILS, encoding="utf-8") as file:
            tails = re.findall(r"^#### (.*) \| (\d+) \| (.*)\n((?:(?!####).*\n)*)", file.read(), re.MULTILINE)
        self.assertGreater(len(tails), 12)
        for name, status, cause, log in tails:
            with self.subTest(name):
                self.assertEqual(diagnose(int(status), log).text, cause)

    def test_a_death_is_told_where_the_log_does_not(self) -> None:
        cases = {(-11, ""): "segmentation fault", (139, "Error: x"): "segmentation fault",
                 (-6, ""): "killed by SIGABRT", (137, "all well"): "killed by SIGKILL",
                 (-9, "CUDA out of memory"): "CUDA out of memory",
                 (1, ""): "exit status 1, without output", (5, " \n\x1b[0m\n"): "exit status 5, without output",
                 (0, ""): "exit status 0, without output"}
        for (status, log), cause in cases.items():
            with self.subTest(status=status, log=log):
                self.assertEqual(diagnose(status, log)[:2], (cause, Blame.TEST))

    def test_the_frame_of_the_test_stands_for_a_dying_python(self) -> None:
        """Not the library's that it calls, nor what bash says of the death."""
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
            path = os.path.join(folder, "test_x.py")
            for error, call, signum in (("Aborted", "os.abort()", 6),
                                        ("Segmentation fault", "ctypes.string_at(0)", 11)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write("import ctypes, os, threading\n"
                               "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
                               f"def test_it():\n    {call}\ntest_it()\n")
                words = f"ulimit -c 0; printf .; '{sys.executable}' -X faulthandler {path}; exit $?"
                ran = subprocess.run(["bash", "-c", words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, check=False)
                found = diagnose(ran.returncode, ran.stdout.decode())
                self.assertEqual((ran.returncode, found.line),
                                 (128 + signum, f'Fatal Python error: {error}, File "{path}", line 4 in test_it'))

    def test_a_line_is_read_beyond_what_is_shown_of_it(self) -> None:
        far = "x" * run_tests.LINE_CHARS + " RuntimeError: CUDA error: uncorrectable ECC error encountered"
        self.assertEqual(diagnose(1, far).blame, Blame.DEVICE)
        self.assertLessEqual(len(diagnose(1, "Error " + "x " * 10_000).text), run_tests.LINE_CHARS)


class NormaliseTest(unittest.TestCase):
    def test_what_differs_between_runs_of_one_failure(self) -> None:
        cases = {                        # what comes of one line, or of several; different failures stay two
            "KeyError: 'a'": ["KeyError: 'a'"], "loss is nan": ["loss is nan"], "the feed failed": ["the feed failed"],
            "": [""], "plain words": ["plain words"], "a/b stays": ["a/b stays"], "/": ["/"], "deadbeef": ["deadbeef"],
            "file:///tmp/x:N": ["file:///tmp/x:12"], "tests/a.py:N: x": ["tests/a.py:7: x"], "vN": ["v1.2.3"],
            "No such file: 'PATH'": ["No such file: '/tmp/tmpab1_x/a.txt'", "No such file: '/tmp/pytest-17/a0.txt'"],
            "in PATH": ["in ~/a/b.py", "in ./build/a.so", "in ../out-2/a.so"], "x=N, y=-N": ["x=1.25, y=-3"],
            "<Tensor at ID>": ["<Tensor at 0x7f036ec19b80>", "<Tensor at 0x55b017570c40>"],
            "Process N has N GiB in use": ["Process 4101543 has 39.37 GiB in use", "Process 812 has 5.4 GiB in use"],
            "EN N:N:N lost": ["E1016 03:31:38.928 lost", "E0102 23:00:01.000 lost"],
            "error N (limit N)": ["error 1.5e-05 (limit 0.001)", "error 0.3 (limit 0.001)"],
            "commit ID": ["commit 3f2a9c1b77", "commit 0b1c2d3e4f5a"], "at localhost:N": ["at localhost:29500"],
            "GPU-ID": ["GPU-004f693d-767b-b215-b4a9-a18af0ffd643", "GPU-550e8400-e29b-41d4-a716-446655440000"],
        }
        for expected, lines in cases.items():
            for line in lines:
                with self.subTest(line):
                    self.assertEqual(normalise(line), expected)


class CostTest(unittest.TestCase):
    """Logs that backtracking would choke on."""

    PIECES = ["x", "\n", " ", "a/", "/a", "/", "::", ":", ".", "..", "A.", "A", "Error", "Error ", "E   ", "E   \n",
              "0", "1.", "1e", "a1", "0x", "\x1b[", "\x1b]", "\x1b", "\x1b[0m", "NCCL ", "NCCL time", "_", "- ", "(",
              "é", "\0", "\r", "CUDA ", "Resource exhausted: ", "Cuda failure ", "\u2028", "=", "A.B.", "\t", "+ ",
              "cudaErrorMemoryAllocation ", "x" * 199 + "\n", "E       \n", "Segmentation fault", "error\n", "a.A::",
              "1 failed ", ": line 1: ", "E assert ", "12345678-", "Fatal Python error: \n",
              "  File Fatal Python error: \n", "Fatal Python error: \n\nCurrent thread \n  File \"x\n  ",
              "Fatal Python error: \nCurrent thread \n", "Thread Fatal Python error: \n",
              "Python Fatal Python error: \n"]

    def test_no_log_costs_much(self) -> None:
        def give_up(_signum: int, _frame: Any) -> None:
            raise AssertionError("it takes for ever")
        before = signal.signal(signal.SIGVTALRM, give_up)
        self.addCleanup(signal.signal, signal.SIGVTALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        for piece in self.PIECES:
            log = piece * (LOG_BYTES // len(piece.encode()))
            for text in (log, log + "\nError", "Error " + log):
                with self.subTest(piece):
                    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
                    self.assertEqual(re.findall(r"^$|[\x00-\x1f\x7f]", diagnose(1, text).text), [])
                    self.assertLessEqual(len(run_tests.last_line(text)), run_tests.LINE_CHARS)
                    normalise(text)


class FindCauseTest(RunnerCase):
    def find(self, status: int, log: str) -> str:
        return diagnose(status, run_tests.tail_of(log, run_tests.CAUSE_BYTES)).text

    def test_only_the_end_of_a_log_counts(self) -> None:
        most = run_tests.CAUSE_BYTES
        for size, cause in ((most - 100, "no space left on device"), (most, "exit status 1, last line: the end")):
            log = self.write("x.log", "No space left on device\n" + "x" * size + "\nthe end\n")
            self.assertEqual(self.find(1, log), cause)

    def test_a_log_that_is_gone_or_no_text(self) -> None:
        self.assertEqual(self.find(3, os.path.join(self.folder, "gone")), "exit status 3, without output")
        self.assertIn("error", self.find(3, self.write("x.log", "\udcff\udcfe error \0 \udcc3\n")))

    def test_kills_are_counted(self) -> None:
        for text, count in {"pgfault 12\noom_kill 5\nnuma_hit 7\n": 5, "pgfault 12\n": 0, "": 0}.items():
            with mock.patch.object(run_tests, "read_proc", {"vmstat": text.encode()}.get):
                self.assertEqual(run_tests.oom_kills(), count)

    def test_room_on_a_disk(self) -> None:
        """A file system without blocks is not full."""
        for path in (self.folder + "/x.log", self.folder + "/gone/x.log", "/proc/self/status"):
            run_tests.check_room(path)


class SummaryTest(unittest.TestCase):
    """`N failures by cause:` at the end of a trace."""

    def lines(self, *ends: Tuple[str, Outcome, str, str]) -> List[str]:
        """From label, outcome, cause and reason."""
        return list(run_tests.causes(Result(a_test(index, label), outcome, cause=Cause(cause), reason=reason)
                                     for index, (label, outcome, cause, reason) in enumerate(ends)))

    def failed(self, labels: str, cause: str = "x") -> List[Tuple[str, Outcome, str, str]]:
        return [(label, Outcome.FAILED, cause, "") for label in labels.split()]

    def test_what_is_no_failure_is_not_in_it(self) -> None:
        others = (Outcome.PASSED, Outcome.FLAKY, Outcome.DEFERRED, Outcome.INTERRUPTED, Outcome.NOT_RUN)
        self.assertEqual(self.lines(*((outcome.value, outcome, "why", "") for outcome in others)), [])
        self.assertEqual(self.lines(*self.failed("a"), *self.failed("b", "y")), [])     # their own lines say it

    def test_the_most_frequent_comes_first_and_of_equals_the_first_in_the_list(self) -> None:
        """Where there is no cause, the reason is one."""
        wide, waits = "needs 9 GPUs, more than there are", "waits for w, which did not pass"
        ends = [*self.failed("a"), ("w", Outcome.UNRUNNABLE, "", wide), ("f", Outcome.BLOCKED, "", waits),
                ("t", Outcome.TIMEOUT, "timeout", "did not end in 5s"), ("e", Outcome.PASSED, "", ""),
                *self.failed("b", "y"), ("u", Outcome.TIMEOUT, "timeout", "did not end in 9s")]
        self.assertEqual(self.lines(*ends), ["6 failures by cause:", "    2 x timeout: t, u", "    1 x x: a",
                                             f"    1 x {wide}: w", f"    1 x {waits}: f", "    1 x y: b"])

    def test_ten_are_named(self) -> None:
        names = [f"t{number}" for number in range(12)]
        for count, tail in ((10, ""), (11, " \u2026 with 1 more"), (12, " \u2026 with 2 more")):
            self.assertEqual(self.lines(*self.failed(" ".join(names[:count])))[1],
                             f"{count:5} x x: {', '.join(names[:10])}{tail}")

    def test_the_last_line_of_a_log(self) -> None:
        cases: Dict[str, str] = {
            "": "", "\n\n": "", "one\ntwo": "two", "one\n \n\x1b[0m\n\n": "one", "  a\tb \r\n": "a b",
            "\x1b[1;31mred\x1b(B\x1b[m and \x1b]0;a title\x07plain": "red and plain", "\x1b]2;t\x1b\\x\x1b7y\x1b": "xy",
            "50%\r100%": "100%", "a\x00\x01b\x9b": "a b", "x" * 999: "x" * run_tests.LINE_CHARS,
            "\udcff é": "\udcff é", "a\nbash: warning: setlocale: LC_ALL: cannot change locale (x)\n": "a"}
        for text, said in cases.items():
            with self.subTest(text):
                self.assertEqual(run_tests.last_line(text), said)


if __name__ == "__main__":
    unittest.main()
