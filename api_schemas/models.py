"""The list of served models.

Source: https://platform.openai.com/docs/api-reference/models, with vLLM's max_model_len and root,
which frontends read. Data only.
"""

from typing import Literal

from api_schemas.base import WireModel


class ModelCard(WireModel):
    """One name under which a model is served.

    Attributes:
        created: When the server started, in seconds since 1970.
        root: The model behind the name.
        max_model_len: Prompt and answer together, in tokens.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: None = None
    max_model_len: int


class ModelList(WireModel):
    """All served names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
