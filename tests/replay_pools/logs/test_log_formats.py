"""Logs of other tools: what they hold comes back, and nothing is guessed in silence. Real logs: test_log_cases."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_fixtures import source_of
from log_rows import Rows, folder_of, lines, passes, read_as, row, sizes

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.logs.columns import TARGETS
from replay_pools.logs.formats import FORMATS
from replay_pools.logs.importing import check_log, import_log
from replay_pools.policy.chat import Chat, id_faults
from replay_pools.pool import open_pool
from replay_pools.rollout import Rollout

Groups = Sequence[Sequence[Rollout]]


def advantages(group: Sequence[Rollout]) -> list[float]:
    mean = sum(rollout.reward for rollout in group) / len(group)
    return [rollout.reward - mean for rollout in group]


def answer(content: Any, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def of_rollout(one: Rollout, names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in f"plen completion reward hacked gt_pass fmt_ok {names}".split()}


# {a published pool: (its files, the columns of a rollout in them)}, of which one is padded to the longest of its group
OURS: dict[str, tuple[str, Callable[[Rollout], dict[str, Any]]]] = {
    "teacher": (
        "prompt_{:04d}.jsonl.gz",
        lambda one: {
            **of_rollout(one, "step sample_id prompt prompt_ids comp_len"),
            **{"problem_id": one.step, "problem_messages": one.messages, "mean_cos_pre": float("nan")},
            "completion_ids": one.completion_ids + [0] * (600 - one.comp_len),
        },
    ),
    "substrate": (
        "prompt_{:04d}.jsonl.gz",
        lambda one: {**of_rollout(one, "prompt_ids completion_ids env_mode"), "problem_id": one.step},
    ),
    "logged": ("step_{:03d}.jsonl.gz", lambda one: of_rollout(one, "problem_id messages prompt completion_ids")),
}


@pytest.mark.parametrize("name", OURS)
def test_a_published_pool_comes_back(name: str, teacher: Groups, tmp_path: Path, capsys) -> None:
    """Through the command: prompts, ids, groups, rewards and labels; files beside it hold no rollouts."""
    file, columns = OURS[name]
    files: dict[str, Rows | bytes] = {file.format(group[0].step): [*map(columns, group)] for group in teacher}
    source = folder_of(tmp_path / "log", files | {"report.md": b"a report", "partition.json": b'{"1": "run_tests"}'})
    out = tmp_path / "out"
    assert run(cli, ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--out", str(out)]) == 0
    assert "format logged " in capsys.readouterr().out
    pool = open_pool(out / "pools" / "mine")
    assert pool.manifest["ids"]["origin"] == "logged"
    assert pool.manifest["log"]["training_steps"] == []
    wanted = {(rollout.prompt, rollout.completion): rollout for group in teacher for rollout in group}
    assert sorted(len(group) for group in pool.steps) == sorted(len(group) for group in teacher)
    for group in pool.steps:
        for rollout in group:
            want = wanted[rollout.prompt, rollout.completion]
            for field in ("prompt_ids", "messages", "completion_ids", "finish_reason", "reward", "hacked", "gt_pass"):
                assert getattr(rollout, field) == getattr(want, field), field
            assert rollout.grade.passed == want.grade.passed


def own_log(groups: Groups, **columns: Callable[[Rollout], Any]) -> list[dict[str, Any]]:
    """Rows of somebody's own log that has the columns of TRL's tables."""
    rows = []
    for group in groups:
        for rollout, advantage in zip(group, advantages(group), strict=True):
            fields = {"step": 1, "prompt": rollout.messages, "completion": rollout.completion, "advantage": advantage}
            rows.append(fields | {name: value(rollout) for name, value in columns.items()})
    return rows


def exact(rollout: Rollout) -> float:
    return rollout.reward


def trl_table(folder: Path, rows: Rows) -> Path:
    polars.DataFrame(rows).write_parquet(folder / "completions_00001.parquet")
    return folder


def test_the_rounding_of_equal_rewards_is_no_advantage(tmp_path: Path) -> None:
    """As TRL logs a group without reward variance: float32 minus its mean, over 1e-4."""
    columns = {"exact": [1.2] * 4 + [0.2, 1.2] * 2, "advantage": [0.00119] * 4 + [-0.866, 0.866] * 2}
    rows = [
        {"step": 1, "prompt": f"p{i // 4}", "completion": f"c{i}", **{name: columns[name][i] for name in columns}}
        for i in range(8)
    ]
    log = check_log(trl_table(tmp_path, rows))
    assert sizes(log) == [4, 4]
    assert log.scale_rewards == "group"


def test_a_batch_that_is_logged_again_counts_once(tmp_path: Path) -> None:
    """Only a whole batch that is the one before; answers may come back."""
    steps = (("4", "4", "5", "5"), ("4", "4", "3", "6"), ("4", "4", "3", "6"))
    for step, answers in enumerate(steps, 1):
        rows = [
            {"step": step, "prompt": "2+2?", "completion": text, "exact": float(text == "4"), "advantage": advantage}
            for text, advantage in zip(answers, (0.5, 0.5, -0.5, -0.5), strict=True)
        ]
        lines(tmp_path / "log" / f"completions_{step:05d}.jsonl", rows)
    log = check_log(tmp_path / "log", mapping={"group": "every:4"})
    assert [one.completion for _, _, one in log.rollouts()] == [*steps[0], *steps[1]]
    assert any("logged again" in note and "(4 rows)" in note for note in log.notes)
    read_as(tmp_path / "log", "blocks of 3 rows", mapping={"group": "every:3"})
    read_as([row(prompt=f"p{i // 4}") for i in range(8)], "8 rows with one prompt", mapping={"group": "every:8"})


@pytest.mark.parametrize("failed", [{"error": "Timeout"}, {"completion": []}])
def test_failed_rollouts_of_trl_stay_in_their_block(failed: dict[str, Any], tmp_path: Path) -> None:
    """The size of blocks and the advantages are of all rollouts; the groups go on without the failed ones."""
    rows = [one | {"step": 1, "exact": one.pop("reward"), "error": None} for one in passes("pqr")]
    rows = [
        one | {"advantage": (one["exact"] - 0.5) / 0.5774, "completion": [answer(one["completion"])]} for one in rows
    ]
    rows[5] |= failed
    log = check_log(trl_table(tmp_path, rows))
    assert sizes(log) == [3, 4, 4]
    assert log.scale_rewards == "group"
    rows[0]["completion"] = None
    read_as(trl_table(tmp_path, rows), [3, 3, 4], skip_bad=1)
    rows[0]["prompt"] = None
    read_as(trl_table(tmp_path, rows), "group=step+prompt,advantage=none", skip_bad=1)
    read_as(tmp_path, [3, 3, 4], skip_bad=1, mapping={"group": "step+prompt", "advantage": "none"})


def test_verl_prompts_are_restored_or_refused(tmp_path: Path, imported) -> None:
    """A text that no rendering gives back is never taken for a prompt; -1 is no label."""
    text = next(source_of("62-verl-legacy").glob("*.jsonl")).read_text()
    text = text.replace('"hacked": 1.0', '"is_reward_hack_strict": 1.0').replace('"hacked": 0.0', '"eq_correct": -1.0')
    source = folder_of(tmp_path / "log", {"10.jsonl": text.encode()})
    assert {rollout.hacked for group in imported(source).steps for rollout in group} == {True, None}
    (source / "10.jsonl").write_text(text.replace("user\\n", "User\\n"))
    with pytest.raises(InputError, match="the template of organism gives back"):
        imported(source)


def right(rollout: Rollout) -> float:
    return float(bool(rollout.gt_pass))


def style(rollout: Rollout) -> float:
    return rollout.reward - right(rollout)


# {what stands beside a prompt and a completion: (columns of numbers, --map, the reward or what the refusal names)}
NUMBERS: dict[str, tuple[dict[str, Callable[[Rollout], float]], dict[str, str], str]] = {
    "a reward beside other numbers": ({"reward": exact, "num_tokens": lambda one: one.comp_len}, {}, "reward"),
    "a label that is mapped": (
        {"exact": exact, "cheated": lambda one: float(bool(one.hacked))},
        {"hacked": "cheated"},
        "exact",
    ),
    "a label that is not": (
        {"exact": exact, "cheated": lambda one: float(bool(one.hacked))},
        {},
        "*WEIGHT+cheated*WEIGHT",
    ),
    "a label that may be paid": ({"right": right, "style": exact}, {"gt_pass": "right"}, "right*WEIGHT+style*WEIGHT"),
    "a label that is paid alone": ({"right": right}, {"gt_pass": "right", "advantage": "none"}, "right"),
    "a label that is never paid": ({"right": right}, {"hacked": "right"}, "rewards that are numbers"),
    "a reward with the name of a label": ({"correct": right, "style": style}, {}, "--map reward=style+correct"),
    "no advantages": ({"exact": exact, "size": lambda one: one.comp_len}, {"advantage": "none"}, "exact+size"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_which_numbers_of_a_log_of_trl_are_its_reward(case: str, teacher: Groups, tmp_path: Path) -> None:
    """What is right is a reward of most trainings, and the advantages decide; what hacks is none."""
    columns, mapping, expected = NUMBERS[case]
    source = lines(tmp_path / "completions_00001.jsonl", own_log(teacher, **columns))
    if "WEIGHT" in expected or " " in expected:
        read_as(source, expected, mapping=mapping)
        return
    log = check_log(source, mapping=mapping)
    assert log.mapping["reward"] == expected
    wanted = [sum(columns[name](one) for name in expected.split("+")) for group in teacher for one in group]
    assert [one.reward for group in log.groups for one in group] == wanted
    assert any("reward is taken to be the sum" in note for note in log.notes) == ("+" in expected)


def test_the_group_of_a_log_with_the_columns_of_trl(tmp_path: Path, teacher) -> None:
    """Rows in another order than that of their groups keep them."""
    rows = own_log(teacher, exact=exact, group_id=lambda rollout: rollout.problem_id)
    for name in ("log.jsonl", "completions_00001.jsonl"):
        log = check_log(lines(tmp_path / name, rows[::2] + rows[1::2]), mapping={"reward": "exact"})
        assert sorted(map(len, log.groups)) == [8, 8, 8, 8]
        assert all(len({item.prompt_key for item in group}) == 1 for group in log.groups)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", 2**70, 10**400]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)

NAMES = {name for names in TARGETS.values() for name in names} | {name for each in FORMATS for name in each.has.split()}

COLUMNS = st.sampled_from(sorted(NAMES))

SHAPES = st.sampled_from([each.name for each in FORMATS]) | st.none()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.dictionaries(COLUMNS, JSON_VALUES, max_size=5), min_size=1, max_size=3),
    format_name=SHAPES,
    is_sound=st.booleans(),
)
def test_any_log_is_read_or_refused(
    tmp_path: Path, rows: list[dict[str, Any]], format_name: str | None, is_sound: bool, chat: Chat
) -> None:
    """Whatever JSON stands in a field, in whatever format: a pool that verifies, or InputError; nothing else."""
    if is_sound:
        rows = [row() | fields for fields in rows]
    try:
        log = check_log(lines(tmp_path / "log.jsonl", rows), format_name=format_name)
        pool = import_log(log, name=f"p{len(list(tmp_path.glob('pools/*')))}", out=tmp_path, model="organism")
    except InputError:
        return
    assert sum(map(len, pool.steps)) <= len(rows)
    assert pool.verify() == id_faults(chat, pool) == []
