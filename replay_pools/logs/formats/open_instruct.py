"""Traces of open-instruct (`save_traces`): token ids without text."""

import math
from collections.abc import Iterable, Sequence

from replay_pools.errors import Faults
from replay_pools.logs.table import Fields, Format, LeftOutError, StoredRow, Table, has, unfolded


def _rollout(fields: Fields) -> Iterable[Fields]:
    if (fields.get("request_info") or {}).get("tool_calleds") not in (None, False, []):
        raise LeftOutError("the answers of tools stand among the sampled ids, without a mask")
    logprobs = fields.get("logprobs")
    if logprobs and any(math.isnan(value) for value in logprobs):  # of an end of turn that was appended
        fields = {**fields, "logprobs": None}
    return [fields]


def _read(rows: Sequence[StoredRow], faults: Faults) -> Table:
    flat, notes = unfolded(rows, _rollout, faults)
    mapping = {
        "step": "step",
        "prompt_ids": "prompt_tokens",
        "completion_ids": "response_tokens",
        "logprobs": "logprobs",
        "reward": "reward",
        "advantage": "advantage",
        "finish": "finish_reason",
    }
    # Not `prompt_idx`: it is wrong where truncated rows were removed before writing.
    notes.append("groups are equal prompts of one step; those without reward variance may be missing from the log")
    return Table(flat, mapping, notes)


OPEN_INSTRUCT = Format(
    name="open-instruct",
    recognises=has("prompt_tokens", "response_tokens", "prompt_idx"),
    read=_read,
    cannot_know="Labels, the scale of the reward (10 for a right answer by default), and groups of equal rewards.",
)
