"""The words of the options are the keys of the tables that give them their meaning."""

from extraction import loss
from extraction import words as extraction_vocabulary
from probe.objective import advantages
from probe.settings import words as vocabulary
from probe.step import groups as sources
from probe.step import projection


def test_options_offer_exactly_what_the_mathematics_knows() -> None:
    """The pure files import nothing of ours, and help texts import no torch; this pins the two together."""
    assert tuple(projection.GATES) == vocabulary.GATES
    assert tuple(advantages.ESTIMATORS) == vocabulary.ESTIMATORS
    assert tuple(advantages.SCALES) == vocabulary.SCALES
    assert tuple(loss.LOSS_TYPES) == extraction_vocabulary.LOSS_TYPES


def test_every_match_has_its_marks(fake_pool) -> None:
    for match in vocabulary.MATCHES:
        assert sources.ReplaySource([fake_pool], per_pool=1, match=match).num_steps == len(fake_pool.steps)
