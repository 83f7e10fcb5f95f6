"""Proof that rows are read where they lie, by counting: what the launcher receives and writes.

    python scripts/prove_sources.py [--launcher-share] [--relayed] [options]

    --launcher-share   200 files of 2 MB in a bucket, built by worker processes: what the launcher receives of them
    --relayed          a dataset of a hub that workers have no token for: nothing of it on the launcher's disk either

Without any of these both are shown. The bucket is an emulator and the hub a server of this process, on loopback. It
makes its own corpus and tokenizer, and needs Linux; Flink needs scripts/get_flink_job_server.py.
Exit status: 0 if every claim held, 1 if one did not, 2 usage.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

# `python scripts/prove_sources.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts import arguments
from scripts.proving import figures, launcher_share, places, relayed
from scripts.proving.corpora import FORMS, Shape
from scripts.proving.figures import Figure

SECTIONS = ("launcher_share", "relayed")
_FILES = 200
_FILE_BYTES = 2_000_000
_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Runs the sections that were asked for and prints their tables."""
    options = _options()
    chosen = [name for name in SECTIONS if getattr(options, name)] or list(SECTIONS)
    stream = sys.stderr if options.json else sys.stdout
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="proof-") as temporary:
        workdir = (options.workdir or pathlib.Path(temporary)).resolve()
        workdir.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            began = time.perf_counter()
            text, section = _SECTIONS[name](options, workdir)
            print(f"{text}\n", file=stream, flush=True)
            print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            found += section
    print(figures.figures_table(found), figures.failures_text(found), sep="\n\n", file=stream)
    if options.json:
        print(json.dumps([figure.to_json() for figure in found], indent=2))
    return 1 if any(figure.failures for figure in found) else 0


def _launcher_share(options: argparse.Namespace, workdir: pathlib.Path) -> tuple[str, list[Figure]]:
    shares = []
    for form in options.forms or ("parquet", "jsonl.gz"):
        for engine in options.engines:
            if missing := places.missing(engine):
                print(f"{engine} is left out: {missing}", file=sys.stderr)
                continue
            shape = _shape(form, num_files=_FILES, file_bytes=_FILE_BYTES, scale=options.scale)
            shares.append(launcher_share.measure_share(workdir, shape, engine, shard_size=options.shard_size))
    found = [figure for share in shares for figure in launcher_share.figures(share)]
    return launcher_share.share_table(shares), found


def _relayed(options: argparse.Namespace, workdir: pathlib.Path) -> tuple[str, list[Figure]]:
    relays = []
    for form in options.forms or ("parquet", "jsonl.gz"):
        shape = _shape(form, num_files=_FILES, file_bytes=_FILE_BYTES, scale=options.scale)
        relays.append(relayed.measure_relay(workdir, shape, "portable", shard_size=options.shard_size))
    return relayed.relays_table(relays), [figure for relay in relays for figure in relayed.figures(relay)]


_SECTIONS = {
    "launcher_share": _launcher_share,
    "relayed": _relayed,
}


def _shape(form: str, *, num_files: int, file_bytes: int, scale: float) -> Shape:
    """Fewer files at a smaller scale, and if that would leave too few, smaller ones."""
    count = max(4, round(num_files * scale))
    return Shape(form=form, num_files=count, file_bytes=round(min(1.0, num_files * scale / count) * file_bytes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    for name in SECTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="share of the source")
    parser.add_argument("--forms", nargs="+", choices=FORMS, metavar="FORM", help=f"of the source: {', '.join(FORMS)}")
    parser.add_argument(
        "--engines", nargs="*", choices=places.ENGINES, default=["portable"], metavar="NAME", help="portable, flink"
    )
    parser.add_argument("--shard-size", default="4MB", metavar="SIZE", help="default %(default)s")
    arguments.add_output(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
