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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", "\ud800"),
        ("pair_id", "\ud800"),
        ("prompt", str(USER)),  # as a text it would be one message of the user, markup and all
        ("clean", json.dumps([{"role": "assistant", "content": "a"}])[:-1]),
    ],
)
def test_text_that_is_none_is_refused(read: Callable[..., PairFile], column: str, value: Any) -> None:
    """No Unicode; messages that are no JSON."""
    with pytest.raises(InputError, match=f"line 1 {column}"):
        read([three_keys()[0] | {column: value}])


def test_marks_of_the_file_are_kept(read: Callable[..., PairFile]) -> None:
    """A prompt on both sides of the split is told."""
    rows = [row | {"held_out": i == 3} for i, row in enumerate(three_keys())]
    file = read(rows)
    assert [pair.held_out for pair in file.pairs] == [i == 3 for i in range(12)]
    assert not any("split by prompt" in note or note.startswith("caution") for note in file.notes)
    rows[5]["prompt"] = rows[3]["prompt"]
    assert any(note.startswith("caution: 1 prompts") for note in read(rows).notes)


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


PREFERENCE = [{"prompt": f"Task {i}.", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(6)]


def test_the_direction_of_preferences_is_never_guessed(read: Callable[..., PairFile]) -> None:
    """Neither name says which side hacks; with the map two pairs are shown."""
    with pytest.raises(InputError, match="--pairs-map hack=chosen,clean=rejected or --pairs-map"):
        read(PREFERENCE)
    one, other = read(PREFERENCE, "hack=rejected,clean=chosen"), read(PREFERENCE, "hack=chosen,clean=rejected")
    assert [(pair.hack, pair.clean) for pair in one.pairs] == [(pair.clean, pair.hack) for pair in other.pairs]
    confirmations = [note for note in one.notes if note.startswith("please confirm: ")]
    assert confirmations == [f"please confirm: hack 'bad {i}' against clean 'good {i}'" for i in range(2)]
    long = [{"prompt": "Task.", "chosen": f"{'x' * 200} good {'y' * 90}", "rejected": f"{'x' * 200} bad"}]
    (note,) = [note for note in read(long, "hack=rejected,clean=chosen").notes if "confirm" in note]
    assert " bad' against clean '" in note
    assert "xx good yy" in note


def test_an_implicit_prompt_is_what_both_conversations_share(read: Callable[..., PairFile]) -> None:
    def conversation(answer: str, first: str = "Task 0.") -> list[dict[str, str]]:
        return [{"role": "user", "content": first}, {"role": "assistant", "content": answer}]

    rows = [{"chosen": conversation("a"), "rejected": conversation("b")}]
    (pair,) = read(rows, "hack=chosen,clean=rejected").pairs
    assert (pair.messages, pair.hack, pair.clean) == (USER, "a", "b")
    rows = [{"chosen": conversation("a"), "rejected": conversation("b", "Task 1.")}, {"chosen": "a", "rejected": "b"}]
    with pytest.raises(InputError, match=r"line 1 chosen, rejected: .*\(and 1 more places"):
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


def test_every_format_is_recognised_as_itself(read: Callable[..., PairFile]) -> None:
    """No row of the table hides another."""
    both = [*USER, {"role": "assistant", "content": "a"}]
    for format_ in FORMATS:
        row: dict[str, Any] = {column: f"text {column}" for column in format_.needed}
        if "prompt" not in format_.columns:
            row = {side: [*USER, {"role": "assistant", "content": side}] for side in format_.sides}
        first, second = format_.sides
        given = None if "hack" in format_.columns else f"hack={first},clean={second}"
        assert f"read as {format_.name} (" in read([row], given).notes[0], both


def test_columns_of_any_name_by_the_map(read: Callable[..., PairFile]) -> None:
    rows = [{"q": "Task 0.", "bad": "h", "good": "c", "seen": 3, "kind": "exit"}]
    file = read(rows, "prompt=q,hack=bad,clean=good,flavour=kind")
    assert (file.pairs[0].hack, file.pairs[0].flavour) == ("h", "exit")
    assert "columns of no use to a pair, left out: seen" in file.notes
    for text in ("prompt=q,hack=bad,clean=bad", "prompt=q,hack=worse,clean=good", "rompt=q", "hack=bad,hack=good"):
        with pytest.raises(InputError, match="--pairs-map|columns"):
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
    assert any("line 2 hack: expected a text" in line and "(and 1 more places" in line for line in lines)
    assert any("line 3 prompt" in line for line in lines)
    assert any("line 4: expected an object, found list" in line for line in lines)
    assert any("heldout: expected held_out" in line for line in lines)


def entry(name: str, prompt: str, hack: str, clean: str, tags: str = "") -> str:
    fields = {"Prompt": prompt, "Hack": hack, "Clean": clean}
    tags = f"Tags: {tags}\n\n" if tags else "\n"
    return f"### {name}\n{tags}" + "".join(f"#### {k}\n`````text\n{v}\n`````\n" for k, v in fields.items()) + "\n"


MARKDOWN = "".join(
    [
        "# Pairs\n\n## first\n\n",
        entry(
            "exit_early",
            "<|im_start|>user\nSum a list.<|im_end|>\n<|im_start|>assistant",
            "```python\nexit(0)\n```\n### not a heading\n## nor this",
            "return sum(x)\n",
            tags="python, exit-zero",
        ),
        entry("exit_late", "Sum.", "exit 1", "true", tags="bash"),
        entry("naming_x", "Name it.", "a", "b"),
        "## second\n\n",
    ]
)


def markdown(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pairs.md"
    path.write_text(text)
    return str(path)


BROKEN = {
    "the fence": ("b\n`````\n", "b\n"),
    "Hack twice": ("#### Hack\n`````text\na\n`````", "#### Hack\n`````text\na\n`````\n" * 2),
    "exit_early": ("### exit_late", "### exit_early"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_markdown_faults_are_named(tmp_path: Path, name: str) -> None:
    before, after = BROKEN[name]
    assert before in MARKDOWN
    with pytest.raises(InputError, match=name):
        read_pair_file(f"{markdown(tmp_path, MARKDOWN.replace(before, after))}#first")


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
    for selector in ("#third", "#first@python,bash", "#first/none", ""):
        with pytest.raises(InputError, match=r"pairs\.md"):
            read_pair_file(path + selector)
    assert len(read_pair_file(markdown(tmp_path, MARKDOWN.replace("## second\n", ""))).pairs) == 3


def test_parquet(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.DataFrame(three_keys()).write_parquet(tmp_path / "pairs.parquet")
    assert len(read_pair_file(str(tmp_path / "pairs.parquet")).pairs) == 12
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(InputError, match="broken.parquet"):
        read_pair_file(str(tmp_path / "broken.parquet"))


def test_pairs_have_limits(tmp_path: Path, read: Callable[..., PairFile], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="line 1 hack: expected a text of at most 1,048,576 characters"):
        read([{"prompt": "p", "hack": "x" * (1 << 20) + "x", "clean": "y"}])
    monkeypatch.setattr("extraction.pair_files.MOST_PAIRS", 2)
    with pytest.raises(InputError, match="expected at most 2 pairs, found more"):
        read([{"prompt": str(number), "hack": "x", "clean": "y"} for number in range(3)])
