"""The formats of logs, a row each in FORMATS: by which columns one is recognised, and which column is what.

To add one: a row, before those that would take its rows. `unfold` makes rollouts of one stored object where its rows
are not flat, `settle` changes the whole log; both may be left out.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from replay_pools.base.errors import InputError, unknown_name
from replay_pools.logs.columns import MARKUP, NO_COLUMN, TARGETS, look_up
from replay_pools.logs.evaluations import inspect_sample, lm_eval_sample, one_scorer, settle_batch, settle_lm_eval
from replay_pools.logs.sources import GENERAL, Fields, Log, Rows, StoredRow
from replay_pools.logs.unfolding import LeftOutError, Unfold, unfold_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of log."""

    name: str
    has: str  # columns of its first row, with spaces between
    recognises: Callable[[StoredRow], bool] = lambda row: True  # what else its first row is
    mapping: str = ""  # TARGET=COLUMN with spaces between, or one name for both; the rest is guessed
    notes: tuple[str, ...] = ()
    unfold: Unfold | None = None
    settle: Callable[[Log], None] | None = None  # for what only the whole log says
    cannot_know: str  # one sentence


def apply_format(log: Log, name: str | None) -> None:
    """Read the rows of a log by the format of that name, or by the first that recognises the first row.

    Raises:
        InputError: no format has the name; all faults where no row is left.
    """
    first = log.rows[0]
    rows = [row for row in FORMATS if {*row.has.split()} <= first.fields.keys() and row.recognises(first)]
    if name is not None:
        rows = [row for row in FORMATS if row.name == name]
    if not rows:
        names, fix = [row.name for row in FORMATS], "leave it out to recognise one"
        raise unknown_name(f"--format {name}", str(name), names, expected="a format", fix=fix)
    kind = rows[0]
    log.format, log.cannot_know, log.was_recognised = kind.name, kind.cannot_know, name is None
    log.mapping = {part.partition("=")[0]: part.rpartition("=")[2] for part in kind.mapping.split()}
    if kind.unfold is not None:
        unfold_rows(log, kind.unfold)
    log.notes += kind.notes
    if kind.settle is not None and log.rows:
        kind.settle(log)
    if not log.rows:
        log.check()
        expected = f"rollouts of format {kind.name}"
        raise InputError(log.source, expected=expected, found="; ".join(log.notes) or "none")


# Our own format of logged rollouts, and the pools that the seed author published, which have its fields.

OURS = "completion completion_ids reward problem_id"
OUR_MAPPING = "completion completion_ids reward problem=problem_id"
MESSAGES = {"messages", "problem_messages"}  # older files have the second
STEP_FILE = re.compile(r"step_(\d+)\.")


def _numbered(log: Log) -> None:
    """The rows with the number of their file as step, where its name has one."""
    if "grade" in log.rows.kinds:
        fix = "generate it again, or copy it with its manifest.json"
        log.faults.add(log.source, "grade", expected="a log", found="a pool without manifest", fix=fix)
    first = log.rows[0].fields
    if any(STEP_FILE.match(row.path.name) for row in log.rows):
        log.rows = Rows(map(_with_step, log.rows))
    is_older = "problem_messages" in first and not first.get("messages")
    log.mapping["messages"] = "problem_messages" if is_older else "messages"


def _with_step(row: StoredRow) -> StoredRow:
    number = STEP_FILE.match(row.path.name)
    return StoredRow(row.path, row.where, row.fields | {"step": int(number[1])}) if number else row


# TRL: one Parquet file a log call. It names no groups, and its rewards by their functions.

TRL_COLUMNS = ("step", "prompt", "completion", "advantage")
TRL_FILE = re.compile(r"completions_\d+\.\w+")
GROUPS = TARGETS["group"]


