#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run_tests.py with two keys more: a pytest file on several GPUs at once, and cases that go on past a crash.

    python3 qa/pytest_parts.py tests.txt        # all options are those of run_tests.py

A list may then say `#: split=8` (eight parts, each a test with its share of the cases), `#: split=auto` (as many parts
as help, once the cases have been measured) or `#: after-crash=go-on` (a crash or a hang costs the case that ran, and
not the others). What each part does is in the hands of a plugin; parts put together again are an ordinary test.

Copy it next to run_tests.py, or into a folder beside or below it, with pytest_parts_plugin.py, which pytest loads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import sys
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)
from xml.etree import ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if not os.path.isfile(os.path.join(HERE, "run_tests.py")):
    sys.path.insert(1, os.path.dirname(HERE))
try:
    import run_tests
except ImportError:
    print(
        f"pytest_parts.py: run_tests.py is neither in {HERE} nor above; copy it, too",
        file=sys.stderr,
    )
    sys.exit(3)
from run_tests import (
    Attempt,
    Exited,
    Host,
    Lease,
    Options,
    Outcome,
    Pool,
    Record,
    Result,
    Selection,
    Test,
    Trace,
)

PLUGIN = "pytest_parts_plugin"
VARIABLE = "RUN_TESTS_PART"  # where the plugin finds the files of its part
KEYS = ("split", "after-crash")
MOST_LOST = 10  # cases that a part may lose; what dies more often will not end
NO_CASES = "ran none of its cases"  # the runner's word
SHOWN = 3  # names in a line that says which cases were lost
# Programs that start several processes of one command, which have to run the same cases together.
LAUNCHERS = r"(.*/)?(torchrun|mpirun|mpiexec|srun|accelerate|deepspeed)$"
# Which outcome of parts is that of the whole: the first that one of them has.
WORST_FIRST = (
    Outcome.CRASHED,
    Outcome.TIMEOUT,
    Outcome.FAILED,
    Outcome.UNRUNNABLE,
    Outcome.BLOCKED,
    Outcome.INTERRUPTED,
    Outcome.NOT_RUN,
    Outcome.KNOWN,
    Outcome.SKIPPED,
    Outcome.FLAKY,
    Outcome.PASSED,
)


# The command of a part.


def obstacle_of(command: str) -> str:
    """Why a command cannot be split, if so: it has to call pytest once, and to run nothing else."""
    nodes = run_tests.Reader(command).nodes
    calls = [node for node in run_tests.walk(nodes) if is_pytest(node)]
    if not calls:
        return "its line does not call pytest"
    if len(calls) > 1 or calls[0] not in nodes:
        return "its line may call pytest more than once"
    if calls[0].lead == "!":
        return "its line passes where pytest fails"
    if any(re.match(LAUNCHERS, word) for word in calls[0].words):
        return "its line starts several processes"
    if not all(run_tests.is_state([node]) for node in nodes if node is not calls[0]):
        return "its line runs more than pytest"
    return ""


def is_pytest(node: run_tests.Node) -> bool:
    """Whether a simple command names pytest: `pytest`, `python3 -m pytest`, `env A=1 py.test`."""
    words = list(map(run_tests.unquoted, node.words))
    return not node.kind and any(
        re.fullmatch(r"(.*/)?(pytest|py\.test)", word) for word in words
    )


def with_plugin(command: str, folder: str, place: str) -> str:
    """A command whose pytest loads the plugin in a folder, for the part whose files begin with `place`.

    What the line itself sets in PYTHONPATH or PYTEST_ADDOPTS stays behind what the plugin needs.
    """
    mine = {"PYTHONPATH": (folder, ":"), "PYTEST_ADDOPTS": (f"-p {PLUGIN}", " ")}
    for token in reversed(run_tests.read_tokens(command)):
        name, equals, value = token.text.partition("=")
        if name in mine and equals and token.kind == "word":
            first, mark = mine[name]
            more = f"{shlex.quote(mark)}{value}" * bool(value)
            own = f"{name}={shlex.quote(first)}{more}"
            command = command[: token.start] + own + command[token.end :]
    exports = [f"{VARIABLE}={shlex.quote(place)}"]
    for name, (first, mark) in mine.items():
        exports.append(f'{name}={shlex.quote(first)}"${{{name}:+{mark}${name}}}"')
    return f"{{ export {' '.join(exports)}; }} 2>/dev/null; {command}"


