"""A lean load generator for OpenAI-compatible servers; `benchmarks.serve` is its command."""
