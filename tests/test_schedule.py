"""Sections 2 and 6, without a process or a clock: events go in, actions are looked at."""
from __future__ import annotations

import heapq
import itertools
import math
import os
import random
import shutil
import signal
import tempfile
import unittest
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

import run_tests
from run_tests import (ALL_GPUS, SHARES, STUCK_S, Abandon, Announce, Begin, Blame, Broken, Cause, Conclude, Exited,
                       Interrupt, Kill, Launch, Lease, Outcome, Quarantine, Retry, Sick, Started, Submit, Test, Tick,
                       death_of, judge, outcome_of)
from tests.support import ROOT, a_test

EXPECTED_S = 60.0    # what a test of words is expected to take
CAUSES = {"ecc": Cause("ECC", Blame.DEVICE), "bus": Cause("lost", Blame.DEVICE),
          "launch": Cause("launch failure", Blame.STARTUP),
          "old": Cause("old driver", Blame.MACHINE), "none": Cause("no GPU", Blame.MACHINE)}
DURATIONS = os.path.join(ROOT, "qa", "bench", "durations")   # of suites: name, seconds, GPUs


def test_of(word: str, index: int, barrier: int) -> Test:
    """A test from a word `label[:need[:timeout]][~seconds][+after=a,b][+lock=x,y]`."""
    head, *extras = word.split("+")
    head, _, seconds = head.partition("~")
    label, need, timeout = (head + "::").split(":")[:3]
    named = {key: run_tests.parse_names(names) for key, _, names in (extra.partition("=") for extra in extras)}
    attributes = run_tests.Attributes(time=float(seconds or EXPECTED_S), **named)
    return a_test(index, label, barrier=barrier, gpus=run_tests.parse_gpus(need or "1"), attributes=attributes,
                  timeout=float(timeout) if timeout else None)


test_of.__test__ = False     # type: ignore[attr-defined]  # pytest would take it for a test


def tests_of(text: str) -> List[Test]:
    """Tests from words, see `test_of`; a `|` is a barrier."""
    tests: List[Test] = []
    barrier = 0
    for word in text.split():
        if word == "|":
            barrier += 1
        else:
            tests.append(test_of(word, len(tests), barrier))
    return tests


def seconds_of(tests: Iterable[Test]) -> Dict[Test, float]:
    """The expected seconds of tests: what `time=` says."""
    return {test: EXPECTED_S if test.attributes.time is None else test.attributes.time for test in tests}


def devices_of(gpus: int) -> List[run_tests.Device]:
    return [run_tests.Device(index, str(index)) for index in range(gpus)]


def schedule_of(tests: List[Test], gpus: int, jobs: int, sequential: bool = False,
                locks: Optional[run_tests.GpuLocks] = None, **options: Any) -> run_tests.Schedule:
    """A Schedule for tests, in starting order, on `gpus` devices."""
    pool = run_tests.Pool(devices_of(gpus), jobs, sequential, locks)
    return run_tests.Schedule(tests, seconds_of(tests), pool, run_tests.Options((), **options))


class Play:
    """A schedule fed by words, whose actions are told in words.

    Events: `begin`, `submit a b` (of those in `later`; named are then all that wait, in starting order), `start a`,
    `exit a [status [cause]]`, `break a`, `tick`, `SIGINT` and other signals; `@5` before one is its time; a cause is a
    word of CAUSES, any other word the test's own, or `sick:0`, what nvidia-smi finds.
    Actions: `a on GPU 0,1`, `SIGTERM a`, `a passed`, `a failed, again`, `quarantine 0`, `abandon a`, `a runs 60s`.
    Unless `slow`, a launched test has started.
    `order` are labels in starting order; empty: list order.
    """

    def __init__(self, tests: str, *, gpus: int = 2, jobs: int = 2, slow: bool = False, order: str = "",
                 slow_after: Optional[float] = None, later: str = "", **options: Any) -> None:
        self.tests = {test.label: test for test in tests_of(tests)}
        ordered = [self.tests[label] for label in order.split() or self.tests if label not in later.split()]
        self.schedule = schedule_of(ordered, gpus, jobs, **options, **({"slow": slow_after} if slow_after else {}))
        self.slow, self.at = slow, 0.0
        self.results: Dict[str, run_tests.Result] = {}
        self.leases: Dict[str, Lease] = {}
        self.stacks: Dict[str, str] = {}         # by label, why they were last asked for
        self.quarantined: List[str] = []         # reasons

    def event(self, text: str) -> Any:
        words = text.split()
        if words[0].startswith("@"):
            self.at = float(words.pop(0)[1:])
        name, test = words[0], self.tests.get(words[1]) if len(words) > 1 else None
        if name.startswith("SIG"):
            return Interrupt(self.at, signal.Signals[name])
        if name == "exit":
            return self.exited(test, *words[2:])
        if name == "submit":
            order = [self.tests[word] for word in words[1:]]
            new = [test for test in order if test not in self.schedule.waiting]
            return Submit(self.at, new, order, seconds_of(self.tests.values()))
        return {"begin": Begin(self.at), "tick": Tick(self.at), "start": Started(self.at, test, None),
                "break": Broken(self.at, test, "no log")}[name]

    def exited(self, test: Optional[Test], status: str = "0", word: str = "") -> Exited:
        assert test is not None
        _, is_sick, index = word.partition("sick:")
        if is_sick:
            return Exited(self.at, test, int(status), sick=(Sick(devices_of(9)[int(index)], "no answer"),))
        return Exited(self.at, test, int(status), cause=CAUSES.get(word, Cause(word)))

    def step(self, text: str) -> List[str]:
        """Feed one event; returns what the schedule wants done."""
        told = []
        for action in self.schedule.step(self.event(text)):
            if isinstance(action, Launch):
                told.append(f"{action.test.label} on {action.lease.place()}")
                self.leases[action.test.label] = action.lease
                if not self.slow:
                    told += self.step(f"start {action.test.label}")
            elif isinstance(action, Kill):
                told.append(f"{signal.Signals(action.signum).name} {action.test.label}")
                if action.stacks:
                    self.stacks[action.test.label] = action.stacks
            elif isinstance(action, Quarantine):
                told.append(f"quarantine {action.sick.device.token}")
                self.quarantined.append(action.sick.reason)
            elif isinstance(action, Abandon):
                told.append(f"abandon {action.test.label}")
            elif isinstance(action, Announce):
                told.append(f"{action.test.label} runs {action.seconds:g}s")
            elif isinstance(action, Retry):
                told.append(f"{action.result.test.label} {action.result.outcome.value}, again")
            else:
                told.append(f"{action.result.test.label} {action.result.outcome.value}")
                self.results[action.result.test.label] = action.result
        return told

    def reasons(self) -> Dict[str, str]:
        """By label, why a test ended as it did, where that is said."""
        return {label: result.reason for label, result in self.results.items() if result.reason}


class ScheduleCase(unittest.TestCase):
    def play(self, tests: str, script: str, *, done: Optional[bool] = True, **values: Any) -> Play:
        """Hold a script of `event > action; action` lines against a schedule; at its end all is `done`, or not."""
        play = Play(tests, **values)
        for line in script.strip().splitlines():
            event, _, expected = line.partition(">")
            told = play.step(event.strip())
            self.assertEqual("; ".join(told), expected.strip(), f"after {event.strip()!r}")
        self.assertIn(done, (play.schedule.done, None))
        return play


class GpuLineTest(ScheduleCase):
    def test_a_free_gpu_takes_the_next_test_at_once(self) -> None:
        self.play("a b c d", """
            begin   > a on GPU 0; b on GPU 1
            exit b  > b passed; c on GPU 1
            exit c  > c passed; d on GPU 1
            exit d  > d passed
            exit a  > a passed
        """)

    def test_tests_start_in_starting_order_not_in_list_order(self) -> None:
        self.play("a b:0 c d:.5", """
            begin   > d on GPU 0; c on GPU 1; b on CPU
            exit d  > d passed; a on GPU 0
        """, order="d c b a", done=False)

    def test_devices_are_taken_in_device_order(self) -> None:
        for first, second in ("ab", "ba"):
            with self.subTest(first=first):
                self.play("a b c d:2", f"""
                    begin          > a on GPU 0; b on GPU 1; c on GPU 2
                    exit {first}   > {first} passed
                    exit {second}  > {second} passed; d on GPU 0,1
                    exit c         > c passed
                    exit d         > d passed
                """, gpus=3)

    def test_neighbours_are_taken_where_there_are_some(self) -> None:
        self.play("a b c d e f:2 g:2", """
            begin   > a on GPU 0; b on GPU 1; c on GPU 2; d on GPU 3; e on GPU 4
            exit a  > a passed
            exit d  > d passed; f on GPU 0,3
            exit b  > b passed
            exit c  > c passed; g on GPU 1,2
        """, gpus=5, done=False)

    def test_one_end_starts_all_that_fit(self) -> None:
        self.play("a:3 b c:2 d~90", """
            begin      > a on GPU 0,1,2
            @1 exit a  > a passed; b on GPU 0; c on GPU 1,2
            @2 exit c  > c passed; d on GPU 1
            @3 exit d  > d passed
            @3 exit b  > b passed
        """, gpus=3)

    def test_slot_numbers_are_the_lowest_free(self) -> None:
        play = self.play("a b c d:0", """
            begin   > a on GPU 0; b on GPU 1; d on CPU
            exit a  > a passed; c on GPU 0
        """, done=False)
        self.assertEqual({label: lease.slot for label, lease in play.leases.items()}, {"a": 0, "b": 1, "c": 0, "d": 2})

    def test_the_first_attempt_is_number_one(self) -> None:
        actions = Play("a").schedule.step(Begin(0.0))
        self.assertEqual([(action.test.label, action.attempt) for action in actions], [("a", 1)])

    def test_without_a_gpu_one_test_at_a_time_still_runs(self) -> None:
        self.play("a b c:0 w:all", """
            begin   > a on CPU; c on CPU
            exit a  > a passed; b on CPU
            exit c  > c passed
            exit b  > b passed; w on CPU
            exit w  > w passed
        """, gpus=0)


class FractionTest(ScheduleCase):
    def test_they_share_a_device_as_long_as_it_lasts(self) -> None:
        self.play("a:.5 b:.25 c:.25 d:.25 e:.75", """
            begin   > a on GPU 0; b on GPU 0; c on GPU 0; d on GPU 1; e on GPU 1
        """, done=False)

    def test_a_share_that_comes_back_is_taken_at_once(self) -> None:
        self.play("a:.5 b:.5 c:.5 d:.5", """
            begin   > a on GPU 0; b on GPU 0
            exit b  > b passed; c on GPU 0
            exit a  > a passed; d on GPU 0
        """, gpus=1, done=False)

    def test_a_device_that_is_shared_is_no_whole_one(self) -> None:
        self.play("a:.1 b", """
            begin   > a on GPU 0
            exit a  > a passed; b on GPU 0
            exit b  > b passed
        """, gpus=1)

    def test_other_tests_pass_by_one_that_does_not_fit(self) -> None:
        self.play("a:.6~50 b:.6~50 c:.4~40", """
            begin      > a on GPU 0; c on GPU 0
            exit c     > c passed
            exit a     > a passed; b on GPU 0
        """, gpus=1, done=False)


class AllGpusTest(ScheduleCase):
    def test_they_run_alone(self) -> None:
        cases = {
            "after GPU and CPU tests, before others": ("a w:all b~90 c:0~90 d:0~90 e:0~90", """
                begin   > a on GPU 0
                exit a  > a passed; w on GPU 0,1
                exit w  > w passed; b on GPU 0; c on CPU; d on CPU
            """),
            "first": ("w:all a c:0", """
                begin   > w on GPU 0,1
                tick    >
                exit w  > w passed; a on GPU 0; c on CPU
            """),
            "two of them": ("v:all w:all", """
                begin   > v on GPU 0,1
                exit v  > v passed; w on GPU 0,1
            """),
            "while a test has all GPUs without being alone": ("a:2 w:all c:0~90", """
                begin   > a on GPU 0,1
                exit a  > a passed; w on GPU 0,1
                exit w  > w passed; c on CPU
            """),
            "beside no fraction": ("a:.5 w:all b:.25~90", """
                begin   > a on GPU 0
                exit a  > a passed; w on GPU 0,1
                exit w  > w passed; b on GPU 0
            """),
            "not while CPU tests run, whatever is free": ("c:0 w:all a~90", """
                begin   > c on CPU
                exit c  > c passed; w on GPU 0,1
                exit w  > w passed; a on GPU 0
            """),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, done=False)

    def test_what_ends_before_the_last_that_runs_may_still_start(self) -> None:
        """The CPU test is the last to end, at 100: that is the promise."""
        self.play("a~50 x:0~100 w:all b~100 c~101 y:0~100 z:0~101 d:.5~20", """
            begin        > a on GPU 0; x on CPU; b on GPU 1; y on CPU
            @50 exit a   > a passed; d on GPU 0
            @60 exit b   > b passed
            @70 exit y   > y passed
            @70 exit d   > d passed
            @100 exit x  > x passed; w on GPU 0,1
            @101 exit w  > w passed; c on GPU 0; z on CPU
        """, done=False)


class CpuLineTest(ScheduleCase):
    def test_cpu_tests_run_beside_the_gpu_tests_on_their_slots(self) -> None:
        self.play("a b c x:0 y:0 z:0", """
            begin   > a on GPU 0; b on GPU 1; x on CPU; y on CPU
            exit x  > x passed; z on CPU
            exit a  > a passed; c on GPU 0
            exit z  > z passed
            exit y  > y passed
            exit b  > b passed
            exit c  > c passed
        """)

    def test_jobs_bounds_them(self) -> None:
        self.play("x:0 y:0", """
            begin   > x on CPU
            exit x  > x passed; y on CPU
            exit y  > y passed
        """, jobs=1)

    def test_they_hold_no_device(self) -> None:
        play = self.play("x:0 y:0 a:2", "begin > x on CPU; y on CPU; a on GPU 0,1", done=False)
        self.assertEqual([play.leases[label].devices for label in "xy"], [(), ()])

    def test_one_that_waits_for_a_slot_holds_up_no_gpu_test(self) -> None:
        self.play("x:0 y:0~999 a:2~999 b", "begin > x on CPU; a on GPU 0,1", jobs=1, done=False)

    def test_a_wide_test_that_waits_holds_up_no_cpu_test(self) -> None:
        self.play("a~10 w:2 x:0~999", "begin > a on GPU 0; x on CPU", done=False)


