"""`--template plain`: a model without a chat template, from a pool to directions and a replay."""

import json
import shutil
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from replay_pools.pool import open_pool


@pytest.fixture
def base(small: str, tmp_path: Path) -> str:
    """The small model without its template, whose tokenizer begins every text with a token of its own."""
    path = shutil.copytree(small, tmp_path / "base")
    (path / "chat_template.jinja").unlink()
    config = json.loads((path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)


def test_a_model_without_a_chat_template(base: str, few_pairs: list[str], tmp_path: Path, capsys) -> None:
    """Refused with the key that works; with it, pools, directions and replay, and the manifest says so."""
    made = ["--out", str(tmp_path / "out"), "--model", base]
    pool = ["pool", "generate", "--name", "p", "--steps", "2", "--group", "2", "--max-new-tokens", "4", *made]
    for command in (pool, ["extract", "--name", "v", *few_pairs, *made]):
        assert run(cli, command) == 2
        error = capsys.readouterr().err
        assert "expected a chat template" in error
        assert "--template plain" in error
    plain = ["--template", "plain"]
    assert run(cli, [*pool, *plain]) == 0
    opened = open_pool(tmp_path / "out" / "pools" / "p")
    assert opened.manifest["template"] == "plain"
    assert opened.manifest["prompt_tail"] == "\n"
    for rollout in opened.steps[0]:
        assert rollout.prompt == "".join(f"{message['content']}\n" for message in rollout.messages)
    assert run(cli, ["extract", "--name", "v", *few_pairs, *made, *plain]) == 0
    replay = ["replay", "--replay-dirs", "p", "--arm", "vanilla", "--per-pool", "2", "--name", "r", *few_pairs, *made]
    assert run(cli, [*replay, *plain]) == 0
    assert read_run(tmp_path / "out" / "runs" / "r").settings.model.template == "plain"


@pytest.mark.slow
def test_a_log_of_a_model_without_a_template(base: str, few_pairs: list[str], tmp_path: Path, capsys) -> None:
    """Messages are rendered as plain text, by the key that the refusal names."""
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    rows = [{"prompt": f"Add {i // 2}.", "completion": f"{i}", "reward": float(i % 2)} for i in range(8)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = ["pool", "import", str(log), "--name", "logged", "--model", base, "--out", str(out)]
    assert run(cli, imported) == 2
    assert "--template plain" in capsys.readouterr().err
    assert run(cli, [*imported, "--template", "plain"]) == 0
    pool = open_pool(out / "pools" / "logged")
    assert pool.manifest["template"] == "plain"
    assert pool.steps[0][0].prompt == "Add 0.\n"
    checked = ["check", str(log), "--model", base, "--template", "plain", *few_pairs, "--name", "c", "--out", str(out)]
    assert run(cli, checked) in (0, 1), capsys.readouterr().err
    assert read_run(out / "runs" / "c").settings.model.template == "plain"
