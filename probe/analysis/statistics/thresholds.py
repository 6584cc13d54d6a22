"""The numbers that METHOD section 7 and the seed's rules name, in one place."""

NEAR_ZERO = 0.05  # R1, R2: equivalence band of a cosine
STRONG = 0.2
ALPHA = 0.05
ALIGNED_ALPHA = 0.01  # R1
NO_DISCRIMINATION = 0.55  # R6: AUROC upper bound
MIN_PROMPTS = 16  # R0: prompts with a policy gradient
ADDITIVE = 1e-4  # R0: relative error of the sum of contributions
REGRADED = 0.99  # R0: share of labels that a second grading repeats
SAME = 1e-4  # R0: relative difference of the arms' first gradients that rounding explains
REPRODUCED = 1e-4  # R0: largest difference between offline and recorded cosines that rounding explains
GATED = 1e-5  # R5: what a gate may leave of the part that it removes
GATED_UPDATE = 1e-4  # R5: the same of an update, which is rounded to the size of the coordinates, not to its own
EXCEEDED = 0.95  # R3, R4: percentile of a null
POWER = 0.8  # R7
