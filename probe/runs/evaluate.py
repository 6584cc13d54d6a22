"""`probe eval`, assembled: a policy, held-out problems, settings -> rates with intervals, and the pools behind them.

`probe.runs.heldout` samples, `probe.runs.rates` counts; evaluations in the course of a training run are those of
`probe.runs.training_evals`.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from probe.records.run import ADAPTER_DIR, CONFIG_FILE, STEPS_FILE, read_manifest, read_steps, settings_of
from probe.runs.heldout import HeldOut, eval_settings, hold_out
from probe.runs.policies import configured_policy
from probe.runs.rates import Evaluation, evaluate
from probe.settings.run import RunConfig
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.adapters import CONFIG as ADAPTER_CONFIG
from replay_pools.progress import report
from replay_pools.sampling.engines import LocalEngine
from replay_pools.storage.files import read_json, write_json

EVALUATION_FILE = "evaluation.json"


def deployed_policy(directory: Path) -> tuple[RunConfig, int]:
    """The settings that evaluate the deployed policy of a training run as the run asked it, and its optimizer steps.

    Raises:
        InputError: no finished training run, or one of another schema.
    """
    path = directory / CONFIG_FILE
    settings = settings_of(read_json(path)) if path.is_file() else {}
    if settings.get("verb") != "train" or not (directory / ADAPTER_DIR / ADAPTER_CONFIG).is_file():
        actual = "no adapter" if settings.get("verb") == "train" else str(settings.get("verb", "no run"))
        raise InputError(directory, expected="a finished run of probe train", found=actual)
    read_manifest(directory)  # a run of an older schema is refused as such, not for its settings
    trained = RunConfig.from_json(settings, path)
    model = replace(trained.model, adapter=str(directory / ADAPTER_DIR), device="auto", shard_base=False)
    config = RunConfig(verb="eval", model=model, rollouts=trained.rollouts, evaluation=trained.evaluation)
    return config, len(read_steps(directory / STEPS_FILE))


def check_unseen(trained: RunConfig, config: RunConfig) -> None:
    """Refuse to evaluate a trained policy on problems that its training was free to draw.

    Args:
        trained: of the policy, as `deployed_policy` gives it: with the held-out problems of its training.
        config: of the evaluation.

    Raises:
        InputError: more problems than the training held out, of an environment whose splits share some.
    """
    to_train_on, held_out = _split(trained)
    _, asked = _split(config)
    seen = {problem.problem_id for problem in to_train_on} & {problem.problem_id for problem in asked}
    if seen:
        actual = f"{len(asked)}, of which {len(seen)} were among those that it trained on"
        expected = f"at most {len(held_out)}, which the training held out"
        raise InputError("evaluation.num_problems", expected=expected, found=actual, fix="say --problems")


def evaluate_policy(
    config: RunConfig, directory: Path, out_dir: Path, *, step: int = 0, say: Callable[[str], None] = lambda text: None
) -> Evaluation:
    """`probe eval`: sample, grade and count; pools and `evaluation.json` go to `directory`, a second call continues.

    Args:
        config: of the verb `eval`.
        directory: of the evaluation.
        out_dir: whose cache has the SVDs that a trained adapter is along.
        step: optimizer steps that made the policy; 0 = a model as it was given.

    Raises:
        InputError: anything wrong with the model, adapter or problems; `directory` holds another evaluation.
    """
    sampling, evaluation, model = config.rollouts, config.evaluation, config.model
    assert sampling is not None
    assert evaluation is not None
    group = evaluation.rollouts_per_problem
    _, problems = _split(config)
    policy = configured_policy(model, out_dir / "cache")
    with Grader(code_rule=sampling.code_rule, cpu_s=sampling.cpu_limit) as grader:
        say(f"policy {model.name}, adapter {model.adapter or 'none'}; grading under {describe_tier(grader.isolation)}")
        canary(grader, problems)
        maker = RolloutMaker(
            engine=LocalEngine(policy),
            sampler=sampling.sampler,
            grader=grader,
            mode=sampling.mode,
            hint=True,
            group=group,
        )
        settings = eval_settings(evaluation.modes, sampling.mode, without_hint=evaluation.without_hint)
        held_out = HeldOut(maker, problems, settings, env=sampling.env, group=group, seed=config.seed)
        rollouts = []
        for number, setting in enumerate(settings, 1):
            say(f"{setting.name}: {len(problems) * group} rollouts")
            rollouts += held_out.of(setting, directory, 0)
            report("settings", number, len(settings))
    rates = evaluate(rollouts, step=step)
    record = {"settings": asdict(config), "step": step, "evaluation": rates.to_json()}
    write_json(directory / EVALUATION_FILE, record)
    return rates


def _split(config: RunConfig) -> tuple[list[Problem], list[Problem]]:
    """(problems to train on, held-out problems) under these settings."""
    assert config.rollouts is not None
    assert config.evaluation is not None
    environment = get_environment(config.rollouts.env)
    return hold_out(environment.problems("train"), environment.problems("eval"), config.evaluation.num_problems)
