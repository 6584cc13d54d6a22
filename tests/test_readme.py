"""README and spec/*.md are the manual: commands and snippets run, the tree is the tree, and what is named exists."""

import re
import shlex
from pathlib import Path

import pytest

from probe.cli import VERBS, cli
from probe.cli._frame import run
from probe.experiments.checks import open_spec
from probe.records.records import SampleRecord, StepRecord
from probe.settings.arms import ARMS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
METHOD = (ROOT / "spec" / "METHOD.md").read_text()
EXAMPLES = ("spec/NAME.toml", "spec/same-prompt.toml")  # names that stand for a reader's own
EXAMPLE = (ROOT / "spec" / "example.md").read_text()
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.S)


@pytest.mark.filterwarnings("ignore")  # snippets call trl and peft, which warn of transformers' renamed settings
def test_every_command_and_snippet_runs(tmp_path: Path, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, from top to bottom; the python blocks of a text share one namespace."""
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/cache").symlink_to(common / "cache")
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


def test_every_file_that_the_documents_name_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "spec").glob("*.md")):
        named = re.findall(r"`((?:probe|extraction|replay_pools|tests|spec)/[\w./-]+\.\w+)`", document.read_text())
        missing = {name for name in named if name not in EXAMPLES and not (ROOT / name).exists()}
        assert not missing, f"{document.name} names {', '.join(sorted(missing))}"


def test_the_method_names_fields_of_the_records() -> None:
    """Section 4's table says which record holds a field, and the rules are those of the program."""
    fields = {"step": StepRecord.__dataclass_fields__, "sample": SampleRecord.__dataclass_fields__}
    section = METHOD.split("## 4.")[1].split("## 5.")[0]
    rows = re.findall(r"^\| (`.+?) \| .*? \| (step(?:, sample)?|sample) \|$", section, re.M)
    assert len(rows) == 9
    for names, records in rows:
        own = re.findall(r"`(\w+)`", names)
        own = [own[0].removesuffix("_in") + name if name.startswith("_") else name for name in own]
        for record in records.split(", "):
            absent = [name for name in own if name not in fields[record]]
            assert not absent, f"METHOD says that a {record} record has {', '.join(absent)}"
    rules = re.findall(r"^\| (R\d) ", METHOD, re.M)
    assert rules == [f"R{i}" for i in range(8)]


def test_the_example_of_a_spec_is_one(tmp_path: Path) -> None:
    """Every table and option is read as `probe plan`, `sweep` and `analyze` read it."""
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "spec" / "README.md").read_text(), re.S)
    path = tmp_path / "same-prompt.toml"
    path.write_text(example)
    assert [criterion.name for criterion in open_spec(path).criteria] == ["aligned"]
