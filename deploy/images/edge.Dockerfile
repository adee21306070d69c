# The device's side: client, chat app and codec, without torch.
#     make image NAME=edge          x86, CPU
#     make image NAME=edge-jetson INDEX=…       Jetson AGX Orin, JetPack 6.2: CUDA, cuDNN and TensorRT 10.3 are those of the
#                                   base, NVIDIA's l4t-tensorrt (BASE=… names the registry). INDEX has onnxruntime-gpu for
#                                   CUDA 12.6: `edge-client doctor` names it. On the device, or buildx for arm64. Not run here.
# The user is not root. A board's devices belong to the groups video and render, whose numbers are the host's:
# docs/edge-guide.md starts it with them.
# BASE: name it with its digest in production (debian@sha256:…).
ARG BASE=debian:bookworm-20251117-slim

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
# Packages before sources: an edit of the sources installs none of them again. The lock of JetPack's Python 3.10 leaves
# the CPU's onnxruntime out, whose files the GPU's replaces; 1.23.0 is the newest of JetPack 6.
ARG LOCK=edge
ARG INDEX=
ARG ONNXRUNTIME=onnxruntime-gpu==1.23.0
COPY requirements requirements
RUN python3 -m venv /app/python \
    && pip install --no-deps --require-hashes --requirement "requirements/locks/${LOCK}.txt" \
    && if [ "${LOCK}" = jetson ]; then \
        PIP_INDEX_URL="${INDEX:?name the index of onnxruntime-gpu for this JetPack}" pip install --no-deps "${ONNXRUNTIME}"; fi
COPY . .
RUN pip install --no-deps .
# What is in the image, Python's packages and Debian's, as CycloneDX, made by a tool that does not stay in it.
COPY --from=python /var/lib/dpkg/status /tmp/dpkg-status
RUN python3 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /tmp/python.cdx.json \
    && python3 deploy/images/sbom.py /tmp/python.cdx.json /tmp/dpkg-status > /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="edge-client" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app/python /app/python
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1 \
    EDGE_CLIENT_BUNDLE=/srv/memories/bundle HOME=/srv/memories
# Without a group here: with one the user would lose video and render.
USER 10001
WORKDIR /srv/memories
# The bundle comes from the service: edge-client pull --service HOST:7430; on a GPU then edge-client build.
VOLUME /srv/memories
STOPSIGNAL SIGINT
ENTRYPOINT ["edge-client"]
CMD ["doctor"]
