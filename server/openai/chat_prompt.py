"""From the messages of a chat to the text that the model reads.

Knows which fields of a body matter to a template, and what templates do not know. Invariants: what a client gives to a
template reaches it or is refused; a template's refusal is the client's to read, in the template's words.
"""

from __future__ import annotations

import re
from typing import Any, Final

from server.errors import bad_request
from server.openai.chat_body import ChatBody
from server.state import ServerState
from server.text.chat_template import OWN_VARIABLES, ChatTemplate
from server.text.errors import ChatTemplateError, TextError
from server.text.reasoning import ReasoningTags
from server.text.tokenizer import Tokenizer
from server.text.tool_calls.formats import knows_tools
from server.text.tool_calls.spelled_out import offer_in_words, spell_out_calls

# Stands where the final message ends; the space tells whether the template trims it.
_SEAM: Final = "\ue000seam\ue000 "
_TOOL_ROLE: Final = re.compile(r"['\"]tool['\"]")


def require_template(state: ServerState, body: ChatBody) -> ChatTemplate:
    """The template that this chat is for; ApiError 400 for a model without one, or for a client's own."""
    if body.chat_template is not None:
        return _requested_template(state, body.chat_template)
    if body.offered_tools and state.tool_use_template is not None:
        return state.tool_use_template
    if state.chat_template is None:
        message = (
            f"the model {state.served_model_name!r} has no chat template: start the server with --chat-template FILE "
            "(or --chat-template plain-transcript for a base model), or use /v1/completions"
        )
        raise bad_request(message, code="chat_template_missing")
    return state.chat_template


def _requested_template(state: ServerState, source: str) -> ChatTemplate:
    if not state.trusts_request_templates:
        message = (
            "chat_template: a template is a program, and this server runs no client's: it must be started with "
            "--trust-request-chat-template"
        )
        raise bad_request(message, "chat_template", "unsupported_parameter")
    try:
        return ChatTemplate(source)
    except ChatTemplateError as error:
        raise bad_request(f"chat_template: {error}", "chat_template") from None


def prompt_text(body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer) -> str:
    """The conversation as the model reads it. TextError where the template refuses it, ApiError 400 for variables."""
    source = template.source
    messages = [message.template_fields() for message in body.messages]
    if "developer" not in source:
        # The newer name of the system role, which most templates have never heard of.
        messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
    if "tool_calls" not in source:
        messages = spell_out_calls(messages, has_tool_role=_TOOL_ROLE.search(source) is not None)
    tools = [tool.template_fields() for tool in body.offered_tools] or None
    if tools and not knows_tools(source):
        messages, tools = offer_in_words(messages, tools), None
    if body.continues:
        messages[-1] = messages[-1] | {"content": messages[-1]["content"] + _SEAM}
    text = template.render(
        messages,
        special_tokens=tokenizer.special_tokens,
        tools=tools,
        add_generation_prompt=body.begins_answer,
        variables=_variables(body, template, tokenizer),
    )
    return _cut_at_seam(text) if body.continues else text


def opens_reasoning(body: ChatBody, prompt: str, tags: ReasoningTags) -> bool:
    """Whether what comes after the prompt is reasoning."""
    if body.continues:
        begun = body.messages[-1].content or ""
        return begun.rfind(tags.open) > begun.rfind(tags.close)
    return tags.is_open_at_end(prompt)


def _variables(body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    for name in variables:
        if name in OWN_VARIABLES or name in tokenizer.special_tokens:
            param = f"chat_template_kwargs.{name}"
            raise bad_request(f"{param}: the server sets this variable itself", param)
        if name not in template.variables:
            param = f"chat_template_kwargs.{name}"
            raise bad_request(f"{param}: the chat template reads no such variable", param, "unsupported_parameter")
    effort = body.reasoning_effort
    if effort is None:
        return variables
    if "reasoning_effort" in template.source:
        return {"reasoning_effort": effort} | variables
    if effort != "none":
        message = f"reasoning_effort: the model's chat template knows no efforts, so it cannot be {effort!r}"
        raise bad_request(message, "reasoning_effort", "unsupported_parameter")
    return {"enable_thinking": False} | variables


def _cut_at_seam(text: str) -> str:
    """Up to the end of the final message, as the template has it: with or without its last spaces."""
    place = text.rfind(_SEAM)
    if place >= 0:
        return text[:place]
    place = text.rfind(_SEAM.strip())
    if place < 0:
        raise TextError("The chat template does not show the final message, so that nothing can go on with it.")
    return text[:place].rstrip()
