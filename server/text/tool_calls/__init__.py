"""Tool calls in the text that a model writes, one module for each family's way of writing them."""
