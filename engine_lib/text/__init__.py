"""From a client's text to the model's prompt: tokens, speakers, languages, layouts. No torch."""
