"""Sources of the groups of a training: its problems, its policy as it is and as it was, guests, and what they earn."""
