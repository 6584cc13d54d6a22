"""Make flat rows of the objects that prime-rl, inspect, slime, NeMo Gym and NeMo-RL write.

A flat row of several turns has the ids of all of them, and a mask of the sampled ones.
"""

import math
from collections.abc import Iterator, Sequence

from replay_pools.logs.columns import look_up, number_of, opened
from replay_pools.logs.rows import Fields, SkipRow
from replay_pools.logs.values import joined_text

# prime-rl: a graph of messages with token ids. Each way from a root to a leaf is a branch.


def prime_rl(episode: Fields) -> Iterator[Fields | SkipRow]:
    """Return one rollout for each branch in the traces of the agent that is trained."""
    if episode.get("ok") is False:
        raise SkipRow("the episode failed (ok is false)")
    for trace in episode["traces"]:
        is_other, has_failed = (
            look_up(trace, "agent.trainable") is False,
            trace.get("errors") and trace.get("ok") is False,
        )
        if is_other or has_failed:
            yield SkipRow("another agent (trainable is false)" if is_other else "the trace failed (ok is false)")
            continue
        nodes = trace["nodes"]
        parents = {node.get("parent") for node in nodes}
        links = [(number, link) for number, node in enumerate(nodes) for link in node.get("semantic_parents") or []]
        # Of summaries of the context, those are trained on that a later turn goes on from.
        accepted = {link.get("node") for _, link in links if link.get("type") == "compaction"}
        attempts = {number for number, link in links if link.get("type") == "compaction_attempt"} - accepted
        for leaf in (number for number in range(len(nodes)) if number not in parents):
            path = [leaf]
            while (parent := nodes[path[0]].get("parent")) is not None:
                path.insert(0, parent)
                if len(path) > len(nodes):
                    raise ValueError("a node that is its own ancestor")
            if leaf in attempts:
                yield SkipRow("a summary of the context that no turn goes on from (compaction_attempt)")
            else:
                yield _prime_rl_branch(path, trace, episode)


def _prime_rl_branch(path: Sequence[int], trace: Fields, episode: Fields) -> Fields | SkipRow:
    nodes = [trace["nodes"][number] for number in path]
    sampled = [place for place, node in enumerate(nodes) if node.get("sampled")]
    if not sampled:
        return SkipRow("no sampled turn")
    rewards = trace.get("rewards") or {}
    # Of the call that wrote the last sampled node: by its number, else the last one.
    last = path[sampled[-1]]
    calls = [call for call in trace.get("calls") or [] if call.get("node", last) == last]
    parts = [part for part in rewards.values() if part and part["score"] is not None]
    turns = [node["message"] for node in nodes]
    row: Fields = {
        "group": look_up(episode, "group.id"),
        "problem": look_up(episode, "task.key") or look_up(episode, "task.hash"),
        "step": look_up(episode, "run.work.step"),
        "split": look_up(episode, "run.work.type"),  # "train" or "eval"
        "reward": math.fsum(part["score"] * part.get("weight", 1.0) for part in parts) if parts else None,
        "rewards": {name: (part or {}).get("score") for name, part in rewards.items()},
        "metrics": trace.get("metrics"),
        "info": trace.get("info"),
        "finish": calls[-1].get("finish_reason") if calls else None,
        "messages": turns[: sampled[0]],
        "completion": turns[sampled[0] : sampled[-1] + 1],
        "tools": nodes[0].get("tools") or trace.get("tools"),
    }
    names = ("token_ids", "mask", "logprobs")
    ids, mask, logprobs = ([each for node in nodes for each in node.get(name) or []] for name in names)
    if ids:
        # The ids say all; the content leaves out reasoning and tool calls. The mask tells prompt and completion apart.
        row |= {"prompt_ids": [], "completion_ids": ids, "mask": mask, "logprobs": logprobs or None}
        row |= {"completion": None, "tools": None}
    return row


# inspect_ai: samples of an evaluation, each with its messages and scores.

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect's usual values of its letters


def inspect(sample: Fields) -> Iterator[Fields]:
    """Return the answer of a sample, with its scores as numbers."""
    if sample.get("error"):
        raise SkipRow("the sample ended in an error")
    messages = sample["messages"]
    turns = [_inspect_turn(message) for message in messages]
    written = [message["role"] == "assistant" and message.get("source") != "input" for message in messages]
    answers = [place for place, is_written in enumerate(written) if is_written]
    if not answers:
        raise SkipRow("no answer of the model")
    tools = [event.get("tools") for event in sample.get("events") or [] if event.get("event") == "model"]
    if any(each != tools[0] for each in tools):
        raise SkipRow("tools that change between calls of the model")
    scores = {}
    for name, score in (sample.get("scores") or {}).items():
        value = score.get("value", score) if isinstance(score, dict) else score
        scores[name] = value if isinstance(value, dict | list) else number_of(GRADES.get(value, value))
    yield {
        **sample,
        "epoch": None,  # counts samples of one problem, not passes over the data
        "prompt": turns[: answers[0]],
        "completion": turns[answers[0] : answers[-1] + 1],
        "tools": tools[0] if tools else None,
        "stop_reason": look_up(sample, "output.choices.0.stop_reason"),
        "scores": scores,
    }


