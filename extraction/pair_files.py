"""Read files of contrast pairs: `read_pair_file` returns `Pair`s, and says every decision.

A row has a prompt (a text or messages), a hack and a clean completion (a text, or turns with tool answers between).
`FIELDS` lists the names that are recognised; `--pairs-map FIELD=COLUMN,...` names others. A prompt that a chat template
has rendered is refused: only the model's own template renders messages.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from extraction.pairs import Pair, Turns, text_of
from replay_pools.base.errors import Faults, InputError, unknown_name
from replay_pools.base.files import dump_json, encode_jsonl, sha256, write_atomic
from replay_pools.base.tables import TRUTHS
from replay_pools.logs.columns import MARKUP, MISSING, columns_of, look_up, parse_mapping
from replay_pools.logs.rows import KINDS, Fields, read_objects, read_rows
from replay_pools.logs.values import TEXT, Chat, is_plain, is_text, turns_of, wrong_value

MAP = "--pairs-map"
FEWEST_FOR_A_SIGN = 6  # held-out pairs: with fewer, no sign is proven at 95%
NEEDED = ("prompt", "hack", "clean")
_END_MARK = re.compile(r"(<[|\uff5c][^<>\s]+[|\uff5c]>|<end_of_turn>)\s*$")


def read_pair_file(
    source: str, columns: str | None = None, say: Callable[[str], object] = lambda note: None
) -> list[Pair]:
    """Return the pairs of a file; where no column says which are held out, a third of the prompts is.

    Args:
        source: the path of a file of rows, of any kind that a log may have.
        columns: `FIELD=COLUMN,...`, for columns of other names than those in `FIELDS`.
        say: gets a sentence on each decision.

    Raises:
        InputError: no such file, a column that cannot be found; all faults of the rows, together.
    """
    mapped, faults = parse_mapping(columns or "", MAP, [*FIELDS]), Faults()
    rows = _read_rows(Path(source), faults)
    fields: dict[str, str] = {}
    try:
        fields = _columns([row for _, row in rows], mapped)
    except InputError as error:
        faults.note(error.at(f"{source} {error.where}"), "columns")
    pairs, dropped = _pairs(rows, fields, faults) if fields else ([], Counter())
    twice = [pair_id for pair_id, count in Counter(pair.pair_id for pair in pairs).items() if count > 1]
    if twice:
        found = f"twice {', '.join(sorted(twice))}"
        faults.add(source, "pair_id", expected="a pair_id of its own for every pair", found=found)
    faults.check(source)
    counted = [f"{count} pairs with {reason}" for reason, count in dropped.items()]
    if not pairs:
        raise InputError(f"pairs {source}", expected="at least one pair", found="; ".join(counted))
    mapping = ", ".join(f"{field}={column}" for field, column in fields.items())
    say(f"pairs {source}: {len(pairs)} ({mapping}; {MAP} FIELD=COLUMN,... corrects this)")
    if unused := sorted({key for _, row in rows for key in row} - {name.split(".")[0] for name in fields.values()}):
        say(f"columns that no pair uses: {', '.join(unused)}")
    for text in counted:
        say(f"dropped: {text}")
    if "held_out" not in fields:
        pairs = split_by_prompt(pairs)
    for note in _pair_notes(pairs, "held_out" in fields):
        say(note)
    return pairs


def store_rows(rows: Any, folder: Path) -> str:
    """Write rows (dicts, a DataFrame or a data set) to a file of `folder` named by their hash; return its path.

    A path, or the name of bundled pairs, is returned as it is.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    content = encode_jsonl(row.fields for row in read_rows(rows))
    path = folder / f"given-{sha256(content)[:12]}.jsonl"
    write_atomic(path, content)
    return str(path)


