"""Statistics, nulls and tables over records; torch-free."""
