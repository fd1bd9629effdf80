"""qa/timeline.py: what it derives, held against the scheduler that made the journal; its files; its command line."""
from __future__ import annotations

import collections
import contextlib
import heapq
import html.parser
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import unittest
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
from unittest import mock
from xml.etree import ElementTree

import run_tests
from run_tests import Begin, Cause, Conclude, Exited, Launch, Options, Retry
from tests.support import ROOT, RunnerCase, interrupted, listed

sys.path.insert(0, os.path.join(ROOT, "qa"))

import timeline

SCRIPT = os.path.join(ROOT, "qa", "timeline.py")
SEEDS = [*range(150), 3840]      # of simulated runs; in the last a blocked test opens a barrier
DAY = 1_700_000_000.0            # when the runs of these tests begin
HOSTILE = ["</script><script>alert(1)</script>", "<b>\"q\" 'x' & &amp;", "\u6d4b\u8bd5\u7528\u4f8b" * 9,
           "a\x00\x1b[31m\x85b", "right\u202eleft", "half \ud800 \udcff", "@SCRIPT@ @BODY@ {x} %s", "]]> --> */ ${x}",
           "tests/a b/c.py::d[/x/y]", ""]

OTHERS = {kind: kind for kind in ("lock", "after", "barrier")}       # what a test can wait for besides room

Record = Dict[str, Any]


def started(label: str, at: float, gpus: Sequence[str] = ("0",), attempt: int = 1, run: str = "r1") -> Record:
    return {"event": "test_start", "run": run, "time": DAY + at, "test": "0", "label": label, "attempt": attempt,
            "slot": 0, "gpus": list(gpus), "log": f"logs/{label}.log"}


def ended(label: str, at: float, seconds: float, outcome: str = "passed", attempt: int = 1, run: str = "r1",
          **values: Any) -> Record:
    status = {"passed": 0, "flaky": 0, "failed": 1, "crashed": -11, "timeout": -15}.get(outcome)
    return {"event": "test_end", "run": run, "time": DAY + at, "test": "0", "label": label, "attempt": attempt,
            "outcome": outcome, "status": status, "signal": "SIGSEGV" if outcome == "crashed" else None,
            "seconds": seconds, "need": 1, **values}


def a_run(*events: Record, end: Optional[float] = None, gpus: Sequence[str] = ("0", "1"), run: str = "r1",
          at: float = 0.0, **values: Any) -> List[Record]:
    """A run's events in the order of time; `end` in seconds from its start, None if it has none."""
    labels = {event["label"] for event in events}
    start = {"event": "run_start", "run": run, "time": DAY + at, "lists": ["tests.txt"], "tests": len(labels),
             "commit": None, "gpus": list(gpus), "shard": None, "selected": sorted(labels), "left_out": [], **values}
    last = [] if end is None else [{"event": "run_end", "run": run, "time": DAY + end, "exit": 0, "outcomes": {},
                                    "quarantined": values.get("quarantined", {})}]
    return [start, *sorted(events, key=lambda event: (event["time"], event["event"])), *last]


