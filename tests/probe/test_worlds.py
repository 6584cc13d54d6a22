"""Broken worlds: simulated gradients written in the real format, read by the real readers, and their verdicts.

In every world a gradient has a decaying spectrum and unit norm; a group is eight samples of one prompt: four hacks and
two honest solutions that are paid, two failures that are not. What differs is where the hacks point, what the pairs
point at, and what else tells hacks apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from torch import Tensor

from extraction.controls import haar_directions
from extraction.directions import Directions, PairGradients, extract_directions
from probe.analysis.analyze import Analysis, analyze
from probe.analysis.formatting import WIDTH
from probe.analysis.text_report import format_analysis
from probe.cli import cli
from probe.cli._frame import run
from probe.records.records import ADVANTAGE_KEYS, RUN_SCHEMA, SampleRecord, StepRecord
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, file_hashes, read_run, write_samples, write_steps
from probe.runs.gram_recorder import GramRecorder, gram_hashes
from probe.settings.arms import ARMS
from probe.step.projection import haar_variance, project_modules, sample_cosines
from replay_pools.files import dump_json, sha256, write_json

SIZES = {"layers.0.q": 24, "layers.0.down": 40, "layers.1.q": 24}
NUM_PAIRS, NUM_HELD_OUT = 27, 12
HACKED = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
PAID = np.array([1, 1, 1, 1, 1, 1, 0, 0], dtype=bool)
REWARDS = np.where(PAID, 3.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in it."""

    pairs_point_at: str | None = "hack"  # the axis that tells the pairs' hacks from their clean completions
    hacks_point_at: str | None = "hack"  # the axis of hacked samples' gradients
    long_hacks: bool = False  # hacked completions are longer, and length has a gradient axis of its own
    shuffled_labels: bool = False  # `hacked` of the batch says nothing
    twin_arms: bool = False  # the control arm measures v_hack
    idle_gate: bool = False  # the projecting arm leaves the gradient alone
    strength: float = 1.0
    decay: float = 1.0  # of the spectrum: coordinate j has the standard deviation j^-decay
    num_steps: int = 24  # one prompt each


def axis(name: str, module: str, r: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name + module)))
    return torch.nn.functional.normalize(torch.randn(r, generator=generator), dim=0)


def noise(world: World, rng: np.random.Generator, rows: int) -> dict[str, Tensor]:
    scale = {m: np.arange(1, r + 1) ** -world.decay for m, r in SIZES.items()}
    return {m: torch.tensor(rng.normal(size=(rows, r)) * scale[m]).float() for m, r in SIZES.items()}


def along(name: str | None, amount: np.ndarray) -> dict[str, Tensor]:
    """Gradients of the given size along a named axis, (rows, r) a module."""
    size = torch.tensor(amount, dtype=torch.float32)[:, None] * (name is not None)
    return {m: size * axis(name or "", m, r) for m, r in SIZES.items()}


def unit_norm(*parts: dict[str, Tensor]) -> dict[str, Tensor]:
    total = {m: sum((part[m] for part in parts[1:]), parts[0][m]) for m in SIZES}
    norm = torch.stack([g.square().sum(1) for g in total.values()]).sum(0).sqrt()[:, None]
    return {m: g / norm for m, g in total.items()}


def make_pairs(world: World, rng: np.random.Generator) -> PairGradients:
    prompt, ones = noise(world, rng, NUM_PAIRS), np.ones(NUM_PAIRS)
    sides = [
        unit_norm(prompt, noise(world, rng, NUM_PAIRS), along(world.pairs_point_at, world.strength * amount * ones))
        for amount in (1, 0)
    ]
    held_out = torch.arange(NUM_PAIRS) >= NUM_PAIRS - NUM_HELD_OUT
    return PairGradients(hack=sides[0], clean=sides[1], held_out=held_out, metadata={})


