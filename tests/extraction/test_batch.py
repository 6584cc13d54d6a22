from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction import batch as rows_module
from extraction.batch import Span, make_batch, make_rows, plan_passes, sharing
from replay_pools.base.errors import InputError

ids = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@settings(max_examples=50)
@given(samples=st.lists(st.tuples(ids, ids), min_size=1, max_size=5), pad_id=st.integers(0, 3))
def test_batch_gives_the_samples_back(samples, pad_id):
    """Reading through the masks gives prompts and completions back, whatever the pad id is: masks are lengths."""
    batch = make_batch([prompt for prompt, _ in samples], [completion for _, completion in samples], pad_id)
    prompts = [row[mask].tolist() for row, mask in zip(batch.ids, batch.attention_mask & ~batch.completion_mask)]
    completions = [row[mask].tolist() for row, mask in zip(batch.ids, batch.completion_mask)]
    assert list(zip(prompts, completions)) == samples, "a real token that equals the pad id was masked"
    assert (batch.ids[~batch.attention_mask] == pad_id).all()
    assert batch.lengths.tolist() == [len(prompt) + len(completion) for prompt, completion in samples]
    assert batch.completion_lengths.tolist() == [len(completion) for _, completion in samples]
    assert batch.ids.shape == (len(batch), int(batch.lengths.max()))


@settings(max_examples=50)
@given(samples=st.lists(st.tuples(ids, ids), min_size=1, max_size=5), data=st.data())
def test_rows_are_the_batch_of_these_samples(samples, data):
    """rows(a, b) == make_batch of samples a..b-1: no padding that only the others needed."""
    start = data.draw(st.integers(0, len(samples) - 1))
    stop = data.draw(st.integers(start + 1, len(samples)))
    batch = make_batch([p for p, _ in samples], [c for _, c in samples], 0).rows(start, stop)
    expected = make_batch([p for p, _ in samples[start:stop]], [c for _, c in samples[start:stop]], 0)
    for field in ("ids", "attention_mask", "completion_mask", "lengths"):
        assert torch.equal(getattr(batch, field), getattr(expected, field)), field


@pytest.mark.parametrize(
    ("prompts", "completions", "masks", "where"),
    [
        ([[1], [1]], [[2], []], None, "sample 1"),
        ([[1], []], [[2], [2]], None, "sample 1"),
        ([[1], [1]], [[2, 3], [4]], [None, [False]], "sample 1"),
        ([[1], [1]], [[2, 3], [4]], [[True, True, True], [True]], "sample 0 completion_mask"),
    ],
)
def test_what_cannot_be_scored_is_refused(prompts, completions, masks, where):
    with pytest.raises(InputError) as refused:
        make_batch(prompts, completions, 0, masks)
    assert refused.value.where == where


batches = st.lists(st.tuples(ids, ids), min_size=1, max_size=5)
layouts = st.sampled_from(["packed", "padded"])
lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@settings(max_examples=50)
@given(samples=batches, layout=layouts, data=st.data())
def test_rows_give_the_samples_back(samples, layout, data):
    """In any order and selection: spans hold prompt and completion, each target follows its predicting token."""
    chosen = data.draw(st.permutations(range(len(samples))))[: data.draw(st.integers(1, len(samples)))]
    masks = [data.draw(st.lists(st.booleans(), min_size=len(c), max_size=len(c)).filter(any)) for _, c in samples]
    rows = make_rows(make_batch(*zip(*samples), pad_id=0, completion_masks=masks), layout, chosen)
    flat = rows.inputs["input_ids"].flatten()
    assert [part.tolist() for part in rows.segments.split(flat)] == [sum(samples[i], []) for i in chosen]
    scored = [token for i in chosen for token, is_scored in zip(samples[i][1], masks[i]) if is_scored]
    assert rows.targets.tolist() == scored, "not the scored tokens in order"
    assert torch.equal(flat[rows.predicting + 1], rows.targets), "a state predicts another token than the next"
    inside = torch.cat([torch.arange(start, stop - 1) for start, stop in rows.segments.spans])
    assert set(rows.predicting.tolist()) <= set(inside.tolist()), "a sample's token is predicted by another sample"


