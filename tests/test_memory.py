"""qa/memory.py: tests that share a GPU by `mem=`, and how much of it they hold, by the stubs of `test_devices.py`."""
from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import unittest
from typing import Sequence, Tuple

import run_tests
from tests.support import ROOT, WAIT_S, Fifo, a_test
from tests.test_devices import ALL, GPU_A, MIG_A, SMI, TIMEOUT, DeviceCase, machine
from tests.test_faults_gpu import GpuCase

sys.path.insert(0, os.path.join(ROOT, "qa"))

import memory

HEAD = "memory.py: the most memory that each test was seen to hold, and what it could say:\n"
DRIVER = f"""
import sys
sys.path.insert(0, {os.path.join(ROOT, "qa")!r})
import memory
memory.LOOK_S = 0.01
memory.run_tests.leave(memory.main())
"""


class SharingTest(DeviceCase):
    """Tests that say `mem=` share a GPU."""

    WHOLE = ("run_tests.py: no tool says what memory each GPU has: tests with mem= get a whole one; "
             "say it by --gpu-memory\n")

    def setUp(self) -> None:
        super().setUp()
        self.head = [sys.executable, "-S", os.path.join(ROOT, "qa", "memory.py")]

    def need(self, mem: str, size: str, gpus: float = 1) -> float:
        attributes = run_tests.Attributes(mem=run_tests.parse_memory(mem))
        test = a_test(attributes=attributes, gpus=gpus)
        with contextlib.redirect_stderr(io.StringIO()):
            return memory.by_memory(test, run_tests.parse_memory(size)).gpus

    def test_a_part_of_the_memory_is_a_share_of_the_gpu(self) -> None:
        cases: Sequence[Tuple[str, str, float, float]] = (
            ("20G", "80G", 1, 0.25), ("512M", "1G", 1, 0.5), ("80G", "80G", 1, 1), ("1M", "9999G", 1, 0.000001),
            ("8G", "24G", 1, 0.333333), ("20G", "80G", 0.5, 0.5), ("60G", "80G", 0.5, 0.75),
            ("81G", "80G", 0.5, memory.TOO_LARGE), ("160G", "80G", 1, memory.TOO_LARGE),
            ("20G", "0G", 0.5, 1), ("0G", "80G", 1, 1),
            ("20G", "80G", 0, 0), ("20G", "80G", 2, 2), ("20G", "80G", ALL, ALL))
        for mem, size, gpus, expected in cases:
            with self.subTest(mem, size=size, gpus=gpus):
                self.assertEqual(self.need(mem, size, gpus), expected)

    def test_a_part_of_another_number_of_gpus_is_a_mistake(self) -> None:
        for gpus in ("0", "2", "all"):
            ran = self.run_list(f"true\ntrue #: mem=2G gpus={gpus}\n", gpus="0,1")
            with self.subTest(gpus):
                self.assertEqual((ran.code, ran.out), (2, b""))
                self.assertIn("tests.txt:2: mem= is a part of one GPU, and gpus= asks for another number; take one of "
                              "them out\n", ran.err)

    def test_pynvml_says_it_where_nvidia_smi_does_not(self) -> None:
        """Of GPUs and of MIG instances; the smallest counts."""
        mib = {"0": 81920, "1": 40960, "2": 40960, MIG_A: 20480}
        cases = (("0,1", {"mib": mib}, 40960), ("0", {"mib": mib}, 81920), (MIG_A, {"mib": mib}, 20480),
                 ("0", {"mib": mib, "fails": ["nvmlDeviceGetMemoryInfo"]}, 0), ("0", {"fails": ["nvmlInit"]}, 0))
        for mask, options, expected in cases:
            with self.subTest(mask, **options), self.see(self.tools([None, None, [MIG_A]], options)):
                found = run_tests.Host(machine(CUDA_VISIBLE_DEVICES=mask), run_tests.Reaper())
                self.addCleanup(found.reaper.close)
                self.assertEqual(memory.MemoryHost(found, run_tests.Options(()), 0).memory, expected)

    def test_one_gpu(self) -> None:
        """With shares of it come the markers of a parallel run. One test alone shares it with nobody."""
        env = self.tools(nvidia_smi=SMI)
        first, second, third = self.meet(3)
        ran = self.run_list(f"#: mem=4G\n{first} #: label=a\n{second} #: label=b\n{third} #: label=c mem=0G gpus=0.25\n"
                            "true #: label=d gpus=1 mem=0G\ntrue #: label=e mem=12G after=d\n", *TIMEOUT, gpus="0",
                            env=env)
        self.check(ran, 1, {**dict.fromkeys("abcd", "passed"), "e": "unrunnable"})
        self.assertIn("unrunnable: e\n    needs 12G of a GPU, more than the smallest has\n", ran.text)
        for label in "abcd":
            self.assertIn(f">>> Starting: {label} on GPU 0\n", ran.text)
        shutil.rmtree(ran.path("logs"))
        ran = self.run_list("echo a #: mem=4G\necho b\n", gpus="0", env=env)
        self.assertEqual((ran.code, ran.text), (0, "a\nb\nAll tests passed\n"))

    def test_whole_gpus_where_it_is_not_known_how_large_each_is(self) -> None:
        """It is said once; --gpu-memory goes before what a tool says."""
        meet = "".join(f"{each}#: mem=8G label={label}\n" for label, each in zip("abc", self.meet(3)))
        ran = self.run_list(meet, "--gpu-memory", "24G", *TIMEOUT, gpus="0", env=self.tools(nvidia_smi=SMI))
        self.check(ran, 0, dict.fromkeys("abc", "passed"))
        text = "#: mem=4G\necho a #: label=a\necho b #: label=b\n"
        for mask in (GPU_A, MIG_A, "0"):
            with self.subTest(mask):
                env = self.tools(**{"nvidia_smi": SMI} if mask != "0" else {})
                shutil.rmtree(ran.path("logs"))
                ran = self.run_list(text, gpus=mask, env=env)
                self.assertEqual((ran.code, ran.text), (0, "a\nb\nAll tests passed\n"))
                self.assertTrue(ran.err.startswith(self.WHOLE), ran.err)
        self.write("script.sh", f"test_fail() {{ :; }}\n{text.replace(' #:', ' || test_fail #:')}")
        ran = self.run_command("script.sh", env=self.tools(nvidia_smi=SMI))
        self.assertEqual([record["gpus"] for record in ran.journal("test_start")][-2:], [["0"], ["0"]])

    def test_a_shard_is_the_same_whatever_gpus_a_machine_has(self) -> None:
        for gpus in (0.25, 1.0, memory.TOO_LARGE):
            with self.subTest(gpus=gpus):
                tests = [a_test(0, gpus=gpus), a_test(1, gpus=4.0), a_test(2), a_test(3)]
                seconds = dict(zip(tests, (9.0, 2.0, 3.0, 4.0)))
                numbers = run_tests.shard_of(tests, 2, seconds)
                self.assertEqual([numbers[test] for test in tests], [1, 2, 1, 2])
                deferred = run_tests.deferred_tests(tests, run_tests.Options((), max_gpus=1))
                self.assertEqual([*deferred], tests[1:2])


class TableTest(unittest.TestCase):
    def test_what_leaves_room_for_another(self) -> None:
        """In list order; nothing is proposed of what no look has met, nor where nobody knows how large a GPU is."""
        tests = [run_tests.Attempt(a_test(at, "abcd"[at]), run_tests.Lease((), 0), 1, 0.0) for at in range(4)]
        peaks = dict(zip(tests, (5000, 5001, 0)))
        for size, mem in ((12000.0, "mem=5.9G"), (0.0, "-")):
            self.assertEqual([*memory.table(tests[::-1], peaks, size)],
                             [f"a\t5000 MiB\t{mem}", "b\t5001 MiB\t-", "c\t0 MiB\t-", "d\t-\t-"])


class MemoryTest(GpuCase):
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
            self.assertTrue(ran.err.endswith(f"memory.py: nothing was seen: {said}\n"), ran.err)


if __name__ == "__main__":
    unittest.main()
