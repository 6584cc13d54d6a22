"""The embedded pools of the organism."""