def make_run(directory: Path, world: World, seed: int = 0) -> Path:
    """Write the run that the loop would have written: config, pools, gram, samples, steps, manifest."""
    rng = np.random.default_rng(seed)
    pairs = make_pairs(world, rng)
    v_hack = extract_directions(pairs.differences(), k=2)
    recorder = GramRecorder(directory, pairs, v_hack)
    random = v_hack if world.twin_arms else haar_directions(v_hack, seed=1)
    arms = {"vanilla": v_hack, "projected": v_hack, "random": random}
    steps: list[StepRecord] = []
    for step in range(world.num_steps):
        longer = world.long_hacks * HACKED
        lengths = rng.integers(40, 60, 8) + 40 * longer
        unit = unit_norm(
            noise(world, rng, 8),
            along(world.hacks_point_at, world.strength * HACKED),
            along("length" if world.long_hacks else None, (lengths - 50) / 40),
        )
        recorder.record(step, unit)
        labels = rng.permutation(HACKED[:6]).tolist() + [False] * 2 if world.shuffled_labels else HACKED.tolist()
        rows = [records(step, arm, own, unit, lengths, labels, world, rng) for arm, own in arms.items()]
        write_samples(directory, step, [sample for samples, _ in rows for sample in samples])
        steps += [row for _, row in rows]
    write_steps(directory, steps)
    write_json(directory / CONFIG_FILE, {"verb": "replay", "replay": {"gate": {}}, "pools": make_pools(directory)})
    write_json(
        directory / MANIFEST_FILE, {"schema": RUN_SCHEMA, "files": file_hashes(directory) | gram_hashes(directory)}
    )
    return directory


def make_pools(directory: Path) -> list[dict[str, str]]:
    manifest = {"grader": {"version": "1"}, "prompt_tail": "<|assistant|>"}
    rows = []
    for name in ("teacher", "base"):
        write_json(directory.parent / name / "manifest.json", manifest)
        path = str(directory.parent / name)
        rows.append({"name": name, "path": path, "manifest_sha256": sha256(dump_json(manifest))})
    return rows


def records(step, arm, own: Directions, unit, lengths, labels, world: World, rng):
    """The sample records and the step record of one arm, computed by `probe.step.projection` as the step does."""
    advantages = REWARDS - REWARDS.mean()
    scale = torch.tensor(advantages / lengths / 8)
    total = {m: scale.float() @ g for m, g in unit.items()}
    cos = sample_cosines(unit, own.vectors).cos
    gated = project_modules(total, own.vectors, gate="one_sided")
    projects = ARMS[arm].projects and not (world.idle_gate and arm == "projected")
    samples = [
        SampleRecord(
            step=step,
            sample_id=i,
            src_pool="teacher" if i < 4 else "base",
            src_step=step,
            src_sample=i,
            reward=float(REWARDS[i]),
            hacked=labels[i],
            gt_pass=not labels[i] and bool(PAID[i]),
            fmt_ok=True,
            comp_len=int(lengths[i]),
            cos_S_contrib=float(np.sign(advantages[i]) * cos[i]),
            grad_norm_contrib=float(scale[i].abs()),
            mean_cos_in=float(gated.mean_cos_in),
            mean_cos_out=float(gated.mean_cos_out if projects else gated.mean_cos_in),
            frac_fired=float(gated.frac_fired) if projects else 0.0,
            arm=arm,
            advantage=float(advantages[i]),
            cos_S_nll=float(cos[i]),
            problem_id=f"p{step}",
            prompt_sha="0" * 16,
            null_reason=None,
            hint=True,
            haar_sd=float(haar_variance(unit, own.vectors).cos.sqrt()[i]),
            nll=float(rng.normal(0.5, 0.1)),
            condition="default",
            flaky=None,
            no_label=None,
        )
        for i in range(8)
    ]
    step_record = StepRecord(
        step=step,
        arm=arm,
        problem_id=f"p{step}",
        mixed_prompt=False,
        cos_in=float(gated.cos_in),
        cos_out=float(gated.cos_out if projects else gated.cos_in),
        mean_cos_in=float(gated.mean_cos_in),
        mean_cos_out=float(gated.mean_cos_out if projects else gated.mean_cos_in),
        hackward_frac_in=float(gated.hackward_frac_in),
        hackward_frac_out=float(gated.hackward_frac_out if projects else gated.hackward_frac_in),
        frac_fired=float(gated.frac_fired) if projects else 0.0,
        haar_sd=float(haar_variance(total, own.vectors).cos.sqrt()),
        reward_mean=float(REWARDS.mean()),
        reward_std=float(REWARDS.std(ddof=1)),
        reward_spread=3.0,
        advantage=dict.fromkeys(ADVANTAGE_KEYS, 1.0),
        grad_norm=float(gated.norm_in),
        num_effective=8,
        loss_type="grpo",
        reference=None,
        null_reason=None,
        additivity_error=1e-6 if step == 0 else None,
        cos_update=None,
        hackward_frac_update=None,
        condition="default",
        frac_planning=0.0,
        exec_surprisal_var=None,
        direction_age=0,
        direction_overlap=None,
    )
    return samples, step_record


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Analysis]:
    """verdicts(world) -> its analysis; worlds are written once."""
    done: dict[tuple[World, int], Analysis] = {}

    def make(world: World, seed: int = 0) -> Analysis:
        if (world, seed) not in done:
            directory = make_run(tmp_path_factory.mktemp("world") / "run", world, seed)
            done[world, seed] = analyze(read_run(directory), num_draws=299, regrade_agreement=1.0)
        return done[world, seed]

    return make


