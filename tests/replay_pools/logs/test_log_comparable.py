"""Rollouts that may not be compared are not compared in silence: asked, left out, or counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
from datasets import Dataset, DatasetDict

from extraction.pair_files import store_rows
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError
from replay_pools.logs.importing import check_log, import_log

Rows = list[dict[str, Any]]


def rows(add: Callable[[int, int], dict[str, Any]], times: int = 2, mark: str = "") -> Rows:
    """Two prompts with four answers each, `times` over; `add` gets which time it is and the place in the group."""
    return [
        {"prompt": f"p{prompt}", "completion": f"{mark}{time} {i}", "reward": float((i + time) % 3)} | add(time, i)
        for time in range(times)
        for prompt in range(2)
        for i in range(4)
    ]


ONE, OTHER = rows(lambda *_: {}, 1), rows(lambda *_: {}, 1, "other ")
# {a column: (its values, what the refusal names; None: the rollouts are compared)}
COLUMNS: dict[str, tuple[Callable[[int, int], Any], str | None]] = {
    "iteration": (lambda time, i: time, "--map step=iteration"),
    "epoch": (lambda time, i: time, "--map step=epoch"),
    "policy_version": (lambda time, i: 7 + time, "--map step=policy_version"),
    "rollout_id": (lambda time, i: time, "--map step=rollout_id"),
    "run": (lambda time, i: "ab"[time], "--map group=run+prompt"),
    "model": (lambda time, i: "ab"[i % 2 or time], "--map group=model+prompt"),
    "machine": (lambda time, i: "ab"[time], "--map group=machine+prompt"),
    "seed": (lambda time, i: float(time), "--map step=seed"),
    "temperature": (lambda time, i: (0.7, 1.0)[time], "--map group=temperature+prompt"),
    "model_id": (lambda time, i: "ab"[bool(time and i)], "--map group=model_id+prompt"),
    "uuid": (lambda time, i: f"{time} {i}", None),
    "is_long": (lambda time, i: bool(i % 2), None),
    "bonus": (lambda time, i: i % 2 / 2, None),
}


def test_a_source_may_stand_in_an_object_or_a_table(tmp_path: Path) -> None:
    """Tables write whole numbers as fractions."""
    with pytest.raises(InputError, match="--map step=meta.iteration"):
        check_log(rows(lambda time, _: {"meta": {"iteration": time}}))
    path = tmp_path / "log.csv"
    pandas.DataFrame(rows(lambda time, _: {"iteration": time})).to_csv(path)
    with pytest.raises(InputError, match="--map step=iteration"):
        check_log(path)


def write(folder: Path, files: dict[str, Rows]) -> Path:
    for name, given in files.items():
        path = folder / "log" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return folder / "log"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_splits_every_group_is_a_question(name: str, tmp_path: Path) -> None:
    value, fix = COLUMNS[name]
    given = rows(lambda time, i: {name: value(time, i)})
    if fix is None:
        source = write(tmp_path, {"a.jsonl": sorted(given, key=lambda row: row["prompt"])})
        assert [len(group) for group in check_log(source).groups] == [8, 8]
        return
    source = write(tmp_path, {"a.jsonl": given})
    with pytest.raises(InputError) as error:
        check_log(source)
    assert fix in error.value.fix
    assert len(check_log(source, mapping={"group": f"{name}+prompt"}).groups) == 4
    assert len(check_log(source, mapping={"group": "prompt"}).groups) == 2


def test_single_rollouts_of_several_weights_are_a_question() -> None:
    """One answer of each of eight checkpoints to each prompt; one of each of eight seeds is a group."""
    with pytest.raises(InputError, match=r"--map group=checkpoint\+prompt"):
        check_log(rows(lambda time, i: {"checkpoint": f"step{4 * time + i}"}))
    log = check_log(sorted(rows(lambda time, i: {"draw": 4 * time + i}), key=lambda row: row["prompt"]))
    assert [len(group) for group in log.groups] == [8, 8]


@pytest.mark.parametrize("gap", [float("nan"), pandas.NA, pandas.NaT, None])
def test_a_gap_in_a_table_is_no_key_of_a_group(gap: Any) -> None:
    table = pandas.DataFrame([row | {"uid": gap if i < 4 else f"g{i // 4}"} for i, row in enumerate(ONE)])
    with pytest.raises(InputError, match="expected a value, found null"):
        check_log(table, mapping={"group": "uid"})


def test_parts_of_a_reward_may_stand_in_texts() -> None:
    given = [row | {"tests": str(row["reward"]), "style": 0.5} for row in ONE]
    log = check_log(given, mapping={"reward": "tests*2+style"})
    assert [one.reward for group in log.groups for one in group] == [2 * row["reward"] + 0.5 for row in ONE]
    log = check_log(given, mapping={"reward": "tests*2", "passed": "tests>0.5"})
    assert [one.reward for group in log.groups for one in group] == [2 * row["reward"] for row in ONE]
    with pytest.raises(InputError, match="a finite number"):
        check_log([row | {"tests": "many"} for row in given], mapping={"reward": "tests*2+style"})


def stepped(*steps: int, size: int = 4) -> Rows:
    """Blocks of one prompt a step, in this order; each answer is another one."""
    return [
        {"prompt": f"p{step}", "completion": f"{place} {i}", "reward": float(i % 2), "step": step}
        for place, step in enumerate(steps)
        for i in range(size)
    ]


# {what lies between the rows of a group: (rows, what the refusal names; None: the sizes of the groups)}
APART: dict[str, tuple[Rows, str | None, list[int]]] = {
    "another epoch": (rows(lambda *_: {}), "--map group=every:4 keeps them apart", []),
    "a part of another epoch": (rows(lambda *_: {})[:12], "--map group=every:4 keeps them apart", []),
    "steps that ran again": (stepped(0, 1, 2, 1, 2, 3), "--map group=step+prompt compares them", []),
    "nothing": (stepped(0, 1, 1, 2), None, [4, 8, 4]),
    "rows of one step": ([row | {"step": 0} for row in rows(lambda *_: {})], None, [8, 8]),
    "any rows": (sorted(rows(lambda *_: {}), key=lambda row: row["completion"]), None, [8, 8]),
}


@pytest.mark.parametrize("case", APART)
def test_blocks_of_one_group_are_a_question(case: str, tmp_path: Path) -> None:
    given, fix, sizes = APART[case]
    source = write(tmp_path, {"a.jsonl": given})
    if fix is None:
        assert [len(group) for group in check_log(source).groups] == sizes
        return
    with pytest.raises(InputError) as error:
        check_log(source)
    assert fix in error.value.fix
    if "every" in fix:
        assert {len(group) for group in check_log(source, mapping={"group": "every:4"}).groups} == {4}
    key = "step+prompt" if "step" in given[0] else "prompt"
    assert max(len(group) for group in check_log(source, mapping={"group": key}).groups) == 8


def test_few_rollouts_at_the_least_reward_are_a_caution(tmp_path: Path) -> None:
    """One crash at -1 makes every failure a pass; a column may say what passed."""
    given = rows(lambda *_: {}, 1) * 4
    given = [row | {"prompt": f"p{i // 4}", "completion": str(i)} for i, row in enumerate(given)]
    source = write(tmp_path, {"a.jsonl": [given[0] | {"reward": -1.0}, *given[1:]]})
    assert any("31 of 32 rollouts earn more than the least reward, -1" in note for note in check_log(source).notes)
    mapping = {"passed": "reward>0.5"}
    log = check_log(source, mapping=mapping)
    assert not any("least reward" in note for note in log.notes)
    pool = import_log(log, name="own", out=tmp_path, model="organism")
    for group in pool.steps:
        assert [one.grade.passed for one in group] == [one.reward > 0.5 for one in group]


# {files of a folder: (their rows, sizes of the groups or what is refused, what is said)}
FOLDERS: dict[str, tuple[dict[str, Rows], Any, str]] = {
    "two runs": ({"run1/log.jsonl": ONE, "run2/log.jsonl": OTHER}, "--map group=file+prompt", ""),
    "shards": ({"rank_0.jsonl": ONE, "rank_1.jsonl": OTHER}, "--map group=file+prompt", ""),
    "steps": ({"global_step_5/r.jsonl": ONE, "global_step_10/r.jsonl": OTHER}, [4] * 4, ""),
    "validation": ({"rollouts/1.jsonl": ONE, "validation/1.jsonl": OTHER}, [4, 4], "evaluations next to training"),
    "a copy": ({"a.jsonl": ONE, "copy.jsonl": ONE}, [4, 4], "copies of another file"),
    "twice": ({"a.jsonl": ONE * 2}, [4, 4], "the log is there 2 times"),
    "three times": ({"a.jsonl": ONE * 3}, [4, 4], "the log is there 3 times"),
    "a file a model": ({"a.jsonl": ONE[::4], "b.jsonl": OTHER[::4]}, "--map group=file+prompt", ""),
    "metrics": ({"a.jsonl": ONE, "metrics.jsonl": [{"step": 1, "loss": 0.2}]}, [4, 4], "files were left out: metrics"),
    "a split": ({"a.jsonl": rows(lambda time, _: {"split": ("train", "val")[time]})}, [4, 4], "an evaluation next to"),
    "is_train": ({"a.jsonl": rows(lambda time, _: {"is_train": not time})}, [4, 4], "an evaluation next to"),
    "a mask of rows": ({"a.jsonl": rows(lambda _, i: {"sample_mask": i % 2}, 1)}, [2, 2], "`sample_mask` says"),
    "is_eval": ({"a.jsonl": rows(lambda time, _: {"is_eval": bool(time)})}, [4, 4], "an evaluation next to"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_files_and_splits(case: str, tmp_path: Path) -> None:
    files, expected, said = FOLDERS[case]
    source = write(tmp_path, files)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected.replace("+", r"\+")):
            check_log(source)
        return
    log = check_log(source)
    assert [len(group) for group in log.groups] == expected
    assert any(said in note for note in log.notes)


def test_groups_that_are_kept_apart_stay_apart_in_a_replay(tmp_path: Path) -> None:
    """Of one prompt in two steps: no replayed group has rollouts of both."""
    source = write(tmp_path, {"step_1.jsonl": ONE, "step_2.jsonl": OTHER})
    pool = import_log(check_log(source), name="mine", out=tmp_path / "out", model="organism")
    replayed = ReplaySource([pool], per_pool=4)
    groups = [replayed.groups(step)[0] for step in range(replayed.num_steps)]
    assert [len({key.step for key in group.keys}) for group in groups] == [1] * 4
    assert {key.step for group in groups for key in group.keys} == {0, 1, 2, 3}


def test_rows_in_memory(tmp_path: Path) -> None:
    """Of lists, DataFrames and data sets; of a DatasetDict the training split."""
    both = DatasetDict(train=Dataset.from_list(ONE), test=Dataset.from_list(OTHER))
    for source in (ONE, pandas.DataFrame(ONE), polars.DataFrame(ONE), Dataset.from_list(ONE), both):
        log = check_log(source)
        assert [[one.reward for one in group] for group in log.groups] == [[0.0, 1.0, 2.0, 0.0]] * 2
    stored = {store_rows(source, tmp_path) for source in (ONE, pandas.DataFrame(ONE), Dataset.from_list(ONE))}
    assert len(stored) == 1  # pairs are given so, too
    with pytest.raises(InputError, match="a path, a list of dicts, a DataFrame or a Dataset"):
        check_log(3)


# {what a log may look like: (its bytes, what its refusal names; None: it is read)}
TEXT = "".join(json.dumps(row) + "\n" for row in ONE)
FILES: dict[str, tuple[bytes, str | None]] = {
    "UTF-16": (TEXT.encode("utf-16"), "iconv -f UTF-16"),
    "a zip archive": (b"PK\x03\x04 and more", "unpack it"),
    "a cut last line": (TEXT[:-30].encode(), "--skip-bad 1"),
    "half a character": (TEXT.replace('"0 1"', '"\\ud800"').encode(), "--skip-bad N"),
    "a pickle": (b"\x80\x04 and more", "torch.save"),
    "columns": (json.dumps({name: [row[name] for row in ONE] for name in ONE[0]}).encode(), None),
    "columns by index": (pandas.DataFrame(ONE).to_json().encode(), None),
    "pretty objects": ("\n".join(json.dumps(row, indent=1) for row in ONE).encode(), None),
    "a pretty array": (json.dumps(ONE, indent=1).encode(), None),
    "a mark of byte order": (b"\xef\xbb\xbf" + TEXT.encode(), None),
    "labels as text": (TEXT.replace('"reward"', '"hacked": "yes", "reward"').encode(), None),
    "rewards as text": (TEXT.replace(": 1.0}", ': "1.0"}').encode(), None),
    "probabilities": (TEXT.replace('"reward"', '"hacked": 0.7, "reward"').encode(), "hacked=hacked>0.5"),
    "an instruction with input": (
        TEXT.replace('"prompt"', '"input": "x", "instruction"').encode(),
        "instruction+input",
    ),
    "a question with context": (TEXT.replace('"prompt"', '"context": "x", "question"').encode(), "question+context"),
    "who reasons": (TEXT.replace('"reward"', '"reasoning": "x", "reward"').encode(), "reasoning=none"),
    "log-probabilities above 0": (
        TEXT.replace('"reward"', '"logprobs": [0.5, 0.9], "reward"').encode(),
        "these are probabilities",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_what_leads_on(case: str, tmp_path: Path) -> None:
    content, named = FILES[case]
    path = tmp_path / ("log.json" if case.startswith("columns") else "log.jsonl")
    path.write_bytes(content)
    if named is None:
        assert [len(group) for group in check_log(path).groups] == [4, 4]
        return
    with pytest.raises(InputError) as error:
        check_log(path)
    assert named in str(error.value)


# {columns of a text: what its import says, and the finish reason}
SAID: dict[str, tuple[dict[str, Any], str, str]] = {
    "a length": ({"response_length": 500}, "the logged length of the completion is not", "stop"),
    "log-probabilities": ({"logprobs": [-0.5] * 3}, "log-probabilities were left out", "stop"),
    "both ends": ({"finish_reason": "MAX_TOKENS", "truncated": False}, "ids: retokenised", "length"),
}


@pytest.mark.parametrize("case", SAID)
def test_columns_that_are_shown_are_used_or_said_to_be_left_out(case: str, tmp_path: Path) -> None:
    columns, said, finish = SAID[case]
    log = check_log([row | columns for row in ONE])
    pool = import_log(log, name="mine", out=tmp_path, model="organism")
    assert any(said in caution for caution in pool.cautions)
    assert {rollout.finish_reason for group in pool.steps for rollout in group} == {finish}


def test_reasoning_that_the_template_hides_is_refused(tmp_path: Path) -> None:
    """Its ids were sampled, and are not in the text."""
    log = check_log([row | {"reasoning_content": "I think."} for row in ONE])
    with pytest.raises(InputError, match=r"reasoning that the chat template does not show \(8 rows\)"):
        import_log(log, name="mine", out=tmp_path, model="organism")
