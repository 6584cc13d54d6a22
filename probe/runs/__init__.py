"""Replay and train: a run assembled, looped over its steps, checkpointed and resumed."""
