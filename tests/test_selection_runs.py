"""Selection, order, deferral, shards, locks, masks and needs, through the real command line."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import unittest
from typing import Any, Dict, List, Mapping, Optional, Tuple

import run_tests
from tests.support import WAIT_S, Fifo, GatedCase, Ran, remarks

TWO, FOUR = "0,1", "0,1,2,3"


class SelectionCase(GatedCase):
    """A GatedCase that looks at the last run of a journal that several share."""

    def last_run(self, ran: Ran, event: str, path: str = "logs/run_tests.jsonl") -> List[Dict[str, Any]]:
        """Events of the run that came last."""
        events = []
        for line in ran.read(path).split("\n"):
            with contextlib.suppress(ValueError):        # torn lines are passed over
                events.append(json.loads(line))
        return [record for record in events if record["run"] == events[-1]["run"] and record["event"] == event]

    def last_outcomes(self, ran: Ran) -> Dict[str, str]:
        """Label to outcome in the run that came last."""
        return {record["label"]: record["outcome"] for record in self.last_run(ran, "test_end")}

    def passed(self, ran: Ran) -> str:
        """The labels of those that ran in the last run; all of them passed, and the others were deferred."""
        outcomes = self.last_outcomes(ran)
        self.assertEqual(set(outcomes.values()) - {"passed", "deferred"}, set())
        return " ".join(sorted(label for label, outcome in outcomes.items() if outcome == "passed"))

    def started(self, ran: Ran) -> List[str]:
        """Labels in the order in which the last run started them."""
        return [record["label"] for record in self.last_run(ran, "test_start")]

    def begin(self, text: str, *arguments: str, gpus: str = TWO) -> "subprocess.Popen[bytes]":
        """Start the runner on a list."""
        self.write("tests.txt", text)
        return self.start(*arguments, "tests.txt", gpus=gpus)

    def end(self, process: "subprocess.Popen[bytes]") -> Ran:
        """Wait for the end of a run."""
        out, err = process.communicate(timeout=WAIT_S)
        return Ran(process.returncode, out, remarks(err), self.folder)

    def fifos(self) -> Tuple[Fifo, Fifo]:
        """`up`, to which a test says that it runs, and `hold`, from which it reads when to go on."""
        for name in ("up", "hold"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        return Fifo(self, "up"), Fifo(self, "hold")

    def clean(self) -> None:
        """Forget the run before."""
        shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)


# What runs.

class RerunFailed(SelectionCase):
    """`--rerun-failed`: a list's tests that have not passed in their last run."""

    FAULTS = ("true                                   #: label=passes\n"
              "test -e fixed                          #: label=fails\n"
              "test -e fixed || kill -KILL $$         #: label=crashes\n"
              "test -e fixed || sleep 1000            #: label=hangs timeout={}\n"
              "test -e fixed                          #: label=blocked after=fails\n"
              "true                                   #: label='passes too'\n")

    def test_a_chain_of_runs(self) -> None:
        everything = {"passes": "passed", "fails": "failed", "crashes": "crashed", "hangs": "timeout",
                      "blocked": "blocked", "passes too": "passed"}
        self.check(self.run_list(self.FAULTS.format("0.1s")), 1, everything)
        owing = {label: outcome for label, outcome in everything.items() if outcome != "passed"}
        ran = self.run_list(self.FAULTS.format("0.1s"), "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, owing))
        self.assertIn("\nSelected 4 of 6 tests (66.7%); left out 2 by --rerun-failed\n", ran.text)
        self.write("fixed", "")
        ran = self.run_list(self.FAULTS.format("10m"), "--rerun-failed")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, dict.fromkeys(owing, "passed")))
        ran = self.run_list(self.FAULTS.format("10m"), "--rerun-failed", "--repeat", "2")
        self.assertEqual((ran.code, ran.out, ran.err), (5, b"", "run_tests.py: Selected 0 of 12 tests (0.0%); "
                         "left out 12 by --rerun-failed\nrun_tests.py: nothing to run in tests.txt\n"))

    def test_one_gpu_too(self) -> None:
        text = "true #: label=a\ntest -e fixed #: label=b\ntest -e fixed #: label=c\n"
        self.check(self.run_list(text, gpus="0"), 1, {"a": "passed", "b": "failed", "c": "failed"})
        self.write("fixed", "")
        ran = self.run_list(text, "--rerun-failed", gpus="0")
        self.assertEqual((ran.code, self.started(ran)), (0, ["b", "c"]))
        self.assertEqual(ran.text, "Selected 2 of 3 tests (66.7%); left out 1 by --rerun-failed\nAll tests passed\n")

    def test_a_run_that_was_interrupted_is_resumed(self) -> None:
        up, hold = self.fifos()
        process = self.begin("true a #: label=a\nwait\necho up >up; read x <hold #: label=b\nwait\ntrue #: label=c\n")
        up.lines()
        process.send_signal(signal.SIGTERM)
        self.check(self.end(process), 143, {"a": "passed", "b": "interrupted", "c": "not run"})
        hold.release()
        ran = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, {"b": "passed", "c": "passed"}))

    def test_a_list_that_never_ran_runs_whole(self) -> None:
        self.check(self.run_list("true\n", name="other.txt"), 0, {"true": "passed"})
        ran = self.run_list("true\ntrue too\n", "--rerun-failed")
        self.assertEqual((ran.code, self.passed(ran)), (0, "true true too"))
        self.assertEqual(ran.err, "run_tests.py: --rerun-failed: logs/run_tests.jsonl has no last run of this list "
                                  "here; all of it runs\n")


