"""Settings: one field for type, check, meaning and option; presets, --set and config.json give the same run; words."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.settings import BASES
from probe.cli import cli
from probe.cli._frame import run
from probe.objective import advantages
from probe.settings import arms, words
from probe.settings.presets import (
    DEFAULT_PRESET,
    PRESETS,
    SHARED,
    configure,
    overlaid,
    parse_setting,
    preset_names,
    preset_table,
    read_toml,
    setting_text,
)
from probe.settings.verbs import CONFIGS, KEYS, read_config, setting_rows
from probe.settings.words import Verb
from replay_pools.base.errors import InputError
from replay_pools.base.tables import flat

VERBS: list[Verb] = [*CONFIGS]
KL = "objective.reference=base objective.beta=0.1"


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
    extraction = found.intervention.extraction
    assert (found.seed, found.steps, extraction.k, extraction.tau) == (3, 4, 2, 0.5)


def test_every_setting_has_a_meaning() -> None:
    rows = [*setting_rows()]
    assert [row[0] for row in rows] == sorted(KEYS, key=[row[0] for row in rows].index)
    assert all(kind and meaning for _, kind, _, meaning in rows)


ARMS, OLD, ESTIMATOR = "intervention.arms", "objective.old_logprobs", "objective.advantage_estimator"
REFRESH, GROUP, EARLIER = "intervention.refresh_every", "rollouts.group", "rollouts.earlier_checkpoint.every"
# (verb, the keys that the errors name, settings)
FAULTS: list[tuple[Verb, str, str]] = [
    ("replay", "seed steps model.dtyp", "seed=x steps=0 model.dtyp=a"),
    ("replay", "objective.beta", "objective.beta=nan"),
    ("replay", "objective.beta", "objective.beta=0.1"),  # no reference
    ("replay", f"{ARMS}[0]", f'{ARMS}=["x"]'),
    ("replay", ARMS, f"{ARMS}=[]"),
    ("replay", ARMS, f'{ARMS}=["random","random"]'),
    ("replay", ARMS, f'{ARMS}=["vanilla","random"] optimizer.lr=0.1'),
    ("replay", "rollouts", "rollouts.group=4"),
    ("replay", "objective.scale_rewards", f"{ESTIMATOR}=maxrl objective.scale_rewards=group"),
    ("replay", "objective.reward", "objective.reward=surprise objective.scale_rewards=batch"),
    ("replay", "intervention.extraction.k", "intervention.extraction.k=4 intervention.extraction.method=mean"),
    ("train", "objective.scale_rewards", "objective.reward=surprise"),
    ("train", REFRESH, f"{REFRESH}=2 intervention.v_hack=x"),
    ("train", REFRESH, f'{REFRESH}=2 {ARMS}=["random-dosed"]'),
    ("train", "optimizer.lr", "optimizer.lr=0.0"),
    ("train", GROUP, f"{GROUP}=1"),
    ("train", "rollouts.split", "rollouts.split=eval"),
    ("train", "rollouts.sampler", "rollouts.sampler.temperature=0.5"),
    ("train", "rollouts.iterations", f"rollouts.iterations=2 steps=3 {OLD}=recorded"),
    ("train", OLD, "rollouts.prefetch=1"),
    ("train", OLD, f"{EARLIER}=2"),
    ("train", EARLIER, f"{EARLIER}=3 rollouts.iterations=2 steps=4 {OLD}=recorded"),
    ("train", GROUP, f"rollouts.teacher.fraction=0.9 rollouts.earlier_checkpoint.fraction=0.9 {OLD}=recorded"),
    ("train", GROUP, "rollouts.teacher.off_step=1 rollouts.teacher.end_fraction=0.9"),  # in a later step
    ("train", "control.target_kl", "control.target_kl=0.1 objective.reference=base"),  # beta 0 never moves
    ("train", "remedy.name", "remedy.strength=2.0"),
    ("train", "remedy.strength", "remedy.name=penalty remedy.strength=0.0"),
    ("train", "remedy.instruction", 'remedy.name=inoculation remedy.instruction=""'),
    ("train", ESTIMATOR, f"{ESTIMATOR}=maxrl remedy.name=penalty"),
    ("train", ESTIMATOR, "remedy.name=finetune-accepted"),
    ("train", ARMS, "remedy.name=quarantine"),
    ("train", "rollouts.prefetch", f"rollouts.prefetch=1 remedy.name=screening {OLD}=recorded"),
    ("train", "token_attribution", "token_attribution=1 remedy.name=inoculation"),
    ("train", OLD, f"{OLD}=recorded remedy.name=recontextualization"),
    (
        "train",
        "objective.reference",
        "objective.reference=recorded remedy.name=inoculation rollouts.teacher.off_step=2",
    ),
    ("train", "control.target_kl", f"control.target_kl=0.1 {KL} remedy.name=recontextualization"),
    ("train", "control.target_kl", f"control.beta_warmup_steps=2 {KL} remedy.name=preventative-steering"),
]


@pytest.mark.parametrize(("verb", "keys", "texts"), FAULTS)
def test_what_would_be_silently_wrong_is_refused_by_its_key(verb: Verb, keys: str, texts: str) -> None:
    with pytest.raises(InputError) as caught:
        configure(verb, settings=texts.split())
    assert [error.where.removeprefix("settings ") for error in caught.value.errors] == keys.split()


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


TABLES = {
    "estimators": (words.Estimator, advantages.ESTIMATORS),
    "gates": (words.Side, arms.SIDES),
    "presets of the verbs": (words.Verb, DEFAULT_PRESET),
}


@pytest.mark.parametrize(("literal", "table"), TABLES.values(), ids=TABLES)
def test_every_word_has_its_row_and_every_row_its_word(literal, table) -> None:
    """Settings and help texts import no torch, the mathematics does; this pins the two together."""
    assert sorted(get_args(literal)) == sorted(table)


def test_arms_have_words_of_the_gates_and_bases() -> None:
    assert {arm.side for arm in arms.ARMS.values()} <= {*get_args(words.Side)}
    assert {arm.basis for arm in arms.ARMS.values()} == {*BASES}


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    """No TOML, no UTF-8, too deep."""
    path = tmp_path / "x.toml"
    for content in (b"[a", b"a = '\xff'", b"x = " + b"[" * 5000 + b"]" * 5000):
        path.write_bytes(content)
        with pytest.raises(InputError, match="a list of colours: TOML in UTF-8") as caught:
            read_toml(path, "a list of colours")
        assert caught.value.where == str(path)


def test_tables_are_merged_and_everything_else_is_replaced() -> None:
    merged = overlaid({"a": {"b": 1, "c": [2, 3]}, "d": 4}, {"a": {"c": [5]}, "e": {"f": 6}})
    assert merged == {"a": {"b": 1, "c": [5]}, "d": 4, "e": {"f": 6}}
    assert overlaid({"a": None}, {"a": {"b": 1}}) == {"a": {"b": 1}}, "a table takes the place of what is none"
    assert overlaid({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
