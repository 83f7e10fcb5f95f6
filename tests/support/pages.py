"""The code on the project's pages: blocks of commands and of Python, and what each block says that it needs.

A block of commands that begins with a line such as `# Needs the hub and Google Cloud.` is not run by the tests; every
other one is. A block of Python that begins with a comment is a sketch; every other one is run.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import REPOSITORY

# The words of a marker, by what is needed.
NEEDS = {
    "hub": "the hub",
    "cloud": "Google Cloud",
    "flink": "Flink",
    "tpu": "a TPU",
    "network": "the network",
    "preflight": "the preflight extra",
    "minutes": "minute",
}
_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_MARKER = re.compile(r"# Needs ([^\n]*)\n")
_LOCAL_FOLDERS = {"data", "examples", "out"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its page, the line of its first line, its language, and its text without indentation."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """The page and the line."""
        return f"{self.page}:{self.line}"

    @property
    def marked(self) -> frozenset[str]:
        """What the marker names, by the keys of NEEDS."""
        found = _MARKER.match(self.text)
        return frozenset(key for key, words in NEEDS.items() if found and words in found.group(1))

    @property
    def commands(self) -> list[Command]:
        """The commands of a shell block, in order."""
        joined = self.text.replace("\\\n", " ")
        words = [shlex.split(line, comments=True) for line in joined.splitlines() if not line.startswith("eval ")]
        return [Command.of(part) for line in words for part in _parts(line)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its words, after assignments such as HF_HUB_OFFLINE=1."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, words: list[str]) -> Command:
        """The command without its assignments."""
        first = next(at for at, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
        return cls(words=tuple(words[first:]))

    def values(self, option: str) -> list[str]:
        """The values of an option, as `--option VALUE` or `--option=VALUE`."""
        following = zip(self.words, self.words[1:], strict=False)
        return [value for name, value in following if name == option] + [
            word.partition("=")[2] for word in self.words if word.startswith(f"{option}=")
        ]


def pages() -> list[str]:
    """Every page with code that people paste: the documents' in the order of the site, then those of the repository."""
    others = ["README.md", "CONTRIBUTING.md", *sorted(_relative(REPOSITORY.glob("examples/*/README.md")))]
    return [*site_pages(), *others]


def site_pages() -> list[str]:
    """The pages of the site in the order of its navigation."""
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return [f"docs/{name}" for name in re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", navigation, re.M)]


def blocks(*languages: str) -> list[Block]:
    """The blocks of every page in these languages."""
    return [block for page in pages() for block in _blocks(page) if block.language in languages]


def needs_of(block: Block) -> frozenset[str]:
    """What the commands of a block need that this machine may not have, as far as their words show it."""
    return frozenset(need for command in block.commands for need in _needs(command))


def _needs(command: Command) -> Iterator[str]:
    words, text = command.words, " ".join(command.words)
    if any(_is_on_the_hub(name) for name in _names(command)) or "hf://" in text or text.startswith("hf download"):
        yield "hub"
    if "gs://" in text or words[0] == "gcloud" or "--runner=DataflowRunner" in text:
        yield "cloud"
    if "--runner=FlinkRunner" in text:
        yield "flink"
    if words[0] == "train-tpu" and set(command.values("--tpu")) - {"none"}:
        yield "tpu"
    if words[:2] == ("pip", "install") or words[0] in ("./scripts/quickstart", "./scripts/check"):
        yield "network"
    if "--preflight" in words:
        yield "preflight"
    if (
        words[0] in ("./scripts/quickstart", "./scripts/check")
        or "--preflight" in words
        or "scripts/benchmark.py" in words
        or words[0] == "bash"  # the run.sh of an example, which tests/scripts/test_guide.py runs
    ):
        yield "minutes"


def _names(command: Command) -> Iterator[str]:
    """What may be a hub id: a tokenizer, and the dataset of a command that makes one."""
    yield from command.values("--tokenizer")
    if command.words[0] == "prep-tfrecords" and command.words[1] in ("build", "plan"):
        yield command.words[2]


def _is_on_the_hub(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and name.partition("/")[0] not in _LOCAL_FOLDERS


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, which `&&` joins."""
    while words:
        at = words.index("&&") if "&&" in words else len(words)
        yield words[:at]
        words = words[at + 1 :]


def _blocks(page: str) -> Iterator[Block]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = len(found.group(1))
        body = "".join(line[indent:] for line in found.group(3).splitlines(keepends=True))
        line = text.count("\n", 0, found.start(3)) + 1
        yield Block(page=page, line=line, language=found.group(2), text=body)


def _relative(paths: Iterator[Path]) -> list[str]:
    return [str(path.relative_to(REPOSITORY)) for path in paths]
