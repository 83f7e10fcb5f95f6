"""Format text for messages, without secrets and invisible characters."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

# A password may contain a slash. `host:8080/users/@me` has no password.
_USER = re.compile(r"(://)(?:[^\s/?#'\"<>]*@|[^\s/?#:'\"<>]+:(?!\d+[/?#])[^\s'\"<>@]*@)")
# Punctuation at the end of a sentence is not part of an address.
_REST = r"[^\s'\"<>]*[^\s'\"<>.,:;)\]}]"
# The query of a web address, and any text in the form NAME=VALUE after a question mark.
_QUERY = re.compile(rf"(https?://[^\s'\"<>?]*)\?{_REST}|\?[\w.%~+-]+={_REST}", re.IGNORECASE)
# The query of a Google Cloud console page only names a project.
_PAGE = re.compile(r"https://console\.cloud\.google\.com/[\w./-]*\?project=[\w.:-]+")
_NAMES = (
    r"(?:(?<!\w)(?:sig|token)|signature|credential|secret|password|passwd|upload_id|"
    r"(?:access|api|auth|bearer|hf|id|refresh|sas|security|session)[_-]?token|"
    r"(?:access|account|api|private|secret|shared)[_-]?key)"
)
_NAMED = re.compile(rf"({_NAMES}=|{_NAMES}['\"]\s*:\s*['\"])['\"]?[^\s&'\"<>]+", re.IGNORECASE)
_HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?)(?:(?:basic|bearer|token)\s+)?[^\s'\",;}]+", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|api_org_)[A-Za-z0-9]{16,}|\bya29\.[\w.-]+|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|\b(?:Bearer|bearer|BEARER)\s+[^\s'\",;]+"
)

# Invisible characters, such as lone surrogates and direction controls, except the joiners of emoji and Persian.
_UNSEEN = (
    "\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_CONTROL = re.compile(f"[\x00-\x1f{_UNSEEN}]")
_MOST_SHOWN = 10_000


def without_secrets(text: str) -> str:
    text = _USER.sub(r"\1...@", _HEADER.sub(r"\1...", _TOKEN.sub("...", text)))
    text = _QUERY.sub(lambda match: match[0] if _PAGE.fullmatch(match[0]) else f"{match[1] or ''}?...", text)
    return _NAMED.sub(r"\1...", text)


def without_access(address: str) -> str:
    """Return an address without user, password and query. Local paths stay unchanged."""
    if "://" not in address:
        return address
    address = _USER.sub(r"\1", address)
    path, _, query = address.partition("?")
    # In an address of another scheme, a question mark may be a wildcard.
    return path.partition("#")[0] if is_web(address) else path if "=" in query else address


def is_web(address: str) -> bool:
    return re.search("https?://", address, re.IGNORECASE) is not None


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text with escaped control characters, such as `\x1b` and `\n`. With `lines`, keep line ends."""
    kept = "\n" if lines else ""
    return _CONTROL.sub(
        lambda match: match[0] if match[0] == kept else match[0].encode("unicode_escape", "surrogatepass").decode(),
        text,
    )


def bounded(text: str) -> str:
    """Shorten a text of more than 10,000 characters to its beginning and its end."""
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 4 :]}"


def visible_line(text: str) -> str:
    """Return a text as one line, without secrets or control characters."""
    return visible(" ".join(without_secrets(text).split()))


def some(number: int, noun: str) -> str:
    """Return a number with a noun in singular or plural: 1 shard, 3 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration, as in 3.2 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table without the columns that contain only 0 or ""."""
    body = [tuple(row) for row in rows]
    kept = [at for at in range(len(head)) if any(row[at] not in (0, "") for row in body) or not body]

    def line(tag: str, row: Sequence[Any]) -> str:
        cells = (f"{row[at]:,}" if isinstance(row[at], int) else html.escape(visible(str(row[at]))) for at in kept)
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in body)}</table>"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, safe to print, or the error's class if there is none."""
    lines = str(error).strip().splitlines()
    return visible_line(lines[0]) if lines else type(error).__name__


def cause_without_secrets(error: BaseException) -> BaseException | None:
    """Return `error` for `raise ... from`, or None if it or one of its causes contains a secret."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:  # causes may form a cycle
        if without_secrets(str(cause)) != str(cause):
            return None
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return error
