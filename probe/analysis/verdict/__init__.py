"""Findings, rules R0 to R7, and the sentences that render them."""
