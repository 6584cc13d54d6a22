"""JSON requests over HTTP, repeated after errors that may pass (5xx, 429, broken connections); then one InputError.

A server may send what it likes: an answer is limited in bytes, in time, and once it has begun in bytes a second. While
one is waited for, that is reported.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, final
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replay_pools.errors import InputError
from replay_pools.screen import report, without_secrets
from replay_pools.storage.files import dump_json

KEY_VARIABLE = "PROBE_SERVER_KEY"  # sent as a bearer token; never on the command line, never in a manifest
OK = 200
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500  # and above
START_S = 10.0  # that an answer may take beyond what its bytes do at the slowest rate
TOLD_EVERY_S = 5.0
MOST_CHARACTERS = 1000  # of an address; a name has up to 253
MOST_SHOWN = 300  # characters of a server's text in an error


class Wire(BaseModel):
    """The base class of answers: the fields that are read, of exactly their types. Other fields are ignored.

    To read another answer: subclass it with the fields, and pass the subclass to `Connection.ask`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


TokenId = Annotated[int, Field(lt=2**31)]  # tokenizers take no more
Answered = TypeVar("Answered", bound=Wire)


class _PassingError(Exception):
    """A failure that another attempt may not meet again."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server, by its address.

        connection = Connection(url="http://localhost:8000")
        models = connection.ask("/v1/models", Models).data  # Models is a Wire

    Every method raises InputError for a request that is refused (4xx), times out, or still fails after the last pause.
    """

    url: str  # scheme, host, port; without /v1
    timeout_s: float = 600.0  # of one request until its answer is read: a completion is answered when it is whole
    most_bytes: int = 16 << 20  # of an answer; a completion of 32,768 tokens with the text of each is some 5 MB
    least_bytes_per_s: float = 1024.0  # of an answer that has begun
    pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # before each further attempt
    concurrency: int = 128  # requests in flight

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
        except ValueError:  # half an IPv6 address
            parts = urlsplit("")
        bare = f"{parts.scheme}://{parts.netloc}"
        # A password in an address would reach messages and process lists.
        is_bare = parts.hostname and self.url == bare and "@" not in parts.netloc and len(bare) <= MOST_CHARACTERS
        if parts.scheme not in ("http", "https") or not is_bare:
            fix = f"leave out /v1 and everything else behind the port, and put a key into {KEY_VARIABLE}"
            raise InputError("server url", expected="http://host:port", found=repr(without_secrets(self.url)), fix=fix)

    def ask(self, path: str, kind: type[Answered], body: Any = None, *, fix: str = "") -> Answered:
        """The answer to a GET, or to a POST of `body` as JSON.

        Args:
            path: on the server, with its leading slash.
            kind: what the answer is parsed as; InputError where it does not fit.
            body: None = GET.
            fix: advice for an answer that does not fit.
        """
        return self.ask_all(path, kind, [body], fix=fix)[0]

    def ask_all(self, path: str, kind: type[Answered], bodies: Sequence[Any], *, fix: str = "") -> list[Answered]:
        """The answers to a POST of every body, `concurrency` at a time, in the order of the bodies. See `ask`."""

        async def answers() -> list[Answered]:
            gate = asyncio.Semaphore(self.concurrency)
            done: list[None] = []

            async def answer(body: Any) -> Answered:
                async with gate:
                    # Not with `fix`, which is about the form of an answer: a refusal has other reasons.
                    parsed = self._parsed(path, kind, await self._answered(client, path, body, ""), fix)
                done.append(None)
                return parsed

            async with self._client() as client, self._told(path, done, len(bodies)):
                return await asyncio.gather(*map(answer, bodies))

        return asyncio.run(answers())

    def send(self, path: str, body: Any = None, *, fix: str = "") -> bytes:
        """The bytes of the answer to a GET, or to a POST of `body` as JSON; `fix` is advice for a refusal."""

        async def answer() -> bytes:
            async with self._client() as client, self._told(path, [], 1):
                return await self._answered(client, path, body, fix)

        return asyncio.run(answer())

    def at(self, path: str) -> str:
        """A path of this server as errors name it."""
        return f"server {self.url}{path}"

    @asynccontextmanager
    async def _told(self, path: str, done: Sequence[None], total: int) -> AsyncIterator[None]:
        """Report now and then how many of the answers are there, also while none comes."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(TOLD_EVERY_S)
                report(f"waiting for {self.at(path)}: answers", len(done), total)

        teller = asyncio.create_task(tell())
        try:
            yield
        finally:
            teller.cancel()
            with suppress(asyncio.CancelledError):
                await teller

    def _client(self) -> httpx.AsyncClient:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        limits, is_tls = httpx.Limits(max_connections=self.concurrency), self.url.startswith("https")
        # The time of a whole answer is limited below: httpx limits that of each packet.
        client = partial(httpx.AsyncClient, headers=headers, timeout=None, limits=limits, verify=is_tls)
        try:
            return client()
        except (ImportError, ValueError):  # ALL_PROXY of a kind that httpx lacks, as SOCKS: not for JSON over HTTP
            return client(trust_env=False)

    def _parsed(self, path: str, kind: type[Answered], data: bytes, fix: str) -> Answered:
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "the answer"
            actual = "nothing" if first["type"] == "missing" else _shown(repr(first["input"]))
            raise InputError(self.at(path), expected=f"{field}: {first['msg']}", found=actual, fix=fix) from error

    async def _answered(self, client: httpx.AsyncClient, path: str, body: Any, fix: str) -> bytes:
        """The bytes of an answer, asked for again after what may pass."""
        last_error = _PassingError()
        for pause in (0.0, *self.pauses_s):
            await asyncio.sleep(pause)
            try:
                return await self._attempt(client, path, body, fix)
            except _PassingError as error:
                last_error = error
        found = f"{last_error} ({1 + len(self.pauses_s)} attempts)"
        raise InputError(
            self.at(path), expected="an answer", found=found, fix=fix or "is the server up?"
        ) from last_error

    async def _attempt(self, client: httpx.AsyncClient, path: str, body: Any, fix: str) -> bytes:
        """One request; _PassingError for what may pass, InputError for the rest."""
        method, content = ("GET", None) if body is None else ("POST", dump_json(body))
        parts: list[bytes] = []
        num_bytes, clock = 0, asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                client.stream(method, self.url + path, content=content) as answer,
            ):
                begun = clock()
                async for part in answer.aiter_raw():
                    num_bytes += len(part)
                    parts.append(part)
                    if num_bytes > self.most_bytes:
                        expected, setting = f"an answer of at most {self.most_bytes >> 20} MiB", "server_answer_mib"
                        raise InputError(self.at(path), expected=expected, found="more", fix=fix or _larger(setting))
                    if clock() - begun > START_S + num_bytes / self.least_bytes_per_s:
                        expected = f"an answer that comes at {self.least_bytes_per_s:g} bytes a second or faster"
                        found, setting = f"{num_bytes} bytes in {clock() - begun:.0f} s", "server_bytes_per_s"
                        raise InputError(self.at(path), expected=expected, found=found, fix=_larger(setting))
        # Not repeated: the server is up and too slow, which another attempt does not change.
        except TimeoutError as error:
            expected, fix = f"an answer in {self.timeout_s:g} s", _larger("server_timeout_s")
            raise InputError(self.at(path), expected=expected, found="none", fix=fix) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _PassingError(f"{type(error).__name__}: {_shown(str(error))}") from error
        if answer.status_code == OK:
            return b"".join(parts)
        actual = f"{answer.status_code} {_shown(b''.join(parts).decode(errors='replace'))}"
        if answer.status_code >= SERVER_ERRORS or answer.status_code == TOO_MANY_REQUESTS:
            raise _PassingError(actual)
        raise InputError(self.at(path), expected="an answer", found=actual, fix=fix)


def _larger(setting: str) -> str:
    return f"--set rollouts.{setting}=NUMBER says how much is allowed"


def _shown(text: str) -> str:
    """A server's text on one line, cut to MOST_SHOWN characters."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
