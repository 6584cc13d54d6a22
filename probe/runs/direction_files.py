"""Direction files: the card of one, and the file of a finished replay, made from its cached pair gradients.

A card, `NAME.card.json` beside `NAME.safetensors`, has the settings, the pairs, the accuracy of the sign on held-out
pairs and the same under null models, and the hash of the file. The two can be shared without the pair gradients.

A replay that extracts its own v_hack leaves no file of it, but the gradients that it comes from are in OUT/cache, and
its inner products in the run. What reproduces those is what the run measured along. No weights are loaded.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from extraction.directions import (
    Directions,
    PairGradients,
    extract_directions,
    load_directions,
    load_pair_gradients,
    save_directions,
    save_pair_gradients,
    sign_accuracy,
)
from extraction.library import pairs_path, source_identity
from extraction.words import kind_of
from probe.analysis.statistics.geometry import Extraction, PairGram
from probe.analysis.statistics.nulls import transfer_nulls
from probe.analysis.statistics.run_gradients import read_pairs
from probe.records.run import Run
from probe.runs.directions import CARD_SCHEMA, card_path
from probe.runs.gram_recorder import extraction_settings, pair_products
from probe.settings.run import StepConfig
from replay_pools.errors import InputError
from replay_pools.storage.files import file_sha256, write_sealed

NUM_DRAWS = 199  # p is at least 1 / 200
# Metadata of the direction file that the card repeats as `settings`.
SETTINGS = ("method", "k", "tau", "drop_bottom_frac", "loss_type", "max_completion_length", "dtype", "adapter_at_zero")
SAME = 1e-6  # relative difference of inner products that the order of a sum explains


def write_card(
    path: Path, directions: Directions, pairs: PairGradients, adapted: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make the card of the direction file `path`, write it beside the file, and return it.

    Args:
        directions: what the file holds.
        pairs: the gradients that they were extracted from.
        adapted: fields of `Adapted`, of the model.
    """
    metadata = directions.metadata
    used = [i for i, held_out in enumerate(pairs.held_out.tolist()) if not held_out]
    modes = pairs.metadata.get("modes")
    margins: list[int] = []
    for votes in directions.votes.values():
        margins += map(int, votes)
    margins.sort()
    vote_p = list(chain.from_iterable(metadata["vote_p"].values()))
    # As `gram/pairs.safetensors` of a run holds them.
    gram = PairGram(
        modules=tuple(pairs.hack),
        sizes=np.array([rows.shape[1] for rows in pairs.hack.values()]),
        pairs=pair_products(pairs).numpy(),
        held_out=pairs.held_out.numpy(),
        extraction=Extraction(**extraction_settings(pairs, directions)),
    )
    nulls = transfer_nulls(gram, num_draws=NUM_DRAWS)
    card = {
        "schema": CARD_SCHEMA,
        "file": path.name,
        "sha256": file_sha256(path),
        "basis": metadata["fingerprint"]["basis"],
        "pairs": metadata["pairs"],
        "pairs_sha256": metadata["pairs_sha256"],
        "num_pairs": metadata["num_pairs"],
        "kinds": Counter(kind_of(pairs.metadata["flavours"][i]) for i in used),
        # Gradients from before there were modes do not know them.
        "modes": Counter(chain.from_iterable(modes[i] for i in used)) if modes is not None else None,
        "num_modules": len(directions.vectors),
        "adapted": adapted,
        "num_directions": directions.num_directions(),
        "num_empty_modules": sum(not len(vectors) for vectors in directions.vectors.values()),
        "settings": {name: metadata[name] for name in SETTINGS},
        "noise_floor": metadata["noise_floor"],
        "median_vote_margin": margins[len(margins) // 2] if margins else None,
        "frac_votes_p05": sum(p < 0.05 for p in vote_p) / max(len(vote_p), 1),
        "held_out": sign_accuracy(pairs, directions),
        "nulls": {name: asdict(null) for name, null in nulls.items()},
        "fingerprint": metadata["fingerprint"],
        "chat_template_sha256": metadata["chat_template_sha256"],
        "tokenizer_sha256": metadata["tokenizer_sha256"],
    }
    write_sealed(card_path(path), card)
    return card


def direction_file(run: Run, config: StepConfig, out_dir: Path) -> tuple[str, Path | None]:
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
    write_card(path, directions, pairs, run.manifest.get("adapted"))
    return path.stem, path


def _cached(run: Run, gram: PairGram, cache: Path) -> PairGradients:
    """The pair gradients in a cache whose inner products are those of the run."""
    for path in sorted(cache.glob("*.safetensors")):
        try:
            pairs = load_pair_gradients(path)
        except InputError:
            continue  # damaged: whoever needs that one measures it anew
        products = pair_products(pairs).numpy()
        if tuple(pairs.hack) != gram.modules or products.shape != gram.pairs.shape:
            continue
        if np.allclose(products, gram.pairs, rtol=SAME, atol=SAME * np.abs(gram.pairs).max()):
            return pairs
    raise InputError(
        cache,
        expected=f"the pair gradients of {run.path}",
        found="none with its inner products",
        fix="run the replay again under another name: it measures them anew",
    )
