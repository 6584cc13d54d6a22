"""Names, types and meanings of the fields that a run writes: for tables (`probe.records.tables`) and spec/SCHEMA.md.

Records state the meaning of a field in its annotation, `Annotated[type, "meaning"]`; the tables of evaluations and
advantages state it as data. After a change of either, write the document again (a test compares the two):

    python -m probe.records.tables > spec/SCHEMA.md

No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from probe.records.records import ADVANTAGE_MEANINGS, PREFIXED, RUN_SCHEMA, GradientRecord, SampleRecord, StepRecord

Kind = Literal["int", "float", "bool", "str"]
Record = SampleRecord | StepRecord | GradientRecord
FLAGS = ("adv_cap_vacuous",)  # the advantage fields that are bool; all others are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a JSON line, which is one column of a table."""

    name: str
    kind: Kind
    nullable: bool
    meaning: str


RATES = {"hack": "hacked", "exploit": "were paid without being right", "solve": "are right"}


def _evaluation_fields() -> tuple[Field, ...]:
    """The columns of an evaluation: which one it is, then count, rate and interval of every rate."""
    columns = [
        Field(name="step", kind="int", nullable=False, meaning="optimizer steps that the policy has behind it"),
        Field(name="weights", kind="str", nullable=False, meaning="training or deployed: with or without a quarantine"),
        Field(name="setting", kind="str", nullable=False, meaning="`all`, a loophole mode with its hint, or `no hint`"),
        Field(name="num_rollouts", kind="int", nullable=False, meaning="graded rollouts"),
        Field(name="num_problems", kind="int", nullable=False, meaning="held-out problems"),
    ]
    for rate, meaning in RATES.items():
        columns += [
            Field(name=f"{rate}_count", kind="int", nullable=False, meaning=f"rollouts that {meaning}"),
            Field(name=f"{rate}_rate", kind="float", nullable=True, meaning="their share"),
            Field(name=f"{rate}_low", kind="float", nullable=True, meaning="lower end of its Wilson 95% interval"),
            Field(name=f"{rate}_high", kind="float", nullable=True, meaning="upper end"),
        ]
    return tuple(columns)


EVALUATION_FIELDS = _evaluation_fields()


@cache
def wire_fields(record: type[Record]) -> tuple[Field, ...]:
    """The fields of one line of a record class, in order, with `advantage` flattened.

    `kl` and `ratio` are left out: which of their names a line has depends on the loss.
    """
    columns: list[Field] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        if record is StepRecord and name == "advantage":
            columns += _advantage_fields()
        elif name not in PREFIXED:
            columns.append(_field(name, hint))
    return tuple(columns)


def _field(name: str, hint: Any) -> Field:
    """The field of an annotation `Annotated[type, meaning]`, where type is one of Kind, or one of Kind | None."""
    assert get_origin(hint) is Annotated, f"{name} has no meaning: write Annotated[type, meaning]"
    type_hint, meaning = get_args(hint)
    types = get_args(type_hint) or (type_hint,)
    kinds = [part.__name__ for part in types if part is not NoneType]
    return Field(name=name, kind=kinds[0], nullable=NoneType in types, meaning=meaning)


def _advantage_fields() -> list[Field]:
    return [
        Field(name=name, kind="bool" if name in FLAGS else "float", nullable=True, meaning=meaning)
        for name, meaning in ADVANTAGE_MEANINGS.items()
    ]


def schema_document() -> str:
    """The text of spec/SCHEMA.md. To add a file of a run: add a table here, with its fields as `Field`s."""
    tables = (
        _table(
            "`step_NNN.cos.jsonl.gz`: a line a rollout, condition and arm (`samples`)",
            wire_fields(SampleRecord),
        ),
        _table(
            "`steps.jsonl`: a line a step, condition and arm (`steps`)",
            wire_fields(StepRecord),
            note="With a KL term numbers `kl/NAME` follow, with recorded ratios `ratio/NAME`. Nulls of a gradient "
            "without direction have their reason beside.",
        ),
        _table(
            "`evals.jsonl` of `probe train`, as a table (`evals`)",
            EVALUATION_FIELDS,
            note="The file nests these: a line an evaluation, `rates: {setting: {num_rollouts, ..., hack: {count, "
            "rate, interval: {low, high}}, ...}}`. Beside them `elo: {ladder: {name: Elo}}` (spec/guide/ladder.md).",
        ),
        _table("Lines of `probe.attach` and `probe.integrations.trl`", wire_fields(GradientRecord)),
    )
    head = f"""# Schema of a run, version {RUN_SCHEMA}

Made by `python -m probe.records.tables` from `probe/records/records.py`, and compared with it by a test.
`manifest.json` names the version as `schema`; a reader refuses another one, and another set of fields. JSON is strict:
null, never NaN. `probe.load` reads the files; `probe report --tables` writes the first three as Parquet or CSV.
"""
    return "\n".join([head, *tables])


def _table(title: str, columns: Sequence[Field], *, note: str = "") -> str:
    """A heading, a Markdown table with a row for each column, and the note below it."""
    lines = [f"## {title}", "", "| field | type | meaning |", "| --- | --- | --- |"]
    for column in columns:
        kind = f"{column.kind} or null" if column.nullable else column.kind
        # Unescaped, a | of "largest |A|" would end the cell.
        meaning = column.meaning.replace("|", "\\|")
        lines.append(f"| `{column.name}` | {kind} | {meaning} |")
    if note:
        lines += ["", note]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(schema_document(), end="")
