"""bergson's side of the bench, run by its own Python (bench_bergson.py): one model, one batch, a way a line of input.

    bergson_worker.py FOLDER FD   loads FOLDER/model, FOLDER/samples.json and FOLDER/direction.safetensors
    collect N | score N           on stdin: the way, in batches of N samples; the answer is a line of JSON on FD

collect  the full gradient of every sample and module, in memory (InMemoryCollector)
score    its inner product with the direction, streamed module by module, nothing kept (InMemoryCollector with a Scorer)

The model is frozen but for the first norm, where the backward then ends: the least that bergson can be asked to do.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from bergson import CollectorComputer, GradientProcessor, IndexConfig, InMemoryCollector, Scorer
from bergson.score.score_writer import InMemorySequenceScoreWriter
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def load_model(folder: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval().requires_grad_(False)
    next(p for name, p in model.named_parameters() if "norm" in name).requires_grad_()
    return model


def run(model: torch.nn.Module, data: Dataset, query: dict[str, torch.Tensor], batch: int, folder: Path) -> object:
    """One pass over the data; the scores, or nothing when `query` is empty."""
    cfg = IndexConfig(run_path=str(folder / "run"), loss_reduction="sum")
    cfg.partial_run_path.mkdir(exist_ok=True)
    scorer = None
    if query:
        writer = InMemorySequenceScoreWriter(len(data), 1)
        scorer = Scorer(query, list(query), writer, torch.device("cpu"), torch.float32)
    shared = {"data": data, "cfg": cfg, "processor": GradientProcessor()}
    collector = InMemoryCollector(model=model.base_model, scorer=scorer, **shared)
    batches = [list(range(i, min(i + batch, len(data)))) for i in range(0, len(data), batch)]
    CollectorComputer(model, data, collector=collector, batches=batches, cfg=cfg).run_with_collector_hooks()
    return [row[0] for row in collector.scores.tolist()] if query else len(collector.gradients)


def main() -> None:
    folder, answers = Path(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w")
    model = load_model(folder)
    data = Dataset.from_dict(json.loads((folder / "samples.json").read_text()))
    query = load_file(folder / "direction.safetensors")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        way, batch = line.split()
        wall, cpu = time.perf_counter(), time.process_time()
        found = run(model, data, query if way == "score" else {}, int(batch), folder)
        taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({"found": found, "seconds": taken}), file=answers, flush=True)


if __name__ == "__main__":
    main()
