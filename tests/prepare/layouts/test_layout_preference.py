"""Preference pairs: the ids and masks of TRL's DPOTrainer, in every form of input; cuts, rejections and the reader."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import building
from tests.building import Outcome, read_manifest, read_rows
from tests.support.chats import rejected
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io import manifest, mixture, objectives, random_access, reader
from tfrecord_io.errors import ManifestError, ReaderError

Row = dict[str, Any]
SIDES = ("chosen", "rejected")
USER = {"role": "user", "content": "Name a river."}
SYSTEM = {"role": "system", "content": "Be brief."}
CHOSEN, REJECTED = ({"role": "assistant", "content": text} for text in ("The Loire.", "A river."))
TEXT = {"chosen": CHOSEN["content"], "rejected": REJECTED["content"]}
PAIR = {"chosen": [CHOSEN], "rejected": [REJECTED]}
WHOLE = {"chosen": [USER, CHOSEN], "rejected": [USER, REJECTED]}
LATER = [CHOSEN, {"role": "user", "content": "Another?"}, CHOSEN]


def _value(message: Row) -> Row:
    return {"from": {"user": "human", "assistant": "gpt"}.get(message["role"], "system"), "value": message["content"]}


# The columns of a conversation in each form, and the prompt's messages if they are not the user's message alone.
FORMS: Mapping[str, tuple[Row, list[Row]]] = {
    "messages": ({"prompt": [USER], **PAIR}, [USER]),
    "messages, texts as answers": ({"prompt": [USER], **TEXT}, [USER]),
    "messages, one as answer": ({"prompt": [USER], "chosen": CHOSEN, "rejected": REJECTED}, [USER]),
    "a repeated prompt": ({"prompt": [USER], **WHOLE}, [USER]),
    "a text and messages": ({"prompt": "Name a river.", **PAIR}, [USER]),
    "a text and whole conversations": ({"prompt": "Name a river.", **WHOLE}, [USER]),
    "a text and whole conversations with a system prompt": (
        {"prompt": "Name a river.", **{side: [SYSTEM, *messages] for side, messages in WHOLE.items()}},
        [SYSTEM, USER],
    ),
    "implicit": (WHOLE, [USER]),
    "ShareGPT": ({"conversations": [_value(USER)], "chosen": _value(CHOSEN), "rejected": _value(REJECTED)}, [USER]),
    "ShareGPT with texts": ({"conversations": [_value(USER)], "system": "Be brief.", **TEXT}, [SYSTEM, USER]),
    "Alpaca": ({"instruction": "Name", "input": "a river.", **TEXT}, [{**USER, "content": "Name\na river."}]),
}


def attempt(root: Path, rows: list[Row], **options: Any) -> Outcome:
    """Builds pairs in the order of their rows."""
    data = building.source(root.with_name(f"{root.name}-rows"), train=rows)
    defaults = {"layout": "preference", "tokenizer": building.tokenizer("chats"), "max_length": 96, "no_shuffle": True}
    return building.command("build", data, *building.options(root, **{**defaults, **options}))


def build(root: Path, rows: list[Row], **options: Any) -> Path:
    made = attempt(root, rows, **options)
    assert made.status == 0, made.err
    return root


def unpadded(columns: Mapping[str, np.ndarray], row: int = 0) -> dict[str, tuple[list[int], list[int]]]:
    """Each side's ids without padding, and their mask of the answer."""
    sides = {}
    for side in SIDES:
        size = int(columns[f"{side}_attention_mask"][row].sum())
        names = (f"{side}_input_ids", f"{side}_loss_mask")
        ids, mask = (columns[name][row, :size].tolist() for name in names)
        assert not any(columns[names[1]][row, size:])
        sides[side] = ids, mask
    return sides


