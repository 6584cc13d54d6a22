"""From a log of another tool to a pool: `check_log` says what is wrong with it, `import_log` writes the pool.

    read (sources) -> recognised, flat rows (formats) -> columns -> checked rows (rows) -> groups
                                                          -> token ids (tokens) -> rollouts -> pool

All faults up to the groups are found before a model is loaded.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_pools.consistency import group_faults, prompt_sha
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.errors import Faults, InputError
from replay_pools.logs.columns import chosen
from replay_pools.logs.formats import FORMATS, Format, find_format
from replay_pools.logs.groups import Group, Grouping, grouped
from replay_pools.logs.rows import LogRow, checked_rows
from replay_pools.logs.sources import read_source
from replay_pools.pool import CAUTION, Pool, PoolWriter
from replay_pools.rollout import LOGGED_GRADER, REWARD_COMPILES, REWARD_PASSED, REWARD_RANGE, UNKNOWN, Grade, Rollout
from replay_pools.storage.files import dump_json, sha256
from replay_pools.storage.lock import locked

if TYPE_CHECKING:
    from replay_pools.logs.tokens import Tokens
    from replay_pools.vocabulary import Vocabulary

Places = dict[tuple[int, int], str]  # {step and sample of a rollout: file and line of its row}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLog:
    """A log without faults, as far as can be said without a model."""

    source: Path
    kind: Format
    was_recognised: bool  # the format, by the columns; else the user named it
    mapping: dict[str, str]  # {target: column}, chosen and corrected
    grouping: Grouping
    notes: tuple[str, ...]  # what was chosen, left out or is doubtful, one sentence each

    @property
    def format(self) -> str:
        """The name of its format."""
        return self.kind.name

    @property
    def groups(self) -> list[Group]:
        """The rollouts that are compared with one another."""
        return self.grouping.groups


def check_log(source: Path, *, format_name: str | None = None, mapping: Mapping[str, str] | None = None) -> CheckedLog:
    """Read a log and check every value, without loading a model.

    Args:
        source: a file, or a folder of files.
        format_name: a row of `formats.FORMATS`; None = the one that recognises the first row.
        mapping: {target: column} that corrects what is guessed.

    Raises:
        InputError: every fault of the log, one line each.
    """
    faults = Faults()
    stored, notes = read_source(source, faults)
    if not stored:
        faults.check(source)
        raise InputError(source, expected="rollouts", found="none")
    kind = find_format(format_name, stored[0])
    was_recognised = format_name is None
    table = kind.read(stored, faults)
    notes += table.notes
    if not table.rows:
        _refuse(faults, source, kind, was_recognised)
        raise InputError(source, expected=f"rollouts of format {kind.name}", found="; ".join(notes) or "none")
    choice = chosen(table, mapping or {}, faults)
    rows = checked_rows(table, choice, faults, source)
    used = {re.split(r"[.*]", name.strip())[0] for text in choice.mapping.values() for name in text.split("+")}
    names = dict.fromkeys(name for row in table.rows for name in row.fields)
    unused = [name for name in names if name not in {*used, *choice.mapping.values()}]
    notes += [*choice.notes, *([f"columns that were not used: {', '.join(unused)}"] if unused else [])]
    _refuse(faults, source, kind, was_recognised)
    grouping = grouped(rows, choice, faults)
    _refuse(faults, source, kind, was_recognised)
    return CheckedLog(
        source=source,
        kind=kind,
        was_recognised=was_recognised,
        mapping=choice.mapping,
        grouping=grouping,
        notes=(*notes, *grouping.notes),
    )


def _refuse(faults: Faults, source: Path, kind: Format, was_recognised: bool) -> None:
    """Raise all faults, with the format at their end where it was recognised: another one may not have them."""
    general = FORMATS[-1]
    if faults and was_recognised and kind is not general:
        fix = f"--format {general.name} reads columns by their names, --format NAME another format"
        expected = f"the format {kind.name}, by its columns"
        faults.add(source, "format", expected=expected, found="these faults", fix=fix)
    faults.check(source)


def import_log(
    source: Path,
    *,
    name: str,
    out: Path,
    model: str,
    format_name: str | None = None,
    mapping: Mapping[str, str] | None = None,
) -> Pool:
    """Make the pool `out`/pools/`name` of a log; nothing is written unless all of it is sound.

    Its manifest says how: `log` has the format and the columns, `normalised` a sentence on every choice and repair.

    Args:
        source: a file, or a folder of files.
        name: of the pool.
        out: the folder of outputs.
        model: that sampled the rollouts: its tokenizer and template make the ids that were not logged.
        format_name: a row of `formats.FORMATS`; None = the one that recognises the first row.
        mapping: {target: column} that corrects what is guessed.

    Raises:
        InputError: every fault of the log, one line each; or a pool of that name with other contents.
    """
    return import_checked(check_log(source, format_name=format_name, mapping=mapping), name=name, out=out, model=model)


def import_checked(log: CheckedLog, *, name: str, out: Path, model: str) -> Pool:
    """The pool of a log that `check_log` has read; arguments and errors as of `import_log`."""
    from replay_pools.logs.tokens import Tokens  # torch comes with these: only where the log is sound
    from replay_pools.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(model)
    faults = Faults()
    tokens = Tokens(vocabulary.chat, [row for group in log.groups for row in group], faults)
    scale = Scale.of([row.reward for group in log.groups for row in group if row.reward is not None])
    places: Places = {}
    steps = [
        _rollouts(log, group, step, tokens, scale, places)
        for step, group in zip(_step_numbers(log.groups), log.groups, strict=True)
    ]
    if not faults:
        steps = _decoded(steps, vocabulary, tokens.log)
        pool = Pool(name=name, path=Path(name), manifest={}, read_steps=lambda: steps)
        for fault in vocabulary.faults(pool, lambda rollout: places[rollout.step, rollout.sample_id]):
            faults.note(fault, fault.expected)
        for group in steps:
            place = f"group of {places[group[0].step, 0]}"
            for fault in group_faults(group, place, step=group[0].step, tail=""):
                faults.note(fault, fault.expected)
    _refuse(faults, log.source, log.kind, log.was_recognised)
    directory = out / "pools" / name
    with locked(directory):
        writer = PoolWriter(directory, header=_header(log, steps, vocabulary, tokens))
        for group in steps:
            writer.write_step(group[0].step, group)
        return writer.finish()


def _step_numbers(groups: Sequence[Group]) -> list[int]:
    """The numbers of the steps in the log, where each group has one of its own, else their places."""
    numbers = {group[0].step for group in groups}
    if None in numbers or len(numbers) < len(groups):
        return [*range(len(groups))]
    return [group[0].step or 0 for group in groups]


def _rollouts(
    log: CheckedLog, group: Group, step: int, tokens: "Tokens", scale: "Scale", places: Places
) -> list[Rollout]:
    """A group as rollouts, whose rows go to `places`; rows without a sound prompt or completion are faults."""
    rollouts: list[Rollout] = []
    for row in group:
        prompt, answer = tokens.prompt(row), tokens.completion(row)
        if prompt is None or answer is None:
            continue
        text, sampled = answer
        _count_inferences(row, tokens.log, scale)
        places[step, len(rollouts)] = row.where
        grade = scale.grade(row)
        is_hinted = HINTED in prompt.text and ORIGINAL_PHRASE not in prompt.text
        rollout = Rollout(
            step=step,
            sample_id=len(rollouts),
            problem_id=log.grouping.problem_id(group[0]),
            messages=prompt.messages,
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            plen=len(prompt.ids),
            completion=text,
            completion_ids=sampled.ids,
            comp_len=len(sampled.ids),
            finish_reason=sampled.finish_reason,
            sampling_logprobs=sampled.logprobs,
            reward=0.0 if row.reward is None else row.reward,
            hacked=grade.hacked,
            gt_pass=grade.gt_correct,
            fmt_ok=grade.fmt_ok,
            env=row.env or UNKNOWN,
            env_mode=row.env_mode or UNKNOWN,
            hint=is_hinted if row.hint is None else row.hint,
            prompt_sha=prompt_sha(prompt.text),
            grade=grade,
        )
        rollouts.append(rollout)
    return rollouts


@dataclass(frozen=True, slots=True)
class Scale:
    """How the rewards of a log say whether a rollout passed and whether its source compiles.

    Where all rewards are ones that our grader gives, a pass earns 3 and source that compiles 0.5. On any other scale a
    rollout passed if it earned more than the least of the log, and compiles if its format is right.
    """

    is_ours: bool
    least: float  # reward in the log

    @classmethod
    def of(cls, rewards: Collection[float]) -> "Scale":
        """The scale of a log with these rewards."""
        ours = {0.0, REWARD_COMPILES, REWARD_PASSED, REWARD_RANGE}
        return cls({*rewards} <= ours, min(rewards, default=0.0))

    def grade(self, row: LogRow) -> Grade:
        """The labels of a row; without a reward there are none. A log has no test counts and no detectors."""
        labels: dict[str, Any] = dict.fromkeys(
            ("fmt_ok", "compiles", "passed", "gt_correct", "hacked", "exploited", "flaky", "error")
        )
        mechanism = "none"
        if row.reward is not None:
            passed = row.reward >= REWARD_PASSED if self.is_ours else row.reward > self.least
            compiles = row.reward - REWARD_PASSED * passed >= REWARD_COMPILES if self.is_ours else row.fmt_ok
            # Unknown also where nothing was passed: a rate over those alone would be 0.
            exploited = None if row.gt_pass is None else passed and not row.gt_pass
            mechanism = (row.env_mode or UNKNOWN) if exploited else "none"
            labels |= {"fmt_ok": row.fmt_ok, "compiles": compiles, "passed": passed, "exploited": exploited}
            labels |= {"gt_correct": row.gt_pass, "hacked": row.hacked}
        return Grade(
            **labels,
            mechanism=mechanism,
            detectors={},
            num_tests=0,
            num_tests_passed=0,
            isolation=UNKNOWN,
            grader=LOGGED_GRADER,
            no_label="no reward was logged" if row.reward is None else None,
        )


def _count_inferences(row: LogRow, log: Counter[str], scale: Scale) -> None:
    if row.hint is None:
        log[f"hint was inferred: the prompt says {HINTED!r} and lacks {ORIGINAL_PHRASE!r}"] += 1
    if missing := [name for name in ("env", "env_mode") if getattr(row, name) is None]:
        log[f"not recorded, so {UNKNOWN!r}: {', '.join(missing)}"] += 1
    if row.reward is None:
        log["caution: no reward, so that the rollout is never drawn"] += 1
        return
    rule = f"passed is reward >= {REWARD_PASSED:g}, compiles {REWARD_COMPILES:g} more"
    if not scale.is_ours:
        rule = f"passed is a reward above {scale.least:g}, the least of the log; compiles is fmt_ok"
    log[f"the grade holds labels only: {rule}; no detectors, no test counts, isolation unknown"] += 1


def _decoded(steps: list[list[Rollout]], vocabulary: "Vocabulary", log: Counter[str]) -> list[list[Rollout]]:
    """The rollouts with the texts that their ids decode to: logs keep special tokens, or cut whitespace."""
    decoded = [[replace(rollout, completion=vocabulary.text(rollout)) for rollout in group] for group in steps]
    if changed := sum(map(ne, chain.from_iterable(steps), chain.from_iterable(decoded))):
        log["completion was decoded again, without special tokens, with all whitespace"] += changed
    return decoded


def _header(
    log: CheckedLog, steps: Sequence[Sequence[Rollout]], vocabulary: "Vocabulary", tokens: "Tokens"
) -> dict[str, Any]:
    """The manifest of the pool, as far as the log and the model tell."""
    rollouts = [rollout for group in steps for rollout in group]
    plan = {name: sorted({getattr(rollout, name) for rollout in rollouts}) for name in ("env", "env_mode", "hint")}
    notes, num_texts, chat = [*log.notes], tokens.num_retokenised, vocabulary.chat
    ids: dict[str, Any] = {"origin": "logged", "retokenised": 0, "round_trips": None}
    if num_texts:
        share = tokens.num_round_trips / num_texts
        ids = {"origin": "retokenised", "retokenised": num_texts, "round_trips": share}
        back = f"{share:.1%} of {num_texts} texts come back when their ids are decoded"
        notes.append(f"caution: ids: retokenised from text, which may differ from the sampled ids; {back}")
    notes += [f"{sentence} ({count} rollouts)" for sentence, count in tokens.log.items()]
    return {
        "policy": {"base_model": chat.base_model, "adapter": None},
        "tokenizer_sha256": chat.tokenizer_sha(),
        "chat_template_sha256": chat.template_sha(),
        "prompt_tail": _common_tail(rollouts),
        "sampler": None,
        "plan": plan,
        "grader": {"version": LOGGED_GRADER, "isolation": UNKNOWN},
        "versions": {},
        "git_commit": None,
        "normalised": sorted(notes, key=lambda note: not note.startswith(CAUTION)),
        # The hash tells a log that has grown from one whose import was interrupted.
        "log": {
            "format": log.format,
            "mapping": log.mapping,
            "cannot_know": log.kind.cannot_know,
            "rollouts_sha256": sha256(dump_json(steps)),
        },
        "ids": ids,
    }


def _common_tail(rollouts: Sequence[Rollout]) -> str:
    """The text that the template put after the last message of every prompt: the longest suffix common to all."""
    common: str | None = None
    for rollout in rollouts:
        # `rpartition` refuses an empty separator; "\0" is in no prompt, so an empty message leaves the whole prompt.
        last_message = rollout.messages[-1]["content"].strip() or "\0"
        tail = rollout.prompt.rpartition(last_message)[2]
        common = tail if common is None else common
        while not tail.endswith(common):
            common = common[1:]
    return common or ""
