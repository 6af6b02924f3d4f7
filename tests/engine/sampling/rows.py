"""Requests, logits and the sampler under test, for the tests of sampling."""

import torch
from transformers import GenerationConfig

from engine.requests import RequestState
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import SamplingParams, resolve_sampling
from engine.sampling.sampler import Sampler

VOCAB = 101  # no multiple of a vector register


def logits_for(rows, vocab=VOCAB, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def request(params=None, name="r", prompt=(1, 2, 3), output=()):
    params = params or SamplingParams(temperature=0.0)
    return RequestState(name, list(prompt), params, generated_tokens=list(output))


def sample(logits, requests, return_logprobs=False):
    return Sampler(return_logprobs=return_logprobs).sample(logits, requests)


def resolved(**options):
    limits = SamplingLimits(vocab_size=VOCAB, max_model_tokens=200)
    return resolve_sampling(GenerationConfig(), limits, options, num_prompt_tokens=3)


GREEDY = SamplingParams(temperature=0.0)
KINDS = [
    GREEDY,
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.3),
    SamplingParams(temperature=0.0, top_logprobs=3),
    SamplingParams(temperature=0.0, min_new_tokens=50, eos_token_ids=frozenset({4, 5})),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.6, top_logprobs=0),
    SamplingParams(seed=3, top_k=5),
    SamplingParams(seed=4, top_p=0.7, logit_bias={7: 3.0}),
    SamplingParams(seed=5, min_p=0.1, presence_penalty=1.0),
    SamplingParams(seed=6, temperature=1.4, top_k=30, top_p=0.9, min_p=0.02, top_logprobs=5),
    resolved(no_repeat_ngram_size=1, suppress_tokens=list(range(0, VOCAB, 2))),
    resolved(do_sample=True, seed=7, begin_suppress_tokens=[4, 5], remove_invalid_values=True),
    resolved(do_sample=True, seed=8, temperature=2.0, top_h=0.6, typical_p=0.8, top_k=40),
    resolved(do_sample=True, seed=9, eta_cutoff=0.1, epsilon_cutoff=0.01, repetition_penalty=1.2),
]
