"""Choose the advice after a verdict on a replay, with the values of its placeholders and its command.

The sentences are in `probe.analysis.verdict.advice`.
"""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from extraction.words import Basis
from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.pull import TOO_FEW_PROMPTS, needed, pairs_to_reach
from probe.analysis.statistics.intervals import MAX_PROMPTS
from probe.analysis.statistics.significance import mde
from probe.analysis.statistics.thresholds import ALPHA, POWER, SD, SHOWN_REMOVED
from probe.analysis.verdict.advice import PAIRS, K, Step, advise, repeat
from probe.analysis.verdict.decision import (
    DECIDED_BY,
    RESTS_ON,
    SCORE_NAMES,
    cost_of,
    decided,
    hacks_missing,
    overlap_unclear,
    own_hacks_agree,
    points_away,
    separated,
    why_unreadable,
)
from probe.analysis.verdict.pools import as_sampled, partner, sample_again
from probe.analysis.verdict.verdict import Finding, Next
from probe.records.run import CONFIG_FILE, Run, out_of
from probe.settings.presets import configure
from probe.settings.words import HIGHER, Answer, Word
from replay_pools.base.tables import flat

SEEDS = (3, 5, 10)  # seeds per arm, for the cost of the trainings after a GO
MORE = 4  # factor on rollouts, prompts or pairs that halves an error, or gives answers of both kinds to a prompt
LEAST_PROMPTS = 20  # minimum advised if an interval needs prompts; its width falls with their square root
FEWEST_TO_PLAN = 8  # prompts: the spread of fewer says little about how many decide
LEAST_MIXED = 0.3  # of hacks, and of other rollouts, in a pool of a policy that does both
ROLLOUTS = 16  # per prompt: enough for both kinds if a policy hacks 30% to 60%
DOZEN = 12  # held-out pairs, when too few are marked
MIXED = "mixed"  # the bundled pool of a policy that hacks and solves
BOTH = (
    "use rollouts of one policy that hacks in 30% to 60%, several to each prompt with the same hint, so that hacks and "
    "honest answers are alike"
)
SHARE_WORDS = {  # {a share: how advice calls it}
    "pull": "the alignment",
    "benign": "the alignment without the hacks",
    "pull - benign": "what the hacks add to the alignment",
    "half - benign": "whether the hacks bring half of the alignment",
    "contrast": "the contrast",
}


def next_step(word: str, analysis: Analysis, findings: Sequence[Finding], parts: Sequence[Finding]) -> Next:
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
            step = Step("compare", {}, "probe analyze RUN RUN ...")
    return advise(word, step.reason, step.facts, out_of(analysis.records.path), step.command)


def extract(run: Run, basis: Basis) -> str:
    """Return the command that repeats a run's extraction, without --name and changed settings."""
    words = [f"probe extract --config {shlex.quote(str(run.path / CONFIG_FILE))}"]
    # A replay defaults to the model named by its pools, an extraction to the bundled model organism.
    if run.settings.model.name is None and run.config.get("model") not in (None, "organism"):
        words.append(f"--model {shlex.quote(run.config['model'])}")
    if run.settings.intervention.v_hack is not None:
        words.append("--set intervention.v_hack=none")
    return " ".join(words if basis == "svd" else [*words, f"--basis {basis}"])


def direction(run: Run, basis: Basis) -> str:
    """Return the command that creates a run's direction as a file by extraction, or shows the file given to the run."""
    v_hack = run.settings.intervention.v_hack
    if v_hack is not None:
        return f"probe show {shlex.quote(v_hack)}"
    return f"{extract(run, basis)} --name {shlex.quote(run.path.resolve().name)}"


def _with_pairs(analysis: Analysis) -> str:
    """Return the command that repeats a replay along the pairs of a file."""
    from_file = analysis.records.settings.intervention.v_hack is not None
    changes = {PAIRS: "FILE.jsonl"} | ({"intervention.v_hack": None} if from_file else {})
    return repeat(analysis.records, "other-pairs", **changes)


def _other_pairs(analysis: Analysis, why: str) -> Step:
    return Step("other pairs", {"why": why}, _with_pairs(analysis))


def _more_pairs(analysis: Analysis, pairs: int, what: str, held_out: int, prompts: str = "") -> Step:
    """Advise held-out pairs, and as large a factor on the extraction pairs; `prompts` are advised too."""
    extract = prompts
    if held_out > 1:
        extract = f"{',' if prompts else ' and'} {pairs / held_out:.2g} times as many pairs to extract from{prompts}"
    facts = {"pairs": pairs, "held_out": held_out, "extract": extract, "what": what}
    return Step("pairs", facts, _with_pairs(analysis))