class BarrierTest(ScheduleCase):
    def test_all_above_ends_before_anything_below_starts(self) -> None:
        self.play("a x:0 | b y:0 | c", """
            begin   > a on GPU 0; x on CPU
            exit x  > x passed
            exit a  > a passed; b on GPU 0; y on CPU
            exit b  > b passed
            exit y  > y passed; c on GPU 0
            exit c  > c passed
        """)

    def test_starting_order_does_not_pass_it(self) -> None:
        self.play("a b | c d", """
            begin   > b on GPU 0; a on GPU 1
            exit a  > a passed
            exit b  > b passed; d on GPU 0; c on GPU 1
        """, order="d c b a", done=False)

    def test_it_holds_back_one_line_for_the_other(self) -> None:
        self.play("a | x:0", """
            begin   > a on GPU 0
            exit a  > a passed; x on CPU
            exit x  > x passed
        """)

    def test_a_failure_opens_it_too(self) -> None:
        self.play("a | b", """
            begin     > a on GPU 0
            exit a 1  > a failed; b on GPU 0
            exit b    > b passed
        """)

    def test_first_last_and_doubled_barriers_hold_nothing(self) -> None:
        self.play("| | a | | | b |", """
            begin   > a on GPU 0
            exit a  > a passed; b on GPU 0
            exit b  > b passed
        """)

    def test_an_unrunnable_test_does_not_block_it(self) -> None:
        cases = {
            "alone above": ("w:9 | a", "begin > w unrunnable; a on GPU 0"),
            "all of several levels": ("v:9 | w:9 u:9 | a", "begin > v unrunnable; w unrunnable; u unrunnable; "
                                      "a on GPU 0"),
            "between": ("a | w:9 | b", "begin > w unrunnable; a on GPU 0\nexit a > a passed; b on GPU 0"),
            "beside": ("a w:9 | b", "begin > w unrunnable; a on GPU 0\nexit a > a passed; b on GPU 0"),
            "below": ("a | w:9", "begin > w unrunnable; a on GPU 0"),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, done=False)

    def test_all_gpus_below_it_do_not_hold_back_cpu_tests_above(self) -> None:
        cases = {
            "CPU tests alone": ("x:0 | w:all", "begin > x on CPU\nexit x > x passed; w on GPU 0,1"),
            "GPU and CPU tests": ("a x:0 | w:all", """
                begin   > a on GPU 0; x on CPU
                exit a  > a passed
                exit x  > x passed; w on GPU 0,1
            """),
            "more CPU tests than slots": ("x:0 y:0 z:0 | w:all", """
                begin   > x on CPU; y on CPU
                exit x  > x passed; z on CPU
                exit y  > y passed
                exit z  > z passed; w on GPU 0,1
            """),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, order="w " + tests.partition(" |")[0].replace(":0", ""), done=False)

    def test_what_waits_below_it_is_promised_nothing(self) -> None:
        self.play("a~10 b~99 c~99 | w:2", """
            begin       > a on GPU 0; b on GPU 1
            @10 exit a  > a passed; c on GPU 0
        """, order="w a b c", done=False)


