"""Section 4 and the options that feed it: history, `-k`, order, shards; no test runs."""
from __future__ import annotations

import contextlib
import io
import json
import os
import random
import unittest
import unittest.mock
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import run_tests
from run_tests import ALL_GPUS, Attributes, BadValue, History, Options, Shard, Test, UsageError
from tests.support import RunnerCase, a_test

LIST = "tests.txt"
OWN = "logs/run_tests.jsonl"


def name_of(key: str) -> str:
    """The name in `selected` of the test with that key and label."""
    return named(key).name


def start(selected: Sequence[str] = (), left_out: Sequence[str] = (), run: str = "r", **values: Any) -> Dict[str, Any]:
    """A `run_start` record: the keys of the tests that were to run, and of those that were not."""
    return {"event": "run_start", "run": run, "time": 0.0, "lists": [LIST], "shard": None,
            "selected": [name_of(key) for key in selected], "left_out": [name_of(key) for key in left_out], **values}


def end(key: str, seconds: Any = 1.0, at: Any = 0.0, outcome: str = "passed", run: str = "r") -> Dict[str, Any]:
    """A `test_end` record."""
    return {"event": "test_end", "run": run, "time": at, "test": key, "label": key, "outcome": outcome,
            "seconds": seconds}


def named(key: str, index: int = 0, **attributes: Any) -> Test:
    """A test with that key, which is its label too."""
    return a_test(index, key, key=key, gpus=attributes.get("gpus", 1.0), attributes=Attributes(**attributes))


def many(text: str) -> List[Test]:
    """Tests from words `label[:gpus[:seconds[:after]]]`."""
    tests = []
    for index, word in enumerate(text.split()):
        label, gpus, seconds, after = (word + ":::").split(":")[:4]
        tests.append(named(label, index, gpus=run_tests.parse_gpus(gpus or "1"), time=float(seconds or 1),
                           after=tuple(filter(None, after.split(",")))))
    return tests


def labels(tests: Iterable[Test]) -> str:
    return " ".join(test.label for test in tests)


class HistoryCase(RunnerCase):
    """Journals in this test's folder."""

    def journal(self, *records: Any, path: str = OWN) -> str:
        """Write a journal of records, and of lines where they are text."""
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        return self.write(path, "".join(line + "\n" for line in lines))

    def history(self, *more: str, lists: Sequence[str] = (LIST,)) -> History:
        """What is known after reading the run's own journal and those given."""
        paths = [os.path.join(self.folder, path) for path in more]
        return run_tests.read_history(Options(tuple(lists), log_dir=os.path.join(self.folder, "logs"),
                                              history=tuple(paths)))

    def duration(self, key: str, *more: str) -> Optional[float]:
        return self.history(*more).duration(named(key))


class Durations(HistoryCase):
    """How long a test is expected to take."""

    def test_the_median_of_the_last_five_passes(self) -> None:
        for seconds, expected in (([4], 4), ([4, 8], 6), ([9, 1, 5], 5), ([1, 2, 3, 4], 2.5), ([5, 1, 4, 2, 3], 3),
                                  ([100, 100, 100, 1, 2, 3, 4, 5], 3), ([1] * 100 + [7] * 3, 7)):
            with self.subTest(seconds):
                self.journal(*(end("a", value, at) for at, value in enumerate(seconds)))
                self.assertEqual(self.duration("a"), expected)

    def test_the_last_by_time_whatever_journal_they_are_in(self) -> None:
        passes = [end("a", seconds, at) for at, seconds in enumerate([1000, 1000, 1000, 6, 2, 5, 3, 4])]
        for seed in range(20):
            random.Random(seed).shuffle(passes)
            self.journal(*passes[:3])
            self.journal(*passes[3:5], path="one.jsonl")
            self.journal(*passes[5:], path="two.jsonl")
            self.assertEqual(self.duration("a", "one.jsonl", "two.jsonl"), 4)
            self.assertEqual(self.duration("a", "two.jsonl", "one.jsonl"), 4)

    def test_only_passes_count(self) -> None:
        others = [outcome for outcome in run_tests.Outcome if outcome.value not in ("passed", "flaky")]
        self.assertEqual(len(others), 8)
        for outcome in others:
            with self.subTest(outcome):
                self.journal(end("a", 500, 3, outcome.value), end("b", 7, 4))
                self.assertEqual((self.duration("a"), self.duration("b")), (None, 7))
                self.journal(end("a", 5, 1), end("a", 500, 3, outcome.value))
                self.assertEqual(self.duration("a"), 5)
        self.journal(end("a", 5, 1), end("a", 7, 3, "flaky"))
        self.assertEqual(self.duration("a"), 6)

    def test_a_line_that_no_runner_has_written_costs_itself_alone(self) -> None:
        good = json.dumps(end("a", 3.0, 1))
        for line in ('{"event": "test_end", "run": "r", "tes', "", "{", "null", "7", '"text"', "[]", "[1, 2]", "{}",
                     "\udcff\udcfe", "\0", '{"event": null}', '{"event": "test_end"}', '{"event": {}, "run": []}',
                     '{"Action": "pass", "Test": "a"}', json.dumps({**end("a"), "run": None, "test": ["a"]}),
                     json.dumps({**end("a"), "outcome": ["passed"]}), json.dumps({**end("a"), "outcome": None}),
                     json.dumps({**start(["a"]), "lists": None}), json.dumps({**start(["a"]), "lists": [["a"]]}),
                     json.dumps({**start(["a"]), "run": ["r"]}), json.dumps({**start(["a"]), "selected": 3}),
                     json.dumps({**start(["a"]), "selected": [["a"]]}), json.dumps({**start(["a"]), "left_out": None}),
                     "9" * 5000, "[" * 100_000, '{"a":' * 100_000):
            with self.subTest(line[:60]):
                self.journal(line, good, line, good, line)
                self.assertEqual(self.duration("a"), 3.0)

    def test_what_is_no_duration_is_skipped(self) -> None:
        for seconds in ("-1", "-0.001", "NaN", "Infinity", "-Infinity", "1e999", "null", '"5"', "[5]", "{}",
                        "1" + "0" * 400, "1e308"):
            with self.subTest(seconds[:20]):
                self.journal(end("a", 3, 1), json.dumps(end("a", "HERE", 2)).replace('"HERE"', seconds),
                             json.dumps(end("b", "HERE", 2)).replace('"HERE"', seconds))
                estimates = run_tests.estimate([named("a"), named("b", 1), named("c", 2)], self.history())
                self.assertEqual(list(estimates.seconds.values()), [3, 3, 3])

    def test_what_is_no_time_is_skipped(self) -> None:
        for at in ("null", '"now"', "[]", "{}", "NaN"):
            with self.subTest(at):
                self.journal(*(end("a", 3, at) for at in range(9)),
                             *[json.dumps(end("a", 100, "HERE")).replace('"HERE"', at)] * 9)
                self.assertEqual(self.duration("a"), 3)

    def test_zero_seconds_are_a_duration(self) -> None:
        self.journal(end("a", 0))
        self.assertEqual(self.duration("a"), 0)

    def test_time_is_for_before_any_history(self) -> None:
        self.journal(end("a", 3), end("b", 100, 1, "failed"))
        history = self.history()
        self.assertEqual(history.duration(named("a", time=50.0)), 3)
        self.assertEqual(history.duration(named("b", time=50.0)), 50)
        self.assertIsNone(history.duration(named("b")))

    def test_the_end_of_a_long_journal_counts(self) -> None:
        line = json.dumps(end("a", 1, 1)) + "\n"
        with unittest.mock.patch.object(run_tests, "HISTORY_BYTES", len(line) * 3 + 10):
            self.write(OWN, json.dumps(end("old", 1, 0)) + "\n" + line * 3)
            self.assertEqual((self.duration("old"), self.duration("a")), (None, 1))

    def test_no_journal_is_no_history(self) -> None:
        self.assertEqual((self.history().passes, self.history().owed), ({}, set()))

    def test_a_journal_that_is_named_must_be_there(self) -> None:
        self.write("sub/x", "")
        for path, why in (("none.jsonl", "No such file or directory"), ("sub", "Is a directory"),
                          ("sub/x/y", "Not a directory")):
            with self.subTest(path), self.assertRaises(UsageError) as caught:
                self.history(path)
            self.assertRegex(str(caught.exception), rf"^--history .*/{path}: cannot be read \({why}\); name a journal$")

    def test_a_journal_that_is_named_twice_counts_once(self) -> None:
        """Whatever the spelling of its path; the run's own too."""
        self.journal(*(end("a", seconds, at) for at, seconds in enumerate([1, 1, 1, 9, 9])))
        for more in ([], [OWN], ["./" + OWN], ["logs/../" + OWN, "./" + OWN]):
            with self.subTest(more):
                self.assertEqual(self.duration("a", *more), 1)

    def test_a_journal_that_is_named_is_only_read(self) -> None:
        path = self.journal(end("a", 3), '{"torn', path="other.jsonl")
        os.chmod(path, 0o444)
        with open(path, "rb") as file:
            before = file.read()
        self.assertEqual(self.duration("a", "other.jsonl"), 3)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_a_journal_that_is_named_says_nothing_of_failures(self) -> None:
        self.journal(start("ab"), end("a", 3), end("b", 9, outcome="failed"), path="other.jsonl")
        history = self.history("other.jsonl")
        self.assertEqual((history.duration(named("a")), history.owed, history.seen), (3, set(), set()))
        self.assertTrue(history.owes(named("a")), "this machine has not run it")


