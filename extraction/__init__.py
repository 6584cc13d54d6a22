"""Bases and directions: where the hack points in gradient space.

adapters      frames: coordinates of each module's gradient, of delta_S or of LoRA; and the adapters that are trained
gradients     per-sample gradients in these coordinates, of several bases, from one forward and backward
directions    v_hack from the gradients of contrast pairs (`pairs`), and the controls that it is compared with
library       all of it together, with a cache: what `probe` uses
"""
