"""What a run leaves on disk: records, schema, tables, timings, and how they are read back. No torch."""
