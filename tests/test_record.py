"""Section 8: journal, `failures`, log dir and JUnit files, read from outside and from inside running tests."""
from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import unittest
from typing import Any, Dict, List, Optional, Sequence, Tuple
from unittest import mock
from xml.etree import ElementTree

import run_tests
from run_tests import Cause, Outcome, Result
from tests.support import ROOT, Ran, RunnerCase, a_test

START_KEYS = ["event", "run", "time", "version", "lists", "tests", "commit", "gpus", "directory", "shard",
              "selected", "left_out"]
TEST_START_KEYS = ["event", "run", "time", "test", "label", "attempt", "slot", "gpus", "log"]
TEST_END_KEYS = ["event", "run", "time", "test", "label", "attempt", "outcome", "status", "signal", "seconds", "need"]
END_KEYS = ["event", "run", "time", "exit", "outcomes", "quarantined"]


class RecordCase(RunnerCase):
    """A test case that looks at kinds of files."""

    def place(self, name: str, link: str = "", device: bool = False) -> str:
        """A FIFO, a link to `link`, or a null device of this folder's own; returns its path."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if link:
            os.symlink(link, path)
        elif device:
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:
                self.skipTest("we may not make a device")
        else:
            os.mkfifo(path)
        return path

    def kinds(self, *names: str) -> str:
        """The kinds of what has these names: - file, l link, p FIFO, c device, d folder."""
        return "".join(stat.filemode(os.lstat(os.path.join(self.folder, name)).st_mode)[0] for name in names)

    def new_record(self, **options: Any) -> run_tests.Record:
        options = {"log_dir": os.path.join(self.folder, "logs"), **options}
        record = run_tests.Record(run_tests.Options(("tests.txt",), **options), "a run")
        self.addCleanup(lambda: os.close(record.lock))
        return record


class JournalTest(RecordCase):
    def test_each_event_has_its_fields(self) -> None:
        ran = self.run_list("true #: label=one\nexit 2 #: label=two gpus=2\nwait\nkill -ABRT $$ #: label=none gpus=0\n"
                            "true #: label=all gpus=all\ntrue #: label=wide gpus=3\n", gpus="4,7")
        self.check(ran, 1, {"one": "passed", "two": "failed", "none": "crashed", "all": "passed", "wide": "unrunnable"})
        start, *middle, end = ran.journal()
        self.assertEqual(list(start), START_KEYS)
        names = {record["label"]: run_tests.key_of(["tests.txt", record["test"], record["label"]]) for record in middle}
        self.assertEqual([start[key] for key in START_KEYS if key not in ("run", "time", "commit")],
                         ["run_start", run_tests.VERSION, ["tests.txt"], 5, ["4", "7"], os.path.realpath(self.folder),
                          None, [names[label] for label in ("one", "two", "none", "all", "wide")], []])
        self.assertEqual(list(end), END_KEYS)
        self.assertEqual((end["exit"], end["outcomes"], end["quarantined"]),
                         (1, {"passed": 2, "failed": 1, "crashed": 1, "unrunnable": 1}, {}))
        self.assertEqual({record["run"] for record in ran.journal()}, {start["run"]})
        times = [record["time"] for record in ran.journal()]
        self.assertEqual(times, sorted(times))
        for record in middle:
            keys = TEST_START_KEYS if record["event"] == "test_start" else TEST_END_KEYS
            self.assertEqual(list(record)[:len(keys)], keys)
            self.assertRegex(record["test"], r"^[0-9a-f]{12}$")
            self.assertEqual(record["attempt"], 1)
        starts = {record["label"]: [record["gpus"], record["log"]] for record in ran.journal("test_start")}
        self.assertEqual(starts, {"one": [["4"], "logs/one.log"], "two": [["4", "7"], "logs/two.log"],
                                  "none": [[], "logs/none.log"], "all": [["4", "7"], "logs/all.log"]})
        self.assertLessEqual({record["slot"] for record in ran.journal("test_start")}, {0, 1, 2})
        said = {record["label"]: [record["status"], record["signal"], record["need"],
                                  {key: record[key] for key in ("reason", "cause", "leaked") if key in record}]
                for record in ran.journal("test_end")}
        self.assertEqual(said, {
            "one": [0, None, 1, {}], "two": [2, None, 2, {"cause": "exit status 2, without output"}],
            "none": [-6, "SIGABRT", 0, {"cause": "killed by SIGABRT"}], "all": [0, None, "all", {}],
            "wide": [None, None, 3, {"reason": "needs 3 GPUs, more than there are"}]})

    def test_the_end_of_a_test_says_what_it_waited_for_besides_room(self) -> None:
        """Tests that did not run say it too."""
        ran = self.run_list("""
            false #: label=a lock=x,y
            true #: label=b after=a
            wait
            true #: label=c lock=x
        """)
        self.assertEqual({record["label"]: [record.get(key) for key in ("lock", "after", "barrier")]
                          for record in ran.journal("test_end")},
                         {"a": [["x", "y"], None, None], "b": [None, ["a"], None], "c": [["x"], None, 1]})

    def test_each_line_is_there_at_once(self) -> None:
        """A running test finds its start in it, the next one its end; so it is with `failures`."""
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("""
                    until grep -q '"test_start".*"me"' logs/run_tests.jsonl; do :; done; false  #: label=me timeout=60s
                    wait
                    cp logs/run_tests.jsonl seen; grep -qx me logs/failures                     #: label=b
                """, gpus=gpus)
                self.assertEqual([(record["event"], record.get("label")) for record in ran.journal(path="seen")[:3]],
                                 [("run_start", None), ("test_start", "me"), ("test_end", "me")])
                self.check(ran, 1, {"me": "failed", "b": "passed"})
                shutil.rmtree(ran.path("logs"))

    def test_runs_are_appended_behind_a_torn_line(self) -> None:
        before = '{"event": "old"}\n{"event": "test_st'
        self.write("logs/run_tests.jsonl", before)
        self.run_list("true #: label=a\nfalse #: label=b\n")
        ran = self.run_list("# a comment\n\nfalse #: label=c\n", name="other.txt")
        text = ran.read("logs/run_tests.jsonl")
        self.assertTrue(text.startswith(before + '\n{"event": "run_start", '), text)
        records = [json.loads(line) for line in text.splitlines()[2:]]
        self.assertEqual([record["event"] for record in records], [
            "run_start", *["test_start"] * 2, *["test_end"] * 2, "run_end",
            "run_start", "test_start", "test_end", "run_end"])
        self.assertEqual(len({record["run"] for record in records}), 2)
        keys = {record["label"]: record["test"] for record in records if "label" in record}
        self.assertEqual(keys["b"], keys["c"], "a test is known by its command")
        self.assertNotEqual(keys["a"], keys["b"])


WRITE_TWICE = """
import resource, sys, run_tests
record = run_tests.Record(run_tests.Options((), log_dir=sys.argv[1]), "a run")
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
for line in (b"whole\\n", b"torn line\\n", b"no room at all\\n"):
    try:
        record.append(sys.argv[2], line)
        print("written")
    except OSError as error:
        print(error.strerror)
