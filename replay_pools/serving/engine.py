"""ServerEngine: sample from a model on a server (vLLM or SGLang) with the same tokenizer as here.

    engine = connect(Connection(urls=("http://localhost:8000",)), load_served_policy("organism"))
    completions = engine.sample(prompts, Sampler(), seeds=range(len(prompts)))

A server does not state which distribution ("law") its log-probabilities belong to, so `connect` measures it. They are
dropped if it is not the distribution sampled from.

    model         the model's distribution, at temperature 1              vLLM's default; SGLANG_RETURN_ORIGINAL_LOGPROB
    temperature   after temperature, before top-p and top-k               SGLang's default
    sampler       as sampled: after temperature, top-k and top-p          vLLM --logprobs-mode processed_logprobs
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
SEED_BITS = 31  # every server accepts seeds of this size
MAX_LOGPROB = 1e-3  # nats; rounding does not lift a log-probability above this
ONE_TOKEN_TOP_P = 1e-6  # leaves only the most likely token
PROBED_TOKENS = 16
TEMPERATURES = (0.5, 2.0)  # vLLM accepts at most 2
CERTAIN_NATS = 1e-5  # no model gives PROBED_TOKENS tokens in a row log-probabilities this near 0
ROUNDING_NATS = 0.05  # two bfloat16 forward passes differ by less
LogprobLaw = Literal["model", "temperature", "sampler"]


class _Card(Wire):
    """One entry of /v1/models, the same for all kinds of server."""

    id: str
    owned_by: str = ""
    parent: str | None = None  # an adapter's base model


class _Models(Wire):
    data: list[_Card]


class _Version(Wire):
    version: str


class _Tokens(Wire):
    tokens: list[TokenId]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEngine:
    """The Engine of a served model; `connect` makes one.

    A restarted replica has lost its adapters, so this engine loads its adapter there again.
    """

    chat: Chat
    connection: Connection
    dialect: Dialect
    model: str  # name of a model or adapter on the server
    is_adapter: bool
    version: str  # the server's version
    law: LogprobLaw = "model"  # distribution of the reported log-probabilities
    adapter: Path | None = None  # peft directory, at the same path on the server; None: none to load
    kept: Path | None = None  # folder for the answers of an incomplete batch

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Sample as `Engine.sample`. All requests are sent at once, each with the lowest bits of its seed.

        The same call gives the same completions if the server's results do not depend on the rest of its batch.
        Log-probabilities of another distribution than the sampler's are dropped.

        Raises:
            InputError: a request fails, or a completion contradicts its request.
        """
        completions = self.reported(prompts, sampler, seeds)
        if is_law_of(self.law, sampler):
            return completions
        return [replace(completion, logprobs=None) for completion in completions]

    def reported(self, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]) -> list[Completion]:
        """Sample as `sample`, and keep log-probabilities of any distribution."""
        # Every request sends the end-of-turn ids, so that turns end as in the local engine.
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
            if answer.finish == "abort":  # the server is shutting down
                raise Unreachable(place, "finish reason abort")
            self._check(answer, prompts[i], sampler, place)
            kept.add(i, answer)

        if missing:
            repair = None if self.adapter is None else self._reload_adapter
            asked = [bodies[i] for i in missing]
            self.connection.ask_all(path, dialect.answer, asked, fix=dialect.ids_fix, take=take, repair=repair)
        kept.clear()
        completions: list[Completion] = []
        for i in range(len(bodies)):
            answer = kept.answers[i]
            finish = "stop" if answer.ids[-1] in self.chat.eos_ids else "length"
            completions.append(Completion(ids=answer.ids, logprobs=answer.logprobs, finish_reason=finish))
        return completions

    def _check(self, answer: Answer, prompt: Sequence[int], sampler: Sampler, place: str) -> None:
        """Raise InputError if an answer contradicts its request.

        The ids decide if a turn has ended; the server's finish reason must agree.
        """
        ids, limit, dialect, ends = answer.ids, sampler.max_new_tokens, self.dialect, self.chat.eos_ids
        end = next((i for i, token in enumerate(ids) if token in ends), None)
        highest, num_logprobs, num_prompt = max(answer.logprobs, default=0.0), len(answer.logprobs), len(prompt)
        as_sent, one_each = f"the prompt of {num_prompt} ids as sent", f"{len(ids)} log-probabilities, one an id"
        logits = "logits are not log-probabilities: serve with another --logprobs-mode"
        other_model = "serve the model of --model, with its own end-of-turn ids"
        # Below the limit and without an end of turn, the server's context was full.
        is_whole = len(ids) == limit or (end is not None and len(ids) < limit)
        for sound, expected, found, fix in (
            (answer.num_prompt_tokens == num_prompt, as_sent, f"{answer.num_prompt_tokens} ids", ""),
            (bool(ids) and min(ids) >= 0, "token ids", str(ids), dialect.ids_fix),
            (num_logprobs == len(ids), one_each, str(num_logprobs), dialect.ids_fix),
            (highest <= MAX_LOGPROB, "log-probabilities", f"{highest:g}, above 0", logits),
            (end in (None, len(ids) - 1), "an end of turn only at the end", f"one at {end} of {len(ids)} ids", ""),
            (
                end is not None or answer.finish != "stop",
                f"a stop at one of {list(ends)}",
                f"a stop at {ids[-1:]}",
                other_model,
            ),
            (answer.finish in ("stop", "length"), "finish reason stop or length", repr(answer.finish), ""),
            (is_whole, f"{limit} ids, or an end of turn", f"{len(ids)} ids without one", dialect.context_fix),
        ):
            if not sound:
                raise InputError(place, expected=expected, found=found, fix=fix)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return `policy` and `engine`: the kind of server, its version and the model.

        The URL is left out, because a pool does not depend on the server's port.
        """
        policy = {"base_model": self.chat.base_model, "adapter": self.model if self.is_adapter else None}
        return {
            "policy": {**policy, "base_weights_sha256": None, "dtype": None},  # servers report neither
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
        """Return the engine with a peft adapter. Every replica loads it, unless it has an adapter of that name.

        Args:
            name: name of the adapter on the server.
            directory: peft directory, at the same path on the server.

        Raises:
            InputError: a replica refuses adapters, refuses this one, or does not see the directory.
        """
        engine = replace(self, model=name, is_adapter=True, adapter=directory)
        engine.connection.each(engine._reload_adapter)
        return engine

    async def _reload_adapter(self, replica: Replica) -> None:
        """Load the adapter on a replica that lacks it."""
        assert self.adapter is not None
        if self.model not in await _adapters(replica):
            body = {"lora_name": self.model, "lora_path": str(self.adapter.resolve())}
            fix = f"{self.dialect.adapters_fix}, on a machine that sees {body['lora_path']}"
            await replica.send(self.dialect.load_path, body, fix=fix)

    def unload(self, name: str) -> None:
        """Unload an adapter from every replica that has it; a replica that is down has lost it."""

        async def forget(replica: Replica) -> None:
            with suppress(Unreachable):
                if name in await _adapters(replica):
                    await replica.send(self.dialect.unload_path, {"lora_name": name}, fix=self.dialect.adapters_fix)

        self.connection.each(forget)


async def _adapters(replica: Replica) -> set[str]:
    """Return the names of a replica's adapters."""
    return {card.id for card in (await replica.ask(MODELS_PATH, _Models)).data if card.parent is not None}


