"""One step: groups through one forward and backward, then every condition and arm on the same gradients."""