def _on_pools(analysis: Analysis, names: Sequence[str], name: str = "again", **changes: Any) -> str:
    """Return the command that replays all groups of other pools with the run's settings."""
    settings = dict[str, Any](changes)
    settings["source.replay_dirs"] = [*names]
    if analysis.records.settings.steps is not None:
        settings["steps"] = None
    return repeat(analysis.records, name, **settings)


def _broken(part: str, analysis: Analysis) -> Step:
    run, again = analysis.records, "train again" if analysis.trains else "repeat the run"
    match part:
        case "grader canaries":
            return Step("grader", {"repeat": again}, "probe doctor")
        case "regrade agreement":
            names = [pool.reference if pool.regrade is None else pool.regrade.name for pool in analysis.pools]
            return Step("regraded", {"repeat": again}, "" if analysis.trains else _on_pools(analysis, names))
        case "template tails":
            return Step("template", {})
        case "held-out sign":
            return _other_pairs(analysis, "this v_hack has the wrong sign on held-out hacks")
        case "contributions add up":
            dtype = HIGHER.get(run.settings.model.dtype)
            if dtype is not None:
                return Step("rounding", {"dtype": dtype}, repeat(run, **{"model.dtype": dtype}))
    return Step("again", {"repeat": again}, repeat(run))


def _skip(analysis: Analysis, findings: Sequence[Finding]) -> Step:
    if any(finding.says is Answer.TOO_LITTLE for finding in findings):
        return _more_directions(analysis)
    share = analysis.get("shares", "pull")
    assert share is not None  # this reason implies a share
    if not points_away(findings[0]):
        ceiling = f"these directions align with held-out hacks ({share.parts['ceiling']:+.3f})"
        return _other_pairs(analysis, f"{ceiling}, and not with these updates")
    if analysis.unlabelled:
        return Step("labels", {"labels": "hack", "column": "hacked"})
    paid = {}
    for hacked in (True, False):
        side = [sample for sample in analysis.sure if bool(sample.hacked) == hacked]
        advantages, rewards = ([getattr(one, name) for one in side] for name in ("advantage", "reward"))
        paid[hacked] = (sum(advantages) / len(side), sum(rewards) / len(side)) if side else (0.0, 0.0)
    if paid[True][0] <= paid[False][0]:
        why = f"hacks earn {paid[True][1]:.2g}, others {paid[False][1]:.2g}; if it is right, leave projection out"
        return Step("unpaid", {"why": why})
    benign = analysis.get("shares", "benign")
    pulls = f"alignment {benign or Estimate(name='benign')} without the hacks"
    return _mixed(analysis, "outweighed", benign=pulls)


def _generic(analysis: Analysis) -> Step:
    contrast, pools = analysis.get("shares", "contrast"), analysis.pools
    if contrast is not None and contrast.high < 0 and not any(pool.said("regraded_from") for pool in pools):
        return Step("inverted", {})
    why = "write pairs like the held-out ones that differ in the hack alone (same body, length and tests)"
    return _other_pairs(analysis, why)


def _mixed(analysis: Analysis, reason: str = "mixed", **facts: Any) -> Step:
    """Advise a policy that hacks in about half of its rollouts; the package has one of its own organism."""
    base = {pool.policy for pool in analysis.pools} | {("organism", None)}
    if base <= {("organism", None), ("organism", "teacher")} and analysis.pools:
        changes = {"source.match": "problem", **as_sampled(MIXED)}
        command = _on_pools(analysis, [MIXED], MIXED, **changes)
        return Step(
            reason, {"mixed": f"{BOTH}. The package has such a pool: replay it where it was sampled", **facts}, command
        )
    return Step(reason, {"mixed": f"{BOTH} (probe docs pools)", **facts})


def _more_directions(analysis: Analysis) -> Step:
    """Double the directions from the same pairs; advise other pairs if these give no more, or came with them."""
    intervention = analysis.records.settings.intervention
    now = intervention.extraction.k
    k = 2 * now if analysis.reproduced is None else min(2 * now, analysis.reproduced.pairs.most_directions)
    if k <= now or intervention.v_hack is not None:
        why = f"to remove {SHOWN_REMOVED:.0%} or more of the gain on held-out hacks, take pairs like the held-out ones"
        return _other_pairs(analysis, why)
    changes: dict[str, Any] = {K: k}
    return Step("directions", {"k": k}, repeat(analysis.records, **changes))


