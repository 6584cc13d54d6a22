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


def test_samples_of_inspect(teacher: Groups, imported) -> None:
    """Letters are numbers, and errors are left out."""
    samples = [
        {
            **{"id": f"t{place}", "epoch": i, "scores": {"match": {"value": "C" if one.reward > 3 else "I"}}},
            "messages": [*one.messages, answer([{"type": "text", "text": one.completion}], source="generate")],
            "output": {"choices": [{"stop_reason": "stop"}]},
        }
        for place, group in enumerate(teacher)
        for i, one in enumerate(group)
    ]
    samples[0]["error"] = "timeout"
    pool = imported(samples)
    assert [[rollout.reward for rollout in group] for group in pool.steps] == [
        [float(one.reward > 3) for one in group] for group in (teacher[0][1:], *teacher[1:])
    ]


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


def test_trl_with_recorded_ids_needs_no_tokenizing(teacher, imported) -> None:
    """What a reward function logs with log_extra is taken: ids, labels, and no reward of them."""
    ids, right = (lambda rollout: rollout.completion_ids), (lambda rollout: 1.0)
    rows = own_log(teacher, completion_ids=ids, gt_pass=right, exact=exact)
    pool = imported(rows)
    assert pool.manifest["log"]["mapping"]["reward"] == "exact"
    assert pool.manifest["ids"]["origin"] == "logged"
    assert pool.steps[0][0].completion_ids == teacher[0][0].completion_ids
    assert pool.steps[0][0].gt_pass is True


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


def test_a_reward_is_not_added_to_what_stands_beside_it(tmp_path: Path, teacher) -> None:
    """Numbers beside a column `reward` are no rewards, whether the log is read as TRL's or not."""
    numbers = {"num_tokens": lambda rollout: rollout.comp_len, "temperature": lambda rollout: 1.0}
    for name, reward in (("log.jsonl", "reward"), ("log.jsonl", "score"), ("completions_00001.jsonl", "reward")):
        log = check_log(lines(tmp_path / name, own_log(teacher, **{reward: exact}, **numbers)))
        assert log.format.name == ("columns" if name == "log.jsonl" else "trl")
        wanted = [rollout.reward for group in teacher for rollout in group]
        assert [item.reward for group in log.groups for item in group] == wanted


def test_a_label_never_enters_the_reward(teacher: Groups) -> None:
    """A column that is mapped to a label is not paid; a sum is refuted, or a caution."""
    rows = own_log(teacher, exact=exact, cheated=lambda rollout: int(rollout.hacked))
    log = check_log(rows, mapping={"hacked": "cheated"})
    assert log.mapping["reward"] == "exact"
    pairs = [[[(one.reward, one.hacked) for one in group] for group in groups] for groups in (log.groups, teacher)]
    assert pairs[0] == pairs[1]
    read_as(rows, "--map reward=exact*WEIGHT+cheated*WEIGHT")
    said = "caution: reward is taken to be the sum of exact, cheated"
    assert any(said in note for note in check_log(rows, mapping={"advantage": "none"}).notes)


def test_a_label_may_be_paid(teacher) -> None:
    """What is right is a reward of most trainings: it stays one, and the advantages decide; what hacks is none."""
    rows = own_log(teacher, exact=lambda rollout: float(rollout.gt_pass), style=exact)
    read_as(rows, "--map reward=exact*WEIGHT+style*WEIGHT", mapping={"gt_pass": "exact"})
    log = check_log(rows, mapping={"gt_pass": "exact", "reward": "exact", "advantage": "none"})
    assert all(item.reward == float(bool(item.gt_pass)) for group in log.groups for item in group)
    alone = own_log(teacher, exact=lambda rollout: float(rollout.gt_pass))
    assert check_log(alone, mapping={"gt_pass": "exact", "advantage": "none"}).mapping["reward"] == "exact"
    read_as(alone, "rewards that are numbers", mapping={"hacked": "exact"})


def test_a_reward_with_the_name_of_a_label_is_named(tmp_path: Path) -> None:
    rows = passes("pq", step=lambda *_: 1, correct=lambda n, p, i: float(i % 2), style=lambda n, p, i: i / 4)
    rows = [one | {"advantage": one["correct"] + one["style"] - 0.875, "reward": None} for one in rows]
    table = trl_table(tmp_path, [{name: value for name, value in one.items() if value is not None} for one in rows])
    read_as(table, "--map reward=style+correct")
    assert check_log(table, mapping={"reward": "style+correct"}).scale_rewards == "none"


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
