"""What the command lines of both sides share: lines and tables for people, and quiet libraries."""
