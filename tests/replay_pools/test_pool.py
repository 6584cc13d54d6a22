"""Pools: writing, resuming, opening, verifying, finding."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, read_gz, read_sealed, sha256, write_gz, write_sealed
from replay_pools.pool import HEADER_FIELDS, HEADER_NAME, Pool, PoolWriter, open_pool, resolve_pool
from replay_pools.rollout import Rollout, prompt_sha

Groups = list[list[Rollout]]
Header = dict[str, Any]
MakeRollout = Callable[..., Rollout]


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


def test_damaged_steps_are_not_done(fake_pool: Pool, pool_header: Header, fake_groups: Groups) -> None:
    """Truncated, empty, or another step's rollouts: to be written again, also in a finished pool."""
    cut = fake_pool.path / "step_000.jsonl.gz"
    cut.write_bytes(cut.read_bytes()[:-12])
    write_gz(fake_pool.path / "step_001.jsonl.gz", encode_jsonl([]))
    write_gz(fake_pool.path / "step_002.jsonl.gz", encode_jsonl(fake_groups[0]))
    writer = PoolWriter(fake_pool.path, header=pool_header)
    assert [writer.read_step(step) for step in range(3)] == [None] * 3
    with pytest.raises(InputError, match=r"step_000.jsonl.gz: expected a complete gzip file"):
        writer.finish()
    for step, group in enumerate(fake_groups):
        writer.write_step(step, group)
    assert writer.finish().verify() == []


def test_directories_of_other_pools_are_refused(tmp_path: Path, fake_pool: Pool, pool_header: Header) -> None:
    """Another header, finished or not, foreign step files; the error names the field and both values."""
    PoolWriter(tmp_path / "unfinished", header=pool_header)
    for directory in (fake_pool.path, tmp_path / "unfinished"):
        for field, value in (("git_commit", "abc"), ("extra", 1)):
            with pytest.raises(InputError, match=rf"{field}: expected {value!r}, found None"):
                PoolWriter(directory, header={**pool_header, field: value})
    (fake_pool.path / "manifest.json").unlink()
    with pytest.raises(InputError, match="step files of another pool"):
        PoolWriter(fake_pool.path, header=pool_header)


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
    "messages: expected a list of role and content": {"messages": []},
    "messages: expected a list of role and content, found [{'role'": {"messages": [{"role": "user"}]},
    "comp_len: expected at least one token": {"comp_len": 0, "completion_ids": [], "sampling_logprobs": []},
    "problem_id: expected 'fake/0', found 'other'": {"problem_id": "other"},
    "sample_id: expected 2, found 7": {"sample_id": 7},
}


@pytest.mark.parametrize("message", FAULTS)
def test_every_fault_is_refused_and_found(
    tmp_path: Path, fake_pool: Pool, pool_header: Header, fake_groups: Groups, message: str
) -> None:
    """The writer refuses it, and verify finds it in a file that somebody else wrote with right hashes."""
    group = [fake_groups[0][0], fake_groups[0][1], replace(fake_groups[0][2], **FAULTS[message])]
    writer = PoolWriter(tmp_path / "new", header=pool_header)
    writer.write_step(0, group)
    with pytest.raises(InputError) as caught:
        writer.finish()
    assert message in str(caught.value)
    path = fake_pool.path / "step_000.jsonl.gz"
    write_gz(path, encode_jsonl(group))
    manifest = read_sealed(fake_pool.path / "manifest.json")
    manifest["files"][path.name] |= {"sha256": sha256(read_gz(path))}
    write_sealed(fake_pool.path / "manifest.json", manifest)
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
    """No directory, or our files without manifest: never a half-read pool."""
    (fake_pool.path / "manifest.json").unlink()
    for path, found in ((tmp_path / "absent", "no such directory"), (fake_pool.path, "a directory without one")):
        with pytest.raises(InputError, match=f"a pool, with manifest.json, found {found}; .*probe pool import"):
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
    assert resolve_pool("out", out) == Path("out"), "an existing directory is a path"
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
    """By the hash of itself: each line of it changed on its own, or left out."""
    path = fake_pool.path / "manifest.json"
    lines = path.read_text().splitlines()
    for i, line in enumerate(lines):
        for other in ([line.replace(": ", ": 1", 1)], []):
            path.write_text("\n".join([*lines[:i], *other, *lines[i + 1 :]]))
            if other != [line]:
                with pytest.raises(InputError, match=r"manifest\.json"):
                    open_pool(fake_pool.path)


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
