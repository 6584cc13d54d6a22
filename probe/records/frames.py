"""Records as tables: numpy columns, pandas and polars frames, with the field types of `probe.records.tables`.

A column has the name of its field on the wire. A null is NaN in a float column and None in any other; polars has nulls
of its own. numpy, pandas and polars are imported when a table is asked for.

To add a table: its fields in `probe.records.tables`, its name in TableName and its rows in `make_table`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from probe.records.records import PREFIXED, SampleRecord, StepRecord
from probe.records.tables import EVALUATION_FIELDS, RATES, Field, wire_fields
from replay_pools.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TableName = Literal["samples", "steps", "evals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows, and the fields that are their columns; a field that a row does not have is null there."""

    fields: Sequence[Field]
    rows: Sequence[Mapping[str, Any]]

    def columns(self) -> "dict[str, NDArray[Any]]":
        """{name: (rows,)} as int64, float64, bool or str; object for a bool or str that may be null."""
        import numpy as np

        dtypes = {"int": np.int64, "bool": np.bool_, "str": np.str_}
        columns: dict[str, NDArray[Any]] = {}
        for field in self.fields:
            values = self._values(field)
            # Types follow from the field, never from the values: tables of several runs can then be concatenated.
            if field.kind == "float":
                numbers = [np.nan if value is None else value for value in values]
                columns[field.name] = np.array(numbers, dtype=np.float64)
            elif field.nullable:
                columns[field.name] = np.array(values, dtype=object)
            else:
                columns[field.name] = np.array(values, dtype=dtypes[field.kind])
        return columns

    def pandas(self) -> Any:
        """A pandas.DataFrame; InputError when pandas is not installed."""
        return _import_package("pandas", fix="pip install pandas").DataFrame(self.columns())

    def polars(self) -> Any:
        """A polars.DataFrame."""
        import polars

        kinds = {"int": polars.Int64, "float": polars.Float64, "bool": polars.Boolean, "str": polars.String}
        schema = {field.name: kinds[field.kind] for field in self.fields}
        return polars.DataFrame({field.name: self._values(field) for field in self.fields}, schema=schema, strict=False)

    def _values(self, field: Field) -> list[Any]:
        return [row.get(field.name) for row in self.rows]


def make_table(
    name: str, samples: Sequence[SampleRecord], steps: Sequence[StepRecord], evals: Sequence[Mapping[str, Any]]
) -> Table:
    """The table `samples`, `steps` or `evals` of a run; InputError for another name."""
    makers: dict[str, Callable[[], Table]] = {
        "samples": lambda: Table(fields=wire_fields(SampleRecord), rows=[sample.to_json() for sample in samples]),
        "steps": lambda: _step_table(steps),
        "evals": lambda: _evaluation_table(evals),
    }
    if name not in makers:
        raise InputError("table", expected=f"one of {', '.join(makers)}", found=repr(name))
    return makers[name]()


def _step_table(steps: Sequence[StepRecord]) -> Table:
    """The fixed fields of a step, then a column for every `kl/NAME` and `ratio/NAME` that any of the steps has."""
    rows = [step.to_json() for step in steps]
    names: dict[str, None] = {}
    for row in rows:
        names |= {name: None for name in row if name.partition("/")[0] in PREFIXED}
    extra = [Field(name=name, kind="float", nullable=True, meaning="of the KL term, or of the ratio") for name in names]
    return Table(fields=[*wire_fields(StepRecord), *extra], rows=rows)


def _evaluation_table(evals: Sequence[Mapping[str, Any]]) -> Table:
    """A row for every evaluation and setting, from the nested lines of evals.jsonl."""
    rows = []
    for line in evals:
        for setting, rates in line["rates"].items():
            row = {"step": line["step"], "weights": line["weights"], "setting": setting}
            row |= {"num_rollouts": rates["num_rollouts"], "num_problems": rates["num_problems"]}
            for rate in RATES:
                # A rate over no rollouts is null, and so is its interval.
                interval = rates[rate]["interval"] or {}
                row |= {
                    f"{rate}_count": rates[rate]["count"],
                    f"{rate}_rate": rates[rate]["rate"],
                    f"{rate}_low": interval.get("low"),
                    f"{rate}_high": interval.get("high"),
                }
            rows.append(row)
    return Table(fields=EVALUATION_FIELDS, rows=rows)


def _import_package(name: str, *, fix: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"package {name}", expected="it to be installed", found="none", fix=fix) from error
