"""What the program does, kept and compared: before a change that should change nothing, and after it.

    python tests/bench/lock.py keep BEFORE                       runs every case; about 5 CPU minutes
    python tests/bench/lock.py keep AFTER --logs BEFORE/logs     the same logs, with the changed program
    python tests/bench/lock.py compare BEFORE AFTER              what differs, case by case; exit code 1 if anything

A case is a command and what it leaves: its screen, its JSON, the bytes of its records. Numbers in JSON are equal up to
1e-6 of their size, about the precision of the inner products; lines of timings are not compared.
"""

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "probe"), str(ROOT / "tests" / "replay_pools")]

REPLAYS = {
    "arms": ["--arm", "vanilla,projected,random,permuted,placebo", "--steps", "6"],
    "lora": ["--arm", "vanilla,projected-lora", "--steps", "4"],
    "conditions": ["--arm", "vanilla,projected", "--steps", "5", "--condition", "default", "--condition",
                   "group:scale_rewards=group", "--condition", "dr:loss_type=dr_grpo", "--condition",
                   "credit:gtpo_beta=0.1,sepa_lambda=0.5", "--condition", "kl:beta=0.1,reference=base"],
    "match": ["--replay-dirs", "teacher,base-hinted", "--match", "prompt", "--arm", "vanilla,projected", "--steps",
              "4"],
    "two-sided": ["--arm", "projected", "--set", "intervention.gate.gate=two_sided", "--set",
                  "intervention.gate.overshoot=2", "--k", "8", "--steps", "3"],
    "trains": ["--arm", "projected", "--steps", "4", "--set", "optimizer.lr=0.01"],
    "tokens": ["--arm", "vanilla,projected", "--steps", "2", "--set", "token_attribution=2"],
}  # fmt: skip
SMALL = ["--set", "rollouts.sampler.max_new_tokens=64"]
TRAININGS = {
    "smoke": [],
    "gate-kl-teacher": ["--arm", "projected", "--steps", "3", "--set", "objective.beta=0.1", "--set",
                        "objective.reference=base", "--set", "rollouts.teacher.pool=teacher", "--set",
                        "rollouts.teacher.fraction=0.5"],
    "recorded": ["--arm", "vanilla", "--steps", "4", "--set", "objective.old_logprobs=recorded", "--set",
                 "rollouts.iterations=2", "--set", "rollouts.prioritise=variance", "--set", "rollouts.group=8"],
    "penalty": ["--arm", "vanilla", "--steps", "2", "--set", "remedy.name=monitor-penalty"],
}  # fmt: skip
SCREENS = {
    "version": ["--version"],
    "doctor-help": ["doctor", "--help"],
    "replay-help": ["replay", "--help"],
    "no-run": ["analyze", "nothing-of-this-name"],
    "bad-set": ["replay", "--set", "objective.betta=1"],
    "pool": ["pool", "show", "teacher"],
}


def probe(*words: str) -> tuple[int, str]:
    """(exit code, stdout and stderr) of one command, in this process."""
    from probe.cli import cli
    from probe.cli._frame import run

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = run(cli, list(words))
    return code, text.getvalue()


def keep_screen(place: Path, *words: str) -> None:
    """What a command prints, after its exit code."""
    code, text = probe(*words)
    place.with_suffix(".txt").parent.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".txt").write_text(f"exit code {code}\n{text}")


def keep_json(place: Path, *words: str) -> None:
    """The JSON that a command prints; its text where it prints none."""
    code, text = probe(*words)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.with_suffix(".json").write_text(json.dumps(json.loads(text), indent=1))
    except ValueError:
        place.with_suffix(".txt").write_text(f"exit code {code}\n{text}")


