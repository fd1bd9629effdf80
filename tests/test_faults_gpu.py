"""Faults of GPUs and drivers, of JUnit files, and the options that judge faults: as `test_faults.py` has them.

`nvidia-smi` is the stub of `test_devices.py`: a real executable that says what real ones have said, with their exit
statuses, for the GPU and at the moment that a test chooses.
"""
from __future__ import annotations

import os
import re
import stat
import subprocess
import unittest
from typing import Dict, List, NamedTuple, Optional
from xml.etree import ElementTree

import run_tests
from tests.support import SOON, WAIT_S, Fifo
from tests.test_devices import QUERY, SMI, SMI_GPUS
from tests.test_faults import Ended, FaultCase

ONCE = "[ -e seen ] || {{ touch seen; {}; }}"          # a test that does so at its first attempt
LOST: Dict[str, str] = {       # what a GPU that is gone may say, with the words of its quarantine; others: HealthTest
    'echo "$row 0, [GPU requires reset]"': "nvidia-smi: {gpu}, {uuid}, 0, [GPU requires reset]",
    "echo 'Unable to determine the device handle for GPU0000:02:00.0: Unknown Error'; exit 15":
        "nvidia-smi: failed with status 15 (Unable to determine the device handle for GPU0000:02:00.0: Unknown Error)",
    "kill -SEGV $$": "nvidia-smi: failed with status -11 (nothing)",
}


class GpuCase(FaultCase):
    def setUp(self) -> None:
        super().setUp()
        self.smi = {"PATH": self.stub("nvidia-smi", SMI) + os.pathsep + os.environ["PATH"]}
        self.write("apps", "")

    def clean(self) -> None:
        for name in os.listdir(self.folder):
            if name.startswith(("say", "seen", "asked")):
                os.unlink(os.path.join(self.folder, name))

    def quarantined(self, ran: Ended) -> Dict[str, str]:
        """GPU to reason: the same in the journal, in the trace as it happens, and in the summary."""
        told, = (record["quarantined"] for record in ran.journal("run_end"))
        for pattern in (r"^>>> Quarantined: GPU (\S+) \[(.*)\]$", r"^quarantined: GPU (\S+) \((.*)\)$"):
            self.assertEqual(re.findall(pattern, ran.text, re.MULTILINE), list(told.items()))
        return told

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
                self.assertEqual(self.quarantined(ran),
                                 {first: reason.format(gpu=first, uuid=SMI_GPUS[int(first)])})
                self.assertEqual(ran.read("logs/a.attempt1.log"), "")
                self.clean()

    def test_when_nvidia_smi_is_asked(self) -> None:
        """Once before the run, then after what did not pass or left processes; that may cost a test its GPU too."""
        self.drive(SOON)
        self.write("answer", "exit 3")
        ran = self.suffer("true #: label=a\nfalse #: label=b\nwait\nsetsid $NAP & cp answer say #: label=c\n", 1,
                          {"a": "passed", "b": "failed", "c": "passed"}, env=self.smi)
        gpu, = self.quarantined(ran)
        self.assertEqual(ran.read("asked").splitlines(), [QUERY, QUERY, QUERY, f"{QUERY} -i {gpu}"])
        self.assertEqual(self.attempts(ran, "c"), [gpu])

    def test_all_gpus_are_lost(self) -> None:
        """The driver, too; also on one GPU, one test after the other."""
        for answer, gpus in (('echo "$row [GPU is lost], [GPU is lost]"', "0,1"), ("echo no driver; exit 9", "0")):
            with self.each(answer):
                self.write("answer", answer)
                ran = self.suffer("cp answer say.0; cp answer say.1; exit 1 #: label=a gpus=all\ntrue #: label=b\n"
                                  "true #: label=c\n", 3, {"a": "failed", "b": "not run", "c": "not run"}, gpus=gpus,
                                  env=self.smi)
                self.assertEqual(list(*(end["quarantined"] for end in ran.journal("run_end"))), gpus.split(","))
                self.assertIn("Stopped, the machine failed: no usable GPU is left: 2 not run\n", ran.text)
                self.clean()
        self.assertIn("Quarantined: GPU 0 [nvidia-smi: failed with status 9 (no driver)]", ran.err)

    def test_memory_that_comes_back_late(self) -> None:
        """The next test starts only then."""
        self.write("answer", 'echo x >>looks; if [ $(wc -l <looks) -gt 3 ]; then echo "$row 802, 25"; '
                             'else echo "$row 28234, 31"; fi')
        self.suffer("cp answer say.0; false #: label=a\n[ $(wc -l <looks) = 4 ] #: label=b\n", 1,
                    {"a": "failed", "b": "passed"}, gpus="0", env=self.smi)

    def test_a_gpu_that_is_broken_before_the_run(self) -> None:
        self.write("say.0", 'echo "$row 0, [GPU requires reset], 12287"')
        ran = self.suffer("[ $CUDA_VISIBLE_DEVICES = 1 ] #: label=a\n[ $CUDA_VISIBLE_DEVICES = 1 ] #: label=b\n", 0,
                          dict.fromkeys("ab", "passed"), env=self.smi)
        self.assertEqual(list(self.quarantined(ran)), ["0"])

    def test_a_tool_that_hangs_behind_a_test(self) -> None:
        """That costs the test none of its time."""
        self.drive("run_tests.PROBE_S = 0.5")
        self.write("hang", "exec $NAP")
        self.suffer("cp hang say; exit 1 #: label=a timeout=400ms gpus=2\n", 3, {"a": "failed"}, env=self.smi)

    def test_a_tool_that_hangs_where_the_run_is_to_end(self) -> None:
        """It is not waited for."""
        self.over_when_ready()
        self.write("hang", "echo >up; exec $NAP")
        self.suffer("cp hang say; false #: label=a\n", 1, {"a": "failed"}, "--deadline", "1h", gpus="0", env=self.smi)

    def test_a_tool_that_hangs(self) -> None:
        """It is killed, with what it has started."""
        self.drive("run_tests.PROBE_S = 0.3")
        self.write("say", "trap '' TERM; $NAP & $NAP")
        ran = self.suffer("true #: label=a\n", 0, {"a": "passed"}, env=self.smi)
        self.assertRegex(ran.err, r"nvidia-smi did not answer in \S+ s; going on without it\n$")