# What a part has done, by its plugin's file.


class Progress(NamedTuple):
    """What one attempt of a part has done."""

    collected: Tuple[str, ...] = ()  # cases, in order, also those of other parts
    ended: Mapping[str, float] = {}  # seconds, by case
    junit: Mapping[str, Sequence[str]] = {}  # elements, by case
    before: Sequence[str] = ()  # elements that belong to no case: of the collection
    after: Sequence[str] = ()  # and of the session
    failures: int = 0
    lost: str = ""  # the case in which the process died
    is_plain: bool = False  # pytest's own files count


def records_in(path: str) -> Iterator[Any]:
    """The values in a file, one a line; a line that is torn or damaged is none."""
    lines: List[bytes] = []
    with suppress(OSError), open(path, "rb") as file:
        lines = file.readlines()
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def read_progress(path: str) -> Progress:
    """What an attempt has noted, which may have died while it wrote a line."""
    found = Progress()
    ended: Dict[str, float] = {}
    junit: Dict[str, Sequence[str]] = {}
    for record in records_in(path):
        if "collected" in record:
            found = found._replace(collected=tuple(record["collected"]), before=record["junit"])
        elif "begun" in record:
            found = found._replace(lost=record["begun"])
        elif "ended" in record:
            ended[record["ended"]] = record["seconds"]
            junit[record["ended"]] = record["junit"]
            found = found._replace(lost="", failures=found.failures + record["failures"])
        elif "finished" in record:
            found = found._replace(lost="", after=record["junit"])
        elif "plain" in record:
            found = found._replace(is_plain=True)
    return found._replace(ended=ended, junit=junit)


class Told(NamedTuple):
    """An attempt of a part: how it has ended, and what it has done."""

    result: Result
    progress: Progress
    log: str


# The attempts of a part from a fresh start on: each but the first goes on past a crash.
Turn = List[Told]


class Whole:
    """A test, and the parts that run in its place."""

    def __init__(self, test: Test, folder: str) -> None:
        self.test = test
        self.folder = folder  # of the plugin's files
        self.parts: List[Test] = []
        self.left: Set[Test] = set()  # parts that have not been concluded
        # Part and number of attempts that lost a case; of these, those whose machine was at fault; and of these, those
        # whose case runs again: one of each part.
        self.went_on: Set[Tuple[Test, int]] = set()
        self.sick: Set[Tuple[Test, int]] = set()
        self.fell: Set[Tuple[Test, int]] = set()
        self.ends: Tuple[Result, ...] = ()  # its attempts, once it has been put together

    def place(self, part: Test) -> str:
        """Where the files of a part are: a folder, and how their names begin."""
        return os.path.join(self.folder, str(self.parts.index(part) + 1))

    def progress(self, part: Test, attempt: int) -> Progress:
        """What an attempt has done. The case that fell with its machine is not lost: it runs again."""
        progress = read_progress(f"{self.place(part)}.{attempt}.jsonl")
        if (part, attempt) in self.fell:
            return progress._replace(lost="")
        return progress

    def turns(self, part: Test, results: Sequence[Result], record: Record) -> List[Turn]:
        """The attempts of a part, those together that go on from each other."""
        turns: List[Turn] = []
        for result in results:
            is_last = result is results[-1]
            log = record.log_path(part, 0 if is_last else result.attempt)
            told = Told(result, self.progress(part, result.attempt), log)
            if not turns or (part, result.attempt - 1) not in self.went_on:
                turns.append([])
            turns[-1].append(told)
        return turns

    def claim(self) -> Optional[Mapping[str, Any]]:
        """Which part runs all, and why, if one does."""
        with suppress(OSError, ValueError), open(
            os.path.join(self.folder, "whole"), encoding="utf-8"
        ) as file:
            return json.load(file)
        return None


def cases_file(log_dir: str, test: Test) -> str:
    """Where the durations of a test's cases are kept from run to run."""
    return os.path.join(log_dir, test.stem + ".parts", "cases.jsonl")


