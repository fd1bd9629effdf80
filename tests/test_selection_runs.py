"""Selection, order, deferral, shards, plans, locks and needs, through the real command line."""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import unittest
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Tuple

import run_tests
from run_tests import Options, Test
from tests.support import Ran
from tests.test_command_line import FOUR, TWO, WAIT_S, CommandLineCase, read_line
from tests.test_select import end

EIGHT = "0,1,2,3,4,5,6,7"


class SelectionCase(CommandLineCase):
    """A CommandLineCase that looks at the last run of a journal that several share."""

    def last_run(self, ran: Ran, path: str = "logs/run_tests.jsonl") -> List[Dict[str, Any]]:
        """The events of the run that came last."""
        events = []
        for line in ran.read(path).split("\n"):
            with contextlib.suppress(ValueError):        # what tests have put there to be passed over
                events.append(json.loads(line))
        return [record for record in events if isinstance(record, dict) and record.get("run") == events[-1]["run"]]

    def last_outcomes(self, ran: Ran) -> Dict[str, str]:
        """Label to outcome in the run that came last."""
        return {event["label"]: event["outcome"] for event in self.last_run(ran) if event["event"] == "test_end"}

    def started(self, ran: Ran) -> List[str]:
        """Labels in the order in which the last run started them."""
        return [record["label"] for record in self.last_run(ran) if record["event"] == "test_start"]

    def check_mistake(self, ran: Ran, pattern: str) -> None:
        """Exit code 2, a message, and nothing started."""
        self.assertEqual((ran.code, ran.out), (2, b""), ran.err)
        self.assertRegex(ran.err.splitlines()[-1], pattern)
        self.assertNotIn("Traceback", ran.err)
        self.assertFalse(os.path.exists(ran.path("logs")))


# What runs.

