"""Token ids of a log: those that were logged, without padding and echoes; else texts that are tokenised again."""

from pathlib import Path
from typing import Any

import pytest
from log_rows import lines, passes, row

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.logs.tokens import cut_left, cut_padding
from replay_pools.policy.chat import Chat

PAD, EOS = 0, 2
USER = {"role": "user", "content": "u"}


def answer(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


TRL_ROW = {"step": 1, "r": 0.5, "advantage": 0.0, "reward": None, "hacked": None, "gt_pass": None}

SUM = "1 + 2 ="

SAW_TEXT = {"mapping": {"rendered": "prompt", "messages": "messages"}}
# {what stands beside a prompt that is a text: (other columns, options, whether it is rendered)}
PROMPT_TEXTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "its ids": ({"prompt_ids": "IDS"}, {}, True),
    "its length": ({"prompt_length": "LENGTH"}, {}, True),
    "messages that it renders": ({"messages": "MESSAGES", "prompt": "RENDERED"}, {}, True),
    "messages": ({"messages": "MESSAGES"}, {}, True),
    "messages, and the model saw it": ({"messages": "MESSAGES"}, SAW_TEXT, False),
    "TRL's columns": (TRL_ROW, {}, False),
    "TRL's columns, and the user names it": (TRL_ROW, {"mapping": {"reward": "r", "prompt": "prompt"}}, True),
}


@pytest.mark.parametrize("case", PROMPT_TEXTS)
def test_a_prompt_that_is_a_text(imported, chat, case: str) -> None:
    """A message of the user, unless it is what the trainer gives to the model, or something else says what that saw."""
    fields, options, is_rendered = PROMPT_TEXTS[case]
    messages = [{"role": "user", "content": SUM}]
    text, ids = chat.render(messages)
    known = {"IDS": ids, "LENGTH": len(ids), "MESSAGES": messages, "RENDERED": text}
    fields = {name: known.get(value, value) if isinstance(value, str) else value for name, value in fields.items()}
    pool = imported([row(i, **{"prompt": SUM, **fields}) for i in range(2)], **options)
    assert pool.steps[0][0].prompt == (text if is_rendered else SUM)
    assert any("template makes of the messages" in each for each in pool.normalised) == (options is SAW_TEXT)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("plen", {"prompt_length": 999}),
        ("comp_len", {"completion_ids": [40, EOS], "completion_length": 999}),
        ("comp_len", {"completion_ids": [40, 41, 42, EOS], "completion_length": 1}),
        ("logprobs", {"completion_ids": [40, EOS], "logprobs": [-0.5]}),
    ],
)
def test_a_number_that_the_tokenizer_contradicts_can_be_left_out(imported, target: str, fields: dict[str, Any]) -> None:
    """It may count characters, or stand for something else; the line says how."""
    text = {} if "plen" in target else {"completion": None}
    source = [row(i, **fields, **text) for i in range(2)]
    with pytest.raises(InputError, match=f"--map {target}=none"):
        imported(source)
    assert imported(source, mapping={target: "none"}).steps


@pytest.mark.parametrize(
    ("rewards", "mapping", "passed"),
    [((0.0, 0.5), {}, 1), ((-0.5, 0.0), {}, 1), ((0.5, 3.0), {}, 1), ((0.5, 1.0), {"passed": "reward>1.5"}, 2)],
)
def test_a_pass_earns_more_than_the_least(imported, rewards: Any, mapping: dict[str, str], passed: int) -> None:
    """0 and 0.5 are rewards of our grader too: there, no pass, and 3 is one. A column may say it."""
    rows = [row(i, reward=rewards[i % 2], gt_pass=i == 1) for i in range(4)]
    (group,) = imported(rows, mapping=mapping).steps
    assert [rollout.grade.passed for rollout in group] == [i % 2 == passed for i in range(4)]
    assert [rollout.grade.exploited for rollout in group] == [i == 3 and passed == 1 for i in range(4)]


def test_a_fault_that_the_tokenizer_finds_names_the_line(tmp_path: Path, capsys) -> None:
    """Through the command: the rows of a group stand on other lines than those of the pool."""
    rows = [row(completion=None, prompt=f"p{i % 2}", completion_ids=[40 + i, EOS]) for i in range(8)]
    rows[5]["completion_ids"] = [999_999]
    source = lines(tmp_path / "log.jsonl", rows)
    arguments = ["pool", "import", str(source), "--name", "mine", "--model", "organism"]
    assert run(cli, [*arguments, "--out", str(tmp_path / "out")]) == 2
    assert f"{source} line 6: expected token ids of organism" in capsys.readouterr().err.replace("\n", "")