def text_of(events: Sequence[Record]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def run_of(events: Sequence[Record]) -> timeline.Run:
    """The run of these events."""
    lines = [(number, line.encode()) for number, line in enumerate(text_of(events).splitlines(), 1)]
    run, torn = timeline.make_run(timeline.Journal("x.jsonl", {"r1": lines}), "r1")
    assert not torn
    return run


def story_of(events: Sequence[Record]) -> timeline.Story:
    run = run_of(events)
    return timeline.tell(run, -run.start)


def waits_in(story: timeline.Story) -> Dict[str, str]:
    """By label, what it waited for, in words: `barrier 0-5 a, gpu 5-7`."""
    start = story.run.start
    return {label: ", ".join(f"{wait.kind} {wait.start - start:g}-{wait.end - start:g} {wait.on}".strip()
                             for wait in waits) for label, waits in story.waits.by_label.items()}


def idle_in(story: timeline.Story) -> Dict[str, float]:
    return {reason: round(seconds, 3) for reason, seconds in timeline.idle_time(story.moments).items()}


def path_in(story: timeline.Story) -> List[Tuple[str, int, str]]:
    return [(link.test.label, link.attempt.number, link.why) for link in story.path]


class Simulated:
    """A run by the runner's own scheduler on a virtual clock: its events, and what each test waited for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.gpus = self.random.choice((1, 2, 3, 5))
        self.options = Options(("tests.txt",), jobs=self.random.choice((1, 2)), retries=1,
                               fail_fast=self.random.random() < 0.2)
        words = self.words()
        self.tests = listed(" ".join(words))
        pool = run_tests.make_pool([run_tests.Device(index, str(index)) for index in range(self.gpus)], self.tests,
                                   self.options)
        self.schedule = run_tests.Schedule(self.tests, pool, self.options)
        self.running: List[Tuple[float, int, run_tests.Test, int, float, float]] = []
        self.events: List[Record] = []
        self.waited: Dict[str, List[Tuple[str, float, float]]] = collections.defaultdict(list)
        self.busy = 0.0                  # GPU-seconds
        self.play()

    def words(self) -> Iterator[str]:
        for index in range(self.random.randrange(1, 40)):
            if self.random.random() < 0.08:
                yield "|"
            need = self.random.choice(("0", "0.25", "0.5", "1", "1", "1", "1", "2", "all"))
            if need == "2" and self.gpus < 2:
                need = "1"
            word = f"t{index}:{need}"
            if index and self.random.random() < 0.2:
                word += f"+after=t{self.random.randrange(index)}"
            if self.random.random() < 0.3:
                word += f"+lock={self.random.choice(('x', 'y', 'x,y'))}"
            yield word

    def note(self, event: str, at: float, **values: Any) -> None:
        self.events.append({"event": event, "run": "r1", "time": DAY + at, **values})

    def play(self) -> None:
        """From the first start to the last end."""
        self.note("run_start", 0, lists=["tests.txt"], gpus=[str(gpu) for gpu in range(self.gpus)], shard=None,
                  selected=[test.name for test in self.tests])
        at = 0.0
        event: Any = Begin()
        while True:
            for action in self.schedule.step(event, at):
                self.act(action, at)
            if not self.running:
                break
            self.look(at, self.running[0][0])
            at, _, test, status, over, memory = heapq.heappop(self.running)
            cause = Cause(f"why {status}" if status else "")
            event = Exited(over, test, status, cause=cause, memory=memory)
        self.note("run_end", at, exit=0, outcomes={}, quarantined={})

    def act(self, action: Any, at: float) -> None:
        """Journal what the scheduler does."""
        if isinstance(action, Launch):
            test, lease = action.attempt.test, action.attempt.lease
            over = at + self.random.randrange(1, 20)
            memory = self.random.choice((0, 0, 0, 1))
            end = over + memory + self.random.choice((0, 0, 2))
            heapq.heappush(self.running, (end, test.index, test, int(self.random.random() < 0.15), over, memory))
            self.note("test_start", at, test=test.key, label=test.label, attempt=action.attempt.number, slot=lease.slot,
                      gpus=lease.tokens, log="x")
            self.busy += (end - at) * len(lease.tokens) * lease.shares / run_tests.SHARES
        elif isinstance(action, (Retry, Conclude)) and getattr(action, "is_news", True):
            record = mock.Mock(note=lambda event, **values: self.note(event, at, **values))
            run_tests.Record.attempt_end(record, action.result)

    def waits_of(self, label: str) -> List[Tuple[str, float, float]]:
        """What a test waited for; not behind its last end: of a retry that the run's end forbade, no journal tells."""
        ends = [event["time"] - DAY for event in self.events
                if event["event"] == "test_end" and event["label"] == label]
        return [span for span in self.waited[label] if span[1] < max(ends)]

    def look(self, begin: float, end: float) -> None:
        """Note what the waiting tests wait for until the next event."""
        schedule = self.schedule
        above = min((test.barrier for test in [*schedule.running, *schedule.waiting]), default=0)
        for test, ahead in schedule.waiting.items():
            kind = "room"
            if test.barrier > above:
                kind = "barrier"
            elif ahead:
                kind = "after"
            elif not schedule.locked.isdisjoint(test.attributes.lock):
                kind = "lock"
            if end > begin:
                self.waited[test.label].append((kind, begin, end))


class SimulatedRunsTest(unittest.TestCase):
    """What is derived from a journal is what the scheduler that wrote it has done."""

    stories: Sequence[Tuple[Simulated, timeline.Story]]

    @classmethod
    def setUpClass(cls) -> None:
        runs = list(map(Simulated, SEEDS))
        cls.stories = [(simulated, story_of(simulated.events)) for simulated in runs]

    def test_waits(self) -> None:
        """What each test waited for, how long in all; and at each moment, how many waited for what."""
        kinds: Dict[str, int] = collections.Counter()
        for simulated, story in self.stories:
            for label, spent in story.waits.spent.items():
                derived: Dict[str, float] = collections.Counter()
                for (kind, _), seconds in spent.items():
                    derived[OTHERS.get(kind, "room")] += round(seconds, 3)
                    kinds[kind] += 1
                known: Dict[str, float] = collections.Counter()
                for kind, start, end in simulated.waits_of(label):
                    known[kind] += end - start
                self.assertEqual(derived, known, (simulated.seed, label))
            known_spans = [span for test in simulated.tests for span in simulated.waits_of(test.label)]
            for moment in story.moments:
                now = (moment.start + moment.end) / 2 - DAY
                there = collections.Counter(kind for kind, start, end in known_spans if start < now < end)
                shown: Dict[str, float] = collections.Counter()
                for kind, number in moment.waiting.items():
                    shown[OTHERS.get(kind, "room")] += number
                self.assertEqual({kind: number for kind, number in shown.items() if number}, there, simulated.seed)
        self.assertEqual(set(kinds), {"gpu", "wide", "cpu", "turn", "lock", "after", "barrier"})

    def test_each_gpu_second_is_spent_once(self) -> None:
        """Busy time is that of the leases; whatever could start did, so the runner itself is never the reason."""
        for simulated, story in self.stories:
            idle = timeline.idle_time(story.moments)
            busy = timeline.gpu_seconds(story.moments)
            self.assertAlmostEqual(busy, simulated.busy, 3)
            self.assertAlmostEqual(busy + math.fsum(idle.values()), simulated.gpus * story.run.seconds, 3)
            self.assertNotIn("handover", idle)
            self.assertLessEqual(set(idle), set(timeline.IDLE))

    def test_the_critical_path_has_no_gap(self) -> None:
        """On a virtual clock a test begins in the very moment in which what it waited for ends."""
        for _, story in self.stories:
            ends = [story.run.start, *(link.attempt.released for link in story.path)]
            self.assertEqual([link.attempt.began for link in story.path], ends[:-1])
            self.assertEqual(ends[-1], max(each.released for _, each in story.run.attempts))

    def test_lanes_and_slices_do_not_overlap(self) -> None:
        """Each attempt has one on each of its GPUs, and CPU tests have theirs."""
        for _, story in self.stories:
            drawn = [(lane.name.partition(" #")[0], test.label, attempt.number)
                     for lane in story.lanes for test, attempt in lane.attempts]
            there = [(f"GPU {gpu}" if gpu else "CPU", test.label, attempt.number)
                     for test, attempt in story.run.attempts for gpu in attempt.gpus or ("",)]
            self.assertEqual(sorted(drawn), sorted(there))
            slices: Dict[Any, List[Tuple[int, int]]] = {}
            for event in json.loads(timeline.trace_of([story]))["traceEvents"]:
                if event["ph"] == "X":
                    slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
            for track in slices.values():
                for (start, duration), (following, _) in zip(sorted(track), sorted(track)[1:]):
                    self.assertLessEqual(start + duration, following)


class WaitsTest(unittest.TestCase):
    """What tests waited for, why GPUs were idle, what the run depended on: where a simulation does not reach."""

    def test_a_script_says_not_when_it_came_to_a_test(self) -> None:
        """A wait counts only while there was no room; a GPU that is idle before the last start waits for the script."""
        story = story_of(a_run(started("a", 1), ended("a", 5, 4), started("b", 1, ["1"]), ended("b", 4, 3),
                               started("c", 4, ["1"]), ended("c", 6, 2), started("d", 8), ended("d", 9, 1),
                               end=10, selected=[]))
        self.assertEqual(waits_in(story), {"a": "", "b": "", "c": "gpu 1-4", "d": ""})
        self.assertEqual(idle_in(story), {"script": 2 + 1 + 4, "tail": 1 + 2})
        self.assertEqual(path_in(story), [("b", 1, "the script came to it"), ("c", 1, "GPU 1 became free"),
                                          ("d", 1, "the script came to it")])

    def test_a_test_that_bash_ran_itself_has_no_bar(self) -> None:
        story = story_of(a_run(started("a", 1), ended("a", 5, 4), ended("b", 6, 0, "failed"), end=7, selected=[]))
        self.assertEqual([(test.label, len(test.attempts), test.verdict) for test in story.run.tests],
                         [("a", 1, "passed"), ("b", 0, "failed, exit 1")])
        self.assertEqual(waits_in(story)["b"], "")

    def test_a_run_that_was_killed(self) -> None:
        """Its last tests still run; what was selected and never seen waits for what the journal does not say."""
        story = story_of(a_run(started("a", 0), ended("a", 4, 4), started("b", 4), selected=["a", "b", "c", "d"]))
        run = story.run
        self.assertEqual((run.has_ended, run.unseen, run.end - run.start), (False, 2, 4))
        self.assertEqual([test.outcome for test in run.tests], ["passed", "running"])
        self.assertEqual(waits_in(story), {"a": "", "b": "unknown 0-4"})
        self.assertEqual(idle_in(story), {"unknown": 4})
        self.assertIn("2 tests of the run never started", timeline.facts_of(story))

    def test_a_gpu_in_quarantine(self) -> None:
        story = story_of(a_run(started("a", 0), ended("a", 2, 2, "failed"), started("b", 0, ["1"]), ended("b", 9, 9),
                               end=10, quarantined={"0": "lost"}))
        self.assertEqual(idle_in(story), {"lost": 8, "tail": 1})

    def test_moments_of_the_runner_itself(self) -> None:
        """While a test that fits waits, and a GPU is free; a blink is nothing."""
        blink = timeline.BLINK_S / 2
        story = story_of(a_run(started("a", 1), ended("a", 3, 2), started("b", 1, ["1"]), ended("b", 3, 2),
                               started("c", 3 + blink), ended("c", 5, 2 - blink), end=5))
        self.assertEqual(waits_in(story), {"a": "gpu 0-1", "b": "gpu 0-1", "c": f"gpu 0-{3 + blink:g}"})
        self.assertEqual(idle_in(story), {"handover": 2 + 2 * blink, "tail": 2 - blink})

    def test_a_run_without_gpus_has_slots(self) -> None:
        story = story_of(a_run(started("a", 0, []), started("b", 0, []), ended("a", 1, 1, need=0),
                               ended("b", 3, 3, need=0), end=3, gpus=[]))
        self.assertEqual([line[:25] for line in timeline.summary([story])][1:], ["  idle slot time     2.0s"])

    def test_a_lock(self) -> None:
        """A wait is one for it while another test holds it; however often it changes hands, it stays one wait."""
        events = [event for at in range(50) for event in (started(f"t{at}", at, [str(at % 2)]),
                                                          ended(f"t{at}", at + 0.5, 0.5, lock=["x", "y"]))]
        story = story_of(a_run(*events, end=50))
        self.assertEqual(waits_in(story)["t49"], "gpu 0-49")
        self.assertEqual({what: round(seconds, 3) for what, seconds in story.waits.spent["t49"].items()},
                         {("lock", "x, y"): 24.5, ("gpu", ""): 24.5})
        both = story_of(a_run(started("a", 0), ended("a", 4, 4, lock=["x"]),
                              started("b", 4), ended("b", 5, 1, lock=["x"]), end=5))
        self.assertEqual(path_in(both), [("a", 1, "the run began"), ("b", 1, "it got its lock, x")])

    def test_phases_of_an_attempt(self) -> None:
        """Run, sweep, wait for memory; a clock that was set back makes no time negative."""
        story = story_of(a_run(started("a", 0), ended("a", 10, 6, "failed", memory=1.5), started("b", 1, ["1"]),
                               ended("b", 1, 99), end=10))
        phases = {test.label: [round(at - DAY, 3) for at in (each.began, each.ended, each.swept, each.released)]
                  for test, each in story.run.attempts}
        self.assertEqual(phases, {"a": [0, 6, 8.5, 10], "b": [1, 1, 1, 1]})

    def test_a_test_that_was_split(self) -> None:
        """Its parts have run, and it counts as one; what is `after` it has waited for them."""
        first, second = "m (run 2) (part 1 of 2)", "m (run 2) (part 2 of 2)"
        events = a_run(started(first, 0), started(second, 0, ["1"]), ended(first, 2, 2, origin="m"),
                       ended(second, 5, 5, "failed", origin="m"), ended("m (run 2)", 5, 7, "crashed"),
                       started("y (part 1 of 2)", 5), ended("y (part 1 of 2)", 6, 1, after=["m (run 2)"]), end=6,
                       selected=["m", "y", "never"])
        story = story_of(events)
        self.assertEqual([test.label for test in story.run.tests], [first, second, "y (part 1 of 2)"])
        self.assertEqual((story.run.outcomes, story.run.unseen), ({"crashed": 1, "passed": 1}, 1))
        self.assertIn(f"after 0-5 {second}", waits_in(story).values())
        self.assertEqual(timeline.facts_of(story)[0], "2 tests: 1 passed, 1 crashed")

    def test_a_test_that_was_split_in_a_run_that_was_killed(self) -> None:
        """It still runs, and is one, also where some of its parts have ended, or none."""
        names = [f"m (part {number} of 3)" for number in (1, 2, 3)]
        parts = [{**started(name, 0), "log": f"logs/m.parts/{number}.log"} for number, name in enumerate(names, 1)]
        for ends in ([], [ended(names[0], 2, 2, origin="m")]):
            run = run_of(a_run(*parts, *ends, started("y (part 1 of 2)", 1), end=None, selected=["m", "y", "never"]))
            self.assertEqual((run.outcomes, run.unseen, len(run.tests)), ({"running": 2}, 1, 4))
        # A test that is called so, and was one part.
        run = run_of(a_run(parts[0], ended(names[0], 2, 2), ended("m", 2, 2), end=2))
        self.assertEqual((run.outcomes, len(run.tests)), ({"passed": 2}, 2))

    def test_lines_in_another_order_make_no_circle(self) -> None:
        """The end of an attempt may stand before its start, as `tac` or `sort` leave them."""
        events = a_run(started("a", 0), ended("a", 2, 2), started("b", 2), ended("b", 4, 2), end=4)
        self.assertEqual([label for label, _, _ in path_in(story_of(events[::-1]))], ["b"])

    def test_many_steps_become_their_means(self) -> None:
        steps = [(float(at), at + 1.0, {"x": float(at % 2), "y": 1.0}) for at in range(5000)]
        thin = timeline.thinned(steps)
        self.assertEqual(len(thin), timeline.STEPS)
        for _, _, values in thin:
            self.assertAlmostEqual(values["y"], 1)
        self.assertAlmostEqual(sum((end - start) * values["x"] for start, end, values in thin), 2500)


class Reader(html.parser.HTMLParser):
    """Elements of a page, each with what is written in it; fails where one is not closed."""

    VOID = ("meta", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: List[Tuple[str, Dict[str, Optional[str]], List[str]]] = []
        self.elements: List[Tuple[str, Dict[str, Optional[str]], str]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs), []))

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        name, attributes, words = self.open.pop()
        assert name == tag, (name, tag, attributes)
        self.elements.append((tag, attributes, "".join(words)))
        if self.open:
            self.open[-1][2].append("".join(words))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def all(self, tag: str, **attributes: str) -> List[str]:
        """The texts of the elements of a kind with these attributes."""
        return [text for name, has, text in self.elements
                if name == tag and attributes.items() <= has.items()]


