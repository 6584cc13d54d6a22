"""What every run finds out again in a program that runs once, found out once in a session of tests.

Both follow from what they are made of alone: directions that are drawn anew from the pairs and the seed, and whether a
pool that comes with the package fits a tokenizer. The program remembers draws of the last pairs, since they are large
for a large model; tests turn from run to run, and theirs are small.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from probe.analysis import analyze
from probe.analysis.measures import forecast, hackward, pull
from probe.analysis.statistics import permutation
from replay_pools.pool import BUILTIN, Pool
from replay_pools.vocabulary import Vocabulary

DRAWN = {"redrawn": (forecast, hackward, pull), "null_axes": (permutation,), "ceilings": (analyze,)}
PAIR_FILES = 8  # whose draws are kept


@contextmanager
def remembering() -> Iterator[None]:
    """Within it, draws and checks are remembered; a pool that does not fit is refused every time."""
    fits: set[tuple[object, ...]] = set()
    check = Vocabulary.check

    def check_once(vocabulary: Vocabulary, pool: Pool) -> None:
        chat = vocabulary.chat
        case = (pool.path, vocabulary.size, chat.base_model, chat.tokenizer_sha(), chat.eos_ids)
        if case not in fits:
            check(vocabulary, pool)
        if pool.path.parent == BUILTIN:
            fits.add(case)

    with pytest.MonkeyPatch.context() as patch:
        for name, modules in DRAWN.items():
            remembered = lru_cache(maxsize=PAIR_FILES)(getattr(modules[0], name).__wrapped__)
            for module in modules:
                patch.setattr(module, name, remembered)
        patch.setattr(Vocabulary, "check", check_once)
        yield
