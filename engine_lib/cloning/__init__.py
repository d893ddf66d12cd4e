"""From a few seconds of someone's voice to what the talker and the codec need to speak like them."""
