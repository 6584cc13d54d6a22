"""The contract with a server: what is asked, what is believed of the answers, and what is refused, in both dialects."""

from collections.abc import Callable
from typing import Any

import pytest

from replay_pools.base.errors import InputError
from replay_pools.engines import Sampler
from replay_pools.serving.connection import KEY_VARIABLE, Connection
from replay_pools.serving.engine import ServerEngine, connect, is_law_of
from replay_pools.serving.replica import Limits

PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14]] * 4
SHORT = Sampler(max_new_tokens=12)
DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "sglang"])


def patient(server: Any, **settings: Any) -> Connection:
    """A connection that does not pause for long."""
    timeout_s = settings.pop("timeout_s", 20.0)
    usual = {"urls": (server.url,), "pauses_s": (0.01, 0.01), "limits": Limits(timeout_s=timeout_s)}
    return Connection(**usual | settings)


@pytest.fixture
def engine(loopback: Callable[..., Any], chat: Any) -> Callable[..., tuple[Any, ServerEngine]]:
    """engine(dialect) -> (server, connected engine)."""

    def make(dialect: str = "vllm", **settings: Any) -> tuple[Any, ServerEngine]:
        server = loopback(dialect)
        return server, connect(patient(server, **settings), chat)

    return make


@DIALECTS
def test_ids_and_logprobs_are_the_servers_in_the_order_of_the_prompts(dialect: str, engine: Any) -> None:
    """Reference: the server's own function of (prompt, seed). Early requests are answered last."""
    server, served = engine(dialect)
    seeds = [2**40 + i for i in range(len(PROMPTS))]
    server.slow = lambda seed: 0.05 if seed < 3 else 0.0
    completions = served.sample(PROMPTS, SHORT, seeds=seeds)
    for seed, (prompt, completion) in enumerate(zip(PROMPTS, completions, strict=True)):  # the lowest 31 bits
        ids, logprobs = server.complete("served", prompt, SHORT, seed)
        assert completion.ids == ids, "an answer was given to another prompt"
        assert completion.logprobs == logprobs
        assert completion.finish_reason == ("stop" if ids[-1] == 2 else "length")
    assert served.sample(PROMPTS, SHORT, seeds=seeds) == completions
    assert served.sample(PROMPTS, SHORT, seeds=seeds[::-1]) != completions


@DIALECTS
def test_every_sampler_setting_is_sent(dialect: str, engine: Any) -> None:
    """A setting that is left out would come from the served model's generation config, unseen."""
    server, served = engine(dialect)
    served.sample([[5, 6]], Sampler(temperature=0.5, top_p=0.9, top_k=7, max_new_tokens=3), seeds=[0])
    served.sample([[5, 6]], Sampler(max_new_tokens=3), seeds=[0])
    bodies = [body if dialect == "vllm" else body["sampling_params"] for body in server.bodies()[-2:]]
    assert [body["top_k"] for body in bodies] == [7, -1]
    assert (bodies[0]["temperature"], bodies[0]["top_p"]) == (0.5, 0.9)
    assert bodies[0]["stop_token_ids"] == [2]
    off = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert all(off.items() <= body.items() for body in bodies)


def test_requests_in_flight_are_capped(engine: Any) -> None:
    server, served = engine(concurrency=3)
    server.slow = lambda seed: 0.02
    served.sample(PROMPTS, SHORT, seeds=[0] * len(PROMPTS))
    assert 2 <= server.most <= 3


def test_passing_trouble_is_sat_out(engine: Any) -> None:
    """5xx, 429 and broken connections are followed by another attempt, and the completions are those of a calm day."""
    server, served = engine()
    calm = served.sample(PROMPTS, SHORT, seeds=[1] * len(PROMPTS))
    server.failing = [500, 0, 503, 429]
    assert served.sample(PROMPTS, SHORT, seeds=[1] * len(PROMPTS)) == calm


