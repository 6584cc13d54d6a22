"""Choose the advice after a verdict on a replay, and the values of its placeholders.

A command that repeats a run takes its config.json and changes some settings. The sentences are in
`probe.analysis.verdict.advice`.
"""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from extraction.draft import side
from extraction.words import Basis
from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.pull import TOO_FEW_PROMPTS, needed, pairs_to_reach
from probe.analysis.statistics.significance import mde
from probe.analysis.statistics.thresholds import ALPHA, SD, SHOWN_REMOVED
from probe.analysis.verdict.advice import (
    ADVICE,
    DRAFT,
    DRAFTED,
    HALFWAY,
    HALFWAY_ROLLOUTS,
    LEAST_PROMPTS,
    LOG_HALFWAY,
    MIXED,
    MORE_ROLLOUTS,
    NATURAL,
    PROMPTS,
    REPLAY_MIXED,
    ROLLOUTS,
    SCALE,
    SCALE_HALFWAY,
    SCALED_PROMPTS,
    SCALED_ROLLOUTS,
    SEEDS,
    SHARE_WORDS,
    TEACHES,
    TRAIN_HALFWAY,
    K,
    Reason,
    advise,
)
from probe.analysis.verdict.decision import (
    DECIDED_BY,
    RESTS_ON,
    SCORE_NAMES,
    away,
    decided,
    hacks_missing,
    overlap_unclear,
    own_hacks_agree,
    price_of,
    separated,
    unread,
)
from probe.analysis.verdict.pools import PoolFacts, as_sampled, num_problems, partner, regrade_command
from probe.analysis.verdict.verdict import Finding, Next
from probe.records.run import CONFIG_FILE, Run, out_of
from probe.settings.presets import configure, setting_text
from probe.settings.words import HIGHER, Answer, Word
from replay_pools.base.tables import flat
from replay_pools.rollout import UNSAFE


def next_step(word: str, analysis: Analysis, findings: Sequence[Finding], parts: Sequence[Finding]) -> Next:
    """Return the next step after a verdict of `probe.analysis.verdict.decision`, in the run's root folder."""
    match word:
        case Word.BROKEN:
            reason, facts = _broken(next(part.name for part in parts if part.says is Answer.BROKEN), analysis)
        case Word.SKIP:
            reason, facts = _skip(analysis, findings)
        case Word.CONFOUNDED:
            reason, facts = _confounded(analysis)
        case Word.GENERIC:
            reason, facts = _generic(analysis, findings)
        case Word.UNDERPOWERED | Word.LIKELY:
            reason, facts = _underpowered(analysis, findings)
        case Word.GO:
            reason, facts = _go(analysis)
        case _:
            reason, facts = "compare", {}
    usual = {
        "repeat": repeat(analysis.records),
        "extract": extract(analysis.records, analysis.basis),
        "other_pairs": other_pairs(analysis),
    }
    return advise(reason, usual | facts, out_of(analysis.records.path))


def repeat(run: Run) -> str:
    """Return the command that repeats a run, without --name and changed settings."""
    return f"probe {run.verb or 'replay'} --config {shlex.quote(str(run.path / CONFIG_FILE))}"


def extract(run: Run, basis: Basis) -> str:
    """Return the command that repeats a run's extraction, without --name and changed settings."""
    settings = flat(run.settings)
    words = [f"probe extract --config {shlex.quote(str(run.path / CONFIG_FILE))}"]
    # A replay defaults to the model named by its pools, an extraction to the bundled model organism.
    if settings.get("model.name") is None and run.config.get("model") not in (None, "organism"):
        words.append(f"--model {shlex.quote(run.config['model'])}")
    if settings.get("intervention.v_hack") is not None:
        words.append("--set intervention.v_hack=none")
    return " ".join(words if basis == "svd" else [*words, f"--basis {basis}"])