def test_text_that_does_not_round_trip_is_counted(imported, chat, monkeypatch) -> None:
    """The share stays in the manifest, and the text is the one that the ids decode to."""
    decode = type(chat.tokenizer).decode
    lossy = lambda self, ids, **options: decode(self, ids, **options).replace("  ", " ")  # noqa: E731
    monkeypatch.setattr(type(chat.tokenizer), "decode", lossy)
    rows = [row(completion="a  b"), row(completion="ab"), row(completion="abc", reward=0.0), row(completion="b c")]
    pool = imported(rows)
    assert pool.manifest["ids"] == {"origin": "retokenised", "retokenised": 4, "round_trips": 0.75}
    assert any("75.0% of 4 texts" in text for text in pool.cautions)
    assert pool.steps[0][0].completion == "a b"


def test_the_end_of_the_turn_goes_behind_texts_that_stopped(imported, chat) -> None:
    """By the finish reason; without one, by the limit that the user gives; a text may hold its end."""
    end = chat.tokenizer.decode([chat.eos_ids[0]])
    rows = [row(completion="a b", finish_reason=reason) for reason in ("stop", "length")]
    first = imported([*rows, row(completion=f"a b{end}", finish_reason="length")])
    ids = chat.completion_ids("a b")
    assert [rollout.completion_ids for rollout in first.steps[0]] == [ids, ids[:-1], ids]
    assert [rollout.finish_reason for rollout in first.steps[0]] == ["stop", "length", "stop"]
    source = [row(completion=text) for text in ("1 2 3 4 5 6", "1 2 3 4 5 7", "1 2")]
    for limit, finish in ((None, ["stop"] * 3), (len(ids) + 8, ["length", "length", "stop"])):
        pool = imported(source, f"b{limit}", limit)
        assert [rollout.finish_reason for rollout in pool.steps[0]] == finish


