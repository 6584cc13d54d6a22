"""Answers of a batch that is not whole yet: another attempt at the same batch does not ask for them again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from replay_pools.base.files import dump_json, sha256
from replay_pools.serving.dialects import Answer


class KeptAnswers:
    """The answers to the requests of one batch, by their numbers, in a file that is named by these requests.

    Args:
        directory: of the file, which goes when the batch is whole; None: nothing is kept on disk.
        bodies: of the requests, in order.

    Attributes:
        answers: {number of a request: its answer}, at first those of the file.
    """

    def __init__(self, directory: Path | None, bodies: Sequence[Any]) -> None:
        self.answers: dict[int, Answer] = {}
        self._path = None if directory is None else directory / f"{sha256(dump_json(bodies))[:32]}.jsonl"
        if self._path is not None and self._path.is_file():
            for line in self._path.read_bytes().splitlines():
                # What a killed process wrote in part is asked for again.
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
                # A line break first, too: the line before may have been written in part.
                file.write(b"\n" + dump_json([number, answer.model_dump(include=set(Answer.model_fields))]) + b"\n")

    def clear(self) -> None:
        """Forget the file: the batch is whole."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
