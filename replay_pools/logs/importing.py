"""From a log of another tool to a pool: `check_log` says what is wrong with it, `import_log` writes the pool.

    read (sources) -> recognised, flat rows (formats) -> columns -> checked rows (rows) -> groups
                                                          -> token ids (tokens) -> rollouts -> pool

All faults up to the groups are found before a model is loaded.
"""

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_pools.base.errors import InputError
from replay_pools.base.files import locked
from replay_pools.base.spool import Each, Spool
from replay_pools.base.terminal import report
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.logs.advantages import read_back
from replay_pools.logs.columns import choose_columns, parts_of
from replay_pools.logs.formats import COUNTS_GROUPS, PAYS_AS_WE, apply_format
from replay_pools.logs.groups import group_rows
from replay_pools.logs.rows import LogRow, checked_rows, row_of
from replay_pools.logs.sources import Fields, Log, read_source
from replay_pools.pool import CAUTION, Pool, PoolWriter, encode_group
from replay_pools.rollout import (
    LOGGED_GRADER,
    REWARD_COMPILES,
    REWARD_PASSED,
    REWARD_RANGE,
    UNKNOWN,
    Grade,
    Rollout,
    Template,
    group_faults,
)

if TYPE_CHECKING:
    from replay_pools.logs.tokens import Tokens
    from replay_pools.vocabulary import Vocabulary

MOST_BAD = 3  # faults of bad rows that a note names
OUR_REWARDS = {0.0, REWARD_COMPILES, REWARD_PASSED, REWARD_RANGE}


def check_log(
    source: Path, *, format_name: str | None = None, mapping: Mapping[str, str] | None = None, skip_bad: int = 0
) -> Log:
    """Read a log and check every value, without loading a model.

    Args:
        source: a file, or a folder of files.
        format_name: a row of `formats.FORMATS`; None = the one that recognises the first row.
        mapping: {target: column} that corrects what is guessed.
        skip_bad: most rows with faults of their own that are left out, and said to be; with more, none is.

    Raises:
        InputError: every fault of the log, one line each.
    """
    log = read_source(source, skip_bad)
    apply_format(log, format_name)
    choose_columns(log, mapping or {})
    rows = checked_rows(log)
    used = {name for text in log.mapping.values() for part in parts_of(text) for name in (part, part.partition(".")[0])}
    if unused := [name for name in log.rows.kinds if name not in used]:
        log.notes.append(f"columns that were not used: {', '.join(unused)}")
    log.check()
    if log.left_out:
        first = "; ".join(str(error) for error in log.faults_of_bad.errors()[:MOST_BAD])
        log.notes.append(f"{CAUTION}{log.num_bad} bad rows were left out, and their groups lack them: {first}")
    group_rows(log, rows)
    log.check()
    _leave_out_unrewarded(log)
    log.check()
    read_back(log, is_guessed="reward" not in (mapping or {}))
    return log


def _leave_out_unrewarded(log: Log) -> None:
    """Take the rows without a reward out of their groups: nothing says what they are worth."""
    groups = [[facts for facts in group if facts.reward is not None] for group in log.groups]
    num_rows = sum(map(len, log.groups))
    if not (num_left_out := num_rows - sum(map(len, groups))):
        return
    if not any(groups):
        fix = "pass --map reward=COLUMN"
        found = f"none of {num_rows} rollouts with one"
        log.faults.add(f"{log.source} reward", "no reward", expected="rewards that are numbers", found=found, fix=fix)
        return
    sentence = f"{num_left_out} of {num_rows} rows have no reward and were left out, and their groups lack them"
    log.notes.append(f"{CAUTION}{sentence}")
    log.problem_ids = [problem_id for problem_id, group in zip(log.problem_ids, groups, strict=True) if group]
    log.groups = [group for group in groups if group]