class EstimateTest(unittest.TestCase):
    """Expected seconds of all tests."""

    def estimate(self, known: Mapping[str, float], *tests: Test) -> run_tests.Estimates:
        history = History([LIST])
        for key, seconds in known.items():
            history.add(end(key, seconds), is_own=True)
        return run_tests.estimate(tests, history)

    def test_an_unknown_one_counts_as_the_mean_of_the_known(self) -> None:
        tests = [named("a"), named("b", 1, time=30.0), named("c", 2), named("d", 3)]
        found = self.estimate({"a": 10, "elsewhere": 1000}, *tests)
        self.assertEqual([found.seconds[test] for test in tests], [10, 30, 20, 20])
        self.assertEqual(found.unknown, {tests[2], tests[3]})

    def test_a_minute_where_nothing_is_known(self) -> None:
        tests = [named("a"), named("b", 1)]
        found = self.estimate({"elsewhere": 1000}, *tests)
        self.assertEqual((list(found.seconds.values()), found.unknown), ([60.0, 60.0], set(tests)))

    def test_what_history_says_comes_before_the_list(self) -> None:
        found = self.estimate({"a": 10}, named("a", time=30.0))
        self.assertEqual((list(found.seconds.values()), found.unknown), ([10], set()))

    def test_a_command_under_another_label_takes_as_long(self) -> None:
        other = a_test(1, "b", key="a")
        self.assertEqual(list(self.estimate({"a": 10}, named("a"), other).seconds.values()), [10, 10])

    def test_a_label_tells_equal_commands_apart(self) -> None:
        """The shell state above them may make all the difference."""
        tests, history = [a_test(0, "short", key="a"), a_test(1, "long", key="a"), a_test(2, "new", key="a")], History()
        for label, seconds in (("short", 1), ("short", 2), ("long", 90)):
            history.add({**end("a", seconds), "label": label}, is_own=True)
        self.assertEqual(list(run_tests.estimate(tests, history).seconds.values()), [1.5, 90, 2])

    def test_no_tests(self) -> None:
        self.assertEqual(self.estimate({}).seconds, {})

    def test_it_is_said_what_the_durations_rest_on(self) -> None:
        for known, keys, expected in (
                ({"a": 10.0}, "at", "2 known from history (the median of the last 5 passes) or time="),
                ({"a": 10.0}, "axy", "1 known from history (the median of the last 5 passes) or time=; 2 unknown, "
                                     "taken for the mean of the known, 10.0s, each"),
                ({}, "xyz", "3 unknown, taken for 1m00s each")):
            with self.subTest(known=known, keys=keys):
                tests = [named(key, index, **({"time": 30.0} if key == "t" else {})) for index, key in enumerate(keys)]
                selection = run_tests.Selection(tests, {}, {}, self.estimate(known, *tests))
                self.assertEqual(run_tests.assumption(selection), f"Expected durations: {expected}")

    def test_durations_as_people_read_them(self) -> None:
        for seconds, expected in ((0, "0.0s"), (4.24, "4.2s"), (59.94, "59.9s"), (59.96, "1m00s"), (60, "1m00s"),
                                  (750, "12m30s"), (3599.4, "59m59s"), (3599.6, "1h00m"), (34440, "9h34m"),
                                  (360000, "100h00m")):
            with self.subTest(seconds):
                self.assertEqual(run_tests.show_duration(seconds), expected)


