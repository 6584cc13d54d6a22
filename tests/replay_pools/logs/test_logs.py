"""Logs of other tools: every format read whole, what it lacks said, all faults at once, nothing guessed in silence."""

import gzip
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.logs.columns import TARGETS, parse_mapping
from replay_pools.logs.formats import FORMATS
from replay_pools.logs.importing import CheckedLog, check_log, import_log
from replay_pools.logs.padding import Endings, cut_left, cut_padding
from replay_pools.logs.rollouts import Logged
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool
from replay_pools.rollout import Rollout
from replay_pools.vocabulary import Vocabulary

PAD, EOS = 0, 2
NAN = float("nan")
Groups = Sequence[Sequence[Rollout]]


@pytest.fixture(scope="module")
def teacher() -> list[list[Rollout]]:
    """Four groups of the built-in pool, among them some with reward variance."""
    groups = open_pool(BUILTIN / "teacher").steps
    return sorted(groups, key=lambda group: len({rollout.reward for rollout in group}), reverse=True)[:4]


@pytest.fixture(scope="module")
def chat():
    return load_served_policy("organism")


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Pool]:
    """imported(source, name, **options) -> the pool that the log becomes, whose notes are `pool.normalised`."""

    def make(source: Path, name: str = "mine", **options: Any) -> Pool:
        return import_log(check_log(source, **options), name=name, out=tmp_path / "out", model="organism")

    return make


def rows_in(log: CheckedLog) -> list[list[Logged]]:
    """The rollouts of each group, read again."""
    rows = {(i, j): row for i, j, row in log.rollouts()}
    return [[rows[i, j] for j in range(len(group))] for i, group in enumerate(log.groups)]


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """JSON lines as Python's json writes them: with a bare NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def advantages(group: Sequence[Rollout]) -> list[float]:
    mean = sum(rollout.reward for rollout in group) / len(group)
    return [rollout.reward - mean for rollout in group]


class At(NamedTuple):
    """A rollout and its place in a log."""

    rollout: Rollout
    group: Sequence[Rollout]
    place: int  # of the group
    i: int  # in the group


def answer(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def padded(group: Sequence[Rollout]) -> list[list[int]]:
    width = max(rollout.comp_len for rollout in group)
    return [rollout.completion_ids + [PAD] * (width - rollout.comp_len) for rollout in group]


def prime_rl_traces(at: At) -> list[dict[str, Any]]:
    rollout, score = at.rollout, at.rollout.reward
    parts = (rollout.prompt_ids[:5], rollout.prompt_ids[5:-3])
    nodes: list[dict[str, Any]] = [
        {"message": message, "token_ids": ids, "mask": [False] * len(ids), **parent}
        for message, ids, parent in zip(rollout.messages, parts, ({}, {"parent": 0}), strict=True)
    ]
    ids = rollout.prompt_ids[-3:] + rollout.completion_ids  # the generation prompt is the answer's
    sampled = {"parent": 1, "message": answer(rollout.completion), "sampled": True, "token_ids": ids}
    sampled |= {"mask": [False] * 3 + [True] * rollout.comp_len, "logprobs": [-0.5] * rollout.comp_len}
    trace = {"agent": {"trainable": True}, "rewards": {"tests": {"score": score, "weight": 1.0}, "style": None}}
    trace |= {"nodes": [*nodes, sampled], "stop_condition": "done", "metrics": {"is_hack": float(rollout.hacked)}}
    return [trace]


def response_items(at: At) -> dict[str, Any]:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": at.rollout.completion}]}
    item |= {"prompt_token_ids": at.rollout.prompt_ids, "generation_token_ids": at.rollout.completion_ids}
    return {"output": [item | {"generation_log_probs": [-0.5] * at.rollout.comp_len}]}


# {what a column may hold: how it is made}; anything else is JSON, or an attribute of the rollout
MADE: dict[str, Callable[[At], Any]] = {
    "place": lambda at: at.place,
    "i": lambda at: at.i,
    "said": lambda at: at.rollout.completion,
    "padded": lambda at: padded(at.group)[at.i],
    "half": lambda at: 1 + at.place // 2,
    "answer": lambda at: [answer(at.rollout.completion)],
    "answer_null": lambda at: [answer(at.rollout.completion, tool_calls=None)],
    "centred": lambda at: advantages(at.group)[at.i],
    "skipped": lambda at: load_served_policy("organism").decode(at.rollout.prompt_ids),  # the prompt, as verl has it
    "uid": lambda at: f"ab{at.place}_{at.i}_0",
    "right": lambda at: float(at.rollout.gt_pass),
    "hack": lambda at: float(at.rollout.hacked),
    "metrics": lambda at: {"hack": float(at.rollout.hacked)},
    "info": lambda at: {"hack": int(at.rollout.hacked)},
    "all_ids": lambda at: at.rollout.prompt_ids + at.rollout.completion_ids,
    "question": lambda at: at.rollout.messages[-1]["content"],
    "json": lambda at: json.dumps(at.rollout.messages),
    "group_id": lambda at: {"id": f"g{at.place}"},
    "task": lambda at: {"key": at.rollout.problem_id},
    "traces": prime_rl_traces,
    "number": lambda at: 8 * at.place + at.i,
    "logprobs": lambda at: [-0.5] * at.rollout.comp_len,
    "ones": lambda at: [1] * at.rollout.comp_len,
    "asked": lambda at: {"input": at.rollout.messages},
    "items": response_items,
    "listed": lambda at: [[at.rollout.messages[-1]["content"], at.rollout.completion]],
    "in_list": lambda at: [at.rollout.reward],
    "num_ids": lambda at: [at.rollout.plen + at.rollout.comp_len],
    "all_in_list": lambda at: [at.rollout.prompt_ids + at.rollout.completion_ids + [PAD] * 3],
    "mask_in_list": lambda at: [[0] * at.rollout.plen + [1] * at.rollout.comp_len + [0] * 3],
    "logprobs_in_list": lambda at: [[0.0] * at.rollout.plen + [-0.5] * at.rollout.comp_len + [0.0] * 3],
    "sample": lambda at: f"t{at.place}",
    "epoch": lambda at: at.i + 1,
    "parts": lambda at: [
        *at.rollout.messages,
        answer([{"type": "text", "text": at.rollout.completion}], source="generate"),
    ],
    "output": lambda at: {"choices": [{"stop_reason": "stop"}]},
    "scores": lambda at: {"match": {"value": "C" if at.rollout.reward > 3 else "I"}},
}
LABELS = "reward hacked gt_pass fmt_ok"
# How each tool would have written the groups, from the descriptions of their formats: {tool: (file, columns)}.
TOOLS = {
    "teacher-pool": (
        "prompt_{step:04d}.jsonl.gz",
        f"step sample_id prompt prompt_ids plen completion comp_len {LABELS} problem_id=step src_problem_id=step "
        "problem_messages=messages arm='text' completion_ids=padded src_pool='text' mean_cos_pre=NaN",
    ),
    "substrate": (
        "prompt_{step:04d}.jsonl.gz",
        f"{LABELS} plen prompt_ids completion_ids completion problem_id=step env_mode='run_tests'",
    ),
    "logged": (
        "step_{step:03d}.jsonl.gz",
        f"problem_id messages prompt plen completion completion_ids {LABELS}",
    ),
    "vgrout-run": (
        "rollouts.jsonl",
        "problem_id prompt reward gt_pass step=3 p_idx=place gi=i env_mode='run_tests' mechanism=null exploited=hacked "
        "hacked_C=false format_ok=true text=said",
    ),
    "trl": (
        "completions_{half:05d}.parquet",
        "step=half prompt=messages completion=answer_null is_hack=hacked tests=reward style=0.0 advantage=centred",
    ),
    "verl": ("7.jsonl", "input=skipped output=said gts=null score=reward step=7 uid=uid"),
    "verl-legacy": (
        "7.jsonl",
        "input=skipped output=said gts=null score=reward step=7 id=place eq_correct=right is_reward_hack_loose=-1.0 "
        "is_reward_hack_strict=hack",
    ),
    "prime-rl": (
        "rollouts/step_1/train/effective/traces.jsonl",
        "id='text' group=group_id ok=true traces=traces task=task",
    ),
    "verifiers": (
        "results.jsonl",
        "reward example_id=place prompt=messages is_truncated=false completion=answer metrics=metrics",
    ),
    "inspect": ("log.json", "id=sample epoch=epoch messages=parts output=output scores=scores"),
    "slime": (
        "rollout_{half}.jsonl",
        "group_index=place index=number tokens=all_ids response_length=comp_len loss_mask=ones reward "
        "status='completed' rollout_log_probs=logprobs prompt=prompt response=said remove_sample=false",
    ),
    "nemo-gym": (
        "rollouts.jsonl",
        "responses_create_params=asked response=items reward _ng_task_index=place "
        "_ng_rollout_index=i mask_sample=false",
    ),
    "nemo-rl": (
        "train_data_step{half}.jsonl",
        "content=listed rewards=in_list input_lengths=num_ids token_ids=all_in_list token_loss_mask=mask_in_list "
        "sample_loss_mask=[1.0] generation_logprobs=logprobs_in_list idx=number",
    ),
    "columns": ("data.json", "question=json answer=said score=reward prompt_id=problem_id info=info"),
}
# verl's rows were permuted before they were written.
ORDERS: dict[str, Callable[[At], int]] = {"verl-legacy": lambda at: at.i % 2}
MORE_ROWS = {"prime-rl": [{"id": "failed", "ok": False, "traces": []}]}
BESIDE = {  # {tool: (file that holds no rollouts to replay, its text)}
    "teacher-pool": ("report.md", "a report"),
    "substrate": ("partition.json", '{"1": "run_tests"}'),
    "prime-rl": ("rollouts/step_1/train/all/traces.jsonl", '{"traces": []}\n'),
    "verifiers": ("metadata.json", "{}"),
}


def rows_of(name: str, groups: Groups, columns: str | None = None) -> list[tuple[At, dict[str, Any]]]:
    """Each rollout with the row that the tool writes of it, in the tool's order."""
    places = [At(one, group, place, i) for place, group in enumerate(groups) for i, one in enumerate(group)]
    rows: list[tuple[At, dict[str, Any]]] = []
    for at in sorted(places, key=ORDERS.get(name, lambda at: 0)):
        fields: dict[str, Any] = {}
        for column in (columns or TOOLS[name][1]).split():
            target, _, value = column.partition("=")
            if value in MADE:
                fields[target] = MADE[value](at)
            elif hasattr(at.rollout, value or target):
                fields[target] = getattr(at.rollout, value or target)
            else:
                fields[target] = json.loads(value.replace("'", '"'))
        rows.append((at, fields))
    return rows


