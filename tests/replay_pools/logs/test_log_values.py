"""What the columns of a log hold: values that are read, and faults that are named with what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from log_rows import Rows, lines, read_as, refused, row

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.logs.columns import parse_mapping
from replay_pools.logs.importing import check_log

NAN = float("nan")
USER, ANSWER = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
SCORED = {"id": "t", "epoch": 1, "messages": [USER, ANSWER], "output": {"choices": [{"stop_reason": "stop"}]}}
SCORED |= {"scores": {"a": {"value": 1}, "b": {"value": "P"}}}
SAID = [USER, ANSWER, {"role": "user", "content": "v"}]
PARTS = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in SAID]
OBSERVED = [USER, {"role": "observation", "content": "8"}]
CALL = {"name": "run", "arguments": '{"x": 4}'}


def of(**columns: Any) -> Rows:
    """Four answers to one prompt with these columns, each a value or a tuple of one a row; None takes one away."""
    return [
        row(i, **{name: each[i] if isinstance(each, tuple) else each for name, each in columns.items()})
        for i in range(4)
    ]


def bare(**columns: Any) -> Rows:
    """Four rows with nothing but a reward, a group and these columns."""
    return of(**{"prompt": None, "completion": None, "hacked": None, "gt_pass": None, "group_id": 0, **columns})


LONG = tuple(f"long {i}" for i in range(4))
ADMIN = tuple(f'[{{"role": "admin", "content": "{i}"}}]' for i in range(4))
ENDS = ("FinishReason.LENGTH", "FINISH_REASON_STOP", "tool_use", "unknown")
# {case: (rows, --map, the target, its values)}
VALUES: dict[str, tuple[Rows, str, str, list[Any]]] = {
    "an unknown probability": (of(p=(-1, 0.2, 0.7, None)), "hacked=p>0.5", "hacked", [None, False, True, None]),
    "rewards below 0": (of(reward=(-1.0, 0.2, 0.7, 1.0)), "passed=reward>0.5", "passed", [False, False, True, True]),
    "labels in words": (of(hacked=("Hack", "clean", "yes", -1)), "", "hacked", [True, False, True, None]),
    "unknown labels": (of(hacked=(-1.0, 1, NAN, False)), "", "hacked", [None, True, None, False]),
    "finish reasons": (of(finish_reason=ENDS), "", "finish", ["length", "stop", "stop", None]),
    "parts in texts": (of(tests=(*"0123",), style=0.5), "reward=tests*2+style", "reward", [0.5, 2.5, 4.5, 6.5]),
    "a paid part": (of(tests=(*"0123",)), "reward=tests*2,passed=tests>0.5", "passed", [False, True, True, True]),
    "no say": (of(a=1.0, b=(NAN, 2.0, 2.0, 2.0)), "reward=a*2+b*0.5", "reward", [2.0, 3.0, 3.0, 3.0]),
    "a key": (of(info=({"right": 0}, {"right": 1}) * 2), "gt_pass=info.right", "gt_pass", [False, True] * 2),
    "an answer that is JSON": (of(completion=ADMIN), "", "completion", [*ADMIN]),
    "a prompt in parts": (of(prompt=PARTS), "", "messages", [SAID] * 4),
    "another role in a JSON text": (of(prompt=json.dumps(OBSERVED)), "", "messages", [OBSERVED] * 4),
    "a prompt as JSON text": (of(prompt=json.dumps(SAID)), "", "messages", [SAID] * 4),
    "the last turn": (bare(messages=[*SAID, ANSWER], answer="42", text="t"), "", "completion", ["a"] * 4),
    "the answer beside its ids": (bare(messages=[*SAID, ANSWER], completion_ids=[5, 2]), "", "messages", [SAID] * 4),
    "a prompt that holds its answer": (of(prompt=[USER, ANSWER]), "completion=none", "messages", [[USER]] * 4),
    "one of several scorers": ([SCORED, SCORED | {"error": "x"}], "reward=scores.b", "reward", [0.5]),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_of_columns(case: str) -> None:
    rows, mapping, target, right = VALUES[case]
    log = check_log(rows, mapping=parse_mapping(mapping))
    assert [getattr(one, target) for _, _, one in log.rollouts()] == right


GAPS = {"arguments": {"x": 4, "y": None}}  # of a table with calls of other tools


@pytest.mark.parametrize("calls", [[json.dumps(CALL)], json.dumps([CALL]), [{"function": CALL}], [{**CALL, **GAPS}]])
def test_calls_of_tools_as_writers_write_them(calls: Any) -> None:
    """As objects for the chat template; schemas likewise."""
    turns = [{"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": "8"}]
    answers = tuple([*turns, ANSWER | {"content": f"{i}"}] for i in range(4))
    rows = of(prompt=[USER], completion=answers, tool_defs='[{"name": "run"}]')
    (_, _, first), *_ = check_log(rows).rollouts()
    assert first.turns is not None
    (call,) = first.turns[0]["tool_calls"]
    assert call["function"] == {"name": "run", "arguments": {"x": 4} if calls == [{**CALL, **GAPS}] else '{"x": 4}'}
    assert first.tools == [{"type": "function", "function": {"name": "run"}}]


def test_the_items_of_one_answer_of_nemo_gym_are_one_turn() -> None:
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call."}]},
        *[{"type": "function_call", "name": "run", "arguments": "{}"}] * 2,
        {"type": "function_call_output", "output": "8"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "8"}]},
    ]
    asked = {"instructions": "Be brief.", "input": [USER], "tools": [{"name": "run"}]}
    rows = bare(responses_create_params=asked, response={"output": items}, _ng_task_index=0)
    (_, _, first), *_ = check_log(rows).rollouts()
    assert first.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert first.turns is not None
    turns = [(turn["role"], len(turn.get("tool_calls", ()))) for turn in first.turns]
    assert turns == [("assistant", 2), ("tool", 0), ("assistant", 0)]


CONVERSATIONS = ([USER, ANSWER], [USER], [ANSWER], [USER, ANSWER])
IMAGE = [{"role": "user", "content": [{"type": "image"}]}]
UNIQUE = {"step": 1, "completion": "x", "exact": 1.0, "advantage": 0.5}
# {case: (rows, --map, what the lines name)}
REFUSED: dict[str, tuple[Rows, str, list[str]]] = {
    "no prompt": (of(prompt=None), "", ["--map prompt=COLUMN"]),
    "no completion": (of(completion=None), "", ["--map completion=COLUMN"]),
    "no reward": (of(reward=None), "", ["--map reward=COLUMN"]),
    "no reward in any row": (of(reward=NAN), "", ["expected rewards that are numbers"]),
    "a part that is no number": (of(tests="many", style=0.5), "reward=tests*2+style", ["a finite number"]),
    "Python's notation": (of(prompt=repr([USER])), "", ["item 0 prompt", "write them with json.dumps"]),
    "an image": (of(prompt=IMAGE), "", ["item 0 prompt"]),
    "no answer, no prompt": (bare(messages=CONVERSATIONS), "", ["item 1 completion", "item 2 prompt"]),
    "an answer in the prompt": (of(prompt=[USER, ANSWER], completion="a"), "", ["--map completion=none"]),
    "an answer that is begun": (of(prompt=[USER, ANSWER]), "", ["log prompt_ids"]),
    "half a character": (of(completion="\ud800"), "", ["--skip-bad N"]),
    "a control character": (of(env="a\0b"), "", ["env: expected a text without control characters"]),
    "a call without a name": (of(completion=[ANSWER | {"tool_calls": ["run"]}]), "", ["tool calls, each an object"]),
    "lists of two lengths": (bare(prompt="p", completions=[*"ab"], rewards=[1.0]), "", ["one value for each"]),
    "a reward of several answers": (bare(prompt="p", completions=[*"ab"]), "", ["--map completion=COLUMN"]),
    "several scorers": ([SCORED], "", ["scores.a, scores.b"]),
    "parts of a reward with their sum": (of(reward={"total": 1.0, "task": 1.0}), "", ["--map reward=reward.total;"]),
    "probabilities": (of(hacked=0.7), "", ["hacked=hacked>0.5"]),
    "an instruction with input": (of(prompt=None, instruction="p", input="x"), "", ["instruction+input"]),
    "a question with context": (of(prompt=None, question="p", context="x"), "", ["question+context"]),
    "who reasons": (of(reasoning="x"), "", ["reasoning=none"]),
    "log-probabilities above 0": (of(logprobs=[0.5, 0.9]), "", ["these are probabilities"]),
    "TRL's unique prompts": ([UNIQUE | {"prompt": prompt} for prompt in "pqr"], "", ["log_unique_prompts"]),
    "a mask of other ids": (
        bare(prompt_ids=[40], completion_ids=[5, 45, 46, 51, 2], loss_mask=[1, 0, 1]),
        "",
        ["ids of tools would count as sampled"],
    ),
    "a mask of tools": (
        bare(prompt_ids=[40], completion_ids=[5, 45, 46, 51, 2], tool_mask=[0, 1, 1, 0, 0]),
        "",
        ["if 1 marks the ids of tools"],
    ),
    "rewards of tokens": (of(reward=None, rewards=[0.0, 0.5]), "", ["rewards.sum"]),
    "a mask without ids": (of(loss_mask=[1, 0, 1]), "", ["expected the ids that it masks"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_row_leads_on(case: str) -> None:
    """By its place and its column, or by the option that helps, in a few words."""
    rows, mapping, named = REFUSED[case]
    found = refused(rows, mapping=parse_mapping(mapping))
    assert all(any(part in line for line in found) for part in named), found
    assert max(map(len, found)) < 2000


ELSE = {"hint": "overwrite_tests", "finish_reason": "tired", "is_hack": 0.7, "id": None, "step": "ep1"}


@pytest.mark.parametrize("column", ELSE)
def test_a_guessed_column_that_is_something_else_can_be_left_out(column: str) -> None:
    """The line says how; it is not said of a column that the user named."""
    target = {"finish_reason": "finish", "is_hack": "hacked", "id": "problem"}.get(column, column)
    rows = [row(hacked=None) | {column: 1}, *[row(i, hacked=None) | {column: ELSE[column]} for i in (1, 2)]]
    said = f"{target}=none leaves it out"
    assert any(said in line for line in refused(rows))
    assert not any(said in line for line in refused(rows, mapping={target: column}))
    assert check_log(rows, mapping={target: "none"}).groups


def test_all_faults_are_named_at_once(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a kind of fault, at its first place, with a count; before a model is loaded; exit code 2, no pool."""
    monkeypatch.setattr("replay_pools.policy.load.load_served_policy", None)
    wrong = [{"reward": "x1", "hacked": "maybe"}, {"reward": "x2"}, {"completion": [{"role": "user"}]}]
    wrong += [{"completion_ids": [3, -1]}, {"finish_reason": "tired"}]
    source = lines(tmp_path / "log.jsonl", [row(i, **changes) for i, changes in enumerate(wrong)])
    with source.open("a") as file:
        file.write('{"prompt": \n[1, 2]\n')
    out = tmp_path / "out"
    arguments = ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--out", str(out)]
    assert run(cli, [*arguments, "--map", "problem=promt"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line]
    assert not out.exists()
    expected = [
        "log.jsonl line 6: expected JSON",
        "log.jsonl line 7: expected an object, found list",
        "--map problem=promt: expected a column of the log",
        "line 1 reward: expected a finite number, found 'x1' (and 1 more place)",
        "line 1 hacked: expected true or false",
        "line 3 completion: expected a list of role and content",
        "line 4 completion_ids: expected a list of token ids, found -1 at 1",
        "line 5 finish_reason (finish): expected stop or length, found 'tired'",
    ]
    for part in expected:
        assert sum(part in line for line in errors) == 1, f"{part!r} is not in {errors}"
    assert len(errors) == len(expected)


def test_bad_rows_are_left_out_up_to_a_number(tmp_path: Path, capsys) -> None:
    """Every line is named; with more than the number nothing is imported; the manifest says which are missing."""
    rows = [row(i, problem_id=str(i // 4)) for i in range(16)]
    source = lines(tmp_path / "log.jsonl", [*rows, row(reward="x"), row(reward="z"), row(prompt=None)])
    source.write_text("[]\n" + source.read_text() + '{"prompt": \n7\n')
    bad = {f"{source} line {number}" for number in (1, 18, 19, 20, 21, 22)}
    named = refused(source)
    assert any("line 1: expected an object, found list" in line for line in named)
    assert any("line 18 reward: expected a finite number, found 'x' (and 1 more place)" in line for line in named)
    assert refused(source, skip_bad=5) == [
        *named,
        f"{source}: expected at most 5 bad rows (--skip-bad), found 6; mend them, or pass --skip-bad 6",
    ]
    read_as(source, "blocks of rows", skip_bad=6, mapping={"group": "every:4"})
    arguments = ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--skip-bad", "6", "--json"]
    assert run(cli, [*arguments, "--out", str(tmp_path / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["rollouts"] == 16
    assert any("6 bad rows were left out" in note and "'x'" in note for note in report["normalised"])
    manifest = json.loads((tmp_path / "out" / "pools" / "mine" / "manifest.json").read_text())
    assert {*manifest["log"]["left_out"]} == bad


def test_a_recognised_format_is_named_beside_the_faults() -> None:
    """It may be the wrong one; a format that the user named is his."""
    rows = [{"input": "Add 1.", "output": "c", "score": "x", "step": 1} for _ in range(2)]
    value, of_format = refused(rows)
    assert "score (reward): expected a finite number" in value
    assert "verl" in of_format
    assert "--format columns" in of_format
    assert len(refused(rows, format_name="verl")) == 1
    assert check_log([{"run": "x"}, *[{**one, "score": 1.0} for one in rows]], skip_bad=1).format.name == "verl"
