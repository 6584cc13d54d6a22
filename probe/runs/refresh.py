"""Directions of a policy that moves: extracted at the start, and again every so many steps where that is asked for.

A refresh extracts from the same pairs with the same settings at the coordinates of the deployed policy (without its
quarantine), and leaves `directions/step_NNNNNN.safetensors` in the run: a resumed run reads what it finds there. All
ranks extract, since a sharded base needs them all; what rank 0 found counts, on all of them. Every
record carries the age of its directions and their overlap with those of the start,

    overlap = mean over modules of  ||V V_0^T||_F^2 / k         1 = the same subspaces; Haar directions: k / r

the mean squared cosine of the principal angles (k of the smaller of the two).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import final

from torch import Tensor

from extraction.angles import principal_angles
from extraction.directions import Directions, load_directions, save_directions
from probe.records.run import DIRECTIONS_DIR
from probe.step.distributed import SOLO, World
from probe.step.step import Measure
from probe.step.update import Updater


@final
class RefreshedMeasures:
    """The one measure of a training run at every step.

    Args:
        directory: of the run.
        start: with the directions of the start.
        extract: directions of the arm's kind at the coordinates as they are.
        updater: of the policy.
        every: steps; None = never.
        world: the ranks.
    """

    def __init__(
        self,
        directory: Path,
        start: Measure,
        extract: Callable[[], Directions],
        updater: Updater,
        every: int | None,
        world: World = SOLO,
    ) -> None:
        self._directory, self._start, self._extract = directory / DIRECTIONS_DIR, start, extract
        self._updater, self._every, self._world = updater, every, world
        self._newest = 0, replace(start, overlap=1.0)  # (step of extraction, measure)

    def __call__(self, step: int) -> list[Measure]:
        """The measure of a step, with directions that are at most `every` - 1 steps old."""
        since = 0 if self._every is None else step - step % self._every
        if since != self._newest[0]:
            self._newest = since, self._at(since, step)
        return [replace(self._newest[1], age=step - since)]

    def _at(self, since: int, step: int) -> Measure:
        path = self._directory / f"step_{since:06d}.safetensors"
        if not self._world.on_main(path.is_file):
            assert since == step, "a refresh that was missed"
            with self._updater.deployed():
                found = self._extract()
            if self._world.is_main:
                save_directions(path, found)
            self._world.gather(None)  # the file is there
        vectors = load_directions(path).to(self._updater.coordinates.model.device).vectors
        return replace(self._start, vectors=vectors, overlap=overlap(vectors, self._start.vectors))


def overlap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float | None:
    """Mean squared cosine of the principal angles, over modules with directions in both; None without any."""
    shared = [module for module in a if module in b and min(len(a[module]), len(b[module]))]
    found = [principal_angles(a[module], b[module]).overlap for module in shared]
    return sum(found) / len(found) if found else None
