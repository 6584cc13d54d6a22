"""From a log of another tool to a pool: `check_log` finds the faults, `import_log` writes the pool.

    read_rows (rows) -> recognise, flat_rows (formats, writers) -> choose_columns -> as_rollouts (parse, values)
        -> group_rollouts (grouping) -> rewarded (logged_advantages) -> Tokeniser (tokens) -> pool

A log is read again in each step, so that it may be larger than the memory. All faults up to the tokens are found before
a model is loaded.
"""

import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_pools.base.errors import Faults, InputError, unknown_name
from replay_pools.base.files import locked
from replay_pools.base.terminal import report
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.logs.columns import EVERY, PROMPT, PROMPTS, TARGETS, Scan, choose_columns, hack_columns, parse_columns
from replay_pools.logs.formats import GENERAL, Format, flat_rows, known_columns, recognise
from replay_pools.logs.grouping import (
    Group,
    check_comparable,
    comparable,
    group_cautions,
    group_rollouts,
    name_problems,
)
from replay_pools.logs.logged_advantages import rewarded
from replay_pools.logs.parse import BROKEN, SHORTEST_ECHO, Logged, Reader, as_rollouts, reward_fault
from replay_pools.logs.rows import Rows, SkipRow, read_rows
from replay_pools.pool import CAUTION, HEADER_FIELDS, LABEL_NOTES, MANIFEST_NAME, LabelNote, Pool, PoolWriter, open_pool
from replay_pools.rollout import LOGGED_GRADER, REWARD_COMPILES, REWARD_PASSED, UNKNOWN, Grade, Rollout, group_faults

if TYPE_CHECKING:
    from replay_pools.logs.tokens import Tokeniser
    from replay_pools.rollout import Template

OUR_REWARDS = {0.0, REWARD_COMPILES, REWARD_PASSED, REWARD_COMPILES + REWARD_PASSED}
LEFT_OUT = f"{CAUTION}left out: "  # how the sentence on rows that are no rollouts starts


@dataclass(frozen=True, kw_only=True)
class CheckedLog:
    """A log without faults: its groups, and how its rows are read again."""

    rows: Rows
    reader: Reader
    format: Format
    mapping: dict[str, str]  # {target: column}
    groups: list[Group]
    problem_ids: list[str]  # of each group
    sha256: str  # of all rows
    left_out: list[str]  # places of broken rows
    least: float | None  # the reward above which a rollout passed; None: by our grader's rewards
    scale_rewards: str | None  # what its advantages were divided by: `objective.scale_rewards`; None: not known
    notes: list[str]  # what was chosen, left out or is doubtful, one sentence each

    def rollouts(self) -> Iterator[tuple[int, int, Logged]]:
        """Read the rollouts again: (number of the group, place in the group, rollout), in the order of the log."""
        places = {one.number: (i, j) for i, group in enumerate(self.groups) for j, one in enumerate(group)}
        for number, row in enumerate(self.rows):
            if number in places:
                yield *places[number], self.reader.read(row, Faults())

    @property
    def training_steps(self) -> list[int]:
        """The step of the training that sampled each group; empty where the log does not say it of all."""
        steps = [group[0].step for group in self.groups if group[0].step is not None]
        return steps if len(steps) == len(self.groups) and not self.format.is_ours else []


