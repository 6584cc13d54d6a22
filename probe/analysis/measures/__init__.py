"""Contrasts, cells, trajectories and maps: what the records of a run say, as numbers."""
