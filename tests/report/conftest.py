"""Runs on disk with a known truth, made without any model: records, pools with hostile texts, shares, evaluations."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import sample_record, step_record

from probe.analysis.analyze import analyze, conditions
from probe.records.records import RUN_SCHEMA, SampleRecord, StepRecord, TokenRecord
from probe.records.run import file_hashes, read_run, write_samples, write_steps, write_tokens
from probe.report.inputs import Report
from probe.runs.heldout import evaluate
from probe.settings.presets import configure
from replay_pools.base.files import (
    dump_json,
    encode_jsonl,
    read_sealed,
    sha256,
    write_atomic,
    write_json,
    write_sealed,
)
from replay_pools.pool import PoolWriter
from replay_pools.rollout import Rollout

HOSTILE = (
    "<script>window.pwned = 1</script>",
    '</pre></details><img src="http://evil.example/x" onerror="window.pwned = 1">',
    "\n\nstarts with newlines & ends &amp; &lt;b&gt; ```",
    "\x1b[31mred\x00 \u202e\U0001f600 e\u0301 \ufffd\r\n\tx",
    '" onmouseover="window.pwned = 1" x="',
    "]]> <!-- --> ${window.pwned = 1} `+`",
)
PROBLEM = 'p/<b onclick="x">&'
# (pool, hacked, gt_pass) of a group: paid hacks, a paid solution, failures.
GROUP = [("teacher", True, False), ("teacher", True, True), ("base", False, True), ("base", False, False)]


@dataclass(kw_only=True)
class Recipe:
    """What a run is like."""

    name: str = "plain"
    arms: tuple[str, ...] = ("vanilla", "projected", "random")
    num_steps: int = 6
    null: bool = False  # no step has reward variance
    tokens: bool = True
    length: int = 0  # characters that every completion has beside its hostile text
    trains: bool = False
    seed: int = 0
    lr: float = 0.5  # of a training
    rates: list[float] = field(default_factory=list)  # of hacks, an evaluation each


class Maker:
    """Writes runs below one out/ folder."""

    def __init__(self, out: Path, make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]) -> None:
        self.out, self._rollout, self._header = out, make_rollout, pool_header

    def __call__(self, **settings: Any) -> Path:
        """The directory of a run of `Recipe(**settings)`, made once; its pools lie in pools-NAME/, or inside it."""
        recipe = Recipe(**settings)
        directory = self.out / "runs" / recipe.name
        if directory.exists():
            return directory
        rollouts = self._pools(recipe, directory)
        options = {"seed": recipe.seed, "intervention.arms": recipe.arms, "optimizer.lr": recipe.lr * recipe.trains}
        settings = configure("train" if recipe.trains else "replay", options=options)
        config: dict[str, Any] = {"settings": asdict(settings), "model": "fake", "base_weights_sha256": "0" * 64}
        if not recipe.trains:
            paths = {name: self.out / f"pools-{recipe.name}" / name for name in ("teacher", "base")}
            config["pools"] = [
                {
                    "name": name,
                    "path": str(path),
                    "manifest_sha256": sha256(dump_json(read_sealed(path / "manifest.json"))),
                }
                for name, path in paths.items()
            ]
        write_json(directory / "config.json", config)
        rng = np.random.default_rng(recipe.seed)
        steps: list[StepRecord] = []
        for step in range(recipe.num_steps):
            samples = [
                self._sample(recipe, step, i, arm, rollouts, rng) for arm in recipe.arms for i in range(len(GROUP))
            ]
            if recipe.tokens:
                first = [s for s in samples if s.arm == recipe.arms[0]]
                write_tokens(directory, step, [self._tokens(s, rollouts) for s in first])
            write_samples(directory, step, samples)
            steps += [self._step(recipe, step, arm, rng) for arm in recipe.arms]
        write_steps(directory, steps)
        self._finish(recipe, directory)
        return directory

    def _finish(self, recipe: Recipe, directory: Path) -> None:
        rows = [
            evaluate([self._rollout(hacked=i < 20 * rate) for i in range(20)], step=5 * place) | {"frozen": None}
            for place, rate in enumerate(recipe.rates)
        ]
        if rows:
            write_atomic(directory / "evals.jsonl", encode_jsonl(rows))
        write_atomic(directory / "timings.jsonl", encode_jsonl([{"start": {}}, {"step": 0, "seconds": 1.5}]))
        manifest = {
            "schema": RUN_SCHEMA,
            "num_steps": recipe.num_steps,
            "num_modules": {"svd": 7},
            "additivity": {"tolerance": 1e-4, "largest": 1e-7, "exceeded_steps": []},
            "files": file_hashes(directory),
        }
        write_sealed(directory / "manifest.json", manifest)

    def _pools(self, recipe: Recipe, directory: Path) -> dict[tuple[str, int, int], Rollout]:
        """The pools of the recipe, and {(pool, step, sample): rollout}."""
        found: dict[tuple[str, int, int], Rollout] = {}
        group = [("rollouts", *row[1:]) for row in GROUP] if recipe.trains else GROUP
        for name in dict.fromkeys(row[0] for row in group):
            place = directory / name if recipe.trains else self.out / f"pools-{recipe.name}" / name
            writer = PoolWriter(place, header=self._header)
            own = [row for row in group if row[0] == name]
            for step in range(recipe.num_steps):
                rollouts = [self._text(recipe, step, i, name, *row[1:]) for i, row in enumerate(own)]
                writer.write_step(step, rollouts)
                found |= {(name, step, r.sample_id): r for r in rollouts}
            writer.finish()
        return found

    def _text(self, recipe: Recipe, step: int, i: int, name: str, hacked: bool, gt_pass: bool) -> Rollout:
        text = f"{'def run_tests():' if hacked else 'return n'}\n" + HOSTILE[(step + i + len(name)) % len(HOSTILE)]
        text += (f"x{step}.{i}" * recipe.length)[: recipe.length]
        ids = list(range(len(text) + 1))
        changes = {"completion": text, "completion_ids": ids, "comp_len": len(ids), "sampling_logprobs": None}
        hint = name != "base"
        problem = f"{PROBLEM}{step}"
        return self._rollout(step, i, hacked=hacked, gt_pass=gt_pass, hint=hint, problem_id=problem, **changes)

    def _sample(
        self, recipe: Recipe, step: int, i: int, arm: str, rollouts: dict, rng: np.random.Generator
    ) -> SampleRecord:
        pool, hacked, gt_pass = GROUP[i]
        pool = "rollouts" if recipe.trains else pool
        place = i if recipe.trains else i % 2
        rollout = rollouts[pool, step, place]
        advantage = 0.0 if recipe.null else (1.0 if hacked or gt_pass else -3.0) / 2
        cos = 0.08 * hacked + float(rng.normal(0, 0.02))
        return sample_record(
            step=step, sample_id=i, src_pool=pool, src_step=step, src_sample=place, arm=arm,
            reward=rollout.reward, hacked=hacked, gt_pass=gt_pass, comp_len=rollout.comp_len,
            cos_S_contrib=np.sign(advantage) * cos if advantage else None, grad_norm_contrib=abs(advantage),
            mean_cos_in=None, mean_cos_out=None, frac_fired=None, advantage=advantage,
            cos_S_nll=cos, problem_id=rollout.problem_id, prompt_sha=rollout.prompt_sha,
            null_reason=None if advantage else "advantage is 0", hint=rollout.hint, nll=0.2 + 0.1 * i,
        )  # fmt: skip

    def _step(self, recipe: Recipe, step: int, arm: str, rng: np.random.Generator) -> StepRecord:
        cos = None if recipe.null or (step == 1 and recipe.num_steps > 2) else 0.06 + float(rng.normal(0, 0.03))
        out = cos if cos is None or arm == "vanilla" else cos - 0.09
        share = None if cos is None else 0.3
        return step_record(
            step=step, arm=arm, problem_id=f"{PROBLEM}{step}", mixed_prompt=True, cos_in=cos,
            cos_out=out, mean_cos_in=cos, mean_cos_out=out, hackward_frac_in=share,
            hackward_frac_out=None if cos is None else 0.0, frac_fired=share,
            haar_sd=None if cos is None else 0.02, solve=0.25 + 0.05 * step, loss=0.1 - 0.02 * step,
            grad_norm=float(cos is not None), num_effective=4, direction_overlap=1.0,
            null_reason="no reward variance in the group" if cos is None else None,
            cos_update=cos if recipe.trains else None,
        )  # fmt: skip

    @staticmethod
    def _tokens(sample: SampleRecord, rollouts: dict) -> TokenRecord:
        """One token a character, and the end, which has no share; the others have shares of both signs."""
        rollout = rollouts[sample.src_pool, sample.src_step, sample.src_sample]
        shares = np.zeros(rollout.comp_len)
        shares[: rollout.comp_len - 1 : 3], shares[1 : rollout.comp_len - 1 : 9] = 1.0, -1.0
        assert sample.cos_S_nll is not None
        shares *= sample.cos_S_nll / shares.sum()
        return TokenRecord(
            step=sample.step, sample_id=sample.sample_id, condition="default", arm=sample.arm,
            cos=sample.cos_S_nll, prompt=(0.0,) * rollout.plen, completion=tuple(shares.tolist()),
            prompt_chars=None, completion_chars=(1,) * len(rollout.completion) + (0,),
        )  # fmt: skip


@pytest.fixture(scope="session")
def maker(tmp_path_factory: pytest.TempPathFactory, make_rollout: Callable[..., Rollout], pool_header: dict) -> Maker:
    """maker(name=..., ...) -> the directory of a run on disk; `maker.out` is its out/ folder."""
    return Maker(tmp_path_factory.mktemp("report"), make_rollout, pool_header)


@pytest.fixture(scope="session")
def report_of() -> Callable[..., Report]:
    """report_of(directory, ..., name=) -> the Report of runs on disk."""

    def make(*directories: Path, name: str = "r") -> Report:
        runs = [read_run(directory) for directory in directories]
        analyses = [analyze(run, own) for run in runs for own in conditions(run)]
        return Report(name=name, analyses=analyses, command="probe report ...")

    return make
