"""Files of pairs in every format: recognised, dropped, split and refused, with all faults at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extraction.pair_files import FORMATS, PairFile, read_pair_file
from replay_pools.errors import InputError, InputErrors
from replay_pools.policy.load import load_policy

CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTask {i}.<|im_end|>\n<|im_start|>assistant\n"
USER = [{"role": "user", "content": "Task 0."}]


def three_keys(n: int = 12) -> list[dict[str, Any]]:
    return [{"prompt": f"Task {i}.", "hack": f"exit({i})", "clean": f"return {i}"} for i in range(n)]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., PairFile]:
    """read(rows, columns, seed) -> the file of these rows; `name` decides between lines and an array."""

    def reading(
        rows: list[Any], columns: str | None = None, split_seed: int = 0, name: str = "pairs.jsonl"
    ) -> PairFile:
        path = tmp_path / name
        lines = [json.dumps(row) for row in rows]
        path.write_text(f"[{','.join(lines)}]" if name.endswith(".json") else "\n".join(lines))
        return read_pair_file(str(path), columns, split_seed)

    return reading


def test_three_keys_are_enough(read: Callable[..., PairFile]) -> None:
    """Ids from the row, one flavour, a third of the prompts held out; an array holds the same pairs as lines do."""
    file = read(three_keys())
    assert [pair.pair_id for pair in file.pairs] == [f"{i:03d}" for i in range(1, 13)]
    assert {pair.flavour for pair in file.pairs} == {"all"}
    assert file.pairs[0].messages == USER
    assert sum(pair.held_out for pair in file.pairs) == 4
    assert any("split by prompt with intervention.extraction.split_seed 0" in note for note in file.notes)
    assert any("fewer than 6 prove no sign" in note for note in file.notes)
    assert read(three_keys(), name="pairs.json").pairs == file.pairs


def test_the_split_is_of_prompts_and_follows_the_seed(read: Callable[..., PairFile]) -> None:
    """No prompt on both sides; neither the order nor the number of a prompt's pairs moves it."""
    rows = three_keys()
    twice = [*rows, *({**row, "hack": row["hack"] + " # again"} for row in rows)]
    sides: dict[str, set[bool]] = {}
    for pair in read(twice).pairs:
        sides.setdefault(pair.messages[0]["content"], set()).add(pair.held_out)
    assert {len(side) for side in sides.values()} == {1}

    def held_out(rows: list[Any], seed: int) -> set[str]:
        return {pair.messages[0]["content"] for pair in read(rows, None, seed).pairs if pair.held_out}

    assert held_out(rows[::-1], 0) == held_out(rows, 0) == {name for name, side in sides.items() if side == {True}}
    assert len({frozenset(held_out(rows, seed)) for seed in range(5)}) > 1
    sizes = {n: len(held_out(three_keys(n), 0)) for n in (1, 2, 3, 4, 9)}
    assert sizes == {1: 0, 2: 1, 3: 1, 4: 2, 9: 3}


def test_marks_of_the_file_are_kept(read: Callable[..., PairFile]) -> None:
    rows = [row | {"held_out": i == 3} for i, row in enumerate(three_keys())]
    file = read(rows)
    assert [pair.held_out for pair in file.pairs] == [i == 3 for i in range(12)]
    assert not any("split by prompt" in note for note in file.notes)


def test_rendered_prompts_are_taken_apart(read: Callable[..., PairFile]) -> None:
    """Whatever stands behind the last turn, the model's own template renders the prompt."""
    policy = load_policy("organism")
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Task 7."}]
    prompt = CHATML.replace("{i}", "7")
    for ending in ("", "<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n\n"):
        (pair,) = read([{"prompt": prompt + ending, "hack": "a<|im_end|>\n", "clean": "b"}]).pairs
        assert pair.messages == expected
        assert pair.hack == "a"
        assert policy.render(pair.messages)[0] == prompt
    file = read([{"prompt": prompt.rstrip("\n"), "hack": "a", "clean": "b"}])
    assert file.pairs[0].messages == expected
    assert any("1 prompts are rendered ChatML" in note for note in file.notes)
    for bad in (prompt + "I will", "<|im_start|>user\nno end", "<|start_header_id|>user"):
        with pytest.raises(InputError, match="line 1 prompt: expected"):
            read([{"prompt": bad, "hack": "a", "clean": "b"}])