def read_cases(path: str) -> Tuple[Dict[str, float], float]:
    """The seconds of each case in earlier runs, and those of a start of pytest."""
    seconds: Dict[str, float] = {}
    startup = 0.0
    for record in records_in(path):
        with suppress(ValueError, KeyError, TypeError):
            if "startup" in record:
                startup = duration_of(record["startup"])
            else:
                seconds[record["case"]] = duration_of(record["seconds"])
    return seconds, startup


def duration_of(value: Any) -> float:
    """Seconds, as a run writes them. Raises TypeError or ValueError for what is none."""
    if not 0 <= value <= run_tests.LONGEST_S:
        raise ValueError("no duration")
    return float(value)


def write_cases(path: str, seconds: Mapping[str, float], startup: float) -> None:
    """Keep durations for later runs. Raises OSError."""
    lines: List[Dict[str, Any]] = [{"startup": round(startup, 3)}]
    lines += [{"case": case, "seconds": taken} for case, taken in seconds.items()]
    with run_tests.whole_file(path, is_ours=True) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines)


# Put together.


class Places(Lease):
    """The GPUs that the parts of a test had, one after the other or at once: others ran there meanwhile."""

    named: Tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return "GPU " + ",".join(self.named) if self.named else "CPU"


def names_of(case: str) -> Tuple[str, str]:
    """Class and name of a case in JUnit, as pytest makes them of its node id."""
    path, bracket, parameters = re.sub(r" #\d+$", "", case).partition("[")
    names = path.split("::")
    names[0] = re.sub(r"\.py$", "", names[0].replace("/", "."))
    return ".".join(names[:-1]), names[-1] + bracket + parameters


def lost_case(case: str, told: Told) -> Any:
    """The element of a case in which the process has died or hung."""
    classname, name = map(run_tests.xml_text, names_of(case))
    element = ElementTree.Element("testcase", classname=classname, name=name, time="0.000")
    message = run_tests.xml_text(f"{how_lost(told.result)} in this case")
    kind = told.result.outcome.value
    error = ElementTree.SubElement(element, "error", message=message, type=kind)
    error.text = run_tests.xml_text(run_tests.tail_of(told.log))
    return element


class Sum:
    """What the parts of a test have done in one of its attempts, taken together."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        told = [each for turn in turns for each in turn]
        self.last = [turn[-1].result for turn in turns]
        self.collected = list(
            dict.fromkeys(case for each in told for case in each.progress.collected)
        )
        self.junit: Dict[str, Sequence[str]] = {}
        self.lost: Dict[str, Told] = {}
        for each in told:
            self.junit.update(
                (case, made) for case, made in each.progress.junit.items() if made
            )
            if each.progress.lost:
                self.lost[each.progress.lost] = each
        self.before = unlike(text for each in told for text in each.progress.before)
        self.after = unlike(text for each in told for text in each.progress.after)
        self.missing = [
            case for case in self.collected if case not in self.junit and case not in self.lost
        ]
        self.with_cases = [
            turn[-1].result for turn in turns if any(each.progress.ended for each in turn)
        ]

    def elements(self) -> List[Any]:
        """All cases in the order in which they were collected."""
        found = [ElementTree.fromstring(text) for text in self.before]
        for case in self.collected:
            found += map(ElementTree.fromstring, self.junit.get(case, ()))
            if case in self.lost:
                found.append(lost_case(case, self.lost[case]))
        return found + [ElementTree.fromstring(text) for text in self.after]

    def worst(self) -> Result:
        """The end of a part, or of an attempt that lost a case, that decides on the whole.

        Where all have passed it is one with nothing to say, if there is one: it has run a case.
        """

        def place(result: Result) -> Tuple[int, bool]:
            says = result.outcome.is_pass and result.reason != ""
            return WORST_FIRST.index(result.outcome), says

        return min([*(each.result for each in self.lost.values()), *self.last], key=place)

    def result(self, test: Test, number: int) -> Result:
        """How the test has ended, but for what its attempts took."""
        worst = self.worst()
        outcome, reason, cause = worst.outcome, worst.reason, worst.cause
        ran = any(result.has_run for result in self.last)
        fails_run = outcome.is_failure or outcome.is_unfinished
        has_to_be_whole = outcome.is_pass or (outcome is Outcome.SKIPPED and self.junit)
        if outcome is Outcome.NOT_RUN and ran:
            outcome, reason = Outcome.INTERRUPTED, "some of its parts have not run"
        elif self.lost:
            reason = ""
            told = list(self.told_lost())
            if self.missing:
                told.append(run_tests.counted(len(self.missing), "case") + " did not run")
            cause = cause._replace(line=", ".join(told))
        elif worst.status == 0 and fails_run and not self.collected:
            reason = (
                "its pytest has not loaded the plugin, or has ended before it had collected"
            )
        elif has_to_be_whole and self.missing:
            outcome = Outcome.FAILED
            reason = f"collected, and not reported: {shown(self.missing)}"
        elif outcome.is_pass and not reason and self.blind():
            reason = f"ran none of its cases on {', '.join(self.blind())}"
        return worst._replace(
            test=test,
            outcome=outcome,
            reason=reason,
            cause=cause,
            attempt=number,
            junit_fault="",
        )

    def blind(self) -> List[str]:
        """Where all cases that parts had were skipped, as on a GPU that cannot be seen."""
        places = dict.fromkeys(result.lease.place for result in self.with_cases)
        saw = {result.lease.place for result in self.with_cases if not result.reason}
        return [place for place in places if place not in saw]

    def told_lost(self) -> Iterator[str]:
        """`crashed (SIGSEGV) in test_x.py::test_y`, by how cases were lost; nothing if none was."""
        cases: Dict[str, List[str]] = {}
        for case, told in self.lost.items():
            cases.setdefault(how_lost(told.result), []).append(case)
        for how, names in cases.items():
            yield f"{how} in {shown(names)}"


def how_lost(result: Result) -> str:
    """How the process of an attempt ended in the middle of a case."""
    if result.outcome is Outcome.FAILED:
        return f"ended with exit {result.status}"
    return result.verdict


def shown(names: Sequence[str]) -> str:
    """The first names of several."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def unlike(texts: Iterable[str]) -> List[str]:
    """Elements, each once: what fails at the collection fails so in each part."""
    found: Dict[Tuple[str, str], str] = {}
    for text in texts:
        element = ElementTree.fromstring(text)
        found.setdefault((element.get("classname", ""), element.get("name", "")), text)
    return list(found.values())


