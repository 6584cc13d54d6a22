"""`--template plain`: a model without a chat template, from a pool to directions and a replay."""

import json
import shutil
from pathlib import Path

import pytest
from log_rows import lines

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


def test_a_model_without_a_chat_template(base: str, few_pairs: list[str], tmp_path: Path, probe) -> None:
    """Refused with the key that works; with it, pools, directions and replay, and the manifest says so."""
    made, plain = {"root": tmp_path / "out"}, ("--model", base, "--template", "plain")
    pool = ("pool", "generate", "--name", "p", "--steps", "2", "--group", "2", "--max-new-tokens", "4")
    for command in (pool, ("extract", "--name", "v", *few_pairs)):
        _, error = probe(*command, "--model", base, code=2, **made)
        assert "expected a chat template" in error
        assert "--template plain" in error
        probe(*command, *plain, **made)
    opened = open_pool(tmp_path / "out" / "pools" / "p")
    assert (opened.manifest["template"], opened.manifest["prompt_tail"]) == ("plain", "\n")
    for rollout in opened.steps[0]:
        assert rollout.prompt == "".join(f"{message['content']}\n" for message in rollout.messages)
    replay = ("replay", "--replay-dirs", "p", "--arm", "vanilla", "--per-pool", "2", "--name", "r", *few_pairs)
    probe(*replay, *plain, **made)
    assert read_run(tmp_path / "out" / "runs" / "r").settings.model.template == "plain"


@pytest.mark.slow
def test_a_log_of_a_model_without_a_template(base: str, few_pairs: list[str], tmp_path: Path, out: Path, probe) -> None:
    """Messages are rendered as plain text, by the key that the refusal names."""
    rows = [{"prompt": f"Add {i // 2}.", "completion": f"{i}", "reward": float(i % 2)} for i in range(8)]
    log, plain = lines(tmp_path / "log.jsonl", rows), ("--model", base, "--template", "plain")
    imported = ("pool", "import", log, "--name", "logged")
    assert "--template plain" in probe(*imported, "--model", base, code=2)[1]
    probe(*imported, *plain)
    pool = open_pool(out / "pools" / "logged")
    assert (pool.manifest["template"], pool.steps[0][0].prompt) == ("plain", "Add 0.\n")
    probe("check", log, *plain, *few_pairs, "--name", "plain-log")
    assert read_run(out / "runs" / "plain-log").settings.model.template == "plain"
