"""Presets load, config.json reads back the same run, and settings that do not fit are refused."""

from dataclasses import asdict, fields

import orjson
import pytest

from extraction.words import ExtractionSettings
from probe.settings.loss import LossSettings
from probe.settings.presets import PRESETS, preset_names
from probe.settings.run import TrainConfig, load_preset
from probe.settings.training import ControlConfig, Limits
from replay_pools.errors import InputError


def test_the_presets():
    assert preset_names() == ["fast", "full", "smoke"]


@pytest.mark.parametrize("name", ["smoke", "fast", "full"])
def test_config_json_repeats_the_run(name):
    """A preset written whole to JSON and read back is the same config, defaults included."""
    config = load_preset(name)
    assert TrainConfig.from_json(orjson.loads(orjson.dumps(asdict(config)))) == config
    assert load_preset(str(PRESETS / f"{name}.toml")) == config, "a preset and its path differ"


def test_every_table_survives_json():
    """A config in which nothing keeps its default reads back as itself: no field is lost on the way."""
    row = {
        "model": {
            **{"name": "m", "dtype": "bfloat16", "device": "cpu", "lora_rank": 3, "dtype_noise": 0},
            **{"svd_rank": 5, "svd_storage": "bfloat16", "shard_base": True},
        },
        "rollouts": {
            **{"env": "e", "mode": "sentinel", "hint": False, "num_problems": 7, "prompts_per_step": 2, "group": 3},
            "sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9},
            "teacher": {"pool": "t", "fraction": 0.5, "off_step": 4},
            **{"iterations": 2, "refills": 1, "engine": "server", "served_model": "s"},
        },
        "objective": asdict(
            LossSettings(gtpo_beta=0.5, old_logprobs="recorded", reference="ema", beta=0.01, delta=4.0)
        ),
        "intervention": {
            **{"arm": "route", "v_hack": None, "refresh_every": 5},
            "gate": {"gate": "two_sided", "overshoot": 2.0, "preserve_magnitude": True, "target": "update"},
            "extraction": asdict(ExtractionSettings(pairs="p", k=1, tau=0.1, tokens_per_batch=64)),
        },
        "optimizer": {"steps": 6, "lr": 1.0, "warmup_steps": 1, "weight_decay": 0.1, "max_grad_norm": None},
        "control": asdict(ControlConfig(target_kl=0.1, ema_every=2, limits=Limits(kl_max=None, patience=9))),
        "checkpoints": {"every": 3, "keep": 1},
        "evaluation": {
            **{"every": 3, "num_problems": 5, "modes": ["sentinel"], "without_hint": True},
            "rollouts_per_problem": 2,
        },
        "seed": 5,
        "token_attribution": None,
        "preregistered": "x@y",
    }
    config = TrainConfig.from_json(row)
    assert orjson.loads(orjson.dumps(asdict(config))) == row
    assert row.keys() == {entry.name for entry in fields(TrainConfig)}


def test_the_full_preset_is_the_seeds():
    """Qwen3-4B, 200 steps, G = 6, 43 prompts a step, 992 problems, lr 7e-5, beta 1e-3 against the base."""
    full = load_preset("full")
    assert (full.model.name, full.steps, full.optimizer.lr) == ("Qwen/Qwen3-4B", 200, 7e-5)
    assert (full.objective.beta, full.objective.reference) == (1e-3, "base")
    assert (full.rollouts.group, full.rollouts.prompts_per_step, full.rollouts.num_problems) == (6, 43, 992)


REFUSED = {
    "model": ("[model]\ndtype = 'float32'", "the policy to train"),
    "nll": ("[objective]\nloss_type = 'nll'", "nll"),
    "two normalisers": ("[intervention.extraction]\nloss_type = 'bnpo'", "one normaliser for both"),
    "arm": ("[intervention]\narm = 'vanila'", "vanilla, projected"),
    "mode": ("[rollouts]\nmode = 'tests'", "run_tests"),
    "group": ("[rollouts]\ngroup = 1", "group: expected at least 2"),
    "lr": ("[optimizer]\nlr = 0", "lr"),
    "unknown": ("[optimizer]\nlearning_rate = 1", "unknown: learning_rate"),
    "unknown table": ("[loss.kl]\nbeta = 0.001", "expected fields out of model, .*, found unknown: loss"),
    "beta without reference": ("[objective]\nbeta = 0.001", "a reference: base, ema or recorded"),
    "target without beta": ("[control]\ntarget_kl = 0.1", "0 < beta_min <= beta"),
    "EMA": ("[control]\nema_decay = 1.5", "ema_decay"),
    "limits": ("[control.limits]\nkl_max = 0", "positive numbers"),
    "SEPA": ("[control]\nsepa_gate = 2", "gate"),
    "iterations at ratio 1": ("[rollouts]\niterations = 2", "recorded: only then is there a ratio"),
    "half a batch": (
        "[rollouts]\niterations = 3\n[objective]\nold_logprobs = 'recorded'\n[optimizer]\nsteps = 10",
        "a multiple of rollouts.iterations",
    ),
    "half a taught batch": ("[rollouts]\niterations = 3\nteacher.off_step = 10", "a multiple of iterations"),
    "another law": (
        "[rollouts]\nsampler.temperature = 0.6\n[objective]\nold_logprobs = 'recorded'",
        "rollouts.sampler sampler: expected .*'temperature': 1.0",
    ),
    "another law's reference": (
        "[rollouts]\nsampler.top_k = 20\n[objective]\nreference = 'recorded'",
        "recorded log-probabilities of the policy's own law",
    ),
    "all teacher": ("[rollouts.teacher]\nfraction = 1.0", "fraction: expected a number between 0 and 1"),
    "refresh of a file": (
        "[intervention]\nrefresh_every = 2\nv_hack = 'x.safetensors'",
        "a file cannot be extracted anew",
    ),
    "no checkpoint": ("[checkpoints]\nkeep = 0", "expected at least 1"),
    "dtype noise": ("[model]\nname = 'organism'\ndtype_noise = 2", "probe replay measures it"),
    "not TOML": ("[optimizer", "TOML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_fit_are_refused(text, message, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_preset(str(path))


def test_none_in_toml_switches_off(tmp_path):
    """TOML has no null: `max_grad_norm = "none"` is how a preset asks for no cap."""
    path = tmp_path / "mine.toml"
    path.write_text("[objective]\nadvantage_clip = 'none'\n[optimizer]\nmax_grad_norm = 'none'")
    config = load_preset(str(path))
    assert (config.objective.advantage_clip, config.optimizer.max_grad_norm) == (None, None)


def test_an_unknown_preset_lists_the_presets():
    with pytest.raises(InputError, match=r"fast, full, smoke, or a \.toml file"):
        load_preset("ful")
