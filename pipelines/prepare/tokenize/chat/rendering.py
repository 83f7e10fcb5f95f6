"""Rendering of one conversation by a chat template: its texts, and what is to be learned of them."""

from collections.abc import Callable

from pipelines.prepare.tokenize.chat.answers import AnswerFinder
from pipelines.prepare.tokenize.chat.conversation import Conversation, Needs, check_parts_read
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.program import Program, Settings


class ChatTemplate:
    """Chat template that renders conversations one at a time.

    `start_clock` is called before anything that may take forever: before compiling, and before each rendering.
    """

    def __init__(self, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        self.settings = settings
        self._start_clock = start_clock
        self._finders: dict[str, AnswerFinder] = {}
        self.needs = Needs(lambda messages, tools: self._run(Conversation(messages, tools)))

    def finder(self, conversation: Conversation) -> AnswerFinder:
        """Return the finder for the template of conversations with tools, or for the one without."""
        source = self.settings.source if conversation.tools is None else self.settings.tools_source
        if source not in self._finders:
            self._finders[source] = AnswerFinder(Program(source, self.settings, start_clock=self._start_clock))
        return self._finders[source]

    def render(self, conversation: Conversation, *, are_plain: bool = False) -> list[tuple[bytes, Spans, int]]:
        """Render a conversation, and find the answers in it. `are_plain`: all contents are known to be texts.

        Returns: texts in UTF-8, each with its byte spans [start, stop) to learn, in order and disjoint, and the number
            of its messages. With `learn` each, one for each answer; otherwise a single one, of all messages.

        Raises: Rejected if the template refuses the messages or cannot read them, or an answer's place is not certain.
        """
        finder, answers, learn = self.finder(conversation), conversation.learned(), self.settings.learn
        parts = [(conversation, answers if learn == "all" else answers[-1:])]
        if learn == "each" and answers:
            parts = [(conversation.until(answer + 1), [answer]) for answer in answers]
        texts = []
        for part, learned in parts:
            found = finder.program.run(part)
            if not are_plain:
                check_parts_read(part.messages, found.text)
            texts.append((found.text, finder.spans(part, found, learned), len(part.messages)))
        return texts

    def _run(self, conversation: Conversation) -> bytes:
        return self.finder(conversation).program.run(conversation).text
