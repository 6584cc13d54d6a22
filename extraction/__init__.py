"""Bases and directions: where the hack points in gradient space.

adapters      an adapter (delta_S or LoRA) on a model, its weights as flat coordinates per module
gradients     per-sample gradients in these coordinates, all from one forward and backward
directions    v_hack from the gradients of contrast pairs (`pairs`); `controls` are what it is compared with
library       all of it together, with a cache: what `probe` uses
"""