def other_pairs(analysis: Analysis) -> str:
    """Return commands that take other pairs: from a pool that answers DRAFTED prompts both ways, else from a file."""
    run, extraction = analysis.records, (analysis.records.settings.get("intervention") or {}).get("extraction") or {}
    sides: dict[tuple[str, str, bool], set[bool]] = defaultdict(set)
    for sample in analysis.sure:
        if (answered := side(sample.hacked, sample.gt_pass)) is not None:
            sides[sample.src_pool, sample.problem_id, sample.hint].add(answered)
    both = Counter(pool for (pool, *_), answers in sides.items() if len(answers) == 2)
    pool = next((pool for pool in analysis.pools if pool.path is not None and both[pool.name] >= DRAFTED), None)
    if pool is None or run.config.get("circular") or extraction.get("leave_out"):
        return f"{extract(run, analysis.basis)} --pairs FILE.jsonl --name OTHER"
    changes = [f"intervention.extraction.pairs={out_of(run.path) / 'pairs' / DRAFT}.jsonl"]
    if flat(run.settings).get("intervention.v_hack") is not None:
        changes.append("intervention.v_hack=none")
    settings = " ".join(f"--set {shlex.quote(change)}" for change in changes)
    return f"probe pool draft {shlex.quote(pool.reference)} --name {DRAFT}\n{repeat(run)} {settings} --name {DRAFT}"


def direction(run: Run, basis: Basis) -> str:
    """Return the command that creates a run's direction as a file by extraction, or shows the file given to the run."""
    v_hack = flat(run.settings).get("intervention.v_hack")
    if v_hack is not None:
        return f"probe show {shlex.quote(v_hack)}"
    return f"{extract(run, basis)} --name {shlex.quote(run.path.resolve().name)}"


def generate(pool: PoolFacts, name: str, *, steps: int | None = None, group: int | None = None) -> str | None:
    """Return the command that samples a pool's policy again; None if no command made the pool.

    Args:
        steps, group: groups, and rollouts per problem; default: the pool's.
    """
    if pool.recipe is None:
        return None
    sizes = {"--steps": steps or pool.said("plan.steps"), "--group": group or pool.said("plan.group")}
    options = [f"{flag} {number}" for flag, number in sizes.items() if number is not None]
    return " ".join(filter(None, ["probe pool generate", pool.recipe, *options, f"--name {shlex.quote(name)}"]))


def replay_of(analysis: Analysis, names: Sequence[str], *, match: str | None = None, name: str = "again") -> str:
    """Return the command that replays all groups of other pools with the run's settings."""
    options = ["--replay-dirs", shlex.quote(",".join(names)), *(["--match", match] if match else [])]
    if analysis.records.settings.get("steps") is not None:
        options.append("--set steps=none")
    return " ".join([repeat(analysis.records), *options, "--name", name])


def _broken(part: str, analysis: Analysis) -> Reason:
    pools = analysis.pools
    trained = f"{part}, trained"
    if analysis.trains and trained in ADVICE:
        return trained, {}
    match part:
        case "grader canaries":
            unsafe = [pool for pool in pools if pool.said("grader.isolation") == UNSAFE]
            names = [pool.again if pool in unsafe else pool.reference for pool in pools]
            regrades = "\n".join(map(regrade_command, unsafe))
            return part, {"regrades": regrades, "replay_regraded": replay_of(analysis, names)}
        case "regrade agreement":
            names = [pool.reference if pool.regrade is None else pool.regrade.name for pool in pools]
            return part, {"replay_regraded": replay_of(analysis, names)}
        case "template tails":
            return part, _samples(analysis, {pool.name: f"{pool.name}-again" for pool in pools})
        case "contributions add up":
            dtype = HIGHER.get((analysis.records.settings.get("model") or {}).get("dtype", "float32"))
            return (part, {"dtype": dtype}) if dtype else (f"{part}, float64", {})
    return part, {}


def _samples(analysis: Analysis, names: Mapping[str, str], **sizes: int | None) -> dict[str, Any]:
    """Return the commands that sample the run's pools again and replay them; None if a pool cannot be sampled."""
    commands = [generate(pool, names[pool.name], **sizes) for pool in analysis.pools]
    if not commands or None in commands:
        return {"samples": None, "replay_samples": None}
    return {"samples": "\n".join(map(str, commands)), "replay_samples": replay_of(analysis, [*names.values()])}


