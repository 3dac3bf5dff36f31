"""`octavo inspect`: what a model is and how much of it fits, told before a weight is loaded."""
