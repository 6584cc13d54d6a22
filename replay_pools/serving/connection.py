"""Requests to the replicas of a server, repeated while what is wrong may pass (5xx, 429, broken connections).

Request i of n goes to replica i * R // n of R, whatever the others do; whether another replica could take it is not
asked. While answers are waited for, that is reported.
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
MOST_CHARACTERS = 1000  # of an address; a name has up to 253
WAIT_S = 300.0  # a server of a large model takes minutes to start
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 16.0
Result = TypeVar("Result")
Mend = Callable[[Replica], Awaitable[None]]  # gives a replica what it may lack


def backoff(wait_s: float) -> tuple[float, ...]:
    """Pauses that double up to LONGEST_PAUSE_S and add up to `wait_s`.

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
    """A server, by the addresses of its replicas: processes that serve the same model in the same way.

        connection = Connection(urls=("http://localhost:8000",))
        models = connection.ask("/v1/models", Models).data  # Models is a Wire

    Every method raises InputError for a request that is refused (4xx), times out, or still fails after the last pause.
    """

    urls: tuple[str, ...]  # scheme, host, port; without /v1
    limits: Limits = field(default_factory=Limits)
    pauses_s: tuple[float, ...] = backoff(WAIT_S)  # before each further attempt
    concurrency: int = 128  # requests in flight at a replica

    def __post_init__(self) -> None:
        for url in self.urls:
            try:
                parts = urlsplit(url)
            except ValueError:  # half an IPv6 address
                parts = urlsplit("")
            bare = f"{parts.scheme}://{parts.netloc}"
            # A password in an address would reach messages and process lists.
            is_bare = parts.hostname and url == bare and "@" not in parts.netloc and len(bare) <= MOST_CHARACTERS
            if parts.scheme not in ("http", "https") or not is_bare:
                fix = f"leave out /v1 and everything else behind the port, and put a key into {KEY_VARIABLE}"
                raise InputError("server url", expected="http://host:port", found=repr(without_secrets(url)), fix=fix)

    def ask(self, path: str, kind: type[Answered], body: Any = None) -> Answered:
        """The answer of the first replica to a GET, or to a POST of `body` as JSON; see `ask_all`."""
        return self.ask_all(path, kind, [body])[0]

    def ask_all(
        self,
        path: str,
        kind: type[Answered],
        bodies: Sequence[Any],
        *,
        fix: str = "",
        take: Callable[[int, Answered, str], None] = lambda i, answer, where: None,
        mend: Mend | None = None,
    ) -> list[Answered]:
        """The answers to a POST of every body, in the order of the bodies, which are shared out among the replicas.

        Args:
            path: on the server, with its leading slash.
            kind: what the answer is parsed as; InputError where it does not fit, with the advice `fix`.
            bodies: `concurrency` of them are on their way to a replica at a time.
            take: called when an answer comes, with the number of its body, the answer and its place; it may refuse it.
            mend: gives a replica what it may lack, before what failed there is asked again.
        """
        urls = [self.urls[i * len(self.urls) // len(bodies)] for i in range(len(bodies))]

        async def answer(i: int, replica: Replica) -> Answered:
            answer = await replica.ask(path, kind, bodies[i], fix=fix)
            take(i, answer, replica.at(path))
            return answer

        return self._run(urls, answer, path=path, mend=mend)

    def each(self, act: Callable[[Replica], Awaitable[Result]]) -> list[Result]:
        """What `act` returns of every replica, at all of them at a time."""
        return self._run(self.urls, lambda _, replica: act(replica))

    def _run(
        self,
        urls: Sequence[str],
        act: Callable[[int, Replica], Awaitable[Result]],
        *,
        path: str = "",
        mend: Mend | None = None,
    ) -> list[Result]:
        """What `act` returns of (i, the replica at urls[i]) for every i; `path` is what reports name."""

        async def results() -> list[Result]:
            states = dict.fromkeys(urls, "")
            done: list[None] = []
            async with self._client() as client, _told(path, states, done, len(urls)):
                gates = {url: asyncio.Semaphore(self.concurrency) for url in states}
                replicas = {url: Replica(url=url, client=client, limits=self.limits, gate=gates[url]) for url in states}

                async def result(i: int, replica: Replica) -> Result:
                    async with replica.gate:
                        answer = await self._repeated(partial(act, i), replica, mend, states)
                    done.append(None)
                    return answer

                return await asyncio.gather(*(result(i, replicas[url]) for i, url in enumerate(urls)))

        return asyncio.run(results())

    async def _repeated(
        self,
        act: Callable[[Replica], Awaitable[Result]],
        replica: Replica,
        mend: Mend | None,
        states: dict[str, str],
    ) -> Result:
        """What `act` returns, tried again after what may pass; with `mend`, once after a refusal too."""
        failure: Unreachable | Refused | None = None
        for pause in (0.0, *self.pauses_s):
            await asyncio.sleep(pause)
            try:
                if failure is not None and mend is not None:
                    async with replica.mending:
                        await mend(replica)
                result = await act(replica)
            except Unreachable as error:
                failure = error
                states[replica.url] = f" ({error}; asked again for {sum(self.pauses_s):g} s)"
            except Refused as error:
                if mend is None or isinstance(failure, Refused):
                    raise
                failure = error
            else:
                states[replica.url] = ""
                return result
        if isinstance(failure, Refused):
            raise failure
        assert failure is not None
        found = f"{failure} ({1 + len(self.pauses_s)} attempts)"
        fix = "is the server up? --set rollouts.server_wait_s=SECONDS says for how long it is asked"
        raise InputError(failure.where, expected="an answer", found=found, fix=fix) from failure

    def _client(self) -> httpx.AsyncClient:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=self.concurrency * len(self.urls))
        is_tls = any(url.startswith("https") for url in self.urls)
        # The time of a whole answer is limited by `Limits`: httpx limits that of each packet.
        client = partial(httpx.AsyncClient, headers=headers, timeout=None, limits=limits, verify=is_tls)
        try:
            return client()
        except (ImportError, ValueError):  # ALL_PROXY of a kind that httpx lacks, as SOCKS: not for JSON over HTTP
            return client(trust_env=False)


@asynccontextmanager
async def _told(path: str, states: Mapping[str, str], done: Sequence[None], total: int) -> AsyncIterator[None]:
    """Report now and then how many of the answers are there, also while none comes; states: {url: its trouble}."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            troubled = [url for url in states if states[url]]
            places = ", ".join(f"server {url}{path}{states[url]}" for url in troubled or states)
            report(f"waiting for {places}: answers", len(done), total)

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()
        with suppress(asyncio.CancelledError):
            await teller
