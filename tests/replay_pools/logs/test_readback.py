"""What a log's advantages say of the loss behind them: planted, and read back."""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pytest
from log_rows import lines

from replay_pools.base.errors import InputError
from replay_pools.logs.importing import check_log

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
    return lines(folder / "completions_00001.jsonl", rows)


@pytest.mark.parametrize("scale", SCALES)
def test_the_divisor_is_found(scale: str, tmp_path: Path) -> None:
    """Of a sum and of given weights; a column that was not paid is named by the user."""
    log = check_log(trl_log(tmp_path / "sum", scale, (1.0, 1.0)))
    assert (log.scale_rewards, log.mapping["reward"]) == (scale, "right+style")
    with pytest.raises(InputError, match="right.WEIGHT.style.WEIGHT"):
        check_log(trl_log(tmp_path / "one", scale, (1.0, 0.0)))
    assert check_log(tmp_path / "one", mapping={"reward": "right"}).scale_rewards == scale
    weighted = {"reward": "right+style*0.25"}
    assert check_log(trl_log(tmp_path / "weighted", scale, (1.0, 0.25)), mapping=weighted).scale_rewards == scale


def test_rewards_that_the_advantages_refute_are_refused(tmp_path: Path) -> None:
    """Weights that are not those of the training, named or by default; advantages of no known loss."""
    cases = (
        (1.0, 0.25, 0.0, {}),
        (1.0, 0.25, 0.0, {"reward": "right+style"}),
        (1.0, 1.0, 2.0, {}),
        (1.0, 0.2, 0.0, {}),
    )
    for i, (right, style, shift, mapping) in enumerate(cases):
        source = trl_log(tmp_path / str(i), "group", (right, style), shift=shift)
        if i == 3:  # one group shows it too
            source.write_text("".join(source.read_text().splitlines(keepends=True)[:SIZE]))
        with pytest.raises(InputError, match="--map reward=right.WEIGHT.style.WEIGHT, .* or --map advantage=none"):
            check_log(source, mapping=mapping)
        assert check_log(source, mapping=mapping | {"advantage": "none"}).scale_rewards is None


def test_zero_advantages_refute_a_reward_that_varies() -> None:
    rows = [{"prompt": f"p{i // 4}", "completion": f"{i}", "reward": float(i % 2), "advantage": 0.0} for i in range(8)]
    assert any("all logged advantages are 0" in note for note in check_log(rows).notes)
