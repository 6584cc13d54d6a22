"""A run directory: its file names, writers, readers and hashes. No torch.

    config.json                       the settings
    steps.jsonl                       one StepRecord a step, loss variant and arm
    step_NNN.cos.jsonl.gz             one SampleRecord a rollout, loss variant and arm
    step_NNN.tokens.jsonl.gz          on request: one TokenRecord a rollout, shares as float32
    manifest.json                     written last: without it the run is incomplete

`manifest.json` has `files`: {name: sha256 of the decompressed bytes}. A replay also holds gram/ and gram/BASIS/, inner
products of gradients (`probe.runs.gram_recorder`), and with a lookahead `lookahead.jsonl` (`probe.runs.lookahead`). A
training also holds

    evals.jsonl                       one line an evaluation
    rollouts/                         the pool of its rollouts
    past-self/                        rollouts of an earlier checkpoint (`rollouts.earlier_checkpoint`)
    evaluations/step_NNNNNN/SETTING/  a pool for each setting of an evaluation
    checkpoint/, adapter/             the state to resume from, the trained adapter
    directions/                       directions extracted during the training
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from extraction.settings import Basis
from probe.records.records import RUN_SCHEMA, LookaheadRecord, Record, SampleRecord, StepRecord, TokenRecord
from probe.settings.verbs import ReplayConfig, TrainConfig, read_config
from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import (
    by_name,
    check_sha256,
    decode_jsonl,
    dump_json,
    encode_jsonl,
    file_sha256,
    read_gz,
    read_json,
    read_plain,
    read_sealed,
    sha256,
    write_atomic,
    write_gz,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from polars import DataFrame

    from probe.records.schema import TableName

DEFAULT_OUT = Path("out")  # OUT, the root folder where verbs write and look up names: OUT/runs/NAME and so on
CONFIG_FILE, STEPS_FILE, MANIFEST_FILE = "config.json", "steps.jsonl", "manifest.json"
EVALS_FILE, ROLLOUTS_DIR, EVALUATIONS_DIR = "evals.jsonl", "rollouts", "evaluations"
EARLIER_DIR = "past-self"
IN_TRAINING = "in training: "  # how the adapter of a training's rollouts begins: no file has it
OWN_POOLS = (ROLLOUTS_DIR, EARLIER_DIR)  # that a training writes and trains on
LOOKAHEAD_FILE = "lookahead.jsonl"
GRAM_DIR = "gram"
CHECKPOINT_DIR, DIRECTIONS_DIR, ADAPTER_DIR = "checkpoint", "directions", "adapter"
CHANGED = "the run was changed after it ended: repeat it"
OTHER_FILES = (  # also hashed in the manifest; a pool's manifest covers the pool
    f"{GRAM_DIR}/**/*.safetensors",
    *(f"{name}/{MANIFEST_FILE}" for name in OWN_POOLS),
    f"{EVALUATIONS_DIR}/*/*/{MANIFEST_FILE}",
    f"{DIRECTIONS_DIR}/*.safetensors",
    # Including the adapters that the training started from, without those that a server had for a while (`adapters/`).
    *(f"{name}/**/*.safetensors" for name in (ADAPTER_DIR, f"{ADAPTER_DIR}-training")),
)
HASH_DIGITS = 6  # in a default name
MAX_STEM_CHARS = 100  # of a default name without its hash: file names have at most 255 bytes
OPTIONAL_FILES = (EVALS_FILE, LOOKAHEAD_FILE)
_SAMPLES_FILE = re.compile(r"step_\d{3,}\.cos\.jsonl\.gz")
_TOKENS_FILE = re.compile(r"step_\d{3,}\.tokens\.jsonl\.gz")
Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A complete run in memory. `columns`, `to_pandas` and `to_polars` return its tables (spec/SCHEMA.md)."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    samples: list[SampleRecord]
    steps: list[StepRecord]
    evals: list[dict[str, Any]] = field(default_factory=list)  # lines of `evals.jsonl`; empty for a replay
    lookahead: list[LookaheadRecord] = field(default_factory=list)  # empty without a lookahead
    settings: ReplayConfig | TrainConfig = field(init=False)  # of config.json

    def __post_init__(self) -> None:
        """Read the settings; InputError for an unknown key, a value of the wrong type, or contradicting settings."""
        where = f"{self.path / CONFIG_FILE} settings"
        object.__setattr__(self, "settings", read_config(self.config["settings"], where))

    @property
    def training(self) -> TrainConfig:
        """The settings of a run of probe train."""
        assert isinstance(self.settings, TrainConfig), f"{self.path} is a replay"
        return self.settings

    def __repr__(self) -> str:
        """Return one line, because a notebook would print thousands of records."""
        return f"Run({str(self.path)!r}, {len(self.steps)} steps, {len(self.samples)} samples, {len(self.evals)} evals)"

    def columns(self, table: "TableName" = "samples") -> "dict[str, NDArray[Any]]":
        """Return {field: (rows,)}; missing values are NaN in float columns, None elsewhere."""
        return {column.name: column.to_numpy(writable=True) for column in self.to_polars(table)}

    def to_pandas(self, table: "TableName" = "samples") -> Any:
        """Return a pandas.DataFrame; ImportError if pandas is not installed."""
        return import_module("pandas").DataFrame(self.columns(table))

    def to_polars(self, table: "TableName" = "samples") -> "DataFrame":
        """Return a polars.DataFrame."""
        from probe.records.schema import frame_of

        return frame_of(table, {"samples": self.samples, "steps": self.steps, "evals": self.evals})


def out_of(run: Path) -> Path:
    """Return OUT of a run in OUT/runs/NAME, relative if it is below the current folder; else the default."""
    directory = run.resolve()
    if directory.parent.name != "runs":
        return DEFAULT_OUT
    out_dir = directory.parent.parent
    return out_dir.relative_to(Path.cwd()) if out_dir.is_relative_to(Path.cwd()) else out_dir


def default_name(stem: str, shape: Any = None) -> str:
    """Make a plain file name from the letters and digits of a stem, and a hash of `shape` if given."""
    plain = re.sub(r"[^A-Za-z0-9._]", "-", stem)[:MAX_STEM_CHARS].strip("-._")
    digest = "" if shape is None else sha256(dump_json(shape))[:HASH_DIGITS]
    return "-".join(filter(None, (plain, digest)))


def elsewhere(out: Path) -> str:
    """Return ` --out OUT`, to append to a suggested command; "" for the default folder."""
    return "" if out == DEFAULT_OUT else f" --out {shlex.quote(str(out))}"


def in_root(commands: str, out: Path) -> str:
    """Append ` --out OUT` to each line of `commands`, unless `out` is the default folder."""
    return "\n".join(command + elsewhere(out) for command in commands.splitlines())


def samples_path(directory: Path, step: int) -> Path:
    """Return the file of a step's sample records."""
    return directory / f"step_{step:03d}.cos.jsonl.gz"


