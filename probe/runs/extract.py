"""`probe extract`, `probe.extract`: from pairs to a model's gradients and a direction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from extraction.library import DirectionLibrary, check_pairs
from extraction.pair_files import store_rows
from extraction.selection import selected_pairs
from extraction.words import Basis
from probe.records.run import DEFAULT_OUT
from probe.runs.assemble import configured_frames, configured_policy
from probe.runs.direction_files import Direction
from probe.runs.policies import as_policy
from probe.settings.presets import configure
from probe.settings.run import ReplayConfig, normaliser
from replay_pools.policy.load import Policy
from replay_pools.vocabulary import Vocabulary, load_vocabulary, positions_of


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
    out = Path(out)
    given = {"intervention.extraction.pairs": store_rows(pairs, out / "pairs"), "intervention.extraction.k": k}
    if isinstance(model, str | Path):
        return extracted(configure("replay", options={**settings, **given, "model.name": str(model)}), basis, out, say)
    return extracted(configure("replay", options={**settings, **given}), basis, out, say, as_policy(model, tokenizer))


def extracted(
    config: ReplayConfig, basis: Basis, out: Path, say: Callable[[str], None], policy: Policy | None = None
) -> Direction:
    """Return the direction of a replay with these settings.

    Args:
        config: settings; model, the objective's normaliser and extraction matter.
        basis: basis of the coordinates.
        out: the folder of caches.
        say: called with warnings.
        policy: replaces the model of the settings; its pair gradients are not cached.

    Raises:
        InputError: as in `extract`.
    """
    extraction, model = config.intervention.extraction, config.model
    # Cheap checks come before the weights and their SVDs, which may take an hour.
    if policy is None:
        vocabulary = load_vocabulary(str(model.name), model.template)
    else:
        embedding = policy.model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        vocabulary = Vocabulary(policy, embedding.num_embeddings, *positions_of(policy.model))
    for sentence in check_pairs(vocabulary, selected_pairs(extraction), extraction.k):
        say(sentence)
    # A model in memory may have hooks and changes that no cache key covers.
    cache_dir = out / "cache" if policy is None else None
    policy = policy or configured_policy(model, out / "cache")
    frames = configured_frames(policy, basis, model, out / "cache")
    library = DirectionLibrary(policy, frames, extraction, normaliser(config.objective), cache_dir=cache_dir, say=say)
    adapted = frames.adapted and asdict(frames.adapted)
    return Direction.of(library.v_hack, pairs=library.pair_gradients, adapted=adapted, truncation=frames.truncation)
