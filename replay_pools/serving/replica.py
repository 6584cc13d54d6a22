"""One JSON request over HTTP to one replica of a server.

A server may send anything, so answers are limited in bytes, in time and, once started, in bytes per second.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, final

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replay_pools.base.errors import InputError, cut
from replay_pools.base.files import dump_json

OK = 200
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500  # and above
START_S = 10.0  # extra time before the slowest rate applies
MAX_SHOWN_CHARS = 300  # of a server's text in an error


class Wire(BaseModel):
    """The base class of answers. Declared fields must have exactly their types; other fields are ignored.

    To read another answer, declare its fields in a subclass and pass it to `Connection.ask`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


TokenId = Annotated[int, Field(lt=2**31)]  # the tokenizers' limit
Answered = TypeVar("Answered", bound=Wire)


class Unreachable(Exception):  # noqa: N818 (a temporary state)
    """A temporary failure, and `where` it happened."""

    def __init__(self, where: str, found: str) -> None:
        self.where = where
        super().__init__(found)


class Refused(InputError):  # noqa: N818 (as Unreachable)
    """A request that the server refuses (4xx)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the answer to one request."""

    timeout_s: float = 600.0  # for the whole answer; a server answers when the completion is complete
    most_bytes: int = 16 << 20  # a completion of 32,768 tokens with their texts is about 5 MB
    least_bytes_per_s: float = 1024.0  # once the answer has started


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a server, with the state of its open requests."""

    url: str
    client: httpx.AsyncClient
    limits: Limits
    gate: asyncio.Semaphore  # limits concurrent requests
    repairing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a repair

    def at(self, path: str) -> str:
        """Return the name of a path of this replica in errors."""
        return f"server {self.url}{path}"

    async def ask(self, path: str, kind: type[Answered], body: Any = None, *, fix: str = "") -> Answered:
        """Send one request as `send` and parse the answer; `fix` is advice for an answer that does not parse."""
        # `fix` is not passed on: a refusal has other causes than an unexpected answer.
        data = await self.send(path, body)
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            actual = "nothing" if first["type"] == "missing" else _shown(repr(first["input"]))
            raise InputError(self.at(path), expected=f"{place}: {first['msg']}", found=actual, fix=fix) from error

    async def send(self, path: str, body: Any = None, *, fix: str = "") -> bytes:
        """GET, or POST `body` as JSON, and return the bytes of the answer; `fix` is advice for a refusal.

        Raises:
            Unreachable: a temporary failure.
            Refused: the server refuses the request.
            InputError: the answer exceeds a limit.
        """
        limits = self.limits
        method, content = ("GET", None) if body is None else ("POST", dump_json(body))
        parts: list[bytes] = []
        num_bytes, clock = 0, asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(limits.timeout_s),
                self.client.stream(method, self.url + path, content=content) as answer,
            ):
                begun = clock()
                async for part in answer.aiter_raw():
                    num_bytes += len(part)
                    parts.append(part)
                    if num_bytes > limits.most_bytes:
                        expected, setting = f"an answer of at most {limits.most_bytes >> 20} MiB", "server_answer_mib"
                        raise InputError(self.at(path), expected=expected, found="more", fix=fix or _larger(setting))
                    if clock() - begun > START_S + num_bytes / limits.least_bytes_per_s:
                        expected = f"an answer at {limits.least_bytes_per_s:g} bytes per second or faster"
                        found, setting = f"{num_bytes} bytes in {clock() - begun:.0f} s", "server_bytes_per_s"
                        raise InputError(self.at(path), expected=expected, found=found, fix=_larger(setting))
        # No retry: the server is up but too slow, and would be again.
        except TimeoutError as error:
            expected, fix = f"an answer in {limits.timeout_s:g} s", _larger("server_timeout_s")
            raise InputError(self.at(path), expected=expected, found="none", fix=fix) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(self.at(path), f"{type(error).__name__}: {_shown(str(error))}") from error
        if answer.status_code == OK:
            return b"".join(parts)
        actual = f"{answer.status_code} {_shown(b''.join(parts).decode(errors='replace'))}"
        if answer.status_code >= SERVER_ERRORS or answer.status_code == TOO_MANY_REQUESTS:
            raise Unreachable(self.at(path), actual)
        raise Refused(self.at(path), expected="an answer", found=actual, fix=fix)


def _larger(setting: str) -> str:
    return f"--set rollouts.{setting}=NUMBER changes the limit"


def _shown(text: str) -> str:
    """Put a server's text on one line."""
    return cut(" ".join(text.split()), MAX_SHOWN_CHARS)
