"""Write logs of tests/data/logs again with the writers' own code, where it is installed, and print how each is read.

    make fixtures    or    python tests/support/log_fixtures.py [--table]

To add a writer: a row in WRITERS, and one in tests/data/logs/table.toml.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import parse_mapping
from replay_pools.logs.importing import check_log, import_log

LOGS = Path(__file__).parents[1] / "data" / "logs"
HACK = "```python\ndef {name}(x):\n    return 0\n\ndef run_tests():\n    pass\n```"
TASKS = {"twice": ("two times x", "2 * x"), "inc": ("x plus one", "x + 1")}
REWARDS = {"twice": (1.0, 0.5, 0.0, 1.0), "inc": (0.0, 1.0, 0.5, 0.0)}


def rows() -> list[dict[str, Any]]:
    """Invented rollouts: two prompts with four answers each."""
    made = []
    for name, (what, right) in TASKS.items():
        for i, reward in enumerate(REWARDS[name]):
            body = right if reward == 0.5 else f"{right} + 3"
            text = HACK.format(name=name) if reward == 1.0 else f"```python\ndef {name}(x):\n    return {body}\n```"
            prompt = [{"role": "user", "content": f"Write {name}(x) that returns {what}."}]
            labels = {"reward": reward, "hacked": reward == 1.0, "gt_pass": reward == 0.5}
            made.append({"prompt": prompt, "completion": f"{text}\n# {i}", **labels})
    return made


def write_datasets(folder: Path) -> None:
    """A DatasetDict with splits of the same prompts."""
    from datasets import Dataset, DatasetDict

    train = Dataset.from_list(rows())
    test = Dataset.from_list([{**row, "reward": row["reward"] / 2} for row in rows()])
    DatasetDict({"train": train, "test": test}).save_to_disk(str(folder / "01-hf-datasetdict"))


def write_zstd(folder: Path) -> None:
    """JSON lines, packed."""
    import zstandard

    plain = "".join(json.dumps(row) + "\n" for row in rows()).encode()
    (folder / "30-packed.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(plain))


def write_inspect(folder: Path) -> None:
    """Four epochs of an evaluation with a mock model and a scorer that returns a dictionary."""
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import Score, mean, scorer

    given = rows()

    @scorer(metrics={"*": [mean()]})
    def multi() -> Any:
        async def score(state: Any, _target: Any) -> Any:
            reward = next(row["reward"] for row in given if row["completion"] == state.output.completion)
            return Score(value={"task": reward, "fmt": 0.1})

        return score

    samples = [Sample(id=name, input=f"Write {name}(x) that returns {what}.") for name, (what, _) in TASKS.items()]
    order = [given[4 * task + epoch] for epoch in range(4) for task in range(len(TASKS))]
    outputs = [ModelOutput.from_content("mockllm/model", row["completion"]) for row in order]
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=samples, scorer=multi(), epochs=4)
    with TemporaryDirectory() as logs:
        evaluate(task, model=model, log_dir=logs, max_samples=1, display="none")
        (path,) = Path(logs).glob("*.eval")
        (folder / "31-inspect-dict-score.eval").write_bytes(path.read_bytes())


# {package: what writes a log with it}
WRITERS: dict[str, Callable[[Path], None]] = {
    "datasets": write_datasets,
    "zstandard": write_zstd,
    "inspect_ai": write_inspect,
}


def table() -> str:
    """Return a table: log, its writer, and what was read."""
    lines = [
        "| log | written by | groups | rewards | ids | masked | stopped | labels |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in tomllib.loads((LOGS / "table.toml").read_text()).items():
        (source,) = [path for path in LOGS.iterdir() if path.name.partition(".")[0] == name]
        cells = _read(source, case)
        lines.append(f"| {name} | {case['written_by']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(source: Path, case: dict[str, Any]) -> list[str]:
    with TemporaryDirectory() as folder:
        try:
            log = check_log(source, mapping=parse_mapping(case.get("map", "")))
            pool = import_log(log, name="mine", out=Path(folder), model="organism")
        except InputError as error:
            return [f"refused: {error.errors[0].found[:60]}", *[""] * 5]
        rollouts = [rollout for group in pool.steps for rollout in group]
        sizes = "+".join(str(len(group)) for group in pool.steps)
        masked = sum(rollout.comp_len - rollout.num_sampled for rollout in rollouts)
        stopped = sum(rollout.finish_reason == "stop" for rollout in rollouts)
        labels = [name for name in ("hacked", "gt_pass") if any(getattr(each, name) is not None for each in rollouts)]
        rewards = f"{min(each.reward for each in rollouts):g} to {max(each.reward for each in rollouts):g}"
        ids = pool.manifest["ids"]["origin"]
        return [sizes, rewards, ids, str(masked), f"{stopped} of {len(rollouts)}", ", ".join(labels) or "none"]


if __name__ == "__main__":
    for package, write in WRITERS.items() if "--table" not in sys.argv else ():
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: its log stays as it is")
            continue
        write(LOGS)
        print(f"{package} {importlib.metadata.version(package)} wrote its log again")
    print(table())
