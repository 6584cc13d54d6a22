"""Checks of token ids against a model: its vocabulary, end-of-turn ids and texts.

chat = load_served_policy("organism")    tokenizer and configs, no weights
faults = id_faults(chat, pool)
"""

from functools import lru_cache
from itertools import chain

from transformers import PreTrainedTokenizerBase

from replay_pools.base.errors import Faults, InputError, text_difference
from replay_pools.policy.chat import Chat
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout, early_end


def id_faults(chat: Chat, pool: Pool) -> list[InputError]:
    """Return one error for every kind of fault in a pool, with the number of rollouts that have it."""
    faults = Faults()
    for rollout in chain.from_iterable(pool.steps):
        note_faults(chat, rollout, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}", faults)
    return faults.errors()


def note_faults(chat: Chat, rollout: Rollout, place: str, faults: Faults) -> None:
    """Add every fault of a rollout at `place` to `faults`."""
    model, ids, tokenizer = chat.base_model, rollout.completion_ids, chat.tokenizer
    if unknown := _unknown(chat, rollout):
        expected = f"token ids of {model}, 0 to {chat.vocabulary_size - 1}"
        faults.add(place, "ids", expected=expected, found=f"{len(unknown)} others, the first {unknown[0]}")
        return  # unknown ids have no text to compare
    if (end := early_end(ids, rollout.completion_mask, chat.eos_ids)) is not None:
        found = f"{len(ids) - end - 1} ids after id {ids[end]} at {end} of {len(ids)}"
        fix = "cut them, with their text, where the turn ends, or mask the turns of tools and users"
        expected = "no id after the end of the turn"
        faults.add(f"{place} completion_ids", "end", expected=expected, found=found, fix=fix)
    decoded, differences = chat.decode(ids), dict[str, str]()
    # Some loggers decode with clean-up, which removes spaces before punctuation.
    if decoded != rollout.completion and _bare(tokenizer, rollout.completion) not in (
        _bare(tokenizer, decoded),
        _bare(tokenizer, str(tokenizer.decode(ids, clean_up_tokenization_spaces=True))),
    ):
        differences["completion"] = text_difference(decoded, rollout.completion)
    # `Pool.verify` reports missing ids.
    if rollout.prompt_ids:
        differences["prompt"] = _prompt_difference(tokenizer, tuple(rollout.prompt_ids), rollout.prompt)
    for name, found in differences.items():
        expected = f"the text of {name}_ids by the tokenizer of {model}"
        fix = "check that --model is the model that sampled it"
        if found:
            faults.add(f"{place} {name}", name, expected=expected, found=found, fix=fix)


def decoded_text(chat: Chat, rollout: Rollout) -> str:
    """Return the decoded ids of a completion if they agree with its stored text, else the stored text.

    Logs keep special tokens in the text, or strip white space; both shift the places of the tokens.
    """
    stored = rollout.completion
    if _unknown(chat, rollout):  # they cannot be decoded
        return stored
    decoded = chat.decode(rollout.completion_ids)
    return decoded if _bare(chat.tokenizer, decoded) == _bare(chat.tokenizer, stored) else stored


def _unknown(chat: Chat, rollout: Rollout) -> list[int]:
    """Return the ids of a rollout that the model does not have."""
    ids = rollout.prompt_ids + rollout.completion_ids
    if not ids or 0 <= min(ids) <= max(ids) < chat.vocabulary_size:
        return []
    return [token for token in ids if not 0 <= token < chat.vocabulary_size]


@lru_cache(1)  # rollouts of a group share their prompt
def _prompt_difference(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], text: str) -> str:
    """Return "" if the text encodes to the ids, or they decode to it: tokenizers may lose spaces."""
    if tokenizer.encode(text, add_special_tokens=False) == [*ids]:
        return ""
    decoded = str(tokenizer.decode([*ids]))
    return "" if _bare(tokenizer, decoded) == _bare(tokenizer, text) else text_difference(decoded, text)


def _bare(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Strip special tokens, surrounding white space and a truncated last character."""
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    return text.strip().rstrip("\ufffd").strip()
