"""Grading by answers, not verdicts."""

from replay_pools.grading.execution import InfrastructureError
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission

__all__ = ["Grader", "InfrastructureError", "Submission", "canary"]
