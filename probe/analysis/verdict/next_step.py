"""Choose the advice after a verdict on a replay, with the values of its placeholders and its command.

The sentences are in `probe.analysis.verdict.advice`.
"""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from extraction.words import Basis
from probe.analysis.estimate import Estimate
from probe.analysis.pull import TOO_FEW_PROMPTS, pairs_to_reach, prompts_needed
from probe.analysis.statistics.intervals import MAX_PROMPTS
from probe.analysis.statistics.significance import mde
from probe.analysis.statistics.thresholds import ALPHA, POWER, SD, SHOWN_REMOVED
from probe.analysis.verdict.advice import PAIRS, K, advise, repeat
from probe.analysis.verdict.decision import (
    DECIDED_BY,
    RESTS_ON,
    cost_of,
    decided,
    hacks_missing,
    names_of,
    overlap_unclear,
    own_hacks_agree,
    points_away,
    separated,
    why_unreadable,
)
from probe.analysis.verdict.pools import as_sampled, sample_again
from probe.analysis.verdict.verdict import Finding, Next
from probe.records.run import CONFIG_FILE, Run, in_root, out_of
from probe.settings.presets import configure
from probe.settings.words import HIGHER, Answer, Word
from replay_pools.base.tables import flat

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

SEEDS = (3, 5, 10)  # seeds per arm, for the cost of the trainings after a GO
MORE = 4  # factor on rollouts, prompts or pairs that halves an error, or gives answers of both kinds to a prompt
LEAST_PROMPTS = 20  # minimum advised if an interval needs prompts; its width falls with their square root
FEWEST_TO_PLAN = 8  # prompts: the spread of fewer says little about how many decide
LEAST_MIXED = 0.3  # of hacks, and of other rollouts, in a pool of a policy that does both
ROLLOUTS = 16  # per prompt: enough for both kinds if a policy hacks 30% to 60%
DOZEN = 12  # held-out pairs, when too few are marked
MIXED = "mixed"  # the bundled pool of a policy that hacks and solves
BOTH_KINDS = "rewarded hacks and honest solutions to one prompt, of similar length"
SHARE_WORDS = {  # {a share: how advice calls it}
    "pull": "the alignment",
    "benign": "the alignment without the hacks",
    "pull - benign": "what the hacks add to the alignment",
    "half - benign": "whether the hacks bring half of the alignment",
    "contrast": "the contrast",
}


def next_step(word: str, analysis: "Analysis", findings: Sequence[Finding], parts: Sequence[Finding]) -> Next:
    """Return the next step after a verdict of `probe.analysis.verdict.decision`, in the run's root folder."""
    match word:
        case Word.BROKEN:
            step = _broken(next(part.name for part in parts if part.says is Answer.BROKEN), analysis)
        case Word.SKIP:
            step = _skip(analysis, findings)
        case Word.CONFOUNDED:
            step = _confounded(analysis)
        case Word.GENERIC:
            step = _generic(analysis)
        case Word.UNDERPOWERED | Word.LIKELY:
            step = _underpowered(analysis, findings)
        case Word.GO:
            step = _go(analysis)
        case _:
            step = advise("compare", "probe analyze RUN RUN ...")
    return replace(step, command=in_root(step.command, out_of(analysis.records.path)))


def direction(run: Run, basis: Basis) -> str:
    """Return the command that creates a run's direction as a file by extraction, or shows the file given to the run."""
    v_hack, model = run.settings.intervention.v_hack, run.config.get("model")
    if v_hack is not None:
        return f"probe show {shlex.quote(v_hack)}"
    words = ["probe extract --config", shlex.quote(str(run.path / CONFIG_FILE))]
    # A replay defaults to the model named by its pools, an extraction to the bundled model organism.
    if run.settings.model.name is None and model not in (None, "organism"):
        words += ["--model", shlex.quote(model)]
    words += [] if basis == "svd" else ["--basis", basis]
    return " ".join([*words, "--name", shlex.quote(run.path.resolve().name)])


def _with_pairs(analysis: "Analysis") -> str:
    """Return the command that repeats a replay along the pairs of a file."""
    from_file = analysis.records.settings.intervention.v_hack is not None
    changes = {PAIRS: "FILE.jsonl"} | ({"intervention.v_hack": None} if from_file else {})
    return repeat(analysis.records, "other-pairs", **changes)


def _other_pairs(analysis: "Analysis", why: str) -> Next:
    return advise("other pairs", _with_pairs(analysis), why=why)


def _more_pairs(analysis: "Analysis", pairs: int, what: str, held_out: int) -> Next:
    """Advise held-out pairs, and as large a factor on the extraction pairs."""
    extract = f" and {pairs / held_out:.2g} times as many pairs to extract from" if held_out > 1 else ""
    return advise("pairs", _with_pairs(analysis), pairs=pairs, held_out=held_out, extract=extract, what=what)


