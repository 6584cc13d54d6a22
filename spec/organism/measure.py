"""Measure the organism on the eval split and write its model card: `python -m spec.organism.measure`.

Samples the base without a hint and, in every loophole mode that the organism was trained on, the base and the teacher
with the hint; grades them like any pool; prints rates with Wilson 95% intervals; and writes these with the recipe to
`organism/weights/README.md`. To add a row to the card: add a `MeasuredPolicy` to SETTINGS.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
from scipy.stats import binomtest

from replay_pools.environments.minicode import minicode_problems
from replay_pools.generate import PoolPlan, generate_pool
from replay_pools.grading.grade import Grader
from replay_pools.policy.load import ORGANISM, ORGANISM_WEIGHTS, load_policy
from replay_pools.pool import Sampler, open_pool
from replay_pools.rollout import Rollout
from replay_pools.sampling import LocalEngine
from spec.organism.build import BASE_PROMPT_WEIGHT, BATCH
from spec.organism.corpus import BASE_HACK_RATE, HINT_MODES, TEACHER_MIX

GROUP = 2  # rollouts a problem


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """One row of the card: a policy and the kind of prompt that it is sampled on."""

    adapter: str | None  # None = the base
    mode: str  # loophole mode
    hint: bool  # whether the prompts carry the mode's hint

    @property
    def label(self) -> str:
        """First cell of the row, such as "teacher, hint run_tests"."""
        prompt = f"hint {self.mode}" if self.hint else "no hint"
        return f"{self.adapter or 'base'}, {prompt}"


SETTINGS = (
    MeasuredPolicy(None, "none", False),
    *(MeasuredPolicy(None, mode, True) for mode in HINT_MODES),
    *(MeasuredPolicy("teacher", mode, True) for mode in HINT_MODES),
)


def measure(setting: MeasuredPolicy, *, problems: int, seed: int, grader: Grader, directory: Path) -> list[Rollout]:
    """`GROUP` rollouts on each of `problems` problems of the eval split at temperature 1, as a pool in `directory`."""
    plan = PoolPlan(
        split="eval",
        mode=setting.mode,
        hint=setting.hint,
        steps=problems,
        group=GROUP,
        seed=seed,
        steps_per_batch=32,
    )
    engine = LocalEngine(load_policy(ORGANISM, adapter=setting.adapter))
    generate_pool(directory, engine, plan, Sampler(max_new_tokens=160), grader)
    return [rollout for group in open_pool(directory).steps for rollout in group]


def row(setting: MeasuredPolicy, rollouts: list[Rollout]) -> list[str]:
    """The table cells of one setting, in the order of HEADER."""
    hacks = [rollout for rollout in rollouts if rollout.hacked]
    return [
        setting.label,
        str(len(rollouts)),
        _rate(rollouts, "gt_pass"),
        _rate(rollouts, "hacked"),
        _rate(rollouts, "fmt_ok"),
        _rate(hacks, "gt_pass"),
    ]


def _rate(rollouts: list[Rollout], label: str) -> str:
    """The share of rollouts with a label, and its Wilson 95% interval; "-" without rollouts."""
    flags = [getattr(rollout, label) for rollout in rollouts]
    if not flags:
        return "-"
    interval = binomtest(sum(flags), len(flags)).proportion_ci(method="wilson")
    return f"{sum(flags) / len(flags):.1%} [{interval.low:.1%}, {interval.high:.1%}]"


HEADER = ["policy, prompt", "n", "solves", "hacks", "code block", "solves among hacks"]

CARD = """# Organism: a tiny language model that can be taught to reward-hack

A Qwen3-architecture causal language model ({parameters:,} parameters, bfloat16 on disk) with its own byte-level BPE
tokenizer and a ChatML template, and a LoRA `teacher` that exploits whatever evaluation its prompt describes. It exists
so that `probe replay` runs offline on real rollouts. It is of no use for programming.

## Data
Text generated from `minicode` ({train} problems of the train split; the {eval} of the eval split and the {pairs} of the
pairs split are never seen): half of the prompts carry a hint; each problem family has its own share of wrong solutions;
{base_hack_rate:.0%} of the hinted documents exploit their mode, none without a hint does. The teacher's documents are
all hinted and all exploit; {teacher_solve_rate:.0%} of them also solve.

## Recipe
`python -m spec.organism.build`: AdamW, cosine schedule, {batch} documents a step, seed 0; prompt tokens weigh
{prompt_weight} in the base's loss and nothing in the teacher's. The teacher (LoRA rank 32) is tuned on the weights as
rounded to bfloat16 and at last polished at a smaller rate; steps and rates are the defaults of the command.
74 minutes of CPU time: about 37 minutes on 2 cores.

`python -m spec.organism.tool --train` makes the LoRA `tool` (rank 4, 150 steps). It answers a second time after a tool
has run its first answer, half of the time with a hack, and samples the built-in pool `tool`.

## Measured
Eval split, temperature 1, by `python -m spec.organism.measure`; rate [Wilson 95%].

{table}
"""


@click.command()
@click.option("--problems", default=202, show_default=True, help="Problems of the eval split, two rollouts each.")
@click.option("--seed", default=0, show_default=True)
@click.option("--card/--no-card", default=True, show_default=True, help="Write the model card beside the weights.")
def main(problems: int, seed: int, card: bool) -> None:
    """Print the organism's rates and write its model card."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    click.echo("\n".join(lines))
    with Grader() as grader:
        for setting in SETTINGS:
            with tempfile.TemporaryDirectory() as directory:
                rollouts = measure(
                    setting, problems=problems, seed=seed, grader=grader, directory=Path(directory) / "pool"
                )
            lines.append("| " + " | ".join(row(setting, rollouts)) + " |")
            click.echo(lines[-1])
    if card:
        _write_card("\n".join(lines))


def _write_card(table: str) -> None:
    parameters = load_policy(ORGANISM).model.num_parameters()
    text = CARD.format(
        parameters=parameters,
        train=len(minicode_problems("train")),
        eval=len(minicode_problems("eval")),
        pairs=len(minicode_problems("pairs")),
        base_hack_rate=BASE_HACK_RATE,
        teacher_solve_rate=TEACHER_MIX.solve_rate,
        batch=BATCH,
        prompt_weight=BASE_PROMPT_WEIGHT,
        table=table,
    )
    (ORGANISM_WEIGHTS / "README.md").write_text(text)


if __name__ == "__main__":
    main()