def _confounded(analysis: Analysis) -> Step:
    """Advise a pool in which the other side answers the same prompts, if at hand; else more rollouts per prompt."""
    pools = analysis.pools
    hinted = [pool for pool in pools if pool.hint] or pools
    apart = separated(analysis)
    if hinted and {one.name for one in apart} <= {"hint"}:
        pool = hinted[0]
        if other := partner(analysis.records, pool, {each.name for each in pools}):
            changes = {"source.match": "prompt"}
            command = _on_pools(analysis, [pool.reference, other.reference], "same-prompt", **changes)
            return Step("same prompts", {"partner": other.name, "pool": pool.name}, command)
    if not apart and _group(analysis) < ROLLOUTS:
        return _more_rollouts("rewarded hacks and honest solutions to one prompt, of similar length", analysis)
    adapter = analysis.records.settings.model.adapter
    if adapter is not None and {pool.policy[1] for pool in pools} == {adapter}:
        return _by_nature(apart)
    if len(pools) == 1 and LEAST_MIXED <= _hack_rate(analysis) <= 1 - LEAST_MIXED:
        if analysis.records.settings.steps is not None and (pools[0].said("counts.steps") or 0) > analysis.num_steps:
            what = " with rewarded answers of both kinds: more of them may overlap"
            return _more_prompts(analysis, MORE * _prompts(analysis), what)
        return _by_nature(apart)
    return _mixed(analysis)


def _by_nature(apart: Sequence[Estimate]) -> Step:
    return Step("by nature", {"scores": ", ".join(SCORE_NAMES[one.name] for one in apart) or "their rewards"})


def _hack_rate(analysis: Analysis) -> float:
    return sum(bool(sample.hacked) for sample in analysis.sure) / max(len(analysis.sure), 1)


def _underpowered(analysis: Analysis, findings: Sequence[Finding]) -> Step:
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
        return Step("labels", {"labels": "hack", "column": "hacked"})
    if finding.name == "about" and (unclear := overlap_unclear(analysis)):
        return _overlap_unclear(unclear, analysis)
    for share in filter(None, (analysis.get("shares", name) for name in RESTS_ON.get(finding.name, ()))):
        if share.value is not None:
            if share.name in DECIDED_BY and decided(share) in (Answer.UNCLEAR, Answer.LIKELY):
                return _undecided(share, analysis)
        elif share.n:
            return _undefined(share, analysis)
        elif share.name == "contrast":
            return Step("unpaid", {"why": "no rewarded rollout hacks"})
        elif any(sample.hacked is None for sample in analysis.samples):
            return Step("labels", {"labels": "hack", "column": "hacked"})
        else:
            return _more_rollouts("rewards that differ among the rollouts of a prompt that do not hack", analysis)
    missing, _ = cost_of(analysis)
    if finding.says is not Answer.UNMEASURED or not missing:
        return _forecast_open(analysis)
    match missing:
        case "right":
            return Step("labels", {"labels": "are right", "column": "gt_pass"})
        case "honest":
            return _more_rollouts("rewarded rollouts that are right and honest", analysis)
    return _more_prompts(analysis, MORE * _prompts(analysis), ": they halve the error of the cost")


def _overlap_unclear(unclear: Sequence[Estimate], analysis: Analysis) -> Step:
    """Advise prompts that would settle the overlap, or rollouts that overlap if no number of prompts would."""
    needed_prompts = [one.parts["prompts_needed"] for one in unclear]
    names, so_far = ", ".join(SCORE_NAMES[one.name] for one in unclear), unclear[0].n
    if None in needed_prompts:  # groups of two, or a ratio at the bound
        what = "rewarded hacks and honest solutions to one prompt, of similar length"
        return _more_rollouts(what, analysis) if _group(analysis) < ROLLOUTS else _mixed(analysis)
    prompts = max(*filter(None, needed_prompts), so_far + 1)
    what = " with rewarded answers of both kinds: they show whether hacks and honest answers overlap in "
    # Only some prompts have rewarded answers of both kinds.
    return _more_prompts(analysis, prompts, f"{what}{names} ({POWER:.0%} power)", so_far)


def _undefined(share: Estimate, analysis: Analysis) -> Step:
    """Advise prompts, or pairs that would separate a share's held-out reference from 0."""
    if share.why == TOO_FEW_PROMPTS:
        # Scaled so that LEAST_PROMPTS of them count: some prompts lack what a share needs.
        return _more_prompts(analysis, LEAST_PROMPTS, ": an interval narrows with their square root", share.n)
    pairs, held_out = pairs_to_reach(share), share.parts["num_held_out"]
    named = SHARE_WORDS.get(share.name, share.name)
    if pairs is None:
        return _other_pairs(analysis, f"v_hack does not transfer to its {held_out} held-out ones ({named})")
    return _more_pairs(analysis, pairs, f": they fix the held-out reference ({named})", held_out)


