"""Time limits of tests, in seconds. A limit ends a hang; no test measures time with one.

Each limit is at least ten times its longest use on a quiet machine with two cores:

    limit     quiet   its longest use
    ANSWER        8   Flink's job server starts; a thread, a server or an ending process answers in under a second
    PROCESS     145   training runs with JAX in one process (tests/train/test_jax.py); a build takes 5
    TEST        277   every command of the pages (tests/scripts/test_pages.py)

Tests also rely on limits of the product. A test that shortens one shows what happens after it.

    limit     quiet   in the product
       20      0.1    `beam_options._CONNECT_SECONDS`: a job service on this machine answers
        5      0.1    `child._END_SECONDS`: a worker without a task ends; a later one is killed
        5      0.01   `engine._CONNECT_SECONDS` of the trainer: a TPU worker on this machine accepts a connection
       60      0.1    `gcs._SILENCE_SECONDS`: the emulator sends the next bytes; a later request is repeated
"""

ANSWER = 120
PROCESS = 1800
TEST = 3600
