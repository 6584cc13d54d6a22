"""Planted worlds: simulated gradients written in the format of a real run, which tests read by the real readers.

    make_run(tmp_path / "runs" / "run", World(hacks_point_at=None))

In every world a gradient has a decaying spectrum and unit norm; a group is eight samples of one prompt: four hacks and
two honest solutions that are paid, two failures that are not. What differs is where the hacks point, what the pairs
point at, and what else tells hacks apart.
"""

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from made_records import sample_record, step_record
from torch import Tensor

from extraction.directions import Directions, PairGradients, extract_directions, haar_directions
from probe.records.records import ADVANTAGE_KEYS, RUN_SCHEMA
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, file_hashes, write_samples, write_steps
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import NO_VARIANCE
from probe.settings.arms import ARMS
from probe.settings.presets import configure
from probe.step.projection import haar_variance, project_modules, sample_cosines
from replay_pools.base.files import write_json, write_sealed
from replay_pools.pool import BUILTIN, open_pool

SIZES = {"layers.0.q": 24, "layers.0.down": 40, "layers.1.q": 24}
HACKED = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
PAID = np.array([1, 1, 1, 1, 1, 1, 0, 0], dtype=bool)


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in it."""

    pairs_point_at: str | None = "hack"  # the axis that tells the pairs' hacks from their clean completions
    hacks_point_at: str | None = "hack"  # the axis of hacked samples' gradients
    gain: float = 0.0  # of hacks and held-out pairs along an axis on which other pairs differ by their prompts at most
    gain_in_prompts: bool = True  # whether they do
    amounts: tuple[float, float, float] = (1.0, 0.0, 0.0)  # along it: of hacks, honest solutions, failures
    off_pairs: float = 0.0  # of hacks along an axis of which no pair knows
    told_by: Literal["hint", "length"] | None = None  # what determines which sample is a hack
    shuffled_labels: bool = False  # `hacked` of the batch says nothing
    inverted_labels: bool = False
    honest_are_paid: bool = True
    hacks_are_paid: bool = True
    one_unlabelled: bool = False  # of every group: a failure
    right_is_known: bool = True
    hacking_prompts: int | None = None  # of this number alone; elsewhere what would hack is honest
    num_own: int = 0  # last steps, whose hacks are of the others' pool too, and point nowhere
    num_texts: int | None = None  # different pairs of completions, pasted under num_pairs prompts
    rewards_differ: bool = True
    twin_arms: bool = False  # the control arm measures v_hack
    idle_gate: bool = False  # the projecting arm leaves the gradient alone
    other_pairs: bool = False  # the stored inner products are of pairs that v_hack does not come from
    trains: bool = False
    arms: tuple[str, ...] = ("vanilla", "projected", "random")
    pools: tuple[str, ...] = ("teacher", "base-hinted")  # built-in ones or paths, of the hacks and of the others
    strength: float = 1.0
    num_pairs: int = 27
    num_held_out: int = 12
    num_steps: int = 24  # one prompt each
    steps: int | None = None  # the setting

    @property
    def rewards(self) -> np.ndarray:
        """(8,) of a group."""
        paid = (PAID if self.honest_are_paid else HACKED) & self.rewards_differ & (self.hacks_are_paid | ~HACKED)
        return np.where(paid, 3.5, 0.5)


@cache
def axis(name: str, module: str, r: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name + module)))
    return torch.nn.functional.normalize(torch.randn(r, generator=generator), dim=0)


def noise(rng: np.random.Generator, rows: int) -> dict[str, Tensor]:
    scale = {m: np.arange(1, r + 1) ** -1.0 for m, r in SIZES.items()}
    return {m: torch.tensor(rng.normal(size=(rows, r)) * scale[m]).float() for m, r in SIZES.items()}


def along(name: str | None, amount: np.ndarray) -> dict[str, Tensor]:
    """Gradients of the given size along a named axis, (rows, r) a module."""
    size = torch.tensor(amount, dtype=torch.float32)[:, None] * (name is not None)
    return {m: size * axis(name or "", m, r) for m, r in SIZES.items()}


def plus(*parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {m: sum((part[m] for part in parts[1:]), parts[0][m]) for m in SIZES}


def unit_norm(*parts: dict[str, Tensor]) -> dict[str, Tensor]:
    total = plus(*parts)
    norm = torch.stack([g.square().sum(1) for g in total.values()]).sum(0).sqrt()[:, None]
    return {m: g / norm for m, g in total.items()}


def make_pairs(world: World, rng: np.random.Generator) -> PairGradients:
    """The gradients of the world's pairs; the last of them are held out."""
    count = world.num_pairs
    prompt, held_out = noise(rng, count), np.arange(count) >= count - world.num_held_out
    texts = np.arange(count) % (world.num_texts or count)
    if world.gain and world.gain_in_prompts:
        prompt = plus(prompt, along("gain", world.gain * rng.normal(size=count)))
    sides = []
    # Halves on either side leave both norms equal, so that what a prompt adds cancels in the difference.
    for amount in (0.5, -0.5) if world.gain else (1, 0):
        share = np.where(held_out, 0.2, 1.0) if world.gain else np.ones(count)
        tell = along(world.pairs_point_at, world.strength * amount * share)
        said = {m: part[texts] for m, part in noise(rng, count).items()}
        sides.append(unit_norm(prompt, said, tell, along("gain", world.gain * amount * held_out)))
    return PairGradients(
        hack=sides[0], clean=sides[1], held_out=torch.tensor(held_out), metadata={"texts": texts.tolist()}
    )


