"""Which requests run in each step, decided by free pages and one token budget."""
