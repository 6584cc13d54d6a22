"""Pools of rollouts: sampled, graded, frozen."""
