"""Rewards to the numbers of a loss: advantages, token credit, ratio, KL, normaliser."""
