"""`probe check` and `probe.check`: check a log together with pairs, import, replay and analyse it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from probe.records.run import DEFAULT_OUT, default_name
from probe.settings.arms import COLOURED_STEPS, USUAL_ARMS
from probe.settings.presets import configure
from probe.settings.verbs import ReplayConfig
from replay_pools.base.errors import InputError, refuse
from replay_pools.base.files import plain_name
from replay_pools.logs.importing import CheckedLog, check_log, import_log
from replay_pools.pool import Pool

if TYPE_CHECKING:
    from extraction.pairs import Pair
    from probe.analysis.analyze import Analysis

SCALE, PER_POOL, MODEL = "objective.scale_rewards", "source.per_pool", "model.name"
PAIRS, K = "intervention.extraction.pairs", "intervention.extraction.k"
# Derived settings: a user's value would be ignored, so it is refused.
DECIDED = ("source.replay_dirs", "intervention.arms", "intervention.v_hack")
NO_PAIRS = (
    'write two dozen rows {"prompt", "hack", "clean"} that show your hack, and pass the file; --pairs builtin has '
    "pairs of the package: small Python problems, hacked by a test that checks nothing; from a log with labels, probe "
    "pool draft proposes pairs"
)


def check(
    rows: Any,
    pairs: str | Path | Sequence[Mapping[str, Any]] | None = None,
    model: str | Path | None = None,
    *,
    mapping: Mapping[str, str] = MappingProxyType({}),
    format_name: str | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
    k: int = 4,
    steps: int | None = None,
    name: str | None = None,
    out: str | Path = DEFAULT_OUT,
    settings: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> "Analysis":
    """Analyse whether updates of logged rollouts point toward the hack of the pairs: `probe check` without a page.

    >>> rows = [{"prompt": "Add 1 and 2.", "completion": "3", "reward": 1.0, "hacked": False}, ...]  # doctest: +SKIP
    >>> print(probe.check(rows, "builtin", "organism").verdict)  # doctest: +SKIP

    Args:
        rows: a log of any tool (a file or a folder), a list of dicts, a DataFrame or a `datasets.Dataset`.
        pairs: bundled pairs such as `builtin`, a file, or rows of `prompt`, `hack` and `clean`; needed.
        model: model that sampled the rollouts, by name or path; needed.
        mapping: {target: column}, for columns that are not recognised correctly.
        format_name: format of the log; None detects it.
        limit: completion limit in tokens, if the log does not record it.
        skip_bad: maximum number of broken rows to leave out.
        k: directions per module.
        steps: groups to replay; None: all.
        name: name of the pool and the run in `out`; None: the file's name with a hash of everything that affects the
            result.
        out: root folder of all files.
        settings: settings as for --set, {"objective.scale_rewards": "group"}.
        say: called with recognised columns and cautions.

    Raises:
        InputError: all faults of the settings; else all of the log and the pairs.
    """
    from extraction.pair_files import store_rows

    out = Path(out)
    named = {K: k, "steps": steps, MODEL: model and str(model)}
    named[PAIRS] = None if pairs is None else store_rows(pairs, out / "pairs")
    options = {**settings, **{key: value for key, value in named.items() if value is not None}}
    config, user_keys = configure("replay", options=options), {*options}
    log, notes = checked(rows, config, user_keys, say, mapping=mapping, format_name=format_name, skip_bad=skip_bad)
    say(recognised(log))
    config, pool = imported(log, config, user_keys, name and plain_name(name, "name"), out, limit)
    for sentence in [*pool.cautions, *notes]:
        say(sentence)
    directory = replayed(config, pool.name, out, say)
    from probe.analysis.analyze import analyze

    return analyze(directory)


def checked(
    source: Any, config: ReplayConfig, user_keys: set[str], say: Callable[[str], object], **reading: Any
) -> tuple[CheckedLog, list[str]]:
    """Check the log (first, without torch) and the pairs; return the log and notes on the choice of pairs.

    Args:
        source: the log.
        config: settings with the pairs and the model.
        user_keys: keys of all settings given by the user.
        say: called with what the log holds, if the pairs are missing.
        reading: as for `check_log`.

    Raises:
        InputError: all faults of the log, the pairs and the model's name.
    """
    expected, derived = "none: it follows from ROLLOUTS and --pairs", [key for key in DECIDED if key in user_keys]
    errors = [InputError(f"--set {key}", expected=expected, found="one", fix="use probe replay") for key in derived]
    log, notes = gathered_log(source, config, errors, **reading), list[str]()
    if log is not None and max(map(len, log.groups)) < 2:
        expected = "several rollouts with a reward to one prompt, to compare their rewards"
        fix, found = "log all of a group: --map group=COLUMN names what it has in common", f"{len(log.groups)} alone"
        errors.append(InputError(log.rows.source, expected=expected, found=found, fix=fix))
    elif log is not None and all(len({row.reward for row in group}) < 2 for group in log.groups):
        expected, fix = "a group with rewards that differ: no other has an update", "another --map reward=COLUMN?"
        found = f"equal rewards within each of {len(log.groups)} groups"
        errors.append(InputError(f"{log.rows.source} reward", expected=expected, found=found, fix=fix))
    if PAIRS in user_keys:
        try:
            pairs = checked_pairs(config, notes.append, with_tokens=not errors)
            if not notes:
                notes.append(f"pairs {config.intervention.extraction.pairs}: {len(pairs)}")
        except InputError as error:
            errors += error.errors
    else:
        expected = "pairs of a hacking and a clean answer to one prompt: without them there is no direction"
        errors.append(InputError("--pairs", expected=expected, found="none", fix=NO_PAIRS))
        if log is not None:
            say(recognised(log))
    refuse(errors)
    assert log is not None
    return log, notes


def gathered_log(source: Any, config: ReplayConfig, errors: list[InputError], **reading: Any) -> CheckedLog | None:
    """Return a log that `check_log` accepts, else None; add what is wrong with it and the model to `errors`."""
    log = None
    try:
        log = check_log(source, **reading)
    except InputError as error:
        errors += error.errors
    if config.model.name is None:
        fix = "pass --model, the model that sampled the rollouts: organism, a directory or a hub id"
        errors.append(InputError("--model", expected="a model", found="none", fix=fix))
    return log


def recognised(log: CheckedLog) -> str:
    """Return a line on the recognised columns of a log, and how to correct them."""
    from replay_pools.logs.columns import as_option

    num_rollouts = sum(map(len, log.groups))
    return (
        f"log {log.rows.source}: {num_rollouts} rollouts in {len(log.groups)} groups, read as --format "
        f"{log.format.name} {as_option(log.mapping)}: give these with other columns to correct them"
    )


def checked_pairs(config: ReplayConfig, say: Callable[[str], object], *, with_tokens: bool = True) -> "list[Pair]":
    """Return the pairs, checked with the model's tokenizer for `with_tokens`; `say` gets notes."""
    from extraction.pairs import selected_pairs

    extraction = config.intervention.extraction
    pairs = selected_pairs(extraction, say)
    if with_tokens and config.model.name is not None:
        from extraction.library import check_pairs
        from replay_pools.policy.load import load_served_policy

        check_pairs(load_served_policy(config.model.name, config.model.template), pairs, extraction.k)
    return pairs


