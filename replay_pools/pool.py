"""Pools: stored rollouts, one gzipped JSON-lines file a step, complete when `manifest.json` says so.

out/pools/<name>/step_000.jsonl.gz ...   one line a rollout; one step = one group = one problem
out/pools/<name>/.header.json            while it is being written; `finish` removes it
out/pools/<name>/manifest.json           written last: schema, the header's fields, counts, sha256 of every file
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import orjson

from replay_pools.consistency import group_faults
from replay_pools.errors import InputError
from replay_pools.files import (
    decode_jsonl,
    dump_json,
    first_difference,
    read_gz,
    read_json,
    remove_leftovers,
    sha256,
    write_json,
    write_jsonl_gz,
)
from replay_pools.predecessor import Tokenize, known_header, predecessor_files, read_predecessor
from replay_pools.rollout import POOL_SCHEMA, Rollout

MANIFEST_NAME = "manifest.json"
HEADER_NAME = ".header.json"
STEP_NAME = re.compile(r"step_(\d+)\.jsonl\.gz")
HEADER_FIELDS = (
    "policy",  # {"base_model", "adapter", ...}
    "tokenizer_sha256",
    "chat_template_sha256",
    "prompt_tail",  # text that the template puts at the end of every prompt
    "sampler",
    "plan",  # {"env", "mode", "hint", "seed", ...}
    "grader",  # {"version", "isolation"}
    "versions",  # {package: version}
    "git_commit",
)  # others are free: "engine" (of a server), "tests" {"problems", ...}, "normalised", "regraded_from"
COMPUTED_FIELDS = ("schema", "counts", "files")
BUILTIN = Path(__file__).parent / "builtin"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A complete pool; its steps are read when they are first asked for."""

    name: str
    path: Path
    manifest: dict[str, Any]
    normalised: tuple[str, ...] = ()  # what the reader of another format repaired, one sentence each
    read_steps: Callable[[], list[list[Rollout]]] = field(repr=False, compare=False)

    @cached_property
    def steps(self) -> list[list[Rollout]]:
        """All groups in step order.

        Raises:
            InputError: a file is missing, truncated, or not the one whose sha256 is in the manifest.
        """
        return self.read_steps()

    def header(self) -> dict[str, Any]:
        """The manifest without what a writer computes: the header of a copy."""
        return {key: value for key, value in self.manifest.items() if key not in COMPUTED_FIELDS}

    def identity(self) -> dict[str, str]:
        """Which pool it is, for the config of a run: name, path, hash of the manifest."""
        return {"name": self.name, "path": str(self.path), "manifest_sha256": sha256(dump_json(self.manifest))}

    def verify(self) -> list[str]:
        """Every fault, one line each: damaged, changed or unlisted files, and rollouts that contradict themselves."""
        if "files" not in self.manifest:  # the predecessor format: no hashes to compare
            return [fault for group in self.steps for fault in self._group_faults(group[0].step, group)]
        files = self.manifest["files"]
        faults = [
            str(InputError(path, expected="a file that the manifest lists", found="one that it does not"))
            for path in step_files(self.path)
            if path.name not in files
        ]
        num_rollouts = 0
        for name, entry in files.items():
            try:
                group = _read_listed(self.path / name, entry)
            except InputError as error:
                faults.append(str(error))
                continue
            num_rollouts += len(group)
            faults += self._group_faults(entry["step"], group)
        counts = {"steps": len(files), "rollouts": num_rollouts}
        if not faults and counts != self.manifest["counts"]:
            where = f"{self.path / MANIFEST_NAME} counts"
            faults.append(str(InputError(where, expected=str(counts), found=str(self.manifest["counts"]))))
        return faults

    def _group_faults(self, step: int, group: Sequence[Rollout]) -> list[str]:
        tail = self.manifest["prompt_tail"]
        return [str(fault) for fault in group_faults(group, f"{self.name} step {step}", step=step, tail=tail)]