class Keep(SelectionCase):
    """`-k EXPR`."""

    TEXT = "true a #: label=unit/fp8.py tags=slow,h100\ntrue b #: label='unit/fp4.py -k x'\n#: tags=slow\ntrue c\n"

    def test_labels_and_tags(self) -> None:
        ran = self.run_list(self.TEXT, "-k", "slow and not H100 or '-k x'", "--list")
        self.assertEqual((ran.code, [line.split("\t")[0] for line in ran.text.splitlines()], ran.err),
                         (0, ["unit/fp4.py -k x", "true c"],
                          "run_tests.py: Selected 2 of 3 tests (66.7%); left out 1 by -k\n"))
        ran = self.run_list(self.TEXT, "-k", "slow", "--output", "none")
        self.check(ran, 0, {"unit/fp8.py": "passed", "true c": "passed"})
        self.assertIn("\nSelected 2 of 3 tests (66.7%); left out 1 by -k\nAll tests passed\n", ran.text)

    def test_all_runs_of_a_test_are_chosen_by_its_own_label(self) -> None:
        ran = self.run_list("true #: label=a\n", "--repeat", "3", "-k", "not run and not 2")
        self.assertEqual(len(ran.outcomes()), 3)

    def test_an_empty_list(self) -> None:
        for arguments in (["-k", "x"], ["--shard", "1/2"], ["--rerun-failed"], ["--list", "-k", "x"]):
            self.assertEqual(self.run_list("# nothing\n", *arguments).code, 5, arguments)

    def test_nothing_is_left(self) -> None:
        for arguments in ([], ["--list"], ["--shard", "1/2"]):
            with self.subTest(arguments):
                ran = self.run_list(self.TEXT, "-k", "fp16", *arguments)
                self.assertEqual((ran.code, ran.out), (5, b""))
                self.assertRegex(ran.err, r"^run_tests.py: Selected 0 of 3 tests \(0.0%\); "
                                          r"left out 3 by -k(, 0 by --shard 1/2 \(plan \w+\))?\n"
                                          r"run_tests.py: nothing to run in tests.txt\n$")


# In which order.

