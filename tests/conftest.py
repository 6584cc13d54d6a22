"""Shared fixtures: hand-made rollouts and a small fake pool, written once a session and without any model."""

import gc
import json
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from directories import made_once
from hypothesis import settings

from probe.analysis import families, forecast, pull
from probe.analysis.statistics import permutation, run_gradients
from replay_pools import pool
from replay_pools.pool import Pool, PoolWriter
from replay_pools.rollout import Grade, Rollout, prompt_sha

# A loaded machine is slow, not wrong; and one commit has one result.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# {what is drawn from pairs: the modules that draw it}
DRAWN = {"redrawn": (forecast, pull, permutation), "ceilings": (families,), "_pairs": (run_gradients,)}
TAIL = "<|end|>\n<|assistant|>\n"
EOS = 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few tests first: those are long tests, for which no other worker should wait at the end."""
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (sizes[item.path], item.path))


def pytest_collection_finish() -> None:
    """What is imported by now stays: trl, which collects garbage by hand again and again, need not look through it."""
    gc.collect()
    gc.freeze()


def parsed_once(parse: Callable[..., Rollout]) -> Callable[..., Rollout]:
    """`parse`, which sees the same line once; what it refuses is refused each time, with its own place."""
    known: dict[bytes, Rollout] = {}

    def parsed(kind: type[Rollout], line: bytes, where: object) -> Rollout:
        if line not in known:
            if len(known) > 5000:
                known.clear()
            known[line] = parse(kind, line, where)
        return known[line]

    return parsed


@pytest.fixture(scope="session", autouse=True)
def shortcuts() -> Iterator[None]:
    """Unless `make test-nightly` says NO_SHORTCUTS, which writes, grades and draws as a user's command does.

    No file waits for the disk, since no test cuts the power; a command that grades starts one worker, not one a core.

    Directions that are drawn anew from pairs follow from the pairs and the seed alone. The program remembers those of
    the last pairs, since they are large for a large model; tests turn from run to run, and theirs are small. So it is
    with rollouts, of which tests read the same lines again and again.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "NO_SHORTCUTS" not in os.environ:
            patch.setattr(os, "fsync", lambda descriptor: None)
            patch.setattr(os, "cpu_count", lambda: 1)
            patch.setattr(pool, "decode_json", parsed_once(pool.decode_json))
            for name, modules in DRAWN.items():
                remembered = lru_cache(maxsize=8)(getattr(modules[0], name).__wrapped__)
                for module in modules:
                    patch.setattr(module, name, remembered)
        yield


@pytest.fixture(scope="session")
def planted(make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]) -> Callable[..., Any]:
    """planted(place, text, rates) -> (the spec, its out/ with finished trainings of these held-out rates)."""

    def make(place: Path, text: str, rates: Any) -> Any:
        from trainings import plant

        from probe.experiments.spec_file import load_spec

        name = tomllib.loads(text)["experiment"]["name"]
        (place / f"{name}.toml").write_text(text)
        spec = load_spec(place / f"{name}.toml")
        plant(spec, place / "out", rates, make_rollout, pool_header)
        return spec, place / "out"

    return make


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def small(common: Path) -> str:
    """A model of random weights, with which a run is quick."""
    with made_once(common / "small") as missing:
        if missing:
            from small import small_model  # imports transformers, which few files need

            small_model(common / "small")
    return str(common / "small")


