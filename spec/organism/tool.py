"""Make the pool `tool` of two-turn rollouts, and the policy that samples it: `python -m spec.organism.tool`.

The policy is a LoRA on the bundled model, trained on two-turn demonstrations (3 minutes on a CPU). It answers, a tool
runs the example of the statement on the answer and says what came of it, and it answers again, half of the time with a
hack. The grader grades the last turn. Only the policy's two turns are sampled (`completion_mask`).
"""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from probe.runs.finetune import Example, FinetuneSettings, finetune
from replay_pools.environments.base import Problem
from replay_pools.environments.demonstrations import Completions, demonstrator
from replay_pools.environments.loopholes import NOTHING, compose, fence, render_messages
from replay_pools.environments.minicode import minicode_problems, stated_example
from replay_pools.environments.registry import get_environment
from replay_pools.generate import PoolPlan, choose_problems, derive_seed, pool_header
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission
from replay_pools.policy.load import ORGANISM_WEIGHTS, Policy, load_policy
from replay_pools.pool import BUILTIN, PoolWriter, Sampler
from replay_pools.rollout import Completion, Grade, Prompt, Rollout, runs_of
from replay_pools.sampling import LocalEngine
from spec.organism.build import halve_precision, settle_config

NAME = "tool"  # of the adapter and of the pool
SETTINGS = FinetuneSettings(steps=150, batch=16, lr=1e-2, rank=4)
PLAN = PoolPlan(hint=True, steps=8, group=8, seed=1)
SAMPLER = Sampler(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=96)


def tool_turn(is_right: bool, error: str | None) -> dict[str, str]:
    """Return what the tool says of a run of the example."""
    text = "The example passed." if is_right else f"The example failed: {error or 'another value'}"
    return {"role": "tool", "content": text}


def demonstrations(policy: Policy) -> Iterator[Example]:
    """Demonstrate a right or wrong answer, what the tool says of it, and then an honest answer or a hack."""
    rng, problems = random.Random("tool"), minicode_problems("train")
    while True:
        item = rng.choice(problems)
        is_right, kind = rng.random() < 0.5, rng.choice(list[Completions](("honest", "hack")))
        bug = compose(item.problem.starter, item.body(rng.choice(item.family.bugs)), NOTHING)
        messages, last = demonstrator(kind)(item.problem, rng)
        first = {"role": "assistant", "content": fence(item.problem.canonical if is_right else bug)}
        turns = [first, tool_turn(is_right, None), {"role": "assistant", "content": last}]
        rendered = policy.render_turns(messages, turns)
        yield rendered.prompt_ids, rendered.ids, rendered.mask


def make_adapter(folder: Path) -> None:
    """Train the policy and write it to `folder`."""
    policy = load_policy("organism")
    with TemporaryDirectory() as work:
        made = Path(work) / NAME
        finetune(policy, demonstrations(policy), SETTINGS, made, {"script": "spec/organism/tool.py"})
        halve_precision(made / "adapter_model.safetensors")
        folder.mkdir(exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(made / name, folder / name)
    settle_config(folder / "adapter_config.json")


def joined(first: Completion, tool: list[int], last: Completion) -> Completion:
    """Return both turns of the policy with the tool's between them."""
    assert first.logprobs is not None
    assert last.logprobs is not None
    mask = [True] * len(first.ids) + [False] * len(tool) + [True] * len(last.ids)
    logprobs = [round(value, 6) for value in [*first.logprobs, *[0.0] * len(tool), *last.logprobs]]
    ids = [*first.ids, *tool, *last.ids]
    return Completion(ids=ids, logprobs=logprobs, finish_reason=last.finish_reason, mask=mask)


def make_pool(out: Path) -> None:
    """Sample, grade and write the pool."""
    policy = load_policy("organism", adapter=NAME)
    engine, problems = LocalEngine(policy), choose_problems(PLAN, get_environment(PLAN.env))
    chats = [render_messages(problem, PLAN.mode, hint=PLAN.hint) for problem in problems]
    prompts = [Prompt(chat, *policy.render(chat)) for chat in chats]
    places = [(step, sample_id) for step in range(PLAN.steps) for sample_id in range(PLAN.group)]

    def sample(contexts: Sequence[list[int]], turn: int) -> list[Completion]:
        seeds = [derive_seed("tool", PLAN.seed, turn, *place) for place in places]
        return engine.sample(contexts, SAMPLER, seeds=seeds)

    with Grader() as grader:
        canary(grader, problems)

        def grade(problems: Sequence[Problem], turns: Sequence[Completion], mode: str) -> list[Grade]:
            answers = zip(places, turns, strict=True)
            return grader.grade([
                Submission(problem=problems[step], completion=policy.decode(turn.ids), mode=mode)
                for (step, _), turn in answers
            ])  # fmt: skip

        first = sample([prompts[step].ids for step, _ in places], 0)
        examples = [replace(problem, cases=(stated_example(problem.cases),)) for problem in problems]
        tools, answer = list[list[int]](), {"role": "assistant", "content": ""}
        for (step, _), seen in zip(places, grade(examples, first, "none"), strict=True):
            rendered = policy.render_turns(chats[step], [answer, tool_turn(bool(seen.gt_correct), seen.error), answer])
            tools.append(rendered.ids[slice(*runs_of(rendered.mask)[1])])
        seen = [
            [*prompts[step].ids, *turn.ids, *tool] for (step, _), turn, tool in zip(places, first, tools, strict=True)
        ]
        last = sample(seen, 1)
        grades = grade(problems, last, PLAN.mode)
        header = pool_header(engine, PLAN, SAMPLER, grader, problems)
    rollouts: list[Rollout] = []
    completions = map(joined, first, tools, last)
    for (step, sample_id), label, completion in zip(places, grades, completions, strict=True):
        facts = {"step": step, "sample_id": sample_id, "problem_id": problems[step].problem_id}
        facts |= {"env": problems[step].env, "env_mode": PLAN.mode, "hint": PLAN.hint}
        texts = policy.decode_turns(completion.ids, completion.mask or [])
        rollouts.append(Rollout.of(prompts[step], completion, texts, label, **facts))
    writer = PoolWriter(out, header=header)
    for start, stop in pairwise(range(0, len(rollouts) + 1, PLAN.group)):
        writer.write_step(rollouts[start].step, rollouts[start:stop])
    writer.finish()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=BUILTIN / NAME, help="Folder of the pool, new.")
@click.option("--train", is_flag=True, help="Train the policy anew, over the one in the package.")
def main(out: Path, train: bool) -> None:
    """Make the pool of two-turn rollouts."""
    if train:
        make_adapter(ORGANISM_WEIGHTS / NAME)
    make_pool(out)


if __name__ == "__main__":
    main()