def _read_rows(path: Path, faults: Faults) -> list[tuple[str, Fields]]:
    """Return (place, row) of every row."""
    if not path.is_file():
        kinds = f"builtin, builtin:MODE or a file ({', '.join(KINDS)})"
        raise InputError(f"pairs {path}", expected=kinds, found="no such file")
    rows: list[tuple[str, Fields]] = []
    for row in read_objects(path):
        if isinstance(row.error, InputError):
            faults.note(row.error, "line")
            continue
        rows.append((row.where, row.fields))
    if not rows:
        faults.check(path)
        raise InputError(f"pairs {path}", expected="at least one pair", found="an empty file")
    return rows


def _columns(rows: Sequence[Fields], mapped: Mapping[str, str]) -> dict[str, str]:
    """Return {field of a pair: its column}, `mapped` ones first.

    Raises:
        InputError: a mapped column that the file lacks, or a needed field without a column.
    """
    present = {key for row in rows for key in row}
    for field, column in mapped.items():
        if all(look_up(row, column, MISSING) is MISSING for row in rows):
            fix = f"pass {MAP} {field}=COLUMN"
            raise unknown_name(f"{MAP} {field}", column, columns_of(rows), expected="a column", fix=fix)
    fields: dict[str, str] = {}
    for field, (names, _) in FIELDS.items():
        if column := mapped.get(field) or next((name for name in names if name in present), None):
            fields[field] = column
    missing = [field for field in NEEDED if field not in fields]
    if missing:
        expected = "; ".join(f"{field}: {' or '.join(FIELDS[field][0])}" for field in missing)
        fix = f"name them: {MAP} {','.join(f'{field}=COLUMN' for field in missing)}"
        raise InputError("columns", expected=expected, found=", ".join(sorted(present)) or "none", fix=fix)
    return fields


def _pairs(
    rows: Sequence[tuple[str, Fields]], columns: Mapping[str, str], faults: Faults
) -> tuple[list[Pair], Counter[str]]:
    """Return (pairs, {why: how many were dropped}) of the rows of a file."""
    pairs: list[Pair] = []
    dropped: Counter[str] = Counter()
    seen: set[bytes] = set()
    for number, (where, row) in enumerate(rows, 1):
        values: dict[str, Any] = dict.fromkeys(("pair_id", "problem_id"), f"{number:03d}")
        values |= {"flavour": "all", "held_out": False}
        for field, column in columns.items():
            value = look_up(row, column, MISSING)
            if field not in NEEDED and (value is MISSING or value is None):
                continue
            try:
                if value is MISSING:
                    raise InputError("", expected="a value", found=f"no such key, only {', '.join(sorted(row))}")
                values["messages" if field == "prompt" else field] = FIELDS[field][1](value)
            except InputError as error:
                faults.note(error.at(f"{where} {column}"), column)
        if not {"messages", "hack", "clean"} <= values.keys():
            continue
        pair = Pair(**values)
        key = dump_json([pair.messages, pair.hack, pair.clean])
        if not text_of(pair.hack).strip() or not text_of(pair.clean).strip():
            dropped["an empty side"] += 1
        elif pair.hack == pair.clean:
            dropped["the same text on both sides"] += 1
        elif key in seen:  # counted several times, a pair would make every interval too narrow
            dropped["the same prompt and answers as one before"] += 1
        else:
            seen.add(key)
            pairs.append(pair)
    return pairs, dropped


def messages_of(value: Any) -> Chat:
    """Return the messages of a prompt: a text of the user, messages, or their JSON text.

    >>> messages_of("Add 1 and 2.")
    [{'role': 'user', 'content': 'Add 1 and 2.'}]

    Raises:
        InputError: anything else, such as a prompt that a chat template has rendered.
    """
    if turns := turns_of(value):
        if not is_plain(turns):
            raise wrong_value("messages of role and content alone", turns)
        # In the order of the file, by which the hash of a set of pairs goes.
        return [{key: turn[key] for key in turn if key in ("role", "content")} for turn in turns]
    if not is_text(value) or not value.strip() or MARKUP.match(value):
        error = wrong_value(f"{TEXT}, or messages with role and content", value)
        fix = "give the messages: the model's own template renders them" if is_text(value) and value.strip() else ""
        raise InputError("", expected=error.expected, found=error.found, fix=fix)
    return [{"role": "user", "content": value}]


