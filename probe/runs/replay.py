"""`probe replay`, `probe.replay`: from pools to groups, steps and a run directory.

Everything that affects the numbers is resolved first and written to `config.json`, which repeats the run.

At frozen weights, ranks split the steps, and the run equals a run of one process. If weights move or are sharded, ranks
split the rollouts of every step, and sums differ in the last bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from probe.records.run import DEFAULT_OUT, MAX_STEM_CHARS, Run, default_name, read_run
from probe.runs.inputs import assemble, steps_apart
from probe.runs.loop import run_steps
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import running
from probe.settings.presets import configure
from probe.settings.verbs import ReplayConfig, with_direction_file
from probe.step.distributed import SOLO, World
from replay_pools.base.files import plain_name


def replay(
    pools: str | Path | Sequence[str | Path] = (),
    *,
    arms: str | Sequence[str] = (),
    direction: str | Path | None = None,
    model: str | Path | None = None,
    steps: int | None = None,
    name: str | None = None,
    out: str | Path = DEFAULT_OUT,
    settings: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> Run:
    """Put stored rollouts through the training step and measure every arm, at frozen weights.

    The result is the run of `probe replay`, in `out`/runs/`name`; repeating the call resumes it.

    >>> run = probe.replay(["teacher", "base"], arms=["vanilla", "projected"], steps=2, name="demo")
    2 groups with 4 rollouts of each pool: 304 are in none
    >>> run
    Run('out/runs/demo', 4 steps, 32 samples, 0 evals)

    Args:
        pools: names in `out`/pools, or folders; bundled are `teacher`, `base`, `base-hinted`, `mixed`, `tool`.
        arms: `vanilla`, `projected`, `random` and others (`probe docs replay`).
        direction: name or file of `probe.Direction.save`; None extracts one from the pairs of the settings.
        model: the model that sampled the rollouts; None = the model named by the pools.
        steps: groups to replay; None = all.
        name: name of the run; None = pools and arms, with a hash of other settings.
        settings: settings as for --set, {"objective.beta": 0.01}.
        say: called with warnings and cache hits.

    Raises:
        InputError: anything wrong with the settings, pools, model or direction.
    """
    several = {"source.replay_dirs": pools, "intervention.arms": arms}
    given = {
        key: (str(value),) if isinstance(value, str | Path) else (*map(str, value),) for key, value in several.items()
    }
    single = {"intervention.v_hack": direction and str(direction), "model.name": model and str(model), "steps": steps}
    given = {key: value for key, value in (given | single).items() if value not in (None, ())}
    out = Path(out)
    config = with_direction_file(configure("replay", options=dict(settings) | given), out)
    directory = out / "runs" / (plain_name(name, "name") if name else name_of(config))
    with running(config.model, directory, out, say) as world:
        run_replay(config, directory, out_dir=out, say=world.main_only(say), world=world)
        world.gather(None)  # the run is complete for every rank
    return read_run(directory)


def name_of(config: ReplayConfig) -> str:
    """Return a name such as `teacher-base.vanilla-projected`, with a hash unless it covers all settings."""
    pools, arms = config.source.replay_dirs, config.intervention.arms
    stem = f"{'-'.join(Path(pool).name for pool in pools)}.{'-'.join(arms)}"
    usual = configure("replay", options={"source.replay_dirs": pools, "intervention.arms": arms})
    says_all = config == usual and len(stem) <= MAX_STEM_CHARS and not any("/" in pool for pool in pools)
    return default_name(stem, None if says_all else asdict(config))


def run_replay(
    config: ReplayConfig,
    directory: Path,
    *,
    out_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    world: World = SOLO,
) -> None:
    """Run or resume a replay in `directory`, with caches in `out_dir`/cache. All ranks of `world` call this.

    InputError for anything wrong with the settings, pools, model or directions.
    """
    inputs = ReplayInputs(config, out_dir, say, world)
    config, per_pool, drawn = inputs.config, inputs.config.source.per_pool, inputs.groups()
    policy, ranks = inputs.policy, {}
    if drawn.num_left_out:
        say(f"{drawn.num_steps} groups with {per_pool} rollouts of each pool: {drawn.num_left_out} are in none")
    if steps_apart(config):
        world.check_size(drawn.num_steps, "one a step")
    else:
        world.check_size(per_pool * len(inputs.pools), "one a rollout of a step")
        ranks = {"ranks": world.size}
    if (done := inputs.begin(directory, ranks)) is None:
        return
    setup, source = assemble(inputs, directory, drawn.num_steps), drawn
    if config.remedy is not None:
        from probe.runs.lookahead import with_remedy

        source, setup = with_remedy(config, config.remedy, policy, drawn, setup, out_dir)
    if world.is_main:
        inputs.timings.write_start(directory)

    def look(done: int, last: bool) -> None:
        if last and config.lookahead is not None and world.is_main:
            from probe.runs.lookahead import Lookahead

            measures = [measure for measure in setup.measures(0) if measure.condition == config.primary]
            Lookahead(config, policy, setup, source, say).write(directory, config, setup, source, measures)

    run_steps(inputs, directory, source, setup, done, look)
