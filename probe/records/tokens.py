"""TokenRecord: the share of every token in the cosine of one rollout, a line each. Written on request. No torch here.

`step_NNN.tokens.jsonl.gz` stands beside the sample records of the step, and the manifest has its hash. Shares are
float32, written with their shortest decimals. What a share means: `probe.step.bases.token_shares`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay_pools.errors import InputError
from replay_pools.storage.files import decode_checked_jsonl, read_gz, sha256, write_jsonl_gz
from replay_pools.storage.tables import decode

_TOKENS_FILE = re.compile(r"step_(\d{3,})\.tokens\.jsonl\.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """One rollout of one step: under the primary condition, in the trained arm or `probe.settings.arms.measured_arm`.

    The shares of prompt and completion sum to `cos`. That is `cos_S_nll` of the sample record; if the condition has
    token credit, it is the cosine of the credited gradient. `cos` times the sign of the advantage is `cos_S_contrib`.
    `cos` and the shares are None for a rollout without gradient.
    """

    step: int
    sample_id: int  # as in the sample records
    condition: str
    arm: str
    cos: float | None
    prompt: tuple[float, ...] | None  # a share for every prompt token
    completion: tuple[float, ...] | None  # a share for every completion token
    prompt_chars: tuple[int, ...] | None  # how many characters of the pool's `prompt` each token covers; None: unknown
    completion_chars: tuple[int, ...] | None  # likewise of `completion`

    def to_json(self) -> dict[str, Any]:
        """The row that is written; the shares as float32 arrays, which the JSON writer prints with few digits."""
        row = asdict(self)
        for name in ("prompt", "completion"):
            if row[name] is not None:
                row[name] = np.array(row[name], dtype=np.float32)
        return row

    @classmethod
    def from_json(cls, row: Any, where: object) -> "TokenRecord":
        """The record of one line of JSON; InputError names `where` and the field."""
        return decode(cls, row, where)


def write_tokens(directory: Path, step: int, records: Iterable[TokenRecord]) -> None:
    """Write the records of one step atomically."""
    write_jsonl_gz(directory / f"step_{step:03d}.tokens.jsonl.gz", [record.to_json() for record in records])


def read_tokens(directory: Path, manifest: Mapping[str, Any]) -> dict[tuple[int, int], TokenRecord]:
    """{(step, sample_id): record} of a complete run; empty for a run that recorded none.

    Raises:
        InputError: a file is missing or differs from its hash in the manifest, or a line is no TokenRecord.
    """
    records = {}
    for name, listed in manifest["files"].items():
        if not _TOKENS_FILE.fullmatch(name):
            continue
        plain = read_gz(directory / name)
        if sha256(plain) != listed:
            raise InputError(directory / name, expected=f"sha256 {listed} of the manifest", found=sha256(plain))
        for number, row in enumerate(decode_checked_jsonl(plain, directory / name), 1):
            record = TokenRecord.from_json(row, f"{directory / name} line {number}")
            records[record.step, record.sample_id] = record
    return records


def token_hashes(directory: Path) -> dict[str, str]:
    """{file name: sha256 of the decompressed bytes} of all token files, for the manifest."""
    names = sorted(path.name for path in directory.iterdir() if _TOKENS_FILE.fullmatch(path.name))
    return {name: sha256(read_gz(directory / name)) for name in names}
