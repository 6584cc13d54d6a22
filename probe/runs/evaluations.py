"""Evaluations of a policy on held-out problems, during `probe train` and as `probe policy eval`.

An evaluation of a training writes a pool `evaluations/step_NNNNNN/SETTING/` for every setting (a loophole mode with or
without its hint), and then its line in `evals.jsonl`; N counts optimizer steps. A policy with quarantined weights is
evaluated twice, as it trains and as it would be deployed. The noise depends on the seed, N and the setting, so arms of
one seed start equal.

With a monitor (`probe.runs.monitors`), a line also has its AUROC, recall and false-positive rate on the rewarded
rollouts: `monitor.now` at the policy's weights, `monitor.start` at those of the start.

`cca` is the mean canonical correlation of the output directions in which the weights have moved with those of the
first evaluation after a step.

The frozen probe batch consists of held-out pairs, scored under the policy against the base:

    logprob_hack, logprob_clean    mean log-probability per token of the hack and the clean completions, nats
    margin                         mean over pairs of (sum logp(hack) - sum logp(clean)) now, minus that of the base
    kl_from_base                   mean k3 per token of both (an estimate on the pairs' texts, not the policy's)
    cos_moved, hackward_frac_moved of start - now, which points like a sum of gradients, with the first directions

The reference is fixed: base policy, pairs and directions from the start, even if the run refreshes its directions.
`probe.runs.heldout` samples and counts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from extraction.adapters.trained import Trained
from extraction.library import pair_batch
from extraction.pairs import Pair
from extraction.passes import score
from probe.analysis.horizon import start_cautions
from probe.analysis.training_runs import evaluation_path
from probe.objective.terms import kl_terms
from probe.records.records import StepRecord, nullable
from probe.records.run import EVALS_FILE, EVALUATIONS_DIR, STEPS_FILE, read_evals, read_records
from probe.runs.assemble import configured_policy
from probe.runs.heldout import Weights, eval_settings, evaluate, held_out_rollouts, hold_out
from probe.runs.monitors import Monitor
from probe.runs.policies import finished_training
from probe.runs.training_inputs import TrainingInputs
from probe.runs.trusted import mean_cca, moved_directions
from probe.settings.run import EvalConfig
from probe.settings.words import ALL
from probe.step.projection import sample_cosines
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, write_atomic, write_json
from replay_pools.base.tensors import read_tensors, write_tensors
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.load import Policy
from replay_pools.sampling import LocalEngine

EVALUATION_FILE, MOVED_FILE = "evaluation.json", "moved.safetensors"
CCA_RANK = 5  # output directions of each module that are compared (TDGA, arXiv 2605.25189)


@final
class FrozenBatch:
    """Held-out pairs and the first directions.

    Args:
        policy: renders the pairs.
        trained: the policy; construct this object before its first step.
        pairs: at least one pair held out from the extraction.
        vectors: {module: (k, r)}, the first directions.
    """

    def __init__(self, policy: Policy, trained: Trained, pairs: Sequence[Pair], vectors: Mapping[str, Tensor]) -> None:
        self._batch = pair_batch(policy, pairs)
        self._trained, self._vectors, self._num_pairs = trained, vectors, len(pairs)
        self._start = trained.values()
        self._base = self._score()

    def measure(self) -> dict[str, Any]:
        """Measure the current policy; `*_moved` values are None if it has not moved."""
        n, mask = self._num_pairs, self._batch.completion_mask
        logprobs = self._score()
        kl, _ = kl_terms(logprobs, self._base, mask)
        gained = (logprobs - self._base).sum(1).double()
        moved = {module: self._start[module] - value for module, value in self._trained.values().items()}
        cosines = sample_cosines(moved, self._vectors)
        return {
            "num_pairs": n,
            "logprob_hack": float(logprobs[:n].double().sum() / mask[:n].sum()),
            "logprob_clean": float(logprobs[n:].double().sum() / mask[n:].sum()),
            "margin": float((gained[:n] - gained[n:]).mean()),
            "kl_from_base": float(kl[mask].double().mean()),
            "cos_moved": nullable(float(cosines.cos)),
            "hackward_frac_moved": nullable(float(torch.as_tensor(cosines.hackward_frac))),
        }

    def _score(self) -> Tensor:
        with self._trained.folded():
            return score(self._trained.model, self._batch)


@final
class Evaluator:
    """Evaluator after 0, `every`, 2 `every`, ... and the last optimizer step, each once, also after a resume.

    Args:
        inputs: settings of the evaluations; all ranks take part, and rank 0's results count.
        directory: the run.
        maker: samples from the policy in training, and grades.
        updater: the policy's updater.
        frozen: the frozen probe batch; None without held-out pairs.
        monitor: of the remedy, compared with the labels of every evaluation; None without one.
    """

    def __init__(
        self,
        inputs: TrainingInputs,
        directory: Path,
        maker: RolloutMaker,
        updater: Updater,
        frozen: FrozenBatch | None,
        monitor: Monitor | None,
    ) -> None:
        self._inputs, self._directory, self._maker, self._updater = inputs, directory, maker, updater
        self._frozen, self._monitor = frozen, monitor
        self._rows = inputs.world.on_main(lambda: read_evals(directory))

    def __call__(self, done: int, last: bool) -> float | None:
        """Evaluate the policy after `done` steps, if an evaluation is due and missing.

        Returns:
            The mean log-probability per token of the frozen clean completions; None if not measured.
        """
        if done % self._inputs.config.evaluation.every and not last:
            return None
        kinds: tuple[Weights, ...] = ("training", "deployed") if self._updater.is_deployed_apart else ("deployed",)
        row: dict[str, Any] | None = None
        for weights in kinds:
            rows = [row for row in self._rows if (row["step"], row["weights"]) == (done, weights)]
            row = rows[0] if rows else self._add(done, weights)
        return row["frozen"]["logprob_clean"] if row and row["frozen"] else None

    def _add(self, done: int, weights: Weights) -> dict[str, Any]:
        config, world, say = self._inputs.config, self._inputs.world, self._inputs.say
        directory = evaluation_path(self._directory, done)
        if weights == "training":
            directory = directory.with_name(f"{directory.name}-training")
        with self._updater.deployed() if weights == "deployed" else nullcontext():
            with self._updater.trained.folded():
                rollouts = held_out_rollouts(self._maker, self._inputs.held_out, config, directory, done, world)
            measured: dict[str, Any] = {"frozen": None if self._frozen is None else self._frozen.measure()}
            if weights == "deployed":
                measured["cca"] = world.on_main(partial(self._cca, done))
            if self._monitor is not None:
                measured["monitor"] = self._monitor.judge([one for one in rollouts if one.grade.passed is not False])
        row = evaluate(rollouts, step=done, weights=weights) | world.broadcast(measured)
        self._rows.append(row)
        if world.is_main:
            write_atomic(self._directory / EVALS_FILE, encode_jsonl(self._rows))
        rates = {name: row["rates"][ALL][name]["rate"] for name in ("hack", "solve")}
        shares = [f"{name} -" if rate is None else f"{name} {rate:.0%}" for name, rate in rates.items()]
        which = f" ({weights})" if self._updater.is_deployed_apart else ""
        say(f"after {done} steps{which}: {', '.join(shares + _monitored(row.get('monitor')))}")
        if done == 0 and weights == "deployed":
            for sentence in start_cautions([self._rows], config.rollouts.mode):
                say(f"caution: {sentence}")
        return row

    def _cca(self, done: int) -> float | None:
        """Compare the output directions that have moved with those of the first evaluation after a step."""
        if not done:
            return None
        path = self._directory / EVALUATIONS_DIR / MOVED_FILE
        moved = moved_directions(self._updater.trained, CCA_RANK)
        if path.is_file():
            first, header = read_tensors(path, "pt", fix="delete it: the comparison begins again")
            if header["step"] != done:
                return mean_cca(first, moved)
        write_tensors(path, moved, {"step": done})
        return None


def _monitored(monitored: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    """Return the monitor's AUROC at both weights, and its rates now, as one phrase."""
    if monitored is None:
        return []
    auroc = [f"{row['auroc']:.2f} {name}" for name, row in monitored.items() if row["auroc"] is not None]
    rates = [f"{name} {monitored['now'][name]:.0%}" for name in ("recall", "fpr") if monitored["now"][name] is not None]
    return [f"monitor: {', '.join([f'AUROC {one}' for one in auroc] + rates)}"] if auroc or rates else []


