"""Section 4 and the options that feed it: history, `-k`, `--only`, order, shards; no test runs."""
from __future__ import annotations

import contextlib
import io
import json
import os
import random
import unittest
import unittest.mock
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import run_tests
from run_tests import ALL_GPUS, Attributes, BadValue, History, LabelFile, Options, Test, UsageError
from tests.support import RunnerCase, a_test

LIST = "tests.txt"
OF_LIST = Options((LIST,))
OWN = "logs/run_tests.jsonl"


def start(selected: Sequence[str] = (), left_out: Sequence[str] = (), run: str = "r", **values: Any) -> Dict[str, Any]:
    """A `run_start` record: the keys of the tests that were to run, and of those that were not."""
    return {"event": "run_start", "run": run, "time": 0.0, "lists": [LIST], "shard": None,
            "selected": [named(key).name for key in selected], "left_out": [named(key).name for key in left_out],
            **values}


def end(key: str, seconds: Any = 1.0, at: Any = 0.0, outcome: str = "passed", run: str = "r") -> Dict[str, Any]:
    """A `test_end` record."""
    return {"event": "test_end", "run": run, "time": at, "test": key, "label": key, "outcome": outcome,
            "seconds": seconds, "list": "tests.txt"}


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

    def history(self, *more: str, lists: Sequence[str] = (LIST,), **options: Any) -> History:
        """What is known after reading the run's own journal and those given."""
        paths = [os.path.join(self.folder, path) for path in more]
        return run_tests.read_history(Options(tuple(lists), log_dir=os.path.join(self.folder, "logs"),
                                              history=tuple(paths), **options))

    def duration(self, key: str, *more: str, **options: Any) -> Optional[float]:
        return self.history(*more, **options).duration(named(key))


class Durations(HistoryCase):
    """How long a test is expected to take."""

    def test_the_median_of_the_last_five_passes(self) -> None:
        for seconds, expected in (([4], 4), ([4, 8], 6), ([9, 1, 5], 5), ([1, 2, 3, 4], 2.5), ([5, 1, 4, 2, 3], 3),
                                  ([100, 100, 100, 1, 2, 3, 4, 5], 3), ([1] * 100 + [7] * 3, 7), ([0], 0)):
            with self.subTest(seconds):
                self.journal(*(end("a", value, at) for at, value in enumerate(seconds)))
                self.assertEqual(self.duration("a"), expected)

    def test_the_last_by_time_whatever_journal_they_are_in(self) -> None:
        passes = [end("a", seconds, at) for at, seconds in enumerate([1000, 1000, 1000, 6, 2, 5, 3, 4])]
        for seed in range(10):
            random.Random(seed).shuffle(passes)
            self.journal(*passes[:4])
            self.journal(*passes[4:], path="one.jsonl")
            self.assertEqual(self.duration("a", "one.jsonl"), 4)

    def test_only_passes_count_and_before_them_what_the_list_says(self) -> None:
        others = [outcome for outcome in run_tests.Outcome if outcome.value not in ("passed", "flaky")]
        self.assertEqual(len(others), 10)
        for outcome in others:
            with self.subTest(outcome):
                self.journal(end("a", 500, 3, outcome.value), end("b", 5, 1), end("b", 500, 3, outcome.value))
                history = self.history()
                self.assertEqual([history.duration(test) for test in
                                  (named("a"), named("a", time=50.0), named("b", time=50.0))], [None, 50, 5])
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

    def test_a_torn_line_does_not_swallow_what_stands_behind_it(self) -> None:
        """Its runner was killed, and another had the journal open."""
        torn = json.dumps(end("b", 9))[:-9]
        self.journal(start("ab"), torn + json.dumps({**end("a", 3), "label": 'has {"event" in it'}))
        history = self.history()
        self.assertEqual((history.duration(named("a")), history.duration(named("b"))), (3, None))

    def test_what_is_no_duration_or_no_time_is_skipped(self) -> None:
        for seconds in ("-1", "-0.001", "NaN", "Infinity", "-Infinity", "1e999", "null", '"5"', "[5]", "{}",
                        "1" + "0" * 400, "1e308"):
            with self.subTest(seconds[:20]):
                self.journal(end("a", 3, 1), *(json.dumps(end(key, "HERE", 2)).replace('"HERE"', seconds)
                                               for key in "ab"))
                tests = [named("a"), named("b", 1), named("c", 2)]
                estimates = run_tests.estimate(tests, self.history())
                self.assertEqual([estimates[test] for test in tests], [3, 3, 3])
        for at in ("null", '"now"', "[]", "{}"):
            with self.subTest(at=at):
                self.journal(*(end("a", 3, at) for at in range(9)),
                             *[json.dumps(end("a", 100, "HERE")).replace('"HERE"', at)] * 9)
                self.assertEqual(self.duration("a"), 3)

    def test_the_end_of_a_long_journal_counts(self) -> None:
        line = json.dumps(end("a", 1, 1)) + "\n"
        with unittest.mock.patch.object(run_tests, "HISTORY_BYTES", len(line) * 3 + 10):
            for lines, expected in ((2, 7), (3, None)):
                with self.subTest(lines=lines):
                    self.write(OWN, json.dumps(end("old", 7, 0)) + "\n" + line * lines)
                    self.assertEqual(self.duration("old"), expected)
                    self.assertEqual(self.duration("a"), 1)

    def test_a_journal_that_is_named_must_be_there(self) -> None:
        self.assertEqual((self.history().passes, self.history().owed), ({}, {}), "the run's own need not be")
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

    def test_a_journal_that_is_named_is_only_read_and_says_nothing_of_failures(self) -> None:
        path = self.journal(start("ab"), end("a", 3), end("b", 9, outcome="failed"), '{"torn', path="other.jsonl")
        before = os.stat(path)
        history = self.history("other.jsonl")
        self.assertEqual((history.duration(named("a")), history.owed, history.seen), (3, {}, {}))
        self.assertTrue(history.owes(named("a"), 1), "this machine has not run it")
        self.assertEqual((os.stat(path).st_mtime_ns, os.stat(path).st_size), (before.st_mtime_ns, before.st_size))


