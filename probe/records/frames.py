"""Records as tables: numpy columns, pandas and polars frames, with the types of `probe.records.schema`.

Columns have the wire names. A null is NaN among floats and None elsewhere; polars keeps nulls. numpy, pandas and polars
are imported when they are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from probe.records.records import PREFIXED, SampleRecord, StepRecord
from probe.records.schema import EVALUATION_FIELDS, RATES, Field, wire_fields
from replay_pools.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TableName = Literal["samples", "steps", "evals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with the fields of their columns; a field that a row lacks is null there."""

    fields: Sequence[Field]
    rows: Sequence[Mapping[str, Any]]

    def columns(self) -> "dict[str, NDArray[Any]]":
        """{name: (rows,)}: int64, float64, bool or str; object where a flag or a text may be null."""
        import numpy as np

        plain = {"int": np.int64, "bool": np.bool_, "str": np.str_}
        found: dict[str, NDArray[Any]] = {}
        for field in self.fields:
            values = self._values(field)
            if field.kind == "float":
                found[field.name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
            else:
                found[field.name] = np.array(values, dtype=object if field.nullable else plain[field.kind])
        return found

    def pandas(self) -> Any:
        """A pandas.DataFrame; InputError when pandas is not installed."""
        return _installed("pandas", fix="pip install pandas").DataFrame(self.columns())

    def polars(self) -> Any:
        """A polars.DataFrame; InputError when polars is not installed."""
        polars = _installed("polars", fix="pip install 'gradient-probe[data]'")
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
    """With a column for every `kl/NAME` and `ratio/NAME` that one of the steps has."""
    rows = [step.to_json() for step in steps]
    names = dict.fromkeys(name for row in rows for name in row if name.partition("/")[0] in PREFIXED)
    extra = [Field(name=name, kind="float", nullable=True, meaning="of the KL term, or of the ratio") for name in names]
    return Table(fields=[*wire_fields(StepRecord), *extra], rows=rows)


def _evaluation_table(evals: Sequence[Mapping[str, Any]]) -> Table:
    """A row an evaluation and setting."""
    rows = []
    for line in evals:
        for setting, rates in line["rates"].items():
            row = {"step": line["step"], "weights": line["weights"], "setting": setting}
            row |= {name: rates[name] for name in ("num_rollouts", "num_problems")}
            for name in RATES:
                interval = rates[name]["interval"] or {}
                row |= {f"{name}_{part}": rates[name][part] for part in ("count", "rate")}
                row |= {f"{name}_{end}": interval.get(end) for end in ("low", "high")}
            rows.append(row)
    return Table(fields=EVALUATION_FIELDS, rows=rows)


def _installed(name: str, *, fix: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"package {name}", expected="it to be installed", found="none", fix=fix) from error
