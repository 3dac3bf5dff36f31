"""One line for each API request that is over."""
