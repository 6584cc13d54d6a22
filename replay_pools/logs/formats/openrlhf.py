"""OpenRLHF: what a recorder in its agent writes, and the files of its old batch inference."""

from collections.abc import Iterable, Sequence

from replay_pools.errors import Faults, InputError
from replay_pools.logs.columns import MARKUP, NO_COLUMN
from replay_pools.logs.table import Fields, Format, LeftOutError, StoredRow, Table, has, plain, unfolded


def _agent(fields: Fields) -> Iterable[Fields]:
    """The action ids are the completion; what stands before them is the prompt."""
    ids, ranges = fields["observation_tokens"], fields["action_ranges"]
    if len(ranges) != 1:
        raise LeftOutError(f"{len(ranges)} turns of actions; one can be replayed")
    start, end = ranges[0]
    if not 0 < start < end <= len(ids):
        found = f"{start} to {end} of {len(ids)}"
        raise InputError("action_ranges", expected="a range in observation_tokens, behind a prompt", found=found)
    row = {**fields, "prompt_ids": ids[:start], "completion_ids": ids[start:end]}
    if fields.get("rollout_log_probs"):
        row["rollout_log_probs"] = fields["rollout_log_probs"][start:end]
    return [row]


def _read_agent(rows: Sequence[StoredRow], faults: Faults) -> Table:
    flat, notes = unfolded(rows, _agent, faults)
    # The text of the prompt is what its ids decode to: `prompt` may be with or without the template's markup.
    mapping = {"prompt_ids": "prompt_ids", "prompt": NO_COLUMN, "completion_ids": "completion_ids", "reward": "reward"}
    return Table(flat, mapping, notes)


def _is_inference(row: StoredRow) -> bool:
    """By the markup of the prompt, since others name their columns so too."""
    prompt = row.fields.get("input")
    return row.fields.keys() == {"input", "output", "reward"} and isinstance(prompt, str) and bool(MARKUP.match(prompt))


OPENRLHF = Format(
    name="openrlhf",
    recognises=has("observation_tokens", "action_ranges"),
    read=_read_agent,
    cannot_know="Labels, and the penalties and clipping that the reward goes through later.",
)
OPENRLHF_INFERENCE = Format(
    name="openrlhf-inference",
    recognises=_is_inference,
    read=plain({"rendered": "input", "completion": "output", "reward": "reward"}),
    cannot_know="Token ids, labels and groups, which are taken from equal prompts.",
)