def suite_of(path: str) -> Tuple[Mapping[str, str], List[Any]]:
    """The attributes and the properties of the suite in pytest's own file."""
    with suppress(OSError, ElementTree.ParseError):
        for suite in ElementTree.parse(path).iter("testsuite"):
            return suite.attrib, suite.findall("properties/property")
    return {}, []


class PartsRun(run_tests.Run):
    """A run in which the parts of a test take its place in the schedule, and the test theirs in the report."""

    def __init__(
        self, selection: Selection, host: Host, options: Options, trace: Trace
    ) -> None:
        # Of the plugin, and of its files: it goes with the run, also where that is killed.
        self.folder = host.reaper.scratch.path()
        os.makedirs(os.path.join(self.folder, "plugin"))
        try:
            shutil.copy(os.path.join(HERE, PLUGIN + ".py"), os.path.join(self.folder, "plugin"))
        except FileNotFoundError:
            raise run_tests.MachineError(
                f"{PLUGIN}.py is not in {HERE}; copy it, too"
            ) from None
        self.wholes: Dict[Test, Whole] = {}  # by test
        self.whole_of: Dict[Test, Whole] = {}  # by part
        super().__init__(selection, host, options, trace)
        followers = run_tests.followers_of(selection.tests)
        for whole in self.wholes.values():
            if len(whole.parts) > 1:
                self.let_wait(followers.get(whole.test, []), whole.parts)

    def let_wait(self, followers: Iterable[Test], parts: Iterable[Test]) -> None:
        """Let the tests that are `after` one which has been split wait for all of its parts."""
        waiting = self.schedule.waiting
        runs = [each for test in followers for each in self.parts_of(test) or [test]]
        for part in parts:
            self.schedule.followers[part] = runs
            for each in runs:
                if each in waiting:
                    waiting[each] += 1

    def parts_of(self, test: Test) -> List[Test]:
        """The parts that run in place of a test; none if it runs itself."""
        return self.wholes[test].parts if test in self.wholes else []

    # Before the run.

    def plan(self, selection: Selection, pool: Pool) -> Selection:
        """The tests of the schedule: those that are split are replaced by their parts."""
        heeded = [
            key for key in run_tests.COMPANION_KEYS if key in KEYS or key in self.host.heeds
        ]
        run_tests.tell_unheeded(selection.tests, heeded)
        said: Dict[str, List[str]] = {}  # what was not done, to the places in lists
        indices = itertools.count(max((test.index for test in selection.tests), default=0) + 1)
        estimates = selection.estimates
        tests: List[Test] = []
        for test in selection.tests:
            asked = test.attributes
            if test in selection.deferred or not (asked.split or asked.after_crash):
                tests.append(test)
                continue
            why = obstacle_of(test.command)
            if os.pathsep in self.folder:
                why = f"PYTHONPATH takes no colon, as is in {self.folder}"
            if why:
                tests.append(test)
            else:
                count, why = self.count_of(test, selection, pool)
                for part in self.divide(test, count, indices):
                    tests.append(part)
                    if test in estimates:
                        estimates[part] = self.part_seconds(test, estimates[test], count)
            if why:
                keys = f"split={asked.split}" if asked.split else "after-crash=go-on"
                said.setdefault(f"{keys}: {why}; it runs whole", []).append(test.where)
        for why, places in said.items():
            run_tests.tell(f"{run_tests.first_of(dict.fromkeys(places))}: {why}")
        owed = selection.owed.union(
            part for test in selection.owed for part in self.parts_of(test)
        )
        return selection._replace(tests=tests, owed=owed)

    def count_of(self, test: Test, selection: Selection, pool: Pool) -> Tuple[int, str]:
        """How many parts a test gets, and why it is one where more were asked for."""
        split = test.attributes.split
        if not split:
            return 1, ""
        if places_for(test, pool) == 1:
            return 1, "only one of its parts could run at a time"
        if split != "auto":
            return int(split), ""
        cases, startup = read_cases(cases_file(self.record.log_dir, test))
        if not cases:
            return 1, "its cases have not been measured yet"
        return best_count(test, sum(cases.values()), startup, len(cases), selection, pool), ""

    def part_seconds(self, test: Test, seconds: float, count: int) -> float:
        """What each part of a test is expected to take."""
        cases, startup = read_cases(cases_file(self.record.log_dir, test))
        if cases:
            seconds = sum(cases.values())
        return startup + seconds / count

    def divide(self, test: Test, count: int, indices: Iterator[int]) -> List[Test]:
        """The parts of a test, and their files."""
        folder = os.path.join(self.folder, str(len(self.wholes)))
        os.mkdir(folder)
        whole = self.wholes[test] = Whole(test, folder)
        for number in range(1, count + 1):
            label, key = test.label, test.key
            if count > 1:
                label = f"{test.label} (part {number} of {count})"
                key = run_tests.key_of([test.key, label])
            place = os.path.join(folder, str(number))
            part = test._replace(
                index=next(indices),
                key=key,
                label=label,
                stem=f"{test.stem}.parts/{number}",
                command=with_plugin(test.command, os.path.join(self.folder, "plugin"), place),
                junit=place + ".junit",
                is_pytest=True,
                preface=test.preface if number == 1 else b"",
            )
            whole.parts.append(part)
            self.whole_of[part] = whole
        whole.left.update(whole.parts)
        seconds, _ = read_cases(cases_file(self.record.log_dir, test))
        with open(os.path.join(folder, "seconds"), "w", encoding="utf-8") as file:
            json.dump(seconds, file)
        return whole.parts

    # As it runs.

    def launch(self, attempt: Attempt) -> None:
        """Let the plugin know what earlier attempts of a part have done, from the last fresh start on."""
        part, number = attempt.test, attempt.number
        if part in self.whole_of:
            whole = self.whole_of[part]
            before: List[Progress] = []
            while (part, number - 1 - len(before)) in whole.went_on:
                before.append(whole.progress(part, number - 1 - len(before)))
            lost = [progress.lost for progress in before if progress.lost]
            asked = {
                "number": whole.parts.index(part) + 1,
                "total": len(whole.parts),
                "ended": [case for progress in before for case in progress.ended],
                "lost": lost,
                "failures": len(lost) + sum(progress.failures for progress in before),
            }
            with open(f"{whole.place(part)}.{number}.json", "w", encoding="utf-8") as file:
                json.dump(asked, file)
        super().launch(attempt)

    def handle(self, event: Any) -> None:
        """An attempt that has lost a case does not count: the next one goes on behind it.

        If its machine is at fault, the next one begins with that case, once.
        """
        if isinstance(event, Exited) and event.test in self.schedule.running:
            part = event.test
            number = self.schedule.running[part].number
            whole = self.whole_of.get(part)
            if whole and self.can_go_on(whole, part, number):
                whole.went_on.add((part, number))
                self.schedule.spared[part] += 1
                if event.sick:
                    whole.sick.add((part, number))
        super().handle(event)

    def can_go_on(self, whole: Whole, part: Test, number: int) -> bool:
        lost = [attempt for each, attempt in whole.went_on if each is part]
        return len(lost) < MOST_LOST and bool(whole.progress(part, number).lost)

    def retry(self, result: Result) -> None:
        whole = self.whole_of.get(result.test)
        if whole is None:
            super().retry(result)
            return
        told = self.with_lost(result, whole)
        if (result.test, result.attempt) not in whole.went_on:
            super().retry(told)
            return
        self.record.attempt_end(result)
        attempt = (result.test, result.attempt)
        how = "its other cases go on"
        has_fallen = any(part is result.test for part, _ in whole.fell)
        if attempt in whole.sick and not has_fallen:
            whole.fell.add(attempt)
            how = "its cases go on elsewhere"
            told = self.with_lost(result, whole)  # its case runs again
        self.console.ended(told, how, result.attempt)

    def with_lost(self, result: Result, whole: Whole) -> Result:
        """A part's result, whose cause names the cases that it has lost; its last process may have had none left."""
        results = [*self.schedule.results.get(result.test, []), result]
        told = list(Sum(whole.turns(result.test, results, self.record)[-1:]).told_lost())
        if not told:
            return result
        reason = result.reason.replace(NO_CASES, "")
        cause = result.cause._replace(line=", ".join(told))
        return result._replace(reason=reason, cause=cause)

    def conclude(self, result: Result, is_news: bool = True) -> None:
        """The end of a part is shown and journalled; with the last one, its test has ended."""
        whole = self.whole_of.get(result.test)
        if whole is None:
            super().conclude(result, is_news)
            return
        whole.left.discard(result.test)
        count = len(whole.parts)
        if is_news and count > 1:
            self.record.attempt_end(result)
        if count > 1 and result.has_run:
            progress = f"{count - len(whole.left)} of {count} parts"
            self.console.ended(self.with_lost(result, whole), progress)
        if not whole.left:
            whole.ends = self.put_together(whole)
            # It has ended, also for a run that gives up.
            self.schedule.results[whole.test] = whole.ends
            self.journal(whole, result, is_news)
            self.record.test_end(whole.ends[-1])
            self.console.concluded(whole.ends[-1])

    def journal(self, whole: Whole, last: Result, is_news: bool) -> None:
        """Note the end of a test. Its only part has its name, and notes its attempts itself, up to the last one."""
        if len(whole.parts) > 1:
            for end in whole.ends:
                self.record.attempt_end(end)
        elif is_news:
            end = whole.ends[-1]
            self.record.attempt_end(
                last._replace(
                    outcome=end.outcome, status=end.status, reason=end.reason, cause=end.cause
                )
            )

    def attempts(self) -> List[Tuple[Result, ...]]:
        """Of each test all attempts, in list order; of one that was split, what its parts have come to."""
        found = []
        for test in self.tests:
            whole = self.wholes.get(test)
            if whole is None:
                found.append(self.schedule.results[test])
                continue
            if not whole.ends:  # the runner could not go on
                try:
                    whole.ends = self.put_together(whole)
                except OSError as error:
                    why = f"cannot be put together ({error.strerror})"
                    whole.ends = (Result(test, Outcome.NOT_RUN, reason=why),)
            self.schedule.results.pop(test, None)  # what took how long are its parts
            found.append(whole.ends)
        return found

    # Afterwards.

    def put_together(self, whole: Whole) -> Tuple[Result, ...]:
        """The attempts of a test whose parts have ended: log, JUnit file and result of each. Raises OSError."""
        claim = whole.claim()
        turns: List[List[Turn]] = []
        for number, part in enumerate(whole.parts, 1):
            results = self.schedule.results.get(part) or [Result(part, Outcome.NOT_RUN)]
            if claim is None or claim["number"] == number:
                turns.append(whole.turns(part, results, self.record))
        ends: List[Result] = []
        count = max(map(len, turns))
        for number in range(1, count + 1):
            chosen = [own[min(number, len(own)) - 1] for own in turns]
            ends.append(self.sum_up_parts(whole, chosen, number, number == count))
        if claim is not None:
            self.console.remark(f"Whole: {whole.test.label} [{claim['why']}]")
            if ends[-1].outcome.is_pass and not ends[-1].reason:
                ends[-1] = ends[-1]._replace(reason=f"ran whole, since {claim['why']}")
            for part in whole.parts:
                if ends[-1].outcome in (Outcome.PASSED, Outcome.SKIPPED):
                    ends[-1] = self.with_trouble(ends[-1], whole, part)
        self.learn(whole, turns)
        return tuple(ends)

    def with_trouble(self, end: Result, whole: Whole, part: Test) -> Result:
        """The result of a test that ran whole, after what a part of it had come to before it was dismissed."""
        for result in self.schedule.results.get(part, ()):
            progress = whole.progress(part, result.attempt)
            if not (result.outcome.is_failure or progress.failures or progress.lost):
                continue
            last = self.schedule.results[part][-1]
            outcome = Outcome.FAILED if last.outcome is Outcome.PASSED else last.outcome
            why = f"{part.label} {result.verdict} before the test ran whole"
            end = end._replace(outcome=outcome, reason=why, cause=result.cause)
            if outcome.is_failure:
                end = end._replace(junit_fault="of another part")
            break
        return end

    def sum_up_parts(
        self, whole: Whole, chosen: Sequence[Turn], number: int, is_last: bool
    ) -> Result:
        """One attempt of a test: of each part its turn, or its last one if it had fewer. Raises OSError."""
        test = whole.test
        told = [each for turn in chosen for each in turn]
        suffix = "" if is_last else f".attempt{number}"
        ran = [each for each in told if each.result.has_run]
        if ran:
            self.join_logs(ran, self.record.log_path(test, 0 if is_last else number))
        tokens = {token for each in ran for token in each.result.lease.tokens}
        places = Places((), 0)
        places.named = tuple(token for token in self.machine.tokens if token in tokens)
        together = Sum(chosen)
        if any(each.progress.is_plain for each in told):
            result = told[-1].result._replace(test=test)
            own = result_junit(told[-1].result)
            if test.junit and os.path.exists(own):
                result = self.save_junit(result, test.junit + suffix, run_tests.content_of(own))
        else:
            known = self.options.known_failures.get(test.origin, "")
            result = run_tests.as_known(together.result(test, number), known)
            if test.junit and ran:
                result = self.write_junit(result, together, test.junit + suffix)
        return result._replace(
            seconds=sum(each.result.seconds for each in told),
            memory=sum(each.result.memory for each in told),
            leaked=tuple(name for each in told for name in each.result.leaked),
            attempt=number,
            lease=places if len(whole.parts) > 1 else result.lease,
        )

    def join_logs(self, ran: Sequence[Told], path: str) -> None:
        """One log of all parts, in order. Raises OSError."""
        with open(run_tests.fresh_file(path), "wb") as file:
            for result, _, part_log in ran:
                if len(ran) > 1:
                    title = f"{result.test.label} on {result.lease.place}: {result.verdict}"
                    file.write(run_tests.to_bytes(f"\n=== {run_tests.PROGRAM}: {title} ===\n"))
                with suppress(FileNotFoundError), open(part_log, "rb") as log:
                    shutil.copyfileobj(log, file)

    def write_junit(self, result: Result, together: Sum, path: str) -> Result:
        """One JUnit file of all parts; returns the result with what is wrong with that file."""
        cases = together.elements()
        has_failure = any(
            case.find(tag) is not None for case in cases for tag in ("failure", "error")
        )
        attributes: Mapping[str, str] = {}
        properties: Dict[bytes, Any] = {}
        for last in together.last:
            found, more = suite_of(result_junit(last))
            attributes = attributes or found
            properties.update((ElementTree.tostring(each), each) for each in more)
        root = run_tests.junit_of(
            attributes.get("name", "pytest"), sum(last.seconds for last in together.last), cases
        )
        for name in ("timestamp", "hostname"):
            if name in attributes:
                root[0].set(name, attributes[name])
        if properties:
            root[0].insert(0, ElementTree.Element("properties"))
            root[0][0].extend(properties.values())
        if not (has_failure or self.options.accepts(result.outcome)):
            result = result._replace(junit_fault="without a failure")
        data = ElementTree.tostring(root, "utf-8", xml_declaration=True)
        return self.save_junit(result, path, data)

    def save_junit(self, result: Result, path: str, data: bytes) -> Result:
        """Write a JUnit file; returns the result, which is a failure where the file cannot be written.

        As pytest does it: through a link, if that is the user's.
        """
        is_ours = self.record.is_ours(path)
        try:
            target = path if is_ours else os.path.realpath(path)
            with run_tests.whole_file(target, is_ours) as file:
                file.write(data)
        except OSError as error:
            if self.options.accepts(result.outcome):
                reason = f"its JUnit file cannot be written ({error.strerror})"
                result = result._replace(outcome=Outcome.FAILED, reason=reason)
            result = result._replace(junit_fault=run_tests.MISSING)
        return result

    def learn(self, whole: Whole, turns: Sequence[Sequence[Turn]]) -> None:
        """Keep how long the cases took, and what a start of pytest costs."""
        path = cases_file(self.record.log_dir, whole.test)
        seconds, startup = read_cases(path)
        collected: Dict[str, None] = {}
        starts = []
        for result, progress, _ in (each for own in turns for turn in own for each in turn):
            seconds.update(progress.ended)
            collected.update(dict.fromkeys(progress.collected))
            if progress.after or progress.ended:
                starts.append(max(result.seconds - sum(progress.ended.values()), 0.0))
        if collected:
            kept = {case: seconds[case] for case in collected if case in seconds}
            write_cases(path, kept, statistics.median(starts) if starts else startup)


