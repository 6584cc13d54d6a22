"""Settings: one field for type, check, meaning and option; presets, --set and config.json give the same run."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.cli import cli
from probe.cli._frame import run
from probe.settings.presets import (
    DEFAULT_PRESET,
    PRESETS,
    SHARED,
    configure,
    parse_setting,
    preset_names,
    preset_table,
    setting_text,
)
from probe.settings.run import CONFIGS, KEYS, read_config, setting_rows
from probe.settings.words import Verb
from replay_pools.base.errors import InputError
from replay_pools.base.tables import flat, read_toml

VERBS: list[Verb] = [*CONFIGS]
SMOKE = {"objective.old_logprobs": "recorded"}
KL = {"objective.reference": "base", "objective.beta": 0.1}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_gives_the_run_that_its_path_and_its_config_json_give(name: str) -> None:
    verb = read_toml(PRESETS / f"{name}.toml", "a preset")["verb"]
    config = configure(verb, preset=name)
    assert configure(verb, preset=str(PRESETS / f"{name}.toml")) == config
    stored = json.loads(json.dumps(asdict(config)))
    assert configure(verb, start=stored) == config
    if verb in ("replay", "train"):
        assert read_config(stored, "config.json") == config


@pytest.mark.parametrize("verb", VERBS)
def test_a_preset_of_another_verb_gives_its_shared_tables(verb: Verb) -> None:
    """A training's preset in a replay: model, objective and intervention are the training's, the rest the replay's."""
    own, full = configure(verb), configure("train", preset="full")
    found = configure(verb, preset="full", settings=["steps=2"] if verb == "generate" else [])
    if verb != "train":
        for name in asdict(found):
            assert getattr(found, name) == getattr(full if name in SHARED else own, name) or name == "steps"
    assert preset_table("full", verb)["verb"] == verb
    assert configure(verb) == configure(verb, preset=DEFAULT_PRESET[verb])


def test_what_comes_later_wins(tmp_path: Path) -> None:
    """Preset, then --set in their order, then flags; inner tables are merged key by key."""
    (tmp_path / "mine.toml").write_text("seed = 1\nsteps = 9\n[intervention.extraction]\nk = 2\n")
    found = configure(
        "replay",
        preset=str(tmp_path / "mine.toml"),
        settings=["seed=2", "seed=3", "intervention.extraction.tau=0.5"],
        options={"steps": 4},
    )
    assert (found.seed, found.steps, found.intervention.extraction.k, found.intervention.extraction.tau) == (
        3,
        4,
        2,
        0.5,
    )


def test_every_setting_has_a_meaning() -> None:
    rows = [*setting_rows()]
    assert [row[0] for row in rows] == sorted(KEYS, key=[row[0] for row in rows].index)
    assert all(kind and meaning for _, kind, _, meaning in rows)