class Owing(HistoryCase):
    """Which tests `--rerun-failed` runs: those of this list that have not passed in their last run."""

    def owing(self, *records: Any, keys: str = "abcdef", lists: Sequence[str] = (LIST,)) -> str:
        """The keys of the tests that owe a pass after these records."""
        self.journal(*records)
        history = self.history(lists=lists)
        return "".join(key for key in keys if history.owes(named(key)))

    def failed(self, *records: Any, keys: str = "abcdef") -> str:
        self.journal(*records)
        history = self.history()
        return "".join(key for key in keys if name_of(key) in history.owed)

    def test_all_that_did_not_pass(self) -> None:
        outcomes = {"a": "passed", "b": "flaky", "c": "failed", "d": "crashed", "e": "timeout", "f": "blocked",
                    "g": "unrunnable", "h": "interrupted", "i": "not run"}
        records = [start("abcdefghij"), *(end(key, outcome=outcome) for key, outcome in outcomes.items())]
        self.assertEqual(self.owing(*records, keys="abcdefghij"), "cdefghij")
        self.assertEqual(self.failed(*records, keys="abcdefghij"), "cdefghij")

    def test_what_is_new_is_owed_but_has_not_failed(self) -> None:
        self.assertEqual(self.owing(start("ab"), end("a"), end("b", outcome="failed"), keys="abcd"), "bcd")
        self.assertEqual(self.failed(start("ab"), end("a"), end("b", outcome="failed"), keys="abcd"), "b")

    def test_a_chain_of_runs(self) -> None:
        first = [start("abcd", run="1"), end("a", run="1"), end("b", outcome="failed", run="1"),
                 end("c", outcome="timeout", run="1"), end("d", outcome="failed", run="1")]
        second = [start("bcd", "a", run="2"), end("b", run="2"), end("c", outcome="failed", run="2")]
        third = [start("cd", "ab", run="3"), end("c", run="3"), end("d", run="3")]
        self.assertEqual(self.owing(*first, keys="abcd"), "bcd")
        self.assertEqual(self.owing(*first, *second, keys="abcd"), "cd", "d was killed with its runner")
        self.assertEqual(self.owing(*first, *second, *third, keys="abcd"), "")
        again = [start("abcd", run="4"), end("a", outcome="failed", run="4"), *(end(key, run="4") for key in "bcd")]
        self.assertEqual(self.owing(*first, *second, *third, *again, keys="abcd"), "a")

    def test_what_was_left_out_stays_as_it_was(self) -> None:
        first = [start("abc", "f", run="1"), end("a", run="1"), end("b", outcome="failed", run="1"), end("c", run="1")]
        for second, expected in (
                ([start("a", "bcf", run="2"), end("a", run="2")], "b"),
                ([start("a", "bcf", run="2"), end("a", outcome="failed", run="2")], "ab"),
                ([start("b", "acf", run="2"), end("b", run="2")], ""),
                ([start("f", "abc", run="2"), end("f", outcome="failed", run="2")], "bf"),
                ([start("", "abcf", run="2")], "b")):
            with self.subTest(expected):
                self.assertEqual(self.owing(*first, *second, keys="abcf"), expected)

    def test_equal_lines_pass_each_for_itself(self) -> None:
        """They have one key, and labels that tell them apart."""
        tests = [a_test(0, "x", key="a"), a_test(1, "x #2", key="a")]
        run = {**start(), "selected": [test.name for test in tests]}
        for passed in ([], ["x"], ["x #2"], ["x", "x #2"]):
            with self.subTest(passed):
                self.journal(run, *({**end("a"), "label": label} for label in passed))
                self.assertEqual([test.label for test in tests if not self.history().owes(test)], passed)

    def test_passes_of_other_lists_settle_nothing(self) -> None:
        ours = [start("ab", run="1"), end("a", outcome="failed", run="1"), end("b", run="1")]
        others = [start("ab", run="2", lists=["other.txt"]), end("a", run="2"), end("b", outcome="failed", run="2")]
        self.assertEqual(self.owing(*ours, *others, keys="ab"), "a")
        self.assertEqual(self.owing(*others, *ours, keys="ab"), "a")
        self.assertEqual(self.owing(*ours, *others, keys="ab", lists=["other.txt"]), "b")

    def test_runs_that_share_a_journal_at_the_same_time(self) -> None:
        records = [start("ab", run="1"), start("ab", run="2", lists=["other.txt"]), end("a", run="2"),
                   end("b", run="1"), end("a", outcome="failed", run="1"), end("b", run="2")]
        self.assertEqual(self.owing(*records, keys="ab"), "a")

    def test_a_list_that_never_ran_owes_all(self) -> None:
        self.assertEqual(self.owing(keys="ab"), "ab")
        self.assertEqual(self.owing(start("ab", lists=["other.txt"]), end("a"), end("b"), keys="ab"), "ab")

    def test_several_lists(self) -> None:
        """A run of two lists was a run of each."""
        records = [start("abc", lists=["one.txt", "two.txt"]), end("a"), end("b", outcome="failed")]
        for lists in (["one.txt"], ["two.txt"], ["one.txt", "two.txt"], ["two.txt", "three.txt"]):
            with self.subTest(lists):
                self.assertEqual(self.owing(*records, keys="abc", lists=lists), "bc")

    def test_torn_lines(self) -> None:
        self.assertEqual(self.owing(start("abc"), end("a"), json.dumps(end("b"))[:-9], keys="abc"), "bc")
        self.assertEqual(self.owing(start("abc"), "{", end("a"), "", end("b"), keys="abc"), "c")

    def test_a_journal_of_before_selection_was_recorded(self) -> None:
        old = start("ab")
        for name in ("shard", "selected", "left_out"):
            del old[name]
        records = [old, end("a", 7), end("b", outcome="failed")]
        self.assertEqual(self.owing(*records, keys="ab"), "ab")
        self.assertEqual(self.failed(*records, keys="ab"), "")
        self.assertEqual(self.duration("a"), 7)

    def test_what_the_runs_of_a_shard_have_selected(self) -> None:
        self.journal(start("ab", shard="2/4"), start("abc"), start("c", shard="2/4"), start("d", shard="1/4"),
                     start("e", shard="2/4", lists=["other.txt"]))
        self.assertEqual(self.history().shards, {"2/4": set(map(name_of, "abc")), "": set(map(name_of, "abc")),
                                                 "1/4": {name_of("d")}})


