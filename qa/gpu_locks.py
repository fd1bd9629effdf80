#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a list or a script while other runners use the same machine: no two of them ever share a GPU.

    python3 qa/gpu_locks.py /var/lock/gpus tests.txt
    python3 qa/gpu_locks.py /var/lock/gpus --gpus 4 --timeout 30m qa/L0/test.sh

All runners that name the same folder keep a lock file per GPU there. A runner holds the lock of a GPU for as long as
one of its tests has that GPU. Where another runner holds it, the test waits; a test of several GPUs gets all of them
at once or none. After the folder come the options of run_tests.py, which are all as they are there. Copy this file
next to run_tests.py, or into a folder beside or below it.

Exit codes are the runner's; a folder that cannot be written is 3.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import os
import re
import sys
from typing import Container, Dict, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if not os.path.isfile(os.path.join(HERE, "run_tests.py")):
    sys.path.insert(1, os.path.dirname(HERE))
try:
    import run_tests
except ImportError:
    print(
        f"gpu_locks.py: run_tests.py is neither in {HERE} nor above; copy it, too",
        file=sys.stderr,
    )
    sys.exit(3)
from run_tests import (
    Device,
    Host,
    Lease,
    Machine,
    MachineError,
    Options,
    Pool,
    Reaper,
    Test,
    UsageError,
)

VARIABLE = "RUN_TESTS_GPU_LOCKS"  # by which a test's own runner knows the folder of this one


class GpuLocks:
    """A lock file per GPU. A lock is the kernel's (flock): it ends with the runner that holds it, however that dies."""

    def __init__(self, folder: str, machine: Machine) -> None:
        """Open the files of a machine's GPUs. Raises MachineError."""
        self.folder = folder
        self.files: Dict[Device, int] = {}
        said = run_tests.ask_tool("nvidia-smi", "-L")
        uuids = dict(re.findall(r"(?m)^GPU (\d+):.*\(UUID: ([^)]+)\)", said))
        try:
            os.makedirs(folder, exist_ok=True)
            for device in machine.devices:
                name = uuids.get(device.token, device.token).replace("/", "_")
                path = os.path.join(folder, f"gpu-{name}.lock")
                flags = os.O_RDONLY
                # Where it is another user's, in a folder like /tmp, Linux refuses to create it.
                if not os.path.isfile(path):
                    flags |= os.O_CREAT
                self.files[device] = os.open(path, flags, 0o666)
        except OSError as error:
            raise MachineError(
                f"cannot write {error.filename} ({error.strerror}); "
                "name another folder for the lock files"
            ) from None

    def take(self, device: Device) -> bool:
        """Lock a GPU, unless another runner holds it."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self.files[device], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def give(self, device: Device) -> None:
        """Unlock a GPU."""
        fcntl.flock(self.files[device], fcntl.LOCK_UN)


class LockedPool(Pool):
    """A pool that leases only the GPUs that it can lock.

    The schedule asks the pool again after every event, and where nothing happens the runner has a Tick each second.
    """

    is_locked_out = False  # another runner's lock was the reason of the last refusal

    def __init__(self, pool: Pool, locks: GpuLocks) -> None:
        super().__init__(pool.devices, pool.cpus, pool.sequential)
        self.locks = locks

    def choose(self, count: int, shares: int, avoid: Container[int]) -> Sequence[int]:
        """As the runner chooses, among the GPUs that this one can lock; of those only what is chosen stays locked."""
        chosen = super().choose(count, shares, avoid)
        if not chosen or self.room[chosen[0]] < run_tests.SHARES:
            return chosen  # there is no room anyway, or a share of a GPU that is locked already
        whole = [index for index, room in enumerate(self.room) if room == run_tests.SHARES]
        free = [index for index in whole if index not in avoid]
        locked = [index for index in free if self.locks.take(self.devices[index])]
        others = [index for index in range(len(self.room)) if index not in locked]
        chosen = super().choose(count, shares, others)
        self.is_locked_out = not chosen
        for index in set(locked).difference(chosen):
            self.locks.give(self.devices[index])
        return chosen

    def give(self, lease: Lease) -> None:
        super().give(lease)
        for device in lease.devices:
            if self.room[device.index] == run_tests.SHARES:
                self.locks.give(device)

    def quarantine(self, device: Device) -> None:
        """Lease a device no more; nor does another runner, which may meet there what this one cannot end."""
        super().quarantine(device)
        self.locks.take(device)


class LockedHost(Host):
    """This machine, which other runners use as well."""

    pool: LockedPool

    def __init__(self, machine: Machine, reaper: Reaper, locks: GpuLocks) -> None:
        super().__init__(machine, reaper)
        self.locks = locks
        # If the runner is killed, its guard holds the locks until all tests have ended.
        reaper.kept += locks.files.values()

    def make_pool(self, tests: Sequence[Test], options: Options) -> Pool:
        self.pool = LockedPool(super().make_pool(tests, options), self.locks)
        return self.pool

    def do_chores(self) -> None:
        """Once a second. Raises OSError."""
        super().do_chores()
        if self.pool.is_locked_out and not self.pool.slots:  # nothing of this run runs
            run_tests.warn_once(
                f"waiting for GPUs that another runner holds, by its locks in {self.locks.folder}"
            )


def run(argv: Sequence[str]) -> int:
    """From the command line to the exit code. Raises UsageError, ListError, MachineError."""
    parser = argparse.ArgumentParser(
        prog="gpu_locks.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="gpu_locks.py DIR [option of run_tests.py ...] LIST [LIST ...]",
        description=__doc__,
    )
    parser.add_argument("folder", metavar="DIR", help="where the lock files are")
    own, rest = parser.parse_known_args(argv)
    # As `Rerun:` lines have it. What another option takes would be the folder: `--log-dir logs locks tests.txt`.
    first = next(word for word in argv if word != "--rerun-failed")
    if not rest or first != own.folder:
        parser.error(
            "name a folder for the lock files, and after it a list or a script; options stand "
            "behind the folder"
        )
    options = run_tests.parse_command_line(rest, os.environ)
    options = options._replace(command=(sys.argv[0], *argv))
    folder = os.path.realpath(own.folder)
    is_within = os.environ.get(VARIABLE) == folder
    os.environ[VARIABLE] = folder

    def find_host(options: Options, reaper: Reaper) -> Host:
        machine = run_tests.find_machine(options.gpus, os.environ)
        host: Host
        if machine.devices:
            if is_within:  # it would wait for ever
                raise UsageError(
                    f"{own.folder}: this is a test of a runner that holds the locks there of its GPUs; "
                    "call run_tests.py here"
                )
            locks = GpuLocks(own.folder, machine)
            host = LockedHost(machine, reaper, locks)
        else:
            host = Host(machine, reaper)
        run_tests.check_gpus(host, options)
        return host

    if importlib.util.find_spec("pytest_parts"):  # which may not have been copied
        import pytest_parts

        return pytest_parts.run_lists(options, find_host)
    return run_tests.run_lists(options, find_host)


if __name__ == "__main__":
    run_tests.leave(run_tests.exit_code_of(lambda: run(sys.argv[1:])))
