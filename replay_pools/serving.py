"""Sample from a vLLM server: token ids in, token ids out, after checking that its tokenizer is the local one.

    engine = connect(Server(url="http://localhost:8000"), load_served_policy("organism"))
    completions = engine.sample(prompts, Sampler(), seeds=range(len(prompts)))

vLLM reports log-probabilities of the model at temperature 1, whatever it samples with. They are kept where the sampler
draws from this very distribution, and are absent otherwise.
"""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, final

import httpx
import orjson
from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from replay_pools.base.errors import InputError, cut
from replay_pools.base.terminal import report, without_secrets
from replay_pools.policy.chat import Chat
from replay_pools.pool import PLAIN_LAW, Sampler, law_of
from replay_pools.rollout import Completion

KEY_VARIABLE = "PROBE_SERVER_KEY"  # sent as a bearer token; never on the command line, never in a manifest
CONCURRENCY = 100  # requests in flight: as many as httpx opens connections
MAX_BYTES = 16 << 20  # of an answer: a completion of 32,768 tokens, with the text of each, has about 5 MB
PAUSE_S = 1.0  # before a failed request is repeated
URL = re.compile(r"https?://([\w.-]{1,253}|\[[\da-fA-F:.]{2,45}\])(:\d{1,5})?", re.ASCII)
MAX_SHOWN_CHARACTERS = 300  # of a server's text in an error
SEED_BITS = 31  # vLLM takes seeds of this size
LOG_ONE = 1e-3  # nats; a value above it is no log-probability: rounding explains less
TOKENIZED = "def f(x):\n\treturn [x, 12345]  # na\u00efve \u4e2d\u6587 \U0001f600"  # spaces, digits, non-ASCII bytes
MODELS, COMPLETIONS = "/v1/models", "/v1/completions"
# vLLM takes what a request leaves out from the generation config of the model, so every setting is sent.
FIXED = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
FIXED |= {"logprobs": 0, "return_token_ids": True}  # 0: of the sampled token alone
IDS_FIX = "vLLM answers `return_token_ids` and `logprobs` from 0.10.2 on"


Result = TypeVar("Result")


