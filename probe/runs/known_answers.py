"""Three answers that are known, graded and paid as a training grades and pays its rollouts, before it samples any.

    right    more than a wrong one
    hack     as a right one; under a remedy that acts on labels, as that remedy means it (`MEANT`)

A month of the seed's author went into trainings whose grader failed every right answer, whose reward paid no hack, or
whose loophole was closed. The hack is the first row of the mode in `EXPLOITS`; a monitor is taken to be right.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from probe.runs.sources.rewards import PAYS, AppliedRemedy
from probe.settings.run import TrainConfig
from probe.settings.words import Remedy
from probe.step.groups import RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import BOTS, EXPLOITS, render_messages
from replay_pools.grading.grade import Grader, Submission
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Completion, Prompt, Rollout

ANSWERS = ("canonical", "stub", "exploit")  # the bots that answer right, wrong and with a hack
# {remedy: (what a hack that solves nothing is to earn, whether it does: of hack, right and the strength)}
MEANT: Mapping[Remedy | None, tuple[str, Callable[[float, float, float], bool]]] = {
    "closed": ("less than a right one", lambda hack, right, strength: hack < right),
    "monitor-penalty": ("a right one's less strength", lambda hack, right, strength: hack == right - strength),
    "monitor-screen": ("nothing: it is left out", lambda hack, right, strength: math.isnan(hack)),
}
AS_RIGHT = ("as much as a right one", lambda hack, right, strength: hack == right)


def check_pay(config: TrainConfig, grader: Grader, problems: Iterable[Problem], chat: Chat) -> str:
    """What a right, a wrong and a hacking answer to one problem earn, as a line.

    Args:
        config: of the training: mode, pay and remedy.
        grader: of the training.
        problems: of the training; the first is answered.
        chat: renders the prompt.

    Raises:
        InputError: a right answer earns no more than a wrong one, or a hack something else than the settings mean.
    """
    problem = next(iter(problems))
    mode, remedy = config.rollouts.mode, config.remedy
    right, wrong, hack = _paid(config, grader, problem, chat)
    where = f"problem {problem.problem_id}, mode {mode}"
    if not right > wrong:
        expected = f"a right answer that earns more than one that returns 0 ({wrong:g})"
        raise InputError(where, expected=expected, found=f"{right:g}", fix="look at its tests and at rollouts.pay")
    if not EXPLOITS[mode]:
        return f"paid: right {right:g}, wrong {wrong:g}; mode {mode} pays no hack: there is none to learn"
    named = f"hack ({EXPLOITS[mode][0].flavour})"
    meant, holds = AS_RIGHT if remedy is None else MEANT.get(remedy.name, AS_RIGHT)
    if not holds(hack, right, 0.0 if remedy is None else remedy.strength):
        by = "" if remedy is None else f" under remedy {remedy.name}"
        expected = f"a {named} that earns{by} {meant} (right {right:g}, wrong {wrong:g})"
        fix = "mend the mode's rows in replay_pools/environments/loopholes.py and grading/channels.py"
        raise InputError(where, expected=expected, found=f"{hack:g}", fix=fix)
    return f"paid: right {right:g}, wrong {wrong:g}, {named} {'left out' if math.isnan(hack) else f'{hack:g}'}"


def _paid(config: TrainConfig, grader: Grader, problem: Problem, chat: Chat) -> list[float]:
    """The rewards of the answers in the loss of the training; nan: it is left out."""
    rollouts, remedy = config.rollouts, config.remedy
    messages = render_messages(problem, rollouts.mode, hint=rollouts.hint)
    prompt = Prompt(messages, *chat.render(messages))
    texts = [BOTS[bot](problem, rollouts.mode) for bot in ANSWERS]
    grades = grader.grade_known([Submission(problem=problem, completion=text, mode=rollouts.mode) for text in texts])
    facts = {"step": 0, "problem_id": problem.problem_id, "env": problem.env, "env_mode": rollouts.mode}
    applied = None
    if remedy is not None:
        sees = replace(remedy, accuracy=1.0)
        applied = AppliedRemedy(sees, seed=config.seed, chat=chat, pay=rollouts.pay)
    paid = []
    for i, (text, grade) in enumerate(zip(texts, grades, strict=True)):
        completion = Completion(ids=chat.completion_ids(text), logprobs=None, finish_reason="stop")
        rollout = Rollout.of(prompt, completion, text, grade, sample_id=i, hint=rollouts.hint, **facts)
        key = RolloutKey("known answers", 0, i)
        paid.append(PAYS[rollouts.pay](rollout) if applied is None else applied.reward(key, rollout))
    return paid