def _more_groups(reason: str, analysis: Analysis, steps: int, **facts: Any) -> Reason:
    """Advise the same number of groups in every pool, since a replay uses the problems that its pools share.

    If the environment has fewer problems, advise more rollouts of each.
    """
    most = min(filter(None, map(num_problems, analysis.pools)), default=steps)
    groups = [group for pool in analysis.pools if (group := pool.said("plan.group")) is not None]
    group, limit = None, ""
    if not analysis.pools or any(pool.recipe is None for pool in analysis.pools):
        held = min((pool.said("counts.steps") or 0 for pool in analysis.pools), default=0)
        limit = f": log {steps} groups of different prompts" + (f" ({held} in the log)" if held else "")
        if analysis.records.settings.get("steps") is not None and held > analysis.num_steps:
            limit = f": the log holds {held} groups, of which {analysis.num_steps} were replayed"
            everything = f"{repeat(analysis.records)} --set steps=none --name again"
            return reason, {"steps": steps, "limit": limit, "samples": everything, "replay_samples": "", **facts}
    elif steps > most:
        group = MORE_ROLLOUTS * max(groups) if groups else None
        limit = f"; the environment has {most}: all of them, and {MORE_ROLLOUTS} times as many rollouts of each"
    size = f"{min(steps, most)}-{group}" if group else f"{min(steps, most)}"
    names = {pool.name: f"{pool.name}-{size}" for pool in analysis.pools}
    commands = _samples(analysis, names, steps=min(steps, most), group=group)
    return reason, {"steps": steps, "limit": limit, **commands, **facts}


def _more_rollouts(reason: str, analysis: Analysis, pools: Sequence[PoolFacts]) -> Reason:
    """Advise more rollouts of each prompt, in the first pool that can be sampled again."""
    pool = next((pool for pool in pools if pool.recipe is not None and pool.said("plan.group") is not None), None)
    if pool is None:
        return reason, {"samples": None, "more": f"log {MORE_ROLLOUTS} times as many rollouts of every prompt"}
    so_far = pool.said("plan.group")
    group = MORE_ROLLOUTS * so_far
    more = f"{group} rollouts of every prompt, {so_far} so far"
    return reason, {"samples": generate(pool, f"{pool.name}-{group}", group=group), "more": more}


def _skip(analysis: Analysis, findings: Sequence[Finding]) -> Reason:
    if any(finding.says is Answer.TOO_LITTLE for finding in findings):
        return _more_directions(analysis)
    share = analysis.get("shares", "pull")
    assert share is not None  # this reason implies a share
    if not away(findings[0]):
        return "not hack-ward", {"ceiling": share.parts["ceiling"]}
    if analysis.unlabelled:
        return "away, unlabelled", {}
    benign, advantage = analysis.get("shares", "benign"), {}
    for hacked in (True, False):
        of_side = [sample.advantage for sample in analysis.sure if bool(sample.hacked) == hacked]
        rewards = [sample.reward for sample in analysis.sure if bool(sample.hacked) == hacked]
        advantage[hacked] = (sum(of_side) / len(of_side), sum(rewards) / len(rewards)) if of_side else (0.0, 0.0)
    if advantage[True][0] <= advantage[False][0]:
        return "away, unpaid", {"hacks": advantage[True][1], "others": advantage[False][1]}
    pulls = f"pull {benign.value:.2f} without the hacks" if benign and benign.value is not None else "with the base"
    return _halfway("away", analysis, benign=pulls)


def _generic(analysis: Analysis, findings: Sequence[Finding]) -> Reason:
    if all(finding.says is Answer.YES for finding in findings if finding.name != "removable"):
        return "off v_hack", {}
    contrast, pools = analysis.get("shares", "contrast"), analysis.pools
    inverted = contrast is not None and contrast.high < 0
    if not inverted or any(pool.regrade or pool.said("regraded_from") for pool in pools):
        return "not the hacks", {}
    pool = next((pool for pool in pools if pool.has_mode), None)
    return ("inverted", {"regrade": regrade_command(pool)}) if pool else ("inverted, of a log", {})


