"""Records of a sample and of a step: plain ones, but for the fields that a test says."""

from typing import Any

from probe.records.records import ADVANTAGE_KEYS, SampleRecord, StepRecord

SAMPLE: dict[str, Any] = {
    "step": 0, "sample_id": 1, "src_pool": "teacher", "src_step": 4, "src_sample": 2, "reward": 3.5,
    "hacked": True, "gt_pass": False, "fmt_ok": True, "comp_len": 17, "cos_S_contrib": 0.25, "grad_norm_contrib": 1.5,
    "mean_cos_in": 0.1, "mean_cos_out": -0.1, "frac_fired": 0.5, "arm": "vanilla", "advantage": 1.625,
    "cos_S_nll": 0.25, "problem_id": "p0", "prompt_sha": "0123456789abcdef", "null_reason": None, "hint": True,
    "haar_sd": 0.02, "nll": 0.5, "condition": "default",
}  # fmt: skip
STEP: dict[str, Any] = {
    "step": 0, "arm": "vanilla", "problem_id": "p0", "mixed_prompt": False, "cos_in": 0.3, "cos_out": 0.0,
    "mean_cos_in": 0.3, "mean_cos_out": 0.0, "hackward_frac_in": 0.4, "hackward_frac_out": 1e-7, "frac_fired": 0.9,
    "haar_sd": 0.02, "reward_mean": 1.0, "reward_std": 1.0, "reward_spread": 3.0,
    "advantage": dict.fromkeys(ADVANTAGE_KEYS, 1.5), "solve": 0.5, "solve_teacher": None, "loss": 0.1,
    "grad_norm": 1.0, "num_effective": 8, "loss_type": "grpo", "reference": None, "null_reason": None,
    "additivity_error": None, "cos_update": None, "hackward_frac_update": None, "condition": "default",
    "frac_planning": 0.0, "exec_surprisal_var": 0.5, "direction_age": 0, "direction_overlap": None,
}  # fmt: skip


def sample_record(**changes: Any) -> SampleRecord:
    return SampleRecord(**SAMPLE | changes)


def step_record(**changes: Any) -> StepRecord:
    return StepRecord(**STEP | changes)
