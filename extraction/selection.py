"""Select the pairs of a run: built-in ones or a file's, and what its settings leave of them."""

from collections.abc import Callable

from extraction.pairs import Pair, builtin_pairs
from extraction.words import ExtractionSettings, kind_of
from replay_pools.base.errors import InputError


def load_pairs(
    source: str,
    columns: str | None = None,
    split_seed: int | None = None,
    say: Callable[[str], object] = lambda note: None,
) -> list[Pair]:
    """Return the pairs of `builtin` (mode run_tests), `builtin:MODE`, `builtin:placebo`, `builtin:style`, or a file.

    Args:
        source: one of these.
        columns: `FIELD=COLUMN,...` of a file (`--pairs-map`); built-in pairs have none.
        split_seed: draws the held-out prompts of a file that does not mark them; None: 0.
        say: gets a sentence for each decision in reading a file.

    Raises:
        InputError: no such built-in set or file, no pair to extract from; all faults of the file.
    """
    if is_builtin(source):
        pairs = builtin_pairs(source.partition(":")[2] or "run_tests")
    else:
        from extraction.pair_files import read_pair_file  # built-in pairs do without the readers of logs

        pairs = read_pair_file(source, columns, split_seed or 0, say)
    if all(pair.held_out for pair in pairs):
        raise InputError(f"pairs {source}", expected="at least one pair that is not held out", found="none")
    return pairs


def is_builtin(source: str) -> bool:
    """Return whether pairs come with the package."""
    return source.partition(":")[0] == "builtin"


def selected_pairs(settings: ExtractionSettings, say: Callable[[str], object] = lambda note: None) -> list[Pair]:
    """Return the pairs of a run: `settings.pairs` without the flavours in `leave_out`, and the held-out pairs.

    `settings.held_out` may name another source of held-out pairs. No held-out pair is dropped, so that all selections
    are measured on the same ones. `say` gets a sentence for each decision in reading `settings.pairs`.

    Raises:
        InputError: as `load_pairs`; a flavour that no pair has, or a map without a file.
    """
    if settings.pairs_map is not None and is_builtin(settings.pairs):
        raise InputError("--pairs-map", expected="a file of pairs (--pairs FILE)", found=settings.pairs)
    pairs = load_pairs(settings.pairs, settings.pairs_map, settings.split_seed, say)
    used = [pair for pair in pairs if not pair.held_out]
    flavours = sorted({kind_of(pair.flavour) for pair in used})
    for flavour in settings.leave_out:
        if flavour not in flavours:
            expected = f"flavours of {settings.pairs}: {', '.join(flavours)}"
            raise InputError("intervention.extraction.leave_out", expected=expected, found=repr(flavour))
    used = [pair for pair in used if kind_of(pair.flavour) not in settings.leave_out]
    measured = pairs
    if settings.held_out is not None:
        measured = load_pairs(settings.held_out, settings.pairs_map, settings.split_seed)
    return [*used, *(pair for pair in measured if pair.held_out)]
