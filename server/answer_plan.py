"""What is to become of a chat's answer: which grammar holds it, and which parsers read it.

Decided from the request, its rendered prompt and what is known of the model, before the answer is
begun. The same plan serves every choice. Event loop only.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from api_schemas import ChatCompletionRequest, FinishReason, ToolMode, ToolUse
from server.grammars.composition import SpecialIds, after_reasoning, either
from server.grammars.sources import GrammarRecipe, constraint_recipe
from server.message_parts import MessageParser, PlainParser
from server.message_reader import MessageReader
from server.prompt_encoding import RenderedChat
from server.reasoning.markers import Opening, ReasoningMarkers, find_opening
from server.reasoning.parser import ReasoningParser
from server.tools.call_format import CallFormat
from server.tools.call_parser import CallParser, CallRules
from server.tools.forcing import forced_calls
from server.tools.harmony import HarmonyParser
from server.tools.registry import forced_format


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """How a model writes what is not plain text.

    Attributes:
        calls: Its calls.
        is_harmony: Whether every message of its answers has a channel; `calls` then only says how
            calls are forced.
        reasoning: What stands around its reasoning; None if it does not reason.
        special_ids: Its special tokens by their texts.
        short_call_ids: Whether its template takes ids of calls of nine characters only.
    """

    calls: CallFormat
    reasoning: ReasoningMarkers | None
    special_ids: SpecialIds
    short_call_ids: bool = False
    is_harmony: bool = False


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What is to become of one request's answers.

    Attributes:
        prompt: What the model is given.
        num_choices: Answers.
        tools: What may be called.
        recipe: What every answer must follow; None leaves them free.
        formats: How the model writes.
        opening: What the prompt says of the reasoning.
        shows_reasoning: Whether the reasoning is part of the answer.
    """

    prompt: RenderedChat
    num_choices: int
    tools: ToolUse
    recipe: GrammarRecipe | None
    formats: ModelFormats
    opening: Opening
    shows_reasoning: bool

    def reader(self) -> MessageReader:
        """Return what reads one answer."""
        if self.formats.is_harmony and self.recipe is None:
            # A grammar leaves no room for channels, so that what it holds is read as it is.
            harmony = HarmonyParser(self._rules(), shows_reasoning=self.shows_reasoning)
            return MessageReader(harmony, harmony)
        content = self._content_parser()
        if self.formats.reasoning is None:
            return MessageReader(content)
        reasoning = ReasoningParser(
            self.formats.reasoning, self.opening, content, shown=self.shows_reasoning
        )
        return MessageReader(reasoning, reasoning)

    def finish_reason(self, reason: FinishReason, *, has_calls: bool) -> FinishReason:
        """Return why an answer ended; a call that was named in advance ends like a text."""
        if reason is not FinishReason.STOP or not has_calls:
            return reason
        if self.tools.is_legacy:
            return FinishReason.FUNCTION_CALL
        return reason if self.tools.mode is ToolMode.NAMED else FinishReason.TOOL_CALLS

    def _content_parser(self) -> MessageParser:
        if self.tools.mode is ToolMode.NONE:
            return PlainParser()
        calls: CallFormat = self.formats.calls
        # What a grammar lays out beside another answer must be told from it by its layout.
        if self.tools.is_forced or self.recipe is not None:
            calls = forced_format(calls)
        return CallParser(calls, self._rules())

    def _rules(self) -> CallRules:
        functions = {function.name: function for function in self.tools.functions}
        return CallRules(functions, self.tools.is_single, self.tools.is_forced)


def plan_answer(
    formats: ModelFormats, body: ChatCompletionRequest, prompt: RenderedChat
) -> AnswerPlan:
    """Decide about a request's answers."""
    tools = body.tool_use()
    opening = Opening.CLOSED
    recipe = _recipe(formats, body, tools)
    if formats.reasoning is not None:
        begun = (body.messages[-1].content or "") if body.continue_final_message else ""
        opening = find_opening(formats.reasoning, prompt.text, begun)
        if recipe is not None:
            recipe = GrammarRecipe(
                recipe.name,
                recipe.param,
                recipe.error_code,
                (opening.name, *recipe.source),
                partial(_reason_first, recipe, formats, opening),
            )
    return AnswerPlan(prompt, body.n, tools, recipe, formats, opening, body.include_reasoning)


def _recipe(
    formats: ModelFormats, body: ChatCompletionRequest, tools: ToolUse
) -> GrammarRecipe | None:
    """Return what the content must follow, calls included."""
    answer = constraint_recipe(body.constraint())
    if tools.mode is ToolMode.NONE or (answer is None and not tools.is_forced):
        return answer
    layout = forced_format(formats.calls).layout
    param = "functions" if tools.is_legacy else "tools"
    make = partial(forced_calls, tools, layout, formats.special_ids)
    calls = GrammarRecipe("The tools", param, "invalid_tools", _source(tools), make)
    if answer is None or tools.is_forced:
        return calls
    source = (answer.source, calls.source)
    make = partial(_either, answer, calls)
    return GrammarRecipe(answer.name, answer.param, answer.error_code, source, make)


def _source(tools: ToolUse) -> tuple[Any, ...]:
    """Return what the grammar of forced calls depends on."""
    functions = [(one.name, one.parameters, one.strict) for one in tools.functions]
    return ("calls", tools.is_single, functions)


def _either(answer: GrammarRecipe, calls: GrammarRecipe) -> str:
    return either(answer.make(), calls.make())


def _reason_first(recipe: GrammarRecipe, formats: ModelFormats, opening: Opening) -> str:
    assert formats.reasoning is not None
    return after_reasoning(recipe.make(), formats.reasoning, opening, formats.special_ids)