"""


class AppendTest(RecordCase):
    """A file that grows line by line, whatever becomes of its name."""

    def setUp(self) -> None:
        super().setUp()
        self.path = os.path.join(self.folder, "logs", "x.jsonl")
        self.record = self.new_record()

    def read(self) -> str:
        with open(self.path, encoding="ascii") as file:
            return file.read()

    def test_lines_are_there_at_once_behind_a_torn_one(self) -> None:
        for before, after in (("", ""), ("old\n", "old\n"), ("old\ntorn", "old\ntorn\n")):
            with self.subTest(before):
                self.write("logs/x.jsonl", before)
                for number in range(3):
                    self.record.append(self.path, b"%d\n" % number)
                    self.assertEqual(self.read(), after + "0\n1\n2\n"[:2 * number + 2])

    def test_what_a_test_deletes_comes_back(self) -> None:
        self.record.append(self.path, b"one\n")
        shutil.rmtree(os.path.dirname(self.path))
        self.record.append(self.path, b"two\n")
        self.assertEqual(self.read(), "one\ntwo\n")

    def test_a_place_that_is_gone_for_good_raises(self) -> None:
        shutil.rmtree(os.path.dirname(self.path))
        self.write("logs", "a file")
        with self.assertRaises(OSError):
            self.record.append(self.path, b"line\n")

    def test_what_cannot_be_written_is_named(self) -> None:
        self.record.append(self.path, b"")
        full = OSError(28, "No space left on device")
        with mock.patch("os.write", side_effect=full), self.assertRaises(OSError) as caught:
            self.record.append(self.path, b"line\n")
        self.assertEqual(caught.exception.filename, self.path)

    def test_a_line_that_is_written_in_part_raises(self) -> None:
        command = [sys.executable, "-c", WRITE_TWICE, os.path.join(self.folder, "other"), self.path]
        ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        self.assertEqual(ran.stdout.decode().splitlines(), ["written", "No space left on device", "File too large"])
        self.assertEqual(self.read(), "whole\ntorn")

    def test_links_are_followed_only_outside_the_log_dir_and_devices_never(self) -> None:
        other = self.write("other", "theirs\n")
        self.record.append(self.place("link", "other"), b"ours\n")
        for path in (self.place("pipe"), self.place("device", device=True), self.place("link to it", "device"),
                     self.place("logs/link", "../other"), self.folder):
            with self.subTest(path), self.assertRaises(OSError):
                self.record.append(path, b"line\n")
        self.assertEqual(self.kinds("link", "pipe", "device", "link to it", "logs/link"), "lpcll")
        with open(other, encoding="ascii") as file:
            self.assertEqual(file.read(), "theirs\nours\n")


class PlacesTest(RecordCase):
    """Where files are, and that nothing of the user's is harmed there."""

    def test_the_log_dir(self) -> None:
        cases: Dict[str, Tuple[List[str], Dict[str, str]]] = {
            "logs": ([], {"XML_LOG_DIR": "", "FAIL_DIR": ""}),
            "x/logs": ([], {"XML_LOG_DIR": "x/logs"}),
            "o/p q": (["--log-dir", "o/p q"], {"XML_LOG_DIR": "other"}),
        }
        stub = os.path.join(self.stub("python-stub", "#!/bin/bash\necho \"$@\"; exit 9\n"), "python-stub")
        self.write("sub/test_x.py", "")
        for place, (arguments, env) in cases.items():
            with self.subTest(place):
                self.write(f"{place}/failures", "from before\n")
                ran = self.run_list("sub/test_x.py -k y #: label=a\n", "--python", stub, *arguments, env=env)
                self.assertEqual(ran.code, 1, ran.err)
                self.assertEqual(sorted(os.listdir(ran.path(place))),
                                 ["failures", "pytest_a.log", "pytest_a.xml", "run_tests.jsonl"])
                self.assertEqual(ran.read(place, "failures"), "a\n", "it starts fresh")
                start, = ran.journal("test_start", f"{place}/run_tests.jsonl")
                self.assertEqual(start["log"], f"{place}/pytest_a.log")
                junit = os.path.join(os.path.realpath(self.folder), place, "pytest_a.xml")
                self.assertIn(f"--junitxml={junit} ", ran.read(start["log"]))
                self.assertFalse(os.path.exists(ran.path("other")))
        ran = self.run_list("true\n", "--journal", "history.jsonl")
        self.assertEqual([record["event"] for record in ran.journal(path="history.jsonl")],
                         ["run_start", "test_start", "test_end", "run_end"])
        self.assertFalse(os.path.exists(ran.path("logs/failures")), "absent when nothing failed")

    def test_a_given_fail_dir_is_appended_to(self) -> None:
        cases: Dict[str, Tuple[List[str], Dict[str, str]]] = {
            "FAIL_DIR": ([], {"FAIL_DIR": os.path.join(self.folder, "given")}),
            "option over FAIL_DIR": (["--fail-dir", "given"], {"FAIL_DIR": "other"}),
            "the log dir itself": (["--log-dir", "given", "--fail-dir", "given"], {}),
        }
        for name, (arguments, env) in cases.items():
            with self.subTest(name):
                path = self.write("given/failures", "old")
                for text, code in (('false || test_fail "caf\udce9 ☃ \udcff"\n', 1), ("true\n", 0)):
                    ran = self.run_list(text, *arguments, env=env)
                    self.assertEqual((ran.code, ran.read(path)), (code, "old\ncaf\udce9 ☃ \udcff\n"))
                self.assertEqual([os.path.exists(ran.path(name)) for name in ("logs/failures", "other")], [False] * 2)

    def test_a_place_that_cannot_be_is_told_at_the_start(self) -> None:
        """And what is there stays: a file, a folder, a FIFO, a device, a link to one."""
        self.write("file", "a file\n")
        self.write("pom.xml", "<?xml version='1.0'?>\n<project><testsuites/></project>\n")
        self.write("package.json", '{"name": "x"}\n')
        self.write("failing/failures/x", "")
        self.place("pipe")
        self.place("device", device=True)
        self.place("link", "device")
        self.place("logs/run_tests.jsonl", "../file")
        new = ["--log-dir", "new"]
        cases: List[Tuple[List[str], str, str]] = [          # arguments, $XML_LOG_DIR, the place that is named
            (["--log-dir", "file"], "", "file"), ([], "file/logs", "file/logs"), ([], "", "logs/run_tests.jsonl"),
            (["--log-dir", "failing"], "", "failing/failures"), ([*new, "--fail-dir", "file"], "", "file"),
            ([*new, "--fail-dir", "file/fail"], "", "file/fail"), ([*new, "--junit", "file/j.xml"], "", "file")]
        cases += [([*new, "--journal", path], "", path)
                  for path in ("file/j", ".", "pipe", "device", "link", "package.json")]
        cases += [([*new, "--junit", path], "", path)
                  for path in ("new", "pipe", "device", "link", "file", "pom.xml", "/proc/x.xml")]
        for arguments, log_dir, path in cases:
            with self.subTest(arguments):
                ran = self.run_list("touch ran; false\n", *arguments, env={"XML_LOG_DIR": log_dir})
                self.assertEqual((ran.code, ran.out, os.path.exists(ran.path("ran"))), (3, b"", False), ran.err)
                self.assertRegex(ran.err, rf"^run_tests\.py: error: cannot write {path}\S* \([A-Za-z; ]+\); "
                                          r"name a place with --log-dir, --fail-dir, --journal or --junit; ")
                self.assertEqual(self.kinds("file", "pipe", "device", "link", "logs/run_tests.jsonl"), "-pcll")
                self.assertEqual([len(ran.read(name)) for name in ("file", "pom.xml", "package.json")], [7, 55, 14])

    def test_git_ignores_the_folders_that_the_runner_has_made_and_no_others(self) -> None:
        self.write("mine/.gitignore", "my own\n")
        os.mkdir(os.path.join(self.folder, "yours"))
        for folder in ("new/logs", "mine", "yours", "new/logs"):
            ran = self.run_list("true\n", "--log-dir", folder)
        self.assertEqual((ran.read("new/logs/.gitignore"), ran.read("mine/.gitignore")), ("*\n", "my own\n"))
        self.assertFalse(os.path.exists(ran.path("yours/.gitignore")) or os.path.exists(ran.path("new/.gitignore")))

    def test_a_log_dir_is_one_runs_alone(self) -> None:
        """Also one that has come back after a test has taken it away."""
        record = self.new_record()
        with mock.patch.object(run_tests, "LOG_DIR_WAIT_S", 0.1):
            for _ in range(2):
                with self.assertRaisesRegex(run_tests.MachineError, "is writing to .*/logs; give this one a --log-dir"):
                    run_tests.lock_directory(self.folder + "/logs")
                shutil.rmtree(self.folder + "/logs")
                record.restore()
            shutil.rmtree(self.folder + "/logs")
            self.new_record()
            with self.assertRaisesRegex(run_tests.MachineError, "is writing to .*/logs; give this one a --log-dir"):
                record.restore()

    def test_a_summary_beside_the_junit_files_of_tests_is_told(self) -> None:
        self.write("sum.xml", "<testsuites/>")
        for path in ("logs/sum.xml", "logs/in/sum.xml", "sum.xml"):
            with self.subTest(path):
                ran = self.run_list(f"bash -c 'test ! -e $0 && echo \"<testsuites/>\" >logs/own.xml' {path} "
                                    "--junitxml=logs/own.xml\n", "--junit", path)
                self.assertEqual((ran.code, self.kinds(path)), (0, "-"))
                said = f"run_tests.py: --junit {path} is beside the tests' JUnit files: who reads all counts"
                self.assertEqual(ran.err, (said + " tests twice; move it\n") * (path == "logs/sum.xml"))
                suite, = ElementTree.parse(ran.path(path)).getroot()
                self.assertEqual([suite.get(name) for name in ("name", "tests", "errors")], ["run_tests.py", "1", "0"])

    def test_a_run_that_cannot_start_leaves_what_others_have_written(self) -> None:
        for name in ("logs/failures", "sum.xml", "logs/run_tests.jsonl"):
            self.write(name, "a note\n")
        ran = self.run_list("true\n", "--junit", "sum.xml")
        self.assertEqual((ran.code, ran.read("logs/failures"), ran.read("sum.xml")), (3, "a note\n", "a note\n"))

    def test_a_file_that_the_run_writes_besides(self) -> None:
        for option, path in (("--junit", "own/x.xml"), ("--junit", "logs/x.log"), ("--journal", "logs/failures"),
                             ("--journal", "own/x.xml"), ("--junit", "logs/run_tests.jsonl")):
            with self.subTest(option, path=path):
                ran = self.run_list("python3 -m pytest --junitxml=own/x.xml #: label=a\n", option, path)
                self.assertEqual((ran.code, ran.out), (2, b""))
                self.assertEqual(ran.err, f"run_tests.py: error: {path}: the run or a test writes this, too; "
                                          "name another file\n")
        for name in ("logs/failures", "logs/x.log"):
            ran = self.run_list("true #: label=x\n", name=name)
            self.assertEqual((ran.code, ran.err, ran.read(name)), (
                2, f"run_tests.py: error: {os.path.realpath(ran.path(name))}: the run or a test writes this, too; "
                "name another file\n",
                "true #: label=x\n"))


