# SPDX-License-Identifier: MIT
"""What pytest loads for qa/pytest_parts.py: it runs one part of what is collected, and notes each case as it ends.

The folder of the run has, per test, `N.A.json` (what attempt A of part N is to do), `N.A.jsonl` (what it has done: one
JSON object a line), `N.junit`, `N.failed` (a byte for each failure), `collected` (what the first part has collected),
`seconds` (of earlier runs) and `whole`, once something shows that the test cannot be split: which part runs all of it.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import time
from contextlib import suppress
from typing import (
    Any,
    Dict,
    Generator,
    Hashable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
)
from xml.etree import ElementTree

import pytest

VARIABLE = "RUN_TESTS_PART"  # where the files of a part are: `<folder>/<number>`
NAME = os.path.splitext(os.path.basename(__file__))[0]
# Options by which pytest goes on from where the one before it has stopped: the last two stand for `stepwise`.
CACHED = ("lf", "stepwise", "stepwise_skip", "stepwise_reset")


def unique(names: Sequence[str]) -> List[str]:
    """The names; one that has been there before gets a number, since pytest can collect a case twice."""
    counts: Dict[str, int] = {}
    found = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        found.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return found


def ties_of(item: Any) -> Iterator[Hashable]:
    """What keeps a case together with others: fixtures of its class or module, by their parameter if they have one."""
    fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    parameters = getattr(getattr(item, "callspec", None), "indices", {})
    kinds = {"class": pytest.Class, "module": pytest.Module}
    for name, definitions in fixtures.items():
        scope = definitions[-1].scope
        node = scope in kinds and item.getparent(kinds[scope])
        if node:
            yield node.nodeid, name, parameters.get(name)


def groups_of(ties: Sequence[Sequence[Hashable]]) -> List[List[int]]:
    """The positions of cases, those together that share a tie, directly or through others; in collected order."""
    above = list(range(len(ties)))  # towards the first case of the group

    def first(index: int) -> int:
        while above[index] != index:
            above[index] = above[above[index]]
            index = above[index]
        return index

    owner: Dict[Hashable, int] = {}
    for index, own in enumerate(ties):
        for tie in own:
            one, other = sorted([first(index), first(owner.setdefault(tie, index))])
            above[other] = one
    groups: Dict[int, List[int]] = {}
    for index in range(len(ties)):
        groups.setdefault(first(index), []).append(index)
    return list(groups.values())


def share(
    groups: Sequence[Sequence[int]], seconds: Sequence[float], total: int
) -> List[Set[int]]:
    """The positions of each part's cases: the longest group goes to the shortest part (Graham's LPT rule)."""
    weights = {id(group): sum(seconds[index] for index in group) for group in groups}
    parts: List[Set[int]] = [set() for _ in range(total)]
    heap = [(0.0, number) for number in range(total)]
    for group in sorted(groups, key=lambda group: -weights[id(group)]):
        weight, number = heap[0]
        heapq.heapreplace(heap, (weight + weights[id(group)], number))
        parts[number].update(group)
    return parts


def durations(names: Sequence[str], known: Mapping[str, float]) -> List[float]:
    """What each case is expected to take. One of which nothing is known counts as the mean of the others."""
    found = [known[name] for name in names if name in known]
    mean = sum(found) / len(found) if found else 1.0
    return [known.get(name, mean) for name in names]


def without_us(environment: Any, folder: str) -> None:
    """Take out of an environment what has brought this plugin here: tests may start a pytest of their own."""
    for name, mine, mark in (
        ("PYTHONPATH", folder, os.pathsep),
        ("PYTEST_ADDOPTS", f"-p {NAME}", " "),
    ):
        rest = environment.get(name, "")
        rest = rest[len(mine) :] if rest.startswith(mine) else rest
        rest = rest[len(mark) :] if rest.startswith(mark) else rest
        environment[name] = rest
        if not rest:
            del environment[name]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Leave the environment before a conftest keeps a copy of it for what its tests start."""
    without_us(os.environ, os.path.dirname(os.path.abspath(__file__)))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin a part, if this is one. Its JUnit file has a place of its own, and so have its temporary folders."""
    place = os.environ.pop(VARIABLE, None)
    if place is None:
        return
    part = Part(config, place, int(os.environ.get("RUN_TESTS_ATTEMPT", "1")))
    config.option.xmlpath = place + ".junit"
    if config.option.basetemp and part.total > 1:
        config.option.basetemp += f".part{part.number}"
    config.pluginmanager.register(part, NAME + "_part")
    part.look_for_obstacles()


class Part:
    """One part of a test, in one attempt."""

    def __init__(self, config: pytest.Config, place: str, attempt: int) -> None:
        self.config = config
        self.place = place
        self.folder = os.path.dirname(place)
        with open(f"{place}.{attempt}.json", encoding="utf-8") as file:
            asked = json.load(file)
        self.number: int = asked["number"]
        self.total: int = asked["total"]
        self.done = {*asked["ended"], *asked["lost"]}  # cases of earlier attempts
        self.has_lost = bool(asked["lost"])  # in some of them pytest died
        self.pid = os.getpid()  # a process that a test forks must not write here
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self.output = os.open(f"{place}.{attempt}.jsonl", flags | os.O_EXCL, 0o666)
        except FileExistsError:
            raise pytest.UsageError(
                "its line runs more than one pytest; take split= out"
            ) from None
        self.failures = os.open(place + ".failed", flags | os.O_TRUNC, 0o666)
        os.write(self.failures, b"x" * asked["failures"])
        self.told = 0  # how many failures of this session are in that file
        self.written = 0  # how many cases of pytest's own JUnit are in ours
        self.names: Dict[Any, str] = {}  # of the cases that are to run, by item
        self.is_plain = False  # pytest goes its own way, and its files count
        self.is_idle = False  # there is nothing to do, or nothing any more

    def note(self, **record: Any) -> None:
        """One line of what this attempt has done."""
        if os.getpid() == self.pid:
            os.write(self.output, json.dumps(record).encode("ascii") + b"\n")

    # Whether the test can be split.

    def read(self, name: str) -> Any:
        """A file of the test; None if there is none yet."""
        with suppress(FileNotFoundError), open(
            os.path.join(self.folder, name), encoding="utf-8"
        ) as file:
            return json.load(file)
        return None

    def settle(self, name: str, value: Any) -> Any:
        """What a file of the test says, which the first part to come here writes."""
        own = f"{self.place}.{name}"
        with open(own, "w", encoding="utf-8") as file:
            json.dump(value, file)
        with suppress(FileExistsError):
            os.link(own, os.path.join(self.folder, name))  # whole, or not at all
        return self.read(name)

    def run_whole(self, why: str, is_plain: bool = False) -> None:
        """Let one part run all, in place of all that the others run."""
        whole = self.settle("whole", {"number": self.number, "why": why})
        if is_plain and whole["number"] == self.number:
            self.is_plain = True
            self.note(plain=why)

    def is_dismissed(self) -> bool:
        """Whether another part runs all."""
        whole = self.read("whole")
        return whole is not None and whole["number"] != self.number

    def look_for_obstacles(self) -> None:
        """What shows before the collection: that pytest does more here than to run one case after the other."""
        option = self.config.option
        if getattr(option, "dist", "no") != "no":
            self.run_whole("pytest-xdist spreads it over processes already", is_plain=True)
        elif any(getattr(option, name, False) for name in CACHED):
            self.run_whole("--lf and --sw go by what one pytest has left", is_plain=True)
        elif option.collectonly:
            self.run_whole("--collect-only runs no case", is_plain=True)
        elif not hasattr(self.config, "stash"):
            self.run_whole(f"pytest {pytest.__version__} is older than 7.0", is_plain=True)
        if self.is_dismissed():
            option.dist = "no"

    def reporters(self) -> Optional[List[Any]]:
        """The cases of pytest's own JUnit, as they begin; None if they are not where pytest 7 to 9 has them."""
        try:
            from _pytest.junitxml import xml_key
        except ImportError:
            return None
        stash = getattr(self.config, "stash", {})
        return getattr(stash.get(xml_key, None), "node_reporters_ordered", None)

    def new_cases(self) -> List[str]:
        """The JUnit of the cases that have ended since the last call, without what no reader of XML would take.

        A test can put that there (`record_property("a\\0", 1)`); one that an interrupt has cut short has no name yet.
        """
        reporters = self.reporters() or []
        texts = [
            ElementTree.tostring(reporter.to_xml(), encoding="unicode")
            for reporter in reporters[self.written :]
        ]
        self.written = len(reporters)
        found = []
        for text in texts:
            with suppress(ElementTree.ParseError, UnicodeError):
                if ElementTree.fromstring(text).get("name"):
                    found.append(text)
        return found

    # What this part runs.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Optional[bool]:
        """Nothing is to be collected where another part runs all."""
        if not self.is_dismissed():
            return None
        self.is_idle = True
        session.items = []
        return True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: List[Any]
    ) -> Generator[None, None, None]:
        """Of what is left once all plugins have had their say, keep what is this part's to do."""
        yield
        if self.reporters() is None and not self.is_plain:
            self.run_whole(
                "this pytest keeps its JUnit in a way that is not known", is_plain=True
            )
        if self.is_plain:
            return
        names = unique([item.nodeid for item in items])
        self.compare(names)
        self.note(collected=names, junit=self.new_cases())
        self.told = session.testsfailed  # of the collection, which all parts see
        chosen = self.choose(names, items)
        kept, rest = [], []
        for index, item in enumerate(items):
            if index in chosen and names[index] not in self.done:
                self.names[item] = names[index]
                kept.append(item)
            else:
                rest.append(item)
        self.is_idle = bool(names) and not kept
        items[:] = kept
        if rest:
            self.config.hook.pytest_deselected(items=rest)

    def compare(self, names: Sequence[str]) -> None:
        """All parts have to collect the same, in the same order."""
        digest = hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).hexdigest()
        first = self.settle("collected", {"digest": digest, "names": names})
        strange = sorted(set(names) ^ set(first["names"]))
        if strange:
            self.run_whole(f"its parts collected different cases, {strange[0]} among them")
        elif first["digest"] != digest:
            self.run_whole("its parts collected their cases in different orders")

    def choose(self, names: Sequence[str], items: Sequence[Any]) -> Set[int]:
        """The positions of this part's cases."""
        if self.is_dismissed() or self.is_enough():
            return set()
        if self.total == 1 or self.read("whole"):
            return set(range(len(names)))
        groups = groups_of([list(ties_of(item)) for item in items])
        seconds = durations(names, self.read("seconds") or {})
        return share(groups, seconds, self.total)[self.number - 1]

    def is_enough(self) -> bool:
        """Whether the parts together have failed as often as `-x` or `--maxfail` allows."""
        most = self.config.option.maxfail or 0
        count = 0
        for number in range(1, self.total * bool(most) + 1):
            with suppress(FileNotFoundError):
                count += os.path.getsize(os.path.join(self.folder, f"{number}.failed"))
        return bool(most) and count >= most

    # What runs.

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, None, None]:
        """Note that a case begins, and how it has ended. Stop where the other parts show that it is enough."""
        name = self.names.get(item)
        if name is None:
            yield
            return
        self.note(begun=name)
        began = time.monotonic()
        yield
        seconds = round(time.monotonic() - began, 4)
        session = item.session
        failures = session.testsfailed - self.told
        self.note(ended=name, seconds=seconds, failures=failures, junit=self.new_cases())
        if os.getpid() == self.pid:
            os.write(self.failures, b"x" * failures)
        self.told += failures
        if session.shouldfail or session.shouldstop:
            return
        if self.is_dismissed():
            session.shouldstop = "another part runs all"
        elif self.is_enough():
            session.shouldstop = "the parts together have failed as often as allowed"
        self.is_idle = bool(session.shouldstop)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """A part without cases is no failure; one in which a case was lost is, whatever the rest does."""
        has_failed = self.has_lost or session.testsfailed > 0
        if self.is_idle and session.exitstatus in (
            pytest.ExitCode.INTERRUPTED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.OK
        if session.exitstatus == pytest.ExitCode.OK and has_failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield
        self.note(
            finished=int(session.exitstatus), is_idle=self.is_idle, junit=self.new_cases()
        )
