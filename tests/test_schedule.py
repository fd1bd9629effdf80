"""Sections 2 and 6, without a process or a clock: events go in, actions are looked at."""
from __future__ import annotations

import heapq
import math
import random
import signal
import unittest
from operator import attrgetter
from typing import Any, Dict, List, Optional, Set, Tuple

import run_tests
from run_tests import (ALL_GPUS, SHARES, STACKS_S, STUCK_S, Attempt, Begin, Blame, Broken, Cause,
                       Conclude, Exited, Interrupt, Kill, Launch, Lease, Outcome, Quarantine, Result, Retry, Sick,
                       Submit, Test, Tick, death_of, judge, outcome_of)
from tests.support import a_test, listed

SEEDS = 1000     # random schedules, a millisecond each
CAUSES = {"ecc": Cause("ECC", Blame.DEVICE), "bus": Cause("lost", Blame.DEVICE),
          "old": Cause("old driver", Blame.MACHINE), "none": Cause("no GPU", Blame.MACHINE)}


def devices_of(gpus: int) -> List[run_tests.Device]:
    return [run_tests.Device(index, str(index)) for index in range(gpus)]


class Play:
    """A schedule fed by words, whose actions are told in words.

    Events: `begin`, `submit a b` (of those in `later`; named are then all that wait, in starting order),
    `exit a [status [cause]]`, `break a`, `tick`, `SIGINT` and other signals; `@5` before one is its time; a
    cause is a word of CAUSES, any other word the test's own, `sick:0`, what nvidia-smi finds, or `ended:4`,
    when its shell has.
    Actions: `a on GPU 0,1`, `SIGTERM a`, `a passed`, `a failed, again`, `a failed (known)` where that is no news,
    `quarantine 0`, `a runs 60s`.
    `order` are labels in starting order; empty: list order.
    """

    def __init__(self, tests: str, *, gpus: int = 2, jobs: int = 2, sequential: bool = False, order: str = "",
                 later: str = "", **options: Any) -> None:
        self.tests = {test.label: test for test in listed(tests, has_timeouts=True)}
        ordered = [self.tests[label] for label in order.split() or self.tests if label not in later.split()]
        pool = run_tests.Pool(devices_of(gpus), jobs, sequential)
        self.schedule = run_tests.Schedule(ordered, pool, run_tests.Options((), **options))
        self.at = 0.0
        self.results: Dict[str, Result] = {}
        self.leases: Dict[str, Lease] = {}
        self.stacks: Dict[str, List[str]] = {}   # by label, why they were asked for
        self.quarantined: List[str] = []         # reasons

    def event(self, text: str) -> Any:
        words = text.split()
        if words[0].startswith("@"):
            self.at = float(words.pop(0)[1:])
        name, named = words[0], [self.tests[word] for word in words[1:] if word in self.tests]
        if name.startswith("SIG"):
            return Interrupt(signal.Signals[name])
        if name == "exit":
            return self.exited(named[0], *words[2:])
        if name == "submit":
            return Submit(named)
        if name in ("begin", "tick"):
            return {"begin": Begin, "tick": Tick}[name]()
        return Broken(named[0], "no log")

    def exited(self, test: Test, status: str = "0", word: str = "") -> Exited:
        kind, _, value = word.partition(":")
        if kind == "sick":
            return Exited(self.at, test, int(status), sick=(Sick(devices_of(9)[int(value)], "no answer"),))
        if kind == "ended":
            return Exited(float(value), test, int(status))
        return Exited(self.at, test, int(status), cause=CAUSES.get(word, Cause(word)))

    def step(self, text: str) -> List[str]:
        """Feed one event; returns what the schedule wants done."""
        return [self.words_of(action) for action in self.schedule.step(self.event(text), self.at)]

    def words_of(self, action: run_tests.Action) -> str:
        if isinstance(action, (Launch, Kill)):
            return self.of_attempt(action, action.attempt.test.label, action.attempt.lease)
        if isinstance(action, Quarantine):
            self.quarantined.append(action.sick.reason)
            return f"quarantine {action.sick.device.token}"
        told = f"{action.result.test.label} {action.result.outcome.value}"
        if isinstance(action, Retry):
            return f"{told}, again"
        self.results[action.result.test.label] = action.result
        return told + " (known)" * (not action.is_news)

    def of_attempt(self, action: run_tests.Action, label: str, lease: Lease) -> str:
        if isinstance(action, Kill):
            if action.stacks:
                self.stacks.setdefault(label, []).append(action.stacks)
            return f"{signal.Signals(action.signum).name} {label}"
        self.leases[label] = lease
        return f"{label} on {lease.place}"

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

    def plays(self, cases: Dict[str, Tuple[str, str]], **values: Any) -> None:
        """Several of these, by name: tests and script."""
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, **values)


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

    def test_whatever_fits_starts(self) -> None:
        """The wide one waits until there is room for it, and holds up nobody."""
        self.play("a b w:2 c d e:0 w2:2", """
            begin   > a on GPU 0; b on GPU 1; e on CPU
            exit b  > b passed; c on GPU 1
            exit a  > a passed; d on GPU 0
            exit d  > d passed
            exit c  > c passed; w on GPU 0,1
            exit w  > w passed; w2 on GPU 0,1
        """, done=False)

    def test_of_those_that_fit_the_first_in_starting_order_is_first(self) -> None:
        self.play("a:3 b c:2 d v:3", """
            begin   > a on GPU 0,1,2
            exit a  > a passed; c on GPU 0,1; b on GPU 2
            exit c  > c passed; d on GPU 0
        """, gpus=3, order="a c b v d", done=False)

    def test_neighbours_are_taken_where_there_are_some(self) -> None:
        self.play("a b c d e f:2 g:2", """
            begin   > a on GPU 0; b on GPU 1; c on GPU 2; d on GPU 3; e on GPU 4
            exit a  > a passed
            exit d  > d passed; f on GPU 0,3
            exit b  > b passed
            exit c  > c passed; g on GPU 1,2
        """, gpus=5, done=False)

    def test_without_a_gpu_one_test_at_a_time_still_runs(self) -> None:
        self.play("a b c:0 w:all", """
            begin   > a on CPU; c on CPU
            exit a  > a passed; b on CPU
            exit c  > c passed
            exit b  > b passed; w on CPU
            exit w  > w passed
        """, gpus=0)

    def test_fractions_share_a_device_as_long_as_it_lasts(self) -> None:
        self.play("a:.5 b:.25 c:.25 d:.25 e:.75 f:.5 g", """
            begin   > a on GPU 0; b on GPU 0; c on GPU 0; d on GPU 1; e on GPU 1
            exit b  > b passed
            exit c  > c passed; f on GPU 0
            exit d  > d passed
            exit e  > e passed; g on GPU 1
        """, done=False)

    def test_what_does_not_fit_beside_a_share_waits(self) -> None:
        self.play("a:.6 b:.6 w c:.4", """
            begin   > a on GPU 0; c on GPU 0
            exit c  > c passed
            exit a  > a passed; b on GPU 0
            exit b  > b passed; w on GPU 0
        """, gpus=1, done=False)

    def test_all_gpus_run_alone(self) -> None:
        self.plays({
            "after all others that can run": ("a w:all b c:0 d:0", """
                begin   > a on GPU 0; b on GPU 1; c on CPU; d on CPU
                exit a  > a passed
                exit b  > b passed
                exit c  > c passed
                exit d  > d passed; w on GPU 0,1
            """),
            "first": ("w:all a c:0", "begin > w on GPU 0,1\ntick >\nexit w > w passed; a on GPU 0; c on CPU"),
            "two of them": ("v:all w:all", "begin > v on GPU 0,1\nexit v > v passed; w on GPU 0,1"),
            "not beside a test on all GPUs": ("a:2 w:all", "begin > a on GPU 0,1\nexit a > a passed; w on GPU 0,1"),
            "beside no fraction": ("a:.5 w:all", "begin > a on GPU 0\nexit a > a passed; w on GPU 0,1"),
        }, done=False)


