from __future__ import annotations

import datetime
from typing import Any

import pytest

from server.text.chat_template import (
    MAX_PROMPT_CHARACTERS,
    MAX_RANGE_ITEMS,
    MAX_TEMPLATE_CHARACTERS,
    ChatTemplate,
    ChatTemplates,
)
from server.text.errors import ChatTemplateError
from server.text.stop_strings import StopMatcher
from server.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi"}
CHATML = """{{ bos_token }}{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    options.setdefault("special_tokens", {"bos_token": "<bos>", "eos_token": "<eos>"})
    return ChatTemplate(source).render(messages, **options)


def test_block_lines_leave_no_blank_lines_behind() -> None:
    assert render(CHATML, USER) == "<bos><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, USER, add_generation_prompt=False) == "<bos><|im_start|>user\nHi<|im_end|>\n"


def test_e02_template_that_rejects_the_conversation_speaks_for_itself() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with pytest.raises(ChatTemplateError, match=r"^System role not supported$"):
        render(source, {"role": "system", "content": ""}, USER)


def test_tojson_leaves_text_as_it_is() -> None:
    tools = [{"name": "<f>", "about": "ünï & 'q'", "z": 1, "a": 2}]
    expected = """[{"name": "<f>", "about": "ünï & 'q'", "z": 1, "a": 2}]"""
    assert render("{{ tools | tojson }}", USER, tools=tools) == expected
    assert render("{{ {'a': 1} | tojson(indent=2) }}", USER) == '{\n  "a": 1\n}'


def test_loop_controls_generation_blocks_and_dates_work() -> None:
    source = "{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(source, USER) == "01"
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", USER) == "abHic"
    assert render("{{ strftime_now('%Y') }}", USER) in {str(datetime.date.today().year + n) for n in (-1, 0)}


def test_variables_reach_the_template_but_replace_nothing_of_ours() -> None:
    variables = {"enable_thinking": False, "messages": [], "bos_token": "x", "add_generation_prompt": False}
    source = "{{ bos_token }}{{ messages | length }}{{ enable_thinking }}{{ add_generation_prompt }}"
    assert render(source, USER, variables=variables) == "<bos>1FalseTrue"


def test_missing_tools_are_none() -> None:
    assert render("{% if tools is none %}none{% endif %}", USER) == "none"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "wrong in line 1"),
        ("a\n{{ b ", "wrong in line 2"),
        ("{% nonsense %}", "wrong in line 1"),
    ],
)
def test_template_that_does_not_compile_is_refused_with_its_line(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ 'a' * 'b' }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% include '/etc/passwd' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_fails_or_leaves_the_sandbox_is_an_error_and_no_crash(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template failed"):
        ChatTemplate(source).render([USER], special_tokens={})


def test_template_cannot_change_the_conversation() -> None:
    messages = [dict(USER)]
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{% do messages[0].update(role='x') %}{{ messages.pop() }}").render(messages, special_tokens={})
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages.pop() }}").render(messages, special_tokens={})
    assert messages == [USER]


def test_sizes_are_bounded() -> None:
    with pytest.raises(ChatTemplateError, match="over the limit"):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARACTERS + 1))
    with pytest.raises(ChatTemplateError, match="loops over more than"):
        render(f"{{% for n in range({MAX_RANGE_ITEMS + 1}) %}}x{{% endfor %}}", USER)
    with pytest.raises(ChatTemplateError, match="loops over more than"):
        render("{% for n in range(1000) %}{% for m in range(1000) %}{% endfor %}{% endfor %}", USER)
    with pytest.raises(ChatTemplateError, match="rendered prompt is over"):
        render("{{ messages[0].content }}x", {"role": "user", "content": "a" * MAX_PROMPT_CHARACTERS})
    for repetition in ("'a' * 999999999999", "999999999999 * 'a'", "[0] * 999999999999"):
        with pytest.raises(ChatTemplateError, match="makes a text of over"):
            render(f"{{{{ {repetition} }}}}", USER)
    with pytest.raises(ChatTemplateError, match="switched off"):
        render("{{ 9 ** 9 ** 9 }}", USER)
    assert render("{{ '-' * 3 }}{{ 3 * 4 }}", USER) == "---12"


def test_each_rendering_has_its_own_range_budget() -> None:
    template = ChatTemplate(f"{{% for n in range({MAX_RANGE_ITEMS}) %}}{{% endfor %}}ok")
    for _ in range(2):
        assert template.render([USER], special_tokens={}) == "ok"


def test_plain_transcript_sets_the_scene_for_a_base_model() -> None:
    template = ChatTemplate.plain_transcript()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " What is 1+1? \n"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2+2?"},
    ]
    start = "System: Be brief.\n\nUser: What is 1+1?\n\nAssistant: 2\n\nUser: And 2+2?\n\n"
    assert template.render(messages, special_tokens={}) == start + "Assistant:"
    assert template.render(messages, special_tokens={}, add_generation_prompt=False) == start


def test_plain_transcript_allows_no_content_and_refuses_an_unknown_role() -> None:
    template = ChatTemplate.plain_transcript()
    assert template.render([{"role": "assistant", "content": None}], special_tokens={}) == "Assistant: \n\nAssistant:"
    with pytest.raises(ChatTemplateError, match="no speaker for the role 'oracle'"):
        template.render([{"role": "oracle", "content": "x"}], special_tokens={})


def test_plain_transcript_stops_before_the_next_speaker() -> None:
    matcher = StopMatcher(ChatTemplate.plain_transcript().stops)
    emitted = "".join(matcher.feed(delta) for delta in [" It is", " 4.", "\n", "\n", "User", ":", " thanks"])
    assert emitted == " It is 4."
    assert matcher.matched == "\n\nUser:"


def test_plain_transcript_begins_with_bos_once(default_tokenizer: Tokenizer) -> None:
    prompt = ChatTemplate.plain_transcript().render([USER], special_tokens=default_tokenizer.special_tokens)
    ids = default_tokenizer.encode_chat(prompt)
    assert ids == default_tokenizer.encode(prompt)
    assert ids.count(2) == 1
    assert default_tokenizer.encode_chat("<bos>" + prompt) == ids


def test_tool_requests_use_the_tool_template_if_there_is_one() -> None:
    default, tool_use = ChatTemplate("d"), ChatTemplate("t")
    templates = ChatTemplates({"default": default, "tool_use": tool_use})
    assert templates.select() is default
    assert templates.select(with_tools=True) is tool_use
    assert ChatTemplates({"default": default}).select(with_tools=True) is default


def test_templates_without_a_default_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match='named "default"'):
        ChatTemplates({"rag": ChatTemplate("r")})


@pytest.mark.parametrize(
    "bomb",
    [
        "{% for a in m %}{% for b in m %}{% for c in m %}{% for d in m %}" + "{% endfor %}" * 4,
        "{% for x in [m, m, m] recursive %}{% if x %}{{ loop([m] * 100) }}{% endif %}{% endfor %}",
    ],
)
def test_a_template_that_would_run_for_hours_ends(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.chat_template.MAX_STEPS", 20_000)
    source = "{% set m = range(100) | list %}" + bomb
    with pytest.raises(ChatTemplateError, match=r"steps|failed"):
        render(source, USER)


def test_a_template_whose_steps_take_long_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.chat_template.MAX_SECONDS", 0.05)
    with pytest.raises(ChatTemplateError, match=r"more than 0.05 seconds"):
        render("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}", USER)


def test_counted_loops_are_loops_like_any_other() -> None:
    source = (
        "{% for x in messages %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}"
        "{{ loop.previtem.content if loop.previtem }}{{ loop.nextitem.content if loop.nextitem }}{% endfor %}"
        "{% for x in [] %}{% else %}none{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{% for x in messages if x.content == 'Hi' %}{{ loop.length }}{% endfor %}"
        "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}"
        "{% endfor %}"
    )
    assert render(source, USER, {"role": "user", "content": "Ho"}) == "1/2,Ho2/2.Hinonea11123"


def test_each_rendering_has_steps_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.chat_template.MAX_STEPS", 20_022)  # 141 rounds, of 141 rounds each
    template = ChatTemplate("{% for a in m %}{% for b in m %}{% endfor %}{% endfor %}ok")
    for _ in range(3):
        assert template.render([USER], special_tokens={}, variables={"m": list(range(141))}) == "ok"
