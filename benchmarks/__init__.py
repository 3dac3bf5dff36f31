"""Commands that measure Octavo and its peers; not installed with it."""