def check_log(
    source: Any, *, format_name: str | None = None, mapping: Mapping[str, str] | None = None, skip_bad: int = 0
) -> CheckedLog:
    """Read a log and check every value, without loading a model.

    Args:
        source: a file, a folder of files, a list of objects, a DataFrame or a data set.
        format_name: a row of `formats.FORMATS`; None = the one that recognises the first row.
        mapping: {target: column} that corrects a guess.
        skip_bad: most rows with faults of their own that are left out, and said to be; with more, none is.

    Raises:
        InputError: every fault of the log, one line each.
    """
    if not isinstance(mapping or {}, Mapping):
        raise InputError("mapping", expected="a dict, such as {'reward': 'score'}", found=repr(mapping))
    given, faults = dict(mapping or {}), Faults()
    for target in sorted(given.keys() - TARGETS.keys()):
        raise unknown_name("mapping", target, TARGETS, expected="a target", fix="give {'hacked': 'is_hack'}")
    stored = read_rows(source)
    kind = recognise(stored, format_name)
    rows, source = flat_rows(stored, kind), stored.source
    scan = Scan()
    for row in rows:
        scan.add(row.file, row.fields if row.error is None else None)
    chosen, guessed = choose_columns(scan, known_columns(kind, scan), given)
    columns, left, unused = parse_columns(chosen, given, scan, faults)
    reader = Reader(columns, *left, guessed)
    # Each is one fault: that its values are missing follows from it.
    misnamed = {target for target in given if target in chosen and target not in (*columns, "group")}
    rollouts, said, left_out, whole = as_rollouts(rows, reader, faults, skip_bad)
    if not EVERY.fullmatch(chosen.get("group", "")):
        rollouts = [one for one in rollouts if one.failure != BROKEN]
    elif lost := {*left_out} - {one.where for one in rollouts}:
        fix = "mend them, or compare all rows of a step and prompt: --map group=step+prompt,advantage=none"
        found = f"blocks of rows, and no prompt in {min(lost)}"
        faults.add(f"--skip-bad {skip_bad}", "blocks", expected="groups by a column", found=found, fix=fix)
    fault = None if "reward" in misnamed else reward_fault(rollouts, scan, reader.columns, source)
    if scan.num_rows and fault:
        faults.note(fault, "reward missing")
    if faults and not misnamed and format_name is None and kind.name != GENERAL:
        fix = f"--format {GENERAL} reads columns by their names, --format NAME another format"
        faults.add(source, "format", expected=f"the format {kind.name}, by its columns", found="these faults", fix=fix)
    faults.check(source)
    if all(one.failure for one in rollouts):
        raise InputError(source, expected=f"rollouts of format {kind.name}", found="; ".join(said) or "none")
    chosen, groups, more = group_rollouts(rollouts, chosen, guessed)
    if "group" not in given and not EVERY.fullmatch(chosen.get("group", "")):
        prompts = [chosen[target] for target in PROMPTS if target in chosen]
        base = PROMPT if PROMPT in prompts or PROMPT not in scan.kinds else prompts[0]
        check_comparable(groups, rollouts, reader.marks, chosen, base, source)
    notes = [*rows.notes, *([f"columns that were not used: {', '.join(unused)}"] if unused else []), *said, *more]
    if "hacked" not in {*chosen, *given}:
        notes += [f"`{name}` may say which rollouts hack: --map hacked={name}" for name in hack_columns(scan)]
    for name in (name for name in ("model", "model_name", "checkpoint", "ckpt") if name in scan.values):
        several = f"{CAUTION}rollouts of {len(scan.values[name])} values of `{name}`: --model is one of them at most"
        one = f"sampled by {min(scan.values[name])} (`{name}`): is --model these weights?"
        notes.append(several if len(scan.values[name]) > 1 else one)
    chosen, groups, scale, said = rewarded(groups, chosen, reader.columns, given, source)
    # Those that failed were compared with the others in the training.
    groups, alone = comparable([[one for one in group if one.failure is None] for group in groups])
    rewards = {one.reward for group in groups for one in group if one.reward is not None}
    least = least_reward(rewards, is_ours=kind.is_ours)
    return CheckedLog(
        rows=rows,
        reader=reader,
        format=kind,
        mapping=chosen,
        groups=groups,
        problem_ids=name_problems(groups, "problem" in guessed),
        sha256=whole,
        left_out=left_out,
        least=least,
        scale_rewards=scale,
        notes=[*notes, *said, *alone, *group_cautions(groups, None if "passed" in chosen else least)],
    )