def expected(tokenizer: Any, prompt: list[Row], chosen: list[Row], rejected: list[Row]) -> dict[str, Any]:
    """The ids and masks of `DPOTrainer._prepare_dataset` and its collator."""
    start = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
    whole = [tokenizer.apply_chat_template(prompt + answer)["input_ids"] for answer in (chosen, rejected)]
    shared = min(_shared(start, ids) for ids in whole)
    return {side: (ids, [0] * shared + [1] * (len(ids) - shared)) for side, ids in zip(SIDES, whole, strict=True)}


def _shared(one: list[int], other: list[int]) -> int:
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(building.tokenizer("chats"))


@pytest.mark.parametrize("form", FORMS)
def test_a_conversation_in_every_form_has_the_ids_of_the_template(tmp_path: Path, tokenizer: Any, form: str) -> None:
    row, prompt = FORMS[form]
    columns = read_rows(build(tmp_path / "out", [row] * 2), "train")
    assert unpadded(columns) == expected(tokenizer, prompt, [CHOSEN], [REJECTED])


def test_the_shared_turns_of_whole_conversations_are_the_prompt(tmp_path: Path, tokenizer: Any) -> None:
    """If one conversation begins with the whole other one, the last shared message is an answer, as in TRL."""
    rows: list[Row] = [
        {"chosen": [USER, *LATER], "rejected": [USER, *LATER[:-1], REJECTED]},
        {"chosen": [USER, CHOSEN], "rejected": [USER, *LATER]},
    ]
    columns = read_rows(build(tmp_path / "out", rows), "train")
    assert unpadded(columns) == expected(tokenizer, [USER, *LATER[:-1]], LATER[-1:], [REJECTED])
    assert unpadded(columns, 1) == expected(tokenizer, [USER], [CHOSEN], LATER)


