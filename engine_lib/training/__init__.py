"""How the embedded voice was made, from texts to checkpoint. The server never imports this package."""
