"""Sampling from a policy that an OpenAI-compatible server serves (vLLM, SGLang): token ids in, token ids out."""