class LogTest(GpuCase):
    """What the log of a test says of its GPU."""

    def say(self, text: str) -> str:
        self.write("text", f"a line before\n{text}\na line after\n")
        return "cat text; exit 1"

    def test_a_gpu_that_is_broken(self) -> None:
        """The test runs again elsewhere; what shows there too is the test's own failure."""
        text = self.say("RuntimeError: CUDA error: uncorrectable ECC error encountered")     # vllm#5222
        for script, outcome in ((ONCE.format(text), "passed"), (text, "failed")):
            with self.each(outcome):
                ran = self.suffer(f"{script} #: label=a\nwait\ntrue #: label=b\n", outcome == "failed",
                                  {"a": outcome, "b": "passed"}, env=self.smi)
                first, second = self.attempts(ran, "a")
                self.assertEqual(self.quarantined(ran), {first: "uncorrectable ECC error in a"})
                self.assertEqual((self.attempts(ran, "b"), {first, second}), ([second], {"0", "1"}))

    def test_what_a_test_may_have_done_itself_accuses_no_gpu(self) -> None:
        text = self.say("RuntimeError: CUDA error: unspecified launch failure")      # MinerU#426
        ran = self.suffer(f"{text} #: label=a\n", 1, {"a": "failed"}, env=self.smi)
        self.assertEqual((len(self.attempts(ran, "a")), self.quarantined(ran)), (1, {}))

    def test_no_test_can_pass(self) -> None:
        """The run stops as soon as every GPU has shown it, with one cause; not where others pass."""
        text = self.say("RuntimeError: No CUDA GPUs are available")
        ran = self.suffer("".join(f"{text} #: label={label}\n" for label in "ab")
                          + "wait\ntrue #: label=c\ntrue #: label=d\n", 3,
                          {"a": "failed", "b": "failed", "c": "not run", "d": "not run"}, env=self.smi)
        self.assertIn("\n2 failures by cause:\n    2 x no usable GPU: a, b\n", ran.text)
        self.assertIn("\nStopped, the machine failed: no usable GPU, on every GPU: 2 not run\n", ran.text)
        self.assertEqual(self.quarantined(ran), {})
        self.suffer(f"{text} #: label=a retries=2\ntrue #: label=b\n", 1, {"a": "failed", "b": "passed"}, env=self.smi)


