"""What law a server's log-probabilities are of, found out by asking it.

    model         the model's own law, at temperature 1                   vLLM's default; SGLANG_RETURN_ORIGINAL_LOGPROB
    temperature   after temperature, before top-p and top-k               SGLang's default
    sampler       the law sampled from: after temperature, top-k, top-p   vLLM --logprobs-mode processed_logprobs

A server does not say which (a flag of its command line decides), so it is measured. With a top-p next to 0 only the
most likely token is left: its log-probability is 0 in the law sampled from, the same at two temperatures in the model's
own, and another at each in between. Not with temperature 0 or top-k 1: those are answered greedily, by other code.
"""

from typing import Literal

from replay_pools.rollout import Sampler
from replay_pools.serving.endpoint import Endpoint

LogprobLaw = Literal["model", "temperature", "sampler"]

ONE_TOKEN = 1e-6  # top-p
PROBED_TOKENS = 16
TEMPERATURES = (0.5, 2.0)  # vLLM takes none above 2
CERTAIN = 1e-5  # nats below 0: no model is this sure of all PROBED_TOKENS tokens
SAME = 0.05  # nats: the same forward pass in bfloat16 twice differs by less


def measure_law(endpoint: Endpoint, prompt: list[int]) -> LogprobLaw:
    """The law of the log-probabilities that the endpoint reports; `model`, the weakest claim, when the answers differ.

    Raises:
        InputError: as `Endpoint.sample`.
    """
    cold, hot = (
        endpoint.sample([prompt], Sampler(temperature=t, top_p=ONE_TOKEN, max_new_tokens=PROBED_TOKENS), [0])[0]
        for t in TEMPERATURES
    )
    assert cold.logprobs is not None
    assert hot.logprobs is not None
    if min(cold.logprobs + hot.logprobs) > -CERTAIN:
        return "sampler"
    apart = max(abs(a - b) for a, b in zip(cold.logprobs, hot.logprobs, strict=False))
    return "temperature" if cold.ids == hot.ids and apart > SAME else "model"


def is_law_of(law: LogprobLaw, sampler: Sampler) -> bool:
    """Whether log-probabilities of `law` are those of the tokens under the law of `sampler`."""
    truncated = sampler.top_p < 1 or sampler.top_k > 0
    if law == "temperature":
        return not truncated
    return law == "sampler" or not (truncated or sampler.temperature != 1)
