"""Receipts: small JSON files written after their shards. A shard with a valid receipt is not made again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pipelines.prepare.sources.columns.rejected import RejectedRow
from tfrecord_io.errors import FormatError, LedgerError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import FINGERPRINT, NAME, WRONG, count, items, mapping
from tfrecord_io.manifest import Ledger, Shard, Split

__all__ = ["Receipt", "dump", "parse", "to_split"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """What became of one task: a shard, or one for each length of rows. `engine` is the name and version of what
    tokenized it, and `rows_checked` how many of its rows the reference engine tokenized as well, with the same result.
    """

    fingerprint: str
    split: str
    index: int
    shards: tuple[Shard, ...]
    engine: str
    rows_checked: int
    first_rejected: tuple[RejectedRow, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The sum of the shards' ledgers."""
        return Ledger.total(shard.ledger for shard in self.shards)


def dump(receipt: Receipt) -> bytes:
    """The canonical text of a receipt."""
    document = {**dataclasses.asdict(receipt), "shards": [shard.to_json() for shard in receipt.shards]}
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def parse(text: bytes, *, place: str) -> Receipt:
    """Raises: FormatError if `text` is not a receipt."""
    try:
        fields = mapping(json_fields.load(text))
        receipt = Receipt(
            fingerprint=json_fields.text(fields["fingerprint"], FINGERPRINT),
            split=json_fields.text(fields["split"], NAME),
            index=count(fields["index"]),
            shards=tuple(map(Shard.from_json, items(fields["shards"]))),
            engine=json_fields.text(fields["engine"]),
            rows_checked=count(fields["rows_checked"]),
            first_rejected=tuple(map(_rejected_row, items(fields["first_rejected"]))),
        )
        if not receipt.shards:
            raise ValueError("no shard")
        for shard in receipt.shards:
            _check_shard(shard)
    except WRONG as error:
        raise FormatError(
            f"{place}: not a receipt ({error!r})", remedy="delete the file; its shard is remade"
        ) from error
    return receipt


def to_split(receipts: Sequence[Receipt], *, rows_in: int) -> Split:
    """One split of the manifest from all of its receipts.

    Raises: LedgerError if rows are missing or were counted twice.
    """
    in_order = [shard for receipt in sorted(receipts, key=lambda receipt: receipt.index) for shard in receipt.shards]
    # The shards of one length stand together.
    split = Split(shards=tuple(sorted(in_order, key=lambda shard: shard.length or 0)))
    unbalanced = [shard.name for shard in split.shards if not shard.ledger.balanced]
    ledger = split.ledger
    if unbalanced or ledger.rows_in != rows_in:
        raise LedgerError(
            f"{rows_in} rows were planned, {ledger.rows_in} read, {ledger.rows_used} used and "
            f"{ledger.rows_rejected} rejected{' in ' + unbalanced[0] if unbalanced else ''}, "
            "expected every row to be used or rejected",
            remedy="please report this with the plan and the receipts in .prep/",
        )
    return split


def _rejected_row(value: Any) -> RejectedRow:
    fields = mapping(value)
    return RejectedRow(row=count(fields["row"]), reason=json_fields.text(fields["reason"]))


def _check_shard(shard: Shard) -> None:
    """What a manifest refuses must not come into one: the shard is remade instead."""
    if not shard.num_examples or not shard.ledger.balanced:
        raise ValueError("no example, or rows that are neither used nor rejected")
