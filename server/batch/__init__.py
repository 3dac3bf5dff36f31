"""`octavo batch`: a file of requests answered without a server."""
