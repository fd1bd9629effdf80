"""Faults of GPUs and drivers, of JUnit files, and the options that judge faults: as `test_faults.py` has them.

`nvidia-smi` is a stub: a real executable that prints what real ones have printed (their sources are named beside it),
with their exit statuses, for the GPU and at the moment that a test chooses.
"""
from __future__ import annotations

import os
import re
import unittest
from typing import Dict, List, NamedTuple, Optional
from xml.etree import ElementTree

from tests.support import Ran
from tests.test_execute import WAIT_S, Fifo
from tests.test_faults import Ended, FaultCase

# Two healthy GPUs (wookayin/gpustat#5). `say.N` is bash that answers for GPU N from the moment that it is there.
SMI = """#!/bin/bash
case "$*" in
    -L) cat <<'END'
GPU 0: GeForce GTX TITAN X (UUID: GPU-004f693d-767b-b215-b4a9-a18af0ffd643)
GPU 1: GeForce GTX TITAN X (UUID: GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7)
END
        ;;
    *--query-gpu=index,uuid,memory.used) [ -e say ] && . ./say
        echo "0, GPU-004f693d-767b-b215-b4a9-a18af0ffd643, 802"
        echo "1, GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7, 10032" ;;
    *--query-gpu=memory.used,temperature.gpu*) gpu=${@: -1}
        if [ -e say.$gpu ]; then . ./say.$gpu; elif [ $gpu = 0 ]; then echo "802, 25"; else echo "10032, 54"; fi ;;
    *--query-compute-apps=pid,process_name*) cat apps ;;
esac
"""

ONCE = "[ -e seen ] || {{ touch seen; {}; }}"          # a test that does so at its first attempt
RESET = "[GPU requires reset]"
LOST: Dict[str, str] = {       # what a GPU that is gone may say, with the words of its quarantine
    f"echo '0, {RESET}'": f"nvidia-smi says 0, {RESET}",                       # find_string id 58061924347: 0 MiB!
    "echo '[Unknown Error], [Unknown Error]'": "nvidia-smi says [Unknown Error], [Unknown Error]",
    "echo '[GPU is lost], [GPU is lost]'": "nvidia-smi says [GPU is lost], [GPU is lost]",
    "echo '6, [Unknown Error]'": "nvidia-smi says 6, [Unknown Error]",         # find_string id 27328791916
    "echo 'Unable to determine the device handle for GPU0000:02:00.0: Unknown Error'; exit 15":
        "nvidia-smi failed with status 15 (Unable to determine the device handle for GPU0000:02:00.0: Unknown Error)",
    "echo 'Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this "
    "GPU'; exit 15": "nvidia-smi failed with status 15 (Unable to determine the device handle for GPU 0000:02:00.0: "
                     "GPU is lost. Reboot the system to recover this GPU)",
    "echo 'No devices were found'; exit 6": "nvidia-smi failed with status 6 (No devices were found)",
    "exit 0": "nvidia-smi says nothing",
    "kill -SEGV $$": "nvidia-smi failed with status -11 (nothing)",
}
BROKEN: Dict[str, str] = {     # what the log of a test on a broken GPU may say, and the cause that it is
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "uncorrectable ECC error",          # vllm#5222
    "[ 5107.644336] NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.)": "GPU fallen off the bus",
    "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error": "GPU fallen off the bus",
    "RuntimeError: CUDA error: unspecified launch failure": "unspecified launch failure",        # MinerU#426
}
HOPELESS: Dict[str, str] = {   # what every test says on a machine whose driver is no good
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver":
        "driver older than the runtime",                                                         # Fooocus#1313
    "CUDA: Check failed: e == cudaSuccess (803 vs. 0) : system has unsupported display driver / cuda driver "
    "combination": "driver older than the runtime",                                              # nvidia-docker#1256
    "RuntimeError: No CUDA GPUs are available": "no usable GPU",
    "F0326 02:34:25.375125 20804 syncedmem.cpp:47] Check failed: error == cudaSuccess (38 vs. 0)  no CUDA-capable "
    "device is detected": "no usable GPU",                                                                 # C3D#96
}


