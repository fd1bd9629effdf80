"""Section 5 of run_tests.py: masks, vendor tools, the pool, and what a test sees of its devices."""
from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from typing import Dict, List, Mapping, Optional, Sequence
from unittest import mock

import run_tests
from tests.support import ROOT, Ran, RunnerCase, lines_of

FIXTURES = os.path.join(ROOT, "tests", "fixtures", "devices")
GPU_A = "GPU-b614723c-e261-4605-066e-79daab4c00ff"
GPU_B = "GPU-e52dfcc4-406d-a3d4-f787-4402b535877a"
MIG_A = "MIG-dc34c2fd-4bd7-52ad-a6d0-645dcd1794e4"
MIG_B = "MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0"
MIG_C = "MIG-000d40d3-5924-5906-9879-8b69bf58689b"
MIG_OLD = "MIG-GPU-b614723c-e261-4605-066e-79daab4c00ff"      # before driver 470: …/GPU instance/compute instance
AMD_A, AMD_B = "GPU-e8d1c3ec8e0ab3d5", "GPU-151c3ec8e0ab3d77"     # AMD's are `GPU-` and 16 hex digits
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
ALL = run_tests.ALL_GPUS
MEMORY_ASKED = "nvidia-smi --format=csv,noheader,nounits --query-gpu=index,uuid,memory.used"
TIMEOUT = ("--timeout", "60s")   # ends tests that wait for each other in vain


def machine(gpus: Optional[str] = None, **environ: str) -> run_tests.Machine:
    """The devices of an outer mask, or of `--gpus` within it; no tool is asked. Warnings are not shown."""
    with contextlib.redirect_stderr(io.StringIO()):
        assert gpus is not None or run_tests.outer_machine(environ) is not None, "the vendors' tools would be asked"
        return run_tests.find_machine(gpus, environ)


def tokens(gpus: Optional[str] = None, **environ: str) -> List[str]:
    return [device.token for device in machine(gpus, **environ).devices]


class MaskCase(unittest.TestCase):
    """Values of one variable, and the tokens that they leave visible."""

    variable = ""

    def shows(self, cases: Mapping[str, Sequence[str]]) -> None:
        for value, visible in cases.items():
            with self.subTest(value=value):
                found = machine(**{self.variable: value})
                self.assertEqual([device.token for device in found.devices], list(visible))
                self.assertEqual([device.index for device in found.devices], list(range(len(visible))))
                self.assertEqual(found.variables, (self.variable,))

    def is_no_mask(self, *values: str) -> None:
        self.assertIsNone(run_tests.outer_machine({}))
        for value in values:
            with self.subTest(value=value):
                self.assertIsNone(run_tests.outer_machine({self.variable: value}))

    def is_duplicate(self, *values: str) -> None:
        for value in values:
            with self.subTest(value=value):
                with self.assertRaises(run_tests.UsageError) as caught:
                    machine(**{self.variable: value})
                self.assertIn(f"{self.variable}={value} ", str(caught.exception))


class CudaMaskTest(MaskCase):
    """As the CUDA programming guide has it."""

    variable = "CUDA_VISIBLE_DEVICES"

    def test_a_word_that_is_no_id_is_told(self) -> None:
        """`all` hides every GPU: a green run on none of them should not go unnoticed."""
        for value, told in {"all": "'all'", "0,x,1": "'x'", "0-3": "'0-3'", "": "", "-1": "", "NoDevFiles": ""}.items():
            with self.subTest(value=value), contextlib.redirect_stderr(io.StringIO()) as stderr:
                run_tests.outer_machine({self.variable: value})
                self.assertEqual(stderr.getvalue(), told and f"run_tests.py: {self.variable}={value}: {told} is no id, "
                                 "and hides itself and all after it\n")

    def test_unset_is_no_mask(self) -> None:
        self.is_no_mask()

    def test_empty_hides_all(self) -> None:
        self.shows({"": [], " ": []})

    def test_indices_stay_in_their_order(self) -> None:
        self.shows({"0": ["0"], "2,3": ["2", "3"], "3,2": ["3", "2"], "10,9,11": ["10", "9", "11"]})

    def test_minus_one_hides_all_after_it(self) -> None:
        self.shows({"0,-1,2": ["0"], "-1": [], "-1,0": [], "0,2,-1,1": ["0", "2"]})

    def test_what_is_no_device_hides_all_after_it(self) -> None:
        self.shows({"NoDevFiles": [], "none": [], "0,x,1": ["0"], "0,,1": ["0"], ",0": [], "1,": ["1"], "-2,0": []})

    def test_uuids_are_kept_as_they_are(self) -> None:
        self.shows({GPU_A: [GPU_A], f"{GPU_B},{GPU_A}": [GPU_B, GPU_A], "GPU-b614": ["GPU-b614"]})

    def test_mig_instances_are_kept_as_they_are(self) -> None:
        self.shows({MIG_A: [MIG_A], f"{MIG_B},{MIG_C}": [MIG_B, MIG_C],
                    f"{MIG_OLD}/1/0,{MIG_OLD}/2/0": [f"{MIG_OLD}/1/0", f"{MIG_OLD}/2/0"]})

    def test_spaces_around_ids_do_not_count(self) -> None:
        self.shows({" 0 , 1 ": ["0", "1"], f"{GPU_A}, {GPU_B}": [GPU_A, GPU_B], "0 1": []})

    def test_ids_of_another_kind_than_the_first_are_hidden(self) -> None:
        self.shows({f"0,{GPU_A},1": ["0"], f"{GPU_A},0": [GPU_A], f"{GPU_A},{MIG_A}": [GPU_A],
                    f"{MIG_A},{GPU_A}": [MIG_A], f"{MIG_A},1": [MIG_A]})

    def test_duplicates_are_refused(self) -> None:
        self.is_duplicate("0,0", "0,1,0", "1, 1", "0,00", "1,01", f"{GPU_A},{GPU_A}", f"{MIG_A},{MIG_B},{MIG_A}",
                          f"{MIG_OLD}/1/0,{MIG_OLD}/1/0")

    def test_a_duplicate_that_is_hidden_is_none(self) -> None:
        self.shows({"0,-1,0": ["0"], "0,x,0": ["0"]})


class HipMaskTest(MaskCase):
    """As Device::init of ROCm's clr reads it: an index is valid if it is what its number prints as."""

    variable = "HIP_VISIBLE_DEVICES"

    def test_empty_is_no_mask(self) -> None:
        self.is_no_mask("")

    def test_indices(self) -> None:
        self.shows({"0": ["0"], "2,3": ["2", "3"], "3,2": ["3", "2"], "1,": ["1"]})

    def test_minus_one_hides_itself_and_all_after_it(self) -> None:
        self.shows({"-1": [], "0,-1,1": ["0"], "-1,0": []})

    def test_spaces_are_not_stripped(self) -> None:
        self.shows({"0, 1": ["0"], " 0,1": [], "0 ,1": [], " ": []})

    def test_what_is_no_device_hides_all_after_it(self) -> None:
        self.shows({"NoDevFiles": [], "00": [], "0,x,1": ["0"], "0,,1": ["0"], ",0": [], "0.1": []})

    def test_default_is_no_word_of_hip(self) -> None:
        self.shows({"default": []})      # clr: atoi gives 0, which does not print as `default`

    def test_uuids(self) -> None:
        self.shows({AMD_A: [AMD_A], f"{AMD_A},{AMD_B}": [AMD_A, AMD_B]})

    def test_indices_and_uuids_may_be_mixed(self) -> None:
        self.shows({f"0,{AMD_A}": ["0", AMD_A], f"{AMD_A},0,{AMD_B}": [AMD_A, "0", AMD_B]})

    def test_duplicates_are_refused(self) -> None:
        self.is_duplicate("0,0", "1,0,1", f"{AMD_A},{AMD_A}")


class RocrMaskTest(MaskCase):
    """As RvdFilter of ROCm's ROCR runtime reads it."""

    variable = "ROCR_VISIBLE_DEVICES"

    def test_empty_hides_all(self) -> None:
        self.shows({"": []})

    def test_indices(self) -> None:
        self.shows({"0": ["0"], "3,2": ["3", "2"]})

    def test_entries_are_trimmed(self) -> None:
        self.shows({" 0 , 1 ": ["0", "1"], f"{AMD_A}, {AMD_B}": [AMD_A, AMD_B]})

    def test_minus_one_and_no_device_hide_all_after_them(self) -> None:
        self.shows({"-1": [], "0,-1,1": ["0"], "0,x,1": ["0"]})

    def test_uuids_of_either_case(self) -> None:
        self.shows({AMD_A: [AMD_A], AMD_A.lower(): [AMD_A.lower()]})

    def test_indices_and_uuids_may_be_mixed(self) -> None:
        self.shows({"0,GPU-DEADBEEFDEADBEEF": ["0", "GPU-DEADBEEFDEADBEEF"]})    # the example in AMD's guide

    def test_duplicates_are_refused(self) -> None:
        self.is_duplicate("0,0", "1, 1", f"{AMD_A},{AMD_A}")

    def test_a_uuid_in_other_case_is_a_duplicate(self) -> None:
        self.is_duplicate(f"{AMD_A},{AMD_A.lower()}")


class IntelMaskTest(MaskCase):
    """As parseAffinityMask of Intel's compute runtime reads it."""

    variable = "ZE_AFFINITY_MASK"

    def test_empty_and_default_are_no_mask(self) -> None:
        self.is_no_mask("", "default")

    def test_devices_and_tiles(self) -> None:
        self.shows({"0": ["0"], "0,1": ["0", "1"], "0.0,0.1": ["0.0", "0.1"], "1.0,0": ["1.0", "0"],
                    "0.1.2": ["0.1.2"]})

    def test_a_bad_entry_is_only_skipped(self) -> None:
        self.shows({"x,1": ["1"], "0,,1": ["0", "1"], "0,x,2": ["0", "2"], "-1,1": ["1"]})

    def test_nothing_but_bad_entries_hides_all(self) -> None:
        self.shows({"-1": [], "x": [], ",": []})

    def test_duplicates_are_refused(self) -> None:
        self.is_duplicate("0,0", "1.0,1.0", "0,x,0")

    def test_a_tile_of_a_device_that_is_named_is_a_duplicate(self) -> None:
        self.is_duplicate("0,0.1", "0.1,0")