class RerunFailed(SelectionCase):
    """`--rerun-failed`: a list's tests that have not passed in their last run."""

    FAULTS = ("true                                   #: label=passes\n"
              "test -e fixed                          #: label=fails\n"
              "test -e fixed || kill -KILL $$         #: label=crashes\n"
              "test -e fixed || sleep 1000            #: label=hangs timeout={}\n"
              "touch blocked                          #: label=blocked after=fails\n"
              "true                                   #: label='passes too'\n")

    def test_a_chain_of_runs(self) -> None:
        everything = {"passes": "passed", "fails": "failed", "crashes": "crashed", "hangs": "timeout",
                      "blocked": "blocked", "passes too": "passed"}
        self.check(self.run_list(self.FAULTS.format("0.1s")), 1, everything)
        owing = {label: outcome for label, outcome in everything.items() if outcome != "passed"}
        ran = self.run_list(self.FAULTS.format("0.1s"), "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, owing))
        self.assertIn("\nSelected 4 of 6 tests (66.7 %); left out 2 by --rerun-failed\n", ran.text)
        self.write("fixed", "")
        ran = self.run_list(self.FAULTS.format("10m"), "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, dict.fromkeys(owing, "passed")))
        ran = self.run_list(self.FAULTS.format("10m"), "--rerun-failed")
        self.assertEqual((ran.code, ran.out, ran.err), (5, b"", "run_tests.py: nothing to run: Selected 0 of 6 tests "
                                                                "(0.0 %); left out 6 by --rerun-failed\n"))

    def test_a_flaky_test_has_passed(self) -> None:
        text = "test -e tried || { touch tried; false; } #: label=flaky retries=1\nfalse #: label=fails retries=1\n"
        self.assertEqual(self.run_list(text).code, 1)
        ran = self.run_list(text, "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"fails": "failed"}))

    def test_one_gpu_too(self) -> None:
        text = "true #: label=a\ntest -e fixed #: label=b\ntest -e fixed #: label=c\n"
        self.check(self.run_list(text, gpus="0"), 1, {"a": "passed", "b": "failed", "c": "failed"})
        self.write("fixed", "")
        ran = self.run_list(text, "--rerun-failed", gpus="0")
        self.assertEqual((ran.code, self.started(ran)), (0, ["b", "c"]))
        self.assertEqual(ran.text, "Selected 2 of 3 tests (66.7 %); left out 1 by --rerun-failed\nAll tests passed\n")

    def kill_a_run(self) -> None:
        """A runner is killed while one test runs, one has ended and two wait; the test that runs ends later."""
        up, hold = self.fifo("up"), self.fifo("hold")
        text = ("true done                                       #: label=done\n"
                "until grep -q '\"test_end\".*\"done\"' logs/run_tests.jsonl; do sleep 0.01; done; "
                "test -e again || { echo up >up; read x <hold; } #: label=held\n"
                "wait\ntrue                                      #: label=waits\n"
                "false                                           #: label=too gpus=2\n")
        process = self.begin(text)
        self.assertEqual(up.line(), "up")
        process.kill()
        process.wait()
        hold.send()
        self.write("again", "")

    def test_a_run_that_was_killed_is_resumed(self) -> None:
        self.kill_a_run()
        ran = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((ran.code, self.last_outcomes(ran)),
                         (1, {"held": "passed", "waits": "passed", "too": "failed"}))
        ran = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"too": "failed"}))

    def test_so_is_one_that_died_within_a_line(self) -> None:
        self.kill_a_run()
        path = os.path.join(self.folder, "logs", "run_tests.jsonl")
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        done = next(number for number, line in enumerate(lines) if '"test_end"' in line)
        lines = lines[:done] + lines[done + 1:] + [lines[done][:-20]]
        self.write("logs/run_tests.jsonl", "\n".join(lines))
        ran = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((ran.code, sorted(self.last_outcomes(ran))), (1, ["done", "held", "too", "waits"]))

    def test_a_run_that_was_interrupted_is_resumed(self) -> None:
        up, hold = self.fifo("up"), self.fifo("hold")
        text = "true a #: label=a\nwait\necho up >up; read x <hold #: label=b\nwait\ntrue #: label=c\n"
        process = self.begin(text)
        self.assertEqual(up.line(), "up")
        process.send_signal(signal.SIGTERM)
        self.check(self.end(process), 143, {"a": "passed", "b": "interrupted", "c": "not run"})
        hold.send()
        ran = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"b": "passed", "c": "passed"}))

    def test_what_k_leaves_out_stays_owed(self) -> None:
        text = "false #: label=a1\ntest -e fixed #: label=b1\ntrue #: label=b2\n"
        self.check(self.run_list(text), 1, {"a1": "failed", "b1": "failed", "b2": "passed"})
        self.write("fixed", "")
        ran = self.run_list(text, "-k", "b")
        self.assertEqual((ran.code, sorted(self.last_outcomes(ran))), (0, ["b1", "b2"]))
        ran = self.run_list(text, "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"a1": "failed"}))

    def test_new_and_edited_lines_run_too(self) -> None:
        self.check(self.run_list("true #: label=a\ntrue b #: label=b\n"), 0, {"a": "passed", "b": "passed"})
        ran = self.run_list("true c #: label=c\ntrue #: label=renamed\ntrue edited #: label=b\n", "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"c": "passed", "renamed": "passed", "b": "passed"}))

    def test_equal_commands_under_other_state_are_other_tests(self) -> None:
        first = "export A=1\ntest $A -gt 0 || test_fail one\n"
        self.check(self.run_list(first), 0, {"one": "passed"})
        ran = self.run_list(first + "export A=2\ntest $A -gt 0 || test_fail two\n", "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"two": "passed"}))

    def test_a_list_that_never_ran_runs_whole(self) -> None:
        self.check(self.run_list("true\n", name="other.txt"), 0, {"true": "passed"})
        ran = self.run_list("true\ntrue too\n", "--rerun-failed")
        self.assertEqual((ran.code, sorted(self.last_outcomes(ran))), (0, ["true", "true too"]))
        self.assertEqual(ran.err, "run_tests.py: --rerun-failed: logs/run_tests.jsonl has no run of this list; "
                                  "all of it runs\n")

    def test_a_journal_elsewhere(self) -> None:
        self.run_list("false\ntrue\n", "--journal", "j.jsonl", "--log-dir", "first")
        ran = self.run_list("false\ntrue\n", "--journal", "j.jsonl", "--rerun-failed", "--log-dir", "second")
        self.assertEqual((ran.code, sorted(os.listdir(ran.path("second")))), (1, ["failures", "false.log"]))

    def test_what_another_machine_ran_is_not_what_failed_here(self) -> None:
        self.run_list("false\ntrue\n", "--journal", "other.jsonl")
        ran = self.run_list("false\ntrue\n", "--history", "other.jsonl", "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"false": "failed", "true": "passed"}))


class Keep(SelectionCase):
    """`-k EXPR`."""

    TEXT = "true a #: label=unit/fp8.py tags=slow,h100\ntrue b #: label='unit/fp4.py -k x'\n#: tags=slow\ntrue c\n"

    def test_labels_and_tags(self) -> None:
        for text, expected in (("fp", "unit/fp8.py|unit/fp4.py -k x"), ("slow and not H100", "true c"),
                               ("'true c' or FP8", "unit/fp8.py|true c"), ("'-k x'", "unit/fp4.py -k x"),
                               ("not (fp8 or (slow and c))", "unit/fp4.py -k x")):
            with self.subTest(text):
                ran = self.run_list(self.TEXT, "-k", text, "--list")
                self.assertEqual((ran.code, "|".join(line.split("\t")[0] for line in ran.text.splitlines())),
                                 (0, expected), ran.err)

    def test_a_run(self) -> None:
        ran = self.run_list(self.TEXT, "-k", "slow", "--output", "none")
        self.check(ran, 0, {"unit/fp8.py": "passed", "true c": "passed"})
        self.assertIn("\nSelected 2 of 3 tests (66.7 %); left out 1 by -k\nAll tests passed\n", ran.text)

    def test_nothing_is_left(self) -> None:
        for arguments in ([], ["--list"], ["--plan"], ["--shard", "1/2"]):
            with self.subTest(arguments):
                ran = self.run_list(self.TEXT, "-k", "fp16", *arguments)
                self.assertEqual((ran.code, ran.out), (5, b""))
                self.assertRegex(ran.err, r"^run_tests.py: nothing to run: Selected 0 of 3 tests \(0.0 %\); "
                                          r"left out 3 by -k(, 0 by --shard 1/2 \(plan \w+\))?\n$")

    def test_a_bad_one_is_a_mistake(self) -> None:
        for text in ("a b", "a and", "(a", "a (b)", "", "'a", "not", "a == b", "__import__('os').system('touch ran')"):
            with self.subTest(text):
                ran = self.run_list("touch ran\n", "-k", text)
                self.check_mistake(ran, r"^run_tests.py: error: argument -k: .* is not names joined by and, or, not")
                self.assertFalse(os.path.exists(ran.path("ran")))

    def test_a_monster_is_a_mistake_or_none(self) -> None:
        for text in ("(" * 10_000 + "a" + ")" * 10_000, "not " * 900 + "a", "not " * 10_000 + "a",
                     "a or (b and " * 1000 + "c" + ")" * 1000, " or ".join("ab" * 5000)):
            with self.subTest(text[:12], size=len(text)):
                ran = self.run_list("true a\n", "-k", text, "--list")
                self.assertIn(ran.code, (0, 2), ran.err[-300:])
                self.assertNotIn("Traceback", ran.err)


# In which order.

class OrderOfStarts(SelectionCase):
    """`--order` and `--history`. Each test takes both GPUs: they start one by one."""

    TEXT = "#: gpus=2\ntrue a #: label=a {}\ntrue b #: label=b {}\ntrue c #: label=c {}\ntrue d #: label=d {}\n"

    def order(self, *arguments: str, text: str = "", gpus: str = TWO) -> str:
        ran = self.run_list(text or self.TEXT.format(*[""] * 4), *arguments, gpus=gpus)
        self.assertEqual(ran.code, 0, ran.text + ran.err)
        return "".join(self.started(ran))

    def history(self, path: str, **seconds: float) -> None:
        """A journal in which the tests took these seconds."""
        keys = {label: run_tests.key_of(["true", label]) for label in "abcd"}
        records = [end(keys[label], value, run="other") for label, value in seconds.items()]
        self.write(path, "".join(json.dumps(record) + "\n" for record in records))

    def test_time_is_the_estimate_before_any_history(self) -> None:
        text = self.TEXT.format("time=2s", "time=1m", "time=1s", "time=1h")
        self.assertEqual(self.order(text=text), "dbac")
        self.history("logs/run_tests.jsonl", c=90, d=0.5)
        self.assertEqual(self.order(text=text), "cbad")

    def test_the_longest_of_history_first(self) -> None:
        self.history("logs/run_tests.jsonl", a=2, b=1, c=4, d=3)
        self.assertEqual(self.order(), "cdab")

    def test_what_nobody_knows_is_first(self) -> None:
        self.history("logs/run_tests.jsonl", a=2, b=100)
        self.assertEqual(self.order(), "cdba")

    def test_histories_of_other_machines(self) -> None:
        self.history("one.jsonl", a=2, b=1)
        self.history("sub/two.jsonl", c=4, d=3)
        files = [os.path.join(self.folder, name) for name in ("one.jsonl", "sub/two.jsonl")]
        before = []
        for name in files:
            os.chmod(name, 0o444)
            with open(name, "rb") as file:
                before.append(file.read())
        self.assertEqual(self.order("--history", "one.jsonl", "--history", "sub/two.jsonl"), "cdab")
        for name, data in zip(files, before):
            with open(name, "rb") as file:
                self.assertEqual(file.read(), data)

    def test_a_history_from_a_pipe(self) -> None:
        """As `--history <(zcat old.jsonl.gz)` has it."""
        self.history("one.jsonl", a=2, b=1, c=4, d=3)
        self.write("tests.txt", self.TEXT.format(*[""] * 4))
        with open(os.path.join(self.folder, "one.jsonl"), "rb") as file:
            ran = self.run_command("--history", "/dev/stdin", "tests.txt", stdin=file.read())
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertEqual("".join(self.started(ran)), "cdab")

    def test_a_history_that_is_not_there(self) -> None:
        for arguments in ([], ["--list"], ["--plan"]):
            with self.subTest(arguments):
                self.check_mistake(self.run_list("true\n", "--history", "none.jsonl", *arguments),
                                   r"^run_tests.py: error: --history none.jsonl: cannot be read \(No such file or "
                                   r"directory\); name a journal$")

    def test_failures_and_foreign_lines_change_nothing(self) -> None:
        keys = {label: run_tests.key_of(["true", label]) for label in "abcd"}
        lines = [json.dumps(end(keys["a"], 1000, outcome="timeout")), "{", "[]", "null", '{"event": "test_end"}', "\0",
                 *(json.dumps(end(keys[label], seconds)) for seconds, label in enumerate("cadb")),
                 json.dumps(end(keys["c"], -5)), json.dumps(end(keys["c"], float("nan"))), '{"event": "test_e']
        self.write("logs/run_tests.jsonl", "\n".join(lines))
        self.assertEqual(self.order(), "bdac")

    def test_widest_first(self) -> None:
        ran = self.run_list("#: time=1s\ntrue a #: label=a\ntrue b #: label=b\ntrue c #: label=c gpus=2\n")
        self.assertEqual((ran.code, self.started(ran)[0]), (0, "c"))

    def test_file(self) -> None:
        self.history("logs/run_tests.jsonl", a=2, b=1, c=4, d=3)
        self.assertEqual(self.order("--order", "file"), "abcd")

    def test_failed_first(self) -> None:
        text = ("#: gpus=2\ntest -e fixed #: label=a time=1s\ntrue b #: label=b time=2s\n"
                "test -e fixed -a c #: label=c time=3s\ntrue d #: label=d time=4s\n")
        self.assertEqual(self.run_list(text).code, 1)
        self.write("fixed", "")
        order = self.order("--order", "failed-first", text=text)
        self.assertEqual((set(order[:2]), set(order[2:])), ({"a", "c"}, {"b", "d"}))

    def test_one_gpu_keeps_the_order_of_the_list(self) -> None:
        self.history("logs/run_tests.jsonl", a=2, b=1, c=4, d=3)
        text = self.TEXT.format(*[""] * 4).replace("gpus=2", "gpus=1")
        self.assertEqual(self.order(text=text, gpus="0"), "abcd")
        self.assertEqual(self.order("--order", "auto", text=text, gpus="0"), "abcd")

    def test_bad_values(self) -> None:
        self.check_mistake(self.run_list("true\n", "--order", "random"), r"--order: invalid choice: 'random'")


# Parts.

class Shards(SelectionCase):
    """`--shard K/N|auto`."""

    TEXT = "".join(f"true {number} #: label=t{number} time={number * number + 1}s gpus={1 + number % 2}\n"
                   for number in range(12)) + "true x #: label=x after=t0,t11\n"

    def part(self, shard: str, *arguments: str, seed: int = 0, env: Mapping[str, str] = {}) -> List[str]:  # noqa: B006
        """The labels of a shard."""
        ran = self.run_list(self.TEXT, "--shard", shard, "--list", *arguments, env={"PYTHONHASHSEED": str(seed), **env})
        self.assertEqual(ran.code, 0)
        self.assertRegex(ran.err, r"^run_tests\.py: Selected \d+ of \d+ tests .*\n$|^$")
        return [line.split("\t")[0] for line in ran.text.splitlines()]

    def test_they_are_a_partition_whatever_the_hash_seed(self) -> None:
        self.write("logs/run_tests.jsonl", "".join(
            json.dumps(end(run_tests.key_of(["true", str(number)]), 50.0 - number)) + "\n" for number in range(6)))
        parts = [self.part(f"{number}/3", seed=number) for number in (1, 2, 3)]
        self.assertEqual(parts, [self.part(f"{number}/3", seed=number + 7) for number in (1, 2, 3)])
        everything = [*(f"t{number}" for number in range(12)), "x"]
        self.assertEqual(sorted(label for part in parts for label in part), sorted(everything))
        for part in parts:
            self.assertEqual(part, [label for label in everything if label in part])
            self.assertIn(len({"t0", "t11", "x"}.intersection(part)), (0, 3))

    def test_the_deferred_ones_are_shared_out_too(self) -> None:
        deferred: List[str] = []
        for number in (1, 2, 3):
            self.clean()
            ran = self.run_list(self.TEXT, "--shard", f"{number}/3", "--max-gpus", "1", gpus=TWO)
            self.assertEqual(ran.code, 0)
            mine = [label for label, outcome in ran.outcomes().items() if outcome == "deferred"]
            self.assertGreaterEqual(len(mine), 1)
            self.assertEqual(len(re.findall("^true", ran.read("logs/deferred.txt"), re.M)), len(mine))
            deferred += mine
        self.assertEqual(sorted(deferred), sorted([*(f"t{number}" for number in range(1, 12, 2)), "x"]))

    def test_a_run_says_what_it_is_part_of(self) -> None:
        ran = self.run_list("true a\ntrue b\ntrue c\n", "--shard", "2/3")
        self.check(ran, 0, {"true b": "passed"})
        self.assertRegex(ran.text, r"\nSelected 1 of 3 tests \(33.3 %\); left out 2 by --shard 2/3 \(plan [0-9a-f]{6}\)"
                                   r"\nAll tests passed\n$")
        start = ran.journal("run_start")[0]
        self.assertEqual((start["shard"], len(start["selected"]), len(start["left_out"])), ("2/3", 1, 2))

    def test_an_empty_one_is_no_mistake(self) -> None:
        for arguments in ([], ["--list"], ["--plan"]):
            with self.subTest(arguments):
                ran = self.run_list("true\n", "--shard", "3/5", *arguments)
                self.assertEqual((ran.code, ran.err), (0, ""))
                self.assertRegex(ran.text, r"^Shard 3/5 is empty: Selected 0 of 1 tests \(0.0 %\); "
                                           r"left out 1 by --shard 3/5 \(plan [0-9a-f]{6}\)\n$")

    def test_bad_values(self) -> None:
        for text in ("0/4", "5/4", "1/0", "1", "x", "1/4/5", ""):
            with self.subTest(text):
                self.check_mistake(self.run_list("true\n", "--shard", text), rf"--shard: '{text}' is not K/N, K from 1")

    def test_auto(self) -> None:
        gitlab = {"GITLAB_CI": "true", "CI_NODE_TOTAL": "3"}
        for env, shard in (({**gitlab, "CI_NODE_INDEX": "1"}, "1/3"), ({**gitlab, "CI_NODE_INDEX": "3"}, "3/3"),
                           ({"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "2"}, "1/2"),
                           ({"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_STEP": "4",
                             "SLURM_ARRAY_TASK_COUNT": "3"}, "2/3")):
            with self.subTest(env):
                self.assertEqual(self.part("auto", env=env), self.part(shard))

    def test_a_journal_that_single_shards_have_written_is_told(self) -> None:
        """Each shard's own journal would cut the list elsewhere."""
        self.assertEqual(self.run_list("true a\ntrue b\n", "--shard", "1/2").err, "")
        self.assertIn("overlap or miss tests", self.run_list("true a\ntrue b\n", "--shard", "1/2").err)
        self.clean()
        self.run_list("true a\ntrue b\n")
        self.assertEqual(self.run_list("true a\ntrue b\n", "--shard", "1/2").err, "", "a whole run is no shard's")

    def test_auto_without_a_ci_runs_all(self) -> None:
        ran = self.run_list("true a\ntrue b\n", "--shard", "auto", env={"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "2"})
        self.check(ran, 0, {"true a": "passed", "true b": "passed"})
        self.assertEqual(ran.err, "run_tests.py: --shard auto: no CI says which shard this is; all tests run\n")

    def test_auto_with_values_that_cannot_be(self) -> None:
        env = {"GITLAB_CI": "true", "CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}
        self.check_mistake(self.run_list("true\n", "--shard", "auto", env=env),
                           r"error: --shard auto: CI_NODE_INDEX=0 is not one of CI_NODE_TOTAL=3; write --shard K/N")

    def test_a_shard_is_resumed_with_its_own_tests(self) -> None:
        """What it has learned meanwhile would cut it elsewhere."""
        text = ("test -e fixed #: label=a time=40s\ntest -e fixed b #: label=b time=30s\n"
                "test -e fixed -a c #: label=c time=20s\ntest -e fixed -a d #: label=d time=10s\n")
        ran = self.run_list(text, "--shard", "1/2")
        self.check(ran, 1, {"a": "failed", "d": "failed"})
        self.write("fixed", "")
        for label in "ad":
            key = next(record["test"] for record in ran.journal("test_end") if record["label"] == label)
            with open(ran.path("logs/run_tests.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps(end(key, {"a": 1.0, "d": 500.0}[label], run="elsewhere")) + "\n")
        ran = self.run_list(text, "--shard", "1/2", "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"a": "passed", "d": "passed"}))


# Deferral.

TELL = 'echo "$RUN_TESTS_LABEL|$0|$PWD|${A-unset}|${B-unset}|$(umask)|$CUDA_VISIBLE_DEVICES" >>"$OUT"'

DEFERRED_LIST = f"""\
# A list with all that a test can have
export OUT="$PWD/out" A='one two'
{TELL} #: label=narrow
{TELL} #: label='wide one' gpus=4 timeout=90s time=2.5s lock=x,y tags=slow,h100
cd sub
B=set umask 022; umask 027
{TELL} #: label='wide one' gpus=3
wait
{TELL}; : CUDA
CUDA_VISIBLE_DEVICES=0,1,2,3 bash -c '{TELL}' || test_fail "it's $A"
#: gpus=4 tags=nightly time=1h
A="changed" bash -c '{TELL}'
export A=new; unset B
bash -c '{TELL}
'  #: label='two lines' gpus=3
bash -c '{TELL}' \\
  --junitxml=x.xml #: after='narrow,wide one #2'
wait
#:
{TELL} #: label='waits for it' after='two lines'
{TELL} #: label='waits for narrow' after=narrow
true #: label=last
"""


class Deferral(SelectionCase):
    """`--max-gpus N` and the lists that it writes."""

    def test_a_list_in_use_is_not_overwritten(self) -> None:
        self.run_list("true a #: gpus=4\ntrue b #: gpus=8\n", "--max-gpus", "2", gpus=TWO)
        ran = self.run_command("--max-gpus", "4", "logs/deferred.txt", gpus=FOUR)
        self.assertEqual(ran.code, 0)
        self.assertIn("deferred 1 that need more than 4 GPUs: logs/deferred_2.txt\n", ran.text)
        self.assertEqual([[test.label for test in self.parse(f"logs/{name}")] for name in
                          ("deferred.txt", "deferred_2.txt")], [["true a", "true b"], ["true b"]])

    def told(self) -> List[str]:
        """What the tests have told of themselves since the last call; of their masks, only how many GPUs."""
        path = os.path.join(self.folder, "out")
        with open(path, encoding="utf-8") as file:
            lines = [line.rpartition("|") for line in file.read().splitlines()]
        os.unlink(path)
        return sorted(f"{told}{bar}{len(mask.split(','))} GPUs" for told, bar, mask in lines)

    def parse(self, *names: str) -> List[Test]:
        """The tests of lists in this test's folder."""
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        return run_tests.parse_lists(Options(names))

    def test_the_sentence_of_the_account(self) -> None:
        text = "".join(f"true {number} #: label=t{number} gpus={4 if number < 3 else number % 3}\n"
                       for number in range(12))
        ran = self.run_list(text, "--max-gpus", "2")
        self.check(ran, 0, {f"t{number}": "deferred" if number < 3 else "passed" for number in [*range(12)]})
        self.assertEqual(ran.text.splitlines()[-2:], [
            "Selected 9 of 12 tests (75.0 %); deferred 3 that need more than 2 GPUs: logs/deferred.txt",
            "All tests passed"])
        self.assertEqual(ran.failures(), [])
        self.assertIn("\n12 tests in ", ran.text)
        self.assertIn(": 9 passed, 3 deferred\n", ran.text)

    def test_the_list_runs_the_same_tests(self) -> None:
        """Same labels, `$0`, folder, environment, masks and keys as a run of the whole list on a machine that fits."""
        os.mkdir(os.path.join(self.folder, "sub"))
        whole = self.run_list(DEFERRED_LIST, gpus=FOUR)
        self.assertEqual(whole.code, 0, whole.text)
        keys = {record["label"]: record["test"] for record in whole.journal("test_end")}
        everything = self.told()
        self.clean()
        ran = self.run_command("--max-gpus", "2", "tests.txt", gpus=FOUR)
        narrow = self.told()
        deferred = [label for label, outcome in ran.outcomes().items() if outcome == "deferred"]
        self.assertEqual((ran.code, len(deferred), len(narrow)), (0, 7, 3), ran.outcomes())
        ran = self.run_command("--log-dir", "later", "logs/deferred.txt", gpus=FOUR)
        self.assertEqual(ran.code, 0, ran.text + ran.err)
        self.assertEqual(sorted(narrow + self.told()), everything)
        later = {record["label"]: record["test"] for record in ran.journal("test_end", "later/run_tests.jsonl")}
        self.assertEqual(later, {label: keys[label] for label in deferred})
        self.assertTrue(os.path.exists(ran.path("sub/x.xml")))

    def test_the_list_says_the_same_of_each_test(self) -> None:
        os.mkdir(os.path.join(self.folder, "sub"))
        self.assertEqual(self.run_list(DEFERRED_LIST, "--max-gpus", "2", gpus=FOUR).code, 0)
        before = {test.label: test for test in self.parse("tests.txt")}
        after = self.parse("logs/deferred.txt")
        self.assertEqual([test.label for test in after], [label for label in before if before[label].label in
                                                          {test.label for test in after}])
        for test in after:
            old = before[test.label]
            with self.subTest(test.label):
                self.assertEqual((test.key, test.gpus, test.stem, test.timeout, test.command, test.announces),
                                 (old.key, old.gpus, old.stem, old.timeout, old.command, old.announces))
                names = tuple(label for label in old.attributes.after if label != "narrow")
                self.assertEqual(replace(test.attributes, label=None), replace(old.attributes, label=None, after=names))
        barriers = [(before[test.label].barrier, test.barrier) for test in after]
        self.assertEqual(len(set(barriers)), len({new for _, new in barriers}), barriers)
        self.assertEqual(len(set(barriers)), len({old for old, _ in barriers}), barriers)

    def test_any_attribute_survives(self) -> None:
        for said in ("gpus=3", "gpus=999999", "gpus=3 timeout=250ms", "gpus=3 timeout=1.5h", "gpus=3 timeout=0",
                     "gpus=3 time=0.001s", "gpus=3 time=30d", "gpus=3 retries=2", "gpus=3 retries=0",
                     "gpus=3 lock=a", "gpus=3 lock='a b',c tags=\"it's\"",
                     "gpus=3 label='a #2'", "gpus=3 label='\"$HOME\" `x` \\ $(y) #3'", "gpus=3 label=é☃",
                     "gpus=3 label='#: gpus=1'", "gpus=3 label=\"it's\" tags='$A'"):
            with self.subTest(said):
                self.clean()
                self.write("tests.txt", f"true #: {said}\ntrue #: gpus=1\n")
                before, _ = self.parse("tests.txt")
                self.assertEqual(self.run_command("--max-gpus", "2", "tests.txt").code, 0)
                (after,) = self.parse("logs/deferred.txt")
                self.assertEqual((after.label, after.stem, after.gpus, after.timeout, after.key),
                                 (before.label, before.stem, before.gpus, before.timeout, before.key))
                for name in ("timeout", "time", "lock", "tags", "gpus", "retries"):
                    self.assertEqual(getattr(after.attributes, name), getattr(before.attributes, name))

    def test_lines_that_need_care_survive(self) -> None:
        lines = ["true 'a # b' x#y", "echo \"two\nlines\"", "true \\\n  continued", "cat <<<word", "true $'\\x41#'",
                 "for i in 1 2; do true $i; done", "(exit 0) || test_fail \"a label\"", "true é \udcff", "true ;",
                 "true $(echo ')' # comment\n)", "CUDA_VISIBLE_DEVICES=0,1,2 A=1 true", "[[ a == a ]] && ! false",
                 'run_test "A=1 CUDA_VISIBLE_DEVICES=0,1,2" "x.xml" "sub/test_x.py -k y" "its label"']
        self.write("tests.txt", "".join(f"{line}  #: gpus=3\n" for line in lines))
        self.assertEqual(self.run_command("--max-gpus", "1", "tests.txt").code, 5)
        before, after = self.parse("tests.txt"), self.parse("logs/deferred.txt")
        self.assertEqual([test.source for test in after], lines)
        for old, new in zip(before, after):
            self.assertEqual((new.label, new.key, new.command, new.stem, new.gpus, new.junit),
                             (old.label, old.key, old.command, old.stem, old.gpus, old.junit))

    def test_a_number_behind_a_label_survives(self) -> None:
        """Also where the tests that took the numbers before it are not deferred."""
        self.write("tests.txt", "true #: label=x\ntrue b #: label=x gpus=4\ntrue c || test_fail x #: gpus=4\ntrue\n"
                                "true #: gpus=4\nA=y\ntrue d #: label=$A gpus=4\ntrue y\n")
        self.assertEqual(self.run_command("--max-gpus", "2", "tests.txt").code, 0)
        self.assertEqual([(test.label, test.stem) for test in self.parse("logs/deferred.txt")],
                         [("x #2", "x_2"), ("x #3", "x_3"), ("true #2", "true_2"), ("y", "y")])

    def test_several_lists_make_several(self) -> None:
        self.write("a.txt", "export WHO=a\ntrue 1 #: gpus=3\ntrue 2\n")
        self.write("b.txt", "true 3\n")
        self.write("c.txt", "test -z \"$WHO\" #: gpus=4 label='of c'\ntrue 1 #: gpus=3\n")
        ran = self.run_command("--max-gpus", "2", "a.txt", "b.txt", "c.txt")
        self.assertEqual(ran.code, 0)
        self.assertIn("\nSelected 2 of 5 tests (40.0 %); deferred 3 that need more than 2 GPUs: "
                      "logs/deferred.txt logs/deferred_2.txt\n", ran.text)
        later = self.run_command("--log-dir", "later", "logs/deferred.txt", "logs/deferred_2.txt", gpus=FOUR)
        self.assertEqual(later.code, 0)
        self.assertEqual([record["label"] for record in later.journal("test_end", "later/run_tests.jsonl")
                          if record["outcome"] != "passed"], [])
        self.assertEqual({record["label"] for record in later.journal("test_end", "later/run_tests.jsonl")},
                         {"true 1", "of c", "true 1 #2"})

    def test_a_list_that_is_given_twice(self) -> None:
        """Its second tests start with the state of its beginning again."""
        self.write("a.txt", 'A=1\ntest "$A" = 1 #: gpus=4 label=one\nA=2\ntest "$A" = 2 #: gpus=4 label=two\n')
        self.assertEqual(self.run_command("--max-gpus", "2", "a.txt", "a.txt").code, 5)
        lists = [os.path.join("logs", name) for name in self.deferred_files()]
        ran = self.run_command("--log-dir", "later", *lists, gpus=FOUR)
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (0, "All tests passed"))

    def test_what_waits_for_a_deferred_one(self) -> None:
        text = ("true a #: label=a gpus=4\ntrue b #: label=b after=a\ntrue c #: label=c\n"
                "true d #: label=d gpus=4 after=c\n")
        ran = self.run_list(text, "--max-gpus", "2")
        self.check(ran, 0, {"a": "deferred", "b": "deferred", "c": "passed", "d": "deferred"})
        self.assertIn("deferred 3 that need more than 2 GPUs or wait for one that does: logs/deferred.txt\n", ran.text)
        tests = self.parse("logs/deferred.txt")
        self.assertEqual([(test.label, test.attributes.after) for test in tests], [("a", ()), ("b", ("a",)), ("d", ())])

    def test_lists_of_an_earlier_run_go(self) -> None:
        wide = "true wide #: gpus=4\n"
        for name in ("a.txt", "b.txt"):
            self.write(name, "true\n" + wide)
        self.run_command("--max-gpus", "2", "a.txt", "b.txt")
        self.assertEqual(self.deferred_files(), ["deferred.txt", "deferred_2.txt"])
        ran = self.run_command("--max-gpus", "2", "a.txt")
        self.assertEqual((ran.code, self.deferred_files()), (0, ["deferred.txt"]))
        ran = self.run_command("a.txt", gpus=FOUR)
        self.assertEqual((ran.code, self.deferred_files()), (0, ["deferred.txt"]), "nothing was deferred, nor asked")
        ran = self.run_command("--max-gpus", "4", "a.txt", gpus=FOUR)
        self.assertEqual((ran.code, self.deferred_files()), (0, []))
        self.assertIn("\nSelected 2 of 2 tests (100.0 %)\nAll tests passed\n", ran.text)

    def deferred_files(self) -> List[str]:
        return sorted(name for name in os.listdir(os.path.join(self.folder, "logs")) if name.startswith("deferred"))

    def test_without_it_too_wide_a_test_fails_the_run(self) -> None:
        ran = self.run_list("true\ntrue a #: label=wide gpus=3\ntrue b #: label=waits after=wide\n")
        self.check(ran, 1, {"true": "passed", "wide": "unrunnable", "waits": "blocked"})
        self.assertEqual(self.deferred_files(), [])

    def test_a_limit_above_the_machine_defers_nothing_that_it_allows(self) -> None:
        ran = self.run_list("true #: label=wide gpus=3\ntrue #: label=wider gpus=9\n", "--max-gpus", "4")
        self.check(ran, 1, {"wide": "unrunnable", "wider": "deferred"})

    def test_all_deferred(self) -> None:
        text = "touch ran #: gpus=3\n"
        ran = self.run_list(text, "--max-gpus", "2")
        self.assertEqual((ran.code, ran.outcomes()), (5, {"touch ran": "deferred"}))
        self.assertEqual(ran.text.splitlines()[-2:],
                         ["Selected 0 of 1 tests (0.0 %); deferred 1 that need more than 2 GPUs: logs/deferred.txt",
                          "No test ran"])
        ran = self.run_list(text, "--max-gpus", "2", "--shard", "1/1")
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (0, "No test ran"))
        self.assertFalse(os.path.exists(ran.path("ran")))

    def test_deferred_ones_are_not_run_again(self) -> None:
        text = "false #: label=a\ntrue #: label=wide gpus=4\n"
        self.check(self.run_list(text, "--max-gpus", "2"), 1, {"a": "failed", "wide": "deferred"})
        ran = self.run_list(text, "--max-gpus", "2", "--rerun-failed")
        self.assertEqual(self.last_outcomes(ran), {"a": "failed", "wide": "deferred"})
        ran = self.run_list(text, "--rerun-failed", gpus=FOUR)
        self.assertEqual(self.last_outcomes(ran), {"a": "failed"})

    def test_the_lists_of_a_run_outlive_its_rerun(self) -> None:
        """The periodic job still has to run what the first run has deferred."""
        text = "false #: label=a\ntrue #: label=wide gpus=4\n"
        self.run_list(text, "--max-gpus", "2")
        self.run_list(text, "--max-gpus", "2", "--rerun-failed")
        self.assertEqual([test.label for test in self.parse("logs/deferred.txt")], ["wide"])

    def test_a_deferred_test_that_had_failed_stays_owed(self) -> None:
        text = "true #: label=a\ntest -e fixed #: label=wide gpus=2\n"
        self.check(self.run_list(text), 1, {"a": "passed", "wide": "failed"})
        self.run_list(text, "--max-gpus", "1")
        self.write("fixed", "")
        ran = self.run_list(text, "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"wide": "passed"}))

    def test_one_gpu_too(self) -> None:
        ran = self.run_list("echo one\nfalse #: gpus=2\necho two\n", "--max-gpus", "1", gpus="0")
        self.assertEqual((ran.code, ran.text), (
            0, "one\ntwo\nSelected 2 of 3 tests (66.7 %); deferred 1 that need more than 1 GPUs: logs/deferred.txt\n"
            "All tests passed\n"))


# Plans.

PLANNED = """\
touch ran; true a #: label=a gpus=4 time=10s
true b #: label=b time=30s
true c #: label=c time=20s
true d #: label=d gpus=2 time=10s
true e #: label=e gpus=all time=5s
true f #: label=f gpus=0 time=15s
true g #: label=g gpus=0.5 time=8s
"""


ONLY_LIST = """\
true built #: label=build
true a #: label=a after=build
true b #: label=b tags=ASan
true c #: label=c
true sanity #: label=test_sanity
"""


class Only(SelectionCase):
    """`--only` and the words of `--message`."""

    def passed(self, ran: Ran) -> List[str]:
        """The labels of those that ran; the others are deferred."""
        outcomes = self.last_outcomes(ran)
        self.assertEqual((len(outcomes), set(outcomes.values()) - {"passed", "deferred"}), (5, set()))
        return sorted(label for label, outcome in outcomes.items() if outcome == "passed")

    def test_the_rest_is_deferred_into_a_list(self) -> None:
        self.write("few.txt", "# a choice\n\n  a \r\nc\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--junit", "sum.xml")
        self.check(ran, 0, {"build": "passed", "a": "passed", "c": "passed", "b": "deferred",
                            "test_sanity": "deferred"})
        self.assertIn("\nSelected 3 of 5 tests (60.0 %); deferred 2 that few.txt does not name: logs/deferred.txt\n",
                      ran.text)
        reasons = {record["label"]: record["reason"] for record in ran.journal("test_end") if "reason" in record}
        self.assertEqual(reasons, {"b": "--only", "test_sanity": "--only"})
        self.assertIn('<skipped message="deferred by --only"', ran.read("sum.xml"))
        self.assertEqual(ran.err, "")
        ran = self.run_command("--log-dir", "later", "logs/deferred.txt")
        self.assertEqual({record["label"] for record in ran.journal("test_end", "later/run_tests.jsonl")},
                         {"b", "test_sanity"})

    def test_a_label_may_look_like_a_comment(self) -> None:
        self.write("few.txt", "# chosen\n# odd\n#1\nc\n")
        ran = self.run_list("true a #: label='# odd'\ntrue b #: label='#1'\ntrue c #: label=c\ntrue d #: label=d\n",
                            "--only", "few.txt")
        self.check(ran, 0, {"# odd": "passed", "#1": "passed", "c": "passed", "d": "deferred"})
        self.assertEqual(ran.err, "")

    def test_the_message_adds_or_takes_all(self) -> None:
        self.write("few.txt", "c\n")
        everything = "build a b c test_sanity"
        for message, expected in (
                ("Fix it", "c"), ("Fix\n\n[ci asan]", "b c"), ("[ci SAN]", "b c test_sanity"),
                ("[ci a_s b]", "build b c"),
                ("[CI all]", everything), ("[ci asan] and [ci build,slow]", "build b c"),
                ("-x [ci]", "c"), ("[ci ]", "c"), ("[skip ci] all", "c"), ("[ci slow\nall]", everything),
                ("[ci-all]", everything), ("[ci: asan]", "b c"), ("[ci skip]", "c"), ("[ciao asan]", "c")):
            with self.subTest(message):
                ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--message", message)
                self.assertEqual(self.passed(ran), sorted(expected.split()), ran.err)

    def test_without_only_the_message_changes_nothing(self) -> None:
        ran = self.run_list(ONLY_LIST, "--message", "[ci asan]")
        self.assertEqual(len(self.passed(ran)), 5)

    def test_what_names_nothing_is_told(self) -> None:
        self.write("few.txt", "a\ngone\nlost\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--message", "[ci a, quux]")
        self.assertEqual((ran.code, ran.err.splitlines()), (0, [
            "run_tests.py: --only few.txt: 2 of its labels name no test here: gone lost",
            "run_tests.py: --message: `[ci quux]` names no test; its words are parts of labels or tags"]))

    def test_all_by_the_message_leaves_no_deferred_list(self) -> None:
        self.write("few.txt", "a\n")
        self.run_list(ONLY_LIST, "--only", "few.txt")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--message", "[ci all]")
        self.assertFalse(os.path.exists(ran.path("logs/deferred.txt")))
        self.assertIn("\nSelected 5 of 5 tests (100.0 %)\n", ran.text)

    def test_a_test_that_the_file_leaves_out_nowhere_is_new(self) -> None:
        self.write("few.txt", "# b\n# c\na\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt")
        self.assertEqual(ran.err, "run_tests.py: --only few.txt: 2 tests are new to it, and deferred unless it or the "
                                  "message names them: build test_sanity\n")
        self.assertEqual(self.run_list(ONLY_LIST, "--only", "few.txt", "--message", "[ci all]").err, "")

    def test_list_names_those_that_would_run(self) -> None:
        self.write("few.txt", "a\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--list")
        self.assertEqual([line.partition("\t")[0] for line in ran.text.splitlines()], ["build", "a"])
        self.assertIn("deferred 3 that few.txt does not name", ran.err)

    def test_one_by_one_nothing_is_said_of_the_deferred_ones(self) -> None:
        self.write("few.txt", "c\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", gpus="0")
        self.assertEqual((ran.code, ran.err, self.passed(ran)), (0, "", ["c"]))

    def test_nothing_named_here_is_nothing_selected(self) -> None:
        self.write("few.txt", "gone\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt")
        self.assertEqual((ran.code, ran.text.splitlines()[-2:]), (5, [
            "Selected 0 of 5 tests (0.0 %); deferred 5 that few.txt does not name: logs/deferred.txt", "No test ran"]))

    def test_mistakes(self) -> None:
        self.write("empty.txt", "# nothing\n\n")
        for name, why in (("none.txt", r"none\.txt: cannot be read \(No such file"), ("empty.txt", "names no test")):
            with self.subTest(name):
                ran = self.run_list(ONLY_LIST, "--only", name)
                self.assertEqual((ran.code, ran.out), (2, b""))
                self.assertRegex(ran.err, f"argument --only: .*{why}")
        self.write("few.txt", "a\n")
        ran = self.run_list("#!/bin/bash\ntrue\n", "--only", "few.txt", name="x.sh")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertIn("--only: x.sh is a script", ran.err)

    def test_the_journal_knows_the_commit(self) -> None:
        for variables, commit in (({}, None), ({"CI_COMMIT_SHA": "4f2a"}, "4f2a"),
                                  ({"GITHUB_SHA": "", "GIT_COMMIT": "9"}, "9")):
            with self.subTest(variables):
                nothing = dict.fromkeys(run_tests.COMMIT_VARIABLES, "")
                ran = self.run_list("true\n", env={**nothing, **variables})
                self.assertEqual(ran.journal("run_start")[-1]["commit"], commit)


class Plan(SelectionCase):
    """`--plan`: a table, and nothing else."""

    maxDiff = None
    HEAD = " GPUs  wall time  GPU-hours    busy  to bound  cannot run  critical test\n"

    def plan(self, text: str, *arguments: str) -> str:
        """What `--plan` prints; it asks no tool for GPUs, starts nothing and writes nothing."""
        self.write("tests.txt", text)
        tools = self.stub("nvidia-smi", "#!/bin/bash\ntouch asked\necho 'GPU 0: X'\n")
        before = sorted(os.listdir(self.folder))
        ran = self.run_list(text, "--plan", *arguments, gpus=None, env={"PATH": f"{tools}:{os.environ['PATH']}"})
        self.assertEqual((ran.code, ran.err, sorted(os.listdir(self.folder))), (0, "", before))
        return ran.text

    def test_the_table(self) -> None:
        """On one GPU b, c, e, f and g come one by one; `to bound` is to max(GPU-seconds / GPUs, longest)."""
        self.assertEqual(self.plan(PLANNED, "--gpus", "3"), f"""\
Expected durations: 7 known from history (the median of the last 5 passes) or time=
{self.HEAD}\
    1      1m18s       0.02   75.6%     1.322           2  g (8.0s, gpus=0.5)
    2      45.0s       0.03   93.3%     1.071           1  b (30.0s, gpus=1)
    3      35.0s       0.03   84.8%     1.167           1  d (10.0s, gpus=2)
    4      45.0s       0.05   74.4%     1.343           0  b (30.0s, gpus=1)
    8      35.0s       0.08   55.0%     1.167           0  b (30.0s, gpus=1)
   16      35.0s       0.16   34.6%     1.167           0  b (30.0s, gpus=1)
   32      35.0s       0.31   24.5%     1.167           0  b (30.0s, gpus=1)
""")

    def test_history_comes_before_time(self) -> None:
        keys = [run_tests.key_of(["true", label]) for label in "bc"]
        records = [end(keys[0], 3600.0), end(keys[1], 1800.0), end(keys[1], 9999.0, outcome="failed")]
        self.write("logs/run_tests.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        text = "true b #: time=1s\ntrue c\ntrue d\ntrue e #: time=30m\n"
        lines = self.plan(text).splitlines(keepends=True)
        self.assertEqual("".join(lines[:5]), f"""\
Expected durations: 3 known from history (the median of the last 5 passes) or time=; 1 unknown, taken for the mean \
of the known, 40m00s, each
{self.HEAD}\
    1      2h40m       2.67  100.0%     1.000           0  true e (30m00s, gpus=1)
    2      1h30m       3.00   88.9%     1.125           0  true e (30m00s, gpus=1)
    4      1h00m       4.00   66.7%     1.000           0  true b (1h00m, gpus=1)
""")

    def test_nothing_is_known(self) -> None:
        lines = self.plan("true\nfalse\n").splitlines(keepends=True)
        self.assertEqual("".join(lines[:3]), f"Expected durations: 2 unknown, taken for 1m00s each\n{self.HEAD}"
                         "    1      2m00s       0.03  100.0%     1.000           0  false (1m00s, gpus=1)\n")

    def test_nothing_can_run(self) -> None:
        lines = self.plan("true #: gpus=64\ntrue b #: after=true\n").splitlines()
        self.assertEqual(lines[2], "    1       0.0s       0.00    0.0%     1.000           2  none")
        self.assertEqual(len(lines), 8)

    def test_it_is_for_what_is_selected(self) -> None:
        every = self.plan(PLANNED, "-k", "b or c or a", "--max-gpus", "2").splitlines()
        self.assertEqual(every[3:5], ["    1      50.0s       0.01  100.0%     1.000           0  c (20.0s, gpus=1)",
                                      "    2      30.0s       0.02   83.3%     1.000           0  b (30.0s, gpus=1)"])
        self.assertEqual(every[0], "Selected 2 of 7 tests (28.6 %); deferred 1 that need more than 2 GPUs; "
                         "left out 4 by -k")
        self.assertRegex(every[1], "^Expected durations: 2 known ")

    def test_sizes(self) -> None:
        for gpus, sizes in (("", [1, 2, 4, 8, 16, 32]), ("3", [1, 2, 3, 4, 8, 16, 32]), ("0", [1, 2, 4, 8, 16, 32]),
                            ("5,7,", [1, 2, 4, 8, 16, 32]), ("0,1,2,3,4", [1, 2, 4, 5, 8, 16, 32]),
                            ("64", [1, 2, 4, 8, 16, 32, 64])):
            with self.subTest(gpus):
                lines = self.plan(PLANNED, *(["--gpus", gpus] if gpus else [])).splitlines()[2:]
                self.assertEqual([int(line.split()[0]) for line in lines], sizes)

    def test_jobs_are_the_slots_of_cpu_tests(self) -> None:
        text = "#: gpus=0 time=10s\n" + "".join(f"true {number}\n" for number in range(4))
        walls = {jobs: self.plan(text, *jobs).splitlines()[2].split()[1] for jobs in ((), ("--jobs", "4"))}
        self.assertEqual(walls, {(): "40.0s", ("--jobs", "4"): "10.0s"})

    def test_a_plan_of_a_bad_list(self) -> None:
        ran = self.run_list("echo 'a\n", "--plan")
        self.assertEqual((ran.code, ran.out), (2, b""))


# Two runners on one machine.

class GpuLocks(SelectionCase):
    """`--gpu-locks DIR`."""

    WAITING = "run_tests.py: waiting for GPUs that another runner holds, by its locks in locks"

    def hold(self, gpus: str, mask: str = TWO) -> Tuple[Any, Any]:
        """A runner with a test that holds so many GPUs of a mask until its FIFO says go."""
        up, hold = self.fifo("up"), self.fifo("hold")
        self.write("holds.txt", f"echo up >up; read x <hold #: gpus={gpus}\n")
        process = self.start("--gpu-locks", "locks", "--log-dir", "first", "holds.txt", gpus=mask)
        self.addCleanup(self.abandon, process)
        self.addCleanup(hold.send)
        self.assertEqual(up.line(), "up")
        return process, hold

    def gpus(self, ran: Ran) -> List[List[str]]:
        """The GPUs of each test of the last run, in starting order."""
        return [record["gpus"] for record in ran.journal("test_start")]

    def test_a_gpu_that_another_runner_holds_is_not_taken(self) -> None:
        first, hold = self.hold("1")
        ran = self.run_list("true a\ntrue b\ntrue c\n", "--gpu-locks", "locks")
        self.assertEqual((ran.code, self.gpus(ran)), (0, [["1"]] * 3))
        hold.send()
        self.assertEqual(first.wait(WAIT_S), 0)
        ran = self.run_list("true\n", "--gpu-locks", "locks", "--log-dir", "third")
        self.assertEqual((ran.code, ran.journal("test_start", "third/run_tests.jsonl")[0]["gpus"], ran.err),
                         (0, ["0"], ""))

    def test_a_gpu_is_free_when_its_test_has_ended(self) -> None:
        """The other runner goes on meanwhile."""
        up, hold = self.fifo("up"), self.fifo("hold")
        self.write("first.txt", "true #: gpus=2\ntrue half #: gpus=0.5\n"
                                "echo up >up; read x <hold #: gpus=0 after='true,true half'\n")
        first = self.start("--gpu-locks", "locks", "--log-dir", "first", "first.txt")
        self.addCleanup(self.abandon, first)
        self.addCleanup(hold.send)
        self.assertEqual(up.line(), "up")
        ran = self.run_list("true #: gpus=2\n", "--gpu-locks", "locks")
        self.assertEqual((ran.code, self.gpus(ran), ran.err), (0, [["0", "1"]], ""))
        hold.send()
        self.assertEqual(first.wait(WAIT_S), 0)

    def test_the_order_of_a_mask_does_not_matter(self) -> None:
        self.hold("2", "5,2,7")
        ran = self.run_list("true a\ntrue b\n", "--gpu-locks", "locks", gpus="2,7")
        self.assertEqual((ran.code, self.gpus(ran)), (0, [["7"]] * 2))

    def test_an_index_and_a_uuid_may_be_one_gpu(self) -> None:
        """As `nvidia-smi -L` tells."""
        tools = self.stub("nvidia-smi", "#!/bin/bash\necho 'GPU 0: NVIDIA H200 (UUID: GPU-aaaa)'\n"
                                        "echo 'GPU 1: NVIDIA H200 (UUID: GPU-bbbb)'\n")
        env = {"PATH": f"{tools}:{os.environ['PATH']}"}
        up, hold = self.fifo("up"), self.fifo("hold")
        self.write("holds.txt", "echo up >up; read x <hold\n")
        first = self.start("--gpu-locks", "locks", "--log-dir", "first", "holds.txt", gpus="0", env=env)
        self.addCleanup(self.abandon, first)
        self.addCleanup(hold.send)
        self.assertEqual(up.line(), "up")
        ran = self.run_list("true a\ntrue b\n", "--gpu-locks", "locks", gpus="GPU-aaaa,GPU-bbbb", env=env)
        self.assertEqual((ran.code, self.gpus(ran)), (0, [["GPU-bbbb"]] * 2))

    def waiter(self, text: str = "true #: gpus=2\n", gpus: str = TWO) -> Any:
        """A runner that has said that it waits for the other's GPUs."""
        process = self.begin(text, "--gpu-locks", "locks", gpus=gpus)
        self.assertEqual(read_line(process.stderr.fileno()), self.WAITING)
        return process

    def test_what_has_to_wait_starts_when_the_other_ends(self) -> None:
        for need, mask in (("1", "0"), ("2", TWO), ("all", TWO), ("0.5", "0")):
            with self.subTest(need=need):
                self.clean()
                first, hold = self.hold("1", "0")
                second = self.waiter(f"true #: gpus={need}\n", mask)
                hold.send()
                ran = self.end(second)
                self.check(ran, 0, {"true": "passed"})
                self.assertEqual((self.gpus(ran), ran.err), ([mask.split(",")], ""), "it says so once")
                self.assertEqual(first.wait(WAIT_S), 0)
                for name in ("up", "hold"):
                    os.unlink(os.path.join(self.folder, name))

    def test_a_runner_that_is_killed_frees_them(self) -> None:
        """At once, though its test goes on."""
        first, hold = self.hold("2")
        second = self.waiter()
        first.kill()
        first.wait()
        self.check(self.end(second), 0, {"true": "passed"})
        hold.send()

    def test_a_wait_can_be_interrupted(self) -> None:
        self.hold("2")
        second = self.waiter()
        second.send_signal(signal.SIGTERM)
        self.check(self.end(second), 143, {"true": "not run"})

    def test_tests_without_a_gpu_do_not_wait(self) -> None:
        _, hold = self.hold("2")
        second = self.waiter("touch cpu #: gpus=0\ntrue #: gpus=2 after='touch cpu'\n")
        hold.send()
        self.check(self.end(second), 0, {"touch cpu": "passed", "true": "passed"})

    def test_two_runners_never_share_a_gpu(self) -> None:
        """Each test notes its begin and its end, with its GPUs, in one file."""
        note = 'printf "%s\\n" "{} $CUDA_VISIBLE_DEVICES" >>trace'
        needs = [1, 2, 1, 0.5, 0.5, 3, 1, "all", 0.25, 1, 2, 1]
        text = "".join(f"{note.format('begin')}; sleep 0.0{number % 4}; {note.format('end')} #: gpus={need}\n"
                       for number, need in enumerate(needs))
        self.write("tests.txt", text)
        runners = [self.start("--gpu-locks", "locks", "--log-dir", f"logs{mask}", "--output", "none", "tests.txt",
                              gpus=mask) for mask in ("0,1,2", "2,1,0", "1,2,3")]
        for process in runners:
            self.addCleanup(self.abandon, process)
        for number, process in enumerate(runners):
            self.assertEqual(self.end(process).code, 0, number)
        self.check_apart()

    def check_apart(self) -> None:
        """No GPU in the trace had two owners: whole tests alone, fractions below one together."""
        with open(os.path.join(self.folder, "trace"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertEqual(len(lines), 3 * 12 * 2)
        running: Dict[str, int] = {}
        for line in lines:
            what, _, mask = line.partition(" ")
            for token in mask.split(","):
                running[token] = running.get(token, 0) + (1 if what == "begin" else -1)
                self.assertIn(running[token], (0, 1) if "," in mask else (0, 1, 2, 3), lines)
        self.assertEqual(set(running.values()), {0})

    def test_a_place_that_cannot_be(self) -> None:
        self.write("file", "")
        for folder in ("file", "file/locks"):
            with self.subTest(folder):
                ran = self.run_list("touch ran\n", "--gpu-locks", folder)
                self.assertEqual((ran.code, ran.out), (3, b""))
                self.assertRegex(ran.err, rf"^run_tests.py: error: cannot write {folder}\S* \(.*\); "
                                          "name a folder for lock files with --gpu-locks\n$")
                self.assertFalse(os.path.exists(ran.path("ran")))

    def test_without_gpus_there_is_nothing_to_lock(self) -> None:
        ran = self.run_list("true\n", "--gpu-locks", "locks", gpus="")
        self.check(ran, 0, {"true": "passed"})


# What each test gets.

class Masks(SelectionCase):
    """Masks inside the outer mask."""

    def masks(self, text: str, *arguments: str, gpus: str = "4,5,6,7") -> Dict[str, str]:
        """What each test sees as its mask; its label is the last word of its line."""
        tests = re.sub(r"(?m)^(.*)SEE(.*) (\w+)$", r"\1echo \3=${CUDA_VISIBLE_DEVICES-unset} >>masks \2 label=\3", text)
        ran = self.run_list(tests, *arguments, gpus=gpus)
        self.assertEqual(ran.code, 0, ran.text + ran.err)
        lines = ran.read("masks").splitlines()
        os.unlink(ran.path("masks"))
        self.clean()
        return dict(line.split("=") for line in lines)

    def test_a_part_of_the_outer_mask(self) -> None:
        text = ("SEE #: gpus=2 two\nwait\nSEE #: gpus=1 one\nwait\nSEE #: gpus=0 none\nwait\nSEE #: gpus=all every\n"
                "wait\nSEE #: gpus=0.25 part\nwait\nSEE #: gpus=3 three\n")
        self.assertEqual(self.masks(text), {"two": "4,5", "one": "4", "none": "", "every": "4,5,6,7", "part": "4",
                                            "three": "4,5,6"})
        self.assertEqual(self.masks(text, gpus="7,5,6"), {"two": "7,5", "one": "7", "none": "", "every": "7,5,6",
                                                          "part": "7", "three": "7,5,6"})

    def test_a_mask_of_the_line_asks_for_as_many(self) -> None:
        text = ("CUDA_VISIBLE_DEVICES=0,1,2,3 SEE #: four\nwait\nCUDA_VISIBLE_DEVICES=3 SEE #: one\nwait\n"
                "CUDA_VISIBLE_DEVICES= SEE #: none\nwait\nA=1 CUDA_VISIBLE_DEVICES=1,0 SEE #: two\n")
        self.assertEqual(self.masks(text), {"four": "4,5,6,7", "one": "4", "none": "", "two": "4,5"})

    def test_uuids_stay_as_they_are(self) -> None:
        tokens = ["GPU-1a2b", "GPU-3c4d", "GPU-5e6f"]
        text = "SEE #: gpus=2 two\nwait\nSEE #: gpus=0.5 part\nwait\nCUDA_VISIBLE_DEVICES=0,1,2 SEE #: three\n"
        self.assertEqual(self.masks(text, gpus=",".join(tokens)), {"two": "GPU-1a2b,GPU-3c4d", "part": "GPU-1a2b",
                                                                   "three": ",".join(tokens)})

    def test_neighbours_where_they_can_be(self) -> None:
        """GPU 4 is held: two others are next to each other."""
        for name in ("up", "go"):
            os.mkfifo(os.path.join(self.folder, name))
        text = ("echo up >up; read x <go #: gpus=1 time=1h label=holds\nread x <up; true #: gpus=0 label=opens\n"
                "SEE #: after=opens gpus=2 two\ntrue; echo go >go #: gpus=0 after=two label=closes\n")
        self.assertEqual(self.masks(text, "--timeout", f"{WAIT_S}s", gpus="4,5,6"), {"two": "5,6"})

    def test_fractions_share_one(self) -> None:
        """Two halves meet on one GPU, and a test beside them has the other."""
        for name in ("a", "b", "c", "d"):
            os.mkfifo(os.path.join(self.folder, name))
        text = ("echo 1 >a; read x <b; true #: label=first gpus=0.5\n"
                "read x <a; echo 1 >c; read x <d; echo 1 >b #: label=second gpus=0.5\n"
                "read x <c; echo 1 >d #: label=whole\n")
        ran = self.run_list(text, "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, {"first": "passed", "second": "passed", "whole": "passed"})
        gpus = {record["label"]: record["gpus"] for record in ran.journal("test_start")}
        self.assertEqual(gpus["first"], gpus["second"])
        self.assertEqual(sorted(gpus["first"] + gpus["whole"]), ["0", "1"])

    def test_fractions_never_make_more_than_one(self) -> None:
        """0.6 and 0.6 do not share; each sees one GPU."""
        text = "".join(f"SEE #: gpus=0.6 t{number}\n" for number in range(6))
        masks = self.masks(text, "--jobs", "1", gpus=TWO)
        self.assertEqual((len(masks), set(masks.values()) <= {"0", "1"}), (6, True))


class Needs(SelectionCase):
    """`lock`, `after` and `wait`, seen from inside the tests."""

    def test_a_lock_has_one_holder(self) -> None:
        """A folder can be made only once."""
        text = "".join(f"mkdir held && sleep 0.01 && rmdir held #: lock={names} label=t{number}\n"
                       for number, names in enumerate(["a", "a,b", "b,a", "a", "c,a", "a"]))
        ran = self.run_list(text, gpus=EIGHT)
        self.check(ran, 0, {f"t{number}": "passed" for number in self.numbers(ran)})
        self.assertEqual(len(ran.outcomes()), 6)

    def numbers(self, ran: Ran) -> Iterable[int]:
        return (int(label[1:]) for label in ran.outcomes())

    def test_other_tests_run_beside_a_lock(self) -> None:
        """The holder waits for a test without a lock and for one with another, which stand behind one with its own."""
        for name in ("a", "b"):
            os.mkfifo(os.path.join(self.folder, name))
        text = ("read x <a; read x <b; true #: lock=x label=holder\ntest -e done #: lock=y,x label=same\n"
                "echo 1 >a #: label=free\necho 1 >b; touch done #: lock=y label=other\n")
        ran = self.run_list(text, "--order", "file", "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual(len(ran.outcomes()), 4)

    def test_a_lock_is_free_after_a_failure(self) -> None:
        ran = self.run_list("false #: lock=x label=a\nkill -KILL $$ #: lock=x label=b\nsleep 1000 #: lock=x label=c "
                            "timeout=0.1s\ntrue #: lock=x label=d gpus=0\n", "--order", "file")
        self.check(ran, 1, {"a": "failed", "b": "crashed", "c": "timeout", "d": "passed"})

    def test_a_retry_keeps_its_needs(self) -> None:
        """It waits for its lock again, and those that wait for the test wait for its last attempt."""
        text = ("mkdir held && rmdir held && test -e again || { touch again; false; } #: lock=x retries=1 label=a\n"
                "mkdir held && rmdir held #: lock=x label=b\ntest -e again #: after=a label=c\n")
        ran = self.run_list(text, gpus=FOUR)
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"a": "flaky", "b": "passed", "c": "passed"}))
        started = "".join(self.started(ran))
        self.assertEqual((started.count("a"), started.rindex("a") < started.index("c")), (2, True), started)

    def test_after_waits_for_the_end(self) -> None:
        """While what does not wait goes on: the first test waits for the last line of the list."""
        os.mkfifo(os.path.join(self.folder, "go"))
        text = ("test -e done -a -e more #: label=second after='first,third'\nread x <go; touch done #: label=first\n"
                "touch more #: label=third\necho 1 >go #: label=fourth\n")
        ran = self.run_list(text, "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual(self.started(ran)[-1], "second")

    def test_what_waits_for_a_failure_is_blocked(self) -> None:
        for gpus in (TWO, "0"):
            with self.subTest(gpus=gpus):
                self.clean()
                ran = self.run_list("false #: label=a\ntouch b #: label=b after=a\ntouch c #: label=c after=b\n"
                                    "true #: label=d\ntrue #: label=e after=d\n", gpus=gpus)
                self.check(ran, 1, {"a": "failed", "b": "blocked", "c": "blocked", "d": "passed", "e": "passed"})
                self.assertFalse(os.path.exists(ran.path("b")) or os.path.exists(ran.path("c")))
                self.assertEqual({record["label"]: record["reason"] for record in ran.journal("test_end")
                                  if "reason" in record}, {"b": "waits for a, which did not pass",
                                                           "c": "waits for b, which did not pass"})

    def test_one_gpu_waits_too(self) -> None:
        """The second of the list waits for the third; all others keep their order."""
        ran = self.run_list("true 1 #: label=a\ntest -e done #: label=b after=c\ntouch done #: label=c\n"
                            "true 2 #: label=d\n", gpus="0")
        self.check(ran, 0, dict.fromkeys("abcd", "passed"))
        self.assertLess(self.started(ran).index("c"), self.started(ran).index("b"))

    def test_wait_holds_whatever_is_wider_or_longer(self) -> None:
        text = "touch a #: time=1s\ntouch b #: gpus=0\nwait\ntest -e a -a -e b #: gpus=2 time=1h label=c\n"
        ran = self.run_list(text)
        self.check(ran, 0, {"touch a": "passed", "touch b": "passed", "c": "passed"})

    def test_cpu_slots_stand_beside_busy_gpus(self) -> None:
        """Both GPUs are held by tests that wait for one without a GPU."""
        for name in ("a", "b"):
            os.mkfifo(os.path.join(self.folder, name))
        ran = self.run_list("read x <a\nread x <b\necho 1 >a; echo 1 >b #: gpus=0 label=cpu\n", "--jobs", "1",
                            "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))

    def test_all_is_alone(self) -> None:
        """No test, with or without a GPU, runs beside it."""
        beside = "test ! -e alone"
        alone = "touch alone && sleep 0.05 && rm alone #: gpus=all label"
        text = (f"{beside}\ntrue; {beside} #: gpus=0\n{alone}=first\n{beside} -a 1\n{beside} -a 2 #: gpus=0\n"
                f"{alone}=second\n")
        ran = self.run_list(text, gpus=FOUR)
        self.check(ran, 0, dict.fromkeys(ran.outcomes(), "passed"))
        self.assertEqual(len(ran.outcomes()), 6)



class Blocked(SelectionCase):
    """A test whose `after` did not pass."""

    def test_it_has_a_marker_of_its_own_and_counts(self) -> None:
        ran = self.run_list("false #: label=a\ntrue #: label=b after=a\n", gpus=TWO)
        self.check(ran, 1, {"a": "failed", "b": "blocked"})
        self.assertRegex(ran.text, r"(?m)^>>> Finished: a on GPU 0 \[failed, exit 1, \d+\.\ds, 1/2\]$")
        self.assertRegex(ran.text, r"(?m)^>>> Blocked: b \[waits for a, which did not pass, 2/2\]$")


if __name__ == "__main__":
    unittest.main()
