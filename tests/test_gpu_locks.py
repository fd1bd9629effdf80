"""qa/gpu_locks.py: runners of one machine that name the same folder of lock files never share a GPU."""
from __future__ import annotations

import heapq
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from typing import Any, Dict, List, Optional, Sequence, Tuple
from unittest import mock

import run_tests
from run_tests import ALL_GPUS, Begin, Exited, Launch, Lease, Options, Pool, Schedule, Tick
from tests.support import ROOT, WAIT_S, Fifo, GatedCase, Lifeline, Ran, a_test, remarks
from tests.test_devices import GPU_A, GPU_B, MASKS, MIG_A, MIG_B, MIG_OLD, DeviceCase, machine

sys.path.insert(0, os.path.join(ROOT, "qa"))
from gpu_locks import GpuLocks, LockedPool

SCRIPT = os.path.join(ROOT, "qa", "gpu_locks.py")


class LocksCase(DeviceCase):
    """Two GpuLocks in one process are as good as two runners: flock is by open file."""

    def setUp(self) -> None:
        super().setUp()
        self.place = os.path.join(self.folder, "a", "locks")
        self.smi: Dict[str, str] = {}        # the stub of nvidia-smi, if it is there

    def locks(self, mask: str = "0,1", variable: str = MASKS[0]) -> GpuLocks:
        with self.see(self.tools(**self.smi)):
            locks = GpuLocks(self.place, machine(**{variable: mask}))
        for descriptor in locks.files.values():
            self.addCleanup(os.close, descriptor)
        return locks

    def pool(self, mask: str) -> LockedPool:
        return LockedPool(Pool(machine(CUDA_VISIBLE_DEVICES=mask).devices, 2), self.locks(mask))

    def takes(self, locks: GpuLocks) -> List[bool]:
        return [locks.take(device) for device in locks.files]


