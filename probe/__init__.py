"""Measurements: replay, projection, records, analysis."""