def _trl(log: Log) -> None:
    # A batch is written again, whole, under each step until the next is sampled. Single answers may come back.
    kept: list[int] = []  # places
    start, before = 0, b""
    for _, block in groupby(log.rows, key=lambda row: (row.path, row.fields.get("step"))):
        marks, stop = hashlib.sha256(), start
        for row in block:
            marks.update(repr([row.fields.get(name) for name in TRL_COLUMNS[1:]]).encode())
            stop += 1
        kept += range(start, stop) if marks.digest() != before else ()
        start, before = stop, marks.digest()
    if num_repeated := len(log.rows) - len(kept):
        log.notes.append(f"a batch that was logged again under the next step was left out ({num_repeated} rows)")
        log.rows = Rows(log.rows[place] for place in kept)
    if rewards := _trl_rewards(log.rows.kinds):
        log.mapping["reward"] = "+".join(rewards)
    if str in log.rows.kinds.get("prompt", ()):
        log.mapping["rendered"] = "prompt"
        log.notes.append(
            "prompts are texts, which TRL gives to the model as they are (--map prompt=prompt renders them)"
        )
    # A reward function may log the group: its column is found by its name.
    if {*GROUPS} & log.rows.filled.keys():
        return
    # Blocks of one prompt that stand next to one another are one, so that a smaller one tells the size.
    blocks = groupby(log.rows, key=lambda row: (row.path, repr(row.fields.get("prompt"))))
    size = math.gcd(*(sum(1 for _ in block) for _, block in blocks))
    if size < 2:
        expected, found = "blocks of num_generations rows with one prompt", "one row a prompt, or blocks of many sizes"
        fix = "pass --map group=every:NUM_GENERATIONS, and log without log_unique_prompts"
        log.faults.add(log.rows[0].path, "groups", expected=expected, found=found, fix=fix)
        return
    log.mapping["group"] = f"every:{size}"
    log.notes.append(f"groups are blocks of {size} rows with one prompt (another size: --map group=every:N)")


def _trl_rewards(kinds: Mapping[str, set[type]]) -> list[str]:
    """`reward` where there is one, else the columns of numbers that are no other target: what reward functions paid."""
    reserved = {name for target, names in TARGETS.items() if target != "reward" for name in names} | {*TRL_COLUMNS}
    numbers = [name for name, types in kinds.items() if name not in reserved and types and types <= {int, float}]
    return ["reward"] if "reward" in numbers else numbers


# verl's dump of rollouts, of the V1 trainer and of the legacy one.

VERL_COLUMNS = "step completion=output reward=score skipped=input"
VERL_LACKS = "Token ids, the finish reason and the prompt's markup, which was skipped: prompts are restored and checked"
STRICT, LOOSE = "is_reward_hack_strict", "is_reward_hack_loose"


def _verl(fields: Fields) -> Iterable[Fields]:
    """The row with the part of `uid` before session and index, which its group shares."""
    prompt, *rest = str(fields["uid"]).rsplit("_", 2)
    if len(rest) != 2 or rest[1] != "0":
        raise InputError("uid", expected="PROMPT_SESSION_0, one output a session", found=repr(fields["uid"]))
    return [fields | {"prompt_uid": prompt}]


def _verl_legacy(log: Log) -> None:
    """With the keys of ariahw/rl-rewardhacking. Rows were permuted before they were written: no blocks are groups."""
    first = log.rows[0].fields
    if "eq_correct" in first:
        log.mapping |= {"gt_pass": "eq_correct", "problem": "id", "group": "step+id"}
    if STRICT in first:
        log.mapping["hacked"] = STRICT
        log.notes.append(f"hacked is `{STRICT}`: the loophole passes and the answer is wrong (--map hacked={LOOSE})")


# OpenRLHF: what a recorder in its agent writes, and the files of its old batch inference.


