# SPDX-License-Identifier: MIT
"""From verdicts to the matrix of correlations, the tree and the clusters. Pure.

A part of ci_dedup.py, which does not work without it: copy the five files ci_dedup*.py together.
"""

from __future__ import annotations

import itertools
import math
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

from ci_dedup_read import Commit, History

CUT = 0.1  # of the largest distance, up to which jobs are one cluster: the study's
DIGITS = 12  # of a distance that count: what is equal stays so whatever a Python's rounding

Matrix = List[List[float]]


class Merge(NamedTuple):
    """Two nodes of a tree that become one; leaves are numbered from 0, merges from the number of leaves on."""

    left: int
    right: int
    height: float


class Clusters(NamedTuple):
    """Jobs by what they tell: groups in dendrogram order, then those whose verdict never changed, in one `constant`."""

    jobs: List[str]  # of the matrix's rows and columns: those of `groups`, then of `constant`
    groups: List[List[str]]
    constant: List[str]
    matrix: Matrix  # phi; nan where either job was constant over the commits of both
    tree: Sequence[Merge] = ()  # leaves are numbered as in `jobs`

    def number_of(self) -> Dict[str, int]:
        """By job, its group's number, from 1."""
        found = {}
        for number, group in enumerate(self.groups, 1):
            found.update(dict.fromkeys(group, number))
        return found


class Bits(NamedTuple):
    """One job's verdicts as whole numbers, a bit for each commit."""

    ran: int
    passed: int


def bits_of(
    commits: Sequence[Commit],
    jobs: Sequence[str],
) -> List[Bits]:
    """Each job's verdicts, the oldest commit in the highest bit."""
    blank = b"0" * max(1, len(commits))
    ran = {job: bytearray(blank) for job in jobs}
    passed = {job: bytearray(blank) for job in jobs}
    one = ord("1")
    for number, commit in enumerate(commits):
        for job, verdict in commit.verdicts.items():
            ran[job][number] = one
            if verdict.passed:
                passed[job][number] = one
    found = []
    for job in jobs:
        ran_bits = int(bytes(ran[job]), 2)
        passed_bits = int(bytes(passed[job]), 2)
        found.append(Bits(ran_bits, passed_bits))
    return found


def ones_in(bits: int) -> int:
    """How many bits are set, for Python 3.8 and 3.9."""
    return bin(bits).count("1")


def phi_of(
    one: Bits,
    other: Bits,
    count: Callable[[int], int],
) -> float:
    """Pearson's coefficient of two jobs' verdicts over the commits of both; nan where either was constant there."""
    total = count(one.ran & other.ran)
    ones = count(one.passed & other.ran)
    others = count(other.passed & one.ran)
    variance = ones * (total - ones)
    other_variance = others * (total - others)
    variances = variance * other_variance
    if not variances:
        return math.nan
    both = count(one.passed & other.passed)
    return (total * both - ones * others) / math.sqrt(variances)


