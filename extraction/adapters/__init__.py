"""The coordinates of gradients (`frames`), and adapters with weights in such coordinates (`trained`)."""
