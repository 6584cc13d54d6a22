"""The runs of a spec, judged: by its criteria and its decisions."""
