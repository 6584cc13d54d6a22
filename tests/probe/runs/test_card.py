"""Cards of direction files: what is printed is what the file holds, against the nulls of another program."""

import json
import shutil
from pathlib import Path

import pytest
from scipy.stats import binomtest

from extraction.directions import load_directions, load_pair_gradients
from extraction.library import pairs_path
from probe.cli import cli
from probe.cli._frame import run
from probe.runs.arm_directions import card_path, read_card
from probe.step.projection import sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.files import sha256, write_sealed


@pytest.fixture(scope="module")
def v_hack(out: Path, small: str) -> Path:
    """The direction file of `probe extract`."""
    assert run(cli, ["extract", "--name", "card", "--out", str(out), "--model", small, "--k", "2"]) == 0
    return out / "directions" / "card.safetensors"


def test_a_card_says_what_the_file_holds(v_hack: Path, probe) -> None:
    """`show --json` is the card; numbers are those of the functions that make them, the hash that of the file."""
    card = json.loads(probe("show", v_hack, "--json")[0])
    directions, pairs = load_directions(v_hack), load_pair_gradients(pairs_path(v_hack))
    assert card == read_card(v_hack)
    assert card["sha256"] == sha256(v_hack.read_bytes())
    kept = pairs.held_out
    held_out = {module: pairs.hack[module][kept] - pairs.clean[module][kept] for module in pairs.hack}
    cosines = sample_cosines(held_out, directions.vectors).cos
    right = int((cosines > 0).sum())
    assert (card["held_out"]["num_pairs"], card["held_out"]["accuracy"]) == (16, right / 16)
    assert card["held_out"]["mean_cos"] == pytest.approx(float(cosines.mean()), abs=1e-6)
    assert card["held_out"]["p"] == pytest.approx(binomtest(right, 16, alternative="greater").pvalue)
    assert card["fingerprint"] == directions.metadata["fingerprint"]
    assert (card["num_pairs"], card["num_directions"]) == (32, directions.num_directions())
    assert (card["pairs"], card["settings"]["k"]) == ("builtin", 2)
    text, _ = probe("show", v_hack)
    assert probe("show", v_hack.stem)[0] == text, "by its name"
    printed = dict(line.split("  ", 1) for line in text.splitlines()[2:])
    assert printed["held-out sign accuracy"].strip().startswith(f"{card['held_out']['accuracy']:.3f} [")


def test_a_card_of_another_file_is_refused(v_hack: Path, tmp_path: Path) -> None:
    """No card, a card whose file was changed, a card of another schema: each says which and what to do."""
    path = tmp_path / "v.safetensors"
    shutil.copy(v_hack, path)
    with pytest.raises(InputError, match=r"v\.card\.json: expected the card of the direction file"):
        read_card(path)
    shutil.copy(card_path(v_hack), card_path(path))
    assert read_card(path) == read_card(v_hack)
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(InputError, match="expected the file of its card, sha256"):
        read_card(path)
    write_sealed(card_path(path), {"schema": 7})
    with pytest.raises(InputError, match=r"expected schema 4, found 7"):
        read_card(path)
