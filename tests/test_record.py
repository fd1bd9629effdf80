"""Section 8: journal, `failures`, log dir and stand-in JUnit files, read from outside and from inside running tests."""
from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import unittest
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple
from xml.etree import ElementTree

import run_tests
from run_tests import Outcome
from tests.support import ROOT, Ran, RunnerCase, a_test

MEMORY_BYTES = 2 << 30
START_KEYS = ["event", "run", "time", "version", "lists", "tests", "commit", "gpus", "directory", "shard",
              "selected", "left_out"]
TEST_START_KEYS = ["event", "run", "time", "test", "label", "attempt", "pid", "slot", "gpus", "log"]
TEST_END_KEYS = ["event", "run", "time", "test", "label", "attempt", "outcome", "status", "signal", "seconds", "need"]
END_KEYS = ["event", "run", "time", "exit", "outcomes", "quarantined"]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


class JournalTest(RunnerCase):
    def test_each_event_has_its_fields(self) -> None:
        ran = self.run_list("""
            true           #: label=one
            exit 2         #: label=two gpus=2
            kill -KILL $$  #: label=none gpus=0
            true           #: label=all gpus=all
            true           #: label=wide gpus=3
        """, gpus="4,7")
        self.check(ran, 1, {"one": "passed", "two": "failed", "none": "crashed", "all": "passed", "wide": "unrunnable"})
        start, *middle, end = ran.journal()
        self.assertEqual(list(start), START_KEYS)
        self.assertEqual((start["version"], start["lists"], start["tests"], start["gpus"], start["directory"]),
                         (run_tests.VERSION, ["tests.txt"], 5, ["4", "7"], os.path.realpath(self.folder)))
        names = {record["label"]: run_tests.key_of([record["test"], record["label"]]) for record in middle}
        self.assertEqual((start["shard"], start["selected"], start["left_out"]),
                         (None, [names[label] for label in ("one", "two", "none", "all", "wide")], []))
        self.assertEqual(list(end), END_KEYS)
        self.assertEqual((end["exit"], end["outcomes"], end["quarantined"]),
                         (1, {"passed": 2, "failed": 1, "crashed": 1, "unrunnable": 1}, {}))
        self.assertEqual({record["run"] for record in ran.journal()}, {start["run"]})
        times = [record["time"] for record in ran.journal()]
        self.assertEqual(times, sorted(times))
        for record in middle:
            keys = TEST_START_KEYS if record["event"] == "test_start" else TEST_END_KEYS
            self.assertEqual(list(record)[:len(keys)], keys)
            self.assertEqual(record["attempt"], 1)
            self.assertRegex(record["test"], r"^[0-9a-f]{12}$")
        starts = {record["label"]: record for record in ran.journal("test_start")}
        self.assertEqual({label: (record["gpus"], record["log"]) for label, record in starts.items()},
                         {"one": (["4"], "logs/one.log"), "two": (["4", "7"], "logs/two.log"),
                          "none": ([], "logs/none.log"), "all": (["4", "7"], "logs/all.log")})
        self.assertTrue(all(record["slot"] in (0, 1, 2) and record["pid"] > 1 for record in starts.values()))
        ends = {record["label"]: record for record in ran.journal("test_end")}
        self.assertEqual({label: (end["status"], end["signal"], end["need"]) for label, end in ends.items()},
                         {"one": (0, None, 1), "two": (2, None, 2), "none": (-9, "SIGKILL", 0), "all": (0, None, "all"),
                          "wide": (None, None, 3)})
        said = {label: {key: record[key] for key in ("reason", "cause", "leaked") if key in record}
                for label, record in ends.items()}
        self.assertEqual(said, {"one": {}, "two": {"cause": "exit status 2, without output"},
                                "none": {"cause": "killed by SIGKILL"}, "all": {},
                                "wide": {"reason": "needs 3 GPUs, more than there are"}})
        self.assertTrue(all(record["seconds"] >= 0 for record in ends.values()))

    def test_a_test_starts_before_it_ends_and_ends_once(self) -> None:
        ran = self.run_list("true\n" * 12 + "wait\n" + "false\n" * 4)
        position = {(record["event"], record["label"]): number for number, record in enumerate(ran.journal())
                    if "label" in record}
        self.assertEqual(len(position), 32)
        self.assertEqual(len(ran.journal()), 34)
        for label in ran.outcomes():
            self.assertLess(position["test_start", label], position["test_end", label])
        self.assertLess(max(number for (_, label), number in position.items() if label.startswith("true")),
                        min(number for (_, label), number in position.items() if label.startswith("false")))

    def test_each_line_is_there_for_the_next_test_to_see(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("""
                    true                            #: label=a
                    wait
                    cp logs/run_tests.jsonl seen    #: label=b
                """, "--log-dir", "logs", gpus=gpus)
                seen = [record for record in ran.journal(path="seen") if record["run"] == ran.journal()[-1]["run"]]
                self.assertEqual([(record["event"], record.get("label")) for record in seen[:3]],
                                 [("run_start", None), ("test_start", "a"), ("test_end", "a")])
                self.assertNotIn("run_end", [record["event"] for record in seen])

    def test_a_running_test_is_in_it(self) -> None:
        ran = self.run_list("until grep -q '\"test_start\".*\"me\"' logs/run_tests.jsonl; do :; done "
                            "#: label=me timeout=60s\n")
        self.check(ran, 0, {"me": "passed"})

    def test_runs_are_appended(self) -> None:
        first = self.run_list("true #: label=a\nfalse #: label=b\n")
        before = first.read("logs/run_tests.jsonl")
        second = self.run_list("# a comment\n\nfalse #: label=c\n")
        after = second.read("logs/run_tests.jsonl")
        self.assertTrue(after.startswith(before))
        starts = second.journal("run_start")
        self.assertEqual((len(starts), len({record["run"] for record in starts})), (2, 2))
        tests = {record["label"]: record["test"] for record in second.journal("test_end")}
        self.assertEqual(tests["b"], tests["c"], "a test is known by its command")
        self.assertNotEqual(tests["a"], tests["b"])

    def test_a_torn_last_line_is_not_glued_to(self) -> None:
        for torn in ('{"event": "test_st', "{", "\udcff\udcc3", "", '{"event": "old"}\n'):
            with self.subTest(torn=torn):
                self.write("logs/run_tests.jsonl", torn)
                ran = self.run_list("true\n")
                text = ran.read("logs/run_tests.jsonl")
                own = text[len(torn):]
                self.assertTrue(text.startswith(torn))
                self.assertRegex(own, r'^\n\{"event": "run_start"' if torn and not torn.endswith("\n")
                                 else r'^\{"event": "run_start"')
                self.assertEqual(len(own.strip().splitlines()), 4)

    def test_it_can_be_elsewhere(self) -> None:
        ran = self.run_list("true\n", "--journal", "history.jsonl")
        self.assertEqual([record["event"] for record in ran.journal(path="history.jsonl")],
                         ["run_start", "test_start", "test_end", "run_end"])
        self.assertEqual(os.listdir(ran.path("logs")), ["true.log"])

    def test_any_label_can_be_in_it(self) -> None:
        ran = self.run_list("true #: label='\"quoted\" \\ ü ☃ \udcff'\n")
        self.assertEqual(ran.journal("test_end")[0]["label"], '"quoted" \\ ü ☃ \udcff')
        self.assertTrue(ran.read("logs/run_tests.jsonl").isascii())

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk_is_the_machines_failure(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                self.write("tests.txt", "touch ran\ntrue\n")
                process = self.start("--journal", "/dev/full", "tests.txt", gpus=gpus, preexec_fn=limit_memory)
                out, err = process.communicate()         # who reads it to its end never comes to one
                self.assertEqual((process.returncode, err.decode(), os.path.exists(f"{self.folder}/ran")),
                                 (3, "", False))
                self.assertRegex(out.decode().splitlines()[-1],
                                 r"^Stopped, the machine failed: .*No space left on device.*: 2 not run$")


WRITE_TWICE = """
import resource, sys, run_tests
file = run_tests.Appender(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
for line in (b"whole\\n", b"torn line\\n", b"no room at all\\n"):
    try:
        file.write(line)
        print("written")
    except OSError as error:
        print(error.strerror)
"""


class AppenderTest(RunnerCase):
    """A file that grows line by line, whatever becomes of its name."""

    def setUp(self) -> None:
        super().setUp()
        self.path = os.path.join(self.folder, "logs", "x.jsonl")
        self.start_with(b"")

    def start_with(self, text: bytes) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "wb") as file:
            file.write(text)
        self.appender = run_tests.Appender(self.path)
        self.addCleanup(lambda appender=self.appender: appender.file.close())

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read()

    def test_lines_are_there_at_once(self) -> None:
        for number in range(3):
            self.appender.write(b"%d\n" % number)
            self.assertEqual(self.read(), b"0\n1\n2\n"[:2 * number + 2])

    def test_a_torn_end_is_ended(self) -> None:
        for before, after in ((b"", b"new\n"), (b"old\n", b"old\nnew\n"), (b"old\ntorn", b"old\ntorn\nnew\n")):
            with self.subTest(before):
                self.start_with(before)
                self.appender.write(b"new\n")
                self.assertEqual(self.read(), after)

    def test_what_a_test_deletes_comes_back(self) -> None:
        cases: Dict[str, Tuple[Callable[[], Any], bytes]] = {
            "the file": (lambda: os.unlink(self.path), b""),
            "its folder": (lambda: shutil.rmtree(os.path.dirname(self.path)), b""),
            "the file, for one of its own": (lambda: self.replace(b"theirs\n"), b"theirs\n"),
        }
        for name, (delete, theirs) in cases.items():
            with self.subTest(name):
                self.start_with(b"before\n")
                self.appender.write(b"one\n")
                delete()
                self.appender.write(b"two\n")
                self.appender.restore()
                self.assertEqual(self.read(), theirs + b"before\none\ntwo\n")
                self.appender.write(b"three\n")
                self.appender.restore()
                self.assertEqual(self.read(), theirs + b"before\none\ntwo\nthree\n")

    def replace(self, text: bytes) -> None:
        os.unlink(self.path)
        self.write("logs/x.jsonl", text.decode())

    def test_what_is_there_is_left_alone(self) -> None:
        self.appender.write(b"one\n")
        before = os.stat(self.path)
        self.appender.restore()
        after = os.stat(self.path)
        self.assertEqual((after.st_ino, after.st_mtime_ns), (before.st_ino, before.st_mtime_ns))

    def test_a_place_that_is_gone_for_good_raises(self) -> None:
        shutil.rmtree(os.path.dirname(self.path))
        self.write("logs", "a file")
        with self.assertRaises(OSError):
            self.appender.restore()

    def test_a_line_that_is_written_in_part_raises(self) -> None:
        command = [sys.executable, "-c", WRITE_TWICE, self.path]
        ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        self.assertEqual(ran.stdout.decode().splitlines(), ["written", "No space left on device", "File too large"])
        self.assertEqual(self.read(), b"whole\ntorn")
        self.start_with(self.read())
        self.assertEqual(self.read(), b"whole\ntorn\n")


class FailuresTest(RunnerCase):
    def test_each_failure_is_there_at_once(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("""
                    false                        #: label=one
                    wait
                    grep -qx one logs/failures   #: label=two
                    wait
                    exit 4                       #: label='three and more'
                """, gpus=gpus)
                self.check(ran, 1, {"one": "failed", "two": "passed", "three and more": "failed"})
                self.assertEqual(ran.read("logs/failures"), "one\nthree and more\n")

    def test_every_kind_of_failure_is_named(self) -> None:
        ran = self.run_list("""
            true           #: label=passed
            false          #: label=failed
            kill -KILL $$  #: label=crashed
            sleep 1000     #: label=timeout timeout=100ms
            true           #: label=unrunnable gpus=3
        """)
        self.check(ran, 1, {outcome: outcome for outcome in ("passed", "failed", "crashed", "timeout", "unrunnable")})

    def test_what_did_not_run_is_no_failure(self) -> None:
        ran = self.run_list("false #: label=a\ntrue #: label=b\n", "--fail-fast", gpus="0")
        self.check(ran, 1, {"a": "failed", "b": "not run"})
        self.assertEqual(ran.failures(), ["a"])

    def test_absent_when_nothing_failed(self) -> None:
        self.assertFalse(os.path.exists(self.run_list("true\n").path("logs/failures")))

    def test_the_default_one_starts_fresh(self) -> None:
        self.write("logs/failures", "old\n")
        self.assertEqual(self.run_list("false\n").read("logs/failures"), "false\n")
        self.assertFalse(os.path.exists(self.run_list("true\n").path("logs/failures")))

    def test_a_given_one_is_appended_to(self) -> None:
        cases: Dict[str, Tuple[List[str], Dict[str, str]]] = {
            "FAIL_DIR": ([], {"FAIL_DIR": "given"}),
            "option": (["--fail-dir", "given"], {}),
            "option over FAIL_DIR": (["--fail-dir", "given"], {"FAIL_DIR": "other"}),
            "absolute": ([], {"FAIL_DIR": os.path.join(self.folder, "given")}),
            "the log dir itself": (["--log-dir", "given", "--fail-dir", "given"], {}),
        }
        for name, (arguments, env) in cases.items():
            with self.subTest(name):
                path = self.write("given/failures", "old\n")
                ran = self.run_list("false\n", *arguments, env=env)
                self.assertEqual((ran.code, ran.read(path)), (1, "old\nfalse\n"))
                ran = self.run_list("true\n", *arguments, env=env)
                self.assertEqual((ran.code, ran.read(path)), (0, "old\nfalse\n"))
                self.assertFalse(os.path.exists(ran.path("logs/failures")))
                self.assertFalse(os.path.exists(ran.path("other")))

    def test_a_given_dir_is_made(self) -> None:
        ran = self.run_list("false\n", env={"FAIL_DIR": "new/deep"})
        self.assertEqual(ran.read("new/deep/failures"), "false\n")
        self.assertFalse(os.path.exists(self.run_list("true\n", "--fail-dir", "fresh").path("fresh/failures")))

    def test_a_label_is_written_byte_for_byte(self) -> None:
        ran = self.run_list('false || test_fail "caf\udce9 ☃ \udcff"\n')
        self.assertEqual(ran.failures(), ["caf\udce9 ☃ \udcff"])


class PlacesTest(RunnerCase):
    def test_the_log_dir(self) -> None:
        cases: Dict[str, Tuple[List[str], Dict[str, str], str]] = {
            "default": ([], {}, "logs"),
            "XML_LOG_DIR": ([], {"XML_LOG_DIR": "x/logs"}, "x/logs"),
            "an empty XML_LOG_DIR": ([], {"XML_LOG_DIR": ""}, "logs"),
            "option": (["--log-dir", "o/p/q"], {}, "o/p/q"),
            "option over XML_LOG_DIR": (["--log-dir", "r"], {"XML_LOG_DIR": "s"}, "r"),
            "with spaces": (["--log-dir", "two words"], {}, "two words"),
        }
        for name, (arguments, env, place) in cases.items():
            with self.subTest(name):
                ran = self.run_list("false #: label=a\n", *arguments, env=env)
                self.assertEqual(ran.code, 1, ran.err)
                self.assertEqual(sorted(os.listdir(ran.path(place))), ["a.log", "failures", "run_tests.jsonl"])
                starts = ran.journal("test_start", f"{place}/run_tests.jsonl")
                self.assertEqual({record["log"] for record in starts}, {f"{place}/a.log"})
                self.assertFalse(os.path.exists(ran.path("s")))

    def test_a_pytest_targets_junit_file_is_in_it(self) -> None:
        stub = os.path.join(self.stub("python-stub", "#!/bin/bash\necho \"$@\"; exit 9\n"), "python-stub")
        ran = self.run_list("sub/test_x.py -k y\n", "--python", stub, env={"XML_LOG_DIR": "x"})
        place = os.path.join(os.path.realpath(self.folder), "x")
        names = sorted(os.listdir(place))
        self.assertEqual(len(names), 4, names)
        self.assertRegex(" ".join(names), r"^failures pytest_(\S*test_x\S*)\.log pytest_\1\.xml run_tests\.jsonl$")
        self.assertIn(f"--junitxml={os.path.join(place, names[2])}", ran.read("x", names[1]))
        self.assertEqual(ElementTree.parse(ran.path("x", names[2])).getroot().tag, "testsuites")

    def test_a_place_that_cannot_be_is_the_machines_failure(self) -> None:
        self.write("file", "a file\n")
        os.makedirs(os.path.join(self.folder, "given/failures"))
        cases: Dict[str, Tuple[List[str], Dict[str, str], str]] = {
            "log dir is a file": (["--log-dir", "file"], {}, "file"),
            "log dir below a file": (["--log-dir", "file/logs"], {}, "file/logs"),
            "XML_LOG_DIR is a file": ([], {"XML_LOG_DIR": "file"}, "file"),
            "fail dir is a file": (["--fail-dir", "file"], {}, "file"),
            "FAIL_DIR below a file": ([], {"FAIL_DIR": "file/fail"}, "file/fail"),
            "journal below a file": (["--journal", "file/j.jsonl"], {}, "file/j.jsonl"),
            "journal in no folder": (["--journal", "none/j.jsonl"], {}, "none/j.jsonl"),
            "journal is a folder": (["--journal", "."], {}, "."),
            "failures is a folder": (["--log-dir", "given"], {}, "given/failures"),
        }
        for name, (arguments, env, place) in cases.items():
            with self.subTest(name):
                ran = self.run_list("touch ran; false\n", *arguments, env=env)
                self.assertEqual((ran.code, ran.out), (3, b""), ran.err)
                self.assertRegex(ran.err, rf"^run_tests\.py: error: cannot write {place} \([A-Z][a-z ]+\); "
                                 r"name a place with --log-dir, --fail-dir, --journal or --junit\n$")
                self.assertFalse(os.path.exists(ran.path("ran")))

    def test_a_failure_that_cannot_be_noted_is_the_machines(self) -> None:
        os.makedirs(os.path.join(self.folder, "given/failures"))
        ran = self.run_list("false\n", "--fail-dir", "given", gpus="0")
        self.assertEqual(ran.code, 3)
        self.assertIn("given/failures", ran.text + ran.err)
        self.assertNotIn("Traceback", ran.text + ran.err)

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_a_place_without_permission_is_the_machines_failure(self) -> None:
        self.write("sealed/logs/x.log", "")
        for folder in ("sealed/logs", "sealed"):
            os.chmod(os.path.join(self.folder, folder), 0o555)
            self.addCleanup(os.chmod, os.path.join(self.folder, folder), 0o755)
        for arguments in (["--log-dir", "sealed/logs"], ["--log-dir", "sealed/new"], ["--fail-dir", "sealed/logs"],
                          ["--journal", "sealed/j.jsonl"]):
            with self.subTest(arguments):
                ran = self.run_list("touch ran; false\n", *arguments)
                self.assertEqual((ran.code, ran.out, os.path.exists(ran.path("ran"))), (3, b"", False))
                self.assertRegex(ran.err, r"^run_tests\.py: error: cannot write \S+ \(Permission denied\); name ")


class StandInTest(RunnerCase):
    def case_of(self, ran: Ran, path: str) -> ElementTree.Element:
        """The one case of a JUnit file, whose counts must fit."""
        with open(ran.path(path), "rb") as file:
            self.assertTrue(file.read().startswith(b'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>'))
        root = ElementTree.parse(ran.path(path)).getroot()
        suite, = root
        case, = suite
        self.assertEqual((root.tag, suite.tag, case.tag), ("testsuites", "testsuite", "testcase"))
        self.assertEqual({name: suite.get(name) for name in ("tests", "failures", "skipped")},
                         {"tests": "1", "failures": "0", "skipped": "0"})
        self.assertEqual(suite.get("errors"), str(len(case.findall("error"))))
        self.assertEqual((case.get("classname"), case.get("name"), case.get("time")),
                         ("run_tests.py", suite.get("name"), suite.get("time")))
        self.assertRegex(case.get("time", ""), r"^\d+\.\d{3}$")
        return case

    def xml_files(self, ran: Ran) -> List[str]:
        return sorted(os.path.relpath(os.path.join(folder, name), ran.folder)
                      for folder, _, names in os.walk(ran.folder) for name in names if ".xml" in name)

    def test_what_never_ran_does_not_keep_the_file_of_an_earlier_run(self) -> None:
        for name in ("late", "wide", "cut"):
            self.write(name + ".xml", "<testsuites/>")
        ran = self.run_list("""
            false                             #: label=first
            wait
            true late --junitxml=late.xml     #: after=first label=late
            true wide --junitxml=wide.xml     #: gpus=3 label=wide
            true new --junitxml=new.xml       #: after=first label=new
        """)
        self.check(ran, 1, {"first": "failed", "late": "blocked", "wide": "unrunnable", "new": "blocked"})
        for name, why in (("late", "blocked; waits for first, which did not pass"),
                          ("wide", "unrunnable; needs 3 GPUs, more than there are"),
                          ("new", "blocked; waits for first, which did not pass")):
            with self.subTest(name):
                self.assertEqual([error.get("message") for error in self.case_of(ran, name + ".xml")][0], why)

    def test_it_says_how_the_test_ended(self) -> None:
        for name in ("stale", "passed_stale"):
            self.write(name + ".xml", "<testsuites/>")
        told = "<a><testcase><error/></testcase></a>"
        ran = self.run_list("""
            bash -c 'echo last words; kill -KILL $$' --junitxml=dead.xml                #: label=dead
            bash -c 'exit 3' --junitxml missing.xml                                     #: label=missing
            bash -c 'printf "<testsuites><tests" >cut.xml; exit 1' --junitxml=cut.xml   #: label=cut
            bash -c 'exit 1' --junitxml=stale.xml                                       #: label=stale
            bash -c 'sleep 1000' --junitxml=slow.xml                                    #: label=slow timeout=100ms
            bash -c 'exit 1' --junitxml=deep/er/x.xml                                   #: label=deep
            bash -c 'true' --junitxml=passed.xml                                        #: label=passed
            bash -c 'true' --junitxml=passed_stale.xml                                  #: label=passed-stale
            bash -c ': >passed_empty.xml' --junitxml=passed_empty.xml                   #: label=passed-empty
            bash -c 'echo "<own/>" >own.xml; exit 1' --junitxml=own.xml                 #: label=own
            bash -c 'echo "$TOLD" >told.xml; exit 1' --junitxml=told.xml                #: label=told
            bash -c 'echo "<own/>" >fine.xml' --junitxml=fine.xml                       #: label=fine
            run_test "" in_log_dir.xml "true" other
        """, "--python", "false", env={"TOLD": told})
        expected: Mapping[str, Tuple[str, str, bool]] = {      # label, message, whether it is an error
            "dead.xml": ("dead", "crashed (SIGKILL); its JUnit file is missing", True),
            "missing.xml": ("missing", "failed, exit 3; its JUnit file is missing", True),
            "cut.xml": ("cut", "failed, exit 1; its JUnit file is truncated", True),
            "stale.xml": ("stale", "failed, exit 1; its JUnit file is stale, from an earlier run", True),
            "slow.xml": ("slow", "timeout; its JUnit file is missing", True),
            "deep/er/x.xml": ("deep", "failed, exit 1; its JUnit file is missing", True),
            "passed.xml": ("passed", "passed; its JUnit file is missing", False),
            "passed_stale.xml": ("passed-stale", "passed; its JUnit file is stale, from an earlier run", False),
            "passed_empty.xml": ("passed-empty", "passed; its JUnit file is truncated", False),
            "own.xml": ("own", "failed, exit 1; its JUnit file is without a failure", True),
            "logs/in_log_dir.xml": ("other", "failed, exit 1; its JUnit file is missing", True),
        }
        self.assertEqual(self.xml_files(ran), sorted([*expected, "told.xml", "fine.xml"]))
        self.assertEqual((ran.read("told.xml"), ran.read("fine.xml")), (told + "\n", "<own/>\n"))
        for path, (label, message, is_error) in expected.items():
            with self.subTest(path):
                case = self.case_of(ran, path)
                self.assertEqual(case.get("name"), label)
                self.assertEqual([error.get("message") for error in case.findall("error")], [message] * is_error)
                self.assertTrue((case.findtext("system-out") or "").startswith(message + "\n"))
        self.assertIn("\nlast words\n", self.case_of(ran, "dead.xml").findtext("system-out") or "")
        self.assertEqual(ran.code, 1)
        passed = {label for label, outcome in ran.outcomes().items() if outcome == "passed"}
        self.assertEqual(passed, {"passed", "passed-stale", "passed-empty", "fine"})
        for label, fault in (("passed", "missing"), ("passed-stale", "stale, from an earlier run"),
                             ("passed-empty", "truncated")):
            self.assertIn(f"\npassed without its JUnit file ({fault}): {label}\n", ran.text)

    def test_a_test_that_passes_without_its_file_fails_nothing(self) -> None:
        ran = self.run_list("bash -c 'true' --junitxml=x.xml #: label=a\n")
        self.check(ran, 0, {"a": "passed"})

    def test_a_file_that_cannot_be_read_stops_nothing(self) -> None:
        self.write("x.xml", '<?xml version="1.0" encoding="shift_jis"?><testsuites/>')
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("""
                    bash -c 'cp x.xml new.xml' --junitxml=new.xml            #: label=a
                    bash -c 'mkdir -p folder.xml' --junitxml=folder.xml      #: label=b
                    true                                                     #: label=c
                """, "--log-dir", f"logs{gpus}", gpus=gpus)
                self.assertEqual(ran.code, 0, ran.text)
                self.assertRegex(ran.err, r"\Arun_tests.py: cannot write .*/folder.xml \(.*\); .* no JUnit file\n\Z")
                self.assertEqual({end["outcome"] for end in ran.journal("test_end", f"logs{gpus}/run_tests.jsonl")},
                                 {"passed"})

    def test_any_log_fits_into_it(self) -> None:
        cases: Mapping[str, Tuple[bytes, str]] = {      # the log, and what of it is there
            "plain": (b"one\ntwo\n", "one\ntwo\n"),
            "empty": (b"", ""),
            "NUL and control characters": (b"A\0\1\x1b[31mB\x7f\tC\n", "A???[31mB\x7f\tC\n"),
            "invalid UTF-8": (b"A\377\303B\n", "A\ufffd\ufffdB\n"),
            "markup": (b"]]> & <b a=\"c\"> ' &amp; <!-- -->\n", "]]> & <b a=\"c\"> ' &amp; <!-- -->\n"),
            "beyond the BMP": ("\U0001f680 \ufffe\uffff\ud7ff\n".encode(), "\U0001f680 ??\ud7ff\n"),
            "long": (b"first\n" + b"x" * 100_000 + b"\nlast", "x" * (run_tests.TAIL_BYTES - 5) + "\nlast"),
            "cut within a character": ("é".encode() * 10_000 + b".",
                                       "\ufffd" + "é" * (run_tests.TAIL_BYTES // 2 - 1) + "."),
        }
        path, log = os.path.join(self.folder, "x.xml"), os.path.join(self.folder, "x.log")
        result = run_tests.Result(a_test(junit=path), Outcome.FAILED, 1.5, 1, junit_fault="missing")
        for name, (text, expected) in cases.items():
            with self.subTest(name):
                with open(log, "wb") as file:
                    file.write(text)
                run_tests.write_xml(path, run_tests.mended_junit(result, run_tests.tail_of(log), False))
                told = ElementTree.parse(path).getroot().findtext("testsuite/testcase/system-out")
                self.assertEqual(told, "failed, exit 1; its JUnit file is missing\n" + expected)
        self.assertEqual(sorted(os.listdir(self.folder)), ["x.log", "x.xml"])

    def test_any_log_of_a_run_fits_into_it(self) -> None:
        ran = self.run_list(r"""
            bash -c 'printf "A\0\377\033[0mB\r\n"; kill -KILL $$' --junitxml=x.xml
        """)
        self.assertIn("\nA?\ufffd?[0mB\n", self.case_of(ran, "x.xml").findtext("system-out") or "")
        with open(ran.path("logs/x.log"), "rb") as file:
            self.assertTrue(file.read().startswith(b"A\0\377\033[0mB\r\n"))

    def test_any_label_fits_into_it(self) -> None:
        for label, expected in (('a <b> & "c"', 'a <b> & "c"'), ("x\udcffy", "x?y"), ("☃\U0001f680", "☃\U0001f680")):
            with self.subTest(label=label):
                path = os.path.join(self.folder, "x.xml")
                test = a_test(label=label, stem="x", junit=path)
                result = run_tests.Result(test, Outcome.CRASHED, status=-9)
                run_tests.write_xml(path, run_tests.mended_junit(result, "", False))
                self.assertEqual(self.case_of(Ran(0, b"", "", self.folder), "x.xml").get("name"), expected)

    def test_a_log_that_is_gone_has_no_tail(self) -> None:
        self.assertEqual(run_tests.tail_of(os.path.join(self.folder, "none.log")), "")

    def test_a_place_that_cannot_be_raises_and_leaves_nothing(self) -> None:
        os.makedirs(os.path.join(self.folder, "folder.xml"))
        for path in (self.write("file", "") + "/x.xml", os.path.join(self.folder, "folder.xml")):
            with self.subTest(path), self.assertRaises(OSError):
                run_tests.write_xml(path, ElementTree.Element("testsuites"))
        self.assertEqual(sorted(os.listdir(self.folder)), ["file", "folder.xml"])

    def test_a_test_without_a_junit_file_gets_none(self) -> None:
        ran = self.run_list("false\ntrue\nkill -KILL $$\nsleep 1000 #: timeout=100ms\n")
        self.assertEqual((ran.code, self.xml_files(ran)), (1, []))


class MendedTest(RunnerCase):
    """A JUnit file whose complete cases are kept, and the one that says how the test ended."""

    def mended(self, text: Optional[str], keeps: bool = True, **values: Any) -> ElementTree.Element:
        """What comes in place of a file; it has been written and read once."""
        path = self.write("x.xml", text or "")
        if text is None:
            os.unlink(path)
        values = {"outcome": Outcome.FAILED, "seconds": 1.5, "status": 1, **values}
        result = run_tests.Result(a_test(label="x.py", junit=path), **values)
        run_tests.write_xml(path, run_tests.mended_junit(result, "tail", keeps))
        return ElementTree.parse(path).getroot()

    def names(self, root: ElementTree.Element) -> List[str]:
        return [case.get("name", "") for case in root.iter("testcase")]

    def test_a_case_without_a_name_is_not_complete(self) -> None:
        """What pytest writes for the test in which it was ended."""
        text = '<testsuites><testsuite><testcase name="a"/><testcase time="0.000"/></testsuite></testsuites>'
        self.assertEqual(self.names(self.mended(text, junit_fault="without a failure")), ["a", "x.py"])

    def test_complete_cases_are_kept_as_they_are(self) -> None:
        case = '<testcase name="{0}" classname="t" time="0.5">{1}</testcase>'.format
        kept = [case("a", ""), case("b", "<failure message='x'>text</failure>"), case("c", "<error/>"),
                case("d", '<skipped type="pytest.skip"/>'), case("e", "<system-out>&lt;&#233;</system-out>")]
        whole = "<testsuites><testsuite>" + "".join(kept) + "</testsuite></testsuites>"
        texts = {"whole": whole, "cut between cases": whole[:-25], "cut within a case": whole[:-25] + kept[0][:-5],
                 "two suites": "<testsuites><testsuite>" + kept[0] + kept[1] + "</testsuite><testsuite>" + kept[2]
                               + kept[3] + kept[4] + "</testsuite></testsuites>",
                 "in an encoding of its own": '<?xml version="1.0" encoding="latin-1"?>' + whole}
        for name, text in texts.items():
            with self.subTest(name):
                root = self.mended(text, junit_fault="truncated")
                self.assertEqual(self.names(root), ["a", "b", "c", "d", "e", "x.py"])
                suite, = root
                self.assertEqual([suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")],
                                 ["6", "1", "2", "1", "1.500"])
                for element, own in zip(suite, kept):
                    self.assertEqual(ElementTree.tostring(element), ElementTree.tostring(ElementTree.fromstring(own)))

    def test_what_is_of_no_use_is_not_kept(self) -> None:
        whole = "<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>"
        for name, text, keeps in (("an earlier run's", whole, False), ("no file", None, True), ("no XML", "x\n", True),
                                  ("empty", "", True), ("no case", "<testsuites/>", True),
                                  ("an unknown encoding", '<?xml version="1.0" encoding="none"?>' + whole, True)):
            with self.subTest(name):
                self.assertEqual(self.names(self.mended(text, keeps)), ["x.py"])

    def test_the_new_case_says_how_the_test_ended(self) -> None:
        cases: List[Tuple[Dict[str, Any], str]] = [
            ({"junit_fault": "missing"}, "failed, exit 1; its JUnit file is missing"),
            ({"junit_fault": "without a failure"}, "failed, exit 1; its JUnit file is without a failure"),
            ({"outcome": Outcome.CRASHED, "status": -9, "reason": "OOM killer", "junit_fault": "truncated"},
             "crashed (SIGKILL, OOM killer); its JUnit file is truncated"),
            ({"outcome": Outcome.TIMEOUT, "status": -15, "reason": "did not end in 5s", "junit_fault": "missing"},
             "timeout; its JUnit file is missing"),
            ({"outcome": Outcome.BLOCKED, "status": None, "reason": "waits for y"}, "blocked; waits for y"),
            ({"outcome": Outcome.NOT_RUN, "status": None}, "not run; it was not started"),
        ]
        for values, message in cases:
            with self.subTest(message):
                case, = self.mended(None, **values).iter("testcase")
                self.assertEqual([error.get("message") for error in case.findall("error")], [message])
                self.assertEqual(case.findtext("system-out"), message + "\ntail")
        case, = self.mended(None, outcome=Outcome.PASSED, status=0, junit_fault="missing").iter("testcase")
        self.assertEqual([element.tag for element in case], ["system-out"])


class SummaryCaseTest(RunnerCase):
    """A test in the summary of the run (`--junit`), its attempts as surefire has them."""

    def setUp(self) -> None:
        super().setUp()
        self.record = run_tests.Record(run_tests.Options((), log_dir=os.path.join(self.folder, "logs")), "a run")
        self.addCleanup(self.record.journal.file.close)
        self.addCleanup(os.close, self.record.lock)

    def case_of(self, words: str, label: str = "x.py", tail: str = "", **values: Any) -> ElementTree.Element:
        """The case of a test whose attempts had these outcomes; each log tells its number."""
        statuses = {"passed": 0, "flaky": 0, "failed": 3, "crashed": -11, "timeout": -15, "interrupted": -2}
        test, words_list = a_test(label=label, stem="x"), words.split(",")
        results = []
        for number, word in enumerate(words_list, 1):
            results.append(run_tests.Result(test, Outcome(word), 2.0, statuses.get(word), attempt=number, **values))
            name = "x.log" if number == len(words_list) else f"x.attempt{number}.log"
            self.write(f"logs/{name}", f"log {number}{tail}")
        path = os.path.join(self.folder, "sum.xml")
        run_tests.write_xml(path, run_tests.junit_of("all", 9.0, [run_tests.summary_case(results, self.record)]))
        return next(ElementTree.parse(path).getroot().iter("testcase"))

    def test_attempts_as_surefire_has_them(self) -> None:
        cases = {
            "passed": "", "failed": "failure", "crashed": "error", "timeout": "error", "blocked": "error",
            "unrunnable": "error", "interrupted": "error", "not run": "error", "deferred": "skipped",
            "failed,flaky": "flakyFailure", "crashed,flaky": "flakyError", "timeout,flaky": "flakyError",
            "failed,crashed,failed,flaky": "flakyFailure flakyError flakyFailure",
            "failed,failed": "failure rerunFailure", "failed,crashed,failed": "failure rerunError rerunFailure",
            "timeout,failed": "error rerunFailure", "failed,interrupted": "failure rerunError",
            "failed,passed": "",         # the first was the GPU's fault
        }
        for words, tags in cases.items():
            with self.subTest(words):
                case = self.case_of(words)
                self.assertEqual(" ".join(element.tag for element in case), tags)
                self.assertEqual(case.attrib, {"name": "x.py", "classname": "tests.txt", "time": "2.000"})
                for number, element in enumerate(case, 1):
                    if element.tag in ("failure", "error"):
                        has_log = words.split(",")[0] not in ("blocked", "unrunnable", "not run")
                        self.assertEqual(element.text, f"log {number}" if has_log else None)
                        self.assertEqual(list(element), [])
                    elif element.tag != "skipped":
                        self.assertEqual([child.tag for child in element], ["stackTrace", "system-out"])
                        self.assertEqual(element.findtext("system-out"), f"log {number}")
                        self.assertEqual(element.findtext("stackTrace"), element.get("message"))

    def test_a_message_has_verdict_cause_and_reason(self) -> None:
        cases = [("failed", "CUDA out of memory", "", "failed, exit 3: CUDA out of memory"),
                 ("timeout", "timeout", "did not end in 5s", "timeout: did not end in 5s"),
                 ("blocked", "", "waits for y", "blocked: waits for y"),
                 ("crashed", "", "", "crashed (SIGSEGV)")]
        for word, cause, reason, message in cases:
            with self.subTest(word):
                element, = self.case_of(word, cause=run_tests.Cause(cause), reason=reason)
                self.assertEqual((element.get("message"), element.get("type")), (message, word))

    def test_any_label_and_any_log_fit_into_it(self) -> None:
        for label, expected in (('a <b> & "c"', 'a <b> & "c"'), ("x\udcff\x01y", "x??y"), ("\u2603 ]]>", "\u2603 ]]>")):
            with self.subTest(label):
                case = self.case_of("failed,crashed", label=label, tail="\0\x1b ]]> \udcff")
                self.assertEqual(case.get("name"), expected)
                self.assertEqual(case.findtext("failure"), "log 1?? ]]> \ufffd")

    def test_the_counts_of_a_summary(self) -> None:
        attempts = ["passed", "failed", "crashed", "deferred", "failed", "timeout"]
        results = [run_tests.Result(a_test(index), Outcome(word), 1.0, 1) for index, word in enumerate(attempts)]
        cases = [run_tests.summary_case([result], self.record) for result in results]
        suite, = run_tests.junit_of("a \x01 name", 7.25, cases)
        counts = {"tests": "6", "failures": "2", "errors": "2", "skipped": "1"}
        self.assertEqual(suite.attrib, {"name": "a ? name", "time": "7.250", **counts})


if __name__ == "__main__":
    unittest.main()
