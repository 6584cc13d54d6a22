"""Records as tables: their fields, polars frames, and the text of spec/SCHEMA.md.

The meaning of a field is in its annotation, `Annotated[type, "meaning"]`, or, for evaluations and advantages, in a
table. After a change, run `python -m probe.records.schema > spec/SCHEMA.md`; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from probe.records.records import (
    ADVANTAGE_MEANINGS,
    PREFIXED,
    RUN_SCHEMA,
    GradientRecord,
    LookaheadRecord,
    Record,
    SampleRecord,
    StepRecord,
)
from replay_pools.base.errors import InputError

if TYPE_CHECKING:
    from polars import DataFrame

TableName = Literal["samples", "steps", "evals"]
Kind = Literal["int", "float", "bool", "str"]
FLAGS = ("adv_cap_vacuous",)  # the boolean advantage fields


class Field(NamedTuple):
    """One field of a JSON line and column of a table."""

    name: str
    kind: Kind
    nullable: bool
    meaning: str


RATES = {"hack": "hacked", "exploit": "were rewarded and wrong", "solve": "are right"}
_OF_A_RATE = (
    Field("count", "int", False, "rollouts that {}"),
    Field("rate", "float", True, "their share"),
    Field("low", "float", True, "lower end of its Wilson 95% interval"),
    Field("high", "float", True, "upper end"),
)
EVALUATION_FIELDS = (
    Field("step", "int", False, "optimizer steps that the policy has made"),
    Field("weights", "str", False, "training or deployed: with or without a quarantine"),
    Field("setting", "str", False, "`all`, a loophole mode with its hint, or `no hint`"),
    Field("num_rollouts", "int", False, "graded rollouts"),
    Field("num_problems", "int", False, "held-out problems"),
    *(
        part._replace(name=f"{rate}_{part.name}", meaning=part.meaning.format(rollouts))
        for rate, rollouts in RATES.items()
        for part in _OF_A_RATE
    ),
)


@cache
def wire_fields(record: type[Record]) -> tuple[Field, ...]:
    """Return the fields of one line of a record class, in order, with `advantage` flattened.

    The names under `kl` and `ratio` depend on the loss and are left out.
    """
    columns: list[Field] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        if record is StepRecord and name == "advantage":
            for key, meaning in ADVANTAGE_MEANINGS.items():
                columns.append(Field(key, "bool" if key in FLAGS else "float", True, meaning))
        elif name not in PREFIXED:
            assert get_origin(hint) is Annotated, f"{name} has no meaning: write Annotated[type, meaning]"
            kind, meaning = get_args(hint)  # a Kind, or Kind | None
            kinds = get_args(kind) or (kind,)
            columns.append(Field(name, kinds[0].__name__, NoneType in kinds, meaning))
    return tuple(columns)


def frame_of(name: str, records: Mapping[str, Sequence[Any]]) -> "DataFrame":
    """Return the table `samples`, `steps` or `evals` of a run's records, {name: records}.

    Types depend on the fields alone, so that tables of several runs can be concatenated.

    Raises:
        InputError: another name.
    """
    import polars

    if name == "samples":
        fields, rows = wire_fields(SampleRecord), [sample.to_json() for sample in records[name]]
    elif name == "steps":
        rows = [step.to_json() for step in records[name]]
        names = dict.fromkeys(name for row in rows for name in row if name.partition("/")[0] in PREFIXED)
        extra = (Field(name, "float", True, "value of the KL term or ratio") for name in names)
        fields = (*wire_fields(StepRecord), *extra)
    elif name == "evals":
        fields, rows = EVALUATION_FIELDS, _evaluation_rows(records[name])
    else:
        raise InputError("table", expected=f"one of {', '.join(get_args(TableName))}", found=repr(name))
    kinds = {"int": polars.Int64, "float": polars.Float64, "bool": polars.Boolean, "str": polars.String}
    values = {field.name: [row.get(field.name) for row in rows] for field in fields}
    return polars.DataFrame(values, schema={field.name: kinds[field.kind] for field in fields}, strict=False)


def _evaluation_rows(evals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for every evaluation and setting, from the nested lines of evals.jsonl."""
    rows = []
    for line in evals:
        for setting, rates in line["rates"].items():
            row = {"step": line["step"], "weights": line["weights"], "setting": setting}
            row |= {"num_rollouts": rates["num_rollouts"], "num_problems": rates["num_problems"]}
            for rate in RATES:
                # Without rollouts, rate and interval are null.
                parts = {**rates[rate], **(rates[rate]["interval"] or {})}
                row |= {f"{rate}_{part.name}": parts.get(part.name) for part in _OF_A_RATE}
            rows.append(row)
    return rows


def schema_document() -> str:
    """Return the text of spec/SCHEMA.md. To add a file of a run, add a table with its fields here."""
    of_a_rate = [
        part._replace(name=f"RATE_{part.name}", meaning=part.meaning.format("hack, exploit or solve"))
        for part in _OF_A_RATE
    ]
    tables = (
        _table(
            "`step_NNN.cos.jsonl.gz`: one line a rollout, loss variant and arm (`samples`)",
            wire_fields(SampleRecord),
        ),
        _table(
            "`steps.jsonl`: one line a step, loss variant and arm (`steps`)",
            wire_fields(StepRecord),
            note="A KL term adds numbers `kl/NAME`, recorded ratios add `ratio/NAME`. `null_reason` explains missing "
            "cosines.",
        ),
        _table(
            "`evals.jsonl` of `probe train`, as a table (`evals`)",
            (*EVALUATION_FIELDS[: -len(RATES) * len(_OF_A_RATE)], *of_a_rate),
            note="RATE is `hack`, `exploit` (rewarded and wrong) or `solve`. The file nests these, one line an "
            "evaluation: `rates: {setting: {num_rollouts, ..., hack: {count, rate, interval: {low, high}}, ...}}`.",
        ),
        _table(
            "`lookahead.jsonl` of `probe replay --lookahead`: one line an arm, measure and prompt",
            wire_fields(LookaheadRecord),
            note="Measures: METHOD section 7.",
        ),
        _table("Lines of `probe.attach` and `probe.integrations.trl`", wire_fields(GradientRecord)),
    )
    head = f"""# Schema of a run, version {RUN_SCHEMA}

Generated by `python -m probe.records.schema` from `probe/records/records.py`; a test compares the two.
`manifest.json` states the version as `schema`. A reader refuses another version and another set of fields. JSON is
strict: null, never NaN. Manifests, cards and records of regrades end in `self_sha256`, the sha256 of the rest as
compact JSON in the order of its keys; a reader refuses a file with a changed value. `probe.read_run` reads the files;
`probe report --tables` writes the first three as Parquet or CSV.
"""
    return "\n".join([head, *tables])


def _table(title: str, columns: Sequence[Field], *, note: str = "") -> str:
    """Format a heading, a Markdown table with one row a column, and a note."""
    lines = [f"## {title}", "", "| field | type | meaning |", "| --- | --- | --- |"]
    for column in columns:
        kind = f"{column.kind} or null" if column.nullable else column.kind
        # An unescaped | in "largest |A|" would end the cell.
        meaning = column.meaning.replace("|", "\\|")
        lines.append(f"| `{column.name}` | {kind} | {meaning} |")
    if note:
        lines += ["", note]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(schema_document(), end="")
