"""Engine for WordPiece in compiled code."""
