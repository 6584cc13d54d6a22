"""Bases and directions: where the hack points in gradient space."""
