"""Write logs of tests/data/logs again with the writers' own code, where it is installed, and how each is read.

    make fixtures    or    python tests/support/log_fixtures.py [PACKAGE ...]

The versions that wrote go into table.toml, and the table of what was read into read.txt. To add a writer: a row in
WRITERS, and one in table.toml for each of its logs.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from replay_pools.logs.columns import parse_mapping
from replay_pools.logs.importing import check_log, import_log
from replay_pools.pool import Pool

LOGS = Path(__file__).parents[1] / "data" / "logs"
CASES = LOGS / "table.toml"
READ = LOGS / "read.txt"  # the table of how each log is read
HEAD = "| log | written by | groups | rewards | ids | masked ids | stopped | labels |\n" + "|---" * 8 + "|\n"
HACK = "```python\ndef {name}(x):\n    return 0\n\ndef run_tests():\n    pass\n```"
TASKS = {"twice": ("two times x", "2 * x"), "inc": ("x plus one", "x + 1")}
REWARDS = {"twice": (1.0, 0.5, 0.0, 1.0), "inc": (0.0, 1.0, 0.5, 0.0)}
CALL = {"type": "function", "function": {"name": "run", "arguments": {"x": 4}}}
Rows = list[dict[str, Any]]


def rows() -> Rows:
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


def write_wandb(folder: Path) -> None:
    """A table of wandb, as it stores one."""
    import wandb

    given = [{**row, "prompt": row["prompt"][0]["content"]} for row in rows()]
    table = wandb.Table(columns=[*given[0]], data=[[*row.values()] for row in given])
    (folder / "60-wandb.table.json").write_text(json.dumps(table._to_table_json()))


def write_trl(folder: Path) -> None:
    """A step of GRPOTrainer on given completions, and the same with a tool call in one of them."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from replay_pools.policy.load import load_policy, load_served_policy

    policy, chat, given = load_policy("organism"), load_served_policy("organism"), rows()

    def rollouts(prompts: list[Any], _trainer: Any) -> dict[str, Any]:
        ids = [chat.render(prompt)[1] for prompt in prompts]
        ends = [chat.tokenizer.encode(row["completion"], add_special_tokens=False) for row in given]
        return {"prompt_ids": ids, "completion_ids": [[*each, chat.answer_end[1]] for each in ends], "logprobs": None}

    def correct_reward(completions: list[Any], log_extra: Any, **_: Any) -> list[float]:
        by_text = {row["completion"]: row for row in given}
        found = [by_text[completion[0]["content"]] for completion in completions]
        for name in ("hacked", "gt_pass"):
            log_extra(name, [row[name] for row in found])
        log_extra("problem_id", [name for name in TASKS for _ in range(4)])
        log_extra("difficulty", [float(place // 4) for place in range(8)])
        return [row["reward"] for row in found]

    def len_reward(completions: list[Any], **_: Any) -> list[float]:
        return [0.1 if place % 4 == 1 else 0.0 for place in range(len(completions))]

    with TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=[correct_reward, len_reward],
            args=GRPOConfig(
                output_dir=out, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False,
                per_device_train_batch_size=8, num_generations=4, max_completion_length=64, max_steps=1,
                logging_steps=1, log_completions=True, shuffle_dataset=False, seed=0,
            ),
            train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in given[::4]]),
            processing_class=policy.tokenizer,
            rollout_func=rollouts,
        )  # fmt: skip
        trainer.train()
        torch.set_grad_enabled(True)
        _copied(Path(out), folder / "08-trl-extra-number")
        shutil.rmtree(Path(out) / "completions")
        (Path(out) / "completions").mkdir()
        # The same table with the messages of a tool's call, which the trainer's own `log` writes.
        completions = [[{"role": "assistant", "content": row["completion"]}] for row in given]
        answer = {"role": "tool", "name": "run", "content": "4"}
        completions[3] = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, answer, *completions[3]]
        completions[7][0] |= {"tool_calls": [CALL]}
        logs: Any = trainer._logs
        logs["completion"].clear()
        logs["completion"].extend(completions)
        logs["extra"].clear()
        trainer.log({})
        _copied(Path(out), folder / "47-trl-tools")


