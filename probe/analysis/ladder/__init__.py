"""Ratings of policies against fixed references."""
