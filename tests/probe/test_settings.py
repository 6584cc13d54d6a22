"""Presets load, config.json reads back the same run, `--set` says any setting, and what does not fit is refused."""

import json
import string
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from extraction.words import LOSS_TYPES, ExtractionSettings, Half, Method, Normaliser
from probe.cli import cli
from probe.cli._frame import run
from probe.settings.arms import ARMS, measured_arm
from probe.settings.intervention import GateConfig, InterventionConfig
from probe.settings.loss import LossCondition, LossSettings
from probe.settings.model import ModelConfig
from probe.settings.presets import (
    DEFAULT_PRESET,
    PRESETS,
    SHARED,
    configure,
    nested,
    parse_setting,
    preset_names,
    preset_table,
    setting_text,
)
from probe.settings.remedy import TRAITS, RemedyConfig
from probe.settings.rollouts import PastSelfConfig, RolloutConfig, SourceConfig, TeacherConfig
from probe.settings.run import KEYS, TABLES, TABLES_OF, RunConfig, normaliser
from probe.settings.training import CheckpointConfig, ControlConfig, EvaluationConfig, Limits, OptimizerConfig, Warnings
from probe.settings.words import ESTIMATORS, MATCHES, SCALES, Priority, Strata, Verb
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import FieldError, InputError
from replay_pools.rollout import CODE_RULES, Sampler
from replay_pools.storage.tables import flat, nearest

VERBS: tuple[Verb, ...] = get_args(Verb)
TRAINING = {"model.name": "organism", "steps": 6, "optimizer.lr": 0.01}  # without which a training is none


@pytest.fixture
def preset(tmp_path: Path) -> Callable[[str], str]:
    """preset(TOML) -> the name of a file with it."""

    def write(text: str) -> str:
        (tmp_path / "mine.toml").write_text(text)
        return str(tmp_path / "mine.toml")

    return write


# Every RunConfig, as far as what does not fit together is not drawn.
def numbers(low: float = 0.0, high: float = 1e6) -> st.SearchStrategy[float]:
    return st.floats(low, high)


POSITIVE = st.floats(1e-6, 1e6)
COUNTS = st.integers(1, 10**6)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
WORDS = TEXTS.filter(lambda text: text != "none")  # where None is said by the word `none`, the word itself is None
FLAGS = st.booleans()


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def losses(draw: st.DrawFn, *, advantages: bool = False) -> LossSettings:
    """advantages: the loss has them, nll has not."""
    epsilon = draw(maybe(st.floats(0.01, 0.99)))
    high = None if epsilon is None else draw(maybe(POSITIVE))
    references = ["base", "ema", "recorded"]
    reference = draw(maybe(st.sampled_from(references)))
    old = draw(st.sampled_from(["current", "recorded"]))
    beta = 0.0 if reference is None else draw(numbers())
    entropy = draw(st.just(0.0) | numbers(-10, 10))
    strata = draw(maybe(st.sampled_from(get_args(Strata))))
    plain = old == "current" and not beta and not entropy and strata is None
    estimator, gtpo = draw(st.sampled_from(ESTIMATORS)), draw(st.just(0.0) | POSITIVE)
    return LossSettings(
        loss_type=draw(st.sampled_from([name for name in LOSS_TYPES if name != "nll" or (plain and not advantages)])),
        max_completion_length=draw(maybe(COUNTS)),
        advantage_estimator=estimator,
        scale_rewards="none" if estimator == "maxrl" else draw(st.sampled_from(SCALES)),
        advantage_eps=draw(numbers()),
        min_group_std=draw(numbers()),
        strata=strata,
        advantage_clip=draw(maybe(POSITIVE)),
        gtpo_beta=gtpo,
        sepa_lambda=draw(numbers(0, 1)) if gtpo else 0.0,
        hicra_alpha=draw(numbers()),
        old_logprobs=old,
        epsilon=epsilon,
        epsilon_high=high,
        reference=reference,
        beta=beta,
        entropy_coef=entropy,
    )


@st.composite
def conditions(draw: st.DrawFn) -> tuple[LossCondition, ...]:
    """Changes of everything, so that they fit on any base, and of what always fits."""
    names = draw(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,5}", fullmatch=True), unique=True, max_size=3))
    few = st.fixed_dictionaries({}, optional={"advantage_clip": maybe(POSITIVE), "min_group_std": numbers()})
    return tuple(LossCondition(name=name, changes=draw(losses().map(asdict) | few)) for name in names)


@st.composite
def controls(draw: st.DrawFn, beta: float) -> ControlConfig:
    bounds = {}
    if beta > 1e-300 and draw(FLAGS):  # half of the smallest floats is 0
        bounds = {"target_kl": draw(POSITIVE), "beta_min": beta / 2, "beta_max": beta * 2}
    return ControlConfig(
        beta_warmup_steps=draw(st.integers(0, 99)),
        kl_horizon=draw(COUNTS),
        ema_decay=draw(numbers(0, 1)),
        ema_every=draw(COUNTS),
        sepa_ramp_steps=draw(st.integers(0, 99)),
        sepa_delay_steps=draw(st.integers(0, 99)),
        sepa_gate=draw(numbers(0, 1)),
        limits=Limits(
            kl_mean_max=draw(maybe(POSITIVE)),
            kl_token_max=draw(maybe(POSITIVE)),
            grad_norm_max=draw(maybe(POSITIVE)),
            entropy_min_frac=draw(maybe(POSITIVE)),
            logprob_drop_max=draw(maybe(POSITIVE)),
            patience=draw(COUNTS),
        ),
        warnings=Warnings(kl_token_max=draw(maybe(POSITIVE)), grad_norm_max=draw(maybe(POSITIVE))),
        **bounds,
    )