class CpuLineTest(ScheduleCase):
    def test_cpu_tests_run_beside_the_gpu_tests_on_their_slots(self) -> None:
        play = self.play("a b c x:0 y:0 z:0", """
            begin   > a on GPU 0; b on GPU 1; x on CPU; y on CPU
            exit x  > x passed; z on CPU
            exit a  > a passed; c on GPU 0
        """, done=False)
        self.assertEqual([play.leases[label].devices for label in "xyz"], [(), (), ()])

    def test_one_that_waits_for_a_slot_holds_up_no_gpu_test(self) -> None:
        self.play("x:0 y:0 a:2 b", "begin > x on CPU; a on GPU 0,1\nexit x > x passed; y on CPU", jobs=1, done=False)


class BarrierTest(ScheduleCase):
    def test_all_above_ends_before_anything_below_starts(self) -> None:
        self.play("a x:0 | b y:0 | c", """
            begin     > a on GPU 0; x on CPU
            exit x    > x passed
            exit a 1  > a failed; b on GPU 0; y on CPU
            exit b    > b passed
            exit y    > y passed; c on GPU 0
            exit c    > c passed
        """)

    def test_starting_order_does_not_pass_it(self) -> None:
        self.play("a b x:0 | c d w:all", """
            begin   > b on GPU 0; a on GPU 1; x on CPU
            exit a  > a passed
            exit b  > b passed
            exit x  > x passed; w on GPU 0,1
            exit w  > w passed; d on GPU 0; c on GPU 1
        """, order="w d c b a x", done=False)

    def test_first_last_and_doubled_barriers_hold_nothing(self) -> None:
        self.play("| | a | | | b |", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed")

    def test_an_unrunnable_test_does_not_block_it(self) -> None:
        self.plays({
            "alone above": ("w:9 | a", "begin > w unrunnable; a on GPU 0"),
            "all of several levels": ("v:9 | w:9 u:9 | a", "begin > v unrunnable; w unrunnable; u unrunnable; "
                                      "a on GPU 0"),
            "between": ("a | w:9 | b", "begin > w unrunnable; a on GPU 0\nexit a > a passed; b on GPU 0"),
            "beside": ("a w:9 | b", "begin > w unrunnable; a on GPU 0\nexit a > a passed; b on GPU 0"),
            "below": ("a | w:9", "begin > w unrunnable; a on GPU 0"),
        }, done=False)


class AfterTest(ScheduleCase):
    def test_a_test_starts_when_the_others_have_passed(self) -> None:
        self.play("c+after=a,b a b d:0+after=c", """
            begin   > a on GPU 0; b on GPU 1
            exit a  > a passed
            exit b  > b passed; c on GPU 0
            exit c  > c passed; d on CPU
            exit d  > d passed
        """)

    def test_every_failure_blocks_those_that_wait(self) -> None:
        for end, outcome in (("exit a 1", "failed"), ("exit a -11", "crashed"), ("exit a 137", "crashed"),
                             ("@5 tick > SIGTERM a\nexit a", "timeout")):
            with self.subTest(end):
                play = self.play("a:1:5 b+after=a", f"begin > a on GPU 0\n{end} > a {outcome}; b blocked")
                self.assertEqual(play.results["b"].reason, "waits for a, which did not pass")

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
        self.assertEqual((blocked.lease, blocked.status, blocked.seconds), (Lease((), 0), None, 0.0))

    def test_one_failure_of_several_is_enough(self) -> None:
        for ends in ("exit b 1 > b failed; c blocked\nexit a > a passed", "exit a > a passed\nexit b 1 > b failed; "
                     "c blocked"):
            self.play("a b c+after=a,b", f"begin > a on GPU 0; b on GPU 1\n{ends}")

    def test_an_unrunnable_test_blocks_too_and_waits_for_nobody(self) -> None:
        self.plays({
            "a chain": ("a w:9 b+after=w c+after=b", "begin > w unrunnable; b blocked; c blocked; a on GPU 0"),
            "one that waits": ("a w:9+after=a", "begin > w unrunnable; a on GPU 0"),
            "two of them": ("v:9 w:9+after=v", "begin > v unrunnable; w unrunnable"),
            "two the other way round": ("w:9+after=v v:9", "begin > w unrunnable; v unrunnable"),
        }, done=None)

    def test_a_blocked_test_opens_its_barrier(self) -> None:
        self.play("a b+after=a | c", "begin > a on GPU 0\nexit a 1 > a failed; b blocked; c on GPU 0", done=False)

    def test_across_a_barrier_both_hold(self) -> None:
        begin = "begin > a on GPU 0; b on GPU 1\n"
        self.plays({"a pass": ("a b | c+after=a", begin + "exit a > a passed\nexit b > b passed; c on GPU 0"),
                    "a failure": ("a b | c+after=a d", begin + "exit a 1 > a failed; c blocked\n"
                                                               "exit b > b passed; d on GPU 0")}, done=False)

    def test_a_run_that_ends_blocks_nobody(self) -> None:
        self.plays({"a signal": ("a b+after=a", "begin > a on GPU 0\nSIGINT > b not run; SIGINT a\n"
                                                "exit a -2 > a interrupted"),
                    "a broken machine": ("a b+after=a", "begin > a on GPU 0\nbreak a > b not run; a not run")})

    def test_the_same_name_twice_is_one(self) -> None:
        self.play("a b+after=a,a", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed")
        self.play("a b+after=a,a", "begin > a on GPU 0\nexit a 1 > a failed; b blocked")

    def test_a_name_of_a_test_that_is_left_out_holds_up_nobody(self) -> None:
        self.play("b+after=elsewhere", "begin > b on GPU 0\nexit b > b passed")


class LockTest(ScheduleCase):
    def test_a_lock_has_one_holder_and_holds_up_no_other_test(self) -> None:
        """Whatever its holders need; the first in starting order has it next."""
        self.play("a+lock=x b:0+lock=x c w:2+lock=x d:.5+lock=x", """
            begin   > a on GPU 0; c on GPU 1
            exit c  > c passed
            exit a  > a passed; d on GPU 0
            exit d  > d passed; w on GPU 0,1
            exit w  > w passed; b on CPU
            exit b  > b passed
        """, order="a c d w b")

    def test_several_locks_are_held_together_or_not_at_all(self) -> None:
        """In whatever order they are named."""
        self.play("a+lock=x b+lock=y,x c+lock=y d+lock=z e+lock=x,y", """
            begin   > a on GPU 0; c on GPU 1; d on GPU 2
            exit a  > a passed
            exit c  > c passed; b on GPU 0
            exit b  > b passed; e on GPU 0
        """, gpus=3, done=False)

    def test_every_end_gives_it_back(self) -> None:
        for end in ("exit a 1 > a failed", "exit a -11 > a crashed", "@9 tick > SIGTERM a\nexit a > a timeout"):
            with self.subTest(end):
                self.play("a:1:9+lock=x b+lock=x", f"begin > a on GPU 0\n{end}; b on GPU 0", done=False)

    def test_together_with_after_and_barriers(self) -> None:
        self.play("a+lock=x b+lock=x+after=a c+lock=x+after=d d | e+lock=x", """
            begin     > a on GPU 0; d on GPU 1
            exit a 1  > a failed; b blocked
            exit d    > d passed; c on GPU 0
            exit c    > c passed; e on GPU 0
        """, done=False)


class RetryTest(ScheduleCase):
    def test_a_test_that_does_not_pass_runs_again(self) -> None:
        play = self.play("a", """
            begin       > a on GPU 0
            exit a 1    > a failed, again; a on GPU 1
            exit a -11  > a crashed, again; a on GPU 0
            exit a      > a flaky
        """, retries=2)
        ended = [(result.attempt, result.status) for result in play.schedule.results[play.tests["a"]]]
        self.assertEqual(ended, [(1, 1), (2, -11), (3, 0)])

    def test_what_its_line_says_goes_before_the_option(self) -> None:
        for options, said, told in ((9, 0, "a failed"), (0, 1, "a failed, again; a on GPU 1"),
                                    (1, None, "a failed, again; a on GPU 1")):
            test = a_test(0, "a", attributes=run_tests.Attributes(retries=said))
            play = Play("", retries=options)
            play.tests["a"] = test
            play.schedule = run_tests.Schedule([test], play.schedule.pool, play.schedule.options)
            play.step("begin")
            self.assertEqual("; ".join(play.step("exit a 1")), told)

    def test_a_skip_is_final_and_skips_what_waits_for_it(self) -> None:
        play = self.play("a b+after=a c+after=b d+after=a,e e", """
            begin      > a on GPU 0; e on GPU 1
            exit a 77  > a skipped; b skipped; d skipped; c skipped
            exit e 1   > e failed, again; e on GPU 0
            exit e     > e flaky
        """, retries=1, skip_code=77, fail_fast=True)
        self.assertEqual(play.reasons()["c"], "waits for b, which did not pass")

    def test_a_known_failure_is_final_and_a_pass_is_told(self) -> None:
        """As for pytest's xfail. A crash or a timeout may be another fault."""
        known = dict.fromkeys("ac", "issue 7, k:1")
        self.play("a b+after=a", "begin > a on GPU 0\nexit a 1 > a failed as known; b blocked", retries=1,
                  fail_fast=True, known_failures=known)
        self.assertFalse(self.play("a", "begin > a on GPU 0\nexit a -9 > a crashed", known_failures=known).reasons())
        play = self.play("a c:1:5", """
            begin       > a on GPU 0; c on GPU 1
            exit a -11  > a crashed, again; a on GPU 0
            exit a      > a flaky
            @5 tick     > SIGTERM c
            @6 exit c   > c timeout, again; c on GPU 0
            exit c 1    > c failed as known
        """, retries=1, known_failures=known)
        self.assertEqual(play.reasons(), {"a": "passes, though known to fail (issue 7, k:1)", "c": "issue 7, k:1"})

    def test_only_causes_that_match_are_retried(self) -> None:
        """As the summary names them. What a GPU has spoilt is no retry."""
        self.play("a b:1:5", """
            begin        > a on GPU 0; b on GPU 1
            exit a 1 xy  > a failed, again; a on GPU 0
            exit a 1 z   > a failed
            @5 tick      > SIGTERM b
            @6 exit b    > b timeout, again; b on GPU 0
            exit b -6 q  > b crashed
        """, retries=2, retry_on="^x|timeout")
        self.play("a", "begin > a on GPU 0\nexit a 1 ecc > quarantine 0; a failed, again; a on GPU 1\n"
                  "exit a 1 z > a failed", retries=2, retry_on="^x")

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
        self.play("a b", "begin > a on GPU 0\nexit a 1 > a failed, again; a on GPU 0\nexit a > a flaky; b on GPU 0",
                  gpus=1, retries=1, done=False)

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
        self.play("a b+after=a c", "begin > a on GPU 0\nexit a 1 > a failed, again; a on GPU 0\n"
                  "exit a 1 > a failed; b blocked; c not run", gpus=1, retries=1, fail_fast=True)

    def test_a_run_that_ends_retries_nothing(self) -> None:
        self.play("a", "begin > a on GPU 0\nSIGINT > SIGINT a\nexit a 1 > a interrupted", retries=9)

    def test_what_waits_for_a_retry_has_failed_if_the_run_ends(self) -> None:
        """That is no news: the attempt has been told of."""
        play = self.play("x:0 b:2+after=x w:2 c+after=w", """
            begin     > x on CPU; w on GPU 0,1
            exit x    > x passed
            exit w 1  > w failed, again; b on GPU 0,1
            SIGTERM   > w failed (known); c not run; SIGTERM b
            exit b    > b interrupted
        """, retries=1)
        self.assertEqual({label: len(play.schedule.results[test]) for label, test in play.tests.items()},
                         dict.fromkeys("xbwc", 1))

    def test_it_runs_on_other_gpus_if_it_can(self) -> None:
        cases = {
            "another GPU is free": ("a b", 3, """
                begin     > a on GPU 0; b on GPU 1
                exit a 1  > a failed, again; a on GPU 2
                exit a 1  > a failed, again; a on GPU 0
            """),
            "none is": ("a b", 2, "begin > a on GPU 0; b on GPU 1\nexit a 1 > a failed, again; a on GPU 0"),
            "neighbours": ("w:2", 4, "begin > w on GPU 0,1\nexit w 1 > w failed, again; w on GPU 2,3"),
            "not as many others": ("w:2", 3, "begin > w on GPU 0,1\nexit w 1 > w failed, again; w on GPU 0,1"),
            "others that are no neighbours": ("x w:2 y z", 5, """
                begin     > x on GPU 0; w on GPU 1,2; y on GPU 3; z on GPU 4
                exit x    > x passed
                exit z    > z passed
                exit w 1  > w failed, again; w on GPU 0,4
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

    def test_what_nvidia_smi_finds_counts_at_once_and_once(self) -> None:
        play = self.play("a:.5 b:.5 c d", """
            begin           > a on GPU 0; b on GPU 0; c on GPU 1
            exit a 0 sick:0 > quarantine 0; a passed
            exit b 0 sick:0 > b passed
            exit c 0        > c passed; d on GPU 1
        """, done=False)
        self.assertEqual(play.quarantined, ["no answer"])

    def test_a_broken_gpus_test_runs_again_elsewhere_and_that_attempt_alone_counts(self) -> None:
        for word, reason in (("ecc", "ECC in a"), ("bus", "lost in a"), ("sick:0", "no answer")):
            with self.subTest(word):
                play = self.play("a b c", f"""
                    begin            > a on GPU 0; b on GPU 1
                    exit a 1 {word}  > quarantine 0; a failed, again
                    exit b           > b passed; a on GPU 1
                    exit a           > a passed; c on GPU 1
                    exit c           > c passed
                """)
                self.assertEqual((play.results["a"].attempt, play.quarantined), (2, [reason]))

    def test_what_a_broken_gpu_makes_of_a_test_is_no_excuse(self) -> None:
        """Neither a skip nor a failure that is known."""
        for status in (77, 1):
            self.play("a b:0", f"""
                begin                  > a on GPU 0; b on CPU
                exit a {status} sick:0 > quarantine 0; a failed, again; a on GPU 1
                exit a                 > a passed
            """, skip_code=77, known_failures={"a": "k:1"}, done=False)

        self.play("a w:2", """
            begin              > a on GPU 0
            exit a 77          > a skipped; w on GPU 0,1
            exit w 77 sick:0   > quarantine 0; w failed
        """, skip_code=77)

    def test_what_is_broken_from_the_start(self) -> None:
        play = Play("a b w:2")
        actions = play.schedule.step(Begin((Sick(devices_of(1)[0], "no answer"),)), 0.0)
        self.assertEqual([*map(play.words_of, actions)], ["quarantine 0", "w unrunnable", "a on GPU 1"])
        play = Play("x:0", gpus=1)
        actions = play.schedule.step(Begin((Sick(devices_of(1)[0], "no answer"),)), 0.0)
        self.assertEqual([*map(play.words_of, actions)], ["x on CPU"])

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

    def test_no_other_failure_accuses_a_gpu(self) -> None:
        """Whatever another GPU makes of the test."""
        for cause in ("launch", "old", ""):
            play = self.play("a", f"begin > a on GPU 0\nexit a 1 {cause} > a failed, again; a on GPU 1\n"
                                  "exit a > a flaky", retries=1)
            self.assertEqual(play.quarantined, [])

    def test_a_log_accuses_the_one_gpu_of_its_test(self) -> None:
        self.plays({
            "one of several": ("w:2 a", "begin > w on GPU 0,1\nexit w 1 ecc > w failed; a on GPU 0"),
            "of several, as nvidia-smi says": ("w:2 a", "begin > w on GPU 0,1\n"
                                               "exit w 1 sick:1 > quarantine 1; w failed; a on GPU 0"),
            "none": ("x:0 a", "begin > x on CPU; a on GPU 0\nexit x 1 ecc > x failed"),
            "a share": ("h:.5 i:.5", "begin > h on GPU 0; i on GPU 0\n"
                                     "exit h 1 ecc > quarantine 0; h failed, again; h on GPU 1\nexit i > i passed"),
            "a pass": ("a b", "begin > a on GPU 0; b on GPU 1\nexit a 0 sick:1 > quarantine 1; a passed"),
        }, done=False)
        self.play("a b", "begin > a on CPU\nexit a 1 ecc > a failed; b on CPU", gpus=0, done=False)

    def test_what_needs_more_than_is_left_cannot_run(self) -> None:
        play = self.play("y:all a+after=y w:2+after=y v:2+after=a b:all x:0+after=w", """
            begin         > y on GPU 0,1
            exit y        > y passed; a on GPU 0
            exit a 1 ecc  > quarantine 0; w unrunnable; v unrunnable; x blocked; a failed, again; a on GPU 1
            exit a        > a passed; b on GPU 1
            exit b        > b passed
        """)
        self.assertEqual(play.results["w"].reason, "needs 2 GPUs, more than are left")

    def test_what_waits_for_a_retry_and_cannot_run_has_failed(self) -> None:
        play = self.play("w:2 b", """
            begin            > w on GPU 0,1; b on GPU 2
            exit w 1 sick:0  > quarantine 0; w failed, again
            exit b 1 sick:1  > quarantine 1; w failed (known); b failed, again; b on GPU 2
        """, gpus=3, done=False)
        self.assertEqual(play.results["w"].reason, "")

    def test_without_a_gpu_the_machine_has_failed(self) -> None:
        play = self.play("a b c x:0 y:0 z:0", """
            begin           > a on GPU 0; b on GPU 1; x on CPU; y on CPU
            exit a 1 ecc    > quarantine 0; a failed, again
            exit b 0 sick:1 > quarantine 1; a failed (known); c not run; z not run; SIGTERM x; SIGTERM y; b passed
            exit x -15      > x interrupted
            exit y          > y interrupted
        """)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")
        play = self.play("a b", "begin > a on GPU 0\nexit a 1 ecc > quarantine 0; b not run; a failed", gpus=1, jobs=1,
                         sequential=True, retries=5)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")


class MachineWideTest(ScheduleCase):
    """Causes that no test can pass, on every GPU: the run ends."""

    def ends(self, tests: str, script: str, failure: str = "", **values: Any) -> None:
        play = self.play(tests, script, done=None, **values)
        self.assertEqual(play.schedule.failure, failure)

    def test_two_tests_on_every_gpu_end_the_run(self) -> None:
        self.ends("a b c d", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed; c on GPU 0
            exit b 1 old  > d not run; SIGTERM c; b failed
        """, "old driver, on every GPU")
        self.ends("a b c", """
            begin          > a on GPU 0
            exit a 1 none  > a failed; b on GPU 0
            exit b 1 none  > c not run; b failed
        """, "no GPU, on every GPU", gpus=1)
        self.ends("w:2 v:2 u:2", """
            begin         > w on GPU 0,1
            exit w 1 old  > w failed; v on GPU 0,1
            exit v 1 old  > u not run; v failed
        """, "old driver, on every GPU")

    def test_one_test_is_no_machine(self) -> None:
        self.ends("a b", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed, again; a on GPU 0
            exit b        > b passed
            exit a 1 old  > a failed, again; a on GPU 1
            exit a 1 old  > a failed
        """, retries=2)
        self.ends("w:all", "begin > w on GPU 0,1\nexit w 1 old > w failed")

    def test_every_gpu_has_to_show_it(self) -> None:
        self.ends("a b c d", """
            begin         > a on GPU 0; b on GPU 1
            exit a 1 old  > a failed; c on GPU 0
            exit c 1 old  > c failed; d on GPU 0
            exit d 1 old  > d failed
        """)

    def test_any_other_end_on_a_gpu_starts_anew(self) -> None:
        for end in ("exit b", "exit b 1 assert", "exit b -9"):
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

    def judged(self, number: int = 1, ending: Optional[Outcome] = None, leaks: str = "report",
               spared: int = 0, junit: Optional[str] = "x.xml", flaky: str = "pass", **event: Any) -> Result:
        attempt = Attempt(a_test(junit=junit, timeout=5.0), Lease((), 0), number, at=2.0)
        attempt.ending, attempt.ending_at = ending, 5.0
        options = run_tests.Options((), leaks=leaks, skip_code=77, flaky=flaky)
        return judge(Exited(5.0, attempt.test, **event), attempt, options, spared)

    def test_a_pytest_target_without_its_junit_file_has_died(self) -> None:
        test = a_test(junit="x.xml")
        cases = ((False, 0, Outcome.PASSED), (True, 0, Outcome.FAILED), (False, 77, Outcome.SKIPPED),
                 (True, 77, Outcome.FAILED))
        for is_pytest, status, outcome in cases:
            attempt = Attempt(test._replace(is_pytest=is_pytest), Lease((), 0), 1, at=2.0)
            event = Exited(5.0, attempt.test, status, junit_fault="missing")
            result = judge(event, attempt, run_tests.Options((), skip_code=77), spared=0)
            reason = ""
            if status == 0:
                reason = "its JUnit file is missing" if is_pytest else "without its JUnit file (missing)"
            self.assertEqual((result.outcome, result.reason), (outcome, reason))

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
            ("a timeout", {"status": -15, "cause": why, "ending": timeout}, (timeout, "timeout", late)),
            ("a timeout that ends well", {"status": 0, "ending": timeout}, (timeout, "timeout", late)),
            ("a timeout, then the OOM killer", {"status": -9, "cause": oom, "ending": timeout},
             (timeout, "timeout", late)),
            ("an interrupt", {"status": -2, "ending": interrupted}, (interrupted, "", "")),
            ("an interrupt that ends well", {"status": 0, "ending": interrupted}, (interrupted, "", "")),
            ("the OOM killer", {"status": -9, "cause": oom}, (crashed, oom.text, "OOM killer")),
            ("the OOM killer, within", {"status": 137, "cause": oom}, (crashed, oom.text, "OOM killer")),
            ("failures behind exit 0", {"status": 0, "junit_failures": 2, "cause": why}, (failed, "why", shows)),
            ("failures", {"status": 1, "junit_failures": 2, "cause": why}, (failed, "why", "")),
            ("a second attempt", {"status": 0, "number": 2}, (flaky, "", "")),
            ("a second that fails", {"status": 1, "number": 2}, (failed, "", "")),
            ("a second with failures behind exit 0", {"status": 0, "number": 2, "junit_failures": 2},
             (failed, "", shows)),
            ("the first that counts", {"status": 0, "number": 2, "spared": 1}, (passed, "", "")),
            ("the second that counts", {"status": 0, "number": 3, "spared": 1}, (flaky, "", "")),
            ("skips alone", {"status": 0, "ran_none": True}, (passed, "", "ran none of its cases")),
            ("a leak", {"status": 0, "leaked": leak}, (passed, "", "")),
            ("a leak that fails", {"status": 0, "leaked": leak, "leaks": "fail"},
             (failed, "leaked processes", "leaked: 1 process")),
            ("two leaks at a retry", {"status": 0, "leaked": leak * 2, "leaks": "fail", "number": 2},
             (failed, "leaked processes", "leaked: 2 processes")),
            ("a skip", {"status": 77, "cause": why}, (Outcome.SKIPPED, "", "")),
            ("the first skip that counts", {"status": 77, "number": 2, "spared": 1}, (Outcome.SKIPPED, "", "")),
            ("a skip after a failure", {"status": 77, "number": 2, "cause": why}, (failed, "why", "")),
            ("a skip with failures", {"status": 77, "junit_failures": 1, "cause": why}, (failed, "why", "")),
            ("a skip by an interrupt", {"status": 77, "ending": interrupted}, (interrupted, "", "")),
            ("a failure that leaks", {"status": 3, "leaked": leak, "leaks": "fail", "cause": why},
             (failed, "why", "")),
        ]
        for name, values, expected in cases:
            with self.subTest(name):
                result = self.judged(**values)
                self.assertEqual((result.outcome, result.cause.text, result.reason), expected)
                self.assertEqual((result.seconds, result.status, result.leaked),
                                 (3.0, values["status"], values.get("leaked", ())))

    def test_a_junit_file_without_a_failure_is_of_no_use_to_a_failure(self) -> None:
        silent, leak = "without a failure", ("sleep (pid 7)",)
        cases: List[Tuple[Dict[str, Any], str]] = [
            ({"status": 0}, ""), ({"status": 0, "number": 2}, ""),
            ({"status": 0, "number": 2, "flaky": "fail"}, silent),
            ({"status": 0, "junit_fault": "missing"}, "missing"),
            ({"status": 77}, ""),
            ({"status": 1}, silent), ({"status": -9}, silent), ({"status": 1, "junit_failures": 1}, ""),
            ({"status": 1, "junit_fault": "stale"}, "stale"), ({"status": 1, "junit": None}, ""),
            ({"status": 0, "ending": Outcome.TIMEOUT}, silent), ({"status": 0, "ending": Outcome.INTERRUPTED}, silent),
            ({"status": 1, "junit_fault": "truncated", "junit_failures": 1}, "truncated"),
            ({"status": 0, "junit_failures": 1}, ""), ({"status": 0, "leaked": leak}, ""),
            ({"status": 0, "leaked": leak, "leaks": "fail"}, silent),
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
    def test_it_is_concluded_first_in_list_order_and_says_why(self) -> None:
        play = self.play("a v:3 w:4", "begin > v unrunnable; w unrunnable; a on GPU 0\nexit a > a passed",
                         order="w v a")
        self.assertEqual(play.results["w"], Result(play.tests["w"], Outcome.UNRUNNABLE,
                                                   reason="needs 4 GPUs, more than there are"))
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
    """Tests that come one by one, as a script submits them."""

    def test_they_start_at_once_where_there_is_room(self) -> None:
        self.play("a b c", """
            begin    >
            submit a > a on GPU 0
            submit b > b on GPU 1
            submit c >
            exit a   > a passed; c on GPU 0
            exit b   > b passed
            exit c   > c passed""", later="a b c")

    def test_all_that_wait_have_a_new_order(self) -> None:
        self.play("a b c d e", """
            begin        >
            submit a b c > a on GPU 0; b on GPU 1
            submit e d c >
            exit a       > a passed; e on GPU 0
            exit b       > b passed; d on GPU 1
            exit e       > e passed; c on GPU 0""", later="a b c d e", done=False)

    def test_what_waits_for_a_retry_keeps_its_place(self) -> None:
        self.play("a b c", """
            begin      >
            submit a b > a on GPU 0; b on GPU 1
            exit a 1   > a failed, again; a on GPU 0
            submit c   >
            exit b     > b passed; c on GPU 1
            exit a     > a flaky
            exit c     > c passed""", later="a b c", retries=1)

    def test_one_that_is_too_wide_is_told_at_once(self) -> None:
        self.play("a w:3", "begin >\nsubmit a w > w unrunnable; a on GPU 0\nexit a > a passed", later="a w")

    def test_none_starts_after_the_end(self) -> None:
        self.play("a b", "begin >\nsubmit a > a on GPU 0\nSIGTERM > SIGTERM a\nsubmit b > b not run\n"
                  "exit a > a interrupted", later="a b")


class TimeoutTest(ScheduleCase):
    def test_sigterm_at_the_deadline_sigkill_after_grace(self) -> None:
        """The stacks of its Pythons are asked for before, and a second is theirs."""
        play = self.play("a:1:30", f"""
            @10 begin              > a on GPU 0
            @39 tick               >
            @40 tick               > SIGTERM a
            @{49.9 + STACKS_S} tick  >
            @{50 + STACKS_S} tick  > SIGKILL a
            @61 exit a -9          > a timeout
        """, grace=10.0)
        result = play.results["a"]
        self.assertEqual((result.seconds, result.status, result.verdict), (51.0, -9, "timeout"))
        self.assertEqual(play.stacks, {"a": ["did not end in 30s", "did not end by a signal in 10s"]})

    def test_none_means_none(self) -> None:
        self.play("a b:1:0", "begin > a on GPU 0; b on GPU 1\n@1e9 tick >", done=False)

    def test_deadline_is_that_of_the_next_signal(self) -> None:
        play = Play("a:1:5 b:1:3 c", gpus=3, jobs=1, grace=2.0)
        seen = [play.schedule.deadline()]
        for event in ("begin", "@3 tick", "@5 tick", "exit b", "@8 tick", "exit a", "exit c"):
            play.step(event)
            seen.append(play.schedule.deadline())
        self.assertEqual(seen, [math.inf, 3.0, 5.0, 6.0, 8.0, 8.0 + STUCK_S, math.inf, math.inf])

    def test_what_cannot_be_killed_is_abandoned_with_its_gpus(self) -> None:
        play = self.play("a:2:5 b c x:0", f"""
            begin                   > a on GPU 0,1; b on GPU 2; x on CPU
            exit x                  > x passed
            @5 tick                 > SIGTERM a
            @16 tick                > SIGKILL a
            @{15.9 + STUCK_S} tick  >
            @{16 + STUCK_S} tick    > quarantine 0; quarantine 1; a timeout
            @99 exit a -9           >
            exit b                  > b passed; c on GPU 2
            exit c                  > c passed
        """, gpus=3)
        result = play.results["a"]
        self.assertEqual((result.status, result.reason, result.cause.text, result.junit_fault, result.seconds),
                         (-9, "cannot be killed", "cannot be killed", "left open", 16 + STUCK_S))
        self.assertEqual(play.quarantined, ["a cannot be killed"] * 2)

    def test_an_abandoned_test_is_not_retried_and_blocks_others(self) -> None:
        self.play("a:0:5 b+after=a", f"begin > a on CPU\n@5 tick > SIGTERM a\n@16 tick > SIGKILL a\n"
                  f"@{16 + STUCK_S} tick > a timeout; b blocked", retries=3)

    def test_the_last_gpu_may_be_abandoned_too(self) -> None:
        play = self.play("a:1:5 b", f"begin > a on GPU 0\n@5 tick > SIGTERM a\n@16 tick > SIGKILL a\n"
                         f"@{16 + STUCK_S} tick > quarantine 0; b not run; a timeout", gpus=1)
        self.assertEqual(play.schedule.failure, "no usable GPU is left")

    def test_a_machine_without_gpus_loses_none(self) -> None:
        for jobs, sequential in ((1, True), (2, False)):
            self.play("a:1:5 b", f"""
                begin                 > a on CPU
                @5 tick               > SIGTERM a
                @16 tick              > SIGKILL a
                @{16 + STUCK_S} tick  > a timeout; b on CPU
            """, gpus=0, jobs=jobs, sequential=sequential, done=False)

    def test_whatever_an_abandoned_test_posts_is_ignored(self) -> None:
        """Its thread may come back from the kernel at any time; an interrupt does not wait for it for ever."""
        for event in ("exit a -9", "break a"):
            with self.subTest(event):
                self.play("a b", f"""
                    begin                > a on GPU 0; b on GPU 1
                    @1 SIGINT            > SIGINT a; SIGINT b
                    @2 SIGINT            > SIGKILL a; SIGKILL b
                    @2 exit b -9         > b interrupted
                    @{2 + STUCK_S} tick  > quarantine 0; a interrupted
                    {event}              >
                """)


class EndedTest(ScheduleCase):
    """A shell has ended, and what it has left is being ended."""

    def test_what_a_test_leaves_does_not_count_against_its_timeout(self) -> None:
        for ended, outcome in ((4.9, "passed"), (5, "timeout"), (5.1, "timeout")):
            play = self.play("a:1:5", f"""
                begin                     > a on GPU 0
                @5 tick                   > SIGTERM a
                @6 exit a 0 ended:{ended} > a {outcome}
            """)
            self.assertEqual(play.results["a"].seconds, ended)

    def test_a_signal_that_comes_later_does_not_interrupt_it(self) -> None:
        for ended, outcome in ((4.9, "failed"), (5.1, "interrupted")):
            self.play("a", f"begin > a on GPU 0\n@5 SIGINT > SIGINT a\n@6 exit a 1 ended:{ended} > a {outcome}")


class AlarmsTest(ScheduleCase):
    """Timeouts of many running tests."""

    def test_each_comes_at_its_time_and_none_is_late(self) -> None:
        chance = random.Random(7)
        tests = [a_test(index, gpus=0.0, timeout=chance.choice([None, float(chance.randint(1, 60))]))
                 for index in range(400)]
        pool = run_tests.Pool([], cpus=len(tests))
        schedule = run_tests.Schedule(tests, pool, run_tests.Options((), grace=3.0))
        schedule.step(Begin(), 0.0)
        due = {test: (test.timeout or math.inf, 0) for test in tests}       # signal, the last one
        gone = []
        while due:
            at = min(end for end, _ in due.values())
            self.assertEqual(schedule.deadline(), at)
            expected = []
            for test, (end, sent) in due.items():
                if end == at and sent == signal.SIGTERM:
                    expected.append((signal.SIGKILL, test))
                    due[test] = at + STUCK_S, signal.SIGKILL
                elif end == at:
                    expected.append((signal.SIGTERM, test))
                    due[test] = at + 3.0 + STACKS_S, signal.SIGTERM
            told = schedule.step(Tick(), min(at, 100.0))
            self.assertCountEqual([(action.signum, action.attempt.test) for action in told], expected)
            for test, (_, sent) in list(due.items()):
                if sent == signal.SIGKILL or (not test.timeout and at > 40) or chance.random() < 0.02:
                    schedule.step(Exited(at, test, 0), at)
                    gone.append(test)
                    del due[test]
        self.assertEqual((schedule.done, schedule.deadline(), len(gone)), (True, math.inf, 400))

    def test_many_that_have_ended_leave_no_alarm(self) -> None:
        """Ten thousand tests, one after the other, each with a timeout of hours."""
        tests = [a_test(index, timeout=7200.0) for index in range(10_000)]
        schedule = run_tests.Schedule(tests, run_tests.Pool(devices_of(1)), run_tests.Options(()))
        schedule.step(Begin(), 0.0)
        for at, test in enumerate(tests):
            self.assertEqual(schedule.deadline(), at + 7200.0)
            schedule.step(Exited(at + 1.0, test, 0), at + 1.0)
        self.assertEqual((schedule.done, schedule.deadline()), (True, math.inf))


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
        self.assertEqual({label: stacks[0] for label, stacks in play.stacks.items()},
                         dict.fromkeys("bxc", "--deadline ends the run"))
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
                self.assertEqual((play.schedule.interrupts, play.stacks), ([signal.Signals[name]], {}))

    def test_what_is_not_run_is_told_in_list_order(self) -> None:
        self.play("a b c d", "begin > d on GPU 0\nSIGINT > a not run; b not run; c not run; SIGINT d", gpus=1,
                  order="d c a b", done=False)

    def test_sigkill_after_grace(self) -> None:
        self.play("a", "begin > a on GPU 0\n@3 SIGINT > SIGINT a\n@6 tick >\n@7 tick > SIGKILL a", grace=4, done=False)

    def test_the_second_kills_now(self) -> None:
        play = self.play("a b", """
            begin       > a on GPU 0; b on GPU 1
            @3 SIGINT   > SIGINT a; SIGINT b
            exit a -2   > a interrupted
            @4 SIGTERM  > SIGKILL b
            exit b -9   > b interrupted
        """)
        self.assertEqual((play.schedule.interrupts, play.schedule.deadline()),
                         ([signal.SIGINT, signal.SIGTERM], math.inf))

    def test_one_that_cannot_start_any_more_is_not_run(self) -> None:
        self.play("a", "begin > a on GPU 0\nSIGINT > SIGINT a\nbreak a > a not run")

    def test_when_all_is_done_it_does_nothing(self) -> None:
        self.play("a", "begin > a on GPU 0\nexit a > a passed\nSIGINT >")


class StopTest(ScheduleCase):
    def test_fail_fast_starts_nothing_more_and_lets_the_others_end(self) -> None:
        self.play("a b c+after=a x:0 | d", """
            begin     > a on GPU 0; b on GPU 1; x on CPU
            exit a 1  > a failed; c blocked; d not run
            exit b 1  > b failed
            exit x    > x passed
        """, fail_fast=True)

    def test_fail_fast_counts_every_failure(self) -> None:
        self.plays({
            "a crash": ("a b", "begin > a on GPU 0\nexit a -11 > a crashed; b not run"),
            "a timeout": ("a:1:5 b", "begin > a on GPU 0\n@5 tick > SIGTERM a\nexit a > a timeout; b not run"),
            "tests that cannot run": ("a w:2 v:3 b",
                                      "begin > w unrunnable; v unrunnable; a not run; b not run"),
            "not a pass": ("a b", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed"),
        }, gpus=1, fail_fast=True)

    def test_fail_fast_stops_at_what_fails_the_run(self) -> None:
        text = "begin > a on GPU 0\nexit a 1 > a failed, again; a on GPU 0\nexit a > a flaky; b "
        self.play("a b", text + "on GPU 0\nexit b > b passed", gpus=1, fail_fast=True, retries=1)
        self.play("a b", text + "not run", gpus=1, fail_fast=True, retries=1, flaky="fail")
        self.play("a b c+after=a", "begin > a on GPU 0\nexit a 1 > a failed as known; c blocked; b not run", gpus=1,
                  fail_fast=True, known_failures={"a": "why"})

    def test_a_broken_machine_stops_the_run(self) -> None:
        play = self.play("a b c", """
            @1 begin      > a on GPU 0; b on GPU 1
            @2 break b    > c not run; SIGTERM a; b not run
            @11 tick      >
            @12 tick      > SIGKILL a
            exit a -9     > a interrupted
        """, grace=10.0)
        self.assertEqual((play.schedule.failure, play.results["b"].reason, play.results["b"].status),
                         ("no log", "no log", None))

    def test_the_first_reason_counts(self) -> None:
        play = Play("a b")
        play.step("begin")
        for label in "ab":
            play.schedule.step(Broken(play.tests[label], f"{label} broke"), 1.0)
        self.assertEqual((play.schedule.failure, play.schedule.done), ("a broke", True))

    def test_a_schedule_without_tests_is_done(self) -> None:
        self.play("", "begin >")


class WordsTest(unittest.TestCase):
    def test_death_and_outcome_of_a_status(self) -> None:
        passed, failed, crashed = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED
        cases = [(0, "", passed), *((status, "", failed) for status in (1, 2, 5, 124, 126, 127, 128, 200, 255)),
                 (-11, "SIGSEGV", crashed), (-9, "SIGKILL", crashed), (-6, "SIGABRT", crashed),
                 (-15, "SIGTERM", crashed), (-2, "SIGINT", crashed), (139, "SIGSEGV", crashed),
                 (137, "SIGKILL", crashed), (134, "SIGABRT", crashed), (143, "SIGTERM", crashed),
                 (130, "SIGINT", crashed), (129, "SIGHUP", crashed), (-200, "signal 200", crashed)]
        for status, death, outcome in cases:
            with self.subTest(status=status):
                self.assertEqual((death_of(status), outcome_of(status)), (death, outcome))
        self.assertEqual(death_of(None), "")

    def test_outcomes_and_their_predicates(self) -> None:
        predicates = {run_tests.Options(()).accepts: "passed flaky skipped known deferred",
                      run_tests.Options((), flaky="fail").accepts: "passed skipped known deferred",
                      attrgetter("is_pass"): "passed flaky", attrgetter("is_excused"): "skipped known",
                      attrgetter("is_unfinished"): "interrupted not_run",
                      attrgetter("is_failure"): "failed crashed timeout blocked unrunnable",
                      attrgetter("can_be_retried"): "failed crashed timeout"}
        words = ["passed", "flaky", "skipped", "failed as known", "failed", "crashed", "timeout", "blocked",
                 "unrunnable", "deferred", "interrupted", "not run"]
        self.assertEqual([outcome.value for outcome in Outcome], words)
        for predicate, names in predicates.items():
            self.assertEqual({outcome.name.lower() for outcome in Outcome if predicate(outcome)}, set(names.split()))

    def test_verdict(self) -> None:
        cases = [(Outcome.PASSED, 0, "passed"), (Outcome.FAILED, 1, "failed, exit 1"),
                 (Outcome.CRASHED, -11, "crashed (SIGSEGV)"), (Outcome.CRASHED, 137, "crashed (SIGKILL)"),
                 (Outcome.TIMEOUT, -9, "timeout"), (Outcome.INTERRUPTED, -2, "interrupted"),
                 (Outcome.UNRUNNABLE, None, "unrunnable"), (Outcome.NOT_RUN, None, "not run")]
        for outcome, status, expected in cases:
            with self.subTest(expected):
                self.assertEqual(Result(a_test(), outcome, status=status).verdict, expected)

    def test_place_and_tokens_of_a_lease(self) -> None:
        cases = [([], "CPU", []), ([""], "CPU", []), (["0"], "GPU 0", ["0"]), (["4", "7"], "GPU 4,7", ["4", "7"]),
                 (["MIG-a/1"], "GPU MIG-a/1", ["MIG-a/1"])]
        for tokens, place, shown in cases:
            with self.subTest(tokens=tokens):
                devices = tuple(run_tests.Device(index, token) for index, token in enumerate(tokens))
                self.assertEqual((Lease(devices, 0).place, Lease(devices, 0).tokens), (place, shown))


class Simulation:
    """Random tests on a random machine that may break, on a virtual clock, with a check of the rules at every step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random.choice
        self.gpus, self.jobs = self.random.randrange(7), self.random.randint(1, 3)
        self.sequential = self.gpus <= 1 and self.random.random() < 0.7
        self.tests = self.random_tests(self.random.randint(1, 16))
        self.order = self.random.sample(self.tests, len(self.tests))
        self.options = run_tests.Options(
            (), grace=chance([0.0, 2.0, 5.0]), retries=chance([0, 0, 1, 3]), fail_fast=self.random.random() < 0.1,
            deadline=chance([None, None, None, 0.5, 40.0, 100.0]),
            leaks=chance(["report", "fail"]))
        self.causes = chance([[Cause()], [Cause("no"), *CAUSES.values()], [CAUSES["old"]], [CAUSES["ecc"], Cause()]])
        pool = run_tests.Pool(devices_of(self.gpus), self.jobs, self.sequential)
        self.schedule = run_tests.Schedule(self.order, pool, self.options)
        self.now, self.serial = 0.0, 0
        self.agenda: List[Tuple[float, int, Any]] = []       # a heap of what will happen by itself
        self.running: Dict[Test, Attempt] = {}
        self.exits: Dict[Test, Tuple[float, Exited]] = {}    # when and how a shell ends as things stand
        self.swept: Set[Attempt] = set()                     # those whose shell has ended
        self.told: Dict[Attempt, float] = {}                 # and since when
        self.ending: Dict[Attempt, Outcome] = {}             # why they are being ended
        self.killed: Dict[Attempt, float] = {}               # when SIGKILL was sent
        self.results: Dict[Test, List[Result]] = {test: [] for test in self.tests}
        self.outcomes: Dict[Test, Outcome] = {}
        self.lost: Set[int] = set()                          # indices of GPUs
        self.seen: Set[str] = set()                          # what has happened
        for _ in range(self.random.choice([0, 0, 0, 0, 1, 3])):
            self.later(self.random.uniform(0, 30), Interrupt(chance([signal.SIGINT, signal.SIGTERM])))

    def random_tests(self, count: int) -> List[Test]:
        """Tests with barriers that come seldom or never, and with `after` of any that come before in some order."""
        chance, barrier, barriers = self.random.choice, 0, []
        step, needs = chance([0.0, 0.0, 0.2]), chance([
            [0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0, ALL_GPUS], [0.25, 0.25, 0.5, 0.3, 0.7, 1.0, 2.0],
            [1.0, 1.0, 1.0, 2.0, 4.0, 5.0], [0.0, 0.1, 0.5, 0.9, 1.0, 2.0, 4.0, ALL_GPUS]])
        for _ in range(count):
            barrier += chance([1, 2]) if self.random.random() < step else 0
            barriers.append(barrier)
        some_order = sorted(range(count), key=lambda index: (barriers[index], self.random.random()))
        names: Dict[int, Tuple[str, ...]] = {}
        for position, index in enumerate(some_order):
            if position and self.random.random() < 0.25:
                names[index] = tuple(f"t{chance(some_order[:position])}" for _ in range(chance([1, 2])))
        return [a_test(index, barrier=barriers[index], gpus=chance(needs), timeout=chance([None, None, 1.0, 4.0, 20.0]),
                       attributes=run_tests.Attributes(after=names.get(index, ()), lock=chance(
                           [(), (), (), (), ("x",), ("y",), ("x", "y"), ("y", "x")])))
                for index in range(count)]

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise AssertionError(f"at {self.now}: {what}")

    # What the machine does.

    def run(self) -> None:
        """From Begin to `done`."""
        self.feed(Begin())
        while not self.schedule.done:
            self.serial += 1
            self.require(self.serial < 3000, "no end in sight")
            coming, due = self.agenda[0][0] if self.agenda else math.inf, self.schedule.deadline()
            self.require(min(coming, due) < math.inf, "deadlock: nothing will ever happen again")
            self.now = max(self.now, min(coming, due))
            if due <= coming:
                self.feed(Tick())
                self.require(self.schedule.deadline() > self.now or not self.options.grace, "a Tick changes nothing")
            else:
                self.happen(heapq.heappop(self.agenda)[2])
        self.check_end()

    def later(self, seconds: float, event: Any) -> None:
        self.serial += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.serial, event))

    def happen(self, event: Any) -> None:
        """Feed what the agenda held, unless it has been overtaken."""
        if isinstance(event, Exited):
            if self.exits.get(event.test, (0, None))[1] is not event:
                return
            attempt = self.running.get(event.test)
            if attempt and attempt not in self.swept and self.random.random() < 0.2:     # it has left something
                event = event._replace(ended=self.now)
                self.swept.add(attempt)
                seconds = self.random.choice([0.0, 1.5, 3.5])
                self.exits[event.test] = self.now + seconds, event
                self.later(seconds, event)
                return
        if isinstance(event, Exited) and not event.ended:
            event = event._replace(ended=self.now)
        self.feed(event)

    def end_in(self, test: Test, seconds: float, status: int) -> None:
        """A shell will end then, if it does not end before, whatever it leaves and shows."""
        if test in self.exits and self.now + seconds >= self.exits[test][0]:
            return
        chance = self.random.random
        sick = tuple(Sick(device, "no answer") for device in self.running[test].lease.devices
                     if device.token and chance() < 0.02)
        event = Exited(0, test, status, "", int(chance() < 0.05), self.random.choice(self.causes),
                       ("sleep (pid 7)",) if chance() < 0.1 else (), sick)
        self.exits[test] = self.now + seconds, event
        self.later(seconds, event)

    def feed(self, event: Any) -> None:
        for action in self.schedule.step(event, self.now):
            self.seen.add(type(action).__name__)
            getattr(self, f"on_{type(action).__name__.lower()}")(action, event)
        self.require(self.schedule.running == self.running, "another test runs than was launched")
        could = [test.label for test in self.waiting() if self.is_ready(test) and self.fits(test)]
        self.require(not could, f"{could} could start")

    # The rules, as simply as they can be said.

    def waiting(self) -> List[Test]:
        return [test for test in self.order if test not in self.running and test not in self.outcomes]

    def is_ready(self, test: Test) -> bool:
        """Barriers, `after` and locks let it start."""
        above = all(other.barrier >= test.barrier or other in self.outcomes for other in self.tests)
        named = [other for other in self.tests if other.label in test.attributes.after]
        held = {name for other in self.running for name in other.attributes.lock}
        return (above and held.isdisjoint(test.attributes.lock)
                and all(other in self.outcomes and self.outcomes[other].is_pass for other in named))

    def free(self, test: Test) -> List[int]:
        """The devices with as much room as a test takes of each."""
        def shares(other: Test) -> int:
            return round(other.gpus * SHARES) if 0 < other.gpus < 1 else SHARES

        room = [SHARES] * max(self.gpus, 1)
        for other, attempt in self.running.items():
            for device in attempt.lease.devices:
                room[device.index] -= shares(other)
        return [index for index, left in enumerate(room) if left >= shares(test) and index not in self.lost]

    def count(self, test: Test) -> int:
        return max(self.gpus, 1) - len(self.lost) if test.gpus == ALL_GPUS else math.ceil(test.gpus)

    def fits(self, test: Test) -> bool:
        alone = self.sequential or ALL_GPUS in (test.gpus, *(other.gpus for other in self.running))
        if (alone and self.running) or len(self.free(test)) < self.count(test):
            return False
        return test.gpus > 0 or sum(other.gpus == 0 for other in self.running) < self.jobs

    def on_launch(self, action: Launch, _event: Any) -> None:
        test, attempt = action.attempt.test, action.attempt
        self.require(test in self.waiting() and self.is_ready(test), f"{test.label} may not start")
        self.require(not self.schedule.stopped, f"{test.label} starts after the end")
        self.require(attempt.number == len(self.results[test]) + 1, f"{test.label} has number {attempt.number}")
        free, indices = self.free(test), [device.index for device in attempt.lease.devices]
        self.require(self.fits(test) and set(indices) <= set(free), f"{test.label} gets what is not free")
        self.require(len(set(indices)) == len(indices) == self.count(test), f"{test.label} gets {indices}")
        used = {other.lease.slot for other in self.running.values()}
        self.require(attempt.lease.slot == min(set(range(len(used) + 1)) - used), f"its slot is {attempt.lease.slot}")
        for other in self.order[:self.order.index(test)]:
            passed = other in self.waiting() and self.is_ready(other) and self.fits(other)
            self.require(not passed, f"{test.label} passes {other.label}")
        if self.results[test]:
            free = [index for index in free if index not in self.results[test][-1].gpu_indices]
            self.require(len(free) < len(indices) or set(indices) <= set(free), f"{test.label} is retried there")
        if len(free) >= len(indices) > 1:
            rows = [list(range(index, index + len(indices))) for index in free]
            self.require(indices in rows or not any(set(row) <= set(free) for row in rows), f"{indices} is torn apart")
        self.running[test] = attempt
        self.exits.pop(test, None)
        if self.random.random() < 0.01:
            self.later(self.random.choice([0.0, 0.1, 1.0]), Broken(test, "broken"))
        else:
            seconds = self.random.choice([0.0, 1.0, 3.0, 8.0, 25.0])
            self.end_in(test, seconds, self.random.choice([0, 0, 0, 0, 1, -11, 137]))

    def on_kill(self, action: Kill, event: Any) -> None:
        attempt, test = action.attempt, action.attempt.test
        self.require(self.running.get(test) is attempt, f"{test.label} is signalled while it is not there")
        self.require(not action.stacks or isinstance(event, Tick), "stacks are asked for")
        if action.stacks.startswith("did not end in"):
            late = test.timeout is not None and self.now >= attempt.began + test.timeout
            self.require(late, f"{test.label} is killed too soon")
            self.require(attempt not in self.ending, f"{test.label} is told twice")
            self.ending[attempt] = Outcome.TIMEOUT
        self.ending.setdefault(attempt, Outcome.INTERRUPTED)
        self.told.setdefault(attempt, self.now)
        if action.signum != signal.SIGKILL:
            if self.random.random() < 0.5:       # the others do not listen
                self.end_in(test, self.random.choice([0.0, 1.0, 4.0]), self.random.choice([0, 1, -15]))
            return
        self.killed[attempt] = self.now
        if self.random.random() < 0.7:
            self.end_in(test, 0.0, -9)
        else:                                    # it hangs in the kernel, for ever or for long
            self.exits.pop(test, None)
            if self.random.random() < 0.5:
                self.end_in(test, STUCK_S * 2, -9)

    def on_quarantine(self, action: Quarantine, _event: Any) -> None:
        self.require(action.sick.device.index not in self.lost and bool(action.sick.device.token), "no GPU is lost")
        self.lost.add(action.sick.device.index)

    def on_retry(self, action: Retry, event: Any) -> None:
        result = action.result
        self.check_result(result, event)
        self.require(result.outcome.can_be_retried and not self.schedule.stopped, f"{result.outcome} is retried")
        self.require(result.attempt <= self.options.retries + 1, f"{result.test.label} is retried too often")

    def on_conclude(self, action: Conclude, event: Any) -> None:
        result, test = action.result, action.result.test
        stopped = self.schedule.stopped
        self.require(test not in self.outcomes, f"{test.label} has two outcomes")
        self.outcomes[test] = result.outcome
        if not action.is_news:
            self.require(result is self.results[test][-1], f"{test.label} is known, but not so")
            self.require(stopped or test.gpus > self.gpus - len(self.lost), f"{test.label} is not retried")
        elif test in self.running:
            if "cannot be killed" in result.reason:
                is_due = self.now >= self.killed[self.running[test]] + STUCK_S
                self.require(is_due, "a test is abandoned too soon")
            self.check_result(result, event)
            left = result.outcome.can_be_retried and result.attempt <= self.options.retries
            forced = stopped or "cannot be killed" in result.reason or test.gpus > self.gpus - len(self.lost)
            self.require(forced or not left, f"{test.label} is not retried")
        else:
            self.results[test].append(result)
            wide = max(self.gpus, 1) - len(self.lost) < test.gpus < ALL_GPUS
            failed = {label for other, ended in self.outcomes.items() for label in [other.label] if ended.is_failure}
            why = {Outcome.UNRUNNABLE: wide, Outcome.BLOCKED: bool(failed.intersection(test.attributes.after)),
                   Outcome.NOT_RUN: stopped}
            self.require(why.get(result.outcome, False), f"{test.label} is {result.outcome}")

    def check_result(self, result: Result, event: Any) -> None:
        """How a running attempt has ended."""
        test, attempt = result.test, self.running.pop(result.test)
        self.results[test].append(result)
        self.require((result.lease, result.attempt) == (attempt.lease, attempt.number), "it is of another attempt")
        if isinstance(event, Broken):
            expected = {Outcome.NOT_RUN}
        elif self.told.get(attempt, math.inf) <= getattr(event, "ended", self.now):
            expected = {self.ending[attempt]}
        elif event.status:
            expected = {{1: Outcome.FAILED}.get(event.status, Outcome.CRASHED)}
        elif event.junit_failures or (event.leaked and self.options.leaks == "fail"):
            expected = {Outcome.FAILED}
        else:                                    # one attempt may not count: the GPU was broken
            expected = {Outcome.PASSED, Outcome.FLAKY} - {[Outcome.FLAKY, Outcome.PASSED][attempt.number > 2]}
            expected |= {Outcome.PASSED, Outcome.FLAKY} if attempt.number == 2 else set()
        self.require(result.outcome in expected, f"{test.label} is {result.outcome}, not {expected}")

    def check_end(self) -> None:
        """Every test has one outcome, all that was lent is back, and nothing more is to happen."""
        self.require(set(self.outcomes) == set(self.tests), "a test has no outcome")
        known = {test: list(results) for test, results in self.schedule.results.items()}
        self.require(known == self.results, "the results are others")
        ends = {test: ended[-1].outcome for test, ended in self.results.items()}
        self.require(ends == self.outcomes, "the last result is not the outcome")
        self.require(self.schedule.deadline() == math.inf or bool(self.options.deadline), "there is one more deadline")
        size = max(self.gpus, 1) - len(self.lost)
        rest = self.schedule.pool.take(ALL_GPUS)
        self.require(not size or (rest is not None and len(rest.devices) == size), "a lease is not given back")
        reason = (self.schedule.failure, self.schedule.interrupts, self.schedule.is_overdue, self.options.fail_fast)
        self.require(any(reason) or not self.schedule.stopped, "the run has stopped for no reason")
        self.seen.update(["failure"] * bool(self.schedule.failure), ["overdue"] * self.schedule.is_overdue)


class PropertyTest(unittest.TestCase):
    def test_the_rules_hold_for_random_schedules(self) -> None:
        outcomes: Set[Outcome] = set()
        seen: Set[str] = set()
        for seed in range(SEEDS):
            simulation = Simulation(seed)
            try:
                simulation.run()
            except AssertionError as error:
                told = [(test.label, test.gpus, test.barrier, test.attributes) for test in simulation.order]
                self.fail(f"seed {seed}, {simulation.gpus} GPUs, {simulation.jobs} jobs, tests {told}: {error}")
            outcomes.update(simulation.outcomes.values())
            seen |= simulation.seen
        self.assertEqual(outcomes, {outcome for outcome in Outcome if not outcome.is_excused} - {Outcome.DEFERRED})
        self.assertEqual(seen, {"Launch", "Retry", "Kill", "Quarantine", "Conclude", "failure",
                                "overdue"})


if __name__ == "__main__":
    unittest.main()