@pytest.mark.parametrize(
    ("status", "attempts", "expected"),
    [
        (500, 3, r"found 500 .*there is trouble.* \(3 attempts\)"),
        (0, 3, r"found RemoteProtocolError.* \(3 attempts\)"),
        (400, 1, "found 400 .*there is trouble"),
        (401, 1, "found 401"),
        (307, 1, "found 307"),
    ],
)
def test_lasting_trouble_is_one_error(status: int, attempts: int, expected: str, engine: Any) -> None:
    server, served = engine()
    server.failing = [status] * attempts
    before = len(server.bodies())
    with pytest.raises(InputError, match=f"/v1/completions: expected an answer, {expected}"):
        served.sample([[5, 6]], SHORT, seeds=[0])
    assert len(server.bodies()) - before == attempts
    assert not server.failing


def test_a_late_answer_and_a_dead_server_are_errors(engine: Any) -> None:
    server, served = engine(timeout_s=0.2)
    server.slow = lambda seed: 5.0
    before = len(server.bodies())
    with pytest.raises(InputError, match=r"expected an answer in 0\.2 s, found none"):
        served.sample([[5, 6]], SHORT, seeds=[0])
    assert len(server.bodies()) - before == 1, "a server that is too slow was asked again"
    server.close()
    with pytest.raises(InputError, match="found ConnectError.* check that the server is up"):
        served.sample([[5, 6]], SHORT, seeds=[0])


