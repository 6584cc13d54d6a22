"""From a log of another tool to a pool: `check_log` says what is wrong with it, `import_log` writes the pool.

    read (sources) -> recognise (registry) -> flat rows (a format) -> checked rows (rows) -> groups
                                                                   -> token ids (tokens) -> rollouts -> pool

All faults up to the groups are found before a model is loaded.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_pools.consistency import LOGGED_GRADER, group_faults, prompt_sha
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.errors import Faults, InputError
from replay_pools.logs.choice import chosen
from replay_pools.logs.formats.columns import COLUMNS
from replay_pools.logs.groups import Group, Grouping, grouped
from replay_pools.logs.labels import UNKNOWN, Scale
from replay_pools.logs.registry import find_format
from replay_pools.logs.rows import LogRow, checked_rows
from replay_pools.logs.sources import read_source
from replay_pools.logs.table import Table
from replay_pools.pool import CAUTION, Pool, PoolWriter
from replay_pools.rollout import Rollout
from replay_pools.storage.files import dump_json, sha256
from replay_pools.storage.lock import locked

if TYPE_CHECKING:
    from replay_pools.logs.tokens import Prompt, Sampled, Tokens
    from replay_pools.vocabulary import Vocabulary

Places = dict[tuple[int, int], str]  # {step and sample of a rollout: file and line of its row}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLog:
    """A log without faults, as far as can be said without a model."""

    source: Path
    format: str
    mapping: dict[str, str]  # {target: column}, chosen and corrected
    was_recognised: bool  # the format, by the columns; else the user named it
    grouping: Grouping
    notes: tuple[str, ...]  # what was chosen, left out or is doubtful, one sentence each
    cannot_know: str  # of the format

    @property
    def groups(self) -> list[Group]:
        """The rollouts that are compared with one another."""
        return self.grouping.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLog:
    """A pool made of a log, and how."""

    pool: Pool
    format: str
    mapping: dict[str, str]
    notes: tuple[str, ...]
    cannot_know: str


def check_log(source: Path, *, format_name: str | None = None, mapping: Mapping[str, str] | None = None) -> CheckedLog:
    """Read a log and check every value, without loading a model.

    Args:
        source: a file, or a folder of files.
        format_name: a row of `registry.FORMATS`; None = the one that recognises the first row.
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
        _refuse(faults, source, kind.name, was_recognised)
        raise InputError(source, expected=f"rollouts of format {kind.name}", found="; ".join(notes) or "none")
    choice = chosen(table, mapping or {}, faults)
    rows = checked_rows(table, choice, faults, source)
    notes += [*choice.notes, *_unused(table, choice.mapping)]
    _refuse(faults, source, kind.name, was_recognised)
    grouping = grouped(rows, choice, faults)
    _refuse(faults, source, kind.name, was_recognised)
    return CheckedLog(
        source=source,
        format=kind.name,
        was_recognised=was_recognised,
        mapping=choice.mapping,
        grouping=grouping,
        notes=(*notes, *grouping.notes),
        cannot_know=kind.cannot_know,
    )


def _refuse(faults: Faults, source: Path, format_name: str, was_recognised: bool) -> None:
    """Raise all faults, with the format at their end where it was recognised: another one may not have them."""
    if faults and was_recognised and format_name != COLUMNS.name:
        fix = f"--format {COLUMNS.name} reads columns by their names, --format NAME another format"
        faults.add(
            source, "format", expected=f"the format {format_name}, by its columns", found="these faults", fix=fix
        )
    faults.check(source)


def _unused(table: Table, mapping: Mapping[str, str]) -> list[str]:
    """The columns that no target took."""
    used = {re.split(r"[.*]", name.strip())[0] for text in mapping.values() for name in text.split("+")}
    names = dict.fromkeys(name for row in table.rows for name in row.fields)
    unused = [name for name in names if name not in used and name not in mapping.values()]
    return [f"columns that were not used: {', '.join(unused)}"] if unused else []


