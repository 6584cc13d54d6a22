"""Token attribution: shares add up to the recorded cosine, cover prompt and completion, resume, and are optional."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.records.run import read_run, read_tokens
from probe.runs.join import Pieces
from probe.step.bases import axis, token_shares
from probe.step.projection import sample_cosines
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool

ASK = ("--steps", "2", "--set", "token_attribution=none")


@pytest.fixture(scope="module")
def pieces() -> Pieces:
    return Pieces(load_policy("organism").tokenizer)


def split_run(replay: Callable[..., Path], name: str, *options: str):
    directory = replay(name, *options)
    found = read_run(directory)
    return found, read_tokens(directory, found.manifest)


def test_the_axis_is_one_unit_vector_and_its_cosine_the_global_one() -> None:
    """<axis, g> / norm(g) = sample_cosines(g).cos, with a module that lost its directions counted in norm(g) alone."""
    torch.manual_seed(0)
    shapes = {"a": (2, 7), "b": (0, 5), "c": (1, 4)}
    V = {m: torch.linalg.qr(torch.randn(r, k, dtype=torch.float64)).Q.T for m, (k, r) in shapes.items()}
    g = {m: torch.randn(6, r, dtype=torch.float64) for m, (_, r) in shapes.items()}
    u = axis("svd", V)[1]
    assert u.keys() == {"a", "c"}
    assert sum(float(own.square().sum()) for own in u.values()) == pytest.approx(1)
    expected = sample_cosines(g, V)
    shares = token_shares(sum(g[m] @ own for m, own in u.items())[:, None], expected.norm)
    torch.testing.assert_close(shares[:, 0], expected.cos)
    none = token_shares(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0.0, 2.0]))
    assert none.isnan().all(1).tolist() == [True, False], "a sample without a gradient has no shares"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("svd", ["--arm", "random,vanilla,projected"]),
        ("credit", ["--arm", "projected", "--condition", "g:gtpo_beta=1", "--condition", "plain"]),
    ],
)
def test_shares_add_up_to_the_recorded_cosines(replay, quick: list[str], name: str, options: list[str]) -> None:
    """sum_t s_t = cos_S_nll and sign(A) sum_t s_t = cos_S_contrib (under credit, whose gradient it is, the latter)."""
    found, tokens = split_run(replay, f"tokens-{name}", *ASK, *options, *quick)
    (first,) = {(record.condition, record.arm) for record in tokens.values()}
    rows = [row for row in found.samples if (row.condition, row.arm) == first]
    assert len(rows) == len(tokens) == 2 * 8
    assert first[1] == ("vanilla" if name == "svd" else "projected")
    for row in rows:
        record = tokens[row.step, row.sample_id]
        assert record.prompt is not None
        assert record.completion is not None
        total = sum(record.prompt) + sum(record.completion)
        assert total == pytest.approx(record.cos, abs=1e-6)
        if row.advantage:
            sign = 1 if row.advantage > 0 else -1
            assert sign * total == pytest.approx(row.cos_S_contrib, abs=1e-6)
        if name != "credit":
            assert total == pytest.approx(row.cos_S_nll, abs=1e-6)


def test_every_token_of_the_stored_rollout_has_a_share(replay: Callable[..., Path], quick: list[str]) -> None:
    """One number a prompt and completion token; the last token predicts nothing; lengths spell the stored texts."""
    found, tokens = split_run(replay, "tokens-svd", *ASK, "--arm", "random,vanilla,projected", *quick)
    pools = {name: open_pool(BUILTIN / name).steps for name in ("teacher", "base")}
    for row in (row for row in found.samples if row.arm == "vanilla"):
        record = tokens[row.step, row.sample_id]
        rollout = pools[row.src_pool][row.src_step][row.src_sample]
        assert record.prompt is not None
        assert record.completion is not None
        assert (len(record.prompt), len(record.completion)) == (rollout.plen, rollout.comp_len)
        assert record.completion[-1] == 0
        assert any(record.prompt), "later losses reach back to the prompt through attention"
        assert (sum(record.prompt_chars or ()), len(record.prompt_chars or ())) == (len(rollout.prompt), rollout.plen)
        assert sum(record.completion_chars or ()) == len(rollout.completion)


def test_asking_changes_no_record_and_not_asking_writes_no_file(replay: Callable[..., Path], quick: list[str]) -> None:
    options = ("--arm", "vanilla", "--steps", "2", *quick)
    plain = replay("tokens-none", *options)
    first = replay("tokens-first", *options, "--set", "token_attribution=1")
    assert not list(plain.glob("*.tokens.*"))
    assert [path.name for path in first.glob("*.tokens.*")] == ["step_000.tokens.jsonl.gz"]
    for path in [*plain.glob("*.gz"), plain / "steps.jsonl"]:
        assert path.read_bytes() == (first / path.name).read_bytes(), path.name
    assert read_tokens(plain, read_run(plain).manifest) == {}


@settings(max_examples=40)
@given(text=st.text(max_size=40).filter(lambda text: "\ufffd" not in text))
def test_lengths_spell_the_text_they_are_of(pieces: Pieces, text: str) -> None:
    """Any unicode: characters of several tokens count for the last one, and no length is made up for another text."""
    ids = pieces._tokenizer.encode(text, add_special_tokens=False)
    found = pieces.lengths(ids, text, special=True)
    assert found is not None
    assert sum(found) == len(text)
    assert len(found) == len(ids)
    assert pieces.lengths(ids, text + "x", special=True) is None
