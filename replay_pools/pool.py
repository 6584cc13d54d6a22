"""Read and write pools: directories of stored rollouts, complete when they hold a `manifest.json`.

    out/pools/<name>/step_000.jsonl.gz ...   one line a rollout; one step = one group = one problem
    out/pools/<name>/.header.json            while the pool is being written; `finish` removes it
    out/pools/<name>/manifest.json           written last: schema, the header's fields, counts, sha256 of every file and
                                             of itself

`PoolWriter` writes a pool, `open_pool` opens one and `resolve_pool` finds it by name.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass
from typing_extensions import TypedDict

from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import (
    SEAL,
    check_sha256,
    dump_json,
    encode_jsonl,
    read_gz,
    read_sealed,
    remove_leftovers,
    sha256,
    write_gz,
    write_sealed,
)
from replay_pools.base.tables import STRICT, decode, decode_json, first_difference, setting
from replay_pools.base.terminal import report
from replay_pools.rollout import CONFINED, MAX_CPU_S, POOL_SCHEMA, CodeRule, Rollout, group_faults

MANIFEST_NAME, HEADER_NAME = "manifest.json", ".header.json"
STEP_NAME = re.compile(r"^step_(\d+)\.jsonl\.gz$")
CAUTION = "caution: "  # how a sentence of `normalised` starts that says what a pool is not good for
LABEL_NOTES = "normalised_labels"  # field of the manifest: each `LabelNote` of an import
BUILTIN = Path(__file__).parent / "builtin"
REMEMBERED = 4096  # groups of a pool that are kept in memory
NO_MASK = b',"completion_mask":null,"turn_chars":null}'  # how the line of a rollout of one turn would end


@settings_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Sampler:
    """Settings of sampling, which turn the model's logits into the distribution of the next token."""

    temperature: float = setting(1.0, "sampling temperature; trainings need 1", gt=0)
    top_p: float = setting(1.0, "nucleus sampling; 1: off", gt=0, le=1)
    top_k: int = setting(0, "most likely tokens to sample from; 0: all", ge=0)
    max_new_tokens: int = setting(128, "largest number of tokens of a completion", ge=1)


