"""What the records of a run say, as numbers: contrasts, cells, trajectories, specificity, and other choices of k."""