class AfterTest(ScheduleCase):
    def test_a_test_starts_when_the_others_have_passed(self) -> None:
        self.play("c+after=a,b a b d", """
            begin   > a on GPU 0; b on GPU 1; d on GPU 2
            exit a  > a passed
            exit b  > b passed; c on GPU 0
            exit c  > c passed
            exit d  > d passed
        """, gpus=3)

    def test_chains_run_one_by_one_beside_others(self) -> None:
        self.play("a b+after=a c:0+after=b x y", """
            begin   > a on GPU 0; x on GPU 1
            exit a  > a passed; b on GPU 0
            exit x  > x passed; y on GPU 1
            exit b  > b passed; c on CPU
            exit c  > c passed
            exit y  > y passed
        """)

    def test_every_failure_blocks_those_that_wait(self) -> None:
        for end, outcome in (("exit a 1", "failed"), ("exit a -11", "crashed"), ("exit a 137", "crashed")):
            with self.subTest(end):
                play = self.play("a b+after=a", f"begin > a on GPU 0\n{end} > a {outcome}; b blocked")
                self.assertEqual(play.reasons(), {"b": "waits for a, which did not pass"})
        self.play("a:1:5 b+after=a", "begin > a on GPU 0\n@5 tick > SIGTERM a\nexit a > a timeout; b blocked")

    def test_the_blocked_block_others_in_order(self) -> None:
        play = self.play("a b+after=a c+after=b d+after=a e+after=c,d f", """
            begin     > a on GPU 0; f on GPU 1
            exit a 1  > a failed; b blocked; d blocked; c blocked; e blocked
            exit f    > f passed
        """)
        waits_for = {"b": "a", "d": "a", "c": "b", "e": "d"}
        self.assertEqual(play.reasons(), {label: f"waits for {failed}, which did not pass"
                                          for label, failed in waits_for.items()})
        blocked = play.results["e"]
        self.assertEqual((blocked.lease, blocked.status, blocked.seconds), (None, None, 0.0))

    def test_one_failure_of_several_is_enough(self) -> None:
        self.play("a b c+after=a,b", """
            begin     > a on GPU 0; b on GPU 1
            exit b 1  > b failed; c blocked
            exit a    > a passed
        """)
        self.play("a b c+after=a,b", """
            begin     > a on GPU 0; b on GPU 1
            exit a    > a passed
            exit b 1  > b failed; c blocked
        """)

    def test_an_unrunnable_test_blocks_too(self) -> None:
        self.play("a w:9 b+after=w c+after=b", "begin > w unrunnable; b blocked; c blocked; a on GPU 0", done=False)

    def test_a_test_that_cannot_run_waits_for_nobody(self) -> None:
        self.play("a w:9+after=a", "begin > w unrunnable; a on GPU 0", done=False)

    def test_two_that_cannot_run_have_one_outcome_each(self) -> None:
        self.play("v:9 w:9+after=v", "begin > v unrunnable; w unrunnable")
        self.play("w:9+after=v v:9", "begin > w unrunnable; v unrunnable")

    def test_a_blocked_test_opens_its_barrier(self) -> None:
        self.play("a b+after=a | c", "begin > a on GPU 0\nexit a 1 > a failed; b blocked; c on GPU 0", done=False)

    def test_across_a_barrier_both_hold(self) -> None:
        self.play("a b | c+after=a d+after=c", """
            begin   > a on GPU 0; b on GPU 1
            exit a  > a passed
            exit b  > b passed; c on GPU 0
            exit c  > c passed; d on GPU 0
        """, done=False)
        self.play("a b | c+after=a d", """
            begin     > a on GPU 0; b on GPU 1
            exit a 1  > a failed; c blocked
            exit b    > b passed; d on GPU 0
        """, done=False)

    def test_fail_fast_blocks_before_it_stops(self) -> None:
        self.play("a b+after=a c+after=b d", """
            begin     > a on GPU 0
            exit a 1  > a failed; b blocked; c blocked; d not run
        """, gpus=1, fail_fast=True)

    def test_an_interrupted_run_blocks_nobody(self) -> None:
        self.play("a b+after=a", """
            begin      > a on GPU 0
            SIGINT     > b not run; SIGINT a
            exit a -2  > a interrupted
        """)

    def test_a_broken_machine_blocks_nobody(self) -> None:
        self.play("a b+after=a", "begin > a on GPU 0\nbreak a > a not run; b not run")

    def test_the_same_name_twice_is_one(self) -> None:
        self.play("a b+after=a,a", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed")
        self.play("a b+after=a,a", "begin > a on GPU 0\nexit a 1 > a failed; b blocked")

    def test_a_name_of_a_test_that_is_left_out_holds_up_nobody(self) -> None:
        self.play("b+after=elsewhere", "begin > b on GPU 0\nexit b > b passed")


class LockTest(ScheduleCase):
    def test_a_lock_has_one_holder_and_holds_up_no_other_test(self) -> None:
        self.play("a+lock=x b+lock=x c d+lock=x", """
            begin   > a on GPU 0; c on GPU 1
            exit c  > c passed
            exit a  > a passed; b on GPU 0
            exit b  > b passed; d on GPU 0
            exit d  > d passed
        """)

    def test_it_goes_to_the_first_in_starting_order(self) -> None:
        self.play("a+lock=x b:0+lock=x c+lock=x", """
            begin   > a on GPU 0
            exit a  > a passed; c on GPU 0
            exit c  > c passed; b on CPU
        """, order="a c b", done=False)

    def test_several_locks_are_held_together_or_not_at_all(self) -> None:
        self.play("a+lock=x b+lock=x,y c+lock=y d+lock=z", """
            begin   > a on GPU 0; c on GPU 1; d on GPU 2
            exit a  > a passed
            exit c  > c passed; b on GPU 0
        """, gpus=3, done=False)

    def test_the_order_of_names_does_not_matter(self) -> None:
        self.play("a+lock=x,y b+lock=y,x", "begin > a on GPU 0\nexit a > a passed; b on GPU 0", done=False)

    def test_cpu_tests_and_fractions_hold_them_too(self) -> None:
        self.play("a:0+lock=x b:.5+lock=x c+lock=x", """
            begin   > a on CPU
            exit a  > a passed; b on GPU 0
            exit b  > b passed; c on GPU 0
        """, done=False)

    def test_every_end_gives_it_back(self) -> None:
        for end in ("exit a 1 > a failed", "exit a -11 > a crashed", "@9 tick > SIGTERM a\nexit a > a timeout"):
            with self.subTest(end):
                self.play("a:1:9+lock=x b+lock=x", f"begin > a on GPU 0\n{end}; b on GPU 0", done=False)

    def test_one_that_waits_for_a_lock_is_promised_no_device(self) -> None:
        self.play("a+lock=x w:2+lock=x b~999", "begin > a on GPU 0; b on GPU 1", done=False)

    def test_together_with_after_and_barriers(self) -> None:
        self.play("a+lock=x b+lock=x+after=a | c+lock=x d", """
            begin   > a on GPU 0
            exit a  > a passed; b on GPU 0
            exit b  > b passed; c on GPU 0; d on GPU 1
        """, done=False)

    def test_a_blocked_test_holds_none(self) -> None:
        self.play("a b+lock=x+after=a c+lock=x+after=d d", """
            begin     > a on GPU 0; d on GPU 1
            exit a 1  > a failed; b blocked
            exit d    > d passed; c on GPU 0
        """, done=False)


class ReservationTest(ScheduleCase):
    """The first test that finds no room is promised devices; what would delay it has to wait."""

    def test_a_wide_test_is_not_overtaken(self) -> None:
        self.play("a b c:2 d e", """
            begin      > a on GPU 0; b on GPU 1
            @1 exit b  > b passed
            @2 exit a  > a passed; c on GPU 0,1
            @3 exit c  > c passed; d on GPU 0; e on GPU 1
            @4 exit d  > d passed
            @4 exit e  > e passed
        """)

    def test_what_ends_in_time_starts_on_the_promised_devices(self) -> None:
        for seconds, started in (("49", "; n on GPU 1"), ("50", "; n on GPU 1"), ("50.5", ""), ("500", "")):
            with self.subTest(seconds=seconds):
                self.play(f"a~60 b~10 w:2 n~{seconds}", f"""
                    begin       > a on GPU 0; b on GPU 1
                    @10 exit b  > b passed{started}
                """, done=False)

    def test_one_that_ends_in_time_is_found_behind_others(self) -> None:
        self.play("a~60 b~10 w:2 l~99 m~51 n~30 o~20", """
            begin       > a on GPU 0; b on GPU 1
            @10 exit b  > b passed; n on GPU 1
            @30 exit n  > n passed; o on GPU 1
            @50 exit o  > o passed
            @60 exit a  > a passed; w on GPU 0,1
            @70 exit w  > w passed; l on GPU 0; m on GPU 1
        """, done=False)

    def test_a_longer_one_starts_on_other_devices(self) -> None:
        """The promise is that of GPUs 0,1,2: GPU 3 is free for whatever comes, but for one test only."""
        self.play("v:3~100 w:3 n~999 m~999", """
            begin        > v on GPU 0,1,2; n on GPU 3
            @100 exit v  > v passed; w on GPU 0,1,2
        """, gpus=4, done=False)

    def test_devices_that_are_free_are_promised_with_those_that_come_first(self) -> None:
        self.play("a~50 b~100 w:2 m~70 n:.5~51 o~50", "begin > a on GPU 0; b on GPU 1; o on GPU 2", gpus=3, done=False)

    def test_only_the_first_is_promised_anything(self) -> None:
        """What delays `v`, but not `w`, may start until `v` is the first."""
        self.play("a:3~50 w:2~60 v:4 n~999 m~999 o~400", """
            begin       > a on GPU 0,1,2; n on GPU 3
            @50 exit a  > a passed; w on GPU 0,1; o on GPU 2
        """, gpus=4, done=False)

    def test_it_starts_as_soon_as_it_fits(self) -> None:
        self.play("a~60 b~60 w:2 n", """
            begin      > a on GPU 0; b on GPU 1
            @5 exit a  > a passed
            @6 exit b  > b passed; w on GPU 0,1
        """, done=False)

    def test_the_promise_is_made_anew_at_each_event(self) -> None:
        """`b` ends early: the promise moves from 100 to 60, and `n` would be late."""
        self.play("a~60 b~100 c~20 w:3 m~50 n~50", """
            begin       > a on GPU 0; b on GPU 1; c on GPU 2
            @20 exit c  > c passed; m on GPU 2
            @30 exit b  > b passed
        """, gpus=3, done=False)

    def test_what_is_overdue_may_end_at_any_time(self) -> None:
        self.play("a~10 b~10 w:2 n~1 o~0", """
            begin       > a on GPU 0; b on GPU 1
            @11 exit b  > b passed; o on GPU 1
            @12 exit o  > o passed
            @99 tick    >
            @99 exit a  > a passed; w on GPU 0,1
        """, done=False)

    def test_what_fits_beside_the_overdue_starts(self) -> None:
        self.play("a:2~10 w:3 b~5 n~999", """
            begin       > a on GPU 0,1; b on GPU 2
            @11 exit b  > b passed
            @12 exit a  > a passed; w on GPU 0,1,2
        """, gpus=3, done=False)
        self.play("a:2~10 w:2 b~5 n~999", """
            begin       > a on GPU 0,1; b on GPU 2
            @11 exit b  > b passed; n on GPU 2
            @12 exit a  > a passed; w on GPU 0,1
        """, gpus=3, done=False)

    def test_however_it_came_to_wait_it_does_not_starve(self) -> None:
        """The narrow tests would keep both GPUs busy for ever; none of them starts once `w` waits for room."""
        script = """
            begin        > s on GPU 0; n on GPU 1
            @10 exit s   > s passed
            @100 exit n  > n passed; w on GPU 0,1
            @101 exit w  > w passed; m on GPU 0; o on GPU 1
        """
        for name, wide in (("after", "w:2+after=s"), ("lock", "w:2+lock=x"), ("all", "w:all+after=s")):
            with self.subTest(name):
                self.play(f"s~10+lock=x {wide} n~100 m~100 o~100 p~100", script, done=False)

    def test_in_list_order_it_does_not_starve(self) -> None:
        self.play("a~100 b~50 w:2 m~100 n~50 o~100", """
            begin        > a on GPU 0; b on GPU 1
            @50 exit b   > b passed; n on GPU 1
            @100 exit a  > a passed
            @100 exit n  > n passed; w on GPU 0,1
        """, done=False)

    def test_below_a_barrier_it_does_not_starve(self) -> None:
        self.play("a~9 | b~100 c~50 w:2 m~100 n~50", """
            begin        > a on GPU 0
            @9 exit a    > a passed; b on GPU 0; c on GPU 1
            @59 exit c   > c passed; n on GPU 1
            @99 exit n   > n passed
            @109 exit b  > b passed; w on GPU 0,1
        """, done=False)

    def test_a_whole_device_is_not_lost_to_fractions(self) -> None:
        self.play("a:.5~10 b:.5~20 w n:.5~60 m:.5~10", """
            begin       > a on GPU 0; b on GPU 0
            @10 exit a  > a passed; m on GPU 0
            @20 exit b  > b passed
            @21 exit m  > m passed; w on GPU 0
        """, gpus=1, done=False)

    def test_fractions_take_what_is_not_promised(self) -> None:
        """GPU 1 is whole again before GPU 0: that one is promised, and GPU 0 is not."""
        self.play("a:.5~10 b:.5~99 c~50 w n:.5~999 m:.5~999", """
            begin       > a on GPU 0; b on GPU 0; c on GPU 1
            @10 exit a  > a passed; n on GPU 0
            @50 exit c  > c passed; w on GPU 1
        """, done=False)

    def test_a_large_fraction_is_not_lost_to_small_ones(self) -> None:
        self.play("a:.5~10 b:.5~20 w:.75 n:.5~60 m:.25~10", """
            begin       > a on GPU 0; b on GPU 0
            @10 exit a  > a passed; m on GPU 0
            @20 exit b  > b passed; w on GPU 0
        """, gpus=1, done=False)

    def test_its_locks_are_not_taken_from_it(self) -> None:
        """GPU 3 is promised to nobody; were `n` to start there, `w` would wait for its lock, then for that of `o`."""
        self.play("a:3~50 w:2+lock=x n~999+lock=x o~999+lock=x m~999", """
            begin       > a on GPU 0,1,2; m on GPU 3
            @50 exit a  > a passed; w on GPU 0,1
        """, gpus=4, done=False)


class LockedOutTest(ScheduleCase):
    """Another runner on the machine holds GPUs."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="run_tests.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.other = self.locks(3)

    def locks(self, gpus: int) -> run_tests.GpuLocks:
        return run_tests.GpuLocks(self.folder, run_tests.Machine(tuple(devices_of(gpus))))

    def hold(self, *indices: int) -> None:
        for index in indices:
            self.assertTrue(self.other.take(devices_of(3)[index]))

    def free(self, *indices: int) -> None:
        for index in indices:
            self.other.give(devices_of(3)[index])

    def start(self, tests: str, told: str, gpus: int = 2) -> Play:
        play = Play(tests, gpus=gpus, locks=self.locks(gpus))
        self.tell(play, "begin", told)
        return play

    def tell(self, play: Play, event: str, told: str) -> None:
        self.assertEqual("; ".join(play.step(event)), told, f"after {event!r}")

    def test_nothing_starts_until_the_other_runner_is_done(self) -> None:
        self.hold(0, 1)
        play = self.start("a", "")
        self.assertEqual(play.schedule.deadline(), run_tests.LOCK_POLL_S)
        self.tell(play, "@3 tick", "")
        self.assertEqual(play.schedule.deadline(), 3 + run_tests.LOCK_POLL_S)
        self.free(1)
        self.tell(play, "@4 tick", "a on GPU 1")
        self.assertEqual(play.schedule.deadline(), math.inf)

    def test_the_end_of_an_own_test_is_a_look_too(self) -> None:
        self.hold(0)
        play = self.start("a b", "a on GPU 1")
        self.assertEqual(play.schedule.deadline(), run_tests.LOCK_POLL_S)
        self.free(0)
        self.tell(play, "exit a", "a passed; b on GPU 0")
        self.assertEqual(play.schedule.deadline(), math.inf)

    def test_a_timeout_may_come_before_the_next_look(self) -> None:
        self.hold(0)
        play = self.start("a:1:.1 b", "a on GPU 1")
        self.assertEqual(play.schedule.deadline(), .1)

    def test_where_all_own_gpus_are_busy_there_is_nothing_to_look_for(self) -> None:
        play = self.start("a b c", "a on GPU 0; b on GPU 1")
        self.assertEqual(play.schedule.deadline(), math.inf)

    def test_narrower_tests_start_beside_what_is_locked(self) -> None:
        self.hold(0, 1)
        play = self.start("w:2 a~999 x:0~999", "a on GPU 2; x on CPU", gpus=3)
        self.assertEqual(play.schedule.deadline(), run_tests.LOCK_POLL_S)
        self.free(0, 1)
        self.tell(play, "@1 tick", "w on GPU 0,1")

    def test_all_waits_for_every_gpu(self) -> None:
        self.hold(1)
        play = self.start("w:all", "")
        self.free(1)
        self.tell(play, "@1 tick", "w on GPU 0,1")

    def test_a_test_that_waits_holds_no_gpu_of_its_own(self) -> None:
        self.hold(1)
        self.start("w:2", "")
        self.hold(0)

    def test_an_interrupted_run_looks_no_more(self) -> None:
        self.hold(0, 1)
        play = self.start("a", "")
        self.tell(play, "SIGINT", "a not run")
        self.assertEqual((play.schedule.deadline(), play.schedule.done), (math.inf, True))

    def test_a_wide_test_does_not_starve_beside_another_runner(self) -> None:
        """GPU 0 is the other's for hours; `w` can have the other two, if the narrow tests let it."""
        self.hold(0)
        play = self.start("s~10 w:2+after=s n~100 m~100 o~100", "s on GPU 1; n on GPU 2", gpus=3)
        self.tell(play, "@10 exit s", "s passed")
        self.tell(play, "@100 exit n", "n passed; w on GPU 1,2")

    def test_two_runners_never_share_a_gpu_and_both_come_to_an_end(self) -> None:
        for seed in range(40):
            with self.subTest(seed=seed):
                self.run_two(random.Random(seed))

    def run_two(self, chance: random.Random) -> None:
        """Two schedules on one virtual clock, a device of each of which may be locked by the other."""
        needs, agenda, numbers = [0.0, 0.5, 0.25, 1.0, 1.0, 2.0, 3.0, ALL_GPUS], [], itertools.count()
        tests = [[a_test(index, gpus=chance.choice(needs)) for index in range(8)] for _ in range(2)]
        runners = [schedule_of(each, 3, 2, locks=self.locks(3)) for each in tests]
        agenda = [(0.0, next(numbers), runner, Begin(0.0)) for runner in runners]
        while not all(runner.done for runner in runners):
            at, _, runner, event = heapq.heappop(agenda)
            for action in runner.step(event):
                if isinstance(action, Launch):
                    end = at + chance.uniform(0.0, 9.0)
                    heapq.heappush(agenda, (end, next(numbers), runner, Exited(end, action.test, 0, "")))
            if runner.deadline() < math.inf:
                heapq.heappush(agenda, (runner.deadline(), next(numbers), runner, Tick(runner.deadline())))
            held = [{device for running in each.running.values() for device in running.lease.devices}
                    for each in runners]
            self.assertEqual(held[0] & held[1], set())
            self.assertLess(next(numbers), 5000, "no end in sight")


class RetryTest(ScheduleCase):
    def test_a_test_that_does_not_pass_runs_again(self) -> None:
        play = self.play("a", """
            begin       > a on GPU 0
            exit a 1    > a failed, again; a on GPU 1
            exit a -11  > a crashed, again; a on GPU 0
            exit a      > a flaky
        """, retries=2)
        self.assertEqual((play.results["a"].attempt, play.results["a"].status), (3, 0))

    def test_the_last_attempt_counts(self) -> None:
        play = self.play("a", """
            begin      > a on GPU 0
            exit a 1   > a failed, again; a on GPU 1
            exit a -6  > a crashed
        """, retries=1)
        self.assertEqual((play.results["a"].attempt, play.results["a"].status), (2, -6))

    def test_a_timeout_is_retried_with_a_clock_of_its_own(self) -> None:
        self.play("a:1:5", """
            begin         > a on GPU 0
            @5 tick       > SIGTERM a
            @7 exit a     > a timeout, again; a on GPU 1
            @11 tick      >
            @12 tick      > SIGTERM a
            @13 exit a    > a timeout
        """, retries=1)

    def test_it_waits_for_room_in_its_place_of_the_starting_order(self) -> None:
        self.play("a b~99 c", """
            begin      > a on GPU 0
            exit a 1   > a failed, again; a on GPU 0
            exit a     > a flaky; b on GPU 0
        """, gpus=1, retries=1, done=False)

    def test_barriers_after_and_locks_wait_for_the_verdict(self) -> None:
        self.play("a+lock=x b+after=a d+lock=x | c", """
            begin      > a on GPU 0
            exit a 1   > a failed, again; a on GPU 1
            exit a     > a flaky; b on GPU 0; d on GPU 1
            exit d     > d passed
            exit b 1   > b failed, again; b on GPU 1
            exit b 1   > b failed; c on GPU 0
        """, retries=1, done=False)

    def test_only_a_verdict_stops_a_run_or_blocks_a_test(self) -> None:
        self.play("a b+after=a c", """
            begin     > a on GPU 0
            exit a 1  > a failed, again; a on GPU 0
            exit a 1  > a failed; b blocked; c not run
        """, gpus=1, retries=1, fail_fast=True)

    def test_a_run_that_ends_retries_nothing(self) -> None:
        self.play("a b", """
            begin     > a on GPU 0; b on GPU 1
            SIGINT    > SIGINT a; SIGINT b
            exit a 1  > a interrupted
            exit b    > b interrupted
        """, retries=9)

    def test_an_attempt_that_cannot_start_has_its_number(self) -> None:
        play = self.play("a", """
            begin     > a on GPU 0
            exit a 1  > a failed, again; a on GPU 1
            break a   > a not run
        """, retries=1)
        self.assertEqual(play.results["a"].attempt, 2)


    def test_it_runs_elsewhere_if_it_can(self) -> None:
        cases = {
            "another GPU is free": ("a b", 3, """
                begin     > a on GPU 0; b on GPU 1
                exit a 1  > a failed, again; a on GPU 2
                exit a 1  > a failed, again; a on GPU 0
            """),
            "none is": ("a b", 2, "begin > a on GPU 0; b on GPU 1\nexit a 1 > a failed, again; a on GPU 0"),
            "neighbours": ("w:2", 4, "begin > w on GPU 0,1\nexit w 1 > w failed, again; w on GPU 2,3"),
            "not as many others": ("w:2", 3, "begin > w on GPU 0,1\nexit w 1 > w failed, again; w on GPU 0,1"),
            "the others are no neighbours": ("x w:2 y z", 5, """
                begin     > x on GPU 0; w on GPU 1,2; y on GPU 3; z on GPU 4
                exit x    > x passed
                exit z    > z passed
                exit w 1  > w failed, again; w on GPU 0,1
            """),
            "a share": ("h:.5 i:.5", 2, """
                begin     > h on GPU 0; i on GPU 0
                exit h 1  > h failed, again; h on GPU 1
            """),
            "all there are": ("w:all", 2, "begin > w on GPU 0,1\nexit w 1 > w failed, again; w on GPU 0,1"),
            "no GPU": ("x:0", 2, "begin > x on CPU\nexit x 1 > x failed, again; x on CPU"),
        }
        for name, (tests, gpus, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, gpus=gpus, retries=2, done=False)


class QuarantineTest(ScheduleCase):
    """GPUs that fall out, as nvidia-smi says or as a log shows."""

    def test_what_nvidia_smi_finds_counts_at_once(self) -> None:
        play = self.play("a b c", """
            begin           > a on GPU 0; b on GPU 1
            exit a 0 sick:0 > quarantine 0; a passed
            exit b          > b passed; c on GPU 1
            exit c          > c passed
        """)
        self.assertEqual(play.quarantined, ["no answer"])

    def test_a_device_is_quarantined_once(self) -> None:
        self.play("a:.5 b:.5 c", """
            begin           > a on GPU 0; b on GPU 0; c on GPU 1
            exit a 0 sick:0 > quarantine 0; a passed
            exit b 0 sick:0 > b passed
        """, done=False)

    def test_a_broken_gpus_test_runs_again_elsewhere_and_that_attempt_alone_counts(self) -> None:
        for word in ("ecc", "bus", "sick:0"):
            with self.subTest(word):
                play = self.play("a b c", f"""
                    begin            > a on GPU 0; b on GPU 1
                    exit a 1 {word}  > quarantine 0; a failed, again
                    exit b           > b passed; a on GPU 1
                    exit a           > a passed; c on GPU 1
                    exit c           > c passed
                """)
                self.assertEqual(play.results["a"].attempt, 2)
        self.assertEqual(self.play("a", "begin > a on GPU 0\nexit a 1 ecc > quarantine 0; a failed, again; a on GPU 1",
                                   done=False).quarantined, ["ECC in a"])

    def test_what_shows_on_every_gpu_is_the_test(self) -> None:
        self.play("a b", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 ecc  > quarantine 0; a failed, again; a on GPU 2
            exit a 1 ecc  > a failed
            exit b        > b passed
        """, gpus=3)

    def test_a_test_is_spared_once_and_then_retried_as_often_as_said(self) -> None:
        self.play("a", """
            begin            > a on GPU 0
            exit a 1 ecc     > quarantine 0; a failed, again; a on GPU 1
            exit a 1 sick:1  > quarantine 1; a failed
        """, gpus=3)
        play = self.play("a", """
            begin            > a on GPU 0
            exit a 1 ecc     > quarantine 0; a failed, again; a on GPU 1
            exit a 1         > a failed, again; a on GPU 2
            exit a           > a flaky
        """, gpus=3, retries=1)
        self.assertEqual(play.results["a"].attempt, 3)

    def test_a_pass_beside_a_broken_gpu_is_a_pass(self) -> None:
        self.play("a b", "begin > a on GPU 0; b on GPU 1\nexit a 0 sick:1 > quarantine 1; a passed", done=False)

    def test_several_gpus_do_not_tell_which_is_broken(self) -> None:
        self.play("w:2 a", "begin > w on GPU 0,1\nexit w 1 ecc > w failed; a on GPU 0", done=False)
        self.play("w:2 a", "begin > w on GPU 0,1\nexit w 1 sick:1 > quarantine 1; w failed; a on GPU 0", done=False)

    def test_a_test_without_a_gpu_accuses_none(self) -> None:
        self.play("x:0 a", "begin > x on CPU; a on GPU 0\nexit x 1 ecc > x failed", done=False)
        self.play("x:0 a", "begin > x on CPU; a on CPU\nexit a 1 ecc > a failed", gpus=0, done=False)

    def test_a_share_of_a_gpu_accuses_it(self) -> None:
        self.play("h:.5 i:.5", """
            begin         > h on GPU 0; i on GPU 0
            exit h 1 ecc  > quarantine 0; h failed, again; h on GPU 1
            exit i        > i passed
        """, done=False)

    def test_what_fails_at_the_start_is_held_against_another_gpu(self) -> None:
        cases = {"a pass": ("exit a", "quarantine 0; a passed"), "a crash": ("exit a -11 x", "quarantine 0; a crashed"),
                 "another error": ("exit a 1 assert", "quarantine 0; a failed"),
                 "the same error": ("exit a 1 launch", "a failed")}
        for name, (end, told) in cases.items():
            with self.subTest(name):
                play = self.play("a", f"""
                    @5 begin            > a on GPU 0
                    @35 exit a 1 launch > a failed, again; a on GPU 1
                    {end}               > {told}
                """)
                self.assertEqual(play.quarantined, ["launch failure in a"] * told.startswith("quarantine"))

    def test_what_fails_later_is_the_tests_own(self) -> None:
        self.play("a", "begin > a on GPU 0\n@30.1 exit a 1 launch > a failed")

    def test_a_suspicion_needs_another_gpu(self) -> None:
        for gpus in (1, 2):
            with self.subTest(gpus=gpus):
                self.play("a b", f"""
                    begin           > a on GPU 0{'; b on GPU 1' * (gpus - 1)}
                    exit a 1 launch > a failed, again; a on GPU 0
                    exit a          > a passed{'; b on GPU 0' * (2 - gpus)}
                """, gpus=gpus, done=False)

    def test_a_suspicion_counts_for_one_attempt(self) -> None:
        """The third attempt is no more a proof than it is a suspicion."""
        self.play("a", """
            begin           > a on GPU 0
            exit a 1 launch > a failed, again; a on GPU 1
            exit a 1 launch > a failed, again; a on GPU 0
            exit a          > a flaky
        """, retries=1)

    def test_what_needs_more_than_is_left_cannot_run(self) -> None:
        play = self.play("a~99 w:2 v:2+after=a b:all x:0+after=w", """
            begin         > a on GPU 0
            exit a 1 ecc  > quarantine 0; w unrunnable; v unrunnable; x blocked; a failed, again; a on GPU 1
            exit a        > a passed; b on GPU 1
            exit b        > b passed
        """, order="a w v b x")
        self.assertEqual(play.results["w"].reason, "needs 2 GPUs, more than are left")

    def test_what_waits_for_a_retry_and_cannot_run_has_failed(self) -> None:
        self.play("a w:2 b", """
            begin         > w on GPU 0,1; b on GPU 2
            exit w 1      > w failed, again; w on GPU 0,1
            exit b 1 ecc  > quarantine 2; b failed, again
            exit w 1      > w failed, again; w on GPU 0,1
            exit w 1      > w failed; b on GPU 0; a on GPU 1
        """, gpus=3, retries=2, order="w b a", done=False)
        play = self.play("w:2 b~1", """
            begin         > w on GPU 0,1; b on GPU 2
            exit w 1 sick:0  > quarantine 0; w failed, again
            exit b 1 sick:1  > quarantine 1; w failed; b failed, again; b on GPU 2
        """, gpus=3, done=False)
        self.assertEqual(play.results["w"].reason, "")

    def test_a_reservation_is_of_gpus_that_are_left(self) -> None:
        self.play("a~10 b~20 c~30 w:2 n~25", """
            begin            > a on GPU 0; b on GPU 1; c on GPU 2
            @10 exit a 0 sick:0  > quarantine 0; a passed
            @20 exit b       > b passed
            @30 exit c       > c passed; w on GPU 1,2
        """, gpus=3, done=False)

    def test_without_a_gpu_the_machine_has_failed(self) -> None:
        play = self.play("a b c x:0 y:0 z:0", """
            begin           > a on GPU 0; b on GPU 1; x on CPU; y on CPU
            exit a 1 ecc    > quarantine 0; a failed, again
            exit b 0 sick:1 > quarantine 1; a failed; c not run; z not run; SIGTERM x; SIGTERM y; b passed
            exit x -15      > x interrupted
            exit y          > y interrupted
        """)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")
        play = self.play("a b", "begin > a on GPU 0\nexit a 1 ecc > quarantine 0; b not run; a failed", gpus=1, jobs=1,
                         sequential=True, retries=5)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")


class MachineWideTest(ScheduleCase):
    """One cause that no test can pass, on every GPU: the run ends."""

    def ends(self, tests: str, script: str, failure: str = "", **values: Any) -> None:
        play = self.play(tests, script, done=None, **values)
        self.assertEqual(play.schedule.failure, failure)

    def test_two_tests_on_every_gpu_end_the_run(self) -> None:
        self.ends("a b c d", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed; c on GPU 0
            exit b 1 old  > d not run; SIGTERM c; b failed
        """, "old driver, on every GPU")

    def test_one_gpu_takes_two_tests(self) -> None:
        self.ends("a b c", """
            begin          > a on GPU 0
            exit a 1 none  > a failed; b on GPU 0
            exit b 1 none  > c not run; b failed
        """, "no GPU, on every GPU", gpus=1)

    def test_one_test_is_no_machine(self) -> None:
        self.ends("a b", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed, again; a on GPU 0
            exit a 1 old  > a failed, again; a on GPU 0
            exit a 1 old  > a failed
        """, retries=2)
        self.ends("a", """
            begin         > a on GPU 0
            exit a 1 old  > a failed, again; a on GPU 1
            exit a 1 old  > a failed
        """, retries=1)
        self.ends("w:all", "begin > w on GPU 0,1\nexit w 1 old > w failed")

    def test_wide_tests_count_for_all_their_gpus(self) -> None:
        self.ends("w:2 v:2 u:2", """
            begin         > w on GPU 0,1
            exit w 1 old  > w failed; v on GPU 0,1
            exit v 1 old  > u not run; v failed
        """, "old driver, on every GPU")

    def test_every_gpu_has_to_show_it(self) -> None:
        self.ends("a b c d", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed; c on GPU 0
            exit c 1 old  > c failed; d on GPU 0
            exit d 1 old  > d failed
        """)

    def test_any_other_end_on_a_gpu_starts_anew(self) -> None:
        for end in ("exit b", "exit b 1 assert", "exit b 1 none", "exit b -9"):
            with self.subTest(end):
                play = Play("a b c d e")
                for event in ("begin", "exit a 1 old", end, "exit c 1 old", "exit c 1 old"):
                    play.step(event)
                self.assertEqual(play.schedule.failure, "")
                play.step("exit d 1 old")
                self.assertEqual(play.schedule.failure, "old driver, on every GPU")

    def test_tests_without_a_gpu_say_nothing_of_them(self) -> None:
        self.ends("a b x:0 y:0 c", """
            begin         > a on GPU 0; b on GPU 1; x on CPU; y on CPU
            exit a 1 old  > a failed; c on GPU 0
            exit x 1 old  > x failed
            exit y        > y passed
            exit b 1 old  > SIGTERM c; b failed
        """, "old driver, on every GPU")
        self.ends("x:0 y:0", "begin > x on CPU; y on CPU\nexit x 1 old > x failed\nexit y 1 old > y failed")
        self.ends("a b", "begin > a on CPU\nexit a 1 old > a failed; b on CPU\nexit b 1 old > b failed", gpus=0)

    def test_gpus_in_quarantine_need_not_show_it(self) -> None:
        self.ends("a b c d", """
            begin            > a on GPU 0; b on GPU 1
            exit a 0 sick:0  > quarantine 0; a passed
            exit b 1 old     > b failed; c on GPU 1
            exit c 1 old     > d not run; c failed
        """, "old driver, on every GPU")


class JudgeTest(unittest.TestCase):
    """What the end of an attempt means."""

    def judged(self, attempt: int = 1, being_ended: Optional[Outcome] = None, options: str = "report",
               is_spared: bool = False, junit: Optional[str] = "x.xml", **event: Any) -> run_tests.Result:
        test = a_test(junit=junit, timeout=5.0)
        running = run_tests.Running(Lease((), 0), attempt, 0.0, started=2.0, cause=being_ended)
        return judge(Exited(5.0, test, **event), running, run_tests.Options((), leaks=options), is_spared)

    def test_outcome_cause_and_reason(self) -> None:
        passed, flaky, failed, crashed = Outcome.PASSED, Outcome.FLAKY, Outcome.FAILED, Outcome.CRASHED
        timeout, interrupted, leak = Outcome.TIMEOUT, Outcome.INTERRUPTED, ("sleep (pid 7)",)
        why, shows, oom = Cause("why"), "its JUnit file shows failures: 2", run_tests.OOM_KILLED
        late = "did not end in 5s"
        cases: List[Tuple[str, Dict[str, Any], Tuple[Outcome, str, str]]] = [
            ("a pass", {"status": 0}, (passed, "", "")),
            ("a failure", {"status": 3, "cause": why}, (failed, "why", "")),
            ("a crash", {"status": -11, "cause": why}, (crashed, "why", "")),
            ("a crash as a shell tells it", {"status": 139, "cause": why}, (crashed, "why", "")),
            ("a timeout", {"status": -15, "cause": why, "being_ended": timeout}, (timeout, "timeout", late)),
            ("a timeout that ends well", {"status": 0, "being_ended": timeout}, (timeout, "timeout", late)),
            ("a timeout, then the OOM killer", {"status": -9, "cause": oom, "being_ended": timeout},
             (timeout, "timeout", late)),
            ("an interrupt", {"status": -2, "being_ended": interrupted}, (interrupted, "", "")),
            ("an interrupt that ends well", {"status": 0, "being_ended": interrupted}, (interrupted, "", "")),
            ("the OOM killer", {"status": -9, "cause": oom}, (crashed, oom.text, "OOM killer")),
            ("the OOM killer, within", {"status": 137, "cause": oom}, (crashed, oom.text, "OOM killer")),
            ("failures behind exit 0", {"status": 0, "junit_failures": 2, "cause": why}, (failed, "why", shows)),
            ("failures", {"status": 1, "junit_failures": 2, "cause": why}, (failed, "why", "")),
            ("a second attempt", {"status": 0, "attempt": 2}, (flaky, "", "")),
            ("a second that fails", {"status": 1, "attempt": 2}, (failed, "", "")),
            ("a second with failures behind exit 0", {"status": 0, "attempt": 2, "junit_failures": 2},
             (failed, "", shows)),
            ("the first that counts", {"status": 0, "attempt": 2, "is_spared": True}, (passed, "", "")),
            ("the second that counts", {"status": 0, "attempt": 3, "is_spared": True}, (flaky, "", "")),
            ("a leak", {"status": 0, "leaked": leak}, (passed, "", "")),
            ("a leak that fails", {"status": 0, "leaked": leak, "options": "fail"},
             (failed, "leaked processes", "leaked: 1 process")),
            ("two leaks at a retry", {"status": 0, "leaked": leak * 2, "options": "fail", "attempt": 2},
             (failed, "leaked processes", "leaked: 2 processes")),
            ("a failure that leaks", {"status": 3, "leaked": leak, "options": "fail", "cause": why},
             (failed, "why", "")),
        ]
        for name, values, expected in cases:
            with self.subTest(name):
                result = self.judged(**values)
                self.assertEqual((result.outcome, result.cause.text, result.reason), expected)
                self.assertEqual((result.seconds, result.status, result.leaked),
                                 (3.0, values["status"], values.get("leaked", ())))

    def test_a_junit_file_without_a_failure_is_of_no_use_to_a_failure(self) -> None:
        silent = "without a failure"
        cases: List[Tuple[Dict[str, Any], str]] = [
            ({"status": 0}, ""), ({"status": 0, "attempt": 2}, ""),
            ({"status": 0, "junit_fault": "missing"}, "missing"),
            ({"status": 1}, silent), ({"status": -9}, silent), ({"status": 1, "junit_failures": 1}, ""),
            ({"status": 1, "junit_fault": "stale"}, "stale"), ({"status": 1, "junit": None}, ""),
            ({"status": 0, "being_ended": Outcome.TIMEOUT}, silent),
            ({"status": 0, "being_ended": Outcome.INTERRUPTED}, silent),
            ({"status": 1, "junit_fault": "truncated", "junit_failures": 1}, "truncated"),
            ({"status": 0, "junit_failures": 1}, ""),
            ({"status": 0, "leaked": ("sleep (pid 7)",)}, ""),
            ({"status": 0, "leaked": ("sleep (pid 7)",), "options": "fail"}, silent),
        ]
        for values, fault in cases:
            with self.subTest(**values):
                self.assertEqual(self.judged(**values).junit_fault, fault)


class SequentialTest(ScheduleCase):
    def test_one_at_a_time_in_list_order(self) -> None:
        for gpus, place in ((1, "GPU 0"), (0, "CPU")):
            with self.subTest(gpus=gpus):
                self.play("a x:0 w:all h:.5 | y:0 b", f"""
                    begin   > a on {place}
                    exit a  > a passed; x on CPU
                    exit x  > x passed; w on {place}
                    exit w  > w passed; h on {place}
                    exit h  > h passed; y on CPU
                    exit y  > y passed; b on {place}
                    exit b  > b passed
                """, gpus=gpus, jobs=1, sequential=True)

    def test_after_and_locks_hold_there_too(self) -> None:
        self.play("a+after=b b+lock=x c+lock=x d+after=c", """
            begin     > b on GPU 0
            exit b    > b passed; a on GPU 0
            exit a    > a passed; c on GPU 0
            exit c 1  > c failed; d blocked
        """, gpus=1, jobs=1, sequential=True)


class UnrunnableTest(ScheduleCase):
    def test_it_is_concluded_first_and_says_why(self) -> None:
        play = self.play("a v:3 w:4", "begin > v unrunnable; w unrunnable; a on GPU 0\nexit a > a passed")
        self.assertEqual(play.results["w"].reason, "needs 4 GPUs, more than there are")
        self.assertEqual((play.results["w"].status, play.results["w"].lease), (None, None))

    def test_it_is_told_in_list_order(self) -> None:
        self.play("a v:3 w:4", "begin > v unrunnable; w unrunnable; a on GPU 0", order="w v a", done=False)

    def test_nothing_else_is_done_at_once(self) -> None:
        self.play("w:3", "begin > w unrunnable")

    def test_it_is_one_that_is_wider_than_the_machine(self) -> None:
        cases = {0: "b c", 1: "b c", 2: "c", 3: "", 8: ""}   # by number of GPUs
        for gpus, unrunnable in cases.items():
            with self.subTest(gpus=gpus):
                play = Play("a b:2 c:3 x:0 h:.5 w:all", gpus=gpus)
                play.step("begin")
                self.assertEqual({label: result.outcome for label, result in play.results.items()},
                                 dict.fromkeys(unrunnable.split(), Outcome.UNRUNNABLE))


class SubmitTest(ScheduleCase):
    """Tests that come one by one, as a script hands them over."""

    def test_they_start_at_once_where_there_is_room(self) -> None:
        self.play("a b c", """
            begin >
            submit a > a on GPU 0
            submit b > b on GPU 1
            submit c >
            exit a > a passed; c on GPU 0
            exit b > b passed
            exit c > c passed""", later="a b c")

    def test_all_that_wait_have_a_new_order(self) -> None:
        self.play("a b c d e", """
            begin >
            submit a b c > a on GPU 0; b on GPU 1
            submit e d c >
            exit a > a passed; e on GPU 0
            exit b > b passed; d on GPU 1
            exit e > e passed; c on GPU 0
            exit d > d passed
            exit c > c passed""", later="a b c d e")

    def test_what_waits_for_a_retry_keeps_its_place(self) -> None:
        self.play("a b c", """
            begin >
            submit a b > a on GPU 0; b on GPU 1
            exit a 1 > a failed, again; a on GPU 0
            submit c >
            exit b > b passed; c on GPU 1
            exit a > a flaky
            exit c > c passed""", later="a b c", retries=1)

    def test_one_that_is_too_wide_is_told_at_once(self) -> None:
        self.play("a w:3", "begin >\nsubmit a w > w unrunnable; a on GPU 0\nexit a > a passed", later="a w")

    def test_none_starts_after_the_end(self) -> None:
        self.play("a b", "begin >\nsubmit a > a on GPU 0\nSIGTERM > SIGTERM a\nsubmit b > b not run\n"
                  "exit a > a interrupted", later="a b")


class TimeoutTest(ScheduleCase):
    def test_sigterm_at_the_deadline_sigkill_after_grace(self) -> None:
        play = self.play("a:1:30", """
            @10 begin      > a on GPU 0
            @39 tick       >
            @40 tick       > SIGTERM a
            @50 tick       >
            @51 tick       > SIGKILL a
            @60 tick       >
            @61 exit a -9  > a timeout
        """, grace=10.0)
        result = play.results["a"]
        self.assertEqual((result.seconds, result.status, result.verdict()), (51.0, -9, "timeout"))

    def test_the_outcome_is_timeout_whatever_the_status(self) -> None:
        for status in (0, 1, -15, 143):
            with self.subTest(status=status):
                self.play("a:1:5 b", f"""
                    begin            > a on GPU 0
                    @5 tick          > SIGTERM a
                    @6 exit a {status}  > a timeout; b on GPU 0
                """, gpus=1, done=False)

    def test_each_test_has_its_own(self) -> None:
        self.play("a:1:5 b:1:3 c d:1:1", """
            begin          > a on GPU 0; b on GPU 1
            @3 tick        > SIGTERM b
            @4 exit b 143  > b timeout; c on GPU 1
            @5 tick        > SIGTERM a
            @6 exit c      > c passed; d on GPU 1
            @7 tick        > SIGTERM d
        """, done=False)

    def test_the_clock_runs_from_the_start_of_the_process(self) -> None:
        self.play("a:1:5", """
            begin        > a on GPU 0
            @8 tick      >
            @9 start a   >
            @13.9 tick   >
            @14 tick     > SIGTERM a
        """, slow=True, done=False)

    def test_none_means_none(self) -> None:
        self.play("a", "begin > a on GPU 0\n@1e9 tick >\n@2e9 exit a > a passed")

    def test_deadline_is_that_of_the_next_signal(self) -> None:
        play = Play("a:1:5 b:1:3 c", gpus=3, jobs=1, grace=2.0)
        seen = [play.schedule.deadline()]
        for event in ("begin", "@3 tick", "@5 tick", "exit b", "@8 tick", "exit a", "exit c"):
            play.step(event)
            seen.append(play.schedule.deadline())
        stuck = 8.0 + run_tests.STUCK_S
        self.assertEqual(seen, [math.inf, 3.0, 5.0, 6.0, 8.0, stuck, math.inf, math.inf])


    def test_stacks_are_asked_for_before_the_first_signal(self) -> None:
        play = self.play("a:1:1.5", "begin > a on GPU 0\n@1.5 tick > SIGTERM a", done=False)
        self.assertEqual(play.stacks, {"a": "did not end in 1.5s"})
        for events in ("@1 SIGINT", "@1 SIGINT\n@2 SIGINT"):
            play = Play("a:1:5")
            for event in ["begin", *events.splitlines(), "@99 tick"]:
                play.step(event)
            self.assertEqual(play.stacks, {})

    def test_what_cannot_be_killed_is_abandoned_with_its_gpus(self) -> None:
        play = self.play("a:2:5 b c x:0", f"""
            begin                > a on GPU 0,1; b on GPU 2; x on CPU
            exit x               > x passed
            @5 tick              > SIGTERM a
            @16 tick             > SIGKILL a
            @{15.9 + STUCK_S} tick  >
            @{16 + STUCK_S} tick    > abandon a; quarantine 0; quarantine 1; a timeout
            @99 exit a -9        >
            exit b               > b passed; c on GPU 2
            exit c               > c passed
        """, gpus=3)
        result = play.results["a"]
        self.assertEqual((result.status, result.reason, result.cause.text, result.junit_fault, result.seconds),
                         (-9, "cannot be killed", "cannot be killed", "left open", 16 + STUCK_S))
        self.assertEqual(play.quarantined, ["a cannot be killed"] * 2)

    def test_an_abandoned_test_is_not_retried_and_blocks_others(self) -> None:
        self.play("a:0:5 b+after=a", f"begin > a on CPU\n@5 tick > SIGTERM a\n@16 tick > SIGKILL a\n"
                  f"@{16 + STUCK_S} tick > abandon a; a timeout; b blocked", retries=3)

    def test_the_last_gpu_may_be_abandoned_too(self) -> None:
        play = self.play("a:1:5 b", f"begin > a on GPU 0\n@5 tick > SIGTERM a\n@16 tick > SIGKILL a\n"
                         f"@{16 + STUCK_S} tick > abandon a; quarantine 0; b not run; a timeout", gpus=1)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")

    def test_a_machine_without_gpus_loses_none(self) -> None:
        for jobs, sequential in ((1, True), (2, False)):
            self.play("a:1:5 b", f"""
                begin                 > a on CPU
                @5 tick               > SIGTERM a
                @16 tick              > SIGKILL a
                @{16 + STUCK_S} tick  > abandon a; a timeout; b on CPU
                exit b                > b passed
            """, gpus=0, jobs=jobs, sequential=sequential)

    def test_an_interrupt_does_not_wait_for_ever_for_what_cannot_be_killed(self) -> None:
        self.play("a b", f"""
            begin                   > a on GPU 0; b on GPU 1
            @1 SIGINT               > SIGINT a; SIGINT b
            @2 SIGINT               > SIGKILL a; SIGKILL b
            @2 exit b -9            > b interrupted
            @{2 + STUCK_S} tick     > abandon a; quarantine 0; a interrupted
        """)

    def test_whatever_an_abandoned_test_posts_is_ignored(self) -> None:
        """Its thread may come back from the kernel at any time."""
        for event in ("start a", "exit a -9", "break a"):
            with self.subTest(event):
                self.play("a b", f"""
                    begin                   > a on GPU 0; b on GPU 1
                    start b                 >
                    @1 SIGINT               > SIGINT b
                    @2 SIGINT               > SIGKILL b
                    @2 exit b -9            > b interrupted
                    @{2 + STUCK_S} tick     > abandon a; quarantine 0; a interrupted
                    {event}                 >
                """, slow=True)


class SlowTest(ScheduleCase):
    def test_a_test_is_announced_after_each_span(self) -> None:
        play = self.play("a b", """
            begin        > a on GPU 0
            @59.9 tick   >
            @60 tick     > a runs 60s
            @119 tick    >
            @120 tick    > a runs 120s
            @130 exit a  > a passed; b on GPU 0
            @180 tick    >
            @190 tick    > b runs 60s
        """, gpus=1, slow_after=60.0, done=False)
        self.assertEqual(play.schedule.deadline(), 250.0)

    def test_the_clock_runs_from_the_start_of_the_process(self) -> None:
        self.play("a", "begin > a on GPU 0\n@5 start a >\n@64 tick >\n@65 tick > a runs 60s", slow=True,
                  slow_after=60.0, done=False)

    def test_one_that_is_being_ended_is_no_news(self) -> None:
        self.play("a:1:65", "begin > a on GPU 0\n@60 tick > a runs 60s\n@65 tick > SIGTERM a\n@120 tick >\n"
                  "@121 tick >", slow_after=60.0, grace=100.0, done=False)

    def test_a_timeout_at_the_same_time_comes_too(self) -> None:
        self.play("a:1:60", "begin > a on GPU 0\n@60 tick > a runs 60s; SIGTERM a", slow_after=60.0, done=False)


class DeadlineTest(ScheduleCase):
    """`--deadline`: all is reported by then."""

    def test_the_run_ends_early_enough_for_sweeps_and_reports(self) -> None:
        play = self.play("a b c x:0 | d", """
            @1000 begin      > a on GPU 0; b on GPU 1; x on CPU
            @1010 exit a     > a passed; c on GPU 0
            @1078.9 tick     >
            @1079 tick       > d not run; SIGTERM b; SIGTERM x; SIGTERM c
            @1080 exit b 0   > b interrupted
            @1081 exit x -15 > x interrupted
            @1089 tick       >
            @1090 tick       > SIGKILL c
            exit c -9        > c interrupted
        """, deadline=100.0, grace=10.0)
        self.assertTrue(play.schedule.is_overdue)
        self.assertEqual(play.stacks, dict.fromkeys("bxc", "--deadline ends the run"))
        self.assertEqual((play.schedule.failure, play.schedule.interrupts), ("", []))

    def test_of_a_short_one_half_is_for_the_tests(self) -> None:
        self.play("a", """
            begin      > a on GPU 0
            @3.9 tick  >
            @4 tick    > SIGTERM a
            @6.9 tick  >
            @7 tick    > SIGKILL a
        """, deadline=8.0, grace=10.0, done=False)

    def test_it_comes_once(self) -> None:
        play = Play("a", deadline=100.0)
        play.step("begin")
        self.assertEqual(play.schedule.deadline(), 79.0)
        play.step("@79 tick")
        self.assertEqual(play.schedule.deadline(), 90.0)

    def test_a_run_that_ends_before_it_is_not_overdue(self) -> None:
        play = self.play("a", "begin > a on GPU 0\n@78 exit a > a passed", deadline=100.0)
        self.assertFalse(play.schedule.is_overdue)

    def test_what_ended_otherwise_before_stays_as_it_was(self) -> None:
        self.play("a:1:75 b", """
            begin         > a on GPU 0
            @75 tick      > SIGTERM a
            @79 tick      > b not run; SIGTERM a
            @80 exit a    > a timeout
        """, gpus=1, deadline=100.0)
        self.play("x:0 b:2+after=x w:2", """
            begin         > x on CPU; w on GPU 0,1
            @10 exit x    > x passed
            @11 exit w 1  > w failed, again; b on GPU 0,1
            @79 tick      > w failed; SIGTERM b
        """, deadline=100.0, retries=1, done=False)

    def test_a_test_that_is_only_launched_is_ended_when_it_has_started(self) -> None:
        self.play("a", "begin > a on GPU 0\n@79 tick >\n@80 start a > SIGTERM a\n@81 exit a > a interrupted",
                  deadline=100.0, slow=True)

    def test_without_one_a_run_takes_its_time(self) -> None:
        self.play("a", "begin > a on GPU 0\n@1e9 tick >\n@1e9 exit a > a passed")


class InterruptTest(ScheduleCase):
    def test_the_signal_goes_to_all_running_and_the_rest_is_not_run(self) -> None:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            with self.subTest(name):
                play = self.play("a b c d:0 e:0 f:0 | g", f"""
                    begin       > a on GPU 0; b on GPU 1; d on CPU; e on CPU
                    {name}      > c not run; f not run; g not run; {name} a; {name} b; {name} d; {name} e
                    exit a -2   > a interrupted
                    exit b 0    > b interrupted
                    exit d 1    > d interrupted
                    exit e 130  > e interrupted
                """)
                self.assertEqual(play.schedule.interrupts, [signal.Signals[name]])

    def test_what_is_not_run_is_told_in_list_order(self) -> None:
        self.play("a b c d", "begin > d on GPU 0\nSIGINT > a not run; b not run; c not run; SIGINT d", gpus=1,
                  order="d c a b", done=False)

    def test_sigkill_after_grace(self) -> None:
        self.play("a", """
            begin       > a on GPU 0
            @3 SIGINT   > SIGINT a
            @6 tick     >
            @7 tick     > SIGKILL a
            @7 exit a -9  > a interrupted
        """, grace=4.0)

    def test_the_second_kills_now(self) -> None:
        play = self.play("a b", """
            begin       > a on GPU 0; b on GPU 1
            @3 SIGINT   > SIGINT a; SIGINT b
            exit a -2   > a interrupted
            @4 SIGTERM  > SIGKILL b
            exit b -9   > b interrupted
        """)
        self.assertEqual(play.schedule.interrupts, [signal.SIGINT, signal.SIGTERM])
        self.assertEqual(play.schedule.deadline(), math.inf)

    def test_a_test_that_is_only_launched_gets_it_when_it_has_started(self) -> None:
        cases = {
            "the signal": "SIGINT >\nstart a > SIGINT a\nexit a -2 > a interrupted",
            "the second": "SIGINT >\nSIGINT >\nstart a > SIGKILL a\nexit a -9 > a interrupted",
            "the grace is over": "@1 SIGINT >\n@11 tick >\n@12 start a > SIGKILL a\nexit a -9 > a interrupted",
            "the grace goes on": "@1 SIGINT >\n@2 start a > SIGINT a\n@11 tick > SIGKILL a\nexit a -9 > a interrupted",
            "it never starts": "SIGINT >\nbreak a > a not run",
        }
        for name, script in cases.items():
            with self.subTest(name):
                self.play("a:1:1", "begin > a on GPU 0\n" + script, slow=True, grace=10.0)

    def test_a_timeout_stays_a_timeout(self) -> None:
        self.play("a:1:5 b", """
            begin        > a on GPU 0; b on GPU 1
            @5 tick      > SIGTERM a
            @6 SIGINT    > SIGINT a; SIGINT b
            exit a -15   > a timeout
            exit b -2    > b interrupted
        """)

    def test_nothing_starts_after_it(self) -> None:
        self.play("a x:0 y:0 z:0", """
            begin      > a on GPU 0; x on CPU; y on CPU
            SIGTERM    > z not run; SIGTERM a; SIGTERM x; SIGTERM y
            exit x     > x interrupted
            exit y     > y interrupted
            exit a     > a interrupted
        """)

    def test_when_all_is_done_it_does_nothing(self) -> None:
        play = self.play("a", "begin > a on GPU 0\nexit a > a passed\nSIGINT >")
        self.assertEqual(play.results["a"].outcome, Outcome.PASSED)


class StopTest(ScheduleCase):
    def test_fail_fast_starts_nothing_more_and_lets_the_others_end(self) -> None:
        self.play("a b c x:0 | d", """
            begin     > a on GPU 0; b on GPU 1; x on CPU
            exit a 1  > a failed; c not run; d not run
            exit b 1  > b failed
            exit x    > x passed
        """, fail_fast=True)

    def test_fail_fast_counts_every_failure(self) -> None:
        cases = {
            "a crash": ("a b", "begin > a on GPU 0\nexit a -11 > a crashed; b not run"),
            "a timeout": ("a:1:5 b", "begin > a on GPU 0\n@5 tick > SIGTERM a\nexit a > a timeout; b not run"),
            "a test that cannot run": ("a w:2 b", "begin > w unrunnable; a not run; b not run"),
            "not a pass": ("a b", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed"),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, gpus=1, fail_fast=True)

    def test_fail_fast_tells_every_test_that_cannot_run(self) -> None:
        play = Play("a w:2 v:3 b", gpus=1, fail_fast=True)
        self.assertEqual(sorted(play.step("begin")), ["a not run", "b not run", "v unrunnable", "w unrunnable"])

    def test_without_it_a_failure_stops_nothing(self) -> None:
        self.play("a b", "begin > a on GPU 0\nexit a 1 > a failed; b on GPU 0\nexit b > b passed", gpus=1)

    def test_a_broken_machine_stops_the_run(self) -> None:
        play = self.play("a b c", """
            @1 begin      > a on GPU 0; b on GPU 1
            start a       >
            @2 break b    > b not run; c not run; SIGTERM a
            @11 tick      >
            @12 tick      > SIGKILL a
            exit a -9     > a interrupted
        """, slow=True, grace=10.0)
        self.assertIn("no log", play.schedule.failure)
        self.assertEqual((play.results["b"].reason, play.results["b"].status), ("no log", None))

    def test_the_first_reason_counts(self) -> None:
        play = Play("a b", slow=True)
        play.step("begin")
        for label in "ab":
            play.schedule.step(Broken(1.0, play.tests[label], f"{label} broke"))
        self.assertIn("a broke", play.schedule.failure)
        self.assertNotIn("b broke", play.schedule.failure)
        self.assertTrue(play.schedule.done)

    def test_a_schedule_without_tests_is_done(self) -> None:
        self.play("", "begin >")


class WordsTest(unittest.TestCase):
    def test_death_and_outcome_of_a_status(self) -> None:
        passed, failed, crashed = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED
        cases = [(0, "", passed), (1, "", failed), (2, "", failed), (5, "", failed), (124, "", failed),
                 (126, "", failed), (127, "", failed), (128, "", failed), (255, "", failed), (200, "", failed),
                 (-11, "SIGSEGV", crashed), (-9, "SIGKILL", crashed), (-6, "SIGABRT", crashed),
                 (-15, "SIGTERM", crashed), (-2, "SIGINT", crashed), (139, "SIGSEGV", crashed),
                 (137, "SIGKILL", crashed), (134, "SIGABRT", crashed), (143, "SIGTERM", crashed),
                 (130, "SIGINT", crashed), (129, "SIGHUP", crashed), (-200, "signal 200", crashed)]
        for status, death, outcome in cases:
            with self.subTest(status=status):
                self.assertEqual((death_of(status), outcome_of(status)), (death, outcome))
        self.assertEqual(death_of(None), "")

    def test_predicates_of_an_outcome(self) -> None:
        ok = {Outcome.PASSED, Outcome.FLAKY, Outcome.DEFERRED}
        unfinished = {Outcome.INTERRUPTED, Outcome.NOT_RUN}
        failure = {Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.BLOCKED, Outcome.UNRUNNABLE}
        self.assertEqual(ok | unfinished | failure, set(Outcome))
        for outcome in Outcome:
            with self.subTest(outcome=outcome):
                told = (outcome.is_ok(), outcome.is_unfinished(), outcome.is_failure())
                self.assertEqual(told, (outcome in ok, outcome in unfinished, outcome in failure))

    def test_words_of_an_outcome(self) -> None:
        self.assertEqual([outcome.value for outcome in Outcome],
                         ["passed", "flaky", "failed", "crashed", "timeout", "blocked", "unrunnable", "deferred",
                          "interrupted", "not run"])

    def test_verdict(self) -> None:
        cases = [(Outcome.PASSED, 0, "passed"), (Outcome.FAILED, 1, "failed, exit 1"),
                 (Outcome.CRASHED, -11, "crashed (SIGSEGV)"), (Outcome.CRASHED, 137, "crashed (SIGKILL)"),
                 (Outcome.TIMEOUT, -9, "timeout"), (Outcome.INTERRUPTED, -2, "interrupted"),
                 (Outcome.UNRUNNABLE, None, "unrunnable"), (Outcome.NOT_RUN, None, "not run")]
        for outcome, status, expected in cases:
            with self.subTest(expected):
                self.assertEqual(run_tests.Result(a_test(), outcome, status=status).verdict(), expected)

    def test_place_and_tokens_of_a_lease(self) -> None:
        cases = [([], "CPU", []), ([""], "CPU", []), (["0"], "GPU 0", ["0"]), (["4", "7"], "GPU 4,7", ["4", "7"]),
                 (["MIG-a/1"], "GPU MIG-a/1", ["MIG-a/1"])]
        for tokens, place, shown in cases:
            with self.subTest(tokens=tokens):
                devices = tuple(run_tests.Device(index, token) for index, token in enumerate(tokens))
                lease = run_tests.Lease(devices, 0)
                self.assertEqual((lease.place(), lease.tokens), (place, shown))


class SimulateTest(unittest.TestCase):
    """A schedule on a virtual clock."""

    def simulate(self, text: str, gpus: int = 2, actual: Mapping[str, float] = {},  # noqa: B006
                 jobs: int = 2, sequential: bool = False) -> str:
        """When which test ends, in words; `actual` are seconds by label, where they are not the expected ones."""
        tests = tests_of(text)
        expected = seconds_of(tests)
        took = {test: actual.get(test.label, expected[test]) for test in tests} if actual else None
        pool = run_tests.Pool(devices_of(gpus), jobs, sequential)
        ended = run_tests.simulate(tests, expected, pool, run_tests.Options(()), took)
        return " ".join(f"{test.label}@{at:g}" for at, test in ended)

    def test_tests_end_as_computed_by_hand(self) -> None:
        self.assertEqual(self.simulate("a~5 b~3 c~4 d:2~2"), "b@3 a@5 c@7 d@9")
        self.assertEqual(self.simulate("a~10 b~4 w:2~3 n~6 m~7"), "b@4 a@10 n@10 w@13 m@20")
        self.assertEqual(self.simulate("a:.5~2 b:.5~3 c:.5~2 w:all~1 x:0~4", gpus=1), "a@2 b@3 c@4 x@4 w@5")

    def test_barriers_after_and_locks_hold(self) -> None:
        self.assertEqual(self.simulate("a~5 b~1 | c~1 d~2"), "b@1 a@5 c@6 d@7")
        self.assertEqual(self.simulate("a~5 b~1+after=a c~2"), "c@2 a@5 b@6")
        self.assertEqual(self.simulate("a~5+lock=x b~1+lock=x c~2"), "c@2 a@5 b@6")

    def test_one_after_another_where_sequential(self) -> None:
        self.assertEqual(self.simulate("a~5 b~1 x:0~1", gpus=1, sequential=True), "a@5 b@6 x@7")

    def test_cpu_tests_run_on_their_slots(self) -> None:
        self.assertEqual(self.simulate("x:0~5 y:0~2 z:0~1 a~9"), "y@2 z@3 x@5 a@9")

    def test_a_test_takes_what_it_takes_whatever_is_expected(self) -> None:
        self.assertEqual(self.simulate("a~10 b~4 w:2~3 n~6 m~7", actual={"n": 20}), "b@4 a@10 n@24 w@27 m@34")
        self.assertEqual(self.simulate("a~10 b~4 w:2~3 n~6 m~7", actual={"a": 1, "n": 1}), "a@1 b@4 w@7 n@8 m@14")

    def test_what_cannot_run_does_not_end(self) -> None:
        self.assertEqual(self.simulate("a~5 w:3~1 b~1+after=w c~1"), "c@1 a@5")

    def test_without_tests_nothing_ends(self) -> None:
        self.assertEqual(self.simulate(""), "")

    def makespan(self, tests: List[Test], gpus: int, actual: Optional[Mapping[Test, float]] = None) -> float:
        """How long a run in default order takes."""
        options = run_tests.Options(())
        selection = run_tests.select(tests, options, run_tests.History())
        pool = run_tests.Pool(devices_of(gpus), 2)
        ordered, expected = selection.to_run("auto", pool), selection.estimates.seconds
        return run_tests.simulate(ordered, expected, pool, options, actual)[-1][0]

    def assert_near_bound(self, tests: List[Test], gpus: int) -> None:
        """Not 2 % more than what no schedule can beat: the work of all GPUs, or the longest test."""
        seconds = seconds_of(tests)
        work = sum(seconds[test] * test.gpus for test in tests) / gpus
        self.assertLessEqual(self.makespan(tests, gpus), 1.02 * max(work, *seconds.values()))

    def random_tests(self, chance: random.Random, count: int, needs: List[float]) -> List[Test]:
        """Tests as suites have them: most of them short, a few of them long."""
        attributes = [run_tests.Attributes(time=chance.lognormvariate(3.0, 1.2)) for _ in range(count)]
        return [a_test(index, gpus=chance.choice(needs), attributes=values) for index, values in enumerate(attributes)]

    def test_default_order_comes_within_two_percent_of_the_bound(self) -> None:
        for seed, gpus, needs in itertools.product(range(5), (1, 2, 4, 8), ([1.0], [1.0, 1.0, 2.0, 4.0])):
            tests = self.random_tests(random.Random(seed), 400, [need for need in needs if need <= gpus])
            with self.subTest(seed=seed, gpus=gpus, needs=needs):
                self.assert_near_bound(tests, gpus)

    @unittest.skipUnless(os.path.isdir(DURATIONS), "the bench's durations are not here")
    def test_real_suites_come_within_two_percent_of_the_bound(self) -> None:
        for name, gpus in itertools.product(sorted(os.listdir(DURATIONS)), (1, 2, 4, 8, 16)):
            with open(os.path.join(DURATIONS, name), encoding="utf-8") as file:
                rows = [line.split("\t") for line in file if not line.startswith("#")]
            tests = [a_test(index, gpus=float(need), attributes=run_tests.Attributes(time=float(seconds)))
                     for index, (_, seconds, need) in enumerate(rows)]
            with self.subTest(name, gpus=gpus):
                self.assert_near_bound([test for test in tests if test.gpus <= gpus], gpus)

    def test_no_estimate_is_so_wrong_that_gpus_idle(self) -> None:
        """Graham's bound for list scheduling: all GPUs are busy until the last test starts."""
        for seed in range(40):
            chance = random.Random(seed)
            tests, gpus = self.random_tests(chance, 30, [1.0]), chance.randint(1, 8)
            actual = {test: chance.uniform(0.0, 100.0) for test in tests}
            with self.subTest(seed=seed):
                bound = sum(actual.values()) / gpus + max(actual.values())
                self.assertLessEqual(self.makespan(tests, gpus, actual), bound)


OUTCOME_BY_STATUS = {0: Outcome.PASSED, 1: Outcome.FAILED, -11: Outcome.CRASHED, 137: Outcome.CRASHED}


class Room:
    """What is free of a machine while some tests run: the rules again, as simply as they can be said."""

    def __init__(self, gpus: int, jobs: int, sequential: bool) -> None:
        self.devices = [SHARES] * max(gpus, 1)
        self.jobs, self.sequential = jobs, sequential
        self.running: List[Test] = []

    def copy(self) -> "Room":
        room = Room(0, self.jobs, self.sequential)
        room.devices, room.running = list(self.devices), list(self.running)
        return room

    def move(self, test: Test, lease: Lease, sign: int) -> None:
        """Take out (-1) or put back (1) what a test holds."""
        for device in lease.devices:
            self.devices[device.index] += sign * self.shares(test)
        self.jobs += sign * (test.gpus == 0)
        if sign < 0:
            self.running.append(test)
        else:
            self.running.remove(test)

    def shares(self, test: Test) -> int:
        """How much of each of its devices a test takes."""
        return round(test.gpus * SHARES) if 0 < test.gpus < 1 else SHARES

    def is_alone(self, test: Test) -> bool:
        return self.sequential or test.gpus == ALL_GPUS

    def free(self, test: Test, avoid: Collection[int] = ()) -> List[int]:
        """The devices with as much room as a test takes of each."""
        return [index for index, room in enumerate(self.devices) if room >= self.shares(test) and index not in avoid]

    def count(self, test: Test) -> int:
        return len(self.devices) if test.gpus == ALL_GPUS else math.ceil(test.gpus)

    def fits(self, test: Test, avoid: Collection[int] = ()) -> bool:
        if self.running and (self.is_alone(test) or any(map(self.is_alone, self.running))):
            return False
        return (test.gpus > 0 or self.jobs > 0) and len(self.free(test, avoid)) >= self.count(test)


class Promise:
    """When the first test that waits can start at the latest, and on which devices, if all ends as expected."""

    def __init__(self, test: Test, room: Room, ends: List[Tuple[float, Test, Lease]], at: float) -> None:
        """`ends` are the expected ends of what runs and what it holds; none is before `at`."""
        self.test, self.at = test, at
        room, ready = room.copy(), dict.fromkeys(room.free(test), at)
        ends = sorted(ends, key=lambda end: end[0])
        for end, other, lease in ends:
            if room.fits(test) and end > self.at:
                break
            room.move(other, lease, 1)
            self.at = end
            ready.update({index: end for index in room.free(test) if index not in ready})
        self.is_kept = room.fits(test)
        by_time = sorted(ready, key=lambda index: (ready[index], index))
        is_clear = [end for end, _, _ in ends].count(self.at) == 1 and (not ends or ends[0][0] > at)
        self.devices = by_time[-room.count(test):] if is_clear else by_time   # else which of several is open

    def explains(self, test: Test, room: Room, seconds: float, at: float) -> bool:
        """Whether a test that fits may have to wait for this."""
        if seconds and at + seconds <= self.at:
            return False
        takes_its_locks = not set(test.attributes.lock).isdisjoint(self.test.attributes.lock)
        return self.test.gpus == ALL_GPUS or takes_its_locks or not room.fits(test, self.devices)


class Simulation:
    """Random tests on a random machine, on a virtual clock, with a check of every rule after every event."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gpus, self.jobs = self.random.randrange(7), self.random.randint(1, 3)
        self.sequential = self.gpus <= 1 and self.random.random() < 0.7
        self.grace = self.random.choice([0.0, 2.0, 5.0])
        self.is_exact = self.random.random() < 0.4           # each test takes the seconds that are expected
        self.tests = self.random_tests(self.random.randint(1, 16))
        self.order = self.random.sample(self.tests, len(self.tests))
        self.rank = {test: rank for rank, test in enumerate(self.order)}
        self.by_label = {test.label: test for test in self.tests}
        self.seconds = {test: self.random.choice([0.0, self.random.uniform(0.1, 3.0), self.random.uniform(1.0, 30.0)])
                        for test in self.tests}
        self.schedule = self.a_schedule()
        self.now, self.serial = 0.0, 0
        self.agenda: List[Tuple[float, int, Any]] = []       # a heap of what will happen by itself
        self.leases: Dict[Test, Lease] = {}                  # of tests between Launch and Conclude, as launched
        self.expected: Dict[Test, float] = {}                # when they end, it is thought
        self.started: Dict[Test, float] = {}
        self.ends: Dict[Test, Tuple[float, Exited]] = {}     # when and how a process ends as things stand
        self.causes: Dict[Test, Outcome] = {}                # why a test is being ended
        self.promises: Dict[Test, float] = {}
        self.launched: List[Test] = []
        self.attempts: Dict[Test, int] = {}                  # that have ended without a pass
        self.last_outcome: Dict[Test, Outcome] = {}          # of those
        self.outcomes: Dict[Test, Outcome] = {}
        self.stopped = False
        if self.random.random() < 0.2:
            for _ in range(self.random.randint(1, 3)):
                signum = self.random.choice([signal.SIGINT, signal.SIGTERM])
                self.later(self.random.uniform(0, 30), Interrupt(0, signum))

    def a_schedule(self) -> run_tests.Schedule:
        options = run_tests.Options((), grace=self.grace, fail_fast=self.random.random() < 0.1,
                                    retries=self.random.choice([0, 0, 1, 2]))
        pool = run_tests.Pool(devices_of(self.gpus), self.jobs, self.sequential)
        return run_tests.Schedule(self.order, self.seconds, pool, options)

    def random_tests(self, count: int) -> List[Test]:
        """Tests with barriers that come seldom or never, and with `after` of any that come before in some order."""
        chance, barrier = self.random, 0
        step, needs = chance.choice([0.0, 0.0, 0.2]), chance.choice([
            [0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0, ALL_GPUS], [0.25, 0.25, 0.5, 0.3, 0.7, 1.0, 2.0],
            [1.0, 1.0, 1.0, 2.0, 4.0, 5.0], [0.0, 0.1, 0.5, 0.9, 1.0, 2.0, 4.0, ALL_GPUS]])
        barriers: List[int] = []
        for _ in range(count):
            barrier += chance.choice([1, 2]) if chance.random() < step else 0
            barriers.append(barrier)
        some_order = sorted(range(count), key=lambda index: (barriers[index], chance.random()))
        names, tests = [[] for _ in range(count)], []
        for position, index in enumerate(some_order):
            if position and chance.random() < 0.25:
                names[index] = [f"t{some_order[chance.randrange(position)]}" for _ in range(chance.randint(1, 2))]
        for index in range(count):
            lock = chance.choice([(), (), (), (), ("x",), ("y",), ("x", "y"), ("y", "x")])
            tests.append(a_test(index, barrier=barriers[index], gpus=chance.choice(needs),
                                timeout=None if self.is_exact else chance.choice([None, None, 1.0, 4.0, 20.0]),
                                attributes=run_tests.Attributes(lock=lock, after=tuple(names[index]))))
        return tests

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise AssertionError(f"at {self.now}: {what}")

    def later(self, seconds: float, event: Any) -> None:
        self.serial += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.serial, event))

    def run(self) -> None:
        """From Begin to `done`."""
        self.feed(Begin(self.now))
        while not self.schedule.done:
            self.require(self.serial < 3000, "no end in sight")
            self.serial += 1
            coming, due = self.agenda[0][0] if self.agenda else math.inf, self.schedule.deadline()
            self.require(min(coming, due) < math.inf, "deadlock: nothing will ever happen again")
            self.now = max(self.now, min(coming, due))
            if due <= coming:
                self.feed(Tick(self.now))
                passed = self.schedule.deadline() <= self.now and self.grace > 0
                self.require(not passed, "a Tick leaves a deadline that has passed")
            else:
                self.happen(heapq.heappop(self.agenda)[2])
        self.require(set(self.outcomes) == set(self.tests), "a test has no outcome")
        self.require(not self.leases, "a test ends without its lease")
        self.check_end()

    def check_end(self) -> None:
        """All that was lent is back, and nothing more is to happen."""
        self.require(self.schedule.deadline() == math.inf, "there is a deadline after the end")
        rest = self.schedule.pool.take(ALL_GPUS)
        self.require(rest is not None and len(rest.devices) == max(self.gpus, 1), "a lease is not given back")

    def happen(self, event: Any) -> None:
        """Feed what the agenda held, unless it has been overtaken."""
        if isinstance(event, Exited) and self.ends.get(event.test, (0, None))[1] is not event:
            return
        self.feed(event._replace(at=self.now))

    def feed(self, event: Any) -> None:
        if isinstance(event, Started):
            self.started[event.test] = self.now
            status = self.random.choice([0, 0, 0, 0, 0, 1, -11, 137])
            seconds = self.seconds[event.test] if self.is_exact else self.random.choice([0.0, 1.0, 3.0, 8.0, 25.0])
            self.end_in(event.test, seconds, status)
        if isinstance(event, (Interrupt, Broken)):
            self.stopped = True
            for test in self.leases:
                self.causes.setdefault(test, Outcome.INTERRUPTED)
        launched = []
        for action in self.schedule.step(event):
            if isinstance(action, Launch):
                self.on_launch(action)
                launched.append(action.test)
            elif isinstance(action, Retry):
                self.on_retry(action, event)
            elif isinstance(action, Kill):
                self.on_kill(action, event)
            else:
                self.on_conclude(action, event)
        if self.stopped:
            self.require(not self.waiting(), f"{self.waiting()} wait for nothing")
        elif not isinstance(event, Started):
            self.check_starts(launched)

    def end_in(self, test: Test, seconds: float, status: int) -> None:
        """A process will end then, if it does not end before."""
        if test not in self.ends or self.now + seconds < self.ends[test][0]:
            event = Exited(0, test, status, "")
            self.ends[test] = self.now + seconds, event
            self.later(seconds, event)

    def on_launch(self, action: Launch) -> None:
        test, lease = action.test, action.lease
        self.require(test not in self.launched and test not in self.outcomes, f"{test.label} starts twice")
        self.require(not self.stopped, f"{test.label} starts after the run was stopped")
        self.require(self.may_start(test), f"{test.label} passes a barrier or an `after`")
        self.require(self.locks().isdisjoint(test.attributes.lock), f"{test.label} gets a lock that is held")
        room = self.room(self.leases)
        self.require(room.fits(test), f"{test.label} starts where it does not fit")
        indices = [device.index for device in lease.devices]
        self.require(set(indices) <= set(room.free(test)), f"{test.label} gets a device that is held")
        self.require(len(set(indices)) == len(indices) == room.count(test), f"{test.label} gets {indices}")
        used = {other.slot for other in self.leases.values()}
        self.require(lease.slot == min(set(range(len(used) + 1)) - used), f"slot {lease.slot} beside {used}")
        self.leases[test] = lease
        self.require(action.attempt == self.attempts.get(test, 0) + 1, f"{test.label}: attempt {action.attempt}")
        self.expected[test] = self.now + self.seconds[test]
        self.launched.append(test)
        begins = Broken(0, test, "broken") if self.random.random() < 0.01 else Started(0, test, None)
        self.later(0.0 if self.is_exact else self.random.choice([0.0, 0.1, 1.0]), begins)

    def on_kill(self, action: Kill, event: Any) -> None:
        test = action.test
        self.require(test in self.started and test in self.leases, f"{test.label} is signalled while it is not there")
        if isinstance(event, Tick) and test not in self.causes:
            self.require(test.timeout is not None and self.now >= self.started[test] + test.timeout, "killed too soon")
            self.causes[test] = Outcome.TIMEOUT
        self.require(test in self.causes, f"{test.label} is killed for no reason")
        if action.signum == signal.SIGKILL:
            self.end_in(test, 0.0, -9)
        elif self.random.random() < 0.7:     # the others do not listen
            self.end_in(test, self.random.choice([0.0, 1.0, 4.0]), self.random.choice([0, 1, -15]))

    def on_conclude(self, action: Conclude, event: Any) -> None:
        result = action.result
        test = result.test
        self.require(test not in self.outcomes, f"{test.label} has two outcomes")
        if isinstance(event, Exited) and event.test is test:
            expected = self.outcome_of_run(result, event)
            left = expected.can_be_retried() and self.attempts.get(test, 0) < self.schedule.options.retries
            self.require(self.stopped or not left, f"{test.label} is not retried")
        elif isinstance(event, Broken) and event.test is test:
            self.leases.pop(test)
            expected = Outcome.NOT_RUN
        else:
            self.require(test not in self.launched, f"{test.label} is concluded while it runs")
            expected = self.outcome_without_run(test, event)
        self.outcomes[test] = result.outcome
        self.require(result.outcome is expected, f"{test.label} is {result.outcome}, not {expected}")
        self.stopped = self.stopped or (self.schedule.options.fail_fast and result.outcome.is_failure())
        self.require(self.stopped or expected is not Outcome.NOT_RUN, f"{test.label} does not run")

    def outcome_of_run(self, result: run_tests.Result, event: Exited) -> Outcome:
        """What an attempt is that has ended."""
        test, attempts = event.test, self.attempts.get(event.test, 0)
        self.require((result.status, result.attempt) == (event.status, attempts + 1), "the status is another")
        self.require(result.seconds == self.now - self.started[test], "the duration is another")
        self.require(result.lease is self.leases.pop(test), "the lease is another")
        in_time = test.timeout is None or self.now <= self.started[test] + test.timeout
        self.require(in_time or test in self.causes, f"{test.label} outlived its timeout")
        outcome = self.causes.get(test) or OUTCOME_BY_STATUS[event.status]
        return Outcome.FLAKY if outcome is Outcome.PASSED and attempts else outcome

    def on_retry(self, action: Retry, event: Any) -> None:
        """The test waits again, as if it had not run."""
        test = action.result.test
        self.require(isinstance(event, Exited) and event.test is test and not self.stopped, f"{test.label} is retried")
        outcome = self.outcome_of_run(action.result, event)
        self.require(action.result.outcome is outcome and outcome.can_be_retried(), f"{outcome} is retried")
        self.attempts[test] = self.attempts.get(test, 0) + 1
        self.last_outcome[test] = outcome
        self.require(self.attempts[test] <= self.schedule.options.retries, f"{test.label} is retried too often")
        self.launched.remove(test)
        self.promises.clear()            # nobody could know that it would need its devices again
        for known in (self.started, self.ends, self.causes):
            known.pop(test, None)

    def outcome_without_run(self, test: Test, event: Any) -> Outcome:
        """What a test is that never started."""
        if max(self.gpus, 1) < test.gpus < ALL_GPUS and isinstance(event, Begin):
            return Outcome.UNRUNNABLE
        if any(other in self.outcomes and self.outcomes[other].is_failure() for other in self.awaited(test)):
            return Outcome.BLOCKED
        return self.last_outcome.get(test, Outcome.NOT_RUN)      # of what waits for its retry when the run stops

    def awaited(self, test: Test) -> List[Test]:
        return [self.by_label[label] for label in test.attributes.after]

    def waiting(self) -> List[Test]:
        """In starting order."""
        return [test for test in self.order if test not in self.launched and test not in self.outcomes]

    def may_start(self, test: Test) -> bool:
        """Barriers and `after` let it."""
        return (all(other.barrier >= test.barrier or other in self.outcomes for other in self.tests)
                and all(other in self.outcomes and self.outcomes[other].is_ok() for other in self.awaited(test)))

    def locks(self, *but: Test) -> Set[str]:
        """Those that are held, but for some tests'."""
        return {name for test in self.leases if test not in but for name in test.attributes.lock}

    def room(self, leases: Mapping[Test, Lease]) -> Room:
        room = Room(self.gpus, self.jobs, self.sequential)
        for test, lease in leases.items():
            room.move(test, lease, -1)
        return room

    def promise(self, test: Test, *but: Test) -> Promise:
        """What a test can be promised as things stand, had these others not started."""
        leases = {other: lease for other, lease in self.leases.items() if other not in but}
        ends = [(max(self.expected[other], self.now), other, lease) for other, lease in leases.items()]
        return Promise(test, self.room(leases), ends, self.now)

    def check_starts(self, launched: List[Test]) -> None:
        """No room is idle that the first waiting test does not need, and nothing has started that delays that one."""
        room = self.room(self.leases)
        ready = [test for test in self.waiting() if self.may_start(test)]
        first: Optional[Promise] = None
        heads: Dict[Tuple[float, Tuple[str, ...], int], Test] = {}
        for test in ready:
            behind = [other for other in launched if self.rank[other] > self.rank[test]]
            if first is None and test.gpus > 0 and self.locks(*behind).isdisjoint(test.attributes.lock):
                first = self.promise(test, *behind)
                self.check_first(first, behind)
            if self.locks().isdisjoint(test.attributes.lock) and room.fits(test):
                heads.setdefault(self.line(test), test)
                if heads[self.line(test)] is test:
                    explained = first is not None and first.explains(test, room, self.seconds[test], self.now)
                    self.require(explained, f"{test.label} could start")
        for test in launched:
            self.require(self.is_together(test) or first is not None, f"{test.label} is torn apart")
            if test in self.promises:
                self.require(self.now <= self.promises[test], f"{test.label} was promised {self.promises[test]}")

    def line(self, test: Test) -> Tuple[float, Tuple[str, ...], int]:
        """What tests have in common that pass each other only in starting order: needs, and about as long a time."""
        return test.gpus, test.attributes.lock, math.frexp(self.seconds[test])[1]

    def check_first(self, first: Promise, behind: List[Test]) -> None:
        test = first.test
        self.require(first.is_kept and first.at >= self.now, f"{test.label} waits for nothing")
        after = self.promise(test)
        self.require(after.at <= first.at, f"{behind} delay {test.label} from {first.at} to {after.at}")
        self.require(not self.room({other: lease for other, lease in self.leases.items() if other not in behind}
                                   ).fits(test), f"{test.label} could have started, being the first")
        if self.is_exact and test is self.waiting()[0] and not test.attributes.lock:
            self.require(first.at <= self.promises.setdefault(test, first.at), f"the promise to {test.label} is broken")

    def is_together(self, test: Test) -> bool:
        """Whether a test has neighbouring devices, if there were any before it and those after it started."""
        if not 1 < test.gpus < ALL_GPUS or test not in self.leases:
            return True
        indices = [device.index for device in self.leases[test].devices]
        if indices == list(range(indices[0], indices[0] + len(indices))):
            return True
        later = self.launched[self.launched.index(test):]
        free = self.room({other: lease for other, lease in self.leases.items() if other not in later}).free(test)
        starts = (set(range(index, index + len(indices))) for index in free)
        return not any(start <= set(free) for start in starts)


class FaultSimulation(Simulation):
    """The same with GPUs that break, machines that fail, deadlines, and tests that cannot be killed or leave things."""

    def a_schedule(self) -> run_tests.Schedule:
        schedule = super().a_schedule()
        chance = self.random.choice
        schedule.options = run_tests.Options(
            (), grace=self.grace, retries=chance([0, 0, 1, 3]), fail_fast=self.random.random() < 0.1,
            deadline=chance([None, None, None, 0.5, 40.0, 100.0]), slow=chance([None, None, 2.0]),
            leaks=chance(["report", "fail"]))
        self.causes_here = chance([[Cause()], [Cause("assert"), *CAUSES.values()], [CAUSES["old"]],
                                   [CAUSES["ecc"], Cause()], [CAUSES["launch"], CAUSES["launch"], Cause()]])
        self.lost: Set[int] = set()              # indices
        self.killed: Dict[Test, float] = {}      # when SIGKILL was sent
        self.seen: Set[str] = set()              # what has happened
        return schedule

    def check_end(self) -> None:
        self.require(self.schedule.pool.size == max(self.gpus, 1) - len(self.lost), "the pool has another size")
        rest = self.schedule.pool.take(ALL_GPUS)
        self.require(rest is not None and len(rest.devices) == self.schedule.pool.size, "a lease is not given back")
        self.seen.update(["failure"] * bool(self.schedule.failure), ["overdue"] * self.schedule.is_overdue)

    def happen(self, event: Any) -> None:
        if not isinstance(event, Exited) or self.ends.get(event.test, (0, None))[1] is event:
            self.feed(event._replace(at=self.now))

    def feed(self, event: Any) -> None:
        if isinstance(event, Started):
            self.started[event.test] = self.now
            self.end_in(event.test, self.random.choice([0.0, 1.0, 3.0, 8.0, 25.0]), self.random.choice([0, 0, 1, -11]))
        for action in self.schedule.step(event):
            self.seen.add(type(action).__name__)
            if isinstance(action, Launch):
                self.on_launch(action)
            elif isinstance(action, Quarantine):
                self.require(action.sick.device.index not in self.lost, "a GPU is lost twice")
                self.require(bool(action.sick.device.token), "what is no GPU is lost")
                self.lost.add(action.sick.device.index)
            elif isinstance(action, Kill):
                self.on_kill(action, event)
            elif isinstance(action, Abandon):
                soon = self.killed[action.test] + STUCK_S - 1.0      # the order may have come before the process did
                self.require(self.now >= soon, f"{action.test.label} is abandoned too soon")
            elif isinstance(action, Announce):
                self.require(action.test in self.started, "what does not run is announced")
            elif isinstance(action, Retry):
                self.on_retry(action, event)
            else:
                self.on_conclude(action, event)
        self.require(set(self.leases) == set(self.schedule.running), "another test runs than was launched")

    def end_in(self, test: Test, seconds: float, status: int) -> None:
        """A process will end then, whatever it leaves and shows."""
        if test in self.ends and self.now + seconds >= self.ends[test][0]:
            return
        chance, devices = self.random.random, self.leases[test].devices
        sick = tuple(Sick(device, "no answer") for device in devices if device.token and chance() < 0.04)
        event = Exited(0, test, status, "", int(chance() < 0.1), self.random.choice(self.causes_here),
                       ("sleep (pid 7)",) if chance() < 0.1 else (), sick)
        self.ends[test] = self.now + seconds, event
        self.later(seconds, event)

    def on_launch(self, action: Launch) -> None:
        test, lease = action.test, action.lease
        self.require(test not in self.leases and test not in self.outcomes, f"{test.label} starts twice")
        self.require(self.locks().isdisjoint(test.attributes.lock), f"{test.label} gets a lock that is held")
        self.require(self.may_start(test), f"{test.label} passes a barrier or an `after`")
        indices = {device.index for device in lease.devices}
        self.require(indices.isdisjoint(self.lost), f"{test.label} gets a GPU in quarantine")
        self.require(indices <= set(self.room(self.leases).free(test)), f"{test.label} gets a GPU that is held")
        need = max(self.gpus, 1) - len(self.lost) if test.gpus == ALL_GPUS else math.ceil(test.gpus)
        self.require(len(indices) == need, f"{test.label} gets {len(indices)} GPUs")
        self.leases[test] = lease
        for known in (self.started, self.ends, self.killed):
            known.pop(test, None)
        begins = Broken(0, test, "broken") if self.random.random() < 0.01 else Started(0, test, None)
        self.later(self.random.choice([0.0, 0.1, 1.0]), begins)

    def on_kill(self, action: Kill, event: Any) -> None:
        test = action.test
        self.require(test in self.started and test in self.leases, f"{test.label} is signalled while it is not there")
        self.require(not action.stacks or isinstance(event, Tick), "stacks are asked for")
        if action.signum == signal.SIGKILL:
            self.killed[test] = self.now
        if self.random.random() < (0.6 if action.signum == signal.SIGKILL else 0.3):
            self.end_in(test, self.random.choice([0.0, 1.0]), -action.signum)
        elif action.signum == signal.SIGKILL:    # it hangs in the kernel, for ever or for long
            self.ends.pop(test, None)
            if self.random.random() < 0.5:
                self.end_in(test, STUCK_S * 2, -9)

    def on_retry(self, action: Retry, event: Any) -> None:
        test = action.result.test
        self.require(isinstance(event, Exited) and event.test is test, f"{test.label} is retried")
        self.require(action.result.outcome.can_be_retried(), f"{action.result.outcome} is retried")
        self.require(action.result.attempt <= self.schedule.options.retries + 1, f"{test.label} is retried too often")
        del self.leases[test]

    def on_conclude(self, action: Conclude, event: Any) -> None:
        result = action.result
        self.require(result.test not in self.outcomes, f"{result.test.label} has two outcomes")
        self.outcomes[result.test] = result.outcome
        if result.lease is not None and self.leases.get(result.test) is result.lease:
            del self.leases[result.test]
        self.require(result.test not in self.leases, f"{result.test.label} is concluded while it runs")
        fails = bool(event.leaked) and self.schedule.options.leaks == "fail" if isinstance(event, Exited) else False
        self.require(not fails or event.test is not result.test or not result.outcome.is_ok(), "a leak passes")


class PropertyTest(unittest.TestCase):
    def simulations(self, kind: Any, seeds: Iterable[int]) -> Iterator[Any]:
        """Simulations that have come to their ends."""
        for seed in seeds:
            simulation = kind(seed)
            try:
                simulation.run()
            except AssertionError as error:
                told = [(test.label, test.gpus, test.barrier, test.attributes.lock, test.attributes.after,
                         simulation.seconds[test]) for test in simulation.order]
                self.fail(f"seed {seed}, {simulation.gpus} GPUs, {simulation.jobs} jobs, tests {told}: {error}")
            yield simulation

    def test_the_rules_hold_for_random_schedules(self) -> None:
        seen: Set[Outcome] = set()
        for simulation in self.simulations(Simulation, range(600)):
            seen.update(simulation.outcomes.values())
        self.assertEqual(seen, set(Outcome) - {Outcome.DEFERRED})

    def test_no_fault_hangs_a_random_schedule_or_breaks_its_rules(self) -> None:
        outcomes, seen = set(), set()
        for simulation in self.simulations(FaultSimulation, range(1500)):
            outcomes.update(simulation.outcomes.values())
            seen |= simulation.seen
        self.assertEqual(outcomes, set(Outcome) - {Outcome.DEFERRED})
        self.assertEqual(seen, {"Launch", "Retry", "Kill", "Abandon", "Announce", "Quarantine", "Conclude", "failure",
                                "overdue"})


if __name__ == "__main__":
    unittest.main()
