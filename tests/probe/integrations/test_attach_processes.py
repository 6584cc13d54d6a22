"""The rows of the guide's table of set-ups: two processes of gloo, and architectures by their default targets."""

import importlib
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.adapters.targets import adapted_share, find_targets

BENCH = str(Path(__file__).parents[2] / "bench")
CODE = f"import sys; sys.path.insert(0, {BENCH!r}); import attach_setups; attach_setups."


def unexpected(log: str) -> list[str]:
    rows = [line for line in log.splitlines() if line.startswith("|")]
    assert len(rows) > 8
    return [row for row in rows if row.endswith("UNEXPECTED")]


@pytest.mark.parametrize("variants", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_come_out_as_the_table_says(tmp_path: Path, variants: bool) -> None:
    """DistributedDataParallel and FSDP2 against dL/dW in full, and what is refused."""
    logs = [tmp_path / f"rank{rank}" for rank in (0, 1)]
    store = str(tmp_path / "store")
    calls = [f"{CODE}in_process({rank}, {store!r}, variants={variants})" for rank in (0, 1)]
    started = [processes.start(call, log=log) for call, log in zip(calls, logs, strict=True)]
    assert [processes.finish(process) for process in started] == [0, 0]
    assert not unexpected(logs[0].read_text())


@pytest.fixture
def setups(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the set-ups, which is no package."""
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("attach_setups")
    sys.modules.pop("attach_setups", None)


@pytest.mark.filterwarnings("ignore")  # trainings warn of renamed settings
@pytest.mark.parametrize("rows", ["EDGES", pytest.param("SINGLE", marks=pytest.mark.slow)])
def test_one_process_comes_out_as_the_table_says(setups: Any, rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Records and `probe.cosines` equal autograd; the latter's rows are slow, as test_facade.py has its cosines."""
    setups.run_rows(getattr(setups, rows), 0, "")
    assert not unexpected(capsys.readouterr().out)


def test_every_architecture_has_targets(setups: Any) -> None:
    """By the row of its model type; what they are of the weights is what is said."""
    shares, architectures = {}, setups.ARCHITECTURES
    for name, (model_type, options, _) in architectures.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options))
        shares[name] = adapted_share(model, find_targets(model)).share
    assert shares == pytest.approx({name: share for name, (_, _, share) in architectures.items()}, abs=0.005)
