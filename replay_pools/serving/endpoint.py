"""Sample completions from one model of one server, and check every answer against the request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from replay_pools.errors import InputError
from replay_pools.rollout import Completion, Sampler
from replay_pools.serving.connection import Connection
from replay_pools.serving.dialects import Answer, Dialect, Query, ServedModel

LOG_ONE = 1e-3  # nats; a value above it is no log-probability: rounding explains less


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model of one server, with all that a request for a completion needs."""

    connection: Connection
    dialect: Dialect
    model: ServedModel
    eos_ids: tuple[int, ...]  # sent with every request, so that turns end as they do in the local engine

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]) -> list[Completion]:
        """One completion for each prompt; log-probabilities are of the law that the server reports.

        Args:
            prompts: token ids.
            sampler: temperature, top-p, top-k and the largest length.
            seeds: one for each prompt.

        Raises:
            InputError: a request fails, or a completion is not what was asked for.
        """
        dialect = self.dialect
        queries = [
            Query(model=self.model, prompt=prompt, sampler=sampler, eos_ids=self.eos_ids, seed=seed)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        bodies = [dialect.body(query) for query in queries]
        wires = self.connection.ask_all(dialect.completion_path, dialect.wire, bodies, fix=dialect.ids_fix)
        completions: list[Completion] = []
        for i, (wire, query) in enumerate(zip(wires, queries, strict=True)):
            completions.append(self._completion(wire.read(), query, i))
        return completions

    def _completion(self, answer: Answer, query: Query, position: int) -> Completion:
        """The answer as a Completion; InputError, its first fault, where it has one."""
        place = f"{self.connection.at(self.dialect.completion_path)} completion {position}"
        for fault in self._faults(answer, query, place):
            raise fault
        has_ended = answer.ids[-1] in self.eos_ids
        return Completion(ids=answer.ids, logprobs=answer.logprobs, finish_reason="stop" if has_ended else "length")

    def _faults(self, answer: Answer, query: Query, place: str) -> Iterator[InputError]:
        """Every contradiction between an answer and its request.

        The ids decide whether a turn has ended, and the finish reason of the server must agree.
        """
        ids, limit, dialect = answer.ids, query.sampler.max_new_tokens, self.dialect
        if answer.num_prompt_tokens != len(query.prompt):
            expected = f"the prompt of {len(query.prompt)} ids as it was sent"
            yield InputError(place, expected=expected, found=f"{answer.num_prompt_tokens} ids")
        if not ids or min(ids) < 0:
            yield InputError(place, expected="token ids", found=str(ids), fix=dialect.ids_fix)
        if len(answer.logprobs) != len(ids):
            expected = f"{len(ids)} log-probabilities, one an id"
            yield InputError(place, expected=expected, found=str(len(answer.logprobs)), fix=dialect.ids_fix)
        if (highest := max(answer.logprobs, default=0.0)) > LOG_ONE:
            fix = "logits are no log-probabilities: serve with another --logprobs-mode"
            yield InputError(place, expected="log-probabilities", found=f"{highest:g}, above 0", fix=fix)
        end = next((i for i, token in enumerate(ids) if token in self.eos_ids), None)
        if end is not None and end + 1 != len(ids):
            found = f"{ids[end]} at {end} of {len(ids)} ids"
            yield InputError(place, expected="an end of turn at the end", found=found)
        if end is None and answer.finish == "stop":
            found, fix = f"a stop at {ids[-1:]}", "serve the model that --model names, with its own end-of-turn ids"
            yield InputError(place, expected=f"a stop at one of {list(self.eos_ids)}", found=found, fix=fix)
        if answer.finish not in ("stop", "length"):
            yield InputError(place, expected="finish reason stop or length", found=repr(answer.finish))
        # Shorter than the limit without an end of turn: the server's context was full.
        if len(ids) > limit or (end is None and len(ids) < limit):
            expected = f"{limit} ids, or an end of turn before"
            yield InputError(place, expected=expected, found=f"{len(ids)} ids without one", fix=dialect.context_fix)
