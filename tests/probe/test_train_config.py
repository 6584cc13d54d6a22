"""probe.train_config: presets load, config.json reads back the same run, and settings that do not fit are refused."""

from dataclasses import asdict

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
    """Qwen3-4B, 200 steps, G = 6, 43 prompts a step, 992 problems, lr 7e-5; its KL penalty is not wired yet."""
    full = load_preset("full")
    assert (full.model.name, full.optimizer.steps, full.optimizer.lr) == ("Qwen/Qwen3-4B", 200, 7e-5)
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
    "no KL yet": ("[loss.kl]\nbeta = 0.001", "expected fields out of model, .*, found unknown: loss"),
    "no teacher yet": ("[teacher]\nfraction = 0.5", "unknown: teacher"),
    "no update gate yet": ("[intervention]\nproject = 'update'", "unknown: project"),
    "no refresh yet": ("[intervention]\nrefresh_every = 2", "unknown: refresh_every"),
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