def _readable(cause: str, analysis: Analysis) -> Step:
    """Return the advice for the reason why there was no result along v_hack."""
    run = analysis.records
    match cause:
        case "arm":
            arms: dict[str, Any] = {"intervention.arms": ["vanilla", "projected"]}
            return Step("arm", {}, repeat(run, **arms))
        case "updates":
            return _more_rollouts("rewards that differ within a prompt", analysis)
        case "gram" | "loss":
            usual, changes = flat(asdict(configure("replay").objective)), {}
            for key, value in flat(asdict(run.settings.objective)).items():
                if value != usual[key]:
                    changes[f"objective.{key}"] = usual[key]
            return Step("plain", {}, repeat(run, **changes))
        case "held out":
            share = analysis.get("shares", "pull")
            held_out = 0 if share is None else share.parts["num_held_out"]
            return _more_pairs(analysis, DOZEN, ' ("held_out": true in FILE.jsonl)', held_out)
    share = analysis.get("shares", "pull")
    assert share is not None  # the other reasons imply a share
    return _undefined(share, analysis)


def _undecided(share: Estimate, analysis: Analysis) -> Step:
    """Advise prompts if they dominate the interval's width, else pairs as well."""
    plan, named = needed(share, *DECIDED_BY[share.name]), SHARE_WORDS.get(share.name, share.name)
    if share.n < FEWEST_TO_PLAN and (plan is None or plan.pairs > 1):
        return _more_prompts(analysis, LEAST_PROMPTS, ": so few cannot say what would decide", share.n)
    if plan is None:
        why = f"neither {MAX_PROMPTS} prompts nor 8 times as many pairs would decide {named}"
        return _other_pairs(analysis, why)
    if plan.pairs == 1:
        # Only some prompts have what the share needs: both labels, or rewards that differ.
        return _more_prompts(analysis, plan.prompts, f": they decide {named} with {POWER:.0%} power", share.n)
    held_out = share.parts["num_held_out"]
    prompts = f", and about {plan.prompts} prompts ({share.n} so far)" if plan.prompts > share.n else ""
    what = f": together they decide {named} with {POWER:.0%} power"
    return _more_pairs(analysis, math.ceil(plan.pairs * held_out), what, held_out, prompts)


def _forecast_open(analysis: Analysis) -> Step:
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


def _go(analysis: Analysis) -> Step:
    run = analysis.records
    sizes = ", ".join(f"{seeds} seeds {mde(SD, seeds):.2f}" for seeds in SEEDS)
    facts = {"sd": SD, "sizes": sizes, "why": ""}
    if analysis.basis != "svd":
        why = f", since probe train has vanilla and its controls in the basis svd, not in {analysis.basis}"
        return Step("elsewhere", facts | {"why": why}, direction(run, analysis.basis))
    if analysis.pools and not any(pool.env for pool in analysis.pools):
        return Step("elsewhere", facts, direction(run, analysis.basis))
    name = run.path.name if run.path.resolve().parent.name == "runs" else str(run.path)
    return Step("train", facts, f"probe spec plan {shlex.quote(name)}")


def _prompts(analysis: Analysis) -> int:
    return len({step.problem_id for step in analysis.steps})


def _group(analysis: Analysis) -> int:
    return max(Counter(sample.step for sample in analysis.samples).values(), default=0)


def _more_rollouts(what: str, analysis: Analysis) -> Step:
    group = _group(analysis)
    return Step("rollouts", {"what": what, "more": f"{MORE * group} rollouts of every prompt, {group} so far"})


def _more_prompts(analysis: Analysis, prompts: int, what: str, so_far: int | None = None) -> Step:
    """Advise prompts: those that the pools hold and this replay left out, else new ones as their pool was sampled.

    Args:
        analysis: the analysis.
        prompts: their advised number.
        what: what they decide.
        so_far: number of prompts that count; default: all.
    """
    pools, all_prompts = analysis.pools, _prompts(analysis)
    so_far = all_prompts if so_far is None else so_far
    steps = min(math.ceil(prompts * all_prompts / max(so_far, 1)), MAX_PROMPTS)
    held = min((pool.said("counts.steps") or 0 for pool in pools), default=0)
    facts = {"prompts": prompts, "so_far": so_far, "what": what}
    if analysis.records.settings.steps is not None and held > analysis.num_steps:
        limit = f"; the pools hold {held} groups, of which {analysis.num_steps} were replayed"
        return Step("prompts", {**facts, "limit": limit}, repeat(analysis.records, steps=None))
    groups, command = f"{steps} groups of different prompts", ""
    if any(pool.said("log") is not None for pool in pools):
        limit = f"; log {groups} in your trainer and import them (probe docs logs)"
    elif len(pools) == 1 and (command := sample_again(pools[0], steps)):
        limit = f"; sample {groups}, and replay them"
    else:
        limit = f"; sample or log {groups} (probe docs pools)"
    return Step("prompts", {**facts, "limit": limit}, command)
