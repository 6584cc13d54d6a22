"""Intervals, significance tests and matched nulls, and the offline geometry that the nulls are drawn with."""
