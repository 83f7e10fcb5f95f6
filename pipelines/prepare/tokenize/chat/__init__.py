"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses and tries a tokenizer's chat template, and renders with it in worker processes
renderer        renders a batch in such a process, within limits of time and memory, whole or up to each answer
conversation    checks one conversation and converts it to the form that templates expect
program         a compiled template, which reports where it writes each message
answers         finds the assistant's bytes in the text
part_masks      finds the bytes of an answer's parts that are not learned
alignment       finds the tokens that contain these bytes

Layout `chat` uses all of them, and cuts conversations that are too long.
"""