class Wrote(NamedTuple):
    """What a test does to its JUnit file, and what is in it in the end: the cases, those with an error or a failure."""

    script: str
    outcome: str
    cases: str
    problems: str
    before: Optional[str] = None


HEAD = '<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">'
CASES = '<testcase name="one"/><testcase name="two"><failure message="no">why</failure></testcase>'
END = "</testsuite></testsuites>"
GREEN = HEAD + '<testcase name="one"/>' + END
SPACE = f'<testsuite xmlns="http://example.org/junit">{CASES}'
HUGE = f"(echo '{HEAD}<testcase name=\"one\"><system-out>'; head -c 40000000 /dev/zero | tr '\\0' x) >$X"
WRITTEN: Dict[str, Wrote] = {
    "missing": Wrote("exit 2", "failed", "a", "a"),
    "missing behind a pass": Wrote("true", "passed", "a", ""),
    "missing behind a segfault": Wrote("ulimit -c 0; kill -SEGV $$", "crashed", "a", "a"),
    "stale": Wrote("exit 2", "failed", "a", "a", GREEN),
    "stale behind a pass": Wrote("true", "passed", "a", "", GREEN),
    "deleted": Wrote("rm -f $X", "passed", "a", "", GREEN),
    "empty": Wrote(": >$X; exit 3", "failed", "a", "a"),
    "truncated": Wrote(f"echo -n '{HEAD}{CASES}<testca' >$X; exit 1", "failed", "one two a", "two a"),
    "truncated behind a pass": Wrote(f"echo -n '{GREEN[:-9]}' >$X", "passed", "one a", ""),
    "green before a crash": Wrote(f"echo '{GREEN}' >$X; kill -SEGV $$", "crashed", "one a", "a"),
    "green before a failure": Wrote(f"echo '{GREEN}' >$X; exit 1", "failed", "one a", "a"),
    "red before exit 0": Wrote(f"echo '{HEAD}{CASES}{END}' >$X", "failed", "one two", "two"),
    "red before exit 1": Wrote(f"echo '{HEAD}{CASES}{END}' >$X; exit 1", "failed", "one two", "two"),
    "red in a namespace": Wrote(f"echo '{SPACE}</testsuite>' >$X", "failed", "one two", "two"),
    "truncated in a namespace": Wrote(f"echo '{SPACE}' >$X; exit 1", "failed", "one two a", "two a"),
    "red by its suite's count": Wrote("echo '<testsuite failures=\"1\"><testcase name=\"one\"/></testsuite>' >$X",
                                      "failed", "one", ""),
    "red by a count of errors": Wrote("echo '<testsuites errors=\"2\"/>' >$X", "failed", "", ""),
    "no XML": Wrote("head -c 100 /dev/urandom >$X; exit 1", "failed", "a", "a"),
    "hostile logs": Wrote("printf '\\0\\033[31m]]>\\r\\xff\\xed\\xa0\\x80</system-out>&lt;\\xe2\\x80\\xa8'; exit 1",
                          "failed", "a", "a"),
    "huge and torn": Wrote(f"{HUGE}; exit 1", "failed", "a", "a"),
    "huge and torn behind a pass": Wrote(HUGE, "passed", "a", ""),
}


