"""The options of a build, validated before anything is opened."""
