"""`probe eval`, assembled: a policy, held-out problems, settings -> rates with intervals, and the pools behind them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from probe.records.run import ADAPTER_DIR, CONFIG_FILE, STEPS_FILE, read_steps
from probe.runs.heldout import Evaluation, evaluate, hold_out
from probe.runs.heldout_sampling import HeldOut, make_settings
from probe.runs.train_config import EvaluationConfig, RolloutConfig, TrainConfig
from replay_pools.engines import LocalEngine
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.files import read_json, write_json
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.policy import load_policy
from replay_pools.progress import report
from replay_pools.sampling import Sampler

EVALUATION_FILE = "evaluation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """One policy, and what it is asked."""

    model: str = "organism"
    adapter: str | None = None
    dtype: str = "float32"
    device: str = "auto"
    env: str = "minicode"
    mode: str = "run_tests"
    sampler: Sampler = field(default_factory=lambda: Sampler(max_new_tokens=160))
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seed: int = 0
    step: int = 0  # optimizer steps that made the policy; 0: a model as it was given


def config_of_run(directory: Path, evaluation: EvaluationConfig, *, seed: int, device: str) -> EvalConfig:
    """The deployed policy of a training run, asked as the run asked it but for `evaluation`.

    Raises:
        InputError: no finished training run.
    """
    path = directory / CONFIG_FILE
    row = read_json(path) if path.is_file() else {}
    if row.get("verb") != "train" or not (directory / ADAPTER_DIR).is_dir():
        found = "no adapter" if row.get("verb") == "train" else str(row.get("verb", "no run"))
        raise InputError(directory, expected="a finished run of probe train", found=found)
    config = TrainConfig.from_json(row["train"], path)
    rollouts: RolloutConfig = config.rollouts
    return EvalConfig(
        model=str(config.model.name),
        adapter=str(directory / ADAPTER_DIR),
        dtype=config.model.dtype,
        device=device,
        env=rollouts.env,
        mode=rollouts.mode,
        sampler=rollouts.sampler,
        evaluation=evaluation,
        seed=seed,
        step=len(read_steps(directory / STEPS_FILE)),
    )


def assess(config: EvalConfig, directory: Path, *, say: Callable[[str], None] = lambda text: None) -> Evaluation:
    """Sample, grade and count; pools and `evaluation.json` go to `directory`, which a second call continues.

    Raises:
        InputError: anything wrong with the model, adapter or problems; `directory` holds another evaluation.
    """
    environment = get_environment(config.env)
    own = config.evaluation
    _, problems = hold_out(environment.problems("train"), environment.problems("eval"), own.num_problems)
    policy = load_policy(config.model, adapter=config.adapter, dtype=config.dtype, device=config.device)
    with Grader() as grader:
        say(f"policy {config.model}, adapter {config.adapter or 'none'}; grading under isolation {grader.isolation}")
        canary(grader, problems)
        maker = RolloutMaker(
            engine=LocalEngine(policy),
            sampler=config.sampler,
            grader=grader,
            mode=config.mode,
            hint=True,
            group=own.rollouts_per_problem,
        )
        settings = make_settings(own.modes, config.mode, without_hint=own.without_hint)
        held_out = HeldOut(maker, problems, settings, env=config.env, group=own.rollouts_per_problem, seed=config.seed)
        rollouts = []
        for number, setting in enumerate(settings, 1):
            say(f"{setting.name}: {len(problems) * own.rollouts_per_problem} rollouts")
            rollouts += held_out.of(setting, directory, 0)
            report("settings", number, len(settings))
    found = evaluate(rollouts, step=config.step)
    write_json(directory / EVALUATION_FILE, {"config": asdict(config), "evaluation": found.to_json()})
    return found
