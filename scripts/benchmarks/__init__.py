"""The parts of scripts/benchmark.py: a synthetic corpus, the contenders, and what measures them.

words -> corpus -> Parquet              what is measured on; nothing is downloaded
tokenizer_training                      a WordPiece, a byte-level BPE and a Unigram tokenizer, trained on that corpus
measure, figures, machine               run a command and watch it; medians, bars and tables; where it ran
raw, common_script, reading_worker      contenders that run as processes of their own
preparing, chat, reading, startup       the sections: who runs against whom, and what follows from the times
"""
