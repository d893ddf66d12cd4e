# Qwen3-TTS on NVIDIA's Triton image; docs/deploy.md says how to run it. Build: docker build -t qwen3-tts-triton .
ARG TRITON=nvcr.io/nvidia/tritonserver:25.08-py3

# Made on the same image: Triton's stubs embed the system's Python 3.12, and the environment must be of that one. NumPy
# stays the environment's own: the stubs take it from there, and the lock file names one that they work with.
# hadolint ignore=DL3006
FROM ${TRITON} AS build
ENV UV_PYTHON=/usr/bin/python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy
RUN pip install --no-cache-dir --break-system-packages uv==0.13.9
WORKDIR /opt/qwen3-tts

# Dependencies first: they change less often than the code. The image brings Triton, so the group that has one stays out.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --no-group triton --no-group listening --no-install-project
COPY engine_lib engine_lib
COPY proxy proxy
COPY model_repository model_repository
RUN uv sync --frozen --no-dev --no-group triton --no-group listening --no-editable

# hadolint ignore=DL3006
FROM ${TRITON}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 speaker \
    && install --directory --owner speaker /models /voices
COPY --from=build /opt/qwen3-tts/.venv /opt/qwen3-tts/.venv

ENV PATH=/opt/qwen3-tts/.venv/bin:$PATH \
    QWEN3_TTS_HOST=0.0.0.0 \
    QWEN3_TTS_PORT=8000 \
    QWEN3_TTS_MODEL_CACHE_DIR=/models \
    QWEN3_TTS_VOICE_DIR=/voices
USER 10001
WORKDIR /home/speaker
VOLUME ["/models", "/voices"]
EXPOSE 8000 8001 8002 8003

# Loading weights and capturing graphs takes minutes at the first start, with the download.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"QWEN3_TTS_PORT\"]}/ready')"]

# tini reaps what is orphaned and hands on SIGTERM; the image's own entrypoint would print a banner and do neither.
ENTRYPOINT ["tini", "--", "qwen3-tts-triton", "serve"]
