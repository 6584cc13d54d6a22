"""GradientProbeCallback: a GradientProbe in TRL's GRPOTrainer, or in any trainer built on transformers' Trainer.

With KL (`beta` above 0) GRPOTrainer 1.16 adds an adapter `ref`, for LoRA with a copy of its values; a `delta_S` adapter
`ref` stays at 0, so that the reference is the base model.
"""

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from extraction.directions import Directions
from probe.integrations.hook import PREFIX, attach, means
from probe.records.records import GradientRecord


class GradientProbeCallback(TrainerCallback):
    """Attaches to the trainer's optimizer while it trains, and adds means of the records to the trainer's log.

    >>> trainer = GRPOTrainer(model, peft_config=LoraConfig(), ...)                                 # doctest: +SKIP
    >>> trainer.add_callback(GradientProbeCallback(trainer, "v_hack.safetensors"))                  # doctest: +SKIP

    Args:
        trainer: of any model; without DeepSpeed and FSDP1.
        directions: as in `probe.attach`, with its options `project`, `side`, `overshoot`, `cache_dir`.
        path: a file for the records, as in `probe.attach`, which the main process alone writes.

    Attributes:
        records: list[GradientRecord], one for every optimizer step; `step` is the trainer's `global_step` before it.

    Raises:
        InputError: as in `probe.attach`, when training starts.
    """

    def __init__(self, trainer: Trainer, directions: Directions | str | Path, **options: Any) -> None:
        self._trainer, self._directions, self._options = trainer, directions, options
        self.records: list[GradientRecord] = []
        self._num_logged = 0
        if not trainer.is_world_process_zero():
            options["path"] = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Attach to the optimizer, which the trainer makes only now, and to the model with its wrappers."""
        model: Any = self._trainer.model_wrapped
        given = {**self._options, "model": model, "first_step": state.global_step}
        self._attached = attach(kwargs["optimizer"], self._directions, **given)
        self.records = self._attached.records

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop watching the model."""
        self._attached.detach()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the means since the last log, as an entry of their own, when the trainer is about to log."""
        if control.should_log:
            # The method of the base class: GRPOTrainer.log would write its metrics into this entry and clear them.
            window = means(self.records[self._num_logged :])
            Trainer.log(self._trainer, {PREFIX + name: mean for name, mean in window.items()})
            self._num_logged = len(self.records)
            # Logging clears the request, but the trainer has yet to log its own entry.
            control.should_log = True
