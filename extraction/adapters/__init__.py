"""The coordinates of gradients (`frames`), and adapters whose weights are such coordinates (`trained`)."""
