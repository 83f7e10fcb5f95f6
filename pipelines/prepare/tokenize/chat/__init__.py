"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses and tries a chat template, and renders in worker processes renderer        renders a batch in
such a process, within limits conversation    checks a conversation and converts it for templates program         a
compiled template, which reports each message's place answers         finds the assistant's bytes in the text part_masks
finds the bytes of parts that are not learned alignment       finds the tokens that contain these bytes
"""
