"""Claims about the project as a whole."""