def import_log(
    log: Log, *, name: str, out: Path, model: str, template: Template = "chat", limit: int | None = None
) -> Pool:
    """Make the pool `out`/pools/`name` of a log that `check_log` has read; nothing is written unless all is sound.

    Its manifest says how: `log` has the format and the columns, `normalised` a sentence on every choice and repair.

    Args:
        log: without faults.
        name: of the pool.
        out: the folder of outputs.
        model: that sampled the rollouts: its tokenizer and template make the ids that were not logged. Where all ids
            and texts were, it may be missing: the ids are then unchecked until something runs the model.
        template: of prompts that were logged as messages.
        limit: of completions, in tokens; None = guessed where the log does not say which were cut off.

    Raises:
        InputError: every fault of the log, one line each; or a pool of that name with other contents.
    """
    from replay_pools.logs.tokens import Tokens  # torch comes with it: only where the log is sound

    grouped = Each([facts.place for group in log.groups for facts in group], log.checked.__getitem__)
    vocabulary = _vocabulary(log, grouped, model, template)
    tokens = Tokens(vocabulary, grouped, log.faults, limit)
    rewards = {facts.reward for group in log.groups for facts in group} - {None}
    least = least_reward(rewards, is_ours=log.format in PAYS_AS_WE)
    # The numbers of the steps in the log, where each group has one of its own, else their places.
    numbers = [group[0].step for group in log.groups]
    if None in numbers or len({*numbers}) < len(numbers):
        numbers = [*range(len(numbers))]
    steps, summary = Spool[tuple[int, bytes]](), _Summary()
    for step, group, problem_id in zip(numbers, log.groups, log.problem_ids, strict=True):
        rollouts, rows = list[Rollout](), [row_of(log, facts) for facts in group]
        for sample_id, row in enumerate(rows):
            facts = {"step": step, "sample_id": sample_id, "problem_id": problem_id}
            if rollout := _rollout(row, tokens, least, facts):
                rollouts.append(rollout if vocabulary is None else _decoded(rollout, vocabulary, tokens))
                if vocabulary is not None:
                    vocabulary.note_faults(rollouts[-1], row.where, log.faults)
        if not log.faults:
            for fault in group_faults(rollouts, f"group of {rows[0].where}", step=step, tail=""):
                log.faults.note(fault, fault.expected)
            plain = encode_group(rollouts)
            steps.append((step, plain))
            summary.add(rollouts, plain)
        report("groups tokenized", len(steps), len(numbers))
    log.check()
    directory = out / "pools" / name
    with locked(directory):
        # What is written can be made again from the log: it is synced once, before the manifest.
        writer = PoolWriter(directory, header=_header(log, summary, model, vocabulary, tokens), is_lasting=False)
        for number, (step, plain) in enumerate(steps, 1):
            writer.write_plain(step, plain)
            report("groups written", number, len(steps))
        return writer.finish()


class _Summary:
    """What the manifest says of all rollouts, which are added group by group."""

    def __init__(self) -> None:
        self._sets: dict[str, set[Any]] = {"env": set(), "env_mode": set(), "hint": set()}
        self._hasher, self._first = hashlib.sha256(b"["), b""
        self.tail: str | None = None

    def add(self, rollouts: Sequence[Rollout], plain: bytes) -> None:
        """Count a group, whose lines are `plain`."""
        self._hasher.update(self._first + b"[" + plain[:-1].replace(b"\n", b",") + b"]")
        self._first = b","
        for rollout in rollouts:
            for name, values in self._sets.items():
                values.add(getattr(rollout, name))
            self.tail = _common_tail(rollout, self.tail)

    @property
    def plan(self) -> dict[str, list[Any]]:
        """The values of some fields."""
        return {name: sorted(values) for name, values in self._sets.items()}

    @property
    def sha256(self) -> str:
        """Of the JSON of all groups as one list."""
        last = self._hasher.copy()
        last.update(b"]")
        return last.hexdigest()


def _rollout(row: LogRow, tokens: "Tokens", least: float | None, facts: dict[str, Any]) -> Rollout | None:
    """The rollout of a row; None where its prompt or its completion is a fault."""
    prompt, answer = tokens.prompt(row), tokens.completion(row)
    if prompt is None or answer is None:
        return None
    rule = f"passed is reward >= {REWARD_PASSED:g}, compiles {REWARD_COMPILES:g} more"
    if least is not None:
        rule = f"passed is a reward above {least:g}, the least of the log; compiles is fmt_ok"
    missing = [name for name in ("env", "env_mode") if getattr(row, name) is None]
    tokens.count(
        (
            any(message["role"] == "assistant" for message in prompt.messages),
            f"{CAUTION}the prompt holds earlier answers of the assistant: only the last answer is the rollout",
        ),
        (row.hint is None, f"hint was inferred: the prompt says {HINTED!r} and lacks {ORIGINAL_PHRASE!r}"),
        (bool(missing), f"not recorded, so {UNKNOWN!r}: {', '.join(missing)}"),
        (True, f"the grade holds labels only: {rule}; no detectors, no test counts, isolation unknown"),
    )
    is_hinted = HINTED in prompt.text and ORIGINAL_PHRASE not in prompt.text
    facts |= {"env": row.env or UNKNOWN, "env_mode": row.env_mode or UNKNOWN, "reward": row.reward}
    facts |= {"hint": is_hinted if row.hint is None else row.hint}
    return Rollout.of(prompt, answer[1], answer[0], logged_grade(row, least), **facts)


def least_reward(rewards: Set[float], *, is_ours: bool) -> float | None:
    """The least reward of a log; None of a log of ours in which all are ones that our grader gives."""
    return None if is_ours and rewards <= OUR_REWARDS else min(rewards, default=0.0)