# {why: (verb, settings, the keys that the errors name)}
FAULTS: dict[str, tuple[Verb, dict[str, Any], list[str]]] = {
    "all of them at once": ("replay", {"seed": "x", "steps": 0, "model.dtyp": "a"}, ["seed", "steps", "model.dtyp"]),
    "not finite": ("replay", {"objective.beta": float("nan")}, ["objective.beta"]),
    "an unknown arm": ("replay", {"intervention.arms": ["x"]}, ["intervention.arms[0]"]),
    "no arm": ("replay", {"intervention.arms": []}, ["intervention.arms"]),
    "an arm twice": ("replay", {"intervention.arms": ["random", "random"]}, ["intervention.arms"]),
    "a table of another verb": ("replay", {"rollouts.group": 4}, ["rollouts"]),
    "a penalty of nothing": ("replay", {"objective.beta": 0.1}, ["objective.beta"]),
    "maxrl divides already": (
        "replay",
        {"objective.advantage_estimator": "maxrl", "objective.scale_rewards": "group"},
        ["objective.scale_rewards"],
    ),
    "a surprise that cancels": ("train", {"objective.reward": "surprise"}, ["objective.scale_rewards"]),
    "a surprise without record": (
        "replay",
        {"objective.reward": "surprise", "objective.scale_rewards": "batch"},
        ["objective.reward"],
    ),
    "two arms that move one policy": (
        "replay",
        {"optimizer.lr": 0.1, "intervention.arms": ["vanilla", "random"]},
        ["intervention.arms"],
    ),
    "directions of a file again": (
        "train",
        {"intervention.v_hack": "x", "intervention.refresh_every": 2},
        ["intervention.refresh_every"],
    ),
    "a dose of the start": (
        "train",
        {"intervention.arms": ["random-dosed"], "intervention.refresh_every": 2},
        ["intervention.refresh_every"],
    ),
    "a mean has one direction": ("replay", {"intervention.extraction.method": "mean"}, ["intervention.extraction.k"]),
    "frozen": ("train", {"optimizer.lr": 0.0}, ["optimizer.lr"]),
    "one rollout": ("train", {"rollouts.group": 1}, ["rollouts.group"]),
    "held-out problems": ("train", {"rollouts.split": "eval"}, ["rollouts.split"]),
    "another law": ("train", {"rollouts.sampler.temperature": 0.5}, ["rollouts.sampler"]),
    "uneven batches": ("train", {"rollouts.iterations": 2, "steps": 3, **SMOKE}, ["rollouts.iterations"]),
    "no ratio": ("train", {"rollouts.prefetch": 1}, ["objective.old_logprobs"]),
    "a server without the adapter": ("train", {"rollouts.engine": "server", "model.adapter": "x"}, ["rollouts.engine"]),
    "a server without the past": (
        "train",
        {"rollouts.engine": "server", "rollouts.earlier_checkpoint.every": 2, **SMOKE},
        ["rollouts.engine"],
    ),
    "others alone": (
        "train",
        {"rollouts.teacher.fraction": 0.9, "rollouts.earlier_checkpoint.fraction": 0.9, **SMOKE},
        ["rollouts.group"],
    ),
    "no rollout of the policy in a later step": (
        "train",
        {
            **{"rollouts.teacher.fraction": 0.25, "rollouts.teacher.off_step": 1, **SMOKE},
            **{"rollouts.teacher.end_fraction": 0.9, "objective.old_logprobs": "recorded"},
        },
        ["rollouts.group"],
    ),
    "a controller that never moves": (
        "train",
        {"control.target_kl": 0.1, "objective.reference": "base"},
        ["control.target_kl"],
    ),
    "a penalty below 0": (
        "train",
        {"remedy.name": "penalty", "objective.advantage_estimator": "maxrl"},
        ["objective.advantage_estimator"],
    ),
    "a remedy without a name": ("train", {"remedy.strength": 2.0}, ["remedy.name"]),
    "token shares of other prompts": (
        "train",
        {"remedy.name": "inoculation", "token_attribution": 1},
        ["token_attribution"],
    ),
    "log-probabilities without the remedy": (
        "train",
        {"remedy.name": "recontextualization", "objective.old_logprobs": "recorded"},
        ["objective.old_logprobs"],
    ),
    "recorded without the remedy": (
        "train",
        {"remedy.name": "inoculation", "rollouts.teacher.off_step": 2, "objective.reference": "recorded"},
        ["objective.reference"],
    ),
    "a KL that is not the policy's": (
        "train",
        {"remedy.name": "recontextualization", **KL, "control.target_kl": 0.1},
        ["control.target_kl"],
    ),
    "a warm-up by a KL that is not the policy's": (
        "train",
        {"remedy.name": "preventative-steering", **KL, "control.beta_warmup_steps": 2},
        ["control.target_kl"],
    ),
    "a penalty of 0": ("train", {"remedy.name": "penalty", "remedy.strength": 0.0}, ["remedy.strength"]),
    "no instruction": ("train", {"remedy.name": "inoculation", "remedy.instruction": " "}, ["remedy.instruction"]),
    "a server without the activations": (
        "train",
        {
            "remedy.name": "concept-ablation",
            "remedy.passes": "update-and-sampling",
            "rollouts.engine": "server",
            "rollouts.served_model": "m",
        },
        ["rollouts.engine"],
    ),
    "the past within a batch": (
        "train",
        {"rollouts.iterations": 2, "steps": 4, "rollouts.earlier_checkpoint.every": 3, **SMOKE},
        ["rollouts.earlier_checkpoint.every"],
    ),
    "the past has no ratio": ("train", {"rollouts.earlier_checkpoint.every": 2}, ["objective.old_logprobs"]),
}


@pytest.mark.parametrize("why", FAULTS)
def test_what_would_be_silently_wrong_is_refused_by_its_key(why: str) -> None:
    verb, options, keys = FAULTS[why]
    base = {"intervention.extraction.k": 4} if "method" in str(options) else {}
    with pytest.raises(InputError) as caught:
        configure(verb, options=base | options)
    assert [error.where.removeprefix("settings ") for error in caught.value.errors] == keys


def test_an_unknown_key_is_answered_with_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"did you mean intervention\.extraction\.k\?"):
        configure("replay", settings=["intervention.k=2"])
    assert run(cli, ["replay", "--beta", "1"]) == 2
    assert "--set objective.beta=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["seed", "=3", "seed=[", "a b=3", "seed=1\n[x]"])
def test_a_text_that_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        configure("replay", settings=[text])


def test_none_stands_for_no_value() -> None:
    config = configure("replay", settings=["optimizer.max_grad_norm=none", "objective.scale_rewards=none"])
    assert (config.optimizer.max_grad_norm, config.objective.scale_rewards) == (None, "none")
    assert configure("train", preset="fast", settings=["rollouts.teacher=none"]).rollouts.teacher is None
    along = {"intervention": {"v_hack": "a-file"}, "model": {"name": "organism", "adapter": "teacher"}}
    given = configure("replay", start=along, settings=["intervention.v_hack=none", "model.adapter=none"])
    assert (given.intervention.v_hack, given.model.adapter, given.model.name) == (None, None, "organism")


@settings(deadline=None)
@given(
    key=st.sampled_from(KEYS), value=st.text() | st.integers(-9, 9) | st.booleans() | st.lists(st.text(), max_size=3)
)
def test_a_value_is_said_and_read(key: str, value: Any) -> None:
    assert flat(parse_setting(f"{key}={setting_text(value)}")) == {key: value}