def _inspect_turn(message: Fields) -> Fields:
    """Return role, text, reasoning and tool calls of a message."""
    content = message.get("content")
    turn: Fields = {"role": message["role"]}
    if isinstance(content, list):
        reasoning = [part.get("reasoning") or "" for part in content if part.get("type") == "reasoning"]
        content = [part for part in content if part.get("type") != "reasoning"]
        if any(reasoning):
            turn["reasoning_content"] = "".join(reasoning)
    turn["content"] = joined_text(content) or ""
    if not isinstance(turn["content"], str):
        kinds = sorted({str(part.get("type")) for part in turn["content"]} - {"text"})
        raise SkipRow(f"content with {', '.join(kinds)} next to the text")
    calls = [{"name": call["function"], "arguments": call["arguments"]} for call in message.get("tool_calls") or []]
    return turn | ({"tool_calls": calls} if calls else {})


# slime: `Sample.to_dict`, with the `tokens` of prompt and response.


def slime(sample: Fields) -> Iterator[Fields]:
    """Return the response of a sample; the common rules leave out aborted and removed ones."""
    tokens, length = sample["tokens"], sample["response_length"]
    if not 0 < length < len(tokens):
        raise SkipRow("no response")
    finish = {"completed": "stop", "truncated": "length"}.get(str(sample.get("status")))
    prompt = sample.get("prompt")
    yield {
        **sample,
        "prompt_ids": tokens[:-length],
        "completion_ids": tokens[-length:],
        "messages": prompt if isinstance(prompt, list) else None,
        "finish": finish,
        "response_length": None,  # the ids say it
    }


# NeMo Gym: the items of a Responses call, with token ids on the items of the policy.


def nemo_gym(fields: Fields) -> Iterator[Fields]:
    """Return the rollout of a response: its turns, by the ids of each where they are logged."""
    prompt = fields["responses_create_params"]["input"]
    items, first = fields["response"]["output"], fields["responses_create_params"].get("instructions")
    prompt = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    system = [{"role": "system", "content": first}] if first else []
    row: Fields = {**fields, "messages": [*system, *prompt]}
    details = fields["response"].get("incomplete_details") or {}
    row["finish"] = "length" if details.get("reason") == "max_output_tokens" else None
    sampled = [item for item in items if item.get("generation_token_ids")]
    if not sampled:
        turns = list[Fields]()
        for item in items:  # a message and the calls after it are items of one turn
            kind = item.get("type")
            if kind == "message":
                turns.append({"role": item["role"], "content": joined_text(item["content"])})
            elif kind == "function_call":
                if not turns or turns[-1]["role"] != "assistant":
                    turns.append({"role": "assistant", "content": ""})
                turns[-1].setdefault("tool_calls", []).append(item)
            elif kind == "function_call_output":
                turns.append({"role": "tool", "content": item["output"]})
        row["completion"] = turns
        row["tools"] = fields["responses_create_params"].get("tools")
        if any(item.get("type") == "reasoning" for item in items):
            raise SkipRow("reasoning next to the text, and no token ids")
        yield row
        return
    start = sampled[0]["prompt_token_ids"]
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for item in sampled:
        seen, new = item["prompt_token_ids"], item["generation_token_ids"]
        known = [*start, *ids]
        if seen[: len(known)] != known:
            raise SkipRow("a later turn does not continue the ids of the earlier ones")
        between = seen[len(known) :]
        ids += [*between, *new]
        mask += [0] * len(between) + [1] * len(new)
        logprobs += item.get("generation_log_probs") or []
    yield row | {"prompt_ids": start, "completion_ids": ids, "mask": mask, "logprobs": logprobs or None, "tools": None}


# NeMo-RL: `train_data_stepN.jsonl`, in which each value is a list of one.


def nemo_rl(fields: Fields) -> Iterator[Fields]:
    """Return the rollout of a row, from ids and mask if they are logged, else from the two texts."""
    row: Fields = {name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in fields.items()}
    if row.get("token_ids") and row.get("token_loss_mask"):
        length = int(row["input_lengths"])
        names = {"completion_ids": "token_ids", "mask": "token_loss_mask", "logprobs": "generation_logprobs"}
        sampled = {target: (row.get(name) or [])[:length] or None for target, name in names.items()}
        yield {**row, "prompt_ids": [], "content": None, **sampled}
        return
    texts = opened(row["content"])
    if not isinstance(texts, list) or len(texts) != 2:
        raise SkipRow("no token ids, and other than two texts: their roles are not logged")
    yield {**row, "prompt": texts[0], "completion": texts[1]}
