#!/usr/bin/env python3
"""A made-up history of CI job statuses of which the right answer is known, for qa/ci_dedup.py.

    python3 qa/bench/ci_history.py FOLDER [--commits 3000] [--jobs 40] [--seed 1]

FOLDER gets one JSON file per commit, as in "PyTorch CI deduplication" (Edward Z. Yang, 2019): each of the 40 jobs of
`ci_jobs_2019.tsv` as a build and a test, with its status and seconds. A commit may break a cluster of jobs, so that
all of them fail; a flaky job fails by itself now and then; a rare job has failures that no other job sees, too few to
be worth its cost. So the right answer is the cheapest job of each cluster and the flaky jobs, whose failures cannot be
told from real ones; what it misses is what the rare jobs alone have seen. More jobs than 40 are the same ones again, in
clusters of their own.
"""
import argparse
import itertools
import json
import os
import random
import sys
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Set, Tuple

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ci_jobs_2019.tsv")
BREAKS = 0.01                            # of the commits break a given cluster
FLAKES, RARE = 0.01, 0.0002              # of the commits fail in a given flaky, or rare, job alone
IN_BUILD = 0.5                           # of the failures are in the build, after which the test does not run
SPREAD = 0.1                             # by which a job's seconds vary


class Job(NamedTuple):
    """One job: the cluster that it breaks with, its usual seconds times GPUs, and `flaky`, `rare` or nothing."""

    name: str
    cluster: str
    seconds: float
    gpus: float
    alone: str


def read_jobs(path: str = JOBS) -> List[Job]:
    """The jobs of a table whose first line says where it is from."""
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return [Job(name, cluster, float(seconds), float(gpus), alone) for name, cluster, seconds, gpus, alone in rows]


def many(jobs: List[Job], count: int) -> List[Job]:
    """So many jobs: those given, and as often as it takes the same again under other names, in other clusters."""
    again = (job._replace(name=job.name + suffix, cluster=job.cluster + suffix)
             for suffix in [""] + [f" #{number}" for number in range(2, count // len(jobs) + 2)] for job in jobs)
    return list(itertools.islice(again, count))


def failures(jobs: List[Job], commits: int, seed: int) -> Iterator[FrozenSet[str]]:
    """For each commit the jobs that fail."""
    rng = random.Random(seed)
    clusters = sorted({job.cluster for job in jobs})
    rates = {"flaky": FLAKES, "rare": RARE, "": 0.0}
    for _ in range(commits):
        broken: Set[str] = {cluster for cluster in clusters if rng.random() < BREAKS}
        yield frozenset(job.name for job in jobs if (rng.random() < rates[job.alone]) | (job.cluster in broken))


def right_answer(jobs: List[Job]) -> Tuple[FrozenSet[str], Dict[str, List[str]]]:
    """The jobs to choose, and the clusters."""
    clusters: Dict[str, List[Job]] = {}
    for job in jobs:
        clusters.setdefault(job.cluster, []).append(job)
    cheapest = {min(members, key=lambda job: job.seconds * job.gpus).name for members in clusters.values()}
    return (frozenset(cheapest | {job.name for job in jobs if job.alone == "flaky"}),
            {name: [job.name for job in members] for name, members in clusters.items()})


def write_history(folder: str, jobs: List[Job], commits: int, seed: int) -> None:
    """One JSON file per commit, each a minute younger than the one before. Raises OSError."""
    rng = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    for number, failing in enumerate(failures(jobs, commits, seed)):
        statuses = {}
        for job in jobs:
            is_build = job.name in failing and rng.random() < IN_BUILD
            for part, share in (("build", 0.4), ("test", 0.6)):
                failed = job.name in failing and is_build == (part == "build")
                seconds = job.seconds * share * rng.uniform(1 - SPREAD, 1 + SPREAD)
                statuses[f"{job.name}{'-' if job.name.startswith('pr/') else '_'}{part}"] = {
                    "status": "failure" if failed else "success", "seconds": round(seconds, 1), "gpus": job.gpus}
                if failed:
                    break
        path = os.path.join(folder, f"c{number:05}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(statuses, file)
        os.utime(path, (1_550_000_000 + 60 * number,) * 2)


def main() -> int:
    """Write the history that the command line asks for, and print its right answer."""
    parser = argparse.ArgumentParser(description="Write a made-up history of CI job statuses.")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--commits", type=int, default=3000, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    jobs = many(read_jobs(), options.jobs)
    write_history(options.folder, jobs, options.commits, options.seed)
    answer, clusters = right_answer(jobs)
    print(f"{options.commits} commits of {len(jobs)} jobs in {len(clusters)} clusters; the right answer:")
    print("\n".join(sorted(answer)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
