"""Compare `build` with other current tools that tokenize a corpus once: JSON lines to packed byte-level BPE tokens.

pip installs each tool on first use in a separate environment in the work folder.

MosaicML Streaming is not included: it writes samples that the user's script has tokenized, like the common script, and
brings torch and the clients of five clouds.
"""

import pathlib
import shutil
import sys

import pyarrow.parquet as pq

from scripts.benchmarks import figures, measure, preparing

_DATATROVE = """
import os, sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    lines, tokenizer, output = sys.argv[1:]
    steps = [JsonlReader(lines), DocumentTokenizer(output, tokenizer, eos_token="<|endoftext|>")]
    cores = len(os.sched_getaffinity(0))
    LocalPipelineExecutor(steps, tasks=cores, workers=cores, logging_dir=f"{output}/logs").run()
"""
# pip requirement, program and arguments: {0} JSON lines, {1} tokenizer.json, {2} the output.
_PEERS = {
    "tokbin==0.1.0": ["tokbin", "build", "{2}", "--from-jsonl", "{0}", "--tokenizer", "{1}"],
    "datatrove[io,processing]==0.10.1": ["python", "{script}", "{0}", "{1}", "{2}"],
}


def report(settings: preparing.Settings) -> str:
    """Run each tool and `build` on the same JSON lines, and return a Markdown table of the seconds."""
    home = settings.workdir / "peers"
    lines, tokenizer = _json_lines(settings), settings.tokenizer("bpe")
    build = ["build", str(lines), "--tokenizer", str(tokenizer), "--layout", "concat"]
    build += ["--max-length", str(preparing.MAX_LENGTH), "--overwrite", "--output", str(home / "built")]
    ours = [measure.run([*measure.PROGRAM, *build]).seconds for _ in range(settings.runs)]
    rows = [_row("prep-tfrecords", ours, ours)]
    script = home / "run_datatrove.py"
    script.write_text(_DATATROVE)
    for requirement, command in _PEERS.items():
        name = requirement.partition("=")[0].partition("[")[0]
        output = home / f"built-{name}"
        places = (str(lines), str(tokenizer / "tokenizer.json"), str(output))
        theirs = []
        programs = _installed(home / name, requirement)
        for _ in range(settings.runs):
            shutil.rmtree(output, ignore_errors=True)
            arguments = [argument.format(*places, script=script) for argument in command[1:]]
            theirs.append(measure.run([str(programs / command[0]), *arguments]).seconds)
        rows.append(_row(requirement, theirs, ours))
    return figures.table(["tool", "s", "`build` is times as fast"], rows)


def _row(name: str, theirs: list[float], ours: list[float]) -> list[str]:
    return [name, figures.spread(theirs), figures.number(figures.median(theirs) / figures.median(ours))]


def _installed(folder: pathlib.Path, requirement: str) -> pathlib.Path:
    """Make a virtual environment with a package, once; return its folder of programs."""
    if not (folder / "installed").exists():
        measure.run([sys.executable, "-m", "venv", "--clear", str(folder)])
        measure.run([str(folder / "bin" / "pip"), "install", "--quiet", requirement])
        (folder / "installed").touch()
    return folder / "bin"


def _json_lines(settings: preparing.Settings) -> pathlib.Path:
    """Write the small corpus as JSON lines, in many files, since some tools read one per process; return the folder."""
    folder = settings.workdir / "peers" / f"lines-{settings.num_bytes['small']}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for source in settings.corpus("small").glob("*.parquet"):
            table = pq.read_table(source, columns=["text"]).to_pandas()
            for part in range(8):
                table[part::8].to_json(folder / f"{source.stem}-{part}.jsonl", orient="records", lines=True)
        (folder / "done").touch()
    return folder
