"""Directions that are drawn anew from pairs, drawn once a session.

They follow from the pairs and the seed alone. The program remembers those of the last pairs, since they are large for a
large model; tests turn from run to run, and theirs are small.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from probe.analysis import families, forecast, pull
from probe.analysis.statistics import permutation, run_gradients

DRAWN = {
    "redrawn": (forecast, pull, permutation),
    "ceilings": (families,),
    "_pairs": (run_gradients,),
}


@contextmanager
def remembering(num_pair_files: int) -> Iterator[None]:
    """Within it, analyses remember what they have drawn from so many pair files."""
    with pytest.MonkeyPatch.context() as patch:
        for name, modules in DRAWN.items():
            remembered = lru_cache(maxsize=num_pair_files)(getattr(modules[0], name).__wrapped__)
            for module in modules:
                patch.setattr(module, name, remembered)
        yield
