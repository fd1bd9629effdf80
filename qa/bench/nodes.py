#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What qa/cluster.py costs: forty one-second tests on two nodes of four slots, and 1,000 tests that do nothing.

    python3 qa/bench/nodes.py            # two agents on this host
    python3 qa/bench/nodes.py --slurm    # through a Slurm of its own, as tests/test_cluster_real.py starts it (root)
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Dict, List

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLUSTER = os.path.join(ROOT, "qa", "cluster.py")
RUNNER = os.path.join(ROOT, "run_tests.py")


def seconds_of(command: List[str], environment: Dict[str, str], text: str) -> "tuple[float, float]":
    """Seconds in all, and those that the run itself tells, of a list that passes."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tests.txt"), "w", encoding="utf-8") as file:
            file.write(text)
        begin = time.monotonic()
        ran = subprocess.run([*command, "--output", "none", "tests.txt"], cwd=folder, env={**os.environ, **environment},
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        told = re.search(rb"tests in ([\dms.]+)s on", ran.stdout)
        assert told, ran.stdout
        return time.monotonic() - begin, float(told.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    command = [sys.executable, CLUSTER, "--nodes", "n1,n2", "--launch", "env NODE={node}"]
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    lab = None
    if arguments.slurm:
        sys.path.insert(0, ROOT)
        from tests.test_cluster_real import Slurm
        lab = Slurm()
        environment = lab.variables
        command = ["salloc", "--quiet", "-N2", "--gpus-per-node=4", "--exclusive", sys.executable, CLUSTER,
                   "--nodes", "slurm"]
    try:
        sleeps = [seconds_of(command, environment, "sleep 1\n" * 40) for _ in range(arguments.repeats)]
        print("40 x sleep 1 on 2 nodes x 4 slots, bound 5 s; in all / the run: "
              + ", ".join(f"{whole:.2f} / {run:.1f} s" for whole, run in sleeps))
        for name, words, variables in (("on two nodes", command, environment),
                                       ("on this machine", [sys.executable, RUNNER],
                                        {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})):
            runs = [seconds_of(words, variables, "true\n" * 1000)[0] for _ in range(arguments.repeats)]
            print(f"1,000 x true {name}: {', '.join(f'{each:.2f}' for each in runs)} s, "
                  f"{min(runs):.2f} ms a test")
    finally:
        if lab:
            lab.close()


if __name__ == "__main__":
    main()
