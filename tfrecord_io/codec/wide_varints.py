"""Sixteen varints at a time, where the processor can squeeze bytes together (AVX-512 VBMI and VBMI2).

    values     3        200            17,000             each widened to the 4 bytes
    groups     03 . . . 48 01 . .      68 04 01 .         that its varint may take, 7 bits in each,
    spread     03 . . . c8 01 . .      e8 84 01 .         0x80 set on all but its last,
    squeezed   03 c8 01 e8 84 01                          and the bytes that it does take, in one instruction

Looking up one varint after the other takes three times as long (measured: 0.81 against 0.25 ns for each value).
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tfrecord_io.codec.addresses import pointer
from tfrecord_io.codec.kernels import compiles_for

__all__ = ["CAN_SQUEEZE", "COUNT", "WIDTH", "put_many"]

CAN_SQUEEZE = compiles_for("avx512bw", "avx512vbmi", "avx512vbmi2")
WIDTH = 64  # bytes that `put_sixteen` may write to, however few of them are varints

_LANES, _VECTORS = 16, 4
COUNT = _LANES * _VECTORS  # values that `put_many` writes
WIDTH = 64  # bytes past the varints that it may write to
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_BYTES = ir.VectorType(ir.IntType(8), WIDTH)
_CHOICE = ir.VectorType(ir.IntType(1), WIDTH)
_LONG = ir.IntType(64)
_CUT = "llvm.x86.avx512.pmultishift.qb.512"
_ADD = "llvm.uadd.sat.v64i8"
_SQUEEZE = "llvm.x86.avx512.mask.compress.v64i8"
# Where in a pair of words each byte of the two is cut from.
_FROM = [32 * word + 7 * byte for word in range(2) for byte in range(4)] * (_LANES // 2)


@intrinsic
def put_many(typingctx: Any, position: Any, values: Any, index: Any, like: Any) -> Any:
    """Writes the varints of COUNT numbers, from number `index` of those that lie at the address `values` and have the
    type of `like`, an integer of 32 or 64 bits, to the address `position`. Returns: the position after them; -1 if one
    is negative or needs more than 3 bytes, and then nothing is written.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(context.get_value_type(like), _LANES)
        first = builder.gep(pointer(builder, args[1], kind.element), [args[2]])
        vectors = builder.bitcast(first, kind.as_pointer())
        given = [builder.load(builder.gep(vectors, [_LONG(k)]), align=1) for k in range(_VECTORS)]
        bits = functools.reduce(builder.or_, given)
        end = cgutils.alloca_once_value(builder, _LONG(-1))
        with builder.if_then(_none(builder, builder.icmp_unsigned(">=", bits, _all(kind, 1 << 21))), likely=True):
            words = given if kind == _WORDS else [builder.trunc(vector, _WORDS) for vector in given]
            all_small = _none(builder, builder.icmp_unsigned(">=", bits, _all(kind, 1 << 7)))
            with builder.if_else(all_small) as (small, large):
                with small:
                    builder.store(_put_small(builder, args[0], words), end)
                with large:
                    builder.store(_put(builder, args[0], words), end)
        return builder.load(end)

    return types.int64(types.int64, types.int64, types.int64, like), codegen


def _put_small(builder: Any, position: Any, words: list[Any]) -> Any:
    """One byte each."""
    kind = ir.VectorType(ir.IntType(8), _LANES)
    for k, vector in enumerate(words):
        place = pointer(builder, builder.add(position, _LONG(k * _LANES)), kind)
        builder.store(builder.trunc(vector, kind), place, align=1)
    return builder.add(position, _LONG(COUNT))


def _put(builder: Any, position: Any, words: list[Any]) -> Any:
    for vector in words:
        cut = _call(builder, _CUT, [ir.Constant(_BYTES, _FROM), builder.bitcast(vector, _BYTES)])
        kept, spread = _spread(builder, cut)
        squeezed = _call(builder, _SQUEEZE, [spread, _BYTES(None), kept])
        builder.store(squeezed, pointer(builder, position, _BYTES), align=1)
        position = builder.add(position, builder.ctpop(builder.bitcast(kept, _LONG)))
    return position


def _spread(builder: Any, cut: Any) -> tuple[Any, Any]:
    """Which bytes are kept, the first of each word and all up to the last that is not 0; and the bytes, 7 bits of each,
    marked where another follows. The eighth bit of what was cut is the first of the next byte's seven: if it is set, so
    is one of those, and the byte is kept all the same.
    """
    words = builder.bitcast(cut, _WORDS)
    later = builder.or_(builder.lshr(words, _all(_WORDS, 8)), builder.lshr(words, _all(_WORDS, 16)))
    nonzero = builder.bitcast(builder.or_(builder.or_(words, later), _all(_WORDS, 1)), _BYTES)
    kept = builder.icmp_unsigned("!=", nonzero, _BYTES(None))
    # 0x7f and any byte but 0 add up to 0x80 or more, or to 0xff where a byte holds no more.
    marks = _call(builder, _ADD, [builder.bitcast(later, _BYTES), _all(_BYTES, 0x7F)])
    spread = builder.or_(builder.and_(cut, _all(_BYTES, 0x7F)), builder.and_(marks, _all(_BYTES, 0x80)))
    return kept, spread


def _none(builder: Any, lanes: Any) -> Any:
    bits = ir.IntType(_LANES)
    return builder.icmp_unsigned("==", builder.bitcast(lanes, bits), bits(0))


def _call(builder: Any, name: str, args: list[Any]) -> Any:
    kind = ir.FunctionType(_BYTES, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)
