"""Evidence of one run to verdicts: rules R0 to R7, the seed's table, and the sentences that say it in words."""
