"""From DATASET to splits and their files, by the rules of `datasets`."""
