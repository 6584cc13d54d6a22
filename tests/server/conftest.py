"""A loopback server that answers as vLLM 0.32.0 does; it samples from the organism, or makes answers up."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from replay_pools.policy.adapters import merge_adapter
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import load_policy, load_served_policy
from replay_pools.pool import Sampler
from replay_pools.sampling import LocalEngine
from replay_pools.serving import Server, ServerEngine, connect

Completed = tuple[list[int], list[float]]
EOS = 2


def made_up(model: str, prompt: list[int], sampler: Sampler, seed: int) -> Completed:
    """Ids without EOS but at the end, a function of prompt and seed; a raw law that temperature leaves alone."""
    draw = random.Random(f"{prompt}/{seed}")
    length = draw.randint(1, sampler.max_new_tokens)
    ids = [draw.randrange(10, 900) for _ in range(length)]
    if length < sampler.max_new_tokens:
        ids[-1] = EOS
    return ids, [-draw.random() - 0.1 for _ in ids]


class Organism:
    """Samples from the organism, or a model that writes as it does, with the adapters it is given."""

    def __init__(self, model: str = "organism") -> None:
        self.policies = {"served": load_policy(model)}
        self.lock = threading.Lock()

    def load(self, name: str, directory: str) -> None:
        with self.lock:
            served = self.policies["served"]
            merged = merge_adapter(deepcopy(served.model), Path(directory)).eval()
            self.policies[name] = replace(served, model=merged)

    @torch.no_grad()
    def __call__(self, model: str, prompt: list[int], sampler: Sampler, seed: int) -> Completed:
        """The model's own log-probabilities, whatever the sampler is."""
        with self.lock:
            policy = self.policies[model]
            ids = LocalEngine(policy).sample([prompt], sampler, seeds=[seed])[0].ids
            logits = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            return ids, torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


class Loopback:
    """A server at `url`, until it is closed.

    Attributes:
        complete: makes a completion.
        spoil: what is done to the answer of a completion before it is sent; an iterator is sent as raw bytes.
        failing: statuses with which the next completions are refused; 0: the connection breaks.
        slow: seconds before a completion is answered, by its seed.
        asked: (path, body) of every request, in the order of arrival; `headers` of the last.
    """

    def __init__(self, complete: Callable[..., Completed], chat: Chat) -> None:
        self.complete, self.chat = complete, chat
        self.spoil: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.failing: list[int] = []
        self.slow: Callable[[int], float] = lambda seed: 0.0
        self.models, self.adapters = ["served"], dict[str, str]()
        self.asked: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.lock, self._closed, self._port = threading.Lock(), threading.Event(), 0
        self.open()

    def open(self) -> None:
        """Start; after `close`, at the same port."""
        self._closed.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.socket.listen(128)  # all of a batch connects at once
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def calls(self, what: str) -> list[str]:
        """Names of the adapters that it was asked to `load` or `unload`."""
        return [body["lora_name"] for path, body in self.asked if path.rpartition("/")[2] == f"{what}_lora_adapter"]

    def bodies(self) -> list[dict[str, Any]]:
        """Of the completions that were asked for."""
        return [body for path, body in self.asked if path == "/v1/completions"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 (http.server's name)
                outer.headers = dict(self.headers)
                status, answer = outer._answered(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
                parts = answer if isinstance(answer, Iterator) else ()
                if status and not parts:  # 0: the connection breaks
                    data = answer if isinstance(answer, bytes) else orjson.dumps(answer)
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    parts = [data]
                with suppress(OSError):  # the client has lost patience
                    for part in parts:
                        self.wfile.write(part)

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _answered(self, path: str, content: bytes) -> tuple[int, Any]:
        body: Any = orjson.loads(content) if content else None
        with self.lock:
            self.asked.append((path, body))
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            return self._adapter(path, body)
        if path == "/v1/completions":
            return self._completion(body)
        cards = {**dict.fromkeys(self.models), **dict.fromkeys(self.adapters, "served")}
        fixed: dict[str, Callable[[], Any]] = {
            "/v1/models": lambda: {"data": [{"id": name, "owned_by": "vllm", "parent": cards[name]} for name in cards]},
            "/version": lambda: {"version": "9.9.9"},
            "/tokenize": lambda: {"tokens": self.chat.tokenizer.encode(body["prompt"], add_special_tokens=False)},
        }
        return (200, fixed[path]()) if path in fixed else (404, {"detail": "Not Found"})

    def _completion(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            status = self.failing.pop(0) if self.failing else 200
        if status != 200:
            return status, {"error": {"message": "there is trouble"}}
        if body["model"] not in [*self.models, *self.adapters]:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        assert (body["logprobs"], body["return_token_ids"]) == (0, True)
        ids, logprobs = self._sampled(body["model"], body)
        finish = "stop" if ids[-1] in body["stop_token_ids"] else "length"
        choice = {"text": self.chat.decode(ids), "token_ids": ids, "finish_reason": finish}
        choice["logprobs"] = {"token_logprobs": logprobs, "tokens": [str(i) for i in ids]}
        return 200, self.spoil({"choices": [choice]})

    def _sampled(self, model: str, body: dict[str, Any]) -> Completed:
        self._closed.wait(self.slow(body["seed"]))
        laws = {"temperature": body["temperature"], "top_p": body["top_p"], "top_k": max(body["top_k"], 0)}
        return self.complete(model, body["prompt"], Sampler(**laws, max_new_tokens=body["max_tokens"]), body["seed"])

    def _adapter(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["lora_name"]
        if "unload" in path:
            if name not in self.adapters:
                return 404, {"error": {"message": f"The lora adapter '{name}' cannot be found."}}
            del self.adapters[name]
            return 200, b"Success"
        if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
            return 404, {"error": {"message": f"Loading lora {name} failed: No adapter found for {body['lora_path']}"}}
        if isinstance(self.complete, Organism):
            self.complete.load(name, body["lora_path"])
        self.adapters[name] = body["lora_path"]
        return 200, b"Success"


@pytest.fixture(scope="session")
def chat() -> Chat:
    return load_served_policy("organism")


@pytest.fixture(scope="session")
def loopback(chat: Chat) -> Iterator[Callable[..., Loopback]]:
    """loopback(complete) -> a running server."""
    servers: list[Loopback] = []

    def start(complete: Callable[..., Completed] = made_up) -> Loopback:
        servers.append(Loopback(complete, chat))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def engine(loopback: Callable[..., Loopback], chat: Chat) -> Callable[..., tuple[Loopback, ServerEngine]]:
    """engine(*complete, **settings of Server) -> (server, connected engine, which repeats a request once)."""

    def make(*complete: Callable[..., Completed], **settings: Any) -> tuple[Loopback, ServerEngine]:
        server = loopback(*complete)
        return server, connect(Server(url=server.url, **{"timeout_s": 20.0, "wait_s": 0.01} | settings), chat)

    return make


@pytest.fixture(scope="session")
def organism() -> type[Organism]:
    """organism(model="organism") -> completions really sampled."""
    return Organism
