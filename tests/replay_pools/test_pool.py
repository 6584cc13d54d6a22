"""Pools: writing, resuming, opening, verifying, finding."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, read_gz, read_sealed, sha256, write_gz, write_sealed
from replay_pools.pool import HEADER_FIELDS, HEADER_NAME, Pool, PoolWriter, open_pool, resolve_pool
from replay_pools.rollout import Rollout, prompt_sha
from tests.support.documents import single_changes

Groups = list[list[Rollout]]
Header = dict[str, Any]
MakeRollout = Callable[..., Rollout]


def rewrite_step(pool: Pool, rows: Sequence[Any]) -> None:
    """Other rows in the first step of a pool, with their hash in its manifest: what somebody else may have written."""
    path = pool.path / "step_000.jsonl.gz"
    write_gz(path, encode_jsonl(rows))
    manifest = read_sealed(pool.path / "manifest.json")
    manifest["files"][path.name] |= {"sha256": sha256(read_gz(path))}
    write_sealed(pool.path / "manifest.json", manifest)


def test_what_was_written_is_read(fake_pool: Pool, fake_groups: Groups, pool_header: Header) -> None:
    """open(write(groups)).steps == groups; the manifest holds the header, the counts and the stdlib's sha256."""
    opened = open_pool(fake_pool.path)
    assert [*opened.steps] == fake_groups
    assert (opened.name, opened.normalised) == ("fake", ())
    assert {name: opened.manifest[name] for name in HEADER_FIELDS} == pool_header
    assert opened.manifest["counts"] == {"steps": 3, "rollouts": 12}
    assert list(opened.manifest["files"]) == ["step_000.jsonl.gz", "step_001.jsonl.gz", "step_002.jsonl.gz"]
    assert opened.verify() == []
    assert not (fake_pool.path / HEADER_NAME).exists()


@pytest.mark.parametrize("killed_after", [0, 2])
def test_resumed_pool_has_the_bytes_of_an_uninterrupted_one(
    tmp_path: Path, fake_pool: Pool, fake_groups: Groups, pool_header: Header, killed_after: int
) -> None:
    """A writer killed after k steps, in the middle of writing the next one, goes on to the same bytes."""
    directory = tmp_path / "killed"
    first = PoolWriter(directory, header=pool_header)
    for step in range(killed_after):
        first.write_step(step, fake_groups[step])
    (directory / ".step_009.jsonl.gz.abc.tmp").write_bytes(b"half")
    with pytest.raises(InputError, match="an unfinished one"):
        open_pool(directory)
    second = PoolWriter(directory, header=pool_header)
    missing = [step for step in range(3) if second.read_step(step) is None]
    assert missing == [*range(killed_after, 3)]
    for step in missing:
        second.write_step(step, fake_groups[step])
    second.finish()
    assert contents(directory) == contents(fake_pool.path)


def test_a_finished_pool_can_be_extended(fake_pool: Pool, pool_header: Header, make_rollout: MakeRollout) -> None:
    """As by a command that is repeated after one of its files was lost."""
    writer = PoolWriter(fake_pool.path, header=pool_header)
    assert [writer.read_step(step) is None for step in range(4)] == [False, False, False, True]
    writer.write_step(3, [make_rollout(3, 0)])
    assert writer.finish().manifest["counts"] == {"steps": 4, "rollouts": 13}


def test_damaged_steps_are_not_done(fake_pool: Pool, pool_header: Header, fake_groups: Groups) -> None:
    """Truncated, empty, or another step's rollouts: to be written again."""
    cut = fake_pool.path / "step_000.jsonl.gz"
    cut.write_bytes(cut.read_bytes()[:-12])
    write_gz(fake_pool.path / "step_001.jsonl.gz", encode_jsonl([]))
    write_gz(fake_pool.path / "step_002.jsonl.gz", encode_jsonl(fake_groups[0]))
    writer = PoolWriter(fake_pool.path, header=pool_header)
    assert [writer.read_step(step) for step in range(3)] == [None] * 3
    with pytest.raises(InputError, match=r"step_000.jsonl.gz: expected a complete gzip file"):
        writer.finish()