def hostile_run() -> List[Record]:
    """Each hostile text as label, cause, lock and GPU of a test."""
    events: List[Record] = []
    for number, text in enumerate(HOSTILE):
        gpus = [text] if text else []
        events += [started(text, 2 * number, gpus), ended(text, 2 * number + 2, 2, "failed", cause=text, lock=[text])]
    return a_run(*events, end=40, gpus=[text for text in HOSTILE if text], lists=HOSTILE, commit=HOSTILE[0],
                 quarantined={HOSTILE[0]: HOSTILE[1]})


class FilesTest(unittest.TestCase):
    """The page, the picture, the trace."""

    def test_the_page_has_all_there_is(self) -> None:
        """Sections that have nothing to say are left out."""
        story = story_of(a_run(
            started("a", 0), ended("a", 6, 4, "failed", cause="assert 2 == 3", memory=1),
            started("a", 6, attempt=2), ended("a", 9, 3, "flaky", attempt=2), started("c", 0, ["1"]), ended("c", 2, 2),
            started("b", 2, ["1"]), ended("b", 3, 1, "crashed", lock=["x"], after=["c"]), end=9))
        page = Reader(timeline.Page([story], ["a note"]).html())
        self.assertEqual(page.all("h2"), ["Why GPUs were idle", "What tests waited for", "Critical path",
                                          "Causes of failures", "Flaky and retried tests", "Slowest tests", "Tests"])
        titles = [text for text in page.all("title") if text.startswith(("a", "b"))]
        self.assertEqual(titles, [
            "a (attempt 1); failed, exit 1; GPU 0, 4.0s from 0.0s; sweep 1.0s; memory wait 1.0s; assert 2 == 3",
            "a (attempt 2); flaky; GPU 0, 3.0s from 6.0s", "b; crashed (SIGSEGV); GPU 1, 1.0s from 2.0s; "
            "had waited: after c 2.0s"])
        cells = [html_text for tag, has, html_text in page.elements if tag == "tr" and (has.get("id") or "") == "t3"]
        self.assertEqual(len(cells), 1)
        self.assertIn("crashed (SIGSEGV)", cells[0])
        self.assertIn("a note", page.all("p", **{"class": "soft"}))
        self.assertEqual(len(page.all("g", **{"data-t": "1"})), 2, "a bar for each attempt")
        quiet = story_of(a_run(started("a", 0), ended("a", 1, 1), end=1, gpus=["0"]))
        page = Reader(timeline.Page([quiet], []).html())
        self.assertEqual(page.all("h2"), ["Critical path", "Slowest tests", "Tests"])

    def test_a_test_that_did_not_run_began_at_no_time(self) -> None:
        """It is sorted by when that was known."""
        story = story_of(a_run(started("a", 0), ended("a", 2, 2, "failed"), ended("b", 2, 0, "blocked"), end=2))
        row = timeline.test_row(story, story.run.tests[1], 2).html()
        self.assertEqual(re.findall('<td class="n" data-v="([^"]*)">(.*?)</td>', row)[:4],
                         [("2", ""), ("2", "2.0s"), ("0", ""), ("0", "")])       # began, waited, ran, was swept

    def test_hostile_texts(self) -> None:
        """They are shown, and are nothing but text; what cannot be seen is written out."""
        story = story_of(hostile_run())
        text = timeline.Page([story], HOSTILE).html()
        self.assertIsNone(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text))
        page = Reader(text)
        self.assertEqual(page.all("script"), [timeline.SCRIPT])
        self.assertEqual(page.all("b"), [])
        first = [text for tag, has, text in page.elements if tag == "td" and has.get("class") == "w"]
        for hostile in HOSTILE:
            self.assertIn(timeline.clean(hostile), first)
        for picture in (timeline.Picture(story).svg(), timeline.Picture(story_of(a_run())).svg()):
            ElementTree.fromstring(picture)
        trace = json.loads(timeline.trace_of([story]))["traceEvents"]
        self.assertLessEqual({timeline.clean(hostile) for hostile in HOSTILE}, {event["name"] for event in trace})

    def test_the_page_needs_nothing_else(self) -> None:
        """No address but names of namespaces; its policy lets no script run but its own."""
        text = timeline.Page([story_of(hostile_run())], []).html()
        self.assertEqual(re.findall(r"https?://[^\"']+|@import|url\(|\bon\w+=", text), [])
        self.assertIn("default-src 'none'", text)

    def test_the_picture_is_of_its_width_and_has_all_lanes(self) -> None:
        root = ElementTree.fromstring(timeline.Picture(story_of(Simulated(7).events)).svg())
        width = float(root.attrib["width"])
        self.assertEqual(width, timeline.PICTURE_PX)
        edges = [float(each.attrib["x"]) + float(each.attrib["width"]) for each in root.iter()
                 if each.tag.endswith("rect")]
        self.assertLessEqual(max(edges), width)
        self.assertIn("prefers-color-scheme: dark", "".join(root.itertext()))

    def test_counters_of_the_trace(self) -> None:
        """They follow what the GPUs do and the tests wait for, and end at zero."""
        story = story_of(a_run(started("a", 0), ended("a", 2, 2), started("b", 2), ended("b", 3, 1), end=3))
        counters = [(event["ts"], event["name"], event["args"])
                    for event in json.loads(timeline.trace_of([story]))["traceEvents"] if event["ph"] == "C"]
        self.assertEqual(counters, [
            (0, "GPUs", {"run": 1, "sweep": 0, "idle": 1}), (0, "tests waiting for", {"gpu": 1}),
            (2_000_000, "tests waiting for", {"gpu": 0}), (3_000_000, "GPUs", {"run": 0, "sweep": 0, "idle": 0})])

    def test_ticks_are_round_and_few(self) -> None:
        for length in (0.003, 0.9, 7, 59, 61, 800, 5000, 40_000, 1e6, 9e9):
            ticks = timeline.Axis(float(length), 0.0).ticks()
            self.assertLessEqual(len(ticks), timeline.TICKS + 1)
            self.assertGreater(len(ticks), 1)
            self.assertLessEqual(max(place for place, _ in ticks), 1 + 1e-9)
        self.assertEqual([text for _, text in timeline.Axis(5400.0, 0.0).ticks()],
                         ["0s", "15m", "30m", "45m", "1h", "1h15m", "1h30m"])