class GpuCase(FaultCase):
    def setUp(self) -> None:
        super().setUp()
        self.smi = {"PATH": self.stub("nvidia-smi", SMI) + os.pathsep + os.environ["PATH"]}
        self.write("apps", "")

    def clean(self) -> None:
        for name in os.listdir(self.folder):
            if name.startswith(("say", "seen")):
                os.unlink(os.path.join(self.folder, name))

    def quarantined(self, ran: Ended) -> Dict[str, str]:
        """GPU to reason: the same in the journal, in the trace as it happens, and in the summary."""
        said, = (record["quarantined"] for record in ran.journal("run_end"))
        for pattern in (r"^>>> Quarantined: GPU (\S+) \[(.*)\]$", r"^quarantined: GPU (\S+) \((.*)\)$"):
            self.assertEqual(re.findall(pattern, ran.text, re.MULTILINE), list(said.items()))
        return said

    def attempts(self, ran: Ended, label: str) -> List[str]:
        """The GPUs of a test's attempts."""
        return [",".join(record["gpus"]) for record in ran.journal("test_start") if record["label"] == label]


class LostTest(GpuCase):
    def test_a_gpu_that_is_lost(self) -> None:
        """The test runs again elsewhere, which costs no retry; nobody gets that GPU any more."""
        for answer, reason in LOST.items():
            with self.each(answer):
                self.write("answer", answer)
                ran = self.suffer(f"{ONCE.format('mv answer say.$CUDA_VISIBLE_DEVICES; exit 1')} #: label=a\n"
                                  "wait\ntrue #: label=b\ntrue #: label=c\n", 0, dict.fromkeys("abc", "passed"),
                                  env=self.smi)
                first, second = self.attempts(ran, "a")
                self.assertEqual({first, second}, {"0", "1"})
                self.assertEqual((self.attempts(ran, "b"), self.attempts(ran, "c")), ([second], [second]))
                self.assertEqual(self.quarantined(ran), {first: reason})
                self.assertEqual(ran.read("logs/a.attempt1.log"), "")
                self.clean()

    def test_a_gpu_that_is_lost_behind_a_pass(self) -> None:
        self.write("answer", f"echo '0, {RESET}'")
        ran = self.suffer("cp answer say.$CUDA_VISIBLE_DEVICES #: label=a\nwait\ntrue #: label=b gpus=2\n"
                          "true #: label=c\n", 1, {"a": "passed", "b": "unrunnable", "c": "passed"}, env=self.smi)
        self.assertEqual(list(self.quarantined(ran)), self.attempts(ran, "a"))

    def test_all_gpus_are_lost(self) -> None:
        self.write("answer", "echo '[GPU is lost], [GPU is lost]'")
        ran = self.suffer("cp answer say.0; cp answer say.1; exit 1 #: label=a gpus=2\ntrue #: label=b\n"
                          "true #: label=c\n", 3, {"a": "failed", "b": "not run", "c": "not run"}, env=self.smi)
        self.assertEqual(list(self.quarantined(ran)), ["0", "1"])
        self.assertIn("\nStopped, the machine failed: no usable GPU is left: 2 not run\n", ran.text)

    def test_the_driver_is_lost(self) -> None:
        """Also on one GPU, one test after the other."""
        self.write("answer", "echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
                             "Make sure that the latest NVIDIA driver is installed and running.\"; echo; exit 9")
        ran = self.suffer("setsid $NAP & cp answer say.0; cp answer say #: label=a\ntrue #: label=b\n", 3,
                          {"a": "passed", "b": "not run"}, gpus="0", env=self.smi)
        self.assertIn("Stopped, the machine failed: no usable GPU is left: 1 not run", ran.text)
        self.assertIn("Quarantined: GPU 0 [nvidia-smi failed with status 9 (NVIDIA-SMI has failed", ran.err)
        # Who does not know what a GPU held before does not watch it.
        ran = self.suffer("true #: label=a\n", 0, {"a": "passed"}, gpus="0", env=self.smi)
        self.assertRegex(ran.err, r"^run_tests\.py: nvidia-smi failed with status 9 \(.*\); going on without it\n$")

    def test_memory_that_does_not_come_back(self) -> None:
        """It is waited for in bounded time, once; its holder is named (nvidia_gpu_exporter's capture of an H200)."""
        self.drive("run_tests.MEMORY_S = 0.2")
        self.write("apps", "10291, /root/tools/memhog\n10309, ./gpu_burn\n")
        self.write("answer", "echo '28234, 31'")
        ran = self.suffer("cp answer say.0; cp answer say.1 #: label=a gpus=2\ntrue #: label=b gpus=2\n", 0,
                          {"a": "passed", "b": "passed"}, env=self.smi)
        self.assertEqual(self.quarantined(ran), {})
        told = ran.err.splitlines()
        self.assertEqual(len(told), 2, ran.err)
        for line, gpu, excess in zip(told, "01", (28234 - 802, 28234 - 10032)):
            self.assertIn(f"GPU {gpu} does not give back {excess} MiB", line)
            self.assertIn("held by memhog (pid 10291), gpu_burn (pid 10309)", line)

    def test_memory_that_comes_back_late(self) -> None:
        """The next test starts only then."""
        self.write("answer", "echo x >>looks; [ $(wc -l <looks) -gt 3 ] && echo '802, 25' || echo '28234, 31'")
        self.suffer("cp answer say.0 #: label=a\n[ $(wc -l <looks) = 4 ] #: label=b\n", 0,
                    {"a": "passed", "b": "passed"}, gpus="0", env=self.smi)

    def test_a_tool_that_hangs(self) -> None:
        """It is killed, with what it has started; at the start one goes on without it, later the GPU is lost."""
        self.drive("run_tests.PROBE_S = 1.5")
        self.write("say", "trap '' TERM; $NAP & $NAP")
        ran = self.suffer("true #: label=a\n", 0, {"a": "passed"}, env=self.smi)
        self.assertRegex(ran.err, r"nvidia-smi did not answer in \S+ s; going on without it\n$")
        os.unlink(ran.path("say"))
        self.write("answer", "trap '' TERM; $NAP & $NAP")
        ran = self.suffer(f"{ONCE.format('cp answer say.$CUDA_VISIBLE_DEVICES; exit 1')} #: label=a\n", 0,
                          {"a": "passed"}, env=self.smi)
        (gpu, reason), = self.quarantined(ran).items()
        self.assertEqual((self.attempts(ran, "a")[0], reason[:25]), (gpu, "nvidia-smi did not answer"))