# What `-k` keeps.

NAMES = ("unit/test_FP8.py -k a", "Slow", "h100")      # of one test: its label and its tags

KEEPS: Mapping[str, bool] = {
    "fp8": True, "FP8": True, "slow": True, "SLOW": True, "lo": True, "mi300": False, "unit/test_fp8.py": True,
    "h100 and slow": True, "h100 and mi300": False, "h100 or mi300": True, "mi300 or fp4": False, "not mi300": True,
    "not slow": False, "not not slow": True, "fp8 and not slow": False, "fp8 and not (fp4 or mi300)": True,
    "fp8 and not (slow or mi300)": False, "mi300 and slow or h100": True, "mi300 and (slow or h100)": False,
    "not mi300 and not fp4": True, "(fp8)": True, "((fp8)and(slow))": True, "not(mi300)": True, " fp8 ": True,
    "'-k a'": True, '"-k a" and slow': True, "'-k b'": False, "test_fp8.py or 'no such'": True,
    "'and'": False, "'not'": False, "AND": False, "Not or fp8": True, "android": False, "'(fp8'": False,
    "fp8.py:": False, "-k": True, "'fp8.py -k'": True, "a": True, "1==1": False, "True": False, "None": False,
    "__import__": False, "lambda:0": False, "name0": False, "not name0": True, "/": True, "\\": False, "[0]": False,
    "{}": False, "é": False, "\udcff": False, "x[0]or": False, "#": False, "fp8#": False,
}

BAD_EXPRESSIONS = ("", " ", "a b", "a and", "and a", "and", "or", "not", "a not b", "a and or b", "a and not", "(a",
                   "a)", "()", ")(", "a (b)", "a(b)", "(a)(b)", "not()", "''", '""', "'a", 'a"', "a 'b'", "a == b",
                   "a if b else c", "a, b", "(a, b)", "a = b", "a := b", "lambda: a", "__import__('os').system('x')",
                   "[a for b in c]", "a; b", "a\nb", "a'b'", "f'a'", "''a", "()()", "not ''", "(a and b", "''.x")


class Expressions(unittest.TestCase):
    """`-k EXPR`."""

    def test_what_it_keeps(self) -> None:
        for text, expected in KEEPS.items():
            with self.subTest(text):
                self.assertIs(run_tests.parse_expression(text)(NAMES), expected)

    def test_each_name_may_be_in_another_name_of_the_test(self) -> None:
        keep = run_tests.parse_expression("one and two")
        self.assertEqual([keep(names) for names in (["one", "two"], ["two one"], ["one"], ["on", "e two"], [])],
                         [True, True, False, False, False])

    def test_more_than_ten_names(self) -> None:
        """`name1` is not part of `name10`."""
        keep = run_tests.parse_expression(" or ".join(f"n{number}x" for number in range(30)))
        self.assertEqual([keep([name]) for name in ("n0x", "n1x", "n29x", "n30x")], [True, True, True, False])

    def test_bad_ones(self) -> None:
        for text in BAD_EXPRESSIONS:
            with self.subTest(text), self.assertRaises(BadValue) as caught:
                run_tests.parse_expression(text)
            self.assertRegex(str(caught.exception), r"is not names joined by and, or, not and parentheses, such as ")

    def test_monsters_keep_or_are_bad(self) -> None:
        for text in ("(" * 10_000 + "a" + ")" * 10_000, "(" * 10_000, "not " * 500 + "a", "not " * 900 + "a",
                     "not " * 10_000 + "a", " and ".join("a" * 10_000), " or ".join("ab" * 5_000), "a" * 100_000,
                     "a or (b and " * 60 + "c" + ")" * 60, "a or (b and " * 1000 + "c" + ")" * 1000):
            with self.subTest(text[:20], size=len(text)), contextlib.suppress(BadValue):
                self.assertIs(run_tests.parse_expression(text)(["a", "b", "c", "a" * 100_000]), True)


# In which order tests start.

def pool_of(gpus: int, sequential: bool = False) -> run_tests.Pool:
    devices = [run_tests.Device(index, str(index)) for index in range(gpus)]
    return run_tests.Pool(devices, sequential=sequential)


