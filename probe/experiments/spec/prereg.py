"""Preregistration: read, check and hash a spec (`spec/NAME.toml`); tell whether a run was made under it; decide.

A spec says, before the data exist, what is run, which criteria are evaluated and which decision follows from them. Its
hash goes into every run's config, so that a verdict can say whether its criteria are older than its data.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import orjson

from probe.experiments.spec.resolve import pool_config, resolve
from probe.experiments.spec.types import OUTCOME, VERDICT, WORDS, Criterion, Spec, SpecDecision, SpecStatus
from probe.records.run import settings_of
from probe.settings.arms import ARMS
from probe.settings.words import Verdict
from replay_pools.errors import InputError
from replay_pools.storage.files import PLAIN_NAME, sha256
from replay_pools.storage.tables import decode, read_toml


def load_spec(path: Path) -> Spec:
    """Read, check and resolve a spec.

    Raises:
        InputError: no such file, not TOML, an unknown or missing key, a wrong type, names that do not fit together, a
            setting that no run has or that it refuses.
    """
    document = read_toml(path, "a spec, see spec/")
    spec = decode(Spec, document, path)
    # The hash is of the content: comments and layout of the file may change.
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    spec._path, spec._sha256 = path, sha256(canonical)
    _check(spec)
    spec._resolved = resolve(spec)
    _check_decisions(spec)
    _check_stop(spec)
    _check_ceiling(spec)
    for pool in spec.pools:
        pool_config(pool.name, pool.settings, str(path))
    return spec


def spec_status(config: Mapping[str, Any], spec: Spec) -> SpecStatus:
    """Whether a run (its `config.json`) was made under this spec, under an edited one, or under none of that name."""
    stored = settings_of(config).get("preregistered")
    if stored == preregistered(spec):
        return "frozen"
    return "edited" if stored is not None and stored.partition("@")[0] == spec.name else "none"


def preregistered(spec: Spec) -> str:
    """NAME@SHA256, which the config of every run of the spec holds as `preregistered`."""
    return f"{spec.name}@{spec.sha256}"


def decide(spec: Spec, verdicts: Mapping[str, str]) -> SpecDecision:
    """The first decision whose requirements hold.

    Args:
        verdicts: {criterion: verdict} of all criteria of the spec, and the word of `verdict` or `outcome`.
    """
    return next(decision for decision in spec.decisions if not unmet(decision, verdicts))


def unmet(decision: SpecDecision, verdicts: Mapping[str, str]) -> list[str]:
    """The requirements of a decision that do not hold, each as "NAME VERDICT"."""
    failing = []
    for name in decision.requires:
        if verdicts[name] not in allowed(decision, name):
            failing.append(f"{name} {verdicts[name]}")
    return failing


def allowed(decision: SpecDecision, name: str) -> tuple[str, ...]:
    """The words that a decision accepts of one of its requirements."""
    required = decision.requires[name]
    return (required,) if isinstance(required, str) else required


def _check(spec: Spec) -> None:
    """Check what types cannot: names are unique and refer to something, thresholds fit, there is one primary.

    To add a check: raise `_wrong` with the key of the spec, here or in a `_check_...` beside it.
    """
    conditions = [condition.name for condition in spec.conditions]
    criteria = [criterion.name for criterion in spec.criteria]
    if spec.name != spec.path.stem:
        raise _wrong(spec, "experiment.name", f"the file's name, {spec.path.stem!r}", repr(spec.name))
    for key, names in (("conditions", conditions), ("criteria", criteria), ("arms", spec.arms), ("seeds", spec.seeds)):
        _check_names(spec, key, names)
    if taken := [name for name in criteria if name in WORDS]:
        raise _wrong(spec, "criteria", f"other names than {' and '.join(WORDS)}", taken[0])
    if strange := [arm for arm in spec.arms if arm not in ARMS]:
        raise _wrong(spec, "arms", f"some of {', '.join(ARMS)}", repr(strange[0]))
    for condition in spec.conditions:
        if strange := [arm for arm in spec.arms_of(condition) if arm not in spec.arms]:
            raise _wrong(spec, f"conditions.{condition.name}.arms", f"some of {', '.join(spec.arms)}", strange[0])
    primaries = [criterion.name for criterion in spec.criteria if criterion.role == "primary"]
    if len(primaries) != 1:
        raise _wrong(spec, "criteria", "exactly one of role primary", ", ".join(primaries) or "none")
    for criterion in spec.criteria:
        _check_criterion(spec, criterion, conditions)


def _check_names(spec: Spec, key: str, names: Iterable[object]) -> None:
    """Names (or seeds) differ; names are letters, digits and . _ -, since files and directories are called so."""
    counts = Counter(names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise _wrong(spec, key, "different names", f"{twice[0]!r} twice")
    if odd := [name for name in counts if isinstance(name, str) and not PLAIN_NAME.fullmatch(name)]:
        raise _wrong(spec, key, "letters, digits and . _ -", repr(odd[0]))


def _check_criterion(spec: Spec, criterion: Criterion, conditions: list[str]) -> None:
    """Arms and conditions are of this spec; threshold, comparison and statistic fit together."""
    where = f"criteria.{criterion.name}"
    for key, value, known in (
        ("arm", criterion.arm, spec.arms),
        ("versus_arm", criterion.versus_arm, spec.arms),
        ("condition", criterion.condition, conditions),
        ("versus_condition", criterion.versus_condition, conditions),
    ):
        if value is not None and value not in known:
            raise _wrong(spec, f"{where}.{key}", f"one of {', '.join(known)}", repr(value))
    left = spec.condition_of(criterion)
    compared = criterion.versus_arm is not None or criterion.versus_condition is not None
    right = next((entry for entry in spec.conditions if entry.name == criterion.versus_condition), left)
    sides = [("arm", criterion.arm, left)]
    if compared:
        sides.append(("versus_arm", criterion.versus_arm or criterion.arm, right))
    for key, arm, condition in sides:
        if arm is not None and arm not in spec.arms_of(condition):
            runs = ", ".join(spec.arms_of(condition))
            raise _wrong(spec, f"{where}.{key}", f"an arm that {condition.name} runs ({runs})", repr(arm))
    if isinstance(criterion.threshold, tuple) != (criterion.comparison == "inside"):
        raise _wrong(spec, f"{where}.threshold", "[low, high] for inside, else a number", repr(criterion.threshold))
    if isinstance(criterion.threshold, tuple) and not criterion.threshold[0] < criterion.threshold[1]:
        raise _wrong(spec, f"{where}.threshold", "low < high", repr(criterion.threshold))
    if (criterion.statistic == "interval90") != (criterion.comparison == "inside"):
        raise _wrong(spec, f"{where}.comparison", "inside for interval90, and only there", criterion.comparison)


def _check_decisions(spec: Spec) -> None:
    """Requirements name evidence that there is; only the last decision is unconditional, so that one always holds."""
    words = {criterion.name: get_args(Verdict) for criterion in spec.criteria if criterion.role != "mechanism"}
    kind = _kind(spec)
    if kind is not None:
        words[kind] = WORDS[kind]
    for decision in spec.decisions:
        where = f"decisions.{decision.name}.requires"
        for name in decision.requires:
            if name not in words:
                raise _wrong(spec, where, _expected(spec, name, list(words)), name)
            strange = [word for word in allowed(decision, name) if word not in words[name]]
            if strange:
                raise _wrong(spec, f"{where}.{name}", f"some of {', '.join(words[name])}", repr(strange[0]))
        if bool(decision.requires) == (decision is spec.decisions[-1]):
            raise _wrong(spec, where, "none in the last decision, some in all others", f"{len(decision.requires)}")


def _check_stop(spec: Spec) -> None:
    """The looks ask whether a mean over blocks differs from its threshold, and nothing else."""
    if spec.stop is not None and spec.primary.statistic not in ("mean", "value", "lower95", "upper95"):
        expected = "a primary of statistic mean, value, lower95 or upper95: looks ask whether a mean differs"
        raise _wrong(spec, "stop", expected, spec.primary.statistic)


def _check_ceiling(spec: Spec) -> None:
    """Some runs are compared by the primary, others are not, and no rule stops the sweep in between."""
    if spec.ceiling is None:
        return
    if spec.stop is not None:
        raise _wrong(spec, "ceiling", "no table [stop] beside it, which looks after every seed", "both")
    if spec.primary.versus_arm is None and spec.primary.versus_condition is None:
        raise _wrong(spec, "ceiling", "a primary that compares two arms or conditions", spec.primary.name)
    if any(condition.frozen for condition in spec.resolved.values()):
        raise _wrong(spec, "ceiling", "runs that train, one arm each", "a replay")


def _kind(spec: Spec) -> str | None:
    """What the runs of the primary end in beside its criteria: a verdict, an outcome, or neither."""
    if spec.resolved[spec.judged[0]].frozen:
        return VERDICT
    return OUTCOME if spec.settings["verb"] == "train" and spec.baseline not in (None, spec.judged) else None


def _expected(spec: Spec, name: str, known: list[str]) -> str:
    """What could stand where a requirement names something unknown."""
    if any(criterion.name == name for criterion in spec.criteria):
        return "evidence (a mechanism criterion is an identity)"
    if name == VERDICT:
        return "no verdict: the runs of the primary train, and have an outcome against vanilla"
    if name == OUTCOME:
        return "no outcome: that needs a primary on an arm of probe train that is not vanilla, and vanilla beside it"
    return f"criteria of this spec, or {' or '.join(WORDS)} ({', '.join(known)})"


def _wrong(spec: Spec, key: str, expected: str, actual: str) -> InputError:
    """The error of a key of the spec."""
    return InputError(f"{spec.path} {key}", expected=expected, found=actual)