def choice(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Spoil the first choice of an answer of vLLM."""

    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        change(answer["choices"][0])
        return answer

    return spoil


def meta(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Spoil `meta_info` of an answer of SGLang."""

    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        change(answer["meta_info"])
        return answer

    return spoil


SPOILT = {
    "no token ids": ("vllm", choice(lambda c: c.pop("token_ids")), "token_ids: Field required, .*0.10.2"),
    "no logprobs": ("vllm", choice(lambda c: c.update(logprobs=None)), "logprobs: .*found nothing"),
    "a missing logprob": ("vllm", choice(lambda c: c["logprobs"]["token_logprobs"].pop()), "log-probabilities, one an"),
    "a null logprob": ("vllm", choice(lambda c: c["logprobs"]["token_logprobs"].append(None)), "valid number"),
    "no choice": ("vllm", lambda a: a | {"choices": []}, "choices.0.token_ids: Field required"),
    "no ids at all": ("vllm", choice(lambda c: c.update(token_ids=[])), "expected token ids, found"),
    "a stop elsewhere": ("vllm", choice(lambda c: c["token_ids"].__setitem__(-1, 77)), r"stop at one of \[2\]"),
    "end of turn passed": ("vllm", choice(lambda c: c["token_ids"].__setitem__(0, 2)), "end of turn only at the end"),
    "cut short": ("vllm", lambda a: cut(a), "12 ids, or an end of turn, .*max-model-len"),
    "another finish": ("vllm", choice(lambda c: c.update(finish_reason="abort")), "found finish reason abort"),
    "another prompt": (
        "vllm",
        lambda a: a | {"usage": {"prompt_tokens": 3}},
        "prompt of 2 ids as sent, found 3",
    ),
    "logits": ("vllm", choice(lambda c: c["logprobs"]["token_logprobs"].__setitem__(0, 3.5)), "3.5, above 0"),
    "no JSON": ("vllm", lambda a: b"<html>", "Invalid JSON"),
    "sglang: no ids": ("sglang", lambda a: {k: v for k, v in a.items() if k != "output_ids"}, "output_ids: Field req"),
    "sglang: no logprobs": ("sglang", meta(lambda m: m.pop("output_token_logprobs")), "output_token_logprobs: Field"),
    "sglang: fewer": ("sglang", meta(lambda m: m["output_token_logprobs"].pop()), "should be the same"),
    "sglang: aborted": ("sglang", meta(lambda m: m["finish_reason"].update(type="abort")), "found finish reason abort"),
    "sglang: a list": ("sglang", lambda a: [a], "should be an object"),
}


def cut(answer: dict[str, Any]) -> dict[str, Any]:
    """The server's context was full before the turn ended."""
    first = answer["choices"][0]
    first["token_ids"] = [10]
    first["logprobs"]["token_logprobs"] = [-1.0]
    first["finish_reason"] = "length"
    return answer


@pytest.mark.parametrize("fault", SPOILT)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(fault: str, engine: Any) -> None:
    """One spoilt completion in a batch: the error names it, and no completion comes out."""
    dialect, spoil, expected = SPOILT[fault]
    server, served = engine(dialect)
    prompt = next(p for p in ([5, i] for i in range(99)) if 2 < len(server.complete("", p, SHORT, 0)[0]) < 12)
    server.spoil = spoil
    with pytest.raises(InputError, match=expected) as caught:
        served.sample([prompt], SHORT, seeds=[0])
    assert caught.value.where.startswith(f"server {server.url}/")


@DIALECTS
def test_the_server_must_speak_the_tokenizers_ids(dialect: str, loopback: Any, chat: Any) -> None:
    server = loopback(dialect)

    class Other:
        tokenizer = type("Tokenizer", (), {"encode": lambda self, text, **options: [1, 2, 3]})()

    server.chat = Other()
    with pytest.raises(InputError, match=r"token ids of organism, found other ids from position"):
        connect(patient(server), chat)


@pytest.mark.parametrize(
    ("changes", "wanted", "expected"),
    [
        ({"models": ["a", "b"]}, None, "expected one base model, found a, b; name it with --served-model"),
        ({"models": []}, None, "found no model"),
        ({}, "other", "expected a model other, found served"),
        ({"owner": "llamacpp"}, None, "vllm, sglang, found owned_by 'llamacpp'"),
    ],
)
def test_what_cannot_be_served_is_named(
    changes: dict[str, Any], wanted: str | None, expected: str, loopback: Any, chat: Any
) -> None:
    server = loopback()
    vars(server).update(changes)
    with pytest.raises(InputError, match=expected):
        connect(patient(server), chat, served_model=wanted)


@DIALECTS
def test_an_adapter_that_the_server_has_is_sampled_by_its_name(dialect: str, loopback: Any, chat: Any) -> None:
    server = loopback(dialect)
    server.adapters["teacher"] = "/somewhere"
    served = connect(patient(server), chat, served_model="teacher")
    key = "model" if dialect == "vllm" else "lora_path"
    assert all(body[key] == "teacher" for body in server.bodies())
    assert served.describe(SHORT)["policy"]["adapter"] == "teacher"


HALF = ("127.0.0.1:8000", "http://127.0.0.1:8000/v1", "http://h:1/", "ftp://h", "http://", "http://[::1", "")


@pytest.mark.parametrize("url", [*HALF, "file:///etc/passwd", "http://" + "a" * 9999])
def test_a_url_is_scheme_host_and_port(url: str) -> None:
    with pytest.raises(InputError, match="expected http://host:port"):
        Connection(urls=(url,))


def test_the_key_is_sent_and_recorded_nowhere(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, served = engine()
    assert "Authorization" not in server.headers
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    served.sample([[5, 6]], SHORT, seeds=[0])
    assert server.headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(served) + repr(served.describe(SHORT))


LAWS = [("vllm", "model"), ("vllm", "sampler"), ("sglang", "temperature"), ("sglang", "model"), ("vllm", "temperature")]


@pytest.mark.parametrize(("dialect", "law"), LAWS)
def test_the_law_of_logprobs_is_measured_and_others_are_dropped(
    dialect: str, law: str, loopback: Any, organism: Any, chat: Any
) -> None:
    """Reference for every sampler: the law that the local engine records (the same seed gives it the same ids)."""
    server = loopback(dialect, organism(law))
    served = connect(patient(server), chat)
    assert served.law == law
    prompt = chat.render([{"role": "user", "content": "Write f"}])[1]
    for settings in ({}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"temperature": 1.5, "top_k": 5}):
        sampler = Sampler(max_new_tokens=8, **settings)
        found = served.sample([prompt], sampler, seeds=[3])[0]
        server.complete.law = "sampler"
        ids, logprobs = server.complete("served", prompt, sampler, 3)
        server.complete.law = law
        assert found.ids == ids
        assert served.describe(sampler)["engine"]["logprobs_recorded"] == (found.logprobs is not None)
        if found.logprobs is not None:
            assert found.logprobs == pytest.approx(logprobs, abs=1e-4), f"{law} was recorded as the law of {sampler}"
        assert (found.logprobs is not None) == is_law_of(law, sampler)
    assert is_law_of(law, Sampler()), "at temperature 1, nothing cut off, the three laws are one"


def test_logits_are_refused_when_connecting(loopback: Any, organism: Any, chat: Any) -> None:
    server = loopback("vllm", organism("logits"))
    with pytest.raises(InputError, match="logits are not log-probabilities"):
        connect(patient(server), chat)
