"""qa/ci_dedup.py against SciPy and pandas, whose numbers it promises; skipped where these are not installed."""
from __future__ import annotations

import collections
import math
import os
import random
import sys
import unittest
from typing import Any, Counter, Dict, FrozenSet, List, Tuple

from tests.support import ROOT

sys.path.insert(0, os.path.join(ROOT, "qa"))
import ci_dedup

try:
    import numpy
    import pandas
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.spatial.distance import pdist, squareform
    MISSING = ""
except ImportError as error:
    MISSING = str(error)

HISTORIES, INSTANCES = 400, 120
EPSILON = 1e-9


def made_up_history(seed: int) -> List[Dict[str, bool]]:
    """Of each commit, the jobs that passed or failed: coins, or clusters that break together with or without noise;
    with gaps, and every eleventh job constant."""
    rng = random.Random(seed)
    jobs, commits, clusters = rng.randint(2, 40), rng.choice([3, 10, 50, 300, 1000]), rng.randint(1, 8)
    gaps, loss, noise = rng.choice([(0.2, None, 0.5), (0.05, 0.05, 0.01), (0.0, 0.0, 0.0)])
    cluster_of = [rng.randrange(clusters) for _ in range(jobs)]
    history = []
    for _ in range(commits):
        broken = {cluster for cluster in range(clusters) if rng.random() < 0.05}
        verdicts = {}
        for job in range(jobs):
            is_broken = loss is not None and cluster_of[job] in broken and rng.random() >= loss
            passed = job % 11 == 10 or not (is_broken or rng.random() < noise)
            if rng.random() >= gaps:
                verdicts[f"job{job:02}"] = passed
        history.append(verdicts)
    return history


@unittest.skipIf(MISSING, MISSING)
class AgainstScipy(unittest.TestCase):
    """Correlations, distances, trees, cuts and orders of leaves, on random histories and such as CI has."""

    def scipy_clusters(self, corr: Any) -> Tuple[Any, Any, Any]:
        """Distances, tree and cluster numbers, as the study computed them."""
        distances = pdist(corr)
        tree = linkage(distances, method="complete")
        return distances, tree, fcluster(tree, 0.1 * distances.max(), "distance")

    def partition(self, numbers: Any, jobs: List[str]) -> List[List[str]]:
        """Cluster numbers as sorted groups of jobs."""
        groups: Dict[int, List[str]] = {}
        for number, job in zip(numbers, jobs):
            groups.setdefault(int(number), []).append(job)
        return sorted(map(sorted, groups.values()))

    def check(self, history: List[Dict[str, bool]]) -> bool:
        """Hold one history against SciPy; whether it has two jobs that varied."""
        jobs = sorted(set().union(*history))
        verdicts = {job: (sum(1 << number for number, said in enumerate(history) if job in said),
                          sum(1 << number for number, said in enumerate(history) if said.get(job)))
                    for job in jobs}
        theirs = pandas.DataFrame(history, columns=jobs).astype(float).corr().values
        ours = numpy.array(ci_dedup.matrix_of([*verdicts.values()], ci_dedup.phi_of))
        self.assertTrue((numpy.isnan(ours) == numpy.isnan(theirs)).all())
        self.assertLess(numpy.nanmax(abs(ours - theirs), initial=0.0), EPSILON)
        varied = [number for number in range(len(jobs)) if not math.isnan(theirs[number][number])]
        if len(varied) < 2:
            return False
        clusters = ci_dedup.Clusters(verdicts)
        distances, tree, numbers = self.scipy_clusters(numpy.nan_to_num(theirs[numpy.ix_(varied, varied)]))
        our_rows = map(tuple, numpy.nan_to_num(ours[numpy.ix_(varied, varied)]).tolist())
        our_distances = ci_dedup.matrix_of([*our_rows], ci_dedup.distance_of)
        our_tree = ci_dedup.linkage(our_distances)
        self.assertLess(abs(squareform(distances) - numpy.array(our_distances)).max(), EPSILON)
        self.assertLess(abs(tree[:, 2] - [height for *_, height in our_tree]).max(), EPSILON)
        named = [jobs[number] for number in varied]
        self.assertEqual(sorted(map(sorted, clusters.groups)), self.partition(numbers, named))
        # What rounding leaves open, which of two equal distances comes first, is the same once these are.
        same = linkage(squareform(numpy.array(our_distances)), method="complete")
        self.assertEqual([[*merge] for merge in our_tree], same[:, :3].tolist())
        self.assertEqual(ci_dedup.groups_at(our_tree, math.inf), [leaves_list(same).tolist()])
        self.assertEqual(clusters.jobs[:len(varied)], [named[leaf] for leaf in leaves_list(same)])
        return True

    def test_random_and_real_shaped_histories(self) -> None:
        count = 0
        for seed in range(HISTORIES):
            with self.subTest(seed=seed):
                count += self.check(made_up_history(seed))
        self.assertGreater(count, HISTORIES * 0.8)


