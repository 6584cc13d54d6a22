"""README, guide and spec/*.md are the manual: commands and snippets run, the tree is the tree, what is named exists."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from printed import check_command

from probe.analysis.detectors import DETECTORS
from probe.cli import cli
from probe.cli._frame import run
from probe.cli.docs import document as tables_of_settings
from probe.experiments.spec_file import load_spec
from probe.records.records import SampleRecord, StepRecord
from probe.settings.arms import ARMS
from probe.settings.presets import parse_setting, preset_names
from probe.settings.remedy import TRAITS
from probe.settings.words import OF_REPLAY

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "spec" / "guide"
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
METHOD = (ROOT / "spec" / "METHOD.md").read_text()
PAGES = {"README.md": 1}  # {document: how many blocks it has at least}
PAGES |= {f"spec/guide/{path.name}": path.read_text().count("\n```bash") for path in sorted(GUIDE.glob("*.md"))}
# Names that stand for a reader's own.
EXAMPLES = [f"spec/{name}" for name in ("NAME.toml", "NAME-training.toml", "NAME.md", "experiments/NAME.md")]
EXAMPLES += [f"spec/{name}.toml" for name in ("same-prompt", "same-prompt-training", "RUN-screen")]
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.S)
PACKAGES = ("replay_pools", "extraction", "probe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, common: Path) -> Path:
    """Where the pages are tried: caches are shared."""
    place = tmp_path_factory.mktemp("manual")
    (place / "out").mkdir()
    (place / "out" / "cache").symlink_to(common / "cache")
    return place


@pytest.fixture(scope="module")
def begun(folder: Path) -> None:
    """What pages of the guide begin with: copies of the specs, logged rollouts, a replay, a direction."""
    shutil.copytree(ROOT / "spec", folder / "spec", ignore=shutil.ignore_patterns("__pycache__"))
    snippet = re.search(r"```python\n(.*?)```", (GUIDE / "logs.md").read_text(), re.S)
    assert snippet is not None
    code = snippet[1].replace('Path("out/rollouts.jsonl")', f"Path({str(folder / 'out' / 'rollouts.jsonl')!r})")
    exec(compile(code, "logs.md", "exec"), {})
    for command in ("replay --arm vanilla,projected,random --steps 4 --name first", "extract --name v_hack"):
        assert run(cli, [*command.split(), "--out", str(folder / "out")]) == 0


@pytest.mark.filterwarnings("ignore")  # snippets call trl and peft, which warn of transformers' renamed settings
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_snippet_runs(page: str, folder: Path, monkeypatch, request) -> None:
    """From top to bottom; the python blocks of a page share one namespace."""
    if page != "README.md":
        request.getfixturevalue("begun")
    monkeypatch.chdir(folder)
    blocks, names = BLOCK.findall((ROOT / page).read_text()), {}
    assert len(blocks) >= PAGES[page]
    for language, block in blocks:
        if language == "python":
            exec(compile(block, block.splitlines()[0], "exec"), names)
            continue
        for line in filter(None, block.splitlines()):
            program, *arguments = shlex.split(line)
            assert program == "probe"
            assert run(cli, arguments) == 0, line


def test_commands_that_need_a_gpu_or_hours_are_commands() -> None:
    """Indented ones are not run: verb, options and settings are read as the program reads them."""
    lines = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        lines += re.findall(r"^    (?:torchrun .* -m )?probe (.+)$", text, re.M)
    assert len(lines) >= 8
    for line in lines:
        for setting in check_command(f"probe {line}").params.get("settings", ()):
            parse_setting(setting)


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^ *|`)make ([a-z-]+)", README, re.M))
    assert {"demo", "test"} <= named <= targets


def test_the_readme_is_short_and_links_every_page() -> None:
    assert len([word for word in README.split() if word != "|"]) <= 1500
    assert all(f"(spec/guide/{path.name})" in README for path in GUIDE.iterdir())


def test_the_price_is_the_specs() -> None:
    """README and the package's description name the hours and money of the first nine runs of phase3.toml."""
    budget = tomllib.loads((ROOT / "spec" / "experiments" / "phase3.toml").read_text())["budget"]
    hours = 9 * budget["hours_per_run"]
    price = f"{hours:.0f} GPU hours"
    assert f"{price} and ${round(hours * budget['price_per_hour'], -2):.0f}" in README.replace("\n", " ")
    assert price in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]


