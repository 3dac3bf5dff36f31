"""What is known of each API request as it is served, for those who tell of it once it is over: logs and traces."""