class Answer(BaseModel):
    """One sampled completion: the fields of the server's answer that are read, of exactly their types."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    ids: list[int] = Field(validation_alias=AliasPath("choices", 0, "token_ids"), min_length=1)
    logprobs: list[float] = Field(validation_alias=AliasPath("choices", 0, "logprobs", "token_logprobs"))  # nats
    finish: Literal["stop", "length"] = Field(validation_alias=AliasPath("choices", 0, "finish_reason"))


class Unreachable(InputError):  # noqa: N818 a state that may pass
    """A failure that another attempt may not meet: status 5xx or 429, or a broken connection."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A vLLM server. Its methods raise InputError for a request that is refused (4xx), too slow, or keeps failing."""

    url: str  # scheme, host and port, without /v1
    timeout_s: float = 600.0  # until an answer is there as a whole
    wait_s: float = 300.0  # for which a failed request is repeated: a server of a large model takes minutes to start

    def __post_init__(self) -> None:
        # A password in an address would reach messages and process lists.
        if not URL.fullmatch(self.url):
            fix = f"leave out /v1 and everything else behind the port, and put a key into {KEY_VARIABLE}"
            found = _on_one_line(repr(without_secrets(self.url)))
            raise InputError("server url", expected="http://host:port", found=found, fix=fix)

    def at(self, path: str) -> str:
        """Return the name of a path in errors."""
        return f"server {self.url}{path}"

    def models(self) -> dict[str, str | None]:
        """Return {a model or adapter that the server has loaded: the base model of an adapter}."""
        return self.ask(MODELS, lambda answer: {model["id"]: model.get("parent") for model in answer["data"]})

    def ask(self, path: str, read: Callable[[Any], Result], body: Any = None) -> Result:
        """Return `read` of the JSON answer to a GET, or to a POST of `body`; InputError where it does not fit."""
        fix = f"is this a vLLM server? its key goes into {KEY_VARIABLE}"
        (data,) = self.ask_all(path, [body], lambda _, data: data, fix=fix)
        try:
            return read(orjson.loads(data))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            found = _on_one_line(data.decode(errors="replace"))
            raise InputError(self.at(path), expected="the answer of a vLLM server", found=found, fix=fix) from error

    def ask_all(
        self, path: str, bodies: Sequence[Any], read: Callable[[int, bytes], Result], *, fix: str = ""
    ) -> list[Result]:
        """Send a request for every body, CONCURRENCY at a time, and return `read(index, answer)` of each, in order.

        A body of None is a GET. `read` raises InputError for a wrong answer; `fix` is the advice for a refused request.
        """
        done = 0

        async def result(i: int, client: httpx.AsyncClient, gate: asyncio.Semaphore) -> Result:
            nonlocal done
            left_s = self.wait_s
            async with gate:
                while True:
                    try:
                        answer = read(i, await self._send(client, path, bodies[i], fix))
                    except Unreachable as error:
                        if left_s <= 0:
                            raise
                        report(f"waiting for {self.at(path)} ({error.found}): answers", done, len(bodies))
                        await asyncio.sleep(min(PAUSE_S, left_s))
                        left_s -= PAUSE_S
                    else:
                        done += 1
                        report("answers of the server", done, len(bodies))
                        return answer

        async def results() -> list[Result]:
            gate = asyncio.Semaphore(CONCURRENCY)
            async with self._client() as client:
                return await asyncio.gather(*(result(i, client, gate) for i in range(len(bodies))))

        return asyncio.run(results())

    async def _send(self, client: httpx.AsyncClient, path: str, body: Any, fix: str) -> bytes:
        place, data = self.at(path), bytearray()
        request = client.stream("GET" if body is None else "POST", self.url + path, json=body)
        try:
            async with asyncio.timeout(self.timeout_s), request as answer:
                async for part in answer.aiter_raw():
                    data += part
                    if len(data) > MAX_BYTES:
                        raise InputError(place, expected=f"an answer of at most {MAX_BYTES >> 20} MiB", found="more")
        # Not repeated: the server is up and too slow, and another attempt would not change this.
        except TimeoutError as error:
            expected, longer = f"an answer in {self.timeout_s:g} s", "set rollouts.server_timeout_s to more"
            raise InputError(place, expected=expected, found="none", fix=longer) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            kind, found, fix = Unreachable, f"{type(error).__name__}: {error}", "is the server up?"
        else:
            if answer.status_code == httpx.codes.OK:
                return bytes(data)
            passes = answer.status_code >= 500 or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
            kind, fix = (Unreachable, "see the log of the server") if passes else (InputError, fix)
            found = f"{answer.status_code} {data.decode(errors='replace')}"
        raise kind(place, expected="an answer", found=_on_one_line(found), fix=fix)

    def _client(self) -> httpx.AsyncClient:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # `_send` limits the time of a whole answer; httpx would limit the time of each packet. Certificates take
        # long to read, and only https needs any. A proxy of the environment is for the hub, not for this server.
        return httpx.AsyncClient(headers=headers, timeout=None, verify=self.url.startswith("https"), trust_env=False)


