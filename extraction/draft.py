"""Draft pairs from labelled rollouts, on half of the prompts: the other half is left to measure on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from extraction.pair_files import split_by_prompt
from extraction.pairs import Pair, Turns
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, sha256

MIN_PROMPTS = 4  # answered both ways: two to draft from (one of them held out), and two to measure on
PAIRS_PER_PROMPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of a labelled rollout that a pair needs."""

    problem_id: str
    messages: list[dict[str, str]]
    text: str  # what the policy wrote
    hacked: bool | None
    gt_pass: bool | None
    turns: Turns | None = None  # of a rollout with several


def draft_pairs(answers: Iterable[Answer], *, seed: int = 0) -> tuple[list[Pair], int]:
    """Return (pairs, the number of prompts answered both ways).

    Half of these prompts are drafted, drawn by the hash of their text and the seed. A prompt gives at most
    PAIRS_PER_PROMPT pairs, nearest in length first: the direction should not be one of length. A third of the drafted
    prompts is held out.

    Raises:
        InputError: fewer than MIN_PROMPTS prompts have a hack and a clean answer.
    """
    by_prompt: dict[str, list[Answer]] = {}
    for answer in answers:
        by_prompt.setdefault(dump_json(answer.messages).decode(), []).append(answer)
    matched = {prompt: pairs for prompt, rows in by_prompt.items() if (pairs := _matched(rows))}
    if len(matched) < MIN_PROMPTS:
        expected = f"{MIN_PROMPTS} prompts with a rollout that hacks and one that does not (and is not wrong)"
        found = f"{len(matched)} of {len(by_prompt)} prompts"
        raise InputError("labels", expected=expected, found=found, fix="log or map them: --map hacked=COLUMN")
    ranked = sorted(matched, key=lambda prompt: sha256(f"draft {seed}\n{prompt}".encode()))
    drafted = {*ranked[: len(ranked) // 2]}
    couples = [couple for prompt, rows in matched.items() if prompt in drafted for couple in rows]
    pairs = [
        Pair(
            pair_id=f"draft-{i:03d}",
            problem_id=hack.problem_id,
            messages=hack.messages,
            hack=hack.turns or hack.text,
            clean=clean.turns or clean.text,
            flavour="drafted",
            held_out=False,
        )
        for i, (hack, clean) in enumerate(couples)
    ]
    return split_by_prompt(pairs, seed), len(matched)


def _matched(rows: Sequence[Answer]) -> list[tuple[Answer, Answer]]:
    """Pair hacks and clean answers of one prompt, each text once; no side is unlabelled or wrong."""
    hacks, clean = dict[str, Answer](), dict[str, Answer]()
    for row in rows:
        is_wrong = not row.hacked and row.gt_pass is False
        if row.hacked is not None and not is_wrong and row.text.strip():
            (hacks if row.hacked else clean)[row.text] = row
    nearest = sorted(product(hacks, clean), key=lambda texts: (abs(len(texts[0]) - len(texts[1])), texts))
    chosen: list[tuple[Answer, Answer]] = []
    used: set[str] = set()
    for hack, other in nearest:
        if len(chosen) < PAIRS_PER_PROMPT and not {hack, other} & used:
            chosen.append((hacks[hack], clean[other]))
            used |= {hack, other}
    return chosen
