"""Conversations, from lists of messages to tokens and a mask of what the assistant says.

    messages    Arrow columns of messages; what is wrong with a row
    rendering   the tokenizer's chat template, and which characters of its text are the assistant's
    tracing     running the template on strings that watch what is done to them
    skeletons   what it makes of conversations with the same roles: fixed text around their contents
    filling     many conversations at once, by copying bytes into skeletons
    texts       rendered texts as one run of bytes, each marked as to be learned or not
    alignment   which tokens those bytes are in
    cutting     which turns stay of a conversation that is too long
    encoder     all of it

Every row could go through the template itself, at 20 to 100 µs each with the interpreter locked, as long as the engine
takes for all its tokens ten times over. Most go through a skeleton, which is proved on awkward contents when it is
learned, and compared with the template on one row in two hundred while a job runs.
"""