def answer_of(value: Any) -> str | Turns:
    """Return a completion: the text of a text or of one assistant message, '' for null; or the turns of a conversation.

    Raises:
        InputError: anything else, such as a text that ends with the end-of-turn mark of a template.
    """
    text = "" if value is None else value
    if (turns := turns_of(text)) is not None:
        roles = [turn["role"] for turn in turns]
        if roles[0] != "assistant" or roles[-1] != "assistant":
            expected = "turns, the first and the last of the assistant"
            raise InputError("", expected=expected, found=" ".join(roles))
        if len(turns) > 1 or not is_plain(turns):
            return turns
        text = turns[0]["content"]
    if not is_text(text):
        raise wrong_value(f"{TEXT}, or messages with role and content", value)
    if mark := _END_MARK.search(text):
        expected = "a text without the end-of-turn token, which is added"
        raise InputError("", expected=expected, found=f"{mark[1]} at its end", fix="cut the text before it")
    return text


def _name(value: Any) -> str:
    value = int(value) if isinstance(value, float) and value.is_integer() else value  # as CSV holds whole numbers
    if isinstance(value, bool) or not (isinstance(value, int) or is_text(value)):
        raise wrong_value("a text or a whole number", value)
    return str(value)


def _flag(value: Any) -> bool:
    if (flag := TRUTHS.get(str(value).strip().lower())) is None:
        raise wrong_value("true or false", value)
    return flag


# {field of a pair: (names of its column, the first one present is read; its reader)}, in this package,
# school-of-reward-hacks and rh-bench. To add a format: names.
FIELDS: Mapping[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "prompt": (("messages", "prompt", "user"), messages_of),
    "hack": (("hack", "school_of_reward_hacks", "response_hacking"), answer_of),
    "clean": (("clean", "control", "response_clean"), answer_of),
    "pair_id": (("pair_id",), _name),
    "problem_id": (("problem_id",), _name),
    "flavour": (("flavour", "hacking_category"), _name),
    "held_out": (("held_out",), _flag),
}


def split_by_prompt(pairs: Sequence[Pair], seed: int = 0) -> list[Pair]:
    """Return the pairs with a third of the prompts held out, at least two of four or more.

    A prompt is drawn by the hash of its text and the seed, so the order of the file plays no part.
    """
    ranks = {_key(pair): sha256(f"{seed}\n{_key(pair)}".encode()) for pair in pairs}
    num_held_out = max(len(ranks) // 3, min(2, len(ranks) // 2))
    held_out = {*sorted(ranks, key=ranks.__getitem__)[:num_held_out]}
    return [replace(pair, held_out=_key(pair) in held_out) for pair in pairs]


def _key(pair: Pair) -> str:
    return dump_json(pair.messages).decode()


def _pair_notes(pairs: Sequence[Pair], is_marked: bool) -> list[str]:
    """Say how many pairs are held out and by what, and how long the sides are."""
    notes: list[str] = []
    held_out = [pair for pair in pairs if pair.held_out]
    both = {_key(pair) for pair in held_out} & {_key(pair) for pair in pairs if not pair.held_out}
    if not is_marked:
        how = 'split by prompt, since no row says "held_out"'
        few = f"; fewer than {FEWEST_FOR_A_SIGN} prove no sign" if len(held_out) < FEWEST_FOR_A_SIGN else ""
        notes.append(f"held out: {len(held_out)} of {len(pairs)} pairs, {how}{few}")
    elif both:
        why = "such held-out pairs do not show whether the sign transfers to other prompts"
        notes.append(f"caution: {len(both)} prompts have pairs that are held out and pairs that are not: {why}")
    hack, clean = (median(len(text_of(getattr(pair, side))) for pair in pairs) for side in ("hack", "clean"))
    # A direction from pairs of different lengths is one of length as well.
    too = "; the direction will be one of length, too" if max(hack, clean) > 1.5 * min(hack, clean) else ""
    return [*notes, f"median length: hack {hack:.0f}, clean {clean:.0f} characters{too}"]
