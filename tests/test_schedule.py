"""Sections 2, 4 and 6, without a process or a clock: events go in, actions are looked at."""
from __future__ import annotations

import heapq
import math
import random
import signal
import unittest
from typing import Any, Dict, List, Optional, Set, Tuple

import run_tests
from run_tests import (ALL_GPUS, Begin, Broken, Conclude, Exited, Interrupt, Kill, Launch, Outcome, Started, Test, Tick,
                       death_of, outcome_of, select)


def a_test(index: int = 0, label: str = "", **values: Any) -> Test:
    """A Test with as little in it as may be; `values` are its other fields."""
    label = label or f"t{index}"
    defaults = {"key": f"{index:012x}", "stem": label, "file": "tests.txt", "line": index + 1, "command": "true",
                "shell": run_tests.Shell((), 0, 0), "barrier": 0, "gpus": 1.0, "timeout": None, "junit": None,
                "announces": False}
    return Test(index=index, label=label, **{**defaults, **values})


def tests_of(text: str) -> List[Test]:
    """Tests from words `label[:need[:timeout]]`; a `|` is a barrier."""
    tests: List[Test] = []
    barrier = 0
    for word in text.split():
        if word == "|":
            barrier += 1
            continue
        label, need, timeout = (word + "::").split(":")[:3]
        tests.append(a_test(len(tests), label, barrier=barrier, timeout=float(timeout) if timeout else None,
                            gpus=run_tests.parse_gpus(need or "1")))
    return tests


def schedule_of(tests: List[Test], gpus: int, jobs: int, sequential: bool, **options: Any) -> run_tests.Schedule:
    """A Schedule for tests on `gpus` devices."""
    pool = run_tests.Pool([run_tests.Device(index, str(index)) for index in range(gpus)])
    return run_tests.Schedule(select(tests, gpus), pool, run_tests.Options((), **options), jobs, sequential)


class Play:
    """A schedule fed by words, whose actions are told in words.

    Events: `begin`, `start a`, `exit a [status]`, `break a`, `tick`, `SIGINT` and other signals; `@5` before one
    is its time. Actions: `a on GPU 0,1`, `SIGTERM a`, `a passed`. Unless `slow`, a launched test has started.
    """

    def __init__(self, tests: str, *, gpus: int, jobs: int, sequential: bool, slow: bool, **options: Any) -> None:
        self.tests = {test.label: test for test in tests_of(tests)}
        self.schedule = schedule_of(list(self.tests.values()), gpus, jobs, sequential, **options)
        self.slow, self.at = slow, 0.0
        self.results: Dict[str, run_tests.Result] = {}
        self.leases: Dict[str, run_tests.Lease] = {}

    def event(self, text: str) -> Any:
        words = text.split()
        if words[0].startswith("@"):
            self.at = float(words.pop(0)[1:])
        name, test = words[0], self.tests.get(words[1]) if len(words) > 1 else None
        if name.startswith("SIG"):
            return Interrupt(self.at, signal.Signals[name])
        if name == "exit":
            return Exited(self.at, test, int(words[2]) if len(words) > 2 else 0, "")
        return {"begin": Begin(self.at), "tick": Tick(self.at), "start": Started(self.at, test, None),
                "break": Broken(self.at, test, "no log")}[name]

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
            else:
                told.append(f"{action.result.test.label} {action.result.outcome.value}")
                self.results[action.result.test.label] = action.result
        return told