class OrderOfStarts(SelectionCase):
    """`--order` and `--history`. Each test takes both GPUs: they start one by one."""

    TEXT = "#: gpus=2\ntrue a #: label=a {}\ntrue b #: label=b {}\ntrue c #: label=c {}\ntrue d #: label=d {}\n"
    PLAIN = TEXT.replace(" {}", "")

    def order(self, *arguments: str, text: str = PLAIN, gpus: str = TWO) -> str:
        ran = self.run_list(text, *arguments, gpus=gpus)
        self.assertEqual((ran.code, ran.err), (0, ""), ran.text)
        return "".join(self.started(ran))

    def history(self, path: str, **seconds: float) -> str:
        """A journal in which the tests took these seconds."""
        records = [{"event": "test_end", "run": "other", "time": 0.0, "test": run_tests.key_of(["true", label]),
                    "label": label, "outcome": "passed", "seconds": value} for label, value in seconds.items()]
        return self.write(path, "".join(json.dumps(record) + "\n" for record in records))

    def test_time_is_the_estimate_before_any_history(self) -> None:
        text = self.TEXT.format("time=2s", "time=1m", "time=1s", "time=1h")
        self.assertEqual(self.order(text=text), "dbac")
        self.history("logs/run_tests.jsonl", c=90, d=0.5)
        self.assertEqual(self.order(text=text), "cbad")
        self.assertEqual(self.order("--order", "file", text=text), "abcd")

    def test_histories_of_other_machines(self) -> None:
        """In files, or from a pipe, as `--history <(zcat old.jsonl.gz)` has it."""
        self.history("sub/two.jsonl", c=4, d=3)
        with open(self.history("one.jsonl", a=2, b=1), "rb") as file:
            one = file.read()
        self.assertEqual(self.order("--history", "one.jsonl", "--history", "sub/two.jsonl"), "cdab")
        self.clean()
        ran = self.run_command("--history", "/dev/stdin", "--history", "sub/two.jsonl", "tests.txt", stdin=one)
        self.assertEqual((ran.code, ran.err, self.started(ran)), (0, "", ["c", "d", "a", "b"]))

    def test_failed_first(self) -> None:
        text = ("#: gpus=2\ntest -e fixed #: label=a time=1s\ntrue b #: label=b time=2s\n"
                "test -e fixed -a c #: label=c time=3s\ntrue d #: label=d time=4s\n")
        self.assertEqual(self.run_list(text).code, 1)
        self.write("fixed", "")
        order = self.order("--order", "failed-first", text=text)
        self.assertEqual((set(order[:2]), set(order[2:])), ({"a", "c"}, {"b", "d"}))


# Parts.

