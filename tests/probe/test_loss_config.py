"""probe.loss_config: settings that do not fit are refused, and controllers are made with them."""

from dataclasses import replace

import pytest

from probe.decode import decode
from probe.loss_config import LossConfig
from replay_pools.errors import InputError


def test_controllers_are_made_with_the_settings():
    config = decode(LossConfig, {"kl": {"beta": 0.2, "warmup_steps": 2}, "sepa": {"delay_steps": 1}}, "loss")
    assert config.kl.controller().value == 0.0
    assert replace(config.kl, warmup_steps=0).controller().value == 0.2
    assert config.sepa.schedule(0.5).value == 0.0


REFUSED = {
    "nll": ({"objective": {"loss_type": "nll"}}, "nll"),
    "full of recorded": ({"kl": {"estimator": "full", "reference": "recorded"}}, "base or ema"),
    "ratio": ({"ratio": {"delta": 1.1}}, "delta: expected a cap above"),
    "beta": ({"kl": {"target_kl": 0.1}}, "beta_min <= beta"),
    "ema": ({"kl": {"ema_decay": 1.5}}, "ema_decay"),
    "sepa": ({"sepa": {"gate": 2.0}}, "gate"),
}


@pytest.mark.parametrize(("table", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_fit_are_refused(table, message):
    with pytest.raises(InputError, match=message):
        decode(LossConfig, table, "loss")
