"""An endpoint: one model of one server, asked for completions whose every answer is checked before it is believed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from replay_pools.errors import InputError
from replay_pools.rollout import Completion, Sampler
from replay_pools.serving.connection import Connection
from replay_pools.serving.dialects import Answer, Dialect, Query, ServedModel

LOG_ONE = 1e-3  # nats; a log-probability above it is none


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where completions come from."""

    connection: Connection
    dialect: Dialect
    model: ServedModel
    eos_ids: tuple[int, ...]  # sent with every request, so that a turn ends where it ends here

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]) -> list[Completion]:
        """One completion a prompt, each with its seed; log-probabilities are of the law that the server reports.

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
        return [
            self._completion(wire.read(), query, i) for i, (wire, query) in enumerate(zip(wires, queries, strict=True))
        ]

    def _completion(self, answer: Answer, query: Query, position: int) -> Completion:
        """The answer, once it has no fault."""
        place = f"{self.connection.at(self.dialect.completion_path)} completion {position}"
        for fault in self._faults(answer, query, place):
            raise fault
        stopped = answer.ids[-1] in self.eos_ids
        return Completion(ids=answer.ids, logprobs=answer.logprobs, finish_reason="stop" if stopped else "length")

    def _faults(self, answer: Answer, query: Query, place: str) -> Iterator[InputError]:
        """What contradicts the request. The ids decide whether a turn has ended; the server's word must agree."""
        ids, limit, dialect = answer.ids, query.sampler.max_new_tokens, self.dialect
        if answer.num_prompt_tokens != len(query.prompt):
            expected, found = f"the prompt of {len(query.prompt)} ids as it was sent", f"{answer.num_prompt_tokens} ids"
            yield InputError(place, expected=expected, found=found)
        if not ids or min(ids) < 0:
            yield InputError(place, expected="token ids", found=str(ids), fix=dialect.ids_fix)
        if len(answer.logprobs) != len(ids):
            expected, found = f"{len(ids)} log-probabilities, one an id", str(len(answer.logprobs))
            yield InputError(place, expected=expected, found=found, fix=dialect.ids_fix)
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
        if len(ids) > limit or (end is None and len(ids) < limit):
            expected, found = f"{limit} ids, or an end of turn before", f"{len(ids)} ids without one"
            yield InputError(place, expected=expected, found=found, fix=dialect.context_fix)
