"""The files of a run: records, schema, tables, timings and trackers. No torch."""