def _on_one_line(text: str) -> str:
    return cut(" ".join(text.split()), MAX_SHOWN_CHARACTERS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEngine:
    """The Engine of a served model. `connect` makes one."""

    server: Server
    chat: Chat
    model: str  # a model or an adapter, by its name on the server
    is_adapter: bool
    version: str  # of vLLM

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """See `Engine.sample`. The requests are sent together, each with the lowest bits of its own seed.

        The same call gives the same completions as far as the server's results do not depend on the rest of its batch.

        Raises:
            InputError: a request fails, or a completion contradicts its request.
        """
        settings = {
            **FIXED,
            "model": self.model,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "top_k": sampler.top_k or -1,  # -1 is off
            "max_tokens": sampler.max_new_tokens,
            "stop_token_ids": list(self.chat.eos_ids),  # turns end as in the local engine
        }
        # One completion a request: several choices of one request may share its seed.
        bodies = [
            {**settings, "prompt": list(prompt), "seed": seed % 2**SEED_BITS}
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

        is_own_law = law_of(asdict(sampler)) == PLAIN_LAW

        def read(i: int, data: bytes) -> Completion:
            place = f"{self.server.at(COMPLETIONS)} completion {i}"
            try:
                answer = Answer.model_validate_json(data)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(map(str, first["loc"])) or "the answer"
                found = "nothing" if first["type"] == "missing" else _on_one_line(repr(first["input"]))
                raise InputError(place, expected=f"{field}: {first['msg']}", found=found, fix=IDS_FIX) from error
            self._check(answer, sampler.max_new_tokens, place)
            finish = "stop" if answer.ids[-1] in self.chat.eos_ids else "length"
            logprobs = answer.logprobs if is_own_law else None
            return Completion(ids=answer.ids, logprobs=logprobs, finish_reason=finish)

        again = "a restarted server has lost pushed adapters: the same command pushes them again, and continues"
        return self.server.ask_all(COMPLETIONS, bodies, read, fix=again if self.is_adapter else "")

    def _check(self, answer: Answer, limit: int, place: str) -> None:
        """Raise InputError if an answer contradicts its request, whose ids decide whether a turn has ended."""
        ids, logprobs, ends, highest = answer.ids, answer.logprobs, self.chat.eos_ids, max(answer.logprobs, default=0)
        end = next((i for i, token in enumerate(ids) if token in ends), None)
        other_model = "serve the model that --model names, with its own end-of-turn ids"
        # Shorter than the limit without an end of turn: the server's context was full.
        longer = "serve with a larger --max-model-len, or lower --max-new-tokens"
        is_whole = len(ids) == limit or (end is not None and len(ids) < limit)
        for holds, expected, found, fix in (
            (len(logprobs) == len(ids), f"{len(ids)} log-probabilities, one an id", str(len(logprobs)), IDS_FIX),
            (highest <= LOG_ONE, "log-probabilities", f"{highest:g}, above 0", "serve with another --logprobs-mode"),
            (end in (None, len(ids) - 1), "an end of turn at the end", f"one at {end} of {len(ids)} ids", ""),
            (end is not None or answer.finish != "stop", f"a stop at one of {list(ends)}", f"{ids[-1:]}", other_model),
            (is_whole, f"{limit} ids, or an end of turn before", f"{len(ids)} ids without one", longer),
        ):
            if not holds:
                raise InputError(place, expected=expected, found=found, fix=fix)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return `policy` and `engine` for the header of a pool.

        The URL is left out: a pool that is sampled again at another port is the same pool.
        """
        policy = {"base_model": self.chat.base_model, "adapter": self.model if self.is_adapter else None}
        policy |= {"base_weights_sha256": None, "dtype": None}  # the server reports neither
        engine = {"kind": "server", "server": "vllm", "version": self.version, "model": self.model}
        return {"policy": policy, "engine": engine | {"logprobs_recorded": law_of(asdict(sampler)) == PLAIN_LAW}}


def connect(server: Server, chat: Chat, *, served_model: str | None = None) -> ServerEngine:
    """Return the engine of a served model, after checking that the server makes the same ids of a text as `chat`.

    Args:
        server: to sample on.
        chat: the tokenizer of the policy that the server serves.
        served_model: name of a model or adapter on the server; None = its only base model.

    Raises:
        InputError: no such model, another tokenizer, or no vLLM.
    """
    models = server.models()
    names = [name for name in models if (models[name] is None if served_model is None else name == served_model)]
    if len(names) != 1:
        expected = "one base model" if served_model is None else f"a model {served_model}"
        found, fix = ", ".join(models) or "no model", "name it with --served-model"
        raise InputError(server.at(MODELS), expected=expected, found=found, fix=fix)
    name = names[0]
    text, ids = chat.render([{"role": "user", "content": TOKENIZED}])
    body = {"model": name, "prompt": text, "add_special_tokens": False}
    server_ids = server.ask("/tokenize", lambda answer: [*answer["tokens"]], body)
    if server_ids != ids:
        expected, found = f"the ids of the tokenizer of {chat.base_model}", cut(f"{server_ids} for {ids}", 300)
        fix = "serve the model that --model names"
        raise InputError(server.at("/tokenize"), expected=expected, found=found, fix=fix)
    version = server.ask("/version", lambda answer: str(answer["version"]))
    return ServerEngine(server=server, chat=chat, model=name, is_adapter=models[name] is not None, version=version)