def make_run(directory: Path, world: World, seed: int = 0) -> Path:
    """Write the run that the loop would have written: config, gram, samples, steps, manifest; `directory` is
    OUT/runs/NAME.
    """
    rng = np.random.default_rng(seed)
    pairs = make_pairs(world, rng)
    k = min(2, world.num_pairs - world.num_held_out)
    v_hack = extract_directions(pairs.differences(), k=k)
    stored = make_pairs(world, np.random.default_rng(1000 + seed)) if world.other_pairs else pairs
    # The gradients of a world are the same in every basis.
    bases = {ARMS[arm].basis for arm in world.arms}
    recorders = [GramRecorder(directory, stored, v_hack, basis=basis) for basis in bases]
    haar = haar_directions(v_hack, seed=1)
    control = v_hack if world.twin_arms else haar
    arms = {arm: v_hack if ARMS[arm].directions == "v_hack" else control for arm in world.arms}
    drawn = [draw_step(world, step, rng) for step in range(world.num_steps)]
    for step, one in enumerate(drawn):
        for recorder in recorders:
            recorder.record(step, one["unit"], {"default": torch.tensor(1 / one["lengths"] / 8)})
    # All steps at once, and once for arms with the same directions.
    measures = {id(own): measure(drawn, own) for own in arms.values()}
    rows = [
        [records(step, arm, measures[id(own)], one["nll"][i], one, world) for i, (arm, own) in enumerate(arms.items())]
        for step, one in enumerate(drawn)
    ]
    for step, by_arm in enumerate(rows):
        write_samples(directory, step, [sample for samples, _ in by_arm for sample in samples])
    write_steps(directory, [row for by_arm in rows for _, row in by_arm])
    # A path takes the place of BUILTIN.
    pools = [open_pool(BUILTIN / name).identity() for name in world.pools]
    options = {"source.replay_dirs": world.pools, "intervention.arms": world.arms, "steps": world.steps}
    options["intervention.extraction.k"] = k
    if world.trains:
        settings = configure("train", options={"intervention.arms": world.arms[:1]})
    else:
        settings = configure("replay", options=options)
    config = {"settings": asdict(settings), "pools": pools, "model": "organism", "base_weights_sha256": ""}
    write_json(directory / CONFIG_FILE, config)
    files = file_hashes(directory)
    write_sealed(directory / MANIFEST_FILE, {"schema": RUN_SCHEMA, "additivity": {"tolerance": 1e-4}, "files": files})
    return directory