class StandInTest(RecordCase):
    """The JUnit file of a test that left none, or one that cannot be used."""

    def case_of(self, ran: Ran, path: str) -> ElementTree.Element:
        """The one case of a JUnit file, whose counts must fit."""
        with open(ran.path(path), "rb") as file:
            self.assertTrue(file.read().startswith(b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites>"))
        root = ElementTree.parse(ran.path(path)).getroot()
        suite, = root
        case, = suite
        self.assertEqual((root.tag, suite.tag, case.tag), ("testsuites", "testsuite", "testcase"))
        self.assertEqual([suite.get(name) for name in ("tests", "failures", "skipped", "errors")],
                         ["1", *(str(len(case.findall(tag))) for tag in ("failure", "skipped", "error"))])
        self.assertEqual((case.get("classname"), case.get("name"), case.get("time")),
                         ("tests", suite.get("name"), suite.get("time")))
        return case

    def test_it_says_how_the_test_ended(self) -> None:
        told = "<a><testcase><error/></testcase></a>"
        missing, stale, cut = "missing", "stale, from an earlier run", "truncated"
        no_output = "failed, exit 1: exit status 1, without output"
        cases = (        # file and label, what the test does, attributes, how it ends, what is wrong with its file
            ("dead.xml", 'printf "\\033[31mlast words\\n"; kill -ABRT $$', "", "crashed (SIGABRT): killed by SIGABRT",
             missing),
            ("deep/er/x.xml", "exit 3", "", "failed, exit 3: exit status 3, without output", missing),
            ("cut.xml", 'printf "<testsuites><tests" >cut.xml; exit 1', "", no_output, cut),
            ("stale.xml", "exit 1", "", no_output, stale),
            ("own.xml", 'echo "<own/>" >own.xml; exit 1', "", "failed, exit 1, ran none of its cases",
             "without a failure"),
            ("p.xml", "true", "", "", missing),
            ("p_empty.xml", ": >p_empty.xml", "", "", cut),
            ("late.xml", "true", "after=dead.xml", "blocked: waits for dead.xml, which did not pass", ""),
            ("wide.xml", "true", "gpus=3", "unrunnable: needs 3 GPUs, more than there are", ""))
        for name in ("stale", "read", "late", "wide"):
            self.write(name + ".xml", "<testsuites/>")
        text = "".join(f"bash -c '{does}' --junitxml={path} #: label={path} {attributes}\n"
                       for path, does, attributes, _, _ in cases)
        ran = self.run_list(text + "bash -c 'echo \"$TOLD\" >told.xml; exit 1' --junitxml=told.xml\nfalse\n"
                            "bash -c 'echo \"<own/>\" >fine.xml' --junitxml=fine.xml\ntrue --junitxml=read.xml\n"
                            "pytest() { true; }\npytest x.py --junitxml=gone.xml\n", env={"TOLD": told})
        self.assertEqual(ran.code, 1)
        self.assertEqual((ran.read("told.xml"), ran.read("fine.xml")), (told + "\n", "<own/>\n"))
        self.assertEqual(ran.read("read.xml"), "<testsuites/>", "a test that passes may have read it")
        self.assertEqual([name for name in os.listdir(ran.path("logs")) if name.endswith(".xml")], [])
        for path, _, _, how, fault in cases:
            with self.subTest(path):
                case = self.case_of(ran, path)
                said = [element.get("message") for element in case if element.tag in ("failure", "error")]
                self.assertEqual((case.get("name"), said), (path, [how] * bool(how)))
                self.assertIn(f"JUnit file: {fault}\n" * bool(fault), case.findtext("system-out") or "")
                told = f"\nwithout its JUnit file ({fault}): {path}\n"
                self.assertEqual(told in ran.text, not how)
        self.assertIn("gone.xml on GPU 0 [failed, exit 0, its JUnit file is missing",
                      ran.text.replace("GPU 1", "GPU 0"))
        self.assertTrue((self.case_of(ran, "dead.xml").findtext("error") or "").startswith("last words\n"))

    def test_what_cannot_be_read_or_replaced_stops_nothing(self) -> None:
        """An unknown encoding, and in the file's place a folder, a FIFO, a device, of before or by the test."""
        self.write("x.xml", '<?xml version="1.0" encoding="shift_jis"?><testsuites/>')
        self.write("own.txt", "a list\n")
        self.place("pipe.xml")
        self.place("device.xml", device=True)
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("""
                    bash -c 'cp x.xml new.xml' --junitxml=new.xml            #: label=a
                    bash -c 'mkdir -p folder.xml' --junitxml=folder.xml      #: label=b
                    bash -c 'rm -f late.xml; mkfifo late.xml' --junitxml=late.xml  #: label=c
                    false --junitxml=pipe.xml                                #: label=d
                    false --junitxml=device.xml                              #: label=e
                    true --junitxml=own.txt                                  #: label=f
                """, "--log-dir", f"logs{gpus}", gpus=gpus)
                outcomes = [end["outcome"] for end in ran.journal("test_end", f"logs{gpus}/run_tests.jsonl")]
                self.assertEqual((ran.code, sorted(outcomes)), (1, ["failed"] * 2 + ["passed"] * 4), ran.text)
                for line in ran.err.splitlines():
                    self.assertRegex(line, r"^run_tests.py: cannot write .*(folder|late|own)\.\w+ \(.*\); .* file$|"
                                           r"^tests.txt:\d: [abcf] passed: without its JUnit file \(")
                self.assertEqual(self.kinds("folder.xml", "late.xml", "pipe.xml", "device.xml"), "dppc")
                self.assertEqual(ran.read("own.txt"), "a list\n")

    def test_any_log_fits_into_it(self) -> None:
        size = run_tests.TAIL_BYTES
        cases: Sequence[Tuple[bytes, str]] = (           # the log, and what of it is there
            (b"", ""), (b"one\ntwo\n", "one\ntwo\n"), (b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n", "red \n"),
            (b"A\0\1B\x7f\tC \377\303\n", "A??B\x7f\tC \ufffd\ufffd\n"),
            (b"]]> & <b a=\"c\"> ' &amp; <!-- -->\n", "]]> & <b a=\"c\"> ' &amp; <!-- -->\n"),
            ("\U0001f680 \ufffe\uffff\ud7ff\n".encode(), "\U0001f680 ??\ud7ff\n"),
            (b"first\n" + b"x" * 100_000 + b"\nlast", "x" * (size - 5) + "\nlast"),
            ("é".encode() * 10_000 + b".", "\ufffd" + "é" * (size // 2 - 1) + "."))
        path = os.path.join(self.folder, "x.xml")
        test = a_test(junit=path, label='a <b> & "c" \udcff\x01☃', stem="x")
        result = Result(test, Outcome.CRASHED, 1.5, -9, junit_fault="missing")
        record = self.new_record()
        log = record.log_path(test)
        for text, expected in cases:
            with self.subTest(text[:40]):
                with open(log, "wb") as file:
                    file.write(text)
                record.stand_in(path, result)
                case = self.case_of(Ran(0, b"", "", self.folder), "x.xml")
                self.assertEqual((case.findtext("error"), case.get("name")), (expected, 'a <b> & "c" ??☃'))
        self.assertEqual(sorted(os.listdir(self.folder)), ["logs", "x.xml"])
        self.assertEqual([run_tests.tail_of(path) for path in (self.folder, self.place("pipe"), "none")], [""] * 3)

    def test_a_file_is_written_whole_or_not_at_all(self) -> None:
        os.makedirs(os.path.join(self.folder, "folder.xml"))
        self.write("other", "theirs")
        for path in (self.write("file", "") + "/x.xml", self.folder + "/folder.xml", self.place("pipe.xml"),
                     self.place("device.xml", device=True)):
            with self.subTest(path), self.assertRaises(OSError):
                run_tests.write_xml(path, ElementTree.Element("testsuites"))
        with self.assertRaises(OSError):
            run_tests.write_xml(self.place("link.xml", "other"), ElementTree.Element("testsuites"))
        run_tests.write_xml(os.path.join(self.folder, "link.xml"), ElementTree.Element("testsuites"), is_ours=True)
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["device.xml", "file", "folder.xml", "link.xml", "other", "pipe.xml"])
        self.assertEqual(self.kinds("folder.xml", "pipe.xml", "device.xml", "link.xml", "other"), "dpc--")
        self.assertEqual(os.path.getsize(os.path.join(self.folder, "other")), 6)


class FixedTest(RecordCase):
    """A JUnit file whose complete cases are kept, and the one that says how the test ended."""

    def setUp(self) -> None:
        super().setUp()
        self.record = self.new_record()

    def fixed(self, text: Optional[str], **values: Any) -> ElementTree.Element:
        """What comes in place of a file; it has been written and read once."""
        path = self.write("x.xml", text or "")
        if text is None:
            os.unlink(path)
        values = {"outcome": Outcome.CRASHED, "seconds": 1.5, "status": -9, **values}
        self.record.stand_in(path, Result(a_test(label="x.py", junit=path), **values))
        return ElementTree.parse(path).getroot()

    def names(self, root: ElementTree.Element) -> List[str]:
        return [case.get("name", "") for case in root.iter("testcase")]

    def test_complete_cases_are_kept_as_they_are(self) -> None:
        case = '<testcase name="{0}" classname="t" time="0.5">{1}</testcase>'.format
        kept = [case("a", ""), case("b", "<failure message='x'>text</failure>"), case("c", "<error/>"),
                case("d", '<skipped type="pytest.skip"/>'), case("e", "<system-out>&lt;&#233;</system-out>")]
        whole = "<testsuites><testsuite name='s'>" + "".join(kept) + "</testsuite></testsuites>"
        texts = {"whole": whole, "cut between cases": whole[:-25], "cut within a case": whole[:-25] + kept[0][:-5],
                 "two suites": "<testsuites><testsuite>" + kept[0] + kept[1] + "</testsuite><testsuite>" + kept[2]
                               + kept[3] + kept[4] + "</testsuite></testsuites>",
                 "in an encoding of its own": '<?xml version="1.0" encoding="latin-1"?>' + whole,
                 "in a namespace": whole.replace("<testsuites>", '<testsuites xmlns="http://junit.org">'),
                 "with what pytest writes for the test in which it was ended": whole[:-25] + '<testcase time="0.0"/>'}
        for name, text in texts.items():
            with self.subTest(name):
                root = self.fixed(text, junit_fault="truncated")
                self.assertEqual(self.names(root), ["a", "b", "c", "d", "e", "x.py"])
                suite, = root
                self.assertEqual([suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")],
                                 ["6", "1", "2", "1", "1.500"])
                for element, own in zip(suite, kept):
                    self.assertEqual(ElementTree.tostring(element), ElementTree.tostring(ElementTree.fromstring(own)))

    def test_what_is_of_no_use_is_not_kept(self) -> None:
        whole = "<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>"
        for text, fault in ((whole, "stale, from an earlier run"), (None, ""), (whole, "missing"), ("x\n", "truncated"),
                            ("", "truncated"), ("<testsuites/>", "without a failure"),
                            ('<?xml version="1.0" encoding="none"?>' + whole, "unreadable")):
            with self.subTest(fault, text=text):
                self.assertEqual(self.names(self.fixed(text, junit_fault=fault)), ["x.py"])
        self.assertEqual(self.names(self.fixed(whole, outcome=Outcome.BLOCKED, status=None)), ["x.py"])

    def test_a_large_one_is_kept_aside(self) -> None:
        text = "<testsuites><testsuite><testcase name='a'/>"
        with mock.patch.object(run_tests, "JUNIT_BYTES", len(text) - 1):
            self.assertEqual(self.names(self.fixed(text, junit_fault="truncated")), ["x.py"])
        with open(os.path.join(self.folder, "x.xml.torn"), encoding="ascii") as file:
            self.assertEqual(file.read(), text)


class SummaryCaseTest(RecordCase):
    """A test in the summary of the run (`--junit`), its attempts as surefire has them."""

    def setUp(self) -> None:
        super().setUp()
        self.record = self.new_record()

    def case_of(self, words: str, label: str = "x.py", tail: str = "", **values: Any) -> ElementTree.Element:
        """The case of a test whose attempts had these outcomes; each log tells its number."""
        statuses = {"passed": 0, "flaky": 0, "failed": 3, "crashed": -11, "timeout": -15, "interrupted": -2}
        test, outcomes = a_test(label=label, stem="x", file="qa/L0.a/tests.txt"), words.split(",")
        results = []
        for number, word in enumerate(outcomes, 1):
            results.append(Result(test, Outcome(word), 2.0, statuses.get(word), attempt=number, **values))
            name = "x.log" if number == len(outcomes) else f"x.attempt{number}.log"
            self.write(f"logs/{name}", f"log {number}{tail}")
        path = os.path.join(self.folder, "sum.xml")
        run_tests.write_xml(path, run_tests.junit_of("all", 9.0, [run_tests.case_of(results, self.record)]))
        return next(ElementTree.parse(path).getroot().iter("testcase"))

    def test_attempts_as_surefire_has_them(self) -> None:
        cases = {
            "passed": "", "failed": "failure", "crashed": "error", "timeout": "error", "blocked": "error",
            "unrunnable": "error", "interrupted": "error", "not run": "error", "deferred": "skipped",
            "skipped": "skipped", "failed as known": "skipped",
            "failed,flaky": "flakyFailure", "crashed,flaky": "flakyError", "timeout,flaky": "flakyError",
            "failed,crashed,failed,flaky": "flakyFailure flakyFailure flakyError",
            "failed,failed": "failure rerunFailure", "failed,crashed,failed": "failure rerunFailure rerunError",
            "timeout,failed": "rerunFailure error", "failed,interrupted": "failure rerunError",
            "failed,passed": "",         # the first was the GPU's fault
        }
        for words, tags in cases.items():
            with self.subTest(words):
                case = self.case_of(words)
                *parts, said = case
                if words in ("blocked", "unrunnable", "not run", "deferred", "skipped", "failed as known"):
                    parts.append(said)
                else:
                    self.assertRegex(said.text or "", r"^\nplace: CPU\nattempt: \d\ncause: none\nJUnit file: none\n"
                                                      r"\[\[ATTACHMENT\|/.*/logs/x\.log\]\]\n$")
                self.assertEqual(" ".join(element.tag for element in parts), tags)
                self.assertEqual(case.attrib, {"name": "x.py", "classname": "qa/L0_a/tests", "time": "2.000"})
                for element in parts:
                    if element.tag in ("failure", "error"):
                        log = "" if words in ("blocked", "unrunnable", "not run") else "log 1"
                        self.assertEqual((element.text or "", list(element)), (log, []))
                    elif element.tag != "skipped":
                        self.assertEqual([child.tag for child in element], ["stackTrace"])
                        self.assertRegex(element.findtext("stackTrace") or "", r"^log \d$")

    def test_a_flaky_test_that_fails_the_run_is_a_failure(self) -> None:
        self.record.options = self.record.options._replace(flaky="fail")
        self.assertEqual([part.tag for part in self.case_of("failed,crashed,flaky")],
                         ["failure", "rerunError", "system-out"])
        self.assertEqual([part.tag for part in self.case_of("flaky")], ["error", "system-out"])    # for its own file

    def test_a_message_has_verdict_cause_and_reason(self) -> None:
        cases = [("failed", "CUDA out of memory", "", "failed, exit 3: CUDA out of memory"),
                 ("timeout", "timeout", "did not end in 5s", "timeout: did not end in 5s"),
                 ("blocked", "", "waits for y", "blocked: waits for y"),
                 ("crashed", "", "", "crashed (SIGSEGV)")]
        for word, cause, reason, message in cases:
            with self.subTest(word):
                element = self.case_of(word, cause=Cause(cause), reason=reason)[0]
                self.assertEqual((element.get("message"), element.get("type")), (message, word))

    def test_any_label_and_any_log_fit_into_it(self) -> None:
        case = self.case_of("failed,crashed", label='a <b> & "c" ]]> x\udcff\x01y ☃', tail="\0\x1b[1m ]]> \udcff")
        self.assertEqual((case.get("name"), case.findtext("failure")), ('a <b> & "c" ]]> x??y ☃', "log 1? ]]> \ufffd"))


# What the schemas of Maven's surefire and of Jenkins's xunit plugin allow: attributes, and children in their order.
CASE_PARTS = "(failure )*(rerunFailure )*(flakyFailure )*(skipped )?(error )?(rerunError )*(flakyError )*(system-out )?"
ALLOWED = {
    "testsuites": ("name time tests failures errors", "(testsuite )*"),
    "testsuite": ("name tests failures errors group time skipped timestamp hostname", "(properties )?(testcase )*"),
    "testcase": ("name time classname group", CASE_PARTS), "properties": ("", "(property )*"),
    "property": ("name value", ""), "failure": ("type message", ""), "error": ("type message", ""),
    "skipped": ("type message", ""), "system-out": ("", ""), "stackTrace": ("", ""),
    **dict.fromkeys("rerunFailure flakyFailure rerunError flakyError".split(),
                    ("type message", "stackTrace (system-out )?")),
}


class SchemaTest(RunnerCase):
    def test_a_summary_is_as_maven_and_jenkins_have_it(self) -> None:
        text = ("true\nfalse\n[ $RUN_TESTS_ATTEMPT = 2 ] #: label=flaky\nkill -9 $$ #: label=killed\n"
                "true #: gpus=9 label=wide\n[ $RUN_TESTS_ATTEMPT = 1 ] && kill -9 $$; false #: label=both\n")
        self.run_list(text, "--junit", "sum.xml", "--retries", "1", "--max-gpus", "2")
        root = ElementTree.parse(os.path.join(self.folder, "sum.xml")).getroot()
        for element in root.iter():
            attributes, children = ALLOWED[element.tag]
            self.assertLessEqual(set(element.attrib), set(attributes.split()))
            self.assertRegex("".join(child.tag + " " for child in element), f"^{children}$")
        suite = root[0]
        self.assertRegex(suite.get("timestamp") or "", r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$")
        self.assertEqual([suite.get(name) for name in ("tests", "failures", "errors", "skipped")], ["6", "1", "2", "1"])


if __name__ == "__main__":
    unittest.main()