def _halfway(reason: str, analysis: Analysis, **facts: Any) -> Reason:
    """Sample a policy with a hack rate near one half, replay it at its weights, and measure the cost from there.

    If the pools come from the base and a hacking adapter, a scaled adapter gives that policy; else a training makes it.
    """
    pools, run = analysis.pools, analysis.records
    made = [pool for pool in pools if pool.recipe is not None and pool.env and pool.said("plan.split") == "train"]
    model = run.config.get("model")
    made.sort(key=lambda pool: (pool.policy[0] != model, not pool.hint))  # another model may be the hacking policy
    pool = next(iter(made), None)
    if pool is None or len(made) < len(pools) or flat(run.settings).get("intervention.v_hack") is not None:
        return reason, {"halfway": LOG_HALFWAY, "halves": None, **facts}
    rollouts_of = Counter(sample.src_pool for sample in analysis.sure)
    hacks = Counter(sample.src_pool for sample in analysis.sure if sample.hacked)
    teacher = max(pools, key=lambda one: hacks[one.name])
    teaches = hacks[teacher.name] > TEACHES * rollouts_of[teacher.name]
    adapter = teacher.policy[1] if teaches else None
    if adapter == "teacher" and {one.policy for one in pools} == {("organism", None), ("organism", adapter)}:
        replay = replay_of(analysis, [MIXED], match="problem", name=MIXED)
        halves = " ".join([replay, *as_sampled(MIXED)])
        return reason, {"halfway": HALFWAY_ROLLOUTS + REPLAY_MIXED, "halves": halves, **facts}
    if adapter is not None and (teacher.policy[0], None) in {one.policy for one in pools}:
        halfway, how, rollouts, prompts = f"{adapter}:{SCALE}", SCALE_HALFWAY, SCALED_ROLLOUTS, SCALED_PROMPTS
    else:
        halfway, how, rollouts, prompts = None, TRAIN_HALFWAY, ROLLOUTS, PROMPTS
    # The advice after an earlier advised checkpoint continues from it, under new names.
    started = flat(run.settings).get("model.adapter") if halfway is None else None
    name, natural = (f"{run.path.name}-further", f"{run.path.name}-again") if started else (HALFWAY, NATURAL)
    weights = halfway or str(out_of(run.path) / "runs" / name / "adapter")
    usual, settings, base = configure("train", preset="fast"), "", pool.said("policy.base_model")
    lessons = teacher.reference if teaches else usual.rollouts.teacher.pool
    has_teacher = halfway is None and (teaches or base == usual.model.name)  # the preset's adapter hacks
    for key, value, default in (
        ("model.name", base, usual.model.name),
        ("model.adapter", halfway or started, None),
        ("rollouts.env", pool.env, usual.rollouts.env),
        ("rollouts.mode", pool.said("plan.mode"), usual.rollouts.mode),
        ("rollouts.teacher.pool", lessons, usual.rollouts.teacher.pool)
        if has_teacher
        else ("rollouts.teacher", None, usual.rollouts.teacher),
    ):
        if value != default:
            settings += f" --set {shlex.quote(f'{key}={setting_text(value)}')}"
    sampled = replace(pool, manifest={**pool.manifest, "policy": {**pool.manifest["policy"], "adapter": weights}})
    sample = generate(
        sampled,
        name,
        steps=min(max(pool.said("plan.steps"), prompts), num_problems(pool) or prompts),
        group=rollouts,
    )
    replay = replay_of(analysis, [name], match="problem", name=natural)
    replay += f" --per-pool {rollouts} --set {shlex.quote(f'model.adapter={weights}')}"
    train = f"probe train --preset fast --arm vanilla{settings}"
    if halfway is None:
        commands = [f"{train} --steps 24 --name {name}", sample, replay]
    else:
        # Two evaluations in 8 steps, on half of the problems: the time share of the preset's 64 steps.
        train += " --set evaluation.num_problems=32"
        commands = [sample, replay, f"{train} --steps 8 --name timed"]
    if analysis.basis == "svd":  # the basis that can be trained
        commands.append(f"probe spec plan {natural}")
    return reason, {"halfway": HALFWAY_ROLLOUTS + how, "halves": "\n".join(filter(None, commands)), **facts}


