"""The probe inside another trainer's loop: measure, and optionally project, the gradients that the trainer made.

hook.attach                  any loop that calls `optimizer.step()` of a torch optimizer (public as `probe.attach`)
trl.GradientProbeCallback    the same in GRPOTrainer of TRL, and every trainer built on transformers' Trainer
"""
