"""What the user asked for, checked before anything is opened."""
