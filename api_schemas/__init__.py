"""The wire: OpenAI's request and response objects as pydantic models.

Knows neither the engine nor HTTP. `support` lists what becomes of each request field.
"""

from api_schemas.base import RequestModel, WireModel
from api_schemas.chat import (
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatMessage,
)
from api_schemas.completions import Completion, CompletionChoice, CompletionRequest
from api_schemas.errors import ErrorObject, ErrorResponse
from api_schemas.field_support import FieldSupport, Handling
from api_schemas.generation import (
    ChatLogprobs,
    CompletionLogprobs,
    CompletionTokensDetails,
    FinishReason,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    SamplingFields,
    StreamOptions,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from api_schemas.models import ModelCard, ModelList
from api_schemas.requests import CancelledRequests
from api_schemas.structured import Constraint, ConstraintKind
from api_schemas.support import CHAT_FIELDS, COMPLETION_FIELDS
from api_schemas.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderResponse,
    TokenizeChatRequest,
    TokenizeResponse,
    TokenizerInfo,
    TokenizeTextRequest,
    parse_tokenize_request,
)
from api_schemas.tools import (
    CalledFunction,
    FunctionDefinition,
    MadeToolCall,
    Tool,
    ToolMode,
    ToolUse,
)

__all__ = [
    "CHAT_FIELDS",
    "COMPLETION_FIELDS",
    "CalledFunction",
    "CancelledRequests",
    "ChatAnswer",
    "ChatChoice",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionRequest",
    "ChatDelta",
    "ChatLogprobs",
    "ChatMessage",
    "Completion",
    "CompletionChoice",
    "CompletionLogprobs",
    "CompletionRequest",
    "CompletionTokensDetails",
    "Constraint",
    "ConstraintKind",
    "DetokenizeRequest",
    "DetokenizeResponse",
    "ErrorObject",
    "ErrorResponse",
    "FieldSupport",
    "FinishReason",
    "FunctionDefinition",
    "Handling",
    "MadeToolCall",
    "ModelCard",
    "ModelList",
    "PromptLogprob",
    "PromptLogprobs",
    "PromptTokensDetails",
    "RenderResponse",
    "RequestModel",
    "SamplingFields",
    "StreamOptions",
    "TokenLogprob",
    "TokenizeChatRequest",
    "TokenizeResponse",
    "TokenizeTextRequest",
    "TokenizerInfo",
    "Tool",
    "ToolMode",
    "ToolUse",
    "TopLogprob",
    "Usage",
    "WireModel",
    "parse_tokenize_request",
]
