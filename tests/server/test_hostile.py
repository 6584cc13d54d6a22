"""A server that never ends: every answer is limited in bytes and in time, whatever part of it is endless."""

import itertools
import json
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from replay_pools.base.errors import InputError
from replay_pools.base.terminal import on_progress
from replay_pools.serving import connection, replica
from replay_pools.serving.connection import Connection
from replay_pools.serving.dialects import VllmAnswer
from replay_pools.serving.replica import Limits, TokenId, Wire

OK = b"HTTP/1.1 200 OK\r\n"


class Ids(Wire):
    """Any answer with token ids."""

    ids: list[TokenId]


@pytest.fixture
def serve() -> Iterator[Callable[..., Connection]]:
    """serve(chunks) -> a connection to a server that answers every request with the chunks, a pause after each."""
    stopped, threads, listener = threading.Event(), [], socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket, chunks: Callable[[], Iterator[bytes]], pause: float) -> None:
        with client:
            client.recv(1 << 16)
            try:
                for chunk in chunks():
                    if stopped.wait(pause):
                        return
                    client.sendall(chunk)
            except OSError:  # the client has had enough
                pass

    def accept(chunks: Callable[[], Iterator[bytes]], pause: float) -> None:
        while not stopped.is_set():
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            threads.append(threading.Thread(target=answer, args=(client, chunks, pause)))
            threads[-1].start()

    def make(chunks: Callable[[], Iterator[bytes]], pause: float = 0.0) -> Connection:
        threads.append(threading.Thread(target=accept, args=(chunks, pause)))
        threads[-1].start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return Connection(urls=(url,), limits=Limits(timeout_s=1.0), pauses_s=(0.01,))

    yield make
    stopped.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join()


FLOODS = {
    "a body without a length": lambda: itertools.chain([OK + b"\r\n"], itertools.repeat(b" " * 65536)),
    "a length of 10^18": lambda: itertools.chain(
        [OK + b"Content-Length: 1" + b"0" * 18 + b"\r\n\r\n"], itertools.repeat(b" " * 65536)
    ),
    "chunks": lambda: itertools.chain(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(b"10000\r\n" + b" " * 65536 + b"\r\n")
    ),
    "an error": lambda: itertools.chain([b"HTTP/1.1 500 No\r\n\r\n"], itertools.repeat(b"x" * 65536)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_an_endless_answer_is_cut(flood: str, serve: Callable[..., Connection]) -> None:
    expected = r"server http.*: expected an answer of at most 1 MiB, found more; --set rollouts.server_answer_mib="
    with pytest.raises(InputError, match=expected):
        replace(serve(FLOODS[flood]), limits=Limits(most_bytes=1 << 20)).ask("/x", Ids)


def test_too_many_headers_are_one_error(serve: Callable[..., Connection]) -> None:
    server = serve(lambda: itertools.chain([OK], itertools.repeat(b"X: y\r\n" * 10_000)))
    with pytest.raises(InputError, match="expected an answer, found RemoteProtocolError"):
        server.ask("/x", Ids)


def test_an_answer_that_ends_early_is_asked_for_again(serve: Callable[..., Connection]) -> None:
    server = serve(lambda: iter([OK + b'Content-Length: 20\r\n\r\n{"ids": []}']))
    with pytest.raises(InputError, match=r"received 11 bytes, expected 20\) \(2 attempts\)"):
        server.ask("/x", Ids)


DRIPS = {
    "continuations": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "headers": lambda: itertools.chain([OK], itertools.repeat(b"X")),
    "body": lambda: itertools.chain([OK + b"\r\n"], itertools.repeat(b" ")),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_byte_now_and_then_does_not_hold_the_connection(drip: str, serve: Callable[..., Connection]) -> None:
    """Every packet is in time, the answer is not."""
    start = time.monotonic()
    with pytest.raises(InputError, match="expected an answer in 1 s, found none"):
        serve(DRIPS[drip], 0.05).ask("/x", Ids)
    assert time.monotonic() - start < 60


def test_a_dripping_answer_is_given_up_long_before_the_deadline(serve: Callable[..., Connection], monkeypatch) -> None:
    """One that has begun has to come at a pace; one that has not may take its time, and is said to be waited for."""
    monkeypatch.setattr(replica, "START_S", 0.2)
    monkeypatch.setattr(connection, "TOLD_EVERY_S", 0.05)
    server, told = replace(serve(DRIPS["body"], 0.05), limits=Limits()), list[tuple[str, int, int]]()
    with (
        on_progress(lambda *words: told.append(words)),
        pytest.raises(InputError, match=r"at 1024 bytes a second or faster, found \d+ bytes in .*server_bytes_per_s"),
    ):
        server.ask("/x", Ids)
    assert told
    assert {words[1:] for words in told} == {(0, 1)}
    assert told[0][0] == f"waiting for server {server.urls[0]}/x: answers"


def test_what_is_not_read_is_not_kept(serve: Callable[..., Connection]) -> None:
    choice = {"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop", "junk": "x" * 10**6}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1}, "junk": "y" * 10**6}).encode()
    server = serve(lambda: iter([OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body]))
    answer = server.ask("/x", VllmAnswer)
    assert answer.ids == [1]
    assert len(pickle.dumps(answer)) < 10_000


@pytest.mark.parametrize(
    "body",
    [b"[" + b"9" * 400 + b"]}", b"[" * 100_000, b"[2147483648]}"],
    ids=["400 digits", "deep", "above 2^31"],
)
def test_numbers_that_are_no_ids_are_one_line(body: bytes, serve: Callable[..., Connection]) -> None:
    body = b'{"ids": ' + body
    server = serve(lambda: iter([OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body]))
    with pytest.raises(InputError, match="server http") as error:
        server.ask("/x", Ids)
    assert len(str(error.value)) < 1000
    assert "\n" not in str(error.value)


def test_a_proxy_that_httpx_lacks_is_left_out(serve: Callable[..., Connection], monkeypatch) -> None:
    """SOCKS for everything, as many shells set it: the server is asked without."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    body = b'{"ids": [1]}'
    server = serve(lambda: iter([OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body]))
    assert server.ask("/x", Ids).ids == [1]
