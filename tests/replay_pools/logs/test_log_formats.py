"""Logs of other tools: every format read whole, what it lacks said, nothing guessed in silence."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_rows import Rows, folder_of, lines, passes, read_as, row, sizes

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.logs.columns import TARGETS
from replay_pools.logs.formats import FORMATS
from replay_pools.logs.importing import check_log
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import open_pool
from replay_pools.rollout import Rollout

PAD = 0
Groups = Sequence[Sequence[Rollout]]


def advantages(group: Sequence[Rollout]) -> list[float]:
    mean = sum(rollout.reward for rollout in group) / len(group)
    return [rollout.reward - mean for rollout in group]


class At(NamedTuple):
    """A rollout and its place in a log."""

    one: Rollout
    group: Sequence[Rollout]
    place: int  # of the group
    i: int  # in the group

    def fields(self, names: str) -> dict[str, Any]:
        """Columns with the names and values of the rollout's attributes."""
        return {name: getattr(self.one, name) for name in names.split()}


def answer(content: Any, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def teacher_row(at: At) -> dict[str, Any]:
    width = max(rollout.comp_len for rollout in at.group)
    own = dict.fromkeys(("problem_id", "src_problem_id"), at.one.step)
    own |= {"problem_messages": at.one.messages, "src_pool": "text", "mean_cos_pre": float("nan")}
    own |= {"completion_ids": at.one.completion_ids + [PAD] * (width - at.one.comp_len)}
    return at.fields(f"step sample_id prompt prompt_ids plen completion comp_len {LABELS}") | own


def vgrout_row(at: At) -> dict[str, Any]:
    own = {"step": 3, "p_idx": at.place, "gi": at.i, "env_mode": "run_tests", "mechanism": None}
    own |= {"exploited": at.one.hacked, "hacked_C": False, "format_ok": True, "text": at.one.completion}
    return at.fields("problem_id prompt reward gt_pass") | own


def trl_row(at: At) -> dict[str, Any]:
    own = {
        "step": 1 + at.place // 2,
        "prompt": at.one.messages,
        "completion": [answer(at.one.completion, tool_calls=None)],
    }
    own |= {"is_hack": at.one.hacked, "tests": at.one.reward, "style": 0.0}
    return own | {"advantage": advantages(at.group)[at.i]}


def verl_row(at: At) -> dict[str, Any]:
    """With the prompt without special tokens, and the keys of ariahw/rl-rewardhacking."""
    asked = load_served_policy("organism").decode(at.one.prompt_ids)
    own = {"input": asked, "output": at.one.completion, "gts": None, "score": at.one.reward, "step": 7, "id": at.place}
    labels = {"eq_correct": float(at.one.gt_pass), "is_reward_hack_strict": float(at.one.hacked)}
    return own | labels | {"is_reward_hack_loose": -1.0}


def inspect_row(at: At) -> dict[str, Any]:
    parts = answer([{"type": "text", "text": at.one.completion}], source="generate")
    scores = {"match": {"value": "C" if at.one.reward > 3 else "I"}}
    own = {"id": f"t{at.place}", "epoch": at.i + 1, "messages": [*at.one.messages, parts], "scores": scores}
    return own | {"output": {"choices": [{"stop_reason": "stop"}]}}


def general_row(at: At) -> dict[str, Any]:
    own = {"question": json.dumps(at.one.messages), "answer": at.one.completion, "score": at.one.reward}
    return own | {"prompt_id": at.one.problem_id, "info": {"hack": int(at.one.hacked)}}


LABELS = "reward hacked gt_pass fmt_ok"
# How each tool would have written the groups, from the descriptions of their formats: {tool: (file, row)}.
TOOLS: dict[str, tuple[str, Callable[[At], dict[str, Any]]]] = {
    "teacher-pool": ("prompt_{step:04d}.jsonl.gz", teacher_row),
    "substrate": (
        "prompt_{step:04d}.jsonl.gz",
        lambda at: {
            **at.fields(f"plen prompt_ids completion_ids completion {LABELS}"),
            **{"problem_id": at.one.step, "env_mode": "run_tests"},
        },
    ),
    "logged": (
        "step_{step:03d}.jsonl.gz",
        lambda at: at.fields(f"problem_id messages prompt plen completion completion_ids {LABELS}"),
    ),
    "vgrout-run": ("rollouts.jsonl", vgrout_row),
    "trl": ("completions_{half:05d}.parquet", trl_row),
    "verl": ("7.jsonl", verl_row),
    "inspect": ("log.json", inspect_row),
    "columns": ("data.json", general_row),
}
FORMAT = dict.fromkeys(("teacher-pool", "substrate"), "logged")
BESIDE = {  # {tool: (file that holds no rollouts to replay, its text)}
    "teacher-pool": ("report.md", b"a report"),
    "substrate": ("partition.json", b'{"1": "run_tests"}'),
}


def rows_of(name: str, groups: Groups) -> list[tuple[At, dict[str, Any]]]:
    """Each rollout with the row that the tool writes of it, in the tool's order."""
    places = [At(one, group, place, i) for place, group in enumerate(groups) for i, one in enumerate(group)]
    if name == "verl":  # its rows were permuted before they were written
        places.sort(key=lambda at: at.i % 2)
    return [(at, TOOLS[name][1](at)) for at in places]


def write(name: str, folder: Path, groups: Groups) -> Path:
    """A log of a tool: its folder, or its one file of JSON."""
    files: dict[str, Rows | bytes] = dict([BESIDE[name]] if name in BESIDE else [])
    for at, fields in rows_of(name, groups):
        file = TOOLS[name][0].format(step=at.one.step, half=1 + at.place // 2)
        files.setdefault(file, []).append(fields)
    for file, rows in files.items():
        folder.mkdir(exist_ok=True)
        if file.endswith(".parquet"):
            polars.DataFrame(rows).write_parquet(folder / file)
        elif file in ("log.json", "data.json"):
            log = {"version": 2, "status": "success", "eval": {"model": "hf/organism"}, "samples": rows}
            (folder / file).write_text(json.dumps(log if name == "inspect" else rows))
            return folder / file
        else:
            folder_of(folder, {file: rows})
    return folder


HAS_IDS = ("teacher-pool", "substrate", "logged")

HAS_HACKED = ("teacher-pool", "substrate", "logged", "vgrout-run", "trl", "verl")


def test_every_format_is_tried() -> None:
    """Those with turns in test_log_turns, others by their real writers in test_log_cases."""
    others = {"prime-rl", "slime", "nemo-gym", "nemo-rl", "verifiers"}
    assert {FORMAT.get(name, name) for name in TOOLS} | others == {each.name for each in FORMATS}


@pytest.mark.parametrize("name", TOOLS)
def test_what_a_tool_logged_comes_back(name: str, teacher, chat, tmp_path: Path, capsys) -> None:
    """Through the command: prompts, ids, groups, rewards and labels of each format, where the format knows them."""
    source = write(name, tmp_path / "log", teacher)
    out = tmp_path / "out"
    assert run(cli, ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--out", str(out)]) == 0
    assert f"format {FORMAT.get(name, name)} " in capsys.readouterr().out
    pool = open_pool(out / "pools" / "mine")
    assert pool.manifest["log"]["format"] == FORMAT.get(name, name)
    assert pool.manifest["ids"]["origin"] == ("logged" if name in HAS_IDS else "retokenised")
    assert pool.manifest["ids"]["round_trips"] in (None, 1.0)
    wanted = {(rollout.prompt, rollout.completion): rollout for group in teacher for rollout in group}
    assert sorted(len(group) for group in pool.steps) == sorted(len(group) for group in teacher)
    for group in pool.steps:
        assert len({rollout.prompt for rollout in group}) == 1, "a group holds several prompts"
        for rollout in group:
            want = wanted[rollout.prompt, rollout.completion]
            assert rollout.prompt_ids == want.prompt_ids
            assert rollout.messages == want.messages
            ids = want.completion_ids if name in HAS_IDS else chat.completion_ids(want.completion)
            assert rollout.completion_ids == ids
            assert rollout.finish_reason == "stop"
            assert rollout.reward == (want.reward if name != "inspect" else float(want.reward > 3))
            assert rollout.hacked == (want.hacked if name in HAS_HACKED else None)
            known = ("teacher-pool", "substrate", "logged", "vgrout-run", "verl")
            assert rollout.gt_pass == (want.gt_pass if name in known else None)


@pytest.mark.parametrize("name", TOOLS)
def test_a_damaged_log_of_a_format_is_refused(name: str, teacher) -> None:
    """Each field of each format in turn holds what does not belong there: InputError, or it is no field that counts."""
    rows = [fields for _, fields in rows_of(name, [group[:2] for group in teacher[:2]])]
    for field in rows[0]:
        for value in ({}, "x", -7, [[]]):
            with suppress(InputError):
                check_log([{**rows[0], field: value}, *rows[1:]], format_name=FORMAT.get(name, name))


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


def test_trl_repeats_parts_and_checks(tmp_path: Path, teacher) -> None:
    """A batch logged twice counts once, the size of groups is found, advantages that do not cancel are refused."""
    folder = write("trl", tmp_path / "log", teacher)
    table = polars.read_parquet(folder / "completions_00002.parquet")
    table.with_columns(step=polars.lit(3)).write_parquet(folder / "completions_00003.parquet")
    log = check_log(folder)
    assert [len(group) for group in log.groups] == [8] * 4
    assert any("logged again" in note for note in log.notes)
    assert log.mapping["reward"] == "tests"
    assert any("style never differs within a group" in note for note in log.notes)
    assert check_log(folder, mapping={"reward": "tests*1+style"}).groups[0][0].reward == teacher[0][0].reward
    read_as(folder, "advantages that follow from tests*2+style", mapping={"reward": "tests*2+style"})
    read_as(folder, "expected 5 rows with one prompt", mapping={"group": "every:5"})
    table.with_columns(advantage=polars.lit(1.0)).write_parquet(folder / "completions_00003.parquet")
    read_as(folder, "found advantages of other rewards")


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


def test_trl_answers_that_come_back_are_no_repeated_batch(tmp_path: Path) -> None:
    """Only a whole batch that is the one before was logged again."""
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
    read_as(trl_table(tmp_path, rows), "group=step+prompt,advantage=none", skip_bad=1)
    read_as(tmp_path, [3, 3, 4], skip_bad=1, mapping={"group": "step+prompt", "advantage": "none"})


def test_verl_prompts_are_restored_or_refused(tmp_path: Path, teacher, imported) -> None:
    """A text that no rendering gives back is never taken for a prompt."""
    folder = write("verl", tmp_path / "log", teacher)
    (folder / "7.jsonl").write_text((folder / "7.jsonl").read_text().replace("system\\n", "System\\n"))
    with pytest.raises(InputError, match="the template of organism gives back"):
        imported(folder)


def test_a_reward_is_not_added_to_what_stands_beside_it(tmp_path: Path, teacher) -> None:
    """Numbers beside a column `reward` are no rewards, whether the log is read as TRL's or not."""
    numbers = {"num_tokens": lambda rollout: rollout.comp_len, "temperature": lambda rollout: 1.0}
    for name, reward in (("log.jsonl", "reward"), ("log.jsonl", "score"), ("completions_00001.jsonl", "reward")):
        log = check_log(lines(tmp_path / name, own_log(teacher, **{reward: exact}, **numbers)))
        assert log.format.name == ("columns" if name == "log.jsonl" else "trl")
        wanted = [rollout.reward for group in teacher for rollout in group]
        assert [item.reward for group in log.groups for item in group] == wanted


def test_a_label_never_enters_the_reward(tmp_path: Path, teacher, capsys) -> None:
    """Through the command: a column that is mapped to a label is not paid; a sum is refuted, or a caution."""
    rows = own_log(teacher, exact=exact, cheated=lambda rollout: int(rollout.hacked))
    source = lines(tmp_path / "log.jsonl", rows)
    out = tmp_path / "out"
    arguments = ["pool", "import", str(source), "--model", "organism", "--out", str(out)]
    assert run(cli, [*arguments, "--name", "mapped", "--map", "hacked=cheated"]) == 0
    assert "sum of" not in capsys.readouterr().out
    pool = open_pool(out / "pools" / "mapped")
    assert pool.manifest["log"]["mapping"]["reward"] == "exact"
    for name in ("reward", "hacked"):
        assert [[getattr(r, name) for r in g] for g in pool.steps] == [[getattr(r, name) for r in g] for g in teacher]
    assert run(cli, [*arguments, "--name", "guessed"]) == 2
    assert "--map reward=exact*WEIGHT+cheated*WEIGHT" in capsys.readouterr().err
    assert run(cli, [*arguments, "--name", "summed", "--map", "advantage=none"]) == 0
    assert "caution: reward is taken to be the sum of exact, cheated" in capsys.readouterr().out


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


def test_failures_and_agents_of_inspect_are_left_out_and_said(teacher) -> None:
    """Errors, and agents of which the schemas of the tools are not logged."""
    samples = [fields for _, fields in rows_of("inspect", teacher)]
    samples[0]["error"] = "timeout"
    samples[1]["messages"] += [{"role": "tool", "content": "4"}, samples[1]["messages"][-1]]
    log = check_log(samples)
    assert sum(map(len, log.groups)) == sum(map(len, teacher)) - 2
    assert any("an agent" in note for note in log.notes)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", 2**70, 10**400]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)

COLUMNS = st.sampled_from(sorted({name for names in TARGETS.values() for name in names}))

SHAPES = st.sampled_from([each.name for each in FORMATS]) | st.none()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.dictionaries(COLUMNS, JSON_VALUES, max_size=5), min_size=1, max_size=3),
    format_name=SHAPES,
    is_sound=st.booleans(),
)
def test_any_log_is_read_or_refused(
    tmp_path: Path, rows: list[dict[str, Any]], format_name: str | None, is_sound: bool
) -> None:
    """Whatever JSON stands in a field, in whatever format: groups, or InputError; nothing else."""
    if is_sound:
        rows = [row() | fields for fields in rows]
    try:
        log = check_log(lines(tmp_path / "log.jsonl", rows), format_name=format_name)
    except InputError:
        return
    assert sum(map(len, log.groups)) <= len(rows)
