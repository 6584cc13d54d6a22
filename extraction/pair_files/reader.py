"""`read_pair_file`: a file of any format of `formats` into pairs, with a sentence on everything that was decided."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from statistics import median
from typing import Any

from extraction.pair_files.chat import (
    ValueFault,
    answer_of,
    is_conversation,
    is_rendered,
    messages_of,
    split_conversations,
)
from extraction.pair_files.formats import FIELDS, MAP, OPTIONAL, parse_map, recognise
from extraction.pair_files.pair import Pair
from extraction.pair_files.rows import read_rows
from extraction.pair_files.split import split_by_prompt
from replay_pools.consistency import described, is_text
from replay_pools.errors import Faults, InputError
from replay_pools.storage.files import dump_json

MOST_SHOWN = 60  # characters of a text in an example
FEWEST_FOR_A_SIGN = 6  # held-out pairs: with fewer, no sign is proven at 95%
SPLIT_SEED = "intervention.extraction.split_seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """What a file holds."""

    pairs: list[Pair]
    format: str
    columns: Mapping[str, str]  # {field of a pair: column of the file}
    notes: list[str]  # sentences: what was recognised, dropped, split and measured


@dataclass(slots=True)
class _Reading:
    """The rows of a file on their way to pairs."""

    columns: Mapping[str, str]
    faults: Faults
    dropped: Counter[str] = field(default_factory=Counter)  # {why: pairs}
    num_rendered: int = 0  # prompts that were ChatML
    seen: set[tuple[bytes, str, str]] = field(default_factory=set)  # prompt, hack and clean of the pairs so far

    def pair(self, row: Mapping[str, Any], where: str, number: int) -> Pair | None:
        """The pair of a row; None where a side is empty, both are equal, or a row before it has the same texts.

        A row with faults gives None, too.
        """
        missing = [column for name, column in self.columns.items() if name not in OPTIONAL and column not in row]
        for column in missing:
            self.faults.add(
                f"{where} {column}", column, expected="a value", found=f"no such key, only {', '.join(sorted(row))}"
            )
        if missing:
            return None
        parts = self._texts(row, where)
        names = self._names(row, where, number)
        if parts is None or names is None:
            return None
        messages, hack, clean = parts
        if not hack.strip() or not clean.strip():
            self.dropped["an empty side"] += 1
            return None
        if hack == clean:
            self.dropped["the same text on both sides"] += 1
            return None
        # Once: a pair that counts several times would make every interval narrower than what is known.
        texts = (dump_json(messages), hack, clean)
        if texts in self.seen:
            self.dropped["the same prompt and answers as one before"] += 1
            return None
        self.seen.add(texts)
        return Pair(messages=messages, hack=hack, clean=clean, **names)

    def _texts(self, row: Mapping[str, Any], where: str) -> tuple[list[dict[str, str]], str, str] | None:
        """(messages, hack, clean) of a row; None where one of them is at fault."""
        hack_column, clean_column = self.columns["hack"], self.columns["clean"]
        try:
            if "prompt" not in self.columns:
                return split_conversations(row[hack_column], row[clean_column])
            if is_conversation(row[hack_column]) and is_conversation(row[clean_column]):
                return self._whole(row)
        except ValueFault as fault:
            self._note(fault, where, f"{hack_column}, {clean_column}")
            return None
        values: list[Any] = []
        for name, parse in (("prompt", messages_of), ("hack", answer_of), ("clean", answer_of)):
            try:
                values.append(parse(row[self.columns[name]]))
            except ValueFault as fault:
                self._note(fault, where, self.columns[name])
        if len(values) < 3:
            return None
        self.num_rendered += is_rendered(row[self.columns["prompt"]])
        return values[0], values[1], values[2]

    def _whole(self, row: Mapping[str, Any]) -> tuple[list[dict[str, str]], str, str]:
        """(messages, hack, clean) of a row whose sides are conversations, its prompt once more within them."""
        messages, hack, clean = split_conversations(row[self.columns["hack"]], row[self.columns["clean"]])
        prompt = messages_of(row[self.columns["prompt"]])
        if messages[-len(prompt) :] != prompt:
            raise ValueFault("conversations with the prompt of the row before their answers", "another one")
        return messages, hack, clean

    def _names(self, row: Mapping[str, Any], where: str, number: int) -> dict[str, Any] | None:
        """pair_id, problem_id, flavour and held_out of a row, with their defaults; None where one is at fault."""
        names: dict[str, Any] = {
            "pair_id": f"{number:03d}",
            "problem_id": f"{number:03d}",
            "flavour": "all",
            "held_out": False,
        }
        is_sound = True
        for name in names:
            value = row.get(self.columns.get(name, ""))
            if value is None:
                continue
            kind = "true or false" if name == "held_out" else "a text or a whole number"
            is_kind = isinstance(value, bool) == (name == "held_out") and (isinstance(value, int) or is_text(value))
            if not is_kind:
                self._note(ValueFault(kind, described(value)), where, self.columns[name])
                is_sound = False
            names[name] = value if name == "held_out" else str(value)
        return names if is_sound else None

    def _note(self, fault: ValueFault, where: str, column: str) -> None:
        self.faults.add(f"{where} {column}", column, expected=fault.expected, found=fault.found)


def read_pair_file(source: str, columns: str | None = None, split_seed: int = 0) -> PairFile:
    """The pairs of a file.

    Args:
        source: the path; of a Markdown file with `#section`, `#section/prefix` or `#section@tag,tag` behind it.
        columns: `FIELD=COLUMN,...`, where the format does not say what a column is.
        split_seed: of the part that is held out where no column says it.

    Raises:
        InputError: no such file, no known format; all faults of the rows, together.
    """
    given = parse_map(columns)
    faults = Faults()
    rows = read_rows(source, faults)
    present = {key for _, row in rows for key in row}
    if not rows:
        faults.check(source)
        raise InputError(f"pairs {source}", expected="at least one pair", found="an empty file")
    try:
        name, fields = recognise(present, given)
    except InputError as error:
        faults.add(f"{source} {error.where}", "columns", expected=error.expected, found=error.found, fix=error.fix)
        faults.check(source)
        raise
    _check_spelling(present - {*fields.values()}, fields, source, faults)
    reading = _Reading(fields, faults)
    pairs: list[Pair] = []
    for number, (where, row) in enumerate(rows, 1):
        pair = reading.pair(row, where, number)
        if pair is not None:
            pairs.append(pair)
    _check_ids(pairs, source, faults)
    faults.check(source)
    if not pairs:
        why = "; ".join(f"{count} with {reason}" for reason, count in reading.dropped.items())
        raise InputError(f"pairs {source}", expected="at least one pair", found=why)
    notes = _notes(source, name, fields, present, reading, pairs)
    if "held_out" not in fields:
        pairs = split_by_prompt(pairs, split_seed)
        notes.append(_split_note(pairs, split_seed))
    elif both := _on_both_sides(pairs):
        why = "such held-out pairs do not show whether the sign transfers to other prompts"
        notes.append(f"caution: {both} prompts have pairs that are held out and pairs that are not: {why}")
    notes.append(_lengths(pairs))
    return PairFile(pairs=pairs, format=name, columns=fields, notes=notes)


def _check_spelling(left_out: set[str], fields: Mapping[str, str], source: str, faults: Faults) -> None:
    """A column that nearly has the name of a field that the file lacks is a misspelling, not a column to leave out."""
    for column in sorted(left_out):
        near = get_close_matches(column, [name for name in FIELDS if name not in fields], n=1, cutoff=0.75)
        if near:
            fix = f"rename it, or say {MAP} {near[0]}={column}"
            faults.add(f"{source} {column}", column, expected=near[0], found="a key that is nearly this one", fix=fix)


def _check_ids(pairs: Sequence[Pair], source: str, faults: Faults) -> None:
    counts = Counter(pair.pair_id for pair in pairs)
    repeated = sorted(pair_id for pair_id, count in counts.items() if count > 1)
    if repeated:
        faults.add(
            source, "pair_id", expected="a pair_id of its own for every pair", found=f"twice {', '.join(repeated)}"
        )


def _notes(
    source: str,
    name: str,
    fields: Mapping[str, str],
    present: set[str],
    reading: _Reading,
    pairs: Sequence[Pair],
) -> list[str]:
    """What was recognised, left out, dropped and taken apart."""
    said = ", ".join(f"{field}={column}" for field, column in fields.items())
    notes = [f"pairs {source}: {len(pairs)}, read as {name} ({said}; corrected by {MAP} FIELD=COLUMN,...)"]
    left_out = sorted(present - {*fields.values()})
    if left_out:
        notes.append(f"columns of no use to a pair, left out: {', '.join(left_out)}")
    for reason, count in reading.dropped.items():
        notes.append(f"dropped: {count} pairs with {reason}")
    if reading.num_rendered:
        notes.append(f"{reading.num_rendered} prompts are rendered ChatML: the model's own template renders them again")
    # Which side hacks is the user's word alone: an eye on two pairs would see it turned around.
    if fields["hack"] != "hack" and name != "school-of-reward-hacks":
        for pair in pairs[:2]:
            notes.append(f"please confirm: hack {_start(pair.hack)} against clean {_start(pair.clean)}")
    return notes


def _split_note(pairs: Sequence[Pair], split_seed: int) -> str:
    num_held_out = sum(pair.held_out for pair in pairs)
    how = f'split by prompt with {SPLIT_SEED} {split_seed}, since no row says "held_out"'
    few = f"; fewer than {FEWEST_FOR_A_SIGN} prove no sign" if num_held_out < FEWEST_FOR_A_SIGN else ""
    return f"held out: {num_held_out} of {len(pairs)} pairs, {how}{few}"


def _on_both_sides(pairs: Sequence[Pair]) -> int:
    """Prompts with held-out pairs and with others."""
    held_out = {dump_json(pair.messages) for pair in pairs if pair.held_out}
    return len(held_out & {dump_json(pair.messages) for pair in pairs if not pair.held_out})


def _lengths(pairs: Sequence[Pair]) -> str:
    """A direction from pairs of different lengths is one of length as well."""
    hack, clean = (median(len(getattr(pair, side)) for pair in pairs) for side in ("hack", "clean"))
    text = f"median length: hack {hack:.0f}, clean {clean:.0f} characters"
    if max(hack, clean) > 1.5 * min(hack, clean):
        return f"{text}; the direction will be one of length, too"
    return text


def _start(text: str) -> str:
    return repr(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")
