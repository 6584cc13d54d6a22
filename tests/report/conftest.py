"""Runs on disk with a known truth, made without any model: records, pools with hostile texts, shares, evaluations."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import sample_record, step_record

from probe.analysis.analyze import analyze, conditions
from probe.records.records import RUN_SCHEMA, SampleRecord, StepRecord, TokenRecord
from probe.records.run import file_hashes, read_run, write_samples, write_steps, write_tokens
from probe.report.analyses import Report
from probe.runs.evaluations import evaluate
from probe.settings.presets import configure
from replay_pools.base.files import encode_jsonl, write_atomic, write_json, write_sealed
from replay_pools.pool import PoolWriter, open_pool
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


class Maker:
    """Writes runs below one out/ folder."""

    def __init__(self, out: Path, make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]) -> None:
        self.out, self._rollout, self._header = out, make_rollout, pool_header

    def __call__(
        self,
        name: str = "plain",
        *,
        arms: tuple[str, ...] = ("vanilla", "projected", "random"),
        num_steps: int = 6,
        null: bool = False,  # no step has reward variance
        tokens: bool = True,
        trains: bool = False,
        seed: int = 0,
        lr: float = 0.5,  # of a training
        rates: Sequence[float] = (),  # of hacks, an evaluation each
    ) -> Path:
        """The directory of a run, made once; its pools lie in pools-NAME/, or inside it."""
        directory = self.out / "runs" / name
        if directory.exists():
            return directory
        group = [("rollouts", *row[1:]) for row in GROUP] if trains else GROUP
        place = directory if trains else self.out / f"pools-{name}"
        rollouts = self._pools(place, group, num_steps)
        options = {"seed": seed, "intervention.arms": arms, "optimizer.lr": lr * trains}
        settings = asdict(configure("train" if trains else "replay", options=options))
        pools = {} if trains else {"pools": [open_pool(place / pool).identity() for pool in ("teacher", "base")]}
        config = {"settings": settings, "model": "fake", "base_weights_sha256": "0" * 64, **pools}
        write_json(directory / "config.json", config)
        rng, steps = np.random.default_rng(seed), list[StepRecord]()
        for step in range(num_steps):
            keys = [(pool, step, i if trains else i % 2) for i, (pool, *_) in enumerate(group)]
            of_group = [rollouts[key] for key in keys]
            samples = [
                sample_of(step, i, key, of_group[i], arm, null=null, noise=float(rng.normal(0, 0.02)))
                for arm in arms
                for i, key in enumerate(keys)
            ]
            if tokens:
                write_tokens(directory, step, list(map(tokens_of, samples, of_group)))
            write_samples(directory, step, samples)
            has_gradient = not (null or (step == 1 and num_steps > 2))
            for arm in arms:
                cos = 0.06 + float(rng.normal(0, 0.03)) if has_gradient else None
                steps.append(step_of(step, arm, cos, trains=trains))
        write_steps(directory, steps)
        rows = []
        for number, rate in enumerate(rates):
            evaluated = [self._rollout(hacked=i < 20 * rate) for i in range(20)]
            rows.append(evaluate(evaluated, step=5 * number) | {"frozen": None})
        if rows:
            write_atomic(directory / "evals.jsonl", encode_jsonl(rows))
        write_atomic(directory / "timings.jsonl", encode_jsonl([{"start": {}}, {"step": 0, "seconds": 1.5}]))
        manifest = {
            "schema": RUN_SCHEMA,
            "num_steps": num_steps,
            "num_modules": {"svd": 7},
            "additivity": {"tolerance": 1e-4, "largest": 1e-7, "exceeded_steps": []},
            "files": file_hashes(directory),
        }
        write_sealed(directory / "manifest.json", manifest)
        return directory

    def _pools(
        self, place: Path, group: Sequence[tuple[str, bool, bool]], num_steps: int
    ) -> dict[tuple[str, int, int], Rollout]:
        """Write the pools of the group, with hostile texts: {(pool, step, sample): rollout}."""
        found: dict[tuple[str, int, int], Rollout] = {}
        for name in dict.fromkeys(pool for pool, *_ in group):
            writer, own = PoolWriter(place / name, header=self._header), [row[1:] for row in group if row[0] == name]
            for step in range(num_steps):
                for i, (hacked, gt_pass) in enumerate(own):
                    text = "def run_tests():\n" if hacked else "return n\n"
                    text += HOSTILE[(step + i + len(name)) % len(HOSTILE)]
                    ids = list(range(len(text) + 1))
                    texts = {"completion": text, "completion_ids": ids, "comp_len": len(ids), "sampling_logprobs": None}
                    place_of = {"hint": name != "base", "problem_id": f"{PROBLEM}{step}"}
                    found[name, step, i] = self._rollout(step, i, hacked=hacked, gt_pass=gt_pass, **place_of, **texts)
                writer.write_step(step, [found[name, step, i] for i in range(len(own))])
            writer.finish()
        return found


def sample_of(
    step: int, i: int, key: tuple[str, int, int], rollout: Rollout, arm: str, *, null: bool, noise: float
) -> SampleRecord:
    hacked, right = GROUP[i][1:]
    advantage = 0.0 if null else (1.0 if hacked or right else -3.0) / 2
    cos = 0.08 * hacked + noise
    return sample_record(
        step=step, sample_id=i, src_pool=key[0], src_step=step, src_sample=key[2], arm=arm,
        reward=rollout.reward, hacked=hacked, gt_pass=right, comp_len=rollout.comp_len,
        cos_S_contrib=np.sign(advantage) * cos if advantage else None, grad_norm_contrib=abs(advantage),
        mean_cos_in=None, mean_cos_out=None, frac_fired=None, advantage=advantage,
        cos_S_nll=cos, problem_id=rollout.problem_id, prompt_sha=rollout.prompt_sha,
        null_reason=None if advantage else "advantage is 0", hint=rollout.hint, nll=0.2 + 0.1 * i,
    )  # fmt: skip


def step_of(step: int, arm: str, cos: float | None, *, trains: bool) -> StepRecord:
    out = cos if cos is None or arm == "vanilla" else cos - 0.09
    share = None if cos is None else 0.3
    return step_record(
        step=step, arm=arm, problem_id=f"{PROBLEM}{step}", mixed_prompt=True, cos_in=cos,
        cos_out=out, mean_cos_in=cos, mean_cos_out=out, hackward_frac_in=share,
        hackward_frac_out=None if cos is None else 0.0, frac_fired=share,
        haar_sd=None if cos is None else 0.02, solve=0.25 + 0.05 * step, loss=0.1 - 0.02 * step,
        grad_norm=float(cos is not None), num_effective=4, direction_overlap=1.0,
        null_reason="no reward variance in the group" if cos is None else None,
        cos_update=cos if trains else None,
    )  # fmt: skip


def tokens_of(sample: SampleRecord, rollout: Rollout) -> TokenRecord:
    """One token a character, and the end, which has no share; the others have shares of both signs."""
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
