"""The fields of a pool's manifest and their types. `base.files.write_sealed` adds the sha256 of all of them."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from replay_pools.base.files import read_sealed
from replay_pools.base.tables import decode
from replay_pools.rollout import MAX_CPU_S, POOL_SCHEMA, CodeRule

MANIFEST_NAME = "manifest.json"
STEP_NAME = re.compile(r"^step_(\d+)\.jsonl\.gz$")
Table = dict[str, Any]


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

    policy: Table  # base_model, adapter, base_weights_sha256, dtype; null: unknown
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    prompt_tail: str  # the template's text at the end of every prompt
    sampler: Table | None  # temperature, top_p, top_k, max_new_tokens; null: unknown
    plan: Table  # of `generate.PoolPlan`; in the pool of a log, env, env_mode and hint are lists
    grader: _Grader
    versions: dict[str, str]  # {package: version}
    git_commit: str | None
    counts: dict[str, int]  # steps, rollouts
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
