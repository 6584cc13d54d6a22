"""Requests to the replicas of a server, repeated after temporary failures (5xx, 429, broken connections).

Request i of n always goes to replica i * R // n of R, even if another one is idle. Waiting is reported as progress.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

import httpx

from replay_pools.base.errors import InputError
from replay_pools.base.terminal import report, without_secrets
from replay_pools.serving.replica import Answered, Limits, Refused, Replica, Unreachable

KEY_VARIABLE = "PROBE_SERVER_KEY"  # sent as a bearer token; never on the command line, never in a manifest
TOLD_EVERY_S = 5.0
MAX_URL_CHARS = 1000  # a host name has up to 253
WAIT_S = 300.0  # a server takes minutes to load a large model
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 16.0
Result = TypeVar("Result")
Repair = Callable[[Replica], Awaitable[None]]  # restores what a restarted replica has lost


def backoff(wait_s: float) -> tuple[float, ...]:
    """Return pauses that double up to LONGEST_PAUSE_S and add up to `wait_s`.

    >>> backoff(3.0)
    (0.5, 1.0, 1.5)
    """
    pauses: list[float] = []
    pause, left = FIRST_PAUSE_S, wait_s
    while left > 0:
        pauses.append(min(pause, left))
        left -= pause
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return tuple(pauses)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server with one or more replicas, processes that serve the same model in the same way.

        connection = Connection(urls=("http://localhost:8000",))
        models = connection.ask("/v1/models", Models).data  # Models is a Wire

    Every method raises InputError if a request is refused (4xx), times out, or still fails after the last pause.
    """

    urls: tuple[str, ...]  # scheme, host, port; without /v1
    limits: Limits = field(default_factory=Limits)
    pauses_s: tuple[float, ...] = backoff(WAIT_S)  # before each further attempt
    concurrency: int = 128  # requests in flight at a replica

    def __post_init__(self) -> None:
        for url in self.urls:
            try:
                parts = urlsplit(url)
            except ValueError:  # an incomplete IPv6 address
                parts = urlsplit("")
            bare = f"{parts.scheme}://{parts.netloc}"
            # A password in an address would reach messages and process lists.
            is_bare = parts.hostname and url == bare and "@" not in parts.netloc and len(bare) <= MAX_URL_CHARS
            if parts.scheme not in ("http", "https") or not is_bare:
                fix = f"leave out everything after the port, such as /v1, and put a key into {KEY_VARIABLE}"
                raise InputError("server url", expected="http://host:port", found=repr(without_secrets(url)), fix=fix)

    def ask(self, path: str, kind: type[Answered], body: Any = None) -> Answered:
        """GET from the first replica, or POST `body` as JSON, and return the answer; see `ask_all`."""
        return self.ask_all(path, kind, [body])[0]

    def ask_all(
        self,
        path: str,
        kind: type[Answered],
        bodies: Sequence[Any],
        *,
        fix: str = "",
        take: Callable[[int, Answered, str], None] = lambda i, answer, where: None,
        repair: Repair | None = None,
    ) -> list[Answered]:
        """POST every body and return the answers in the order of the bodies.

        Args:
            path: path on the server, with a leading slash.
            kind: class to parse an answer as; if it does not parse, InputError with the advice `fix`.
            bodies: requests, distributed over the replicas, at most `concurrency` at a time to each.
            take: called for every answer with (number of its body, answer, place); it may raise to refuse it.
            repair: called for a replica before a failed request is repeated there.
        """
        urls = [self.urls[i * len(self.urls) // len(bodies)] for i in range(len(bodies))]

        async def answer(i: int, replica: Replica) -> Answered:
            answer = await replica.ask(path, kind, bodies[i], fix=fix)
            take(i, answer, replica.at(path))
            return answer

        return self._run(urls, answer, path=path, repair=repair)

    def each(self, act: Callable[[Replica], Awaitable[Result]]) -> list[Result]:
        """Call `act` for all replicas concurrently and return the results."""
        return self._run(self.urls, lambda _, replica: act(replica))

    def _run(
        self,
        urls: Sequence[str],
        act: Callable[[int, Replica], Awaitable[Result]],
        *,
        path: str = "",
        repair: Repair | None = None,
    ) -> list[Result]:
        """Call `act` with (i, the replica at urls[i]) for every i; progress reports name `path`."""

        async def results() -> list[Result]:
            states = dict.fromkeys(urls, "")
            done: list[None] = []
            async with self._client() as client, _reporting(path, states, done, len(urls)):
                gates = {url: asyncio.Semaphore(self.concurrency) for url in states}
                replicas = {url: Replica(url=url, client=client, limits=self.limits, gate=gates[url]) for url in states}

                async def result(i: int, replica: Replica) -> Result:
                    async with replica.gate:
                        answer = await self._repeated(partial(act, i), replica, repair, states)
                    done.append(None)
                    return answer

                return await asyncio.gather(*(result(i, replicas[url]) for i, url in enumerate(urls)))

        return asyncio.run(results())

    async def _repeated(
        self,
        act: Callable[[Replica], Awaitable[Result]],
        replica: Replica,
        repair: Repair | None,
        states: dict[str, str],
    ) -> Result:
        """Call `act`, again after temporary failures and, with `repair`, once after a refusal."""
        failure: Unreachable | Refused | None = None
        for pause in (0.0, *self.pauses_s):
            await asyncio.sleep(pause)
            try:
                if failure is not None and repair is not None:
                    async with replica.repairing:
                        await repair(replica)
                result = await act(replica)
            except Unreachable as error:
                failure = error
                states[replica.url] = f" ({error}; retrying for {sum(self.pauses_s):g} s)"
            except Refused as error:
                if repair is None or isinstance(failure, Refused):
                    raise
                failure = error
            else:
                states[replica.url] = ""
                return result
        if isinstance(failure, Refused):
            raise failure
        assert failure is not None
        found = f"{failure} ({1 + len(self.pauses_s)} attempts)"
        fix = "check that the server is up; --set rollouts.server_wait_s=SECONDS retries for longer"
        raise InputError(failure.where, expected="an answer", found=found, fix=fix) from failure

    def _client(self) -> httpx.AsyncClient:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=self.concurrency * len(self.urls))
        is_tls = any(url.startswith("https") for url in self.urls)
        # httpx would limit the time of each packet; `Limits` bounds the whole answer.
        client = partial(httpx.AsyncClient, headers=headers, timeout=None, limits=limits, verify=is_tls)
        try:
            return client()
        except (ImportError, ValueError):  # httpx lacks this kind of ALL_PROXY, such as SOCKS
            return client(trust_env=False)


@asynccontextmanager
async def _reporting(path: str, states: Mapping[str, str], done: Sequence[None], total: int) -> AsyncIterator[None]:
    """Report the number of answers every TOLD_EVERY_S seconds; states: {url: its failure, or empty}."""

    async def keep_reporting() -> None:
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            troubled = [url for url in states if states[url]]
            places = ", ".join(f"server {url}{path}{states[url]}" for url in troubled or states)
            report(f"waiting for {places}: answers", len(done), total)

    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
