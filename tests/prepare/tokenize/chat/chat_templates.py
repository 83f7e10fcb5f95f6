"""Chat templates as models have them, written here, and tokenizers that have the tokens they write.

chatml          turns between <|im_start|> and <|im_end|>, as Qwen 2 and many others
chatml_marked   the same with {% generation %} markers
header          <|start_header_id|>role<|end_header_id|>, contents stripped, as Llama 3
inst            [INST] question [/INST] answer </s>, the system prompt within the first question, as Llama 2;
                refuses turns that don't alternate
plain           "### Role:" without any special token
tools           chatml with tools, tool calls and tool answers
thinking        looks into answers for </think> and leaves thoughts out
parts           takes contents that are lists of parts
"""

from pathlib import Path
from typing import Any

from pipelines.prepare.tokenize.chat.program import Settings
from pipelines.prepare.tokenize.chat.renderer import ChatTemplate
from tests.support.tokenizers_zoo import Zoo

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>"]

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CHATML_MARKED = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_HEADER = """\
{{- '<s>' }}
{%- for message in messages %}
    {%- set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {{- header + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
_INST = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set turns = messages[1:] %}
    {%- set system = '<<SYS>>\\n' + messages[0]['content'].strip() + '\\n<</SYS>>\\n\\n' %}
{%- else %}
    {%- set turns = messages %}
    {%- set system = '' %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.index0 == 0 %}
            {%- set content = system + message['content'] %}
        {%- else %}
            {%- set content = message['content'] %}
        {%- endif %}
        {{- '<s>' + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'].strip() + ' </s>' }}
    {%- endif %}
{%- endfor %}"""
_PLAIN = """\
{%- for message in messages %}
    {{- '### ' + message.role | title + ':\\n' + message.content + '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"""
_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{ '\\n' + message.content }}{% endif %}
    {%- for call in message.tool_calls %}
        {{- '\\n<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"""
_THINKING = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_PARTS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}{{ part.text }}{% endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": _CHATML,
    "chatml_marked": _CHATML_MARKED,
    "header": _HEADER,
    "inst": _INST,
    "plain": _PLAIN,
    "tools": _TOOLS,
    "thinking": _THINKING,
    "parts": _PARTS,
}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def answer(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def chat_tokenizer(zoo: Zoo, folder: Path, *, template: str, kind: str = "byte_bpe") -> Path:
    """A folder with a tokenizer of the zoo that has `SPECIAL` tokens and a template (its name here, or its text)."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(zoo.path(kind))
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL}, replace_extra_special_tokens=False)
    tokenizer.chat_template = TEMPLATES.get(template, template)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_of(template: str, **tokens: str) -> Any:
    """A tokenizer without a vocabulary."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)
    tokenizer.chat_template = template
    return tokenizer


def compiled(source: str, **settings: Any) -> ChatTemplate:
    """The template without a limit of time."""
    return ChatTemplate(Settings(**{"source": source, "tools_source": source, **settings}), start_clock=lambda: None)
