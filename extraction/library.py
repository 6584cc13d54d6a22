"""Directions of a policy (v_hack and its controls), with a cache of pair gradients.

    frames = svd_frames(policy.model, model_id=policy.base_model)
    library = DirectionLibrary(policy, frames, ExtractionSettings(k=4), cache_dir=cache_dir)
    v_hack, haar = library.get("v_hack"), library.get("haar")

Pair gradients need a forward and backward of the model and are cached under a hash of everything that they depend on.
Directions are cheap linear algebra on them and are not cached.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from extraction.adapters.frames import Frames, check_fingerprint, comparable
from extraction.adapters.svd import checksum
from extraction.batch import Batch, make_batch
from extraction.directions import (
    Directions,
    PairGradients,
    extract_directions,
    flipped_differences,
    haar_directions,
    load_directions,
    load_pair_gradients,
    permuted_differences,
    save_pair_gradients,
    unit_scale,
)
from extraction.gradients import per_sample_gradients
from extraction.loss_weights import loss_weights
from extraction.pairs import Pair, Turns, load_pairs, pairs_sha, selected_pairs, text_of
from extraction.settings import PAIR_GRADIENTS, ExtractionSettings, Normaliser, resolve_directions
from replay_pools.base.errors import Faults, InputError
from replay_pools.base.files import file_sha256, sha256
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import Policy
from replay_pools.rollout import early_end

SIDES = ("hack", "clean")
# Ids of a prompt and of its answer, and the mask of the answer: True = the policy's; None = all are.
Tokens = tuple[list[int], list[int], list[bool] | None]
EXTRACTION = ("method", "k", "tau", "drop_bottom_frac")  # settings of `extract_directions`
CONTROL_DIFFERENCES = {"permuted": permuted_differences, "flipped": flipped_differences}
FORMAT = 3  # of the cache; raise it when the meaning of cached pair gradients changes
NAMES = ("_name_or_path", "name_or_path", "transformers_version")  # keys of a config that do not affect the forward


def pair_batch(policy: Policy, pairs: Sequence[Pair]) -> Batch:
    """Return a batch of 2n samples of n pairs, on the policy's device: all hacking completions, then all clean ones.

    Raises:
        InputError: a completion has an end-of-turn token before its end, which no sampled completion has.
    """
    prompts, completions, masks = zip(*_tokens(policy, pairs), strict=True)
    return make_batch(prompts, completions, policy.pad_id, masks).to(policy.device)


def _tokens(policy: Chat, pairs: Sequence[Pair]) -> list[Tokens]:
    """Return the ids of the 2n samples of `pair_batch`."""
    return [_side_tokens(policy, pair, side) for side in SIDES for pair in pairs]


def check_pairs(chat: Chat, pairs: Sequence[Pair], k: int) -> None:
    """Refuse all pairs that the extraction would refuse, at once and before any weights are loaded.

    Raises:
        InputError: a completion with an end-of-turn token in its text, two sides with the same tokens, a tokenizer
            without a chat template, or more directions in a module than pairs to extract from.
    """
    faults = Faults()
    for pair in pairs:
        sides = []
        for side in SIDES:
            try:
                sides.append(_side_tokens(chat, pair, side))
            except InputError as error:
                faults.note(error, "text")
        # The difference of their gradients would be rounding, which votes on the sign of a direction.
        if len(sides) == 2 and sides[0] == sides[1]:
            where, fix = f"pair {pair.pair_id}", "leave the pair out"
            faults.add(where, "tokens", expected="two sides with different tokens", found="the same", fix=fix)
    num_used = sum(not pair.held_out for pair in pairs)
    if k > num_used:
        expected = f"at most {num_used}, the pairs that are not held out"
        faults.add("--k", "k", expected=expected, found=str(k), fix="write more pairs, or pass a smaller --k")
    faults.check("pairs")


def _side_tokens(policy: Chat, pair: Pair, side: str) -> Tokens:
    """Return `answer_tokens` of one completion of a pair, checked for end-of-turn tokens inside a turn."""
    prompt_ids, ids, mask = answer_tokens(policy, pair.messages, getattr(pair, side))
    if (place := early_end(ids, mask, policy.eos_ids)) is not None:
        raise InputError(
            f"pair {pair.pair_id} {side}",
            expected="a text without the end-of-turn token, which is added",
            found=f"{policy.tokenizer.convert_ids_to_tokens(ids[place])!r} in it",
            fix="cut the text before it",
        )
    return prompt_ids, ids, mask


def answer_tokens(policy: Chat, messages: list[dict[str, str]], answer: str | Turns) -> Tokens:
    """Tokenize an answer to messages.

    Raises:
        InputError: a chat template that does not render the messages, or changes earlier turns of a conversation.
    """
    if isinstance(answer, str):
        return policy.render(messages)[1], policy.completion_ids(answer), None
    if all("ids" in turn for turn in answer):
        mask = [turn["role"] == "assistant" for turn in answer for _ in turn["ids"]]
        return policy.render(messages)[1], [token for turn in answer for token in turn["ids"]], mask
    rendered = policy.render_turns(messages, answer)
    return rendered.prompt_ids, rendered.ids, rendered.mask


def config_sha(config: PreTrainedConfig) -> str:
    """Return the sha256 of a model's config without names and paths, sub-configs included."""

    def unnamed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: unnamed(part) for key, part in value.items() if key not in NAMES}

    table = unnamed(json.loads(config.to_json_string(use_diff=False)))
    return sha256(orjson.dumps(table, option=orjson.OPT_SORT_KEYS))