def import_log(
    source: Path,
    *,
    name: str,
    out: Path,
    model: str,
    format_name: str | None = None,
    mapping: Mapping[str, str] | None = None,
) -> ImportedLog:
    """Make the pool `out`/pools/`name` of a log; nothing is written unless all of it is sound.

    Args:
        source: a file, or a folder of files.
        name: of the pool.
        out: the folder of outputs.
        model: that sampled the rollouts: its tokenizer and template make the ids that were not logged.
        format_name: a row of `registry.FORMATS`; None = the one that recognises the first row.
        mapping: {target: column} that corrects what is guessed.

    Raises:
        InputError: every fault of the log, one line each; or a pool of that name with other contents.
    """
    return import_checked(check_log(source, format_name=format_name, mapping=mapping), name=name, out=out, model=model)


def import_checked(log: CheckedLog, *, name: str, out: Path, model: str) -> ImportedLog:
    """The pool of a log that `check_log` has read; arguments and errors as of `import_log`."""
    from replay_pools.logs.tokens import Tokens  # torch comes with these: only where the log is sound
    from replay_pools.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(model)
    faults = Faults()
    tokens = Tokens(vocabulary.chat, [row for group in log.groups for row in group], faults)
    steps, places = _steps(log, tokens)
    if not faults:
        steps = _decoded(steps, vocabulary, tokens.log)
        _check(steps, vocabulary, name, places, faults)
    _refuse(faults, log.source, log.format, log.was_recognised)
    ids = _origin_of_ids(tokens)
    counted = [f"{sentence} ({count} rollouts)" for sentence, count in tokens.log.items()]
    notes = _cautions_first([*log.notes, *_ids_notes(ids), *counted])
    header = _header(log, steps, vocabulary, notes) | {"ids": ids}
    directory = out / "pools" / name
    with locked(directory):
        writer = PoolWriter(directory, header=header)
        for group in steps:
            writer.write_step(group[0].step, group)
        pool = writer.finish()
    return ImportedLog(pool=pool, format=log.format, mapping=log.mapping, notes=notes, cannot_know=log.cannot_know)


def _steps(log: CheckedLog, tokens: "Tokens") -> tuple[list[list[Rollout]], Places]:
    """(the groups as rollouts, where each stands in the log); rows without a sound prompt or completion are faults."""
    rewards = [row.reward for group in log.groups for row in group if row.reward is not None]
    scale = Scale.of(rewards)
    numbers = _step_numbers(log.groups)
    steps: list[list[Rollout]] = []
    places: Places = {}
    for step, group in zip(numbers, log.groups, strict=True):
        rollouts: list[Rollout] = []
        problem = log.grouping.problem_id(group[0])
        for row in group:
            prompt, sampled = tokens.prompt(row), tokens.completion(row)
            if prompt is not None and sampled is not None:
                _count_inferences(row, tokens.log, scale)
                places[step, len(rollouts)] = row.where
                rollouts.append(_rollout(row, prompt, sampled, scale, step, len(rollouts), problem))
        steps.append(rollouts)
    return steps, places


def _step_numbers(groups: Sequence[Group]) -> list[int]:
    """The numbers of the steps in the log, where each group has one of its own, else their places."""
    numbers = [group[0].step for group in groups]
    if None in numbers or len(set(numbers)) < len(groups):
        return [*range(len(groups))]
    return [number for number in numbers if number is not None]


def _rollout(
    row: LogRow, prompt: "Prompt", sampled: "Sampled", scale: Scale, step: int, sample_id: int, problem: str
) -> Rollout:
    grade = scale.grade(row)
    return Rollout(
        step=step,
        sample_id=sample_id,
        problem_id=problem,
        messages=prompt.messages,
        prompt=prompt.text,
        prompt_ids=prompt.ids,
        plen=len(prompt.ids),
        completion=sampled.text,
        completion_ids=sampled.ids,
        comp_len=len(sampled.ids),
        finish_reason=sampled.finish,
        sampling_logprobs=sampled.logprobs,
        reward=0.0 if row.reward is None else row.reward,
        hacked=grade.hacked,
        gt_pass=grade.gt_correct,
        fmt_ok=grade.fmt_ok,
        env=row.env or UNKNOWN,
        env_mode=row.env_mode or UNKNOWN,
        hint=row.hint if row.hint is not None else HINTED in prompt.text and ORIGINAL_PHRASE not in prompt.text,
        prompt_sha=prompt_sha(prompt.text),
        grade=grade,
    )


