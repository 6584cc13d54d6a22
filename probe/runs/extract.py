"""`probe extract`, `probe.extract`, probe.Direction: v_hack with the gradients of its pairs, from pairs or from files.

    NAME.safetensors          the directions
    NAME.pairs.safetensors    the gradients of the pairs, which a replay needs for its controls
    NAME.card.json            settings, pairs, accuracy of the sign on held-out pairs, hash

The first and the last can be shared without the second.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, final

import numpy as np
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from extraction.adapters.frames import comparable
from extraction.directions import (
    Directions,
    PairGradients,
    load_directions,
    load_pair_gradients,
    save_directions,
    save_pair_gradients,
)
from extraction.library import EXTRACTION, DirectionLibrary, check_pairs, pairs_path
from extraction.pair_files import store_rows
from extraction.pairs import selected_pairs
from extraction.settings import Basis, kind_of, resolve_directions
from probe.analysis.statistics.geometry import PairGram
from probe.analysis.statistics.nulls import sign_transfer
from probe.records.run import DEFAULT_OUT
from probe.runs.arm_directions import CARD_SCHEMA, card_path, read_card
from probe.runs.gram_recorder import extraction_settings, pair_products
from probe.runs.policies import as_policy, configured_frames, configured_policy
from probe.settings.presets import configure
from probe.settings.verbs import ReplayConfig, normaliser
from replay_pools.base.errors import InputError
from replay_pools.base.files import file_sha256, locked, plain_name, write_sealed
from replay_pools.policy.load import Policy, load_served_policy

# Metadata of the direction file that the card repeats as `settings`.
SETTINGS = ("method", "sides", *EXTRACTION[1:], "loss_type", "max_completion_length", "dtype", "adapter_at_zero")


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Direction(Directions):
    """v_hack of one model, made by `probe.extract` for `probe.cosines`, `probe.attach` and replays.

    >>> direction = probe.extract("organism", pairs="builtin")
    >>> direction
    Direction(builtin, svd of organism: 77 directions in 28 modules, right on 15 of 16 held-out pairs)
    >>> _ = direction.save("v_hack")
    >>> probe.Direction.load("v_hack").num_directions()
    77
    """

    pairs: PairGradients | None = None  # gradients it was extracted from; None if their file is missing
    adapted: Mapping[str, Any] | None = None  # fields of `Adapted` for the model

    @classmethod
    def of(cls, directions: Directions, **origin: Any) -> Self:
        """Add the fields about their origin to directions."""
        return cls(**{entry.name: getattr(directions, entry.name) for entry in fields(Directions)}, **origin)

    def save(self, name: str, out: str | Path = DEFAULT_OUT) -> Path:
        """Write `out`/directions/NAME.safetensors, its pair gradients and its card; return the first path.

        Raises:
            InputError: no plain name, other directions of that name, or no pair gradients.
        """
        path = Path(out) / "directions" / f"{plain_name(name, 'name')}.safetensors"
        if self.pairs is None:
            fix = "copy the file that it was loaded from"
            raise InputError("direction", expected="one with the gradients of its pairs", found="none", fix=fix)
        with locked(path):
            if path.exists() and _identity(load_directions(path)) != _identity(self):
                fix = "use another name, or remove the file"
                raise InputError(path, expected="no file, or the same directions", found="others", fix=fix)
            save_pair_gradients(pairs_path(path), self.pairs)
            save_directions(path, self)
            write_sealed(card_path(path), self._card(path, self.pairs))
        return path

    @classmethod
    def load(cls, file: str | Path, out: str | Path = DEFAULT_OUT) -> Self:
        """Read a file of `save` or `probe extract` by its path or its name in `out`/directions.

        Raises:
            InputError: no such file, a damaged file, or one that does not match its card.
        """
        path = resolve_directions(file, Path(out))
        card = read_card(path) if card_path(path).is_file() else {}
        pairs = load_pair_gradients(pairs_path(path)) if pairs_path(path).is_file() else None
        return cls.of(load_directions(path), pairs=pairs, adapted=card.get("adapted"))

    def _card(self, path: Path, pairs: PairGradients) -> dict[str, Any]:
        """Return the card of the direction file `path`."""
        metadata, used = self.metadata, np.flatnonzero(~pairs.held_out.numpy())
        return {
            "schema": CARD_SCHEMA,
            "file": path.name,
            "sha256": file_sha256(path),
            "basis": metadata["fingerprint"]["basis"],
            **{name: metadata[name] for name in ("pairs", "pairs_sha256", "num_pairs")},
            "kinds": Counter(kind_of(pairs.metadata["flavours"][i]) for i in used),
            "num_modules": len(self.vectors),
            "adapted": self.adapted,
            "num_directions": self.num_directions(),
            "num_empty_modules": sum(not len(vectors) for vectors in self.vectors.values()),
            "settings": {name: metadata[name] for name in SETTINGS},
            "held_out": self.held_out(),
            **{name: metadata[name] for name in ("fingerprint", "chat_template_sha256", "tokenizer_sha256")},
        }

    def held_out(self) -> dict[str, Any]:
        """Test if the sign transfers to held-out pairs: the share with a positive cosine, against chance.

        Returns:
            `num_pairs` with a cosine, `accuracy`, its exact 95% interval `ci95`, `mean_cos`, and the one-sided binomial
            `p`; None if no pair has a cosine. {} without pairs.
        """
        if (pairs := self.pairs) is None:
            return {}
        gram = PairGram(  # as in a run's `gram/pairs.safetensors`
            modules=tuple(pairs.hack),
            sizes=np.array([rows.shape[1] for rows in pairs.hack.values()]),
            pairs=pair_products(pairs).numpy(),
            held_out=pairs.held_out.numpy(),
            **extraction_settings(pairs, self),
        )
        if (transfer := sign_transfer(gram)) is None:
            return {"num_pairs": 0} | dict.fromkeys(("accuracy", "ci95", "mean_cos", "p"))
        return {
            "num_pairs": transfer.n,
            "accuracy": transfer.value,
            "ci95": [transfer.low, transfer.high],
            "mean_cos": transfer.parts["mean_cos"],
            "p": float(stats.binom.sf(transfer.parts["num_right"] - 1, transfer.n, 0.5)),
        }

    def __repr__(self) -> str:
        """Return one line, because vectors have thousands of numbers."""
        fingerprint, held_out = self.metadata["fingerprint"], self.held_out()
        n = held_out.get("num_pairs")
        known = f", right on {round(held_out['accuracy'] * n)} of {n} held-out pairs" if n else ""
        return (
            f"Direction({self.metadata['pairs']}, {fingerprint['basis']} of {fingerprint['model_id']}: "
            f"{self.num_directions()} directions in {len(self.vectors)} modules{known})"
        )


def _identity(directions: Directions) -> dict[str, Any]:
    """Return all metadata of directions except the model's name, which may be a path."""
    return directions.metadata | {"fingerprint": comparable(directions.metadata["fingerprint"])}


