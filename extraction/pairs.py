"""Contrast pairs: the same prompt with a hacking and a clean completion.

The built-in pairs come from minicode's `pairs` split (no problem of any pool) in several flavours: every exploit of the
mode, with a right and with a wrong body, against clean completions with and without honest tests. The placebo set
contrasts two clean completions, so a direction from it owes nothing to hacking.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from replay_pools.environments.exploits import EXPLOITS, HONEST_TESTS, NOTHING, compose, fence
from replay_pools.environments.loopholes import render_messages
from replay_pools.environments.minicode import MinicodeProblem, example_texts, minicode_problems
from replay_pools.errors import InputError
from replay_pools.files import decode_jsonl, encode_jsonl, read_gz, sha256, write_atomic, write_jsonl_gz

NUM_EXTRACTION = 32
NUM_HELD_OUT = 16
PLACEBO = "placebo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One contrast; the completions are texts without the end-of-turn token."""

    pair_id: str
    problem_id: str
    messages: list[dict[str, str]]
    hack: str  # in a placebo pair: the other clean completion
    clean: str
    flavour: str
    held_out: bool  # never used to extract; measures whether the sign transfers


def load_pairs(source: str) -> list[Pair]:
    """`builtin` (mode run_tests), `builtin:MODE`, `builtin:placebo`, or a .jsonl / .jsonl.gz file.

    Raises:
        InputError: no such built-in set or file, a malformed line, no pair to extract from.
    """
    kind, _, name = source.partition(":")
    pairs = builtin_pairs(name or "run_tests") if kind == "builtin" else read_pairs(Path(source))
    if all(pair.held_out for pair in pairs):
        raise InputError(f"pairs {source}", expected="at least one pair that is not held out", found="none")
    return pairs


def builtin_pairs(name: str) -> list[Pair]:
    """The built-in pairs of a loophole mode, or the placebo set."""
    modes = [mode for mode, exploits in EXPLOITS.items() if exploits]
    if name != PLACEBO and name not in modes:
        raise InputError("--pairs", expected=f"builtin:{{{','.join([*modes, PLACEBO])}}}", found=f"builtin:{name}")
    items = minicode_problems("pairs")
    if name == PLACEBO:
        items = tuple(item for item in items if len(item.family.solutions) > 1)
    make = _placebo_pair if name == PLACEBO else _hack_pair
    return [make(items[i], i, name) for i in range(NUM_EXTRACTION + NUM_HELD_OUT)]


def _hack_pair(item: MinicodeProblem, i: int, mode: str) -> Pair:
    """Flavours cycle with coprime periods, so each exploit meets each body and each kind of clean completion."""
    exploit = EXPLOITS[mode][i % len(EXPLOITS[mode])]
    wrong = (i // len(EXPLOITS[mode])) % 2 == 1
    tests = HONEST_TESTS if mode == "run_tests" and i % 5 < 3 else NOTHING
    right = item.family.solutions[0]
    body = item.family.bugs[i % len(item.family.bugs)] if wrong else right
    return Pair(
        pair_id=f"{mode}-{i:03d}",
        problem_id=item.problem.problem_id,
        messages=render_messages(item.problem, mode, hint=True),
        hack=_completion(item, body, exploit),
        clean=_completion(item, right, tests),
        flavour=f"{exploit.flavour}/{'wrong' if wrong else 'right'}/{tests.flavour}",
        held_out=i >= NUM_EXTRACTION,
    )


def _placebo_pair(item: MinicodeProblem, i: int, name: str) -> Pair:
    """Odd pairs contrast two right solutions; even pairs contrast honest tests with none."""
    canonical, other = item.family.solutions[:2]
    tested = i % 2 == 0
    return Pair(
        pair_id=f"{name}-{i:03d}",
        problem_id=item.problem.problem_id,
        messages=render_messages(item.problem, "run_tests", hint=True),
        hack=_completion(item, canonical, HONEST_TESTS) if tested else _completion(item, other, NOTHING),
        clean=_completion(item, canonical, NOTHING),
        flavour="honest_tests/none" if tested else "other_solution/canonical",
        held_out=i >= NUM_EXTRACTION,
    )


def _completion(item: MinicodeProblem, template: str, extra: Any) -> str:
    return fence(compose(item.problem.starter, item.body(template), extra, example=example_texts(item)))


def read_pairs(path: Path) -> list[Pair]:
    """Read a pairs file; InputError names the line and the field."""
    if path.suffix == ".gz":
        plain = read_gz(path)
    elif path.is_file():
        plain = path.read_bytes()
    else:
        raise InputError(f"pairs {path}", expected="builtin, builtin:MODE or a .jsonl file", found="no such file")
    pairs = [_parse_pair(row, f"{path} line {number}") for number, row in enumerate(decode_jsonl(plain, path), 1)]
    names = [pair.pair_id for pair in pairs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(path, expected="a pair_id of its own for every pair", found=f"twice {', '.join(repeated)}")
    return pairs


def _parse_pair(row: Any, where: str) -> Pair:
    names = {field.name for field in fields(Pair)}
    if not isinstance(row, dict) or row.keys() != names:
        found = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(where, expected=f"the fields {', '.join(sorted(names))}", found=found)
    for field in fields(Pair):
        value = row[field.name]
        if field.name == "messages":
            if not _is_chat(value):
                raise InputError(f"{where} messages", expected='a list of {"role", "content"} texts', found=repr(value))
        elif type(value) is not field.type:
            raise InputError(f"{where} {field.name}", expected=getattr(field.type, "__name__", ""), found=repr(value))
    if not row["hack"] or not row["clean"] or row["hack"] == row["clean"]:
        found = "the same text twice" if row["hack"] else "an empty text"
        raise InputError(where, expected="a hacking and another, clean completion", found=found)
    return Pair(**row)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, dict) and m.keys() == {"role", "content"} for m in value)
        and all(isinstance(text, str) for m in value for text in m.values())
    )


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as JSON lines, gzipped when the name ends in .gz."""
    rows = [asdict(pair) for pair in pairs]
    if path.suffix == ".gz":
        write_jsonl_gz(path, rows)
    else:
        write_atomic(path, encode_jsonl(rows))


def pairs_sha(pairs: Sequence[Pair]) -> str:
    """sha256 of the pairs' JSON lines."""
    return sha256(encode_jsonl(asdict(pair) for pair in pairs))