def import_log(
    log: CheckedLog, *, name: str, out: Path, model: str, template: "Template" = "chat", limit: int | None = None
) -> Pool:
    """Make the pool `out`/pools/`name` of a checked log; nothing is written unless all is sound.

    Its manifest says how: `log` has the format and the columns, `normalised` a sentence on every choice and repair.

    Args:
        log: from `check_log`.
        name: of the pool.
        out: the folder of outputs.
        model: that sampled the rollouts: its tokenizer and template check the ids and make those that were not logged.
        template: of prompts that were logged as messages.
        limit: of completions, in tokens: texts of that length were cut off.

    Raises:
        InputError: every fault of the log, one line each; or a pool of that name with other contents.
    """
    directory = out / "pools" / name
    partial = directory.parent / f".{name}.partial"
    with locked(directory):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            pool = _write(log, partial, model, template, limit)
            if not directory.exists() or not any(directory.iterdir()):
                partial.rename(directory)  # an empty folder gives way
                return open_pool(directory)
            if (directory / MANIFEST_NAME).exists() and open_pool(directory).manifest == pool.manifest:
                return open_pool(directory)
            fix = "choose another --name, or delete it to start anew"
            raise InputError(directory, expected="the pool of this log and --map", found="other files", fix=fix)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _write(log: CheckedLog, directory: Path, model: str, template: "Template", limit: int | None) -> Pool:
    from replay_pools.logs.tokens import Tokeniser  # torch comes with both: only where the log is sound
    from replay_pools.policy.chat import note_faults
    from replay_pools.policy.load import load_served_policy

    rows = [one for group in log.groups for one in group]
    tokeniser = Tokeniser(
        chat=load_served_policy(model, template),
        limit=limit,
        # All begin with their prompts, and not by chance: some by a long one, or by its ids.
        cuts_echo=all(one.echo is not None for one in rows)
        and any((one.echo or 0) >= SHORTEST_ECHO or one.answer_key is None for one in rows),
        thinks=sum(one.thinks for one in rows) * 2 > len(rows),
    )
    writer, source = PoolWriter(directory, header=dict.fromkeys(HEADER_FIELDS), is_lasting=False), log.rows.source
    faults, tails = Faults(), list[str]()
    plan: dict[str, set[Any]] = {"env": set(), "env_mode": set(), "hint": set()}
    are_single = all(len(group) == 1 for group in log.groups)
    numbers, waiting = step_numbers(log), dict[int, dict[int, Logged]]()
    for done, (i, j, row) in enumerate(log.rollouts()):
        report("rollouts tokenized", done, len(rows))
        waiting.setdefault(i, {})[j] = row
        if len(waiting[i]) < len(log.groups[i]):
            continue
        read, group = waiting.pop(i), list[Rollout]()
        for place, known in enumerate(log.groups[i]):
            about = {"step": numbers[i], "sample_id": len(group), "problem_id": log.problem_ids[i]}
            try:
                group.append(_rollout(read[place], known, tokeniser, log.least, about))
            except SkipRow as reason:
                tokeniser.counts[f"{LEFT_OUT}{reason}"] += 1
            except InputError as error:
                faults.note(error, (error.expected.partition(" ")[0], str(error.where).rpartition(" ")[2]))
            else:
                note_faults(tokeniser.chat, group[-1], known.where, faults)
        if len(group) < (1 if are_single else 2):
            continue
        faults.take(group_faults(group, "group", step=group[0].step, tail=""))
        if not faults:
            writer.write_step(group[0].step, group)
        for rollout in group:
            # `rpartition` refuses an empty separator; "\0" is in no prompt, so an empty message leaves the whole one.
            tail = rollout.prompt.rpartition(rollout.messages[-1]["content"].strip() or "\0")[2]
            # The text that the template put after the last message of every prompt is their longest common end.
            tails = [commonprefix([tail[::-1], *tails])]  # noqa: RUF071 (of texts, not of paths)
            for name, values in plan.items():
                values.add(getattr(rollout, name))
    faults.check(source)
    if not tails:
        found = "; ".join(tokeniser.notes(LEFT_OUT)).replace(LEFT_OUT, "")
        raise InputError(source, expected=f"turns as {model} writes them", found=found, fix="log completion_ids")
    lists = {name: sorted(values) for name, values in plan.items()}
    writer.header |= _manifest(log, tokeniser, model) | {"prompt_tail": tails[0][::-1], "plan": lists}
    return writer.finish()