def test_template_variables_and_other_columns_reach_the_template(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ mood }}{% if tools %}{{ tools[0].name }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    row = {"asked": [USER], "better": [CHOSEN], "worse": [REJECTED], "functions": [{"name": "look"}]}
    names = {"prompt_column": "asked", "chosen_column": "better", "rejected_column": "worse"}
    more = {"chat_template": template, "chat_option": "mood=calm", "tools_column": "functions"}
    rows: list[Row] = [{**row, "chat_template_kwargs": {"mood": "grim"}}, row]
    root = build(tmp_path / "out", rows, **names, **more)
    shown = json.loads(building.command("inspect", root, "--rows", 2, "--json").out)
    assert [record["text"] for record in shown] == ["grimlookName a river.", "calmlookName a river."]
    assert shown[0]["features"] == TEXT


# Rows of texts, with and without a prompt; and the texts of the prompt and both answers.
PROMPTED = (
    ({"prompt": "The sky is", "chosen": " blue.", "rejected": " a fish."}, ("The sky is", " blue.", " a fish.")),
    ({"prompt": "", "chosen": "yes", "rejected": "no"}, ("", "yes", "no")),
    ({"prompt": "Water is ", "chosen": "wet.</s>", "rejected": "dry"}, ("Water is ", "wet.</s>", "dry")),
)
IMPLICIT = (
    ({"chosen": "It is red.", "rejected": "It is blue."}, ("It is", " red.", " blue.")),
    ({"chosen": "abc", "rejected": "abcd"}, ("ab", "c", "cd")),
    ({"chosen": "größer", "rejected": "größte"}, ("größ", "er", "te")),
    ({"chosen": "né", "rejected": "nê"}, ("n", "é", "ê")),
    ({"chosen": "漢字", "rejected": "漢字。"}, ("漢", "字", "字。")),
)


@pytest.mark.parametrize("rows", [PROMPTED, IMPLICIT], ids=["prompted", "implicit"])
def test_texts_have_the_ids_of_the_joined_texts_with_one_eos(
    tmp_path: Path, zoo: Zoo, rows: tuple[tuple[Row, tuple[str, ...]], ...]
) -> None:
    tokenizer, options = zoo.tokenizer("unigram"), {"tokenizer": zoo.path("unigram"), "truncation_side": "right"}
    columns = read_rows(build(tmp_path / "out", [row for row, _ in rows], **options), "train")
    eos = tokenizer.eos_token
    for at, (_, (prompt, *answers)) in enumerate(rows):
        whole = [tokenizer(f"{prompt}{answer.removesuffix(eos)}{eos}")["input_ids"] for answer in answers]
        start = min(_shared(tokenizer(prompt)["input_ids"], ids) for ids in whole)
        masks = [[0] * start + [1] * (len(ids) - start) for ids in whole]
        assert unpadded(columns, at) == dict(zip(SIDES, zip(whole, masks, strict=True), strict=True))


def test_rows_are_cut_on_either_side_each_by_itself(tmp_path: Path, tokenizer: Any) -> None:
    long = [{**REJECTED, "content": "no " * 30}]
    whole = expected(tokenizer, [USER], [CHOSEN], long)
    for side, cut in (("right", slice(None, 24)), ("left", slice(-24, None))):
        rows = [{"prompt": [USER], "chosen": [CHOSEN], "rejected": long}] * 2
        root = build(tmp_path / side, rows, max_length=24, truncation_side=side)
        assert unpadded(read_rows(root, "train")) == {
            name: (ids[cut], mask[cut]) for name, (ids, mask) in whole.items()
        }
        lost = sum(max(0, len(ids) - 24) for ids, _ in whole.values())
        assert read_manifest(root).splits["train"].ledger.tokens_cut == 2 * lost


NO_PAIRS: Mapping[str, Row] = {
    "chosen_null": {"chosen": None},
    "rejected_null": {"rejected": None},
    "prompt_null": {"prompt": None},
    "chosen_empty": {"chosen": []},
    "rejected_empty": {"rejected": [{"role": "assistant", "content": "", "name": "bot"}]},
    "prompt_empty": {"prompt": []},
    "answers_equal": {"rejected": [CHOSEN]},
}
# By options: the reason and the changed columns of each row.
REJECTIONS: list[tuple[Row, Mapping[str, Row]]] = [
    ({}, NO_PAIRS),
    ({"truncation_side": "right"}, {"prompt_too_long": {"prompt": [{**USER, "content": "so " * 60}]}}),
    ({"truncation": "do_not_truncate"}, {"too_long": {"chosen": [{**CHOSEN, "content": "so " * 60}]}}),
]


@pytest.mark.parametrize(("options", "rows"), REJECTIONS)
def test_rows_without_a_pair_are_rejected_with_a_reason(tmp_path: Path, options: Row, rows: Mapping[str, Row]) -> None:
    usable = {"prompt": [USER], **PAIR}
    made = [usable, *({**usable, **row} for row in rows.values())]
    root = build(tmp_path / "out", made, max_error_rate=0.9, max_length=48, **options)
    assert {row: reason for row, (reason, _) in rejected(root).items()} == dict(enumerate(rows, start=1))
    documented = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    assert all(f"`{reason}`" in documented for reason in rows)


@pytest.mark.parametrize("both", [("It is 4.", "No."), ([CHOSEN], [REJECTED])], ids=["texts", "messages"])
def test_answers_without_a_common_beginning_need_the_name_of_the_prompts_column(tmp_path: Path, both: Any) -> None:
    """As in Intel/orca_dpo_pairs, whose prompts are in `question`; TRL trains on the answers alone."""
    rows = [{"question": "2 + 2?", "chosen": both[0], "rejected": both[1]}] * 2
    refused = attempt(tmp_path / "out", rows)
    assert refused.status
    assert "the prompt is empty" in refused.err
    assert "--prompt-column" in refused.err
    build(tmp_path / "out", rows, prompt_column="question")


@pytest.mark.parametrize("form", ["implicit", "a text and whole conversations", "a text and messages"])
def test_a_named_system_message_begins_the_prompt_of_every_form(tmp_path: Path, tokenizer: Any, form: str) -> None:
    rows: list[Row] = [{**FORMS[form][0], "rules": "Be brief."}] * 2
    columns = read_rows(build(tmp_path / "out", rows, system_column="rules"), "train")
    assert unpadded(columns) == expected(tokenizer, [SYSTEM, USER], [CHOSEN], [REJECTED])


def test_a_system_message_alone_is_no_implicit_prompt(tmp_path: Path) -> None:
    rows = [{"rules": "Be brief.", "question": "Name a river.", **PAIR}] * 2
    assert "the prompt is empty" in attempt(tmp_path / "out", rows, system_column="rules").err


def test_texts_become_messages_if_a_template_is_chosen(tmp_path: Path, tokenizer: Any) -> None:
    rows: list[Row] = [{"rules": "Be brief.", "question": "Name a river.", **TEXT}] * 2
    named = {"prompt_column": "question", "system_column": "rules", "chat_template": "default"}
    columns = read_rows(build(tmp_path / "out", rows, **named), "train")
    assert unpadded(columns) == expected(tokenizer, [SYSTEM, USER], [CHOSEN], [REJECTED])


def test_texts_without_a_pair_are_rejected_with_a_reason(tmp_path: Path, zoo: Zoo) -> None:
    usable = {"prompt": "one", "chosen": "two", "rejected": "three"}
    rows = [usable, {**usable, "chosen": ""}, {**usable, "rejected": ""}, {**usable, "rejected": "two"}]
    root = build(tmp_path / "out", rows, max_error_rate=0.9, tokenizer=zoo.path("unigram"))
    reasons = [reason for _, (reason, _) in sorted(rejected(root).items())]
    assert reasons == ["chosen_empty", "rejected_empty", "answers_equal"]


def test_a_line_counts_rows_with_answers_that_start_before_the_end_of_the_prompt(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} <think>{% endif %}"
    (tmp_path / "template.jinja").write_text(template)
    rows = [{"prompt": [USER], **PAIR}] * 3
    outcome = attempt(tmp_path / "out", rows, chat_template=tmp_path / "template.jinja")
    assert "in 3 of 3 sampled rows the end of the prompt has other tokens" in outcome.err


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"text_column": "prompt"}, "--layout preference with --text-column"),
        ({"truncation": "only_first"}, "--layout preference with --truncation only_first"),
        ({"chosen_column": "better"}, "has no column 'better'"),
        ({"learn": "last"}, "--learn was given with --layout preference"),
        ({"chosen_column": "number"}, "'number' holds int64, expected text, a message, or lists of messages"),
    ],
)
def test_options_that_do_not_suit_are_refused(tmp_path: Path, options: Row, cause: str) -> None:
    assert cause in attempt(tmp_path / "out", [{"prompt": [USER], **PAIR, "number": 1}], **options).error[0]


