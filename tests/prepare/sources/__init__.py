"""Tests of what lies between DATASET and rows."""
