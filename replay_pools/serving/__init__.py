"""Sampling from a policy on an inference server (vLLM, SGLang): token ids in, token ids out."""