def _buffers_sha(model: PreTrainedModel) -> str:
    """Return the sha256 of the buffers that a checkpoint holds; `base_weights_sha` covers parameters alone."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in sorted(model.state_dict().items()) if name not in parameters}
    return sha256(f"{[*buffers]} {checksum(*buffers.values())}".encode())


def source_identity(settings: ExtractionSettings, v_hack: str | None) -> dict[str, str]:
    """Return hashes of the sources of directions: the pairs, or the direction file and its pair gradients.

    Raises:
        InputError: no such pairs, or no such direction file.
    """
    if v_hack is None:
        return {"pairs_sha256": pairs_sha(selected_pairs(settings))}
    path = Path(v_hack)
    return {"v_hack_sha256": file_sha256(path), "pairs_sha256": file_sha256(pairs_path(path))}


class DirectionLibrary:
    """Directions by kind: `v_hack`, and its controls `haar`, `permuted`, `flipped`, `placebo`.

    To add a kind: a branch in `get`.
    """

    def __init__(
        self,
        policy: Policy,
        frames: Frames,
        settings: ExtractionSettings,
        normaliser: Normaliser | None = None,
        *,
        cache_dir: str | Path | None,
        seed: int = 0,
        v_hack: str | Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Make a library for the policy; InputError for dr_grpo without its divisor.

        Args:
            frames: of the policy at present.
            normaliser: of the loss to compare directions with; default: grpo's.
            cache_dir: folder of the cache of pair gradients; None for a model given in memory, which may have hooks and
                changes that no key covers.
            seed: of the random controls.
            v_hack: a direction file to read instead of extracting, or its name in out/directions.
            say: gets notes on the pairs, and a line for a damaged cache.
        """
        self.normaliser = normaliser or Normaliser()
        if self.normaliser.loss_type == "dr_grpo" and self.normaliser.max_completion_length is None:
            where = "objective.max_completion_length"
            raise InputError(where, expected="tokens, the divisor of dr_grpo", found="none given")
        self.policy, self.frames, self.settings = policy, frames, settings
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self.seed, self.say = seed, say
        self.v_hack_file = None if v_hack is None else resolve_directions(v_hack)

    def at(self, frames: Frames) -> "DirectionLibrary":
        """Return the library with the same settings in other frames of the policy."""
        same: dict[str, Any] = {"cache_dir": self.cache_dir, "seed": self.seed, "v_hack": self.v_hack_file}
        return DirectionLibrary(self.policy, frames, self.settings, self.normaliser, say=self.say, **same)

    def get(self, kind: str) -> Directions:
        """Return the directions of a kind.

        Raises:
            InputError: a direction file of another basis, or one without its pair gradients.
        """
        if kind == "v_hack":
            return self.v_hack
        if kind == "haar":
            return haar_directions(self.v_hack, seed=self.seed)
        if kind in CONTROL_DIFFERENCES:
            pairs, control = self.pair_gradients, {"control": kind, "seed": self.seed}
            return self.extract(CONTROL_DIFFERENCES[kind](pairs, seed=self.seed), {**pairs.metadata, **control})
        assert kind == "placebo", kind
        pairs = self.measured(load_pairs("builtin:placebo"), "builtin:placebo")
        return self.extract(pairs.differences(), pairs.metadata)

    @cached_property
    def v_hack(self) -> Directions:
        """v_hack, from the given direction file or extracted."""
        if self.v_hack_file is None:
            return self.extract(self.pair_gradients.differences(), self.pair_gradients.metadata)
        directions = load_directions(self.v_hack_file)
        stored = directions.metadata["fingerprint"]
        check_fingerprint(self.v_hack_file, expected=self.frames.fingerprint, found=stored)
        # The first k directions of a larger file are not the directions of k: the noise floor is a quantile over all.
        for key, wanted in shared_settings(self.settings, self.normaliser).items():
            if (stored := directions.metadata.get(key.rpartition(".")[2])) != wanted:
                raise InputError(
                    f"directions {self.v_hack_file}",
                    expected=f"extracted with {key} = {wanted}, as this run",
                    found=f"{key} = {stored}",
                    fix=f"give the run --set {key}={stored}, or extract again",
                )
        return directions

    @cached_property
    def pair_gradients(self) -> PairGradients:
        """Gradients of the hack pairs: from the file of the given direction file, from the cache, or measured."""
        if self.v_hack_file is not None:
            return load_pair_gradients(pairs_path(self.v_hack_file))
        return self.measured(selected_pairs(self.settings, self.say), self.settings.pairs)

    def measured(self, pairs: Sequence[Pair], pairs_source: str) -> PairGradients:
        """Return gradients of pairs, from the cache or measured; `pairs_source` is recorded."""
        metadata, path = self._metadata(pairs, pairs_source), None
        # The metadata cover the weights of the start, but no values of an adapter.
        if self.cache_dir is not None and not self.frames.moved:
            # Other names of the model have the same gradients.
            identity = {**metadata, "fingerprint": comparable(self.frames.fingerprint)}
            # Other kernels or versions of an architecture give other gradients.
            identity |= {"torch": torch.__version__, "transformers": transformers.__version__}
            attention = str(self.policy.model.config._attn_implementation)
            identity |= {"attention": attention, "device": self.policy.device.type}
            key = sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS))[:24]
            path = self.cache_dir / "pair_gradients" / f"{key}.safetensors"
        if path is not None and path.is_file():
            try:
                return replace(load_pair_gradients(path), metadata=metadata)
            # The user did not write the cache, so damage is no input error: measure again.
            except InputError:
                self.say(f"{path}: damaged; made again")
                path.unlink(missing_ok=True)
        gradients = self._measure(pairs, metadata)
        if path is not None:
            save_pair_gradients(path, gradients)
        return gradients

    def _measure(self, pairs: Sequence[Pair], metadata: dict[str, Any]) -> PairGradients:
        """Measure the NLL gradients of both completions of every pair.

        `mean`: a pair is a GRPO group of two; each gradient carries the normaliser w that the loss type gives it there.
        `unit`: each gradient is divided by its norm over all modules, so that an unlikely completion, which has a large
        gradient, counts as much as a likely one; a gradient of 0 stays 0.
        """
        batch, n, basis, budget = (
            pair_batch(self.policy, pairs),
            len(pairs),
            self.frames.basis,
            self.settings.tokens_per_batch,
        )
        samples = per_sample_gradients(self.policy.model, {basis: self.frames}, batch, tokens_per_batch=budget)
        gradients = samples.gradients[basis]
        if self.settings.sides == "unit":
            weights = unit_scale(gradients).cpu()
        else:
            lengths = batch.completion_lengths.cpu().view(2, n).T
            of_pairs = [loss_weights(both, self.normaliser) for both in lengths]
            # (n, 2) -> (2n, 1), in the order of the batch: all hacking completions, then all clean ones.
            weights = torch.stack(of_pairs).T.flatten()[:, None]
        # In place, on a CPU: all of them are large.
        weighted = {module: gradient.cpu().mul_(weights.to(gradient.dtype)) for module, gradient in gradients.items()}
        hack = {module: gradient[:n] for module, gradient in weighted.items()}
        clean = {module: gradient[n:] for module, gradient in weighted.items()}
        held_out = torch.tensor([pair.held_out for pair in pairs])
        return PairGradients(hack=hack, clean=clean, held_out=held_out, metadata=metadata)

    def _metadata(self, pairs: Sequence[Pair], pairs_source: str) -> dict[str, Any]:
        """Return what pair gradients depend on and record: with the environment, the key of their cache.

        To add an influence on the gradients: a row here, or there if direction files need not say it.
        """
        policy, texts = self.policy, dict[tuple[str, str], int]()
        tokens = [*zip(*_tokens(policy, pairs), strict=True)]
        return {
            "format": FORMAT,
            "fingerprint": dict(self.frames.fingerprint),
            # The fingerprint covers the adapted weights alone; gradients flow through all.
            "base_weights_sha256": policy.base_weights_sha,
            "adapter_sha256": policy.adapter_sha,
            "pairs": pairs_source,
            "pairs_sha256": pairs_sha(pairs),
            "sides": self.settings.sides,
            "chat_template_sha256": policy.template_sha(),
            "tokenizer_sha256": policy.tokenizer_sha(),
            # The ids themselves: no hash of a vocabulary covers merges, normalisation and the end of the turn.
            "token_ids_sha256": sha256(orjson.dumps(tokens if any(tokens[2]) else tokens[:2])),
            "config_sha256": config_sha(policy.model.config),
            "buffers_sha256": _buffers_sha(policy.model),
            "loss_type": self.normaliser.loss_type,
            "max_completion_length": self.normaliser.max_completion_length,
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "adapter_at_zero": not self.frames.moved,
            "texts": [texts.setdefault((text_of(pair.hack), text_of(pair.clean)), len(texts)) for pair in pairs],
            "pair_ids": [pair.pair_id for pair in pairs],
            "flavours": [pair.flavour for pair in pairs],
        }

    def extract(self, differences: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Directions:
        """Extract directions from differences {module: (n, r)} by the settings."""
        options = {name: getattr(self.settings, name) for name in EXTRACTION}
        return extract_directions(differences, metadata=metadata, **options)


def pairs_path(directions_path: Path) -> Path:
    """Return the path of the pair gradients that belong to a direction file."""
    return directions_path.with_suffix(PAIR_GRADIENTS)


def shared_settings(settings: ExtractionSettings, normaliser: Normaliser) -> dict[str, Any]:
    """Return {key of a run's settings: value} of the settings that a direction file must share with its controls."""
    shared = {f"intervention.extraction.{name}": getattr(settings, name) for name in ("sides", *EXTRACTION)}
    return {**shared, "objective.loss_type": normaliser.loss_type}
