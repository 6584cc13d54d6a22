"""The settings of a run: `RunConfig`, its tables, presets, arms and accepted words. No torch."""