def logged_grade(row: LogRow, least: float | None) -> Grade:
    """Return the labels of a row with a reward. A log has no test counts and no detectors.

    By our grader's rewards (`least` is None) a pass earns 3 and source that compiles 0.5. On any other scale a rollout
    passed if it earned more than the `least` of the log, and compiles if its format is right.
    """
    assert row.reward is not None, row.where
    passed = row.reward >= REWARD_PASSED if least is None else row.reward > least
    # Unknown also where nothing was passed: a rate over those alone would be 0.
    exploited = None if row.gt_pass is None else passed and not row.gt_pass
    return Grade(
        fmt_ok=row.fmt_ok,
        compiles=row.reward - REWARD_PASSED * passed >= REWARD_COMPILES if least is None else row.fmt_ok,
        passed=passed,
        gt_correct=row.gt_pass,
        hacked=row.hacked,
        exploited=exploited,
        mechanism=(row.env_mode or UNKNOWN) if exploited else "none",
        detectors={},
        num_tests=0,
        num_tests_passed=0,
        isolation=UNKNOWN,
        grader=LOGGED_GRADER,
        error=None,
    )


def _decoded(rollout: Rollout, vocabulary: "Vocabulary", tokens: "Tokens") -> Rollout:
    """The rollout with the text that its ids decode to: logs keep special tokens, or cut whitespace."""
    text = vocabulary.text(rollout)
    is_new = text != rollout.completion
    tokens.count((is_new, "completion was decoded again, without special tokens, with all whitespace"))
    return replace(rollout, completion=text)


def _vocabulary(log: Log, rows: Sequence[Fields], model: str, template: Template) -> "Vocabulary | None":
    """The tokenizer of the model; None where it is not at hand and the log needs none."""
    from replay_pools.logs.tokens import say_all
    from replay_pools.vocabulary import load_vocabulary

    try:
        return load_vocabulary(model, template)
    except InputError as error:
        if not say_all(rows):
            raise
        why = f"there is no tokenizer of {model} here ({error.found}); whatever runs the model checks them"
        log.notes.append(f"{CAUTION}ids unchecked, and padding cut by lengths alone: {why}")
        return None


def _header(
    log: Log, summary: _Summary, model: str, vocabulary: "Vocabulary | None", tokens: "Tokens"
) -> dict[str, Any]:
    """The manifest of the pool, as far as the log and the model tell."""
    notes, num_texts, chat = [*log.notes], tokens.num_retokenised, vocabulary and vocabulary.chat
    ids: dict[str, Any] = {"origin": "logged", "retokenised": 0, "round_trips": None}
    if num_texts:
        share = tokens.num_round_trips / num_texts
        ids = {"origin": "retokenised", "retokenised": num_texts, "round_trips": share}
        back = f"{share:.1%} of {num_texts} texts come back when their ids are decoded"
        notes.append(f"caution: ids: retokenised from text, which may differ from the sampled ids; {back}")
    trained = _training_steps(log)
    if len({*trained}) > 1:
        moved = f"rollouts of steps {min(trained)} to {max(trained)} of a training, whose weights moved in between"
        notes.append(f"{CAUTION}{moved}: a replay has the gradients of one (probe replay --only-step {min(trained)})")
    notes += [f"{sentence} ({count} rollouts)" for sentence, count in tokens.counts.items()]
    return {
        "policy": {"base_model": model, "adapter": None},
        "tokenizer_sha256": chat and chat.tokenizer_sha(),
        "chat_template_sha256": chat and chat.template_sha(),
        "prompt_tail": summary.tail or "",
        **({"template": "plain"} if chat and chat.is_plain else {}),
        "sampler": None,
        "plan": summary.plan,
        "grader": {"version": LOGGED_GRADER, "isolation": UNKNOWN},
        "versions": {},
        "git_commit": None,
        "normalised": sorted(notes, key=lambda note: not note.startswith(CAUTION)),
        # The hash tells a log that has grown from one whose import was interrupted.
        "log": {
            "format": log.format,
            "mapping": log.mapping,
            "cannot_know": log.cannot_know,
            "rollouts_sha256": summary.sha256,
            "training_steps": trained,
            "scale_rewards": log.scale_rewards,
            "left_out": log.left_out,
        },
        "ids": ids,
    }


def _training_steps(log: Log) -> list[int]:
    """The step of the training that sampled each group; empty where the log does not say it of all."""
    steps = [group[0].step for group in log.groups if group[0].step is not None]
    return steps if len(steps) == len(log.groups) and log.format not in COUNTS_GROUPS else []


def _common_tail(rollout: Rollout, common: str | None) -> str:
    """The text that the template put after the last message of every prompt: the longest suffix common to all."""
    # `rpartition` refuses an empty separator; "\0" is in no prompt, so an empty message leaves the whole prompt.
    last_message = rollout.messages[-1]["content"].strip() or "\0"
    tail = rollout.prompt.rpartition(last_message)[2]
    common = tail if common is None else common
    while not tail.endswith(common):
        common = common[1:]
    return common
