"""The fields of a pool's manifest and their types. `base.files.write_sealed` adds the sha256.

To check another field, add its type here; other fields are free.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from replay_pools.base.files import read_sealed
from replay_pools.base.tables import decode, word_of
from replay_pools.environments.base import Split
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.rollout import CONFINED, MAX_CPU_S, POOL_SCHEMA, UNKNOWN, UNSAFE, CodeRule

MANIFEST_NAME = "manifest.json"
STEP_NAME = re.compile(r"^step_(\d+)\.jsonl\.gz$")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Word = Annotated[str, word_of((*LOOPHOLES, "none"))]
Isolation = Annotated[str, word_of((*CONFINED, "+".join(CONFINED), UNSAFE, UNKNOWN))]


class Entry(TypedDict):
    """A manifest's entry for one file."""

    step: int
    rollouts: Count
    sha256: Sha256


class _Policy(TypedDict, total=False):
    base_model: Name | None
    adapter: Name | None
    base_weights_sha256: Sha256 | None
    dtype: Literal["float16", "bfloat16", "float32", "float64"] | None


class _Sampler(TypedDict, total=False):
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)]
    max_new_tokens: Count


class _Plan(TypedDict, total=False):
    env: Name | list[Name]  # a list in the pool of a log
    env_mode: list[str]
    split: Split
    mode: Word
    hint: bool | list[bool]
    steps: Count
    group: Count
    seed: int


class _Grader(TypedDict):
    version: Name
    isolation: Isolation
    code_rule: NotRequired[CodeRule]
    cpu_s: NotRequired[Annotated[int, Field(ge=1, le=MAX_CPU_S)]]


class _Tests(TypedDict):
    problems: Annotated[int, Field(ge=0)]
    cases: Annotated[int, Field(ge=0)]
    left_out: NotRequired[Annotated[int, Field(ge=0)]]


class _Agreement(TypedDict):
    label: Name
    n: Annotated[int, Field(ge=0)]
    rate: Annotated[float, Field(ge=0, le=1)] | None
    old_only: Annotated[int, Field(ge=0)]
    new_only: Annotated[int, Field(ge=0)]


class _RegradedFrom(TypedDict):
    name: Name
    path: str
    sha256: Sha256
    grader: _Grader
    agreement: list[_Agreement]


class Manifest(TypedDict):
    """The fields of a manifest that are checked.

    Others are free: "engine" (of a server), "template" ("plain": prompts are the texts of their messages); of an
    imported log "log" {"format", "mapping", ...}, "ids" {"origin": "logged" or "retokenised", "round_trips", ...},
    "normalised" (notes of the import), "normalised_labels" (its notes on labels and rewards, which grading replaces).
    """

    policy: _Policy
    tokenizer_sha256: Sha256 | None
    chat_template_sha256: Sha256 | None
    prompt_tail: str  # the template's text at the end of every prompt
    sampler: _Sampler | None  # null: unknown
    plan: _Plan
    grader: _Grader
    versions: dict[str, str]  # {package: version}
    git_commit: Commit | None
    counts: dict[Literal["steps", "rollouts"], int]
    tests: NotRequired[_Tests]
    regraded_from: NotRequired[_RegradedFrom]
    # A name that is no step file could be a path out of the folder.
    files: dict[Annotated[str, Field(pattern=STEP_NAME.pattern)], Entry]


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest of a pool.

    Raises:
        InputError: a changed file, another schema, or every value of the wrong type.
    """
    where = directory / MANIFEST_NAME
    manifest = read_sealed(where, POOL_SCHEMA, "rebuild the pool")
    decode(Manifest, manifest, where, extra="allow")
    return manifest