class LogTest(GpuCase):
    """What the log of a test says of its GPU."""

    def say(self, text: str) -> str:
        self.write("text", f"a line before\n{text}\na line after\n")
        return "cat text; exit 1"

    def test_a_gpu_that_is_broken(self) -> None:
        for text, cause in BROKEN.items():
            with self.each(text):
                ran = self.suffer(f"{ONCE.format(self.say(text))} #: label=a\nwait\ntrue #: label=b\n", 0,
                                  {"a": "passed", "b": "passed"}, env=self.smi)
                first, second = self.attempts(ran, "a")
                self.assertEqual((self.quarantined(ran), self.attempts(ran, "b")), ({first: f"{cause} in a"}, [second]))
                self.clean()

    def test_a_test_that_breaks_every_gpu(self) -> None:
        """What shows on every GPU is the test's own failure."""
        for text, cause in BROKEN.items():
            with self.each(text):
                ran = self.suffer(f"{self.say(text)} #: label=a\nwait\ntrue #: label=b\n", 1,
                                  {"a": "failed", "b": "passed"}, env=self.smi)
                self.assertEqual(sorted(self.attempts(ran, "a")), ["0", "1"])
                self.assertIn(f"1 failure by cause:\n    1 x {cause}: a\n", ran.text)
                self.assertEqual(len(self.quarantined(ran)), cause != "unspecified launch failure")

    def test_no_test_can_pass(self) -> None:
        """The run stops as soon as every GPU has shown it, with one cause."""
        for text, cause in HOPELESS.items():
            with self.each(text):
                ran = self.suffer("".join(f"{self.say(text)} #: label={label}\n" for label in "ab")
                                  + "wait\ntrue #: label=c\ntrue #: label=d\n", 3,
                                  {"a": "failed", "b": "failed", "c": "not run", "d": "not run"}, env=self.smi)
                self.assertIn(f"\n2 failures by cause:\n    2 x {cause}: a b\n", ran.text)
                self.assertIn(f"\nStopped, the machine failed: {cause}, on every GPU: 2 not run\n", ran.text)
                self.assertEqual(self.quarantined(ran), {})

    def test_one_test_that_finds_no_gpu(self) -> None:
        """Others pass there: it is not the machine."""
        text = self.say("RuntimeError: No CUDA GPUs are available")
        self.suffer(f"{text} #: label=a retries=2\ntrue #: label=b\n", 1, {"a": "failed", "b": "passed"}, env=self.smi)


class Wrote(NamedTuple):
    """What a test does to its JUnit file, and what is in it in the end: the cases, those with an error or a failure."""

    script: str
    outcome: str
    cases: List[str]
    problems: List[str]
    before: Optional[str] = None


