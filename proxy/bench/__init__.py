"""The open-loop load generator behind `qwen3-tts-triton bench`. A client: knows no engine, imports no torch.

texts.py       what is said, and how long it takes to say; compose.py made the sentences
plan.py        when which request is due: seeded Poisson arrivals
listening.py   what a listener's clock says of one response
outcome.py     what became of one request; every failure has one of a few kinds
targets/       how a request travels: HTTP, WebSocket, gRPC
load.py        the run: send each request when it is due
summary.py     many outcomes in figures
report.py      JSON and Markdown; plot.py: the picture
command.py     options in, files out
"""
