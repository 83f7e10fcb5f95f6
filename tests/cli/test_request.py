"""Options: declared once, the same on the command line, in a file and in Python; and how much a command says."""

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
from tests import building
from tests.building import REVIEWS

GIVEN: dict[str, Any] = {"dataset": ["data"], "tokenizer": "t", "output": "o"}
EVERY = [option for config in configs.CONFIGS for option in declared(config)]


def typed_value(option: Option) -> Any:
    if option.kind is bool:
        return not (option.default if option.typed_default is None else option.typed_default)
    text = option.choices[-1] if option.choices else "7"
    return [text, text] if option.is_repeatable else text


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_each_option_means_the_same_however_it_is_given(option: Option, tmp_path: Path) -> None:
    value = typed_value(option)
    content = {**GIVEN, option.name.replace("_", "-"): value}
    (tmp_path / "options.yaml").write_text(yaml.safe_dump(content))
    build = commands.main.commands["build"]
    words = ["data", "--tokenizer=t", "--output=o"]
    if isinstance(value, bool):
        words.append(option.spellings[0].split("/")[-1 if "/" in option.spellings[0] and not value else 0])
    else:
        words += [f"{option.flag}={text}" for text in (value if isinstance(value, list) else [value])]
    typed = build.make_context("build", list(words)).params
    assert typed[option.name] != build.make_context("build", words[:3]).params[option.name]
    assert build.make_context("build", ["--options", str(tmp_path / "options.yaml")]).params == typed
    named = {name.replace("-", "_"): entry for name, entry in content.items() if name != "dataset"}
    assert python_options.parsed(["data"], named)[option.name] == typed[option.name]


def test_editors_see_every_option_and_its_words() -> None:
    hints = get_type_hints(BuildOptions)
    own = {"output", "tokenizer"}  # arguments of `build` itself; overwrite is another name of resume
    assert hints.keys() | own == {option.name for option in EVERY} | {*configs.FUNCTIONS, "overwrite"}
    for option in (option for option in EVERY if option.name not in own):
        words = [word for hint in get_args(hints[option.name]) for word in get_args(hint) if isinstance(word, str)]
        assert set(words) == set(option.choices), option.name
        assert option.kind is str or option.kind in get_args(hints[option.name]), option.name


def test_names_are_unique_and_every_option_has_a_group_and_a_text() -> None:
    assert len({option.name for option in EVERY}) == len(EVERY)
    assert all(option.group and option.text for option in EVERY)
    assert all(option.text for option in declared(TokenizerRequest))


def test_what_is_not_declared_is_no_option() -> None:
    assert {o.field for o in declared(PrepareConfig)}.isdisjoint({"source", "tokenizer", "output", "beam_args"})
    assert {option.name for option in declared(LayoutConfig)} > {"layout", "max_length"}


def parameters(*words: object) -> dict[str, object]:
    context = commands.main.commands["build"].make_context("build", [str(word) for word in words])
    return dict(context.params)


LINE = (
    *("a.jsonl", "b.jsonl", "--tokenizer=t", "-o", "out", "--split=train", "--split", "b=test[:5]", "--no-shuffle"),
    *("--filter=m:f", "--map=m:g", "--filter=m:h", "--max-length", 64, "--pack-rows", "--seed=3", "--workers=3"),
    *("--", "--runner=FlinkRunner", "--flink_master=local"),
)


def test_a_file_stands_for_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "dataset: [a.jsonl, b.jsonl]\ntokenizer: t\noutput: out\nsplit: [train, 'b=test[:5]']\nshuffle: false\n"
        "functions: [{filter: 'm:f'}, {map: 'm:g'}, {filter: 'm:h'}]\nmax-length: 64\npack-rows: true\nseed: 3\n"
        "num-proc: 3\nbeam: [--runner=FlinkRunner, --flink_master=local]\n"
    )
    assert parameters("--options", file) == parameters(*LINE)


def test_the_command_line_wins_over_the_file_option_by_option(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("dataset: a\ntokenizer: t\noutput: out\nsplit: [train, test]\nshuffle: false\nmap: m:f\n")
    params = parameters("b", "--options", file, "--split=dev", "--shuffle", "--filter=m:g")
    assert (params["datasets"], params["tokenizer"], params["split"]) == (("b",), "t", ("dev",))
    assert (params["shuffle"], params["functions"]) == (True, (("filter", "m:g"),))
    assert parameters("--options", file)["shuffle"] is False
    assert parameters("--options", file)["functions"] == (("map", "m:f"),)


def test_nothing_behind_a_name_in_a_file_means_the_default(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "dataset: a\ntokenizer: t\noutput: out\nname: ~\nlimit:\nsplit:\npack-rows: false\nmap:\nfunctions:\nbeam:\n"
    )
    assert parameters("--options", file) == parameters("a", "--tokenizer=t", "-o", "out")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tokeniser: t", "no option 'tokeniser'"),
        ("shuffle: maybe", "shuffle='maybe', expected True or False"),
        ("split: [train, ~]", "split=None, expected a text"),
        ("name: {a: b}", "name={'a': 'b'}, expected a text"),
        ("- a", "list at the top level, expected option names"),
        ("a: [", "cannot be read"),
        pytest.param("a: " + "[" * 5000, "cannot be read", id="deep"),
        ("functions: [abc]", "'abc': None, expected map or filter with a text"),
        ("max-length: long", "max_length='long', expected a whole number"),
        ("functions: [{map: [1, 2]}]", "'map': [1, 2], expected map or filter with a text"),
        ("functions: [{sort: 'm:f'}]", "'sort': 'm:f', expected map or filter"),
        ("map: 3", "'map': 3, expected map or filter with a text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_a_wrong_option(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "options.yaml"
    if content is not None:
        file.write_text(content)
    outcome = building.command("build", "x", "--tokenizer=t", "-o", tmp_path / "out", "--options", file)
    assert outcome.status == 2
    assert words in outcome.err


def test_options_come_from_the_environment_where_their_order_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_TFRECORDS_BUILD_TOKENIZER", "t")
    monkeypatch.setenv("PREP_TFRECORDS_BUILD_MAP", "m:f")
    with commands.main.make_context("prep-tfrecords", ["build"], resilient_parsing=True) as program:
        build = commands.main.commands["build"]
        params = build.make_context("build", ["x", "-o", "out"], parent=program).params
    assert params["tokenizer"] == "t"
    assert params["functions"] == ()


@pytest.mark.engines
def test_a_quiet_build_says_nothing_and_one_without_progress_says_what_came_of_it(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    quiet = building.command("build", REVIEWS, *options, "-q", "--json")
    assert (quiet.status, quiet.err) == (0, "")
    assert quiet.out.startswith("{")
    again = building.command("build", REVIEWS, *options, "--overwrite", "--no-progress")
    assert "tokenized with" in again.err
    assert "%" not in again.err.split("tokenized with")[0]
    assert building.command("inspect", tmp_path / "none", "-q").error[0].endswith("no such folder")
