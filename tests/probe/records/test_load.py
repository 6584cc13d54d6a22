"""probe.read_run, report --tables, the schema: tables hold the records exactly, types are those of the dataclasses."""

import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import ttest_ind

import probe
from probe.records.records import GradientRecord, SampleRecord, StepRecord
from probe.records.run import Run
from probe.records.schema import EVALUATION_FIELDS, TableName, schema_document, wire_fields
from replay_pools.base.errors import InputError

ROOT = Path(__file__).parents[3]
RATE = {"count": 1, "rate": 0.5, "interval": {"low": 0.1, "high": 0.9}}
NO_RATE = {"count": 0, "rate": None, "interval": None}
EVALS = [
    {
        "step": step,
        "weights": "deployed",
        "rates": {
            "all": {"num_rollouts": 2, "num_problems": 2, "hack": RATE, "exploit": RATE, "solve": RATE},
            "no hint": {"num_rollouts": 0, "num_problems": 0, "hack": NO_RATE, "exploit": NO_RATE, "solve": NO_RATE},
        },
    }
    for step in (0, 2)
]


@pytest.fixture(scope="module")
def loaded(many_arms: Path) -> Run:
    """A run of five arms."""
    return probe.read_run(str(many_arms))


def test_load_reads_the_run(loaded: Run, many_arms: Path) -> None:
    """Config, manifest and records, from a text or a path; what `read_run` refuses is refused."""
    assert len(repr(loaded)) < 200, "thousands of records"
    assert loaded == probe.read_run(many_arms)
    assert (loaded.config["settings"]["verb"], loaded.settings.verb) == ("replay", "replay")
    assert len(loaded.samples) == 6 * 5 * 8
    assert len(loaded.steps) == 6 * 5
    assert loaded.evals == []
    with pytest.raises(InputError, match="expected a run directory"):
        probe.read_run("out/runs/absent")


@pytest.mark.parametrize(("name", "nullable"), [("samples", "cos_S_contrib"), ("steps", "additivity_error")])
def test_columns_and_frames_hold_the_records(loaded: Run, name: TableName, nullable: str) -> None:
    """Every value of every line, nulls as NaN or None; one dtype a type; polars keeps nulls, pandas holds columns."""
    pandas = pytest.importorskip("pandas")
    rows, columns = [record.to_json() for record in getattr(loaded, name)], loaded.columns(name)
    assert list(columns) == list(rows[0])
    for field, values in columns.items():
        for value, row in zip(values.tolist(), rows, strict=True):
            expected = row[field]
            assert value == expected or (expected is None and (value is None or math.isnan(value))), field
    assert [str(columns[field].dtype) for field in ("step", "arm", "mean_cos_in")] == ["int64", "object", "float64"]
    frame = loaded.to_polars(name)
    assert frame.columns == list(columns)
    assert frame[nullable].null_count() == sum(np.isnan(columns[nullable]))
    assert str(frame.schema["step"]) == "Int64"
    pandas.testing.assert_frame_equal(loaded.to_pandas(name), pandas.DataFrame(columns))


def test_types_do_not_depend_on_the_values() -> None:
    """A table without rows, or with nulls alone, has the dtypes of a full one: concatenating runs keeps them."""
    empty = Run(path=Path("x"), config={"settings": {}}, manifest={}, samples=[], steps=[]).columns("steps")
    assert {name: str(empty[name].dtype) for name in ("step", "cos_in", "reference")} == {
        "step": "int64",
        "cos_in": "float64",
        "reference": "object",
    }


def test_evaluations_are_a_row_a_setting() -> None:
    """The nested line of evals.jsonl, flat; a rate of nothing is null."""
    run_ = Run(path=Path("x"), config={"settings": {}}, manifest={}, samples=[], steps=[], evals=EVALS)
    columns = run_.columns("evals")
    assert list(columns) == [field.name for field in EVALUATION_FIELDS]
    assert columns["step"].tolist() == [0, 0, 2, 2]
    assert columns["setting"].tolist() == ["all", "no hint"] * 2
    assert columns["solve_high"][0] == 0.9
    assert math.isnan(columns["hack_rate"][1])


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_export_writes_the_tables(loaded: Run, tmp_path: Path, kind: str, probe) -> None:
    """What is read back is what was loaded; a replay has no evaluations, and no file of them."""
    polars = pytest.importorskip("polars")
    rows = json.loads(probe("report", loaded.path, "--tables", kind, "--json", root=tmp_path)[0])["files"]
    files = {Path(row["path"]).stem: Path(row["path"]) for row in rows}
    assert set(files) == {"samples", "steps"} == {path.stem for path in (tmp_path / "exports" / "many-arms").iterdir()}
    for name in ("samples", "steps"):
        frame = loaded.to_polars(name)
        read = getattr(polars, f"read_{kind}")
        found = read(io.BytesIO(files[name].read_bytes()), **({"schema": frame.schema} if kind == "csv" else {}))
        assert found.equals(frame), f"{name}.{kind} differs from the run"
    out = loaded.path.parents[1]
    probe("report", loaded.path.name, "--tables", kind, root=out)  # by its name
    assert (out / "exports" / "many-arms" / f"steps.{kind}").read_bytes() == files["steps"].read_bytes()
    shutil.rmtree(out / "exports")


def test_the_schema_document_is_that_of_the_dataclasses(loaded: Run) -> None:
    """spec/SCHEMA.md equals what `probe.records.schema` prints; the fields are those on the wire, in order."""
    text = (ROOT / "spec" / "SCHEMA.md").read_text()
    assert text == schema_document(), "run: python -m probe.records.schema > spec/SCHEMA.md"
    assert [field.name for field in wire_fields(SampleRecord)] == list(loaded.samples[0].to_json())
    assert [field.name for field in wire_fields(StepRecord)] == list(loaded.steps[0].to_json())
    for record in (SampleRecord, StepRecord, GradientRecord):
        for field in wire_fields(record):
            assert len(field.meaning) > 5, f"{record.__name__}.{field.name} has no meaning"
            assert f"| `{field.name}` | {field.kind}{' or null' if field.nullable else ''} |" in text
    assert get_args(TableName) == ("samples", "steps", "evals")


def test_a_t_test_of_ones_own_reads_the_files(many_arms: Path) -> None:
    """The five lines of the guide, which import nothing of ours, are Welch's test of the samples."""
    text = (ROOT / "spec" / "guide" / "numbers.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len([*filter(None, snippet.splitlines())]) == 5
    names: dict[str, Any] = {}
    exec(snippet.replace("out/runs/first", str(many_arms)), names)
    records = [sample for sample in probe.read_run(many_arms).samples if sample.arm == "vanilla"]
    paid = [sample for sample in records if sample.sure and sample.advantage > 0 and sample.cos_S_contrib is not None]
    assert len(names["paid"]) == len(paid) > 4
    sides = ([sample.cos_S_contrib for sample in paid if sample.hacked is side] for side in (True, False))
    assert names["test"].pvalue == pytest.approx(ttest_ind(*sides, equal_var=False).pvalue, rel=1e-9)
