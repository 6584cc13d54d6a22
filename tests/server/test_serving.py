"""The contract with a server: what is asked, what is believed of the answers, what is refused, what is sat out."""

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from probe.runs.resume import check_same
from replay_pools import serving
from replay_pools.base.errors import InputError
from replay_pools.base.terminal import on_progress
from replay_pools.policy.load import load_policy
from replay_pools.pool import Sampler
from replay_pools.sampling import LocalEngine
from replay_pools.serving import KEY_VARIABLE, Server, connect

PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14]] * 4
SEEDS = [2**40 + i for i in range(len(PROMPTS))]
SHORT = Sampler(max_new_tokens=12)


def test_ids_and_logprobs_are_the_servers_in_the_order_of_the_prompts(engine: Any) -> None:
    """Reference: the server's own function of (prompt, seed). Early requests are answered last."""
    server, served = engine()
    server.slow = lambda seed: 0.05 if seed < 3 else 0.0
    completions = served.sample(PROMPTS, SHORT, seeds=SEEDS)
    for seed, (prompt, completion) in enumerate(zip(PROMPTS, completions, strict=True)):  # the lowest 31 bits
        ids, logprobs = server.complete("served", prompt, SHORT, seed)
        assert completion.ids == ids, "an answer was given to another prompt"
        assert completion.logprobs == logprobs
        assert completion.finish_reason == ("stop" if ids[-1] == 2 else "length")
    assert served.sample(PROMPTS, SHORT, seeds=SEEDS) == completions
    assert served.sample(PROMPTS, SHORT, seeds=SEEDS[::-1]) != completions


def test_every_sampler_setting_is_sent(engine: Any) -> None:
    """A setting that is left out would come from the served model's generation config, unseen."""
    server, served = engine()
    served.sample([[5, 6]], Sampler(temperature=0.5, top_p=0.9, top_k=7, max_new_tokens=3), seeds=[0])
    served.sample([[5, 6]], Sampler(max_new_tokens=3), seeds=[0])
    bodies = server.bodies()
    assert [body["top_k"] for body in bodies] == [7, -1]
    assert (bodies[0]["temperature"], bodies[0]["top_p"], bodies[0]["stop_token_ids"]) == (0.5, 0.9, [2])
    off = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert all(off.items() <= body.items() for body in bodies)


def test_logprobs_are_those_of_the_sampler_or_absent(engine: Any, organism: Any, chat: Any) -> None:
    """Reference: what the local engine records for the same seed, which gives it the same ids."""
    served = engine(organism())[1]
    prompt = chat.render([{"role": "user", "content": "Write f"}])[1]
    for settings in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {}):
        sampler = Sampler(max_new_tokens=8, **settings)
        (found,) = served.sample([prompt], sampler, seeds=[3])
        (local,) = LocalEngine(load_policy("organism")).sample([prompt], sampler, seeds=[3])
        assert found.ids == local.ids
        assert served.describe(sampler)["engine"]["logprobs_recorded"] == (found.logprobs is not None) == (not settings)
    assert found.logprobs == pytest.approx(local.logprobs, abs=1e-5)


def test_passing_trouble_is_sat_out(engine: Any) -> None:
    """5xx, 429 and broken connections are followed by another attempt, and the completions are those of a calm day."""
    server, served = engine()
    calm = served.sample(PROMPTS, SHORT, seeds=SEEDS)
    server.failing = [500, 0, 503, 429]
    assert served.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    assert not server.failing


