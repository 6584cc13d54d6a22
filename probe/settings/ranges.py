"""Checks that several tables of settings share."""

from collections.abc import Iterable, Mapping

from replay_pools.errors import FieldError


def at_least(least: int, **values: int | None) -> None:
    """Refuse a value below `least`; None passes.

    Raises:
        FieldError: names the first such keyword, which is the field of the dataclass.
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise FieldError(name, f"at least {least}", value)


def known_words(field: str, words: Iterable[str], table: Mapping[str, object]) -> None:
    """Refuse a word that is no key of `table` (arms, loophole modes).

    Raises:
        FieldError: names `field`, and the keys that there are.
    """
    for word in words:
        if word not in table:
            raise FieldError(field, f"one of {', '.join(table)}", repr(word))
