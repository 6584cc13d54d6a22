"""replay_pools.tables: tables laid over one another, and their flat names."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.tables import flat, overlaid

KEYS = st.text("abc", min_size=1, max_size=3)
TABLES = st.recursive(
    st.dictionaries(KEYS, st.integers(), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def test_tables_are_merged_and_everything_else_is_replaced() -> None:
    assert overlaid({"a": {"b": 1, "c": [2, 3]}, "d": 4}, {"a": {"c": [5]}, "e": {"f": 6}}) == {
        "a": {"b": 1, "c": [5]},
        "d": 4,
        "e": {"f": 6},
    }
    assert overlaid({"a": None}, {"a": {"b": 1}}) == {"a": {"b": 1}}, "a table takes the place of what is none"
    assert overlaid({"a": {"b": 1}}, {"a": 2}) == {"a": 2}


@given(table=TABLES, over=TABLES)
@settings(deadline=None)
def test_what_is_laid_over_is_found_there(table: dict, over: dict) -> None:
    """Every leaf of `over` is a leaf of the result; a table over itself is itself; neither argument is changed."""
    before = flat(table), flat(over)
    merged = flat(overlaid(table, over))
    assert merged.items() >= flat(over).items()
    assert overlaid(table, table) == table
    assert (flat(table), flat(over)) == before
