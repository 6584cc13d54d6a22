"""GradientProbeCallback: a GradientProbe in TRL's GRPOTrainer, or in any trainer built on transformers' Trainer.

With KL (`beta` above 0) GRPOTrainer 1.16 adds an adapter `ref`, for LoRA with a copy of its values; a `delta_S` adapter
`ref` stays at 0, so that the reference is the base model.
"""

from pathlib import Path
from typing import Any, Unpack

from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from extraction.directions import Directions
from probe.integrations.gradient_probe import PREFIX, GradientProbe, ProbeOptions, means
from probe.records.records import GradientRecord


class GradientProbeCallback(TrainerCallback):
    """Measures every optimizer step, projects its gradient with `project`, and adds means to the trainer's log.

    >>> trainer = GRPOTrainer(model, peft_config=LoraConfig(), ...)                                 # doctest: +SKIP
    >>> trainer.add_callback(GradientProbeCallback(trainer, "v_hack.safetensors"))                  # doctest: +SKIP

    Args:
        trainer: of any model; without DeepSpeed and FSDP1.
        directions: with `project`, `side`, `overshoot`, `cache_dir` and `process_group` as in `probe.attach`.
        path: a file for the records, as in `probe.attach`, which the main process alone writes.

    Raises:
        InputError: as in `probe.attach`; a fault of the optimizer is raised when training starts.
    """

    def __init__(self, trainer: Trainer, directions: Directions | str | Path, **options: Unpack[ProbeOptions]) -> None:
        model = trainer.model
        assert isinstance(model, nn.Module)
        self._trainer = trainer
        if not trainer.is_world_process_zero():
            options["path"] = None
        self._probe = GradientProbe(model, directions, scaler=trainer.accelerator.scaler, **options)
        self._num_logged = 0

    @property
    def records(self) -> list[GradientRecord]:
        """Return one record for every optimizer step; `step` is the trainer's `global_step` before it."""
        return self._probe.records

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """Refuse an optimizer that the probe cannot serve, which the trainer makes only now; begin to watch."""
        self._probe.start(kwargs["optimizer"], self._trainer.model_wrapped)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop watching the model."""
        self._probe.stop()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Measure the gradient; with `project`, project it."""
        self._probe.before_step(state.global_step)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Measure the update."""
        self._probe.after_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the means since the last log, as an entry of their own, when the trainer is about to log."""
        if control.should_log:
            # The method of the base class: GRPOTrainer.log would write its metrics into this entry and clear them.
            window = means(self.records[self._num_logged :])
            Trainer.log(self._trainer, {PREFIX + name: mean for name, mean in window.items()})
            self._num_logged = len(self.records)
            # Logging clears the request, but the trainer has yet to log its own entry.
            control.should_log = True