def _openrlhf(fields: Fields) -> Iterable[Fields]:
    """The action ids are the completion; what stands before them is the prompt."""
    ids, ranges = fields["observation_tokens"], fields["action_ranges"]
    if len(ranges) != 1:
        raise LeftOutError(f"{len(ranges)} turns of actions; one can be replayed")
    start, end = ranges[0]
    if not 0 < start < end <= len(ids):
        found = f"{start} to {end} of {len(ids)}"
        raise InputError("action_ranges", expected="a range in observation_tokens, behind a prompt", found=found)
    row = {**fields, "prompt_ids": ids[:start], "completion_ids": ids[start:end]}
    if fields.get("rollout_log_probs"):
        row["rollout_log_probs"] = fields["rollout_log_probs"][start:end]
    return [row]


# prime-rl: a message graph with token ids.


def _prime_rl(episode: Fields) -> Iterable[Fields]:
    """One rollout for each way from a root to a leaf in the traces of the agent that is trained."""
    if episode.get("ok") is False:
        raise LeftOutError("the episode failed (ok is false)")
    for trace in episode["traces"]:
        nodes = trace["nodes"] if look_up(trace, "agent.trainable") in (None, True) else []
        parents = {node.get("parent") for node in nodes}
        for leaf in (node for number, node in enumerate(nodes) if number not in parents):
            path = [leaf]
            while path[0].get("parent") is not None:
                path.insert(0, nodes[path[0]["parent"]])
                if len(path) > len(nodes):
                    raise ValueError("a node that is its own ancestor")
            yield _prime_rl_rollout(path, trace, episode)


def _prime_rl_rollout(path: Sequence[Fields], trace: Fields, episode: Fields) -> Fields:
    def joined(name: str) -> list[Any]:
        return [value for node in path for value in node.get(name) or []]

    ids, mask, sampled = joined("token_ids"), joined("mask"), [node for node in path if node.get("sampled")]
    starts = sum(now and not before for now, before in zip(mask, [False, *mask], strict=False))
    if max(starts, len(sampled)) > 1:
        raise LeftOutError("several sampled turns; one can be replayed")
    if not sampled:
        raise LeftOutError("no sampled turn")
    rewards = trace.get("rewards") or {}
    parts = [part for part in rewards.values() if part and part["score"] is not None]
    row: Fields = {
        "group": look_up(episode, "group.id"),
        "problem": look_up(episode, "task.key") or look_up(episode, "task.hash"),
        "step": look_up(episode, "run.work.step"),
        "reward": sum(part["score"] * part.get("weight", 1.0) for part in parts) if parts else None,
        "rewards": {name: (part or {}).get("score") for name, part in rewards.items()},
        "metrics": trace.get("metrics"),
        "info": trace.get("info"),
        "finish": (trace.get("calls") or [{}])[-1].get("finish_reason"),
        "messages": [
            {"role": node["message"].get("role"), "content": node["message"].get("content") or ""}
            for node in path
            if not node.get("sampled")
        ],
        "completion": sampled[0]["message"].get("content"),
    }
    if ids:
        start = mask.index(True)
        end = start + sum(mask)
        if any(mask[end:]) or len(mask) != len(ids):
            raise ValueError("mask and token_ids of different lengths")
        # The ids say all; the content leaves out reasoning and tool calls.
        row |= {"prompt_ids": ids[:start], "completion_ids": ids[start:end], "completion": None}
        row["logprobs"] = joined("logprobs") or None
    elif sampled[0]["message"].get("reasoning_content"):
        raise LeftOutError("reasoning beside the text, and no token ids")
    return row


def _open_instruct(fields: Fields) -> Iterable[Fields]:
    if (fields.get("request_info") or {}).get("tool_calleds") not in (None, False, []):
        raise LeftOutError("the answers of tools stand among the sampled ids, without a mask")
    logprobs = fields.get("logprobs")
    if logprobs and any(math.isnan(value) for value in logprobs):  # of an end of turn that was appended
        fields = {**fields, "logprobs": None}
    return [fields]


# Any other log; a row with lists of completions and rewards is one group.