@st.composite
def interventions(draw: st.DrawFn, most: int) -> InterventionConfig:
    arms = tuple(draw(st.lists(st.sampled_from([*ARMS]), min_size=1, max_size=most, unique=True)))
    refresh = None if any(ARMS[arm].dosed for arm in arms) else draw(maybe(COUNTS))
    method = draw(st.sampled_from(get_args(Method)))
    return InterventionConfig(
        arms=arms,
        gate=GateConfig(
            gate=draw(maybe(st.sampled_from(["one_sided", "two_sided"]))),
            overshoot=draw(numbers()),
            target=draw(st.sampled_from(["gradient", "update"])),
        ),
        extraction=ExtractionSettings(
            pairs=draw(TEXTS),
            leave_out=tuple(draw(st.lists(TEXTS, max_size=3))),
            half=draw(maybe(st.sampled_from(get_args(Half)))),
            held_out=draw(maybe(WORDS)),
            pairs_map=draw(maybe(WORDS)),
            split_seed=draw(maybe(st.integers(0, 9))),
            method=method,
            k=1 if method == "mean" else draw(COUNTS),
            tau=draw(numbers(0, 1)),
            drop_bottom_frac=draw(numbers(0, 0.99)),
            tokens_per_batch=draw(maybe(COUNTS)),
        ),
        v_hack=draw(maybe(WORDS)) if refresh is None else None,
        refresh_every=refresh,
    )


@st.composite
def rollout_configs(draw: st.DrawFn, verb: Verb, plain_law: bool, iterations: int, recorded: bool) -> RolloutConfig:
    law = Sampler(max_new_tokens=draw(COUNTS))
    if not plain_law:
        law = Sampler(temperature=draw(POSITIVE), top_p=draw(st.floats(0.01, 1)), top_k=draw(st.integers(0, 99)))
    # A larger share leaves the policy no rollout of its own in a group of two.
    teacher = st.builds(
        TeacherConfig,
        pool=TEXTS,
        fraction=st.floats(0.5, 0.7),
        off_step=maybe(st.integers(1, 9).map(iterations.__mul__)),
    ) | st.builds(
        TeacherConfig,
        fraction=st.floats(0.01, 0.4),
        off_step=st.just(0),
        end_fraction=st.floats(0.5, 0.7),
        ramp_steps=st.integers(1, 9),
    )
    past_self = st.builds(
        PastSelfConfig,
        fraction=st.floats(0.3, 0.7),
        off_step=st.integers(1, 9).map(iterations.__mul__),
        end_fraction=st.floats(0, 0.2),
        ramp_steps=st.integers(0, 9),
        every=st.integers(2, 9).map(iterations.__mul__),
    )
    guest = draw(st.sampled_from(["none", "teacher", "past_self"] if recorded else ["none", "teacher"]))
    engines = ["local"] if guest == "past_self" else ["local", "server"]
    prioritise = draw(maybe(st.sampled_from(get_args(Priority))))
    return RolloutConfig(
        env=draw(TEXTS),
        mode=draw(st.sampled_from([*LOOPHOLES])),
        split="train" if verb == "train" else draw(st.sampled_from(["train", "eval"])),
        hint=draw(FLAGS),
        num_problems=draw(maybe(COUNTS)),
        prompts_per_step=draw(COUNTS),
        group=draw(st.integers(2, 99)),
        code_rule=draw(st.sampled_from(CODE_RULES)),
        cpu_limit=draw(st.integers(1, 99)),
        pay=draw(st.sampled_from(["pass", "tests"])),
        sampler=law,
        engine=draw(st.sampled_from(engines)),
        served_model=draw(maybe(WORDS)),
        prioritise=prioritise,
        prioritise_power=1.0 if prioritise is None else draw(st.floats(0.1, 9)),
        teacher=draw(teacher) if guest == "teacher" else None,
        past_self=draw(past_self) if guest == "past_self" else None,
        refills=draw(st.integers(0, 9)),
        iterations=iterations,
        prefetch=draw(st.integers(0, 3)) if recorded else 0,
    )