class Shards(SelectionCase):
    """`--shard K/N|auto`."""

    TEXT = "".join(f"true {number} #: label=t{number} time={number * number + 1}s gpus={1 + number % 2}\n"
                   for number in range(12)) + "true x #: label=x after=t0,t11\n"

    def part(self, shard: str, seed: int = 0, env: Mapping[str, str] = {}) -> List[str]:  # noqa: B006
        """The labels of a shard."""
        ran = self.run_list(self.TEXT, "--shard", shard, "--list", env={"PYTHONHASHSEED": str(seed), **env})
        self.assertEqual(ran.code, 0)
        self.assertRegex(ran.err, r"^run_tests\.py: Selected \d+ of 13 tests .*\n$")
        return [line.split("\t")[0] for line in ran.text.splitlines()]

    def test_they_are_a_partition_whatever_the_hash_seed(self) -> None:
        parts = [self.part(f"{number}/3", seed=number) for number in (1, 2, 3)]
        everything = [*(f"t{number}" for number in range(12)), "x"]
        self.assertEqual(sorted(label for part in parts for label in part), sorted(everything))
        for part in parts:
            self.assertEqual(part, [label for label in everything if label in part])
            self.assertIn(len({"t0", "t11", "x"}.intersection(part)), (0, 3))

    def test_a_run_says_what_it_is_part_of(self) -> None:
        ran = self.run_list("true a\ntrue b\ntrue c #: gpus=2\n", "--shard", "2/2", "--max-gpus", "1")
        self.check(ran, 0, {"true b": "passed"})
        self.assertRegex(ran.text, r"\nSelected 1 of 3 tests \(33.3%\); left out 2 by --shard 2/2 \(plan [0-9a-f]{6}\)"
                                   r"\nAll tests passed\n$")
        start = ran.journal("run_start")[0]
        self.assertEqual((start["shard"], len(start["selected"]), len(start["left_out"])), ("2/2", 1, 2))

    def test_an_empty_one_is_no_mistake(self) -> None:
        """Its records are its own, not those of a run before."""
        self.write("logs/failures", "old\n")
        for arguments in (["--list"], ["--junit", "sum.xml"]):
            with self.subTest(arguments):
                ran = self.run_list("true\n", "--shard", "3/5", *arguments)
                self.assertEqual(ran.code, 0)
                self.assertRegex(ran.text + ran.err, r"Selected 0 of 1 test \(0.0%\); "
                                                     r"left out 1 by --shard 3/5 \(plan [0-9a-f]{6}\)\n")
                self.assertEqual(ran.failures(), ["old"] * ("--list" in arguments))
        self.assertIn('tests="0"', ran.read("sum.xml"))

    def test_auto(self) -> None:
        env = {"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "2"}
        self.assertEqual(self.part("auto", env=env), self.part("1/2"))
        ran = self.run_list("true\n", "--shard", "auto", env={**env, "CIRCLE_NODE_TOTAL": "9" * 21})
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertEqual(ran.err, "run_tests.py: error: --shard auto: CIRCLE_NODE_INDEX=0 is not one of "
                                  f"CIRCLE_NODE_TOTAL={'9' * 21}; write --shard K/N\n")

    def test_what_runs_one_failure_alone_runs_it_whatever_the_shard(self) -> None:
        ran = self.run_list("true #: label=a\nfalse #: label=b\n", "--shard", "2/2")
        alone = ran.text.partition("\nAlone: ")[2].partition("\n")[0]
        self.assertEqual(subprocess.call(["bash", "-c", alone], cwd=self.folder, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL), 1, alone)

    def test_a_journal_that_single_shards_have_written_is_told(self) -> None:
        """Each shard's own journal would cut the list elsewhere."""
        text = "true a\ntrue b\n"
        self.run_list(text)
        self.assertEqual(self.run_list(text, "--shard", "1/2").err, "", "a whole run is no shard's")
        self.assertIn("overlap or miss tests", self.run_list(text, "--shard", "1/2").err)

    def test_no_shard_waits_for_another(self) -> None:
        ran = self.run_list("a\nwait\nb\n", "--shard", "1/2")
        self.assertIn("--shard: a test below a `wait` does not wait", ran.err)

    def test_options_of_the_environment_are_not_for_a_runner_in_a_test(self) -> None:
        ran = self.run_list("[ -z ${RUN_TESTS_OPTS+x} ] #: label=a\n", env={"RUN_TESTS_OPTS": "-k a"})
        self.check(ran, 0, {"a": "passed"})


# Deferral.

ROUND_TRIP = """\
# A list with all that a test can have
export OUT="$PWD/out" A='one two'
tell() { echo "$RUN_TESTS_LABEL|$PWD|${A-unset}|${B-unset}|$(umask)|$#" >>"$OUT" && test -e "$OUT"; }
tell #: label=narrow
tell #: label='wide one' gpus=4 timeout=90s time=2.5s lock=x,y tags=slow,h100
cd sub
B=set; umask 027
tell #: label='wide one' gpus=3
wait
CUDA_VISIBLE_DEVICES=0,1,2,3 tell 1 2 || test_fail "it's $A"
#: gpus=4 tags=nightly
A="changed" tell; tell \\
   --junitxml=x.xml #: after='narrow,wide one #2'
for x in 1 2; do
  tell $x || exit 1
done
wait
#:
tell #: label='waits for it' after='wide one'
tell #: label='waits for narrow' after=narrow
"""

ODD_LABELS = ("# odd", "#1", "#: gpus=1", '"it" & so', "é☃", "a `x` $(y)", "a #2", "-x")


class Deferral(SelectionCase):
    """`--max-gpus N` and the labels that it writes."""

    def told(self) -> List[str]:
        """What the tests have told of themselves since the last call."""
        path = os.path.join(self.folder, "out")
        with open(path, encoding="utf-8") as file:
            lines = sorted(file.read().splitlines())
        os.unlink(path)
        return lines

    def test_what_is_deferred_runs_later(self) -> None:
        """With the same labels, keys and shell state as in a run of the whole list on a machine that fits."""
        os.mkdir(os.path.join(self.folder, "sub"))
        whole = self.run_list(ROUND_TRIP, gpus=FOUR)
        self.assertEqual((whole.code, set(whole.outcomes().values())), (0, {"passed"}), whole.text + whole.err)
        keys = {record["label"]: record["test"] for record in whole.journal("test_end")}
        everything = self.told()
        self.clean()
        ran = self.run_command("--max-gpus", "2", "tests.txt", gpus=FOUR)
        narrow, deferred = self.told(), ran.read("logs/deferred.txt").splitlines()
        self.assertEqual((ran.code, self.passed(ran), len(deferred)), (0, "narrow waits for narrow", 6))
        self.assertEqual(deferred, [label for label, outcome in ran.outcomes().items() if outcome == "deferred"])
        self.assertTrue(ran.text.endswith(
            "\nSelected 2 of 8 tests (25.0%); deferred 6 by --max-gpus; see logs/deferred.txt\n"
            "All tests passed\n"))
        self.assertIn("\n2 tests in ", ran.text)
        self.assertIn(": 2 passed\nSelected 2 of 8 tests (25.0%); deferred 6 ", ran.text)
        ran = self.run_command("--log-dir", "later", "--only", "logs/deferred.txt", "tests.txt", gpus=FOUR)
        self.assertEqual((ran.code, ran.err), (0, ""), ran.text)
        ends = {record["label"]: record for record in ran.journal("test_end", "later/run_tests.jsonl")}
        late = {label for label, record in ends.items() if record["outcome"] == "passed"}
        self.assertEqual(late, {*deferred, "narrow"}, "one of them waits for it")
        self.assertEqual({label: record["test"] for label, record in ends.items()}, keys)
        again = [line for line in self.told() if not line.startswith("narrow|")]
        self.assertEqual(sorted([*narrow, *again]), everything)

    def test_a_test_may_delete_the_log_dir(self) -> None:
        for start in ("rm -r logs", "rm logs/deferred.txt"):
            with self.subTest(start):
                ran = self.run_list(f"{start}\ntrue #: label=wide gpus=3\ntrue #: label=wider gpus=3\n", "--max-gpus=2")
                self.assertEqual((ran.code, ran.read("logs/deferred.txt")), (0, "wide\nwider\n"), ran.text)

    def test_any_label_makes_the_round_trip(self) -> None:
        said = "".join(f"true #: gpus=3 label='{label}'\n" for label in ODD_LABELS)
        ran = self.run_list(f"{said}true\ntrue #: gpus=4\ntrue \udcff #: gpus=3\n", "--max-gpus", "2")
        names = [*ODD_LABELS, "true #2", "true \udcff"]
        self.assertEqual((ran.code, ran.read("logs/deferred.txt").splitlines()), (0, names), ran.err)
        ran = self.run_command("--only", "logs/deferred.txt", "tests.txt", "--log-dir", "later", gpus=FOUR)
        self.assertEqual((ran.code, ran.err), (0, ""))
        started = [record["label"] for record in ran.journal("test_start", "later/run_tests.jsonl")]
        self.assertEqual(sorted(started), sorted(names))

    def test_the_same_command_runs_the_same_tests_again(self) -> None:
        """The run that reads the file defers other tests: they do not take its place."""
        text = "true a #: label=a gpus=4\ntrue b #: label=b\ntest -e fixed #: label=c gpus=3\n"
        self.run_list(text, "--max-gpus", "2")
        only = ("--only", "logs/deferred.txt", "tests.txt")
        ran = self.run_command(*only, gpus=FOUR)
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"a": "passed", "b": "deferred", "c": "failed"}))
        ran = self.run_command("--rerun-failed", *only, gpus=FOUR)
        self.assertEqual((ran.code, self.last_outcomes(ran)), (1, {"b": "deferred", "c": "failed"}), ran.err)
        self.write("fixed", "")
        ran = self.run_command(*only, gpus=FOUR)
        self.assertEqual((ran.code, self.passed(ran)), (0, "a c"))

    def test_several_lists_have_one_file(self) -> None:
        self.write("a.txt", "export WHO=a\ntrue 1 #: gpus=3\ntrue 2\n")
        self.write("c.txt", "test -z \"$WHO\" #: gpus=4 label='of c'\ntrue 1 #: gpus=3\n")
        ran = self.run_command("--max-gpus", "2", "a.txt", "c.txt")
        self.assertEqual((ran.code, ran.read("logs/deferred.txt")), (0, "true 1\nof c\ntrue 1 #2\n"))
        ran = self.run_command("--only", "logs/deferred.txt", "a.txt", "c.txt", gpus=FOUR)
        self.assertEqual((ran.code, self.passed(ran)), (0, "of c true 1 true 1 #2"))

    def test_the_file_is_of_the_last_run_that_might_defer(self) -> None:
        def names() -> Optional[str]:
            path = os.path.join(self.folder, "logs", "deferred.txt")
            if not os.path.exists(path):
                return None
            with open(path, encoding="utf-8") as file:
                return file.read()

        text = "true\ntrue wide #: gpus=4\n"
        for arguments, gpus, expected in ((["--max-gpus", "2"], TWO, "true wide\n"), ([], FOUR, "true wide\n"),
                                          (["--max-gpus", "2", "--rerun-failed"], TWO, "true wide\n"),
                                          (["--max-gpus", "4"], FOUR, None), (["--max-gpus", "2"], TWO, "true wide\n")):
            with self.subTest(arguments):
                self.assertIn(self.run_list(text, *arguments, gpus=gpus).code, (0, 5))
                self.assertEqual(names(), expected)

    def test_a_limit_above_the_machine_defers_nothing_that_it_allows(self) -> None:
        ran = self.run_list("true #: label=wide gpus=3\ntrue #: label=wider gpus=9\n", "--max-gpus", "4")
        self.check(ran, 1, {"wide": "unrunnable", "wider": "deferred"})

    def test_all_deferred(self) -> None:
        ran = self.run_list("touch ran #: gpus=3\n", "--max-gpus", "2")
        self.assertEqual((ran.code, ran.outcomes(), ran.text.splitlines()[-1]), (
            5, {"touch ran": "deferred"}, "No test ran"))
        self.assertRegex(ran.text, r"\n0 tests in [\d.]+s on 2 GPU\(s\): none ran on a slot\n")
        ran = self.run_command("--max-gpus", "2", "--shard", "2/2", "tests.txt")
        self.assertEqual(ran.code, 5, "an empty part of nothing")
        ran = self.run_list("touch ran #: gpus=3\ntrue\n", "--max-gpus", "2", "--shard", "2/2")
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (0, "No test ran"))
        self.assertFalse(os.path.exists(ran.path("ran")))

    def test_one_gpu_too(self) -> None:
        ran = self.run_list("echo one\nfalse #: gpus=2\necho two\n", "--max-gpus", "1", gpus="0")
        self.assertEqual((ran.code, ran.text), (
            0, "one\ntwo\nSelected 2 of 3 tests (66.7%); deferred 1 by --max-gpus; see logs/deferred.txt\n"
            "All tests passed\n"))


