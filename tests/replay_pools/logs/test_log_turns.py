"""Rollouts of several turns: ids with a mask of those that the policy sampled, from every writer that logs them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from log_rows import Rows

from replay_pools.logs.importing import check_log
from replay_pools.policy.load import load_served_policy

EOS = 2
PROMPT, ASKED, TOOL = [40, 41], [42, 43], [45, 46, 47]  # TOOL stands between two turns
MASK = [1, 1, 0, 0, 0, 1, 1]
SAMPLED = [-0.5, -0.25, -0.75, -1.0]  # of the sampled ids
USER = {"role": "user", "content": "Two times four?"}
CALL = {"type": "function", "function": {"name": "double", "arguments": '{"x": 4}'}}


def ids_of(i: int) -> list[int]:
    """A turn, the tool's answer with the template's text around it, and the last turn."""
    return [50 + i, EOS, *TOOL, 51, EOS]


def rows(of: Any) -> Rows:
    return [of(i) | {"reward": float(i % 2)} for i in range(4)]


def prime_rl(i: int) -> dict[str, Any]:
    asks, says = {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "assistant", "content": "8"}
    nodes: list[dict[str, Any]] = [
        {"message": USER, "token_ids": PROMPT, "mask": [False] * 2},
        {"message": asks, "token_ids": [*ASKED, 50 + i, EOS], "mask": [False, False, True, True]},
        {"message": {"role": "tool", "content": "8"}, "token_ids": TOOL[:2], "mask": [False] * 2},
        {"message": says, "token_ids": [TOOL[2], 51, EOS], "mask": [False, True, True]},
    ]
    nodes[1] |= {"parent": 0, "sampled": True, "logprobs": SAMPLED[:2]}
    nodes[2] |= {"parent": 1}
    nodes[3] |= {"parent": 2, "sampled": True, "logprobs": SAMPLED[2:]}
    trace = {"agent": {"trainable": True}, "nodes": nodes, "rewards": {"right": {"score": float(i % 2), "weight": 1.0}}}
    return {"ok": True, "group": {"id": "g"}, "traces": [trace | {"calls": [{"node": 1}, {"node": 3}]}]}


def nemo_gym(i: int) -> dict[str, Any]:
    ids, prompt = ids_of(i), [*PROMPT, *ASKED]
    items = [
        {"type": "function_call", "name": "double", "arguments": "{}", "prompt_token_ids": prompt},
        {"type": "function_call_output", "output": "8"},
        {"type": "message", "role": "assistant", "content": [], "prompt_token_ids": [*prompt, *ids[:5]]},
    ]
    items[0] |= {"generation_token_ids": ids[:2], "generation_log_probs": SAMPLED[:2]}
    items[2] |= {"generation_token_ids": ids[5:], "generation_log_probs": SAMPLED[2:]}
    return {"responses_create_params": {"input": [USER]}, "response": {"output": items}, "_ng_task_index": 0}


def slime(i: int) -> dict[str, Any]:
    row = {"group_index": 0, "tokens": [*PROMPT, *ASKED, *ids_of(i)], "response_length": 7, "loss_mask": MASK}
    return row | {"status": "completed", "rollout_log_probs": [-0.5, -0.25, 0.0, 0.0, 0.0, -0.75, -1.0]}


def nemo_rl(i: int) -> dict[str, Any]:
    row = {"content": [["q", "a"]], "rewards": [float(i % 2)], "input_lengths": [11]}
    row |= {"token_ids": [[*PROMPT, *ASKED, *ids_of(i), 0, 0]], "token_loss_mask": [[0] * 4 + MASK + [0, 0]]}
    return row | {"generation_logprobs": [[0.0] * 4 + [-0.5, -0.25, 0.0, 0.0, 0.0, -0.75, -1.0] + [0.0, 0.0]]}


def columns(name: str, *, pads: int = 0, of_all: bool = False) -> Any:
    """A writer of ids with a mask under a name: padded on the right, or with the prompt among the ids of the mask."""

    def write(i: int) -> dict[str, Any]:
        mask = ([0] * 4 if of_all else []) + MASK + [0] * pads
        row = {"prompt_ids": [*PROMPT, *ASKED], "completion_ids": [*ids_of(i), *[0] * pads], name: mask}
        return row | {"logprobs": [-0.5, -0.25, 9e-4, 0.0, 0.0, -0.75, -1.0] + [0.0] * pads}

    return write


def ends_in_a_tool(i: int) -> dict[str, Any]:
    row = columns("loss_mask")(i) | {"finish_reason": "length"}
    return {
        name: [*ids, *ids[2:4]] if name in ("completion_ids", "loss_mask", "logprobs") else ids
        for name, ids in row.items()
    }


WRITERS = {
    "the limit met in a tool's answer": ends_in_a_tool,
    "prime-rl": prime_rl,
    "nemo-gym": nemo_gym,
    "slime": slime,
    "nemo-rl": nemo_rl,
    "verl, response_mask": columns("response_mask", pads=3),
    "a mask of prompt and completion": columns("completion_mask", of_all=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_of_turns(name: str, imported) -> None:
    """Everything behind the prompt is the completion; only the policy's own ids are sampled."""
    (group,) = imported(rows(WRITERS[name])).steps
    assert [rollout.reward for rollout in group] == [0.0, 1.0, 0.0, 1.0]
    for i, rollout in enumerate(group):
        assert rollout.prompt_ids == [*PROMPT, *ASKED]
        assert rollout.completion_ids == ids_of(i)
        assert rollout.completion_mask == [bool(each) for each in MASK]
        assert rollout.sampling_logprobs == [-0.5, -0.25, 0.0, 0.0, 0.0, -0.75, -1.0]
        assert rollout.finish_reason == "stop"
        assert [is_sampled for is_sampled, _ in rollout.turns] == [True, False, True]