class JUnitTest(FaultCase):
    def cases(self, path: str) -> List[ElementTree.Element]:
        root = ElementTree.parse(path).getroot()
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return list(root.iter("testcase"))

    def test_files(self) -> None:
        """CI reads no file as green that is not, and each file can be read. One that is torn and huge is kept aside."""
        text, outcomes = "", {}
        for name, wrote in WRITTEN.items():
            label = re.sub(r"\W", "_", name)
            path = f"logs/{label}.xml"
            if wrote.before:
                self.write(path, wrote.before)
            self.write(f"{label}.sh", f"X={path}; {wrote.script}")
            text += f"bash {label}.sh --junitxml={path} #: label={label}\n"
            outcomes[label] = wrote.outcome
        ran = self.suffer(text, 1, outcomes)
        without = re.findall("(?m)^without its JUnit file .*: (.*)", ran.text)
        self.assertEqual(without, [label for label, outcome in outcomes.items() if outcome == "passed"])
        for wrote, label in zip(WRITTEN.values(), outcomes):
            with self.subTest(label):
                cases = self.cases(ran.path("logs", f"{label}.xml"))
                bad = [case.get("name") for case in cases if {"failure", "error"} & {child.tag for child in case}]
                self.assertEqual(([case.get("name") for case in cases], bad),
                                 tuple([label if name == "a" else name for name in names.split()]
                                       for names in (wrote.cases, wrote.problems)))
        torn = {name[:-9]: os.path.getsize(ran.path("logs", name)) for name in os.listdir(ran.path("logs"))
                if name.endswith(".xml.torn")}
        self.assertEqual(sorted(torn), sorted(label for label in outcomes if label.startswith("huge")))
        self.assertGreater(min(torn.values()), run_tests.JUNIT_BYTES)

    def test_what_a_stand_in_says(self) -> None:
        """The log's tail where consumers look, without terminal escapes; a dot would make a package of a class."""
        self.write("a.sh", r"printf '\033[1;31mlast\033[0m words\n'; exit 1")
        ran = self.suffer("bash a.sh --junitxml=logs/a.xml #: label=a\n", 1, {"a": "failed"})
        for name in ("logs/a.xml", "junit.xml"):
            case, = self.cases(ran.path(name))
            self.assertEqual([(child.tag, child.text) for child in case if child.tag != "system-out"],
                                 [("failure", "last words\n")])
            self.assertEqual(case[0].get("message", "")[:15], "failed, exit 1:")
            self.assertRegex(case.get("classname", ""), r"^[^.]+$")

    def test_what_is_no_file_in_the_place_of_one(self) -> None:
        """A pipe and a device would be read for ever, a pipe and a folder cannot be replaced."""
        shapes = {"pipe": ("mkfifo", stat.S_ISFIFO), "folder": ("mkdir", stat.S_ISDIR),
                  "device": ("ln -s /dev/zero", stat.S_ISREG)}      # a link is replaced
        self.write("x.sh", "rm -f logs/$2; $1 logs/$2; exit $3\n")
        text = "".join(f"bash x.sh '{make}' {name}.log {name[-1]} #: label={name}\n"
                       f"bash x.sh '{make}' x{name}.xml {name[-1]} --junitxml=logs/x{name}.xml #: label=x{name}\n"
                       for shape, (make, _) in shapes.items() for name in (shape + "0", shape + "1"))
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                self.write("tests.txt", text)
                process = self.start("--junit", "junit.xml", "tests.txt", gpus=gpus)
                out, err = process.communicate(timeout=WAIT_S)
                ran = Ended(process.returncode, out, err.decode(), self.folder)
                expected = {prefix + shape + end: "failed" if end == "1" else "passed"
                            for shape in shapes for end in "01" for prefix in ("", "x")}
                self.assertEqual((ran.code, ran.outcomes(), self.left()), (1, expected, {}), ran.text + ran.err)
                self.assertNotIn("Traceback", ran.text + ran.err)
                self.assertEqual(ran.text.count("(its log cannot be read: is no regular file)"), 3 * (gpus == "0,1"))
                for shape, (_, is_shape) in shapes.items():
                    self.assertTrue(is_shape(os.lstat(ran.path(f"logs/x{shape}1.xml")).st_mode), shape)
                    self.assertEqual(f"/logs/x{shape}1.xml (is no regular file" in ran.err, shape != "device")
                self.assertEqual(len(self.cases(ran.path("junit.xml"))), 12)

    def test_devices_that_are_named(self) -> None:
        """`--junitxml=/dev/null` and `--junit /dev/stdout`, as root; here their like in a folder of our own."""
        null, output = os.path.join(self.folder, "null"), os.path.join(self.folder, "output")
        try:
            os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            os.mkfifo(null)
        os.symlink("/proc/self/fd/1", output)
        kinds = [stat.S_IFMT(os.lstat(path).st_mode) for path in (null, output)]
        self.write("tests.txt", "true --junitxml=null #: label=a\nfalse --junitxml=output #: label=b retries=1\n")
        with open(os.path.join(self.folder, "out"), "wb") as out:        # which `output` leads to
            for name in ("null", "output"):
                with self.subTest(name):
                    process = self.start("--junit", name, "tests.txt", stdout=out)
                    process.communicate(timeout=WAIT_S)
                    self.assertIn(process.returncode, (1, 2, 3))
                    self.assertEqual([stat.S_IFMT(os.lstat(path).st_mode) for path in (null, output)], kinds)
        self.suffer("true --junitxml=null #: label=a\n", 0, {"a": "passed"})
        self.assertEqual(stat.S_IFMT(os.lstat(null).st_mode), kinds[0])