class PoolWriter:
    """Writes a pool step by step; a killed writer goes on where it stopped and ends in the same bytes.

    Args:
        directory: the pool; created when absent.
        header: everything of the manifest that the caller knows, at least HEADER_FIELDS.

    Raises:
        InputError: a header field is missing or reserved, or the directory holds something else or another header.
    """

    def __init__(self, directory: Path, *, header: dict[str, Any]) -> None:
        if missing := [name for name in HEADER_FIELDS if name not in header]:
            raise InputError("pool header", expected=", ".join(HEADER_FIELDS), found=f"no {', '.join(missing)}")
        if reserved := [name for name in COMPUTED_FIELDS if name in header]:
            raise InputError("pool header", expected="no computed field", found=", ".join(reserved))
        self.directory = directory
        self.header: dict[str, Any] = orjson.loads(dump_json(header))  # as a reader will see it
        _check_resumable(directory, self.header)
        if not (directory / MANIFEST_NAME).exists():
            write_json(directory / HEADER_NAME, self.header)

    def done_steps(self) -> set[int]:
        """Steps whose file is complete, readable and consistent; every other file is to be written again."""
        return {_step(path) for path in step_files(self.directory) if self._read(path) is not None}

    def read_step(self, step: int) -> list[Rollout] | None:
        """The group of a step; None where its file is missing, damaged or inconsistent: it is to be written again."""
        return self._read(self._path(step))

    def write_step(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write one group atomically.

        Raises:
            InputError: the first fault of the group.
        """
        for fault in group_faults(rollouts, f"step {step}", step=step, tail=self.header["prompt_tail"]):
            raise fault
        if (self.directory / MANIFEST_NAME).exists():  # incomplete from here on
            write_json(self.directory / HEADER_NAME, self.header)
            (self.directory / MANIFEST_NAME).unlink()
        write_jsonl_gz(self._path(step), (rollout.to_json() for rollout in rollouts))

    def finish(self) -> Pool:
        """Write the manifest over all step files and open the pool.

        Raises:
            InputError: there is no step, or a file is damaged or inconsistent.
        """
        files: dict[str, dict[str, Any]] = {}
        for path in step_files(self.directory):
            plain = read_gz(path)
            group = _parse_group(plain, path)
            for fault in group_faults(group, path, step=_step(path), tail=self.header["prompt_tail"]):
                raise fault
            files[path.name] = {"step": _step(path), "rollouts": len(group), "sha256": sha256(plain)}
        if not files:
            raise InputError(self.directory, expected="at least one step", found="none")
        remove_leftovers(self.directory)
        counts = {"steps": len(files), "rollouts": sum(entry["rollouts"] for entry in files.values())}
        manifest = {"schema": POOL_SCHEMA, **self.header, "counts": counts, "files": files}
        write_json(self.directory / MANIFEST_NAME, manifest)
        (self.directory / HEADER_NAME).unlink(missing_ok=True)
        return open_pool(self.directory)

    def _path(self, step: int) -> Path:
        return self.directory / f"step_{step:03d}.jsonl.gz"

    def _read(self, path: Path) -> list[Rollout] | None:
        """The group of a file that is complete, readable and consistent."""
        try:
            group = _parse_group(read_gz(path), path)
        except InputError:
            return None
        faults = group_faults(group, path, step=_step(path), tail=self.header["prompt_tail"])
        return None if any(faults) else group


def open_pool(path: Path, *, tokenize: Tokenize | None = None) -> Pool:
    """Open a pool of ours, or one in the predecessor format (for which `tokenize` makes the prompt ids).

    Raises:
        InputError: no pool there, an unfinished one, or another schema.
    """
    name = path.resolve().name
    if not path.is_dir():
        raise InputError(path, expected="a pool directory", found="no such directory")
    if (path / MANIFEST_NAME).exists():
        manifest = _read_manifest(path / MANIFEST_NAME)
        return Pool(name=name, path=path, manifest=manifest, read_steps=partial(_read_all, path, manifest["files"]))
    if (path / HEADER_NAME).exists():
        raise InputError(
            path,
            expected=f"a finished pool with {MANIFEST_NAME}",
            found="an unfinished one",
            fix="run the command that was writing it again: it resumes",
        )
    if not predecessor_files(path):
        raise InputError(path, expected=f"{MANIFEST_NAME} or step_NNN.jsonl.gz files", found=_listing(path))
    steps, normalised = read_predecessor(path, tokenize=tokenize)
    counts = {"steps": len(steps), "rollouts": sum(map(len, steps))}
    manifest = {"schema": POOL_SCHEMA, **dict.fromkeys(HEADER_FIELDS), **known_header(steps), "counts": counts}
    return Pool(name=name, path=path, manifest=manifest, normalised=tuple(normalised), read_steps=lambda: steps)


def resolve_pool(name: str, out_dir: Path) -> Path:
    """The directory of a pool: a path (with a slash, or existing), else a name in `out_dir`/pools, else a built-in.

    Raises:
        InputError: not found; the pools that exist are listed.
    """
    if "/" in name or Path(name).is_dir():
        return Path(name)
    places = _places(out_dir)
    for place in places:
        if (place / name).is_dir():
            return place / name
    names = pool_names(out_dir)
    raise InputError(
        f"pool {name}",
        expected=f"a directory in {places[0]}, or a built-in pool",
        found=f"only {', '.join(names)}" if names else "no pool at all",
        fix="pass a path with a slash for a pool elsewhere",
    )


def pool_names(out_dir: Path) -> list[str]:
    """The finished pools that a name alone finds, in `out_dir`/pools and built in."""
    return sorted({path.parent.name for place in _places(out_dir) for path in place.glob(f"*/{MANIFEST_NAME}")})


def _places(out_dir: Path) -> tuple[Path, ...]:
    return (out_dir / "pools", BUILTIN)


def step_files(directory: Path) -> list[Path]:
    """The step files of a pool of ours, in step order."""
    return sorted((path for path in directory.iterdir() if STEP_NAME.fullmatch(path.name)), key=_step)


def _step(path: Path) -> int:
    """NNN of `step_NNN.jsonl.gz`."""
    match = STEP_NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != POOL_SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(path, expected=f"pool schema {POOL_SCHEMA}", found=repr(found), fix="rebuild the pool")
    if missing := [name for name in (*HEADER_FIELDS, *COMPUTED_FIELDS) if name not in manifest]:
        raise InputError(path, expected="the fields of a pool manifest", found=f"no {', '.join(missing)}")
    return manifest


def _read_all(directory: Path, files: dict[str, dict[str, Any]]) -> list[list[Rollout]]:
    return [_read_listed(directory / name, entry) for name, entry in files.items()]


def _read_listed(path: Path, entry: dict[str, Any]) -> list[Rollout]:
    """The group of a listed file, after comparing its sha256."""
    plain = read_gz(path)
    if (found := sha256(plain)) != entry["sha256"]:
        expected = f"sha256 {entry['sha256'][:16]}"
        raise InputError(path, expected=expected, found=found[:16], fix="copy or generate the pool again")
    return _parse_group(plain, path)


def _listing(path: Path) -> str:
    """The first files of a directory, by name."""
    names = sorted(own.name for own in path.iterdir())
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "an empty directory"


def _parse_group(plain: bytes, path: Path) -> list[Rollout]:
    return [Rollout.from_json(row, f"{path} line {i}") for i, row in enumerate(decode_jsonl(plain, path), 1)]


def _check_resumable(directory: Path, header: dict[str, Any]) -> None:
    """InputError unless the directory is free, or holds a pool with the same header."""
    stored = directory / MANIFEST_NAME
    if not stored.exists():
        stored = directory / HEADER_NAME
    if stored.exists():
        found = {key: value for key, value in read_json(stored).items() if key not in COMPUTED_FIELDS}
        if difference := first_difference(found, header):
            key, there, wanted = difference
            fix = "choose another --name, or delete this pool to start anew"
            raise InputError(f"{stored} {key}", expected=repr(wanted), found=repr(there), fix=fix)
    elif directory.exists() and predecessor_files(directory):
        raise InputError(directory, expected="an empty directory", found="step files of another pool")