@st.composite
def remedies(draw: st.DrawFn, objective: LossSettings, engine: str) -> RemedyConfig:
    recorded = "recorded" in (objective.old_logprobs, objective.reference)
    names = []
    for word, traits in TRAITS.items():
        if not (recorded and (traits.changes_prompts or traits.changes_activations)):
            names.append(word)
    if objective.advantage_estimator == "maxrl":
        names.remove("monitor-penalty")
    name = draw(st.sampled_from(names))
    values = {
        "strength": POSITIVE,
        "accuracy": numbers(0, 1),
        "instruction": TEXTS.filter(lambda text: bool(text.strip())),
        "coefficient": POSITIVE,
        "components": COUNTS,
        "layers": st.lists(st.integers(0, 40), max_size=3, unique=True).map(tuple),
        "passes": st.sampled_from(["update", *([] if engine == "server" else ["update-and-sampling"])]),
    }
    return RemedyConfig(name=name, **{key: draw(values[key]) for key in TRAITS[name].reads})


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    verb = draw(st.sampled_from([*VERBS, "replay", "replay"]))  # which has the most ways
    trains = verb == "train" or (verb == "replay" and draw(FLAGS))
    plain_law = verb == "train" or draw(FLAGS)
    objective = draw(losses(advantages=verb == "train"))
    side_by_side = draw(conditions()) if verb == "replay" and not trains else ()
    recorded = verb != "train" or objective.old_logprobs == "recorded"
    iterations = draw(st.integers(1, 3)) if recorded else 1
    intervention = draw(interventions(1 if trains else 3))
    evaluation = EvaluationConfig(
        every=draw(COUNTS),
        num_problems=draw(COUNTS),
        modes=tuple(draw(st.lists(st.sampled_from([*LOOPHOLES]), max_size=2))),
        without_hint=draw(FLAGS),
        rollouts_per_problem=draw(COUNTS),
    )
    noise = draw(st.integers(0, 9)) if verb == "replay" else 0
    rollouts = None if verb == "replay" else draw(rollout_configs(verb, plain_law, iterations, recorded))
    if verb == "train" and rollouts is not None and rollouts.is_on_policy and objective.reference == "recorded":
        objective = replace(objective, beta=0.0)
    several = verb == "train" and rollouts is not None and rollouts.prompts_per_step > 1
    if several and objective.scale_rewards == "batch":
        objective = replace(objective, reward=draw(st.sampled_from(["paid", "surprise"])))
    remedy = draw(maybe(remedies(objective, rollouts.engine))) if verb == "train" and rollouts is not None else None
    takes_adapter = rollouts is None or verb != "train" or rollouts.engine == "local"
    attributes = verb != "replay" or measured_arm(intervention.arms) is not None
    attributes &= remedy is None or not remedy.traits.changes_prompts
    control = draw(controls(objective.beta))
    if remedy is not None and remedy.is_off_policy:
        control = replace(control, target_kl=None, beta_warmup_steps=0)
    return RunConfig(
        verb=verb,
        model=ModelConfig(
            name=draw(WORDS if verb != "replay" else maybe(WORDS)),
            adapter=draw(maybe(WORDS)) if takes_adapter else None,
            dtype=draw(st.sampled_from(["float32", "bfloat16", *([] if noise else ["float64"])])),
            device=draw(TEXTS),
            targets=tuple(draw(st.lists(WORDS, min_size=1, max_size=3))),
            lora_rank=draw(COUNTS),
            svd_rank=draw(maybe(COUNTS)),
            svd_storage=draw(st.sampled_from(["float32", "bfloat16"])),
            dtype_noise=noise,
            shard_base=not noise and draw(FLAGS),
        ),
        source=SourceConfig(
            replay_dirs=tuple(draw(st.lists(TEXTS, min_size=1, max_size=3))),
            per_pool=draw(COUNTS),
            match=draw(st.sampled_from(MATCHES)),
        )
        if verb == "replay"
        else None,
        rollouts=rollouts,
        objective=objective,
        conditions=side_by_side,
        planning_phrases=tuple(draw(st.lists(TEXTS, max_size=3))),
        intervention=intervention,
        remedy=remedy,
        optimizer=OptimizerConfig(
            lr=draw(POSITIVE) if trains else 0.0,
            **draw(
                st.one_of(
                    st.builds(dict, schedule=st.just("cosine"), warmup_steps=st.integers(0, 99)),
                    st.just({"schedule": "constant"}),
                )
            ),
            max_grad_norm=draw(maybe(POSITIVE)),
        ),
        control=control,
        checkpoints=CheckpointConfig(every=draw(COUNTS), keep=draw(COUNTS)),
        evaluation=evaluation if verb in ("train", "eval") else None,
        steps=(draw(COUNTS) + 1) * iterations if verb in ("train", "generate") else draw(maybe(COUNTS)),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        token_attribution=draw(maybe(st.integers(0, 9))) if attributes else 0,
        preregistered=draw(maybe(WORDS)),
    )


@settings(deadline=None, max_examples=60)
@given(run=runs())
def test_config_json_is_the_run(run: RunConfig) -> None:
    """from_json is the inverse of asdict, through the bytes of a config.json: nothing is lost on the way."""
    assert RunConfig.from_json(orjson.loads(orjson.dumps(asdict(run))), "config.json") == run