class OptionsTest(FaultCase):
    def test_leaks(self) -> None:
        self.drive(SOON)
        text = "setsid $NAP & sleep 0 #: label=a\ntrue #: label=b\nexit 1 #: label=c\n"
        for how, gpus, outcome in (("report", "0,1", "passed"), ("fail", "0,1", "failed"), ("fail", "0", "failed")):
            with self.each(f"{how} {gpus}"):
                ran = self.suffer(text, 1, {"a": outcome, "b": "passed", "c": "failed"}, "--leaks", how, gpus=gpus)
                self.assertEqual([len(record.get("leaked", [])) for record in ran.journal("test_end")
                                  if record["label"] == "a"], [1])
                if gpus == "0,1":
                    self.assertIn("leaked: 1 process", ran.text)
        for gpus in ("0", "0,1"):       # of a script, which has no summary
            self.write("test.sh", "bash -c 'setsid $NAP & sleep 0' || test_fail a\n")
            process = self.start("test.sh", gpus=gpus)
            _, err = process.communicate(timeout=WAIT_S)
            self.assertRegex(err.decode(), r"run_tests\.py: test\.sh:1: a left \w+ \(pid \d+\)\n")

    def test_flaky(self) -> None:
        once = ONCE.format("echo 'E  ValueError: x]]>'; exit 1")
        self.write("tests.txt", f"{once} #: label=a retries=1\ntrue #: label=b\n")
        for arguments, code in ((["--junit", "junit.xml"], 1), (["--rerun-failed"], 0)):     # and not 5, nothing to run
            process = self.start("--flaky", "fail", *arguments, "tests.txt")
            out, err = process.communicate(timeout=WAIT_S)
            ran = Ended(process.returncode, out, err.decode(), self.folder)
            self.assertEqual((ran.code, self.left()), (code, {}), ran.text)
            if code:
                self.assertEqual((ran.outcomes(), ran.failures()), ({"a": "flaky", "b": "passed"}, ["a"]))
                self.assertTrue(ran.text.endswith("\nError in the following test cases: a\n"), ran.text)
                (failure, _), _ = ElementTree.parse(ran.path("junit.xml")).iter("testcase")
                self.assertEqual((failure.tag, failure.get("type")), ("failure", "failed"))
                self.assertEqual(failure.text, "E  ValueError: x]]>\n")

    def test_slow(self) -> None:
        """On one GPU; on several: HostileTest."""
        gate = Fifo(self, "gate")
        self.write("tests.txt", "echo half way; read line <gate #: label=a\n")
        process = self.start("--slow", "40ms", "tests.txt", gpus="0", stderr=subprocess.STDOUT)
        told = self.read_until(process, b"half way]\n") + self.read_until(process, b"half way]\n")
        self.assertRegex(told, rb"(?m)^run_tests\.py: Slow: a \[\d+\.\ds; half way\]$")
        gate.release()
        self.assertTrue(process.communicate(timeout=WAIT_S)[0].endswith(b"All tests passed\n"))

    def test_deadline(self) -> None:
        self.over_when_ready()
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                ran = self.suffer("(setsid $NAP & env -i $(which setsid) $NAP & true); echo up >up; $NAP "
                                  "#: label=a gpus=all\ntrue #: label=b gpus=all\n",
                                  1, {"a": "interrupted", "b": "not run"},
                                  "--deadline", "1h", "--order", "file", gpus=gpus)
                self.assertEqual(ran.text.splitlines()[-1], "Ended by --deadline: 1 interrupted, 1 not run")


if __name__ == "__main__":
    unittest.main()
