"""HTTP and WebSocket in front of Triton. Never imports torch, so it starts in a second."""
