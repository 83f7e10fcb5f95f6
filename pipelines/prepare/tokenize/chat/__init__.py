"""Conversations, from lists of messages to tokens and a mask of what the assistant says.

messages        Arrow columns of messages
template        a tokenizer's chat template, chosen and tried; worker processes render by it
renderer        what such a process does, and what a row may take
conversation    one conversation: what is wrong with it, what a template sees of it
environment     Jinja as `transformers` sets it up
rendering       one conversation's text by the template, and which characters are the assistant's
single_pass     templates that never look ahead
alignment       which tokens those characters are in
encoder         all of it, and which turns stay of a conversation that is too long
"""