class EstimateTest(unittest.TestCase):
    """Expected seconds of all tests."""

    def estimate(self, known: Sequence[Tuple[str, str, float]], *tests: Test) -> run_tests.Estimates:
        """With passes in the history: key, label, seconds."""
        history = History(OF_LIST)
        for key, label, seconds in known:
            history.add({**end(key, seconds), "label": label}, is_own=True)
        return run_tests.estimate(tests, history)

    def test_an_unknown_one_counts_as_the_mean_of_the_known(self) -> None:
        tests = [named("a"), named("b", 1), named("c", 2), named("d", 3)]
        found = self.estimate([("a", "a", 10), ("b", "b", 30), ("elsewhere", "x", 1000)], *tests)
        self.assertEqual(([found[test] for test in tests], [*found]), ([10, 30, 20, 20], tests[:2]))
        found = self.estimate([("elsewhere", "x", 1000)], *tests[2:])
        self.assertEqual((found[tests[2]], [*found]), (60.0, []), "a minute")

    def test_where_lines_carry_a_time_those_without_count_as_the_shorter(self) -> None:
        """They start behind the long ones that somebody has marked, wherever these stand. History goes first."""
        tests = [named("a"), named("b", 1), named("long", 2, time=3600.0), named("c", 3), named("short", 4, time=10.0)]
        found = self.estimate([("b", "b", 7)], *tests[:4])
        self.assertEqual([found[test] for test in tests[:4]], [1800, 7, 3600, 1800])
        self.assertEqual([*found], tests[1:3])
        self.assertEqual(labels(run_tests.widest_first(tests[:4], found, 1)), "long a c b")
        found = self.estimate([("long", "long", 9)], *tests)
        self.assertEqual([found[test] for test in tests], [5, 5, 9, 5, 10])

    def test_a_label_tells_equal_commands_apart(self) -> None:
        """The shell state above them may make all the difference. A new label takes as long as the others."""
        tests = [a_test(0, "short", key="a"), a_test(1, "long", key="a"), a_test(2, "new", key="a")]
        found = self.estimate([("a", "short", 1), ("a", "short", 2), ("a", "long", 90)], *tests)
        self.assertEqual([found[test] for test in tests], [1.5, 90, 2])

    def test_durations_as_people_read_them(self) -> None:
        for seconds, expected in ((0, "0.0s"), (4.24, "4.2s"), (59.94, "59.9s"), (59.96, "1:00"), (60, "1:00"),
                                  (750, "12:30"), (3599.4, "59:59"), (3599.6, "1:00:00"), (34440, "9:34:00"),
                                  (360000, "100:00:00")):
            with self.subTest(seconds):
                self.assertEqual(run_tests.show_duration(seconds), expected)