def test_packed_positions_start_again_in_every_sample():
    """0, 1, .. within each sample, in one row without padding or attention mask."""
    inputs = make_rows(make_batch([[5, 6], [7], [9]], [[8], [8, 9, 2], [1]], 2), "packed").inputs
    assert inputs["input_ids"].tolist() == [[5, 6, 8, 7, 8, 9, 2, 9, 1]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1]]
    assert inputs["spans"] == (Span(0, 3), Span(3, 7), Span(7, 9))
    assert inputs["attention_mask"].all()
    # Longest first puts each of two long and two short samples with its like, so padding is least.
    assert plan_passes([2, 30, 3, 29], 60, "padded") == [[1, 3], [2, 0]]


def test_a_shared_row_holds_a_prompt_once():
    """Of neighbours alone; positions go on behind the prompt, whose last token predicts every first one."""
    batch = make_batch([[5, 6], [5, 6], [7], [5, 6]], [[8], [9, 2], [1], [3]], 2)
    rows = make_rows(batch, "shared")
    assert rows.inputs["input_ids"].tolist() == [[5, 6, 8, 9, 2, 7, 1, 5, 6, 3]]
    assert rows.inputs["position_ids"].tolist() == [[0, 1, 2, 2, 3, 0, 1, 0, 1, 2]]
    assert rows.inputs["spans"] == (Span(0, 3), Span(3, 5, (0, 2)), Span(5, 7), Span(7, 10))
    assert rows.predicting.tolist() == [1, 1, 3, 5, 8]
    assert rows.targets.tolist() == [8, 9, 2, 1, 3]
    assert rows.firsts.tolist() == [0, 2, 3]
    assert rows.segments.spans == ((0, 5), (5, 7), (7, 10))
    assert sharing(batch, 9) == [[0, 1, 3], [2]]
    assert sharing(batch, 5) == [[0, 1], [2], [3]]


def test_a_shared_prompt_ends_before_the_first_scored_token():
    """A hole inside a completion is a token like any other; one at its start belongs to the prompt."""
    completions, masks = [[8, 4, 9], [9, 2], [4, 1]], [[True, False, True], None, [False, True]]
    batch = make_batch([[5, 6]] * 3, completions, 2, masks)
    assert (batch.prompt_lengths.tolist(), batch.completion_lengths.tolist()) == ([2, 2, 3], [2, 2, 1])
    rows = make_rows(batch, "shared")
    assert rows.inputs["input_ids"].tolist() == [[5, 6, 8, 4, 9, 9, 2, 5, 6, 4, 1]]
    assert rows.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1, 2, 3]]
    assert rows.inputs["spans"] == (Span(0, 5), Span(5, 7, (0, 2)), Span(7, 11))
    assert rows.predicting.tolist() == [1, 3, 1, 5, 9]
    assert rows.targets.tolist() == [8, 9, 9, 2, 1]
    assert sharing(batch, 7) == [[0, 1], [2]]


@settings(max_examples=50)
@given(samples=batches, layout=layouts, dtype=st.sampled_from([torch.bfloat16, torch.float64]), seed=st.integers(0, 99))
def test_sums_are_those_of_every_sample(samples, layout, dtype, seed):
    """Reference: a loop over the samples' own tokens. What lies in the padding is not added, and nothing is rounded to
    the dtype of the tokens, of which a few at a time are widened.
    """
    rows = make_rows(make_batch(*zip(*samples), pad_id=0), layout)
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, rows.inputs["input_ids"].numel(), 3, generator=generator, dtype=torch.float64).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    expected = torch.stack([part.sum(0) for part in rows.segments.split(a.to(wide) * b.to(wide))])
    with patch.object(rows_module, "NARROW_TOKENS", 2):
        torch.testing.assert_close(rows.segments.sums(a.clone(), b), expected)


@given(lengths=lengths, budget=st.integers(1, 100), layout=layouts)
def test_passes_hold_every_sample_once_within_the_budget(lengths, budget, layout):
    """A partition; over the budget only a sample alone; and no two passes would fit into one (first fit)."""
    passes = plan_passes(lengths, budget, layout)
    assert sorted(i for own in passes for i in own) == list(range(len(lengths)))
    sizes = [[lengths[i] for i in own] for own in passes]
    costs = [len(own) * max(own) if layout == "padded" else sum(own) for own in sizes]
    assert all(c <= budget or len(own) == 1 for c, own in zip(costs, passes))
    if layout == "packed" and len(passes) > 1:
        assert min(a + b for i, a in enumerate(costs) for b in costs[:i]) > budget, "two passes fit into one"
