"""A check that several tables of settings share."""

from replay_pools.errors import FieldError


def at_least(least: int, **values: int | None) -> None:
    """Refuse a value below `least`; None passes.

    Raises:
        FieldError: names the first such keyword, which is the field of the dataclass.
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise FieldError(name, f"at least {least}", value)
