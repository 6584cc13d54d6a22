"""The loss: advantages, token credit, ratio, KL and normaliser, from rewards to the weight of every token."""
