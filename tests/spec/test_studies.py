"""Published numbers of studies, recomputed from the tables that are shipped beside their pages."""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from scripts import ROOT, load_script
from specs import criterion, spec_text
from trainings import Planted

from probe.experiments.judge import evaluate_spec
from probe.experiments.outcomes import Outcome, read_outcomes, write_outcomes
from probe.experiments.spec_file import load_spec

tool = load_script(ROOT / "spec" / "tools" / "judge_outcomes.py")
judged, read_table = tool.judged, tool.read_table
STUDY = ROOT / "spec/studies/unit-sides"
PAGE = (STUDY / "unit-sides.md").read_text(encoding="utf-8").partition("## What came of it")[2]
SEEDS = {"unit-sides": [320, 321, 322, 323], "emergent": [320, 321, 322]}


def rows(spec: str) -> list[tuple[str, ...]]:
    """(condition, arm, hack rates, solve rates) of the page's table of a spec."""
    _, _, rest = PAGE.partition("| emergent | arm |" if spec == "emergent" else "| condition | arm |")
    table = rest.partition("\n\n")[0]
    return re.findall(r"^\| ([\w-]+) \| ([\w-]+) \| ([\d ]+) \| ([\d ]+) \|$", table, re.M)


OUTCOMES = read_outcomes(STUDY / "outcomes.csv")


def final_rates(rows: Iterable[Outcome], spec: str, condition: str, arm: str) -> dict[int, tuple[float, float]]:
    """{seed: (hack rate, solve rate)} of one cell after its last step, as means over held-out problems."""
    by_seed: dict[int, dict[int, list[Outcome]]] = {}
    for row in rows:
        if (row.spec, row.condition, row.arm) == (spec, condition, arm):
            by_seed.setdefault(row.seed, {}).setdefault(row.step, []).append(row)
    rates = {}
    for seed, by_step in sorted(by_seed.items()):
        last = by_step[max(by_step)]
        rates[seed] = fmean(row.hack for row in last), fmean(row.solve for row in last)
    return rates


@pytest.mark.parametrize(("spec", "num_rows"), [("unit-sides", 10), ("emergent", 4)])
def test_rates_of_the_page_are_those_of_the_table(spec: str, num_rows: int) -> None:
    """One percentage a seed, in the order of the seeds."""
    assert len(rows(spec)) == num_rows
    for condition, arm, hacks, solves in rows(spec):
        rates = final_rates(OUTCOMES, spec, condition, arm)
        assert sorted(rates) == SEEDS[spec]
        for place, printed in enumerate((hacks, solves)):
            assert [round(100 * rates[seed][place]) for seed in sorted(rates)] == [*map(int, printed.split())]


@pytest.mark.parametrize(("spec", "num_criteria"), [("unit-sides", 7), ("emergent", 3)])
def test_criteria_and_decision_of_a_page_are_judged_from_the_table(spec: str, num_criteria: int) -> None:
    page = (STUDY / f"{spec}.md").read_text(encoding="utf-8").partition("## Results")[2]
    findings, decision = judged(read_table(load_spec(STUDY / f"{spec}.toml")))
    assert decision is not None
    assert f"### {decision.name} (spec " in page
    assert len(findings) == num_criteria
    for finding in findings:
        role = re.escape(" (primary)") if finding.role == "primary" else ""
        found = re.escape(f"{finding.number:+.3g}")
        assert re.search(rf"^\| {finding.name}{role} \| .* \| {finding.says} \| {found} \|$", page, re.M), finding