def test_messages_as_text_and_as_one_answer(read: Callable[..., PairFile]) -> None:
    rows = [{"prompt": json.dumps(USER), "hack": [{"role": "assistant", "content": "a"}], "clean": "b"}]
    (pair,) = read(rows).pairs
    assert (pair.messages, pair.hack, pair.clean) == (USER, "a", "b")
    answer = [{"role": "assistant", "content": "a"}]
    pretty = {"prompt": json.dumps(USER, indent=1), "hack": json.dumps(answer, indent=1), "clean": '[{"value": 1}]'}
    (pair,) = read([pretty]).pairs
    assert (pair.messages, pair.hack, pair.clean) == (USER, "a", '[{"value": 1}]')


def test_messages_that_are_no_json_are_refused(read: Callable[..., PairFile]) -> None:
    """As a text they would be one message of the user, markup and all."""
    answer = [{"role": "assistant", "content": "a"}]
    row = {"prompt": str(USER), "hack": str(answer), "clean": json.dumps(answer, indent=1)[:-1]}
    with pytest.raises(InputErrors) as refusal:
        read([row])
    for error, column in zip(refusal.value.errors, row, strict=True):
        assert error.where.endswith(column)
        assert error.expected == "messages, as a list or as the JSON text of one"


@pytest.mark.parametrize("column", ["prompt", "hack", "clean", "pair_id", "flavour"])
@pytest.mark.parametrize("as_messages", [False, True])
def test_text_that_is_not_unicode_is_refused(read: Callable[..., PairFile], column: str, as_messages: bool) -> None:
    role = "user" if column == "prompt" else "assistant"
    value = [{"role": role, "content": "\ud800"}] if as_messages else "\ud800"
    with pytest.raises(InputError, match=rf"line 1 {column}: expected .*ud800"):
        read([three_keys()[0] | {column: value}])


def test_sides_without_a_contrast_are_dropped(read: Callable[..., PairFile]) -> None:
    rows = [*three_keys(4), three_keys()[0] | {"clean": ""}, three_keys()[0] | {"clean": None, "hack": "x"}]
    rows.append(three_keys()[0] | {"clean": "exit(0)"})
    file = read(rows)
    assert len(file.pairs) == 4
    assert "dropped: 2 pairs with an empty side" in file.notes
    assert "dropped: 1 pairs with the same text on both sides" in file.notes
    with pytest.raises(InputError, match="expected at least one pair, found 1 pairs with an empty side"):
        read(rows[4:5])


def test_a_pair_counts_once(read: Callable[..., PairFile]) -> None:
    """However often it was written; another answer to the same prompt is another pair."""
    rows = three_keys(6)
    file = read(rows * 8)
    assert file.pairs == read(rows).pairs
    assert "dropped: 42 pairs with the same prompt and answers as one before" in file.notes
    assert any("held out: 2 of 6 pairs" in note for note in file.notes)
    assert len(read([*rows, rows[0] | {"clean": "return 7"}]).pairs) == 7


def test_a_prompt_on_both_sides_of_a_marked_split_is_told(read: Callable[..., PairFile]) -> None:
    rows = [row | {"held_out": i > 3} for i, row in enumerate(three_keys(6))]
    assert not any(note.startswith("caution") for note in read(rows).notes)
    rows[5]["prompt"] = rows[0]["prompt"]
    assert any(note.startswith("caution: 1 prompts have pairs that are held out") for note in read(rows).notes)


def test_lengths_are_told(read: Callable[..., PairFile]) -> None:
    file = read([row | {"clean": "x" * 90, "hack": "y" * 30} for row in three_keys()])
    assert file.notes[-1] == "median length: hack 30, clean 90 characters; the direction will be one of length, too"