def extract(
    model: str | Path | Policy | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    pairs: str | Path | Sequence[Mapping[str, Any]] = "builtin",
    *,
    k: int = 4,
    basis: Basis = "svd",
    out: str | Path = DEFAULT_OUT,
    settings: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> Direction:
    """Extract the hack direction from pairs, in the gradients of a model; same result as `probe extract`.

    >>> policy = probe.load("organism")
    >>> direction = probe.extract(policy.model, policy.tokenizer, "builtin")
    >>> direction.save("v_hack")
    PosixPath('out/directions/v_hack.safetensors')

    Args:
        model: a name for `probe.load`, a policy from it, or a transformers causal model, which stays unchanged. Pair
            gradients are cached for names only, because a model in memory may have hooks.
        tokenizer: the tokenizer of a transformers model, with a chat template.
        pairs: a bundled name such as `builtin`, a file, or rows of `prompt`, `hack` and `clean`
            (`probe docs directions`); rows are stored in `out`/pairs.
        k: directions a module.
        basis: `svd` or `lora`.
        out: the folder of caches.
        settings: settings as for --set, {"intervention.extraction.tau": 0.1}.
        say: called with notes on the pairs.

    Raises:
        InputError: no such model, faulty pairs (all are listed), or fewer pairs than directions.
    """
    out, is_name = Path(out), isinstance(model, str | Path)
    named = {"intervention.extraction.pairs": store_rows(pairs, out / "pairs"), "intervention.extraction.k": k}
    named |= {"model.name": str(model)} if is_name else {}
    config = configure("replay", options={**settings, **named})
    return extracted(config, basis, out, say, None if is_name else as_policy(model, tokenizer))


def extracted(
    config: ReplayConfig, basis: Basis, out: Path, say: Callable[[str], None], policy: Policy | None = None
) -> Direction:
    """Return the direction of a replay with these settings, of which model, normaliser and extraction matter.

    A `policy` replaces the model of the settings. InputError as in `extract`.
    """
    extraction, model, cache = config.intervention.extraction, config.model, out / "cache"
    # Cheap checks come before the weights and their SVDs, which may take an hour.
    chat = policy or load_served_policy(str(model.name), model.template)
    check_pairs(chat, selected_pairs(extraction), extraction.k)
    # A model in memory may have hooks and changes that no cache key covers.
    of_gradients = cache if policy is None else None
    policy = policy or configured_policy(model, cache)
    frames, weights = configured_frames(policy, basis, model, cache), normaliser(config.objective)
    library = DirectionLibrary(policy, frames, extraction, weights, cache_dir=of_gradients, say=say)
    adapted = frames.adapted and asdict(frames.adapted)
    return Direction.of(library.v_hack, pairs=library.pair_gradients, adapted=adapted)