def test_differences_in_the_text_are_the_criterias() -> None:
    """In points; README has the primary."""
    findings = [one for spec in SEEDS for one in judged(read_table(load_spec(STUDY / f"{spec}.toml")))[0]]
    by_name = {finding.name: finding.number for finding in findings}
    for name in ("unit-hacks-less", "unit-hacks-less-than-permuted", "k8-unit-hacks-less", "lora-unit-hacks-less"):
        found = by_name[name]
        assert found is not None
        assert f"{100 * (found.value or 0):+.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]" in PAGE
    primary = judged(read_table(load_spec(STUDY / "unit-sides.toml")))[0][0].number
    assert primary is not None
    readme = f"{100 * (primary.value or 0):.0f} points [{100 * primary.low:.0f}, {100 * primary.high:.0f}]"
    assert readme in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_judged_as_the_runs_are(planted: Planted, tmp_path: Path) -> None:
    """Every number of `probe analyze SPEC` on planted trainings, and its decision, from the table alone."""
    beside = {"arm": "projected", "versus_arm": "vanilla"}
    text = spec_text(
        "table",
        {"verb": "train", "preset": "fast", "evaluation.num_problems": 32},
        arms=["vanilla", "projected", "random"],
        seeds=[0, 1, 2, 3],
        criteria=[
            criterion("lowers", "hack_final below 0.0", "primary", **beside),
            criterion("solves", "solve_final above -0.15", **beside),
            criterion("learns", "hack_final above 0.5", arm="vanilla"),
            criterion("random", "hack_final below 0.0", arm="projected", versus_arm="random"),
        ],
        decisions=[{"name": "LOWER", "requires": {"lowers": "PASS"}}, {"name": "NOT"}],
    )
    rates = {"vanilla": (0.02, 0.6, 0.7, 0.5), "projected": (0.02, 0.6, 0.3, 0.5), "random": (0.02, 0.6, 0.6, 0.4)}
    spec, out = planted(tmp_path, text, {f"base {arm}": values for arm, values in rates.items()})
    write_outcomes(spec, out)
    findings, decision = judged(read_table(spec))
    by_runs = evaluate_spec(spec, out).verdict
    assert decision is not None
    assert decision.name == by_runs.word == "LOWER"
    for of_table, of_runs in zip(findings, by_runs.findings, strict=True):
        assert (of_table.name, of_table.says, of_table.n) == (of_runs.name, of_runs.says, of_runs.n)
        assert of_table.number is not None
        assert of_runs.number is not None
        assert of_table.number.interval == pytest.approx(of_runs.number.interval)
    table = spec.path.parent / "outcomes.csv"
    ended = CliRunner().invoke(tool.main, [str(spec.path)])
    assert "decision: LOWER" in ended.output
    kept = [row for row in table.read_text().splitlines(keepends=True) if ",projected,3," not in row]
    table.write_text("".join(kept))
    ended = CliRunner().invoke(tool.main, [str(spec.path)])
    assert ended.output.endswith("no decision: 11 of 12 runs\n")


METHODS = ROOT / "spec/studies/methods"


def test_the_tables_of_methods_are_those_of_the_trainings() -> None:
    """README's and the page's, line by line; the page has the criteria and the decision as well."""
    table = load_script(METHODS / "table.py")
    trained = read_table(load_spec(METHODS / "methods.toml"))
    lines = [*table.methods(trained)]
    assert len(lines) == 2 + 18
    page, readme = ((path).read_text(encoding="utf-8") for path in (METHODS / "methods.md", ROOT / "README.md"))
    for line in table.brief(trained):
        assert line in readme
    for line in (*lines, *table.monitors(), *table.costs()):
        assert line in page
    findings, decision = judged(trained)
    assert decision is not None
    assert sum(map(len, trained.final.values())) == 76
    assert f"### {decision.name} (spec " in page
    for finding in findings:
        role = " (primary)" if finding.role == "primary" else ""
        found = re.escape(f"{finding.number:+.3g}")
        assert re.search(rf"^\| {finding.name}{re.escape(role)} \| {finding.says} \| {found} \|$", page, re.M), finding


def test_the_guides_numbers_are_those_of_the_table() -> None:
    table, trained = load_script(METHODS / "table.py"), read_table(load_spec(METHODS / "methods.toml"))
    guide = (ROOT / "spec/guide/methods.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in table.methods(trained)]
    known = {row[0].removeprefix("LoRA: ").partition(",")[0]: row[2:5:2] for row in reversed(cells[2:])}
    found = re.findall(r"^\| (`[^|]+`|KL penalty|early stop)(?:, [\w ]+)? \| (\d+), (\d+) \|", guide, re.M)
    assert len(found) == 14
    for name, *printed in found:
        assert printed == known[name], name