ONLY_LIST = """\
true built #: label=build
true a #: label=a after=build
true b #: label=b tags=ASan
true c #: label=c
true sanity #: label=test_sanity
"""


class Only(SelectionCase):
    """`--only` and the words of `--message`."""

    def test_the_rest_is_deferred(self) -> None:
        self.write("few.txt", "# a choice\n\n  a \r\nc\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--junit", "sum.xml")
        self.check(ran, 0, {"build": "passed", "a": "passed", "c": "passed", "b": "deferred",
                            "test_sanity": "deferred"})
        self.assertIn("\nSelected 3 of 5 tests (60.0%); deferred 2 by --only; see logs/deferred.txt\n",
                      ran.text)
        reasons = {record["label"]: record["reason"] for record in ran.journal("test_end") if "reason" in record}
        self.assertEqual(reasons, {"b": "--only", "test_sanity": "--only"})
        self.assertIn('<skipped message="deferred: --only"', ran.read("sum.xml"))
        self.assertEqual((ran.err, ran.read("logs/deferred.txt")), ("", "b\ntest_sanity\n"))

    def test_the_message_adds_or_takes_all(self) -> None:
        self.write("few.txt", "c\ngone\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--message", "Fix\n\n[ci a_s asan quux]")
        self.assertEqual((ran.code, self.passed(ran), ran.err), (
            0, "b c", "run_tests.py: 1 label of --only or --known-failures without a test here: gone; "
            "--list shows labels\n"))
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--message", "[ci all]")
        self.assertEqual(self.passed(ran), "a b build c test_sanity")
        self.assertFalse(os.path.exists(ran.path("logs/deferred.txt")))
        self.assertNotIn("Selected", ran.text)
        ran = self.run_list(ONLY_LIST, "--message", "[ci asan]")
        self.assertEqual(self.passed(ran), "a b build c test_sanity", "without --only it changes nothing")

    def test_list_names_those_that_would_run(self) -> None:
        self.write("few.txt", "a\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", "--list")
        self.assertEqual([line.partition("\t")[0] for line in ran.text.splitlines()], ["build", "a"])
        self.assertEqual(ran.err, "run_tests.py: Selected 2 of 5 tests (40.0%); deferred 3 by --only\n")

    def test_one_by_one_nothing_is_said_of_the_deferred_ones(self) -> None:
        self.write("few.txt", "c\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt", gpus="0")
        self.assertEqual((ran.code, ran.err, self.passed(ran)), (0, "", "c"))
        self.assertNotIn("sanity", ran.text)

    def test_the_failures_of_the_run_before(self) -> None:
        """Until a run that reads them has come to its end, they are there; those of --repeat name their tests."""
        ran = self.run_list("false a #: label=a\ntrue b #: label=b\nfalse c #: label=c\n", "--repeat", "2")
        self.assertEqual(sorted(ran.read("logs/failures").splitlines()), ["a", "a (run 2)", "c", "c (run 2)"])
        again = ("--only", "logs/failures", "--order", "file")
        text = "kill -9 $PPID #: label=a gpus=2\ntrue b #: label=b\ntrue c #: label=c\n"
        self.assertEqual(self.run_list(text, *again).code, -9)
        ran = self.run_list(text.replace("kill -9 $PPID", "false"), *again)
        self.assertEqual((ran.code, ran.read("logs/failures")), (1, "a\n"))
        ran = self.run_list(text.replace("kill -9 $PPID", "true"), *again)
        self.assertEqual((ran.code, self.passed(ran), os.listdir(ran.path("logs")).count("failures")), (0, "a", 0))

    def test_nothing_named_here_is_nothing_selected(self) -> None:
        self.write("few.txt", "gone\n")
        ran = self.run_list(ONLY_LIST, "--only", "few.txt")
        self.assertEqual((ran.code, ran.text.splitlines()[-2:]), (5, [
            "Selected 0 of 5 tests (0.0%); deferred 5 by --only; see logs/deferred.txt", "No test ran"]))

    def test_the_journal_knows_the_commit(self) -> None:
        for variables, commit in (({}, None), ({"CI_COMMIT_SHA": "4f2a"}, "4f2a"),
                                  ({"GITHUB_SHA": "", "GIT_COMMIT": "9"}, "9")):
            with self.subTest(variables):
                nothing = dict.fromkeys(run_tests.COMMIT_VARIABLES, "")
                ran = self.run_list("true\n", env={**nothing, **variables})
                self.assertEqual(ran.journal("run_start")[-1]["commit"], commit)


