#!/usr/bin/env python3
"""Compare the JUnit test cases of two log dirs: the same cases, with the same outcomes?

    compare.py LOG_DIR LOG_DIR

All `*.xml` files of a directory count as one set: which file a case is in does not matter, how often it is there
does. Exit codes: 0 and one line with the counts if they are equal; 1 and the differences if not; 2 if there is
nothing to compare (no cases, a file that is not XML), since two empty directories prove nothing.
"""
import collections
import glob
import os
import sys
from typing import Counter, Dict, List, Sequence, Tuple
from xml.etree import ElementTree

Case = Tuple[str, str]                   # classname, name
Cases = Dict[Case, Counter[str]]         # how often a case has which outcome

# JUnit's element and our word for it, the worst first.
OUTCOMES = (("error", "error"), ("failure", "failed"), ("skipped", "skipped"))


class Unusable(Exception):
    """A log dir that cannot be compared."""


def outcome_of(case: ElementTree.Element) -> str:
    """`passed`, or what the worst of its elements says."""
    return next((word for element, word in OUTCOMES if case.find(element) is not None), "passed")


def read_cases(log_dir: str) -> Cases:
    """The cases of all JUnit files in a directory. Raises Unusable."""
    cases: Cases = collections.defaultdict(collections.Counter)
    for path in sorted(glob.glob(os.path.join(glob.escape(log_dir), "*.xml"))):
        try:
            for case in ElementTree.parse(path).iter("testcase"):
                cases[case.get("classname", ""), case.get("name", "")][outcome_of(case)] += 1
        except (OSError, ElementTree.ParseError) as error:
            raise Unusable(f"{path}: {error}") from None
    if not cases:
        raise Unusable(f"{log_dir}: no test cases in its *.xml files")
    return cases


def told(outcomes: Counter[str]) -> str:
    """`2 passed, 1 failed`; `not there` for none."""
    return ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items())) or "not there"


def differences(first: Cases, second: Cases) -> List[str]:
    """One line for each case that is not the same in both."""
    none: Counter[str] = collections.Counter()
    return [f"{'::'.join(case)}: {told(first.get(case, none))} | {told(second.get(case, none))}"
            for case in sorted({*first, *second}) if first.get(case) != second.get(case)]


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    if len(argv) != 2:
        print("usage: compare.py LOG_DIR LOG_DIR", file=sys.stderr)
        return 2
    try:
        first, second = read_cases(argv[0]), read_cases(argv[1])
    except Unusable as problem:
        print(f"compare.py: {problem}", file=sys.stderr)
        return 2
    different = differences(first, second)
    for line in different:
        print(line)
    if different:
        print(f"{len(different)} cases differ: {argv[0]} | {argv[1]}")
        return 1
    counts: Counter[str] = sum(first.values(), collections.Counter())
    print(f"{sum(counts.values())} test cases equal: {told(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