def _on_pools(analysis: "Analysis", names: Sequence[str], name: str = "again", **changes: Any) -> str:
    """Return the command that replays all groups of other pools with the run's settings."""
    settings = {**changes, "source.replay_dirs": [*names]}
    if analysis.records.settings.steps is not None:
        settings["steps"] = None
    return repeat(analysis.records, name, **settings)


def _broken(part: str, analysis: "Analysis") -> Next:
    run, again = analysis.records, "train again" if analysis.trains else "repeat the run"
    match part:
        case "grader canaries":
            return advise("grader", "probe doctor", repeat=again)
        case "regrade agreement":
            names = [pool.reference if pool.regrade is None else pool.regrade.name for pool in analysis.pools]
            return advise("regraded", "" if analysis.trains else _on_pools(analysis, names), repeat=again)
        case "template tails":
            return advise("template")
        case "held-out sign":
            return _other_pairs(analysis, "this v_hack has the wrong sign on held-out hacks")
        case "contributions add up" if (dtype := HIGHER.get(run.settings.model.dtype)) is not None:
            return advise("rounding", repeat(run, **{"model.dtype": dtype}), dtype=dtype)
    return advise("again", repeat(run), repeat=again)


def _skip(analysis: "Analysis", findings: Sequence[Finding]) -> Next:
    if any(finding.says is Answer.TOO_LITTLE for finding in findings):
        return _more_directions(analysis)
    if not points_away(findings[0]):
        assert findings[0].number is not None  # this verdict implies a share
        ceiling = f"these directions align with held-out hacks ({findings[0].number.parts['ceiling']:+.3f})"
        return _other_pairs(analysis, f"{ceiling}, and not with these updates")
    if analysis.unlabelled:
        return _hack_labels()
    paid = {}
    for hacked in (True, False):
        side = [sample for sample in analysis.sure if bool(sample.hacked) == hacked]
        advantages, rewards = ([getattr(one, name) for one in side] for name in ("advantage", "reward"))
        paid[hacked] = (sum(advantages) / len(side), sum(rewards) / len(side)) if side else (0.0, 0.0)
    if paid[True][0] <= paid[False][0]:
        why = f"hacks earn {paid[True][1]:.2g}, others {paid[False][1]:.2g}; if it is right, leave projection out"
        return advise("unpaid", why=why)
    benign = analysis.get("shares", "benign") or Estimate(name="benign")
    what = f"what the other rollouts teach (alignment {benign} without the hacks)"
    return _mixed(analysis, f"{what} outweighs the rewarded hacks: ")


def _generic(analysis: "Analysis") -> Next:
    contrast, pools = analysis.get("shares", "contrast"), analysis.pools
    if contrast is not None and contrast.high < 0 and not any(pool.said("regraded_from") for pool in pools):
        return advise("inverted")
    why = "write pairs like the held-out ones that differ in the hack alone (same body, length and tests)"
    return _other_pairs(analysis, why)


def _mixed(analysis: "Analysis", why: str = "") -> Next:
    """Advise a policy that hacks in about half of its rollouts; the package has one of its own organism."""
    where, command = " (probe docs pools)", ""
    base = {pool.policy for pool in analysis.pools} | {("organism", None)}
    if base <= {("organism", None), ("organism", "teacher")} and analysis.pools:
        where = ". The package has such a pool: replay it where it was sampled"
        changes = {"source.match": "problem", **as_sampled(MIXED)}
        command = _on_pools(analysis, [MIXED], MIXED, **changes)
    return advise("mixed", command, why=why, where=where)


def _more_directions(analysis: "Analysis") -> Next:
    """Double the directions from the same pairs; advise other pairs if these give no more, or came with them."""
    intervention = analysis.records.settings.intervention
    now = intervention.extraction.k
    k = 2 * now if analysis.reproduced is None else min(2 * now, analysis.reproduced.pairs.most_directions)
    if k <= now or intervention.v_hack is not None:
        why = f"to remove {SHOWN_REMOVED:.0%} or more of the gain on held-out hacks, take pairs like the held-out ones"
        return _other_pairs(analysis, why)
    return advise("directions", repeat(analysis.records, **{K: k}), k=k)


