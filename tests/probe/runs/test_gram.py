"""Gram files: inner products equal the slow loops, and they determine v_hack without any gradient."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from extraction.directions import Directions, PairGradients, extract_directions
from probe.runs.gram_recorder import GramRecorder

SIZES = {"layers.0.q": 9, "layers.0.down": 14, "a": 30}  # not in alphabetical order
NUM_PAIRS, NUM_SAMPLES = 7, 5
WEIGHTS = torch.linspace(0.1, 0.5, NUM_SAMPLES, dtype=torch.float64)


def draw(rows: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {module: torch.randn(rows, r, generator=generator) for module, r in SIZES.items()}


@pytest.fixture
def pairs() -> PairGradients:
    held_out = torch.arange(NUM_PAIRS) % 3 == 1
    return PairGradients(hack=draw(NUM_PAIRS, 0), clean=draw(NUM_PAIRS, 1), held_out=held_out, metadata={})


@pytest.fixture
def v_hack(pairs: PairGradients) -> Directions:
    return extract_directions(pairs.differences(), k=2, tau=0.1, drop_bottom_frac=0.25)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        metadata = orjson.loads(file.metadata()["header"])
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (not a dict)


def dot(a: Tensor, b: Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def test_products_equal_the_slow_loop(tmp_path: Path, pairs: PairGradients, v_hack: Directions) -> None:
    """inner[m, g, i] = <g, P_i>, samples[m, g, h] = <g, h>, and of a control arm <V_i, P_j> and <g, V_i>, 0 where a
    module keeps fewer directions than another; whatever the order of the modules in the gradients.
    """
    unit = draw(NUM_SAMPLES, 2)
    vectors = {module: rows[:k] for (module, rows), k in zip(draw(3, 5).items(), (2, 0, 3), strict=True)}
    recorder = GramRecorder(tmp_path, pairs, v_hack, {"random": vectors})
    recorder.record(3, dict(reversed(unit.items())), {"capped": WEIGHTS})
    found, metadata = read(tmp_path / "gram" / "step_003.safetensors")
    with_pairs, _ = read(tmp_path / "gram" / "arm_random.safetensors")
    assert metadata == {"modules": list(SIZES)}
    assert found.keys() == {"inner", "samples", "weights/capped", "along/random"}
    assert torch.equal(found["weights/capped"], WEIGHTS)
    assert (found["inner"].dtype, found["samples"].dtype) == (torch.float32, torch.float64)
    for m, module in enumerate(SIZES):
        rows, g = [*pairs.hack[module], *pairs.clean[module]], unit[module]
        padded = [*vectors[module], *[torch.zeros(SIZES[module])] * (3 - len(vectors[module]))]
        for products, left, right, error in (
            (found["inner"][m], g, rows, 1e-6),
            (found["samples"][m], g, g, 1e-12),
            (with_pairs["pairs"][m], padded, rows, 1e-6),
            (found["along/random"][m], g, padded, 1e-6),
        ):
            slow = torch.tensor([[dot(x, y) for y in right] for x in left], dtype=products.dtype)
            torch.testing.assert_close(products, slow, atol=error, rtol=error)