def test_a_plan_shows_the_form_and_the_lengths_of_both_sides(tmp_path: Path) -> None:
    data = building.source(tmp_path / "in", train=[{**WHOLE, "score": 1}] * 4)
    options = building.options("x", layout="preference", tokenizer=building.tokenizer("chats"), workers=None)[2:]
    outcome = building.command("plan", data, *options, "--json")
    (planned,) = json.loads(outcome.out)
    assert planned["chats"] == "implicit prompt (chosen, rejected)"
    assert planned["side_percentiles"].keys() == set(SIDES)
    assert "columns not used: score" in outcome.err
    assert "train, prompt and chosen" in building.command("plan", data, *options).out


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    answers = (REJECTED, {**REJECTED, "content": "no " * 9})
    rows = [{"prompt": [USER], **PAIR, "rejected": [answer], "margin": at / 2} for at, answer in enumerate(answers)]
    return build(tmp_path_factory.mktemp("pairs") / "out", rows, keep_column="margin", max_length=64)


@pytest.mark.slow
def test_the_reader_gives_the_next_tokens_of_both_answers(pairs: Path) -> None:
    columns, pad = read_rows(pairs, "train"), read_manifest(pairs).tokenizer.pad_id
    batches = reader.open(pairs).dataset(
        "train", global_batch_size=3, objective=objectives.preference(), training=False, keep=["margin"]
    )
    inputs, labels, weights, kept = next(iter(batches))
    assert kept["margin"].numpy().tolist() == [0.0, 0.5, 0.0]
    for side in SIDES:
        ids, mask = columns[f"{side}_input_ids"], columns[f"{side}_loss_mask"]
        assert inputs[f"{side}_token_ids"].shape == (3, 64)
        assert np.array_equal(inputs[f"{side}_token_ids"][:2], ids)
        assert np.array_equal(inputs[f"{side}_padding_mask"][:2], columns[f"{side}_attention_mask"])
        assert np.array_equal(labels[side][:2], np.pad(ids[:, 1:], ((0, 0), (0, 1)), constant_values=pad))
        assert np.array_equal(weights[side][:2], np.pad(mask[:, 1:], ((0, 0), (0, 1))))
        assert not weights[side][2].numpy().any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "lengths", [{}, {"prompt_length": 8, "answer_length": 6}, {"prompt_length": 40, "answer_length": 40}]
)
def test_arrays_equal_tensors(pairs: Path, lengths: Row) -> None:
    objective = objectives.preference(**lengths)
    batches = reader.open(pairs).dataset("train", global_batch_size=2, objective=objective, training=False)
    rows = random_access.open(pairs)["train"]
    bound = objective.bind(rows.manifest)
    of_batch, of_row = bound(rows.batch([0, 1])), bound(rows[1])
    for tensors, arrays, row in zip(next(iter(batches)), of_batch, of_row, strict=True):
        assert tensors.keys() == arrays.keys() == row.keys()
        for name in arrays:
            assert np.array_equal(tensors[name].numpy(), arrays[name])
            assert np.array_equal(arrays[name][1], row[name])