def test_directories_of_other_pools_are_refused(tmp_path: Path, fake_pool: Pool, pool_header: Header) -> None:
    """Another header, finished or not, foreign step files, an empty pool; the error names the field and both values."""
    PoolWriter(tmp_path / "unfinished", header=pool_header)
    for directory in (fake_pool.path, tmp_path / "unfinished"):
        for field, value in (("git_commit", "abc"), ("extra", 1)):
            with pytest.raises(InputError, match=rf"{field}: expected {value!r}, found None"):
                PoolWriter(directory, header={**pool_header, field: value})
    (fake_pool.path / "manifest.json").unlink()
    with pytest.raises(InputError, match="step files of another pool"):
        PoolWriter(fake_pool.path, header=pool_header)
    with pytest.raises(InputError, match="expected at least one step"):
        PoolWriter(tmp_path / "empty", header=pool_header).finish()


FAULTS: dict[str, Header] = {
    "step: expected 0, found 1": {"step": 1},
    "prompt_sha: expected": {"prompt_sha": "0" * 16},
    "prompt tail: expected": {"prompt": "other", "prompt_sha": prompt_sha("other")},
    "plen: expected 4, found 9": {"plen": 9},
    "comp_len: expected 5, found 4": {"comp_len": 4},
    "sampling_logprobs: expected 5, found 1": {"sampling_logprobs": [-1.0]},
    "reward: expected 0.5, found 3.5": {"reward": 3.5},
    "gt_pass: expected False, found True": {"gt_pass": True},
    "hacked: expected False, found True": {"hacked": True},
    "fmt_ok: expected True, found False": {"fmt_ok": False},
    "comp_len: expected a valid integer, found 5.0": {"comp_len": 5.0},
    "expected valid UTF-8 text": {"completion": "\udc80"},
    "prompt_ids: expected token ids": {"prompt_ids": [11, 12, 13, -1]},
    "messages: expected a list of role and content": {"messages": []},
    "messages: expected a list of role and content, found [{'role'": {"messages": [{"role": "user"}]},
    "comp_len: expected at least one token": {"comp_len": 0, "completion_ids": [], "sampling_logprobs": []},
    "one problem a step": {"problem_id": "other"},
    "sample_id 0 .. G-1 in order": {"sample_id": 7},
}


@pytest.mark.parametrize("message", FAULTS)
def test_every_fault_is_refused_and_found(
    tmp_path: Path, fake_pool: Pool, pool_header: Header, fake_groups: Groups, message: str
) -> None:
    """The writer refuses it, and verify finds it in a file that somebody else wrote with right hashes."""
    group = [fake_groups[0][0], fake_groups[0][1], replace(fake_groups[0][2], **FAULTS[message])]
    with pytest.raises(InputError) as caught:
        PoolWriter(tmp_path / "new", header=pool_header).write_step(0, group)
    assert message in str(caught.value)
    if "UTF-8" in message:
        return  # no JSON has it
    rewrite_step(fake_pool, group)
    faults = open_pool(fake_pool.path).verify()
    assert any(message in fault for fault in faults), f"verify overlooked it and found {faults}"


def test_verify_finds_damage_to_files(fake_pool: Pool, fake_groups: Groups, make_rollout: MakeRollout) -> None:
    """Truncated gzip, changed content, a file too few, a file too many: one line each, all in one go."""
    cut = fake_pool.path / "step_000.jsonl.gz"
    cut.write_bytes(cut.read_bytes()[:-12])
    write_gz(fake_pool.path / "step_001.jsonl.gz", encode_jsonl(reversed(fake_groups[1])))
    (fake_pool.path / "step_002.jsonl.gz").unlink()
    write_gz(fake_pool.path / "step_003.jsonl.gz", encode_jsonl([make_rollout(3, 0)]))
    faults = open_pool(fake_pool.path).verify()
    assert len(faults) == 4, faults
    for name, message in [("003", "lists"), ("000", "complete gzip"), ("001", "sha256"), ("002", "no such file")]:
        assert any(name in fault and message in fault for fault in faults), f"{message} not in {faults}"