def keep_records(place: Path, run_folder: Path) -> None:
    """The records of a run, file by file."""
    for path in sorted(run_folder.rglob("*.jsonl")):
        if path.name != "timings.jsonl":
            copy = place / path.relative_to(run_folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def keep(folder: Path, logs: Path | None) -> None:
    """Run every case; `folder`/work is the root folder of all of them."""
    from test_worlds import SEEDS, WORLDS
    from worlds import make_run

    work = folder / "work"
    work.mkdir(parents=True)
    logs = _logs(folder / "logs") if logs is None else shutil.copytree(logs, folder / "logs")
    os.chdir(work)
    for name, words in SCREENS.items():
        keep_screen(folder / "screens" / name, *words)
    probe("replay", "--replay-dirs", "teacher,base", "--arm", "vanilla,projected,random", "--name", "demo")
    keep_records(folder / "demo" / "records", Path("out/runs/demo"))
    keep_json(folder / "demo" / "analysis", "analyze", "demo", "--json")
    keep_screen(folder / "demo" / "screen", "analyze", "demo")
    for name, options in REPLAYS.items():
        keep_screen(folder / "replays" / name / "screen", "replay", *options, "--name", name)
        keep_records(folder / "replays" / name, Path("out/runs") / name)
    for name, options in TRAININGS.items():
        words = ["train", "--preset", "smoke", *SMALL, *options, "--name", name]
        keep_screen(folder / "trainings" / name / "screen", *words)
        keep_records(folder / "trainings" / name, Path("out/runs") / name)
    for name, (world, *_) in WORLDS.items():
        make_run(Path("out/runs") / f"world-{name}", world, SEEDS.get(name, 0))
        keep_json(folder / "worlds" / name, "analyze", f"world-{name}", "--draws", "99", "--json")
        keep_screen(folder / "worlds" / name, "analyze", f"world-{name}", "--draws", "99")
    for log in sorted(logs.iterdir()):
        source = next((log / name for name in ("log.json", "data.json") if (log / name).exists()), log)
        words = ["pool", "import", str(source), "--name", log.name, "--model", "organism"]
        keep_screen(folder / "logs-read" / log.name, *words)
        pool = Path("out/pools") / log.name
        for path in sorted(pool.glob("*.gz")):
            copy = folder / "logs-read" / log.name / path.name.removesuffix(".gz")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(gzip.decompress(path.read_bytes()))


def _logs(folder: Path) -> Path:
    """A log of each format, as its tool writes it."""
    from test_logs import TOOLS, write

    from replay_pools.pool import BUILTIN, open_pool

    groups = open_pool(BUILTIN / "teacher").steps[:4]
    for name in TOOLS:
        (folder / name).mkdir(parents=True)
        write(name, folder / name, groups)
    return folder


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two values of JSON differ, with dots."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            if key not in new or key not in old:
                yield f"{path}.{key} {'gone' if key in old else 'new'}"
            else:
                yield from differences(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, f"{path}[{place}]")
    elif isinstance(old, float | int) and isinstance(new, float | int):
        if not math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-8):
            yield f"{path} {old} -> {new}"
    elif old != new:
        yield f"{path} {str(old)[:60]!r} -> {str(new)[:60]!r}"


def compare(before: Path, after: Path, most: int) -> int:
    """Print what differs; 1 where anything does."""
    places = {
        path.relative_to(folder)
        for folder in (before, after)
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in ("work", "logs")
    }
    changed = 0
    for place in sorted(places):
        old, new = before / place, after / place
        if not (old.exists() and new.exists()):
            rows = ["gone" if old.exists() else "new"]
        elif old.read_bytes() == new.read_bytes():
            continue
        elif place.suffix == ".json":
            rows = sorted(differences(json.loads(old.read_text()), json.loads(new.read_text())))
        elif place.suffix == ".jsonl":
            pairs = zip(old.read_text().splitlines(), new.read_text().splitlines(), strict=False)
            rows = [row for left, right in pairs for row in differences(json.loads(left), json.loads(right))]
            rows = rows or ["another order of keys, or another number of lines"]
        else:
            lines = [
                {line for line in path.read_text().splitlines() if not line.startswith("start: ")}
                for path in (old, new)
            ]
            rows = [f"- {line}" for line in lines[0] - lines[1]] + [f"+ {line}" for line in lines[1] - lines[0]]
        changed += bool(rows)
        for row in rows[:most]:
            print(f"{place}: {row}")
        if len(rows) > most:
            print(f"{place}: {len(rows) - most} more")
    print(f"{changed} of {len(places)} files differ")
    return int(changed > 0)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    keeping = verbs.add_parser("keep")
    keeping.add_argument("folder", type=lambda word: Path(word).resolve())
    keeping.add_argument("--logs", type=lambda word: Path(word).resolve(), default=None)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--most", type=int, default=8, help="rows of one file")
    options = parser.parse_args()
    if options.verb == "keep":
        keep(options.folder, options.logs)
        return 0
    return compare(options.before, options.after, options.most)


if __name__ == "__main__":
    sys.exit(main())
