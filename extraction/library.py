"""DirectionLibrary: the directions of every kind for one adapted policy, extracted once and cached by content.

Pair gradients are cached under a hash of everything that shapes them (basis fingerprint, pairs, chat template, loss,
dtype); directions are cheap linear algebra on them. The library says what it did through `say`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
import torch
from torch import Tensor

from extraction.adapters.coordinates import Coordinates, attach, check_fingerprint
from extraction.adapters.interface import comparable
from extraction.batch import make_batch
from extraction.controls import haar_directions, permuted_directions
from extraction.directions import (
    Directions,
    PairGradients,
    extract_directions,
    load_directions,
    load_pair_gradients,
    save_pair_gradients,
)
from extraction.gradients import per_sample_gradients
from extraction.loss import loss_weights
from extraction.pairs import Pair, load_pairs, pairs_sha
from extraction.vocabulary import Basis, LossType, Storage
from replay_pools.errors import InputError
from replay_pools.files import by_name, sha256
from replay_pools.policy import Policy

SHARED_WITH_CONTROLS = ("k", "tau", "drop_bottom_frac", "loss_type")  # of a direction file and of its controls
FORMAT = 1  # raise it when the meaning of cached pair gradients changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionSettings:
    """How directions are extracted; recorded in every direction file."""

    pairs: str = "builtin"  # see extraction.pairs.load_pairs
    k: int = 4
    tau: float = 0.0
    drop_bottom_frac: float = 0.25
    loss_type: LossType = "grpo"  # the normaliser of the pair gradients: that of the live loss
    max_completion_length: int | None = None
    tokens_per_batch: int | None = None  # of a forward and backward; None: what fits the memory


def measure_pair_gradients(
    policy: Policy, coordinates: Coordinates, pairs: Sequence[Pair], settings: ExtractionSettings
) -> PairGradients:
    """Weighted NLL gradients of both completions of every pair, `tokens_per_batch` tokens at a time.

    The pair is a GRPO group of two: each gradient carries the normaliser w that `loss_type` gives it there.

    Raises:
        InputError: a completion goes on behind the end of its turn, which no sampled one does.
    """
    prompts = [policy.render(pair.messages)[1] for pair in pairs]
    hack, clean = ([_written(policy, pair, side) for pair in pairs] for side in ("hack", "clean"))
    batch = make_batch([*prompts, *prompts], [*hack, *clean], policy.pad_id).to(policy.device)
    unit = per_sample_gradients(coordinates, batch, tokens_per_batch=settings.tokens_per_batch).gradients
    weights = torch.stack([_pair_weights(len(h), len(c), settings) for h, c in zip(hack, clean, strict=True)])
    weighted = {m: g.cpu() * weights.T.flatten()[:, None].to(g.dtype) for m, g in unit.items()}
    n = len(pairs)
    return PairGradients(
        hack={module: g[:n].clone() for module, g in weighted.items()},
        clean={module: g[n:].clone() for module, g in weighted.items()},
        held_out=torch.tensor([pair.held_out for pair in pairs]),
        metadata=_identity(policy, coordinates, pairs, settings)
        | {"fingerprint": coordinates.fingerprint(), "pair_ids": [pair.pair_id for pair in pairs]},
    )


def _written(policy: Policy, pair: Pair, side: Literal["hack", "clean"]) -> list[int]:
    """The ids of one completion of a pair."""
    ids = policy.completion_ids(getattr(pair, side))
    if ends := [i for i in ids[:-1] if i in policy.eos_ids]:
        found = f"{policy.tokenizer.convert_ids_to_tokens(ends[0])!r} in it"
        expected = "a text without the end-of-turn token, which is added"
        raise InputError(f"pair {pair.pair_id} {side}", expected=expected, found=found, fix="cut the text before it")
    return ids


def _pair_weights(hack_length: int, clean_length: int, settings: ExtractionSettings) -> Tensor:
    return loss_weights(
        torch.tensor([hack_length, clean_length]),
        loss_type=settings.loss_type,
        max_completion_length=settings.max_completion_length,
        global_tokens=hack_length + clean_length,
    )


def _identity(
    policy: Policy, coordinates: Coordinates, pairs: Sequence[Pair], settings: ExtractionSettings
) -> dict[str, Any]:
    """Everything that pair gradients depend on."""
    return {
        "format": FORMAT,
        "fingerprint": comparable(coordinates.fingerprint()),
        "pairs": settings.pairs,
        "pairs_sha256": pairs_sha(pairs),
        "chat_template_sha256": policy.template_sha(),
        "tokenizer_sha256": policy.tokenizer_sha(),
        "loss_type": settings.loss_type,
        "max_completion_length": settings.max_completion_length,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter_at_zero": coordinates.is_zero(),
    }


def source_identity(settings: ExtractionSettings, v_hack: str | None) -> dict[str, str]:
    """What directions are made from, by content: a path alone would not tell that its file has changed.

    Raises:
        InputError: no such pairs, or no such direction file.
    """
    if v_hack is None:
        return {"pairs_sha256": pairs_sha(load_pairs(settings.pairs))}
    path = Path(v_hack)
    return {"v_hack_sha256": _file_sha(path), "pairs_sha256": _file_sha(pairs_path(path))}


def _file_sha(path: Path) -> str:
    if not path.is_file():
        raise InputError(path, expected="a file of probe extract", found="no such file", fix="run probe extract")
    return sha256(path.read_bytes())


class DirectionLibrary:
    """Directions by kind: `v_hack`, `haar`, `permuted`, `placebo`."""

    def __init__(
        self,
        policy: Policy,
        coordinates: Coordinates,
        settings: ExtractionSettings,
        *,
        cache_dir: Path,
        seed: int = 0,
        v_hack: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`v_hack` is a direction file to use instead of extracting; `seed` is that of the random controls.

        Raises:
            InputError: dr_grpo without its divisor.
        """
        if settings.loss_type == "dr_grpo" and settings.max_completion_length is None:
            raise InputError("--max-completion-length", expected="tokens, the divisor of dr_grpo", found="none given")
        self.policy, self.coordinates, self.settings = policy, coordinates, settings
        self.cache_dir, self.seed, self.v_hack_file, self.say = cache_dir, seed, v_hack, say
        self.cache_misses = 0  # sources of pairs whose gradients the cache did not hold, so that they were measured

    def get(self, kind: str) -> Directions:
        """The directions of a kind.

        Raises:
            InputError: unknown kind, a direction file of another basis, or one without its pair gradients.
        """
        makers: dict[str, Callable[[], Directions]] = {
            "v_hack": lambda: self.v_hack,
            "haar": lambda: haar_directions(self.v_hack, seed=self.seed),
            "permuted": self._permuted,
            "placebo": self._placebo,
        }
        if kind not in makers:
            raise InputError("directions", expected=f"one of {', '.join(makers)}", found=repr(kind))
        return makers[kind]()

    @cached_property
    def v_hack(self) -> Directions:
        """v_hack: read from the given file, or extracted."""
        if self.v_hack_file is None:
            return self._extract(self.pair_gradients)
        directions = load_directions(self.v_hack_file)
        found = directions.metadata["fingerprint"]
        check_fingerprint(self.v_hack_file, expected=self.coordinates.fingerprint(), found=found)
        _check_settings(self.v_hack_file, directions.metadata, self.settings)
        return directions

    @cached_property
    def pair_gradients(self) -> PairGradients:
        """The gradients of the hack pairs: from beside the direction file, from the cache, or measured."""
        if self.v_hack_file is not None:
            return load_pair_gradients(pairs_path(self.v_hack_file))
        return self.measured(self.settings.pairs)

    def measured(self, pairs_source: str) -> PairGradients:
        """Pair gradients of any pairs source; through the cache where the adapter is at zero."""
        pairs = load_pairs(pairs_source)
        if not self.coordinates.is_zero():  # a policy that has moved is met once
            return measure_pair_gradients(self.policy, self.coordinates, pairs, self.settings)
        identity = _identity(self.policy, self.coordinates, pairs, self.settings)
        key = sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS))[:24]
        path = self.cache_dir / "pair_gradients" / f"{key}.safetensors"
        if path.is_file():
            try:
                gradients = load_pair_gradients(path)
            except InputError as error:  # ours to repair: nobody wrote a cache by hand
                self.say(f"measured again: {error}")
            else:
                self.say(f"pair gradients of {pairs_source} ({self.coordinates.basis}): cached in {path}")
                return gradients
        gradients = measure_pair_gradients(self.policy, self.coordinates, pairs, self.settings)
        save_pair_gradients(path, gradients)
        self.cache_misses += 1
        self.say(f"pair gradients of {pairs_source} ({self.coordinates.basis}): {len(pairs)} pairs, now in {path}")
        return gradients

    def _extract(self, pairs: PairGradients) -> Directions:
        s = self.settings
        return extract_directions(
            pairs.differences(), k=s.k, tau=s.tau, drop_bottom_frac=s.drop_bottom_frac, metadata=pairs.metadata
        )

    def _permuted(self) -> Directions:
        s = self.settings
        return permuted_directions(
            self.pair_gradients,
            k=s.k,
            tau=s.tau,
            drop_bottom_frac=s.drop_bottom_frac,
            seed=self.seed,
            metadata=self.pair_gradients.metadata,
        )

    def _placebo(self) -> Directions:
        return self._extract(self.measured("builtin:placebo"))


