"""Details of conversation rows: implicit nulls, columns and fields of the formats, unlearned parts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from pipelines.prepare.sources.columns.chats import as_messages
from pipelines.prepare.sources.columns.messages import objects_of
from pipelines.prepare.sources.rows.unused_rows import words_of
from prep_tfrecords import build
from tests import building
from tests.building import read_manifest, read_rows
from tests.prepare.tokenize.chat.chat_templates import answer, user

Row = dict[str, Any]
TEMPLATE = (
    "{%- for tool in tools or [] %}{{ 'Tool: ' + (tool | tojson) + '\\n' }}{%- endfor %}"
    "{%- if shouts is defined and shouts %}{{ 'LOUD ' }}{%- endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.content %}{{ m.content }}{%- endif %}"
    "{%- for call in m.tool_calls or [] %}{{ 'CALL ' + (call.function | tojson) }}{%- endfor %}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


def call(name: str, arguments: Any) -> Row:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: str) -> Row:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "Does.", "parameters": parameters}}


AGENTS: list[Row] = [
    {
        "messages": [
            user("weather?"),
            answer(None, tool_calls=[call("weather", {"city": "Paris"})]),
            {"role": "tool", "content": "sunny"},
            answer("It is sunny.", reasoning_content="hm"),
        ],
        "tools": [tool("weather", city="string")],
    },
    {
        "messages": [user("1 + 2?"), answer("", tool_calls=[call("add", {"a": 1, "b": [2]}), call("stop", {})])],
        "tools": [tool("add", a="number", b="array"), tool("stop")],
    },
    {"messages": [{"role": "system", "content": "Be brief."}, user("hi"), answer("hello")], "tools": None},
]


def _options(folder: Path, **changes: Any) -> Row:
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    base = {"layout": "chat", "tokenizer": building.tokenizer("chats"), "chat_template": str(template), "name": "d"}
    return {**base, "max_length": 512, "no_shuffle": True, **changes}


def _built(source: Path, **changes: Any) -> Path:
    output = source.with_name("out")
    outcome = building.command("build", source, *building.options(output, **_options(source.parent, **changes)))
    assert outcome.status == 0, outcome.err
    return output


def _texts(root: Path, mask: str, *, split: str = "train") -> list[str]:
    tokenizer, rows = AutoTokenizer.from_pretrained(root / "tokenizer"), read_rows(root, split)
    return [
        tokenizer.decode(ids[kept == 1].tolist(), clean_up_tokenization_spaces=False)
        for ids, kept in zip(rows["input_ids"], rows[mask], strict=True)
    ]


def _expected(messages: list[Row], tools: Any = None, **options: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(building.tokenizer("chats"))
    tokenizer.chat_template = TEMPLATE
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options))


def _stream(folder: Path, rows: list[Row]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(folder / "train.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


FILES: Mapping[str, Callable[[Path, list[Row]], object]] = {
    "JSON lines": lambda folder, rows: (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows))),
    "JSON list": lambda folder, rows: (folder / "train.json").write_text(json.dumps(rows)),
    "Parquet": lambda folder, rows: pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet"),
    "Arrow": _stream,
    "saved": lambda folder, rows: datasets.Dataset.from_list(rows).save_to_disk(folder),
}
OBJECTS: Mapping[str, Callable[[list[Row]], Any]] = {
    "Dataset": datasets.Dataset.from_list,
    "frame": pd.DataFrame,
    "table": pa.Table.from_pylist,
}


@pytest.mark.parametrize("kind", [*FILES, *OBJECTS])
def test_rows_are_what_their_json_says_whatever_holds_them(kind: str, tmp_path: Path) -> None:
    if kind in FILES:
        (tmp_path / "in").mkdir()
        FILES[kind](tmp_path / "in", AGENTS)
        root = _built(tmp_path / "in")
    else:
        options = {**_options(tmp_path), "shuffle": False}
        del options["no_shuffle"]
        root = tmp_path / "out"
        build(OBJECTS[kind](AGENTS), output=root, **options)
    assert _texts(root, "attention_mask") == [_expected(row["messages"], row["tools"]) for row in AGENTS]
    assert _texts(root, "loss_mask")[1].startswith('CALL {"name": "add", "arguments": {"a": 1, "b": [2]}}CALL')


def test_a_null_that_was_written_within_json_values_stays(tmp_path: Path) -> None:
    messages = [user("?"), answer("", tool_calls=[call("add", {"a": None, "b": [None, {"c": None}]})])]
    root = _built(building.source(tmp_path / "in", train=[{"messages": messages}, AGENTS[0] | {"tools": None}]))
    assert _texts(root, "attention_mask") == [_expected(turns) for turns in (messages, AGENTS[0]["messages"])]


SHAREGPT = [
    {"from": "human", "value": "weather?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Paris"}}'},
    {"from": "observation", "value": "sunny"},
    {"from": "gpt", "value": "It is sunny."},
]
MEANT = [
    user("weather?"),
    answer("", tool_calls=[{"function": {"name": "weather", "arguments": {"city": "Paris"}}}]),
    {"role": "tool", "content": "sunny"},
    answer("It is sunny."),
]
PIRATE = {"role": "system", "content": "You are a pirate."}
BARE = '[{"name": "weather"}]'
WHOLE = [{"type": "function", "function": {"name": "weather"}}]
SAID = '{"name": "weather", "arguments": {"city": "Paris"}}<|im_end|>'
TWO = {"type": "text", "text": "two"}


class Case(NamedTuple):
    """A row, its messages with tools and options, and the learned text."""

    row: Row
    messages: list[Row]
    learned: str
    tools: Any = None
    options: tuple[tuple[str, Any], ...] = ()


CALLED = f"CALL {SAID}It is sunny.<|im_end|>"
CASES: Mapping[str, Case] = {
    "tools of messages": Case(AGENTS[0], AGENTS[0]["messages"], CALLED, AGENTS[0]["tools"]),
    "options of a row": Case(
        {"messages": [user("q"), answer("a")], "chat_template_kwargs": {"shouts": True}},
        [user("q"), answer("a")],
        "a<|im_end|>",
        options=(("shouts", True),),
    ),
    "ShareGPT": Case(
        {"conversations": SHAREGPT, "system": "You are a pirate.", "tools": BARE}, [PIRATE, *MEANT], CALLED, WHOLE
    ),
    "ShareGPT as JSON values": Case(
        {"conversations": [{**SHAREGPT[0], "extra": 1}, *SHAREGPT[1:]], "system": "You are a pirate.", "tools": BARE},
        [PIRATE, {**MEANT[0], "extra": 1}, *MEANT[1:]],
        CALLED,
        WHOLE,
    ),
    "ShareGPT with a system prompt of its own": Case(
        {"conversations": [{"from": "system", "value": "Own."}, *SHAREGPT], "system": "Other."},
        [{"role": "system", "content": "Own."}, *MEANT],
        CALLED,
    ),
    "Alpaca": Case(
        {"instruction": "Say", "input": "a", "output": "b", "system": "You are a pirate.", "history": [["1", "2"]] * 2},
        [PIRATE, *[user("1"), answer("2")] * 2, user("Say\na"), answer("b")],
        "2<|im_end|>2<|im_end|>b<|im_end|>",
    ),
    "Alpaca without a first turn": Case(
        {"instruction": "", "input": "a", "output": "b", "system": "", "history": [], "tools": BARE},
        [user("a"), answer("b")],
        "b<|im_end|>",
        WHOLE,
    ),
    "prompt with an answer": Case(
        {"prompt": [user("q"), answer("no"), user("r")], "completion": [answer("yes", reasoning_content="hm")]},
        [user("q"), answer("no"), user("r"), answer("yes")],
        "yes<|im_end|>",
    ),
    "prompt as JSON values": Case(
        {"prompt": [user("q"), answer("no", name="n"), user("r")], "completion": "yes"},
        [user("q"), answer("no"), user("r"), answer("yes")],
        "yes<|im_end|>",
    ),
    "weight and train": Case(
        {"messages": [user("q"), answer("a", weight=0), answer("b", train=False), answer("c", weight=1, train=True)]},
        [user("q"), answer("a"), answer("b"), answer("c")],
        "c<|im_end|>",
    ),
    "calls as text": Case(
        {"messages": [user("q"), answer("", tool_calls='[{"name": "f", "arguments": "{\\"a\\": 1}"}]')]},
        [user("q"), answer("", tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}])],
        'CALL {"name": "f", "arguments": {"a": 1}}<|im_end|>',
    ),
    "parts": Case(
        {"messages": [user([{"type": "text", "text": part} for part in ("o", "ne")]), answer([TWO])]},
        [user("one"), answer("two")],
        "two<|im_end|>",
    ),
}
# In Parquet, the structs have a null for each key that only other messages have.
WITH_NULLS = ("tools of messages", "ShareGPT as JSON values", "Alpaca", "prompt as JSON values", "weight and train")


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "JSON lines") for name in CASES), *((name, "Parquet") for name in WITH_NULLS)]
)
def test_what_a_format_defines_is_used(name: str, kind: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "in").mkdir()
    FILES[kind](tmp_path / "in", [case.row] * 2)
    root = _built(tmp_path / "in")
    assert _texts(root, "attention_mask") == [_expected(case.messages, case.tools, **dict(case.options))] * 2
    assert _texts(root, "loss_mask") == [case.learned] * 2


@pytest.mark.parametrize("is_json", [False, True])
def test_a_thought_before_a_call_is_its_reasoning_content(is_json: bool) -> None:
    calls = SHAREGPT[1]["value"]
    conversation = [SHAREGPT[0], {**SHAREGPT[1], "value": f"<think>\nhm\n</think>\n{calls}"}, SHAREGPT[1]]
    column = pa.array([conversation])
    if is_json:
        storage = pa.ListArray.from_arrays([0, 3], pa.array([json.dumps(message) for message in conversation]))
        column = storage.cast(pa.list_(pa.json_()))
    (messages,) = objects_of(as_messages({"messages": column})["messages"])
    assert [json.loads(message["tool_calls"]) for message in messages[1:]] == [json.loads(calls)] * 2
    assert [message.get("reasoning_content") for message in messages] == [None, "hm", None]


@pytest.mark.parametrize("command", ["plan", "build"])
def test_columns_that_a_form_leaves_unused_are_named(command: str, tmp_path: Path) -> None:
    row = {"conversations": SHAREGPT, "id": 1, "source": "web", "history": "text", "tools": BARE, "kept": 3}
    place = tmp_path / "in"
    place.mkdir()
    pq.write_table(pa.Table.from_pylist([{**row, "system": "s", "tools": None}]), place / "test.parquet")
    pq.write_table(pa.Table.from_pylist([row]), place / "train.parquet")
    options = building.options(tmp_path / "out", **_options(tmp_path, keep_column="kept"))
    outcome = building.command(command, place, *options)
    assert outcome.status == 0, outcome.err
    note = "note: conversations are ShareGPT (conversations, tools); columns not used: id, source, history, system\n"
    assert outcome.err.count(note) == outcome.err.count("not used") == 1
    assert ("conversations: ShareGPT (conversations, tools)\n" in outcome.out) == (command == "plan")
    if command == "build":
        for split, tools in (("test", None), ("train", WHOLE)):
            assert _texts(tmp_path / "out", "attention_mask", split=split) == [_expected(MEANT, tools)]


WALKS = TEMPLATE.replace("{{ 'CALL ' + (call.function | tojson) }}", "{{ call.function.arguments.items() | list }}")


@pytest.mark.parametrize(
    ("row", "template", "reason", "words", "remedy"),
    [
        (
            {"messages": [user("q"), answer("", tool_calls=[call("f", "{")])]},
            WALKS,
            "tool_calls_not_json",
            "row 1 of train.jsonl: the arguments of a tool call in message 1: Expecting property name",
            "correct the JSON",
        ),
        (
            {"messages": [user("bad"), answer("a")]},
            "{{ raise_exception('nothing bad is said here') if messages[0].content == 'bad' }}" + TEMPLATE,
            "template_rejected",
            "row 1 of train.jsonl: nothing bad is said here",
            "--chat-template",
        ),
        (
            {"messages": [user("q"), answer("a")], "chat_template_kwargs": "[1]"},
            TEMPLATE,
            "options_not_json",
            "row 1 of train.jsonl: found list, expected an object",
            "correct the JSON",
        ),
        (
            {"messages": [{"role": "User", "content": "q"}, {"role": "bot", "content": "a"}]},
            TEMPLATE,
            "no_assistant",
            "row 1 of train.jsonl: the roles are User, bot",
            "an answer to learn, with the role assistant",
        ),
        (
            {"instruction": "q", "output": "a", "history": [["one"]]},
            TEMPLATE,
            "role_missing",
            "row 1 of train.jsonl: message 0",
            "a role with a --map",
        ),
    ],
)
def test_if_no_row_can_be_used_plan_and_build_name_the_first_one_with_its_reason_and_a_remedy(
    row: Row, template: str, reason: str, words: str, remedy: str, tmp_path: Path
) -> None:
    options = _options(tmp_path)
    Path(options["chat_template"]).write_text(template)
    data = building.source(tmp_path / "in", train=[row])
    cause, advice = building.command("build", data, *building.options(tmp_path / "out", **options)).error
    assert f"{words_of(reason)} in 1" in cause
    assert words in cause
    assert remedy in advice
    assert building.command("plan", data, *building.options(tmp_path / "out", **options)).error == (cause, advice)


def test_a_row_among_others_is_told_its_reason_too(tmp_path: Path) -> None:
    sound: Row = {"messages": [user("q"), answer("a")], "tools": None}
    rows = [sound, {**sound, "tools": "3"}, sound]
    options = building.options(tmp_path / "out", **_options(tmp_path))
    cause, remedy = building.command("build", building.source(tmp_path / "in", train=rows), *options).error
    example = (
        "such as row 2 of train.jsonl (tools are not JSON: found int, expected a list of objects); --max-error-rate 0"
    )
    assert example in cause
    assert remedy == "correct the JSON with a --map, or allow a share of them with --max-error-rate"


TRACES = [
    {"type": "user", "message": user("q"), "text": "one"},
    {"type": "a", "message": answer("a", id="x"), "text": ""},
]


def test_traces_of_an_agent_are_converted_only_with_the_option(tmp_path: Path) -> None:
    command = ["plan", building.source(tmp_path / "in", train=TRACES), *building.options(tmp_path)[2:]]
    assert building.command(*command).status == 0
    outcome = building.command(*command, "--source-option", "parse_agent_traces=true")
    assert outcome.error[0] == "split 'train' has no column 'text'"
    assert "the columns hold chats of the form messages" in outcome.error[1]
    outcome = building.command(*command, "--source-option", "parse_agent_traces=true", "--text-column", "harness")
    assert "cannot be read: To support decoding agent traces, please install 'teich'" in outcome.error[0]
    assert outcome.error[1] == "install this package with pip, and run the same command again"


def test_conversations_that_look_like_traces_are_conversations(tmp_path: Path) -> None:
    row: Row = {"id": "a", "source": "web", "model": "m", "system_prompt": "s", "messages": [user("q"), answer("a")]}
    root = _built(building.source(tmp_path / "in", train=[row, row]))
    assert _texts(root, "attention_mask") == [_expected(row["messages"])] * 2
    assert read_manifest(root).splits["train"].ledger.rows_used == 2
    assert building.command("verify", root).status == 0
