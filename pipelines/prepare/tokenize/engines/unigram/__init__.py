"""Engine for SentencePiece's Unigram in compiled code."""
