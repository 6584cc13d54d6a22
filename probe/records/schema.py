"""The fields of what a run leaves, read off the dataclasses of `records`: for tables, and for spec/SCHEMA.md.

`python -m probe.records.schema > spec/SCHEMA.md` writes the document again; a test keeps it equal to the dataclasses. A
field's meaning is the comment beside it. No torch here.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Literal, get_args, get_type_hints

from probe.records import records
from probe.records.records import ADVANTAGE_KEYS, PREFIXED, RUN_SCHEMA, GradientRecord, SampleRecord, StepRecord

Kind = Literal["int", "float", "bool", "str"]
Record = SampleRecord | StepRecord | GradientRecord
FLAGS = ("adv_cap_vacuous",)  # of ADVANTAGE_KEYS, whose other values are numbers
_COMMENT = re.compile(r'^ +(?:(\w+):[^#]*|"([^"]+)",\s*)#\s*(?:noqa: \w+\s+)?(.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field on the wire, one column of a table."""

    name: str
    kind: Kind
    nullable: bool
    meaning: str


RATES = {"hack": "hacked", "exploit": "were paid without being right", "solve": "are right"}
EVALUATION_FIELDS = (
    Field(name="step", kind="int", nullable=False, meaning="optimizer steps that the policy has behind it"),
    Field(name="weights", kind="str", nullable=False, meaning="training or deployed: with or without a quarantine"),
    Field(name="setting", kind="str", nullable=False, meaning="`all`, a loophole mode with its hint, or `no hint`"),
    Field(name="num_rollouts", kind="int", nullable=False, meaning="graded rollouts"),
    Field(name="num_problems", kind="int", nullable=False, meaning="held-out problems"),
    *(
        field
        for rate, meaning in RATES.items()
        for field in (
            Field(name=f"{rate}_count", kind="int", nullable=False, meaning=f"rollouts that {meaning}"),
            Field(name=f"{rate}_rate", kind="float", nullable=True, meaning="their share"),
            Field(name=f"{rate}_low", kind="float", nullable=True, meaning="lower end of its Wilson 95% interval"),
            Field(name=f"{rate}_high", kind="float", nullable=True, meaning="upper end"),
        )
    ),
)


@cache
def wire_fields(record: type[Record]) -> tuple[Field, ...]:
    """The fields of one line in order, `advantage` flattened; `kl` and `ratio` have no fixed names and are left out."""
    meanings = {name: text for name, _, text in _COMMENT.findall(inspect.getsource(record)) if name}
    found: list[Field] = []
    for name, hint in get_type_hints(record).items():
        if record is StepRecord and name == "advantage":
            found += _advantage_fields()
        elif name not in PREFIXED:
            kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
            nullable = NoneType in get_args(hint)
            found.append(Field(name=name, kind=kinds[0].__name__, nullable=nullable, meaning=meanings[name]))
    return tuple(found)


def _advantage_fields() -> list[Field]:
    meanings = {key: text for _, key, text in _COMMENT.findall(inspect.getsource(records)) if key}
    return [
        Field(name=key, kind="bool" if key in FLAGS else "float", nullable=True, meaning=meanings[key])
        for key in ADVANTAGE_KEYS
    ]


def schema_document() -> str:
    """spec/SCHEMA.md."""
    parts = (
        ("`step_NNN.cos.jsonl.gz`: a line a rollout, condition and arm (`samples`)", wire_fields(SampleRecord), ""),
        (
            "`steps.jsonl`: a line a step, condition and arm (`steps`)",
            wire_fields(StepRecord),
            "With a KL term numbers `kl/NAME` follow, with recorded ratios `ratio/NAME`. Nulls of a gradient without "
            "direction have their reason beside.",
        ),
        (
            "`evals.jsonl` of `probe train`, as a table (`evals`)",
            EVALUATION_FIELDS,
            "The file nests these: a line an evaluation, `rates: {setting: {num_rollouts, ..., hack: {count, rate, "
            "interval: {low, high}}, ...}}`.",
        ),
        ("Lines of `probe.attach` and `probe.integrations.trl`", wire_fields(GradientRecord), ""),
    )
    head = f"""# Schema of a run, version {RUN_SCHEMA}

Made by `python -m probe.records.schema` from `probe/records/records.py`, and compared with it by a test.
`manifest.json` names the version as `schema`; a reader refuses another one, and another set of fields. JSON is strict:
null, never NaN. `probe.load` reads the files; `probe export` writes the first three as Parquet or CSV.
"""
    return "\n".join([head, *(_table(*part) for part in parts)])


def _table(title: str, columns: Sequence[Field], note: str) -> str:
    rows = [
        (f"`{c.name}`", c.kind + (" or null" if c.nullable else ""), c.meaning.replace("|", "\\|")) for c in columns
    ]
    table = [f"| {' | '.join(row)} |" for row in (("field", "type", "meaning"), ("---",) * 3, *rows)]
    return "\n".join([f"## {title}", "", *table, *(["", note] if note else []), ""])


if __name__ == "__main__":
    print(schema_document(), end="")
