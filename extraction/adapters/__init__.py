"""The coordinates of an adapted model: SVD `delta_S` and LoRA behind one interface.

Use `attach` for a model without an adapter, `adapters.coordinates.existing_coordinates` for one that has it already,
and `adapters.frames.make_frames` to read the coordinates of its weights without one.
"""

from extraction.adapters.coordinates import SVD_CACHE, attach
from extraction.adapters.interface import Coordinates, check_fingerprint
from extraction.words import Basis

__all__ = ["SVD_CACHE", "Basis", "Coordinates", "attach", "check_fingerprint"]