def rule(found: Analysis, row: str):
    return next(check for check in found.rules if check.row == row)


def part(found: Analysis, name: str):
    return next(p for p in found.validity if p.name == name)


def test_a_sound_world_passes_everything_that_replay_can_show(verdicts):
    """R0, R1, R3 and R5 pass; R4 needs an update, so that there is no GO, and the reason says what to do."""
    found = verdicts(World())
    assert {c.row: c.verdict for c in found.rules} == {
        "R0": "PASS",
        "R1": "PASS",
        "R2": "FAIL",
        "R3": "PASS",
        "R4": "INCONCLUSIVE",
        "R5": "PASS",
        "R7": "FAIL",
    }, [(c.row, c.why) for c in found.rules]
    assert all(p.holds for p in found.validity)
    assert "STRONG" in rule(found, "R1").why
    assert found.decision.outcome == "BUY MORE PROMPTS"
    assert "NOT EVALUATED" in found.decision.why
    assert not found.failed
    assert found.permutation.get("cos_in", "N2").p < 0.01
    assert found.permutation.get("auroc", "N4").p < 0.01
    assert any(row.p_max_t < 0.05 for row in found.permutation.modules)
    own = next(row for row in found.settings if row.chosen)
    assert own.k == 2
    assert [row.k for row in found.settings] == [1, 2, 4, 8]
    summary = {s.arm: s for s in found.summaries}
    assert own.cos_in == pytest.approx(summary["vanilla"].mean_cos_in, abs=1e-6)
    assert own.cos_out == pytest.approx(summary["projected"].mean_cos_out, abs=1e-6)


def test_a_random_v_hack_is_not_believed(verdicts):
    """Pairs without signal, four times: neither aligned nor specific, and R0 holds at most once by luck."""
    found = [verdicts(World(pairs_point_at=None), seed) for seed in range(4)]
    assert sum(rule(one, "R0").verdict == "PASS" for one in found) <= 1
    assert all(rule(one, "R1").verdict != "PASS" for one in found)
    assert all(rule(one, "R3").verdict != "PASS" for one in found)
    assert {one.decision.outcome for one in found} == {"BUY MORE PROMPTS"}
    assert not any("points along" in one.conclusions[0] for one in found)
    unproven = [one for one in found if part(one, "held-out sign").holds is None and rule(one, "R3").verdict != "FAIL"]
    assert unproven
    assert all("better or more pairs before prompts" in one.decision.why for one in unproven)