class Owing(HistoryCase):
    """Which tests `--rerun-failed` runs: those of this list that have not passed in their last run."""

    def owing(self, *records: Any, keys: str = "abcd", lists: Sequence[str] = (LIST,)) -> str:
        """The keys of the tests that owe a pass after these records; those that have failed in capitals."""
        self.journal(*records)
        history = self.history(lists=lists)
        return "".join(key.upper() if history.owed.get(named(key).name) else key for key in keys
                       if history.owes(named(key), 1))

    def test_all_that_did_not_pass_and_what_is_new(self) -> None:
        outcomes = {"a": "passed", "b": "flaky", "s": "skipped", "c": "failed", "d": "crashed", "e": "timeout",
                    "f": "blocked", "x": "failed as known", "g": "unrunnable", "h": "interrupted", "i": "not run"}
        records = [start("abcdefghijsx"), *(end(key, outcome=outcome) for key, outcome in outcomes.items())]
        self.assertEqual(self.owing(*records, keys="abcdefghijklsx"), "CDEFGHIJkl")

    def test_a_chain_of_runs(self) -> None:
        first = [start("abcd", run="1"), end("a", run="1"), end("b", outcome="failed", run="1"),
                 end("c", outcome="timeout", run="1"), end("d", outcome="failed", run="1")]
        second = [start("bcd", "a", run="2"), end("b", run="2"), end("c", outcome="failed", run="2")]
        third = [start("cd", "ab", run="3"), end("c", run="3"), end("d", run="3")]
        self.assertEqual(self.owing(*first), "BCD")
        self.assertEqual(self.owing(*first, *second), "CD", "d was killed with its runner")
        self.assertEqual(self.owing(*first, *second, *third), "")
        again = [start("abcd", run="4"), end("a", outcome="failed", run="4"), *(end(key, run="4") for key in "bcd")]
        self.assertEqual(self.owing(*first, *second, *third, *again), "A")

    def test_what_was_left_out_stays_as_it_was(self) -> None:
        first = [start("abc", "f", run="1"), end("a", run="1"), end("b", outcome="failed", run="1"), end("c", run="1")]
        for second, expected in (
                ([start("a", "bcf", run="2"), end("a", run="2")], "B"),
                ([start("a", "bcf", run="2"), end("a", outcome="failed", run="2")], "AB"),
                ([start("b", "acf", run="2"), end("b", run="2")], ""),
                ([start("f", "abc", run="2"), end("f", outcome="failed", run="2")], "BF"),
                ([start("", "abcf", run="2")], "B")):
            with self.subTest(expected):
                self.assertEqual(self.owing(*first, *second, keys="abcf"), expected)

    def test_of_a_test_that_was_repeated_all_runs_have_to_pass(self) -> None:
        """Whether it is to be repeated now or not; as a new number of runs is no new test."""
        tests = [a_test(0, "x", key="a"), a_test(1, "x (run 2)", key="a", origin="x"),
                 a_test(2, "x (run 3)", key="a", origin="x")]
        for passed in (["x"], ["x (run 2)"], ["x", "x (run 2)"]):
            with self.subTest(passed):
                run = {**start(), "selected": [test.name for test in tests[:2]]}
                self.journal(run, *({**end("a"), "label": label, "origin": "x"} for label in passed))
                self.assertEqual({self.history().owes(test, 1) for test in tests}, {len(passed) < 2})

    def test_equal_lines_owe_together(self) -> None:
        """Their numbers are others when a line is taken out, or one of two lists runs alone."""
        tests = [a_test(0, "x", key="a"), a_test(1, "x #2", key="a")]
        run = {**start(), "selected": [test.name for test in tests]}
        for passed in ([], ["x"], ["x #2"], ["x", "x #2"]):
            with self.subTest(passed):
                self.journal(run, *({**end("a"), "label": label} for label in passed))
                self.assertEqual([self.history().owes(test, 2) for test in tests], [len(passed) < 2] * 2)
        self.assertTrue(self.history().owes(tests[0], 3), "one is new")
        both = [test.name for test in tests]         # one fails; then one is run again, or put off
        first = [{**start(run="1"), "selected": both}, *({**end("a", outcome="failed", run="1"), "label": label}
                                                         for label in ("x", "x #2"))]
        again = {**start(run="2"), "selected": both[:1], "left_out": both[1:]}
        for runs in ([*first, again, {**end("a", run="2"), "label": "x #2"}],
                     [again, {**end("a", outcome="deferred", run="2"), "label": "x #2"},
                      {**end("a", outcome="failed", run="2"), "label": "x"}]):
            self.journal(*runs)
            self.assertEqual([self.history().owes(test, 2) for test in tests], [True, True])
        other = a_test(2, "x #2", key="b")       # the second by its label alone
        self.journal({**start(), "selected": [test.name for test in (tests[0], other)]}, {**end("a"), "label": "x"})
        self.assertEqual([self.history().owes(test, 1) for test in (tests[0], other)], [False, True])

    def test_an_equal_line_of_another_list(self) -> None:
        """It is another test, whose shell state may be another."""
        ours, theirs = named("a"), a_test(0, "a", key="a", file="other.txt")
        self.journal({**start(), "lists": [LIST, "other.txt"], "selected": [ours.name, theirs.name]},
                     end("a", outcome="failed"), {**end("a"), "list": "./other.txt"})
        self.assertEqual([self.history().owes(test, 1) for test in (ours, theirs)], [True, False])

    def test_another_directory_with_a_list_of_that_name(self) -> None:
        """It counts only as long as nothing ran here: a checkout may have moved."""
        here = [start("ab", run="1", directory=os.getcwd()), end("a", outcome="failed", run="1"), end("b", run="1")]
        there = [{**start("abc", run="2"), "directory": "/elsewhere"}, end("a", run="2"),
                 end("b", outcome="failed", run="2")]
        self.assertEqual(self.owing(*there, keys="ab"), "B")
        for records, is_known in (([*here, *there], False), ([*there, *here], True)):
            self.assertEqual(self.owing(*records, keys="ab"), "A")
            self.assertEqual(self.history().knows_shard, is_known, "all runs where the last run was elsewhere")
        shard = [start("a", "b", run="3", directory=os.getcwd()), end("a", run="3")]
        for records in ([*shard, *there], [*there, *shard], [there[0], *shard, *there[1:]]):
            self.assertEqual(self.owing(*records, keys="abc"), "c", "b has not been selected here")

    def test_passes_of_other_lists_settle_nothing(self) -> None:
        """Whichever run comes first, or at the same time; a run of two lists is one of each."""
        ours = [start("ab", run="1"), end("a", outcome="failed", run="1"), end("b", run="1")]
        others = [start("ab", run="2", lists=["other.txt"]), end("a", run="2"), end("b", outcome="failed", run="2")]
        for records in ([*ours, *others], [*others, *ours], [ours[0], others[0], *others[1:], *ours[1:]]):
            self.assertEqual(self.owing(*records, keys="ab"), "A")
        self.assertEqual(self.owing(*ours, *others, keys="ab", lists=["other.txt"]), "B")
        self.assertEqual(self.owing(*others, keys="ab"), "ab")
        both = [start("abc", lists=["one.txt", "two.txt"]), end("a"), end("b", outcome="failed")]
        for lists in (["one.txt"], ["./two.txt"], ["one.txt", "two.txt"], ["two.txt", "three.txt"]):
            with self.subTest(lists):
                self.assertEqual(self.owing(*both, keys="abc", lists=lists), "BC")


# What options keep.



def tagged(label: str, *tags: str) -> Test:
    """A test with this label and these tags."""
    return a_test(0, label, attributes=Attributes(tags=tags))


TAGGED = tagged("unit/test_FP8.py -k a", "Slow", "h100")