def test_a_restart_is_sat_out_and_said(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is gone when it is asked and comes back when the third line has said what is waited for."""
    monkeypatch.setattr(serving, "PAUSE_S", 0.02)
    server, served = engine(wait_s=60.0)
    calm = served.sample(PROMPTS, SHORT, seeds=SEEDS)
    server.close()
    told: list[tuple[str, int, int]] = []

    def hear(*words: Any) -> None:
        told.append(words)
        if len(told) == 3:
            threading.Thread(target=server.open).start()

    with on_progress(hear):
        assert served.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    assert told[2][0].startswith(f"waiting for server {server.url}/v1/completions (ConnectError: ")
    assert told[2][1:] == (0, len(PROMPTS))


def test_lasting_trouble_is_one_error(engine: Any) -> None:
    """Of the second attempt, where another may help."""
    server, served = engine()
    for status, attempts, expected in (
        (500, 2, "500 .*there is trouble"),
        (0, 2, "RemoteProtocolError"),
        (400, 1, "400 .*there is trouble"),
        (401, 1, "401"),
        (307, 1, "307"),
    ):
        server.failing, before = [status] * attempts, len(server.bodies())
        with pytest.raises(InputError, match=f"/v1/completions: expected an answer, found {expected}"):
            served.sample([[5, 6]], SHORT, seeds=[0])
        assert (len(server.bodies()) - before, server.failing) == (attempts, [])


def test_a_late_answer_and_a_dead_server_are_errors(engine: Any) -> None:
    server, served = engine(timeout_s=0.2)
    server.slow = lambda seed: 5.0
    with pytest.raises(InputError, match=r"expected an answer in 0\.2 s, found none.*rollouts\.server_timeout_s"):
        served.sample([[5, 6]], SHORT, seeds=[0])
    assert len(server.bodies()) == 1, "a server that is too slow was asked again"
    server.close()
    with pytest.raises(InputError, match="found ConnectError.* is the server up"):
        served.sample([[5, 6]], SHORT, seeds=[0])


@pytest.mark.parametrize(
    ("size", "pause", "expected"), [(65536, 0.0, "at most 1 MiB"), (1, 0.05, "in 1 s, found none")]
)
def test_an_endless_answer_is_cut(
    size: int, pause: float, expected: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_BYTES", 1 << 20)
    server, served = engine(timeout_s=1.0)
    parts = itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" " * size))
    server.spoil = lambda answer: (time.sleep(pause) or part for part in parts)
    with pytest.raises(InputError, match=expected):
        served.sample([[5, 6]], SHORT, seeds=[0])


def choice(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Spoil the first choice of an answer."""

    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        change(answer["choices"][0])
        return answer

    return spoil


CUT = {"token_ids": [10], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
SPOILT = {
    "no token ids": (choice(lambda c: c.pop("token_ids")), "token_ids: Field required, .*0.10.2"),
    "no logprobs": (choice(lambda c: c.update(logprobs=None)), "logprobs: .*found nothing"),
    "a missing logprob": (choice(lambda c: c["logprobs"]["token_logprobs"].pop()), "log-probabilities, one an"),
    "no ids at all": (choice(lambda c: c.update(token_ids=[])), "token_ids: List should have at least 1"),
    "a stop elsewhere": (choice(lambda c: c["token_ids"].__setitem__(-1, 77)), r"stop at one of \[2\]"),
    "end of turn passed": (choice(lambda c: c["token_ids"].__setitem__(0, 2)), "end of turn at the end"),
    "context full": (choice(lambda c: c.update(CUT)), "12 ids, or an end of turn before, .*max-model-len"),
    "another finish": (choice(lambda c: c.update(finish_reason="abort")), "found 'abort'"),
    "logits": (choice(lambda c: c["logprobs"]["token_logprobs"].__setitem__(0, 3.5)), "3.5, above 0"),
    "no JSON": (lambda a: b"<html>", "Invalid JSON"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(fault: str, engine: Any) -> None:
    """The error is one line that names the completion, and no completion comes out."""
    spoil, expected = SPOILT[fault]
    server, served = engine()
    prompt = next(p for p in ([5, i] for i in range(99)) if 2 < len(server.complete("", p, SHORT, 0)[0]) < 12)
    server.spoil = spoil
    with pytest.raises(InputError, match=expected) as caught:
        served.sample([prompt], SHORT, seeds=[0])
    assert caught.value.where == f"server {server.url}/v1/completions completion 0"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_what_cannot_be_served_is_named(loopback: Any, chat: Any) -> None:
    """A model that is not there, and one whose tokenizer makes other ids."""
    server = loopback()
    for server.models, wanted, expected in (
        (["a", "b"], None, "expected one base model, found a, b; name it with --served-model"),
        ([], None, "found no model"),
        (["served"], "other", "expected a model other, found served"),
    ):
        with pytest.raises(InputError, match=expected):
            connect(Server(url=server.url), chat, served_model=wanted)
    server.chat = SimpleNamespace(tokenizer=SimpleNamespace(encode=lambda text, **options: [1, 2, 3]))
    with pytest.raises(InputError, match=r"the ids of the tokenizer of organism, found .1, 2, 3. for"):
        connect(Server(url=server.url), chat)


def test_an_adapter_that_the_server_has_is_sampled_by_its_name(loopback: Any, chat: Any) -> None:
    """One that it has lost, as after a restart, ends the sampling with the fix."""
    server = loopback()
    server.adapters["teacher"] = "/somewhere"
    served = connect(Server(url=server.url), chat, served_model="teacher")
    served.sample([[5, 6]], SHORT, seeds=[0])
    assert [body["model"] for body in server.bodies()] == ["teacher"]
    assert served.describe(SHORT)["policy"]["adapter"] == "teacher"
    server.adapters.clear()
    with pytest.raises(InputError, match="found 404 .*a restarted server"):
        served.sample([[5, 6]], SHORT, seeds=[0])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/v1", "ftp://h", "http://", "http://[::1"])
def test_a_url_is_scheme_host_and_port(url: str) -> None:
    with pytest.raises(InputError, match="expected http://host:port"):
        Server(url=url)
    assert Server(url="http://[::1]:80").at("/x") == "server http://[::1]:80/x"


def test_the_key_is_sent_and_recorded_nowhere(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, served = engine()
    assert "Authorization" not in server.headers
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    served.sample([[5, 6]], SHORT, seeds=[0])
    assert server.headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(served) + repr(served.describe(SHORT))


def test_the_patience_with_a_server_may_change_in_a_resumed_run(tmp_path: Any) -> None:
    stored = {"settings": {"rollouts": {"server_timeout_s": 1, "group": 2}}}
    check_same(tmp_path, stored, {"settings": {"rollouts": {"server_timeout_s": 2, "group": 2}}})
    with pytest.raises(InputError, match=r"rollouts\.group"):
        check_same(tmp_path, stored, {"settings": {"rollouts": {"server_timeout_s": 2, "group": 3}}})
