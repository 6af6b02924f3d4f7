"""The paged-cache continuous-batching engine; usable offline, with no server.

model = engine.load("path/or/hub-name")
outputs = model.generate_batch([[1, 2, 3]], max_new_tokens=16)
"""

from engine.config import ContinuousBatchingConfig, WorkloadHints
from engine.errors import (
    CacheTooSmallError,
    ClientError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineDeadError,
    EngineError,
    EngineStoppingError,
    GrammarFailedError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    QueueTimeoutError,
    RequestFailedError,
    ServerError,
    UnsupportedConfigError,
    UnsupportedModelError,
)
from engine.manager import ContinuousBatchingManager
from engine.mixin import ContinuousMixin
from engine.models.gguf_file import gguf_metadata
from engine.paged_model import PagedModel, load, wrap
from engine.request_ids import family_ids
from engine.requests import FinishReason, GenerationOutput, RequestStatus, TokenLogprobs
from engine.resolve import ResolvedConfig
from engine.sampling.grammar import Grammar, Matcher
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import SamplingParams
from engine.statistics import EngineStatistics

__all__ = [
    "CacheTooSmallError",
    "ClientError",
    "ContinuousBatchingConfig",
    "ContinuousBatchingManager",
    "ContinuousMixin",
    "DeadlineExceededError",
    "DuplicateRequestError",
    "EngineDeadError",
    "EngineError",
    "EngineStatistics",
    "EngineStoppingError",
    "FinishReason",
    "GenerationOutput",
    "Grammar",
    "GrammarFailedError",
    "InvalidRequestError",
    "Matcher",
    "PagedModel",
    "PromptTooLongError",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestFailedError",
    "RequestStatus",
    "ResolvedConfig",
    "SamplingLimits",
    "SamplingParams",
    "ServerError",
    "TokenLogprobs",
    "UnsupportedConfigError",
    "UnsupportedModelError",
    "WorkloadHints",
    "family_ids",
    "gguf_metadata",
    "load",
    "wrap",
]