def _rollout(row: Logged, known: Logged, tokeniser: "Tokeniser", least: float | None, about: dict[str, Any]) -> Rollout:
    """Return the rollout of a row; its reward and keys are known already."""
    from replay_pools.policy.chat import decoded_text

    prompt, text, completion = tokeniser.tokenise(row, known)
    rule = f"passed is reward >= {REWARD_PASSED:g}, compiles {REWARD_COMPILES:g} more"
    if row.passed is None and least is not None:
        rule = f"passed is a reward above {least:g}, the least of the log; compiles is fmt_ok"
    earlier = f"{CAUTION}the prompt holds earlier answers of the assistant: only the last answer is the rollout"
    sentences = {
        earlier: any(message["role"] == "assistant" for message in prompt.messages),
        LabelNote(f"the grade holds labels only: {rule}; no detectors, no test counts, isolation unknown"): True,
    }
    is_hinted = HINTED in prompt.text and ORIGINAL_PHRASE not in prompt.text
    about |= {"env": row.env or UNKNOWN, "env_mode": row.env_mode or UNKNOWN, "reward": known.reward}
    about |= {"hint": is_hinted if row.hint is None else row.hint}
    rollout = Rollout.of(prompt, completion, text, logged_grade(row, known.reward, least), **about)
    if rollout.completion_mask is None:
        # Logs keep special tokens in texts, or cut whitespace: the text of the ids counts.
        decoded = decoded_text(tokeniser.chat, rollout)
        is_new = "completion was decoded again, without special tokens, with all whitespace"
        sentences[is_new] = decoded != rollout.completion
        rollout = replace(rollout, completion=decoded)
    tokeniser.counts.update(sentence for sentence, holds in sentences.items() if holds)
    return rollout


def step_numbers(log: CheckedLog) -> list[int]:
    """Return the pool's step of each group: the log's step if every group has another one, else its place."""
    numbers: list[Any] = [group[0].step for group in log.groups]
    return [*range(len(numbers))] if None in numbers or len({*numbers}) < len(numbers) else numbers


def least_reward(rewards: Set[float], *, is_ours: bool) -> float | None:
    """Return the least reward of a log; None if all are ones that our grader gives, one at least for a pass."""
    is_ours = is_ours or max(rewards, default=0.0) >= REWARD_PASSED
    return None if is_ours and rewards <= OUR_REWARDS else min(rewards, default=0.0)


def logged_grade(row: Logged, reward: float | None, least: float | None) -> Grade:
    """Return the labels of a row with a reward. A log has no test counts and no detectors.

    By our grader's rewards (`least` is None) a pass earns 3 and source that compiles 0.5. On any other scale a rollout
    passed if the log says so, else if it earned more than the `least` of the log, and compiles if its format is right.
    """
    assert reward is not None, row.where
    by_reward = reward >= REWARD_PASSED if least is None else reward > least
    passed = by_reward if row.passed is None else row.passed
    # Unknown also where nothing was passed: a rate over those alone would be 0.
    exploited = None if row.gt_pass is None else passed and not row.gt_pass
    return Grade(
        fmt_ok=row.fmt_ok,
        compiles=reward - REWARD_PASSED * passed >= REWARD_COMPILES if least is None else row.fmt_ok,
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


def _manifest(log: CheckedLog, tokeniser: "Tokeniser", model: str) -> dict[str, Any]:
    """Return the manifest of the pool, but for what its rollouts say."""
    chat, notes = tokeniser.chat, [*log.notes, *tokeniser.notes()]
    ids: dict[str, Any] = {"origin": "logged", "retokenised": 0, "round_trips": None}
    if num_texts := tokeniser.texts.total():
        share = tokeniser.texts[True] / num_texts
        ids = {"origin": "retokenised", "retokenised": num_texts, "round_trips": share}
        back = f"{share:.1%} of {num_texts} texts come back when their ids are decoded"
        notes.append(f"{CAUTION}ids: retokenised from text, which may differ from the sampled ids; {back}")
    if len({*log.training_steps}) > 1:
        first, last = min(log.training_steps), max(log.training_steps)
        moved = f"rollouts of steps {first} to {last} of a training; its weights moved in between"
        one = f"a replay has the gradients of one (probe replay or check, with --only-step {first})"
        notes.append(f"{CAUTION}{moved}: {one}")
    return {
        "policy": {"base_model": model, "adapter": None},
        "tokenizer_sha256": chat.tokenizer_sha(),
        "chat_template_sha256": chat.template_sha(),
        **({"template": "plain"} if chat.is_plain else {}),
        "grader": {"version": LOGGED_GRADER, "isolation": UNKNOWN},
        "versions": {},
        "log": {
            "format": log.format.name,
            "mapping": log.mapping,
            "rollouts_sha256": log.sha256,
            "training_steps": log.training_steps,
            "scale_rewards": log.scale_rewards,
            "left_out": log.left_out,
        },
        "normalised": [note for note in notes if not isinstance(note, LabelNote)],
        LABEL_NOTES: [note for note in notes if isinstance(note, LabelNote)],
        "ids": ids,
    }
