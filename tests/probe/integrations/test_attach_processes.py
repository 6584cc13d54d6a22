"""The rows of the guide's table of set-ups: two processes of gloo, and architectures by their default targets."""

import sys
from pathlib import Path

import processes
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.adapters.targets import adapted_share, find_targets

BENCH = str(Path(__file__).parents[2] / "bench")
CODE = f"import sys; sys.path.insert(0, {BENCH!r}); import attach_setups; attach_setups."


def unexpected(log: str) -> list[str]:
    rows = [line for line in log.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    return [row for row in rows if row.endswith("UNEXPECTED")]


def test_two_processes_come_out_as_the_table_says(tmp_path: Path) -> None:
    """DistributedDataParallel and FSDP2 against dL/dW in full, and what is refused."""
    logs = [tmp_path / f"rank{rank}" for rank in (0, 1)]
    store = str(tmp_path / "store")
    started = [processes.start(f"{CODE}in_process({rank}, {store!r})", log=log) for rank, log in enumerate(logs)]
    assert [processes.finish(process) for process in started] == [0, 0]
    assert not unexpected(logs[0].read_text())


@pytest.mark.parametrize("rows", ["EDGES", pytest.param("SINGLE", marks=pytest.mark.slow)])
def test_one_process_comes_out_as_the_table_says(tmp_path: Path, rows: str) -> None:
    """Records and `probe.cosines` equal autograd; in a process of its own, since trainings print warnings."""
    log = tmp_path / "rows"
    code = f"{CODE}quiet(); attach_setups.run_rows(attach_setups.{rows}, 0, '')"
    assert processes.finish(processes.start(code, log=log)) == 0
    assert not unexpected(log.read_text())


def test_every_architecture_has_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the row of its model type; what they are of the weights is what is said."""
    monkeypatch.syspath_prepend(BENCH)
    architectures = __import__("attach_setups").ARCHITECTURES
    monkeypatch.delitem(sys.modules, "attach_setups")
    shares = {}
    for name, (model_type, options, _) in architectures.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options))
        shares[name] = adapted_share(model, find_targets(model)).share
    assert shares == pytest.approx({name: share for name, (_, _, share) in architectures.items()}, abs=0.005)
