"""Sections of a report: each function takes a `Report`, gathers what a template shows, and returns a `Section`."""
