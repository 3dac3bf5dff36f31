"""HTTP itself: the listener, the protocol, streams of events, ids and errors of requests. Knows no endpoint."""
