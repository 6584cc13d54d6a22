"""probe.records.records: the wire format, read back exactly or refused with the place named."""

from dataclasses import fields, replace

import orjson
import pytest
from made_records import sample_record, step_record

from probe.records.records import ADVANTAGE_KEYS, RUN_SCHEMA, SampleRecord, StepRecord, nullable
from probe.records.run import file_hashes, read_run, samples_path, write_samples, write_steps
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_json, write_sealed

SEED_FIELDS = (
    *("step", "sample_id", "src_pool", "src_step", "src_sample", "reward", "hacked", "gt_pass", "fmt_ok", "comp_len"),
    *("cos_S_contrib", "grad_norm_contrib", "mean_cos_in", "mean_cos_out", "frac_fired", "arm"),
)
LATER_FIELDS = (
    *("advantage", "cos_S_nll", "problem_id", "prompt_sha", "null_reason", "hint", "haar_sd", "nll"),
    "condition",
)
SAMPLE = sample_record()
STEP = step_record(
    advantage={key: None if key == "adv_cap_vacuous" else 0.5 for key in ADVANTAGE_KEYS},
    kl={"mean": 0.01},
    ratio={"frac_clip_low": 0.25},
)


def write_run(directory, samples=(SAMPLE,), steps=(STEP,)):
    write_json(directory / "config.json", {"settings": {}})
    write_samples(directory, 0, samples)
    write_steps(directory, steps)
    write_sealed(directory / "manifest.json", {"schema": RUN_SCHEMA, "files": file_hashes(directory)})
    return directory


def test_the_seeds_sixteen_fields_come_first():
    """Names and order are the seed's: its readers index the slim records by them."""
    assert len(SEED_FIELDS) == 16
    assert tuple(SAMPLE.to_json()) == SEED_FIELDS + LATER_FIELDS
    assert SampleRecord.parse(orjson.dumps(SAMPLE.to_json()), "x") == SAMPLE
    assert not {"prompt", "completion", "prompt_ids", "completion_ids"} & {field.name for field in fields(SampleRecord)}


def test_step_roundtrip_flattens_the_groups():
    """advantage, kl and ratio are flat on the wire, with their names verbatim."""
    row = STEP.to_json()
    assert row["advantage/abs_max"] == 0.5
    assert row["adv_cap_fraction"] == 0.5
    assert (row["kl/mean"], row["ratio/frac_clip_low"]) == (0.01, 0.25)
    assert not {"advantage", "kl", "ratio"} & row.keys()
    assert StepRecord.parse(orjson.dumps(row), "x") == STEP


def test_a_run_reads_back(tmp_path):
    """Step 1000 follows step 999 although it sorts before it as text; files below folders are other readers'."""
    for step in (999, 1000):
        write_samples(tmp_path, step, [replace(SAMPLE, step=step)])
    write_steps(tmp_path, [STEP])
    write_json(tmp_path / "config.json", {"settings": {}})
    hashes = file_hashes(tmp_path)
    write_sealed(
        tmp_path / "manifest.json",
        {"schema": RUN_SCHEMA, "files": {**hashes, "gram/step_000.safetensors": "not read here"}},
    )
    run = read_run(tmp_path)
    assert [s.step for s in run.samples] == [999, 1000]
    assert (run.steps, run.config) == ([STEP], {"settings": {}})


def test_a_file_whose_hash_was_renewed_by_hand_is_refused(tmp_path):
    write_run(tmp_path)
    write_json(tmp_path / "config.json", {"settings": {"verb": "train", "optimizer": 3}})
    write_sealed(tmp_path / "manifest.json", {"schema": RUN_SCHEMA, "files": file_hashes(tmp_path)})
    with pytest.raises(InputError, match="optimizer"):
        read_run(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    """The JSON writer would turn NaN into null silently, and the reason would be lost."""
    with pytest.raises(
        InputError, match="step 0 sample_id 1 condition default arm vanilla nll: expected a finite number"
    ):
        replace(SAMPLE, nll=value).to_json()
    with pytest.raises(InputError, match="grad_norm"):
        replace(STEP, grad_norm=value).to_json()


def test_a_null_cosine_needs_its_reason():
    with pytest.raises(InputError, match="null_reason"):
        replace(SAMPLE, cos_S_contrib=None).to_json()
    with pytest.raises(InputError, match="null_reason"):
        replace(STEP, cos_in=None).to_json()
    assert replace(SAMPLE, cos_S_contrib=None, null_reason="advantage is 0").to_json()["cos_S_contrib"] is None
    assert nullable(float("nan")) is None
    assert nullable(0.0) == 0.0


@pytest.mark.parametrize(
    ("record", "changes", "message"),
    [
        (SAMPLE, {"cos_S_nll": None}, "line 3 cos_S_nll: expected a value"),
        (SAMPLE, {"extra": 1}, "extra: expected a known key"),
        (SAMPLE, {"reward": "3.5"}, "reward: expected a valid number"),
        (SAMPLE, {"hacked": 1}, "hacked: expected a valid boolean"),
        (SAMPLE, {"comp_len": True}, "comp_len: expected a valid integer"),
        (SAMPLE, {"arm": [None]}, "arm: expected a valid string"),
        (STEP, {"cos_in": None}, "cos_in: expected a value"),
        (STEP, {"advantage/std": None}, "expected field advantage/std"),
        (STEP, {"advantage/new": 1.0}, "advantage/new: expected a known key"),
        (STEP, {"ratios/mean": 1.0}, "ratios/mean: expected a known key"),
    ],
)
def test_bad_lines_name_line_and_field(record, changes, message):
    """None: the field is missing."""
    row = {key: value for key, value in (record.to_json() | changes).items() if value is not None or key not in changes}
    with pytest.raises(InputError, match=message):
        type(record).parse(orjson.dumps(row), "f line 3")
    with pytest.raises(InputError, match="expected an object"):
        type(record).parse(b"[]", "f line 3")


def test_an_incomplete_run_is_refused(tmp_path):
    """manifest.json is written last, so without it the run was interrupted."""
    write_run(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(InputError, match="resume"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="the name of one"):
        read_run(tmp_path / "nothing")


def test_changed_missing_and_extra_files_are_refused(tmp_path):
    name = samples_path(tmp_path, 0).name
    write_run(tmp_path)
    write_samples(tmp_path, 0, [replace(SAMPLE, hacked=False)])
    with pytest.raises(InputError, match="of the manifest"):
        read_run(tmp_path)
    write_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"{name}: expected sha256 .*, found no such file"):
        read_run(tmp_path)
    write_run(tmp_path)
    write_samples(tmp_path, 1, [SAMPLE])
    with pytest.raises(InputError, match="step_001.cos.jsonl.gz: expected a file that the manifest lists"):
        read_run(tmp_path)
    write_run(tmp_path / "other")
    (tmp_path / "other" / "steps.jsonl").unlink()
    with pytest.raises(InputError, match="steps.jsonl: expected a file, found no such file"):
        read_run(tmp_path / "other")
    write_json(tmp_path / "config.json", {"settings": {"seed": 1}})
    write_steps(tmp_path, [STEP])
    (tmp_path / "step_001.cos.jsonl.gz").unlink()
    with pytest.raises(InputError, match="config.json: expected sha256"):
        read_run(tmp_path)