def connect(
    connection: Connection,
    chat: Chat,
    *,
    served_model: str | None = None,
    kind: ServerKind | None = None,
    kept: Path | None = None,
) -> ServerEngine:
    """Return the engine of a served model, after checking that every replica tokenizes as `chat` does.

    Args:
        connection: the server.
        chat: the tokenizer of the served policy.
        served_model: name of a model or adapter on the server; None = its only base model.
        kind: kind of server; None = the `owned_by` of its models.
        kept: folder for the answers of an incomplete batch. Use one folder a pool or run: requests do not name weights.

    Raises:
        InputError: no such model, another kind of server, another tokenizer, missing token ids or log-probabilities,
            or replicas that differ in one of these.
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
    """Connect to one replica."""
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
    """Return (the model of that name or the only base model, the server's dialect)."""
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
        expected, fix = f"one of the servers {', '.join(DIALECTS)}", "behind a gateway, name it with --dialect"
        raise InputError(place, expected=expected, found=f"owned_by {owner!r}", fix=fix)
    return card, dialect


def _check_tokenizer(connection: Connection, chat: Chat, model: str) -> list[int]:
    """Return the ids of a rendered prompt; InputError if the server tokenizes it differently."""
    text, ids = chat.render([{"role": "user", "content": PROBE}])
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    server_ids = connection.ask(TOKENIZE_PATH, _Tokens, body).tokens
    if server_ids != ids:
        same = [id_ == other for id_, other in zip(ids, server_ids, strict=False)]
        first = same.index(False) if False in same else len(same)  # one list may be a prefix of the other
        raise InputError(
            f"server {connection.urls[0]}{TOKENIZE_PATH}",
            expected=f"token ids of {chat.base_model}",
            found=f"other ids from position {first}: {server_ids[first : first + 4]} for {ids[first : first + 4]}",
            fix="serve the model of --model",
        )
    return ids


def _measured_law(engine: ServerEngine, prompt: list[int]) -> LogprobLaw:
    """Measure the distribution of the server's log-probabilities.

    A top-p near 0 leaves only the most likely token. Its log-probability is 0 under the distribution sampled from,
    equal at two temperatures under the model's, and different at two temperatures under the one between. Temperature 0
    and top-k 1 would not do: servers answer them greedily, with other code. If the two temperatures give different
    tokens, the result is `model`, the weakest claim.
    """
    cold, hot = (
        engine.reported(
            [prompt], Sampler(temperature=temperature, top_p=ONE_TOKEN_TOP_P, max_new_tokens=PROBED_TOKENS), [0]
        )[0]
        for temperature in TEMPERATURES
    )
    assert cold.logprobs is not None
    assert hot.logprobs is not None
    if min(cold.logprobs + hot.logprobs) > -CERTAIN_NATS:
        return "sampler"
    if cold.ids != hot.ids:
        return "model"
    difference = max(abs(at_cold - at_hot) for at_cold, at_hot in zip(cold.logprobs, hot.logprobs, strict=True))
    return "temperature" if difference > ROUNDING_NATS else "model"


def is_law_of(law: LogprobLaw, sampler: Sampler) -> bool:
    """Return True if `sampler` draws from the distribution `law`."""
    truncates = sampler.top_p < 1 or sampler.top_k > 0
    if law == "sampler":
        return True
    if law == "temperature":
        return not truncates
    return not truncates and sampler.temperature == 1
