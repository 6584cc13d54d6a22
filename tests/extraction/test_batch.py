import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.batch import make_batch
from replay_pools.errors import InputError

ids = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@settings(deadline=None)
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


@settings(deadline=None)
@given(samples=st.lists(st.tuples(ids, ids), min_size=1, max_size=5), data=st.data())
def test_rows_are_the_batch_of_these_samples(samples, data):
    """rows(a, b) == make_batch of samples a..b-1: no padding that only the others needed."""
    start = data.draw(st.integers(0, len(samples) - 1))
    stop = data.draw(st.integers(start + 1, len(samples)))
    batch = make_batch([p for p, _ in samples], [c for _, c in samples], 0).rows(start, stop)
    expected = make_batch([p for p, _ in samples[start:stop]], [c for _, c in samples[start:stop]], 0)
    for field in ("ids", "attention_mask", "completion_mask", "lengths"):
        assert torch.equal(getattr(batch, field), getattr(expected, field)), field


def test_to_moves_every_tensor():
    """No field is left behind."""
    batch = make_batch([[1]], [[2]], 0).to("meta")
    assert {getattr(batch, field).device.type for field in batch.__dataclass_fields__} == {"meta"}


@pytest.mark.parametrize(
    ("prompts", "completions", "message"),
    [
        ([[1], [1]], [[2], []], "sample 1.*completion"),
        ([[1], []], [[2], [2]], "sample 1.*prompt"),
        ([[1]], [[2], [3]], "1 prompts and 2 completions"),
        ([], [], "0 prompts"),
    ],
)
def test_what_cannot_be_scored_is_refused(prompts, completions, message):
    """The sample is named."""
    with pytest.raises(InputError, match=message):
        make_batch(prompts, completions, 0)
