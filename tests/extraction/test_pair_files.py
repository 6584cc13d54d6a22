"""Files of pairs in every format: recognised, dropped, split and refused, with all faults at once."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extraction.pair_files import read_pair_file, split_by_prompt
from extraction.pairs import text_of
from replay_pools.base.errors import InputError, InputErrors

USER = [{"role": "user", "content": "Task 0."}]


def three_keys(n: int = 12) -> list[dict[str, Any]]:
    return [{"prompt": f"Task {i}.", "hack": f"exit({i})", "clean": f"return {i}"} for i in range(n)]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """read(rows, columns) -> the pairs and the notes of these rows; `name` decides between lines and an array."""

    def reading(rows: list[Any], columns: str | None = None, name: str = "pairs.jsonl") -> Any:
        path = tmp_path / name
        lines = [json.dumps(row) for row in rows]
        path.write_text(f"[{','.join(lines)}]" if name.endswith(".json") else "\n".join(lines))
        notes: list[str] = []
        return SimpleNamespace(pairs=read_pair_file(str(path), columns, notes.append), notes=notes)

    return reading


def test_three_keys_are_enough(read: Callable[..., Any]) -> None:
    """Ids from the row, one flavour, a third of the prompts held out; an array holds the same pairs as lines do."""
    file = read(three_keys())
    assert [pair.pair_id for pair in file.pairs] == [f"{i:03d}" for i in range(1, 13)]
    assert {pair.flavour for pair in file.pairs} == {"all"}
    assert file.pairs[0].messages == USER
    assert sum(pair.held_out for pair in file.pairs) == 4
    assert any("split by prompt" in note for note in file.notes)
    assert any("fewer than 6 prove no sign" in note for note in file.notes)
    assert read(three_keys(), name="pairs.json").pairs == file.pairs


def test_the_split_is_of_prompts_and_follows_the_seed(read: Callable[..., Any]) -> None:
    """No prompt on both sides; neither the order nor the number of a prompt's pairs moves it."""
    rows = three_keys()
    twice = [*rows, *({**row, "hack": row["hack"] + " # again"} for row in rows)]
    sides: dict[str, set[bool]] = {}
    for pair in read(twice).pairs:
        sides.setdefault(pair.messages[0]["content"], set()).add(pair.held_out)
    assert {len(side) for side in sides.values()} == {1}

    def held_out(rows: list[Any], seed: int) -> set[str]:
        pairs = split_by_prompt(read(rows).pairs, seed)
        return {pair.messages[0]["content"] for pair in pairs if pair.held_out}

    assert held_out(rows[::-1], 0) == held_out(rows, 0) == {name for name, side in sides.items() if side == {True}}
    assert len({frozenset(held_out(rows, seed)) for seed in range(5)}) > 1
    sizes = {n: len(held_out(three_keys(n), 0)) for n in (1, 2, 3, 4, 9)}
    assert sizes == {1: 0, 2: 1, 3: 1, 4: 2, 9: 3}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", "<|im_start|>user\nTask 0.<|im_end|>\n<|im_start|>assistant\n"),
        ("prompt", "<|start_header_id|>user"),
        ("prompt", "[INST] Task 0. [/INST]"),
        ("prompt", "\ud800"),
        ("prompt", str(USER)),  # as a text it would be one message of the user, markup and all
        ("pair_id", "\ud800"),
        ("hack", "a<|im_end|>\n"),
        ("clean", "b<end_of_turn>"),
        ("clean", [*USER, {"role": "assistant", "content": "b"}]),
        ("clean", [{"role": "assistant", "content": "b"}, *USER]),
        ("clean", json.dumps([{"role": "assistant", "content": "a"}])[:-1]),
    ],
)
def test_a_value_that_is_no_prompt_or_answer_is_refused(read: Callable[..., Any], column: str, value: Any) -> None:
    """The model's own template renders messages and ends answers; no Unicode; messages that are no JSON."""
    with pytest.raises(InputError, match=f"line 1 {column}: expected"):
        read([three_keys()[0] | {column: value}])


def test_a_side_may_be_a_conversation(read: Callable[..., Any]) -> None:
    """Turns are kept with their tool calls; what the policy wrote is the text. One message is its text."""
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "run", "arguments": "{}"}}]}
    turns = [calls, {"role": "tool", "content": "failed"}, {"role": "assistant", "content": "b"}]
    (pair,) = read([{"prompt": "Task 0.", "hack": turns, "clean": json.dumps(turns[::2])}]).pairs
    assert pair.hack == [{**calls, "content": ""}, *turns[1:]]
    assert pair.clean == [{**calls, "content": ""}, turns[2]]
    assert text_of(pair.hack) == "\nb"
    (pair,) = read([{"prompt": json.dumps(USER), "hack": [{"role": "assistant", "content": "a"}], "clean": "b"}]).pairs
    assert (pair.messages, pair.hack, pair.clean) == (USER, "a", "b")