KEEPS: Mapping[str, bool] = {
    "fp8": True, "SLOW": True, "lo": True, "mi300": False, "unit/test_fp8.py": True, "h100 and slow": True,
    "h100 and mi300": False, "h100 or mi300": True, "mi300 or fp4": False, "not mi300": True, "not not slow": True,
    "fp8 and not (fp4 or mi300)": True, "mi300 and slow or h100": True, "mi300 and (slow or h100)": False,
    "((fp8)and(slow))": True, "not(mi300)": True, " fp8 ": True, "'-k a'": True, '"-k a" and slow': True,
    "'-k b'": False, "'and'": False, "AND": False, "Not or fp8": True, "android": False, "'(fp8'": False, "-k": True,
    "1==1": False, "True": False, "None": False, "__import__": False, "lambda:0": False, "name0": False,
    "not name0": True, "/": True, "\\": False, "[0]": False, "{}": False, "é": False, "\udcff": False, "#": False,
}

BAD_EXPRESSIONS = ("", " ", "a b", "a and", "and a", "or", "not", "a not b", "a and or b", "(a", "a)", "()", ")(",
                   "a (b)", "a(b)", "(a)(b)", "not()", "'a", 'a"', "a 'b'", "a == b", "a if b else c", "a, b", "a := b",
                   "lambda: a", "__import__('os').system('x')", "[a for b in c]", "a; b", "a\nb", "f'a'", "''a", "''.x")


class Expressions(unittest.TestCase):
    """`-k EXPR`."""

    def test_what_it_keeps(self) -> None:
        for text, expected in KEEPS.items():
            with self.subTest(text):
                self.assertIs(run_tests.parse_expression(text)(TAGGED), expected)

    def test_each_name_may_be_in_another_name_of_the_test(self) -> None:
        keep = run_tests.parse_expression("one and two")
        self.assertEqual([keep(tagged(*names)) for names in (["one", "two"], ["two one"], ["one"], ["on", "e two"])],
                         [True, True, False, False])
        keep = run_tests.parse_expression(" or ".join(f"n{number}x" for number in range(30)))
        self.assertEqual([keep(tagged(name)) for name in ("n0x", "n1x", "n29x", "n30x")], [True, True, True, False])

    def test_bad_ones(self) -> None:
        for text in BAD_EXPRESSIONS:
            with self.subTest(expression=text), self.assertRaisesRegex(
                    BadValue, r"is not names joined by and, or, not and parentheses, such as "):
                run_tests.parse_expression(text)

    def test_monsters_keep_or_are_bad(self) -> None:
        for text in ("(" * 10_000 + "a" + ")" * 10_000, "(" * 10_000, "not " * 500 + "a", "not " * 900 + "a",
                     "not " * 10_000 + "a", " and ".join("a" * 10_000), " or ".join("ab" * 5_000), "a" * 100_000,
                     "a or (b and " * 60 + "c" + ")" * 60, "a or (b and " * 1000 + "c" + ")" * 1000):
            with self.subTest(text[:20], size=len(text)), contextlib.suppress(BadValue):
                self.assertIs(run_tests.parse_expression(text)(tagged("a", "b", "c", "a" * 100_000)), True)


class OnlyTest(RunnerCase):
    """`--only FILE` and the words of `--message`."""

    def test_a_file_of_labels(self) -> None:
        path = self.write("few.txt", "\ufeff# a choice\n\n  a b \r\nc\n#1\n\udcff\n")
        names = frozenset(["# a choice", "a b", "c", "#1", "\udcff"])
        self.assertEqual(run_tests.parse_only(path), LabelFile(path, names))
        label = self.write("label.txt", "# odd\n")
        self.assertEqual(run_tests.parse_only(label).labels, {"# odd"}, "it may be a label, and all that is deferred")
        empty = self.write("empty.txt", "\n\n")
        for name, why in (("none.txt", r"none\.txt: cannot be read \(No such file or directory\); name a file"),
                          (empty, "names no test; one label per line"), (self.folder, "Is a directory")):
            with self.subTest(name), self.assertRaisesRegex(BadValue, why):
                run_tests.parse_only(name)

    def test_words_of_a_message(self) -> None:
        for message, expected in (
                ("Fix it", ""), ("Fix\n\n[ci asan]", "asan"), ("[ci a_s b]", "a_s b"), ("[CI ALL]", "all"),
                ("[ci asan] and [ci build,slow]", "asan build slow"), ("-x [ci]", ""), ("[ci ]", ""),
                ("[skip ci] all", ""), ("[ci slow\nall]", "slow all"), ("[ci-all]", "all"), ("[ci: asan]", "asan"),
                ("[ci skip]", ""), ("[ciao asan]", "")):
            with self.subTest(message):
                self.assertEqual(" ".join(run_tests.parse_message(message)), expected)

    def test_a_word_is_a_part_of_label_or_tags(self) -> None:
        names = tagged("Test_SQRT", "ASAN", "x").label_and_tags
        self.assertEqual([word for word in ("asan", "san", "sq", "test_", "asan2", "tasan") if word in names],
                         ["asan", "san", "sq", "test_"])

    def warnings(self, *names: str, words: str = "") -> str:
        """What is said of a file with these labels, where the tests are a, b and c."""
        options = Options((), only=LabelFile("few.txt", frozenset(names)), message=tuple(words.split()), log_dir="none")
        with contextlib.redirect_stderr(io.StringIO()) as told:
            run_tests.choose(many("a b c"), options)
        return told.getvalue()

    def test_what_names_nothing_is_told(self) -> None:
        self.assertEqual(self.warnings("a", "lost", "gone", "# no label", "b (run 2)"), (
            "run_tests.py: 2 labels of --only or --known-failures without a test here: gone, lost; --list shows "
            "labels\n"))
        lost = [f"x{number}" for number in range(10, 25)]
        self.assertIn("15 labels of --only or --known-failures without a test here: "
                      "x10, x11, x12, x13, x14, x15, x16, x17, x18, x19 … with 5 more", self.warnings("a", *lost))
        self.assertEqual(self.warnings("a"), "")

    def test_a_test_that_the_file_leaves_out_nowhere_is_new_and_runs(self) -> None:
        """ci_dedup.py names in comments what it leaves out; a file without such comments knows no new tests."""
        self.assertEqual(self.warnings("# b", "a"),
                         "run_tests.py: --only: 1 test new to the file, which run too: c\n")
        self.assertEqual(self.warnings("# b", "a", words="all") + self.warnings("# from nightly runs", "a"), "")
        for names, expected in ((["# b", "a"], "b"), (["# from nightly runs", "a"], "b c"), (["# b", "a", "c"], "b")):
            with self.subTest(names):
                only = Options((), only=LabelFile("few.txt", frozenset(names)))
                self.assertEqual(labels(run_tests.deferred_tests(many("a b c"), only)), expected)