HEAD = '<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">'
CASES = '<testcase name="one"/><testcase name="two"><failure message="no">why</failure></testcase>'
END = "</testsuite></testsuites>"
GREEN = HEAD + '<testcase name="one"/>' + END
WRITTEN: Dict[str, Wrote] = {
    "missing": Wrote("exit 2", "failed", ["a"], ["a"]),
    "missing behind a pass": Wrote("true", "passed", ["a"], []),
    "missing behind a segfault": Wrote("ulimit -c 0; kill -SEGV $$", "crashed", ["a"], ["a"]),
    "stale": Wrote("exit 2", "failed", ["a"], ["a"], GREEN),
    "stale behind a pass": Wrote("true", "passed", ["a"], [], GREEN),
    "deleted": Wrote("rm $X", "passed", ["a"], [], GREEN),
    "empty": Wrote(": >$X; exit 3", "failed", ["a"], ["a"]),
    "truncated": Wrote(f"echo -n '{HEAD}{CASES}<testca' >$X; exit 1", "failed", ["one", "two", "a"], ["two", "a"]),
    "truncated by a crash": Wrote(f"echo -n '{HEAD}{CASES}<testca' >$X; kill -ABRT $$", "crashed", ["one", "two", "a"],
                                  ["two", "a"]),
    "truncated behind a pass": Wrote(f"echo -n '{GREEN[:-9]}' >$X", "passed", ["one", "a"], []),
    "green before a crash": Wrote(f"echo '{GREEN}' >$X; kill -SEGV $$", "crashed", ["one", "a"], ["a"]),
    "green before a failure": Wrote(f"echo '{GREEN}' >$X; exit 1", "failed", ["one", "a"], ["a"]),
    "red before exit 0": Wrote(f"echo '{HEAD}{CASES}{END}' >$X", "failed", ["one", "two"], ["two"]),
    "red before exit 1": Wrote(f"echo '{HEAD}{CASES}{END}' >$X; exit 1", "failed", ["one", "two"], ["two"]),
    "no XML": Wrote("head -c 100 /dev/urandom >$X; exit 1", "failed", ["a"], ["a"]),
    "hostile logs": Wrote("printf '\\0\\033[31m]]>\\r\\xff\\xed\\xa0\\x80</system-out>&lt;\\xe2\\x80\\xa8'; exit 1",
                          "failed", ["a"], ["a"]),
    "a timeout": Wrote(f"echo '{GREEN}' >$X; echo up >up; $NAP", "timeout", ["one", "a"], ["a"]),
}


class JUnitTest(FaultCase):
    def test_files(self) -> None:
        """CI reads no file as green that is not, and each file can be read."""
        env = self.when_ready()
        for name, wrote in WRITTEN.items():
            with self.each(name):
                if wrote.before:
                    self.write("logs/a.xml", wrote.before)
                self.write("a.sh", f"X=logs/a.xml; {wrote.script}")
                timeout = " timeout=100ms" * (wrote.outcome == "timeout")
                ran = self.suffer(f"bash a.sh --junitxml=logs/a.xml #: label=a{timeout}\ntrue #: label=b\n",
                                  wrote.outcome != "passed", {"a": wrote.outcome, "b": "passed"}, env=env)
                self.look(ran, wrote)

    def look(self, ran: Ran, wrote: Wrote) -> None:
        suites = list(ElementTree.parse(ran.path("logs/a.xml")).iter("testcase"))
        bad = [case.get("name") for case in suites if {"failure", "error"} & {child.tag for child in case}]
        self.assertEqual(([case.get("name") for case in suites], bad), (wrote.cases, wrote.problems))
        self.assertEqual("passed without its JUnit file" in ran.text, wrote.outcome == "passed")

    def test_a_folder_in_its_place(self) -> None:
        self.write("make.sh", "mkdir logs/a.xml")
        ran = self.suffer("bash make.sh --junitxml=logs/a.xml #: label=a\n", 0, {"a": "passed"})
        self.assertIn("cannot write", ran.err)


