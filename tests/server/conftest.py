"""A loopback server that speaks the dialects of vLLM and SGLang, as vLLM 0.32.0 was seen to answer and SGLang's sources
say; it samples from the organism, or makes answers up where none is needed.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from replay_pools.engines import Sampler
from replay_pools.policy.load import Policy, ServedPolicy, load_policy, load_served_policy
from replay_pools.sampling import sample

LOADING = threading.Lock()  # of peft, what two threads say while they load gets mixed up
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
    """Samples from the organism, or a model that writes as it does, with the adapters it is given; reports
    log-probabilities of one of the laws.
    """

    def __init__(self, law: str = "model", model: str = "organism") -> None:
        self.law, self.model = law, model
        self.policies = {"served": load_policy(model)}
        self.lock = threading.Lock()

    def load(self, name: str, directory: str) -> None:
        with LOADING:
            self.policies[name] = load_policy(self.model, adapter=directory)

    @torch.no_grad()
    def __call__(self, model: str, prompt: list[int], sampler: Sampler, seed: int) -> Completed:
        with self.lock:
            completion = sample(self.policies[model], [prompt], sampler, seeds=[seed])[0]
            return completion.ids, self._logprobs(self.policies[model], prompt, completion, sampler)

    def _logprobs(self, policy: Policy, prompt: list[int], completion: Any, sampler: Sampler) -> list[float]:
        if self.law == "sampler":
            return completion.logprobs
        ids = torch.tensor([[*prompt, *completion.ids]])
        logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        if self.law == "temperature":
            logits = logits / sampler.temperature
        rows = logits if self.law == "logits" else torch.log_softmax(logits, -1)
        return rows.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # all of a batch connects at once


class Loopback:
    """A server at `url`, until it is closed.

    Attributes:
        complete: makes a completion.
        spoil: what is done to the answer of a completion before it is sent.
        failing: statuses with which the next completions are refused.
        slow: seconds before a completion is answered, by its seed.
        takes_adapters: whether it was started with them.
        asked: (path, body) of every request, in the order of arrival; `headers` of the last.
        most: completions that were in flight together.
    """

    def __init__(self, dialect: str, complete: Callable[..., Completed], chat: ServedPolicy) -> None:
        self.dialect, self.complete, self.chat = dialect, complete, chat
        self.spoil: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.failing: list[int] = []
        self.slow: Callable[[int], float] = lambda seed: 0.0
        self.takes_adapters = True
        self.owner, self.version = dialect, "9.9.9"
        self.models = ["served"]
        self.adapters: dict[str, str] = {}
        self.asked: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.most = self._running = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._port = 0
        self.open()

    def open(self) -> None:
        """Start; after `close`, at the same port."""
        self._closed.clear()
        self._server = _Server(("127.0.0.1", self._port), self._handler())
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
        return [body for path, body in self.asked if path in ("/v1/completions", "/generate")]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 (http.server's name)
                self._answer(None)

            def do_POST(self) -> None:  # noqa: N802
                self._answer(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                outer.headers = dict(self.headers)
                status, answer = outer._answered(self.path, body)
                data = answer if isinstance(answer, bytes) else orjson.dumps(answer)
                if status == 0:  # the connection breaks
                    return
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except BrokenPipeError:  # the client has lost patience
                    pass

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _answered(self, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.asked.append((path, body))
        vllm = self.dialect == "vllm"
        if path == "/v1/models":
            cards = [{"id": name, "owned_by": self.owner, "parent": None} for name in self.models]
            return 200, {"data": cards + [{"id": n, "owned_by": self.owner, "parent": "served"} for n in self.adapters]}
        if path == ("/version" if vllm else "/server_info"):
            return 200, {"version": self.version}
        if path == "/tokenize":
            return 200, {"tokens": self.chat.tokenizer.encode(body["prompt"], add_special_tokens=False)}
        if path == ("/v1/completions" if vllm else "/generate"):
            return self._completion(body)
        if self.takes_adapters and path.endswith("load_lora_adapter") and path.startswith("/v1") == vllm:
            return self._adapter(path, body)
        return 404, {"detail": "Not Found"}

    def _completion(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            status = self.failing.pop(0) if self.failing else 200
        try:
            if status != 200:
                return status, {"error": {"message": "there is trouble"}}
            model = body["model"] if self.dialect == "vllm" else body.get("lora_path", self.models[0])
            if model not in [*self.models, *self.adapters]:
                return 404, {"error": {"message": f"The model `{model}` does not exist."}}
            answer = self._vllm(body) if self.dialect == "vllm" else self._sglang(body)
            return 200, self.spoil(answer)
        finally:
            with self._lock:
                self._running -= 1

    def _sampled(self, model: str, prompt: list[int], settings: dict[str, Any], limit: str, seed: int) -> Completed:
        self._closed.wait(self.slow(seed))
        sampler = Sampler(
            temperature=settings["temperature"],
            top_p=settings["top_p"],
            top_k=max(settings["top_k"], 0),
            max_new_tokens=settings[limit],
        )
        return self.complete(model, prompt, sampler, seed)

    def _vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["logprobs"] == 0
        assert body["return_token_ids"] is True
        ids, logprobs = self._sampled(body["model"], body["prompt"], body, "max_tokens", body["seed"])
        stopped = ids[-1] in body["stop_token_ids"]
        choice = {
            "index": 0,
            "text": self.chat.decode(ids),
            "logprobs": {"token_logprobs": logprobs, "tokens": [str(i) for i in ids]},
            "finish_reason": "stop" if stopped else "length",
            "stop_reason": None,
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"id": f"cmpl-{time.time_ns()}", "choices": [choice], "usage": usage}

    def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        settings = body["sampling_params"]
        model = body.get("lora_path", "served")
        assert body["return_logprob"] is True
        ids, logprobs = self._sampled(model, body["input_ids"], settings, "max_new_tokens", settings["sampling_seed"])
        stopped = ids[-1] in settings["stop_token_ids"]
        meta = {
            "id": str(time.time_ns()),
            "finish_reason": {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length"},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "output_token_logprobs": [[value, token, None] for value, token in zip(logprobs, ids, strict=True)],
        }
        return {"text": self.chat.decode(ids), "output_ids": ids, "meta_info": meta}

    def _adapter(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["lora_name"]
        if "unload" in path:
            if name not in self.adapters:
                return 404, {"error": {"message": f"The lora adapter '{name}' cannot be found."}}
            del self.adapters[name]
            return 200, b"Success" if self.dialect == "vllm" else {"success": True}
        if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
            message = f"Loading lora {name} failed: No adapter found for {body['lora_path']}"
            return (404, {"error": {"message": message}}) if self.dialect == "vllm" else (400, {"success": False})
        if isinstance(self.complete, Organism):
            self.complete.load(name, body["lora_path"])
        self.adapters[name] = body["lora_path"]
        return 200, b"Success" if self.dialect == "vllm" else {"success": True}


@pytest.fixture(scope="session")
def chat() -> ServedPolicy:
    return load_served_policy("organism")


@pytest.fixture
def loopback(chat: ServedPolicy) -> Iterator[Callable[..., Loopback]]:
    """loopback(dialect, complete) -> a running server, until the end of the test."""
    with _started(chat) as start:
        yield start


@pytest.fixture(scope="session")
def session_loopback(chat: ServedPolicy) -> Iterator[Callable[..., Loopback]]:
    """As loopback, until the end of the session."""
    with _started(chat) as start:
        yield start


@contextmanager
def _started(chat: ServedPolicy) -> Iterator[Callable[..., Loopback]]:
    servers: list[Loopback] = []

    def start(dialect: str = "vllm", complete: Callable[..., Completed] = made_up) -> Loopback:
        servers.append(Loopback(dialect, complete, chat))
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


@pytest.fixture(scope="session")
def organism() -> type[Organism]:
    """organism(law, model="organism") -> completions really sampled, with log-probabilities of that law."""
    return Organism
