"""A real vLLM (make test-server): the organism, sampled, trained on, killed and started again.

Reference for what is sampled: a forward pass of the same weights here, whose log-probabilities the server's are.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from adapted import configured, move
from served import group_off, most_off

from probe.cli import cli
from probe.cli._frame import run
from probe.runs.sources.served import PushedEngine
from probe.settings.training import ModelConfig
from replay_pools.policy.load import ORGANISM_WEIGHTS, load_policy
from replay_pools.pool import Sampler, open_pool
from replay_pools.serving import Server, connect

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / os.environ.get("SERVER_VENV", ".venv-server") / "bin" / "python"
STARTING_S = 600
RANK = 64
SAME = 2e-3  # nats: two kernels in float32; another weight moves a log-probability by more than 100 times that

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no {PYTHON}: make test-server makes it"),
]


class Vllm:
    """A vLLM that serves the organism at a port of its own, until it is killed."""

    def __init__(self, port: int, log: Path) -> None:
        self.url, self._port, self._log = f"http://127.0.0.1:{port}", port, log
        self.start()

    def start(self) -> None:
        settings = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16"]
        settings += ["--distributed-executor-backend", "uni"]  # a process less
        settings += ["--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2", "--max-cpu-loras", "4"]
        settings += ["--model", str(ORGANISM_WEIGHTS), "--host", "127.0.0.1", "--port", str(self._port)]
        environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *settings],
                env=os.environ | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its engine is a process of its own, which is killed with it
            )

    def wait(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + STARTING_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"vLLM ended:\n{self._log.read_text()[-3000:]}"
            try:
                if httpx.get(f"{self.url}/health", timeout=5).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM does not answer:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def adapters(self) -> set[str]:
        cards = httpx.get(f"{self.url}/v1/models", timeout=60).json()["data"]
        return {card["id"] for card in cards if card["parent"] is not None}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm = Vllm(8931, tmp_path_factory.mktemp("vllm") / "log")
    try:
        vllm.wait()
        yield vllm
    finally:
        vllm.kill()


def test_a_pool(server: Vllm, tmp_path: Path) -> None:
    """Whole, with the policy's log-probabilities; the same seeds give the same completions."""
    options = f"--url {server.url} --hint --steps 3 --group 4 --max-new-tokens 48 --seed 5".split()
    for name in ("a", "b"):
        assert run(cli, ["pool", "generate", *options, "--name", name, "--out", str(tmp_path)]) == 0
    first, second = (open_pool(tmp_path / "pools" / name) for name in ("a", "b"))
    assert first.verify() == []
    rollouts, again = ([rollout for group in pool.steps for rollout in group] for pool in (first, second))
    assert len(rollouts) == 12
    assert [rollout.completion_ids for rollout in rollouts] == [rollout.completion_ids for rollout in again]
    assert group_off(load_policy("organism", dtype="float32"), rollouts) < SAME


@pytest.mark.parametrize("basis", ["svd", "lora"])
def test_new_weights_change_what_is_sampled(basis: str, server: Vllm, tmp_path: Path) -> None:
    """By the same seeds; each time with the log-probabilities of the weights that were pushed."""
    policy = load_policy("organism", dtype="float32")
    coordinates = configured(policy, basis, ModelConfig(lora_rank=8, svd_rank=RANK), tmp_path / "cache")
    base = connect(Server(url=server.url), policy)
    engine = PushedEngine(base, coordinates, tmp_path / "adapters", adapter="in training")
    prompt = policy.render([{"role": "user", "content": "Write f"}])[1]
    sampled = []
    for step in range(3):
        completions = engine.sample([prompt] * 4, Sampler(max_new_tokens=24), seeds=range(4))
        sampled.append([completion.ids for completion in completions])
        assert most_off(policy, [prompt] * 4, completions) < SAME, "of other weights than those here"
        move(coordinates, step, {"svd": 0.3, "lora": 0.1}[basis])
    assert sampled[0] != sampled[1] != sampled[2]
    engine.close()
    assert not server.adapters()
