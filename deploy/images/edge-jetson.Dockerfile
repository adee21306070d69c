# The device's side on a Jetson AGX Orin, JetPack 6.2: CUDA, cuDNN and TensorRT 10.3 are those of the base. Not run here.
#     docker build --file deploy/images/edge-jetson.Dockerfile --build-arg INDEX=… .    on the device, or buildx for arm64
# BASE is NVIDIA's l4t-tensorrt: name the registry you take it from with --build-arg BASE=…
# INDEX has onnxruntime-gpu for JetPack 6 with CUDA 12.6: `edge-client doctor` names it.
# The user is not root; the board's devices belong to the groups video and render, whose numbers are the host's:
#     docker run --runtime nvidia --network host -v memories:/srv/memories \
#         --group-add $(getent group video | cut -d: -f3) --group-add $(getent group render | cut -d: -f3) …
ARG BASE=l4t-tensorrt:r10.3.0-runtime

FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && groupadd --gid 10001 memories \
    && groupadd --force --system render \
    && useradd --uid 10001 --gid 10001 --groups video,render --home-dir /srv/memories --create-home \
        --shell /usr/sbin/nologin memories

FROM python AS build
# A compiler for the codec's decoder; it stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/app/python/bin:$PATH
WORKDIR /src
COPY . .
# JetPack's Python is 3.10, which the edge extra supports but constraints.txt does not. The CPU's onnxruntime has the
# same files as the GPU's, so it goes first.
ARG INDEX
ARG ONNXRUNTIME=onnxruntime-gpu==1.23.0
RUN python3 -m venv /app/python \
    && pip install ".[edge,serve]" \
    && pip uninstall --yes onnxruntime \
    && PIP_INDEX_URL="${INDEX:?name the index of onnxruntime-gpu for this JetPack}" pip install --no-deps "${ONNXRUNTIME}"
RUN python3 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="edge-client" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app/python /app/python
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    EDGE_CLIENT_BUNDLE=/srv/memories/bundle HOME=/srv/memories
# Without a group here: with one the user would lose video and render.
USER 10001
WORKDIR /srv/memories
# The bundle comes from the service: edge-client pull --service HOST:7430; then edge-client build makes the engine.
VOLUME /srv/memories
STOPSIGNAL SIGINT
ENTRYPOINT ["edge-client"]
CMD ["doctor"]
