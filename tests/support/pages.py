"""The code on the project's pages: blocks of commands and of Python, and what each block says that it needs.

A block of commands that begins with a line such as `# Needs the Hub and Google Cloud.` is not run by the tests; every
other one is. A block of Python that begins with a comment is a sketch; every other one is run.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator

from tests.support.processes import REPOSITORY

# Possible names in a marker, and the commands that need them and may not find them on this machine.
_SCRIPT = r"^\./scripts/(?:quickstart|check)(?: |$)"
_HUB_ID = r"(?!(?:data|examples|out)(?:/| |$))[\w.-]+(?:/[\w.-]+)?(?= |$)"
NEEDS = {
    "the Hub": rf"(?:--tokenizer[ =]|^prep-tfrecords (?:build|plan) ){_HUB_ID}|--push |hf://|^hf download",
    "Google Cloud": r"gs://|^gcloud|--runner=DataflowRunner",
    "Amazon S3": r"s3://",
    "Flink": r"--runner=FlinkRunner",
    "a TPU": r"^train-tpu .*--tpu[ =](?!none)",
    "the network": rf"^pip install|{_SCRIPT}",
    "the preflight extra": r"--preflight",
    # What `bash` runs is the run.sh of an example, as tests/scripts/test_guide.py does.
    "minute": rf"{_SCRIPT}|--preflight|scripts/benchmark\.py|^bash ",
}
_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_MARKER = re.compile(r"# Needs ([^\n]*)\n")

Command = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its page, the line of its first line, its language, and its text without indentation."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def marked(self) -> set[str]:
        match = _MARKER.match(self.text)
        return {words for words in NEEDS if match and words in match.group(1)}

    @property
    def needed(self) -> set[str]:
        texts = [" ".join(command) for command in self.commands]
        return {words for words, pattern in NEEDS.items() if any(re.search(pattern, text) for text in texts)}

    @property
    def commands(self) -> list[Command]:
        """The commands of a shell block, in order."""
        joined = self.text.replace("\\\n", " ")
        words = [shlex.split(line, comments=True) for line in joined.splitlines() if not line.startswith("eval ")]
        return [command_of(part) for line in words for part in _parts(line)]


def command_of(words: list[str]) -> Command:
    first = next(at for at, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return tuple(words[first:])


def pages() -> list[str]:
    examples = [str(path.relative_to(REPOSITORY)) for path in sorted(REPOSITORY.glob("examples/*/README.md"))]
    return [*site_pages(), "README.md", "CONTRIBUTING.md", *examples]


def site_pages() -> list[str]:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return [f"docs/{name}" for name in re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", navigation, re.M)]


def blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in _blocks(page) if block.language in languages]


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, which `&&` joins."""
    while words:
        at = words.index("&&") if "&&" in words else len(words)
        yield words[:at]
        words = words[at + 1 :]


def _blocks(page: str) -> Iterator[Block]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        indent = len(match.group(1))
        body = "".join(line[indent:] for line in match.group(3).splitlines(keepends=True))
        line = text.count("\n", 0, match.start(3)) + 1
        yield Block(page=page, line=line, language=match.group(2), text=body)
