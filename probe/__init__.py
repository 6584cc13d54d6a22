"""Does a GRPO update point towards the reward hack, and would removing that direction help?

    probe.load(name)                            a model with its tokenizer; also one that `probe train` left
    probe.extract(model, tokenizer, pairs)      the direction of a hack, from pairs of a hack and a clean answer
    probe.cosines(model, batch, direction)      (G,): how far training on each sample would push towards the hack
    probe.replay(pools, arms=...)               stored rollouts through the training step; a run in out/runs
    probe.check(rows, pairs, model)             a log, a DataFrame or rows of rollouts: all of these steps at once
    probe.detect(rows, pairs, model)            the rollouts of a log or a pool, those that look like a hack first
    probe.analyze(run)                          its verdict: .verdict.word, print(.verdict)
    probe.attach(optimizer, direction, model=)  the same inside your own loop; project=True removes the direction
    probe.read_run(run)                         its records, as columns, polars or pandas
    probe.Direction                             save, load
    probe.InputError                            what is wrong with an argument or a file, where, and what helps

Models, pools, runs and directions go by name or by path. Each has an example: help(probe.extract). A whole session:

    policy = probe.load("organism")                                      # or a directory, or a hub id
    direction = probe.extract(policy.model, policy.tokenizer, "builtin") # or rows {"prompt", "hack", "clean"}
    direction.save("v_hack")
    rows = [{"prompt": "Add 1 and 2.", "completion": "3"}]               # or input_ids and labels
    print(probe.cosines(policy, rows, direction))
    run = probe.replay(["teacher", "base"], arms=["vanilla", "projected"], direction="v_hack", name="first")
    print(probe.analyze(run).verdict)

The command line is `probe --help`; the manual is `probe docs`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.analysis.analyze import analyze as analyze
    from probe.integrations.hook import attach as attach
    from probe.records.run import read_run as read_run
    from probe.runs.check import check as check
    from probe.runs.detect import detect as detect
    from probe.runs.extract import Direction as Direction
    from probe.runs.extract import extract as extract
    from probe.runs.policies import load as load
    from probe.runs.replay import replay as replay
    from probe.step.batch_cosines import cosines as cosines
    from replay_pools.base.errors import InputError as InputError

# What `import probe` offers, {name: room}; each is imported when it is first asked for, so that torch stays out until
# then. No __all__: with one, help(probe) would import everything and print every docstring in full.
_PLACES = {
    "Direction": "probe.runs.extract",
    "InputError": "replay_pools.base.errors",
    "analyze": "probe.analysis.analyze",
    "attach": "probe.integrations.hook",
    "check": "probe.runs.check",
    "cosines": "probe.step.batch_cosines",
    "detect": "probe.runs.detect",
    "extract": "probe.runs.extract",
    "load": "probe.runs.policies",
    "read_run": "probe.records.run",
    "replay": "probe.runs.replay",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'probe' has no attribute {name!r}")
    offered = getattr(import_module(_PLACES[name]), name)
    if name in ("check", "detect", "extract", "replay"):
        from probe.runs.arguments import in_arguments

        return in_arguments(offered)
    return offered


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
