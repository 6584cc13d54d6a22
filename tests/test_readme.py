"""README is the manual: its commands run, and its tree is the tree."""

import re
import shlex
from pathlib import Path

import pytest

from probe.arms import ARMS
from probe.cli import VERBS, cli
from probe.cli._frame import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLE = (ROOT / "spec" / "example.md").read_text()
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.S)


@pytest.mark.filterwarnings("ignore")  # snippets call trl and peft, which warn of transformers' renamed settings
def test_every_command_and_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, from top to bottom; the python blocks of a text share one namespace."""
    monkeypatch.chdir(tmp_path)
    for text, at_least in ((README, 8), (EXAMPLE, 5)):
        blocks, names = BLOCK.findall(text), {}
        assert len(blocks) >= at_least
        for language, block in blocks:
            if language == "python":
                exec(compile(block, block.splitlines()[0], "exec"), names)
                continue
            for line in filter(None, block.splitlines()):
                program, *arguments = shlex.split(line)
                assert program == "probe"
                assert run(cli, arguments) == 0, line


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))
    assert {"demo", "test"} <= named <= targets


def test_the_tree_lists_every_source_file_once() -> None:
    tree = next(block for block in README.split("```\n") if block.startswith("replay_pools/"))
    listed, folder = [], ""
    for line in tree.splitlines():
        name = line.split()[0]
        if name.endswith("/") and not line.startswith(" "):
            folder = name
        elif name.endswith(".py"):
            listed.append(folder + name)
    found = [
        str(path.relative_to(ROOT))
        for package in ("replay_pools", "extraction", "probe")
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert sorted(listed) == sorted(found)


def test_every_verb_and_arm_is_described() -> None:
    assert all(f"`probe {verb}" in README for verb in VERBS)
    assert all(f"| `{arm}` |" in README for arm in ARMS)
