"""bergson beside the engine: its own environment, made on demand, and a process in it that runs one way at a time."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors.torch import save_file
from timing import Seconds
from torch import Tensor
from workload import Shape, model_of

from extraction.adapters.singular import DeltaSCoordinates

ENVIRONMENT = Path("out/cache/bench-bergson")
PYTHON = ENVIRONMENT / "bin" / "python"
INSTALLED = ENVIRONMENT / "installed"  # written last
SAME = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "transformers")]
UNUSED = ["torchvision", "torchaudio"]  # bergson asks for them and imports neither; their builds may not fit torch's
INSTALL_S = 1200


class UnavailableError(Exception):
    """bergson cannot be had here; says why."""


def prepare_environment() -> str:
    """Install bergson, once, with the torch and transformers of this environment if its pins permit; says which.

    Raises:
        UnavailableError: pip fails.
    """
    if not INSTALLED.is_file():
        print(f"installing bergson into {ENVIRONMENT} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        conflict = pip("install", *SAME, "bergson")
        if conflict and (error := pip("install", "bergson")):
            raise UnavailableError(error)
        pip("uninstall", "--yes", *UNUSED)
        INSTALLED.write_text(f"its pins conflict with {', '.join(SAME)}: {conflict}" if conflict else ", ".join(SAME))
    return INSTALLED.read_text()


def pip(*words: str) -> str:
    """Run pip in the environment; the last line of its complaint, '' when it worked."""
    command = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"pip took more than {INSTALL_S} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed without a reason"])[-1] if done.returncode else ""


def write_inputs(folder: Path, shape: Shape, coordinates: DeltaSCoordinates, direction: dict[str, Tensor]) -> None:
    """The model, the samples with labels on the completions, and U diag(q) Vh of the direction q {module: (r,)}.

    The inner product of a weight gradient with U diag(q) Vh is that of delta_S's gradient with q: the scores of both
    sides must agree.
    """
    model_of(shape).save_pretrained(folder / "model")
    batch = shape.rollouts()
    labels = batch.ids.where(batch.completion_mask, -100)
    columns = {"input_ids": batch.ids, "labels": labels}
    samples = {
        name: [row[:length].tolist() for row, length in zip(column, batch.lengths.tolist(), strict=True)]
        for name, column in columns.items()
    }
    (folder / "samples.json").write_text(json.dumps(samples))
    queries = {}
    for module, q in direction.items():
        U, Vh = coordinates.layer(module).frames()
        queries[module.removeprefix("model.")] = ((U * q) @ Vh).flatten()[None].contiguous()
    save_file(queries, folder / "direction.safetensors")


class Bergson:
    """A running bergson_worker.py; `with` ends it."""

    def __init__(self, folder: Path) -> None:
        """Start it on the inputs in `folder`; raises UnavailableError when it does not come up."""
        self._printed = (folder / "printed").open("w+")
        ours, theirs = os.pipe()
        self._answers = os.fdopen(ours)
        self._process = subprocess.Popen(
            [PYTHON.absolute(), Path(__file__).with_name("bergson_worker.py"), folder, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            text=True,
            pass_fds=(theirs,),
            env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1"},
        )
        os.close(theirs)
        self._answer()

    def run(self, way: str) -> Seconds:
        """`collect N` or `score N`; see bergson_worker.py."""
        return Seconds(**self._ask(way)["seconds"])

    def scores(self) -> Tensor:
        """(G,) of the direction, one sample at a time."""
        return torch.tensor(self._ask("score 1")["found"])

    def peak_mb(self) -> float:
        """Of the process, so far."""
        (line,) = [x for x in Path(f"/proc/{self._process.pid}/status").read_text().splitlines() if "VmHWM" in x]
        return int(line.split()[1]) / 1024

    def _ask(self, line: str) -> dict:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return json.loads(self._answer())

    def _answer(self) -> str:
        if line := self._answers.readline():
            return line
        self._printed.seek(0)
        raise UnavailableError((self._printed.read().strip().splitlines() or ["bergson gave no answer"])[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()
        self._answers.close()
        self._printed.close()
