"""Logs of inspect_ai: samples of an evaluation, each with its messages and scores."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from replay_pools.errors import Faults
from replay_pools.logs.table import Fields, Format, LeftOutError, StoredRow, Table, has, joined_text, unfolded

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect's usual values of its letters


def _rollout(sample: Fields) -> Iterable[Fields]:
    if sample.get("error"):
        raise LeftOutError("the sample ended in an error")
    messages = sample["messages"]
    generated = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(generated) != 1:
        raise LeftOutError(f"{len(generated)} answers of the model in a sample; one can be replayed")
    choices = (sample.get("output") or {}).get("choices") or [{}]
    return [
        {
            **sample,
            "prompt": [_message(message) for message in messages[: generated[0]]],
            "completion": _text(messages[generated[0]].get("content")),
            "stop_reason": choices[0].get("stop_reason"),
            "scores": {name: _number(score) for name, score in (sample.get("scores") or {}).items()},
        }
    ]


def _message(message: Fields) -> dict[str, str]:
    return {"role": message["role"], "content": _text(message.get("content"))}


def _text(content: Any) -> str:
    text = joined_text(content)
    if isinstance(text, str):
        return text
    kinds = sorted({str(part.get("type")) for part in text} - {"text"})
    raise LeftOutError(f"content with {', '.join(kinds)} beside the text")


def _number(score: Any) -> float | None:
    """The value of a score as a number; None where it is none."""
    value = score.get("value") if isinstance(score, dict) else score
    value = GRADES.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool | int | float) or math.isnan(value):
        return None
    return float(value)


def _read(rows: Sequence[StoredRow], faults: Faults) -> Table:
    flat, notes = unfolded(rows, _rollout, faults)
    mapping = {"problem": "id", "prompt": "prompt", "completion": "completion", "finish": "stop_reason"}
    scorers = list(dict.fromkeys(name for row in flat for name in row.fields["scores"]))
    if len(scorers) == 1:
        mapping["reward"] = f"scores.{scorers[0]}"
    notes.append("letters of a scorer count as C = 1, P = 0.5, I = N = 0")
    models = sorted({str(row.fields["model"]) for row in flat if row.fields.get("model")})
    if models:
        notes.append(f"sampled by {', '.join(models)}: is --model these weights?")
    return Table(flat, mapping, notes)


INSPECT = Format(
    name="inspect",
    recognises=has("id", "epoch", "messages", "scores"),
    read=_read,
    cannot_know="Token ids, the provider's template and hidden reasoning; a group is one sample's epochs.",
)
