"""What the digits of a run are worth: additivity, within and beyond its tolerance; and where the time went."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapted import adapt, sampled

from extraction.adapters import svd
from extraction.batch import make_batch
from extraction.library import DirectionLibrary
from extraction.logprobs import split_model
from probe.records.run import read_run
from probe.records.timings import TIMINGS_FILE, describe_timings
from probe.step import bases
from probe.step.additivity import TOLERANCES, batch_error, module_error, summarise_additivity, tapped
from replay_pools.base.files import decode_jsonl
from replay_pools.policy.load import load_policy

BASES = {"svd": {"cache_dir": None}, "lora": {"rank": 3}}
SHARED = ["--arm", "vanilla", "--steps", "2"]


@pytest.fixture(scope="module", params=BASES)
def passed(request: pytest.FixtureRequest):
    """(coordinates, batch, module, what was held of it, gradients) of one pass of the organism."""
    coordinates = adapt(load_policy("organism").model, basis=request.param, model_id="x", **BASES[request.param])
    batch = make_batch([[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14]], pad_id=0)
    module = list(coordinates.sizes)[-2]
    with tapped(coordinates.layers[module]) as held:
        gradients = sampled(coordinates, batch, tokens_per_batch=5).gradients
    return coordinates, batch, module, held, gradients


def test_the_check_within_a_pass(passed) -> None:
    """Coordinates of dL/dW at the held (x, dL/dy) agree, and see a token that is lost or counted twice."""
    coordinates, _, module, held, gradients = passed
    assert len(held) == 2, "one pass for each sample: tokens_per_batch"
    assert module_error(coordinates.start[module], held, gradients[module]) < 1e-5
    assert module_error(coordinates.start[module], held, gradients[module] * 1.01) == pytest.approx(0.01, rel=0.01)
    assert module_error(coordinates.start[module], held[:1], gradients[module]) > 0.1


def test_the_check_of_the_whole_gradient(passed) -> None:
    """Uneven weights: also sees gradients that belong to another sample, which the plain sum cannot.

    No pass has more tokens than the engine's would.
    """
    coordinates, batch, module, held, gradients = passed
    weights, sizes = torch.tensor([1.0, -2.0]), []
    spread = weights[:, None].expand(batch.ids.shape)
    count = lambda _module, _arguments, options: sizes.append(options["input_ids"].numel())  # noqa: E731
    handle = split_model(coordinates.model)[0].register_forward_pre_hook(count, with_kwargs=True)

    def error(changed, budget: int) -> float:
        total = {m: weights @ changed(g) for m, g in gradients.items()}
        return batch_error(coordinates.model, coordinates.start, batch, spread, total, tokens_per_batch=budget)

    for budget, expected in ((5, [5, 5]), (100, [10])):  # a pass for each sample, and one for both
        sizes.clear()
        assert error(lambda g: g, budget) < 1e-5
        assert sizes == expected
        assert error(lambda g: g.flip(0), budget) > 0.1
    handle.remove()
    assert module_error(coordinates.start[module], held, gradients[module].flip(0)) < 1e-5


def test_the_summary_names_the_steps_beyond_the_tolerance() -> None:
    errors = [(0, 1e-6), (1, 2e-3), (1, 1e-6), (2, None), (3, float("inf"))]
    found = summarise_additivity(errors[:4], torch.float32)
    assert found == {"tolerance": TOLERANCES[torch.float32], "largest": 2e-3, "exceeded_steps": [1]}
    assert summarise_additivity([(0, 2e-3)], torch.bfloat16)["exceeded_steps"] == []


def test_a_run_that_does_not_add_up_is_marked_loudly(out: Path, quick: list[str], probe, monkeypatch) -> None:
    """A pass whose gradients are 1% too large: the manifest, the JSON and the table say so."""
    real = bases.per_sample_gradients

    def wrong(*arguments, **keywords):
        found = real(*arguments, **keywords)
        for gradients in found.gradients.values():
            for gradient in gradients.values():
                gradient *= 1.01
        return found

    monkeypatch.setattr(bases, "per_sample_gradients", wrong)
    assert "NOT ADDITIVE: in steps 0, 1" in probe("replay", "--name", "not-additive", *SHARED, *quick)[0]
    assert read_run(out / "runs" / "not-additive").manifest["additivity"]["exceeded_steps"] == [0, 1]


@pytest.mark.slow
def test_bfloat16_adds_up_within_its_tolerance(replay: Callable[..., Path], quick: list[str], probe) -> None:
    """In both bases: a run that adds up as well as bfloat16 can is not called broken."""
    arms = [*quick, "--arm", "vanilla,projected-lora", "--set", "model.lora_rank=4"]
    done = read_run(replay("in-bfloat16", *SHARED, *arms, "--set", "model.dtype=bfloat16"))
    additivity = done.manifest["additivity"]
    assert additivity["exceeded_steps"] == [], f"{additivity['largest']} beyond {additivity['tolerance']}"
    validity = {part["name"]: part["says"] for part in json.loads(probe("analyze", done.path, "--json")[0])["validity"]}
    assert validity["contributions add up"] == "HOLDS"


def test_a_second_run_computes_no_svds_and_no_pair_gradients(tmp_path: Path, quick, probe, monkeypatch) -> None:
    """It finds them in the cache; both say how long their phases and steps took."""
    for name in ("cold", "warm"):
        probe("replay", *SHARED, *quick, "--name", name, root=tmp_path)
        rows = decode_jsonl((tmp_path / "runs" / name / TIMINGS_FILE).read_bytes(), name)
        assert [*rows[0]["start"]] == ["load", "svd", "directions"]
        assert [row["step"] for row in rows[1:]] == [0, 1]
        assert "2 steps" in describe_timings(tmp_path / "runs" / name)
        monkeypatch.setattr(svd, "decompose", pytest.fail)
        monkeypatch.setattr(DirectionLibrary, "_measure", pytest.fail)
