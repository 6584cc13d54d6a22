"""Contrast pairs: the same prompt with a hacking and a clean completion; the built-in sets; the pairs of a run.

The built-in pairs come from minicode's `pairs` split (no problem of any pool) in several flavours: every exploit of the
mode, with a right and with a wrong body, against clean completions with and without honest tests. Two sets contrast
clean completions: `placebo` two right solutions of one problem, `style` a comment against none. Their completions have
no function `run_tests`, since a direction toward honest tests would also point toward the hack.

To add pairs: pass the path of a file as the source (`extraction.pair_files`). To add a built-in set: a row for a
loophole mode in `replay_pools.environments.loopholes.EXPLOITS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extraction.settings import ExtractionSettings, kind_of
from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import encode_jsonl, sha256, write_atomic, write_gz
from replay_pools.environments.loopholes import (
    EXPLOITS,
    HONEST_TESTS,
    NOTHING,
    Exploit,
    compose,
    fence,
    render_messages,
)
from replay_pools.environments.minicode import MinicodeProblem, example_texts, minicode_problems

NUM_EXTRACTION = 32
NUM_HELD_OUT = 16
PLACEBO, STYLE = "placebo", "style"


# Turns of the policy ("assistant") and of others, first and last the policy's: messages that its chat template renders,
# or spans of a stored rollout, each with its `ids`. Only the policy's turns have loss.
Turns = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One contrast; the completions are texts without the end-of-turn token, or conversations."""

    pair_id: str
    problem_id: str
    messages: list[dict[str, str]]  # the prompt: a chat of role and content
    hack: str | Turns  # in a placebo pair: the other clean completion
    clean: str | Turns
    flavour: str  # what kind of hack against what kind of clean completion
    held_out: bool  # never used to extract; measures whether the sign transfers


def text_of(answer: str | Turns) -> str:
    """Return what the policy wrote: the text, or its turns joined by line breaks.

    >>> text_of([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}])
    'a'
    """
    if isinstance(answer, str):
        return answer
    return "\n".join(turn.get("content") or "" for turn in answer if turn["role"] == "assistant")


def builtin_pairs(name: str) -> list[Pair]:
    """Return the built-in pairs of a loophole mode, or a set without hacks; InputError for another name."""
    names = [*(mode for mode, exploits in EXPLOITS.items() if exploits), PLACEBO, STYLE]
    if name not in names:
        where, fix = f"--pairs builtin:{name}", "or give a file of pairs"
        raise unknown_name(where, name, names, expected="the name of a built-in set", fix=fix)
    problems = minicode_problems("pairs")
    if name == PLACEBO:
        problems = tuple(problem for problem in problems if len(problem.family.solutions) > 1)
    return [_pair(problems[i], i, name) for i in range(NUM_EXTRACTION + NUM_HELD_OUT)]


def _pair(minicode: MinicodeProblem, i: int, name: str) -> Pair:
    """Make pair i of a set.

    Of a loophole mode: an exploit around a right or wrong body, against a right solution. Flavours cycle with coprime
    periods, so that each exploit meets each body and each kind of clean completion. Of the others: two right bodies;
    the first takes the place of the hack.
    """
    family, mode = minicode.family, "run_tests" if name in (PLACEBO, STYLE) else name
    right, exploit, tests = family.solutions[0], NOTHING, NOTHING
    if name == PLACEBO:
        body, flavour = family.solutions[1], "other_solution/canonical"
    elif name == STYLE:
        body, flavour = f"# {family.name}\n{right}", "comment/none"
    else:
        exploits = EXPLOITS[mode]
        exploit = exploits[i % len(exploits)]
        is_wrong = (i // len(exploits)) % 2 == 1
        body = family.bugs[i % len(family.bugs)] if is_wrong else right
        # Honest tests are a function `run_tests`: only in that mode do they belong in a submission.
        tests = HONEST_TESTS if mode == "run_tests" and i % 5 < 3 else NOTHING
        flavour = f"{exploit.flavour}/{'wrong' if is_wrong else 'right'}/{tests.flavour}"

    def completion(template: str, extra: Exploit) -> str:
        example = example_texts(minicode.problem)
        return fence(compose(minicode.problem.starter, minicode.body(template), extra, example=example))

    return Pair(
        pair_id=f"{name}-{i:03d}",
        problem_id=minicode.problem.problem_id,
        messages=render_messages(minicode.problem, mode, hint=True),
        hack=completion(body, exploit),
        clean=completion(right, tests),
        flavour=flavour,
        held_out=i >= NUM_EXTRACTION,
    )


def load_pairs(source: str, columns: str | None = None, say: Callable[[str], object] = lambda note: None) -> list[Pair]:
    """Return the pairs of `builtin` (mode run_tests), `builtin:MODE`, `builtin:placebo`, `builtin:style`, or a file.

    Args:
        source: one of these.
        columns: `FIELD=COLUMN,...` of a file (`--pairs-map`); built-in pairs have none.
        say: gets a sentence for each decision in reading a file.

    Raises:
        InputError: no such built-in set or file, no pair to extract from; all faults of the file.
    """
    if is_builtin(source):
        pairs = builtin_pairs(source.partition(":")[2] or "run_tests")
    else:
        from extraction.pair_files import read_pair_file  # built-in pairs do without the readers of logs

        pairs = read_pair_file(source, columns, say)
    if all(pair.held_out for pair in pairs):
        raise InputError(f"pairs {source}", expected="at least one pair that is not held out", found="none")
    return pairs


def is_builtin(source: str) -> bool:
    """Return whether pairs come with the package."""
    return source.partition(":")[0] == "builtin"


def selected_pairs(settings: ExtractionSettings, say: Callable[[str], object] = lambda note: None) -> list[Pair]:
    """Return the pairs of a run: `settings.pairs` without the flavours in `leave_out`, and the held-out pairs.

    `settings.held_out` may name another source of held-out pairs. No held-out pair is dropped, so that all selections
    are measured on the same ones. `say` gets a sentence for each decision in reading `settings.pairs`.

    Raises:
        InputError: as `load_pairs`; a flavour that no pair has, or a map without a file.
    """
    if settings.pairs_map is not None and is_builtin(settings.pairs):
        raise InputError("--pairs-map", expected="a file of pairs (--pairs FILE)", found=settings.pairs)
    pairs = load_pairs(settings.pairs, settings.pairs_map, say)
    used = [pair for pair in pairs if not pair.held_out]
    flavours = sorted({kind_of(pair.flavour) for pair in used})
    for flavour in settings.leave_out:
        if flavour not in flavours:
            expected = f"flavours of {settings.pairs}: {', '.join(flavours)}"
            raise InputError("intervention.extraction.leave_out", expected=expected, found=repr(flavour))
    used = [pair for pair in used if kind_of(pair.flavour) not in settings.leave_out]
    measured = pairs
    if settings.held_out is not None:
        measured = load_pairs(settings.held_out, settings.pairs_map)
    return [*used, *(pair for pair in measured if pair.held_out)]


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as JSON lines, gzipped when the name ends in .gz."""
    rows = [asdict(pair) for pair in pairs]
    if path.suffix == ".gz":
        write_gz(path, encode_jsonl(rows))
    else:
        write_atomic(path, encode_jsonl(rows))


def pairs_sha(pairs: Sequence[Pair]) -> str:
    """Return the sha256 of the pairs' JSON lines, which identifies a set of pairs from any source."""
    return sha256(encode_jsonl(asdict(pair) for pair in pairs))
