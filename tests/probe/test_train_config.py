"""probe.train_config: presets load, config.json reads back the same run, and settings that do not fit are refused."""

from dataclasses import asdict, replace

import orjson
import pytest

from probe.train_config import PRESETS, TrainConfig, load_preset, preset_names
from replay_pools.errors import InputError


def test_the_presets():
    assert preset_names() == ["fast", "full", "smoke"]


@pytest.mark.parametrize("name", ["smoke", "fast", "full"])
def test_config_json_repeats_the_run(name):
    """A preset written whole to JSON and read back is the same config, defaults included."""
    config = load_preset(name)
    assert TrainConfig.from_json(orjson.loads(orjson.dumps(asdict(config)))) == config
    assert load_preset(str(PRESETS / f"{name}.toml")) == config, "a preset and its path differ"


def test_the_full_preset_is_the_seeds():
    """Qwen3-4B, 200 steps, G = 6, 43 prompts a step, 992 problems, beta 1e-3, lr 7e-5."""
    full = load_preset("full")
    assert (full.model.name, full.optimizer.steps, full.optimizer.lr) == ("Qwen/Qwen3-4B", 200, 7e-5)
    assert (full.rollouts.group, full.rollouts.prompts_per_step, full.rollouts.num_problems) == (6, 43, 992)
    assert full.loss.kl.beta == 1e-3


def test_controllers_are_made_with_the_settings():
    config = TrainConfig.from_json({"loss": {"kl": {"beta": 0.2, "warmup_steps": 2}, "sepa": {"delay_steps": 1}}})
    assert config.loss.kl.controller().value == 0.0
    assert replace(config.loss.kl, warmup_steps=0).controller().value == 0.2
    assert config.loss.sepa.schedule(0.5).value == 0.0


REFUSED = {
    "model": ("[model]\ndtype = 'float32'", "the policy to train"),
    "nll": ("[loss.objective]\nloss_type = 'nll'", "nll"),
    "two normalisers": ("[intervention.extraction]\nloss_type = 'bnpo'", "one normaliser for both"),
    "sampler": ("[loss.ratio]\nold_logprobs = 'recorded'\n[rollouts.sampler]\ntemperature = 0.6", "temperature 1"),
    "full of recorded": ("[loss.kl]\nestimator = 'full'\nreference = 'recorded'", "base or ema"),
    "ratio": ("[loss.ratio]\ndelta = 1.1", "delta: expected a cap above"),
    "beta": ("[loss.kl]\ntarget_kl = 0.1", "beta_min <= beta"),
    "ema": ("[loss.kl]\nema_decay = 1.5", "ema_decay"),
    "sepa": ("[loss.sepa]\ngate = 2.0", "gate"),
    "teacher": ("[teacher]\nfraction = 0.5", "both or neither"),
    "arm": ("[intervention]\narm = 'vanila'", "vanilla, projected"),
    "refresh": ("[intervention]\nv_hack = 'a'\nrefresh_every = 2", "not extracted again"),
    "mode": ("[rollouts]\nmode = 'tests'", "run_tests"),
    "group": ("[rollouts]\ngroup = 1", "group: expected at least 2"),
    "lr": ("[optimizer]\nlr = 0", "lr"),
    "keep": ("[checkpoint]\nkeep = 1", "keep: expected at least 2"),
    "limits": ("[limits]\nkl_max = -1", "limits"),
    "unknown": ("[optimizer]\nlearning_rate = 1", "unknown: learning_rate"),
    "not TOML": ("[optimizer", "TOML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_fit_are_refused(text, message, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_preset(str(path))


def test_none_in_toml_switches_off(tmp_path):
    """TOML has no null: `epsilon = "none"` is how a preset asks for no clipping."""
    path = tmp_path / "mine.toml"
    path.write_text("[loss.ratio]\nepsilon = 'none'\n[optimizer]\nmax_grad_norm = 'none'")
    config = load_preset(str(path))
    assert (config.loss.ratio.epsilon, config.optimizer.max_grad_norm) == (None, None)


def test_an_unknown_preset_lists_the_presets():
    with pytest.raises(InputError, match=r"fast, full, smoke, or a \.toml file"):
        load_preset("ful")
