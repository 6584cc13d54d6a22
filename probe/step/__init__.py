"""One step: groups through one forward and backward, then every loss variant and arm on the same gradients."""