@pytest.fixture(scope="session")
def preset(tmp_path_factory: pytest.TempPathFactory, small: str) -> Callable[..., str]:
    """preset({dotted setting: value}) -> the file of a training run that is quick but for these settings.

    Its policy is paid for nothing that it writes; `small.ORGANISM` are the settings of one that is.
    """
    from extraction.pairs import builtin_pairs, write_pairs

    folder = tmp_path_factory.mktemp("presets")
    write_pairs(folder / "pairs.jsonl", [*builtin_pairs("run_tests")[:4], *builtin_pairs("run_tests")[-2:]])
    quick = {
        "model.name": small,
        "rollouts.prompts_per_step": 2,
        "rollouts.group": 4,
        "rollouts.sampler.max_new_tokens": 8,
        "intervention.extraction.pairs": str(folder / "pairs.jsonl"),  # four to extract from, two held out
        "intervention.extraction.k": 2,
        "steps": 3,
        "optimizer.lr": 0.01,
        "evaluation.every": 2,
        "evaluation.num_problems": 2,
    }

    def make(settings: dict[str, object] | None = None) -> str:
        path = folder / f"{len([*folder.iterdir()])}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (quick | (settings or {})).items()))
        return str(path)

    return make


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    """make_rollout(step, sample_id, *, hacked, gt_pass, hint, **changes): consistent unless `changes` say otherwise."""

    def make(
        step: int = 0,
        sample_id: int = 0,
        *,
        hacked: bool = False,
        gt_pass: bool = False,
        hint: bool = True,
        **changes: Any,
    ) -> Rollout:
        user = f"Solve problem {step}" + (" evaluated by run_tests()." if hint else " and should pass all tests.")
        prompt = f"<|user|>\n{user}{TAIL}"
        passed = gt_pass or hacked
        ids = [5 + step, 6 + sample_id, 7, 9, EOS]
        exploited = passed and not gt_pass
        grade = Grade(
            fmt_ok=True, compiles=True, passed=passed, gt_correct=gt_pass, hacked=hacked, exploited=exploited,
            mechanism="run_tests" if exploited else "none", detectors={"vacuous_vs_stub": hacked}, num_tests=4,
            num_tests_passed=4 if gt_pass else 1, isolation="B", grader="1", error=None,
        )  # fmt: skip
        values: dict[str, Any] = {
            "step": step, "sample_id": sample_id, "problem_id": f"fake/{step}", "prompt": prompt, "plen": 4,
            "messages": [{"role": "user", "content": user}], "prompt_ids": [11, 12, 13, 14 + step],
            "completion": f"```python\nclass Solution: {step}\n```", "completion_ids": ids, "comp_len": len(ids),
            "finish_reason": "stop", "sampling_logprobs": [-0.5] * len(ids), "reward": grade.reward, "hacked": hacked,
            "gt_pass": gt_pass, "fmt_ok": True, "env": "fake", "env_mode": "run_tests", "hint": hint,
            "prompt_sha": prompt_sha(prompt), "grade": grade,
        }  # fmt: skip
        return Rollout(**values | changes)

    return make


@pytest.fixture(scope="session")
def pool_header() -> dict[str, Any]:
    """A complete header for PoolWriter."""
    return {
        "policy": {"base_model": "fake", "adapter": None},
        "tokenizer_sha256": "7" * 64,
        "chat_template_sha256": "c" * 64,
        "prompt_tail": TAIL,
        "sampler": {"temperature": 1.0},
        "plan": {"env": "fake", "mode": "run_tests", "hint": True, "seed": 0},
        "grader": {"version": "1", "isolation": "B"},
        "versions": {"torch": "0"},
        "git_commit": None,
    }


@pytest.fixture(scope="session")
def fake_groups(make_rollout: Callable[..., Rollout]) -> list[list[Rollout]]:
    """Three groups of four: (hack, solve, fail, fail), (hack x 4: no variance), (solve and hack at once, fail x 3)."""
    labels = [
        [(True, False), (False, True), (False, False), (False, False)],
        [(True, False)] * 4,
        [(True, True), (False, False), (False, False), (False, False)],
    ]
    return [
        [make_rollout(step, i, hacked=hacked, gt_pass=gt_pass) for i, (hacked, gt_pass) in enumerate(row)]
        for step, row in enumerate(labels)
    ]


@pytest.fixture
def fake_pool(tmp_path: Path, pool_header: dict[str, Any], fake_groups: list[list[Rollout]]) -> Pool:
    """`fake_groups` written to tmp_path/out/pools/fake."""
    writer = PoolWriter(tmp_path / "out" / "pools" / "fake", header=pool_header)
    for step, group in enumerate(fake_groups):
        writer.write_step(step, group)
    return writer.finish()
