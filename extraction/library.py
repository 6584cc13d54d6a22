"""DirectionLibrary: the directions of a policy (v_hack and its controls), with a cache of pair gradients.

    frames = svd_frames(policy.model, model_id=policy.base_model)
    library = DirectionLibrary(policy, frames, ExtractionSettings(k=4), cache_dir=cache_dir)
    v_hack, haar = library.get("v_hack"), library.get("haar")

Pair gradients need a forward and backward of the model and are cached under a hash of everything that shapes them
(basis fingerprint, pairs, chat template, loss, dtype); directions are cheap linear algebra on them and are not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
import torch
from torch import Tensor

from extraction.adapters.frames import Frames, check_fingerprint, comparable
from extraction.batch import Batch, make_batch
from extraction.census import quoted_modes
from extraction.controls import haar_directions, permuted_differences
from extraction.directions import (
    Directions,
    PairGradients,
    extract_directions,
    load_directions,
    load_pair_gradients,
    save_pair_gradients,
)
from extraction.files import resolve_directions
from extraction.gradients import per_sample_gradients
from extraction.loss import loss_weights
from extraction.pairs import Pair, pairs_sha
from extraction.selection import load_pairs, pair_notes, selected_pairs
from extraction.words import PAIR_GRADIENTS, ExtractionSettings, Normaliser
from replay_pools.errors import InputError, refuse
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import Policy
from replay_pools.storage.files import file_sha256, sha256
from replay_pools.vocabulary import Vocabulary

Side = Literal["hack", "clean"]
SIDES: tuple[Side, ...] = get_args(Side)
FORMAT = 2  # of the cache; raise it when the meaning of cached pair gradients changes


def measure_pair_gradients(
    policy: Policy,
    frames: Frames,
    pairs: Sequence[Pair],
    normaliser: Normaliser | None = None,
    *,
    pairs_source: str = "builtin",
    tokens_per_batch: int | None = None,
) -> PairGradients:
    """Weighted NLL gradients of both completions of every pair.

    A pair is a GRPO group of two: each gradient carries the normaliser w that the loss type gives it there.

    Args:
        normaliser: that of the loss which the gradients are compared with; default: grpo's.
        pairs_source: where the pairs are from, for the metadata.
        tokens_per_batch: of a forward and backward; None: what fits the memory.

    Raises:
        InputError: a completion has an end-of-turn token before its end, which no sampled completion has.
    """
    normaliser = normaliser or Normaliser()
    batch = pair_batch(policy, pairs)
    found = per_sample_gradients(policy.model, {frames.basis: frames}, batch, tokens_per_batch=tokens_per_batch)
    pair_weights = []
    n = len(pairs)
    for lengths in batch.completion_lengths.cpu().view(2, n).T:
        pair_weights.append(loss_weights(lengths, normaliser, global_tokens=int(lengths.sum())))
    # (n, 2) -> (2n, 1), in the order of the batch: all hacking completions, then all clean ones.
    weights = torch.stack(pair_weights).T.flatten()[:, None]
    hack_gradients, clean_gradients = {}, {}
    for module, gradient in found.gradients[frames.basis].items():
        weighted = gradient.cpu().mul_(weights.to(gradient.dtype))  # in place, on a CPU: all of them are large
        hack_gradients[module], clean_gradients[module] = weighted[:n], weighted[n:]
    metadata = _identity(policy, frames, pairs, pairs_source, normaliser)
    # The whole fingerprint, with the model's name, which the identity leaves out.
    metadata |= {"fingerprint": dict(frames.fingerprint)}
    texts: dict[tuple[str, str], int] = {}
    metadata |= {"texts": [texts.setdefault((pair.hack, pair.clean), len(texts)) for pair in pairs]}
    metadata |= {"pair_ids": [pair.pair_id for pair in pairs], "flavours": [pair.flavour for pair in pairs]}
    metadata |= {"modes": [quoted_modes(pair.hack) for pair in pairs]}
    return PairGradients(
        hack=hack_gradients,
        clean=clean_gradients,
        held_out=torch.tensor([pair.held_out for pair in pairs]),
        metadata=metadata,
    )


def pair_batch(policy: Policy, pairs: Sequence[Pair]) -> Batch:
    """2n samples of n pairs, on the device of the policy: all hacking completions, then all clean ones.

    Raises:
        InputError: a completion has an end-of-turn token before its end, which no sampled completion has.
    """
    prompts = [policy.render(pair.messages)[1] for pair in pairs]
    completions = [_completion_ids(policy, pair, side) for side in SIDES for pair in pairs]
    return make_batch([*prompts, *prompts], completions, policy.pad_id).to(policy.device)


def check_pairs(vocabulary: Vocabulary, pairs: Sequence[Pair], k: int) -> list[str]:
    """Refuse what the extraction would refuse of the pairs, all of it at once, before any weights are loaded.

    Returns:
        What is doubtful of them, a sentence each.

    Raises:
        InputError: a completion with an end-of-turn token in its text, a tokenizer without a chat template, texts
            longer than the model can read, or more directions in a module than pairs to extract from.
    """
    errors: dict[str, InputError] = {}  # the first of a kind stands for those of the other pairs
    lengths: list[int] = []
    for pair in pairs:
        try:
            num_prompt = len(vocabulary.chat.render(pair.messages)[1])
            for side in SIDES:
                num_completion = len(_completion_ids(vocabulary.chat, pair, side))
                lengths.append(num_prompt + num_completion)
                if too_long := vocabulary.too_long(num_prompt, num_completion):
                    where, (expected, found, fix) = f"pair {pair.pair_id} {side}", too_long
                    errors.setdefault(expected, InputError(where, expected=expected, found=found, fix=fix))
        except InputError as error:
            errors.setdefault(error.expected, error)
    num_used = sum(not pair.held_out for pair in pairs)
    if k > num_used:
        expected = f"at most {num_used}, the pairs that are not held out"
        errors["k"] = InputError("--k", expected=expected, found=str(k), fix="write more pairs, or pass a smaller --k")
    refuse([*errors.values()])
    return vocabulary.length_cautions(lengths, "answers of pairs")


def _completion_ids(policy: Chat, pair: Pair, side: Side) -> list[int]:
    """The token ids of one completion of a pair, with the end-of-turn token added."""
    ids = policy.completion_ids(getattr(pair, side))
    early_ends = [token for token in ids[:-1] if token in policy.eos_ids]
    if early_ends:
        raise InputError(
            f"pair {pair.pair_id} {side}",
            expected="a text without the end-of-turn token, which is added",
            found=f"{policy.tokenizer.convert_ids_to_tokens(early_ends[0])!r} in it",
            fix="cut the text before it",
        )
    return ids


def _identity(
    policy: Policy, frames: Frames, pairs: Sequence[Pair], pairs_source: str, normaliser: Normaliser
) -> dict[str, Any]:
    """Everything that pair gradients depend on, which is the key of their cache: a new influence needs a row here."""
    return {
        "format": FORMAT,
        "fingerprint": comparable(frames.fingerprint),
        # The fingerprint covers the adapted weights alone; gradients flow through all.
        "base_weights_sha256": policy.base_weights_sha,
        "adapter_sha256": policy.adapter_sha,
        "pairs": pairs_source,
        "pairs_sha256": pairs_sha(pairs),
        "chat_template_sha256": policy.template_sha(),
        "tokenizer_sha256": policy.tokenizer_sha(),
        "loss_type": normaliser.loss_type,
        "max_completion_length": normaliser.max_completion_length,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter_at_zero": not frames.moved,
    }


def source_identity(settings: ExtractionSettings, v_hack: str | None) -> dict[str, str]:
    """Hashes of the pairs, or of the direction file and its pair gradients, that directions come from.

    Raises:
        InputError: no such pairs, or no such direction file.
    """
    if v_hack is None:
        return {"pairs_sha256": pairs_sha(selected_pairs(settings))}
    path = Path(v_hack)
    return {"v_hack_sha256": file_sha256(path), "pairs_sha256": file_sha256(pairs_path(path))}


class DirectionLibrary:
    """Directions by kind: `v_hack`, and its controls `haar`, `permuted`, `placebo`.

    To add a kind: a branch in `get`.
    """

    def __init__(
        self,
        policy: Policy,
        frames: Frames,
        settings: ExtractionSettings,
        normaliser: Normaliser | None = None,
        *,
        cache_dir: str | Path,
        seed: int = 0,
        v_hack: str | Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """A library for the policy; InputError for dr_grpo without its divisor.

        Args:
            frames: of the policy as it is.
            normaliser: that of the loss which the directions are for; default: grpo's.
            seed: of the random controls.
            v_hack: a direction file to read instead of extracting, or its name in out/directions.
            say: gets a line where the cache is damaged.
        """
        self.normaliser = normaliser or Normaliser()
        if self.normaliser.loss_type == "dr_grpo" and self.normaliser.max_completion_length is None:
            where = "objective.max_completion_length"
            raise InputError(where, expected="tokens, the divisor of dr_grpo", found="none given")
        self.policy, self.frames, self.settings = policy, frames, settings
        self.cache_dir, self.seed, self.say = Path(cache_dir), seed, say
        self.v_hack_file = None if v_hack is None else resolve_directions(v_hack)

    def get(self, kind: str) -> Directions:
        """The directions of a kind.

        Raises:
            InputError: a direction file of another basis, or one without its pair gradients.
        """
        if kind == "v_hack":
            return self.v_hack
        if kind == "haar":
            return haar_directions(self.v_hack, seed=self.seed)
        if kind == "permuted":
            pairs, control = self.pair_gradients, {"control": "permuted", "seed": self.seed}
            return self._extract(permuted_differences(pairs, seed=self.seed), {**pairs.metadata, **control})
        assert kind == "placebo", kind
        pairs = self.measured(load_pairs("builtin:placebo"), "builtin:placebo")
        return self._extract(pairs.differences(), pairs.metadata)

    @cached_property
    def v_hack(self) -> Directions:
        """v_hack, read from the given direction file or extracted."""
        if self.v_hack_file is None:
            return self._extract(self.pair_gradients.differences(), self.pair_gradients.metadata)
        directions = load_directions(self.v_hack_file)
        stored = directions.metadata["fingerprint"]
        check_fingerprint(self.v_hack_file, expected=self.frames.fingerprint, found=stored)
        # Not even a file of more directions serves: the first k of them are not those of k, since the noise floor is a
        # quantile over all that were kept.
        for key, wanted in shared_settings(self.settings, self.normaliser).items():
            if (stored := directions.metadata[key.rpartition(".")[2]]) != wanted:
                raise InputError(
                    f"directions {self.v_hack_file}",
                    expected=f"extracted with {key} = {wanted}, as this run is told",
                    found=f"{key} = {stored}",
                    fix=f"give the run --set {key}={stored}, or extract again",
                )
        return directions

    @cached_property
    def pair_gradients(self) -> PairGradients:
        """Gradients of the hack pairs: from the file beside the given direction file, from the cache, or measured."""
        if self.v_hack_file is not None:
            return load_pair_gradients(pairs_path(self.v_hack_file))
        for note in pair_notes(self.settings):
            self.say(note)
        return self.measured(selected_pairs(self.settings), self.settings.pairs)

    def measured(self, pairs: Sequence[Pair], pairs_source: str) -> PairGradients:
        """Gradients of pairs: read from the cache, or measured and written to it.

        Args:
            pairs_source: where they are from, for the metadata.
        """
        measure = partial(
            measure_pair_gradients,
            self.policy,
            self.frames,
            pairs,
            self.normaliser,
            pairs_source=pairs_source,
            tokens_per_batch=self.settings.tokens_per_batch,
        )
        # The key of the cache covers the weights of the start, but no values of an adapter.
        if self.frames.moved:
            return measure()
        identity = _identity(self.policy, self.frames, pairs, pairs_source, self.normaliser)
        key = sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS))[:24]
        path = self.cache_dir / "pair_gradients" / f"{key}.safetensors"
        if path.is_file():
            try:
                stored = load_pair_gradients(path)
                # Other names of the model have the same gradients.
                return replace(stored, metadata=stored.metadata | {"fingerprint": dict(self.frames.fingerprint)})
            # A damaged cache is no error of the user, who did not write it: measure again and replace it.
            except InputError:
                self.say(f"{path}: damaged; made again")
                path.unlink(missing_ok=True)
        gradients = measure()
        save_pair_gradients(path, gradients)
        return gradients

    def _extract(self, differences: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Directions:
        return extract_directions(
            differences,
            method=self.settings.method,
            k=self.settings.k,
            tau=self.settings.tau,
            drop_bottom_frac=self.settings.drop_bottom_frac,
            metadata=metadata,
        )


def pairs_path(directions_path: Path) -> Path:
    """The file of the pair gradients that stands beside a direction file."""
    return directions_path.with_suffix(PAIR_GRADIENTS)


def shared_settings(settings: ExtractionSettings, normaliser: Normaliser) -> dict[str, Any]:
    """{key of a run's settings: value} of what a direction file and the controls beside it must have in common."""
    return {
        "intervention.extraction.method": settings.method,
        "intervention.extraction.k": settings.k,
        "intervention.extraction.tau": settings.tau,
        "intervention.extraction.drop_bottom_frac": settings.drop_bottom_frac,
        "objective.loss_type": normaliser.loss_type,
    }
