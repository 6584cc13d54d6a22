"""Training through a server: an adapter is pushed when it has changed, and only then; what is none is refused."""

from pathlib import Path
from typing import Any

import pytest
from adapted import configured, move
from served import most_off

from extraction.adapters.trained import Trained
from probe.runs.sources.served import PushedEngine, load_adapter, unload_adapter
from probe.settings.training import ModelConfig
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import Sampler

SHORT = Sampler(max_new_tokens=12)
Adapted = tuple[Policy, Trained]


@pytest.fixture(params=["lora", "svd"])
def adapted(request: pytest.FixtureRequest, small: str, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """(a model with LoRA, or with delta_S along its 24 largest triplets, its coordinates), at zero."""
    policy = load_policy(small)
    cache = tmp_path_factory.getbasetemp()
    return policy, configured(policy, request.param, ModelConfig(lora_rank=4, svd_rank=24), cache)


def test_new_weights_are_pushed_once_and_old_ones_forgotten(engine, organism, adapted, small, tmp_path) -> None:
    """Recorded log-probabilities are those of the adapted model here, before and after a step."""
    server, base = engine(organism(small))
    policy, trained = adapted
    pushed, prompts = PushedEngine(base, trained, tmp_path, adapter="in training"), [[5, 6], [7, 8]]
    for step in range(3):
        found = pushed.sample(prompts, SHORT, seeds=[step, step + 9])
        assert most_off(policy, prompts, found) < 1e-4, "sampled from other weights than those of the step"
        pushed.sample([[5, 6]], SHORT, seeds=[step])
        (name,) = server.adapters
        (path,) = tmp_path.iterdir()  # directories of former steps are not left behind
        assert (name, server.adapters[name]) == (path.name, str(path))
        assert server.bodies()[-1]["model"] == name
        move(trained, step, 1.0)
        assert most_off(policy, prompts, found) > 0.01, "the step changed nothing: the test shows nothing"
    loaded = server.calls("load")
    assert len(loaded) == len(set(loaded)) == 3, "once for each of three weights"
    assert server.calls("unload") == loaded[:2]
    assert pushed.describe(SHORT)["policy"]["adapter"] == "in training"
    pushed.close()
    assert not server.adapters
    assert not list(tmp_path.iterdir())


def test_two_runs_share_a_server_and_no_adapter(engine: Any, adapted: Adapted, tmp_path: Path) -> None:
    """Seeds and arms begin with the same weights; when one run has moved on, the other still has its adapter."""
    server, base = engine()
    first, second = (PushedEngine(base, adapted[1], tmp_path / name, adapter="x") for name in ("a", "b"))
    for pushed in (first, second):
        pushed.sample([[5, 6]], SHORT, seeds=[0])
    first.close()
    (name,) = server.adapters
    assert Path(server.adapters[name]).parent == tmp_path / "b"
    second.sample([[5, 6]], SHORT, seeds=[1])
    assert server.bodies()[-1]["model"] == name


def test_a_name_is_its_content(engine: Any, adapted: Adapted, tmp_path: Path) -> None:
    """A trainer that died after the push finds its adapter loaded, under the name of the very same weights."""
    server, base = engine()
    before = adapted[1].values()
    for load in (lambda: None, lambda: move(adapted[1], 1, 1.0), lambda: adapted[1].load_values(before)):
        load()
        for _ in range(2):
            PushedEngine(base, adapted[1], tmp_path, adapter="in training").sample([[5, 6]], SHORT, seeds=[0])
    assert len(server.calls("load")) == 2


def test_a_rank_that_no_server_takes_is_refused(engine: Any, small: str, tmp_path: Path, monkeypatch) -> None:
    """The full rank of the small model is below the limit: that of a model of any size is not."""
    coordinates, base = configured(load_policy(small), "svd", ModelConfig(), tmp_path), engine()[1]
    PushedEngine(base, coordinates, tmp_path, adapter="in training")
    monkeypatch.setattr("probe.runs.sources.served.MAX_RANK", 15)
    with pytest.raises(InputError, match=r"rank 15 or less.*model\.svd_rank to 15 or less"):
        PushedEngine(base, coordinates, tmp_path, adapter="in training")


def test_an_adapter_that_the_server_does_not_load_is_refused_with_the_fix(engine: Any, tmp_path: Path) -> None:
    """It takes none, or does not see the directory; and a server that is down has none to forget."""
    server, base = engine()
    refused = lambda *body: (404, {"detail": "Not Found"})  # noqa: E731
    for answer, path in ((refused, tmp_path), (server._adapter, tmp_path / "nowhere")):
        server._adapter = answer
        with pytest.raises(InputError, match=f"found 404 .*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.* that sees {path}"):
            load_adapter(base, path)
    server.close()
    unload_adapter(base, tmp_path)
    server.open()
