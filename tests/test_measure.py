"""qa/measure.py: how much memory of a GPU tests hold, seen by the stub of nvidia-smi that is in `test_devices.py`."""
from __future__ import annotations

import os
import sys
import unittest

import run_tests
from tests.support import ROOT, WAIT_S, Fifo, a_test
from tests.test_faults_gpu import GpuCase

sys.path.insert(0, os.path.join(ROOT, "qa"))

import measure

HEAD = "measure.py: the most memory that each test was seen to hold, and what it could say:\n"
DRIVER = f"""
import sys
sys.path.insert(0, {os.path.join(ROOT, "qa")!r})
import measure
measure.LOOK_S = 0.01
measure.run_tests.leave(measure.main())
"""


class TableTest(unittest.TestCase):
    def test_what_leaves_room_for_another(self) -> None:
        """In list order; nothing is proposed of what no look has met, nor where nobody knows how large a GPU is."""
        tests = [run_tests.Attempt(a_test(at, "abcd"[at]), run_tests.Lease((), 0), 1, 0.0) for at in range(4)]
        peaks = dict(zip(tests, (5000, 5001, 0)))
        for memory, mem in ((12000.0, "mem=5.9G"), (0.0, "-")):
            self.assertEqual([*measure.table(tests[::-1], peaks, memory)],
                             [f"a\t5000 MiB\t{mem}", "b\t5001 MiB\t-", "c\t0 MiB\t-", "d\t-\t-"])


class MeasureTest(GpuCase):
    """The command line."""

    def setUp(self) -> None:
        super().setUp()
        self.head = [sys.executable, "-S", self.write("driver.py", DRIVER)]

    def test_what_a_test_holds_at_most(self) -> None:
        """Beyond what its GPU held before the run, of what passed and had one GPU alone; of a list and of a script."""
        # The first look may have begun before the test, the second may end behind it.
        self.write("hold.sh", "G=$CUDA_VISIBLE_DEVICES; exec 3<>$1.$G; cp $1.$G.say say.$G\n"
                              + "read -u 3\n" * 3 + "rm say.$G\n")
        lines = "bash hold.sh {0} || test_fail a\nbash hold.sh {0} || test_fail b\nwait\nfalse || test_fail c\n"
        self.write("tests.txt", lines.format("list") + "true #: label=d gpus=0.5\ntrue #: label=e gpus=2\n")
        self.write("test.sh", "test_fail() { RET=1; }\n" + lines.format("script") + "exit $RET\n")
        for kind, name in (("list", "tests.txt"), ("script", "test.sh")):
            for gpu, held in enumerate((1802, 11032)):
                look = Fifo(self, f"{kind}.{gpu}").path
                self.write(f"{kind}.{gpu}.say", f'echo "$row {held}, 35, 12287"; echo >{look}')
            with self.each(name):
                process = self.start("--output", "none", name, env=self.smi)
                _, err = process.communicate(timeout=WAIT_S)
                self.assertEqual(process.returncode, 1, err)
                self.assertEqual(err.decode().partition(HEAD)[2],
                                 "a\t1000 MiB\tmem=1.2G\nb\t1000 MiB\tmem=1.2G\n", err)

    def test_a_tool_that_hangs_at_the_end(self) -> None:
        """It is not waited for."""
        up, asked = Fifo(self, "up"), Fifo(self, "hangs")
        self.write("hang", "echo >hangs; exec $NAP")
        self.write("tests.txt", "cp hang say; read <up #: label=a\n")
        process = self.start("--junit", "junit.xml", "tests.txt", gpus="0", env=self.smi)
        asked.lines()
        up.release()
        self.assertRegex(self.settle(process, 0, {"a": "passed"}).err, rf"{HEAD}a\t(-|0 MiB)\t-\n\Z")

    def test_where_nothing_can_be_seen_that_is_said(self) -> None:
        self.write("tests.txt", "true\n")
        hip, cuda = {"HIP_VISIBLE_DEVICES": "0"}, {**self.smi, "CUDA_VISIBLE_DEVICES": "0"}
        for arguments, env, code, said in (((), hip, 0, "nvidia-smi does not say what memory these GPUs hold"),
                                           (("-k", "none"), cuda, 5, "no test has passed that had one GPU alone")):
            ran = self.run_command(*arguments, "tests.txt", gpus=None, env=env)
            self.assertEqual(ran.code, code)
            self.assertTrue(ran.err.endswith(f"measure.py: nothing was seen: {said}\n"), ran.err)


if __name__ == "__main__":
    unittest.main()
