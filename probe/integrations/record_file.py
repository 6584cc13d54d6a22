"""The file of a probe's records, which goes on after a requeue: a JSON line a step, all along the same directions."""

import os
from pathlib import Path

from extraction.adapters.svd import checksum
from extraction.directions import Directions
from probe.records.records import GradientRecord
from replay_pools.errors import InputError
from replay_pools.storage.files import append_jsonl, decode_jsonl, encode_jsonl, write_atomic

DIGITS = 16


def directions_sha(directions: Directions) -> str:
    """Return the name of directions in a record: the first digits of a sha256 of all vectors."""
    return checksum(*directions.vectors.values())[:DIGITS]


class RecordFile:
    """Appends records, after those that are there already; steps that a resumed loop does again are replaced.

    Args:
        path: a new file, or one of this class.
        directions: `directions_sha` of what is measured along now.

    Raises:
        InputError: a file of other directions, or none of records.
    """

    def __init__(self, path: Path, directions: str) -> None:
        self._path, self.next_step = path, 0  # the number after the last record
        if not path.exists():
            return
        # A process that was killed may have left a part of a line.
        complete = path.read_bytes().rpartition(b"\n")[0]
        for number, row in enumerate(decode_jsonl(complete, path), 1):
            record = GradientRecord.from_json(row, f"{path} line {number}")
            self.next_step = record.step + 1
            if record.directions != directions:
                raise InputError(
                    f"{path} line {number}",
                    expected=f"a record along the directions {directions}",
                    found=record.directions,
                    fix="name another file",
                )
        os.truncate(path, len(complete) + bool(complete))

    def append(self, record: GradientRecord) -> None:
        """Add a record; one of the same step or a later one, from before a requeue, is left out first."""
        if record.step < self.next_step:
            rows = decode_jsonl(self._path.read_bytes(), self._path)
            write_atomic(self._path, encode_jsonl(row for row in rows if row["step"] < record.step))
        append_jsonl(self._path, record.to_json())
        self.next_step = record.step + 1
