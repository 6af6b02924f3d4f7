"""Hugging Face models as the engine runs them: loading, probing, the packed forward."""
