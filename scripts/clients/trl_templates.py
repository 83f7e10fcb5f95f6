"""Compare `--layout chat` with `apply_chat_template` for TRL's chat templates, one conversation at a time.

    every template        the ids are equal, and rows are rejected only if the template refuses them
    *_training.jinja      masks follow its {% generation %} markers, as in SFTTrainer
    the same, unmarked    --learn-whole-turns finds the marked answers, except in TRL_MARKS_MORE
    the model's own       counts the equal rows of both templates, with --learn-whole-turns

Templates are read from TRL's wheel, because importing TRL needs PyTorch.
"""

import collections
import copy
import datetime
import importlib.util
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2 import TemplateError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.layouts.base import LayoutContext
from pipelines.prepare.layouts.chat import ChatEncoder
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Purpose, Rows
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.template import open_template
from pipelines.prepare.tokenize.engines import open_reference

_SPEC = importlib.util.find_spec("trl")
assert _SPEC, "trl is not installed"
TEMPLATES = pathlib.Path(str(_SPEC.origin)).parent / "chat_templates"
# Text that TRL marks in addition to an answer, or white space that it leaves out.
TRL_MARKS_MORE = {
    "deepseek_r1_distill": "`<｜Assistant｜>`",
    "deepseekv3": "`<｜Assistant｜>`",
    "diffusion_gemma": "not `<|tool_response>`, which ends a call",
    "gptoss": "`<|start|>assistant`",
    "llava_next": "no white space behind `</s>`",
    "muse_glimmer": "`<|start|>assistant`",
    "qwen2_5": "the line break behind assistant",
}
# Templates that take nothing but lists of parts.
_OF_PARTS = ("idefics3", "llava_next", "smolvlm")
_MARKER = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_DTYPE = np.dtype(np.int32)
_CITY = {"city": {"type": "string", "description": "city"}}
_PARAMETERS = {"type": "object", "properties": _CITY, "required": ["city"]}
_WEATHER = {"name": "get_weather", "description": "Tells it.", "parameters": _PARAMETERS}
_TOOLS = [{"type": "function", "function": _WEATHER}]
Message = dict[str, Any]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _answer(content: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def _call(number: int, **arguments: Any) -> Message:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def _tool(content: str, number: int = 1) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": f"call0000{number}", "name": "get_weather"}


# A mark that ends within a letter of several tokens has its first token alone in `transformers`, so none does here.
def _talks() -> dict[str, list[Message]]:
    made = {
        "one turn": [_user("hi"), _answer("yo")],
        "two turns": [_user("one?"), _answer("1"), _user("two?"), _answer("2")],
        "white space": [_user(" a\n\nb "), _answer("1"), _user("\n"), _answer("2\n\n  x"), _user("c"), _answer(" 3 ")],
        "unicode": [_user("Grüße 漢字"), _answer("naïve 👍🏽 e\u0301."), _user("и?"), _answer("да\u00a0x")],
        "tags": [_user("<p>"), _answer("<table>\n</table>"), _user("<"), _answer("<t\n")],
        "the same words": [_user("same"), _answer("same")] * 3,
        "a question at the end": [_user("a"), _answer("b"), _user("c")],
        "an empty answer": [_user("a"), _answer(""), _user("c"), _answer("d")],
        "code": [_user("code"), _answer("```py\nprint('x')\n```\n"), _user("more"), _answer("{{ x }} {% y %}")],
        "quotes": [_user("{\"a\": 'b'}"), _answer("\\n \"x\" {'y': 1}"), _user("\\"), _answer("</s")],
        "a tool's words": [_user("q"), _answer("a"), _user("<tool_response>x</tool_response>"), _answer("b")],
        "special tokens": [_user("<s> <|im_end|>"), _answer("<think> </s> x"), _user("[INST]"), _answer("<|end|>.")],
        "many turns": [_user("and?"), _answer("so")] * 12,
        "long": [_user("word " * 200), _answer("yes " * 300)] * 4,
    }
    made |= {f"{name}, system": [{"role": "system", "content": "Be brief."}, *said] for name, said in made.items()}
    made["two answers"] = [_user("a"), _answer("b"), _answer("c"), _user("d"), _answer("e")]
    made["an answer first"] = [_answer("hello"), _user("d"), _answer("e")]
    for form, think in _THOUGHTS.items():
        made[f"a thought, {form}"] = [_user("q"), think("a", "hm")]
        made[f"thoughts, {form}"] = [_user("q"), think("a", "hm"), _user("r"), think("b", "well\n\nso")]
        some = [_user("q"), _answer("x"), _user("r"), think("b", "well"), *made["one turn"]]
        made[f"thoughts and none, {form}"] = some
    return made


_THOUGHTS = {
    "within": lambda said, thought: _answer(f"<think>\n{thought}\n</think>\n\n{said}"),
    "begun by the prompt": lambda said, thought: _answer(f"{thought}\n</think>\n\n{said}"),
    "reasoning_content": lambda said, thought: _answer(said, reasoning_content=thought),
    "thinking": lambda said, thought: _answer(said, thinking=thought),
    "reasoning": lambda said, thought: _answer(said, reasoning=thought),
}


def _tool_talks() -> dict[str, list[Message]]:
    made, thanks = {}, [_user("thanks"), _answer("welcome")]
    for words, content in {"null": None, "empty": "", "words": "Let me look."}.items():
        one = _answer(content, tool_calls=[_call(1, city="Paris")])
        both = _answer(content, tool_calls=[_call(1, city="Paris"), _call(2, city="Rome", days=[1, 2], to="é")])
        made[f"a call, {words}"] = [_user("w?"), one, _tool("sunny"), _answer("It is sunny.")]
        made[f"a call and more, {words}"] = [*made[f"a call, {words}"], *thanks]
        made[f"a call alone, {words}"] = [_user("w?"), one]
        made[f"calls in turn, {words}"] = [_user("w?"), one, _tool("a"), copy.deepcopy(one), _tool("b"), _answer("c")]
        results = [_tool("sunny"), _tool("rain", 2), _answer("both")]
        made[f"parallel calls, {words}"] = [_user("w?"), both, *results, *thanks]
    for form, think in _THOUGHTS.items():
        calling = {**think("", "look"), "tool_calls": [_call(1, city="Paris")]}
        made[f"a thought and a call, {form}"] = [_user("w?"), calling, _tool("sunny"), think("Sunny.", "ok")]
        made[f"thoughts and a call, {form}"] = [_user("w?"), calling, _tool("sunny"), think("Sunny.", "ok"), *thanks]
    return made


CONVERSATIONS = [(said, None) for said in _talks().values()] + [(said, _TOOLS) for said in _tool_talks().values()]


def toy_tokenizer(template: str) -> Any:
    """Return a tokenizer of single bytes with this chat template. Tags in the template are its special tokens."""
    tokens = sorted({*re.findall(r"<[|｜]?[\w▁|｜/-]+[|｜]?>", template), "<s>", "</s>"})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    made.add_special_tokens({"additional_special_tokens": tokens})
    made.chat_template = template
    return made


class Compared:
    """Tokenize conversations with one chat template, by `--layout chat` and by `apply_chat_template`."""

    def __init__(self, template: str, **settings: Any) -> None:
        self.tokenizer = toy_tokenizer(template)
        facts = tokenization.facts(self.tokenizer, name="trl", files={})
        columns = ColumnPlan(texts=())
        context = LayoutContext(
            tokenizer=self.tokenizer, facts=facts, layout=LayoutConfig(), length=1 << 20, columns=columns
        )
        opened = open_template(self.tokenizer, date=datetime.datetime.now().date().isoformat(), **settings)
        aligner = Aligner(self.tokenizer, dtype=_DTYPE)
        self._encoder = ChatEncoder(open_reference(self.tokenizer, dtype=_DTYPE), context, opened, aligner)

    def ours(self, said: list[Message], tools: Any) -> tuple[list[int], list[int], str]:
        """Return token ids, mask of learned tokens, and the reason if the row is rejected, by `--layout chat`."""
        columns: dict[Purpose, pa.Array] = {"messages": pa.array([said])}
        if tools is not None:
            columns["tools"] = pa.array([tools])
        encoded = self._encoder.encode(Rows(texts=(), arrays={}, nested=columns))
        why = encoded.reasons[0] and f"{encoded.reasons[0]}: {encoded.details.get(0)}"
        return encoded.ragged["input_ids"].ids.tolist(), encoded.ragged["loss_mask"].ids.tolist(), why

    def theirs(self, said: list[Message], tools: Any, *, masks: bool = False) -> Any:
        """Return the result of `apply_chat_template`, or None if the template refuses the conversation."""
        try:
            return self.tokenizer.apply_chat_template(
                said, tools=tools, return_dict=True, return_assistant_tokens_mask=masks
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
            return None


def _conversations(name: str) -> Iterator[tuple[list[Message], Any]]:
    for said, tools in CONVERSATIONS:
        if name.startswith(_OF_PARTS):
            yield [{**turn, "content": [{"type": "text", "text": turn["content"] or ""}]} for turn in said], tools
        else:
            # Arrow has no missing keys, so both get nulls.
            yield said, tools


def _check_ids(name: str, template: str, counts: collections.Counter[str]) -> None:
    compared = Compared(template)
    for said, tools in _conversations(name):
        theirs, (ids, _, why) = compared.theirs(said, tools), compared.ours(said, tools)
        counts["refused by the template"] += theirs is None
        if theirs is None:
            assert why.startswith("template_rejected"), (name, said, why)
        elif why and not why.startswith("no_assistant"):
            raise AssertionError(f"{name}: rejected, {why}: {said}")
        else:
            assert ids == theirs["input_ids"], (name, said)
            counts["ids equal"] += 1


def _check_masks(name: str, template: str, counts: collections.Counter[str]) -> None:
    marked = Compared(template)
    unmarked = Compared(_MARKER.sub(_as_if, template), whole_turns=True)
    for said, tools in _conversations(name):
        if (theirs := marked.theirs(said, tools, masks=True)) is None:
            continue
        expected = (theirs["input_ids"], theirs["assistant_masks"])
        *ours, why = marked.ours(said, tools)
        assert not why or why.startswith("no_assistant"), (name, said, why)
        assert (*ours,) == expected, (name, said)
        counts["masks by markers equal"] += 1
        *ours, why = unmarked.ours(said, tools)
        assert not why or why.startswith("no_assistant"), (name, said, why)
        is_equal = (*ours,) == expected
        assert is_equal or name in TRL_MARKS_MORE, (name, said, ours, expected)
        counts["masks without markers equal" if is_equal else f"{name} differs: {TRL_MARKS_MORE[name]}"] += 1


def _count_own(name: str, template: str, counts: collections.Counter[str]) -> None:
    """Count the conversations with equal tokens and masks in the model's own template and TRL's training template."""
    marked = Compared(template)
    own = Compared((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), whole_turns=True)
    equal = both = 0
    for said, tools in _conversations(name):
        theirs, (ids, mask, why) = marked.theirs(said, tools, masks=True), own.ours(said, tools)
        if theirs is not None and not why:
            both += 1
            their_tokens = marked.tokenizer.convert_ids_to_tokens(theirs["input_ids"])
            our_tokens = own.tokenizer.convert_ids_to_tokens(ids)
            equal += (their_tokens, theirs["assistant_masks"]) == (our_tokens, mask)
    if equal == both:
        counts["families with equal rows by their own template"] += 1
    else:
        counts[f"of {both} rows of {name}'s own template equal"] += equal


def _as_if(marker: re.Match[str]) -> str:
    """Return {% if true %} or {% endif %} in place of a {% generation %} marker, with its signs for white space."""
    word = "endif" if marker.group(1) else "if true"
    return re.sub(r"(end)?generation", word, marker.group())


def main() -> None:
    """Compare all templates of TRL, and print the numbers of equal conversations."""
    counts: collections.Counter[str] = collections.Counter()
    paths = sorted(TEMPLATES.glob("*.jinja"))
    for path in paths:
        template, name = path.read_text(encoding="utf-8"), path.stem.removesuffix("_training")
        _check_ids(name, template, counts)
        if _MARKER.search(template):
            _check_masks(name, template, counts)
        if path.stem != name:
            _count_own(name, template, counts)
    print(f"{len(paths)} templates, {len(CONVERSATIONS)} conversations each")
    for name, count in counts.items():
        print(f"{count:,} {name}")


if __name__ == "__main__":
    main()
