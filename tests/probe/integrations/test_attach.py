"""probe.attach against the functions of the step, against training without it, and against what it must refuse."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from adapted import adapt, grads, random_directions
from torch import Tensor

import probe
from extraction.adapters.trained import Trained
from extraction.directions import Directions, haar_directions, save_directions
from probe.records.records import GradientRecord
from probe.records.run import read_records
from probe.step.projection import haar_variance, project_modules, sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.files import decode_jsonl
from replay_pools.policy.load import load_policy

SGD: Callable[..., torch.optim.Optimizer] = torch.optim.SGD


# Of hooks and files, which do not depend on the frames.
IN_SVD = pytest.mark.parametrize("adapted", ["svd"], indirect=True)


@dataclass
class Adapted:
    """The organism in one basis, with random directions of it."""

    coordinates: Trained
    directions: Directions

    @property
    def model(self):
        return self.coordinates.model

    def optimizer(self, make=SGD, lr=0.1, **options) -> torch.optim.Optimizer:
        """A fresh start: coordinates at zero, no gradients."""
        self.coordinates.load_values({m: torch.zeros(r) for m, r in self.coordinates.sizes.items()})
        for parameter in self.coordinates.parameters():
            parameter.grad = None
        return make(self.coordinates.parameters(), lr=lr, **options)

    def backward(self, turn=0, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        ids = torch.randint(5, 60, (2, 8), generator=torch.Generator().manual_seed(turn))
        scale(self.model(input_ids=ids, labels=ids).loss).backward()

    def train(self, optimizer, steps=3) -> dict[str, Tensor]:
        for turn in range(steps):
            self.backward(turn)
            optimizer.step()
            optimizer.zero_grad()
        return self.coordinates.values()


@pytest.fixture(scope="module", params=["svd", "lora"])
def adapted(request: pytest.FixtureRequest, out: Path) -> Adapted:
    """Two random directions a module; the first module keeps none, as after a noise floor."""
    options = {"rank": 4} if request.param == "lora" else {"cache_dir": out / "cache" / "svd"}
    coordinates = adapt(load_policy("organism").model, basis=request.param, model_id="organism", **options)
    first = next(iter(coordinates.sizes))
    return Adapted(coordinates, random_directions(coordinates, seed=3, numbers={first: 0}))


def test_the_record_is_what_the_functions_of_the_step_say(adapted: Adapted) -> None:
    """Same numbers as project_modules, haar_variance and sample_cosines on a copy of the gradient, which stays."""
    optimizer = adapted.optimizer()
    with probe.attach(optimizer, adapted.directions, model=adapted.model) as attached:
        adapted.backward()
        gradients = grads(adapted.coordinates)
        optimizer.step()
    expected = project_modules(gradients, adapted.directions.vectors, side="one_sided")
    (record,) = attached.records
    for name, value in expected.measures().items():
        assert getattr(record, name) == pytest.approx(float(value), abs=1e-7), name
    assert record.grad_norm == pytest.approx(float(expected.before.norm))
    assert record.haar_sd == pytest.approx(float(haar_variance(gradients, adapted.directions.vectors).sqrt()))
    assert (record.step, record.projected, record.null_reason) == (0, False, None)
    assert record.cos_out != record.cos_in, "without `project` the record says what projection would do"
    for module, g in grads(adapted.coordinates).items():
        assert torch.equal(g, gradients[module]), f"{module}: measuring changed the gradient"


def test_projecting_equals_projecting_by_hand(adapted: Adapted) -> None:
    """The optimizer gets project_modules' gradient: it ends where a loop that sets it by hand ends; through the
    wrapper of accelerate, and in place, so that views of `.grad` (buckets of DistributedDataParallel) stay views.
    """
    optimizer = adapted.optimizer()
    for turn in range(3):
        adapted.backward(turn)
        projected = project_modules(grads(adapted.coordinates), adapted.directions.vectors, side="two_sided")
        adapted.coordinates.set_gradients(projected.gradients)
        optimizer.step()
        optimizer.zero_grad()
    by_hand = adapted.coordinates.values()
    optimizer = Accelerator(cpu=True).prepare(adapted.optimizer())
    with probe.attach(optimizer, adapted.directions, model=adapted.model, project=True, side="two_sided") as attached:
        found = adapted.train(optimizer)
        adapted.backward()
        places = [p.grad.data_ptr() for p in adapted.coordinates.parameters() if p.grad is not None]
        optimizer.step()
    assert places == [p.grad.data_ptr() for p in adapted.coordinates.parameters() if p.grad is not None]
    left = sample_cosines(grads(adapted.coordinates), adapted.directions.vectors)
    assert abs(float(left.cos)) < 1e-6
    for module in by_hand:
        torch.testing.assert_close(found[module], by_hand[module], rtol=1e-4, atol=1e-4, msg=module)
    assert all(record.projected for record in attached.records)


@IN_SVD
def test_gradients_that_have_no_direction(adapted: Adapted, caplog: pytest.LogCaptureFixture) -> None:
    """Zero, missing, infinite: null with a reason, nothing replaced; None stays None, which an optimizer skips.

    The first one is logged, and at the end that nothing was removed.
    """
    optimizer, parameters = adapted.optimizer(), adapted.coordinates.parameters()
    options = {"model": adapted.model, "project": True}
    with probe.attach(optimizer, adapted.directions, **options) as attached:
        parameters[0].grad = torch.zeros_like(parameters[0])
        optimizer.step()
        assert all(parameter.grad is None for parameter in parameters[1:]), "a gradient of zeros would be stepped"
        optimizer.step()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("step 0: nothing was projected: gradient is 0")
    assert last == "the projection removed nothing in 2 steps"
    none = attached.records[0]
    assert (none.cos_in, none.null_reason, none.grad_norm, none.projected) == (None, "gradient is 0", 0.0, False)
    with probe.attach(optimizer, adapted.directions, **options) as attached:
        adapted.backward()
        parameters[3].grad = None
        optimizer.step()
        assert parameters[3].grad is None
        parameters[5].grad = torch.full_like(parameters[5], torch.inf)
        optimizer.step()
        assert bool(torch.isinf(parameters[5].grad).all()), "inf - inf would hide an overflow from its handler"
    partial, infinite = attached.records
    assert partial.cos_in is not None
    assert partial.projected
    assert (infinite.cos_in, infinite.null_reason, infinite.grad_norm) == (None, "gradient is not finite", None)


@IN_SVD
def test_lines_are_written_until_it_is_detached(adapted: Adapted, tmp_path: Path, monkeypatch) -> None:
    """One line a step, the records exactly. Directions by name; a tracker gets every step."""
    optimizer, path = adapted.optimizer(), tmp_path / "deep" / "gradients.jsonl"
    save_directions(tmp_path / "out" / "directions" / "v.safetensors", adapted.directions)
    monkeypatch.chdir(tmp_path)
    sent: list[tuple[dict[str, float], int]] = []
    log = lambda values, *, step: sent.append((values, step))  # noqa: E731
    attached = probe.attach(optimizer, "v", model=adapted.model, path=path, log=log)
    adapted.train(optimizer, steps=2)
    attached.detach()
    adapted.train(optimizer, steps=1)
    assert read_records(GradientRecord, path) == attached.records
    assert [record.step for record in attached.records] == [0, 1]
    assert [(values["probe/cos_in"], step) for values, step in sent] == [(r.cos_in, r.step) for r in attached.records]


@IN_SVD
def test_a_file_of_records_goes_on(adapted: Adapted, tmp_path: Path) -> None:
    """After a half-written line too; steps done again replace the old ones, and other directions are refused."""
    optimizer, path = adapted.optimizer(), tmp_path / "gradients.jsonl"

    def steps(turns: int, **options) -> list[int]:
        with probe.attach(optimizer, adapted.directions, model=adapted.model, path=path, **options):
            adapted.train(optimizer, steps=turns)
        return [row["step"] for row in decode_jsonl(path.read_bytes(), path)]

    assert steps(3) == [0, 1, 2]
    path.write_bytes(path.read_bytes() + b'{"step": 3, "cos')
    assert steps(2) == [0, 1, 2, 3, 4]
    assert steps(1, first_step=2) == [0, 1, 2]
    other = haar_directions(adapted.directions, seed=4)
    with pytest.raises(InputError, match="line 1"):
        probe.attach(optimizer, other, model=adapted.model, path=path)


class DeepSpeedZeroOptimizer:
    """What `deepspeed.initialize` returns is no torch optimizer, and keeps gradients in partitions."""

    __module__ = "deepspeed.runtime.zero.stage_1_and_2"


@IN_SVD
def test_refusals(adapted: Adapted) -> None:
    optimizer, parameters = adapted.optimizer(), adapted.coordinates.parameters()
    other = Directions(
        vectors=adapted.directions.vectors,
        singular_values={},
        votes={},
        metadata={"fingerprint": {**adapted.coordinates.start.fingerprint, "weights_sha256": "0" * 64}},
    )
    nothing = Directions(vectors={"m": torch.zeros(0, 3)}, singular_values={}, votes={}, metadata=other.metadata)
    longer = {module: 2 * V for module, V in adapted.directions.vectors.items()}
    cases: list[tuple[dict, str]] = [
        ({"optimizer": DeepSpeedZeroOptimizer()}, "DeepSpeed"),
        ({"optimizer": object()}, "found object"),
        ({"optimizer": SGD(parameters[1:], lr=1)}, "q_proj: "),
        ({"directions": other}, "weights_sha256"),
        ({"directions": nothing}, "noise floor"),
        ({"directions": replace(adapted.directions, vectors=longer)}, "orthonormal"),
        ({"directions": "absent.safetensors"}, "absent.safetensors"),
        ({"side": "both"}, "attach.side"),
        ({"overshoot": -1.0}, "attach.overshoot"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            probe.attach(**{"optimizer": optimizer, "directions": adapted.directions, "model": adapted.model} | changes)
    assert not optimizer._optimizer_step_pre_hooks
    with probe.attach(optimizer, adapted.directions, model=adapted.model):
        with pytest.raises(InputError, match="closure"):
            optimizer.step(lambda: 0.0)
        with pytest.raises(InputError, match="closure"):
            optimizer.step(closure=lambda: 0.0)


class Subclass(torch.optim.AdamW):
    """Its step calls that of its base class, which runs the hooks of the optimizer again."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise MemoryError
        return super().step(closure)


