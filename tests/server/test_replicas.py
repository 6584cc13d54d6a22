"""Several replicas, replicas that are restarted, batches that break off, gateways that hide what is behind them."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapted import configured

from probe.runs.resume import check_same
from probe.runs.sources.served import PushedEngine
from probe.settings.training import ModelConfig
from replay_pools.base.errors import InputError
from replay_pools.base.terminal import on_progress
from replay_pools.engines import Sampler
from replay_pools.policy.load import load_policy
from replay_pools.serving import connection
from replay_pools.serving.connection import Connection, backoff
from replay_pools.serving.dialects import Answer
from replay_pools.serving.engine import ServerEngine, connect
from replay_pools.serving.kept import KeptAnswers

PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14]] * 4
SEEDS = range(len(PROMPTS))
SHORT = Sampler(max_new_tokens=12)
Replicated = tuple[list[Any], ServerEngine]


@pytest.fixture
def replicated(loopback: Callable[..., Any], chat: Any) -> Callable[..., Replicated]:
    """replicated(number, **settings of Connection) -> (servers, the engine of all of them)."""

    def make(number: int, dialect: str = "vllm", **settings: Any) -> Replicated:
        servers = [loopback(dialect) for _ in range(number)]
        urls = tuple(server.url for server in servers)
        return servers, connect(Connection(urls=urls, **{"pauses_s": (0.01,) * 3} | settings), chat)

    return make


def test_requests_are_shared_out_and_give_what_one_server_gives(replicated: Callable[..., Replicated]) -> None:
    """In blocks: the rollouts of a group, which begin with the same prompt, go to one replica."""
    servers, engine = replicated(3)
    _, alone = replicated(1)
    before = [len(server.bodies()) for server in servers]
    assert engine.sample(PROMPTS, SHORT, seeds=SEEDS) == alone.sample(PROMPTS, SHORT, seeds=SEEDS)
    assert engine.describe(SHORT) == alone.describe(SHORT), "the number of replicas is part of the pool"
    for i, (server, known) in enumerate(zip(servers, before, strict=True)):
        assert sorted(body["seed"] for body in server.bodies()[known:]) == [*range(4 * i, 4 * i + 4)]


def test_an_adapter_is_on_every_replica_before_it_is_sampled(
    replicated: Callable[..., Replicated], small: str, tmp_path: Path
) -> None:
    """One that is not there ends the push, by its name; then no sample is asked of the others either."""
    servers, engine = replicated(2)
    coordinates = configured(load_policy(small), "lora", ModelConfig(lora_rank=4), tmp_path)
    pushed = PushedEngine(engine, coordinates, tmp_path / "adapters", adapter="in training")
    pushed.sample(PROMPTS, SHORT, seeds=SEEDS)
    for server in servers:
        (name,) = server.adapters
        assert [body["model"] for body in server.bodies()] == ["served"] * 2 + [name] * 6, "two measure the law"
        loaded, sampled = (
            [i for i, (_, body) in enumerate(server.asked) if body and body.get(key) == name]
            for key in ("lora_name", "model")
        )
        assert max(loaded) < min(sampled)
    coordinates.load_values({name: value + 1 for name, value in coordinates.values().items()})
    asked = len(servers[0].bodies())
    servers[1].close()
    with pytest.raises(InputError, match=rf"server {servers[1].url}/v1/models: .*ConnectError.*\(4 attempts\).*wait_s"):
        pushed.sample(PROMPTS, SHORT, seeds=SEEDS)
    assert len(servers[0].bodies()) == asked
    pushed.close()
    assert not servers[0].adapters, "the adapter stays on the replica that is there"


@pytest.mark.parametrize(("dialect", "trouble"), [("vllm", [404]), ("sglang", [404]), ("vllm", [0, 503, 0])])
def test_a_replica_that_was_restarted_is_given_its_adapter_again(
    dialect: str, trouble: list[int], replicated: Callable[..., Replicated], tmp_path: Path
) -> None:
    """Whether a request met the restart, or came after it: then the server does not know the adapter."""
    (first, second), engine = replicated(2, dialect)
    (tmp_path / "adapter_config.json").touch()
    engine = engine.with_adapter("pushed", tmp_path)
    calm = engine.sample(PROMPTS, SHORT, seeds=SEEDS)
    second.adapters.clear()
    second.failing = [] if trouble == [404] else list(trouble)
    assert engine.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    assert first.calls("load") == ["pushed"]
    assert second.calls("load") == ["pushed"] * 2, "loaded again, once for all requests"


def test_a_restart_is_sat_out_and_said(replicated: Callable[..., Replicated], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is gone when it is asked and comes back when the third line has said what is waited for."""
    monkeypatch.setattr(connection, "TOLD_EVERY_S", 0.05)
    (server,), engine = replicated(1, pauses_s=(0.02,) * 3000)
    calm = engine.sample(PROMPTS, SHORT, seeds=SEEDS)
    server.close()
    told: list[str] = []

    def hear(what: str, done: int, total: int) -> None:
        told.append(f"{what} {done}/{total}")
        if len(told) == 3:
            threading.Thread(target=server.open).start()

    with on_progress(hear):
        assert engine.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    line = f"waiting for server {server.url}/v1/completions (ConnectError: "
    assert told[2].startswith(line), told
    assert told[2].endswith("; asked again for 60 s): answers 0/12"), told
    assert sum(backoff(300)) == 300
    assert max(backoff(300)) == 16