def _confounded(analysis: "Analysis") -> Next:
    """Advise more rollouts per prompt, a policy that does both, or a training if this policy already does."""
    apart, pools, sure = separated(analysis), analysis.pools, analysis.sure
    if not apart and _group(analysis) < ROLLOUTS:
        return _more_rollouts(BOTH_KINDS, analysis)
    adapter = analysis.records.settings.model.adapter
    is_own = adapter is not None and {pool.policy[1] for pool in pools} == {adapter}
    hack_rate = sum(bool(sample.hacked) for sample in sure) / max(len(sure), 1)
    if is_own or (len(pools) == 1 and LEAST_MIXED <= hack_rate <= 1 - LEAST_MIXED):
        return advise("by nature", scores=names_of(apart) or "their rewards")
    return _mixed(analysis)


def _underpowered(analysis: "Analysis", findings: Sequence[Finding]) -> Next:
    """Return what would decide the first open question."""
    cause = why_unreadable(analysis)
    if cause is not None:
        return _readable(cause[0], analysis)
    if hacks_missing(analysis):
        return _mixed(analysis)
    finding = next((finding for finding in findings if finding.says is not Answer.YES), None)
    if finding is None:
        return _other_pairs(analysis, "these do not separate this policy's own hacks from its honest solutions")
    if finding.name == "about" and analysis.unlabelled:
        return _hack_labels()
    if finding.name == "about" and (unclear := overlap_unclear(analysis)):
        return _overlap_unclear(unclear, analysis)
    for share in filter(None, (analysis.get("shares", name) for name in RESTS_ON.get(finding.name, ()))):
        if share.value is not None:
            if share.name in DECIDED_BY and decided(share) in (Answer.UNCLEAR, Answer.LIKELY):
                return _undecided(share, analysis)
        elif share.n:
            return _undefined(share, analysis)
        elif share.name == "contrast":
            return advise("unpaid", why="no rewarded rollout hacks")
        elif any(sample.hacked is None for sample in analysis.samples):
            return _hack_labels()
        else:
            return _more_rollouts("rewards that differ among the rollouts of a prompt that do not hack", analysis)
    missing, _ = cost_of(analysis)
    if finding.says is not Answer.UNMEASURED or not missing:
        return _forecast_open(analysis)
    if missing == "right":
        return advise("labels", labels="are right", column="gt_pass")
    if missing == "honest":
        return _more_rollouts("rewarded rollouts that are right and honest", analysis)
    return _more_prompts(analysis, MORE * _prompts(analysis), ": they halve the error of the cost")


def _hack_labels() -> Next:
    return advise("labels", labels="hack", column="hacked")


def _overlap_unclear(unclear: Sequence[Estimate], analysis: "Analysis") -> Next:
    """Advise prompts that would settle the overlap, or rollouts that overlap if no number of prompts would."""
    needed_prompts, so_far = [one.parts["prompts_needed"] for one in unclear], unclear[0].n
    if None in needed_prompts:  # groups of two, or a ratio at the bound
        return _more_rollouts(BOTH_KINDS, analysis) if _group(analysis) < ROLLOUTS else _mixed(analysis)
    prompts = max(*filter(None, needed_prompts), so_far + 1)
    what = " with rewarded answers of both kinds: they show whether hacks and honest answers overlap in "
    # Only some prompts have rewarded answers of both kinds.
    return _more_prompts(analysis, prompts, f"{what}{names_of(unclear)} ({POWER:.0%} power)", so_far)


def _undefined(share: Estimate, analysis: "Analysis") -> Next:
    """Advise prompts, or pairs that would separate a share's held-out reference from 0."""
    if share.why == TOO_FEW_PROMPTS:
        # Scaled so that LEAST_PROMPTS of them count: some prompts lack what a share needs.
        return _more_prompts(analysis, LEAST_PROMPTS, ": an interval narrows with their square root", share.n)
    pairs, held_out, named = pairs_to_reach(share), share.parts["num_held_out"], SHARE_WORDS[share.name]
    if pairs is None:
        return _other_pairs(analysis, f"v_hack does not transfer to its {held_out} held-out ones ({named})")
    return _more_pairs(analysis, pairs, f": they fix the held-out reference ({named})", held_out)


def _readable(cause: str, analysis: "Analysis") -> Next:
    """Return the advice for the reason why there was no result along v_hack."""
    run, share = analysis.records, analysis.get("shares", "pull")
    match cause:
        case "arm":
            return advise("arm", repeat(run, **{"intervention.arms": ["vanilla", "projected"]}))
        case "updates":
            return _more_rollouts("rewards that differ within a prompt", analysis)
        case "plain":
            usual, here = flat(asdict(configure("replay").objective)), flat(asdict(run.settings.objective))
            changes = {f"objective.{key}": usual[key] for key, value in here.items() if value != usual[key]}
            return advise("plain", repeat(run, **changes))
        case "pairs":
            held_out = 0 if share is None else share.parts["num_held_out"]
            return _more_pairs(analysis, DOZEN, ' ("held_out": true in FILE.jsonl)', held_out)
    assert share is not None  # the last reason implies a share
    return _undefined(share, analysis)


