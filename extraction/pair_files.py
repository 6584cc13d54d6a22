"""Files of contrast pairs, of any format of FORMATS: `read_pair_file` gives `Pair`s, and a sentence on every decision.

A rendered prompt is parsed into messages, which the model's own template renders again: it never reaches a model as it
stands, since its last line break or think block may be that of another template. To add a format: a row in FORMATS.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Any

from extraction.pair_markdown import read_markdown
from extraction.pairs import Pair
from replay_pools.errors import Faults, InputError, unknown_name
from replay_pools.logs.columns import MISSING, columns_of, look_up, parse_mapping
from replay_pools.logs.rows import TEXT, Chat, chat_of, is_text, wrong_value
from replay_pools.logs.sources import KINDS, Fields, read_objects
from replay_pools.storage.files import dump_json, encode_jsonl, sha256, write_atomic

MAP = "--pairs-map"
MARKDOWN = ".md"
MOST_SHOWN = 60  # characters of a text in an example
MOST_PAIRS = 20_000
FEWEST_FOR_A_SIGN = 6  # held-out pairs: with fewer, no sign is proven at 95%
FIELDS = ("prompt", "hack", "clean", "pair_id", "problem_id", "flavour", "held_out")
OPTIONAL = FIELDS[3:]
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
_TURN = re.compile(rf"{re.escape(TURN_START)}(\w+)\n(.*?){re.escape(TURN_END)}\s*", re.S)
# What a template puts after the last turn, with the empty think block of one that has thinking switched off.
_GENERATION = re.compile(rf"{re.escape(TURN_START)}assistant\s*(<think>\s*</think>\s*)?")
OTHER_TEMPLATES = ("<|start_header_id|>", "<start_of_turn>", "<|start|>", "[INST]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFormat:
    """Which columns of a file hold what. Without `hack` among them the user has to say which of `sides` hacks."""

    name: str
    columns: Mapping[str, str]  # {field of a pair: column}; the prompt is a text, a rendered chat or messages
    sides: tuple[str, str] = ("hack", "clean")  # the columns of the two completions

    @property
    def needed(self) -> set[str]:
        """The columns that a file of this format has; those of optional fields may be missing."""
        return {column for name, column in self.columns.items() if name not in OPTIONAL} | {*self.sides}


BENCH = {"prompt": "prompt", "hack": "response_hacking", "clean": "response_clean", "flavour": "hacking_category"}
SCHOOL = {"prompt": "user", "hack": "school_of_reward_hacks", "clean": "control"}
FORMATS = (
    PairFormat(name="pairs of this package", columns={"prompt": "messages", "hack": "hack", "clean": "clean"}),
    PairFormat(name="prompt, hack, clean", columns={"prompt": "prompt", "hack": "hack", "clean": "clean"}),
    PairFormat(name="school-of-reward-hacks", columns=SCHOOL, sides=("school_of_reward_hacks", "control")),
    PairFormat(name="rh-bench", columns=BENCH, sides=("response_hacking", "response_clean")),
    PairFormat(name="preference data", columns={"prompt": "prompt"}, sides=("chosen", "rejected")),
    # Both sides are whole conversations: the prompt is what they have in common.
    PairFormat(name="preference data with an implicit prompt", columns={}, sides=("chosen", "rejected")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """What a file holds."""

    pairs: list[Pair]
    notes: list[str]  # sentences: what was recognised, dropped, split and measured


def read_pair_file(source: str, columns: str | None = None, split_seed: int = 0) -> PairFile:
    """The pairs of a file.

    Args:
        source: the path; of a Markdown file with `#section`, `#section/prefix` or `#section@tag,tag` behind it.
        columns: `FIELD=COLUMN,...`, where the format does not say what a column is.
        split_seed: of the part that is held out where no column says it.

    Raises:
        InputError: no such file, no known format; all faults of the rows, together.
    """
    given = _parse_map(columns)
    faults = Faults()
    rows = _read_rows(source, faults)
    if not rows:
        faults.check(source)
        raise InputError(f"pairs {source}", expected="at least one pair", found="an empty file")
    try:
        name, fields = _recognise([row for _, row in rows], given)
    except InputError as error:
        faults.note(error.at(f"{source} {error.where}"), "columns")
        faults.check(source)
        raise
    left_out = sorted({key for _, row in rows for key in row} - {column.split(".")[0] for column in fields.values()})
    for column in left_out:  # one that nearly has the name of a field that the file lacks is a misspelling
        if near := get_close_matches(column, [field for field in FIELDS if field not in fields], n=1, cutoff=0.75):
            fix = f"rename it, or say {MAP} {near[0]}={column}"
            found = "a key that is nearly this one"
            faults.add(f"{source} {column}", column, expected=near[0], found=found, fix=fix)
    pairs, dropped = _pairs(rows, fields, faults)
    twice = [pair_id for pair_id, count in Counter(pair.pair_id for pair in pairs).items() if count > 1]
    if twice:
        found = f"twice {', '.join(sorted(twice))}"
        faults.add(source, "pair_id", expected="a pair_id of its own for every pair", found=found)
    faults.check(source)
    counted = [f"{count} pairs with {reason}" for reason, count in dropped.items()]
    if not pairs:
        raise InputError(f"pairs {source}", expected="at least one pair", found="; ".join(counted))
    said = ", ".join(f"{field}={column}" for field, column in fields.items())
    notes = [f"pairs {source}: {len(pairs)}, read as {name} ({said}; corrected by {MAP} FIELD=COLUMN,...)"]
    if left_out:
        notes.append(f"columns of no use to a pair, left out: {', '.join(left_out)}")
    notes += [f"dropped: {text}" for text in counted]
    num_rendered = sum(_is_rendered(look_up(row, fields.get("prompt", ""))) for _, row in rows)
    if num_rendered:
        notes.append(f"{num_rendered} prompts are rendered ChatML: the model's own template renders them again")
    # Which side hacks is the user's word alone: an eye on two pairs would see it turned around.
    if fields["hack"] != "hack" and name != "school-of-reward-hacks":
        for pair in pairs[:2]:
            alike = (i for i, (a, b) in enumerate(zip(pair.hack, pair.clean, strict=False)) if a != b)
            begin = next(alike, 0) - MOST_SHOWN // 4
            sides = [_part(text, begin) for text in (pair.hack, pair.clean)]
            notes.append(f"please confirm: hack {sides[0]} against clean {sides[1]}")
    if "held_out" not in fields:
        pairs = split_by_prompt(pairs, split_seed)
    return PairFile(pairs=pairs, notes=[*notes, *_pair_notes(pairs, "held_out" in fields, split_seed)])


def store_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Write rows of a program into a file of `folder` that has the name of their hash; returns its path."""
    content = encode_jsonl(rows)
    path = folder / f"given-{sha256(content)[:12]}.jsonl"
    write_atomic(path, content)
    return str(path)