@IN_SVD
def test_a_step_within_a_step_is_one(adapted: Adapted) -> None:
    """One record a step, also after one that raised."""
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # torch hooks a class when it first makes one of it
    optimizer = adapted.optimizer(Subclass)
    with probe.attach(optimizer, adapted.directions, model=adapted.model, project=True) as attached:
        adapted.train(optimizer, steps=2)
        adapted.backward()
        optimizer.fails = True
        with pytest.raises(MemoryError):
            optimizer.step()
        optimizer.fails = False
        optimizer.step()
    assert len(attached.records) == 3
    assert all(record.cos_update is not None and record.projected for record in attached.records)


@IN_SVD
def test_what_is_stepped_must_be_what_is_measured(adapted: Adapted) -> None:
    """DeepSpeed and accelerate put other tensors into an optimizer, which a gate would not reach."""
    optimizer = adapted.optimizer()
    with probe.attach(optimizer, adapted.directions, model=adapted.model, project=True) as attached:
        adapted.backward()
        group = optimizer.param_groups[0]
        group["params"] = [torch.nn.Parameter(p.detach().clone()) for p in group["params"]]
        with pytest.raises(InputError, match="every trained parameter"):
            optimizer.step()
        group["params"] = adapted.coordinates.parameters()
        optimizer.zero_grad()
        with pytest.raises(InputError, match="a gradient in `.grad`"):
            optimizer.step()
    assert not attached.records
