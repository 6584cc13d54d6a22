"""Verdicts of specs on real replays of the organism: from the sweep's runs to one decision, and into files."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from specs import LOWERS, criterion, replay_spec, training_spec
from trainings import Planted, seal
from worlds import World, make_run

from probe.analysis.analyze import analyze
from probe.experiments.jobs import run_jobs
from probe.experiments.judge import SpecVerdict, evaluate_spec
from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.records.run import CONFIG_FILE, read_run
from replay_pools.base.files import read_json, write_json


def plant(spec: Spec, out: Path) -> None:
    """Write every run of a spec as a planted world of the condition `default`."""
    for job in run_jobs(spec, out):
        make_run(job.directory, World(arms=job.arms, num_steps=job.config.steps), job.config.seed)
        config = read_json(job.directory / CONFIG_FILE) | {"settings": asdict(job.config)}
        write_json(job.directory / CONFIG_FILE, config)
        seal(job.directory)


def verdicts(found: SpecVerdict) -> dict[str, str]:
    return {finding.name: finding.says for finding in found.verdict.findings}


def test_every_criterion_and_the_replay_get_a_verdict_and_a_decision_follows(swept: tuple[Spec, Path]) -> None:
    """The primary against records by hand; a cap above its bound is VACUOUS, what was not measured INCONCLUSIVE."""
    spec, out = swept
    found = evaluate_spec(spec, out)
    record = read_run(out / "runs" / "judged-plain-seed0")
    cosines = {arm: {s.problem_id: s.cos_in for s in record.steps if s.arm == arm} for arm in spec.arms}
    both = [(cosines["vanilla"][p], cosines["random"][p]) for p in cosines["vanilla"]]
    difference = np.mean([a - b for a, b in both if a is not None and b is not None])
    primary = found.verdict.findings[0]
    assert primary.text.startswith(f"{difference:+.3g}")
    assert primary.question == "cos_in above 0.05 (vanilla in plain - random in plain)"
    assert verdicts(found)["cap-binds"] == "VACUOUS"
    assert verdicts(found)["absent"] == "INCONCLUSIVE"
    assert (verdicts(found)["gate"], verdicts(found)["same"]) == ("PASS", "VACUOUS")
    assert found.replay is not None
    assert (found.replay.about["run"], found.replay.about["condition"]) == ("judged-plain-seed0", "plain")
    assert found.replay.word == analyze(record, "plain").verdict.word == "UNDERPOWERED"
    assert found.verdict.word == "MORE"
    assert "verdict UNDERPOWERED" in next(text for text in found.verdict.caveats if text.startswith("not GO: "))
    assert all(caveat.startswith("not GO: ") for caveat in found.verdict.caveats)


def test_a_decision_may_rest_on_the_verdict_of_the_replay(swept: tuple[Spec, Path], write_judged, probe) -> None:
    """The same runs decide otherwise where another verdict is asked for; the screen gives the verdict and what next."""
    _, out = swept
    spec = write_judged(out.parent, go={"verdict": ["GO", "UNDERPOWERED"]})
    found = evaluate_spec(spec, out)
    assert found.verdict.word == "GO"
    code = int(found.verdict.finding("aligned").says == "FAIL")
    printed, _ = probe("analyze", spec.path, "--check", code=code, root=out)
    assert "VERDICT of judged-plain-seed0, condition plain: UNDERPOWERED" in printed
    assert "NEXT: " in printed


def test_an_edited_spec_and_a_missing_run_are_said(swept: tuple[Spec, Path], write_judged: Callable[..., Spec]) -> None:
    """Runs keep the hash they were made under; a threshold that moved afterwards is in every verdict."""
    _, out = swept
    edited = write_judged(out.parent, level=0.8)
    shutil.rmtree(out / "runs" / "judged-capped-seed0")
    found = evaluate_spec(edited, out)
    assert any("EDITED: judged-plain-seed0" in line for line in found.verdict.caveats)
    assert any("1 of 2 runs are not complete: judged-capped-seed0" in line for line in found.verdict.caveats)
    assert verdicts(found)["cap-binds"] == "INCONCLUSIVE"


def test_seeds_of_a_replay_are_pooled_by_prompt(tmp_path: Path) -> None:
    """Two seeds draw twice from the same prompts: n stays the number of prompts, not twice as many."""
    (tmp_path / "pooled.toml").write_text(
        replay_spec(
            "pooled",
            {"steps": 3},
            seeds=[0, 1],
            conditions={"default": {}},
            criteria=[criterion("alone", "cos_in below 0.9", "primary")],
        )
    )
    spec, out = load_spec(tmp_path / "pooled.toml"), tmp_path / "out"
    plant(spec, out)
    (found,) = evaluate_spec(spec, out).verdict.findings
    cosines = [[step.cos_in for step in read_run(one.directory).steps] for one in run_jobs(spec, out)]
    assert np.ptp(cosines, axis=0).min() > 0, "the seeds are the same"
    assert (found.n, found.unit) == (3, "prompt")
    assert found.text.startswith(f"{np.mean(cosines):+.3g}")


def test_a_count_that_may_still_rise_is_open(tmp_path: Path, planted: Planted) -> None:
    """Two trainings of two steps: a count that is short fails once both are over."""
    rates = (0.02, 0.2, 0.3, 0.4)

    def judged(count: int) -> dict[str, str]:
        completes = criterion("completes", f"steps above {count - 1}", arm="projected")
        text = training_spec("counted", seeds=[0, 1], criteria=[LOWERS, completes])
        path = tmp_path / "counted.toml"
        if not path.exists():
            planted(tmp_path, text, {"base vanilla": rates, "base projected": rates})
        path.write_text(text)
        return verdicts(evaluate_spec(load_spec(path), tmp_path / "out"))

    assert (judged(4)["completes"], judged(5)["completes"]) == ("PASS", "FAIL")
    shutil.rmtree(tmp_path / "out" / "runs" / "counted-base-projected-seed1")
    assert judged(4)["completes"] == "INCONCLUSIVE"


def test_results_are_written_and_kept(swept: tuple[Spec, Path], write_judged, probe) -> None:
    """--write: one entry a version of the spec in its log, whatever stands before or after."""
    spec, out = swept
    log = spec.path.with_suffix(".md")
    log.write_text(log.read_text() + "\n## Notes\n\nMine.\n")
    command = ("analyze", spec.path, "--write")
    printed, _ = probe(*command, root=out)
    first = log.read_text()
    probe(*command, root=out)
    assert log.read_text() == first, "the same results are one entry"
    assert first.count("### MORE") == 1
    assert "(nothing yet)" not in first
    assert first.endswith("\n## Notes\n\nMine.\n")
    assert "primary    aligned: " in first
    assert "DECISION: MORE. again" in printed
    write_judged(out.parent, level=0.8)
    probe(*command, root=out)
    assert log.read_text().count("### MORE") == 2, "an edited spec adds an entry"

    whole = log.read_text()
    shutil.rmtree(out / "runs" / "judged-capped-seed0")
    _, errors = probe(*command, code=2, root=out)
    assert log.read_text() == whole, "results of more runs are kept"
    assert "expected results of 1 runs or fewer" in " ".join(errors.split())