class ScheduleCase(unittest.TestCase):
    def play(self, tests: str, script: str, *, gpus: int = 2, jobs: int = 2, sequential: bool = False,
             slow: bool = False, done: bool = True, **options: Any) -> Play:
        """Hold a script of `event > action; action` lines against a schedule; at its end all is `done`."""
        play = Play(tests, gpus=gpus, jobs=jobs, sequential=sequential, slow=slow, **options)
        for line in script.strip().splitlines():
            event, _, expected = line.partition(">")
            told = play.step(event.strip())
            self.assertEqual("; ".join(told), expected.strip(), f"after {event.strip()!r}")
        self.assertEqual(play.schedule.done, done)
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

    def test_a_wide_test_is_not_overtaken(self) -> None:
        self.play("a b c:2 d e", """
            begin   > a on GPU 0; b on GPU 1
            exit b  > b passed
            exit a  > a passed; c on GPU 0,1
            exit c  > c passed; d on GPU 0; e on GPU 1
            exit d  > d passed
            exit e  > e passed
        """)

    def test_one_end_starts_all_that_fit(self) -> None:
        self.play("a:3 b c:2 d", """
            begin   > a on GPU 0,1,2
            exit a  > a passed; b on GPU 0; c on GPU 1,2
            exit c  > c passed; d on GPU 1
            exit d  > d passed
            exit b  > b passed
        """, gpus=3)

    def test_slot_numbers_are_the_lowest_free(self) -> None:
        play = self.play("a b c d:0", """
            begin   > a on GPU 0; b on GPU 1; d on CPU
            exit a  > a passed; c on GPU 0
        """, done=False)
        self.assertEqual({label: lease.slot for label, lease in play.leases.items()}, {"a": 0, "b": 1, "c": 0, "d": 2})

    def test_all_gpus_run_alone(self) -> None:
        cases = {
            "after GPU and CPU tests, before others": ("a w:all b c:0 d:0 e:0", """
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
            "while CPU tests run": ("a:2 w:all c:0 d:0 e:0", """
                begin   > a on GPU 0,1
                exit a  > a passed; w on GPU 0,1
                exit w  > w passed; c on CPU; d on CPU
            """),
            "that come up while CPU tests run": ("a:2 b w:all c:0 d:0 e:0 f:0", """
                begin   > a on GPU 0,1; c on CPU; d on CPU
                exit c  > c passed; e on CPU
                exit a  > a passed; b on GPU 0
                exit b  > b passed
                exit d  > d passed
                exit e  > e passed; w on GPU 0,1
                exit w  > w passed; f on CPU
            """),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, done=False)

    def test_without_a_gpu_one_test_at_a_time_still_runs(self) -> None:
        self.play("a b c:0 w:all", """
            begin   > a on CPU; c on CPU
            exit a  > a passed; b on CPU
            exit c  > c passed
            exit b  > b passed; w on CPU
            exit w  > w passed
        """, gpus=0)


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
        play = self.play("x:0 y:0 a:2", "begin > a on GPU 0,1; x on CPU; y on CPU", done=False)
        self.assertEqual([play.leases[label].devices for label in "xy"], [(), ()])


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
                self.play(tests, script, done=False)


class SequentialTest(ScheduleCase):
    def test_one_at_a_time_in_list_order(self) -> None:
        for gpus, place in ((1, "GPU 0"), (0, "CPU")):
            with self.subTest(gpus=gpus):
                self.play("a x:0 w:all | y:0 b", f"""
                    begin   > a on {place}
                    exit a  > a passed; x on CPU
                    exit x  > x passed; w on {place}
                    exit w  > w passed; y on CPU
                    exit y  > y passed; b on {place}
                    exit b  > b passed
                """, gpus=gpus, jobs=1, sequential=True)


class UnrunnableTest(ScheduleCase):
    def test_it_is_concluded_first_and_says_why(self) -> None:
        play = self.play("a v:3 w:4", "begin > v unrunnable; w unrunnable; a on GPU 0\nexit a > a passed")
        self.assertEqual(play.results["w"].reason, "needs 4 GPUs, more than there are")
        self.assertEqual((play.results["w"].status, play.results["w"].lease), (None, None))

    def test_nothing_else_is_done_at_once(self) -> None:
        self.play("w:3", "begin > w unrunnable")

    def test_select_parts_tests_by_what_fits(self) -> None:
        cases = {  # GPUs: what runs, what cannot
            0: ("a x w", "b c"), 1: ("a x w", "b c"), 2: ("a b x w", "c"), 3: ("a b c x w", ""), 8: ("a b c x w", ""),
        }
        tests = tests_of("a b:2 c:3 x:0 w:all")
        for gpus, expected in cases.items():
            with self.subTest(gpus=gpus):
                selection = select(tests, gpus)
                self.assertEqual(tuple(" ".join(test.label for test in part) for part in selection), expected)


class TimeoutTest(ScheduleCase):
    def test_sigterm_at_the_deadline_sigkill_after_grace(self) -> None:
        play = self.play("a:1:30", """
            @10 begin      > a on GPU 0
            @39 tick       >
            @40 tick       > SIGTERM a
            @49 tick       >
            @50 tick       > SIGKILL a
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
        play = Play("a:1:5 b:1:3 c", gpus=3, jobs=1, sequential=False, slow=False, grace=2.0)
        seen = [play.schedule.deadline()]
        for event in ("begin", "@3 tick", "@5 tick", "exit b", "@7 tick", "exit a", "exit c"):
            play.step(event)
            seen.append(play.schedule.deadline())
        self.assertEqual(seen, [math.inf, 3.0, 5.0, 7.0, 7.0, math.inf, math.inf, math.inf])


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
            "a test that cannot run": ("a w:2 v:3 b", "begin > w unrunnable; a not run; b not run; v unrunnable"),
            "not a pass": ("a b", "begin > a on GPU 0\nexit a > a passed; b on GPU 0\nexit b > b passed"),
        }
        for name, (tests, script) in cases.items():
            with self.subTest(name):
                self.play(tests, script, gpus=1, fail_fast=True)

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
        play = Play("a b", gpus=2, jobs=1, sequential=False, slow=True)
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


OUTCOME_BY_STATUS = {0: Outcome.PASSED, 1: Outcome.FAILED, -11: Outcome.CRASHED, 137: Outcome.CRASHED}


class Simulation:
    """Random tests on a random machine, on a virtual clock, with a check of every rule after every event."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gpus, self.jobs = self.random.randrange(5), self.random.randint(1, 3)
        self.sequential = self.gpus <= 1 and self.random.random() < 0.7
        self.grace = self.random.choice([0.0, 2.0, 5.0])
        self.tests = self.random_tests(self.random.randint(1, 14))
        self.schedule = schedule_of(self.tests, self.gpus, self.jobs, self.sequential, grace=self.grace,
                                    fail_fast=self.random.random() < 0.1)
        self.now, self.serial = 0.0, 0
        self.agenda: List[Tuple[float, int, Any]] = []       # a heap of what will happen by itself
        self.leases: Dict[Test, run_tests.Lease] = {}        # of tests between Launch and Conclude
        self.started: Dict[Test, float] = {}
        self.ends: Dict[Test, float] = {}                    # when a process ends as things stand
        self.causes: Dict[Test, Outcome] = {}                # why a test is being ended
        self.launched: List[Test] = []
        self.outcomes: Dict[Test, Outcome] = {}
        self.stopped = False
        if self.random.random() < 0.2:
            for _ in range(self.random.randint(1, 3)):
                signum = self.random.choice([signal.SIGINT, signal.SIGTERM])
                self.later(self.random.uniform(0, 30), Interrupt(0, signum))

    def random_tests(self, count: int) -> List[Test]:
        barrier, tests = 0, []
        for index in range(count):
            barrier += self.random.choice([0, 0, 0, 0, 1, 2])
            tests.append(a_test(index, barrier=barrier, timeout=self.random.choice([None, None, 1.0, 4.0, 20.0]),
                                gpus=self.random.choice([0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0, ALL_GPUS])))
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
            self.require(self.serial < 1000, "no end in sight")
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
        self.require(len(self.schedule.pool.devices) == max(self.gpus, 1), "a lease is not given back")
        self.require(self.schedule.deadline() == math.inf, "there is a deadline after the end")

    def happen(self, event: Any) -> None:
        """Feed what the agenda held, unless it has been overtaken."""
        if isinstance(event, Exited) and self.ends.get(event.test) != self.now:
            return
        self.feed(event._replace(at=self.now))

    def feed(self, event: Any) -> None:
        if isinstance(event, Started):
            self.started[event.test] = self.now
            status = self.random.choice([0, 0, 0, 0, 1, -11, 137])
            self.end_in(event.test, self.random.choice([0.0, 1.0, 3.0, 8.0, 25.0]), status)
        if isinstance(event, (Interrupt, Broken)):
            self.stopped = True
            for test in self.leases:
                self.causes.setdefault(test, Outcome.INTERRUPTED)
        for action in self.schedule.step(event):
            if isinstance(action, Launch):
                self.on_launch(action)
            elif isinstance(action, Kill):
                self.on_kill(action, event)
            else:
                self.on_conclude(action, event)
        self.check_nothing_waits_in_vain()

    def end_in(self, test: Test, seconds: float, status: int) -> None:
        """A process will end then, if it does not end before."""
        if self.now + seconds < self.ends.get(test, math.inf):
            self.ends[test] = self.now + seconds
            self.later(seconds, Exited(0, test, status, ""))

    def on_launch(self, action: Launch) -> None:
        test, lease = action.test, action.lease
        self.require(test not in self.launched and test not in self.outcomes, f"{test.label} starts twice")
        self.require(not self.stopped, f"{test.label} starts after the run was stopped")
        held = {device for other in self.leases.values() for device in other.devices}
        self.require(held.isdisjoint(lease.devices), f"{test.label} gets a device that is held")
        places = max(self.gpus, 1)
        self.require(len(lease.devices) == min(test.gpus, places), f"{test.label} gets {lease.devices}")
        slots = 1 if self.sequential else places + self.jobs
        self.require(lease.slot in range(slots), f"slot {lease.slot} of {slots}")
        self.require(lease.slot not in [other.slot for other in self.leases.values()], f"slot {lease.slot} twice")
        for other in self.tests:
            self.require(other.barrier >= test.barrier or other in self.outcomes, f"{test.label} passes a barrier")
        for other in self.launched:      # each line in list order; one line where all is sequential
            same_line = self.sequential or (other.gpus > 0) == (test.gpus > 0)
            self.require(not same_line or other.index < test.index, f"{test.label} is overtaken by {other.label}")
        self.leases[test] = lease
        self.launched.append(test)
        alone = [other for other in self.leases if self.sequential or other.gpus == ALL_GPUS]
        self.require(not alone or len(self.leases) == 1, f"{test.label} starts beside {alone}")
        on_cpu = [other for other in self.leases if other.gpus == 0]
        self.require(len(on_cpu) <= self.jobs, f"{len(on_cpu)} tests on {self.jobs} CPU slots")
        begins = Broken(0, test, "broken") if self.random.random() < 0.01 else Started(0, test, None)
        self.later(self.random.choice([0.0, 0.1, 1.0]), begins)

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
        self.outcomes[test] = result.outcome
        if isinstance(event, Exited) and event.test is test:
            expected: Optional[Outcome] = self.causes.get(test) or OUTCOME_BY_STATUS[event.status]
            self.require(result.status == event.status, "the status is another")
            self.require(result.seconds == self.now - self.started[test], "the duration is another")
            self.require(result.lease is self.leases.pop(test), "the lease is another")
            in_time = test.timeout is None or self.now <= self.started[test] + test.timeout
            self.require(in_time or test in self.causes, f"{test.label} outlived its timeout")
        elif isinstance(event, Broken) and event.test is test:
            self.leases.pop(test)
            expected = Outcome.NOT_RUN
        else:
            self.require(test not in self.launched, f"{test.label} is concluded while it runs")
            too_wide = max(self.gpus, 1) < test.gpus < ALL_GPUS
            expected = Outcome.UNRUNNABLE if too_wide else Outcome.NOT_RUN
        self.require(result.outcome is expected, f"{test.label} is {result.outcome}, not {expected}")
        self.stopped = self.stopped or (self.schedule.options.fail_fast and result.outcome.is_failure())
        self.require(self.stopped or expected is not Outcome.NOT_RUN, f"{test.label} does not run")

    def check_nothing_waits_in_vain(self) -> None:
        """No test waits that might run: a waiting one lacks devices, a CPU slot, its barrier or its solitude."""
        waiting = [test for test in self.tests if test not in self.launched and test not in self.outcomes]
        if self.stopped:
            self.require(not waiting, f"{waiting} wait for nothing")
            return
        first_barrier = min((test.barrier for test in self.tests if test not in self.outcomes), default=0)
        ready = [test for test in waiting if test.barrier == first_barrier]
        gpu_ready = [test for test in ready if test.gpus > 0 or self.sequential][:1]
        cpu_ready = [test for test in ready if test.gpus == 0 and not self.sequential][:1]
        alone = any(self.sequential or test.gpus == ALL_GPUS for test in self.leases)
        free = max(self.gpus, 1) - sum(len(lease.devices) for lease in self.leases.values())
        for test in gpu_ready:
            must_be_alone = self.sequential or test.gpus == ALL_GPUS
            fits = not self.leases if must_be_alone else test.gpus <= free
            self.require(alone or not fits, f"{test.label} could run on the GPU")
        held_back = any(test.gpus == ALL_GPUS for test in gpu_ready)
        on_cpu = sum(test.gpus == 0 for test in self.leases)
        for test in cpu_ready:
            self.require(alone or held_back or on_cpu >= self.jobs, f"{test.label} could run on the CPU")


class PropertyTest(unittest.TestCase):
    def test_the_rules_hold_for_random_schedules(self) -> None:
        seen: Set[Outcome] = set()
        for seed in range(500):
            simulation = Simulation(seed)
            try:
                simulation.run()
            except AssertionError as error:
                told = [(test.label, test.gpus, test.barrier) for test in simulation.tests]
                self.fail(f"seed {seed}, {simulation.gpus} GPUs, {simulation.jobs} jobs, tests {told}: {error}")
            seen.update(simulation.outcomes.values())
        self.assertEqual(seen, {Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.UNRUNNABLE,
                                Outcome.INTERRUPTED, Outcome.NOT_RUN})


if __name__ == "__main__":
    unittest.main()
