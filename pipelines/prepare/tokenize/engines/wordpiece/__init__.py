"""WordPiece in compiled code."""