def gram_dir(basis: Basis) -> str:
    """Return the folder, below a run, of the inner products in a basis."""
    return GRAM_DIR if basis == "svd" else f"{GRAM_DIR}/{basis}"


def write_samples(directory: Path, step: int, samples: Iterable[SampleRecord]) -> None:
    """Write the sample records of one step, for all arms, atomically."""
    write_gz(samples_path(directory, step), encode_jsonl(sample.to_json() for sample in samples))


def write_steps(directory: Path, steps: Iterable[StepRecord]) -> None:
    """Rewrite `steps.jsonl` with all steps so far, atomically."""
    write_atomic(directory / STEPS_FILE, encode_jsonl(step.to_json() for step in steps))


def read_evals(directory: Path) -> list[dict[str, Any]]:
    """Read the lines of `evals.jsonl` (from `probe.runs.evaluations.evaluate`); [] before the first evaluation."""
    path = directory / EVALS_FILE
    return decode_jsonl(read_plain(path), path) if path.is_file() else []


def write_tokens(directory: Path, step: int, records: Iterable[TokenRecord]) -> None:
    """Write the token records of one step atomically."""
    write_gz(directory / f"step_{step:03d}.tokens.jsonl.gz", encode_jsonl(record.to_json() for record in records))


def read_tokens(directory: Path, manifest: Mapping[str, Any]) -> dict[tuple[int, int], TokenRecord]:
    """Return {(step, sample_id): token record} of a complete run; empty if it recorded none.

    Raises:
        InputError: a file is missing or differs from its hash in the manifest, or a line is no TokenRecord.
    """
    records = {}
    for name, listed in manifest["files"].items():
        if not _TOKENS_FILE.fullmatch(name):
            continue
        plain = read_gz(directory / name)
        check_sha256(directory / name, sha256(plain), listed, CHANGED)
        for record in _records(TokenRecord, plain, directory / name):
            records[record.step, record.sample_id] = record
    return records