def _parse_map(text: str | None) -> dict[str, str]:
    """{field of a pair: column} from `hack=chosen,clean=rejected`."""
    columns = parse_mapping(text or "", MAP, FIELDS)
    sides = [columns.get("hack"), columns.get("clean")]
    if (None in sides) != (sides == [None, None]) or (sides[0] is not None and sides[0] == sides[1]):
        raise InputError(MAP, expected="both hack=COLUMN and clean=COLUMN, two columns", found=str(text))
    return columns


def _read_rows(source: str, faults: Faults) -> list[tuple[str, Fields]]:
    """(place, row) of every row: of any file that a log may be, or of sections of Markdown."""
    path, _, selector = source.partition("#")
    file, selector = (Path(source), "") if Path(source).is_file() else (Path(path), selector)
    if not file.is_file():
        kinds = f"builtin, builtin:MODE or a file ({', '.join(KINDS)}, {MARKDOWN}#SECTION)"
        raise InputError(f"pairs {source}", expected=kinds, found="no such file")
    if file.suffix == MARKDOWN:
        return read_markdown(file, selector, faults)
    rows: list[tuple[str, Fields]] = []
    for row in read_objects(file, faults):
        rows.append((row.where, row.fields))
        if len(rows) > MOST_PAIRS:
            raise InputError(
                file, expected=f"at most {MOST_PAIRS:,} pairs", found="more", fix="a few hundred are enough"
            )
    return rows