class OptionsTest(FaultCase):
    def test_leaks(self) -> None:
        text = "setsid $NAP & true #: label=a\ntrue #: label=b\nexit 1 #: label=c\n"
        for how, code, outcome in (("report", 1, "passed"), ("fail", 1, "failed")):
            with self.each(how):
                ran = self.suffer(text, code, {"a": outcome, "b": "passed", "c": "failed"}, "--leaks", how)
                self.assertIn("\nleaked: 1 process: a", ran.text)
                self.assertEqual([bool(record.get("leaked")) for record in ran.journal("test_end")].count(True), 1)
        self.suffer("setsid $NAP & true #: label=a\n", 1, {"a": "failed"}, "--leaks", "fail", gpus="0")

    def test_flaky(self) -> None:
        text = ONCE.format("echo 'E  ValueError: x]]>'; exit 1") + " #: label=a retries=1\ntrue #: label=b\n"
        outcomes = {"a": "flaky", "b": "passed"}
        ran = self.suffer(text, 0, outcomes)
        (failure,), _ = ElementTree.parse(ran.path("junit.xml")).iter("testcase")
        self.assertEqual((failure.tag, failure.get("type")), ("flakyFailure", "failed"))
        self.assertEqual(failure.findtext("system-out"), "E  ValueError: x]]>\n")
        os.unlink(ran.path("seen"))
        process = self.start("--flaky", "fail", "tests.txt")
        out, err = process.communicate(timeout=WAIT_S)
        ran = Ended(process.returncode, out, err.decode(), self.folder)
        self.assertEqual((ran.code, ran.outcomes(), ran.failures(), self.left()), (1, outcomes, ["a"], {}), ran.text)
        self.assertTrue(ran.text.endswith("\nError in the following test cases: a\n"), ran.text)
        again = self.start("--flaky", "fail", "--rerun-failed", "tests.txt")
        again.communicate(timeout=WAIT_S)
        self.assertEqual((again.returncode, self.left()), (0, {}))       # and not 5, nothing to run

    def test_too_few_gpus(self) -> None:
        self.write("tests.txt", "setsid $NAP & true\n")
        for gpus, found in (("0,1", "2 (0 1)"), ("", "0 (none)")):
            process = self.start("--require-gpus", "3", "tests.txt", gpus=gpus)
            out, err = process.communicate(timeout=WAIT_S)
            self.assertEqual((process.returncode, out, self.left()), (3, b"", {}))
            self.assertIn(f"--require-gpus 3: there are {found}".encode(), err)
            self.assertFalse(os.path.exists(os.path.join(self.folder, "logs")))
        self.suffer("true #: label=a\n", 0, {"a": "passed"}, "--require-gpus", "2")

    def test_slow(self) -> None:
        gate = Fifo(self, "gate")
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                self.write("tests.txt", "echo half way; read line <gate #: label=a\ntrue #: label=b\n")
                process = self.start("--slow", "40ms", "tests.txt", gpus=gpus)
                self.addCleanup(gate.release)
                if gpus == "0":
                    assert process.stderr is not None
                    lines = [process.stderr.readline() for _ in range(2)]
                else:
                    before = b""
                    while before.count(b">>> Slow: ") < 2:
                        before += self.read_until(process, b"half way]\n")
                    lines = [line for line in before.splitlines(True) if b"Slow" in line]
                for line in lines:
                    self.assertRegex(line, rb"^(>>>|run_tests\.py:) Slow: a \[\d+\.\ds; half way\]\n$")
                gate.release()
                self.settle(process, 0, {"a": "passed", "b": "passed"})

    def test_deadline(self) -> None:
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                ran = self.suffer("(setsid $NAP & env -i $(which setsid) $NAP & true); $NAP #: label=a gpus=all\n"
                                  "true #: label=b gpus=all\n", 1, {"a": "interrupted", "b": "not run"},
                                  "--deadline", "1s", "--order", "file", gpus=gpus)
                self.assertEqual(ran.text.splitlines()[-1], "Ended by --deadline: 1 interrupted, 1 not run")

    def test_a_failure_beside_a_crash_and_its_followers(self) -> None:
        """Many faults in one run: each has its own verdict, and each cause its line."""
        ran = self.suffer(f"""
            kill -SEGV $$                          #: label=a
            true                                   #: label=b after=a
            true                                   #: label=c gpus=3
            setsid $NAP & exit 7                   #: label=d
            true                                   #: label=e after=d
            exec $NAP                              #: label=f timeout=100ms
            {ONCE.format("exit 1")}                #: label=g retries=1
        """, 1, {"a": "crashed", "b": "blocked", "c": "unrunnable", "d": "failed", "e": "blocked", "f": "timeout",
                 "g": "flaky"})
        self.assertIn("\n6 failures by cause:\n", ran.text)


if __name__ == "__main__":
    unittest.main()
