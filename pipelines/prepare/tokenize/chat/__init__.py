"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses a chat template, and renders in worker processes renderer        renders a batch in such a
process, within limits conversation    checks a conversation and converts it program         a compiled template answers
finds the assistant's bytes in the text part_masks      finds bytes that are not learned alignment       finds the
tokens of these bytes
"""
