"""probe pool draft: propose pairs from labelled rollouts of a log or a pool."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli._frame import Text, column_options, command, name_option
from probe.cli._settings import verb
from probe.records.run import IN_TRAINING
from probe.settings.arms import USUAL_ARMS
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, write_once
from replay_pools.pool import MANIFEST_NAME, Pool, open_pool, pool_names, pool_reference, resolve_pool
from replay_pools.rollout import Rollout, runs_of

if TYPE_CHECKING:
    from extraction.draft import Answer
    from extraction.pairs import Turns
    from replay_pools.logs.importing import CheckedLog

DEFAULT_K = 4  # default of `probe check`


@verb()
@click.argument("source", metavar="LOG|POOL", type=click.Path(path_type=Path))
@name_option("file of pairs", required=True)
@column_options
@click.option("--model", help="Model that sampled LOG, for the command that is printed.")
@click.option(
    "--seed", default=0, show_default=True, help="Seed the choice of half of the prompts, and of the held-out pairs."
)
def draft(
    source: Path, name: str, mapping: dict[str, str], format_name: str | None, model: str | None, seed: int, out: Path
) -> Text:
    """Propose pairs from the labelled rollouts of half of the prompts, and print the command that replays the others.

    A replay leaves out the prompts of pairs that are rollouts of its pools. Read the pairs
    before you use them: they are as good as the labels. They go to out/pairs/NAME.jsonl. Example:

      probe pool draft rollouts.jsonl --map hacked=is_hack --model Qwen/Qwen3-4B --name drafted
    """
    from extraction.draft import draft_pairs
    from extraction.pair_files import read_pair_file

    path = out / "pairs" / f"{name}.jsonl"
    if (source / MANIFEST_NAME).is_file() or (not source.exists() and str(source) in pool_names(out)):
        pool = open_pool(resolve_pool(str(source), out))
        answers, following = _of_pool(pool), replay_of(pool, out)
    else:
        from replay_pools.logs.importing import check_log

        answers = _of_log(check_log(source, format_name=format_name, mapping=mapping))
        following = ["check", str(source), "--model", model or "MODEL"]
        following += ["--map", ",".join("=".join(item) for item in mapping.items())] if mapping else []
        following += ["--format", format_name] if format_name else []
    pairs, num_prompts = draft_pairs(answers, seed=seed)
    write_once(path, encode_jsonl(pairs), "use another --name, or remove the file")
    used = sum(not pair.held_out for pair in pairs)
    few = ["--k", used] if used < DEFAULT_K else []
    following_command = command(*following, "--pairs", path, "--name", name, *few)
    drafted = len({pair.problem_id for pair in pairs})
    yield f"{len(pairs)} pairs from {drafted} of {num_prompts} prompts with hacks and honest answers, in {path}"
    notes: list[str] = []
    read_pair_file(str(path), say=notes.append)
    for note in notes[1:]:
        yield f"  {note}"
    yield f"read them, then replay the other prompts:\n  {following_command}"
    document = {"path": str(path), "pairs": len(pairs), "prompts": drafted, "of": num_prompts}
    return {**document, "next": following_command}


def _of_pool(pool: Pool) -> "Iterator[Answer]":
    from extraction.draft import Answer

    for rollout in (rollout for group in pool.steps for rollout in group):
        yield Answer(
            problem_id=rollout.problem_id,
            messages=rollout.messages,
            text=rollout.written,
            hacked=rollout.hacked,
            gt_pass=rollout.gt_pass,
            turns=_turns(rollout),
        )


def _turns(rollout: Rollout) -> "Turns | None":
    """Return the turns of a rollout, split by token ids; None for a single turn."""
    if rollout.completion_mask is None:
        return None
    runs, texts = runs_of(rollout.completion_mask), [text for _, text in rollout.turns]
    texts += [""] * (len(runs) - len(texts))  # if the texts of the turns are unknown
    return [
        {"role": "other" if i % 2 else "assistant", "content": text, "ids": rollout.completion_ids[slice(*run)]}
        for i, (run, text) in enumerate(zip(runs, texts, strict=True))
    ]


def replay_of(pool: Pool, out: Path) -> list[str]:
    """Return the words of the command to replay a pool, but for its pairs."""
    per_pool = max(2, min(len(group) for group in pool.steps))
    words = ["replay", "--replay-dirs", pool_reference(pool.path, out), "--per-pool", str(per_pool)]
    words += ["--arm", ",".join(USUAL_ARMS)]
    # Pairs from a policy's answers belong to its weights, adapter included.
    adapter = (pool.manifest.get("policy") or {}).get("adapter")
    if adapter is not None and not adapter.startswith(IN_TRAINING):
        words += ["--set", f"model.adapter={adapter}"]
    return words


def _of_log(log: "CheckedLog") -> "Iterator[Answer]":
    from extraction.draft import Answer
    from replay_pools.logs.values import plain_chat

    for place, _, row in log.rollouts():
        if not row.messages or row.completion is None:
            fix = "import it (probe pool import), and draft from the pool"
            expected = "prompts as texts or messages, and the texts of completions"
            raise InputError(row.where, expected=expected, found="ids or rendered prompts", fix=fix)
        yield Answer(
            problem_id=log.problem_ids[place],
            messages=plain_chat(row.messages),
            text=row.completion,
            hacked=row.hacked,
            gt_pass=row.gt_pass,
        )
