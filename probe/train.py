"""`probe train`, assembled: policy -> coordinates -> directions -> live groups -> the very steps of `probe replay`.

Everything that shapes the numbers is written to `config.json` first; `train(config)` from that file repeats the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from extraction.adapters.coordinates import Coordinates
from probe.arms import get_arm
from probe.credit import PLANNING_PHRASES
from probe.evaluator import Evaluator
from probe.heldout import hold_out
from probe.live import LiveSource, choose_problems
from probe.loop import Setup, is_complete, open_run, run_steps
from probe.measures import ArmDirections, DirectionSettings, attach_bases
from probe.optimizer import Decay, Stepper
from probe.passes import Bases
from probe.planning import PlanningMarker
from probe.records import DEFAULT_CONDITION
from probe.runs import ROLLOUTS_DIR
from probe.timings import Timings
from probe.train_config import TrainConfig
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import PoolPlan, RolloutMaker, pool_header
from replay_pools.grading.grade import Grader, canary
from replay_pools.policy import Policy, load_policy


def train(
    config: TrainConfig,
    directory: Path,
    *,
    out_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run (or resume) a training run into `directory`; caches live under `out_dir`/cache.

    Raises:
        InputError: anything wrong with the settings, problems, model or directions.
    """
    config = _resolved(config)
    timings = Timings(out_dir / "cache")
    problems, held_out = _problems(config)
    with timings.phase("load", uses_cache=False):
        policy = load_policy(str(config.model.name), dtype=config.model.dtype, device=config.model.device)
    done = open_run(directory, _record(config, policy))
    if is_complete(directory):
        say(f"{directory} is complete; nothing to do")
        return
    setup, coordinates = _setup(config, policy, out_dir / "cache", timings, say)
    with Grader() as grader:
        say(f"policy {config.model.name}, arm {config.intervention.arm}; grading under isolation {grader.isolation}")
        with timings.phase("canary", uses_cache=False):
            canary(grader, {p.problem_id: p for p in chain(held_out, *problems)}.values())
        timings.write_start(directory)
        maker = _maker(config, policy, grader)
        source = _source(config, directory / ROLLOUTS_DIR, maker, coordinates, problems)
        evaluator = _evaluator(config, directory, maker, coordinates, held_out, say)

        def before_step(num_done: int) -> None:
            evaluator(num_done)
            if num_done == source.num_steps:
                source.finish()

        run_steps(
            directory,
            source,
            setup,
            done=done,
            timings=timings,
            stepper=_stepper(config, coordinates),
            before_step=before_step,
            progress=progress,
        )


def _resolved(config: TrainConfig) -> TrainConfig:
    """dr_grpo divides by the generation limit, which is the sampler's where none is given."""
    objective, extraction = config.objective, config.intervention.extraction
    if objective.loss_type != "dr_grpo" or objective.max_completion_length is not None:
        return config
    limit = config.rollouts.sampler.max_new_tokens
    return replace(
        config,
        objective=replace(objective, max_completion_length=limit),
        intervention=replace(config.intervention, extraction=replace(extraction, max_completion_length=limit)),
    )


def _problems(config: TrainConfig) -> tuple[list[list[Problem]], list[Problem]]:
    """(the training problems of every step, the held-out problems)."""
    environment = get_environment(config.rollouts.env)
    left, held_out = hold_out(
        environment.problems("train"), environment.problems("eval"), config.evaluation.num_problems
    )
    wanted = config.rollouts.num_problems or len(left)
    if wanted > len(left):
        found = f"{len(left)} that are not held out"
        raise InputError("rollouts num_problems", expected=f"{wanted} problems to train on", found=found)
    steps, width = config.optimizer.steps, config.rollouts.prompts_per_step
    return choose_problems(left[:wanted], steps=steps, prompts_per_step=width, seed=config.seed), held_out


def _record(config: TrainConfig, policy: Policy) -> dict[str, Any]:
    """What `config.json` holds."""
    return {
        "verb": "train",
        "train": asdict(config),
        "model": policy.base_model,
        "base_weights_sha256": policy.base_weights_sha,
    }


def _setup(
    config: TrainConfig, policy: Policy, cache_dir: Path, timings: Timings, say: Callable[[str], None]
) -> tuple[Setup, Coordinates]:
    """Adapt the policy in the arm's basis and get the arm's directions, at the start of training."""
    arm, intervention = get_arm(config.intervention.arm), config.intervention
    conditions = {DEFAULT_CONDITION: config.objective}
    bases = attach_bases(policy, [arm], config.model, cache_dir, timings)
    with timings.phase("directions", uses_cache=True):
        settings = DirectionSettings(extraction=intervention.extraction, v_hack=intervention.v_hack, seed=config.seed)
        directions = ArmDirections(settings, policy, bases, cache_dir, say)
        measures = directions.measures(conditions, [arm], intervention.gate)
    coordinates = bases[arm.basis]
    setup = Setup(
        bases=Bases(coordinates=[coordinates], tokens_per_batch=intervention.extraction.tokens_per_batch),
        conditions=conditions,
        measures=measures,
        planning=PlanningMarker(policy.tokenizer, PLANNING_PHRASES),
        pad_id=policy.pad_id,
        gram=None,  # inner products with pair gradients of the start would be stale from the second step on
        dtype_noise=None,
    )
    return setup, coordinates


def _stepper(config: TrainConfig, coordinates: Coordinates) -> Stepper:
    optimizer = config.optimizer
    return Stepper(
        coordinates,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        decay=Decay(warmup_steps=optimizer.warmup_steps, steps=optimizer.steps),
    )


def _maker(config: TrainConfig, policy: Policy, grader: Grader) -> RolloutMaker:
    """Samples from the policy in training, which its pools name so."""
    rollouts = config.rollouts
    return RolloutMaker(
        policy=replace(policy, adapter=f"in training: arm {config.intervention.arm}, seed {config.seed}"),
        sampler=rollouts.sampler,
        grader=grader,
        mode=rollouts.mode,
        hint=rollouts.hint,
        group=rollouts.group,
    )


def _source(
    config: TrainConfig,
    directory: Path,
    maker: RolloutMaker,
    coordinates: Coordinates,
    problems: Sequence[Sequence[Problem]],
) -> LiveSource:
    rollouts = config.rollouts
    plan = PoolPlan(
        env=rollouts.env,
        split="train",
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=sum(map(len, problems)),
        group=rollouts.group,
        seed=config.seed,
        steps_per_batch=rollouts.prompts_per_step,
    )
    header = pool_header(maker.policy, plan, maker.sampler, maker.grader, list(chain(*problems)))
    return LiveSource(
        directory, header=header, maker=maker, coordinates=coordinates, problems=problems, seed=config.seed
    )


def _evaluator(
    config: TrainConfig,
    directory: Path,
    maker: RolloutMaker,
    coordinates: Coordinates,
    held_out: Sequence[Problem],
    say: Callable[[str], None],
) -> Evaluator:
    plan = PoolPlan(
        env=config.rollouts.env,
        split="eval",
        mode=config.rollouts.mode,
        hint=True,
        steps=len(held_out),
        group=config.evaluation.rollouts_per_problem,
        seed=config.seed,
        steps_per_batch=len(held_out),
    )
    every, steps = config.evaluation.every, config.optimizer.steps
    return Evaluator(directory, maker, plan, coordinates, held_out, every=every, steps=steps, say=say)