def test_a_label_among_the_metrics_of_prime_rl_is_suggested() -> None:
    logged = rows(prime_rl)
    for i, episode in enumerate(logged):
        episode["traces"][0]["metrics"] = {"hacked": float(i % 2), "turns": 2}
    assert any("--map hacked=metrics.hacked" in note for note in check_log(logged).notes)
    assert not any("metrics.hacked" in note for note in check_log(logged, mapping={"hacked": "none"}).notes)


def test_branches_and_work_of_prime_rl(imported) -> None:
    """A summary is a rollout where a later turn goes on from it; an evaluation and a failed trace are none."""
    episodes = [prime_rl(i) for i in range(4)]
    for i, episode in enumerate(episodes):
        episode["run"] = {"work": {"type": "eval" if i == 2 else "train", "step": 1}}
        summary = {"parent": 0, "message": ANSWER, "token_ids": [50, EOS], "mask": [True] * 2, "sampled": True}
        summary |= {"semantic_parents": [{"node": 1, "type": "compaction_attempt"}]}
        episode["traces"][0]["nodes"].append(summary)
    episodes[1]["traces"][0]["nodes"][3]["semantic_parents"] = [{"node": 4, "type": "compaction"}]
    episodes[3]["traces"][0] |= {"ok": False, "errors": [{"type": "TunnelError"}]}
    pool = imported([*episodes, {"ok": False, "traces": []}])
    (group,) = pool.steps
    assert [rollout.completion_ids for rollout in group] == [ids_of(0), ids_of(1), [50, EOS]]
    said = ("next to training", "the trace failed", "the episode failed", "compaction_attempt")
    assert all(each in " ".join(pool.cautions) for each in said)


ANSWER = {"role": "assistant", "content": "It is 8."}
TURNS = [{"role": "assistant", "content": "I ask."}, {"role": "tool", "content": "8"}, ANSWER]
WITH_CALL = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, *TURNS[1:]]
SHOWS_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls }}<|im_end|>\n{% endfor %}"
)
SHOWS_CALLS += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def placed(prompt: list[Any], turns: Callable[[int], list[Any]]) -> list[Any]:
    """Ids of prompt and completion, and the mask, of the four rollouts as the chat template places them."""
    chat = load_served_policy("organism")
    wholes = [chat.render_turns(prompt, turns(i)) for i in range(4)]
    return [(whole.prompt_ids, whole.ids, None if all(whole.mask) else whole.mask) for whole in wholes]


def own(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "trainable": True, "tool_calls": None}


def answers(i: int) -> list[Any]:
    return [*TURNS[:2], {**ANSWER, "content": f"It is {i}."}]


DEMONSTRATED = [USER, {"role": "assistant", "content": "An example.", "trainable": False}, USER]
# {how turns are written: (the prompt, the turns of a rollout, its row)}; a tool's word at the end is none of them
WRITTEN: dict[str, tuple[list[Any], Callable[[int], list[Any]], Callable[[int], dict[str, Any]]]] = {
    "a conversation": ([USER], answers, lambda i: {"messages": [USER, *answers(i)]}),
    "a completion": ([USER], answers, lambda i: {"prompt": [USER], "completion": [*answers(i), TURNS[1]]}),
    "a JSON text": ([USER], answers, lambda i: {"prompt": [USER], "completion": json.dumps(answers(i))}),
    "as ART says what was sampled": (
        DEMONSTRATED,
        lambda i: [own(f"{i}a"), USER, own(f"{i}b")],
        lambda i: {"messages": [*DEMONSTRATED, own(f"{i}a"), USER, own(f"{i}b"), TURNS[1]], "group_index": 0},
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_turns_as_text_are_placed_by_the_template(case: str, imported) -> None:
    prompt, turns, write = WRITTEN[case]
    (group,) = imported(rows(write)).steps
    assert [(one.prompt_ids, one.completion_ids, one.completion_mask) for one in group] == placed(prompt, turns)
    assert all(0 < rollout.num_sampled < rollout.comp_len for rollout in group)


@pytest.mark.parametrize("shows", [False, True])
def test_a_tool_call_counts_where_the_template_shows_it(shows: bool, imported, monkeypatch) -> None:
    """Else its ids are not known, and the rollout is left out and counted."""
    if shows:
        policy = load_served_policy("organism")
        monkeypatch.setattr(policy.tokenizer, "chat_template", SHOWS_CALLS)
        monkeypatch.setattr("replay_pools.policy.load.load_served_policy", lambda name, template: policy)
    given = rows(lambda i: {"prompt": [USER], "completion": [{"role": "assistant", "content": f"{i}"}]})
    given[1]["completion"] = WITH_CALL
    pool = imported(given)
    assert [len(group) for group in pool.steps] == [4 if shows else 3]
    said = "a tool call that the chat template does not show (1 rows)"
    assert any(said in caution for caution in pool.cautions) != shows
    if shows:
        assert "double" in pool.steps[0][1].turns[0][1]
