"""One grader for the tests that grade with the default settings."""

from collections.abc import Iterator

import pytest

from replay_pools.grading.grade import Grader


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader(workers=1) as instance:
        yield instance
