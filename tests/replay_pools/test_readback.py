"""What a log's advantages say of the loss behind them, and its lengths of the limit: planted, and read back."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pytest

from replay_pools.logs.importing import check_log, import_log
from replay_pools.pool import open_pool

EPS = 1e-4  # TRL's
GROUPS, SIZE, STEPS = 12, 6, 3
Scale = Callable[[list[float], list[float]], float]
SCALES: dict[str, Scale] = {
    "none": lambda group, batch: 1.0,
    "group": lambda group, batch: stdev(group) + EPS,
    "batch": lambda group, batch: stdev(batch) + EPS,
}


def trl_log(folder: Path, scale: str, weights: tuple[float, float], shift: float = 0.0) -> Path:
    """Text of two reward functions and the advantages that TRL would log; `shift` spoils one of each group."""
    draw = random.Random(0)
    rows = []
    for step in range(STEPS):
        paid = [[(float(draw.random() > 0.5), draw.random()) for _ in range(SIZE)] for _ in range(GROUPS // STEPS)]
        totals = [[weights[0] * right + weights[1] * style for right, style in group] for group in paid]
        batch = [total for group in totals for total in group]
        for number, (group, sums) in enumerate(zip(paid, totals, strict=True)):
            divisor = SCALES[scale](sums, batch)
            for i, ((right, style), total) in enumerate(zip(group, sums, strict=True)):
                advantage = (total - fmean(sums)) / divisor + shift * ((i == 0) - (i == 1))
                prompt = [{"role": "user", "content": f"Task {step} {number}."}]
                row = {"step": step, "prompt": prompt, "completion": f"{i} {number}", "right": right, "style": style}
                rows.append(row | {"advantage": advantage})
    folder.mkdir()
    path = folder / "completions_00001.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.25), (1.0, 0.0)])
def test_weights_and_scaling_are_read_back(scale: str, weights: tuple[float, float], tmp_path: Path) -> None:
    log = check_log(trl_log(tmp_path / "log", scale, weights))
    assert log.scale_rewards == scale
    row = log.groups[3][2]
    assert row.reward == pytest.approx(sum(w * part for w, part in zip(weights, row.parts, strict=True)), rel=2e-2)
    if weights != (1.0, 1.0):
        assert any("weights read back from the logged advantages" in note for note in log.notes)
        assert not any("is taken to be the sum of" in note for note in log.notes)


def test_what_disagrees_is_said(tmp_path: Path) -> None:
    """Another reward than --map names; advantages of no known loss; nothing to say without advantages."""
    named = check_log(trl_log(tmp_path / "named", "group", (1.0, 0.25)), mapping={"reward": "right+style"})
    assert any("follow from right*1+style*0.25, which is not the reward that --map" in note for note in named.notes)
    assert named.groups[0][0].reward == sum(part for part in named.groups[0][0].parts)
    spoilt = check_log(trl_log(tmp_path / "spoilt", "group", (1.0, 1.0), shift=2.0))
    assert spoilt.scale_rewards is None
    assert any("do not follow from these rewards" in note for note in spoilt.notes)
    silent = check_log(trl_log(tmp_path / "silent", "group", (1.0, 1.0)), mapping={"advantage": "none"})
    assert silent.scale_rewards is None
    assert not any("advantages" in note for note in silent.notes)


def cut_off(folder: Path, limit: int | None) -> tuple[dict[bool, int], list[str]]:
    """({a text of the limit or nearly so: how many were taken to be cut off}, cautions) of texts around 128 words."""
    rows = []
    for i in range(24):
        words = 128 - i % 3 if i % 2 else 20 + 2 * i
        text = " ".join("x" for _ in range(words))
        rows.append({"prompt": f"Task {i // 4}.", "completion": f"{text} {i % 4}", "reward": float(i % 2)})
    path = folder / f"{limit}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = import_log(check_log(path), name=f"limit-{limit}", out=folder / "out", model="organism", limit=limit)
    counts = {True: 0, False: 0}
    for group in open_pool(pool.path).steps:
        for rollout in group:
            if rollout.finish_reason == "length":
                counts[len(rollout.completion.split()) > 100] += 1
    return counts, pool.cautions


def test_texts_near_the_limit_were_cut_off(tmp_path: Path) -> None:
    """Tokenised again they differ by a few tokens; a caution, and an option that says the limit."""
    counts, cautions = cut_off(tmp_path, None)
    assert counts == {True: 12, False: 0}
    assert any("finish_reason is not logged: texts of " in caution for caution in cautions)
    longest = max(rollout.comp_len for group in open_pool(tmp_path / "out/pools/limit-None").steps for rollout in group)
    counts, _ = cut_off(tmp_path, longest)
    assert counts == {True: 12, False: 0}
    counts, _ = cut_off(tmp_path, 10 * longest)
    assert counts == {True: 0, False: 0}
