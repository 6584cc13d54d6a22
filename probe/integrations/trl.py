"""GradientProbeCallback: a GradientProbe inside TRL's GRPOTrainer, or any other trainer built on transformers' Trainer.

The trainer clips, then calls `on_pre_optimizer_step`: what is measured is the accumulated, unscaled, clipped mean
gradient, and what is projected is what the optimizer gets. With KL (`beta` above 0) GRPOTrainer 1.16 adds an adapter
`ref` with a copy of LoRA's values; that of `delta_S` stays at 0, so that its reference is the base model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from extraction.directions import Directions
from probe.integrations.gradient_probe import GradientProbe
from probe.records.records import GradientRecord
from probe.step.projection import Gate
from replay_pools.errors import InputError

PREFIX = "probe/"


class GradientProbeCallback(TrainerCallback):
    """Measures every optimizer step, projects its gradient when asked to, and logs the means beside the trainer's own.

    >>> trainer = GRPOTrainer(model=peft_model, ...)                                                # doctest: +SKIP
    >>> trainer.add_callback(GradientProbeCallback(trainer, "v_hack.safetensors", project=True))    # doctest: +SKIP

    Args:
        trainer: whose model carries an adapter `delta_S` or LoRA, without DeepSpeed or FSDP.
        directions: with `project`, `gate`, `overshoot` and `preserve_magnitude` as in `probe.attach`.
        path: a new file for the records, written by the main process alone.

    Raises:
        InputError: as `probe.attach`; what concerns the optimizer, at the start of training.
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
        """One an optimizer step; `step` counts as the trainer does, before the step."""
        return self._probe.records

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse an optimizer that cannot be projected for."""
        self._probe.check_optimizer(kwargs["optimizer"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure and project."""
        self._probe.before_step(state.global_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure what the optimizer did."""
        self._probe.after_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the means since the last log, when the trainer is about to log.

        The base class writes them as an entry of their own: GRPOTrainer's own `log` would spend its metrics on it. A
        log takes the request for one back, which the trainer's own still needs.
        """
        if control.should_log:
            Trainer.log(self._trainer, _means(self.records[self._num_logged :]))
            self._num_logged = len(self.records)
            control.should_log = True


def _means(records: Sequence[GradientRecord]) -> dict[str, float]:
    """Means over steps, nulls left out, by names for the log."""
    rows = [record.to_json() for record in records]
    found = {name: [row[name] for row in rows if isinstance(row[name], float)] for name in (rows[0] if rows else ())}
    return {PREFIX + name: sum(values) / len(values) for name, values in found.items() if values}
