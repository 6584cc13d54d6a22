"""What follows from the pairs alone is drawn and extracted once, and every analysis goes on from the same generator."""

from pathlib import Path

import numpy as np
import pytest

from probe.analysis.statistics import geometry
from probe.analysis.statistics.nulls import redrawn
from probe.analysis.statistics.run_gradients import StepReader, read_pairs
from probe.records.run import read_run
from replay_pools.errors import InputError


def test_redrawn_directions_are_those_of_the_axes(many_arms: Path, monkeypatch: pytest.MonkeyPatch):
    """Row 0 of the axes is v_hack, the others its half-samples; a second reading of the pairs draws nothing anew."""
    drawn = redrawn(read_pairs(read_run(many_arms)), 9, 0)
    assert redrawn(read_pairs(read_run(many_arms)), 9, 0) is drawn
    rows = np.concatenate([drawn.truth.axes().rows, drawn.halves.axes().rows])
    assert np.array_equal(drawn.axes.rows, rows)
    assert drawn.permuted.kept.shape[0] == 9
    _, num_modules, k, _ = drawn.permuted.combinations.shape
    four = 4 * num_modules * k * (1 + drawn.permuted.num_rows)  # numbers of four draws and a component along each
    monkeypatch.setattr(geometry, "PART", four)
    parts = list(drawn.permuted.parts(num_columns=1))
    assert [len(part.first) for part in parts] == [4, 4, 1]
    assert np.array_equal(parts[1].rows, drawn.permuted.rows[4:8])


def test_a_step_that_was_written_anew_is_read_anew(many_arms: Path):
    """What is remembered of a step is that of its file as it is now, and of the manifest that names it."""
    run = read_run(many_arms)
    read = StepReader.of(run)
    assert read(0) is StepReader.of(read_run(many_arms))(0)
    assert read == StepReader.of(read_run(many_arms))
    assert StepReader(run.path, run.manifest["files"] | {"gram/step_000.safetensors": "0" * 64}) != read
    with pytest.raises(InputError, match="step_000"):
        StepReader(run.path, run.manifest["files"] | {"gram/step_000.safetensors": "0" * 64})(0)