class PrecedenceTest(unittest.TestCase):
    """Several masks at once."""

    def assert_machine(self, variables: Sequence[str], visible: Sequence[str], **environ: str) -> None:
        found = machine(**environ)
        self.assertEqual((list(found.variables), [device.token for device in found.devices]),
                         (list(variables), list(visible)))

    def test_cuda_comes_before_rocr_and_intel(self) -> None:
        self.assert_machine(["CUDA_VISIBLE_DEVICES"], ["2"], CUDA_VISIBLE_DEVICES="2", ROCR_VISIBLE_DEVICES="0,1",
                            ZE_AFFINITY_MASK="3")

    def test_a_mask_that_hides_all_is_a_mask(self) -> None:
        self.assert_machine(["CUDA_VISIBLE_DEVICES"], [], CUDA_VISIBLE_DEVICES="", ZE_AFFINITY_MASK="3")

    def test_hip_comes_before_rocr_whose_devices_it_numbers(self) -> None:
        self.assert_machine(["HIP_VISIBLE_DEVICES"], ["0", "1"], HIP_VISIBLE_DEVICES="0,1",
                            ROCR_VISIBLE_DEVICES="4,5,6,7")

    def test_rocr_comes_before_intel(self) -> None:
        self.assert_machine(["ROCR_VISIBLE_DEVICES"], ["4"], ROCR_VISIBLE_DEVICES="4", ZE_AFFINITY_MASK="3")

    def test_what_is_no_mask_does_not_count(self) -> None:
        self.assert_machine(["ROCR_VISIBLE_DEVICES"], ["4"], HIP_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="4")
        self.assert_machine(["CUDA_VISIBLE_DEVICES"], ["1"], CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="")

    def test_hip_and_cuda_alike_are_both_set(self) -> None:
        found = machine(CUDA_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="2,3")
        self.assertEqual(sorted(found.variables), ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
        lease = run_tests.Lease(found.devices[1:], 0)
        self.assertEqual(found.mask(lease), {"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"})
        self.assertEqual(found.mask(run_tests.Lease((), 0)),
                         {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"})

    def test_hip_and_cuda_that_differ_are_refused(self) -> None:
        for cuda, hip in (("0,1", "2,3"), ("0,1", "1,0"), ("0,1", "0"), ("0, 1", "0, 1")):
            with self.subTest(cuda=cuda, hip=hip):
                with self.assertRaises(run_tests.UsageError) as caught:
                    machine(CUDA_VISIBLE_DEVICES=cuda, HIP_VISIBLE_DEVICES=hip)
                self.assertIn(f"CUDA_VISIBLE_DEVICES={cuda} ", str(caught.exception))
                self.assertIn(f"HIP_VISIBLE_DEVICES={hip} ", str(caught.exception))


class GpusOptionTest(unittest.TestCase):
    """`--gpus`, with an outer mask and without."""

    def test_count_without_a_mask(self) -> None:
        self.assertEqual(tokens("2"), ["0", "1"])
        self.assertEqual(tokens("12"), [str(index) for index in range(12)])

    def test_ids_without_a_mask(self) -> None:
        self.assertEqual(tokens("0,2"), ["0", "2"])
        self.assertEqual(tokens("2,"), ["2"])
        self.assertEqual(tokens("3,1"), ["3", "1"])
        self.assertEqual(tokens(f"{GPU_A},{GPU_B}"), [GPU_A, GPU_B])
        self.assertEqual(tokens(GPU_A), [GPU_A])

    def test_without_a_mask_cuda_is_told(self) -> None:
        found = machine("2")
        self.assertEqual((found.variables, found.extra), (("CUDA_VISIBLE_DEVICES",), ()))

    def test_zero_hides_every_gpu(self) -> None:
        for environ in ({}, {"CUDA_VISIBLE_DEVICES": "4,5"}):
            with self.subTest(environ=environ):
                found = machine("0", **environ)
                self.assertEqual(found.devices, ())
                self.assertEqual(found.mask(run_tests.Lease((), 0)), {"CUDA_VISIBLE_DEVICES": ""})

    def test_count_takes_the_first_of_the_mask(self) -> None:
        self.assertEqual(tokens("2", CUDA_VISIBLE_DEVICES="4,5,6,7"), ["4", "5"])
        self.assertEqual(tokens("4", CUDA_VISIBLE_DEVICES="4,5,6,7"), ["4", "5", "6", "7"])
        self.assertEqual(tokens("1", CUDA_VISIBLE_DEVICES=f"{GPU_B},{GPU_A}"), [GPU_B])

    def test_ids_are_those_of_the_mask(self) -> None:
        self.assertEqual(tokens("5,7", CUDA_VISIBLE_DEVICES="4,5,6,7"), ["5", "7"])
        self.assertEqual(tokens("7,5", CUDA_VISIBLE_DEVICES="4,5,6,7"), ["7", "5"])
        self.assertEqual(tokens("6,", CUDA_VISIBLE_DEVICES="4,5,6,7"), ["6"])
        self.assertEqual(tokens(GPU_B, CUDA_VISIBLE_DEVICES=f"{GPU_A},{GPU_B}"), [GPU_B])
        self.assertEqual(tokens("0.1", ZE_AFFINITY_MASK="0.0,0.1"), ["0.1"])

    def test_other_vendors_masks_keep_their_variable(self) -> None:
        found = machine("1", HIP_VISIBLE_DEVICES="2,3")
        self.assertEqual(found.mask(run_tests.Lease(found.devices, 0)), {"HIP_VISIBLE_DEVICES": "2"})
        self.assertEqual(found.mask(run_tests.Lease((), 0)), {"HIP_VISIBLE_DEVICES": "-1"})

    def test_a_mask_is_never_widened(self) -> None:
        for gpus, visible, hidden in (("5", "4,5,6,7", "1 of them"), ("3,", "4,5,6,7", "3"), ("4,3,9", "4,5", "3,9"),
                                      ("1", "", "1 of them"), ("0,", "-1", "0"), ("2", "0,-1,1", "1 of them"),
                                      ("0,", GPU_A, "0"), (GPU_B, GPU_A, GPU_B)):
            with self.subTest(gpus=gpus, visible=visible):
                with self.assertRaises(run_tests.UsageError) as caught:
                    machine(gpus, CUDA_VISIBLE_DEVICES=visible)
                self.assertIn(f"--gpus {gpus}: the outer mask hides {hidden};", str(caught.exception))

    def test_bad_values(self) -> None:
        for text in ("", "x", "-1", "1,,2", ",", "2,,", "0,0", "1,0,1", "1 2", "0, 1", "4x", f"{GPU_A},{GPU_A}"):
            with self.subTest(text=text):
                with self.assertRaises(ValueError) as caught:
                    run_tests.parse_gpu_option(text)
                self.assertIn(repr(text), str(caught.exception))


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
        return " ".join(lease.place().replace("GPU ", "") if lease else "-" for lease in leases)

    def pool_with_free(self, count: int, *free: int) -> run_tests.Pool:
        """A pool of `count` devices, of which these indices are free."""
        pool = self.pool(count)
        leases = [self.take(pool, 1) for _ in range(count)]
        for index in free:
            pool.give(leases[index])
        return pool


class PoolTest(PoolCase):
    """Leases: whole or not at all, neighbours where there are any, smallest slot first."""

    def test_devices_come_in_device_order(self) -> None:
        self.assertEqual(self.tokens(self.pool(4), 1, 2, 1), "4 5,6 7")

    def test_too_many_is_none_and_takes_nothing(self) -> None:
        pool = self.pool(3)
        held = self.take(pool, 1)
        self.assertEqual(self.tokens(pool, 3, ALL, 2, 1), "- - 5,6 -")
        pool.give(held)
        self.assertEqual(self.take(pool, 1).tokens, ["4"])

    def test_all_is_all_of_them(self) -> None:
        self.assertEqual(self.take(self.pool(3), ALL).tokens, ["4", "5", "6"])

    def test_all_has_the_machine_to_itself(self) -> None:
        for need in (0, 0.5, 1, 2, ALL):
            with self.subTest(need=need):
                pool = self.pool(2)
                other = self.take(pool, need)
                self.assertEqual(pool.is_alone, need == ALL)
                self.assertIsNone(pool.take(ALL))
                pool.give(other)
                alone = self.take(pool, ALL)
                self.assertTrue(pool.is_alone)
                self.assertIsNone(pool.take(need))
                self.assertFalse(pool.has_room())
                pool.give(alone)
                self.assertIsNotNone(pool.take(need))

    def test_every_gpu_is_not_alone(self) -> None:
        self.assertEqual(self.tokens(self.pool(2), 2, 0, 1), "4,5 CPU -")

    def test_what_comes_back_takes_its_old_place(self) -> None:
        pool = self.pool_with_free(4, 3, 0, 2)
        self.assertEqual(self.tokens(pool, 3), "4,6,7")
        pool = self.pool_with_free(4, 3, 0, 2)
        self.assertEqual(self.tokens(pool, 1, 1, 1), "4 6 7")

    def test_neighbours_come_from_the_smallest_gap_that_holds_them(self) -> None:
        cases = [((0, 1, 2, 4, 5), 2, "8,9"), ((0, 1, 3, 4, 5), 2, "4,5"), ((0, 1, 2, 4, 5), 1, "8"),
                 ((0, 2, 3, 4, 5), 1, "4"), ((0, 1, 2, 4, 5), 3, "4,5,6"), ((0, 1, 3, 4), 2, "4,5"),
                 ((1, 2, 3, 4), 3, "5,6,7"), ((2, 3, 4, 5), 1, "6")]
        for free, need, expected in cases:
            with self.subTest(free=free, need=need):
                self.assertEqual(self.tokens(self.pool_with_free(6, *free), need), expected)

    def test_where_no_neighbours_are_free_others_do(self) -> None:
        cases = [((0, 2, 4), 2, "4,6"), ((0, 2, 3, 5), 3, "4,6,7"), ((0, 1, 3, 4), 3, "4,5,7"), ((1, 3, 5), 3, "5,7,9")]
        for free, need, expected in cases:
            with self.subTest(free=free, need=need):
                self.assertEqual(self.tokens(self.pool_with_free(6, *free), need), expected)

    def test_devices_to_avoid_are_left(self) -> None:
        self.assertEqual(self.take(self.pool(4), 1, avoid=[0, 1]).tokens, ["6"])
        self.assertEqual(self.take(self.pool(4), 2, avoid=[1]).tokens, ["6", "7"])
        self.assertIsNone(self.pool(3).take(2, avoid=[0, 2]))
        pool = self.pool(2)
        self.take(pool, 0.5)
        self.assertEqual(self.take(pool, 0.5, avoid=[0]).tokens, ["5"])
        self.assertEqual(self.take(pool, 0, avoid=[0, 1]).tokens, [])

    def test_order_is_that_of_the_mask_not_of_the_ids(self) -> None:
        pool = run_tests.Pool(machine(CUDA_VISIBLE_DEVICES="10,9,0").devices)
        first, second = self.take(pool, 1), self.take(pool, 1)
        self.assertEqual(first.tokens + second.tokens, ["10", "9"])
        pool.give(second)
        pool.give(first)
        self.assertEqual(self.take(pool, 3).tokens, ["10", "9", "0"])

    def test_the_smallest_free_slot_comes_first(self) -> None:
        pool = self.pool(4)
        leases = [self.take(pool, need) for need in (1, 0, 0.5, 0.5)]
        self.assertEqual([lease.slot for lease in leases], [0, 1, 2, 3])
        pool.give(leases[2])
        pool.give(leases[1])
        self.assertEqual([self.take(pool, need).slot for need in (1, 0, 1)], [1, 2, 4])

    def test_no_devices_needed_is_a_slot_all_the_same(self) -> None:
        pool = self.pool(1)
        leases = [self.take(pool, need) for need in (0, 1, 0)]
        self.assertEqual([(lease.slot, lease.tokens) for lease in leases], [(0, []), (1, ["4"]), (2, [])])
        self.assertEqual([lease.place() for lease in leases], ["CPU", "GPU 4", "CPU"])

    def test_tests_without_a_gpu_have_so_many_slots(self) -> None:
        pool = self.pool(1, cpus=2)
        held = self.take(pool, 0)
        self.assertEqual(self.tokens(pool, 0, 0, 1, 0), "CPU - 4 -")
        pool.give(held)
        self.assertEqual(self.tokens(pool, 0, 0), "CPU -")

    def test_without_devices_there_is_one_place(self) -> None:
        pool = run_tests.Pool([])
        lease = self.take(pool, 1)
        self.assertEqual((lease.tokens, lease.place(), pool.size), ([], "CPU", 1))
        self.assertIsNone(pool.take(1))
        pool.give(lease)
        self.assertIsNotNone(pool.take(ALL))

    def test_a_sequential_pool_gives_one_lease_at_a_time(self) -> None:
        needs = (0, 0.5, 1, ALL)
        for need in needs:
            with self.subTest(need=need):
                pool = self.pool(1, sequential=True)
                lease = self.take(pool, need)
                self.assertEqual((lease.slot, pool.is_alone, pool.has_room()), (0, True, False))
                self.assertEqual([pool.take(other) for other in needs], [None] * 4)
                pool.give(lease)
                self.assertEqual((self.take(pool, need).slot, pool.has_room()), (0, False))

    def test_there_is_room_while_anything_is_free(self) -> None:
        pool = self.pool(1, cpus=1)
        self.assertTrue(pool.has_room())
        gpu = self.take(pool, 1)
        self.assertTrue(pool.has_room())
        cpu = self.take(pool, 0)
        self.assertFalse(pool.has_room())
        pool.give(gpu)
        self.assertTrue(pool.has_room())
        share = self.take(pool, 0.999999)
        self.assertTrue(pool.has_room())
        self.take(pool, 0.000001)
        self.assertFalse(pool.has_room())
        pool.give(share)
        self.assertTrue(pool.has_room())
        self.take(pool, 0.999999)
        pool.give(cpu)
        self.assertTrue(pool.has_room())


class SharesTest(PoolCase):
    """Leases of fractions."""

    def test_four_quarters_are_one_device(self) -> None:
        self.assertEqual(self.tokens(self.pool(2), *[0.25] * 9), "4 4 4 4 5 5 5 5 -")

    def test_a_fraction_is_of_one_device(self) -> None:
        self.assertEqual(self.tokens(self.pool(2), 0.75, 0.75, 0.5, 0.25), "4 5 - 4")

    def test_shares_add_up_to_a_device_whatever_floats_do(self) -> None:
        for needs in ((0.7, 0.2, 0.1), (0.1,) * 10, (0.3, 0.3, 0.3, 0.1), (0.000001, 0.999999), (0.6, 0.4),
                      (0.000249, 0.999751), (0.000123, 0.999877)):
            with self.subTest(needs=needs):
                pool = self.pool(1, cpus=0)
                leases = [self.take(pool, need) for need in needs]
                self.assertEqual(sum(lease.shares for lease in leases), run_tests.SHARES)
                self.assertEqual((pool.take(0.000001), pool.has_room()), (None, False))
                for lease in leases:
                    pool.give(lease)
                self.assertEqual(self.take(pool, 1).shares, run_tests.SHARES)

    def test_thirds_fit_three_times(self) -> None:
        self.assertEqual(self.tokens(self.pool(1), *[0.333333] * 4), "4 4 4 -")

    def test_a_fraction_goes_where_the_least_is_left_for_others(self) -> None:
        pool = self.pool(3)
        self.assertEqual(self.tokens(pool, 0.5, 0.75, 0.25, 0.25, 0.25, 0.25), "4 5 5 4 4 6")

    def test_of_whole_devices_a_fraction_takes_one_that_is_alone(self) -> None:
        self.assertEqual(self.tokens(self.pool_with_free(4, 0, 1, 3), 0.5, 2), "7 4,5")

    def test_a_device_with_a_share_given_is_never_given_whole(self) -> None:
        pool = self.pool(2)
        share = self.take(pool, 0.1)
        self.assertEqual(self.tokens(pool, 2, ALL, 1, 1), "- - 5 -")
        pool.give(share)
        self.assertEqual(self.take(pool, 1).tokens, ["4"])

    def test_a_device_is_whole_again_when_the_last_share_is_back(self) -> None:
        pool = self.pool(1)
        leases = [self.take(pool, 0.5), self.take(pool, 0.25), self.take(pool, 0.25)]
        for lease in leases:
            self.assertIsNone(pool.take(1))
            pool.give(lease)
        self.assertIsNotNone(pool.take(1))

    def test_a_place_without_devices_is_shared_too(self) -> None:
        self.assertEqual(self.tokens(run_tests.Pool([]), 0.5, 0.5, 0.5), "CPU CPU -")


class LostDevicesTest(PoolCase):
    """Devices in quarantine are lent no more."""

    def test_one_that_is_free(self) -> None:
        pool = self.pool(3)
        pool.quarantine(pool.devices[1])
        self.assertEqual((pool.size, self.tokens(pool, 2, 1, 0)), (2, "4,6 - CPU"))

    def test_one_that_is_leased(self) -> None:
        pool = self.pool(3)
        lease = self.take(pool, 2)
        pool.quarantine(lease.devices[0])
        self.assertEqual((pool.size, self.tokens(pool, 2)), (2, "-"))
        pool.give(lease)
        self.assertEqual(self.tokens(pool, 2, 1), "5,6 -")

    def test_one_that_is_shared(self) -> None:
        pool = self.pool(2)
        first, second = self.take(pool, .5), self.take(pool, .25)
        pool.quarantine(first.devices[0])
        self.assertEqual(self.tokens(pool, .25), "5")
        pool.give(first)
        pool.give(second)
        self.assertEqual(self.tokens(pool, .75, .25, 1), "5 - -")

    def test_all_are_all_that_are_left(self) -> None:
        pool = self.pool(3)
        pool.quarantine(pool.devices[0])
        lease = self.take(pool, ALL)
        self.assertEqual(lease.tokens, ["5", "6"])
        pool.quarantine(pool.devices[2])
        pool.give(lease)
        self.assertEqual(self.tokens(pool, ALL), "5")

    def test_twice_is_once(self) -> None:
        pool = self.pool(2)
        for _ in range(2):
            pool.quarantine(pool.devices[0])
        self.assertEqual((pool.size, self.tokens(pool, 1, 1)), (1, "5 -"))

    def test_when_none_is_left_cpu_tests_have_their_slots(self) -> None:
        pool = self.pool(1)
        pool.quarantine(pool.devices[0])
        self.assertEqual((pool.size, self.tokens(pool, 1, .5, 0, 0, 0)), (0, "- - CPU CPU -"))

    def test_none_is_ever_lent_again(self) -> None:
        for seed in range(40):
            chance = random.Random(seed)
            size, held = chance.randint(1, 6), []
            pool = self.pool(size)
            for _ in range(60):
                if held and chance.random() < .5:
                    pool.give(held.pop(chance.randrange(len(held))))
                elif chance.random() < .05:
                    pool.quarantine(chance.choice(pool.devices))
                else:
                    lease = pool.take(chance.choice([0, .25, .5, 1, 1, 2]))
                    held += [lease] if lease else []
                    self.assertTrue(lease is None or pool.lost.isdisjoint(device.index for device in lease.devices))
            for lease in held:
                pool.give(lease)
            if pool.size:
                left = {device.index for device in self.take(pool, ALL).devices}
                self.assertEqual(left, set(range(size)) - pool.lost)


class RandomPoolTest(PoolCase):
    """Random leases: after each step what is held and what is free are all there is, each once."""

    def test_nothing_is_ever_held_twice_and_all_comes_back(self) -> None:
        for seed in range(60):
            with self.subTest(seed=seed):
                self.take_and_give(random.Random(seed))

    def take_and_give(self, chance: random.Random) -> None:
        size, cpus = chance.randint(1, 9), chance.randint(1, 3)
        pool = self.pool(size, cpus)
        held: Dict[run_tests.Lease, float] = {}      # with the need
        for _ in range(200):
            if held and chance.random() < 0.5:
                lease = chance.choice(list(held))
                del held[lease]
                pool.give(lease)
            else:
                need = chance.choice([0, 0, 0.1, 0.25, 0.3, 0.5, 0.7, 1, 1, 1, 2, 3, size, ALL])
                taken = pool.take(need)
                self.check(held, taken, need, size, cpus)
                if taken is not None:
                    held[taken] = need
        for lease in held:
            pool.give(lease)
        self.assertEqual(len(self.take(pool, ALL).devices), size)

    def check(self, held: Mapping[run_tests.Lease, float], lease: Optional[run_tests.Lease], need: float,
              size: int, cpus: int) -> None:
        """A lease is what is free, or there is not enough of that."""
        room = [run_tests.SHARES] * size
        for other in held:
            for device in other.devices:
                room[device.index] -= other.shares
        shares = round(need * run_tests.SHARES) if 0 < need < 1 else run_tests.SHARES
        free = [index for index in range(size) if room[index] >= shares]
        count = size if need == ALL else 1 if 0 < need < 1 else int(need)
        is_free = (len(free) >= count and ALL not in held.values() and (need != ALL or not held)
                   and (need > 0 or list(held.values()).count(0) < cpus))
        self.assertEqual(lease is not None, is_free, f"{need} of {room}")
        if lease is not None:
            self.assertEqual((len(lease.devices), lease.shares), (count, shares))
            self.assertEqual(lease.slot, min(set(range(len(held) + 1)) - {other.slot for other in held}))
            self.check_place(room, free, [device.index for device in lease.devices], shares)

    def check_place(self, room: Sequence[int], free: Sequence[int], chosen: Sequence[int], shares: int) -> None:
        """The devices are free, fractions fill the fullest, and whole devices are neighbours if any are."""
        self.assertLessEqual(set(chosen), set(free))
        self.assertEqual(sorted(set(chosen)), list(chosen))
        if shares < run_tests.SHARES:
            self.assertEqual(room[chosen[0]], min(room[index] for index in free))
        rows = [list(range(first, first + len(chosen))) for first in free]
        if any(set(row) <= set(free) for row in rows):
            self.assertTrue(list(chosen) in rows or not chosen)
        else:
            self.assertEqual(list(chosen), list(free[:len(chosen)]))


class DeviceCase(RunnerCase):
    """Runs of the command line on a machine of stubs: none of its own tools is found."""

    def tools(self, gpus: Optional[Sequence[object]] = None, nvml: Mapping[str, object] = {},  # noqa: B006
              **scripts: str) -> Dict[str, str]:
        """An environment with bash, these vendors' tools, and a `pynvml` that shows `gpus` or finds no driver.

        `nvidia_smi="exit 9"` is the sh script of `nvidia-smi`.
        """
        folder = os.path.join(self.folder, "bin")
        os.makedirs(folder, exist_ok=True)
        for name in ("bash", "cat"):
            if not os.path.lexists(os.path.join(folder, name)):
                os.symlink(shutil.which(name) or name, os.path.join(folder, name))
        for name, script in scripts.items():
            self.stub(name.replace("_", "-"), f"#!/bin/sh\n{script}\n")
        stub = {"gpus": gpus, **({"fails": ["nvmlInit"]} if gpus is None else {}), **nvml}
        return {"PATH": folder, "PYTHONPATH": FIXTURES, "STUB_NVML": json.dumps(stub)}

    def prints(self, name: str) -> str:
        """The sh script of a tool that prints a fixture."""
        return "cat " + shlex.quote(os.path.join(FIXTURES, name))

    def found(self, env: Mapping[str, str], warns: Sequence[str] = ()) -> List[str]:
        """The devices that a run finds, with these words, and no others, on its stderr, a line each."""
        ran = self.run_list("true #: label=a\n", gpus=None, env=env)
        self.check(ran, 0, {"a": "passed"})
        told = ran.err.splitlines()
        self.assertEqual(len(told), len(warns), ran.err)
        for line, words in zip(told, warns):
            self.assertIn(words, line)
        devices = ran.journal("run_start")[-1]["gpus"]
        if len(devices) > 1:
            self.assertEqual(ran.text.splitlines()[0], f"Detected {len(devices)} GPU(s): {' '.join(devices)}")
        else:
            self.assertEqual(lines_of(ran.text, "Detected"), [])
        return devices

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
        first = "; ".join([f"read -r _ < {come}" for come, _ in fifos] + [f"echo > {go}" for _, go in fifos])
        return [first] + [f"echo > {come}; read -r _ < {go}" for come, go in fifos]


class ProbeTest(DeviceCase):
    """No mask and no `--gpus`: the vendors' tools in turn."""

    def amd(self) -> Dict[str, str]:
        return {"amd_smi": self.prints("amd-smi-list.json"), "rocm_smi": self.prints("rocm-smi-showid.json")}

    def listening(self) -> Dict[str, str]:
        """Tools that tell nothing, but note what they were asked."""
        note = f'echo "${{0##*/}} $*" >> {shlex.quote(os.path.join(self.folder, "asked"))}'
        return {"nvidia_smi": note, "amd_smi": note, "rocm_smi": note}

    def asked(self) -> List[str]:
        """What those were asked, since the last call."""
        path = os.path.join(self.folder, "asked")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        os.unlink(path)
        return lines

    def test_pynvml_comes_first_and_no_other_is_asked(self) -> None:
        self.assertEqual(self.found(self.tools([None] * 3, **self.listening())), ["0", "1", "2"])
        self.assertEqual(self.asked(), [MEMORY_ASKED])

    def test_nvidia_smi_comes_before_amds_tools(self) -> None:
        env = self.tools(nvidia_smi=self.prints("nvidia-smi-list.txt"), **self.amd())
        self.assertEqual(self.found(env), ["0", "1"])

    def test_amd_smi_comes_before_rocm_smi(self) -> None:
        self.assertEqual(self.found(self.tools(**self.amd())), ["0", "1", "2", "3"])

    def test_amd_smi_of_newer_releases(self) -> None:
        env = self.tools(amd_smi=self.prints("amd-smi-list-wrapped.json"))
        self.assertEqual(self.found(env), ["0", "1", "2", "3"])

    def test_rocm_smi_comes_last(self) -> None:
        env = self.tools(rocm_smi=self.prints("rocm-smi-showid.json"))
        self.assertEqual(self.found(env), ["0", "1", "2"])

    def test_tools_are_asked_for_a_list(self) -> None:
        def only(arguments: str, name: str) -> str:
            return f'if [ "$*" = "{arguments}" ]; then {self.prints(name)}; fi'

        for tool, arguments, name in (("nvidia_smi", "-L", "nvidia-smi-list.txt"),
                                      ("amd_smi", "list --json", "amd-smi-list.json"),
                                      ("rocm_smi", "--showid --json", "rocm-smi-showid.json")):
            with self.subTest(tool=tool):
                quiet = {"nvidia_smi": "exit 0", "amd_smi": "exit 0", "rocm_smi": "exit 0"}
                self.assertGreater(len(self.found(self.tools(**{**quiet, tool: only(arguments, name)}))), 1)

    def test_nvidia_smi_lists_mig_instances_in_place_of_their_gpu(self) -> None:
        self.assertEqual(self.found(self.tools(nvidia_smi=self.prints("nvidia-smi-list-mig.txt"))),
                         [MIG_A, MIG_B, MIG_C])
        self.assertEqual(self.found(self.tools(nvidia_smi=self.prints("nvidia-smi-list-mixed.txt"))),
                         ["0", MIG_B, MIG_C])

    def test_pynvml_lists_mig_instances_in_place_of_their_gpu(self) -> None:
        for options in ({}, {"bytes": True}):
            with self.subTest(**options):
                env = self.tools([None, [MIG_B, None, MIG_C, None], "unsupported", [MIG_A]], options)
                self.assertEqual(self.found(env), ["0", MIG_B, MIG_C, "2", MIG_A])

    def test_pynvml_from_before_mig(self) -> None:
        absent = ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
        self.assertEqual(self.found(self.tools([None, None], {"lacks": absent})), ["0", "1"])

    def test_pynvml_that_warns_of_its_age_is_not_quoted(self) -> None:
        self.assertEqual(self.found(self.tools([None, None], {"warns": True})), ["0", "1"])

    def test_pynvml_that_does_not_end_well_has_answered(self) -> None:
        self.assertEqual(self.found(self.tools([None, None], {"fails": ["nvmlShutdown"]})), ["0", "1"])

    def test_broken_pynvml_falls_through(self) -> None:
        script = self.prints("nvidia-smi-list.txt")
        for options in ({"fails": ["import"]}, {"fails": ["nvmlInit"]}, {"lacks": ["nvmlInit"]}):
            with self.subTest(**options):
                self.assertEqual(self.found(self.tools([None] * 3, options, nvidia_smi=script)), ["0", "1"])

    def test_pynvml_that_fails_half_way_falls_through(self) -> None:
        script = self.prints("nvidia-smi-list.txt")
        for name in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
            with self.subTest(name):
                env = self.tools([None] * 3, {"fails": [name]}, nvidia_smi=script)
                self.assertEqual(self.found(env, [f"pynvml failed ({name}: Uninitialized)"]), ["0", "1"])

    def test_pynvml_without_gpus_falls_through(self) -> None:
        env = self.tools([], nvidia_smi=self.prints("nvidia-smi-list.txt"))
        self.assertEqual(self.found(env), ["0", "1"])

    def test_a_tool_that_fails_is_told_and_passed_over(self) -> None:
        env = self.tools(nvidia_smi=self.prints("nvidia-smi-failed.txt") + "; exit 9",
                         amd_smi="echo 'ERROR: amdgpu is not loaded' >&2; exit 255",
                         rocm_smi=self.prints("rocm-smi-showid.json"))
        self.assertEqual(self.found(env, [
            "nvidia-smi failed with status 9 (NVIDIA-SMI has failed because it couldn't communicate",
            "amd-smi failed with status 255 (ERROR: amdgpu is not loaded)"]), ["0", "1", "2"])

    def test_a_tool_that_is_no_program_is_told_and_passed_over(self) -> None:
        env = self.tools(amd_smi=self.prints("amd-smi-list.json"))
        self.stub("nvidia-smi", "\0not a program")
        self.assertEqual(self.found(env, ["nvidia-smi cannot be run ("]), ["0", "1", "2", "3"])

    def test_a_tool_whose_answer_makes_no_sense_is_passed_over(self) -> None:
        for nonsense in ("exit 0", "echo no GPUs", "echo '{}'", "echo '[{}]'", "echo null", 'echo \'["x"]\'', "echo 5",
                         'echo \'[{"gpu": "N/A"}]\'', "printf '\\377\\n'"):
            with self.subTest(nonsense):
                env = self.tools(nvidia_smi="echo No devices were found", amd_smi=nonsense,
                                 rocm_smi=self.prints("rocm-smi-showid.json"))
                with mock.patch.dict(os.environ, env), mock.patch.dict("sys.modules", {"pynvml": None}), \
                        contextlib.redirect_stderr(io.StringIO()):
                    self.assertEqual(len(run_tests.probe({}).devices), 3)

    def test_a_tool_that_hangs_is_left(self) -> None:
        os.mkfifo(os.path.join(self.folder, "never"))
        env = self.tools(nvidia_smi=f"read -r _ < {shlex.quote(os.path.join(self.folder, 'never'))}")
        told = io.StringIO()
        with mock.patch.object(run_tests, "PROBE_S", 0.2), mock.patch.dict(os.environ, env), \
                contextlib.redirect_stderr(told):
            self.assertEqual(run_tests.nvidia_smi_tokens(), [])
        self.assertIn("nvidia-smi did not answer", told.getvalue())

    def test_nothing_found_is_sequential(self) -> None:
        ran = self.run_list(f"{self.look(*MASKS)} #: label=a\necho 2 #: label=b\n", gpus=None, env=self.tools())
        self.check(ran, 0, {"a": "passed", "b": "passed"})
        self.assertEqual(ran.text.splitlines()[:5], [f"{name}=-unset-" for name in MASKS] + ["2"])
        self.assertNotIn(">>>", ran.text)
        self.assertEqual((ran.err, ran.journal("run_start")[0]["gpus"]), ("", []))

    def test_one_gpu_found_is_sequential_and_told(self) -> None:
        ran = self.run_list(f"{self.look('CUDA_VISIBLE_DEVICES')} #: label=a\n", gpus=None, env=self.tools([None]))
        self.check(ran, 0, {"a": "passed"})
        self.assertEqual(ran.text.splitlines()[0], "CUDA_VISIBLE_DEVICES=0")

    def test_a_mask_or_gpus_asks_no_tool_but_for_memory(self) -> None:
        """What they show is believed; of NVIDIA's GPUs one wants to know what they hold before the run."""
        env = self.tools(None, {"fails": ["import"]}, **self.listening())
        cases = {"a mask": ([], "0,1", {}, [MEMORY_ASKED]), "--gpus": (["--gpus", "2"], None, {}, [MEMORY_ASKED]),
                 "both": (["--gpus", "1"], "0,1", {}, [MEMORY_ASKED]),
                 "AMD's mask": ([], None, {"HIP_VISIBLE_DEVICES": "0,1"}, []),
                 "Intel's mask": ([], None, {"ZE_AFFINITY_MASK": "0,1"}, []), "a mask that hides all": ([], "", {}, [])}
        for name, (arguments, gpus, masks, asked) in cases.items():
            with self.subTest(name):
                ran = self.run_list("true #: label=a\n", *arguments, gpus=gpus, env={**env, **masks})
                self.assertEqual((ran.code, ran.err, self.asked()), (0, "", asked))

    def test_memory_that_cannot_be_asked_for_is_told_once(self) -> None:
        env = self.tools([None] * 2, nvidia_smi="echo No devices were found; exit 6")
        ran = self.run_list("true\n" * 4, gpus=None, env=env)
        told = "run_tests.py: nvidia-smi failed with status 6 (No devices were found); going on without it\n"
        self.assertEqual((ran.code, ran.err), (0, told))

    def device_order(self, env: Mapping[str, str], *arguments: str, gpus: Optional[str] = None) -> str:
        line = f"{self.look('CUDA_DEVICE_ORDER')} #: label=a\n"
        ran = self.run_list(line, *arguments, gpus=gpus, env=env)
        self.assertEqual(ran.code, 0, ran.err)
        return self.seen(ran, "a")["CUDA_DEVICE_ORDER"]

    def test_ids_from_a_tool_are_in_bus_order(self) -> None:
        for env in (self.tools([None, None]), self.tools(nvidia_smi=self.prints("nvidia-smi-list.txt"))):
            self.assertEqual(self.device_order(env), "PCI_BUS_ID")

    def test_the_users_order_is_kept(self) -> None:
        env = {**self.tools([None, None]), "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
        self.assertEqual(self.device_order(env), "FASTEST_FIRST")

    def test_other_ids_are_in_no_order_of_ours(self) -> None:
        env = self.tools([None, None])
        self.assertEqual(self.device_order(env, gpus="0,1"), "-unset-")
        self.assertEqual(self.device_order(env, "--gpus", "2"), "-unset-")
        self.assertEqual(self.device_order(self.tools(amd_smi=self.prints("amd-smi-list.json"))), "-unset-")

    def test_a_tools_ids_reach_the_tests(self) -> None:
        for script, seen in (({"nvidia_smi": self.prints("nvidia-smi-list-mig.txt")},
                              {"CUDA_VISIBLE_DEVICES": MIG_B, "HIP_VISIBLE_DEVICES": "-unset-"}),
                             ({"nvidia_smi": "exit 0", "amd_smi": self.prints("amd-smi-list.json")},
                              {"CUDA_VISIBLE_DEVICES": "-unset-", "HIP_VISIBLE_DEVICES": "1"})):
            with self.subTest(**script):
                shutil.rmtree(os.path.join(self.folder, "bin"), ignore_errors=True)
                first, second = self.meet(2)
                ran = self.run_list(f"{first} #: label=a\n{second}; {self.look(*MASKS[:2])} #: label=b\n", *TIMEOUT,
                                    gpus=None, env=self.tools(**script))
                self.assertEqual(ran.code, 0, ran.text + ran.err)
                self.assertEqual(self.seen(ran, "b"), seen)


HOLD = """
import sys, run_tests
machine = run_tests.outer_machine({"CUDA_VISIBLE_DEVICES": sys.argv[2]})
locks = run_tests.GpuLocks(sys.argv[1], machine)
print(*[locks.take(device) for device in machine.devices], flush=True)
sys.stdin.read()
"""


class GpuLocksTest(DeviceCase):
    """Runners of one machine that name the same folder. Two GpuLocks are as good as two: flock is by open file."""

    def setUp(self) -> None:
        super().setUp()
        self.place = os.path.join(self.folder, "a", "locks")
        self.see()

    def see(self, **scripts: str) -> None:
        """From now on these are the vendors' tools."""
        patch = mock.patch.dict(os.environ, self.tools(**scripts))
        patch.start()
        self.addCleanup(patch.stop)

    def locks(self, mask: str = "0,1", variable: str = "CUDA_VISIBLE_DEVICES") -> run_tests.GpuLocks:
        return run_tests.GpuLocks(self.place, machine(**{variable: mask}))

    def pool(self, mask: str = "0,1") -> run_tests.Pool:
        found = machine(CUDA_VISIBLE_DEVICES=mask)
        return run_tests.Pool(found.devices, 2, locks=run_tests.GpuLocks(self.place, found))

    def names(self) -> List[str]:
        return sorted(os.listdir(self.place))

    def takes(self, locks: run_tests.GpuLocks) -> List[bool]:
        return [locks.take(device) for device in locks.files]

    def holder(self, mask: str) -> "subprocess.Popen[str]":
        """Another process that holds the GPUs of a mask until it is killed."""
        process = subprocess.Popen([sys.executable, "-c", HOLD, self.place, mask], cwd=ROOT, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout and process.stdout.readline(), "True\n")
        return process

    def test_a_gpu_has_one_holder(self) -> None:
        one, other = self.locks(), self.locks()
        first, second = one.files
        self.assertTrue(one.take(first))
        self.assertEqual(self.takes(other), [False, True])
        self.assertEqual(one.take(second), False)
        one.give(first)
        self.assertTrue(other.take(first))

    def test_one_that_dies_holds_nothing(self) -> None:
        process, locks = self.holder("1"), self.locks()
        self.assertEqual(self.takes(locks), [True, False])
        process.kill()
        process.wait()
        self.assertEqual(self.takes(locks), [True, True])

    def test_files_left_by_others_are_no_locks(self) -> None:
        os.makedirs(self.place)
        self.write("a/locks/gpu-0.lock", "pid 1\n")
        self.assertEqual(self.takes(self.locks("0")), [True])
        self.assertEqual(self.names(), ["gpu-0.lock"])

    def test_a_test_does_not_inherit_them(self) -> None:
        locks = self.locks()
        self.assertEqual([os.get_inheritable(file) for file in locks.files.values()], [False, False])

    def test_an_index_and_its_uuid_are_one_gpu(self) -> None:
        self.see(nvidia_smi=self.prints("nvidia-smi-list.txt"))
        by_index, by_uuid = self.locks("0,1"), self.locks(f"{GPU_B},{GPU_A}")
        self.assertEqual(self.names(), [f"gpu-{GPU_A}.lock", f"gpu-{GPU_B}.lock"])
        self.assertTrue(by_index.take(list(by_index.files)[0]))
        self.assertEqual(self.takes(by_uuid), [True, False])

    def test_without_nvidia_smi_tokens_are_names(self) -> None:
        for script in (None, "exit 9", "echo No devices were found"):
            with self.subTest(script=script), contextlib.redirect_stderr(io.StringIO()):
                self.see(**({"nvidia_smi": script} if script else {}))
                self.locks("3,4")
                self.locks(GPU_A)
                self.assertEqual(self.names(), ["gpu-3.lock", "gpu-4.lock", f"gpu-{GPU_A}.lock"])

    def test_mig_instances_have_a_file_each(self) -> None:
        self.see(nvidia_smi=self.prints("nvidia-smi-list-mig.txt"))
        self.locks(f"{MIG_A},{MIG_B}")
        self.locks(f"{MIG_OLD}/1/0")
        self.assertEqual(self.names(), sorted([f"gpu-{MIG_A}.lock", f"gpu-{MIG_B}.lock", f"gpu-{MIG_OLD}_1_0.lock"]))

    def test_other_vendors_are_not_named_by_nvidias_tool(self) -> None:
        self.see(nvidia_smi=self.prints("nvidia-smi-list.txt"))
        self.locks("0", variable="HIP_VISIBLE_DEVICES")
        self.locks("0.1", variable="ZE_AFFINITY_MASK")
        self.assertEqual(self.names(), ["gpu-0.1.lock", "gpu-0.lock"])

    def test_a_folder_that_cannot_be_made(self) -> None:
        self.write("a", "a file is in the way")
        with self.assertRaises(run_tests.MachineError) as caught:
            self.locks()
        self.assertIn(self.place, str(caught.exception))
        self.assertIn("--gpu-locks", str(caught.exception))

    def test_a_lock_file_that_cannot_be_opened(self) -> None:
        os.makedirs(os.path.join(self.place, "gpu-1.lock"))
        with self.assertRaises(run_tests.MachineError) as caught:
            self.locks()
        self.assertIn("gpu-1.lock", str(caught.exception))

    def test_a_pool_gives_what_no_other_runner_holds(self) -> None:
        one, other = self.pool("0,1,2"), self.pool("0,1,2")
        held = one.take(1)
        assert held is not None
        self.assertIsNone(other.take(3))
        self.assertTrue(other.held_by_others)
        lease = other.take(2)
        self.assertEqual(lease and lease.tokens, ["1", "2"])
        self.assertIsNone(one.take(1))
        one.give(held)
        self.assertIsNotNone(other.take(1))

    def test_a_pool_that_is_refused_holds_nothing(self) -> None:
        one, other, third = self.pool("0,1"), self.pool("0,1,2"), self.pool("0,1,2")
        self.assertIsNotNone(one.take(1))
        self.assertEqual([other.take(3), other.take(run_tests.ALL_GPUS)], [None, None])
        lease = third.take(2)
        self.assertEqual(lease and lease.tokens, ["1", "2"])

    def test_a_pool_holds_no_more_than_it_gives(self) -> None:
        one, other = self.pool(), self.pool()
        self.assertIsNotNone(one.take(1))
        lease = other.take(1)
        self.assertEqual(lease and lease.tokens, ["1"])

    def test_what_does_not_fit_asks_for_no_lock(self) -> None:
        pool = self.pool()
        self.assertIsNotNone(pool.take(1))
        self.assertIsNone(pool.take(2))
        self.assertFalse(pool.held_by_others)

    def test_neighbours_are_chosen_among_what_is_not_locked(self) -> None:
        one, other = self.pool("1"), self.pool("0,1,2,3")
        self.assertIsNotNone(one.take(1))
        lease = other.take(2)
        self.assertEqual(lease and lease.tokens, ["2", "3"])

    def test_a_device_that_is_shared_stays_locked_until_the_last_share_is_back(self) -> None:
        one, other = self.pool("0"), self.pool("0")
        shares = [one.take(0.5), one.take(0.5)]
        for share in shares:
            self.assertIsNone(other.take(0.1))
            assert share is not None
            one.give(share)
        self.assertIsNotNone(other.take(1))

    def test_a_test_without_a_gpu_needs_no_lock(self) -> None:
        one, other, third = self.pool(), self.pool(), self.pool()
        self.assertIsNotNone(one.take(2))
        self.assertIsNotNone(other.take(0))
        self.assertFalse(other.held_by_others)
        for lease in [one.take(0), one.take(0)]:
            assert lease is not None
            one.give(lease)
        self.assertIsNone(third.take(1))

    def test_a_run_keeps_to_the_gpus_that_are_free(self) -> None:
        locks = self.locks()
        self.assertTrue(locks.take(list(locks.files)[0]))
        ran = self.run_list("true #: label=a\ntrue #: label=b\n", "--gpu-locks", self.place)
        self.check(ran, 0, {"a": "passed", "b": "passed"})
        self.assertEqual([record["gpus"] for record in ran.journal("test_start")], [["1"], ["1"]])

    def test_a_run_without_a_place_for_locks_does_not_start(self) -> None:
        self.write("a", "a file is in the way")
        ran = self.run_list("true\n", "--gpu-locks", self.place)
        self.assertEqual((ran.code, ran.out), (3, b""))
        self.assertIn("--gpu-locks", ran.err)


class HealthTest(DeviceCase):
    """What nvidia-smi says of a GPU's memory before the run and after a test. The stub says what files hold."""

    def setUp(self) -> None:
        super().setUp()
        self.now("nvidia-smi-memory.txt", "35, 35")

    def now(self, before: str, after: str, status: int = 0, apps: str = "nvidia-smi-apps.txt") -> None:
        """From now on nvidia-smi says this: fixtures, or the rows themselves; `after` of GPU 0 and its UUID alone."""
        rows = {"index,uuid": (before, 0), "compute-apps": (apps, 0), "memory.used,temp": (after, status)}
        script = f'echo "$*" >> {shlex.quote(self.path("asked"))}\ncase "$*" in\n'
        for words, (text, code) in rows.items():
            says = self.prints(text) if text.endswith(".txt") else f"echo {shlex.quote(text)}"
            script += f"*{words}*) {says}; exit {code};;\n"
        patch = mock.patch.dict(os.environ, self.tools(nvidia_smi=script + "esac"))
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def asked(self) -> List[str]:
        """What nvidia-smi was asked since the last call, without what it is always asked."""
        with contextlib.suppress(FileNotFoundError), open(self.path("asked"), encoding="utf-8") as file:
            lines = [line.strip().replace("--format=csv,noheader,nounits ", "") for line in file]
            os.unlink(self.path("asked"))
            return lines
        return []

    def lease(self, mask: str = "0", shares: int = run_tests.SHARES, **environ: str) -> run_tests.Lease:
        return run_tests.Lease(machine(**(environ or {"CUDA_VISIBLE_DEVICES": mask})).devices, 0, shares)

    def health(self, mask: str = "0,1", **environ: str) -> run_tests.Health:
        return run_tests.Health(machine(**(environ or {"CUDA_VISIBLE_DEVICES": mask})))

    def examined(self, health: run_tests.Health, lease: run_tests.Lease) -> List[str]:
        """What is sick of a lease, and the warnings. It does not wait for long."""
        told = io.StringIO()
        with mock.patch.object(run_tests, "MEMORY_S", 0.1), mock.patch.object(run_tests, "PROBE_S", 5.0), \
                contextlib.redirect_stderr(told):
            sick = list(health.examine(lease))
        return [f"{each.device.token}: {each.reason}" for each in sick] + told.getvalue().splitlines()

    def test_the_baseline(self) -> None:
        uuids = {"0": "GPU-004f693d-767b-b215-b4a9-a18af0ffd643", "1": "GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7"}
        cases = {"0,1": {"0": 802, "1": 10032}, "1": {"1": 10032}, "2": {}, "": {}, MIG_A: {}, GPU_A: {},
                 f"{uuids['1']},{uuids['0']}": {uuids["1"]: 10032, uuids["0"]: 802}, uuids["0"][:8]: {}}
        for mask, used in cases.items():
            with self.subTest(mask=mask):
                health = self.health(mask)
                self.assertEqual({device.token: mib for device, mib in health.used.items()}, used)
                self.assertEqual(self.asked(), ["--query-gpu=index,uuid,memory.used"] * bool(mask))

    def test_gpus_of_other_vendors_are_none_of_its_business(self) -> None:
        for variable in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
            self.assertEqual((self.health(**{variable: "0,1"}).used, self.asked()), ({}, []))

    def test_of_a_gpu_that_is_well_nothing_is_said(self) -> None:
        uuid = "GPU-004f693d-767b-b215-b4a9-a18af0ffd643"
        for mask in ("0", uuid):
            for row in ("802, 35", "0, 35", f"{802 + run_tests.MEMORY_MIB}, 35", "802, [N/A]"):
                with self.subTest(row, mask=mask):
                    self.now("nvidia-smi-memory.txt", row)
                    health = self.health(mask)
                    self.assertEqual(self.examined(health, self.lease(mask)), [])
                    self.assertEqual(self.asked()[1:], [f"--query-gpu=memory.used,temperature.gpu -i {mask}"])

    def test_memory_that_is_back_later_is_waited_for(self) -> None:
        later = self.path("later")
        env = self.tools(nvidia_smi=f"""
            case "$*" in *index*) echo 0, {GPU_A}, 4; exit;; *compute*) exit 1;; esac
            [ -e {later}.2 ] && echo 4, 35 && exit
            [ -e {later}.1 ] && : > {later}.2; : > {later}.1; echo 40000, 35""")
        with mock.patch.dict(os.environ, env), contextlib.redirect_stderr(io.StringIO()) as told:
            self.assertEqual(list(self.health("0").examine(self.lease())), [])
        self.assertEqual((told.getvalue(), os.path.exists(later + ".2")), ("", True))

    def test_memory_that_does_not_come_back_is_told_with_its_holder(self) -> None:
        cases = {"nvidia-smi-apps.txt": "held by python3 (pid 40170)",
                 "nvidia-smi-apps-container.txt": "held by [Not Found] (pid 2151955)",
                 "": "nvidia-smi sees no process there"}
        for apps, who in cases.items():
            with self.subTest(apps):
                self.now("nvidia-smi-memory.txt", "1802, 35", apps=apps)
                health = self.health()
                self.assertEqual(self.examined(health, self.lease()),
                                 [f"run_tests.py: GPU 0 does not give back 1000 MiB; {who}"])
                self.asked()
                self.assertEqual(self.examined(health, self.lease()), [], "the next test has not to wait for it")
                self.assertEqual(len(self.asked()), 1)
                self.now("nvidia-smi-memory.txt", "2200, 35")
                self.assertEqual(self.examined(health, self.lease())[0][:48],
                                 "run_tests.py: GPU 0 does not give back 526 MiB; ")

    def test_one_that_does_not_answer_well_is_sick(self) -> None:
        with open(os.path.join(FIXTURES, "nvidia-smi-failed.txt"), encoding="utf-8") as file:
            failed = file.read()
        lost = "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error"
        cases = {
            ("nvidia-smi-lost.txt", 15): f"failed with status 15 ({lost})",
            ("nvidia-smi-lost.txt", 0): f"says {lost}",
            ("nvidia-smi-failed.txt", 9): f"failed with status 9 ({failed.strip()})",
            ("nvidia-smi-mismatch.txt", 18): "failed with status 18 (Failed to initialize NVML: Driver/library version "
                                             "mismatch)",
            ("nvidia-smi-reset.txt", 0): "says 0, [GPU requires reset]",
            ("nvidia-smi-unknown.txt", 0): "says 6, [Unknown Error]",
            ("[GPU is lost], [GPU is lost]", 0): "says [GPU is lost], [GPU is lost]",
            ("[Unknown Error], 35", 0): "says [Unknown Error], 35",
            ("", 0): "says nothing", ("", 255): "failed with status 255 (nothing)",
        }
        for (says, status), reason in cases.items():
            with self.subTest(says, status=status):
                self.now("nvidia-smi-memory.txt", says, status)
                self.assertEqual(self.examined(self.health(), self.lease()), [f"0: nvidia-smi {reason}"])

    def test_what_a_driver_does_not_tell_is_no_sickness(self) -> None:
        """An old driver, a virtual GPU, a container that may not ask."""
        for why in ("N/A", "Not Supported", "Insufficient Permissions"):
            with self.subTest(why):
                self.now("nvidia-smi-memory.txt", f"802, [{why}]")
                self.assertEqual(self.examined(self.health(), self.lease()), [])

    def test_one_that_hangs_is_sick(self) -> None:
        os.mkfifo(self.path("never"))
        health = self.health()
        env = self.tools(nvidia_smi=f"read -r _ < {shlex.quote(self.path('never'))}")
        with mock.patch.dict(os.environ, env), mock.patch.object(run_tests, "PROBE_S", 0.2):
            self.assertEqual([sick.reason for sick in health.examine(self.lease())],
                             ["nvidia-smi did not answer in 0 s"])

    def test_each_gpu_of_a_lease_is_examined(self) -> None:
        self.now("nvidia-smi-memory.txt", "nvidia-smi-reset.txt")
        self.assertEqual(self.examined(self.health(), self.lease("0,1,2")),
                         [f"{token}: nvidia-smi says 0, [GPU requires reset]" for token in "01"])

    def test_what_is_not_watched_is_not_asked_for(self) -> None:
        self.now("nvidia-smi-memory.txt", "nvidia-smi-reset.txt")
        health = self.health()
        self.asked()
        cases = {"a share": self.lease(shares=run_tests.SHARES // 2), "a MIG instance": self.lease(MIG_A),
                 "an unknown GPU": self.lease("2"), "none": self.lease("")}
        for name, lease in cases.items():
            with self.subTest(name):
                self.assertEqual((self.examined(health, lease), self.asked()), ([], []))

    def test_without_an_answer_before_the_run_nothing_is_watched(self) -> None:
        fails = self.prints("nvidia-smi-mismatch.txt") + "; exit 18"
        for name, script, told in (("it fails", fails, "status 18 (Failed"), ("it says nothing", "exit 0", ""),
                                   ("no rows", "echo No devices were found", "")):
            with self.subTest(name), mock.patch.dict(os.environ, self.tools(nvidia_smi=script)), \
                    contextlib.redirect_stderr(io.StringIO()) as stderr:
                health = self.health()
                self.assertEqual((health.used, list(health.examine(self.lease()))), ({}, []))
                self.assertEqual(stderr.getvalue().count("\n"), int(bool(told)))
                self.assertIn(told, stderr.getvalue())
        os.unlink(os.path.join(self.folder, "bin", "nvidia-smi"))
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            self.assertEqual((self.health().used, stderr.getvalue()), ({}, ""))

    def test_a_run_goes_on_without_the_gpu_that_is_sick(self) -> None:
        broken = 'case "$*" in *temp*"-i 0") echo "0, [GPU requires reset]";; *temp*) echo 802, 35;; *) {};; esac'
        env = self.tools(nvidia_smi=broken.format(self.prints("nvidia-smi-memory.txt")))
        ran = self.run_list("true #: label=a gpus=2\nwait\ntrue #: label=b\nfalse #: label=c\ntrue #: label=w gpus=2\n",
                            gpus="0,1", env=env)
        reason = "nvidia-smi says 0, [GPU requires reset]"
        self.assertEqual(ran.outcomes(), {"a": "passed", "b": "passed", "c": "failed", "w": "unrunnable"})
        self.assertIn(f">>> Quarantined: GPU 0 [{reason}]\n", ran.text)
        self.assertIn(f"\nquarantined: GPU 0 ({reason})\n", ran.text)
        self.assertEqual(ran.journal("run_end")[0]["quarantined"], {"0": reason})
        self.assertEqual([start["gpus"] for start in ran.journal("test_start")], [["0", "1"], ["1"], ["1"]])


class RefusalTest(DeviceCase):
    """Mistakes in masks and `--gpus`: one line on stderr, exit code 2, nothing started."""

    def refused(self, *arguments: str, gpus: Optional[str] = None, env: Mapping[str, str] = {}) -> str:  # noqa: B006
        ran = self.run_list("echo started > started #: label=a\n", *arguments, gpus=gpus, env={**self.tools(), **env})
        self.assertEqual((ran.code, ran.out), (2, b""), ran.err)
        self.assertFalse(os.path.exists(ran.path("started")) or os.path.exists(ran.path("logs")))
        self.assertNotIn("Traceback", ran.err)
        return ran.err

    def test_duplicates(self) -> None:
        self.assertEqual(self.refused(gpus="0,1,0"),
                         "run_tests.py: error: CUDA_VISIBLE_DEVICES=0,1,0 names 0 twice; name each GPU once\n")

    def test_masks_that_differ(self) -> None:
        told = self.refused(gpus="0,1", env={"HIP_VISIBLE_DEVICES": "1,2"})
        self.assertEqual(len(told.splitlines()), 1)
        self.assertIn("CUDA_VISIBLE_DEVICES=0,1 and HIP_VISIBLE_DEVICES=1,2 disagree", told)

    def test_more_than_the_mask_shows(self) -> None:
        self.assertEqual(self.refused("--gpus", "5", gpus="4,5,6,7"),
                         "run_tests.py: error: --gpus 5: the outer mask hides 1 of them; it shows 4,5,6,7\n")

    def test_a_hidden_id(self) -> None:
        self.assertIn("--gpus 0,5: the outer mask hides 0; it shows 4,5", self.refused("--gpus", "0,5", gpus="4,5"))

    def test_a_mask_that_shows_none(self) -> None:
        self.assertIn("it shows none", self.refused("--gpus", "1", gpus=""))

    def test_bad_values_of_gpus(self) -> None:
        for value in ("x", "-1", ""):
            with self.subTest(value):
                self.assertIn(f"{value!r} is neither a count nor ids", self.refused("--gpus", value))
        self.assertIn("'0,0' names a GPU twice", self.refused("--gpus", "0,0"))

    def test_an_id_in_two_spellings(self) -> None:
        self.assertIn("1,01", self.refused("--gpus", "1,01"))

    def test_a_fraction_is_no_number_of_gpus(self) -> None:
        self.assertIn("0.5", self.refused("--gpus", "0.5"))

    def test_a_mask_in_shell_state(self) -> None:
        ran = self.run_list("export CUDA_VISIBLE_DEVICES=3\ntrue\n", gpus="0,1")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertTrue(ran.err.startswith("tests.txt:1: CUDA_VISIBLE_DEVICES=3 "), ran.err)
        self.assertFalse(os.path.exists(ran.path("logs")))


class TestsMaskTest(DeviceCase):
    """The mask that a test sees, through the real command line."""

    def masks(self, ran: Ran, *labels: str, name: str = "CUDA_VISIBLE_DEVICES") -> List[str]:
        return [self.seen(ran, label)[name] for label in labels]

    def run_together(self, *needs: str, gpus: Optional[str] = "0,1", env: Mapping[str, str] = {},  # noqa: B006
                     state: str = "", names: Sequence[str] = MASKS) -> Ran:
        """Tests `a`, `b`, … that need `gpus=` as many, and run at the same time."""
        lines = [f"{meet}; {self.look(*names)} #: label={label} gpus={need}\n"
                 for label, need, meet in zip("abcdefgh", needs, self.meet(len(needs)))]
        ran = self.run_list(state + "".join(lines), *TIMEOUT, gpus=gpus, env=env)
        self.check(ran, 0, dict.fromkeys("abcdefgh"[:len(needs)], "passed"))
        return ran

    def test_each_test_sees_its_own_device(self) -> None:
        for outer in ("2,3", "3,2", f"{GPU_B},{GPU_A}", f"{MIG_OLD}/1/0,{MIG_OLD}/2/0"):
            with self.subTest(outer):
                ran = self.run_together("1", "1", gpus=outer)
                self.assertEqual(self.masks(ran, "a", "b"), outer.split(","))

    def test_wide_tests_see_several(self) -> None:
        ran = self.run_together("2", "2", gpus="4,5,6,7")
        self.assertEqual(self.masks(ran, "a", "b"), ["4,5", "6,7"])
        self.assertIn(">>> Starting: a on GPU 4,5", ran.text.splitlines())
        self.assertEqual({record["label"]: record["gpus"] for record in ran.journal("test_start")},
                         {"a": ["4", "5"], "b": ["6", "7"]})

    def test_all_is_the_outer_mask(self) -> None:
        ran = self.run_list(f"{self.look(*MASKS)} #: label=a gpus=all\n", gpus="7,4,5")
        self.check(ran, 0, {"a": "passed"})
        self.assertEqual(self.masks(ran, "a"), ["7,4,5"])

    def test_what_the_outer_mask_hides_stays_hidden(self) -> None:
        for outer, seen in (("0,-1,1", "0"), ("", ""), ("NoDevFiles", ""), ("-1", ""), (f" {GPU_A} ", GPU_A)):
            with self.subTest(outer):
                ran = self.run_list(f"{self.look(*MASKS)} #: label=a\n", gpus=outer)
                self.assertEqual(ran.code, 0, ran.err)
                self.assertEqual(ran.text.splitlines()[0], f"CUDA_VISIBLE_DEVICES={seen}")

    def test_gpus_option(self) -> None:
        for arguments, outer, seen in ((["--gpus", "2"], "4,5,6,7", "4,5"), (["--gpus", "7,5"], "4,5,6,7", "7,5"),
                                       (["--gpus", "3"], None, "0,1,2"), (["--gpus", "2,"], None, "2"),
                                       (["--gpus", "0"], "4,5", ""), (["--gpus", "0"], None, "")):
            with self.subTest(arguments=arguments, outer=outer):
                ran = self.run_list(f"{self.look(*MASKS)} #: label=a gpus=all\n", *arguments, gpus=outer)
                self.assertEqual(ran.code, 0, ran.err)
                self.assertEqual(self.masks(ran, "a"), [seen])

    def test_other_vendors_are_told_in_their_variable(self) -> None:
        for variable, outer in (("HIP_VISIBLE_DEVICES", "2,3"), ("ROCR_VISIBLE_DEVICES", "5,4"),
                                ("ZE_AFFINITY_MASK", "0.0,0.1")):
            with self.subTest(variable):
                ran = self.run_list("".join(f"{self.look(*MASKS)} #: label={label} gpus={need}\n"
                                            for label, need in (("a", 1), ("b", 2))), gpus=None, env={variable: outer})
                self.check(ran, 0, {"a": "passed", "b": "passed"})
                others = dict.fromkeys(set(MASKS) - {variable}, "-unset-")
                self.assertEqual(self.seen(ran, "a"), {**others, variable: outer.split(",")[0]})
                self.assertEqual(self.seen(ran, "b"), {**others, variable: outer})

    def test_hip_and_cuda_are_both_told(self) -> None:
        ran = self.run_together("1", "1", gpus="2,3", env={"HIP_VISIBLE_DEVICES": "2,3"}, names=MASKS[:2])
        self.assertEqual(self.seen(ran, "b"), {"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"})

    def test_hip_in_the_devices_of_rocr(self) -> None:
        env = {"HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "6,7"}
        ran = self.run_together("1", "1", gpus=None, env=env, names=MASKS[1:3])
        self.assertEqual(self.seen(ran, "b"), {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "6,7"})

    def test_no_gpu_is_a_mask_that_hides_all(self) -> None:
        for variable, hides in (("CUDA_VISIBLE_DEVICES", ""), ("HIP_VISIBLE_DEVICES", "-1"),
                                ("ROCR_VISIBLE_DEVICES", ""), ("ZE_AFFINITY_MASK", "-1")):
            for outer in ("0,1", "0"):           # beside GPU tests, and one after another
                with self.subTest(variable=variable, outer=outer):
                    ran = self.run_list(f"{self.look(*MASKS)} #: label=a gpus=0\n", gpus=None, env={variable: outer})
                    self.check(ran, 0, {"a": "passed"})
                    self.assertEqual(self.masks(ran, "a", name=variable), [hides])

    def test_no_gpu_runs_beside_gpu_tests(self) -> None:
        ran = self.run_together("1", "0", "1", "0", gpus="6,7")
        self.assertEqual(self.masks(ran, "a", "b", "c", "d"), ["6", "", "7", ""])
        self.assertIn(">>> Starting: b on CPU", ran.text.splitlines())

    def test_a_lines_own_mask_asks_for_as_many(self) -> None:
        self.write("x.sh", self.look(*MASKS))
        ran = self.run_list("CUDA_VISIBLE_DEVICES=0,1,2,3 bash x.sh #: label=a\n"
                            "A=1 HIP_VISIBLE_DEVICES=0,1 bash x.sh #: label=b\n"
                            "CUDA_VISIBLE_DEVICES= bash x.sh #: label=c\n"
                            "CUDA_VISIBLE_DEVICES=0,1 bash x.sh #: label=d gpus=1\n", gpus="3,4,5,6,7")
        self.check(ran, 0, dict.fromkeys("abcd", "passed"))
        needs = {record["label"]: record["need"] for record in ran.journal("test_end")}
        self.assertEqual(needs, {"a": 4, "b": 2, "c": 0, "d": 1})
        for label, need in needs.items():
            seen = self.masks(ran, label)[0]
            visible = seen.split(",") if seen else []
            self.assertEqual(len(visible), need, seen)
            self.assertLessEqual(set(visible), set("34567"))
        self.assertEqual(self.seen(ran, "b")["HIP_VISIBLE_DEVICES"], "-unset-")

    def test_a_lines_own_mask_may_ask_for_too_many(self) -> None:
        ran = self.run_list("CUDA_VISIBLE_DEVICES=0,1,2 echo ran #: label=a\n", gpus="0,1")
        self.check(ran, 1, {"a": "unrunnable"})

    def test_shell_state_cannot_change_it(self) -> None:
        self.write("env.sh", "export CUDA_VISIBLE_DEVICES=9 HIP_VISIBLE_DEVICES=9\n")
        for state in ("unset CUDA_VISIBLE_DEVICES\n", "source env.sh\n", ". ./env.sh\n",
                      'export "CUDA_VISIBLE_DEVICES=9"\n', ": ${CUDA_VISIBLE_DEVICES:=9}\n",
                      "export -n CUDA_VISIBLE_DEVICES\n", "source env.sh\nunset CUDA_VISIBLE_DEVICES\n"):
            with self.subTest(state):
                ran = self.run_together("1", "1", gpus="2,3", state=state)
                self.assertEqual(self.masks(ran, "a", "b"), ["2", "3"])

    def test_what_bash_reads_first_cannot_change_it(self) -> None:
        prelude = self.write("prelude.sh", "export CUDA_VISIBLE_DEVICES=9\n")
        ran = self.run_list('echo "mask=$CUDA_VISIBLE_DEVICES" #: label=a\n', gpus="2,3", env={"BASH_ENV": prelude})
        self.check(ran, 0, {"a": "passed"})
        self.assertEqual(self.masks(ran, "a", name="mask"), ["2"])

    def test_the_order_of_a_tools_ids_survives_shell_state(self) -> None:
        names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
        ran = self.run_together("1", "1", gpus=None, env=self.tools([None, None]), names=names,
                                state="unset CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES\n")
        self.assertEqual(self.seen(ran, "b"), dict(zip(names, ("PCI_BUS_ID", "1"))))


class EnvironmentTest(DeviceCase):
    """What else a test has in its environment."""

    NAMES = ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "MASTER_PORT", "PET_MASTER_PORT", "OMP_NUM_THREADS",
             "RUN_TESTS_RUN", "RUN_TESTS_LABEL", "RUN_TESTS_SLOT", "RUN_TESTS_ATTEMPT")

    def run_four(self, env: Mapping[str, str] = {}) -> Ran:  # noqa: B006
        """Two GPU tests and two of the CPU, all at the same time."""
        lines = [f"{meet}; {self.look(*self.NAMES)} #: label={label} gpus={need}\n"
                 for label, need, meet in zip("abcd", "1010", self.meet(4))]
        ran = self.run_list("".join(lines), *TIMEOUT, env=env)
        self.check(ran, 0, dict.fromkeys("abcd", "passed"))
        return ran

    def test_python_tells_at_once_and_where_it_died(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list(f"{self.look(*self.NAMES)} #: label=a\n", gpus=gpus)
                seen = self.seen(ran, "a")
                self.assertEqual((seen["PYTHONUNBUFFERED"], seen["PYTHONFAULTHANDLER"]), ("1", "1"))

    def test_ports_of_tests_at_the_same_time_differ(self) -> None:
        ran = self.run_four()
        seen = [self.seen(ran, label) for label in "abcd"]
        ports = [int(each["MASTER_PORT"]) for each in seen]
        self.assertEqual(len(set(ports)), 4, ports)
        self.assertTrue(all(1024 <= port < 65536 for port in ports), ports)
        self.assertEqual([each["PET_MASTER_PORT"] for each in seen], [str(port) for port in ports])

    def test_a_test_alone_has_a_port_too(self) -> None:
        seen = self.seen(self.run_list(f"{self.look(*self.NAMES)} #: label=a\n", gpus="0"), "a")
        self.assertTrue(seen["MASTER_PORT"].isdigit())
        self.assertEqual(seen["PET_MASTER_PORT"], seen["MASTER_PORT"])

    def test_a_port_in_use_is_not_given(self) -> None:
        slots = 3
        port = run_tests.free_port(1, slots)
        with socket.socket() as listener:
            with contextlib.suppress(OSError):       # another process has it by now: that is in use, too
                listener.bind(("", port))
                listener.listen(1)
            other = run_tests.free_port(1, slots)
        self.assertNotEqual(other, port)
        self.assertEqual((other - port) % slots, 0)  # no other slot draws it

    def test_what_the_user_has_set_stays(self) -> None:
        env = {"MASTER_PORT": "29501", "PET_MASTER_PORT": "29502", "OMP_NUM_THREADS": "7", "PYTHONFAULTHANDLER": "x"}
        ran = self.run_four(env)
        for label in "abcd":
            seen = self.seen(ran, label)
            self.assertEqual({name: seen[name] for name in env}, env)

    def test_one_port_that_the_user_has_set_stays(self) -> None:
        ran = self.run_four({"PET_MASTER_PORT": "29502"})
        seen = [self.seen(ran, label) for label in "abcd"]
        self.assertEqual([each["PET_MASTER_PORT"] for each in seen], ["29502"] * 4)
        self.assertEqual(len({each["MASTER_PORT"] for each in seen}), 4)

    def test_output_is_unbuffered_whatever_the_user_has_set(self) -> None:
        seen = self.seen(self.run_list(f"{self.look(*self.NAMES)} #: label=a\n", env={"PYTHONUNBUFFERED": ""}), "a")
        self.assertEqual(seen["PYTHONUNBUFFERED"], "1")

    def test_threads_are_shared_among_slots(self) -> None:
        line = f"{self.look(*self.NAMES)} #: label=a\n"
        self.assertEqual(self.seen(self.run_list(line, gpus="0,1"), "a")["OMP_NUM_THREADS"],
                         str(max(1, run_tests.core_count() // 2)))
        self.assertEqual(self.seen(self.run_list(line, gpus="0"), "a")["OMP_NUM_THREADS"], "-unset-")

    def test_threads_by_cores_and_slots(self) -> None:
        for cores, slots, threads in ((16, 1, None), (16, 2, "8"), (16, 3, "5"), (64, 8, "8"), (2, 8, "1")):
            with self.subTest(cores=cores, slots=slots), mock.patch.object(run_tests, "core_count", lambda n=cores: n):
                self.assertEqual(run_tests.test_environment({}, slots, "r").get("OMP_NUM_THREADS"), threads)

    def test_a_test_knows_what_it_is(self) -> None:
        ran = self.run_four()
        run = ran.journal("run_start")[0]["run"]
        started = {record["label"]: record["slot"] for record in ran.journal("test_start")}
        self.assertEqual(sorted(started.values()), [0, 1, 2, 3])
        for label, slot in started.items():
            seen = self.seen(ran, label)
            self.assertEqual({name: seen[name] for name in self.NAMES if name.startswith("RUN_TESTS_")},
                             {"RUN_TESTS_RUN": run, "RUN_TESTS_LABEL": label, "RUN_TESTS_SLOT": str(slot),
                              "RUN_TESTS_ATTEMPT": "1"})

    def test_a_label_comes_as_it_is(self) -> None:
        line = "printf '%s' \"$RUN_TESTS_LABEL\" || test_fail \"caf\u00e9 'x' #1\"\n"
        ran = self.run_list(line + line, gpus="0")
        self.assertTrue(ran.text.startswith("caf\u00e9 'x' #1caf\u00e9 'x' #1 #2"), ran.text)

    def test_slots_are_used_again(self) -> None:
        ran = self.run_list("".join(f"{self.look(*self.NAMES)} #: label=t{n}\n" for n in range(6)))
        self.assertEqual(ran.code, 0, ran.err)
        seen = [self.seen(ran, f"t{n}") for n in range(6)]
        self.assertLessEqual({each["RUN_TESTS_SLOT"] for each in seen}, {"0", "1"})
        owners: Dict[str, str] = {}      # no port is given to two slots
        for each in seen:
            self.assertEqual(owners.setdefault(each["MASTER_PORT"], each["RUN_TESTS_SLOT"]), each["RUN_TESTS_SLOT"])


if __name__ == "__main__":
    unittest.main()
