"""The probe inside another trainer's loop: measure, and optionally project, the gradients that the trainer made.

    hook.attach                  any loop that calls `optimizer.step()` of a torch optimizer (public as `probe.attach`)
    trl.GradientProbeCallback    GRPOTrainer of TRL, and every trainer built on transformers' Trainer

To add a trainer: a new file here that makes a `gradient_probe.GradientProbe` and calls, wherever that trainer lets it,

    probe.start(optimizer)               once, before the first forward
    probe.before_step(step)              with the final gradients in `.grad`: accumulated, averaged, unscaled
    probe.after_step()                   when the optimizer has moved the weights, before the next backward
    probe.stop()                         at the end
"""
