"""The loss, from rewards to token weights: advantages, token credit, ratio, KL and normaliser."""
