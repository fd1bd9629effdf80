"""The tests of the demo list: they pass on any machine, take tenths of a second, and print which GPUs they see."""
import hashlib
import json
import math
import os
import struct
import time
import unittest
from typing import List, Optional


def visible_gpus() -> Optional[List[str]]:
    """The tokens of the device mask; None where the runner set none (no GPU found, or no runner)."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or "RUN_TESTS_SLOT" not in os.environ:
        return None
    return [token for token in mask.split(",") if token]


def compute(tenths: int) -> None:
    """Take the time that work on a GPU would: the host waits, as it does for a kernel."""
    time.sleep(tenths * float(os.environ.get("DEMO_TENTH_S", "0.1")))


class DemoCase(unittest.TestCase):
    """A test that says what it was given, and holds that it is no more than it asked for."""

    gpus: Optional[int] = 1              # as its line asks; None: any number

    def setUp(self) -> None:
        visible = visible_gpus()
        print(f"{self.id()} sees GPUs: {'no mask' if visible is None else ','.join(visible) or 'none'}")
        if visible is not None and self.gpus is not None:
            self.assertLessEqual(len(visible), self.gpus)    # fewer: a machine without GPUs


class Numerics(DemoCase):
    def test_sum_is_exact(self) -> None:
        compute(6)
        self.assertEqual(math.fsum([0.1] * 10), 1.0)


class Attention(DemoCase):
    def test_softmax_sums_to_one(self) -> None:
        compute(4)
        weights = [math.exp(score) for score in (0.5, -1.0, 2.0)]
        self.assertAlmostEqual(sum(weight / sum(weights) for weight in weights), 1.0)


class Recipe(DemoCase):
    """Runs once per type: the environment prefix of its line names it."""

    def test_rounding_error(self) -> None:
        compute(3)
        code, digits = {"float32": ("f", 7), "float16": ("e", 3)}[os.environ.get("DEMO_DTYPE", "float32")]
        rounded = struct.unpack(code, struct.pack(code, math.pi))[0]
        self.assertAlmostEqual(rounded, math.pi, delta=math.pi * 10 ** -digits)


class Kernels(DemoCase):
    def test_transpose_twice(self) -> None:
        compute(2)
        matrix = [(1, 2, 3), (4, 5, 6)]
        self.assertEqual(list(zip(*zip(*matrix))), matrix)


class Tokenizer(DemoCase):
    gpus = 0

    def test_round_trip(self) -> None:
        compute(5)
        text = "one test per GPU"
        self.assertEqual(" ".join(text.split()), text)


class Checkpoint(DemoCase):
    def test_reload(self) -> None:
        compute(1)
        state = {"step": 3, "loss": [0.5, 0.25]}
        saved = json.dumps(state, sort_keys=True)
        self.assertEqual(json.loads(saved), state)
        self.assertEqual(len(hashlib.sha256(saved.encode()).hexdigest()), 64)


class Model(DemoCase):
    gpus = None

    def test_all_devices_agree(self) -> None:
        compute(2)
        devices = visible_gpus() or ["cpu"]
        self.assertEqual({device: sum(range(100)) for device in devices}, dict.fromkeys(devices, 4950))


if __name__ == "__main__":
    unittest.main()
