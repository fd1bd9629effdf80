"""The live block, as a terminal shows it: real runs on pseudo-terminals, drawn by a small terminal of our own."""
from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import unittest
import unicodedata
from typing import List, Tuple

import run_tests
from tests.support import SHED, WAIT_S, RunnerCase, compiled_runner
from tests.test_command_line import GOLDEN_LIST


class Paper:
    """What a terminal shows, and what has scrolled off it: it knows what the runner uses, and breaks lines."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cells: List[List[str]] = [[]]    # by line; behind a wide character stands an empty one
        self.row = self.column = 0
        self.breaks = True           # lines that are too long

    @property
    def text(self) -> str:
        return "\n".join(map("".join, self.cells))

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|\x1b.|[\r\n]|[^\r\n\x1b]+", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.down()
            elif part.startswith("\x1b["):
                self.obey(part[-1], part[2:-1])
            elif not part.startswith("\x1b"):
                self.put(part)

    def down(self) -> None:
        self.row += 1
        if self.row == len(self.cells):
            self.cells.append([])

    def obey(self, order: str, number: str) -> None:
        if order == "A":
            self.row -= int(number)
        elif order == "J":
            del self.cells[self.row + 1:]
            del self.cells[self.row][self.column:]
        elif number == "?7":
            self.breaks = order == "h"
        else:
            assert order == "m", order

    def put(self, text: str) -> None:
        for character in text:
            taken = [character, ""] if unicodedata.east_asian_width(character) in "WF" else [character]
            if self.column + len(taken) > self.columns:
                if not self.breaks:
                    continue
                self.column = 0
                self.down()
            line = self.cells[self.row]
            line += [" "] * (self.column - len(line))
            line[self.column:self.column + len(taken)] = taken
            self.column += len(taken)


class TerminalCase(RunnerCase):
    """A run on a pseudo-terminal. Its tests wait for FIFOs, so that nothing depends on time."""

    def start(self, *arguments: str, columns: int = 80, rows: int = 24, **variables: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not SHED.fullmatch(name) and name != "CI"}
        environ.update({"TERM": "xterm", "CUDA_VISIBLE_DEVICES": "0,1", **variables})
        self.paper = Paper(columns)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(self.folder)
                while os.get_terminal_size(1).columns != columns:
                    time.sleep(0.001)
                os.execve(sys.executable, [sys.executable, "-S", compiled_runner(), *arguments], environ)
            finally:
                os._exit(99)
        self.resize(columns, rows)
        self.addCleanup(os.close, self.terminal)

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bool:
        """Draw what has come; whether there may be more."""
        if not select.select([self.terminal], [], [], WAIT_S)[0]:
            raise AssertionError("the runner hangs:\n" + self.paper.text)
        try:
            data = os.read(self.terminal, 1 << 16)
        except OSError:
            return False
        self.paper.feed(data.decode())
        return bool(data)

    def read_until(self, pattern: str) -> str:
        """The paper once it shows a text that matches."""
        while not re.search(pattern, self.paper.text, re.S):
            if not self.read():
                raise AssertionError(f"no {pattern!r} in\n" + self.paper.text)
        return self.paper.text

    def finish(self) -> Tuple[int, str]:
        """Exit code, and all lines that stay."""
        while self.read():
            pass
        _, status = os.waitpid(self.pid, 0)
        return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)), self.paper.text

    def fifo(self, name: str) -> None:
        os.mkfifo(os.path.join(self.folder, name))

    def open_fifo(self, name: str) -> None:
        """Let the test go on that reads this FIFO."""
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass


class LiveBlockTest(TerminalCase):
    def test_what_runs_stands_below_what_has_ended(self) -> None:
        self.fifo("go")
        self.write("t.txt", "cat go >go.out || test_fail waits\nfalse || test_fail fails\n")
        self.start("t.txt")
        shown = self.read_until(r"1/2, 1 failed\nGPU 0  \d:\d\d  waits$")
        self.assertIn("Finished: fails", shown)
        self.assertRegex(shown, r"\n\[\d:\d\d\] 1/2, 1 failed\n")
        self.open_fifo("go")
        code, shown = self.finish()
        self.assertEqual(code, 1)
        self.assertNotRegex(shown, r"\n\[\d:\d\d\] ")
        self.assertRegex(shown, r"2 tests in [\d.]+s on 2 GPU\(s\): 1 passed, 1 failed\n")

    def test_lines_are_cut_where_the_window_ends(self) -> None:
        self.fifo("go")
        label = "測試" * 30
        self.write("t.txt", f"cat go >go.out || test_fail {label}\n")
        self.start("t.txt", columns=40)
        self.read_until("\nGPU 0  \\d:\\d\\d  (測試){6}測$")
        self.open_fifo("go")
        code, shown = self.finish()
        self.assertEqual(code, 0)

    def test_a_window_that_gets_narrower_keeps_its_lines(self) -> None:
        self.fifo("go")
        self.write("t.txt", "cat go >go.out || test_fail " + "w" * 60 + "\n")
        self.start("t.txt", columns=80)
        self.read_until("GPU 0  .*w{60}$")
        self.resize(50)
        self.paper.columns = 50
        self.read_until("\nGPU 0  \\d:\\d\\d  w{37}$")
        self.open_fifo("go")
        code, shown = self.finish()
        self.assertEqual(code, 0)
        self.assertIn("Detected 2 GPU(s): 0 1\n", shown)

    def test_a_low_window_shows_what_fits(self) -> None:
        self.fifo("go")
        self.write("t.txt", "".join(f"cat go >out{number} || test_fail t{number}\n" for number in range(6)))
        self.start("t.txt", "--gpus", "6", rows=5, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5")
        shown = self.read_until("\nGPU 2  [^\n]*$")
        self.assertEqual(len(re.findall(r"\nGPU \d  ", shown)), 3)
        os.kill(self.pid, signal.SIGTERM)
        self.finish()

    def test_sigusr1_tells_what_runs_above_the_block(self) -> None:
        self.fifo("up")
        self.fifo("go")
        self.write("t.txt", "echo so far && cat up go >go.out || test_fail waits\n")
        self.start("t.txt")
        self.open_fifo("up")
        self.read_until("GPU 0  .*waits$")
        os.kill(self.pid, signal.SIGUSR1)
        self.read_until(r">>> Running: waits \[[\d.]+s; so far\]\n>>> Running: 0/1, at \d:\d\d\n"
                        r"\[\d:\d\d\] 0/1\nGPU 0  \d:\d\d  waits$")
        self.open_fifo("go")
        self.assertEqual(self.finish()[0], 0)

    def test_control_c_is_told_where_the_block_stood(self) -> None:
        """The terminal keeps its modes: it shows the key itself, and the runner takes that away with its block."""
        self.fifo("up")
        self.fifo("go")
        self.write("t.txt", "cat up go >go.out || test_fail waits\n")
        self.start("t.txt")
        before = termios.tcgetattr(self.terminal)
        self.open_fifo("up")
        self.read_until("GPU 0  .*waits$")
        self.assertEqual(termios.tcgetattr(self.terminal), before)
        os.write(self.terminal, b"\x03")
        code, shown = self.finish()
        self.assertEqual(code, 130)
        self.assertIn("SIGINT: ending the running tests", shown)
        self.assertRegex(shown, r"Interrupted by SIGINT: 1 interrupted\n$")
        self.assertNotIn("^C", shown)

    def test_one_gpu_prints_what_the_script_would(self) -> None:
        self.write("t.txt", "echo a\necho b\n")
        self.start("t.txt", CUDA_VISIBLE_DEVICES="0")
        code, shown = self.finish()
        self.assertEqual(code, 0)
        self.assertTrue(shown.startswith("a\nb\n"), shown)

    def test_of_a_script_too_only_what_failed_is_shown(self) -> None:
        self.write("t.sh", "test_fail() { :; }\necho begin\nbash -c 'echo fine' || test_fail a\n"
                           "bash -c 'echo broken; exit 3' || test_fail b\nexit 3\n")
        self.start("t.sh")
        code, shown = self.finish()
        self.assertEqual((code, *re.findall(r"(?m)^(?:begin|fine|broken)$", shown)), (3, "begin", "broken"), shown)


class GoldenTest(TerminalCase):
    maxDiff = None

    def test_what_stays_on_a_terminal(self) -> None:
        """The whole trace of one list; colours are told by their numbers."""
        self.fifo("hold")
        self.write("tests.txt", GOLDEN_LIST)
        self.start("tests.txt", columns=200, CUDA_VISIBLE_DEVICES="0,1,2,3")
        raw: List[str] = []
        draw = self.paper.feed
        self.paper.feed = lambda text: raw.append(text) or draw(text)  # type: ignore[method-assign,func-returns-value]
        self.read_until("2/9, at 0:")
        self.open_fifo("hold")
        self.assertEqual(self.finish()[0], 1)
        colours = re.findall(r"\x1b\[(\d+)m[^\x1b\r\n]+\x1b\[0m", "".join(raw))
        self.assertEqual(set(colours), {run_tests.RED, run_tests.GREEN})
        self.compare_golden("terminal.txt", self.paper.text)


class ColourTest(TerminalCase):
    def colours(self, *arguments: str, **variables: str) -> bool:
        self.write("t.txt", "true\n")
        self.start(*arguments, "t.txt", **variables)
        raw: List[str] = []
        self.paper.feed = raw.append  # type: ignore[method-assign]
        self.assertEqual(self.finish()[0], 0)
        return "\x1b[32m>>> Finished: true" in "".join(raw)

    def test_on_a_terminal_alone_and_as_asked(self) -> None:
        self.assertTrue(self.colours())
        self.assertFalse(self.colours(NO_COLOR="1"))
        self.assertFalse(self.colours("--color", "never"))
        self.assertFalse(self.colours(CI="true"))
        self.assertTrue(self.colours("--color", "always", CI="true"))


if __name__ == "__main__":
    unittest.main()
