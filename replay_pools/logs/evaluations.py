"""Logs of tools that sample and judge but do not train: inspect_ai, lm-eval, and batches of OpenAI's API."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import look_up
from replay_pools.logs.sources import Fields, Log, Rows, StoredRow, described
from replay_pools.logs.unfolding import LeftOutError, joined_text, unfold_rows

# inspect_ai: samples of an evaluation, each with its messages and scores.

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect's usual values of its letters


def inspect_sample(sample: Fields) -> Iterable[Fields]:
    """The one answer of a sample, with its scores as numbers."""
    if sample.get("error"):
        raise LeftOutError("the sample ended in an error")
    messages = [
        {"role": message.get("role"), "content": joined_text(message.get("content"))} for message in sample["messages"]
    ]
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(answers) != 1:
        raise LeftOutError(f"{len(answers)} answers of the model in a sample; one can be replayed")
    for content in (message["content"] for message in messages[: answers[0] + 1]):
        if not isinstance(content, str):
            kinds = sorted({str(part.get("type")) for part in content} - {"text"})
            raise LeftOutError(f"content with {', '.join(kinds)} beside the text")
    said = {"prompt": messages[: answers[0]], "completion": messages[answers[0]]["content"]}
    scores = {name: _score(score) for name, score in (sample.get("scores") or {}).items()}
    return [{**sample, **said, "stop_reason": look_up(sample, "output.choices.0.stop_reason"), "scores": scores}]


def _score(score: Any) -> float | None:
    """The value of a score as a number; None where it is none."""
    value = score.get("value") if isinstance(score, dict) else score
    value = GRADES.get(value, value) if isinstance(value, str) else value
    return float(value) if isinstance(value, bool | int | float) and not math.isnan(value) else None


def one_scorer(log: Log) -> None:
    """The reward is the score of the only scorer; of several the user names one."""
    scorers = list(dict.fromkeys(name for row in log.rows for name in row.fields["scores"]))
    if len(scorers) == 1:
        log.mapping["reward"] = f"scores.{scorers[0]}"
    say_models(log)


def say_models(log: Log) -> None:
    """Ask whether the model that the log names is the one that is replayed."""
    if models := sorted({str(row.fields["model"]) for row in log.rows if row.fields.get("model")}):
        log.notes.append(f"sampled by {', '.join(models)}: is --model these weights?")


# lm-eval: samples_TASK_DATE.jsonl of --log_samples, a row for each document and each filter of its answers.

LM_EVAL_COLUMNS = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics")
LM_EVAL_HASHES = ("doc_hash", "prompt_hash", "target_hash")


def lm_eval_sample(sample: Fields) -> Iterable[Fields]:
    """One rollout for each response to the one request of a document."""
    requests = [*map(_items, _items(sample["arguments"]))]
    if len(requests) != 1 or len(sample["resps"]) != 1:
        raise LeftOutError(f"{len(requests)} requests for one document; one can be replayed")
    # A generation has a text and its options, a log-likelihood a text alone, or with the continuation that is scored.
    context, *options = requests[0]
    if not options or not isinstance(options[0], dict):
        raise LeftOutError("log-likelihoods of given texts: nothing was sampled")
    context = context[0] if isinstance(context, list) else context  # the text of messages, for a chat API
    is_chat = isinstance(context, str) and context.lstrip().startswith('[{"role"')
    answers = sample["resps"][0]
    answers = [answers] if isinstance(answers, str) else answers
    names = sample.get("metrics") or [name for name in sample if name not in (*LM_EVAL_COLUMNS, *LM_EVAL_HASHES)]
    scores = {name: _score_each(sample[name], len(answers)) for name in names}
    if len(answers) > 1 and all(values is None for values in scores.values()):
        raise LeftOutError("one score for several responses: whose it is is not said")
    for place, text in enumerate(answers):
        score = {name: None if values is None else _score(values[place]) for name, values in scores.items()}
        yield {**sample, ("messages" if is_chat else "rendered"): context, "completion": text, "scores": score}


def _items(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value


def _score_each(score: Any, num_answers: int) -> Sequence[Any] | None:
    """A score for each answer; None where there is one for all of several."""
    if isinstance(score, list) and len(score) == num_answers:
        return score
    return [score] if num_answers == 1 else None


def _filter(row: StoredRow) -> str:
    return str(row.fields.get("filter"))


def settle_lm_eval(log: Log) -> None:
    """Each rollout once, as the first filter of its file judged it; the reward is the only metric."""
    kept, others = dict[Path, str](), set[str]()
    for row in log.rows:
        if kept.setdefault(row.path, _filter(row)) != _filter(row):
            others.add(_filter(row))
    if others:
        log.rows = Rows(row for row in log.rows if kept[row.path] == _filter(row))
        first, rest = (", ".join(sorted(names)) for names in ({*kept.values()}, others))
        log.notes.append(f"caution: scores are those of the filter {first}; the same rollouts by {rest} were left out")
    one_scorer(log)
    if "rendered" in log.rows.filled:
        log.notes.append("prompts are texts, which lm-eval gives to the model as they are")


# Batches of OpenAI's API, which vLLM writes too: lines of requests, lines of answers, joined by `custom_id`. Rewards
# and labels stand in either, or in lines of their own.

PARTS = {"body": "requests", "response": "answers"}  # {the column that tells a kind of line: the kind}
OF_BATCH = ("id", "method", "url", "body", "response", "error")  # columns that say nothing of a rollout


def settle_batch(log: Log) -> None:
    """One row for each answer to a request, with all columns of the lines of its `custom_id`."""
    places: dict[str, dict[Any, int]] = {kind: {} for kind in (*PARTS.values(), "other lines")}
    for place, row in enumerate(log.rows):
        kind = next((kind for column, kind in PARTS.items() if column in row.fields), "other lines")
        custom_id = row.fields.get("custom_id")
        if not isinstance(custom_id, str) or custom_id in places[kind]:
            expected = f"a text that no other of the {kind} has"
            log.faults.add(f"{row.where} custom_id", kind, expected=expected, found=described(custom_id))
            continue
        places[kind][custom_id] = place
    requests, answers, others = places.values()
    for custom_id, place in answers.items():
        if custom_id not in requests:
            fix = "give the folder with the file of requests and the file of answers"
            where, found = f"{log.rows[place].where} custom_id", f"none with {described(custom_id)}"
            log.faults.add(where, "no request", expected="a line of the requests with it", found=found, fix=fix)
    log.check()
    for what, missing in (("requests without an answer", requests), ("lines of no answer", others)):
        if number := len(missing.keys() - answers.keys()):
            log.notes.append(f"caution: left out: {what} ({number} of {len(missing)})")
    tables = (requests, answers, others)
    joined = ([log.rows[table[name]] for table in tables if name in table] for name in answers)
    log.rows = Rows(row for lines in joined for row in _answers(lines))
    unfold_rows(log, _batch_answer)
    say_models(log)


def _answers(lines: Sequence[StoredRow]) -> Iterator[StoredRow]:
    """The choices of an answer, each with what was asked; one row without a choice where the request failed.

    `lines` are the request, the answer, and another line of their `custom_id` where there is one.
    """
    request, answer = lines[0].fields["body"], lines[1].fields["response"]
    beside = {name: value for row in lines for name, value in row.fields.items() if name not in OF_BATCH}
    body = answer.get("body") if isinstance(answer, dict) and answer.get("status_code") == 200 else None
    body = body if isinstance(body, dict) and isinstance(body.get("choices"), list) else {"choices": [None]}
    choices = body["choices"]
    # Of several choices, each has its item of a list of their length.
    lists = {name for name, value in beside.items() if isinstance(value, list) and 1 < len(value) == len(choices)}
    for number, choice in enumerate(choices):
        each = {name: value[number] if name in lists else value for name, value in beside.items()}
        each |= {"request": request, "choice": choice, "model": body.get("model")}
        yield StoredRow(lines[1].path, lines[1].where, each | {"prompt_ids": body.get("prompt_token_ids")})


def _batch_answer(fields: Fields) -> Iterable[Fields]:
    """A rollout of a choice: of a chat, or of a completion of a text."""
    request, choice = fields["request"], fields["choice"]
    if choice is None:
        raise LeftOutError("the request failed, or is none of /v1/chat/completions and /v1/completions")
    message = choice.get("message") or {"content": choice.get("text")}
    if message.get("tool_calls") or message.get("reasoning_content") or message.get("reasoning"):
        raise LeftOutError("tool calls or reasoning beside the text")
    if not isinstance(message["content"], str):
        raise LeftOutError("an answer without text")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length", None):
        raise LeftOutError(f"an answer that ended by {described(finish)}")
    if ("messages" in request) == ("prompt" in request):
        raise InputError("body", expected="messages or a prompt", found=", ".join(request) or "nothing")
    row = {name: value for name, value in fields.items() if name not in ("request", "choice")}
    row |= {"messages": request.get("messages"), "rendered": request.get("prompt")}
    row |= {"completion": message["content"], "finish_reason": finish}
    row |= {"prompt_ids": fields["prompt_ids"] or choice.get("prompt_token_ids")}
    return [row | {"completion_ids": choice.get("token_ids")}]
