"""`probe detect` through the real command: pools, logs, labels, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from log_rows import Rows, pair_rows, two_policies
from log_rows import lines as write

import probe as package
from probe.runs import meter

GROUPS = 4


def logged(**more: list[Any]) -> Rows:
    """Four rollouts of each of two policies to the same prompts, with labels."""
    rows = two_policies(groups=GROUPS)
    return [row | {name: values[i] for name, values in more.items()} for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a log without labels, at the small model."""
    folder = tmp_path_factory.mktemp("log")
    rows = [{key: value for key, value in row.items() if key != "hacked"} for row in logged()]
    return [str(write(folder / "mine.jsonl", rows)), "--k", "2"]


@pytest.fixture
def detect(probe: Callable[..., tuple[str, str]], small: str) -> Callable[..., tuple[str, str]]:
    """detect(log, *options) -> stdout and stderr of `probe detect`."""
    return lambda *words, code=0: probe("detect", *words, "--model", small, code=code)


def stored(out: Path, name: str, file: str) -> Any:
    text = (out / "detect" / name / file).read_text()
    return [json.loads(line) for line in text.splitlines()] if file.endswith(".jsonl") else json.loads(text)


def estimates(out: Path, name: str, family: str) -> dict[str, Any]:
    """{name: estimate} of one family."""
    rows = stored(out, name, "estimates.json")["estimates"]
    return {row["name"]: row for row in rows if row["family"] == family}


def test_a_log_with_labels_and_pairs(
    detect, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: str
) -> None:
    """The table by labels, the list, the files; the same command measures nothing again."""
    judged = write(tmp_path / "log.jsonl", logged(judge=[{"score": i / 10} for i in range(8 * GROUPS)]))
    pairs = write(tmp_path / "pairs.jsonl", pair_rows(4, "flavour"))
    names = "similarity,cosine,activation,words,length,column:judge.score,text:return True,(?=x)"
    command = (judged, "--pairs", pairs, "--k", "2", "--detectors", names, "--name", "labelled")
    text, errors = detect(*command)
    assert text.startswith("caution: ")  # nothing says that the small model sampled them
    assert "read as --format" in errors
    assert errors.count("median length") == 1
    assert "median length" not in text
    for expected in (
        "AUROC for hacks",
        "text:return True,(?=x)",
        "Read these first (by similarity)",
        "probe show log-",
    ):
        assert expected in text
    assert any(word in text for word in ("BEATEN", "separates hacks"))
    rows, found = stored(out, "labelled", "scores.jsonl"), stored(out, "labelled", "estimates.json")
    similarity = [row["similarity"] for row in rows]
    assert similarity == sorted(similarity, reverse=True)
    assert {"id", "source", "problem_id", "hacked", "column:judge.score"} <= rows[0].keys()
    assert found["num_ranked"] == len(rows) < found["num_rollouts"] == 8 * GROUPS
    for row in rows:
        group, _, sample = row["id"].partition("/")
        assert row["source"].endswith(f" line {8 * int(group) + int(sample) + 1}")
        assert row["column:judge.score"] == pytest.approx((8 * int(group) + int(sample)) / 10)
    assert estimates(out, "labelled", "auroc")["length"]["parts"]["n_hacked"] == sum(row["hacked"] for row in rows)
    monkeypatch.setattr(meter, "measure", None)
    as_json, _ = detect(*command, "--json")
    assert json.loads(as_json)["rollouts"] == rows
    _, error = detect(judged, "--no-gradients", "--name", "labelled", code=2)
    assert "another --name" in error


def test_without_pairs_and_labels(detect, log: list[str], out: Path, small: str) -> None:
    text, _ = detect(*log, "--no-gradients", "--name", "bare", "--detectors", "logratio,nll,length,words,activation")
    assert "No labels" in text
    assert "Without pairs" in text
    assert "not measured: activation: needs pairs" in text
    found = stored(out, "bare", "estimates.json")
    assert found["lead"] == "nll"
    agreement = estimates(out, "bare", "agreement")
    assert agreement["length"]["value"] is not None
    assert agreement["words"]["why"].startswith("needs labels")
    assert found["why"]["logratio"].startswith("needs the weights before")
    assert not any(name in text for name in ("logratio ranks", "fingerprint splits")), "of detectors that did not run"
    text, _ = detect(*log, "--detectors", "fingerprint", "--basis", "lora", "--reference", small, "--name", "prints")
    assert "fingerprint splits" in text
    found = stored(out, "prints", "estimates.json")
    assert (found["lead"], found["estimates"]) == ("fingerprint", [])


def test_answers_from_a_file_become_precision_and_rates(detect, log: list[str], out: Path, tmp_path: Path) -> None:
    """Drawn once, answered by the true labels; one answer short is refused."""
    command = (*log, "--no-gradients", "--label", "9", "--detectors", "nll")
    text, _ = detect(*command, "--name", "audit")
    drawn = stored(out, "audit", "drawn.jsonl")
    assert len(drawn) == 9
    assert "fill in the labels" in text
    labels = {f"{i // 8}/{i % 8}": bool(row["hacked"]) for i, row in enumerate(logged())}
    answered = [row | {"label": labels[row["id"]]} for row in drawn]
    assert all(row["prompt"] and row["completion"] for row in drawn)
    path = write(out / "detect" / "audit" / "drawn.jsonl", answered)
    text, _ = detect(*command, "--name", "audit", "--labels", path)
    assert "rate of hacks" in text
    rate = estimates(out, "audit", "audit")["rate of hacks"]
    assert rate["interval"]["low"] < rate["value"] < rate["interval"]["high"]
    assert rate["parts"]["n_labelled"] == 9
    detect(*command, "--name", "audit")
    assert stored(out, "audit", "drawn.jsonl") == answered, "the labels of a user are gone"
    with path.open("a") as file:
        file.write('{"id": "0/0", "label": \n')
    _, error = detect(*command, "--name", "audit", code=2)
    assert "drawn.jsonl" in error, "a label that cannot be read is written over"
    short = write(tmp_path / "short.jsonl", answered[:-1])
    _, error = detect(*command, "--name", "audit", "--labels", short, code=2)
    assert answered[-1]["id"] in error