def test_the_site_has_every_page() -> None:
    """Of the guide, of the reference and of the experiments; each once."""
    pages = re.findall(r"^ +- (\S+\.md)$", (ROOT / ".mkdocs.yml").read_text(), re.M)
    spec = [str(path.relative_to(ROOT)) for path in (ROOT / "spec").rglob("*.md")]
    assert sorted(page for page in pages if page.startswith("spec/")) == sorted(spec)
    assert all((ROOT / page).is_file() for page in pages)


def test_the_guide_is_printed_page_by_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["docs", "--json"]) == 0
    pages = {row["page"] for row in json.loads(capsys.readouterr().out)}
    assert pages >= {path.stem for path in GUIDE.glob("*.md")}
    assert run(cli, ["docs", "replay"]) == 0
    assert capsys.readouterr().out.rstrip() == (GUIDE / "replay.md").read_text().rstrip()
    assert run(cli, ["docs", "reply"]) == 2
    assert "did you mean replay?" in capsys.readouterr().err


def test_the_links_lead_somewhere() -> None:
    """Files exist, and headings that are named have that name, as GitHub makes anchors of them."""
    for page in [ROOT / "README.md", *(ROOT / "spec").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if link.startswith("http"):
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name} links {link}"
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M) if anchor else []
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors, f"{page.name} links {link}"


def test_the_tree_has_a_row_for_every_room() -> None:
    """A room is a folder of code directly in a package. Every row is a folder that exists."""
    tree = next(block for block in CONTRIBUTING.split("```\n") if block.startswith("replay_pools/"))
    rows, package = set(), ""
    for line in tree.splitlines():
        name = line.split()[0]
        package = package if line.startswith(" ") else name
        rows.add(name if name == package else package + name)
    missing = {row for row in rows if not (ROOT / row).is_dir()}
    assert not missing, f"the tree names {', '.join(sorted(missing))}"
    folders = {
        path.parent.relative_to(ROOT).parts[:2] for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    assert {"/".join(parts) + "/" for parts in folders} <= rows


def test_every_verb_arm_and_preset_is_described() -> None:
    arms = (GUIDE / "replay.md").read_text() + (GUIDE / "methods.md").read_text()
    remedies = (GUIDE / "methods.md").read_text()
    detectors = (GUIDE / "detect.md").read_text()
    presets = (GUIDE / "settings.md").read_text()
    assert all(f"`{arm}`" in arms for arm in ARMS)
    assert all(f"| `{remedy}` |" in remedies for remedy in TRAITS)
    assert all(f"`{detector}" in detectors for detector in DETECTORS)
    assert all(f"| `{preset}` |" in presets for preset in preset_names())


def test_the_settings_are_those_of_the_page() -> None:
    assert tables_of_settings() in (GUIDE / "settings.md").read_text(), "compare with: probe settings"


def test_every_file_that_the_documents_name_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "spec").rglob("*.md")):
        named = re.findall(r"`((?:probe|extraction|replay_pools|tests|spec)/[\w./-]+\.\w+)`", document.read_text())
        missing = {name for name in named if name not in EXAMPLES and not (ROOT / name).exists()}
        assert not missing, f"{document.name} names {', '.join(sorted(missing))}"


def test_the_method_names_fields_of_the_records() -> None:
    """Section 4's table says which record holds a field, and the verdicts are those of the program."""
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
    verdicts = re.findall(r"^\| ([A-Z]+) \| ", METHOD.split("## 7.")[1], re.M)
    assert set(OF_REPLAY) <= set(verdicts)


def test_the_example_of_a_spec_is_one(tmp_path: Path) -> None:
    """Every table and setting is read as `probe spec plan`, `sweep` and `analyze` read it."""
    (example,) = re.findall(r"```toml\n(.*?)```", (GUIDE / "specs.md").read_text(), re.S)
    path = tmp_path / "same-prompt.toml"
    path.write_text(example)
    assert [criterion.name for criterion in load_spec(path).criteria] == ["aligned"]