def test_what_a_server_aborts_when_it_is_shut_down_is_asked_again(replicated: Callable[..., Replicated]) -> None:
    (server,), engine = replicated(1)
    calm = engine.sample(PROMPTS, SHORT, seeds=SEEDS)
    aborted: list[None] = []

    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        if len(aborted) < 2:
            aborted.append(None)
            answer["choices"][0]["finish_reason"] = "abort"
        return answer

    server.spoil = spoil
    assert engine.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    assert len(aborted) == 2


def test_answers_of_a_batch_that_broke_off_are_not_asked_for_again(
    replicated: Callable[..., Replicated], tmp_path: Path
) -> None:
    """Of that very batch alone; what a killed process wrote in part is asked for again."""
    (server,), engine = replicated(1, concurrency=1)
    calm, engine = engine.sample(PROMPTS, SHORT, seeds=SEEDS), replace(engine, kept=tmp_path)
    server.failing = [200] * 5 + [400]
    with pytest.raises(InputError, match=r"found 400"):
        engine.sample(PROMPTS, SHORT, seeds=SEEDS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    asked = len(server.bodies())
    assert engine.sample(PROMPTS[1:], SHORT, seeds=[*SEEDS][1:]) == calm[1:]
    assert len(server.bodies()) - asked == 11, "taken from another batch"
    server.failing = [200] * 2 + [400]
    with pytest.raises(InputError, match=r"found 400"):
        engine.sample(PROMPTS, SHORT, seeds=SEEDS)
    asked = len(server.bodies())
    assert engine.sample(PROMPTS, SHORT, seeds=SEEDS) == calm
    assert [body["seed"] for body in server.bodies()[asked:]] == [6, 7, 8, 9, 10, 11]
    assert not [*tmp_path.iterdir()], "what was kept stays behind"


def test_a_bad_answer_is_not_kept(replicated: Callable[..., Replicated], tmp_path: Path) -> None:
    (server,), engine = replicated(1)
    server.spoil = lambda answer: answer | {"usage": {"prompt_tokens": 99}}
    with pytest.raises(InputError, match="as it was sent, found 99"):
        replace(engine, kept=tmp_path).sample([[5, 6]], SHORT, seeds=[0])
    assert not [*tmp_path.iterdir()]
    kept = KeptAnswers(tmp_path, ["a body"])
    kept.add(0, Answer(ids=[1], logprobs=[-0.5], finish="stop", num_prompt_tokens=2))
    assert KeptAnswers(tmp_path, ["a body"]).answers == kept.answers
    assert KeptAnswers(tmp_path, ["another"]).answers == {}


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("models", ["served2"], "expected the model of http://.*, served, found served2"),
        ("version", "8.0", r"expected the version of http://.*, 9\.9\.9, found 8\.0"),
    ],
)
def test_replicas_that_differ_are_named(
    attribute: str, value: Any, expected: str, loopback: Callable[..., Any], chat: Any
) -> None:
    servers = [loopback(), loopback()]
    setattr(servers[1], attribute, value)
    with pytest.raises(InputError, match=f"server {servers[1].url}: {expected}"):
        connect(Connection(urls=tuple(server.url for server in servers)), chat)


def test_a_gateway_that_hides_the_server_is_told_which_it_is(loopback: Callable[..., Any], chat: Any) -> None:
    server = loopback("sglang")
    server.owner = "a company"
    where = Connection(urls=(server.url,))
    with pytest.raises(InputError, match=r"found owned_by 'a company'; .*--dialect"):
        connect(where, chat)
    engine = connect(where, chat, kind="sglang")
    assert engine.sample([[5, 6]], SHORT, seeds=[0])[0].ids == server.complete("served", [5, 6], SHORT, 0)[0]


def test_how_a_server_is_asked_may_change_in_a_resumed_run(tmp_path: Path) -> None:
    stored = {"settings": {"rollouts": {"server_wait_s": 1, "group": 2}}}
    check_same(tmp_path, stored, {"settings": {"rollouts": {"server_wait_s": 2, "group": 2}}})
    with pytest.raises(InputError, match=r"rollouts\.group"):
        check_same(tmp_path, stored, {"settings": {"rollouts": {"server_wait_s": 2, "group": 3}}})