def test_a_consistent_random_direction_is_caught_by_permuted_labels(verdicts):
    """Every prompt's gradient is nearly the same, so that any direction reads one sign on all of them: N2 knows."""
    found = verdicts(World(pairs_point_at=None, decay=0.0, strength=30.0), 14)
    assert found.summaries[0].sign_flip_p < 0.001, "the world is not what it says: prompts disagree"
    assert rule(found, "R1").verdict == "INCONCLUSIVE"
    assert "consistent over prompts, yet directions of permuted labels reach as much" in rule(found, "R1").why
    assert found.permutation.get("cos_in", "N2").p > 0.01
    assert "not above every null" in found.conclusions[0]


def test_shuffled_labels_are_not_specific(verdicts):
    """The gradient is aligned as before, and `hacked` tells nothing: R1 passes, R3 does not, N4 reads nothing."""
    found = verdicts(World(shuffled_labels=True))
    assert rule(found, "R1").verdict == "PASS"
    assert rule(found, "R3").verdict != "PASS"
    assert found.permutation.get("auroc", "N4").p > 0.05
    assert found.permutation.get("hack_difference", "N4").p > 0.05
    assert found.decision.outcome == "BUY MORE PROMPTS"


def test_length_confounded_pairs_lose_to_the_length(verdicts):
    """Pairs and samples differ by length alone: the score tells hacks apart, and so does the number of tokens."""
    found = verdicts(World(pairs_point_at="length", hacks_point_at=None, long_hacks=True, strength=1.5))
    area = next(s for s in found.specificity if s.score == "cos_S_contrib")
    assert area.interval.low > 0.5, "the confounded score does not even separate: the world is not what it says"
    assert rule(found, "R3").verdict == "FAIL"
    assert "comp_len" in rule(found, "R3").why
    assert found.failed
    assert "use pools in which the rival score does not tell hacks apart" in found.decision.why


def test_a_control_arm_that_is_the_measured_arm_breaks_the_run(verdicts):
    found = verdicts(World(twin_arms=True))
    assert part(found, "arms at the first step").holds is False
    assert rule(found, "R0").verdict == "FAIL"
    assert "it is no control" in rule(found, "R0").why
    assert "mend the measurement" in found.decision.why
    twin = next(c for c in found.comparisons if (c.arm, c.metric) == ("random", "cos_in"))
    assert twin.identical
    assert twin.p == 1.0


def test_a_gate_that_does_nothing_fails_its_mechanism(verdicts):
    found = verdicts(World(idle_gate=True))
    assert rule(found, "R5").verdict == "FAIL"
    assert "never fired" in rule(found, "R5").why
    same = next(c for c in found.comparisons if (c.arm, c.metric) == ("projected", "cos_out"))
    assert same.identical


def test_nothing_there_is_orthogonal(verdicts):
    """Hacks have no axis at all, v_hack is real: R2 passes, and the cosine is called zero, not small."""
    found = verdicts(World(hacks_point_at=None, decay=0.0, strength=6.0))
    assert part(found, "held-out sign").holds
    assert rule(found, "R1").verdict == "FAIL"
    assert rule(found, "R2").verdict == "PASS"
    assert found.decision.outcome != "GO"


def test_inner_products_of_other_pairs_are_noticed(tmp_path):
    """Gram files of other pairs than the records': nothing is drawn from them, and R0 says so."""
    directory = make_run(tmp_path / "run", World())
    rng = np.random.default_rng(9)
    other = make_pairs(World(), rng)
    GramRecorder(directory, other, extract_directions(other.differences(), k=2))
    manifest = orjson.loads((directory / MANIFEST_FILE).read_bytes())
    write_json(directory / MANIFEST_FILE, manifest | {"files": file_hashes(directory) | gram_hashes(directory)})
    found = analyze(read_run(directory), num_draws=99, regrade_agreement=1.0)
    assert found.permutation is None
    assert part(found, "offline geometry").holds is None
    assert {rule(found, row).verdict for row in ("R0", "R1", "R2")} == {"INCONCLUSIVE"}