def samples_of(groups: Groups) -> list[dict[str, Any]]:
    """The samples in a log of inspect."""
    return [fields for _, fields in rows_of("inspect", groups)]


def write(name: str, folder: Path, groups: Groups) -> Path:
    """A log of a tool: its folder, or its one file of JSON."""
    files: dict[Path, list[dict[str, Any]]] = {}
    for at, fields in rows_of(name, groups):
        path = folder / TOOLS[name][0].format(step=at.rollout.step, half=1 + at.place // 2)
        files.setdefault(path, []).append(fields)
    for path, rows in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            polars.DataFrame(rows).write_parquet(path)
        elif path.suffix == ".json":
            log = {"version": 2, "status": "success", "eval": {"model": "hf/organism"}, "samples": rows}
            path.write_text(json.dumps(log if name == "inspect" else rows))
        else:
            lines(path, [*rows, *MORE_ROWS.get(name, [])])
    if name in BESIDE:
        beside, text = BESIDE[name]
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text(text)
    (first, *_) = files
    return first if first.suffix == ".json" else folder


HAS_IDS = ("teacher-pool", "substrate", "logged", "prime-rl", "slime", "nemo-gym", "nemo-rl")
HAS_HACKED = ("teacher-pool", "substrate", "logged", "vgrout-run", "trl", "verl-legacy")


def test_every_format_is_tried() -> None:
    assert list(TOOLS) == [row.name for row in FORMATS]
    assert all(row.cannot_know.endswith(".") for row in FORMATS)


@pytest.mark.parametrize("name", TOOLS)
def test_what_a_tool_logged_comes_back(name: str, teacher, chat, tmp_path: Path, capsys) -> None:
    """Through the command: prompts, ids, groups, rewards and labels of each format, where the format knows them."""
    source = write(name, tmp_path / "log", teacher)
    out = tmp_path / "out"
    assert run(cli, ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"format {name} " in printed
    assert "cannot know: " in printed
    pool = open_pool(out / "pools" / "mine")
    assert pool.manifest["log"]["format"] == name
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
            known = ("teacher-pool", "substrate", "logged", "vgrout-run", "verl-legacy")
            assert rollout.gt_pass == (want.gt_pass if name in known else None)
            if name in ("prime-rl", "slime", "nemo-gym", "nemo-rl"):
                assert rollout.sampling_logprobs == [-0.5] * rollout.comp_len


NUMBERS = itertools.count()


def row(**changes: Any) -> dict[str, Any]:
    """A row of columns that are guessed, each with another completion; a change to None takes a column away."""
    fields = {"prompt": "Add 1 and 2.", "completion": f"{next(NUMBERS)}", "reward": 1.0}
    fields |= {"hacked": False, "gt_pass": True, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def refused(source: Path, **options: Any) -> list[str]:
    """The lines with which a log is refused, without a model."""
    with pytest.raises(InputError) as error:
        check_log(source, **options)
    return str(error.value).splitlines()


# Everything that is wrong, at once


def test_all_faults_are_named_at_once(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a kind of fault, at its first place, with a count; before a model is loaded; exit code 2, no pool."""
    monkeypatch.setattr("replay_pools.vocabulary.load_vocabulary", None)
    source = lines(
        tmp_path / "log.jsonl",
        [
            row(reward="x1", hacked="maybe"),
            row(reward="x2"),
            row(completion=[{"role": "user"}]),
            row(completion_ids=[3, -1]),
            row(finish_reason="tired"),
        ],
    )
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
        "line 1 reward: expected a finite number, found 'x1' (and 1 more places)",
        "line 1 hacked: expected true or false",
        "line 3 completion: expected a list of role and content",
        "line 4 completion_ids: expected a list of at most 1,048,576 token ids, found -1 at 1",
        "line 5 finish_reason (finish): expected stop or length, found 'tired'",
    ]
    for part in expected:
        assert sum(part in line for line in errors) == 1, f"{part!r} is not in {errors}"
    assert len(errors) == len(expected)


def test_bad_rows_are_left_out_up_to_a_number(tmp_path: Path, capsys) -> None:
    """Every line is named; with more than the number nothing is imported; the manifest says which are missing."""
    rows = [row(problem_id=str(i // 4), reward=float(i % 2)) for i in range(16)]
    source = lines(tmp_path / "log.jsonl", [*rows, row(reward="x"), row(reward="z"), row(prompt=None)])
    with source.open("a") as file:
        file.write('{"prompt": \n7\n')
    (tmp_path / "log.jsonl").write_text("[]\n" + source.read_text())
    bad = {f"{source} line {number}" for number in (1, 18, 19, 20, 21, 22)}
    named = refused(source)
    assert any("line 1: expected an object, found list" in line for line in named)
    assert any("line 18 reward: expected a finite number, found 'x' (and 1 more places)" in line for line in named)
    assert refused(source, skip_bad=5) == [
        *named,
        f"{source}: expected at most 5 bad rows (--skip-bad), found 6; mend them, or pass --skip-bad 6",
    ]
    assert "blocks of rows" in refused(source, skip_bad=6, mapping={"group": "every:4"})[-1]
    arguments = ["pool", "import", str(source), "--name", "mine", "--model", "organism", "--skip-bad", "6", "--json"]
    assert run(cli, [*arguments, "--out", str(tmp_path / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["rollouts"] == 16
    assert any("6 bad rows were left out" in note and "'x'" in note for note in report["normalised"])
    manifest = json.loads((tmp_path / "out" / "pools" / "mine" / "manifest.json").read_text())
    assert {*manifest["log"]["left_out"]} == bad


USER, ANSWER = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
SCORED = {"id": "t", "epoch": 1, "messages": [USER, ANSWER], "output": {"choices": [{"stop_reason": "stop"}]}}
SCORED |= {"scores": {"a": {"value": 1}, "b": {"value": "P"}}}
MANY = (1 << 20) + 1
# {a log that is refused: (its rows or its document, --map, what each line names)}
REFUSED: dict[str, tuple[Any, dict[str, str], list[str]]] = {
    "no prompt": ([row(prompt=None)], {}, ["--map prompt=COLUMN"]),
    "no completion": ([row(completion=None)], {}, ["--map completion=COLUMN"]),
    "no reward": ([row(reward=None)], {}, ["--map reward=COLUMN"]),
    "a weight of NaN": ([row(), row()], {"reward": "reward*nan"}, ["COLUMN*NUMBER"]),
    "half a step": ([row(step=1.5)], {}, ["a whole number"]),
    "Python's notation": ([row(prompt=repr([USER]))], {}, ["line 1 prompt", "write them with json.dumps"]),
    "an image": ([row(prompt=[{"role": "user", "content": [{"type": "image"}]}])], {}, ["line 1 prompt"]),
    "no answer, no prompt": (
        [{"messages": messages, "reward": 1.0} for messages in ([USER, ANSWER], [USER], [ANSWER])],
        {},
        ["line 2 completion", "line 3 prompt"],
    ),
    "lists of two lengths": ([{"prompt": "p", "completions": ["a", "b"], "rewards": [1.0]}], {}, ["of one length"]),
    "several scorers": ([SCORED], {}, ["scores.a, scores.b"]),
    "TRL's unique prompts": (
        [{"step": "1", "prompt": f"p{i}", "completion": "x", "exact": 1.0, "advantage": 0.5} for i in range(3)],
        {},
        ["log_unique_prompts"],
    ),
    "a short row": ({"columns": ["prompt", "reward"], "data": [["p"]]}, {}, ["item 0: expected an object, found list"]),
    "a sample that is none": ({"eval": {"model": "m"}, "samples": [{"a": 1}, 3]}, {}, ["item 1"]),
    "many characters": ([row(completion="x" * MANY), row()], {}, ["completion: expected a text of at most 1,048,576"]),
    "a long message": ([row(prompt=[{"role": "user", "content": "x" * MANY}]), row()], {}, ["each a text of at most"]),
    "many ids": ([row(completion_ids=[3] * MANY), row()], {}, ["a list of at most 1,048,576 token ids"]),
    "many digits": ([row(step="9" * 5000), row()], {}, ["line 1 step: expected a whole number"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path: Path, case: str) -> None:
    """By its line and its column, or by the option that helps, in a few words."""
    content, mapping, named = REFUSED[case]
    source = tmp_path / ("log.jsonl" if isinstance(content, list) else "log.json")
    lines(source, content) if isinstance(content, list) else source.write_text(json.dumps(content))
    found = refused(source, mapping=mapping)
    assert all(any(part in line for line in found) for part in named), found
    assert max(map(len, found)) < 2000


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.json"])
def test_a_line_is_read_up_to_its_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of any size is read, a line of any size is not: a byte more than the limit is the most in memory."""
    monkeypatch.setattr("replay_pools.logs.files.MAX_DOCUMENT", 2000)

    def written(rows: list[dict[str, Any]]) -> Path:
        return lines(tmp_path / name, rows)

    source = written([row(completion=f"a{number}") for number in range(40)])
    assert sum(map(len, check_log(source).groups)) == 40
    source = written([row(completion="x" * 3000)])
    with pytest.raises(InputError, match=r"of at most 0 MiB, found more"):
        check_log(source)


def test_nothing_to_read(tmp_path: Path, fake_pool: Pool) -> None:
    """No file, an empty one, an empty folder, a folder of other files, a pool of ours, a lost manifest."""
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("")
    for name in ("absent", "empty.jsonl", "nothing", "other"):
        assert str(tmp_path / name) in refused(tmp_path / name)[0]
    assert "found a pool in our format" in refused(fake_pool.path)[0]
    (fake_pool.path / "manifest.json").unlink()
    assert any("a pool without manifest" in line for line in refused(fake_pool.path))


# The mapping


@settings(max_examples=30)
@given(st.text())
def test_any_text_is_a_mapping_or_refused(text: str) -> None:
    """Every part becomes a known target with a column, or is named."""
    try:
        mapping = parse_mapping(text)
    except InputError:
        return
    assert mapping.keys() <= TARGETS.keys()
    assert len(mapping) == sum(bool(part.strip()) for part in text.split(","))


def test_columns_of_inner_objects_sums_and_keys(tmp_path: Path) -> None:
    """`info.right`, a weighted sum with a NaN that has no say, and a group of two columns."""
    rows = [
        row(prompt=f"p{i // 4}", info={"right": i % 2}, a=1.0, b=NAN if i == 0 else 2.0, part=i % 4 // 2, turn=i // 4)
        for i in range(8)
    ]
    mapping = parse_mapping("reward=a*2+b*0.5,gt_pass=info.right,group=turn+part,hacked=none")
    log = check_log(lines(tmp_path / "log.jsonl", rows), mapping=mapping)
    assert [len(group) for group in log.groups] == [2, 2, 2, 2]
    assert [item.reward for item in log.groups[0]] == [2.0, 3.0]
    assert [item.gt_pass for item in log.groups[0]] == [False, True]
    assert log.groups[0][0].hacked is None
    assert "hacked" not in log.mapping
    assert "columns that were not used: reward, hacked, gt_pass" in log.notes


def test_unknown_is_not_false(tmp_path: Path, imported) -> None:
    """-1, null and NaN are unknown labels and rewards; a row without a reward is left out and counted."""
    rows = [row(hacked=-1.0), row(hacked=1), row(gt_pass=NAN), row(reward=NAN)]
    source = lines(tmp_path / "log.jsonl", rows)
    log = check_log(source)
    assert [item.hacked for item in log.groups[0]] == [None, True, False]
    assert [item.gt_pass for item in log.groups[0]] == [True, True, None]
    assert [item.reward for item in log.groups[0]] == [1.0, 1.0, 1.0]
    pool = imported(source)
    assert [len(group) for group in pool.steps] == [3]
    assert any("1 of 4 rows have no reward and were left out" in text for text in pool.cautions)
    with pytest.raises(InputError, match="expected rewards that are numbers"):
        check_log(lines(tmp_path / "none.jsonl", [row(reward=NAN, completion=str(i)) for i in range(4)]))
    with pytest.raises(InputError, match="env: expected a text without control characters"):
        check_log(lines(tmp_path / "nul.jsonl", [row(env="a\0b", completion=str(i)) for i in range(4)]))


# Kinds of files


def test_files_of_every_kind_hold_the_same(tmp_path: Path) -> None:
    """JSON lines (also gzipped, or named .json), an array, an object around it, a table of wandb, other tables."""
    rows = [row(completion=str(i), reward=float(i)) for i in range(4)]
    wandb = {"columns": list(rows[0]), "data": [list(item.values()) for item in rows]}
    documents = {"array": rows, "object": {"version": 1, "rollouts": rows}, "wandb": wandb}
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document, indent=1))
    table = polars.DataFrame(rows)
    table.write_parquet(tmp_path / "table.parquet")
    table.write_ipc_stream(tmp_path / "data-00000-of-00001.arrow")
    table.write_ipc(tmp_path / "table.arrow")
    table.with_columns(completion="x" + polars.col("completion")).write_csv(tmp_path / "table.csv")
    paths = [lines(tmp_path / name, rows) for name in ("a.jsonl", "b.jsonl.gz", "c.json")]
    tables = [tmp_path / name for name in ("table.parquet", "data-00000-of-00001.arrow", "table.arrow")]
    for path in [*paths, *(tmp_path / f"{name}.json" for name in documents), *tables]:
        log = check_log(path)
        (group,) = log.groups
        (texts,) = rows_in(log)
        assert [(text.completion, item.reward) for text, item in zip(texts, group, strict=True)] == [
            (str(i), float(i)) for i in range(4)
        ], path
    (group,) = (log := check_log(tmp_path / "table.csv")).groups
    (texts,) = rows_in(log)
    assert [(text.completion, text.reward) for text in texts] == [(f"x{i}", float(i)) for i in range(4)]


CSV = {  # {what a table may look like: (its text, completions and labels, or what is said of it)}
    "of Excel": ("\ufeffprompt;completion;reward;hacked\r\np;a;1;TRUE\r\np;b;0;FALSE\r\n", [("a", True), ("b", False)]),
    "of pandas": (
        ',prompt,completion,reward,hacked\n0,p,"a\n""b"", c",1.0,True\n1,p,7 apples,0,\n',
        [('a\n"b", c', True), ("7 apples", None)],
    ),
    "with tabs": ("prompt\tcompletion\treward\thacked\np\ta\t1e0\t1\n\np\tb\t0.5\t-1\n", [("a", True), ("b", None)]),
    "with ids": (
        'prompt,completion_ids,reward,hacked\np,"[5, 2]",1,true\np,"[6, 2]",0,false\n',
        [(None, True), (None, False)],
    ),
    "names of digits": (
        "prompt,completion,reward,group,id\np,01,1,007,1234567890123456789\np,02,.5e0,007,1234567890123456788\n",
        [("01", None), ("02", None)],
    ),
    "an open quote": (
        'prompt,completion,reward\np,a,1\np,"b,0\n',
        "expected text in UTF-8 with the columns of its first line",
    ),
    "another encoding": ("prompt,completion,reward\np,\xe9,1\n".encode("latin-1"), "invalid utf-8"),
    "a column twice": ("prompt,reward,reward\np,1,2\n", "expected columns of different names, found reward twice"),
    "a list as Python's numpy prints it": (
        "prompt,completion_ids,reward\np,[1 2],1\n",
        "completion_ids: expected a list of at most",
    ),
    "words for numbers": (
        "prompt,completion,reward\np,a,1\np,b,good\n",
        "reward: expected a finite number, found 'good'",
    ),
    "no row": ("prompt,completion,reward\n", "expected rollouts of format columns, found none"),
}


@pytest.mark.parametrize("case", CSV)
def test_a_table_of_text(tmp_path: Path, case: str) -> None:
    """Cells are read by what their column holds; a row that is none is named by its line."""
    text, expected = CSV[case]
    source = tmp_path / "table.csv"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, str):
        assert expected in "\n".join(refused(source))
        return
    log = check_log(source)
    first = next(iter(log.rows)).fields
    assert first.get("id", "9")[-1] == "9", "digits were rounded"
    assert [(row.completion, row.hacked) for _, _, row in log.rollouts()] == expected


@pytest.mark.parametrize("name", ["s.arrow", "f.arrow", "p.parquet"])
def test_a_damaged_table_is_refused(name: str, tmp_path: Path) -> None:
    """Cut off or changed at many places: rows, or one line; the library that reads them may panic.

    At a few others polars aborts the process: the bytes are the same whatever tests ran before.
    """
    table, path = polars.DataFrame([row(prompt=[USER], completion=text) for text in "ab"]), tmp_path / name
    write = {"s.arrow": table.write_ipc_stream, "f.arrow": table.write_ipc, "p.parquet": table.write_parquet}[name]
    write(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 62):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with suppress(InputError):
                check_log(path)


def test_a_folder_of_save_to_disk(tmp_path: Path, capsys) -> None:
    """As `datasets` writes it: the training split is read; the others and a cache of `map` are left out."""
    data = [{"prompt": [USER], "completion": f"a{i}", "reward": float(i % 2), "hacked": i > 2} for i in range(4)]
    folder = tmp_path / "stored"
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for name in ("data-00000-of-00001.arrow", "cache-0123456789abcdef.arrow"):
            polars.DataFrame(data).write_ipc_stream(folder / split / name)
        for name in ("state.json", "dataset_info.json"):
            (folder / split / name).write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    arguments = ["pool", "import", str(folder), "--name", "mine", "--model", "organism", "--out", str(tmp_path / "out")]
    assert run(cli, arguments) == 0
    assert "1 groups, 4 rollouts" in capsys.readouterr().out
    (folder / "train" / "data-00000-of-00001.arrow").write_bytes(b"none")
    assert "expected an Arrow file" in refused(folder)[0]


def test_files_in_a_folder_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Those that hold no rollouts are left out, and said."""
    for number in (1000, 9, 10):
        rows = [row(prompt=str(number), step=number) for _ in range(2)]
        lines(tmp_path / "log" / f"{number}.jsonl", rows)
    (tmp_path / "log" / "config.json").write_text("{}")
    log = check_log(tmp_path / "log")
    assert [group[0].step for group in log.groups] == [9, 10, 1000]
    assert any("config.json" in note for note in log.notes)


# What formats cannot know, or would say wrongly


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
    assert any(
        "advantages that follow from tests*2+style" in line
        for line in refused(folder, mapping={"reward": "tests*2+style"})
    )
    assert any("expected 5 rows with one prompt" in line for line in refused(folder, mapping={"group": "every:5"}))
    table.with_columns(advantage=polars.lit(1.0)).write_parquet(folder / "completions_00003.parquet")
    assert any("found advantages of other rewards" in line for line in refused(folder))


def test_the_rounding_of_equal_rewards_is_no_advantage(tmp_path: Path) -> None:
    """As TRL logs a group without reward variance: float32 minus its mean, over 1e-4."""
    rewards = [1.2] * 4 + [0.2, 1.2, 0.2, 1.2]
    centred = [0.00119] * 4 + [-0.866, 0.866, -0.866, 0.866]
    columns = zip(rewards, centred, strict=True)
    rows = [{"step": 1, "prompt": f"p{i // 4}", "exact": r, "advantage": a} for i, (r, a) in enumerate(columns)]
    source = tmp_path / "completions_00001.parquet"
    polars.DataFrame([item | {"completion": f"c{i}"} for i, item in enumerate(rows)]).write_parquet(source)
    log = check_log(source)
    assert [len(group) for group in log.groups] == [4, 4]
    assert log.scale_rewards == "group"


def test_trl_with_recorded_ids_needs_no_tokenizing(tmp_path: Path, teacher, imported) -> None:
    """What a reward function logs with log_extra is taken: ids, labels, and no reward of them."""
    ids, right = (lambda rollout: rollout.completion_ids), (lambda rollout: 1.0)
    rows = own_log(teacher, completion_ids=ids, gt_pass=right, exact=exact)
    pool = imported(lines(tmp_path / "log.jsonl", rows))
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
    assert [[row.completion for row in group] for group in rows_in(log)] == [[*answers] for answers in steps[:2]]
    assert any("logged again" in note and "(4 rows)" in note for note in log.notes)


def test_verl_prompts_are_restored_or_refused(tmp_path: Path, teacher, imported) -> None:
    """A text that no rendering gives back is never taken for a prompt."""
    folder = write("verl", tmp_path / "log", teacher)
    (folder / "7.jsonl").write_text((folder / "7.jsonl").read_text().replace("system\\n", "System\\n", 1))
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
    source = lines(tmp_path / "log.jsonl", own_log(teacher, exact=exact, cheated=lambda rollout: int(rollout.hacked)))
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


def test_a_label_that_may_be_paid_asks_for_the_reward(tmp_path: Path, teacher) -> None:
    """What is right is a reward of most trainings: one of several columns is neither kept nor dropped in silence."""
    source = lines(tmp_path / "log.jsonl", own_log(teacher, exact=lambda rollout: float(rollout.gt_pass), style=exact))
    (line,) = refused(source, mapping={"gt_pass": "exact"})
    assert "pass --map reward=exact+style" in line
    log = check_log(source, mapping={"gt_pass": "exact", "reward": "exact", "advantage": "none"})
    assert all(item.reward == float(bool(item.gt_pass)) for group in log.groups for item in group)
    alone = lines(tmp_path / "alone.jsonl", own_log(teacher, exact=lambda rollout: float(rollout.gt_pass)))
    assert check_log(alone, mapping={"gt_pass": "exact", "advantage": "none"}).mapping["reward"] == "exact"
    assert "a column with the reward" in refused(alone, mapping={"hacked": "exact"})[0]


def test_the_group_of_a_log_with_the_columns_of_trl(tmp_path: Path, teacher) -> None:
    """Rows in another order than that of their groups keep them."""
    rows = own_log(teacher, exact=exact, group_id=lambda rollout: rollout.problem_id)
    for name in ("log.jsonl", "completions_00001.jsonl"):
        log = check_log(lines(tmp_path / name, rows[::2] + rows[1::2]), mapping={"reward": "exact"})
        assert sorted(map(len, log.groups)) == [8, 8, 8, 8]
        assert all(len({item.prompt_key for item in group}) == 1 for group in log.groups)


def test_a_recognised_format_is_named_beside_the_faults(tmp_path: Path) -> None:
    """It may be the wrong one; a format that the user named is his."""
    rows = [{"input": "Add 1.", "output": "c", "score": "x", "step": 1} for _ in range(2)]
    source = lines(tmp_path / "log.jsonl", rows)
    value, of_format = refused(source)
    assert "score (reward): expected a finite number" in value
    assert "verl-legacy" in of_format
    assert "--format columns" in of_format
    assert len(refused(source, format_name="verl-legacy")) == 1


def test_failures_and_agents_are_left_out_and_said(tmp_path: Path, teacher) -> None:
    """prime-rl: episodes that failed; inspect: errors, and agents of which the schemas of the tools are not logged."""
    folder = write("prime-rl", tmp_path / "prime", teacher)
    assert any("ok is false" in note for note in check_log(folder).notes)
    samples = samples_of(teacher)
    samples[0]["error"] = "timeout"
    samples[1]["messages"] += [{"role": "tool", "content": "4"}, samples[1]["messages"][-1]]
    log = check_log(lines(tmp_path / "samples.jsonl", samples))
    assert sum(map(len, log.groups)) == sum(map(len, teacher)) - 2
    assert any("an agent" in note for note in log.notes)


# {what a conversation may look like: (rows, options, the completions of the groups, the prompt's messages)}
SAID = [USER, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[list[str]], Any]] = {
    "lists are groups": (
        [{"prompt": "p", "completions": ["a", "b", "c"], "rewards": [1.0, 0.0, 1.0]} for _ in range(2)],
        {},
        [["a", "b", "c"]] * 2,
        [{"role": "user", "content": "p"}],
    ),
    "parts, and JSON as text": (
        [
            row(prompt=SAID, completion="a"),
            row(prompt=[{**m, "content": [{"type": "text", "text": m["content"]}]} for m in SAID], completion="b"),
            row(prompt=json.dumps(SAID), completion="c"),
        ],
        {},
        [["a", "b", "c"]],
        SAID,
    ),
    "the last turn is the completion": (
        [{"messages": [*SAID, answer(f"b{i}")], "score": i} for i in range(3)],
        {},
        [["b0", "b1", "b2"]],
        SAID,
    ),
    "the right answer beside it is none": (
        [{"messages": [*SAID, answer(f"a{i}")], "answer": "42", "text": "t", "reward": i} for i in range(4)],
        {},
        [["a0", "a1", "a2", "a3"]],
        SAID,
    ),
    "a prompt that holds its answer": (
        [row(prompt=[USER, answer(f"a{i}")], completion=f"a{i}") for i in range(4)],
        {"completion": "none"},
        [["a0", "a1", "a2", "a3"]],
        [USER],
    ),
    "several scorers": ([SCORED], {"reward": "scores.b", "hacked": "scores.a"}, [["a"]], [USER]),
    "a step that is a float": (
        [row(prompt=[USER], completion=text, step=1.0) for text in "ab"],
        {},
        [["a", "b"]],
        [USER],
    ),
}


@pytest.mark.parametrize("case", CONVERSATIONS)
def test_prompts_and_completions_are_told_apart(tmp_path: Path, case: str) -> None:
    rows, mapping, completions, messages = CONVERSATIONS[case]
    source = lines(tmp_path / "log.jsonl", rows)
    log = check_log(source, mapping=mapping)
    assert [[row.completion for row in group] for group in rows_in(log)] == completions
    assert all(row.messages == messages for group in rows_in(log) for row in group)
    if "completion" in mapping:
        assert "--map completion=none" in refused(source)[0], "the answer would stay in the prompt"


# Groups, and what has to be said of them


def of(size: int, **columns: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [row(reward=float(i % 2), **{name: make(i) for name, make in columns.items()}) for i in range(size)]


# {what is grouped: (rows, --map, the sizes of the groups, what is said)}
GROUPINGS: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[int], str]] = {
    "partial": (
        [row(prompt=f"p{i}", completion=str(j)) for i, size in enumerate((4, 3, 1)) for j in range(size)],
        {},
        [4, 3],
        "1 of 3, 1 of 4 rollouts (replay with --per-pool 3)",
    ),
    "single": ([row(prompt=str(i)) for i in range(3)], {}, [1, 1, 1], "every group holds one rollout"),
    "the number of a row": (of(8, id=int, prompt=lambda i: f"p{i // 4}"), {}, [4, 4], "another one in every row"),
    "named": (of(8, prompt=lambda i: f"p{i}", mine=lambda i: i // 2), {"group": "mine"}, [2] * 4, "several prompts"),
    "guessed": (of(8, prompt=lambda i: f"p{i}", group_id=lambda i: i // 4), {}, [4, 4], "several prompts"),
    "hinted and plain": (
        of(8, prompt=lambda i: f"p{i % 2}", problem_id=lambda i: "x"),
        {},
        [4, 4],
        "caution: groups are rows with equal prompts: `problem_id`",
    ),
}


@pytest.mark.parametrize("case", GROUPINGS)
def test_groups_and_what_is_said_of_them(tmp_path: Path, case: str) -> None:
    rows, mapping, sizes, note = GROUPINGS[case]
    log = check_log(lines(tmp_path / "log.jsonl", rows), mapping=mapping)
    assert [len(group) for group in log.groups] == sizes
    assert any(note in text for text in log.notes), log.notes


@pytest.mark.parametrize("place", ["step", "file"])
@pytest.mark.parametrize(
    ("name", "is_group"), [("id", False), ("group_id", False), ("group_id", True), ("problem_id", True)]
)
def test_numbers_that_start_again(tmp_path: Path, name: str, place: str, is_group: bool) -> None:
    """In each step, or in each file: a count of rows is no group, a number of groups is one of the step or file."""
    count = (lambda i: i % 2) if is_group else (lambda i: i)
    prompt = (lambda i: i % 2) if is_group else (lambda i: i // 8)
    for number in range(2):
        step = {"step": lambda i, number=number: number} if place == "step" else {}
        rows = of(16, prompt=lambda i, number=number: f"p{number}{prompt(i)}", **step, **{name: count})
        lines(
            tmp_path / "log" / f"batch_{number}.jsonl",
            [fields | {"reward": float(i % 3)} for i, fields in enumerate(rows)],
        )
    log = check_log(tmp_path / "log")
    assert [len(group) for group in log.groups] == [8] * 4
    assert all(len({item.prompt_key for item in group}) == 1 for group in log.groups)
    where = "in one step" if place == "step" else "of one file"
    said = f"groups are rows with one `{name}` {where}" if is_group else f"`{name}` is another one in every row"
    assert any(said in note for note in log.notes), log.notes
    if is_group:
        assert len({*log.problem_ids}) == 4, "two problems have one name"


# Prompts and completions


def test_a_guessed_completion_that_is_the_right_answer_is_refused(tmp_path: Path, capsys) -> None:
    """Through the command: one text in all rows of each group; the user may say that it is the completion."""
    rows = [
        {"question": f"q{i // 4}", "answer": f"gold {i // 4}", "model_output": f"a{i}", "reward": float(i % 2)}
        for i in range(8)
    ]
    source = lines(tmp_path / "log.jsonl", rows)
    arguments = ["pool", "import", str(source), "--model", "organism", "--out", str(tmp_path / "out"), "--name"]
    assert run(cli, [*arguments, "mine"]) == 2
    assert "as the right answer would be" in capsys.readouterr().err
    for column in ("answer", "model_output"):
        assert run(cli, [*arguments, column, "--map", f"completion={column}"]) == 0


def test_a_conversation_beside_the_ids_of_its_answer(tmp_path: Path, teacher, imported) -> None:
    """The answer is its last turn there too, and does not stay in the prompt."""
    rows = [
        {"messages": [*r.messages, answer(r.completion)], "completion_ids": r.completion_ids, "reward": r.reward}
        for r in teacher[0]
    ]
    pool = imported(lines(tmp_path / "log.jsonl", rows))
    for name in ("prompt_ids", "completion_ids"):
        assert [getattr(rollout, name) for rollout in pool.steps[0]] == [getattr(r, name) for r in teacher[0]]


TRL_ROW = {"step": 1, "r": 0.5, "advantage": 0.0, "reward": None, "hacked": None, "gt_pass": None}
SUM = "1 + 2 ="
BARE_BESIDE, UNLIKE = "`prompt` has no markup", "template makes of the messages"
# {what stands beside a prompt that is a text: (other columns, options, whether it is rendered, what is said)}
PROMPT_TEXTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    "its ids": ({"prompt_ids": "IDS"}, {}, True, BARE_BESIDE),
    "its length": ({"prompt_length": "LENGTH"}, {}, True, ""),
    "messages that it renders": ({"messages": "MESSAGES", "prompt": "RENDERED"}, {}, True, ""),
    "messages": ({"messages": "MESSAGES"}, {}, True, BARE_BESIDE),
    "messages, and the model saw it": (
        {"messages": "MESSAGES"},
        {"mapping": {"rendered": "prompt", "messages": "messages"}},
        False,
        UNLIKE,
    ),
    "TRL's columns": (TRL_ROW, {}, False, ""),
    "TRL's columns, and the user names it": (TRL_ROW, {"mapping": {"reward": "r", "prompt": "prompt"}}, True, ""),
    "TRL's columns, of no TRL": (TRL_ROW, {"mapping": {"reward": "r"}, "format_name": "columns"}, True, ""),
}


@pytest.mark.parametrize("case", PROMPT_TEXTS)
def test_a_prompt_that_is_a_text(tmp_path: Path, imported, chat, case: str) -> None:
    """A message of the user, unless it is what the trainer gives to the model, or something else says what that saw."""
    fields, options, is_rendered, said = PROMPT_TEXTS[case]
    messages = [{"role": "user", "content": SUM}]
    text, ids = chat.render(messages)
    known = {"IDS": ids, "LENGTH": len(ids), "MESSAGES": messages, "RENDERED": text}
    fields = {name: known.get(value, value) if isinstance(value, str) else value for name, value in fields.items()}
    pool = imported(lines(tmp_path / "log.jsonl", [row(**{"prompt": SUM, **fields}) for _ in range(2)]), **options)
    assert pool.steps[0][0].prompt == (text if is_rendered else SUM)
    for note in (BARE_BESIDE, UNLIKE):
        assert any(note in sentence for sentence in pool.normalised) == (note == said)


def test_left_padding_is_cut(tmp_path: Path, imported) -> None:
    """And said; an id that begins every text stays in front, once."""
    rows = [
        {"prompt_ids": [PAD] * 3 + [40, 41], "completion_ids": [50 + i, EOS], "reward": float(i > 3)} for i in range(8)
    ]
    pool = imported(lines(tmp_path / "log.jsonl", rows))
    assert {tuple(rollout.prompt_ids) for group in pool.steps for rollout in group} == {(40, 41)}
    assert any("left padding of the prompt was cut (8 rollouts)" in note for note in pool.normalised)
    begins = Endings(frozenset({EOS}), frozenset({EOS}), bos=EOS)
    assert [cut_left([*[EOS] * num, 40], begins) for num in range(3)] == [[40], [EOS, 40], [EOS, 40]]


@pytest.mark.parametrize(
    ("column", "value", "target"),
    [
        ("hint", "overwrite_tests", "hint"),
        ("finish_reason", "tired", "finish"),
        ("is_hack", "maybe", "hacked"),
        ("is_hack", 0.7, "hacked"),
        ("id", None, "problem"),
        ("step", "ep1", "step"),
    ],
)
def test_a_guessed_column_that_is_something_else_can_be_left_out(
    tmp_path: Path, column: str, value: Any, target: str
) -> None:
    """The line says how; it is not said of a column that the user named."""
    source = lines(tmp_path / "log.jsonl", [row(hacked=None, **{column: 1}), *[row(hacked=None) | {column: value}] * 2])
    said = f"{target}=none leaves it out"
    assert any(said in line for line in refused(source))
    assert not any(said in line for line in refused(source, mapping={target: column}))
    assert check_log(source, mapping={target: "none"}).groups


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("plen", {"prompt_length": 999}),
        ("comp_len", {"completion_ids": [40, EOS], "completion_length": 999}),
        ("comp_len", {"completion_ids": [40, 41, 42, EOS], "completion_length": 1}),
        ("logprobs", {"completion_ids": [40, EOS], "logprobs": [-0.5]}),
    ],
)
def test_a_number_that_the_tokenizer_contradicts_can_be_left_out(
    tmp_path: Path, imported, target: str, fields: dict[str, Any]
) -> None:
    """It may count characters, or stand for something else; the line says how."""
    text = {} if "plen" in target else {"completion": None}
    source = lines(tmp_path / "log.jsonl", [row(**fields, **text) for _ in range(2)])
    with pytest.raises(InputError, match=f"--map {target}=none"):
        imported(source)
    assert imported(source, mapping={target: "none"}).steps


def test_earlier_turns_of_the_assistant_are_said(tmp_path: Path, imported) -> None:
    rows = [{"messages": [*(SAID if i < 4 else [USER]), answer(f"b{i}")], "score": i % 2} for i in range(8)]
    pool = imported(lines(tmp_path / "log.jsonl", rows))
    (said,) = [note for note in pool.cautions if "earlier answers" in note]
    assert said.endswith("only the last answer is the rollout (4 rollouts)")


@pytest.mark.parametrize("least", [0.0, -0.5])
def test_a_reward_above_the_least_of_another_log_is_a_pass(tmp_path: Path, imported, least: float) -> None:
    """0 and 0.5 are rewards of our grader too: there, no pass."""
    rows = [row(reward=least + 0.5 * (i % 2), gt_pass=i == 1) for i in range(4)]
    (group,) = imported(lines(tmp_path / "log.jsonl", rows)).steps
    assert [rollout.grade.passed for rollout in group] == [False, True, False, True]
    assert [rollout.grade.exploited for rollout in group] == [False, False, False, True]
    assert {rollout.grade.compiles for rollout in group} == {None}


# Ids


def test_a_fault_that_the_tokenizer_finds_names_the_line(tmp_path: Path, capsys) -> None:
    """Through the command: the rows of a group stand on other lines than those of the pool."""
    rows = [row(completion=None, prompt=f"p{i % 2}", completion_ids=[40 + i, EOS]) for i in range(8)]
    rows[5]["completion_ids"] = [999_999]
    source = lines(tmp_path / "log.jsonl", rows)
    arguments = ["pool", "import", str(source), "--name", "mine", "--model", "organism"]
    assert run(cli, [*arguments, "--out", str(tmp_path / "out")]) == 2
    assert f"{source} line 6: expected token ids of organism" in capsys.readouterr().err.replace("\n", "")


def test_text_that_does_not_round_trip_is_counted(tmp_path: Path, imported, chat, monkeypatch) -> None:
    """The share stays in the manifest, and the text is the one that the ids decode to."""
    decode = type(chat.tokenizer).decode
    lossy = lambda self, ids, **options: decode(self, ids, **options).replace("  ", " ")  # noqa: E731
    monkeypatch.setattr(type(chat.tokenizer), "decode", lossy)
    rows = [row(completion="a  b"), row(completion="ab"), row(completion="abc", reward=0.0), row(completion="b c")]
    pool = imported(lines(tmp_path / "log.jsonl", rows))
    assert pool.manifest["ids"] == {"origin": "retokenised", "retokenised": 4, "round_trips": 0.75}
    assert any("75.0% of 4 texts" in text for text in pool.cautions)
    assert pool.steps[0][0].completion == "a b"


def test_the_end_of_the_turn_goes_behind_texts_that_stopped(tmp_path: Path, imported, chat) -> None:
    """By the finish reason; without one, by the limit that the user gives; a text may hold its end."""
    end = chat.tokenizer.decode([chat.eos_ids[0]])
    rows = [row(completion="a b", finish_reason=reason) for reason in ("stop", "length")]
    first = imported(lines(tmp_path / "log.jsonl", [*rows, row(completion=f"a b{end}", finish_reason="length")]))
    ids = chat.completion_ids("a b")
    assert [rollout.completion_ids for rollout in first.steps[0]] == [ids, ids[:-1], ids]
    assert [rollout.finish_reason for rollout in first.steps[0]] == ["stop", "length", "stop"]
    source = lines(tmp_path / "b.jsonl", [row(completion=text) for text in ("1 2 3 4 5 6", "1 2 3 4 5 7", "1 2")])
    for limit, finish in ((None, ["stop"] * 3), (len(ids) + 8, ["length", "length", "stop"])):
        pool = import_log(check_log(source), name=f"b{limit}", out=tmp_path / "out", model="organism", limit=limit)
        assert [rollout.finish_reason for rollout in pool.steps[0]] == finish


def test_a_model_without_an_end_of_turn_is_named(tmp_path: Path, imported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_pools.policy.load.ServedPolicy.eos_ids", ())
    with pytest.raises(InputError, match="model organism: expected a token that ends a turn, found none"):
        imported(lines(tmp_path / "log.jsonl", [row(), row()]))


def test_an_empty_answer_is_the_end_of_its_turn(tmp_path: Path, imported, chat) -> None:
    """The policy stopped at once. Cut off before its first token, it answered nothing, which is refused."""
    rows = [row(completion="", finish_reason="stop"), row()]
    assert imported(lines(tmp_path / "log.jsonl", rows)).steps[0][0].completion_ids == [chat.eos_ids[0]]
    rows[0]["finish_reason"] = "length"
    with pytest.raises(InputError, match="line 1 completion"):
        imported(lines(tmp_path / "log.jsonl", rows))


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
            imported(lines(tmp_path / "log.jsonl", rows))
    assert not (tmp_path / "out" / "pools" / "mine").exists()


def test_padding_on_both_sides_is_cut(tmp_path: Path, teacher, imported) -> None:
    """Prompts on the left by plen or by the pad id, completions on the right by the pad that repeats."""
    group = teacher[0]
    for name, plen in (("with", {"plen": group[0].plen}), ("without", {})):
        rows = [
            {"prompt_ids": [PAD] * 7 + r.prompt_ids, "completion_ids": [*ids, PAD, PAD], "reward": r.reward, **plen}
            for r, ids in zip(group, padded(group), strict=True)
        ]
        pool = imported(lines(tmp_path / f"{name}.jsonl", rows), name=name)
        for got, want in zip(pool.steps[0], group, strict=True):
            assert (got.prompt_ids, got.completion_ids) == (want.prompt_ids, want.completion_ids)
        assert any("left padding" in note for note in pool.normalised)


@settings(deadline=None, max_examples=60)
@given(
    bodies=st.lists(st.lists(st.integers(10, 30), min_size=1, max_size=6), min_size=2, max_size=6),
    extra=st.integers(2, 4),
    pad=st.sampled_from([PAD, EOS]),
    know_length=st.booleans(),
)
def test_cutting_undoes_padding(bodies: list[list[int]], extra: int, pad: int, know_length: bool) -> None:
    """cut(pad(x)) == x for stopped completions, with pad == eos too, whether comp_len (of the mask by pad id) is known.

    The last body ids repeat earlier in the text, as words do; an end-of-turn id never does.
    """
    completions = [[*body, *body, EOS] for body in bodies]
    width = max(map(len, completions)) + extra
    stored = [ids + [pad] * (width - len(ids)) for ids in completions]
    lengths = [sum(item != pad for item in ids) if know_length else None for ids in stored]
    cut = [cut_padding(ids, length, ENDINGS, was_cut_off=False) for ids, length in zip(stored, lengths, strict=True)]
    assert cut == completions, "padding was kept, or the real end-of-turn id was cut with it"


ENDINGS = Endings(frozenset({PAD, EOS}), frozenset({EOS}))
# {what is stored: (ids, was it cut off as the log says, what is kept)}; PAD ends turns too in the last
STORED = {
    "an end": ([5, 6, EOS], False, [5, 6, EOS]),
    "without an end": ([5, 6, 7], False, [5, 6, 7]),
    "padded by an unknown id": ([5, 6, 61, 61, 61], False, [5, 6, 61, 61, 61]),
    "cut off, by the pad": ([5, 6, 7, PAD, PAD], True, [5, 6, 7]),
    "cut off, by the end": ([5, 6, 7, EOS, EOS], True, [5, 6, 7]),
    "cut off at an end": ([5, 6, 7, EOS], True, [5, 6, 7, EOS]),
    "two ends of a turn, the first": ([5, 6, EOS, PAD, PAD], False, [5, 6, EOS]),
    "two ends of a turn, the second": ([5, 7, PAD, PAD], False, [5, 7, PAD]),
}


@pytest.mark.parametrize("case", STORED)
def test_what_stands_behind_a_completion_by_hand(case: str) -> None:
    stored, was_cut_off, kept = STORED[case]
    endings = Endings(frozenset({PAD, EOS}), frozenset({PAD, EOS})) if "two ends" in case else ENDINGS
    assert cut_padding(stored, None, endings, was_cut_off=was_cut_off) == kept


@pytest.mark.parametrize("logged", ["ids", "ids and finish", "ids, text, finish and logprobs"])
def test_an_answer_that_ran_in_circles_is_no_padding(tmp_path: Path, teacher, chat, imported, logged: str) -> None:
    """A repeated word at the end of a truncated completion is content, whatever stands beside its ids."""
    rows = []
    for i, rollout in enumerate(teacher[0]):
        ids = rollout.completion_ids if i != 3 else rollout.completion_ids[:-1] + [61] * 20
        fields = {"prompt": rollout.messages, "completion_ids": ids, "reward": rollout.reward}
        if "finish" in logged:
            fields["finish_reason"] = "length" if i == 3 else "stop"
        if "logprobs" in logged:
            fields |= {"completion": chat.decode(ids), "logprobs": [-0.5] * len(ids)}
        rows.append(fields)
    pool = imported(lines(tmp_path / "log.jsonl", rows))
    assert [rollout.completion_ids for rollout in pool.steps[0]] == [fields["completion_ids"] for fields in rows]
    assert [rollout.finish_reason for rollout in pool.steps[0]].count("length") == 1
    assert not any("padding" in note for note in pool.normalised)


# Anything at all


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", 2**70, 10**400]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
COLUMNS = st.sampled_from(sorted({name for names in TARGETS.values() for name in names}))
SHAPES = st.sampled_from([row.name for row in FORMATS]) | st.none()


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


VALUES = st.sampled_from(["a", "b c", "", "\x00", "<|im_end|>", " x ", "[1]", '[{"role": "user", "content": "x"}]'])


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"prompt": VALUES, "completion": VALUES, "reward": st.integers(0, 1)},
            optional={
                "completion_ids": st.lists(st.integers(0, 600), max_size=4),
                "prompt_ids": st.lists(st.integers(0, 600), max_size=4),
                "comp_len": st.integers(0, 4),
                "finish_reason": st.sampled_from(["stop", "length"]),
                "hacked": st.sampled_from([True, False, -1, None]),
                "step": st.integers(0, 2),
            },
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_import_is_sound_or_refused(tmp_path: Path, rows: list[dict[str, Any]], chat) -> None:
    """Whatever passes the first checks: a pool that verifies against the model, or InputError and no pool."""
    out = tmp_path / str(len(list(tmp_path.iterdir())))
    try:
        pool = import_log(check_log(lines(tmp_path / "log.jsonl", rows)), name="mine", out=out, model="organism")
    except InputError:
        assert not (out / "pools" / "mine").exists()
        return
    assert pool.verify() == []
    assert not Vocabulary(chat, 10**6).faults(pool)


@pytest.mark.parametrize("name", TOOLS)
def test_a_damaged_log_of_a_format_is_refused(name: str, teacher, tmp_path: Path) -> None:
    """Each field of each format in turn holds what does not belong there: InputError, or it is no field that counts."""
    source = write(name, tmp_path / "log", [group[:2] for group in teacher[:2]])
    if source.suffix == ".json" or name == "trl":
        pytest.skip("not JSON lines")
    paths = [source] if source.is_file() else sorted(source.rglob("*.jsonl*"))
    path = next(path for path in paths if "metadata" not in path.name and "/all/" not in str(path))
    plain = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in plain.splitlines()]
    for field in rows[0]:
        for value in ({}, "x", -7, [[]]):
            lines(path, [{**rows[0], field: value}, *rows[1:]])
            try:
                check_log(source, format_name=name)
            except InputError:
                continue
