"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses and tries a chat template, and renders with it in worker processes renderer        renders a
batch in such a process, within limits of time and memory conversation    checks a conversation and converts it to the
form that templates expect program         a compiled template, which reports where it writes each message answers
finds the assistant's bytes in the text part_masks      finds the bytes of an answer's parts that are not learned
alignment       finds the tokens that contain these bytes
"""