@unittest.skipIf(MISSING, MISSING)
class AgainstIntegerProgramming(unittest.TestCase):
    """The choice against SciPy's mixed-integer solver, on instances too large to try all sets."""

    def instance(self, seed: int) -> Tuple[Counter[FrozenSet[str]], Dict[str, float], int]:
        """Failures, costs and need."""
        rng = random.Random(seed)
        jobs, clusters, commits = rng.choice([8, 15, 25, 40]), rng.choice([2, 4, 8]), rng.choice([100, 500, 1000])
        cluster_of = [rng.randrange(clusters) for _ in range(jobs)]
        noise, loss = rng.choice([0, 0.001, 0.005]), rng.choice([0, 0.05, 0.2])
        costs = {f"job{job:02}": float(rng.choice([1, rng.randint(1, 60), rng.randint(60, 3600)]))
                 for job in range(jobs)}
        failures: Counter[FrozenSet[str]] = collections.Counter()
        for _ in range(commits):
            broken = {cluster for cluster in range(clusters) if rng.random() < 0.03}
            failures[frozenset(f"job{job:02}" for job in range(jobs)
                               if (cluster_of[job] in broken and rng.random() >= loss) or rng.random() < noise)] += 1
        del failures[frozenset()]
        return failures, costs, math.ceil(sum(failures.values()) * rng.choice([0.9, 0.95, 0.99, 1]) - 1e-9)

    def cheapest(self, failures: Counter[FrozenSet[str]], costs: Dict[str, float], need: int) -> float:
        """The cost of the cheapest set: a variable for each job, and one for each failure, that it is caught."""
        jobs, kinds = sorted(costs), [*failures]
        rows = numpy.zeros((len(kinds) + 1, len(jobs) + len(kinds)))
        for row, kind in enumerate(kinds):
            rows[row, [jobs.index(job) for job in kind]] = 1
            rows[row, len(jobs) + row] = -1
        rows[-1, len(jobs):] = [failures[kind] for kind in kinds]
        least = numpy.r_[numpy.zeros(len(kinds)), need]
        cost = numpy.r_[[costs[job] for job in jobs], numpy.zeros(len(kinds))]
        integrality = numpy.r_[numpy.ones(len(jobs)), numpy.zeros(len(kinds))]
        return float(milp(cost, constraints=LinearConstraint(rows, lb=least), bounds=Bounds(0, 1),
                          integrality=integrality).fun)

    def test_the_set_is_the_cheapest_and_the_bound_holds(self) -> None:
        proven = 0
        for seed in range(INSTANCES):
            failures, costs, need = self.instance(seed)
            if not failures:
                continue
            with self.subTest(seed=seed):
                found, bound = ci_dedup.cheapest(failures, costs, need)
                cost = sum(costs[job] for job in found)
                best = self.cheapest(failures, costs, need)
                self.assertGreaterEqual(sum(weight for jobs, weight in failures.items() if jobs & found), need)
                self.assertLessEqual(bound, best * (1 + 1e-6) + 1e-6)
                if bound >= cost * (1 - 1e-9):
                    proven += 1
                    self.assertAlmostEqual(cost, best, delta=1e-6 * max(best, 1))
        self.assertGreater(proven, INSTANCES * 0.9)


if __name__ == "__main__":
    unittest.main()
