"""The files of a run: its records, their schema, tables, timings and trackers; written and read back. No torch."""
