"""JSON over HTTP: repeated while the server is in passing trouble, one InputError when that does not help."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar, final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from pydantic import BaseModel, ConfigDict, ValidationError

from replay_pools.errors import InputError
from replay_pools.files import dump_json

KEY_VARIABLE = "PROBE_SERVER_KEY"  # sent as a bearer token; never on the command line, never in a manifest
OK = 200
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500  # and above
MOST_SHOWN = 300  # characters of what a server answered


class Wire(BaseModel):
    """What a server answers, as far as it is read: fields of exactly these types; others are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


Answered = TypeVar("Answered", bound=Wire)


class _PassingError(Exception):
    """What another attempt may cure."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server.

    Every method raises InputError for a request that is refused (4xx), times out, or still fails after the last pause.
    """

    url: str  # scheme, host, port; without /v1
    timeout_s: float = 600.0  # of one request: a completion is answered when it is whole
    pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # before each further attempt
    concurrency: int = 128  # requests in flight

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        bare = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not parts.hostname or self.url != bare:
            fix = "leave out /v1 and everything else behind the port"
            raise InputError("server url", expected="http://host:port", found=repr(self.url), fix=fix)

    def ask(self, path: str, kind: type[Answered], body: Any = None, *, fix: str = "") -> Answered:
        """GET, or POST of `body`; the answer is a `kind`, or an InputError that advises `fix`."""
        data = self.send(path, body)
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            found = "nothing" if first["type"] == "missing" else _shown(repr(first["input"]))
            raise InputError(self.at(path), expected=f"{place}: {first['msg']}", found=found, fix=fix) from error

    def ask_all(self, path: str, kind: type[Answered], bodies: Sequence[Any], *, fix: str = "") -> list[Answered]:
        """POST every body, `concurrency` at a time; the answers in the order of the bodies, all of them or none."""
        with ThreadPoolExecutor(max_workers=min(self.concurrency, len(bodies))) as threads:
            waiting = [threads.submit(self.ask, path, kind, body, fix=fix) for body in bodies]
            try:
                return [answer.result() for answer in waiting]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def send(self, path: str, body: Any = None, *, fix: str = "") -> bytes:
        """GET, or POST of `body` as JSON; the bytes of the answer. `fix` is for a refusal."""
        trouble = _PassingError()
        for pause in (0.0, *self.pauses_s):
            time.sleep(pause)
            try:
                return self._attempt(path, body, fix)
            except _PassingError as error:
                trouble = error
        found = f"{trouble} ({1 + len(self.pauses_s)} attempts)"
        raise InputError(self.at(path), expected="an answer", found=found, fix=fix or "is the server up?") from trouble

    def at(self, path: str) -> str:
        """How errors name a place on the server."""
        return f"server {self.url}{path}"

    def _attempt(self, path: str, body: Any, fix: str) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = Request(self.url + path, data=None if body is None else dump_json(body), headers=headers)
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                status, data = answer.status, answer.read()
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, TimeoutError):
                raise InputError(self.at(path), expected=f"an answer in {self.timeout_s:g} s", found="none") from error
            raise _PassingError(f"{type(reason).__name__}: {reason}") from error
        if status == OK:
            return data
        found = f"{status} {_shown(data.decode(errors='replace'))}"
        if status >= SERVER_ERRORS or status == TOO_MANY_REQUESTS:
            raise _PassingError(found)
        raise InputError(self.at(path), expected="an answer", found=found, fix=fix)


class _AnyStatus(HTTPErrorProcessor):
    """Hands every status to the caller, where urllib would raise or follow a redirection."""

    def http_response(self, request: Request, response: Any) -> Any:
        return response

    https_response = http_response


_OPENER = build_opener(_AnyStatus)


def _shown(text: str) -> str:
    """Server text as part of one line."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
