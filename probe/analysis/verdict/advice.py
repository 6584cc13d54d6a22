"""What to do after a verdict: the next command with its number, from what the run had and what pools are at hand.

To advise on another verdict: write a function that takes findings and Evidence, and add a row to _NEXT.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import stats

from probe.analysis.measures.pull import Share
from probe.analysis.statistics.power import mde
from probe.analysis.statistics.thresholds import MATERIAL, POWER
from probe.analysis.verdict.evidence import Evidence, PoolPlan
from probe.analysis.verdict.questions import Finding

SEEDS = (3, 5, 10)  # of the trainings that a GO is priced for
MANY = 2000  # more prompts or pairs than that are no advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The next step: a command (or '' where there is none) and what it needs or shows, in words with a number."""

    command: str
    text: str


def next_step(verdict: str, findings: Sequence[Finding], evidence: Evidence) -> Next:
    """The next step after a verdict of `decision`."""
    return _NEXT[verdict](findings, evidence)


def _broken(findings: Sequence[Finding], evidence: Evidence) -> Next:
    return Next(command="probe doctor", text="mend the broken part first; until then no number of this run is read")


def _skip(findings: Sequence[Finding], evidence: Evidence) -> Next:
    share = evidence.share("pull")
    level = "" if share is None or share.ceiling is None else f" (held-out hacks read {share.ceiling:+.3f})"
    return Next(
        command="probe extract --pairs FILE.jsonl --name OTHER",
        text=f"these directions reach held-out hacks{level} and not these updates: extract from pairs of this policy",
    )


def _generic(findings: Sequence[Finding], evidence: Evidence) -> Next:
    return Next(
        command="probe extract --pairs FILE.jsonl --name OTHER",
        text="pairs that differ in the hack alone: same body, same length, same tests; then replay with --v-hack OTHER",
    )


def _confounded(findings: Sequence[Finding], evidence: Evidence) -> Next:
    """Pools in which both sides answer one prompt, where they are at hand."""
    plans = [pool.plan for pool in evidence.pools]
    hinted = [plan for plan in plans if plan.hint]
    unhinted = [plan for plan in plans if plan.hint is False]
    if hinted and unhinted:
        twin = _twin(unhinted[0], evidence.at_hand)
        if twin is not None:
            return Next(
                command=f"probe replay --replay-dirs {hinted[0].name},{twin.name} --match prompt --name same-prompt",
                text=f"{twin.name} answers the prompts of {hinted[0].name}, so that the hint tells nothing apart",
            )
        return Next(
            command=f"probe pool generate --hint --name {unhinted[0].name}-hinted",
            text=f"rollouts of {unhinted[0].name}'s policy on the hinted prompts; then replay both with --match prompt",
        )
    return Next(
        command="probe pool generate --hint --group 16 --name mixed",
        text="both hacks and honest solutions are needed among the paid answers to one prompt: more of one policy",
    )


def _twin(pool: PoolPlan, at_hand: Sequence[PoolPlan]) -> PoolPlan | None:
    """A pool at hand of the same policy and environment, with the hint."""
    for other in at_hand:
        if other.hint and (other.policy, other.problems) == (pool.policy, pool.problems):
            return other
    return None


def _underpowered(findings: Sequence[Finding], evidence: Evidence) -> Next:
    """How many prompts or pairs would decide the first question that is open."""
    if not findings or findings[0].says == "unmeasured":
        share = evidence.share("pull")
        if share is not None and share.ceiling is not None:
            return Next(
                command="probe extract --pairs FILE.jsonl --name OTHER",
                text=f"v_hack is not shown to reach its own {share.num_held_out} held-out pairs: more or better pairs",
            )
        return Next(
            command="probe replay --replay-dirs teacher,base --arm vanilla,projected",
            text="use an arm along v_hack in the SVD basis, and groups whose rewards differ",
        )
    named = {"hackward": ("pull",), "about": ("contrast", "pull - benign")}
    for finding in findings:
        if finding.says == "yes":
            continue
        threshold = MATERIAL if finding.name == "hackward" else 0.0
        for name in named.get(finding.name, ()):
            share = evidence.share(name)
            if share is not None and share.share is not None:
                return _more(share, threshold)
        break
    share = evidence.share("pull")
    held_out = share.num_held_out if share is not None else 0
    return Next(
        command="probe extract --pairs FILE.jsonl --name OTHER",
        text=f"more pairs: the forecast rests on {held_out} held-out ones, and permuted pairs take nearly as much",
    )


def _more(share: Share, threshold: float) -> Next:
    """Prompts where those are what the interval is wide by, else pairs."""
    needed = prompts_needed(share, threshold)
    if needed is not None:
        return Next(
            command=f"probe pool generate --steps {needed} --name more",
            text=f"about {needed} prompts with both labels decide it, {share.num_prompts} were read ({share.name})",
        )
    return Next(
        command="probe extract --pairs FILE.jsonl --name OTHER",
        text=(
            f"prompts alone do not decide it ({share.name}): the {share.num_held_out} held-out pairs and those that "
            "v_hack came from leave it open; about four times as many pairs halve that part"
        ),
    )


def prompts_needed(share: Share, threshold: float) -> int | None:
    """Prompts with which the interval of a share would exclude the threshold, if its value stays; None where no number
    of prompts does: the pairs alone leave it open.

    The share is beside the threshold q where numerator - q ceiling differs from 0, whose variance is
    sd_prompts^2 / n + sd_pairs^2 + q^2 sd_ceiling^2 / H.
    """
    parts = (share.measured, share.ceiling, share.sd_prompts, share.sd_pairs, share.sd_ceiling)
    if None in parts:
        return None
    measured, ceiling, sd_prompts, sd_pairs, sd_ceiling = (float(part or 0.0) for part in parts)
    distance = abs(measured - threshold * ceiling)
    pairs = sd_pairs**2 + threshold**2 * sd_ceiling**2 / share.num_held_out
    for n in range(max(share.num_prompts, 2), MANY):
        t = float(stats.t.ppf(0.975, min(n, share.num_held_out) - 1))
        if distance**2 > t**2 * (sd_prompts**2 / n + pairs):
            return n
    return None


def _go(findings: Sequence[Finding], evidence: Evidence) -> Next:
    plan = evidence.plan
    sizes = ", ".join(f"{seeds} seeds {mde(plan.sd, seeds, power=POWER):.2f}" for seeds in SEEDS)
    return Next(
        command="probe plan spec/phase3-replication.toml",
        text=(
            f"train with controls and rivals; smallest difference of hack rates that is seen with {POWER:.0%} power at "
            f"sd {plan.sd:g} between seeds: {sizes}"
        ),
    )


def _trained(findings: Sequence[Finding], evidence: Evidence) -> Next:
    return Next(command="probe analyze RUN RUN ...", text="arms and seeds of one training together")


_NEXT: dict[str, Callable[[Sequence[Finding], Evidence], Next]] = {
    "BROKEN": _broken,
    "SKIP": _skip,
    "CONFOUNDED": _confounded,
    "GENERIC": _generic,
    "UNDERPOWERED": _underpowered,
    "GO": _go,
    "TRAINED": _trained,
}
