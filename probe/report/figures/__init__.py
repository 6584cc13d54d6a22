"""Figures: each function takes what an analysis found and returns one drawn panel, or None where there is nothing."""
