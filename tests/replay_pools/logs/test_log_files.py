"""Kinds of files and of objects in memory: they hold the same rows, or one line says what they are."""

import json
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
import torch
from datasets import Dataset, DatasetDict
from log_rows import lines, passes, read_as, refused, row, sizes

from extraction.pair_files import store_rows
from replay_pools.base.errors import InputError
from replay_pools.logs.importing import check_log
from replay_pools.pool import Pool

ONE = passes("pq")
TEXT = "".join(json.dumps(each) + "\n" for each in ONE)
COLUMNS = {name: [each[name] for each in ONE] for name in ONE[0]}
WANDB = {"columns": [*ONE[0]], "data": [[*each.values()] for each in ONE]}
# {file: (its text, or its document; what its refusal names, None: it holds the rows of ONE)}
FILES: dict[str, tuple[Any, str | None]] = {
    "lines.json": (TEXT, None),
    "a list a line.jsonl": (json.dumps(ONE[:4]) + "\n" + json.dumps(ONE[4:]), None),
    "a mark of byte order.jsonl": ("\ufeff" + TEXT, None),
    "object.json": ({"version": 1, "rollouts": ONE}, None),
    "problems beside rollouts.json": ({"samples": [{"question": "p"}], "rollouts": ONE}, None),
    "wandb.json": (WANDB, None),
    "columns of plurals.json": ({f"{name}s": values for name, values in COLUMNS.items()}, None),
    "spaces in the header.csv": (pandas.DataFrame(ONE).rename(columns=lambda name: f" {name}").to_csv(), None),
    "pretty objects.jsonl": ("\n".join(json.dumps(each, indent=1) for each in ONE), "write one object a line"),
    "columns.json": (COLUMNS, "item 0 completion"),
    "UTF-16.jsonl": (TEXT.encode("utf-16"), "iconv -f UTF-16"),
    "a zip archive.jsonl": (b"PK\x03\x04 and more", "unpack it"),
    "a pickle.jsonl": (b"\x80\x04 and more", "torch.save"),
    "a cut last line.jsonl": (TEXT[:-30], "--skip-bad 1"),
    "two lists.json": ({"rollouts": ONE, "results": ONE}, "found rollouts, results"),
    "a short row.json": ({"columns": ["prompt", "reward"], "data": [["p"]]}, "item 0: expected an object, found list"),
    "a sample that is none.json": ({"eval": {"model": "m"}, "samples": [{"completion": "a"}, 3]}, "item 1"),
    "empty.jsonl": ("", "empty.jsonl"),
    "an open quote.csv": ('prompt,completion,reward\np,a,1\np,"b,0\n', "with the columns of its first line"),
    "another encoding.csv": ("prompt,completion,reward\np,\xe9,1\n".encode("latin-1"), "invalid utf-8"),
    "as numpy prints ids.csv": ("prompt,completion_ids,reward\np,[1 2],1\n", "expected a list of token ids"),
    "words for numbers.csv": ("prompt,completion,reward\np,a,1\np,b,good\n", "a finite number, found 'good'"),
    "no row.csv": ("prompt,completion,reward\n", "expected rollouts of format columns, found none"),
    "none.arrow": (b"none", "expected a table (.arrow)"),
    "damaged.arrow": (b"ARROW1\0\0" + b"x" * 50, "expected a table (.arrow)"),
    "damaged.parquet": (b"PAR1" + b"x" * 50 + b"PAR1", "expected a table (.parquet)"),
}


def holds_one(path: Path) -> bool:
    found = [(one.completion, one.reward) for _, _, one in check_log(path).rollouts()]
    return found == [(each["completion"], each["reward"]) for each in ONE]


@pytest.mark.parametrize("name", FILES)
def test_a_kind_of_file(name: str, tmp_path: Path) -> None:
    content, named = FILES[name]
    content = json.dumps(content) if isinstance(content, list | dict) else content
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if named is not None:
        read_as(path, named)
    else:
        assert holds_one(path)


def test_tables_hold_the_same(tmp_path: Path) -> None:
    table = polars.DataFrame(ONE)
    table.write_parquet(tmp_path / "table.parquet")
    table.write_ipc_stream(tmp_path / "data-00000-of-00001.arrow")
    table.write_ipc(tmp_path / "table.arrow")
    lines(tmp_path / "packed.jsonl.gz", ONE)
    torch.save({"rollout_id": 0, "samples": ONE}, tmp_path / "dump.pt")
    assert all(map(holds_one, tmp_path.iterdir()))


def test_rows_in_memory(tmp_path: Path) -> None:
    """Of lists, DataFrames and data sets; of a DatasetDict the training split."""
    both = DatasetDict(train=Dataset.from_list(ONE), test=Dataset.from_list(ONE[:2]))
    for source in (ONE, pandas.DataFrame(ONE), polars.DataFrame(ONE), Dataset.from_list(ONE), both):
        log = check_log(source)
        assert [[one.reward for one in group] for group in log.groups] == [[0.0, 1.0, 0.0, 1.0]] * 2
    stored = {store_rows(source, tmp_path) for source in (ONE, pandas.DataFrame(ONE), Dataset.from_list(ONE))}
    assert len(stored) == 1  # pairs are given so, too
    with pytest.raises(InputError, match="a path, a list of dicts or a table"):
        check_log(3)


# {what a table may look like: (its text, completions and labels)}
CSV: dict[str, tuple[str, list[Any]]] = {
    "of Excel": ("\ufeffprompt;completion;reward;hacked\r\np;a;1;TRUE\r\np;b;0;FALSE\r\n", [("a", True), ("b", False)]),
    "of pandas": (
        ',prompt,completion,reward,hacked\n0,p,"a\n""b"", c",1.0,True\n1,p,7 apples,0,\n',
        [('a\n"b", c', True), ("7 apples", None)],
    ),
    "names of digits": (
        "prompt,completion,reward,group,id\np,01,1,007,1234567890123456789\np,02,.5e0,007,1234567890123456788\n",
        [("01", None), ("02", None)],
    ),
}


@pytest.mark.parametrize("case", CSV)
def test_a_table_of_text(tmp_path: Path, case: str) -> None:
    """Cells are read by what their column holds."""
    text, expected = CSV[case]
    source = tmp_path / "table.csv"
    source.write_text(text)
    log = check_log(source)
    first = next(iter(log.rows)).fields
    assert first.get("id", "9")[-1] == "9", "digits were rounded"
    assert [(one.completion, one.hacked) for _, _, one in log.rollouts()] == expected


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.json"])
def test_a_line_is_read_up_to_its_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of any size is read, a line of any size is not: a byte more than the limit is the most in memory."""
    for module in ("base.files", "logs.rows"):
        monkeypatch.setattr(f"replay_pools.{module}.MAX_DOCUMENT", 2000)
    assert sizes(check_log(lines(tmp_path / name, [row(i) for i in range(40)]))) == [40]
    read_as(lines(tmp_path / name, [row(completion="x" * 3000)]), "found more")


def test_nothing_to_read(tmp_path: Path, fake_pool: Pool) -> None:
    """No file, an empty folder, a folder of other files, a pool of ours."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("")
    for name in ("absent", "nothing", "other"):
        assert str(tmp_path / name) in refused(tmp_path / name)[0]
    assert "found a pool in our format" in refused(fake_pool.path)[0]
