HERTZ = 500  # the tone of codec.py