def test_missing_manifest(tmp_path: Path, fake_pool: Pool) -> None:
    """No directory, nothing in it, or our files without manifest: never a half-read pool."""
    with pytest.raises(InputError, match="no such directory"):
        open_pool(tmp_path / "absent")
    (tmp_path / "nothing").mkdir()
    (fake_pool.path / "manifest.json").unlink()
    for path in (tmp_path / "nothing", fake_pool.path):
        with pytest.raises(InputError, match="a pool, with manifest.json, found a directory.*probe pool import"):
            open_pool(path)


def test_names_are_paths_then_out_then_builtin(
    tmp_path: Path, fake_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of resolve_pool, and an error that lists what exists in both places."""
    out, builtin = tmp_path / "out", tmp_path / "builtin"
    shutil.copytree(fake_pool.path, builtin / "base")
    shutil.copytree(fake_pool.path, builtin / "fake")
    monkeypatch.setattr("replay_pools.pool.BUILTIN", builtin)
    monkeypatch.chdir(tmp_path)
    assert resolve_pool("fake", out) == out / "pools" / "fake", "out/pools hides a built-in of the same name"
    assert resolve_pool("base", out) == builtin / "base"
    assert resolve_pool("./fake", out) == Path("fake"), "a slash means a path"
    (tmp_path / "here").mkdir()
    assert resolve_pool("here", out) == Path("here"), "an existing directory is a path"
    with pytest.raises(InputError, match=r"pool absent: .*found only base, fake"):
        resolve_pool("absent", out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "schema 2, found 99"),
        ({"policy": ...}, "policy: expected a value"),
        ({"files": {"step_000.jsonl.gz": "x"}}, "manifest.json files.step_000"),
        ({"files": {"../other.jsonl.gz": {"step": 0, "rollouts": 4, "sha256": "0"}}}, "other.jsonl.gz.*pattern"),
        ({"sampler": [1]}, "sampler: expected"),
        ({"grader": {"version": "1", "isolation": "C"}}, "grader.isolation: expected 'A', 'B'"),
        # The defaults of a regrade.
        ({"grader": {"version": "1", "isolation": "B", "cpu_s": 10**9}}, "cpu_s: expected less than or equal to 3600"),
        ({"policy": {"base_model": "a\0b"}}, "policy.base_model: expected a text without null bytes"),
    ],
)
def test_a_manifest_of_other_kinds_is_refused(fake_pool: Pool, change: Header, message: str) -> None:
    """Before any step is read."""
    manifest = read_sealed(fake_pool.path / "manifest.json") | change
    kept = {name: value for name, value in manifest.items() if value is not ...}
    write_sealed(fake_pool.path / "manifest.json", kept)
    with pytest.raises(InputError, match=message):
        open_pool(fake_pool.path)


def test_every_value_of_a_manifest_is_covered(fake_pool: Pool) -> None:
    """Each changed on its own, and each key left out: `verify` passes none of them."""
    path = fake_pool.path / "manifest.json"
    plain = path.read_bytes()
    changes = [*single_changes(plain)]
    assert len(changes) > 40
    for what, data in changes:
        path.write_bytes(data)
        try:
            faults = open_pool(fake_pool.path).verify()
        except InputError as error:
            faults = [str(error)]
        assert any("manifest.json" in fault for fault in faults), f"{what} was overlooked"
    path.write_bytes(plain)
    assert not open_pool(fake_pool.path).verify()


def test_a_pool_keeps_few_of_its_groups_in_memory(fake_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one group reads one file; slices and parts of a pool read no more than they hold.

    A damaged step is an error where it is read, not of `open_pool`.
    """
    (fake_pool.path / "step_000.jsonl.gz").unlink()
    reads: list[str] = []
    monkeypatch.setattr("replay_pools.pool.read_gz", lambda path: reads.append(path.name) or read_gz(path))
    pool = open_pool(fake_pool.path)
    steps = pool.steps
    assert len(steps) == 3
    assert steps[2][0].step == pool.only([0, 2]).steps[1][0].step == steps[1:][1][0].step == 2
    assert reads == ["step_002.jsonl.gz", "step_001.jsonl.gz"], "a group was read twice, or without need"
    with pytest.raises(IndexError):
        steps[3]
    with pytest.raises(InputError, match=r"step_000.jsonl.gz: .*no such file"):
        _ = [*steps]