def _more_directions(analysis: Analysis) -> Reason:
    """Double the directions from the same pairs; advise other pairs if these give no more, or came with them."""
    settings = flat(analysis.records.settings)
    if settings.get("intervention.v_hack") is not None:
        return "more directions, of a file", {}
    now = settings.get(K, configure("replay").intervention.extraction.k)
    k = 2 * now if analysis.reproduced is None else min(2 * now, analysis.reproduced.pairs.most_directions)
    return "more directions" if k > now else "more directions, all taken", {"k": k}


def _confounded(analysis: Analysis) -> Reason:
    """Advise a pool in which the other side answers the same prompts, if at hand; else more rollouts per prompt."""
    pools = analysis.pools
    hinted = [pool for pool in pools if pool.hint] or pools
    apart = separated(analysis)
    if hinted and {one.name for one in apart} <= {"hint"}:
        pool = hinted[0]
        if other := partner(analysis.records, pool, {each.name for each in pools}):
            replay = replay_of(analysis, [pool.reference, other.reference], match="prompt", name="same-prompt")
            return "same prompts", {"partner": other.name, "pool": pool.name, "replay_partner": replay}
    group = max(Counter(sample.step for sample in analysis.samples).values(), default=0)
    if not apart and group < ROLLOUTS:
        return _more_rollouts("both sides", analysis, hinted[:1])
    names = ", ".join(SCORE_NAMES[one.name] for one in apart) or "their rewards"
    adapter = flat(analysis.records.settings).get("model.adapter")
    if adapter is not None and {pool.policy[1] for pool in pools} == {adapter}:
        return "apart by nature", {"scores": names}
    reason, facts = _halfway("halfway", analysis, scores=names)
    return reason if facts["halves"] else "apart, of a log", facts


def _underpowered(analysis: Analysis, findings: Sequence[Finding]) -> Reason:
    """Return what would decide the first open question."""
    cause = unread(analysis)
    if cause is not None:
        return _readable(cause[0], analysis)
    if hacks_missing(analysis):
        return _halfway("halfway", analysis)
    finding = next((finding for finding in findings if finding.says is not Answer.YES), None)
    if finding is None:
        return "own hacks", {}
    pool = {"pool": shlex.quote(analysis.pools[0].reference) if analysis.pools else "POOL"}
    if finding.name == "about" and analysis.unlabelled:
        return "labels", pool
    if finding.name == "about" and (unclear := overlap_unclear(analysis)):
        return _overlap_unclear(unclear, analysis)
    for share in filter(None, (analysis.get("shares", name) for name in RESTS_ON.get(finding.name, ()))):
        if share.value is not None:
            if share.name in DECIDED_BY and decided(share) in (Answer.UNCLEAR, Answer.LIKELY):
                return _undecided(share, analysis)
        elif share.n:
            return _undefined(share, analysis)
        elif share.name == "contrast":
            return "unpaid", {}
        else:
            silent = any(sample.hacked is None for sample in analysis.samples)
            return ("labels", pool) if silent else _more_rollouts("benign", analysis, analysis.pools)
    missing, _ = price_of(analysis)
    if finding.says is not Answer.UNMEASURED or not missing:
        return _forecast_open(analysis)
    match missing:
        case "right":
            return missing, pool
        case "honest":
            return _more_rollouts(missing, analysis, analysis.pools)
    return _more_groups(missing, analysis, 4 * len({step.problem_id for step in analysis.steps}))


def _overlap_unclear(unclear: Sequence[Estimate], analysis: Analysis) -> Reason:
    """Advise prompts that would settle the overlap, or rollouts that overlap if no number of prompts would."""
    needed_prompts = [one.parts["prompts_needed"] for one in unclear]
    names, so_far = ", ".join(SCORE_NAMES[one.name] for one in unclear), unclear[0].n
    if None in needed_prompts:  # groups of two, or a ratio at the bound
        group = max(Counter(sample.step for sample in analysis.samples).values())
        more = group < ROLLOUTS
        return _more_rollouts("both sides", analysis, analysis.pools) if more else _halfway("halfway", analysis)
    prompts = max(*filter(None, needed_prompts), so_far + 1)
    # Only some prompts have rewarded answers of both kinds.
    steps = math.ceil(prompts * len({step.problem_id for step in analysis.steps}) / so_far)
    return _more_groups("overlap", analysis, steps, scores=names, prompts=prompts, so_far=so_far)