class CommandLineTest(RunnerCase):
    """The command line, from the journal to the files."""

    def call(self, *arguments: str, stdin: bytes = b"") -> Tuple[int, str, str]:
        """Exit code, stdout, stderr; in the test's folder."""
        ran = subprocess.run([sys.executable, "-S", SCRIPT, *arguments], cwd=self.folder, input=stdin, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return ran.returncode, ran.stdout.decode(), ran.stderr.decode()

    def main(self, *arguments: str) -> Tuple[int, str, str]:
        """The same in this process, for what costs no start: paths are whole."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = timeline.main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
        out.flush()
        return code, out.buffer.getvalue().decode(), err.getvalue()    # type: ignore[attr-defined]

    def trace(self, *arguments: str) -> Dict[int, List[str]]:
        """The labels in the trace, by machine."""
        code, out, err = self.main(*arguments, "--trace", "-")
        self.assertEqual((code, err), (0, ""))
        found: Dict[int, List[str]] = {}
        for event in json.loads(out)["traceEvents"]:
            if event["ph"] == "X":
                found.setdefault(event["pid"], []).append(event["name"])
        return found

    def one(self, name: str, label: str, at: float, **values: Any) -> List[Record]:
        """A run of one test."""
        return a_run(started(label, at, run=name), ended(label, at + 5, 5, run=name), end=at + 5, run=name, at=at,
                     **values)

    def test_a_real_run(self) -> None:
        """Beside the journal there is the page; --trace and --svg come without one."""
        ran = self.run_list("true #: label=a\nfalse #: label=b lock=x\nwait\ntrue #: label=c gpus=0 after=a\n")
        self.assertEqual(ran.code, 1)
        code, out, err = self.call()
        self.assertEqual((code, err), (0, ""))
        self.assertIn("tests.txt: 3 tests: 2 passed, 1 failed; ", out)
        self.assertTrue(out.endswith("\nwrote logs/timeline.html\n"), out)
        page = Reader(ran.read("logs/timeline.html"))
        self.assertEqual(len([1 for tag, has, _ in page.elements if tag == "tr" and "data-s" in has]), 3)
        self.assertEqual(self.call("logs", "--trace", "t.json", "--svg", "t.svg")[0], 0)
        self.assertEqual({"t.json", "t.svg", "logs", "tests.txt"}, set(os.listdir(self.folder)))
        json.loads(ran.read("t.json"))

    def test_runs_of_scripts_and_without_gpus(self) -> None:
        self.write("test.sh", "test_fail() { RET=1; }\ntrue || test_fail a\nfalse || test_fail b\nexit 0\n")
        for gpus in ("0,1", ""):
            with self.subTest(gpus=gpus):
                self.run_command("test.sh", "--log-dir", "script", gpus=gpus)
                self.run_list("true #: label=a\ntrue #: gpus=0 label=b\n", "--log-dir", "list", gpus=gpus)
                for folder in ("script", "list"):
                    code, out, err = self.call(folder, "--html", "page.html", "--svg", "a.svg", "--trace", "a.json")
                    self.assertEqual((code, err), (0, ""))
                    self.assertIn("2 GPUs" if gpus else "slot", out)

    def test_which_run(self) -> None:
        """The last by default; a number from either end, or the start of an id."""
        path = self.write("j.jsonl", text_of([*self.one("r1-a", "one", 0), *self.one("r2-b", "two", 90),
                                              *self.one("r2-c", "three", 190)]))
        cases = {(): ["three"], ("1",): ["one"], ("-2",): ["two"], ("r2-b",): ["two"], ("r1",): ["one"]}
        for wanted, labels in cases.items():
            arguments = [word for want in wanted for word in ("--run", want)]
            self.assertEqual(self.trace(path, *arguments), {1: labels}, wanted)
        self.assertEqual(self.trace(path, "--run", "1", "--run", "2"), {1: ["one"], 2: ["two"]})
        for want in ("r2", "9", "0", "x"):
            words = "several runs begin so" if want == "r2" else "no such run"
            code, out, err = self.main(path, "--run", want)
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, rf"^timeline.py: error: --run {want}: {words} in .*jsonl, which has 3; --list shows")
        code, out, _ = self.main(path, "--list")
        self.assertEqual((code, len(out.splitlines())), (0, 4))
        self.assertRegex(out, r"(?m)^   2  r2-b  2023-11-14 22:14:50 UTC  5\.0s  tests\.txt: 1 passed$")

    def test_several_journals_are_several_machines(self) -> None:
        """On the clock, if they ran at the same time; else each begins at 0, which is said. Each file counts once."""
        one = self.write("1.jsonl", text_of(self.one("r1", "one", 0, shard="1/2")))
        two = self.write("2.jsonl", text_of(self.one("r2", "two", 3, shard="2/2")))
        late = self.write("3.jsonl", text_of(self.one("r3", "late", 1e6)))
        self.assertEqual(self.trace(one, two, one), {1: ["one"], 2: ["two"]})
        page = os.path.join(self.folder, "page.html")
        for paths, said in ((one, two), False), ((one, late), True):
            code, out, _ = self.main(*paths, "--html", page)
            self.assertEqual((code, "These runs do not overlap in time: each begins at 0." in out), (0, said))
        again = self.write("4.jsonl", text_of(self.one("r1", "one", 0)))
        code, _, err = self.main(one, again)
        self.assertEqual(code, 2)
        self.assertIn("4.jsonl: run r1 is in ", err)

    def test_lines_that_are_not_whole(self) -> None:
        """A torn last line, one that a run had torn, and what no runner has written cost themselves alone."""
        first, *middle, last = map(json.dumps, self.one("r1", "a", 0))
        odd: List[Mapping[str, Any]] = [
            {"time": math.nan}, {"time": 1e300}, {"time": True}, {"label": 3}, {"attempt": None}, {"seconds": -1},
            {"need": "x"}, {"lock": "x"}, {"outcome": []}, {"outcome": "failed", "status": "x"}]
        wrong = [json.dumps({**ended("b", 2, 1), **change}) for change in odd]
        wrong += [json.dumps({"event": "run_end", "run": "r1", "time": DAY}), '{"event": "x", "run": "r1"}',
                  '{"event": "test_end", "run": "r1", ' + "[" * 99_999]
        lines = [first, *middle, *wrong, last[:20] + last, '{"event": "test_start", "run": "r1", "ti']
        path = self.write("j.jsonl", "\n".join(lines))
        page = os.path.join(self.folder, "page.html")
        code, out, err = self.main(path, "--html", page)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"tests\.txt: 1 test: 1 passed; 5\.0s on 2 GPUs")
        self.assertRegex(out, rf"skipped, not whole: {len(wrong) + 1} lines: .*j\.jsonl:4, .*j\.jsonl:5, ")

    def test_a_run_that_says_null(self) -> None:
        """Of its GPUs, its lists or what was selected: it is as if there were none."""
        for name in ("gpus", "lists", "selected"):
            first, *others = self.one("r1", "a", 0)
            path = self.write("j.jsonl", text_of([{**first, name: None}, *others]))
            self.assertEqual(self.trace(path), {1: ["a"]}, name)

    def test_standard_input_and_output(self) -> None:
        text = text_of(self.one("r1", "a", 0))
        code, out, err = self.call("-", "--html", "-", stdin=text.encode())
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out.startswith("<!DOCTYPE html>") and out.endswith("</html>\n"))
        self.assertEqual(self.call("-", stdin=text.encode())[1].splitlines()[-1], "wrote timeline.html")

    def test_mistakes(self) -> None:
        """One line that says what to do; nothing is written."""
        path = self.write("j.jsonl", text_of(self.one("r1", "a", 0)))
        other = self.write("other.jsonl", text_of(self.one("r2", "a", 0)))
        hard = os.path.join(self.folder, "hard.jsonl")
        os.link(path, hard)
        empty = self.write("empty.jsonl", "")
        foreign = self.write("foreign.jsonl", '{"a": 1}\n[1]\nplain\n')
        torn = self.write("torn.jsonl", '{"event": "run_start", "run": "r1", "ti\n')
        there = set(os.listdir(self.folder))
        cases: Sequence[Tuple[Sequence[str], int, str]] = (
            ([path + "x"], 2, "cannot be read (No such file or directory); name a journal of run_tests.py"),
            ([empty], 2, "no run of run_tests.py in it; name its journal, such as logs/run_tests.jsonl"),
            ([foreign], 2, "no run of run_tests.py in it"), ([torn], 2, "torn.jsonl:1: nothing of run r1 can be read"),
            ([path, "--html", path], 2, "that is a journal, or another output"),
            ([path, "--html", hard], 2, "that is a journal, or another output"),
            ([path, "--html", "-", "--svg", "-"], 2, "that is a journal, or another output"),
            ([path, other, "--svg", "a.svg"], 2, "--svg is a picture of one run"),
            ([path, "--htm", "x"], 2, "unrecognized arguments"),
            ([path, "--html", self.folder + "/no/where"], 3, "cannot write "))
        for arguments, expected, words in cases:
            with self.subTest(arguments):
                code, out, err = self.main(*arguments)
                self.assertEqual((code, out), (expected, ""))
                self.assertIn(words, err)
                self.assertNotIn("Traceback", err)
        self.assertEqual(set(os.listdir(self.folder)), there)

    def test_a_folder_that_is_gone(self) -> None:
        for name in ("timeline.py", "ci_dedup.py", "ci_verdicts.py"):
            bash = 'mkdir gone; cd gone; rmdir ../gone; "$@"'
            ran = subprocess.run(["bash", "-c", bash, "bash", sys.executable, os.path.join(ROOT, "qa", name), "x"],
                                 cwd=self.folder, check=False, stderr=subprocess.PIPE)
            self.assertEqual(ran.returncode, 2)
            self.assertRegex(ran.stderr.decode(), rf"\A{name}: error: x: cannot be read \(No such file .*\n\Z")

    def test_an_interrupt(self) -> None:
        self.assertEqual(interrupted(self, SCRIPT), (130, b""))

    def test_a_reader_that_goes_away(self) -> None:
        path = self.write("j.jsonl", text_of(self.one("r1", "a", 0)))
        command = ["bash", "-c", '"$@" | head -c 10; echo " ${PIPESTATUS[0]}"', "bash", sys.executable, SCRIPT]
        ran = subprocess.run([*command, path, "--html", "-"], check=False, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        self.assertEqual((ran.stdout, ran.stderr), (b"<!DOCTYPE  0\n", b""))

    def test_commands_of_the_documentation(self) -> None:
        """Each one works behind a run."""
        with open(os.path.join(ROOT, "docs", "timeline.md"), encoding="utf-8") as file:
            commands = re.findall(r"(?m)^python3 qa/timeline.py (.*?) *#", file.read())
        self.assertGreater(len(commands), 4)
        self.write("logs/run_tests.jsonl", text_of(self.one("r1", "a", 0)))
        for command in commands:
            code, out, err = self.call(*command.split())
            self.assertEqual((code, err), (0, ""), command)
            self.assertTrue(out)
        self.assertEqual({"logs", "page.html", "trace.json", "lanes.svg"}, set(os.listdir(self.folder)))


if __name__ == "__main__":
    unittest.main()
