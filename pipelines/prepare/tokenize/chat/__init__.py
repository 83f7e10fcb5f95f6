"""Conversations, from lists of messages to tokens and a mask of what the assistant says.

template        a tokenizer's chat template, chosen and tried; worker processes render by it
renderer        what such a process does, and what a row may take
conversation    one conversation: what is wrong with it, what a template sees of it
rendering       one conversation's text by the template, and which bytes are the assistant's
alignment       which tokens those bytes are in

Layout `chat` does all of it, and cuts conversations that are too long.
"""
