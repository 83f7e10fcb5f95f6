"""Select the rows of a job by split, read them, apply user functions, and hold rows out."""
