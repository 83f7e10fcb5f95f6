"""An option is declared once: the command line, the options file and Python's keywords say the same by it."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from pipelines import configs, python_options
from pipelines.build_options import BuildOptions
from pipelines.cli import commands
from pipelines.option_fields import Option, declared
from pipelines.prepare.options.config import LayoutConfig, PrepareConfig
from pipelines.prepare.options.tokenizer_options import TokenizerRequest

GIVEN: dict[str, Any] = {"dataset": ["data"], "tokenizer": "t", "output": "o"}
EVERY = [each for config in configs.CONFIGS for each in declared(config)]


def typed_value(each: Option) -> Any:
    if each.kind is bool:
        return not (each.default if each.typed_default is None else each.typed_default)
    text = each.choices[-1] if each.choices else "7"
    return [text, text] if each.is_repeatable else text


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_each_option_means_the_same_however_it_is_given(each: Option, tmp_path: Path) -> None:
    value = typed_value(each)
    content = {**GIVEN, each.name.replace("_", "-"): value}
    (tmp_path / "options.yaml").write_text(yaml.safe_dump(content))
    build = commands.main.commands["build"]
    words = ["data", "--tokenizer=t", "--output=o"]
    if isinstance(value, bool):
        words.append(each.spellings[0].split("/")[-1 if "/" in each.spellings[0] and not value else 0])
    else:
        words += [f"{each.flag}={text}" for text in (value if isinstance(value, list) else [value])]
    typed = build.make_context("build", list(words)).params
    assert typed[each.name] != build.make_context("build", words[:3]).params[each.name]
    assert build.make_context("build", ["--options", str(tmp_path / "options.yaml")]).params == typed
    named = {name.replace("-", "_"): given for name, given in content.items() if name != "dataset"}
    assert python_options.parsed(["data"], named)[each.name] == typed[each.name]


def test_editors_see_every_option_and_its_words() -> None:
    hints = get_type_hints(BuildOptions)
    own = {"output", "tokenizer"}  # arguments of `build` itself; overwrite is another name of resume
    assert hints.keys() | own == {each.name for each in EVERY} | {*configs.FUNCTIONS, "overwrite"}
    for each in (each for each in EVERY if each.name not in own):
        words = [word for hint in get_args(hints[each.name]) for word in get_args(hint) if isinstance(word, str)]
        assert set(words) == set(each.choices), each.name
        assert each.kind is str or each.kind in get_args(hints[each.name]), each.name


def test_names_are_unique_and_every_option_has_a_group_and_a_text() -> None:
    assert len({each.name for each in EVERY}) == len(EVERY)
    assert all(each.group and each.text for each in EVERY)
    assert all(each.text for each in declared(TokenizerRequest))


def test_what_is_not_declared_is_no_option() -> None:
    assert {each.field for each in declared(PrepareConfig)}.isdisjoint({"source", "tokenizer", "output", "beam_args"})
    assert {each.name for each in declared(LayoutConfig)} > {"layout", "max_length"}