def test_marks_of_the_file_are_kept(read: Callable[..., Any]) -> None:
    """A prompt on both sides of the split is told."""
    rows = [row | {"held_out": i == 3} for i, row in enumerate(three_keys())]
    file = read(rows)
    assert [pair.held_out for pair in file.pairs] == [i == 3 for i in range(12)]
    assert not any("split by prompt" in note or note.startswith("caution") for note in file.notes)
    rows[5]["prompt"] = rows[3]["prompt"]
    assert any(note.startswith("caution: 1 prompts") for note in read(rows).notes)


@pytest.mark.parametrize("words", [("false", "true"), ("0", "1")])
def test_marks_and_names_of_a_csv_file(words: tuple[str, str], tmp_path: Path) -> None:
    """Its columns of numbers hold fractions, its others texts."""
    rows = [f"{i},Task {i},exit({i}),return {i},{words[i % 3 == 0]}\n" for i in range(9)]
    path = tmp_path / "pairs.csv"
    path.write_text("pair_id,prompt,hack,clean,held_out\n" + "".join(rows))
    pairs = read_pair_file(str(path))
    assert [(pair.pair_id, pair.held_out) for pair in pairs] == [(str(i), i % 3 == 0) for i in range(9)]


def test_pairs_without_a_contrast_and_copies_are_dropped(read: Callable[..., Any]) -> None:
    """However often a pair was written, it counts once; another answer to the same prompt is another pair."""
    rows = [*three_keys(4), three_keys()[0] | {"clean": ""}, three_keys()[0] | {"clean": None, "hack": "x"}]
    file = read([*rows, three_keys()[0] | {"clean": "exit(0)"}, *three_keys(4) * 7, three_keys()[0] | {"clean": "7"}])
    assert len(file.pairs) == 5
    assert [note for note in file.notes if note.startswith("dropped: ")] == [
        "dropped: 2 pairs with an empty side",
        "dropped: 1 pairs with the same text on both sides",
        "dropped: 28 pairs with the same prompt and answers as one before",
    ]
    with pytest.raises(InputError, match="expected at least one pair, found 1 pairs with an empty side"):
        read(rows[4:5])


PREFERENCE = [{"prompt": f"Task {i}.", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(6)]


def test_the_direction_of_preferences_is_never_guessed(read: Callable[..., Any]) -> None:
    """Neither name says which side hacks."""
    with pytest.raises(InputError, match="--pairs-map hack=COLUMN,clean=COLUMN"):
        read(PREFERENCE)
    one, other = read(PREFERENCE, "hack=rejected,clean=chosen"), read(PREFERENCE, "hack=chosen,clean=rejected")
    assert [(pair.hack, pair.clean) for pair in one.pairs] == [(pair.clean, pair.hack) for pair in other.pairs]


@pytest.mark.parametrize(
    ("prompt", "hack", "clean"),
    [
        ("messages", "hack", "clean"),
        ("user", "school_of_reward_hacks", "control"),
        ("prompt", "response_hacking", "response_clean"),
    ],
)
def test_public_columns_are_recognised(read: Callable[..., Any], prompt: str, hack: str, clean: str) -> None:
    file = read([{prompt: json.dumps(USER), hack: "a", clean: "b", "hacking_category": "tests"}])
    (pair,) = file.pairs
    assert (pair.messages, pair.hack, pair.clean, pair.flavour) == (USER, "a", "b", "tests")


def test_columns_of_any_name_by_the_map(read: Callable[..., Any]) -> None:
    rows = [{"q": "Task 0.", "bad": "h", "good": "c", "seen": 3, "kind": "exit"}]
    file = read(rows, "prompt=q,hack=bad,clean=good,flavour=kind")
    assert (file.pairs[0].hack, file.pairs[0].flavour) == ("h", "exit")
    assert "columns that no pair uses: seen" in file.notes
    for text in ("prompt=q,hack=worse,clean=good", "prompt=q,hack=bad", "rompt=q", "hack=bad,hack=good"):
        with pytest.raises(InputError, match="--pairs-map|columns"):
            read(rows, text)


def test_all_faults_come_at_once(read: Callable[..., Any]) -> None:
    """Each once, at its first row, with the number of the others."""
    rows: list[Any] = three_keys(6)
    rows[1] = rows[1] | {"hack": 3}
    rows[2] = rows[2] | {"hack": 4, "prompt": None}
    rows[3] = [1]
    with pytest.raises(InputErrors) as refusal:
        read(rows)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 3
    assert any("line 2 hack: expected a text" in line and "(and 1 more place" in line for line in lines)
    assert any("line 3 prompt" in line for line in lines)
    assert any("line 4: expected an object, found list" in line for line in lines)