class FilesTest(LocksCase):
    def test_whose_lock_file_is_whose(self) -> None:
        """An index and its UUID are one GPU, where nvidia-smi knows them; MIG instances have a file each."""
        listed, mig = (self.prints(f"nvidia-smi-list{name}.txt") for name in ("", "-mig"))
        cases: Sequence[Tuple[str, str, Sequence[str], str]] = (     # nvidia-smi, variable, masks, files
            (listed, MASKS[0], ["0,1", f"{GPU_B},{GPU_A}"], f"{GPU_A} {GPU_B}"),
            ("", MASKS[0], ["3,4", GPU_A], f"3 4 {GPU_A}"), ("exit 9", MASKS[0], ["3"], "3"),
            ("echo No devices were found", MASKS[0], ["3"], "3"),
            (mig, MASKS[0], [f"{MIG_A},{MIG_B}", f"{MIG_OLD}/1/0"], f"{MIG_A} {MIG_OLD}_1_0 {MIG_B}"),
            (listed, "ZE_AFFINITY_MASK", ["0.1"], "0.1"))
        for script, variable, masks, names in cases:
            with self.subTest(script, masks=masks):
                self.smi = {"nvidia_smi": script} if script else {}
                shutil.rmtree(self.place, ignore_errors=True)
                for mask in masks:
                    self.locks(mask, variable)
                self.assertEqual(sorted(os.listdir(self.place)), sorted(f"gpu-{name}.lock" for name in names.split()))

    def test_a_file_that_cannot_be(self) -> None:
        os.makedirs(os.path.join(self.place, "gpu-1.lock"))
        with self.assertRaisesRegex(run_tests.MachineError, "gpu-1.lock .*name another folder"):
            self.locks()

    def test_a_file_of_another_user(self) -> None:
        """Linux, with fs.protected_regular, does not open it with O_CREAT in a folder that all may write."""
        self.locks("0")
        opened = os.open

        def guarded(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & os.O_CREAT and os.path.exists(path):
                raise PermissionError(13, "Permission denied", path)
            return opened(path, flags, *rest, **more)

        with mock.patch("os.open", guarded):
            locks = self.locks("0,1")
        self.assertEqual(self.takes(locks), [True, True])


class PoolTest(LocksCase):
    """What is leased, and what is locked."""

    def tokens(self, lease: Optional[Lease]) -> str:
        return "-" if lease is None else ",".join(lease.tokens)

    def test_a_pool_locks_what_it_leases_and_no_more(self) -> None:
        """It looks for neighbours among what it can lock."""
        one, other, third = (self.pool("0,1,2,3") for _ in range(3))
        held, cpu = one.take(1), one.take(0)
        assert held is not None and cpu is not None
        self.assertEqual((self.tokens(other.take(4)), other.is_locked_out), ("-", True))
        given = [self.tokens(lease) for lease in (other.take(2), one.take(2), third.take(ALL_GPUS))]
        self.assertEqual((given, other.is_locked_out), (["1,2", "-", "-"], False))
        self.assertEqual((self.tokens(other.take(3)), other.is_locked_out), ("-", False), "it does not fit anyway")
        one.give(cpu)
        self.assertEqual(self.tokens(third.take(1)), "3")
        one.give(held)
        self.assertEqual(self.tokens(third.take(1)), "0")

    def test_a_retry_goes_elsewhere_if_it_can(self) -> None:
        one, other = self.pool("0,1,2"), self.pool("0,1,2")
        self.assertEqual(self.tokens(other.take(1)), "0")
        self.assertEqual(self.tokens(one.take(1, [1])), "2")
        self.assertEqual((self.tokens(one.take(1, [1])), self.tokens(one.take(1))), ("-", "1"))

    def test_a_gpu_that_is_shared_stays_locked_until_the_last_share_is_back(self) -> None:
        one, other = self.pool("0"), self.pool("0")
        shares = [one.take(0.5), one.take(0.5)]
        for share in shares:
            self.assertIsNone(other.take(0.1))
            assert share is not None
            one.give(share)
        self.assertIsNotNone(other.take(1))

    def test_a_gpu_in_quarantine_stays_locked(self) -> None:
        """What could not be ended there would meet another runner's tests."""
        pool, other = self.pool("0,1"), self.locks()
        for quarantine_first in (True, False):
            lease = pool.take(1)
            assert lease is not None
            steps = [lambda: pool.quarantine(lease.devices[0]), lambda: pool.give(lease)]  # noqa: B023
            for step in steps[::1 if quarantine_first else -1]:
                step()
        self.assertEqual(self.takes(other), [False, False])

    def test_two_runners_never_share_a_gpu_and_both_come_to_an_end(self) -> None:
        for seed in range(40):
            with self.subTest(seed=seed):
                self.run_two(random.Random(seed))

    def run_two(self, chance: random.Random) -> None:
        """Two schedules on one virtual clock. Each has a Tick a second, as from a run."""
        needs, numbers = [0.0, 0.5, 0.25, 1.0, 1.0, 2.0, 3.0, ALL_GPUS], itertools.count()
        tests = [[a_test(index, gpus=chance.choice(needs)) for index in range(8)] for _ in range(2)]
        runners = [Schedule(each, self.pool("0,1,2"), Options(())) for each in tests]
        agenda: List[Tuple[float, int, Schedule, Any]] = [(0.0, next(numbers), each, Begin()) for each in runners]
        agenda += [(float(at), next(numbers), each, Tick()) for at in range(1, 200) for each in runners]
        heapq.heapify(agenda)
        while not all(runner.done for runner in runners):
            at, _, runner, event = heapq.heappop(agenda)     # none is left: no end in sight
            for action in runner.step(event, at):
                if isinstance(action, Launch):
                    end = at + chance.uniform(0.0, 9.0)
                    heapq.heappush(agenda, (end, next(numbers), runner, Exited(end, action.attempt.test, 0)))
            held = [{device for attempt in each.running.values() for device in attempt.lease.devices}
                    for each in runners]
            self.assertEqual(held[0] & held[1], set())


class RunTest(GatedCase):
    """`qa/gpu_locks.py DIR [options] LIST`."""

    WAITING = b"run_tests.py: waiting for GPUs that another runner holds, by its locks in locks\n"

    def command(self, *arguments: str) -> List[str]:
        return [sys.executable, SCRIPT, *arguments]

    def end(self, process: "subprocess.Popen[bytes]") -> Ran:
        """Wait for the end of a run."""
        out, err = process.communicate(timeout=WAIT_S)
        return Ran(process.returncode, out, remarks(err), self.folder)

    def hold(self, gpus: str, mask: str = "0,1") -> Tuple["subprocess.Popen[bytes]", Fifo]:
        """A runner with a test that holds so many GPUs of a mask until its FIFO says go."""
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        self.write("holds.txt", f"echo up >up; read x <hold #: gpus={gpus}\n")
        process = self.start("locks", "--log-dir", "first", "holds.txt", gpus=mask)
        up.lines()
        return process, hold

    def waiter(self, text: str, name: str = "tests.txt") -> "subprocess.Popen[bytes]":
        """A runner that has said that it waits for the other's GPUs."""
        self.write(name, text)
        process = self.start("locks", name)
        assert process.stderr is not None
        self.assertEqual(process.stderr.readline(), self.WAITING)
        return process

    def test_what_has_to_wait_starts_when_the_other_ends(self) -> None:
        """Tests without a GPU do not wait."""
        first, hold = self.hold("1", "0")
        second = self.waiter("touch cpu #: gpus=0\ntrue #: gpus=2 after='touch cpu'\n")
        hold.release()
        ran = self.end(second)
        self.check(ran, 0, {"touch cpu": "passed", "true": "passed"})
        self.assertEqual(ran.journal("test_start")[1]["gpus"], ["0", "1"])
        self.assertEqual(ran.err, "", "it says so once")
        self.assertEqual(first.wait(WAIT_S), 0)

    def test_a_script_waits_too(self) -> None:
        _, hold = self.hold("2")
        script = "test_fail() { :; }\nfor i in 1 2; do sh -c 'echo $CUDA_VISIBLE_DEVICES' $i || test_fail; done\n"
        second = self.waiter(script, "test.sh")
        hold.release()
        ran = self.end(second)
        self.assertEqual((ran.code, set(re.findall(r"(?m)^\d$", ran.text))), (0, {"0", "1"}), ran.text + ran.err)

    def test_a_wait_can_be_interrupted(self) -> None:
        self.hold("2")
        second = self.waiter("true\n")
        second.send_signal(signal.SIGTERM)
        self.check(self.end(second), 143, {"true": "not run"})

    def test_a_gpu_is_free_when_its_test_has_ended(self) -> None:
        """The other runner goes on meanwhile."""
        up, _ = Fifo(self, "up"), Fifo(self, "hold")
        self.write("first.txt", "true #: gpus=2\ntrue half #: gpus=0.5\n"
                                "echo up >up; read x <hold #: gpus=0 after='true,true half'\n")
        self.start("locks", "--log-dir", "first", "first.txt")
        up.lines()
        ran = self.run_list("true #: gpus=2\n", "locks")
        self.check(ran, 0, {"true": "passed"})

    def test_a_runner_that_is_killed_holds_its_gpu_until_its_test_has_ended(self) -> None:
        """And no longer. A file that somebody has left is no lock."""
        self.write("locks/gpu-0.lock", "pid 1\n")
        self.write("tests.txt", "setsid sleep 600 & echo up >up; exec sleep 600 #: label=a\n")
        up, line = Fifo(self, "up"), Lifeline(self)
        runner = self.start("locks", "tests.txt", gpus="0", pass_fds=[line.write_end])
        line.let_go()
        up.lines()
        locks = GpuLocks(os.path.join(self.folder, "locks"), machine(CUDA_VISIBLE_DEVICES="0"))
        device, = locks.files
        self.addCleanup(os.close, locks.files[device])
        self.assertFalse(locks.take(device))
        runner.kill()
        give_up = time.monotonic() + WAIT_S
        while not locks.take(device):
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.01)
        self.assertTrue(line.is_cut())

    def test_runners_never_share_a_gpu(self) -> None:
        """Each test notes its begin and its end, with its GPUs, in one file. One runner has a script."""
        begin, end = (f'printf "%s\\n" "{what} $CUDA_VISIBLE_DEVICES" >>trace' for what in ("begin", "end"))
        lines = [f"sh -c '{begin} && sleep 0.0{number % 4} && {end}' || test_fail {number} #: gpus={need}\n"
                 for number, need in enumerate([1, 2, 1, 0.5, 0.5, 3, 1, "all", 0.25, 1, 2, 1])]
        self.write("tests.txt", "".join(lines))
        self.write("test.sh", "test_fail() { :; }\n" + "".join(lines))
        runners = [self.start("locks", "--log-dir", f"logs{mask}", "--output", "none", name, gpus=mask)
                   for mask, name in (("0,1,2", "tests.txt"), ("2,1,0", "test.sh"), ("1,2,3", "tests.txt"))]
        for process in runners:
            ran = self.end(process)
            self.assertEqual(ran.code, 0, ran.err)
        with open(os.path.join(self.folder, "trace"), encoding="utf-8") as file:
            noted = file.read().splitlines()
        self.assertEqual(len(noted), 3 * 12 * 2)
        running: Dict[str, int] = {}
        for line in noted:
            what, _, mask = line.partition(" ")
            for token in mask.split(","):        # whole tests are alone, fractions together
                running[token] = running.get(token, 0) + (1 if what == "begin" else -1)
                self.assertIn(running[token], (0, 1) if "," in mask else (0, 1, 2, 3), noted)
        self.assertEqual(set(running.values()), {0})

    def test_without_gpus_there_is_nothing_to_lock(self) -> None:
        self.check(self.run_list("true\n", "locks", gpus=""), 0, {"true": "passed"})
        self.assertFalse(os.path.exists(os.path.join(self.folder, "locks")))

    def test_what_runs_again_takes_the_same_folder(self) -> None:
        self.check(self.run_list("false\ntrue\n", "locks", "--gpus", "2"), 1, {"false": "failed", "true": "passed"})
        rerun, = re.findall("(?m)^Rerun: (.*)", self.run_command("locks", "--gpus", "2", "tests.txt").text)
        ran = subprocess.run(["bash", "-c", rerun], cwd=self.folder, env=self.environment("0,1", {}), check=False,
                             stdout=subprocess.PIPE)
        self.assertIn(b"Selected 1 of 2 tests", ran.stdout)

    def test_a_runner_in_a_test_has_its_gpus_already(self) -> None:
        """It would wait for the locks of the one above; without GPUs there are none to wait for."""
        self.write("in.txt", "true\n")
        inner = f"{sys.executable} {SCRIPT} %s --deadline 1m --log-dir in-$RUN_TESTS_SLOT in.txt"
        ran = self.run_list(f"{inner % '$PWD/./locks'} #: label=same\n{inner % 'others'} #: label=other\n"
                            f"{inner % 'locks'} #: label=none gpus=0\n", "locks", "--jobs", "1")
        self.check(ran, 1, {"same": "failed", "other": "passed", "none": "passed"})
        self.assertIn("call run_tests.py here", ran.read("logs/same.log"))

    def test_mistakes(self) -> None:
        self.write("tests.txt", "true\n")
        for words, code, said in (
                (["tests.txt/locks", "tests.txt"], 3, r"cannot write tests.txt/locks \(.*\); name another folder"),
                (["tests.txt"], 2, "gpu_locks.py: error: name a folder for the lock files, and after it a list"),
                (["--log-dir", "logs", "locks", "tests.txt"], 2, "options stand behind the folder"),
                (["locks", "--gpu", "2", "tests.txt"], 2, "error: .*--gpu"), ([], 2, "error: .*DIR")):
            with self.subTest(words):
                ran = self.run_command(*words)
                self.assertEqual((ran.code, ran.out), (code, b""))
                self.assertRegex(ran.err, said)
        ran = self.run_command("--help")
        self.assertEqual(ran.code, 0)
        self.assertRegex(ran.text, r"\Ausage: gpu_locks.py DIR .*\n\nRun a list or a script while other runners")


if __name__ == "__main__":
    unittest.main()
