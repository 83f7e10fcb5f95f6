"""Format the benchmark's results: the machine, medians, and Markdown tables."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import statistics
from collections.abc import Iterable, Sequence

median = statistics.median
_LIBRARIES = ("apache-beam", "datasets", "transformers", "tokenizers", "pyarrow", "numpy", "numba", "tensorflow")


def machine() -> str:
    """Return this machine's CPU model, cores and memory, versions of libraries, and the date, in one line."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # The name of a virtual CPU says little, so add family, number and widest vectors.
    names = ("cpu family", "model", "model name")
    family, model, cpu = (facts.get(key, "?") for key in names)
    vectors = [flag for flag in ("avx512f", "avx2") if flag in facts.get("flags", "").split()][:1]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    # TensorFlow's wheel without GPU code has another name.
    installed = {package.name.lower(): package.version for package in importlib.metadata.distributions()}
    versions = (f"{name} {installed.get(name) or installed.get(f'{name}_cpu', '?')}" for name in _LIBRARIES)
    return (
        f"{', '.join([cpu, f'family {family} model {model}', *vectors])}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GiB; Python {platform.python_version()}, {', '.join(versions)}; {datetime.date.today()}"
    )


def spread(values: Sequence[float]) -> str:
    """Return the median, with minimum and maximum if there are several values: '12.1 (11.8 to 13.0)'."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators; counts stay exact."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, readable as plain text."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