def test_prompts_are_cut_on_the_left_and_answers_on_the_right(pairs: Path) -> None:
    """As MaxText's DPODataFormatting: prompts keep their end, answers their beginning."""
    columns, pad = read_rows(pairs, "train"), read_manifest(pairs).tokenizer.pad_id
    whole = unpadded(columns, 1)
    prompt = [token for token, learned in zip(*whole["chosen"], strict=True) if not learned]
    for prompt_length, answer_length in ((4, 5), (40, 40)):
        objective = objectives.preference(prompt_length=prompt_length, answer_length=answer_length)
        inputs, _, weights = objective.bind(read_manifest(pairs))({name: column[1] for name, column in columns.items()})
        padding = max(0, prompt_length - len(prompt))
        assert inputs["prompt_ids"].tolist() == [pad] * padding + prompt[-prompt_length:]
        assert inputs["prompt_mask"].tolist() == [0] * padding + [1] * (prompt_length - padding)
        for side, (ids, _) in whole.items():
            answer = ids[len(prompt) :][:answer_length]
            padding = answer_length - len(answer)
            assert inputs[f"{side}_ids"].tolist() == answer + [pad] * padding
            assert inputs[f"{side}_mask"].tolist() == weights[side].tolist() == [1] * len(answer) + [0] * padding


@pytest.mark.parametrize("lengths", [{"prompt_length": 4}, {"prompt_length": 4, "answer_length": 0}])
def test_lengths_that_do_not_suit_are_refused(lengths: Row) -> None:
    with pytest.raises(ReaderError, match="answer_length is"):
        objectives.preference(**lengths)


def test_other_objectives_and_other_datasets_are_refused(pairs: Path) -> None:
    with pytest.raises(ReaderError, match="no input token ids"):
        objectives.causal_lm().bind(read_manifest(pairs))
    with pytest.raises(ReaderError, match="no chosen token ids"):
        objectives.preference().bind(read_manifest(building.REPOSITORY / "tests" / "data" / "format-1.0" / "chat"))


