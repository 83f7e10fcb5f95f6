"""Extraction of texts, labels and kept columns from source columns, and rejection of unusable rows."""

# Field of messages that are part of a prompt: the completion alone is learned. No source has a field of this name.
OF_PROMPT = "\0prompt"