# What each test gets.

class Masks(SelectionCase):
    """Masks inside the outer mask."""

    def test_fractions_share_one(self) -> None:
        """Two halves meet on one GPU, and a test beside them has the other."""
        for name in ("a", "b", "c", "d"):
            os.mkfifo(os.path.join(self.folder, name))
        text = ("echo 1 >a; read x <b; true #: label=first gpus=0.5\n"
                "read x <a; echo 1 >c; read x <d; echo 1 >b && true #: label=second gpus=0.5\n"
                "read x <c; echo 1 >d && true #: label=whole\n")
        ran = self.run_list(text, "--timeout", f"{WAIT_S}s")
        self.check(ran, 0, {"first": "passed", "second": "passed", "whole": "passed"})
        gpus = {record["label"]: record["gpus"] for record in ran.journal("test_start")}
        self.assertEqual(gpus["first"], gpus["second"])
        self.assertEqual(sorted(gpus["first"] + gpus["whole"]), ["0", "1"])


class Needs(SelectionCase):
    """`lock`, `after` and `wait`, seen from inside the tests."""

    def test_a_lock_has_one_holder(self) -> None:
        """A folder can be made only once. A retry waits for its lock again, and others for its verdict."""
        text = "".join(f"mkdir held && sleep 0.01 && rmdir held #: lock={names} label=t{number}\n"
                       for number, names in enumerate(["a", "a,b", "b,a", "a", "c,a"]))
        text += ("mkdir held && rmdir held && test -e again || { touch again; false; } #: lock=a retries=1 label=x\n"
                 "test -e again #: after=x label=y\n")
        ran = self.run_list(text, gpus="0,1,2,3,4,5,6,7")
        outcomes = {**dict.fromkeys(["t0", "t1", "t2", "t3", "t4", "y"], "passed"), "x": "flaky"}
        self.assertEqual((ran.code, self.last_outcomes(ran)), (0, outcomes))
        self.assertEqual(self.started(ran).count("x"), 2)

    def test_what_waits_for_a_failure_is_blocked(self) -> None:
        for gpus in (TWO, "0"):
            with self.subTest(gpus=gpus):
                self.clean()
                ran = self.run_list("touch b #: label=b after=a\ntouch c #: label=c after=b\nfalse #: label=a\n"
                                    "wait\ntest ! -e b -a ! -e c #: label=d\ntrue #: label=e after=d\n", gpus=gpus)
                self.check(ran, 1, {"b": "blocked", "c": "blocked", "a": "failed", "d": "passed", "e": "passed"})
                self.assertEqual({record["label"]: record["reason"] for record in ran.journal("test_end")
                                  if "reason" in record}, {"b": "waits for a, which did not pass",
                                                           "c": "waits for b, which did not pass"})
                if gpus == TWO:
                    self.assertRegex(ran.text, r"(?m)^>>> Finished: a on GPU 0 \[failed, exit 1, \d+\.\ds, 1/5, at ")
                    self.assertRegex(ran.text, r"(?m)^>>> Blocked: b \[waits for a, which did not pass, 2/5\]$")

    def test_wait_holds_whatever_is_wider_or_longer(self) -> None:
        text = "touch a #: time=1s\ntouch b #: gpus=0\nwait\ntest -e a -a -e b #: gpus=2 time=1h label=c\n"
        self.check(self.run_list(text), 0, {"touch a": "passed", "touch b": "passed", "c": "passed"})


if __name__ == "__main__":
    unittest.main()
