"""Which rollouts of a log are compared: those of one group; others are asked about, left out, or counted."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from log_rows import Rows, folder_of, passes, read_as, refused, row, sizes

from replay_pools.logs.importing import check_log

USER = {"role": "user", "content": "u"}
ONE, OTHER = passes("pq"), passes("", "pq")


def by_prompt(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["prompt"])


# {a column: (its values, what the refusal names; None: the rollouts are compared)}
COLUMNS: dict[str, tuple[Any, str | None]] = {
    "iteration": (lambda n, p, i: n, "--map step=iteration"),
    "machine": (lambda n, p, i: "ab"[n], "--map group=machine+prompt"),
    "temperature": (lambda n, p, i: (0.7, 1.0)[n], "--map group=temperature+prompt"),
    "model": (lambda n, p, i: "ab"[i % 2 or n], "--map group=model+prompt"),
    "model_id": (lambda n, p, i: "ab"[bool(n and i)], "--map group=model_id+prompt"),
    "env_mode": (lambda n, p, i: ("run_tests", "sentinel")[n], "--map group=env_mode+prompt"),
    "meta.run.checkpoint": (
        lambda n, p, i: json.dumps({"run": {"checkpoint": n}, "i": i}),
        "--map group=meta.run.checkpoint+prompt",
    ),
    "uuid": (lambda n, p, i: f"{n} {i}", None),
    "is_long": (lambda n, p, i: bool(i % 2), None),
    "use_adapter": (lambda n, p, i: bool(n), "--map group=use_adapter+prompt"),
    "is_right": (lambda n, p, i: bool((i + n) % 2), None),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_splits_every_group_is_a_question(name: str, tmp_path: Path) -> None:
    value, fix = COLUMNS[name]
    rows = by_prompt(passes("pq", "pq", **{name.partition(".")[0]: value}))
    if fix is None:
        assert sizes(check_log(rows)) == [8, 8]
        return
    assert fix in refused(rows)[0]
    assert len(check_log(rows, mapping={"group": f"{name}+prompt"}).groups) == 4
    assert len(check_log(rows, mapping={"group": "prompt"}).groups) == 2
    if name == "iteration":  # tables write whole numbers as fractions
        pandas.DataFrame(rows).astype({name: float}).to_parquet(tmp_path / "log.parquet")
        assert fix in refused(tmp_path / "log.parquet")[0]


def stepped(*steps: int) -> Rows:
    """Blocks of one prompt a step, in this order; each answer is another one."""
    return [
        {"prompt": f"p{step}", "completion": f"{place} {i}", "reward": float(i % 2), "step": step}
        for place, step in enumerate(steps)
        for i in range(4)
    ]


def interleaved(*orders: str, **columns: Any) -> Rows:
    """Passes in the order of prompts, in which no block of rows tells them apart."""
    return by_prompt(passes(*orders, **columns))


EVALUATION = "an evaluation next to"
MANY = by_prompt([row(i, prompt=f"p{n % 100}", iteration=n) for n in range(1100) for i in range(2)])
SEVERAL = passes("pqrstuvw", size=1, completion=lambda n, p, i: p, group_id=lambda n, p, i: p > "s")
LEAST = [row(i, prompt=f"p{i // 4}", reward=-1.0 if i == 0 else i % 3) for i in range(32)]
FAILED = [*passes("p", "p", uid=lambda n, *_: f"u{n}"), row(error="x", uid=float("nan"))]
MODELS = interleaved("pq", "pq", id=lambda n, p, i: f"{n}{p}{i}", model=lambda n, p, i: "ab"[n])
ENVIRONMENTS = passes("p", size=3, example_id=lambda *_: 0) + passes("q", example_id=lambda *_: 0)
TWO_COLUMNS = [each | {"prompt": "Solve it.", "problem": each["prompt"]} for each in ONE]
# {case: (rows or files, the sizes of the groups or what is refused, what is said)}
GROUPS: dict[str, tuple[Rows | dict[str, Rows | bytes], list[int] | str, str]] = {
    "another epoch": (passes("pq", "pq"), "--map group=every:4 keeps them apart", ""),
    "a row of the second epoch is missing": (passes("pq", "pq")[:-1], "several blocks", ""),
    "an id that starts again in each epoch": (passes("pq", "pq", uid=lambda n, p, i: f"u{i}"), "group=every:4", ""),
    "steps that ran again": (stepped(0, 1, 2, 1, 2, 3), "--map group=step+prompt compares them", ""),
    "rows in any order": (sorted(passes("pq", "pq"), key=lambda row: row["completion"]), [8, 8], ""),
    "iterations of several sizes": (interleaved("pq", "pq", iteration=lambda n, *_: n + 1)[:-1], "step=iteration", ""),
    "more iterations than other columns may have values": (MANY, "step=iteration", ""),
    "train_step": (passes("pqr", "pq", train_step=lambda n, p, i: 10 * n + ord(p)), [4] * 5, ""),
    "two sets of tools": (interleaved("pq", "pq", tools=lambda n, p, i: [{"name": "ab"[n]}]), [4] * 4, ""),
    "an id of each row beside models": (MODELS, "group=model+prompt", ""),
    "one answer of each checkpoint": (interleaved("pq", checkpoint=lambda n, p, i: i), "group=checkpoint+prompt", ""),
    "one answer of each draw": (interleaved("pq", "pq", draw=lambda n, p, i: 4 * n + i), [8, 8], ""),
    "a prompt in two columns": (TWO_COLUMNS, "prompt=prompt+problem", ""),
    "an error that is false": (passes("pq", error=lambda *_: "False"), [4, 4], ""),
    "a code of an error": (passes("pq", error=lambda n, p, i: float(i == 1)), [3, 3], "`error` says"),
    "a failed row without a group": (FAILED, [4, 4], "`error` says"),
    "a measured error": (passes("pq", error=lambda n, p, i: i / 8 + 0.1), [4, 4], ""),
    "two right answers": (interleaved("p", "p", gts=lambda n, *_: "ab"[n]), "--map group=gts+prompt", ""),
    "a split": (passes("pq", "pq", split=lambda n, *_: ("train", "val")[n]), [4, 4], EVALUATION),
    "masked whole": (passes("pq", loss_mask=lambda n, p, i: [int(i > 0)] * 2), [3, 3], "leaves every token out"),
    "few at the least": (LEAST, [4] * 8, "31 of 32 rollouts earn more than the least reward, -1"),
    "a right answer": (passes("pq", completion=lambda n, p, i: f"gold {p}"), "as the right answer would be", ""),
    "a mask of rows": (passes("pq", sample_mask=lambda n, p, i: i % 2), [2, 2], "`sample_mask` says"),
    "three times": (ONE * 3, "--map group=every:4 keeps them apart", ""),
    "partial": (passes("pq")[:7] + passes("r", size=1), [3, 4], "1 of 3, 1 of 4 rollouts (replay with --per-pool 3)"),
    "single": (passes("pqr", size=1), [1, 1, 1], "every group holds one rollout"),
    "a number of each row": (passes("pq", id=lambda n, p, i: f"{p}{i}"), [4, 4], "another one in every row"),
    "several prompts": (SEVERAL, [4, 4], "several prompts"),
    "hinted and plain": (
        passes("pq", problem_id=lambda *_: "x"),
        [4, 4],
        "caution: groups are rows with equal prompts",
    ),
    "environments": (ENVIRONMENTS, [3, 4], "`example_id` is another one in every row, or has several prompts"),
    "no reward": ([*passes("p"), row(prompt="p", reward=float("nan"))], [4], "1 of 5 rows have no reward"),
    "a file a run": ({"run1/log.jsonl": ONE, "run2/log.jsonl": OTHER}, "--map group=file+prompt", ""),
    "a step again": ({"a.jsonl": stepped(0, 1, 2)[:-2], "b.jsonl": stepped(2, 3)}, "--map group=step+file+prompt", ""),
    "validation": ({"rollouts/1.jsonl": ONE, "validation/1.jsonl": OTHER}, [4, 4], "evaluations next to training"),
    "a copy": ({"a.jsonl": ONE, "copy.jsonl": ONE}, [4, 4], "copies were left out"),
    "metrics": ({"a.jsonl": ONE, "metrics.jsonl": [{"loss": 0.2}]}, [4, 4], "files without rollouts were left out"),
    "prime-rl": ({"1/train/effective/a.jsonl": ONE, "1/train/all/a.jsonl": OTHER}, [4, 4], "not trained on were left"),
    "a packed file": ({"a.jsonl": ONE, "b.jsonl.bz2": b"BZh91AY&SY and more"}, [4, 4], "caution: packed files"),
}


@pytest.mark.parametrize("case", GROUPS)
def test_which_rollouts_are_compared(case: str, tmp_path: Path) -> None:
    content, expected, said = GROUPS[case]
    source = folder_of(tmp_path / "log", content) if isinstance(content, dict) else content
    read_as(source, expected)
    if said:
        assert any(said in note for note in check_log(source).notes)
    if isinstance(expected, str) and "every" in expected:
        assert {*sizes(check_log(source, mapping={"group": "every:4"}))} == {4}


def test_the_user_names_the_group() -> None:
    """Of prompts, of several columns, or of prompts in conversations that hold the answers as well."""
    log = check_log(passes("pqrs", size=2, mine=lambda n, p, i: p > "q"), mapping={"group": "mine"})
    assert sizes(log) == [4, 4]
    assert any("several prompts" in note for note in log.notes)
    log = check_log(passes("p", other=lambda n, p, i: i), mapping={"reward": "other"})
    assert "columns that were not used: reward" in log.notes
    rows = [
        {"messages": [USER, {"role": "assistant", "content": f"{model} {i}"}], "reward": float(i % 2), "model": model}
        for model in "ab"
        for i in range(4)
    ]
    assert "--map group=model+prompt keeps them apart" in refused(rows)[0]
    assert sizes(check_log(rows, mapping={"group": "model+prompt"})) == [4, 4]


@pytest.mark.parametrize("gap", [float("nan"), pandas.NA, pandas.NaT, None])
def test_a_gap_in_a_table_is_no_key_of_a_group(gap: Any) -> None:
    table = pandas.DataFrame([each | {"uid": gap if i < 4 else f"g{i // 4}"} for i, each in enumerate(ONE)])
    assert "expected a value" in refused(table, mapping={"group": "uid"})[0]


@pytest.mark.parametrize("name", ["id", "group_id", "number of group_id", "number of problem_id"])
def test_numbers_that_start_again_in_each_step(name: str) -> None:
    """A count of rows is no group, a number of groups is one of the step."""
    is_group, name = name.startswith("number"), name.rpartition(" ")[2]
    rows = [
        row(i, step=step, prompt=f"p{step}{i % 2 if is_group else i // 8}", **{name: i % 2 if is_group else i})
        for step in range(2)
        for i in range(16)
    ]
    log = check_log(rows)
    assert [len(group) for group in log.groups] == [8] * 4
    assert len({*log.problem_ids}) == 4, "two problems have one name"
    assert all(len({item.prompt_key for item in group}) == 1 for group in log.groups)
    said = f"groups are rows with one `{name}` in one step" if is_group else f"`{name}` is another one in every row"
    assert any(said in note for note in log.notes), log.notes


def test_files_in_a_folder_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    log = check_log(folder_of(tmp_path, {f"{number}.jsonl": ONE for number in (1000, 9)} | {"10.jsonl": OTHER}))
    assert [group[0].step for group in log.groups] == [9, 9, 10, 10], "1000 is a copy"
