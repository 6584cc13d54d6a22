"""The direction file of a finished replay: the one that it read, or v_hack of its pair gradients, saved.

A replay that extracts its own v_hack leaves no file of it, but the gradients that it comes from are in OUT/cache, and
its inner products in the run. What reproduces those is what the run measured along. No weights are loaded.
"""

from pathlib import Path

import numpy as np

from extraction.directions import (
    PairGradients,
    extract_directions,
    load_directions,
    load_pair_gradients,
    save_directions,
    save_pair_gradients,
)
from extraction.library import pairs_path, source_identity
from probe.analysis.statistics.gram import PairGram, read_pairs
from probe.records.run import Run
from probe.runs.card import write_card
from probe.runs.gram_recorder import pair_products
from probe.settings.run import RunConfig
from replay_pools.errors import InputError

SAME = 1e-6  # relative difference of inner products that the order of a sum explains


def direction_file(run: Run, config: RunConfig, out_dir: Path) -> tuple[str, Path | None]:
    """What `intervention.v_hack` has to say for a training along the run's directions, and the file where one was made.

    Args:
        config: the settings of the run.
        out_dir: whose cache has the pair gradients; the file is `out_dir`/directions/RUN-v_hack.safetensors.

    Raises:
        InputError: the file that the run read is not there or was changed; no cached gradients give its inner products;
            another file has the name.
    """
    given = config.intervention.v_hack
    if given is not None:
        if source_identity(config.intervention.extraction, given) != run.config["directions"]:
            raise InputError(given, expected=f"the directions that {run.path} was measured along", found="others")
        return given, None
    path = out_dir / "directions" / f"{run.path.name}-v_hack.safetensors"
    gram = read_pairs(run)
    pairs = _cached(run, gram, out_dir / "cache" / "pair_gradients")
    extraction = gram.extraction
    directions = extract_directions(
        pairs.differences(),
        method=extraction.method,
        k=extraction.k,
        tau=extraction.tau,
        drop_bottom_frac=extraction.drop_bottom_frac,
        metadata=pairs.metadata,
    )
    if path.is_file():
        if load_directions(path).metadata != directions.metadata:
            fix = "move it elsewhere, or rename the run"
            raise InputError(path, expected="no file, or the directions of the run", found="others", fix=fix)
        return path.stem, None
    save_pair_gradients(pairs_path(path), pairs)
    save_directions(path, directions)
    write_card(path, directions, pairs)
    return path.stem, path


def _cached(run: Run, gram: PairGram, cache: Path) -> PairGradients:
    """The pair gradients in a cache whose inner products are those of the run."""
    for path in sorted(cache.glob("*.safetensors")):
        try:
            pairs = load_pair_gradients(path)
        except InputError:
            continue  # damaged: whoever needs that one measures it anew
        if tuple(pairs.hack) == gram.modules and _same(pair_products(pairs).numpy(), gram.pairs):
            return pairs
    raise InputError(
        cache,
        expected=f"the pair gradients of {run.path}",
        found="none with its inner products",
        fix="run the replay again under another name: it measures them anew",
    )


def _same(products: np.ndarray, stored: np.ndarray) -> bool:
    return products.shape == stored.shape and np.allclose(products, stored, rtol=SAME, atol=SAME * np.abs(stored).max())