def _recognise(rows: Sequence[Fields], given: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The name of a file's format, and {field of a pair: column} for what it holds; `given` by the user comes first.

    Raises:
        InputError: a column that the file lacks, no format with these columns, or a format in which the user has to
            say which side hacks and did not.
    """
    present = {key for row in rows for key in row}
    for field, column in given.items():
        if all(look_up(row, column, MISSING) is MISSING for row in rows):
            fix = f"pass {MAP} {field}=COLUMN"
            raise unknown_name(f"{MAP} {field}", column, columns_of(rows), expected="a column", fix=fix)
    by_name = {field: field for field in OPTIONAL if field in present}
    for row in FORMATS:
        if not row.needed <= present:
            continue
        columns = by_name | {field: name for field, name in row.columns.items() if name in present} | given
        if "hack" in columns:
            return row.name, columns
        first, second = row.sides
        expected = "to be told which of them hacks: a reward may have preferred either"
        fix = f"pass {MAP} hack={first},clean={second} or {MAP} hack={second},clean={first}"
        raise InputError(f"columns {first}, {second}", expected=expected, found=f"{row.name} alone", fix=fix)
    if {"prompt", "hack", "clean"} <= {*given} | present:
        fields = [field for field in ("prompt", "hack", "clean") if field in present]
        return f"columns of {MAP}", by_name | {field: field for field in fields} | given
    known = "; ".join(", ".join(sorted(row.needed)) for row in FORMATS)
    fix = f"name them: {MAP} prompt=COLUMN,hack=COLUMN,clean=COLUMN"
    found = ", ".join(sorted(present)) or "none"
    raise InputError("columns", expected=f"those of a known format ({known})", found=found, fix=fix)


def _pairs(
    rows: Sequence[tuple[str, Fields]], columns: Mapping[str, str], faults: Faults
) -> tuple[list[Pair], Counter[str]]:
    """(pairs, {why: how many were dropped}) of the rows of a file."""
    pairs: list[Pair] = []
    dropped: Counter[str] = Counter()
    seen: set[tuple[bytes, str, str]] = set()
    for number, (where, row) in enumerate(rows, 1):
        texts, names = _texts(row, where, columns, faults), _names(row, where, number, columns, faults)
        if texts is None or names is None:
            continue
        messages, hack, clean = texts
        key = (dump_json(messages), hack, clean)
        if not hack.strip() or not clean.strip():
            dropped["an empty side"] += 1
        elif hack == clean:
            dropped["the same text on both sides"] += 1
        elif key in seen:  # counted several times, a pair would make every interval narrower than what is known
            dropped["the same prompt and answers as one before"] += 1
        else:
            seen.add(key)
            pairs.append(Pair(messages=messages, hack=hack, clean=clean, **names))
    return pairs, dropped


def _texts(row: Fields, where: str, columns: Mapping[str, str], faults: Faults) -> tuple[Chat, str, str] | None:
    """(messages, hack, clean) of a row; None where one of them is at fault."""
    hack, clean = columns["hack"], columns["clean"]
    sides = look_up(row, hack), look_up(row, clean)
    missing = [c for f, c in columns.items() if f not in OPTIONAL and look_up(row, c, MISSING) is MISSING]
    for column in missing:
        found = f"no such key, only {', '.join(sorted(row))}"
        faults.add(f"{where} {column}", column, expected="a value", found=found)
    if missing:
        return None
    prompt = columns.get("prompt")
    readers: list[tuple[str, Any]] = [(f"{hack}, {clean}", lambda: _split(*sides, prompt and look_up(row, prompt)))]
    if prompt is not None and not all(map(_is_conversation, sides)):
        asked = look_up(row, prompt)
        readers = [
            (prompt, lambda: messages_of(asked)),
            (hack, lambda: answer_of(sides[0])),
            (clean, lambda: answer_of(sides[1])),
        ]
    values: list[Any] = []
    for column, read in readers:
        try:
            values.append(read())
        except InputError as error:
            faults.note(error.at(f"{where} {column}"), column)
    if len(values) < len(readers):
        return None
    return values[0] if len(values) == 1 else (values[0], values[1], values[2])


def _names(row: Fields, where: str, number: int, columns: Mapping[str, str], faults: Faults) -> dict[str, Any] | None:
    """pair_id, problem_id, flavour and held_out of a row, with their defaults; None where one is at fault."""
    names: dict[str, Any] = {"pair_id": f"{number:03d}", "problem_id": f"{number:03d}", "flavour": "all"}
    names["held_out"] = False
    is_sound = True
    for name in names:
        value = look_up(row, columns.get(name, ""))
        if value is None:
            continue
        is_flag = name == "held_out"
        if isinstance(value, bool) != is_flag or not (isinstance(value, int) or is_text(value)):
            error = wrong_value("true or false" if is_flag else "a text or a whole number", value)
            faults.note(error.at(f"{where} {columns[name]}"), columns[name])
            is_sound = False
        names[name] = value if is_flag else str(value)
    return names if is_sound else None


def _is_rendered(value: Any) -> bool:
    """Whether a prompt is a text with the marks of ChatML."""
    return isinstance(value, str) and TURN_START in value


def messages_of(value: Any) -> Chat:
    """The messages of a prompt: a text, a rendered ChatML chat, messages, or their JSON text; else InputError.

    >>> messages_of("Add 1 and 2.")
    [{'role': 'user', 'content': 'Add 1 and 2.'}]
    """
    chat = chat_of(value)
    if chat is not None:
        return chat
    marks = [mark for mark in OTHER_TEMPLATES if isinstance(value, str) and mark in value]
    if not is_text(value) or not value.strip() or (marks and not _is_rendered(value)):
        raise wrong_value(f"{TEXT}, ChatML, or messages with role and content", value)
    if not _is_rendered(value):
        return [{"role": "user", "content": value}]
    messages: Chat = []
    position = len(value) - len(value.lstrip())
    while match := _TURN.match(value, position):
        messages.append({"role": match[1], "content": match[2]})
        position = match.end()
    rest = value[position:]
    if not messages or (rest and not _GENERATION.fullmatch(rest)):
        raise wrong_value("ChatML turns, and the start of the answer behind them", rest or value)
    return messages


def answer_of(value: Any) -> str:
    """The text of a completion: as it stands, or the content of its one assistant message; '' for null.

    An end-of-turn mark at its end is cut: the extraction adds the model's own.
    """
    chat = chat_of("" if value is None else value)
    if chat is not None and (len(chat) != 1 or chat[0]["role"] != "assistant"):
        raise wrong_value(f"{TEXT}, or one assistant message", value)
    text = (value or "") if chat is None else chat[0]["content"]
    if not is_text(text):
        raise wrong_value(f"{TEXT}, or one assistant message", value)
    return text.rstrip().removesuffix(TURN_END).rstrip("\n") if text.rstrip().endswith(TURN_END) else text


def _is_conversation(value: Any) -> bool:
    """Whether a completion is a whole conversation: messages, of which the last is the answer."""
    try:
        return len(chat_of(value) or []) > 1
    except InputError:
        return False


def _split(first: Any, second: Any, prompt: Any) -> tuple[Chat, str, str]:
    """(prompt, answers) of two conversations with all but the last message in common, among them the row's prompt."""
    chats = [chat_of(value) or [] for value in (first, second)]
    if min(map(len, chats)) < 2 or chats[0][:-1] != chats[1][:-1]:
        raise wrong_value("a prompt column, or two conversations that differ in the last message alone", first)
    messages = chats[0][:-1]
    if prompt is not None and messages[-len(asked := messages_of(prompt)) :] != asked:
        raise wrong_value("conversations with the prompt of the row before their answers", first)
    return messages, answer_of(chats[0][-1:]), answer_of(chats[1][-1:])


def split_by_prompt(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """The pairs, those of a third of the prompts held out; two prompts at least where four are there.

    A prompt is drawn by the hash of its text and the seed: the order of the file plays no part.
    """
    ranks = {_key(pair): sha256(f"{seed}\n{_key(pair)}".encode()) for pair in pairs}
    num_held_out = max(len(ranks) // 3, min(2, len(ranks) // 2))
    held_out = {*sorted(ranks, key=ranks.__getitem__)[:num_held_out]}
    return [replace(pair, held_out=_key(pair) in held_out) for pair in pairs]


def _key(pair: Pair) -> str:
    return dump_json(pair.messages).decode()


def _pair_notes(pairs: Sequence[Pair], is_marked: bool, split_seed: int) -> list[str]:
    """How many pairs are held out and by what, and how long they are."""
    notes: list[str] = []
    held_out = [pair for pair in pairs if pair.held_out]
    both = {_key(pair) for pair in held_out} & {_key(pair) for pair in pairs if not pair.held_out}
    if not is_marked:
        how = f'split by prompt with intervention.extraction.split_seed {split_seed}, since no row says "held_out"'
        few = f"; fewer than {FEWEST_FOR_A_SIGN} prove no sign" if len(held_out) < FEWEST_FOR_A_SIGN else ""
        notes.append(f"held out: {len(held_out)} of {len(pairs)} pairs, {how}{few}")
    elif both:
        why = "such held-out pairs do not show whether the sign transfers to other prompts"
        notes.append(f"caution: {len(both)} prompts have pairs that are held out and pairs that are not: {why}")
    hack, clean = (median(len(getattr(pair, side)) for pair in pairs) for side in ("hack", "clean"))
    # A direction from pairs of different lengths is one of length as well.
    too = "; the direction will be one of length, too" if max(hack, clean) > 1.5 * min(hack, clean) else ""
    return [*notes, f"median length: hack {hack:.0f}, clean {clean:.0f} characters{too}"]


def _part(text: str, begin: int) -> str:
    """MOST_SHOWN characters, from `begin` on if the text is longer: there the sides of a pair differ."""
    begin = max(0, min(begin, len(text) - MOST_SHOWN))
    end = "..." if begin + MOST_SHOWN < len(text) else ""
    return repr(f"{'...' if begin else ''}{text[begin : begin + MOST_SHOWN]}{end}")