def places_of(values: Iterable[Any]) -> Dict[Any, List[int]]:
    """Where each distinct value stands."""
    places: Dict[Any, List[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    return places


def symmetric(
    places: Mapping[Any, List[int]],
    measure: Callable[[Any, Any], float],
) -> Matrix:
    """The matrix of a measure that is the same both ways, each pair of distinct values measured once."""
    columns = [*places.values()]
    values = [*places]
    narrow = [[0.0] * len(values) for _ in values]
    for row, one in enumerate(values):
        line = narrow[row]
        for column in range(row + 1):
            line[column] = narrow[column][row] = measure(one, values[column])
    size = sum(map(len, columns))
    if len(values) == size:
        return narrow
    number_at = [0] * size
    for number, members in enumerate(columns):
        for place in members:
            number_at[place] = number
    wide = []
    for line in narrow:
        wide.append([line[number] for number in number_at])
    return [wide[number].copy() for number in number_at]


def correlations(
    commits: Sequence[Commit],
    jobs: Sequence[str],
) -> Matrix:
    """Phi of each pair of jobs, over the commits on which both gave a verdict; nan where either was constant there.

    It is Pearson's coefficient of 0 and 1, what pandas' `corr` gives. Commits are the bits of whole numbers, so that a
    pair costs a few machine words and the counts are exact.
    """
    count = getattr(int, "bit_count", None) or ones_in

    def phi(one: Bits, other: Bits) -> float:
        return phi_of(one, other, count)

    return symmetric(places_of(bits_of(commits, jobs)), phi)


def distances_of(rows: Matrix) -> Matrix:
    """Euclidean distances between rows."""

    def apart(one: Sequence[float], other: Sequence[float]) -> float:
        return round(math.dist(one, other), DIGITS)

    places = places_of(map(tuple, rows))
    return symmetric(places, apart)


def linkage(distances: Matrix) -> List[Merge]:
    """The tree of complete linkage: the distance of two clusters is that of their farthest members. Lowest merge first.

    By the chain of nearest neighbours (F. Murtagh, "A survey of recent advances in hierarchical clustering
    algorithms", 1983), in O(n²). Where distances are equal the chain's last but one, then the first in order is the
    nearest, as in D. Müllner's fastcluster and in SciPy, whose `linkage(…, "complete")` gives the same tree.
    """
    count = len(distances)
    apart = [[*row] for row in distances]
    for number in range(count):
        apart[number][number] = math.inf
    alive = [*range(count)]
    chain: List[int] = []
    joined: List[Tuple[float, int, int]] = []
    while len(alive) > 1:
        chain = chain or alive[:1]
        here = apart[chain[-1]]
        nearest = min(alive, key=here.__getitem__)
        if len(chain) < 2 or here[nearest] < here[chain[-2]]:
            chain.append(nearest)
            continue
        gone, stays = sorted(chain[-2:])
        joined.append((apart[gone][stays], gone, stays))
        alive.remove(gone)
        del chain[-2:]
        for other in alive:
            if other != stays:
                farther = max(apart[gone][other], apart[stays][other])
                apart[stays][other] = apart[other][stays] = farther
    return tree_of(joined, count)


def tree_of(
    joined: Iterable[Tuple[float, int, int]],
    count: int,
) -> List[Merge]:
    """Joins of clusters, each named by a leaf, as a tree of numbered nodes. The lower leaf's cluster ends by a join."""
    node = [*range(count)]  # the tree's number of the cluster of a leaf that names one
    tree: List[Merge] = []
    for height, gone, stays in sorted(joined, key=lambda join: join[0]):
        left, right = sorted((node[gone], node[stays]))
        node[stays] = count + len(tree)
        tree.append(Merge(left, right, height))
    return tree


def groups_at(
    tree: Sequence[Merge],
    cut: float,
) -> List[List[int]]:
    """The leaves of the clusters that merges of at most that height have made, in the order of the dendrogram."""
    below = {leaf: [[leaf]] for leaf in range(len(tree) + 1)}  # by node, the clusters in it
    for node, (left, right, height) in enumerate(tree, len(below)):
        groups = below.pop(left) + below.pop(right)
        if height <= cut:
            groups = [[*itertools.chain.from_iterable(groups)]]
        below[node] = groups
    return below.popitem()[1]


def renumbered(
    tree: Sequence[Merge],
    order: Sequence[int],
) -> List[Merge]:
    """A tree whose leaves are numbered by their places in an order."""
    place = {leaf: number for number, leaf in enumerate(order)}
    found = []
    for left, right, height in tree:
        left = place.get(left, left)
        right = place.get(right, right)
        found.append(Merge(left, right, height))
    return found


def cluster(history: History) -> Clusters:
    """Group the jobs whose correlations with all others are alike.

    A job that always passed, or always failed, correlates with nothing: it is `constant`. A correlation of two other
    jobs that cannot be told, since they never varied on common commits, counts as none (0).
    """
    jobs = history.jobs()
    matrix = correlations(history.commits, jobs)
    varied = []
    constant = []
    for number in range(len(jobs)):
        if math.isnan(matrix[number][number]):
            constant.append(number)
        else:
            varied.append(number)
    rows = []
    for one in varied:
        row = [matrix[one][other] for other in varied]
        # New numbers, one beside the other in memory: the distances are three times as fast.
        rows.append([0.0 if math.isnan(value) else value + 0.0 for value in row])
    distances = distances_of(rows)
    tree = linkage(distances)
    cut = CUT * max(map(max, distances), default=0.0)
    leaves = groups_at(tree, cut) if varied else []
    flat = [*itertools.chain.from_iterable(leaves)]
    order = [varied[leaf] for leaf in flat] + constant
    ordered = []
    for one in order:
        ordered.append([matrix[one][other] for other in order])
    groups = []
    for group in leaves:
        groups.append([jobs[varied[leaf]] for leaf in group])
    return Clusters(
        [jobs[number] for number in order],
        groups,
        [jobs[number] for number in constant],
        ordered,
        renumbered(tree, flat),
    )