@pytest.mark.parametrize("name", [f"{side}_{kind}" for side in SIDES for kind in ("input_ids", "loss_mask")])
def test_a_manifest_has_all_features_of_both_answers(pairs: Path, name: str) -> None:
    content = json.loads((pairs / "manifest.json").read_text())
    kept = [feature for feature in content["features"] if feature["name"] != name]
    del content["sha256"]
    with pytest.raises(ManifestError, match=r"of the (chosen|rejected) answer, expected"):
        manifest.parse(json.dumps({**content, "features": kept}).encode(), place="m")


@pytest.mark.slow
def test_keras_has_no_loss_for_pairs(pairs: Path) -> None:
    batches = reader.open(pairs).dataset("train", global_batch_size=2, objective=objectives.preference())
    with pytest.raises(ReaderError, match="preference pairs, for which Keras has no loss"):
        objectives.compile_args(batches)


@pytest.mark.slow
def test_pairs_are_mixed(pairs: Path) -> None:
    parts = {"one": reader.open(pairs), "other": reader.open(pairs)}
    batches = mixture.Mixture(parts, weights={"one": 1.0, "other": 3.0}).dataset(
        "train", global_batch_size=4, objective=objectives.preference(), keep=["margin"]
    )
    *_, kept = next(iter(batches))
    assert kept["margin"].shape == (4,)


def exported(root: Path, output: Path, *options: object) -> list[Row]:
    outcome = building.command("export", root, "--to", "parquet", "--output", output, *options)
    assert outcome.status == 0, outcome.err
    return [row for path in sorted(output.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_parquet_has_the_prompt_once_or_before_each_answer(pairs: Path, tmp_path: Path) -> None:
    apart, joined = exported(pairs, tmp_path / "apart"), exported(pairs, tmp_path / "joined", "--join-prompts")
    for at, (row, whole) in enumerate(zip(apart, joined, strict=True)):
        ids = {f"{side}_ids": tokens for side, (tokens, _) in unpadded(read_rows(pairs, "train"), at).items()}
        assert whole == {**ids, "margin": at / 2}
        assert {name: row["prompt_ids"] + row[name] for name in ids} == ids
        assert row.keys() == {"prompt_ids", "chosen_ids", "rejected_ids", "margin"}


def test_rows_with_two_prompts_are_only_exported_with_their_prompts(tmp_path: Path) -> None:
    rows = [{"prompt": [USER], "chosen": [CHOSEN], "rejected": [{**REJECTED, "content": "no " * 9}]}]
    root = build(tmp_path / "out", rows, max_length=24, truncation_side="left")
    outcome = building.command("export", root, "--to", "parquet", "--output", tmp_path / "apart")
    assert "two answers no longer have the same prompt" in outcome.error[0]
    assert "--join-prompts" in outcome.error[1]
    (row,) = exported(root, tmp_path / "joined", "--join-prompts")
    assert len(row["rejected_ids"]) == 24


@pytest.mark.parametrize("options", [["--to", "megatron"], ["--to", "parquet", "--add", "labels"]])
def test_exports_that_cannot_hold_pairs_are_refused(pairs: Path, tmp_path: Path, options: list[str]) -> None:
    outcome = building.command("export", pairs, *options, "--output", tmp_path / "out")
    assert outcome.status
    assert not (tmp_path / "out").exists()


def test_the_example_in_the_docs_of_the_format_is_what_is_made(tmp_path: Path) -> None:
    text = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    section = text.partition("### Layout `preference`")[2].partition("\n### ")[0]
    rows = [json.loads(line) for line in re.findall(r"^\{\"prompt\".+$", section, re.MULTILINE)]
    columns = read_rows(build(tmp_path / "out", rows, max_length=20), "train")
    shown = re.findall(r"^(\w+(?:input_ids|mask)) +([\d ]+)$", section, re.MULTILINE)
    assert len(shown) == 6
    for name, values in shown:
        assert list(map(int, values.split())) == columns[name][0].tolist()
