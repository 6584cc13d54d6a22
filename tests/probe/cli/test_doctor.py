"""probe doctor: what it says of a sound installation, and the fix that it names for every kind of failure."""

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from probe.cli import doctor
from probe.cli.doctor import diagnose
from replay_pools.environments.base import Environment
from replay_pools.environments.registry import get_environment
from replay_pools.grading import tiers
from replay_pools.pool import Pool


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """result(name): what one check of the table says."""

    def run_one(name: str) -> dict[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(doctor, "CHECKS", {name: doctor.CHECKS[name]})
            (row,) = diagnose(tmp_path / "out")
        return row

    return run_one


def test_this_installation_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests passes every check; no file is left, no connection is tried."""
    tried = []
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *args, **kwargs: tried.append(args))
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: tried.append(address))
    results = diagnose(tmp_path / "out")
    assert [row["name"] for row in results] == [*doctor.CHECKS]
    assert {(row["status"], row["fix"]) for row in results} == {("ok", "")}, results
    assert list(tmp_path.iterdir()) == []
    assert tried == []


def test_isolation_says_what_lacks(monkeypatch: pytest.MonkeyPatch, result) -> None:
    """One tier is enough; with none, the fix names the option that accepts the risk."""
    for lacks, status in (({"A": ["bwrap"], "B": []}, "ok"), ({"A": ["bwrap"], "B": ["Landlock"]}, "fail")):
        for module in (tiers, doctor):
            monkeypatch.setattr(module, "available_tiers", lambda lacks=lacks: lacks)
        found = result("isolation")
        assert found["status"] == status
        assert "tier A lacks bwrap" in found["found"]
        assert ("--unsafe-local" in found["fix"]) == (status == "fail")


def test_a_grader_that_errs_is_found(monkeypatch: pytest.MonkeyPatch, result) -> None:
    """A canary whose canonical solution fails."""
    good = get_environment("minicode").problems("eval")[0]
    wrong = replace(good, canonical=good.canonical.replace("return", "return None and"))
    monkeypatch.setattr("probe.cli.doctor.get_environment", lambda name: Environment(lambda split: [wrong]))
    found = result("grader")
    assert found["status"] == "fail"
    assert good.problem_id in found["found"]


@pytest.fixture
def builtin(monkeypatch: pytest.MonkeyPatch, fake_pool: Pool) -> Path:
    """The folder of one small pool in place of the built-in ones, to be damaged."""
    monkeypatch.setattr(doctor, "BUILTIN", fake_pool.path.parent)
    return fake_pool.path.parent


def test_damaged_built_in_pools_are_found(builtin: Path, result) -> None:
    """A truncated file is named, and so is a folder without any pool."""
    assert result("pools")["status"] == "ok"
    path = builtin / "fake" / "step_001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])
    found = result("pools")
    assert (found["status"], found["fix"]) == ("fail", doctor.REINSTALL)
    assert "step_001" in found["found"]
    shutil.rmtree(builtin / "fake")
    assert "found no pool" in result("pools")["found"]


def boom(out: Path) -> str:
    raise ZeroDivisionError("x\ny")


def fine(out: Path) -> str:
    return f"all is well below {out.name}"


@pytest.mark.parametrize(("checks", "code"), [((boom, fine), 1), ((fine,), 0)])
def test_the_verb_prints_a_line_a_check_and_exits_with_the_verdict(
    checks: tuple[Callable[[Path], str], ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe
) -> None:
    """A check that breaks down is a failure with a fix and does not stop the others."""
    monkeypatch.setattr(doctor, "CHECKS", {check.__name__: check for check in checks})
    broken = f"fail  boom       ZeroDivisionError: x y; fix: {doctor.REINSTALL}"
    lines = [*[broken] * code, f"ok    fine       all is well below {tmp_path.name}"]
    assert probe("doctor", code=code, root=tmp_path)[0].splitlines() == lines
    report = json.loads(probe("doctor", "--json", code=code, root=tmp_path)[0])
    assert report["ok"] == (code == 0)
    assert [check["status"] for check in report["checks"]] == ["fail", "ok"][-len(checks) :]
