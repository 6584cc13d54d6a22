"""The settings of a run: `RunConfig` and its presets, the loss, arms, gates, and the words that they accept. No torch."""