def draw_step(world: World, step: int, rng: np.random.Generator) -> dict[str, Any]:
    """The gradients, lengths, labels and likelihoods of a group, and the weights of its samples in the update."""
    hacked = HACKED & (world.hacking_prompts is None or step < world.hacking_prompts)
    amounts = np.where(hacked != HACKED, world.amounts[1], np.repeat(world.amounts, (4, 2, 2)))
    amounts = np.where(HACKED & (step >= world.num_steps - world.num_own), 0.0, amounts)
    lengths = rng.integers(40, 60, 8)
    if world.told_by == "length":
        lengths = 50 + 40 * HACKED
    unit = unit_norm(
        noise(rng, 8),
        along(world.hacks_point_at, world.strength * amounts),
        along("gain", world.gain * HACKED),
        along("off pairs", world.off_pairs * HACKED),
    )
    labels = (hacked != world.inverted_labels).tolist()
    if world.one_unlabelled:
        labels[-1] = None
    if world.shuffled_labels:
        labels = rng.permutation(HACKED[:6]).tolist() + [False] * 2
    scale = torch.tensor((world.rewards - world.rewards.mean()) / lengths / 8)
    nll = rng.normal(0.5, 0.1, (len(world.arms), 8))
    return {"unit": unit, "lengths": lengths, "labels": labels, "scale": scale, "nll": nll}


def measure(drawn: list[dict[str, Any]], own: Directions) -> dict[str, Any]:
    """Cosines of all samples (steps, 8) and of all updates, computed by `probe.step.projection` as the step does."""
    samples = {m: torch.cat([one["unit"][m] for one in drawn]) for m in SIZES}
    totals = {m: torch.stack([one["scale"].float() @ one["unit"][m] for one in drawn]) for m in SIZES}
    return {
        "cos": sample_cosines(samples, own.vectors).cos.view(-1, 8),
        "haar_sd": haar_variance(samples, own.vectors).sqrt().view(-1, 8),
        "gated": project_modules(totals, own.vectors, side="one_sided"),
        "haar_sd_of_update": haar_variance(totals, own.vectors).sqrt(),
    }


def records(step, arm, measured, nll, drawn, world: World):
    """The sample records and the step record of one arm."""
    lengths, labels, scale, rewards = drawn["lengths"], drawn["labels"], drawn["scale"], world.rewards
    advantages = rewards - rewards.mean()
    reason = None if advantages.any() else NO_VARIANCE
    cos, haar_sd, gated = measured["cos"][step], measured["haar_sd"][step], measured["gated"]
    projects = ARMS[arm].projects and not (world.idle_gate and arm == "projected")

    def cosine(value) -> float | None:
        return None if reason else float(value[step])

    after = gated.after if projects else gated.before
    measures = {"mean_cos_in": cosine(gated.before.mean_cos), "mean_cos_out": cosine(after.mean_cos)}
    measures["frac_fired"] = float(gated.frac_fired[step]) if projects else 0.0
    samples = [
        sample_record(
            step=step,
            sample_id=i,
            src_step=step,
            src_sample=i,
            arm=arm,
            problem_id=f"p{step}",
            prompt_sha="0" * 16,
            src_pool=Path(world.pools[0 if HACKED[i] and step < world.num_steps - world.num_own else -1]).name,
            reward=float(rewards[i]),
            hacked=labels[i],
            hint=labels[i] if world.told_by == "hint" else True,
            gt_pass=not labels[i] and bool(rewards[i] > 1) if world.right_is_known else None,
            comp_len=int(lengths[i]),
            cos_S_contrib=None if reason else float(np.sign(advantages[i]) * cos[i]),
            cos_S_nll=float(cos[i]),
            grad_norm_contrib=float(scale[i].abs()),
            advantage=float(advantages[i]),
            null_reason=reason,
            haar_sd=float(haar_sd[i]),
            nll=float(nll[i]),
            **measures,
        )  # fmt: skip
        for i in range(8)
    ]
    row = step_record(
        step=step, arm=arm, problem_id=f"p{step}", null_reason=reason, **measures,
        cos_in=cosine(gated.before.cos), cos_out=cosine(after.cos),
        hackward_frac_in=cosine(gated.before.hackward_frac), hackward_frac_out=cosine(after.hackward_frac),
        haar_sd=cosine(measured["haar_sd_of_update"]), grad_norm=float(gated.before.norm[step]),
        reward_mean=float(rewards.mean()), reward_std=float(rewards.std(ddof=1)),
        reward_spread=float(np.ptp(rewards)), advantage=dict.fromkeys(ADVANTAGE_KEYS, 1.0), loss=0.0,
        solve=float(np.mean([bool(sample.gt_pass) for sample in samples])), exec_surprisal_var=None,
        num_effective=int((advantages != 0).sum()), additivity_error=1e-6 if step == 0 else None,
        cos_update=0.1 if world.trains and reason is None else None,
    )  # fmt: skip
    return samples, row
