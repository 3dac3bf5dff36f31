"""`octavo chat`: a conversation in a terminal, with a server or with a model of its own."""