PREFERENCE = [{"prompt": f"Task {i}.", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(6)]


def test_the_direction_of_preferences_is_never_guessed(read: Callable[..., PairFile]) -> None:
    """Neither name says which side hacks; with the map two pairs are shown."""
    with pytest.raises(InputError, match=r"chosen, rejected: expected to be told which of them hacks") as refusal:
        read(PREFERENCE)
    assert "--pairs-map hack=chosen,clean=rejected or --pairs-map hack=rejected,clean=chosen" in str(refusal.value)
    one, other = read(PREFERENCE, "hack=rejected,clean=chosen"), read(PREFERENCE, "hack=chosen,clean=rejected")
    assert [(pair.hack, pair.clean) for pair in one.pairs] == [(pair.clean, pair.hack) for pair in other.pairs]
    confirmations = [note for note in one.notes if note.startswith("please confirm: ")]
    assert confirmations == [f"please confirm: hack 'bad {i}' against clean 'good {i}'" for i in range(2)]


def test_an_implicit_prompt_is_what_both_conversations_share(read: Callable[..., PairFile]) -> None:
    def conversation(answer: str, first: str = "Task 0.") -> list[dict[str, str]]:
        return [{"role": "user", "content": first}, {"role": "assistant", "content": answer}]

    rows = [{"chosen": conversation("a"), "rejected": conversation("b")}]
    (pair,) = read(rows, "hack=chosen,clean=rejected").pairs
    assert (pair.messages, pair.hack, pair.clean) == (USER, "a", "b")
    rows = [{"chosen": conversation("a"), "rejected": conversation("b", "Task 1.")}, {"chosen": "a", "rejected": "b"}]
    with pytest.raises(InputError, match=r"line 1 chosen, rejected: .*\(and 1 more places\)"):
        read(rows, "hack=chosen,clean=rejected")


def test_a_prompt_beside_whole_conversations(read: Callable[..., PairFile]) -> None:
    """The layout of UltraFeedback: the prompt as a text, and once more in both sides."""
    system = {"role": "system", "content": "Be brief."}

    def row(prompt: Any, *before: dict[str, str]) -> dict[str, Any]:
        sides = {"chosen": "a", "rejected": "b"}
        return {"prompt": prompt} | {
            name: [*before, {"role": "assistant", "content": answer}] for name, answer in sides.items()
        }

    columns = "hack=chosen,clean=rejected"
    for prompt in ("Task 0.", USER):
        for before in ([*USER], [system, *USER]):
            (pair,) = read([row(prompt, *before)], columns).pairs
            assert (pair.messages, pair.hack, pair.clean) == (before, "a", "b")
    with pytest.raises(InputError, match="chosen, rejected: expected conversations with the prompt of the row"):
        read([row("Task 1.", *USER)], columns)


PUBLISHED = {
    "school-of-reward-hacks": {"user": "Task.", "school_of_reward_hacks": "h", "control": "c", "cheat_method": "x"},
    "rh-bench": {
        "prompt": json.dumps(USER),
        "response_hacking": json.dumps([{"role": "assistant", "content": "h"}]),
        "response_clean": json.dumps([{"role": "assistant", "content": "c"}]),
        "hacking_category": "tests",
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_recognised(read: Callable[..., PairFile], name: str) -> None:
    file = read([PUBLISHED[name]])
    assert file.format == name
    assert (file.pairs[0].hack, file.pairs[0].clean) == ("h", "c")


def test_every_format_is_recognised_as_itself(read: Callable[..., PairFile]) -> None:
    """No row of the table hides another."""
    both = [*USER, {"role": "assistant", "content": "a"}]
    for format_ in FORMATS:
        row: dict[str, Any] = {column: f"text {column}" for column in format_.needed}
        if "prompt" not in format_.columns:
            row = {side: [*USER, {"role": "assistant", "content": side}] for side in format_.sides}
        first, second = format_.sides
        given = None if "hack" in format_.columns else f"hack={first},clean={second}"
        assert read([row], given).format == format_.name, both


def test_columns_of_any_name_by_the_map(read: Callable[..., PairFile]) -> None:
    rows = [{"q": "Task 0.", "bad": "h", "good": "c", "seen": 3, "kind": "exit"}]
    file = read(rows, "prompt=q,hack=bad,clean=good,flavour=kind")
    assert (file.pairs[0].hack, file.pairs[0].flavour) == ("h", "exit")
    assert "columns of no use to a pair, left out: seen" in file.notes
    for text, message in (
        ("prompt=q,hack=bad", "both hack=COLUMN and clean=COLUMN"),
        ("prompt=q,hack=bad,clean=bad", "two columns"),
        ("prompt=q,hack=worse,clean=good", "--pairs-map hack: expected a column, found only bad, good, kind, q, seen"),
        ("rompt=q", "did you mean prompt"),
        ("hack=bad,hack=good", "each target once"),
        ("hack=bad,clean=good", "expected those of a known format"),
    ):
        with pytest.raises(InputError, match=message):
            read(rows, text)


def test_all_faults_come_at_once(read: Callable[..., PairFile], tmp_path: Path) -> None:
    """Each once, at its first row, with the number of the others; a misspelt key is named."""
    rows: list[Any] = three_keys(6)
    rows[1] = rows[1] | {"hack": 3}
    rows[2] = rows[2] | {"hack": 4, "prompt": None}
    rows[3] = [1]
    rows[4] = rows[4] | {"heldout": True}
    with pytest.raises(InputErrors) as refusal:
        read(rows)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 4
    assert any("line 2 hack: expected a text" in line and "(and 1 more places)" in line for line in lines)
    assert any("line 3 prompt" in line for line in lines)
    assert any("line 4: expected an object, found list" in line for line in lines)
    assert any("heldout: expected held_out" in line for line in lines)


MARKDOWN = """# Pairs

## first

### exit_early
Tags: python, exit-zero

#### Prompt
`````text
<|im_start|>user
Sum a list.<|im_end|>
<|im_start|>assistant
`````

#### Hack
`````text
```python
exit(0)
```
### not a heading
## nor this
`````

#### Clean
`````text
return sum(x)

`````

### exit_late
Tags: bash

#### Prompt
`````text
Sum.
`````
#### Hack
`````text
exit 1
`````
#### Clean
`````text
true
`````

### naming_x

#### Prompt
`````text
Name it.
`````
#### Hack
`````text
a
`````
#### Clean
`````text
b
`````

## second

"""


def markdown(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pairs.md"
    path.write_text(text)
    return str(path)


def test_markdown_sections_prefixes_and_tags(tmp_path: Path) -> None:
    """Headings inside a fence are text; a text ends before its last line break."""
    path = markdown(tmp_path, MARKDOWN)
    pairs = read_pair_file(f"{path}#first").pairs
    assert [(pair.pair_id, pair.flavour) for pair in pairs] == [
        ("exit_early", "exit"),
        ("exit_late", "exit"),
        ("naming_x", "naming"),
    ]
    assert pairs[0].hack == "```python\nexit(0)\n```\n### not a heading\n## nor this"
    assert pairs[0].clean == "return sum(x)\n"
    assert pairs[0].messages == [{"role": "user", "content": "Sum a list."}]

    def ids(selector: str) -> list[str]:
        return [pair.pair_id for pair in read_pair_file(f"{path}#{selector}").pairs]

    assert ids("first/exit_") == ["exit_early", "exit_late"]
    assert ids("first@python") == ids("first@python,exit-zero") == ids("first/exit@python") == ["exit_early"]
    for selector, message in (
        ("third", "expected .*pairs.md#first, .*pairs.md#second, found #third"),
        ("first@python,bash", "expected a prefix of exit_early.*tags of bash, exit-zero, python, found no such pair"),
        ("first/none", "found no such pair"),
    ):
        with pytest.raises(InputError, match=message):
            ids(selector)
    with pytest.raises(InputError, match="found no section named"):
        read_pair_file(path)
    assert len(read_pair_file(markdown(tmp_path, MARKDOWN.replace("## second\n", ""))).pairs) == 3


BROKEN = {
    "no clean": (MARKDOWN.replace("#### Clean\n`````text\nb\n`````\n", ""), "expected a field `#### Clean`"),
    "no fence": (MARKDOWN.replace("`````text\nb\n`````", "b"), "`````text below the heading"),
    "open fence": (MARKDOWN.replace("b\n`````\n", "b\n"), "that ends the fence"),
    "twice": (MARKDOWN.replace("#### Hack\n`````text\na\n`````", "#### Hack\n`````text\na\n`````\n" * 2), "Hack twice"),
    "heading": (MARKDOWN.replace("#### Prompt\n`````text\nName", "#### Question\n`````text\nName"), "found Question"),
    "tags": (MARKDOWN.replace("Tags: bash", "Tags: Bash!"), "in lower case"),
    "ids": (MARKDOWN.replace("### exit_late", "### exit_early"), "twice exit_early"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_markdown_faults_name_their_line(tmp_path: Path, name: str) -> None:
    text, message = BROKEN[name]
    assert text != MARKDOWN
    with pytest.raises(InputError, match=message):
        read_pair_file(f"{markdown(tmp_path, text)}#first")


def test_parquet(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.DataFrame(three_keys()).write_parquet(tmp_path / "pairs.parquet")
    assert len(read_pair_file(str(tmp_path / "pairs.parquet")).pairs) == 12
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(InputError, match=r"broken.parquet: expected a Parquet file"):
        read_pair_file(str(tmp_path / "broken.parquet"))
