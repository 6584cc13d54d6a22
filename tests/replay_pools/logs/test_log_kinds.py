"""Kinds of logs that were once read wrongly in silence: each with its right groups, rewards, ids or question."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest

from replay_pools.base.errors import InputError
from replay_pools.logs.importing import CheckedLog, check_log, import_log
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import Pool

Rows = list[dict[str, Any]]
EOS = 2
USER = {"role": "user", "content": "Two times four?"}
CALL = {"name": "run", "arguments": '{"x": 4}'}


def answers(prompt: str, pass_: str = "a", num: int = 4, **more: Any) -> Rows:
    """`num` answers to a prompt in one pass over the prompts, which differ between passes."""
    rewards = [float((i + (pass_ == "b")) % 2) for i in range(num)]
    rows = [{"prompt": prompt, "completion": f"{pass_}{i}", "reward": reward} for i, reward in enumerate(rewards)]
    return [
        row | {name: value(i) if callable(value) else value for name, value in more.items()}
        for i, row in enumerate(rows)
    ]


def passes(*orders: str, **more: Callable[[int, str], Any]) -> Rows:
    """Passes over prompts of one letter each, in these orders; more: {column: its value by pass and prompt}."""
    return [
        row
        for number, order in enumerate(orders)
        for prompt in order
        for row in answers(prompt, "abc"[number], **{name: value(number, prompt) for name, value in more.items()})
    ]


def by_prompt(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["prompt"])


def sizes(log: CheckedLog) -> list[int]:
    return sorted(len(group) for group in log.groups)


# {case: (rows, what the question names, or the sizes of the groups)}
COMPARABLE: dict[str, tuple[Rows, str | list[int]]] = {
    "a row of the second epoch is missing": (passes("pq", "pq")[:-1], "several blocks"),
    "prompts in another order each epoch": (passes("pqr", "rpq"), "group=every:4"),
    "iterations of several sizes": (by_prompt(passes("pq", "pq", iteration=lambda n, _: n + 1)[:-1]), "step=iteration"),
    "more iterations than other columns may have values": (
        by_prompt([row for n in range(1100) for row in answers(f"p{n % 100}", num=2, iteration=n)]),
        "step=iteration",
    ),
    "an id that starts again in each epoch": (passes("pq", "pq", uid=lambda *_: lambda i: f"u{i}"), "group=every:4"),
    "train_step": (passes("pqr", "pq", train_step=lambda n, p: 10 * n + ord(p)), [4] * 5),
    "two rounds, 0 and 1": (by_prompt(passes("pq", "pq", round=lambda n, _: n)), "step=round"),
    "two graders": (
        by_prompt(passes("pq", "pq", env_mode=lambda n, _: ("run_tests", "sentinel")[n])),
        "group=env_mode",
    ),
    "two sets of tools": (by_prompt(passes("pq", "pq", tools=lambda n, _: [{"name": "ab"[n]}])), [4] * 4),
    "is_val": (passes("pq", is_val=lambda *_: False) + answers("p", "b", 1, is_val=True), [4, 4]),
    "an evaluation beside rollouts": (
        passes("pq", phase=lambda *_: "rollout") + answers("p", "b", 1, phase="rl_eval"),
        [4, 4],
    ),
    "a source in JSON text": (
        by_prompt(passes("pq", "pq", meta=lambda n, _: lambda i: json.dumps({"run": {"checkpoint": n}, "i": i}))),
        "group=meta.run.checkpoint+prompt",
    ),
    "an id of each row beside models": (
        by_prompt(passes("pq", "pq", id=lambda n, p: lambda i: f"{n}{p}{i}", model=lambda n, _: "ab"[n])),
        "group=model+prompt",
    ),
    "a prompt in two columns": (
        [row | {"prompt": "Solve it.", "problem": row["prompt"]} for row in passes("pq")],
        "prompt=prompt+problem",
    ),
    "rows of an error that is false": (passes("pq", error=lambda *_: "False"), [4, 4]),
}


@pytest.mark.parametrize("case", COMPARABLE)
def test_which_rollouts_are_compared(case: str) -> None:
    rows, right = COMPARABLE[case]
    if isinstance(right, list):
        assert sizes(check_log(rows)) == right
        return
    with pytest.raises(InputError) as error:
        check_log(rows)
    assert right in str(error.value)


def test_a_key_of_prompts_where_messages_hold_the_answers() -> None:
    """`prompt` in a key is the prompt alone, though its column holds the answers as well."""
    rows = [
        {"messages": [USER, {"role": "assistant", "content": f"{model} {i}"}], "reward": float(i % 2), "model": model}
        for model in "ab"
        for i in range(4)
    ]
    with pytest.raises(InputError, match=r"--map group=model\+prompt keeps them apart"):
        check_log(rows)
    assert sizes(check_log(rows, mapping={"group": "model+prompt"})) == [4, 4]


def test_environments_number_their_problems_anew() -> None:
    """Two prompts of one example_id are two groups."""
    rows = [{"example_id": 0, "task": p} | row for p in "pq" for row in answers(p, num=3 + (p == "q"))]
    log = check_log([{**row, "completion": [{"role": "assistant", "content": row["completion"]}]} for row in rows])
    assert log.format.name == "verifiers"
    assert sizes(log) == [3, 4]


@pytest.mark.parametrize("failed", [{"error": "Timeout"}, {"completion": []}])
def test_failed_rollouts_of_trl_stay_in_their_block(failed: dict[str, Any], tmp_path: Path) -> None:
    """The size of blocks and the advantages are of all rollouts; the groups go on without the failed ones."""
    rows = [row | {"step": 1, "exact": row.pop("reward"), "error": None} for p in "pqr" for row in answers(p)]
    rows = [row | {"advantage": (row["exact"] - 0.5) / 0.5774, "completion": [row["completion"]]} for row in rows]
    rows = [
        row | {"completion": [{"role": "assistant", "content": text}]} for row in rows for text in row["completion"]
    ]
    rows[5] |= failed
    folder = tmp_path / "completions"
    folder.mkdir()
    polars.DataFrame(rows).write_parquet(folder / "completions_00001.parquet")
    log = check_log(tmp_path)
    assert sizes(log) == [3, 4, 4]
    assert log.scale_rewards == "group"
    rows[0]["completion"] = None
    polars.DataFrame(rows).write_parquet(folder / "completions_00001.parquet")
    with pytest.raises(InputError, match=r"group=step\+prompt,advantage=none"):
        check_log(tmp_path, skip_bad=1)
    assert sizes(check_log(tmp_path, skip_bad=1, mapping={"group": "step+prompt", "advantage": "none"})) == [3, 3, 4]


def test_a_reward_with_the_name_of_a_label_is_named(tmp_path: Path) -> None:
    rows = [
        row | {"step": 1, "correct": row.pop("reward"), "style": i % 4 / 4}
        for p in "pq"
        for i, row in enumerate(answers(p))
    ]
    rows = [row | {"advantage": row["correct"] + row["style"] - 0.875} for row in rows]
    folder = tmp_path / "completions"
    folder.mkdir()
    polars.DataFrame(rows).write_parquet(folder / "completions_00001.parquet")
    with pytest.raises(InputError, match=r"--map reward=style\+correct"):
        check_log(tmp_path)
    assert check_log(tmp_path, mapping={"reward": "style+correct"}).scale_rewards == "none"


def imported(folder: Path, rows: Rows, **options: Any) -> Pool:
    return import_log(check_log(rows, **options), name="mine", out=folder, model="organism")


def with_ids(**more: Any) -> Rows:
    return [
        {"reward": float(i % 2), "group_id": 0, **{name: value(i) for name, value in more.items()}} for i in range(4)
    ]


# {case: (rows, prompt ids, completion ids of the first rollout)}
IDS: dict[str, tuple[Rows, list[int], list[int]]] = {
    "ids and mask of prompt and completion, beside the prompt": (
        with_ids(
            prompt_ids=lambda i: [0, 0, 40, 41],
            token_ids=lambda i: [40, 41, 50 + i, EOS],
            loss_mask=lambda i: [0, 0, 1, 1],
        ),
        [40, 41],
        [50, EOS],
    ),
    "ids and mask alone": (
        with_ids(token_ids=lambda i: [40, 41, 50 + i, EOS], loss_mask=lambda i: [0, 0, 1, 1]),
        [40, 41],
        [50, EOS],
    ),
    "a mask without the padding": (
        with_ids(
            prompt_ids=lambda i: [40], completion_ids=lambda i: [50 + i, EOS, 0, 0, 0], action_mask=lambda i: [1, 1]
        ),
        [40],
        [50, EOS],
    ),
    "one answer is empty behind the prompt": (
        with_ids(prompt_ids=lambda i: [40, 41], token_ids=lambda i: [40, 41, *[50 + i, EOS] * (i < 3)]),
        [40, 41],
        [50, EOS],
    ),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_of_prompt_and_completion(case: str, tmp_path: Path) -> None:
    rows, prompt, completion = IDS[case]
    for rollout in imported(tmp_path, rows).steps[0]:
        assert rollout.prompt_ids == prompt
        assert rollout.completion_ids == [completion[0] + rollout.sample_id, *completion[1:]]


def test_a_prompt_that_one_answer_leaves_empty_is_cut_from_all(tmp_path: Path) -> None:
    rows = [row | {"completion": "2+2=" + row["completion"] * (i > 0)} for i, row in enumerate(answers("2+2="))]
    rows += [
        row | {"prompt": "Write twice(x).", "completion": f"Write twice(x). {i}"} for i, row in enumerate(answers(""))
    ]
    pool = imported(tmp_path, rows)
    assert [[rollout.completion for rollout in group] for group in pool.steps] == [
        ["a1", "a2", "a3"],
        [f" {i}" for i in range(4)],
    ]
    assert any("no answer behind the prompt (1 rows)" in caution for caution in pool.cautions)


def test_a_completion_that_reasons_was_sampled_by_a_prompt_with_thinking(tmp_path: Path, monkeypatch) -> None:
    from replay_pools.policy.chat import Chat

    asked, rendered = list[bool](), Chat._rendered

    def noted(self: Chat, messages: Any, **options: Any) -> Any:
        asked.append(bool(options.get("enable_thinking")))
        return rendered(self, messages, **options)

    monkeypatch.setattr(Chat, "_rendered", noted)
    for think, expected in (("<think>\nHm.\n</think>\n", True), ("", False)):
        asked.clear()
        rows = [row | {"completion": think + row["completion"]} for row in answers("Two times four?")]
        imported(tmp_path / str(expected), rows)
        assert set(asked) == {expected}


@pytest.mark.parametrize("calls", [[json.dumps(CALL)], json.dumps([CALL]), [{"type": "function", "function": CALL}]])
def test_calls_of_tools_as_writers_write_them(calls: Any) -> None:
    """As objects for the chat template; schemas likewise."""
    turns = [{"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": "8"}]
    rows = [{"prompt": [USER], "completion": [*turns, {"role": "assistant", "content": f"{i}"}]} for i in range(4)]
    rows = [row | {"reward": float(i % 2), "tool_defs": json.dumps([{"name": "run"}])} for i, row in enumerate(rows)]
    log = check_log(rows)
    (_, _, first), *_ = log.rollouts()
    assert first.turns is not None
    assert first.turns[0]["tool_calls"] == [{"type": "function", "function": CALL}]
    assert first.tools == [{"type": "function", "function": {"name": "run"}}]
    with pytest.raises(InputError, match="tool calls, each an object"):
        check_log([row | {"completion": [{"role": "assistant", "tool_calls": ["run"]}]} for row in rows])


def test_the_items_of_one_answer_of_nemo_gym_are_one_turn() -> None:
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call."}]},
        *[{"type": "function_call", "name": "run", "arguments": "{}"}] * 2,
        {"type": "function_call_output", "output": "8"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "8"}]},
    ]
    asked = {"instructions": "Be brief.", "input": [USER], "tools": [{"name": "run"}]}
    rows = [{"responses_create_params": asked, "response": {"output": items}, "reward": float(i % 2)} for i in range(4)]
    (_, _, first), *_ = check_log([row | {"_ng_task_index": 0} for row in rows]).rollouts()
    assert first.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert first.turns is not None
    assert [(turn["role"], len(turn.get("tool_calls", ()))) for turn in first.turns] == [
        ("assistant", 2),
        ("tool", 0),
        ("assistant", 0),
    ]


# {case: (columns of a row by its place, mapping, the target, its values)}
VALUES: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, str], str, list[Any]]] = {
    "a probability that is not known": (
        lambda i: {"p": (-1, 0.2, 0.7, None)[i]},
        {"hacked": "p>0.5"},
        "hacked",
        [None, False, True, None],
    ),
    "a reward below 0 did not pass": (
        lambda i: {"reward": (-1.0, 0.2, 0.7, 1.0)[i]},
        {"passed": "reward>0.5"},
        "passed",
        [False, False, True, True],
    ),
    "labels in words": (
        lambda i: {"hacked": ("Hack", "clean", "honest", -1)[i]},
        {},
        "hacked",
        [True, False, False, None],
    ),
    "a text beside its last line": (
        lambda i: {"generation": f"long {i}", "answer": f"{i}", "completion": None},
        {},
        "completion",
        [f"long {i}" for i in range(4)],
    ),
    "an answer that is JSON": (
        lambda i: {"completion": json.dumps([{"role": "admin", "content": f"{i}"}])},
        {},
        "completion",
        [json.dumps([{"role": "admin", "content": f"{i}"}]) for i in range(4)],
    ),
    "spellings of finish reasons": (
        lambda i: {"finish_reason": ("FinishReason.LENGTH", "FINISH_REASON_STOP", "tool_use", "unknown")[i]},
        {},
        "finish",
        ["length", "stop", "stop", None],
    ),
    "an advantage of each token": (lambda i: {"advantage": [[-0.5, 0.5][i % 2]] * 3}, {}, "reward", [0.0, 1.0] * 2),
    "a list of outputs beside the completion": (
        lambda i: {"outputs": ["ok", "fail"]},
        {},
        "completion",
        [f"a{i}" for i in range(4)],
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_of_columns(case: str) -> None:
    columns, mapping, target, right = VALUES[case]
    rows = [row | columns(i) for i, row in enumerate(answers("p"))]
    rows = [{name: value for name, value in row.items() if name != "completion" or value is not None} for row in rows]
    found = {j: getattr(one, target) for _, j, one in check_log(rows, mapping=mapping).rollouts()}
    assert [found[j] for j in sorted(found)] == right


# {case: (rows, what the refusal names)}
REFUSED: dict[str, tuple[Rows, str]] = {
    "parts of a reward with their sum": (
        [row | {"reward": {"total": row["reward"], "task": 1.0}} for row in answers("p")],
        "--map reward=reward.total;",
    ),
    "a reward of several answers": (
        [{"prompt": "p", "completions": ["a", "b"], "reward": 1.0}],
        "a reward of each answer",
    ),
    "a mask of other ids": (
        with_ids(
            prompt_ids=lambda i: [40], completion_ids=lambda i: [50 + i, 45, 46, 51, EOS], loss_mask=lambda i: [1, 0, 1]
        ),
        "ids of tools would count as sampled",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leads_on(case: str) -> None:
    rows, named = REFUSED[case]
    with pytest.raises(InputError) as error:
        check_log(rows)
    assert named in str(error.value)


# {file: (its text, how many rollouts are read, or what is refused)}
ROWS = passes("pq")
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
FILES: dict[str, tuple[bytes, int | str]] = {
    "a list a line.jsonl": ("".join(json.dumps(ROWS[i : i + 4]) + "\n" for i in (0, 4)).encode(), 8),
    "spaces in the header.csv": (b"prompt, completion, reward\n" + b"p,a,1\np,b,0\n" * 2, 4),
    "bzip2.jsonl": (b"BZh91AY&SY and more", "found bzip2; unpack it"),
    "problems beside rollouts.json": (json.dumps({"samples": [{"question": "p"}], "rollouts": ROWS}).encode(), 8),
    "two lists.json": (json.dumps({"rollouts": ROWS, "results": ROWS}).encode(), "lists rollouts, results"),
    "columns of plurals.json": (json.dumps({f"{name}s": [row[name] for row in ROWS] for name in ROWS[0]}).encode(), 8),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    content, right = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    if isinstance(right, int):
        assert sum(sizes(check_log(path))) == right
        return
    with pytest.raises(InputError) as error:
        check_log(path)
    assert right in str(error.value)


def test_a_folder_with_packed_files_and_those_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "b.jsonl.bz2").write_bytes(b"BZh91AY&SY and more")
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [{"id": 0, "content": "a"}]})
    )
    log = check_log(tmp_path)
    assert sizes(log) == [4, 4]
    assert any(note.startswith("caution: packed files") and "b.jsonl.bz2" in note for note in log.notes)


def test_completions_with_the_markup_of_another_model_are_refused(tmp_path: Path) -> None:
    rows = [row | {"completion": row["completion"] + "<|eot_id|>"} for row in answers("p")]
    with pytest.raises(InputError, match=r"<\|eot_id\|>: no tokens"):
        imported(tmp_path, rows)
    end = load_served_policy("organism").tokenizer.convert_ids_to_tokens(EOS)
    pool = imported(tmp_path, [row | {"completion": row["completion"] + str(end)} for row in answers("p")])
    assert {rollout.completion_ids[-1] for rollout in pool.steps[0]} == {EOS}