def toml(value: Any) -> str:
    """A value of a setting as TOML, in which `none` stands for None."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps("none" if value is None else value, ensure_ascii=False)


@settings(deadline=None, max_examples=40)
@given(run=runs(), order=st.randoms(use_true_random=False))
def test_every_setting_can_be_said_by_set(run: RunConfig, order: Any) -> None:
    """`--set` of every setting, one after the other in any order, makes the run, whatever the preset said."""
    texts_or_none = (
        *("model.name", "model.adapter", "intervention.v_hack", "intervention.extraction.held_out"),
        *("rollouts.served_model", "preregistered", "intervention.extraction.pairs_map"),
    )
    others = {"verb", *(table for table in TABLES_OF if getattr(run, table) is None)}
    row = {key: value for key, value in asdict(run).items() if key not in others}
    leaves = {key: value for key, value in flat(row).items() if value is not None or key not in texts_or_none}
    said = [f"{key}={toml(value)}" for key, value in leaves.items()]
    order.shuffle(said)
    assert configure(run.verb, start={"verb": run.verb, "seed": 7}, settings=said) == run


def test_no_setting_is_left_out_of_the_draws() -> None:
    """What the two tests above are worth: in some run every setting has another value than its default."""
    seen: set[str] = set()
    default = {
        "source": asdict(SourceConfig()),
        "rollouts": asdict(RolloutConfig())
        | {"teacher": asdict(TeacherConfig()), "past_self": asdict(PastSelfConfig())},
    }
    # A remedy has to have a name, so that no table of defaults can be made.
    remedy = {entry.name: entry.default for entry in fields(RemedyConfig)}
    default |= {"evaluation": asdict(EvaluationConfig()), "remedy": remedy}
    plain = flat(asdict(RunConfig(source=SourceConfig())) | default)

    @settings(deadline=None, max_examples=900, derandomize=True, database=None, phases=[Phase.generate])
    @given(run=runs())
    def look(run: RunConfig) -> None:
        seen.update(key for key, value in flat(asdict(run)).items() if plain.get(key, value) != value)

    # Few of all runs have a remedy, and each of them few of its settings.
    @settings(deadline=None, max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    @given(config=remedies(LossSettings(), "local"))
    def look_at_remedies(config: RemedyConfig) -> None:
        seen.update(f"remedy.{entry.name}" for entry in fields(config) if getattr(config, entry.name) != entry.default)

    look()
    look_at_remedies()
    left_out = sorted(set(KEYS) - seen)
    assert left_out == []


def test_the_presets() -> None:
    assert preset_names() == ["eval", "fast", "full", "generate", "replay", "smoke"]
    assert {DEFAULT_PRESET[verb] for verb in VERBS} <= {*preset_names()}


@pytest.mark.parametrize("name", preset_names())
def test_config_json_repeats_a_preset(name: str) -> None:
    """A preset written whole to JSON and read back is the same run, defaults included; so is its path."""
    verb = tomllib.loads((PRESETS / f"{name}.toml").read_text())["verb"]
    config = configure(verb, preset=name)
    assert config.verb == verb
    assert RunConfig.from_json(orjson.loads(orjson.dumps(asdict(config))), "x") == config
    assert configure(verb, preset=str(PRESETS / f"{name}.toml")) == config, "a preset and its path differ"


@pytest.mark.parametrize("verb", VERBS)
def test_told_nothing_a_verb_takes_its_own_preset(verb: Verb) -> None:
    assert configure(verb) == configure(verb, preset=DEFAULT_PRESET[verb])
    assert configure(verb).verb == verb


def test_the_full_preset_is_the_seeds() -> None:
    """Qwen3-4B, 200 steps, G = 6, 43 prompts a step, 992 problems, lr 7e-5, beta 1e-3 against the base."""
    full = configure("train", preset="full")
    assert (full.model.name, full.steps, full.optimizer.lr) == ("Qwen/Qwen3-4B", 200, 7e-5)
    assert (full.objective.beta, full.objective.reference) == (1e-3, "base")
    assert full.rollouts is not None
    assert (full.rollouts.group, full.rollouts.prompts_per_step, full.rollouts.num_problems) == (6, 43, 992)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", [name for name in preset_names() if name != "replay"])
def test_a_preset_of_another_verb_gives_what_all_verbs_share(name: str, verb: Verb) -> None:
    """Model, objective, intervention and seed are the preset's; everything else is the verb's own default."""
    own = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    found = asdict(configure(verb, preset=name))
    if own["verb"] == verb:
        assert flat(found).items() >= flat({**own, "optimizer": {}}).items() - {("verb", verb)}
        return
    whole, plain = asdict(configure(own["verb"], preset=name)), asdict(configure(verb))
    assert {key: found[key] for key in SHARED} == {key: whole[key] for key in SHARED}
    assert {key: own for key, own in found.items() if key not in SHARED} == {
        key: own for key, own in plain.items() if key not in SHARED
    }


def test_a_file_without_a_verb_is_made_for_any(preset) -> None:
    """Its tables are kept whole, and those that the verb cannot take are refused."""
    path = preset("seed = 5\nsteps = 7\n[optimizer]\nwarmup_steps = 3")
    assert [
        configure("replay", preset=path).steps,
        configure("generate", preset=path, settings=["model.name=m"]).steps,
    ] == [7, 7]
    assert configure("train", preset=path, options=TRAINING | {"steps": 9}).optimizer.warmup_steps == 3
    with pytest.raises(InputError, match=r"rollouts: expected the tables of replay: source, found a table rollouts"):
        configure("replay", preset=preset("[rollouts]\ngroup = 4"))


def test_a_preset_made_for_another_verb_loses_what_is_not_shared(preset) -> None:
    path = preset("verb = 'train'\nsteps = 7\nseed = 5\n[model]\nname = 'm'\n[rollouts]\ngroup = 3")
    found = configure("replay", preset=path)
    assert (found.model.name, found.seed, found.steps, found.rollouts) == ("m", 5, None, None)
    assert preset_table(path, "replay")["source"] == {
        "replay_dirs": ["teacher", "base"],
        "per_pool": 4,
        "match": "problem",
    }


def test_later_settings_win_and_flags_win_over_all(preset) -> None:
    path = preset("seed = 1\n[objective]\nadvantage_clip = 1.0\nmin_group_std = 0.5")
    said = ["seed=2", "objective.advantage_clip=2", "objective.advantage_clip=3"]
    found = configure("replay", preset=path, settings=said, options={"seed": 4})
    assert (found.seed, found.objective.advantage_clip, found.objective.min_group_std) == (4, 3.0, 0.5)


def test_a_start_takes_the_place_of_a_preset() -> None:
    """A table of a run, over which `--set` and flags go; a preset that is named goes before it."""
    start = asdict(configure("replay", settings=["seed=9", "source.per_pool=2"]))
    found = configure("replay", start=start, settings=["source.match=none"], options={"steps": 3})
    assert found == configure("replay", settings=["seed=9", "source.per_pool=2", "source.match=none", "steps=3"])
    assert configure("replay", start=start, preset="replay") == configure("replay")


@pytest.mark.parametrize("option", ["preset", "model", "adapter", "env"])
def test_the_policy_of_a_run_is_not_another(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`probe eval RUN --preset eval` would evaluate the preset's policy and call it the run's."""
    assert run(cli, ["eval", "some-run", f"--{option}", "eval"]) == 2
    assert f"--{option}: expected none beside RUN, which has its own, found 'eval'" in capsys.readouterr().err


