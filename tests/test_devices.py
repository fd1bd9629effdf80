"""Section 5 of run_tests.py: masks, vendor tools, the pool, and what a test sees of its devices."""
from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import unittest
from typing import Container, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple
from unittest import mock

import run_tests
from tests.support import ROOT, Ran, RunnerCase, lines_of, listed

FIXTURES = os.path.join(ROOT, "tests", "fixtures", "devices")
GPU_A = "GPU-b614723c-e261-4605-066e-79daab4c00ff"
GPU_B = "GPU-e52dfcc4-406d-a3d4-f787-4402b535877a"
MIG_A = "MIG-dc34c2fd-4bd7-52ad-a6d0-645dcd1794e4"
MIG_B = "MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0"
MIG_C = "MIG-000d40d3-5924-5906-9879-8b69bf58689b"
MIG_OLD = "MIG-GPU-b614723c-e261-4605-066e-79daab4c00ff"      # before driver 470: …/GPU instance/compute instance
H200 = "GPU-8e16d300-43f3-b681-83b5-d531d31288ed"
AMD_A, AMD_B = "GPU-e8d1c3ec8e0ab3d5", "GPU-151c3ec8e0ab3d77"     # AMD's are `GPU-` and 16 hex digits
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
ALL = run_tests.ALL_GPUS
TIMEOUT = ("--timeout", "60s")   # ends tests that wait for each other in vain

# nvidia-smi of two healthy GPUs (wookayin/gpustat#5 and #97), which notes what it is asked. `say` is bash that answers
# in its place, `say.N` bash that answers for GPU N alone, from the moment that it is there; $row is the start of a row.
SMI_GPUS = ("GPU-004f693d-767b-b215-b4a9-a18af0ffd643", "GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7")
SMI = f"""#!/bin/bash
cd "${{0%/*}}/.."
echo "$*" >>asked
[ ! -e say ] || . ./say
uuids=({" ".join(SMI_GPUS)}) well=("802, 25, 12287" "10032, 54, 12287")
case "$*" in
    -L) for gpu in 0 1; do echo "GPU $gpu: GeForce GTX TITAN X (UUID: ${{uuids[gpu]}})"; done ;;
    *--query-compute-apps=pid,process_name*) cat apps ;;
    *--query-gpu=index,uuid,memory.used,temperature.gpu,memory.total*)
        for gpu in 0 1; do
            case "$*" in *" -i "*) [[ " $gpu ${{uuids[gpu]}} " == *" ${{*: -1}} "* ]] || continue ;; esac
            row="$gpu, ${{uuids[gpu]}},"
            if [ -e say.$gpu ]; then . ./say.$gpu; else echo "$row ${{well[gpu]}}"; fi
        done ;;
esac
"""
QUERY = "--format=csv,noheader,nounits --query-gpu=index,uuid,memory.used,temperature.gpu,memory.total"

TWICE = "a device is named twice"
READ: Dict[str, Dict[str, Optional[str]]] = {       # values of masks, and the tokens left visible; None: no mask
    "CUDA_VISIBLE_DEVICES": {            # as the CUDA programming guide has it, and `cuda-masks-h200.tsv`
        "": "", " ": "", "0": "0", "2,3": "2 3", "3,2": "3 2", "10,9,11": "10 9 11",
        "0,-1,2": "0", "-1": "", "-1,0": "", "0,2,-1,1": "0 2", "NoDevFiles": "", "none": "",        # hide all after
        "0,x,1": "0", "0,,1": "0", ",0": "", "1,": "1", "-2,0": "", "all": "", "0-3": "0",
        GPU_A: GPU_A, f"{GPU_B},{GPU_A}": f"{GPU_B} {GPU_A}", "GPU-b614": "GPU-b614",
        MIG_A: MIG_A, f"{MIG_B},{MIG_C}": f"{MIG_B} {MIG_C}",
        f"{MIG_OLD}/1/0,{MIG_OLD}/2/0": f"{MIG_OLD}/1/0 {MIG_OLD}/2/0",
        " 0 , 1 ": "0 1", f"{GPU_A}, {GPU_B}": GPU_A, "0 1": "0", "07,+1": "7 1",
        f"0,{GPU_A},1": "0", f"{GPU_A},0": GPU_A, f"{GPU_A},{MIG_A}": GPU_A, f"{MIG_A},{GPU_A}": MIG_A,  # kinds differ
        "0,-1,0": "0", "0,x,0": "0",     # one that is hidden is no duplicate
        "0,0": TWICE, "0,1,0": TWICE, "1, 1": TWICE, f"{GPU_A},{GPU_A}": TWICE,
        f"{MIG_A},{MIG_B},{MIG_A}": TWICE, f"{MIG_OLD}/1/0,{MIG_OLD}/1/0": TWICE},
    "HIP_VISIBLE_DEVICES": {             # as Device::init of ROCm's clr reads it: valid if it prints as its number
        "": None, "0": "0", "2,3": "2 3", "3,2": "3 2", "1,": "1", "-1": "", "0,-1,1": "0", "-1,0": "",
        "0, 1": "0", " 0,1": "", "0 ,1": "", " ": "", "NoDevFiles": "", "00": "", "0,x,1": "0", "0,,1": "0", ",0": "",
        "0.1": "", "default": "", AMD_A: AMD_A, f"{AMD_A},{AMD_B}": f"{AMD_A} {AMD_B}", f"0,{AMD_A}": f"0 {AMD_A}",
        f"{AMD_A},0,{AMD_B}": f"{AMD_A} 0 {AMD_B}",
        "0,0": TWICE, "1,0,1": TWICE, f"{AMD_A},{AMD_A}": TWICE},
    "ROCR_VISIBLE_DEVICES": {            # as RvdFilter of ROCm's ROCR runtime reads it
        "": "", "0": "0", "3,2": "3 2", " 0 , 1 ": "0 1", f"{AMD_A}, {AMD_B}": f"{AMD_A} {AMD_B}", "-1": "",
        "0,-1,1": "0", "0,x,1": "0", AMD_A.lower(): AMD_A.lower(),
        "0,GPU-DEADBEEFDEADBEEF": "0 GPU-DEADBEEFDEADBEEF",      # the example in AMD's guide
        "0,0": TWICE, "1, 1": TWICE, f"{AMD_A},{AMD_A}": TWICE, f"{AMD_A},{AMD_A.lower()}": TWICE},
    "ZE_AFFINITY_MASK": {                # as parseAffinityMask of Intel's compute runtime reads it: devices and tiles
        "": None, "default": None, "0": "0", "0,1": "0 1", "0.0,0.1": "0.0 0.1", "1.0,0": "1.0 0", "0.1.2": "0.1.2",
        "x,1": "1", "0,,1": "0 1", "0,x,2": "0 2", "-1,1": "1", "-1": "", "x": "", ",": "",
        "0,0": TWICE, "1.0,1.0": TWICE, "0,x,0": TWICE},
}
HIDES = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "-1"}


def machine(gpus: Optional[str] = None, **environ: str) -> run_tests.Machine:
    """The devices of an outer mask, or of `--gpus` within it; no tool is asked. Warnings are not shown."""
    with contextlib.redirect_stderr(io.StringIO()):
        assert gpus is not None or run_tests.outer_machine(environ) is not None, "the vendors' tools would be asked"
        return run_tests.find_machine(gpus, environ)