def _copied(out: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(out / "completions", to / "completions")


def write_verifiers(folder: Path) -> None:
    """Episodes of a training by prime-rl: one with a summary that no turn goes on from, one that ends in a call."""
    from verifiers.v1 import episode as episodes
    from verifiers.v1 import trace as traces
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.semantic import ParentLink
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.types import AssistantMessage, ToolCall, UserMessage
    from verifiers.v1.utils.trace_store import write_episode

    from replay_pools.policy.load import load_served_policy

    chat = load_served_policy("organism")

    def sampled(text: str, parent: int, *, links: Sequence[Any] = (), calls: Sequence[Any] = ()) -> Any:
        head = chat.render([{"role": "user", "content": ""}])[1][-3:]  # of the turn to come
        ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.answer_end[1]]
        return MessageNode(
            parent=parent,
            message=AssistantMessage(content="" if calls else text, tool_calls=[*calls] or None),
            sampled=True,
            token_ids=[*head, *ids],
            mask=[False] * len(head) + [True] * len(ids),
            logprobs=[-0.123456] * len(ids),
            semantic_parents=[*links],
        )

    def episode(place: int, kind: str) -> Any:
        row, name = rows()[place], [*TASKS][place // 4]
        question = row["prompt"][0]["content"]
        task = traces.TraceTask(type="Tiny", data=WireTaskData(idx=place // 4, prompt=question), key=f"tiny-{name}")
        ids = chat.render(row["prompt"])[1][:-3]
        nodes = [MessageNode(message=UserMessage(content=question), token_ids=ids, mask=[False] * len(ids))]
        calls = [ToolCall(id="1", name="run", arguments="{}")] if kind == "calls" and place == 1 else []
        nodes.append(sampled(row["completion"], 0, calls=calls))
        if kind == "compaction" and place == 7:
            nodes.append(sampled("In short.", 0, links=[ParentLink(node=1, type="compaction_attempt")]))
        model_calls = [
            traces.ModelCall(node=number, model="m", finish_reason="tool_calls" if calls else "stop")
            for number, node in enumerate(nodes)
            if node.sampled
        ]
        trace = traces.Trace(
            task=task,
            agent=traces.AgentInfo(config=WireAgentConfig()),
            nodes=nodes,
            calls=model_calls,
            rewards={
                "pass": traces.Reward(score=row["reward"], weight=2.0),
                "fmt": traces.Reward(score=1.0, weight=0.0),
            },
            metrics={"hacked": float(row["hacked"])},
            is_completed=True,
            ok=True,
        )
        run = episodes.TrainRunInfo(id="r", work=episodes.TrainWorkInfo(step=5))
        group = episodes.GroupInfo(id=f"g{place // 4}")
        return episodes.Episode(task=task, group=group, run=run, ok=True, traces=[trace])

    for name, kind in {"17-prime-rl-compaction": "compaction", "34-prime-rl-tool-calls": "calls"}.items():
        with TemporaryDirectory() as out:
            for place in range(8):
                write_episode(Path(out), episode(place, kind))
            (path,) = Path(out).iterdir()
            (folder / f"{name}.jsonl").write_bytes(path.read_bytes())


def write_verl(folder: Path) -> None:
    """Dumps of rollouts by the V1 trainer, which names uids, and by the legacy one, with extra keys."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    from replay_pools.policy.load import load_served_policy

    chat, given = load_served_policy("organism"), rows()
    inputs = [chat.decode(chat.render(row["prompt"])[1]) for row in given]
    uids = [f"u{place // 4}_{place % 4}_0" for place in range(8)]
    labels = {name: [float(row[name]) for row in given] for name in ("hacked", "gt_pass")}
    for name, extra in {"61-verl": {"uid": uids}, "62-verl-legacy": labels}.items():
        columns = ([row[key] for row in given] for key in ("completion", "gt_pass", "reward"))
        RayPPOTrainer._write_generations(inputs, *columns, extra, str(folder / name), 10)


def write_inspect(folder: Path) -> None:
    """Four epochs of an evaluation with a mock model and a scorer that returns a dictionary."""
    import tiktoken
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import Score, mean, scorer

    given = rows()
    # The mock counts tokens by a table that would be downloaded.
    words: Any = type("Words", (), {"encode": lambda _self, text, **_: text.split()})()
    tiktoken.get_encoding = lambda _name: words

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


# {package: (what writes logs with it, their names)}
WRITERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "datasets": (write_datasets, ("01-hf-datasetdict",)),
    "zstandard": (write_zstd, ("30-packed",)),
    "wandb": (write_wandb, ("60-wandb",)),
    "trl": (write_trl, ("08-trl-extra-number", "47-trl-tools")),
    "verifiers": (write_verifiers, ("17-prime-rl-compaction", "34-prime-rl-tool-calls")),
    "verl": (write_verl, ("61-verl", "62-verl-legacy")),
    "inspect_ai": (write_inspect, ("31-inspect-dict-score",)),
}


def cases() -> dict[str, dict[str, Any]]:
    """Return {log: what it is read as}."""
    return tomllib.loads(CASES.read_text())


def source_of(name: str) -> Path:
    """Return the file or folder of a log."""
    (source,) = [path for path in LOGS.iterdir() if path.name.partition(".")[0] == name]
    return source


def line_of(name: str, case: dict[str, Any], pool: Pool) -> str:
    """Return the line of the table for a log that was imported."""
    rollouts = [rollout for group in pool.steps for rollout in group]
    sizes = Counter(len(group) for group in pool.steps)
    masked = sum(rollout.comp_len - rollout.num_sampled for rollout in rollouts)
    stopped = sum(rollout.finish_reason == "stop" for rollout in rollouts)
    labels = [name for name in ("hacked", "gt_pass") if any(getattr(each, name) is not None for each in rollouts)]
    cells = [f"{name} `--map {case['map']}`" if "map" in case else name, case["written_by"]]
    cells += [", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))]
    cells += [f"{min(each.reward for each in rollouts):g} to {max(each.reward for each in rollouts):g}"]
    cells += [pool.manifest["ids"]["origin"], str(masked), f"{stopped} of {len(rollouts)}", ", ".join(labels) or "none"]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Return a table: log, its writer, and what was read; the line of a log without its package stays."""
    lines, before = list[str](), READ.read_text().splitlines()
    for name, case in cases().items():
        if "needs" in case and importlib.util.find_spec(case["needs"]) is None:
            lines += [line for line in before if line.startswith(f"| {name} ")]
        elif "rewards" in case:
            with TemporaryDirectory() as out:
                log = check_log(source_of(name), mapping=parse_mapping(case.get("map", "")))
                lines.append(line_of(name, case, import_log(log, name="mine", out=Path(out), model="organism")))
    return HEAD + "\n".join(lines)


def main(packages: Sequence[str]) -> None:
    """Write the logs of these packages, or of all that are installed, and the table."""
    for package in packages or WRITERS:
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: its logs stay as they are")
            continue
        write, names = WRITERS[package]
        write(LOGS)
        version = f"{package} {importlib.metadata.version(package)}"
        print(f"{version} wrote {', '.join(names)}")
        for name in names:
            stored = CASES.read_text()
            CASES.write_text(re.sub(rf'(\[{name}\]\nwritten_by = )".*"', rf'\1"{version}"', stored))
    READ.write_text(table() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
