"""Our own format of logged rollouts, and the pools that the seed author published, which have its fields."""

import re
from collections.abc import Sequence

from replay_pools.errors import Faults, InputError
from replay_pools.logs.table import Format, StoredRow, Table, has

NUMBERED = re.compile(r"step_(\d+)\.")
FIELDS = {  # the target of every field but `prompt` and `problem_messages` has its name
    "problem": "problem_id",
    "completion": "completion",
    "completion_ids": "completion_ids",
    "reward": "reward",
}


def _read_logged(rows: Sequence[StoredRow], faults: Faults) -> Table:
    """The rows with the number of their file as step, where the name has one and the row none."""
    numbered: list[StoredRow] = []
    for row in rows:
        if "grade" in row.fields:
            fix = "generate it again, or copy it with its manifest.json"
            faults.note(InputError(row.where, expected="a log", found="a pool without manifest", fix=fix), "grade")
        number = NUMBERED.match(row.path.name)
        step = {"step": int(number[1])} if number else {}
        numbered.append(StoredRow(row.path, row.where, row.fields | step))
    # Older files call `messages` `problem_messages`.
    first = rows[0].fields
    messages = "messages" if first.get("messages") or "problem_messages" not in first else "problem_messages"
    return Table(numbered, {**FIELDS, "rendered": "prompt", "messages": messages})


def _is_logged(row: StoredRow) -> bool:
    return has(*FIELDS.values(), "prompt")(row) and bool({"messages", "problem_messages"} & row.fields.keys())


def _read_teacher(rows: Sequence[StoredRow], faults: Faults) -> Table:
    table = _read_logged(rows, faults)
    table.notes.append(
        "hacked is the published label: the answer's own run_tests() passes a stub, so that it counts right answers too"
    )
    return table


def _read_substrate(rows: Sequence[StoredRow], faults: Faults) -> Table:
    """Prompts are given as ids alone: their text is what the ids decode to."""
    return Table([*rows], {**FIELDS, "prompt_ids": "prompt_ids", "plen": "plen"})


LOGGED = Format(
    name="logged",
    recognises=_is_logged,
    read=_read_logged,
    cannot_know="The weights and the sampler behind the rollouts, and how their labels were made.",
)
TEACHER_POOL = Format(
    name="teacher-pool",
    recognises=lambda row: _is_logged(row) and {"src_problem_id", "src_pool"} <= row.fields.keys(),
    read=_read_teacher,
    cannot_know="The model that sampled, its temperature and log-probabilities (its ids and template are Qwen3's).",
)
SUBSTRATE = Format(
    name="substrate",
    recognises=lambda row: (
        has(*FIELDS.values(), "prompt_ids", "env_mode")(row)
        and not {"prompt", "messages", "problem_messages"} & row.fields.keys()
    ),
    read=_read_substrate,
    cannot_know="The messages of the prompts, the model that sampled, its temperature and log-probabilities.",
)
