"""Replay and train: assemble a run, loop over its steps, checkpoint and resume it."""
