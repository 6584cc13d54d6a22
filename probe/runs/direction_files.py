"""The card of a direction file: `NAME.card.json` beside `NAME.safetensors`.

It has the settings, the pairs, the accuracy of the sign on held-out pairs and the same under null models, and the hash
of the file. The two can be shared without the pair gradients.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from extraction.directions import Directions, PairGradients, sign_accuracy
from extraction.words import kind_of
from probe.analysis.statistics.geometry import Extraction, PairGram
from probe.analysis.statistics.nulls import transfer_nulls
from probe.runs.directions import CARD_SCHEMA, card_path
from probe.runs.gram_recorder import extraction_settings, pair_products
from replay_pools.storage.files import file_sha256, write_sealed

NUM_DRAWS = 199  # p is at least 1 / 200
# Metadata of the direction file that the card repeats as `settings`.
SETTINGS = ("method", "k", "tau", "drop_bottom_frac", "loss_type", "max_completion_length", "dtype", "adapter_at_zero")


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
        "nulls": {name: {of: asdict(test) for of, test in tests.items()} for name, tests in nulls.items()},
        "fingerprint": metadata["fingerprint"],
        "chat_template_sha256": metadata["chat_template_sha256"],
        "tokenizer_sha256": metadata["tokenizer_sha256"],
    }
    write_sealed(card_path(path), card)
    return card