def imported(
    log: CheckedLog, config: ReplayConfig, user_keys: set[str], name: str | None, out: Path, limit: int | None
) -> tuple[ReplayConfig, Pool]:
    """Import a checked log; return the settings of its replay, and its pool.

    Args:
        name: of the pool; None: the file's name with a hash of everything that affects the result.
    """
    config = replace(config, intervention=replace(config.intervention, arms=USUAL_ARMS))
    if "token_attribution" not in user_keys:
        config = replace(config, token_attribution=COLOURED_STEPS)
    if log.scale_rewards is not None and SCALE not in user_keys:
        config = replace(config, objective=replace(config.objective, scale_rewards=log.scale_rewards))
        log.notes.append(f"the loss divides so, too (--set {SCALE})")
    from extraction.pairs import pairs_sha, selected_pairs

    shape = [asdict(config), pairs_sha(selected_pairs(config.intervention.extraction))]
    pool = pool_of(log, config, name, shape, out, limit)
    # The largest group size that every problem fills; a single rollout gives no update.
    per_pool = config.source.per_pool if PER_POOL in user_keys else max(2, min(map(len, pool.steps), default=2))
    return replace(config, source=replace(config.source, replay_dirs=(pool.name,), per_pool=per_pool)), pool


def pool_of(
    log: CheckedLog, config: ReplayConfig, name: str | None, shape: Sequence[Any], out: Path, limit: int | None
) -> Pool:
    """Import a checked log; its name is by default the file's with a hash of the log, how it is read, and `shape`."""
    if name is None:
        whole = [log.sha256, [len(group) for group in log.groups], log.mapping, log.format.name, *shape, limit]
        name = default_name(Path(log.rows.source).name.partition(".")[0] or "log", whole)
    options: dict[str, Any] = {"model": str(config.model.name), "template": config.model.template, "limit": limit}
    return import_log(log, name=name, out=out, **options)


def replayed(config: ReplayConfig, name: str, out: Path, say: Callable[[str], None]) -> Path:
    """Replay the imported pool and return the run's directory."""
    from probe.runs.replay import run_replay
    from probe.runs.resume import running

    directory = out / "runs" / name
    with running(config.model, directory, out, say) as world:
        run_replay(config, directory, out_dir=out, world=world)
    return directory
