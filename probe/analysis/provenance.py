"""What a run's config and the manifests of its pools say about how the data were made."""

from pathlib import Path
from typing import Any

from probe.analysis.evidence import GateFacts, PoolFacts
from probe.runs import Run
from replay_pools.files import dump_json, read_json, sha256
from replay_pools.pool import MANIFEST_NAME


def pool_facts(run: Run) -> list[PoolFacts]:
    """The pools of a run. A pool that has moved or changed since says nothing: its facts are None."""
    return [_facts(pool) for pool in run.config.get("pools", ())]


def gate_facts(run: Run) -> GateFacts:
    """The gate options of a run."""
    options = run.config.get(str(run.config.get("verb")), {}).get("gate", {})
    return GateFacts(gate=options.get("gate"), overshoot=options.get("overshoot", 1.0))


def _facts(pool: dict[str, Any]) -> PoolFacts:
    path = Path(pool["path"]) / MANIFEST_NAME
    manifest = read_json(path) if path.is_file() else {}
    if sha256(dump_json(manifest)) != pool["manifest_sha256"]:
        manifest = {}
    grader = manifest.get("grader") or {}
    return PoolFacts(
        name=pool["name"],
        grader=grader.get("version"),
        isolation=grader.get("isolation"),
        prompt_tail=manifest.get("prompt_tail"),
    )