REFUSED = {
    "nll": ("[objective]\nloss_type = 'nll'", r"objective\.loss_type: expected a loss with advantages, found nll"),
    "two normalisers": (
        "[intervention.extraction]\nloss_type = 'dapo'",
        r"intervention\.extraction\.loss_type: .*an unknown key; did you mean objective\.loss_type\?",
    ),
    "arm": ("[intervention]\narms = ['vanila']", "arms: expected one of vanilla, projected, .*found 'vanila'"),
    "no arm": ("[intervention]\narms = []", "arms: expected different arms, at least one, found none"),
    "an arm twice": ("[intervention]\narms = ['vanilla', 'vanilla']", "different arms, .* found vanilla, vanilla"),
    "two arms": ("[intervention]\narms = ['vanilla', 'projected']", "one arm in a training, found vanilla, projected"),
    "the old name of arms": ("[intervention]\narm = 'vanilla'", r"did you mean intervention\.arms\?"),
    "the old place of steps": ("[optimizer]\nsteps = 6", r"optimizer\.steps: .*did you mean steps\?"),
    "mode": ("[rollouts]\nmode = 'tests'", "mode: expected one of run_tests, sentinel"),
    "evaluated mode": ("[evaluation]\nmodes = ['tests']", "modes: expected one of run_tests, sentinel"),
    "group": ("[rollouts]\ngroup = 1", r"rollouts\.group: expected at least 2: a baseline"),
    "no group": ("[rollouts]\ngroup = 0", r"rollouts\.group: expected at least 1, found 0"),
    "split": ("[rollouts]\nsplit = 'eval'", r"rollouts\.split: expected train in a training, found eval"),
    "sampler": ("[rollouts.sampler]\ntemperature = 0", r"rollouts\.sampler\.temperature: expected a number above 0"),
    "unknown": (
        "[optimizer]\nlearning_rate = 1",
        r"optimizer\.learning_rate: expected one of the keys lr, schedule, .*, found an unknown key; did you mean",
    ),
    "unknown table": (
        "[loss.kl]\nbeta = 0.001",
        "loss: expected one of the keys verb, model, .*, found an unknown key",
    ),
    "type": ("seed = 1.5", r"seed: expected a whole number, found 1\.5"),
    "not finite": ("[objective]\nadvantage_clip = nan", r"objective\.advantage_clip: expected a finite number"),
    "negative lr": ("[optimizer]\nmax_grad_norm = -1", r"optimizer\.lr, max_grad_norm: expected >= 0"),
    "warm-up": ("[optimizer]\nwarmup_steps = -1", r"optimizer\.warmup_steps: expected at least 0"),
    "ignored warm-up": (
        "[optimizer]\nschedule = 'constant'\nwarmup_steps = 2",
        r"optimizer\.warmup_steps: expected 0 with the schedule constant",
    ),
    "beta without reference": ("[objective]\nbeta = 0.001", "a reference beside it: base, ema or recorded"),
    "target without beta": (
        "[control]\ntarget_kl = 0.1",
        r"control\.target_kl: expected 0 < beta_min <= objective\.beta",
    ),
    "target": ("[control]\ntarget_kl = 0", r"control\.target_kl: expected a number above 0, or none, found 0"),
    "a start above the bounds": (
        "[objective]\nreference = 'base'\nbeta = 2.0\n[control]\ntarget_kl = 0.1",
        r"0 < beta_min <= objective\.beta <= beta_max, found beta_min 0\.0001, beta 2\.0, beta_max 1\.0",
    ),
    "no lower bound": (
        "[objective]\nreference = 'base'\nbeta = 0.5\n[control]\ntarget_kl = 0.1\nbeta_min = 0",
        "expected 0 < beta_min",
    ),
    "horizon": ("[control]\nkl_horizon = 0", r"control\.kl_horizon: expected at least 1, found 0"),
    "EMA": ("[control]\nema_decay = 1.5", r"control\.ema_decay: expected a number in \[0, 1\]"),
    "EMA period": ("[control]\nema_every = 0", r"control\.ema_every: expected at least 1"),
    "KL warm-up": ("[control]\nbeta_warmup_steps = -1", r"control\.beta_warmup_steps: expected at least 0"),
    "limits": ("[control.limits]\nkl_mean_max = 0", "kl_mean_max: expected a number above 0"),
    "warnings": ("[control.warnings]\ngrad_norm_max = -1", "grad_norm_max: expected a number above 0"),
    "patience": ("[control.limits]\npatience = 0", r"control\.limits\.patience: expected at least 1"),
    "SEPA": ("[control]\nsepa_gate = 2", r"control\.sepa_gate: expected a number in \[0, 1\]"),
    "SEPA ramp": ("[control]\nsepa_ramp_steps = -1", r"control\.sepa_ramp_steps: expected at least 0"),
    "SEPA delay": ("[control]\nsepa_delay_steps = -1", r"control\.sepa_delay_steps: expected at least 0"),
    "iterations at ratio 1": ("[rollouts]\niterations = 2", "recorded: only then is there a ratio"),
    "prefetch at ratio 1": ("[rollouts]\nprefetch = 2", "recorded: only then is there a ratio, found current with pre"),
    "half a batch": (
        "[rollouts]\niterations = 4\n[objective]\nold_logprobs = 'recorded'",
        r"steps: expected a multiple of rollouts\.iterations, found 6 with 4 iterations",
    ),
    "half a taught batch": (
        "[rollouts]\niterations = 3\nteacher.off_step = 10",
        r"rollouts\.teacher\.off_step: expected a multiple of iterations",
    ),
    "another law": ("[rollouts]\nsampler.temperature = 0.6", r"rollouts\.sampler: expected .*the policy's own law"),
    "fewer tokens to choose from": ("[rollouts]\nsampler.top_k = 20", r"rollouts\.sampler: expected .*own law"),
    "a penalty for being itself": (
        "[objective]\nreference = 'recorded'\nbeta = 0.1",
        r"objective\.reference: expected base or ema, where the policy has just sampled all rollouts",
    ),
    "no rollout of the policy": (
        "[rollouts]\nteacher.fraction = 0.95",
        r"rollouts\.group: expected a rollout of the policy itself .* found 8 and 0 of 8 in step 0",
    ),
    "all teacher": ("[rollouts.teacher]\nfraction = 1.0", r"teacher\.fraction: expected a number between 0 and 1"),
    "no teacher": ("[rollouts.teacher]\noff_step = 0", r"teacher\.off_step: expected at least 1"),
    "refresh of a file": (
        "[intervention]\nrefresh_every = 2\nv_hack = 'x.safetensors'",
        "one of them, found both: a file is not extracted again",
    ),
    "overshoot": ("[intervention.gate]\novershoot = -1", r"gate\.overshoot: expected at least 0"),
    "no direction": ("[intervention.extraction]\nk = 0", r"extraction\.k: expected at least 1 direction, found 0"),
    "shares": (
        "[intervention.extraction]\ndrop_bottom_frac = 1",
        r"tau, drop_bottom_frac: expected shares in \[0, 1\]",
    ),
    "tokens": ("[intervention.extraction]\ntokens_per_batch = 0", "tokens_per_batch: expected at least 1 token"),
    "no checkpoint": ("[checkpoints]\nkeep = 0", r"checkpoints\.keep: expected at least 1, found 0"),
    "no checkpoint step": ("[checkpoints]\nevery = 0", r"checkpoints\.every: expected at least 1, found 0"),
    "no evaluation": ("[evaluation]\nnum_problems = 0", r"evaluation\.num_problems: expected at least 1"),
    "rank": ("[model]\nsvd_rank = 0", r"model\.svd_rank: expected at least 1, found 0"),
    "dtype noise": ("[model]\ndtype_noise = 2", r"model\.dtype_noise: expected 0: a replay measures it"),
    "noise of the highest": ("[model]\ndtype_noise = 2\ndtype = 'float64'", "a dtype below float64"),
    "noise of a sharded base": ("[model]\ndtype_noise = 2\nshard_base = true", "expected 0 with shard_base"),
    "served": (
        "[model]\nadapter = 'teacher'\n[rollouts]\nengine = 'server'",
        r"rollouts\.engine: expected local with model\.adapter",
    ),
    "source": ("[source]\nper_pool = 2", "source: expected the tables of train: rollouts, evaluation, found a table"),
    "conditions": ("[[conditions]]\nname = 'x'", "conditions: expected none outside of a replay, found x"),
    "not TOML": ("[optimizer", "TOML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_fit_are_refused(text: str, message: str, preset) -> None:
    with pytest.raises(InputError, match=message):
        configure("train", preset=preset(text), options=TRAINING)


@pytest.mark.parametrize(
    ("verb", "said", "message"),
    [
        ("train", ["optimizer.lr=0"], r"optimizer\.lr: expected above 0 in a training, found 0"),
        ("train", ["steps=none"], "steps: expected a number of optimizer steps, found none"),
        ("train", ["steps=0"], "steps: expected at least 1, found 0"),
        ("train", ["steps=1"], r"optimizer\.warmup_steps: expected 0 in a training of one step: .*, found 1"),
        ("train", ["preset=fast"], "--set preset: expected a setting of a run"),
        ("generate", ["steps=none"], "steps: expected a number of groups, found none"),
        ("generate", ["evaluation.every=1"], "evaluation: expected the tables of generate: rollouts, found a table"),
        ("eval", ["source.per_pool=1"], "source: expected the tables of eval: rollouts, evaluation, found a table"),
        ("replay", ["source.per_pool=0"], r"source\.per_pool: expected at least 1, found 0"),
        ("replay", ["source.replay_dirs=[]"], r"source\.replay_dirs: expected at least 1, found 0"),
        ("replay", ["source=none"], "source: expected the tables of replay: source, found no table source"),
        ("replay", ["token_attribution=-1"], "token_attribution: expected at least 0, found -1"),
        ("replay", ["token_attribution=1", "intervention.arms=['random']"], "an arm that uses v_hack, found random"),
        (
            "replay",
            ["optimizer.lr=0.1", "intervention.arms=['vanilla','random']"],
            "one where .*lr is above 0, found van",
        ),
        ("replay", ["optimizer.lr=0.1", "conditions=[{name='a'},{name='b'}]"], "conditions: expected one where .*a, b"),
        ("replay", ["conditions=[{name='a'},{name='a'}]"], "conditions: expected different names, found a, a"),
        ("replay", ["conditions=[{name='a', changes={beta=1}}]"], "condition a: beta: expected a reference beside it"),
        ("replay", ["conditions=[{name='a', changes={advantage_clip=nan}}]"], "expected a finite number, found nan"),
        ("replay", ["optimizer.lr=0.1", "control.target_kl=1"], "0 < beta_min"),
        ("replay", ["verb=train"], "verb: expected replay, as the command says, found 'train'"),
        (
            "replay",  # it would be a sound evaluation
            ["verb=eval", "source=none", "rollouts.group=2", "evaluation.every=1", "model.name=organism"],
            "verb: expected replay, as the command says, found 'eval'",
        ),
    ],
)
def test_what_a_verb_cannot_take_is_refused(verb: Verb, said: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure(verb, settings=said)


@pytest.mark.parametrize("verb", ["train", "eval", "generate"])
def test_a_policy_is_needed(verb: Verb, preset) -> None:
    with pytest.raises(InputError, match=r"model\.name: expected the policy, as organism or Qwen/Qwen3-4B, found none"):
        configure(verb, preset=preset("steps = 1\noptimizer.lr = 0.1"))


def test_frozen_weights_take_many_arms_and_conditions() -> None:
    """What is refused where weights move."""
    said = ["intervention.arms=['vanilla','random']", "conditions=[{name='a'},{name='b'}]", "control.target_kl=1"]
    assert not configure("replay", settings=said).trains


def test_the_blame_is_the_presets_only_for_its_own_fault(preset) -> None:
    """A preset may leave to the flags what a run needs; what `--set` breaks is not blamed on it."""
    bare = preset("[optimizer]\nlr = 0.1")
    with pytest.raises(InputError, match=r"^settings rollouts\.group: expected at least 2"):
        configure("train", preset=bare, settings=["rollouts.group=1"], options=TRAINING)
    with pytest.raises(InputError, match=rf"^preset {bare} model\.name: expected the policy"):
        configure("train", preset=bare)
    broken = preset("[optimizer]\nlr = 'fast'")
    with pytest.raises(InputError, match=rf"^preset {broken} optimizer\.lr: expected a number, found 'fast'"):
        configure("train", preset=broken, options={"seed": 3})
    with pytest.raises(InputError, match=r"^settings steps: expected at least 1"):
        configure("replay", start={"verb": "replay", "source": {}, "steps": 0})  # no preset was read


LOSSES = {
    "advantage_eps": ({"advantage_eps": -1e-4}, "advantage_eps: expected a number"),
    "advantage_eps nan": ({"advantage_eps": float("nan")}, "advantage_eps: expected a number"),
    "min_group_std": ({"min_group_std": -0.1}, "min_group_std"),
    "advantage_clip": ({"advantage_clip": 0.0}, "advantage_clip: expected a number above 0, or none, found 0"),
    "advantage_clip nan": ({"advantage_clip": float("nan")}, "advantage_clip"),
    "max_completion_length": ({"max_completion_length": 0}, "max_completion_length: expected a number above 0"),
    "maxrl": ({"advantage_estimator": "maxrl", "scale_rewards": "group"}, "scale_rewards: expected none with maxrl"),
    "gtpo_beta": ({"gtpo_beta": -0.1}, "gtpo_beta: expected a number"),
    "gtpo_beta nan": ({"gtpo_beta": float("nan")}, "gtpo_beta: expected a number"),
    "sepa_lambda": ({"gtpo_beta": 1.0, "sepa_lambda": 1.1}, r"sepa_lambda: .*\[0, 1\]"),
    "sepa_lambda below": ({"gtpo_beta": 1.0, "sepa_lambda": -0.1}, r"sepa_lambda: .*\[0, 1\]"),
    "sepa without gtpo": ({"sepa_lambda": 0.5}, "sepa_lambda: expected gtpo_beta above 0"),
    "hicra_alpha": ({"hicra_alpha": -1.0}, "hicra_alpha: expected a number"),
    "epsilon": ({"epsilon": 0.0}, r"epsilon: expected a number in \(0, 1\)"),
    "epsilon above": ({"epsilon": 1.0}, r"epsilon: expected a number in \(0, 1\)"),
    "epsilon_high alone": ({"epsilon": None, "epsilon_high": 0.2}, "epsilon_high: expected none beside epsilon none"),
    "epsilon_high": ({"epsilon_high": -0.1}, "epsilon_high: expected a number above 0"),
    "beta": ({"reference": "base", "beta": -1.0}, "beta: expected a number"),
    "beta alone": ({"beta": 1.0}, "beta: expected a reference beside it: base, ema or recorded"),
    "nll with a ratio": ({"loss_type": "nll", "old_logprobs": "recorded"}, "loss_type: expected neither ratio"),
    "nll with a KL": ({"loss_type": "nll", "reference": "base", "beta": 1.0}, "loss_type: expected neither ratio"),
    "nll with a bonus": ({"loss_type": "nll", "entropy_coef": 1.0}, "loss_type: expected neither ratio"),
}


@pytest.mark.parametrize(("changes", "message"), LOSSES.values(), ids=LOSSES)
def test_losses_that_do_not_exist_are_refused(changes: dict[str, Any], message: str) -> None:
    """Where the loss is made, as a FieldError; and its place is named wherever it stands in a table."""
    with pytest.raises(FieldError, match=message):
        LossSettings(**changes)
    with pytest.raises(InputError, match=r"^settings objective\." + message if "nan" not in str(changes) else "finite"):
        configure("replay", options={f"objective.{key}": value for key, value in changes.items()})
    with pytest.raises(InputError, match=rf"condition x: {message}" if "nan" not in str(changes) else "finite"):
        LossCondition(name="x", changes=changes).objective(LossSettings())


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("loss_type", "'grpo', 'dr_grpo', 'dapo' or 'nll'"),
        ("advantage_estimator", "'grpo' or 'maxrl'"),
        ("scale_rewards", "'none', 'group' or 'batch'"),
        ("old_logprobs", "'current' or 'recorded'"),
        ("reference", "'base', 'ema' or 'recorded'"),
    ],
)
def test_words_that_no_loss_knows_are_refused_with_those_it_knows(key: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"objective\.{key}: expected {words}, found 'ppo'"):
        configure("replay", settings=[f"objective.{key}=ppo"])
    with pytest.raises(InputError, match=rf"condition x {key}: expected {words}, found 'ppo'"):
        LossCondition.parse(f"x:{key}=ppo")


def test_the_normaliser_is_the_objectives() -> None:
    """One for the pairs and for the loss: their gradients are compared."""
    loss = LossSettings(loss_type="dr_grpo", max_completion_length=9, gtpo_beta=1.0)
    assert normaliser(loss) == Normaliser(loss_type="dr_grpo", max_completion_length=9)


def test_none_in_toml_switches_off(preset) -> None:
    """TOML has no null: `max_grad_norm = "none"` is how a preset asks for no cap; `scale_rewards` keeps its word."""
    text = "[objective]\nadvantage_clip = 'none'\nscale_rewards = 'none'\n[optimizer]\nmax_grad_norm = 'none'"
    config = configure("train", preset=preset(text), options=TRAINING)
    assert (config.objective.advantage_clip, config.optimizer.max_grad_norm) == (None, None)
    assert config.objective.scale_rewards == "none"


@pytest.mark.parametrize("name", ["ful", "full.tml", "", "no/such.toml"])
def test_an_unknown_preset_lists_the_presets(name: str) -> None:
    with pytest.raises(InputError, match=r"--preset: .*eval, fast, full, generate, replay, smoke, or a \.toml file"):
        preset_table(name, "train")


WORD = st.text(string.ascii_letters + string.digits + "_./:~@+-", max_size=12).flatmap(
    lambda rest: st.sampled_from(string.ascii_letters + "_./~").map(lambda first: first + rest)
)
VALUES = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | FLAGS | TEXTS,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None, max_examples=150)
@given(key=st.sampled_from(KEYS), value=VALUES, blanks=st.sampled_from(["", " "]))
def test_a_setting_is_its_key_and_its_value(key: str, value: Any, blanks: str) -> None:
    """Any value in TOML is read as it is, with or without blanks around the sign."""
    assert parse_setting(f"{key}{blanks}={blanks}{toml(value)}") == nested({key: value})
    assert [*flat(nested({key: value}))] == [key]


