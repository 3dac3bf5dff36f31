"""Commands that measure Octavo and its peers; `octavo study` is one of them."""