def file_hashes(directory: Path) -> dict[str, str]:
    """Return {name below the run: sha256 of the decompressed bytes} of records and OTHER_FILES, for the manifest."""
    hashes = {name: sha256(plain) for name, plain in _contents(directory).items()}
    for name in sorted(path.name for path in directory.iterdir() if _TOKENS_FILE.fullmatch(path.name)):
        hashes[name] = sha256(read_gz(directory / name))
    for pattern in OTHER_FILES:
        for path in sorted(directory.glob(pattern)):
            hashes[str(path.relative_to(directory))] = file_sha256(path)
    return hashes


def recorded(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: sha256} of a run's measurements (steps, samples and evaluations), without its settings."""
    measured = (STEPS_FILE, *OPTIONAL_FILES)
    return {name: sha for name, sha in manifest["files"].items() if name in measured or _SAMPLES_FILE.fullmatch(name)}


def resolve_run(run: Path, out_dir: Path) -> Path:
    """Return the directory of a run, complete or not, from its path or its name in `out_dir`/runs.

    Raises:
        InputError: no such run; the error lists the runs in that folder.
    """
    directory = by_name(run, out_dir / "runs" / run.name)
    if directory.is_dir():
        return directory
    place = out_dir / "runs" if run == Path(run.name) else run.parent
    expected = f"a run directory, or the name of one in {out_dir / 'runs'}"
    raise unknown_name(f"run {run}", run.name, run_names(place), expected=expected, fix="probe show lists all")


def run_names(place: Path) -> list[str]:
    """Return the names of the runs in a folder, complete or not, sorted."""
    return sorted(config.parent.name for config in place.glob(f"*/{CONFIG_FILE}"))


def read_run(run: Path | str, out: Path | str = DEFAULT_OUT) -> Run:
    """Read a complete run by its path or its name in `out`/runs, and check every file against the manifest.

    >>> run = probe.read_run("demo")
    >>> run.to_polars("steps")["arm"].unique().sort().to_list()
    ['projected', 'vanilla']

    Raises:
        InputError: no such run (the error lists the others), an incomplete run or another schema, a missing, extra or
            changed file, or a line with a missing, unknown or mistyped field.
    """
    directory = resolve_run(Path(run), Path(out))
    manifest = read_manifest(directory)
    contents = _contents(directory)
    # The manifest also lists tokens, pools and adapters, which other modules check; they may be missing here.
    listed = manifest["files"]
    expected = {name for name in listed if name in OPTIONAL_FILES or _SAMPLES_FILE.fullmatch(name)}
    for name in sorted(contents.keys() | expected):
        actual = sha256(contents[name]) if name in contents else "no such file"
        check_sha256(directory / name, actual, listed.get(name), CHANGED)
    samples = []
    for name, plain in contents.items():
        if _SAMPLES_FILE.fullmatch(name):
            samples += _records(SampleRecord, plain, directory / name)
    return Run(
        path=directory,
        config=read_json(directory / CONFIG_FILE),
        manifest=manifest,
        samples=samples,
        steps=_records(StepRecord, contents[STEPS_FILE], directory / STEPS_FILE),
        evals=decode_jsonl(contents.get(EVALS_FILE, b""), directory / EVALS_FILE),
        lookahead=_records(LookaheadRecord, contents.get(LOOKAHEAD_FILE, b""), directory / LOOKAHEAD_FILE),
    )


def read_records(kind: type[Kind], path: Path) -> list[Kind]:
    """Read a file of JSON lines, such as `steps.jsonl`; InputError names the line that is no such record."""
    return _records(kind, read_plain(path), path)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a complete run of this schema; InputError for anything else."""
    if not (directory / MANIFEST_FILE).is_file():
        raise InputError(
            directory,
            expected=f"a complete run with {MANIFEST_FILE}",
            found="none: the run was interrupted or is still running",
            fix="repeat the command to resume it",
        )
    return read_sealed(directory / MANIFEST_FILE, RUN_SCHEMA, "repeat the run")


def _contents(directory: Path) -> dict[str, bytes]:
    """Return {name: decompressed bytes} of config, steps, OPTIONAL_FILES, and the samples in step order."""
    samples = [path.name for path in directory.iterdir() if _SAMPLES_FILE.fullmatch(path.name)]
    optional = [name for name in OPTIONAL_FILES if (directory / name).is_file()]
    # Shorter names first: as text, step_1000 would come before step_999.
    names = [CONFIG_FILE, STEPS_FILE, *optional, *sorted(samples, key=lambda name: (len(name), name))]
    return {name: (read_gz if name.endswith(".gz") else read_plain)(directory / name) for name in names}


def _records(kind: type[Kind], plain: bytes, path: Path) -> list[Kind]:
    return [kind.parse(line, f"{path} line {number}") for number, line in enumerate(plain.splitlines(), 1)]
