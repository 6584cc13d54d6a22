"""Environments: where programming problems come from, which loopholes their prompts hint at, and how those are used."""
