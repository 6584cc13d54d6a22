"""Directions that mean nothing: random ones, of a basis."""

from collections.abc import Mapping

import torch

from extraction.adapters.frames import Frames
from extraction.adapters.trained import Trained
from extraction.directions import Directions, haar_directions


def random_directions(
    coordinates: Trained | Frames, k: int = 2, seed: int = 0, numbers: Mapping[str, int] | None = None
) -> Directions:
    """`k` in every module, or as many as `numbers` says."""
    none = {module: torch.zeros((numbers or {}).get(module, k), r) for module, r in coordinates.sizes.items()}
    frames = coordinates.start if isinstance(coordinates, Trained) else coordinates
    metadata = {"fingerprint": dict(frames.fingerprint)}
    return haar_directions(Directions(vectors=none, singular_values={}, votes={}, metadata=metadata), seed=seed)
