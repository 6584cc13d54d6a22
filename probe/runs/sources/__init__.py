"""Sources of a training's groups: problems, the policy, earlier checkpoints, rollouts of other policies, rewards."""
