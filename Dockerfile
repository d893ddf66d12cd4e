# Qwen3-TTS on NVIDIA's Triton image. Build: docker build -t qwen3-tts-triton .
# Run:   docker run --gpus all --shm-size=256m -p 8000:8000 -v qwen3-tts:/models qwen3-tts-triton
FROM nvcr.io/nvidia/tritonserver:25.08-py3

# The virtual environment must be of the Python that the image's Triton embeds in its stubs: the system's 3.12.
ENV UV_PYTHON=/usr/bin/python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    PATH=/opt/qwen3-tts/.venv/bin:$PATH

RUN pip install --no-cache-dir --break-system-packages uv==0.13.9

WORKDIR /opt/qwen3-tts

# Dependencies first: they change less often than the code. The image brings Triton, so the group that has one stays out.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --no-group triton --no-install-project

COPY engine_lib engine_lib
COPY proxy proxy
COPY model_repository model_repository
RUN uv sync --frozen --no-dev --no-group triton --no-editable

RUN useradd --create-home --uid 10001 speaker && mkdir /models && chown speaker /models
USER speaker
WORKDIR /home/speaker

ENV QWEN3_TTS_HOST=0.0.0.0 \
    QWEN3_TTS_PORT=8000 \
    QWEN3_TTS_MODEL_CACHE_DIR=/models
VOLUME /models
EXPOSE 8000 8001 8002 8003

# Loading weights and capturing graphs takes minutes at the first start, with the download.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"QWEN3_TTS_PORT\"]}/ready')"]

# The image's own entrypoint prints a banner and would stand between docker stop and us.
ENTRYPOINT ["qwen3-tts-triton", "serve"]
