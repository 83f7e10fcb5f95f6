"""Valid and invalid features and schemas."""

from typing import Any

import pytest

from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import Feature, Schema


def feature(**changes: Any) -> Feature:
    fields: dict[str, Any] = {"name": "label", "dtype": "int64", "shape": (), "role": "label"}
    return Feature(**{**fields, **changes})


@pytest.mark.parametrize("shapes", [[(2**31,)], [(2**24 + 1,)], [(2**12, 2**12), (1,)], [(2**40, 2**40)]])
def test_a_record_has_no_more_values_than_fit_into_memory(shapes: list[tuple[int, ...]]) -> None:
    features = tuple(feature(name=f"f{at}", shape=shape, role="column") for at, shape in enumerate(shapes))
    with pytest.raises(SchemaError, match="values in a record, expected at most 16,777,216"):
        Schema(features)


def test_features_are_found_by_name_and_by_role() -> None:
    ids = feature(name="input_ids", shape=(4,), role="token_ids")
    schema = Schema((ids, feature(), feature(name="more", role="column"), feature(name="most", role="column")))
    assert schema.names == ("input_ids", "label", "more", "most")
    assert schema["input_ids"] is ids
    assert schema.with_role("token_ids") is ids
    assert schema.with_role("attention_mask") is None
    first = schema.with_role("column")
    assert first is not None
    assert first.name == "more"
    with pytest.raises(SchemaError, match=r"no feature 'mask', expected one of \['input_ids'"):
        schema["mask"]