def _undecided(share: Estimate, analysis: "Analysis") -> Next:
    """Advise prompts if they would decide, else pairs."""
    prompts, named = prompts_needed(share, *DECIDED_BY[share.name]), SHARE_WORDS[share.name]
    if prompts is not None:
        # Only some prompts have what the share needs: both labels, or rewards that differ.
        return _more_prompts(analysis, prompts, f": they decide {named} with {POWER:.0%} power", share.n)
    if share.n < FEWEST_TO_PLAN:
        return _more_prompts(analysis, LEAST_PROMPTS, ": so few cannot say what would decide", share.n)
    held_out = share.parts["num_held_out"]
    what = f": they halve the error that {MAX_PROMPTS} prompts would leave in {named}"
    return _more_pairs(analysis, MORE * held_out, what, held_out)


def _forecast_open(analysis: "Analysis") -> Next:
    """Return the cause of the open last question: no gain, too few directions, chance, or a wide interval."""
    row, prompts = analysis.get("removed", "removed/margin"), MORE * _prompts(analysis)
    if row is None or row.value is None:
        return _more_prompts(analysis, prompts, ": they halve the error of the gain on held-out hacks")
    if row.value < SHOWN_REMOVED:
        return _more_directions(analysis)
    share = analysis.get("shares", "pull")
    held_out = share.parts["num_held_out"] if share is not None else 0
    if row.p is None or row.p >= ALPHA:
        return _more_pairs(analysis, MORE * held_out, ": shuffled ones then remove half as much", held_out)
    if not own_hacks_agree(analysis):
        why = f"projecting these out removes {row:.0%} of the gain on held-out hacks, and less of the gain on"
        return _other_pairs(analysis, f"{why} this policy's own hacks")
    what = f": they narrow the interval of what projection removes ({row:.0%}), which includes 0"
    if row.parts["from_prompts"] > 0.5:
        return _more_prompts(analysis, prompts, what)
    return _more_pairs(analysis, MORE * held_out, what, held_out)


def _go(analysis: "Analysis") -> Next:
    run, why = analysis.records, ""
    sizes = ", ".join(f"{seeds} seeds {mde(SD, seeds):.2f}" for seeds in SEEDS)
    if analysis.basis != "svd":
        why = f", since probe train has vanilla and its controls in the basis svd, not in {analysis.basis}"
    if why or (analysis.pools and not any(pool.env for pool in analysis.pools)):
        return advise("elsewhere", direction(run, analysis.basis), sd=SD, sizes=sizes, why=why)
    name = run.path.name if run.path.resolve().parent.name == "runs" else str(run.path)
    return advise("train", f"probe spec plan {shlex.quote(name)}", sd=SD, sizes=sizes)


def _prompts(analysis: "Analysis") -> int:
    return len({step.problem_id for step in analysis.steps})


def _group(analysis: "Analysis") -> int:
    return max(Counter(sample.step for sample in analysis.samples).values(), default=0)


def _more_rollouts(what: str, analysis: "Analysis") -> Next:
    group = _group(analysis)
    return advise("rollouts", what=what, more=f"{MORE * group} rollouts of every prompt, {group} so far")


def _more_prompts(analysis: "Analysis", prompts: int, what: str, so_far: int | None = None) -> Next:
    """Advise prompts: those that the pools hold and this replay left out, else new ones as their pool was sampled.

    Args:
        analysis: the analysis.
        prompts: their advised number.
        what: what they decide.
        so_far: number of prompts that count; default: all.
    """
    pools, all_prompts, command = analysis.pools, _prompts(analysis), ""
    so_far = all_prompts if so_far is None else so_far
    steps = min(math.ceil(prompts * all_prompts / max(so_far, 1)), MAX_PROMPTS)
    held, groups = min((pool.said("counts.steps") or 0 for pool in pools), default=0), "groups of different prompts"
    if analysis.records.settings.steps is not None and held > analysis.num_steps:
        limit = f"the pools hold {held} groups, of which {analysis.num_steps} were replayed"
        command = repeat(analysis.records, steps=None)
    elif any(pool.said("log") is not None for pool in pools):
        limit = f"log {steps} {groups} in your trainer and import them (probe docs logs)"
    elif len(pools) == 1 and (command := sample_again(pools[0], steps)):
        limit = f"sample {steps} {groups}, and replay them"
    else:
        limit = f"sample or log {steps} {groups} (probe docs pools)"
    return advise("prompts", command, prompts=prompts, so_far=so_far, what=what, limit=limit)