@settings(deadline=None, max_examples=300)
@given(key=st.sampled_from(KEYS), value=VALUES | WORD | st.text() | st.sampled_from(["true", "nan", "2024-teacher"]))
def test_what_a_command_prints_of_a_setting_is_read_back(key: str, value: Any) -> None:
    assert parse_setting(f"{key}={setting_text(value)}") == nested({key: value})


def test_no_value_is_a_word_and_a_table_stands_on_one_line() -> None:
    assert setting_text(None) == "none"
    value = [{"name": "capped", "changes": {"advantage_clip": 2.0}}]
    assert parse_setting(f"conditions={setting_text(value)}") == {"conditions": value}


@settings(deadline=None, max_examples=150)
@given(key=st.sampled_from(KEYS), word=WORD)
def test_a_single_word_needs_no_quotes(key: str, word: str) -> None:
    """But for the four words that are values in TOML."""
    words = {"true": True, "false": False, "inf": float("inf")}
    if word != "nan":
        assert parse_setting(f"{key}={word}") == nested({key: words.get(word, word)})


@pytest.mark.parametrize("text", ["", "=", "seed", "=3", " = 3"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--set: expected KEY=VALUE, as objective\.beta=0\.01, found"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta=1", r"^--set beta: expected a setting of a run, found an unknown key; did you mean objective\.beta\?$"),
        ("objectiv.beta=1", r"did you mean objective\.beta\?"),
        ("evaluaton.every=1", r"did you mean evaluation\.every\?"),
        ("chekpoints.every=1", r"did you mean checkpoints\.every\?"),
        ("iteations=2", r"did you mean rollouts\.iterations\?"),
        ("sed=1", r"did you mean seed\?"),
        ("zzz.qqq=1", "the tables are verb, model, source"),
        ("model.name=a b", r"""expected a value in TOML, found 'a b'; a text .*: --set 'model\.name="\.\.\."'"""),
        ("seed=", "^--set seed: expected a value in TOML, found ''"),
        ("planning_phrases=[wait]", r"expected a value in TOML, found '\[wait\]'"),
        ("model.'x=3", "expected a value in TOML"),
    ],
)
def test_a_setting_that_is_wrong_says_what_was_meant(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_setting(text)


@settings(deadline=None, max_examples=100)
@given(key=st.sampled_from([key for key in KEYS if "." in key]), data=st.data())
def test_a_misspelt_table_still_finds_the_setting(key: str, data: st.DataObject) -> None:
    """One letter of the table is missing: the very setting is suggested, though others have its last part."""
    table = key.rpartition(".")[0]
    i = data.draw(st.integers(0, len(table) - 1))
    assert nearest(f"{table[:i]}{table[i + 1 :]}.{key.rpartition('.')[2]}", KEYS) == key


@settings(deadline=None, max_examples=100)
@given(key=st.sampled_from([key for key in KEYS if len(key.rpartition(".")[2]) > 5]), data=st.data())
def test_a_misspelt_setting_is_told_a_near_one(key: str, data: st.DataObject) -> None:
    """One letter of the last part is missing; the table is right, or is left out."""
    table, _, leaf = key.rpartition(".")
    i = data.draw(st.integers(0, len(leaf) - 1))
    wrong = leaf[:i] + leaf[i + 1 :]
    for said in (wrong, f"{table}.{wrong}" if table else wrong):
        found = nearest(said, KEYS)
        assert found is not None
        assert found.rpartition(".")[2] == leaf


def test_the_keys_are_those_of_all_verbs() -> None:
    """What a run of any verb writes is what `--set` knows; every key stands in a table of a run."""
    rows = [flat(asdict(configure(verb))) for verb in VERBS]
    tables = ["rollouts.teacher.pool=x", "rollouts.past_self.every=5", "remedy.name=closed"]
    rows += [flat(asdict(configure("train", settings=[*tables, "objective.old_logprobs=recorded"])))]
    written = {key for row in rows for key, value in row.items()} - {"source", "rollouts", "evaluation"}
    assert written - {"rollouts.teacher", "rollouts.past_self", "remedy"} == {*KEYS}
    assert {key.partition(".")[0] for key in KEYS} == {*TABLES}