class Order(unittest.TestCase):
    """`--order`."""

    def order(self, text: str, order: str = "auto", *, unknown: str = "", failed: str = "", gpus: int = 4,
              deferred: str = "") -> str:
        """The labels in starting order. Many small tests make sure that none is as long as all that follow it."""
        tests = [*many(text), *(named("-", 100 + index, gpus=0.1, time=0.5) for index in range(2000))]
        seconds = {test: test.attributes.time or 0.0 for test in tests}
        unknowns = frozenset(test for test in tests if test.label in unknown.split())
        selection = run_tests.Selection(
            tests, {test: "--only" for test in tests if test.label in deferred.split()}, {},
            run_tests.Estimates(seconds, unknowns),
            frozenset(test for test in tests if test.label in failed.split()))
        return labels(test for test in selection.to_run(order, pool_of(gpus)) if test.label != "-")

    def test_widest_first_then_longest(self) -> None:
        self.assertEqual(self.order("a:1:5 b:2:1 c:1:6 d:0.5:9 e:2:2 f:1:7 g:0:5 h:0:6 i:1:7 j:1:7"),
                         "e b f i j c a d h g")

    def test_all_is_the_widest(self) -> None:
        self.assertEqual(self.order("a:4:9 b:all:1 c:4:9 d:4:8", gpus=4), "b a c d")

    def test_an_unknown_one_is_the_first_of_its_width(self) -> None:
        self.assertEqual(self.order("a:1:5 b:1:4 c:1:4 d:2:1 e:1:6 f:1:4 g:1:4", unknown="c f"), "d c f e a b g")

    def test_the_order_of_the_list_where_nothing_else_decides(self) -> None:
        self.assertEqual(self.order("d c b a g f e"), "d c b a g f e")

    def test_a_chain_counts_as_one(self) -> None:
        """A short test that a long one waits for starts before the tests of the length between."""
        self.assertEqual(self.order("a:1:5 b:1:1 c:1:6:b d:1:5 e:1:5 f:1:5"), "b c a d e f")
        self.assertEqual(self.order("a:1:5 b:1:1 c:4:1:b d:1:5 e:1:5"), "b c a d e", "it lets the widest start")
        self.assertEqual(self.order("c:1:3:b b:1:3:a a:1:3 x:1:8 y:1:7 z:1:5"), "a x y b z c")

    def test_no_test_starts_too_late(self) -> None:
        """One that is as long as all that is left goes before wider ones that it can run beside."""
        for text, gpus, expected in (("a:2:10 b:2:10 c:1:20", 4, "c a b"), ("a:2:10 b:2:10 c:1:20", 2, "a b c"),
                                     ("a:2:10 b:2:10 c:1:5 d:1:5", 4, "a b c d"),
                                     ("a:2:10 b:1:10:a c:1:19 d:0:30", 4, "d a c b"), ("a:all:5 b:1:50", 4, "a b")):
            with self.subTest(text, gpus=gpus):
                tests = many(text)
                estimates = run_tests.estimate(tests, History())
                self.assertEqual(labels(run_tests.widest_first(tests, estimates, gpus)), expected)

    def test_auto_is_the_order_of_the_list_where_tests_run_one_by_one(self) -> None:
        tests = many("a:1:1 b:2:9 c:1:7:b d:all:1")
        selection = run_tests.Selection(tests, {}, {}, run_tests.estimate(tests, History()),
                                        frozenset(tests[2:3]))
        for order, expected in (("auto", "a b c d"), ("file", "a b c d"), ("failed-first", "c a b d")):
            with self.subTest(order):
                self.assertEqual(labels(selection.to_run(order, pool_of(1, sequential=True))), expected)

    def test_a_chain_may_be_long(self) -> None:
        """Ten thousand tests in a row: no recursion."""
        words = ["t0:1:1"] + [f"t{number}:1:1:t{number - 1}" for number in range(1, 10_000)]
        tests = many(" ".join(words))
        seconds = dict.fromkeys(tests, 1.0)
        self.assertEqual(run_tests.chains_of(tests, seconds)[tests[0]], (1, 10_000.0))
        self.assertEqual(run_tests.chains_of(tests[::-1], seconds)[tests[0]], (1, 10_000.0))
        self.assertEqual(len(run_tests.too_wide([*tests, named("wide", gpus=4)], 2)), 1)

    def test_a_diamond_counts_its_longer_side(self) -> None:
        tests = many("a:1:1 b:1:2:a c:1:7:a d:3:4:b,c e:1:1")
        chains = run_tests.chains_of(tests, {test: test.attributes.time or 0 for test in tests})
        self.assertEqual([chains[test] for test in tests], [(3, 12), (3, 6), (3, 11), (3, 4), (1, 1)])

    def test_file(self) -> None:
        self.assertEqual(self.order("a:1:1 b:2:9 c:1:7:b d:all:1", "file", failed="c", unknown="d"), "a b c d")

    def test_failed_first(self) -> None:
        self.assertEqual(self.order("a:1:5 b:2:1 c:1:1 d:1:6 e:1:2 f:1:9 g:1:9", "failed-first", failed="c e"),
                         "e c b f g d a")

    def test_what_is_deferred_does_not_start(self) -> None:
        for order in ("auto", "file", "failed-first"):
            with self.subTest(order):
                self.assertEqual(self.order("a b c", order, deferred="b"), "a c")

    def test_every_test_starts_once(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            tests = [named(f"t{index}", index, gpus=rng.choice([0, 0.25, 1, 1, 2, 4, 9, ALL_GPUS]),
                           after=tuple({f"t{rng.randrange(index)}" for _ in range(rng.choice([0, 0, 1, 2])) if index}))
                     for index in range(rng.randrange(1, 30))]
            seconds = {test: rng.choice([0, 1, 5, 100, 10_000]) * rng.random() for test in tests}
            estimates = run_tests.Estimates(seconds, frozenset(rng.sample(tests, len(tests) // 4)))
            selection = run_tests.Selection(tests, {}, {}, estimates, frozenset(rng.sample(tests, 1)))
            for order in ("auto", "failed-first"):
                with self.subTest(seed=seed, order=order):
                    started = selection.to_run(order, pool_of(rng.choice([1, 2, 8])))
                    self.assertEqual(sorted(test.index for test in started), list(range(len(tests))))


# Shards.

def generated(rng: random.Random, count: int) -> List[Test]:
    """Tests as suites have them: log-normal durations, some wide, some tied together by `after`."""
    return [named(f"t{index}", index, gpus=rng.choices([0, 0.25, 1, 2, 4, 8, ALL_GPUS], [5, 5, 70, 10, 5, 4, 1])[0],
                  time=rng.lognormvariate(3, 1.2),
                  after=tuple({f"t{rng.randrange(index)}"} if index and rng.random() < 0.1 else ()))
            for index in range(count)]


def weight(test: Test, tests: Sequence[Test]) -> float:
    """GPU-seconds, as a shard counts them: a test without a GPU takes a place too, `all` as many as the widest."""
    widest = max([1.0, *(test.gpus for test in tests if test.gpus < ALL_GPUS)])
    return (test.attributes.time or 0.0) * (widest if test.gpus == ALL_GPUS else max(test.gpus, 1))


class Shards(unittest.TestCase):
    """`--shard K/N`."""

    def select(self, tests: Sequence[Test], shard: Optional[Shard], **options: Any) -> run_tests.Selection:
        return run_tests.select(tests, Options((LIST,), shard=shard, **options), History([LIST]))

    def parts(self, tests: Sequence[Test], total: int, **options: Any) -> List[run_tests.Selection]:
        return [self.select(tests, Shard(number, total), **options) for number in range(1, total + 1)]

    def test_they_are_a_partition(self) -> None:
        for seed in range(60):
            rng = random.Random(seed)
            tests = generated(rng, rng.randrange(1, 60))
            options: Dict[str, Any] = rng.choice([{}, {"max_gpus": 2}, {"keep": run_tests.parse_expression("not 3")},
                                                  {"max_gpus": 4, "keep": run_tests.parse_expression("1 or 2 or 3")}])
            whole = self.select(tests, None, **options)
            total = rng.randrange(1, 12)
            with self.subTest(seed=seed, total=total, options=options):
                parts = self.parts(tests, total, **options)
                self.assertEqual(sorted(test.index for part in parts for test in part.tests),
                                 [test.index for test in whole.tests])
                self.assertEqual(sorted(test.index for part in parts for test in part.deferred),
                                 sorted(test.index for test in whole.deferred))
                for part in parts:
                    self.assertEqual([test.index for test in part.tests], sorted(test.index for test in part.tests))
                    left_out = [test for tests in part.left_out.values() for test in tests]
                    self.assertEqual(sorted(test.index for test in [*part.tests, *left_out]), list(range(len(tests))))

    def test_they_are_balanced(self) -> None:
        for seed in range(20):
            tests = generated(random.Random(seed), 300)
            for total in (2, 3, 8):
                with self.subTest(seed=seed, total=total):
                    loads = [sum(weight(test, tests) for test in part.tests) for part in self.parts(tests, total)]
                    groups = self.groups_of(tests)
                    heaviest = max(sum(weight(test, tests) for test in group) for group in groups)
                    self.assertLessEqual(max(loads) - min(loads), heaviest + 1e-6)
                    self.assertLess(max(loads), 1.05 * max(sum(loads) / total, heaviest))

    @staticmethod
    def groups_of(tests: Sequence[Test]) -> List[List[Test]]:
        """The tests that `after` ties together, found by spreading the smallest number."""
        number = {test.label: test.index for test in tests}
        for _ in tests:
            for test in tests:
                for label in test.attributes.after:
                    number[label] = number[test.label] = min(number[label], number[test.label])
        return [[test for test in tests if number[test.label] == found] for found in set(number.values())]

    def test_tests_that_wait_for_each_other_stay_together(self) -> None:
        for seed in range(30):
            tests = generated(random.Random(seed), 50)
            part_of = {test.label: number for number, part in enumerate(self.parts(tests, 4)) for test in part.tests}
            with self.subTest(seed=seed):
                for test in tests:
                    for label in test.attributes.after:
                        self.assertEqual(part_of[test.label], part_of[label])
        tests = many("a b c:1:1:a,b d:1:1:c e f:1:1:e g h")
        parts = [labels(part.tests) for part in self.parts(tests, 2)]
        self.assertEqual(parts, ["a b c d", "e f g h"])

    def test_wide_tests_weigh_more(self) -> None:
        self.assertEqual([labels(part.tests) for part in self.parts(many("a:4:10 b:1:10 c:1:10 d:1:10 e:1:10"), 2)],
                         ["a", "b c d e"])

    def test_the_deferred_part_is_cut_too(self) -> None:
        tests = many("a:1:10 b:4:9 c:1:8 d:4:7 e:4:6 f:1:5 g:all:1")
        parts = self.parts(tests, 2, max_gpus=2)
        self.assertEqual([[len(part.tests) - len(part.deferred), len(part.deferred)] for part in parts],
                         [[2, 1], [2, 2]])
        self.assertEqual([labels(test for test in part.tests if test in part.deferred) for part in parts],
                         ["b", "d e"])

    def test_one_of_one_is_all(self) -> None:
        tests = many("a b c")
        selection = self.select(tests, Shard(1, 1))
        self.assertEqual((selection.tests, [len(out) for out in selection.left_out.values()]), (tests, [0]))

    def test_more_shards_than_tests(self) -> None:
        self.assertEqual([len(part.tests) for part in self.parts(many("a b c"), 5)], [1, 1, 1, 0, 0])

    def test_the_plan_is_named_so_that_shards_can_be_compared(self) -> None:
        """The same on every shard; another where list or durations differ."""
        def plans(tests: List[Test]) -> List[str]:
            return [why.partition("plan ")[2] for part in self.parts(tests, 2) for why in part.left_out]

        first, second = plans(many("a:1:10 b:1:20 c:1:30"))
        self.assertRegex(first, r"^[0-9a-f]{6}\)$")
        self.assertEqual(first, second)
        self.assertNotIn(first, plans(many("a:1:10 b:1:20 d:1:30")))
        self.assertNotIn(first, plans(many("a:1:60 b:1:20 c:1:30")))

    def test_values(self) -> None:
        for text, expected in (("1/1", Shard(1, 1)), ("2/4", Shard(2, 4)), ("4/4", Shard(4, 4)),
                               ("99999/99999", Shard(99999, 99999)), ("auto", "auto")):
            with self.subTest(text):
                self.assertEqual(run_tests.parse_shard(text), expected)
        for text in ("", "1", "0/4", "5/4", "1/0", "0/0", "-1/4", "1/-4", "a/b", "1/4/5", "1 / 4", "1/4 ", "01/4",
                     "1.0/4", "AUTO", "autos", "1/100000", "²/4", "٢/٤"):
            with self.subTest(text), self.assertRaises(BadValue) as caught:
                run_tests.parse_shard(text)
            self.assertEqual(str(caught.exception), f"{text!r} is not K/N, K from 1 to N, such as 2/4, nor auto")


GITLAB = {"GITLAB_CI": "true", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "3"}
CIRCLE = {"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "3"}
BUILDKITE = {"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "3"}
SEMAPHORE = {"SEMAPHORE_JOB_INDEX": "1", "SEMAPHORE_JOB_COUNT": "3"}
AZURE = {"SYSTEM_JOBPOSITIONINPHASE": "1", "SYSTEM_TOTALJOBSINPHASE": "3"}
SLURM = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "3"}
SERVICES: Mapping[str, Tuple[Dict[str, str], str, int]] = {     # variables, the one that counts, and from where
    "GitLab": (GITLAB, "CI_NODE_INDEX", 1), "CircleCI": (CIRCLE, "CIRCLE_NODE_INDEX", 0),
    "Buildkite": (BUILDKITE, "BUILDKITE_PARALLEL_JOB", 0), "Semaphore": (SEMAPHORE, "SEMAPHORE_JOB_INDEX", 1),
    "Azure": (AZURE, "SYSTEM_JOBPOSITIONINPHASE", 1), "Slurm": (SLURM, "SLURM_ARRAY_TASK_ID", 0),
    "Slurm from 5": ({**SLURM, "SLURM_ARRAY_TASK_MIN": "5"}, "SLURM_ARRAY_TASK_ID", 5)}


class ShardsOfServices(unittest.TestCase):
    """`--shard auto`."""

    def find(self, environ: Mapping[str, str]) -> Tuple[Optional[Shard], str]:
        """The shard, and what is said on stderr."""
        with contextlib.redirect_stderr(io.StringIO()) as told:
            return run_tests.find_shard(environ), told.getvalue()

    def test_each_counts_from_its_base(self) -> None:
        for service, (environ, name, base) in SERVICES.items():
            for number in range(3):
                with self.subTest(service, number=number):
                    found = self.find({**environ, name: str(base + number), "CI": "true"})
                    self.assertEqual(found, (Shard(number + 1, 3), ""))

    def test_beyond_them_is_a_mistake(self) -> None:
        for service, (environ, name, base) in SERVICES.items():
            for value in (str(base - 1), str(base + 3), "", "x", "1.5"):
                with self.subTest(service, value=value), self.assertRaises(UsageError) as caught:
                    self.find({**environ, name: value})
                self.assertRegex(str(caught.exception), rf"^--shard auto: {name}={value} is not one of \w+=3; "
                                                        "write --shard K/N$")

    def test_a_total_that_is_none(self) -> None:
        for service, (environ, name, _) in SERVICES.items():
            total = next(key for key, value in environ.items() if value == "3")
            for value in ("0", "", "-1", "many"):
                with self.subTest(service, value=value), self.assertRaises(UsageError) as caught:
                    self.find({**environ, total: value})
                self.assertIn(f"{name}={environ[name]} is not one of {total}={value}", str(caught.exception))

    def test_slurm_arrays_with_a_step(self) -> None:
        for numbers, step in (((1, 3, 5), 2), ((10, 20, 30), 10), ((7, 8, 9), 1)):
            environ = {"SLURM_ARRAY_TASK_MIN": str(numbers[0]), "SLURM_ARRAY_TASK_STEP": str(step),
                       "SLURM_ARRAY_TASK_COUNT": "3"}
            found = [self.find({**environ, "SLURM_ARRAY_TASK_ID": str(number)})[0] for number in numbers]
            self.assertEqual(found, [Shard(1, 3), Shard(2, 3), Shard(3, 3)])
        for variable, value in (("SLURM_ARRAY_TASK_STEP", "0"), ("SLURM_ARRAY_TASK_STEP", "x"),
                                ("SLURM_ARRAY_TASK_MIN", "x")):
            with self.subTest(variable, value=value), self.assertRaises(UsageError):
                self.find({**SLURM, variable: value})

    def test_the_step_of_slurm_is_nothing_to_others(self) -> None:
        found, _ = self.find({**AZURE, "SYSTEM_JOBPOSITIONINPHASE": "3", "SLURM_ARRAY_TASK_STEP": "2"})
        self.assertEqual(found, Shard(3, 3))

    def test_gitlabs_variables_are_its_own_only_there(self) -> None:
        """Other tools set CI_NODE_INDEX too, from 0."""
        environ = {"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}
        self.assertEqual(self.find({**environ, **CIRCLE})[0], Shard(1, 3))
        self.assertEqual(self.find(environ)[0], None)
        self.assertEqual(self.find({**GITLAB, **CIRCLE, "CIRCLE_NODE_INDEX": "2"})[0], Shard(1, 3))

    def test_half_of_the_variables_is_no_service(self) -> None:
        for service, (environ, _, _) in SERVICES.items():
            for name in environ:
                if name != "SLURM_ARRAY_TASK_MIN":
                    with self.subTest(service, without=name):
                        self.assertIsNone(self.find({key: value for key, value in environ.items() if key != name})[0])

    def test_without_a_service_all_tests_run(self) -> None:
        warning = "run_tests.py: --shard auto: no CI says which shard this is; all tests run\n"
        self.assertEqual(self.find({"CI": "true", "GITLAB_CI": "true"}), (None, warning))


# The whole selection.

class Selections(unittest.TestCase):
    """What runs, what is deferred, what is left out and by what."""

    def select(self, text: str, history: Sequence[Dict[str, Any]] = (), **options: Any) -> run_tests.Selection:
        known = History([LIST])
        for record in history:
            known.add(record, is_own=True)
        return run_tests.select(many(text), Options((LIST,), **options), known)

    def test_all(self) -> None:
        selection = self.select("a b:9 c:all")
        self.assertEqual((labels(selection.tests), selection.deferred, selection.left_out, selection.failed),
                         ("a b c", {}, {}, frozenset()))
        self.assertEqual(run_tests.account(selection, Options((LIST,))), [])

    def test_each_option_answers_for_what_it_leaves_out(self) -> None:
        history = [start(["a1", "a2", "a3", "b1"]), end("a1"), end("a2"), end("b1")]
        options = {"keep": run_tests.parse_expression("a"), "rerun_failed": True}
        selection = self.select("a1 a2 a3 b1 b2", history, **options)
        self.assertEqual({why: labels(tests) for why, tests in selection.left_out.items()},
                         {"-k": "b1 b2", "--rerun-failed": "a1 a2"})
        self.assertEqual((labels(selection.tests), labels(selection.failed)), ("a3", "a3"))
        self.assertEqual(run_tests.account(selection, Options((LIST,), **options)),
                         ["Selected 1 of 5 tests (20.0 %); left out 2 by -k, 2 by --rerun-failed"])

    def test_too_wide_a_test_is_deferred_with_all_that_wait_for_it(self) -> None:
        for text, most, expected in (
                ("a:1 b:2 c:3 d:4 e:0 f:0.5 g:all", 2, "c d"), ("a:1 b:2 c:3", 3, ""), ("a:2 b:2", 1, "a b"),
                ("a:4 b:1:1:a c:1:1:b d:1:1:c,e e:1 f:1:1:e", 2, "a b c d"),
                ("a:1 b:4:1:a c:1:1:a", 2, "b"), ("c:1:1:a a:4", 2, "c a")):
            with self.subTest(text, most=most):
                selection = self.select(text, max_gpus=most)
                self.assertEqual(labels(test for test in selection.tests if test in selection.deferred), expected)
                self.assertEqual(len(selection.tests), len(text.split()))
                self.assertEqual(selection.left_out, {})

    def test_what_k_leaves_out_is_not_deferred(self) -> None:
        selection = self.select("a:4 b:4 c d", max_gpus=2, keep=run_tests.parse_expression("a or c"))
        self.assertEqual((labels(selection.tests), labels(selection.deferred)), ("a c", "a"))

    def test_the_account_of_a_deferral(self) -> None:
        options = Options((LIST,), max_gpus=2, log_dir="some/logs")
        for text, expected in (
                ("a b:4 c d:all", "Selected 3 of 4 tests (75.0 %); deferred 1 that need more than 2 GPUs: "
                                  "some/logs/deferred.txt"),
                ("a b:4 c:1:1:b d", "Selected 2 of 4 tests (50.0 %); deferred 2 that need more than 2 GPUs or wait for "
                                    "one that does: some/logs/deferred.txt"),
                ("b:4", "Selected 0 of 1 tests (0.0 %); deferred 1 that need more than 2 GPUs: some/logs/deferred.txt"),
                ("a b", "Selected 2 of 2 tests (100.0 %)")):
            with self.subTest(text):
                self.assertEqual(run_tests.account(self.select(text, max_gpus=2), options), [expected])

    def test_the_sentence_of_pytorchs_suite(self) -> None:
        """4,495 tests of which 324 need more than 2 GPUs."""
        text = " ".join(f"t{number}:{4 if number < 324 else 2}" for number in range(4495))
        selection = self.select(text, max_gpus=2)
        self.assertEqual(run_tests.account(selection, Options((LIST,), max_gpus=2)),
                         ["Selected 4171 of 4495 tests (92.8 %); deferred 324 that need more than 2 GPUs: "
                          "logs/deferred.txt"])

    def test_only_takes_the_named_ones_and_what_they_wait_for(self) -> None:
        text = "a b:1:1:a c:1:1:b d:1:1:z e"
        for named_here, words, expected in (
                ("a", [], "a"), ("c", [], "a b c"), ("d e", [], "d e"), ("z", [], ""), ("a b c d e", [], "a b c d e"),
                ("e", ["b"], "a b e"), ("e", ["nothing"], "e"), ("z", ["d", "e"], "d e")):
            with self.subTest(named_here, words=words):
                selection = self.select(text, only=run_tests.LabelFile("few.txt", frozenset(named_here.split())),
                                        wanted=tuple(words))
                self.assertEqual(labels(test for test in selection.tests if test not in selection.deferred), expected)
                self.assertEqual((labels(selection.tests), set(selection.deferred.values()) - {"--only"}),
                                 ("a b c d e", set()))

    def test_a_word_of_the_message_is_a_part_of_label_or_tags(self) -> None:
        for word, expected in (("asan", True), ("san", True), ("sq", True), ("test_", True), ("asan2", False)):
            with self.subTest(word):
                self.assertEqual(run_tests.has_word(a_test(0, "Test_SQRT", attributes=Attributes(tags=("ASAN", "x"))),
                                                    word), expected)

    def test_the_account_of_only_and_max_gpus(self) -> None:
        few = run_tests.LabelFile("few.txt", frozenset(["a", "b"]))
        for text, values, expected in (
                ("a b c d", {}, "Selected 2 of 4 tests (50.0 %); deferred 2 that few.txt does not name: "),
                ("a b:4 c d:4", {"max_gpus": 2}, "Selected 1 of 4 tests (25.0 %); deferred 2 that few.txt does not "
                                                 "name, 1 that need more than 2 GPUs: "),
                ("a b", {}, "Selected 2 of 2 tests (100.0 %)")):
            with self.subTest(text):
                options = Options((LIST,), only=few, **values)
                where = "logs/deferred.txt" if "deferred" in expected else ""
                self.assertEqual(run_tests.account(self.select(text, only=few, **values), options), [expected + where])

    def test_shards_share_out_what_only_names(self) -> None:
        text = " ".join(f"t{number}" for number in range(20))
        few = run_tests.LabelFile("few.txt", frozenset(f"t{number}" for number in range(10)))
        parts = [self.select(text, only=few, shard=run_tests.Shard(number, 2)) for number in (1, 2)]
        self.assertEqual([len(part.tests) - len(part.deferred) for part in parts], [5, 5])

    def test_a_shard_that_is_run_again_keeps_its_tests(self) -> None:
        """Its own durations have changed since the cut: the tests are those that the journal says."""
        text = "a:1:40 b:1:30 c:1:20 d:1:10"
        whole = [labels(self.select(text, shard=Shard(number, 2)).tests) for number in (1, 2)]
        self.assertEqual(whole, ["a d", "b c"])
        history = [start("ad", "bc", shard="1/2"), end("a", 1), end("d", 500, outcome="failed")]
        again = self.select(text, history, shard=Shard(1, 2), rerun_failed=True)
        self.assertEqual((labels(again.tests), {why: labels(out) for why, out in again.left_out.items()}),
                         ("d", {"--shard 1/2": "b c", "--rerun-failed": "a"}))

    def test_a_run_between_takes_nothing_from_a_shard(self) -> None:
        """`-k d` without a shard, and then again what failed in the first: it is in no other shard's journal."""
        text, history = "a:1:40 b:1:30 c:1:20 d:1:10", [
            start("ad", "bc", run="1", shard="1/2"), end("a", 1, 1, "failed", run="1"), end("d", 10, 1, run="1"),
            start("d", "abc", run="2"), end("d", 900, 2, run="2")]
        again = self.select(text, history, shard=Shard(1, 2), rerun_failed=True)
        self.assertEqual(labels(again.tests), "a")

    def test_another_shard_is_cut_anew(self) -> None:
        history = [start("ad", "bc", shard="1/2"), *(end(key, 1000, outcome="failed") for key in "ad")]
        other = self.select("a:1:40 b:1:30 c:1:20 d:1:10", history, shard=Shard(2, 2), rerun_failed=True)
        self.assertEqual(labels(other.tests), "", "what owes a pass is in the first")
        self.assertEqual([labels(out) for out in other.left_out.values()], ["a d", "b c"])

    def test_a_shard_without_rerun_failed_is_cut_without_a_look_at_failures(self) -> None:
        """Machines with different failures but the same durations cut the same shards."""
        text = "a:1:40 b:1:30 c:1:20 d:1:10"
        history = [start("abcd"), *(end(key, outcome="failed") for key in "abcd")]
        for number in (1, 2):
            self.assertEqual(labels(self.select(text, history, shard=Shard(number, 2)).tests),
                             labels(self.select(text, shard=Shard(number, 2)).tests))


if __name__ == "__main__":
    unittest.main()