# In which order tests start.

def pool_of(gpus: int, sequential: bool = False) -> run_tests.Pool:
    devices = [run_tests.Device(index, str(index)) for index in range(gpus)]
    return run_tests.Pool(devices, sequential=sequential)


class Order(unittest.TestCase):
    """`--order`."""

    def order(self, text: str, order: str = "auto", *, unknown: str = "", failed: str = "", deferred: str = "") -> str:
        """The labels in starting order. Many small tests make sure that none is as long as all that follow it."""
        tests = [*many(text), *(named("-", 100 + index, gpus=0.1, time=0.5) for index in range(2000))]
        chosen = {name: frozenset(test for test in tests if test.label in words.split())
                  for name, words in (("unknown", unknown), ("failed", failed), ("deferred", deferred))}
        estimates = run_tests.Estimates({test: test.attributes.time or 0.0 for test in tests
                                         if test not in chosen["unknown"]})
        estimates.assumed = 4.0
        selection = run_tests.Selection(tests, dict.fromkeys(chosen["deferred"], "--only"), {}, estimates,
                                        chosen["failed"])
        return labels(test for test in selection.starting_order(order, pool_of(4)) if test.label != "-")

    def test_widest_first_then_longest(self) -> None:
        text = "a:1:5 b:2:1 c:1:6 d:0.5:9 e:2:2 f:1:7 g:0:5 h:0:6 i:1:7 j:1:7 k:all:1"
        self.assertEqual(self.order(text, deferred="i"), "k e b f j c a d h g")
        self.assertEqual(self.order(text, "failed-first", failed="c e g"), "e c g k b f i j a d h")
        self.assertEqual(self.order(text, "file", failed="c", unknown="d", deferred="i"), "a b c d e f g h j k")

    def test_an_unknown_one_is_the_first_of_its_width(self) -> None:
        self.assertEqual(self.order("a:1:5 b:1:4 c:1:4 d:2:1 e:1:6 f:1:4 g:1:4", unknown="c f"), "d c f e a b g")

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
                estimates = run_tests.estimate(tests, History(OF_LIST))
                self.assertEqual(labels(run_tests.widest_first(tests, estimates, gpus)), expected)

    def test_auto_is_the_order_of_the_list_where_tests_run_one_by_one(self) -> None:
        tests = many("a:1:1 b:2:9 c:1:7:b d:all:1")
        estimates = run_tests.estimate(tests, History(OF_LIST))
        selection = run_tests.Selection(tests, {}, {}, estimates, frozenset(tests[2:3]))
        for order, expected in (("auto", "a b c d"), ("file", "a b c d"), ("failed-first", "c a b d")):
            with self.subTest(order):
                self.assertEqual(labels(selection.starting_order(order, pool_of(1, sequential=True))), expected)

    def test_chains(self) -> None:
        tests = many("a:1:1 b:1:2:a c:1:7:a d:3:4:b,c e:1:1")
        chains = run_tests.chains_of(tests, {test: test.attributes.time or 0 for test in tests})
        self.assertEqual([chains[test] for test in tests], [(3, 12), (3, 6), (3, 11), (3, 4), (1, 1)])
        row = many(" ".join(["t0", *(f"t{number}:1:1:t{number - 1}" for number in range(1, 10_000))]))    # no recursion
        self.assertEqual(run_tests.chains_of(row[::-1], dict.fromkeys(row, 1.0))[row[0]], (1, 10_000.0))
        self.assertEqual(len(run_tests.deferred_tests([*row, named("wide", gpus=4)], Options((), max_gpus=2))), 1)

    def test_every_test_starts_once(self) -> None:
        for seed in range(100):
            rng = random.Random(seed)
            tests = [named(f"t{index}", index, gpus=rng.choice([0, 0.25, 1, 1, 2, 4, 9, ALL_GPUS]),
                           after=tuple({f"t{rng.randrange(index)}" for _ in range(rng.choice([0, 0, 1, 2])) if index}))
                     for index in range(rng.randrange(1, 30))]
            seconds = {test: rng.choice([0, 1, 5, 100, 10_000]) * rng.random() for test in tests}
            estimates = run_tests.Estimates({test: seconds[test] for test in rng.sample(tests, len(tests) * 3 // 4)})
            selection = run_tests.Selection(tests, {}, {}, estimates, frozenset(rng.sample(tests, 1)))
            for order in ("auto", "failed-first"):
                started = selection.starting_order(order, pool_of(rng.choice([1, 2, 8])))
                self.assertEqual(sorted(test.index for test in started), list(range(len(tests))), seed)


# Shards.

def generated(rng: random.Random, count: int) -> List[Test]:
    """Tests as suites have them: log-normal durations, some wide, some tied together by `after`."""
    return [named(f"t{index}", index, gpus=rng.choices([0, 0.25, 1, 2, 4, 8, ALL_GPUS], [5, 5, 70, 10, 5, 4, 1])[0],
                  time=rng.lognormvariate(3, 1.2),
                  after=tuple({f"t{rng.randrange(index)}"} if index and rng.random() < 0.1 else ()))
            for index in range(count)]


def weight(tests: Iterable[Test], widest: float) -> float:
    """GPU-seconds, as a shard counts them: a test without a GPU takes a place too, `all` as many as the widest."""
    return sum((test.attributes.time or 0.0) * min(max(test.gpus, 1), widest) for test in tests)


class Shards(unittest.TestCase):
    """`--shard K/N`."""

    def parts(self, tests: Sequence[Test], total: int, **options: Any) -> List[run_tests.Selection]:
        return [run_tests.select(tests, Options((LIST,), shard=f"{number}/{total}", **options), History(OF_LIST))
                for number in range(1, total + 1)]

    def test_they_are_a_partition(self) -> None:
        for seed in range(60):
            rng = random.Random(seed)
            tests = generated(rng, rng.randrange(1, 60))
            options: Dict[str, Any] = rng.choice([{}, {"max_gpus": 2}, {"keep": run_tests.parse_expression("not 3")},
                                                  {"max_gpus": 4, "keep": run_tests.parse_expression("1 or 2 or 3")}])
            whole = run_tests.select(tests, Options((LIST,), **options), History(OF_LIST))
            with self.subTest(seed=seed, options=options):
                parts = self.parts(tests, rng.randrange(1, 12), **options)
                self.assertEqual(sorted(test.index for part in parts for test in part.tests),
                                 [test.index for test in whole.tests])
                self.assertEqual(sorted(test.index for part in parts for test in part.deferred),
                                 sorted(test.index for test in whole.deferred))
                for part in parts:
                    self.assertEqual([test.index for test in part.tests], sorted(test.index for test in part.tests))
                    left_out = [test for tests in part.left_out.values() for test in tests]
                    self.assertEqual(sorted(test.index for test in [*part.tests, *left_out]), list(range(len(tests))))

    def test_they_are_balanced_and_keep_together_what_after_ties(self) -> None:
        for seed in range(8):
            tests = generated(random.Random(seed), 300)
            groups: Dict[str, Set[Test]] = {}
            for test in tests:                   # whose `after` name tests above them
                group = {test}.union(*(groups[label] for label in test.attributes.after))
                groups.update((member.label, group) for member in group)
            widest = max(test.gpus for test in tests if test.gpus < ALL_GPUS)
            heaviest = max(weight(group, widest) for group in groups.values())
            for total in (2, 3, 8):
                with self.subTest(seed=seed, total=total):
                    parts = self.parts(tests, total)
                    loads = [weight(part.tests, widest) for part in parts]
                    self.assertLessEqual(max(loads) - min(loads), heaviest + 1e-6)
                    self.assertLess(max(loads), 1.05 * max(sum(loads) / total, heaviest))
                    for part in parts:
                        self.assertTrue(all(groups[test.label] <= {*part.tests} for test in part.tests))

    def test_examples(self) -> None:
        for text, total, options, expected in (
                ("a b c:1:1:a,b d:1:1:c e f:1:1:e g h", 2, {}, ["a b c d", "e f g h"]),
                ("a:4:10 b:1:10 c:1:10 d:1:10 e:1:10", 2, {}, ["a", "b c d e"]),
                ("a b c", 1, {}, ["a b c"]), ("a b c", 5, {}, ["a", "b", "c", "", ""]),
                ("a:1:10 b:4:9 c:1:8 d:4:7 e:4:6 f:1:5 g:all:1", 2, {"max_gpus": 2}, ["a b d e g", "c f"])):
            with self.subTest(text):
                self.assertEqual([labels(part.tests) for part in self.parts(many(text), total, **options)], expected)

    def test_the_plan_is_named_so_that_shards_can_be_compared(self) -> None:
        """The same on every shard; another where list or durations differ."""
        def plans(text: str) -> List[str]:
            return [why.partition("plan ")[2] for part in self.parts(many(text), 2) for why in part.left_out]

        first, second = plans("a:1:10 b:1:20 c:1:30")
        self.assertRegex(first, r"^[0-9a-f]{6}\)$")
        self.assertEqual(first, second)
        self.assertNotIn(first, [*plans("a:1:10 b:1:20 d:1:30"), *plans("a:1:60 b:1:20 c:1:30")])

    def test_values(self) -> None:
        for text in ("1/1", "2/4", "4/4", "auto"):
            self.assertEqual(run_tests.parse_shard(text), text)
        for text in ("", "1", "0/4", "5/4", "1/0", "0/0", "-1/4", "1/-4", "a/b", "1/4/5", "1 / 4", "1/4 ", "01/4",
                     "1.0/4", "AUTO", "autos", "1/100000", "²/4", "٢/٤"):
            with self.subTest(text), self.assertRaises(BadValue) as caught:
                run_tests.parse_shard(text)
            self.assertEqual(str(caught.exception), f"{text!r} is not K/N, K from 1 to N, such as 2/4, nor auto")


SLURM = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0"}
SERVICES: Mapping[str, Tuple[Dict[str, str], str, int]] = {     # variables, the one that counts, and from where
    "GitLab": ({"GITLAB_CI": "true", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "3"}, "CI_NODE_INDEX", 1),
    "CircleCI": ({"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "3"}, "CIRCLE_NODE_INDEX", 0),
    "Buildkite": ({"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "3"}, "BUILDKITE_PARALLEL_JOB", 0),
    "Semaphore": ({"SEMAPHORE_JOB_INDEX": "1", "SEMAPHORE_JOB_COUNT": "3"}, "SEMAPHORE_JOB_INDEX", 1),
    "Azure": ({"SYSTEM_JOBPOSITIONINPHASE": "1", "SYSTEM_TOTALJOBSINPHASE": "3", "SLURM_ARRAY_TASK_STEP": "2"},
              "SYSTEM_JOBPOSITIONINPHASE", 1),
    "Slurm": (SLURM, "SLURM_ARRAY_TASK_ID", 0),
    "Slurm from 5": ({**SLURM, "SLURM_ARRAY_TASK_MIN": "5"}, "SLURM_ARRAY_TASK_ID", 5),
    "Slurm's steps": ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"},
                      "SLURM_PROCID", 0),
    "Kubernetes": ({"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "3"}, "JOB_COMPLETION_INDEX", 0)}


class ShardsOfServices(unittest.TestCase):
    """`--shard auto`."""

    def find(self, environ: Mapping[str, str]) -> Tuple[Optional[str], str]:
        """The shard, and what is said on stderr."""
        with contextlib.redirect_stderr(io.StringIO()) as told:
            return run_tests.find_shard(environ), told.getvalue()

    def test_each_counts_from_its_base(self) -> None:
        for service, (environ, name, base) in SERVICES.items():
            for number in range(3):
                with self.subTest(service, number=number):
                    found = self.find({**environ, name: str(base + number), "CI": "true"})
                    self.assertEqual(found, (f"{number + 1}/3", ""))

    def test_what_cannot_be_is_a_mistake_at_once(self) -> None:
        """A huge total once made as many shards."""
        for service, (environ, name, base) in SERVICES.items():
            total = next(key for key, value in environ.items() if value == "3")
            for variable, values in ((name, [str(base - 1), str(base + 3), "", "x", "1.5"]),
                                     (total, ["0", "", "-1", "many", "9" * 21, "10001", "9" * 5000])):
                for value in values:
                    with self.subTest(service, variable=variable, value=value), self.assertRaises(UsageError) as caught:
                        self.find({**environ, variable: value})
                    both = {**environ, variable: value}
                    self.assertEqual(str(caught.exception), f"--shard auto: {name}={both[name]} is not one of "
                                                            f"{total}={both[total]}; write --shard K/N")

    def test_gitlabs_variables_are_its_own_only_there(self) -> None:
        """Other tools set CI_NODE_INDEX too, from 0."""
        environ, circle = {"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}, SERVICES["CircleCI"][0]
        self.assertEqual(self.find({**environ, **circle})[0], "1/3")
        self.assertEqual(self.find({**SERVICES["GitLab"][0], **circle, "CIRCLE_NODE_INDEX": "2"})[0], "1/3")

    def test_without_a_service_all_tests_run(self) -> None:
        warning = (r"\Arun_tests\.py: --shard auto: (no CI says which shard this is|\w+ is set, and \w+ is not); "
                   r"all tests run\n\Z")
        halves = [{key: value for key, value in environ.items() if key != name}
                  for environ, counting, _ in SERVICES.values()
                  for name in environ if name == counting or environ[name] in ("3", "true")]
        batch_script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
        for environ in ({"CI": "true", "GITLAB_CI": "true"}, {"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}, batch_script,
                        *halves):
            with self.subTest(environ):
                shard, said = self.find(environ)
                self.assertEqual(shard, "")
                self.assertRegex(said, warning)


# The whole selection.

class Selections(unittest.TestCase):
    """What runs, what is deferred, what is left out and by what, and the line that says so."""

    def select(self, text: str, history: Sequence[Dict[str, Any]] = (), **options: Any) -> run_tests.Selection:
        known = History(Options((LIST,), **options))
        for record in history:
            known.add(record, is_own=True)
        return run_tests.select(many(text), known.options, known)

    def to_run(self, selection: run_tests.Selection) -> str:
        return labels(test for test in selection.tests if test not in selection.deferred)

    def test_each_option_answers_for_what_it_leaves_out(self) -> None:
        history = [start(["a1", "a2", "a3", "b1"]), end("a1"), end("a2"), end("b1")]
        selection = self.select("a1 a2 a3 b1 b2", history, keep=run_tests.parse_expression("a"), rerun_failed=True)
        self.assertEqual({why: labels(tests) for why, tests in selection.left_out.items()},
                         {"-k": "b1 b2", "--rerun-failed": "a1 a2"})
        self.assertEqual((labels(selection.tests), labels(selection.owed)), ("a3", "a3"))

    def test_too_wide_a_test_is_deferred_with_all_that_wait_for_it(self) -> None:
        for text, most, expected in (
                ("a:1 b:2 c:3 d:4 e:0 f:0.5 g:all", 2, "c d"), ("a:1 b:2 c:3", 3, ""), ("a:2 b:2", 1, "a b"),
                ("a:4 b:1:1:a c:1:1:b d:1:1:c,e e:1 f:1:1:e", 2, "a b c d"),
                ("a:1 b:4:1:a c:1:1:a", 2, "b"), ("c:1:1:a a:4", 2, "c a")):
            with self.subTest(text, most=most):
                selection = self.select(text, max_gpus=most)
                self.assertEqual(labels(test for test in selection.tests if test in selection.deferred), expected)
                self.assertEqual((len(selection.tests), selection.left_out), (len(text.split()), {}))
        selection = self.select("a:4 b:4 c d", max_gpus=2, keep=run_tests.parse_expression("a or c"))
        self.assertEqual((labels(selection.tests), labels(selection.deferred)), ("a c", "a"))

    def test_only_takes_the_named_ones_and_what_they_wait_for(self) -> None:
        for here, words, expected in (
                ("a", [], "a"), ("c", [], "a b c"), ("d e", [], "d e"), ("z", [], ""), ("a b c d e", [], "a b c d e"),
                ("e", ["b"], "a b e"), ("e", ["nothing"], "e"), ("z", ["d", "e"], "d e"), ("z", ["all"], "a b c d e")):
            with self.subTest(here, words=words):
                selection = self.select("a b:1:1:a c:1:1:b d:1:1:z e", message=tuple(words),
                                        only=LabelFile("few.txt", frozenset(here.split())))
                self.assertEqual(self.to_run(selection), expected)
                self.assertEqual((labels(selection.tests), set(selection.deferred.values()) - {"--only"}),
                                 ("a b c d e", set()))

    def test_the_line_of_the_account(self) -> None:
        few = LabelFile("few.txt", frozenset(["a", "b"]))
        path = "; see some/logs/deferred.txt"
        keep = run_tests.parse_expression("a or b")
        for text, options, expected in (
                ("a b:9 c:all", {}, ""), ("a b", {"max_gpus": 2}, ""), ("a b", {"only": few}, ""),
                ("a b:4 c d:all", {"max_gpus": 2}, f"3 of 4 tests (75.0%); deferred 1 by --max-gpus{path}"),
                ("b:4 c:1:1:b", {"max_gpus": 2}, f"0 of 2 tests (0.0%); deferred 2 by --max-gpus{path}"),
                ("b:4", {"max_gpus": 2, "list": True}, "0 of 1 test (0.0%); deferred 1 by --max-gpus"),
                ("a b c d", {"only": few}, f"2 of 4 tests (50.0%); deferred 2 by --only{path}"),
                ("a b:4 c d:4", {"only": few, "max_gpus": 2},
                 f"1 of 4 tests (25.0%); deferred 1 by --max-gpus, 2 by --only{path}"),
                ("a b:4 c", {"keep": keep}, "2 of 3 tests (66.7%); left out 1 by -k"),
                ("a b:4 c", {"keep": keep, "max_gpus": 2},
                 f"1 of 3 tests (33.3%); deferred 1 by --max-gpus; left out 1 by -k{path}"),
                # Where no run of the list is known, that has been told.
                ("a c", {"keep": keep, "rerun_failed": True}, "1 of 2 tests (50.0%); left out 1 by -k")):
            with self.subTest(text, **options):
                chosen = Options((LIST,), log_dir="some/logs", **options)
                self.assertEqual(list(run_tests.account(self.select(text, **options), chosen)),
                                 [f"Selected {expected}"] if expected else [])

    def test_a_shard_that_is_run_again_keeps_its_tests(self) -> None:
        """Durations have changed since the cut: its tests are those in the journal, and those that are new."""
        text = "a:1:40 b:1:30 c:1:20 d:1:10"
        whole = [labels(self.select(text, shard=f"{number}/2").tests) for number in (1, 2)]
        self.assertEqual(whole, ["a d", "b c"])
        history = [start("ad", "bc", shard="1/2"), end("a", 1), end("d", 500, outcome="failed")]
        again = self.select(text, history, shard="1/2", rerun_failed=True)
        self.assertEqual((labels(again.tests), {why: labels(out) for why, out in again.left_out.items()}),
                         ("d", {"--shard 1/2": "", "--rerun-failed": "a b c"}))
        history += [start("d", "abc", run="2"), end("d", 900, 2, run="2"), start("a", "bcd", run="3")]
        again = self.select(text + " new:1:900", history, shard="1/2", rerun_failed=True)
        self.assertEqual(labels(again.tests), "a new")
        # What failed in a run of the whole list, and was in no part before, is in each of them.
        history += [start("bc", "ad", run="4", shard="2/2"), start("abcdn", run="5"),
                    *(end(key, run="5") for key in "abcd")]
        parts = [self.select(text + " n:1:1", history, shard=f"{number}/2", rerun_failed=True) for number in (1, 2)]
        self.assertEqual([labels(part.tests) for part in parts], ["n", "n"])
        # Else parts stay as they were, whatever is known of durations by then.
        history += [*(end(key, 9 ** number, run="0") for number, key in enumerate("abcd")),
                    start("bc", "adn", run="6")]
        parts = [self.select(text, history, shard=part, rerun_failed=True) for part in ("1/2", "2/2")]
        self.assertEqual([labels(part.tests) for part in parts], ["", "b c"])
        for name, is_part in (("a", True), ("z", False)):     # of a name that no test has, all parts are empty
            keep = run_tests.parse_expression(name)
            again = self.select(text, history, shard="1/2", rerun_failed=True, keep=keep)
            self.assertEqual(again.is_part, is_part)

    def test_another_shard_or_one_that_is_not_run_again_is_cut_anew(self) -> None:
        """Machines with other failures, but the same durations, cut the same shards."""
        text, failures = "a:1:40 b:1:30 c:1:20 d:1:10", [end(key, outcome="failed") for key in "abcd"]
        other = self.select(text, [start("ad", "bc", shard="1/2"), *failures], shard="2/2", rerun_failed=True)
        self.assertEqual([labels(other.tests), *map(labels, other.left_out.values())], ["b c", "a d"], "all of it")
        for number, expected in ((1, "a d"), (2, "b c")):
            again = self.select(text, [start("abcd"), *failures], shard=f"{number}/2")
            self.assertEqual(labels(again.tests), expected)


if __name__ == "__main__":
    unittest.main()