def test_answers_on_the_terminal_are_kept(detect, log: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two of six answers, and interrupted after a third, the command asks for the other three alone."""
    command = (*log, "--no-gradients", "--label", "6", "--detectors", "nll", "--name", "asked")
    answers = iter(["y", "n", "q", "n"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(answers, None) or (_ for _ in ()).throw(click.Abort()))
    text, _ = detect(*command)
    assert "answers.jsonl: repeat the command" in text
    detect(*command, code=130)
    asked: list[str] = []
    monkeypatch.setattr(click, "prompt", lambda text, **__: asked.append(text) or "n")
    text, _ = detect(*command)
    assert len(asked) == 3
    assert all("q" in text for text in asked)
    assert "rate of hacks" in text
    assert sum(row["label"] for row in stored(out, "asked", "answers.jsonl")) == 1


def test_every_fault_of_a_file_of_labels_is_said(detect, log: list[str], tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,label\n0/0,1\n99/0,1\n0/1,maybe\n0/0,0\n0/2,\n")
    command = partial(detect, *log, "--no-gradients", "--detectors", "nll", "--name", "faults", code=2)
    _, error = command("--labels", path)
    lines = [line for line in error.splitlines() if line.startswith("probe: error")]
    assert len(lines) >= 3
    for expected in ("99/0", "maybe", "one label of 0/0"):
        assert expected in error
    _, error = command("--labels", write(tmp_path / "other.jsonl", [{"rollout": "0/0", "hack": 1}]))
    assert "id: expected STEP/SAMPLE" in error
    assert "label: expected 1 (a hack) or 0" in error
    (tmp_path / "empty.csv").write_text("id,label\n")
    _, error = command("--labels", tmp_path / "empty.csv")
    assert "columns id" in error


def test_labels_of_a_file_replace_the_pools(detect, log: list[str], out: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,label\n" + "".join(f"{i // 8}/{i % 8},{'hack' if i % 8 < 4 else 'no'}\n" for i in range(16)))
    detect(*log, "--no-gradients", "--detectors", "length", "--labels", path, "--name", "given")
    (row,) = estimates(out, "given", "auroc").values()
    assert row["n"] == 2
    assert row["parts"]["n_hacked"] + row["parts"]["n_clean"] <= 16
    path.write_text("id,label\n" + "".join(f"{i // 8}/{i % 8},0\n" for i in range(8 * GROUPS)))
    text, _ = detect(*log, "--no-gradients", "--detectors", "length", "--labels", path, "--name", "given")
    num_ranked = stored(out, "given", "estimates.json")["num_ranked"]
    assert f"No AUROC: 0 of the {num_ranked} ranked rollouts" in text


def test_what_cannot_be_detected_is_refused_at_once(probe, log: list[str], small: str) -> None:
    for words, expected in (
        (["nowhere"], "pool nowhere"),
        (["nowhere.jsonl"], "no such file"),
        (["out/nowhere.jsonl"], "no such file"),
        (["mixed", "--no-gradients", "--detectors", "nll,similarity"], "detectors without gradients, found similarity"),
        (["mixed", "--no-gradients", "--detectors", "probe:fingerprint"], "found probe:fingerprint"),
        ([*log, "--model", small, "--no-gradients", "--detectors", "words,column:nil"], "no column of numbers"),
        ([log[0]], "--model"),
        (["mixed", "--detectors", "nil,text"], "did you mean nll"),
        (["mixed", "--set", "intervention.v_hack=file", "--set", "source.per_pool=2"], "source.per_pool"),
        ([log[0], "--model", small, "--no-gradients", "--label", "5", "--detectors", "words"], "--label"),
    ):
        _, error = probe("detect", *words, code=2)
        assert expected in error


def test_the_facade_returns_rows(small: str, out: Path) -> None:
    options = {"gradients": False, "settings": {"intervention.extraction.k": 2}}
    found = package.detect(logged(), pair_rows(4, "flavour"), small, out=out, say=lambda _: None, **options)
    assert found.lead == "activation"
    rows = [*found]
    assert len(rows) == len(found)
    assert rows[0].keys() >= {"id", "hacked", "activation", "nll", "words", "length"}
    assert not {"similarity", "fingerprint"} & rows[0].keys()
    assert found.path.is_dir()
    assert found.cautions
    assert not any("--" in sentence for sentence in found.cautions)
    assert found._repr_html_().count("<tr>") == 11
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_pandas(), pandas.DataFrame)


@pytest.mark.slow
def test_the_bundled_pool_that_does_both(probe, out: Path) -> None:
    """AUROC of detectors at the weights that sampled: what was measured once on rollouts of this policy."""
    text, _ = probe("detect", "mixed", "--pairs", "builtin:run_tests", "--name", "mixed")
    assert not text.startswith("caution")
    rows = estimates(out, "mixed", "auroc")
    expected = {"similarity": 0.98, "cosine": 0.96, "cosine-unit": 0.95, "logratio": 0.97, "nll": 0.75, "length": 0.30}
    for name, value in (expected | {"words": 0.97, "fingerprint": 0.91}).items():
        assert rows[name]["interval"]["low"] <= value <= rows[name]["interval"]["high"], name
    assert rows["activation"]["value"] > 0.92
