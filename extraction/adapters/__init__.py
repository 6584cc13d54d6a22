"""The coordinates of an adapted model: SVD `delta_S` and LoRA behind one interface; `coordinates.attach` makes them."""