# Recorded log-probabilities are those of the policy only if the sampler leaves its distribution unchanged.
PLAIN_LAW = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def law_of(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampler's fields that change the policy's distribution; PLAIN_LAW if it is unchanged."""
    return {name: sampler.get(name) for name in PLAIN_LAW}


class Entry(TypedDict):
    """A manifest's entry for one file."""

    step: int
    rollouts: int
    sha256: str


class _Grader(TypedDict):
    version: str
    isolation: Literal["A", "B", "A+B", "unsafe-local", "unknown"]
    # The defaults of a regrade.
    code_rule: NotRequired[CodeRule]
    cpu_s: NotRequired[Annotated[int, Field(ge=1, le=MAX_CPU_S)]]


class Manifest(TypedDict):
    """The fields that every manifest has. Inner tables are free where no type is given.

    Others are optional: "engine" (of a server), "template" ("plain": prompts are the texts of their messages), "tests"
    {"problems", "cases", "left_out"}, "regraded_from" (see `regrade`); of an imported log "log" {"format", "mapping",
    ...}, "ids" {"origin": "logged" or "retokenised", "round_trips", ...}, "normalised" (notes of the import),
    "normalised_labels" (its notes on labels and rewards, which grading replaces).
    """

    policy: dict[str, Any]  # base_model, adapter, base_weights_sha256, dtype; null: unknown
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    prompt_tail: str  # the template's text at the end of every prompt
    sampler: dict[str, Any] | None  # of `Sampler`; null: unknown
    plan: dict[str, Any]  # of `generate.PoolPlan`; in the pool of a log, env, env_mode and hint are lists
    grader: _Grader
    versions: dict[str, str]  # {package: version}
    git_commit: str | None
    counts: dict[str, int]  # steps, rollouts
    # A name that is no step file could be a path out of the folder.
    files: dict[Annotated[str, Field(pattern=STEP_NAME.pattern)], Entry]


COMPUTED_FIELDS = ("schema", "counts", "files", SEAL)  # of the manifest: written by `finish`, refused in a header
HEADER_FIELDS = tuple(name for name in Manifest.__annotations__ if name not in COMPUTED_FIELDS)


class LabelNote(str):
    """A sentence of an import about logged labels and rewards, which grading replaces."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A complete pool."""

    name: str  # of its directory
    path: Path
    manifest: dict[str, Any]  # without the hash of itself
    # Groups, each read when it is asked for; InputError where its file is damaged, or not the one of the manifest.
    steps: Sequence[list[Rollout]] = field(repr=False, compare=False)

    @property
    def normalised(self) -> tuple[str, ...]:
        """The choices, repairs and doubts of an import, one sentence each, cautions first; empty without an import."""
        notes = [*self.manifest.get("normalised", ()), *self.manifest.get(LABEL_NOTES, ())]
        return tuple(sorted(notes, key=lambda note: not note.startswith(CAUTION)))

    @property
    def cautions(self) -> list[str]:
        """The sentences of `normalised` that limit the use of the pool."""
        return [sentence for sentence in self.normalised if sentence.startswith(CAUTION)]

    def only(self, places: Sequence[int]) -> "Pool":
        """The pool with the groups of some places alone."""
        return replace(self, steps=_Groups(places, self.steps.__getitem__))

    def header(self) -> dict[str, Any]:
        """The manifest without the computed fields: what a `PoolWriter` of a copy takes."""
        return {key: value for key, value in self.manifest.items() if key not in COMPUTED_FIELDS}

    def identity(self) -> dict[str, str]:
        """Name, path and hash of the manifest: how the config of a run says which pool it read."""
        return {"name": self.name, "path": str(self.path), "manifest_sha256": sha256(dump_json(self.manifest))}

    def verify(self) -> list[str]:
        """Every fault, one line each: damaged, changed or unlisted files, and rollouts that contradict themselves."""
        files, faults = self.manifest["files"], list[InputError]()
        for path in step_files(self.path).values():
            if path.name not in files:
                faults.append(InputError(path, expected="a file that the manifest lists", found="one that it does not"))
        for number, (name, entry) in enumerate(files.items(), 1):
            report("steps", number, len(files))
            try:
                _read_group(self.path / name, entry["step"], self.manifest["prompt_tail"], entry["sha256"])
            except InputError as error:
                faults += error.errors
        return [*map(str, faults)]


@dataclass(frozen=True, slots=True)
class _Groups(Sequence[list[Rollout]]):
    """Groups that are read whenever they are accessed."""

    items: Sequence[Any]
    read: Callable[[Any], list[Rollout]]

    def __iter__(self) -> Iterator[list[Rollout]]:
        return map(self.read, self.items)  # by place, an IndexError inside `read` would look like the end

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: Any) -> Any:
        return [*map(self.read, self.items[place])] if isinstance(place, slice) else self.read(self.items[place])


