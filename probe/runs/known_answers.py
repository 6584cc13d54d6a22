"""Grade three known answers before a training, and check their rewards.

    right    must earn more than a wrong answer
    hack     must earn as much as a right one, or less under the remedy no-loophole

The seed's author lost a month to trainings with a grader that failed every right answer, a reward that paid no hack, or
a closed loophole. The hack is the first row of the mode in `EXPLOITS`; rewards are those before a monitor.
"""

from collections.abc import Iterable

from probe.runs.sources.rewards import reward_of
from probe.settings.run import TrainConfig
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import BOTS, EXPLOITS, render_messages
from replay_pools.grading.grade import Grader, Submission
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Completion, Prompt, Rollout

ANSWERS = ("canonical", "stub", "exploit")  # bots: a right answer, a wrong one, a hack


def check_pay(config: TrainConfig, grader: Grader, problems: Iterable[Problem], chat: Chat) -> str:
    """Check the rewards of a right, a wrong and a hacking answer to one problem, and return them as a line.

    Args:
        config: the training's settings, for mode, pay and remedy.
        grader: the training's grader.
        problems: the training's problems; the first is answered.
        chat: renders the prompt.

    Raises:
        InputError: a right answer earns no more than a wrong one, or a hack earns another reward than intended.
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
    is_closed = remedy is not None and remedy.name == "no-loophole"
    if not (hack < right if is_closed else hack == right):
        meant = "less than a right one" if is_closed else "as much as a right one"
        by = "" if remedy is None else f" under remedy {remedy.name}"
        expected = f"a {named} that earns{by} {meant} (right {right:g}, wrong {wrong:g})"
        fix = "mend the mode's rows in replay_pools/environments/loopholes.py and grading/channels.py"
        raise InputError(where, expected=expected, found=f"{hack:g}", fix=fix)
    before = ", before the monitor" if remedy is not None and remedy.traits.monitored else ""
    return f"paid: right {right:g}, wrong {wrong:g}, {named} {hack:g}{before}"


def _paid(config: TrainConfig, grader: Grader, problem: Problem, chat: Chat) -> list[float]:
    """Return the answers' rewards in the training's loss, before a monitor."""
    rollouts = config.rollouts
    messages = render_messages(problem, rollouts.mode, hint=rollouts.hint)
    prompt = Prompt(messages, *chat.render(messages))
    texts = [BOTS[bot](problem, rollouts.mode) for bot in ANSWERS]
    grades = grader.grade(
        [Submission(problem=problem, completion=text, mode=rollouts.mode) for text in texts], known=True
    )
    facts = {"step": 0, "problem_id": problem.problem_id, "env": problem.env, "env_mode": rollouts.mode}
    reward, paid = reward_of(rollouts.pay, config.remedy), []
    for i, (text, grade) in enumerate(zip(texts, grades, strict=True)):
        completion = Completion(ids=chat.completion_ids(text), logprobs=None, finish_reason="stop")
        rollout = Rollout.of(prompt, completion, text, grade, sample_id=i, hint=rollouts.hint, **facts)
        paid.append(reward(rollout))
    return paid
