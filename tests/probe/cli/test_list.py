"""probe show: what is in OUT; and a name that nothing has, in every verb that takes one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.cli.show import KINDS
from replay_pools.base.files import write_json
from replay_pools.pool import Pool


@pytest.fixture
def listed(probe: Callable[..., tuple[str, str]]) -> Callable[..., dict]:
    """listed(*kind, root=out) -> the object of `probe show`."""
    return lambda *kind, **root: json.loads(probe("show", *kind, "--json", **root)[0])


def entry(rows: list[dict], name: str) -> dict:
    (row,) = [row for row in rows if row["name"] == name]
    return row


def test_a_run_and_directions_are_listed(
    replay: Callable[..., Path], out: Path, quick: list[str], small: str, probe, listed
) -> None:
    """As JSON and as text; a run that was killed says so."""
    directory = replay("listed", "--arm", "vanilla,random", "--steps", "2", "--seed", "3", *quick)
    probe("extract", "--name", "listed", "--model", small, *quick[2:])
    tables = listed()
    assert list(tables) == list(KINDS)
    row = {"name": "listed", "verb": "replay", "steps": 2, "of": 2, "arms": ["vanilla", "random"], "seed": 3}
    assert entry(tables["runs"], "listed") == row | {"state": "finished"}
    directions = entry(tables["directions"], "listed")
    assert (directions["basis"], directions["pairs"], directions["k"]) == ("svd", quick[3], 2)
    assert not [row for row in tables["directions"] if "pairs" in row["name"]], "pair gradients are no directions"
    killed = out / "runs" / "listed-killed"
    killed.mkdir()
    (killed / "config.json").write_bytes((directory / "config.json").read_bytes())
    (killed / "step_000.cos.jsonl.gz").write_bytes((directory / "step_000.cos.jsonl.gz").read_bytes())
    row = entry(listed("runs")["runs"], "listed-killed")
    assert (row["steps"], row["of"], row["state"]) == (1, 2, "unfinished")
    text, _ = probe("show", "runs")
    assert "pools" not in text
    rows = [line.split()[:2] for line in text.splitlines()]
    assert [row for row in rows if row[:1] == ["listed-killed"]] == [["listed-killed", "replay"]]


def test_pools_are_listed_with_the_built_in_ones(fake_pool: Pool, listed) -> None:
    out = fake_pool.path.parent.parent
    (out / "pools" / "teacher").mkdir()  # hides the built-in one
    write_json(out / "pools" / "teacher" / ".header.json", fake_pool.header())
    pools = listed("pools", root=out)["pools"]
    assert [row["name"] for row in pools] == ["fake", "teacher", "base", "base-hinted", "mixed", "tool"]
    fake, teacher, base, *_ = pools
    assert (fake["groups"], fake["rollouts"], fake["hint"], fake["state"]) == (3, 12, True, "finished")
    assert (teacher["groups"], teacher["state"]) == (0, "unfinished")
    assert (base["policy"], base["place"]) == ("organism", "built in")


UNKNOWN = [
    (["analyze", "demp"], "run demp: ", "runs, found only demo, other; did you mean demo? (probe show lists all)"),
    (["report", "out/runs/demp"], "run out/runs/demp: ", "runs, found only demo, other; did you mean demo?"),
    (["report", "zzz", "--tables", "csv"], "run zzz: ", "runs, found only demo, other; probe show lists all"),
    (["policy", "eval", "demp"], "run demp: ", "did you mean demo?"),
    (["spec", "plan", "demp"], "run demp: ", "did you mean demo?"),
    (
        ["replay", "--replay-dirs", "teachr"],
        "pool teachr: ",
        "found only teacher, base, base-hinted, mixed, tool; did",
    ),
    (["pool", "show", "teachr"], "pool teachr: ", "did you mean teacher?"),
    (["replay", "--v-hack", "v_hak"], "directions v_hak: ", "found only v_hack; did you mean v_hack? (run probe extr"),
    (["spec", "list"], "folder spec: ", "probe spec list FOLDER"),
    (["show", "v_hak"], "v_hak: ", "did you mean v_hack?"),
]


@pytest.mark.parametrize(("args", "start", "words"), UNKNOWN, ids=[" ".join(args) for args, _, _ in UNKNOWN])
def test_an_unknown_name_lists_those_that_exist(
    args: list[str], start: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    """The nearest first, in one line, before anything is loaded or made."""
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "other"):
        write_json(tmp_path / "out" / "runs" / name / "config.json", {})
    (tmp_path / "out" / "directions").mkdir()
    for name in ("v_hack.safetensors", "v_hack.pairs.safetensors"):
        (tmp_path / "out" / "directions" / name).touch()
    error = refused(*args, root="out")
    assert error.startswith(f"{start}expected ")
    assert words in error
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["directions", "runs"]
