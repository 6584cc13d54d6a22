"""Sections of a report: each function returns one Section, which says why where there is nothing to show."""