class PoolWriter:
    """Writes a pool step by step. A second writer of the same header goes on where a killed one stopped.

    It may grade under another tier of isolation: the manifest names every tier that graded a rollout, as "A+B".

        writer = PoolWriter(directory, header=header)
        for step in range(num_steps):
            if writer.read_step(step) is None:
                writer.write_step(step, rollouts)
        pool = writer.finish()

    Args:
        directory: the pool; created when absent.
        header: the fields of the manifest that the caller knows, at least HEADER_FIELDS.
        is_lasting: whether a step survives a power cut once it is written; else all do once the pool is finished.

    Raises:
        InputError: the directory holds something else or another header.
    """

    def __init__(self, directory: Path, *, header: dict[str, Any], is_lasting: bool = True) -> None:
        assert {*HEADER_FIELDS} <= header.keys()
        assert not {*COMPUTED_FIELDS} & header.keys()
        self.directory, self._is_lasting = directory, is_lasting
        self.header: dict[str, Any] = orjson.loads(dump_json(header))  # as a reader will see it: tuples are lists
        names = (MANIFEST_NAME, HEADER_NAME)
        if stored := next((directory / name for name in names if (directory / name).exists()), None):
            known = {key: value for key, value in read_sealed(stored).items() if key not in COMPUTED_FIELDS}
            tiers = [grader["isolation"] for grader in (known["grader"], self.header["grader"])]
            if {*"+".join(tiers).split("+")} <= {*CONFINED}:
                known["grader"]["isolation"] = tiers[1]
            if difference := first_difference(known, self.header, free="regraded_from.agreement"):
                name, value, wanted = difference
                fix = "choose another --name, or delete this pool to start anew"
                raise InputError(f"{stored} {name}", expected=repr(wanted), found=repr(value), fix=fix)
        elif directory.exists() and step_files(directory):
            raise InputError(directory, expected="an empty directory", found="step files of another pool")
        else:
            write_sealed(directory / HEADER_NAME, self.header)

    def read_step(self, step: int) -> list[Rollout] | None:
        """The group of a step; None where its file is missing, damaged or inconsistent, so has to be written."""
        with suppress(InputError):
            return _read_group(self._path(step), step, self.header["prompt_tail"])[0]

    def write_step(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write one group atomically, also in place of a damaged one of a finished pool; `finish` looks for faults."""
        write_gz(self._path(step), encode_group(rollouts), is_lasting=self._is_lasting)

    def write_missing(
        self, steps: Sequence[int], size: int, make: Callable[[Sequence[int], list[int]], dict[int, list[Rollout]]]
    ) -> None:
        """Write the groups that are missing, `size` steps at a time: `make(steps, missing ones)` returns these."""
        for first in range(0, len(steps), size):
            batch = steps[first : first + size]
            if missing := [step for step in batch if self.read_step(step) is None]:
                for step, rollouts in make(batch, missing).items():
                    self.write_step(step, rollouts)
            report("steps", first + len(batch), len(steps))

    def drop_steps(self, first: int) -> None:
        """Delete the groups of the steps from `first` on, of a pool that is not finished."""
        for step, path in step_files(self.directory).items():
            if step >= first:
                path.unlink()

    def finish(self) -> Pool:
        """Check all step files, write the manifest and open the pool.

        Raises:
            InputError: every fault of the first group that is damaged or inconsistent.
        """
        files: dict[str, dict[str, Any]] = {}
        tiers: set[str] = set()
        # From the disk, since an earlier process may have written some of them.
        paths = step_files(self.directory)
        for number, (step, path) in enumerate(paths.items(), 1):
            report("steps checked", number, len(paths))
            group, digest = _read_group(path, step, self.header["prompt_tail"])
            tiers.update(rollout.grade.isolation for rollout in group)
            files[path.name] = {"step": step, "rollouts": len(group), "sha256": digest}
        if not files:
            raise InputError(self.directory, expected="at least one step", found="none")
        remove_leftovers(self.directory)
        counts = {"steps": len(files), "rollouts": sum(entry["rollouts"] for entry in files.values())}
        if tiers <= {*CONFINED}:
            self.header["grader"]["isolation"] = "+".join(sorted(tiers))
        # The manifest comes last of all: where it is, every file that it lists is on disk.
        manifest = {"schema": POOL_SCHEMA, **self.header, "counts": counts, "files": files}
        if not self._is_lasting:
            os.sync()
        write_sealed(self.directory / MANIFEST_NAME, manifest)
        (self.directory / HEADER_NAME).unlink(missing_ok=True)
        return open_pool(self.directory)

    def _path(self, step: int) -> Path:
        return self.directory / f"step_{step:03d}.jsonl.gz"


def encode_group(rollouts: Sequence[Rollout]) -> bytes:
    """Return the JSON lines of a group. A rollout of one turn has no `completion_mask` and no `turn_chars`."""
    lines = encode_jsonl(rollouts).splitlines()
    return b"".join((line.removesuffix(NO_MASK) + b"}" if line.endswith(NO_MASK) else line) + b"\n" for line in lines)


def open_pool(path: Path) -> Pool:
    """Open the pool in a directory.

    Raises:
        InputError: no pool there, an unfinished one, or another schema.
    """
    fix = f"to make one of logged rollouts: probe pool import {shlex.quote(str(path))} --name NAME --model MODEL"
    if not (path / MANIFEST_NAME).exists():
        found = "a directory without one" if path.is_dir() else "a file" if path.is_file() else "no such directory"
        if (path / HEADER_NAME).exists():
            found, fix = "an unfinished one", "run the command that was writing it again: it resumes"
        raise InputError(path, expected=f"a pool, with {MANIFEST_NAME}", found=found, fix=fix)
    manifest = read_sealed(path / MANIFEST_NAME, POOL_SCHEMA, "rebuild the pool")
    decode(Manifest, manifest, path / MANIFEST_NAME, extra="allow")
    files, tail = manifest["files"], manifest["prompt_tail"]

    @lru_cache(REMEMBERED)
    def read(name: str) -> list[Rollout]:
        return _read_group(path / name, files[name]["step"], tail, files[name]["sha256"])[0]

    return Pool(name=path.resolve().name, path=path, manifest=manifest, steps=_Groups([*files], read))


def resolve_pool(name: str, out_dir: Path) -> Path:
    """The directory of a pool: a path with a slash, else a name in `out_dir`/pools, a built-in one, or a folder here.

    Raises:
        InputError: not found; the pools that exist are listed.
    """
    if "/" in name:
        return Path(name)
    if found := _found(name, out_dir):
        return found
    expected = f"a directory in {out_dir / 'pools'}, or a built-in pool"
    fix = "pass a path with a slash for a pool elsewhere"
    raise unknown_name(f"pool {name}", name, pool_names(out_dir), expected=expected, fix=fix)


def pool_reference(directory: Path, out_dir: Path) -> str:
    """What a command calls the pool in `directory`: its name where that alone finds it, else its path."""
    found = _found(directory.name, out_dir)
    return directory.name if found and found.resolve() == directory.resolve() else str(directory)


def _found(name: str, out_dir: Path) -> Path | None:
    # In this order a pool of the user hides a built-in one of the same name.
    places = (out_dir / "pools", BUILTIN, Path())
    return next((place / name for place in places if (place / name).is_dir()), None)


def pool_names(out_dir: Path) -> list[str]:
    """The names of the finished pools in `out_dir`/pools and of the built-in ones, sorted."""
    manifests = (place.glob(f"*/{MANIFEST_NAME}") for place in (out_dir / "pools", BUILTIN))
    return sorted({manifest.parent.name for manifest in chain(*manifests)})


def step_files(directory: Path) -> dict[int, Path]:
    """{step: its file} of a directory, in order (by number: step_1000 comes after step_999)."""
    matches = ((STEP_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def _read_group(path: Path, step: int, tail: str, listed: str | None = None) -> tuple[list[Rollout], str]:
    """Return the group of a step file, and the sha256 of its lines.

    Args:
        path: the file of `step`.
        tail: text that the chat template puts at the end of every prompt of the pool.
        listed: sha256 that the file must have.

    Raises:
        InputError: a missing, damaged or changed file, or every fault of the group.
    """
    plain = read_gz(path)
    digest = sha256(plain)
    if listed is not None:
        check_sha256(path, digest, listed, "copy or generate the pool again")
    group = [decode_json(Rollout, line, f"{path} line {i}") for i, line in enumerate(plain.splitlines(), 1)]
    group_faults(group, path, step=step, tail=tail).check(path)
    return group, digest