def deployed_policy(directory: Path) -> tuple[EvalConfig, int]:
    """Return (settings, optimizer steps) to evaluate a training's deployed policy as the training did.

    Raises:
        InputError: no finished training, or one of another schema.
    """
    if (trained := finished_training(directory)) is None:
        raise InputError(directory, expected="a finished run of probe train", found="no run")
    model = replace(trained.model, device="auto", shard_base=False)
    config = EvalConfig(model=model, rollouts=trained.rollouts, evaluation=trained.evaluation)
    return config, len(read_records(StepRecord, directory / STEPS_FILE))


def evaluate_policy(
    config: EvalConfig,
    directory: Path,
    out_dir: Path,
    *,
    trained: EvalConfig | None = None,
    step: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run `policy eval`: sample, grade, count, and write pools and `evaluation.json`; a second call resumes.

    Args:
        config: settings of the verb `eval`.
        directory: the evaluation.
        out_dir: its cache has the SVDs for delta_S adapters.
        trained: settings of the training that made the policy, from `deployed_policy`; None: no training.
        step: optimizer steps that the policy has made; 0 = an untrained model.

    Raises:
        InputError: anything wrong with the model, adapter or problems; problems that the training could draw, which
            are more than it held out of overlapping splits; `directory` holds another evaluation.

    Returns:
        As `evaluate`.
    """
    sampling, model, group = config.rollouts, config.model, config.evaluation.rollouts_per_problem
    _, problems = _split(config)
    if trained is not None:
        to_train_on, held_out = _split(trained)
        seen = {problem.problem_id for problem in to_train_on} & {problem.problem_id for problem in problems}
        if seen:
            actual = f"{len(problems)}, of which {len(seen)} were among those that it trained on"
            expected = f"at most {len(held_out)}, which the training held out"
            raise InputError("evaluation.num_problems", expected=expected, found=actual, fix="say --problems")
    policy = configured_policy(model, out_dir / "cache")
    with Grader(code_rule=sampling.grading_rule, cpu_s=sampling.cpu_limit) as grader:
        say(f"policy {model.name}, adapter {model.adapter or 'none'}; grading under {describe_tier(grader.isolation)}")
        canary(grader, problems)
        engine, sampler, mode = LocalEngine(policy), sampling.sampler, sampling.mode
        maker = RolloutMaker(engine=engine, sampler=sampler, grader=grader, mode=mode, hint=True, group=group)
        say(f"{', '.join(eval_settings(config))}: {len(problems) * group} rollouts each")
        rollouts = held_out_rollouts(maker, problems, config, directory, 0)
    row = evaluate(rollouts, step=step)
    write_json(directory / EVALUATION_FILE, {"settings": asdict(config), "step": step, "evaluation": row})
    return row


def _split(config: EvalConfig) -> tuple[list[Problem], list[Problem]]:
    """Return (training problems, held-out problems) under these settings."""
    environment = get_environment(config.rollouts.env)
    return hold_out(environment.problems("train"), environment.problems("eval"), config.evaluation.num_problems)
