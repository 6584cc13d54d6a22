"""The file of a probe's records, a JSON line a step, all along the same directions; a requeued job continues it."""

import os
from pathlib import Path

from extraction.adapters.svd import checksum
from extraction.directions import Directions
from probe.records.records import GradientRecord
from replay_pools.base.errors import InputError
from replay_pools.base.files import append_jsonl, decode_jsonl, encode_jsonl, write_atomic

DIGITS = 16


def directions_sha(directions: Directions) -> str:
    """Return the name of directions in a record: the first DIGITS of a sha256 of all vectors."""
    return checksum(*directions.vectors.values())[:DIGITS]


class RecordFile:
    """Appends records to a new file or an earlier one; steps that a resumed loop repeats are replaced.

    Raises:
        InputError: records along other `directions` (`directions_sha`), or another kind of file.
    """

    def __init__(self, path: Path, directions: str) -> None:
        self._path, self.next_step = path, 0  # the number after the last record
        if not path.exists():
            return
        # A process that was killed may have left a part of a line.
        complete = path.read_bytes().rpartition(b"\n")[0]
        for number, line in enumerate(complete.splitlines(), 1):
            record = GradientRecord.parse(line, f"{path} line {number}")
            self.next_step = record.step + 1
            if record.directions != directions:
                where, expected = f"{path} line {number}", f"a record along the directions {directions}"
                raise InputError(where, expected=expected, found=record.directions, fix="name another file")
        os.truncate(path, len(complete) + bool(complete))

    def append(self, record: GradientRecord) -> None:
        """Add a record; one of the same step or a later one, from before a requeue, is left out first."""
        if record.step < self.next_step:
            rows = decode_jsonl(self._path.read_bytes(), self._path)
            write_atomic(self._path, encode_jsonl(row for row in rows if row["step"] < record.step))
        append_jsonl(self._path, record.to_json())
        self.next_step = record.step + 1
