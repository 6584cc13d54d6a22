"""GradientProbeCallback: a GradientProbe in TRL's GRPOTrainer, or in any trainer built on transformers' Trainer.

The trainer clips, then calls `on_pre_optimizer_step`: the probe measures the accumulated, unscaled, clipped mean
gradient, and what it projects goes to the optimizer. With KL (`beta` above 0) GRPOTrainer 1.16 adds an adapter `ref`,
for LoRA with a copy of its values; a `delta_S` adapter `ref` stays at 0, so that the reference is the base model.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from extraction.directions import Directions
from probe.integrations.gradient_probe import GradientProbe
from probe.records.records import GradientRecord
from probe.settings.words import Gate
from replay_pools.errors import InputError

PREFIX = "probe/"


class GradientProbeCallback(TrainerCallback):
    """Measures every optimizer step, gates its gradient with `project`, and adds means to the trainer's log.

    >>> trainer = GRPOTrainer(model=peft_model, ...)                                                # doctest: +SKIP
    >>> trainer.add_callback(GradientProbeCallback(trainer, "v_hack.safetensors", project=True))    # doctest: +SKIP

    Args:
        trainer: its model carries an adapter `delta_S` or LoRA; without DeepSpeed and FSDP.
        directions: with `project`, `gate`, `overshoot` and `preserve_magnitude` as in `probe.attach`.
        path: a new file for the records; only the main process writes it.

    Raises:
        InputError: as in `probe.attach`. What is wrong with the optimizer is raised when training starts.
    """

    def __init__(
        self,
        trainer: Trainer,
        directions: Directions | str | Path,
        *,
        project: bool = False,
        gate: Gate = "one_sided",
        overshoot: float = 1.0,
        preserve_magnitude: bool = False,
        path: str | Path | None = None,
    ) -> None:
        model = trainer.model
        if not isinstance(model, PeftModel):
            raise InputError("trainer.model", expected="a peft model", found=type(model).__name__)
        self._trainer = trainer
        self._probe = GradientProbe(
            model,
            directions,
            project=project,
            gate=gate,
            overshoot=overshoot,
            preserve_magnitude=preserve_magnitude,
            path=path if trainer.is_world_process_zero() else None,
        )
        self._num_logged = 0

    @property
    def records(self) -> list[GradientRecord]:
        """One record for every optimizer step; `step` is the trainer's `global_step` before it."""
        return self._probe.records

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse an optimizer that the probe cannot serve: the trainer makes it only now."""
        self._probe.check_optimizer(kwargs["optimizer"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the gradient; with `project`, gate it."""
        self._probe.before_step(state.global_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the update."""
        self._probe.after_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the means since the last log, as an entry of their own, when the trainer is about to log."""
        if control.should_log:
            # The method of the base class: GRPOTrainer.log would write its metrics into this entry and clear them.
            Trainer.log(self._trainer, _means(self.records[self._num_logged :]))
            self._num_logged = len(self.records)
            # Logging clears the request, but the trainer has yet to log its own entry.
            control.should_log = True


def _means(records: Sequence[GradientRecord]) -> dict[str, float]:
    """{probe/FIELD: mean over the records}; nulls are left out, and so are fields that are no float."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.to_json().items():
            if isinstance(value, float):
                values[PREFIX + name].append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