def _count_inferences(row: LogRow, log: Counter[str], scale: Scale) -> None:
    if row.hint is None:
        log[f"hint was inferred: the prompt says {HINTED!r} and lacks {ORIGINAL_PHRASE!r}"] += 1
    if missing := [name for name in ("env", "env_mode") if getattr(row, name) is None]:
        log[f"not recorded, so {UNKNOWN!r}: {', '.join(missing)}"] += 1
    if row.reward is None:
        log["caution: no reward, so that the rollout is never drawn"] += 1
    else:
        log[f"the grade holds labels only: {scale.words}; no detectors, no test counts, isolation unknown"] += 1


def _decoded(steps: list[list[Rollout]], vocabulary: "Vocabulary", log: Counter[str]) -> list[list[Rollout]]:
    """The rollouts with the texts that their ids decode to: logs keep special tokens, or cut whitespace."""
    decoded: list[list[Rollout]] = []
    for group in steps:
        texts = [vocabulary.text(rollout) for rollout in group]
        changed = sum(text != rollout.completion for text, rollout in zip(texts, group, strict=True))
        if changed:
            log["completion was decoded again, without special tokens, with all whitespace"] += changed
        decoded.append([replace(rollout, completion=text) for text, rollout in zip(texts, group, strict=True)])
    return decoded


def _check(steps: list[list[Rollout]], vocabulary: "Vocabulary", name: str, places: Places, faults: Faults) -> None:
    """Note all faults of the rollouts, against the model and against themselves."""
    pool = Pool(name=name, path=Path(name), manifest={}, read_steps=lambda: steps)
    for fault in vocabulary.faults(pool, lambda rollout: places[rollout.step, rollout.sample_id]):
        faults.note(fault, fault.expected)
    for group in steps:
        step = group[0].step
        for fault in group_faults(group, f"group of {places[step, 0]}", step=step, tail=""):
            faults.note(fault, fault.expected)


def _origin_of_ids(tokens: "Tokens") -> dict[str, Any]:
    """The field `ids` of the manifest: whether completion ids are those sampled, and how many texts they give back."""
    if not tokens.num_retokenised:
        return {"origin": "logged", "retokenised": 0, "round_trips": None}
    return {
        "origin": "retokenised",
        "retokenised": tokens.num_retokenised,
        "round_trips": tokens.num_round_trips / tokens.num_retokenised,
    }


def _ids_notes(ids: dict[str, Any]) -> list[str]:
    if not ids["retokenised"]:
        return []
    share = f"{ids['round_trips']:.1%} of {ids['retokenised']} texts come back when their ids are decoded"
    return [f"caution: ids: retokenised from text, which may differ from the sampled ids; {share}"]


def _cautions_first(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(notes, key=lambda note: not note.startswith(CAUTION)))


def _header(
    log: CheckedLog, steps: Sequence[Sequence[Rollout]], vocabulary: "Vocabulary", notes: Sequence[str]
) -> dict[str, Any]:
    """The manifest of the pool, as far as the log and the model tell."""
    rollouts = [rollout for group in steps for rollout in group]
    plan: dict[str, Any] = {}
    for name in ("env", "env_mode", "hint"):
        plan[name] = sorted({getattr(rollout, name) for rollout in rollouts})
    chat = vocabulary.chat
    return {
        "policy": {"base_model": chat.base_model, "adapter": None},
        "tokenizer_sha256": chat.tokenizer_sha(),
        "chat_template_sha256": chat.template_sha(),
        "prompt_tail": common_tail(rollouts),
        "sampler": None,
        "plan": plan,
        "grader": {"version": LOGGED_GRADER, "isolation": UNKNOWN},
        "versions": {},
        "git_commit": None,
        "normalised": notes,
        # The hash tells a log that has grown from one whose import was interrupted.
        "log": {
            "format": log.format,
            "mapping": log.mapping,
            "cannot_know": log.cannot_know,
            "rollouts_sha256": sha256(dump_json(steps)),
        },
    }


def common_tail(rollouts: Sequence[Rollout]) -> str:
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
