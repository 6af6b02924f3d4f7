"""Drawing tokens: what a request may ask for, and how a row of logits becomes a token.

parameters (resolved at submit) -> row_plan (what one row needs in this step) -> processors
(logits to distribution) -> sampler (distribution to token), with counter-based random numbers.
Parameters run on the caller's thread, everything else on the engine thread.
"""
