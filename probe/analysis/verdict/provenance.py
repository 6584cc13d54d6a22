"""What a run's config and the manifests of its pools say about how the data were made."""

from pathlib import Path

import orjson

from probe.analysis.verdict.evidence import GateFacts, PoolFacts
from probe.records.run import ROLLOUTS_DIR, Run
from replay_pools.files import dump_json, sha256
from replay_pools.pool import MANIFEST_NAME


def pool_facts(run: Run) -> list[PoolFacts]:
    """The pools of a run, a training run's own rollouts and its teacher's. A pool that has moved or changed since says
    nothing: its facts are None.
    """
    pools = run.config.get("pools", ())
    facts = [_facts(pool["name"], Path(pool["path"]), pool["manifest_sha256"]) for pool in pools]
    if own := run.manifest.get("files", {}).get(f"{ROLLOUTS_DIR}/{MANIFEST_NAME}"):
        facts.insert(0, _facts(ROLLOUTS_DIR, run.path / ROLLOUTS_DIR, own))
    return facts


def gate_facts(run: Run) -> GateFacts:
    """The gate options of a run."""
    options = run.settings.get("intervention", {}).get("gate", {})
    return GateFacts(**{name: options[name] for name in ("gate", "overshoot", "target") if name in options})


def _facts(name: str, directory: Path, expected: str) -> PoolFacts:
    """What a pool's manifest says, if its hash (of its bytes, or of its JSON as `Pool.identity` has it) is this one."""
    path = directory / MANIFEST_NAME
    plain = path.read_bytes() if path.is_file() else b"{}"
    manifest = orjson.loads(plain)
    if expected not in (sha256(plain), sha256(dump_json(manifest))):
        manifest = {}
    grader = manifest.get("grader") or {}
    return PoolFacts(
        name=name,
        grader=grader.get("version"),
        isolation=grader.get("isolation"),
        prompt_tail=manifest.get("prompt_tail"),
    )
