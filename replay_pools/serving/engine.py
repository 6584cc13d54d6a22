"""ServerEngine: samples through a server, and the checks that it serves the policy whose tokenizer is at hand."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from replay_pools.chat import Chat
from replay_pools.errors import InputError
from replay_pools.rollout import Completion, Sampler
from replay_pools.serving.connection import Connection, Wire
from replay_pools.serving.dialects import DIALECTS, Dialect, ServedModel
from replay_pools.serving.endpoint import Endpoint
from replay_pools.serving.law import LogprobLaw, is_law_of, measure_law

MODELS_PATH = "/v1/models"
TOKENIZE_PATH = "/tokenize"
PROBE = "def f(x):\n\treturn [x, 12345]  # na\u00efve \u4e2d\u6587 \U0001f600"  # spaces, digits, bytes beyond ASCII
SEED_BITS = 31  # what every server takes


class _Card(Wire):
    id: str
    owned_by: str
    parent: str | None = None  # of an adapter: its base model


class _Models(Wire):
    data: list[_Card]


class _Version(Wire):
    version: str


class _Tokens(Wire):
    tokens: list[int]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEngine:
    """Sampling from a served model; made by `connect`."""

    chat: Chat
    endpoint: Endpoint
    version: str  # of the server
    law: LogprobLaw  # of the log-probabilities that it reports

    def sample(
        self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int, rows: Sequence[int] | None = None
    ) -> list[Completion]:
        """One completion a prompt, all in flight together; every one has a seed of its own, drawn from `seed`.

        The same seed gives the same completions as far as the server computes the same whatever else is in its batch.
        Log-probabilities of another law than the sampler's are dropped, not mislabelled.

        Raises:
            InputError: a request fails, or a completion is not what was asked for.
        """
        draw = random.Random(seed)
        seeds = [draw.getrandbits(SEED_BITS) for _ in prompts]
        rows = range(len(prompts)) if rows is None else rows
        completions = self.endpoint.sample([prompts[row] for row in rows], sampler, [seeds[row] for row in rows])
        if is_law_of(self.law, sampler):
            return completions
        return [replace(completion, logprobs=None) for completion in completions]

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Server, version and model. Not the URL: a pool is not another one for the port that it was sampled at."""
        model = self.endpoint.model
        policy = {"base_model": self.chat.base_model, "adapter": model.name if model.is_adapter else None}
        return {
            "policy": {**policy, "base_weights_sha256": None, "dtype": None},  # a server tells neither
            "engine": {
                "kind": "server",
                "server": self.endpoint.dialect.name,
                "version": self.version,
                "model": model.name,
                "logprobs_law": self.law,
                "logprobs_recorded": is_law_of(self.law, sampler),
            },
        }

    def adapters(self) -> set[str]:
        """The names of the adapters that the server has loaded."""
        return {card.id for card in _models(self.endpoint.connection) if card.parent is not None}

    def with_adapter(self, name: str, directory: Path) -> "ServerEngine":
        """Load a peft directory under a name, unless the name is loaded; the engine that samples with it.

        Raises:
            InputError: the server takes no adapters, not this one, or does not see the directory.
        """
        dialect, connection = self.endpoint.dialect, self.endpoint.connection
        if name not in self.adapters():
            body = {"lora_name": name, "lora_path": str(directory.resolve())}
            fix = f"{dialect.adapters_fix}, on a machine that sees {body['lora_path']}"
            connection.send(dialect.load_path, body, fix=fix)
        return replace(self, endpoint=replace(self.endpoint, model=ServedModel(name, is_adapter=True)))

    def unload(self, name: str) -> None:
        """Make the server forget an adapter."""
        dialect = self.endpoint.dialect
        self.endpoint.connection.send(dialect.unload_path, {"lora_name": name}, fix=dialect.adapters_fix)


def connect(connection: Connection, chat: Chat, *, served_model: str | None = None) -> ServerEngine:
    """The engine of a served model, after it has shown that it speaks the ids of `chat`.

    Args:
        served_model: its name on the server (an adapter's does as well); None where there is one base model.

    Raises:
        InputError: no such model, a server of another kind, another tokenizer, or no token ids and log-probabilities.
    """
    card, dialect = _choose(connection, served_model)
    version = connection.ask(dialect.version_path, _Version).version
    prompt = _check_tokenizer(connection, chat, card.id)
    model = ServedModel(card.id, is_adapter=card.parent is not None)
    endpoint = Endpoint(connection=connection, dialect=dialect, model=model, eos_ids=chat.eos_ids)
    return ServerEngine(chat=chat, endpoint=endpoint, version=version, law=measure_law(endpoint, prompt))


def _models(connection: Connection) -> list[_Card]:
    return connection.ask(MODELS_PATH, _Models).data


def _choose(connection: Connection, served_model: str | None) -> tuple[_Card, Dialect]:
    """The model of that name, or the one base model there is; and how its server is spoken to."""
    cards = _models(connection)
    wanted = [card for card in cards if (card.parent is None if served_model is None else card.id == served_model)]
    if len(wanted) != 1:
        expected = "one base model" if served_model is None else f"a model {served_model}"
        found = ", ".join(card.id for card in cards) or "no model"
        raise InputError(connection.at(MODELS_PATH), expected=expected, found=found, fix="name it with --served-model")
    if wanted[0].owned_by not in DIALECTS:
        found = f"owned_by {wanted[0].owned_by!r}"
        raise InputError(connection.at(MODELS_PATH), expected=f"a server out of {', '.join(DIALECTS)}", found=found)
    return wanted[0], DIALECTS[wanted[0].owned_by]


def _check_tokenizer(connection: Connection, chat: Chat, model: str) -> list[int]:
    """The ids of a rendered prompt, which the server must make of its text as well."""
    text, ids = chat.render([{"role": "user", "content": PROBE}])
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    found = connection.ask(TOKENIZE_PATH, _Tokens, body).tokens
    if found != ids:
        first = next((i for i, (a, b) in enumerate(zip(ids, found, strict=False)) if a != b), min(len(ids), len(found)))
        raise InputError(
            connection.at(TOKENIZE_PATH),
            expected=f"the ids of the tokenizer of {chat.base_model}",
            found=f"others from position {first}: {found[first : first + 4]} for {ids[first : first + 4]}",
            fix="serve the model that --model names",
        )
    return ids
