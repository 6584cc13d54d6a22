"""Preregistered experiments: a spec, its jobs, its criteria and the decision."""
