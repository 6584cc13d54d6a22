"""Warnings of dependencies that concern nobody who uses this project, silenced where they arise and nowhere else."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_peft() -> Iterator[None]:
    """peft 0.21 reads a property that transformers 5.23 renamed, and transformers warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
