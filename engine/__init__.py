"""The step loop around scheduler and model, in a process of its own, and the client that talks to it."""
