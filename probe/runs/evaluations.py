"""Evaluations of a policy on held-out problems, during `probe train` and as `probe policy eval`.

An evaluation of a training writes a pool `evaluations/step_NNNNNN/SETTING/` for every setting (a loophole mode with or
without its hint), and then its line in `evals.jsonl`; N counts optimizer steps. A policy with quarantined weights is
evaluated twice: with them, and without them as it would be deployed. The noise depends on the seed, N and the setting,
so arms of one seed start equal. A line has rates, and:

    monitor    AUROC, recall and false-positive rate of the remedy's monitor on the rewarded rollouts, at the policy's
               weights (`now`) and at the starting weights (`start`)
    cca        mean canonical correlation between the output directions in which the weights have moved now and those
               at the first evaluation after a step
    frozen     the frozen probe batch

The frozen probe batch consists of held-out pairs, scored under the policy and the base:

    logprob_hack, logprob_clean    mean log-probability per token of the hack and the clean completions, nats
    margin                         mean over pairs of (sum logp(hack) - sum logp(clean)), policy minus base
    kl_from_base                   mean k3 per token of both (on the pairs' texts, not on sampled ones)
    cos_moved, hackward_frac_moved of start - now, which points like a sum of gradients, with the first directions

The base policy, the pairs and the directions are those of the start, even if the run refreshes its directions.
Every setting, a loophole mode with or without its hint, is a separate pool with rates of its own. Their Wilson 95%
intervals assume independent rollouts, which holds for one rollout a problem and setting. With more rollouts they are
too narrow: compare `num_problems` with `num_rollouts`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from extraction.adapters.trained import Trained
from extraction.library import pair_batch
from extraction.pairs import Pair
from extraction.passes import score
from probe.analysis.horizon import start_cautions
from probe.analysis.statistics.intervals import wilson_interval
from probe.analysis.training_runs import RATES, evaluation_path, setting_of
from probe.objective.terms import kl_terms
from probe.records.records import StepRecord, nullable
from probe.records.run import EVALS_FILE, EVALUATIONS_DIR, STEPS_FILE, read_evals, read_records
from probe.runs.monitors import Monitor
from probe.runs.policies import configured_policy, finished_training
from probe.runs.sources.live import open_writer, write_groups
from probe.runs.sources.problems import eval_settings, problems_of
from probe.runs.training_inputs import TrainingInputs
from probe.runs.trusted import mean_cca, moved_directions
from probe.settings.verbs import EvalConfig, TrainConfig
from probe.settings.words import ALL, NO_HINT
from probe.step.distributed import SOLO, World
from probe.step.projection import sample_cosines
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, read_tensors, write_atomic, write_json, write_tensors
from replay_pools.environments.base import Problem
from replay_pools.generate import RolloutMaker, derive_seed
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.load import Policy
from replay_pools.rollout import Rollout
from replay_pools.sampling import LocalEngine

EVALUATION_FILE, MOVED_FILE = "evaluation.json", "moved.safetensors"
CCA_RANK = 5  # output directions of each module that are compared (TDGA, arXiv 2605.25189)
Frozen = Callable[[], dict[str, Any]]
Weights = Literal["training", "deployed"]  # with and without quarantined weights; equal for arms without any


def frozen_batch(policy: Policy, trained: Trained, pairs: Sequence[Pair], vectors: Mapping[str, Tensor]) -> Frozen:
    """Return a function that measures the policy, as it is then, on held-out pairs.

    Call this before the policy's first step, with one held-out pair or more and the first directions {module: (k, r)}.
    `*_moved` values are None if the policy has not moved.
    """
    batch, n, start = pair_batch(policy, pairs), len(pairs), trained.values()
    mask = batch.completion_mask

    def scored() -> Tensor:
        with trained.folded():
            return score(trained.model, batch)

    base = scored()

    def measured() -> dict[str, Any]:
        logprobs = scored()
        kl, _ = kl_terms(logprobs, base, mask)
        gained = (logprobs - base).sum(1).double()
        moved = {module: start[module] - value for module, value in trained.values().items()}
        cosines = sample_cosines(moved, vectors)
        return {
            "num_pairs": n,
            "logprob_hack": float(logprobs[:n].double().sum() / mask[:n].sum()),
            "logprob_clean": float(logprobs[n:].double().sum() / mask[n:].sum()),
            "margin": float((gained[:n] - gained[n:]).mean()),
            "kl_from_base": float(kl[mask].double().mean()),
            "cos_moved": nullable(float(cosines.cos)),
            "hackward_frac_moved": nullable(float(torch.as_tensor(cosines.hackward_frac))),
        }

    return measured


def evaluator(
    inputs: TrainingInputs,
    directory: Path,
    maker: RolloutMaker,
    updater: Updater,
    frozen: Frozen | None,
    monitor: Monitor | None,
) -> Callable[[int, bool], float | None]:
    """Return a function that evaluates after 0, `every`, 2 `every`, ... and the last optimizer step, each once.

    It takes the number of steps made and whether they are all, and returns the mean log-probability per token of the
    frozen clean completions, None if not measured. An evaluation that a killed run has stored is not repeated. All
    ranks take part, and rank 0's results count.

    Args:
        maker: samples from the policy in training, and grades.
        frozen: of `frozen_batch`; None without held-out pairs.
        monitor: of the remedy, compared with the labels of every evaluation; None without one.
    """
    config, world, is_apart = inputs.config, inputs.world, updater.is_deployed_apart
    rows = world.on_main(lambda: read_evals(directory))

    def measured(done: int, weights: Weights) -> dict[str, Any]:
        folder = evaluation_path(directory, done)
        if weights == "training":
            folder = folder.with_name(f"{folder.name}-training")
        with updater.deployed() if weights == "deployed" else nullcontext():
            with updater.trained.folded():
                rollouts = held_out_rollouts(maker, inputs.held_out, config, folder, done, world)
            extra: dict[str, Any] = {"frozen": None if frozen is None else frozen()}
            if weights == "deployed":
                extra["cca"] = world.on_main(partial(_cca, directory, updater.trained, done))
            if monitor is not None:
                extra["monitor"] = monitor.judge([one for one in rollouts if one.grade.passed is not False])
        return evaluate(rollouts, step=done, weights=weights) | world.broadcast(extra)

    def after(done: int, is_last: bool) -> float | None:
        if done % config.evaluation.every and not is_last:
            return None
        row: dict[str, Any] | None = None
        kinds: tuple[Weights, ...] = ("training", "deployed") if is_apart else ("deployed",)
        for weights in kinds:
            row = next((row for row in rows if (row["step"], row["weights"]) == (done, weights)), None)
            if row is not None:
                continue
            row = measured(done, weights)
            rows.append(row)
            if world.is_main:
                write_atomic(directory / EVALS_FILE, encode_jsonl(rows))
            hack, solve = (row["rates"][ALL][name]["rate"] for name in ("hack", "solve"))  # there is a held-out problem
            inputs.say(f"after {done} steps{f' ({weights})' if is_apart else ''}: hack {hack:.0%}, solve {solve:.0%}")
            for sentence in start_cautions([rows], config.rollouts.mode) if not done and weights == "deployed" else ():
                inputs.say(f"caution: {sentence}")
        return row["frozen"]["logprob_clean"] if row and row["frozen"] else None

    return after


def _cca(directory: Path, trained: Trained, done: int) -> float | None:
    """Compare the output directions that have moved with those of the first evaluation after a step."""
    if not done:
        return None
    path = directory / EVALUATIONS_DIR / MOVED_FILE
    moved = moved_directions(trained, CCA_RANK)
    if path.is_file():
        first, header = read_tensors(path, "pt", fix="delete it: the comparison begins again")
        if header["step"] != done:
            return mean_cca(first, moved)
    write_tensors(path, moved, {"step": done})
    return None


def held_out_rollouts(
    maker: RolloutMaker,
    problems: Sequence[Problem],
    config: TrainConfig | EvalConfig,
    directory: Path,
    done: int,
    world: World = SOLO,
) -> list[Rollout]:
    """Return a policy's rollouts on held-out problems in all settings; complete the pools below `directory`.

    Args:
        maker: samples and grades; its mode and hint are replaced.
        problems: each is one step of every pool; ranks split them.
        done: optimizer steps that the policy has made. With the seed and the setting it seeds the sampling noise.
    """
    num, rollouts = len(problems), list[Rollout]()
    plan = {"env": config.rollouts.env, "split": "eval", "seed": config.seed, "steps": num, "steps_per_batch": num}
    for name, (mode, hint) in eval_settings(config).items():
        asked = replace(maker, mode=mode, hint=hint, group=config.evaluation.rollouts_per_problem)
        writer = open_writer(world, directory / name, asked, problems, **plan)
        seed = derive_seed("evaluation", config.seed, done, name)
        rollouts += chain(*write_groups(world, asked, writer, dict(enumerate(problems)), seed=seed))
        if world.is_main:
            writer.finish()
    return rollouts


def evaluate(rollouts: Sequence[Rollout], *, step: int, weights: Weights = "deployed") -> dict[str, Any]:
    """Return a line of `evals.jsonl`, {"step", "weights", "rates": {setting: `rates`}}, for graded rollouts.

    `all` comes first, then each mode with its hint by name, then `no hint`. `step` counts optimizer steps.
    """
    groups: dict[str, list[Rollout]] = {ALL: [*rollouts]}
    for rollout in sorted(rollouts, key=lambda one: (setting_of(one) == NO_HINT, setting_of(one))):
        groups.setdefault(setting_of(rollout), []).append(rollout)
    return {"step": step, "weights": weights, "rates": {name: rates(group) for name, group in groups.items()}}


def rates(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the rates of one setting: hack (the active mode's exploit, correct or not), exploit (rewarded and wrong)
    and solve (every oracle answer is right).

    {"num_rollouts", "num_problems", and for each rate {"count", "rate", "interval": {"low", "high"}}}; rate and
    interval are None without rollouts.
    """
    n = len(rollouts)
    row: dict[str, Any] = {"num_rollouts": n, "num_problems": len({rollout.problem_id for rollout in rollouts})}
    for name, flag in RATES.items():
        count = sum(map(flag, rollouts))
        interval = wilson_interval(count, n)
        row[name] = {"count": count, "rate": count / n if n else None, "interval": interval and asdict(interval)}
    return row


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
        trained: settings of the training that made the policy, from `deployed_policy`; None: no training.
        step: optimizer steps that the policy has made.

    Raises:
        InputError: anything wrong with the model, adapter or problems; problems that the training could draw, which
            are more than it held out of overlapping splits; `directory` holds another evaluation.
    """
    sampling, model, group = config.rollouts, config.model, config.evaluation.rollouts_per_problem

    _, problems = problems_of(config)
    if trained is not None:
        to_train_on, held_out = problems_of(trained)
        seen = {problem.problem_id for problem in to_train_on} & {problem.problem_id for problem in problems}
        if seen:
            actual = f"{len(problems)}, of which {len(seen)} were among those that it trained on"
            expected = f"at most {len(held_out)}, which the training held out"
            raise InputError("evaluation.num_problems", expected=expected, found=actual, fix="say --problems")
    policy = configured_policy(model, out_dir / "cache")
    with Grader(code_rule=sampling.grading_rule, cpu_s=sampling.cpu_limit) as grader:
        say(f"policy {model.name}, adapter {model.adapter or 'none'}; grading under {describe_tier(grader.isolation)}")
        canary(grader, problems)
        prompts = {"mode": sampling.mode, "hint": True, "group": group}
        maker = RolloutMaker(engine=LocalEngine(policy), sampler=sampling.sampler, grader=grader, **prompts)
        say(f"{', '.join(eval_settings(config))}: {len(problems) * group} rollouts each")
        rollouts = held_out_rollouts(maker, problems, config, directory, 0)
    row = evaluate(rollouts, step=step)
    write_json(directory / EVALUATION_FILE, {"settings": asdict(config), "step": step, "evaluation": row})
    return row