LISTS = {"completions": "completion", "responses": "response", "outputs": "output", "rewards": "reward"}
LISTS |= {"scores": "score", "completion_ids": "completion_ids", "response_ids": "response_ids", "hacked": "hacked"}
BLOCK = "row of the log"  # the column that says which rollouts one row held


def _lists(log: Log) -> None:
    if not {"completions", "responses", "outputs"} & log.rows.kinds.keys():
        if bool in log.rows.kinds.get("label", ()):
            log.notes.append("`label` is taken neither for hacked nor for gt_pass (--map hacked=label where it is)")
        return
    log.rows = Rows(StoredRow(row.path, row.where, {**row.fields, BLOCK: i}) for i, row in enumerate(log.rows))
    unfold_rows(log, _exploded)
    log.mapping["group"] = BLOCK
    log.notes.append("a row with lists is one group")


def _exploded(fields: Fields) -> Iterable[Fields]:
    """A row whose completions and rewards are lists, as one row each."""
    lists = {name: value for name, value in fields.items() if name in LISTS and isinstance(value, list)}
    # Ids of one completion are a list too: of numbers, not of lists.
    lists = {name: value for name, value in lists.items() if not name.endswith("_ids") or isinstance(value[0], list)}
    lengths = {name: len(value) for name, value in lists.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError("lists", expected="lists of one length", found=listed)
    rest = {name: value for name, value in fields.items() if name not in lists}
    for values in zip(*lists.values(), strict=True):
        yield rest | {LISTS[name]: value for name, value in zip(lists, values, strict=True)}


COUNTS_GROUPS = ("teacher-pool", "substrate", "logged")  # formats in which a step is the number of a group
PAYS_AS_WE = (*COUNTS_GROUPS, "vgrout-run")  # formats whose rewards our grader, or the one that it follows, has given
FORMATS = (
    Format(
        name="teacher-pool",
        has=f"{OURS} prompt src_problem_id src_pool",
        recognises=lambda row: bool(MESSAGES & row.fields.keys()),
        mapping=f"{OUR_MAPPING} rendered=prompt",
        notes=(
            "hacked is the published label: the answer's own run_tests() passes a stub, so that it counts right "
            "answers too",
        ),
        settle=_numbered,
        cannot_know="The model that sampled, its temperature and log-probabilities (its ids and template are Qwen3's).",
    ),
    Format(
        name="substrate",
        has=f"{OURS} prompt_ids env_mode",
        recognises=lambda row: not {"prompt", *MESSAGES} & row.fields.keys(),
        mapping=f"{OUR_MAPPING} prompt_ids plen",
        cannot_know="The messages of the prompts, the model that sampled, its temperature and log-probabilities.",
    ),
    Format(
        name="logged",
        has=f"{OURS} prompt",
        recognises=lambda row: bool(MESSAGES & row.fields.keys()),
        mapping=f"{OUR_MAPPING} rendered=prompt",
        settle=_numbered,
        cannot_know="The weights and the sampler behind the rollouts, and how their labels were made.",
    ),
    Format(
        name="vgrout-run",
        has="p_idx gi text exploited",
        mapping="problem=problem_id group=step+p_idx step completion=text reward hacked=exploited gt_pass "
        "fmt_ok=format_ok",
        notes=(
            "hacked is `exploited`, of the active mode (other detectors: --map hacked=hacked_C, hacked_D, hacked_E)",
            "caution: groups are partial, since the log leaves out the teacher's rollouts of a mixed group",
        ),
        cannot_know="The sampled token ids, and the teacher's rollouts in the same groups.",
    ),
    Format(
        name="trl",
        has=" ".join(TRL_COLUMNS),
        # By the name of its file, or without a column that only logs of others have.
        recognises=lambda row: (
            bool(TRL_FILE.fullmatch(row.path.name)) or not {*TARGETS["reward"], *GROUPS} & row.fields.keys()
        ),
        mapping="step completion advantage",
        settle=_trl,
        cannot_know="Token ids and labels (unless a reward function logs them with log_extra), the weights of the "
        "rewards, the options of the chat template, and batches between two log calls.",
    ),
    Format(
        name="verl",
        has="input output score step uid",
        recognises=lambda row: isinstance(row.fields["uid"], str),
        mapping=f"{VERL_COLUMNS} group=step+prompt_uid",
        unfold=_verl,
        cannot_know=f"{VERL_LACKS}; labels.",
    ),
    Format(
        name="verl-legacy",
        has="input output score step",
        mapping=VERL_COLUMNS,
        settle=_verl_legacy,
        cannot_know=f"{VERL_LACKS}; the group, which is taken from step and prompt.",
    ),
    Format(
        name="openrlhf",
        has="observation_tokens action_ranges",
        # The text of the prompt is what its ids decode to: `prompt` may be with or without the template's markup.
        mapping=f"prompt_ids prompt={NO_COLUMN} completion_ids reward",
        unfold=_openrlhf,
        cannot_know="Labels, and the penalties and clipping that the reward goes through later.",
    ),
    Format(
        name="openrlhf-inference",
        has="input output reward",
        # By the markup of the prompt, since others name their columns so too.
        recognises=lambda row: (
            len(row.fields) == 3 and isinstance(row.fields["input"], str) and bool(MARKUP.match(row.fields["input"]))
        ),
        mapping="rendered=input completion=output reward",
        cannot_know="Token ids, labels and groups, which are taken from equal prompts.",
    ),
    Format(
        name="prime-rl",
        has="traces",
        mapping="group problem step reward finish messages completion prompt_ids completion_ids logprobs",
        notes=(
            "reward is the sum of score times weight; labels may be in metrics or info (--map hacked=metrics.NAME)",
        ),
        unfold=_prime_rl,
        cannot_know="Which metric is which label.",
    ),
    Format(
        name="verifiers",
        has="example_id prompt completion reward",
        mapping="problem=example_id prompt completion reward",
        cannot_know="Token ids, the options of the chat template, and which metric is which label.",
    ),
    Format(
        name="open-instruct",
        has="prompt_tokens response_tokens prompt_idx",
        mapping="step prompt_ids=prompt_tokens completion_ids=response_tokens logprobs reward advantage "
        "finish=finish_reason",
        # Not `prompt_idx`: it is wrong where truncated rows were removed before writing.
        notes=("groups are equal prompts of one step; those without reward variance may be missing from the log",),
        unfold=_open_instruct,
        cannot_know="Labels, the scale of the reward (10 for a right answer by default), and groups of equal rewards.",
    ),
    Format(
        name="inspect",
        has="id epoch messages scores",
        mapping="problem=id prompt completion finish=stop_reason",
        notes=("letters of a scorer count as C = 1, P = 0.5, I = N = 0",),
        unfold=inspect_sample,
        settle=one_scorer,
        cannot_know="Token ids, the provider's template and hidden reasoning; a group is one sample's epochs.",
    ),
    Format(
        name="lm-eval",
        has="doc_id arguments resps filtered_resps",
        mapping="messages rendered completion",
        unfold=lm_eval_sample,
        settle=settle_lm_eval,
        cannot_know="Token ids, the finish reason, and the stop text that was cut off the end of an answer.",
    ),
    Format(
        name="openai-batch",
        has="custom_id",
        recognises=lambda row: (
            not {"prompt", "messages", "completion"} & row.fields.keys()
            and isinstance(row.fields.get("response") or row.fields.get("body") or {}, dict)
        ),
        mapping="messages rendered prompt_ids completion completion_ids finish=finish_reason",
        settle=settle_batch,
        cannot_know="Token ids (but of vLLM with return_token_ids), the provider's template and hidden reasoning.",
    ),
    Format(
        name=GENERAL,
        has="",
        settle=_lists,
        cannot_know="What a column means beyond its name, and whatever it has no column for.",
    ),
)