def attach_basis(
    policy: Policy,
    basis: Basis,
    *,
    cache_dir: Path,
    lora_rank: int | None = None,
    svd_rank: int | None = None,
    svd_storage: Storage = "float32",
) -> Coordinates:
    """Adapt the policy in place, with the options of the basis and the defaults of `attach`.

    LoRA keeps A frozen, so that a direction keeps its meaning while B is trained.
    """
    shared = {"model_id": policy.base_model, "cache_dir": cache_dir / "svd"}
    if basis == "lora":
        return attach(policy.model, basis=basis, rank=lora_rank, train_a=False, **shared)
    return attach(policy.model, basis=basis, rank=svd_rank, storage=svd_storage, **shared)


def resolve_directions(file: Path, out_dir: Path) -> Path:
    """A direction file: a path, or else the name of one in `out_dir`/directions."""
    return by_name(file, out_dir / "directions" / f"{file.name}.safetensors")


def pairs_path(directions_path: Path) -> Path:
    """Where the pair gradients of a direction file are."""
    return directions_path.with_suffix(".pairs.safetensors")


def _check_settings(path: Path, metadata: Mapping[str, Any], settings: ExtractionSettings) -> None:
    """InputError where a direction file was extracted otherwise than the controls beside it would be.

    Nor are the first k of more directions those of k: the noise floor is a share of all that were kept.
    """
    for name in SHARED_WITH_CONTROLS:
        wanted, found = getattr(settings, name), metadata[name]
        if found != wanted:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"directions {path}",
                expected=f"extracted with {option} {wanted}, as this run is told",
                found=f"{option} {found}",
                fix=f"give the run {option} {found}, or extract again",
            )
