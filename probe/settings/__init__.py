"""The settings of a run: `RunConfig`, its tables and presets, arms, gates, and the words they accept. No torch."""
