"""Statistics and matched nulls: pure mathematics on arrays."""
