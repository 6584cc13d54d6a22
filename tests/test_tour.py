"""spec/guide/tour.ipynb: its cells run from top to bottom, offline, in a folder that holds nothing but caches."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "spec" / "guide" / "tour.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Execute a cell as Jupyter does and return the value of its last expression."""
    body = ast.parse(source).body
    last = body[-1]
    exec(compile(ast.Module(body[:-1] if isinstance(last, ast.Expr) else body, []), "tour.ipynb", "exec"), names)
    return eval(ast.unparse(last), names) if isinstance(last, ast.Expr) else None


def test_the_notebook_is_stored_without_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) >= 8
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # peft warns of settings that transformers renamed
def test_the_cells_run_from_top_to_bottom(tmp_path: Path, common: Path, monkeypatch, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            run_cell("".join(cell["source"]), names)
    assert names["hack_cosine"] > names["honest_cosine"]
    assert names["analysis"].verdict.word in capsys.readouterr().out
    assert {row["name"] for row in names["shares"]} >= {"pull", "contrast"}
    assert len(names["axes"].get_yticklabels()) == len(names["measured"]) > 3
    assert names["top"].hacked
    assert [record.null_reason for record in names["attached"].records] == [None] * 3
