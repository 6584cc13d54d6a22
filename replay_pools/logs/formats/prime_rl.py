"""Traces of prime-rl (a message graph with token ids), and the older results of verifiers (text alone)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from replay_pools.errors import Faults
from replay_pools.logs.table import Fields, Format, LeftOutError, StoredRow, Table, has, plain, unfolded


def _rollouts(episode: Fields) -> list[Fields]:
    """One rollout for each way from a root to a leaf in the traces of the agent that is trained."""
    if episode.get("ok") is False:
        raise LeftOutError("the episode failed (ok is false)")
    rollouts: list[Fields] = []
    for trace in episode["traces"]:
        if (trace.get("agent") or {}).get("trainable", True):
            rollouts += [_rollout(path, trace, episode) for path in _paths(trace["nodes"])]
    return rollouts


def _paths(nodes: Sequence[Fields]) -> Iterable[list[Fields]]:
    parents = Counter(node.get("parent") for node in nodes)
    for number, node in enumerate(nodes):
        if parents[number]:  # not a leaf
            continue
        path = [node]
        while path[0].get("parent") is not None:
            path.insert(0, nodes[path[0]["parent"]])
            if len(path) > len(nodes):
                raise ValueError("a node that is its own ancestor")
        yield path


def _rollout(path: Sequence[Fields], trace: Fields, episode: Fields) -> Fields:
    ids = [token for node in path for token in node.get("token_ids") or []]
    mask = [sampled for node in path for sampled in node.get("mask") or []]
    sampled = [node for node in path if node.get("sampled")]
    starts = sum(now and not before for now, before in zip(mask, [False, *mask], strict=False))
    if max(starts, len(sampled)) > 1:
        raise LeftOutError("several sampled turns; one can be replayed")
    if not sampled:
        raise LeftOutError("no sampled turn")
    group, task, work = episode.get("group") or {}, episode.get("task") or {}, (episode.get("run") or {}).get("work")
    calls = trace.get("calls") or [{}]
    row: dict[str, Any] = {
        "group": group.get("id"),
        "problem": task.get("key") or task.get("hash"),
        "step": (work or {}).get("step"),
        "reward": _total(trace.get("rewards") or {}),
        "rewards": {name: (part or {}).get("score") for name, part in (trace.get("rewards") or {}).items()},
        "metrics": trace.get("metrics"),
        "info": trace.get("info"),
        "finish": calls[-1].get("finish_reason"),
        "messages": [_message(node["message"]) for node in path if not node.get("sampled")],
        "completion": sampled[0]["message"].get("content"),
    }
    if ids:
        start = mask.index(True)
        end = start + sum(mask)
        if any(mask[end:]) or len(mask) != len(ids):
            raise ValueError("mask and token_ids of different lengths")
        logprobs = [value for node in path for value in node.get("logprobs") or []]
        row |= {"prompt_ids": ids[:start], "completion_ids": ids[start:end], "logprobs": logprobs or None}
        # The ids say all; the content leaves out reasoning and tool calls.
        row["completion"] = None
    elif sampled[0]["message"].get("reasoning_content"):
        raise LeftOutError("reasoning beside the text, and no token ids")
    return row


def _message(message: Fields) -> dict[str, Any]:
    return {"role": message.get("role"), "content": message.get("content") or ""}


def _total(rewards: Fields) -> float | None:
    parts = [part["score"] * part.get("weight", 1.0) for part in rewards.values() if part and part["score"] is not None]
    return sum(parts) if parts else None


def _read(rows: Sequence[StoredRow], faults: Faults) -> Table:
    flat, notes = unfolded(rows, _rollouts, faults)
    names = ("group", "problem", "step", "reward", "finish", "messages", "completion")
    names += ("prompt_ids", "completion_ids", "logprobs")
    filled = {name for row in flat for name, value in row.fields.items() if value is not None}
    notes.append(
        "reward is the sum of score times weight; labels may be in metrics or info (--map hacked=metrics.NAME)"
    )
    return Table(flat, {name: name for name in names if name in filled or name == "reward"}, notes)


PRIME_RL = Format(
    name="prime-rl",
    recognises=has("traces"),
    read=_read,
    cannot_know="Which metric is which label.",
)
VERIFIERS = Format(
    name="verifiers",
    recognises=has("example_id", "prompt", "completion", "reward"),
    read=plain({"problem": "example_id", "prompt": "prompt", "completion": "completion", "reward": "reward"}),
    cannot_know="Token ids, the options of the chat template, and which metric is which label.",
)
