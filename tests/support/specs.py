"""A spec in TOML from what a test says of it; all else is the least that loads.

replay_spec("tiny", steps=1, conditions={"plain": {}, "narrow": {"intervention.extraction.k": 2}})
training_spec("after", seeds=[0, 1], arms=["vanilla", "projected"], decisions=[{"name": "MORE"}])
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.settings.presets import toml_text

Table = Mapping[str, Any]  # keys may have dots


def criterion(name: str, asked: str, role: str = "check", **more: Any) -> dict[str, Any]:
    """`asked` is `ESTIMATE above NUMBER`, or another bound."""
    estimate, bound, value = re.split(r" (above|below|inside) ", asked)
    return {"name": name, "estimate": estimate, bound: json.loads(value), "role": role, **more}


ALIGNED = criterion("aligned", "cos_in above 0.05", "primary")
LOWERS = criterion("lowers-hacking", "hack_final below 0.0", "primary", arm="projected", versus_arm="vanilla")
PENALTY = {"arms": ["vanilla"], "objective.reference": "base", "objective.beta": 1.0}  # a condition
MORE = {"name": "MORE"}


def replay_spec(name: str, settings: Table, **parts: Any) -> str:
    """A spec of replays; `parts` as `spec_text`."""
    return spec_text(name, {"verb": "replay", **settings}, **{"criteria": [ALIGNED], **parts})


def training_spec(name: str, **parts: Any) -> str:
    """A spec of trainings of 64 steps, vanilla beside projected; `parts` as `spec_text`."""
    parts = {"arms": ["vanilla", "projected"], "criteria": [LOWERS], **parts}
    return spec_text(name, {"verb": "train", "preset": "fast", "steps": 64}, **parts)


def spec_text(
    name: str,
    settings: Table,
    *,
    arms: Sequence[str] = ("vanilla",),
    seeds: Sequence[int] = (0,),
    question: str = "Does it run?",
    conditions: Mapping[str, Table] | None = None,
    criteria: Sequence[Table],
    decisions: Sequence[Table] = (MORE,),
    budget: Table | None = None,
) -> str:
    """The file of a spec.

    Args:
        conditions: {name: its settings, and `arms` and `seeds` where it has its own}; None: one condition, `base`.
        budget: keys of `[budget]`.
    """
    parts = [toml_rows({"arms": arms, "seeds": seeds}), "[experiment]"]
    parts += [toml_rows({"name": name, "question": question, "hypotheses": ["It does."]}), "[settings]"]
    parts.append(toml_rows(settings))
    for condition, table in (conditions or {}).items():
        changes = {key if key in ("arms", "seeds") else f"settings.{key}": value for key, value in table.items()}
        parts.append(toml_tables("conditions", [{"name": condition, **changes}]))
    parts += [toml_tables("criteria", criteria), toml_tables("decisions", decisions)]
    return "\n".join([*parts, *(["[budget]", toml_rows(budget)] if budget else [])]) + "\n"


def toml_rows(table: Table) -> str:
    """`key = value`, a line each."""
    return "\n".join(f"{key} = {toml_text(value)}" for key, value in table.items())


def toml_tables(title: str, tables: Iterable[Table]) -> str:
    """`[[title]]` and its rows, for each of the tables."""
    return "\n\n".join(f"[[{title}]]\n{toml_rows(table)}" for table in tables)
