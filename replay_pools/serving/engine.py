"""ServerEngine: sample from a model on a server (vLLM or SGLang), after checking that its tokenizer is the local one.

    engine = connect(Connection(urls=("http://localhost:8000",)), load_served_policy("organism"))
    completions = engine.sample(prompts, Sampler(), seeds=range(len(prompts)))

A server does not say which distribution ("law") its log-probabilities belong to, so that `connect` measures it; those
of another law than the sampler's are dropped.

    model         the model's own law, at temperature 1                   vLLM's default; SGLANG_RETURN_ORIGINAL_LOGPROB
    temperature   after temperature, before top-p and top-k               SGLang's default
    sampler       the law sampled from: after temperature, top-k, top-p   vLLM --logprobs-mode processed_logprobs
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, final

from replay_pools.base.errors import InputError
from replay_pools.engines import Sampler, ServerKind
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Completion
from replay_pools.serving.connection import Connection
from replay_pools.serving.dialects import DIALECTS, Answer, Dialect
from replay_pools.serving.kept import KeptAnswers
from replay_pools.serving.replica import Replica, TokenId, Unreachable, Wire

MODELS_PATH = "/v1/models"
TOKENIZE_PATH = "/tokenize"
PROBE = "def f(x):\n\treturn [x, 12345]  # na\u00efve \u4e2d\u6587 \U0001f600"  # spaces, digits, bytes beyond ASCII
SEED_BITS = 31  # every server takes seeds of this size
LOG_ONE = 1e-3  # nats; a value above it is no log-probability: rounding explains less
ONE_TOKEN = 1e-6  # top-p that leaves only the most likely token
PROBED_TOKENS = 16
TEMPERATURES = (0.5, 2.0)  # vLLM takes none above 2
CERTAIN = 1e-5  # nats below 0: no model is this sure of all PROBED_TOKENS tokens
SAME = 0.05  # nats: the same forward pass in bfloat16 twice differs by less
LogprobLaw = Literal["model", "temperature", "sampler"]


class _Card(Wire):
    """A model in the list of /v1/models, which all dialects answer alike."""

    id: str
    owned_by: str = ""
    parent: str | None = None  # of an adapter: its base model


class _Models(Wire):
    data: list[_Card]


class _Version(Wire):
    version: str


class _Tokens(Wire):
    tokens: list[TokenId]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEngine:
    """The Engine of a served model. `connect` makes one.

    A replica that was restarted has lost its adapters: it is given that of this engine again.
    """

    chat: Chat
    connection: Connection
    dialect: Dialect
    model: str  # a model or an adapter, by its name on the server
    is_adapter: bool
    version: str  # of the server
    law: LogprobLaw = "model"  # of the log-probabilities that the server reports
    adapter: Path | None = None  # peft's directory, where the servers see it under the same path; None: not given here
    kept: Path | None = None  # where answers of a batch that is not whole are kept

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """See `Engine.sample`. The requests are sent together, each with its own seed (its lowest bits).

        The same call gives the same completions as far as the server's results do not depend on what else is in its
        batch. Log-probabilities of another law than the sampler's are dropped.

        Raises:
            InputError: a request fails, or a completion is not what was asked for.
        """
        completions = self.reported(prompts, sampler, seeds)
        if is_law_of(self.law, sampler):
            return completions
        return [replace(completion, logprobs=None) for completion in completions]

    def reported(self, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]) -> list[Completion]:
        """As `sample`, with log-probabilities of whichever law the server reports."""
        # The ids that end turns are sent with every request, so that turns end as they do in the local engine.
        bodies = [
            self.dialect.body(self.model, self.is_adapter, prompt, sampler, self.chat.eos_ids, seed % 2**SEED_BITS)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        path, dialect = self.dialect.completion_path, self.dialect
        kept = KeptAnswers(self.kept, bodies)
        missing = [i for i in range(len(bodies)) if i not in kept.answers]

        def take(number: int, answer: Answer, where: str) -> None:
            i = missing[number]
            place = f"{where} completion {i}"
            if answer.finish == "abort":  # as of a server that is being shut down
                raise Unreachable(place, "finish reason abort")
            self._check(answer, prompts[i], sampler, place)
            kept.add(i, answer)

        if missing:
            mend = None if self.adapter is None else self._mend
            asked = [bodies[i] for i in missing]
            self.connection.ask_all(path, dialect.answer, asked, fix=dialect.ids_fix, take=take, mend=mend)
        kept.clear()
        completions: list[Completion] = []
        for i in range(len(bodies)):
            answer = kept.answers[i]
            finish = "stop" if answer.ids[-1] in self.chat.eos_ids else "length"
            completions.append(Completion(ids=answer.ids, logprobs=answer.logprobs, finish_reason=finish))
        return completions

    def _check(self, answer: Answer, prompt: Sequence[int], sampler: Sampler, place: str) -> None:
        """Raise InputError where an answer contradicts its request.

        The ids decide whether a turn has ended, and the finish reason of the server must agree.
        """
        ids, limit, dialect, ends = answer.ids, sampler.max_new_tokens, self.dialect, self.chat.eos_ids
        end = next((i for i, token in enumerate(ids) if token in ends), None)
        highest, num_logprobs, num_prompt = max(answer.logprobs, default=0.0), len(answer.logprobs), len(prompt)
        as_sent, one_each = f"the prompt of {num_prompt} ids as it was sent", f"{len(ids)} log-probabilities, one an id"
        logits = "logits are no log-probabilities: serve with another --logprobs-mode"
        other_model = "serve the model that --model names, with its own end-of-turn ids"
        # Shorter than the limit without an end of turn: the server's context was full.
        is_whole = len(ids) == limit or (end is not None and len(ids) < limit)
        for sound, expected, found, fix in (
            (answer.num_prompt_tokens == num_prompt, as_sent, f"{answer.num_prompt_tokens} ids", ""),
            (bool(ids) and min(ids) >= 0, "token ids", str(ids), dialect.ids_fix),
            (num_logprobs == len(ids), one_each, str(num_logprobs), dialect.ids_fix),
            (highest <= LOG_ONE, "log-probabilities", f"{highest:g}, above 0", logits),
            (end in (None, len(ids) - 1), "an end of turn at the end", f"one at {end} of {len(ids)} ids", ""),
            (
                end is not None or answer.finish != "stop",
                f"a stop at one of {list(ends)}",
                f"a stop at {ids[-1:]}",
                other_model,
            ),
            (answer.finish in ("stop", "length"), "finish reason stop or length", repr(answer.finish), ""),
            (is_whole, f"{limit} ids, or an end of turn before", f"{len(ids)} ids without one", dialect.context_fix),
        ):
            if not sound:
                raise InputError(place, expected=expected, found=found, fix=fix)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """`policy` and `engine`: the kind of server, its version and the model.

        The URL is left out: a pool that is sampled again at another port is the same pool.
        """
        policy = {"base_model": self.chat.base_model, "adapter": self.model if self.is_adapter else None}
        return {
            "policy": {**policy, "base_weights_sha256": None, "dtype": None},  # a server tells neither
            "engine": {
                "kind": "server",
                "server": self.dialect.name,
                "version": self.version,
                "model": self.model,
                "logprobs_law": self.law,
                "logprobs_recorded": is_law_of(self.law, sampler),
            },
        }

    def with_adapter(self, name: str, directory: Path) -> "ServerEngine":
        """The engine that samples with a peft adapter. Every replica loads it, unless that name is loaded.

        Args:
            name: of the adapter on the server.
            directory: peft's, where the server sees it under the same path.

        Raises:
            InputError: a replica takes no adapters, not this one, or does not see the directory.
        """
        engine = replace(self, model=name, is_adapter=True, adapter=directory)
        engine.connection.each(engine._mend)
        return engine

    async def _mend(self, replica: Replica) -> None:
        """Have a replica load the adapter, unless it has it."""
        assert self.adapter is not None
        if self.model not in await _adapters(replica):
            body = {"lora_name": self.model, "lora_path": str(self.adapter.resolve())}
            fix = f"{self.dialect.adapters_fix}, on a machine that sees {body['lora_path']}"
            await replica.send(self.dialect.load_path, body, fix=fix)

    def unload(self, name: str) -> None:
        """Make the server drop an adapter, if it has it; a replica that is not there has forgotten it."""

        async def forget(replica: Replica) -> None:
            with suppress(Unreachable):
                if name in await _adapters(replica):
                    await replica.send(self.dialect.unload_path, {"lora_name": name}, fix=self.dialect.adapters_fix)

        self.connection.each(forget)


async def _adapters(replica: Replica) -> set[str]:
    """The names of the adapters that a replica has loaded."""
    return {card.id for card in (await replica.ask(MODELS_PATH, _Models)).data if card.parent is not None}


def connect(
    connection: Connection,
    chat: Chat,
    *,
    served_model: str | None = None,
    kind: ServerKind | None = None,
    kept: Path | None = None,
) -> ServerEngine:
    """The engine of a served model, after checking that every replica makes the same ids of a prompt as `chat` does.

    Args:
        connection: to the server.
        chat: the tokenizer of the policy that the server serves.
        served_model: name of a model or adapter on the server; None = its only base model.
        kind: of server; None = what its models' `owned_by` says.
        kept: where answers of a batch that is not whole are kept: of one pool or run, since requests name no weights.

    Raises:
        InputError: no such model, a server of another kind, another tokenizer, no token ids and log-probabilities, or
            replicas that differ in one of these.
    """
    first, *others = (_connected(replace(connection, urls=(url,)), chat, served_model, kind) for url in connection.urls)
    for other in others:
        for name in (field.name for field in fields(ServerEngine) if field.name not in ("chat", "connection")):
            here, there = (getattr(engine, name) for engine in (first, other))
            if here != there:
                here, there = (value.name if isinstance(value, Dialect) else value for value in (here, there))
                expected = f"the {name} of {first.connection.urls[0]}, {here}"
                raise InputError(f"server {other.connection.urls[0]}", expected=expected, found=str(there))
    return replace(first, connection=connection, kept=kept)


def _connected(connection: Connection, chat: Chat, served_model: str | None, kind: ServerKind | None) -> ServerEngine:
    """The engine of one replica."""
    place = f"server {connection.urls[0]}"
    card, dialect = _choose(connection.ask(MODELS_PATH, _Models).data, f"{place}{MODELS_PATH}", served_model, kind)
    version = connection.ask(dialect.version_path, _Version).version
    prompt = _check_tokenizer(connection, chat, card.id)
    engine = ServerEngine(
        chat=chat,
        connection=connection,
        dialect=dialect,
        model=card.id,
        is_adapter=card.parent is not None,
        version=version,
    )
    return replace(engine, law=_measured_law(engine, prompt))


def _choose(
    cards: Sequence[_Card], place: str, served_model: str | None, kind: ServerKind | None
) -> tuple[_Card, Dialect]:
    """(model, dialect of its server): the model of that name, or the only base model."""
    if served_model is None:
        expected = "one base model"
        matches = [card for card in cards if card.parent is None]
    else:
        expected = f"a model {served_model}"
        matches = [card for card in cards if card.id == served_model]
    if len(matches) != 1:
        found = ", ".join(card.id for card in cards) or "no model"
        raise InputError(place, expected=expected, found=found, fix="name it with --served-model")
    (card,) = matches
    owner = kind or card.owned_by
    dialect = DIALECTS.get(owner)
    if dialect is None:
        expected, fix = f"a server out of {', '.join(DIALECTS)}", "behind a gateway, say which with --dialect"
        raise InputError(place, expected=expected, found=f"owned_by {owner!r}", fix=fix)
    return card, dialect


def _check_tokenizer(connection: Connection, chat: Chat, model: str) -> list[int]:
    """The ids of a rendered prompt; InputError where the server makes other ids of its text."""
    text, ids = chat.render([{"role": "user", "content": PROBE}])
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    server_ids = connection.ask(TOKENIZE_PATH, _Tokens, body).tokens
    if server_ids != ids:
        same = [id_ == other for id_, other in zip(ids, server_ids, strict=False)]
        first = same.index(False) if False in same else len(same)  # which may be the end of the shorter one
        raise InputError(
            f"server {connection.urls[0]}{TOKENIZE_PATH}",
            expected=f"the ids of the tokenizer of {chat.base_model}",
            found=f"others from position {first}: {server_ids[first : first + 4]} for {ids[first : first + 4]}",
            fix="serve the model that --model names",
        )
    return ids


def _measured_law(engine: ServerEngine, prompt: list[int]) -> LogprobLaw:
    """The law of the log-probabilities that the server reports.

    With a top-p near 0 only the most likely token is left. Its log-probability is 0 in the law sampled from, the same
    at two temperatures in the model's own law, and different at two temperatures in the law between. Not with
    temperature 0 or top-k 1: servers answer those greedily, by other code. It is `model`, the weakest claim, where the
    two temperatures give different tokens.
    """
    cold, hot = (
        engine.reported([prompt], Sampler(temperature=temperature, top_p=ONE_TOKEN, max_new_tokens=PROBED_TOKENS), [0])[
            0
        ]
        for temperature in TEMPERATURES
    )
    assert cold.logprobs is not None
    assert hot.logprobs is not None
    if min(cold.logprobs + hot.logprobs) > -CERTAIN:
        return "sampler"
    if cold.ids != hot.ids:
        return "model"
    difference = max(abs(at_cold - at_hot) for at_cold, at_hot in zip(cold.logprobs, hot.logprobs, strict=True))
    return "temperature" if difference > SAME else "model"


def is_law_of(law: LogprobLaw, sampler: Sampler) -> bool:
    """Whether log-probabilities of `law` are those that `sampler` draws with."""
    truncates = sampler.top_p < 1 or sampler.top_k > 0
    if law == "sampler":
        return True
    if law == "temperature":
        return not truncates
    return not truncates and sampler.temperature == 1