def _undefined(share: Estimate, analysis: Analysis) -> Reason:
    """Advise prompts, or pairs that would separate a share's held-out reference from 0."""
    if share.why == TOO_FEW_PROMPTS:
        # Scaled so that LEAST_PROMPTS of them count: some prompts lack what a share needs.
        most = len({step.problem_id for step in analysis.steps})
        return _more_groups("few prompts", analysis, math.ceil(LEAST_PROMPTS * most / share.n))
    pairs = pairs_to_reach(share)
    facts = {"share": SHARE_WORDS.get(share.name, share.name), "held_out": share.parts["num_held_out"], "pairs": pairs}
    return "no reach" if pairs is None else "pairs to reach", facts


def _readable(cause: str, analysis: Analysis) -> Reason:
    """Return the advice for the reason why there was no result along v_hack."""
    match cause:
        case "updates":
            return _more_rollouts("updates", analysis, analysis.pools)
        case "loss":
            usual, changes = flat(asdict(configure("replay").objective)), []
            for key, value in flat(analysis.records.settings.get("objective") or {}).items():
                if key in usual and value != usual[key]:
                    changes.append(f" --set {shlex.quote(f'objective.{key}={setting_text(usual[key])}')}")
            return "loss", {"plain_objective": "".join(changes)}
        case "prompts" | "reach":
            share = analysis.get("shares", "pull")
            assert share is not None  # this reason implies a share
            return _undefined(share, analysis)
    return cause, {}


def _undecided(share: Estimate, analysis: Analysis) -> Reason:
    """Advise prompts if they dominate the interval's width, else pairs as well."""
    plan = needed(share, *DECIDED_BY[share.name])
    if plan is None:
        return "undecided", {"share": SHARE_WORDS.get(share.name, share.name)}
    facts = {
        "share": SHARE_WORDS.get(share.name, share.name),
        "prompts": plan.prompts,
        "so_far": share.n,
        "factor": plan.pairs,
        "pairs": math.ceil(plan.pairs * share.parts["num_held_out"]),
        "held_out": share.parts["num_held_out"],
    }
    if plan.pairs > 1:
        return "pairs and prompts" if plan.prompts > share.n else "pairs", facts
    # Only some prompts have what the share needs: both labels, or rewards that differ.
    steps = math.ceil(plan.prompts * len({step.problem_id for step in analysis.steps}) / share.n)
    return _more_groups("prompts", analysis, steps, **facts)


def _forecast_open(analysis: Analysis) -> Reason:
    """Return the cause of the open last question: no gain, too few directions, chance, or a wide interval."""
    row = analysis.get("removed", "removed/margin")
    steps = 4 * len({step.problem_id for step in analysis.steps})
    if row is None or row.value is None:
        return _more_groups("no progress", analysis, steps)
    if row.value < SHOWN_REMOVED:
        return _more_directions(analysis)
    share = analysis.get("shares", "pull")
    held_out = share.parts["num_held_out"] if share is not None else 0
    facts = {"pairs": 4 * held_out, "held_out": held_out, "removed": f"{row:.0%}"}
    if row.p is None or row.p >= ALPHA:
        return "permuted take as much", facts
    if not own_hacks_agree(analysis):
        return "own hacks keep their gain", facts
    if row.parts["from_prompts"] > 0.5:
        return _more_groups("wide by prompts", analysis, steps, **facts)
    return "wide by pairs", facts


def _go(analysis: Analysis) -> Reason:
    run = analysis.records
    sizes = ", ".join(f"{seeds} seeds {mde(SD, seeds):.2f}" for seeds in SEEDS)
    name = run.path.name if run.path.resolve().parent.name == "runs" else str(run.path)
    facts = {"sd": SD, "sizes": sizes, "basis": analysis.basis, "direction": direction(run, analysis.basis)}
    if analysis.basis != "svd":
        return "train elsewhere, other basis", facts
    if analysis.pools and not any(pool.env for pool in analysis.pools):
        return "train elsewhere", facts
    return "train", {**facts, "run": shlex.quote(name)}
