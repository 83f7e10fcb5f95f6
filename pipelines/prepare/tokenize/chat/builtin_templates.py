"""Built-in chat templates. ChatML is OpenAI's format; Axolotl 0.19 and LLaMA-Factory 0.9.5 write the same text."""

from pipelines.prepare.tokenize.engines import HFTokenizer

TEXTS = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
}
_MARKERS = {"chatml": ("<|im_start|>", "<|im_end|>")}


def use(tokenizer: HFTokenizer, name: str | None) -> None:
    """Make the built-in template `name` the tokenizer's default, unless the tokenizer has a template `name`."""
    templates = tokenizer.chat_template
    if name in TEXTS and not (isinstance(templates, dict) and name in templates):
        # Two names, because other programs use the template named default.
        tokenizer.chat_template = {"default": TEXTS[name], name: TEXTS[name]}


def notes_on(tokenizer: HFTokenizer, name: str | None) -> tuple[str, ...]:
    """Return a note if the tokenizer splits the markers of the built-in template `name` into several tokens."""
    markers = _MARKERS.get(name or "", ())
    split = [marker for marker in markers if len(tokenizer(marker, add_special_tokens=False)["input_ids"]) != 1]
    if not split:
        return ()
    return (
        f"--chat-template {name}: this tokenizer splits {' and '.join(split)} into several tokens; to make single "
        f"tokens of them, call tokenizer.add_tokens({split}, special_tokens=True), save the tokenizer with "
        "save_pretrained, give that folder as --tokenizer, and resize the model's embeddings",
    )