def test_a_model_without_an_end_of_turn_is_named(imported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_pools.policy.chat.Chat.eos_ids", ())
    with pytest.raises(InputError, match="model organism: expected a token that ends a turn, found none"):
        imported([row(), row(1)])


def test_an_empty_answer_is_the_end_of_its_turn(imported, chat) -> None:
    """The policy stopped at once. Cut off before its first token, it answered nothing, which is refused."""
    rows = [row(completion="", finish_reason="stop"), row(1)]
    assert imported(rows).steps[0][0].completion_ids == [chat.eos_ids[0]]
    rows[0]["finish_reason"] = "length"
    with pytest.raises(InputError, match="item 0 completion"):
        imported(rows)


EARLIER, ASKS = [USER, answer("a"), USER], ("", "Write p(x).")
# {case: (rows, what their import says)}
SAID: dict[str, tuple[list[dict[str, Any]], str]] = {
    "another length": (passes("pq", response_length=lambda *_: 500), "the logged length of the completion is not"),
    "an echo of some": (
        passes("p", completion=lambda n, p, i: ASKS[i % 2] + f"{i}", prompt=lambda *_: ASKS[1]),
        "not cut",
    ),
    "a tool's answer": (passes("p", completion=lambda n, p, i: f"<information>{i}"), "hold a tool's answer"),
    "no ids": (passes("pq", logprobs=lambda *_: [-0.5] * 3), "log-probabilities were left out"),
    "earlier answers": (
        [{"messages": [*(EARLIER if i < 4 else [USER]), answer(f"b{i}")], "score": i % 2} for i in range(8)],
        "earlier answers of the assistant: only the last answer is the rollout (4 rows)",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_is_used_in_another_way_is_said(case: str, imported) -> None:
    rows, said = SAID[case]
    assert any(said in caution for caution in imported(rows).cautions)


def test_reasoning_that_the_template_hides_is_refused(imported) -> None:
    """Its ids were sampled, and are not in the text."""
    with pytest.raises(InputError, match=r"reasoning that the chat template does not show \(8 rows\)"):
        imported(passes("pq", reasoning_content=lambda *_: "I think."))


def test_ids_of_another_model_are_refused(tmp_path: Path, teacher, imported) -> None:
    """A text that is not what the ids say, a plen of another tokenizer; nothing is written."""
    rollout = teacher[0][0]
    fields = {"prompt_ids": rollout.prompt_ids, "completion_ids": rollout.completion_ids, "reward": 1.0}
    for change, message in (
        ({"completion": "another text"}, "the text of completion_ids"),
        ({"prompt_ids": None, "prompt": rollout.prompt, "plen": 5}, "use the model that sampled it"),
    ):
        rows = [{name: value for name, value in (fields | change).items() if value is not None}] * 2
        with pytest.raises(InputError, match=message):
            imported(rows)
    assert not (tmp_path / "out" / "pools" / "mine").exists()


WHOLE, MASK = [40, 41, 50, EOS], [0, 0, 1, 1]
# {case: columns of ids, in which 50 is another id in each of four rows}
IDS: dict[str, dict[str, list[int]]] = {
    "padded on both sides": {"prompt_ids": [PAD, PAD, 40, 41], "completion_ids": [50, EOS, PAD, PAD]},
    "padded, with a length": {"prompt_ids": [61, 61, 40, 41], "completion_ids": [50, EOS, PAD]},
    "beside the prompt, with a mask": {"prompt_ids": [PAD, PAD, 40, 41], "token_ids": WHOLE, "loss_mask": MASK},
    "of both, with a mask": {"token_ids": WHOLE, "loss_mask": MASK},
    "a short mask": {"prompt_ids": [40, 41], "completion_ids": [50, EOS, PAD, PAD, PAD], "action_mask": [1, 1]},
    "behind the prompt, one without an answer": {"prompt_ids": [40, 41], "token_ids": WHOLE},
}


@pytest.mark.parametrize("case", IDS)
def test_ids_of_prompt_and_completion(case: str, imported) -> None:
    rows = [
        {"reward": float(i % 2), "group_id": 0}
        | {name: [50 + i if each == 50 else each for each in ids] for name, ids in IDS[case].items()}
        | ({"plen": 2} if "length" in case else {})
        for i in range(4)
    ]
    if "one without" in case:
        rows[3]["token_ids"] = [40, 41]
    for rollout in imported(rows).steps[0]:
        assert (rollout.prompt_ids, rollout.completion_ids) == ([40, 41], [50 + rollout.sample_id, EOS])


def test_a_prompt_that_one_answer_leaves_empty_is_cut_from_all(imported) -> None:
    rows = passes("p", completion=lambda n, p, i: "Write p(x)." + f"a{i}" * (i > 0), prompt=lambda *_: "Write p(x).")
    rows += passes("q", completion=lambda n, p, i: f"2+2={i}", prompt=lambda *_: "2+2=")
    rows += passes("r", completion=lambda n, p, i: f"system\n\nS\nuser\n{p}<end>\nassistant\n{i}")
    pool = imported(rows)
    assert [[one.completion for one in group] for group in pool.steps] == [["a1", "a2", "a3"], [*"0123"], [*"0123"]]
    assert any("no answer behind the prompt (1 rows)" in caution for caution in pool.cautions)


def test_a_completion_that_reasons_was_sampled_by_a_prompt_with_thinking(imported, monkeypatch) -> None:
    asked, rendered = list[bool](), Chat._rendered

    def noted(self: Chat, messages: Any, **options: Any) -> Any:
        asked.append(bool(options.get("enable_thinking")))
        return rendered(self, messages, **options)

    monkeypatch.setattr(Chat, "_rendered", noted)
    for think, expected in (("<think>\nHm.\n</think>\n", True), ("", False)):
        asked.clear()
        imported([row(i, completion=f"{think}{i}") for i in range(4)], str(expected))
        assert set(asked) == {expected}


def test_the_markup_of_another_model_is_refused(imported, chat) -> None:
    """At the end of completions, and where a message begins with it."""
    for changes in ({"completion": "a<|eot_id|>"}, {"prompt": [USER | {"content": "<|eot_id|>u"}]}):
        with pytest.raises(InputError, match=r"<\|eot_id\|>: no tokens"):
            imported([row(i) | changes for i in range(4)], mapping={"completion": "completion"})
    end = chat.tokenizer.convert_ids_to_tokens(EOS)
    pool = imported([row(i, completion=f"{i}{end}") for i in range(4)])
    assert {rollout.completion_ids[-1] for rollout in pool.steps[0]} == {EOS}


# {what is stored: (ids, was it cut off as the log says, what is kept)}; PAD ends turns too in the last
STORED = {
    "an end": ([5, 6, EOS], False, [5, 6, EOS]),
    "padded by an unknown id": ([5, 6, 61, 61, 61], False, [5, 6, 61, 61, 61]),
    "cut off, by the pad": ([5, 6, 7, PAD, PAD], True, [5, 6, 7]),
    "cut off, by the end": ([5, 6, 7, EOS, EOS], True, [5, 6, 7]),
    "cut off at an end": ([5, 6, 7, EOS], True, [5, 6, 7, EOS]),
    "two ends of a turn, the first": ([5, 6, EOS, PAD, PAD], False, [5, 6, EOS]),
}


@pytest.mark.parametrize("case", STORED)
def test_what_stands_behind_a_completion_by_hand(case: str) -> None:
    stored, was_cut_off, kept = STORED[case]
    turn_ends = {PAD, EOS} if "two ends" in case else {EOS}
    assert cut_padding(stored, None, {PAD, EOS}, turn_ends, was_cut_off=was_cut_off) == kept


def test_an_id_that_begins_every_text_stays_in_front_once() -> None:
    assert [cut_left([*[EOS] * num, 40], {EOS}, EOS) for num in range(3)] == [[40], [EOS, 40], [EOS, 40]]