def result_junit(result: Result) -> str:
    """The JUnit file of an attempt, which the next one puts aside."""
    path = result.test.junit
    aside = f"{path}.attempt{result.attempt}"
    return aside if os.path.exists(aside) else path


# How many parts.


def places_for(test: Test, pool: Pool) -> int:
    """How many parts of a test could run at once."""
    if pool.sequential or test.gpus == run_tests.ALL_GPUS or test.attributes.lock:
        return 1
    if not test.gpus:
        return max(pool.cpus, 1)
    return max(int(pool.size / test.gpus), 1)


def best_count(
    test: Test, cases_s: float, startup: float, cases: int, selection: Selection, pool: Pool
) -> int:
    """How many parts let a test end no later than the run has to take anyway, if so many pay for their start-up.

    The run takes at least as long as its longest test that is not split, and as all its work on all GPUs.
    """
    seconds = selection.estimates
    others = [each for each in selection.selected if each is not test]
    fixed_s = {each: seconds[each] for each in others if not each.attributes.split}
    longest_s = run_tests.shortest(fixed_s, pool.size, pool.cpus)
    size = max(pool.size, 1)
    work = sum(run_tests.work_of(each, seconds, size) for each in others)
    width = min(max(test.gpus, 1 / size), size)
    most = min(places_for(test, pool), cases)
    if startup > 0:
        most = int(min(most, cases_s / startup))
    for count in range(1, most):
        bound = max(longest_s, (work + (cases_s + count * startup) * width) / size)
        if startup + cases_s / count <= bound:
            return count
    return max(most, 1)


def run_lists(
    options: Options,
    find_host: Callable[..., Host] = run_tests.find_host,
) -> int:
    """What the runner's own run_lists does, with parts; returns the exit code."""
    return run_tests.run_lists(options, find_host, PartsRun)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="pytest_parts.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="pytest_parts.py [option of run_tests.py ...] LIST [LIST ...]",
        description=__doc__,
    )
    parser.parse_known_args(arguments)  # for --help: all else is the runner's
    return run_tests.exit_code_of(
        lambda: run_lists(run_tests.parse_command_line(arguments, os.environ))
    )


if __name__ == "__main__":
    run_tests.leave(main())