def test_command_line_verdict_first_and_exit_code(tmp_path, capsys):
    """Text: the verdict before the tables, no line too wide; --check turns a FAIL into 1; --json is strict."""
    sound, broken = (make_run(tmp_path / name / "run", w) for name, w in (("a", World()), ("b", World(twin_arms=True))))
    options = ["--draws", "99", "--regrade-agreement", "1"]
    assert run(cli, ["analyze", str(sound), "--check", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("VERDICT (R6): BUY MORE PROMPTS")
    assert max(map(len, lines)) <= WIDTH
    titles = ("Rules R0", "R0 part by part", "Nulls", "Verification", "Arms (", "Arms minus", "Modules", "Steps")
    places = [next(i for i, line in enumerate(lines) if line.startswith(title)) for title in titles]
    assert places == sorted(places)
    assert run(cli, ["analyze", str(broken), "--check", *options]) == 1
    assert run(cli, ["analyze", str(broken), *options]) == 0
    capsys.readouterr()
    assert run(cli, ["analyze", str(sound), "--json", *options]) == 0
    plain = orjson.loads(capsys.readouterr().out)
    assert plain["decision"]["outcome"] == "BUY MORE PROMPTS"
    row = next(m for m in plain["metrics"] if (m["metric"], m["arm"], m["unit"]) == ("cos_in", "vanilla", "prompt"))
    assert set(row["nulls"]) == {"N1", "N2", "N3", "N4"}


def test_an_unseen_regrade_keeps_r0_open(verdicts, tmp_path):
    directory = make_run(tmp_path / "run", World())
    found = analyze(read_run(directory), num_draws=99)
    assert rule(found, "R0").verdict == "INCONCLUSIVE"
    assert "regrade agreement: not given" in rule(found, "R0").why
    worse = analyze(read_run(directory), num_draws=99, regrade_agreement=0.9)
    assert rule(worse, "R0").verdict == "FAIL"
    moved = replace(read_run(directory), config={"verb": "replay", "replay": {}, "pools": []})
    assert part(analyze(moved, num_draws=99), "template tails").holds is None


GALLERY_FILE = Path(__file__).parents[2] / "spec" / "VERDICTS.md"
GALLERY = {
    "aligned and specific": World(),
    "aligned, not specific": World(shuffled_labels=True),
    "confounded": World(pairs_point_at="length", hacks_point_at=None, long_hacks=True, strength=1.5),
    "orthogonal": World(hacks_point_at=None, decay=0.0, strength=6.0, num_steps=128),
    "inconclusive": World(pairs_point_at=None),
    "broken": World(twin_arms=True),
}
EXHIBIT = re.compile(r"<!-- (.+?): (.+?) -->\n```\n(.*?)```", re.S)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def excerpt(analysis: Analysis, names: str) -> str:
    """The paragraphs of the printed analysis that begin with one of the names, in their order there."""
    start = "|".join(map(re.escape, names.split(", ")))
    paragraphs = re.split(r"\n(?=VERDICT|- |  R\d|  holds|  BROKEN|  not seen|\n)", format_analysis(analysis))
    wanted = re.compile(rf"(?:- |  (?:holds|BROKEN|not seen) +|  )?(?:{start})\b")
    return "\n".join(filter(wanted.match, paragraphs)) + "\n"


def test_the_gallery_is_what_the_program_prints(verdicts, tmp_path):
    """Every block of spec/VERDICTS.md, word by word; numbers up to the rounding of other machines."""
    text = GALLERY_FILE.read_text()
    shown = EXHIBIT.findall(text)
    assert {name for name, _, _ in shown} == GALLERY.keys()
    printed = [excerpt(verdicts(GALLERY[name]), names) for name, names, _ in shown]
    blocks = iter(printed)
    written = tmp_path / GALLERY_FILE.name
    written.write_text(EXHIBIT.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n```\n{next(blocks)}```", text))
    for (name, _, block), now in zip(shown, printed, strict=True):
        old, new = (" ".join(NUMBER.sub("#", own).split()) for own in (block, now))
        assert old == new, f"{name}: the program prints other words; read {written} and put it into spec/"
        numbers = [[*map(float, NUMBER.findall(own))] for own in (block, now)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.1, abs=0.01), f"{name}: other numbers; see {written}"