def tokens(found: Optional[run_tests.Machine]) -> Optional[List[str]]:
    return None if found is None else [device.token for device in found.devices]


class MaskTest(unittest.TestCase):
    """One mask, or several, or `--gpus`, to a Machine."""

    def test_each_vendors_mask(self) -> None:
        self.assertIsNone(run_tests.outer_machine({}))
        for variable, cases in READ.items():
            for value, visible in cases.items():
                with self.subTest(value, variable=variable), contextlib.redirect_stderr(io.StringIO()):
                    if visible == TWICE:
                        with self.assertRaisesRegex(run_tests.UsageError, "^" + re.escape(f"{variable}={value} ")):
                            run_tests.outer_machine({variable: value})
                        continue
                    found = run_tests.outer_machine({variable: value})
                    self.assertEqual(tokens(found), None if visible is None else visible.split())
                    if found is not None:
                        self.assertEqual([device.index for device in found.devices], [*range(len(found.devices))])
                        self.assertEqual([reader.variable for reader in found.readers], [variable])

    def test_what_a_lease_sees(self) -> None:
        for variable, hides in HIDES.items():
            found = machine(**{variable: "0,1"})
            leases = {hides: (), "1": found.devices[1:], "0,1": found.devices}
            for value, devices in leases.items():
                self.assertEqual(found.mask(run_tests.Lease(tuple(devices), 0)), {variable: value})

    def test_a_word_that_is_no_id_is_told(self) -> None:
        """`all` hides every GPU: a green run on none of them should not go unnoticed."""
        hides = " is no id, and hides itself and all after it; write it as 0,1\n"
        commas = "; put commas between ids\n"
        for value, what in {"all": f"'all'{hides}", "0,x,1": f"'x'{hides}", "0,,1": f"''{hides}", ",0": f"''{hides}",
                            "": "", "0,": "", "-1": "", "NoDevFiles": "", "0-3": f"'0-3' is read as 0{commas}",
                            "1 2": f"'1 2' is read as 1{commas}"}.items():
            with self.subTest(value), contextlib.redirect_stderr(io.StringIO()) as stderr:
                run_tests.outer_machine({"CUDA_VISIBLE_DEVICES": value})
                self.assertEqual(stderr.getvalue(), what and f"run_tests.py: CUDA_VISIBLE_DEVICES={value}: {what}")

    def test_a_drivers_reading(self) -> None:
        """What a real driver shows of its one GPU, and what is left of the mask that the runner reads."""
        odd = {       # not read as by the driver, which overflows, knows two names of one GPU, or wants the whole UUID
            "-0": "none", "0,-0": "shown", "-0,0": "none", "4294967296": "none", "0,4294967296": "shown",
            f"{H200},{H200[:8]}": "shown", f"{H200[:8]} ": "shown"}
        with open(os.path.join(FIXTURES, "cuda-masks-h200.tsv"), encoding="utf-8") as file:
            recorded = [line.split("\t") for line in file.read().splitlines()]
        for text, shown in recorded:
            value = json.loads(text)
            with self.subTest(value), contextlib.redirect_stderr(io.StringIO()):
                try:
                    first = [*(tokens(run_tests.outer_machine({MASKS[0]: value})) or []), "none"][0]
                    is_there = first == "0" or (first[:4] == "GPU-" and H200.lower().startswith(first.lower()[:40]))
                    seen = "shown" if is_there else "none"
                except run_tests.UsageError:
                    seen = "refused"
                self.assertEqual(seen, odd.get(value, shown))
        self.assertEqual(set(odd) - {json.loads(text) for text, _ in recorded}, set())

    def test_which_of_several_masks_counts(self) -> None:
        cuda, hip, rocr, intel = MASKS
        cases: Sequence[Tuple[Dict[str, str], str]] = (
            ({cuda: "2", rocr: "0,1", intel: "3"}, cuda), ({cuda: "", intel: "3"}, cuda),    # hiding all is a mask
            ({hip: "0,1", rocr: "4,5,6,7"}, hip),        # HIP numbers the devices of ROCR
            ({rocr: "4", intel: "3"}, rocr), ({hip: "", rocr: "4"}, rocr), ({cuda: "1", hip: ""}, cuda))
        for environ, variable in cases:
            with self.subTest(environ):
                found = machine(**environ)
                variables = [reader.variable for reader in found.readers]
                self.assertEqual((variables, ",".join(tokens(found) or [])), ([variable], environ[variable]))

    def test_hip_reads_cudas_mask_too(self) -> None:
        found = machine(CUDA_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="2,3")
        for devices, value in ((found.devices[1:], "3"), ((), "-1")):
            self.assertEqual(found.mask(run_tests.Lease(devices, 0)), dict.fromkeys(MASKS[:2], value))
        for cuda, hip in (("0,1", "2,3"), ("0,1", "1,0"), ("0,1", "0"), ("0, 1", "0, 1")):
            with self.subTest(cuda=cuda, hip=hip), self.assertRaises(run_tests.UsageError) as caught:
                machine(CUDA_VISIBLE_DEVICES=cuda, HIP_VISIBLE_DEVICES=hip)
            self.assertIn(f"CUDA_VISIBLE_DEVICES={cuda} and HIP_VISIBLE_DEVICES={hip} disagree", str(caught.exception))

    def test_gpus_option(self) -> None:
        """A count takes the first of a mask, ids are those of the mask; without one they are CUDA's."""
        cuda = "CUDA_VISIBLE_DEVICES"
        cases: Sequence[Tuple[str, Dict[str, str], Dict[str, str]]] = (      # --gpus, outer masks, what `all` sees
            ("2", {}, {cuda: "0,1"}), ("12", {}, {cuda: "0,1,2,3,4,5,6,7,8,9,10,11"}), ("0,2", {}, {cuda: "0,2"}),
            ("2,", {}, {cuda: "2"}), ("3,1", {}, {cuda: "3,1"}), (GPU_A, {}, {cuda: GPU_A}), ("0", {}, {cuda: ""}),
            ("0", {cuda: "4,5"}, {cuda: ""}), ("2", {cuda: "4,5,6,7"}, {cuda: "4,5"}),
            ("4", {cuda: "4,5,6,7"}, {cuda: "4,5,6,7"}), ("1", {cuda: f"{GPU_B},{GPU_A}"}, {cuda: GPU_B}),
            ("7,5", {cuda: "4,5,6,7"}, {cuda: "7,5"}), ("6,", {cuda: "4,5,6,7"}, {cuda: "6"}),
            (GPU_B, {cuda: f"{GPU_A},{GPU_B}"}, {cuda: GPU_B}),
            ("0.1", {"ZE_AFFINITY_MASK": "0.0,0.1"}, {"ZE_AFFINITY_MASK": "0.1"}),
            ("1", {"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "2"}),
            ("0", {"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "-1"}))
        for gpus, outer, seen in cases:
            with self.subTest(gpus, outer=outer):
                found = machine(gpus, **outer)
                self.assertEqual(found.mask(run_tests.Lease(found.devices, 0)), seen)

    def test_a_mask_is_never_widened(self) -> None:
        for gpus, visible, shown in (("5", "4,5,6,7", "4,5,6,7"), ("3,", "4,5", "4,5"), ("4,3,9", "4,5", "4,5"),
                                     ("1", "", "none"), ("0,", "-1", "none"), ("2", "0,-1,1", "0"),
                                     ("0,", GPU_A, GPU_A), (GPU_B, GPU_A, GPU_A)):
            with self.subTest(gpus=gpus, visible=visible), self.assertRaises(run_tests.UsageError) as caught:
                machine(gpus, CUDA_VISIBLE_DEVICES=visible)
            self.assertIn(f"--gpus {gpus}: the outer mask shows {shown} alone, and is", str(caught.exception))

    def test_bad_values_of_gpus(self) -> None:
        for text in ("", "x", "-1", "1,,2", ",", "2,,", "0,0", "1,0,1", "1 2", "0, 1", "4x", "0.5",
                     f"{GPU_A},{GPU_A}"):
            with self.subTest(text), self.assertRaises((run_tests.BadValue, run_tests.UsageError)) as caught:
                machine(run_tests.parse_gpu_option(text))
            self.assertIn(text or "''", str(caught.exception))


class PoolCase(unittest.TestCase):
    """A pool and its leases, in short."""

    def pool(self, count: int, cpus: int = 2, sequential: bool = False) -> run_tests.Pool:
        """Devices 0, 1, … whose tokens are 4, 5, …"""
        return run_tests.Pool([run_tests.Device(index, str(index + 4)) for index in range(count)], cpus, sequential)

    def take(self, pool: run_tests.Pool, need: float, avoid: Sequence[int] = ()) -> run_tests.Lease:
        lease = pool.take(need, avoid)
        assert lease is not None
        return lease

    def tokens(self, pool: run_tests.Pool, *needs: float) -> str:
        """The devices of leases that are taken one after another: `4 5,6 CPU`; `-` for one that is refused."""
        leases = [pool.take(need) for need in needs]
        return " ".join(lease.place.replace("GPU ", "") if lease else "-" for lease in leases)


class PoolTest(PoolCase):
    """Examples; `RandomPoolTest` has the rules."""

    def test_leases_one_after_another(self) -> None:
        cases: Sequence[Tuple[run_tests.Pool, Sequence[float], str]] = (
            (self.pool(4), (1, 2, 1), "4 5,6 7"), (self.pool(3), (1, 3, ALL, 2, 1), "4 - - 5,6 -"),
            (self.pool(2), (2, 0, 1), "4,5 CPU -"), (self.pool(1), (0, 0, 1, 0), "CPU CPU 4 -"),
            (self.pool(2), (ALL, 0, 0.5, 1), "4,5 - - -"), (self.pool(2), (0, ALL), "CPU -"),
            (self.pool(1, sequential=True), (0.25, 0, 0.25, 1), "4 - - -"),
            (self.pool(2), [0.25] * 9, "4 4 4 4 5 5 5 5 -"), (self.pool(1), [0.333333] * 4, "4 4 4 -"),
            (self.pool(2), (0.75, 0.75, 0.5, 0.25), "4 5 - 4"), (self.pool(2), (0.1, 2, ALL, 1, 1), "4 - - 5 -"),
            (self.pool(3), (0.5, 0.75, 0.25, 0.25, 0.25, 0.25), "4 5 5 4 4 6"),
            (run_tests.Pool([]), (1, 1), "CPU -"), (run_tests.Pool([]), (0.5, 0.5, 0.5), "CPU CPU -"))
        for number, (pool, needs, expected) in enumerate(cases):
            with self.subTest(number, expected=expected):
                self.assertEqual(self.tokens(pool, *needs), expected)

    def test_neighbours_go_first_and_then_those_that_are_near(self) -> None:
        cases = [((0, 1, 2, 4, 5), 2, "4,5"), ((0, 2, 3, 4, 5), 2, "6,7"), ((0, 1, 2, 4, 5), 1, "4"),
                 ((0, 1, 2, 4, 5), 3, "4,5,6"), ((0, 3, 5), 2, "7,9"), ((0, 2, 3, 5), 3, "4,6,7"), ((0, 1, 3), .5, "4")]
        for free, need, expected in cases:
            with self.subTest(free=free, need=need):
                pool = self.pool(6)
                leases = [self.take(pool, 1) for _ in range(6)]
                for index in reversed(free):
                    pool.give(leases[index])
                self.assertEqual(self.tokens(pool, need), expected)

    def test_order_is_that_of_the_mask_not_of_the_ids(self) -> None:
        pool = run_tests.Pool(machine(CUDA_VISIBLE_DEVICES="10,9,0").devices)
        first, second = self.take(pool, 1), self.take(pool, 1)
        self.assertEqual(first.tokens + second.tokens, ["10", "9"])
        pool.give(second)
        pool.give(first)
        self.assertEqual(self.take(pool, 3).tokens, ["10", "9", "0"])

    def test_shares_add_up_to_a_device_whatever_floats_do(self) -> None:
        for needs in ((0.7, 0.2, 0.1), (0.1,) * 10, (0.3, 0.3, 0.3, 0.1), (0.000001, 0.999999), (0.6, 0.4),
                      (0.000249, 0.999751), (0.000123, 0.999877)):
            with self.subTest(needs=needs):
                pool = self.pool(1, cpus=0)
                leases = [self.take(pool, need) for need in needs]
                self.assertIsNone(pool.take(0.000001))
                for lease in leases:
                    pool.give(lease)
                self.assertEqual(self.take(pool, 1).shares, run_tests.SHARES)

    def test_when_none_is_left_cpu_tests_have_their_slots(self) -> None:
        pool = self.pool(1)
        pool.quarantine(pool.devices[0])
        self.assertEqual((pool.size, self.tokens(pool, 1, .5, 0, 0, 0)), (0, "- - CPU CPU -"))

    def test_what_runs_one_by_one(self) -> None:
        for gpus, jobs, tests, one_by_one in ((1, None, "a b:0", True), (1, 2, "a b:0", False), (1, 2, "a b", True),
                                              (0, 2, "a:0", False), (2, None, "a", False), (1, None, "a:0.5 b", True),
                                              (1, None, "a:0.5 b:0.5", False)):
            with self.subTest(gpus=gpus, jobs=jobs, tests=tests):
                options = run_tests.Options(lists=(), jobs=jobs)
                pool = run_tests.make_pool(self.pool(gpus).devices[:gpus], listed(tests), options)
                self.assertEqual(pool.sequential, one_by_one)


class RandomPoolTest(PoolCase):
    """Random leases and losses against a model: each lease is what the rules say, or there is not enough for it."""

    def test_the_rules(self) -> None:
        for seed in range(80):
            with self.subTest(seed=seed):
                self.play(random.Random(seed))

    def play(self, chance: random.Random) -> None:
        size, cpus, sequential = chance.randint(1, 9), chance.randint(1, 3), chance.random() < 0.1
        pool, lost = self.pool(size, cpus, sequential), set()
        held: Dict[run_tests.Lease, float] = {}      # with the need
        for _ in range(200):
            if held and chance.random() < 0.5:
                lease = chance.choice(list(held))
                del held[lease]
                pool.give(lease)
            elif chance.random() < 0.02 and len(lost) < size - 1:
                device = chance.choice(pool.devices)
                lost.add(device.index)
                pool.quarantine(device)
                self.assertEqual(pool.size, size - len(lost))
            else:
                need = chance.choice([0, 0, 0.1, 0.25, 0.3, 0.5, 0.7, 1, 1, 1, 2, 3, size, ALL])
                avoid = chance.sample(range(size), chance.choice([0, 0, 0, chance.randint(0, size)]))
                room = room_of(size, held, lost)
                is_alone = bool(held) and (sequential or ALL in held.values())
                spare = cpus - list(held.values()).count(0)
                expected = None if is_alone or (held and (sequential or need == ALL)) or (need == 0 and not spare) \
                    else place_of([0 if index in avoid else free for index, free in enumerate(room)],
                                  size - len(lost) if need == ALL else need)
                lease = pool.take(need, avoid)
                self.assertEqual(lease and [device.index for device in lease.devices], expected, f"{need} of {room}")
                if lease is not None:
                    self.assertEqual(lease.slot, min(set(range(len(held) + 1)) - {other.slot for other in held}))
                    held[lease] = need
        for lease in held:
            pool.give(lease)
        self.assertEqual({device.index for device in self.take(pool, ALL).devices}, set(range(size)) - lost)


def room_of(size: int, held: Iterable[run_tests.Lease], lost: Container[int]) -> List[int]:
    """The shares of each device that are free."""
    room = [0 if index in lost else run_tests.SHARES for index in range(size)]
    for lease in held:
        for device in lease.devices:
            room[device.index] = max(0, room[device.index] - lease.shares)
    return room


def place_of(room: Sequence[int], need: float) -> Optional[List[int]]:
    """The devices of a lease, by the shares that are free of each: the first that are nearest to each other, of a
    fraction the fullest device that others share."""
    shares = round(need * run_tests.SHARES)
    shared = [(free, index) for index, free in enumerate(room) if shares <= free < run_tests.SHARES]
    if 0 < need < 1 and shared:
        return [min(shared)[1]]
    count = 1 if 0 < need < 1 else int(need)
    whole = [index for index, free in enumerate(room) if free == run_tests.SHARES]
    if len(whole) < count or not count:
        return None if count else []
    return min(([last - first, first], whole[place:place + count]) for place, (first, last) in
               enumerate(zip(whole, whole[count - 1:])))[1]


class DeviceCase(RunnerCase):
    """Runs of the command line on a machine of stubs: none of its own tools is found."""

    def tools(self, gpus: Optional[Sequence[object]] = None, nvml: Mapping[str, object] = {},  # noqa: B006
              **scripts: str) -> Dict[str, str]:
        """An environment with bash, these vendors' tools, and a `pynvml` that shows `gpus` or finds no driver.

        `nvidia_smi="exit 9"` is the sh script of `nvidia-smi`, or all of it.
        """
        shutil.rmtree(os.path.join(self.folder, "bin"), ignore_errors=True)
        for name, script in scripts.items():
            self.stub(name.replace("_", "-"), script if script[:1] in "#\0" else f"#!/bin/sh\n{script}\n")
        folder = self.stub("nothing", "")
        for name in ("bash", "cat"):
            os.symlink(shutil.which(name) or name, os.path.join(folder, name))
        stub = {"gpus": gpus, **({"fails": ["nvmlInit"]} if gpus is None else {}), **nvml}
        return {"PATH": folder, "PYTHONPATH": FIXTURES, "STUB_NVML": json.dumps(stub)}

    def prints(self, name: str) -> str:
        """The sh script of a tool that prints a fixture."""
        return "cat " + shlex.quote(os.path.join(FIXTURES, name))

    @contextlib.contextmanager
    def see(self, environ: Mapping[str, str]) -> Iterator[io.StringIO]:
        """Meanwhile this process is on that machine; yields what it says on stderr."""
        with mock.patch.dict(os.environ, environ), mock.patch.object(sys, "path", [FIXTURES, *sys.path]), \
                contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                sys.modules.pop("pynvml", None)
                yield told
            finally:
                sys.modules.pop("pynvml", None)

    def asked(self) -> List[str]:
        """What tools that note it have been asked, since the last call."""
        path = os.path.join(self.folder, "asked")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        os.unlink(path)
        return lines

    def seen(self, ran: Ran, label: str) -> Dict[str, str]:
        """What `look` has printed into a test's log."""
        return dict(line.split("=", 1) for line in ran.read("logs", label + ".log").splitlines())

    def look(self, *names: str) -> str:
        """Bash that prints variables; `-unset-` for one that is not in the environment of a child."""
        script = "".join(f'echo "{name}=${{{name}--unset-}}";' for name in names)
        return f"bash -c {shlex.quote(script)}"

    def meet(self, count: int) -> List[str]:
        """Bash for each of `count` tests that goes on only when all of them run at the same time."""
        place = os.path.basename(tempfile.mkdtemp(prefix="meet.", dir=self.folder))
        fifos = [(f"{place}/come.{number}", f"{place}/go.{number}") for number in range(1, count)]
        for fifo in [name for pair in fifos for name in pair]:
            os.mkfifo(os.path.join(self.folder, fifo))
        first = "".join([f"read -r _ < {come}; " for come, _ in fifos] + [f"echo > {go}; " for _, go in fifos])
        return [first] + [f"echo > {come}; read -r _ < {go}; " for come, go in fifos]

    def run_together(self, names: Sequence[str], *needs: str, gpus: Optional[str] = "0,1",
                     env: Mapping[str, str] = {}) -> Ran:  # noqa: B006
        """Tests `a`, `b`, … that need `gpus=` as many, and look at variables while all of them run."""
        lines = [f"{meet}{self.look(*names)} #: label={label} gpus={need}\n"
                 for label, need, meet in zip("abcdefgh", needs, self.meet(len(needs)))]
        shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
        ran = self.run_list("".join(lines), *TIMEOUT, gpus=gpus, env=env)
        self.check(ran, 0, dict.fromkeys("abcdefgh"[:len(needs)], "passed"))
        return ran


class ProbeTest(DeviceCase):
    """No mask and no `--gpus`: the vendors' tools in turn."""

    def found(self, environ: Mapping[str, str], *warns: str) -> List[str]:
        """The devices that are found, with these words, and no others, on stderr, a line each."""
        with self.see(environ) as told:
            found = run_tests.probe({})
        lines = told.getvalue().splitlines()
        self.assertEqual(len(lines), len(warns), lines)
        for line, words in zip(lines, warns):
            self.assertIn(words, line)
        return [device.token for device in found.devices]

    def test_the_order_of_tools(self) -> None:
        """The first that answers counts, and no other is asked; each is asked for its list."""
        lists = {"nvidia_smi": "nvidia-smi-list.txt", "amd_smi": "amd-smi-list.json",
                 "rocm_smi": "rocm-smi-showid.json"}
        scripts = {tool: f'echo "${{0##*/}} $*" >>{self.folder}/asked; {self.prints(name)}'
                   for tool, name in lists.items()}
        self.assertEqual((self.found(self.tools([None] * 3, **scripts)), self.asked()), (["0", "1", "2"], []))
        for count, question in ((2, "nvidia-smi -L"), (4, "amd-smi list --json"), (3, "rocm-smi --showid --json")):
            self.assertEqual(self.found(self.tools(**scripts)), [str(number) for number in range(count)])
            self.assertEqual(self.asked(), [question])
            del scripts[next(iter(scripts))]

    def test_answers(self) -> None:
        """Of older and newer releases; the instances of MIG stand in place of their GPU."""
        for tool, name, expected in (("amd_smi", "amd-smi-list-wrapped.json", "0 1 2 3"),
                                     ("nvidia_smi", "nvidia-smi-list-mig.txt", f"{MIG_A} {MIG_B} {MIG_C}"),
                                     ("nvidia_smi", "nvidia-smi-list-mixed.txt", f"0 {MIG_B} {MIG_C}")):
            with self.subTest(name):
                self.assertEqual(self.found(self.tools(**{tool: self.prints(name)})), expected.split())

    def test_pynvml(self) -> None:
        mig = [None, [MIG_B, None, MIG_C, None], "unsupported", [MIG_A]]
        before_mig = ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
        cases: Sequence[Tuple[Sequence[object], Dict[str, object], str]] = (
            (mig, {}, f"0 {MIG_B} {MIG_C} 2 {MIG_A}"), (mig, {"bytes": True}, f"0 {MIG_B} {MIG_C} 2 {MIG_A}"),
            ([None] * 2, {"lacks": before_mig}, "0 1"), ([None] * 2, {"warns": True}, "0 1"),
            ([None] * 2, {"fails": ["nvmlShutdown"]}, "0 1"))
        for gpus, options, expected in cases:
            with self.subTest(**options):
                self.assertEqual(self.found(self.tools(gpus, options)), expected.split())

    def test_a_library_that_hangs_is_ended(self) -> None:
        environ = self.tools([None], {"hangs": True}, rocm_smi=self.prints("rocm-smi-showid.json"))
        with mock.patch.object(run_tests, "PROBE_S", 0.2):
            self.assertEqual(len(self.found(environ, "did not answer in 0 s; going on without it")), 3)

    def test_what_does_not_answer_is_passed_over(self) -> None:
        last = {"rocm_smi": self.prints("rocm-smi-showid.json")}
        for options in ({"fails": ["import"]}, {"fails": ["nvmlInit"]}, {"lacks": ["nvmlInit"]}, {"gpus": []}):
            with self.subTest(pynvml=options):
                self.assertEqual(len(self.found(self.tools([None] * 2, options, **last))), 3)
        for name in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):        # it fails half way
            environ = self.tools([None] * 2, {"fails": [name]}, **last)
            self.assertEqual(len(self.found(environ, f"(pynvml: {name}: Uninitialized); going on without it")), 3)
        failed = "nvidia-smi failed with status 9 (NVIDIA-SMI has failed because it couldn't communicate"
        cases = {self.prints("nvidia-smi-failed.txt") + "; exit 9": failed,
                 "\0not a program": "nvidia-smi cannot be run (",
                 "echo 'ERROR: none' >&2; exit 255": "nvidia-smi failed with status 255 (ERROR: none)",
                 "echo No devices were found": "", "exit 0": ""}
        for script, words in cases.items():
            with self.subTest(script):
                self.assertEqual(len(self.found(self.tools(nvidia_smi=script, **last), *filter(None, [words]))), 3)
        for nonsense in ("exit 0", "echo no GPUs", "echo '{}'", "echo '[{}]'", "echo null", 'echo \'["x"]\'', "echo 5",
                         'echo \'[{"gpu": "N/A"}]\'', "printf '\\377\\n'"):
            with self.subTest(nonsense):
                self.assertEqual(len(self.found(self.tools(amd_smi=nonsense, **last))), 3)

    def test_a_tool_that_hangs_is_left(self) -> None:
        os.mkfifo(os.path.join(self.folder, "never"))
        environ = self.tools(nvidia_smi=f"read -r _ < {self.folder}/never", amd_smi=self.prints("amd-smi-list.json"))
        with mock.patch.object(run_tests, "PROBE_S", 1.0):
            self.assertEqual(len(self.found(environ, "nvidia-smi did not answer")), 4)

    def test_bus_order(self) -> None:
        """Ids from a tool of NVIDIA's are in that order, unless the user has set another."""
        nvidia, amd = self.prints("nvidia-smi-list.txt"), self.prints("amd-smi-list.json")
        cases: Sequence[Tuple[Optional[List[None]], Dict[str, str], Dict[str, str], Sequence[str]]] = (
            ([None], {}, {}, ["PCI_BUS_ID"]), ([None], {}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, []),
            ([None], {}, {MASKS[0]: "0"}, []), (None, {"nvidia_smi": nvidia}, {}, ["PCI_BUS_ID"]),
            (None, {"amd_smi": amd}, {}, []))
        for gpus, scripts, environ, expected in cases:
            with self.subTest(environ, scripts=scripts), self.see(self.tools(gpus, **scripts)):
                found = run_tests.find_machine("", environ)
                self.assertEqual(found.extra, dict(zip(["CUDA_DEVICE_ORDER"], expected)))

    def test_runs(self) -> None:
        """No GPU and one: sequential, without a marker. Several: each test sees its own, by a tool's ids."""
        names = ("CUDA_DEVICE_ORDER", *MASKS[:2])
        for gpus, order, mask in ((None, "-unset-", "-unset-"), ([None], "PCI_BUS_ID", "0")):
            ran = self.run_list(f"{self.look(*names)} #: label=a\n", gpus=None, env=self.tools(gpus))
            self.check(ran, 0, {"a": "passed"})
            self.assertEqual(ran.text.splitlines(), [f"{names[0]}={order}", f"{names[1]}={mask}", f"{names[2]}=-unset-",
                                                     "All tests passed"])
        for tool, name, seen in (("nvidia_smi", "nvidia-smi-list-mig.txt", ["PCI_BUS_ID", MIG_B, "-unset-"]),
                                 ("amd_smi", "amd-smi-list.json", ["-unset-", "-unset-", "1"])):
            ran = self.run_together(names, "1", "1", gpus=None, env=self.tools(**{tool: self.prints(name)}))
            self.assertEqual(self.seen(ran, "b"), dict(zip(names, seen)))
            tokens = ran.journal("run_start")[-1]["gpus"]
            self.assertEqual(lines_of(ran.text, "Detected"), [f"Detected {len(tokens)} GPU(s): {' '.join(tokens)}"])

    def test_a_mask_or_gpus_asks_no_tool_but_for_memory(self) -> None:
        """What they show is believed; of NVIDIA's GPUs one wants to know what they hold before the run."""
        env = self.tools(None, {"fails": ["import"]}, nvidia_smi=SMI, amd_smi=SMI, rocm_smi=SMI)
        cases: Sequence[Tuple[Sequence[str], Optional[str], Dict[str, str], Sequence[str]]] = (
            ([], "0,1", {}, [QUERY]), (["--gpus", "2"], None, {}, [QUERY]),
            ([], None, {"HIP_VISIBLE_DEVICES": "0,1"}, []), ([], "", {}, []))
        for arguments, gpus, masks, asked in cases:
            with self.subTest(arguments, gpus=gpus, **masks):
                ran = self.run_list("true\n" * 3, *arguments, gpus=gpus, env={**env, **masks})
                self.assertEqual((ran.code, ran.err, self.asked()), (0, "", asked))


class HealthTest(DeviceCase):
    """What nvidia-smi says of a GPU before the run and after a test."""

    def setUp(self) -> None:
        super().setUp()
        self.environ = self.tools(nvidia_smi=SMI)
        self.write("apps", "")

    def say(self, **answers: str) -> None:
        """From now on nvidia-smi answers so: `say_0` for GPU 0."""
        for name, script in answers.items():
            self.write(name.replace("_", "."), script + "\n")

    def health(self, mask: str = "0,1", variable: str = MASKS[0]) -> run_tests.Health:
        for name in ("say", "say.0", "say.1", "asked"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        with self.see(self.environ):
            return run_tests.Health(machine(**{variable: mask}))

    def examined(self, health: run_tests.Health, mask: str = "0", shares: int = run_tests.SHARES) -> List[str]:
        """What is sick of a lease, and the warnings; what it asks is noted from now on. It does not wait for long."""
        watched = {device.token: device for device in health.used}
        devices = [watched.get(token, run_tests.Device(9, token)) for token in mask.split(",")]
        lease = run_tests.Lease(tuple(devices), 0, shares)
        self.asked()
        with self.see(self.environ) as told, mock.patch.object(run_tests, "MEMORY_S", 0.02), \
                mock.patch.object(run_tests, "PROBE_S", 5.0):
            sick = list(health.examine(lease))
        return [f"{each.device.token}: {each.reason}" for each in sick] + told.getvalue().splitlines()

    def test_the_baseline(self) -> None:
        """By index or UUID, and nothing of MIG instances, unknown GPUs and those of other vendors."""
        first, second = SMI_GPUS
        cases = {"0,1": {"0": 802, "1": 10032}, "1": {"1": 10032}, "2": {}, "": {}, MIG_A: {}, GPU_A: {},
                 f"{second},{first}": {second: 10032, first: 802}, first[:8]: {}}
        for mask, used in cases.items():
            with self.subTest(mask=mask):
                self.assertEqual({device.token: mib for device, mib in self.health(mask).used.items()}, used)
                self.assertEqual(self.asked(), [QUERY] * bool(mask))
        for variable in MASKS[1:]:
            self.assertEqual((self.health("0,1", variable).used, self.asked()), ({}, []))

    def test_of_gpus_that_are_well_nothing_is_said(self) -> None:
        """Old drivers, virtual GPUs, containers that may not ask tell no temperature."""
        for mask in ("0", SMI_GPUS[0]):
            for row in ("802, 35", "0, 35", f"{802 + run_tests.MEMORY_MIB}, 35", "802, [N/A]", "802, [Not Supported]",
                        "802, [Insufficient Permissions]"):
                with self.subTest(row, mask=mask):
                    health = self.health(mask)
                    self.say(say_0=f'echo "$row {row}"')
                    self.assertEqual((self.examined(health, mask), self.asked()), ([], [QUERY]))

    def test_one_question_for_all_gpus(self) -> None:
        health = self.health()
        self.assertEqual((self.examined(health, "0,1"), self.asked()), ([], [QUERY]))

    def test_memory_that_is_back_later_is_waited_for(self) -> None:
        health = self.health("0")
        self.say(say_0='if [ -e late ]; then echo "$row 4, 35"; else : >late; echo "$row 40000, 35"; fi')
        with mock.patch.object(run_tests, "MEMORY_S", 60.0), self.see(self.environ) as told:
            self.assertEqual(list(health.examine(run_tests.Lease((*health.used,), 0))), [])
        self.assertEqual((told.getvalue(), self.asked()), ("", [QUERY] * 3))

    def test_the_wait_for_memory_is_in_the_journal(self) -> None:
        ran = self.run_list("false #: label=a\ntrue #: label=b\n", gpus="0,1", env=self.environ)
        waits = {record["label"]: record.get("memory", 0) > 0 for record in ran.journal("test_end")}
        self.assertEqual(waits, {"a": True, "b": False})

    def test_memory_that_does_not_come_back_is_told_with_its_holder(self) -> None:
        """And the next test need not wait for it."""
        cases = {       # NVIDIA/nvidia-docker#1483; in a container, a pid of the host; nvidia_gpu_exporter's capture
            "40170, /opt/rh/rh-python38/root/usr/bin/python3\n": "held by python3 (pid 40170)",
            "2151955, [Not Found]\n": "held by [Not Found] (pid 2151955)",
            "10291, /root/tools/memhog\n10309, ./gpu_burn\n": "held by memhog (pid 10291), gpu_burn (pid 10309)",
            "": "nvidia-smi sees no process there"}
        for apps, who in cases.items():
            with self.subTest(apps):
                health = self.health()
                self.write("apps", apps)
                self.say(say_0='echo "$row 1802, 35"')
                self.assertEqual(self.examined(health, shares=1), [])      # it may be another test's
                self.assertEqual(self.examined(health), [f"run_tests.py: GPU 0 does not give back 1000 MiB; {who}"])
                self.assertEqual((self.examined(health), self.asked()), ([], [QUERY]))
                self.say(say_0='echo "$row 2200, 35"')
                self.assertEqual([line[:47] for line in self.examined(health)],
                                 ["run_tests.py: GPU 0 does not give back 398 MiB;"])

    def test_one_that_does_not_answer_well_is_sick(self) -> None:
        """The other one is not, although nvidia-smi does not answer for all of them: then it is asked alone."""
        row = f"0, {SMI_GPUS[0]},"
        lost = "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error"       # exit status 15
        with open(os.path.join(FIXTURES, "nvidia-smi-failed.txt"), encoding="utf-8") as file:
            failed = file.read().strip()
        cases = {                        # what GPU 0 says, and what is said of it
            'echo "$row 0, [GPU requires reset]"': f"{row} 0, [GPU requires reset]",    # an H100: 0 MiB!
            'echo "$row 6, [Unknown Error]"': f"{row} 6, [Unknown Error]",      # an RTX A6000 whose sensors fail
            'echo "$row [GPU is lost], [GPU is lost]"': f"{row} [GPU is lost], [GPU is lost]",
            'echo "$row [Unknown Error], 35"': f"{row} [Unknown Error], 35",
            f"echo '{lost}'; exit 15": f"failed with status 15 ({lost})",    # pdbear/syno_nvidia_gpu_driver#22
            f"echo '{lost}'": "says nothing",
            self.prints("nvidia-smi-failed.txt") + "; exit 9": f"failed with status 9 ({failed})",
            self.prints("nvidia-smi-mismatch.txt") + "; exit 18": "failed with status 18 (Failed to initialize NVML: "
                                                                  "Driver/library version mismatch)",
            "echo 'No devices were found'; exit 6": "failed with status 6 (No devices were found)",
            "exit 0": "says nothing", "exit 255": "failed with status 255 (nothing)",
            "kill -SEGV $$": "failed with status -11 (nothing)",
        }
        for says, reason in cases.items():
            with self.subTest(says):
                health = self.health()
                self.say(say_0=says)
                self.assertEqual(self.examined(health), [f"0: nvidia-smi: {reason}"])
                self.assertEqual(self.examined(health, "1"), [])
                self.assertEqual(self.asked(), [QUERY] if "$row" in says or says.endswith(f"{lost}'") else
                                 [QUERY, f"{QUERY} -i 1"])

    def test_each_gpu_of_a_lease_is_examined(self) -> None:
        health = self.health()
        self.say(say="exit 3")
        for shares in (run_tests.SHARES, run_tests.SHARES // 2):
            self.assertEqual(self.examined(health, "0,1,2", shares),
                             [f"{token}: nvidia-smi: failed with status 3 (nothing)" for token in "01"])

    def test_one_that_hangs_is_sick(self) -> None:
        os.mkfifo(os.path.join(self.folder, "never"))
        health = self.health()
        self.say(say="read -r _ <never")
        with self.see(self.environ), mock.patch.object(run_tests, "PROBE_S", 0.2):
            reasons = [sick.reason for sick in health.examine(run_tests.Lease((*health.used,)[:1], 0))]
        self.assertEqual(reasons, ["nvidia-smi: did not answer in 0 s"])

    def test_one_that_is_not_listed_is_sick_from_the_start(self) -> None:
        """A test that sees no GPU may skip itself. CUDA hides what comes behind it in a mask, too."""
        absent = "nvidia-smi lists no GPU {}; CUDA hides it and all after it"
        for mask, sick in {"0,2": "2", "0,9,1": "9 1", "7": "7", f"{SMI_GPUS[0]},{GPU_A}": "", MIG_A: ""}.items():
            with self.subTest(mask):
                self.assertEqual([(each.device.token, each.reason) for each in self.health(mask).sick],
                                 [(token, absent.format(sick.split()[0])) for token in sick.split()])
        ran = self.run_list("true\ntrue #: gpus=2 label=wide\n", gpus="0,2", env=self.environ)
        self.check(ran, 1, {"true": "passed", "wide": "unrunnable"})
        self.assertIn(f"Quarantined: GPU 2 [{absent.format(2)}]\n", ran.err + ran.text)
        self.write("test.sh", "env true || test_fail a\nenv true || test_fail b\n")
        ran = self.run_command("test.sh", gpus="0,2", env=self.environ)
        self.assertIn(f"Quarantined: GPU 2 [{absent.format(2)}]\n", ran.text)
        self.assertNotIn("on GPU 2", ran.text)
        ran = self.run_list("true\n", "--require-gpus", "2", gpus="0,2", env=self.environ)
        self.assertEqual((ran.code, ran.err), (3, "run_tests.py: error: --require-gpus 2: there are 1 (0; "
                                                  f"{absent.format(2)}); fix the machine or its mask\n"))

    def test_what_a_real_gpu_says(self) -> None:
        """An H200 (`fixtures/devices/README.md`), by index and by UUID."""
        tools = self.tools(nvidia_smi=f'case $1 in -L) {self.prints("nvidia-smi-list-h200.txt")} ;; '
                                      f'*) {self.prints("nvidia-smi-query-h200.txt")} ;; esac')
        with self.see(tools):
            self.assertEqual(tokens(run_tests.probe({})), ["0"])
            for token in ("0", H200):
                health = run_tests.Health(machine(CUDA_VISIBLE_DEVICES=token))
                self.assertEqual(([*health.used.values()], health.sick), ([0], []))

    def test_what_is_not_watched_is_not_asked_for(self) -> None:
        """A MIG instance, an unknown GPU, no GPU; all, where there was no answer before the run."""
        health = self.health()
        self.say(say="exit 3")
        for mask in (MIG_A, "2", ""):
            self.assertEqual((self.examined(health, mask), self.asked()), ([], []))
        for script, words in ((self.prints("nvidia-smi-mismatch.txt") + "; exit 18", "status 18 (Failed to initialize"),
                              ("echo No devices were found", ""), ("exit 0", ""), (None, "")):
            with self.subTest(script), self.see(self.tools(**{"nvidia_smi": script} if script else {})) as told:
                health = run_tests.Health(machine(CUDA_VISIBLE_DEVICES="0"))
                self.assertEqual((health.used, told.getvalue().count("\n")), ({}, int(bool(words))))
                self.assertIn(words, told.getvalue())
        self.assertEqual(self.examined(health), [])


class RefusalTest(DeviceCase):
    """Mistakes in masks and `--gpus`: one line on stderr, exit code 2, nothing started."""

    def test_refusals(self) -> None:
        cases: Sequence[Tuple[Sequence[str], Optional[str], Dict[str, str], str]] = (
            ([], "0,1,0", {}, "CUDA_VISIBLE_DEVICES=0,1,0 names 0 twice; name each GPU once"),
            ([], "0,1", {"HIP_VISIBLE_DEVICES": "1,2"}, "0,1 and HIP_VISIBLE_DEVICES=1,2 disagree"),
            (["--gpus", "5"], "4,5,6,7", {}, "--gpus 5: the outer mask shows 4,5,6,7 alone, and is never widened; "
                                            "leave --gpus out to use what it shows"),
            (["--gpus", "0,5"], "4,5", {}, "--gpus 0,5: the outer mask shows 4,5 alone"),
            (["--gpus", "1"], "", {}, "shows none"),
            ([], ",".join(map(str, [*range(200), 7])), {}, "7 names 7 twice"),
            ([], None, {"ZE_AFFINITY_MASK": "0.1,1,0.1"}, "names 0.1 twice"))
        for arguments, gpus, masks, words in cases:
            with self.subTest(arguments, gpus=gpus and gpus[:9]):
                ran = self.run_list("echo >started\n", *arguments, gpus=gpus, env={**self.tools(), **masks})
                self.assertEqual((ran.code, ran.out, ran.err.count("\n")), (2, b"", 1), ran.err)
                self.assertIn(words, ran.err)
                self.assertFalse({"started", "logs"} & set(os.listdir(self.folder)))


class TestsMaskTest(DeviceCase):
    """The mask that a test sees, through the real command line."""

    def masks(self, ran: Ran, labels: str, name: str = "CUDA_VISIBLE_DEVICES") -> List[str]:
        return [self.seen(ran, label)[name] for label in labels]

    def test_each_test_sees_its_own_devices(self) -> None:
        """In the tokens of the outer mask, and in its variable alone: masks, needs, tokens, variables."""
        rocr = {"ROCR_VISIBLE_DEVICES": "6,7"}
        cases: Sequence[Tuple[str, Dict[str, str], str, Sequence[str], Sequence[str]]] = (
            ("3,2", {}, "1 0 1 0", ["3", "", "2", ""], MASKS[:1]),
            (f"{MIG_OLD}/1/0,{GPU_A},{MIG_OLD}/2/0", {}, "1", [f"{MIG_OLD}/1/0"], MASKS[:1]),
            ("4,5,6,7", {}, "2 2", ["4,5", "6,7"], MASKS[:1]), ("7,4,5", {}, "all", ["7,4,5"], MASKS[:1]),
            ("4,5", {}, "0.25 1", ["5", "4"], MASKS[:1]),
            ("2,3", {"HIP_VISIBLE_DEVICES": "2,3"}, "1 1", ["2", "3"], MASKS[:2]),
            ("", {"HIP_VISIBLE_DEVICES": "0,1", **rocr}, "1 1 0", ["0", "1", "-1"], MASKS[1:2]),
            ("", {"ZE_AFFINITY_MASK": "0.0,0.1"}, "1 1 0", ["0.0", "0.1", "-1"], MASKS[3:]),
            (" 0,-1,1", {}, "1", ["0"], MASKS[:1]), ("NoDevFiles", {}, "1 ", [""], MASKS[:1]))
        for cuda, env, needs, seen, variables in cases:
            with self.subTest(cuda, **env):
                ran = self.run_together(MASKS, *needs.split(), gpus=cuda if variables[0] == MASKS[0] else None, env=env)
                for label, expected in zip("abcd", seen):
                    others = {name: env.get(name, "-unset-") for name in MASKS}
                    self.assertEqual(self.seen(ran, label), {**others, **dict.fromkeys(variables, expected)})
                    self.assertEqual([start["gpus"] for start in ran.journal("test_start") if start["label"] == label],
                                     [[] if expected in ("", "-1") else expected.split(",")])
                    if len(seen) > 1:
                        place = "CPU" if expected in ("", "-1") else f"GPU {expected}"
                        self.assertIn(f">>> Starting: {label} on {place}", ran.text.splitlines())

    def test_gpus_option(self) -> None:
        ran = self.run_list(f"{self.look(*MASKS)} #: label=a gpus=all\n", "--gpus", "7,5", gpus="4,5,6,7")
        self.assertEqual((ran.code, self.masks(ran, "a")), (0, ["7,5"]))

    def test_a_lines_own_mask_asks_for_as_many(self) -> None:
        self.write("x.sh", self.look(*MASKS))
        ran = self.run_list("CUDA_VISIBLE_DEVICES=0,1,2,3 bash x.sh #: label=a\n"
                            "A=1 HIP_VISIBLE_DEVICES=0,1 bash x.sh #: label=b\n"
                            "CUDA_VISIBLE_DEVICES= bash x.sh #: label=c\n"
                            "CUDA_VISIBLE_DEVICES=0,1 bash x.sh #: label=d gpus=1\n"
                            "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5 bash x.sh #: label=e\n", gpus="3,4,5,6,7")
        self.check(ran, 1, {**dict.fromkeys("abcd", "passed"), "e": "unrunnable"})
        needs = {record["label"]: record["need"] for record in ran.journal("test_end")}
        self.assertEqual(needs, {"a": 4, "b": 2, "c": 0, "d": 1, "e": 6})
        for label in "abcd":
            visible = [token for token in self.masks(ran, label)[0].split(",") if token]
            self.assertEqual((len(visible), set(visible) - set("34567")), (needs[label], set()))
        self.assertEqual(self.seen(ran, "b")["HIP_VISIBLE_DEVICES"], "-unset-")

    def test_nothing_else_can_change_it(self) -> None:
        """Neither shell state nor what bash reads first; nor the order of a tool's ids."""
        names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
        prelude = self.write("prelude.sh", "export CUDA_VISIBLE_DEVICES=9\n")
        self.write("env.sh", "export CUDA_VISIBLE_DEVICES=9 HIP_VISIBLE_DEVICES=9 CUDA_DEVICE_ORDER=9\n")
        states = ("", "unset CUDA_VISIBLE_DEVICES", "source env.sh", ". ./env.sh", 'export "CUDA_VISIBLE_DEVICES=9"',
                  ": ${CUDA_VISIBLE_DEVICES:=9}", "export -n CUDA_VISIBLE_DEVICES", "source env.sh",
                  "unset CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES")
        text = "".join(f"{state}\nunset BASH_ENV; {self.look(*names)} #: label={label}\n"
                       for label, state in zip("abcdefghi", states))
        ran = self.run_list(text, gpus=None, env={**self.tools([None, None]), "BASH_ENV": prelude})
        self.check(ran, 0, dict.fromkeys("abcdefghi", "passed"))
        for start in ran.journal("test_start"):
            self.assertEqual(self.seen(ran, start["label"]), dict(zip(names, ("PCI_BUS_ID", *start["gpus"]))))
        ran = self.run_list("export CUDA_VISIBLE_DEVICES=3\ntrue\n")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertTrue(ran.err.startswith("tests.txt:1: CUDA_VISIBLE_DEVICES=3 "), ran.err)


class EnvironmentTest(DeviceCase):
    """What else a test has in its environment."""

    NAMES = ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "MASTER_PORT", "PET_MASTER_PORT", "OMP_NUM_THREADS",
             "RUN_TESTS_RUN", "RUN_TESTS_LABEL", "RUN_TESTS_SLOT", "RUN_TESTS_ATTEMPT")

    def test_four_at_a_time(self) -> None:
        ran = self.run_together(self.NAMES, *"1010", env={"PYTHONUNBUFFERED": ""})
        run, = ran.journal("run_start")
        slots = {record["label"]: str(record["slot"]) for record in ran.journal("test_start")}
        self.assertEqual(sorted(slots.values()), [*"0123"])
        seen = {label: self.seen(ran, label) for label in "abcd"}
        ports = {label: each["MASTER_PORT"] for label, each in seen.items()}
        threads = str(max(1, len(os.sched_getaffinity(0)) // 4))
        for label, each in seen.items():
            values = ("1", "1", ports[label], ports[label], threads, run["run"], label, slots[label], "1")
            self.assertEqual(each, dict(zip(self.NAMES, values)))
        self.assertEqual(len({port for port in map(int, ports.values()) if 1024 <= port < 65536}), 4, ports)

    def test_what_the_user_has_set_stays(self) -> None:
        for env in ({"MASTER_PORT": "29501", "PET_MASTER_PORT": "29502", "OMP_NUM_THREADS": "7",
                     "PYTHONFAULTHANDLER": "x"}, {"PET_MASTER_PORT": "29502"}):
            ran = self.run_together(self.NAMES, "1", "1", env=env)
            for label in "ab":
                self.assertEqual({name: self.seen(ran, label)[name] for name in env}, env)
            self.assertEqual(ran.err.count("MASTER_PORT is set, so tests"), "MASTER_PORT" in env)
        own = {"OMP_NUM_THREADS": "7", "PYTHONFAULTHANDLER": "x"}
        exports = "".join(f"export {name}={value}\n" for name, value in own.items())
        ran = self.run_list(f"{exports}{self.look(*own)} #: label=a\ntrue\n", "--log-dir", "logs")
        self.assertEqual(self.seen(ran, "a"), own)
        path = self.write("env.sh", "export A=9\n")
        ran = self.run_list("export A=7\n[ $A$BASH_ENV = 7$PWD/env.sh ] #: label=a\n", env={"BASH_ENV": path})
        self.assertEqual(ran.code, 0, ran.text)

    def test_a_test_alone(self) -> None:
        ran = self.run_list(f"{self.look(*self.NAMES)} || test_fail \"caf\u00e9 'x' #1\"\n" * 2, "--log-dir", "logs",
                            gpus="0")
        seen = [dict(line.split("=", 1) for line in ran.read(record["log"]).splitlines())
                for record in ran.journal("test_start")]
        self.assertEqual([each["RUN_TESTS_LABEL"] for each in seen], ["caf\u00e9 'x' #1", "caf\u00e9 'x' #1 #2"])
        self.assertEqual({(each["RUN_TESTS_SLOT"], each["OMP_NUM_THREADS"]) for each in seen}, {("0", "-unset-")})
        self.assertEqual([each["MASTER_PORT"].isdigit() for each in seen], [True, True])

    def test_threads_are_shared_among_slots(self) -> None:
        for cores, slots, threads in ((16, 1, None), (16, 2, "8"), (16, 3, "5"), (64, 8, "8"), (2, 8, "1")):
            with self.subTest(cores=cores, slots=slots), \
                    mock.patch.object(os, "sched_getaffinity", lambda _, cores=cores: range(cores)), \
                    mock.patch.object(run_tests, "run_bash", lambda *_: (0, b"line=1")), mock.patch.dict(os.environ):
                host = run_tests.Host(run_tests.Machine(), mock.Mock())
                host.open("run", slots, print)
                self.assertEqual(host.defaults.get("OMP_NUM_THREADS"), threads)


if __name__ == "__main__":
    unittest.main()
