"""One JSON request over HTTP to one replica of a server.

A server may send what it likes: an answer is limited in bytes, in time, and once it has begun in bytes a second.
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
START_S = 10.0  # that an answer may take beyond what its bytes do at the slowest rate
MOST_SHOWN = 300  # characters of a server's text in an error


class Wire(BaseModel):
    """The base class of answers: the fields that are read, of exactly their types. Other fields are ignored.

    To read another answer: subclass it with the fields, and pass the subclass to `Connection.ask`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


TokenId = Annotated[int, Field(lt=2**31)]  # tokenizers take no more
Answered = TypeVar("Answered", bound=Wire)


class Unreachable(Exception):  # noqa: N818 a state that may pass
    """A failure that another attempt may not meet again; `where` it was met."""

    def __init__(self, where: str, found: str) -> None:
        self.where = where
        super().__init__(found)


class Refused(InputError):  # noqa: N818 as Unreachable
    """A request that the server does not take as it is (4xx)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allowed to the answer of one request."""

    timeout_s: float = 600.0  # until it is read: a completion is answered when it is whole
    most_bytes: int = 16 << 20  # a completion of 32,768 tokens with the text of each is some 5 MB
    least_bytes_per_s: float = 1024.0  # once it has begun


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica, while requests are sent to it."""

    url: str
    client: httpx.AsyncClient
    limits: Limits
    gate: asyncio.Semaphore  # of the requests in flight
    mending: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while it is given what it lacks

    def at(self, path: str) -> str:
        """A path of this replica as errors name it."""
        return f"server {self.url}{path}"

    async def ask(self, path: str, kind: type[Answered], body: Any = None, *, fix: str = "") -> Answered:
        """The answer to one request, parsed; `fix` is advice for an answer that does not fit. See `send`."""
        # A refusal has other reasons than the form of an answer.
        data = await self.send(path, body)
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            actual = "nothing" if first["type"] == "missing" else _shown(repr(first["input"]))
            raise InputError(self.at(path), expected=f"{place}: {first['msg']}", found=actual, fix=fix) from error

    async def send(self, path: str, body: Any = None, *, fix: str = "") -> bytes:
        """The bytes of the answer to one GET, or one POST of `body` as JSON; `fix` is advice for a refusal.

        Raises:
            Unreachable: what is wrong may pass.
            Refused: the request is what is wrong.
            InputError: the answer breaks a limit.
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
                        expected = f"an answer that comes at {limits.least_bytes_per_s:g} bytes a second or faster"
                        found, setting = f"{num_bytes} bytes in {clock() - begun:.0f} s", "server_bytes_per_s"
                        raise InputError(self.at(path), expected=expected, found=found, fix=_larger(setting))
        # Not repeated: the server is up and too slow, which another attempt does not change.
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
    return f"--set rollouts.{setting}=NUMBER says how much is allowed"


def _shown(text: str) -> str:
    """A server's text on one line."""
    return cut(" ".join(text.split()), MOST_SHOWN)
