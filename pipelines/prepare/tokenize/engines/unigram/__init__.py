"""SentencePiece's Unigram in compiled code."""
