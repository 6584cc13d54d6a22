"""Answers of an incomplete batch, kept on disk so that a repeated batch does not request them again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from replay_pools.base.files import dump_json, sha256
from replay_pools.serving.dialects import Answer


class KeptAnswers:
    """The answers to one batch of requests, in a file with a name derived from the requests.

    Args:
        directory: folder of the file, which is deleted when the batch is complete; None = memory only.
        bodies: the requests, in order.

    Attributes:
        answers: {number of a request: its answer}, initially from the file.
    """

    def __init__(self, directory: Path | None, bodies: Sequence[Any]) -> None:
        self.answers: dict[int, Answer] = {}
        self._path = None if directory is None else directory / f"{sha256(dump_json(bodies))[:32]}.jsonl"
        if self._path is not None and self._path.is_file():
            for line in self._path.read_bytes().splitlines():
                # Skip a line that a killed process left incomplete.
                try:
                    number, fields = orjson.loads(line)
                    self.answers[number] = Answer.model_validate(fields)
                except (ValueError, TypeError, ValidationError):
                    continue

    def add(self, number: int, answer: Answer) -> None:
        """Keep an answer."""
        self.answers[number] = answer
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                # The leading line break ends an incomplete line before it.
                file.write(b"\n" + dump_json([number, answer.model_dump(include=set(Answer.model_fields))]) + b"\n")

    def clear(self) -> None:
        """Delete the file of a complete batch."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
